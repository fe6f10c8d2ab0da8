"""Producers: their IDs, what they store, and what is said of them."""

from __future__ import annotations

import itertools
import os
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import (
    CommitUnknownError,
    CorruptBatchError,
    FencedLeaderEpochError,
    InvalidRequestError,
    InvalidTransactionStateError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RaftlogError,
    RecordTooLargeError,
    UnknownPartitionError,
    UnknownProducerError,
    UnknownTopicError,
)
from raftlog.mirror.mirror import hole_of
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    DescribedProducer,
    DescribedProducers,
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListedPartition,
    ListedProducers,
    ListProducersRequest,
    ListProducersResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProducersQuery,
)
from raftlog.record import seal, validate
from raftlog.security.producer_ids import NAMED_ID_BASE
from raftlog.server.apis import produce, producers
from raftlog.server.apis.producers import list_producers
from raftlog.server.context import BrokerContext
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge
from raftlog.types import NO_TIMESTAMP
from tests.record.batches import batch_of as keyed_batch
from tests.record.batches import resealed
from tests.running import runs
from tests.server.cluster.fake import FakeReply, Scene, play, state_of
from tests.server.harness import (
    Client,
    FakeClock,
    FaultyDisk,
    RunningBroker,
    batch_of,
    error_of,
    only,
    running,
)

# -- produce ---------------------------------------------------------------------------------------

# Producer ids: nobody gets one that another has had.


def ask(client: Client) -> InitProducerIdResponse:
    answer: InitProducerIdResponse = client.ask(apis.INIT_PRODUCER_ID, InitProducerIdRequest())
    return answer


def test_ids_are_fresh_even_after_a_restart(tmp_path: Path) -> None:
    seen = []
    for _ in range(3):
        with running(tmp_path) as broker, broker.client() as client:
            for _ in range(20):
                answer = ask(client)
                assert answer.producer_epoch == 0
                seen.append(answer.producer_id)
    assert len(set(seen)) == len(seen)


def test_ids_do_not_follow_from_those_of_others(client: Client) -> None:
    ids = sorted(ask(client).producer_id for _ in range(20))
    assert 0 <= ids[0] < ids[-1] < NAMED_ID_BASE
    assert min(b - a for a, b in pairwise(ids)) > 1 << 30


def test_requests_in_flight_together_get_different_ids(client: Client) -> None:
    sent = [client.send(apis.INIT_PRODUCER_ID, InitProducerIdRequest()) for _ in range(50)]
    ids = {getattr(client.answer(id_).message, "producer_id") for id_ in sent}  # noqa: B009
    assert len(ids) == 50


# -- produce ---------------------------------------------------------------------------------------
#
# Produce: what is appended, when it is acknowledged, and what is refused without harm.


def test_batches_get_consecutive_offsets(client: Client) -> None:
    client.create("t")
    assert client.produce("t", batch_of(b"a", b"b")).base_offset == 0
    assert client.produce("t", batch_of(b"c")).base_offset == 2
    assert client.fetch("t")[1] == [b"a", b"b", b"c"]


def test_pipelined_requests_are_appended_in_the_order_of_sending(client: Client) -> None:
    client.create("t")
    sent = [client.send_batch("t", batch_of(b"%d" % number)) for number in range(500)]
    assert [client.produced(id_).base_offset for id_ in sent] == list(range(500))
    assert client.fetch("t")[1] == [b"%d" % number for number in range(500)]


def test_acknowledgement_waits_for_the_disk(client: Client, disk: FaultyDisk) -> None:
    client.create("t")
    client.produce("t", batch_of(b"first"))
    disk.faults.sync_gate.clear()
    waiting = {acks: client.send_batch("t", batch_of(b"%d" % acks), acks=acks) for acks in (-1, 1)}
    # Whatever the broker would say early would be here before the answer to a later request.
    assert client.offset("t", "latest").offset == 1
    assert client.fetch("t")[1] == [b"first"]
    assert not client.answered(*waiting.values())
    disk.faults.sync_gate.set()
    assert [client.produced(id_).base_offset for id_ in waiting.values()] == [1, 2]
    assert client.offset("t", "latest").offset == 3


