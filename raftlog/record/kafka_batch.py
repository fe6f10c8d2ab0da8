"""Batches of Kafka's clients: checked, stored as sent, and returned as sent.

A Kafka client sends and receives record batches of Kafka's format 2 (magic 2), big-endian:

     0 | base_offset i64
     8 | batch_length i32, of all that follows | partition_leader_epoch i32
    16 | magic i8 = 2 | crc u32 = crc32c(bytes 21 to the end)
    21 | attributes i16 | last_offset_delta i32
    27 | base_timestamp i64, to which the records' timestamps are deltas
    35 | max_timestamp i64
    43 | producer_id i64 | producer_epoch i16 | base_sequence i32
    57 | record_count i32
    61 | the records section

    attributes    bits 0-2: codec (0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd)
                  bit 3: LogAppendTime; bit 4: transactional; bit 5: control; bit 6: delete horizon

A log stores it with the header of ``raftlog.record.batch``, with layout 2, and the payload of
``raftlog.record.kafka_rows``. Fields that clients leave inconsistent are corrected as
Kafka's broker corrects them: ``max_timestamp``, and epoch and sequence without a producer ID. The
CRC is then computed again. Therefore a fetch of the batch consists of 61 bytes that are computed,
and of the stored bytes.

Source: Kafka's documentation, "Record Batch"; ``LogValidator`` of Kafka's broker for the checks.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from raftlog import limits
from raftlog.errors import CorruptBatchError, KafkaBatchError, KafkaBatchFault
from raftlog.record import kafka_compression, kafka_rows
from raftlog.record.batch import (
    CODEC_MASK,
    COMMIT,
    CONTROL,
    HEADER_BYTES,
    KAFKA_EXTRA_BYTES,
    KAFKA_ROWS,
    NO_EPOCH,
    TRANSACTIONAL,
    BatchHeader,
    check_length,
    crc32c,
    seal_payload,
)
from raftlog.record.codec import open_batch, too_old
from raftlog.record.compression import Codec
from raftlog.record.kafka_rows import PREFIX
from raftlog.types import NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, Buffer, TimestampMs

if TYPE_CHECKING:
    from raftlog.transactions import Marker

_MAGIC: Final = 2
_FRONT: Final = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, crc
_SEALED: Final = struct.Struct(">hiqqqhii")  # covered by the crc, before the records
_SEALED_POSITION: Final = 21
_LENGTH_END: Final = 12
KAFKA_HEADER_BYTES: Final = 61
_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_POSITION: Final = 43
assert HEADER_BYTES + PREFIX.size == KAFKA_HEADER_BYTES + KAFKA_EXTRA_BYTES
assert _FRONT.size == _SEALED_POSITION, "the drawing above and the code disagree"
assert _SEALED_POSITION + _SEALED.size == KAFKA_HEADER_BYTES, "the drawing and the code disagree"

_LOG_APPEND_TIME: Final = 1 << 3  # in Kafka's attributes; bits 4 and 5 are raftlog's too
_KNOWN_ATTRIBUTES: Final = CODEC_MASK | TRANSACTIONAL  # the others are cleared: Kafka ignores them
_CODECS: Final = frozenset(Codec)

# Compaction stores a batch as columns. These are upper bounds of the additional bytes compared with
# rows: a timestamp has 8 bytes instead of 1, a null has 4, and so on. See ``payload``.
_COLUMNS_EXTRA_BYTES: Final = 128
_COLUMNS_EXTRA_RECORD_BYTES: Final = 32
_COLUMNS_EXTRA_HEADER_BYTES: Final = 12


class KafkaProducer(NamedTuple):
    """The producer of a batch, and the sequence number of the batch's first record."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class _Sealed(NamedTuple):
    """The fields that Kafka's CRC covers, before the records."""

    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


class CheckedBatch(NamedTuple):
    """A batch of a Kafka client that can be stored. ``section``: its records, as sent.

    Timestamps are those of the records: the first's and the highest; both -1 if it has none.
    ``kafka_crc`` is that of the batch with its corrected fields.
    """

    section: Buffer
    kafka_crc: int
    kafka_attributes: int
    record_count: int
    base_timestamp_ms: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    uncompressed_bytes: int  # of the records section

    @property
    def codec(self) -> Codec:
        return Codec(self.kafka_attributes & CODEC_MASK)

    @property
    def is_transactional(self) -> bool:
        return bool(self.kafka_attributes & TRANSACTIONAL)


