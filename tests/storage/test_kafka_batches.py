"""Batches of Kafka's clients in a log: kept as they are, found, read, compacted as others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftlog.errors import InvalidRequestError, OutOfOrderSequenceError, RecordTooLargeError
from raftlog.record import Codec, check_batch, parse_header, to_kafka, to_stored
from raftlog.record.batch import COLUMNS, KAFKA_ROWS
from raftlog.storage import Appended, Log, inspect
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
    SMALL,
    append,
    killed,
    open_log,
    searched,
    sim_disk,
    stored,
)


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
