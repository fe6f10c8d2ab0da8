"""The plan of a compaction: what is clean, what is due, what goes into one segment."""

from __future__ import annotations

import errno
import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import ChainMismatchError, CorruptBatchError, DamagedLogError
from raftlog.record import parse_header
from raftlog.storage import Log, compaction, inspect
from raftlog.storage.checkpoint import decode_slots
from raftlog.storage.compaction import (
    CLEANED_SUFFIX,
    KEY_BYTES,
    NAME,
    PASSES_REMEMBERED,
    CleanPart,
    CompactionFiles,
    CompactionState,
    CompactionTask,
    Hashes,
    LastPass,
    OffsetMap,
    SegmentInfo,
    Swap,
    dirty_ratio,
    first_groups,
    groups,
    hash_keys,
    prime_from,
    segment_paths,
)
from raftlog.storage.segment import LOG_SUFFIX, file_name
from raftlog.testing.disk import Fault, SimDisk, Stopped
from tests.record.batches import resealed
from tests.storage.compacted import final_state, newest_of_producers
from tests.storage.compactions import (
    COMPACT,
    DAY_MS,
    HOUR_MS,
    batches,
    begin,
    compact,
    config_with,
    keys_and_values,
    log_of,
    offsets,
    put,
    put_each,
    rows,
    seal,
)
from tests.storage.harm import overwrite, problems
from tests.storage.logs import (
    DIRECTORY,
    NOW_MS,
    after_power_cut,
    append,
    files,
    killed,
    open_log,
    searched,
    sim_disk,
    stored,
)
from tests.storage.model import as_model

LAST = LastPass(began_ms=5, bytes_before=100, bytes_after=60, records_removed=4)


def state_of(*parts: tuple[int, int, int]) -> CompactionState:
    return CompactionState(tuple(CleanPart(*part) for part in parts))


def segments_of(*sizes: int, dirty_from: int = 0) -> list[SegmentInfo]:
    """One for each of ``sizes``, of ten records each; dirty from a number on."""
    return [
        SegmentInfo(10 * number, 10 * number + 10, size, size if number >= dirty_from else 0)
        for number, size in enumerate(sizes)
    ]


# -- the state -------------------------------------------------------------------------------------


def test_nothing_is_clean_at_first() -> None:
    state = CompactionState()
    assert state.clean_end_offset == 0
    assert state.tombstones_due_below(now_ms=10, retention_ms=0) == 0
    assert not state.has_only_due_tombstones(now_ms=10, retention_ms=0)
    assert state.kept_parts(0) == ()


def test_each_pass_adds_a_part() -> None:
    state = CompactionState().after(50, due_below=0, tombstones=[3], last=LAST)
    assert (state.parts, state.last) == ((CleanPart(50, 5, 3),), LAST)
    state = state.after(80, due_below=0, tombstones=[2, 1], last=LAST._replace(began_ms=9))
    assert state.parts == (CleanPart(50, 5, 2), CleanPart(80, 9, 1))
    assert state.clean_end_offset == 80


def test_a_pass_without_anything_new_lets_no_tombstone_begin_anew() -> None:
    state = state_of((50, 5, 3), (80, 9, 2))
    again = state.after(80, due_below=50, tombstones=[2, 0], last=LAST._replace(began_ms=30))
    assert again.parts == (CleanPart(80, 9, 2),)
    # All have served their time: none is left, and the end is remembered.
    again = state.after(80, due_below=80, tombstones=[0], last=LAST._replace(began_ms=30))
    assert again.parts == (CleanPart(80, 30, 0),)


def test_tombstones_are_due_once_their_part_is_clean_for_long_enough() -> None:
    state = state_of((50, 100, 1), (80, 200, 1))
    for now_ms, due_below in ((109, 0), (110, 50), (209, 50), (210, 80)):
        assert state.tombstones_due_below(now_ms=now_ms, retention_ms=10) == due_below
    assert not state.has_only_due_tombstones(now_ms=209, retention_ms=10)
    assert state.has_only_due_tombstones(now_ms=210, retention_ms=10)
    assert not state_of((80, 1, 0)).has_only_due_tombstones(now_ms=210, retention_ms=10)


def test_a_clock_that_goes_back_makes_nothing_due_too_early() -> None:
    state = state_of((50, 100, 1), (80, 20, 1))
    assert state.tombstones_due_below(now_ms=60, retention_ms=10) == 0


def test_parts_are_not_remembered_without_end() -> None:
    state = CompactionState()
    for number in range(1, PASSES_REMEMBERED + 10):
        counts = [part.tombstones for part in state.parts] + [1]
        last = LAST._replace(began_ms=number)
        state = state.after(10 * number, due_below=0, tombstones=counts, last=last)
        assert sum(part.tombstones for part in state.parts) == number
    assert len(state.parts) == PASSES_REMEMBERED
    assert state.parts[0] == CleanPart(100, 10, 10), "the oldest go with the one after them"


def test_a_cut_makes_what_comes_after_it_dirty() -> None:
    state = CompactionState(state_of((50, 1, 3), (80, 2, 1)).parts, LAST)
    assert state.cut(80) == state.cut(1_000) == state
    assert state.cut(79).parts == (CleanPart(50, 1, 3), CleanPart(79, 2, 1))
    assert state.cut(50).parts == (CleanPart(50, 1, 3),)
    assert state.cut(49).parts == (CleanPart(49, 1, 3),)
    assert state.cut(0).parts == ()
    assert state.cut(0).last == LAST


@given(ends=st.lists(st.integers(1, 100), unique=True).map(sorted), end=st.integers(0, 100))
def test_a_cut_keeps_the_order_of_parts(ends: list[int], end: int) -> None:
    state = state_of(*((offset, offset, 1) for offset in ends)).cut(end)
    found = [part.end_offset for part in state.parts]
    assert found == sorted(set(found))
    assert state.clean_end_offset == min(end, max(ends, default=0))


