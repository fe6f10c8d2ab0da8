"""Batches that are kept as they are: those of a leader, and those of Kafka's clients."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import (
    ChainMismatchError,
    CorruptBatchError,
    DamagedLogError,
    DiskFullError,
    InvalidRequestError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    StorageFailedError,
)
from raftlog.record import Codec, check_batch, parse_header, to_kafka, to_stored, validate
from raftlog.record.batch import COLUMNS, KAFKA_ROWS
from raftlog.storage import Appended, Log, ReplicatedAppend, inspect, state_files
from raftlog.testing.disk import Fault, SimDisk
from tests.record.batches import resealed, stamped
from tests.record.kafka_batches import (
    KAFKA_CODECS,
    KafkaRecord,
    kafka_batch,
    kafka_resealed,
    read_by_aiokafka,
)
from tests.storage.compactions import COMPACT, batches, compact, keys_and_values, put, seal
from tests.storage.logs import (
    DIRECTORY,
    NOW_MS,
    ONE_SEGMENT,
    SMALL,
    after_power_cut,
    append,
    batch_of,
    files,
    fill,
    killed,
    open_log,
    searched,
    sim_disk,
    stored,
    values,
)
from tests.storage.model import as_model
from tests.storage.replicas import (
    SEGMENTED,
    Leader,
    copy,
    everything,
    follow,
    leader_of,
    lives,
)

# -- batches of a leader ---------------------------------------------------------------------------

# Copying a leader's batches as they are: what is taken, what is refused, and what it leaves.


# -- what is taken ---------------------------------------------------------------------------------


def test_epochs_of_batches_that_were_not_written_are_forgotten() -> None:
    """Else the next epoch, which begins at the log's end, would begin before an older one."""
    leader = leader_of((0, 2), (1, 2))
    disk = sim_disk()
    log = open_log(disk, ONE_SEGMENT)
    follow(log, leader_of((0, 1)))
    disk.faults.append(Fault({"write"}, errno.ENOSPC, path="*.log"))
    with pytest.raises(DiskFullError):
        log.append_replicated(b"".join(leader.batches[1:]))
    assert (log.log_end_offset, list(log.epochs)) == (1, [(0, 0)])
    other = leader_of((0, 1), (2, 1))
    log.append_replicated(other.batches[1])
    assert list(log.epochs) == [(0, 0), (2, 1)]


@pytest.mark.parametrize("at_once", [1, 2, 5, 100])
@pytest.mark.parametrize("config", [SEGMENTED, ONE_SEGMENT], ids=["segments", "one segment"])
def test_a_follower_holds_the_leaders_bytes(config: TopicConfig, at_once: int) -> None:
    leader = leader_of((0, 4), (2, 3), (3, 4))
    disk = sim_disk()
    log = open_log(disk, config)
    follow(log, leader, at_once=at_once)
    assert stored(log) == leader.batches
    assert (log.log_end_offset, log.chain, log.last_epoch) == (11, leader.chain, 3)
    assert list(log.epochs) == [(0, 0), (2, 4), (3, 7)]
    assert log.durable_end_offset == 0
    log.sync()
    log = after_power_cut(disk, config)
    assert (stored(log), log.damage) == (leader.batches, "")
    assert list(log.epochs) == [(0, 0), (2, 4), (3, 7)]


def test_it_says_how_many_and_where_the_log_ends() -> None:
    leader = Leader()
    for count in (1, 4, 2):
        leader.append(*[b"x"] * count)
    log = open_log(sim_disk())
    assert copy(log, leader.batches[:2]) == ReplicatedAppend(2, 5)
    assert copy(log, leader.batches[2:]) == ReplicatedAppend(1, 7)


def test_any_buffer_will_do() -> None:
    leader = leader_of((0, 3))
    log = open_log(sim_disk())
    for batch, kind in zip(leader.batches, (bytes, bytearray, memoryview), strict=True):
        log.append_replicated(kind(batch))
    assert stored(log) == leader.batches


def test_what_a_real_leader_stored_can_be_copied() -> None:
    leader = open_log(sim_disk(1))
    fill(leader, 20)
    follower = open_log(sim_disk(2), SEGMENTED)
    copy(follower, leader.read(start_offset=0, end_offset=20, bytes_max=limits.MIB))
    assert (stored(follower), follower.chain) == (stored(leader), leader.chain)


