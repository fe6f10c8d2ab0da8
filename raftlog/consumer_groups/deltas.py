"""KIP-848 heartbeats: a member omits what has not changed, and numbers nothing.

``complete`` fills in the omitted fields from the state of the member, and a sequence in the order
of arrival. A heartbeat that arrives on an older connection than the last one of the member may be
delayed: it gets the member's last sequence, so it changes nothing.
"""

from __future__ import annotations

from raftlog.consumer_groups.group import Group
from raftlog.consumer_groups.member import Member
from raftlog.consumer_groups.values import (
    JOIN_EPOCH,
    Heartbeat,
    HeartbeatDelta,
    Interest,
    Share,
    Topics,
)
from raftlog.errors import InstanceInUseError, InvalidRequestError


def complete_heartbeat(group: Group | None, delta: HeartbeatDelta, topics: Topics) -> Heartbeat:
    """Return the complete heartbeat.

    Raises ``InvalidRequestError`` (a join without a subscription, or too many topics) or
    ``InstanceInUseError``.
    """
    member = None if group is None else group.members.get(delta.member_id)
    if delta.member_epoch == JOIN_EPOCH:
        _check_join(group, delta)
    return Heartbeat(
        group=delta.group,
        member_id=delta.member_id,
        member_epoch=delta.member_epoch,
        sequence=_sequence(group, member, delta),
        topics=_topics(member, delta),
        owned=_owned(member, delta, topics),
        session_timeout_ms=delta.session_timeout_ms,
        rebalance_timeout_ms=_rebalance_timeout_ms(member, delta),
        instance_id=_kept(delta.instance_id, member.instance_id if member else None),
        client_id=delta.client_id,
        host=delta.host,
        rack=_kept(delta.rack, member.rack if member else None) or "",
        assignor=_kept(delta.assignor, member.assignor if member else None),
        connection=delta.connection,
        interest=_interest(member, delta),
    )


def _kept(said: str | None, before: str | None) -> str | None:
    return before if said is None else said


def _check_join(group: Group | None, delta: HeartbeatDelta) -> None:
    if delta.topics is None:
        raise InvalidRequestError(
            f"member {delta.member_id} of group {delta.group!r} joins without a subscription"
        )
    holder = None if group is None else group.instances.get(delta.instance_id or "")
    if group is None or holder is None or holder == delta.member_id:
        return
    if not group.members[holder].is_away:
        raise InstanceInUseError(
            f"group.instance.id {delta.instance_id!r} of group {delta.group!r} belongs to member "
            f"{holder}. Stop that consumer, or wait for its session timeout"
        )


def _sequence(group: Group | None, member: Member | None, delta: HeartbeatDelta) -> int:
    if member is not None:
        if delta.connection < member.connection:
            return member.sequence
        member.connection = delta.connection
        return member.sequence + 1
    former = None if group is None else group.former.get(delta.member_id)
    return 1 if former is None else former.sequence + 1


def _topics(member: Member | None, delta: HeartbeatDelta) -> tuple[str, ...]:
    if delta.topics is not None:
        return delta.topics
    return () if member is None else member.topics


def _interest(member: Member | None, delta: HeartbeatDelta) -> Interest | None:
    """Return the interest; it changes with the topics."""
    if delta.topics is None:
        return None if member is None else member.interest
    if member is not None:
        member.matched = delta.matched
    return delta.interest


def _rebalance_timeout_ms(member: Member | None, delta: HeartbeatDelta) -> int:
    if delta.rebalance_timeout_ms < 0 and member is not None:
        return member.rebalance_timeout_ms
    return delta.rebalance_timeout_ms


def _owned(member: Member | None, delta: HeartbeatDelta, topics: Topics) -> tuple[Share, ...]:
    """Return the owned partitions. Omitted ones release nothing: all that the member may have."""
    if delta.owned is not None:
        found = ((topic_id, number) for topic_id, numbers in delta.owned for number in numbers)
        return topics.shares(found)
    if member is None:
        return ()
    if not member.revoking:
        return member.steady_answer(topics).result.assignment
    return topics.shares(member.assigned.union(member.revoking))