def test_a_state_is_written_and_read() -> None:
    for state in (CompactionState(), CompactionState(state_of((50, 1, 3)).parts, LAST)):
        assert CompactionState.from_json(json.loads(json.dumps(state.to_json()))) == state


# -- segments --------------------------------------------------------------------------------------


def test_the_ratio_is_the_share_of_dirty_bytes() -> None:
    assert dirty_ratio([]) == 0
    assert dirty_ratio(segments_of(100, 100, dirty_from=2)) == 0
    assert dirty_ratio(segments_of(300, 100, dirty_from=1)) == 0.25
    assert dirty_ratio(segments_of(300, 100)) == 1


def sizes(grouped: list[list[SegmentInfo]]) -> list[list[int]]:
    return [[segment.size_bytes for segment in group] for group in grouped]


def test_neighbours_become_one_as_long_as_they_fit() -> None:
    assert groups([], segment_bytes=10) == []
    found = groups(segments_of(40, 40, 40, 100, 500, 1, 1), segment_bytes=100)
    assert sizes(found) == [[40, 40], [40], [100], [500], [1, 1]]


def test_a_ticket_has_one_group_at_least_and_no_more_than_there_is_room_for() -> None:
    grouped = groups(segments_of(60, 60, 60), segment_bytes=100)
    for bytes_max, count in ((0, 1), (60, 1), (119, 1), (120, 2), (1_000, 3)):
        assert first_groups(grouped, bytes_max=bytes_max) == grouped[:count]
    assert first_groups([], bytes_max=5) == []


def test_below_which_tombstones_are_missing_grows_with_parts_that_have_some() -> None:
    state = state_of((50, 100, 1), (80, 200, 0), (90, 300, 2))
    assert state.removing_tombstones(0).tombstones_removed_below == 0
    assert state.removing_tombstones(80).tombstones_removed_below == 50
    state = state.removing_tombstones(90)
    assert state.tombstones_removed_below == 90
    assert state.lacking_tombstones(40) == state, "it never goes back"
    after = state.after(120, due_below=90, tombstones=[0], last=LAST)
    assert after.tombstones_removed_below == 90
    assert after.cut(70).tombstones_removed_below == 70
    assert CompactionState.from_json(json.loads(json.dumps(after.to_json()))) == after


def test_a_state_of_an_older_release_may_lack_tombstones_below_its_first_part() -> None:
    old = {"parts": [[50, 100, 1], [80, 200, 0]], "last": None}
    assert CompactionState.from_json(old).tombstones_removed_below == 50
    assert CompactionState.from_json({"parts": [], "last": None}).tombstones_removed_below == 0


# -- cleaner ---------------------------------------------------------------------------------------
#
# A compaction at work: in which order it makes things durable, what it holds and what it writes.
#
# What it keeps is in ``test_compactor``; what is left of it by a crash, in
# ``test_compaction_crashes``.


CLEANED = f"*{CLEANED_SUFFIX}"
PLAN = f"*/{NAME}*"


def ready(disk: SimDisk, keys: bytes = b"abcabcabc") -> tuple[Log, CompactionTask]:
    log = open_log(disk, COMPACT)
    put_each(log, [bytes([letter]) for letter in keys])
    seal(log)
    task = begin(log)
    assert task is not None
    return log, task


def stopped_before(disk: SimDisk, task: CompactionTask, operation: str, path: str) -> None:
    """Run ``task``; end the process before the first such operation."""
    disk.faults.append(Fault((operation,), error=None, path=path))
    with pytest.raises(Stopped):
        task.run()
    disk.faults.clear()
    disk.crash()


# -- what is durable when --------------------------------------------------------------------------


def test_cleaned_files_are_durable_before_it_is_decided_that_they_take_their_places() -> None:
    disk = sim_disk()
    _log, task = ready(disk, b"abc" * 9)
    stopped_before(disk, task, "create", PLAN)
    assert len(task.cleaned) > 2
    for path in files(disk, CLEANED_SUFFIX):
        assert disk.durable_bytes(path) == disk.read_file(path, bytes_max=10_000)


def test_old_indexes_are_gone_for_good_before_it_is_decided() -> None:
    """One that came back would be taken for that of the cleaned segment."""
    disk = sim_disk()
    log, task = ready(disk)
    log._disk.sync_dir(DIRECTORY)
    indexes = files(disk, ".index")
    stopped_before(disk, task, "create", PLAN)
    assert len(indexes) > 1
    assert [path for path in indexes if disk.durable_bytes(path) is not None] == []


def test_what_old_indexes_say_is_durable_elsewhere_before_they_go() -> None:
    """They vouch for the log: without them a rotten batch would be taken for a torn one."""
    disk = sim_disk()
    log = open_log(disk, COMPACT)
    for keys in (b"a", b"bcabcabc"):  # only the first checkpoint is synced with its records
        put_each(log, [bytes([letter]) for letter in keys])
        seal(log)
    task = begin(log)
    assert task is not None
    stopped_before(disk, task, "remove", "*.index")
    slots = decode_slots(disk.durable_bytes(f"{DIRECTORY}/checkpoint") or b"")
    assert slots is not None
    assert slots[1].durable_end_offset == log.durable_end_offset == 9


def swapped(disk: SimDisk) -> Log:
    """A log whose swaps are not settled, nor are their names durable."""
    log, task = ready(disk)
    task.run()
    log.complete_compaction(task)
    assert CompactionFiles(disk, DIRECTORY).read()[1]
    return log


def test_swaps_are_settled_before_a_file_of_the_same_name_is_made() -> None:
    disk = sim_disk()
    log = swapped(disk)
    put_each(log, [b"a"] * 3)
    seal(log)
    task = begin(log)
    assert task is not None
    stopped_before(disk, task, "create", CLEANED)
    disk.power_cut()
    state, swaps = CompactionFiles(disk, DIRECTORY).read()
    assert (state.clean_end_offset, swaps) == (9, ())


