"""Writing a DataFrame: each record once, however often its task is tried."""

from __future__ import annotations

import logging
import pickle
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.functions import col, udf
from pyspark.sql.types import BinaryType, StringType, StructType

from pyspark_raftlog import writer
from pyspark_raftlog.clients import ClientPool
from pyspark_raftlog.options import SinkOptions
from pyspark_raftlog.writer import (
    Attempt,
    BatchWriter,
    DifferentRowsError,
    PlannedTopic,
    Settlement,
    SinkColumns,
    StoredRecordsGoneError,
    TaskReport,
    WritePlan,
    _stored_records,
    encode_chunk,
    plan_write,
    settle,
    write_rows,
)
from raftlog import Admin, ConsumerRecord, Producer, TopicListing, TopicPartition
from raftlog.client.resumable import ResumableProducer
from raftlog.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    LeaderNotAvailableError,
    OutOfOrderSequenceError,
    RaftlogError,
    UnknownTopicError,
    UnsupportedFeatureError,
)
from raftlog.record import Codec
from raftlog.record.key_hash import partition_of_key
from raftlog.testing import Cluster
from tests.spark_source.fixtures import NewTopicFunction
from tests.spark_source.sinks import (
    BrokenError,
    FailingSink,
    FakeProducer,
    Log,
    attempt_number,
    stored_records,
    stored_values,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW_MS = 1_714_564_800_000
KEYED = SinkColumns(key=0, value=1)
SCHEMA = StructType().add("key", StringType()).add("value", BinaryType())


SOON = {"raftlog.bootstrap.timeout.ms": "1"}
SMALL_BATCHES = {"raftlog.batch.bytes.max": "1024"}


def options_of(topic: str | None = "clicks", **options: str) -> SinkOptions:
    texts = {"bootstrap.servers": "127.0.0.1:1", **options}
    return SinkOptions.parse(texts if topic is None else {**texts, "topic": topic}, streaming=False)


def plan_on(options: SinkOptions, count: int, topic_id: str = "id of clicks") -> WritePlan:
    return WritePlan(options, KEYED, {"clicks": PlannedTopic(topic_id, count)})


def plan_of(**options: str) -> WritePlan:
    return plan_on(options_of(**options), 3)


def attempt(
    producer: FakeProducer, batches: Iterable[pa.RecordBatch], plan: WritePlan | None = None
) -> TaskReport:
    made = Attempt(
        plan or plan_of(),
        producer,
        spark_partition=2,
        first=0,
        now_ms=lambda: NOW_MS,
        recall=producer.recall,
    )
    return made.write(batches)


def rows_of(count: int, *, keys: int = 5) -> list[tuple[str | None, bytes]]:
    """Rows of which some have no key; the values are numbers."""
    return [
        (f"key-{number % keys}" if number % 7 else None, str(number).encode())
        for number in range(count)
    ]


def batch_of(rows: Sequence[tuple[str | None, bytes | None]]) -> pa.RecordBatch:
    keys, values = zip(*rows, strict=True) if rows else ((), ())
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.string()), pa.array(values, pa.binary())], names=["key", "value"]
    )


def pairs_of(log: Log) -> dict[TopicPartition, list[tuple[bytes | None, bytes | None]]]:
    return {tp: [(each.key, each.value) for each in records] for tp, records in log.items()}


# -- an attempt, against a table -------------------------------------------------------------------


def test_an_attempt_stores_each_row_in_order_and_waits_for_it() -> None:
    rows = rows_of(100)
    producer = FakeProducer({})
    report = attempt(producer, [batch_of(rows[:30]), batch_of([]), batch_of(rows[30:])])
    assert report == TaskReport(
        spark_partition=2, records=100, skipped=0, unmatched=0, log_partitions=3
    )
    assert producer.is_flushed
    assert producer.asked == [TopicPartition("clicks", number) for number in range(3)]
    for key in {key for key, _ in rows if key is not None}:
        place = TopicPartition("clicks", partition_of_key(key.encode(), 3))
        stored = [record.value for record in producer.log[place] if record.key == key.encode()]
        assert stored == [value for each, value in rows if each == key]
    assert {record.timestamp_ms for records in producer.log.values() for record in records} == {
        NOW_MS
    }


