"""Avro values as JSON, in bounded memory and time: values and their schemas may be hostile.

The console runs in the broker, and fastavro's C code limits neither recursion nor memory. Each
schema is therefore checked before fastavro reads with it: it is not recursive, and each item of an
array, map or container file has a byte for every ``VALUES_PER_BYTE`` values that it creates. A
value of n bytes then has at most ``VALUES_PER_BYTE`` * n + ``CONSOLE_AVRO_FREE_VALUES_MAX`` parts.
Each read runs Python code, so that the event loop of the broker continues.
"""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Context, Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from raftlog import limits
from raftlog.install import install_command

CONTAINER: Final = b"Obj\x01"  # first bytes of an object container file
REGISTRY: Final = 0  # first byte of a value in the format of Confluent's serializers
REGISTRY_BYTES: Final = 5  # with the ID of the schema
VALUES_PER_BYTE: Final = 4  # that the schema of a repeated value may create
DECIMAL: Final = "raftlog-decimal"  # logical type that replaces "decimal", whose cost is quadratic
DECIMAL_BYTES_MAX: Final = 64
SCALE_MAX: Final = 1_000
_EXACT: Final = Context(prec=200)  # more digits than DECIMAL_BYTES_MAX has
LOGICAL_TYPES: Final = (
    *("date", "time-millis", "time-micros", "timestamp-millis", "timestamp-micros"),
    *("local-timestamp-millis", "local-timestamp-micros", "decimal", "uuid"),
)
SCHEMA_BYTES_PER_READ: Final = 4  # to parse this part of a schema costs as much as a read
_SYNC_BYTES: Final = 16
_FIELD: Final = "value"
_WRAPPED: Final = {"type": "record", "name": "__value"}
_METADATA: Final = {
    **_WRAPPED,
    "fields": [{"name": _FIELD, "type": {"type": "map", "values": "bytes"}}],
}
_NUMBER: Final = {**_WRAPPED, "fields": [{"name": _FIELD, "type": "long"}]}
# Errors of fastavro for malformed schemas and values; another is SchemaParseException.
_ERRORS: Final = (
    *(ArithmeticError, AttributeError, EOFError, LookupError),
    *(RecursionError, TypeError, ValueError, zlib.error),
)


class NotAvroError(ValueError):
    """A value or a schema that is not decoded. The text is the reason."""


class Schemas:
    """Schemas of a directory: ``ID.avsc``, ``TOPIC-value.avsc`` and ``TOPIC-key.avsc``.

    A file that changes is read again. Thread-safe.
    """

    def __init__(self, directory: str) -> None:
        """``directory``: "" for none."""
        self._directory = Path(directory) if directory else None
        self._parsed: OrderedDict[str, tuple[tuple[int, int], Any]] = OrderedDict()

    def has(self, name: str) -> bool:
        return self._directory is not None and self._file(name).is_file()

    def schema(self, name: str) -> Any:
        """Return a schema, parsed. Raises ``NotAvroError``."""
        if self._directory is None:
            raise NotAvroError(
                f"no schema {name}.avsc: set http.console.avro.schemas to a directory with it"
            )
        file = self._file(name)
        try:
            status = file.stat()
            state = (status.st_mtime_ns, status.st_size)
            kept = self._parsed.get(name)
            if kept is not None and kept[0] == state:
                return kept[1]
            if status.st_size > limits.CONSOLE_AVRO_FILE_BYTES_MAX:
                raise NotAvroError(
                    f"{file} has {status.st_size} bytes, more than "
                    f"{limits.CONSOLE_AVRO_FILE_BYTES_MAX}"
                )
            text = file.read_bytes()
        except OSError as error:
            raise NotAvroError(f"no schema {file}: {error.strerror}") from error
        parsed = parse(text, limits.CONSOLE_AVRO_FILE_BYTES_MAX)
        self._parsed[name] = state, parsed
        while len(self._parsed) > limits.CONSOLE_AVRO_SCHEMAS_MAX:
            self._parsed.popitem(last=False)
        return parsed

    def _file(self, name: str) -> Path:
        assert self._directory is not None
        return self._directory / f"{name}.avsc"