def test_new_names_are_durable_before_swaps_are_settled() -> None:
    disk = sim_disk()
    log = swapped(disk)
    log._sealed.clear()  # so that no sync comes first
    log._new_names = False
    task = begin(log, now_ms=1 << 44)
    assert task is None, "nothing is due"
    put_each(log, [b"a"] * 3)
    log._segments[-1].file.sync()
    log.durable_end_offset = log.log_end_offset
    log.roll_if_due(now_ms=1 << 44)
    log._files.snapshot_offset = log.log_end_offset
    log._sealed.clear()
    log._unsynced.clear()
    task = begin(log)
    assert task is not None
    stopped_before(disk, task, "create", PLAN)
    assert disk.durable_bytes(files(disk, ".log")[0]) == disk.read_file(
        files(disk, ".log")[0], bytes_max=10_000
    )


@pytest.mark.parametrize("ends", ["cut", "restart", "close"])
def test_new_names_are_durable_before_swaps_are_forgotten(ends: str) -> None:
    disk = sim_disk()
    log = swapped(disk)
    log._new_names = False
    log._sealed.clear()
    path = files(disk, ".log")[0]
    written = disk.read_file(path, bytes_max=10_000)
    disk.faults.append(Fault(("create",), error=None, path=PLAN))
    act = {"cut": lambda: log.truncate_to(8), "restart": lambda: log.restart_at(50)}
    with pytest.raises(Stopped):
        act.get(ends, log.close)()
    disk.faults.clear()
    disk.crash()
    assert disk.durable_bytes(path) == written


def test_the_clean_end_is_lowered_durably_before_the_log_is_cut() -> None:
    disk = sim_disk()
    log, _ = open_log(disk, COMPACT), None
    put_each(log, [bytes([letter]) for letter in b"abcdefghi"])
    seal(log)
    compact(log)
    assert CompactionFiles(disk, DIRECTORY).read()[0].clean_end_offset == 9
    disk.faults.append(Fault(("truncate", "remove"), error=None, path="*.log"))
    with pytest.raises(Stopped):
        log.truncate_to(5)
    disk.faults.clear()
    disk.power_cut()
    assert CompactionFiles(disk, DIRECTORY).read()[0].clean_end_offset <= 5


def test_a_plan_that_was_not_written_for_sure_is_left_to_the_next_start() -> None:
    """The write failed, and perhaps only its last step: then the next start carries it out, and
    needs the cleaned files."""
    disk = sim_disk()
    log, task = ready(disk)
    before = stored(log)
    disk.faults.append(Fault(("sync_dir",), skip=1))
    with pytest.raises(OSError, match="Input/output"):
        task.run()
    assert task.is_unsure
    assert files(disk, CLEANED_SUFFIX) != []
    log.abandon_compaction(task)
    assert log._failure is not None
    assert stored(log) == before
    assert offsets(killed(disk, COMPACT)) == [6, 7, 8]


# -- what it holds ---------------------------------------------------------------------------------


def test_files_are_read_and_written_in_large_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_WRITE_BYTES", 1_000)
    monkeypatch.setattr(compaction, "_READ_BYTES", 700)
    monkeypatch.setattr(compaction, "_SYNC_BYTES", 3_000)
    disk = sim_disk()
    log = open_log(disk, config_with(segment_bytes=20_000, max_message_bytes=1_000))
    put_each(log, [b"%d" % number for number in range(60)], size=100)
    seal(log)
    before = rows(log)
    task = begin(log)
    assert task is not None
    syncs = Fault(("sync",), path=CLEANED, times=0)
    disk.faults.append(syncs)
    task.run()
    log.complete_compaction(task)
    assert rows(log) == before
    headers = [parse_header(batch) for batch in stored(log)]
    assert all(header.length <= 1_100 for header in headers)
    assert len(headers) < 15


def test_a_write_has_no_more_pieces_than_the_system_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """pwritev takes 1024 at a time."""
    monkeypatch.setattr(compaction, "_WRITE_BUFFERS", 8)
    disk = sim_disk()
    log = open_log(disk, config_with(segment_bytes=100_000))
    for number in range(60):
        put(log, (b"%d" % number, b"v"), producer=(number, 0, 0))
    put_each(log, [b"0"])
    seal(log)
    counts: list[int] = []
    open_file = disk.open

    def open_counting(path: str, *, create: bool = False, write: bool = True, pooled: bool = False):
        file = open_file(path, create=create, write=write)
        append = file.append
        file.append = lambda buffers: (counts.append(len(buffers)), append(buffers))
        return file

    monkeypatch.setattr(disk, "open", open_counting)
    compact(log)
    assert counts
    assert max(counts) <= 8 + 2
    assert len(offsets(log)) == 60


def test_small_batches_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for chunk_records in (1, 3, 1_000):
        monkeypatch.setattr(compaction, "_CHUNK_RECORDS", chunk_records)
        log, _ = open_log(sim_disk(), COMPACT), None
        put_each(log, [b"%d" % (number % 7) for number in range(30)], size=20)
        put(log, (None, b"x"))
        seal(log)
        compact(log)
        assert offsets(log) == [*range(23, 31)]


def test_a_segment_that_loses_nothing_is_left_alone() -> None:
    disk = sim_disk()
    log = open_log(disk, config_with(segment_bytes=100_000))
    put(log, *((b"%d" % number, b"x" * 1_000) for number in range(90)))
    seal(log)
    before = log._segments[0]
    assert compact(log) == 1
    assert log._segments[0] is before
    assert files(disk, CLEANED_SUFFIX) == []
    assert log.compaction.clean_end_offset == 90


def test_a_file_that_ends_too_early_is_damage() -> None:
    disk = sim_disk()
    log, task = ready(disk)
    path = log._segments[0].path
    disk.cut_off(path, log._segments[0].size_bytes - 1)
    with pytest.raises(DamagedLogError, match="is corrupt at byte"):
        task.run()
    log.abandon_compaction(task)
    assert 0 < log.readable_end_offset < 9


# -- compaction files ------------------------------------------------------------------------------
#
# The file ``compaction``, and cleaned segments that take their places, also when done again.


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