def test_one_write_for_each_segment() -> None:
    leader = leader_of((0, 9))
    disk = sim_disk()
    log = open_log(disk, SEGMENTED)
    copy(log, leader.batches[:1])
    counter = Fault({"write"}, path="*.log", skip=1_000)
    disk.faults.append(counter)
    copy(log, leader.batches[1:])
    assert log.segment_count == 3
    assert counter.skip == 1_000 - 3


def test_segments_end_by_size_and_by_the_leaders_clock() -> None:
    config = TopicConfig(segment_bytes=1_300, segment_ms=1_000, retention_ms=-1)
    leader = Leader()
    for at_ms in (0, 999, 1_000, 1_001, 2_500, 2_400):
        leader.append(b"x", now_ms=NOW_MS + at_ms)
    log = open_log(sim_disk(), config)
    copy(log, leader.batches)
    assert [segment.base_offset for segment in log._segments] == [0, 2, 4]
    big = Leader()
    big.append(b"x" * 3_000)
    big.append(b"y" * 3_000)
    log = open_log(sim_disk(), config)
    copy(log, big.batches)
    assert [segment.base_offset for segment in log._segments] == [0, 1]


def test_a_follower_that_becomes_the_leader_goes_on_with_the_chain() -> None:
    leader = leader_of((0, 5))
    first, second = open_log(sim_disk(1)), open_log(sim_disk(2))
    follow(first, leader)
    follow(second, leader)
    first._begin_epoch(1)
    append(first, b"mine", leader_epoch=1)
    copy(second, stored(first, 5))
    assert stored(second) == stored(first)
    assert list(second.epochs) == list(first.epochs) == [(0, 0), (1, 5)]


def test_producers_are_noted_and_not_checked() -> None:
    """The leader may know of a producer what this replica does not."""
    leader = Leader()
    leader.append(b"a", producer=(7, 0, 41))
    leader.append(b"b", producer=(7, 0, 99))
    leader.append(b"c", producer=(7, 0, 99))
    log = open_log(sim_disk())
    copy(log, leader.batches)
    assert [sent.base_sequence for sent in as_model(log.producers)[7].sent] == [41, 99, 99]
    retry = batch_of([b"c"], producer=(7, 0, 99))
    assert log.append(retry, validate(retry), leader_epoch=5, now_ms=NOW_MS).duplicate


# -- what is refused, with nothing written ---------------------------------------------------------


def refused(log: Log, batches: list[bytes], error: type[Exception], match: str) -> None:
    before = everything(log)
    with pytest.raises(error, match=match):
        copy(log, batches)
    assert everything(log) == before


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_flipped_bit_anywhere_is_found_before_anything_is_written(bad: int) -> None:
    leader = leader_of((0, 5))
    log = open_log(sim_disk(), SEGMENTED)
    copy(log, leader.batches[:2])
    batches = leader.batches[2:]
    for position in (0, 5, 9, 17, 25, 33, 41, 60, 90, len(batches[bad]) - 1):
        rotten = bytearray(batches[bad])
        rotten[position] ^= 1
        copied = [*batches[:bad], bytes(rotten), *batches[bad + 1 :]]
        refused(log, copied, CorruptBatchError, "at byte")
    copy(log, batches)
    assert stored(log) == leader.batches


@pytest.mark.parametrize("cut", [1, 40, 87, 200])
def test_half_a_batch_is_refused(cut: int) -> None:
    leader = leader_of((0, 2))
    log = open_log(sim_disk())
    refused(log, [leader.batches[0], leader.batches[1][:cut]], CorruptBatchError, "at byte")
    refused(log, [], CorruptBatchError, "header takes 88 bytes")


def test_a_log_that_differs_below_is_told_by_the_chain() -> None:
    """S28: same offsets, same epochs, other bytes."""
    leader = leader_of((0, 3))
    other = leader.fork(2)
    other.append(b"another record altogether")
    assert other.end == leader.end
    log = open_log(sim_disk())
    follow(log, other)
    leader.fill(2)
    refused(log, leader.after(3), ChainMismatchError, "at offset 3 does not match")


def test_a_gap_inside_what_is_copied_is_refused() -> None:
    leader = leader_of((0, 5))
    log = open_log(sim_disk())
    refused(log, leader.batches[1:], CorruptBatchError, "offset 1, expected 0")
    refused(
        log,
        [*leader.batches[:2], *leader.batches[3:]],
        CorruptBatchError,
        "base offset 3, expected 2",
    )
    copy(log, leader.batches)
    refused(log, leader.batches[3:], CorruptBatchError, "base offset 3, expected 5")


