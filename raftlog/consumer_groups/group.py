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
from collections.abc import Iterable

from raftlog.consumer_groups.classic import ClassicGroup
from raftlog.consumer_groups.classic_view import classic_view
from raftlog.consumer_groups.member import FormerMember, Member
from raftlog.consumer_groups.offsets import OffsetTable
from raftlog.consumer_groups.records import (
    FormerKey,
    FormerValue,
    GroupKey,
    GroupValue,
    Key,
    MemberKey,
    MemberValue,
    OffsetKey,
    OffsetValue,
    PartRows,
    Value,
    record,
)
from raftlog.consumer_groups.targets import World, choose_targets
from raftlog.consumer_groups.values import (
    CLASSIC_TYPE,
    GroupListing,
    GroupRecord,
    GroupView,
    Part,
    Parts,
    by_topic_id,
)
from raftlog.errors import InconsistentGroupProtocolError
from raftlog.types import TopicPartition


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
        self.epoch += 1
        self._group_changed = True
        self._own(new.assigned, new.id)
        self.heir.update(dict.fromkeys(new.target, new.id))
        new.epoch = new.known_epoch = self.epoch
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
        """Rejoin a member. Revoked partitions that are not in ``owned`` become free."""
        member.is_away = False
        released = [part for part in member.revoking if part not in owned]
        for part in released:
            del member.revoking[part]
        self._free(released)
        if not member.revoking:
            member.epoch = self.epoch
        member.known_epoch = member.epoch
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
        return bool(gone or offsets)

    # -- offsets -----------------------------------------------------------------------------------

    def has_owned(self, member_id: str, part: Part, *, since: int) -> bool:
        """Return whether the member owns the partition, and did so at epoch ``since``."""
        return self.owner.get(part) == member_id and self.owned_since[part] <= since

    def put_offset(self, where: TopicPartition, value: OffsetValue) -> None:
        self.offsets.put(where, value)
        self._write(OffsetKey(self.id, where.topic, where.partition), value)

    def forget_offsets(self, gone: Iterable[TopicPartition]) -> None:
        for where in gone:
            if self.offsets.remove(where):
                self._write(OffsetKey(self.id, where.topic, where.partition), None)

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
        keys: list[Key] = [
            *([] if self.classic is None else self.classic.written_keys()),
            *(MemberKey(self.id, name) for name in self.members),
            *(FormerKey(self.id, name) for name in former),
            *(OffsetKey(self.id, where.topic, where.partition) for where, _ in self.offsets),
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
