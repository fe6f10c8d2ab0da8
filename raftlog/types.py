"""Value types that all layers share. Only validation, no I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, TypeAlias

import msgspec

from raftlog import limits
from raftlog.errors import InvalidGroupError, InvalidTopicError
from raftlog.kafka_names import answers_kafka_names

Buffer: TypeAlias = bytes | bytearray | memoryview
Offset: TypeAlias = int  # of a record in its partition, from 0
LeaderEpoch: TypeAlias = int  # incremented at every leader election of the partition
TimestampMs: TypeAlias = int  # milliseconds since 1970-01-01T00:00Z
Header: TypeAlias = tuple[str, bytes | None]
Headers: TypeAlias = tuple[Header, ...]

# Result types of a consumer's key_deserializer and value_deserializer; without them, bytes.
# Type checkers support the default of a type variable (PEP 696); Python does from 3.13 on.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=bytes)
    V = TypeVar("V", default=bytes)
else:
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

NO_TIMESTAMP: Final[TimestampMs] = -1
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final[LeaderEpoch] = -1
NO_BASE_OFFSET: Final = -1  # of a batch without a required base offset
AUDIT_TOPIC: Final = "__audit"  # authentication failures, denials and administrative requests
OFFSETS_TOPIC: Final = "__consumer_offsets"  # state of the consumer groups
SCHEMAS_TOPIC: Final = "__schemas"  # state of the schema registry
TRANSACTIONS_TOPIC: Final = "__transaction_state"  # state of the transactions
# What a reader gets: the records of committed transactions, or all. "": the client does not know
# transactions; it gets all records, and no marker.
Isolation: TypeAlias = Literal["", "committed", "uncommitted"]
COMMITTED: Final = "committed"

# Only brokers create, write and delete these topics. Raftlog does not have the last one yet; tools
# of Kafka expect its name to be internal. Other names with two underscores belong to users.
INTERNAL_TOPICS: Final = frozenset(
    (OFFSETS_TOPIC, AUDIT_TOPIC, SCHEMAS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state")
)
INTERNAL_TOPIC_PREFIX: Final = "__raftlog"  # of later internal topics

_TOPIC_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{limits.TOPIC_NAME_CHARS_MAX}}}")


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class RecordMetadata(NamedTuple):
    """Partition and offset of an acknowledged record. ``offset`` is -1 with ``acks=0``."""

    topic: str
    partition: int
    offset: Offset
    timestamp_ms: TimestampMs


class OffsetRange(NamedTuple):
    """Consecutive records of one acknowledged batch, from offset ``first`` to ``last``."""

    topic: str
    partition: int
    first: Offset
    last: Offset


class ConsumerRecord(msgspec.Struct, Generic[K, V], frozen=True, gc=False):
    """One record as a consumer returns it. Immutable; equal to a record with equal fields.

    The garbage collector does not track records: a deserialised value that refers back to its own
    record is never freed. A record is not a tuple; ``as_tuple`` returns one.
    """

    topic: str
    partition: int
    offset: Offset
    key: K | None
    value: V | None
    headers: Headers
    timestamp_ms: TimestampMs
    leader_epoch: LeaderEpoch

    def as_tuple(
        self,
    ) -> tuple[str, int, Offset, K | None, V | None, Headers, TimestampMs, LeaderEpoch]:
        """Return the fields as a tuple, in declaration order."""
        return msgspec.structs.astuple(self)


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time."""

    offset: Offset
    timestamp_ms: TimestampMs


class OffsetAndMetadata(NamedTuple):
    """Committed offset of a consumer group in a partition, from which it continues, and metadata.

    ``metadata``: up to 4,096 characters, for the application. ``leader_epoch``: of the last record
    that was read; -1 if it is not known.
    """

    offset: Offset
    metadata: str = ""
    leader_epoch: LeaderEpoch = -1


class GroupMetadata(NamedTuple):
    """A consumer as a member of its group. ``member_epoch`` is 0 while it is not a member."""

    group: str
    member_id: str
    member_epoch: int
    instance_id: str | None


# Called with the partitions that were assigned to a consumer, or revoked from it. With
# ``raftlog.aio`` it can be a coroutine function.
RebalanceListener: TypeAlias = Callable[[list[TopicPartition]], object]


@answers_kafka_names
@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. ``config``: settings as text by Kafka's names, such as ``retention.ms``.

    ``replication_factor`` 0: the cluster's default (``default.replication.factor``, else 3, or the
    number of brokers if there are fewer).
    """

    name: str
    partitions: int = 1
    replication_factor: int = 0
    config: Mapping[str, str] = field(default_factory=dict)


def check_topic_name(name: str) -> str:
    """Return ``name`` if it is a valid topic name (Kafka's rule). Raises ``InvalidTopicError``."""
    if name in {".", ".."} or not _TOPIC_NAME.fullmatch(name):
        raise InvalidTopicError(
            f"{name[:300]!r} is not a topic name: use 1 to {limits.TOPIC_NAME_CHARS_MAX} of the "
            "characters a-z A-Z 0-9 . _ - (and not '.' or '..' alone)"
        )
    return name


def is_internal_topic(name: str) -> bool:
    """Return whether only brokers create, write and delete the topic. Clients can read it."""
    return name in INTERNAL_TOPICS or name.startswith(INTERNAL_TOPIC_PREFIX)


def check_group_id(name: str) -> str:
    """Return ``name`` if it is a valid group name, else raise ``InvalidGroupError``."""
    return _check_name(name, "a consumer group", limits.GROUP_ID_CHARS_MAX)


def check_instance_id(name: str) -> str:
    """Return ``name`` if it is a valid ``group.instance.id``, else raise ``InvalidGroupError``."""
    return _check_name(name, "a group instance", limits.INSTANCE_ID_CHARS_MAX)


def _check_name(name: str, whose: str, chars_max: int) -> str:
    """Require 1 to ``chars_max`` printable characters without (invisible) spaces at the ends."""
    if not (0 < len(name) <= chars_max and name.isprintable() and name.strip() == name):
        shown = repr(name) if len(name) <= chars_max else f"{name[:60]!r}... ({len(name)})"
        raise InvalidGroupError(
            f"{shown} is not a name of {whose}: use 1 to {chars_max} printable characters, without "
            "spaces at either end"
        )
    return name


def check_not_internal(name: str) -> None:
    """Raise ``InvalidTopicError`` for a topic that clients must not create, write or change."""
    if is_internal_topic(name):
        raise InvalidTopicError(
            f"{name[:300]!r} is internal: only brokers create, write and delete this topic. Use "
            "another name"
        )
