"""``produce``, ``init_producer_id`` and ``describe_producers``.

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

ProducerId = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


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
    producer_id: ProducerId
    producer_epoch: Annotated[int, Meta(ge=0, le=(1 << 15) - 1)]


class ProducersQuery(Message):
    """What a partition's log has of these producers. ``leader_epoch`` as in ``produce``."""

    topic: TopicName
    partition: PartitionIndex
    producer_ids: Annotated[
        list[ProducerId], Meta(min_length=1, max_length=limits.PRODUCERS_PER_REQUEST_MAX)
    ]
    leader_epoch: WireEpoch = -1


class DescribeProducersRequest(Message):
    """Of all its partitions together: at most ``PRODUCERS_PER_REQUEST_MAX`` producer ids."""

    partitions: Annotated[
        list[ProducersQuery], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]


class DescribedProducer(Message):
    """What a producer last wrote to a partition; -1 in all four if nothing is known of it.

    ``last_sequence``: of the last record of the batch; ``last_offset``: where that one is stored.
    ``first_offset``: no stored record of this producer and epoch is below it.
    """

    producer_id: ProducerId
    producer_epoch: Annotated[int, Meta(ge=-1, le=(1 << 15) - 1)] = -1
    last_sequence: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] = -1
    last_offset: WireOffset = -1
    first_offset: WireOffset = -1


class DescribedProducers(Message):
    """One partition's answer: its producers in the order asked for. All it says is committed."""

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    producers: list[DescribedProducer] = []


class DescribeProducersResponse(Message):
    partitions: list[DescribedProducers]
