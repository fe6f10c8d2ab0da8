"""Rows on their way into a topic: columns, routing, and what is stored already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_raftlog import routing
from pyspark_raftlog.routing import (
    CHUNK_BYTES,
    HEADER_BYTES,
    PENDING_BYTES_MAX,
    RECORD_BYTES,
    Chunk,
    Chunker,
    Multiset,
    Occurrences,
    Router,
    Rows,
    SinkColumns,
    Stored,
    TopicShape,
    chunk_bytes,
    digests_of,
    record_schema,
    sink_columns,
)
from pyspark_raftlog.schema import read_schema
from raftlog import ConsumerRecord, TopicPartition, limits
from raftlog.errors import InvalidRequestError, UnknownPartitionError, UnknownTopicError
from raftlog.record.arrow import encode_arrow
from raftlog.record.key_hash import partition_of_key
from tests.spark_source.sinks import portion_of

# -- columns ---------------------------------------------------------------------------------------

# The sink's columns: what is taken, and what is said of everything else, before any work.


HEADERS = StructType().add("key", StringType()).add("value", BinaryType())


def test_columns_may_be_text_or_bytes_and_come_in_any_order_and_case() -> None:
    schema = (
        StructType()
        .add("Partition", IntegerType())
        .add("TIMESTAMP", TimestampType())
        .add("topic", StringType())
        .add("headers", ArrayType(HEADERS))
        .add("key", StringType())
        .add("Value", BinaryType())
    )
    assert sink_columns(schema, topic=None) == SinkColumns(
        value=5, key=4, headers=3, topic=2, partition=0, timestamp=1
    )
    assert sink_columns(schema, topic="clicks").topic is None, "the option goes before the column"
    assert sink_columns(StructType().add("value", StringType()), topic="t") == SinkColumns(value=0)


def with_value(name: str, data_type: DataType) -> StructType:
    return StructType().add("value", StringType()).add(name, data_type)


@pytest.mark.parametrize(
    ("schema", "topic", "noted"),
    [
        (StructType().add("key", StringType()), "t", r"no column 'value'.*to_json"),
        (
            StructType().add("value", StringType()),
            None,
            "no topic to write to: set the option topic, or add a column 'topic'",
        ),
        (
            StructType().add("value", LongType()),
            "t",
            r"'value' is bigint, where string or binary is needed. Cast it.*cast\(\"string\"\)",
        ),
        (StructType().add("value", HEADERS), "t", r"is struct<.*>, where.*to_json"),
        (with_value("key", DoubleType()), "t", "'key' is double"),
        (with_value("topic", IntegerType()), None, "'topic' is int, where string"),
        (with_value("topic", IntegerType()), "t", "'topic' is int, where string"),
        (with_value("partition", StringType()), "t", r"cast\(\"int\"\)"),
        (with_value("timestamp", DateType()), "t", "where timestamp is needed"),
        (with_value("timestamp", TimestampNTZType()), "t", "where timestamp is"),
        (with_value("headers", HEADERS), "t", "where array<struct<key:string,value"),
        (
            with_value(
                "headers",
                ArrayType(StructType().add("value", BinaryType()).add("key", StringType())),
            ),
            "t",
            "named key and value, in this order",
        ),
        (
            with_value(
                "headers",
                ArrayType(StructType().add("key", StringType()).add("Value", BinaryType())),
            ),
            "t",
            "named key and value, in this order and in lower case",
        ),
        (
            with_value("offset", LongType()),
            "t",
            r"'offset' is not a column of records.*\.select\('value'\)",
        ),
        (
            read_schema(),
            "t",
            r"'offset' is only read.*For INSERT INTO a table .* CREATE TABLE sink \(key string",
        ),
        (StructType().add("line", StringType()), "t", r"'line'.*to_json\(struct"),
        (with_value("VALUE", StringType()), "t", "two columns 'value'"),
    ],
)
def test_columns_that_cannot_be_written_are_refused(
    schema: StructType, topic: str | None, noted: str
) -> None:
    with pytest.raises(InvalidRequestError, match=noted):
        sink_columns(schema, topic=topic)


# -- routing ---------------------------------------------------------------------------------------

# Routing: which rows go where does not depend on how they come.


Row = dict[str, Any]

ARROW_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ARROW_TYPES: dict[str, pa.DataType] = {
    "value": pa.binary(),
    "key": pa.binary(),
    "headers": ARROW_HEADERS,
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def batch_of(rows: Sequence[Row], *names: str, **types: pa.DataType) -> pa.RecordBatch:
    """An Arrow batch with these columns, as Spark would give it."""
    schema = pa.schema([(name, types.get(name, ARROW_TYPES[name])) for name in names])
    return pa.RecordBatch.from_pylist(
        [{name: row.get(name) for name in names} for row in rows], schema
    )


def columns_of(*names: str) -> SinkColumns:
    return SinkColumns(**{name: names.index(name) for name in names})


def router_of(
    *names: str,
    count: int = 4,
    topic: str | None = "clicks",
    first: int = 0,
    size: int = CHUNK_BYTES,
) -> Router:
    columns = columns_of(*names)
    shape = TopicShape(count, size)
    return Router(
        columns, topic=topic, first=first, where="Spark partition 7", shape_of=lambda _: shape
    )


def routed(router: Router, batches: Iterable[pa.RecordBatch]) -> dict[TopicPartition, list[Row]]:
    """What each partition gets, in order."""
    found: dict[TopicPartition, list[Row]] = {}
    for batch in batches:
        for run in router.split(batch):
            assert len(run.sizes) == run.records.num_rows > 0
            found.setdefault(run.partition, []).extend(run.records.to_pylist())
    return found


def values_of(found: dict[TopicPartition, list[Row]]) -> dict[TopicPartition, list[bytes]]:
    return {tp: [row["value"] for row in rows] for tp, rows in found.items()}


# -- where a row goes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key_type", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()]
)
def test_a_key_goes_where_kafkas_clients_send_it(key_type: pa.DataType) -> None:
    keys = ["", "a", "user-17", "é" * 9, *map(str, range(200))]
    rows = [
        {"key": key if "string" in str(key_type) else key.encode(), "value": key.encode()}
        for key in keys
    ]
    batch = batch_of(rows, "key", "value", key=key_type)
    expected: dict[TopicPartition, list[bytes]] = {}
    for key in map(str.encode, keys):
        expected.setdefault(TopicPartition("clicks", partition_of_key(key, 7)), []).append(key)
    found = routed(router_of("key", "value", count=7), [batch])
    assert values_of(found) == expected
    assert all(row["key"] == row["value"] for rows in found.values() for row in rows)


def test_partitions_are_plain_integers_in_the_order_of_their_first_rows() -> None:
    """The producer takes no other ones."""
    rows: list[Row] = [{"value": b"", "partition": number} for number in (2, 0, 2, 1, 0)]
    runs = list(
        router_of("value", "partition", count=3).split(batch_of(rows, "value", "partition"))
    )
    assert [run.partition.partition for run in runs] == [2, 0, 1]
    assert {type(run.partition.partition) for run in runs} == {int}
    assert [run.records.num_rows for run in runs] == [2, 2, 1]


def test_a_partition_that_is_named_goes_before_the_key() -> None:
    rows: list[Row] = [
        {"value": b"0", "key": b"a", "partition": 3},
        {"value": b"1", "key": b"a", "partition": None},
        {"value": b"2", "key": None, "partition": 3},
        {"value": b"3", "key": b"a", "partition": 0},
    ]
    keyed = TopicPartition("clicks", partition_of_key(b"a", 4))
    router = router_of("value", "key", "partition")
    found = values_of(routed(router, [batch_of(rows, "value", "key", "partition")]))
    assert found[TopicPartition("clicks", 3)] == [b"0", b"2"]
    assert b"1" in found[keyed]
    assert b"3" in found[TopicPartition("clicks", 0)]
    assert sum(map(len, found.values())) == 4


@pytest.mark.parametrize("partition", [-1, 4, -(1 << 31)])
def test_a_partition_that_is_not_there_is_refused_with_its_row(partition: int) -> None:
    router = router_of("value", "partition", "topic", topic=None)
    names = ("value", "partition", "topic")
    for _ in router.split(batch_of([{"value": b"", "topic": "a"}] * 10, *names)):
        pass
    rows: list[Row] = [{"topic": "a"}, {"topic": "b"}, {"topic": "b", "partition": partition}]
    with pytest.raises(
        UnknownPartitionError,
        match=rf"Spark partition 7, row 12 .*no partition {partition} of topic 'b', which has 4: "
        "0 to 3",
    ):
        list(router.split(batch_of(rows, *names)))


def test_each_row_may_name_its_topic() -> None:
    counts = {"a": 1, "b": 3}
    asked: list[str] = []

    def shape_of(topic: str) -> TopicShape:
        asked.append(topic)
        return TopicShape(counts[topic], CHUNK_BYTES)

    names = ("value", "topic", "partition")
    router = Router(columns_of(*names), topic=None, first=0, where="here", shape_of=shape_of)
    rows: list[Row] = [
        {"value": b"0", "topic": "b", "partition": 2},
        {"value": b"1", "topic": "a"},
        {"value": b"2", "topic": "b", "partition": 1},
        {"value": b"3", "topic": "b", "partition": 2},
        {"value": b"4", "topic": "a"},
    ]
    only_a = [{"value": b"5", "topic": "a"}]
    batches = [batch_of(rows, *names), batch_of(only_a, *names, topic=pa.large_string())]
    assert values_of(routed(router, batches)) == {
        TopicPartition("b", 2): [b"0", b"3"],
        TopicPartition("b", 1): [b"2"],
        TopicPartition("a", 0): [b"1", b"4", b"5"],
    }
    assert asked == ["b", "a"], "each is asked for once"


def test_a_topic_that_is_null_is_refused_with_its_row() -> None:
    batch = batch_of([{"topic": "a"}, {"topic": "a"}, {"topic": None}], "value", "topic")
    with pytest.raises(InvalidRequestError, match=r"row 2 \(counted from 0\): its topic is null"):
        list(router_of("value", "topic", topic=None).split(batch))


def test_what_the_shape_of_a_topic_raises_comes_out_again() -> None:
    def shape_of(topic: str) -> TopicShape:
        raise UnknownTopicError(topic)

    router = Router(columns_of("value"), topic="t", first=0, where="here", shape_of=shape_of)
    with pytest.raises(UnknownTopicError):
        list(router.split(batch_of([{"value": b""}], "value")))
    assert list(router.split(batch_of([], "value"))) == [], "without rows nothing is asked"


def test_records_without_a_key_are_spread_by_what_they_are() -> None:
    """Not by the rows before them: another attempt may have them in another order."""
    rows: list[Row] = [{"value": b"%d" % number} for number in range(40)] + [{"value": None}] * 2
    rows.append({"value": b""})  # no null
    whole = values_of(routed(router_of("value", count=3, first=7), [batch_of(rows, "value")]))
    assert min(map(len, whole.values())) > 5, "all partitions have some"
    backwards = [batch_of(rows[:10:-1], "value"), batch_of(rows[10::-1], "value")]
    again = values_of(routed(router_of("value", count=3, first=7), backwards))
    assert {tp: found[::-1] for tp, found in again.items()} == whole
    shifted = values_of(routed(router_of("value", count=3, first=8), [batch_of(rows, "value")]))
    assert {tp: shifted[tp._replace(partition=(tp.partition + 1) % 3)] for tp in whole} == whole


def test_equal_records_without_a_key_go_to_one_partition_after_the_other() -> None:
    """Of all that they have, in any number of batches; each topic counts for itself."""
    ticks: list[Row] = [{"value": b"tick", "timestamp": None} for _ in range(80)]
    timed: list[Row] = [{"value": b"tick", "timestamp": number * 1_000} for number in range(800)]
    router = router_of("value", "timestamp", count=8)
    batches = [batch_of(part, "value", "timestamp") for part in (ticks[:3], ticks[3:], timed)]
    first = values_of(routed(router, batches[:1]))
    assert sorted(map(len, first.values())) == [1, 1, 1]
    rest = values_of(routed(router, batches[1:2]))
    assert {tp: len(found) + len(first.get(tp, ())) for tp, found in rest.items()} == {
        TopicPartition("clicks", partition): 10 for partition in range(8)
    }
    assert min(map(len, values_of(routed(router, batches[2:])).values())) > 60


@given(st.lists(st.lists(st.integers(0, 9_000), max_size=50), max_size=9), st.booleans())
def test_occurrences_are_counted(parts: list[list[int]], is_large: bool) -> None:
    seen = Occurrences()
    before: Counter[int] = Counter()
    if is_large:  # so that the table grows, and hashes collide
        parts = [*parts, list(range(5_000)), *parts]
    for part in parts:
        expected = []
        for number in part:
            expected.append(before[number])
            before[number] += 1
        hashes = np.array(part, np.uint64) << np.uint64(10)
        assert seen.add(hashes + np.uint64(1)).tolist() == expected


def test_occurrences_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "OCCURRENCES_MAX", 3)
    seen = Occurrences()
    hashes = np.arange(1, 5, dtype=np.uint64)
    assert seen.add(hashes[:3]).tolist() == [0, 0, 0]
    assert seen.add(hashes).tolist() == [1, 1, 1, 0]
    assert seen.add(hashes).tolist() == [2, 2, 2, 0]


# -- what a record is ------------------------------------------------------------------------------


def test_columns_keep_nulls_and_become_the_records_types() -> None:
    rows: list[Row] = [
        {
            "value": "text",
            "headers": [{"key": "a", "value": b"1"}, {"key": "", "value": None}],
            "timestamp": datetime(2024, 5, 1, 12, 0, 0, 1_999, tzinfo=UTC),
        },
        {"value": None, "headers": None, "timestamp": None},
        {"value": "", "headers": [], "timestamp": datetime(1970, 1, 1, tzinfo=UTC)},
    ]
    headers = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    batch = batch_of(
        [{"value": "left out"}, *rows],
        *("timestamp", "headers", "value"),
        value=pa.large_string(),
        headers=headers,
        timestamp=pa.timestamp("us", "Europe/Berlin"),
    ).slice(1)
    (run,) = router_of("timestamp", "headers", "value", count=1).split(batch)
    assert run.records.to_pylist() == [
        {"value": b"text", "headers": rows[0]["headers"], "timestamp": 1_714_564_800_001},
        {"value": None, "headers": None, "timestamp": None},
        {"value": b"", "headers": [], "timestamp": 0},
    ]
    assert run.sizes.tolist() == [RECORD_BYTES + 4 + 2 * HEADER_BYTES + 2, *[RECORD_BYTES] * 2]


@pytest.mark.parametrize("time_us", [-1, (limits.TIMESTAMP_MS_MAX + 1) * 1_000])
def test_a_time_that_no_record_can_have_is_refused_with_its_row(time_us: int) -> None:
    good = limits.TIMESTAMP_MS_MAX * 1_000 + 999
    times = pa.array([0, None, good, time_us], pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_arrays([pa.nulls(4, pa.binary()), times], names=["value", "time"])
    with pytest.raises(
        InvalidRequestError, match=rf"row 3 .*the timestamp is {time_us // 1_000} ms"
    ):
        list(router_of("value", "timestamp").split(batch))
    (run,) = router_of("value", "timestamp", count=1).split(batch.slice(0, 3))
    assert run.records.column("timestamp").to_pylist() == [0, None, limits.TIMESTAMP_MS_MAX]


@pytest.mark.parametrize("pair", [None, {"key": None, "value": b"1"}])
def test_a_header_without_a_key_is_refused_with_its_row(pair: Row | None) -> None:
    good = {"key": "a", "value": None}
    rows: list[Row] = [{"headers": [good, good]}, {"headers": None}, {"headers": [good, pair]}, {}]
    with pytest.raises(InvalidRequestError, match=r"row 2 .*a header without a key"):
        list(router_of("value", "headers").split(batch_of(rows, "value", "headers")))


def test_rows_that_fit_no_arrow_array_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    column = pa.array(["not a number"])
    batch = pa.RecordBatch.from_arrays([column, column], names=["value", "partition"])
    with pytest.raises(InvalidRequestError, match="maxRecordsPerBatch"):
        list(router_of("value", "partition").split(batch))


# -- chunks ----------------------------------------------------------------------------------------


def run_of(sizes: Sequence[int], *, start: int = 0, partition: int = 0) -> routing.Run:
    """A run of records of these sizes, whose values are numbers from ``start`` on."""
    import numpy as np

    values = pa.array([str(start + number).encode() for number in range(len(sizes))])
    records = pa.RecordBatch.from_arrays([values], names=["value"])
    return routing.Run(TopicPartition("clicks", partition), records, np.array(sizes, np.int64))


def numbers_of(chunks: Iterable[Chunk]) -> list[list[int]]:
    return [[int(value.as_py()) for value in chunk.records.column("value")] for chunk in chunks]


def test_a_chunk_ends_before_the_record_that_goes_over() -> None:
    chunker = Chunker()
    assert numbers_of(chunker.add(run_of([4, 4]), chunk_bytes=10)) == []
    assert numbers_of(chunker.add(run_of([4, 4, 4], start=2), chunk_bytes=10)) == [
        [0, 1],
        [2, 3],
    ]
    assert numbers_of(chunker.rest()) == [[4]]
    assert numbers_of(chunker.rest()) == []


def test_a_large_record_is_a_chunk_of_its_own() -> None:
    chunker = Chunker()
    sizes = [3, 25, 3, 40, 40, 3]
    assert numbers_of(chunker.add(run_of(sizes), chunk_bytes=10)) == [
        [0],
        [1],
        [2],
        [3],
        [4],
    ]
    assert numbers_of(chunker.rest()) == [[5]]


@given(st.data(), st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(1, 40))
def test_chunks_are_the_same_however_the_records_come(
    data: st.DataObject, sizes: list[int], size_max: int
) -> None:
    def chunks(cuts: list[int]) -> list[list[int]]:
        chunker = Chunker()
        found: list[list[int]] = []
        for start, end in pairwise([0, *cuts, len(sizes)]):
            run = run_of(sizes[start:end], start=start)
            if end > start:
                found += numbers_of(chunker.add(run, chunk_bytes=size_max))
        return found + numbers_of(chunker.rest())

    whole = chunks([])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sizes)), max_size=5)))
    assert chunks(cuts) == whole
    assert [number for numbers in whole for number in numbers] == list(range(len(sizes)))
    for numbers in whole:
        size = sum(sizes[number] for number in numbers)
        assert len(numbers) == 1 or size <= 2 * size_max


def test_memory_is_bounded_when_many_partitions_begin_a_chunk() -> None:
    chunker = Chunker()
    quarter = PENDING_BYTES_MAX // 4
    for partition in range(4):
        run = run_of([quarter], partition=partition)
        assert list(chunker.add(run, chunk_bytes=quarter * 2)) == []
    closed = list(chunker.add(run_of([1], partition=9), chunk_bytes=quarter * 2))
    assert [chunk.partition.partition for chunk in closed] == [0, 1, 2, 3, 9]
    assert list(chunker.add(run_of([1], partition=9), chunk_bytes=quarter * 2)) == []


def test_chunks_leave_room_in_a_batch_and_in_memory() -> None:
    assert chunk_bytes(partition_count=1, max_message_bytes=64 * limits.MIB) == CHUNK_BYTES
    small = chunk_bytes(partition_count=1, max_message_bytes=10_000)
    assert 2 * small < 10_000 < 3 * small
    many = chunk_bytes(partition_count=10_000, max_message_bytes=64 * limits.MIB)
    assert many * 10_000 <= PENDING_BYTES_MAX
    assert chunk_bytes(partition_count=1, max_message_bytes=100) == 1


def test_batches_are_joined_where_there_are_many_partitions() -> None:
    batches = [batch_of([{"value": bytes([number])}] * 3, "value") for number in range(5)]

    def row_counts(partition_count: int) -> list[int]:
        blocks = list(routing.blocks_of(batches, lambda: partition_count))
        assert pa.Table.from_batches(blocks) == pa.Table.from_batches(batches)
        return [block.num_rows for block in blocks]

    assert row_counts(0) == [3] * 5
    assert row_counts(1) == [15]
    large = batch_of([{"value": bytes(routing.BLOCK_BYTES_MAX)}], "value")
    blocks = routing.blocks_of([batches[0], large, batches[1]], lambda: 10_000)
    assert [block.num_rows for block in blocks] == [4, 3]
    assert list(routing.blocks_of([], lambda: 1)) == []


# -- all of it -------------------------------------------------------------------------------------

texts = st.binary(max_size=6)
header = st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | texts})
row = st.fixed_dictionaries(
    {
        "value": st.none() | texts,
        "key": st.none() | texts,
        "headers": st.none() | st.lists(header, min_size=1, max_size=3),  # no headers: one content
        "partition": st.none() | st.integers(0, 2),
        "topic": st.sampled_from(["a", "b"]),
    }
)


@given(st.data(), st.lists(row, min_size=1, max_size=40))
def test_an_attempt_does_as_the_one_before_did_however_rows_come(
    data: st.DataObject, rows: list[Row]
) -> None:
    names = ("value", "key", "headers", "partition", "topic")
    whole = batch_of(rows, *names)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))

    def chunks(batches: Iterable[pa.RecordBatch]) -> dict[TopicPartition, list[list[Row]]]:
        router = router_of(*names, count=3, topic=None, first=1)
        chunker = Chunker()
        found: dict[TopicPartition, list[list[Row]]] = {}
        made: list[Chunk] = []
        for batch in batches:
            for run in router.split(batch):
                made += chunker.add(run, chunk_bytes=100)
        for chunk in [*made, *chunker.rest()]:
            found.setdefault(chunk.partition, []).append(chunk.records.to_pylist())
        assert router.row_count == len(whole)
        return found

    first = chunks([whole])
    bounds = pairwise([0, *cuts, len(rows)])
    assert chunks(whole.slice(start, end - start) for start, end in bounds) == first
    order = data.draw(st.permutations(range(len(rows))))
    shuffled = chunks([batch_of([rows[index] for index in order], *names)])
    for tp, parts in first.items():  # each partition has its rows in their order
        records = [record for part in parts for record in part]
        wanted = iter([each for each in rows if each["topic"] == tp.topic and _may_be_in(tp, each)])
        for record in records:
            assert any(record == _record_of(each) for each in wanted)
        others = [record for part in shuffled.pop(tp) for record in part]
        assert sorted(map(repr, others)) == sorted(map(repr, records)), "the same ones"
    assert not shuffled
    assert sum(len(part) for parts in first.values() for part in parts) == len(rows)


def _record_of(row: Row) -> Row:
    return {name: row[name] for name in ("value", "key", "headers")}


def _may_be_in(tp: TopicPartition, row: Row) -> bool:
    if row["partition"] is not None:
        return bool(row["partition"] == tp.partition)
    if row["key"] is not None:
        return partition_of_key(row["key"], 3) == tp.partition
    return True


@given(st.lists(row, min_size=1, max_size=20))
def test_a_batch_takes_no_more_than_the_sizes_of_its_records_say(rows: list[Row]) -> None:
    names = ("value", "key", "headers")
    (run,) = router_of(*names, count=1).split(batch_of(rows, *names))
    body = encode_arrow(
        run.records.column("value"),
        keys=run.records.column("key"),
        headers=run.records.column("headers"),
        timestamps_ms=7,
    )
    assert body.size_bytes <= int(run.sizes.sum()) + 256


# -- recall ----------------------------------------------------------------------------------------

# Which rows of an attempt are stored already: by what they are, not by their order.


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


recall_texts = st.binary(max_size=2)
headers = st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=1), "value": st.none() | recall_texts})
)
recall_row = st.fixed_dictionaries(
    {
        "value": st.none() | recall_texts,
        "key": st.none() | recall_texts,
        "headers": st.none() | headers,
        "timestamp": st.none() | st.sampled_from([5, 6, NOW_MS]),
    }
)
rows = st.lists(recall_row, min_size=1, max_size=30)


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
