"""Reading input: every byte of every line, whatever the chunks, and JSON lines as a table."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.cli.lines import InputRecord, parse_json_line, read_lines, split_keys


class Dribble:
    """A stream that gives its bytes in the pieces that it was told to."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    def read1(self, _size: int, /) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def all_lines(pieces: list[bytes]) -> list[bytes]:
    return [line for lines in read_lines(Dribble(pieces)) for line in lines]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\nb", [b"a", b"b"]),
        (b"\n", [b""]),
        (b"\n\na\n\n", [b"", b"", b"a", b""]),
        (b"a\r\n\0\xff\n", [b"a\r", b"\0\xff"]),
    ],
)
def test_lines_are_exact(data: bytes, lines: list[bytes]) -> None:
    assert all_lines([data]) == lines


@given(st.lists(st.binary(max_size=12).map(lambda piece: piece.replace(b"x", b"\n"))))
def test_chunks_do_not_matter(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    expected = whole.removesuffix(b"\n").split(b"\n") if whole else []
    assert all_lines(pieces) == expected


def test_a_line_without_end_is_refused_before_it_fills_memory() -> None:
    with pytest.raises(ValueError, match="longer than 10 bytes"):
        list(read_lines(io.BufferedReader(io.BytesIO(b"a" * 11)), line_bytes_max=10))


def test_a_line_has_a_key_if_it_has_the_separator() -> None:
    values, keys = split_keys([b"k\tv\tw", b"v", b"\tv", b"k\t"], b"\t")
    assert values == [b"v\tw", b"v", b"v", b""]
    assert keys == [b"k", None, b"", b"k"]


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (b'{"value": "v"}', InputRecord(b"v")),
        (b"{}", InputRecord(None)),
        (b'{"key": "k", "value": null}', InputRecord(None, b"k")),
        (b'{"value": {"base64": "/w=="}}', InputRecord(b"\xff")),
        (b'{"value": "v", "headers": {"a": "1"}}', InputRecord(b"v", headers=(("a", b"1"),))),
        (
            b'{"value": "v", "headers": [["a", "1"], ["a", null]]}',
            InputRecord(b"v", headers=(("a", b"1"), ("a", None))),
        ),
        (
            b'{"value": "v", "partition": 2, "timestamp_ms": 5}',
            InputRecord(b"v", partition=2, timestamp_ms=5),
        ),
        (b'{"value": "v", "topic": "t", "offset": 9, "leader_epoch": 0}', InputRecord(b"v")),
    ],
)
def test_json_lines_are_records(line: bytes, record: InputRecord) -> None:
    assert parse_json_line(line) == record


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"v",
        b"[1]",
        b'{"valeu": "v"}',
        b'{"value": 1}',
        b'{"partition": -1}',
        b'{"partition": true}',
        b'{"timestamp_ms": "now"}',
        b'{"headers": "a"}',
        b'{"headers": [["a"]]}',
        b'{"value": "\xff"}',
    ],
)
def test_json_lines_that_are_no_records_are_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json_line(line)