def test_flush_policy_os_waits_for_no_disk(
    broker: RunningBroker, client: Client, disk: FaultyDisk
) -> None:
    client.create("t")
    broker.broker.context.topics.host("t", 0).log.config = TopicConfig(flush_policy="os")
    disk.faults.sync_gate.clear()
    assert client.produce("t", batch_of(b"a")).base_offset == 0
    assert client.produce("t", batch_of(b"b"), acks=1).base_offset == 1
    assert client.fetch("t")[1] == [b"a", b"b"]
    disk.faults.sync_gate.set()


def test_one_sync_serves_all_that_came_while_the_last_one_ran(
    client: Client, disk: FaultyDisk
) -> None:
    client.create("t")
    client.produce("t", batch_of(b"warm"))
    disk.faults.sync_gate.clear()
    disk.faults.syncs = 0
    sent = [client.send_batch("t", batch_of(b"x")) for _ in range(100)]
    client.offset("t", "latest")  # all of them have been appended
    disk.faults.sync_gate.set()
    for id_ in sent:
        client.produced(id_)
    assert disk.faults.syncs <= 3


def test_acks_0_is_appended_and_not_answered(client: Client) -> None:
    client.create("t")
    client.send_batch("t", batch_of(b"a"), acks=0)
    assert client.produce("t", batch_of(b"b")).base_offset == 1


def test_acks_0_that_fails_closes_the_connection(client: Client, broker: RunningBroker) -> None:
    client.send_batch("unknown", batch_of(b"a"), acks=0)
    assert client.is_closed_by_broker()
    with broker.client() as other:
        assert other.create("t").failure is None


def test_log_append_time_is_told(client: Client, clock: FakeClock) -> None:
    client.create("created")
    client.create("stamped", message_timestamp_type="LogAppendTime")
    assert client.produce("created", batch_of(b"a")).append_timestamp_ms == NO_TIMESTAMP
    assert client.produce("stamped", batch_of(b"a")).append_timestamp_ms == clock.now_ms


def test_each_partition_of_a_request_has_its_own_outcome(client: Client) -> None:
    client.create("t", partitions=4)
    good, bad = batch_of(b"a"), bytearray(batch_of(b"b"))
    bad[-1] ^= 1
    parts = [
        ProducePartition(topic="t", partition=0, length=len(good)),
        ProducePartition(topic="t", partition=1, length=len(bad)),
        ProducePartition(topic="t", partition=4, length=len(good)),
        ProducePartition(topic="nope", partition=0, length=len(good)),
        ProducePartition(topic="t", partition=2, length=len(good)),
    ]
    answer: ProduceResponse = client.ask(
        apis.PRODUCE,
        ProduceRequest(acks=-1, partitions=parts),
        [good, bad, good, good, good],
    )
    answers = answer.partitions
    assert [(a.topic, a.partition) for a in answers] == [(p.topic, p.partition) for p in parts]
    assert [a.base_offset for a in answers] == [0, -1, -1, -1, 0]
    assert isinstance(error_of(answers[1]), CorruptBatchError)
    assert isinstance(error_of(answers[2]), UnknownPartitionError)
    assert isinstance(error_of(answers[3]), UnknownTopicError)


def test_lengths_that_do_not_add_up_refuse_the_request(client: Client) -> None:
    client.create("t")
    batch = batch_of(b"a")
    for length in (len(batch) - 1, len(batch) + 1, 0):
        part = ProducePartition(topic="t", partition=0, length=length)
        with pytest.raises(InvalidRequestError, match="add up"):
            client.ask(apis.PRODUCE, ProduceRequest(acks=-1, partitions=[part]), [batch])
    assert client.offset("t", "latest").offset == 0


def sequenced(number: int, *values: bytes, epoch: int = 0) -> bytes:
    return batch_of(*values, producer_id=7, producer_epoch=epoch, base_sequence=number)


