"""Batches brought ahead of the application from scripted brokers, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from raftlog import limits
from raftlog.client.fetcher import DAMAGE_PATIENCE_S, Fetcher, Positions, _batches
from raftlog.client.settings import OffsetReset
from raftlog.client.subscription import Subscription, Wanted
from raftlog.errors import (
    ClusterNotReadyError,
    CorruptBatchError,
    DamagedLogError,
    InvalidRequestError,
    NotLeaderError,
    OffsetOutOfRangeError,
    RaftlogError,
    ThrottledError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    AbortedTransaction,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataResponse,
    TopicInfo,
)
from raftlog.protocol.schema import Failure
from raftlog.record import check, decode_lists, verify_chain
from raftlog.record.batch import COMMIT, CONTROL, TRANSACTIONAL
from raftlog.record.kafka_batch import marker_batch
from raftlog.transactions import Marker
from raftlog.types import TopicPartition
from tests.client.samples import consumer_settings, stored_batch
from tests.client.test_cluster import cluster_of
from tests.client.test_subscription import A, B, read
from tests.client.world import (
    Behaviour,
    FakeCluster,
    Peer,
    do_and_vanish,
    hold,
    ignore,
    refuse,
    run,
    vanish,
)
from tests.running import runs
from tests.storage.logs import NOW_MS, ONE_SEGMENT, append, open_log, sim_disk, stored


class Rig:
    """A fetcher and its subscription, active."""

    def __init__(self, fake: FakeCluster, *partitions: TopicPartition, **settings: Any) -> None:
        self.fake = fake
        self.partitions = partitions or (A,)
        self.cluster = cluster_of(fake)
        self.subscription = Subscription(consumer_settings(**settings))
        self.fetcher = Fetcher(
            consumer_settings(**settings),
            self.cluster,
            self.subscription,
            now=fake.host.clock.monotonic,
        )

    async def __aenter__(self) -> Rig:
        for name in self.fake.topics:
            await self.cluster.topic(name)
        self.subscription.assign(self.partitions)
        self.fetcher.activate()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.fetcher.close()
        await self.cluster.close()

    async def read(self, count: int) -> list[int]:
        """The next ``count`` offsets, waited for."""
        found: list[int] = []
        while len(found) < count:
            ready = asyncio.Event()
            self.subscription.when_ready(ready.set)
            await ready.wait()
            found += read(self.subscription, count - len(found))
            if self.subscription.starved:
                self.fetcher.poll()
        return found


def fill(fake: FakeCluster, *counts: int, partition: int = 0, size: int = 1) -> None:
    log = fake.topics["t"].logs[partition]
    for count in counts:
        log.batches.append(stored_batch(log.end, *[b"x" * size] * count))
        log.end += count


def now() -> float:
    return asyncio.get_running_loop().time()


def fetches(fake: FakeCluster) -> list[FetchRequest]:
    return fake.asked(FetchRequest)


def test_records_are_fetched_from_the_beginning_and_on() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 3, 2)
        async with Rig(fake) as rig:
            assert await rig.read(5) == [0, 1, 2, 3, 4]
            fill(fake, 2)
            start = now()
            assert await rig.read(2) == [5, 6]
            assert now() - start < 0.1, "the fetch was waiting for them"
            assert rig.subscription.part(A).position == 7

    run(test)


def waits(fake: FakeCluster) -> list[int]:
    return [request.wait_ms_max for request in fetches(fake)]


def test_an_idle_consumer_asks_less_and_less_until_something_comes() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        async with Rig(fake) as rig:
            await asyncio.sleep(20)
            assert waits(fake) == [500, 1_000, 2_000, 4_000, 5_000, 5_000, 5_000]
            fill(fake, 1)
            start = now()
            assert await rig.read(1) == [0]
            assert now() - start < 0.1, "the fetch was waiting for it"
            await asyncio.sleep(1)
            assert waits(fake)[-2:] == [500, 1_000]

    run(test)


def test_a_fetch_waits_as_long_as_it_is_told_where_a_byte_is_not_enough() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        async with Rig(fake, fetch_min_bytes=2):
            await asyncio.sleep(10)
            assert 18 <= len(fetches(fake)) <= 22
            assert set(waits(fake)) == {500}

    run(test)


def test_after_a_failure_a_fetch_waits_no_longer_than_it_is_told() -> None:
    """The next broker to fall silent is to be noticed as soon as the first one."""

    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        async with Rig(fake):
            await asyncio.sleep(5)
            assert waits(fake)[-1] == 4_000
            for peer in fake.peers:
                peer.transport.abort()
            await asyncio.sleep(1)
            assert waits(fake)[4] == 500

    run(test)


def test_only_one_fetch_of_a_broker_waits_for_long() -> None:
    """So there is room soon for a partition that is wanted later."""

    async def test(fake: FakeCluster) -> None:
        fake.create("t", 6)
        partitions = [TopicPartition("t", number) for number in range(6)]
        async with Rig(fake, partitions[0]) as rig:
            await asyncio.sleep(5)
            for tp in partitions[1:]:  # one after the other, as in rebalances
                fill(fake, 1, partition=tp.partition)
                rig.subscription.assign(partitions[: tp.partition + 1])
                rig.fetcher.poll()
                start = now()
                await rig.read(1)
                assert now() - start <= 0.6
                await asyncio.sleep(0.05)
            long_ones = [wait for wait in waits(fake)[4:] if wait > 500]
            assert len(long_ones) <= 1

    run(test)


@pytest.mark.parametrize("wait_ms", [500, 0])
def test_a_broker_that_answers_early_with_nothing_is_not_hammered(wait_ms: int) -> None:
    def nothing(peer: Peer, request: Request) -> None:
        peer.write(peer.state.reply(request, FetchResponse(partitions=[])))

    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fake.next(apis.FETCH, *[nothing] * 10_000)
        async with Rig(fake, fetch_max_wait_ms=wait_ms):
            await asyncio.sleep(10)
            assert len(fetches(fake)) < (60 if wait_ms else 1_500)

    run(test)


def test_partitions_of_one_broker_share_a_fetch() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t", 3, leaders=[1, 1, 2])
        for partition in range(3):
            fill(fake, 1, partition=partition)
        partitions = [TopicPartition("t", number) for number in range(3)]
        async with Rig(fake, *partitions) as rig:
            await rig.read(3)
            first = {len(request.partitions) for request in fetches(fake)[:2]}
            assert first == {1, 2}

    run(test, brokers=2)


def test_an_idle_partition_does_not_hold_up_a_busy_one() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t", 2)
        fill(fake, *[10] * 50, size=1_000)
        async with Rig(fake, A, B, max_partition_fetch_bytes=20_000) as rig:
            start = now()
            await rig.read(500)
            assert now() - start < 1.0, "not half a second for each fetch"
            assert max_in_flight(fake) <= limits.FETCHES_IN_FLIGHT_MAX

    run(test)


def max_in_flight(fake: FakeCluster) -> int:
    return max(peer.state.in_flight for peer in fake.peers)


def test_fetching_ahead_stops_when_there_is_enough() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, *[1] * 100, size=1_000)
        async with Rig(fake, max_partition_fetch_bytes=1_200) as rig:
            await asyncio.sleep(5)
            fetched = len(fetches(fake))
            assert fetched <= limits.PREFETCH_FETCHES_MAX + 1
            assert await rig.read(100) == list(range(100))

    run(test)


@pytest.mark.parametrize("fault", [vanish, do_and_vanish, ignore, refuse(ThrottledError("busy"))])
def test_any_passing_fault_is_got_over(fault: Behaviour) -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 2)
        async with Rig(fake) as rig:
            assert await rig.read(2) == [0, 1]
            fake.next(apis.FETCH, fault)
            fill(fake, 2)
            assert await rig.read(2) == [2, 3]

    run(test)


def test_a_leader_that_moved_is_followed() -> None:
    async def test(fake: FakeCluster) -> None:
        topic = fake.create("t")
        fill(fake, 1)
        async with Rig(fake) as rig:
            await rig.read(1)
            topic.leaders[0] = None
            await asyncio.sleep(5)
            topic.leaders[0] = 2
            fill(fake, 1)
            assert await rig.read(1) == [1]

    run(test, brokers=2)


def test_a_broker_that_restarts_is_waited_for_without_hurry() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 1)
        async with Rig(fake) as rig:
            await rig.read(1)
            fake.kill(1)
            await asyncio.sleep(60)
            assert len(fake.connects) < 250
            fake.down.clear()
            fill(fake, 1)
            assert await rig.read(1) == [1]

    run(test)


def test_positions_that_cannot_be_looked_up_yet_are_tried_again() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 1)
        fake.next(apis.LIST_OFFSETS, *[refuse(NotLeaderError("moving"))] * 3)
        async with Rig(fake) as rig:
            assert await rig.read(1) == [0]
            assert len(fake.asked(ListOffsetsRequest)) == 4

    run(test)


def test_latest_begins_at_the_end() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 5)
        async with Rig(fake, auto_offset_reset="latest") as rig:
            await asyncio.sleep(1)
            fill(fake, 1)
            assert await rig.read(1) == [5]

    run(test)


def test_without_a_policy_a_position_has_to_be_given() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 3)
        async with Rig(fake, auto_offset_reset="error") as rig:
            await asyncio.sleep(1)
            with pytest.raises(OffsetOutOfRangeError, match=r"seek\(\)"):
                rig.subscription.next_chunk()
            rig.subscription.seek(A, 1)
            rig.fetcher.poll()
            assert await rig.read(2) == [1, 2]

    run(test)


def test_out_of_range_goes_on_by_the_policy(caplog: pytest.LogCaptureFixture) -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 3)
        async with Rig(fake) as rig:
            rig.subscription.seek(A, 99)
            rig.fetcher.poll()
            assert await rig.read(3) == [0, 1, 2]

    run(test)
    assert "offset 99 is outside 0 to 3" in caplog.text


def test_out_of_range_without_a_policy_is_told_with_the_range() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 3)
        async with Rig(fake, auto_offset_reset="error") as rig:
            rig.subscription.seek(A, 99)
            rig.fetcher.poll()
            await asyncio.sleep(1)
            with pytest.raises(OffsetOutOfRangeError, match="t:0: offset 99 is outside 0 to 3"):
                rig.subscription.next_chunk()

    run(test)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_topic_that_was_made_again_is_read_from_its_first_record(
    caplog: pytest.LogCaptureFixture, reset: str
) -> None:
    """An offset of the old one says nothing of the new one."""

    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        async with Rig(fake, auto_offset_reset=reset) as rig:
            await asyncio.sleep(1)
            fill(fake, 3)
            assert await rig.read(3) == [0, 1, 2]
            fake.create("t")
            fill(fake, 7)
            assert await rig.read(7) == list(range(7))

    run(test)
    assert "topic was deleted and created again: partition=t:0 reset=earliest" in caplog.text


def test_a_topic_that_was_made_again_needs_a_seek_where_there_is_no_policy() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 3)
        async with Rig(fake, auto_offset_reset="error") as rig:
            rig.subscription.seek(A, 0)
            rig.fetcher.poll()
            assert await rig.read(3) == [0, 1, 2]
            fake.create("t")
            fill(fake, 7)
            await asyncio.sleep(10)
            with pytest.raises(OffsetOutOfRangeError, match=r"Call seek\(\)"):
                rig.subscription.next_chunk()
            rig.subscription.seek(A, 2)
            rig.fetcher.poll()
            assert await rig.read(5) == [2, 3, 4, 5, 6]

    run(test)


def failing(error: Exception) -> Behaviour:
    """Answer a fetch: its one partition fails."""

    def behave(peer: Peer, request: Request) -> None:
        assert isinstance(request.message, FetchRequest)
        (part,) = request.message.partitions
        failure = Failure.of(error)  # type: ignore[arg-type]
        answer = FetchedPartition(topic=part.topic, partition=part.partition, failure=failure)
        peer.write(peer.state.reply(request, FetchResponse(partitions=[answer])))

    return behave


@pytest.mark.parametrize(
    "error", [InvalidRequestError("what is this"), DamagedLogError("bad bytes at 7")]
)
def test_what_does_not_pass_is_told_once_each_time_it_is_asked_for(error: Exception) -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 1)
        async with Rig(fake) as rig:
            await rig.read(1)
            fake.next(apis.FETCH, failing(error), failing(error))
            await asyncio.sleep(2)
            asked = len(fetches(fake))
            for _ in range(2):
                with pytest.raises(type(error), match=str(error)):
                    rig.subscription.next_chunk()
                rig.fetcher.poll()
                await asyncio.sleep(0.4)
            assert len(fetches(fake)) - asked <= 2
            fill(fake, 1)
            assert await rig.read(1) == [1]

    run(test)


def test_a_broker_that_does_not_know_the_topic_yet_is_asked_again() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 1)
        fake.next(apis.FETCH, *[failing(UnknownTopicError("no such topic"))] * 3)
        async with Rig(fake) as rig:
            assert await rig.read(1) == [0], "whether it exists is for the metadata to say"

    run(test)


@pytest.mark.parametrize("is_seek", [False, True])
def test_an_assigned_topic_is_not_taken_for_an_older_one_of_its_name(is_seek: bool) -> None:
    """The coordinator knows of a new topic. Older metadata is no reason to begin it anew."""

    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 3)
        async with Rig(fake) as rig:
            older = rig.cluster.view
            fake.create("t")
            fill(fake, 5)
            newer = await rig.cluster.refresh(["t"])
            rig.subscription.assign(())
            rig.subscription.add_assigned({A: newer.topic("t").id}, [])
            rig.cluster.view = older
            if is_seek:
                rig.subscription.seek(A, 3)
            else:
                rig.subscription.found(rig.subscription.wanted(now())[0][0], 3)
            rig.fetcher.poll()
            assert await rig.read(2) == [3, 4]

    run(test)


def test_a_partition_that_was_of_a_group_is_begun_anew_after_its_assignment() -> None:
    """No coordinator assigns the new topic any more."""

    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 3)
        async with Rig(fake) as rig:
            rig.subscription.assign(())
            rig.subscription.add_assigned({A: rig.cluster.view.topic("t").id}, [])
            rig.subscription.found(rig.subscription.wanted(now())[0][0], 1)
            rig.subscription.assign([A])
            assert await rig.read(2) == [1, 2]
            fake.create("t")
            fill(fake, 7)
            async with asyncio.timeout(60):
                assert await rig.read(7) == list(range(7))

    run(test)


def test_a_deleted_topic_is_waited_for_while_the_only_broker_starts() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 1)
        async with Rig(fake) as rig:
            known = rig.cluster.view
            for error in (UnknownTopicError("deleted"), ClusterNotReadyError("just started")):
                noted = TopicInfo(name="t", failure=Failure.of(error))
                rig.cluster.view = rig.cluster.view.merge(
                    MetadataResponse(cluster_id="c", brokers=[], topics=[noted]), asked=["t"]
                )
            rig.subscription.seek(A, 0)
            rig.fetcher.poll()
            rig.cluster.view = known
            assert await rig.read(1) == [0]

    run(test)


def test_a_topic_that_is_deleted_is_told_of() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 1)
        async with Rig(fake) as rig:
            await rig.read(1)
            del fake.topics["t"]
            await asyncio.sleep(2)
            with pytest.raises(UnknownTopicError):
                rig.subscription.next_chunk()

    run(test)


@pytest.mark.parametrize("has_stand_in", [True, False])
def test_copies_get_what_each_leader_had_removed(*, has_stand_in: bool) -> None:
    def answer(below: int) -> Behaviour:
        def behave(peer: Peer, request: Request) -> None:
            part = FetchedPartition(topic="t", partition=0, tombstones_removed_below=below)
            peer.write(peer.state.reply(request, FetchResponse(partitions=[part])))

        return behave

    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fake.next(apis.FETCH, answer(7), answer(9), answer(0))
        async with Rig(fake, has_stand_in=has_stand_in) as rig:
            await asyncio.sleep(1)
            epoch = rig.cluster.view.topic("t").partitions[0].leader_epoch
            taken = rig.fetcher.take_removed_below()
            assert taken == ({} if has_stand_in else {A: {epoch: 9}})
            assert rig.fetcher.take_removed_below() == {}

    run(test)


def test_an_answer_whose_lengths_do_not_add_up_is_refused() -> None:
    def answer(peer: Peer, request: Request) -> None:
        part = FetchedPartition(topic="t", partition=0, length=99)
        peer.write(peer.state.reply(request, FetchResponse(partitions=[part]), [b"short"]))

    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 1)
        fake.next(apis.FETCH, answer)
        async with Rig(fake) as rig:
            await asyncio.sleep(1)
            with pytest.raises(Exception, match="add up"):
                rig.subscription.next_chunk()

    run(test)


def test_seeking_does_not_wait_for_the_fetch_that_is_on_its_way() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 5)
        async with Rig(fake) as rig:
            await rig.read(5)
            await asyncio.sleep(0.01)
            start = now()
            rig.subscription.seek(A, 2)
            rig.fetcher.poll()
            assert await rig.read(3) == [2, 3, 4]
            assert now() - start < 0.1

    run(test)


def test_a_late_answer_from_before_a_seek_is_not_taken_for_lost_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its records may be of a newer epoch than those that are read again."""

    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 5)
        log = fake.topics["t"].logs[0]
        async with Rig(fake) as rig:
            gate = asyncio.Event()
            fake.next(apis.FETCH, hold(gate))
            rig.subscription.seek(A, 5)
            rig.fetcher.poll()
            log.batches.append(stored_batch(5, b"x", leader_epoch=4))
            log.end = 6
            await asyncio.sleep(0.01)
            rig.subscription.seek(A, 0)
            gate.set()
            assert await rig.read(6) == [0, 1, 2, 3, 4, 5]

    run(test)
    assert "records lost" not in caplog.text


