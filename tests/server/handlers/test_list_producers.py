"""List producers: what the leader knows of them, committed or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog import limits
from raftlog.errors import (
    FencedLeaderEpochError,
    InvalidRequestError,
    NotLeaderError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    ListedPartition,
    ListedProducers,
    ListProducersRequest,
    ListProducersResponse,
)
from tests.server.harness import (
    Client,
    FaultyDisk,
    RunningBroker,
    batch_of,
    error_of,
    only,
    running,
)

ID = (1 << 62) + 7


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


def test_each_partition_has_its_own_outcome(broker: RunningBroker, client: Client) -> None:
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
