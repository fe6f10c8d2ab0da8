"""Recoveries by an operator who knows only what one broker says, in worlds of 1 to 5 brokers.

Brokers are cut off from each other, killed and restarted, join, and lose their disks, or start
from an old copy of their data directory, while clients produce on every side. At random times the
operator asks one broker what is lost, and has it recover the cluster, whether or not the others
live. Records may be lost by that, but only those that were acknowledged before it, and two
histories of the cluster must never both serve once their brokers meet.

At the end the operator starts the brokers that have stopped with empty data directories, as their
messages say, and repeats the recovery until the cluster is whole. A loss of disks within the
guarantee (an in-sync copy of each partition and a copy of the cluster state remain) loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final, TypeAlias

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.aio.clients import AsyncConsumer, AsyncProducer
from raftlog.errors import InvalidRequestError, RaftlogError
from raftlog.protocol.security import PEER_PROTOCOL_VERSION, PEER_PROTOCOL_VERSION_MIN
from raftlog.replication.cluster_state import ClusterMachine
from raftlog.replication.histories import relation
from raftlog.replication.partition_state import PartitionState
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.server.cluster.node import ClusterNode
from raftlog.testing.disk import Node
from raftlog.testing.simulator.observer import node_of
from raftlog.testing.simulator.operators import joining_config, recover
from raftlog.testing.simulator.world import (
    ASK_LIMIT_S,
    CLUSTER_SECRET,
    DATA_DIRECTORY,
    BrokerMachine,
    ClientMachine,
    Enduring,
    Result,
    RunningBroker,
    Tale,
    World,
    broker_config,
    start_broker,
)
from raftlog.types import NewTopic, TopicPartition

History: TypeAlias = tuple[str, ...]  # recoveries of the cluster, see ``replication.histories``
Leader: TypeAlias = tuple[History, str]  # history and data directory of a broker

# Sizes of the cluster, one after another: brokers join between the steps.
SIZES: Final = ((1, 2), (1, 2, 4), (1, 4), (2,), (2, 3), (3,), (3,), (3, 4), (4,), (5,))
STEPS: Final = (5, 8, 12)
PAUSES_S: Final = (0.1, 0.5, 2.0, 5.0, 12.0)
MIXED_SHARE: Final = 0.3  # of the worlds have brokers of earlier releases
DOWN_S_MAX: Final = 10.0
WHOLE_S: Final = 20.0  # for replicas to catch up before a loss within the guarantee
REST_LIMIT_S: Final = 180.0  # for each part of the end
QUIET_S: Final = 15.0  # for brokers that must not serve to learn of it
REQUEST_S: Final = 60.0  # timeout of the operator
SEND_MS: Final = 2_000
PATIENCE_S: Final = 0.3
WATCH_S: Final = 0.05
LED_S: Final = 1.5  # within which an acknowledgement arrives, or its request has timed out


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """``sizes``: see ``SIZES``. ``factor``: replicas of the topics after the last step of growth,
    at most. ``steps``: number of events.
    """

    seed: int
    sizes: tuple[int, ...]
    factor: int
    steps: int
    releases: tuple[int, ...]  # protocol versions of the brokers, until they are upgraded

    @classmethod
    def draw(cls, seed: int) -> RecoveryPlan:
        random = Random(f"{seed}/recovery")
        sizes = random.choice(SIZES)
        is_mixed = random.random() < MIXED_SHARE
        releases = range(PEER_PROTOCOL_VERSION_MIN, PEER_PROTOCOL_VERSION + 1)
        return cls(
            seed=seed,
            releases=tuple(
                random.choice(releases) if is_mixed else PEER_PROTOCOL_VERSION
                for _broker in range(sizes[-1])
            ),
            sizes=sizes,
            factor=random.randint(min(2, sizes[-1]), sizes[-1]),
            steps=random.choice(STEPS),
        )


@dataclass(frozen=True, slots=True)
class _Ack:
    at_s: float
    value: bytes
    leader: Leader | None  # of the partition; None: unknown


@dataclass(frozen=True, slots=True)
class _Recovery:
    """A request that may have given up records. ``history``: of the broker that was asked."""

    ended_s: float
    history: History


def run(plan: RecoveryPlan, *, on_trace: Callable[[str], None] | None = None) -> Result:
    """Run a plan. An exception of the simulated program is a violation, and not raised."""
    return _Tale(plan).run(plan.seed, brokers=plan.sizes[-1], on_trace=on_trace)


class _Tale(Tale):
    def __init__(self, plan: RecoveryPlan) -> None:
        super().__init__()
        self._plan = plan
        self._acks: dict[TopicPartition, list[_Ack]] = {}
        self._recoveries: list[_Recovery] = []
        self._histories: dict[str, History] = {}  # last known one of each broker
        # When a broker last led the partition.
        self._led: dict[TopicPartition, dict[Leader, float]] = {}
        # When all in-sync replicas of a partition were emptied, because a majority had refused
        # their recovery.
        self._emptied: dict[TopicPartition, float] = {}
        self._releases = list(plan.releases)
        self._joins: set[str] = set()  # brokers that start with the setting ``join``
        self._copies: dict[str, Node] = {}  # of data directories, by broker
        self._partitions: list[TopicPartition] = []
        self._producers: list[ClientMachine] = []
        self._is_over = False

    async def start_broker(self, machine: BrokerMachine) -> RunningBroker:
        config = joining_config(machine, broker_config(machine), self._plan.sizes[0])
        if machine.name in self._joins:
            others = [other for other in self._world.members if other is not machine]
            config = replace(config, voters=(), join=tuple(other.address for other in others))
        version = self._releases[machine.broker_id - 1]
        return await start_broker(machine, config=config, peer_protocol=version)

    # -- the course of events ----------------------------------------------------------------------

    def tell(self, world: World) -> None:
        for machine in world.brokers[self._plan.sizes[0] :]:
            machine.is_outside = machine.is_kept_down = True
        world.boot()
        self._watch()
        self._create(self._plan.sizes[0])
        for machine in world.brokers:
            name = f"producer-{machine.broker_id}"
            producer = world.add_client(name, partial(self._produce, machine))
            producer.start()
            self._producers.append(producer)
        growth = list(self._plan.sizes[1:])
        for step in range(self._plan.steps):
            world.run_for(self._random.choice(PAUSES_S) * self._random.random())
            if growth and step >= self._random.randrange(self._plan.steps):
                self._grow(growth.pop(0))
            kind = self._random.choices(tuple(_EVENTS), [weight for _, weight in _EVENTS.values()])[
                0
            ]
            if _EVENTS[kind][0](self):
                self._count(kind)
        self._end()

    def _watch(self) -> None:
        self._look()
        self._world.control.call_later(WATCH_S, self._watch)

    def _look(self) -> None:
        """Note which history each broker has, and which partitions it leads: it cannot be asked
        after it has stopped.
        """
        for machine in self._world.brokers:
            if (node := node_of(machine)) is None:
                continue
            self._histories[machine.name] = node.machine.history
            leader = node.machine.history, node.me.directory_id
            for hosted in node.partitions.hosted.values():
                if hosted.host is not None and hosted.host.leadership is not None:
                    name = TopicPartition(hosted.topic, hosted.partition)
                    self._led.setdefault(name, {})[leader] = self._world.time.now

    def _create(self, factor: int) -> None:
        """Create a topic on all members, as far as the cluster can."""
        topic = NewTopic(f"t{len(self._partitions)}", 2, factor)

        async def create(machine: ClientMachine) -> None:
            for _attempt in range(20):
                with Enduring(machine):
                    async with self._admin(machine, None) as admin:
                        await admin.create_topics([topic])
                        return
                await asyncio.sleep(1.0)

        self._ask("creator", create)
        self._partitions += [TopicPartition(topic.name, number) for number in range(2)]

    def _grow(self, size: int) -> None:
        new = self._world.brokers[:size]
        for machine in new:
            if machine.is_outside and not machine.boots:
                machine.is_outside = machine.is_kept_down = False
                machine.start()
        is_in = self._world.run_until(
            lambda: all((node := node_of(m)) and node.membership.is_in for m in new),
            limit_s=WHOLE_S,
        )
        if is_in:
            self._create(min(size, self._plan.factor))

    # -- clients -----------------------------------------------------------------------------------

    def _admin(self, machine: ClientMachine, broker: BrokerMachine | None) -> AsyncAdmin:
        return AsyncAdmin(
            self._world.bootstrap if broker is None else str(broker.address),
            request_timeout_ms=SEND_MS,
            client_id=machine.name,
            cluster_secret=CLUSTER_SECRET,
            host=machine.host(),
        )

    async def _produce(self, broker: BrokerMachine, machine: ClientMachine) -> None:
        """Produce through ``broker``, on whose side of a cut the client is."""
        number = 0
        while not self._is_over:
            with Enduring(machine):
                async with AsyncProducer(
                    str(broker.address),
                    delivery_timeout_ms=SEND_MS,
                    request_timeout_ms=1_000,
                    client_id=machine.name,
                    host=machine.host(),
                ) as producer:
                    while not self._is_over:
                        where = machine.random.choice(self._partitions)
                        value = b"%s/%d" % (machine.name.encode(), number)
                        number += 1
                        future = await producer.send(where.topic, value, partition=where.partition)
                        await producer.flush()
                        future.result()
                        ack = _Ack(self._world.time.now, value, self._leading(where))
                        self._acks.setdefault(where, []).append(ack)
                        await asyncio.sleep(PATIENCE_S * machine.random.random())
            await asyncio.sleep(PATIENCE_S)

    def _leading(self, name: TopicPartition) -> Leader | None:
        """Return the broker that has just led a partition; None if several have."""
        self._look()
        since_s = self._world.time.now - LED_S
        found = [leader for leader, at_s in self._led.get(name, {}).items() if at_s > since_s]
        return found[0] if len(found) == 1 else None

    def _nodes(self) -> dict[int, ClusterNode]:
        return {m.broker_id: node for m in self._world.members if (node := node_of(m))}

    # -- events ------------------------------------------------------------------------------------

    def _split(self) -> bool:
        """Cut the brokers into two sides, each with its producers."""
        members = self._world.members
        if len(members) < 2:
            return False
        sides: tuple[list[str], list[str]] = ([], [])
        for number, machine in enumerate(self._random.sample(members, len(members))):
            side = sides[number if number < 2 else self._random.randrange(2)]
            side += [machine.name, f"producer-{machine.broker_id}"]
        self._world.network.partition(*sides)
        self._world.trace(f"split: {sides}")
        return True

    def _cut(self) -> bool:
        members = self._world.members
        if len(members) < 2:
            return False
        a, b = self._random.sample(members, 2)
        self._world.network.cut(a.name, b.name)
        self._world.trace(f"cut: {a.name} and {b.name}")
        return True

    def _mend(self) -> bool:
        self._world.network.heal()
        self._world.trace("all links are mended")
        return True

    def _kill(self) -> bool:
        machine = self._random.choice(self._world.brokers)
        if not machine.is_running:
            return False
        machine.kill()
        machine.start_later(DOWN_S_MAX * self._random.random())
        return True

    def _upgrade(self) -> bool:
        """Restart a broker with the newest release, or all, and raise the cluster's protocol."""
        old = [
            m
            for m in self._world.brokers
            if self._releases[m.broker_id - 1] < PEER_PROTOCOL_VERSION
        ]
        if not old:
            return False
        for machine in old if self._random.random() < 0.3 else [self._random.choice(old)]:
            self._releases[machine.broker_id - 1] = PEER_PROTOCOL_VERSION
            machine.kill()
        self._ask("upgrader", self._raise_protocol)
        return True

    async def _raise_protocol(self, machine: ClientMachine) -> None:
        with suppress(
            RaftlogError, TimeoutError
        ):  # refused until all brokers are there, and upgraded
            async with asyncio.timeout(REQUEST_S), self._admin(machine, None) as admin:
                await admin.upgrade_features()

    def _recover(self) -> bool:
        """Ask one broker what is lost, declare that lost, and accept the loss."""
        asked = self._random.choice(self._world.members or self._world.brokers)
        return self._ask("operator", partial(self._recover_at, asked))

    async def _recover_at(self, asked: BrokerMachine, machine: ClientMachine) -> None:
        world, is_refused = self._world, False
        try:
            async with asyncio.timeout(REQUEST_S), self._admin(machine, asked) as admin:
                shown = await admin.recover_cluster(dry_run=True)
                if not shown.loss_id:
                    return
                done = await admin.recover_cluster(lost=shown.lost, accept_loss=True)
                is_refused = done.refused
                world.trace(f"{machine.name} at {asked.name}: {done}")
        except InvalidRequestError as error:
            world.trace(f"{machine.name} at {asked.name}: refused: {error}")
            return
        except (RaftlogError, TimeoutError) as error:
            world.trace(f"{machine.name} at {asked.name}: failed: {error!r}")
        if not is_refused:
            self._count("accepted")
            history = self._histories.get(asked.name, ())
            self._recoveries.append(_Recovery(world.time.now, history))

    def _lose(self) -> bool:
        """Lose disks within the guarantee, and recover with the others."""
        members = self._world.members
        if len(members) < 2 or not self._becomes_whole():
            return False
        lost = self._random.sample(members, self._random.randint(1, len(members) - 1))
        if not self._may_lose(lost):
            return False
        for machine in lost:
            machine.is_kept_down = True
            machine.wipe()
            self._joins.add(machine.name)
        kept = next(machine for machine in members if machine not in lost)
        self._world.run_for(10 * self._random.random())
        self._ask("operator", partial(self._declare_lost, kept, lost))
        for machine in lost:
            machine.is_kept_down = False
            machine.start()
        return True

    async def _declare_lost(
        self, asked: BrokerMachine, lost: Collection[BrokerMachine], machine: ClientMachine
    ) -> None:
        """Recover with the truth: ``lost`` are destroyed, all others run."""
        ids = [other.broker_id for other in lost]
        until_s = self._world.time.now + ASK_LIMIT_S - 2 * REQUEST_S
        while self._world.time.now < until_s:
            try:
                async with asyncio.timeout(REQUEST_S), self._admin(machine, asked) as admin:
                    shown = await admin.recover_cluster(dry_run=True)
                    if not shown.loss_id and all(part.leader for part in shown.partitions):
                        return
                    done = await admin.recover_cluster(lost=ids, accept_loss=True)
                    self._world.trace(f"{machine.name} at {asked.name}: {done}")
            except (RaftlogError, TimeoutError) as error:
                self._world.trace(f"{machine.name} at {asked.name}: failed: {error!r}")
            await asyncio.sleep(1.0)

    def _copy(self) -> bool:
        """Copy a broker's data directory while it runs."""
        machine = self._random.choice(self._world.members or self._world.brokers)
        if machine.name in self._copies or not machine.disk.exists(DATA_DIRECTORY):
            return False
        self._copies[machine.name] = machine.disk.image(DATA_DIRECTORY)
        return True

    def _restore(self) -> bool:
        """Start a broker from an old copy of its data directory: within the guarantee, because it
        lacks records like a broker with an empty disk.
        """
        copied = [machine for machine in self._world.members if machine.name in self._copies]
        if not copied or not self._becomes_whole():
            return False
        machine = self._random.choice(copied)
        if not self._may_lose([machine]):
            return False
        machine.kill()
        machine.disk.put_back(DATA_DIRECTORY, self._copies.pop(machine.name))
        self._world.trace(f"{machine.name} starts from an old copy of its data directory")
        machine.start_later(DOWN_S_MAX * self._random.random())
        return True

    def _becomes_whole(self) -> bool:
        self._mend()
        return self._world.run_until(self._is_whole, limit_s=WHOLE_S, every_s=0.2)

    def _is_whole(self) -> bool:
        nodes, members = self._nodes(), self._world.members
        if len(nodes) != len(members) or not all(n.membership.is_in for n in nodes.values()):
            return False
        directories = {broker: node.me.directory_id for broker, node in nodes.items()}
        versions = {node.machine.version for node in nodes.values()}
        return (
            len(versions) == 1
            and all(
                n.liveness.is_linked(o) for n in nodes.values() for o in nodes if n is not nodes[o]
            )
            and not any(n.subscription.voters.items() - directories.items() for n in nodes.values())
            and all(
                state.leader is not None
                and dict(state.isr)
                == {broker: directories.get(broker) for broker in state.replicas}
                for node in nodes.values()
                for state in _states(node)
            )
        )

    def _may_lose(self, lost: Collection[BrokerMachine]) -> bool:
        """Whether an in-sync copy of each partition and a durable copy of the state remain."""
        nodes, gone = self._nodes(), {machine.broker_id for machine in lost}
        return not any(set(s.isr) <= gone for n in nodes.values() for s in _states(n)) and any(
            node.plane.has_vote(CLUSTER_GROUP)
            or node._state_copy._saved.version == node.machine.version
            for broker, node in nodes.items()
            if broker not in gone
        )

    # -- the end -----------------------------------------------------------------------------------

    def _end(self) -> None:
        world = self._world
        world.heal()
        while self._upgrade():
            pass
        world.run_for(QUIET_S)
        self._check_histories()
        while self._choose_side():
            world.run_for(QUIET_S)
            self._check_histories()
        accepted: list[bool] = []

        async def last(machine: ClientMachine) -> None:
            accepted.append(await recover(world, machine))

        operator = world.add_client("last operator", last)
        operator.start()
        if not world.run_until(lambda: operator.is_done, limit_s=REST_LIMIT_S):
            self._violated("STUCK", f"the last recovery does not succeed: {self._states_text()}")
            return
        if any(accepted) and self.result.counts.get("stopped"):
            # It has given up what only the stopped brokers had.
            final = next(iter(self._nodes().values())).machine.history
            self._recoveries.append(_Recovery(world.time.now, final))
        world.run_for(5 * PATIENCE_S)
        self._is_over = True
        rest = partial(world.run_until, limit_s=REST_LIMIT_S, every_s=0.5)
        if not rest(lambda: all(producer.is_done for producer in self._producers)):
            self._violated("STUCK", f"producers do not end: {self._states_text()}")
            return
        if not rest(self._is_whole):
            self._violated("STUCK", f"not whole: {self._states_text()}")
            return
        self._check_histories()
        self._check_records()

    def _states_text(self) -> str:
        nodes = self._nodes()
        down = [machine.name for machine in self._world.members if node_of(machine) is None]
        return f"down: {down}, {[(b, list(_states(n))) for b, n in nodes.items()]}"

    def _check_histories(self) -> None:
        """All brokers that serve, none of which is cut off, have passed the same recoveries."""
        found = {
            broker: node.machine.history
            for broker, node in self._nodes().items()
            if node.membership.is_in
        }
        if len({history[-1:] for history in found.values()}) > 1:
            self._violated("TWO-HISTORIES", f"brokers serve after different recoveries: {found}")

    def _choose_side(self) -> bool:
        """Start the brokers that have stopped with empty directories; if all have, keep a side.
        Returns whether any had.
        """
        world = self._world
        stopped = [m for m in world.brokers if m.is_outside and m.boots]
        if not stopped:
            return False
        self._count("stopped", len(stopped))
        kept: list[BrokerMachine] = []
        if not world.members:
            history = self._histories.get(self._random.choice(stopped).name, ())
            kept = [m for m in stopped if self._histories.get(m.name, ()) == history]
        self._note_emptied({m.broker_id for m in stopped if m not in kept})
        for machine in stopped:
            if machine not in kept:
                machine.wipe()
                self._joins.add(machine.name)
        for machine in (*kept, *stopped):
            if machine.is_outside:
                machine.is_outside = machine.is_kept_down = False
                machine.start()
                world.run_for(2.0)
        return True

    def _note_emptied(self, brokers: set[int]) -> None:
        """Note the partitions that have no in-sync replica without ``brokers``, as the brokers that
        serve know.
        """
        for node in self._nodes().values():
            for record in node.machine.topics.values():
                for number in range(len(record.partitions)):
                    state = node.partitions.state_of(record.id, number)
                    if state is not None and state.isr.keys() <= brokers:
                        name = TopicPartition(record.name, number)
                        self._emptied[name] = self._world.time.now

    def _check_records(self) -> None:
        """Read all partitions, and look for the acknowledged records that must be there."""
        found: dict[TopicPartition, set[bytes]] = {}
        if not self._ask("reader", partial(self._read, found)):
            return
        final = next(iter(self._nodes().values())).machine
        last_s = max(
            (each.ended_s for each in self._recoveries if _is_part(each.history, final.history)),
            default=-1.0,
        )
        for name, acks in self._acks.items():
            self._count("acknowledged", len(acks))
            for ack in acks:
                is_kept = ack.at_s > max(last_s, self._emptied.get(name, -1.0))
                is_kept = is_kept and (not self._recoveries or _counts(ack, final))
                self._count("to be there", is_kept)
                if is_kept and ack.value not in found.get(name, ()):
                    self._violated("LOST", f"{name}: {ack}; final history {final.history}")

    async def _read(self, found: dict[TopicPartition, set[bytes]], machine: ClientMachine) -> None:
        topics = self._nodes()[min(self._nodes())].machine.topics
        async with AsyncConsumer(
            self._world.bootstrap,
            client_id=machine.name,
            host=machine.host(),
            fetch_max_wait_ms=100,
        ) as consumer:
            names = [name for name in self._partitions if name.topic in topics]
            await consumer.assign(names)
            await consumer.seek_to_beginning()
            left = await consumer.end_offsets(names)
            while left:
                for record in await consumer.poll(500):
                    name = TopicPartition(record.topic, record.partition)
                    found.setdefault(name, set()).add(record.value or b"")
                for name, end in list(left.items()):
                    if await consumer.position(name) >= end:
                        del left[name]


def _is_part(history: History, of: History) -> bool:
    return relation(history, of) in {"same", "behind"}


def _counts(ack: _Ack, final: ClusterMachine) -> bool:
    """Return whether the broker that acknowledged the record had the history of the cluster, and
    was never declared lost.
    """
    if ack.leader is None:
        return False
    history, directory = ack.leader
    return _is_part(history, final.history) and directory not in final.lost


def _states(node: ClusterNode) -> list[PartitionState]:
    """Return the states of all partitions that a broker knows."""
    return [
        state
        for record in node.machine.topics.values()
        for number in range(len(record.partitions))
        if (state := node.partitions.state_of(record.id, number)) is not None
    ]


_EVENTS: Final = {
    "split": (_Tale._split, 3),
    "cut": (_Tale._cut, 2),
    "mend": (_Tale._mend, 3),
    "kill": (_Tale._kill, 3),
    "recover": (_Tale._recover, 4),
    "upgrade": (_Tale._upgrade, 1),
    "lose": (_Tale._lose, 1),
    "copy": (_Tale._copy, 1),
    "restore": (_Tale._restore, 1),
}
