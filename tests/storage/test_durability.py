"""The orders of operations that guarantees depend on (docs/contributing/storage.md), a test each.

Each stops the process just before the later operation and looks at what is durable by then, on the
simulated disk: no kill can show it, and a power cut shows it only sometimes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import DiskFullError
from raftlog.record import split
from raftlog.storage import Log, state_files
from raftlog.storage.checkpoint import Checkpoint, decode_slots
from raftlog.testing.disk import Fault, SimDisk, Stopped
from tests.storage.logs import (
    DIRECTORY,
    ONE_SEGMENT,
    SMALL,
    after_power_cut,
    append,
    base_offsets_of,
    files,
    fill,
    killed,
    open_log,
    sim_disk,
    stored,
    values,
)

CHANCES = range(12)


def stop_before(
    disk: SimDisk, operations: Collection[str], path: str, act: Callable[[], object]
) -> None:
    """Run ``act`` until it is about to do one of ``operations`` on ``path``."""
    disk.faults.append(Fault(operations, error=None, path=path))
    with pytest.raises(Stopped):
        act()


def durable_checkpoint(disk: SimDisk) -> Checkpoint:
    found = decode_slots(disk.durable_bytes(f"{DIRECTORY}/checkpoint") or b"")
    assert found is not None
    return found[1]


def durable_batches(disk: SimDisk) -> list[bytes]:
    """All batches that every power cut would leave, segment by segment."""
    segments = [disk.durable_bytes(path) or b"" for path in files(disk, ".log")]
    return [bytes(batch) for segment in segments for batch in split(segment)]


def producer_at(log: Log) -> tuple[int, int, int]:
    """The next batch of a producer that has written every batch of the log."""
    return (7, 0, log.log_end_offset)


# -- a sync, before what follows from it -----------------------------------------------------------


def test_data_is_durable_when_the_durable_end_moves() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20, sync=False)
    assert (log.durable_end_offset, log.log_end_offset) == (0, 20)
    task = log.begin_sync()
    assert task is not None
    task.run()
    assert log.durable_end_offset == 0  # not before its owner has the task back
    assert durable_batches(disk) == stored(log)
    log.complete_sync(task)
    assert log.durable_end_offset == 20


def test_a_ticket_covers_what_came_before_it_and_nothing_that_came_after() -> None:
    log = open_log(sim_disk())
    fill(log, 3, sync=False)
    first = log.begin_sync()
    assert first is not None
    fill(log, 9, sync=False)  # across a roll
    assert log.begin_sync() is None  # one at a time
    first.run()
    log.complete_sync(first)
    assert log.durable_end_offset == 3
    second = log.begin_sync()
    assert second is not None
    assert second.end_offset == 12


def test_a_new_segments_name_is_durable_when_the_durable_end_reaches_into_it() -> None:
    """Before the snapshot of producers is written, which syncs the directory as well."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 1)
    fill(log, 20, sync=False)
    task = log.begin_sync()
    assert task is not None
    stop_before(disk, {"create", "write"}, "*.producers.tmp", task.run)
    assert all(disk.durable_bytes(path) is not None for path in files(disk, ".log"))
    assert log.segment_count > 3


@pytest.mark.parametrize("path", ["*/checkpoint", "*.index.tmp", "*.producers.tmp"])
def test_nothing_is_noted_before_what_it_speaks_of_is_durable(path: str) -> None:
    """A mark, an index or a snapshot ahead of the truth makes a torn tail look like damage."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 8)
    append(log, b"x" * 1_500, producer=(7, 0, 0))  # a roll: the task has an index to write
    append(log, b"y", producer=(7, 0, 1))
    expected = stored(log)
    task = log.begin_sync()
    assert task is not None
    stop_before(disk, {"create", "write"}, path, task.run)
    assert durable_batches(disk) == expected


@pytest.mark.parametrize("path", ["*/checkpoint", "*.index.tmp", "*.producers.tmp"])
def test_epochs_are_durable_before_their_batches_are_noted_as_durable(path: str) -> None:
    """KAFKA-15046: an append does not wait for it, because the batches contain their epochs."""
    disk = sim_disk()
    log = open_log(disk)
    append(log, b"x", leader_epoch=3)
    log.sync()
    append(log, b"x" * 1_500, leader_epoch=5)  # in a new segment
    append(log, b"y", leader_epoch=6)
    task = log.begin_sync(snapshot=True)
    assert task is not None
    stop_before(disk, {"create", "write"}, path, task.run)
    epochs = state_files.decode(disk.durable_bytes(f"{DIRECTORY}/epochs") or b"", path="epochs")
    assert epochs == {"epochs": [[3, 0], [5, 1], [6, 2]]}


# -- recovery, before anything is served -----------------------------------------------------------


def test_what_a_killed_process_left_is_durable_before_it_is_served() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 1)  # else the epochs are saved too, with a sync of the directory
    fill(log, 20, sync=False)
    log = killed(disk)
    assert log.durable_end_offset == 21
    assert durable_batches(disk) == stored(log)


def test_what_a_failed_sync_dropped_is_durable_before_it_is_served() -> None:
    """The kernel keeps the pages, takes them for clean, and a second sync says that all is well."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 4)
    fill(log, 9, sync=False)
    task = log.begin_sync()
    assert task is not None
    disk.faults.append(Fault({"sync"}, forgets=True, times=2))
    with pytest.raises(OSError, match="Input/output"):
        task.run()
    disk.faults.clear()
    log = killed(disk)
    assert values(log)[4:]
    assert durable_batches(disk) == stored(log)


