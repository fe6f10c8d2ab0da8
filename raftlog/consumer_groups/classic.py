"""Classic consumer groups: the members agree on generations, and one of them assigns.

    empty ── join ──> preparing ── all joined, or timeout ──> completing ── leader's sync ──> stable
      ^                  ^  (first: group.initial.rebalance.delay.ms, extended by joins)         |
      └── last leaves ───┴──── join, leave, session ends, leader or subscription changes ────────┘

Sources: KIP-62 (rebalance timeout), KIP-345 (static members), KIP-394 (member ID before the join),
KIP-559 (protocol in join and sync), KIP-800 (reasons), KIP-814 (a static leader that rejoins does
not assign again). Subscriptions and assignments are bytes of the clients.

Differences from Kafka, for the sake of a failover: a generation is written before a join is
answered, so no coordinator gives the same generation twice. The phase is written too, so the next
coordinator completes a rebalance that this one has begun. Members are written with the first
generation that contains them. All checks precede all changes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from raftlog import limits
from raftlog.consumer_groups.values import (
    CONSUMER,
    NO_GENERATION,
    ClassicKey,
    ClassicMemberKey,
    ClassicMemberValue,
    ClassicValue,
    Departure,
    GroupRecord,
    GroupSettings,
    Join,
    JoinedMember,
    JoinResult,
    Key,
    Phase,
    Sync,
    SyncResult,
    record,
    subscribed_topics,
)
from raftlog.errors import (
    FencedMemberError,
    GroupFullError,
    InconsistentGroupProtocolError,
    InstanceFencedError,
    InvalidRequestError,
    RaftlogError,
    RebalanceInProgressError,
    UnknownMemberError,
    counted,
)
from raftlog.types import check_instance_id

EMPTY: Final = "empty"
PREPARING: Final = "preparing_rebalance"
COMPLETING: Final = "completing_rebalance"
STABLE: Final = "stable"
_REASON_CHARS_MAX: Final = 200


@dataclass(slots=True, eq=False)
class ClassicMember:
    """A member of a classic group. ``is_written``: whether the log contains it."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # in order of preference
    assignment: bytes = b""
    is_joining: bool = False  # waits for the generation; its session does not end
    is_syncing: bool = False  # waits for its assignment; its session does not end
    is_written: bool = False
    is_changed: bool = True  # differs from the log
    session_ends: float = math.inf  # monotonic seconds

    def renew(self, now: float) -> None:
        """Restart the session, unless the member waits for a response."""
        if self.is_joining or self.is_syncing:
            self.session_ends = math.inf
        else:
            self.session_ends = now + self.session_timeout_ms / 1_000

    def metadata(self, protocol: str) -> bytes:
        """Return the member's bytes for ``protocol``, or nothing if it does not support it."""
        return dict(self.protocols).get(protocol, b"")

    @property
    def protocol_bytes(self) -> int:
        return sum(len(name) + len(metadata) for name, metadata in self.protocols)