def test_many_seeks_at_the_end_do_not_use_up_the_fetches() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 5)
        async with Rig(fake) as rig:
            await rig.read(5)
            start = now()
            for _ in range(20):
                rig.subscription.seek(A, 4)
                rig.fetcher.poll()
                assert await rig.read(1) == [4]
                await asyncio.sleep(0.01)
            assert now() - start < 0.5
            assert max_in_flight(fake) <= limits.FETCHES_OUTSTANDING_MAX

    run(test)


def test_partitions_added_to_a_topic_subscribed_to_are_read() -> None:
    async def test(fake: FakeCluster) -> None:
        topic = fake.create("t")
        async with Rig(fake, auto_offset_reset="latest") as rig:
            rig.subscription.topics = ("t",)
            topic.logs.append(type(topic.logs[0])())
            topic.leaders.append(1)
            fill(fake, 2, partition=1)
            await rig.cluster.refresh()
            assert await rig.read(2) == [0, 1], "from their beginning: they are new"
            assert set(rig.subscription.parts) == {A, B}

    run(test)


def test_nothing_is_fetched_before_the_application_asks_and_after_the_end() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        rig = Rig(fake)
        await rig.cluster.topic("t")
        rig.subscription.assign([A])
        rig.fetcher.poll()
        await asyncio.sleep(1)
        assert not fetches(fake)
        rig.fetcher.activate()
        await asyncio.sleep(0.1)
        await rig.fetcher.close()
        asked = len(fetches(fake))
        rig.fetcher.poll()
        await asyncio.sleep(1)
        assert len(fetches(fake)) == asked
        await rig.cluster.close()

    run(test)


