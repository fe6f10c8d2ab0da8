"""The streaming reader on real brokers, called as Spark calls it, but without Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from pyspark_raftlog import reader as stream_reader
from pyspark_raftlog.catalog import Catalog
from pyspark_raftlog.offsets import LAG, RESERVED_KEY
from pyspark_raftlog.options import Selection, SourceOptions
from pyspark_raftlog.planning import DataLossError, LossKind, PartitionRange, View
from pyspark_raftlog.reader import StreamReader
from pyspark_raftlog.schema import read_schema
from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.errors import InvalidRequestError, UnknownGroupError, UnknownTopicError
from raftlog.testing import Cluster
from raftlog.types import Offset

pytestmark = pytest.mark.spark  # for the brokers, which the tests on Spark share

NOWHERE = "127.0.0.1:1"
Append = Callable[[str, int], None]


def reader_of(bootstrap: str, **options: str) -> StreamReader:
    given = {"bootstrap.servers": bootstrap, "startingOffsets": "earliest", "retryIntervalMs": "0"}
    parsed = SourceOptions.parse(given | options, streaming=True)
    return StreamReader(parsed, read_schema(None, include_headers=False))


class Run:
    """One run of a query, which calls the reader in Spark's order."""

    def __init__(self, reader: StreamReader, start: dict[str, Any] | None = None) -> None:
        self.reader = reader
        self.limit = reader.getDefaultReadLimit()
        self.start = start if start is not None else self._first_batch()

    def _first_batch(self) -> dict[str, Any]:
        initial = self.reader.initialOffset()
        assert self.reader.latestOffset(initial, self.limit) == initial
        assert self.reader.partitions(self.reader.initialOffset(), initial) == []
        return initial

    def batch(self) -> list[PartitionRange]:
        """The ranges of the next batch; the run has read it then."""
        start, end = self.start, self.reader.latestOffset(self.start, self.limit)
        if end == start:
            return []
        self.reader.commit(start)
        self.start = end
        return ranges(self.reader.partitions(start, end))


def ranges(partitions: Sequence[InputPartition]) -> list[PartitionRange]:
    return [partition.value for partition in partitions]


def spans(pieces: Sequence[PartitionRange]) -> list[tuple[int, Offset, Offset]]:
    return [(piece.partition, piece.start, piece.end) for piece in pieces]


@pytest.fixture(scope="module")
def append(brokers: Cluster) -> Append:
    """``append(topic, count)``: so many records of about 100 bytes more, in its partition 0."""

    def more(topic: str, count: int) -> None:
        with Producer(brokers.bootstrap, compression="none") as producer:
            producer.send_many(topic, [b"v" * 100] * count, partition=0).result()

    return more


class Clock:
    """Stands still but for what is slept."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds


def test_a_cluster_that_has_nothing_new_is_not_asked_all_the_time(
    brokers: Cluster, new_topic: Any, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks again after 10 ms when there was nothing, and has no trigger."""
    clock = Clock()
    monkeypatch.setattr(stream_reader, "time", clock)
    topic = new_topic()
    run = Run(reader_of(brokers.bootstrap, subscribe=topic))
    assert run.batch() == []
    assert clock.slept == []
    clock.now += 0.01
    assert run.batch() == []
    assert clock.slept == [0.09]
    append(topic, 3)
    assert spans(run.batch()) == [(0, 0, 3)]
    assert clock.slept == [0.09, 0.1]
    append(topic, 2)
    assert spans(run.batch()) == [(0, 3, 5)], "while records come, nobody rests"
    clock.now += 60
    assert run.batch() == []
    clock.now += 60
    assert run.batch() == []
    assert clock.slept[2:] == [0.0]


# -- where it begins


def test_the_start_is_looked_up_once(brokers: Cluster, new_topic: Any, append: Append) -> None:
    topic = new_topic()
    reader = reader_of(brokers.bootstrap, subscribe=topic, startingOffsets="latest")
    initial = reader.initialOffset()
    append(topic, 3)
    assert reader.initialOffset() == initial
    run = Run(reader)
    assert spans(run.batch()) == [(0, 0, 3)]
    assert run.batch() == []


def test_an_unknown_topic_is_refused(brokers: Cluster, new_topic: Any) -> None:
    new_topic()
    with pytest.raises(UnknownTopicError, match="there is no topic 'no-such-topic'"):
        reader_of(brokers.bootstrap, subscribe="no-such-topic").initialOffset()


