"""A shard of consumer groups that keeps a list of values, and does what the test says.

It has the interface of ``raftlog.consumer_groups.GroupShard``: each change is in its state at once,
and comes with the records that restore it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from raftlog.consumer_groups import (
    GroupRecord,
    GroupShard,
    Heartbeat,
    HeartbeatResult,
    StateChange,
    TopicInfo,
)
from raftlog.consumer_groups.values import Topics
from raftlog.errors import InvalidRequestError, NotLeaderError, RaftlogError, UnknownMemberError
from raftlog.server.groups.shard import ActiveShard, ShardServices
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge
from raftlog.transactions import Marker
from raftlog.types import Offset
from tests.client.virtual import START_MS
from tests.server.cluster.fake import Scene, state_of

BAD = b"bad"  # a value that cannot be read back


def _check_times(now: float, now_ms: int) -> None:
    assert 1_000 <= now < 10_000, "the loop's"
    assert now_ms >= START_MS, "the wall clock's"


class FakeGroups:
    """Values, members' epochs, and a deadline."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.started: list[Topics] = []
        self.noted: list[Topics] = []
        self.epochs: dict[str, int] = {}  # by member id
        self.deadline_at: float | None = None
        self.ticks: list[float] = []
        self.on_start: tuple[bytes, ...] = ()
        self.is_started = True
        self.joined: list[list[str]] = []  # together
        self.refused: set[str] = set()
        self.writes_joins = False
        self.on_marker: tuple[bytes, ...] = ()

    def replay(self, key: bytes, value: bytes | None) -> None:
        if value == BAD:
            raise InvalidRequestError("bad bytes")
        self.values.append(key if value is None else value)

    def start(
        self, topics: Mapping[str, TopicInfo], *, version: int, now: float, now_ms: int
    ) -> StateChange[None]:
        _check_times(now, now_ms)
        self.started.append(Topics(topics, version))
        return self._step(None, *self.on_start)

    def set_topics(
        self, topics: Mapping[str, TopicInfo], *, version: int, now: float, now_ms: int
    ) -> StateChange[None]:
        _check_times(now, now_ms)
        self.noted.append(Topics(topics, version))
        self.is_started = True
        return StateChange(None)

    def put(self, *values: bytes, wake: tuple[str, ...] = ()) -> StateChange[int]:
        """How many there are then."""
        self.values += values
        return self._step(len(self.values), *values, wake=wake)

    def count(self) -> int:
        return len(self.values)

    def heartbeat(
        self, beat: Heartbeat, *, now: float, now_ms: int
    ) -> StateChange[HeartbeatResult]:
        _check_times(now, now_ms)
        self.epochs.setdefault(beat.member_id, max(beat.member_epoch, 1))
        return StateChange(self.beat(beat.group, beat.member_id))

    def join_all(
        self, joins: Sequence[Heartbeat], *, now: float, now_ms: int
    ) -> StateChange[list[HeartbeatResult | RaftlogError]]:
        self.joined.append([join.member_id for join in joins])
        outcomes: list[HeartbeatResult | RaftlogError] = []
        for join in joins:
            if join.member_id in self.refused:
                outcomes.append(UnknownMemberError(f"no place for {join.member_id}"))
            else:
                outcomes.append(self.heartbeat(join, now=now, now_ms=now_ms).result)
        return self._step(outcomes, *(b"join" for _ in self.joined if self.writes_joins))

    def end_transaction(self, marker: Marker, *, now: float) -> StateChange[None]:
        return self._step(None, *self.on_marker)

    def beat(self, _group: str, member_id: str) -> HeartbeatResult:
        if member_id not in self.epochs:
            raise UnknownMemberError(f"no member {member_id}")
        return HeartbeatResult(self.epochs[member_id])

    def deadline(self) -> float | None:
        return self.deadline_at

    def tick(self, *, now: float, now_ms: int, expiry_ms: int | None) -> StateChange[None]:
        _check_times(now, now_ms)
        self.ticks.append(now)
        self.deadline_at = None
        return self._step(None, b"tick")

    def _step(self, result: Any, *values: bytes, wake: tuple[str, ...] = ()) -> StateChange[Any]:
        records = tuple(GroupRecord(b"k", value) for value in values)
        return StateChange(result, records, frozenset(("g", member) for member in wake))