def test_a_duplicate_is_answered_with_the_first_offset(client: Client) -> None:
    client.create("t")
    assert client.produce("t", sequenced(0, b"a", b"b")).base_offset == 0
    assert client.produce("t", sequenced(2, b"c")).base_offset == 2
    assert client.produce("t", sequenced(0, b"a", b"b")).base_offset == 0
    assert client.produce("t", sequenced(2, b"c")).base_offset == 2
    assert client.fetch("t")[1] == [b"a", b"b", b"c"]


def test_a_duplicate_of_an_unsynced_batch_waits_as_well(client: Client, disk: FaultyDisk) -> None:
    client.create("t")
    client.produce("t", sequenced(0, b"a"))
    disk.faults.sync_gate.clear()
    sent = [client.send_batch("t", sequenced(1, b"b")) for _ in range(2)]
    client.offset("t", "latest")
    assert not client.answered(*sent)
    disk.faults.sync_gate.set()
    assert [client.produced(id_).base_offset for id_ in sent] == [1, 1]


def test_sequence_gaps_and_old_epochs_are_refused(client: Client) -> None:
    client.create("t")
    client.produce("t", sequenced(0, b"a"))
    gap = client.produce("t", sequenced(5, b"x"))
    assert isinstance(error_of(gap), OutOfOrderSequenceError)
    client.produce("t", sequenced(0, b"b", epoch=1))
    fenced = client.produce("t", sequenced(1, b"c"))
    assert isinstance(error_of(fenced), ProducerFencedError)
    assert client.fetch("t")[1] == [b"a", b"b"]


def test_a_batch_over_the_topics_limit_is_refused(client: Client) -> None:
    client.create("t", max_message_bytes="2000")
    assert isinstance(error_of(client.produce("t", batch_of(b"x" * 3_000))), RecordTooLargeError)
    assert client.produce("t", batch_of(b"x" * 1_000)).base_offset == 0


def test_a_compacted_topic_takes_only_records_with_keys(client: Client) -> None:
    client.create("t", cleanup_policy="compact")
    client.create("both", cleanup_policy="compact,delete")
    client.create("other")
    keyed = batch_with([b"k", b""])
    for topic in ("t", "both"):
        assert client.produce(topic, keyed).base_offset == 0
        for bad, row in (
            (batch_of(b"a"), 0),
            (batch_with([b"k", None]), 1),
            (batch_with([None, b"k"]), 0),
        ):
            error = error_of(client.produce(topic, bad))
            assert isinstance(error, InvalidRequestError)
            assert f"record {row} of the batch has no key" in str(error)
            assert "Send every record with a key" in str(error)
        assert client.offset(topic, "latest").offset == 2
    assert client.produce("other", batch_of(b"a")).base_offset == 0


def test_a_producer_cannot_send_what_only_compaction_makes(client: Client) -> None:
    client.create("t", cleanup_policy="compact")
    sparse = resealed(batch_with([b"k", b"l"]), last_offset_delta=5)
    assert isinstance(error_of(client.produce("t", sparse)), CorruptBatchError)
    flagged = batch_with([b"k"])
    with_flag = flagged[:2] + b"\x02\x00" + flagged[4:]
    for batch in (with_flag, resealed(flagged, leader_flags=2)):
        answer = client.produce("t", batch)
        assert answer.failure is None or isinstance(error_of(answer), CorruptBatchError)


def batch_with(keys: list[bytes | None]) -> bytes:
    return keyed_batch([b"v"] * len(keys), keys=keys)


def test_batches_that_are_not_for_producers_are_refused(client: Client) -> None:
    client.create("t")
    for change, error in (
        ({"attributes": 1 << 5}, CorruptBatchError),
        ({"attributes": 1 << 4}, InvalidTransactionStateError),
        ({"last_offset_delta": 5}, CorruptBatchError),
    ):
        batch = resealed(batch_of(b"a", b"b"), **change)
        assert isinstance(error_of(client.produce("t", batch)), error), change
    assert client.offset("t", "latest").offset == 0


