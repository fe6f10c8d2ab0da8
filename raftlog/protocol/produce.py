"""``produce`` and ``init_producer_id``.

A produce request carries at most one batch per partition; the batches' bytes follow the header in
the order of ``partitions``, each ``length`` bytes long. With ``acks=0`` there is no response at
all.
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
    WireEpoch,
    WireOffset,
    WireTimestamp,
)


class ProducePartition(Message):
    """``leader_epoch``: the one that the client knows, to be fenced by; -1 for none."""

    topic: TopicName
    partition: PartitionIndex
    length: ByteCount
    leader_epoch: WireEpoch = -1


class ProduceRequest(Message):
    """``acks``: -1 all (committed), 1 the leader's disk, 0 none (no response)."""

    acks: Literal[-1, 0, 1]
    partitions: Annotated[
        list[ProducePartition], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]


class ProducedPartition(Message):
    """``base_offset``: of the batch's first record. A duplicate is answered with its first offset.

    ``append_timestamp_ms`` is -1 unless the topic stamps records with the leader's time.
    """

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    base_offset: WireOffset = -1
    append_timestamp_ms: WireTimestamp = -1
    log_start_offset: WireOffset = -1


class ProduceResponse(Message):
    partitions: list[ProducedPartition]


class InitProducerIdRequest(Message):
    """Ask for a fresh producer id (epoch 0)."""


class InitProducerIdResponse(Message):
    producer_id: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    producer_epoch: Annotated[int, Meta(ge=0, le=(1 << 15) - 1)]
