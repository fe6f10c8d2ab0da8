"""The record batch: its header, its checksums and the leader header. Not its payload.

A batch is the unit of compression, replication, checksum and I/O. Its header, little-endian:

     0 | magic u8 = 1      | layout u8 = 1 or 2 | leader_flags u16   | length u32, of all of it    |
     8 | base_offset i64                                                                           |
    16 | chain u64                                                                                 |
    24 | append_timestamp i64, ms, or -1                                                           |
    32 | leader_epoch i32, or -1                | leader_crc u32 = crc32c(bytes 0 to 36)           |
       +----- above: the leader header, rewritten at append; below: the producer's part, sealed ---+
    40 | crc32c u32 = crc32c(bytes 44 to length)| attributes u16     | producer_epoch i16, or -1   |
    48 | record_count u32                       | last_offset_delta u32                            |
    56 | first_timestamp i64, ms, of the first record                                              |
    64 | max_timestamp i64, ms, the highest of any record                                          |
    72 | producer_id i64, or -1                                                                    |
    80 | base_sequence i32, or -1               | uncompressed_length u32, of the payload          |
    88 | the payload: see raftlog.record.payload (layout 1) or raftlog.record.kafka_batch (layout 2)

    leader_flags  bit 0: LogAppendTime: every record's timestamp is append_timestamp
                  bit 1: compacted: written by a broker in place of one or more batches
    layout        1: columns, from raftlog's clients; 2: rows, as Kafka's clients sent them
    attributes    bits 0-2: codec (0 none, 1 gzip, 2 snappy, in layout 2 only, 3 lz4, 4 zstd)
                  bit 4: transactional; bit 5: control; bit 6, of a control batch only: commit
    chain         xxh3_64(chain of the batch before, u64 ‖ bytes 0 to 16 ‖ append_timestamp ‖
                  leader_epoch ‖ crc32c); before the first batch of a log it is 0. A compacted
                  batch has the chain value of the last batch that it replaces

A batch of layout 2 without timestamps has -1 in both fields: the leader sets bit 0 of its flags,
and the records get the time of the append.

A producer sends base_offset 0, chain 0, append_timestamp -1, leader_epoch -1, leader_flags 0. A bit
that is not named is 0: a batch with another bit set, another magic or another layout is refused.
A broker never changes the bytes that the producer sealed: it rewrites the first 40 bytes only.
Sequences count records modulo 2^31, as in Kafka: the one after 2147483647 is 0.

A compacted batch is sealed by the broker that created it (``raftlog.record.compaction``). It covers
the offsets of all batches that it replaces, so that a log has no gaps, and contains their retained
records. If there are none, record_count, first_timestamp and max_timestamp are 0.

A mirror (``raftlog.mirror``) copies a batch with its range of offsets, so that a copy of a
compacted batch has gaps too, and writes batches without records for offsets that its source has
deleted. They are not marked as compacted, because their chain value is computed like that of any
other batch. The sequences of their producer count offsets instead of records.

A control batch is a marker: the leader writes it where a transaction of ``producer_id`` ends. Its
one record is that of Kafka (layout 2), and no consumer gets it. So that brokers need the headers
only, bit 6 tells a commit from an abort, and base_sequence is the epoch of the transaction's
coordinator (Kafka's clients get -1).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from fastcrc.crc32 import iscsi
from xxhash import xxh3_64_intdigest

from raftlog import limits
from raftlog.errors import CorruptBatchError, counted
from raftlog.record.compression import Codec
from raftlog.types import NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, Buffer

MAGIC: Final = 1
COLUMNS: Final = 1  # the layouts
KAFKA_ROWS: Final = 2
LOG_APPEND_TIME: Final = 1 << 0  # the bits of leader_flags
COMPACTED: Final = 1 << 1
CODEC_MASK: Final = 0b111
TRANSACTIONAL: Final = 1 << 4
CONTROL: Final = 1 << 5
COMMIT: Final = 1 << 6  # of a control batch
NO_EPOCH: Final = -1

_LEADER_FIELDS: Final = "BBHIqQqi"
_LEADER_FIELDS_COUNT: Final = len(_LEADER_FIELDS)
_SUMS: Final = "II"
_SEALED_FIELDS: Final = "HhIIqqqiI"
_SEALED_FIELDS_COUNT: Final = len(_SEALED_FIELDS)
_HEADER: Final = struct.Struct("<" + _LEADER_FIELDS + _SUMS + _SEALED_FIELDS)
_LEADER: Final = struct.Struct("<" + _LEADER_FIELDS)  # covered by leader_crc
_SEALED: Final = struct.Struct("<" + _SEALED_FIELDS)  # covered by crc32c, before the payload
_CRC: Final = struct.Struct("<I")
_LENGTH: Final = struct.Struct("<I")
_LENGTH_POSITION: Final = 4
_PRODUCER_ID: Final = struct.Struct("<q")
_PRODUCER_ID_POSITION: Final = 72
_LINK: Final = struct.Struct("<BBHIqqiI")  # covered by chain, after the previous chain value

HEADER_BYTES: Final = 88
KAFKA_EXTRA_BYTES: Final = 41  # size of a stored batch of layout 2 minus that of the sent batch
LEADER_BYTES: Final = 40
_SEALED_POSITION: Final = LEADER_BYTES + _CRC.size
assert _HEADER.size == HEADER_BYTES, "the drawing above and the code disagree"
assert _LEADER.size + _CRC.size == LEADER_BYTES, "the drawing above and the code disagree"
assert _SEALED_POSITION + _SEALED.size == HEADER_BYTES, "the drawing above and the code disagree"

# First bytes of every batch: magic, layout, leader flags. For a search among other bytes.
BATCH_START: Final = re.compile(rb"(?=\x01[\x01\x02][\x00-\x03]\x00)", re.DOTALL)
BATCH_START_BYTES: Final = 4
_RECORD_BYTES_MIN: Final = {COLUMNS: 8, KAFKA_ROWS: 7}  # a payload is larger than this per record
_OFFSET_MAX: Final = (1 << 63) - 2  # so that the offset after it fits 63 bits too
_ATTRIBUTES: Final = frozenset(
    codec | transactional | control
    for codec in Codec
    for transactional in (0, TRANSACTIONAL)
    for control in (0, CONTROL)
) | {TRANSACTIONAL | CONTROL | COMMIT}


class BatchHeader(NamedTuple):
    """The fields of the format above. ``parse_header`` has checked their bounds."""

    magic: int
    layout: int
    leader_flags: int
    length: int
    base_offset: int
    chain: int
    append_timestamp: int
    leader_epoch: int
    leader_crc: int
    crc32c: int
    attributes: int
    producer_epoch: int
    record_count: int
    last_offset_delta: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    base_sequence: int
    uncompressed_length: int

    @property
    def next_offset(self) -> int:
        """The first offset after the batch, also if compaction has removed its last records."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & CODEC_MASK)

    @property
    def log_append_time(self) -> bool:
        return bool(self.leader_flags & LOG_APPEND_TIME)

    @property
    def is_compacted(self) -> bool:
        """Whether compaction has written it in place of one or more batches."""
        return bool(self.leader_flags & COMPACTED)

    @property
    def has_timestamps(self) -> bool:
        """Whether the producer sent timestamps. If not, records get the time of the append."""
        return self.max_timestamp != NO_TIMESTAMP or self.first_timestamp != NO_TIMESTAMP

    @property
    def newest_timestamp_ms(self) -> int:
        """The highest timestamp in ms that readers get for its records; 0 without records."""
        return self.append_timestamp if self.log_append_time else self.max_timestamp

    @property
    def has_producer(self) -> bool:
        """Whether an idempotent producer sent it. The broker then checks its sequence."""
        return self.producer_id != NO_PRODUCER_ID

    @property
    def sent_bytes(self) -> int:
        """The size in bytes of the batch as its producer sent it."""
        return self.length - (KAFKA_EXTRA_BYTES if self.layout == KAFKA_ROWS else 0)

    @property
    def is_dense(self) -> bool:
        """Whether it has a record for every offset of its range, as produced."""
        return self.last_offset_delta == self.record_count - 1

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_commit(self) -> bool:
        """Whether a control batch ends a transaction with a commit."""
        return bool(self.attributes & COMMIT)


