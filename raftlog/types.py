"""The nouns that every layer shares. Plain values only: no behaviour beyond validation, no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from raftlog import limits
from raftlog.errors import InvalidTopicError

Buffer: TypeAlias = bytes | bytearray | memoryview
Offset: TypeAlias = int  # of a record in its partition, from 0
LeaderEpoch: TypeAlias = int  # grows by one at every election of the partition
TimestampMs: TypeAlias = int  # milliseconds since 1970-01-01T00:00Z
Header: TypeAlias = tuple[str, bytes | None]
Headers: TypeAlias = tuple[Header, ...]

NO_TIMESTAMP: Final[TimestampMs] = -1
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1

_TOPIC_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{limits.TOPIC_NAME_CHARS_MAX}}}")


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class RecordMetadata(NamedTuple):
    """Where an acknowledged record is. ``offset`` is -1 with ``acks=0``."""

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


class ConsumerRecord(NamedTuple):
    """One record as a consumer sees it."""

    topic: str
    partition: int
    offset: Offset
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: TimestampMs
    leader_epoch: LeaderEpoch


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time."""

    offset: Offset
    timestamp_ms: TimestampMs


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. ``config`` holds Kafka-named keys as text, such as ``retention.ms``.

    ``replication_factor`` 0: the cluster's default (``default.replication.factor``, else 3, or as
    many as there are brokers).
    """

    name: str
    partitions: int = 1
    replication_factor: int = 0
    config: Mapping[str, str] = field(default_factory=dict)


def check_topic_name(name: str) -> str:
    """``name`` if it is a legal topic name (Kafka's rule), else raise ``InvalidTopicError``."""
    if name in {".", ".."} or not _TOPIC_NAME.fullmatch(name):
        raise InvalidTopicError(
            f"{name[:300]!r} is not a topic name: use 1 to {limits.TOPIC_NAME_CHARS_MAX} of the "
            "characters a-z A-Z 0-9 . _ - (and not '.' or '..' alone)"
        )
    return name
