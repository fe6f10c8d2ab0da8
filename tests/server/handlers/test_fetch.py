"""Fetch, and offsets by time."""

from __future__ import annotations

import threading
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raftlog.errors import (
    DamagedLogError,
    InvalidTopicError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    RecordsToDelete,
)
from raftlog.record.batch import CONTROL, TRANSACTIONAL
from raftlog.server.apis.fetch import PartRead, Read
from raftlog.storage import Log
from tests.server.harness import (
    Client,
    FaultyDisk,
    RunningBroker,
    batch_of,
    error_of,
    only,
    running,
    values_of,
)

# -- fetch -----------------------------------------------------------------------------------------

# Fetch: what is answered, when, and how much of it.


LONG_MS = 20_000


def test_a_fetch_in_the_middle_of_a_batch_gives_the_whole_batch(client: Client) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a", b"b", b"c"))
    client.produce("t", batch_of(b"d"))
    parts, values = client.fetch("t", 1)
    assert values == [b"a", b"b", b"c", b"d"]
    assert only(parts).high_watermark == 4
    assert only(parts).log_start_offset == 0


def test_a_copy_gets_to_know_what_the_leader_has_removed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a"))
    monkeypatch.setattr(Log, "tombstones_removed_below", 7)
    assert only(client.fetch("t")[0]).tombstones_removed_below == 7


def test_at_the_end_there_is_nothing_and_no_error(client: Client) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a"))
    assert client.fetch("t", 1) == ([], [])


def test_a_waiting_fetch_is_woken_by_the_commit(broker: RunningBroker, client: Client) -> None:
    client.create("t")
    with broker.client() as consumer:
        waiting = consumer.send_fetch("t", 0, wait_ms_max=LONG_MS)
        consumer.offset("t", "latest")
        assert not consumer.answered(waiting)
        client.produce("t", batch_of(b"a"))
        assert consumer.fetched(waiting)[1] == [b"a"]