@given(st.data(), st.integers(1, 200))
def test_attempts_that_break_off_anywhere_store_each_row_once_in_any_order(
    data: st.DataObject, count: int
) -> None:
    """Each attempt has the rows in another order, as after a shuffle."""
    rows = [*rows_of(count), *rows_of(count // 3)]  # some of them twice
    plan = plan_of(**SMALL_BATCHES)
    whole = FakeProducer({})
    attempt(whole, [batch_of(rows)], plan)
    log: Log = {}
    for batches_max in data.draw(st.lists(st.integers(0, len(whole.bodies) - 1), max_size=4)):
        broken = FakeProducer(log, batches_max=batches_max)
        attempted = data.draw(st.permutations(rows))
        cut = data.draw(st.integers(0, len(rows)))
        with suppress(BrokenError):
            attempt(broken, [batch_of(attempted[:cut]), batch_of(attempted[cut:])], plan)
    stored = sum(map(len, log.values()))
    last = data.draw(st.permutations(rows))
    report = attempt(FakeProducer(log), [batch_of(last)], plan)
    found, wanted = pairs_of(log), pairs_of(whole.log)
    assert {tp: sorted(map(repr, pairs)) for tp, pairs in found.items()} == {
        tp: sorted(map(repr, pairs)) for tp, pairs in wanted.items()
    }
    assert (report.records, report.skipped, report.unmatched) == (len(rows), stored, 0)


def test_rows_in_the_same_order_are_stored_in_that_order() -> None:
    rows = rows_of(100)
    log: Log = {}
    with pytest.raises(BrokenError):
        attempt(FakeProducer(log, batches_max=2), [batch_of(rows)], plan_of(**SMALL_BATCHES))
    whole = FakeProducer({})
    for producer in (FakeProducer(log), whole):
        attempt(producer, [batch_of(rows)])
    assert pairs_of(log) == pairs_of(whole.log)


def test_rows_that_differ_are_stored_and_fail_the_write_unless_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: Log = {}
    first = [(f"key-{number}", b"first") for number in range(50)]
    second = [*first[:20], *((f"key-{number}", b"second") for number in range(20, 50))]
    attempt(FakeProducer(log), [batch_of(first)])
    report = attempt(FakeProducer(log), [batch_of(second)])
    assert (report.records, report.skipped, report.unmatched) == (50, 20, 30)
    stored = [pair for pairs in pairs_of(log).values() for pair in pairs]
    assert {(key.encode(), value) for key, value in second} <= set(stored)
    assert len(stored) == 80
    noted = "repeated tasks had other rows than before: records=50 skipped=20 unmatched=30"
    with pytest.raises(DifferentRowsError, match=f"^{noted}.*allowDuplicates=true"):
        settle(plan_of(), [report])
    with caplog.at_level(logging.WARNING):
        assert settle(plan_of(allowDuplicates="true"), [report]) == (50, 20, 30)
    assert noted in caplog.text


def test_stored_records_that_were_deleted_end_the_attempt() -> None:
    one = plan_on(options_of(), 1)
    rows: list[tuple[str | None, bytes]] = [("key", str(number).encode()) for number in range(10)]
    log: Log = {}
    attempt(FakeProducer(log), [batch_of(rows)], one)
    with pytest.raises(
        StoredRecordsGoneError,
        match=r"stored 10 records in clicks:0, and 8 of them can be read.*allowDuplicates=true",
    ):
        attempt(FakeProducer(log, deleted=2), [batch_of(rows)], one)
    allowed = plan_on(options_of(allowDuplicates="true"), 1)
    report = attempt(FakeProducer(log, deleted=2), [batch_of(rows[::-1])], allowed)
    assert (report.skipped, report.unmatched) == (8, 0)
    assert [value for _, value in pairs_of(log)[TopicPartition("clicks", 0)][10:]] == [b"1", b"0"]


def test_so_many_stored_records_are_compared_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    log: Log = {}
    rows = rows_of(50)
    attempt(FakeProducer(log), [batch_of(rows)])
    monkeypatch.setattr(writer, "STORED_RECORDS_MAX", 50)
    assert attempt(FakeProducer(log), [batch_of(rows)]).skipped == 50
    monkeypatch.setattr(writer, "STORED_RECORDS_MAX", 49)
    with pytest.raises(UnsupportedFeatureError, match=r"50 records; at most 49 .*repartition"):
        attempt(FakeProducer(log), [batch_of(rows)])


Values = tuple[str | None, bytes | None, int | None]


@dataclass
class Sink:
    """A topic that a write in several tasks goes to, again and again."""

    log: Log = field(default_factory=dict)
    writers: dict[tuple[str, int, int], int] = field(default_factory=dict)
    partitions: int = 1
    make: type[FakeProducer] = FakeProducer  # of tasks

    def producer(
        self, member: int, batches_max: int = 1 << 30, make: type[FakeProducer] = FakeProducer
    ) -> FakeProducer:
        topics = {"clicks": self.partitions}
        return make(self.log, topics, batches_max=batches_max, member=member, writers=self.writers)

    def run(self, tasks: Sequence[Sequence[Values]], *, batches_max: int | None = None) -> int:
        """One run of the write. ``batches_max``: the run breaks off after so many batches."""
        ends = [len(self.log.get(TopicPartition("clicks", n), ())) for n in range(self.partitions)]
        columns = SinkColumns(key=0, value=1, timestamp=2)
        options = options_of(idempotenceId="job", idempotenceVersion="1", **SMALL_BATCHES)
        planned = PlannedTopic("id of clicks", self.partitions, tuple(ends))
        plan = WritePlan(options, columns, {"clicks": planned})
        reports = []
        left = 1 << 30 if batches_max is None else batches_max
        for number, rows in enumerate(tasks):
            if not rows:
                reports.append(TaskReport(number, 0, 0, 0, 0))
                continue
            producer = self.producer(number, left, self.make)
            made = Attempt(
                plan,
                producer,
                spark_partition=number,
                first=number,
                now_ms=lambda: NOW_MS,
                recall=producer.recall,
            )
            report = made.write([timed_batch_of(rows)])
            left -= len(producer.bodies)
            reports.append(report)
        driver = self.producer(writer.DRIVER, left)
        made = Settlement(plan, driver, reports, now_ms=lambda: NOW_MS, recall=driver.recall)
        return made.run()

    def stored(self) -> Counter[object]:
        return Counter(
            (record.key, record.value, record.timestamp_ms)
            for records in self.log.values()
            for record in records
        )


def timed_batch_of(rows: Sequence[Values]) -> pa.RecordBatch:
    keys, values, times = zip(*rows, strict=True)
    times_us = [None if time is None else time * 1_000 for time in times]
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.string()), pa.array(values, pa.binary()),
         pa.array(times_us, pa.timestamp("us", "UTC"))],
        names=["key", "value", "timestamp"],
    )  # fmt: skip


