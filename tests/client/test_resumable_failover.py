"""Producers with a name, while brokers die, stop, are cut off and come back. In virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress

import pytest

from raftlog.client.accumulator import ProducerIdAndEpoch
from raftlog.client.delivery import DeliveryFuture
from raftlog.client.requests import describe_producer
from raftlog.errors import InvalidRequestError, NotLeaderError, RaftlogError, UnknownTopicError
from raftlog.protocol import api as apis
from raftlog.protocol.records import ProduceRequest
from tests.client.named import ID, TP, body, describe
from tests.client.sending import Rig, outcome
from tests.client.world import (
    Behaviour,
    FakeCluster,
    do_and_ignore,
    do_and_vanish,
    ignore,
    refuse_partitions,
    run,
    vanish,
)
from tests.running import runs

FIVE = [b"%d" % number for number in range(5)]


class NamedRig(Rig):
    """A sender whose identity is given."""

    def __init__(self, fake: FakeCluster) -> None:
        fake.always[apis.DESCRIBE_PRODUCERS] = describe
        super().__init__(fake, identity=ProducerIdAndEpoch(ID, 0), linger_ms=0)

    async def stored(self) -> int:
        return (await describe_producer(self.cluster, [TP], ID))[TP][0].last_sequence + 1

    def append(self, number: int, *values: bytes) -> DeliveryFuture:
        batch = body(*values)
        delivery = self.accumulator.add_encoded(
            self.accumulator.topics["t"], 0, batch, batch.size_bytes, base_sequence=number
        )
        assert delivery is not None
        asyncio.get_running_loop().call_soon(self.sender.pump)
        return DeliveryFuture(delivery, 0)

    async def append_each(self, *values: bytes, first: int = 0) -> list[DeliveryFuture]:
        """Each in a batch and a request of its own."""
        futures = []
        for number, value in enumerate(values, first):
            futures.append(self.append(number, value))
            await asyncio.sleep(0.002)
        return futures


async def all_outcomes(futures: Sequence[DeliveryFuture]) -> list[object]:
    return [await outcome(future) for future in futures]


@pytest.mark.parametrize("in_flight", [do_and_ignore, ignore], ids=["stored", "not stored"])
@pytest.mark.parametrize("acknowledged", range(5))
@runs(run, brokers=3)
async def test_a_leader_that_stops_is_left_with_the_same_numbers(
    fake: FakeCluster, *, acknowledged: int, in_flight: Behaviour
) -> None:
    topic = fake.create("t")
    async with NamedRig(fake) as rig:
        futures = await rig.append_each(*FIVE[:acknowledged])
        await all_outcomes(futures)
        fake.next(apis.PRODUCE, in_flight)
        futures += await rig.append_each(*FIVE[acknowledged:], first=acknowledged)
        assert len(fake.asked(ProduceRequest)) == acknowledged + 1
        fake.pause(1)
        topic.leaders[0] = 2
        assert [(await future).offset for future in futures] == list(range(5))
        assert topic.logs[0].values() == FIVE
        assert await rig.stored() == 5


@runs(run)
async def test_what_is_lost_for_good_ends_the_partition_and_another_run_goes_on(
    fake: FakeCluster,
) -> None:
    log = fake.create("t").logs[0]
    async with NamedRig(fake) as rig:
        fake.next(apis.PRODUCE, refuse_partitions(InvalidRequestError("bad record")))
        futures = await rig.append_each(*FIVE)
        found = await all_outcomes([*futures, rig.append(5, b"5")])
        assert [type(each) for each in found] == [InvalidRequestError] * 6
        assert log.values() == []
        assert await rig.stored() == 0
    async with NamedRig(fake) as rig:
        await rig.append(0, *FIVE)
    assert log.values() == FIVE


@runs(run)
async def test_a_topic_that_was_made_anew_is_not_gone_on_with(fake: FakeCluster) -> None:
    fake.create("t")
    async with NamedRig(fake) as rig:
        await rig.append(0, b"a")
        del fake.topics["t"]
        anew = fake.create("u").logs[0]
        fake.topics["t"] = fake.topics.pop("u")
        fake.topics["t"].name = "t"
        await rig.topic("t")
        await rig.cluster.refresh()
        error = await outcome(rig.append(1, b"b"))
        assert isinstance(error, UnknownTopicError)
        assert "deleted and created again" in str(error)
        assert anew.values() == []


@runs(run, brokers=3)
async def test_a_leader_that_moved_is_found_before_it_is_asked_again(fake: FakeCluster) -> None:
    topic = fake.create("t")
    async with NamedRig(fake) as rig:
        await rig.append(0, b"a", b"b")
        topic.leaders[0] = 2
        assert await rig.stored() == 2
        fake.next(apis.DESCRIBE_PRODUCERS, vanish)
        fake.kill(2)
        topic.leaders[0] = 3
        assert await rig.stored() == 2


RECORDS = 300


async def run_again_and_again(fake: FakeCluster, chance: random.Random) -> None:
    """Runs of one name, each of which fails or dies, until one of them gets to the end."""
    is_done = False
    while not is_done:
        rig = NamedRig(fake)
        with suppress(RaftlogError):
            await rig.topic("t")
            number = await rig.stored()
            futures = []
            while number < RECORDS:
                count = min(chance.randint(1, 8), RECORDS - number)
                futures.append(rig.append(number, *(b"%d" % (number + n) for n in range(count))))
                number += count
                await asyncio.sleep(chance.choice([0, 0.001, 0.3]))
                if chance.random() < 0.05:
                    break  # it dies, and what it sent may be on its way
            else:
                found = await all_outcomes(futures)
                is_done = not any(isinstance(each, RaftlogError) for each in found)
        await rig.sender.close()
        await rig.cluster.close()


async def trouble(fake: FakeCluster, chance: random.Random) -> None:
    topic = fake.topics["t"]
    for _ in range(8):
        await asyncio.sleep(chance.uniform(0.05, 1))
        leader, others = topic.leaders[0] or 1, [1, 2, 3]
        others.remove(leader)
        kind = chance.choice(["kill", "pause", "cut off", "transfer", "lose answers"])
        if kind == "kill":
            fake.kill(leader)
        elif kind == "pause":
            fake.pause(leader)
        elif kind == "cut off":
            fake.cut_off(leader)
        elif kind == "lose answers":
            behaviours = [do_and_ignore, do_and_vanish, ignore, vanish]
            behaviours.append(refuse_partitions(NotLeaderError("moved")))
            fake.next(apis.PRODUCE, *chance.choices(behaviours, k=3))
        await asyncio.sleep(chance.uniform(0, 1.5))
        if kind != "lose answers":
            topic.leaders[0] = chance.choice(others)
        await asyncio.sleep(chance.uniform(0, 2))
        fake.down.clear()
        if kind == "pause":
            fake.resume(leader)
        elif kind == "cut off":
            fake.rejoin(leader)


@pytest.mark.parametrize("seed", range(12))
def test_two_who_run_again_and_again_store_everything_once(seed: int) -> None:
    """Whatever becomes of leaders and answers, and however each cuts its records into batches."""
    chance = random.Random(seed)

    async def test(fake: FakeCluster) -> None:
        log = fake.create("t").logs[0]
        await asyncio.gather(
            run_again_and_again(fake, chance),
            run_again_and_again(fake, chance),
            trouble(fake, chance),
        )
        assert log.values() == [b"%d" % number for number in range(RECORDS)]

    run(test, brokers=3)
