"""S30, S31: no room is refused, kept and tried again; a failed fdatasync is the journal's end."""

from __future__ import annotations

import errno

import pytest

from raftlog.errors import DiskFullError, StorageFailedError
from raftlog.testing.disk import Fault
from tests.consensus.journals import (
    PATH,
    after_power_cut,
    contents,
    disk_of,
    fill_group,
    open_journal,
    task_of,
)


def test_without_room_changes_stay_pending_and_are_synced_once_there_is_some() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    fill_group(journal, "a", 3)
    journal.sync()
    disk.capacity_bytes = disk.open(PATH).size() + 100
    fill_group(journal, "a", 3, size=200)
    for _ in range(3):
        with pytest.raises(DiskFullError, match=r"disk full.*consensus\.journal"):
            journal.sync()
        assert journal.is_dirty
        fill_group(journal, "a", 1)
    assert disk.open(PATH).size() == journal.size_bytes == disk.capacity_bytes - 100
    disk.capacity_bytes = None
    journal.sync()
    held = contents(journal)
    assert len(held["a"][5]) == 9
    assert contents(after_power_cut(disk)) == held


def test_changes_made_while_a_refused_ticket_was_out_keep_their_place() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    group = fill_group(journal, "a", 5)
    task = task_of(journal)
    group.deleteEntriesFrom(2)
    fill_group(journal, "a", 1)
    disk.faults.append(Fault({"write"}, errno.ENOSPC))
    with pytest.raises(OSError, match="No space") as caught:
        task.run()
    assert isinstance(journal.failed_sync(task, caught.value), DiskFullError)
    journal.sync()
    held = contents(journal)
    assert contents(after_power_cut(disk)) == held


def test_a_power_cut_after_a_refused_write_finds_nothing_of_it() -> None:
    """Also when a longer block was begun in its place: the two never mix."""
    for bytes_left in [0, 1, 27, 28, 29, 300, 600, 1_100]:
        for seed in range(40):
            disk = disk_of(seed)
            journal = open_journal(disk)
            fill_group(journal, "a", 2)
            journal.sync()
            legal = [contents(journal)]
            disk.capacity_bytes = disk.open(PATH).size() + bytes_left
            fill_group(journal, "a", 1, size=1_500)
            with pytest.raises(DiskFullError):
                journal.sync()
            disk.capacity_bytes = None
            fill_group(journal, "b", 4, size=400)
            legal.append(contents(journal))
            disk.faults.append(Fault({"sync"}, errno.EIO))
            with pytest.raises(StorageFailedError):
                journal.sync()
            assert contents(after_power_cut(disk)) in legal


def test_a_refused_write_that_cannot_be_taken_back_ends_the_journal() -> None:
    for operation in ("truncate", "sync"):
        journal = open_journal(disk := disk_of())
        fill_group(journal, "a", 2)
        disk.faults += [Fault({"write"}, errno.ENOSPC), Fault({operation}, errno.ENOSPC)]
        with pytest.raises(StorageFailedError):
            journal.sync()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("forgets", [False, True])
def test_a_failed_fdatasync_is_the_end(code: int, forgets: bool) -> None:
    """Syncing again would not tell what is on the disk."""
    disk = disk_of()
    journal = open_journal(disk)
    fill_group(journal, "a", 2)
    disk.faults.append(Fault({"sync"}, code, forgets=forgets))
    with pytest.raises(StorageFailedError, match=r"consensus\.journal failed"):
        journal.sync()
    fill_group(journal, "a", 1)
    for _ in range(2):
        with pytest.raises(StorageFailedError):
            journal.begin_sync()
        with pytest.raises(StorageFailedError):
            journal.sync()
    disk.power_cut()
    assert len(open_journal(disk).group("a")) in (0, 2)


def test_what_a_failed_fdatasync_has_forgotten_is_written_again_by_the_next_process() -> None:
    """It reads the bytes, for they are in the page cache; the disk may never have seen them."""
    disk = disk_of()
    journal = open_journal(disk)
    fill_group(journal, "a", 30, size=100)
    disk.faults.append(Fault({"sync"}, errno.EIO, forgets=True))
    with pytest.raises(StorageFailedError):
        journal.sync()
    disk.crash()
    journal = open_journal(disk)
    assert len(journal.group("a")) == 30
    fill_group(journal, "b", 1)
    journal.sync()
    held = contents(journal)
    assert contents(after_power_cut(disk)) == held


def test_opening_without_room_says_so_and_changes_nothing() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    fill_group(journal, "a", 3)
    journal.sync()
    disk.crash()
    before = disk.durable_bytes(PATH)
    disk.capacity_bytes = len(before or b"")
    with pytest.raises(DiskFullError):
        open_journal(disk)
    assert disk.durable_bytes(PATH) == before
    disk.capacity_bytes = None
    assert open_journal(disk).boot == 2


def test_opening_on_a_bad_disk_raises_ours_and_the_next_try_works() -> None:
    for is_new in [False, True]:
        for step in ["create", "write", "sync", "rename", "sync_dir"]:
            for code in [errno.ENOSPC, errno.EIO]:
                disk = disk_of()
                if not is_new:
                    open_journal(disk).close()
                disk.faults.append(Fault({step}, code))
                expected = DiskFullError if code == errno.ENOSPC else StorageFailedError
                if step in {"create", "rename"} and not is_new:
                    disk.faults.clear()
                else:
                    with pytest.raises(expected):
                        open_journal(disk)
                disk.crash()
                assert not disk.faults or not disk.faults[0].times
                assert open_journal(disk).group_ids() == []
