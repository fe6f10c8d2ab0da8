"""Classic groups under lost answers, ended sessions and failovers, by seeds.

What has to hold: no generation is given to different members or with different assignments,
however much a failover discards; every rebalance ends; and at rest, all members are in one
generation.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from raftlog.consumer_groups import (
    BUILT_IN,
    NO_GENERATION,
    Departure,
    GroupRecord,
    GroupSettings,
    GroupShard,
    Join,
    JoinResult,
    Sync,
    SyncResult,
    TopicInfo,
)
from raftlog.consumer_groups.classic import ClassicGroup
from raftlog.errors import RaftlogError, RebalanceInProgressError
from tests.consumer_groups.states import check_invariants, compacted, groups_of, replayed

GROUP = "g"
TOPICS = {"t": TopicInfo("id-t", 4)}
STEPS = 150
SESSION_MS, REBALANCE_MS = 10_000, 20_000


@dataclass
class Actor:
    """A consumer, and what it knows of the group."""

    name: str
    instance: str | None
    member_id: str = ""
    generation: int = NO_GENERATION
    leads: tuple[str, ...] = ()
    wants: str = "join"  # the next request: "join", "sync", or "pulse" when it has an assignment
    is_waiting: bool = False
    number: int = 0  # of its last request: an answer to an older one is not for it


class World:
    """One group. A coordinator's answers come when the log has what they tell of."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 100.0
        self.settings = GroupSettings(initial_rebalance_delay_ms=random.choice((0, 2_000)))
        self.shard = GroupShard(self.settings, BUILT_IN)
        self.log: list[GroupRecord] = []
        self.ends = [0]
        self.committed = 0
        self.ids = 0
        self.actors: list[Actor] = []
        self.parked: dict[str, tuple[Actor, int, str]] = {}
        self.answers: list[tuple[Actor, int, Any, int]] = []
        self.generations: dict[int, tuple[str, tuple[str, ...]]] = {}
        self.assignments: dict[tuple[int, str], bytes] = {}
        self._start()

    @property
    def now_ms(self) -> int:
        return int(self.now * 1_000)

    def add(self) -> None:
        instance = self.random.choice((None, None, "i", "j"))
        if instance is not None:  # a newer process takes the place of the older one
            self.actors = [one for one in self.actors if one.instance != instance]
        self.actors.append(Actor(f"c{len(self.actors)}", instance))

    def request(self, actor: Actor) -> None:
        """The actor sends what it wants next, also when an answer is outstanding: it lost it."""
        actor.number += 1
        actor.is_waiting = True
        self.ids += 1
        new_id = f"m{self.ids}"
        name = actor.member_id or new_id
        old = self.parked.pop(name, None)
        if old is not None:
            self._answer(*old[:2], RebalanceInProgressError("an older request"))
        try:
            result = self._ask(actor, new_id)
        except RaftlogError as error:
            self._answer(actor, actor.number, error)
            return
        if result is None and actor.wants != "pulse":
            self.parked[name] = actor, actor.number, actor.wants
        else:
            self._answer(actor, actor.number, result)

    def _ask(self, actor: Actor, new_id: str) -> Any:
        if actor.wants == "join":
            join = Join(
                group=GROUP,
                member_id=actor.member_id,
                new_member_id=new_id,
                instance_id=actor.instance,
                protocol_type="consumer",
                protocols=(("range", b"x"),),
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                needs_member_id=self.random.random() < 0.7,
                may_skip_assignment=True,
            )
            return self._take(self.shard.join(join, now=self.now, now_ms=self.now_ms))
        who = actor.member_id, actor.instance
        if actor.wants == "sync":
            given = tuple((name, self.random.randbytes(4)) for name in actor.leads)
            sync = Sync(
                group=GROUP,
                member_id=actor.member_id,
                instance_id=actor.instance,
                generation=actor.generation,
                assignments=given,
            )
            return self._take(self.shard.sync(sync, now=self.now, now_ms=self.now_ms))
        return self._take(self.shard.classic_heartbeat(GROUP, *who, actor.generation, now=self.now))

    def leave(self, actor: Actor) -> None:
        self.actors.remove(actor)
        if actor.member_id and self.random.random() < 0.7:
            gone = [Departure(actor.member_id, actor.instance)]
            try:
                self._take(self.shard.leave(GROUP, gone, now=self.now, now_ms=self.now_ms))
            except RaftlogError:
                return

    def hear(self, actor: Actor, number: int, result: Any) -> None:
        if number != actor.number:
            return
        actor.is_waiting = False
        if isinstance(result, JoinResult):
            actor.member_id = result.member_id
            if result.generation == NO_GENERATION:
                return
            actor.generation = result.generation
            actor.leads = () if result.skip_assignment else self._led(result)
            actor.wants = "sync"
        elif isinstance(result, SyncResult):
            key = actor.generation, actor.member_id
            assert self.assignments.setdefault(key, result.assignment) == result.assignment
            actor.wants = "pulse"
        elif isinstance(result, RaftlogError):
            actor.wants = "join"
            if not isinstance(result, RebalanceInProgressError):
                actor.member_id = ""

    def _led(self, result: JoinResult) -> tuple[str, ...]:
        members = tuple(sorted(member.member_id for member in result.members))
        if members and not self._has_static():
            known = self.generations.setdefault(result.generation, (result.leader, members))
            assert known == (result.leader, members), "a generation was given twice"
        return members

    def _has_static(self) -> bool:
        """A static member changes its ID within a generation."""
        return any(name.startswith(("i", "j")) for name in self.classic.instances)

    @property
    def classic(self) -> ClassicGroup:
        found = groups_of(self.shard)[GROUP].classic
        assert found is not None
        return found

    def answer_committed(self) -> None:
        answers, self.answers = self.answers, []
        for actor, number, result, end in answers:
            if end <= self.committed:
                self.hear(actor, number, result)
            else:
                self.answers.append((actor, number, result, end))

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while (at := self.shard.deadline()) is not None and at <= end:
            self.now = max(self.now, at)
            self._take(self.shard.tick(now=self.now, now_ms=self.now_ms, expiry_ms=self.now_ms))
        self.now = end

    def fail_over(self) -> None:
        end = self.random.choice([end for end in self.ends if end >= self.committed])
        del self.log[end:]
        self.ends = [at for at in self.ends if at <= end]
        self.committed = end
        self.answers = [answer for answer in self.answers if answer[3] <= end]
        self.parked.clear()
        self.shard = replayed(compacted(self.log, self.random), self.settings)
        self._start()

    def come_to_rest(self) -> None:
        for _ in range(60):
            for actor in self.actors:
                if not actor.is_waiting or self.random.random() < 0.2:
                    self.request(actor)
            self.committed = len(self.log)
            self.answer_committed()
            self.pass_time(2)
        if self.actors:
            assert self.classic.phase == "stable"
            assert {actor.wants for actor in self.actors} == {"pulse"}
            assert {actor.generation for actor in self.actors} == {self.classic.generation}
            assert {actor.member_id for actor in self.actors} == self.classic.members.keys()

    def _start(self) -> None:
        self._take(self.shard.start(TOPICS, version=1, now=self.now, now_ms=self.now_ms))

    def _answer(self, actor: Actor, number: int, result: Any) -> None:
        self.answers.append((actor, number, result, len(self.log)))

    def _take(self, step: Any) -> Any:
        if step.records:
            self.log += step.records
            self.ends.append(len(self.log))
        for _, name in sorted(step.wake):
            waiting = self.parked.pop(name, None)
            if waiting is None:
                continue
            actor, number, kind = waiting
            ask = self.shard.join_result if kind == "join" else self.shard.sync_result
            try:
                self._answer(actor, number, ask(GROUP, name, actor.instance))
            except RaftlogError as error:
                self._answer(actor, number, error)
        check_invariants(self.shard)
        return step.result


