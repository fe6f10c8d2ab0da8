"""Whether this broker leads still: each other member has to be heard of after the question."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from raftlog.errors import LeaderNotAvailableError, NotLeaderError, RaftlogError
from raftlog.server.cluster.confirmation import ASK_AGAIN_SECONDS, CONFIRM_SECONDS_MAX, confirm
from raftlog.server.cluster.replica_session import ReplicaSession
from raftlog.server.replica_host import PartitionHost
from tests.server.cluster.paper import Scene, play, state_of


class PaperSession:
    """A follower that asks again when the test says so, and follows what the test says."""

    def __init__(self) -> None:
        self.epoch = 5
        self.waiting: list[object] = []

    def when_heard_anew(self, done: object) -> None:
        self.waiting.append(done)

    def follows(self, _topic_id: str, _partition: int, leader_epoch: int) -> bool:
        return self.epoch == leader_epoch

    def is_heard(self) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done()  # type: ignore[operator]


class Asking:
    def __init__(self, s: Scene, isr: Sequence[int] = (1, 2, 3)) -> None:
        self.host: PartitionHost = s.host()
        self.host.lead(state_of(1, 2, 3, epoch=5, isr=isr), 1, lag_max_seconds=10)
        self.sessions = {2: PaperSession(), 3: PaperSession()}
        self.told: list[RaftlogError | None] = []
        self._loop = s.loop

    def ask(self) -> None:
        confirm(
            self.host,
            1,
            self.told.append,
            loop=self._loop,
            session_of=lambda b: cast("ReplicaSession | None", self.sessions.get(b)),
        )


def test_all_the_others_have_to_be_heard() -> None:
    async def test(s: Scene) -> None:
        a = Asking(s)
        a.ask()
        a.sessions[2].is_heard()
        a.sessions[2].is_heard()
        assert a.told == []
        a.sessions[3].is_heard()
        assert a.told == [None]
        await asyncio.sleep(2 * CONFIRM_SECONDS_MAX)
        assert a.told == [None], "once"

    play(test)


def test_alone_in_sync_there_is_nobody_to_ask() -> None:
    async def test(s: Scene) -> None:
        a = Asking(s, isr=[1])
        a.ask()
        assert a.told == [None]

    play(test)


def test_who_is_silent_is_named_after_a_while() -> None:
    async def test(s: Scene) -> None:
        a = Asking(s)
        del a.sessions[3]
        a.ask()
        a.sessions[2].is_heard()
        await asyncio.sleep(CONFIRM_SECONDS_MAX * 1.1)
        (error,) = a.told
        assert isinstance(error, LeaderNotAvailableError)
        assert "brokers 3 do not confirm" in str(error)
        a.sessions[2].is_heard()
        assert len(a.told) == 1

    play(test)


def test_who_follows_in_another_epoch_confirms_nothing() -> None:
    async def test(s: Scene) -> None:
        a = Asking(s, isr=[1, 2])
        a.sessions[2].epoch = 6
        a.ask()
        a.sessions[2].is_heard()
        assert a.told == []

    play(test)


def test_who_does_not_follow_yet_is_asked_again() -> None:
    """An epoch has just begun: a follower's next request may be of before it heard of that."""

    async def test(s: Scene) -> None:
        a = Asking(s)
        late = a.sessions.pop(3)
        a.sessions[2].epoch = 4
        a.ask()
        a.sessions[2].is_heard()
        a.sessions[2].epoch = 5
        a.sessions[3] = late
        assert not a.sessions[2].waiting
        await asyncio.sleep(2 * ASK_AGAIN_SECONDS)
        a.sessions[2].is_heard()
        a.sessions[3].is_heard()
        assert a.told == [None]

    play(test)


def test_nobody_is_asked_again_when_the_time_is_up() -> None:
    async def test(s: Scene) -> None:
        a = Asking(s, isr=[1, 2])
        a.sessions[2].epoch = 4
        a.ask()
        for _ in range(100):
            a.sessions[2].is_heard()
            await asyncio.sleep(ASK_AGAIN_SECONDS)
        assert [type(error) for error in a.told] == [LeaderNotAvailableError]
        assert not a.sessions[2].waiting

    play(test)


def test_a_leader_that_is_one_no_more_says_so() -> None:
    async def test(s: Scene) -> None:
        a = Asking(s, isr=[1, 2])
        a.ask()
        a.host.follow(2, 6)
        a.sessions[2].is_heard()
        assert [type(error) for error in a.told] == [NotLeaderError]
        a.ask()
        assert [type(error) for error in a.told] == [NotLeaderError] * 2

    play(test)


def test_a_new_epoch_of_the_same_leader_is_another_question() -> None:
    async def test(s: Scene) -> None:
        a = Asking(s, isr=[1, 2])
        a.ask()
        a.host.lead(state_of(1, 2, 3, epoch=6, isr=[1, 2], version=2), 1, lag_max_seconds=10)
        a.sessions[2].is_heard()
        assert [type(error) for error in a.told] == [NotLeaderError]

    play(test)
