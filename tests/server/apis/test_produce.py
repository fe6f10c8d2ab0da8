"""Producer ids: nobody gets one that another has had."""

from __future__ import annotations

import itertools
import os
from itertools import pairwise
from pathlib import Path

import pytest

from raftlog.config import TopicConfig
from raftlog.errors import (
    CorruptBatchError,
    InvalidRequestError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RecordTooLargeError,
    UnknownPartitionError,
    UnknownProducerError,
    UnknownTopicError,
)
from raftlog.mirror.mirror import hole_of
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from raftlog.record import seal
from raftlog.security.producer_ids import NAMED_ID_BASE
from raftlog.server.apis import produce
from raftlog.types import NO_TIMESTAMP
from tests.record.batches import batch_of as keyed_batch
from tests.record.batches import resealed
from tests.server.harness import (
    Client,
    FakeClock,
    FaultyDisk,
    RunningBroker,
    batch_of,
    error_of,
    running,
)


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
    large, old = keyed_batch([b"x" * 3_000]), keyed_batch([b"x"], timestamps_ms=1)
    assert isinstance(error_of(client.produce("t", large)), RecordTooLargeError)
    assert isinstance(error_of(client.produce("t", old)), InvalidRequestError)
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