def test_a_state_that_a_full_disk_has_lost_is_no_damage_in_the_middle_of_a_compaction() -> None:
    """It had no swaps: the cleaned file is that of a pass which has replaced nothing."""
    disk = sim_disk()
    found = files_on(disk)
    overwrite(disk, f"{DIRECTORY}/{NAME}", b"")
    overwrite(disk, found.cleaned_path(0), b"part of a segment")
    assert found.recover([], high_watermark=33) == (LOST, "")
    assert found.leftovers() == []


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


# -- compactor -------------------------------------------------------------------------------------
#
# Tests of raftlog.storage.compaction: when a pass is due, and what it keeps.


# -- what is kept ----------------------------------------------------------------------------------


def test_the_last_record_of_each_key_is_kept_at_its_offset() -> None:
    log = log_of(sim_disk(), b"abcabxaby")
    before = rows(log)
    assert compact(log) == 1
    assert offsets(log) == [2, 5, 6, 7, 8]
    assert rows(log) == [row for row in before if row.offset in offsets(log)]
    assert (log.log_start_offset, log.log_end_offset) == (0, 9)


def test_a_record_without_a_key_is_kept() -> None:
    """They may be there from before the topic was compacted; nothing says what replaces them."""
    log = open_log(sim_disk(), COMPACT)
    for _ in range(3):
        put(log, (None, b"1"), (b"a", b"2"), (None, None), (b"", b"empty"))
    seal(log)
    compact(log)
    assert offsets(log) == [0, 2, 4, 6, 8, 9, 10, 11]


def test_the_active_segment_is_never_touched() -> None:
    log = log_of(sim_disk(), b"aaaa")
    put_each(log, [b"a", b"a"])
    log.sync()
    active = stored(log, 4)
    compact(log)
    assert offsets(log) == [3, 4, 5]
    assert stored(log, 4) == active


def test_only_what_is_committed_durable_and_in_a_snapshot_is_compacted() -> None:
    log = log_of(sim_disk(), b"a" * 30)
    ends = [segment.next_offset for segment in log._segments]
    assert begin(log, high_watermark=ends[0] - 1) is None
    task = begin(log, high_watermark=ends[1])
    assert task is not None
    assert task.work.limit == ends[1]
    log.abandon_compaction(task)
    log._files.snapshot_offset = ends[0]
    task = begin(log)
    assert task is not None
    assert task.work.limit == ends[0]
    log.abandon_compaction(task)
    log.durable_end_offset = ends[0] - 1
    assert begin(log) is None


def test_segments_become_as_few_as_their_size_allows() -> None:
    log = log_of(sim_disk(), b"a" * 40)
    count = log.segment_count
    compact(log)
    assert log.segment_count == count  # each was as large as it may be
    put_each(log, [b"b"] * 40)
    seal(log)
    compact(log)
    assert log.segment_count < count + 2
    assert offsets(log) == [39, 79]


def test_epochs_are_as_they_were() -> None:
    disk = sim_disk()
    log = open_log(disk, COMPACT)
    for epoch in (0, 3, 4):
        put_each(log, [b"a"] * 5, leader_epoch=epoch)
    seal(log)
    epochs = list(log.epochs)
    compact(log)
    assert offsets(log) == [14]
    assert list(log.epochs) == epochs
    disk.remove(f"{DIRECTORY}/epochs")
    log.sync()
    assert list(killed(disk, COMPACT).epochs) == epochs


def test_producers_are_known_from_the_compacted_log_alone() -> None:
    disk = sim_disk()
    log = open_log(disk, COMPACT)
    for sequence in range(6):
        put(log, (b"a", b"x" * 200), producer=(7, 0, sequence))
        put(log, (b"a", b"x" * 200), (b"b", b"y"), producer=(8, 2, 2 * sequence))
    put(log, (b"a", b"last"))
    seal(log)
    compact(log)
    log.sync()
    assert offsets(log) == [17, 18]
    noted = newest_of_producers([batch.header for batch in batches(log)])
    assert noted == {7: (0, 16, 5), 8: (2, 18, 11)}
    for path in files(disk, ".producers"):
        disk.remove(path)
    log = killed(disk, COMPACT)
    table = as_model(log.producers)
    assert {id_: (p.epoch, p.sent[-1].last_sequence) for id_, p in table.items()} == {
        7: (0, 5),
        8: (2, 11),
    }
    assert append(log, b"x", keys=[b"a"], producer=(7, 0, 5)).duplicate
    put(log, (b"a", b"next"), producer=(7, 0, 6))


def test_a_producer_that_is_forgotten_leaves_no_batch() -> None:
    log = open_log(sim_disk(), COMPACT)
    put(log, (b"a", b"1"), producer=(7, 0, 0), now_ms=NOW_MS - 8 * DAY_MS)
    put_each(log, [b"a"] * 3)
    seal(log)
    log.producers.expire(now_ms=NOW_MS)
    compact(log)
    assert not any(batch.header.has_producer for batch in batches(log))


def test_deleted_records_go() -> None:
    log = log_of(sim_disk(), b"abcdef")
    log.advance_log_start(3).run()
    compact(log)
    segment = log._segments[0]
    assert segment.base_offset == 0
    assert [header.record_count for _, header in segment.headers()] == [3]
    assert offsets(log) == [3, 4, 5]


def test_a_deletion_that_is_not_durable_yet_may_come_undone() -> None:
    disk = sim_disk()
    log = log_of(disk, b"aabcdef")
    log.advance_log_start(3)
    compact(log)
    log = killed(disk, COMPACT)
    assert offsets(log) == [1, 2, 3, 4, 5, 6]


def test_no_pass_begins_before_a_deletion_of_segments_is_durable() -> None:
    """It may come undone: then older records stand below what counts as clean."""
    log = log_of(sim_disk(), b"abc" * 6)
    drop = log.advance_log_start(12)
    assert drop.paths
    assert begin(log) is None
    assert log.dirty_ratio(now_ms=NOW_MS, high_watermark=18) == 0.0
    drop.run()
    assert compact(log) == 1


# -- tombstones ------------------------------------------------------------------------------------


