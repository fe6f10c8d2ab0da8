"""Retention, rolling and snapshots, in rounds and between syncs."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from raftlog.config import BrokerConfig
from raftlog.disk import OsDisk
from raftlog.limits import SEGMENT_BYTES_MIN
from raftlog.server.maintenance import STEP_SECONDS, Housekeeping, LogCleaner, LogVerifier
from raftlog.server.metrics import Counters
from raftlog.server.partition import Partition
from raftlog.storage.checkpoint import Copies
from raftlog.testing import wait_until
from raftlog.testing.disk import SimDisk
from tests.server.cluster.paper import Scene, play, write
from tests.server.harness import Client, FakeClock, FaultyDisk, RunningBroker, batch_of, running

FULL = batch_of(b"x" * (SEGMENT_BYTES_MIN // 2))  # two of them need two segments
HOUR_MS = 3_600_000


def retire(broker: RunningBroker) -> None:
    broker.await_(broker.broker.housekeeping.retire())


def confirmed_start(client: Client) -> int:
    """Of topic "t", once the deletion is durable: until then it is not told."""
    wait_until(lambda: client.offset("t", "earliest").failure is None)
    return client.offset("t", "earliest").offset


def test_old_segments_go_and_the_rest_stays(
    broker: RunningBroker, client: Client, clock: FakeClock
) -> None:
    client.create("t", segment_bytes=str(SEGMENT_BYTES_MIN), retention_ms=str(HOUR_MS))
    client.create("kept")
    client.produce("kept", FULL)
    for _ in range(4):
        client.produce("t", batch_of(b"x" * 10_000, timestamp_ms=clock.now_ms))
        clock.now_ms += HOUR_MS // 2
    retire(broker)
    earliest = confirmed_start(client)
    assert 0 < earliest < 4
    assert len(client.fetch("t", earliest)[1]) == 4 - earliest
    assert client.offset("kept", "earliest").offset == 0
    broker.wait_until(lambda: len(list(Path(broker.config.data_dir).rglob("*.log"))) <= 4)


def test_rounds_come_by_themselves(tmp_path: Path, clock: FakeClock) -> None:
    settings = {"log_retention_check_interval_ms": "1", "log_checkpoint_interval_ms": "1"}
    with running(tmp_path, clock=clock, **settings) as broker, broker.client() as client:  # type: ignore[arg-type]
        client.create("t", segment_bytes=str(SEGMENT_BYTES_MIN), retention_bytes="0")
        for _ in range(3):
            client.produce("t", FULL)
        log = broker.broker.context.topics.host("t", 0).log
        broker.wait_until(lambda: log.log_start_offset > 0)
        client.create("kept")
        client.produce("kept", FULL)
        broker.wait_until(lambda: any(tmp_path.rglob("topics/kept/**/*.index")))


def test_the_durable_end_is_recorded_at_an_interval(tmp_path: Path, clock: FakeClock) -> None:
    with running(tmp_path, clock=clock) as broker, broker.client() as client:
        client.create("t")
        for _ in range(3):
            client.produce("t", FULL)
        log = broker.broker.context.topics.host("t", 0).log

        def recorded() -> list[int]:
            rows = Copies(OsDisk(), broker.config.data_dir, new_id=lambda: "", is_new=False).rows
            return [row.durable_end_offset for row in rows.values()]

        assert broker.call(lambda: log.durable_end_offset) == 3
        broker.wait_until(lambda: recorded() == [3])


@pytest.mark.parametrize("interval_ms", ["1", "0"])
def test_damage_is_looked_for_unless_that_is_off(
    interval_ms: str, caplog: pytest.LogCaptureFixture
) -> None:
    def harm(host: Partition, disk: SimDisk) -> None:
        disk.flip_bit(f"{host.log.directory}/{0:020d}.log", 8 * 100)

    async def test(s: Scene) -> None:
        hosts = [s.host(partition=number) for number in range(3)]
        for host in hosts:
            write(host.log, b"x" * 200)
        config = BrokerConfig.from_text({"log.scrub.interval.ms": interval_ms})
        told: list[Partition] = []
        saves: list[float] = []
        verifier = LogVerifier(Counters(), on_damage=told.append)
        compactor = LogCleaner(
            config,
            lambda: hosts,
            s.workers,
            clock=s.services.clock,
            entropy=bytes,
            verifier=verifier,
            on_failed=s.failures.append,
        )

        async def save_copies() -> None:
            saves.append(s.loop.time())

        housekeeping = Housekeeping(config, s.loop, lambda: hosts, verifier, compactor, save_copies)
        await asyncio.sleep(5)
        assert len(saves) >= 4
        harm(hosts[1], s.disk)
        await asyncio.sleep(2 * STEP_SECONDS)
        assert told == ([hosts[1]] if interval_ms == "1" else [])
        await housekeeping.stop()
        harm(hosts[2], s.disk)
        await asyncio.sleep(5)
        assert len(told) <= 1

    with caplog.at_level(logging.ERROR):
        play(test)


def test_files_that_vanish_are_noticed(
    broker: RunningBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.create("gone")
    client.create("kept")
    client.produce("gone", FULL)
    host = broker.broker.context.topics.host("gone", 0)
    shutil.rmtree(host.log.directory)
    broker.wait_until(lambda: bool(host.log.damage))
    assert (
        f"log corrupt: partition=gone:0 reason={host.log.directory} was moved, or files in it"
        in caplog.text
    )
    assert broker.call(lambda: broker.broker.context.counters.damage_found) == 1
    client.produce("kept", FULL)


def test_an_old_segment_is_rolled_even_if_nothing_is_written(
    broker: RunningBroker, client: Client, clock: FakeClock
) -> None:
    client.create("t", segment_ms="1000")
    client.produce("t", FULL)
    log = broker.broker.context.topics.host("t", 0).log
    retire(broker)
    assert broker.call(lambda: log.segment_count) == 1
    clock.now_ms += 1_000
    retire(broker)
    assert broker.call(lambda: log.segment_count) == 2
    assert client.produce("t", FULL).base_offset == 1


def test_retention_finds_its_moment_while_a_log_is_always_being_synced(
    broker: RunningBroker, client: Client, disk: FaultyDisk
) -> None:
    client.create("t", segment_bytes=str(SEGMENT_BYTES_MIN), retention_bytes="0")
    for _ in range(3):
        client.produce("t", FULL)
    disk.faults.sync_gate.clear()
    first = client.send_batch("t", FULL)
    client.offset("t", "latest")
    second = client.send_batch("t", FULL)
    client.offset("t", "latest")
    retire(broker)
    assert client.offset("t", "earliest").offset == 0
    disk.faults.sync_gate.set()
    client.produced(first)
    client.produced(second)
    assert confirmed_start(client) > 0


def test_a_full_disk_does_not_stop_the_round(
    broker: RunningBroker, client: Client, clock: FakeClock, disk: FaultyDisk
) -> None:
    client.create("t", segment_ms="1000")
    client.produce("t", FULL)
    clock.now_ms += 1_000
    disk.faults.no_room = True
    retire(broker)
    disk.faults.no_room = False
    assert broker.fatal == []
    retire(broker)
    log = broker.broker.context.topics.host("t", 0).log
    assert broker.call(lambda: log.segment_count) == 2
