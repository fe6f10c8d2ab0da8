"""Maintenance of logs: retention, rolling, snapshots, and compaction."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from raftlog.config import BrokerConfig, TopicConfig
from raftlog.disk import OsDisk
from raftlog.errors import (
    BrokerUnavailableError,
    DamagedLogError,
    DiskFullError,
    NotLeaderError,
    RaftlogError,
    StorageFailedError,
    UnknownTopicError,
)
from raftlog.limits import SEGMENT_BYTES_MIN
from raftlog.record import decode_lists, split, validate
from raftlog.server.clock import BrokerClock
from raftlog.server.maintenance import (
    HOSTS_PER_TURN,
    MEASURE_EVERY_STEPS,
    STEP_BYTES_MAX,
    STEP_BYTES_MIN,
    STEP_SECONDS,
    SUSPECT_BYTES_MAX,
    VERIFY_BYTES_PER_TURN,
    Housekeeping,
    LogCleaner,
    LogVerifier,
    Scrubber,
)
from raftlog.server.metrics import Counters
from raftlog.server.partition import Finished, Partition, Pass, Terms
from raftlog.storage import CompactionStatus, Log
from raftlog.storage.checkpoint import Copies
from raftlog.storage.compaction import LastPass
from raftlog.storage.state_files import storage_error
from raftlog.testing import wait_until
from raftlog.testing.disk import Fault, SimDisk
from raftlog.types import Offset, TopicPartition
from tests.record.batches import batch_of as record_batch_of
from tests.running import runs
from tests.server.cluster.fake import Scene, append, play, state_of, write
from tests.server.harness import (
    Client,
    FakeClock,
    FaultyDisk,
    RunningBroker,
    batch_of,
    leads_alone,
    running,
)

# -- rounds ----------------------------------------------------------------------------------------

# Retention, rolling and snapshots, in rounds and between syncs.


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


def housekeeping_of(
    s: Scene,
    hosts: list[Partition],
    settings: dict[str, str],
    *,
    on_damage: Callable[[Partition], object] = id,
    saves: list[float] | None = None,
) -> Housekeeping:
    """Work in a scene. ``saves``: gets the times at which the record of the copies is saved."""
    config = BrokerConfig.from_text(settings)
    verifier = LogVerifier(Counters(), on_damage=on_damage)
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
        if saves is not None:
            saves.append(s.loop.time())

    return Housekeeping(config, s.loop, lambda: hosts, verifier, compactor, save_copies)


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
        noted: list[Partition] = []
        saves: list[float] = []
        settings = {"log.scrub.interval.ms": interval_ms}
        housekeeping = housekeeping_of(s, hosts, settings, on_damage=noted.append, saves=saves)
        await asyncio.sleep(5)
        assert len(saves) >= 4
        harm(hosts[1], s.disk)
        await asyncio.sleep(2 * STEP_SECONDS)
        assert noted == ([hosts[1]] if interval_ms == "1" else [])
        await housekeeping.stop()
        harm(hosts[2], s.disk)
        await asyncio.sleep(5)
        assert len(noted) <= 1

    with caplog.at_level(logging.ERROR):
        play(test)


def test_an_internal_error_ends_neither_the_round_of_the_others_nor_the_later_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visited: list[int] = []
    reported: list[str] = []

    def retire_or_fail(host: Partition) -> None:
        visited.append(host.topic_partition.partition)
        if host.topic_partition.partition == 0:
            raise ZeroDivisionError

    async def test(s: Scene) -> None:
        hosts = [s.host(partition=number) for number in range(2)]
        monkeypatch.setattr(Partition, "apply_retention", retire_or_fail)
        s.loop.set_exception_handler(lambda _loop, context: reported.append(context["message"]))
        settings = {"log.retention.check.interval.ms": "1000"}
        housekeeping = housekeeping_of(s, hosts, settings)
        monkeypatch.setattr(housekeeping.scrub, "_measure", None)  # its rounds fail as a whole
        await asyncio.sleep(2.5)
        await housekeeping.stop()

    play(test)
    assert visited == [0, 1, 0, 1]
    ending = "reason=internal_error. Report this error"
    assert reported == 2 * [
        f"housekeeping failed: partition=t:0 {ending}",
        f"a round of housekeeping failed: {ending}",
    ]


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


# -- log cleaner -----------------------------------------------------------------------------------
#
# Which log is compacted next, and what follows when it cannot be.


class FakeCompaction:
    """Ends as it is told to, in the next turn of the loop."""

    def __init__(self, host: FakeHost) -> None:
        self.host = host
        self.is_given_up = False
        self.begun: list[dict[str, Any]] = []

    def begin(self, terms: Terms, *, finished: Finished, **others: Any) -> None:
        self.begun.append({"terms": terms, **others})
        self.host.order.append(self.host.topic_partition.partition)
        outcome = self.host.outcomes.pop(0) if self.host.outcomes else Pass(is_done=True)
        log = self.host.log
        if outcome.is_done:
            log.ratio = 0.0
            log.compaction = CompactionStatus(40, 0, False, LastPass(terms.now_ms, 1_000, 500, 7))
        elif isinstance(outcome.error, DamagedLogError):
            log.damage = str(outcome.error)
        asyncio.get_running_loop().call_soon(finished, outcome)


class FakeLog:
    def __init__(self, ratio: float, policy: str) -> None:
        self.config = TopicConfig(cleanup_policy=policy)
        self.ratio = ratio
        self.damage = ""
        self.compaction = CompactionStatus(0, 0, False, None)
        self.directory = "/logs/1"

    def disk_failed(self, doing: str, error: OSError) -> RaftlogError:
        return storage_error(doing, error)

    def dirty_ratio(self, *, now_ms: int, high_watermark: int, tombstones_kept_from: int) -> float:
        assert now_ms > 0
        assert (high_watermark, tombstones_kept_from) == (50, 30)
        return self.ratio


class FakeHost:
    def __init__(
        self,
        number: int,
        order: list[int],
        ratio: float = 0.7,
        *outcomes: Pass,
        policy: str = "compact",
    ) -> None:
        self.topic_partition = TopicPartition("t", number)
        self.order = order
        self.outcomes = list(outcomes)
        self.log: Any = FakeLog(ratio, policy)
        self.compaction = FakeCompaction(self)
        self.closed: RaftlogError | None = None
        self.high_watermark = 50
        self.tombstones_kept_from = 30


damaged: list[Any] = []


def compactor(
    s: Scene, hosts: list[Any], clock: BrokerClock | None = None, **settings: str
) -> LogCleaner:
    damaged.clear()
    config = BrokerConfig.from_text({name.replace("_", "."): v for name, v in settings.items()})
    return LogCleaner(
        config,
        lambda: hosts,
        s.workers,
        clock=clock or s.services.clock,
        entropy=lambda count: b"\x01" * count,
        verifier=LogVerifier(Counters(), on_damage=damaged.append),
        on_failed=s.failures.append,
    )


def of(test: Callable[[Scene, list[int]], Any]) -> None:
    play(lambda s: test(s, []))


@runs(of)
async def test_the_dirtiest_comes_first_and_each_as_long_as_it_is_due(
    s: Scene, order: list[int]
) -> None:
    hosts = [FakeHost(n, order, ratio) for n, ratio in enumerate((0.5, 0.9, 0.0, 0.7))]
    await compactor(s, hosts).step()
    assert order == [1, 3, 0]
    (begun,) = hosts[1].compaction.begun
    assert begun["high_watermark"]() == 50
    assert begun["tombstones_kept_from"]() == 30
    assert begun["terms"].memory_bytes == BrokerConfig().log_cleaner_dedupe_buffer_size
    assert begun["terms"].chance_seed == int.from_bytes(b"\x01" * 8)


@runs(of)
async def test_only_compacted_topics_are_compacted_from_when_they_are(
    s: Scene, order: list[int]
) -> None:
    policies = ("delete", "compact", "compact,delete")
    hosts = [FakeHost(n, order, policy=policy) for n, policy in enumerate(policies)]
    c = compactor(s, hosts)
    await c.step()
    assert order == [1, 2]
    hosts[0].log.config = TopicConfig(cleanup_policy="compact")  # as `topic alter` does
    await c.step()
    assert order == [1, 2, 0]


@runs(of)
async def test_nothing_is_compacted_while_the_time_is_unknown(s: Scene, order: list[int]) -> None:
    clock = BrokerClock(s.services.clock.machine, broker_id=1, voters=[1, 2, 3])
    c = compactor(s, [FakeHost(0, order)], clock)
    await c.step()
    assert order == []
    clock.on_peer(2, clock.wall_ms(), 0.0)
    clock.update()
    await c.step()
    assert order == [0]


@runs(of)
async def test_closed_hosts_are_left_alone(s: Scene, order: list[int]) -> None:
    host = FakeHost(0, order)
    host.closed = BrokerUnavailableError("gone")
    await compactor(s, [host]).step()
    assert order == []


@runs(of)
async def test_one_that_did_not_come_about_is_left_until_the_next_step(
    s: Scene, order: list[int]
) -> None:
    hosts = [FakeHost(0, order, 0.9, Pass()), FakeHost(1, order, 0.6)]
    c = compactor(s, hosts)
    await c.step()
    assert order == [0, 1]
    await c.step()
    assert order == [0, 1, 0]


@runs(of)
async def test_a_pass_is_told_in_a_line(
    s: Scene, order: list[int], *, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await compactor(s, [FakeHost(4, order)]).step()
    (line,) = caplog.messages
    assert (
        "compaction done: partition=t:4 clean_end=40 bytes_before=1000 bytes_after=500 "
        "records_removed=7"
    ) in line


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), DiskFullError("full")])
def test_a_full_disk_puts_it_off_and_is_told_once(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(s: Scene, order: list[int]) -> None:
        full = Pass(error=error)
        host = FakeHost(0, order, 0.7, full, full, Pass(is_done=True), full)
        c = compactor(s, [host])
        for _ in range(2):
            await c.step()
        assert len(caplog.messages) == 1
        assert "compaction postponed" in caplog.text
        await c.step()
        host.log.ratio = 0.7
        await c.step()
        assert len(caplog.messages) == 2, "it had room in between"
        assert s.failures == []

    with caplog.at_level(logging.WARNING):
        of(test)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "bad"), StorageFailedError("bad")])
@runs(of)
async def test_a_disk_that_fails_is_reported(
    s: Scene, order: list[int], *, error: Exception
) -> None:
    await compactor(s, [FakeHost(0, order, 0.7, Pass(error=error))]).step()
    (failure,) = s.failures
    assert isinstance(failure, StorageFailedError)
    assert "bad" in str(failure)


@runs(of)
async def test_a_pass_of_several_tickets_is_told_when_it_is_through(
    s: Scene, order: list[int], *, caplog: pytest.LogCaptureFixture
) -> None:
    host = FakeHost(0, order)
    c = compactor(s, [host])
    begin = host.compaction.begin

    def begin_first(terms: Terms, *, finished: Finished, **others: Any) -> None:
        begin(terms, finished=finished, **others)
        host.compaction.begin = begin  # type: ignore[method-assign]
        host.log.ratio = 1.0
        host.log.compaction = replace(host.log.compaction, is_under_way=True)

    host.compaction.begin = begin_first  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO):
        await c.step()
    assert order == [0, 0]
    assert len(caplog.messages) == 1


def test_damage_that_it_meets_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def test(s: Scene, order: list[int]) -> None:
        host = FakeHost(0, order, 0.7, Pass(error=DamagedLogError("rot")))
        await compactor(s, [host]).step()
        assert damaged == [host]
        assert s.failures == []

    with caplog.at_level(logging.ERROR):
        of(test)
    assert "log corrupt: partition=t:0 reason=rot" in caplog.text


def test_a_log_that_cannot_be_looked_at_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def test(s: Scene, order: list[int]) -> None:
        hosts = [FakeHost(0, order, 0.9), FakeHost(1, order)]

        def fails(**_terms: int) -> float:
            raise DamagedLogError("rot")

        hosts[0].log.dirty_ratio = fails
        await compactor(s, hosts).step()
        assert order == [1]

    with caplog.at_level(logging.WARNING):
        of(test)
    assert "compaction skipped: partition=t:0 error=rot" in caplog.text


def test_a_mistake_is_told_and_no_other_log_suffers(caplog: pytest.LogCaptureFixture) -> None:
    async def test(s: Scene, order: list[int]) -> None:
        hosts = [FakeHost(0, order, 0.9, Pass(error=ValueError("oh"))), FakeHost(1, order)]
        await compactor(s, hosts).step()
        assert order == [0, 1]

    with caplog.at_level(logging.ERROR):
        of(test)
    assert "compaction failed: partition=" in caplog.text


@runs(of)
async def test_nobody_waits_any_more_when_it_ends(s: Scene, order: list[int]) -> None:
    host = FakeHost(0, order)
    task = asyncio.ensure_future(compactor(s, [host]).step())
    while not order:  # noqa: ASYNC110 - each turn of the loop may change it
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await s.come_to_rest()


# -- scrubber --------------------------------------------------------------------------------------
#
# What a broker finds on its disk: on a doubt, and by going over all of it.


VALUE = b"x" * 1_000
INTERVAL_MS = 604_800_000


class Parts:
    """A verifier, a scrub, and hosts; what was verified is noted."""

    def __init__(self, s: Scene, *hosts: Partition, interval_ms: int = INTERVAL_MS) -> None:
        self.s = s
        self.hosts = list(hosts)
        self.counters = Counters()
        self.noted: list[Partition] = []
        self.verifier = LogVerifier(self.counters, on_damage=self.noted.append)
        self.looked: list[tuple[Partition, Offset, int]] = []
        original = self.verifier.verify

        def verify(host: Partition, offset: Offset, *, bytes_max: int) -> Offset:
            self.looked.append((host, offset, bytes_max))
            return original(host, offset, bytes_max=bytes_max)

        self.verifier.verify = verify  # type: ignore[method-assign]
        self.scrub = Scrubber(lambda: self.hosts, self.verifier, interval_ms=interval_ms)

    def add(self, count: int, *, partition: int | None = None) -> Partition:
        """A host with so many records of a kilobyte."""
        log = self.s.log()
        write(log, *[VALUE] * count)
        number = len(self.hosts) if partition is None else partition
        self.hosts.append(self.s.host(log, partition=number))
        return self.hosts[-1]

    def harm(self, log: Log, offset: Offset) -> None:
        size = log.size_bytes // log.log_end_offset
        path = f"{log.directory}/{0:020d}.log"
        self.s.disk.flip_bit(path, 8 * (offset * size + 200))

    async def steps(self, count: int) -> list[list[tuple[int, Offset]]]:
        """The partitions, and the offsets in them, that steps have looked at."""
        found = []
        for _ in range(count):
            del self.looked[:]
            await self.scrub.step()
            found.append([(h.topic_partition.partition, offset) for h, offset, _ in self.looked])
        return found


def scene(test: Callable[[Parts], Coroutine[Any, Any, None]], **options: Any) -> None:
    play(lambda s: test(Parts(s, **options)))


# -- on a doubt ------------------------------------------------------------------------------------


@runs(scene)
async def test_damage_is_noted_told_and_counted_once(
    p: Parts, *, caplog: pytest.LogCaptureFixture
) -> None:
    host = p.add(10)
    p.verifier.verify_suspect(host, 0, bytes_max=1 << 20)
    p.harm(host.log, 4)
    p.verifier.verify_suspect(host, 0, bytes_max=2_000)
    assert not p.noted, "that far it is good"
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            p.verifier.verify_suspect(host, 4, bytes_max=1)
            p.verifier.verify_suspect(host, 3, bytes_max=1)
    assert p.noted == [host]
    assert p.counters.damage_found == 1
    assert len(caplog.records) == 1
    assert "log corrupt: partition=t:0" in caplog.text
    assert "offset 4" in host.log.damage


@runs(scene)
async def test_a_doubt_costs_a_bounded_amount_of_work_in_turns(p: Parts) -> None:
    host = p.add(3 * SUSPECT_BYTES_MAX // len(VALUE))
    p.verifier.verify_suspect(host, 0, bytes_max=1 << 30)
    assert [bytes_max for _, _, bytes_max in p.looked] == [VERIFY_BYTES_PER_TURN]
    turns = SUSPECT_BYTES_MAX // VERIFY_BYTES_PER_TURN
    for _ in range(2 * turns):
        await asyncio.sleep(0)
    assert [bytes_max for _, _, bytes_max in p.looked] == [VERIFY_BYTES_PER_TURN] * turns
    offsets = [offset for _, offset, _ in p.looked]
    assert offsets == sorted(set(offsets))
    p.verifier.verify_suspect(host, 0, bytes_max=5)
    assert p.looked[-1][2] == 5


@runs(scene)
async def test_a_doubt_ends_with_the_log_and_with_its_replica(p: Parts) -> None:
    small = p.add(1)
    p.verifier.verify_suspect(small, 0, bytes_max=1 << 30)
    large = p.add(2 * VERIFY_BYTES_PER_TURN // len(VALUE))
    p.verifier.verify_suspect(large, 0, bytes_max=1 << 30)
    large.close(NotLeaderError("no replica any more"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert [host for host, _, _ in p.looked] == [small, large]


@runs(scene)
async def test_a_later_turn_of_a_doubt_finds_corruption(p: Parts) -> None:
    host = p.add(2 * VERIFY_BYTES_PER_TURN // len(VALUE))
    p.harm(host.log, host.log.log_end_offset - 1)
    p.verifier.verify_suspect(host, 0, bytes_max=1 << 30)
    assert not p.noted
    for _ in range(3):
        await asyncio.sleep(0)
    assert p.noted == [host]


@runs(scene)
async def test_what_is_out_of_range_is_not_damaged(p: Parts) -> None:
    host = p.add(1)
    p.verifier.verify_suspect(host, 9, bytes_max=5)
    assert not host.log.damage


# -- all over --------------------------------------------------------------------------------------


@runs(scene)
async def test_every_log_has_its_turn_and_then_again(p: Parts) -> None:
    for _ in range(3):
        p.add(2)
    p.add(0)
    assert await p.steps(2) == [[(0, 0), (1, 0), (2, 0)]] * 2
    assert all(bytes_max <= VERIFY_BYTES_PER_TURN for _, _, bytes_max in p.looked)


@runs(scene)
async def test_a_large_log_is_verified_in_steps(p: Parts) -> None:
    count = 3 * STEP_BYTES_MIN // len(VALUE)
    p.add(count)
    p.add(1)
    found = await p.steps(5)
    assert [partition for step in found for partition, _ in step] == [0, 0, 0, 0, 1, 0]
    offsets = [offset for step in found for partition, offset in step if partition == 0]
    assert offsets[0] == 0
    assert offsets[:4] == sorted(set(offsets[:4]))
    assert offsets[4] == 0, "the next round"
    assert max(b - a for a, b in itertools.pairwise(offsets)) < count / 2


@runs(scene)
async def test_the_pace_is_that_of_the_interval_within_limits(p: Parts) -> None:
    p.add(100)  # more than 100 kB
    for interval_ms, least, most in [
        (INTERVAL_MS, STEP_BYTES_MIN, STEP_BYTES_MIN),
        (1_000, 100_000, 120_000),
        (1, STEP_BYTES_MAX, STEP_BYTES_MAX),
    ]:
        scrub = Scrubber(lambda: p.hosts, p.verifier, interval_ms=interval_ms)
        del p.looked[:]
        await scrub.step()
        assert least <= scrub._step_bytes <= most
        assert sum(bytes_max for _, _, bytes_max in p.looked) <= most
        assert len(p.looked) == 1


@runs(scene, interval_ms=5_000)
async def test_what_has_grown_is_measured_again(p: Parts) -> None:
    p.add(1)
    await p.steps(1)
    host = p.add(500)
    await p.steps(MEASURE_EVERY_STEPS - 1)
    assert p.scrub._step_bytes == STEP_BYTES_MIN
    await p.steps(1)
    assert p.scrub._step_bytes == (p.hosts[0].log.size_bytes + host.log.size_bytes) // 5


@runs(scene)
async def test_what_is_found_is_noted_told_and_not_looked_at_again(
    p: Parts, *, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = p.add(10), p.add(10)
    p.harm(bad.log, 7)
    with caplog.at_level(logging.ERROR):
        assert await p.steps(1) == [[(0, 0)]]
        assert await p.steps(2) == [[(1, 0)]] * 2
    assert p.noted == [bad]
    assert p.counters.damage_found == 1
    assert len(caplog.records) == 1
    assert bad.log.readable_end_offset == 7
    with pytest.raises(DamagedLogError):
        bad.log.read(start_offset=7, end_offset=10, bytes_max=1)
    assert not good.log.damage


@runs(scene)
async def test_closed_hosts_are_passed_over(p: Parts) -> None:
    p.add(1).close(NotLeaderError("no replica any more"))
    p.add(1)
    assert await p.steps(2) == [[(1, 0)]] * 2


@runs(scene)
async def test_a_host_that_closes_in_the_middle_of_it_ends_it(p: Parts) -> None:
    first = p.add(3 * STEP_BYTES_MIN // len(VALUE))
    p.add(1)
    await p.steps(1)
    first.close(UnknownTopicError("deleted"))
    assert await p.steps(1) == [[(1, 0)]]


@runs(scene)
async def test_partitions_come_and_go_meanwhile(p: Parts) -> None:
    large = 3 * STEP_BYTES_MIN // len(VALUE)
    p.add(0)
    p.add(large)
    p.add(1)
    assert await p.steps(1) == [[(1, 0)]]
    del p.hosts[0]
    (step,) = await p.steps(1)
    assert step[0][0] == 1, "it goes on where it was"
    assert step[0][1] > 0
    del p.hosts[0]
    assert await p.steps(1) == [[(2, 0)]]
    del p.hosts[0]
    assert await p.steps(2) == [[], []]


@runs(scene)
async def test_a_log_may_be_cut_or_begin_anew_meanwhile(p: Parts) -> None:
    count = 3 * STEP_BYTES_MIN // len(VALUE)
    host = p.add(count)
    await p.steps(1)
    host.log.truncate_to(3)
    assert await p.steps(2) == [[], [(0, 0)]], "what is there was verified; the next round"
    host.log.restart_at(9_000)
    write(host.log, VALUE)
    assert await p.steps(1) == [[(0, 9_000)]]
    assert not p.noted


@runs(scene)
async def test_records_that_are_dropped_meanwhile_are_passed_over(p: Parts) -> None:
    host = p.add(3 * STEP_BYTES_MIN // len(VALUE))
    await p.steps(1)
    host.log.advance_log_start(150).run()
    (step,) = await p.steps(1)
    assert step == [(0, 150)]


@runs(scene)
async def test_a_log_that_grows_all_the_time_does_not_keep_the_others_waiting(p: Parts) -> None:
    host = p.add(2 * STEP_BYTES_MIN // len(VALUE))
    p.add(1)
    seen = set()
    for _ in range(4):
        (step,) = await p.steps(1)
        seen |= {partition for partition, _ in step}
        write(host.log, *[VALUE] * 100)
    assert seen == {0, 1}


@runs(scene)
async def test_records_that_are_not_durable_yet_are_no_damage(p: Parts) -> None:
    host = p.add(1)
    host.lead(leads_alone("disk-1"), 1, lag_max_seconds=inf)
    p.s.workers.hold()
    append(host, b"on its way")
    assert host.log.durable_end_offset == 1
    assert await p.steps(1) == [[(0, 0)]]
    assert not host.log.damage
    p.s.workers.release()


@runs(scene)
async def test_a_file_that_cannot_be_opened_is_looked_at_next_time(
    p: Parts, *, caplog: pytest.LogCaptureFixture
) -> None:
    host = p.add(1)
    p.add(1)
    host.log._segments[0].close()
    p.s.disk.faults.append(Fault({"open"}, error=errno.EMFILE, path="*.log"))
    await p.steps(2)
    assert not host.log.damage
    assert "verification skipped: partition=t:0" in caplog.text
    assert (await p.steps(1))[0][0] == (0, 0)


@runs(scene)
async def test_a_round_leaves_no_file_open_that_was_not(p: Parts) -> None:
    host = p.add(1)
    segment = host.log._segments[0]
    for is_open in (True, False):
        if not is_open:
            segment.close()
        assert await p.steps(1) == [[(0, 0)]]
        assert segment.is_open == is_open


@runs(scene, interval_ms=1)
async def test_the_loop_goes_on_between_two_looks(p: Parts) -> None:
    for _ in range(2 * HOSTS_PER_TURN):
        p.add(0)
    p.add(2 * VERIFY_BYTES_PER_TURN // len(VALUE))
    turns: list[int] = []

    def turn() -> None:
        turns.append(len(p.looked))
        p.s.loop.call_soon(turn)

    turn()
    await p.scrub.step()
    assert turns.count(0) >= 4, "while measuring, and while finding something to read"
    assert {1, 2} <= set(turns)


# -- compaction ------------------------------------------------------------------------------------

# A host whose log is being compacted: what it does meanwhile, and what ends it.


GONE = BrokerUnavailableError("gone")


def log_of(s: Scene, *keys: str, policy: str = "compact") -> Log:
    """A record for each key, each in a segment of its own; the last one is active."""
    log = s.log(cleanup_policy=policy, min_cleanable_dirty_ratio=0.0, segment_bytes=1)
    for key in keys:
        add(log, key, s)
    log.sync()
    return log


def add(log: Log, key: str, s: Scene) -> None:
    batch = record_batch_of([b"%d" % log.log_end_offset], keys=[key.encode()])
    now_ms = s.services.clock.wall_ms()
    log.append(batch, validate(batch), leader_epoch=max(log.leader_epoch, 0), now_ms=now_ms)


def keys_of(log: Log) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    parts = log.read(
        start_offset=log.log_start_offset, end_offset=log.log_end_offset, bytes_max=1 << 20
    )
    for part in parts:
        for batch in split(part):
            lists = decode_lists(batch)
            keys = [(key or b"").decode() for key in lists.keys]
            found += zip(lists.offsets, keys, strict=True)
    return found


def leader(s: Scene, log: Log) -> Partition:
    host = s.host(log)
    host.lead(state_of(1, isr=[1]), 1, lag_max_seconds=10)
    assert host.high_watermark == log.log_end_offset
    return host


def follower(s: Scene, log: Log, *, committed: int) -> Partition:
    host = s.host(log)
    host.follow(2, 5)
    host.advance_high_watermark(committed)
    return host


def host_compactor(s: Scene, *hosts: Partition) -> LogCleaner:
    return LogCleaner(
        BrokerConfig(),
        lambda: hosts,
        s.workers,
        clock=s.services.clock,
        entropy=bytes,
        verifier=LogVerifier(Counters(), on_damage=lambda _host: None),
        on_failed=s.failures.append,
    )


@runs(play)
async def test_the_last_record_of_each_key_stays_at_its_offset(s: Scene) -> None:
    host = leader(s, log_of(s, "a", "b", "a", "a", "b", "c"))
    await host_compactor(s, host).step()
    assert keys_of(host.log) == [(3, "a"), (4, "b"), (5, "c")]
    assert host.high_watermark == host.log.log_end_offset == 6
    assert host.read(start_offset=0, bytes_max=1 << 20)
    assert s.failures == []


@runs(play)
async def test_only_what_is_committed_is_compacted(s: Scene) -> None:
    """What is not may be cut again, and then what it superseded is the last one."""
    host = follower(s, log_of(s, "a", "b", "a", "b", "a", "c"), committed=3)
    await host_compactor(s, host).step()
    assert keys_of(host.log)[0] == (1, "b")
    assert [key for _, key in keys_of(host.log)] == ["b", "a", "b", "a", "c"]
    host.advance_high_watermark(5)
    await host_compactor(s, host).step()
    assert keys_of(host.log) == [(3, "b"), (4, "a"), (5, "c")]


@runs(play)
async def test_a_topic_that_becomes_compacted_is_compacted_from_then_on(s: Scene) -> None:
    host = leader(s, log_of(s, "a", "a", "a", policy="delete"))
    c = host_compactor(s, host)
    await c.step()
    assert len(keys_of(host.log)) == 3
    host.log.config = log_of(s).config  # as `topic alter` has it done
    host.reconsider()
    await c.step()
    assert keys_of(host.log) == [(1, "a"), (2, "a")], "the last segment is never touched"


@runs(play)
async def test_a_cut_waits_for_the_end_of_a_compaction_which_counts_for_nothing(s: Scene) -> None:
    host = follower(s, log_of(s, "a", "b", "a", "a", "b", "c"), committed=6)
    s.workers.hold()
    step = s.loop.create_task(host_compactor(s, host).step())
    await s.come_to_rest()
    assert host.compaction.is_given_up is False
    done: list[int] = []
    host.truncate(2, lambda: done.append(host.log.log_end_offset))
    assert host.compaction.is_given_up
    assert done == []
    s.workers.release()
    await step
    assert done == [2]
    assert keys_of(host.log) == [(0, "a"), (1, "b")]
    assert not host.log.compaction.is_under_way
    assert s.failures == []


@runs(play)
async def test_a_host_that_closes_is_quiet_when_the_compaction_is_over(s: Scene) -> None:
    host = leader(s, log_of(s, "a", "a", "a", "b"))
    files = s.disk.list_dir(host.log.directory)
    s.workers.hold()
    step = s.loop.create_task(host_compactor(s, host).step())
    await s.come_to_rest()
    quiet: list[bool] = []
    host.close(GONE)
    host.when_quiet(lambda: quiet.append(True))
    await s.come_to_rest()
    assert quiet == []
    s.workers.release()
    await s.come_to_rest()
    assert quiet == [True]
    assert step.done()
    assert not [n for n in s.disk.list_dir(host.log.directory) if n not in files]


@runs(play)
async def test_records_that_are_deleted_meanwhile_stay_deleted(s: Scene) -> None:
    host = leader(s, log_of(s, "a", "b", "a", "c", "a", "b"))
    s.workers.hold()
    step = s.loop.create_task(host_compactor(s, host).step())
    await s.come_to_rest()
    host.delete_records(3, lambda _error: None)
    s.workers.release()
    await step
    assert host.log.log_start_offset == 3
    assert [offset for offset, _ in keys_of(host.log)] == [3, 4, 5]
    await host_compactor(s, host).step()
    assert host.log.log_start_offset == 3
    assert [offset for offset, _ in keys_of(host.log) if offset >= 3] == [3, 4, 5]


@runs(play)
async def test_records_that_come_meanwhile_are_there_afterwards(s: Scene) -> None:
    host = leader(s, log_of(s, "a", "a", "b"))
    s.workers.hold()
    step = s.loop.create_task(host_compactor(s, host).step())
    await s.come_to_rest()
    batch = record_batch_of([b"new"], keys=[b"a"])
    host.append(batch, validate(batch))
    s.workers.release()
    await step
    await s.come_to_rest()
    assert keys_of(host.log) == [(1, "a"), (2, "b"), (3, "a")]
    assert host.high_watermark == 4


def test_a_full_disk_puts_it_off(caplog: pytest.LogCaptureFixture) -> None:
    async def test(s: Scene) -> None:
        host = leader(s, log_of(s, "a", "a", "b", "b", "c"))
        c = host_compactor(s, host)
        full = Fault({"write"}, errno.ENOSPC, path="*.cleaned*", times=2)
        s.disk.faults.append(full)
        before = keys_of(host.log)
        await c.step()
        await c.step()
        assert keys_of(host.log) == before
        assert s.failures == []
        add(host.log, "d", s)
        s.disk.faults.clear()
        await c.step()
        assert [offset for offset, _ in keys_of(host.log)] == [1, 3, 4, 5]

    with caplog.at_level(logging.WARNING):
        play(test)
    assert caplog.text.count("compaction postponed") == 1


@runs(play)
async def test_retention_does_not_apply_to_what_is_only_compacted(s: Scene) -> None:
    for policy, left in (("compact", 4), ("compact,delete", 1), ("delete", 1)):
        log = log_of(s, "a", "b", "c", "d", policy=policy)
        log.config = type(log.config)(cleanup_policy=policy, retention_bytes=1, segment_bytes=1)
        host = leader(s, log)
        host.apply_retention()
        await s.come_to_rest()
        assert log.log_end_offset - log.log_start_offset == left, policy


@runs(play)
async def test_tombstones_stay_that_a_follower_still_needs(s: Scene) -> None:
    """One that copies now, and has not received them: it would have to restart its copy."""
    config = {"cleanup_policy": "compact", "delete_retention_ms": 0}
    log = s.log(min_cleanable_dirty_ratio=0.0, segment_bytes=1, **config)
    add(log, "a", s)
    put_tombstone(log, "a", s)
    for key in "bc":
        add(log, key, s)
    log.sync()
    host = s.host(log)
    host.lead(state_of(1, 2, isr=[1]), 1, lag_max_seconds=10)
    compacting = host_compactor(s, host)

    def fetch(offset: int) -> None:
        host.on_follower(2, "disk-2", fetch_offset=offset, durable_offset=offset)

    fetch(1)
    await compacting.step()
    for key in "de":
        add(log, key, s)
    host.save_snapshot()
    await s.come_to_rest()
    await compacting.step()
    assert keys_of(log) == [(offset, "aabcde"[offset]) for offset in range(1, 6)]
    assert log.tombstones_removed_below == 0
    fetch(5)
    await compacting.step()
    assert (1, "a") not in keys_of(log)
    assert log.tombstones_removed_below > 1


def put_tombstone(log: Log, key: str, s: Scene) -> None:
    batch = record_batch_of([None], keys=[key.encode()])
    now_ms = s.services.clock.wall_ms()
    log.append(batch, validate(batch), leader_epoch=max(log.leader_epoch, 0), now_ms=now_ms)