def test_an_epoch_that_goes_back_is_refused() -> None:
    leader = leader_of((4, 2))
    leader.fill(1, epoch=3)
    log = open_log(sim_disk())
    refused(log, leader.batches, CorruptBatchError, "epoch 3")
    copy(log, leader.batches[:2])
    refused(log, leader.batches[2:], CorruptBatchError, "epoch 3")


def test_a_batch_that_no_leader_has_stamped_is_refused() -> None:
    log = open_log(sim_disk())
    refused(log, [batch_of([b"x"])], ChainMismatchError, "offset 0")
    unstamped = resealed(batch_of([b"x"]), base_offset=7)
    log.restart_at(7)  # where no chain is known
    refused(log, [unstamped], CorruptBatchError, "epoch -1")


def test_a_damaged_or_failed_log_takes_nothing() -> None:
    leader = leader_of((0, 4))
    log = open_log(sim_disk())
    copy(log, leader.batches[:2])
    log.note_damage("a bad batch", offset=1)
    with pytest.raises(DamagedLogError, match="a bad batch"):
        copy(log, leader.batches[2:])
    disk = sim_disk()
    log = open_log(disk)
    disk.faults.append(Fault({"write"}, path="*.log"))
    for _ in range(2):
        with pytest.raises(StorageFailedError):
            copy(log, leader.batches)


# -- epochs ----------------------------------------------------------------------------------------


def test_epochs_are_saved_with_the_next_sync() -> None:
    leader = leader_of((1, 2), (3, 1), (4, 1))
    disk = sim_disk()
    log = open_log(disk)
    copy(log, leader.batches[:1])
    log.sync()
    copy(log, leader.batches[1:])
    log.sync()
    epochs = state_files.decode(disk.durable_bytes(f"{DIRECTORY}/epochs") or b"", path="epochs")
    assert epochs == {"epochs": [[1, 0], [3, 2], [4, 3]]}


def test_an_epoch_whose_batches_never_came_gives_way_to_an_older_one() -> None:
    """The leader that wrote it is gone with its tail; the next one goes on from an older tail."""
    leader = leader_of((1, 3))
    disk = sim_disk()
    log = open_log(disk)
    follow(log, leader)
    log.sync()
    log._begin_epoch(5)
    log.sync()
    log = after_power_cut(disk)
    assert (log.leader_epoch, log.last_epoch) == (5, 1)
    leader.fill(2, epoch=2)
    leader.fill(1, epoch=6)
    follow(log, leader)
    assert list(log.epochs) == [(1, 0), (2, 3), (6, 5)]
    assert list(killed(disk).epochs) == [(1, 0), (2, 3), (6, 5)]


