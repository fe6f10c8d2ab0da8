"""Tests of raftlog.storage.log: appends, reads, segment rolls, retention, state.

See also test_replicated_append, test_durability, test_verification, test_truncation, test_damage,
test_full_disk, test_bad_disk and test_idempotence.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.disk import Disk, OsDisk
from raftlog.errors import (
    DamagedLogError,
    FileLimitError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    StorageFailedError,
)
from raftlog.record import (
    HEADER_BYTES,
    BatchHeader,
    decode_lists,
    parse_header,
    split,
    verify_chain,
)
from raftlog.record.batch import COMPACTED, seal
from raftlog.record.codec import hole_of
from raftlog.storage import Appended, Log
from raftlog.storage import log as log_module
from raftlog.storage.checkpoint import decode_slots
from raftlog.storage.log import SegmentInfo, expired
from raftlog.testing.disk import CHANGES, Fault, SimDisk, Stopped
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
from tests.storage.model import as_model
from tests.storage.replicas import SEGMENTED, Leader, copy, follow, leader_of, lives


@pytest.fixture(params=["sim", "os"])
def the_log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    """An empty log of small segments."""
    disk: Disk = sim_disk() if request.param == "sim" else OsDisk()
    return open_log(disk, directory=f"{tmp_path}/log")


# -- appending -------------------------------------------------------------------------------------


def test_a_batch_gets_the_next_offsets_and_the_time(the_log: Log) -> None:
    assert append(the_log, b"a", b"b") == Appended(0, 1, NOW_MS)
    assert append(the_log, b"c", now_ms=NOW_MS + 5) == Appended(2, 2, NOW_MS + 5)
    assert (the_log.log_start_offset, the_log.log_end_offset) == (0, 3)
    assert values(the_log) == [b"a", b"b", b"c"]


def test_a_batch_is_stored_as_it_came_but_for_the_leaders_section(the_log: Log) -> None:
    sent = batch_of([b"a"], producer=(7, 0, 0))
    append(the_log, b"a", producer=(7, 0, 0), leader_epoch=3, now_ms=NOW_MS + 9)
    (found,) = stored(the_log)
    header = parse_header(found)
    assert found[40:] == sent[40:]
    assert (header.base_offset, header.leader_epoch, header.append_timestamp) == (0, 3, NOW_MS + 9)
    assert not header.log_append_time


def test_the_leaders_time_is_every_records_time_where_the_topic_says_so() -> None:
    the_log = open_log(sim_disk(), TopicConfig(message_timestamp_type="LogAppendTime"))
    append(the_log, b"a", b"b", timestamps_ms=5, now_ms=NOW_MS)
    (found,) = stored(the_log)
    assert list(decode_lists(found).timestamps_ms) == [NOW_MS, NOW_MS]


def test_each_batch_follows_the_one_before_across_segments_and_restarts() -> None:
    disk = sim_disk()
    the_log = open_log(disk)
    for _ in range(4):
        fill(the_log, 5)
        the_log = killed(disk)
    chain = 0
    for batch in stored(the_log):
        header = parse_header(batch)
        assert verify_chain(header, previous_chain=chain)
        chain = header.chain
    assert the_log.chain == chain


def test_the_chain_goes_on_when_every_record_was_deleted() -> None:
    the_log = open_log(sim_disk())
    fill(the_log, 5)
    before = the_log.chain
    the_log.advance_log_start(5).run()
    fill(the_log, 1)
    assert verify_chain(parse_header(stored(the_log)[0]), previous_chain=before)


def test_the_chain_is_known_after_a_restart_on_an_empty_segment() -> None:
    disk = sim_disk()
    the_log = open_log(disk)
    fill(the_log, 3)
    the_log.roll_if_due(now_ms=NOW_MS + SMALL.segment_ms)
    the_log.sync()
    chain = the_log.chain
    the_log = killed(disk)
    assert (the_log.segment_count, the_log.chain) == (2, chain)
    fill(the_log, 1)
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
    the_log = open_log(sim_disk(), config)
    if error is None:
        append(the_log, b"x", **options)
        return
    with pytest.raises(error):
        append(the_log, b"x", **options)
    assert (the_log.log_end_offset, the_log.segment_count) == (0, 0)


def test_a_batch_over_the_topics_limit_is_refused() -> None:
    the_log = open_log(sim_disk(), TopicConfig(max_message_bytes=1_024))
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes=1024"):
        append(the_log, b"x" * 1_024)
    append(the_log, b"x" * 800)


def test_a_batch_larger_than_a_segment_has_one_for_itself(the_log: Log) -> None:
    fill(the_log, 2)
    append(the_log, b"x" * 5_000)
    fill(the_log, 1)
    assert the_log.segment_count == 3
    assert len(values(the_log)) == 4


# -- segments --------------------------------------------------------------------------------------


def test_a_segment_ends_before_it_outgrows_its_size() -> None:
    disk = sim_disk()
    the_log = open_log(disk)
    fill(the_log, 50)
    sizes = [len(disk.read_file(path, bytes_max=1 << 20)) for path in files(disk, ".log")]
    assert max(sizes) <= SMALL.segment_bytes
    assert min(sizes[:-1]) > SMALL.segment_bytes - 400
    assert the_log.segment_count == len(sizes)


def test_a_segment_ends_when_it_is_old_enough() -> None:
    config = TopicConfig(segment_ms=1_000)
    the_log = open_log(sim_disk(), config)
    append(the_log, b"x", now_ms=NOW_MS)
    append(the_log, b"x", now_ms=NOW_MS + 999)
    assert the_log.segment_count == 1
    assert not the_log.roll_if_due(now_ms=NOW_MS + 999)
    append(the_log, b"x", now_ms=NOW_MS + 1_000)
    assert the_log.segment_count == 2
    assert the_log.roll_if_due(now_ms=NOW_MS + 2_000)
    assert not the_log.roll_if_due(now_ms=NOW_MS + 9_000)  # an empty one is never too old
    assert the_log.segment_count == 3


def test_an_empty_log_has_no_segment_to_end() -> None:
    assert not open_log(sim_disk()).roll_if_due(now_ms=NOW_MS)


# -- reading ---------------------------------------------------------------------------------------


def test_a_read_gives_whole_batches_from_the_one_that_holds_the_offset(the_log: Log) -> None:
    for count in (3, 1, 4, 2):
        append(the_log, *[b"x"] * count)
    assert base_offsets_of(stored(the_log, 0)) == [0, 3, 4, 8]
    assert base_offsets_of(stored(the_log, 2)) == [0, 3, 4, 8]
    assert base_offsets_of(stored(the_log, 5)) == [4, 8]
    assert stored(the_log, 10) == []


def test_a_read_never_reaches_past_its_end_nor_splits_the_batch_that_lies_across_it(
    the_log: Log,
) -> None:
    for count in (3, 1, 4):
        append(the_log, *[b"x"] * count)
    for end, expected in ((3, [0]), (4, [0, 3]), (5, [0, 3]), (7, [0, 3]), (8, [0, 3, 4])):
        parts = the_log.read(start_offset=0, end_offset=end, bytes_max=limits.MIB)
        assert base_offsets_of([b for part in parts for b in split(part)]) == expected
    # Nothing that is wholly below the end: nothing, not an empty piece.
    assert the_log.read(start_offset=5, end_offset=6, bytes_max=limits.MIB) == []
    assert the_log.read(start_offset=0, end_offset=2, bytes_max=limits.MIB) == []


def test_a_read_takes_as_many_batches_as_fit_and_one_at_least(the_log: Log) -> None:
    fill(the_log, 15)
    size = len(stored(the_log)[0])
    for bytes_max in range(0, 6 * size, 97):
        parts = the_log.read(start_offset=4, end_offset=15, bytes_max=bytes_max)
        assert len(b"".join(parts)) == max(1, bytes_max // size) * size


@pytest.mark.parametrize("offset", [-1, 3, 9])
def test_an_offset_outside_the_log_is_refused_with_what_is_there(offset: int) -> None:
    the_log = open_log(sim_disk())
    fill(the_log, 8)
    the_log.advance_log_start(4).run()
    with pytest.raises(OffsetOutOfRangeError, match=f"{offset} is outside 4 to 8"):
        the_log.read(start_offset=offset, end_offset=8, bytes_max=1)


def test_reading_at_the_end_gives_nothing(the_log: Log) -> None:
    assert the_log.read(start_offset=0, end_offset=0, bytes_max=1) == []
    fill(the_log, 2)
    assert the_log.read(start_offset=2, end_offset=2, bytes_max=1) == []


# -- finding by time -------------------------------------------------------------------------------


def test_the_first_record_at_or_after_a_time_is_found(the_log: Log) -> None:
    times = [[10, 30], [20], [40, 5, 50], [45]]
    for row in times:
        append(the_log, *[b"x" * 150] * len(row), timestamps_ms=row)
    flat = [at for row in times for at in row]
    for timestamp_ms in range(55):
        expected = [
            OffsetAndTimestamp(offset, at) for offset, at in enumerate(flat) if at >= timestamp_ms
        ]
        found = searched(the_log.offset_for_timestamp(timestamp_ms, end_offset=7))
        assert found == (expected[0] if expected else None)


def test_a_record_at_or_past_the_end_is_not_found(the_log: Log) -> None:
    append(the_log, b"x", b"y", timestamps_ms=[10, 20])
    assert searched(the_log.offset_for_timestamp(15, end_offset=1)) is None
    assert searched(the_log.offset_for_timestamp(15, end_offset=2)) == OffsetAndTimestamp(1, 20)


def test_a_deleted_record_is_not_found_by_its_time(the_log: Log) -> None:
    append(the_log, b"x", b"y", b"z", timestamps_ms=[10, 20, 30])
    the_log.sync()
    the_log.advance_log_start(1).run()
    assert searched(the_log.offset_for_timestamp(5, end_offset=3)) == OffsetAndTimestamp(1, 20)


def test_a_search_by_time_reads_no_deleted_batches() -> None:
    disk = sim_disk()
    the_log = open_log(disk, ONE_SEGMENT)
    fill(the_log, 200)
    the_log.advance_log_start(198).run()
    the_log.abandon()
    reads = count_reads(disk)
    found = searched(the_log.offset_for_timestamp(0, end_offset=200))
    assert found == OffsetAndTimestamp(198, NOW_MS)
    assert sum(reads) < 3_000


def test_a_search_by_time_reads_a_run_of_batches_without_records_once() -> None:
    """Compaction and mirrors leave such batches."""
    disk = sim_disk()
    the_log = open_log(disk, ONE_SEGMENT)
    body = hole_of(1)
    for _ in range(200):
        batch = seal(body) + body.payload
        the_log.append(
            batch,
            parse_header(batch),
            leader_epoch=0,
            now_ms=NOW_MS,
            at_offset=the_log.log_end_offset,
        )
    append(the_log, b"x")
    the_log.abandon()
    reads = count_reads(disk)
    found = searched(the_log.offset_for_timestamp(0, end_offset=201))
    assert found == OffsetAndTimestamp(200, NOW_MS)
    assert sum(reads) < 2 * the_log.size_bytes


def test_a_large_batch_is_searched_by_a_thread(
    the_log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog.storage.log.VALIDATED_ON_LOOP_BYTES_MAX", 1_000)
    append(the_log, b"x" * 100, b"y", timestamps_ms=[10, 20])
    append(the_log, b"x" * 1_000, timestamps_ms=30)
    for timestamp_ms, has_work in ((15, False), (30, True), (31, False)):
        search = the_log.offset_for_timestamp(timestamp_ms, end_offset=3)
        assert bool(list(islice(search, 1))) is has_work
    assert searched(the_log.offset_for_timestamp(30, end_offset=3)) == OffsetAndTimestamp(2, 30)


def test_the_log_may_change_while_a_thread_searches(
    the_log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread has the bytes of a batch. A record that it does not find is looked for anew."""
    monkeypatch.setattr("raftlog.storage.log.VALIDATED_ON_LOOP_BYTES_MAX", 0)
    for number in range(8):
        append(
            the_log, b"x" * 900, b"y", timestamps_ms=[NOW_MS + 50 - number, NOW_MS - 50 + number]
        )
    the_log.sync()
    the_log.advance_log_start(1).run()
    search = the_log.offset_for_timestamp(NOW_MS, end_offset=16)
    work = next(search)
    the_log.advance_log_start(9).run()
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
    the_log = open_log(sim_disk(), config)
    for age_ms in ages_ms:
        append(the_log, b"x" * 900, timestamps_ms=NOW_MS - age_ms)
    the_log.sync()
    task = the_log.apply_retention(
        now_ms=now_ms, high_watermark=min(watermark, the_log.log_end_offset)
    )
    if task is not None:
        task.run()
    assert (
        the_log.segment_count == len(ages_ms) - the_log.log_start_offset or the_log.size_bytes == 0
    )
    return the_log.log_start_offset


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
    the_log = open_log(disk)
    fill(the_log, 20)
    segments = files(disk, ".log")
    the_log.advance_log_start(8).run()
    assert the_log.log_start_offset == 8
    assert values(the_log) == [value_at(offset) for offset in range(8, 20)]
    assert files(disk, ".log") == segments[1:]
    the_log.advance_log_start(8).run()
    the_log.advance_log_start(20).run()
    assert (the_log.log_start_offset, the_log.log_end_offset, the_log.size_bytes) == (20, 20, 0)
    assert files(disk, ".log") == [f"{DIRECTORY}/{20:020d}.log"]
    append(the_log, b"on")
    assert values(the_log) == [b"on"]