def test_a_start_beyond_the_end_is_refused_or_is_the_end(
    brokers: Cluster, new_topic: Any, append: Append
) -> None:
    topic = new_topic()
    append(topic, 3)
    options = {"subscribe": topic, "startingOffsets": f'{{"{topic}":{{"0":9}}}}'}
    with pytest.raises(DataLossError, match=r"startingOffsets: .* offset 9, but its end is 3"):
        reader_of(brokers.bootstrap, **options).initialOffset()
    lenient = reader_of(brokers.bootstrap, failOnDataLoss="false", **options)
    assert lenient.initialOffset()[topic] == {"0": 3}


def test_a_pattern_may_match_a_topic_that_comes_later(
    brokers: Cluster, admin: Admin, append: Append
) -> None:
    run = Run(reader_of(brokers.bootstrap, subscribePattern="^made-.*-later$"))
    assert run.start == {}
    assert run.batch() == []
    admin.create_topics([NewTopic("made-much-later", 2)])
    append("made-much-later", 4)
    assert run.batch() == []
    assert spans(run.batch()) == [(0, 0, 4)]


# -- limits


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"maxOffsetsPerTrigger": "7", "minOffsetsPerTrigger": "3"}, ReadMaxRows(7)),
        ({"maxBytesPerTrigger": "4096"}, ReadMaxBytes(4_096)),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
    ],
)
def test_spark_is_told_the_limit_that_it_has_a_word_for(
    options: dict[str, str], limit: ReadLimit
) -> None:
    assert reader_of(NOWHERE, subscribe="t", **options).getDefaultReadLimit() == limit


def test_without_limits_spark_can_be_told_from_trigger_once() -> None:
    limit = reader_of(NOWHERE, subscribe="t").getDefaultReadLimit()
    assert not isinstance(limit, ReadAllAvailable)


def test_trigger_once_reads_everything_in_its_first_batch(
    brokers: Cluster, new_topic: Any, append: Append
) -> None:
    topic = new_topic()
    append(topic, 9)
    reader = reader_of(brokers.bootstrap, subscribe=topic, maxOffsetsPerTrigger="2")
    initial = reader.initialOffset()
    end = reader.latestOffset(initial, ReadAllAvailable())
    assert spans(ranges(reader.partitions(initial, end))) == [(0, 0, 9)]


def test_a_batch_has_about_as_many_bytes_as_allowed(
    brokers: Cluster, new_topic: Any, append: Append
) -> None:
    topic = new_topic()
    append(topic, 100)
    run = Run(reader_of(brokers.bootstrap, subscribe=topic, maxBytesPerTrigger="2048"))
    (first,) = run.batch()
    assert 10 <= first.size <= 20


def test_too_few_records_wait_for_more(brokers: Cluster, new_topic: Any, append: Append) -> None:
    topic = new_topic()
    options = {"subscribe": topic, "minOffsetsPerTrigger": "5", "maxTriggerDelay": "1h"}
    run = Run(reader_of(brokers.bootstrap, **options))
    append(topic, 2)
    assert spans(run.batch()) == [(0, 0, 2)], "the first ones do not wait"
    append(topic, 4)
    assert run.batch() == []
    append(topic, 1)
    assert spans(run.batch()) == [(0, 2, 7)]


def test_the_latest_offset_is_told_from_the_last_look(
    brokers: Cluster, new_topic: Any, append: Append
) -> None:
    topic = new_topic()
    append(topic, 9)
    reader = reader_of(brokers.bootstrap, subscribe=topic, maxOffsetsPerTrigger="2")
    assert reader.reportLatestOffset() is None
    run = Run(reader)
    run.batch()
    append(topic, 1)
    latest = reader.reportLatestOffset()
    assert latest is not None
    assert (latest[topic], run.start[topic]) == ({"0": 9}, {"0": 2})
    assert latest[RESERVED_KEY][LAG] == {topic: 7}


# -- ranges


def test_the_same_offsets_make_the_same_tasks(
    brokers: Cluster, new_topic: Any, append: Append
) -> None:
    topic = new_topic(3)
    append(topic, 10)
    options = {"subscribe": topic, "minPartitions": "2", "maxRecordsPerPartition": "4"}
    one, other = (reader_of(brokers.bootstrap, **options) for _ in range(2))
    start = one.initialOffset()
    end = Run(one).reader.latestOffset(start, one.getDefaultReadLimit())
    pieces = ranges(one.partitions(start, end))
    assert spans(pieces) == [(0, 0, 3), (0, 3, 6), (0, 6, 10)]
    append(topic, 5)
    assert ranges(other.partitions(start, end)) == pieces
    assert ranges(one.partitions(start, end)) == pieces
    assert other.partitions(end, end) == []


