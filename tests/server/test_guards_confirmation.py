"""Who confirms that a broker leads still, and who does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from raftlog.errors import LeaderNotAvailableError, NotLeaderError, RaftlogError
from raftlog.server.cluster.confirmation import CONFIRM_SECONDS_MAX, confirm
from raftlog.server.cluster.replica_session import ReplicaSession
from raftlog.server.replica_host import PartitionHost
from tests.server.cluster.paper import Scene, play, state_of

EPOCH = 5


class Follower:
    """The session of one, which is heard when the test says so."""

    def __init__(self, number: int) -> None:
        self.follower = number
        self.epoch = EPOCH
        self.waiting: list[Callable[[], None]] = []

    def follows(self, _topic_id: str, _partition: int, leader_epoch: int) -> bool:
        return leader_epoch == self.epoch

    def when_heard_anew(self, done: Callable[[], None]) -> None:
        self.waiting.append(done)

    def is_heard(self) -> None:
        for done in self.waiting:
            done()


class Leader:
    """Broker 1, asked for an end; brokers 2 and 3 are in sync."""

    def __init__(self, s: Scene) -> None:
        self.told: list[type[RaftlogError] | None] = []
        self.host: PartitionHost = s.host()
        self.host.lead(state_of(1, 2, 3, epoch=EPOCH), 1, lag_max_seconds=10)
        self.followers = {2: Follower(2), 3: Follower(3)}
        confirm(
            self.host,
            1,
            lambda error: self.told.append(None if error is None else type(error)),
            loop=s.loop,
            session_of=lambda broker: cast(ReplicaSession, self.followers[broker]),
        )


def test_every_member_of_the_isr_has_to_be_heard() -> None:
    async def test(s: Scene) -> None:
        leader = Leader(s)
        leader.followers[2].is_heard()
        assert leader.told == []
        leader.followers[3].is_heard()
        assert leader.told == [None]

    play(test)


def test_who_follows_in_another_epoch_confirms_nothing() -> None:
    async def test(s: Scene) -> None:
        leader = Leader(s)
        leader.followers[3].epoch = EPOCH + 1
        for follower in leader.followers.values():
            follower.is_heard()
        assert leader.told == []
        s.loop.call_later(CONFIRM_SECONDS_MAX + 1, done := s.loop.create_future().set_result, None)
        await done.__self__
        assert leader.told == [LeaderNotAvailableError]

    play(test)


def test_who_does_not_lead_any_more_is_not_confirmed() -> None:
    async def test(s: Scene) -> None:
        leader = Leader(s)
        leader.host.follow(2, EPOCH + 1)
        for follower in leader.followers.values():
            follower.is_heard()
        assert leader.told == [NotLeaderError]

    play(test)