def test_while_a_ticket_is_out_the_start_moves_and_files_go_later() -> None:
    disk = sim_disk()
    the_log = open_log(disk)
    fill(the_log, 20)
    fill(the_log, 1, sync=False)
    task = the_log.begin_sync()
    assert task is not None
    count = len(files(disk, ".log"))
    the_log.advance_log_start(13).run()
    assert (the_log.log_start_offset, len(files(disk, ".log"))) == (13, count)
    assert the_log.apply_retention(now_ms=NOW_MS, high_watermark=20) is None
    task.run()
    the_log.complete_sync(task)
    later = the_log.apply_retention(now_ms=NOW_MS, high_watermark=20)
    assert later is not None
    later.run()
    assert (the_log.log_start_offset, len(files(disk, ".log"))) == (13, count - 2)


def test_deletions_may_be_carried_out_in_any_order() -> None:
    """Several threads run tasks."""
    disk = sim_disk()
    the_log = open_log(disk)
    fill(the_log, 20)
    first, second = the_log.advance_log_start(7), the_log.advance_log_start(14)
    second.run()
    first.run()
    the_log = after_power_cut(disk)
    assert (the_log.log_start_offset, the_log.damage) == (14, "")


def test_an_empty_log_can_be_deleted_from() -> None:
    disk = sim_disk()
    the_log = open_log(disk)
    the_log.advance_log_start(0).run()
    assert the_log.apply_retention(now_ms=NOW_MS, high_watermark=0) is None
    the_log.truncate_to(0)
    assert the_log.begin_sync(snapshot=True) is None
    assert the_log.log_end_offset == 0


