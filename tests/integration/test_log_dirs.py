"""A real broker that loses one of its two disks: only the replicas on it are affected (KIP-112)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from raftlog import Admin, NewTopic
from raftlog.client.descriptions import LogDirDescription
from raftlog.testing import Cluster, wait_until
from raftlog.testing.cluster import FailpointSwitch, local_cluster
from tests.integration.load import PATIENCE_S, TOPIC, Load, same_everywhere, until_in_sync

pytestmark = pytest.mark.integration

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
