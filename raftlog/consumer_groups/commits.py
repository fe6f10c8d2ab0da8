"""Who may commit what: the checks of an offset commit, one by one, and the commit itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raftlog import limits
from raftlog.consumer_groups.group import Group
from raftlog.consumer_groups.heartbeats import check_member
from raftlog.consumer_groups.records import OffsetValue
from raftlog.consumer_groups.values import NO_MEMBER_EPOCH, Commit
from raftlog.errors import (
    FencedMemberError,
    GroupNotEmptyError,
    InvalidRequestError,
    PartitionNotOwnedError,
    RaftlogError,
    StaleMemberEpochError,
    ThrottledError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.types import TopicPartition


def check_committer(group: Group | None, group_id: str, member_id: str, member_epoch: int) -> None:
    """Raises unless it is a member at its epoch; or nobody, of a group without members."""
    if not member_id:
        if member_epoch != NO_MEMBER_EPOCH:
            raise InvalidRequestError(
                f"a commit with member epoch {member_epoch} and no member id: a member gives both, "
                f"others give neither (epoch {NO_MEMBER_EPOCH})"
            )
        if group is not None and group.members:
            raise GroupNotEmptyError(
                f"group {group_id!r} has {len(group.members)} members, which commit its offsets: "
                "stop them first, or commit as one of them"
            )
        return
    member = check_member(group, group_id, member_id)
    if member_epoch < 0:
        raise InvalidRequestError(f"a commit of member {member_id} with epoch {member_epoch}")
    if member_epoch < member.epoch:
        raise StaleMemberEpochError(
            f"member {member_id} of group {group_id!r} is at epoch {member.epoch}, and the "
            f"commit has epoch {member_epoch}. Commit again after the next heartbeat response"
        )
    if member_epoch > member.epoch:
        raise FencedMemberError(
            f"member {member_id} of group {group_id!r} commits at epoch {member_epoch}, and its "
            f"highest epoch is {member.epoch}. It must join again"
        )


def commit(
    group: Group,
    member_id: str,
    offsets: Sequence[Commit],
    topic_ids: Mapping[str, str],
    *,
    now_ms: int,
) -> list[RaftlogError | None]:
    """Take over each offset that may be committed; say why not of the others."""
    return [_commit_one(group, member_id, one, topic_ids, now_ms=now_ms) for one in offsets]


def _commit_one(
    group: Group, member_id: str, offset: Commit, topic_ids: Mapping[str, str], *, now_ms: int
) -> RaftlogError | None:
    error = _refusal(group, member_id, offset, topic_ids)
    if error is None:
        topics = group.world.topics
        value = OffsetValue(
            version=1,
            topic_id=topics.by_name[offset.topic].id,
            offset=offset.offset,
            leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
            committed_at_ms=now_ms,
            topics_version=topics.version,
        )
        group.put_offset(TopicPartition(offset.topic, offset.partition), value)
    return error


def _refusal(
    group: Group, member_id: str, offset: Commit, topic_ids: Mapping[str, str]
) -> RaftlogError | None:
    where = TopicPartition(offset.topic, offset.partition)
    info = group.world.topics.by_name.get(offset.topic)
    if info is None:
        return UnknownTopicError(f"no topic has the name {offset.topic[:300]!r}")
    meant = topic_ids.get(offset.topic, info.id)
    if meant != info.id:
        return UnknownTopicError(
            f"topic {offset.topic!r} was deleted and created again: the commit is for id "
            f"{meant}, and the topic has id {info.id}"
        )
    if not 0 <= offset.partition < info.partition_count:
        return UnknownPartitionError(
            f"topic {offset.topic!r} has {info.partition_count} partitions, numbered from 0, "
            f"and no partition {offset.partition}"
        )
    owner = group.owner.get((info.id, offset.partition))
    if owner is not None and owner != member_id:
        return PartitionNotOwnedError(
            f"{where} is assigned to member {owner} of group {group.id!r}, not to {member_id}. "
            "Only the assigned member can commit its offsets"
        )
    if offset.offset < 0:
        return InvalidRequestError(f"offset {offset.offset} for {where}: offsets begin at 0")
    if len(offset.metadata) > limits.OFFSET_METADATA_CHARS_MAX:
        return InvalidRequestError(
            f"metadata of {len(offset.metadata)} characters for {where}: "
            f"{limits.OFFSET_METADATA_CHARS_MAX} is the most"
        )
    offsets_max = group.world.settings.offsets_per_group_max
    if where not in group.offsets and group.offsets.count >= offsets_max:
        return ThrottledError(
            f"group {group.id!r} has committed offsets of {group.offsets.count} partitions, "
            f"which is the limit ({offsets_max}). Delete unneeded ones"
        )
    return None
