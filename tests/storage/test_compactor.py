"""Tests of raftlog.storage.compaction: when a pass is due, and what it keeps."""

from __future__ import annotations

from raftlog.storage import Log
from raftlog.testing.disk import SimDisk
from tests.storage.compacted import newest_of_producers
from tests.storage.compactions import (
    COMPACT,
    DAY_MS,
    HOUR_MS,
    batches,
    begin,
    compact,
    config_with,
    log_of,
    offsets,
    put,
    put_each,
    rows,
    seal,
)
from tests.storage.logs import (
    DIRECTORY,
    NOW_MS,
    after_power_cut,
    append,
    files,
    killed,
    open_log,
    sim_disk,
    stored,
)
from tests.storage.model import as_model

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
    told = newest_of_producers([batch.header for batch in batches(log)])
    assert told == {7: (0, 16, 5), 8: (2, 18, 11)}
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