def test_a_cut_of_a_torn_tail_is_durable_before_the_log_goes_on() -> None:
    disk = sim_disk()
    log = open_log(disk, ONE_SEGMENT)
    fill(log, 3)
    whole = stored(log)
    (path,) = files(disk, ".log")
    disk.open(path).append([b"half of a batch"])
    killed(disk, ONE_SEGMENT)
    assert disk.durable_bytes(path) == b"".join(whole)


def test_a_taken_back_write_is_gone_for_good_before_the_log_goes_on_in_a_new_segment() -> None:
    """Else a power cut brings it back, in the middle of the log."""
    for seed in CHANCES:
        disk = sim_disk(seed)
        log = open_log(disk)
        fill(log, 3)
        disk.capacity_bytes = limits.GIB
        disk.capacity_bytes -= disk.free_bytes(DIRECTORY) - 100  # room for so much
        with pytest.raises(DiskFullError):
            append(log, b"x" * 700)
        disk.capacity_bytes = None
        log.sync()
        (path,) = files(disk, ".log")
        whole = b"".join(stored(log))
        disk.power_cut()
        assert disk.durable_bytes(path) == whole


# -- dropping --------------------------------------------------------------------------------------


def log_to_drop(disk: SimDisk) -> Log:
    """Twenty durable batches of one producer, in several segments."""
    log = open_log(disk)
    for _ in range(20):
        append(log, b"x" * 200, producer=producer_at(log))
    log.sync()
    return log


def log_without_snapshot(disk: SimDisk) -> Log:
    """Twenty durable batches of one producer, in the segment that is being written."""
    log = open_log(disk, ONE_SEGMENT)
    for _ in range(20):
        append(log, b"x" * 200, producer=producer_at(log))
    log.sync()
    assert files(disk, ".producers") == []
    return log


@pytest.mark.parametrize("start", [14, 20])
def test_a_new_log_start_is_durable_before_files_go(start: int) -> None:
    """Segments missing above the log start would be damage."""
    disk = sim_disk()
    task = log_to_drop(disk).advance_log_start(start)
    assert task.paths
    stop_before(disk, {"remove"}, "*", task.run)
    assert durable_checkpoint(disk).log_start_offset == start


def test_the_segment_that_carries_the_end_has_a_durable_name_before_the_others_go() -> None:
    disk = sim_disk()
    task = log_to_drop(disk).advance_log_start(20)
    stop_before(disk, {"remove"}, "*", task.run)
    assert disk.durable_bytes(f"{DIRECTORY}/{20:020d}.log") == b""


def test_producers_are_saved_before_the_batches_go_that_tell_of_them() -> None:
    for seed in CHANCES:
        disk = sim_disk(seed)
        task = log_without_snapshot(disk).advance_log_start(20)
        stop_before(disk, {"remove"}, "*.log", task.run)
        disk.faults.clear()
        log = after_power_cut(disk)
        assert append(log, b"next", producer=producer_at(log)).duplicate is False


def test_producers_are_saved_before_the_new_start_is_durable() -> None:
    """From then on the next process may find it, and finish the deletion."""
    disk = sim_disk()
    task = log_without_snapshot(disk).advance_log_start(20)
    stop_before(disk, {"write"}, "*/checkpoint", task.run)
    assert disk.durable_bytes(f"{DIRECTORY}/{20:020d}.producers")


def test_a_segment_waits_until_a_snapshot_can_keep_its_producers() -> None:
    """One of batches that are not durable yet would not outlive a power cut."""
    for seed in CHANCES:
        disk = sim_disk(seed)
        log = open_log(disk)
        for _ in range(2):
            append(log, b"x" * 800, producer=producer_at(log))
        fill(log, 1, size=800)
        assert [segment.base_offset for segment in log._segments] == [0, 2]
        log._files.cut_snapshots(0)
        log = killed(disk)
        fill(log, 1, sync=False)
        log.advance_log_start(2).run()
        log = after_power_cut(disk)
        assert append(log, b"next", producer=(7, 0, 2)).duplicate is False