@dataclass(frozen=True, slots=True)
class BatchBody:
    """An encoded payload and its header fields. ``seal`` creates the header of the batch."""

    payload: bytes
    codec: Codec
    uncompressed_length: int
    record_count: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    last_offset_delta: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, with its header."""
        return HEADER_BYTES + len(self.payload)


# -- reading ---------------------------------------------------------------------------------------


def parse_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Return the header at ``position``. Checks its fields, not the payload.

    The leader's CRC covers the length, so callers can use it to find the next batch. Raises
    ``CorruptBatchError``.
    """
    if len(data) - position < HEADER_BYTES:
        raise CorruptBatchError(
            f"a batch's header takes {HEADER_BYTES} bytes; at byte {position} there are "
            f"{max(len(data) - position, 0)}"
        )
    header = BatchHeader._make(_HEADER.unpack_from(data, position))
    if header.magic != MAGIC or header.layout not in _RECORD_BYTES_MIN:
        raise CorruptBatchError(
            f"at byte {position}: magic {header.magic} and layout {header.layout}, where this "
            f"release reads batches of magic {MAGIC} and layout {COLUMNS} or {KAFKA_ROWS}"
        )
    # guard: leader section CRC
    if crc32c(data[position : position + _LEADER.size]) != header.leader_crc:
        raise CorruptBatchError(
            f"at byte {position}: the first {_LEADER.size} bytes and their CRC disagree"
        )
    fault = _fault_of_leader(header) or _fault_of_producer(header)
    if fault:
        raise CorruptBatchError(f"at byte {position}, base offset {header.base_offset}: {fault}")
    return header


