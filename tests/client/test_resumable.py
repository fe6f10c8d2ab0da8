"""Producers with a name: what runs of one name store together, whoever else runs at the time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import raftlog
from raftlog import limits
from raftlog.client.base import ClientEnvironment
from raftlog.client.delivery import DeliveryFuture
from raftlog.client.resumable import RECORDS_MAX, ResumableProducer, producer_id_of
from raftlog.embedded import ADDRESS
from raftlog.errors import (
    ClosedError,
    InvalidRequestError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RaftlogError,
    RecordTooLargeError,
    ThrottledError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    DescribedProducer,
    DescribedProducers,
    DescribeProducersResponse,
    InitProducerIdRequest,
    ProduceRequest,
)
from raftlog.record import parse_header, seal
from raftlog.security.producer_ids import MEMBERS, NAMED_ID_BASE
from raftlog.types import TopicPartition
from tests.client.named import ID, NAME, TP, body, describe
from tests.client.world import FakeCluster, answer_with, hold

TIMEOUT_S = 20
FIVE = [b"%d" % number for number in range(5)]


@pytest.fixture
def fake() -> FakeCluster:
    made = FakeCluster()
    made.create("t", 2)
    made.always[apis.DESCRIBE_PRODUCERS] = describe
    return made


def producer_of(fake: FakeCluster, **settings: Any) -> ResumableProducer:
    settings = {"name": NAME, **settings}
    return ResumableProducer(
        fake.bootstrap, host=ClientEnvironment(connector=fake.connect), **settings
    )


def append_all(
    producer: ResumableProducer, values: Sequence[bytes], *, size: int, tp: TopicPartition = TP
) -> list[DeliveryFuture]:
    """What a run does: leave out what is stored, and append the rest, ``size`` at a time."""
    start = producer.stored([tp])[tp]
    return [
        producer.append(tp, body(*values[first : first + size]))
        for first in range(start, len(values), size)
    ]


def error_of(future: DeliveryFuture) -> RaftlogError:
    error = future.exception(TIMEOUT_S)
    assert error is not None
    return error


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a", 7405662395035962911),
        ("copy of yesterday", 8699585064859979990),
        ("spark:Zürich:0", 6808707585895792655),
    ],
)
def test_a_name_has_the_same_id_in_every_release(name: str, expected: int) -> None:
    """Another one, and work that was half done before an upgrade would be done twice."""
    assert producer_id_of(name) == expected


def test_ids_of_names_are_those_that_no_broker_hands_out() -> None:
    ids = {producer_id_of(f"name {number}") for number in range(5_000)}
    assert len(ids) == 5_000
    assert all(NAMED_ID_BASE <= one < 1 << 63 for one in ids)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"name": ""}, InvalidRequestError, "requires a name"),
        ({"name": b"x"}, TypeError, "name=b'x' is not a str"),
        ({"name": "\ud800"}, InvalidRequestError, "UTF-8"),
        ({"member": 1 << 20}, InvalidRequestError, "member=1048576 is not from 0 to 1048575"),
        ({"epoch": -1}, InvalidRequestError, "epoch=-1 is not from 0 to 32767"),
        ({"epoch": 32_768}, InvalidRequestError, "epoch=32768"),
        ({"epoch": "1"}, TypeError, "epoch='1'"),
        ({"buffer_memory": 10}, InvalidRequestError, "buffer_memory=10"),
        ({"request_timeout_ms": 0}, InvalidRequestError, "request_timeout_ms=0"),
        ({"delivery_timeout_ms": 10}, InvalidRequestError, "delivery_timeout_ms=10"),
    ],
)
def test_settings_that_are_wrong_are_named(
    settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        ResumableProducer("a:1", **{"name": NAME, **settings})
    assert words in str(caught.value)


# -- runs ------------------------------------------------------------------------------------------


def test_a_second_run_appends_what_the_first_has_not(fake: FakeCluster) -> None:
    values = [b"%d" % number for number in range(100)]
    log = fake.topics["t"].logs[0]
    with producer_of(fake) as producer:
        futures = append_all(producer, values[:37], size=5)
        producer.flush(TIMEOUT_S)
        assert [future.result(0).offset for future in futures] == list(range(0, 37, 5))
    with producer_of(fake) as producer:
        assert producer.extent(TP) is None, "nothing was asked"
        assert producer.stored([TP, TopicPartition("t", 1)]) == {TP: 37, TopicPartition("t", 1): 0}
        assert producer.extent(TP) == (0, 37)
        assert producer.extent(TopicPartition("t", 1)) is None
        assert producer.identity == (ID, 0)
        append_all(producer, values, size=7)
        producer.flush(TIMEOUT_S)
        assert producer.stored([TP]) == {TP: 100}, "it may be asked at any time"
        assert append_all(producer, values, size=9) == []
    assert log.values() == values
    assert {parse_header(batch).producer_id for batch in log.batches} == {ID}
    assert not fake.asked(InitProducerIdRequest), "its id is its own"


def test_each_partition_has_a_sequence_of_its_own(fake: FakeCluster) -> None:
    with producer_of(fake) as producer:
        append_all(producer, FIVE, size=2)
        append_all(producer, FIVE[:3], size=1, tp=TopicPartition("t", 1))
    with producer_of(fake) as producer:
        assert list(producer.stored(TopicPartition("t", n) for n in range(2)).values()) == [5, 3]


def test_a_later_epoch_counts_anew_and_ends_the_earlier_ones(fake: FakeCluster) -> None:
    with producer_of(fake) as old, producer_of(fake, epoch=3) as new:
        append_all(old, FIVE, size=2)
        old.flush(TIMEOUT_S)
        append_all(new, [b"x", b"y"], size=1)
        new.flush(TIMEOUT_S)
        assert isinstance(error_of(old.append(TP, body(b"late"))), ProducerFencedError)
        assert new.stored([TP]) == {TP: 2}
    with (
        producer_of(fake, epoch=2) as late,
        pytest.raises(
            ProducerFencedError,
            match=r"epoch 3 of producer 'copy of yesterday' has written, .* epoch 2",
        ),
    ):
        late.stored([TP])
    assert fake.topics["t"].logs[0].values() == [*FIVE, b"x", b"y"]


def test_of_two_runs_at_once_one_fails_and_says_why(fake: FakeCluster) -> None:
    with producer_of(fake) as one, producer_of(fake) as other:
        assert other.stored([TP]) == {TP: 0}
        append_all(one, FIVE, size=5)
        one.flush(TIMEOUT_S)
        failed, later = other.append(TP, body(*FIVE[:3])), other.append(TP, body(*FIVE[3:]))
        for future in (failed, later):
            error = error_of(future)
            assert isinstance(error, OutOfOrderSequenceError)
            assert "another run of the same name has appended" in str(error)
        assert isinstance(error_of(other.append(TP, body(b"5"))), OutOfOrderSequenceError)
        assert one.append(TP, body(b"5")).result(TIMEOUT_S).offset == 5
    assert fake.topics["t"].logs[0].values() == [*FIVE, b"5"]


def test_two_runs_in_the_same_batches_are_one(fake: FakeCluster) -> None:
    with producer_of(fake) as one, producer_of(fake) as other:
        starts = [producer.stored([TP])[TP] for producer in (one, other)]
        assert starts == [0, 0]
        for value in FIVE:
            offsets = [
                producer.append(TP, body(value)).result(TIMEOUT_S).offset
                for producer in (one, other)
            ]
            assert offsets[0] == offsets[1]
    assert fake.topics["t"].logs[0].values() == FIVE


def test_another_batch_in_the_same_place_is_refused_and_not_taken_for_a_repeat(
    fake: FakeCluster,
) -> None:
    with producer_of(fake) as one, producer_of(fake) as other:
        assert one.stored([TP]) == other.stored([TP]) == {TP: 0}
        assert one.append(TP, body(b"a", b"b")).result(TIMEOUT_S).offset == 0
        error = error_of(other.append(TP, body(b"c", b"d")))
        assert isinstance(error, OutOfOrderSequenceError)
    assert fake.topics["t"].logs[0].values() == [b"a", b"b"]


def test_one_batch_of_a_partition_is_in_flight_at_a_time(fake: FakeCluster) -> None:
    """A second one could follow another run's first one, and repeat a record that is in that."""
    gate = asyncio.Event()
    fake.next(apis.PRODUCE, hold(gate))
    with producer_of(fake) as producer:
        producer.stored([TP])
        futures = [producer.append(TP, body(value)) for value in FIVE]
        while not fake.asked(ProduceRequest):
            producer.stored([TP])
        producer.stored([TP])
        assert len(fake.asked(ProduceRequest)) == 1
        producer._thread.schedule(gate.set)
        assert [future.result(TIMEOUT_S).offset for future in futures] == list(range(5))
    assert len(fake.asked(ProduceRequest)) == 5