def with_tombstone(disk: SimDisk, **settings: object) -> Log:
    log = open_log(disk, config_with(delete_retention_ms=HOUR_MS, **settings))
    put_each(log, [b"a", b"b"])
    put(log, (b"a", None))
    put_each(log, [b"c"])
    seal(log)
    return log


def test_a_tombstone_stays_for_its_time_after_the_pass_that_met_it_first() -> None:
    log = with_tombstone(sim_disk())
    assert compact(log, now_ms=NOW_MS + 5 * HOUR_MS) == 1
    assert offsets(log) == [1, 2, 3]
    assert compact(log, now_ms=NOW_MS + 6 * HOUR_MS - 1) == 0
    assert compact(log, now_ms=NOW_MS + 6 * HOUR_MS) == 1
    assert offsets(log) == [1, 3]
    assert compact(log, now_ms=NOW_MS + 100 * HOUR_MS) == 0


def test_below_which_tombstones_are_missing_is_durable_before_the_first_is_removed() -> None:
    disk = sim_disk()
    log = with_tombstone(disk)
    compact(log, now_ms=NOW_MS)
    assert log.tombstones_removed_below == 0, "none was removed"
    task = begin(log, now_ms=NOW_MS + HOUR_MS, high_watermark=log.log_end_offset)
    assert task is not None
    task.run()
    assert (offsets(log), log.tombstones_removed_below) == ([1, 2, 3], 0)
    disk.power_cut()
    log = open_log(disk, log.config)
    assert (offsets(log), log.tombstones_removed_below) == ([1, 3], 4)
    log.truncate_to(2)
    assert log.tombstones_removed_below <= 2
    disk.power_cut()
    assert open_log(disk, log.config).tombstones_removed_below <= 2


def test_each_of_a_passs_tickets_tells_that_tombstones_are_missing() -> None:
    disk = sim_disk()
    log = with_tombstone(disk)
    put_each(log, [b"d"] * 40)
    seal(log)
    compact(log)
    put_each(log, [b"e"] * 40)
    seal(log)
    task = begin(log, now_ms=NOW_MS + HOUR_MS, task_bytes=1)
    assert task is not None
    task.run()
    log.complete_compaction(task)
    assert not task.work.is_done
    assert 2 not in offsets(log)
    assert log.tombstones_removed_below > 2
    log.sync()
    task = begin(log, now_ms=NOW_MS + HOUR_MS, task_bytes=1)
    assert task is not None
    task.run()  # which has settled what the one before it had planned
    disk.power_cut()
    assert open_log(disk, log.config).tombstones_removed_below > 2


def test_tombstones_stay_from_where_they_are_still_needed() -> None:
    log = with_tombstone(sim_disk())
    compact(log)
    later_ms = NOW_MS + HOUR_MS
    assert compact(log, now_ms=later_ms, tombstones_kept_from=2) == 0
    assert offsets(log) == [1, 2, 3]
    terms = {"now_ms": later_ms, "high_watermark": log.log_end_offset}
    assert not log.dirty_ratio(**terms, tombstones_kept_from=2)
    assert log.dirty_ratio(**terms, tombstones_kept_from=4)


def test_a_pass_for_new_records_takes_tombstones_that_are_due_along() -> None:
    log = with_tombstone(sim_disk())
    compact(log)
    put(log, (b"b", None))
    put_each(log, [b"c"])
    seal(log)
    compact(log, now_ms=NOW_MS + HOUR_MS)
    assert offsets(log) == [4, 5]
    assert [part.tombstones for part in log._compactor._state.parts] == [1]
    compact(log, now_ms=NOW_MS + 2 * HOUR_MS)
    assert offsets(log) == [5]


def test_a_tombstone_that_a_newer_record_replaces_goes_at_once() -> None:
    log = with_tombstone(sim_disk())
    put_each(log, [b"a"])
    seal(log)
    compact(log)
    assert offsets(log) == [1, 3, 4]


def test_since_when_the_log_is_clean_survives_a_restart() -> None:
    disk = sim_disk()
    log = with_tombstone(disk)
    compact(log)
    log.sync()
    log = after_power_cut(disk, log.config)
    log.sync()
    assert compact(log, now_ms=NOW_MS + HOUR_MS) == 1
    assert offsets(log) == [1, 3]


def test_without_its_state_a_log_counts_as_never_compacted() -> None:
    disk = sim_disk()
    log = with_tombstone(disk)
    compact(log)
    log.close()
    disk.write_atomic(f"{DIRECTORY}/compaction", b"rotten")
    log = killed(disk, log.config)
    assert log.damage == ""
    assert any("counts as never compacted" in note for note in log.notes)
    assert compact(log, now_ms=NOW_MS + HOUR_MS) == 1
    assert offsets(log) == [1, 2, 3], "its tombstones begin anew"
    assert compact(log, now_ms=NOW_MS + 2 * HOUR_MS) == 1
    assert offsets(log) == [1, 3]


# -- when ------------------------------------------------------------------------------------------


def test_nothing_is_due_for_another_policy_or_twice() -> None:
    assert begin(log_of(sim_disk(), cleanup_policy="delete")) is None
    log = log_of(sim_disk(), cleanup_policy="compact,delete", retention_ms=-1)
    assert log.dirty_ratio(now_ms=NOW_MS, high_watermark=9) == 1.0
    compact(log)
    assert begin(log) is None
    assert log.dirty_ratio(now_ms=NOW_MS, high_watermark=9) == 0.0


def test_the_share_of_dirty_bytes_decides() -> None:
    log = log_of(sim_disk(), b"abcdefghijkl", min_cleanable_dirty_ratio=0.5)
    compact(log)
    put_each(log, [b"a"] * 6)
    seal(log)
    assert begin(log) is None
    assert log.dirty_ratio(now_ms=NOW_MS, high_watermark=18) == 0.0
    put_each(log, [b"a"] * 7)
    seal(log)
    ratio = log.dirty_ratio(now_ms=NOW_MS, high_watermark=25)
    assert 0.5 <= ratio < 0.6
    assert compact(log) == 1