def test_a_producer_that_a_topic_does_not_know(client: Client) -> None:
    """With the ID of the topic: the client may know one of this name that was deleted."""
    topic = client.create("again")
    refused = client.produce(
        "again", batch_of(b"a", producer_id=7, producer_epoch=0, base_sequence=3)
    )
    assert refused.failure is not None
    assert refused.failure.code == UnknownProducerError.code
    assert refused.topic_id == topic.id
    first = batch_of(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    assert client.produce("again", first).topic_id == ""


def mirrored(client: Client, batch: bytes, base_offset: int) -> ProducedPartition:
    part = ProducePartition(topic="t", partition=0, length=len(batch), base_offset=base_offset)
    request = ProduceRequest(acks=-1, partitions=[part])
    return client.produced(client.send(apis.PRODUCE, request, [batch]))


def hole(count: int, sequence: int) -> bytes:
    """A batch of ``count`` offsets without a record, of a mirror's producer."""
    body = hole_of(count)
    return seal(body, producer_id=1, producer_epoch=0, base_sequence=sequence) + body.payload


def test_a_mirrored_batch_is_appended_at_its_offset_or_refused(client: Client) -> None:
    client.create("t")
    for base_offset, found in ((1, -1), (0, 0), (0, 0), (3, -1), (10, 10)):
        part = mirrored(client, hole(10, base_offset), base_offset)
        assert part.base_offset == found
        if found < 0:
            assert isinstance(error_of(part), OutOfOrderSequenceError)
    assert client.offset("t", "latest").offset == 20
    assert isinstance(error_of(client.produce("t", hole(10, 20))), CorruptBatchError)


def test_only_the_end_of_the_log_suits_a_mirrored_batch_without_a_sequence(client: Client) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a", b"b"))
    for base_offset in (0, 1, 3):
        refused = error_of(mirrored(client, batch_of(b"x"), base_offset))
        assert "the log ends at offset 2" in str(refused)
    assert mirrored(client, batch_of(b"c"), 2).base_offset == 2
    assert client.fetch("t")[1] == [b"a", b"b", b"c"]


def test_the_limits_of_the_topic_are_those_of_the_source_of_a_mirrored_batch(
    client: Client,
) -> None:
    client.create("t", max_message_bytes="2000", message_timestamp_before_max_ms="1")
    large, old = keyed_batch([b"x" * 3_000]), keyed_batch([b"x"] * 2, timestamps_ms=[1 << 42, 1])
    assert isinstance(error_of(client.produce("t", large)), RecordTooLargeError)
    assert "timestamp 1 is before" in str(error_of(client.produce("t", old)))
    assert mirrored(client, large, 0).base_offset == 0
    assert mirrored(client, old, 1).base_offset == 1


def test_a_traced_request_reports_the_progress_of_its_batches(client: Client) -> None:
    client.create("t")
    batch = batch_of(b"v")
    parts = [ProducePartition(topic="t", partition=0, length=len(batch))]
    for acks in (-1, 1):
        request = ProduceRequest(acks=acks, partitions=parts, traced=True)
        (part,) = client.ask(apis.PRODUCE, request, [batch]).partitions
        assert part.times is not None
        assert 0 <= part.times.appended <= part.times.synced <= part.times.done < 10_000_000
        assert (part.times.last is None) == (acks == 1)
    assert client.produce("t", batch).times is None
    missing = [ProducePartition(topic="no", partition=0, length=len(batch))]
    request = ProduceRequest(acks=-1, partitions=missing, traced=True)
    (part,) = client.ask(apis.PRODUCE, request, [batch]).partitions
    assert part.times is None


# -- producer ids ----------------------------------------------------------------------------------
#
# Producer ids: of unguessable bytes, and not where those of producers with a name lie.


def test_an_id_has_62_bits_of_what_cannot_be_guessed() -> None:
    asked: list[int] = []

    def entropy(count: int) -> bytes:
        asked.append(count)
        return b"\xff" * count

    assert produce.draw(entropy) == NAMED_ID_BASE - 1
    assert produce.draw(lambda count: bytes(count - 1) + b"\x04") == 1
    assert asked == [8]


def test_ids_do_not_follow_from_one_another() -> None:
    drawn = [produce.draw(os.urandom) for _ in range(1_000)]
    assert len(set(drawn)) == 1_000
    assert all(0 <= id_ < NAMED_ID_BASE for id_ in drawn)
    steps = {(b - a) % (1 << 62) for a, b in itertools.pairwise(drawn)}
    assert min(steps) > 1 << 32, "no two are near each other"


# -- descriptions ----------------------------------------------------------------------------------

# Describe producers: what is said of a producer is committed, and stays so.


ID = (1 << 62) + 7
OTHER = 7


def written(*values: bytes, sequence: int = 0, epoch: int = 0, producer_id: int = ID) -> bytes:
    return batch_of(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def query(*ids: int, topic: str = "t", partition: int = 0, epoch: int = -1) -> ProducersQuery:
    return ProducersQuery(
        topic=topic, partition=partition, producer_ids=list(ids or (ID,)), leader_epoch=epoch
    )


def send(client: Client, *queries: ProducersQuery) -> int:
    return client.send(apis.DESCRIBE_PRODUCERS, DescribeProducersRequest(partitions=list(queries)))


def described(client: Client, correlation_id: int) -> list[DescribedProducers]:
    message = client.answer(correlation_id).message
    if isinstance(message, RaftlogError):
        raise message
    assert isinstance(message, DescribeProducersResponse)
    return message.partitions


def producers_ask(client: Client, *queries: ProducersQuery) -> list[DescribedProducers]:
    return described(client, send(client, *queries))


def test_what_each_producer_wrote_last_is_told(client: Client) -> None:
    client.create("t", partitions=2)
    assert only(producers_ask(client, query(ID, OTHER))).producers == [
        DescribedProducer(ID),
        DescribedProducer(OTHER),
    ]
    client.produce("t", written(b"a", b"b", b"c"))
    client.produce("t", written(b"d", sequence=3))
    client.produce("t", batch_of(b"of nobody"))
    client.produce("t", written(b"e", b"f", producer_id=OTHER))
    client.produce("t", written(b"a"), partition=1)
    first, second = producers_ask(client, query(OTHER, ID, 8), query(partition=1))
    assert (first.topic, first.partition, second.topic, second.partition) == ("t", 0, "t", 1)
    assert first.producers == [
        DescribedProducer(OTHER, producer_epoch=0, last_sequence=1, last_offset=6, first_offset=5),
        DescribedProducer(ID, producer_epoch=0, last_sequence=3, last_offset=3, first_offset=0),
        DescribedProducer(8),
    ]
    assert only(second.producers).last_offset == 0


def test_the_family_of_a_producer_is_told_and_no_other(client: Client) -> None:
    client.create("t")
    first = 1 << 62
    for producer_id in (first + 1, first + 3, first + 4, first + 8):
        client.produce("t", written(b"a", producer_id=producer_id))
    asked = msgspec.structs.replace(query(first + 3), family_bits=3)
    answer = only(producers_ask(client, asked))
    assert [each.producer_id for each in answer.producers] == [first + 3]
    assert answer.siblings is not None
    assert [(each.producer_id, each.last_offset) for each in answer.siblings] == [
        (first + 1, 0),
        (first + 4, 2),
    ]
    assert only(producers_ask(client, query(first + 3))).siblings is None
    assert (
        only(producers_ask(client, msgspec.structs.replace(query(OTHER), family_bits=3))).siblings
        == []
    )
    two = msgspec.structs.replace(query(first, OTHER), family_bits=3)
    with pytest.raises(InvalidRequestError, match="a query of one producer"):
        raise only(producers_ask(client, two)).failure.to_error()


def test_a_repeat_changes_nothing_and_a_new_epoch_counts_anew(client: Client) -> None:
    client.create("t")
    for _ in range(2):
        client.produce("t", written(b"a", b"b"))
        assert only(only(producers_ask(client, query())).producers).last_sequence == 1
    client.produce("t", written(b"a", epoch=5))
    assert only(producers_ask(client, query())).producers == [
        DescribedProducer(ID, producer_epoch=5, last_sequence=0, last_offset=2, first_offset=2)
    ]


def test_it_is_known_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as broker, broker.client() as client:
        client.create("t")
        client.produce("t", written(b"a", b"b"))
    with running(tmp_path) as broker, broker.client() as client:
        assert only(only(producers_ask(client, query())).producers).last_sequence == 1
        client.produce("t", written(b"c", sequence=2))
        assert only(only(producers_ask(client, query())).producers).last_sequence == 2


def test_what_is_not_committed_is_waited_for(client: Client, disk: FaultyDisk) -> None:
    client.create("t")
    client.produce("t", written(b"a"))
    disk.faults.sync_gate.clear()
    appended = client.send_batch("t", written(b"b", b"c", sequence=1))
    asked = send(client, query())
    unknown = send(client, query(OTHER))
    # Whatever the broker would say early would be here before the answer to a later request.
    assert only(only(described(client, unknown)).producers).producer_epoch == -1
    is_early = client.answered(asked)
    later = client.send_batch("t", written(b"d", sequence=3))
    client.offset("t", "latest")
    disk.faults.sync_gate.set()
    assert not is_early
    assert only(only(described(client, asked)).producers).last_sequence == 2
    assert client.produced(appended).base_offset == 1
    assert client.produced(later).base_offset == 3


def test_the_last_of_all_that_are_asked_for_is_waited_for(client: Client, disk: FaultyDisk) -> None:
    client.create("t")
    client.produce("t", written(b"a", producer_id=OTHER))
    disk.faults.sync_gate.clear()
    client.send_batch("t", written(b"b"))
    asked = send(client, query(ID, OTHER))
    client.offset("t", "latest")
    is_early = client.answered(asked)
    disk.faults.sync_gate.set()
    assert not is_early
    assert [one.last_offset for one in only(described(client, asked)).producers] == [1, 0]


def test_who_leads_no_more_says_that_it_is_not_known(
    broker: RunningBroker, client: Client, disk: FaultyDisk
) -> None:
    client.create("t")
    host = broker.call(lambda: broker.broker.context.topics.host("t", 0))
    disk.faults.sync_gate.clear()
    appended = client.send_batch("t", written(b"a"))
    asked = send(client, query())
    client.offset("t", "latest")
    broker.call(lambda: host.follow(None, host.leader_epoch + 1))
    assert isinstance(error_of(only(described(client, asked))), CommitUnknownError)
    assert isinstance(error_of(client.produced(appended)), CommitUnknownError)
    disk.faults.sync_gate.set()
    assert isinstance(error_of(only(producers_ask(client, query()))), NotLeaderError)


def test_each_partition_has_its_own_outcome(client: Client) -> None:
    client.create("t")
    client.produce("t", written(b"a"))
    answers = producers_ask(
        client,
        query(partition=1),
        query(topic="nope"),
        query(epoch=-1),
        query(epoch=1),
    )
    assert isinstance(error_of(answers[0]), UnknownPartitionError)
    assert isinstance(error_of(answers[1]), UnknownTopicError)
    assert [only(answer.producers).last_sequence for answer in answers[2:]] == [0, 0]
    assert answers[0].producers == []


def test_a_client_with_an_older_epoch_is_told_so(tmp_path: Path) -> None:
    for _ in range(2):
        with running(tmp_path) as broker, broker.client() as client:
            client.create("t")
            answers = producers_ask(client, query(epoch=0))
            client.produce("t", written(b"a"))
    assert isinstance(error_of(only(answers)), FencedLeaderEpochError)


def test_only_so_many_are_answered_at_a_time(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create("t")
    monkeypatch.setattr(limits, "PRODUCERS_PER_REQUEST_MAX", 4)
    assert len(producers_ask(client, query(1, 2), query(3, 4))) == 2
    with pytest.raises(InvalidRequestError, match=r"matches 5 producers .* limit is 4"):
        producers_ask(client, query(1, 2), query(3, 4, 5))


# -- in a cluster of fakes ------------------------------------------------------------------------


class Asked:
    """A broker of a cluster. Who leads is confirmed when the test says so."""

    def __init__(self, host: Partition) -> None:
        self.host = host
        self.reply = FakeReply()
        self.waiting: list[Acknowledge] = []
        self.topics = SimpleNamespace(host=lambda _topic, _partition: host)
        self.cluster = SimpleNamespace(confirm=lambda _host, done: self.waiting.append(done))
        request = SimpleNamespace(message=DescribeProducersRequest(partitions=[query()]))
        steps = producers.handle(
            cast(BrokerContext, self), cast(Request, request), self.reply.as_reply
        )
        for _ in steps:
            pass

    @property
    def answer(self) -> DescribedProducers:
        ((message, _),) = self.reply.answers
        assert isinstance(message, DescribeProducersResponse)
        return only(message.partitions)


def leader(s: Scene) -> Partition:
    """Broker 1 leads, and broker 2 follows, and has not got this batch."""
    host = s.host()
    host.lead(state_of(1, 2, epoch=5), 1, lag_max_seconds=10.0)
    batch = written(b"a", b"b")
    host.append(batch, validate(batch))
    return host


@runs(play)
async def test_the_followers_have_to_have_it_first(s: Scene) -> None:
    """Else a run leaves out records that the next leader never had."""
    asked = Asked(leader(s))
    await s.come_to_rest()
    assert (asked.reply.answers, asked.waiting) == ([], [])
    asked.host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2)
    asked.waiting.pop()(None)
    assert only(asked.answer.producers).last_sequence == 1


@runs(play)
async def test_what_was_appended_and_is_cut_was_never_told(s: Scene) -> None:
    asked = Asked(leader(s))
    await s.come_to_rest()
    asked.host.follow(2, 6)
    assert isinstance(error_of(asked.answer), CommitUnknownError)
    assert asked.waiting == []


@runs(play)
async def test_nobody_else_may_lead_by_then(s: Scene) -> None:
    host = leader(s)
    host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2)
    await s.come_to_rest()
    asked = Asked(host)
    assert asked.reply.answers == []
    asked.waiting.pop()(LeaderNotAvailableError("nobody confirms"))
    assert isinstance(error_of(asked.answer), LeaderNotAvailableError)


@runs(play)
async def test_a_commit_that_needs_more_replicas_is_not_waited_for(s: Scene) -> None:
    host = leader(s)
    host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2)
    await s.come_to_rest()
    host.on_state(state_of(1, 2, epoch=5, isr=(1,), min_isr=2, version=2))
    Asked(host).waiting.pop()(None)
    batch = written(b"c", sequence=2)
    host.append(batch, validate(batch), to_be_committed=False)
    asked = Asked(host)
    assert isinstance(error_of(asked.answer), NotEnoughReplicasError)


