"""Answers that wait: each ends once, in the log's order, and none waits for ever."""

from __future__ import annotations

import asyncio

from raftlog.errors import (
    CommitUnknownError,
    LeaderNotAvailableError,
    NotCoordinatorError,
    NotEnoughReplicasError,
)
from raftlog.server.groups.shard import PATIENCE_SECONDS, PendingResponses
from raftlog.server.scheduling import Acknowledge, Rounds
from tests.running import runs
from tests.server.cluster.paper import Scene, append, play, state_of


class Answering:
    """A leader with two followers; ``ended``: what came of which answer."""

    def __init__(self, s: Scene) -> None:
        self.host = s.host()
        self.host.lead(state_of(1, 2, 3, epoch=5), 1, lag_max_seconds=10)
        self.questions: list[Acknowledge] = []
        confirmations = Rounds(self.questions.append)
        self.answers = PendingResponses(self.host, confirmations, s.loop)
        self.ended: list[tuple[str, type[Exception] | None]] = []

    def resolve(self, name: str, **conditions: int) -> None:
        self.answers.resolve(
            lambda: self.ended.append((name, None)),
            lambda error: self.ended.append((name, type(error))),
            end=self.host.log.log_end_offset,
            **conditions,
        )

    def commit(self) -> None:
        end = self.host.log.log_end_offset
        for follower in (2, 3):
            disk = f"disk-{follower}"
            self.host.on_follower(follower, disk, fetch_offset=end, durable_offset=end)


@runs(play)
async def test_with_nothing_to_wait_for_it_ends_at_once(s: Scene) -> None:
    a = Answering(s)
    a.resolve("one")
    assert (a.ended, len(a.answers)) == ([("one", None)], 0)


@runs(play)
async def test_it_ends_when_both_have_come(s: Scene) -> None:
    a = Answering(s)
    append(a.host, b"x")
    await s.come_to_rest()
    a.resolve("committed first", confirmed_since=0)
    a.commit()
    assert (a.ended, len(a.answers)) == ([], 1)
    a.questions.pop()(None)
    append(a.host, b"y")
    await s.come_to_rest()
    a.resolve("confirmed first", confirmed_since=1)
    a.questions.pop()(None)
    assert a.ended == [("committed first", None)]
    a.commit()
    assert a.ended == [("committed first", None), ("confirmed first", None)]


@runs(play)
async def test_nobody_waits_for_a_commit_that_a_leader_cut_off_will_not_make(s: Scene) -> None:
    a = Answering(s)
    append(a.host, b"x")
    a.resolve("write", is_appended=True)
    a.resolve("beat")
    a.resolve("read", confirmed_since=0)
    a.questions.pop()(LeaderNotAvailableError("nobody answers"))
    assert a.ended == [("read", NotCoordinatorError)]
    await asyncio.sleep(PATIENCE_SECONDS + 0.1)
    assert len(a.ended) == 1
    a.questions.pop()(LeaderNotAvailableError("nobody answers"))
    assert a.ended[1:] == [("write", CommitUnknownError), ("beat", NotCoordinatorError)]
    a.commit()
    assert (len(a.ended), len(a.answers)) == (3, 0), "once"


@runs(play)
async def test_while_it_leads_a_slow_commit_is_waited_for(s: Scene) -> None:
    a = Answering(s)
    append(a.host, b"x")
    a.resolve("write", is_appended=True)
    for _ in range(3):
        await asyncio.sleep(PATIENCE_SECONDS + 0.1)
        a.questions.pop()(None)
        assert a.ended == []
    a.commit()
    assert a.ended == [("write", None)]
    await asyncio.sleep(10)
    assert not a.questions, "nobody waits"


@runs(play)
async def test_with_too_few_in_sync_nobody_waits_either(s: Scene) -> None:
    a = Answering(s)
    append(a.host, b"x")
    a.resolve("write", is_appended=True)
    a.resolve("beat")
    a.host.on_state(state_of(1, 2, 3, epoch=5, isr=[1], min_isr=2, version=2))
    await asyncio.sleep(PATIENCE_SECONDS + 0.1)
    a.questions.pop()(None)
    assert a.ended == [("write", CommitUnknownError), ("beat", NotEnoughReplicasError)]


@runs(play)
async def test_who_came_later_has_its_own_time(s: Scene) -> None:
    a = Answering(s)
    append(a.host, b"x")
    a.resolve("first")
    await asyncio.sleep(PATIENCE_SECONDS / 2)
    await s.come_to_rest()
    a.commit()
    append(a.host, b"y")
    a.resolve("second")
    await asyncio.sleep(PATIENCE_SECONDS * 0.9)
    assert not a.questions
    await asyncio.sleep(PATIENCE_SECONDS * 0.2)
    assert len(a.questions) == 1


@runs(play)
async def test_leadership_that_ends_ends_all(s: Scene) -> None:
    a = Answering(s)
    append(a.host, b"x")
    a.resolve("write", is_appended=True)
    a.resolve("read", confirmed_since=0)
    a.host.follow(2, 6)
    a.questions.pop()(None)
    assert a.ended == [("write", CommitUnknownError), ("read", NotCoordinatorError)]
