"""``produce``, ``init_producer_id``, ``describe_producers`` and ``list_producers``.

A produce request contains at most one batch per partition. The bytes of the batches follow the
header in the order of ``partitions``, each ``length`` bytes long. With ``acks=0``, the broker sends
no response.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.schema import (
    ByteCount,
    Failure,
    Message,
    NodeId,
    PartitionIndex,
    TopicName,
    WaitMs,
    WireEpoch,
    WireOffset,
    WireTimestamp,
)

ProducerId = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class ProducePartition(Message):
    """Batch of one partition. ``leader_epoch``: the client's known epoch, for fencing, or -1.

    ``base_offset``: -1, or the offset of the first record, from a mirror. The leader then appends
    the batch at this offset or rejects it, and accepts a batch with gaps in its offsets.
    """

    topic: TopicName
    partition: PartitionIndex
    length: ByteCount
    leader_epoch: WireEpoch = -1
    base_offset: WireOffset = -1


class ProduceRequest(Message):
    """Append batches. ``acks``: -1 all (committed), 1 the leader's disk, 0 none (no response).

    ``producer``: name of a named producer, to which the producer ID of the batches belongs. Access
    rules for the name apply. ``traced``: respond with the ``times`` of each batch.
    """

    acks: Literal[-1, 0, 1]
    partitions: Annotated[
        list[ProducePartition], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]
    producer: Annotated[str, Meta(max_length=limits.PRODUCER_NAME_CHARS_MAX)] = ""
    traced: bool = False


_Microseconds = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class ProduceTimes(Message):
    """Progress of a batch on its leader, in microseconds since the leader began with the request.

    ``appended``: it was in the log. ``synced``: it was on the leader's disk. ``done``: it was as
    durable as ``acks`` requires; with ``acks=-1``, on the disks of all in-sync replicas. ``last``:
    with ``acks=-1``, the broker whose disk was the last of them.
    """

    appended: _Microseconds
    synced: _Microseconds
    done: _Microseconds
    last: NodeId | None = None


class ProducedPartition(Message):
    """Result for one partition.

    ``base_offset``: offset of the batch's first record; for a duplicate, its original offset.
    ``append_timestamp_ms``: -1 unless the topic uses the leader's time as the timestamp. ``times``:
    of a ``traced`` request, if the batch is stored. ``topic_id``: with ``UnknownProducerError``,
    the ID of the topic that does not know the producer; empty from an earlier release.
    """

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    base_offset: WireOffset = -1
    append_timestamp_ms: WireTimestamp = -1
    log_start_offset: WireOffset = -1
    times: ProduceTimes | None = None
    topic_id: Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)] = ""


class ProduceResponse(Message):
    """Results of all partitions. ``throttle_ms``: for so long, the broker reads no request from
    this connection, because the client has used more than its quota. The client waits as well.
    """

    partitions: list[ProducedPartition]
    throttle_ms: WaitMs = 0


class InitProducerIdRequest(Message):
    """Request a new producer ID (epoch 0)."""


class InitProducerIdResponse(Message):
    producer_id: ProducerId
    producer_epoch: Annotated[int, Meta(ge=0, le=(1 << 15) - 1)]


class ProducersQuery(Message):
    """Query for the producer state in a partition's log. ``leader_epoch``: as in ``produce``.

    ``family_bits``: the response also has every producer whose ID differs from one of
    ``producer_ids`` in its lowest ``family_bits`` only, as ``Siblings``. 0: none.
    """

    topic: TopicName
    partition: PartitionIndex
    producer_ids: Annotated[
        list[ProducerId], Meta(min_length=1, max_length=limits.PRODUCERS_PER_REQUEST_MAX)
    ]
    leader_epoch: WireEpoch = -1
    family_bits: Annotated[int, Meta(ge=0, le=62)] = 0


class DescribeProducersRequest(Message):
    """Query producer states: at most ``PRODUCERS_PER_REQUEST_MAX`` IDs in all partitions."""

    partitions: Annotated[
        list[ProducersQuery], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]


class DescribedProducer(Message):
    """Last batch of a producer in a partition. All four values are -1 if it is unknown.

    ``last_sequence``: sequence of the batch's last record. ``last_offset``: offset of that record.
    ``first_offset``: lower bound of the offsets of this producer and epoch.
    """

    producer_id: ProducerId
    producer_epoch: Annotated[int, Meta(ge=-1, le=(1 << 15) - 1)] = -1
    last_sequence: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] = -1
    last_offset: WireOffset = -1
    first_offset: WireOffset = -1


class DescribedProducers(Message):
    """Producer states of one partition, in the requested order. They cover committed records.

    ``siblings``: other producers of the families; None: the broker does not know ``family_bits``.
    """

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    producers: list[DescribedProducer] = []
    siblings: list[DescribedProducer] | None = None


class DescribeProducersResponse(Message):
    partitions: list[DescribedProducers]


class ListedPartition(Message):
    """Producers to list of one partition: ``limit`` of them after the first ``skip``.

    ``leader_epoch``: as in ``produce``.
    """

    topic: TopicName
    partition: PartitionIndex
    skip: Annotated[int, Meta(ge=0, le=limits.PRODUCERS_PER_PARTITION_MAX)] = 0
    limit: Annotated[int, Meta(ge=0, le=limits.LISTED_PRODUCERS_MAX)] = 0
    leader_epoch: WireEpoch = -1


class ListProducersRequest(Message):
    """List the producers that the leader knows: ``LISTED_PRODUCERS_MAX`` in all partitions."""

    partitions: Annotated[
        list[ListedPartition], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]


class ListedProducer(Message):
    """Producer with its newest batch. ``last_sequence``, ``last_offset``: of the last record.

    ``last_timestamp_ms``: time at which the leader appended the batch.
    """

    producer_id: ProducerId
    producer_epoch: Annotated[int, Meta(ge=0, le=(1 << 15) - 1)]
    last_sequence: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
    last_offset: WireOffset
    last_timestamp_ms: WireTimestamp


class ListedProducers(Message):
    """Producers of one partition, the one that wrote last first, and their ``total`` number.

    Records at and above ``high_watermark`` are not committed.
    """

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    total: Annotated[int, Meta(ge=0)] = 0
    high_watermark: WireOffset = -1
    producers: list[ListedProducer] = []


class ListProducersResponse(Message):
    """Results, in the order of the request."""

    partitions: list[ListedProducers]
