"""A compaction that comes to nothing: given up, overtaken, without room, or meeting damage."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import NoReturn

import pytest

from raftlog.disk import NO_ROOM
from raftlog.errors import DamagedLogError, StorageFailedError
from raftlog.storage.compaction import CLEANED_SUFFIX
from raftlog.testing.disk import Fault
from tests.storage.compactions import (
    COMPACT,
    batches,
    begin,
    compact,
    leftovers,
    log_of,
    offsets,
    put_each,
)
from tests.storage.logs import (
    DIRECTORY,
    NOW_MS,
    files,
    killed,
    sim_disk,
    stored,
)

# -- taking it back --------------------------------------------------------------------------------


def test_an_abandoned_ticket_leaves_no_trace() -> None:
    disk = sim_disk()
    log = log_of(disk)
    before, names = stored(log), disk.list_dir(DIRECTORY)
    for has_run in (False, True):
        task = begin(log)
        assert task is not None
        if has_run:
            task.run()
            assert leftovers(disk)
        log.abandon_compaction(task)
        assert leftovers(disk) == []
        assert stored(log) == before
    log.sync()
    assert set(disk.list_dir(DIRECTORY)) - {"compaction"} == set(names)
    log = killed(disk, COMPACT)
    assert stored(log) == before
    assert compact(log) == 1


def test_indexes_that_a_plan_has_removed_are_written_again() -> None:
    disk = sim_disk()
    log = log_of(disk)
    count = len(files(disk, ".index"))
    task = begin(log)
    assert task is not None
    task.run()
    assert len(files(disk, ".index")) < count
    log.abandon_compaction(task)
    log.sync()
    assert len(files(disk, ".index")) == count


class GivenUpError(Exception):
    pass


def test_a_pause_that_raises_ends_the_work() -> None:
    disk = sim_disk()
    log = log_of(disk)
    sizes: list[int] = []

    def pause(size_bytes: int) -> None:
        sizes.append(size_bytes)
        if len(sizes) == 12:
            raise GivenUpError

    task = begin(log)
    assert task is not None
    with pytest.raises(GivenUpError):
        task.run(pause)
    lengths = [batch.header.length for batch in batches(log)]
    assert sizes == [*lengths, *lengths[:3]], "once for each batch, of each reading"
    assert leftovers(disk) == []
    log.abandon_compaction(task)
    assert log._failure is None
    assert compact(log) == 1


def test_a_log_that_was_cut_meanwhile_has_no_use_for_it() -> None:
    for has_run in (False, True):
        disk = sim_disk()
        log = log_of(disk)
        task = begin(log)
        assert task is not None
        if has_run:
            task.run()
        log.truncate_to(5)
        kept = stored(log)
        if not has_run:
            task.run()
        log.complete_compaction(task)
        assert stored(log) == kept
        assert leftovers(disk) == []
        assert stored(killed(disk, COMPACT)) == kept


def test_a_log_that_was_dropped_from_meanwhile_has_no_use_for_it() -> None:
    for has_run in (False, True):
        disk = sim_disk()
        log = log_of(disk, b"abc" * 9)
        task = begin(log)
        assert task is not None
        if has_run:
            task.run()
        log.advance_log_start(18).run()
        kept = stored(log)
        if not has_run:
            task.run()  # what it was to read is gone
        log.complete_compaction(task)
        assert stored(log) == kept
        assert leftovers(disk) == []
        log.sync()
        assert compact(log) == 1
        assert offsets(log) == [24, 25, 26]


def test_a_log_that_was_begun_anew_has_no_use_for_it() -> None:
    disk = sim_disk()
    log = log_of(disk)
    task = begin(log)
    assert task is not None
    task.run()
    log.restart_at(100)
    log.complete_compaction(task)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    assert files(disk, ".log") == leftovers(disk) == []
    put_each(log, [b"a"])
    assert log.compaction.clean_end_offset == 0


def test_a_damaged_log_has_no_use_for_it_and_begins_none() -> None:
    disk = sim_disk()
    log = log_of(disk)
    task = begin(log)
    assert task is not None
    task.run()
    log.note_damage("bad", offset=8)
    log.complete_compaction(task)
    assert leftovers(disk) == []
    assert begin(log) is None
    assert log.dirty_ratio(now_ms=NOW_MS, high_watermark=9) == 0.0


def test_a_log_that_is_closed_leaves_what_was_decided_to_the_next_start() -> None:
    disk = sim_disk()
    log = log_of(disk)
    task = begin(log)
    assert task is not None
    task.run()
    log.close()
    log = killed(disk, COMPACT)
    assert offsets(log) == [6, 7, 8]
    assert leftovers(disk) == []
    assert log.compaction.clean_end_offset == 9


# -- trouble ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(NO_ROOM))
def test_without_room_the_log_goes_on_untouched(code: int) -> None:
    for skip in range(20):
        disk = sim_disk()
        log = log_of(disk)
        before = stored(log)
        task = begin(log)
        assert task is not None
        fault = Fault(("create", "write", "sync"), error=code, skip=skip, path="*/*c*")
        disk.faults.append(fault)
        with suppress(OSError):
            task.run()
        if fault.times:
            assert skip > 3
            break
        assert isinstance(task.error, OSError)
        assert task.error.errno == code
        log.abandon_compaction(task)
        disk.faults.clear()
        assert leftovers(disk) == []
        assert stored(log) == before
        put_each(log, [b"a"])
        log.sync()
        assert offsets(killed(disk, COMPACT)) == list(range(10))


def test_any_other_failure_to_write_ends_all_writing() -> None:
    disk = sim_disk()
    log = log_of(disk)
    task = begin(log)
    assert task is not None
    disk.faults.append(Fault(("sync",), path=f"*{CLEANED_SUFFIX}"))
    with pytest.raises(OSError, match="Input/output"):
        task.run()
    log.abandon_compaction(task)
    assert log._failure is not None
    assert begin(log) is None


def test_a_swap_that_fails_ends_all_writing_and_the_next_start_completes_it() -> None:
    disk = sim_disk()
    log = log_of(disk)
    task = begin(log)
    assert task is not None
    task.run()
    disk.faults.append(Fault(("rename",)))
    with pytest.raises(StorageFailedError, match="swapping segments"):
        log.complete_compaction(task)
    assert log._failure is not None
    assert offsets(killed(disk, COMPACT)) == [6, 7, 8]


def test_a_swap_needs_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, **_options: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files", path)

    disk = sim_disk()
    log = log_of(disk)
    task = begin(log)
    assert task is not None
    task.run()
    with monkeypatch.context() as patch:
        patch.setattr(disk, "open", refuse)
        log.complete_compaction(task)
    assert offsets(log) == [6, 7, 8]
    assert offsets(killed(disk, COMPACT)) == [6, 7, 8]


@pytest.mark.parametrize("offset", [0, 4, 8])
def test_damage_is_noted_and_nothing_past_it_is_compacted(offset: int) -> None:
    disk = sim_disk()
    log = log_of(disk, b"aaabbbccc")
    segment = log._segments.segment_of(offset)
    position, header = segment.find(offset)
    disk.flip_bit(segment.path, 8 * (position + header.length - 1))
    task = begin(log)
    assert task is not None
    with pytest.raises(DamagedLogError, match=f"at byte {position}"):
        task.run()
    assert leftovers(disk) == []
    log.abandon_compaction(task)
    assert log.readable_end_offset == offset
    assert "is corrupt" in log.damage
    assert begin(log) is None


def test_batches_that_do_not_follow_on_each_other_are_damage() -> None:
    disk = sim_disk()
    log = log_of(disk, b"aaabbbccc")
    other = log_of(sim_disk(2), b"xaabbbccc")
    (_, first), (position, _) = list(other._segments[0].headers())[:2]
    foreign = other._segments[0].pread(first.length, 0)
    disk._file(log._segments[0].path).data[: first.length] = foreign
    task = begin(log)
    assert task is not None
    with pytest.raises(DamagedLogError, match=f"at byte {position}: hash chain does not match"):
        task.run()
    log.abandon_compaction(task)
    assert log.readable_end_offset == 1


def test_a_look_that_meets_damage_says_so() -> None:
    disk = sim_disk()
    log = log_of(disk, b"a" * 9, min_compaction_lag_ms=1)
    disk.cut_off(log._segments[0].path, 10)
    with pytest.raises(DamagedLogError):
        begin(log, now_ms=NOW_MS + 10)
