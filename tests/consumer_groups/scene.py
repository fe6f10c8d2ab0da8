"""A shard on a stage: members with short names, a log, and a time that moves when it is told to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from raftlog.consumer_groups import (
    AWAY_EPOCH,
    BUILT_IN,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_MEMBER_EPOCH,
    Assignor,
    Commit,
    Departure,
    GroupRecord,
    GroupSettings,
    GroupShard,
    Heartbeat,
    HeartbeatResult,
    Join,
    JoinResult,
    Share,
    StateChange,
    Sync,
    SyncResult,
    TopicInfo,
)
from raftlog.consumer_groups.classic import ClassicGroup
from raftlog.consumer_groups.group import Group
from raftlog.errors import RaftlogError
from raftlog.testing.kafka_wire import assignment, subscription
from raftlog.types import TopicPartition

# -- the shard -------------------------------------------------------------------------------------

# A shard on a stage: members with short names, a log, and a time that moves when it is told to.


GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 30_000


def topics_of(counts: Mapping[str, int]) -> dict[str, TopicInfo]:
    return {name: TopicInfo(f"id-{name}", count) for name, count in counts.items()}


class Scene:
    """Topic t with four partitions, unless the test says otherwise. Members are in group g.

    ``woken`` and ``notes`` are of the last step. After each, the log gives the same state.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        assignors: Mapping[str, Assignor] = BUILT_IN,
        **settings: Any,
    ) -> None:
        self.topics = topics_of({"t": 4} if topics is None else topics)
        self.version = 1
        self.settings, self.assignors = GroupSettings(**settings), assignors
        self.now = 1_000.0
        self.log: list[GroupRecord] = []
        self.heard: dict[str, Heartbeat] = {}  # the last one of each member
        self.noted: dict[str, HeartbeatResult] = {}
        self.woken: set[str] = set()
        self.notes: tuple[str, ...] = ()
        self.shard = GroupShard(self.settings, assignors)
        self._start()

    @property
    def now_ms(self) -> int:
        return int(self.now * 1_000)

    # -- members -----------------------------------------------------------------------------------

    def join(self, name: str, *topics: str, **fields: Any) -> HeartbeatResult:
        """Subscribes to t, unless topics are named."""
        self.noted.pop(name, None)
        if topics or name not in self.heard:
            fields["topics"] = topics or ("t",)
        return self.beat(name, owned=(), epoch=JOIN_EPOCH, **fields)

    def join_all(self, *joins: Heartbeat) -> list[HeartbeatResult | RaftlogError]:
        """At once; see ``joining``."""
        outcomes: list[HeartbeatResult | RaftlogError] = self.take(
            self.shard.join_all(joins, now=self.now, now_ms=self.now_ms)
        )
        for join, outcome in zip(joins, outcomes, strict=True):
            self.heard[join.member_id] = join
            if isinstance(outcome, HeartbeatResult):
                self.noted[join.member_id] = outcome
        return outcomes

    def beat(
        self,
        name: str,
        owned: Iterable[Share] | None = None,
        *,
        epoch: int | None = None,
        sequence: int | None = None,
        **fields: Any,
    ) -> HeartbeatResult:
        """By default the member says what it was told last, in a heartbeat newer than all before.

        Other fields stay as they were.
        """
        last = self.heard.get(name)
        noted = self.noted.get(name, HeartbeatResult(JOIN_EPOCH))
        kept = {} if last is None else {field: getattr(last, field) for field in KEPT}
        fields = {
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            **kept,
            **fields,
        }
        heartbeat = Heartbeat(
            group=fields.pop("group", GROUP),
            member_id=name,
            member_epoch=noted.member_epoch if epoch is None else epoch,
            sequence=(last.sequence + 1 if last else 1) if sequence is None else sequence,
            owned=noted.assignment if owned is None else tuple(owned),
            **fields,
        )
        if last is None or heartbeat.sequence > last.sequence:
            self.heard[name] = heartbeat
        beat = self.take(self.shard.heartbeat(heartbeat, now=self.now, now_ms=self.now_ms))
        self.noted[name] = beat
        return beat

    def leave(self, name: str) -> HeartbeatResult:
        return self.beat(name, (), epoch=LEAVE_EPOCH)

    def go_away(self, name: str) -> HeartbeatResult:
        return self.beat(name, (), epoch=AWAY_EPOCH)

    def settle(self, *names: str) -> None:
        """These members, or all, do what they are told until there is no more to do."""
        for _ in range(5):
            for name in names or [member.member_id for member in self.members]:
                self.beat(name)

    def of(self, name: str, topic: str = "t") -> set[int]:
        """The partitions of the topic that the member is to be told of now."""
        shares = self.shard.beat(GROUP, name).assignment
        return {number for share in shares if share.topic == topic for number in share.partitions}

    @property
    def members(self) -> Any:
        return self.shard.describe(GROUP).members

    @property
    def state(self) -> str:
        return self.shard.describe(GROUP).state

    def epoch_of(self, name: str) -> int:
        return self.shard.beat(GROUP, name).member_epoch

    # -- offsets -----------------------------------------------------------------------------------

    def commit(
        self,
        name: str | None,
        *partitions: tuple[str, int],
        offset: int = 7,
        epoch: int | None = None,
        metadata: str = "",
        topic_ids: Mapping[str, str] | None = None,
        group: str = GROUP,
        expected: int | None = None,
        sequence: int = 0,
    ) -> list[RaftlogError | None]:
        """The same offset for each partition; by nobody for None."""
        if epoch is None:
            epoch = NO_MEMBER_EPOCH if name is None else self.epoch_of(name)
        commits = [
            Commit(topic, number, offset, 3, metadata, expected) for topic, number in partitions
        ]
        step = self.shard.commit(
            group,
            name or "",
            epoch,
            commits,
            topic_ids or {},
            sequence=sequence,
            now=self.now,
            now_ms=self.now_ms,
        )
        return self.take(step)

    def offset(self, topic: str, number: int, group: str = GROUP) -> int:
        return self.shard.fetch(group, [TopicPartition(topic, number)])[0].offset

    # -- the coordinator ---------------------------------------------------------------------------

    def after(self, seconds: float) -> None:
        """Time passes, and the coordinator looks whenever it wants to."""
        end = self.now + seconds
        while (at := self.shard.deadline()) is not None and at <= end:
            self.now = max(self.now, at)
            self.take(self.shard.tick(now=self.now, now_ms=self.now_ms, expiry_ms=self.now_ms))
        self.now = end

    def set_topics(self, counts: Mapping[str, int] | None = None, **infos: TopicInfo) -> None:
        """These are the topics from now on."""
        self.topics = topics_of(counts or {}) | infos
        self.version += 1
        step = self.shard.set_topics(
            self.topics, version=self.version, now=self.now, now_ms=self.now_ms
        )
        self.take(step)

    def fail_over(self) -> None:
        """Another coordinator, which reads the log."""
        self.shard = replayed(self.log, self.settings, self.assignors)
        self._start()

    def take(self, step: StateChange[Any]) -> Any:
        self.log += step.records
        self.woken = {member for _, member in step.wake}
        self.notes = step.notes
        check_invariants(self.shard)
        assert written(replayed(self.log, self.settings, self.assignors)) == written(self.shard)
        return step.result

    def _start(self) -> None:
        self.take(
            self.shard.start(self.topics, version=self.version, now=self.now, now_ms=self.now_ms)
        )


