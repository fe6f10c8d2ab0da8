"""Brokers that die, stop, are cut off and come back, under producers: order, once, and soon."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.client.accumulator import PendingBatch, ProducerIdAndEpoch
from raftlog.client.delivery import DeliveryFuture
from raftlog.client.requests import describe_producer
from raftlog.client.sender import EPOCH_MAX, InFlightBatches, ResumableInFlightBatches, stranded
from raftlog.errors import (
    ClusterNotReadyError,
    CommitUnknownError,
    ConnectionLostError,
    FencedLeaderEpochError,
    InvalidRequestError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RaftlogError,
    RequestTimedOutError,
    UnknownLeaderEpochError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import InitProducerIdRequest, MetadataRequest, ProduceRequest
from raftlog.record import parse_header
from tests.client.named import ID, TP, body, describe
from tests.client.sending import Rig, now, offsets, outcome
from tests.client.test_sender import LOST, MOVED, PRODUCER, batch, bytes_of, launch, place
from tests.client.world import (
    Behaviour,
    FakeCluster,
    FakeLog,
    do_and_ignore,
    do_and_vanish,
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


async def trouble(fake: FakeCluster, chance: random.Random, times: int) -> None:
    topic = fake.topics["t"]
    for _ in range(times):
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


@pytest.mark.parametrize("seed", range(20))
def test_any_mix_of_troubles(seed: int) -> None:
    """Leaders die, stop, are cut off and come back; every record is stored once and in order."""
    chance = random.Random(seed)

    async def test(fake: FakeCluster) -> None:
        log = fake.create("t").logs[0]
        async with Rig(fake) as rig:
            troubled = asyncio.ensure_future(trouble(fake, chance, 12))
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


# -- flight failover -------------------------------------------------------------------------------
#
# One partition's batches while leaders come and go: a model of replicas, and random stories.


class Replicas:
    """Three logs of one partition. What is committed is in all; a leader's tail may be its own.

    A leader that is elected has what is committed, and keeps what else it had: so a batch that one
    leader took and another did not know of may come back with the next election.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.logs = [FakeLog() for _ in range(3)]
        self.leader = 0
        self.epoch = 0

    def append(self, data: bytes) -> None:
        self.logs[self.leader].append(data)

    def commit(self) -> None:
        """All follow the leader: their own tails are cut."""
        leader = self.logs[self.leader]
        self.logs = [leader if log is leader else deepcopy(leader) for log in self.logs]

    def elect(self) -> None:
        self.leader = self.chance.choice([each for each in range(3) if each != self.leader])
        self.epoch += 1


FATES = ("committed", "appended", "answer lost", "request lost", "refused")


class Timeline:
    """One producer's batches, from their first launch to their ends, while leaders change."""

    def __init__(self, seed: int, count: int) -> None:
        self.chance = random.Random(seed)
        self.fates = [self.chance.choice([1, 4, 8]) for _ in FATES]
        self.elections = self.chance.choice([0.1, 0.3, 0.6])
        self.flight = InFlightBatches(idempotent=True)
        self.replicas = Replicas(self.chance)
        self.waiting = [
            batch(b"%d" % number, expires_at=self.chance.choice([3.0, 5.0, 1e9]))
            for number in range(count)
        ]
        self.numbers = {id(pending): number for number, pending in enumerate(self.waiting)}
        self.acknowledged: list[int] = []
        self.failed: list[tuple[int, RaftlogError]] = []

    def launch_some(self) -> None:
        """As the sender does it."""
        flight, replicas = self.flight, self.replicas
        while self.waiting and not flight.held and self.chance.random() < 0.8:
            head = self.waiting[0]
            if flight.is_stranded(head):
                self.failed.append((self.numbers[id(self.waiting.pop(0))], stranded(head)))
                continue
            if flight.full_for(head) or flight.must_stay(replicas.leader, replicas.epoch):
                break
            if not flight.may_launch(head, producer=PRODUCER):
                break
            flight.sent_to(replicas.leader, replicas.epoch)
            launch(flight, self.waiting.pop(0))

    def answer(self, pending: PendingBatch) -> RaftlogError | None:
        """What becomes of one attempt; None when it is committed."""
        chance, replicas = self.chance, self.replicas
        if pending.leader_epoch != replicas.epoch:
            return chance.choice([MOVED, LOST, CommitUnknownError("taken back")])
        fate = chance.choices(FATES, self.fates)[0]
        if fate == "request lost":
            return LOST
        if fate == "refused":
            return InvalidRequestError("bad record")
        try:
            replicas.append(bytes_of(pending))
        except RaftlogError as error:
            return LOST if fate == "answer lost" else error
        if fate == "answer lost":
            return LOST
        if fate == "appended":
            replicas.elect()
            return CommitUnknownError("the leader stepped down")
        replicas.commit()
        return None

    def resolve(self, now: float) -> None:
        again, lost = self.flight.resolve(now)
        self.waiting[:0] = again
        self.failed += [(self.numbers[id(pending)], error) for pending, error in lost]

    def play(self) -> None:
        now = 0.0
        while self.waiting or self.flight.in_flight:
            now += 1.0
            if self.chance.random() < self.elections:
                self.replicas.elect()
            self.launch_some()
            for pending in list(self.flight.in_flight):
                error = self.answer(pending)
                if error is None:
                    self.flight.succeeded(pending)
                    self.acknowledged.append(self.numbers[id(pending)])
                else:
                    self.flight.setback(pending, error)
            if self.flight.setbacks:
                self.resolve(now)


