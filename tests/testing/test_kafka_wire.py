"""The client's side of Kafka's wire: requests and responses of any version, and record batches."""

from __future__ import annotations

import struct

import pytest

from raftlog.kafka import api as apis
from raftlog.kafka import codec
from raftlog.record import Codec, encode, seal, stamp, to_kafka
from raftlog.record.batch import LEADER_BYTES, parse_header
from raftlog.testing.kafka_wire import batches_of, encoded, request, response
from raftlog.types import ConsumerRecord, TopicPartition
from tests.record.kafka_batches import KafkaRecord, kafka_batch, kafka_resealed

HERE = TopicPartition("t", 3)
RECORDS = [
    KafkaRecord(b"one", b"key", 5_000, (("name", b"x"), ("none", None))),
    KafkaRecord(None, None, 4_000),
    KafkaRecord(b"three" * 50, b"", 9_000),
]


def read(data: bytes) -> list[tuple[int, int, list[ConsumerRecord]]]:
    return list(batches_of(HERE, memoryview(data)))


@pytest.mark.parametrize("codec_", Codec)
def test_batches_are_read_as_clients_write_them(codec_: Codec) -> None:
    batch = kafka_resealed(kafka_batch(RECORDS, codec=codec_), base_offset=100, leader_epoch=7)
    expected = [
        ConsumerRecord(*HERE, 100 + row, *record[1::-1], record.headers, record.timestamp_ms, 7)
        for row, record in enumerate(RECORDS)
    ]
    assert read(batch) == [(103, 7, expected)]
    assert read(batch + batch[:-1]) == [(103, 7, expected)], "the rest of a batch is ignored"


def test_compacted_batches_and_append_times_are_read() -> None:
    body = encode([b"a", b"b"], timestamps_ms=1, offset_deltas=[1, 4], last_offset_delta=8)
    batch = seal(body) + body.payload
    leader, _ = stamp(
        parse_header(batch),
        base_offset=10,
        leader_epoch=2,
        append_timestamp_ms=77,
        log_append_time=True,
        previous_chain=0,
    )
    ((next_offset, epoch, records),) = read(b"".join(to_kafka(leader + batch[LEADER_BYTES:])))
    assert (next_offset, epoch) == (19, 2)
    assert [(each.offset, each.value, each.timestamp_ms) for each in records] == [
        (11, b"a", 77),
        (14, b"b", 77),
    ]


def test_a_corrupt_batch_is_noticed() -> None:
    batch = bytearray(kafka_batch(RECORDS))
    batch[-1] ^= 1
    with pytest.raises(AssertionError, match="CRC"):
        read(bytes(batch))


def test_a_request_has_a_header_and_a_response_is_read() -> None:
    sent = request(apis.HEARTBEAT, 4, correlation_id=9, client_id=b"me")
    assert struct.unpack_from(">ihhih2sb", sent) == (len(sent) - 4, 12, 4, 9, 2, b"me", 0)
    message = codec.structs("response", apis.HEARTBEAT.key).root(error_code=27)
    data = b"\0\0\0\x09\0" + encoded("response", apis.HEARTBEAT, 4, message)
    assert response(apis.HEARTBEAT, 4, struct.pack(">i", len(data)) + data) == (9, message)
