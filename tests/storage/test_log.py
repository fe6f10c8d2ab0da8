"""Tests of raftlog.storage.log: appends, reads, segment rolls, retention, state.

See also test_replicated_append, test_durability, test_verification, test_truncation, test_damage,
test_full_disk, test_bad_disk and test_idempotence.
"""

from __future__ import annotations

import errno
from itertools import islice
from pathlib import Path

import pytest

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.disk import Disk, OsDisk
from raftlog.errors import (
    DamagedLogError,
    FileLimitError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
)
from raftlog.record import decode_lists, parse_header, split, verify_chain
from raftlog.storage import Appended, Log
from raftlog.testing.disk import Fault
from raftlog.types import OffsetAndTimestamp
from tests.storage.logs import (
    DIRECTORY,
    NOW_MS,
    ONE_SEGMENT,
    SMALL,
    after_power_cut,
    append,
    base_offsets_of,
    batch_of,
    count_reads,
    files,
    fill,
    killed,
    open_log,
    searched,
    sim_disk,
    stored,
    value_at,
    values,
)
from tests.storage.replicas import SEGMENTED, follow, leader_of, lives


@pytest.fixture(params=["sim", "os"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    """An empty log of small segments."""
    disk: Disk = sim_disk() if request.param == "sim" else OsDisk()
    return open_log(disk, directory=f"{tmp_path}/log")


# -- appending -------------------------------------------------------------------------------------


def test_a_batch_gets_the_next_offsets_and_the_time(log: Log) -> None:
    assert append(log, b"a", b"b") == Appended(0, 1, NOW_MS)
    assert append(log, b"c", now_ms=NOW_MS + 5) == Appended(2, 2, NOW_MS + 5)
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)
    assert values(log) == [b"a", b"b", b"c"]


def test_a_batch_is_stored_as_it_came_but_for_the_leaders_section(log: Log) -> None:
    sent = batch_of([b"a"], producer=(7, 0, 0))
    append(log, b"a", producer=(7, 0, 0), leader_epoch=3, now_ms=NOW_MS + 9)
    (found,) = stored(log)
    header = parse_header(found)
    assert found[40:] == sent[40:]
    assert (header.base_offset, header.leader_epoch, header.append_timestamp) == (0, 3, NOW_MS + 9)
    assert not header.log_append_time


def test_the_leaders_time_is_every_records_time_where_the_topic_says_so() -> None:
    log = open_log(sim_disk(), TopicConfig(message_timestamp_type="LogAppendTime"))
    append(log, b"a", b"b", timestamps_ms=5, now_ms=NOW_MS)
    (found,) = stored(log)
    assert list(decode_lists(found).timestamps_ms) == [NOW_MS, NOW_MS]


def test_each_batch_follows_the_one_before_across_segments_and_restarts() -> None:
    disk = sim_disk()
    log = open_log(disk)
    for _ in range(4):
        fill(log, 5)
        log = killed(disk)
    chain = 0
    for batch in stored(log):
        header = parse_header(batch)
        assert verify_chain(header, previous_chain=chain)
        chain = header.chain
    assert log.chain == chain


def test_the_chain_goes_on_when_every_record_was_deleted() -> None:
    log = open_log(sim_disk())
    fill(log, 5)
    before = log.chain
    log.advance_log_start(5).run()
    fill(log, 1)
    assert verify_chain(parse_header(stored(log)[0]), previous_chain=before)


def test_the_chain_is_known_after_a_restart_on_an_empty_segment() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 3)
    log.roll_if_due(now_ms=NOW_MS + SMALL.segment_ms)
    log.sync()
    chain = log.chain
    log = killed(disk)
    assert (log.segment_count, log.chain) == (2, chain)
    fill(log, 1)
    assert killed(disk).damage == ""


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"timestamps_ms": NOW_MS + 51}, InvalidRequestError),
        ({"timestamps_ms": NOW_MS - 51}, InvalidRequestError),
        ({"timestamps_ms": NOW_MS + 50}, None),
    ],
)
def test_what_the_topics_settings_refuse_is_not_appended(
    options: dict[str, int], error: type[Exception] | None
) -> None:
    config = TopicConfig(message_timestamp_after_max_ms=50, message_timestamp_before_max_ms=50)
    log = open_log(sim_disk(), config)
    if error is None:
        append(log, b"x", **options)
        return
    with pytest.raises(error):
        append(log, b"x", **options)
    assert (log.log_end_offset, log.segment_count) == (0, 0)


