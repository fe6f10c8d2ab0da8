"""Values, lists and filters as the pages of the console show them."""

from __future__ import annotations

import datetime as dt
import json

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog_cli.console import pages, records
from raftlog_cli.console.pages import Page, number_of, page_of, pages_of
from raftlog_cli.console.records import FORMATS, HEX_BYTES_MAX, clean, decode, preview

# -- decoding --------------------------------------------------------------------------------------

# Bytes as text: formats that are recognised, and limits.


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
        (b"\x82\x01\xc0\xa11\xc0", "msgpack", '{\n  "1": null,\n  "1": null\n}'),
        (b"\x81\x91\x81\xc0\x80\x02", "msgpack", '{\n  "[{\\"None\\": {}}]": 2\n}'),
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


def test_a_decoder_that_fails_costs_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(data: bytes) -> str:
        raise KeyError("of a library")

    monkeypatch.setattr(records, "_msgpack", fail)
    shown = decode(msgpack.packb([1]), "msgpack")
    assert (shown.kind, shown.problem) == ("hex", "not msgpack: 'of a library'")


# Bytes, and what looks like maps and arrays of MessagePack with any keys.
PIECES = st.sampled_from([b"\x81", b"\x82", b"\x91", b"\x80", b"\x90", b"\xa11", b"\x01", b"\xc0"])


@given(
    st.binary(max_size=200) | st.lists(PIECES, max_size=20).map(b"".join), st.sampled_from(FORMATS)
)
def test_any_bytes_can_be_shown_as_anything(data: bytes, wanted: str) -> None:
    shown = decode(data, wanted)
    assert shown.size == len(data)
    assert shown.text or not data


# -- filters ---------------------------------------------------------------------------------------

# Values as the pages show them.


def test_values() -> None:
    for shown, text in [
        (pages.number(1_234_567), "1,234,567"),
        (pages.number(None), pages.NOTHING),
        (pages.number(-1), pages.NOTHING),
        (pages.rate(0.25), "0.2"),
        (pages.rate(0), "0"),
        (pages.rate(1_234.5), "1,234"),
        (pages.rate(None), pages.NOTHING),
        (pages.size(1_023), "1023 B"),
        (pages.size(1_536), "1.5 KiB"),
        (pages.size(5 * 1024**4), "5.0 TiB"),
        (pages.size(5_000 * 1024**5), "5000.0 PiB"),
        (pages.size(-1), pages.NOTHING),
        (pages.time(0), "1970-01-01 00:00:00.000"),
        (pages.time(1_767_312_000_123), "2026-01-02 00:00:00.123"),
        (pages.time(-1), "-1"),
        (pages.time(1 << 62), str(1 << 62)),
        (pages.clock(1_767_312_000_123), "00:00:00 UTC"),
        (pages.duration(None), pages.NOTHING),
        (pages.duration(0.5), "0.5 s"),
        (pages.duration(90), "2 min"),
        (pages.duration(7_200), "2.0 h"),
        (pages.duration(200_000), "2.3 days"),
        (pages.readable("604800000", "retention.ms"), "7 days"),
        (pages.readable("86400000", "delete.retention.ms"), "1 day"),
        (pages.readable("90000000", "segment.ms"), "25 h"),
        (pages.readable("1073741824", "segment.bytes"), "1 GiB"),
        (pages.readable("-1", "retention.bytes"), "no limit"),
        (pages.readable(str(2**63 - 1), "max.compaction.lag.ms"), "no limit"),
        (pages.readable("999", "retention.ms"), "999 ms"),
        (pages.readable("0", "retention.bytes"), "0 bytes"),
        (pages.readable("90000", "retention.ms"), "90 s"),
        (pages.readable("1048588", "max.message.bytes"), "1 MiB"),
        (pages.brief("604800000", "retention.ms"), "7d"),
        (pages.brief("90000000", "segment.ms"), "25h"),
        (pages.brief("999", "segment.ms"), "999ms"),
        (pages.brief("1048588", "max.message.bytes"), "1048588B"),
        (pages.brief("1073741824", "segment.bytes"), "1GiB"),
        (pages.brief(str(2**63 - 1), "max.compaction.lag.ms"), str(2**63 - 1)),
        (pages.brief("-1", "retention.ms"), "-1"),
        (pages.brief("5000", "min.insync.replicas"), "5000"),
        (pages.exact("604800000", "retention.ms"), "604,800,000 ms"),
        (pages.exact("-1", "retention.bytes"), "-1 bytes"),
        (pages.exact("delete", "cleanup.policy"), "delete"),
        (pages.readable("5000", "min.insync.replicas"), ""),
        (pages.readable("", "retention.ms"), ""),
    ]:
        assert shown == text


@pytest.mark.parametrize(
    ("value", "largest", "width"), [(0, 9, 0), (1, 10_000, 1), (5, 10, 48), (None, 1, 0), (3, 0, 0)]
)
def test_a_bar_shows_all_that_is_not_nothing(value: int | None, largest: int, width: int) -> None:
    assert pages.bar(value, largest) == width


# -- paging ----------------------------------------------------------------------------------------

# Pages of long lists.


@pytest.mark.parametrize(
    ("text", "number", "first", "last"),
    [("", 1, 1, 10), ("3", 3, 21, 25), ("99", 3, 21, 25), ("0", 1, 1, 10), ("x", 1, 1, 10)],
)
def test_the_page_is_the_nearest_that_there_is(
    text: str, number: int, first: int, last: int
) -> None:
    page = page_of(range(1, 26), 10, "/x", {"page": text})
    assert (page.number, page.pages, page.total) == (number, 3, 25)
    assert (page.first, page.last, page.rows[0], page.rows[-1]) == (first, last, first, last)


def test_addresses_keep_the_parameters() -> None:
    page = page_of(range(25), 10, "/topics", {"q": "a&b", "sort": "", "page": "2"})
    assert page.address(3) == "/topics?q=a%26b&page=3"
    assert page.address(1) == "/topics?q=a%26b"
    assert page_of([], 10, "/t", {}).address(1) == "/t"


def test_an_empty_list_is_one_empty_page() -> None:
    page = page_of([], 10, "/x", {})
    assert (page.pages, page.first, page.last, list(page.rows)) == (1, 0, 0, [])


def test_a_page_of_rows_that_were_not_all_read() -> None:
    page = Page("de", 2, 3, 5, "/x", {"page": "2"})
    assert (page.pages, page.first, page.last, page.address(3)) == (2, 4, 5, "/x?page=3")
    assert [number_of({"page": text}) for text in ("2", "0", "x", "9" * 9)] == [
        2,
        1,
        1,
        999_999_999,
    ]
    assert [pages_of(total, 3) for total in (0, 3, 4)] == [1, 1, 2]
