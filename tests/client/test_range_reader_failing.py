"""Ranges that cannot be read, or not any more: what is told, and what was given before."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.client import readers, requests
from raftlog.client.readers import RangeReader
from raftlog.errors import (
    BrokerUnavailableError,
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
from raftlog.protocol.records import FetchedPartition, FetchResponse, MetadataRequest
from raftlog.protocol.schema import Failure
from raftlog.types import TopicPartition
from tests.client.samples import stored_batch
from tests.client.test_fetcher import fill
from tests.client.test_range_reader import TINY, fetches, flat, reader_of, replicated
from tests.client.test_subscription import A
from tests.client.world import Behaviour, FakeCluster, Peer, answer_with, ignore, vanish

pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_LOOK_AGAIN_S", 0.02)
    monkeypatch.setattr(readers, "_END_PATIENCE_S", 0.05)


@pytest.fixture
def fake() -> FakeCluster:
    """Ten records in batches of 3, 2, 4 and 1."""
    made = FakeCluster()
    made.create("t", 2)
    fill(made, 3, 2, 4, 1)
    return made


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
