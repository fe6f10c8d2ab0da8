"""The FMT grammar as a table, and JSON that reads back as the same record."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from raftlog.cli.formats import (
    bytes_from_json,
    bytes_to_json,
    compile_format,
    format_json,
    format_values,
)
from raftlog.cli.lines import parse_json_line
from raftlog.types import ConsumerRecord

RECORD = ConsumerRecord(
    topic="clicks",
    partition=3,
    offset=47,
    key=b"user-1",
    value=b"caf\xc3\xa9 \xff",
    headers=(("trace", b"1"), ("empty", None)),
    timestamp_ms=1_700_000_000_000,
    leader_epoch=2,
)
NOTHING = replace(RECORD, key=None, value=None, headers=())


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("%v", b"caf\xc3\xa9 \xff\n"),
        (r"%v\n", b"caf\xc3\xa9 \xff\n"),
        ("%v\n", b"caf\xc3\xa9 \xff\n"),
        (r"%v\c", b"caf\xc3\xa9 \xff"),
        (r"%v\0\c", b"caf\xc3\xa9 \xff\0"),
        ("%t/%p@%o", b"clicks/3@47\n"),
        (r"%k\t%T\t%e", b"user-1\t1700000000000\t2\n"),
        ("%h", b"trace=1,empty=\n"),
        ("100%%", b"100%\n"),
        (r"a\\n", b"a\\n\n"),
        (r"\x41\x0a", b"A\n\n"),
        ("é", "é\n".encode()),
        ("", b"\n"),
        (r"\c", b""),
        (r"\\c", b"\\c\n"),
    ],
)
def test_formats_write_what_the_grammar_says(text: str, written: bytes) -> None:
    assert compile_format(text)(RECORD) == written


def test_null_is_written_as_nothing() -> None:
    assert compile_format("[%k][%v][%h]")(NOTHING) == b"[][][]\n"
    assert format_values(NOTHING) == b"\n"


def test_the_short_cut_is_the_default_format() -> None:
    assert format_values(RECORD) == compile_format("%v")(RECORD)


@pytest.mark.parametrize("text", ["%x", "%", "50%", "\\", r"\q", r"\xZZ", r"\x4"])
def test_what_is_not_in_the_grammar_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="grammar"):
        compile_format(text)


@given(st.text(max_size=20))
def test_any_format_is_compiled_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        compile_format(text)(RECORD)


@given(st.none() | st.binary(max_size=50))
def test_bytes_survive_json(data: bytes | None) -> None:
    assert bytes_from_json(bytes_to_json(data)) == data


@pytest.mark.parametrize(
    "value", [1, True, [], {}, {"base64": 1}, {"base64": "!"}, {"base64": "", "x": 1}, "\ud800"]
)
def test_json_that_is_no_bytes_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        bytes_from_json(value)


@pytest.mark.parametrize("record", [RECORD, NOTHING])
def test_a_printed_json_line_can_be_produced_again(record: ConsumerRecord) -> None:
    again = parse_json_line(format_json(record))
    assert again == (
        record.value,
        record.key,
        record.headers,
        record.partition,
        record.timestamp_ms,
    )
