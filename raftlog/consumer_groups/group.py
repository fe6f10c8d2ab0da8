"""One consumer group: its members, their assignments, and the reconciliation with the targets.

The main invariant: **a partition is in ``assigned`` or ``revoking`` of at most one member**, and
``owner`` maps it to this member. A partition becomes free in two cases: its owner confirms the
revocation at its current epoch, or its owner is removed. It is then assigned to the member whose
target contains it. Two members therefore never own a partition at the same time. A removed member
that has not yet learned of its removal can still read, but its commits are rejected.

A rebalance computes new targets and moves no partition itself. Members with partitions outside
their target must revoke these, and members that lack partitions get the free ones (KIP-848). A
member whose assignment does not change is not modified, woken or written.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from raftlog import limits
from raftlog.consumer_groups.assignors import UNIFORM, Assignor, MemberSpec, Spec, checked, elected
from raftlog.consumer_groups.classic import ClassicGroup, ClassicMember
from raftlog.consumer_groups.values import (
    AWAY_EPOCH,
    CLASSIC_TYPE,
    CONSUMER,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_MEMBER_EPOCH,
    OFFSET_BELOW_0,
    PENDING_OFFSET,
    VERSION_MIN,
    Commit,
    Committed,
    FormerKey,
    FormerValue,
    GroupKey,
    GroupListing,
    GroupRecord,
    GroupSettings,
    GroupValue,
    GroupView,
    Heartbeat,
    HeartbeatResult,
    Interest,
    Key,
    MemberKey,
    MemberValue,
    MemberView,
    OffsetKey,
    OffsetValue,
    Part,
    PartRows,
    Parts,
    PendingKey,
    PendingValue,
    Share,
    StateChange,
    Topics,
    Value,
    assigned_partitions,
    by_topic_id,
    parts_of,
    record,
    subscribed_topics,
)
from raftlog.errors import (
    FencedMemberError,
    GroupFullError,
    GroupNotEmptyError,
    InconsistentGroupProtocolError,
    InstanceFencedError,
    InvalidRequestError,
    OffsetMovedError,
    PartitionNotOwnedError,
    RaftlogError,
    StaleMemberEpochError,
    ThrottledError,
    UnknownAssignorError,
    UnknownMemberError,
    UnknownPartitionError,
    UnknownTopicError,
    counted,
)
from raftlog.types import NO_LEADER_EPOCH, LeaderEpoch, Offset, TopicPartition, check_instance_id


class Group:
    """A consumer group.

    ``classic``: its members and their generation, if it is a classic group; it shares the offsets.

    ``owned_since``: group epoch at which the owner got the partition, or a later one up to the
    owner's epoch (after a change of the coordinator); its assignment epoch (KIP-1251).

    Invariants: ``owner`` and ``owned_since`` contain exactly the partitions in ``assigned`` and
    ``revoking`` of the members, ``heir`` (the next owner) exactly those in ``target``. Every member
    in ``instances`` exists. ``empty_since_ms`` is None if and only if the group has members of
    either kind.
    """

    __slots__ = (
        "_changed",
        "_group_changed",
        "_is_due",
        "_newcomers",
        "_records",
        "assignor",
        "classic",
        "empty_since_ms",
        "epoch",
        "former",
        "heir",
        "id",
        "instances",
        "members",
        "offsets",
        "owned_since",
        "owner",
        "pending",
        "subscriptions",
        "timer",
        "woken",
        "world",
    )

    def __init__(self, group_id: str, world: World) -> None:
        self.id = group_id
        self.world = world
        self.epoch = 0
        self.assignor = ""
        self.classic: ClassicGroup | None = None  # then ``members`` is empty
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}  # instance id -> member id
        self.former: dict[str, FormerMember] = {}
        self.owner: dict[Part, str] = {}
        self.owned_since: dict[Part, int] = {}
        self.heir: dict[Part, str] = {}
        self.offsets = OffsetTable()
        self.pending = PendingOffsets()
        self.subscriptions: frozenset[str] = frozenset()
        self.empty_since_ms: int | None = None
        self.timer = math.inf  # monotonic seconds; next check by the shard
        self.woken: set[str] = set()
        self._records: list[GroupRecord] = []
        self._changed: dict[str, None] = {}  # members with unwritten changes, in order
        self._group_changed = False
        self._newcomers: list[Member] | None = None  # since hold(); None: no batch of joins
        self._is_due = False  # whether go_on() must rebalance

    # -- questions ---------------------------------------------------------------------------------

    @property
    def member_count(self) -> int:
        """Number of members, of either kind."""
        return len(self.members) if self.classic is None else len(self.classic.members)

    @property
    def state(self) -> str:
        if self.classic is not None:
            return self.classic.phase
        if not self.members:
            return "empty"
        settled = all(member.is_settled for member in self.members.values())
        return "stable" if settled else "reconciling"

    @property
    def listing(self) -> GroupListing:
        classic = self.classic
        if classic is None:
            return GroupListing(self.id, self.state, len(self.members))
        type_ = classic.protocol_type
        return GroupListing(self.id, self.state, len(classic.members), CLASSIC_TYPE, type_)

    def subscribes_to(self, topic: str) -> bool:
        """Return whether a member reads ``topic``, or whether one may read it."""
        if self.classic is not None:
            return self.classic.subscribes_to(topic)
        return topic in self.subscriptions

    def view(self) -> GroupView:
        topics = self.world.topics
        if self.classic is not None:
            return classic_view(self.classic, topics)
        return GroupView(
            group=self.id,
            state=self.state,
            group_epoch=self.epoch,
            assignor=self.assignor,
            members=tuple(member.view(topics) for _, member in sorted(self.members.items())),
        )

    # -- the kind of the group ---------------------------------------------------------------------

    def begin_classic(self) -> ClassicGroup:
        """Return the classic members. An empty group becomes a classic group.

        Raises ``InconsistentGroupProtocolError`` if it has members of the consumer protocol.
        """
        if self.classic is None:
            if self.members:
                raise InconsistentGroupProtocolError(
                    f"group {self.id!r} has members with group.protocol=consumer, and the new one "
                    "has classic. Use one group.protocol in all members"
                )
            self.classic = ClassicGroup(self.id, self.world.settings, self.world.notes)
        return self.classic

    def check_not_classic(self) -> None:
        """Raises ``InconsistentGroupProtocolError`` if the group has classic members."""
        # guard: a group has members of one protocol
        if self.classic is not None and self.classic.members:
            raise InconsistentGroupProtocolError(
                f"group {self.id!r} has members with group.protocol=classic, and the new one has "
                "consumer. Use one group.protocol in all members"
            )

    def end_classic(self) -> None:
        """Forget the generations of a classic group without members. Its offsets stay."""
        if self.classic is not None:
            assert not self.classic.members
            self._records += [record(key, None) for key in self.classic.written_keys()]
            self.classic = None

    def note_emptiness(self, now_ms: int) -> None:
        """Record when the last member left, or that there are members again."""
        if self.member_count == 0 and self.empty_since_ms is None:
            self.empty_since_ms = now_ms
            self._group_changed = True
        elif self.member_count and self.empty_since_ms is not None:
            self.empty_since_ms = None
            self._group_changed = True

    # -- joins and removals ------------------------------------------------------------------------

    def admit(self, member: Member) -> None:
        """Add a new member without partitions. The caller must then rebalance the group."""
        self.end_classic()
        self.members[member.id] = member
        if member.id in self.former:
            self._forget_former(member.id)
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.id
        if self.empty_since_ms is not None or self.epoch == 0:
            self.empty_since_ms = None
            self._group_changed = True
        self.touch(member)

    def begin_with(self, member: Member, *, changed: bool, now: float) -> None:
        """Complete the join of an admitted or superseding member.

        ``changed``: whether the join requires a rebalance. Between ``hold`` and ``go_on``, the
        rebalance is delayed until ``go_on``.
        """
        if self._newcomers is not None:
            self._newcomers.append(member)
            self._is_due = self._is_due or changed
            return
        if changed:
            self.rebalance(now=now, changed=True)
        self._welcome(member)

    def hold(self) -> None:
        """Start a batch of joins: delay the rebalance until ``go_on``."""
        if self._newcomers is None:
            self._newcomers, self._is_due = [], False

    def go_on(self, *, now: float) -> None:
        """End the batch of joins with at most one rebalance for all members since ``hold``."""
        newcomers, self._newcomers = self._newcomers or (), None
        if self._is_due:
            self._is_due = False
            self.rebalance(now=now, changed=True)
        for member in newcomers:
            self._welcome(member)

    def _welcome(self, member: Member) -> None:
        """Set the epoch of a new member. A member without partitions gets the group epoch too."""
        if not member.revoking:
            member.epoch = self.epoch
        member.known_epoch = member.epoch
        member.answer = None

    def expel(self, member: Member, reason: str, *, now: float, now_ms: int) -> None:
        """Remove a member and release its partitions. The caller must then rebalance the group."""
        self._forget_member(member)
        self._free([*member.assigned, *member.revoking])
        self.remember(member, reason, instance_id=None, now=now)
        if not self.members:
            self.empty_since_ms = now_ms
            self._group_changed = True

    def supersede(self, old: Member, new: Member, *, now: float) -> None:
        """Replace ``old`` by ``new``, which has the same instance ID and gets its partitions.

        The change takes effect immediately, without a revocation: ``old`` is fenced. If ``old`` was
        temporarily absent, it had released the instance ID and can use it again. The group gets a
        new epoch, so that no epoch of a partition has had two owners: otherwise, if ``old``
        returned later, its commits of before would be accepted, and overwrite those of ``new``.
        """
        assert old.instance_id is not None
        assert old.instance_id == new.instance_id
        self._forget_member(old)
        self._free(old.revoking)
        self.members[new.id] = new
        if new.id in self.former:
            self._forget_former(new.id)
        self.instances[old.instance_id] = new.id
        new.assigned, new.target = old.assigned, old.target
        # guard: a takeover has a new epoch
        self.epoch += 1
        self._group_changed = True
        self._own(new.assigned, new.id)
        self.heir.update(dict.fromkeys(new.target, new.id))
        new.epoch = new.known_epoch = self.epoch
        # guard: a member that lost its instance stays fenced
        lost = None if old.is_away else old.instance_id
        reason = f"a newer member, {new.id}, has its group.instance.id {new.instance_id!r}"
        self.remember(old, reason, instance_id=lost, now=now)
        self.touch(new)
        self.hand_out([new.id, *self._heirs(old.revoking)])

    def remember(self, member: Member, reason: str, *, instance_id: str | None, now: float) -> None:
        """Keep a removed member as a ``FormerMember``, and write it if it lost ``instance_id``."""
        former = FormerMember(reason, member.sequence, member.session_timeout_ms, instance_id)
        self.former[member.id] = former.begun_anew(now)
        if instance_id is not None:
            value = FormerValue(1, instance_id, former.timeout_ms, former.sequence)
            self._write(FormerKey(self.id, member.id), value)
        while len(self.former) > self.world.settings.members_per_group_max:
            self._forget_former(next(iter(self.former)))

    def forget_former(self, *, now: float) -> None:
        """Remove the former members whose retention time is over."""
        for name in [name for name, former in self.former.items() if former.until <= now]:
            self._forget_former(name)

    # -- reconciliation ----------------------------------------------------------------------------

    def release(self, member: Member, owned: Parts) -> None:
        """Release the revoked partitions that the member no longer reports in ``owned``."""
        released = [part for part in member.revoking if part not in owned]
        if not released:
            return
        for part in released:
            del member.revoking[part]
        self._free(released)
        if not member.revoking:
            member.epoch = self.epoch
        self.touch(member)
        self.hand_out([member.id, *self._heirs(released)])

    def set_away(self, member: Member) -> None:
        """Mark a static member as temporarily absent: it keeps ``assigned``, not ``revoking``."""
        member.is_away = True
        released = list(member.revoking)
        member.revoking.clear()
        self._free(released)
        self.touch(member)
        self.hand_out([member.id, *self._heirs(released)])

    def come_back(self, member: Member, owned: Parts) -> None:
        """Rejoin a member. Revoked partitions that are not in ``owned`` become free.

        Of assigned partitions that are not in ``owned`` it has lost its positions, and reads the
        committed offsets again. A commit that it sent before, and that comes after this, must not
        be accepted: the member gets a new epoch, and owns them since then.
        """
        member.is_away = False
        lost = member.assigned - owned
        # guard: a member that joins again gets a new epoch
        if lost:
            self.epoch += 1
            self._group_changed = True
        released = [part for part in member.revoking if part not in owned]
        for part in released:
            del member.revoking[part]
        self._free(released)
        if not member.revoking:
            member.epoch = self.epoch
        member.known_epoch = member.epoch
        self.owned_since.update(dict.fromkeys(lost, member.epoch))
        self.touch(member)
        self.hand_out([member.id, *self._heirs(released)])

    def rebalance(self, *, now: float, changed: bool) -> None:
        """Compute the target assignment and start the reconciliation.

        ``changed``: whether members or subscriptions changed. Then the group gets a new epoch even
        if no partition moves.
        """
        targets, assignor = choose_targets(self.id, self.members, self.owner, self.world)
        moved = [m for m in self.members.values() if m.target != targets[m.id]]
        self.subscriptions = frozenset(
            topic for member in self.members.values() for topic in member.topics
        )
        if not (changed or moved or assignor != self.assignor):
            self.hand_out(self.members)  # free after a topic deletion or an incomplete change
            return
        self.epoch += 1
        self.assignor = assignor
        self._group_changed = True
        for member in moved:
            member.target = targets[member.id]
            self._changed[member.id] = None
        self.heir = {part: name for name, target in targets.items() for part in target}
        for member in moved:
            self._ask_back(member, now=now)
        self.hand_out(self.members)

    def hand_out(self, names: Iterable[str]) -> None:
        """Assign the free partitions of their targets to the members, except while they revoke."""
        for name in names:
            member = self.members[name]
            if member.revoking:
                continue
            # guard: a partition is reassigned once it is released
            gained = [p for p in member.target - member.assigned if p not in self.owner]
            if gained:
                member.assigned |= frozenset(gained)
                member.epoch = self.epoch
                self._own(gained, name)
                self.touch(member)

    def forget_gone_topics(self) -> bool:
        """Remove partitions and offsets of deleted topics. Returns whether there were any: then the
        caller must rebalance.
        """
        topics = self.world.topics
        gone = {part for part in (*self.owner, *self.heir) if not topics.has(part)}
        for member in self.members.values() if gone else ():
            had, awaited = member.assigned, len(member.revoking)
            if not gone.isdisjoint(member.target):
                member.target -= gone
                self.write(member)
            member.assigned -= gone
            for part in gone.intersection(member.revoking):
                del member.revoking[part]
            if awaited and not member.revoking:
                member.epoch = self.epoch
            if member.assigned != had or awaited != len(member.revoking):
                self.touch(member)
        for part in gone:
            self.owner.pop(part, None)
            self.owned_since.pop(part, None)
            self.heir.pop(part, None)
        offsets = self.offsets.without_topic(topics)
        self.forget_offsets(offsets)
        pending = self.pending.without_topic(topics)
        self.forget_pending(pending)
        return bool(gone or offsets or pending)

    # -- offsets -----------------------------------------------------------------------------------

    def has_owned(self, member_id: str, part: Part, *, since: int) -> bool:
        """Return whether the member owns the partition, and did so at epoch ``since``."""
        # guard: an older epoch commits only what the member has had since then
        return self.owner.get(part) == member_id and self.owned_since[part] <= since

    def put_offset(self, where: TopicPartition, value: OffsetValue) -> None:
        """Commit an offset. It replaces pending ones too: they were written before it."""
        self._commit_offset(where, value)
        self.forget_pending(self.pending.of(where))

    def forget_offsets(self, gone: Iterable[TopicPartition]) -> None:
        """Delete committed offsets, and those of open transactions."""
        for where in gone:
            if self.offsets.remove(where):
                self._write(OffsetKey(self.id, where.topic, where.partition), None)
            self.forget_pending(self.pending.of(where))

    def put_pending(self, producer_id: int, where: TopicPartition, value: PendingValue) -> None:
        self.pending.put(producer_id, where, value)
        key = PendingKey(producer_id, self.id, where.topic, where.partition)
        self._write(key, value)

    def forget_pending(self, gone: Iterable[tuple[int, TopicPartition]]) -> None:
        for producer_id, where in gone:
            if self.pending.remove(producer_id, where) is not None:
                key = PendingKey(producer_id, self.id, where.topic, where.partition)
                self._write(key, None)

    def end_pending(self, producer_id: int, *, is_commit: bool) -> None:
        """Commit, or drop, all offsets of the producer's transaction.

        Those of other open transactions that were written earlier are dropped with a commit: the
        last written offset counts.
        """
        for where, value in self.pending.by(producer_id):
            self.forget_pending([(producer_id, where)])
            if is_commit:
                self._commit_offset(where, value.offset)
                # guard: the last written offset of a partition counts
                self.forget_pending(self.pending.of(where, before=value.order))

    def _commit_offset(self, where: TopicPartition, value: OffsetValue) -> None:
        self.offsets.put(where, value)
        self._write(OffsetKey(self.id, where.topic, where.partition), value)

    # -- the log -----------------------------------------------------------------------------------

    def touch(self, member: Member) -> None:
        """Mark the heartbeat response of a member as changed: write the member and wake it."""
        member.answer = None
        self._changed[member.id] = None
        self.woken.add(member.id)

    def write(self, member: Member) -> None:
        """Mark a member as changed. Its heartbeat response stays the same."""
        self._changed[member.id] = None

    def write_group(self) -> None:
        self._group_changed = True

    def changed_members(self) -> list[Member]:
        """Return the members that changed since the last ``take_records``."""
        return [self.members[name] for name in self._changed]

    def take_records(self) -> list[GroupRecord]:
        """Return the records of all changes since the last call."""
        if self._group_changed:
            self._write(GroupKey(self.id), self._group_value())
        for name in self._changed:
            self._write(MemberKey(self.id, name), _member_value(self.members[name]))
        if self.classic is not None:
            self._records += self.classic.take_records()
        taken, self._records = self._records, []
        self._changed, self._group_changed = {}, False
        return taken

    def tombstones(self) -> list[GroupRecord]:
        """Return a tombstone for every key of the group in the log."""
        former = [name for name, one in self.former.items() if one.instance_id is not None]
        # guard: each key of a deleted group has its tombstone
        keys: list[Key] = [
            *([] if self.classic is None else self.classic.written_keys()),
            *(MemberKey(self.id, name) for name in self.members),
            *(FormerKey(self.id, name) for name in former),
            *(OffsetKey(self.id, where.topic, where.partition) for where, _ in self.offsets),
            *(
                PendingKey(producer_id, self.id, where.topic, where.partition)
                for producer_id, where in self.pending
            ),
            GroupKey(self.id),
        ]
        return [record(key, None) for key in keys]

    # -- helpers -----------------------------------------------------------------------------------

    def _write(self, key: Key, value: Value | None) -> None:
        self._records.append(record(key, value))

    def _group_value(self) -> GroupValue:
        version = self.world.topics.version
        return GroupValue(1, self.epoch, version, self.empty_since_ms, self.assignor)

    def _forget_member(self, member: Member) -> None:
        del self.members[member.id]
        if self.instances.get(member.instance_id or "") == member.id:
            del self.instances[member.instance_id or ""]
        self._changed.pop(member.id, None)
        self._write(MemberKey(self.id, member.id), None)
        self.woken.add(member.id)

    def _forget_former(self, name: str) -> None:
        if self.former.pop(name).instance_id is not None:
            self._write(FormerKey(self.id, name), None)

    def _own(self, parts: Iterable[Part], name: str) -> None:
        self.owner.update(dict.fromkeys(parts, name))
        self.owned_since.update(dict.fromkeys(parts, self.epoch))

    def _free(self, parts: Iterable[Part]) -> None:
        for part in parts:
            del self.owner[part], self.owned_since[part]

    def _heirs(self, parts: Iterable[Part]) -> list[str]:
        """Return the next owners of the partitions, each once."""
        found = (self.heir.get(part) for part in parts)
        return [name for name in dict.fromkeys(found) if name is not None and name in self.members]

    def _ask_back(self, member: Member, *, now: float) -> None:
        """Revoke the partitions outside the member's target.

        An absent member does not read, so its partitions are free immediately.
        """
        extra = member.assigned - member.target
        if not extra:
            return
        member.assigned -= extra
        if member.is_away:
            self._free(extra)
        else:
            # guard: the time for a revocation is limited
            until = now + member.rebalance_timeout_ms / 1_000
            member.revoking.update(dict.fromkeys(extra, until))
        self.touch(member)


def rows_of(parts: Iterable[Part]) -> PartRows:
    return dict(by_topic_id(parts))


def _member_value(member: Member) -> MemberValue:
    assigned = rows_of(member.assigned)
    return MemberValue(
        version=1,
        epoch=member.epoch,
        known_epoch=member.known_epoch,
        sequence=member.sequence,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.host,
        rack=member.rack,
        topics=member.topics,
        assignor=member.assignor,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        is_away=member.is_away,
        assigned=assigned,
        revoking=rows_of(member.revoking),
        target=assigned if member.is_settled else rows_of(member.target),
        interest=member.interest,
    )


# -- member ----------------------------------------------------------------------------------------
#
# Current and former members of a group: the state that the coordinator stores for them.
#
# ``group`` implements the rules that change this state.


FENCED_SECONDS_MIN: Final = 3_600.0


@dataclass(slots=True, eq=False)
class Member:
    """A member of a consumer group.

    Invariants: ``assigned`` is a subset of ``target``; ``assigned`` and ``revoking`` are disjoint;
    ``known_epoch <= epoch``. ``revoking`` of a temporarily absent member is empty.
    """

    id: str
    instance_id: str | None
    client_id: str
    host: str
    rack: str
    topics: tuple[str, ...]  # sorted, without duplicates
    assignor: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    sequence: int  # highest sequence of all heartbeats
    epoch: int = 0  # group epoch when ``assigned`` last grew or ``revoking`` became empty
    known_epoch: int = 0  # highest epoch that the member has confirmed
    is_away: bool = False
    assigned: Parts = frozenset()
    revoking: dict[Part, float] = field(default_factory=dict)  # deadlines in monotonic seconds
    target: Parts = frozenset()
    session_ends: float = math.inf
    timer: float = math.inf  # monotonic seconds; next check by the shard
    interest: Interest | None = None  # of a subscription by regular expression
    matched: Topics | None = None  # the topics that ``interest`` was last matched with
    connection: int = 0  # number of the newest connection of a Kafka member
    said: Heartbeat | None = None  # last applied heartbeat; None after a failover
    # Cached response to a heartbeat that changes nothing:
    answer: StateChange[HeartbeatResult] | None = None

    @property
    def is_settled(self) -> bool:
        """True if the member owns exactly its target assignment."""
        return not self.revoking and self.assigned == self.target

    @property
    def due(self) -> float:
        """Monotonic seconds of the next deadline: the session end or a revocation deadline."""
        return (
            min(self.session_ends, *self.revoking.values())
            if self.revoking
            else (self.session_ends)
        )

    def renew(self, now: float) -> None:
        """Restart the session of the member."""
        # guard: a session ends
        self.session_ends = now + self.session_timeout_ms / 1_000

    def steady_answer(self, topics: Topics) -> StateChange[HeartbeatResult]:
        """Return the heartbeat response, cached until the epoch or the assignment changes."""
        if self.answer is None:
            self.answer = StateChange(HeartbeatResult(self.epoch, topics.shares(self.assigned)))
        return self.answer

    def says_the_same(self, heartbeat: Heartbeat) -> bool:
        """Return whether only the sequence differs and ``owned`` equals the last response."""
        said, answer = self.said, self.answer
        return (
            said is not None
            and answer is not None
            and heartbeat.owned == answer.result.assignment
            and heartbeat.member_epoch == self.epoch
            and heartbeat.topics == said.topics
            and heartbeat.session_timeout_ms == said.session_timeout_ms
            and heartbeat.rebalance_timeout_ms == said.rebalance_timeout_ms
            and heartbeat.instance_id == said.instance_id
            and heartbeat.assignor == said.assignor
            and heartbeat.interest == said.interest
        )

    def view(self, topics: Topics) -> MemberView:
        return MemberView(
            member_id=self.id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            host=self.host,
            member_epoch=self.epoch,
            session_timeout_ms=self.session_timeout_ms,
            is_away=self.is_away,
            rack=self.rack,
            subscription=self.topics,
            interest=self.interest,
            parts_assigned=self.assigned,
            parts_revoking=frozenset(self.revoking),
            parts_target=self.target,
            known=topics,
        )


@dataclass(frozen=True, slots=True)
class FormerMember:
    """A removed member. ``instance_id``: the instance ID that it lost to a newer member, or None.

    Stored until ``until`` (monotonic seconds), so that delayed heartbeats do not add the member
    again. Members that lost their instance ID are also written to the log, because the next
    coordinator must keep them fenced.
    """

    reason: str
    sequence: int
    timeout_ms: int
    instance_id: str | None = None
    until: float = math.inf

    def begun_anew(self, now: float) -> FormerMember:
        """Return a copy whose retention time starts at ``now``, as on a new coordinator."""
        return replace(self, until=now + self.seconds)

    @property
    def seconds(self) -> float:
        """Retention time in seconds: the session timeout; at least 3,600 s for a fenced member."""
        seconds = self.timeout_ms / 1_000
        return seconds if self.instance_id is None else max(seconds, FENCED_SECONDS_MIN)


# -- heartbeats ------------------------------------------------------------------------------------
#
# Heartbeats: join, stay, release, leave, temporary absence. All checks precede all changes.
#
# **Sequences.** A heartbeat with a sequence that is not higher than the last one changes nothing
# and does not renew the session, because it may be delayed. The response contains the current
# state. A heartbeat that a member sent before it knew of a partition must not count as a release of
# it, also after a failover. Every change of a member is therefore written with its highest
# sequence. A heartbeat whose ``owned`` lacks some assigned partitions is also written, even without
# other changes.
#
# **Epochs.** Responses can be lost. A member can therefore be at any epoch from its highest
# confirmed epoch (``known_epoch``) to its current one. It releases partitions at its current epoch
# only, because only then does it know its whole assignment.


def take(group: Group, heartbeat: Heartbeat, *, now: float, now_ms: int) -> HeartbeatResult:
    """Apply a heartbeat and return the response.

    ``now``: monotonic seconds. ``now_ms``: wall-clock milliseconds. Raises the errors of
    ``GroupShard.heartbeat``. If it raises, the group is unchanged.
    """
    member = group.members.get(heartbeat.member_id)
    if member is None:
        return _join(group, heartbeat, now=now)
    # guard: an old heartbeat has no effect
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
    # guard: a late join restores no member
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
    # guard: a release counts at the member's current epoch
    if epoch < member.epoch:
        had = member.assigned.union(member.revoking)
        claimed = [part for part in owned - had if group.world.topics.has(part)]
        # guard: no member claims partitions of others at an old epoch
        if claimed:
            raise FencedMemberError(
                f"member {member.id} of group {group.id!r}, at epoch {epoch} of {member.epoch}, "
                f"reports {counted(len(claimed), 'partition')} that it does not own. It must join "
                "again"
            )
    else:
        group.release(member, owned)
    # guard: a heartbeat that is answered with an assignment is written
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


# -- targets ---------------------------------------------------------------------------------------
#
# Target assignments: select an assignor, run it, validate its result, or fall back.


@dataclass(slots=True)
class World:
    """State shared by all groups of a shard. ``notes``: pending lines for the broker log."""

    settings: GroupSettings
    assignors: Mapping[str, Assignor]
    topics: Topics = field(default_factory=Topics)
    assignor_failures: int = 0
    notes: list[str] = field(default_factory=list)


def choose_targets(
    group_id: str, members: Mapping[str, Member], owner: Mapping[Part, str], world: World
) -> tuple[dict[str, Parts], str]:
    """Return the target assignment of each member, and the name of the assignor that computed it.

    If an assignor raises or returns an invalid result, ``uniform`` computes the targets. The
    failure is counted and logged.
    """
    if not members:
        return {}, ""
    spec = _spec(members, owner, world.topics)
    votes = (m.assignor if m.assignor in world.assignors else None for m in members.values())
    name = elected(votes, world.settings.default_assignor)
    assignor = world.assignors[name]
    assigned: Mapping[str, Collection[TopicPartition]]
    if assignor is UNIFORM:
        assigned = UNIFORM.assign(spec)
    else:
        try:
            assigned = checked(assignor.assign(spec), spec)
        except Exception as error:  # noqa: BLE001 - a plug-in can raise any exception
            world.assignor_failures += 1
            world.notes.append(
                f"assignor failed: group={group_id!r} assignor={name!r} "
                f"fallback={UNIFORM.name!r} error={error!r}. Correct the plug-in"
            )
            assigned, name = UNIFORM.assign(spec), UNIFORM.name
    ids = {topic: world.topics.by_name[topic].id for topic in spec.partitions}
    targets = {
        member: frozenset((ids[topic], number) for topic, number in partitions)
        for member, partitions in assigned.items()
    }
    return targets, name


def _spec(members: Mapping[str, Member], owner: Mapping[Part, str], topics: Topics) -> Spec:
    """Return the input of the assignor. A partition without a target counts for its owner."""
    owned: dict[str, set[TopicPartition]] = {name: set() for name in members}
    targeted: set[Part] = set()
    for name, member in members.items():
        targeted |= member.target
        owned[name].update(TopicPartition(topics.names[t], p) for t, p in member.target)
    for part, name in owner.items():
        if part not in targeted:
            owned[name].add(TopicPartition(topics.names[part[0]], part[1]))
    specs = {
        name: MemberSpec(
            topics=frozenset(member.topics),
            owned=frozenset(owned[name]),
            instance_id=member.instance_id,
            client_id=member.client_id,
            rack=member.rack,
        )
        for name, member in members.items()
    }
    wanted = frozenset[str]().union(*(spec.topics for spec in specs.values()))
    partitions = {
        topic: topics.by_name[topic].partition_count
        for topic in sorted(wanted)
        if topic in topics.by_name
    }
    # Read-only: a plug-in must not change the data that its result is validated against.
    return Spec(MappingProxyType(specs), MappingProxyType(partitions))


# -- commits ---------------------------------------------------------------------------------------
#
# Offset commits: authorization of the committer, validation of each offset, and the commit.


def check_committer(
    group: Group | None,
    group_id: str,
    member_id: str,
    member_epoch: int,
    offsets: Sequence[Commit],
    instance_id: str | None = None,
    *,
    is_transactional: bool = False,
    now: float,
) -> None:
    """Check that the sender is a member at its current epoch, or that the group has no members.

    A member may also be at an earlier epoch, if it has owned all partitions in ``offsets`` since
    then: its next heartbeat response is on the way, and no other member has read them (KIP-1251).
    ``member_id``: ``""`` for a commit by a client that is not a member; ``member_epoch`` is then
    ``NO_MEMBER_EPOCH``. It is the generation of a classic member, whose session the commit renews.
    A Kafka client that never joined may have made a member ID already: its epoch is negative.
    ``instance_id``: of a classic member only. ``is_transactional``: a commit in a transaction,
    which fences the committer itself: it need not be a member (Kafka's clients before KIP-447), and
    a generation that its members are still told of is complete. Raises ``InvalidRequestError``,
    ``GroupNotEmptyError``, ``StaleMemberEpochError``, ``FencedMemberError``,
    ``UnknownMemberError``, ``InstanceFencedError`` or ``RebalanceInProgressError``.
    """
    if not member_id:
        if member_epoch >= 0 or (is_transactional and instance_id is not None):
            raise UnknownMemberError(
                f"commit in group {group_id!r} with generation {member_epoch} and instance ID "
                f"{instance_id!r}, but without a member ID. Pass what the consumer says of itself"
            )
        if is_transactional:
            return
        if member_epoch != NO_MEMBER_EPOCH:
            raise InvalidRequestError(
                f"commit with member epoch {member_epoch} and no member ID. Members must send "
                f"both, other clients neither (epoch {NO_MEMBER_EPOCH})"
            )
        # guard: no outside commit for a group with members
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
        group.classic.check_commit(
            member_id, instance_id, member_epoch, is_transactional=is_transactional, now=now
        )
        return
    member = check_member(group, group_id, member_id)
    if member_epoch < 0:
        raise InvalidRequestError(
            f"commit of member {member_id} with member epoch {member_epoch}: the minimum is 0"
        )
    # guard: an older epoch commits nothing
    if member_epoch < member.epoch and not _has_owned(group, member, offsets, since=member_epoch):
        raise StaleMemberEpochError(
            f"member {member_id} of group {group_id!r} is at epoch {member.epoch}, and the "
            f"commit has epoch {member_epoch}. Commit again after the next heartbeat response"
        )
    # guard: an unknown epoch commits nothing
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
    # guard: clients that are not members have no order among them
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
    # guard: a commit that arrives late replaces no newer one of the member
    if error is None and not (sequence and _is_late(group, where, committer, sequence)):
        group.put_offset(where, _value(group, offset, committer, sequence, now_ms=now_ms))
    return error


def _value(
    group: Group, offset: Commit, committer: str, sequence: int, *, now_ms: int
) -> OffsetValue:
    topics = group.world.topics
    return OffsetValue(
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


def commit_pending(
    group: Group,
    producer_id: int,
    producer_epoch: int,
    offsets: Sequence[Commit],
    topic_ids: Mapping[str, str],
    *,
    coordinator_epoch: LeaderEpoch,
    now_ms: int,
) -> list[RaftlogError | None]:
    """Keep each valid offset until the producer's transaction ends. Return one item per offset:
    None, or the reason for rejection.

    It replaces an earlier one of the same transaction and partition.
    """
    results: list[RaftlogError | None] = []
    for offset in offsets:
        where = TopicPartition(offset.topic, offset.partition)
        error = _refusal(group, None, offset, topic_ids)
        if error is None:
            order = group.pending.last_order(where) + 1
            committed = _value(group, offset, "", 0, now_ms=now_ms)
            value = PendingValue(
                PENDING_OFFSET, producer_epoch, order, committed, coordinator_epoch
            )
            group.put_pending(producer_id, where, value)
        results.append(error)
    return results


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
    # guard: a commit is for one topic id
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
    # guard: only the owner of a partition commits for it
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
        # guard: a commit replaces only the offset that it expects
        if found not in (offset.expected, offset.offset):  # the latter: it is sent again
            return OffsetMovedError(
                f"the committed offset of {where} in group {group.id!r} is {_shown(found)}, not "
                f"{_shown(offset.expected)}: it was committed in the meantime"
            )
    offsets_max = group.world.settings.offsets_per_group_max
    count = group.offsets.count + group.pending.count
    if where not in group.offsets and not group.pending.has(where) and count >= offsets_max:
        return ThrottledError(
            f"group {group.id!r} has committed offsets of {count} partitions, "
            f"which is the limit ({offsets_max}). Delete unneeded ones"
        )
    return None


def _shown(offset: int) -> str:
    return "none" if offset < 0 else str(offset)


# -- offsets ---------------------------------------------------------------------------------------
#
# Committed offsets of one group: storage, lookup and expiry. ``commits`` checks the committer.


class OffsetTable:
    """Committed offsets by topic and partition.

    An offset is valid for one topic ID. If a topic is deleted and recreated with the same name, its
    old offsets are ignored.
    """

    __slots__ = ("_topics", "count")

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, OffsetValue]] = {}
        self.count = 0

    def __iter__(self) -> Iterator[tuple[TopicPartition, OffsetValue]]:
        """Iterate over all offsets, sorted by topic and partition.

        Each topic's partitions are copied first, so the caller can remove the current item.
        """
        for topic in sorted(self._topics):
            for partition, value in sorted(self._topics[topic].items()):
                yield TopicPartition(topic, partition), value

    def __contains__(self, where: TopicPartition) -> bool:
        return where.partition in self._topics.get(where.topic, ())

    def value(self, where: TopicPartition) -> OffsetValue | None:
        """Return what is stored for a partition, possibly of an earlier topic of that name."""
        return self._topics.get(where.topic, {}).get(where.partition)

    def put(self, where: TopicPartition, value: OffsetValue) -> None:
        partitions = self._topics.setdefault(where.topic, {})
        self.count += where.partition not in partitions
        partitions[where.partition] = value

    def remove(self, where: TopicPartition) -> bool:
        """Remove an offset. Return whether it existed."""
        partitions = self._topics.get(where.topic)
        if partitions is None or partitions.pop(where.partition, None) is None:
            return False
        self.count -= 1
        if not partitions:
            del self._topics[where.topic]
        return True

    def topics(self) -> list[str]:
        """Return the names of the topics, sorted."""
        return sorted(self._topics)

    def of_topic(self, topic: str, topic_id: str) -> list[tuple[int, Offset]]:
        """Return the partitions of a topic and their offsets, in any order."""
        return [
            (partition, value.offset)
            for partition, value in self._topics.get(topic, {}).items()
            if value.topic_id == topic_id
        ]

    def committed(self, where: TopicPartition, topics: Topics) -> Committed:
        """Return the committed offset, or offset -1 if there is none for the current topic ID."""
        value = self._topics.get(where.topic, {}).get(where.partition)
        info = topics.by_name.get(where.topic)
        # guard: an offset is found for its topic id only
        if value is None or info is None or value.topic_id != info.id:
            return Committed(where.topic, where.partition)
        return Committed(
            topic=where.topic,
            partition=where.partition,
            offset=value.offset,
            leader_epoch=max(value.leader_epoch, NO_LEADER_EPOCH),
            metadata=value.metadata,
            committed_at_ms=value.committed_at_ms,
        )

    def without_topic(self, topics: Topics) -> list[TopicPartition]:
        """Return the partitions whose offsets belong to deleted topics."""
        return sorted(
            TopicPartition(topic, partition)
            for topic, partitions in self._topics.items()
            for partition, value in partitions.items()
            if value.topic_id not in topics.names
        )

    def committed_before(self, time_ms: int) -> list[TopicPartition]:
        """Return the partitions whose last commit is older than ``time_ms``."""
        return [where for where, value in self if value.committed_at_ms < time_ms]


class PendingOffsets:
    """Offsets of open transactions, by producer ID and by partition."""

    __slots__ = ("_by_producer", "_producers", "count")

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[TopicPartition, PendingValue]] = {}
        self._producers: dict[TopicPartition, dict[int, None]] = {}
        self.count = 0

    def __iter__(self) -> Iterator[tuple[int, TopicPartition]]:
        """Iterate over their keys: producer ID and partition."""
        return ((each, where) for each, found in self._by_producer.items() for where in found)

    def has(self, where: TopicPartition) -> bool:
        return where in self._producers

    def by(self, producer_id: int) -> list[tuple[TopicPartition, PendingValue]]:
        """Return the offsets of a producer, in any order."""
        return list(self._by_producer.get(producer_id, {}).items())

    def value(self, producer_id: int, where: TopicPartition) -> PendingValue:
        return self._by_producer[producer_id][where]

    def count_of(self, producer_id: int) -> int:
        return len(self._by_producer.get(producer_id, ()))

    def of(
        self, where: TopicPartition, *, before: int | None = None
    ) -> list[tuple[int, TopicPartition]]:
        """Return the keys of the offsets of a partition; with an order below ``before`` only."""
        return [
            (producer_id, where)
            for producer_id in self._producers.get(where, ())
            if before is None or self._by_producer[producer_id][where].order < before
        ]

    def last_order(self, where: TopicPartition) -> int:
        """Return the highest order of a partition's offsets, 0 if there are none."""
        producers = self._producers.get(where, ())
        return max((self._by_producer[each][where].order for each in producers), default=0)

    def put(self, producer_id: int, where: TopicPartition, value: PendingValue) -> None:
        found = self._by_producer.setdefault(producer_id, {})
        self.count += where not in found
        found[where] = value
        self._producers.setdefault(where, {})[producer_id] = None

    def remove(self, producer_id: int, where: TopicPartition) -> PendingValue | None:
        """Remove an offset. Return it, or None if there is none."""
        found = self._by_producer.get(producer_id, {})
        value = found.pop(where, None)
        if value is None:
            return None
        self.count -= 1
        if not found:
            del self._by_producer[producer_id]
        del self._producers[where][producer_id]
        if not self._producers[where]:
            del self._producers[where]
        return value

    def without_topic(self, topics: Topics) -> list[tuple[int, TopicPartition]]:
        """Return the keys of the offsets of deleted topics."""
        return [
            (producer_id, where)
            for producer_id, found in self._by_producer.items()
            for where, value in found.items()
            if value.offset.topic_id not in topics.names
        ]


# -- classic view ----------------------------------------------------------------------------------
#
# Description of a classic group: what its members' bytes contain, where they can be read.


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
