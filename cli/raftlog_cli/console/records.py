"""Reads of records for a page, with limits of records, bytes, partitions and time."""

from __future__ import annotations

import json
import re
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from decimal import Context, Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, Unpack

import msgpack
import msgspec

from raftlog import Consumer, limits
from raftlog.client.settings import SecurityArguments
from raftlog.errors import InvalidRequestError, RaftlogError, SchemaError, UnknownPartitionError
from raftlog.install import install_command
from raftlog.registry import formats
from raftlog.registry.values import decoder_of
from raftlog.types import ConsumerRecord, Offset, TopicPartition
from raftlog_cli.console.http import choice
from raftlog_cli.options import Bound, Extent, From, confine, parse_offsets, parse_time, resolve_all
from raftlog_cli.output import format_json

# -- decoding --------------------------------------------------------------------------------------
#
# Bytes of records as text: JSON, MessagePack, Avro, text or hexadecimal. Bounded.


AUTOMATIC: Final = "auto"
FORMATS: Final = (AUTOMATIC, "text", "json", "msgpack", "avro", "hex")
HEX_BYTES_MAX: Final = 2_048  # bytes of a hexadecimal dump
PREVIEW_CHARS: Final = 160

# Control characters, and characters that change the text direction.
# Lone surrogates too: no page can be encoded with them.
_UNSEEN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# An escaped surrogate. A lone one is valid JSON (RFC 8259, 8.2), and msgspec rejects it.
_SURROGATE: Final = re.compile(rb"(?<!\\)((?:\\\\)*)\\u([dD][89a-fA-F][0-9a-fA-F]{2})")
_MARKS: Final = [chr(code).encode() for code in range(0xE000, 0xE100)]  # private use
# First bytes of MessagePack maps and arrays, which are invalid first bytes of UTF-8 text.
_MSGPACK_FIRST: Final = frozenset((*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF))


@dataclass(frozen=True, slots=True)
class Shown:
    """Decoded bytes. ``kind``: "null", "empty", or one of ``FORMATS``. ``is_cut``: truncated text.

    ``problem``: why the bytes are not in the requested format; "" if they are.
    """

    kind: str
    text: str
    size: int
    is_cut: bool = False
    problem: str = ""


def preview(text: str) -> str:
    """Return the first characters of a text on one line."""
    return " ".join(text[: 4 * PREVIEW_CHARS].split())[:PREVIEW_CHARS]


def decode(
    data: bytes | None,
    wanted: str = AUTOMATIC,
    avro: Decoder | None = None,
    part: str = "value",
) -> Shown:
    """Return ``data`` as text. ``wanted``: one of ``FORMATS``.

    ``avro``: decoder of Avro; None: Avro is shown like other bytes. ``part``: "key" or "value".
    Decodes at most ``CONSOLE_VALUE_BYTES_MAX`` bytes. Bytes that are not in the format are returned
    as text if possible, otherwise in hexadecimal, with the problem.
    """
    if data is None:
        return Shown("null", "", 0)
    if not data:
        return Shown("empty", "", 0)
    size = len(data)
    if wanted == "hex":
        return _hex(data, "")
    is_cut = size > limits.CONSOLE_VALUE_BYTES_MAX
    problem = ""
    # With a schema of the operator for these bytes, "auto" is Avro.
    is_avro = avro is not None and wanted == AUTOMATIC and avro.recognizes(data, part)
    if avro is not None and (wanted == "avro" or is_avro):
        try:
            text = clean(_json_text(avro.decode(data, part)))
            return Shown(avro.kind, text, size)
        except Exception as error:  # noqa: BLE001 - it costs this record only, and is shown
            problem = str(error)[:200] or type(error).__name__
    for kind, parse in (("json", _json), ("msgpack", _msgpack)):
        if wanted == kind or (wanted == AUTOMATIC and _may_be(kind, data)):
            if is_cut:
                problem = problem or f"too long to decode: {size:,} bytes"
                continue
            try:
                return Shown(kind, clean(parse(data)), size)
            except Exception as error:  # noqa: BLE001 - it costs this record only, and is shown
                if wanted == kind:
                    problem = f"not {kind}: {str(error)[:200] or type(error).__name__}"
    problem = problem if wanted != AUTOMATIC or is_avro else ""
    try:
        head = data[: limits.CONSOLE_VALUE_BYTES_MAX]
        text = head.decode() if not is_cut else _whole_characters(head)
    except UnicodeDecodeError as error:
        return _hex(data, problem or (f"not text: {error.reason}" if wanted == "text" else ""))
    return Shown("text", clean(text), size, is_cut, problem)


