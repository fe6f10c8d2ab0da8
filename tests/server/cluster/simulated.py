"""Three real brokers in a simulated world, and a client that does what a test wants."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.aio.clients import AsyncConsumer, AsyncProducer
from raftlog.protocol.cluster import DecommissionRequest
from raftlog.replication.partition_state import PartitionState
from raftlog.server.broker import Broker
from raftlog.server.cluster.node import ClusterNode
from raftlog.server.cluster.operations import ClusterOperations
from raftlog.testing.simulator.observer import node_of
from raftlog.testing.simulator.operators import joining_config
from raftlog.testing.simulator.world import (
    BrokerMachine,
    ClientMachine,
    RunningBroker,
    World,
    broker_config,
    start_broker,
)
from raftlog.types import NewTopic, TopicPartition

LIMIT_S = 60.0
T = TypeVar("T")


class Cluster:
    """Of brokers 1, 2 and 3, or of as many as its world has; ends with it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._clients = 0
        world.boot()  # those that do not run yet
        ids = [machine.broker_id for machine in world.members]
        self.until(lambda: all(self.node(n).membership.is_in for n in ids))
        self.until(lambda: len(self.node(1).other_brokers()) == len(ids) - 1)

    def node(self, number: int) -> ClusterNode:
        broker = cast("Broker | None", self.world.brokers[number - 1].broker)
        assert broker is not None
        return broker.context.cluster

    def until(self, condition: Callable[[], bool], *, limit_s: float = LIMIT_S) -> None:
        assert self.world.run_until(condition, limit_s=limit_s), "it never came to pass"

    def client(self, work: Callable[[ClientMachine], Awaitable[T]]) -> T:
        """What ``work`` gave, run on a machine of its own."""
        found: list[T] = []

        async def program(machine: ClientMachine) -> None:
            found.append(await work(machine))

        self._clients += 1
        machine = self.world.add_client(f"client-{self._clients}", program)
        machine.start()
        self.until(lambda: machine.is_done, limit_s=2 * LIMIT_S)
        self.world.check()
        return found[0]

    def admin(self, work: Callable[[AsyncAdmin], Awaitable[T]], *, broker: int = 0) -> T:
        """What an operator does who asks that broker; 0: any."""
        bootstrap = self.world.bootstrap.split(",")[broker - 1] if broker else self.world.bootstrap

        async def run(machine: ClientMachine) -> T:
            async with AsyncAdmin(bootstrap=bootstrap, host=machine.host()) as admin:
                return await work(admin)

        return self.client(run)

    def create(self, *, partitions: int = 1, copies: int = 3) -> None:
        topic = NewTopic("t", partitions=partitions, replication_factor=copies)
        self.admin(lambda admin: admin.create_topics([topic]))

    def send(self, *values: bytes, partition: int = 0) -> None:
        """Until all are acknowledged."""

        async def run(machine: ClientMachine) -> None:
            settings = {"bootstrap": self.world.bootstrap, "host": machine.host()}
            async with AsyncProducer(**settings) as producer:  # type: ignore[arg-type]
                for value in values:
                    await producer.send("t", value, partition=partition)
                await producer.flush()

        self.client(run)

    def read(self, count: int) -> list[bytes | None]:
        """The first ``count`` records."""

        async def run(machine: ClientMachine) -> list[bytes | None]:
            found: list[bytes | None] = []
            async with AsyncConsumer(
                bootstrap=self.world.bootstrap, host=machine.host(), auto_offset_reset="earliest"
            ) as consumer:
                await consumer.assign([TopicPartition("t", 0)])
                while len(found) < count:
                    found.extend(record.value for record in await consumer.poll(500))
            return found

        return self.client(run)

    def state(self, node: int, partition: int = 0) -> PartitionState:
        """As that broker knows it."""
        topic = self.node(node).machine.topics["t"]
        state = self.node(node).partitions.state_of(topic.id, partition)
        assert state is not None
        return state

    def leader(self, node: int, partition: int = 0) -> int:
        """Who leads, once somebody does."""
        self.until(lambda: self.state(node, partition).leader is not None)
        leader = self.state(node, partition).leader
        assert leader is not None
        return leader

    def in_sync(self, node: int, members: set[int]) -> None:
        self.until(lambda: "t" in self.node(node).machine.topics)
        self.until(lambda: set(self.state(node).isr) == members)

    def stop(self, number: int) -> None:
        """As SIGTERM, and down from then on."""
        machine = self.world.brokers[number - 1]
        machine.is_kept_down = True
        machine.stop()
        self.until(lambda: not machine.is_running)

    def start(self, *numbers: int) -> None:
        for number in numbers:
            machine = self.world.brokers[number - 1]
            machine.is_kept_down = False
            machine.start()
            self.until(lambda machine=machine: machine.broker is not None)  # type: ignore[misc]

    def join(self, *numbers: int) -> None:
        """Start brokers that are not in the cluster yet, and wait until they are."""
        for number in numbers:
            machine = self.world.brokers[number - 1]
            machine.is_outside = machine.is_kept_down = False
            machine.start()
        for number in numbers:
            self.until(lambda number=number: self.is_in(number))  # type: ignore[misc]

    def decommission(self, number: int, *, by: int) -> None:
        """Have a broker removed, and wait until that one knows it."""
        request = DecommissionRequest(broker=number)
        on(self, by, operations(self, by).decommission(request))
        self.until(lambda: number not in self.node(by).machine.brokers)

    def is_in(self, number: int) -> bool:
        node = node_of(self.world.brokers[number - 1])
        return node is not None and node.membership.is_in

    def lose(self, *numbers: int) -> None:
        """Kill them, disks and all."""
        for number in numbers:
            self.world.brokers[number - 1].is_kept_down = True
        for number in numbers:
            self.world.brokers[number - 1].wipe()


def growing_world(seed: int, *, brokers: int, founders: int = 3) -> World:
    """A world whose first brokers create the cluster; the others can ``join`` it."""

    async def start(machine: BrokerMachine) -> RunningBroker:
        config = joining_config(machine, broker_config(machine), founders)
        return await start_broker(machine, config=config)

    world = World(seed, brokers=brokers, make_broker=start)
    for machine in world.brokers[founders:]:
        machine.is_outside = machine.is_kept_down = True
    return world


def operations(cluster: Cluster, node: int) -> ClusterOperations:
    broker = cluster.world.brokers[node - 1].broker
    assert isinstance(broker, Broker)
    return broker.context.operations


def on(cluster: Cluster, node: int, work: object) -> T:  # type: ignore[type-var]
    """What a coroutine gives, or raises, on the loop of that broker."""
    loop = cluster.world.brokers[node - 1].loop
    task = loop.create_task(work)  # type: ignore[arg-type]
    cluster.until(task.done)
    result: T = task.result()
    return result