@given(st.data())
def test_a_write_is_stored_once_in_any_tasks_on_any_number_of_partitions(
    data: st.DataObject,
) -> None:
    """Equal rows in several tasks, runs that break off anywhere, a topic that grows in between."""
    key = st.sampled_from([None, "a", "b"])
    value = st.sampled_from([b"", b"1", bytes(400)])
    time = data.draw(st.sampled_from([st.none(), st.sampled_from([5, 6])]))
    rows = data.draw(st.lists(st.tuples(key, value, time), min_size=1, max_size=40))
    sink = Sink()

    def tasks() -> list[list[Values]]:
        count = data.draw(st.integers(1, 4))
        found: list[list[Values]] = [[] for _ in range(count)]
        for row in data.draw(st.permutations(rows)):
            found[data.draw(st.integers(0, count - 1))].append(row)
        return found

    for _ in range(data.draw(st.integers(0, 3))):
        with suppress(BrokenError):
            sink.run(tasks(), batches_max=data.draw(st.integers(0, 6)))
        sink.partitions += data.draw(st.integers(0, 2))
    for _ in range(2):  # the second one finds all of them
        assert sink.run(tasks()) == 0
        wanted = [(k and k.encode(), v, NOW_MS if t is None else t) for k, v, t in rows]
        assert sink.stored() == Counter(wanted)