# -- produce ---------------------------------------------------------------------------------------


def kafka_producer_at(data: Buffer) -> KafkaProducer:
    """Return the producer of a client's batch, unchecked; all -1 if ``data`` is too short."""
    if len(data) < KAFKA_HEADER_BYTES:
        return KafkaProducer(NO_PRODUCER_ID, NO_EPOCH, NO_SEQUENCE)
    return KafkaProducer._make(_PRODUCER.unpack_from(data, _PRODUCER_POSITION))


def check_batch(
    data: Buffer,
    *,
    uncompressed_max: int = limits.BATCH_UNCOMPRESSED_BYTES_MAX,
    keys_required: bool = False,
    is_stamped: bool = False,
    oldest_ms: TimestampMs = 0,
) -> CheckedBatch:
    """Check the batch that a Kafka client sent for one partition, with each of its records.

    ``data``: the field ``records`` of the request, which must be exactly one batch.
    ``uncompressed_max``: the most bytes that its records may have, decompressed.
    ``keys_required``: whether a record without a key is an error, as in a compacted topic.
    ``is_stamped``: whether the leader stamps records with its time. ``oldest_ms``: the lowest
    timestamp that the topic accepts.
    Raises ``KafkaBatchError``, whose ``kind`` is Kafka's error.
    """
    _check_whole(data)
    sealed = _Sealed._make(_SEALED.unpack_from(data, _SEALED_POSITION))
    _check_fields(sealed, is_stamped=is_stamped)
    codec = Codec(sealed.attributes & CODEC_MASK)
    section = memoryview(data)[KAFKA_HEADER_BYTES:]
    count = sealed.record_count
    try:
        rows = kafka_compression.decompress(
            section, codec, size_max=min(uncompressed_max, limits.BATCH_UNCOMPRESSED_BYTES_MAX)
        )
        facts = kafka_rows.check(rows, count)
    except CorruptBatchError as error:
        raise KafkaBatchError(str(error), KafkaBatchFault.INVALID_RECORD) from error
    # guard: Kafka batch: keys
    if keys_required and facts.keyless:
        raise KafkaBatchError(
            f"record {facts.keyless[0]} has no key, and the topic is compacted",
            KafkaBatchFault.INVALID_RECORD,
            facts.keyless,
        )
    _check_columns_size(len(rows), count, facts.header_count)
    base = sealed.base_timestamp
    min_ms, max_ms = base + facts.min_delta, base + facts.max_delta
    has_times = not min_ms == max_ms == NO_TIMESTAMP
    # guard: Kafka batch: timestamps
    if has_times and not 0 <= min_ms <= max_ms <= limits.TIMESTAMP_MS_MAX:
        _refuse(
            KafkaBatchFault.INVALID_TIMESTAMP,
            f"timestamps from {min_ms} to {max_ms} ms are not all within 0 and "
            f"{limits.TIMESTAMP_MS_MAX}, nor all absent (-1)",
        )
    # guard: Kafka batch: the oldest timestamp
    if has_times and min_ms < oldest_ms:
        _refuse(KafkaBatchFault.INVALID_TIMESTAMP, too_old(min_ms, oldest_ms))
    # guard: Kafka batch: the highest timestamp
    right = sealed._replace(attributes=sealed.attributes & _KNOWN_ATTRIBUTES, max_timestamp=max_ms)
    if sealed.producer_id < 0:
        right = right._replace(
            producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH, base_sequence=NO_SEQUENCE
        )
    is_right = right == sealed
    crc = _crc_of(data) if is_right else crc32c(section, crc32c(_SEALED.pack(*right)))
    return CheckedBatch(
        section=section,
        kafka_crc=crc,
        kafka_attributes=right.attributes,
        record_count=count,
        base_timestamp_ms=base,
        first_timestamp_ms=base + facts.first_delta,
        max_timestamp_ms=max_ms,
        producer_id=right.producer_id,
        producer_epoch=right.producer_epoch,
        base_sequence=right.base_sequence,
        uncompressed_bytes=len(rows),
    )