def clean(text: str) -> str:
    """Return ``text`` with control characters replaced."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text)


def _may_be(kind: str, data: bytes) -> bool:
    if kind == "json":
        return data.lstrip()[:1] in {b"{", b"["}
    return data[0] in _MSGPACK_FIRST


def _json(data: bytes) -> str:
    """Return the stored text with other white space: parsing it would round numbers, and drop
    names that occur twice.
    """
    mark = next((mark for mark in _MARKS if mark not in data), b"")
    hidden = _SURROGATE.sub(rb"\1" + mark + rb"\2", data) if mark else data
    text = msgspec.json.format(hidden, indent=2)
    return (text.replace(mark, b"\\u") if mark else text).decode()[: limits.CONSOLE_TEXT_MAX]


def _msgpack(data: bytes) -> str:
    value = msgpack.unpackb(data, strict_map_key=False, timestamp=0, object_pairs_hook=_Map)
    return _json_text(_plain(value))


class _Map(dict[int, Any]):
    """A map that JSON's encoder writes with each key as often as it is stored."""

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self._pairs = list(pairs)
        super().__init__(dict.fromkeys(range(len(self._pairs))))

    def items(self) -> Any:
        return self._pairs


def _json_text(value: Any) -> str:
    """Return JSON. Stops at the limit: the names of an Avro schema are repeated for each record."""
    parts, left = [], limits.CONSOLE_TEXT_MAX
    for part in json.JSONEncoder(ensure_ascii=False, indent=2, default=str).iterencode(value):
        parts.append(part[:left])
        left -= len(part)
        # guard: decoded text stops at its limit
        if left <= 0:
            break
    return "".join(parts)


