"""The history of clients: every operation with the times of its start and its end.

The terms are those of Jepsen. An operation ends ``ok`` (acknowledged), ``fail`` (certainly without
effect) or ``info`` (unknown outcome); one that never ended is ``info``. Times are virtual
nanoseconds of the simulation, independent of the machines' clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from raftlog.types import NO_TIMESTAMP, LeaderEpoch, Offset, TimestampMs, TopicPartition

T = TypeVar("T", bound="AnyOperation")

NEVER_NS: Final = 1 << 62


class Violation(NamedTuple):
    """An anomaly of a run: its kind, and where it is."""

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class Outcome(StrEnum):
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Seen(NamedTuple):
    """A record that a reader received. ``value`` identifies its send."""

    offset: Offset
    value: str
    epoch: LeaderEpoch


@dataclass(slots=True, kw_only=True)
class Operation:
    """``process``: the client. A consumer takes a new name whenever it changes its position."""

    process: str
    invoked_ns: int
    completed_ns: int = NEVER_NS
    outcome: Outcome = Outcome.INFO
    error: str = ""

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a JSON line."""
        return {"f": type(self).__name__.lower()} | {
            part.name: getattr(self, part.name) for part in fields(self)
        }


@dataclass(slots=True, kw_only=True)
class Send(Operation):
    """A send. ``value`` is unique: it identifies the record, also a tombstone, which has no value.
    ``key``: empty for a record without a key. ``offset``: its offset, if ok; -1 with ``acks`` 0.
    ``timestamp_ms``: its timestamp in the log, if known.
    """

    partition: TopicPartition
    value: str
    key: str = ""
    is_tombstone: bool = False
    acks: int = -1
    idempotent: bool = True
    offset: Offset = -1
    timestamp_ms: TimestampMs = NO_TIMESTAMP


