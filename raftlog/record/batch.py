"""The record batch: its header, the sums that protect it, the leader's stamp. Not its payload.

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
                  bit 1: compacted: what a broker has left of one batch or of several
    layout        1: columns, from raftlog's clients; 2: rows, from Kafka's clients, as they came
    attributes    bits 0-2: codec (0 none, 1 gzip, 2 snappy, in layout 2 only, 3 lz4, 4 zstd)
                  bit 4: transactional; bit 5: control
    chain         xxh3_64(chain of the batch before, u64 ‖ bytes 0 to 16 ‖ append_timestamp ‖
                  leader_epoch ‖ crc32c); before the first batch of a log it is 0. Of a compacted
                  batch: the chain value of the last of the batches that it stands for

A batch of layout 2 without timestamps has -1 as both: it gets the time of its append, by bit 0 of
the leader's flags.

A producer sends base_offset 0, chain 0, append_timestamp -1, leader_epoch -1, leader_flags 0. A bit
that is not named is 0: a batch with another bit set, another magic or another layout is refused.
What the producer sealed is never changed: a broker rewrites the first 40 bytes and passes the
rest on. Sequences count records modulo 2^31, as in Kafka: the one after 2147483647 is 0.

A compacted batch is sealed by the broker that made it (``raftlog.record.compaction``). It covers
the offsets of all the batches it stands for, so that a log has no gaps, and holds those of their
records that were kept: maybe none, then record_count, first_timestamp and max_timestamp are 0.

A mirror (``raftlog.mirror``) copies a batch with its range of offsets, so that a copy of a
compacted batch has gaps too, and writes batches without records for offsets that its source has
deleted. They are not marked as compacted, because their chain value is computed like that of any
other batch. What a batch says of its producer counts offsets in place of records.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from raftlog import limits
from raftlog.errors import CorruptBatchError
from raftlog.record import checksum
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
NO_EPOCH: Final = -1

_LEADER_FIELDS: Final = "BBHIqQqi"
_LEADER_FIELDS_COUNT: Final = len(_LEADER_FIELDS)
_SUMS: Final = "II"
_SEALED_FIELDS: Final = "HhIIqqqiI"
_SEALED_FIELDS_COUNT: Final = len(_SEALED_FIELDS)
_HEADER: Final = struct.Struct("<" + _LEADER_FIELDS + _SUMS + _SEALED_FIELDS)
_LEADER: Final = struct.Struct("<" + _LEADER_FIELDS)  # what leader_crc covers
_SEALED: Final = struct.Struct("<" + _SEALED_FIELDS)  # what crc32c covers, before the payload
_CRC: Final = struct.Struct("<I")
_LENGTH: Final = struct.Struct("<I")
_LENGTH_POSITION: Final = 4
_PRODUCER_ID: Final = struct.Struct("<q")
_PRODUCER_ID_POSITION: Final = 72
_LINK: Final = struct.Struct("<BBHIqqiI")  # what chain covers, after the chain before

HEADER_BYTES: Final = 88
KAFKA_EXTRA_BYTES: Final = 41  # of a stored batch of layout 2, over the one that the client sent
LEADER_BYTES: Final = 40
_SEALED_POSITION: Final = LEADER_BYTES + _CRC.size
assert _HEADER.size == HEADER_BYTES, "the drawing above and the code disagree"
assert _LEADER.size + _CRC.size == LEADER_BYTES, "the drawing above and the code disagree"
assert _SEALED_POSITION + _SEALED.size == HEADER_BYTES, "the drawing above and the code disagree"

# What every batch begins with: magic, layout, leader flags. To look for one among other bytes.
BATCH_START: Final = re.compile(rb"(?=\x01[\x01\x02][\x00-\x03]\x00)", re.DOTALL)
BATCH_START_BYTES: Final = 4
_RECORD_BYTES_MIN: Final = {COLUMNS: 8, KAFKA_ROWS: 7}  # in a payload, which has more than that
_OFFSET_MAX: Final = (1 << 63) - 2  # so that the offset after it fits 63 bits too
_ATTRIBUTES: Final = frozenset(
    codec | transactional | control
    for codec in Codec
    for transactional in (0, TRANSACTIONAL)
    for control in (0, CONTROL)
)


class BatchHeader(NamedTuple):
    """The fields as drawn above. From ``parse_header`` they are within their bounds."""

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
        """The first offset after the batch. Records that compaction dropped keep their offsets."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & CODEC_MASK)

    @property
    def log_append_time(self) -> bool:
        return bool(self.leader_flags & LOG_APPEND_TIME)

    @property
    def is_compacted(self) -> bool:
        """Whether a broker has written it in place of one batch or of several, to save room."""
        return bool(self.leader_flags & COMPACTED)

    @property
    def has_timestamps(self) -> bool:
        """Whether its records came with timestamps. If not, they get the time of the append."""
        return self.max_timestamp != NO_TIMESTAMP or self.first_timestamp != NO_TIMESTAMP

    @property
    def newest_timestamp_ms(self) -> int:
        """The highest timestamp that any of its records has for a reader; 0 without records."""
        return self.append_timestamp if self.log_append_time else self.max_timestamp

    @property
    def has_producer(self) -> bool:
        """Whether an idempotent producer sent it, so that its sequence has to be checked."""
        return self.producer_id != NO_PRODUCER_ID

    @property
    def sent_bytes(self) -> int:
        """The size of the batch as its producer sent it."""
        return self.length - (KAFKA_EXTRA_BYTES if self.layout == KAFKA_ROWS else 0)

    @property
    def is_dense(self) -> bool:
        """Whether it holds every offset of its range: as produced, before any compaction."""
        return self.last_offset_delta == self.record_count - 1

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)


