"""What ``raftlog produce`` reads: lines, lines with a key, or JSON lines, in bounded memory. Pure.

A line's bytes are kept exactly; its newline is not part of it. The last line counts without one
too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

from raftlog import limits
from raftlog.cli.formats import bytes_from_json
from raftlog.types import Header, Headers

CHUNK_BYTES: Final = limits.MIB
# What `tail --json` writes and a producer cannot set: allowed, so that one feeds the other.
_IGNORED: Final = {"topic", "offset", "leader_epoch"}
_FIELDS: Final = {"key", "value", "headers", "partition", "timestamp_ms"}


class ReadableStream(Protocol):
    """A binary stream that gives what it has: a terminal's lines are sent as they are typed."""

    def read1(self, size: int, /) -> bytes: ...


class InputRecord(NamedTuple):
    """One record to send; None leaves the choice to the producer."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def read_lines(
    stream: ReadableStream, *, line_bytes_max: int = limits.BATCH_BYTES_MAX
) -> Iterator[list[bytes]]:
    """The lines of each chunk; ``ValueError`` on a line of more than ``line_bytes_max``."""
    pending: list[bytes] = []  # the pieces of a line whose end has not come
    pending_bytes = 0
    while chunk := stream.read1(CHUNK_BYTES):
        head, *lines = chunk.split(b"\n")
        pending_bytes += len(head)
        if pending_bytes > line_bytes_max:
            raise ValueError(f"a line is longer than {line_bytes_max} bytes")
        pending.append(head)
        if lines:
            tail = lines.pop()
            yield [b"".join(pending), *lines]
            pending, pending_bytes = [tail], len(tail)
    if pending_bytes:
        yield [b"".join(pending)]


def split_keys(lines: list[bytes], separator: bytes) -> tuple[list[bytes], list[bytes | None]]:
    """Values and keys: a line without the separator is a value without a key."""
    values: list[bytes] = []
    keys: list[bytes | None] = []
    for line in lines:
        key, found, value = line.partition(separator)
        values.append(value if found else line)
        keys.append(key if found else None)
    return values, keys


def parse_json_line(line: bytes) -> InputRecord:
    """One line of ``--jsonl``; raises ``ValueError`` with the reason."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError('not an object such as {"key": "k", "value": "v"}')
    unknown = fields.keys() - _FIELDS - _IGNORED
    if unknown:
        raise ValueError(f"unknown field {min(unknown)!r}; there are {', '.join(sorted(_FIELDS))}")
    return InputRecord(
        value=bytes_from_json(fields.get("value")),
        key=bytes_from_json(fields.get("key")),
        headers=_headers(fields.get("headers")),
        partition=_whole_number(fields, "partition"),
        timestamp_ms=_whole_number(fields, "timestamp_ms"),
    )


def _whole_number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or (type(value) is int and value >= 0):
        return value
    raise ValueError(f"{name} is {value!r}, not a whole number from 0")


def _headers(value: Any) -> Headers:
    """An object, or pairs where a name comes twice or their order matters."""
    pairs = list(value.items()) if isinstance(value, dict) else value or []
    if not isinstance(pairs, list):
        raise ValueError("headers are an object, or a list of [name, value] pairs")
    return tuple(_header(pair) for pair in pairs)


def _header(pair: Any) -> Header:
    if not (isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)):
        raise ValueError(f"{pair!r} is no [name, value] pair")
    return pair[0], bytes_from_json(pair[1])
