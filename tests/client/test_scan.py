"""Scans of an embedded log: exactly the records, as the columns that were asked for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import raftlog
from raftlog.errors import (
    DeserializationError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
    UnknownTopicError,
)

pa = pytest.importorskip("pyarrow")

T0 = datetime(2026, 1, 1, tzinfo=UTC)
LONDON = ZoneInfo("Europe/London")
AHEAD, BEHIND = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
T0_MS = int(T0.timestamp() * 1_000)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[raftlog.EmbeddedLog]:
    """``plain``: two partitions of 60 and 40 records, a second apart. ``json``: objects."""
    with raftlog.open(tmp_path_factory.mktemp("log")) as opened:
        opened.create_topic("plain", 2)
        opened.create_topic("json")
        opened.create_topic("bad")
        opened.create_topic("empty")
        with opened.producer() as producer:
            for number in range(100):
                partition = int(number >= 60)
                time_ms = T0_MS + (number - 60 * partition) * 1_000
                value = b"v%d" % number
                producer.send("plain", value, partition=partition, timestamp_ms=time_ms)
                if number % 7 == 0:
                    producer.flush()
            for number in range(10):
                text = b'{"id": %d, "who": "u%d", "offset": -1}' % (number, number % 3)
                producer.send("json", None if number == 4 else text, key=b"k")
            for value in (b'{"id": 1}', b'{"id": 2}', b"{", b'{"id": "x"}', b'{"id": 5}', b"\xff"):
                producer.send("bad", value)
            producer.flush()
        yield opened


def values(log: raftlog.EmbeddedLog, **settings: Any) -> list[bytes]:
    found: list[bytes] = log.scan("plain", **settings).to_arrow().column("value").to_pylist()
    return found


def numbered(*ranges: range) -> list[bytes]:
    return [b"v%d" % number for each in ranges for number in each]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, numbered(range(100))),
        ({"rows_max": 3}, numbered(range(100))),
        ({"partitions": [1]}, numbered(range(60, 100))),
        ({"start": 50}, numbered(range(50, 60))),
        ({"end": 2}, numbered(range(2), range(60, 62))),
        ({"start": {0: 59}, "end": {1: 1}}, numbered(range(59, 60), range(60, 61))),
        ({"start": T0 + timedelta(seconds=39)}, numbered(range(39, 60), range(99, 100))),
        ({"end": T0 + timedelta(seconds=1)}, numbered(range(1), range(60, 61))),
        # Times between two milliseconds: records have the one before.
        ({"start": T0 + timedelta(seconds=39, microseconds=1)}, numbered(range(40, 60))),
        (
            {"end": T0 + timedelta(seconds=1, microseconds=1)},
            numbered(range(2), range(60, 62)),
        ),
        ({"start": datetime(1969, 1, 1, tzinfo=UTC), "end": 1}, numbered(range(1), range(60, 61))),
        ({"end": datetime(1969, 1, 1, tzinfo=UTC)}, []),
        ({"start": datetime.max.replace(tzinfo=UTC)}, []),
        ({"start": datetime.max.replace(tzinfo=BEHIND)}, []),
        ({"end": datetime.min.replace(tzinfo=AHEAD)}, []),
        # A zone whose offset was another one in 1970.
        (
            {"start": (T0 + timedelta(seconds=39)).astimezone(LONDON)},
            numbered(range(39, 60), range(99, 100)),
        ),
        (
            {"where": [("timestamp", "<", (T0 + timedelta(seconds=1)).astimezone(LONDON))]},
            numbered(range(1), range(60, 61)),
        ),
        ({"where": [("timestamp", ">", datetime.max.replace(tzinfo=UTC))]}, []),
        ({"start": "latest"}, []),
        ({"where": [("offset", ">=", 38), ("partition", "=", 1)]}, numbered(range(98, 100))),
        (
            {"where": [("offset", ">", 1), ("offset", "<=", 2)]},
            numbered(range(2, 3), range(62, 63)),
        ),
        (
            {
                "where": [
                    ("timestamp", ">", T0 + timedelta(seconds=38)),
                    ("timestamp", "<", T0 + timedelta(seconds=40)),
                ]
            },
            numbered(range(39, 40), range(99, 100)),
        ),
    ],
)
def test_exactly_the_records_in_the_bounds_are_read(
    log: raftlog.EmbeddedLog, settings: dict[str, Any], expected: list[bytes]
) -> None:
    assert values(log, **settings) == expected


def test_times_that_are_out_of_order_do_not_hide_records(log: raftlog.EmbeddedLog) -> None:
    log.create_topic("disordered")
    with log.producer() as producer:
        for second in (5, 1, 9, 2, 7):
            producer.send("disordered", b"%d" % second, timestamp_ms=T0_MS + second * 1_000)
    where = [
        ("timestamp", ">=", T0 + timedelta(seconds=6)),
        ("timestamp", "<", T0 + timedelta(seconds=8)),
    ]
    found = log.scan("disordered", where=where, columns=["value"]).to_arrow()
    assert found.to_pydict() == {"value": [b"7"]}


def test_a_scan_is_read_again_and_does_not_grow(log: raftlog.EmbeddedLog) -> None:
    log.create_topic("growing")
    with log.producer() as producer:
        producer.send("growing", b"1").result(timeout=20)
        scan = log.scan("growing")
        producer.send("growing", b"2").result(timeout=20)
    assert [scan.to_arrow().num_rows, scan.to_arrow().num_rows] == [1, 1]
    assert pa.table(scan).column("value").to_pylist() == [b"1"]  # __arrow_c_stream__


def test_a_reader_that_is_dropped_early_ends_its_connections(log: raftlog.EmbeddedLog) -> None:
    reader = log.scan("plain", rows_max=1).reader()
    assert reader.read_next_batch().num_rows == 1
    del reader
    assert len(values(log)) == 100


def test_columns_are_those_that_were_asked_for(log: raftlog.EmbeddedLog) -> None:
    default = ["partition", "offset", "timestamp", "key", "value", "headers"]
    assert log.scan("plain").schema.names == default
    found = log.scan("plain", columns=["value", "topic"], end=1, partitions=[0]).to_arrow()
    assert found.to_pydict() == {"value": [b"v0"], "topic": ["plain"]}
    assert log.scan("plain", value="text").schema.field("value").type == pa.string()
    assert log.scan("empty").to_arrow().num_rows == 0


# -- values ----------------------------------------------------------------------------------------


def test_fields_of_json_values_become_columns(log: raftlog.EmbeddedLog) -> None:
    scan = log.scan("json", value="json")
    names = ["partition", "offset", "timestamp", "key", "headers", "id", "who", "value_offset"]
    assert scan.schema.names == names
    found = scan.to_arrow()
    assert found.column("id").to_pylist() == [0, 1, 2, 3, None, 5, 6, 7, 8, 9]
    assert found.column("value_offset").to_pylist()[:5] == [-1, -1, -1, -1, None]
    assert found.column("offset").to_pylist() == [*range(10)]
    some = log.scan("json", value="json", columns=["who", "topic"], end=2).to_arrow()
    assert some.to_pydict() == {"who": ["u0", "u1"], "topic": ["json", "json"]}
    assert log.scan("empty", value="json").schema.names == names[:5]
    log.create_topic("field")
    with log.producer() as producer:
        producer.send("field", b'{"value": 4}')
    assert log.scan("field", value="json").to_arrow().column("value").to_pylist() == [4]


def test_a_schema_selects_fields_and_converts_them(log: raftlog.EmbeddedLog) -> None:
    schema = pa.schema([("id", pa.float64()), ("missing", pa.string())])
    scan = log.scan("json", value="json", schema=schema, start=9)
    assert scan.to_arrow().select(["id", "missing"]).to_pydict() == {"id": [9.0], "missing": [None]}


def test_a_bad_value_is_an_error_with_its_offset_or_null(log: raftlog.EmbeddedLog) -> None:
    schema = pa.schema([("id", pa.int64())])
    with pytest.raises(DeserializationError, match=r"bad:0: the value at offset 2 .*on_error"):
        log.scan("bad", value="json", schema=schema).to_arrow()
    with pytest.raises(DeserializationError, match=r"offset 3 .*number to string"):
        log.scan("bad", value="json", schema=schema, start=3).to_arrow()
    with pytest.raises(DeserializationError, match="offset 2"):
        log.scan("bad", value="json").schema  # noqa: B018 - it is read
    nulls = log.scan("bad", value="json", on_error="null")
    assert nulls.to_arrow().column("id").to_pylist() == [1, 2, None, None, 5, None]
    with pytest.raises(DeserializationError, match="offset 5 is not text"):
        log.scan("bad", value="text").to_arrow()
    texts = log.scan("bad", value="text", on_error="null", start=4).to_arrow()
    assert texts.column("value").to_pylist() == ['{"id": 5}', None]


# -- libraries -------------------------------------------------------------------------------------


def test_a_scan_becomes_a_frame_of_pandas_and_polars(log: raftlog.EmbeddedLog) -> None:
    pytest.importorskip("pandas")
    assert log.scan("plain", columns=["offset"]).to_pandas()["offset"].sum() == 59 * 30 + 39 * 20
    polars = pytest.importorskip("polars")
    scan = log.scan("plain", value="text")
    assert scan.to_polars().height == 100
    lazy = scan.to_polars(lazy=True)
    query = lazy.filter(polars.col("offset") >= 38).select(polars.col("value").max())
    assert query.collect().item() == "v99"
    assert lazy.head(3).collect().height == 3


def test_duckdb_reads_only_what_a_query_uses(
    log: raftlog.EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("duckdb")
    asked = []
    reader = raftlog.Scan.reader

    def noted(self: raftlog.Scan, columns: Any = None) -> Any:
        asked.append((columns, self.offset_count))
        return reader(self, columns)

    monkeypatch.setattr(raftlog.Scan, "reader", noted)
    relation = log.scan("plain").to_duckdb()
    times = "timestamp >= TIMESTAMPTZ '2026-01-01 00:00:30+00'"
    query = f'select count(*), max(value) from t where "offset" < 32 and {times} and partition = 0'
    assert relation.query("t", query).fetchall() == [(2, b"v31")]
    ((columns, offsets),) = asked
    assert set(columns) == {"value", "offset", "timestamp", "partition"}
    assert offsets == 2


def test_a_dataset_has_the_methods_that_other_libraries_call(log: raftlog.EmbeddedLog) -> None:
    import pyarrow.compute as pc

    dataset = log.scan("plain").dataset()
    late = pc.field("offset") >= 58
    assert dataset.count_rows() == 100
    assert dataset.count_rows(filter=late) == 2
    assert dataset.to_table(columns=["value"], filter=late).to_pydict() == {
        "value": [b"v58", b"v59"]
    }


def test_a_dataset_is_not_read_ahead_of_its_reader(
    log: raftlog.EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    batches = raftlog.Scan._batches

    def counted(self: raftlog.Scan, schema: Any) -> Iterator[Any]:
        nonlocal read
        for batch in batches(self, schema):
            read += 1
            yield batch

    monkeypatch.setattr(raftlog.Scan, "_batches", counted)
    reader = log.scan("plain", rows_max=1).dataset().scanner().to_reader()
    for number in (1, 2, 3):
        reader.read_next_batch()
        assert read == number


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"columns": ["vale"]}, InvalidRequestError, "there is no 'vale'"),
        ({"value": "xml"}, InvalidRequestError, "not one of raw, text, json"),
        ({"schema": "x"}, InvalidRequestError, "requires value='json'"),
        ({"partitions": [2]}, UnknownPartitionError, "it has 0 to 1"),
        ({"start": {0: 61}}, OffsetOutOfRangeError, "plain:0 has no offset 61: it has 0 to 60"),
        ({"start": {2: 0}}, UnknownPartitionError, "start: plain has no partition 2"),
        ({"start": datetime(2026, 1, 1)}, InvalidRequestError, "no time zone"),  # noqa: DTZ001
        ({"start": "soon"}, TypeError, "not 'earliest'"),
        ({"where": [("value", "=", 1)]}, InvalidRequestError, "one of offset, partition"),
        ({"where": ["offset > 1"]}, InvalidRequestError, "is not \\(column, operator, value\\)"),
        ({"where": [("timestamp", ">", 1)]}, TypeError, "is not a datetime"),
        ({"rows_max": 0}, InvalidRequestError, "rows_max"),
    ],
)
def test_wrong_arguments_are_named(
    log: raftlog.EmbeddedLog, settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        log.scan("plain", **settings).schema  # noqa: B018 - columns are checked with it


def test_an_unknown_topic_suggests_similar_ones(log: raftlog.EmbeddedLog) -> None:
    with pytest.raises(UnknownTopicError, match=r"'plian' does not exist\. Did you mean 'plain'"):
        log.scan("plian")