class ClassicGroup:
    """The members and the phase of one classic group.

    Invariants: ``phase`` is EMPTY if and only if there are no members; a member waits for a join
    only while PREPARING, and for a sync only while COMPLETING.
    """

    __slots__ = (
        "_changed",
        "_delay_left",
        "_has_newcomer",
        "_is_first",
        "_is_phase_changed",
        "_notes",
        "_removed",
        "_settings",
        "_unsynced",
        "generation",
        "id",
        "instances",
        "leader",
        "members",
        "pending",
        "phase",
        "phase_ends",
        "protocol",
        "protocol_type",
        "timer",
        "woken",
    )

    def __init__(self, group_id: str, settings: GroupSettings, notes: list[str]) -> None:
        self.id = group_id
        self.generation = 0
        self.phase: Phase = EMPTY
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.members: dict[str, ClassicMember] = {}
        self.instances: dict[str, str] = {}  # instance id -> member id
        self.pending: dict[
            str, float
        ] = {}  # member IDs given and not yet used -> monotonic seconds
        self.phase_ends = math.inf  # monotonic seconds: of the joins, or of the syncs
        self.timer = math.inf  # monotonic seconds; next check by the shard
        self.woken: set[str] = set()
        self._settings = settings
        self._notes = notes
        self._is_first = False  # the rebalance of an empty group: its start is delayed
        self._has_newcomer = False
        self._delay_left = 0.0  # seconds by which the first rebalance can still be delayed
        self._unsynced: set[str] = set()  # members that have not asked for their assignment
        self._changed: dict[str, None] = {}
        self._removed: list[str] = []
        self._is_phase_changed = True

    # -- requests ----------------------------------------------------------------------------------

    def join(self, join: Join, *, now: float) -> JoinResult | None:
        """Process a JoinGroup. Return the result, or None while the member waits for it.

        Raises the errors of ``GroupShard.join``. If it raises, the group is unchanged.
        """
        known = self._known(join)
        holder = None if join.member_id else self.instances.get(join.instance_id or "")
        old = known or (None if holder is None else self.members[holder])
        self._check_protocols(join, old)
        if known is not None:
            return self._rejoin(known, join, now=now)
        if old is not None:
            return self._replace(old, join, now=now)
        if join.member_id:
            del self.pending[join.member_id]
        else:
            self._check_space()
            if join.needs_member_id and join.instance_id is None:
                self.pending[join.new_member_id] = now + join.session_timeout_ms / 1_000
                return JoinResult(NO_GENERATION, member_id=join.new_member_id)
        member = _new_member(join)
        self._put(member)
        self._has_newcomer = True
        return self._await_generation(member, join, f"member {member.id} joins", now=now)

    def sync(self, sync: Sync, *, now: float) -> SyncResult | None:
        """Process a SyncGroup. Return the result, or None while the member waits for it.

        Raises the errors of ``GroupShard.sync``. If it raises, the group is unchanged.
        """
        member = self.check_member(sync.member_id, sync.instance_id)
        self._check_generation(member, sync.generation)
        for said, chosen in (
            (sync.protocol_type, self.protocol_type),
            (sync.protocol, self.protocol),
        ):
            if said is not None and said != chosen:
                raise InconsistentGroupProtocolError(
                    f"member {member.id} of group {self.id!r} has {said[:100]!r}, but "
                    f"the group has {chosen!r}. It must join again"
                )
        if self.phase == PREPARING:
            raise self._rebalancing()
        is_assigning = self.phase == COMPLETING and member.id == self.leader
        if is_assigning:
            _check_bytes(self.id, (assignment for _, assignment in sync.assignments))
        self._unsynced.discard(member.id)
        if is_assigning:
            self._assign(dict(sync.assignments), now=now)
        if self.phase == COMPLETING:
            member.is_syncing = True
            member.renew(now)
            return None
        member.renew(now)
        if not self._unsynced:
            self.phase_ends = math.inf
        return self.sync_result(member)

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, *, now: float
    ) -> None:
        """Renew the session. Raises the errors of ``GroupShard.classic_heartbeat``."""
        member = self.check_member(member_id, instance_id)
        self._check_generation(member, generation)
        member.renew(now)
        if self.phase == PREPARING:
            raise self._rebalancing()

    def leave(self, departures: Sequence[Departure], *, now: float) -> list[RaftlogError | None]:
        """Remove members. The result has one item per departure: None, or why it is rejected."""
        outcomes: list[RaftlogError | None] = []
        left = 0
        for one in departures:
            if self.pending.pop(one.member_id, None) is not None:
                outcomes.append(None)
                continue
            name = one.member_id or self.instances.get(one.instance_id or "", "")
            try:
                member = self.check_member(name, one.instance_id)
            except (UnknownMemberError, InstanceFencedError) as error:
                outcomes.append(error)
                continue
            reason = one.reason or "it left"
            self._remove(member, reason)
            left += 1
            outcomes.append(None)
        if left:
            self._after_removal(f"{counted(left, 'member')} left", now=now)
        self._complete_if_all_joined(now=now)
        return outcomes

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        is_transactional: bool,
        now: float,
    ) -> None:
        """Check that a member of the generation commits, and renew its session.

        ``is_transactional``: then the generation need not be complete. Raises
        ``UnknownMemberError``, ``InstanceFencedError``, ``FencedMemberError`` or
        ``RebalanceInProgressError``.
        """
        member = self.check_member(member_id, instance_id)
        self._check_generation(member, generation)
        # guard: a commit waits for the assignment of its generation
        if self.phase == COMPLETING and not is_transactional:
            raise self._rebalancing()
        member.renew(now)

    def check_member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """Return the member. Raises ``InstanceFencedError`` or ``UnknownMemberError``."""
        holder = None if instance_id is None else self.instances.get(instance_id)
        # guard: a replaced static member is fenced
        if holder is not None and holder != member_id:
            raise InstanceFencedError(
                f"member {member_id[:100]} of group {self.id!r} is fenced: member {holder} has its "
                f"group.instance.id {instance_id!r}. Use a different ID for each consumer"
            )
        member = self.members.get(member_id)
        if member is None or (instance_id is not None and holder is None):
            raise UnknownMemberError(
                f"member {member_id[:100]!r} of group {self.id!r} is unknown: it left, or its "
                "session expired. It must join again"
            )
        return member

    # -- results for waiting members ---------------------------------------------------------------

    def join_result(self, member: ClassicMember) -> JoinResult:
        """Return the generation of a member whose join is complete.

        Raises ``RebalanceInProgressError`` if it is not.
        """
        if self.phase == PREPARING:
            raise self._rebalancing()
        return JoinResult(
            self.generation,
            member_id=member.id,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            members=self._joined() if member.id == self.leader else (),
        )

    def sync_result(self, member: ClassicMember) -> SyncResult:
        """Return the assignment of a member. Raises ``RebalanceInProgressError``: none exists."""
        if self.phase != STABLE:
            raise self._rebalancing()
        return SyncResult(self.protocol_type, self.protocol, member.assignment)

    # -- time --------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """Monotonic seconds of the next deadline."""
        sessions = (member.session_ends for member in self.members.values())
        return min((self.phase_ends, *self.pending.values(), *sessions))

    def expire(self, *, now: float, has_stood_still: bool) -> None:
        """Apply all deadlines up to ``now``.

        ``has_stood_still``: whether the coordinator was stalled. Then sessions and the phase are
        extended first, so that queued requests can be processed.
        """
        if has_stood_still:
            until = now + self._settings.grace_ms / 1_000
            for member in self.members.values():
                if member.session_ends <= now:
                    member.session_ends = until
            if self.phase_ends <= now:
                self.phase_ends = until
        for name in [name for name, until in self.pending.items() if until <= now]:
            del self.pending[name]
        ended = [member for member in self.members.values() if member.session_ends <= now]
        for member in ended:
            self._remove(
                member,
                f"no heartbeat within its session timeout of {member.session_timeout_ms} ms. Check "
                "the consumer and its network",
            )
        if ended:
            self._after_removal(f"{len(ended)} sessions ended", now=now)
        if self.phase_ends <= now:
            self._end_phase(now=now)
        self._complete_if_all_joined(now=now)

    # -- the log -----------------------------------------------------------------------------------

    def take_records(self) -> list[GroupRecord]:
        """Return the records of all changes since the last call."""
        keys = [ClassicMemberKey(self.id, name) for name in self._removed]
        records = [record(key, None) for key in keys]
        for name in self._changed:
            member = self.members[name]
            member.is_changed, member.is_written = False, True
            records.append(record(ClassicMemberKey(self.id, name), _value_of(member)))
        if self._is_phase_changed:
            value = ClassicValue(
                1, self.generation, self.phase, self.protocol_type, self.protocol, self.leader
            )
            records.append(record(ClassicKey(self.id), value))
        self._removed, self._changed, self._is_phase_changed = [], {}, False
        return records

    def written_keys(self) -> list[Key]:
        """Return every key of the group in the log."""
        written = [name for name, member in self.members.items() if member.is_written]
        return [*(ClassicMemberKey(self.id, name) for name in written), ClassicKey(self.id)]

    def restore(self, value: ClassicValue) -> None:
        """Apply the group's record of the log."""
        # guard: a generation is that of an earlier coordinator, or newer
        self.generation, self.phase = value.generation, value.phase
        self.protocol_type, self.protocol = value.protocol_type, value.protocol
        self.leader = value.leader
        self._is_phase_changed = False

    def complete_replay(self, *, now: float) -> None:
        """Derive the remaining state of a replayed group, and restart its deadlines."""
        self.instances = {
            member.instance_id: name
            for name, member in self.members.items()
            if member.instance_id is not None
        }
        for member in self.members.values():
            member.renew(now)
        if not self.members:
            if self.phase != EMPTY:
                self._become_empty()
        elif self.phase == EMPTY:  # only if the log is corrupt
            self._prepare("no phase is written", now=now)
        elif self.phase != STABLE:
            self._unsynced = set(self.members) if self.phase == COMPLETING else set()
            self.phase_ends = now + self._rebalance_seconds

    # -- subscriptions -----------------------------------------------------------------------------

    def subscribes_to(self, topic: str) -> bool:
        """Return whether a member reads ``topic``, or may: only consumers' topics are known."""
        if not self.members:
            return False
        if self.protocol_type != CONSUMER:
            return True
        for member in self.members.values():
            for _, metadata in member.protocols:
                topics = subscribed_topics(metadata)
                if topics is None or topic in topics:
                    return True
        return False

    # -- inside: joins -----------------------------------------------------------------------------

    def _known(self, join: Join) -> ClassicMember | None:
        """Return the member that joins again; None for a new member or a given member ID."""
        if not join.member_id or (join.member_id in self.pending and join.instance_id is None):
            return None
        return self.check_member(join.member_id, join.instance_id)

    def _check_protocols(self, join: Join, old: ClassicMember | None) -> None:
        if join.instance_id is not None:
            check_instance_id(join.instance_id)
        self._settings.check_session_timeout(join.session_timeout_ms)
        if len(join.protocols) > limits.CLASSIC_PROTOCOLS_MAX:
            raise InvalidRequestError(
                f"join of group {self.id!r} with {len(join.protocols)} protocols: the maximum is "
                f"{limits.CLASSIC_PROTOCOLS_MAX}"
            )
        names = (join.protocol_type, *(name for name, _ in join.protocols))
        # guard: each version of a response has room for the names of a classic group
        if max(len(name.encode()) for name in names) > limits.CLASSIC_NAME_BYTES_MAX:
            raise InvalidRequestError(
                f"join of group {self.id!r} with a protocol type, or an assignor name, of more "
                f"than {limits.CLASSIC_NAME_BYTES_MAX} bytes"
            )
        size = sum(len(name.encode()) + len(metadata) for name, metadata in join.protocols)
        # guard: a classic member and its assignment fit one record
        if size > limits.CLASSIC_MEMBER_BYTES_MAX:
            raise InvalidRequestError(
                f"join of group {self.id!r} with {size} bytes of subscriptions. The maximum is "
                f"{limits.CLASSIC_MEMBER_BYTES_MAX}"
            )
        others = [member for member in self.members.values() if member is not old]
        in_use = sum(member.protocol_bytes for member in others)
        _check_bytes(self.id, (metadata for _, metadata in join.protocols), in_use=in_use)
        known = [dict(member.protocols).keys() for member in others]
        offered = {name for name, _ in join.protocols}
        is_same_type = join.protocol_type == self.protocol_type or not others
        if not join.protocol_type or not is_same_type or not offered.intersection(*known):
            raise InconsistentGroupProtocolError(
                f"group {self.id!r} has members of type {self.protocol_type!r} with other "
                f"assignors than the joining {join.protocol_type[:100]!r} with "
                f"{repr(sorted(offered))[:200]}. Use one "
                "partition.assignment.strategy in all members"
            )

    def _check_space(self) -> None:
        members_max = self._settings.members_per_group_max
        if len(self.members) + len(self.pending) >= members_max:
            raise GroupFullError(
                f"group {self.id!r} has {len(self.members)} members, which is the limit "
                f"({members_max}). New members can join after others leave"
            )

    def _rejoin(self, member: ClassicMember, join: Join, *, now: float) -> JoinResult | None:
        is_same = member.protocols == join.protocols
        if is_same and (
            self.phase == COMPLETING or (self.phase == STABLE and member.id != self.leader)
        ):
            member.renew(now)
            return self.join_result(member)  # the last response was lost
        member.protocols = join.protocols
        member.client_id, member.host = join.client_id, join.host
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        member.is_changed = True
        return self._await_generation(member, join, f"member {member.id} joins again", now=now)

    def _replace(self, old: ClassicMember, join: Join, *, now: float) -> JoinResult | None:
        """Replace a static member by a newer one with its instance ID: the old one is fenced."""
        new = _new_member(join)
        new.assignment = old.assignment
        was_leader, was_stable = self.leader == old.id, self.phase == STABLE
        self._remove(old, f"member {new.id} has its group.instance.id {join.instance_id!r}")
        self._put(new)
        if was_leader:
            self.leader = new.id
            self._is_phase_changed = True
        if not was_stable or not self._reads_the_same(old, new):
            why = f"static member {new.id} replaces {old.id}"
            return self._await_generation(new, join, why, now=now)
        self._changed[new.id] = None
        new.renew(now)
        result = self.join_result(new)
        if not was_leader:
            return result
        if join.may_skip_assignment:
            return msgspec.structs.replace(result, skip_assignment=True)
        # An older client that knew that it leads would assign: it gets its predecessor's ID.
        return msgspec.structs.replace(result, leader=old.id, members=())

    def _reads_the_same(self, old: ClassicMember, new: ClassicMember) -> bool:
        """Return whether the group would be assigned as before with ``new`` instead of ``old``.

        The bytes of a consumer's subscription also contain what it owned: only topics count.
        """
        if self._elected_protocol() != self.protocol:
            return False
        before, after = old.metadata(self.protocol), new.metadata(self.protocol)
        if self.protocol_type != CONSUMER:
            return before == after
        return subscribed_topics(before) == subscribed_topics(after)

    def _await_generation(
        self, member: ClassicMember, join: Join, why: str, *, now: float
    ) -> JoinResult | None:
        if len(self.members) == 1:
            self.protocol_type = join.protocol_type
        member.is_joining, member.is_syncing = True, False
        member.renew(now)
        if self.phase != PREPARING:
            said = f" ({join.reason[:_REASON_CHARS_MAX]!r})" if join.reason else ""
            self._prepare(why + said, now=now)
        self._complete_if_all_joined(now=now)
        return None if member.is_joining else self.join_result(member)

    # -- inside: phases ----------------------------------------------------------------------------

    def _prepare(self, why: str, *, now: float) -> None:
        """Begin a rebalance: every member must join again."""
        for member in self.members.values():
            if member.is_syncing:
                member.is_syncing = False
                member.renew(now)
                self.woken.add(member.id)
        delay = self._settings.initial_rebalance_delay_ms / 1_000
        self._is_first = self.phase == EMPTY and delay > 0
        seconds = self._rebalance_seconds
        if self._is_first:
            seconds, self._delay_left = min(delay, seconds), max(seconds - delay, 0.0)
            self._has_newcomer = False
        self.phase, self.phase_ends = PREPARING, now + seconds
        self._unsynced.clear()
        self._is_phase_changed = True
        self._notes.append(
            f"group rebalances: group={self.id!r} generation={self.generation} reason: {why}"
        )

    def _end_phase(self, *, now: float) -> None:
        """End the joins or the syncs at their deadline."""
        if self.phase == PREPARING:
            if self._is_first and self._has_newcomer and self._delay_left > 0:
                delay = self._settings.initial_rebalance_delay_ms / 1_000
                self.phase_ends = now + min(delay, self._delay_left)
                self._delay_left, self._has_newcomer = max(self._delay_left - delay, 0.0), False
            else:
                self._complete(now=now)
            return
        self.phase_ends = math.inf
        late = [self.members[name] for name in sorted(self._unsynced)]
        for member in late:
            self._remove(member, "it did not ask for its assignment within the rebalance timeout")
        if late:
            self._after_removal(f"{counted(len(late), 'member')} did not synchronize", now=now)

    def _complete_if_all_joined(self, *, now: float) -> None:
        if self.phase != PREPARING:
            return
        is_complete = not self._is_first and not self.pending
        if not self.members or (is_complete and all(m.is_joining for m in self.members.values())):
            self._complete(now=now)

    def _complete(self, *, now: float) -> None:
        """Begin a generation of the members that have joined.

        A static member that has not joined stays until its session ends (KIP-345).
        """
        for member in tuple(self.members.values()):
            if not member.is_joining and member.instance_id is None:
                self._remove(member, "it did not join again within the rebalance timeout")
        if not self.members:
            self._become_empty()
            return
        joined = [name for name, member in self.members.items() if member.is_joining]
        if not joined:
            self.phase_ends = now + self._rebalance_seconds
            return
        if self.leader not in joined:
            self.leader = joined[0]
        # guard: a generation is given once
        self.generation += 1
        self.protocol = self._elected_protocol()
        self.phase, self.phase_ends = COMPLETING, now + self._rebalance_seconds
        self._is_first = False
        self._is_phase_changed = True
        self._unsynced = set(self.members)
        for member in self.members.values():
            if member.is_changed:
                self._changed[member.id] = None
            if member.is_joining:
                member.is_joining = False
                member.renew(now)
                self.woken.add(member.id)

    def _assign(self, assignments: dict[str, bytes], *, now: float) -> None:
        self.phase = STABLE
        self._is_phase_changed = True
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")
            self._changed[member.id] = None
            if member.is_syncing:
                member.is_syncing = False
                member.renew(now)
                self.woken.add(member.id)

    def _become_empty(self) -> None:
        self.generation += 1
        self.phase, self.phase_ends = EMPTY, math.inf
        self.protocol = self.leader = ""  # the type stays, as in Kafka: tools show it
        self._unsynced.clear()
        self._is_first = False
        self._is_phase_changed = True

    def _elected_protocol(self) -> str:
        """Return the protocol that all members support and most prefer; the first of equal ones."""
        supported = [dict(member.protocols).keys() for member in self.members.values()]
        common = set(supported[0]).intersection(*supported)
        votes = Counter(
            next(name for name, _ in member.protocols if name in common)
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    # -- inside: members ---------------------------------------------------------------------------

    @property
    def _rebalance_seconds(self) -> float:
        timeouts = (member.rebalance_timeout_ms for member in self.members.values())
        return max(timeouts, default=0) / 1_000

    def _joined(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(name, member.instance_id, member.metadata(self.protocol))
            for name, member in self.members.items()
        )

    def _check_generation(self, member: ClassicMember, generation: int) -> None:
        # guard: a request of another generation is rejected
        if generation != self.generation:
            raise FencedMemberError(
                f"member {member.id} of group {self.id!r} is in generation {generation}, but the "
                f"group is in generation {self.generation}. It must join again"
            )

    def _put(self, member: ClassicMember) -> None:
        self.members[member.id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.id

    def _remove(self, member: ClassicMember, reason: str) -> None:
        del self.members[member.id]
        if member.instance_id is not None and self.instances[member.instance_id] == member.id:
            del self.instances[member.instance_id]
        self._unsynced.discard(member.id)
        self._changed.pop(member.id, None)
        if member.is_written:
            self._removed.append(member.id)
        self.woken.add(member.id)
        self._notes.append(
            f"member removed: group={self.id!r} member={member.id} "
            f"reason: {reason[:_REASON_CHARS_MAX]!r}"
        )

    def _after_removal(self, why: str, *, now: float) -> None:
        if self.phase in (STABLE, COMPLETING):
            self._prepare(why, now=now)
        self._complete_if_all_joined(now=now)

    def _rebalancing(self) -> RebalanceInProgressError:
        return RebalanceInProgressError(
            f"group {self.id!r} rebalances after generation {self.generation}. Join again"
        )


def member_of(key: ClassicMemberKey, value: ClassicMemberValue) -> ClassicMember:
    """Return the member of a record."""
    return ClassicMember(
        id=key.member,
        instance_id=value.instance_id,
        client_id=value.client_id,
        host=value.host,
        session_timeout_ms=value.session_timeout_ms,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        protocols=value.protocols,
        assignment=value.assignment,
        is_written=True,
        is_changed=False,
    )


def _value_of(member: ClassicMember) -> ClassicMemberValue:
    return ClassicMemberValue(
        version=1,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.host,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocols=member.protocols,
        assignment=member.assignment,
    )


def _new_member(join: Join) -> ClassicMember:
    return ClassicMember(
        id=join.member_id or join.new_member_id,
        instance_id=join.instance_id,
        client_id=join.client_id,
        host=join.host,
        session_timeout_ms=join.session_timeout_ms,
        rebalance_timeout_ms=join.rebalance_timeout_ms,
        protocols=join.protocols,
    )


def _check_bytes(group_id: str, values: Iterable[bytes], *, in_use: int = 0) -> None:
    """Raises ``InvalidRequestError`` if a value, or all with ``in_use``, are too large."""
    sizes = [len(value) for value in values]
    # guard: subscriptions and assignments are bounded
    if max(sizes, default=0) > limits.CLASSIC_METADATA_BYTES_MAX:
        raise InvalidRequestError(
            f"group {group_id!r}: a subscription or assignment of {max(sizes)} bytes. The maximum "
            f"is {limits.CLASSIC_METADATA_BYTES_MAX}"
        )
    # guard: all subscriptions of a group are bounded
    if in_use + sum(sizes) > limits.CLASSIC_GROUP_BYTES_MAX:
        raise InvalidRequestError(
            f"group {group_id!r}: subscriptions or assignments of {in_use + sum(sizes)} bytes in "
            f"total. The maximum is {limits.CLASSIC_GROUP_BYTES_MAX}"
        )