def _check_whole(data: Buffer) -> None:
    """Check that these bytes are exactly one batch, with a correct CRC."""
    if len(data) < KAFKA_HEADER_BYTES:
        _refuse(KafkaBatchFault.CORRUPT_MESSAGE, f"{len(data)} bytes are not a record batch")
    # guard: Kafka batch: size
    if len(data) > limits.BATCH_BYTES_MAX - KAFKA_EXTRA_BYTES:
        _refuse(
            KafkaBatchFault.MESSAGE_TOO_LARGE,
            f"record batch of {len(data)} bytes; the limit is {limits.BATCH_BYTES_MAX}",
        )
    offset, length, _epoch, magic, crc = _FRONT.unpack_from(data)
    # guard: Kafka batch: format
    if magic != _MAGIC:
        _refuse(
            KafkaBatchFault.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"record batch of magic {magic}; only {_MAGIC} is accepted",
        )
    rest = len(data) - _LENGTH_END
    # guard: Kafka batch: one batch
    if length < rest and length >= KAFKA_HEADER_BYTES - _LENGTH_END:
        _refuse(
            KafkaBatchFault.INVALID_RECORD,
            f"{rest - length} bytes follow the record batch. Send one batch for each partition",
        )
    if length != rest:
        _refuse(KafkaBatchFault.CORRUPT_MESSAGE, f"record batch of length {length} in {rest} bytes")
    # guard: Kafka batch: CRC
    if crc32c(memoryview(data)[_SEALED_POSITION:]) != crc:
        _refuse(KafkaBatchFault.CORRUPT_MESSAGE, "the record batch and its CRC-32C disagree")
    if offset:
        _refuse(
            KafkaBatchFault.INVALID_RECORD,
            f"record batch with base offset {offset}: the leader assigns offsets. Send 0",
        )


def _check_fields(sealed: _Sealed, *, is_stamped: bool) -> None:
    """Check that these are the fields of a batch that a producer may send."""
    if sealed.attributes & CODEC_MASK not in _CODECS:
        _refuse(
            KafkaBatchFault.UNSUPPORTED_COMPRESSION_TYPE,
            f"unknown codec {sealed.attributes & CODEC_MASK}",
        )
    if sealed.attributes & _LOG_APPEND_TIME and is_stamped:
        _refuse(
            KafkaBatchFault.INVALID_TIMESTAMP,
            "Producer should not set timestamp type to LogAppendTime: the leader does",
        )
    # guard: Kafka batch: control batches
    if sealed.attributes & CONTROL:
        _refuse(KafkaBatchFault.INVALID_RECORD, "a producer does not send control batches")
    count = sealed.record_count
    # guard: Kafka batch: number of records
    if not 1 <= count <= limits.RECORDS_PER_BATCH_MAX:
        _refuse(
            KafkaBatchFault.INVALID_RECORD,
            f"{count} records; a batch has 1 to {limits.RECORDS_PER_BATCH_MAX}",
        )
    # guard: Kafka batch: offsets are dense
    if sealed.last_offset_delta != count - 1:
        _refuse(
            KafkaBatchFault.INVALID_RECORD,
            f"last offset delta {sealed.last_offset_delta} of {count} records",
        )
    producer = sealed.producer_id, sealed.producer_epoch, sealed.base_sequence
    # guard: Kafka batch: producer fields
    if min(producer) < 0 <= sealed.producer_id:
        _refuse(
            KafkaBatchFault.INVALID_RECORD,
            f"producer ID, epoch and sequence {producer}: all must be at least 0",
        )


def _check_columns_size(rows_bytes: int, count: int, header_count: int) -> None:
    """Check that the batch fits as columns, because compaction and conversion store columns."""
    columns_bytes = (
        HEADER_BYTES
        + rows_bytes
        + _COLUMNS_EXTRA_BYTES
        + _COLUMNS_EXTRA_RECORD_BYTES * count
        + _COLUMNS_EXTRA_HEADER_BYTES * header_count
    )
    # guard: Kafka batch: room for columns
    if columns_bytes > limits.BATCH_BYTES_MAX:
        _refuse(
            KafkaBatchFault.MESSAGE_TOO_LARGE,
            f"{count} records with {header_count} headers and {rows_bytes} bytes take up to "
            f"{columns_bytes} bytes as columns, over {limits.BATCH_BYTES_MAX}. Send fewer records "
            "in a batch",
        )


