"""A log that was compacted: cutting it, reading it, starting it again, looking at it."""

from __future__ import annotations

import errno

import pytest

from raftlog.errors import ChainMismatchError, CorruptBatchError
from raftlog.record import parse_header
from raftlog.storage import inspect
from raftlog.storage.compaction import CompactionFiles
from raftlog.testing.disk import Fault
from tests.record.batches import resealed
from tests.storage.compacted import final_state
from tests.storage.compactions import (
    COMPACT,
    DAY_MS,
    HOUR_MS,
    batches,
    compact,
    keys_and_values,
    log_of,
    offsets,
    put,
    put_each,
    rows,
    seal,
)
from tests.storage.harm import problems
from tests.storage.logs import (
    DIRECTORY,
    NOW_MS,
    after_power_cut,
    files,
    killed,
    open_log,
    searched,
    sim_disk,
    stored,
)
from tests.storage.model import as_model

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