@given(st.integers(0, 100_000), st.integers(1, 12))
def test_between_leaders_nothing_is_stored_twice_or_out_of_order(seed: int, count: int) -> None:
    """Leaders change at any time, and one that was gone may lead again, with what it had taken."""
    timeline = Timeline(seed, count)
    timeline.play()
    ends = [*timeline.acknowledged, *(number for number, _ in timeline.failed)]
    assert sorted(ends) == list(range(count))
    for log in timeline.replicas.logs:  # whoever leads in the end
        stored = [int(value or b"") for value in log.values()]
        assert stored == sorted(set(stored)), "once each, and in order"
        assert set(timeline.acknowledged) <= set(stored), "what is acknowledged is stored"
        for number, error in timeline.failed:
            if not isinstance(error, OutcomeUnknownError):
                assert number not in stored, f"{error!r} says that it is not stored"


# -- resumable failover ----------------------------------------------------------------------------
#
# Producers with a name, while brokers die, stop, are cut off and come back. In virtual time.


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


@pytest.mark.parametrize("seed", range(12))
def test_two_who_run_again_and_again_store_everything_once(seed: int) -> None:
    """Whatever becomes of leaders and answers, and however each cuts its records into batches."""
    chance = random.Random(seed)

    async def test(fake: FakeCluster) -> None:
        log = fake.create("t").logs[0]
        await asyncio.gather(
            run_again_and_again(fake, chance),
            run_again_and_again(fake, chance),
            trouble(fake, chance, 8),
        )
        assert log.values() == [b"%d" % number for number in range(RECORDS)]

    run(test, brokers=3)


# -- resumable flight ------------------------------------------------------------------------------
#
# One partition's batches of a producer with a name: their places are given, and none moves.


NAMED = ProducerIdAndEpoch((1 << 62) + 7, EPOCH_MAX)
GAP = OutOfOrderSequenceError("gap")
RESUMABLE_FLIGHT_LOST = ConnectionLostError("lost")
RESUMABLE_FLIGHT_MOVED = NotLeaderError("moved")
BAD = InvalidRequestError("bad record")


def flight_of() -> ResumableInFlightBatches:
    return ResumableInFlightBatches(idempotent=True, identity=NAMED)


def numbered(first: int, *values: bytes, expires_at: float = 100.0) -> PendingBatch:
    pending = batch(*values, expires_at=expires_at)
    pending.base_sequence = first
    return pending


def reason(flight: ResumableInFlightBatches, pending: PendingBatch) -> RaftlogError:
    error = flight.why_broken(pending)
    assert error is not None
    return error


def test_each_batch_has_the_place_that_it_came_with() -> None:
    flight = flight_of()
    launch(flight, first := numbered(40, b"1", b"2"), second := numbered(42), producer=None)
    assert not flight.wants_other_than(None)
    assert [place(one) for one in (first, second)] == [(*NAMED, 40), (*NAMED, 42)]


def test_the_next_one_waits_until_the_one_before_is_stored() -> None:
    flight = flight_of()
    launch(flight, first := numbered(0))
    assert flight.is_busy(numbered(1))
    flight.succeeded(first)
    assert not flight.is_busy(numbered(1))


