"""``fetch`` and ``list_offsets``.

A fetch answers at once when ``bytes_min`` bytes are there, else when they are or ``wait_ms_max``
has passed. Batches are never split: an answer holds whole batches from the one that contains
``offset`` on, at least one where there is one, whatever the byte limits say. Their bytes follow the
header in the order of ``partitions``, each ``length`` bytes long.

``leader_epoch`` in a request is the one that the client knows, -1 for none. A broker that knows a
newer one answers ``FencedLeaderEpochError``, one that knows an older ``UnknownLeaderEpochError``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.schema import (
    ByteCount,
    Failure,
    Message,
    PartitionIndex,
    TopicName,
    WaitMs,
    WireEpoch,
    WireOffset,
    WireTimestamp,
)


class FetchPartition(Message):
    """``doubtful``: what the client got from ``offset`` on was damaged when it came.

    The broker then verifies what it has there before it reads it, for it may be its disk.
    ``topic_id``: of the topic that the offset is of; another one may have its name by now. "" is
    any.
    """

    topic: TopicName
    partition: PartitionIndex
    offset: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    bytes_max: ByteCount = limits.MIB
    leader_epoch: WireEpoch = -1
    doubtful: bool = False
    topic_id: Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)] = ""


class FetchRequest(Message):
    """``replica_ok``: any in-sync replica may answer, with what it knows to be committed."""

    partitions: Annotated[
        list[FetchPartition], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]
    wait_ms_max: WaitMs = 500
    bytes_min: ByteCount = 1
    bytes_max: ByteCount = limits.FETCH_BYTES_MAX
    replica_ok: bool = False


class FetchedPartition(Message):
    """``high_watermark``: the end of what is committed, and so of what a consumer may see."""

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    high_watermark: WireOffset = -1
    log_start_offset: WireOffset = -1
    length: ByteCount = 0


class FetchResponse(Message):
    """Partitions with nothing new and no failure may be left out."""

    partitions: list[FetchedPartition]


class OffsetQuery(Message):
    """``at``: ``earliest``, ``latest``, or a time in ms: the first record at or after it."""

    topic: TopicName
    partition: PartitionIndex
    at: Literal["earliest", "latest"] | Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    leader_epoch: WireEpoch = -1


class ListOffsetsRequest(Message):
    queries: Annotated[
        list[OffsetQuery], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]


class OffsetAnswer(Message):
    """``offset`` is -1 when no record is at or after the time asked for."""

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    offset: WireOffset = -1
    timestamp_ms: WireTimestamp = -1
    leader_epoch: WireEpoch = -1


class ListOffsetsResponse(Message):
    answers: list[OffsetAnswer]
