"""The OFFSETS grammar of ``raftlog tail -o``: text to bounds, bounds to offsets. Pure.

    earliest | latest | N | -N | +N | @TIME | @TIME1:TIME2 | N1:N2

N is an offset; -N is N before the end and +N is N after the beginning of each partition. A range
includes its first bound and excludes its second. TIME is ISO 8601 (default: UTC), milliseconds
since 1970, or relative to now: -2h, -1h30m (units: ms s m h d w).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Final, NamedTuple

from raftlog.types import Offset, OffsetAndTimestamp, TimestampMs, TopicPartition

_UNIT_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_RELATIVE: Final = re.compile(r"-((?:\d{1,12}(?:ms|[smhdw]))+)", re.ASCII)
_RELATIVE_PART: Final = re.compile(r"(\d+)(ms|[smhdw])", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,19}", re.ASCII)
_INT64_MAX: Final = (1 << 63) - 1

GRAMMAR: Final = "earliest, latest, N, -N, +N, @TIME, @TIME1:TIME2 or N1:N2"
TIME_GRAMMAR: Final = "ISO 8601, milliseconds since 1970, or relative to now as in -2h"


class From(Enum):
    """Base of the number of a bound."""

    BEGINNING = "beginning"
    END = "end"  # the number is subtracted from the end
    OFFSET = "offset"
    TIME = "time"


class Bound(NamedTuple):
    """One point in every partition."""

    kind: From
    number: int = 0


class Offsets(NamedTuple):
    """Start of a read and, optionally, its end."""

    start: Bound
    stop: Bound | None = None


EARLIEST: Final = Bound(From.BEGINNING)
LATEST: Final = Bound(From.END)


def parse_offsets(text: str, *, now_ms: TimestampMs) -> Offsets:
    """Parse OFFSETS. Raises ``ValueError`` with the accepted forms."""
    if text == "earliest":
        return Offsets(EARLIEST)
    if text == "latest":
        return Offsets(LATEST)
    if text.startswith("@"):
        return _parse_times(text[1:], now_ms=now_ms)
    if text[:1] in {"-", "+"}:
        kind = From.END if text[0] == "-" else From.BEGINNING
        return Offsets(Bound(kind, _integer(text[1:], text)))
    first, colon, second = text.partition(":")
    start = Bound(From.OFFSET, _integer(first, text))
    if not colon:
        return Offsets(start)
    stop = Bound(From.OFFSET, _integer(second, text))
    if stop.number < start.number:
        raise ValueError(f"{text!r} ends before it starts")
    return Offsets(start, stop)


def _integer(digits: str, text: str) -> int:
    if not _NUMBER.fullmatch(digits) or int(digits) > _INT64_MAX:
        raise ValueError(f"{text!r} is not one of {GRAMMAR}")
    return int(digits)


def _parse_times(text: str, *, now_ms: TimestampMs) -> Offsets:
    """Parse ``TIME`` or ``TIME1:TIME2``. ISO times contain colons: try a single TIME first."""
    whole = parse_time(text, now_ms=now_ms)
    if whole is not None:
        return Offsets(Bound(From.TIME, whole))
    pairs = [
        (parse_time(text[:at], now_ms=now_ms), parse_time(text[at + 1 :], now_ms=now_ms))
        for at, character in enumerate(text)
        if character == ":"
    ]
    ranges = [(start, stop) for start, stop in pairs if start is not None and stop is not None]
    if not ranges:
        raise ValueError(f"{'@' + text!r}: write @TIME or @TIME1:TIME2; TIME is {TIME_GRAMMAR}")
    if len(ranges) > 1:
        raise ValueError(f"{'@' + text!r} can be read in two ways: write milliseconds since 1970")
    start, stop = ranges[0]
    if stop < start:
        raise ValueError(f"{'@' + text!r} ends before it starts")
    return Offsets(Bound(From.TIME, start), Bound(From.TIME, stop))


def parse_time(text: str, *, now_ms: TimestampMs) -> TimestampMs | None:
    """Return TIME as milliseconds since 1970, or None if it is not a time."""
    if _NUMBER.fullmatch(text):
        return min(int(text), _INT64_MAX)
    relative = _RELATIVE.fullmatch(text)
    if relative:
        parts = _RELATIVE_PART.findall(relative[1])
        return max(0, now_ms - sum(int(count) * _UNIT_MS[unit] for count, unit in parts))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1_000))


class Extent(NamedTuple):
    """Offsets of a partition: ``beginning`` is the first, ``end`` is one past the last."""

    beginning: Offset
    end: Offset


def resolve(bound: Bound, extent: Extent, *, at_time: Offset | None) -> Offset:
    """Return the offset of ``bound`` in one partition, which may be out of its range.

    ``at_time`` is the first offset at or after a TIME bound; None if there is none.
    """
    if bound.kind is From.BEGINNING:
        return min(extent.beginning + bound.number, extent.end)
    if bound.kind is From.END:
        return max(extent.end - bound.number, extent.beginning)
    if bound.kind is From.TIME:
        return extent.end if at_time is None else at_time
    return bound.number


def resolve_all(
    bound: Bound,
    extents: Mapping[TopicPartition, Extent],
    find: Callable[
        [dict[TopicPartition, TimestampMs]], Mapping[TopicPartition, OffsetAndTimestamp | None]
    ],
) -> dict[TopicPartition, Offset]:
    """Call ``resolve`` for each partition. ``find``: returns offsets for a TIME bound."""
    found = find(dict.fromkeys(extents, bound.number)) if bound.kind is From.TIME else {}
    at_times = {tp: hit.offset for tp, hit in found.items() if hit is not None}
    return {tp: resolve(bound, extent, at_time=at_times.get(tp)) for tp, extent in extents.items()}


def confine(offset: Offset, extent: Extent) -> Offset:
    """Return ``offset``, or the nearest offset of the partition."""
    return max(extent.beginning, min(offset, extent.end))