def run(seed: int) -> None:
    random = Random(seed)
    world = World(random)
    world.add()
    for _ in range(STEPS):
        roll = random.random()
        actor = random.choice(world.actors) if world.actors else None
        if roll < 0.5 and actor is not None:
            if not actor.is_waiting or random.random() < 0.1:
                world.request(actor)
        elif roll < 0.6:
            world.committed = random.choice([e for e in world.ends if e >= world.committed])
        elif roll < 0.8:
            world.answer_committed()
        elif roll < 0.9:
            world.pass_time(random.choice((0.5, 3.0, 12.0)))
        elif roll < 0.93:
            world.fail_over()
        elif roll < 0.97 and len(world.actors) < 5:
            world.add()
        elif actor is not None:
            world.leave(actor)
    world.come_to_rest()


def test_seeded_runs_break_no_promise(seed: int) -> None:
    for number in range(seed, seed + 150):
        run(number)


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(5_000, marks=pytest.mark.seeds),
        pytest.param(50_000, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.timeout(0)
def test_many_seeded_runs_break_no_promise(seed: int, runs: int) -> None:
    for number in range(seed, seed + runs):
        run(number)


def gives_a_generation_twice(patch: pytest.MonkeyPatch) -> None:
    restore = ClassicGroup.restore

    def careless(self: ClassicGroup, value: Any) -> None:
        restore(self, value)
        self.generation = max(0, self.generation - 1)

    patch.setattr(ClassicGroup, "restore", careless)


def forgets_that_a_rebalance_began(patch: pytest.MonkeyPatch) -> None:
    restore = ClassicGroup.restore

    def careless(self: ClassicGroup, value: Any) -> None:
        restore(self, value)
        self.phase = "stable" if self.members else "empty"

    patch.setattr(ClassicGroup, "restore", careless)


def waits_for_all(patch: pytest.MonkeyPatch) -> None:
    def careless(self: ClassicGroup, *, now: float) -> None:
        self.phase_ends = math.inf

    patch.setattr(ClassicGroup, "_end_phase", careless)


@pytest.mark.parametrize(
    "mistake", [gives_a_generation_twice, forgets_that_a_rebalance_began, waits_for_all]
)
def test_the_model_sees_mistakes(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else it would prove nothing."""
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        deque((run(seed) for seed in range(1_000)), maxlen=0)
