"""Heartbeats: join, stay, release, leave, temporary absence. All checks precede all changes.

**Sequences.** A heartbeat with a sequence that is not higher than the last one changes nothing and
does not renew the session, because it may be delayed. The response contains the current state. A
heartbeat that a member sent before it knew of a partition must not count as a release of it, also
after a failover. Every change of a member is therefore written with its highest sequence. A
heartbeat whose ``owned`` lacks some assigned partitions is also written, even without other
changes.

**Epochs.** Responses can be lost. A member can therefore be at any epoch from its highest confirmed
epoch (``known_epoch``) to its current one. It releases partitions at its current epoch only,
because only then does it know its whole assignment.
"""

from __future__ import annotations

from raftlog.consumer_groups.group import Group
from raftlog.consumer_groups.member import FormerMember, Member
from raftlog.consumer_groups.values import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Heartbeat,
    HeartbeatResult,
    parts_of,
)
from raftlog.errors import (
    FencedMemberError,
    GroupFullError,
    InstanceFencedError,
    InvalidRequestError,
    UnknownAssignorError,
    UnknownMemberError,
    counted,
)
from raftlog.types import check_instance_id


def take(group: Group, heartbeat: Heartbeat, *, now: float, now_ms: int) -> HeartbeatResult:
    """Apply a heartbeat and return the response.

    ``now``: monotonic seconds. ``now_ms``: wall-clock milliseconds. Raises the errors of
    ``GroupShard.heartbeat``. If it raises, the group is unchanged.
    """
    member = group.members.get(heartbeat.member_id)
    if member is None:
        return _join(group, heartbeat, now=now)
    if heartbeat.sequence <= member.sequence:
        return present(group, member)
    if heartbeat.instance_id != member.instance_id:
        raise InvalidRequestError(
            f"member {member.id} has group.instance.id {member.instance_id!r}, but its heartbeat "
            f"contains {heartbeat.instance_id!r}. A member cannot change it. Join as a new member"
        )
    if heartbeat.member_epoch == LEAVE_EPOCH:
        return _leave(group, member, heartbeat, now=now, now_ms=now_ms)
    if heartbeat.member_epoch == AWAY_EPOCH:
        return _go_away(group, member, heartbeat, now=now)
    check(group, heartbeat)
    if heartbeat.member_epoch == JOIN_EPOCH:
        group.come_back(member, parts_of(heartbeat.owned))
        member.client_id, member.host = heartbeat.client_id, heartbeat.host
    else:
        _stay(group, member, heartbeat)
    _hear(group, member, heartbeat, now=now)
    return present(group, member)


def present(group: Group, member: Member) -> HeartbeatResult:
    """Return the heartbeat response for the current state of the member."""
    return member.steady_answer(group.world.topics).result


def check(group: Group, heartbeat: Heartbeat) -> None:
    """Validate the settings in a heartbeat.

    Raises ``InvalidRequestError``, ``UnknownAssignorError`` or ``InvalidGroupError``.
    """
    settings, assignors = group.world.settings, group.world.assignors
    settings.check_session_timeout(heartbeat.session_timeout_ms)
    if heartbeat.rebalance_timeout_ms < 1:
        raise InvalidRequestError(
            f"rebalance timeout of {heartbeat.rebalance_timeout_ms} ms: the minimum is 1 ms. "
            "Increase max_poll_interval_ms"
        )
    if len(heartbeat.topics) > settings.topics_per_member_max:
        raise InvalidRequestError(
            f"member {heartbeat.member_id} subscribes to {len(heartbeat.topics)} topics: the "
            f"maximum is {settings.topics_per_member_max}"
        )
    if heartbeat.assignor is not None and heartbeat.assignor not in assignors:
        raise UnknownAssignorError(
            f"assignor {heartbeat.assignor!r} does not exist. This coordinator has "
            f"{', '.join(sorted(assignors))}. Add others with the broker setting group.assignors"
        )
    if heartbeat.instance_id is not None:
        check_instance_id(heartbeat.instance_id)


def check_member(group: Group | None, group_id: str, member_id: str) -> Member:
    """Return the member. Raises ``InstanceFencedError`` or ``UnknownMemberError``."""
    member = group.members.get(member_id) if group is not None else None
    if member is not None:
        return member
    former = group.former.get(member_id) if group is not None else None
    raise _no_member(group_id, member_id, former)


def _no_member(
    group_id: str, member_id: str, former: FormerMember | None
) -> InstanceFencedError | UnknownMemberError:
    who = f"member {member_id[:100]} of group {group_id!r}"
    if former is None:
        return UnknownMemberError(
            f"{who} is unknown: it left, or its session expired. It must join again"
        )
    if former.instance_id is not None:
        return InstanceFencedError(
            f"{who} is fenced: {former.reason}. Use a different ID for each consumer"
        )
    return UnknownMemberError(f"{who} is no longer a member: {former.reason}")