def test_young_records_stay_by_the_time_of_their_append() -> None:
    """A producer's clock makes no record old."""
    log = open_log(sim_disk(), config_with(min_compaction_lag_ms=HOUR_MS))
    put_each(log, [b"a"] * 12, timestamps_ms=NOW_MS - DAY_MS)
    late = NOW_MS + HOUR_MS
    put_each(log, [b"a"] * 12, now_ms=late)
    seal(log, now_ms=late)
    assert begin(log, now_ms=NOW_MS + HOUR_MS - 1) is None
    compact(log, now_ms=NOW_MS + HOUR_MS)
    kept = offsets(log)
    assert set(range(12, 24)) <= set(kept), "all that are young"
    assert len(kept) < 20
    compact(log, now_ms=late + HOUR_MS)
    assert offsets(log) == [23]


def test_old_records_are_compacted_however_few() -> None:
    settings = {"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": HOUR_MS}
    log = log_of(sim_disk(), b"aaaa", **settings)
    compact(log)
    put_each(log, [b"a"])
    assert not log.roll_if_due(now_ms=NOW_MS + HOUR_MS - 1)
    assert log.roll_if_due(now_ms=NOW_MS + HOUR_MS), "else it could not be compacted in time"
    log.sync()
    assert begin(log, now_ms=NOW_MS + HOUR_MS) is None
    assert compact(log, now_ms=NOW_MS + HOUR_MS + 1) == 1
    assert offsets(log) == [4]


def test_a_segment_without_records_is_as_old_as_its_appends() -> None:
    """Its end may be a committed offset of a group, so it stays as long as a record would."""
    log = log_of(sim_disk(), cleanup_policy="compact,delete", retention_ms=DAY_MS)
    put_each(log, [b"k"] * 30)
    seal(log)
    put_each(log, [b"k"])
    seal(log)
    compact(log)
    assert offsets(log)[0] > 0, "the first records were removed"
    end = log.log_end_offset
    assert log.apply_retention(now_ms=NOW_MS + DAY_MS - 1, high_watermark=end) is None
    task = log.apply_retention(now_ms=NOW_MS + 2 * DAY_MS, high_watermark=end)
    assert task is not None
    assert log.log_start_offset > 0


def test_a_log_that_is_not_compacted_rolls_by_segment_ms_alone() -> None:
    log = log_of(sim_disk(), b"a", cleanup_policy="delete", max_compaction_lag_ms=HOUR_MS)
    put_each(log, [b"a"])
    assert not log.roll_if_due(now_ms=NOW_MS + HOUR_MS)


def test_a_sync_or_another_ticket_is_in_the_way() -> None:
    log = log_of(sim_disk())
    put_each(log, [b"a"])
    sync = log.begin_sync()
    assert sync is not None
    assert begin(log) is None
    sync.run()
    log.complete_sync(sync)
    task = begin(log)
    assert task is not None
    assert begin(log) is None
    log.abandon_compaction(task)


def test_segments_that_a_sync_has_yet_to_index_wait() -> None:
    log = log_of(sim_disk(), b"a" * 20)
    log._sealed = [log._segments[1]]
    task = begin(log)
    assert task is not None
    assert task.work.limit == log._segments[0].next_offset


# -- memory and room -------------------------------------------------------------------------------


def test_any_number_of_keys_is_compacted_in_little_memory() -> None:
    log = open_log(sim_disk(), COMPACT)
    keys = [b"%d" % (number % 40) for number in range(120)]
    put_each(log, keys, size=50)
    seal(log)
    passes = 0
    ends = [0]
    while compact(log, memory_bytes=10 * 32):
        passes += 1
        ends.append(log.compaction.clean_end_offset)
        assert ends[-1] > ends[-2]
    assert ends[-1] == 120
    assert passes >= 12
    assert offsets(log) == list(range(80, 120))


def test_a_batch_with_more_keys_than_the_memory_holds_is_compacted_all_the_same() -> None:
    log = open_log(sim_disk(), COMPACT)
    for _ in range(2):
        put(log, *((b"%d" % number, b"v") for number in range(50)))
    seal(log)
    while compact(log, memory_bytes=1):
        pass
    assert offsets(log) == list(range(50, 100))


def test_a_large_log_takes_several_tasks() -> None:
    log = log_of(sim_disk(), b"abcdef" * 12)
    first = begin(log, task_bytes=4_000)
    assert first is not None
    first.run()
    log.complete_compaction(first)
    assert not first.work.is_done
    assert log.dirty_ratio(now_ms=NOW_MS, high_watermark=72) == 1.0, "it is to be gone on with"
    assert log.compaction.clean_end_offset == 0
    assert log.compaction.is_under_way
    assert compact(log, task_bytes=4_000) > 2
    assert log.compaction.clean_end_offset == 72
    assert not log.compaction.is_under_way
    assert offsets(log) == list(range(66, 72))


def test_a_ticket_takes_no_more_than_there_is_room_for() -> None:
    disk = sim_disk()
    log = log_of(disk, b"abcdef" * 12)
    disk.capacity_bytes = 0
    used = 1 << 40
    disk.capacity_bytes = used
    used -= disk.free_bytes(".")
    disk.capacity_bytes = used + 5_000
    task = begin(log)
    assert task is not None
    assert len(task.groups) == 2
    assert compact(log) == 0
    task.run()
    log.complete_compaction(task)


# -- offset map ------------------------------------------------------------------------------------
#
# Keys to their newest offset: against a dict, in the memory promised.


KEYS_MAX = 40
keys = st.integers(0, KEYS_MAX - 1).map(lambda number: b"key-%d" % number)


def hashes_of(*pairs: tuple[int, int]) -> Hashes:
    return np.array(pairs, np.uint64).reshape(-1, 2)


def offsets_of(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, np.int64)


