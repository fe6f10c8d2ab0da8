"""Bytes as text: formats that are recognised, and limits."""

from __future__ import annotations

import datetime as dt
import json

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog_cli.console.records import FORMATS, HEX_BYTES_MAX, clean, decode, preview


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (None, "null", ""),
        (b"", "empty", ""),
        (b'{"a": [1, "\xc3\xa9"]}', "json", '{\n  "a": [\n    1,\n    "é"\n  ]\n}'),
        (b"{not json", "text", "{not json"),
        (b"plain", "text", "plain"),
        (b"12", "text", "12"),
        (msgpack.packb({"a": [1, b"\xff"]}), "msgpack", '{\n  "a": [\n    1,\n    "ff"\n  ]\n}'),
        (msgpack.packb({1: None}), "msgpack", '{\n  "1": null\n}'),
        (b"\x00\xff", "hex", "00000000  00 ff" + " " * 44 + ".."),
        (b"\x81\xa1", "hex", "00000000  81 a1" + " " * 44 + ".."),
    ],
)
def test_the_format_is_recognised(data: bytes | None, kind: str, text: str) -> None:
    shown = decode(data)
    assert (shown.kind, shown.text) == (kind, text)
    assert (shown.size, shown.is_cut, shown.problem) == (len(data or b""), False, "")


@pytest.mark.parametrize(
    ("data", "wanted", "kind", "noted"),
    [
        (b"plain", "json", "text", "not json: JSON is malformed"),
        (b"\xff\xff", "text", "hex", "not text: invalid start byte"),
        (b"\xc1", "msgpack", "hex", "not msgpack"),
        (b"text", "hex", "hex", ""),
        (b"7", "json", "json", ""),
        (b"[" * 10_000, "json", "text", "not json"),
    ],
)
def test_a_format_that_was_asked_for(data: bytes, wanted: str, kind: str, noted: str) -> None:
    shown = decode(data, wanted)
    assert shown.kind == kind
    assert noted in shown.problem
    assert bool(noted) == bool(shown.problem)


@pytest.mark.parametrize(
    "stored",
    [
        '{"a":1,"a":2}',
        '{"price":1234567890.123456789012345,"z":1e400,"x":1.10,"n":-0}',
        r'{"lone":"\ud83d","pair":"\ud83d\ude00","none":"\\ud83d","letter":"\u00e9"}',
        '{"private":"\ue000\ue001"}',
    ],
)
def test_json_is_shown_as_it_is_stored(stored: str) -> None:
    shown = decode(stored.encode())
    assert (shown.kind, "".join(shown.text.split())) == ("json", stored)
    assert shown.text.count("\n") > 1


def test_a_surrogate_of_another_format_can_be_shown() -> None:
    packed = msgpack.packb(["\ud83d"], unicode_errors="surrogatepass")
    assert decode(packed).text.encode()
    assert clean("a\ud83d") == "a\ufffd"


def test_a_timestamp_of_msgpack_is_shown() -> None:
    moment = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    assert "1767312000" in decode(msgpack.packb([moment], datetime=True)).text


def test_only_the_beginning_of_a_long_value_is_looked_at() -> None:
    size = limits.CONSOLE_VALUE_BYTES_MAX
    shown = decode("é".encode() * size)
    assert (shown.kind, shown.is_cut, shown.size) == ("text", True, 2 * size)
    assert len(shown.text) <= size
    assert set(shown.text) == {"é"}
    long_json = json.dumps(["x" * size]).encode()
    assert decode(long_json).kind == "text"
    assert "too long" in decode(long_json, "json").problem
    assert len(decode(b"\xff" * 10_000_000).text) < 80 * HEX_BYTES_MAX // 16


def test_control_characters_and_changes_of_direction_are_replaced() -> None:
    assert decode("a\x1b[2J\u202eb\tc\nd".encode()).text == "a\ufffd[2J\ufffdb\tc\nd"


def test_a_preview_is_one_short_line() -> None:
    assert preview("a\n  b" + "c" * 1_000) == "a b" + "c" * 157


@given(st.binary(max_size=200), st.sampled_from(FORMATS))
def test_any_bytes_can_be_shown_as_anything(data: bytes, wanted: str) -> None:
    shown = decode(data, wanted)
    assert shown.size == len(data)
    assert shown.text or not data