def _join(group: Group, heartbeat: Heartbeat, *, now: float) -> HeartbeatResult:
    former = group.former.get(heartbeat.member_id)
    if former is not None and former.until <= now:
        former = None
    late = former is not None and (
        former.instance_id is not None or heartbeat.sequence <= former.sequence
    )
    if late or heartbeat.member_epoch != JOIN_EPOCH:
        raise _no_member(group.id, heartbeat.member_id, former)
    group.check_not_classic()
    check(group, heartbeat)
    member = _new_member(heartbeat)
    holder = group.instances.get(heartbeat.instance_id or "")
    if holder is not None:
        old = group.members[holder]
        group.supersede(old, member, now=now)
        changed = (old.topics, old.assignor) != (member.topics, member.assignor)
    else:
        members_max = group.world.settings.members_per_group_max
        if len(group.members) >= members_max:
            raise GroupFullError(
                f"group {group.id!r} has {len(group.members)} members, which is the limit "
                f"({members_max}). New members can join after others leave"
            )
        group.admit(member)
        changed = True
    member.renew(now)
    group.begin_with(member, changed=changed, now=now)
    member.said = heartbeat
    return present(group, member)


def _new_member(heartbeat: Heartbeat) -> Member:
    return Member(
        id=heartbeat.member_id,
        instance_id=heartbeat.instance_id,
        client_id=heartbeat.client_id,
        host=heartbeat.host,
        rack=heartbeat.rack,
        topics=tuple(sorted(set(heartbeat.topics))),
        assignor=heartbeat.assignor,
        session_timeout_ms=heartbeat.session_timeout_ms,
        rebalance_timeout_ms=heartbeat.rebalance_timeout_ms,
        sequence=heartbeat.sequence,
        interest=heartbeat.interest,
        connection=heartbeat.connection,
    )


def _stay(group: Group, member: Member, heartbeat: Heartbeat) -> None:
    epoch, owned = heartbeat.member_epoch, parts_of(heartbeat.owned)
    if member.is_away or not member.known_epoch <= epoch <= member.epoch:
        why = "it is temporarily absent" if member.is_away else f"its epoch is {member.epoch}"
        raise FencedMemberError(
            f"member {member.id} of group {group.id!r} sent epoch {epoch}, but {why}. It must join "
            "again"
        )
    if epoch < member.epoch:
        had = member.assigned.union(member.revoking)
        claimed = [part for part in owned - had if group.world.topics.has(part)]
        if claimed:
            raise FencedMemberError(
                f"member {member.id} of group {group.id!r}, at epoch {epoch} of {member.epoch}, "
                f"reports {counted(len(claimed), 'partition')} that it does not own. It must join "
                "again"
            )
    else:
        group.release(member, owned)
    if not member.assigned <= owned:
        group.write(member)  # with its sequence, because the response has new partitions
    member.known_epoch = epoch


def _hear(group: Group, member: Member, heartbeat: Heartbeat, *, now: float) -> None:
    """Apply the member's subscription and settings from a heartbeat, and renew its session."""
    topics = tuple(sorted(set(heartbeat.topics)))
    changed = (topics, heartbeat.assignor) != (member.topics, member.assignor)
    timeouts = heartbeat.session_timeout_ms, heartbeat.rebalance_timeout_ms
    if (
        changed
        or timeouts != (member.session_timeout_ms, member.rebalance_timeout_ms)
        or heartbeat.interest != member.interest
    ):
        group.write(member)
    member.sequence = heartbeat.sequence
    member.topics, member.assignor = topics, heartbeat.assignor
    member.interest = heartbeat.interest
    member.session_timeout_ms, member.rebalance_timeout_ms = timeouts
    member.renew(now)
    member.said = heartbeat
    if changed:
        group.rebalance(now=now, changed=True)


def _leave(
    group: Group, member: Member, heartbeat: Heartbeat, *, now: float, now_ms: int
) -> HeartbeatResult:
    member.sequence = heartbeat.sequence
    group.expel(member, "it left", now=now, now_ms=now_ms)
    group.rebalance(now=now, changed=True)
    return HeartbeatResult(LEAVE_EPOCH)


def _go_away(group: Group, member: Member, heartbeat: Heartbeat, *, now: float) -> HeartbeatResult:
    if member.instance_id is None:
        raise InvalidRequestError(
            f"member {member.id} of group {group.id!r} has no group.instance.id: only a static "
            "member can be temporarily absent. Other members must leave"
        )
    member.sequence = heartbeat.sequence
    member.renew(now)
    member.said = None
    group.set_away(member)
    return HeartbeatResult(AWAY_EPOCH)
