"""Delete records: the log's start moves, durably, and no further than what is committed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from raftlog.errors import (
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    DeletedRecords,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    RecordsToDelete,
)
from raftlog.server.apis.topics import DELETE_SECONDS_MAX, handle_delete_records
from raftlog.server.context import BrokerContext
from tests.running import runs
from tests.server.cluster.paper import PaperReply, Scene, play, state_of, write
from tests.server.harness import Client, batch_of, error_of, only, running


def delete(client: Client, before: int, *, topic: str = "t", partition: int = 0) -> DeletedRecords:
    part = RecordsToDelete(topic=topic, partition=partition, before_offset=before)
    answer: DeleteRecordsResponse = client.ask(
        apis.DELETE_RECORDS, DeleteRecordsRequest(partitions=[part])
    )
    return only(answer.partitions)


def test_records_below_the_offset_are_gone_for_good(tmp_path: Path) -> None:
    with running(tmp_path) as broker, broker.client() as client:
        client.create("t")
        for number in range(10):
            client.produce("t", batch_of(b"%d" % number))
        assert delete(client, 4).log_start_offset == 4
        below, _ = client.fetch("t", 3)
        assert isinstance(error_of(only(below)), OffsetOutOfRangeError)
        assert client.fetch("t", 4)[1] == [b"%d" % number for number in range(4, 10)]
    with running(tmp_path) as broker, broker.client() as client:
        assert client.offset("t", "earliest").offset == 4


def test_all_that_is_committed(client: Client) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a", b"b"))
    assert delete(client, -1).log_start_offset == 2
    assert client.produce("t", batch_of(b"c")).base_offset == 2


def test_the_start_does_not_go_back(client: Client) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a", b"b", b"c"))
    assert delete(client, 2).log_start_offset == 2
    assert delete(client, 1).log_start_offset == 2


def test_each_partition_has_its_own_outcome(client: Client) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a"))
    assert isinstance(error_of(delete(client, 2)), OffsetOutOfRangeError)
    assert isinstance(error_of(delete(client, 0, partition=1)), UnknownPartitionError)
    assert isinstance(error_of(delete(client, 0, topic="nope")), UnknownTopicError)
    assert delete(client, 1).log_start_offset == 1


@runs(play)
async def test_a_replica_that_does_not_confirm_is_waited_for_for_a_while(s: Scene) -> None:
    """Then nobody knows what a later leader will have."""
    log = s.log()
    write(log, b"a", b"b")
    host = s.host(log)
    host.lead(state_of(1, 2, epoch=5), 1, lag_max_seconds=10)
    host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2)
    topics = SimpleNamespace(host=lambda _topic, _partition: host)
    context = cast("BrokerContext", SimpleNamespace(topics=topics, loop=s.loop))
    parts = [RecordsToDelete(topic="t", partition=n, before_offset=n) for n in (2, 9)]
    request = SimpleNamespace(message=DeleteRecordsRequest(partitions=parts))
    reply = PaperReply()
    for _ in handle_delete_records(context, cast("Request", request), reply.as_reply):
        pass
    await asyncio.sleep(DELETE_SECONDS_MAX - 1)
    assert reply.answers == []
    await asyncio.sleep(2)
    ((message, _),) = reply.answers
    slow, refused = message.partitions
    assert isinstance(error_of(slow), OutcomeUnknownError)
    assert isinstance(error_of(refused), OffsetOutOfRangeError)
    host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2, log_start=2)
    assert len(reply.answers) == 1