class Decoder:
    """Decoder for one request. Its cost is bounded by ``CONSOLE_AVRO_READS_MAX``."""

    def __init__(self, schemas: Schemas, topic: str) -> None:
        """``topic``: a valid topic name."""
        self._schemas = schemas
        self._topic = topic
        self._reads_left = limits.CONSOLE_AVRO_READS_MAX
        self._embedded: tuple[bytes, Any] = b"", None  # the last schema of a container file

    @property
    def is_exhausted(self) -> bool:
        """Whether the limit is reached: further values are not decoded."""
        return self._reads_left < 0

    def recognizes(self, data: bytes, part: str) -> bool:
        """Return whether ``data`` is a container file, or has a schema in the directory.

        ``part``: "key" or "value".
        """
        return data.startswith(CONTAINER) or self._schemas.has(self._schema_name(data, part))

    def decode(self, data: bytes, part: str) -> Any:
        """Return a value of JSON: of a container file, the list of its objects.

        Raises ``NotAvroError``.
        """
        if len(data) > limits.CONSOLE_VALUE_BYTES_MAX:
            raise NotAvroError(f"too long to decode: {len(data):,} bytes")
        if self.is_exhausted:
            raise NotAvroError("not decoded: too many values for one page. Show fewer records")
        if find_spec("fastavro") is None:
            raise NotAvroError(f"Avro needs fastavro: {install_command('avro')}")
        if data.startswith(CONTAINER):
            return self._container(data)
        name = self._schema_name(data, part)
        schema = self._schemas.schema(name)
        return self._read(data[REGISTRY_BYTES if name.isdecimal() else 0 :], schema)

    def _schema_name(self, data: bytes, part: str) -> str:
        """Return the ID in ``data`` if there may be one, otherwise the name for the topic."""
        of_topic = f"{self._topic}-{part}"
        if len(data) >= REGISTRY_BYTES and data[0] == REGISTRY:
            number = str(int.from_bytes(data[1:REGISTRY_BYTES], "big"))
            if self._schemas.has(number) or not self._schemas.has(of_topic):
                return number
        return of_topic

    def _read(self, data: bytes, schema: Any) -> Any:
        """Return the value that ``data`` is."""
        source = _Source(data)
        try:
            found = source.value(schema)
        finally:
            self._reads_left -= source.reads
        if source.left:
            raise NotAvroError(f"not avro: {source.left} bytes follow the value")
        return plain(found)

    def _container(self, data: bytes) -> list[Any]:
        source = _Source(data[len(CONTAINER) :])
        metadata = source.value(_METADATA)
        schema = self._schema_of(metadata.get("avro.schema", b""))
        codec = metadata.get("avro.codec", b"null").decode(errors="replace")
        if codec not in {"null", "deflate"}:
            raise NotAvroError(f"not decoded: compressed by {codec[:20]!r}, not null or deflate")
        found: list[Any] = []
        left = limits.CONSOLE_VALUE_BYTES_MAX
        try:
            sync = source.read(_SYNC_BYTES)
            while source.left:
                count = source.number()
                block = source.read(source.number())
                if codec == "deflate":
                    block = _inflated(block, left)
                left -= len(block)
                found += self._read(_varint(count) + block + b"\0", schema)  # an array
                if source.read(_SYNC_BYTES) != sync:
                    raise NotAvroError("not avro: a block of the container file is corrupt")
        except (EOFError, zlib.error) as error:
            raise NotAvroError(f"not avro: {error}") from error
        self._reads_left -= source.reads
        return found

    def _schema_of(self, text: bytes) -> Any:
        """Return the schema of arrays of the objects of a container file."""
        if text != self._embedded[0]:
            self._reads_left -= len(text) // SCHEMA_BYTES_PER_READ
            parsed = parse(text, limits.CONSOLE_AVRO_EMBEDDED_BYTES_MAX, is_repeated=True)
            self._embedded = text, parsed
        return self._embedded[1]


