"""What ``Admin`` tells of topics and of the cluster: plain values, and how answers become them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raftlog.protocol import cluster as operations
from raftlog.protocol import topics as wire
from raftlog.types import LeaderEpoch, Offset


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition. Broker ids; ``leader`` is None while there is none. Offsets are -1 if unknown.

    ``high_watermark``: the end of what consumers may see; ``log_end_offset``: of what is written.
    Sizes and offsets are the leader's; while that cannot be reached, those of the replica that
    knows most. ``damage``: what is wrong with the stored bytes; empty when nothing is.
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
    """One topic. ``config`` has every key; ``config_overrides`` names those set on the topic.

    ``is_internal``: only the brokers make, write and drop it.
    """

    name: str
    id: str
    config: Mapping[str, str]
    config_overrides: tuple[str, ...]
    partitions: tuple[PartitionDescription, ...]
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class TopicListing:
    """A topic that there is. ``id``: no other topic has it, nor a later one of the same name."""

    name: str
    id: str
    partition_count: int


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """One broker, and where clients reach it.

    ``directory_id``: of its data directory; empty while it is not known. ``fenced``: the cluster
    group counts it as gone. ``live``: it answered; ``problem`` says what happened when it did not.
    ``clock_error_ms``: by how much its wall clock is ahead of the time by which it lets records
    expire (negative: behind); 0 while they differ by a minute or less.
    """

    id: int
    host: str
    port: int
    rack: str | None = None
    directory_id: str = ""
    broker_epoch: int = -1
    fenced: bool = False
    live: bool = True
    problem: str = ""
    clock_error_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """One replica of a partition. What is not known is -1, or None.

    ``lag_ms``: since it had all that the leader has; ``lag_records``: how many it lacks now.
    ``chain``: the chain value at ``log_end_offset``: replicas with the same value at the same
    offset hold the same log. ``damage``: what is wrong with the stored bytes; empty when nothing.
    """

    broker: int
    log_end_offset: Offset
    durable_end_offset: Offset
    lag_records: int
    lag_ms: int
    in_isr: bool
    chain: int | None
    damage: str


@dataclass(frozen=True, slots=True)
class PartitionOverview:
    """One partition, as its leader has it, and each replica's own state beside it.

    ``elr``: brokers that left the in-sync replicas while too few were left, and hold all that is
    committed (KIP-966). ``is_available``: its leader has answered. Offsets are -1 if unknown.
    ``problem``: why a broker could not tell more; empty when nothing is wrong. ``down``: replicas
    whose brokers do not answer. ``unclean_epoch``: the epoch of the last leader with which
    acknowledged records may have been lost, and ``unclean_offset`` where it began; -1: none.
    """

    topic: str
    topic_id: str
    partition: int
    leader: int | None
    leader_epoch: LeaderEpoch
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    witnesses: tuple[int, ...]
    elr: tuple[int, ...]
    min_isr: int
    is_available: bool
    log_start_offset: Offset
    high_watermark: Offset
    replica_states: tuple[ReplicaDescription, ...]
    problem: str
    down: tuple[int, ...] = ()
    unclean_epoch: LeaderEpoch = -1
    unclean_offset: Offset = -1

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is not in sync, or does not answer."""
        return bool(self.down) or len(self.isr) < len(self.replicas)

    @property
    def is_at_min_isr(self) -> bool:
        """Whether a partition with several replicas has no more in sync than writes need."""
        in_sync = set(self.isr) - set(self.down)
        return len(self.replicas) > 1 and len(in_sync) <= self.min_isr


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster, put together from what each of its brokers answered.

    ``controller``: the broker that decides for the cluster; None while there is none.
    """

    cluster_id: str
    brokers: tuple[BrokerDescription, ...]
    controller: int | None = None
    partitions: tuple[PartitionOverview, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaderDescription:
    """Who leads a partition, and in which leader epoch."""

    leader: int
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """What was done about one partition; ``problem`` says why nothing could be.

    ``may_lose``: acknowledged records are lost by it, or may be; ``lost``: so many at least.
    """

    topic: str
    partition: int
    leader: int | None
    log_end_offset: Offset
    note: str
    problem: str
    may_lose: bool = False
    lost: int = 0


@dataclass(frozen=True, slots=True)
class RecoveryDescription:
    """What was done to recover a cluster. Partitions that needed nothing are left out.

    ``needs_loss``: what is left may lack changes of the cluster's own state, and nothing was done.
    """

    partitions: tuple[RecoveredPartition, ...]
    cluster_note: str
    needs_loss: bool = False


def topic_description(topic: wire.TopicDescription) -> TopicDescription:
    return TopicDescription(
        name=topic.name,
        id=topic.id,
        config=dict(topic.config),
        config_overrides=tuple(topic.config_overrides),
        partitions=tuple(_partition_description(part) for part in topic.partitions),
        is_internal=topic.is_internal,
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


def recovery_description(response: operations.RecoverClusterResponse) -> RecoveryDescription:
    return RecoveryDescription(
        tuple(
            RecoveredPartition(
                topic=part.topic,
                partition=part.partition,
                leader=part.leader,
                log_end_offset=part.log_end_offset,
                note=part.note,
                problem="" if part.failure is None else str(part.failure.to_error()),
                may_lose=part.may_lose,
                lost=part.lost,
            )
            for part in response.partitions
        ),
        response.cluster_note,
        response.needs_loss,
    )