@dataclass(frozen=True, slots=True)
class BatchBody:
    """An encoded payload and what its header has to say about it. Becomes a batch by ``seal``."""

    payload: bytes
    codec: Codec
    uncompressed_length: int
    record_count: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    last_offset_delta: int

    @property
    def size_bytes(self) -> int:
        """Of the whole batch, header included."""
        return HEADER_BYTES + len(self.payload)


# -- reading ---------------------------------------------------------------------------------------


def parse_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header at ``position``, with its fields checked but not what follows it.

    The leader's CRC covers the length, so a length from here is good enough to read on with.
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
    if checksum.crc32c(data[position : position + _LEADER.size]) != header.leader_crc:
        raise CorruptBatchError(
            f"at byte {position}: the first {_LEADER.size} bytes and their CRC disagree"
        )
    fault = _fault_of_leader(header) or _fault_of_producer(header)
    if fault:
        raise CorruptBatchError(f"at byte {position}, base offset {header.base_offset}: {fault}")
    return header


def _fault_of_leader(header: BatchHeader) -> str:
    """Return the fields of the leader's section that are out of bounds; "" if none is."""
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
    """Return the fields of the producer's section that are out of bounds; "" if none is."""
    # A header is parsed for each batch: local names cost less than the fields of a named tuple.
    attributes, epoch, count, delta, first_ms, max_ms, producer_id, sequence, size = header[
        -_SEALED_FIELDS_COUNT:
    ]
    is_columns = header.layout == COLUMNS
    codec = attributes & CODEC_MASK
    if attributes not in _ATTRIBUTES or (is_columns and codec == Codec.SNAPPY):
        return f"unknown attributes {attributes:#06x}"
    if count > limits.RECORDS_PER_BATCH_MAX:
        return f"{count} records; a batch has 0 to {limits.RECORDS_PER_BATCH_MAX}"
    if not count and max_ms:
        return f"timestamp {max_ms} without a record"
    if not count - 1 <= delta <= limits.OFFSET_DELTA_MAX:
        return f"{count} records do not fit {delta + 1} offsets"
    if not is_columns and (header.is_compacted or not header.is_dense):
        return "a batch as a Kafka client sent it, and compacted"
    if not 0 <= first_ms <= max_ms <= limits.TIMESTAMP_MS_MAX:
        if is_columns or header.has_timestamps:
            return f"timestamps {first_ms} and {max_ms}: no times in order"
        if header.append_timestamp >= 0 and not header.log_append_time:
            return "records without timestamps, and not with the time of the append"
    if not count * _RECORD_BYTES_MIN[header.layout] < size <= limits.BATCH_UNCOMPRESSED_BYTES_MAX:
        return f"a payload of {size} bytes for {count} records"
    if not codec and size != header.length - HEADER_BYTES:
        return f"{header.length - HEADER_BYTES} bytes of payload where {size} are promised"
    producer = producer_id, epoch, sequence
    if min(producer) < 0 and producer != (NO_PRODUCER_ID, NO_EPOCH, NO_SEQUENCE):
        return f"producer id, epoch and sequence {producer}: all must be given, or none (-1)"
    return ""


def length_at(data: Buffer, position: int) -> int:
    """What the batch at ``position`` says of its length. Nothing is checked: it may be anything."""
    return int(_LENGTH.unpack_from(data, position + _LENGTH_POSITION)[0])


def layout_at(data: Buffer) -> int:
    """The layout of the batch, unchecked; 0 for what is too short to have one."""
    return data[1] if len(data) > 1 else 0


def producer_id_at(data: Buffer) -> int:
    """The producer's id in the batch, unchecked; -1 for what is too short to have one."""
    if len(data) < HEADER_BYTES:
        return NO_PRODUCER_ID
    return int(_PRODUCER_ID.unpack_from(data, _PRODUCER_ID_POSITION)[0])