def test_an_answer_that_is_late_moves_nothing(fake: FakeCluster) -> None:
    old = DescribedProducers("t", 0, producers=[DescribedProducer(ID)])
    with producer_of(fake) as producer:
        producer.stored([TP])
        producer.append(TP, body(b"a")).result(TIMEOUT_S)
        fake.next(apis.DESCRIBE_PRODUCERS, answer_with(DescribeProducersResponse(partitions=[old])))
        assert producer.stored([TP]) == {TP: 0}
        assert producer.append(TP, body(b"b")).result(TIMEOUT_S).offset == 1


def test_it_is_the_same_inside_the_program(tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(1_000)]
    for size, count in ((7, 600), (100, 1_000)):
        with raftlog.open(tmp_path) as log:
            log.create_topic("t", if_not_exists=True)
            settings = {"name": NAME, "host": log._open_host()}
            with ResumableProducer(str(ADDRESS), **settings) as producer:
                append_all(producer, values[:count], size=size)
            with log.consumer(auto_offset_reset="earliest") as consumer:
                consumer.assign([TP])
                found = [record.value for record in consumer.poll(20_000, count)]
    assert found == values


# -- what is refused -------------------------------------------------------------------------------


def test_what_is_stored_has_to_be_asked_first(fake: FakeCluster) -> None:
    with producer_of(fake) as producer:
        with pytest.raises(InvalidRequestError, match=r"t:0: stored\(\) was not called"):
            producer.append(TP, body(b"a"))
        producer.stored([TopicPartition("t", 1)])
        with pytest.raises(InvalidRequestError, match="first"):
            producer.append(TP, body(b"a"))
    assert fake.topics["t"].logs[0].values() == []


