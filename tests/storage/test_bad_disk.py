"""S30: a write or a sync that fails ends all writing; what was acknowledged is still there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.errors import StorageFailedError
from raftlog.storage import DeleteTask, Log
from raftlog.testing.disk import FOREVER, Fault, SimDisk
from tests.storage.logs import (
    DIRECTORY,
    after_power_cut,
    append,
    fill,
    killed,
    open_log,
    sim_disk,
    value_at,
    values,
)

CHANCES = range(10)


def log_with(disk: SimDisk, count: int = 8) -> Log:
    log = open_log(disk)
    fill(log, count)
    return log


def check_it_writes_no_more(log: Log, disk: SimDisk) -> None:
    """Also when the disk works again: what it holds is unknown."""
    disk.faults.clear()
    before = disk.changes
    with pytest.raises(StorageFailedError):
        append(log, b"late")
    with pytest.raises(StorageFailedError):
        log.truncate_to(log.log_start_offset)
    assert log.begin_sync(snapshot=True) is None
    assert log.apply_retention(now_ms=1 << 45, high_watermark=log.log_end_offset) is None
    assert not log.roll_if_due(now_ms=1 << 45)
    assert log._failure is not None
    log.close()
    assert disk.changes == before


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("write", "*.log"),
        ("create", "*.log"),
    ],
)
def test_a_failed_write_ends_all_writing(operation: str, path: str) -> None:
    disk = sim_disk()
    log = log_with(disk)
    disk.faults.append(Fault({operation}, path=path))
    with pytest.raises(StorageFailedError, match="Input/output error"):
        append(log, b"x" * 2_000, leader_epoch=1)  # a new epoch, a new segment, a batch
    assert values(log) == [value_at(offset) for offset in range(8)]
    check_it_writes_no_more(log, disk)


def test_half_a_batch_that_cannot_be_taken_back_ends_all_writing_too() -> None:
    disk = sim_disk()
    log = log_with(disk)
    disk.capacity_bytes = 1
    disk.faults.append(Fault({"truncate"}))
    with pytest.raises(StorageFailedError, match="truncating a partial write"):
        append(log, b"x")
    disk.capacity_bytes = None
    check_it_writes_no_more(log, disk)


def test_a_failed_sync_ends_all_writing_and_is_not_tried_again() -> None:
    for forgets in [False, True]:
        for operation, path in [
            ("sync", "*.log"),
            ("sync_dir", "*"),
            ("create", "*/epochs.tmp"),
            ("write", "*/epochs.tmp"),
            ("sync", "*/epochs.tmp"),
            ("rename", "*/epochs.tmp"),
            ("write", "*/checkpoint"),
            ("write", "*.index.tmp"),
            ("rename", "*.index.tmp"),
            ("sync", "*.producers.tmp"),
        ]:
            for seed in CHANCES:
                disk = sim_disk(seed)
                log = log_with(disk)
                fill(log, 7, sync=False, leader_epoch=1)  # a new epoch, and a new segment
                fault = Fault({operation}, path=path, forgets=forgets, times=FOREVER)
                disk.faults.append(fault)
                task = log.begin_sync()
                assert task is not None
                with pytest.raises(OSError, match="Input/output") as raised:
                    task.run()
                assert fault.times == FOREVER - 1, "it was tried again"
                error = log.failed_sync(task, raised.value)
                assert isinstance(error, StorageFailedError)
                assert (log.durable_end_offset, log.log_end_offset) == (8, 15)
                assert log.acknowledged_end_offset == 8
                check_it_writes_no_more(log, disk)
                log = after_power_cut(disk)
                assert log.damage == ""
                assert values(log)[:8] == [value_at(offset) for offset in range(8)]


def test_syncing_here_and_now_raises_what_failed() -> None:
    disk = sim_disk()
    log = log_with(disk)
    fill(log, 1, sync=False)
    disk.faults.append(Fault({"sync"}))
    with pytest.raises(StorageFailedError, match="syncing log failed"):
        log.sync()
    check_it_writes_no_more(log, disk)


def test_closing_raises_what_failed_and_lets_go_of_the_files() -> None:
    disk = sim_disk()
    log = log_with(disk)
    fill(log, 1, sync=False)
    disk.faults.append(Fault({"sync"}))
    with pytest.raises(StorageFailedError):
        log.close()
    assert not any(segment.is_open for segment in log._segments)


def test_a_disk_that_drops_what_it_could_not_sync_takes_nothing_acknowledged_along() -> None:
    """A kill keeps the pages, so the next process sees them; after it, power goes (ATC'20)."""
    for seed in CHANCES:
        disk = sim_disk(seed)
        log = log_with(disk)
        fill(log, 3, sync=False)
        disk.faults.append(Fault({"sync"}, forgets=True))
        with pytest.raises(StorageFailedError):
            log.sync()
        log = killed(disk)
        found = log.log_end_offset
        assert found == 11
        fill(log, 2)  # acknowledged, behind what was dropped
        log = after_power_cut(disk)
        assert log.damage == ""
        assert values(log) == [value_at(offset) for offset in range(13)]


@pytest.mark.parametrize("operation", ["remove", "sync_dir", "truncate", "sync", "write"])
def test_a_failed_truncation_ends_all_writing(operation: str) -> None:
    for seed in CHANCES:
        disk = sim_disk(seed)
        log = log_with(disk, 20)
        disk.faults.append(Fault({operation}))
        with pytest.raises(StorageFailedError, match="Input/output"):
            log.truncate_to(7)
        check_it_writes_no_more(log, disk)
        log = after_power_cut(disk)
        assert log.damage == ""
        assert values(log)[:7] == [value_at(offset) for offset in range(7)]


@pytest.mark.parametrize("operation", ["write", "sync", "sync_dir", "remove"])
@pytest.mark.parametrize("restart", [killed, after_power_cut])
def test_a_failed_deletion_is_told_and_leaves_a_log_that_starts(
    operation: str, restart: Callable[[SimDisk], Log]
) -> None:
    for seed in CHANCES:
        disk = sim_disk(seed)
        log = log_with(disk, 20)
        task = log.advance_log_start(14)
        assert isinstance(task, DeleteTask)
        disk.faults.append(Fault({operation}))
        with pytest.raises(OSError, match="Input/output"):
            task.run()
        disk.faults.clear()
        log = restart(disk)
        assert log.damage == ""
        assert log.log_start_offset in {0, 14}
        assert values(log) == [value_at(o) for o in range(log.log_start_offset, 20)]


def test_a_disk_that_fails_at_a_start_keeps_what_it_has() -> None:
    disk = sim_disk()
    fill(log_with(disk), 3, sync=False)
    disk.crash()
    disk.faults.append(Fault({"sync"}))
    with pytest.raises(OSError, match="Input/output"):
        open_log(disk)
    disk.faults.clear()
    assert values(killed(disk)) == [value_at(offset) for offset in range(11)]
    assert disk.list_dir(DIRECTORY)
