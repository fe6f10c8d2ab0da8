"""What ``Admin`` tells of topics and of the cluster: plain values, and how answers become them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raftlog.protocol import topics as wire
from raftlog.protocol.metadata import MetadataResponse
from raftlog.types import LeaderEpoch, Offset


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition. Broker ids; ``leader`` is None while there is none. Offsets are -1 if unknown.

    ``high_watermark``: the end of what consumers may see; ``log_end_offset``: of what is written.
    ``damage``: what is wrong with the stored bytes; empty when nothing is.
    """

    partition: int
    leader: int | None
    leader_epoch: LeaderEpoch
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    witnesses: tuple[int, ...]
    log_start_offset: Offset
    high_watermark: Offset
    log_end_offset: Offset
    size_bytes: int
    damage: str


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic. ``config`` has every key; ``config_overrides`` names those set on the topic."""

    name: str
    id: str
    config: Mapping[str, str]
    config_overrides: tuple[str, ...]
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """One broker, and where clients reach it."""

    id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster, as one of its brokers sees it."""

    cluster_id: str
    brokers: tuple[BrokerDescription, ...]


def topic_description(topic: wire.TopicDescription) -> TopicDescription:
    return TopicDescription(
        name=topic.name,
        id=topic.id,
        config=dict(topic.config),
        config_overrides=tuple(topic.config_overrides),
        partitions=tuple(_partition_description(part) for part in topic.partitions),
    )


def _partition_description(part: wire.PartitionDescription) -> PartitionDescription:
    info = part.info
    return PartitionDescription(
        partition=info.partition,
        leader=info.leader,
        leader_epoch=info.leader_epoch,
        replicas=tuple(info.replicas),
        isr=tuple(info.isr),
        witnesses=tuple(info.witnesses),
        log_start_offset=part.log_start_offset,
        high_watermark=part.high_watermark,
        log_end_offset=part.log_end_offset,
        size_bytes=part.size_bytes,
        damage=part.damage,
    )


def cluster_description(response: MetadataResponse) -> ClusterDescription:
    return ClusterDescription(
        response.cluster_id,
        tuple(
            BrokerDescription(broker.id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
        ),
    )
