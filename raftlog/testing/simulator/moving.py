"""Simulated operator that moves replicas of the checked topic, with and without a throttle, changes
the replication factor, and cancels moves.

Every move must complete after the faults have ended: ``still_moving`` returns one that has not.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from raftlog.client.aio.admin import AsyncAdmin
from raftlog.errors import RaftlogError
from raftlog.testing.simulator.history import Outcome
from raftlog.testing.simulator.observer import node_of
from raftlog.testing.simulator.process import ClientMachine
from raftlog.testing.simulator.workload import TOPIC, Workload
from raftlog.testing.simulator.world import World

CANCELS: Final = 0.2  # share of requests that cancel the moves in progress
CHANGES_FACTOR: Final = 0.3  # share of the other requests that change the replication factor

THROTTLED: Final = 0.2  # share of requests before which the throttle changes
THROTTLES: Final = (0, 20_000, 100_000)  # bytes per second; 0 for none


class Moving:
    """A client that moves replicas until the workload ends."""

    def __init__(self, workload: Workload, *, every_s: float, changes_factor: bool) -> None:
        """``every_s``: average seconds between two requests. ``changes_factor``: whether some
        requests change the replication factor.
        """
        self._workload = workload
        self._every_s = every_s
        self._changes_factor = changes_factor
        self._factor = workload.plan.replication_factor
        self._throttles = workload.world.random("throttles")

    async def run(self, machine: ClientMachine) -> None:
        workload, random = self._workload, machine.random
        admin = workload.admin(machine)
        while not workload.is_over:
            await asyncio.sleep(random.expovariate(1 / self._every_s))
            other = workload.history.other(machine.name, "reassign")
            try:
                await self._request(admin, random)
            except RaftlogError as error:
                workload.history.end(other, Outcome.INFO, repr(error))
            else:
                workload.history.end(other, Outcome.OK)
        await admin.close()

    async def _request(self, admin: AsyncAdmin, random: Random) -> None:
        if self._throttles.random() < THROTTLED:
            await admin.throttle_moves(self._throttles.choice(THROTTLES))
        if random.random() < CANCELS:
            await admin.cancel_reassignment(TOPIC)
            return
        brokers = [machine.broker_id for machine in self._workload.world.members]
        partitions = [each.partition for each in self._workload.partitions]
        if self._changes_factor and random.random() < CHANGES_FACTOR:
            # With fewer replicas than planned, the faults of the run could lose records.
            fewest = self._workload.plan.replication_factor
            factor = random.randint(fewest, len(brokers))
            replicas = {partition: random.sample(brokers, factor) for partition in partitions}
            await admin.reassign_partitions(TOPIC, replicas, replication_factor=factor)
            self._factor = factor
        else:
            chosen = random.choice(partitions)
            moves = {chosen: random.sample(brokers, self._factor)}
            await admin.reassign_partitions(TOPIC, moves)


def still_moving(world: World) -> str:
    """Describe one move that is in progress in the state of any broker; "" if there is none."""
    for machine in world.brokers:
        node = node_of(machine)
        record = None if node is None else node.machine.topic(TOPIC)
        for partition, held in enumerate(() if record is None else record.partitions):
            if held.target is not None:
                return f"{machine.name}: {TOPIC}:{partition} has {held}"
    return ""
