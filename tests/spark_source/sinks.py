"""For tests of the writers: what a topic holds, a producer that is a table, a sink that fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_raftlog.options import SinkOptions
from pyspark_raftlog.routing import COLUMNS
from pyspark_raftlog.source import RaftlogDataSource
from pyspark_raftlog.transactional import StagedRows, TransactionalStreamWriter
from pyspark_raftlog.writer import BatchWriter, Extent, StreamWriter, TaskReport
from raftlog import Admin, Consumer, ConsumerRecord, TopicPartition
from raftlog.client.accumulator import ProducerIdAndEpoch
from raftlog.client.delivery import Delivery, DeliveryFuture
from raftlog.errors import RaftlogError, UnknownTopicError
from raftlog.protocol.records import DescribedProducer
from raftlog.record import BatchBody, decode_records, seal
from raftlog.record.arrow import schema_of

Log = dict[TopicPartition, list[ConsumerRecord]]


def stored_records(bootstrap: str, topic: str) -> Log:
    """All committed records of a topic, by partition, in order, without empty partitions.

    Waits for the ends of transactions.
    """
    with (
        Admin(bootstrap) as admin,
        Consumer(bootstrap, auto_offset_reset="earliest") as consumer,
        Consumer(bootstrap, isolation="uncommitted") as at_the_end,
    ):
        count = admin.find_topics([topic])[topic].partition_count
        ends = at_the_end.end_offsets([TopicPartition(topic, number) for number in range(count)])
        left = {tp: end for tp, end in ends.items() if end}
        found: Log = {tp: [] for tp in left}
        consumer.assign(left)
        while any((consumer.position(tp) or 0) < end for tp, end in left.items()):
            for record in consumer.poll():
                found[TopicPartition(record.topic, record.partition)].append(record)
    return {tp: records for tp, records in found.items() if records}


def stored_values(bootstrap: str, topic: str) -> list[str]:
    """The values of all records of a topic, sorted."""
    found = stored_records(bootstrap, topic).values()
    return sorted((record.value or b"").decode() for records in found for record in records)


def portion_of(records: Sequence[ConsumerRecord], *, timestamp_type: int = 0) -> pa.RecordBatch:
    """Records as ``RangeReader`` gives them for ``recall.COLUMNS``."""
    rows = [
        {
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
            "timestamp": record.timestamp_ms * 1_000,
            "timestamp_type": timestamp_type,
        }
        for record in records
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema_of(COLUMNS))


class BrokenError(RaftlogError):
    """What a fake producer raises when its time has come."""


@dataclass
class FakeProducer:
    """Appends to ``log`` what follows on what it has. ``batches_max``: then it breaks.

    ``is_late``: that it has broken is known only when it is flushed.
    """

    log: Log
    topics: dict[str, int] = field(default_factory=lambda: {"clicks": 3})
    message_bytes_max: int = 1 << 20
    batches_max: int = 1 << 30
    bodies: list[BatchBody] = field(default_factory=list)
    asked: list[TopicPartition] = field(default_factory=list)
    is_flushed: bool = False
    deleted: int = 0
    member: int = 0
    writers: dict[tuple[str, int, int], int] = field(default_factory=dict)  # shared like ``log``
    is_late: bool = False
    undecided: list[Delivery] = field(default_factory=list)

    def recall(self, extent: Extent) -> Iterator[pa.RecordBatch]:
        """What is stored, in portions, but for the first ``deleted`` records."""
        tp = extent.partition
        records = [
            record
            for record in self.log[tp][self.deleted :]
            if extent.start <= record.offset < extent.end
            and (self.member_of(record), 0) in extent.producers
        ]
        for first in range(0, len(records), 7):
            yield portion_of(records[first : first + 7])

    def partition_count(self, topic: str) -> int:
        if topic not in self.topics:
            raise UnknownTopicError(topic)
        return self.topics[topic]

    def topic_id(self, topic: str) -> str:
        return f"id of {topic}"

    def max_message_bytes(self, topic: str) -> int:
        return self.message_bytes_max

    def stored(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = list(partitions)
        self.asked += wanted
        return {tp: len(self._offsets(tp).get(self.member, ())) for tp in wanted}

    @property
    def identity(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.member, 0)

    def member_of(self, record: ConsumerRecord) -> int:
        """Who has written a record."""
        return self.writers.get((record.topic, record.partition, record.offset), 0)

    def _offsets(self, tp: TopicPartition) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for record in self.log.get(tp, ()):
            found.setdefault(self.member_of(record), []).append(record.offset)
        return found

    def extent(self, tp: TopicPartition) -> tuple[int, int] | None:
        offsets = self._offsets(tp).get(self.member)
        return (offsets[0], offsets[-1] + 1) if offsets else None

    def relatives(self, tp: TopicPartition) -> tuple[DescribedProducer, ...]:
        return tuple(
            DescribedProducer(member, 0, len(offsets) - 1, offsets[-1], offsets[0])
            for member, offsets in self._offsets(tp).items()
            if member != self.member
        )

    def append(self, tp: TopicPartition, body: BatchBody) -> DeliveryFuture:
        assert tp in self.asked, "stored() comes first"
        assert body.size_bytes <= self.message_bytes_max
        delivery = Delivery(*tp, body.first_timestamp_ms)
        if len(self.bodies) >= self.batches_max:
            self.undecided.append(delivery)
            if not self.is_late:
                self.flush()
            return DeliveryFuture(delivery, 0)
        self.bodies.append(body)
        records = self.log.setdefault(tp, [])
        batch = seal(body) + body.payload
        for each in decode_records(batch, topic=tp.topic, partition=tp.partition):
            record = msgspec.structs.replace(each, offset=len(records))
            self.writers[tp.topic, tp.partition, len(records)] = self.member
            records.append(record)
        delivery.succeed(len(records) - body.record_count, -1)
        return DeliveryFuture(delivery, 0)

    def flush(self, timeout: float | None = None) -> None:
        self.is_flushed = True
        while self.undecided:
            self.undecided.pop().fail(BrokenError(f"after {self.batches_max} batches"))


# -- a sink that fails when all is done ------------------------------------------------------------

FAILING_ATTEMPTS = 2  # of each task; the third one succeeds


def attempt_number() -> int:
    """Of the task that asks: 0, then 1 ..."""
    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber()


def fail_after_all() -> None:
    if attempt_number() < FAILING_ATTEMPTS:
        raise RuntimeError("after all was stored")


class FailingBatchWriter(BatchWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        report = super().write(iterator)
        fail_after_all()
        return report


class FailingStreamWriter(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        report = super().write(iterator)
        fail_after_all()
        return report

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        raise RuntimeError("no commit")


class FailingTransactionalStreamWriter(TransactionalStreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        staged = super().write(iterator)
        fail_after_all()
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        raise RuntimeError("no commit")


class FailingSink(RaftlogDataSource):
    """Tasks fail twice after they have written; the commit of a stream fails always."""

    @classmethod
    def name(cls) -> str:
        return "raftlog-failing"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = SinkOptions.parse(self.options, streaming=False)
        return FailingBatchWriter(options, schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        options = SinkOptions.parse(self.options, streaming=True)
        if options.transactional:
            return FailingTransactionalStreamWriter(options, schema, overwrite)
        return FailingStreamWriter(options, schema, overwrite)
