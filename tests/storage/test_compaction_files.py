"""The file ``compaction``, and cleaned segments that take their places, also when done again."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from raftlog.errors import DamagedLogError
from raftlog.storage import inspect
from raftlog.storage.compaction import (
    NAME,
    CleanPart,
    CompactionFiles,
    CompactionState,
    Swap,
    segment_paths,
)
from raftlog.storage.segment import LOG_SUFFIX, file_name
from raftlog.testing.disk import Fault, SimDisk, Stopped
from tests.storage.compactions import COMPACT, begin, config_with, offsets, put_each, seal
from tests.storage.harm import overwrite, problems
from tests.storage.logs import DIRECTORY, after_power_cut, files, killed, open_log, sim_disk, stored

STATE = CompactionState((CleanPart(50, 1, 3),))
LOST = CompactionState(tombstones_removed_below=33)
OLD = b"o" * 10
NEW = b"n" * 25


def files_on(disk: SimDisk) -> CompactionFiles:
    disk.make_dirs(DIRECTORY)
    return CompactionFiles(disk, DIRECTORY)


def log_path(base_offset: int) -> str:
    return f"{DIRECTORY}/{file_name(base_offset, LOG_SUFFIX)}"


def content(disk: SimDisk, suffix: str = ".log") -> dict[str, bytes]:
    return {path[-8:]: disk.read_file(path, bytes_max=100) for path in files(disk, suffix)}


def with_segments(disk: SimDisk) -> CompactionFiles:
    """Three segments, and the cleaned file that is to replace the first two."""
    found = files_on(disk)
    for base in (0, 10, 20):
        overwrite(disk, log_path(base), OLD)
    overwrite(disk, found.cleaned_path(0), NEW)
    return found


SWAP = Swap((0, 10), len(NEW))
SWAPPED = {"0000.log": NEW, "0020.log": OLD}


# -- the state -------------------------------------------------------------------------------------


def test_a_state_is_durable_and_read_back() -> None:
    disk = sim_disk()
    found = files_on(disk)
    assert found.read() == (CompactionState(), ())
    found.write(STATE, [SWAP])
    disk.power_cut()
    assert files_on(disk).read() == (STATE, (SWAP,))


def test_without_room_a_lost_state_is_better_than_a_wrong_one() -> None:
    disk = sim_disk()
    found = files_on(disk)
    found.write(STATE)
    disk.faults.append(Fault(("write",), error=errno.ENOSPC))
    found.replace(STATE.cut(20))
    disk.power_cut()
    with pytest.raises(DamagedLogError):
        files_on(disk).read()
    assert files_on(disk).recover([], high_watermark=33) == (LOST, "")
    disk.faults.append(Fault(("write",)))
    with pytest.raises(OSError, match="Input/output"):
        files_on(disk).replace(STATE)


def test_a_log_that_ends_below_has_no_more_than_that_clean() -> None:
    disk = sim_disk()
    found = files_on(disk)
    found.write(STATE)
    changes = disk.changes
    assert found.keep_up_to(STATE, 50) == STATE
    assert disk.changes == changes
    assert found.keep_up_to(STATE, 30) == STATE.cut(30)
    disk.power_cut()
    assert files_on(disk).read() == (STATE.cut(30), ())


# -- swaps -----------------------------------------------------------------------------------------


def test_a_cleaned_file_takes_the_place_of_its_segments() -> None:
    disk = sim_disk()
    found = with_segments(disk)
    for _ in range(2):
        found.carry_out([SWAP])
        assert content(disk) == SWAPPED
        assert found.leftovers() == []


@pytest.mark.parametrize("size", [0, 24, 26])
def test_a_cleaned_file_that_is_not_what_it_should_be_replaces_nothing(size: int) -> None:
    disk = sim_disk()
    found = with_segments(disk)
    overwrite(disk, found.cleaned_path(0), b"x" * size)
    found.carry_out([SWAP])
    assert content(disk) == dict.fromkeys(("0000.log", "0010.log", "0020.log"), OLD)


def test_a_start_carries_out_what_was_decided_and_removes_what_was_not() -> None:
    disk = sim_disk()
    found = with_segments(disk)
    found.write(STATE, [SWAP])
    overwrite(disk, found.cleaned_path(20), NEW)
    notes: list[str] = []
    assert found.recover(notes, high_watermark=0) == (STATE, "")
    assert (content(disk), found.leftovers(), notes) == (SWAPPED, [], [])
    disk.power_cut()
    assert content(disk) == SWAPPED
    assert found.read() == (STATE, ())


def test_a_swap_is_done_again_where_only_a_part_of_it_was_durable() -> None:
    disk = sim_disk()
    found = with_segments(disk)
    found.write(STATE, [SWAP])
    disk.rename(found.cleaned_path(0), log_path(0))  # and 10 is there still
    assert found.recover([], high_watermark=0) == (STATE, "")
    assert content(disk) == SWAPPED


def test_names_are_durable_before_the_swaps_are_forgotten() -> None:
    disk = sim_disk()
    found = with_segments(disk)
    found.write(STATE, [SWAP])
    disk.faults.append(Fault(("write",), path=f"*/{NAME}*"))
    with pytest.raises(OSError, match="Input/output"):
        found.recover([], high_watermark=0)
    disk.faults.clear()
    assert disk.durable_bytes(log_path(0)) == NEW
    assert disk.durable_bytes(log_path(10)) is None


# -- a file that cannot be read --------------------------------------------------------------------


def test_a_damaged_state_is_no_loss() -> None:
    disk = sim_disk()
    found = files_on(disk)
    overwrite(disk, f"{DIRECTORY}/{NAME}", b"rotten")
    notes: list[str] = []
    assert found.recover(notes, high_watermark=33) == (LOST, "")
    assert "counts as never compacted" in notes[0]
    assert found.read() == (LOST, ()), "tombstones may be missing, also after the next start"


def test_a_damaged_state_in_the_middle_of_a_compaction_is_damage_and_nothing_is_touched() -> None:
    disk = sim_disk()
    log = open_log(disk, COMPACT)
    put_each(log, [b"a"] * 20)
    seal(log)
    task = begin(log)
    assert task is not None
    task.run()
    overwrite(disk, f"{DIRECTORY}/{NAME}", b"rotten")
    disk.crash()
    before = disk.list_dir(DIRECTORY)
    log = open_log(disk, COMPACT)
    assert "a compaction was in progress" in log.damage
    assert (log.log_start_offset, log.readable_end_offset) == (0, 0)
    assert log.log_end_offset == 20
    with pytest.raises(DamagedLogError):
        log.read(start_offset=0, end_offset=20, bytes_max=1)
    assert disk.list_dir(DIRECTORY) == before


# -- looking at it meanwhile -----------------------------------------------------------------------


def test_an_inspector_sees_what_a_start_would_find() -> None:
    """At every moment between the decision and the next start, and it changes nothing."""
    for done in range(8):
        disk = sim_disk()
        log = open_log(disk, config_with(segment_bytes=2_000))
        put_each(log, [b"a", b"b"] * 8, size=100)
        seal(log)
        for _ in range(2):  # the second time segments are small enough to be joined
            put_each(log, [b"c"])
            seal(log)
            task = begin(log)
            assert task is not None
            task.run()
            if _ == 0:
                log.complete_compaction(task)
                log.sync()
        assert any(len(swap.replaced) > 1 for swap, _segment in task.cleaned)
        disk.faults.append(Fault(error=None, skip=done))
        with suppress(Stopped):
            log.complete_compaction(task)
        disk.faults.clear()
        disk.crash()
        before = disk.list_dir(DIRECTORY)
        (report,) = inspect.verify(disk, DIRECTORY)
        assert report.problems == []
        shown = [row.data for row in inspect.dump(disk, DIRECTORY)]
        assert disk.list_dir(DIRECTORY) == before
        log = killed(disk, COMPACT)
        assert stored(log) == shown
        assert (report.log_end_offset, len(offsets(log))) == (18, 3)
        assert problems(disk) == set()
        assert stored(after_power_cut(disk, COMPACT)) == shown


def test_paths_of_a_log_that_was_never_compacted() -> None:
    disk = sim_disk()
    files_on(disk)
    assert segment_paths(disk, DIRECTORY) == {}
    for base in (20, 0):
        overwrite(disk, log_path(base), OLD)
    assert list(segment_paths(disk, DIRECTORY).items()) == [(0, log_path(0)), (20, log_path(20))]
    overwrite(disk, f"{DIRECTORY}/{NAME}", b"rotten")
    assert list(segment_paths(disk, DIRECTORY)) == [0, 20]
