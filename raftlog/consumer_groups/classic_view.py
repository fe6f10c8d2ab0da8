"""Description of a classic group: what its members' bytes contain, where they can be read."""

from __future__ import annotations

from raftlog.consumer_groups.classic import ClassicGroup, ClassicMember
from raftlog.consumer_groups.consumer_protocol import (
    CONSUMER,
    assigned_partitions,
    subscribed_topics,
)
from raftlog.consumer_groups.values import (
    CLASSIC_TYPE,
    GroupView,
    MemberView,
    Share,
    Topics,
)


def classic_view(group: ClassicGroup, topics: Topics) -> GroupView:
    """Return the description of ``group``."""
    return GroupView(
        group=group.id,
        state=group.phase,
        group_epoch=group.generation,
        assignor=group.protocol,
        members=tuple(
            _member_view(member, group, topics) for _, member in sorted(group.members.items())
        ),
        type=CLASSIC_TYPE,
        protocol_type=group.protocol_type,
    )


def _member_view(member: ClassicMember, group: ClassicGroup, topics: Topics) -> MemberView:
    metadata, assignment = member.metadata(group.protocol), member.assignment
    is_consumer = group.protocol_type == CONSUMER
    shares = _shares(assignment, topics) if is_consumer else ()
    return MemberView(
        member_id=member.id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.host,
        member_epoch=group.generation,
        topics=(subscribed_topics(metadata) or ()) if is_consumer else (),
        assigned=shares,
        revoking=(),
        target=shares,
        session_timeout_ms=member.session_timeout_ms,
        is_away=False,
        metadata=metadata,
        assignment=assignment,
    )


def _shares(assignment: bytes, topics: Topics) -> tuple[Share, ...]:
    found = assigned_partitions(assignment) or {}
    return tuple(
        Share(topic, topics.by_name[topic].id, partitions)
        for topic, partitions in sorted(found.items())
        if topic in topics.by_name
    )
