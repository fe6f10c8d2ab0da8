"""What ``Admin`` tells of consumer groups: plain values, and how answers become them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raftlog.protocol import groups as wire
from raftlog.types import LeaderEpoch, Offset, TimestampMs, TopicPartition


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One consumer group, in short.

    ``state``: "empty" (no members), "reconciling" (members still give up, or wait for, partitions)
    or "stable". ``coordinator``: the broker that keeps it.
    """

    group: str
    state: str
    members: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member of a consumer group.

    ``assigned``: the partitions that it has; ``target``: those that it is to have in the end.
    ``instance_id``: of a static member, else None. ``host``: where it connects from.
    ``member_epoch``: the epoch of the group that it has caught up with. ``is_away``: a static
    member that has left; its partitions are kept for it until its session ends.
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
    """How far a consumer group is in one partition.

    ``offset``: committed, of the next record to be read; None if none is. ``lag``: how many offsets
    are left from there to the end, never negative; None while one of them is unknown.
    ``lag_seconds``: the age of the first record that is left; 0 where none is, None if unknown.
    ``log_start_offset`` and ``log_end_offset`` (the end of what consumers may see) are -1 if
    unknown. ``member_id``: who reads it; None for nobody. ``problem``: why something is unknown, or
    the offset is none that could be read; empty when all is well.
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
    """One consumer group: its members, and each partition that it reads or has read.

    ``state`` is as in ``GroupListing``. ``group_epoch`` grows when the members, or what there is to
    share out, change.
    """

    group: str
    state: str
    group_epoch: int
    assignor: str
    coordinator: int
    members: tuple[MemberDescription, ...] = ()
    partitions: tuple[PartitionLag, ...] = field(default=())

    @property
    def lag(self) -> int:
        """The sum of the partitions' lags that are known."""
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def unknown_lags(self) -> int:
        """How many partitions have no known lag: nothing is committed, or there is a problem."""
        return sum(partition.lag is None for partition in self.partitions)

    @property
    def lag_seconds(self) -> float | None:
        """The longest of the partitions' lags that are known; None if none is."""
        known = [part.lag_seconds for part in self.partitions if part.lag_seconds is not None]
        return max(known, default=None)


def group_listing(listing: wire.GroupListing, coordinator: int) -> GroupListing:
    return GroupListing(listing.group, listing.state, listing.members, coordinator)


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
    """The partitions of all shares, in order."""
    return tuple(
        sorted(
            TopicPartition(share.topic, number) for share in shares for number in share.partitions
        )
    )


def readers(members: Sequence[wire.MemberDescription]) -> Mapping[TopicPartition, str]:
    """Who reads each partition that somebody reads."""
    return {tp: member.member_id for member in members for tp in shared(member.assigned)}