# -- state ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [SEGMENTED, ONE_SEGMENT], ids=["segments", "one segment"])
def test_the_chain_at_an_offset_is_that_of_the_last_batch_below(config: object) -> None:
    the_log = open_log(sim_disk(), config)  # type: ignore[arg-type]
    for count in (1, 3, 2, 1, 5, 1, 1, 2):
        append(the_log, *[b"v" * 90] * count)
    headers = [parse_header(batch) for batch in stored(the_log)]
    for offset in range(the_log.log_end_offset + 1):
        chains = [header.chain for header in headers if header.next_offset <= offset]
        assert the_log.chain_at(offset) == (chains[-1] if chains else 0)
    assert the_log.chain == headers[-1].chain
    for offset in (-1, the_log.log_end_offset + 1):
        with pytest.raises(OffsetOutOfRangeError):
            the_log.chain_at(offset)


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
    for the_log in lives(first, disk, SEGMENTED):
        assert the_log.chain_at(6) == leader.fork(6).chain
        assert the_log.chain_at(7) == leader.fork(7).chain
    the_log = killed(disk, SEGMENTED)
    the_log.advance_log_start(7).run()
    assert the_log.chain_at(7) == leader.fork(7).chain


def test_the_chain_of_a_log_begun_anew_is_unknown_until_it_has_a_batch() -> None:
    the_log = open_log(sim_disk())
    the_log.restart_at(7)
    assert (the_log.chain_at(7), the_log.chain) == (None, 0)
    append(the_log, b"x", leader_epoch=2)
    assert (the_log.chain_at(7), the_log.chain_at(8)) == (None, the_log.chain)
    the_log.restart_at(0)
    assert the_log.chain_at(0) == 0