def _fault_of_leader(header: BatchHeader) -> str:
    """Return the fields of the leader header that are out of bounds; "" if none is."""
    _, _, flags, length, base_offset, _, append_ms, epoch = header[:_LEADER_FIELDS_COUNT]
    if flags & ~(LOG_APPEND_TIME | COMPACTED):
        return f"unknown leader flags {flags:#06x}"
    if not HEADER_BYTES < length <= limits.BATCH_BYTES_MAX:
        return f"length {length}, not {HEADER_BYTES + 1} to {limits.BATCH_BYTES_MAX}"
    if not 0 <= base_offset <= _OFFSET_MAX - header.last_offset_delta:
        return f"offsets from {base_offset} on leave the range of offsets"
    earliest_ms = 0 if flags else NO_TIMESTAMP
    if not earliest_ms <= append_ms <= limits.TIMESTAMP_MS_MAX:
        return f"append timestamp {append_ms} is not a time"
    if epoch < NO_EPOCH:
        return f"leader epoch {epoch} is negative"
    return ""


def _fault_of_producer(header: BatchHeader) -> str:
    """Return the producer's fields that are out of bounds; "" if none is."""
    # Runs for each batch: local variables are faster than the fields of a named tuple.
    attributes, epoch, count, delta, first_ms, max_ms, producer_id, sequence, size = header[
        -_SEALED_FIELDS_COUNT:
    ]
    is_columns = header.layout == COLUMNS
    codec = attributes & CODEC_MASK
    if attributes not in _ATTRIBUTES or (is_columns and codec == Codec.SNAPPY):
        return f"unknown attributes {attributes:#06x}"
    if count > limits.RECORDS_PER_BATCH_MAX:
        return f"{counted(count, 'record')}; a batch has 0 to {limits.RECORDS_PER_BATCH_MAX}"
    if not count and max_ms:
        return f"timestamp {max_ms} without a record"
    if not count - 1 <= delta <= limits.OFFSET_DELTA_MAX:
        return f"{counted(count, 'record')} in {counted(delta + 1, 'offset')}"
    if not is_columns and (header.is_compacted or not header.is_dense):
        return "a batch as a Kafka client sent it, and compacted"
    if not 0 <= first_ms <= max_ms <= limits.TIMESTAMP_MS_MAX:
        if is_columns or header.has_timestamps:
            return f"timestamps {first_ms} and {max_ms}: no times in order"
        if header.append_timestamp >= 0 and not header.log_append_time:
            return "records without timestamps, and not with the time of the append"
    if not count * _RECORD_BYTES_MIN[header.layout] < size <= limits.BATCH_UNCOMPRESSED_BYTES_MAX:
        return f"a payload of {size} bytes for {counted(count, 'record')}"
    if not codec and size != header.length - HEADER_BYTES:
        return f"{header.length - HEADER_BYTES} bytes of payload where {size} are promised"
    producer = producer_id, epoch, sequence
    if min(producer) < 0 and producer != (NO_PRODUCER_ID, NO_EPOCH, NO_SEQUENCE):
        return f"producer id, epoch and sequence {producer}: all must be given, or none (-1)"
    return ""


