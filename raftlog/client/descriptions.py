"""Descriptions of topics and of the cluster that ``Admin`` returns, and their construction."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from raftlog.protocol import cluster as operations
from raftlog.protocol import records as wire
from raftlog.types import LeaderEpoch, Offset, TimestampMs


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition. Brokers are ids; ``leader`` is None without one. Unknown offsets are -1.

    ``high_watermark``: offset after the last committed record; ``log_end_offset``: offset after the
    last written record. Sizes and offsets are the leader's; if it is unreachable, those of the
    replica with the highest high watermark. ``damage``: corruption of the stored bytes; empty
    without any. ``tombstones_removed_below``: offset below which compaction may have removed the
    records that mark keys as deleted. ``clean_end_offset``: below it, only the last record of each
    key is left. ``stable_offset``: end of what readers of committed records get; -1 from earlier
    releases. ``by_leader``: whether sizes and offsets are the leader's.
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
    tombstones_removed_below: Offset = 0
    clean_end_offset: Offset = 0
    stable_offset: Offset = -1
    by_leader: bool = True


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic. ``config`` has every key; ``config_overrides`` names those set on the topic.

    ``is_internal``: True if only brokers create, write and delete it. ``partition_count``: also of
    partitions that were not requested.
    """

    name: str
    id: str
    config: Mapping[str, str]
    config_overrides: tuple[str, ...]
    partitions: tuple[PartitionDescription, ...]
    is_internal: bool = False
    partition_count: int = 0

    @property
    def overrides(self) -> dict[str, str]:
        """Settings that were set on the topic, by key."""
        return {key: self.config[key] for key in self.config_overrides}


@dataclass(frozen=True, slots=True)
class TopicListing:
    """Existing topic. ``id`` is unique: a topic that is created again gets another id."""

    name: str
    id: str
    partition_count: int


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A directory of ``log.dirs`` of a broker. ``free_bytes``, ``size_bytes``: -1 if unknown.

    ``failed``: whether the replicas in it are offline. ``problem``: description for people; empty
    if nothing is wrong.
    """

    path: str
    free_bytes: int
    size_bytes: int
    failed: bool
    problem: str


@dataclass(frozen=True, slots=True)
class DiskDescription:
    """The disk of a broker's data directory. ``free_bytes``: those that the broker can still use.

    ``level``: ``normal``; ``no-producers`` below the first watermark of free space, and
    ``read-only`` below the second one; ``failing`` if writes fail above both. ``reason``:
    description for people; empty if normal.
    """

    free_bytes: int
    size_bytes: int
    level: str
    reason: str
    log_dirs: tuple[LogDirDescription, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDiskUse:
    """Replicas of one topic on one broker.

    ``expired_bytes``: what retention deletes at its next check; ``expiring_bytes``: within 24
    hours, including these. ``retention_ms``, ``retention_bytes``: limits of the topic; -1 for none.
    """

    topic: str
    replicas: int
    size_bytes: int
    expired_bytes: int
    expiring_bytes: int
    retention_ms: int
    retention_bytes: int


@dataclass(frozen=True, slots=True)
class DiskUseDescription:
    """What uses the disk of one broker. ``topics``: the largest first.

    ``disk``: None if it is unknown. ``quarantine_bytes``: corrupt copies that were replaced, and
    are kept for analysis. ``problem``: why the broker did not report; empty if it did.
    """

    broker: int
    disk: DiskDescription | None
    journal_bytes: int = 0
    quarantine_bytes: int = 0
    topics: tuple[TopicDiskUse, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """One broker, and its address for clients.

    ``directory_id``: id of its data directory; empty if unknown. ``fenced``: the cluster group has
    fenced it. ``live``: it responded; otherwise ``problem`` states the reason. ``clock_error_ms``:
    difference between its wall clock and the time by which it expires records (negative: its clock
    is behind); 0 if they differ by a minute or less. ``draining``: it is being decommissioned.
    ``has_vote``: it is a voter of the cluster group. ``disk``: None if it is unknown. ``leads``,
    ``replicas``: numbers of partitions, in a summary only.
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
    draining: bool = False
    has_vote: bool = False
    disk: DiskDescription | None = None
    leads: int | None = None
    replicas: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """One replica of a partition. Unknown values are -1, or None.

    ``lag_ms``: time since it had all records of the leader; ``lag_records``: number of records that
    it lacks now. ``chain``: hash-chain value at ``log_end_offset``. Replicas with the same value at
    the same offset have the same log. ``damage``: corruption of the stored bytes; empty without
    any.
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
    """One partition, as its leader reports it, with the own report of each replica.

    ``elr``: brokers that left the ISR while too few brokers were in it, and that have all committed
    records (KIP-966). ``is_available``: its leader responded. Unknown offsets are -1. ``problem``:
    why a broker could not report more; empty without a problem. ``down``: replicas whose brokers do
    not respond. ``unclean_epoch``: epoch of the last leader whose election may have lost
    acknowledged records, and ``unclean_offset``: its first offset; -1: none. ``target``: replicas
    to which the partition moves; empty without a move in progress.
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
    target: tuple[int, ...] = ()

    @property
    def is_under_replicated(self) -> bool:
        """True if a replica is not in sync, or does not respond."""
        return bool(self.down) or len(self.isr) < len(self.replicas)

    @property
    def is_at_min_isr(self) -> bool:
        """True if several replicas exist but no more than ``min_isr`` are in sync and respond."""
        in_sync = set(self.isr) - set(self.down)
        return len(self.replicas) > 1 and len(in_sync) <= self.min_isr