def test_a_batch_over_the_topics_limit_is_refused() -> None:
    log = open_log(sim_disk(), TopicConfig(max_message_bytes=1_024))
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes=1024"):
        append(log, b"x" * 1_024)
    append(log, b"x" * 800)


def test_a_batch_larger_than_a_segment_has_one_for_itself(log: Log) -> None:
    fill(log, 2)
    append(log, b"x" * 5_000)
    fill(log, 1)
    assert log.segment_count == 3
    assert len(values(log)) == 4


# -- segments --------------------------------------------------------------------------------------


def test_a_segment_ends_before_it_outgrows_its_size() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 50)
    sizes = [len(disk.read_file(path, bytes_max=1 << 20)) for path in files(disk, ".log")]
    assert max(sizes) <= SMALL.segment_bytes
    assert min(sizes[:-1]) > SMALL.segment_bytes - 400
    assert log.segment_count == len(sizes)


def test_a_segment_ends_when_it_is_old_enough() -> None:
    config = TopicConfig(segment_ms=1_000)
    log = open_log(sim_disk(), config)
    append(log, b"x", now_ms=NOW_MS)
    append(log, b"x", now_ms=NOW_MS + 999)
    assert log.segment_count == 1
    assert not log.roll_if_due(now_ms=NOW_MS + 999)
    append(log, b"x", now_ms=NOW_MS + 1_000)
    assert log.segment_count == 2
    assert log.roll_if_due(now_ms=NOW_MS + 2_000)
    assert not log.roll_if_due(now_ms=NOW_MS + 9_000)  # an empty one is never too old
    assert log.segment_count == 3


def test_an_empty_log_has_no_segment_to_end() -> None:
    assert not open_log(sim_disk()).roll_if_due(now_ms=NOW_MS)


# -- reading ---------------------------------------------------------------------------------------


def test_a_read_gives_whole_batches_from_the_one_that_holds_the_offset(log: Log) -> None:
    for count in (3, 1, 4, 2):
        append(log, *[b"x"] * count)
    assert base_offsets_of(stored(log, 0)) == [0, 3, 4, 8]
    assert base_offsets_of(stored(log, 2)) == [0, 3, 4, 8]
    assert base_offsets_of(stored(log, 5)) == [4, 8]
    assert stored(log, 10) == []


def test_a_read_never_reaches_past_its_end_nor_splits_the_batch_that_lies_across_it(
    log: Log,
) -> None:
    for count in (3, 1, 4):
        append(log, *[b"x"] * count)
    for end, expected in ((3, [0]), (4, [0, 3]), (5, [0, 3]), (7, [0, 3]), (8, [0, 3, 4])):
        parts = log.read(start_offset=0, end_offset=end, bytes_max=limits.MIB)
        assert base_offsets_of([b for part in parts for b in split(part)]) == expected
    # Nothing that is wholly below the end: nothing, not an empty piece.
    assert log.read(start_offset=5, end_offset=6, bytes_max=limits.MIB) == []
    assert log.read(start_offset=0, end_offset=2, bytes_max=limits.MIB) == []