# -- positions -------------------------------------------------------------------------------------
#
# Where to begin: by what is committed, else by the policy. In virtual time.


C = TopicPartition("t", 2)


def wanted(subscription: Subscription) -> list[Wanted]:
    return [
        Wanted(part, part.generation, None)
        for part in subscription.parts.values()
        if part.position is None
    ]


@pytest.mark.parametrize("policy", ["earliest", "latest", "error"])
def test_what_is_committed_comes_first_and_then_the_policy(policy: OffsetReset) -> None:
    async def committed(
        partitions: Sequence[TopicPartition],
    ) -> Mapping[TopicPartition, int | None]:
        return {tp: 3 if tp == A else None for tp in partitions}

    async def test(fake: FakeCluster) -> None:
        fake.create("t", 3)
        for partition in range(3):
            fill(fake, 5, partition=partition)
        subscription = Subscription(consumer_settings(auto_offset_reset=policy), start="committed")
        subscription.assign([A, B])
        subscription.add_assigned({C: "id"}, [C])
        failures = await Positions(cluster_of(fake), subscription, committed).look_up(
            wanted(subscription)
        )
        parts = subscription.parts
        assert (parts[A].position, parts[A].committed) == (3, 3)
        assert (parts[C].position, parts[C].committed) == (0, None), "it is a new one"
        assert parts[B].position == {"earliest": 0, "latest": 5, "error": None}[policy]
        assert [(want.part.tp, type(error)) for want, error in failures] == (
            [(B, OffsetOutOfRangeError)] if policy == "error" else []
        )

    run(test)


