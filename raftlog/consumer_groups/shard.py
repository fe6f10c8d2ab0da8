"""All groups of one partition of ``__consumer_offsets``: the coordinator's state in memory.

Every operation changes the state immediately and returns the records of the change. The caller
appends these records as one batch. Until they are committed, it must not send the result, nor the
result of a later read. If they cannot be committed, the caller discards the shard, and the next
coordinator builds a new one from the log.

The module is pure: time is an argument. ``now`` is in monotonic seconds (sessions, deadlines),
``now_ms`` in wall-clock milliseconds (commit times). ``expiry_ms`` is a separate time that decides
which offsets expire.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple, TypeVar

from raftlog import limits
from raftlog.consumer_groups import group as group_state
from raftlog.consumer_groups.assignors import Assignor
from raftlog.consumer_groups.classic import ClassicGroup, member_of
from raftlog.consumer_groups.group import FormerMember, Group, Member, World
from raftlog.consumer_groups.values import (
    JOIN_EPOCH,
    ClassicKey,
    ClassicMemberKey,
    ClassicMemberValue,
    ClassicValue,
    Commit,
    Committed,
    Departure,
    FormerKey,
    FormerValue,
    GroupKey,
    GroupListing,
    GroupRecord,
    GroupSettings,
    GroupValue,
    GroupView,
    Heartbeat,
    HeartbeatDelta,
    HeartbeatResult,
    Interest,
    Join,
    JoinResult,
    Key,
    MemberKey,
    MemberValue,
    OffsetKey,
    OffsetValue,
    Part,
    PartRows,
    PendingKey,
    PendingValue,
    Share,
    StateChange,
    Sync,
    SyncResult,
    TopicInfo,
    Topics,
    Value,
    decode_key,
    decode_value,
)
from raftlog.errors import (
    CoordinatorLoadingError,
    GroupNotEmptyError,
    InstanceInUseError,
    InvalidRequestError,
    ProducerFencedError,
    RaftlogError,
    StaleTransactionCoordinatorError,
    ThrottledError,
    TransactionAbortedError,
    UnknownGroupError,
    UnknownMemberError,
    counted,
)
from raftlog.record.key_hash import partition_of_key
from raftlog.transactions import Marker
from raftlog.types import LeaderEpoch, Offset, TopicPartition, check_group_id

T = TypeVar("T")

CHECK_MS_MAX: Final = 600_000  # Kafka's offsets.retention.check.interval.ms
CLASSIC_TIMER: Final = "\0classic"  # instead of a member: the deadlines of a classic group
TICK_RECORDS_MAX: Final = 10_000  # approximate number of records after which a tick ends


class PendingGuard(NamedTuple):
    """What a commit in a transaction depends on, from before its coordinator was asked: no marker
    of the producer may arrive in between (KIP-890). Otherwise, a late commit would belong to no
    transaction, and stay pending.

    ``has_begun``: the transaction has pending offsets in the shard, or the last one has reserved
    it, so its coordinator knows that it extends to the shard. ``coordinator_epoch``: lower limit of
    that of the coordinator that confirms it.
    """

    groups: GroupShard
    producer_id: int
    producer_epoch: int
    coordinator_epoch: LeaderEpoch
    has_begun: bool
    markers_seen: int


class PendingTransaction(NamedTuple):
    """The pending offsets of a producer, by partition and order of commit: another commit changes
    them. ``coordinator_epoch``: of the producer's last marker, 0 without one.
    """

    producer_epoch: int
    coordinator_epoch: LeaderEpoch
    offsets: frozenset[tuple[str, TopicPartition, int]]


class _Open(NamedTuple):
    """The transaction of a producer with pending offsets, and the groups that have or had some.

    ``coordinator_epoch``: lower limit of that of its marker. In version 1 of transactions, the next
    one has the same epoch: a late marker of a replaced coordinator would end it.
    """

    producer_epoch: int
    coordinator_epoch: LeaderEpoch
    groups: dict[str, None]


class _Ended(NamedTuple):
    """The last marker of a producer. ``number``: of the shard's markers. ``is_bumped``,
    ``reserves``: as in ``Marker``.
    """

    producer_epoch: int
    coordinator_epoch: LeaderEpoch
    number: int
    is_bumped: bool
    reserves: bool


class GroupShard:
    """Groups of one coordinator. Call ``replay`` for each record of the log, then ``start`` once.

    ``skipped_records``: number of replayed records of newer releases, which are ignored.
    """

    def __init__(self, settings: GroupSettings, assignors: Mapping[str, Assignor]) -> None:
        """``assignors``: the assignors that members can select, by name.

        Raises ``ValueError`` if ``settings.default_assignor`` is not one of them.
        """
        if settings.default_assignor not in assignors:
            raise ValueError(f"default assignor {settings.default_assignor!r} does not exist")
        self.skipped_records = 0
        self._world = World(settings, assignors)
        self._groups: dict[str, Group] = {}
        self._timers = Timers()
        self._watchers: dict[str, set[str]] = {}  # topic -> groups that subscribe to it
        self._watched: dict[str, frozenset[str]] = {}  # group -> topics that it subscribes to
        self._topics_version_min = 0  # highest cluster-state version in the log
        self._is_started = False
        self._open: dict[int, _Open] = {}  # by producer id
        self._ended: dict[int, _Ended] = {}  # by producer id, the last marker last
        self._markers_seen = 0
        self._markers_forgotten = 0  # number of the last one that is no longer in ``_ended``

    @property
    def assignor_failures(self) -> int:
        """Number of times that an assignor failed and was replaced by ``uniform``."""
        return self._world.assignor_failures

    @property
    def is_started(self) -> bool:
        """True after ``start`` with topics that are at least as new as the log."""
        return self._is_started

    # -- the log -----------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log. Call ``start`` after the last record.

        Ignores and counts kinds and versions of newer releases. Raises ``InvalidRequestError`` if
        the bytes are not a valid record; the state is then unchanged.
        """
        assert not self._is_started
        decoded = decode_key(key)
        if decoded is None:
            self.skipped_records += 1
        elif value is None:
            remove(self._groups, decoded)
        else:
            content = decode_value(decoded, value)
            if content is None:
                self.skipped_records += 1
                return
            if isinstance(content, GroupValue | OffsetValue):
                seen = content.topics_version
                self._topics_version_min = max(self._topics_version_min, seen)
            elif isinstance(content, PendingValue):
                seen = content.offset.topics_version
                self._topics_version_min = max(self._topics_version_min, seen)
            put(self._groups, self._world, decoded, content)

    def start(
        self, topics: Mapping[str, TopicInfo], *, version: int, now: float, now_ms: int
    ) -> StateChange[None]:
        """Become the coordinator. Restart all sessions and revocation deadlines.

        ``version``: cluster-state version of ``topics``. The coordinator deletes the offsets of
        deleted topics, so it must know every topic that the last coordinator knew. If the log
        contains a newer version, all requests fail with ``CoordinatorLoadingError`` until
        ``set_topics`` provides that version.
        """
        assert not self._is_started
        self._world.topics = Topics(dict(topics), version)
        # guard: a coordinator with older metadata than the log does not decide
        if version < self._topics_version_min:
            return StateChange(None)
        self._is_started = True
        for name, group in list(self._groups.items()):
            complete(group, now=now, now_ms=now_ms)
            group.forget_gone_topics()
            for producer_id, where in group.pending:
                value = group.pending.value(producer_id, where)
                self._note_open(producer_id, value.producer_epoch, value.coordinator_epoch, name)
            group.rebalance(now=now, changed=False)
            for member in group.members.values():
                member.timer = member.due
                self._timers.add(member.due, name, member.id)
            if group.classic is not None:
                self._plan(group.classic)
        return self._finish(None, list(self._groups.values()), now=now)

    def set_topics(
        self, topics: Mapping[str, TopicInfo], *, version: int, now: float, now_ms: int
    ) -> StateChange[None]:
        """Apply created, deleted and extended topics, and rebalance the groups that use them.

        Deletes the offsets of deleted topics, also if a new topic has the same name. Ignores a
        ``version`` that is older than the last one. Raises no errors.
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
        if not old.names.keys() <= new.names.keys():  # rare: a topic was deleted
            touched |= {name for name, group in self._groups.items() if group.forget_gone_topics()}
        groups = [self._groups[name] for name in sorted(touched)]
        for group in groups:
            group.rebalance(now=now, changed=False)
        return self._finish(None, groups, now=now)

    # -- members -----------------------------------------------------------------------------------

    def heartbeat(
        self, heartbeat: Heartbeat, *, now: float, now_ms: int
    ) -> StateChange[HeartbeatResult]:
        """Process a heartbeat: join, stay, release, temporary absence or leave.

        Raises ``InvalidGroupError`` (group or instance ID), ``InvalidRequestError`` (timeouts, too
        many topics, changed instance ID), ``UnknownAssignorError``, ``ThrottledError`` (too many
        members or groups), ``UnknownMemberError``, ``FencedMemberError``, ``InstanceFencedError``
        or ``CoordinatorLoadingError``. If it raises, the state is unchanged.
        """
        group = self._groups.get(heartbeat.group)
        if group is not None:
            member = group.members.get(heartbeat.member_id)
            # guard: an old heartbeat extends no session
            if (
                member is not None
                and heartbeat.sequence > member.sequence
                and not member.revoking
                and not member.is_away
                and member.says_the_same(heartbeat)
                and self._is_started
            ):
                # Fast path of nearly all heartbeats: only the session changes.
                member.sequence = heartbeat.sequence
                member.known_epoch = member.epoch
                member.renew(now)
                return member.steady_answer(self._world.topics)
        self._check_started()
        if group is None:
            group = self._new_group(heartbeat.group)
        beat = group_state.take(group, heartbeat, now=now, now_ms=now_ms)
        self._groups[group.id] = group
        return self._finish(beat, [group], now=now)

    @property
    def topics(self) -> Topics:
        """The topics that it knows, of which subscriptions are a part."""
        return self._world.topics

    def interest(self, group: str, member_id: str) -> tuple[Interest | None, Topics | None]:
        """Return the regular expression of a member, and the topics that it was last matched with:
        None after a join or a failover.
        """
        found = self._groups.get(group)
        member = None if found is None else found.members.get(member_id)
        return (None, None) if member is None else (member.interest, member.matched)

    def complete(self, delta: HeartbeatDelta) -> Heartbeat:
        """Return the heartbeat of a Kafka member with the fields that it omits.

        Raises ``InvalidRequestError``, ``InstanceInUseError`` or ``CoordinatorLoadingError``.
        """
        self._check_started()
        return complete_heartbeat(self._groups.get(delta.group), delta, self._world.topics)

    def join_all(
        self, joins: Sequence[Heartbeat], *, now: float, now_ms: int
    ) -> StateChange[list[HeartbeatResult | RaftlogError]]:
        """Process several joins in order, with one rebalance per group.

        Returns the response or the error of each join. Raises ``CoordinatorLoadingError``.
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
                group_state.take(group, join, now=now, now_ms=now_ms)
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
            except RaftlogError as error:  # superseded by a later join of this batch
                outcomes.append(error)
        return self._finish(outcomes, held.values(), now=now)

    def beat(self, group: str, member_id: str) -> HeartbeatResult:
        """Return the current response for a waiting heartbeat of the member.

        Raises ``UnknownMemberError``, ``InstanceFencedError`` or ``CoordinatorLoadingError``.
        """
        self._check_started()
        found = self._groups.get(group)
        member = group_state.check_member(found, group, member_id)
        return member.steady_answer(self._world.topics).result

    # -- classic members ---------------------------------------------------------------------------

    def join(self, join: Join, *, now: float, now_ms: int) -> StateChange[JoinResult | None]:
        """Process a join of a classic member. The result is None while the member has to wait.

        The member is woken when ``join_result`` has a result. Raises ``InvalidGroupError``,
        ``InvalidRequestError`` (timeout, too many bytes or protocols), ``UnknownMemberError``,
        ``InstanceFencedError``, ``InconsistentGroupProtocolError``, ``GroupFullError``,
        ``ThrottledError`` or ``CoordinatorLoadingError``. If it raises, the state is unchanged.
        """
        self._check_started()
        group = self._groups.get(join.group)
        if group is None:
            if join.member_id:
                check_group_id(join.group)
                raise UnknownMemberError(
                    f"consumer group {join.group!r} does not exist. The member must join again"
                )
            group = self._new_group(join.group)
        was_classic = group.classic is not None
        classic = group.begin_classic()
        try:
            result = classic.join(join, now=now)
        except RaftlogError:
            if not was_classic:
                group.classic = None
            raise
        self._groups[group.id] = group
        return self._finish_classic(result, group, classic, now=now, now_ms=now_ms)

    def join_result(self, group: str, member_id: str, instance_id: str | None) -> JoinResult:
        """Return the result of a member that waited for its join.

        Raises ``UnknownMemberError``, ``InstanceFencedError``, ``RebalanceInProgressError`` or
        ``CoordinatorLoadingError``.
        """
        classic = self._classic(group, member_id)[1]
        return classic.join_result(classic.check_member(member_id, instance_id))

    def sync(self, sync: Sync, *, now: float, now_ms: int) -> StateChange[SyncResult | None]:
        """Process a request for an assignment. The result is None while the member has to wait.

        The member is woken when ``sync_result`` has a result. Raises ``UnknownMemberError``,
        ``InstanceFencedError``, ``FencedMemberError`` (another generation),
        ``InconsistentGroupProtocolError``, ``RebalanceInProgressError``, ``InvalidRequestError``
        (too many bytes) or ``CoordinatorLoadingError``. If it raises, the state is unchanged.
        """
        group, classic = self._classic(sync.group, sync.member_id)
        result = classic.sync(sync, now=now)
        return self._finish_classic(result, group, classic, now=now, now_ms=now_ms)

    def sync_result(self, group: str, member_id: str, instance_id: str | None) -> SyncResult:
        """Return the result of a member that waited for its assignment.

        Raises the errors of ``join_result``.
        """
        classic = self._classic(group, member_id)[1]
        return classic.sync_result(classic.check_member(member_id, instance_id))

    def classic_heartbeat(
        self, group: str, member_id: str, instance_id: str | None, generation: int, *, now: float
    ) -> StateChange[None]:
        """Renew the session of a classic member.

        Raises ``UnknownMemberError``, ``InstanceFencedError``, ``FencedMemberError`` (another
        generation), ``RebalanceInProgressError`` (the member must join again) or
        ``CoordinatorLoadingError``.
        """
        classic = self._classic(group, member_id)[1]
        classic.heartbeat(member_id, instance_id, generation, now=now)
        return StateChange(None)

    def leave(
        self, group: str, departures: Sequence[Departure], *, now: float, now_ms: int
    ) -> StateChange[list[RaftlogError | None]]:
        """Remove classic members. The result has one item each: None, or why it is rejected.

        Errors of single members: ``UnknownMemberError``, ``InstanceFencedError``. Raises
        ``UnknownMemberError`` if there is no such classic group, or ``CoordinatorLoadingError``.
        """
        found, classic = self._classic(group, departures[0].member_id if departures else "")
        outcomes = classic.leave(departures, now=now)
        return self._finish_classic(outcomes, found, classic, now=now, now_ms=now_ms)

    def _classic(self, group: str, member_id: str) -> tuple[Group, ClassicGroup]:
        self._check_started()
        found = self._groups.get(group)
        if found is None or found.classic is None:
            check_group_id(group)
            raise UnknownMemberError(
                f"member {member_id[:100]!r} is unknown: there is no classic group {group!r}"
            )
        return found, found.classic

    def _finish_classic(
        self, result: T, group: Group, classic: ClassicGroup, *, now: float, now_ms: int
    ) -> StateChange[T]:
        group.note_emptiness(now_ms)
        self._plan(classic)
        return self._finish(result, [group], now=now)

    # -- offsets -----------------------------------------------------------------------------------

    def commit(
        self,
        group: str,
        member_id: str,
        member_epoch: int,
        offsets: Sequence[Commit],
        topic_ids: Mapping[str, str],
        *,
        instance_id: str | None = None,
        by_owner: bool = True,
        sequence: int = 0,
        now: float,
        now_ms: int,
    ) -> StateChange[list[RaftlogError | None]]:
        """Commit offsets. The result has one item per offset: None, or the reason for rejection.

        ``member_id``, ``member_epoch``: a member at its current epoch (its generation in a classic
        group), or at one since which it has owned all these partitions; or ``""`` and
        ``NO_MEMBER_EPOCH`` if the group has no members. Such a commit creates the group if it does
        not exist. ``topic_ids``: expected topic ID by topic name, optional per topic.
        ``instance_id``: of a classic static member. ``by_owner``: whether to reject partitions
        that are assigned to another member; Kafka does not, the epoch fences. ``sequence``: see
        ``group_state.commit``.

        Raises ``UnknownMemberError``, ``InstanceFencedError``, ``StaleMemberEpochError``,
        ``FencedMemberError``, ``RebalanceInProgressError``, ``GroupNotEmptyError``,
        ``InvalidGroupError``, ``InvalidRequestError``, ``ThrottledError`` or
        ``CoordinatorLoadingError``; then no offset is committed. Errors of single offsets:
        ``UnknownTopicError``, ``UnknownPartitionError``, ``PartitionNotOwnedError``,
        ``OffsetMovedError``, ``InvalidRequestError``, ``ThrottledError``.
        """
        self._check_started()
        found = self._groups.get(group)
        group_state.check_committer(
            found, group, member_id, member_epoch, offsets, instance_id, now=now
        )
        if found is None:
            found = self._new_group(group)
        results = group_state.commit(
            found,
            member_id,
            offsets,
            topic_ids,
            by_owner=by_owner,
            sequence=sequence,
            now_ms=now_ms,
        )
        if found.id not in self._groups:
            if all(results):
                return StateChange(results)  # no valid offset: the group is not created
            found.empty_since_ms = now_ms
            found.write_group()
            self._groups[found.id] = found
        return self._finish(results, [found], now=now)

    def fetch(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
    ) -> list[Committed]:
        """Return the committed offsets of ``partitions``, or all of the group if it is None.

        The offset is -1 if none is committed or the group does not exist. ``require_stable``: also
        if an open transaction holds a new one, see ``Committed.is_stable``. Raises
        ``InvalidGroupError`` or ``CoordinatorLoadingError``.
        """
        self._check_started()
        check_group_id(group)
        found = self._groups.get(group)
        if partitions is None:
            names = [] if found is None else [where for where, _ in found.offsets]
        else:
            names = [TopicPartition(*where) for where in partitions]
        if found is None:
            return [Committed(topic, partition) for topic, partition in names]
        if require_stable and found.pending.count:
            return [self._stable(found, where) for where in names]
        return [found.offsets.committed(where, self._world.topics) for where in names]

    def _stable(self, group: Group, where: TopicPartition) -> Committed:
        if group.pending.has(where):
            return Committed(where.topic, where.partition, is_stable=False)
        return group.offsets.committed(where, self._world.topics)

    def delete_offsets(
        self, group: str, partitions: Sequence[TopicPartition], *, now: float
    ) -> StateChange[list[RaftlogError | None]]:
        """Delete committed offsets. A missing offset is not an error.

        The result has one item per partition: None, or ``GroupNotEmptyError`` if a member
        subscribes to the topic. Raises ``UnknownGroupError`` or ``CoordinatorLoadingError``.
        """
        found = self._existing(group)
        results: list[RaftlogError | None] = []
        for topic, partition in partitions:
            if found.subscribes_to(topic):
                error = GroupNotEmptyError(
                    f"members of group {group!r} subscribe to topic {topic!r}. Stop them first"
                )
                results.append(error)
            else:
                found.forget_offsets([TopicPartition(topic, partition)])
                results.append(None)
        return self._finish(results, [found], now=now)

    # -- offsets of transactions -------------------------------------------------------------------

    def guard(
        self, producer_id: int, producer_epoch: int, *, coordinator_epoch: LeaderEpoch = 0
    ) -> PendingGuard:
        """Return the guard of a commit in a transaction, before its coordinator is asked, whose
        epoch is not below ``coordinator_epoch``.

        Raises ``CoordinatorLoadingError``.
        """
        self._check_started()
        known, ended = self._open.get(producer_id), self._ended.get(producer_id)
        has_begun = known is not None and known.producer_epoch == producer_epoch
        is_reserved = (
            ended is not None and ended.reserves and ended.producer_epoch == producer_epoch
        )
        return PendingGuard(
            self,
            producer_id,
            producer_epoch,
            coordinator_epoch,
            has_begun=is_reserved or (has_begun and self._pending_count(producer_id) > 0),
            markers_seen=self._markers_seen,
        )

    def commit_pending(
        self,
        guard: PendingGuard,
        group: str,
        member_id: str,
        member_epoch: int,
        offsets: Sequence[Commit],
        topic_ids: Mapping[str, str],
        *,
        instance_id: str | None = None,
        now: float,
        now_ms: int,
    ) -> StateChange[list[RaftlogError | None]]:
        """Keep offsets until the producer's transaction ends. The result is that of ``commit``.

        ``guard``: from before the transaction's coordinator has confirmed that the transaction
        extends to this shard. ``member_id``, ``member_epoch``, ``instance_id``: as in ``commit``;
        but a client that is not a member may commit in a group that has members (KIP-447).

        Raises the errors of ``commit`` (but ``RebalanceInProgressError``, ``GroupNotEmptyError``),
        ``ProducerFencedError``, or ``TransactionAbortedError`` if the transaction has ended.
        """
        self._check_started()
        producer_id, producer_epoch = guard.producer_id, guard.producer_epoch
        self._check_producer(producer_id, producer_epoch)
        self._check_guard(guard)
        found = self._groups.get(group)
        group_state.check_committer(
            found,
            group,
            member_id,
            member_epoch,
            offsets,
            instance_id,
            is_transactional=True,
            now=now,
        )
        self._check_room(producer_id, len(offsets))
        if found is None:
            found = self._new_group(group)
        former = self._forget_former_transaction(producer_id, producer_epoch)
        results = group_state.commit_pending(
            found,
            producer_id,
            producer_epoch,
            offsets,
            topic_ids,
            coordinator_epoch=guard.coordinator_epoch,
            now_ms=now_ms,
        )
        if not all(results):
            self._note_open(producer_id, producer_epoch, guard.coordinator_epoch, found.id)
            if found.id not in self._groups:
                found.empty_since_ms = now_ms
                found.write_group()
                self._groups[found.id] = found
        touched = {each.id: each for each in (*former, found) if each.id in self._groups}
        return self._finish(results, list(touched.values()), now=now)

    def end_transaction(self, marker: Marker, *, now: float) -> StateChange[None]:
        """Commit or drop the pending offsets of the producer's transaction, in all groups.

        Nothing is pending: not an error, the marker was sent again. Raises
        ``StaleTransactionCoordinatorError`` or ``CoordinatorLoadingError``.
        """
        self._check_started()
        producer_id = marker.producer_id
        last, known = self._ended.get(producer_id), self._open.get(producer_id)
        newest = max(each.coordinator_epoch for each in (last, known, marker) if each is not None)
        # guard: a replaced coordinator ends no offsets
        if marker.coordinator_epoch < newest:
            raise StaleTransactionCoordinatorError(
                f"marker of producer id {producer_id} from a coordinator with leader epoch "
                f"{marker.coordinator_epoch}: one with {newest} has replaced it"
            )
        self._markers_seen += 1
        self._ended.pop(producer_id, None)  # to the end
        epoch = max(marker.producer_epoch, 0 if last is None else last.producer_epoch)
        self._ended[producer_id] = _Ended(
            epoch,
            marker.coordinator_epoch,
            self._markers_seen,
            marker.is_bumped,
            marker.reserves and marker.producer_epoch == epoch,
        )
        if len(self._ended) > limits.TRANSACTION_MARKERS_KEPT_MAX:
            oldest = next(iter(self._ended))
            self._markers_forgotten = self._ended.pop(oldest).number
        # A bumped epoch is above that of the transaction, and may be that of the next one.
        # guard: a bumped marker ends offsets of an older epoch only
        last_epoch = marker.producer_epoch - marker.is_bumped
        if known is None or known.producer_epoch > last_epoch:
            return StateChange(None)
        del self._open[producer_id]
        groups = [self._groups[name] for name in known.groups if name in self._groups]
        for group in groups:
            group.end_pending(producer_id, is_commit=marker.is_commit)
        return self._finish(None, groups, now=now)

    def producers_pending(self) -> Sequence[tuple[int, int]]:
        """Return the ids and epochs of producers whose transactions have pending offsets."""
        return [
            (producer_id, known.producer_epoch)
            for producer_id, known in self._open.items()
            if self._pending_count(producer_id)
        ]

    def pending_of(self, producer_id: int) -> PendingTransaction | None:
        """Return the pending offsets of a producer, or None without any."""
        known, ended = self._open.get(producer_id), self._ended.get(producer_id)
        if known is None:
            return None
        found = ((name, self._groups[name]) for name in known.groups if name in self._groups)
        offsets = frozenset(
            (name, where, value.order)
            for name, group in found
            for where, value in group.pending.by(producer_id)
        )
        epochs = [each.coordinator_epoch for each in (known, ended) if each is not None]
        return PendingTransaction(known.producer_epoch, max(epochs), offsets)

    def _check_producer(self, producer_id: int, producer_epoch: int) -> None:
        known, ended = self._open.get(producer_id), self._ended.get(producer_id)
        newest = max(
            producer_epoch,
            producer_epoch if known is None else known.producer_epoch,
            producer_epoch if ended is None else ended.producer_epoch,
        )
        if newest > producer_epoch:
            raise ProducerFencedError(
                f"commit in a transaction of producer id {producer_id} with epoch "
                f"{producer_epoch}, but its epoch is {newest}. Another producer has its "
                "transactional id, or the transaction timed out: create a new producer"
            )

    def _check_guard(self, guard: PendingGuard) -> None:
        # guard: a reload voids the confirmation of a commit of offsets
        if guard.groups is not self:
            raise CoordinatorLoadingError(
                "the groups of this coordinator were loaded again during the request. Try again"
            )
        ended = self._ended.get(guard.producer_id)
        last = self._markers_forgotten if ended is None else ended.number
        # A bumped epoch may be that of the next transaction, which waited for this marker.
        is_before = (
            ended is not None and ended.is_bumped and ended.producer_epoch == guard.producer_epoch
        )
        # guard: a marker voids the confirmation of a commit of offsets
        # guard: a guard of pending offsets outlives the marker before it
        if last > guard.markers_seen and not is_before:
            raise TransactionAbortedError(
                f"the transaction of producer id {guard.producer_id} ended before its offsets were "
                "written. Run its block again"
            )

    def _check_room(self, producer_id: int, count: int) -> None:
        """Limit the work of the marker, which ends the transaction in one step."""
        pending = self._pending_count(producer_id)
        if pending + count > limits.TRANSACTION_OFFSETS_MAX:
            raise InvalidRequestError(
                f"the transaction has {pending} pending offsets, and commits {count}: the maximum "
                f"is {limits.TRANSACTION_OFFSETS_MAX}. Commit fewer in one transaction"
            )

    def _pending_count(self, producer_id: int) -> int:
        known = self._open.get(producer_id)
        found = () if known is None else (self._groups.get(name) for name in known.groups)
        return sum(group.pending.count_of(producer_id) for group in found if group is not None)

    def _note_open(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: LeaderEpoch, group: str
    ) -> None:
        known = self._open.get(producer_id, _Open(0, 0, {}))
        known.groups[group] = None
        self._open[producer_id] = _Open(
            max(producer_epoch, known.producer_epoch),
            max(coordinator_epoch, known.coordinator_epoch),
            known.groups,
        )

    def _forget_former_transaction(self, producer_id: int, producer_epoch: int) -> Sequence[Group]:
        """Drop what a transaction of an older epoch has left. Its coordinator has confirmed a newer
        one, so it has ended: its marker would have come.
        """
        known = self._open.get(producer_id)
        if known is None or known.producer_epoch == producer_epoch:
            return ()
        del self._open[producer_id]
        groups = [self._groups[name] for name in known.groups if name in self._groups]
        for group in groups:
            group.end_pending(producer_id, is_commit=False)
        return groups

    # -- groups ------------------------------------------------------------------------------------

    def list(self) -> list[GroupListing]:
        """Return all groups, sorted by name. Raises ``CoordinatorLoadingError``."""
        self._check_started()
        return [group.listing for _, group in sorted(self._groups.items())]

    # The next ones serve readers that visit many groups, and let others change them in between.

    def names(self) -> Sequence[str]:
        """Return the names of all groups, in any order; none before ``start``."""
        return tuple(self._groups) if self._is_started else ()

    def listing(self, group: str) -> GroupListing | None:
        """Return one group as in ``list``; None if it does not exist any more."""
        found = self._groups.get(group)
        return None if found is None else found.listing

    def committed_topics(self, group: str) -> Sequence[str]:
        """Return the existing topics of which the group has committed offsets."""
        found = self._groups.get(group)
        if found is None:
            return ()
        return [topic for topic in found.offsets.topics() if topic in self._world.topics.by_name]

    def committed_in(self, group: str, topic: str) -> Sequence[tuple[int, Offset]]:
        """Return partitions of an existing topic and the group's committed offsets."""
        found, info = self._groups.get(group), self._world.topics.by_name.get(topic)
        if found is None or info is None:
            return ()
        return found.offsets.of_topic(topic, info.id)

    def describe(self, group: str) -> GroupView:
        """Return one group. Raises ``UnknownGroupError`` or ``CoordinatorLoadingError``."""
        return self._existing(group).view()

    def delete_group(self, group: str) -> StateChange[None]:
        """Delete the group and its offsets.

        Raises ``GroupNotEmptyError``, ``UnknownGroupError`` or ``CoordinatorLoadingError``.
        """
        found = self._existing(group)
        if found.member_count:
            raise GroupNotEmptyError(
                f"group {group!r} has {counted(found.member_count, 'member')}. Stop its consumers "
                "first"
            )
        return StateChange(None, tuple(self._drop(found)))

    # -- time --------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Return when to call ``tick``, in monotonic seconds, or None. It may be too early."""
        return self._timers.next_at

    def tick(self, *, now: float, now_ms: int, expiry_ms: int | None) -> StateChange[None]:
        """Expire sessions, revocation deadlines, former members, offsets and empty groups.

        ``expiry_ms``: wall-clock milliseconds by which offsets expire; None: unknown, no offset
        expires. The amount of work is bounded: if ``deadline`` is still in the past, call it again.
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
            classic = group.classic
            if classic is not None and member_id == CLASSIC_TIMER and classic.timer == at:
                classic.timer = math.inf
                classic.expire(now=now, has_stood_still=has_stood_still)
                group.note_emptiness(now_ms)
                self._plan(classic)
                touched[name] = group
            elif member_id:
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
        """Remove the member if its session or a revocation deadline expired. Return whether."""
        member = group.members.get(member_id)
        if member is None or member.timer != at:
            return False
        if has_stood_still and member.session_ends <= now:
            # The coordinator was stalled. Process queued heartbeats before sessions expire.
            member.session_ends = now + self._world.settings.grace_ms / 1_000
        if member.session_ends <= now:
            reason = (
                f"no heartbeat within its session timeout of {member.session_timeout_ms} ms. Check "
                "the consumer and its network"
            )
        elif any(until <= now for until in member.revoking.values()):
            reason = (
                f"it did not release partitions within {member.rebalance_timeout_ms} ms. Poll more "
                "often, or increase max_poll_interval_ms"
            )
        else:
            member.timer = member.due
            self._timers.add(member.timer, group.id, member_id)
            return False
        self._world.notes.append(
            f"member removed: group={group.id!r} member={member_id} reason: {reason}"
        )
        group.expel(member, reason, now=now, now_ms=now_ms)
        return True

    # -- helpers -----------------------------------------------------------------------------------

    def _check_started(self) -> None:
        if not self._is_started:
            raise CoordinatorLoadingError(
                "this coordinator is still loading its groups. Try again later"
            )

    def _existing(self, group: str) -> Group:
        self._check_started()
        found = self._groups.get(group)
        if found is None:
            check_group_id(group)
            raise UnknownGroupError(f"consumer group {group!r} does not exist")
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
        """Remove the group. Return its tombstones."""
        del self._groups[group.id]
        self._watch(group, frozenset())
        return group.tombstones()

    def _tidy(self, group: Group, *, now: float, expiry_ms: int | None) -> Sequence[GroupRecord]:
        """Remove expired former members and offsets, and the group itself if it is unused."""
        group.forget_former(now=now)
        # guard: no offset expires while the time is unknown
        # guard: a group with pending offsets does not expire
        if group.empty_since_ms is None or expiry_ms is None or group.pending.count:
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
        """Check interval of a group without members, in ms."""
        return max(1, min(CHECK_MS_MAX, self._world.settings.offsets_retention_ms))

    def _finish(self, result: T, groups: Iterable[Group], *, now: float) -> StateChange[T]:
        """Collect the changes of ``groups``, and set their timers."""
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
            if group.classic is not None:
                wake.update((group.id, name) for name in group.classic.woken)
                group.classic.woken.clear()
            records += group.take_records()
        notes = tuple(self._world.notes)
        self._world.notes.clear()
        return StateChange(result, tuple(records), frozenset(wake), notes)

    def _plan(self, classic: ClassicGroup) -> None:
        """Set the timer of a classic group, unless an earlier one is set."""
        due = classic.due
        if due < classic.timer:
            classic.timer = due
            self._timers.add(due, classic.id, CLASSIC_TIMER)

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


# -- timers ----------------------------------------------------------------------------------------
#
# Timer heap for members and groups. A heartbeat does not modify it.
#
# An entry is a time at which a check *may* be due. If the check is too early, the shard adds an
# entry for the new due time. A session that is renewed a thousand times therefore has one entry.


class Timers:
    """Heap of due times. Names are (group, member), or (group, "") for the group itself."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, str]] = []
        self._order = count()

    @property
    def next_at(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def add(self, at: float, group: str, member: str = "") -> None:
        heapq.heappush(self._heap, (at, next(self._order), group, member))

    def pop_due(self, now: float) -> tuple[float, str, str] | None:
        """Remove and return (time, group, member) of the first entry with time <= ``now``."""
        if not self._heap or self._heap[0][0] > now:
            return None
        at, _, group, member = heapq.heappop(self._heap)
        return at, group, member


# -- replaying -------------------------------------------------------------------------------------
#
# Replay of group records by a new coordinator. The result depends on each key's last record.


INHERITED = "its group.instance.id has a newer member"


def put(groups: dict[str, Group], world: World, key: Key, value: Value) -> None:
    """Apply a record with a value."""
    group = groups.get(key.group)
    if group is None:
        group = groups[key.group] = Group(key.group, world)
    match value:
        case GroupValue():
            group.epoch, group.assignor = value.epoch, value.assignor
            group.empty_since_ms = value.empty_since_ms
        case MemberValue():
            assert isinstance(key, MemberKey)
            group.members[key.member] = _member(key.member, value)
        case OffsetValue():
            assert isinstance(key, OffsetKey)
            group.offsets.put(TopicPartition(key.topic, key.partition), value)
        case PendingValue():
            assert isinstance(key, PendingKey)
            where = TopicPartition(key.topic, key.partition)
            group.pending.put(key.producer_id, where, value)
        case FormerValue():
            assert isinstance(key, FormerKey)
            former = FormerMember(INHERITED, value.sequence, value.timeout_ms, value.instance_id)
            group.former[key.member] = former
        case ClassicValue():
            _classic(group).restore(value)
        case ClassicMemberValue():
            assert isinstance(key, ClassicMemberKey)
            _classic(group).members[key.member] = member_of(key, value)


def remove(groups: dict[str, Group], key: Key) -> None:
    """Apply a tombstone. The tombstone of a group removes its members and offsets too."""
    group = groups.get(key.group)
    match key:
        case GroupKey():
            groups.pop(key.group, None)
        case MemberKey() if group is not None:
            group.members.pop(key.member, None)
        case OffsetKey() if group is not None:
            group.offsets.remove(TopicPartition(key.topic, key.partition))
        case PendingKey() if group is not None:
            group.pending.remove(key.producer_id, TopicPartition(key.topic, key.partition))
        case FormerKey() if group is not None:
            group.former.pop(key.member, None)
        case ClassicKey() if group is not None:
            group.classic = None
        case ClassicMemberKey() if group is not None and group.classic is not None:
            group.classic.members.pop(key.member, None)
        case _:
            pass


def complete(group: Group, *, now: float, now_ms: int) -> None:
    """Derive the remaining state of a replayed group, and restart its sessions and deadlines.

    ``now``: monotonic seconds. ``now_ms``: wall-clock milliseconds.
    """
    taken: dict[Part, str] = {}
    for name, member in sorted(group.members.items()):
        if member.instance_id is not None:
            group.instances[member.instance_id] = name
        until = now + member.rebalance_timeout_ms / 1_000
        # Two members own a partition only if the log is corrupt. Then the first one keeps it.
        member.assigned = frozenset(p for p in member.assigned if taken.setdefault(p, name) == name)
        member.revoking = {
            part: until for part in member.revoking if taken.setdefault(part, name) == name
        }
        # The epochs of the assignments are not stored: no partition was assigned later.
        parts = *member.assigned, *member.revoking
        # guard: a new coordinator does not know since when a member has a partition
        group.owned_since.update(dict.fromkeys(parts, member.epoch))
        member.renew(now)
        group.heir.update(dict.fromkeys(member.target, name))
        group.epoch = max(group.epoch, member.epoch)
    group.owner = taken
    for name, former in group.former.items():
        group.former[name] = former.begun_anew(now)
    if group.classic is not None:
        group.classic.complete_replay(now=now)
    group.note_emptiness(now_ms)


def _classic(group: Group) -> ClassicGroup:
    if group.classic is None:
        group.classic = ClassicGroup(group.id, group.world.settings, group.world.notes)
    return group.classic


def _member(member_id: str, value: MemberValue) -> Member:
    return Member(
        id=member_id,
        instance_id=value.instance_id,
        client_id=value.client_id,
        host=value.host,
        rack=value.rack,
        topics=value.topics,
        assignor=value.assignor,
        session_timeout_ms=value.session_timeout_ms,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        sequence=value.sequence,
        epoch=value.epoch,
        known_epoch=value.known_epoch,
        is_away=value.is_away,
        assigned=frozenset(_parts(value.assigned)),
        revoking=dict.fromkeys(_parts(value.revoking), float("inf")),
        target=frozenset(_parts(value.target)),
        interest=value.interest,
    )


def _parts(rows: PartRows) -> list[Part]:
    return [(topic_id, number) for topic_id, numbers in rows.items() for number in numbers]


# -- placement -------------------------------------------------------------------------------------
#
# Mapping of groups to partitions of ``__consumer_offsets``, and so to their coordinators.


def partition_of_group(group: str, partition_count: int) -> int:
    """Return the partition of ``types.OFFSETS_TOPIC`` that holds all records of ``group``.

    The mapping depends on ``partition_count``, so this must not change after groups exist.
    """
    return partition_of_key(group.encode(), partition_count)


# -- deltas ----------------------------------------------------------------------------------------
#
# KIP-848 heartbeats: a member omits what has not changed, and numbers nothing.
#
# ``complete`` fills in the omitted fields from the state of the member, and a sequence in the order
# of arrival. A heartbeat that arrives on an older connection than the last one of the member may be
# delayed: it gets the member's last sequence, so it changes nothing.


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
        # guard: a delayed KIP-848 heartbeat has no effect
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
    # guard: omitted partitions are not released
    if not member.revoking:
        return member.steady_answer(topics).result.assignment
    return topics.shares(member.assigned.union(member.revoking))
