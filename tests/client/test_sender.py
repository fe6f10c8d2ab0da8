"""Batches on their way to scripted brokers, in virtual time: retries, order, limits, giving up."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.client.accumulator import PartitionQueue, PendingBatch, ProducerIdAndEpoch, Run
from raftlog.client.sender import (
    CORRUPT_TRIES_MAX,
    EPOCH_MAX,
    SEQUENCE_MASK,
    InFlightBatches,
    expired,
    stranded,
)
from raftlog.errors import (
    BrokerUnavailableError,
    ClosedError,
    ConnectionLostError,
    CorruptBatchError,
    DeliveryTimedOutError,
    DiskFullError,
    InvalidRequestError,
    NotLeaderError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    RaftlogError,
    RecordTooLargeError,
    RequestTimedOutError,
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
    FakeLog,
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
async def test_an_answer_from_before_a_topic_was_made_anew_refuses_no_record(
    fake: FakeCluster,
) -> None:
    fake.create("t")
    async with Rig(fake) as rig:
        await rig.send(b"a")
        del fake.topics["t"]
        await rig.cluster.refresh()
        log = fake.create("t").logs[0]
        fake.topics["t"].id = "another"
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


# -- in flight -------------------------------------------------------------------------------------
#
# One partition's batches in flight: what is repeated, what is lost, and under which sequence.


PRODUCER = ProducerIdAndEpoch(7, 0)
QUEUE = PartitionQueue("t", 0)
GAP = OutOfOrderSequenceError("gap")
LOST = ConnectionLostError("lost")
MOVED = NotLeaderError("moved")
DAMAGED = CorruptBatchError("the bytes and their CRC disagree")
TOO_LARGE = RecordTooLargeError("too large")


def batch(*values: bytes, expires_at: float = 100.0) -> PendingBatch:
    pending = PendingBatch(QUEUE, due_at=0.0, expires_at=expires_at)
    pending.extend(Run(list(values) or [b"v"], None, None, 1, 0))
    return pending


def launch(
    flight: InFlightBatches, *batches: PendingBatch, producer: ProducerIdAndEpoch | None = PRODUCER
) -> None:
    for pending in batches:
        assert flight.may_launch(pending, producer=producer)
        flight.launch(pending, pending.encode(Codec.NONE, None))


def bytes_of(pending: PendingBatch) -> bytes:
    return pending.header + pending.encode(Codec.NONE, None).payload


def place(pending: PendingBatch) -> tuple[int, int, int]:
    header = parse_header(bytes_of(pending))
    return header.producer_id, header.producer_epoch, header.base_sequence


def test_sequences_count_records() -> None:
    flight = InFlightBatches(idempotent=True)
    batches = [batch(b"1", b"2"), batch(b"3"), batch(b"4")]
    launch(flight, *batches)
    assert [place(pending) for pending in batches] == [(7, 0, 0), (7, 0, 2), (7, 0, 3)]


def test_sequences_wrap_as_in_kafka() -> None:
    flight = InFlightBatches(idempotent=True)
    launch(flight, batch())
    flight._next_sequence = SEQUENCE_MASK - 1
    over, after = batch(b"1", b"2", b"3"), batch()
    launch(flight, over, after)
    assert place(over)[2] == (1 << 31) - 2
    assert place(after)[2] == 1


def test_without_idempotence_there_is_no_sequence() -> None:
    flight = InFlightBatches(idempotent=False)
    pending = batch()
    launch(flight, pending, producer=None)
    assert place(pending) == (-1, -1, -1)


def test_nothing_is_launched_before_there_is_a_producer_id() -> None:
    flight = InFlightBatches(idempotent=True)
    assert not flight.may_launch(batch(), producer=None)
    assert flight.wants_other_than(None)
    assert not flight.wants_other_than(PRODUCER)


def test_no_more_in_flight_than_the_broker_remembers() -> None:
    flight = InFlightBatches(idempotent=True)
    batches = [batch() for _ in range(7)]
    for pending in batches[:5]:
        assert not flight.full_for(pending)
        launch(flight, pending)
    assert flight.full_for(batches[5])
    for pending in batches[1:5]:
        flight.succeeded(pending)
    assert flight.full_for(batches[5]), "the broker must not forget the first, which may come again"
    flight.setback(batches[0], LOST)
    launch(flight, *flight.resolve(0.0).again)
    assert flight.full_for(batches[5])
    flight.succeeded(batches[0])
    launch(flight, *batches[5:])


@pytest.mark.parametrize("error", [MOVED, LOST, RequestTimedOutError("late")])
def test_a_passing_failure_repeats_the_same_bytes_in_order(error: RaftlogError) -> None:
    flight = InFlightBatches(idempotent=True)
    batches = [batch(b"1"), batch(b"2"), batch(b"3")]
    launch(flight, *batches)
    before = [bytes_of(pending) for pending in batches]
    flight.setback(batches[0], error)
    assert flight.held
    flight.setback(batches[2], LOST)
    flight.succeeded(batches[1])
    again, lost = flight.resolve(0.0)
    assert (again, lost) == ([batches[0], batches[2]], [])
    assert not flight.held
    launch(flight, *again)
    assert [bytes_of(pending) for pending in again] == [before[0], before[2]]


def test_an_unknown_outcome_is_final_without_a_sequence() -> None:
    flight = InFlightBatches(idempotent=False)
    first, second = batch(), batch()
    launch(flight, first, second)
    flight.setback(first, LOST)
    flight.setback(second, MOVED)
    again, lost = flight.resolve(0.0)
    assert again == [second]
    assert lost == [(first, LOST)]


def test_what_follows_a_refused_batch_gets_a_new_place() -> None:
    flight = InFlightBatches(idempotent=True)
    bad, second, third = batch(), batch(b"2"), batch(b"3")
    launch(flight, bad, second, third)
    flight.setback(bad, TOO_LARGE)
    flight.setback(second, GAP)
    flight.setback(third, GAP)
    again, lost = flight.resolve(0.0)
    assert lost == [(bad, TOO_LARGE)]
    assert again == [second, third]
    launch(flight, *again)
    assert [place(pending) for pending in again] == [(7, 1, 0), (7, 1, 1)]


def test_what_may_be_stored_is_tried_under_its_old_place_first() -> None:
    flight = InFlightBatches(idempotent=True)
    bad, unknown, fresh = batch(), batch(b"2"), batch(b"3")
    launch(flight, bad, unknown)
    flight.setback(bad, TOO_LARGE)
    flight.setback(unknown, LOST)
    again, _ = flight.resolve(0.0)
    assert again == [unknown]
    launch(flight, unknown)
    assert place(unknown) == (7, 0, 1), "an attempt without an answer may have stored it"
    assert not flight.may_launch(fresh, producer=PRODUCER), "first that has to be settled"
    flight.setback(unknown, GAP)
    again, ((lost, error),) = flight.resolve(0.0)
    assert (again, lost) == ([], unknown)
    assert type(error) is OutcomeUnknownError, "another leader's log may have it, and come back"
    launch(flight, fresh)
    assert place(fresh) == (7, 1, 0)


def test_what_may_be_stored_gets_no_other_place() -> None:
    flight = InFlightBatches(idempotent=True)
    bad, refused, unknown = batch(), batch(b"2"), batch(b"3")
    launch(flight, bad, refused, unknown)
    flight.setback(bad, TOO_LARGE)
    flight.setback(refused, GAP)
    flight.setback(unknown, LOST)
    again, lost = flight.resolve(0.0)
    assert again == [refused], "it is in no log: refused it was, and that was its only attempt"
    assert [(pending, type(error)) for pending, error in lost] == [
        (bad, RecordTooLargeError),
        (unknown, OutcomeUnknownError),
    ]
    launch(flight, refused)
    assert place(refused) == (7, 1, 0)


def test_what_waits_its_turn_and_may_be_stored_is_stranded_by_a_new_sequence() -> None:
    flight = InFlightBatches(idempotent=True)
    bad, second, third = batch(), batch(b"2"), batch(b"3")
    launch(flight, bad, second, third)
    flight.setback(bad, TOO_LARGE)
    flight.setback(second, MOVED)
    flight.setback(third, LOST)
    assert flight.resolve(0.0).again == [second, third]
    launch(flight, second)  # the third has no room in the request
    flight.setback(second, GAP)
    assert flight.resolve(0.0).again == [second]
    assert flight.is_stranded(third)
    assert not flight.is_stranded(second)
    assert "twice" in str(stranded(third))


def test_what_is_in_flight_to_one_leader_keeps_the_rest_from_another() -> None:
    flight = InFlightBatches(idempotent=True)
    flight.sent_to(1, 3)
    launch(flight, first := batch())
    assert first.leader_epoch == 3
    assert not flight.must_stay(1, 3)
    assert flight.must_stay(2, 4)
    assert flight.must_stay(1, 4), "the same broker, elected anew"
    flight.setback(first, LOST)
    assert not flight.must_stay(2, 4)


def test_a_new_leader_is_not_kept_waiting() -> None:
    flight = InFlightBatches(idempotent=True)
    flight.sent_to(1, 3)
    launch(flight, first := batch())
    flight.setback(first, MOVED)
    flight.resolve(0.0)
    flight.not_before = 7.0
    assert flight.waits_until(3) == 7.0
    assert flight.waits_until(4) == 0.0
    flight.sent_to(2, 4)
    assert flight.waits_until(4) == 7.0, "once"


def test_a_new_epoch_begins_when_nothing_of_the_old_one_is_left() -> None:
    flight = InFlightBatches(idempotent=True)
    bad, follower, fresh = batch(), batch(b"2"), batch(b"3")
    launch(flight, bad, follower)
    flight.setback(bad, RequestTimedOutError("late"))
    bad.expires_at = 0.0
    flight.succeeded(follower)
    _, ((_, error),) = flight.resolve(1.0)
    assert isinstance(error, DeliveryTimedOutError)
    launch(flight, fresh)
    assert place(fresh) == (7, 1, 0)


def test_a_gap_that_is_not_ours_is_told() -> None:
    flight = InFlightBatches(idempotent=True)
    launch(flight, first := batch())
    flight.succeeded(first)
    launch(flight, second := batch(), third := batch())
    flight.setback(second, GAP)
    flight.setback(third, GAP)
    again, lost = flight.resolve(0.0)
    assert lost == [(second, GAP)], "the broker lost what it had acknowledged"
    assert again == [third]
    launch(flight, third)
    assert place(third) == (7, 1, 0)


def test_a_batch_lost_while_it_waited_spends_its_place() -> None:
    flight = InFlightBatches(idempotent=True)
    launch(flight, first := batch())
    flight.setback(first, MOVED)
    flight.resolve(0.0)
    flight.lose(first, MOVED)
    launch(flight, second := batch())
    assert place(second) == (7, 1, 0)
    flight.lose(batch(), MOVED)  # one that was never launched leaves no hole
    assert not flight.spent


def test_another_topic_of_the_same_name_begins_anew() -> None:
    flight = InFlightBatches(idempotent=True)
    flight.begin_anew()
    launch(flight, first := batch())
    assert place(first) == (7, 0, 0)
    flight.succeeded(first)
    flight.begin_anew()
    launch(flight, second := batch())
    assert place(second) == (7, 1, 0)


def test_when_all_epochs_are_used_up_another_producer_id_is_taken() -> None:
    flight = InFlightBatches(idempotent=True)
    launch(flight, first := batch(), producer=ProducerIdAndEpoch(7, EPOCH_MAX))
    flight.setback(first, TOO_LARGE)
    flight.resolve(0.0)
    second = batch()
    assert not flight.may_launch(second, producer=PRODUCER)
    assert flight.wants_other_than(PRODUCER)
    launch(flight, second, producer=ProducerIdAndEpoch(8, 0))
    assert place(second) == (8, 0, 0)


@runs(run)
async def test_a_batch_after_one_that_is_too_large_does_not_wait(fake: FakeCluster) -> None:
    """There may be no other event until the metadata is requested again."""
    fake.create("t")
    gate = asyncio.Event()
    fake.next(apis.INIT_PRODUCER_ID, hold(gate))
    async with Rig(fake) as rig:
        largest = rig.accumulator.topics["t"].max_message_bytes
        too_large, small = rig.send(bytes(largest)), rig.send(b"after")
        await asyncio.sleep(0.5)
        gate.set()
        assert type(await outcome(too_large)) is RecordTooLargeError
        failed_at = now()
        assert (await small).offset == 0
        assert now() - failed_at < 0.1


@runs(run)
async def test_after_the_last_epoch_the_sender_requests_another_producer_id(
    fake: FakeCluster,
) -> None:
    log = fake.create("t").logs[0]
    async with Rig(fake) as rig:
        await asyncio.sleep(1)  # until it has its first one
        rig.sender._producer = ProducerIdAndEpoch(7, EPOCH_MAX)
        fake.next(apis.PRODUCE, refuse_partitions(TOO_LARGE))
        assert type(await outcome(rig.send(b"a"))) is type(TOO_LARGE)
        requested = len(fake.asked(InitProducerIdRequest))
        assert (await rig.send(b"b")).offset == 0
        assert len(fake.asked(InitProducerIdRequest)) == requested + 1
        assert log.values() == [b"b"]


@pytest.mark.parametrize(
    ("error", "unknown", "expected"),
    [
        (None, False, BrokerUnavailableError),
        (MOVED, False, NotLeaderError),
        (LOST, True, DeliveryTimedOutError),
        (MOVED, True, DeliveryTimedOutError),
        (DAMAGED, False, CorruptBatchError),
    ],
)
def test_the_error_of_an_expired_batch_says_whether_it_may_be_stored(
    error: RaftlogError | None, unknown: bool, expected: type[RaftlogError]
) -> None:
    pending = batch()
    pending.error, pending.outcome_unknown = error, unknown
    found = expired(pending)
    assert type(found) is expected
    assert "delivery_timeout_ms" in str(found)
    assert ("may or may not be stored" in str(found)) == unknown


def test_a_refusal_after_an_attempt_without_an_answer_leaves_the_outcome_unknown() -> None:
    flight = InFlightBatches(idempotent=True)
    launch(flight, pending := batch())
    flight.setback(pending, LOST)
    launch(flight, *flight.resolve(0.0).again)
    flight.setback(pending, TOO_LARGE)
    ((_, error),) = flight.resolve(0.0).lost
    assert type(error) is OutcomeUnknownError
    assert "too large" in str(error)


def test_a_batch_that_came_damaged_is_sent_again_a_few_times() -> None:
    flight = InFlightBatches(idempotent=True)
    launch(flight, pending := batch())
    for _ in range(CORRUPT_TRIES_MAX):
        flight.setback(pending, DAMAGED)
        assert flight.resolve(0.0).again == [pending]
        flight.failures += 1  # as the sender does
        launch(flight, pending)
    flight.setback(pending, DAMAGED)
    ((_, error),) = flight.resolve(0.0).lost
    assert error is DAMAGED, "it is not the way that damages it"


def test_passing_failures_end_with_the_delivery_timeout() -> None:
    flight = InFlightBatches(idempotent=True)
    launch(flight, pending := batch(expires_at=10.0))
    flight.setback(pending, MOVED)
    assert flight.resolve(9.9).again == [pending]
    launch(flight, pending)
    flight.setback(pending, MOVED)
    ((lost, error),) = flight.resolve(10.0).lost
    assert lost is pending
    assert isinstance(error, NotLeaderError)


# Each fate of an attempt, as the broker and the network decide it.
FATES = ("answered", "answer lost", "request lost", "moved", "refused")


@given(st.integers(0, 10_000), st.integers(1, 12))
def test_whatever_happens_nothing_is_stored_twice_or_out_of_order(seed: int, count: int) -> None:
    """A broker with strict sequences, a network that loses, batches that may be refused."""
    chance = random.Random(seed)
    flight, log, now = InFlightBatches(idempotent=True), FakeLog(), 0.0
    waiting = [
        batch(b"%d" % number, expires_at=chance.choice([5.0, 1e9])) for number in range(count)
    ]
    numbers = {id(pending): number for number, pending in enumerate(waiting)}
    acknowledged: list[int] = []
    failed: list[tuple[int, RaftlogError]] = []
    while waiting or flight.in_flight:
        now += 1.0
        while waiting and not flight.held and chance.random() < 0.8:
            if flight.is_stranded(waiting[0]):
                pending = waiting.pop(0)
                failed.append((numbers[id(pending)], stranded(pending)))
                continue
            if flight.full_for(waiting[0]) or not flight.may_launch(waiting[0], producer=PRODUCER):
                break
            launch(flight, waiting.pop(0))
        for pending in list(flight.in_flight):  # answers come in the order of the requests
            fate = chance.choice(FATES)
            outcome: RaftlogError | None = {
                "answered": None,
                "answer lost": LOST,
                "request lost": LOST,
                "moved": MOVED,
                "refused": InvalidRequestError("bad record") if chance.random() < 0.3 else None,
            }[fate]
            stored = fate == "answer lost" or outcome is None
            if stored:
                try:
                    log.append(bytes_of(pending))
                except RaftlogError as error:
                    outcome = outcome or error
            if outcome is None:
                flight.succeeded(pending)
                acknowledged.append(numbers[id(pending)])
            else:
                flight.setback(pending, outcome)
        if flight.setbacks:
            again, lost = flight.resolve(now)
            waiting[:0] = again
            failed += [(numbers[id(pending)], error) for pending, error in lost]
    stored_numbers = [int(value or b"") for value in log.values()]
    assert stored_numbers == sorted(set(stored_numbers)), "once each, and in order"
    assert set(acknowledged) <= set(stored_numbers), "what is acknowledged is stored"
    assert sorted([*acknowledged, *(number for number, _ in failed)]) == list(range(count))
    for number, error in failed:
        if not isinstance(error, OutcomeUnknownError):
            assert number not in stored_numbers, f"{error!r} says that it is not stored"
