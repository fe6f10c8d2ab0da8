"""A world with its levers, and the real broker and clients in it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.aio.clients import AsyncConsumer, AsyncProducer
from raftlog.testing.disk import Fault
from raftlog.testing.simulator.loop import SimulationError
from raftlog.testing.simulator.world import ClientMachine, World
from raftlog.types import NewTopic, TopicPartition
from tests.testing.simulator.machines import world_of


def test_all_brokers_boot_and_know_of_each_other() -> None:
    with world_of(3) as world:
        assert world.is_up()
        assert list(world.addresses) == [1, 2, 3]
        assert world.bootstrap == "broker-1:9100,broker-2:9100,broker-3:9100"


def test_waiting_ends_when_it_holds_or_in_time() -> None:
    with world_of() as world:
        begun = world.time.now
        assert world.run_until(lambda: world.time.now > begun + 1, limit_s=5)
        assert world.time.now == pytest.approx(begun + 1, abs=0.1)
        assert not world.run_until(lambda: False, limit_s=2)
        assert world.time.now == pytest.approx(begun + 3, abs=0.2)


def test_what_one_part_draws_changes_nothing_for_another() -> None:
    with World(5) as world, World(5) as same:
        world.random("a").random()
        assert world.random("b").random() == same.random("b").random()
        assert world.random("a").random() != world.random("b").random()


def test_healing_ends_every_fault() -> None:
    with world_of(2) as world:
        one, other = world.brokers
        one.power_cut()
        other.pause()
        other.disk.faults.append(Fault())
        other.disk.capacity_bytes = 0
        other.latency.stall_chance = 1.0
        world.network.cut(one.name, other.name)
        world.heal()
        assert world.run_until(world.is_up, limit_s=5)
        assert not other.disk.faults
        assert other.disk.capacity_bytes is None
        assert not other.loop.is_paused
        assert not world.network.cuts
        assert not other.latency.stall_chance


def test_healing_a_core_leaves_the_rest_as_it_is() -> None:
    with world_of(3) as world:
        for machine in world.brokers:
            machine.is_kept_down = True
            machine.kill()
        for a, b in ((1, 2), (2, 3)):
            world.network.cut(f"broker-{a}", f"broker-{b}")
        world.heal({"broker-1", "broker-2"})
        assert world.run_until(world.is_up, limit_s=5)
        assert [machine.is_running for machine in world.brokers] == [True, True, False]
        assert world.network.cuts == [("broker-2", "broker-3"), ("broker-3", "broker-2")]


def test_a_failure_that_nobody_saw_shows_at_the_end() -> None:
    async def program(_machine: ClientMachine) -> None:
        raise ValueError("lost")

    with world_of() as world:
        world.add_client("client-1", program).start()
        world.run_for(1)
        with pytest.raises(SimulationError, match="lost"):
            world.check()


def test_it_says_what_happens() -> None:
    said: list[str] = []
    with world_of(on_trace=said.append) as world:
        digest = world.time.digest()
        world.trace("something")
        assert world.time.digest() != digest
    assert said[0].endswith(" broker-1 is up")
    assert said[-1].endswith(" something")


def use_it(world: World) -> tuple[list[bytes | None], str]:
    """Produce and consume with the real clients; what came back, and the digest."""
    found: list[bytes | None] = []

    async def program(machine: ClientMachine) -> None:
        settings: dict[str, Any] = {"bootstrap": world.bootstrap, "host": machine.host()}
        async with AsyncAdmin(**settings) as admin:
            await admin.create_topics([NewTopic("t")])
        async with AsyncProducer(**settings) as producer:
            for number in range(20):
                await producer.send("t", b"%d" % number)
            await producer.flush()
            world.brokers[0].kill()
            await producer.send("t", b"after")
        async with AsyncConsumer(**settings, auto_offset_reset="earliest") as consumer:
            await consumer.assign([TopicPartition("t", 0)])
            async with asyncio.timeout(60):
                while len(found) < 21:
                    found.extend(record.value for record in await consumer.poll(1_000))

    client = world.add_client("client-1", program)
    client.start()
    assert world.run_until(lambda: client.is_done, limit_s=100)
    world.check()
    return found, world.time.digest()


def test_the_real_broker_and_the_real_clients_run_in_it() -> None:
    with World(1) as world:
        world.boot()
        found, digest = use_it(world)
        assert found == [b"%d" % number for number in range(20)] + [b"after"]
    with World(1) as world:
        world.boot()
        assert use_it(world)[1] == digest


def test_three_real_brokers_make_a_cluster_in_it() -> None:
    with World(2, brokers=3) as world:
        world.boot()
        found, _ = use_it(world)
        assert len(found) == 21
