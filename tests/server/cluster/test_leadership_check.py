"""Whether this broker still leads: the others that may be elected say so, or the group does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from raftlog.consensus import Applied, NotProposed, Outcome
from raftlog.errors import LeaderNotAvailableError, NotLeaderError, RaftlogError
from raftlog.replication.partition_state import Elect, PartitionMachine
from raftlog.server.cluster.elections import HostedPartition
from raftlog.server.cluster.fetch_session import (
    CONFIRM_SECONDS_MAX,
    GROUP_SECONDS,
    RETRY_SECONDS,
    FetchSession,
    LeadershipCheck,
)
from raftlog.server.partition import Partition
from tests.running import runs
from tests.server.cluster.paper import DISKS, TOPIC_ID, Scene, play, state_of


class PaperSession:
    """A follower that asks again when the test says so, and follows what the test says."""

    def __init__(self) -> None:
        self.epoch = 5
        self.waiting: list[object] = []

    def when_fetched_again(self, done: object) -> None:
        self.waiting.append(done)

    def follows(self, _topic_id: str, _partition: int, leader_epoch: int) -> bool:
        return self.epoch == leader_epoch

    def is_heard(self) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done()  # type: ignore[operator]


class Asking:
    """Broker 1, asked for an end. The group agrees on what the test says."""

    def __init__(
        self, s: Scene, isr: Sequence[int] = (1, 2, 3), elr: Sequence[int] = (), min_isr: int = 1
    ) -> None:
        state = state_of(1, 2, 3, epoch=5, isr=isr)
        state = replace(state, elr={broker: DISKS[broker] for broker in elr}, min_isr=min_isr)
        self.host: Partition = s.host()
        self.host.lead(state, 1, lag_max_seconds=10)
        self.member = HostedPartition(
            "t", TOPIC_ID, 0, 3, PartitionMachine(state.encode()), self.host
        )
        self.sessions = {2: PaperSession(), 3: PaperSession()}
        self.told: list[RaftlogError | None] = []
        self.proposals: list[Callable[[Outcome], None]] = []
        self.confirmation = LeadershipCheck(
            1,
            loop=s.loop,
            session_of=lambda b: cast("FetchSession | None", self.sessions.get(b)),
            find=lambda _topic_id, _partition: self.member,
            propose=self._propose,
        )

    def _propose(self, group_id: str, command: bytes, done: Callable[[Outcome], None]) -> None:
        assert (group_id, command) == (self.member.group_id, b"")
        self.proposals.append(done)

    def ask(self) -> None:
        self.confirmation.confirm(self.host, self.told.append)

    def apply(self) -> None:
        """The command is applied here, and with it all that was agreed on before."""
        self.proposals.pop(0)(Applied(self.member.machine.apply(b"")))


@runs(play)
async def test_all_the_others_have_to_be_heard(s: Scene) -> None:
    a = Asking(s)
    a.ask()
    a.sessions[2].is_heard()
    a.sessions[2].is_heard()
    assert a.told == []
    a.sessions[3].is_heard()
    assert a.told == [None]
    await asyncio.sleep(2 * CONFIRM_SECONDS_MAX)
    assert a.told == [None], "once"


@runs(play)
async def test_alone_in_sync_there_is_nobody_to_ask(s: Scene) -> None:
    a = Asking(s, isr=[1])
    a.ask()
    assert a.told == [None]


@runs(play)
async def test_a_member_of_the_elr_has_to_be_heard_too(s: Scene) -> None:
    """It may have been elected, though it is not in sync."""
    a = Asking(s, isr=[1], elr=[2], min_isr=2)
    a.ask()
    assert a.told == []
    a.sessions[2].is_heard()
    assert a.told == [None]
    await asyncio.sleep(2 * GROUP_SECONDS)
    assert not a.proposals, "the group need not be asked"


@runs(play)
async def test_the_group_settles_it_where_a_member_is_down(s: Scene) -> None:
    a = Asking(s, isr=[1], elr=[2], min_isr=2)
    del a.sessions[2]
    a.ask()
    await asyncio.sleep(RETRY_SECONDS)
    a.ask()
    await asyncio.sleep(GROUP_SECONDS / 2)
    assert (a.told, len(a.proposals)) == ([], 1), "one at a time"
    a.apply()
    assert a.told == [None]
    a.apply()
    assert a.told == [None, None]
    assert not a.proposals


@runs(play)
async def test_the_group_settles_it_where_a_member_does_not_answer(s: Scene) -> None:
    a = Asking(s)
    a.ask()
    assert not a.proposals
    await asyncio.sleep(GROUP_SECONDS * 1.1)
    a.apply()
    assert a.told == [None]
    a.sessions[2].is_heard()
    a.sessions[3].is_heard()
    await asyncio.sleep(2 * CONFIRM_SECONDS_MAX)
    assert a.told == [None], "once"


@runs(play)
async def test_a_group_that_has_elected_another_leader_confirms_nothing(s: Scene) -> None:
    """This broker's host has not taken that over yet."""
    a = Asking(s, isr=[1], elr=[2], min_isr=2)
    del a.sessions[2]
    a.ask()
    await asyncio.sleep(RETRY_SECONDS)
    a.member.machine.apply(Elect(a.member.state.version, 2, DISKS[2]).encode())
    a.apply()
    assert [type(error) for error in a.told] == [NotLeaderError]
    assert a.host.leadership is not None


