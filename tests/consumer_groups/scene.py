"""A shard on a stage: members with short names, a log, and a time that moves when it is told to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from raftlog.consumer_groups import (
    AWAY_EPOCH,
    BUILT_IN,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_MEMBER_EPOCH,
    Assignor,
    Commit,
    GroupRecord,
    GroupSettings,
    GroupShard,
    Heartbeat,
    HeartbeatResult,
    Share,
    StateChange,
    TopicInfo,
)
from raftlog.errors import RaftlogError
from raftlog.types import TopicPartition
from tests.consumer_groups.states import check_invariants, replayed, written

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