def _refuse(kind: KafkaBatchFault, message: str) -> NoReturn:
    raise KafkaBatchError(message, kind)


def _crc_of(data: Buffer) -> int:
    crc: int = _FRONT.unpack_from(data)[-1]
    return crc


def to_stored(batch: CheckedBatch) -> bytearray:
    """Return the batch as a producer's batch of layout 2, which a leader stamps and appends."""
    prefix = PREFIX.pack(batch.kafka_crc, batch.kafka_attributes, batch.base_timestamp_ms)
    stored = bytearray().join((bytes(HEADER_BYTES), prefix, batch.section))
    with memoryview(stored)[HEADER_BYTES:] as payload:
        header = seal_payload(
            payload,
            layout=KAFKA_ROWS,
            attributes=batch.kafka_attributes & (CODEC_MASK | TRANSACTIONAL | CONTROL),
            record_count=batch.record_count,
            last_offset_delta=batch.record_count - 1,
            first_timestamp_ms=batch.first_timestamp_ms,
            max_timestamp_ms=batch.max_timestamp_ms,
            producer=(batch.producer_id, batch.producer_epoch, batch.base_sequence),
            uncompressed_length=PREFIX.size + batch.uncompressed_bytes,
        )
    stored[:HEADER_BYTES] = header
    return stored


# -- markers ---------------------------------------------------------------------------------------


_MARKER_KEY: Final = struct.Struct(">hh")  # version 0; type 0 abort, 1 commit
_MARKER_VALUE: Final = struct.Struct(">hi")  # version 0, epoch of the coordinator


def marker_batch(marker: Marker, *, now_ms: TimestampMs) -> bytes:
    """Return the control batch of a marker, for a leader to stamp and append.

    Source: Kafka's ``EndTransactionMarker`` and ``ControlRecordType``.
    """
    key = _MARKER_KEY.pack(0, marker.is_commit)
    value = _MARKER_VALUE.pack(0, marker.coordinator_epoch)
    # Zigzag varints: the length of the row, attributes, deltas of time and offset, and lengths.
    row = b"".join((b"\x00\x00\x00\x08", key, b"\x0c", value, b"\x00"))
    row = bytes([2 * len(row)]) + row
    kafka_attributes = TRANSACTIONAL | CONTROL
    producer = marker.producer_id, marker.producer_epoch, marker.coordinator_epoch
    sealed = _Sealed(kafka_attributes, 0, now_ms, now_ms, *producer[:2], NO_SEQUENCE, 1)
    crc = crc32c(row, crc32c(_SEALED.pack(*sealed)))
    payload = PREFIX.pack(crc, kafka_attributes, now_ms) + row
    header = seal_payload(
        payload,
        layout=KAFKA_ROWS,
        attributes=kafka_attributes | (COMMIT if marker.is_commit else 0),
        record_count=1,
        last_offset_delta=0,
        first_timestamp_ms=now_ms,
        max_timestamp_ms=now_ms,
        producer=producer,
        uncompressed_length=len(payload),
    )
    return header + payload


# -- fetch -----------------------------------------------------------------------------------------


def to_kafka(batch: Buffer) -> list[Buffer]:
    """Return a stored batch as Kafka's clients read it, as buffers to send one after the other.

    Of layout 2: 61 bytes, and a view of the stored bytes. Of layout 1: rows of its columns,
    compressed if the batch is. Raises ``CorruptBatchError``.
    """
    header = check_length(batch)
    if header.layout == KAFKA_ROWS:
        return _rows_as_stored(batch, header)
    return _rows_of_columns(batch)


