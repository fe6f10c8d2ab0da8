"""Consumer groups over the wire, and the topic of their state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog.consumer_groups import partition_of_group
from raftlog.errors import (
    InvalidTopicError,
    NotCoordinatorError,
    RetriableError,
    StorageError,
)
from raftlog.protocol import api as apis
from raftlog.protocol import records
from raftlog.protocol.records import (
    AddPartitionsRequest,
    AlterTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    MetadataRequest,
    MetadataResponse,
    RecordsToDelete,
    TopicToAlter,
    TopicToExtend,
)
from raftlog.types import OFFSETS_TOPIC
from tests.server.handlers.group_client import GroupClient, at, group_client, partitions_of
from tests.server.harness import (
    Client,
    FaultyDisk,
    RunningBroker,
    batch_of,
    error_of,
    only,
    running,
)

# -- groups ----------------------------------------------------------------------------------------

# Consumer groups over the wire: disks that are full, restarts, and topics that change.


@pytest.fixture
def groups(client: Client) -> GroupClient:
    return group_client(client)


# -- disks, restarts, the end


def test_a_commit_is_told_when_it_is_on_the_disk(groups: GroupClient, disk: FaultyDisk) -> None:
    groups.commit(at(0, 5))
    disk.faults.sync_gate.clear()
    commit = records.OffsetCommitRequest(group="g", offsets=[at(0, 6)])
    sent = groups.client.send(apis.OFFSET_COMMIT, commit)
    read = groups.client.send(apis.OFFSET_FETCH, records.OffsetFetchRequest(group="g"))
    groups.find("g")
    assert not groups.client.answered(sent, read)
    disk.faults.sync_gate.set()
    assert isinstance(groups.client.answer(sent).message, records.OffsetCommitResponse)
    answer = groups.client.answer(read).message
    assert isinstance(answer, records.OffsetFetchResponse)
    assert only(answer.offsets).offset == 6


def test_a_full_disk_refuses_commits_and_forgets_nothing(
    groups: GroupClient, disk: FaultyDisk
) -> None:
    groups.commit(at(0, 5))
    disk.faults.no_room = True
    with pytest.raises(RetriableError, match="no space"):
        groups.commit(at(0, 6))
    assert groups.fetch_when_read() == {0: 5}
    disk.faults.no_room = False
    groups.commit(at(0, 7))
    assert groups.fetch() == {0: 7}


def test_a_restart_keeps_members_and_offsets(tmp_path: Path) -> None:
    with running(tmp_path / "data") as broker, broker.client() as client:
        client.create("t", 4)
        groups = GroupClient(client)
        groups.find("g")
        joined = groups.join("m")
        groups.commit(at(0, 5), member="m", epoch=joined.member_epoch)
    with running(tmp_path / "data") as broker, broker.client() as client:
        groups = GroupClient(client)
        again = groups.beat("m", joined.member_epoch, owned=joined.assignment)
        assert (again.member_epoch, again.assignment) == (joined.member_epoch, joined.assignment)
        groups.commit(at(1, 6), member="m", epoch=joined.member_epoch)
        assert groups.fetch() == {0: 5, 1: 6}


@pytest.fixture
def waiting(groups: GroupClient) -> Iterator[int]:
    """A heartbeat that waits."""
    joined = groups.join("m")
    return iter(
        [groups.send_beat("m", joined.member_epoch, owned=joined.assignment, wait_ms=15_000)]
    )


def test_a_broker_that_stops_sends_its_members_away(
    broker: RunningBroker, groups: GroupClient, waiting: Iterator[int]
) -> None:
    assert groups.listed()
    broker.stop()
    assert isinstance(groups.client.answer(next(waiting)).message, NotCoordinatorError)


def test_new_topics_answer_heartbeats(groups: GroupClient) -> None:
    """Members that subscribe to a pattern look at the names of topics then."""
    joined = groups.join("m")
    groups.client.create("another")
    answer = joined
    while answer.metadata_version == joined.metadata_version:
        answer = groups.wait(joined)
    assert answer.metadata_version > joined.metadata_version


def test_more_partitions_are_shared_out(groups: GroupClient) -> None:
    joined = groups.join("m")
    more = AddPartitionsRequest(topics=[TopicToExtend(name="t", partitions=6)])
    groups.client.ask(apis.ADD_PARTITIONS, more)
    answer = joined
    while partitions_of(answer) == {0, 1, 2, 3}:
        answer = groups.wait(joined)
    assert partitions_of(answer) == set(range(6))


def test_a_damaged_partition_hurts_its_own_groups_only(tmp_path: Path) -> None:
    hurt, sound = "a", "b"
    assert partition_of_group(hurt, 16) != partition_of_group(sound, 16)
    with running(tmp_path / "data") as broker, broker.client() as client:
        groups = group_client(client)
        for offset in range(5):
            for group in (hurt, sound):
                groups.commit(at(0, offset), group=group)
        topic = broker.call(lambda: broker.broker.context.topics.topic(OFFSETS_TOPIC))
        host = topic.hosts[partition_of_group(hurt, 16)]
        assert host is not None
        directory = Path(host.log.directory)
    (segment,) = directory.glob("*.log")
    stored = bytearray(segment.read_bytes())
    stored[len(stored) // 2] ^= 0xFF
    segment.write_bytes(stored)
    with running(tmp_path / "data") as broker, broker.client() as client:
        groups = GroupClient(client)
        with pytest.raises(StorageError, match="cannot read"):
            groups.fetch_when_read(group=hurt)
        with pytest.raises(StorageError):
            groups.join("m", group=hurt)
        assert groups.fetch(group=sound) == {0: 4}
        groups.commit(at(0, 9), group=sound)


def test_compaction_keeps_what_is_committed(tmp_path: Path) -> None:
    """Most records are gone then, and tombstones have their effect still."""
    settings = {"offsets_topic_num_partitions": "1", "offsets_topic_segment_bytes": "16384"}
    with running(tmp_path / "data", **settings) as broker, broker.client() as client:
        groups = group_client(client)
        joined = groups.join("m", group="members")
        groups.commit(at(0, 7), group="deleted")
        for offset in range(600):
            groups.commit(at(offset % 3, offset, metadata="of job 7"))
        groups.delete("deleted")
        for offset in range(600, 900):
            groups.commit(at(offset % 3, offset))
        context = broker.broker.context
        (host,) = broker.call(lambda: context.topics.topic(OFFSETS_TOPIC).local_hosts())
        before = host.log.size_bytes
        broker.await_(broker.broker.housekeeping.compactor.step())
        assert host.log.size_bytes < before / 2
    with running(tmp_path / "data", **settings) as broker, broker.client() as client:
        groups = GroupClient(client)
        assert groups.fetch_when_read() == {0: 897, 1: 898, 2: 899}
        assert set(groups.listed()) == {"g", "members"}
        again = groups.beat("m", joined.member_epoch, group="members", owned=joined.assignment)
        assert again.assignment == joined.assignment


# -- the topic -------------------------------------------------------------------------------------

# The topic of consumer groups: clients read it, and nothing else.


# -- the topic itself


def test_clients_do_not_write_it(groups: GroupClient) -> None:
    client = groups.client
    for name in (OFFSETS_TOPIC, "__raftlog-mine"):
        assert isinstance(error_of(client.create(name)), InvalidTopicError)
        produced = client.produce(name, batch_of(b"a"))
        assert isinstance(error_of(produced), InvalidTopicError)
    deletion = RecordsToDelete(topic=OFFSETS_TOPIC, partition=0, before_offset=-1)
    answer = client.ask(apis.DELETE_RECORDS, DeleteRecordsRequest(partitions=[deletion]))
    assert isinstance(error_of(only(answer.partitions)), InvalidTopicError)


@pytest.mark.parametrize(
    ("api", "message"),
    [
        (apis.DELETE_TOPICS, DeleteTopicsRequest(topics=[OFFSETS_TOPIC])),
        (
            apis.ADD_PARTITIONS,
            AddPartitionsRequest(topics=[TopicToExtend(name=OFFSETS_TOPIC, partitions=17)]),
        ),
        (
            apis.ALTER_TOPICS,
            AlterTopicsRequest(
                topics=[TopicToAlter(name=OFFSETS_TOPIC, config={"cleanup.policy": "delete"})]
            ),
        ),
    ],
    ids=["delete", "extend", "alter"],
)
def test_clients_do_not_change_it(groups: GroupClient, api: Any, message: Any) -> None:
    failed = only(groups.client.ask(api, message).results)
    assert isinstance(error_of(failed), InvalidTopicError)
    groups.commit(at(0, 5))
    assert groups.fetch() == {0: 5}


def test_an_operator_may_lower_how_many_have_to_be_in_sync(groups: GroupClient) -> None:
    """As the refusal of a write advises."""
    change = TopicToAlter(name=OFFSETS_TOPIC, config={"min.insync.replicas": "1"})
    answer = groups.client.ask(apis.ALTER_TOPICS, AlterTopicsRequest(topics=[change]))
    assert only(answer.results).failure is None


def test_it_is_shown_and_marked(groups: GroupClient) -> None:
    metadata: MetadataResponse = groups.client.ask(apis.METADATA, MetadataRequest())
    assert {topic.name: topic.is_internal for topic in metadata.topics} == {
        OFFSETS_TOPIC: True,
        "t": False,
    }
    described: DescribeTopicsResponse = groups.client.ask(
        apis.DESCRIBE_TOPICS, DescribeTopicsRequest()
    )
    assert {topic.name: topic.is_internal for topic in described.topics} == {
        OFFSETS_TOPIC: True,
        "t": False,
    }


def test_it_can_be_read(groups: GroupClient) -> None:
    groups.commit(at(0, 5))
    hosts = [groups.client.offset(OFFSETS_TOPIC, "latest", partition=p).offset for p in range(16)]
    assert sum(hosts) > 0
