"""``fetch`` and ``list_offsets``.

The broker responds to a fetch when ``bytes_min`` bytes are available, or after ``wait_ms_max`` ms.
Batches are never split. A response contains complete batches, starting with the one that contains
``offset``. It contains at least one batch if one exists, also if that exceeds the byte limits. The
bytes follow the header in the order of ``partitions``, each ``length`` bytes long.

``leader_epoch`` in a request is the client's known epoch, or -1. A broker with a newer epoch
responds with ``FencedLeaderEpochError``, one with an older epoch with ``UnknownLeaderEpochError``.
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
    """Position to fetch from. ``bytes_max``: default 1 MiB.

    ``doubtful``: the client received corrupt bytes at ``offset``. The broker then verifies its
    stored batches before it reads them. ``topic_id``: ID of the topic that ``offset`` belongs to,
    because a recreated topic can have the same name; "" matches any topic.
    """

    topic: TopicName
    partition: PartitionIndex
    offset: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    bytes_max: ByteCount = limits.MIB
    leader_epoch: WireEpoch = -1
    doubtful: bool = False
    topic_id: Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)] = ""


class FetchRequest(Message):
    """Fetch records. ``replica_ok``: any in-sync replica can respond, with committed records."""

    partitions: Annotated[
        list[FetchPartition], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]
    wait_ms_max: WaitMs = 500
    bytes_min: ByteCount = 1
    bytes_max: ByteCount = limits.FETCH_BYTES_MAX
    replica_ok: bool = False


class FetchedPartition(Message):
    """Fetched batches of a partition. ``high_watermark``: end offset of the committed records."""

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    high_watermark: WireOffset = -1
    log_start_offset: WireOffset = -1
    length: ByteCount = 0


class FetchResponse(Message):
    """Response to a fetch. It can omit partitions without new records and failures.

    ``throttle_ms``: as in ``ProduceResponse``.
    """

    partitions: list[FetchedPartition]
    throttle_ms: WaitMs = 0


class OffsetQuery(Message):
    """Look up one offset.

    ``at``: ``earliest``, ``latest``, or a timestamp in ms (the first record at or after it).
    """

    topic: TopicName
    partition: PartitionIndex
    at: Literal["earliest", "latest"] | Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    leader_epoch: WireEpoch = -1


class ListOffsetsRequest(Message):
    queries: Annotated[
        list[OffsetQuery], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]


class OffsetAnswer(Message):
    """Result of a lookup. ``offset`` is -1 if no record is at or after the timestamp."""

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    offset: WireOffset = -1
    timestamp_ms: WireTimestamp = -1
    leader_epoch: WireEpoch = -1


class ListOffsetsResponse(Message):
    answers: list[OffsetAnswer]
