"""Recording of client operations in the history: new values, outcomes, entries.

Each function calls raftlog's client and records the invocation and the completion. The workloads
decide which calls are made, when and how often. All clients run on one event loop.

An error of raftlog determines the outcome of the operation. All other exceptions are bugs and are
not caught.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from raftlog import errors
from raftlog.client.aio.clients import AsyncConsumer, AsyncProducer
from raftlog.errors import RaftlogError
from raftlog.testing import history
from raftlog.testing.history import (
    Append,
    Commit,
    Committed,
    Ends,
    Poll,
    Recorder,
    Type,
    Where,
)
from raftlog.types import (
    ConsumerRecord,
    Offset,
    OffsetAndMetadata,
    OffsetRange,
    RecordMetadata,
    TopicPartition,
)

if TYPE_CHECKING:
    from raftlog_jepsen.kafka_clients import KafkaConsumer, KafkaProducer


AnyProducer: TypeAlias = "AsyncProducer | KafkaProducer"
AnyConsumer: TypeAlias = "AsyncConsumer | KafkaConsumer"
Outcome: TypeAlias = RecordMetadata | Sequence[OffsetRange]  # of one record, or of several
Failed: TypeAlias = Literal["fail", "info"]
Source: TypeAlias = Literal["leader", "replica"]

# Maximum bytes of the records in one call of ``send_many``: one batch contains them all, so that an
# error applies to all of them. A larger record is sent separately.
GROUP_BYTES_MAX: Final = 900_000
# Bytes of a record in addition to its padding: its value as text and the overhead of the format.
RECORD_BYTES: Final = 40
ERROR_CHARS_MAX: Final = 300

# Outcome of a send by error class: "fail" if it certainly had no effect. A class that is not in the
# table has the outcome of its nearest base class in the table. "fail" is for requests that the
# broker (or the client, before sending) rejects before the append: not the leader, another leader
# epoch, too few replicas, no disk space, no connection, invalid requests. All others are "info",
# even if raftlog guarantees more: the history must not depend on a guarantee that it tests.
OUTCOMES: Final[Mapping[type[RaftlogError], Failed]] = {
    RaftlogError: "info",
    # No effect, by definition of the class.
    errors.RetriableError: "fail",
    errors.NotLeaderError: "fail",
    errors.BrokerUnavailableError: "fail",
    errors.ThrottledError: "fail",
    errors.DiskFullError: "fail",
    errors.FileLimitError: "fail",
    errors.DiskHungError: "fail",
    errors.FencedLeaderEpochError: "fail",
    errors.UnknownLeaderEpochError: "fail",
    errors.NotEnoughReplicasError: "fail",
    errors.LeaderNotAvailableError: "fail",
    errors.ClusterNotReadyError: "fail",
    # Unknown effect, by definition of the class.
    errors.OutcomeUnknownError: "info",
    errors.ConnectionLostError: "info",
    errors.RequestTimedOutError: "info",
    errors.DeliveryTimedOutError: "info",
    errors.CommitUnknownError: "info",
    # Validation comes before the append.
    errors.RefusedError: "info",
    errors.InvalidRequestError: "fail",
    errors.KeyRequiredError: "fail",
    errors.RecordSchemaError: "fail",
    errors.SchemaError: "info",  # of no send
    errors.InvalidTopicError: "fail",
    errors.UnknownTopicError: "fail",
    errors.UnknownPartitionError: "fail",
    errors.RecordTooLargeError: "fail",
    errors.BadRecordError: "info",  # raised by consumers only
    errors.CorruptBatchError: "fail",
    errors.KafkaBatchError: "info",
    errors.DeserializationError: "info",
    # The sequence can be wrong because the broker lost data that an earlier attempt had stored.
    errors.OutOfOrderSequenceError: "info",
    errors.UnknownProducerError: "info",
    errors.ProducerFencedError: "info",
    errors.TransactionAbortedError: "info",
    errors.InvalidTransactionStateError: "info",
    errors.InvalidProducerMappingError: "info",
    errors.UnknownTransactionError: "info",
    errors.StaleTransactionCoordinatorError: "info",
    errors.InvalidTransactionTimeoutError: "fail",
    errors.ConcurrentTransactionsError: "fail",
    errors.UnstableOffsetError: "fail",
    # The connection or the client was closed: requests in flight may have arrived.
    errors.FrameError: "info",
    errors.ClosedError: "info",
    # Sends do not raise these, or not in this setup. If raised, the outcome is unknown.
    errors.UnsupportedApiError: "info",
    errors.UnsupportedVersionError: "info",
    errors.UnsupportedFeatureError: "info",
    errors.TopicExistsError: "info",
    errors.InvalidPartitionsError: "info",
    errors.InvalidConfigError: "info",
    errors.OffsetOutOfRangeError: "info",
    errors.AccessDeniedError: "info",
    errors.AuthenticationError: "info",
    errors.TopicAuthorizationFailedError: "info",
    errors.GroupAuthorizationFailedError: "info",
    errors.ClusterAuthorizationFailedError: "info",
    errors.TransactionalIdAuthorizationFailedError: "info",
    errors.UserExistsError: "info",
    errors.UnknownUserError: "info",
    errors.UnknownTokenError: "info",
    errors.TokenExpiredError: "info",
    errors.TokenOwnerError: "info",
    errors.TokenRequestNotAllowedError: "info",
    errors.BrokerRemovedError: "info",
    errors.DeclaredLostError: "info",
    errors.HistoryConflictError: "info",
    errors.BrokerIdInUseError: "info",
    errors.WrongClusterError: "info",
    errors.StaleBrokerError: "info",
    errors.ChainMismatchError: "info",
    # Raised for consumer groups, not for sends.
    errors.NotCoordinatorError: "fail",
    errors.CoordinatorLoadingError: "fail",
    errors.StaleMemberEpochError: "fail",
    errors.InvalidGroupError: "info",
    errors.UnknownGroupError: "info",
    errors.UnknownMemberError: "info",
    errors.FencedMemberError: "info",
    errors.InstanceFencedError: "info",
    errors.PartitionNotOwnedError: "info",
    errors.OffsetMovedError: "info",
    errors.GroupNotEmptyError: "info",
    errors.UnknownAssignorError: "info",
    errors.GroupFullError: "fail",
    errors.InconsistentGroupProtocolError: "info",
    errors.InstanceInUseError: "info",
    errors.RebalanceInProgressError: "fail",
    errors.SessionEndedError: "fail",
    # A failing disk may have stored the data.
    errors.StorageError: "info",
    errors.DataDirectoryError: "info",
    errors.DamagedLogError: "info",
    errors.StorageFailedError: "info",
    errors.DamagedJournalError: "info",
}


def outcome_of(error: RaftlogError) -> Failed:
    """Return the outcome of a send that ended with this error."""
    return next(OUTCOMES[kind] for kind in type(error).__mro__ if kind in OUTCOMES)


def describe(error: RaftlogError) -> str:
    """Return the error as text for the history: its class and the beginning of its message."""
    return f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]


@dataclass(slots=True)
class Process:
    """The process name of a client's operations in the history.

    After an operation with an unknown outcome, the name is *retired*, as in Jepsen: the client
    continues under a new name, so that the checker does not combine the operations of both names.
    """

    client: str
    _names: int = 0

    @property
    def name(self) -> str:
        return f"{self.client}.{self._names}" if self._names else self.client

    def retire(self, name: str) -> None:
        """Change the name, unless ``name`` is already retired: several operations of it can be in
        flight."""
        if name == self.name:
            self._names += 1


@dataclass(frozen=True, slots=True)
class Group:
    """An append in flight. ``parts``: the futures, each with its first value."""

    process: str
    partition: str
    first: int
    count: int
    acks: int
    idempotent: bool
    parts: Sequence[tuple[Awaitable[Outcome], int]]
    error: RaftlogError | None = None  # of the values without a future


@dataclass(slots=True)
class Clients:
    """Shared state of the clients of a run. ``acked``: by partition, the offset after the last
    acknowledged append with acks=all."""

    recorder: Recorder
    acked: dict[str, Offset] = field(default_factory=dict)
    _next_value: int = 1

    def new_values(self, count: int) -> int:
        """Return the first of ``count`` values that no other record of the run has."""
        first, self._next_value = self._next_value, self._next_value + count
        return first

    # -- appends

    async def begin(
        self,
        producer: AnyProducer,
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
        """Queue ``count`` new values, each with ``padding`` bytes, and record the invocation.

        Calls ``send_many``, or ``send`` for each value with ``one_by_one``. A producer sends its
        groups in the order of these calls. ``keys``: number of keys of the partition; 0 for records
        without keys. The caller must pass the result to ``finish``.
        """
        assert count == 1 or count * (padding + RECORD_BYTES) <= GROUP_BYTES_MAX
        first = self.new_values(count)
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
        parts: list[tuple[Awaitable[Outcome], int]] = []
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
        """Wait for the outcome, record it, and return it: ``ok``, ``fail`` or ``info``."""
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
        return self._completed(group, history.places(acknowledged), failures)

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
        consumer: AnyConsumer,
        process: str,
        positions: dict[TopicPartition, Offset],
        *,
        wait_ms: int,
        records_max: int,
        source: Source = "leader",
    ) -> int:
        """Call ``poll`` once, update ``positions``, and return the number of records.

        Records an error of ``poll``, then raises it.
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
            done.records[str(partition)] = list(history.runs(found))
            positions[partition] = found[-1][0] + 1
        self.recorder.record(done)
        return len(records)

    async def ends(
        self, consumer: AnyConsumer, process: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """Return the end offsets of the partitions, from their leaders.

        ``consumer`` must read from leaders: the end offset of a follower can be lower. Records an
        error, then raises it.
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
    """Return the record to send and its other arguments: key and headers if ``count`` is not 0."""
    if not count:
        return history.encode_value(value, padding), {}
    key, record, headers = history.encode(value, padding, count)
    return record, {"key": key, "headers": headers}


def _columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the keys and headers of all records of a group, as ``send_many`` expects them."""
    if not rows[0]:
        return {}
    return {"keys": [r["key"] for r in rows], "headers": [r["headers"] for r in rows]}


def by_partition(
    records: Sequence[ConsumerRecord],
) -> dict[TopicPartition, list[tuple[int, int, int]]]:
    """Return (offset, value, leader epoch) of each record by partition, in the order of the
    poll."""
    decode = history.decode_value
    found: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for record in records:
        name = record.topic, record.partition
        if name not in found:
            found[name] = []
        if record.key is None:
            number = decode(record.value)
        else:
            number = history.decode(record.key, record.value, record.headers)
        found[name].append((record.offset, number, record.leader_epoch))
    return {TopicPartition(*name): rows for name, rows in found.items()}


# -- committing ------------------------------------------------------------------------------------
#
# Recording of committed offsets in the history; see ``client`` for other operations.
#
# Each function calls raftlog's client and records the invocation and the completion. A fetched
# offset must match the metadata that was committed with it. Otherwise it is recorded as an offset
# that was never committed.


NOTHING: Final = -1
MISMATCH: Final = 1 << 40  # added to an offset whose metadata differs; above all existing offsets
# Errors after which certainly no offset was committed: the client or the broker validates the
# request first. Any other error can be that of a retry after an attempt that has committed.
CERTAIN: Final[tuple[type[RaftlogError], ...]] = (
    errors.InvalidGroupError,
    errors.InvalidRequestError,
    errors.UnsupportedFeatureError,
)


def commit_outcome_of(error: RaftlogError) -> Failed:
    """Return the outcome of a commit that ended with this error."""
    return "fail" if isinstance(error, CERTAIN) else "info"


def noted(offsets: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return each offset with the offset as text in its metadata."""
    return {tp: OffsetAndMetadata(offset, str(offset)) for tp, offset in offsets.items()}


async def commit(
    recorder: Recorder,
    consumer: AnyConsumer,
    process: str,
    group: str,
    offsets: Mapping[TopicPartition, Offset],
) -> bool:
    """Commit these offsets and record it. Returns whether they are certainly committed. Raises no
    error of raftlog."""
    named = {str(tp): offset for tp, offset in offsets.items()}
    recorder.record(Commit(time=0, process=process, type="invoke", group=group, offsets=named))
    done = Commit(time=0, process=process, type="ok", group=group, offsets=named)
    try:
        await consumer.commit(noted(offsets))
    except RaftlogError as error:
        done.type, done.error = commit_outcome_of(error), describe(error)
    recorder.record(done)
    return done.type == "ok"


async def committed(
    recorder: Recorder,
    consumer: AnyConsumer,
    process: str,
    group: str,
    partitions: Sequence[TopicPartition],
) -> dict[TopicPartition, Offset] | None:
    """Fetch the committed offsets of the group and record them. Returns None after an error."""
    recorder.record(Committed(time=0, process=process, type="invoke", group=group))
    done = Committed(time=0, process=process, type="ok", group=group)
    try:
        found = await consumer.committed(partitions, metadata=True)
    except RaftlogError as error:
        done.type, done.error = "fail", describe(error)
        recorder.record(done)
        return None
    reported = {tp: offset_of(found.get(tp)) for tp in partitions}
    done.offsets = {str(tp): offset for tp, offset in reported.items()}
    recorder.record(done)
    return reported


def offset_of(found: OffsetAndMetadata | None) -> Offset:
    """Return the reported offset; ``NOTHING`` if no offset is committed.

    Only manual commits have metadata, which contains the offset. Adds ``MISMATCH`` to an offset
    whose metadata differs.
    """
    if found is None:
        return NOTHING
    is_right = found.metadata in {"", str(found.offset)}
    return found.offset if is_right else MISMATCH + found.offset
