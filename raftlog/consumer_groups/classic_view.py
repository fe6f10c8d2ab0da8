"""Description of a classic group: what its members' bytes contain, where they can be read."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMemberView(MemberView):
    """Member of a classic group. Topics and partitions are read from its bytes."""

    is_consumer: bool

    @property
    def topics(self) -> tuple[str, ...]:
        return (subscribed_topics(self.metadata) or ()) if self.is_consumer else ()

    @property
    def assigned(self) -> tuple[Share, ...]:
        found = (assigned_partitions(self.assignment) or {}) if self.is_consumer else {}
        by_name = self.known.by_name
        return tuple(
            Share(topic, by_name[topic].id, partitions)
            for topic, partitions in sorted(found.items())
            if topic in by_name
        )

    @property
    def target(self) -> tuple[Share, ...]:
        return self.assigned


def _member_view(member: ClassicMember, group: ClassicGroup, topics: Topics) -> MemberView:
    return ClassicMemberView(
        member_id=member.id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.host,
        member_epoch=group.generation,
        session_timeout_ms=member.session_timeout_ms,
        metadata=member.metadata(group.protocol),
        assignment=member.assignment,
        known=topics,
        is_consumer=group.protocol_type == CONSUMER,
    )
