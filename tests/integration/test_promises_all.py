"""Promise 3, on real processes: all brokers at once, under load: SIGKILL, and a power cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from raftlog import TopicPartition
from raftlog.testing import Cluster, cluster
from raftlog.testing.cluster import local_cluster
from raftlog_jepsen.control.disks import LoopDisk, why_not
from tests.integration.load import (
    TOPIC,
    Load,
    create,
    read_all,
    same_everywhere,
    summary,
    until_in_sync,
)

pytestmark = pytest.mark.integration


@contextmanager
def powered(tmp_path: Path) -> Iterator[tuple[Cluster, list[LoopDisk]]]:
    """Three brokers, each on a disk whose power can be cut."""
    if why_not():
        pytest.skip(f"not injected: the power cannot be cut here: {why_not()}")
    with ExitStack() as stack:
        running = local_cluster(tmp_path, brokers=3)
        disks = []
        for broker in running.brokers:
            disks.append(stack.enter_context(LoopDisk(tmp_path, f"disk-{broker.id}")))
            broker.data_dir = disks[-1].mount_point / "data"
        stack.callback(running.close)
        running.start()
        yield running, disks


@pytest.mark.parametrize(
    "trials", [2, pytest.param(8, marks=[pytest.mark.seeds, pytest.mark.timeout(600)])]
)
def test_all_brokers_are_killed_at_once(
    tmp_path: Path, trials: int, say: Callable[[str], None]
) -> None:
    silences = []
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            for _ in range(trials):
                killed_at = time.monotonic()
                running.kill()
                running.start()
                load.goes_on()
                silences.append(load.silence(killed_at))
                load.goes_on(count=100)
        load.check(running.bootstrap)
        same_everywhere(running)
    say(f"SIGKILL of all three, without an acknowledgement: {summary(silences)}")


@pytest.mark.parametrize(
    "trials", [1, pytest.param(20, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])]
)
def test_s40_all_power_cut(tmp_path: Path, trials: int, say: Callable[[str], None]) -> None:
    """What reached the three disks, and nothing else, is there when the power comes back."""
    silences = []
    with powered(tmp_path) as (running, disks):
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            for _ in range(trials):
                for disk in disks:
                    disk.mark()
                cut_at = time.monotonic()
                running.kill()
                for disk in disks:
                    disk.cut_power()
                assert not any(disk.marked() for disk in disks), (
                    "what nobody synced is there: no power was cut"
                )
                running.start()
                load.goes_on()
                silences.append(load.silence(cut_at))
                load.goes_on(count=100)
        load.check(running.bootstrap)
        until_in_sync(running)
        same_everywhere(running)
    say(f"power cut of all three, without an acknowledgement: {summary(silences)}")


def test_a_power_cut_takes_what_nobody_synced(tmp_path: Path) -> None:
    """The same without fsync loses records: so the test above would notice a missing one."""
    with powered(tmp_path) as (running, disks):
        create(running, copies=3, flush_policy="os")
        with Load(running.bootstrap) as load:
            load.goes_on(count=100)
            running.kill()  # under load: what was acknowledged just now is on no disk yet
            for disk in disks:
                disk.cut_power()
            running.start()
            until_in_sync(running)
        found = read_all(running.bootstrap, TopicPartition(TOPIC, 0))
        problems = load.ledgers[0].judge(found)
        assert problems
        assert all(problem.startswith("lost: ") for problem in problems), problems