# -- list producers --------------------------------------------------------------------------------
#
# List producers: what the leader knows of them, committed or not.


def listing(partition: int = 0, topic: str = "t", limit: int = 10, **more: int) -> ListedPartition:
    return ListedPartition(topic=topic, partition=partition, limit=limit, **more)


def listed(client: Client, *queries: ListedPartition) -> list[ListedProducers]:
    request = ListProducersRequest(partitions=list(queries))
    message = client.ask(apis.LIST_PRODUCERS, request)
    assert isinstance(message, ListProducersResponse)
    return message.partitions


def write(client: Client, producer_id: int, *values: bytes, partition: int = 0) -> None:
    batch = batch_of(*values, producer_id=producer_id, producer_epoch=3, base_sequence=0)
    assert client.produce("t", batch, partition=partition).failure is None


def test_producers_are_listed_by_their_last_write_in_parts(client: Client) -> None:
    client.create("t", partitions=2)
    assert only(listed(client, listing())).total == 0
    for producer_id in (5, ID, 6):
        write(client, producer_id, b"a", b"b")
    client.produce("t", batch_of(b"of no producer"))
    write(client, 5, b"a", partition=1)
    first, second = listed(client, listing(), listing(1, skip=1))
    assert (first.topic, first.partition, first.total, first.high_watermark) == ("t", 0, 3, 7)
    assert [each.producer_id for each in first.producers] == [6, ID, 5]
    newest = first.producers[0]
    assert (newest.producer_epoch, newest.last_sequence, newest.last_offset) == (3, 1, 5)
    assert newest.last_timestamp_ms > 0
    assert (second.partition, second.total, second.producers) == (1, 1, [])
    part = only(listed(client, listing(skip=1, limit=1)))
    assert (part.total, only(part.producers).producer_id) == (3, ID)
    assert only(listed(client, listing(limit=0))).producers == []


