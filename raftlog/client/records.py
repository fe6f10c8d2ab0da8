"""What users pass as keys, values and headers, made into what batches take; and long lists, cut.

Pure. Everything wrong with an argument is told here, before a record is anywhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import add
from typing import Any, Final, cast

from raftlog import limits
from raftlog.client.batch import PLAIN_RECORD_BYTES, RECORD_BYTES, Run, header_bytes
from raftlog.errors import InvalidRequestError
from raftlog.types import Headers, TimestampMs

_NULLABLE: Final = frozenset({bytes, type(None)})


def octets(value: Any, what: str) -> bytes | None:
    """``value`` as bytes, or None; ``TypeError`` if it is neither nor like them."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    hint = "text.encode() makes bytes of it" if isinstance(value, str) else "turn it into bytes"
    if what in {"key", "value"}:
        hint += f", or give the producer a {what}_serializer"
    raise TypeError(f"the {what} is of type {type(value).__name__}, not bytes: {hint}")


def checked_headers(headers: Any) -> Headers | None:
    """A record's headers as tuples, or None for none."""
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, dict) else headers
    try:
        checked = tuple((name, octets(value, "header value")) for name, value in pairs)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"headers={headers!r}: pairs of a name (str) and a value (bytes or None): {error}"
        ) from error
    for name, _ in checked:
        if not isinstance(name, str):
            raise TypeError(f"the header name {name!r} is not a text (str)")
    return checked


def checked_timestamp(timestamp_ms: object) -> TimestampMs:
    if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int):
        raise TypeError(f"timestamp_ms={timestamp_ms!r}: an int, milliseconds since 1970")
    if not 0 <= timestamp_ms <= limits.TIMESTAMP_MS_MAX:
        raise InvalidRequestError(
            f"timestamp_ms={timestamp_ms} is not within 0 and {limits.TIMESTAMP_MS_MAX} "
            "(milliseconds since 1970, not seconds or microseconds)"
        )
    return timestamp_ms


# -- many at once ----------------------------------------------------------------------------------


def column(
    entries: Sequence[Any], serializer: Callable[[Any], Any] | None, what: str
) -> tuple[Sequence[bytes | None], bool]:
    """Keys or values of many records, serialized and of the right types; whether any is None."""
    if isinstance(entries, bytes | bytearray | memoryview | str):
        raise TypeError(
            f"{what}s={type(entries).__name__}: a list, with one {what} for each record"
        )
    if serializer is not None:
        entries = list(map(serializer, entries))
    elif not isinstance(entries, list | tuple):
        entries = list(entries)
    types = set(map(type, entries))
    if not types <= _NULLABLE:
        entries = [octets(entry, what) for entry in entries]
        types = set(map(type, entries))
    return entries, type(None) in types


def columns_of(
    values: Sequence[Any],
    keys: Sequence[Any] | None,
    headers: Sequence[Any] | None,
    timestamps_ms: int | Sequence[int],
    *,
    key_serializer: Callable[[Any], Any] | None,
    value_serializer: Callable[[Any], Any] | None,
) -> Run:
    """All columns of many records, checked; their size in all is not."""
    checked_values, has_nulls = column(values, value_serializer, "value")
    checked_keys = None
    if keys is not None:
        checked_keys, null_keys = column(keys, key_serializer, "key")
        has_nulls = has_nulls or null_keys
    rows = None if headers is None else [checked_headers(row) for row in headers]
    stamps = timestamps_ms
    if isinstance(stamps, Sequence):
        stamps = [checked_timestamp(stamp) for stamp in stamps]
    else:
        checked_timestamp(stamps)
    for name, others in (("keys", checked_keys), ("headers", rows), ("timestamps_ms", stamps)):
        if (
            others is not None
            and not isinstance(others, int)
            and len(others) != len(checked_values)
        ):
            raise InvalidRequestError(
                f"{len(others)} {name} for {len(checked_values)} values: give one for each record"
            )
    return Run(checked_values, checked_keys, rows, stamps, 0, has_nulls)


def cut(run: Run, bytes_max: int) -> Iterator[Run]:
    """``run`` in pieces of up to ``bytes_max``, with their sizes; a larger record is alone."""
    if not run.has_nulls and run.headers is None:
        overhead = PLAIN_RECORD_BYTES if run.keys is None else RECORD_BYTES
        lengths = _lengths(run)
        size = sum(lengths) + overhead * len(run.values)
        if size <= bytes_max:
            yield run.part(0, len(run.values), size)
            return
        sizes: Iterable[int] = (length + overhead for length in _lengths(run))
    else:
        sizes = _sizes(run)
    ends = list(accumulate(sizes))
    start, before = 0, 0
    while start < len(ends):
        end = max(bisect_right(ends, before + bytes_max, start), start + 1)
        yield run.part(start, end, ends[end - 1] - before)
        start, before = end, ends[end - 1]


def _lengths(run: Run) -> Iterator[int]:
    """Of keys and values without nulls."""
    lengths = map(len, cast("Sequence[bytes]", run.values))
    if run.keys is None:
        return lengths
    return map(add, lengths, map(len, cast("Sequence[bytes]", run.keys)))


def _sizes(run: Run) -> list[int]:
    sizes = [RECORD_BYTES + (len(value) if value is not None else 0) for value in run.values]
    if run.keys is not None:
        sizes = [
            size + (len(key) if key is not None else 0)
            for size, key in zip(sizes, run.keys, strict=True)
        ]
    if run.headers is not None:
        sizes = [
            size + (header_bytes(row) if row else 0)
            for size, row in zip(sizes, run.headers, strict=True)
        ]
    return sizes
