"""Reads of records for a page, with limits of records, bytes, partitions and time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Unpack

import msgspec

from raftlog import Consumer, limits
from raftlog.client.settings import SecurityArguments
from raftlog.errors import InvalidRequestError, UnknownPartitionError
from raftlog.types import ConsumerRecord, Offset, TopicPartition
from raftlog_cli.console import avro, decoding
from raftlog_cli.console.decoding import Shown
from raftlog_cli.formats import format_json
from raftlog_cli.http_parameters import choice
from raftlog_cli.offsets import (
    Bound,
    Extent,
    From,
    confine,
    parse_offsets,
    parse_time,
    resolve_all,
)

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
    format: str = decoding.AUTOMATIC
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
        format=choice(parameters, "as", decoding.FORMATS),
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
    decoder: avro.Decoder,
    *,
    chars_max: int = LISTED_CHARS_MAX,
) -> Row:
    """Decode a record. ``chars_max``: of the key and of the value."""
    headers = tuple(
        (decoding.clean(name[:HEADER_CHARS_MAX]), decoding.decode(value).text[:HEADER_CHARS_MAX])
        for name, value in record.headers[:HEADERS_MAX]
    )
    return Row(
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        leader_epoch=record.leader_epoch,
        key=_cut(decoding.decode(record.key, wanted, decoder, "key"), chars_max),
        value=_cut(decoding.decode(record.value, wanted, decoder), chars_max),
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
    text: str, place: str, decoder: avro.Decoder | None = None
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


def _field_matcher(text: str, decoder: avro.Decoder | None) -> Callable[[ConsumerRecord], bool]:
    path, separator, wanted = text.partition("=")
    if not (path and separator):
        raise InvalidRequestError("q: to search a field, write PATH=TEXT, such as user.id=5")
    names, wanted = path.split("."), wanted.lower()

    def matches(record: ConsumerRecord) -> bool:
        value = record.value or b""
        if len(value) > limits.CONSOLE_TEXT_MAX:
            return False
        try:
            if decoder is not None and decoder.recognizes(value, "value"):
                found = decoder.decode(value, "value")
            else:
                found = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError, avro.NotAvroError):
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
        schemas: avro.Schemas,
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
        decoder = avro.Decoder(self._schemas, query.topic)
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
        decoder: avro.Decoder,
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