def _plain(value: Any) -> Any:
    """Convert a MessagePack value to JSON. Bytes become hexadecimal, keys become strings."""
    if isinstance(value, _Map):
        return _Map((_key(key), _plain(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.hex() if isinstance(value, bytes) else value


def _key(key: Any) -> str:
    plain = _plain(key)
    if isinstance(plain, list | _Map):
        return json.dumps(plain, ensure_ascii=False, default=str)
    return str(plain)


def _whole_characters(head: bytes) -> str:
    """Decode bytes that may end inside a character."""
    for missing in range(4):
        try:
            return head[: len(head) - missing].decode()
        except UnicodeDecodeError as error:
            if error.start < len(head) - 4:
                raise
    return head.decode()


def _hex(data: bytes, problem: str) -> Shown:
    """Return lines with the offset, and 16 bytes in hexadecimal and as ASCII."""
    lines = []
    for start in range(0, min(len(data), HEX_BYTES_MAX), 16):
        row = data[start : start + 16]
        ascii_ = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<47}  {ascii_}")
    return Shown("hex", "\n".join(lines), len(data), len(data) > HEX_BYTES_MAX, problem)


# -- records ---------------------------------------------------------------------------------------


CLIENT_ID: Final = "raftlog-console"
COUNT_DEFAULT: Final = 50
FIELD: Final = "JSON field"
PLACES: Final = ("value", "key", "headers", "anywhere", FIELD)
LISTED_CHARS_MAX: Final = 4_000  # of a key or value in a list; the page of a record has more
HEADERS_MAX: Final = 50  # per record
HEADER_CHARS_MAX: Final = 1_000
_FETCH_BYTES: Final = limits.MIB
_POLL_MS: Final = 300
_REQUEST_MS: Final = 3_000
_POSITION: Final = re.compile(r"(\d{1,9}):(\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Query:
    """Records to read. ``partition``: None for all. ``start``: start in each partition; ``at``:
    instead, start offsets by partition. ``text``: to search for in ``place``; "" for all records.
    """

    topic: str
    partition: int | None = None
    start: Bound | None = None
    at: Mapping[int, Offset] = field(default_factory=dict)
    text: str = ""
    place: str = PLACES[0]
    format: str = AUTOMATIC
    count: int = COUNT_DEFAULT

    @property
    def is_newest_first(self) -> bool:
        return self.start is None and not self.at


def parse_query(topic: str, parameters: Mapping[str, str], *, now_ms: int) -> Query:
    """Parse the query of a URL. Raises ``InvalidRequestError`` with the name of the parameter."""
    text = parameters.get("q", "")
    if len(text) > limits.CONSOLE_FILTER_CHARS_MAX:
        raise InvalidRequestError(f"q: longer than {limits.CONSOLE_FILTER_CHARS_MAX} characters")
    place = choice(parameters, "in", PLACES)
    matcher(text, place)  # a check of the text
    return Query(
        topic=topic,
        partition=_number(parameters, "partition"),
        start=_start(parameters.get("from", ""), now_ms),
        at=_positions(parameters.get("at", "")),
        text=text,
        place=place,
        format=choice(parameters, "as", FORMATS),
        count=min(max(_number(parameters, "n") or COUNT_DEFAULT, 1), limits.CONSOLE_RECORDS_MAX),
    )


def _number(parameters: Mapping[str, str], name: str) -> int | None:
    text = parameters.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InvalidRequestError(f"{name}: {text[:40]!r} is not a whole number from 0")
    return int(text)


def _start(text: str, now_ms: int) -> Bound | None:
    """Parse a bound of the OFFSETS grammar or a time. None: the newest records."""
    text = text.strip()
    if text in {"", "latest"}:
        return None
    looks_like_time = not text.startswith(("@", "+")) and not text.lstrip("-").isdecimal()
    try:
        if looks_like_time and (moment := parse_time(text, now_ms=now_ms)) is not None:
            return Bound(From.TIME, moment)
        found = parse_offsets(text, now_ms=now_ms)
    except ValueError as error:
        raise InvalidRequestError(f"from: {error}") from error
    if found.stop is not None:
        raise InvalidRequestError(f"from: {text!r} is a range. Pass only its start")
    return found.start


def _positions(text: str) -> dict[int, Offset]:
    """``P:OFFSET,P:OFFSET``."""
    found: dict[int, Offset] = {}
    for pair in text.split(",") if text else ():
        match = _POSITION.fullmatch(pair)
        if match is None or len(found) >= limits.CONSOLE_PARTITIONS_MAX:
            raise InvalidRequestError("at: write P:OFFSET,P:OFFSET")
        found[int(match[1])] = int(match[2])
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """One decoded record. ``headers``: names and texts."""

    partition: int
    offset: Offset
    timestamp_ms: int
    leader_epoch: int
    key: Shown
    value: Shown
    headers: tuple[tuple[str, str], ...]
    headers_omitted: int


def row_of(
    record: ConsumerRecord,
    wanted: str,
    decoder: Decoder,
    *,
    chars_max: int = LISTED_CHARS_MAX,
) -> Row:
    """Decode a record. ``chars_max``: of the key and of the value."""
    headers = tuple(
        (clean(name[:HEADER_CHARS_MAX]), decode(value).text[:HEADER_CHARS_MAX])
        for name, value in record.headers[:HEADERS_MAX]
    )
    return Row(
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        leader_epoch=record.leader_epoch,
        key=_cut(decode(record.key, wanted, decoder, "key"), chars_max),
        value=_cut(decode(record.value, wanted, decoder), chars_max),
        headers=headers,
        headers_omitted=max(len(record.headers) - HEADERS_MAX, 0),
    )


def _cut(shown: Shown, chars_max: int) -> Shown:
    if len(shown.text) <= chars_max:
        return shown
    return replace(shown, text=shown.text[:chars_max], is_cut=True)


@dataclass(frozen=True, slots=True)
class Found:
    """Result of one read. ``records``: by time. ``next``: start offsets of the next read, by
    partition. ``scanned``: number of checked records. ``reason``: why the read ended: "end" (of all
    partitions), "count", "scanned", "bytes" or "time". ``extents``: offset ranges of the
    partitions. ``omitted``: number of partitions that were not read.
    """

    records: list[ConsumerRecord]
    next: dict[int, Offset]
    scanned: int
    reason: str
    extents: dict[int, Extent]
    omitted: int = 0


def matcher(
    text: str, place: str, decoder: Decoder | None = None
) -> Callable[[ConsumerRecord], bool]:
    """Return a function that searches a record for ``text``, ignoring the case of ASCII letters.

    In the place ``FIELD``, the text is ``PATH=TEXT``: a field of a JSON value of
    ``CONSOLE_TEXT_MAX`` bytes at most, or of an Avro value that ``decoder`` recognizes, by names
    and indexes with dots between them, and its whole value. Raises ``InvalidRequestError`` without
    "=".
    """
    if not text:
        return lambda _record: True
    if place == FIELD:
        return _field_matcher(text, decoder)
    wanted = text.encode().lower()
    return lambda record: any(wanted in part.lower() for part in _parts(record, place))


def _parts(record: ConsumerRecord, place: str) -> Iterator[bytes]:
    """Yield the parts of a record that are searched."""
    if place in {"value", "anywhere"}:
        yield record.value or b""
    if place in {"key", "anywhere"}:
        yield record.key or b""
    if place in {"headers", "anywhere"}:
        for name, value in record.headers:
            yield b"%s=%s" % (name.encode(), value or b"")


def _field_matcher(text: str, decoder: Decoder | None) -> Callable[[ConsumerRecord], bool]:
    path, separator, wanted = text.partition("=")
    if not (path and separator):
        raise InvalidRequestError("q: to search a field, write PATH=TEXT, such as user.id=5")
    names, wanted = path.split("."), wanted.lower()

    def matches(record: ConsumerRecord) -> bool:
        value = record.value or b""
        # guard: a search of a field parses values of a bounded size
        if len(value) > limits.CONSOLE_TEXT_MAX:
            return False
        try:
            if decoder is not None and decoder.recognizes(value, "value"):
                found = decoder.decode(value, "value")
            else:
                found = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError, NotAvroError):
            return False
        for name in names:
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                return False
        shown = found if isinstance(found, str) else msgspec.json.encode(found).decode()
        return shown.lower() == wanted

    return matches


class Reader:
    """Reader of a topic with a consumer without a group. Its time limit starts at its creation."""

    def __init__(
        self,
        bootstrap: str,
        monotonic: Callable[[], float],
        schemas: Schemas,
        **security: Unpack[SecurityArguments],
    ) -> None:
        self._monotonic = monotonic
        self._schemas = schemas
        self._deadline = monotonic() + limits.CONSOLE_READ_S
        self._consumer: Consumer = Consumer(
            bootstrap,
            auto_offset_reset="earliest",
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=_FETCH_BYTES // 4,
            fetch_max_wait_ms=_POLL_MS,
            request_timeout_ms=_REQUEST_MS,
            client_id=CLIENT_ID,
            **security,
        )

    def close(self) -> None:
        self._consumer.close(timeout_ms=0)

    def read(self, query: Query) -> Found:
        """Return the records of ``query``. Raises ``UnknownTopicError``, ``UnknownPartitionError``
        or another ``RaftlogError`` of the client.
        """
        partitions, omitted = self._partitions(query)
        extents = self._extents(partitions)
        starts = self._starts(query, extents)
        found = self._collect(query, starts, extents)
        return replace(found, omitted=omitted)

    def one(self, tp: TopicPartition, offset: Offset) -> ConsumerRecord | None:
        """Return the record at ``offset``, or None if there is none."""
        query = Query(tp.topic, at={tp.partition: offset}, count=1)
        found = self._collect(query, {tp: offset}, self._extents([tp]))
        return found.records[0] if found.records and found.records[0].offset == offset else None

    def download(self, query: Query) -> tuple[bytes, Found]:
        """Return the records as JSON lines, up to the limits of a download."""
        partitions, omitted = self._partitions(query)
        extents = self._extents(partitions)
        found = self._collect(query, self._starts(query, extents), extents)
        lines: list[bytes] = []
        size, next_ = 0, dict(found.next)
        for at, record in enumerate(found.records):
            line = format_json(record)
            size += len(line)
            if size > limits.CONSOLE_DOWNLOAD_BYTES_MAX and lines:
                for left in reversed(found.records[at:]):
                    next_[left.partition] = left.offset
                found = replace(found, records=found.records[:at], next=next_, reason="bytes")
                break
            lines.append(line)
        return b"".join(lines), replace(found, omitted=omitted)

    def _partitions(self, query: Query) -> tuple[list[TopicPartition], int]:
        known = sorted(self._consumer.partitions_for(query.topic))
        wanted = [query.partition] if query.partition is not None else sorted(query.at) or known
        missing = sorted({*wanted} - {*known})
        if missing:
            raise UnknownPartitionError(
                f"{query.topic} has no partition {missing[0]}: it has 0 to {len(known) - 1}"
            )
        kept = wanted[: limits.CONSOLE_PARTITIONS_MAX]
        return [TopicPartition(query.topic, number) for number in kept], len(wanted) - len(kept)

    def _extents(self, partitions: list[TopicPartition]) -> dict[TopicPartition, Extent]:
        begins = self._consumer.beginning_offsets(partitions)
        ends = self._consumer.end_offsets(partitions)
        return {tp: Extent(begins[tp], max(ends[tp], begins[tp])) for tp in partitions}

    def _starts(
        self, query: Query, extents: Mapping[TopicPartition, Extent]
    ) -> dict[TopicPartition, Offset]:
        if query.at:
            wanted = {
                tp: query.at.get(tp.partition, extent.beginning) for tp, extent in extents.items()
            }
        else:
            # A search of the newest records reads as many as the limit allows.
            back = limits.CONSOLE_SCANNED_MAX if query.text else query.count
            newest = Bound(From.END, -(-back // max(len(extents), 1)))
            wanted = resolve_all(query.start or newest, extents, self._consumer.offsets_for_times)
        return {tp: confine(offset, extents[tp]) for tp, offset in wanted.items()}

    def _collect(
        self,
        query: Query,
        starts: Mapping[TopicPartition, Offset],
        extents: Mapping[TopicPartition, Extent],
    ) -> Found:
        """Read from ``starts`` to the ends of ``extents``, or to a limit."""
        decoder = Decoder(self._schemas, query.topic)
        collected = _Collection(query, starts, extents, decoder)
        if collected.open:
            self._consumer.assign(sorted(collected.open))
            for tp in collected.open:
                self._consumer.seek(tp, starts[tp])
        while collected.open and not collected.reason:
            if self._monotonic() >= self._deadline:
                collected.reason = "time"
                break
            for record in self._consumer.poll(_POLL_MS, max_records=max(query.count, 100)):
                if not collected.add(record):
                    break
            collected.open &= {
                tp for tp in collected.open if self._consumer.position(tp) < extents[tp].end
            }
        return collected.found()


class _Collection:
    """Records of one read. ``reason``: limit that was reached; "" for none."""

    def __init__(
        self,
        query: Query,
        starts: Mapping[TopicPartition, Offset],
        extents: Mapping[TopicPartition, Extent],
        decoder: Decoder,
    ) -> None:
        self.open = {tp for tp, offset in starts.items() if offset < extents[tp].end}
        self.reason = ""
        self._query = query
        self._extents = extents
        self._decoder = decoder
        self._matches = matcher(query.text, query.place, decoder)
        self._next = dict(starts)
        self._records: list[ConsumerRecord] = []
        self._scanned = 0
        self._size = 0

    def add(self, record: ConsumerRecord) -> bool:
        """Process the next record of a partition. Returns False when a limit is reached."""
        tp = TopicPartition(record.topic, record.partition)
        if record.offset >= self._extents[tp].end:
            self.open.discard(tp)
            return True
        self._next[tp] = record.offset + 1
        self._scanned += 1
        self._size += len(record.value or b"") + len(record.key or b"")
        if self._matches(record):
            self._records.append(record)
        if len(self._records) >= self._query.count and not self._query.is_newest_first:
            self.reason = "count"
        elif self._size >= limits.CONSOLE_READ_BYTES_MAX:
            self.reason = "bytes"
        elif self._scanned >= limits.CONSOLE_SCANNED_MAX or self._decoder.is_exhausted:
            self.reason = "scanned"
        return not self.reason

    def found(self) -> Found:
        extents = {tp.partition: extent for tp, extent in self._extents.items()}
        reason = self.reason or "end"
        if all(offset >= self._extents[tp].end for tp, offset in self._next.items()):
            reason = "end"
        next_ = {
            tp.partition: max(offset, self._extents[tp].end) if reason == "end" else offset
            for tp, offset in self._next.items()
        }
        records = sorted(self._records, key=lambda r: (r.timestamp_ms, r.partition, r.offset))
        return Found(records[-self._query.count :], next_, self._scanned, reason, extents)


def positions_text(positions: Mapping[int, Offset]) -> str:
    """Return offsets as the parameter ``at``."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


def download_name(query: Query, found: Found) -> str:
    """Return the file name of a download: topic, partition and offsets."""
    offsets = [record.offset for record in found.records]
    span = f"{min(offsets)}-{max(offsets)}" if offsets else "empty"
    partition = "all" if query.partition is None else str(query.partition)
    return f"{query.topic}-{partition}-{span}.jsonl"


# -- avro ------------------------------------------------------------------------------------------
#
# Avro values as JSON, in bounded memory and time: values and their schemas may be hostile.
#
# The console runs in the broker, and fastavro's C code limits neither recursion nor memory. Each
# schema is therefore checked before fastavro reads with it: it is not recursive, and each item of
# an array, map or container file has a byte for every ``VALUES_PER_BYTE`` values that it creates. A
# value of n bytes then has at most ``VALUES_PER_BYTE`` * n + ``CONSOLE_AVRO_FREE_VALUES_MAX``
# parts. Each read runs Python code, so that the event loop of the broker continues.


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


# Returns what the schema registry has for an ID: its JSON, or None.
FromRegistry: TypeAlias = Callable[[int], Mapping[str, Any] | None]


class Schemas:
    """Schemas of a directory: ``ID.avsc``, ``TOPIC-value.avsc`` and ``TOPIC-key.avsc``; and those
    of the schema registry, by ID.

    A file that changes is read again. Thread-safe.
    """

    def __init__(self, directory: str, registry: FromRegistry | None = None) -> None:
        """``directory``: "" for none."""
        self._directory = Path(directory) if directory else None
        self._parsed: OrderedDict[str, tuple[tuple[int, int], Any]] = OrderedDict()
        self._registry = registry
        self._registered: OrderedDict[str, Registered] = OrderedDict()

    def has(self, name: str) -> bool:
        """Return whether the directory has a schema."""
        return self._directory is not None and self._file(name).is_file()

    def registered(self, schema_id: str) -> Registered | None:
        """Return a schema of the registry; None if it has none, or cannot be asked."""
        found = self._registered.get(schema_id)
        if found is None and self._registry is not None:
            content = self._registry(int(schema_id))
            if content is not None:
                found = self._registered[schema_id] = Registered.of(content)
                while len(self._registered) > limits.CONSOLE_AVRO_SCHEMAS_MAX:
                    self._registered.popitem(last=False)
        return found

    def schema(self, name: str) -> Any:
        """Return a schema, parsed. Raises ``NotAvroError``."""
        if self._directory is None:
            raise NotAvroError(
                f"no schema {name} in the schema registry, and no file {name}.avsc in "
                "http.console.avro.schemas"
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


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema of the registry. ``schema``: of Avro, a result of ``parse``. ``decode``: of the
    other types, from the bytes after the ID to a value of JSON. ``problem``: why neither is there.
    """

    kind: str
    schema: Any = None
    decode: Callable[[bytes], Any] | None = None
    problem: str = ""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Registered:
        """Return a schema from its JSON."""
        kind, text = content.get("schemaType", "AVRO"), content["schema"]
        shown = kind.lower()
        if content.get("references"):
            return cls(shown, problem="not decoded: its schema has references")
        try:
            if kind == "AVRO":
                text = text.encode()
                return cls(shown, schema=parse(text, limits.CONSOLE_AVRO_FILE_BYTES_MAX))
            if kind == "JSON":
                return cls(shown, decode=msgspec.json.decode)
            decode = decoder_of(formats.parse(kind, text))
            as_dict = formats.library("google.protobuf.json_format").MessageToDict
            return cls(shown, decode=lambda data: as_dict(decode(data)))
        except (NotAvroError, RaftlogError) as error:
            return cls(shown, problem=str(error)[:200])


class Decoder:
    """Decoder for one request. Its cost is bounded by ``CONSOLE_AVRO_READS_MAX``, and by
    ``CONSOLE_LOOKUPS_MAX`` for IDs that the registry does not have.

    ``kind``: type of the schema of the last value.
    """

    def __init__(self, schemas: Schemas, topic: str) -> None:
        """``topic``: a valid topic name."""
        self._schemas = schemas
        self._topic = topic
        self._reads_left = limits.CONSOLE_AVRO_READS_MAX
        self._embedded: tuple[bytes, Any] = b"", None  # the last schema of a container file
        self._unknown: set[str] = set()  # IDs
        self.kind = "avro"

    @property
    def is_exhausted(self) -> bool:
        """Whether the limit is reached: further values are not decoded."""
        return self._reads_left < 0

    def recognizes(self, data: bytes, part: str) -> bool:
        """Return whether ``data`` is a container file, or has a schema in the directory or the
        registry.

        ``part``: "key" or "value".
        """
        if data.startswith(CONTAINER):
            return True
        name = self._schema_name(data, part)
        return self._schemas.has(name) or self._registered(name) is not None

    def _registered(self, name: str) -> Registered | None:
        is_asked = name.isdecimal() and name not in self._unknown
        if not is_asked or len(self._unknown) >= limits.CONSOLE_LOOKUPS_MAX:
            return None
        found = self._schemas.registered(name)
        if found is None:
            self._unknown.add(name)
        return found

    def decode(self, data: bytes, part: str) -> Any:
        """Return a value of JSON: of a container file, the list of its objects.

        Raises ``NotAvroError``.
        """
        if len(data) > limits.CONSOLE_VALUE_BYTES_MAX:
            raise NotAvroError(f"too long to decode: {len(data):,} bytes")
        # guard: one page decodes a limited number of Avro values
        if self.is_exhausted:
            raise NotAvroError("not decoded: too many values for one page. Show fewer records")
        self.kind = "avro"
        name = self._schema_name(data, part)
        is_own = data.startswith(CONTAINER) or self._schemas.has(name)
        found = None if is_own else self._registered(name)
        if found is not None:
            return self._decode_registered(data[REGISTRY_BYTES:], found)
        if find_spec("fastavro") is None:
            raise NotAvroError(f"Avro needs fastavro: {install_command('avro')}")
        if data.startswith(CONTAINER):
            return self._container(data)
        schema = self._schemas.schema(name)
        return self._read(data[REGISTRY_BYTES if name.isdecimal() else 0 :], schema)

    def _decode_registered(self, data: bytes, found: Registered) -> Any:
        self.kind = found.kind
        if found.problem:
            raise NotAvroError(found.problem)
        if found.decode is None:
            return self._read(data, found.schema)
        self._reads_left -= len(data)  # a value has at most as many fields
        try:
            return found.decode(data)
        except (SchemaError, msgspec.DecodeError) as error:
            raise NotAvroError(str(error)[:200]) from error

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
    # guard: a container file of Avro does not expand
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
    # guard: fastavro parses no deep schema
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
        # guard: types of Avro do not nest without end
        if found.depth >= limits.CONSOLE_AVRO_DEPTH_MAX:
            raise NotAvroError(f"bad schema: deeper than {limits.CONSOLE_AVRO_DEPTH_MAX}")
        # guard: a record of Avro has few values without bytes
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
        # guard: types of Avro are not recursive
        if cost is None:
            raise NotAvroError(f"recursive schemas are not decoded: {name[:100]}")
        return cost

    def _of_items(self, kind: str, schema: Mapping[str, Any]) -> _Cost:
        item = self.cost(schema["items" if kind == "array" else "values"])
        key = 1 - VALUES_PER_BYTE if kind == "map" else 0
        # guard: items of Avro have bytes
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
        for each in schema["fields"]:
            part = self.cost(each["type"])
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