KEPT = (
    "topics",
    "session_timeout_ms",
    "rebalance_timeout_ms",
    "instance_id",
    "client_id",
    "host",
    "rack",
    "assignor",
    "group",
)


def joining(name: str, *topics: str, sequence: int = 1, **fields: Any) -> Heartbeat:
    """Subscribes to t, unless topics are named."""
    return Heartbeat(
        member_id=name,
        member_epoch=JOIN_EPOCH,
        sequence=sequence,
        topics=topics or ("t",),
        **{
            "group": GROUP,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            **fields,
        },
    )


def share(topic: str, *numbers: int) -> Share:
    return Share(topic, f"id-{topic}", numbers)


# -- classic groups --------------------------------------------------------------------------------

# A shard with classic groups: requests by short names, and the results of those that waited.


class ClassicScene(Scene):
    """Topic t with four partitions. ``answers`` has what waiting members were answered, by ID.

    A member waits for one answer at a time, as the server has it; a newer request replaces it.
    """

    def __init__(self, **settings: Any) -> None:
        self.waiting: dict[str, tuple[str, str | None]] = {}  # "join" or "sync", and the instance
        self.answers: dict[str, JoinResult | SyncResult | RaftlogError] = {}
        super().__init__(**{"initial_rebalance_delay_ms": 0, **settings})

    @property
    def group(self) -> ClassicGroup:
        classic = groups_of(self.shard)[GROUP].classic
        assert classic is not None
        return classic

    def enter(
        self,
        name: str,
        *protocols: str | tuple[str, bytes],
        new: bool = True,
        instance: str | None = None,
        **fields: Any,
    ) -> JoinResult | None:
        """Joins with this name as its ID, as a new member or as one that has the ID."""
        offered = [
            p if isinstance(p, tuple) else (p, subscription("t")) for p in protocols or ("range",)
        ]
        join = Join(
            **{
                "group": GROUP,
                "member_id": "" if new else name,
                "new_member_id": name,
                "protocol_type": "consumer",
                "protocols": tuple(offered),
                "session_timeout_ms": SESSION_MS,
                "rebalance_timeout_ms": REBALANCE_MS,
                "instance_id": instance,
                **fields,
            }
        )
        result: JoinResult | None = self.take(
            self.shard.join(join, now=self.now, now_ms=self.now_ms)
        )
        if result is None:
            self.waiting[name] = "join", instance
        return result

    def again(self, name: str, *protocols: str | tuple[str, bytes], **fields: Any) -> Any:
        """Joins with the ID that it has."""
        return self.enter(name, *protocols, new=False, **fields)

    def sync(
        self,
        name: str,
        assignments: dict[str, bytes] | None = None,
        *,
        generation: int | None = None,
        instance: str | None = None,
        **fields: Any,
    ) -> SyncResult | None:
        sync = Sync(
            group=GROUP,
            member_id=name,
            generation=self.group.generation if generation is None else generation,
            instance_id=instance,
            assignments=tuple((assignments or {}).items()),
            **fields,
        )
        result: SyncResult | None = self.take(
            self.shard.sync(sync, now=self.now, now_ms=self.now_ms)
        )
        if result is None:
            self.waiting[name] = "sync", instance
        return result

    def pulse(self, name: str, generation: int | None = None, instance: str | None = None) -> None:
        """A heartbeat."""
        number = self.group.generation if generation is None else generation
        self.take(self.shard.classic_heartbeat(GROUP, name, instance, number, now=self.now))

    def depart(self, *departures: str | Departure) -> list[RaftlogError | None]:
        asked = [Departure(one) if isinstance(one, str) else one for one in departures]
        found: list[RaftlogError | None] = self.take(
            self.shard.leave(GROUP, asked, now=self.now, now_ms=self.now_ms)
        )
        return found

    def formed(self, *members: str) -> None:
        """These form a generation, in which member N has partition N of t."""
        for name in members:
            if name in (self.group.members if GROUP in groups_of(self.shard) else ()):
                self.again(name)
            else:
                self.enter(name)
        for name in members:
            if self.group.phase == "preparing_rebalance" and name not in self.waiting:
                self.again(name)
        self.synced(*members)

    def synced(self, *members: str) -> None:
        """All ask for their assignments, the leader last."""
        given = {name: assignment("t", number) for number, name in enumerate(members)}
        for name in sorted(members, key=lambda name: name == self.group.leader):
            self.sync(name, given if name == self.group.leader else None)

    def answer(self, name: str) -> Any:
        """What a waiting member was answered."""
        return self.answers.pop(name)

    def fail_over(self) -> None:
        self.waiting.clear()
        super().fail_over()

    def take(self, step: Any) -> Any:
        result = super().take(step)
        for name in sorted(self.woken):
            kind, instance = self.waiting.pop(name, ("", None))
            if not kind:
                continue
            ask = self.shard.join_result if kind == "join" else self.shard.sync_result
            try:
                self.answers[name] = ask(GROUP, name, instance)
            except RaftlogError as error:
                self.answers[name] = error
        return result