def test_the_last_epoch_is_that_of_the_last_batch() -> None:
    """S16: neither an epoch without a batch, nor a restart, nor a deletion changes it."""
    disk = sim_disk()
    the_log = open_log(disk)
    assert the_log.last_epoch == -1
    fill(the_log, 9, leader_epoch=2)
    the_log._begin_epoch(5)
    the_log.sync()
    assert (the_log.last_epoch, the_log.leader_epoch) == (2, 5)
    the_log.advance_log_start(9).run()
    assert the_log.size_bytes == 0
    assert (the_log.last_epoch, the_log.leader_epoch) == (2, 5)
    the_log = after_power_cut(disk)
    assert (the_log.last_epoch, the_log.leader_epoch) == (2, 5)


def high_watermark_of(the_log: Log) -> tuple[int, int, int]:
    return (the_log.log_start_offset, the_log.high_watermark, the_log.log_end_offset)


def test_the_high_watermark_is_saved_with_a_sync_and_never_leaves_the_log() -> None:
    disk = sim_disk()
    the_log = open_log(disk)
    fill(the_log, 6)
    assert high_watermark_of(the_log) == (0, 0, 6)
    the_log.note_high_watermark(99)
    assert high_watermark_of(the_log) == (0, 6, 6)
    the_log.note_high_watermark(4)
    assert high_watermark_of(the_log) == (0, 6, 6)
    fill(the_log, 3)
    assert high_watermark_of(killed(disk)) == (0, 6, 9)
    the_log = killed(disk)
    the_log.advance_log_start(8).run()
    assert high_watermark_of(the_log) == (8, 8, 9)


def test_the_high_watermark_alone_is_saved_by_a_snapshot_or_a_close() -> None:
    disk = sim_disk()
    the_log = open_log(disk, SMALL)
    fill(the_log, 6)
    the_log.close()
    the_log = killed(disk)
    the_log.note_high_watermark(5)
    assert the_log.begin_sync() is None
    task = the_log.begin_sync(snapshot=True)
    assert task is not None
    task.run()
    the_log.complete_sync(task)
    assert the_log.begin_sync(snapshot=True) is None
    the_log = killed(disk)
    assert the_log.high_watermark == 5
    the_log.note_high_watermark(6)
    the_log.close()
    assert killed(disk).high_watermark == 6


def test_reads_end_where_damage_begins() -> None:
    the_log = open_log(sim_disk(), ONE_SEGMENT)
    fill(the_log, 6)
    assert the_log.readable_end_offset == 6
    the_log.note_damage("bad", offset=3)
    assert (the_log.readable_end_offset, the_log.log_end_offset) == (3, 6)
    assert len(stored(the_log, 0)) == 3
    with pytest.raises(DamagedLogError, match="bad"):
        stored(the_log, 3)


# -- the rest --------------------------------------------------------------------------------------


def test_an_old_leader_may_not_append() -> None:
    the_log = open_log(sim_disk())
    append(the_log, b"x", leader_epoch=4)
    with pytest.raises(AssertionError):
        append(the_log, b"x", leader_epoch=3)


def test_what_may_be_acknowledged_depends_on_the_flush_policy() -> None:
    for policy, end in (("fsync", 2), ("os", 5)):
        the_log = open_log(sim_disk(), TopicConfig(flush_policy=policy))
        fill(the_log, 2)
        fill(the_log, 3, sync=False)
        assert the_log.acknowledged_end_offset == end


def test_a_clean_stop_spares_the_next_start_from_reading_batches() -> None:
    disk = sim_disk()
    the_log = open_log(disk)
    fill(the_log, 20)
    fill(the_log, 1)
    the_log.close()
    disk.crash()
    reads = count_reads(disk)
    the_log = open_log(disk)
    assert the_log.log_end_offset == 21
    assert sum(reads) < 300 * the_log.segment_count  # the end of each, to see that its index fits


def test_a_snapshot_is_taken_when_there_is_something_new() -> None:
    disk = sim_disk()
    the_log = open_log(disk)
    fill(the_log, 3)
    task = the_log.begin_sync(snapshot=True)
    assert task is not None
    task.run()
    the_log.complete_sync(task)
    assert the_log.begin_sync(snapshot=True) is None
    assert len(files(disk, ".index")) == 1
    fill(the_log, 1)
    assert the_log.begin_sync() is None
    assert the_log.begin_sync(snapshot=True) is not None


def test_damage_is_told_by_the_error_as_by_the_property() -> None:
    disk = sim_disk()
    fill(open_log(disk), 3)
    disk.flip_bit(files(disk, ".log")[0], 999)
    the_log = killed(disk)
    with pytest.raises(DamagedLogError) as raised:
        append(the_log, b"x")
    assert str(raised.value) == the_log.damage


def test_an_append_without_a_descriptor_is_refused_and_the_log_continues() -> None:
    disk = sim_disk()
    the_log = open_log(disk)
    fill(the_log, 1)
    the_log.close()
    the_log = open_log(disk)
    disk.faults.append(Fault({"open"}, errno.EMFILE, path="*.log", times=2))
    with pytest.raises(FileLimitError, match="RLIMIT_NOFILE"):
        fill(the_log, 1)
    disk.faults.clear()
    fill(the_log, 1)
    assert the_log.log_end_offset == 2


# -- admission -------------------------------------------------------------------------------------
#
# Tests of raftlog.storage.log.


AFTER_MS, BEFORE_MS = 1_000, 5_000
BOUNDED = TopicConfig(
    message_timestamp_after_max_ms=AFTER_MS, message_timestamp_before_max_ms=BEFORE_MS
)


