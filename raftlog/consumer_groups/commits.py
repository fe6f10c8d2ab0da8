"""Offset commits: authorization of the committer, validation of each offset, and the commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raftlog import limits
from raftlog.consumer_groups.group import Group
from raftlog.consumer_groups.heartbeats import check_member
from raftlog.consumer_groups.member import Member
from raftlog.consumer_groups.records import OFFSET_BELOW_0, VERSION_MIN, OffsetValue
from raftlog.consumer_groups.values import NO_MEMBER_EPOCH, Commit
from raftlog.errors import (
    FencedMemberError,
    GroupNotEmptyError,
    InvalidRequestError,
    OffsetMovedError,
    PartitionNotOwnedError,
    RaftlogError,
    StaleMemberEpochError,
    ThrottledError,
    UnknownPartitionError,
    UnknownTopicError,
    counted,
)
from raftlog.types import NO_LEADER_EPOCH, TopicPartition


def check_committer(
    group: Group | None,
    group_id: str,
    member_id: str,
    member_epoch: int,
    offsets: Sequence[Commit],
    instance_id: str | None = None,
    *,
    now: float,
) -> None:
    """Check that the sender is a member at its current epoch, or that the group has no members.

    A member may also be at an earlier epoch, if it has owned all partitions in ``offsets`` since
    then: its next heartbeat response is on the way, and no other member has read them (KIP-1251).
    ``member_id``: ``""`` for a commit by a client that is not a member; ``member_epoch`` is then
    ``NO_MEMBER_EPOCH``. It is the generation of a classic member, whose session the commit renews.
    A Kafka client that never joined may have made a member ID already: its epoch is negative.
    ``instance_id``: of a classic member only. Raises ``InvalidRequestError``,
    ``GroupNotEmptyError``, ``StaleMemberEpochError``, ``FencedMemberError``,
    ``UnknownMemberError``, ``InstanceFencedError`` or ``RebalanceInProgressError``.
    """
    if not member_id:
        if member_epoch != NO_MEMBER_EPOCH:
            raise InvalidRequestError(
                f"commit with member epoch {member_epoch} and no member ID. Members must send "
                f"both, other clients neither (epoch {NO_MEMBER_EPOCH})"
            )
        if group is not None and group.member_count:
            raise GroupNotEmptyError(
                f"group {group_id!r} has {counted(group.member_count, 'member')}, and only members "
                "can commit "
                "its offsets. Stop the members first, or commit as one of them"
            )
        return
    is_empty = group is None or not group.member_count
    if member_epoch < 0 and is_empty:
        return
    if group is not None and group.classic is not None:
        group.classic.check_commit(member_id, instance_id, member_epoch, now=now)
        return
    member = check_member(group, group_id, member_id)
    if member_epoch < 0:
        raise InvalidRequestError(
            f"commit of member {member_id} with member epoch {member_epoch}: the minimum is 0"
        )
    if member_epoch < member.epoch and not _has_owned(group, member, offsets, since=member_epoch):
        raise StaleMemberEpochError(
            f"member {member_id} of group {group_id!r} is at epoch {member.epoch}, and the "
            f"commit has epoch {member_epoch}. Commit again after the next heartbeat response"
        )
    if member_epoch > member.epoch:
        raise FencedMemberError(
            f"member {member_id} of group {group_id!r} committed with epoch {member_epoch}, but "
            f"its epoch is {member.epoch}. It must join again"
        )


def _has_owned(
    group: Group | None, member: Member, offsets: Sequence[Commit], *, since: int
) -> bool:
    """Return whether the member owns all these partitions, and did so at epoch ``since``."""
    assert group is not None, "it has this member"
    topics = group.world.topics.by_name
    return all(
        offset.topic in topics
        and group.has_owned(member.id, (topics[offset.topic].id, offset.partition), since=since)
        for offset in offsets
    )


def commit(
    group: Group,
    member_id: str,
    offsets: Sequence[Commit],
    topic_ids: Mapping[str, str],
    *,
    by_owner: bool,
    sequence: int = 0,
    now_ms: int,
) -> list[RaftlogError | None]:
    """Commit each valid offset. Return one item per offset: None, or the reason for rejection.

    ``sequence``: of the member's commit; 0 for none, and ignored of clients that are not members.
    An offset that a later commit of the member has replaced is left out: the network has held the
    request back. Within an epoch, nothing else orders the commits of a member, which may have used
    two connections.
    """
    owner = member_id if by_owner else None
    committer = member_id if sequence else ""
    order = sequence if committer else 0
    return [
        _commit_one(group, owner, one, topic_ids, committer, order, now_ms=now_ms)
        for one in offsets
    ]


def _commit_one(
    group: Group,
    member_id: str | None,
    offset: Commit,
    topic_ids: Mapping[str, str],
    committer: str,
    sequence: int,
    *,
    now_ms: int,
) -> RaftlogError | None:
    error = _refusal(group, member_id, offset, topic_ids)
    where = TopicPartition(offset.topic, offset.partition)
    if error is None and not (sequence and _is_late(group, where, committer, sequence)):
        topics = group.world.topics
        value = OffsetValue(
            version=OFFSET_BELOW_0 if offset.offset < 0 else VERSION_MIN,
            topic_id=topics.by_name[offset.topic].id,
            offset=offset.offset,
            leader_epoch=max(offset.leader_epoch, NO_LEADER_EPOCH),
            metadata=offset.metadata,
            committed_at_ms=now_ms,
            topics_version=topics.version,
            committer=committer,
            sequence=sequence,
        )
        group.put_offset(where, value)
    return error


def _is_late(group: Group, where: TopicPartition, committer: str, sequence: int) -> bool:
    known = group.offsets.value(where)
    return known is not None and known.committer == committer and sequence < known.sequence


def _refusal(
    group: Group, member_id: str | None, offset: Commit, topic_ids: Mapping[str, str]
) -> RaftlogError | None:
    where = TopicPartition(offset.topic, offset.partition)
    info = group.world.topics.by_name.get(offset.topic)
    if info is None:
        return UnknownTopicError(f"topic {offset.topic[:300]!r} does not exist")
    meant = topic_ids.get(offset.topic, info.id)
    if meant != info.id:
        return UnknownTopicError(
            f"topic {offset.topic!r} was deleted and created again: the commit is for topic ID "
            f"{meant}, but the topic has ID {info.id}"
        )
    if not 0 <= offset.partition < info.partition_count:
        return UnknownPartitionError(
            f"topic {offset.topic!r} has no partition {offset.partition}: it has partitions 0 to "
            f"{info.partition_count - 1}"
        )
    owner = group.owner.get((info.id, offset.partition))
    if member_id is not None and owner is not None and owner != member_id:
        return PartitionNotOwnedError(
            f"{where} is assigned to member {owner} of group {group.id!r}, not to {member_id}. "
            "Only the assigned member can commit its offsets"
        )
    if len(offset.metadata) > limits.OFFSET_METADATA_CHARS_MAX:
        return InvalidRequestError(
            f"metadata of {len(offset.metadata)} characters for {where}: the maximum is "
            f"{limits.OFFSET_METADATA_CHARS_MAX}"
        )
    if offset.expected is not None:
        known = group.offsets.value(where)
        is_known = known is not None and known.topic_id == info.id
        found = max(known.offset, -1) if known is not None and is_known else -1
        if found not in (offset.expected, offset.offset):  # the latter: it is sent again
            return OffsetMovedError(
                f"the committed offset of {where} in group {group.id!r} is {_shown(found)}, not "
                f"{_shown(offset.expected)}: it was committed in the meantime"
            )
    offsets_max = group.world.settings.offsets_per_group_max
    if where not in group.offsets and group.offsets.count >= offsets_max:
        return ThrottledError(
            f"group {group.id!r} has committed offsets of {group.offsets.count} partitions, "
            f"which is the limit ({offsets_max}). Delete unneeded ones"
        )
    return None


def _shown(offset: int) -> str:
    return "none" if offset < 0 else str(offset)