@pytest.mark.parametrize("error", [UnknownTopicError("gone"), ThrottledError("later")])
def test_what_cannot_be_asked_for_fails_and_nothing_is_guessed(error: RaftlogError) -> None:
    async def committed(
        _partitions: Sequence[TopicPartition],
    ) -> Mapping[TopicPartition, int | None]:
        raise error

    async def test(fake: FakeCluster) -> None:
        fake.create("t", 3)
        subscription = Subscription(consumer_settings(), start="committed")
        subscription.assign([A, B])
        looked_for = wanted(subscription)
        failures = await Positions(cluster_of(fake), subscription, committed).look_up(looked_for)
        assert failures == [(want, error) for want in looked_for]
        assert {part.position for part in subscription.parts.values()} == {None}
        assert {part.reset for part in subscription.parts.values()} == {"committed"}

    run(test)


def test_one_that_was_moved_meanwhile_stays_where_it_is() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t", 3)
        subscription = Subscription(consumer_settings(), start="committed")
        subscription.assign([A])

        async def committed(
            _partitions: Sequence[TopicPartition],
        ) -> Mapping[TopicPartition, int | None]:
            subscription.seek(A, 9)
            return {A: 3}

        await Positions(cluster_of(fake), subscription, committed).look_up(wanted(subscription))
        assert subscription.parts[A].position == 9

    run(test)