class Shown:
    """A shard of a partition that broker 1 leads, and what came of what it was asked.

    With others in the ISR nothing is committed before the test says ``commit``.
    """

    def __init__(self, s: Scene, *, isr: tuple[int, ...] = (1,), host: Partition | None = None):
        self.s = s
        self.host = host or s.host()
        self.isr = isr
        self.made: list[FakeGroups] = []
        self.questions: list[Acknowledge] = []  # whether this broker leads
        self.asks = 0
        self.answers_questions = True
        self.doubts: list[Offset] = []
        self.topics = Topics({}, 1)
        self.prepare: Callable[[FakeGroups], None] = lambda _groups: None
        self.noted: list[Any] = []
        if self.host.leadership is None:
            self.lead(epoch=5)
        self.shard = self.begin()

    def lead(self, *, epoch: int) -> None:
        self.host.lead(state_of(*self.isr, epoch=epoch), 1, lag_max_seconds=10)

    def begin(self) -> ActiveShard:
        return ActiveShard(
            self.host,
            ShardServices(
                loop=self.s.loop,
                clock=self.s.services.clock,
                new_groups=self._new_groups,
                topics=lambda: self.topics,
                confirm=self._confirm,
                on_unreadable=lambda _host, offset: self.doubts.append(offset),
                reading=asyncio.Lock(),
            ),
        )

    def _new_groups(self) -> GroupShard:
        groups = FakeGroups()
        self.prepare(groups)
        self.made.append(groups)
        return cast(GroupShard, groups)

    def _confirm(self, host: Partition, done: Acknowledge) -> None:
        assert host is self.host
        self.asks += 1
        if not self.answers_questions:
            self.questions.append(done)
        elif host.leadership is None:
            done(NotLeaderError("not any more"))
        else:
            done(None)

    @property
    def groups(self) -> FakeGroups:
        """The state that is asked now."""
        return self.made[-1]

    async def ready(self) -> Shown:
        """Once it is read, and members ``m`` and ``n`` have had an answer."""
        await self.s.come_to_rest()
        assert not self.shard.is_loading
        for member in ("m", "n"):
            self.beat(member, wait_seconds=0)
        assert self.noted == [("m", 1), ("n", 1)]
        self.noted.clear()
        return self

    def commit(self, *followers: int) -> None:
        """The others have all that there is."""
        end = self.host.log.log_end_offset
        for follower in followers or self.isr[1:]:
            self.host.on_follower(
                follower, f"disk-{follower}", fetch_offset=end, durable_offset=end
            )

    def end(self) -> None:
        marker = Marker(7, 0, is_commit=True, coordinator_epoch=1, is_bumped=False)
        self.shard.end_transaction(marker, self.noted.append, self._failed)

    # -- what is asked; outcomes go to ``told``, in the order in which they come

    def put(self, *values: bytes, wake: tuple[str, ...] = ()) -> None:
        def put(groups: GroupShard, _now: float, _now_ms: int) -> StateChange[int]:
            return cast(FakeGroups, groups).put(*values, wake=wake)

        self.shard.change(put, self.noted.append, self._failed)

    def count(self) -> None:
        self.shard.ask(
            lambda groups: cast(FakeGroups, groups).count(), self.noted.append, self._failed
        )

    def beat(
        self,
        member: str,
        *,
        epoch: int = 1,
        wait_seconds: float = 3.0,
        owner: str = "connection",
        session_ms: int = 45_000,
    ) -> None:
        """Its outcome is told with the member's name."""
        beat = Heartbeat(
            group="g",
            member_id=member,
            member_epoch=epoch,
            sequence=1,
            topics=("t",),
            session_timeout_ms=session_ms,
        )
        self.shard.heartbeat(
            beat,
            lambda answer: self.noted.append((member, answer.member_epoch)),
            lambda error: self.noted.append((member, type(error))),
            owner=owner,
            wait_seconds=wait_seconds,
        )

    def _failed(self, error: RaftlogError) -> None:
        self.noted.append(type(error))
