"""How what clients do becomes history: values given out, outcomes decided, entries written.

The calls here are raftlog's own with a recording around them. What is called, when and how often is
the workloads' to say. All of it runs on one event loop.

An error of raftlog's is data: it decides how the operation ended. Anything else that is raised is
somebody's bug and passes through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from raftlog import errors
from raftlog.client.aio.consumer import AsyncConsumer
from raftlog.client.aio.producer import AsyncProducer
from raftlog.client.delivery import DeliveryFuture, RangesFuture
from raftlog.errors import RaftlogError
from raftlog.jepsen_like import keys as keys_
from raftlog.jepsen_like import values
from raftlog.jepsen_like.history import Append, Ends, Poll, Recorder, Type, Where
from raftlog.types import ConsumerRecord, Offset, RecordMetadata, TopicPartition

Failed: TypeAlias = Literal["fail", "info"]
Source: TypeAlias = Literal["leader", "replica"]

# Records of one call of ``send_many`` take no more: they go into one batch, so that an error is
# about all of them. A larger record is sent alone.
GROUP_BYTES_MAX: Final = 900_000
# Beside a record's padding: its value as text, and what the format adds.
RECORD_BYTES: Final = 40
ERROR_CHARS_MAX: Final = 300

# What an error says of a send: "fail" if it certainly had no effect. Each class is decided here by
# name; one that is not in the table counts as its nearest base that is.
#
# "fail" is for what the broker (or the client, before it sent anything) refuses ahead of the
# append: not the leader, another leader epoch, too few replicas, no room, no connection, and what
# is wrong with the request itself. The rest is "info", also where the product may well promise
# more: a history must not rest on a promise that it is to test.
OUTCOMES: Final[Mapping[type[RaftlogError], Failed]] = {
    RaftlogError: "info",
    # Nothing was done, by definition of the class.
    errors.RetriableError: "fail",
    errors.NotLeaderError: "fail",
    errors.BrokerUnavailableError: "fail",
    errors.ThrottledError: "fail",
    errors.DiskFullError: "fail",
    errors.DiskHungError: "fail",
    errors.FencedLeaderEpochError: "fail",
    errors.UnknownLeaderEpochError: "fail",
    errors.NotEnoughReplicasError: "fail",
    errors.LeaderNotAvailableError: "fail",
    errors.ClusterNotReadyError: "fail",
    # Maybe done, maybe not, by definition of the class.
    errors.OutcomeUnknownError: "info",
    errors.ConnectionLostError: "info",
    errors.RequestTimedOutError: "info",
    errors.DeliveryTimedOutError: "info",
    errors.CommitUnknownError: "info",
    # Validation comes before the append.
    errors.RefusedError: "info",
    errors.InvalidRequestError: "fail",
    errors.KeyRequiredError: "fail",
    errors.InvalidTopicError: "fail",
    errors.UnknownTopicError: "fail",
    errors.UnknownPartitionError: "fail",
    errors.RecordTooLargeError: "fail",
    errors.BadRecordError: "info",  # a consumer's
    errors.CorruptBatchError: "fail",
    errors.DeserializationError: "info",
    # A sequence that does not fit may mean that the broker lost what an attempt had stored.
    errors.OutOfOrderSequenceError: "info",
    errors.ProducerFencedError: "info",
    # Of a connection or a client that ended: what was on its way may have arrived.
    errors.FrameError: "info",
    errors.ClosedError: "info",
    # Not of sends, or not of this set-up; were one to come, it would say nothing for sure.
    errors.UnsupportedApiError: "info",
    errors.UnsupportedVersionError: "info",
    errors.UnsupportedFeatureError: "info",
    errors.TopicExistsError: "info",
    errors.InvalidPartitionsError: "info",
    errors.InvalidConfigError: "info",
    errors.OffsetOutOfRangeError: "info",
    errors.AccessDeniedError: "info",
    errors.BrokerIdInUseError: "info",
    errors.WrongClusterError: "info",
    errors.StaleBrokerError: "info",
    errors.ChainMismatchError: "info",
    # Of consumer groups, not of sends.
    errors.NotCoordinatorError: "fail",
    errors.CoordinatorLoadingError: "fail",
    errors.StaleMemberEpochError: "fail",
    errors.InvalidGroupError: "info",
    errors.UnknownGroupError: "info",
    errors.UnknownMemberError: "info",
    errors.FencedMemberError: "info",
    errors.InstanceFencedError: "info",
    errors.PartitionNotOwnedError: "info",
    errors.GroupNotEmptyError: "info",
    errors.UnknownAssignorError: "info",
    # A disk that fails may have taken what it was given.
    errors.StorageError: "info",
    errors.DataDirectoryError: "info",
    errors.DamagedLogError: "info",
    errors.StorageFailedError: "info",
    errors.DamagedJournalError: "info",
}


def outcome_of(error: RaftlogError) -> Failed:
    """How a send ended that this error is all there is to know of."""
    return next(OUTCOMES[kind] for kind in type(error).__mro__ if kind in OUTCOMES)


def describe(error: RaftlogError) -> str:
    """The error for a history: its class, and the beginning of what it says."""
    return f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]


@dataclass(slots=True)
class Process:
    """The name under which a client's operations stand in the history.

    One that does not know how its operation ended is *retired*: the client goes on under a new
    name, as in Jepsen, so that nothing is concluded from what it did before.
    """

    client: str
    _names: int = 0

    @property
    def name(self) -> str:
        return f"{self.client}.{self._names}" if self._names else self.client

    def retire(self, name: str) -> None:
        """Take a new name, unless ``name`` is an old one: several operations may be under way."""
        if name == self.name:
            self._names += 1


@dataclass(frozen=True, slots=True)
class Group:
    """An append that is under way. ``parts``: futures, with the first value of each."""

    process: str
    partition: str
    first: int
    count: int
    acks: int
    idempotent: bool
    parts: Sequence[tuple[DeliveryFuture | RangesFuture, int]]
    error: RaftlogError | None = None  # of the values that are in no part


@dataclass(slots=True)
class Clients:
    """What the clients of a run share. ``acked``: by partition, the end of what acknowledged
    appends have filled; only of appends that all in-sync replicas acknowledge."""

    recorder: Recorder
    acked: dict[str, Offset] = field(default_factory=dict)
    _next_value: int = 1

    # -- appends

    async def begin(
        self,
        producer: AsyncProducer,
        process: str,
        partition: TopicPartition,
        *,
        count: int,
        padding: int,
        one_by_one: bool = False,
        acks: int = -1,
        idempotent: bool = True,
        keys: int = 0,
    ) -> Group:
        """Queue ``count`` new values, each with ``padding`` bytes. The invocation is recorded.

        By ``send_many``, or ``one_by_one`` by ``send``. Groups of one producer that are begun one
        after the other are sent in that order. ``finish`` has to be called with what is returned.
        ``keys``: how many keys the partition has; 0 for records without.
        """
        assert count == 1 or count * (padding + RECORD_BYTES) <= GROUP_BYTES_MAX
        first, self._next_value = self._next_value, self._next_value + count
        made = [_record(value, padding, keys) for value in range(first, first + count)]
        self.recorder.record(
            Append(
                time=0,
                process=process,
                type="invoke",
                partition=str(partition),
                first=first,
                count=count,
                acks=acks,
                idempotent=idempotent,
            )
        )
        topic, number = partition
        parts: list[tuple[DeliveryFuture | RangesFuture, int]] = []
        failure: RaftlogError | None = None
        try:
            if one_by_one:
                for value, (record, named) in enumerate(made, start=first):
                    future = await producer.send(topic, record, partition=number, **named)
                    parts.append((future, value))
            else:
                records = [record for record, _ in made]
                named = _columns([named for _, named in made])
                several = await producer.send_many(topic, records, partition=number, **named)
                parts.append((several, first))
        except RaftlogError as error:
            failure = error
        return Group(process, str(partition), first, count, acks, idempotent, parts, failure)

    async def finish(self, group: Group) -> Type:
        """Wait for the outcome, and record it. What it was: ``ok``, ``fail`` or ``info``."""
        failures = [] if group.error is None else [group.error]
        acknowledged: list[Where] = []
        for future, value in group.parts:
            try:
                outcome = await future
            except RaftlogError as error:
                failures.append(error)
                continue
            if isinstance(outcome, RecordMetadata):
                acknowledged.append((value, 1, outcome.offset))
                continue
            next_value = value
            for part in outcome:
                count = part.last - part.first + 1
                acknowledged.append((next_value, count, part.first))
                next_value += count
        return self._completed(group, values.places(acknowledged), failures)

    def _completed(
        self,
        group: Group,
        acknowledged: list[Where],
        failures: list[RaftlogError],
    ) -> Type:
        ended: Type = "ok"
        if failures:
            unknown = [error for error in failures if outcome_of(error) == "info"]
            ended = "info" if unknown else "fail"
            failures = unknown or failures
        if group.acks == -1 and acknowledged:
            end = max(offset + count for _, count, offset in acknowledged)
            self.acked[group.partition] = max(end, self.acked.get(group.partition, 0))
        self.recorder.record(
            Append(
                time=0,
                process=group.process,
                type=ended,
                partition=group.partition,
                first=group.first,
                count=group.count,
                acks=group.acks,
                idempotent=group.idempotent,
                offsets=acknowledged,
                error=describe(failures[0]) if failures else "",
            )
        )
        return ended

    # -- reading

    async def poll(
        self,
        consumer: AsyncConsumer,
        process: str,
        positions: dict[TopicPartition, Offset],
        *,
        wait_ms: int,
        records_max: int,
        source: Source = "leader",
    ) -> int:
        """One call of ``poll``; how many records it gave. ``positions`` are moved on.

        Raises what ``poll`` raises, when it is recorded.
        """
        at = {str(partition): offset for partition, offset in positions.items()}
        self.recorder.record(
            Poll(time=0, process=process, type="invoke", positions=at, source=source)
        )
        done = Poll(time=0, process=process, type="ok", source=source)
        try:
            records = await consumer.poll(wait_ms, records_max)
        except RaftlogError as error:
            done.type, done.error = "fail", describe(error)
            self.recorder.record(done)
            raise
        for partition, found in by_partition(records).items():
            done.records[str(partition)] = list(values.runs(found))
            positions[partition] = found[-1][0] + 1
        self.recorder.record(done)
        return len(records)

    async def ends(
        self, consumer: AsyncConsumer, process: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """Where the partitions end, by their leaders' word. Raises what was recorded.

        ``consumer`` has to be one that reads from leaders: a replica may know of less.
        """
        self.recorder.record(Ends(time=0, process=process, type="invoke"))
        try:
            ends = await consumer.end_offsets(partitions)
        except RaftlogError as error:
            self.recorder.record(Ends(time=0, process=process, type="fail", error=describe(error)))
            raise
        found = {str(partition): offset for partition, offset in ends.items()}
        self.recorder.record(Ends(time=0, process=process, type="ok", ends=found))
        return ends


def _record(value: int, padding: int, count: int) -> tuple[bytes | None, dict[str, Any]]:
    """What is sent; and key and headers, if there are ``count`` keys."""
    if not count:
        return values.encode(value, padding), {}
    key, record, headers = keys_.encode(value, padding, count)
    return record, {"key": key, "headers": headers}


def _columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The same for all records of a group at once."""
    if not rows[0]:
        return {}
    return {"keys": [r["key"] for r in rows], "headers": [r["headers"] for r in rows]}


def by_partition(
    records: Sequence[ConsumerRecord],
) -> dict[TopicPartition, list[tuple[int, int, int]]]:
    """(offset, value, leader epoch) of each record, in the order given."""
    decode = values.decode
    found: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for record in records:
        name = record.topic, record.partition
        if name not in found:
            found[name] = []
        if record.key is None:
            number = decode(record.value)
        else:
            number = keys_.decode(record.key, record.value, record.headers)
        found[name].append((record.offset, number, record.leader_epoch))
    return {TopicPartition(*name): rows for name, rows in found.items()}