# -- fetcher damage --------------------------------------------------------------------------------
#
# What a fetcher does with damage: of what came, and of what a broker says that it has.


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("damage", ["header", "cut", "length"])
@runs(run)
async def test_good_batches_before_a_bad_one_are_read_first(
    fake: FakeCluster, *, damage: str, times: int
) -> None:
    fake.create("t")
    fill(fake, 2, 2)
    log = fake.topics["t"].logs[0]
    good, bad = log.batches
    broken = {
        "header": bad[:8] + b"\xff" + bad[9:],
        "cut": bad[:-5],
        "length": bad[:4] + b"\xff" + bad[5:],
    }[damage]

    def answer(*batches: bytes) -> Behaviour:
        part = FetchedPartition(topic="t", partition=0, length=sum(map(len, batches)))
        message = FetchResponse(partitions=[part])
        return lambda peer, request: peer.write(peer.state.reply(request, message, batches))

    fake.next(apis.FETCH, answer(good, broken), *[answer(broken)] * (times - 1))
    async with Rig(fake) as rig:
        assert await rig.read(2) == [0, 1]
        if times == 2:
            await asyncio.sleep(0.1)
            with pytest.raises(CorruptBatchError, match="t:0"):
                rig.subscription.next_chunk()
            rig.fetcher.poll()
        assert await rig.read(2) == [2, 3], "it was damaged on its way only"
        asked = [(r.partitions[0].offset, r.partitions[0].doubtful) for r in fetches(fake)]
        assert asked[: times + 1] == [(0, False), *[(2, True)] * times]
        assert not any(doubtful for _, doubtful in asked[times + 1 :])