@given(
    batches=st.lists(st.lists(keys, max_size=12), max_size=12),
    asked=st.lists(keys, max_size=20),
    seed=st.integers(0, (1 << 64) - 1),
)
def test_it_is_a_dict_of_the_newest_offset(
    batches: list[list[bytes]], asked: list[bytes], seed: int
) -> None:
    newest = OffsetMap(KEYS_MAX + 12)
    expected: dict[bytes, int] = {}
    offset = 0
    for batch in batches:
        offsets = np.arange(offset, offset + len(batch))
        newest.put(hash_keys(batch, seed=seed), offsets)
        expected |= dict(zip(batch, offsets.tolist(), strict=True))
        offset += len(batch) + 1
    assert len(newest) == len(expected)
    assert newest.room == KEYS_MAX + 12 - len(expected)
    found = newest.newest(hash_keys(asked, seed=seed)).tolist()
    assert found == [expected.get(key, -1) for key in asked]


@given(
    pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=16),
    keys_max=st.integers(16, 20),
)
def test_keys_that_want_the_same_slot_all_find_one(
    pairs: list[tuple[int, int]], keys_max: int
) -> None:
    """Hashes so small that they begin at few slots, and take few different steps."""
    newest = OffsetMap(keys_max)
    newest.put(hashes_of(*pairs), np.arange(len(pairs)))
    last = {pair: number for number, pair in enumerate(pairs)}
    assert len(newest) == len(last)
    every = [(first, second) for first in range(4) for second in range(4)]
    assert newest.newest(hashes_of(*every)).tolist() == [last.get(pair, -1) for pair in every]


def test_half_a_hash_is_not_enough() -> None:
    newest = OffsetMap(4)
    newest.put(hashes_of((1, 2)), offsets_of(7))
    assert newest.newest(hashes_of((1, 3), (2, 2), (1, 2))).tolist() == [-1, -1, 7]


def test_a_hash_of_zeros_and_an_offset_of_zero_are_a_key_like_any() -> None:
    newest = OffsetMap(2)
    assert newest.newest(hashes_of((0, 0))).tolist() == [-1]
    newest.put(hashes_of((0, 0)), offsets_of(0))
    assert newest.newest(hashes_of((0, 0))).tolist() == [0]


def test_offsets_are_of_64_bits() -> None:
    newest = OffsetMap(1)
    highest = (1 << 63) - 2
    newest.put(hashes_of((5, 5)), offsets_of(highest))
    assert newest.newest(hashes_of((5, 5))).tolist() == [highest]


@pytest.mark.parametrize("keys_max", [1, 2, 3, 1_000, 100_000])
def test_it_takes_the_memory_that_it_says_and_holds_as_many_keys(keys_max: int) -> None:
    newest = OffsetMap(keys_max)
    assert newest.size_bytes <= KEY_BYTES * keys_max * 1.01 + 400
    for first in range(0, keys_max, 4_096):
        numbers = range(first, min(first + 4_096, keys_max))
        newest.put(hash_keys((b"%d" % n for n in numbers), seed=1), np.array(numbers))
    assert (len(newest), newest.room) == (keys_max, 0)
    wanted = list(range(0, keys_max, 97))
    assert newest.newest(hash_keys((b"%d" % n for n in wanted), seed=1)).tolist() == wanted
    with pytest.raises(AssertionError):
        newest.put(hashes_of((1, 1)), offsets_of(1))


def test_another_seed_gives_other_hashes() -> None:
    one, other = (hash_keys([b"a", b"b"], seed=seed) for seed in (1, 2))
    assert one.shape == (2, 2)
    assert not np.isin(one, other).any()
    assert hash_keys([], seed=1).shape == (0, 2)


def test_primes() -> None:
    assert [prime_from(number) for number in (2, 3, 4, 14, 24, 90)] == [2, 3, 5, 17, 29, 97]


# -- compacted logs --------------------------------------------------------------------------------
#
# A log that was compacted: cutting it, reading it, starting it again, looking at it.


# -- a cut afterwards ------------------------------------------------------------------------------


def test_a_cut_makes_what_comes_after_it_dirty_again() -> None:
    disk = sim_disk()
    log = log_of(disk, b"abcdefghi")
    compact(log)
    log.truncate_to(8)
    end = log.log_end_offset
    assert end < 9
    assert log.compaction.clean_end_offset == end
    log.sync()
    assert after_power_cut(disk, COMPACT).compaction.clean_end_offset == end


def test_files_made_after_a_cut_are_not_taken_for_those_of_before() -> None:
    """A segment that begins anew where a replaced one began is not the replaced one."""
    disk = sim_disk()
    log = log_of(disk, b"a" * 24)
    put_each(log, [b"b"] * 24)
    seal(log)
    for _ in range(2):
        compact(log)
    names = files(disk, ".log")
    put_each(log, [b"c"])
    seal(log)
    compact(log)
    replaced = [
        base for swap in CompactionFiles(disk, DIRECTORY).read()[1] for base in swap.replaced
    ]
    assert len(replaced) > 1, names
    log.restart_at(replaced[1])
    put_each(log, [b"d"] * 3)
    log.sync()
    for reopen in (killed, after_power_cut):
        log = reopen(disk, COMPACT)
        assert [value[:2] for _, _, value in keys_and_values(log) if value]
        assert log.log_end_offset == replaced[1] + 3


# -- afterwards ------------------------------------------------------------------------------------


def test_a_reader_from_any_offset_goes_on_without_a_gap() -> None:
    log = log_of(sim_disk(), b"abcabcabcxyz")
    expected = final_state(rows(log))
    compact(log)
    for start in range(12):
        offset, seen = start, []
        while offset < log.log_end_offset:
            parts = log.read(start_offset=offset, end_offset=12, bytes_max=1)
            header = parse_header(parts[0])
            assert header.base_offset <= offset < header.next_offset
            seen.append(header)
            offset = header.next_offset
        assert seen[-1].next_offset == 12
    assert final_state(rows(log)) == expected