def test_a_start_that_a_killed_process_had_not_synced_is_durable_before_files_go() -> None:
    disk = sim_disk()
    task = log_to_drop(disk).advance_log_start(14)
    stop_before(disk, {"sync"}, "*/checkpoint", task.run)
    disk.crash()
    disk.faults.clear()
    assert durable_checkpoint(disk).log_start_offset == 0
    stop_before(disk, {"remove"}, "*.log", lambda: open_log(disk))
    assert durable_checkpoint(disk).log_start_offset == 14


# -- truncating ------------------------------------------------------------------------------------


def log_to_cut(disk: SimDisk) -> Log:
    log = open_log(disk)
    for _ in range(20):
        append(log, b"x" * 200, producer=producer_at(log))
    log.close()
    return open_log(disk)


@pytest.mark.parametrize(("operation", "path"), [("remove", "*"), ("truncate", "*.log")])
def test_the_durable_end_goes_back_before_anything_goes(operation: str, path: str) -> None:
    """Bytes missing below the durable end would be damage."""
    disk = sim_disk()
    log = log_to_cut(disk)
    stop_before(disk, {operation}, path, lambda: log.truncate_to(8))
    assert durable_checkpoint(disk).durable_end_offset == 8


@pytest.mark.parametrize(("operation", "path"), [("remove", "*.log"), ("truncate", "*.log")])
def test_indexes_are_gone_for_good_before_what_they_cover(operation: str, path: str) -> None:
    """An index says that what it covers is durable."""
    disk = sim_disk()
    log = log_to_cut(disk)
    disk.sync_dir(DIRECTORY)
    cut = [s.index_path for s in log._segments if s.next_offset > 8]
    assert len(cut) > 1
    assert all(disk.durable_bytes(index) is not None for index in cut)
    stop_before(disk, {operation}, path, lambda: log.truncate_to(8))
    assert all(disk.durable_bytes(index) is None for index in cut)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_producers_as_of_the_cut_are_saved_before_later_snapshots_go(is_stopped: bool) -> None:
    """The batches that tell of them may be deleted already."""
    for seed in CHANCES:
        disk = sim_disk(seed)
        log = open_log(disk)
        for _ in range(3):
            append(log, b"x" * 200, producer=producer_at(log))
        fill(log, 17)
        log.advance_log_start(12).run()
        if is_stopped:
            stop_before(disk, {"remove"}, "*.producers", lambda log=log: log.truncate_to(13))
            disk.faults.clear()
        else:
            log.truncate_to(13)
        log = after_power_cut(disk)
        assert append(log, b"next", producer=(7, 0, 3)).duplicate is False


def test_a_snapshot_beyond_the_end_that_a_start_finds_never_counts_again() -> None:
    """A truncation was cut short just before it deleted that."""
    for seed in CHANCES:
        disk = sim_disk(seed)
        log = open_log(disk, ONE_SEGMENT)
        append(log, b"x", producer=(9, 0, 0))
        snapshot = log.producers.snapshot()
        log.truncate_to(0)
        log._files.write_snapshot(5, snapshot)
        fill(killed(disk, ONE_SEGMENT), 9)
        log = after_power_cut(disk, ONE_SEGMENT)
        assert log.log_end_offset == 9
        assert append(log, b"x", producer=(9, 0, 0)).duplicate is False


@pytest.mark.parametrize("offset", [8, 12])  # in a segment, and between two
@pytest.mark.parametrize("with_snapshots", [True, False])
def test_a_cut_is_durable_when_it_returns(offset: int, with_snapshots: bool) -> None:
    for seed in CHANCES:
        disk = sim_disk(seed)
        log = log_to_cut(disk)
        if not with_snapshots:
            log._files.cut_snapshots(0)
        assert (offset in [s.base_offset for s in log._segments]) == (offset == 12)
        log.truncate_to(offset)
        log = after_power_cut(disk)
        assert (log.log_end_offset, log.damage) == (offset, "")
        assert base_offsets_of(stored(log)) == list(range(offset))


def test_a_snapshot_of_batches_that_were_cut_never_counts_again() -> None:
    """The log grows past it with other batches, of another producer."""
    for seed in CHANCES:
        disk = sim_disk(seed)
        log = log_to_cut(disk)
        log.truncate_to(8)
        for _ in range(14):
            append(log, b"y" * 200)
        log.sync()
        log = after_power_cut(disk)
        assert append(log, b"seven again", producer=(7, 0, 8)).duplicate is False


@pytest.mark.parametrize("config", [SMALL, ONE_SEGMENT])
def test_a_log_that_was_closed_is_whole_after_a_power_cut(config: TopicConfig) -> None:
    for seed in CHANCES:
        disk = sim_disk(seed)
        log = open_log(disk, config)
        fill(log, 12, sync=False)
        expected = stored(log)
        log.close()
        assert stored(after_power_cut(disk, config)) == expected
