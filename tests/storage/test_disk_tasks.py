"""Tasks: blocking work that touches files and never the log. Their orders: test_durability."""

from __future__ import annotations

import errno
import threading

import pytest

from raftlog import limits
from raftlog.storage.disk_tasks import write_unsynced
from raftlog.testing.disk import Fault
from tests.storage.logs import (
    DIRECTORY,
    ONE_SEGMENT,
    append,
    files,
    fill,
    killed,
    open_log,
    sim_disk,
    stored,
    value_at,
    values,
)


def test_a_ticket_knows_what_to_sync_when_the_log_has_gone_on() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 8, sync=False)
    whole = stored(log)
    task = log.begin_sync()
    assert task is not None
    fill(log, 20, sync=False)
    task.run()
    durable = b"".join(disk.durable_bytes(path) or b"" for path in files(disk, ".log"))
    assert durable.startswith(b"".join(whole))


def test_a_ticket_runs_in_any_thread() -> None:
    log = open_log(sim_disk())
    fill(log, 8, sync=False)
    task = log.begin_sync()
    assert task is not None
    thread = threading.Thread(target=task.run)
    thread.start()
    fill(log, 8, sync=False)
    thread.join()
    log.complete_sync(task)
    assert log.durable_end_offset == 8
    assert values(log) == [value_at(offset) for offset in range(16)]


def test_what_only_quickens_the_next_start_may_lack_room() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 3)
    fill(log, 9, sync=False)  # a roll: an index and a snapshot are due
    disk.faults.append(Fault({"create"}, errno.ENOSPC, times=-1))
    log.sync()
    assert log.durable_end_offset == 12
    disk.faults.clear()
    log = killed(disk)
    assert (log.log_end_offset, log.damage) == (12, "")


def test_a_ticket_that_was_lost_with_its_process_is_made_up_for() -> None:
    disk = sim_disk()
    log = open_log(disk)
    append(log, b"x", producer=(7, 0, 0))
    fill(log, 9, sync=False)
    assert log.begin_sync() is not None
    log = killed(disk)
    task = log.begin_sync()  # the sealed segments still want their indexes
    assert task is not None
    task.run()
    log.complete_sync(task)
    assert len(files(disk, ".index")) == log.segment_count - 1
    assert len(files(disk, ".producers")) == 1


def test_two_tickets_may_save_producers_at_once() -> None:
    """A sync's and a deletion's, in two threads."""
    disk = sim_disk()
    log = open_log(disk, ONE_SEGMENT)
    for number in range(8):
        append(log, b"x" * 300, producer=(7, 0, number))
    log.sync()
    drop = log.advance_log_start(8)
    assert drop.snapshot is not None
    threads = [
        threading.Thread(target=drop.files.write_snapshot, args=drop.snapshot) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drop.run()
    assert log._files.read_snapshot(log_end_offset=8).snapshot() == drop.snapshot[1]


def test_a_deletion_finds_files_gone_already() -> None:
    """It may be carried out twice: here, and by the next start."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    task = log.advance_log_start(20)
    for path in task.paths[:3]:
        if disk.exists(path):
            disk.remove(path)
    task.run()
    task.run()
    assert files(disk, ".log") == [f"{DIRECTORY}/{20:020d}.log"]


def test_an_unsynced_write_replaces_the_file_whole() -> None:
    disk = sim_disk()
    disk.make_dirs("d")
    write_unsynced(disk, "d/a", b"a long first version")
    write_unsynced(disk, "d/a", b"second")
    assert disk.read_file("d/a", bytes_max=limits.KIB) == b"second"
    assert disk.list_dir("d") == ["a"]


def test_an_unsynced_write_without_room_holds_none_of_it() -> None:
    disk = sim_disk()
    disk.make_dirs("d")
    write_unsynced(disk, "d/a", b"first")
    disk.capacity_bytes = 10
    with pytest.raises(OSError, match="No space"):
        write_unsynced(disk, "d/a", b"a longer second")
    assert disk.read_file("d/a", bytes_max=limits.KIB) == b"first"
    assert disk.free_bytes("d") == 5


def test_a_drop_that_finds_an_index_gone_already_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction, which a drop makes useless, may be about to remove the same one."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    task = log.advance_log_start(15)
    gone = next(path for path in task.paths if path.endswith(".index"))
    exists = disk.exists

    def exists_until_now(path: str) -> bool:
        found = exists(path)
        if path == gone and found:
            disk.remove(path)
        return found

    monkeypatch.setattr(disk, "exists", exists_until_now)
    task.run()
    assert not any(map(exists, task.paths))
