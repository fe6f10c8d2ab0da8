"""Simulated operator that adds brokers to the cluster and decommissions others, live or lost. It
cancels some removals of live brokers.

After the faults have ended, every removal must complete, and the cluster group must have the
required number of voters. ``still_changing`` describes a violation of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.descriptions import RecoveryDescription
from raftlog.config import BrokerConfig
from raftlog.errors import (
    RaftlogError,
    RefusedError,
    UnknownTopicError,
    UnknownUserError,
    UserExistsError,
)
from raftlog.replication.cluster_state import voters_wanted
from raftlog.security.acl import ANY, CLUSTER_NAME, Acl
from raftlog.testing.simulator.history import Outcome, Recreation, Send, Violation
from raftlog.testing.simulator.observer import Observer, node_of
from raftlog.testing.simulator.workload import (
    ADMINISTRATOR,
    PASSWORD,
    PATIENCE_S,
    TOPIC,
    USER,
    ProducerPlan,
    Workload,
    create_topic,
    produce,
)
from raftlog.testing.simulator.world import (
    CLUSTER_SECRET,
    DATA_DIRECTORY,
    BrokerMachine,
    ClientMachine,
    World,
)

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


# -- moving ----------------------------------------------------------------------------------------
#
# Simulated operator that moves replicas of the checked topic, with and without a throttle, changes
# the replication factor, and cancels moves.
#
# Every move must complete after the faults have ended: ``still_moving`` returns one that has not.


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


# -- operator --------------------------------------------------------------------------------------
#
# The operator of a simulated cluster: recovers it after the loss of a majority of its disks.


PAUSE_S: Final = 1.0  # between two attempts
RECOVERY_PATIENCE_S: Final = 20.0  # timeout of one attempt: the broker may have no power


async def recover(world: World, machine: ClientMachine) -> bool:
    """Run ``raftlog cluster recover`` until every partition has a leader.

    Only for clusters in which an in-sync replica of each partition remains: then no record is lost,
    even if the brokers cannot determine this. The operator accepts a loss only while all brokers
    are connected to each other, because a disconnected or restarted broker may store the records,
    and only on the broker that keeps the most, and that has passed the earlier recoveries: on
    another one, it would be a recovery of the other side. Returns whether there was a loss to
    accept.
    """
    has_accepted = False
    while True:
        try:
            async with asyncio.timeout(RECOVERY_PATIENCE_S):
                asked = await _keeper(world, machine) if _are_all_there(world) else None
                async with _asking(world, machine, asked) as admin:
                    done = await admin.recover_cluster(dry_run=True)
                    if asked is not None:
                        accepted = done.loss_id or False
                        has_accepted |= bool(accepted)
                        done = await admin.recover_cluster(lost=done.lost, accept_loss=accepted)
        except (RaftlogError, TimeoutError) as error:
            world.trace(f"{machine.name}: recovery failed: {error!r}")
        else:
            world.trace(f"{machine.name}: recovered: {done}")
            if _is_whole(done):
                return has_accepted
        await asyncio.sleep(PAUSE_S)


def _asking(world: World, machine: ClientMachine, asked: BrokerMachine | None) -> AsyncAdmin:
    return AsyncAdmin(
        str(asked.address) if asked else world.bootstrap,
        request_timeout_ms=2_000,
        client_id=machine.name,
        cluster_secret=CLUSTER_SECRET,
        host=machine.host(),
    )


async def _keeper(world: World, machine: ClientMachine) -> BrokerMachine:
    """Return the broker that has passed the most recoveries, and then the one with most records."""
    found: list[tuple[int, int, BrokerMachine]] = []
    for member in world.members:
        async with _asking(world, machine, member) as admin:
            shown = await admin.recover_cluster(dry_run=True)
        node = node_of(member)
        history = node.machine.history if node else ()
        found.append((len(history), sum(part.log_end_offset for part in shown.partitions), member))
    return max(found, key=lambda each: each[:2])[2]


def _are_all_there(world: World) -> bool:
    is_cut = any(
        {*link} <= {machine.name for machine in world.members} for link in world.network.cuts
    )
    return not is_cut and all(_is_connected(world, machine) for machine in world.members)


def _is_connected(world: World, machine: BrokerMachine) -> bool:
    node = node_of(machine)
    return node is not None and all(
        node.liveness.is_linked(other.broker_id) for other in world.members
    )


def _is_whole(done: RecoveryDescription) -> bool:
    return not done.needs_loss and all(
        part.leader is not None and not part.problem for part in done.partitions
    )


# -- recreation ------------------------------------------------------------------------------------
#
# A client that deletes and recreates the checked topic once.


class Recreating:
    """Deletes and recreates the topic once. Continues after a kill and restart of its process."""

    def __init__(self, workload: Workload, after_s: float) -> None:
        self._workload = workload
        self._after_s = after_s
        self._recreation: Recreation | None = None
        self._is_deleted = False

    async def run(self, machine: ClientMachine) -> None:
        workload = self._workload
        if self._recreation is None:
            await asyncio.sleep(self._after_s)
            self._recreation = workload.history.recreation(machine.name)
        while not self._is_deleted:
            await self._delete(machine)
        await create_topic(workload, machine)
        workload.history.end(self._recreation, Outcome.OK)

    async def _delete(self, machine: ClientMachine) -> None:
        admin = self._workload.admin(machine)
        try:
            await admin.delete_topics([TOPIC])
        except UnknownTopicError:
            self._is_deleted = True
        except RaftlogError as error:
            self._workload.world.trace(f"topic deletion failed, retrying: {error}")
            await asyncio.sleep(PATIENCE_S)
        else:
            self._is_deleted = True
        await admin.close()


# -- revoking --------------------------------------------------------------------------------------
#
# Authentication in the simulation: a user is created and deleted repeatedly while it produces.
#
# A broker that has applied the deletion rejects all requests of the user. A broker that is isolated
# from the majority applies the deletion later. A checked period therefore starts when all running
# brokers have applied the deletion, and ends before the user is created again. No write that the
# user starts and completes in this period may be acknowledged.


REVOKED: Final = "revoked"  # name of the user, and of its machine
POLL_S: Final = 0.05  # interval of the checks whether all brokers have applied a deletion
STAY_S: Final = (0.3, 1.5)  # range of the time for which the user exists, and then does not exist
PLAN: Final = ProducerPlan(
    acks=-1,
    idempotent=True,
    compression="none",
    linger_ms=0,
    burst_max=1,
    pause_s=0.05,
    padding_max=0,
    many=0.0,
    waits=0.0,
    session_s=1e6,
    close_s=1.0,
    delivery_timeout_ms=6_000,
)


async def admit(workload: Workload, machine: ClientMachine) -> None:
    """Create the users of the workload and their access rules. Retries without a time limit."""
    admin = AsyncAdmin(
        workload.world.bootstrap,
        request_timeout_ms=2_000,
        client_id=machine.name,
        cluster_secret=CLUSTER_SECRET,
        host=machine.host(),
    )
    rules = [
        *(Acl(f"User:{USER}", "ALL", kind, ANY) for kind in ("TOPIC", "GROUP", "TRANSACTIONAL_ID")),
        Acl(f"User:{USER}", "ALL", "CLUSTER", CLUSTER_NAME),
        Acl(f"User:{REVOKED}", "WRITE", "TOPIC", TOPIC),
    ]
    await _persist(workload, lambda: admin.create_acls(rules))
    for name in (ADMINISTRATOR, USER):
        await _persist(workload, partial(admin.create_user, name, PASSWORD))
    await admin.close()


async def _persist(workload: Workload, change: Callable[[], Awaitable[object]]) -> bool:
    """Retry ``change`` until it has taken effect. Returns False if the workload ended before."""
    while not workload.is_over:
        try:
            await change()
        except (UserExistsError, UnknownUserError):
            return True
        except RaftlogError as error:
            workload.world.trace(f"users: {error}")
            await asyncio.sleep(PATIENCE_S)
        else:
            return True
    return False


class Revoking:
    """The user that is created and deleted, and the client that creates and deletes it."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._revoked_ns: list[tuple[int, int]] = []  # the user exists on no running broker

    def start(self) -> None:
        self._workload.add("revoker", self._run)
        self._workload.add(REVOKED, partial(produce, self._workload, PLAN, user=REVOKED))

    async def _run(self, machine: ClientMachine) -> None:
        workload, random = self._workload, machine.random
        admin = workload.admin(machine)
        while await _persist(workload, lambda: admin.create_user(REVOKED, PASSWORD)):
            await asyncio.sleep(random.uniform(*STAY_S))
            other = workload.history.other(machine.name, "revoke")
            is_deleted = await _persist(workload, lambda: admin.delete_user(REVOKED))
            workload.history.end(other, Outcome.OK if is_deleted else Outcome.INFO)
            while self._is_known() and not workload.is_over:  # noqa: ASYNC110 - brokers have no event
                await asyncio.sleep(POLL_S)
            since_ns = workload.world.time.now_ns
            await asyncio.sleep(random.uniform(*STAY_S))
            if not self._is_known():  # a creation with unknown outcome may take effect late
                self._revoked_ns.append((since_ns, workload.world.time.now_ns))
        await admin.close()

    def _is_known(self) -> bool:
        """Return whether the user exists on a running broker."""
        nodes = map(node_of, self._workload.world.brokers)
        return any(REVOKED in node.machine.users for node in nodes if node is not None)

    def violations(self) -> list[Violation]:
        """Return the acknowledged writes that the user started and completed while deleted."""
        return [
            Violation("REVOKED", f"{entry.process} wrote {entry.value} after its user was deleted")
            for entry in self._workload.history.operations
            if isinstance(entry, Send) and entry.is_ok and entry.process.startswith(f"{REVOKED}/")
            if any(
                since <= entry.invoked_ns and entry.completed_ns <= until
                for since, until in self._revoked_ns
            )
        ]
