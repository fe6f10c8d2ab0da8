"""Descriptions of a broker's partitions and disks, for operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from raftlog import limits
from raftlog.config.keys import DAY_MS
from raftlog.protocol.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DiskStatus,
    DiskUse,
    LogDirStatus,
    PartitionStatus,
    ReplicaStatus,
    TopicDiskUse,
    TopicSummary,
)
from raftlog.protocol.schema import numbers_of
from raftlog.server.clock import BrokerClock
from raftlog.server.disks import DiskSpace
from raftlog.server.partition import Partition
from raftlog.server.topic_table import HostedTopic, LogDirMonitor, TopicTable
from raftlog.types import LeaderEpoch, Offset

DESCRIBED_PER_STEP: Final = 20  # partitions per step
SUMMARIZED_PER_STEP: Final = 200  # the same, of a summary
DESCRIPTION_COST: Final = SUMMARIZED_PER_STEP // DESCRIBED_PER_STEP  # in summarized partitions
# Yields where other requests may run first (``turns``).
Describing: TypeAlias = Generator[None, Any, DescribeClusterResponse]


class Quorum(NamedTuple):
    """The voters of the cluster's state: (broker, directory id, index of its last entry).

    An index is -1 for a voter that does not respond. ``observers``: the brokers without a vote.
    """

    leader: int | None
    term: int
    commit_index: int
    voters: list[tuple[int, bytes, int]]
    observers: list[int]


def disk_status(space: DiskSpace, log_dirs: LogDirMonitor) -> DiskStatus:
    return DiskStatus(
        log_dirs=[
            LogDirStatus(
                path=log_dir.path[: limits.ERROR_MESSAGE_CHARS_MAX],
                free_bytes=log_dirs.space(log_dir).free_bytes,
                size_bytes=log_dirs.space(log_dir).size_bytes,
                failed=bool(log_dir.failure),
                problem=log_dirs.problem(log_dir)[: limits.ERROR_MESSAGE_CHARS_MAX],
            )
            for log_dir in log_dirs.log_dirs
        ],
        free_bytes=space.free_bytes,
        size_bytes=space.size_bytes,
        level=space.state,
        reason=space.reason,
    )


def describe_disk(
    topics: TopicTable,
    request: DescribeClusterRequest,
    clock: BrokerClock,
    *,
    quarantine_bytes: int,
    journal_bytes: int = 0,
) -> Generator[None, Any, DiskUse | None]:
    """Return what uses the disk of this broker, if requested; a few partitions in each step."""
    if not request.include_disk:
        return None
    now_ms = clock.deletion_ms()
    found: list[TopicDiskUse] = []
    visited = 0
    for topic in tuple(topics):
        hosts = [host for host in topic.hosts if host is not None and host.closed is None]
        expired = expiring = size = 0
        for host in hosts:
            visited += 1
            if visited % DESCRIBED_PER_STEP == 0:
                yield None
            log, committed = host.log, host.high_watermark
            size += log.size_bytes
            expired += log.expired_bytes(now_ms=now_ms, high_watermark=committed)
            in_a_day = None if now_ms is None else now_ms + DAY_MS
            expiring += log.expired_bytes(now_ms=in_a_day, high_watermark=committed)
        if hosts:
            config = hosts[0].log.config
            is_limited = config.is_deleted_by_age
            use = TopicDiskUse(
                topic=topic.name,
                replicas=len(hosts),
                size_bytes=size,
                expired_bytes=expired,
                expiring_bytes=expiring,
                retention_ms=config.retention_ms if is_limited else -1,
                retention_bytes=config.retention_bytes if is_limited else -1,
            )
            found.append(use)
    return DiskUse(journal_bytes=journal_bytes, quarantine_bytes=quarantine_bytes, topics=found)


Target: TypeAlias = Callable[[str, int], list[int]]  # of ``Operations.target``


def describe_partitions(
    topics: TopicTable,
    request: DescribeClusterRequest,
    broker_id: int,
    now: float,
    target: Target,
) -> Generator[None, Any, list[PartitionStatus]]:
    """Return the requested partitions, as this broker knows them; a few in each step."""
    found: list[PartitionStatus] = []
    if not request.include_partitions:
        return found
    names = None if request.topics is None else set(request.topics)
    for topic in [topic for topic in topics if names is None or topic.name in names]:
        hosts = tuple(topic.hosts)
        for partition in numbers_of(request.span, len(hosts)):
            if partition % DESCRIBED_PER_STEP == 0:
                yield None
            host, moves_to = hosts[partition], target(topic.id, partition)
            found.append(_partition(topics, topic, partition, host, broker_id, now, moves_to))
    return found


@dataclass(slots=True)
class Summary:
    """All partitions in numbers. ``partitions``: some with a problem. ``page``: some of one broker.
    ``leads``, ``replicas``: of each broker.
    """

    topics: list[TopicSummary] = field(default_factory=list)
    partitions: list[PartitionStatus] = field(default_factory=list)
    page: list[PartitionStatus] = field(default_factory=list)
    leads: Counter[int] = field(default_factory=Counter)
    replicas: Counter[int] = field(default_factory=Counter)


def summarize(
    topics: TopicTable,
    request: DescribeClusterRequest,
    broker_id: int,
    now: float,
    is_live: Callable[[int], bool],
    target: Target,
) -> Generator[None, Any, Summary]:
    """Return all partitions in numbers, as this broker knows them; a few in each step.

    ``is_live``: whether this broker receives heartbeats of another one.
    """
    summary, cost, page = Summary(), SUMMARIZED_PER_STEP, request.page
    listed = range(page.skip, page.skip + page.limit) if page is not None else range(0)
    for topic in tuple(topics):
        led = records = end = under_replicated = at_min_isr = size = 0
        for partition, host in enumerate(tuple(topic.hosts)):
            if cost >= SUMMARIZED_PER_STEP:
                yield None
                cost = 0
            cost += 1
            state = topics.state(topic, partition)
            has_leader = state is not None and state.leader is not None and is_live(state.leader)
            has_problem = not has_leader or (host is not None and bool(host.problem))
            if state is not None:
                if state.leader is not None:
                    summary.leads[state.leader] += 1
                for replica in state.replicas:
                    number = summary.replicas[replica]
                    # guard: a page of a broker's partitions is bounded
                    if page is not None and replica == page.broker and number in listed:
                        moves_to = target(topic.id, partition)
                        status = _partition(
                            topics, topic, partition, host, broker_id, now, moves_to
                        )
                        summary.page.append(status)
                        # guard: a page of a broker's partitions describes few of them in one step
                        cost += DESCRIPTION_COST
                    summary.replicas[replica] = number + 1
                has_problem |= state.unclean_epoch >= 0
            if host is not None and host.leadership is not None:
                own = host.leadership.state
                led += 1
                records += max(host.high_watermark - host.log.log_start_offset, 0)
                end += host.high_watermark
                size += host.log.size_bytes
                is_short = len(own.isr) < len(own.replicas)
                under_replicated += is_short
                at_min_isr += len(own.replicas) > 1 and len(own.isr) <= own.min_isr
                has_problem |= is_short
            # guard: a summary of the cluster names a bounded number of partitions
            if has_problem and len(summary.partitions) < limits.CLUSTER_SUMMARY_PARTITIONS_MAX:
                summary.partitions.append(
                    _partition(topics, topic, partition, host, broker_id, now, [])
                )
                # guard: a summary of the cluster describes few partitions in one step
                cost += DESCRIPTION_COST
        summary.topics.append(
            TopicSummary(
                topic=topic.name,
                topic_id=topic.id,
                partitions=len(topic.hosts),
                led=led,
                records=records,
                end=end,
                under_replicated=under_replicated,
                at_min_isr=at_min_isr,
                size_bytes=size,
            )
        )
    return summary


def _partition(
    topics: TopicTable,
    topic: HostedTopic,
    partition: int,
    host: Partition | None,
    broker_id: int,
    now: float,
    target: list[int],
) -> PartitionStatus:
    state = topics.state(topic, partition)
    if state is None:
        return PartitionStatus(
            topic=topic.name,
            topic_id=topic.id,
            partition=partition,
            leader=None,
            leader_epoch=-1,
            replicas=[],
            isr=[],
            witnesses=[],
            elr=[],
            min_isr=0,
            target=target,
        )
    return PartitionStatus(
        topic=topic.name,
        topic_id=topic.id,
        partition=partition,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        replicas=list(state.replicas),
        isr=sorted(state.isr),
        witnesses=list(state.witnesses),
        elr=sorted(state.elr),
        min_isr=state.min_isr,
        high_watermark=-1 if host is None else host.high_watermark,
        log_start_offset=-1 if host is None else host.log.log_start_offset,
        replica_status=[] if host is None else _replicas(host, broker_id, now),
        unclean_epoch=state.unclean_epoch,
        unclean_offset=-1 if host is None else _begin_of(host, state.unclean_epoch),
        target=target,
    )


def _begin_of(host: Partition, epoch: LeaderEpoch) -> Offset:
    """Return the first offset of ``epoch`` or a later one in a leader's log; -1 for no epoch, and
    on a broker that does not lead.
    """
    if epoch < 0 or host.leadership is None:
        return -1
    starts = [entry.start_offset for entry in host.log.epochs if entry.epoch >= epoch]
    return min(starts, default=host.log.log_end_offset)


def _replicas(host: Partition, broker_id: int, now: float) -> list[ReplicaStatus]:
    """Return this broker's own copy, and those of its followers where it leads."""
    log, leadership = host.log, host.leadership
    mine = ReplicaStatus(
        broker=broker_id,
        log_end_offset=log.log_end_offset,
        durable_end_offset=log.acknowledged_end_offset,
        lag_ms=0 if leadership is not None else -1,
        in_isr=leadership is not None,
        chain=log.chain,
        damage=host.problem,
    )
    if leadership is None:
        return [mine]
    others = [
        ReplicaStatus(
            broker=follower,
            log_end_offset=progress.end,
            durable_end_offset=progress.durable_end,
            lag_ms=int(progress.lag_s * 1_000),
            in_isr=progress.in_isr,
        )
        for follower, progress in sorted(leadership.followers(now).items())
    ]
    return [mine, *others]
