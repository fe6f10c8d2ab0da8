"""A leader whose disk hangs, on real processes: others lead, and acknowledgements go on (S36)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from raftlog import Producer
from raftlog.errors import CommitUnknownError, DiskHungError, RaftlogError
from raftlog.testing import Cluster, wait_until
from raftlog.testing.cluster import FailpointSwitch, local_cluster
from tests.integration.load import (
    PATIENCE_S,
    TOPIC,
    Load,
    create,
    leader_of,
    same_everywhere,
    until_in_sync,
)

pytestmark = pytest.mark.integration

STALL_MS = 2_000
# A second more where the journal is on the same disk, and the time of an election.
WITHIN_S = 15.0
LOGS, JOURNAL = "segment.sync.before=stall(300)", "journal.sync.before=stall(300)"


@contextmanager
def with_switches(
    tmp_path: Path, *, brokers: int
) -> Iterator[tuple[Cluster, dict[int, FailpointSwitch]]]:
    settings = {"disk.stall.timeout.ms": str(STALL_MS)}
    running = local_cluster(tmp_path, brokers=brokers, settings=settings)
    switches = {}
    for broker in running.brokers:
        switches[broker.id] = FailpointSwitch(tmp_path / f"failpoints-{broker.id}")
        broker.environment = switches[broker.id].environment
    try:
        running.start()
        yield running, switches
    finally:
        running.close()


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param([LOGS], id="logs"),
        pytest.param([JOURNAL], id="journal", marks=pytest.mark.nightly),
        pytest.param([LOGS, JOURNAL], id="both", marks=pytest.mark.nightly),
    ],
)
def test_s36_slow_leader_disk_that_hangs(
    tmp_path: Path, rules: list[str], say: Callable[[str], None]
) -> None:
    with with_switches(tmp_path, brokers=3) as (running, switches):
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            load.goes_on(count=100)
            leader = leader_of(running)
            hung_at = time.monotonic()
            switches[leader].arm(rules)
            if rules == [JOURNAL]:
                # Nothing is journaled while all is well: have the cluster agree on something.
                with suppress(RaftlogError):
                    create(running, topic="another", copies=3)
            wait_until(
                lambda: running.leader(TOPIC, 0) not in (None, leader),
                timeout_s=WITHIN_S,
                what="another leader",
            )
            load.goes_on(count=100, timeout_s=WITHIN_S)
            silence = load.silence(hung_at)
            broker = running.broker(leader)
            if JOURNAL in rules:
                wait_until(
                    lambda: broker.exit_status is not None,
                    timeout_s=PATIENCE_S,
                    what="the end of a broker that can agree to nothing",
                )
                said = broker.log_path.read_text()
                assert "consensus journal waits for a disk that hangs" in said
            switches[leader].disarm()
            broker.kill()  # what stalls does so for minutes
            broker.start()
            until_in_sync(running)
            load.goes_on(count=100)
        load.check(running.bootstrap)
        same_everywhere(running)
    say(f"{rules} on the leader, without an acknowledgement: {silence} s")


@pytest.mark.nightly
def test_s36_slow_leader_disk(tmp_path: Path, say: Callable[[str], None]) -> None:
    """Each sync ends, but the others' disks are done long before: one of them leads."""
    with with_switches(tmp_path, brokers=3) as (running, switches):
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            load.goes_on(count=100)
            leader = leader_of(running)
            slow_at = time.monotonic()
            switches[leader].arm([f"segment.sync.before=stall({0.8 * STALL_MS / 1_000})"])
            wait_until(
                lambda: running.leader(TOPIC, 0) not in (None, leader),
                timeout_s=WITHIN_S,
                what="another leader",
            )
            led_after_s = time.monotonic() - slow_at
            switches[leader].disarm()
            until_in_sync(running)
            load.goes_on(count=100)
        load.check(running.bootstrap)
        same_everywhere(running)
    say(f"a leader whose syncs take {0.8 * STALL_MS} ms led for {led_after_s:.1f} s")


@pytest.mark.nightly
def test_where_nobody_else_could_lead_records_fail_in_bounded_time(tmp_path: Path) -> None:
    """A broker alone stays, says so, and goes on when its disk answers again."""
    with with_switches(tmp_path, brokers=1) as (running, switches):
        create(running, copies=1)
        with Producer(running.bootstrap, delivery_timeout_ms=60_000) as producer:
            producer.send(TOPIC, b"a").result(timeout=PATIENCE_S)
            rule = f"segment.sync.before=stall({4 * STALL_MS / 1_000})x1"
            switches[1].arm([rule])
            asked_at = time.monotonic()
            with Producer(running.bootstrap, idempotent=False) as careless:
                with pytest.raises((CommitUnknownError, DiskHungError)):
                    careless.send(TOPIC, b"b").result(timeout=PATIENCE_S)
                assert time.monotonic() - asked_at < 3 * STALL_MS / 1_000
            producer.send(TOPIC, b"c").result(timeout=PATIENCE_S)
        (broker,) = running.brokers
        assert broker.running
        assert "disk hung" in broker.log_path.read_text()


def test_a_broker_that_is_to_stop_does_not_wait_for_a_disk_that_hangs(tmp_path: Path) -> None:
    with with_switches(tmp_path, brokers=1) as (running, switches):
        create(running, copies=1)
        switches[1].arm([LOGS])
        with (
            Producer(running.bootstrap, idempotent=False) as careless,
            pytest.raises((CommitUnknownError, DiskHungError)),
        ):
            careless.send(TOPIC, b"a").result(timeout=PATIENCE_S)
        (broker,) = running.brokers
        pid = broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        wait_until(
            lambda: broker.exit_status is not None,
            timeout_s=PATIENCE_S,
            what="the end of a broker that was asked to stop",
        )
        assert broker.exit_status == 1
        assert "the disk hangs while the broker stops" in broker.log_path.read_text()
