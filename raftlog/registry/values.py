"""Values with the ID of their schema: their bytes, and Python objects.

Confluent's format, which serializers of Kafka write:

    | magic 0, 1 byte | ID, 4 bytes, big-endian | of Protobuf: message indexes | encoded value |

Message indexes are the path of the message in its file, as zigzag varints: the number of indexes
and the indexes; a single 0 for the first message. Newer serializers can put the GUID of the schema
into the header ``__value_schema_id`` of the record instead: magic 1 and 16 bytes; or magic 0 and
the ID. Keys have the same format, and the header ``__key_schema_id``. Pure.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from raftlog import limits
from raftlog.errors import SchemaError
from raftlog.record import decode_lists
from raftlog.record.codec import open_batch
from raftlog.record.payload import u32_array
from raftlog.registry.formats import AVRO, JSON, PROTOBUF, Parsed, library
from raftlog.types import Buffer

MAGIC_ID: Final = 0
MAGIC_GUID: Final = 1
PREFIX: Final = struct.Struct(">BI")
VALUE: Final = "value"
KEY: Final = "key"
ID_HEADERS: Final = {VALUE: "__value_schema_id", KEY: "__key_schema_id"}
_GUID_BYTES: Final = 16

assert PREFIX.size == 5, "the format above and the code disagree"

# Of a schema in a value: the ID, or the GUID.
SchemaKey: TypeAlias = int | str


class Row(NamedTuple):
    """A record of a batch that has a value, or a key. ``schema``: None if it names none. ``body``:
    the value without the ID.
    """

    row: int
    schema: SchemaKey | None
    body: bytes


def split_value(data: Buffer) -> tuple[int, memoryview]:
    """Return the ID of a value, and the rest. Raises ``SchemaError`` if it has none."""
    if len(data) < PREFIX.size or data[0] != MAGIC_ID:
        raise SchemaError(
            "the value does not begin with a zero byte and the ID of a schema. Its producer uses "
            "no serializer with a schema registry",
            40403,
        )
    _, schema_id = PREFIX.unpack_from(data)
    return schema_id, memoryview(data)[PREFIX.size :]


def with_id(schema_id: int, body: bytes) -> bytes:
    """Return a value with the ID of its schema."""
    return PREFIX.pack(MAGIC_ID, schema_id) + body


def ids_of(batch: Buffer, part: str = VALUE) -> tuple[set[int], list[int]]:
    """Return the IDs in the values, or keys, of a batch that was checked before, and the rows of
    values without one. No Python runs for each record.
    """
    import numpy as np

    _, rows = open_batch(batch, check_crc=False)
    if part == VALUE:
        found = rows.value_lengths, rows.value_nulls, rows.value_blob
    else:
        found = rows.key_lengths, rows.key_nulls, rows.key_blob
    packed, nulls, data = found
    if packed is None:  # tombstones, or no keys
        return set(), []
    lengths = u32_array(packed).astype(np.int64)
    is_value = np.ones(len(lengths), bool)
    if nulls is not None:
        is_value[u32_array(nulls)] = False
    starts = np.cumsum(lengths) - lengths
    blob = np.frombuffer(data, np.uint8)
    is_long = lengths >= PREFIX.size
    has_id = is_long.copy()
    has_id[is_long] = blob[starts[is_long]] == MAGIC_ID
    chosen = starts[is_value & has_id]
    ids = np.zeros(len(chosen), np.int64)
    for at in range(1, PREFIX.size):
        ids = (ids << 8) | blob[chosen + at]
    return set(np.unique(ids).tolist()), np.flatnonzero(is_value & ~has_id).tolist()


def rows_of(batch: Buffer, part: str = VALUE) -> list[Row]:
    """Return the records of a batch that have a value, or a key: also with an ID in a header."""
    lists = decode_lists(batch, check_crc=False)
    found = []
    values = lists.values if part == VALUE else lists.keys
    for row, (value, headers) in enumerate(zip(values, lists.headers, strict=True)):
        if value is None:
            continue
        schema = schema_in(headers, part)
        if schema is not None:
            found.append(Row(row, schema, value))
        elif len(value) >= PREFIX.size and value[0] == MAGIC_ID:
            found.append(Row(row, PREFIX.unpack_from(value)[1], value[PREFIX.size :]))
        else:
            found.append(Row(row, None, value))
    return found


def schema_in(headers: Sequence[tuple[str, bytes | None]], part: str = VALUE) -> SchemaKey | None:
    """Return the ID or GUID in the headers of a record."""
    for name, content in headers:
        if name == ID_HEADERS[part] and content:
            if content[0] == MAGIC_GUID and len(content) == 1 + _GUID_BYTES:
                return str(UUID(bytes=content[1:]))
            if content[0] == MAGIC_ID and len(content) >= PREFIX.size:
                return int(PREFIX.unpack_from(content)[1])
    return None


# -- objects ---------------------------------------------------------------------------------------


Decode: TypeAlias = Callable[[bytes], Any]
Encode: TypeAlias = Callable[[Any], bytes]


def decoder_of(parsed: Parsed, reader: Parsed | None = None) -> Decode:
    """Return the function from the bytes after the ID to an object: of Avro and JSON, what their
    libraries return; of Protobuf, a message.

    ``reader``: of Avro, the schema that values are resolved to.

    It raises ``SchemaError`` for bytes that do not match the schema.
    """
    decode = _DECODERS[parsed.kind](parsed, reader)

    def checked(data: bytes) -> Any:
        try:
            return decode(data)
        except SchemaError:
            raise
        except Exception as error:  # of the libraries, for malformed bytes
            reason = str(getattr(error, "message", error))[:200] or type(error).__name__
            raise SchemaError(f"the value does not match its schema: {reason}") from error

    return checked


def encoder_of(parsed: Parsed) -> Encode:
    """Return the function from an object to the bytes after the ID: the inverse of
    ``decoder_of``.

    It raises ``SchemaError`` for an object that does not match the schema.
    """
    encode = _ENCODERS[parsed.kind](parsed)

    def checked(value: Any) -> bytes:
        try:
            return encode(value)
        except Exception as error:  # of the libraries, for objects of other types
            reason = str(getattr(error, "message", error))[:200] or type(error).__name__
            raise SchemaError(f"the value does not match the schema: {reason}") from error

    return checked


def _avro_decoder(parsed: Parsed, reader: Parsed | None) -> Decode:
    read, schema = library("fastavro").schemaless_reader, parsed.model.parsed
    wanted = None if reader is None else reader.model.parsed

    def decode(data: bytes) -> Any:
        source = io.BytesIO(data)
        value = read(source, schema, wanted)
        if source.tell() != len(data):
            raise ValueError(f"{len(data) - source.tell()} bytes follow the value")
        return value

    return decode


def _avro_encoder(parsed: Parsed) -> Encode:
    write, schema = library("fastavro").schemaless_writer, parsed.model.parsed

    def encode(value: Any) -> bytes:
        sink = io.BytesIO()
        write(sink, schema, value)
        return sink.getvalue()

    return encode


def _json_decoder(parsed: Parsed, _reader: Parsed | None) -> Decode:
    validate = parsed.model.validator.validate

    def decode(data: bytes) -> Any:
        value = json.loads(data)
        validate(value)
        return value

    return decode


def _json_encoder(parsed: Parsed) -> Encode:
    validate = parsed.model.validator.validate

    def encode(value: Any) -> bytes:
        validate(value)
        # NaN and infinity are numbers of Python, which other readers of JSON refuse.
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode()

    return encode


def _protobuf_decoder(parsed: Parsed, _reader: Parsed | None) -> Decode:
    message_class = library("google.protobuf.message_factory").GetMessageClass

    def decode(data: bytes) -> Any:
        indexes, at = _indexes_in(data)
        messages, descriptor = list(parsed.model.file.message_types_by_name.values()), None
        for index in indexes:
            if index >= len(messages):
                raise ValueError(f"the schema has no message with the indexes {indexes}")
            descriptor = messages[index]
            messages = list(descriptor.nested_types)
        return message_class(descriptor).FromString(bytes(data[at:]))

    return decode


def _protobuf_encoder(parsed: Parsed) -> Encode:
    """Encodes a message of any class with the name of one in the schema, or a dict of its first
    message.
    """
    json_format = library("google.protobuf.json_format")
    message_class = library("google.protobuf.message_factory").GetMessageClass
    files = list(parsed.model.file.message_types_by_name.values())
    paths = dict(_message_paths(files, ()))

    def encode(value: Any) -> bytes:
        if isinstance(value, dict):
            value = json_format.ParseDict(value, message_class(files[0])())
        indexes = paths[value.DESCRIPTOR.full_name]
        return _indexes_as_bytes(indexes) + bytes(value.SerializeToString())

    return encode


def _message_paths(messages: Sequence[Any], path: tuple[int, ...]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for index, message in enumerate(messages):
        found.append((message.full_name, (*path, index)))
        found += _message_paths(list(message.nested_types), (*path, index))
    return found


def _indexes_in(data: Buffer) -> tuple[list[int], int]:
    """Return the message indexes at the start, and the position after them."""
    count, at = _varint(data, 0)
    if not 0 <= count <= limits.SCHEMA_DEPTH_MAX:
        raise ValueError(f"{count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _varint(data, at)
        if index < 0:
            raise ValueError(f"message index {index}")
        indexes.append(index)
    return indexes or [0], at


def _varint(data: Buffer, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            raise ValueError("no message indexes of Protobuf")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7


def _indexes_as_bytes(indexes: Sequence[int]) -> bytes:
    if tuple(indexes) == (0,):
        return b"\0"
    out = bytearray()
    for number in (len(indexes), *indexes):
        code = number << 1
        while code > 0x7F:
            out.append(code & 0x7F | 0x80)
            code >>= 7
        out.append(code)
    return bytes(out)


_DECODERS: Final[dict[str, Callable[[Parsed, Parsed | None], Decode]]] = {
    AVRO: _avro_decoder,
    JSON: _json_decoder,
    PROTOBUF: _protobuf_decoder,
}
_ENCODERS: Final[dict[str, Callable[[Parsed], Encode]]] = {
    AVRO: _avro_encoder,
    JSON: _json_encoder,
    PROTOBUF: _protobuf_encoder,
}
