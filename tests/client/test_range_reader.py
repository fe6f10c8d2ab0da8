"""Ranges as Arrow: every record once, whatever the brokers do; and what cannot be read is told."""

from __future__ import annotations

import gc
import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pytest

from raftlog import limits
from raftlog.client import readers, requests
from raftlog.client.accumulator import ProducerIdAndEpoch
from raftlog.client.base import ClientEnvironment
from raftlog.client.readers import BatchReader, RangeReader
from raftlog.errors import (
    BrokerUnavailableError,
    ClosedError,
    CorruptBatchError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RaftlogError,
    RequestTimedOutError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.records import FetchedPartition, FetchRequest, FetchResponse, MetadataRequest
from raftlog.protocol.schema import Failure
from raftlog.types import TopicPartition
from tests.client.samples import stored_batch
from tests.client.test_fetcher import fill
from tests.client.test_subscription import A, B
from tests.client.test_virtual import compacted
from tests.client.world import Behaviour, FakeCluster, Peer, answer_with, ignore, vanish
from tests.storage.logs import NO_PRODUCER, batch_of

# -- ranges that are read --------------------------------------------------------------------------


pa = pytest.importorskip("pyarrow")

TINY = 1  # a fetch then brings one log batch


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_LOOK_AGAIN_S", 0.02)
    monkeypatch.setattr(readers, "_END_PATIENCE_S", 0.05)


@contextmanager
def reader_of(fake: FakeCluster, **settings: Any) -> Iterator[RangeReader]:
    settings = {"fetch_max_wait_ms": 10, **settings}
    host = ClientEnvironment(connector=fake.connect, chance=random.Random(1).random)
    with RangeReader(fake.bootstrap, host=host, **settings) as reader:
        yield reader


@pytest.fixture
def fake() -> FakeCluster:
    """Ten records in batches of 3, 2, 4 and 1."""
    made = FakeCluster()
    made.create("t", 2)
    fill(made, 3, 2, 4, 1)
    return made


def replicated(leader: int = 1) -> FakeCluster:
    made = FakeCluster(brokers=3)
    made.create("t", 2, leaders=[leader] * 2)
    fill(made, 3, 2, 4, 1)
    return made


def offsets(portions: Iterator[Any]) -> list[list[int]]:
    """Of each portion."""
    return [portion.column("offset").to_pylist() for portion in portions]


def flat(portions: Iterator[Any]) -> list[int]:
    return list(chain.from_iterable(offsets(portions)))


def fetches(fake: FakeCluster) -> list[tuple[int, int]]:
    """Which broker was asked, for which offset."""
    return [
        (broker, message.partitions[0].offset)
        for broker, message in fake.requests
        if isinstance(message, FetchRequest)
    ]


async def nothing() -> None:
    """For the loop to come past what was scheduled before."""


# -- exactly the range -----------------------------------------------------------------------------


@pytest.mark.parametrize("fetch_bytes", [TINY, limits.MIB])
@pytest.mark.parametrize("rows_max", [1, 2, 3, 100])
def test_every_range_is_read_exactly(fake: FakeCluster, fetch_bytes: int, rows_max: int) -> None:
    with reader_of(fake, max_partition_fetch_bytes=fetch_bytes) as reader:
        for start in range(11):
            for end in range(start, 11):
                portions = offsets(reader.read(A, start, end, rows_max=rows_max))
                assert list(chain(*portions)) == list(range(start, end))
                assert all(0 < len(portion) <= rows_max for portion in portions)


def test_an_empty_range_asks_nobody(fake: FakeCluster) -> None:
    with reader_of(fake) as reader:
        assert list(reader.read(A, 7, 7)) == []
        assert list(reader.read(TopicPartition("nope", 0), 10**9, 10**9)) == []
    assert not fake.connects


def test_small_log_batches_are_joined_and_large_ones_split() -> None:
    fake = FakeCluster()
    fake.create("t")
    fill(fake, *[1] * 25, 30, *[7] * 3)
    with reader_of(fake) as reader:
        sizes = [len(portion) for portion in offsets(reader.read(A, 0, 76, rows_max=10))]
        assert sizes == [10, 10, 5, 10, 10, 10, 7, 7, 7]
        fill(fake, 1)
        assert offsets(reader.read(A, 75, 77)) == [[75, 76]]


def test_portions_are_bounded_in_bytes() -> None:
    fake = FakeCluster()
    fake.create("t")
    fill(fake, *[1] * 8, 8, size=1_000)
    with reader_of(fake) as reader:
        # 1,000 bytes of value, and what the columns need beside.
        portions = offsets(reader.read(A, 0, 16, bytes_max=3_200))
        assert [len(portion) for portion in portions] == [3, 3, 2, 2, 3, 3]
        assert [len(p) for p in offsets(reader.read(A, 0, 3, bytes_max=1))] == [1, 1, 1]


def test_the_whole_topic_is_asked_for_once_and_not_for_each_range() -> None:
    """A job has a range for each partition: the metadata would grow with the square of them."""
    fake = FakeCluster()
    topic_id = fake.create("t", 4).id
    fill(fake, *[1] * 4)
    with reader_of(fake) as reader:
        for start in range(4):
            assert flat(reader.read(A, start, start + 1, topic_id=topic_id)) == [start]
    spans = [request.span for request in fake.asked(MetadataRequest)]
    assert len(spans) > 4
    assert spans.count(None) == 1
    assert {span.count for span in spans if span is not None} == {1}


@pytest.mark.parametrize("rows_max", [1, 100])
def test_only_the_batches_of_one_producer_are_read(rows_max: int) -> None:
    fake = FakeCluster()
    fake.create("t")
    log = fake.topics["t"].logs[0]
    for producer in (NO_PRODUCER, (7, 0, 0), (7, 1, 0), (8, 1, 0), (7, 1, 2), NO_PRODUCER):
        log.append(batch_of([b"x"] * 2, producer=producer))
    with reader_of(fake) as reader:
        for identity, expected in (((7, 1), [4, 5, 8, 9]), ((7, 0), [2, 3]), ((9, 0), [])):
            wanted = [ProducerIdAndEpoch(*identity)]
            assert flat(reader.read(A, 0, 12, rows_max=rows_max, producers=wanted)) == expected
        assert flat(reader.read(A, 5, 9, producers=[ProducerIdAndEpoch(7, 1)])) == [5, 8]


def test_columns_are_as_asked_for(fake: FakeCluster) -> None:
    with reader_of(fake) as reader:
        (portion,) = reader.read(A, 2, 4, columns=["timestamp_type", "value"])
        assert portion.schema.names == ["timestamp_type", "value"]
        assert portion.to_pylist() == [{"timestamp_type": 0, "value": b"x"}] * 2
        (portion,) = reader.read(A, 2, 4)
        assert portion.column("topic").to_pylist() == ["t"] * 2
        assert portion.column("leader_epoch").to_pylist() == [3, 3]


def test_holes_are_passed_over() -> None:
    fake = FakeCluster()
    log = fake.create("t").logs[0]
    for base, end, *left in ((0, 10, 3, 7), (10, 20), (20, 22, 20, 21), (22, 30, 22), (30, 40)):
        log.batches.append(compacted(base, end, *left))
        log.end = end
    with reader_of(fake, max_partition_fetch_bytes=TINY) as reader:
        for start, end in ((0, 40), (4, 21), (8, 20), (10, 20), (23, 40), (22, 23)):
            expected = [at for at in (3, 7, 20, 21, 22) if start <= at < end]
            assert flat(reader.read(A, start, end)) == expected
            assert reader.position == end
        assert offsets(reader.read(A, 0, 40, rows_max=2)) == [[3, 7], [20, 21], [22]]


def test_records_of_a_batch_that_compaction_joined_in_mid_read_come_once() -> None:
    """The next batch then begins before the end of the last one: maybe on another replica."""
    fake = FakeCluster()
    log = fake.create("t").logs[0]
    for base, end, *left in ((0, 10, 3, 7), (0, 20, 3, 7, 12), (10, 30, 12, 25)):
        log.batches.append(compacted(base, end, *left))
        log.end = end
    with reader_of(fake, max_partition_fetch_bytes=TINY) as reader:
        assert offsets(reader.read(A, 0, 30)) == [[3, 7], [12], [25]]
        assert offsets(reader.read(A, 5, 30, rows_max=1)) == [[7], [12], [25]]


def test_little_is_fetched_beyond_the_end() -> None:
    fake = FakeCluster()
    fake.create("t")
    fill(fake, *[100] * 100, size=1_000)  # 10 MB
    with reader_of(fake) as reader:
        assert flat(reader.read(A, 0, 150)) == list(range(150))
        asked = [message.partitions[0] for message in fake.asked(FetchRequest)]
        assert [part.offset for part in asked] == [0, 100]
        assert sum(part.bytes_max for part in asked) < 250_000
        assert len(flat(reader.read(A, 0, 10_000))) == 10_000
        assert len(fetches(fake)) < 20


def test_fetching_goes_on_while_there_is_room_and_stops_at_the_end(fake: FakeCluster) -> None:
    with reader_of(fake) as reader:
        assert flat(reader.read(A, 0, 9)) == list(range(9))
        fill(fake, 1)
        assert flat(reader.read(B, 0, 0)) == []
        assert fetches(fake) == [(1, 0)], "nothing is asked for once the end is reached"


# -- from whom -------------------------------------------------------------------------------------


def test_reads_are_spread_over_the_replicas() -> None:
    fake = replicated()
    with reader_of(fake) as reader:
        for _ in range(6):
            assert flat(reader.read(A, 0, 10)) == list(range(10))
    assert sorted(broker for broker, _ in fetches(fake)) == [1, 1, 2, 2, 3, 3]


def test_or_all_go_to_the_leader() -> None:
    fake = replicated(leader=2)
    with reader_of(fake, read_from="leader") as reader:
        for _ in range(3):
            assert flat(reader.read(A, 0, 10)) == list(range(10))
    assert {broker for broker, _ in fetches(fake)} == {2}


def test_copies_are_read_from_the_leader() -> None:
    """Each replica removes tombstones at other times."""
    fake = replicated(leader=2)
    for seed in range(3):
        host = ClientEnvironment(connector=fake.connect, chance=random.Random(seed).random)
        with BatchReader(fake.bootstrap, host=host) as reader:
            reader.start({A: 0})
            assert reader.poll(10)[1]
    assert {broker for broker, _ in fetches(fake)} == {2}


@pytest.mark.parametrize("read_from", ["leader", "replica"])
def test_a_broker_that_dies_in_mid_read_costs_nothing(read_from: str) -> None:
    fake = replicated()
    settings = {"read_from": read_from, "max_partition_fetch_bytes": TINY}
    with reader_of(fake, **settings) as reader:
        portions = reader.read(A, 0, 10, rows_max=3)
        found = next(portions).column("offset").to_pylist()
        (broker,) = {broker for broker, _ in fetches(fake)}
        fake.kill(broker)
        topic = fake.topics["t"]
        topic.leaders[0] = broker % 3 + 1
        topic.isr = [other for other in (1, 2, 3) if other != broker]
        assert found + flat(portions) == list(range(10))
        assert reader.position == 10


@pytest.mark.parametrize("read_from", ["leader", "replica"])
def test_a_topic_that_is_read_again_after_another_one_has_changed_its_leader(
    read_from: str,
) -> None:
    """Once, its metadata was never asked for again, and the read waited for its whole time."""
    fake = replicated()
    fake.create("other", 1, leaders=[1])
    other = TopicPartition("other", 0)
    fake.topics["other"].logs[0] = fake.topics["t"].logs[0]
    with reader_of(fake, read_from=read_from) as reader:
        for tp in (A, other, A):
            topic = fake.topics[tp.topic]
            topic.leaders[0] = topic.leaders[0] % 3 + 1
            found = flat(reader.read(tp, 0, 10, topic_id=topic.id, timeout_ms=5_000))
            assert found == list(range(10))


def test_a_replica_that_is_behind_is_left_for_another() -> None:
    fake = replicated()
    fake.topics["t"].known_ends = {2: 5, 3: 0}
    with reader_of(fake) as reader:
        for _ in range(3):
            assert flat(reader.read(A, 0, 10)) == list(range(10))
            assert flat(reader.read(A, 9, 10)) == [9]
    asked = {broker for broker, _ in fetches(fake)}
    assert 1 in asked
    assert asked & {2, 3}


def test_records_that_are_not_there_yet_are_waited_for(fake: FakeCluster) -> None:
    with reader_of(fake) as reader:
        portions = reader.read(A, 8, 12, rows_max=1)
        assert next(portions).column("offset").to_pylist() == [8]
        reader._thread.schedule(lambda: fill(fake, 2))
        assert flat(portions) == [9, 10, 11]


# -- one after the other ---------------------------------------------------------------------------


def test_a_read_that_is_closed_early_leaves_the_reader_as_good_as_new(fake: FakeCluster) -> None:
    with reader_of(fake, max_partition_fetch_bytes=TINY) as reader:
        for _ in range(3):
            portions = reader.read(A, 0, 10, rows_max=1)
            assert next(portions).column("offset").to_pylist() == [0]
            portions.close()  # type: ignore[attr-defined]
            reader._thread.call(nothing)
            assert not reader._subscription.parts, "nothing more is fetched"
            assert flat(reader.read(A, 3, 6)) == [3, 4, 5]
        connects = len(fake.connects)
        assert flat(reader.read(A, 0, 10)) == list(range(10))
        assert len(fake.connects) == connects == 1


def test_a_read_is_ended_by_another_one(fake: FakeCluster) -> None:
    with reader_of(fake) as reader:
        first = reader.read(A, 0, 10, rows_max=1)
        next(first)
        assert flat(reader.read(A, 5, 6)) == [5]
        with pytest.raises(InvalidRequestError, match="another read ended"):
            next(first)
        second = reader.read(A, 0, 10, rows_max=1)
        next(second)
        third = reader.read(A, 0, 10, rows_max=1)
        next(third)
        with pytest.raises(InvalidRequestError, match="another read ended"):
            next(second)
        assert flat(third) == list(range(1, 10)), "the end of the second one did not end it"


def test_metadata_is_asked_of_those_who_gave_the_records() -> None:
    fake = replicated()
    with reader_of(fake) as reader:
        for _ in range(3):
            fake.requests.clear()
            assert flat(reader.read(A, 0, 10)) == list(range(10))
            ((server, _),) = fetches(fake)
            asked = [broker for broker, m in fake.requests if isinstance(m, MetadataRequest)]
            assert asked[-1] == server


def test_closing_ends_a_read_of_another_thread(fake: FakeCluster) -> None:
    fake.always[apis.FETCH] = ignore
    errors: list[BaseException] = []
    with reader_of(fake) as reader:

        def read() -> None:
            try:
                next(reader.read(A, 0, 10))
            except ClosedError as error:
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        while not reader._subscription._waiter:
            thread.join(0.001)
    thread.join(20)
    assert len(errors) == 1
    reader.close()
    with pytest.raises(ClosedError):
        reader.read(A, 0, 10)


def test_a_closed_reader_gives_no_more(fake: FakeCluster) -> None:
    with reader_of(fake) as reader:
        portions = reader.read(A, 0, 10, rows_max=1)
        next(portions)
    with pytest.raises(ClosedError):
        next(portions)


def test_an_unclosed_reader_warns_and_goes(fake: FakeCluster) -> None:
    reader = RangeReader(fake.bootstrap, host=ClientEnvironment(connector=fake.connect))
    assert flat(reader.read(A, 0, 1)) == [0]
    io_thread = reader._thread._thread
    assert io_thread is not None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del reader
        gc.collect()
    assert [(w.category, "unclosed" in str(w.message)) for w in warned] == [(ResourceWarning, True)]
    io_thread.join(20)
    assert not io_thread.is_alive()


def test_one_that_was_never_used_has_nothing_to_close(fake: FakeCluster) -> None:
    RangeReader(fake.bootstrap).close()
    gc.collect()
    assert not fake.connects


# -- ranges that fail ------------------------------------------------------------------------------

# Ranges that cannot be read, or not any more: what is told, and what was given before.


pytest.importorskip("pyarrow")


def failing(error: RaftlogError) -> Behaviour:
    failed = FetchedPartition(topic="t", partition=0, failure=Failure.of(error))
    return answer_with(FetchResponse(partitions=[failed]))


def test_below_what_is_left(fake: FakeCluster) -> None:
    fake.topics["t"].logs[0].start = 4
    with reader_of(fake) as reader:
        noted = pytest.raises(
            OffsetOutOfRangeError, match="t:0: offset 2 is below the log start offset 4"
        )
        with noted:
            next(reader.read(A, 2, 10))
        assert reader.position == 2
        assert flat(reader.read(A, 4, 10)) == [4, 5, 6, 7, 8, 9]


def test_retention_in_mid_read_is_told_after_what_came() -> None:
    fake = FakeCluster()
    log = fake.create("t").logs[0]
    fill(fake, *[1] * 40)
    found: list[int] = []
    with reader_of(fake, max_partition_fetch_bytes=TINY) as reader:

        def read() -> None:
            for portion in reader.read(A, 0, 40, rows_max=3):
                found.extend(portion.column("offset").to_pylist())
                log.start = 35

        with pytest.raises(OffsetOutOfRangeError, match="is below the log start offset 35"):
            read()
        assert found == list(range(len(found)))
        assert 3 <= len(found) < 35
        assert reader.position == len(found)
        assert flat(reader.read(A, 35, 40)) == list(range(35, 40))


def test_beyond_the_end_is_told_after_what_came(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    with reader_of(fake) as reader:

        def read(start: int) -> None:
            for portion in reader.read(A, start, 14, timeout_ms=1_000):
                found.extend(portion.column("offset").to_pylist())

        with pytest.raises(OffsetOutOfRangeError, match="t:0 ends at offset 10, before the end 14"):
            read(8)
        assert found == [8, 9]
        monkeypatch.setattr(readers, "_END_PATIENCE_S", 1e6)
        fake.requests.clear()
        with pytest.raises(OffsetOutOfRangeError, match="t:0 ends at offset 10, before the end 14"):
            read(12)
        assert len(fetches(fake)) < 6, "the leader's word is final"
        assert reader.position == 12


def test_a_leader_that_was_replaced_is_not_believed(fake: FakeCluster) -> None:
    """A replica, then the one taken for the leader say that the offset is not there; it is."""
    fake.next(apis.FETCH, *[failing(OffsetOutOfRangeError("offset 8 is outside 0 to 5"))] * 2)
    with reader_of(fake) as reader:
        assert flat(reader.read(A, 8, 10)) == [8, 9]


def test_without_an_answer_of_the_leader_what_is_said_counts(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_ANSWER_MS", 20)
    monkeypatch.setattr(requests, "SILENCE_S", 0.02)
    fake.next(apis.FETCH, *[failing(OffsetOutOfRangeError("offset 8 is outside 0 to 5"))] * 2)
    fake.always[apis.LIST_OFFSETS] = ignore
    noted = pytest.raises(OffsetOutOfRangeError, match=r"t:0: offset 8 does not exist .*0 to 5")
    with reader_of(fake) as reader, noted:
        next(reader.read(A, 8, 10))


def test_nothing_comes(fake: FakeCluster) -> None:
    fake.always[apis.FETCH] = ignore
    noted = pytest.raises(
        RequestTimedOutError, match=r"t:0: received no records for 60 ms at offset 3, .* end 9 of"
    )
    with reader_of(fake) as reader:
        with noted:
            next(reader.read(A, 3, 9, timeout_ms=60))
        del fake.always[apis.FETCH]
        assert reader.position == 3


def test_nobody_is_there(fake: FakeCluster) -> None:
    fake.down.add(1)
    noted = pytest.raises(BrokerUnavailableError, match="raftlog up")
    with reader_of(fake, bootstrap_timeout_ms=50) as reader, noted:
        next(reader.read(A, 0, 1))


def test_there_is_no_such_topic_or_partition(fake: FakeCluster) -> None:
    with reader_of(fake) as reader:
        with pytest.raises(UnknownTopicError, match="nope"):
            next(reader.read(TopicPartition("nope", 0), 0, 1))
        with pytest.raises(UnknownPartitionError, match="no partition 5"):
            next(reader.read(TopicPartition("t", 5), 0, 1))
        assert flat(reader.read(A, 0, 1)) == [0]


def test_another_topic_of_the_name_is_not_read(fake: FakeCluster) -> None:
    first = fake.topics["t"].id
    with reader_of(fake) as reader:
        assert flat(reader.read(A, 0, 1, topic_id=first)) == [0]
        second = fake.create("t").id
        fill(fake, 20)
        assert second != first
        with pytest.raises(UnknownTopicError, match=f"its id is {second}, not {first}"):
            next(reader.read(A, 0, 1, topic_id=first))
        assert flat(reader.read(A, 0, 2, topic_id=second)) == [0, 1]


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_topic_made_anew_in_mid_read_is_noticed(brokers: int, is_known: bool) -> None:
    fake = FakeCluster(brokers)
    first = fake.create("t").id
    fill(fake, *[1] * 20)
    found: list[int] = []
    topic_id = first if is_known else ""
    with reader_of(fake, max_partition_fetch_bytes=TINY) as reader:

        def read() -> None:
            for portion in reader.read(A, 0, 20, rows_max=1, topic_id=topic_id):
                found.extend(portion.column("offset").to_pylist())
                if len(found) == 1:
                    fake.create("t")
                    fill(fake, *[1] * 20, size=2)

        with pytest.raises(UnknownTopicError, match="deleted and created again"):
            read()
    assert len(found) < 20


def test_when_who_gave_the_records_is_gone_the_others_say_whose_they_were() -> None:
    fake = replicated()
    gone: set[int] = set()

    def give_and_go(peer: Peer, request: Request) -> None:
        peer.write(peer.state.reply(request, *fake.answer(peer.broker_id, request)))
        gone.add(peer.broker_id)
        fake.create("t")

    def tell(peer: Peer, request: Request) -> None:
        if peer.broker_id in gone:
            vanish(peer, request)
        else:
            peer.write(peer.state.reply(request, *fake.answer(peer.broker_id, request)))

    fake.next(apis.FETCH, give_and_go)
    fake.always[apis.METADATA] = tell
    noted = pytest.raises(UnknownTopicError, match="deleted and created again")
    with reader_of(fake) as reader, noted:
        next(reader.read(A, 0, 10))


def test_a_topic_that_one_broker_does_not_know_is_asked_of_others() -> None:
    fake = replicated()
    with reader_of(fake) as reader:
        assert flat(reader.read(A, 0, 10)) == list(range(10))
        fake.requests.clear()
        with pytest.raises(UnknownTopicError):
            next(reader.read(A, 0, 1, topic_id="of another one"))
    asked = [broker for broker, m in fake.requests if isinstance(m, MetadataRequest)]
    assert set(asked) == {1, 2, 3}


def test_a_topic_deleted_in_mid_read(fake: FakeCluster) -> None:
    with reader_of(fake, max_partition_fetch_bytes=TINY) as reader:
        portions = reader.read(A, 0, 10, rows_max=1)
        next(portions)
        del fake.topics["t"]
        with pytest.raises(UnknownTopicError):
            list(portions)


def test_damage_that_stays_is_told_with_where_it_is(fake: FakeCluster) -> None:
    log = fake.topics["t"].logs[0]
    good = log.batches[1]
    log.batches[1] = good[:-1] + bytes([good[-1] ^ 1])
    with reader_of(fake) as reader:
        with pytest.raises(CorruptBatchError, match="t:0: the batch with offset 3 arrived corrupt"):
            list(reader.read(A, 0, 10))
        log.batches[1] = good
        assert flat(reader.read(A, 0, 10)) == list(range(10))


def test_damage_on_the_way_is_fetched_again(fake: FakeCluster) -> None:
    good = stored_batch(0, b"x", b"x", b"x")
    bad = good[:-1] + bytes([good[-1] ^ 1])
    part = FetchedPartition(topic="t", partition=0, length=len(bad))
    message = FetchResponse(partitions=[part])
    fake.next(
        apis.FETCH, lambda peer, request: peer.write(peer.state.reply(request, message, [bad]))
    )
    with reader_of(fake) as reader:
        assert flat(reader.read(A, 0, 10)) == list(range(10))


def test_offsets_that_are_missing_are_told(fake: FakeCluster) -> None:
    del fake.topics["t"].logs[0].batches[1]
    noted = pytest.raises(CorruptBatchError, match="t:0: offsets 3 to 4 are missing")
    with reader_of(fake) as reader, noted:
        list(reader.read(A, 0, 10))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((A, 2, 1), InvalidRequestError),
        ((A, -1, 1), InvalidRequestError),
        ((A, 0, 1 << 63), InvalidRequestError),
        ((A, 0.0, 1), TypeError),
        (("t", 0, 1), TypeError),
        ((A, 0, 1, {"columns": ["nope"]}), InvalidRequestError),
        ((A, 0, 1, {"columns": "key"}), TypeError),
        ((A, 0, 1, {"rows_max": 0}), InvalidRequestError),
        ((A, 0, 1, {"bytes_max": 0}), InvalidRequestError),
        ((A, 0, 1, {"timeout_ms": 0}), InvalidRequestError),
    ],
)
def test_what_can_never_be_right(fake: FakeCluster, arguments: Any, error: type[Exception]) -> None:
    *plain, options = arguments if len(arguments) == 4 else (*arguments, {})
    with reader_of(fake) as reader, pytest.raises(error):
        reader.read(*plain, **options)
    with pytest.raises(InvalidRequestError, match="read_from"):
        RangeReader(fake.bootstrap, read_from="nobody")
    assert not fake.connects