def test_records_that_another_run_stores_while_the_write_runs_are_told() -> None:
    """Its tasks have other numbers, so no partition rejects them."""
    sink = Sink()
    row: Values = ("a", b"1", 5)
    sink.run([[row]])
    late = plan_on(options_of(), 1)

    class Other(FakeProducer):
        def flush(self, timeout: float | None = None) -> None:
            super().flush(timeout)
            attempt(sink.producer(7), [batch_of([("a", b"2")])], late)

    sink.make = Other
    assert sink.run([[], [row]]) == 1


def test_a_count_of_partitions_that_has_grown_since_the_plan_is_not_looked_at() -> None:
    producer = FakeProducer({}, topics={"clicks": 8})
    attempt(producer, [batch_of(rows_of(50))])
    assert {tp.partition for tp in producer.log} == {0, 1, 2}


def test_a_topic_that_was_made_anew_since_the_plan_is_refused() -> None:
    plan = plan_on(options_of(), 3, "id of another")
    with pytest.raises(UnknownTopicError, match="'clicks' was deleted and recreated"):
        attempt(FakeProducer({}), [batch_of(rows_of(1))], plan)


def test_topics_that_rows_name_have_the_partitions_that_there_are() -> None:
    producer = FakeProducer({}, topics={"a": 1, "b": 2})
    plan = WritePlan(options_of(None), SinkColumns(value=0, topic=1))
    names = ["value", "topic"]
    batch = pa.RecordBatch.from_arrays([pa.array(["1", "2"]), pa.array(["b", "a"])], names=names)
    attempt(producer, [batch], plan)
    assert producer.asked == [("b", 0), ("b", 1), ("a", 0)]
    nowhere = pa.RecordBatch.from_arrays([pa.array(["1"]), pa.array(["c"])], names=names)
    with pytest.raises(UnknownTopicError):
        attempt(producer, [nowhere], plan)


def test_batches_are_as_large_as_the_topic_and_the_options_allow() -> None:
    rows: list[tuple[str | None, bytes]] = [("key", bytes(100))] * 200
    plain = {"codec": "none"}
    for producer, plan in (
        (FakeProducer({}, message_bytes_max=3_000), plan_of(**plain)),
        (FakeProducer({}), plan_of(**plain, **{"raftlog.batch.bytes.max": "3000"})),
        (FakeProducer({}), plan_of(**plain, **{"raftlog.buffer.memory": "3000"})),
    ):
        attempt(producer, [batch_of(rows)], plan)
        sizes = [body.size_bytes for body in producer.bodies]
        assert max(sizes) <= 3_000
        assert sorted(sizes)[1] > 1_000, "but for the last, all are filled"


def test_a_failure_is_told_while_there_are_rows_left() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(1_000):
            taken.append(number)
            yield batch_of([("key", bytes(600))])

    taken: list[int] = []
    plan = plan_of(codec="none", **SMALL_BATCHES)
    with pytest.raises(BrokenError):
        attempt(FakeProducer({}, batches_max=2), batches(), plan)
    assert len(taken) < 1_000


def test_a_failure_that_is_known_at_the_end_is_told() -> None:
    with pytest.raises(BrokenError):
        attempt(FakeProducer({}, batches_max=2, is_late=True), [batch_of(rows_of(100))])


def test_a_chunk_has_the_times_and_the_codec_asked_for() -> None:
    records = pa.RecordBatch.from_arrays(
        [pa.array([bytes(500), b""]), pa.array([5, None], pa.int64())], names=["value", "timestamp"]
    )
    body = encode_chunk(records, now_ms=NOW_MS, codec=Codec.LZ4, level=None)
    assert (body.codec, body.first_timestamp_ms, body.max_timestamp_ms) == (Codec.LZ4, 5, NOW_MS)
    with pytest.raises(InvalidRequestError, match="level"):
        encode_chunk(records, now_ms=NOW_MS, codec=Codec.LZ4, level=99)


