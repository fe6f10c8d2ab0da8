"""Descriptions of consumer groups that ``Admin`` returns, and their construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raftlog.protocol import groups as wire
from raftlog.types import LeaderEpoch, Offset, TimestampMs, TopicPartition


@dataclass(frozen=True, slots=True)
class GroupListing:
    """Short description of one consumer group.

    ``state``: "empty" (no members), "reconciling" (members are releasing partitions or waiting for
    them) or "stable"; a classic group is "preparing_rebalance" or "completing_rebalance" instead of
    "reconciling". ``coordinator``: id of the broker that coordinates the group. ``type``:
    "consumer", or "classic" if members of Kafka clients assign the partitions.
    """

    group: str
    state: str
    members: int
    coordinator: int
    type: str = "consumer"


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member of a consumer group.

    ``assigned``: its current partitions; ``target``: its target assignment. ``instance_id``: of a
    static member, else None. ``host``: the host that it connects from. ``member_epoch``: the epoch
    of the group that the member has reached. ``is_away``: True for a static member that is
    temporarily absent; its partitions stay reserved until its session ends.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    member_epoch: int
    topics: tuple[str, ...]
    assigned: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...]
    session_timeout_ms: int
    is_away: bool = False


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Progress of a consumer group in one partition.

    ``offset``: committed offset, which is that of the next record to read; None without one.
    ``lag``: number of offsets from there to the end, never negative; None if unknown.
    ``lag_seconds``: age of the first unread record; 0 without lag, None if unknown.
    ``log_start_offset`` and ``log_end_offset`` (after the last committed record) are -1 if unknown.
    ``member_id``: the member that reads it, or None. ``problem``: why a value is unknown, or why
    the offset cannot be read; empty without a problem.
    """

    topic: str
    partition: int
    offset: Offset | None
    log_start_offset: Offset = -1
    log_end_offset: Offset = -1
    lag: int | None = None
    lag_seconds: float | None = None
    leader_epoch: LeaderEpoch = -1
    metadata: str = ""
    committed_at_ms: TimestampMs = -1
    member_id: str | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One consumer group: its members, and every partition that it reads or has read.

    ``state`` and ``type`` are as in ``GroupListing``. ``group_epoch`` increases when the members or
    the available partitions change. Of a classic group, ``group_epoch`` is the generation and
    ``assignor`` the name that its members agreed on.
    """

    group: str
    state: str
    group_epoch: int
    assignor: str
    coordinator: int
    members: tuple[MemberDescription, ...] = ()
    partitions: tuple[PartitionLag, ...] = field(default=())
    type: str = "consumer"

    @property
    def lag(self) -> int:
        """Sum of the known lags of the partitions."""
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def unknown_lags(self) -> int:
        """Number of partitions without a known lag: no committed offset, or a problem."""
        return sum(partition.lag is None for partition in self.partitions)

    @property
    def lag_seconds(self) -> float | None:
        """Largest known lag of the partitions in seconds; None without one."""
        known = [part.lag_seconds for part in self.partitions if part.lag_seconds is not None]
        return max(known, default=None)


def group_listing(listing: wire.GroupListing, coordinator: int) -> GroupListing:
    return GroupListing(listing.group, listing.state, listing.members, coordinator, listing.type)


def group_description(
    described: wire.GroupDescription, partitions: Sequence[PartitionLag]
) -> GroupDescription:
    return GroupDescription(
        group=described.group,
        state=described.state,
        group_epoch=described.group_epoch,
        assignor=described.assignor,
        coordinator=described.coordinator,
        members=tuple(member_description(member) for member in described.members),
        partitions=tuple(partitions),
        type=described.type,
    )


def member_description(member: wire.MemberDescription) -> MemberDescription:
    return MemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.host,
        member_epoch=member.member_epoch,
        topics=tuple(member.topics),
        assigned=shared(member.assigned),
        target=shared(member.target),
        session_timeout_ms=member.session_timeout_ms,
        is_away=member.is_away,
    )


def shared(shares: Sequence[wire.TopicShare]) -> tuple[TopicPartition, ...]:
    """Return the partitions of all entries, sorted."""
    return tuple(
        sorted(
            TopicPartition(share.topic, number) for share in shares for number in share.partitions
        )
    )


def readers(members: Sequence[wire.MemberDescription]) -> Mapping[TopicPartition, str]:
    """Return the member id of each assigned partition."""
    return {tp: member.member_id for member in members for tp in shared(member.assigned)}
