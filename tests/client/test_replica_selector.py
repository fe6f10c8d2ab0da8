"""Consumers while leaders die, stop and are cut off: who is read from, and what is not lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from raftlog.client.requests import replica_offsets
from raftlog.errors import (
    AuthenticationError,
    FencedLeaderEpochError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import FetchRequest
from raftlog.types import TopicPartition
from tests.client.samples import stored_batch
from tests.client.test_cluster import cluster_of
from tests.client.test_fetcher import Rig, failing, fill, now
from tests.client.test_subscription import A
from tests.client.world import FakeCluster, refuse, run, vanish
from tests.running import runs


def fetched_from(fake: FakeCluster) -> list[tuple[int, bool, int]]:
    """Of each fetch: the broker, whether a replica would do, and the leader epoch."""
    return [
        (broker, message.replica_ok, message.partitions[0].leader_epoch)
        for broker, message in fake.requests
        if isinstance(message, FetchRequest)
    ]


@runs(run, brokers=3)
async def test_a_leader_that_stops_is_left_for_its_successor(fake: FakeCluster) -> None:
    topic = fake.create("t")
    fill(fake, 2)
    async with Rig(fake) as rig:
        assert await rig.read(2) == [0, 1]
        fake.pause(1)
        topic.leaders[0] = 2
        fill(fake, 2)
        start = now()
        assert await rig.read(2) == [2, 3]
        assert now() - start < 2.5, "not the request timeout of 30 s"
        assert fetched_from(fake)[-1] == (2, False, 4)
        fake.resume(1)  # what it answers now does not count any more
        fill(fake, 1)
        assert await rig.read(1) == [4]


@runs(run, brokers=3)
async def test_a_leader_that_dies_is_left_for_its_successor(fake: FakeCluster) -> None:
    topic = fake.create("t")
    fill(fake, 2)
    async with Rig(fake) as rig:
        assert await rig.read(2) == [0, 1]
        fake.kill(1)
        asyncio.get_running_loop().call_later(0.8, topic.leaders.__setitem__, 0, 3)
        fill(fake, 2)
        start = now()
        assert await rig.read(2) == [2, 3]
        assert now() - start < 2


@pytest.mark.parametrize("read_from", ["leader", "replica"])
@runs(run, brokers=3)
async def test_a_client_whose_credentials_the_leader_rejects_gets_the_error_at_once(
    fake: FakeCluster, *, read_from: str
) -> None:
    fake.create("t")
    fill(fake, 2)
    async with Rig(fake, read_from=read_from) as rig:
        assert await rig.read(2) == [0, 1]
        fake.always[apis.API_VERSIONS] = refuse(AuthenticationError("E"))
        start = now()
        for peer in list(fake.peers):
            peer.transport.abort()
        with pytest.raises(AuthenticationError):
            await rig.read(1)
        assert now() - start < 1


@runs(run, brokers=3)
async def test_a_leader_that_is_cut_off_is_left_when_others_are_asked(fake: FakeCluster) -> None:
    topic = fake.create("t")
    fill(fake, 2)
    async with Rig(fake) as rig:
        keeper = asyncio.ensure_future(rig.cluster.keep_fresh())
        assert await rig.read(2) == [0, 1]
        fake.cut_off(1)  # it answers all that it is asked, and has nothing new
        topic.leaders[0] = 2
        fill(fake, 2)
        assert await rig.read(2) == [2, 3]
        assert now() - 1_000 < 91, "of three brokers, another one is asked every 30 s"
        keeper.cancel()


@pytest.mark.parametrize("trouble", ["dies", "stops", "is gone without a trace", "is unknown"])
@runs(run, brokers=3)
async def test_without_a_leader_a_replica_stands_in(fake: FakeCluster, *, trouble: str) -> None:
    topic = fake.create("t")
    fill(fake, 2)
    async with Rig(fake) as rig:
        assert await rig.read(2) == [0, 1]
        fill(fake, 3)
        topic.known_ends = {1: 5, 2: 5, 3: 5}
        if trouble == "stops":
            fake.pause(1)
        elif trouble == "is unknown":
            topic.leaders[0] = None
        else:
            fake.kill(1)
        if trouble == "is gone without a trace":
            fake.down, fake.unreachable = set(), {1}
        start = now()
        assert await rig.read(3) == [2, 3, 4]
        # A stopped one is noticed when the fetch that it has is overdue.
        assert now() - start < 3.5
        broker, replica_ok, epoch = fetched_from(fake)[-1]
        assert (replica_ok, epoch) == (True, -1)
        assert broker != topic.leaders[0]
        fill(fake, 1)
        await asyncio.sleep(10)
        assert rig.subscription.next_chunk() is None, "the replica knows no more: it waits"
        topic.leaders[0] = 2
        assert await rig.read(1) == [5]
        await asyncio.sleep(1)
        assert fetched_from(fake)[-1] == (2, False, topic.leaders.epochs[0]), "a leader again"


@runs(run, brokers=3)
async def test_a_stand_in_that_has_less_is_no_reason_to_begin_anew(fake: FakeCluster) -> None:
    topic = fake.create("t")
    fill(fake, 5)
    async with Rig(fake) as rig:
        assert await rig.read(5) == [0, 1, 2, 3, 4]
        topic.known_ends = {2: 3, 3: 3}
        fake.kill(1)
        await asyncio.sleep(10)
        assert rig.subscription.next_chunk() is None
        assert rig.subscription.part(A).position == 5
        fake.down.clear()
        topic.known_ends = {}
        fill(fake, 1)
        assert await rig.read(1) == [5]


@pytest.mark.parametrize("reset", ["earliest", "error"])
@runs(run, brokers=3)
async def test_below_what_is_left_a_stand_in_may_say_so(fake: FakeCluster, *, reset: Any) -> None:
    topic = fake.create("t")
    fill(fake, 2, 2, 2)
    async with Rig(fake, auto_offset_reset=reset) as rig:
        rig.subscription.seek(A, 0)
        rig.fetcher.poll()
        await rig.read(6)
        fake.kill(1)
        topic.logs[0].start = 4  # retention went on
        del topic.logs[0].batches[:2]
        rig.subscription.seek(A, 1)
        rig.fetcher.poll()
        if reset == "earliest":
            assert await rig.read(2) == [4, 5]
        else:
            await asyncio.sleep(10)
            with pytest.raises(
                OffsetOutOfRangeError, match="offset 1 is below the log start offset 4"
            ):
                rig.subscription.next_chunk()


@runs(run, brokers=3)
async def test_where_to_begin_is_found_without_a_leader(fake: FakeCluster) -> None:
    topic = fake.create("t")
    fill(fake, 5)
    topic.known_ends = {3: 4}
    fake.kill(1)
    async with Rig(fake, auto_offset_reset="latest") as rig:
        await asyncio.sleep(5)
        assert rig.subscription.part(A).position == 5, "of the replica that knows most"


@runs(run, brokers=3)
async def test_offsets_of_replicas(fake: FakeCluster) -> None:
    topic = fake.create("t", 2, replicas=[1, 2], leaders=[None, 3])
    fill(fake, 5)
    topic.known_ends = {1: 2, 2: 4}
    topic.logs[0].start = 1
    cluster = cluster_of(fake)
    await cluster.topic("t")
    found = await replica_offsets(cluster, {A: "latest", TopicPartition("t", 1): "earliest"})
    assert [answer.offset for answer in found.values()] == [4, 0]
    assert (await replica_offsets(cluster, {A: "earliest"}))[A].offset == 1
    fake.kill(2)
    assert (await replica_offsets(cluster, {A: "latest"}))[A].offset == 2
    fake.pause(1)
    assert await replica_offsets(cluster, {A: "latest"}) == {}
    await cluster.close()


# -- reading from replicas by choice ---------------------------------------------------------------


@runs(run, brokers=3)
async def test_reading_from_replicas_spreads_the_partitions(fake: FakeCluster) -> None:
    fake.create("t", 6)
    for partition in range(6):
        fill(fake, 1, partition=partition)
    partitions = [TopicPartition("t", number) for number in range(6)]
    async with Rig(fake, *partitions, read_from="replica") as rig:
        await rig.read(6)
        read = Counter(
            (broker, part.partition)
            for broker, message in fake.requests
            if isinstance(message, FetchRequest)
            for part in message.partitions
        )
        assert {broker for broker, _ in read} == {1, 2, 3}
        assert len(read) == 6, "each from one replica only"
        assert all(ok and epoch == 3 for _, ok, epoch in fetched_from(fake))


@runs(run, brokers=3)
async def test_the_own_rack_comes_first(fake: FakeCluster) -> None:
    topic = fake.create("t")
    fake.racks = {1: "a", 2: "b", 3: "c"}
    fill(fake, 1)
    async with Rig(fake, read_from="replica", client_rack="c") as rig:
        await rig.read(1)
        assert {broker for broker, _, _ in fetched_from(fake)} == {3}
        fake.kill(3)
        fill(fake, 1)
        assert await rig.read(1) == [1], "another rack is better than none"
        fake.down.clear()
        topic.isr.remove(3)
        await rig.cluster.refresh()
        fake.requests.clear()
        fill(fake, 1)
        assert await rig.read(1) == [2]
        assert 3 not in {broker for broker, _, _ in fetched_from(fake)}, "it is not in sync"


@runs(run, brokers=2)
async def test_out_of_range_at_a_replica_is_for_the_leader_to_say(fake: FakeCluster) -> None:
    topic = fake.create("t", replicas=[2, 1])
    fill(fake, 2, 2)
    topic.known_ends = {2: 2}
    async with Rig(fake, read_from="replica") as rig:
        rig.subscription.seek(A, 3)
        rig.fetcher.poll()
        assert await rig.read(1) == [3], "the replica is behind; the leader has it"
        assert fetched_from(fake)[0][:2] == (2, True)
        assert (1, False, 3) in fetched_from(fake)
        rig.subscription.seek(A, 99)
        rig.fetcher.poll()
        assert await rig.read(4) == [0, 1, 2, 3], "the leader has it not either"


@pytest.mark.parametrize(
    "error", [UnknownLeaderEpochError("not yet"), FencedLeaderEpochError("newer")]
)
@runs(run, brokers=3)
async def test_a_replica_that_refuses_is_left_alone_for_a_while(
    fake: FakeCluster, *, error: Exception
) -> None:
    fake.create("t")
    fill(fake, 1)
    fake.next(apis.FETCH, failing(error))
    async with Rig(fake, read_from="replica") as rig:
        assert await rig.read(1) == [0]
        first, second, *_ = [broker for broker, _, _ in fetched_from(fake)]
        assert first != second


def test_seeking_back_is_no_epoch_that_goes_back(caplog: pytest.LogCaptureFixture) -> None:
    async def test(fake: FakeCluster) -> None:
        log = fake.create("t").logs[0]
        log.batches += [
            stored_batch(0, b"a", leader_epoch=5),
            stored_batch(1, b"b", leader_epoch=6),
        ]
        log.end = 2
        async with Rig(fake) as rig:
            assert await rig.read(2) == [0, 1]
            rig.subscription.seek(A, 0)
            rig.fetcher.poll()
            assert await rig.read(2) == [0, 1]

    run(test)
    assert not caplog.records


def test_an_epoch_that_goes_back_says_where(caplog: pytest.LogCaptureFixture) -> None:
    async def test(fake: FakeCluster) -> None:
        log = fake.create("t").logs[0]
        log.batches += [stored_batch(0, b"a", leader_epoch=5), stored_batch(1, b"b")]
        log.end = 2
        async with Rig(fake) as rig:
            assert await rig.read(2) == [0, 1]

    run(test)
    assert "partition=t:0 offset=1 epoch_before=5 epoch=3" in caplog.text


@pytest.mark.parametrize("read_from", ["leader", "replica"])
@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.seeds) for n in range(1, 5))]
)
def test_any_mix_of_troubles(seed: int, number: int, read_from: str) -> None:
    """Whatever happens to brokers, every record is read, once and in order."""
    chance = random.Random(seed + number)

    async def trouble(fake: FakeCluster) -> None:
        topic = fake.topics["t"]
        for _ in range(15):
            await asyncio.sleep(chance.uniform(0.05, 2))
            fill(fake, chance.randint(1, 3))
            broker = chance.choice([1, 2, 3])
            topic.known_ends = dict.fromkeys((1, 2, 3), topic.logs[0].end - 1)
            kind = chance.choice(["kill", "pause", "cut off", "nobody leads", "vanish"])
            if kind == "kill":
                fake.kill(broker)
            elif kind == "pause":
                fake.pause(broker)
            elif kind == "cut off":
                fake.cut_off(broker)
            elif kind == "nobody leads":
                topic.leaders[0] = None
            else:
                fake.next(apis.FETCH, *[vanish] * 3)
            await asyncio.sleep(chance.uniform(0, 5))
            if topic.leaders[0] in {broker, None}:
                topic.leaders[0] = chance.choice([each for each in (1, 2, 3) if each != broker])
            fill(fake, 1)
            await asyncio.sleep(chance.uniform(0, 3))
            fake.down.clear()
            if kind == "pause":
                fake.resume(broker)
            elif kind == "cut off":
                fake.rejoin(broker)
        topic.known_ends = {}
        fill(fake, 1)

    async def test(fake: FakeCluster) -> None:
        log = fake.create("t").logs[0]
        async with Rig(fake, read_from=read_from) as rig:
            keeper = asyncio.ensure_future(rig.cluster.keep_fresh())
            troubled = asyncio.ensure_future(trouble(fake))
            found: list[int] = []
            while not troubled.done() or len(found) < log.end:
                found += await rig.read(1)
            assert found == list(range(log.end))
            keeper.cancel()

    run(test, brokers=3)