def replicated(fake: FakeCluster) -> None:
    fake.create("t")
    fill(fake, 1)


@runs(run, brokers=3)
async def test_a_broker_with_a_damaged_copy_is_given_time_to_give_it_up(fake: FakeCluster) -> None:
    replicated(fake)
    fake.next(apis.FETCH, *[failing(DamagedLogError("bad bytes at 0"))] * 4)
    async with Rig(fake) as rig:
        await asyncio.sleep(0.05)
        asked = len(fake.asked(MetadataRequest))
        fake.topics["t"].leaders[0] = 2
        assert await rig.read(1) == [0]
        assert len(fake.asked(MetadataRequest)) > asked, "somebody else may lead"
        assert len(fetches(fake)) < 20


@runs(run, brokers=3)
async def test_damage_that_stays_is_told_in_the_end_and_then_at_once(fake: FakeCluster) -> None:
    replicated(fake)
    fake.next(apis.FETCH, *[failing(DamagedLogError("bad bytes at 0"))] * 1_000)
    async with Rig(fake) as rig:
        for lasts in (DAMAGE_PATIENCE_S, 0.0):
            start = now()
            with pytest.raises(DamagedLogError, match="bad bytes"):
                await rig.read(1)
            assert lasts <= now() - start < lasts + 1.5
            rig.fetcher.poll()
        assert len(fetches(fake)) < 60
        fake._next.clear()
        rig.subscription.seek(A, 0)
        rig.fetcher.poll()
        assert await rig.read(1) == [0]
        assert rig.subscription.part(A).damaged_since is None