@dataclass(frozen=True, slots=True)
class CopyVerification:
    """One copy of a partition. The broker has verified it from ``start_offset`` to ``end_offset``.

    ``damage``: corruption that the broker has found at ``end_offset``. ``differs_at``: an offset of
    the first batch that is not that of the reference, which is the leader's copy if that is valid;
    -1 if there is none. ``problem``: why the copy could not be verified or compared. Empty texts
    without any. ``is_partial``: the time limit ended the verification at ``end_offset``.
    """

    broker: int
    start_offset: Offset
    end_offset: Offset
    damage: str = ""
    differs_at: Offset = -1
    problem: str = ""
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class PartitionVerification:
    """Result for one partition: its copies, compared below ``high_watermark``."""

    topic: str
    partition: int
    high_watermark: Offset
    copies: tuple[CopyVerification, ...]

    @property
    def is_bad(self) -> bool:
        """True if a copy is corrupt, or differs from the others."""
        return any(copy.damage or copy.differs_at >= 0 for copy in self.copies)

    @property
    def is_complete(self) -> bool:
        """True if all copies were verified up to the high watermark, and compared."""
        return bool(self.copies) and all(
            not (copy.problem or copy.is_partial) and copy.end_offset >= self.high_watermark
            for copy in self.copies
        )

    @property
    def is_partial(self) -> bool:
        """True if the time limit ended the verification: it can be continued."""
        return any(copy.is_partial for copy in self.copies)


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """The partitions of one topic in numbers. ``available``: those whose leader has responded.

    Of these are ``records``, the offsets in use; ``end``, the sum of the high watermarks;
    ``under_replicated``, those with a replica that is not in sync; ``at_min_isr``; and
    ``size_bytes`` in the leaders, -1 if a broker of an earlier release leads some.
    """

    name: str
    id: str
    partitions: int
    available: int
    records: int
    end: int
    under_replicated: int
    at_min_isr: int
    size_bytes: int = -1

    @property
    def unavailable(self) -> int:
        """The number of partitions without an available leader."""
        return self.partitions - self.available


@dataclass(frozen=True, slots=True)
class PartitionPage:
    """Some partitions of one broker, after the first ``skip`` of ``total``."""

    partitions: tuple[PartitionOverview, ...]
    skip: int
    total: int


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """An idempotent or named producer that has written to a partition in the last seven days.

    ``epoch``: its newest. ``last_sequence``, ``last_offset``: of its last record;
    ``last_timestamp_ms``: time at which the leader appended the batch of this record.
    ``kind``: ``named`` if the id is that of a name, which each run of a job has, else
    ``idempotent``. ``state``: ``committed`` if the in-sync replicas have its last record, else
    ``uncommitted``.
    """

    partition: int
    producer_id: int
    kind: str
    epoch: int
    last_sequence: int
    last_offset: Offset
    last_timestamp_ms: TimestampMs
    state: str