def header_at(*distances_ms: int) -> BatchHeader:
    """Of a batch whose records are that far from now."""
    timestamps_ms = [NOW_MS + distance_ms for distance_ms in distances_ms]
    return parse_header(batch_of([b"v"] * len(timestamps_ms), timestamps_ms=timestamps_ms))


@pytest.mark.parametrize(("spare_bytes", "is_taken"), [(1, True), (0, True), (-1, False)])
def test_a_batch_may_be_as_large_as_the_topic_allows(spare_bytes: int, is_taken: bool) -> None:
    header = header_at(0)
    config = TopicConfig(max_message_bytes=header.length + spare_bytes)
    if is_taken:
        log_module.check(header, config, now_ms=NOW_MS)
        return
    with pytest.raises(RecordTooLargeError) as caught:
        log_module.check(header, config, now_ms=NOW_MS)
    assert f"batch of {header.length} bytes" in str(caught.value)
    assert f"max.message.bytes={config.max_message_bytes}" in str(caught.value)


@pytest.mark.parametrize(
    "distances_ms",
    [(0,), (AFTER_MS,), (-BEFORE_MS,), (-BEFORE_MS, AFTER_MS), (0, AFTER_MS, -BEFORE_MS)],
)
def test_timestamps_up_to_both_bounds_are_taken(distances_ms: tuple[int, ...]) -> None:
    log_module.check(header_at(*distances_ms), BOUNDED, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("distances_ms", "complaint"),
    [
        ((AFTER_MS + 1,), "1001 ms after the broker's clock, over message.timestamp.after.max.ms"),
        ((0, AFTER_MS + 1, 0), "message.timestamp.after.max.ms=1000"),
        ((-BEFORE_MS - 1,), "5001 ms before the broker's clock"),
        ((-BEFORE_MS - 1, 0), "message.timestamp.before.max.ms=5000"),
    ],
)
def test_timestamps_too_far_from_now_are_refused(
    distances_ms: tuple[int, ...], complaint: str
) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        log_module.check(header_at(*distances_ms), BOUNDED, now_ms=NOW_MS)


@pytest.mark.parametrize("distance_ms", [-NOW_MS, AFTER_MS + 1])
def test_producers_timestamps_do_not_matter_where_the_broker_sets_them(distance_ms: int) -> None:
    config = replace(BOUNDED, message_timestamp_type="LogAppendTime")
    log_module.check(header_at(distance_ms), config, now_ms=NOW_MS)


def test_where_the_broker_sets_timestamps_a_batch_can_still_be_too_large() -> None:
    config = replace(BOUNDED, message_timestamp_type="LogAppendTime", max_message_bytes=1)
    with pytest.raises(RecordTooLargeError):
        log_module.check(header_at(0), config, now_ms=NOW_MS)


def test_a_topic_takes_any_timestamp_unless_told_otherwise() -> None:
    log_module.check(header_at(-NOW_MS, NOW_MS), TopicConfig(), now_ms=NOW_MS)


def test_a_compacted_batch_is_not_a_producers() -> None:
    header = header_at(0)._replace(leader_flags=COMPACTED, append_timestamp=NOW_MS)
    with pytest.raises(InvalidRequestError, match="marked as compacted"):
        log_module.check(header, TopicConfig(), now_ms=NOW_MS)


@pytest.mark.parametrize(("spare_bytes", "is_taken"), [(0, True), (-1, False)])
def test_there_is_room_for_the_offsets_that_compaction_may_add(
    spare_bytes: int, is_taken: bool
) -> None:
    count = 1_000
    size = limits.BATCH_BYTES_MAX - HEADER_BYTES - 4 * count - spare_bytes
    header = header_at(0)._replace(record_count=count, uncompressed_length=size)
    if is_taken:
        log_module.check(header, TopicConfig(), now_ms=NOW_MS)
        return
    with pytest.raises(RecordTooLargeError, match="1000 records of"):
        log_module.check(header, TopicConfig(), now_ms=NOW_MS)


# -- retention -------------------------------------------------------------------------------------
#
# Tests of raftlog.storage.log.


RETENTION_NOW_MS = 10_000
HOUR_OLD, NEW = RETENTION_NOW_MS - 3_600, RETENTION_NOW_MS
UNLIMITED = -1


def segments_of(*ages_ms: int, size_bytes: int = 100) -> list[SegmentInfo]:
    """Segments of ten records each; ``ages_ms`` are the times that their newest count from."""
    return [
        SegmentInfo(10 * number, 10 * number + 10, size_bytes, age_ms)
        for number, age_ms in enumerate(ages_ms)
    ]


def dropped(
    segments: list[SegmentInfo],
    *,
    retention_ms: int = UNLIMITED,
    retention_bytes: int = UNLIMITED,
    log_start_offset: int = 0,
    high_watermark: int | None = None,
) -> int:
    return expired(
        segments,
        now_ms=RETENTION_NOW_MS,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        log_start_offset=log_start_offset,
        high_watermark=segments[-1].next_offset if high_watermark is None else high_watermark,
    )


def test_without_limits_nothing_goes() -> None:
    assert dropped(segments_of(0, 0, 0)) == 0


def test_a_log_without_segments_has_none_to_drop() -> None:
    assert dropped([], retention_ms=0, retention_bytes=0, high_watermark=0) == 0