# -- states ----------------------------------------------------------------------------------------

# What of a shard is in its log, to be compared; and a log as compaction leaves it.


def groups_of(shard: GroupShard) -> dict[str, Group]:
    return shard._groups


def written(shard: GroupShard) -> dict[str, Any]:
    """All that a new coordinator has to come to by the log alone."""
    return {
        name: {
            "group": (group.epoch, group.assignor, group.empty_since_ms),
            "members": {
                member.id: (
                    *(member.epoch, member.instance_id, member.client_id, member.rack),
                    *(member.topics, member.assignor, member.is_away),
                    *(member.session_timeout_ms, member.rebalance_timeout_ms),
                    *(member.assigned, frozenset(member.revoking), member.target),
                )
                for member in group.members.values()
            },
            "classic": written_classic(group),
            "offsets": dict(group.offsets),
            "pending": {key: group.pending.value(*key) for key in group.pending},
            "former": {
                name: (former.instance_id, former.timeout_ms, former.sequence)
                for name, former in group.former.items()
                if former.instance_id is not None
            },
        }
        for name, group in groups_of(shard).items()
    }


def written_classic(group: Group) -> Any:
    """The generation and its members. A member that joins is written with the generation."""
    classic = group.classic
    if classic is None:
        return None
    members = {
        member.id: (member.instance_id, member.assignment)
        for member in classic.members.values()
        if member.is_written
    }
    protocols = {
        member.id: member.protocols
        for member in classic.members.values()
        if classic.phase != "preparing_rebalance"
    }
    return classic.generation, classic.phase, classic.protocol, members, protocols


