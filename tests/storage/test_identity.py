"""Whose a data directory is: joining a cluster, becoming another directory. See also test_store."""

from __future__ import annotations

import errno

import pytest

from raftlog.errors import DataDirectoryError, DiskFullError, StorageFailedError
from raftlog.storage import Identity, Store
from raftlog.storage.state_files import IdentityFile
from raftlog.testing.disk import Fault, SimDisk
from tests.storage.crashes import sweep
from tests.storage.directories import DATA, open_store, reopened
from tests.storage.logs import sim_disk


def test_a_directory_without_a_cluster_adopts_one_once() -> None:
    disk = sim_disk()
    store = open_store(disk, cluster_id="")
    assert store.identity.cluster_id == ""
    before = store.identity
    store = reopened(disk, power_cut=True)
    assert store.identity == before
    store.adopt_cluster_id("ours")
    assert store.identity == Identity(before.broker_id, "ours", before.directory_id)
    changes = disk.changes
    store.adopt_cluster_id("ours")
    assert disk.changes == changes
    with pytest.raises(DataDirectoryError, match="belongs to cluster id ours, not theirs"):
        store.adopt_cluster_id("theirs")
    assert reopened(disk, power_cut=True).identity.cluster_id == "ours"


def test_a_broker_that_does_not_know_its_cluster_takes_what_the_directory_says() -> None:
    disk = sim_disk()
    open_store(disk, cluster_id="ours").close()
    assert open_store(disk, cluster_id="").identity.cluster_id == "ours"


def test_a_cluster_that_is_named_at_the_start_is_adopted() -> None:
    disk = sim_disk()
    open_store(disk, cluster_id="").close()
    open_store(disk, cluster_id="ours").close()
    assert open_store(disk).identity.cluster_id == "ours"


def test_a_new_directory_of_its_own_makes_a_cluster() -> None:
    assert len(open_store(sim_disk()).identity.cluster_id) == 32


def test_a_change_that_fails_has_not_happened() -> None:
    for code, error in ((errno.ENOSPC, DiskFullError), (errno.EIO, StorageFailedError)):
        disk = sim_disk()
        store = open_store(disk, cluster_id="")
        before = store.identity
        disk.faults.append(Fault({"write"}, code))
        with pytest.raises(error):
            store.adopt_cluster_id("c")
        assert store.identity == before
        assert reopened(disk).identity == before


def test_the_journal_lies_in_the_directory() -> None:
    assert open_store(sim_disk()).journal_path == f"{DATA}/consensus.journal"


def test_room_is_kept_for_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = sim_disk()
    store = open_store(disk)
    kept: list[tuple[str, int]] = []
    monkeypatch.setattr(disk, "reserve", lambda path, size: kept.append((path, size)))
    store.reserve_for_journal(1 << 20)
    assert kept == [(f"{DATA}/consensus.journal", 1 << 20)]


def test_a_new_file_is_told_from_an_old_one() -> None:
    disk = sim_disk()
    disk.make_dirs(DATA)
    ids = iter("abc")
    for is_new in (True, False):
        file = IdentityFile(disk, DATA, new_id=lambda: next(ids))
        assert file.take(7, None) == Identity(7, "a", "b")
        assert file.is_new == is_new


def test_crashes_while_joining(seed: int) -> None:
    def prepare(disk: SimDisk) -> list[Store]:
        return [open_store(disk, cluster_id="")]

    def act(disk: SimDisk, state: list[Store]) -> None:
        state[0].adopt_cluster_id("ours")

    def check(disk: SimDisk, state: list[Store]) -> None:
        store = open_store(disk)
        adopted, found = state[-1].identity, store.identity
        assert found.cluster_id == "ours" or adopted.cluster_id == ""
        assert found.broker_id == adopted.broker_id
        state.append(store)

    sweep(prepare, act, check, seed=seed)
