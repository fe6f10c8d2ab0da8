"""Damaged logs moved aside: the evidence stays, the partition goes on empty, old evidence goes."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from random import Random

import pytest

from raftlog import limits
from raftlog.errors import DiskFullError, StorageFailedError, UnknownPartitionError
from raftlog.storage import Store, inspect, quarantine
from raftlog.storage.quarantine import QUARANTINES_KEPT
from raftlog.testing.disk import FOREVER, Fault, SimDisk, Stopped
from tests.storage.crashes import sweep
from tests.storage.directories import (
    DATA,
    FIRST,
    SimDiskOfTrees,
    host,
    hosted,
    open_store,
    paths_of,
    reopened,
)
from tests.storage.logs import append, fill, stored

PARTITION = f"{DATA}/topics/clicks/{FIRST}/1"


@pytest.fixture(params=[pytest.param(3), pytest.param(40, marks=pytest.mark.seeds)])
def chances(request: pytest.FixtureRequest) -> int:
    """How many outcomes of each power cut are looked at."""
    count: int = request.param
    return count


def new_disk(seed: int = 1) -> SimDisk:
    return SimDiskOfTrees(Random(seed))


def contents(disk: SimDisk, directory: str) -> dict[str, bytes]:
    return {
        name: disk.read_file(f"{directory}/{name}", bytes_max=limits.MIB)
        for name in disk.list_dir(directory)
    }


def test_a_damaged_log_makes_room_for_an_empty_one() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = host(store, 1, count=5)
    fill(host(store, 0), 2)
    log.note_damage("bad", offset=3)
    before = contents(disk, PARTITION)
    path = store.quarantine(FIRST, 1)
    assert path == f"{PARTITION}.quarantine-1"
    assert contents(disk, path) == before
    assert store.quarantined_bytes(store.log_dirs[""]) == sum(map(len, before.values())) > 0
    fresh = store.hosted_log(FIRST, 1)
    assert (fresh.damage, fresh.log_end_offset, fresh.leader_epoch) == ("", 0, -1)
    assert f"quarantined in {path}" in fresh.notes[-1]
    append(fresh, b"from a peer")
    fresh.sync()
    store = reopened(disk, power_cut=True)
    assert hosted(store) == {(FIRST, 0): 2, (FIRST, 1): 1}
    assert list(contents(disk, path)) == list(before)


def test_only_the_newest_are_kept() -> None:
    disk = new_disk()
    store = open_store(disk)
    notes: list[str] = []
    for number in range(12):
        append(host(store, 1), b"%d" % number)
        store.quarantine(FIRST, 1)
        notes += store.hosted_log(FIRST, 1).notes
    kept = [f"{PARTITION}.quarantine-{n}" for n in range(13 - QUARANTINES_KEPT, 13)]
    assert quarantine.quarantines(disk, PARTITION) == kept
    assert sum("removed" in note for note in notes) == 12 - QUARANTINES_KEPT
    assert f"removed {PARTITION}.quarantine-1," in " ".join(notes)
    assert len(paths_of(disk)) == QUARANTINES_KEPT, "the new log has no files yet"


def test_only_this_partitions_are_counted() -> None:
    disk = new_disk()
    for name in ("1", "1.quarantine-2", "1.quarantine-x", "11.quarantine-7", "1.other"):
        disk.make_dirs(f"{DATA}/{name}")
    assert quarantine.quarantines(disk, f"{DATA}/1") == [f"{DATA}/1.quarantine-2"]
    assert quarantine.move_aside(disk, f"{DATA}/1") == (f"{DATA}/1.quarantine-3", [])


def test_what_is_in_quarantine_is_verified_only_when_asked_for() -> None:
    disk = new_disk()
    store = open_store(disk)
    append(host(store, 1), b"x")
    store.close()
    store = reopened(disk)
    path = store.quarantine(FIRST, 1)
    append(store.hosted_log(FIRST, 1), b"y")
    store.close()
    assert [report.directory for report in inspect.verify(disk, DATA)] == [PARTITION]
    assert [report.directory for report in inspect.verify(disk, path)] == [path]


def test_a_dropped_partition_takes_its_quarantine_along() -> None:
    disk = new_disk()
    store = open_store(disk)
    host(store, 0, count=1)
    host(store, 1, count=2)
    store.quarantine(FIRST, 1)
    store.drop_partitions(FIRST, [1])
    assert paths_of(disk) == [f"clicks/{FIRST}/0"]


def test_a_partition_that_is_not_here_cannot_be_moved() -> None:
    store = open_store(new_disk())
    host(store, 0)
    with pytest.raises(UnknownPartitionError):
        store.quarantine(FIRST, 1)


def test_a_move_that_fails_is_told_and_the_next_start_goes_on() -> None:
    for code, error in ((errno.EIO, StorageFailedError), (errno.ENOSPC, DiskFullError)):
        disk = new_disk()
        store = open_store(disk)
        host(store, 1, count=3)
        disk.faults.append(Fault({"rename"}, code))
        with pytest.raises(error, match="quarantining"):
            store.quarantine(FIRST, 1)
        assert hosted(reopened(disk)) == {(FIRST, 1): 3}


def test_the_move_is_durable_before_the_empty_log_is_begun() -> None:
    disk = new_disk()
    store = open_store(disk)
    host(store, 1, count=3)
    before = contents(disk, PARTITION)
    store.quarantine(FIRST, 1)
    disk.faults.append(Fault({"make_dir"}, error=None))
    with pytest.raises(Stopped):
        append(store.hosted_log(FIRST, 1), b"from a peer")
    for name in before:
        assert disk.durable_bytes(f"{PARTITION}.quarantine-1/{name}") is not None


# -- crashes ---------------------------------------------------------------------------------------


@dataclass
class Moved:
    store: Store
    batches: list[bytes]
    is_done: bool = False


def test_moving_aside(chances: int, seed: int) -> None:
    """The old log in its place, or moved whole and an empty one there; which then is durable."""

    def prepare(disk: SimDisk) -> Moved:
        store = open_store(disk)
        for _ in range(QUARANTINES_KEPT):
            host(store, 1, count=1)
            store.quarantine(FIRST, 1)
        log = host(store, 1, count=4)
        return Moved(store, stored(log))

    def act(disk: SimDisk, state: Moved) -> None:
        state.store.quarantine(FIRST, 1)
        state.is_done = True

    def check(disk: SimDisk, state: Moved) -> None:
        store = open_store(disk)
        log = store.hosted_log(FIRST, 1)
        assert log.damage == ""
        assert stored(log) in ([[]] if state.is_done else [[], state.batches])
        if not stored(log):
            state.is_done = True
            aside = quarantine.quarantines(disk, PARTITION)[-1]
            assert contents(disk, aside)[f"{0:020d}.log"] == b"".join(state.batches)
            append(log, b"from a peer")
            log.sync()
            store = reopened(disk, power_cut=True)
            log = store.hosted_log(FIRST, 1)
            assert log.log_end_offset == 1
            log.truncate_to(0)
        assert len(quarantine.quarantines(disk, PARTITION)) <= QUARANTINES_KEPT + 1
        store.abandon()
        disk.crash()

    sweep(prepare, act, check, seed=seed, chances=chances, make_disk=SimDiskOfTrees)


@pytest.mark.parametrize("times", [3, FOREVER])
def test_a_directory_that_is_being_removed_is_moved_aside_in_the_end(times: int) -> None:
    disk = new_disk()
    store = open_store(disk)
    fill(host(store, 1), 2)
    disk.faults.append(Fault({"rename"}, errno.ENOENT, path=PARTITION, times=times))
    if times == FOREVER:
        with pytest.raises(StorageFailedError):
            store.quarantine(FIRST, 1)
        return
    assert store.quarantine(FIRST, 1) == f"{PARTITION}.quarantine-1"
    assert store.hosted_log(FIRST, 1).log_end_offset == 0