def test_a_task_without_rows_asks_nobody() -> None:
    report = write_rows(
        plan_of(), iter([batch_of([])]), name="n", epoch=0, spark_partition=4, first=0
    )
    assert report == TaskReport(
        spark_partition=4, records=0, skipped=0, unmatched=0, log_partitions=0
    )


# -- the driver's side -----------------------------------------------------------------------------


def test_a_commit_wants_to_hear_of_every_task() -> None:
    reports = [TaskReport(number, 10, number, 0, 3) for number in range(3)]
    assert settle(plan_of(), reports) == (30, 3, 0)
    assert settle(plan_of(), []) == (0, 0, 0)
    lacking: list[Sequence[WriterCommitMessage | None]] = [
        [*reports, None],
        [*reports, WriterCommitMessage()],
        [*reports, reports[0]],
    ]
    for messages in lacking:
        with pytest.raises(RaftlogError, match="3 of 4 tasks have reported"):
            settle(plan_of(), messages)


def test_a_cluster_that_does_not_answer_is_told_before_any_work() -> None:
    options = options_of(**SOON)
    with pytest.raises(BrokerUnavailableError, match=r"127\.0\.0\.1:1"):
        BatchWriter(options, SCHEMA, False)


def test_a_topic_that_rows_may_not_name_does_not_stop_a_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of all topics, one has a partition without a leader: its end is not known."""

    class Stub:
        def matching(self, matches: object) -> dict[str, TopicListing]:
            return {"t": TopicListing("t", "id", 2)}

        def latest(self, partitions: object, *, isolation: str) -> dict[TopicPartition, int]:
            raise LeaderNotAvailableError("t:0 has no leader")

        def close(self) -> None:
            pass

    monkeypatch.setattr(writer.clients, "catalogs", ClientPool(lambda _: Stub()))
    schema = StructType().add("value", BinaryType()).add("topic", StringType())
    named = options_of(None, idempotenceId="job", idempotenceVersion="7")
    assert plan_write(named, schema).topics == {}
    assert plan_write(options_of(None), schema).topics == {"t": PlannedTopic("id", 2)}


def test_an_overwrite_is_refused_and_asks_nobody() -> None:
    with pytest.raises(InvalidRequestError, match=r'not overwritten: use \.mode\("append"\)'):
        BatchWriter(options_of(), SCHEMA, True)


@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_a_writer_travels_and_its_identity_with_it(
    pickler: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = StructType().add("value", BinaryType()).add("topic", StringType())
    monkeypatch.setattr("pyspark_raftlog.writer.plan_write", lambda *_: plan_of())
    writer = BatchWriter(options_of(None), schema, False)
    assert pickler.loads(pickler.dumps(writer)).__dict__ == writer.__dict__
    assert BatchWriter(options_of(None), schema, False).__dict__ != writer.__dict__
    named = options_of(None, idempotenceId="job", idempotenceVersion="7")
    repeated = [BatchWriter(named, schema, False).__dict__ for _ in range(2)]
    assert repeated[0] == repeated[1]


# -- on Spark --------------------------------------------------------------------------------------


def write(
    frame: DataFrame,
    brokers: Cluster,
    *,
    sink: str = "raftlog",
    mode: str = "append",
    **options: str,
) -> None:
    texts = {"bootstrap.servers": brokers.bootstrap, **options}
    frame.write.format(sink).mode(mode).options(**texts).save()


@pytest.mark.spark
def test_all_columns_go_there_and_come_back(
    spark: SparkSession, brokers: Cluster, new_topic: NewTopicFunction, seed: int
) -> None:
    one, two = new_topic(3), new_topic(1)
    moment = datetime(2024, 5, 1, 12, 0, 0, 123_000, tzinfo=UTC)
    large = random.Random(seed).randbytes(900_000)
    rows: list[tuple[Any, ...]] = [
        (one, 2, "k", b"v", [("a", b"1"), ("a", None)], moment),
        (one, None, "user-1", None, [], None),
        (one, 0, None, b"", None, moment),
        (two, None, None, large, None, None),
        (two, None, "", b"last", None, None),
    ]
    frame = spark.createDataFrame(
        rows,
        "topic string, partition int, key string, value binary, "
        "headers array<struct<key:string,value:binary>>, timestamp timestamp",
    ).coalesce(1)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        write(frame, brokers)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    stored = stored_records(brokers.bootstrap, one)
    at_ms = int(moment.timestamp() * 1_000)
    hashed = TopicPartition(one, partition_of_key(b"user-1", 3))
    first = stored[TopicPartition(one, 2)][0]
    assert first == ConsumerRecord(
        one, 2, 0, b"k", b"v", (("a", b"1"), ("a", None)), at_ms, first.leader_epoch
    )
    (tombstone,) = [record for record in stored[hashed] if record.key == b"user-1"]
    assert (tombstone.value, tombstone.headers) == (None, ())
    assert tombstone.timestamp_ms > at_ms
    assert [(r.key, r.value, r.timestamp_ms) for r in stored[TopicPartition(one, 0)][:1]] == [
        (None, b"", at_ms)
    ]
    assert [
        (r.key, r.value) for r in stored_records(brokers.bootstrap, two)[TopicPartition(two, 0)]
    ] == [
        (None, large),
        (b"", b"last"),
    ]


@pytest.mark.nightly
@pytest.mark.spark
def test_a_task_that_is_tried_again_stores_each_row_once_and_in_order(
    spark: SparkSession, brokers: Cluster, new_topic: NewTopicFunction
) -> None:
    """Its first attempt fails when it has stored a part, its second one when it has stored all."""
    topic = new_topic(4)
    count = 3_000
    spark.dataSource.register(FailingSink)

    @udf("string", useArrow=False)
    def break_off(number: int) -> str:
        if number % (count // 2) == count // 3 and attempt_number() == 0:
            raise RuntimeError("in the middle")
        return str(number)

    frame = spark.range(count, numPartitions=2).select(
        (col("id") % 11).cast("string").alias("key"), break_off("id").alias("value")
    )
    options = {"topic": topic, **SMALL_BATCHES}
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        write(frame, brokers, sink="raftlog-failing", **options)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    by_key: dict[bytes | None, list[int]] = {}
    for records in stored_records(brokers.bootstrap, topic).values():
        for record in records:
            by_key.setdefault(record.key, []).append(int(record.value or b""))
    assert sorted(number for each in by_key.values() for number in each) == list(range(count))
    for each in by_key.values():  # two tasks share a key; each task's records are in order
        for half in (range(count // 2), range(count // 2, count)):
            of_task = [number for number in each if number in half]
            assert of_task == sorted(of_task)


@pytest.mark.nightly
@pytest.mark.spark
def test_rows_that_come_in_another_order_are_stored_once(
    spark: SparkSession, brokers: Cluster, new_topic: NewTopicFunction
) -> None:
    """After a shuffle, in which the order is Spark's to choose. Here each attempt has its own."""
    topic = new_topic(3)
    spark.dataSource.register(FailingSink)

    @udf("int", useArrow=False)
    def place(number: int) -> int:
        return (number * 7_919 * (1 + attempt_number())) % 10_007

    shuffled = spark.range(8_000).selectExpr("id % 4000 AS id").repartition(2, "id")
    frame = shuffled.sortWithinPartitions(place("id")).selectExpr(
        "if(id % 3 = 0, null, cast(id % 50 as string)) AS key", "cast(id as string) AS value"
    )
    write(frame, brokers, sink="raftlog-failing", topic=topic, **SMALL_BATCHES)
    values = stored_values(brokers.bootstrap, topic)
    assert values == sorted([str(number) for number in range(4_000)] * 2)


