"""Which names a sync of a directory covers: those that were created before it began."""

from __future__ import annotations

import pytest

from raftlog.storage import state_files
from raftlog.storage.state_files import NameSyncs
from raftlog.testing.disk import Fault, SimDisk
from tests.storage.logs import sim_disk


def disk_with(*paths: str) -> tuple[SimDisk, list[str]]:
    """A disk with these directories, and the syncs from now on."""
    disk = sim_disk()
    for path in paths:
        disk.make_dirs(path)
    syncs: list[str] = []
    disk.before = lambda operation, path: syncs.append(path) if operation == "sync_dir" else None
    return disk, syncs


def test_one_sync_covers_all_names_from_before_it() -> None:
    disk, syncs = disk_with("a")
    names = NameSyncs(disk)
    numbers = [names.created() for _ in range(5)]
    for number in reversed(numbers):
        names.sync("a", number)
    assert syncs == ["a"]
    names.sync("a", names.created())
    assert syncs == ["a", "a"]


def test_a_sync_does_not_cover_a_name_that_is_created_while_it_runs() -> None:
    disk, syncs = disk_with("a")
    names = NameSyncs(disk)
    late: list[int] = []
    disk.before = lambda _operation, path: (syncs.append(path), late.append(names.created()))[0]
    names.sync("a", names.created())
    names.sync("a", late[0])
    assert syncs == ["a", "a"]


def test_a_sync_does_not_cover_another_directory() -> None:
    disk, syncs = disk_with("a", "b")
    names = NameSyncs(disk)
    one, other = names.created(), names.created()
    names.sync("a", one)
    names.sync("b", other)
    assert syncs == ["a", "b"]


def test_a_failed_sync_covers_nothing() -> None:
    disk, syncs = disk_with("a")
    names = NameSyncs(disk)
    number = names.created()
    disk.faults.append(Fault({"sync_dir"}))
    with pytest.raises(OSError, match="Input/output"):
        names.sync("a", number)
    names.sync("a", number)
    assert syncs == ["a", "a"]


def test_a_limited_number_of_directories_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_files, "SYNCED_MAX", 2)
    disk, syncs = disk_with("a", "b", "c")
    names = NameSyncs(disk)
    number = names.created()
    for path in ("a", "b", "c", "c", "a"):
        names.sync(path, number)
    assert syncs == ["a", "b", "c", "a"]