def test_records_that_are_not_committed_are_listed_without_a_wait(
    client: Client, disk: FaultyDisk
) -> None:
    client.create("t")
    write(client, 5, b"a")
    disk.faults.sync_gate.clear()
    batch = batch_of(b"b", producer_id=ID, producer_epoch=0, base_sequence=0)
    appended = client.send_batch("t", batch)
    try:
        found = only(listed(client, listing()))
    finally:
        disk.faults.sync_gate.set()
    assert [(each.producer_id, each.last_offset) for each in found.producers] == [(ID, 1), (5, 0)]
    assert found.high_watermark == 1
    assert client.produced(appended).base_offset == 1


def test_each_partition_has_its_own_outcome_in_list_producers(
    broker: RunningBroker, client: Client
) -> None:
    client.create("t")
    write(client, 5, b"a")
    answers = listed(
        client, listing(9), listing(topic="no-such"), listing(leader_epoch=99), listing()
    )
    assert [type(error_of(answer)) for answer in answers[:2]] == [
        UnknownPartitionError,
        UnknownTopicError,
    ]
    assert answers[2].failure is not None
    assert only(answers[3].producers).producer_id == 5
    host = broker.call(lambda: broker.broker.context.topics.host("t", 0))
    broker.call(lambda: host.follow(None, host.leader_epoch + 1))
    assert isinstance(error_of(only(listed(client, listing()))), NotLeaderError)