@pytest.mark.spark
def test_an_attempt_goes_on_where_others_of_the_same_rows_ended(
    brokers: Cluster, new_topic: NewTopicFunction, seed: int
) -> None:
    """The task's function itself, on brokers: a part of the rows, then all in another order."""
    topic = new_topic(2)
    options = options_of(topic, **{"bootstrap.servers": brokers.bootstrap})
    plan = plan_write(options, SCHEMA)
    rows = [(f"key-{number % 100}", str(number).encode()) for number in range(20_000)]

    def run(part: list[tuple[str, bytes]]) -> TaskReport:
        batches = [batch_of(part[first : first + 3_000]) for first in range(0, len(part), 3_000)]
        return write_rows(plan, iter(batches), name=topic, epoch=0, spark_partition=0, first=0)

    chance = random.Random(seed)
    chance.shuffle(rows)
    run(rows[:6_000])
    write_rows(plan, iter([batch_of(rows[:500])]), name="x", epoch=0, spark_partition=0, first=0)
    chance.shuffle(rows)
    report = run(rows)
    assert (report.records, report.skipped, report.unmatched) == (20_000, 6_000, 0)
    expected = [value for _, value in rows] + [value for _, value in rows[:500]]
    assert len(expected) == len(stored_values(brokers.bootstrap, topic))
    assert run(rows[::-1]).skipped == 20_000