def test_a_leader_notes_its_epoch_though_nothing_follows() -> None:
    """S15 (KAFKA-15608), S17: it survives a restart."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 3, leader_epoch=2)
    log._begin_epoch(4)
    log._begin_epoch(4)
    log.sync()
    assert (log.leader_epoch, log.last_epoch) == (4, 2)
    for log in lives(killed(disk), disk):
        assert list(log.epochs) == [(2, 0), (4, 3)]
        assert log.epochs.end_of(3, log_end_offset=3) == (2, 3)
    append(log, b"x", leader_epoch=4)
    assert list(log.epochs) == [(2, 0), (4, 3)]
    with pytest.raises(AssertionError):
        log._begin_epoch(3)


def test_an_epoch_begun_here_gives_way_to_what_the_next_leader_has_there() -> None:
    """This broker led epoch 5 and wrote nothing; the leader of 6 has a tail of epoch 4."""
    leader = leader_of((1, 3))
    log = open_log(sim_disk())
    follow(log, leader)
    log._begin_epoch(5)
    leader.fill(1, epoch=4)
    leader.fill(1, epoch=6)
    follow(log, leader)
    assert list(log.epochs) == [(1, 0), (4, 3), (6, 4)]


# -- a log that does not begin at 0 ----------------------------------------------------------------


def test_a_log_begun_anew_takes_whatever_the_leader_has_there() -> None:
    leader = leader_of((0, 4), (3, 8))
    disk = sim_disk()
    log = open_log(disk, SEGMENTED)
    log.restart_at(6)
    copy(log, leader.after(6))
    assert (log.log_start_offset, stored(log)) == (6, leader.after(6))
    assert list(log.epochs) == [(3, 6)]
    log.sync()
    log = after_power_cut(disk, SEGMENTED)
    assert (log.damage, log.log_start_offset, stored(log)) == ("", 6, leader.after(6))


def test_a_log_begun_inside_the_leaders_first_batch_begins_where_that_begins() -> None:
    leader = Leader()
    for _ in range(4):
        leader.append(*[b"x"] * 5)
    disk = sim_disk()
    log = open_log(disk)
    log.restart_at(12)
    copy(log, leader.after(12))
    assert (log.log_start_offset, log.log_end_offset) == (10, 20)
    log.advance_log_start(12).run()
    assert values(log) == [b"x"] * 10
    log.sync()
    log = after_power_cut(disk)
    assert (log.damage, log.log_start_offset, stored(log)) == ("", 12, leader.after(12))


def test_a_batch_that_begins_below_a_known_end_is_refused() -> None:
    leader = Leader()
    for _ in range(2):
        leader.append(*[b"x"] * 5)
    other = leader_of((0, 7))
    log = open_log(sim_disk())
    follow(log, other)
    refused(log, leader.batches[1:], CorruptBatchError, "base offset 5, expected 7")


# -- a full or failing disk ------------------------------------------------------------------------


def room_for(disk: SimDisk, bytes_left: int) -> None:
    disk.capacity_bytes = limits.GIB
    disk.capacity_bytes -= disk.free_bytes(DIRECTORY) - bytes_left


def test_a_full_disk_leaves_whole_batches_and_a_log_that_goes_on() -> None:
    leader = leader_of((0, 12))
    disk = sim_disk()
    for room in range(0, 6_000, 250):
        disk = sim_disk()
        log = open_log(disk, SEGMENTED)
        copy(log, leader.batches[:2])
        room_for(disk, room)
        try:
            copy(log, leader.batches[2:])
        except DiskFullError:
            assert log.log_end_offset < 12
        assert stored(log) == leader.batches[: log.log_end_offset]
        disk.capacity_bytes = None
        follow(log, leader)
        assert stored(log) == leader.batches
        log.sync()
        log = after_power_cut(disk, SEGMENTED)
        assert (stored(log), log.damage) == (leader.batches, "")


def test_a_follower_syncs_like_a_leader() -> None:
    leader = leader_of((0, 12))
    disk = sim_disk()
    log = open_log(disk, SEGMENTED)
    copy(log, leader.batches[:7])
    task = log.begin_sync()
    assert task is not None
    copy(log, leader.batches[7:])
    task.run()
    log.complete_sync(task)
    assert (log.durable_end_offset, log.log_end_offset) == (7, 12)
    log.close()
    assert len(files(disk, ".index")) == log.segment_count
    assert stored(after_power_cut(disk, SEGMENTED)) == leader.batches


def test_log_append_time_is_the_leaders() -> None:
    batch = stamped(
        batch_of([b"x"], timestamps_ms=5), append_timestamp_ms=NOW_MS, log_append_time=True
    )
    log = open_log(sim_disk())
    log.append_replicated(batch)
    found = searched(log.offset_for_timestamp(NOW_MS, end_offset=1))
    assert found is not None
    assert found.timestamp_ms == NOW_MS


# -- kafka batches ---------------------------------------------------------------------------------

# Batches of Kafka's clients in a log: kept as they are, found, read, compacted as others.


def append_sent(log: Log, sent: bytes, *, now_ms: int = NOW_MS) -> Appended:
    batch = to_stored(check_batch(sent))
    return log.append(batch, parse_header(batch), leader_epoch=0, now_ms=now_ms)


def sent_of(*keys: bytes, codec: Codec = Codec.NONE, timestamp_ms: int = NOW_MS) -> bytes:
    records = [KafkaRecord(b"value of " + key * 20, key, timestamp_ms) for key in keys]
    return kafka_batch(records, codec=codec)


@pytest.mark.parametrize("codec", KAFKA_CODECS)
def test_both_layouts_are_read_in_their_order_also_after_a_crash(codec: Codec) -> None:
    disk = sim_disk()
    log = open_log(disk)
    append(log, b"first")
    append_sent(log, sent_of(b"a", b"b", codec=codec))
    append(log, b"last")
    log.sync()
    before = stored(log)
    log = killed(disk)
    assert stored(log) == before
    assert [row[0] for row in keys_and_values(log)] == [0, 1, 2, 3]
    contents = [
        entry["value"]
        for row in inspect.dump(disk, DIRECTORY)
        for entry in row.to_dict(records=True)["content"]
    ]
    assert contents == [b"first", b"value of " + b"a" * 20, b"value of " + b"b" * 20, b"last"]
    (report,) = inspect.verify(disk, DIRECTORY)
    assert not report.problems


def test_a_follower_copies_what_the_leader_has() -> None:
    leader, follower = open_log(sim_disk()), open_log(sim_disk(2))
    append(leader, b"first")
    append_sent(leader, sent_of(b"a", b"b", codec=Codec.SNAPPY))
    follower.append_replicated(b"".join(stored(leader)))
    assert stored(follower) == stored(leader)


def test_a_batch_that_is_sent_again_is_stored_once() -> None:
    log = open_log(sim_disk())
    records = [KafkaRecord(b"a"), KafkaRecord(b"b")]
    for sequence in (0, 2):
        append_sent(log, kafka_batch(records, producer=(5, 0, sequence)))
    again = append_sent(log, kafka_batch(records, producer=(5, 0, 2)))
    assert (again.duplicate, again.base_offset, log.log_end_offset) == (True, 2, 4)
    with pytest.raises(OutOfOrderSequenceError):
        append_sent(log, kafka_batch(records, producer=(5, 0, 5)))


def test_records_are_found_by_their_time() -> None:
    log = open_log(sim_disk())
    for hour in range(20):
        append_sent(log, sent_of(b"a", b"b", codec=Codec.LZ4, timestamp_ms=NOW_MS - 90 + hour))
    found = searched(log.offset_for_timestamp(NOW_MS - 80, end_offset=log.log_end_offset))
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (20, NOW_MS - 80)


def test_records_without_timestamps_are_found_by_the_time_of_the_append() -> None:
    log = open_log(sim_disk())
    sent = kafka_resealed(sent_of(b"a"), base_timestamp=-1, max_timestamp=-1)
    for second in range(3):
        append_sent(log, sent, now_ms=NOW_MS + second)
    found = searched(log.offset_for_timestamp(NOW_MS + 1, end_offset=log.log_end_offset))
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (1, NOW_MS + 1)


def test_settings_of_the_topic_are_kept() -> None:
    log = open_log(
        sim_disk(), replace(SMALL, max_message_bytes=1000, message_timestamp_after_max_ms=10)
    )
    overhead = len(kafka_batch([KafkaRecord(bytes(900))])) - 900
    append_sent(log, kafka_batch([KafkaRecord(bytes(1000 - overhead))]))
    with pytest.raises(RecordTooLargeError, match="batch of 1001 bytes"):
        append_sent(log, kafka_batch([KafkaRecord(bytes(1001 - overhead))]))
    with pytest.raises(InvalidRequestError, match=r"message\.timestamp\.after\.max\.ms"):
        append_sent(log, sent_of(b"a", timestamp_ms=NOW_MS + 11))


def test_compaction_makes_columns_of_what_it_keeps() -> None:
    log = open_log(sim_disk(), COMPACT)
    for keys in ((b"a", b"b"), (b"a", b"c"), (b"c", b"d")):
        append_sent(log, sent_of(*keys, codec=Codec.SNAPPY))
    put(log, (b"b", b"columns"))
    append_sent(log, sent_of(b"e"))
    seal(log)
    append_sent(log, sent_of(b"f"))
    assert compact(log) > 0
    kept = [(offset, key) for offset, key, _ in keys_and_values(log)]
    assert kept == [(2, b"a"), (4, b"c"), (5, b"d"), (6, b"b"), (7, b"e"), (8, b"f")]
    layouts = {batch.header.layout for batch in batches(log)}
    assert layouts == {COLUMNS, KAFKA_ROWS}
    for data, header in batches(log):
        again = b"".join(to_kafka(data))
        offsets, _ = read_by_aiokafka(again)
        assert offsets == [row[0] for row in keys_and_values(log) if row[0] in offsets]
        assert int.from_bytes(again[23:27]) == header.last_offset_delta