@pytest.mark.parametrize(
    ("retention_ms", "count"),
    [(3_600, 0), (3_599, 1), (1_000, 1), (999, 2), (1, 2), (0, 2), (-1, 0)],
)
def test_a_segment_goes_when_its_newest_record_is_older_than_allowed(
    retention_ms: int, count: int
) -> None:
    assert (
        dropped(segments_of(HOUR_OLD, RETENTION_NOW_MS - 1_000, NEW), retention_ms=retention_ms)
        == count
    )


@pytest.mark.parametrize(
    ("retention_bytes", "count"),
    [(300, 0), (201, 0), (200, 1), (101, 1), (100, 2), (1, 2), (0, 3), (-1, 0)],
)
def test_a_segment_goes_while_the_rest_still_holds_what_is_to_be_kept(
    retention_bytes: int, count: int
) -> None:
    assert dropped(segments_of(NEW, NEW, NEW), retention_bytes=retention_bytes) == count


@pytest.mark.parametrize(
    ("retention_ms", "retention_bytes", "count"),
    [
        (1_000, 300, 1),  # time alone
        (5_000, 100, 2),  # size alone
        (1_000, 100, 2),  # time for the first, size for the second
        (1_000, 200, 1),  # what time took counts for size
        (5_000, 300, 0),
    ],
)
def test_either_limit_is_enough(retention_ms: int, retention_bytes: int, count: int) -> None:
    segments = segments_of(HOUR_OLD, NEW, NEW)
    found = dropped(segments, retention_ms=retention_ms, retention_bytes=retention_bytes)
    assert found == count


@pytest.mark.parametrize(
    ("log_start_offset", "count"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (30, 3)]
)
def test_segments_below_the_log_start_go_whatever_the_limits(
    log_start_offset: int, count: int
) -> None:
    assert dropped(segments_of(NEW, NEW, NEW), log_start_offset=log_start_offset) == count


@pytest.mark.parametrize(
    ("high_watermark", "count"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (30, 3)]
)
@pytest.mark.parametrize("limits", [{"retention_ms": 0}, {"retention_bytes": 0}])
def test_nothing_goes_that_is_not_committed(
    limits: dict[str, int], high_watermark: int, count: int
) -> None:
    segments = segments_of(HOUR_OLD, HOUR_OLD, HOUR_OLD)
    assert dropped(segments, high_watermark=high_watermark, **limits) == count


def test_an_old_segment_behind_a_new_one_stays() -> None:
    assert dropped(segments_of(HOUR_OLD, NEW, HOUR_OLD), retention_ms=1_000) == 1


@st.composite
def logs(draw: st.DrawFn) -> list[SegmentInfo]:
    gaps = draw(st.lists(st.integers(1, 10), max_size=6))
    bases = [sum(gaps[:number]) for number in range(len(gaps) + 1)]
    return [
        SegmentInfo(base, end, draw(st.integers(1, 100)), draw(st.integers(0, RETENTION_NOW_MS)))
        for base, end in pairwise(bases)
    ]


@given(
    segments=logs(),
    retention_ms=st.integers(-1, RETENTION_NOW_MS),
    retention_bytes=st.integers(-1, 400),
    log_start_offset=st.integers(0, 60),
    high_watermark=st.integers(0, 60),
)
def test_the_longest_run_of_oldest_segments_goes_of_which_each_may(
    segments: list[SegmentInfo],
    retention_ms: int,
    retention_bytes: int,
    log_start_offset: int,
    high_watermark: int,
) -> None:
    def may_go(number: int) -> bool:
        segment = segments[number]
        left_bytes = sum(other.size_bytes for other in segments[number + 1 :])
        return segment.next_offset <= high_watermark and (
            segment.next_offset <= log_start_offset
            or 0 <= retention_ms < RETENTION_NOW_MS - segment.newest_age_ms
            or 0 <= retention_bytes <= left_bytes
        )

    count = dropped(
        segments,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
    )
    assert all(may_go(number) for number in range(count))
    assert count == len(segments) or not may_go(count)


# -- truncation ------------------------------------------------------------------------------------
#
# Truncation and restart of a log: what is left, in memory and on disk.
#
# Crashes in between: test_replica_crashes. Deletion of old records: test_retention, test_log,
# test_durability.


CONFIGS = pytest.mark.parametrize("config", [SEGMENTED, ONE_SEGMENT], ids=["segments", "segment"])


# -- truncating ------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [SMALL, ONE_SEGMENT], ids=["segments", "segment"])
@pytest.mark.parametrize("offset", [0, 1, 5, 6, 7, 13, 19, 20])
def test_truncating_leaves_what_lies_before(offset: int, config: TopicConfig) -> None:
    disk = sim_disk()
    log = open_log(disk, config)
    fill(log, 15)
    fill(log, 5, sync=False)
    log.truncate_to(offset)
    assert (log.log_end_offset, log.damage) == (offset, "")
    assert log.durable_end_offset == (15 if offset == 20 else offset)
    assert values(log) == [value_at(o) for o in range(offset)]
    fill(log, 3)
    log = killed(disk, config)
    assert values(log) == [value_at(o) for o in range(offset + 3)]


def test_truncating_inside_a_batch_takes_all_of_it() -> None:
    log = open_log(sim_disk())
    append(log, b"a")
    append(log, b"b", b"c", b"d")
    log.truncate_to(3)
    assert log.log_end_offset == 1


def test_truncating_inside_the_batch_that_holds_the_start_takes_the_start_back() -> None:
    disk = sim_disk()
    log = open_log(disk)
    append(log, b"a", b"b")
    append(log, b"c", b"d", b"e")
    log.sync()
    log.advance_log_start(3).run()
    log.truncate_to(4)
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)
    log = after_power_cut(disk)
    assert (log.log_start_offset, log.log_end_offset, log.damage) == (2, 2, "")
    append(log, b"on")
    assert values(log) == [b"on"]