def test_topics_and_partitions_that_do_not_exist(fake: FakeCluster) -> None:
    with producer_of(fake) as producer:
        with pytest.raises(UnknownTopicError):
            producer.stored([TopicPartition("nope", 0)])
        for wrong in (2, -1):
            with pytest.raises(UnknownPartitionError, match="It has 2"):
                producer.stored([TopicPartition("t", wrong)])
            with pytest.raises(UnknownPartitionError):
                producer.append(TopicPartition("t", wrong), body(b"a"))
        assert producer.partition_count("t") == 2
        assert producer.topic_id("t") == fake.topics["t"].id
        assert producer.max_message_bytes("t") == fake.topics["t"].max_message_bytes
        with pytest.raises(UnknownTopicError):
            producer.partition_count("nope")


def test_a_batch_that_the_topic_does_not_take_has_no_number(fake: FakeCluster) -> None:
    with producer_of(fake) as producer:
        producer.stored([TP])
        with pytest.raises(RecordTooLargeError, match=r"batch of 1 record .* exceeds max\.message"):
            producer.append(TP, body(b"x" * (limits.MIB + 100)))
        assert producer.append(TP, body(b"a")).result(TIMEOUT_S).offset == 0


def test_no_sequence_begins_again_from_0(fake: FakeCluster) -> None:
    """There the broker would take whatever comes, from a run that is late above all."""
    log = fake.topics["t"].logs[0]
    sealed = seal(body(b"x"), producer_id=ID, producer_epoch=0, base_sequence=RECORDS_MAX - 3)
    log.producers.note(parse_header(sealed))
    with producer_of(fake) as producer:
        assert producer.stored([TP]) == {TP: RECORDS_MAX - 2}
        with pytest.raises(InvalidRequestError, match=r"limit of 2147483647 .* a higher epoch"):
            producer.append(TP, body(b"1", b"2", b"3"))
        producer.append(TP, body(b"1", b"2")).result(TIMEOUT_S)
        with pytest.raises(InvalidRequestError, match="2147483647 records in epoch 0"):
            producer.append(TP, body(b"3"))
    late = body(b"1")
    with pytest.raises(OutOfOrderSequenceError):
        log.append(seal(late, producer_id=ID, producer_epoch=0, base_sequence=0) + late.payload)


