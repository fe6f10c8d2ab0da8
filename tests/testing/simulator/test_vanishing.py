"""Files of partitions vanish from simulated disks; and clusters that they vanish from."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from raftlog.storage import Store
from raftlog.testing.disk import SimDisk
from raftlog.testing.simulator.faults import TOPICS, WAYS, FaultPlan, lose_files, partitions
from raftlog.testing.simulator.scenario import Scenario, run
from raftlog.testing.simulator.world import DATA_DIRECTORY
from tests.storage.directories import FIRST, SimDiskOfTrees, host
from tests.storage.logs import fill


def stored(disk: SimDisk, path: str) -> list[str]:
    names = [f"{path}/{name}" for name in disk.list_dir(path)]
    return names + [found for name in names for found in stored(disk, name)]


@pytest.mark.parametrize("way", WAYS)
def test_files_vanish_for_good(way: str) -> None:
    for seed in range(20):
        disk = SimDiskOfTrees(Random(seed))
        store = Store.open(disk, DATA_DIRECTORY)
        fill(host(store, 0), 3)
        fill(host(store, 1), 3)
        store.close()
        before = {path: disk.image(path) for path in stored(disk, DATA_DIRECTORY)}
        assert WAYS[way](disk, disk.random)
        disk.power_cut()
        left = stored(disk, DATA_DIRECTORY)
        assert set(left) < set(before) or way == "checkpoints and tails"
        assert f"{DATA_DIRECTORY}/catalog" in left or way == "all topics and their record"
        assert f"{DATA_DIRECTORY}/identity" in left


def test_where_there_is_nothing_nothing_vanishes() -> None:
    disk = SimDiskOfTrees(Random(1))
    assert lose_files(disk, disk.random) == ""
    store = Store.open(disk, DATA_DIRECTORY)
    host(store, 1)
    assert lose_files(disk, disk.random) == ""
    assert not WAYS["one file"](disk, disk.random)
    disk.make_dirs(f"{TOPICS}/clicks/{FIRST}/1")
    assert partitions(disk) == [f"{TOPICS}/clicks/{FIRST}/1"]
    assert not WAYS["one file"](disk, disk.random)


def test_clusters_lose_nothing_with_the_files_of_one_broker() -> None:
    struck: set[str] = set()
    for seed in (1, 6, 10):
        scenario = Scenario.draw(seed, brokers=3, light=True)
        faults = FaultPlan(kinds=("vanish", "roll_back"), every_s=0.5)
        verdict = run(replace(scenario, duration_s=5.0, faults=faults))
        assert verdict.is_good, (seed, verdict.violations[:10])
        struck |= verdict.faults.keys()
    assert struck == {"vanish", "roll_back"}