def test_truncating_forgets_epochs_that_are_gone() -> None:
    log = open_log(sim_disk())
    for epoch in (0, 2, 3):
        fill(log, 4, leader_epoch=epoch)
    log.truncate_to(6)
    assert list(log.epochs) == [(0, 0), (2, 4)]
    append(log, b"x", leader_epoch=5)
    assert list(log.epochs) == [(0, 0), (2, 4), (5, 6)]


def test_a_reader_is_not_misled_by_where_batches_were_before_a_truncation() -> None:
    log = open_log(sim_disk(), ONE_SEGMENT)
    fill(log, 10)
    log.read(start_offset=0, end_offset=10, bytes_max=1_000)  # notes where the next one starts
    log.truncate_to(1)
    append(log, b"a longer one" * 30)
    fill(log, 8)
    for offset in range(1, 10):
        assert base_offsets_of(stored(log, offset))[0] == offset


def test_an_epoch_that_starts_at_the_cut_is_gone_from_the_disk_too() -> None:
    disk = sim_disk()
    first = open_log(disk)
    follow(first, leader_of((0, 4), (3, 3)))
    first.sync()
    first.truncate_to(4)
    for log in lives(first, disk, SMALL):
        assert list(log.epochs) == [(0, 0)]


@CONFIGS
@pytest.mark.parametrize("offset", [0, 1, 3, 5, 6, 10])
def test_a_follower_goes_on_with_the_new_leaders_batches(offset: int, config: TopicConfig) -> None:
    """S02, S03: the same offsets hold other bytes afterwards; epochs and producers follow."""
    old = leader_of((0, 5), (1, 6))
    disk = sim_disk()
    first = open_log(disk, config)
    follow(first, old)
    first.sync()
    new = old.fork(offset)
    new.fill(7, epoch=4, size=310)
    first.truncate_to(offset)
    follow(first, new)
    for log in lives(first, disk, config):
        assert log.damage == ""
        assert stored(log) == new.batches
        assert [log.epochs.epoch_at(o) for o in range(new.end)] == [
            0 if o < min(5, offset) else 1 if o < offset else 4 for o in range(new.end)
        ]
        assert as_model(log.producers)[7].sent[-1].last_offset == new.end - 1
        log.sync()


def test_an_epoch_that_starts_at_the_cut_goes_too() -> None:
    """Its batches are gone, and the leader may have older epochs there (as in Kafka)."""
    old = leader_of((0, 4), (3, 3))
    log = open_log(sim_disk())
    follow(log, old)
    new = old.fork(4)
    new.fill(1, epoch=2)
    log.truncate_to(4)
    assert (list(log.epochs), log.last_epoch) == ([(0, 0)], 0)
    follow(log, new)
    assert list(log.epochs) == [(0, 0), (2, 4)]


def test_producers_are_as_of_the_cut_whatever_newer_snapshots_say() -> None:
    """S27: a retry to this replica, once it leads, is judged by what it holds."""
    leader = leader_of((0, 12))
    disk = sim_disk()
    log = open_log(disk, SEGMENTED)
    for at in range(0, 12, 4):
        copy(log, leader.batches[at : at + 4])
        log.close()
        log = killed(disk, SEGMENTED)
    assert len(files(disk, ".producers")) > 1
    first = log
    first.truncate_to(5)
    for log in lives(first, disk, SEGMENTED):
        assert [sent.last_offset for sent in as_model(log.producers)[7].sent] == [0, 1, 2, 3, 4]
    assert max(files(disk, ".producers")).endswith("5.producers")
    first = log
    first.truncate_to(0)
    for log in lives(first, disk, SEGMENTED):
        assert as_model(log.producers) == {}


def test_the_ends_on_disk_go_back_before_anything_else_does() -> None:
    """A crash in the middle must not look like durable, or committed, records that are gone."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    log.note_high_watermark(20)
    log.close()
    log = killed(disk)
    disk.faults.append(Fault({"remove"}, error=None))
    with pytest.raises(Stopped):
        log.truncate_to(7)
    found = decode_slots(disk.durable_bytes(f"{DIRECTORY}/checkpoint") or b"")
    assert found is not None
    assert (found[1].durable_end_offset, found[1].high_watermark) == (7, 7)


@pytest.mark.parametrize("act", ["truncate_to", "restart_at"])
def test_indexes_are_gone_for_good_before_any_segment_goes(act: str) -> None:
    """An index says that what it covers was durable: without its segment, it tells of damage."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    log.close()
    log = killed(disk)
    indexes = files(disk, ".index")
    assert len(indexes) == log.segment_count > 3
    disk.faults.append(Fault({"remove"}, error=None, path="*.log"))
    with pytest.raises(Stopped):
        getattr(log, act)(0)
    assert [path for path in indexes if disk.durable_bytes(path) is not None] == []


def test_a_ticket_that_is_out_forbids_it() -> None:
    log = open_log(sim_disk())
    fill(log, 3, sync=False)
    task = log.begin_sync()
    assert task is not None
    for act in (log.truncate_to, log.restart_at):
        with pytest.raises(AssertionError, match="task"):
            act(1)
    task.run()
    log.complete_sync(task)
    log.truncate_to(1)


