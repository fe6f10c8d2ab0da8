"""Parked heartbeats: each ends once, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raftlog.errors import NotCoordinatorError, RaftlogError
from raftlog.server.groups.shard import HeartbeatPurgatory, MemberKey, Unpark
from tests.running import runs
from tests.server.cluster.paper import Scene, play

M, N = ("g", "m"), ("g", "n")


class Parking:
    """``ended``: whose heartbeats ended how."""

    def __init__(self, s: Scene) -> None:
        self.parked = HeartbeatPurgatory(s.loop)
        self.ended: list[tuple[MemberKey, RaftlogError | None]] = []

    def park(self, member: MemberKey, *, owner: str = "a", wait_seconds: float = 3) -> None:
        self.parked.park(member, owner, self._note(member), wait_seconds=wait_seconds)

    def _note(self, member: MemberKey) -> Unpark:
        return lambda reason: self.ended.append((member, reason))


@runs(play)
async def test_it_ends_when_its_time_is_up_and_not_again(s: Scene) -> None:
    p = Parking(s)
    p.park(M)
    p.park(N, wait_seconds=5)
    await asyncio.sleep(4)
    assert p.ended == [(M, None)]
    p.parked.wake(M)
    await asyncio.sleep(10)
    assert p.ended == [(M, None), (N, None)]
    assert len(p.parked) == 0


@runs(play)
async def test_it_ends_when_it_is_woken_and_not_by_its_time(s: Scene) -> None:
    p = Parking(s)
    p.park(M)
    p.parked.wake(N)
    p.parked.wake(M)
    p.parked.wake(M)
    await asyncio.sleep(10)
    assert p.ended == [(M, None)]


@runs(play)
async def test_who_is_woken_may_park_again_at_once(s: Scene) -> None:
    p = Parking(s)
    again: Callable[[RaftlogError | None], None] = lambda _reason: p.park(M)  # noqa: E731
    p.parked.park(M, "a", again, wait_seconds=3)
    p.parked.wake_all()
    assert (len(p.parked), p.ended) == (1, [])
    p.parked.wake_all()
    assert p.ended == [(M, None)]


@runs(play)
async def test_a_connection_that_is_lost_takes_its_own_along(s: Scene) -> None:
    p = Parking(s)
    p.park(M, owner="a")
    p.park(N, owner="b")
    p.parked.forget("a")
    p.parked.forget("nobody")
    await asyncio.sleep(10)
    assert p.ended == [(N, None)]


@runs(play)
async def test_all_can_be_refused(s: Scene) -> None:
    p = Parking(s)
    p.park(M)
    p.park(N)
    reason = NotCoordinatorError("over")
    p.parked.refuse_all(reason)
    await asyncio.sleep(10)
    assert p.ended == [(M, reason), (N, reason)]
