"""Heartbeats that wait for the log, and what their members are told meanwhile. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftlog.consumer_groups import HeartbeatResult
from raftlog.errors import NotCoordinatorError, NotLeaderError
from raftlog.server.groups import shard
from raftlog.server.groups.shard import HeartbeatAnswer, HeartbeatKeepalive
from raftlog.server.scheduling import Acknowledge, Rounds
from tests.running import runs
from tests.server.cluster.paper import Scene, play

M = ("g", "m")
OLD, NEW = HeartbeatResult(3), HeartbeatResult(4)
SESSION_MS = 6_000


class Shown:
    """Answers of one shard, and what came of them, in order."""

    def __init__(self, s: Scene) -> None:
        self.told: list[Any] = []
        self.dropped = 0
        self.may_tell = True
        self.questions: list[Acknowledge] = []  # whether this broker leads, of which none is told
        self.leads = True
        self.all = HeartbeatKeepalive(
            s.loop, Rounds(self._ask), lambda member: self.may_tell and member == M
        )

    def _ask(self, done: Acknowledge) -> None:
        if self.leads:
            done(None)
        else:
            self.questions.append(done)

    def begin(self, epoch: int = 3) -> HeartbeatAnswer:
        return self.all.begin(
            M,
            epoch,
            self.told.append,
            lambda error: self.told.append(type(error)),
            session_ms=SESSION_MS,
        )

    def waiting(self, epoch: int = 3) -> HeartbeatAnswer:
        answer = self.begin(epoch)
        answer.wait(self._drop)
        return answer

    def _drop(self) -> None:
        self.dropped += 1


@runs(play)
async def test_who_has_waited_for_a_third_of_its_session_is_told_what_it_was_told_last(
    s: Scene,
) -> None:
    shown = Shown(s)
    shown.begin().go(OLD)
    answer = shown.waiting()
    await asyncio.sleep(1.9)
    assert shown.told == [OLD]
    await asyncio.sleep(0.2)
    assert (shown.told, shown.dropped) == ([OLD, OLD], 1)
    answer.go(NEW)  # it is told by the next heartbeat's answer
    answer.fail(NotCoordinatorError("late"))
    assert shown.told == [OLD, OLD]
    shown.begin().go(NEW)
    assert shown.all.last(M, 4) == NEW


@runs(play)
async def test_who_leads_no_more_reassures_nobody(s: Scene) -> None:
    """Each answer is a lease: the next coordinator waits for those from before it began only."""
    shown = Shown(s)
    shown.begin().go(OLD)
    shown.waiting()
    shown.leads = False
    await asyncio.sleep(10)
    assert (shown.told, len(shown.questions)) == ([OLD], 1)
    shown.questions.pop()(NotLeaderError("not any more"))
    assert shown.told == [OLD]


@runs(play)
async def test_a_member_is_reassured_as_soon_as_it_is_certain(s: Scene) -> None:
    shown = Shown(s)
    shown.begin().go(OLD)
    shown.leads = False
    shown.waiting()
    await asyncio.sleep(3)
    shown.questions.pop()(None)
    assert (shown.told, shown.dropped) == ([OLD, OLD], 1)
    late = shown.waiting()
    await asyncio.sleep(3)
    late.go(NEW)
    shown.questions.pop()(None)
    assert (shown.told, shown.dropped) == ([OLD, OLD, NEW], 1)


@runs(play)
async def test_the_time_counts_from_when_the_heartbeat_came(s: Scene) -> None:
    shown = Shown(s)
    shown.begin().go(OLD)
    answer = shown.begin()
    await asyncio.sleep(3)
    assert shown.told == [OLD], "it does not wait for the log"
    answer.wait(lambda: None)
    await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert shown.told == [OLD, OLD]


@runs(play)
async def test_what_comes_in_time_is_told_and_nothing_else(s: Scene) -> None:
    shown = Shown(s)
    shown.waiting().go(OLD)
    shown.waiting().fail(NotCoordinatorError("no more"))
    late = shown.begin()
    late.go(NEW)
    late.wait(lambda: None)
    await asyncio.sleep(10)
    assert (shown.told, shown.dropped) == ([OLD, NotCoordinatorError, NEW], 0)


@runs(play)
async def test_who_was_told_nothing_or_joins_or_is_none_any_more_waits_on(s: Scene) -> None:
    shown = Shown(s)
    shown.waiting()
    await asyncio.sleep(3)
    shown.begin().go(OLD)
    for epoch in (0, -1, -2, 4):  # 4: what it was told by another coordinator
        shown.waiting(epoch)
    await asyncio.sleep(3)
    shown.may_tell = False
    answer = shown.waiting()
    await asyncio.sleep(3)
    shown.may_tell = True
    shown.all.forget_all()
    shown.waiting()
    await asyncio.sleep(10)
    assert (shown.told, shown.dropped) == ([OLD], 0)
    answer.go(NEW)
    assert shown.told == [OLD, NEW], "when it comes, it is told"


def test_not_more_members_than_that_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "MEMBERS_MAX", 1)

    async def test(s: Scene) -> None:
        shown = Shown(s)
        shown.all.responded(M, OLD)
        shown.all.responded(M, NEW)
        shown.all.responded(("g", "n"), OLD)
        assert shown.all.last(M, 3) is None

    play(test)