def test_an_older_leader_epoch_is_fenced(tmp_path: Path) -> None:
    for _ in range(2):
        with running(tmp_path) as broker, broker.client() as client:
            client.create("t")
            answers = listed(client, listing(leader_epoch=0))
            write(client, 5, b"a")
    assert isinstance(error_of(only(answers)), FencedLeaderEpochError)


def test_the_number_of_producers_of_a_request_is_limited(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create("t", partitions=2)
    monkeypatch.setattr(limits, "LISTED_PRODUCERS_MAX", 4)
    assert len(listed(client, listing(limit=2), listing(1, limit=2))) == 2
    with pytest.raises(InvalidRequestError, match=r"up to 5 producers .* limit is 4"):
        listed(client, listing(limit=2), listing(1, limit=3))


# -- producers -------------------------------------------------------------------------------------
#
# Producers of a partition: pages, on the leader only.


@runs(play)
async def test_a_leader_lists_what_is_not_committed(s: Scene) -> None:
    host = s.host()
    host.lead(state_of(1, 2, epoch=5), 1, lag_max_seconds=10.0)
    for producer_id in (7, 8):
        batch = batch_of(b"a", b"b", producer_id=producer_id, producer_epoch=0, base_sequence=0)
        host.append(batch, validate(batch))
    topics = SimpleNamespace(host=lambda _topic, _partition: host)
    context = cast(BrokerContext, SimpleNamespace(topics=topics))
    listed = list_producers(context, "t", 0, -1, skip=0, limit=1)
    assert (listed.total, listed.high_watermark, len(listed.producers)) == (2, 0, 1)
    assert listed.producers[0].producer_id == 8
    assert list_producers(context, "t", 0, -1, skip=1, limit=9).producers[0].producer_id == 7
    host.follow(2, 6)
    with pytest.raises(NotLeaderError):
        list_producers(context, "t", 0, -1, skip=0, limit=1)
