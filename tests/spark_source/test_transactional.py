"""Writes in transactions: all rows at once or none, and a write that is repeated once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructType

from pyspark_raftlog import transactional
from pyspark_raftlog.options import SinkOptions
from pyspark_raftlog.transactional import (
    NOTE,
    StagedRows,
    StagePlan,
    TransactionalBatchWriter,
    plan_stage,
    publish,
    stage,
)
from raftlog import Admin, TopicPartition
from raftlog.client.resumable import Step, StepProducer
from raftlog.errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    ProducerFencedError,
    RaftlogError,
    TransactionAbortedError,
    UnknownTopicError,
    UnsupportedFeatureError,
)
from raftlog.testing import Cluster
from tests.spark_source.fixtures import NewTopicFunction
from tests.spark_source.sinks import stored_values

pytestmark = pytest.mark.spark

SCHEMA = StructType().add("key", StringType()).add("value", BinaryType())


@pytest.fixture
def plan(brokers: Cluster, new_topic: NewTopicFunction) -> StagePlan:
    return plan_stage(sink(brokers, new_topic(3)), SCHEMA)


def sink(brokers: Cluster, topic: str, **options: str) -> SinkOptions:
    given = {"bootstrap.servers": brokers.bootstrap, "topic": topic, "transactional": "true"}
    return SinkOptions.parse(given | options, streaming=False)


def staged(plan: StagePlan, first: int, end: int, *, task: int = 0) -> StagedRows:
    """What a task reports whose rows have the numbers from ``first`` to before ``end``."""
    keys = pa.array([f"key-{number % 7}" if number % 2 else None for number in range(first, end)])
    values = pa.array([b"%d" % number for number in range(first, end)], pa.binary())
    batch = pa.RecordBatch.from_arrays([keys.cast(pa.string()), values], names=["key", "value"])
    return stage(plan, iter([batch]), spark_partition=task, first=task, now_ms=1_000)


def step(plan: StagePlan, number: int) -> Step:
    return Step(f"group of {plan.topic}", TopicPartition(plan.topic, 0), number, NOTE)


def numbers(*ranges: range) -> list[str]:
    return sorted(str(number) for each in ranges for number in each)


def test_a_write_is_stored_as_a_whole_and_once_with_any_rows(
    brokers: Cluster, plan: StagePlan
) -> None:
    def run(number: int, *tasks: StagedRows) -> bool:
        return publish(plan, tasks, transactional_id=plan.topic, step=step(plan, number))

    tasks = [staged(plan, 0, 500), staged(plan, 500, 900, task=1), staged(plan, 0, 0, task=2)]
    assert stored_values(brokers.bootstrap, plan.topic) == []
    assert run(7, *tasks)
    assert stored_values(brokers.bootstrap, plan.topic) == numbers(range(900))
    assert not run(7, *tasks)
    assert not run(7, staged(plan, 2_000, 2_001)), "its rows are not looked at"
    assert run(9, staged(plan, 900, 950))
    with pytest.raises(ProducerFencedError, match=r"step 7 of .* is late: step 9 is stored"):
        run(7, *tasks)
    assert stored_values(brokers.bootstrap, plan.topic) == numbers(range(950))
    with Admin(brokers.bootstrap) as admin:
        (offset,) = admin.group_offsets(step(plan, 0).group).values()
    assert (offset.offset, offset.metadata) == (9, NOTE)


def test_a_write_that_fails_in_the_midst_leaves_nothing(brokers: Cluster, plan: StagePlan) -> None:
    whole = staged(plan, 0, 100)
    batches = [(TopicPartition(plan.topic, number), body) for number, body in whole.batches]
    ids = {plan.topic: plan.topic_id}

    def broken() -> Iterator[Any]:
        yield from batches
        producer.flush()
        raise RuntimeError("the driver fails")

    with StepProducer(brokers.bootstrap, transactional_id=plan.topic) as producer:
        with pytest.raises(RuntimeError, match="the driver fails"):
            producer.store(broken(), topic_ids=ids, step=step(plan, 1))
        with pytest.raises(UnknownTopicError, match="created again"):
            producer.store(batches, topic_ids={plan.topic: "another"})
        assert stored_values(brokers.bootstrap, plan.topic) == []
        assert producer.store(batches, topic_ids=ids, step=step(plan, 1))
    assert stored_values(brokers.bootstrap, plan.topic) == numbers(range(100))


def test_a_driver_that_is_late_stores_nothing(brokers: Cluster, plan: StagePlan) -> None:
    """Its batch is repeated by another driver, with other tasks, while it writes."""
    batches = [(TopicPartition(plan.topic, n), body) for n, body in staged(plan, 0, 100).batches]
    repeated = [staged(plan, 0, 30), staged(plan, 30, 100, task=1)]

    def late() -> Iterator[Any]:
        yield batches[0]
        producer.flush()
        assert publish(plan, repeated, transactional_id=plan.topic, step=step(plan, 1))
        yield from batches[1:]

    producer = StepProducer(brokers.bootstrap, transactional_id=plan.topic)
    with pytest.raises((ProducerFencedError, TransactionAbortedError)):
        producer.store(late(), topic_ids={plan.topic: plan.topic_id}, step=step(plan, 1))
    producer.close(timeout=0)
    assert stored_values(brokers.bootstrap, plan.topic) == numbers(range(100))
    assert not publish(plan, repeated, transactional_id=plan.topic, step=step(plan, 1))


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_commit_without_a_response_is_found_out(
    brokers: Cluster, plan: StagePlan, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    staged_rows = staged(plan, 0, 10)

    async def unknown(self: Any) -> None:
        identity = self._identity
        if is_committed:
            await self._end_open(commit=True)
        else:
            await self.abort()
        self._identity, self._unknown = identity, True
        raise OutcomeUnknownError("no response")

    with monkeypatch.context() as patches:
        patches.setattr("raftlog.client.transactions.Transactions.commit", unknown)
        if is_committed:
            assert publish(plan, [staged_rows], transactional_id="t", step=step(plan, 1))
        else:
            with pytest.raises(RaftlogError):
                publish(plan, [staged_rows], transactional_id="t", step=step(plan, 1))
    again = publish(plan, [staged_rows], transactional_id="t", step=step(plan, 1))
    assert again is not is_committed
    assert stored_values(brokers.bootstrap, plan.topic) == numbers(range(10))


def test_more_than_the_driver_takes_is_refused(
    plan: StagePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [staged(plan, 0, 100, task=task) for task in range(2)]
    monkeypatch.setattr(transactional, "STAGED_BYTES_MAX", parts[0].size_bytes)
    with pytest.raises(UnsupportedFeatureError, match="maxOffsetsPerTrigger"):
        publish(plan, parts, transactional_id="t", step=None)
    with pytest.raises(UnsupportedFeatureError, match="pass through the driver"):
        staged(plan, 0, 10_000)
    with pytest.raises(RaftlogError, match="1 of 2 tasks have reported"):
        publish(plan, [parts[0], None], transactional_id="t", step=None)


def test_a_batch_write_has_a_version_that_increases(
    brokers: Cluster, new_topic: NewTopicFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    other = new_topic()
    with pytest.raises(InvalidRequestError, match="needs the option topic"):
        SinkOptions.parse({"bootstrap.servers": "a:1", "transactional": "true"}, streaming=False)

    def writer(version: str, to: str) -> TransactionalBatchWriter:
        once = {"idempotenceId": "job of transactions", "idempotenceVersion": version}
        return TransactionalBatchWriter(sink(brokers, to, **once), SCHEMA, overwrite=False)

    for version, to in (("0", topic), ("0", topic), ("2", topic), ("0", other)):
        made = writer(version, to)
        made.commit([staged(made._plan, 0, 5)])
    assert stored_values(brokers.bootstrap, topic) == numbers(range(5), range(5))
    assert stored_values(brokers.bootstrap, other) == numbers(range(5))
    late = writer("1", topic)
    with pytest.raises(ProducerFencedError, match="versions increase"):
        late.commit([staged(late._plan, 0, 5)])
    little = {"raftlog.buffer.memory": "1024"}
    anonymous = TransactionalBatchWriter(sink(brokers, topic, **little), SCHEMA, overwrite=False)
    for _ in range(2):
        anonymous.commit([staged(anonymous._plan, 0, 5)])
    assert len(stored_values(brokers.bootstrap, topic)) == 20
