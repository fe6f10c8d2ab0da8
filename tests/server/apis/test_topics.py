"""What a client learns first, and deletion of records."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from raftlog import Admin, limits
from raftlog.config import Address, TopicConfig
from raftlog.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidRequestError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import DescribeClusterRequest, DescribeClusterResponse
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    AddPartitionsRequest,
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeletedRecords,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    MetadataRequest,
    MetadataResponse,
    RecordsToDelete,
    TopicDescription,
    TopicsResponse,
    TopicToAlter,
    TopicToCreate,
    TopicToExtend,
)
from raftlog.protocol.schema import PartitionRange
from raftlog.protocol.security import ApiVersionsRequest, ApiVersionsResponse
from raftlog.server.apis.topics import (
    DELETE_SECONDS_MAX,
    Changed,
    change_each,
    create_soon,
    handle_delete_records,
)
from raftlog.server.context import BrokerContext
from raftlog.server.dispatch import HANDLERS
from tests.running import runs
from tests.server.cluster.fake import FakeReply, Scene, play, state_of, write
from tests.server.harness import (
    Client,
    FaultyDisk,
    RunningBroker,
    batch_of,
    error_of,
    only,
    running,
)

# -- API versions ----------------------------------------------------------------------------------

# API versions: what a client learns first.


def test_every_api_is_named_and_served(broker: RunningBroker, client: Client) -> None:
    answer: ApiVersionsResponse = client.ask(apis.API_VERSIONS, ApiVersionsRequest())
    assert {spoken.api for spoken in answer.apis} == set(apis.APIS) == set(HANDLERS)
    assert answer.broker_id == 1
    assert answer.cluster_id
    assert answer.broker_software.startswith("raftlog")


# -- metadata --------------------------------------------------------------------------------------
#
# Metadata: brokers, topics, and where clients are told to connect.


def ask(client: Client, topics: list[str] | None = None) -> MetadataResponse:
    answer: MetadataResponse = client.ask(apis.METADATA, MetadataRequest(topics=topics))
    return answer


def test_the_broker_names_the_address_it_listens_on(broker: RunningBroker, client: Client) -> None:
    info = only(ask(client).brokers)
    assert (info.id, info.host, info.port) == (1, *broker.address)
    assert info.rack is None


def test_an_advertised_address_and_a_rack(tmp_path: Path) -> None:
    settings = {"advertised_listen": "logs.example:9100", "rack": "north", "id": "7"}
    with running(tmp_path, **settings) as broker, broker.client() as client:
        info = only(ask(client).brokers)
        assert (info.id, info.host, info.port, info.rack) == (7, "logs.example", 9100, "north")


def test_who_listens_everywhere_is_found_where_the_client_found_it(tmp_path: Path) -> None:
    with running(tmp_path, listen="0.0.0.0:0") as broker:
        for host in ("127.0.0.1", "127.0.0.2"):
            with Client(Address(host, broker.address.port)) as client:
                info = only(ask(client).brokers)
                assert (info.host, info.port) == (host, broker.address.port)


def test_all_topics_or_those_asked_for(client: Client) -> None:
    client.create("b", partitions=2, max_message_bytes="5000")
    client.create("a", message_timestamp_type="LogAppendTime")
    topics = ask(client).topics
    assert [topic.name for topic in topics] == ["a", "b"]
    assert [topic.timestamp_type for topic in topics] == ["LogAppendTime", "CreateTime"]
    assert topics[1].max_message_bytes == 5_000
    assert [(p.partition, p.leader, p.isr) for p in topics[1].partitions] == [
        (0, 1, [1]),
        (1, 1, [1]),
    ]
    span = PartitionRange(start=1, count=9)
    request = MetadataRequest(topics=["b"], span=span)
    (part,) = client.ask(apis.METADATA, request).topics
    assert part.partitions == topics[1].partitions[1:]
    assert ask(client, []).topics == []
    named = ask(client, ["b", "nope", "a/b"]).topics
    assert named[0] == topics[1]
    assert isinstance(error_of(named[1]), UnknownTopicError)
    assert isinstance(error_of(named[2]), InvalidTopicError)


def test_cluster_id_outlives_a_restart(tmp_path: Path) -> None:
    seen = set()
    for _ in range(2):
        with running(tmp_path) as broker, broker.client() as client:
            seen.add(ask(client).cluster_id)
    assert len(seen) == 1


# -- topics ----------------------------------------------------------------------------------------

# Delete records: the log's start moves, durably, and no further than what is committed.


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
    reply = FakeReply()
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


# -- topics ----------------------------------------------------------------------------------------
#
# Topic administration: each topic's outcome, and what is left after a restart.


LONG_MS = 20_000


def describe(client: Client, *names: str) -> list[TopicDescription]:
    request = DescribeTopicsRequest(topics=list(names) or None)
    answer: DescribeTopicsResponse = client.ask(apis.DESCRIBE_TOPICS, request)
    return answer.topics


def create(client: Client, *topics: TopicToCreate, validate_only: bool = False) -> TopicsResponse:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    answer: TopicsResponse = client.ask(apis.CREATE_TOPICS, request)
    return answer


def alter(client: Client, name: str, config: dict[str, str | None]) -> Any:
    request = AlterTopicsRequest(topics=[TopicToAlter(name=name, config=config)])
    answer: TopicsResponse = client.ask(apis.ALTER_TOPICS, request)
    return only(answer.results)


def test_create_and_describe(client: Client) -> None:
    made = create(client, TopicToCreate(name="t", partitions=2, config={"retention.ms": "5000"}))
    result = only(made.results)
    assert result.failure is None
    client.produce("t", batch_of(b"a", b"b"), partition=1)
    topic = only(describe(client, "t"))
    assert (topic.name, topic.id) == ("t", result.id)
    assert topic.config["retention.ms"] == "5000"
    assert topic.config["cleanup.policy"] == "delete"
    assert topic.config_overrides == ["retention.ms"]
    assert [p.high_watermark for p in topic.partitions] == [0, 2]
    assert topic.partitions[1].log_end_offset == 2
    assert topic.partitions[1].size_bytes > 88
    assert topic.partitions[1].damage == ""
    assert [name.name for name in describe(client)] == ["t"]


REFUSED = [
    (TopicToCreate(name="a/b"), InvalidTopicError),
    (TopicToCreate(name=".."), InvalidTopicError),
    (TopicToCreate(name="two words"), InvalidTopicError),
    (TopicToCreate(name="x" * 300), InvalidTopicError),
    (TopicToCreate(name="grün"), InvalidTopicError),
    (TopicToCreate(name="there"), TopicExistsError),
    (TopicToCreate(name="n", partitions=0), InvalidPartitionsError),
    (TopicToCreate(name="n", partitions=-1), InvalidPartitionsError),
    (TopicToCreate(name="n", partitions=10_001), InvalidPartitionsError),
    (TopicToCreate(name="n", replication_factor=3), InvalidPartitionsError),
    (TopicToCreate(name="n", config={"no.such.key": "1"}), InvalidConfigError),
    (TopicToCreate(name="n", config={"retention.ms": "soon"}), InvalidConfigError),
    (TopicToCreate(name="n", config={"segment.bytes": "1"}), InvalidConfigError),
]


@pytest.mark.parametrize("validate_only", [False, True])
def test_a_refused_topic_does_not_hurt_its_neighbours(client: Client, validate_only: bool) -> None:
    client.create("there")
    topics = [topic for topic, _ in REFUSED]
    good = [TopicToCreate(name="first"), *topics, TopicToCreate(name="last")]
    results = create(client, *good, validate_only=validate_only).results
    assert [result.name for result in results] == [topic.name for topic in good]
    for result, (topic, error) in zip(results[1:-1], REFUSED, strict=True):
        assert isinstance(error_of(result), error), topic
    assert results[0].failure is None
    assert results[-1].failure is None
    names = {topic.name for topic in describe(client)}
    assert names == ({"there"} if validate_only else {"there", "first", "last"})


def test_the_replication_factor_error_says_that_there_are_no_others(client: Client) -> None:
    made = create(client, TopicToCreate(name="n", replication_factor=3))
    assert "this cluster has 1 broker" in str(error_of(only(made.results)))


def test_alter_sets_and_resets_keys_at_once(client: Client) -> None:
    client.create("t", max_message_bytes="2000")
    big = batch_of(b"x" * 3_000)
    assert client.produce("t", big).failure is not None
    assert alter(client, "t", {"max.message.bytes": "10000", "retention.ms": "7"}).failure is None
    assert client.produce("t", big).failure is None
    assert only(describe(client, "t")).config_overrides == ["max.message.bytes", "retention.ms"]
    assert alter(client, "t", {"retention.ms": None}).failure is None
    assert only(describe(client, "t")).config_overrides == ["max.message.bytes"]
    assert isinstance(error_of(alter(client, "t", {"nope": "1"})), InvalidConfigError)
    assert isinstance(error_of(alter(client, "t", {"nope": None})), InvalidConfigError)
    assert isinstance(error_of(alter(client, "other", {})), UnknownTopicError)


def test_another_flush_policy_releases_those_who_wait(
    broker: RunningBroker, client: Client, disk: FaultyDisk
) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a"))
    disk.faults.sync_gate.clear()
    waiting = client.send_batch("t", batch_of(b"b"))
    host = broker.broker.context.topics.host("t", 0)

    def unsynced() -> None:
        host.log.config = TopicConfig(flush_policy="os")
        host.reconsider()

    broker.call(unsynced)
    assert client.produced(waiting).base_offset == 1
    disk.faults.sync_gate.set()


def test_one_copy_is_not_left_to_the_page_cache(client: Client) -> None:
    client.create("t")
    unsynced = TopicToCreate(name="u", partitions=1, config={"flush.policy": "os"})
    refusals = [
        only(create(client, unsynced).results),
        only(create(client, unsynced, validate_only=True).results),
        alter(client, "t", {"flush.policy": "os"}),
    ]
    for refusal in refusals:
        assert isinstance(error_of(refusal), InvalidConfigError)


def test_add_partitions(client: Client) -> None:
    client.create("t")

    def extend(name: str, total: int) -> Any:
        request = AddPartitionsRequest(topics=[TopicToExtend(name=name, partitions=total)])
        answer: TopicsResponse = client.ask(apis.ADD_PARTITIONS, request)
        return only(answer.results)

    assert extend("t", 3).failure is None
    assert client.produce("t", batch_of(b"a"), partition=2).base_offset == 0
    assert isinstance(error_of(extend("t", 3)), InvalidPartitionsError)
    assert isinstance(error_of(extend("t", 1)), InvalidPartitionsError)
    assert isinstance(error_of(extend("nope", 2)), UnknownTopicError)
    assert len(only(describe(client, "t")).partitions) == 3


def topics_delete(client: Client, *names: str) -> TopicsResponse:
    answer: TopicsResponse = client.ask(apis.DELETE_TOPICS, DeleteTopicsRequest(topics=[*names]))
    return answer


def test_a_deleted_topic_is_gone_and_its_name_is_free(client: Client) -> None:
    old = client.create("t")
    client.produce("t", batch_of(b"old"))
    results = topics_delete(client, "t", "t").results
    assert results[0].failure is None
    assert isinstance(error_of(results[1]), UnknownTopicError)
    assert isinstance(error_of(client.produce("t", batch_of(b"x"))), UnknownTopicError)
    assert client.create("t").id != old.id
    assert client.fetch("t") == ([], [])


def test_deletion_ends_waiting_produces_and_waits_for_the_disk(
    client: Client, broker: RunningBroker, disk: FaultyDisk
) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a"))
    disk.faults.sync_gate.clear()
    waiting = client.send_batch("t", batch_of(b"b"))
    with broker.client() as admin:
        deletion = admin.send(apis.DELETE_TOPICS, DeleteTopicsRequest(topics=["t"]))
        assert isinstance(error_of(client.produced(waiting)), UnknownTopicError)
        assert isinstance(error_of(client.offset("t", "latest")), UnknownTopicError)
        disk.faults.sync_gate.set()
        admin.answer(deletion)
    assert broker.fatal == []
    assert client.create("t").failure is None


def test_administration_outlives_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as broker, broker.client() as client:
        client.create("kept", partitions=2, retention_ms="5000")
        client.create("gone")
        client.produce("kept", batch_of(b"a"), partition=1)
        topics_delete(client, "gone")
        before = only(describe(client))
    with running(tmp_path) as broker, broker.client() as client:
        after = only(describe(client))
        assert (after.id, after.config, after.config_overrides) == (
            before.id,
            before.config,
            before.config_overrides,
        )
        assert [p.high_watermark for p in after.partitions] == [0, 1]
        epochs = [[p.info.leader_epoch for p in topic.partitions] for topic in (before, after)]
        assert epochs == [[1, 1], [2, 2]], "who leads again does so in a new epoch"
        assert client.fetch("kept", partition=1)[1] == [b"a"]


def test_describing_what_does_not_exist(client: Client) -> None:
    topics = describe(client, "nope", "a/b")
    assert isinstance(error_of(topics[0]), UnknownTopicError)
    assert isinstance(error_of(topics[1]), InvalidTopicError)


def test_a_part_of_the_partitions_is_described(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PARTITIONS_DESCRIBED_MAX", 4)
    for name in ("a", "b"):
        client.create(name, partitions=9)

    def numbers(start: int, count: int) -> list[list[int]]:
        span = PartitionRange(start=start, count=count)
        described: DescribeTopicsResponse = client.ask(
            apis.DESCRIBE_TOPICS, DescribeTopicsRequest(topics=["a", "b"], span=span)
        )
        assert [topic.partition_count for topic in described.topics] == [9, 9]
        status: DescribeClusterResponse = client.ask(
            apis.DESCRIBE_CLUSTER, DescribeClusterRequest(topics=["a"], span=span)
        )
        found = [[p.info.partition for p in topic.partitions] for topic in described.topics]
        assert [part.partition for part in status.partitions] == found[0]
        return found

    assert numbers(3, 2) == [[3, 4], [3, 4]]
    assert numbers(8, 2) == [[8], [8]]
    assert numbers(9, 2) == [[], []]


def test_a_long_answer_comes_in_pages(
    broker: RunningBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PARTITIONS_DESCRIBED_MAX", 4)
    names = ["a", "b", "c", "d"]
    for name in names:
        client.create(name, partitions=3)
    with pytest.raises(InvalidRequestError, match="PARTITIONS_DESCRIBED_MAX"):
        describe(client)
    page: DescribeTopicsResponse = client.ask(
        apis.DESCRIBE_TOPICS, DescribeTopicsRequest(after="a", paged=True)
    )
    assert ([topic.name for topic in page.topics], page.is_page) == (["b"], True)
    with Admin(str(broker.address)) as admin:
        assert [topic.name for topic in admin.describe_topics()] == names
        some = ["d", "a", "b"]
        assert [topic.name for topic in admin.describe_topics(some)] == some


# -- auto create -----------------------------------------------------------------------------------
#
# A topic that is requested by many at once is created once.


def test_a_topic_is_created_once(broker: RunningBroker) -> None:
    context = broker.broker.context

    def request_three_times() -> list[bool]:
        return [create_soon(context, "t", "a client") for _ in range(3)]

    assert broker.call(request_three_times) == [True] * 3
    broker.wait_until(lambda: "t" in context.topics and not context.creating)
    assert len(context.topics.topic("t").hosts) == 1


def test_a_creation_that_fails_can_be_tried_again(broker: RunningBroker) -> None:
    context = broker.broker.context
    with broker.client() as native:
        native.create("t")
    assert broker.call(lambda: create_soon(context, "t", "a client"))
    broker.wait_until(lambda: not context.creating)
    assert not broker.call(lambda: create_soon(context, "__audit", "a client"))


# -- topics ----------------------------------------------------------------------------------------
#
# Changes of several topics in one request.


class Named(NamedTuple):
    name: str
    id: str


def test_changes_of_one_request_share_their_waits_where_the_authority_can() -> None:
    """In a cluster: 1,000 topics are not 1,000 round trips, one after the other."""

    async def test() -> list[Changed]:
        loop = asyncio.get_running_loop()
        going_on: list[asyncio.Future[None]] = []

        async def change(name: str) -> Named:
            going_on.append(loop.create_future())
            await going_on[-1]
            if name == "2":
                raise InvalidTopicError("no")
            return Named(name, name)

        topics = SimpleNamespace(changes_at_once=3)
        context: Any = SimpleNamespace(cluster=SimpleNamespace(topics=topics))
        names = [str(number) for number in range(7)]
        changing = asyncio.ensure_future(change_each(context, names, change))
        for ended in range(7):
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(going_on) == min(7, 3 + ended)
            going_on[ended].set_result(None)
        return await changing

    changed = asyncio.run(test())
    assert isinstance(changed[2], InvalidTopicError), "and only this one"
    assert [each.name for each in changed if isinstance(each, Named)] == list("013456")