def test_a_reader_travels_to_the_tasks_after_it_was_used(
    brokers: Cluster, new_topic: Any, append: Append
) -> None:
    topic = new_topic()
    append(topic, 4)
    run = Run(reader_of(brokers.bootstrap, subscribe=topic))
    (piece,) = run.batch()
    pickler: Any = CPickleSerializer()
    copy = pickler.loads(pickler.dumps(run.reader))
    batches = list(copy.read(InputPartition(piece)))
    assert [offset for batch in batches for offset in batch["offset"].to_pylist()] == [0, 1, 2, 3]
    assert list(copy.read(InputPartition(None))) == []


# -- what was lost


def test_records_deleted_after_they_were_planned_are_named_or_left_out(
    brokers: Cluster, admin: Admin, new_topic: Any, append: Append, caplog: Any
) -> None:
    topic = new_topic()
    append(topic, 10)
    strict = reader_of(brokers.bootstrap, subscribe=topic)
    start = Run(strict).start
    end = strict.latestOffset(start, strict.getDefaultReadLimit())
    admin.delete_records({TopicPartition(topic, 0): 6})
    with pytest.raises(DataLossError, match="deleted offsets 0 to 5") as failed:
        strict.partitions(start, end)
    assert failed.value.kind is LossKind.AGED_OUT
    lenient = reader_of(brokers.bootstrap, subscribe=topic, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert spans(ranges(lenient.partitions(start, end))) == [(0, 6, 10)]
    assert "deleted offsets 0 to 5" in caplog.text


def test_a_deleted_topic_and_one_made_anew_are_told_apart(
    brokers: Cluster, admin: Admin, new_topic: Any, append: Append
) -> None:
    kept, topic = new_topic(), new_topic()
    append(topic, 10)
    options = {"subscribe": f"{kept},{topic}", "numRetries": "1"}
    strict = Run(reader_of(brokers.bootstrap, **options))
    strict.batch()
    start = strict.start

    admin.delete_topics([topic])
    with pytest.raises(DataLossError, match="the topic was deleted") as failed:
        strict.batch()
    assert failed.value.kind is LossKind.TOPIC_GONE
    lenient = reader_of(brokers.bootstrap, failOnDataLoss="false", **options)
    without = Run(lenient, start)
    assert without.batch() == []
    assert topic not in without.start

    admin.create_topics([NewTopic(topic)])
    append(topic, 25)
    with pytest.raises(DataLossError, match="recreated since") as failed:
        strict.batch()
    assert failed.value.kind is LossKind.RECREATED
    anew = Run(lenient, start)
    assert anew.batch() == []
    assert spans(anew.batch()) == [(0, 0, 25)]
    assert without.batch() == []
    assert spans(without.batch()) == [(0, 0, 25)]


@pytest.mark.parametrize("answers", [[3, 10], [3, 3, 10], [3, UnknownTopicError("t"), 10]])
def test_an_end_that_seems_to_go_back_is_asked_for_again(
    brokers: Cluster,
    new_topic: Any,
    append: Append,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[Any],
) -> None:
    topic = new_topic()
    append(topic, 10)
    run = Run(reader_of(brokers.bootstrap, subscribe=topic, numRetries="2"))
    run.batch()
    left = iter(answers)

    def view_of(catalog: Catalog, selection: Selection) -> View:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        ids = run.start["~raftlog"]["topic_ids"]
        return View(ids, {TopicPartition(topic, 0): answer})

    monkeypatch.setattr(stream_reader, "view_of", view_of)
    assert run.batch() == []
    assert list(left) == []
    left = iter([3, 3, 3])
    with pytest.raises(DataLossError, match="its end decreased to 3"):
        run.batch()


@pytest.mark.parametrize("question", ["earliest", "now"])
def test_a_topic_that_goes_away_between_two_questions_is_looked_at_again(
    brokers: Cluster,
    new_topic: Any,
    append: Append,
    monkeypatch: pytest.MonkeyPatch,
    question: str,
) -> None:
    topic = new_topic()
    append(topic, 10)
    run = Run(reader_of(brokers.bootstrap, subscribe=topic, numRetries="1"))
    failures = [UnknownTopicError(topic)]
    asked = getattr(Catalog, question)

    def answer(catalog: Catalog, partitions: Any) -> Any:
        if failures:
            raise failures.pop()
        return asked(catalog, partitions)

    monkeypatch.setattr(Catalog, question, answer)
    assert spans(run.batch()) == [(0, 0, 10)]
    assert failures == []
    append(topic, 1)
    failures += [UnknownTopicError(topic)] * 2
    with pytest.raises(UnknownTopicError):
        run.batch()


def test_a_topic_that_is_not_subscribed_any_more_goes_on_where_it_was(
    brokers: Cluster, new_topic: Any, append: Append
) -> None:
    one, other = new_topic(), new_topic()
    append(one, 1)
    append(other, 2)
    both = Run(reader_of(brokers.bootstrap, subscribe=f"{one},{other}"))
    assert len(both.batch()) == 2
    append(one, 10)
    append(other, 20)
    alone = Run(reader_of(brokers.bootstrap, subscribe=one), both.start)
    assert spans(alone.batch()) == [(0, 1, 11)]
    again = Run(reader_of(brokers.bootstrap, subscribe=f"{one},{other}"), alone.start)
    assert spans(again.batch()) == [(0, 2, 22)]


def test_an_offset_that_is_not_ours_is_refused(brokers: Cluster, new_topic: Any) -> None:
    reader = reader_of(brokers.bootstrap, subscribe=new_topic())
    with pytest.raises(InvalidRequestError, match="checkpoint"):
        reader.latestOffset({"t": {"0": "many"}}, reader.getDefaultReadLimit())


# -- the group that tools look at


def committed(admin: Admin, group: str) -> dict[tuple[str, int], Offset]:
    return {tuple(tp): found.offset for tp, found in admin.group_offsets(group).items()}


def test_progress_is_committed_for_the_group_and_never_goes_back(
    brokers: Cluster, admin: Admin, new_topic: Any, append: Append
) -> None:
    topic, group = new_topic(), "progress-of-a-stream"
    append(topic, 10)
    options = {"groupId": group, "commitOffsets": "true", "maxOffsetsPerTrigger": "4"}
    run = Run(reader_of(brokers.bootstrap, subscribe=topic, **options))
    assert committed(admin, group) == {(topic, 0): 0}
    run.batch()
    first = run.start
    assert committed(admin, group) == {(topic, 0): 0}, "it is not processed yet"
    run.batch()
    assert committed(admin, group) == {(topic, 0): 4}
    run.batch()
    run.reader.commit(first)
    assert committed(admin, group) == {(topic, 0): 8}
    run.reader.commit(run.start)
    assert committed(admin, group) == {(topic, 0): 10}


def test_nothing_is_committed_unless_it_is_asked_for(
    brokers: Cluster, admin: Admin, new_topic: Any, append: Append
) -> None:
    topic = new_topic()
    append(topic, 1)
    run = Run(reader_of(brokers.bootstrap, subscribe=topic, groupId="a-group-of-nobody"))
    run.batch()
    run.reader.commit(run.start)
    with pytest.raises(UnknownGroupError):
        admin.group_offsets("a-group-of-nobody")


def test_a_group_that_refuses_does_not_stop_the_stream(
    brokers: Cluster, new_topic: Any, append: Append, caplog: Any
) -> None:
    topic, group = new_topic(), "group-with-a-member"
    append(topic, 1)
    with Consumer(brokers.bootstrap, group=group, auto_offset_reset="earliest") as member:
        member.subscribe([topic])
        while not member.poll(1_000):
            pass
        options = {"groupId": group, "commitOffsets": "true"}
        with caplog.at_level(logging.WARNING):
            run = Run(reader_of(brokers.bootstrap, subscribe=topic, **options))
            assert spans(run.batch()) == [(0, 0, 1)]
    (warning,) = [each for each in caplog.records if group in each.getMessage()]
    assert group in warning.getMessage()


def test_a_reader_can_be_used_after_it_was_stopped(brokers: Cluster, new_topic: Any) -> None:
    reader = reader_of(brokers.bootstrap, subscribe=new_topic())
    run = Run(reader)
    reader.stop()
    reader.stop()
    assert run.batch() == []
