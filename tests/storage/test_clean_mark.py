"""Whether the last process stopped cleanly: what leaves the mark, what takes it away (S12)."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass

import pytest

from raftlog.errors import StorageFailedError
from raftlog.storage import Store, state_files
from raftlog.testing.disk import Fault, SimDisk
from tests.storage.crashes import sweep
from tests.storage.directories import DATA, FIRST, host, open_store, reopened
from tests.storage.logs import fill, sim_disk


def closed(disk: SimDisk) -> None:
    store = open_store(disk)
    fill(host(store, 0, flush_policy="os"), 3, sync=False)
    store.close()


def test_a_new_directory_is_clean() -> None:
    disk = sim_disk()
    assert open_store(disk).was_clean
    assert not reopened(disk).was_clean


def test_a_clean_stop_is_remembered_for_one_start() -> None:
    for power_cut in (False, True):
        disk = sim_disk()
        closed(disk)
        store = reopened(disk, power_cut=power_cut)
        assert store.was_clean
        assert store.hosted_log(FIRST, 0).log_end_offset == 3
        assert not reopened(disk, power_cut=power_cut).was_clean


def test_a_store_that_was_abandoned_is_not_clean() -> None:
    disk = sim_disk()
    closed(disk)
    open_store(disk).abandon()
    assert not open_store(disk).was_clean


def test_a_log_that_fails_to_close_leaves_no_mark() -> None:
    disk = sim_disk()
    store = open_store(disk)
    fill(host(store, 0), 1, sync=False)
    disk.faults.append(Fault({"sync"}, path="*.log"))
    with pytest.raises(StorageFailedError):
        store.close()
    assert not reopened(disk).was_clean


def test_a_log_that_has_failed_before_or_is_damaged_leaves_none_either() -> None:
    for how in ("failed", "damaged"):
        disk = sim_disk()
        store = open_store(disk)
        log = host(store, 0, count=2)
        if how == "failed":
            disk.faults.append(Fault({"write"}, path="*.log"))
            with suppress(StorageFailedError):
                fill(log, 1)
        else:
            fill(log, 1, sync=False)
            log.note_damage("bad", offset=1)
        store.close()
        assert not reopened(disk).was_clean


def test_a_mark_that_cannot_be_written_counts_as_a_crash() -> None:
    disk = sim_disk()
    store = open_store(disk)
    disk.faults.append(Fault({"create"}, errno.ENOSPC, path="*clean*"))
    store.close()
    assert not reopened(disk).was_clean
    store = reopened(disk)
    disk.faults.append(Fault({"create"}, errno.EIO, path="*clean*"))
    with pytest.raises(StorageFailedError, match="clean"):
        store.close()
    open_store(disk)  # the lock was let go of


def test_a_damaged_mark_or_one_of_another_directory_is_none() -> None:
    disk = sim_disk()
    closed(disk)
    disk.flip_bit(f"{DATA}/clean", 99)
    assert not open_store(disk).was_clean
    disk = sim_disk()
    disk.make_dirs(DATA)
    state_files.leave(disk, DATA, directory_id="another")
    assert not state_files.take(disk, DATA, directory_id="this")
    assert not disk.exists(f"{DATA}/clean")
    assert not state_files.take(disk, DATA, directory_id="another")


@pytest.mark.parametrize(
    ("has_peers", "policy", "in_doubt"),
    [(True, "os", True), (True, "fsync", False), (False, "os", False)],
)
def test_unsynced_logs_of_a_replica_are_in_doubt_after_a_crash(
    has_peers: bool, policy: str, in_doubt: bool
) -> None:
    disk = sim_disk()
    fill(host(open_store(disk), 0, flush_policy=policy), 3, sync=False)
    disk.crash()
    store = Store.open(disk, DATA, has_peers=has_peers)
    assert bool(store.hosted_log(FIRST, 0).doubt) == in_doubt


def test_a_doubt_that_is_not_settled_outlives_a_clean_stop() -> None:
    disk = sim_disk()
    fill(host(open_store(disk), 0, flush_policy="os"), 3, sync=False)
    disk.crash()
    Store.open(disk, DATA, has_peers=True).close()
    store = Store.open(disk, DATA, has_peers=True)
    assert store.hosted_log(FIRST, 0).doubt
    assert store.resolve(FIRST, 0).log_end_offset == 3
    store.close()
    assert not Store.open(disk, DATA, has_peers=True).hosted_log(FIRST, 0).doubt


@dataclass
class Stop:
    store: Store
    appended: int = 0


def test_a_start_that_is_clean_has_everything(seed: int) -> None:
    """Wherever the stop, or the start and the appends after it, ends."""

    def prepare(disk: SimDisk) -> Stop:
        store = open_store(disk)
        fill(host(store, 0, flush_policy="os"), 4, sync=False)
        return Stop(store, appended=4)

    def act(disk: SimDisk, state: Stop) -> None:
        state.store.close()
        store = open_store(disk)
        log = store.hosted_log(FIRST, 0)
        for _ in range(2):
            state.appended += 1
            fill(log, 1, sync=False)

    def check(disk: SimDisk, state: Stop) -> None:
        has_mark = disk.exists(f"{DATA}/clean")
        store = open_store(disk)
        assert store.was_clean == has_mark
        if store.was_clean:
            assert (state.appended, store.hosted_log(FIRST, 0).log_end_offset) == (4, 4)
        assert not disk.exists(f"{DATA}/clean")
        store.abandon()
        disk.crash()

    sweep(prepare, act, check, seed=seed)