def test_times_are_found_as_before() -> None:
    log = open_log(sim_disk(), COMPACT)
    for number in range(20):
        put(log, (b"%d" % (number % 5), b"x" * 200), timestamps_ms=NOW_MS + number)
    seal(log)
    compact(log)
    for number, offset in ((0, 15), (15, 15), (17, 17), (19, 19)):
        found = searched(log.offset_for_timestamp(NOW_MS + number, end_offset=20))
        assert found is not None
        assert found.offset == offset
    assert searched(log.offset_for_timestamp(NOW_MS + 20, end_offset=20)) is None


def test_retention_goes_on_with_a_compacted_log() -> None:
    settings = {"cleanup_policy": "compact,delete", "retention_ms": HOUR_MS}
    log = log_of(sim_disk(), b"abc" * 5, **settings)
    compact(log)
    assert offsets(log) == [12, 13, 14]
    assert log.apply_retention(now_ms=NOW_MS + HOUR_MS, high_watermark=15) is None
    task = log.apply_retention(now_ms=NOW_MS + HOUR_MS + 1, high_watermark=15)
    assert task is not None
    task.run()
    assert log.log_start_offset == 15


def test_retention_leaves_a_log_alone_that_is_only_compacted() -> None:
    log = log_of(sim_disk(), b"abc" * 5, retention_ms=0, retention_bytes=0)
    assert log.apply_retention(now_ms=NOW_MS + DAY_MS, high_watermark=15) is None
    put_each(log, [b"a"])
    sync = log.begin_sync()
    assert sync is not None
    log.advance_log_start(8)  # no segment goes while a task is out
    sync.run()
    log.complete_sync(sync)
    assert log.apply_retention(now_ms=NOW_MS, high_watermark=15) is not None


def test_the_operator_sees_what_is_clean_and_what_the_last_pass_did() -> None:
    disk = sim_disk()
    log = log_of(disk)
    size = log.size_bytes
    status = log.compaction
    assert (status.clean_end_offset, status.dirty_bytes, status.last) == (0, size, None)
    compact(log, now_ms=NOW_MS + 5)
    put_each(log, [b"a"])
    log.sync()
    for restarts in (False, True):
        if restarts:
            log = after_power_cut(disk, COMPACT)
        status = log.compaction
        assert status.clean_end_offset == 9
        assert status.dirty_bytes == len(stored(log, 9)[0])
        assert not status.is_under_way
        last = status.last
        assert last is not None
        assert (last.began_ms, last.bytes_before, last.records_removed) == (NOW_MS + 5, size, 6)
        assert last.bytes_after == log.size_bytes - status.dirty_bytes


def test_a_chain_value_is_known_only_where_a_batch_ends() -> None:
    log = log_of(sim_disk(), b"abcabcabc")
    before = [log.chain_at(offset) for offset in range(10)]
    compact(log)
    ends = {0, *(batch.end for batch in batches(log))}
    after = [log.chain_at(offset) for offset in range(10)]
    assert after == [value if at in ends else None for at, value in enumerate(before)]


def test_verifying_and_inspecting_take_it_for_sound() -> None:
    disk = sim_disk()
    log = log_of(disk, b"abcabcabc")
    compact(log)
    log.sync()
    assert problems(disk) == set()
    (report,) = inspect.verify(disk, DIRECTORY)
    assert (report.records, report.log_end_offset) == (3, 9)
    assert any(row.to_dict()["compacted"] for row in inspect.dump(disk, DIRECTORY))
    offset = 0
    while offset < log.readable_end_offset:
        offset = log.verify(offset, bytes_max=1)
    assert offset == 9


def test_the_next_start_reads_indexes_of_compacted_segments_only() -> None:
    disk = sim_disk()
    log = log_of(disk)
    compact(log)
    log.sync()
    log = killed(disk, COMPACT)
    assert log._sealed == []
    assert offsets(log) == [6, 7, 8]


def test_a_clean_stop_leaves_nothing_to_do() -> None:
    disk = sim_disk()
    log = log_of(disk)
    compact(log)
    log.close()
    disk.crash()
    changes = disk.changes
    assert offsets(open_log(disk, COMPACT)) == [6, 7, 8]
    assert disk.changes == changes


def test_a_full_disk_is_no_obstacle_to_a_clean_stop() -> None:
    disk = sim_disk()
    log = log_of(disk)
    compact(log)
    disk.faults.append(Fault(("create",), error=errno.ENOSPC, path="*/compaction*"))
    log.close()
    assert offsets(killed(disk, COMPACT)) == [6, 7, 8]


def test_a_replica_copies_a_compacted_log_as_it_is() -> None:
    disk = sim_disk()
    log = open_log(disk, COMPACT)
    for epoch in (1, 4):
        for number in range(6):
            put(log, (b"a", b"x" * 300), producer=(7, epoch, number), leader_epoch=epoch)
    seal(log)
    compact(log)
    copy_disk = sim_disk(2)
    copy = open_log(copy_disk, COMPACT)
    for batch in stored(log):
        copy.append_replicated(batch)
    copy.sync()
    for is_started_again in (False, True):
        if is_started_again:
            copy = killed(copy_disk, COMPACT)
        assert (copy.log_end_offset, copy.chain) == (log.log_end_offset, log.chain)
        assert [copy.epochs.epoch_at(offset) for offset in range(12)] == [1] * 6 + [4] * 6
        assert as_model(copy.producers)[7].sent[-1] == as_model(log.producers)[7].sent[-1]
    assert stored(copy) == stored(log)
    put(copy, (b"a", b"next"), producer=(7, 4, 6), leader_epoch=5)


def test_a_replica_that_holds_something_else_is_told_by_the_batch_after_it() -> None:
    log = log_of(sim_disk(), b"aab", segment_bytes=600)
    put_each(log, [b"c"])
    compact(log)
    batches_of_log = stored(log)
    other = log_of(sim_disk(2), b"x", segment_bytes=600)
    with pytest.raises(CorruptBatchError, match="expected 1"):
        other.append_replicated(batches_of_log[0])
    forged = resealed(batches_of_log[0], chain=5)
    other = open_log(sim_disk(3), COMPACT)
    with pytest.raises(ChainMismatchError):
        other.append_replicated(forged + batches_of_log[1])
