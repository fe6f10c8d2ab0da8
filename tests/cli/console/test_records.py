"""Reads of records: addresses to queries, limits, and what a page links to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from raftlog import Producer, limits
from raftlog.clock import SystemClock
from raftlog.errors import InvalidRequestError, UnknownPartitionError, UnknownTopicError
from raftlog.types import ConsumerRecord, TopicPartition
from raftlog_cli.console import records
from raftlog_cli.console.pages import Pages
from raftlog_cli.console.records import (
    FIELD,
    PLACES,
    Decoder,
    Found,
    Query,
    Reader,
    Schemas,
    matcher,
    parse_query,
    positions_text,
    row_of,
)
from raftlog_cli.options import Bound, Extent, From


def query(**parameters: str) -> Query:
    return parse_query("t", parameters, now_ms=10_000_000)


def test_an_address_is_a_query() -> None:
    assert query() == Query("t")
    assert query(**{"from": "latest"}).is_newest_first
    assert query(**{"from": "earliest"}).start == Bound(From.BEGINNING)
    assert query(**{"from": "12"}).start == Bound(From.OFFSET, 12)
    assert query(**{"from": "-12"}).start == Bound(From.END, 12)
    for text in ("@-2h", "-2h", "1970-01-01T00:46:40"):
        assert query(**{"from": text}).start == Bound(From.TIME, 2_800_000), text
    full = query(partition="3", at="3:7", q="x", n="9999", **{"in": "key", "as": "hex"})
    assert full == Query("t", 3, None, {3: 7}, "x", "key", "hex", limits.CONSOLE_RECORDS_MAX)
    assert not full.is_newest_first


@pytest.mark.parametrize(
    ("parameter", "text"),
    [
        *(("partition", "x"), ("partition", "-1"), ("partition", "9" * 19), ("n", "x")),
        *(("from", "never"), ("from", "1:2"), ("in", "x"), ("as", "x"), ("at", "1")),
        *(("at", "0:x"), ("at", ",".join(f"{n}:0" for n in range(65)))),
        ("q", "x" * 201),
    ],
)
def test_what_is_not_a_query_is_named(parameter: str, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{parameter}: "):
        query(**{parameter: text})


def test_a_field_is_searched_by_its_path() -> None:
    for text in ("user", "=5"):
        with pytest.raises(InvalidRequestError, match=r"^q: to search a field, write PATH=TEXT"):
            query(q=text, **{"in": FIELD})
    assert query(q="user.id=5", **{"in": FIELD}).place == FIELD


def record(offset: int = 0, **fields: object) -> ConsumerRecord:
    values = {"key": b"k", "value": b"v", "headers": (), **fields}
    return ConsumerRecord("t", 0, offset, timestamp_ms=1, leader_epoch=1, **values)  # type: ignore[arg-type]


def test_text_is_found_in_any_case_where_it_was_asked_for() -> None:
    found = record(key=b"The Key", value=b"the VALUE")
    found = record(key=b"The Key", value=b"the VALUE", headers=(("Tenant", b"acme"), ("x", None)))
    for text, places in [
        *(("value", {"value", "anywhere"}), ("KEY", {"key", "anywhere"})),
        *(("tenant=ACME", {"headers", "anywhere"}), ("x=", {"headers", "anywhere"})),
    ]:
        assert {place for place in PLACES[:-1] if matcher(text, place)(found)} == places
    assert matcher("", "value")(record(value=None))
    assert not matcher("x", "anywhere")(record(key=None, value=None))


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        *(("user.name=ada", True), ("user.name=Ad", False), ("user.tags.1=b", True)),
        *(("user.id=5", True), ("user.on=TRUE", True), ("user.none=null", True), ("a=b=c", True)),
        *(('user.tags=["a","b"]', True), ("user.tags.2=", False), ("user.tags.x=a", False)),
        *(("name=ada", False), ("user.name.x=ada", False), ("user.none.x=", False)),
    ],
)
def test_a_field_of_a_json_value_is_compared_as_a_whole(text: str, is_found: bool) -> None:
    user = {"name": "Ada", "id": 5, "tags": ["a", "b"], "on": True, "none": None}
    found = record(value=json.dumps({"user": user, "a": "b=c"}).encode())
    assert matcher(text, FIELD)(found) is is_found


def test_values_that_are_not_json_or_too_large_have_no_fields() -> None:
    for value in (None, b"", b"{", b"\xff", b"[" * 10_000, b"1" * 300 + b"x"):
        assert not matcher("a=b", FIELD)(record(value=value))
    large = json.dumps({"a": "b", "c": "x" * limits.CONSOLE_TEXT_MAX}).encode()
    assert not matcher("a=b", FIELD)(record(value=large))
    assert matcher("a=b", FIELD)(record(value=b'{"a": "b"}'))


def test_a_field_of_an_avro_value_is_compared(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    (tmp_path / "t-value.avsc").write_text(json.dumps(schema))
    decoder = Decoder(Schemas(str(tmp_path)), "t")
    for value, is_found in ((b"\x0a", True), (b"\x0b", False), (b"\x0a\x0a", False)):
        assert matcher("id=5", FIELD, decoder)(record(value=value)) is is_found
        assert not matcher("id=5", FIELD)(record(value=value))


def test_a_row_is_bounded() -> None:
    row = row_of(
        record(value=b"v" * 1_000_000, headers=tuple(("n" * 9_999, b"v") for _ in range(99))),
        "auto",
        Decoder(Schemas(""), "t"),
    )
    assert (len(row.value.text), row.value.is_cut) == (records.LISTED_CHARS_MAX, True)
    assert (len(row.headers), row.headers_omitted) == (records.HEADERS_MAX, 49)
    assert len(row.headers[0][0]) == records.HEADER_CHARS_MAX


def test_positions_are_text_in_an_address() -> None:
    assert positions_text({1: 5, 0: 7}) == "0:7,1:5"


class Compacted:
    """A reader of a partition with ten records at its start, and ten at its end."""

    def read(self, query: Query) -> Found:
        offsets = [*range(10), *range(100_000, 100_010)]
        start = query.at.get(0, 100_010 - query.count)
        found = [record(offset) for offset in offsets if offset >= start][: query.count]
        extents = {0: Extent(0, 100_010)}
        return Found(found, {0: found[-1].offset + 1}, len(found), "count", extents)

    def close(self) -> None:
        pass


def test_older_records_are_reached_beyond_a_gap() -> None:
    unused: Any = None
    others: Any = {"make_producer": unused, "is_secured": False}
    reader: Any = Compacted
    pages = Pages(unused, unused, unused, reader, Schemas(""), **others)
    address, seen = "", set()
    for _ in range(20):
        page = pages.records({"name": "t", "n": "5", **dict(parse_qsl(address))})
        seen |= {row.offset for row in page["rows"]}
        address = page["older"].removeprefix("?")
        if not address:
            break
    assert 0 in seen


# -- reads -----------------------------------------------------------------------------------------


@pytest.fixture
def filled(topic: str, bootstrap: str) -> str:
    """A topic with 30 records in partition 0, and 3 in partition 1."""
    with Producer(bootstrap) as producer:
        for number in range(30):
            producer.send(topic, value=b"value %d" % number, key=b"k%d" % (number % 3), partition=0)
        for number in range(3):
            producer.send(topic, value=b"other %d" % number, partition=1)
    return topic


@pytest.fixture
def schemas(tmp_path: Path) -> Schemas:
    return Schemas(str(tmp_path))


@pytest.fixture
def reader(bootstrap: str, schemas: Schemas) -> Callable[[], Reader]:
    @contextmanager
    def make() -> Iterator[Reader]:
        made = Reader(bootstrap, SystemClock().monotonic, schemas)
        try:
            yield made
        finally:
            made.close()

    return make  # type: ignore[return-value]


@pytest.mark.integration
def test_reads_end_where_they_should(filled: str, reader: Callable[[], Reader]) -> None:
    def read(**fields: object) -> records.Found:
        with reader() as opened:  # type: ignore[attr-defined]
            found: records.Found = opened.read(Query(filled, **fields))  # type: ignore[arg-type]
            return found

    newest = read(count=5)
    assert [r.timestamp_ms for r in newest.records] == sorted(
        r.timestamp_ms for r in newest.records
    )
    assert sorted((r.partition, r.offset) for r in newest.records)[-3:] == [(1, 0), (1, 1), (1, 2)]
    assert len(newest.records) == 5
    assert (newest.reason, newest.next) == ("end", {0: 30, 1: 3})
    assert newest.extents == {0: Extent(0, 30), 1: Extent(0, 3)}

    first = read(partition=0, start=Bound(From.BEGINNING), count=20)
    assert [r.offset for r in first.records] == list(range(20))
    assert (first.reason, first.next) == ("count", {0: 20})
    rest = read(at=first.next)
    assert [r.offset for r in rest.records] == list(range(20, 30))
    assert rest.reason == "end"

    late = read(text="VALUE 1", count=3)
    assert [r.offset for r in late.records] == [17, 18, 19]
    assert (late.scanned, late.reason) == (33, "end")
    filtered = read(start=Bound(From.BEGINNING), text="VALUE 1")
    assert [r.offset for r in filtered.records] == [1, *range(10, 20)]
    assert filtered.scanned == 33
    with pytest.raises(UnknownPartitionError, match="has no partition 7: it has 0 to 1"):
        read(partition=7)


@pytest.mark.integration
def test_a_search_of_avro_stops_at_its_limit_and_continues(
    filled: str,
    reader: Callable[[], Reader],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The texts "value 0" to "value 9" are records of Avro here."""
    text = {"type": "fixed", "name": "Text", "size": 7}
    schema = {"type": "record", "name": "Value", "fields": [{"name": "text", "type": text}]}
    (tmp_path / f"{filled}-value.avsc").write_text(json.dumps(schema))
    monkeypatch.setattr(limits, "CONSOLE_AVRO_READS_MAX", 3)
    at, offsets, reads = {0: 0}, [], 0
    wanted = f"text={b'value 9'.hex()}"
    while at[0] < 30:
        with reader() as opened:  # type: ignore[attr-defined]
            found = opened.read(Query(filled, at=at, text=wanted, place=FIELD))
        offsets += [each.offset for each in found.records]
        assert found.next[0] > at[0]
        at, reads = found.next, reads + 1
    assert (offsets, reads) == ([9], 8)  # 4 values are decoded by each