@pytest.mark.spark
@pytest.mark.parametrize("retried_by", ["the run", "the run, in another order", "another run"])
def test_a_late_task_stores_no_row_again_after_its_retry_has_ended(
    brokers: Cluster, new_topic: NewTopicFunction, seed: int, retried_by: str
) -> None:
    """An executor that was given up still runs. It appends before its retry, and after that.

    The late task may fail or not: nobody waits for it.
    """
    topic = new_topic(2)
    given = {"bootstrap.servers": brokers.bootstrap, "raftlog.batch.bytes.max": "16384"}
    options = options_of(topic, **given, idempotenceId="a", idempotenceVersion="1")
    plan = plan_write(options, SCHEMA)
    rows = [(f"key-{number % 100}", str(number).encode()) for number in range(20_000)]
    retried = random.Random(seed).sample(rows, len(rows)) if "order" in retried_by else rows
    name = f"spark-batch:{topic}:0"

    def retry() -> TaskReport:
        batches = iter([batch_of(retried)])
        mine = plan_write(options, SCHEMA) if retried_by == "another run" else plan
        return write_rows(mine, batches, name=name, epoch=0, spark_partition=0, first=0)

    def rows_of_late_task() -> Iterator[pa.RecordBatch]:
        yield batch_of(rows[:10_000])
        producer.flush()
        before = len(stored_values(brokers.bootstrap, topic))
        report = retry()
        assert 0 < before == report.skipped < 10_000
        settle(plan, [report])
        yield batch_of(rows[10_000:])

    producer = ResumableProducer(brokers.bootstrap, name=f"spark-batch:{topic}", member=0)
    late = Attempt(
        plan,
        producer,
        spark_partition=0,
        first=0,
        now_ms=lambda: NOW_MS,
        recall=partial(_stored_records, plan, producer),
    )
    with suppress(OutOfOrderSequenceError):
        late.write(rows_of_late_task())
    producer.close(timeout=0)
    late.forget()
    assert stored_values(brokers.bootstrap, topic) == sorted(value.decode() for _, value in rows)
    assert settle(plan, [retry()]) == (20_000, 20_000, 0)


@pytest.mark.spark
def test_a_repeated_write_that_has_no_rows_any_more_is_told(
    brokers: Cluster, new_topic: NewTopicFunction
) -> None:
    topic = new_topic(2)
    once = {"idempotenceId": "a", "idempotenceVersion": "1"}
    options = options_of(topic, **once, **{"bootstrap.servers": brokers.bootstrap})

    def run(rows: list[tuple[str | None, bytes]]) -> tuple[int, ...]:
        plan = plan_write(options, SCHEMA)
        name = f"spark-batch:{topic}:0"
        batches = iter([batch_of(rows)])
        report = write_rows(plan, batches, name=name, epoch=0, spark_partition=0, first=0)
        return settle(plan, [report])

    assert run([]) == (0, 0, 0)
    assert run(rows_of(10)) == (10, 0, 0)
    with pytest.raises(DifferentRowsError, match="records=0 skipped=0 unmatched=10"):
        run([])