@dataclass(frozen=True, slots=True)
class ProducerPage:
    """Some producers of a topic, after the first ``skip`` of ``total``.

    By partition, and in a partition the one that wrote last first. ``problems``: why the producers
    of a partition are not known, by partition; ``total`` does not count these.
    """

    producers: tuple[ProducerDescription, ...]
    skip: int
    total: int
    problems: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster, merged from the responses of all brokers.

    ``controller``: id of the broker that makes the decisions for the cluster; None without one.
    ``move_throttle``: bytes per second that moves copy to each broker; 0 for no limit.
    ``topics``: in a summary only, else None; ``partitions`` then has some with a problem.
    ``page``: in a summary for which it was requested.
    """

    cluster_id: str
    brokers: tuple[BrokerDescription, ...]
    controller: int | None = None
    partitions: tuple[PartitionOverview, ...] = ()
    move_throttle: int = 0
    topics: tuple[TopicSummary, ...] | None = None
    page: PartitionPage | None = None


@dataclass(frozen=True, slots=True)
class EventDescription:
    """One change of the cluster: an election, a change of an ISR, a broker that joined or failed.

    ``at_ms``: wall-clock time of the first broker that applied the change. ``topic`` and
    ``partition`` are None for an event of a broker. ``broker``: the new leader, or the broker of a
    broker event, else None. ``text``: description for people. ``version``: of the state after the
    change.
    """

    at_ms: TimestampMs
    kind: str
    text: str
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None
    leader_epoch: LeaderEpoch = -1
    version: int = 0


@dataclass(frozen=True, slots=True)
class LeaderDescription:
    """Leader of a partition, and its leader epoch."""

    leader: int
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """Recovery of one partition. ``note``: action; ``problem``: why it could not be recovered.

    ``may_lose``: acknowledged records are lost, or may be; ``lost``: their number, at least.
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
    """Actions of a cluster recovery. Partitions that needed no action are omitted.

    ``needs_loss``: the remaining brokers may lack changes of the cluster state, and nothing was
    done. ``loss_id``: digest of the loss that is left to accept; empty if none is. ``lost``: the
    brokers that have to be declared lost for it. ``refused``: the loss differs from the accepted
    one, or ``lost`` has brokers that were not declared lost, and nothing was done.
    """

    partitions: tuple[RecoveredPartition, ...]
    cluster_note: str
    needs_loss: bool = False
    loss_id: str = ""
    refused: bool = False
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DecommissionProgress:
    """Progress of the removal of a broker from the cluster.

    ``removed``: it is complete. ``partitions``: number of those that the broker still stores or
    votes for. ``has_vote``: it is still a voter of the cluster group. ``waits_for``: why no
    progress is possible now; empty otherwise.
    """

    removed: bool
    partitions: int
    has_vote: bool
    waits_for: str


@dataclass(frozen=True, slots=True)
class FeatureVersions:
    """Versions of one format or protocol: those that a broker reads, and the one that it writes."""

    version_min: int
    version_max: int
    level: int


@dataclass(frozen=True, slots=True)
class BrokerFeatures:
    """Versions that one broker reports.

    ``features``: of formats and of the protocol between brokers. ``apis``: of the requests of
    clients. ``problem``: why there is no report; empty if there is one.
    """

    id: int
    software: str = ""
    problem: str = ""
    features: Mapping[str, FeatureVersions] = field(default_factory=dict)
    apis: Mapping[str, FeatureVersions] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FeatureDescription:
    """One feature in the cluster, by the brokers that responded.

    ``version_min`` to ``version_max``: versions that all of them read (none if the first is
    higher). ``level``: the version that all of them write; None if they differ, or if one of them
    does not have the feature. ``compatible``: those that have it read what the others write.
    """

    name: str
    version_min: int
    version_max: int
    level: int | None
    compatible: bool


@dataclass(frozen=True, slots=True)
class ClusterFeatures:
    """Versions of formats and protocols of all brokers, and what they have in common."""

    brokers: tuple[BrokerFeatures, ...]
    features: tuple[FeatureDescription, ...]
    apis: tuple[FeatureDescription, ...]


@dataclass(frozen=True, slots=True)
class LogLevel:
    """Level of a logger. ``is_own``: it was set for this logger; otherwise, it is inherited."""

    level: str
    is_own: bool


def topic_description(
    topic: wire.TopicDescription, absent: Collection[int] = ()
) -> TopicDescription:
    """``absent``: partitions whose leader has not reported."""
    return TopicDescription(
        name=topic.name,
        id=topic.id,
        config=dict(topic.config),
        config_overrides=tuple(topic.config_overrides),
        partitions=tuple(_partition_description(part, absent) for part in topic.partitions),
        is_internal=topic.is_internal,
        partition_count=topic.partition_count,
    )


def _partition_description(
    part: wire.PartitionDescription, absent: Collection[int] = ()
) -> PartitionDescription:
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
        tombstones_removed_below=part.tombstones_removed_below,
        clean_end_offset=part.clean_end,
        stable_offset=part.stable_offset,
        by_leader=info.partition not in absent,
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
        response.loss_id,
        response.refused,
        tuple(response.lost),
    )
