"""The named scenario of consumer groups: what they have committed, through everybody's power cuts.

Real brokers in a simulated world: a power cut there loses all that was not synced.
"""

from __future__ import annotations

import asyncio

import pytest

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.errors import RaftlogError, RefusedError
from raftlog.protocol import api as apis
from raftlog.protocol import records
from raftlog.testing.simulator.world import ClientMachine, World
from tests.server.consumer_groups.simulated import GROUP, GroupCluster, coordinators_of

PACE_S = 0.05
CUTS = 3


class Committing:
    """A program that commits 1, 2, 3 and so on, and reads in between what is committed."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.tried = 0
        self.acknowledged = 0
        self.reads = 0
        self.is_over = False

    async def run(self, machine: ClientMachine) -> None:
        async with AsyncAdmin(bootstrap=self._bootstrap, host=machine.host()) as admin:
            while not self.is_over:
                await self._commit(admin)
                await self._read(admin)
                await asyncio.sleep(PACE_S)

    async def _commit(self, admin: AsyncAdmin) -> None:
        self.tried += 1
        to = records.OffsetToCommit(topic="t", partition=0, offset=self.tried)
        message = records.OffsetCommitRequest(group=GROUP, offsets=[to])
        try:
            answer = await coordinators_of(admin).call(GROUP, apis.OFFSET_COMMIT, message)
        except RefusedError:
            raise
        except RaftlogError:
            return  # kept, or not
        assert isinstance(answer, records.OffsetCommitResponse)
        assert answer.partitions[0].failure is None
        self.acknowledged = self.tried

    async def _read(self, admin: AsyncAdmin) -> None:
        message = records.OffsetFetchRequest(group=GROUP)
        try:
            answer = await coordinators_of(admin).call(GROUP, apis.OFFSET_FETCH, message)
        except RefusedError:
            raise
        except RaftlogError:
            return
        assert isinstance(answer, records.OffsetFetchResponse)
        found = answer.offsets[0].offset if answer.offsets else -1
        self.reads += 1
        self.check(found)

    def check(self, offset: int) -> None:
        if self.acknowledged:
            assert self.acknowledged <= offset <= self.tried, "lost, or never there"


@pytest.mark.parametrize(
    "seed",
    [39_000, *(pytest.param(each, marks=pytest.mark.seeds) for each in range(39_001, 39_004))],
)
@pytest.mark.parametrize("whose", ["the coordinator", "all brokers"])
def test_s39_group_offset_durability(seed: int, whose: str) -> None:
    """Power fails under load, again and again: what was committed is there, and nothing else is."""
    with World(seed, brokers=3) as world:
        cluster = GroupCluster(world)
        cluster.create(partitions=1)
        load = Committing(world.bootstrap)
        machine = world.add_client("load", load.run)
        machine.start()
        for _ in range(CUTS):
            before = load.acknowledged
            cluster.until(lambda before=before: load.acknowledged >= before + 5)  # type: ignore[misc]
            victims = [cluster.find()] if whose == "the coordinator" else [1, 2, 3]
            for number in victims:
                world.brokers[number - 1].power_cut()
            world.run_for(world.random("pause").uniform(0.1, 8))
            for number in victims:
                world.brokers[number - 1].power_on()
                world.brokers[number - 1].start()
        cluster.until(lambda: load.acknowledged == load.tried and world.is_up())
        load.is_over = True
        cluster.until(lambda: machine.is_done)
        world.check()
        assert load.reads >= CUTS
        load.check(cluster.committed())