@runs(play)
async def test_a_group_without_a_leader_leaves_it_to_the_members(s: Scene) -> None:
    a = Asking(s)
    a.ask()
    await asyncio.sleep(GROUP_SECONDS * 1.1)
    a.proposals.pop()(NotProposed("no leader in time"))
    assert a.told == []
    a.sessions[2].is_heard()
    a.sessions[3].is_heard()
    assert a.told == [None]


@runs(play)
async def test_who_is_silent_is_named_after_a_while(s: Scene) -> None:
    a = Asking(s)
    del a.sessions[3]
    a.ask()
    a.sessions[2].is_heard()
    await asyncio.sleep(CONFIRM_SECONDS_MAX * 1.1)
    (error,) = a.told
    assert isinstance(error, LeaderNotAvailableError)
    assert "neither brokers 3 nor a majority" in str(error)
    a.sessions[2].is_heard()
    assert len(a.told) == 1


@runs(play)
async def test_who_follows_in_another_epoch_confirms_nothing(s: Scene) -> None:
    a = Asking(s, isr=[1, 2])
    a.sessions[2].epoch = 6
    a.ask()
    a.sessions[2].is_heard()
    assert a.told == []


@runs(play)
async def test_who_does_not_follow_yet_is_asked_again(s: Scene) -> None:
    """An epoch has just begun: a follower's next request may be of before it heard of that."""
    a = Asking(s)
    late = a.sessions.pop(3)
    a.sessions[2].epoch = 4
    a.ask()
    a.sessions[2].is_heard()
    a.sessions[2].epoch = 5
    a.sessions[3] = late
    assert not a.sessions[2].waiting
    await asyncio.sleep(2 * RETRY_SECONDS)
    a.sessions[2].is_heard()
    a.sessions[3].is_heard()
    assert a.told == [None]


@runs(play)
async def test_nobody_is_asked_again_when_the_time_is_up(s: Scene) -> None:
    a = Asking(s, isr=[1, 2])
    a.sessions[2].epoch = 4
    a.ask()
    for _ in range(100):
        a.sessions[2].is_heard()
        await asyncio.sleep(RETRY_SECONDS)
    assert [type(error) for error in a.told] == [LeaderNotAvailableError]
    assert not a.sessions[2].waiting


@runs(play)
async def test_a_leader_that_is_one_no_more_says_so(s: Scene) -> None:
    a = Asking(s, isr=[1, 2])
    a.ask()
    a.host.follow(2, 6)
    a.sessions[2].is_heard()
    assert [type(error) for error in a.told] == [NotLeaderError]
    a.ask()
    assert [type(error) for error in a.told] == [NotLeaderError] * 2


@runs(play)
async def test_a_new_epoch_of_the_same_leader_is_another_question(s: Scene) -> None:
    a = Asking(s, isr=[1, 2])
    a.ask()
    a.host.lead(state_of(1, 2, 3, epoch=6, isr=[1, 2], version=2), 1, lag_max_seconds=10)
    a.sessions[2].is_heard()
    assert [type(error) for error in a.told] == [NotLeaderError]