def test_records_that_arrive_during_a_read_end_the_wait(
    broker: RunningBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of many partitions takes several turns. Nothing watches them until it waits."""
    read, reading, go_on = Read._read, threading.Event(), threading.Event()

    def slow_read(self: Read) -> Generator[Any, Any, list[PartRead]]:
        found = yield from read(self)
        reading.set()
        yield partial(go_on.wait, LONG_MS / 1_000)
        return found

    monkeypatch.setattr(Read, "_read", slow_read)
    client.create("t")
    with broker.client() as consumer:
        waiting = consumer.send_fetch("t", 0, wait_ms_max=LONG_MS)
        assert reading.wait(LONG_MS / 1_000)
        client.produce("t", batch_of(b"a"))
        go_on.set()
        consumer.offset("t", "latest")  # so the fetch has answered, or waits
        assert consumer.answered(waiting)
        assert consumer.fetched(waiting)[1] == [b"a"]


def test_records_that_are_not_committed_are_not_seen(client: Client, disk: FaultyDisk) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a"))
    disk.faults.sync_gate.clear()
    produced = client.send_batch("t", batch_of(b"b"))
    waiting = client.send_fetch("t", 1, wait_ms_max=LONG_MS)
    assert client.fetch("t", 0)[1] == [b"a"]
    assert client.fetch("t", 2) == ([], [])  # between the high watermark and the log's end
    assert not client.answered(waiting)
    disk.faults.sync_gate.set()
    assert client.fetched(waiting)[1] == [b"b"]
    client.produced(produced)


def test_bytes_min_is_waited_for(broker: RunningBroker, client: Client) -> None:
    client.create("t")
    batch = batch_of(b"x" * 1_000)
    client.produce("t", batch)
    with broker.client() as consumer:
        waiting = consumer.send_fetch("t", 0, wait_ms_max=LONG_MS, bytes_min=3 * len(batch))
        for _ in range(2):
            consumer.offset("t", "latest")
            assert not consumer.answered(waiting)
            client.produce("t", batch)
        assert len(consumer.fetched(waiting)[1]) == 3


def test_time_is_up_with_less_than_bytes_min(client: Client) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a"))
    _, values = client.fetch("t", 0, wait_ms_max=30, bytes_min=1_000_000)
    assert values == [b"a"]
    assert client.fetch("t", 1, wait_ms_max=1) == ([], [])


def test_limits_never_split_a_batch_nor_starve(client: Client) -> None:
    client.create("t", partitions=3)
    big = batch_of(b"x" * 10_000)
    for partition in range(3):
        for _ in range(2):
            client.produce("t", big, partition=partition)
    assert len(client.fetch("t", bytes_max=1)[1]) == 1
    assert len(client.fetch("t", bytes_max=len(big))[1]) == 1
    assert len(client.fetch("t", bytes_max=2 * len(big))[1]) == 2
    parts = [FetchPartition(topic="t", partition=number, offset=0) for number in range(3)]
    first_served = set()
    for bytes_max in (1, len(big), 2 * len(big) + 1):
        for _ in range(3):
            request = FetchRequest(partitions=parts, bytes_max=bytes_max, wait_ms_max=0)
            answer = client.answer(client.send(apis.FETCH, request))
            assert isinstance(answer.message, FetchResponse)
            count = max(1, bytes_max // len(big))
            assert len(values_of(answer.attachment)) == count
            assert sum(part.length for part in answer.message.partitions) == len(answer.attachment)
            first_served.add(answer.message.partitions[0].partition)
    assert first_served == {0, 1, 2}, "under a limit, every partition gets its turn"


def test_aborted_transactions_never_make_a_response_too_long(
    broker: RunningBroker, client: Client
) -> None:
    """Else a consumer gets an error each time, and reads nothing of its partitions any more."""
    client.create("t", partitions=3)

    def abort(partition: int) -> None:
        transactions = broker.broker.context.topics.host("t", partition).log.producers.transactions
        transactions.begin(1, 0)  # open meanwhile: the others are all of the first record's time
        for number in range(1 << 61, (1 << 61) + 80_000):
            transactions.begin(number, 0)
            transactions.end(number, 0, is_commit=False)
        transactions.end(1, 0, is_commit=True)

    for number in range(3):
        client.produce("t", batch_of(b"a"), partition=number)
        broker.call(partial(abort, number))
    parts = [FetchPartition(topic="t", partition=number, offset=0) for number in range(3)]
    request = FetchRequest(partitions=parts, isolation="committed")
    read = set()
    for _ in range(3):
        response = client.ask(apis.FETCH, request)
        assert isinstance(response, FetchResponse)
        assert len(only(response.partitions).aborted) == 80_000
        read.add(only(response.partitions).partition)
    assert read == {0, 1, 2}


def test_partitions_with_nothing_new_are_left_out(client: Client) -> None:
    client.create("t", partitions=3)
    client.produce("t", batch_of(b"a"), partition=1)
    parts = [FetchPartition(topic="t", partition=number, offset=0) for number in range(3)]
    answer: FetchResponse = client.ask(apis.FETCH, FetchRequest(partitions=parts))
    assert only(answer.partitions).partition == 1


def test_failures_are_per_partition_and_end_the_wait(client: Client) -> None:
    client.create("t", partitions=2)
    client.produce("t", batch_of(b"a"))
    parts = [
        FetchPartition(topic="t", partition=0, offset=0),
        FetchPartition(topic="t", partition=1, offset=99),
        FetchPartition(topic="t", partition=9, offset=0),
        FetchPartition(topic="nope", partition=0, offset=0),
    ]
    request = FetchRequest(partitions=parts, wait_ms_max=LONG_MS, bytes_min=1_000_000)
    answer = client.answer(client.send(apis.FETCH, request))
    assert isinstance(answer.message, FetchResponse)
    found = {(p.topic, p.partition, p.failure is None): p for p in answer.message.partitions}
    assert len(found) == 4
    assert isinstance(error_of(found["t", 1, False]), OffsetOutOfRangeError)
    assert isinstance(error_of(found["t", 9, False]), UnknownPartitionError)
    assert isinstance(error_of(found["nope", 0, False]), UnknownTopicError)
    assert values_of(answer.attachment) == [b"a"]


def test_deleting_the_topic_ends_a_wait(broker: RunningBroker, client: Client) -> None:
    client.create("t")
    with broker.client() as consumer:
        waiting = consumer.send_fetch("t", 0, wait_ms_max=LONG_MS)
        consumer.send_fetch("t", 0, wait_ms_max=LONG_MS, bytes_min=1_000_000)
        consumer.offset("t", "latest")
        client.ask(apis.DELETE_TOPICS, DeleteTopicsRequest(topics=["t"]))
        parts, _ = consumer.fetched(waiting)
        assert isinstance(error_of(only(parts)), UnknownTopicError)


def test_a_fetch_does_not_hold_up_other_requests(client: Client) -> None:
    client.create("t")
    waiting = client.send_fetch("t", 0, wait_ms_max=LONG_MS)
    assert client.produce("t", batch_of(b"a")).base_offset == 0
    assert client.fetched(waiting)[1] == [b"a"]


def test_a_closed_connection_leaves_nothing_waiting(broker: RunningBroker, client: Client) -> None:
    client.create("t")
    consumer = broker.client()
    consumer.send_fetch("t", 0, wait_ms_max=LONG_MS)
    consumer.offset("t", "latest")
    purgatory = broker.broker.context.purgatory
    assert broker.call(lambda: len(purgatory)) == 1
    consumer.close()
    broker.wait_until(lambda: len(purgatory) == 0)
    client.produce("t", batch_of(b"a"))


@pytest.mark.parametrize("bytes_max", [1_024, 5_000])
def test_the_brokers_own_limit_holds(tmp_path, bytes_max: int) -> None:  # type: ignore[no-untyped-def]
    with running(tmp_path, fetch_max_bytes=str(bytes_max)) as broker, broker.client() as client:
        client.create("t")
        for _ in range(10):
            client.produce("t", batch_of(b"x" * 900))
        _, values = client.fetch("t", bytes_max=1 << 20)
        assert len(values) == max(1, bytes_max // len(batch_of(b"x" * 900)))


# -- damage ----------------------------------------------------------------------------------------


def doubtful(client: Client, offset: int, *, doubt: bool = True) -> FetchedPartition | None:
    """A fetch by a client that has got damaged bytes from there on before, whole or not."""
    part = FetchPartition(topic="t", partition=0, offset=offset, doubtful=doubt)
    message = client.ask(apis.FETCH, FetchRequest(partitions=[part], wait_ms_max=0))
    assert isinstance(message, FetchResponse)
    return only(message.partitions) if message.partitions else None


def harm(broker: RunningBroker, client: Client, *, byte: int, batch: int = 2, bit: int = 4) -> Log:
    """Four batches of a record; a bit of one of them flips on the disk."""
    client.create("t")
    sizes = [len(batch_of(b"x" * 200)) for _ in range(4)]
    for _ in sizes:
        client.produce("t", batch_of(b"x" * 200))
    log = broker.broker.context.topics.host("t", 0).log
    path = Path(log.directory) / f"{0:020d}.log"
    stored = bytearray(path.read_bytes())
    stored[sum(sizes[:batch]) + byte] ^= bit
    with path.open("r+b") as file:
        file.write(stored)
    return log


PAYLOAD, HEADER, ATTRIBUTES = 150, 3, 44


def test_who_got_damaged_bytes_has_the_broker_look_at_its_disk(
    broker: RunningBroker, client: Client
) -> None:
    log = harm(broker, client, byte=PAYLOAD)
    answer = doubtful(client, 2, doubt=False)
    assert answer is not None
    assert answer.length > 0, "bytes are sent as they are"
    assert not log.damage
    answer = doubtful(client, 0)
    assert answer is not None
    assert answer.length == 2 * len(batch_of(b"x" * 200)), "up to the damage"
    assert "offset 2" in log.damage
    for offset in (2, 3):
        answer = doubtful(client, offset)
        assert answer is not None
        assert isinstance(error_of(answer), DamagedLogError)
    assert len(client.fetch("t", 1)[1]) == 1, "what is good is still read"
    assert broker.broker.context.counters.damage_found == 1


def test_a_batch_that_turns_into_a_marker_is_damage_and_not_left_out(
    broker: RunningBroker, client: Client
) -> None:
    """A client of an earlier release gets no markers."""
    log = harm(broker, client, byte=ATTRIBUTES, bit=CONTROL | TRANSACTIONAL)
    answer = doubtful(client, 0, doubt=False)
    assert answer is not None
    assert answer.length == 2 * len(batch_of(b"x" * 200)), "up to the damage"
    assert "offset 2" in log.damage


def test_a_doubt_without_reason_changes_nothing(broker: RunningBroker, client: Client) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a"))
    answer = doubtful(client, 0)
    assert answer is not None
    assert answer.length > 0
    assert doubtful(client, 1) is None
    answer = doubtful(client, 9)
    assert answer is not None
    assert isinstance(error_of(answer), OffsetOutOfRangeError)
    assert broker.broker.context.counters.damage_found == 0
    client.produce("t", batch_of(b"b"))


def test_a_broker_that_cannot_read_its_log_notes_it(broker: RunningBroker, client: Client) -> None:
    log = harm(broker, client, byte=HEADER)
    parts, values = client.fetch("t", 0, bytes_max=2 * len(batch_of(b"x" * 200)) + 1)
    assert len(values) == 2, "up to the damage"
    assert log.damage
    assert log.readable_end_offset == 2
    parts, _ = client.fetch("t", 2)
    assert isinstance(error_of(only(parts)), DamagedLogError)
    refused = client.produce("t", batch_of(b"e"))
    assert isinstance(error_of(refused), DamagedLogError)


def test_what_is_good_of_a_copy_that_leads_no_more_is_read(
    broker: RunningBroker, client: Client
) -> None:
    log = harm(broker, client, byte=PAYLOAD)
    host = broker.broker.context.topics.host("t", 0)
    broker.call(lambda: host.follow(None, host.leader_epoch))
    assert isinstance(error_of(only(client.fetch("t", 0)[0])), NotLeaderError)
    broker.call(lambda: log.note_damage("found by a test", offset=2))
    assert len(client.fetch("t", 0)[1]) == 2
    assert isinstance(error_of(only(client.fetch("t", 2)[0])), DamagedLogError)


# -- list offsets ----------------------------------------------------------------------------------

# List offsets: beginnings, ends and times.


def test_beginning_and_end(client: Client) -> None:
    client.create("t")
    assert (client.offset("t", "earliest").offset, client.offset("t", "latest").offset) == (0, 0)
    client.produce("t", batch_of(b"a", b"b", b"c"))
    deletion = RecordsToDelete(topic="t", partition=0, before_offset=2)
    client.ask(apis.DELETE_RECORDS, DeleteRecordsRequest(partitions=[deletion]))
    assert (client.offset("t", "earliest").offset, client.offset("t", "latest").offset) == (2, 3)
    assert client.offset("t", "latest").leader_epoch == 1


def test_a_time_gives_the_first_record_at_or_after_it(client: Client) -> None:
    client.create("t")
    for timestamp_ms in (1_000, 2_000, 3_000):
        client.produce("t", batch_of(b"a", timestamp_ms=timestamp_ms))
    found = [client.offset("t", at) for at in (0, 1_000, 1_001, 3_000)]
    assert [(answer.offset, answer.timestamp_ms) for answer in found] == [
        (0, 1_000),
        (0, 1_000),
        (1, 2_000),
        (2, 3_000),
    ]
    assert client.offset("t", 3_001).offset == -1


def test_only_what_is_committed_counts(client: Client, disk: FaultyDisk) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a", timestamp_ms=1_000))
    disk.faults.sync_gate.clear()
    sent = client.send_batch("t", batch_of(b"b", timestamp_ms=2_000))
    assert client.offset("t", "latest").offset == 1
    assert client.offset("t", 2_000).offset == -1
    disk.faults.sync_gate.set()
    client.produced(sent)
    assert client.offset("t", 2_000).offset == 1


def test_what_does_not_exist(client: Client) -> None:
    client.create("t")
    assert isinstance(error_of(client.offset("t", "latest", partition=1)), UnknownPartitionError)
    assert isinstance(error_of(client.offset("nope", "latest")), UnknownTopicError)
    assert isinstance(error_of(client.offset("../t", "latest")), InvalidTopicError)
