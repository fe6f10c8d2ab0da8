"""Brokers that die, stop, are cut off and come back, under producers: order, once, and soon."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from raftlog.errors import (
    ClusterNotReadyError,
    CommitUnknownError,
    FencedLeaderEpochError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderError,
    RaftlogError,
    UnknownLeaderEpochError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import InitProducerIdRequest, MetadataRequest, ProduceRequest
from raftlog.record import parse_header
from tests.client.sending import Rig, now, offsets, outcome
from tests.client.world import (
    FakeCluster,
    do_and_ignore,
    ignore,
    refuse,
    refuse_partitions,
    run,
    vanish,
)
from tests.running import runs

FIVE = [b"%d" % number for number in range(5)]


def produced(fake: FakeCluster) -> list[tuple[int, int]]:
    """To which broker each produce request went, and in which leader epoch it was meant."""
    return [
        (broker, message.partitions[0].leader_epoch)
        for broker, message in fake.requests
        if isinstance(message, ProduceRequest)
    ]


def sequences(fake: FakeCluster) -> list[int]:
    return [parse_header(batch).base_sequence for batch in fake.topics["t"].logs[0].batches]


@pytest.mark.parametrize("stored", range(6))
@runs(run, brokers=3)
async def test_a_leader_that_stops_with_five_in_flight_is_left_in_order(
    fake: FakeCluster, *, stored: int
) -> None:
    topic = fake.create("t")
    async with Rig(fake) as rig:
        await rig.send(b"before")
        fake.next(apis.PRODUCE, *[do_and_ignore] * stored, *[ignore] * (5 - stored))
        futures = await rig.send_batches(*FIVE)
        fake.pause(1)
        last = rig.send(b"last")
        topic.leaders[0] = 2
        start = now()
        assert await offsets([*futures, last]) == [1, 2, 3, 4, 5, 6]
        assert now() - start < 2.5, "not the request timeout of 30 s"
        assert topic.logs[0].values() == [b"before", *FIVE, b"last"]
        assert sequences(fake) == list(range(7))
        fake.resume(1)
        await asyncio.sleep(60)
        assert topic.logs[0].values() == [b"before", *FIVE, b"last"]


@runs(run, brokers=3)
async def test_what_a_stopped_leader_still_has_to_read_is_refused_by_its_epoch(
    fake: FakeCluster,
) -> None:
    topic = fake.create("t")
    async with Rig(fake) as rig:
        await rig.send(b"before")
        fake.pause(1)
        futures = await rig.send_batches(*FIVE)
        topic.leaders[0] = 2
        assert await offsets(futures) == [1, 2, 3, 4, 5]
        topic.leaders[0] = 1  # it leads again, in a newer epoch, with the requests of an older
        fake.resume(1)
        assert await offsets(await rig.send_batches(*FIVE)) == [6, 7, 8, 9, 10]
        assert (1, 3) in produced(fake)
        assert topic.logs[0].values() == [b"before", *FIVE, *FIVE]


@runs(run, brokers=2)
async def test_nothing_overtakes_what_is_in_flight_to_the_old_leader(fake: FakeCluster) -> None:
    topic = fake.create("t")
    async with Rig(fake) as rig:
        await rig.send(b"before")
        fake.pause(1)
        first = rig.send(b"first")
        await asyncio.sleep(0.1)
        topic.leaders[0] = 2
        rig.cluster.mark_suspect(1)
        await rig.cluster.refresh()
        assert rig.cluster.view.leader("t", 0) == 2
        second = rig.send(b"second")
        await asyncio.sleep(0.5)
        assert 2 not in {broker for broker, _ in produced(fake)}
        assert await offsets([first, second]) == [1, 2]


@pytest.mark.parametrize("stored", [0, 2, 5])
@runs(run, brokers=3)
async def test_a_leader_that_dies_with_five_in_flight(fake: FakeCluster, *, stored: int) -> None:
    topic = fake.create("t")
    async with Rig(fake) as rig:
        await rig.send(b"before")
        fake.next(apis.PRODUCE, *[do_and_ignore] * stored, *[ignore] * (5 - stored))
        futures = await rig.send_batches(*FIVE)
        fake.kill(1)
        start = now()
        asyncio.get_running_loop().call_later(1.5, topic.leaders.__setitem__, 0, 3)
        assert await offsets(futures) == [1, 2, 3, 4, 5]
        assert now() - start < 3
        assert topic.logs[0].values() == [b"before", *FIVE]
        assert {broker for broker, _ in produced(fake)} == {1, 3}


@runs(run, brokers=3)
async def test_a_leader_that_is_cut_off_from_the_others_is_left(fake: FakeCluster) -> None:
    topic = fake.create("t")
    async with Rig(fake) as rig:
        await rig.send(b"before")
        fake.cut_off(1)  # it goes on believing that it leads, and tells clients so
        topic.leaders[0] = 2
        start = now()
        futures = await rig.send_batches(*FIVE)
        assert await offsets(futures) == [1, 2, 3, 4, 5]
        assert now() - start < 2.5
        for _ in range(5):
            await rig.cluster.refresh(rotate=True)
            assert rig.cluster.view.leader("t", 0) == 2, "its old news change nothing"
        assert sum(broker == 1 for broker, m in fake.requests if type(m) is MetadataRequest)


@runs(run, brokers=3)
async def test_nobody_is_elected_for_a_while(fake: FakeCluster) -> None:
    topic = fake.create("t")
    async with Rig(fake) as rig:
        await rig.send(b"before")
        fake.kill(1)
        topic.leaders[0] = None
        futures = await rig.send_batches(*FIVE)
        await asyncio.sleep(20)
        topic.leaders[0] = 2
        start = now()
        assert await offsets(futures) == [1, 2, 3, 4, 5]
        assert now() - start < 1.5, "the back-off from the old leader does not hold it up"


@pytest.mark.parametrize(
    "error",
    [
        NotLeaderError("moved"),
        LeaderNotAvailableError("an election"),
        FencedLeaderEpochError("older"),
        UnknownLeaderEpochError("newer"),
        NotEnoughReplicasError("1 of 2"),
        CommitUnknownError("the leader stepped down"),
        UnknownTopicError("this broker has just started"),
        UnknownPartitionError("the same"),
    ],
)
@runs(run, brokers=2)
async def test_what_a_broker_says_that_is_behind_passes(
    fake: FakeCluster, *, error: RaftlogError
) -> None:
    log = fake.create("t").logs[0]
    async with Rig(fake) as rig:
        await rig.send(b"before")
        asked = len(fake.asked(MetadataRequest))
        fake.next(apis.PRODUCE, refuse_partitions(error), refuse_partitions(error))
        start = now()
        futures = await rig.send_batches(*FIVE)
        assert await offsets(futures) == [1, 2, 3, 4, 5]
        assert now() - start < 1
        assert log.values() == [b"before", *FIVE]
        assert len(fake.asked(MetadataRequest)) > asked, "who leads may have changed"


@runs(run, brokers=3)
async def test_metadata_is_asked_of_others_than_the_broker_that_is_behind(
    fake: FakeCluster,
) -> None:
    topic = fake.create("t")
    async with Rig(fake) as rig:
        await rig.send(b"before")
        fake.cut_off(1)
        fake._cut_off[1]["t"].leaders[0] = None
        topic.leaders[0] = 2
        fake.next(apis.PRODUCE, refuse_partitions(UnknownLeaderEpochError("newer")))
        fake.requests.clear()
        await rig.send(b"a")
        sources = [broker for broker, m in fake.requests if isinstance(m, MetadataRequest)]
        assert sources[0] != 1


@runs(run)
async def test_too_few_replicas_until_the_time_is_over_is_told_as_such(fake: FakeCluster) -> None:
    fake.create("t")
    few = NotEnoughReplicasError("t:0 has 1 in-sync replicas, min.insync.replicas is 2")
    async with Rig(fake) as rig:
        await rig.send(b"before")
        fake.next(apis.PRODUCE, *[refuse_partitions(few)] * 1_000)
        start = now()
        error = await outcome(rig.send(b"a"))
        assert type(error) is NotEnoughReplicasError
        for part in ("delivery_timeout_ms", "not stored", "min.insync.replicas is 2"):
            assert part in str(error)
        assert 119 < now() - start < 122
        assert 100 < len(fake.asked(ProduceRequest)) < 400, "it backs off"


@runs(run)
async def test_no_producer_id_for_so_long_is_told_as_such(fake: FakeCluster) -> None:
    fake.create("t")
    fake.next(apis.INIT_PRODUCER_ID, *[refuse(ClusterNotReadyError("1 of 3 voters"))] * 1_000)
    async with Rig(fake) as rig:
        start = now()
        error = await outcome(rig.send(b"a"))
        assert type(error) is ClusterNotReadyError
        assert "1 of 3 voters" in str(error)
        assert 119 < now() - start < 122
        assert len(fake.asked(InitProducerIdRequest)) < 1_000
        fake._next.clear()
        assert (await rig.send(b"b")).offset == 0


@pytest.mark.parametrize("acks", [-1, 1])
@runs(run, brokers=2)
async def test_without_idempotence_a_leader_that_stops_leaves_the_outcome_unknown(
    fake: FakeCluster, *, acks: int
) -> None:
    topic = fake.create("t")
    async with Rig(fake, idempotent=False, acks=acks) as rig:
        await rig.send(b"before")
        fake.pause(1)
        future = rig.send(b"a")
        await asyncio.sleep(0.1)
        topic.leaders[0] = 2
        error = await outcome(future)
        assert type(error) is CommitUnknownError
        assert "broker 1 did not respond" in str(error)
        assert (await rig.send(b"b")).offset == 1, "the next one goes to the new leader"
        assert topic.logs[0].values() == [b"before", b"b"]


@runs(run)
async def test_without_idempotence_a_commit_that_is_not_known_is_not_repeated(
    fake: FakeCluster,
) -> None:
    fake.create("t")
    async with Rig(fake, idempotent=False) as rig:
        fake.next(apis.PRODUCE, refuse_partitions(CommitUnknownError("stepped down")))
        assert type(await outcome(rig.send(b"a"))) is CommitUnknownError
        assert len(fake.asked(ProduceRequest)) == 1


@runs(run, brokers=3)
async def test_a_slow_leader_is_waited_for_while_there_is_no_other(fake: FakeCluster) -> None:
    log = fake.create("t").logs[0]
    async with Rig(fake, idempotent=False) as rig:
        await rig.send(b"before")
        fake.pause(1)
        future = rig.send(b"a")
        await asyncio.sleep(12)
        fake.resume(1)
        assert (await future).offset == 1
        assert log.values() == [b"before", b"a"]


@runs(run, brokers=3)
async def test_one_partitions_leader_stops_and_the_others_go_on(fake: FakeCluster) -> None:
    topic = fake.create("t", 3, leaders=[1, 2, 3])
    async with Rig(fake) as rig:
        for partition in range(3):
            await rig.send(b"before", partition=partition)
        fake.pause(1)
        stuck = rig.send(b"a", partition=0)
        start = now()
        for partition in (1, 2):
            assert (await rig.send(b"a", partition=partition)).offset == 1
        assert now() - start < 0.1
        topic.leaders[0] = 3
        assert (await stuck).offset == 1


def test_without_acks_a_leader_that_moved_is_noticed() -> None:
    def drop(peer: Any, _request: Any) -> None:
        peer.transport.abort()  # as brokers do with what they cannot refuse in words

    async def test(fake: FakeCluster) -> None:
        topic = fake.create("t")
        async with Rig(fake, acks=0, idempotent=False) as rig:
            await rig.send(b"stored")
            await asyncio.sleep(0.1)
            topic.leaders[0] = 2
            fake.next(apis.PRODUCE, drop, drop)
            for _ in range(3):
                await rig.send(b"a")
                await asyncio.sleep(1)
            assert produced(fake)[-1] == (2, 4)

    run(test, brokers=2)


@runs(run, brokers=3)
async def test_a_broker_at_another_address(fake: FakeCluster) -> None:
    topic = fake.create("t", leaders=[2])
    async with Rig(fake) as rig:
        await rig.send(b"before")
        fake.kill(2)
        fake.down.clear()
        # Two and three came back, each where the other was.
        fake.addresses[2], fake.addresses[3] = fake.addresses[3], fake.addresses[2]
        start = now()
        assert await offsets(await rig.send_batches(*FIVE)) == [1, 2, 3, 4, 5]
        assert now() - start < 2
        assert topic.logs[0].values() == [b"before", *FIVE]


@pytest.mark.parametrize("seed", range(20))
def test_any_mix_of_troubles(seed: int) -> None:
    """Leaders die, stop, are cut off and come back; every record is stored once and in order."""
    chance = random.Random(seed)

    async def trouble(fake: FakeCluster) -> None:
        topic = fake.topics["t"]
        for _ in range(12):
            await asyncio.sleep(chance.uniform(0.05, 2))
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
                fake.next(apis.PRODUCE, *chance.choices([do_and_ignore, ignore, vanish], k=3))
            await asyncio.sleep(chance.uniform(0, 1.5))
            if kind != "lose answers":
                topic.leaders[0] = chance.choice(others)
            await asyncio.sleep(chance.uniform(0, 3))
            fake.down.clear()
            if kind == "pause":
                fake.resume(leader)
            elif kind == "cut off":
                fake.rejoin(leader)

    async def test(fake: FakeCluster) -> None:
        log = fake.create("t").logs[0]
        async with Rig(fake) as rig:
            troubled = asyncio.ensure_future(trouble(fake))
            futures = []
            number = 0
            while not troubled.done():
                futures.append(rig.send(b"%d" % number))
                number += 1
                await asyncio.sleep(chance.choice([0.001, 0.01, 0.2]))
            found = await offsets(futures)
            assert found == list(range(number))
            assert log.values() == [b"%d" % each for each in range(number)]

    run(test, brokers=3)