@pytest.mark.spark
def test_a_repeated_write_does_not_wait_for_transactions_of_others(
    brokers: Cluster, new_topic: NewTopicFunction
) -> None:
    """Its records are behind one that is open, where readers of committed records do not come."""
    topic = new_topic(1)
    once = {"idempotenceId": "a", "idempotenceVersion": "1"}
    options = options_of(topic, **once, **{"bootstrap.servers": brokers.bootstrap})
    rows: list[tuple[str | None, bytes | None]] = [(None, b"%d" % n) for n in range(10)]

    def run(*tasks: Sequence[tuple[str | None, bytes | None]]) -> tuple[int, ...]:
        plan = plan_write(options, SCHEMA)
        reports = [
            write_rows(
                plan,
                iter([batch_of(part)]),
                name=f"spark-batch:{topic}:{number}",
                epoch=0,
                spark_partition=number,
                first=0,
            )
            for number, part in enumerate(tasks)
        ]
        return settle(plan, reports)

    producer = Producer(brokers.bootstrap, transactional_id=topic)
    with producer, producer.transaction() as open_one:
        open_one.send(topic, b"10")
        producer.flush()
        assert run(rows) == (10, 0, 0)
        assert run(rows) == (10, 10, 0)
        assert run([], rows[:4], rows[4:]) == (10, 10, 0), "in other tasks"
    assert stored_values(brokers.bootstrap, topic) == sorted(str(n) for n in range(11))


@pytest.mark.spark
def test_a_write_with_an_id_is_stored_once_for_each_version(
    spark: SparkSession, brokers: Cluster, new_topic: NewTopicFunction
) -> None:
    """In any number of tasks, on a topic that grows, and with rows that all tasks have."""
    topic = new_topic(2)
    job = {"topic": topic, "idempotenceId": "nightly copy"}
    runs = (("1", 2, 1), ("1", 3, 1), ("2", 1, 2), ("2", 2, 2))
    for partitions, (version, tasks, copies) in enumerate(runs, 3):
        frame = spark.range(50, numPartitions=tasks).selectExpr("cast(id % 40 as string) AS value")
        write(frame, brokers, **job, idempotenceVersion=version)
        expected = [str(number % 40) for number in range(50) for _ in range(copies)]
        assert stored_values(brokers.bootstrap, topic) == sorted(expected)
        with Admin(brokers.bootstrap) as admin:
            admin.add_partitions(topic, partitions)
    write(frame, brokers, topic=topic)
    assert len(stored_values(brokers.bootstrap, topic)) == 150, "without an id it is another write"


@pytest.mark.nightly
@pytest.mark.spark
def test_what_cannot_be_written_is_refused_and_if_possible_before_any_task_runs(
    spark: SparkSession, brokers: Cluster, new_topic: NewTopicFunction
) -> None:
    topic = new_topic(1)
    fails = "raise_error('a task has run')"
    good = spark.range(1).selectExpr(f"cast({fails} as string) AS value")
    for frame, mode, options, noted in (
        (good, "overwrite", {"topic": topic}, r"not overwritten: use \.mode\(.append.\)"),
        (good, "append", {"topic": f"{topic}x"}, f"there is no topic '{topic}x'. Did you mean"),
        (
            good,
            "append",
            {"bootstrap.servers": "127.0.0.1:1", "topic": topic, **SOON},
            "127.0.0.1:1",
        ),
        (good.selectExpr("length(value) AS value"), "append", {"topic": topic}, "is int, where"),
    ):
        with pytest.raises(Exception, match=noted) as caught:
            write(frame, brokers, mode=mode, **options)
        assert "a task has run" not in str(caught.value)
    nameless = spark.range(3, numPartitions=1).selectExpr(
        "'v' AS value", f"if(id = 2, null, '{topic}') AS topic"
    )
    with pytest.raises(Exception, match=r"row 2 \(counted from 0\): its topic is null"):
        write(nameless, brokers)
    with pytest.raises(Exception, match=r"(?i)errorifexists|append"):
        good.write.format("raftlog").option("topic", topic).save()
