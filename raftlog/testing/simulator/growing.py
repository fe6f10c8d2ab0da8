"""Simulated operator that adds brokers to the cluster and decommissions others, live or lost. It
cancels some removals of live brokers.

After the faults have ended, every removal must complete, and the cluster group must have the
required number of voters. ``still_changing`` describes a violation of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from raftlog.config import BrokerConfig
from raftlog.errors import RaftlogError, RefusedError
from raftlog.replication.cluster_voters import voters_wanted
from raftlog.testing.simulator.history import Outcome
from raftlog.testing.simulator.observer import Observer, node_of
from raftlog.testing.simulator.process import DATA_DIRECTORY, BrokerMachine, ClientMachine
from raftlog.testing.simulator.workload import Workload
from raftlog.testing.simulator.world import World

LOST_SHARE: Final = 0.3  # of the brokers that leave, if the guarantee under test allows it
CANCELLED_SHARE: Final = 0.3  # of the live brokers that leave
ATTEMPTS_MAX: Final = 30
RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthPlan:
    """``joins``, ``leaves``: numbers of brokers. ``pause_s``: average time between two changes."""

    joins: int
    leaves: int
    pause_s: float

    @classmethod
    def draw(cls, random: Random) -> GrowthPlan:
        joins = random.choice((1, 2, 2))
        return cls(
            joins=joins,
            leaves=random.randint(0, joins),
            pause_s=random.choice((0.2, 0.7, 2.0)),
        )


def joining_config(machine: BrokerMachine, config: BrokerConfig, founders: int) -> BrokerConfig:
    """Return the settings of a broker in a cluster that brokers 1 to ``founders`` created.

    A broker that joined later has the other addresses in ``join``, except at every second start
    with saved addresses (the file ``brokers``).
    """
    voters = config.voters[:founders]
    if machine.broker_id <= founders:
        return replace(config, voters=voters)
    others = [m for m in machine.world.members if m is not machine]
    is_known = machine.disk.exists(f"{DATA_DIRECTORY}/brokers")
    join = () if is_known and machine.boots % 2 == 0 else tuple(m.address for m in others)
    return replace(config, voters=(), join=join)


class Growing:
    """A client that adds and removes brokers according to a ``GrowthPlan``."""

    def __init__(
        self, workload: Workload, observer: Observer, plan: GrowthPlan, *, founders: int
    ) -> None:
        self._workload = workload
        self._world = workload.world
        self._observer = observer
        self._plan = plan
        self._founders = founders
        self._cancellations = workload.world.random("cancellations")

    async def run(self, machine: ClientMachine) -> None:
        random = machine.random
        changes = ["join"] * self._plan.joins + ["leave"] * self._plan.leaves
        random.shuffle(changes)
        while changes and not self._workload.is_over:
            await asyncio.sleep(random.expovariate(1 / self._plan.pause_s))
            change = changes.pop()
            if change == "join":
                self._join()
            elif len(self._world.members) > self._founders:
                await self._leave(machine, random)
            elif "join" in changes:
                changes.insert(0, change)  # a broker has to join first

    def _join(self) -> None:
        new = next((m for m in self._world.brokers if m.is_outside and not m.boots), None)
        if new is not None:
            self._world.trace(f"{new.name} joins the cluster")
            new.is_outside = new.is_kept_down = False
            new.start()

    async def _leave(self, machine: ClientMachine, random: Random) -> None:
        workload, observer = self._workload, self._observer
        leaving = random.choice(self._world.members)
        self._world.trace(f"{leaving.name} is removed from the cluster")
        is_lost = random.random() < LOST_SHARE and observer.may_lose([leaving])
        if is_lost:
            observer.disk_lost(leaving)
            leaving.is_outside = leaving.is_kept_down = True
            leaving.wipe()
        admin = workload.admin(machine)
        await self._repeat(machine, "decommission", admin.decommission_broker, leaving.broker_id)
        if not is_lost and self._cancellations.random() < CANCELLED_SHARE:
            await asyncio.sleep(self._cancellations.expovariate(1 / self._plan.pause_s))
            cancel = admin.cancel_decommission
            await self._repeat(machine, "cancel decommission", cancel, leaving.broker_id)
        await admin.close()

    async def _repeat(
        self,
        machine: ClientMachine,
        what: str,
        request: Callable[[int], Awaitable[object]],
        broker: int,
    ) -> None:
        """Retry a request until it is accepted; a cancellation also ends when it is rejected.

        After ``ATTEMPTS_MAX`` attempts, the outcome is unknown.
        """
        history = self._workload.history
        for _attempt in range(ATTEMPTS_MAX):
            other = history.other(machine.name, what)
            try:
                await request(broker)
            except RaftlogError as error:
                history.end(other, Outcome.INFO, repr(error))
                if what != "decommission" and isinstance(error, RefusedError):
                    return  # the broker was removed before
                await asyncio.sleep(RETRY_S)
            else:
                history.end(other, Outcome.OK)
                return


def still_changing(world: World) -> str:
    """Describe removals in progress, or missing voters, in the state of any broker; "" if none."""
    for machine in world.members:
        node = node_of(machine)
        if node is None or not node.machine.cluster_id:
            continue
        brokers, voters = node.machine.brokers, node.subscription.voters
        draining = [broker for broker, record in brokers.items() if record.draining]
        if draining:
            return f"{machine.name}: brokers {draining} are not removed yet"
        if len(voters) < voters_wanted(len(brokers)) or not voters.keys() <= brokers.keys():
            return f"{machine.name}: voters {voters} of brokers {sorted(brokers)}"
    return ""