@pytest.mark.integration
def test_reads_stop_at_their_limits(
    filled: str, reader: Callable[[], Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reason(partition: int = 0) -> tuple[str, int]:
        with reader() as opened:  # type: ignore[attr-defined]
            start = Bound(From.BEGINNING)
            found = opened.read(Query(filled, partition, start, text="nothing has this"))
            return found.reason, found.next[partition]

    with monkeypatch.context() as patch:
        patch.setattr(limits, "CONSOLE_SCANNED_MAX", 10)
        assert reason() == ("scanned", 10)
    with monkeypatch.context() as patch:
        patch.setattr(limits, "CONSOLE_READ_BYTES_MAX", 100)
        assert reason()[0] == "bytes"
    with monkeypatch.context() as patch:
        patch.setattr(limits, "CONSOLE_READ_S", 0.0)
        assert reason() == ("time", 0)
    with monkeypatch.context() as patch:
        patch.setattr(limits, "CONSOLE_PARTITIONS_MAX", 1)
        with reader() as opened:  # type: ignore[attr-defined]
            assert opened.read(Query(filled)).omitted == 1


@pytest.mark.integration
def test_one_record_and_downloads(
    filled: str, reader: Callable[[], Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    tp = TopicPartition(filled, 0)
    with reader() as opened:  # type: ignore[attr-defined]
        assert opened.one(tp, 7).value == b"value 7"
        assert opened.one(tp, 30) is None
    with reader() as opened, pytest.raises(UnknownTopicError):  # type: ignore[attr-defined]
        opened.one(TopicPartition("no-such", 0), 0)
    wanted = Query(filled, 0, Bound(From.OFFSET, 25))
    with reader() as opened:  # type: ignore[attr-defined]
        content, found = opened.download(wanted)
    assert [json.loads(line)["offset"] for line in content.splitlines()] == list(range(25, 30))
    assert records.download_name(wanted, found) == f"{filled}-0-25-29.jsonl"
    monkeypatch.setattr(limits, "CONSOLE_DOWNLOAD_BYTES_MAX", len(content) // 2)
    with reader() as opened:  # type: ignore[attr-defined]
        content, found = opened.download(wanted)
    assert (content.count(b"\n"), found.reason, found.next) == (2, "bytes", {0: 27})