@dataclass(slots=True, kw_only=True)
class Poll(Operation):
    """The result of one call, by partition, in the order of delivery.

    ``resets_to_latest``: a consumer whose next record was deleted continues at the log end.
    ``topic_ids``: of a member of the consumer group, by partition of ``records``.
    """

    resets_to_latest: bool = False
    records: dict[TopicPartition, list[Seen]] = field(default_factory=dict)
    topic_ids: dict[TopicPartition, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class EndOffsets(Operation):
    """End offsets for consumers."""

    ends: dict[TopicPartition, Offset] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class StartOffsets(Operation):
    """Log start offsets of partitions."""

    starts: dict[TopicPartition, Offset] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class TimeLookup(Operation):
    """The first record at or after ``timestamp_ms``, which is the timestamp of an acknowledged
    record at offset ``known``. ``found``: its offset; -1 for none.
    """

    partition: TopicPartition
    timestamp_ms: TimestampMs
    known: Offset
    found: Offset = -1


@dataclass(slots=True, kw_only=True)
class Deletion(Operation):
    """An attempt to delete the records below ``before``. ``start``: log start offset afterwards."""

    partition: TopicPartition
    before: Offset
    start: Offset = -1


@dataclass(slots=True, kw_only=True)
class Commit(Operation):
    """A member of the consumer group commits these offsets, of topics with these IDs."""

    offsets: dict[TopicPartition, Offset]
    topic_ids: dict[TopicPartition, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Committed(Operation):
    """Reported committed offsets of the consumer group; none for missing partitions."""

    offsets: dict[TopicPartition, Offset] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Owning(Operation):
    """A group member owns a partition: from the callback that assigns it until the callback that
    revokes it, or until the member ends. ``topic_id``: of the partition's topic.
    """

    partition: TopicPartition
    topic_id: str = ""


@dataclass(slots=True, kw_only=True)
class Recreation(Operation):
    """The topic is deleted, and another one with its name is created."""


@dataclass(slots=True, kw_only=True)
class Other(Operation):
    """An operation that is only counted."""

    what: str


AnyOperation: TypeAlias = (
    Send
    | Poll
    | EndOffsets
    | StartOffsets
    | TimeLookup
    | Deletion
    | Commit
    | Committed
    | Owning
    | Recreation
    | Other
)


class History:
    """Operations, in the order of their invocations."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.operations: list[AnyOperation] = []
        self.on_begin: Callable[[Operation], None] | None = None  # called for every invocation
        self.on_end: Callable[[Operation], None] | None = None  # called for every completion
        self._now_ns = now_ns

    def __iter__(self) -> Iterator[AnyOperation]:
        return iter(self.operations)

    # -- recording

    def send(
        self,
        process: str,
        partition: TopicPartition,
        value: str,
        *,
        acks: int,
        idempotent: bool,
        key: str = "",
        is_tombstone: bool = False,
    ) -> Send:
        return self._begin(
            Send(
                process=process,
                invoked_ns=self._now_ns(),
                partition=partition,
                value=value,
                key=key,
                is_tombstone=is_tombstone,
                acks=acks,
                idempotent=idempotent,
            )
        )

    def poll(self, process: str, *, resets_to_latest: bool = False) -> Poll:
        return self._begin(
            Poll(process=process, invoked_ns=self._now_ns(), resets_to_latest=resets_to_latest)
        )

    def end_offsets(self, process: str) -> EndOffsets:
        return self._begin(EndOffsets(process=process, invoked_ns=self._now_ns()))

    def start_offsets(self, process: str) -> StartOffsets:
        return self._begin(StartOffsets(process=process, invoked_ns=self._now_ns()))

    def time_lookup(
        self, process: str, partition: TopicPartition, timestamp_ms: TimestampMs, known: Offset
    ) -> TimeLookup:
        return self._begin(
            TimeLookup(
                process=process,
                invoked_ns=self._now_ns(),
                partition=partition,
                timestamp_ms=timestamp_ms,
                known=known,
            )
        )

    def deletion(self, process: str, partition: TopicPartition, before: Offset) -> Deletion:
        return self._begin(
            Deletion(process=process, invoked_ns=self._now_ns(), partition=partition, before=before)
        )

    def commit(
        self,
        process: str,
        offsets: Mapping[TopicPartition, Offset],
        topic_ids: Mapping[TopicPartition, str] = MappingProxyType({}),
    ) -> Commit:
        return self._begin(
            Commit(
                process=process,
                invoked_ns=self._now_ns(),
                offsets=dict(offsets),
                topic_ids=dict(topic_ids),
            )
        )

    def committed(self, process: str) -> Committed:
        return self._begin(Committed(process=process, invoked_ns=self._now_ns()))

    def owning(self, process: str, partition: TopicPartition, topic_id: str = "") -> Owning:
        return self._begin(
            Owning(
                process=process,
                invoked_ns=self._now_ns(),
                partition=partition,
                topic_id=topic_id,
            )
        )

    def recreation(self, process: str) -> Recreation:
        return self._begin(Recreation(process=process, invoked_ns=self._now_ns()))

    def other(self, process: str, what: str) -> Other:
        return self._begin(Other(process=process, invoked_ns=self._now_ns(), what=what))

    def _begin(self, operation: T) -> T:
        self.operations.append(operation)
        if self.on_begin is not None:
            self.on_begin(operation)
        return operation

    def end(self, operation: Operation, outcome: Outcome, error: object = "") -> None:
        """Record the end of an operation, at the current time."""
        operation.completed_ns = self._now_ns()
        operation.outcome = outcome
        operation.error = str(error)
        if self.on_end is not None:
            self.on_end(operation)

    # -- looking at it

    @property
    def sends(self) -> list[Send]:
        return [operation for operation in self.operations if isinstance(operation, Send)]

    def counts(self) -> dict[str, int]:
        """Return the number of operations by kind and outcome, such as ``"send ok"``."""
        found: dict[str, int] = {}
        for operation in self.operations:
            what = operation.what if isinstance(operation, Other) else type(operation).__name__
            key = f"{what.lower()} {operation.outcome}"
            found[key] = found.get(key, 0) + 1
        return dict(sorted(found.items()))
