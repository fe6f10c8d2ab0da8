"""Brokers on real processes whose disk is full, hangs or is lost: others lead, and write on."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from raftlog import Admin, NewTopic, Producer
from raftlog.client.descriptions import LogDirDescription
from raftlog.disk import OsDisk
from raftlog.errors import CommitUnknownError, DiskHungError, RaftlogError
from raftlog.server.disks import KEPT_BYTES
from raftlog.testing import Cluster, wait_until
from raftlog.testing.cluster import FailpointSwitch, local_cluster
from raftlog_jepsen.control.disks import LoopDisk, why_not
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

# -- full disks ------------------------------------------------------------------------------------

# A broker whose disk is full, on real processes: others lead, and write on without it.


# Leadership is handed over after a second, and a second later the old leader is not in sync.
WITHIN_S = 15.0
BLOCK_BYTES = 512  # of st_blocks


@contextmanager
def on_disks(tmp_path: Path) -> Iterator[tuple[Cluster, dict[int, LoopDisk]]]:
    """Three brokers, each on a disk of its own, by their ids."""
    if why_not():
        pytest.skip(f"not injected: no disk can be filled here: {why_not()}")
    with ExitStack() as stack:
        running = local_cluster(tmp_path, brokers=3)
        disks = {}
        for broker in running.brokers:
            disks[broker.id] = stack.enter_context(LoopDisk(tmp_path, f"disk-{broker.id}"))
            broker.data_dir = disks[broker.id].mount_point / "data"
        stack.callback(running.close)
        running.start()
        yield running, disks


def journal_of(disk: LoopDisk) -> os.stat_result:
    return (disk.mount_point / "data" / "consensus.journal").stat()


@pytest.mark.parametrize(
    "trials", [1, pytest.param(20, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])]
)
def test_s31_the_leaders_disk_is_full(
    tmp_path: Path, trials: int, say: Callable[[str], None]
) -> None:
    """Each time whoever leads: with three brokers it leads the group too, some time."""
    silences = []
    with on_disks(tmp_path) as (running, disks):
        create(running, copies=3)
        for disk in disks.values():
            wait_until(
                lambda: journal_of(disk).st_blocks * BLOCK_BYTES >= KEPT_BYTES,  # noqa: B023
                timeout_s=PATIENCE_S,
                what="room is kept for the consensus journal",
            )
            assert journal_of(disk).st_size < KEPT_BYTES
        with Load(running.bootstrap) as load:
            for _ in range(trials):
                leader = leader_of(running)
                filled_at = time.monotonic()
                disks[leader].fill()
                wait_until(
                    lambda: running.leader(TOPIC, 0) not in (None, leader),  # noqa: B023
                    timeout_s=WITHIN_S,
                    what="another leader",
                )
                load.goes_on(count=100, timeout_s=WITHIN_S)
                silences.append(load.silence(filled_at))
                disks[leader].free()
                until_in_sync(running)
                load.goes_on(count=100)
        load.check(running.bootstrap)
        same_everywhere(running)
    say(f"the leader's disk is full, without an acknowledgement: {silences}")


def test_what_is_kept_behind_a_file_is_there_when_the_disk_is_full(tmp_path: Path) -> None:
    if why_not():
        pytest.skip(f"not injected: no disk can be filled here: {why_not()}")
    with LoopDisk(tmp_path, "disk") as loop_disk:
        disk, path = OsDisk(), str(loop_disk.mount_point / "file")
        file = disk.open(path, create=True)
        try:
            file.append([b"abc"])
            file.sync()
            disk.reserve(path, 1 << 20)
            loop_disk.fill()
            for _ in range(200):
                file.append([bytes(5_000)])
                file.sync()
            with pytest.raises(OSError, match="No space"):
                file.append([bytes(1 << 20)])
        finally:
            file.close()


# -- hung disks ------------------------------------------------------------------------------------

# A leader whose disk hangs, on real processes: others lead, and acknowledgements go on (S36).


STALL_MS = 2_000
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


# -- lost disks ------------------------------------------------------------------------------------

# A real broker that loses one of its two disks: only the replicas on it are affected (KIP-112).


PARTITIONS = 4
TARGET = 2  # the broker with two disks


def isr(running: Cluster, partition: int) -> set[int]:
    with Admin(str(running.broker(1).address)) as admin:
        parts = admin.describe_cluster([TOPIC]).partitions
    return next(set(part.isr) for part in parts if part.partition == partition)


def log_dir(running: Cluster) -> LogDirDescription:
    with Admin(str(running.broker(TARGET).address)) as admin:
        disks = {each.broker: each.disk for each in admin.describe_disks()}
    disk = disks[TARGET]
    assert disk is not None
    (found,) = disk.log_dirs
    return found


def all_in_sync(running: Cluster) -> None:
    for partition in range(PARTITIONS):
        until_in_sync(running, TOPIC, partition)


def test_a_broker_that_loses_one_of_two_disks(tmp_path: Path, say: Callable[[str], None]) -> None:
    """By errors, by removal and absence at a start; each time a disk returns."""
    running = local_cluster(tmp_path, brokers=3)
    target, second = running.broker(TARGET), tmp_path / "disk-2"
    switch = FailpointSwitch(tmp_path / "failpoints")
    target.environment = switch.environment
    target.settings = {**target.settings, "log.dirs": str(second)}
    try:
        running.start()
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])
        all_in_sync(running)
        lost: set[int] = set()

        def only_these_are_lost(load: Load) -> None:
            members = {number: {1, 3} if number in lost else {1, 2, 3} for number in range(4)}
            wait_until(
                lambda: {number: isr(running, number) for number in members} == members,
                timeout_s=PATIENCE_S,
                what="the replicas on one disk, and only those, to leave the ISR",
            )
            load.goes_on(count=100)
            found = log_dir(running)
            assert found.path == str(second)
            assert found.failed
            assert str(second) in found.problem

        def restart() -> None:
            target.stop()
            target.start()
            all_in_sync(running)
            assert not log_dir(running).failed

        with Load(running.bootstrap, partitions=PARTITIONS) as load:
            load.goes_on(count=100)
            lost |= {int(path.name) for path in second.glob(f"topics/{TOPIC}/*/*")}
            assert len(lost) == PARTITIONS // 2
            pid = target.pid
            switch.arm(["log-dir.sync.before=fail(EIO)"])
            only_these_are_lost(load)
            switch.disarm()
            assert target.pid == pid, "the broker goes on"
            assert "log directory failed" in target.log_path.read_text()
            restart()

            pid = target.pid
            shutil.rmtree(second)
            only_these_are_lost(load)
            assert target.pid == pid
            assert not second.exists(), "never created again"
            target.stop()
            target.start()  # still without it
            only_these_are_lost(load)
            assert not second.exists()
            second.mkdir()  # another, empty disk
            restart()
            assert {int(path.name) for path in second.glob(f"topics/{TOPIC}/*/?")} == lost
            load.goes_on(count=100)
        load.check(running.bootstrap)
        same_everywhere(running)
    finally:
        running.close()
    say(f"{sum(len(ledger.acknowledged) for ledger in load.ledgers)} records, none lost")
