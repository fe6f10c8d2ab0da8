"""Batches of Kafka clients for tests: proper ones by another library, and forged ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from raftlog.record import LEADER_BYTES, Codec, check_batch, parse_header, stamp, to_stored
from raftlog.record.batch import crc32c
from raftlog.types import Headers
from tests.record.batches import NOW_MS

KAFKA_CODECS: Final = tuple(Codec)
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")


class KafkaRecord(NamedTuple):
    """A record as a Kafka client writes it, or as it reads it."""

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = NOW_MS
    headers: Headers = ()


class KafkaHeader(NamedTuple):
    """The fields before the records section."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


def kafka_batch(
    records: Sequence[KafkaRecord],
    *,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """A batch as aiokafka sends it."""
    builder = DefaultRecordBatchBuilder(2, int(codec), 0, *producer, 1 << 30)
    for row, record in enumerate(records):
        added = builder.append(
            row, record.timestamp_ms, record.key, record.value, list(record.headers)
        )
        assert added is not None
    return bytes(builder.build())


def read_by_aiokafka(batch: bytes) -> tuple[list[int], list[KafkaRecord]]:
    """The offsets and the records of a batch as a Kafka client reads it."""
    opened = DefaultRecordBatch(bytearray(batch))
    assert opened.validate_crc()
    offsets, records = [], []
    for record in opened:
        offsets.append(record.offset)
        stamp_ms, headers = record.timestamp, tuple(record.headers)
        records.append(KafkaRecord(record.value, record.key, stamp_ms, headers))
    return offsets, records


def kafka_header(batch: bytes) -> KafkaHeader:
    return KafkaHeader._make(_HEADER.unpack_from(batch))


def kafka_resealed(batch: bytes, section: bytes | None = None, **fields: int) -> bytes:
    """The batch with other ``fields`` or another section, and a CRC and length that agree."""
    rest = batch[_HEADER.size :] if section is None else section
    header = kafka_header(batch)._replace(length=_HEADER.size - 12 + len(rest))._replace(**fields)
    sealed = _HEADER.pack(*header)[21:] + rest
    if "crc" not in fields:
        header = header._replace(crc=crc32c(sealed))
    return _HEADER.pack(*header)[:21] + sealed


def as_stored(batch: bytes, **stamp_options: Any) -> bytes:
    """The batch of a Kafka client as a leader stores it."""
    sent = bytes(to_stored(check_batch(batch)))
    options = {
        "base_offset": 0,
        "leader_epoch": 0,
        "append_timestamp_ms": NOW_MS,
        "log_append_time": False,
        "previous_chain": 0,
    } | stamp_options
    section, _ = stamp(parse_header(sent), **options)
    return section + sent[LEADER_BYTES:]
