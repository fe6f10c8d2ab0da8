"""A broker that is about to stop: others lead, it is fenced, and none of it takes for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from raftlog.replication.cluster_commands import FenceBroker, founding_state
from raftlog.replication.partition_state import ChangeIsr, Elect, PartitionState
from raftlog.server.cluster.elections import HostedPartition
from raftlog.server.cluster.membership import CLUSTER_GROUP, Membership
from raftlog.server.cluster.replicas import Handover
from tests.server.cluster.paper import DISKS, Scene, play, state_of, status

SECONDS_MAX = 10.0


class PaperMembership:
    def __init__(self) -> None:
        self.is_leaving = False
        self.is_in = True


class Leaving:
    """Broker 1 stops; it leads the partitions of these states while they say so."""

    def __init__(self, s: Scene, *states: PartitionState) -> None:
        self.s = s
        s.machine.restore(founding_state("c"))
        s.register(1, 2, 3)
        s.see(2, 3)
        s.plane.machines[CLUSTER_GROUP] = s.machine
        s.plane.statuses[CLUSTER_GROUP] = status(voters={b: DISKS[b] for b in (1, 2, 3)})
        self.membership = PaperMembership()
        self.partitions: list[HostedPartition] = []
        for number, state in enumerate(states):
            hosted = s.hosted(state)
            hosted.partition = number
            s.plane.machines[hosted.group_id] = hosted.machine
            self.partitions.append(hosted)
        self.handover = Handover(
            1,
            machine=s.machine,
            plane=s.plane.as_plane,
            liveness=s.liveness,
            membership=cast(Membership, self.membership),
            leading=lambda: [m for m in self.partitions if m.state.leader == 1],
            hosted=lambda: self.partitions,
            voters=lambda: (
                s.plane.statuses[CLUSTER_GROUP].voters if CLUSTER_GROUP in s.plane.statuses else ()
            ),
        )

    async def begin(self) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self.handover.run(seconds_max=SECONDS_MAX))
        await self.s.come_to_rest()
        return task

    @property
    def fencing(self) -> bool:
        """Whether its fence, and nothing else, is proposed."""
        proposals = self.s.plane.proposals
        fence = FenceBroker(id=1, broker_epoch=self.s.machine.brokers[1].broker_epoch)
        return [(p.group_id, p.command) for p in proposals] == [(CLUSTER_GROUP, fence.encode())]


def leaving(test: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    play(test)


def test_all_that_it_leads_is_led_by_others_before_it_is_fenced() -> None:
    async def test(s: Scene) -> None:
        leave = Leaving(s, state_of(1, 2, 3), state_of(3, 1, leader=1), state_of(2, 1))
        task = await leave.begin()
        assert leave.membership.is_leaving, "nobody lets it in again"
        assert s.plane.commands() == [Elect(1, 2, DISKS[2], 1), Elect(1, 3, DISKS[3], 1)]
        s.plane.agree()
        await s.come_to_rest()
        assert not leave.fencing
        s.plane.agree()
        await s.come_to_rest()
        assert leave.fencing
        s.plane.agree()
        await asyncio.sleep(1)
        assert s.machine.brokers[1].fenced
        assert not task.done(), "it is in their ISRs"
        await task

    leaving(test)


def test_it_copies_until_leaders_do_not_wait_for_it_any_more() -> None:
    """Their high watermarks would stand still from its end until the ISR has changed."""

    async def test(s: Scene) -> None:
        leave = Leaving(s, state_of(2, 1), state_of(3, 1))
        s.lose(3)
        task = await leave.begin()
        assert leave.fencing
        s.plane.agree()
        await asyncio.sleep(1)
        assert not task.done()
        (kept, _) = leave.partitions
        kept.machine.apply(
            ChangeIsr(kept.state.version, kept.state.leader_epoch, {2: DISKS[2]}, 1).encode()
        )
        begun = s.loop.time()
        await task
        assert s.loop.time() - begun < 1, "broker 3, which leads the other one, has failed"

    leaving(test)


def test_what_nobody_else_can_lead_is_led_to_the_end() -> None:
    async def test(s: Scene) -> None:
        leave = Leaving(s, state_of(1, 2, isr=[1]), state_of(1))
        task = await leave.begin()
        assert leave.fencing
        s.plane.agree()
        await task
        assert leave.partitions[0].state.leader == 1

    leaving(test)


def test_nobody_gets_it_who_is_about_to_stop_too() -> None:
    async def test(s: Scene) -> None:
        leave = Leaving(s, state_of(1, 2, 3))
        s.fenced.add(2)
        task = await leave.begin()
        assert s.plane.commands() == [Elect(1, 3, DISKS[3], 1)]
        s.plane.agree()
        await s.come_to_rest()
        s.plane.agree()
        await task

    leaving(test)


@pytest.mark.parametrize("outcome", ["refuse", "lose"])
def test_what_was_not_handed_over_is_waited_for_after_the_fence(outcome: str) -> None:
    """Its arbiter elects another: the leader is not live any more."""

    async def test(s: Scene) -> None:
        leave = Leaving(s, state_of(1, 2))
        task = await leave.begin()
        getattr(s.plane, outcome)()
        await s.come_to_rest()
        assert leave.fencing
        s.plane.agree()
        await asyncio.sleep(1)
        assert not task.done()
        leave.partitions[0].machine.apply(Elect(1, 2, DISKS[2], 1).encode())
        await task

    leaving(test)


def test_it_takes_no_longer_than_it_may() -> None:
    async def test(s: Scene) -> None:
        leave = Leaving(s, state_of(1, 2))
        begun = s.loop.time()
        task = await leave.begin()
        await task
        assert SECONDS_MAX <= s.loop.time() - begun < SECONDS_MAX + 1

    leaving(test)


def test_without_a_majority_nothing_is_waited_for() -> None:
    """All stop together: the last ones would wait for those that are gone."""

    async def test(s: Scene) -> None:
        leave = Leaving(s, state_of(1, 2))
        task = await leave.begin()
        begun = s.loop.time()
        s.lose(2, 3)
        await task
        assert s.loop.time() - begun < 0.1

    leaving(test)


def test_who_is_not_in_needs_no_fence() -> None:
    async def test(s: Scene) -> None:
        leave = Leaving(s)
        leave.membership.is_in = False
        await leave.begin()
        assert s.plane.proposals == []

    leaving(test)


@pytest.mark.parametrize("outcome", ["refuse", "lose"])
def test_a_fence_that_fails_does_not_keep_it(outcome: str) -> None:
    async def test(s: Scene) -> None:
        leave = Leaving(s)
        task = await leave.begin()
        getattr(s.plane, outcome)()
        await task

    leaving(test)


def test_consensus_that_never_began_does_not_keep_it() -> None:
    async def test(s: Scene) -> None:
        leave = Leaving(s, state_of(1, 2))
        s.plane.statuses.clear()
        await (await leave.begin())

    leaving(test)


def test_a_mistake_does_not_keep_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(s: Scene) -> None:
        leave = Leaving(s)

        def broken(_self: Handover) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(Handover, "_movable", broken)
        await (await leave.begin())
        assert "leadership transfer failed" in caplog.text

    leaving(test)
