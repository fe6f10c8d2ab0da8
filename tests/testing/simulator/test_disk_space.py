"""Watermarks of free disk space in a cluster: it refuses in time, and heals when space returns."""

from __future__ import annotations

from typing import cast

from raftlog.client.aio.clients import AsyncProducer
from raftlog.errors import RaftlogError
from raftlog.server.broker import Broker
from raftlog.server.disks import SpaceLevel
from raftlog.server.partition import Partition
from raftlog.testing.simulator.world import BrokerMachine, ClientMachine, World
from raftlog.types import TopicPartition
from tests.server.cluster.simulated import Cluster

PRODUCERS_PERCENT, REPLICATION_PERCENT = 5, 1  # the defaults


def leave_free(machine: BrokerMachine, percent: float) -> None:
    """Make the disk so small, or so full, that ``percent`` of it are free."""
    machine.disk.capacity_bytes = int(machine.disk.used_bytes * 100 / (100 - percent))


def level(machine: BrokerMachine) -> SpaceLevel:
    return cast("Broker", machine.broker).space.level


def host_of(machine: BrokerMachine) -> Partition:
    host = cast("Broker", machine.broker).context.topics.topic("t").hosts[0]
    assert host is not None
    return host


def refusal(cluster: Cluster) -> str:
    """Why a record is not acknowledged within seconds."""

    async def run(machine: ClientMachine) -> str:
        async with AsyncProducer(
            bootstrap=cluster.world.bootstrap,
            host=machine.host(),
            delivery_timeout_ms=4_000,
            request_timeout_ms=2_000,
        ) as producer:
            try:
                await (await producer.send("t", b"refused", partition=0))
            except RaftlogError as error:
                return f"{type(error).__name__}: {error}"
        return ""

    return cluster.client(run)


def test_a_leader_below_the_watermark_hands_over_and_copies_on() -> None:
    with World(1, brokers=3) as world:
        cluster = Cluster(world)
        cluster.create()
        cluster.send(b"a")
        leader = cluster.leader(1)
        machine = world.brokers[leader - 1]
        leave_free(machine, PRODUCERS_PERCENT - 1)
        cluster.until(lambda: level(machine) is SpaceLevel.NO_PRODUCERS)
        cluster.send(b"b", b"c")
        other = next(n for n in (1, 2, 3) if n != leader)
        assert cluster.leader(other) != leader
        cluster.in_sync(other, {1, 2, 3})
        problems = cluster.admin(lambda admin: admin.describe_cluster(), broker=other).brokers
        (disk,) = [b.disk for b in problems if b.id == leader]
        assert disk is not None
        assert (disk.level, "producers are refused" in disk.reason) == ("no-producers", True)
        events = cluster.admin(lambda admin: admin.describe_events())
        assert [e.broker for e in events if e.kind == "disk-level-changed"] == [leader]
        assert cluster.read(3) == [b"a", b"b", b"c"]


def test_a_follower_below_the_second_watermark_copies_nothing_until_there_is_space() -> None:
    with World(2, brokers=3) as world:
        cluster = Cluster(world)
        cluster.create()
        cluster.send(b"a")
        leader = cluster.leader(1)
        follower = next(n for n in (1, 2, 3) if n != leader)
        machine = world.brokers[follower - 1]
        leave_free(machine, REPLICATION_PERCENT / 2)
        cluster.until(lambda: level(machine) is SpaceLevel.READ_ONLY)
        cluster.send(b"b")
        cluster.in_sync(leader, {1, 2, 3} - {follower})
        host = host_of(machine)
        assert host.log.log_end_offset == 1
        machine.disk.capacity_bytes = None
        cluster.in_sync(leader, {1, 2, 3})
        assert host.log.log_end_offset == 2


def test_producers_learn_why_and_go_on_when_space_returns() -> None:
    with World(3, brokers=3) as world:
        cluster = Cluster(world)
        cluster.create()
        cluster.send(b"a")
        for machine in world.brokers:
            leave_free(machine, PRODUCERS_PERCENT - 1)
        cluster.until(lambda: all(level(machine) for machine in world.brokers))
        text = refusal(cluster)
        assert "disk.watermark.producers=5%,1073741824" in text
        assert "lower retention.ms" in text
        offset = {TopicPartition("t", 0): 1}
        cluster.admin(lambda admin: admin.commit_offsets("g", offset))
        for machine in world.brokers:
            leave_free(machine, PRODUCERS_PERCENT)
        world.run_for(3)
        assert all(level(machine) for machine in world.brokers), "a fifth more has to be free"
        for machine in world.brokers:
            machine.disk.capacity_bytes = None
        cluster.send(b"b")
        assert cluster.read(2) == [b"a", b"b"]
