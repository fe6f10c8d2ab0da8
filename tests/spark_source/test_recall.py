"""Which rows of an attempt are stored already: by what they are, not by their order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_raftlog.routing import Multiset, Rows, Stored, digests_of, record_schema
from raftlog import ConsumerRecord
from tests.spark_source.sinks import portion_of

Row = dict[str, Any]
NOW_MS = 1_714_564_800_000


def rows_of(*rows: Row) -> pa.RecordBatch:
    """Rows of an attempt, with the columns that the first one names."""
    schema = pa.schema([field for field in record_schema() if field.name in rows[0]])
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


def record(row: Row, timestamp_ms: int = NOW_MS) -> ConsumerRecord:
    """The record that a row becomes when it is written at ``NOW_MS``."""
    headers = tuple((each["key"], each["value"]) for each in row.get("headers") or ())
    given_ms = row.get("timestamp")
    time_ms = timestamp_ms if given_ms is None else given_ms
    return ConsumerRecord("t", 0, 0, row.get("key"), row.get("value"), headers, time_ms, 0)


def stored_of(*rows: Row, timestamp_type: int = 0) -> Stored:
    portion = portion_of([record(row) for row in rows], timestamp_type=timestamp_type)
    return Stored.of([portion], with_times="timestamp" in rows[0])


texts = st.binary(max_size=2)
headers = st.lists(st.fixed_dictionaries({"key": st.text(max_size=1), "value": st.none() | texts}))
row = st.fixed_dictionaries(
    {
        "value": st.none() | texts,
        "key": st.none() | texts,
        "headers": st.none() | headers,
        "timestamp": st.none() | st.sampled_from([5, 6, NOW_MS]),
    }
)
rows = st.lists(row, min_size=1, max_size=30)


@given(st.data(), rows)
def test_of_rows_in_any_order_those_that_are_stored_are_found(
    data: st.DataObject, rows: list[Row]
) -> None:
    """Each as often as it is stored, and each row with a time keeps a record of that time."""
    stored_rows = data.draw(st.permutations(rows))[: data.draw(st.integers(1, len(rows)))]
    stored = stored_of(*stored_rows)
    attempted = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(1, len(rows)))
    left = list(map(record, stored_rows))
    for part in (attempted[:cut], attempted[cut:]):
        if part:
            is_stored = stored.take(Rows.of(rows_of(*part))).tolist()
            left += [record(row) for row, found in zip(part, is_stored, strict=True) if not found]
    assert stored.count == 0
    assert len(left) == len(rows)
    assert Counter(map(_content, left)) == Counter(map(_content, map(record, rows)))
    with_times = Counter(record(row) for row in rows if row["timestamp"] is not None)
    assert with_times <= Counter(left)


def _content(record: ConsumerRecord) -> object:
    return record.key, record.value, record.headers


def test_rows_that_differ_in_any_part_have_other_digests() -> None:
    header = {"key": "a", "value": b""}
    different: list[Row] = [
        {"key": None, "value": b"ab"},
        {"key": b"", "value": b"ab"},
        {"key": b"a", "value": b"b"},
        {"key": b"ab", "value": b""},
        {"key": b"ab", "value": None},
        {"key": b"ab", "value": b"", "headers": [header]},
        {"key": b"ab", "value": b"", "headers": [header, header]},
        {"key": b"ab", "value": b"", "headers": [{"key": "a", "value": None}]},
    ]
    full = [{"headers": None, **each} for each in different]
    assert len(set(digests_of(rows_of(*full)).tolist())) == len(full)


def test_a_column_that_is_missing_is_nulls_and_no_headers_are_an_empty_list() -> None:
    full = rows_of({"key": None, "value": b"v", "headers": []})
    assert digests_of(full) == digests_of(rows_of({"value": b"v"}))
    assert digests_of(full) == digests_of(portion_of([record({"value": b"v"})]))


def test_times_that_the_broker_gave_are_not_compared() -> None:
    rows: list[Row] = [{"value": b"a", "timestamp": 5}, {"value": b"a", "timestamp": 6}]
    assert stored_of(*rows[:1], timestamp_type=1).take(Rows.of(rows_of(*rows))).tolist() == [
        True,
        False,
    ]
    assert stored_of(*rows[1:], timestamp_type=0).take(Rows.of(rows_of(*rows))).tolist() == [
        False,
        True,
    ]


def test_a_row_without_a_time_takes_none_that_a_later_row_needs() -> None:
    late: Row = {"value": b"a", "timestamp": None}
    early: Row = {"value": b"a", "timestamp": 5}
    stored = stored_of(early, late)
    assert stored.take(Rows.of(rows_of(late))).tolist() == [True]
    assert stored.take(Rows.of(rows_of(early, late))).tolist() == [True, False]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_multiset_gives_each_as_often_as_it_has_it(count: int) -> None:
    (digest,) = digests_of(rows_of({"value": b"a"}))
    digests = digests_of(rows_of(*({"value": value} for value in (b"a", b"b", b"a", b"a", b"a"))))
    multiset = Multiset([digests[:1]] * count)
    assert multiset.take(digests).tolist() == [
        number < count and value == digest
        for number, value in zip((0, 9, 1, 2, 3), digests, strict=True)
    ]
    assert multiset.count == 0
    assert not multiset.take(digests).any()


def test_a_multiset_gives_none_again_in_a_later_call() -> None:
    a, b = (digests_of(rows_of({"value": value})) for value in (b"a", b"b"))
    multiset = Multiset([a, a, b])
    assert [multiset.take(a).tolist() for _ in range(3)] == [[True], [True], [False]]
    assert multiset.take(b).tolist() == [True]