def uncompressed_length_at(data: Buffer) -> int:
    """What validating the batch may unpack, at most; nothing of it is checked.

    0 for what is refused before that: too short to say it, or over the limit.
    """
    if len(data) < HEADER_BYTES:
        return 0
    length = int(_LENGTH.unpack_from(data, HEADER_BYTES - _LENGTH.size)[0])
    return length if length <= limits.BATCH_UNCOMPRESSED_BYTES_MAX else 0


def check_length(data: Buffer) -> BatchHeader:
    """The header of what is, by its length, exactly one whole batch."""
    header = parse_header(data)
    if header.length != len(data):
        raise CorruptBatchError(
            f"base offset {header.base_offset}: {len(data)} bytes for a batch of {header.length}"
        )
    return header


def check(data: Buffer) -> BatchHeader:
    """The header of exactly one whole batch whose bytes are what its producer and leader wrote.

    Detects every change of a single bit. Does not decompress: see ``validate``.
    """
    header = check_length(data)
    if checksum.crc32c(memoryview(data)[_SEALED_POSITION:]) != header.crc32c:
        raise CorruptBatchError(
            f"base offset {header.base_offset}: the bytes and their CRC disagree"
        )
    return header


def check_batches(data: Buffer) -> list[BatchHeader]:
    """The headers of the batches that lie back to back in ``data``, each checked as by ``check``.

    Raises ``CorruptBatchError``: also for none at all, and for one that is cut short at the end.
    """
    view = memoryview(data)
    headers: list[BatchHeader] = []
    position = 0
    while position < len(view) or not headers:
        header = parse_header(view, position)
        end = position + header.length
        if end > len(view):
            raise CorruptBatchError(
                f"at byte {position}: {len(view) - position} bytes of a batch of {header.length}"
            )
        if checksum.crc32c(view[position + _SEALED_POSITION : end]) != header.crc32c:
            raise CorruptBatchError(
                f"at byte {position}, base offset {header.base_offset}: the bytes and their CRC "
                "disagree"
            )
        headers.append(header)
        position = end
    return headers


def split(data: Buffer) -> Iterator[memoryview]:
    """The batches that lie back to back in ``data``, unchecked except for their headers.

    A batch that is cut short at the end raises ``CorruptBatchError``, after those before it came.
    """
    view = memoryview(data)
    position = 0
    while position < len(view):
        end = position + parse_header(view, position).length
        if end > len(view):
            raise CorruptBatchError(
                f"at byte {position}: {len(view) - position} bytes of a batch of {end - position}"
            )
        yield view[position:end]
        position = end


# -- writing ---------------------------------------------------------------------------------------


def seal(
    body: BatchBody, *, producer_id: int = -1, producer_epoch: int = -1, base_sequence: int = -1
) -> bytes:
    """The 88-byte header that makes ``body`` a batch: the header, then ``body.payload``.

    A retry of the same records repeats these bytes: the sequence is part of what the CRC covers.
    """
    return seal_payload(
        body.payload,
        layout=COLUMNS,
        attributes=body.codec,
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
    """The 88-byte header for a ``payload`` of either layout. ``producer``: id, epoch, sequence."""
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
    crc = checksum.crc32c(payload, checksum.crc32c(sealed))
    return b"".join((leader, _CRC.pack(checksum.crc32c(leader)), _CRC.pack(crc), sealed))


def stamp(
    header: BatchHeader,
    *,
    base_offset: int,
    leader_epoch: int,
    append_timestamp_ms: int,
    log_append_time: bool,
    previous_chain: int,
) -> tuple[bytes, int]:
    """The leader's section for a batch at ``base_offset``, and the batch's chain value.

    The batch to store is this section followed by the batch's bytes from ``LEADER_BYTES`` on.
    """
    assert 0 <= base_offset <= _OFFSET_MAX - header.last_offset_delta
    assert leader_epoch >= 0 and 0 <= append_timestamp_ms <= limits.TIMESTAMP_MS_MAX
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
    chain = checksum.chain(previous_chain, link)
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
    return leader + _CRC.pack(checksum.crc32c(leader)), chain


def stamp_compacted(
    sealed: bytes,
    *,
    base_offset: int,
    leader_epoch: int,
    append_timestamp_ms: int,
    chain: int,
) -> bytes:
    """The header of a compacted batch: ``seal``'s, and what it takes over from the last of the
    batches that it stands for. The batch is this and then its payload.
    """
    length = length_at(sealed, 0)
    leader = _LEADER.pack(
        MAGIC, COLUMNS, COMPACTED, length, base_offset, chain, append_timestamp_ms, leader_epoch
    )
    return leader + _CRC.pack(checksum.crc32c(leader)) + sealed[LEADER_BYTES:]


def verify_chain(header: BatchHeader, *, previous_chain: int) -> bool:
    """Whether the batch is the one that was appended after the batch with ``previous_chain``.

    Of a compacted one this cannot be told: it may stand for more batches than one, and those are
    gone. True, then; its own value is good all the same, and the batch after it tells.
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
    return header.chain == checksum.chain(previous_chain, link)
