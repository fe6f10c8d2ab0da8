"""State of all partitions, as one broker sees it, in numbers; and whether the broker is ready."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from raftlog import limits
from raftlog.replication.partition_state import PartitionState
from raftlog.server.partition import Partition
from raftlog.types import Offset, TopicPartition

EXAMPLES_MAX: Final = 3  # partitions that a reason names


@dataclass(slots=True)
class TopicSizes:
    """Replicas of one topic on this broker."""

    size_bytes: int = 0
    segments: int = 0
    appended_bytes: int = 0


@dataclass(slots=True)
class FollowerLag:
    """Lag of one follower behind the partitions that this broker leads."""

    offsets: Offset = 0  # sum
    seconds: float = 0.0  # maximum


@dataclass(slots=True)
class Survey:
    """Filled by ``add``, partition by partition.

    ``out_of_sync``: replicas here that are not in the ISR. ``needed``: partitions that would reject
    writes, or have no in-sync replica, without this broker.
    """

    broker_id: int
    leading: int = 0
    following: int = 0
    witnessing: int = 0
    under_replicated: int = 0
    at_min_isr: int = 0
    under_min_isr: int = 0
    offline: int = 0
    damaged: int = 0
    out_of_sync: list[TopicPartition] = field(default_factory=list)
    needed: list[TopicPartition] = field(default_factory=list)
    topics: dict[str, TopicSizes] = field(default_factory=dict)
    omitted_topics: int = 0
    followers: dict[int, FollowerLag] = field(default_factory=dict)

    def add(
        self,
        where: TopicPartition,
        state: PartitionState | None,
        host: Partition | None,
        *,
        is_leader_live: bool,
        now: float,
    ) -> None:
        """Add one partition. ``state``: None if it is unknown; ``now``: seconds of the loop."""
        if state is None or state.leader is None or not is_leader_live:
            self.offline += 1
        if host is not None:
            self._add_replica(where, host, now)
        if state is None:
            return
        me = self.broker_id
        self.witnessing += me in state.witnesses
        if me in state.isr:
            if len(state.isr) - 1 < state.min_isr:
                self.needed.append(where)
        elif me in state.replicas:
            self.out_of_sync.append(where)
        if host is not None and host.leadership is not None:
            in_sync = len(host.leadership.state.isr)
            self.under_replicated += in_sync < len(state.replicas)
            self.under_min_isr += in_sync < state.min_isr
            self.at_min_isr += in_sync == state.min_isr and in_sync < len(state.replicas)

    def _add_replica(self, where: TopicPartition, host: Partition, now: float) -> None:
        log, leadership = host.log, host.leadership
        self.damaged += bool(log.damage)
        sizes = self.topics.get(where.topic)
        if sizes is None and len(self.topics) < limits.METRICS_TOPICS_MAX:
            sizes = self.topics[where.topic] = TopicSizes()
        if sizes is None:
            self.omitted_topics += where.partition == 0
        else:
            sizes.size_bytes += log.size_bytes
            sizes.segments += log.segment_count
            sizes.appended_bytes += host.appended_bytes
        if leadership is None:
            self.following += 1
            return
        self.leading += 1
        for follower, progress in leadership.followers(now).items():
            lag = self.followers.setdefault(follower, FollowerLag())
            lag.offsets += max(0, log.log_end_offset - max(progress.end, 0))
            lag.seconds = max(lag.seconds, progress.lag_s)


@dataclass(frozen=True, slots=True)
class Standing:
    """State of the broker itself. ``problem``: reason why it has not joined; "" if it has.

    ``others_decide``: whether the other connected brokers are a majority of the cluster's voters.
    """

    problem: str
    is_stopping: bool
    is_disk_hung: bool
    disk_space: str  # why growth is refused; "" at the normal level
    others_decide: bool
    log_dirs: tuple[str, ...] = ()  # problems of log directories besides the data directory


@dataclass(frozen=True, slots=True)
class Readiness:
    """``not_ready`` and ``not_safe``: reasons; empty if the broker is ready, or safe to restart."""

    not_ready: tuple[str, ...]
    not_safe: tuple[str, ...]

    @property
    def is_ready(self) -> bool:
        return not self.not_ready

    @property
    def is_restart_safe(self) -> bool:
        return not self.not_ready and not self.not_safe


def readiness(survey: Survey, standing: Standing) -> Readiness:
    """Return whether the broker is ready to serve, and whether its stop harms no partition."""
    not_ready: list[str] = []
    if standing.is_stopping:
        not_ready.append("the broker is stopping")
    if standing.problem:
        not_ready.append(f"the broker has not joined the cluster: {standing.problem}")
    if standing.is_disk_hung:
        not_ready.append("the disk completes no sync: check it (dmesg, SMART)")
    if standing.disk_space:
        not_ready.append(standing.disk_space)
    not_ready += standing.log_dirs
    if survey.out_of_sync:
        not_ready.append(f"replicas on this broker are not in sync: {_named(survey.out_of_sync)}")
    not_safe: list[str] = []
    if not standing.others_decide:
        not_safe.append("the other connected brokers are no majority of the cluster's voters")
    if survey.needed:
        not_safe.append(
            "without this broker, the ISR is empty or below min.insync.replicas: "
            + _named(survey.needed)
        )
    return Readiness(tuple(not_ready), tuple(not_safe))


def _named(partitions: list[TopicPartition]) -> str:
    """Return the number of partitions and the first ones."""
    first = ", ".join(map(str, partitions[:EXAMPLES_MAX]))
    more = ", …" if len(partitions) > EXAMPLES_MAX else ""
    return f"{len(partitions)} ({first}{more})"