def test_a_read_takes_as_many_batches_as_fit_and_one_at_least(log: Log) -> None:
    fill(log, 15)
    size = len(stored(log)[0])
    for bytes_max in range(0, 6 * size, 97):
        parts = log.read(start_offset=4, end_offset=15, bytes_max=bytes_max)
        assert len(b"".join(parts)) == max(1, bytes_max // size) * size


@pytest.mark.parametrize("offset", [-1, 3, 9])
def test_an_offset_outside_the_log_is_refused_with_what_is_there(offset: int) -> None:
    log = open_log(sim_disk())
    fill(log, 8)
    log.advance_log_start(4).run()
    with pytest.raises(OffsetOutOfRangeError, match=f"{offset} is outside 4 to 8"):
        log.read(start_offset=offset, end_offset=8, bytes_max=1)


def test_reading_at_the_end_gives_nothing(log: Log) -> None:
    assert log.read(start_offset=0, end_offset=0, bytes_max=1) == []
    fill(log, 2)
    assert log.read(start_offset=2, end_offset=2, bytes_max=1) == []


# -- finding by time -------------------------------------------------------------------------------


def test_the_first_record_at_or_after_a_time_is_found(log: Log) -> None:
    times = [[10, 30], [20], [40, 5, 50], [45]]
    for row in times:
        append(log, *[b"x" * 150] * len(row), timestamps_ms=row)
    flat = [at for row in times for at in row]
    for timestamp_ms in range(55):
        expected = [
            OffsetAndTimestamp(offset, at) for offset, at in enumerate(flat) if at >= timestamp_ms
        ]
        found = searched(log.offset_for_timestamp(timestamp_ms, end_offset=7))
        assert found == (expected[0] if expected else None)


def test_a_record_at_or_past_the_end_is_not_found(log: Log) -> None:
    append(log, b"x", b"y", timestamps_ms=[10, 20])
    assert searched(log.offset_for_timestamp(15, end_offset=1)) is None
    assert searched(log.offset_for_timestamp(15, end_offset=2)) == OffsetAndTimestamp(1, 20)


def test_a_deleted_record_is_not_found_by_its_time(log: Log) -> None:
    append(log, b"x", b"y", b"z", timestamps_ms=[10, 20, 30])
    log.sync()
    log.advance_log_start(1).run()
    assert searched(log.offset_for_timestamp(5, end_offset=3)) == OffsetAndTimestamp(1, 20)


def test_a_large_batch_is_searched_by_a_thread(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.storage.log.VALIDATED_ON_LOOP_BYTES_MAX", 1_000)
    append(log, b"x" * 100, b"y", timestamps_ms=[10, 20])
    append(log, b"x" * 1_000, timestamps_ms=30)
    for timestamp_ms, has_work in ((15, False), (30, True), (31, False)):
        search = log.offset_for_timestamp(timestamp_ms, end_offset=3)
        assert bool(list(islice(search, 1))) is has_work
    assert searched(log.offset_for_timestamp(30, end_offset=3)) == OffsetAndTimestamp(2, 30)


def test_the_log_may_change_while_a_thread_searches(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread has the bytes of a batch. A record that it does not find is looked for anew."""
    monkeypatch.setattr("raftlog.storage.log.VALIDATED_ON_LOOP_BYTES_MAX", 0)
    for number in range(8):
        append(log, b"x" * 900, b"y", timestamps_ms=[NOW_MS + 50 - number, NOW_MS - 50 + number])
    log.sync()
    log.advance_log_start(1).run()
    search = log.offset_for_timestamp(NOW_MS, end_offset=16)
    work = next(search)
    log.advance_log_start(9).run()
    for _ in range(2):  # the rest of the first batch, and of the one with the new log start
        found = work()
        assert found is None
        work = search.send(found)
    with pytest.raises(StopIteration) as end:
        search.send(work())
    assert end.value.value == OffsetAndTimestamp(10, NOW_MS + 45)


# -- dropping --------------------------------------------------------------------------------------


def retained(config: TopicConfig, *, now_ms: int, ages_ms: list[int], watermark: int = 99) -> int:
    """The log start after retention, of one segment for each age (and one more, the active)."""
    log = open_log(sim_disk(), config)
    for age_ms in ages_ms:
        append(log, b"x" * 900, timestamps_ms=NOW_MS - age_ms)
    log.sync()
    task = log.apply_retention(now_ms=now_ms, high_watermark=min(watermark, log.log_end_offset))
    if task is not None:
        task.run()
    assert log.segment_count == len(ages_ms) - log.log_start_offset or log.size_bytes == 0
    return log.log_start_offset


def config_of(*, ms: int = -1, size: int = -1) -> TopicConfig:
    return TopicConfig(segment_bytes=1_000, retention_ms=ms, retention_bytes=size)


def test_retention_by_time() -> None:
    ages = [500, 300, 100]
    for retention_ms, start in ((-1, 0), (500, 0), (400, 1), (200, 2), (50, 3)):
        assert retained(config_of(ms=retention_ms), now_ms=NOW_MS, ages_ms=ages) == start


def test_retention_by_size() -> None:
    size = len(batch_of([b"x" * 900]))  # of a batch, and so of a segment
    for kept, start in ((-1, 0), (3 * size, 0), (2 * size, 1), (2 * size - 1, 1), (0, 3)):
        assert retained(config_of(size=kept), now_ms=NOW_MS, ages_ms=[0, 0, 0]) == start


def test_retention_by_both() -> None:
    ages = [500, 300, 100]
    assert retained(config_of(ms=400, size=0), now_ms=NOW_MS, ages_ms=ages) == 3
    assert retained(config_of(ms=200, size=99_999), now_ms=NOW_MS, ages_ms=ages) == 2


def test_retention_stops_at_the_high_watermark() -> None:
    ages = [500, 500, 500]
    assert retained(config_of(ms=0), now_ms=NOW_MS, ages_ms=ages, watermark=2) == 2


def test_records_stamped_in_the_future_expire_too() -> None:
    """ADR 0005: they count from when they were appended."""
    year_ms = 365 * 86_400_000
    ages = [-100 * year_ms, -5]
    config = config_of(ms=1_000)
    assert retained(config, now_ms=NOW_MS + 1_000, ages_ms=ages) == 0
    assert retained(config, now_ms=NOW_MS + 1_001, ages_ms=ages) == 2


def test_deleting_moves_the_start_at_once_and_drops_whole_segments() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    segments = files(disk, ".log")
    log.advance_log_start(8).run()
    assert log.log_start_offset == 8
    assert values(log) == [value_at(offset) for offset in range(8, 20)]
    assert files(disk, ".log") == segments[1:]
    log.advance_log_start(8).run()
    log.advance_log_start(20).run()
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (20, 20, 0)
    assert files(disk, ".log") == [f"{DIRECTORY}/{20:020d}.log"]
    append(log, b"on")
    assert values(log) == [b"on"]


def test_while_a_ticket_is_out_the_start_moves_and_files_go_later() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    fill(log, 1, sync=False)
    task = log.begin_sync()
    assert task is not None
    count = len(files(disk, ".log"))
    log.advance_log_start(13).run()
    assert (log.log_start_offset, len(files(disk, ".log"))) == (13, count)
    assert log.apply_retention(now_ms=NOW_MS, high_watermark=20) is None
    task.run()
    log.complete_sync(task)
    later = log.apply_retention(now_ms=NOW_MS, high_watermark=20)
    assert later is not None
    later.run()
    assert (log.log_start_offset, len(files(disk, ".log"))) == (13, count - 2)


def test_deletions_may_be_carried_out_in_any_order() -> None:
    """Several threads run tasks."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    first, second = log.advance_log_start(7), log.advance_log_start(14)
    second.run()
    first.run()
    log = after_power_cut(disk)
    assert (log.log_start_offset, log.damage) == (14, "")


def test_an_empty_log_can_be_deleted_from() -> None:
    disk = sim_disk()
    log = open_log(disk)
    log.advance_log_start(0).run()
    assert log.apply_retention(now_ms=NOW_MS, high_watermark=0) is None
    log.truncate_to(0)
    assert log.begin_sync(snapshot=True) is None
    assert log.log_end_offset == 0


# -- state ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [SEGMENTED, ONE_SEGMENT], ids=["segments", "one segment"])
def test_the_chain_at_an_offset_is_that_of_the_last_batch_below(config: object) -> None:
    log = open_log(sim_disk(), config)  # type: ignore[arg-type]
    for count in (1, 3, 2, 1, 5, 1, 1, 2):
        append(log, *[b"v" * 90] * count)
    headers = [parse_header(batch) for batch in stored(log)]
    for offset in range(log.log_end_offset + 1):
        chains = [header.chain for header in headers if header.next_offset <= offset]
        assert log.chain_at(offset) == (chains[-1] if chains else 0)
    assert log.chain == headers[-1].chain
    for offset in (-1, log.log_end_offset + 1):
        with pytest.raises(OffsetOutOfRangeError):
            log.chain_at(offset)


def test_two_replicas_have_the_same_chain_up_to_where_they_differ() -> None:
    leader = leader_of((0, 6))
    other = leader.fork(4)
    other.fill(3, epoch=1)
    logs = []
    for seed, source in enumerate((leader, other)):
        logs.append(open_log(sim_disk(seed), SEGMENTED))
        follow(logs[-1], source)
    same = [logs[0].chain_at(offset) == logs[1].chain_at(offset) for offset in range(7)]
    assert same == [True] * 5 + [False] * 2


def test_the_chain_below_deleted_records_is_known_where_a_segment_was_dropped() -> None:
    disk = sim_disk()
    first = open_log(disk, SEGMENTED)
    leader = leader_of((0, 9))
    follow(first, leader)
    first.sync()
    first.advance_log_start(6).run()
    for log in lives(first, disk, SEGMENTED):
        assert log.chain_at(6) == leader.fork(6).chain
        assert log.chain_at(7) == leader.fork(7).chain
    log = killed(disk, SEGMENTED)
    log.advance_log_start(7).run()
    assert log.chain_at(7) == leader.fork(7).chain


def test_the_chain_of_a_log_begun_anew_is_unknown_until_it_has_a_batch() -> None:
    log = open_log(sim_disk())
    log.restart_at(7)
    assert (log.chain_at(7), log.chain) == (None, 0)
    append(log, b"x", leader_epoch=2)
    assert (log.chain_at(7), log.chain_at(8)) == (None, log.chain)
    log.restart_at(0)
    assert log.chain_at(0) == 0


def test_the_last_epoch_is_that_of_the_last_batch() -> None:
    """S16: neither an epoch without a batch, nor a restart, nor a deletion changes it."""
    disk = sim_disk()
    log = open_log(disk)
    assert log.last_epoch == -1
    fill(log, 9, leader_epoch=2)
    log._begin_epoch(5)
    log.sync()
    assert (log.last_epoch, log.leader_epoch) == (2, 5)
    log.advance_log_start(9).run()
    assert log.size_bytes == 0
    assert (log.last_epoch, log.leader_epoch) == (2, 5)
    log = after_power_cut(disk)
    assert (log.last_epoch, log.leader_epoch) == (2, 5)


def high_watermark_of(log: Log) -> tuple[int, int, int]:
    return (log.log_start_offset, log.high_watermark, log.log_end_offset)


def test_the_high_watermark_is_saved_with_a_sync_and_never_leaves_the_log() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 6)
    assert high_watermark_of(log) == (0, 0, 6)
    log.note_high_watermark(99)
    assert high_watermark_of(log) == (0, 6, 6)
    log.note_high_watermark(4)
    assert high_watermark_of(log) == (0, 6, 6)
    fill(log, 3)
    assert high_watermark_of(killed(disk)) == (0, 6, 9)
    log = killed(disk)
    log.advance_log_start(8).run()
    assert high_watermark_of(log) == (8, 8, 9)


def test_the_high_watermark_alone_is_saved_by_a_snapshot_or_a_close() -> None:
    disk = sim_disk()
    log = open_log(disk, SMALL)
    fill(log, 6)
    log.close()
    log = killed(disk)
    log.note_high_watermark(5)
    assert log.begin_sync() is None
    task = log.begin_sync(snapshot=True)
    assert task is not None
    task.run()
    log.complete_sync(task)
    assert log.begin_sync(snapshot=True) is None
    log = killed(disk)
    assert log.high_watermark == 5
    log.note_high_watermark(6)
    log.close()
    assert killed(disk).high_watermark == 6


def test_reads_end_where_damage_begins() -> None:
    log = open_log(sim_disk(), ONE_SEGMENT)
    fill(log, 6)
    assert log.readable_end_offset == 6
    log.note_damage("bad", offset=3)
    assert (log.readable_end_offset, log.log_end_offset) == (3, 6)
    assert len(stored(log, 0)) == 3
    with pytest.raises(DamagedLogError, match="bad"):
        stored(log, 3)


# -- the rest --------------------------------------------------------------------------------------


def test_an_old_leader_may_not_append() -> None:
    log = open_log(sim_disk())
    append(log, b"x", leader_epoch=4)
    with pytest.raises(AssertionError):
        append(log, b"x", leader_epoch=3)


def test_what_may_be_acknowledged_depends_on_the_flush_policy() -> None:
    for policy, end in (("fsync", 2), ("os", 5)):
        log = open_log(sim_disk(), TopicConfig(flush_policy=policy))
        fill(log, 2)
        fill(log, 3, sync=False)
        assert log.acknowledged_end_offset == end


def test_a_clean_stop_spares_the_next_start_from_reading_batches() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    fill(log, 1)
    log.close()
    disk.crash()
    reads = count_reads(disk)
    log = open_log(disk)
    assert log.log_end_offset == 21
    assert sum(reads) < 300 * log.segment_count  # the end of each, to see that its index fits


def test_a_snapshot_is_taken_when_there_is_something_new() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 3)
    task = log.begin_sync(snapshot=True)
    assert task is not None
    task.run()
    log.complete_sync(task)
    assert log.begin_sync(snapshot=True) is None
    assert len(files(disk, ".index")) == 1
    fill(log, 1)
    assert log.begin_sync() is None
    assert log.begin_sync(snapshot=True) is not None


def test_damage_is_told_by_the_error_as_by_the_property() -> None:
    disk = sim_disk()
    fill(open_log(disk), 3)
    disk.flip_bit(files(disk, ".log")[0], 999)
    log = killed(disk)
    with pytest.raises(DamagedLogError) as raised:
        append(log, b"x")
    assert str(raised.value) == log.damage


def test_an_append_without_a_descriptor_is_refused_and_the_log_continues() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 1)
    log.close()
    log = open_log(disk)
    disk.faults.append(Fault({"open"}, errno.EMFILE, path="*.log", times=2))
    with pytest.raises(FileLimitError, match="RLIMIT_NOFILE"):
        fill(log, 1)
    disk.faults.clear()
    fill(log, 1)
    assert log.log_end_offset == 2
