"""A compaction at work: in which order it makes things durable, what it holds and what it writes.

What it keeps is in ``test_compactor``; what is left of it by a crash, in
``test_compaction_crashes``.
"""

from __future__ import annotations

import pytest

from raftlog.errors import DamagedLogError
from raftlog.record import parse_header
from raftlog.storage import Log, compaction
from raftlog.storage.checkpoint import decode_slots
from raftlog.storage.compaction import CLEANED_SUFFIX, NAME, CompactionFiles, CompactionTask
from raftlog.testing.disk import Fault, SimDisk, Stopped
from tests.storage.compactions import (
    COMPACT,
    begin,
    compact,
    config_with,
    offsets,
    put,
    put_each,
    rows,
    seal,
)
from tests.storage.logs import DIRECTORY, files, killed, open_log, sim_disk, stored

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