def length_at(data: Buffer, position: int) -> int:
    """Return the length field of the batch at ``position``. It is not checked."""
    return int(_LENGTH.unpack_from(data, position + _LENGTH_POSITION)[0])


def layout_at(data: Buffer) -> int:
    """Return the layout of the batch, unchecked; 0 if ``data`` is too short."""
    return data[1] if len(data) > 1 else 0


def producer_id_at(data: Buffer) -> int:
    """Return the producer ID of the batch, unchecked; -1 if ``data`` is too short."""
    if len(data) < HEADER_BYTES:
        return NO_PRODUCER_ID
    return int(_PRODUCER_ID.unpack_from(data, _PRODUCER_ID_POSITION)[0])


def uncompressed_length_at(data: Buffer) -> int:
    """Return the most bytes that validation of the batch may decompress. Checks nothing.

    0 if validation fails before it decompresses: the header is too short, or the length is over the
    limit.
    """
    if len(data) < HEADER_BYTES:
        return 0
    length = int(_LENGTH.unpack_from(data, HEADER_BYTES - _LENGTH.size)[0])
    return length if length <= limits.BATCH_UNCOMPRESSED_BYTES_MAX else 0


def check_length(data: Buffer) -> BatchHeader:
    """Return the header of ``data``, whose length must be that of exactly one batch.

    Raises ``CorruptBatchError``.
    """
    header = parse_header(data)
    if header.length != len(data):
        raise CorruptBatchError(
            f"base offset {header.base_offset}: {len(data)} bytes for a batch of {header.length}"
        )
    return header


def check(data: Buffer) -> BatchHeader:
    """Return the header of exactly one batch, after a check of both CRCs.

    Detects every change of a single bit. Does not decompress: see ``validate``. Raises
    ``CorruptBatchError``.
    """
    header = check_length(data)
    # guard: batch CRC, one batch
    if crc32c(memoryview(data)[_SEALED_POSITION:]) != header.crc32c:
        raise CorruptBatchError(
            f"base offset {header.base_offset}: the bytes and their CRC disagree"
        )
    return header


def check_batches(data: Buffer) -> list[BatchHeader]:
    """Return the headers of the consecutive batches in ``data``, each checked as by ``check``.

    Raises ``CorruptBatchError``, also if there is no batch or if the last one is incomplete.
    """
    headers = [header for header, _ in split_checked(data)]
    if not headers:
        raise CorruptBatchError(
            f"a batch's header takes {HEADER_BYTES} bytes; at byte 0 there are 0"
        )
    return headers