def test_memory_is_bounded_and_who_finds_none_may_go_on(fake: FakeCluster) -> None:
    batch = body(b"x" * 3_000)
    with producer_of(fake, buffer_memory=4_000, max_block_ms=20) as producer:
        producer.stored([TP])
        gate = asyncio.Event()
        fake.next(apis.PRODUCE, hold(gate))
        held = producer.append(TP, batch)
        with pytest.raises(ThrottledError, match=r"max_block_ms=20.*buffer_memory=4000"):
            producer.append(TP, batch)
        producer._thread.schedule(gate.set)
        assert held.result(TIMEOUT_S).offset == 0
        with pytest.raises(RecordTooLargeError, match="does not fit into buffer_memory=4000"):
            producer.append(TP, body(b"x" * 5_000))
        assert producer.append(TP, batch).result(TIMEOUT_S).offset == 1


def test_who_waits_for_room_gets_it(fake: FakeCluster) -> None:
    values = [b"%d" % number + b"x" * 900 for number in range(100)]
    with producer_of(fake, buffer_memory=4_000) as producer:
        append_all(producer, values, size=1)
    assert fake.topics["t"].logs[0].values() == values


@pytest.mark.parametrize("is_queued", [False, True])
def test_an_interrupt_between_a_number_and_its_batch_is_no_repeat(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, *, is_queued: bool
) -> None:
    with producer_of(fake) as producer:
        queue = producer._accumulator.add_encoded

        def interrupt(*arguments: Any, **more: Any) -> None:
            if is_queued:
                queue(*arguments, **more)
            raise KeyboardInterrupt

        producer.stored([TP])
        producer.append(TP, body(b"a")).result(TIMEOUT_S)
        with monkeypatch.context() as patch:
            patch.setattr(producer._accumulator, "add_encoded", interrupt)
            with pytest.raises(KeyboardInterrupt):
                producer.append(TP, body(b"b"))
        after = producer.append(TP, body(b"c")).exception(TIMEOUT_S)
    if is_queued:
        assert after is None
        assert fake.topics["t"].logs[0].values() == [b"a", b"b", b"c"]
    else:
        assert isinstance(after, OutOfOrderSequenceError)
        assert fake.topics["t"].logs[0].values() == [b"a"]


def test_after_its_end_nothing_is_taken(fake: FakeCluster) -> None:
    producer = producer_of(fake)
    append_all(producer, FIVE, size=1)
    producer.close()
    producer.close()
    assert fake.topics["t"].logs[0].values() == FIVE
    for use in (
        lambda: producer.append(TP, body(b"a")),
        lambda: producer.stored([TP]),
        lambda: producer.partition_count("t"),
        producer.flush,
    ):
        with pytest.raises(ClosedError, match="closed"):
            use()


def test_threads_may_share_it(fake: FakeCluster) -> None:
    values = [b"%d" % number for number in range(200)]
    with producer_of(fake, buffer_memory=4_000) as producer:
        threads = [
            threading.Thread(
                target=append_all,
                args=(producer, values),
                kwargs={"size": 3, "tp": TopicPartition("t", number)},
            )
            for number in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
    assert [log.values() for log in fake.topics["t"].logs] == [values, values]


def test_an_answer_about_somebody_else_is_not_believed(fake: FakeCluster) -> None:
    other = DescribedProducers("t", 0, producers=[DescribedProducer(ID + 1, 0, 9, 9)])
    wrong = answer_with(DescribeProducersResponse(partitions=[other]))
    fake.always[apis.DESCRIBE_PRODUCERS] = wrong
    with producer_of(fake) as producer, pytest.raises(RaftlogError, match="for other producers"):
        producer.stored([TP])


# -- families --------------------------------------------------------------------------------------


def test_a_member_sees_what_the_others_of_its_family_have_stored(fake: FakeCluster) -> None:
    for member, epoch in ((4, 2), (1, 3), (2, 3)):
        with producer_of(fake, member=member, epoch=epoch) as other:
            append_all(other, FIVE[:member], size=9)
    with producer_of(fake, member=2, epoch=3) as producer:
        assert producer.stored([TP]) == {TP: 2}
        (relative,) = producer.relatives(TP)
        assert relative.producer_id % MEMBERS == 1
        assert (relative.first_offset, relative.last_offset) == (4, 4)
    late = producer_of(fake, member=4, epoch=2)
    with late, pytest.raises(ProducerFencedError, match="epoch 3"):
        late.stored([TP])
    with producer_of(fake, epoch=3) as alone:
        assert alone.stored([TP]) == {TP: 0}
        assert alone.relatives(TP) == ()
