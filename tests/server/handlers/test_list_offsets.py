"""List offsets: beginnings, ends and times."""

from __future__ import annotations

from raftlog.errors import InvalidTopicError, UnknownPartitionError, UnknownTopicError
from raftlog.protocol import api as apis
from raftlog.protocol.records import DeleteRecordsRequest, RecordsToDelete
from tests.server.harness import Client, FaultyDisk, batch_of, error_of


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