def check_classic(group: ClassicGroup) -> None:
    """What has to hold in every state of a classic group."""
    members = group.members.values()
    assert bool(members) == (group.phase != "empty")
    assert group.instances == {m.instance_id: m.id for m in members if m.instance_id}
    assert not any(m.is_joining for m in members) or group.phase == "preparing_rebalance"
    assert not any(m.is_syncing for m in members) or group.phase == "completing_rebalance"
    assert not any(m.is_joining and m.is_syncing for m in members)
    assert not group.pending.keys() & group.members.keys()
    if group.phase in ("completing_rebalance", "stable"):
        assert group.leader in group.members
        assert all(m.is_written and not m.is_changed for m in members)
        assert all(group.protocol in dict(m.protocols) for m in members)
    if group.phase in ("preparing_rebalance", "completing_rebalance"):
        assert group.phase_ends < math.inf, "a rebalance always ends"
    assert group.due >= group.timer, "the shard checks in time"


def replayed(
    records: Sequence[GroupRecord], settings: GroupSettings, assignors: Any = BUILT_IN
) -> GroupShard:
    """A shard that has read the records, and has not started."""
    shard = GroupShard(settings, assignors)
    for record in records:
        shard.replay(record.key, record.value)
    return shard


def compacted(records: Sequence[GroupRecord], random: Random) -> list[GroupRecord]:
    """The log, of which some beginning was compacted: only the last record of each key is left.

    And of its tombstones, those up to a point are gone too: an earlier pass has cleaned them.
    """
    end = random.randint(0, len(records))
    forgotten = random.randint(0, end)
    last = {record.key: index for index, record in enumerate(records[:end])}
    head = [
        record
        for index, record in enumerate(records[:end])
        if last[record.key] == index and not (record.value is None and index < forgotten)
    ]
    return [*head, *records[end:]]


def check_invariants(shard: GroupShard) -> None:
    """What has to hold in every state."""
    topics = shard._world.topics
    for group in groups_of(shard).values():
        owner = {}
        for member in group.members.values():
            assert member.assigned <= member.target
            assert not member.assigned.intersection(member.revoking)
            assert 1 <= member.known_epoch <= member.epoch <= group.epoch
            assert not (member.is_away and member.revoking)
            for part in (*member.assigned, *member.revoking):
                assert owner.setdefault(part, member.id) == member.id
                assert topics.has(part)
        assert group.owner == owner
        assert group.owned_since.keys() == owner.keys()
        for part, name in owner.items():
            assert group.owned_since[part] <= group.members[name].epoch
        assert group.heir == {p: m.id for m in group.members.values() for p in m.target}
        instances = {m.instance_id: m.id for m in group.members.values() if m.instance_id}
        assert group.instances == instances
        assert (group.empty_since_ms is None) == bool(group.member_count)
        assert group.classic is None or not group.members
        if group.classic is not None:
            check_classic(group.classic)
        assert not group.members.keys() & group.former.keys()
        # What is free and wanted is with its heir, unless that has something to give up first.
        for part, name in group.heir.items():
            assert part in owner or group.members[name].revoking
