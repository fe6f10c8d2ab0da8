"""Batches on their way to scripted brokers, in virtual time: retries, order, limits, giving up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftlog import limits
from raftlog.errors import (
    BrokerUnavailableError,
    ClosedError,
    ConnectionLostError,
    DeliveryTimedOutError,
    DiskFullError,
    InvalidRequestError,
    NotLeaderError,
    OutcomeUnknownError,
    RecordTooLargeError,
    UnknownProducerError,
    UnknownTopicError,
    UnsupportedVersionError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    InitProducerIdRequest,
    MetadataRequest,
    ProduceRequest,
    ProduceResponse,
)
from raftlog.record import Codec, parse_header
from tests.client.sending import Rig, now, offsets, outcome
from tests.client.virtual import START_MS
from tests.client.world import (
    FakeCluster,
    Peer,
    do_and_ignore,
    do_and_vanish,
    hold,
    ignore,
    refuse,
    refuse_partitions,
    run,
    vanish,
)
from tests.running import runs


@runs(run)
async def test_records_arrive_after_lingering(fake: FakeCluster) -> None:
    log = fake.create("t").logs[0]
    async with Rig(fake) as rig:
        start = now()
        futures = [rig.send(b"%d" % number) for number in range(3)]
        assert await offsets(futures) == [0, 1, 2]
        assert 0.004 < now() - start < 0.010
        assert log.values() == [b"0", b"1", b"2"]
        assert (await futures[0]).timestamp_ms >= START_MS
        (request,) = fake.asked(ProduceRequest)
        assert request.acks == -1


@runs(run, brokers=2)
async def test_partitions_share_a_request_and_brokers_do_not(fake: FakeCluster) -> None:
    fake.create("t", 3, leaders=[1, 1, 2])
    fake.create("u", 1, leaders=[1])
    async with Rig(fake) as rig:
        futures = [rig.send(b"x", partition=partition) for partition in range(3)]
        futures.append(rig.send(b"y", "u"))
        assert await offsets(futures) == [0, 0, 0, 0]
        asked = {
            broker: sorted((part.topic, part.partition) for part in message.partitions)
            for broker, message in fake.requests
            if isinstance(message, ProduceRequest)
        }
        assert asked == {1: [("t", 0), ("t", 1), ("u", 0)], 2: [("t", 2)]}


@runs(run)
async def test_five_requests_in_flight_and_the_backlog_in_one_batch(fake: FakeCluster) -> None:
    fake.create("t")
    gate = asyncio.Event()
    fake.next(apis.PRODUCE, *[hold(gate)] * 5)
    async with Rig(fake) as rig:
        futures = await rig.send_batches(*[b"%d" % number for number in range(20)])
        assert len(fake.asked(ProduceRequest)) == 5
        gate.set()
        assert await offsets(futures) == list(range(20))
        assert len(fake.asked(ProduceRequest)) == 6, "while it waited, the batch grew"


@pytest.mark.parametrize(
    "fault", [vanish, do_and_vanish, ignore, do_and_ignore, refuse(DiskFullError("full"))]
)
@runs(run)
async def test_any_passing_fault_stores_every_record_once_and_in_order(
    fake: FakeCluster, *, fault: Any
) -> None:
    log = fake.create("t").logs[0]
    async with Rig(fake) as rig:
        await rig.send(b"before")
        fake.next(apis.PRODUCE, fault)
        futures = await rig.send_batches(b"a", b"b", b"c")
        assert await offsets(futures) == [1, 2, 3]
        assert log.values() == [b"before", b"a", b"b", b"c"]


@runs(run, brokers=2)
async def test_a_leader_that_moved_is_followed(fake: FakeCluster) -> None:
    topic = fake.create("t")
    async with Rig(fake) as rig:
        await rig.send(b"a")
        topic.leaders[0] = 2
        futures = await rig.send_batches(b"b", b"c", b"d")
        assert await offsets(futures) == [1, 2, 3]
        brokers = [
            broker for broker, message in fake.requests if isinstance(message, ProduceRequest)
        ]
        assert brokers[-1] == 2
        assert topic.logs[0].values() == [b"a", b"b", b"c", b"d"]


@runs(run)
async def test_a_partition_without_a_leader_is_waited_for(fake: FakeCluster) -> None:
    topic = fake.create("t", leaders=[None])
    async with Rig(fake) as rig:
        asyncio.get_running_loop().call_later(10, topic.leaders.__setitem__, 0, 1)
        future = rig.send(b"a")
        assert (await future).offset == 0
        assert 10 <= now() - 1_000 < 13
        assert 10 < len(fake.asked(MetadataRequest)) < 60, "it asks again, but not in a hurry"


@runs(run)
async def test_a_broker_that_restarts_loses_nothing(fake: FakeCluster) -> None:
    log = fake.create("t").logs[0]
    async with Rig(fake) as rig:
        await rig.send(b"first")
        fake.kill(1)
        futures = await rig.send_batches(*[b"%d" % number for number in range(30)])
        await asyncio.sleep(60)
        fake.down.clear()
        assert await offsets(futures) == list(range(1, 31))
        assert log.values() == [b"first", *(b"%d" % number for number in range(30))]
        assert len(fake.connects) < 250, "it backs off"


@runs(run)
async def test_what_cannot_be_sent_in_time_says_why(fake: FakeCluster) -> None:
    fake.create("t")
    async with Rig(fake) as rig:
        await rig.send(b"first")
        fake.kill(1)
        start = now()
        error = await outcome(rig.send(b"a"))
        assert type(error) is BrokerUnavailableError
        assert "t:0" in str(error)
        assert "broker-1:9100" in str(error)
        assert 120 <= now() - start < 122
        assert rig.accumulator.bytes_free == rig.settings.buffer_memory


@runs(run)
async def test_what_may_be_stored_when_time_is_over_says_so(fake: FakeCluster) -> None:
    log = fake.create("t").logs[0]
    async with Rig(fake) as rig:
        fake.next(apis.PRODUCE, do_and_ignore, *[ignore] * 9)
        error = await outcome(rig.send(b"a"))
        assert type(error) is DeliveryTimedOutError
        assert "may or may not be stored" in str(error)
        assert log.values() == [b"a"]
        fake._next.clear()
        assert (await rig.send(b"b")).offset == 1, "the next one goes on, in a new epoch"
        assert log.values() == [b"a", b"b"]


@runs(run)
async def test_without_idempotence_an_unknown_outcome_is_never_repeated(fake: FakeCluster) -> None:
    fake.create("t")
    async with Rig(fake, idempotent=False) as rig:
        fake.next(apis.PRODUCE, do_and_vanish)
        assert type(await outcome(rig.send(b"a"))) is ConnectionLostError
        fake.next(apis.PRODUCE, refuse(NotLeaderError("moved")))
        assert (await rig.send(b"b")).offset == 1, "what was not done is"
        assert len(fake.asked(ProduceRequest)) == 3
        assert not fake.asked(InitProducerIdRequest)


@runs(run)
async def test_a_refused_batch_fails_alone(fake: FakeCluster) -> None:
    log = fake.create("t").logs[0]
    async with Rig(fake) as rig:
        fake.next(apis.PRODUCE, refuse_partitions(InvalidRequestError("bad timestamp")))
        futures = await rig.send_batches(b"bad", b"a", b"b")
        outcomes = [await outcome(future) for future in futures]
        assert type(outcomes[0]) is InvalidRequestError
        assert log.values() == [b"a", b"b"]
        headers = [parse_header(batch) for batch in log.batches]
        assert {header.producer_epoch for header in headers} == {1}


@runs(run)
async def test_one_partitions_trouble_is_not_anothers(fake: FakeCluster) -> None:
    topic = fake.create("t", 2)
    async with Rig(fake) as rig:
        produced = refuse_partitions(DiskFullError("full"))
        fake.next(apis.PRODUCE, produced, produced, produced)
        slow = rig.send(b"a", partition=0)
        await asyncio.sleep(0.01)
        quick = rig.send(b"b", partition=1)
        fake._next.clear()
        assert (await quick).offset == 0
        assert (await slow).offset == 0
        assert topic.logs[0].values() == [b"a"]


@runs(run)
async def test_a_broker_that_lost_what_it_acknowledged_is_told_of(fake: FakeCluster) -> None:
    log = fake.create("t").logs[0]
    async with Rig(fake) as rig:
        await rig.send(b"a")
        log.batches.clear()
        log.end = 0
        log.producers = type(log.producers)()
        assert type(await outcome(rig.send(b"b"))) is UnknownProducerError
        assert (await rig.send(b"c")).offset == 0


@runs(run)
async def test_a_topic_that_is_deleted_fails_what_waits_for_it(fake: FakeCluster) -> None:
    fake.create("t")
    async with Rig(fake) as rig:
        await rig.send(b"a")
        del fake.topics["t"]
        for future in [rig.send(b"b"), rig.send(b"c")]:
            assert type(await outcome(future)) is UnknownTopicError
        assert "t" not in rig.accumulator.topics


@runs(run)
async def test_a_topic_that_is_deleted_while_its_records_wait(fake: FakeCluster) -> None:
    fake.create("t", leaders=[None])
    async with Rig(fake) as rig:
        future = rig.send(b"a")
        await asyncio.sleep(0.1)
        del fake.topics["t"]
        assert type(await outcome(future)) is UnknownTopicError
        assert now() < 1_003


@runs(run)
async def test_a_topic_that_is_deleted_after_an_attempt_without_an_answer(
    fake: FakeCluster,
) -> None:
    """The batch was stored: to say that it was refused would be a lie."""
    fake.create("t")
    async with Rig(fake) as rig:

        def store_vanish_and_delete(peer: Peer, request: Request) -> None:
            do_and_vanish(peer, request)
            del fake.topics["t"]

        fake.next(apis.PRODUCE, store_vanish_and_delete)
        error = await outcome(rig.send(b"a"))
        assert type(error) is OutcomeUnknownError
        assert "may have been stored" in str(error)


@runs(run)
async def test_a_topic_made_anew_is_written_from_its_beginning(fake: FakeCluster) -> None:
    fake.create("t")
    async with Rig(fake) as rig:
        await rig.send(b"a")
        log = fake.create("t").logs[0]
        fake.topics["t"].id = "another"
        await rig.cluster.refresh()
        assert (await rig.send(b"b")).offset == 0
        assert log.values() == [b"b"]


@runs(run)
async def test_records_that_reach_a_topic_made_anew_before_its_metadata(fake: FakeCluster) -> None:
    """The broker says which topic does not know the producer: they get new sequence numbers."""
    fake.create("t")
    async with Rig(fake) as rig:
        await rig.send(b"a")
        log = fake.create("t").logs[0]
        fake.topics["t"].id = "another"
        assert await offsets([rig.send(b"b"), rig.send(b"c")]) == [0, 1]
        await rig.cluster.refresh()
        assert (await rig.send(b"d")).offset == 2
        assert log.values() == [b"b", b"c", b"d"]


@runs(run)
async def test_a_topic_that_was_given_up_and_came_back_has_one_sequence(fake: FakeCluster) -> None:
    """Of what was on its way then, and of what is sent from now on: else one is taken for the
    other, and acknowledged though it is nowhere."""
    log = fake.create("t").logs[0]
    async with Rig(fake) as rig:
        before = rig.send(b"a")
        rig.accumulator.forget("t")  # as for another partition of it that is gone
        await rig.topic("t")
        after = rig.send(b"b")
        assert await offsets([before, after]) == [0, 1]
        assert log.values() == [b"a", b"b"]


@pytest.mark.parametrize("is_forgotten", [True, False])
@runs(run)
async def test_a_topic_made_anew_begins_a_new_sequence(
    fake: FakeCluster, *, is_forgotten: bool
) -> None:
    fake.create("t", 2)
    async with Rig(fake) as rig:
        assert await offsets([rig.send(b"a"), rig.send(b"b", partition=1)]) == [0, 0]
        log = fake.create("t").logs[0]
        fake.topics["t"].id = "another"
        if is_forgotten:
            rig.accumulator.forget("t")
        await rig.cluster.refresh()
        await rig.topic("t")
        futures = await rig.send_batches(b"c", b"d")
        assert await offsets(futures) == [0, 1]
        assert log.values() == [b"c", b"d"]
        assert {parse_header(batch).producer_epoch for batch in log.batches} == {1}


@runs(run)
async def test_a_batch_over_the_topics_limit_is_refused_before_it_is_sent(
    fake: FakeCluster,
) -> None:
    fake.create("t", max_message_bytes=1_100)
    async with Rig(fake) as rig:
        error = await outcome(rig.send(b"x" * 1_050))  # fits but for the batch's header
        assert type(error) is RecordTooLargeError
        assert "max.message.bytes=1100" in str(error)
        assert (await rig.send(b"x" * 900)).offset == 0
        assert len(fake.asked(ProduceRequest)) == 1


@runs(run)
async def test_a_record_that_compresses_to_fit_is_sent(fake: FakeCluster) -> None:
    log = fake.create("t", max_message_bytes=1_100).logs[0]
    async with Rig(fake, codec=Codec.ZSTD) as rig:
        assert (await rig.send(b"x" * 100_000)).offset == 0
        assert len(log.batches[0]) < 1_100
        assert log.values() == [b"x" * 100_000]


@runs(run)
async def test_a_request_is_bounded(fake: FakeCluster) -> None:
    fake.create("t", 4, max_message_bytes=limits.BATCH_BYTES_MAX)
    async with Rig(
        fake,
        batch_bytes_max=limits.PRODUCER_BATCH_BYTES_MAX,
        buffer_memory=64 * limits.MIB,
    ) as rig:
        large = b"x" * (limits.PRODUCER_BATCH_BYTES_MAX - 1_000)
        futures = [rig.send(large, partition=partition) for partition in range(4)]
        assert await offsets(futures) == [0] * 4
        sizes = [
            sum(part.length for part in request.partitions)
            for request in fake.asked(ProduceRequest)
        ]
        assert len(sizes) == 2
        assert max(sizes) <= limits.PRODUCE_REQUEST_BYTES_MAX


@pytest.mark.parametrize("acks", [1, 0])
@runs(run)
async def test_other_acks(fake: FakeCluster, *, acks: int) -> None:
    log = fake.create("t").logs[0]
    async with Rig(fake, acks=acks, idempotent=False) as rig:
        futures = await rig.send_batches(b"a", b"b")
        assert await offsets(futures) == ([0, 1] if acks else [-1, -1])
        await asyncio.sleep(0.01)
        assert log.values() == [b"a", b"b"]
        assert {request.acks for request in fake.asked(ProduceRequest)} == {acks}


@runs(run)
async def test_without_acks_a_full_connection_is_waited_for(fake: FakeCluster) -> None:
    fake.create("t")
    async with Rig(fake, acks=0, idempotent=False) as rig:
        await rig.send(b"a")
        (peer,) = fake.peers
        peer.transport.pause_reading()
        futures = []
        for _ in range(10):
            futures.append(rig.send(b"x" * 500_000))
            await asyncio.sleep(5)
        assert futures[0].done()
        assert not futures[-1].done()
        peer.transport.resume_reading()
        assert await offsets(futures) == [-1] * 10


@runs(run)
async def test_no_producer_id_no_records(fake: FakeCluster) -> None:
    fake.create("t")
    fake.api_ranges[apis.INIT_PRODUCER_ID.number] = (8, 9)
    async with Rig(fake) as rig:
        assert type(await outcome(rig.send(b"a"))) is UnsupportedVersionError
        assert not fake.asked(ProduceRequest)


@runs(run)
async def test_an_answer_that_leaves_a_partition_out_is_no_answer(fake: FakeCluster) -> None:
    log = fake.create("t").logs[0]
    async with Rig(fake) as rig:
        fake.next(
            apis.PRODUCE,
            lambda peer, request: peer.write(
                peer.state.reply(request, ProduceResponse(partitions=[]))
            ),
        )
        assert (await rig.send(b"a")).offset == 0
        assert log.values() == [b"a"]


@runs(run)
async def test_an_idle_sender_sleeps(fake: FakeCluster) -> None:
    fake.create("t")
    async with Rig(fake) as rig:
        await rig.send(b"a")
        await asyncio.sleep(0.05)
        assert rig.sender._timer is None
        assert not asyncio.all_tasks() - {asyncio.current_task()}


@runs(run)
async def test_closing_fails_what_is_left_by_what_is_known_of_it(fake: FakeCluster) -> None:
    fake.create("t", 2, leaders=[1, None])
    async with Rig(fake) as rig:
        fake.next(apis.PRODUCE, ignore)
        flying = rig.send(b"a", partition=0)
        waiting = rig.send(b"b", partition=1)
        await asyncio.sleep(1)
        await rig.sender.close()
        assert type(await outcome(flying)) is ConnectionLostError
        assert type(await outcome(waiting)) is ClosedError
        assert rig.accumulator.bytes_free == rig.settings.buffer_memory
        rig.sender.pump()