class ConvertedBatches:
    """The batches of columns that were converted last: the consumers of a topic's tail read the
    same ones, and the rows of one batch cost as much as storing it did.

    A batch is known by its place and its header, whose chain and CRCs cover its bytes. The place
    counts because a client could give a batch of one topic the header of another topic's.
    """

    def __init__(self, bytes_max: int = limits.KAFKA_CONVERTED_BYTES_MAX) -> None:
        self._rows: OrderedDict[tuple[str, int, bytes], list[Buffer]] = OrderedDict()
        self._bytes, self._bytes_max = 0, bytes_max

    def find(self, topic: str, partition: int, batch: Buffer) -> list[Buffer] | None:
        """Return the rows of ``batch``, whose CRCs the caller has verified, if they are kept."""
        key = _place_of(topic, partition, batch)
        rows = self._rows.get(key)
        if rows is not None:
            self._rows.move_to_end(key)
        return rows

    def keep(self, topic: str, partition: int, batch: Buffer, rows: list[Buffer]) -> None:
        """Keep ``rows``, the result of ``to_kafka``, in place of those that were read least
        recently. Rows of more than a quarter of the limit are not kept."""
        key = _place_of(topic, partition, batch)
        size = _size(rows)
        if key in self._rows or size > self._bytes_max // 4:
            return
        self._rows[key] = rows
        self._bytes += size
        while self._bytes > self._bytes_max:
            self._bytes -= _size(self._rows.popitem(last=False)[1])


def _place_of(topic: str, partition: int, batch: Buffer) -> tuple[str, int, bytes]:
    return topic, partition, bytes(batch[:HEADER_BYTES])


def _size(rows: list[Buffer]) -> int:
    return HEADER_BYTES + sum(map(len, rows))


def _rows_as_stored(batch: Buffer, header: BatchHeader) -> list[Buffer]:
    payload = memoryview(batch)[HEADER_BYTES:]
    if len(payload) < PREFIX.size:
        raise CorruptBatchError(f"base offset {header.base_offset}: no payload of layout 2")
    crc, attributes, base_timestamp = PREFIX.unpack_from(payload)
    section = payload[PREFIX.size :]
    sealed = _sealed_of(header, attributes, base_timestamp)
    if header.log_append_time:
        # A CRC that is computed over corrupt bytes would hide the corruption from the client.
        # guard: Kafka batch: CRC before LogAppendTime
        if crc32c(section, crc32c(_SEALED.pack(*sealed))) != crc:
            raise CorruptBatchError(
                f"base offset {header.base_offset}: the records and Kafka's CRC disagree"
            )
        return _with_append_time(header, sealed, section)
    return [_kafka_header(header, sealed, crc, section), section]


def _rows_of_columns(batch: Buffer) -> list[Buffer]:
    header, rows = open_batch(batch, check_crc=True)
    section, codec = b"", Codec.NONE
    if header.record_count:
        section, codec = kafka_compression.compress(kafka_rows.write(rows, header), header.codec)
    attributes = header.attributes & (TRANSACTIONAL | CONTROL) | codec
    base_timestamp = header.first_timestamp if header.record_count else NO_TIMESTAMP
    sealed = _sealed_of(header, attributes, base_timestamp)
    if header.log_append_time:
        return _with_append_time(header, sealed, section)
    crc = crc32c(section, crc32c(_SEALED.pack(*sealed)))
    return [_kafka_header(header, sealed, crc, section), section]


def _sealed_of(header: BatchHeader, attributes: int, base_timestamp: int) -> _Sealed:
    return _Sealed(
        attributes,
        header.last_offset_delta,
        base_timestamp,
        header.max_timestamp if header.record_count else NO_TIMESTAMP,
        header.producer_id,
        header.producer_epoch,
        NO_SEQUENCE if header.is_control else header.base_sequence,
        header.record_count,
    )


def _with_append_time(header: BatchHeader, sealed: _Sealed, section: Buffer) -> list[Buffer]:
    stamped = sealed._replace(
        attributes=sealed.attributes | _LOG_APPEND_TIME, max_timestamp=header.append_timestamp
    )
    crc = crc32c(section, crc32c(_SEALED.pack(*stamped)))
    return [_kafka_header(header, stamped, crc, section), section]


def _kafka_header(header: BatchHeader, sealed: _Sealed, crc: int, section: Buffer) -> bytes:
    length = KAFKA_HEADER_BYTES - _LENGTH_END + len(section)
    front = _FRONT.pack(header.base_offset, length, header.leader_epoch, _MAGIC, crc)
    return front + _SEALED.pack(*sealed)
