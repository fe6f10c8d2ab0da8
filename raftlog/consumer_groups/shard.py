"""All groups of one partition of ``__consumer_offsets``, as their coordinator has them in memory.

Every operation changes the state at once, and returns the records that say so. Whoever performs it
appends them as one batch, and tells nobody of it before they are committed; nor of anything that
was read meanwhile. If they cannot be committed, the shard is thrown away, and the next coordinator
makes its own from the log.

Pure: time is an argument. ``now`` is in monotonic seconds (sessions, deadlines), ``now_ms`` the
wall clock's milliseconds (commit times). What expires has a time of its own, ``expiry_ms``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from raftlog.consumer_groups import commits, heartbeats, replaying
from raftlog.consumer_groups.assignors import Assignor
from raftlog.consumer_groups.group import Group
from raftlog.consumer_groups.records import GroupValue, OffsetValue, decode_key, decode_value
from raftlog.consumer_groups.settings import GroupSettings
from raftlog.consumer_groups.targets import World
from raftlog.consumer_groups.timers import Timers
from raftlog.consumer_groups.values import (
    Commit,
    Committed,
    GroupListing,
    GroupRecord,
    GroupView,
    Heartbeat,
    HeartbeatResult,
    StateChange,
    TopicInfo,
    Topics,
)
from raftlog.errors import (
    CoordinatorLoadingError,
    GroupNotEmptyError,
    RaftlogError,
    ThrottledError,
    UnknownGroupError,
)
from raftlog.types import TopicPartition, check_group_id

T = TypeVar("T")

CHECK_MS_MAX: Final = 600_000  # Kafka's offsets.retention.check.interval.ms
TICK_RECORDS_MAX: Final = 10_000  # about where a tick ends, for the next one to go on


class GroupShard:
    """Begin with ``replay`` of the whole log, then ``start``; from then on, no more ``replay``.

    ``skipped_records`` counts those of newer releases.
    """

    def __init__(self, settings: GroupSettings, assignors: Mapping[str, Assignor]) -> None:
        """``assignors``: those that members may ask for, by name.

        Raises ``ValueError`` if ``settings.default_assignor`` is not among them.
        """
        if settings.default_assignor not in assignors:
            raise ValueError(f"no assignor has the name {settings.default_assignor!r}")
        self.skipped_records = 0
        self._world = World(settings, assignors)
        self._groups: dict[str, Group] = {}
        self._timers = Timers()
        self._watchers: dict[str, set[str]] = {}  # topic -> groups that subscribe to it
        self._watched: dict[str, frozenset[str]] = {}  # group -> the topics that it watches
        self._topics_version_min = 0  # what the log's last coordinator had seen
        self._is_started = False

    @property
    def assignor_failures(self) -> int:
        """How often an assignor failed, and ``uniform`` stood in for it."""
        return self._world.assignor_failures

    @property
    def is_started(self) -> bool:
        """False until ``start``, and as long as the topics given are older than the log knows."""
        return self._is_started

    # -- the log -----------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take over one record of the log; ``start`` comes after the last.

        Raises ``InvalidRequestError`` for bytes that no release has written, and has then changed
        nothing. Kinds and versions of newer releases are counted and left alone.
        """
        assert not self._is_started
        decoded = decode_key(key)
        if decoded is None:
            self.skipped_records += 1
        elif value is None:
            replaying.remove(self._groups, decoded)
        else:
            content = decode_value(decoded, value)
            if content is None:
                self.skipped_records += 1
                return
            if isinstance(content, GroupValue | OffsetValue):
                seen = content.topics_version
                self._topics_version_min = max(self._topics_version_min, seen)
            replaying.put(self._groups, self._world, decoded, content)

    def start(
        self, topics: Mapping[str, TopicInfo], *, version: int, now: float, now_ms: int
    ) -> StateChange[None]:
        """Leadership begins. All sessions begin anew, and so do the times to give partitions up.

        ``version``: of the cluster's state that ``topics`` is of. Offsets are lost with their
        topic; so a coordinator that has not heard yet of a topic must not judge. If the log was
        written with a newer version, the shard refuses everything with ``CoordinatorLoadingError``
        until ``set_topics`` brings that.
        """
        assert not self._is_started
        self._world.topics = Topics(dict(topics), version)
        if version < self._topics_version_min:
            return StateChange(None)
        self._is_started = True
        for name, group in list(self._groups.items()):
            replaying.complete(group, now=now, now_ms=now_ms)
            group.forget_gone_topics()
            group.rebalance(now=now, changed=False)
            for member in group.members.values():
                member.timer = member.due
                self._timers.add(member.due, name, member.id)
        return self._finish(None, list(self._groups.values()), now=now)

    def set_topics(
        self, topics: Mapping[str, TopicInfo], *, version: int, now: float, now_ms: int
    ) -> StateChange[None]:
        """Topics came, went or grew: rebalance the groups that subscribe to them.

        Offsets of topics that are no more go, also if there is another one of the same name. An
        older version than the last one changes nothing. Raises nothing.
        """
        if not self._is_started:
            return self.start(topics, version=version, now=now, now_ms=now_ms)
        old, new = self._world.topics, Topics(dict(topics), version)
        if version < old.version:
            return StateChange(None)
        self._world.topics = new
        names = old.by_name.keys() | new.by_name.keys()
        changed = {name for name in names if old.by_name.get(name) != new.by_name.get(name)}
        touched = {group for name in changed for group in self._watchers.get(name, ())}
        if not old.names.keys() <= new.names.keys():  # rare: then every group is looked at
            for group in self._groups.values():
                group.forget_gone_topics()
            touched.update(self._groups)
        groups = [self._groups[name] for name in sorted(touched)]
        for group in groups:
            group.rebalance(now=now, changed=False)
        return self._finish(None, groups, now=now)

    # -- members -----------------------------------------------------------------------------------

    def heartbeat(
        self, heartbeat: Heartbeat, *, now: float, now_ms: int
    ) -> StateChange[HeartbeatResult]:
        """A member joins, stays, releases, is away or leaves.

        Raises ``InvalidGroupError`` (the group's name, the instance's), ``InvalidRequestError``
        (timeouts, too many topics, an instance id that changes), ``UnknownAssignorError``,
        ``ThrottledError`` (too many members, or groups), ``UnknownMemberError``,
        ``FencedMemberError``, ``InstanceFencedError``, ``CoordinatorLoadingError``. After one of
        them nothing has changed.
        """
        group = self._groups.get(heartbeat.group)
        if group is not None:
            member = group.members.get(heartbeat.member_id)
            if (
                member is not None
                and heartbeat.sequence > member.sequence
                and not member.revoking
                and not member.is_away
                and member.says_the_same(heartbeat)
                and self._is_started
            ):
                # Nearly all heartbeats are such: nothing changes but the session.
                member.sequence = heartbeat.sequence
                member.known_epoch = member.epoch
                member.renew(now)
                return member.steady_answer(self._world.topics)
        self._check_started()
        if group is None:
            group = self._new_group(heartbeat.group)
        beat = heartbeats.take(group, heartbeat, now=now, now_ms=now_ms)
        self._groups[group.id] = group
        return self._finish(beat, [group], now=now)

    def join_all(
        self, joins: Sequence[Heartbeat], *, now: float, now_ms: int
    ) -> StateChange[list[HeartbeatResult | RaftlogError]]:
        """``heartbeat`` for several that join, in order; with one rebalance for those of a group.

        The result has what each is answered, or refused with. Raises ``CoordinatorLoadingError``.
        """
        self._check_started()
        held: dict[str, Group] = {}
        refused: dict[int, RaftlogError] = {}
        for index, join in enumerate(joins):
            try:
                group = self._groups.get(join.group)
                if group is None:
                    group = self._new_group(join.group)
                else:
                    held[group.id] = group
                group.hold()
                heartbeats.take(group, join, now=now, now_ms=now_ms)
            except RaftlogError as error:
                refused[index] = error
            else:
                self._groups[group.id] = held[group.id] = group
        for group in held.values():
            group.go_on(now=now)
        outcomes: list[HeartbeatResult | RaftlogError] = []
        for index, join in enumerate(joins):
            try:
                outcomes.append(refused.get(index) or self.beat(join.group, join.member_id))
            except RaftlogError as error:  # another one of these has taken its place
                outcomes.append(error)
        return self._finish(outcomes, held.values(), now=now)

    def beat(self, group: str, member_id: str) -> HeartbeatResult:
        """What a heartbeat of the member that waits is to be answered with now.

        Raises ``UnknownMemberError``, ``InstanceFencedError`` or ``CoordinatorLoadingError``.
        """
        self._check_started()
        found = self._groups.get(group)
        member = heartbeats.check_member(found, group, member_id)
        return member.steady_answer(self._world.topics).result

    # -- offsets -----------------------------------------------------------------------------------

    def commit(
        self,
        group: str,
        member_id: str,
        member_epoch: int,
        offsets: Sequence[Commit],
        topic_ids: Mapping[str, str],
        *,
        now: float,
        now_ms: int,
    ) -> StateChange[list[RaftlogError | None]]:
        """Commit offsets, each on its own: the result says which were refused, and why.

        By a member at its epoch; or by nobody (``""``, ``NO_MEMBER_EPOCH``), which takes a group
        without members, and makes one if there is none. ``topic_ids`` may say which topic is meant.

        Raises ``UnknownMemberError``, ``InstanceFencedError``, ``StaleMemberEpochError``,
        ``FencedMemberError``, ``GroupNotEmptyError``, ``InvalidGroupError``,
        ``InvalidRequestError``, ``ThrottledError``, ``CoordinatorLoadingError``: then nothing is
        committed. Refused one by one: ``UnknownTopicError``, ``UnknownPartitionError``,
        ``PartitionNotOwnedError``, ``InvalidRequestError``, ``ThrottledError``.
        """
        self._check_started()
        found = self._groups.get(group)
        commits.check_committer(found, group, member_id, member_epoch)
        if found is None:
            found = self._new_group(group)
        results = commits.commit(found, member_id, offsets, topic_ids, now_ms=now_ms)
        if found.id not in self._groups:
            if all(results):
                return StateChange(results)  # nothing to make a group for
            found.empty_since_ms = now_ms
            found.write_group()
            self._groups[found.id] = found
        return self._finish(results, [found], now=now)

    def fetch(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> list[Committed]:
        """What is committed for each of the partitions; for None, whatever there is.

        A partition without an offset, or a group that does not exist, has offset -1. Raises
        ``InvalidGroupError`` or ``CoordinatorLoadingError``.
        """
        self._check_started()
        check_group_id(group)
        found, topics = self._groups.get(group), self._world.topics
        if partitions is None:
            return (
                [found.offsets.committed(where, topics) for where, _ in found.offsets]
                if (found)
                else []
            )
        if found is None:
            return [Committed(topic, partition) for topic, partition in partitions]
        return [found.offsets.committed(TopicPartition(*where), topics) for where in partitions]

    def delete_offsets(
        self, group: str, partitions: Sequence[TopicPartition], *, now: float
    ) -> StateChange[list[RaftlogError | None]]:
        """Forget these offsets. One that there is not is no error.

        ``GroupNotEmptyError`` for those of topics to which a member subscribes. Raises
        ``UnknownGroupError`` or ``CoordinatorLoadingError``.
        """
        found = self._existing(group)
        results: list[RaftlogError | None] = []
        for topic, partition in partitions:
            if topic in found.subscriptions:
                error = GroupNotEmptyError(
                    f"members of group {group!r} subscribe to topic {topic!r}: stop them first"
                )
                results.append(error)
            else:
                found.forget_offsets([TopicPartition(topic, partition)])
                results.append(None)
        return self._finish(results, [found], now=now)

    # -- groups ------------------------------------------------------------------------------------

    def list(self) -> list[GroupListing]:
        """All groups, by name. Raises ``CoordinatorLoadingError``."""
        self._check_started()
        return [
            GroupListing(name, group.state, len(group.members))
            for name, group in sorted(self._groups.items())
        ]

    def describe(self, group: str) -> GroupView:
        """Raises ``UnknownGroupError`` or ``CoordinatorLoadingError``."""
        return self._existing(group).view()

    def delete_group(self, group: str) -> StateChange[None]:
        """Forget the group and its offsets.

        Raises ``GroupNotEmptyError``, ``UnknownGroupError`` or ``CoordinatorLoadingError``.
        """
        found = self._existing(group)
        if found.members:
            raise GroupNotEmptyError(
                f"group {group!r} has {len(found.members)} members: stop its consumers first"
            )
        return StateChange(None, tuple(self._drop(found)))

    # -- time --------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """When ``tick`` is to be called, in monotonic seconds; None: no need. May be too early."""
        return self._timers.next_at

    def tick(self, *, now: float, now_ms: int, expiry_ms: int | None) -> StateChange[None]:
        """End what is over: sessions, times to give partitions up, what was kept long enough.

        ``expiry_ms``: the time by which offsets expire; None: it is not known, and none expires.
        It does a bounded amount of work: if ``deadline`` is past still, call it again.
        """
        at = self._timers.next_at
        if at is None or not self._is_started:
            return StateChange(None)
        grace = self._world.settings.grace_ms / 1_000
        has_stood_still = now - at > grace
        touched: dict[str, Group] = {}
        records: list[GroupRecord] = []
        while len(records) < TICK_RECORDS_MAX and (due := self._timers.pop_due(now)):
            at, name, member_id = due
            group = self._groups.get(name)
            if group is None:
                continue
            if member_id:
                if self._look_at(group, member_id, at, has_stood_still, now=now, now_ms=now_ms):
                    touched[name] = group
            elif group.timer == at:
                group.timer = math.inf
                records += self._tidy(group, now=now, expiry_ms=expiry_ms)
                touched[name] = group
                if name not in self._groups:
                    del touched[name]
        for group in touched.values():
            if any(name not in group.members for name in group.woken):
                group.rebalance(now=now, changed=True)
        step = self._finish(None, list(touched.values()), now=now)
        return StateChange(None, (*records, *step.records), step.wake, step.notes)

    def _look_at(
        self,
        group: Group,
        member_id: str,
        at: float,
        has_stood_still: bool,
        *,
        now: float,
        now_ms: int,
    ) -> bool:
        """Whether the member had to go."""
        member = group.members.get(member_id)
        if member is None or member.timer != at:
            return False
        if has_stood_still and member.session_ends <= now:
            # Nobody could be heard meanwhile: give what waits in our sockets a chance.
            member.session_ends = now + self._world.settings.grace_ms / 1_000
        if member.session_ends <= now:
            reason = f"nothing was heard of it for {member.session_timeout_ms} ms, its session"
        elif any(until <= now for until in member.revoking.values()):
            reason = (
                f"it did not give up partitions within {member.rebalance_timeout_ms} ms: poll more "
                "often, or give it a higher max_poll_interval_ms"
            )
        else:
            member.timer = member.due
            self._timers.add(member.timer, group.id, member_id)
            return False
        self._world.notes.append(f"member {member_id} of group {group.id!r} is out: {reason}")
        group.expel(member, reason, now=now, now_ms=now_ms)
        return True

    # -- parts of the above ------------------------------------------------------------------------

    def _check_started(self) -> None:
        if not self._is_started:
            raise CoordinatorLoadingError(
                "this coordinator is still reading the groups' state: try again in a moment"
            )

    def _existing(self, group: str) -> Group:
        self._check_started()
        found = self._groups.get(group)
        if found is None:
            check_group_id(group)
            raise UnknownGroupError(f"there is no consumer group {group!r}")
        return found

    def _new_group(self, name: str) -> Group:
        check_group_id(name)
        groups_max = self._world.settings.groups_max
        if len(self._groups) >= groups_max:
            raise ThrottledError(
                f"this coordinator has {len(self._groups)} groups, which is the limit "
                f"({groups_max}). Delete unneeded groups"
            )
        return Group(name, self._world)

    def _drop(self, group: Group) -> Sequence[GroupRecord]:
        """The group is no more."""
        del self._groups[group.id]
        self._watch(group, frozenset())
        return group.tombstones()

    def _tidy(self, group: Group, *, now: float, expiry_ms: int | None) -> Sequence[GroupRecord]:
        """What a group need not keep any longer; maybe itself."""
        group.forget_former(now=now)
        if group.empty_since_ms is None or expiry_ms is None:
            return ()
        retention_ms = self._world.settings.offsets_retention_ms
        if group.empty_since_ms + retention_ms <= expiry_ms:
            old = group.offsets.committed_before(expiry_ms - retention_ms + 1)
            group.forget_offsets(old[:TICK_RECORDS_MAX])
        if group.offsets.count or group.empty_since_ms + self._check_ms > expiry_ms:
            return ()
        return (*group.take_records(), *self._drop(group))

    @property
    def _check_ms(self) -> int:
        """How often a group without members is looked at."""
        return max(1, min(CHECK_MS_MAX, self._world.settings.offsets_retention_ms))

    def _finish(self, result: T, groups: Iterable[Group], *, now: float) -> StateChange[T]:
        """Collect what has changed, and set timers for it."""
        records: list[GroupRecord] = []
        wake: set[tuple[str, str]] = set()
        for group in groups:
            for member in group.changed_members():
                if member.due < member.timer:
                    member.timer = member.due
                    self._timers.add(member.timer, group.id, member.id)
            if group.timer == math.inf and (group.former or group.empty_since_ms is not None):
                group.timer = now + self._check_ms / 1_000
                self._timers.add(group.timer, group.id)
            self._watch(group, group.subscriptions)
            wake.update((group.id, name) for name in group.woken)
            group.woken.clear()
            records += group.take_records()
        notes = tuple(self._world.notes)
        self._world.notes.clear()
        return StateChange(result, tuple(records), frozenset(wake), notes)

    def _watch(self, group: Group, topics: frozenset[str]) -> None:
        before = self._watched.get(group.id, frozenset())
        if before == topics:
            return
        for topic in before - topics:
            self._watchers[topic].discard(group.id)
            if not self._watchers[topic]:
                del self._watchers[topic]
        for topic in topics - before:
            self._watchers.setdefault(topic, set()).add(group.id)
        if topics:
            self._watched[group.id] = topics
        else:
            del self._watched[group.id]
