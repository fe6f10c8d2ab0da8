"""Checks and conversions of keys, values and headers; splitting of long lists of records.

Pure functions. They report every wrong argument before a record is queued.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import add
from typing import Any, Final, cast

from raftlog import limits
from raftlog.client.accumulator import PLAIN_RECORD_BYTES, RECORD_BYTES, Run, header_bytes
from raftlog.errors import InvalidRequestError
from raftlog.types import Headers, TimestampMs

_NULLABLE: Final = frozenset({bytes, type(None)})


def octets(value: Any, what: str) -> bytes | None:
    """Return ``value`` as bytes, or None. Raises ``TypeError`` for other types."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    hint = "Call text.encode()" if isinstance(value, str) else "Convert it to bytes"
    if what in {"key", "value"}:
        hint += f", or set {what}_serializer"
    raise TypeError(f"the {what} is of type {type(value).__name__}, not bytes. {hint}")


def checked_headers(headers: Any) -> Headers | None:
    """Return the headers of a record as tuples; None without headers."""
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, dict) else headers
    try:
        checked = tuple((name, octets(value, "header value")) for name, value in pairs)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"headers={headers!r} are not pairs of a name (str) and a value (bytes or None): "
            f"{error}"
        ) from error
    for name, _ in checked:
        if not isinstance(name, str):
            raise TypeError(f"the header name {name!r} is not a str")
    return checked


def checked_timestamp(timestamp_ms: object) -> TimestampMs:
    if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int):
        raise TypeError(f"timestamp_ms={timestamp_ms!r} is not an int (milliseconds since 1970)")
    if not 0 <= timestamp_ms <= limits.TIMESTAMP_MS_MAX:
        raise InvalidRequestError(
            f"timestamp_ms={timestamp_ms} is not from 0 to {limits.TIMESTAMP_MS_MAX}. Pass "
            "milliseconds since 1970, not seconds or microseconds"
        )
    return timestamp_ms


# -- many at once ----------------------------------------------------------------------------------


def column(
    entries: Sequence[Any], serializer: Callable[[Any], Any] | None, what: str
) -> tuple[Sequence[bytes | None], bool]:
    """Serialize and check keys or values. The second result is True if any entry is None."""
    if isinstance(entries, bytes | bytearray | memoryview | str):
        raise TypeError(
            f"{what}s is a {type(entries).__name__}. Pass a list, with one {what} for each record"
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
    """Return all columns of many records, checked. The size of the ``Run`` is not set."""
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
                f"{len(others)} {name} for {len(checked_values)} values. Pass one for each record"
            )
    return Run(checked_values, checked_keys, rows, stamps, 0, has_nulls)


def cut(run: Run, bytes_max: int) -> Iterator[Run]:
    """Split ``run`` into pieces of up to ``bytes_max``. A larger record gets its own piece."""
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
    """Yield the byte lengths of records without nulls."""
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