@pytest.mark.parametrize(
    ("isolation", "expected"), [("committed", b"bdg"), ("uncommitted", b"abcdefg")]
)
def test_markers_and_aborted_batches_have_no_records(isolation: str, expected: bytes) -> None:
    """Of producer 7: a and c are aborted, e and f again, g is committed. 8 commits b and d."""
    log = open_log(sim_disk(), ONE_SEGMENT)

    def send(producer: int, sequence: int, value: bytes) -> None:
        append(log, value, producer=(producer, 0, sequence), is_transactional=True)

    def end(producer: int, *, commit: bool) -> None:
        marker = Marker(producer, 0, commit, 0, is_bumped=False)
        log.append_marker(marker_batch(marker, now_ms=NOW_MS), leader_epoch=0, now_ms=NOW_MS)

    for producer, sequence, value in ((7, 0, b"a"), (8, 0, b"b"), (7, 1, b"c"), (8, 1, b"d")):
        send(producer, sequence, value)
    end(7, commit=False)
    end(8, commit=True)
    send(7, 2, b"e")
    send(7, 3, b"f")
    end(7, commit=False)
    send(7, 4, b"g")
    end(7, commit=True)
    aborted = [
        AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
        for each in log.producers.transactions.aborted(0, log.log_end_offset)
    ]
    data = memoryview(b"".join(stored(log)))
    batches, error = _batches(data, A, aborted if isolation == "committed" else ())
    assert error is None
    values = [value or b"" for batch in batches for value in decode_lists(batch.data).values]
    assert b"".join(values) == expected
    headers = [check(batch.data) for batch in batches]
    assert [header.base_offset for header in headers] == list(range(log.log_end_offset))
    assert all(verify_chain(b, previous_chain=a.chain) for a, b in pairwise(headers))


@pytest.mark.parametrize("bit", [CONTROL, TRANSACTIONAL | CONTROL | COMMIT])
def test_a_batch_that_turns_into_a_marker_is_corrupt_and_not_skipped(bit: int) -> None:
    log = open_log(sim_disk(), ONE_SEGMENT)
    for sequence, value in enumerate((b"a", b"b", b"c")):
        append(log, value, producer=(7, 0, sequence))
    first = stored(log)[0]
    data = bytearray(b"".join(stored(log)))
    data[len(first) + 44] ^= bit  # attributes: the producer's CRC covers them
    batches, error = _batches(memoryview(data), A)
    assert [batch.data for batch in batches] == [first]
    assert isinstance(error, CorruptBatchError)
    assert "base offset 1: the bytes and their CRC disagree" in str(error)
