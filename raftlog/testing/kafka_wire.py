"""A Kafka client's side of the wire, for tests: it writes requests and what members of a
classic group exchange, and reads responses and record batches.

The batches are read by the format's specification (``raftlog.record.kafka_batch``) without the code
that brokers use.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from raftlog import limits
from raftlog.kafka import api as apis
from raftlog.kafka import codec
from raftlog.kafka.api import Api
from raftlog.record import Codec
from raftlog.record.batch import crc32c
from raftlog.record.kafka_compression import decompress
from raftlog.types import ConsumerRecord, Headers, LeaderEpoch, Offset, TopicPartition

_FRONT: Final = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, crc
_SEALED: Final = struct.Struct(">hiqqqhii")  # covered by the crc, before the records
_LENGTH_END: Final = 12
_SEALED_POSITION: Final = 21
_RECORDS_POSITION: Final = 61
_LOG_APPEND_TIME: Final = 1 << 3
_CODEC_MASK: Final = 7


def encoded(kind: codec.Kind, api: Api, version: int, message: Any) -> bytes:
    """The bytes of a message without its header."""
    pieces: list[Any] = []
    codec.finish(codec.writer(kind, api.key, version)(message, pieces.append))
    return b"".join(pieces)


def request(
    api: Api,
    version: int,
    message: Any = None,
    *,
    correlation_id: int = 7,
    client_id: bytes = b"test",
    body: bytes | None = None,
) -> bytes:
    """A request with its length; ``body`` in place of an encoded ``message``."""
    if body is None:
        if message is None:
            message = codec.structs("request", api.key).root()
        body = encoded("request", api, version, message)
    head = struct.pack(">hhi", api.key, version, correlation_id)
    head += struct.pack(">h", len(client_id)) + client_id
    if codec.is_flexible(api.key, version):
        head += b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def response(api: Api, version: int, data: bytes) -> tuple[int, Any]:
    """The correlation id and the message of a response, given with its length."""
    view = memoryview(data)
    assert int.from_bytes(view[:4], "big") == len(view) - 4
    correlation_id = int.from_bytes(view[4:8], "big")
    at = 8
    if api is not apis.API_VERSIONS and codec.is_flexible(api.key, version):
        assert view[at] == 0
        at += 1
    message, end = codec.finish(codec.reader("response", api.key, version)(view, at))
    assert end == len(view)
    return correlation_id, message


def subscription(*topics: str) -> bytes:
    """The metadata of a member of a classic group, version 0: topics, and no user data."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def assignment(topic: str, *partitions: int) -> bytes:
    """The assignment of such a member, version 0: partitions of a topic, and no user data."""
    name = struct.pack(">h", len(topic)) + topic.encode()
    numbers = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return struct.pack(">hi", 0, 1) + name + numbers + struct.pack(">i", -1)


def batches_of(
    partition: TopicPartition, data: memoryview
) -> Iterator[tuple[Offset, LeaderEpoch, list[ConsumerRecord]]]:
    """Yield of each complete batch the offset after it, its leader epoch, and its records."""
    at = 0
    while len(data) - at >= _RECORDS_POSITION:
        base_offset, length, epoch, magic, crc = _FRONT.unpack_from(data, at)
        end = at + _LENGTH_END + length
        if end > len(data):
            return
        assert magic == 2, magic
        assert crc32c(data[at + _SEALED_POSITION : end]) == crc, f"{partition}: {base_offset}: CRC"
        sealed = _SEALED.unpack_from(data, at + _SEALED_POSITION)
        attributes, last_delta, base_ms, max_ms, _, _, _, count = sealed
        section = data[at + _RECORDS_POSITION : end]
        rows = _Rows(
            decompress(section, Codec(attributes & _CODEC_MASK), size_max=limits.BATCH_BYTES_MAX)
        )
        records: list[ConsumerRecord] = []
        for _ in range(count):
            time_delta, offset_delta, key, value, headers = rows.row()
            is_stamped = attributes & _LOG_APPEND_TIME
            record: ConsumerRecord[Any, Any] = ConsumerRecord(
                *partition,
                base_offset + offset_delta,
                key,
                value,
                headers,
                max_ms if is_stamped else base_ms + time_delta,
                epoch,
            )
            records.append(record)
        rows.check_end()
        yield base_offset + last_delta + 1, epoch, records
        at = end


class _Rows:
    """Reader of a records section."""

    def __init__(self, data: Any) -> None:
        self._data = memoryview(data)
        self._at = 0

    def row(self) -> tuple[int, int, bytes | None, bytes | None, Headers]:
        """Return timestamp delta, offset delta, key, value and headers of the next record."""
        end = self._varint()
        end += self._at
        self._at += 1  # attributes, unused
        time_delta, offset_delta = self._varint(), self._varint()
        key, value = self._octets(), self._octets()
        headers = tuple(
            ((self._octets() or b"").decode(), self._octets()) for _ in range(self._varint())
        )
        assert self._at == end, "length of a record"
        return time_delta, offset_delta, key, value, headers

    def check_end(self) -> None:
        assert self._at == len(self._data), "bytes after the last record"

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)

    def _octets(self) -> bytes | None:
        size = self._varint()
        if size < 0:
            return None
        self._at += size
        return bytes(self._data[self._at - size : self._at])