def split_checked(data: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the consecutive batches in ``data`` with their headers, each checked as by ``check``.

    Raises ``CorruptBatchError`` at the first batch that is corrupt or incomplete.
    """
    position = 0
    for header, batch in _split(data):
        # guard: batch CRC of replicated batches
        if crc32c(batch[_SEALED_POSITION:]) != header.crc32c:
            raise CorruptBatchError(
                f"at byte {position}, base offset {header.base_offset}: the bytes and their CRC "
                "disagree"
            )
        yield header, batch
        position += header.length


def split(data: Buffer) -> Iterator[memoryview]:
    """Yield the consecutive batches in ``data``. Checks their headers only.

    Raises ``CorruptBatchError`` at an incomplete last batch, after the complete ones.
    """
    return (batch for _, batch in _split(data))


def _split(data: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    view = memoryview(data)
    position, size = 0, len(view)
    while position < size:
        header = parse_header(view, position)
        end = position + header.length
        if end > size:
            raise CorruptBatchError(
                f"at byte {position}: {size - position} bytes of a batch of {header.length}"
            )
        yield header, view[position:end]
        position = end


# -- writing ---------------------------------------------------------------------------------------


def seal(
    body: BatchBody,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
) -> bytes:
    """Return the 88-byte header of ``body``. The batch is the header, then ``body.payload``.

    A retry of the same records has the same bytes, because the CRC covers the sequence.
    """
    return seal_payload(
        body.payload,
        layout=COLUMNS,
        attributes=body.codec | (TRANSACTIONAL if is_transactional else 0),
        record_count=body.record_count,
        last_offset_delta=body.last_offset_delta,
        first_timestamp_ms=body.first_timestamp_ms,
        max_timestamp_ms=body.max_timestamp_ms,
        producer=(producer_id, producer_epoch, base_sequence),
        uncompressed_length=body.uncompressed_length,
    )


def seal_payload(
    payload: Buffer,
    *,
    layout: int,
    attributes: int,
    record_count: int,
    last_offset_delta: int,
    first_timestamp_ms: int,
    max_timestamp_ms: int,
    producer: tuple[int, int, int],
    uncompressed_length: int,
) -> bytes:
    """Return the 88-byte header for a ``payload`` of either layout.

    ``producer``: ID, epoch and base sequence; each is -1 without a producer.
    """
    producer_id, producer_epoch, base_sequence = producer
    assert (producer_id >= 0) == (producer_epoch >= 0) == (base_sequence >= 0), "all or none"
    sealed = _SEALED.pack(
        attributes,
        producer_epoch,
        record_count,
        last_offset_delta,
        first_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        base_sequence,
        uncompressed_length,
    )
    length = HEADER_BYTES + len(payload)
    leader = _LEADER.pack(MAGIC, layout, 0, length, 0, 0, NO_TIMESTAMP, NO_EPOCH)
    crc = crc32c(payload, crc32c(sealed))
    return b"".join((leader, _CRC.pack(crc32c(leader)), _CRC.pack(crc), sealed))


def stamp(
    header: BatchHeader,
    *,
    base_offset: int,
    leader_epoch: int,
    append_timestamp_ms: int,
    log_append_time: bool,
    previous_chain: int,
) -> tuple[bytes, int]:
    """Return the leader header for a batch at ``base_offset``, and the batch's chain value.

    The batch to store is this header, then the batch's bytes from ``LEADER_BYTES`` on.
    """
    assert 0 <= base_offset <= _OFFSET_MAX - header.last_offset_delta
    assert leader_epoch >= 0 and 0 <= append_timestamp_ms <= limits.TIMESTAMP_MS_MAX
    # guard: records without timestamps get the time of the append
    flags = LOG_APPEND_TIME if log_append_time or not header.has_timestamps else 0
    link = _LINK.pack(
        MAGIC,
        header.layout,
        flags,
        header.length,
        base_offset,
        append_timestamp_ms,
        leader_epoch,
        header.crc32c,
    )
    chain = chain_link(previous_chain, link)
    leader = _LEADER.pack(
        MAGIC,
        header.layout,
        flags,
        header.length,
        base_offset,
        chain,
        append_timestamp_ms,
        leader_epoch,
    )
    return leader + _CRC.pack(crc32c(leader)), chain


def stamp_compacted(
    sealed: bytes,
    *,
    base_offset: int,
    leader_epoch: int,
    append_timestamp_ms: int,
    chain: int,
) -> bytes:
    """Return the header of a compacted batch: that of ``seal``, with the leader fields of the last
    batch that it replaces. The batch is this header, then its payload.
    """
    length = length_at(sealed, 0)
    leader = _LEADER.pack(
        MAGIC, COLUMNS, COMPACTED, length, base_offset, chain, append_timestamp_ms, leader_epoch
    )
    return leader + _CRC.pack(crc32c(leader)) + sealed[LEADER_BYTES:]


def verify_chain(header: BatchHeader, *, previous_chain: int) -> bool:
    """Return whether the batch was appended directly after the batch with ``previous_chain``.

    True for a compacted batch, which cannot be verified: the batches that it replaces are deleted.
    Its chain value is that of the last of them, so the next batch can be verified against it.
    """
    if header.is_compacted:
        return True
    link = _LINK.pack(
        header.magic,
        header.layout,
        header.leader_flags,
        header.length,
        header.base_offset,
        header.append_timestamp,
        header.leader_epoch,
        header.crc32c,
    )
    # guard: hash-chain value
    return header.chain == chain_link(previous_chain, link)


# -- checksum --------------------------------------------------------------------------------------
#
# The checksums of a batch: CRC-32C of its bytes, and XXH3-64 as the hash chain of a log.
#
# ``batch`` specifies the bytes that they cover. The CRC detects corrupt bytes. The chain compares
# logs: each value includes the one before it, so two logs with the same 8-byte value at an offset
# contain the same batches up to there.


crc32c: Final = iscsi
CHAIN_START: Final = 0  # the value before the first batch of a log

_PREVIOUS: Final = struct.Struct("<Q")


def chain_link(previous: int, link: bytes) -> int:
    """The value of a batch whose chained fields are ``link``, after a batch with ``previous``."""
    return xxh3_64_intdigest(_PREVIOUS.pack(previous) + link)