@pytest.mark.parametrize("is_run_before", [False, True])
def test_a_drop_that_is_out_is_done_before_the_cut_and_never_after(is_run_before: bool) -> None:
    """Else its snapshot and log start would speak of batches that are gone."""
    disk = sim_disk()
    log = open_log(disk, SEGMENTED)
    leader = leader_of((0, 12))
    follow(log, leader)
    disk.faults.append(Fault({"create"}, errno.ENOSPC, path="*.producers*"))
    log.sync()
    tasks = [log.advance_log_start(4), log.advance_log_start(7)]
    assert any(task.snapshot for task in tasks)
    if is_run_before:
        tasks[1].run()
    log.truncate_to(8)
    new = leader.fork(8)
    new.fill(5, epoch=1, is_sent=False)
    follow(log, new)
    log.sync()
    changes = disk.changes
    for task in reversed(tasks):
        task.run()
    assert disk.changes == changes
    log = after_power_cut(disk, SEGMENTED)
    assert (log.damage, log.log_start_offset, stored(log)) == ("", 7, new.after(7))
    assert as_model(log.producers)[7].sent[-1].last_offset == 7
    assert all(task.is_done for task in tasks)


def test_a_cut_that_fails_closes_the_log() -> None:
    for act in ("truncate_to", "restart_at"):
        for skip in range(8):
            disk = sim_disk()
            log = open_log(disk)
            fill(log, 9)
            disk.faults.append(Fault(CHANGES, skip=skip))
            with pytest.raises(StorageFailedError):
                getattr(log, act)(2)
            with pytest.raises(StorageFailedError):
                append(log, b"x")


def test_a_damaged_log_is_not_cut() -> None:
    """It is evidence; ``Store.quarantine`` is the way on."""
    log = open_log(sim_disk())
    fill(log, 5)
    log.note_damage("bad", offset=3)
    for act in (log.truncate_to, log.restart_at):
        with pytest.raises(DamagedLogError):
            act(2)


# -- beginning anew --------------------------------------------------------------------------------


@CONFIGS
@pytest.mark.parametrize("offset", [0, 3, 7, 12, 100])
def test_a_log_begun_anew_is_empty_and_knows_nothing(offset: int, config: TopicConfig) -> None:
    disk = sim_disk()
    first = open_log(disk, config)
    follow(first, leader_of((0, 5), (1, 7)))
    first.sync()
    first.note_high_watermark(9)
    first.restart_at(offset)
    for log in lives(first, disk, config):
        ends = (log.log_start_offset, log.log_end_offset, log.durable_end_offset)
        assert ends == (offset, offset, offset)
        assert (log.damage, log.size_bytes, log.high_watermark) == ("", 0, offset)
        assert (list(log.epochs), log.last_epoch, len(log.producers)) == ([], -1, 0)
        assert stored(log) == []
        log.restart_at(offset)
    assert files(disk, ".log") == files(disk, ".index") == files(disk, ".producers") == []
    leader = Leader(base=offset, chain=77 if offset else 0)
    leader.fill(6, epoch=0)
    follow(log, leader)
    log.sync()
    assert stored(after_power_cut(disk, config)) == leader.batches


def test_a_log_begun_anew_may_be_led() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 3)
    log.restart_at(50)
    append(log, b"first", leader_epoch=9)
    log.sync()
    log = after_power_cut(disk)
    assert (log.log_start_offset, values(log), log.damage) == (50, [b"first"], "")


def test_an_old_drop_does_not_reach_into_the_new_beginning() -> None:
    disk = sim_disk()
    log = open_log(disk, SEGMENTED)
    follow(log, leader_of((0, 12)))
    log.sync()
    task = log.advance_log_start(9)
    log.restart_at(0)
    follow(log, leader_of((1, 4)))
    task.run()
    log.sync()
    log = after_power_cut(disk, SEGMENTED)
    assert (log.log_start_offset, log.log_end_offset, log.damage) == (0, 4, "")


# -- the chain of a log whose batches are gone -----------------------------------------------------


def emptied(disk: SimDisk, count: int = 7) -> int:
    """A log of which every record was deleted; the chain value of the last one."""
    log = open_log(disk, SMALL)
    fill(log, count, leader_epoch=3)
    chain = log.chain
    log.advance_log_start(count).run()
    assert (log.size_bytes, log.chain) == (0, chain)
    return chain


def test_the_chain_goes_on_after_everything_was_deleted_and_the_process_restarted() -> None:
    """Else no replica that has the deleted batches could follow this leader."""
    disk = sim_disk()
    chain = emptied(disk)
    for log in lives(killed(disk), disk):
        assert (log.chain, log.chain_at(7), log.last_epoch) == (chain, chain, 3)
    append(log, b"next", leader_epoch=4)
    log.sync()
    follower = open_log(sim_disk(2))
    fill(follower, 7, leader_epoch=3)
    copy(follower, stored(log))
    assert values(follower)[-1] == b"next"
    assert after_power_cut(disk).chain == follower.chain


def test_the_first_batch_that_is_left_has_to_follow_from_those_that_were_deleted() -> None:
    """A tail that belongs to another log is cut, even where it is all that is left."""
    disk = sim_disk()
    emptied(disk)
    log = killed(disk)
    append(log, b"one", leader_epoch=4)
    (path,) = files(disk, ".log")
    other = Leader(base=7, chain=123)
    other.append(b"one", epoch=4)
    file = disk.open(path)
    file.truncate(0)
    file.append(other.batches)
    log = killed(disk)
    assert (log.log_end_offset, stored(log)) == (7, [])
    assert "chain" in " ".join(log.notes)


def test_a_cut_back_to_the_first_batch_leaves_the_chain_of_the_deleted_ones() -> None:
    disk = sim_disk()
    chain = emptied(disk)
    first = killed(disk)
    fill(first, 2, leader_epoch=4)
    first.truncate_to(7)
    for log in lives(first, disk):
        assert (log.chain, log.last_epoch, log.log_end_offset) == (chain, 3, 7)
    fill(log, 1, leader_epoch=5)
    assert values(log) == [value_at(7)]