class _Source:
    """Bytes as the file that fastavro reads. ``reads``: their number so far."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.reads = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def value(self, schema: Any) -> Any:
        """Return the next value of a result of ``parse``. Raises ``NotAvroError``."""
        from fastavro import schemaless_reader

        file: Any = self
        try:
            found: Any = schemaless_reader(file, schema, None)
            return found[_FIELD]
        except _ERRORS as error:
            raise NotAvroError(f"not avro: {str(error)[:200] or type(error).__name__}") from error

    def number(self) -> int:
        return int(self.value(_NUMBER))

    def read(self, size: int) -> bytes:
        """Raises ``EOFError`` if fewer bytes are left: a length is never trusted."""
        self.reads += 1
        if not 0 <= size <= self.left:
            raise EOFError(f"a length of {size}, with {self.left} bytes left")
        self._at += size
        return self._data[self._at - size : self._at]


def _varint(number: int) -> bytes:
    """Return a length of Avro."""
    if number < 0:
        raise NotAvroError(f"not avro: a block of {number} objects")
    left, found = number << 1, bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*found, left))


def _inflated(data: bytes, size_max: int) -> bytes:
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    found = stream.decompress(data, size_max)
    if not stream.eof:
        raise NotAvroError(f"not decoded: more than {size_max} bytes after decompression")
    return found


# -- schemas ---------------------------------------------------------------------------------------


def parse(text: bytes, bytes_max: int, *, is_repeated: bool = False) -> Any:
    """Return a schema for ``_Source``. ``is_repeated``: the schema of an array of its values.

    Raises ``NotAvroError`` for a schema that is malformed, longer than ``bytes_max``, recursive, or
    that creates more values than bytes.
    """
    if len(text) > bytes_max:
        raise NotAvroError(f"its schema has {len(text):,} bytes, more than {bytes_max:,}")
    from fastavro.read import LOGICAL_READERS
    from fastavro.schema import SchemaParseException, parse_schema

    LOGICAL_READERS[f"bytes-{DECIMAL}"] = LOGICAL_READERS[f"fixed-{DECIMAL}"] = _decimal
    try:
        schema = _prepared(json.loads(text), limits.CONSOLE_AVRO_DEPTH_MAX)
        if is_repeated:
            schema = {"type": "array", "items": schema}
        # fastavro parses a record only once, not for each value.
        fields = [{"name": _FIELD, "type": schema}]
        parsed = parse_schema({**_WRAPPED, "fields": fields})
        _Check().cost(parsed)
    except NotAvroError:
        raise
    except (*_ERRORS, SchemaParseException) as error:
        raise NotAvroError(f"bad schema: {str(error)[:200] or type(error).__name__}") from error
    return parsed


def _prepared(schema: Any, depth: int) -> Any:
    """Return a copy of a schema in JSON with ``DECIMAL``. Limits its depth for fastavro."""
    if depth == 0:
        raise NotAvroError(f"bad schema: deeper than {limits.CONSOLE_AVRO_DEPTH_MAX}")
    if isinstance(schema, list):
        return [_prepared(part, depth - 1) for part in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {
        name: _prepared(part, depth - 1)
        for name, part in schema.items()
        if not name.startswith("__")  # marks of fastavro
    }
    logical = copy.pop("logicalType", None)
    if logical in LOGICAL_TYPES:  # others would only cost time: the text may be long
        copy["logicalType"] = DECIMAL if logical == "decimal" else logical
    return copy


class _Cost(NamedTuple):
    """Most values that one value of a type creates, less ``VALUES_PER_BYTE`` for each of its bytes:
    ``total`` at its end, ``peak`` at any point of it. Each item of an array or map has a total of
    at most 0, so that their number does not count. ``depth``: nested types.
    """

    total: int
    peak: int
    depth: int = 0


class _Check:
    """Check of a parsed schema."""

    def __init__(self) -> None:
        self._named: dict[str, _Cost | None] = {}  # None: the type is being checked

    def cost(self, schema: Any) -> _Cost:
        """Return the cost of a type. Raises ``NotAvroError`` if it is not bounded."""
        found = self._cost(schema)
        if found.depth >= limits.CONSOLE_AVRO_DEPTH_MAX:
            raise NotAvroError(f"bad schema: deeper than {limits.CONSOLE_AVRO_DEPTH_MAX}")
        if found.peak > limits.CONSOLE_AVRO_FREE_VALUES_MAX:
            raise NotAvroError("bad schema: its values have too few bytes")
        return found._replace(depth=found.depth + 1)

    def _cost(self, schema: Any) -> _Cost:
        if isinstance(schema, list):
            branches = [self.cost(branch) for branch in schema]
            return _Cost(
                max((branch.total for branch in branches), default=0) - VALUES_PER_BYTE,
                max((branch.peak for branch in branches), default=0),
                max((branch.depth for branch in branches), default=0),
            )
        if isinstance(schema, str):
            if schema in self._named:
                return self._cost_of_name(schema)
            return _Cost(1 if schema == "null" else 1 - VALUES_PER_BYTE, 1)
        kind = schema["type"]
        if "name" not in schema:
            return self._of_items(kind, schema) if kind in {"array", "map"} else self._cost(kind)
        self._named[schema["name"]] = None
        found = self._of_named(kind, schema)
        self._named[schema["name"]] = found
        return found

    def _cost_of_name(self, name: str) -> _Cost:
        cost = self._named[name]
        if cost is None:
            raise NotAvroError(f"recursive schemas are not decoded: {name[:100]}")
        return cost

    def _of_items(self, kind: str, schema: Mapping[str, Any]) -> _Cost:
        item = self.cost(schema["items" if kind == "array" else "values"])
        key = 1 - VALUES_PER_BYTE if kind == "map" else 0
        if item.total + key > 0:
            raise NotAvroError(f"bad schema: items of the {kind} have too few bytes")
        return _Cost(1 - VALUES_PER_BYTE, 1 + item.peak, item.depth)

    def _of_named(self, kind: str, schema: Mapping[str, Any]) -> _Cost:
        if kind == "enum":
            return _Cost(1 - VALUES_PER_BYTE, 1)
        if kind == "fixed":
            size = schema["size"]
            if type(size) is not int or not 0 <= size <= limits.CONSOLE_VALUE_BYTES_MAX:
                raise NotAvroError(f"bad schema: size {str(size)[:20]} of a fixed type")
            return _Cost(1 - VALUES_PER_BYTE * size, 1)
        total = peak = 1
        depth = 0
        for field in schema["fields"]:
            part = self.cost(field["type"])
            peak = max(peak, total + part.peak)
            total += part.total
            depth = max(depth, part.depth)
        return _Cost(total, peak, depth)


# -- values ----------------------------------------------------------------------------------------


def _decimal(data: bytes, schema: Any = None, _reader_schema: Any = None) -> Any:
    """Return a decimal; the bytes if they have more digits than a person reads."""
    scale = schema.get("scale", 0)
    if len(data) > DECIMAL_BYTES_MAX or type(scale) is not int or not 0 <= scale <= SCALE_MAX:
        return data
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, _EXACT)


def plain(value: Any) -> Any:
    """Convert a value to JSON. Bytes become hexadecimal, times ISO 8601, other types text."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return format(value, "f") if isinstance(value, Decimal) else str(value)