@pytest.mark.parametrize(
    "error", [RESUMABLE_FLIGHT_MOVED, RESUMABLE_FLIGHT_LOST, RequestTimedOutError("late")]
)
def test_a_repeat_has_the_same_bytes(error: RaftlogError) -> None:
    flight = flight_of()
    launch(flight, pending := numbered(3))
    before = bytes_of(pending)
    flight.setback(pending, error)
    assert flight.resolve(0.0) == ([pending], [])
    launch(flight, pending)
    assert bytes_of(pending) == before
    assert flight.why_broken(numbered(4)) is None


def test_what_is_refused_takes_all_later_ones_with_it() -> None:
    flight = flight_of()
    launch(flight, first := numbered(0), second := numbered(1), third := numbered(2))
    flight.setback(first, BAD)
    flight.setback(second, GAP)
    flight.setback(third, RESUMABLE_FLIGHT_LOST)
    again, lost = flight.resolve(0.0)
    assert again == []
    assert [one for one, _ in lost] == [first, second, third]
    assert [type(error) for _, error in lost] == [
        InvalidRequestError,
        InvalidRequestError,
        OutcomeUnknownError,
    ]
    assert all("bad record" in str(error) for _, error in lost)
    assert "bad record" in str(reason(flight, numbered(3)))
    assert flight.identity == NAMED, "no epoch is raised, whatever happens"


def test_those_before_a_lost_one_go_on() -> None:
    flight = flight_of()
    launch(flight, first := numbered(0), second := numbered(1))
    flight.setback(first, RESUMABLE_FLIGHT_MOVED)
    flight.setback(second, BAD)
    again, ((lost, _),) = flight.resolve(0.0)
    assert (again, lost) == ([first], second)
    assert flight.why_broken(first) is None
    launch(flight, first)
    flight.succeeded(first)
    assert isinstance(reason(flight, numbered(2)), InvalidRequestError)


def test_one_that_was_never_sent_and_is_lost_lets_those_on_their_way_be() -> None:
    flight = flight_of()
    launch(flight, first := numbered(0))
    flight.lose(numbered(1), BAD)
    flight.setback(first, RESUMABLE_FLIGHT_MOVED)
    assert flight.resolve(0.0).again == [first]
    assert isinstance(reason(flight, numbered(2)), InvalidRequestError)


def test_the_first_reason_stays() -> None:
    flight = flight_of()
    launch(flight, numbered(0), second := numbered(1))
    flight.lose(second, BAD)
    flight.lose(numbered(2), RESUMABLE_FLIGHT_MOVED)
    assert "bad record" in str(reason(flight, numbered(3)))


def test_a_gap_behind_what_is_to_be_repeated_is_none() -> None:
    flight = flight_of()
    launch(flight, first := numbered(0), second := numbered(1))
    flight.setback(first, RESUMABLE_FLIGHT_MOVED)
    flight.setback(second, GAP)
    assert flight.resolve(0.0) == ([first, second], [])


@pytest.mark.parametrize(
    ("before", "error"),
    [(None, OutOfOrderSequenceError), (RESUMABLE_FLIGHT_LOST, OutcomeUnknownError)],
)
def test_a_gap_before_all_others_means_that_somebody_else_has_appended(
    before: RaftlogError | None, error: type[RaftlogError]
) -> None:
    flight = flight_of()
    launch(flight, pending := numbered(0))
    if before is not None:
        flight.setback(pending, before)
        launch(flight, *flight.resolve(0.0).again)
    flight.setback(pending, GAP)
    ((lost, noted),) = flight.resolve(0.0).lost
    assert lost is pending
    assert isinstance(noted, error)
    assert "another run of the same name has appended" in str(noted)
    assert "stored()" in str(noted)
    assert isinstance(reason(flight, numbered(1)), error)


def test_a_later_epoch_ends_the_run() -> None:
    flight = flight_of()
    launch(flight, pending := numbered(0))
    flight.setback(pending, ProducerFencedError("epoch 1 has written"))
    ((_, error),) = flight.resolve(0.0).lost
    assert isinstance(error, ProducerFencedError)
    assert isinstance(reason(flight, numbered(1)), ProducerFencedError)


def test_in_another_topic_of_the_name_nothing_goes_on() -> None:
    flight = flight_of()
    launch(flight, pending := numbered(7))
    flight.begin_anew()
    assert isinstance(reason(flight, numbered(8)), UnknownTopicError)
    flight.setback(pending, RESUMABLE_FLIGHT_MOVED)
    ((_, error),) = flight.resolve(0.0).lost
    assert isinstance(error, UnknownTopicError)
