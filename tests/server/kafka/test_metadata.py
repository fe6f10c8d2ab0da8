"""Responses say what the client may do, if it requests that (KIP-430)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from raftlog import limits
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.api import Api
from raftlog.kafka.codec import Message
from raftlog.protocol.connection import encode_request
from raftlog.protocol.security import ApiVersionsRequest
from raftlog.security.acl import CLUSTER_NAME, OPERATIONS, Acl
from raftlog.server.cluster.operations import ClusterOperations
from raftlog.server.connection import address_of
from raftlog.server.kafka import metadata
from raftlog.server.kafka.metadata import NOT_REQUESTED
from raftlog.testing.kafka_wire import request
from tests.record.kafka_batches import KafkaRecord, kafka_batch
from tests.server.access.acting import acting, allowing, guarded, kafka_acting
from tests.server.harness import RunningBroker, batch_of, running
from tests.server.kafka.kafka_client import KafkaClient, connected

NUMBERS = {name: number for number, name in enumerate(OPERATIONS, start=2)}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with guarded(tmp_path_factory.mktemp("guarded")) as broker:
        with acting(broker, "admin") as admin:
            assert admin.create("clicks").failure is None
        yield broker


def bits(*operations: Any) -> int:
    return sum(1 << NUMBERS[each] for each in operations)


def authorized_operations_metadata(
    client: KafkaClient, version: int, *, asked: bool = True
) -> tuple[int, int]:
    """The operations with the cluster, and with the topic."""
    structs = codec.structs("request", apis.METADATA.key)
    message = structs.root(
        topics=[structs.MetadataRequestTopic(name="clicks")],
        include_cluster_authorized_operations=asked,
        include_topic_authorized_operations=asked,
    )
    answer = client.ask(apis.METADATA, version, message)
    return answer.cluster_authorized_operations, answer.topics[0].topic_authorized_operations


def cluster(client: KafkaClient, *, asked: bool = True) -> int:
    structs = codec.structs("request", apis.DESCRIBE_CLUSTER.key)
    message = structs.root(include_cluster_authorized_operations=asked, endpoint_type=1)
    version = apis.DESCRIBE_CLUSTER.version_max
    found: int = client.ask(apis.DESCRIBE_CLUSTER, version, message).cluster_authorized_operations
    return found


def test_the_operations_are_those_of_the_rules(broker: RunningBroker) -> None:
    read = Acl("User:alice", "READ", "TOPIC", "cli", "PREFIXED")
    refused = Acl("User:alice", "DELETE", "TOPIC", "clicks", permission="DENY")
    everything = Acl("User:alice", "ALL", "CLUSTER", CLUSTER_NAME)
    with kafka_acting(broker, "alice") as client:
        with allowing(broker, read):
            assert authorized_operations_metadata(client, 10) == (0, bits("READ", "DESCRIBE"))
            assert authorized_operations_metadata(client, 10, asked=False) == (
                NOT_REQUESTED,
                NOT_REQUESTED,
            )
            assert authorized_operations_metadata(client, 12) == (
                NOT_REQUESTED,
                bits("READ", "DESCRIBE"),
            )
            assert authorized_operations_metadata(client, 7) == (NOT_REQUESTED, NOT_REQUESTED)
            assert (cluster(client), cluster(client, asked=False)) == (0, NOT_REQUESTED)
        with allowing(broker, Acl("User:alice", "ALL", "TOPIC", "*"), refused, everything):
            of_topic = {"READ", "WRITE", "CREATE", "ALTER", "DESCRIBE"}
            assert authorized_operations_metadata(client, 10)[1] == bits(
                *of_topic, "DESCRIBE_CONFIGS", "ALTER_CONFIGS"
            )
            assert cluster(client) == authorized_operations_metadata(client, 10)[0] != 0


def commit(broker: RunningBroker, group: str) -> None:
    """Create a group by a commit."""
    with kafka_acting(broker, "admin") as admin:
        find = codec.structs("request", apis.FIND_COORDINATOR.key)
        version = apis.FIND_COORDINATOR.version_max
        admin.ask(apis.FIND_COORDINATOR, version, find.root(coordinator_keys=[group]))
        broker.wait_until(lambda: bool(broker.broker.context.coordinator.shards()))
        structs = codec.structs("request", apis.OFFSET_COMMIT.key)
        place = structs.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
        message = structs.root(
            group_id=group,
            generation_id_or_member_epoch=-1,
            topics=[structs.OffsetCommitRequestTopic(name="clicks", partitions=[place])],
        )

        def is_done() -> bool:
            (topic,) = admin.ask(apis.OFFSET_COMMIT, 8, message).topics
            return not topic.partitions[0].error_code

        while not is_done():
            pass


@pytest.mark.parametrize("api", [apis.DESCRIBE_GROUPS, apis.CONSUMER_GROUP_DESCRIBE])
def test_the_operations_with_groups(broker: RunningBroker, api: Api) -> None:
    commit(broker, "g")
    rules = [Acl("User:alice", each, "GROUP", "g") for each in ("DESCRIBE", "DELETE")]
    structs = codec.structs("request", api.key)
    name = "groups" if api is apis.DESCRIBE_GROUPS else "group_ids"
    with kafka_acting(broker, "alice") as client, allowing(broker, *rules):
        for asked, expected in ((True, bits("DESCRIBE", "DELETE")), (False, NOT_REQUESTED)):
            message = structs.root(**{name: ["g"]}, include_authorized_operations=asked)
            (group,) = client.ask(api, api.version_max, message).groups
            assert (group.error_code, group.authorized_operations) == (0, expected)


def test_without_rules_everything_is_permitted(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        with broker.client() as admin:
            admin.create("clicks")
        client = KafkaClient(broker.address)
        of_cluster, of_topic = authorized_operations_metadata(client, 10)
        client.close()
    assert of_cluster == bits(
        *("CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
        "IDEMPOTENT_WRITE",
    )
    assert of_topic & bits("READ", "WRITE", "DELETE") == bits("READ", "WRITE", "DELETE")


# -- cluster ---------------------------------------------------------------------------------------
#
# ApiVersions, Metadata with its creation of topics, DescribeCluster.


Metadata = codec.structs("request", apis.METADATA.key)


def test_kafka_clients_have_a_separate_address(tmp_path: Path) -> None:
    addresses = {"kafka_listen": "127.0.0.1:0", "kafka_advertised_listen": "kafka.example:9092"}
    with running(tmp_path, **addresses) as broker:
        own = address_of(broker.broker._servers[0].sockets[0])
        with closing(KafkaClient(own)) as client:
            (me,) = client.ask(apis.METADATA, 12, Metadata.root(topics=[])).brokers
            assert (me.host, me.port) == ("kafka.example", 9092)
            assert client.ask(apis.DESCRIBE_CLUSTER, 1).brokers[0].host == "kafka.example"
        with closing(KafkaClient(broker.address)) as client:
            client.send(apis.API_VERSIONS, 0)
            client.rest()  # an error of raftlog's protocol, and the end of the connection
        with closing(KafkaClient(own)) as client:
            hello = ApiVersionsRequest(client_id="test")
            client.send_bytes(
                b"".join(encode_request(0, version=0, correlation_id=1, message=hello))
            )
            assert client.is_closed(), "raftlog's clients are not served there"


def wanted(*names: str, may_create: bool = True) -> Message:
    topics = [Metadata.MetadataRequestTopic(name=name) for name in names]
    return Metadata.root(topics=topics, allow_auto_topic_creation=may_create)


@pytest.mark.parametrize("version", range(6))
def test_api_versions(kafka_client: KafkaClient, version: int) -> None:
    answer = kafka_client.ask(apis.API_VERSIONS, version)
    ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert ranges[apis.METADATA.key] == (0, 13)
    assert ranges[apis.PRODUCE.key] == (0, 13), "librdkafka compresses nothing otherwise"
    assert ranges.keys() == apis.APIS.keys()


def test_an_unknown_version_of_api_versions(kafka_client: KafkaClient) -> None:
    data = request(apis.API_VERSIONS, 3)
    kafka_client.send_bytes(data[:6] + (77).to_bytes(2, "big") + data[8:])
    _, answer = kafka_client.receive(apis.API_VERSIONS, 0)
    assert answer.error_code == errors.UNSUPPORTED_VERSION
    (own,) = answer.api_keys
    assert (own.api_key, own.max_version) == (apis.API_VERSIONS.key, 5)


@pytest.mark.parametrize(
    ("node_id", "cluster_id", "error"),
    [(1, "own", 0), (-1, None, 0), (2, "own", 129), (1, "another", 129)],
)
def test_a_client_that_meant_another_broker_has_to_start_again(
    kafka_client: KafkaClient,
    kafka_broker: RunningBroker,
    node_id: int,
    cluster_id: str | None,
    error: int,
) -> None:
    own = kafka_broker.broker.context.operations.cluster_id
    versions = codec.structs("request", apis.API_VERSIONS.key).root
    meant = own if cluster_id == "own" else cluster_id
    answer = kafka_client.ask(apis.API_VERSIONS, 5, versions(node_id=node_id, cluster_id=meant))
    assert (answer.error_code, bool(answer.api_keys)) == (error, not error)


def pages(client: KafkaClient, limit: int, *names: str) -> Iterator[Message]:
    """All pages, from the first to the last."""
    structs = codec.structs("request", apis.DESCRIBE_TOPIC_PARTITIONS.key)
    cursor = None
    while True:
        request = structs.root(
            topics=[structs.TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
        page = client.ask(apis.DESCRIBE_TOPIC_PARTITIONS, 0, request)
        yield page
        if page.next_cursor is None:
            return
        at = page.next_cursor
        cursor = structs.Cursor(topic_name=at.topic_name, partition_index=at.partition_index)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 100_000])
def test_partitions_are_described_in_pages(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, limit: int
) -> None:
    with kafka_broker.client() as native:
        for name, count in (("page-a", 3), ("page-b", 1), ("page-c", 2)):
            native.create(name, partitions=count)
    found: list[tuple[str | None, int | None]] = []
    for page in pages(kafka_client, limit, "page-b", "page-c", "page-a", "page-absent"):
        assert sum(len(topic.partitions) for topic in page.topics) <= limit
        for topic in page.topics:
            if topic.error_code:
                assert topic.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
                found.append((topic.name, None))
            for each in topic.partitions:
                assert (each.leader_id, each.replica_nodes, each.isr_nodes) == (1, [1], [1])
                assert each.eligible_leader_replicas == each.last_known_elr == []
                found.append((topic.name, each.partition_index))
    assert found == [
        ("page-a", 0),
        ("page-a", 1),
        ("page-a", 2),
        ("page-absent", None),
        ("page-b", 0),
        ("page-c", 0),
        ("page-c", 1),
    ]
    everything = {topic.name for page in pages(kafka_client, limit) for topic in page.topics}
    assert {"page-a", "page-b", "page-c"} <= everything


def test_a_page_has_at_least_one_partition(kafka_client: KafkaClient) -> None:
    (page,) = pages(kafka_client, 0, "t")
    assert [topic.error_code for topic in page.topics] == [errors.INVALID_REQUEST]


def test_metadata_names_the_broker_and_topics(
    kafka_client: KafkaClient, kafka_broker: RunningBroker
) -> None:
    with kafka_broker.client() as native:
        topic = native.create("meta", partitions=3)
    answer = kafka_client.ask(apis.METADATA, 13, wanted("meta"))
    (broker,) = answer.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, *kafka_broker.address)
    assert answer.controller_id == 1
    (found,) = answer.topics
    assert (found.name, found.topic_id.hex(), found.error_code) == ("meta", topic.id, 0)
    assert [(each.partition_index, each.leader_id) for each in found.partitions] == [
        (0, 1), (1, 1), (2, 1)
    ]  # fmt: skip
    assert found.partitions[0].leader_epoch >= 0
    for version, name in ((12, None), (13, None), (12, ""), (13, "")):  # franz-go, the Java client
        by_id = Metadata.MetadataRequestTopic(topic_id=found.topic_id, name=name)
        answer = kafka_client.ask(apis.METADATA, version, Metadata.root(topics=[by_id]))
        assert (answer.topics[0].name, answer.topics[0].error_code) == ("meta", 0)
    everything = kafka_client.ask(apis.METADATA, 1, Metadata.root(topics=None))
    assert "meta" in [each.name for each in everything.topics]


@pytest.mark.parametrize("version", [1, 13])
def test_all_topics_are_listed_once_they_are_known(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, version: int
) -> None:
    context = kafka_broker.broker.context
    with kafka_broker.client() as native:
        native.create(f"late{version}", partitions=1)
    context.topics.is_complete = False
    kafka_client.send(apis.METADATA, version, Metadata.root(topics=None))
    connections = kafka_broker.broker.connections._open
    kafka_broker.wait_until(lambda: any(each.in_flight for each in connections))
    kafka_broker.call(context.topics.complete)
    _, answer = kafka_client.receive(apis.METADATA, version)
    assert answer.brokers
    assert f"late{version}" in [each.name for each in answer.topics]


def test_topics_that_stay_unknown_are_refused(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = kafka_broker.broker.context.topics
    monkeypatch.setattr(metadata, "TOPICS_WAIT_SECONDS_MAX", 0.0)
    complete = topics.complete
    with monkeypatch.context() as patch:
        patch.setattr(type(topics), "complete", lambda _topics: None)  # any change calls it
        topics.is_complete = False
        answer = kafka_client.ask(apis.METADATA, 13, Metadata.root(topics=None))
        assert not topics._waiting, "a broker may wait for days, and each client asks again"
    kafka_broker.call(complete)
    assert answer.error_code == errors.LEADER_NOT_AVAILABLE
    assert kafka_client.ask(apis.METADATA, 13, Metadata.root(topics=None)).brokers


def test_an_unknown_topic_id(kafka_client: KafkaClient) -> None:
    for name in (None, "", "meta"):
        topic = Metadata.MetadataRequestTopic(topic_id=bytes(15) + b"\1", name=name)
        (found,) = kafka_client.ask(apis.METADATA, 12, Metadata.root(topics=[topic])).topics
        assert (found.name, found.error_code) == (None, errors.UNKNOWN_TOPIC_ID)


def test_topic_ids_of_early_versions_are_refused(kafka_client: KafkaClient) -> None:
    for name, topic_id in ((None, bytes(16)), ("meta", bytes(15) + b"\1")):
        topic = Metadata.MetadataRequestTopic(topic_id=topic_id, name=name)
        (found,) = kafka_client.ask(apis.METADATA, 11, Metadata.root(topics=[topic])).topics
        assert (found.name, found.error_code) == (name or "", errors.INVALID_REQUEST)


def test_a_topic_is_created_by_metadata(kafka_client: KafkaClient) -> None:
    codes = []
    while not codes or codes[-1] != errors.NONE:
        codes.append(kafka_client.ask(apis.METADATA, 4, wanted("made")).topics[0].error_code)
    assert set(codes) == {errors.LEADER_NOT_AVAILABLE, errors.NONE}
    assert len(kafka_client.ask(apis.METADATA, 4, wanted("made")).topics[0].partitions) == 1


def test_a_topic_that_cannot_be_created_yet_hides_no_others(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kafka_broker.client() as native:
        native.create("exists")
    asked = wanted("later")
    asked.topics = [*wanted("exists").topics, *asked.topics]
    monkeypatch.setattr(limits, "ADMIN_REQUESTS_PENDING_MAX", 0)
    codes = [each.error_code for each in kafka_client.ask(apis.METADATA, 4, asked).topics]
    assert codes == [errors.NONE, errors.LEADER_NOT_AVAILABLE]
    monkeypatch.undo()
    while kafka_client.ask(apis.METADATA, 4, asked).topics[1].error_code:
        pass


def test_metadata_has_a_topic_once(kafka_client: KafkaClient) -> None:
    """One of 1,000 partitions takes 50 KB of the response, and 6 bytes of the request."""
    kafka_client.ask(apis.METADATA, 4, wanted("made"))
    asked = wanted("made")
    asked.topics = [*asked.topics, *wanted("never", may_create=False).topics] * 1_000
    asked.allow_auto_topic_creation = False
    found = [topic.name for topic in kafka_client.ask(apis.METADATA, 4, asked).topics]
    assert found == ["made", "never"]
    new = Metadata.MetadataRequestTopic
    asked.topics = [new(name=f"m{number}", topic_id=bytes(15) + b"\1") for number in range(1_000)]
    assert len(kafka_client.ask(apis.METADATA, 12, asked).topics) == 1


def test_topics_that_metadata_does_not_create(kafka_client: KafkaClient) -> None:
    def code(name: str, *, may_create: bool = True) -> int:
        answer = kafka_client.ask(apis.METADATA, 4, wanted(name, may_create=may_create))
        found: int = answer.topics[0].error_code
        return found

    assert code("never", may_create=False) == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert code("no/name") == errors.INVALID_TOPIC
    assert code("__audit") == errors.UNKNOWN_TOPIC_OR_PARTITION
    while code("with.dot"):
        pass
    assert code("with_dot") == errors.INVALID_TOPIC
    assert code("with_dot", may_create=False) == errors.UNKNOWN_TOPIC_OR_PARTITION


def test_creation_can_be_switched_off(tmp_path: Path) -> None:
    with (
        running(tmp_path, auto_create_topics_enable="false") as broker,
        connected(broker) as client,
    ):
        answer = client.ask(apis.METADATA, 1, wanted("t"))
    assert answer.topics[0].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION


def test_describe_cluster(kafka_client: KafkaClient, kafka_broker: RunningBroker) -> None:
    answer = kafka_client.ask(
        apis.DESCRIBE_CLUSTER, 2, codec.structs("request", 60).root(endpoint_type=1)
    )
    assert (answer.error_code, answer.controller_id) == (0, 1)
    assert answer.cluster_id == kafka_broker.broker.context.operations.cluster_id
    assert [(each.broker_id, each.is_fenced) for each in answer.brokers] == [(1, False)]
    answer = kafka_client.ask(
        apis.DESCRIBE_CLUSTER, 1, codec.structs("request", 60).root(endpoint_type=2)
    )
    assert answer.error_code == 115


# -- replicas --------------------------------------------------------------------------------------
#
# DescribeLogDirs and ListPartitionReassignments.


LogDirs = codec.structs("request", apis.DESCRIBE_LOG_DIRS.key)
AlterDirs = codec.structs("request", apis.ALTER_REPLICA_LOG_DIRS.key)
Moves = codec.structs("request", apis.LIST_PARTITION_REASSIGNMENTS.key)


def asked(name: str, *partitions: int) -> Any:
    return LogDirs.DescribableLogDirTopic(topic=name, partitions=list(partitions))


@pytest.mark.parametrize("version", range(1, 5))
def test_log_directories(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, version: int
) -> None:
    with kafka_broker.client() as native:
        native.create(f"dirs-{version}", partitions=3)
    kafka_client.produce(f"dirs-{version}", kafka_batch([KafkaRecord(b"v")]))
    message = LogDirs.root(topics=[asked(f"dirs-{version}", 2, 0, -1, 3), asked("absent", 0)])
    (found,) = kafka_client.ask(apis.DESCRIBE_LOG_DIRS, version, message).results
    assert found.log_dir == kafka_broker.config.data_dir
    (topic,) = found.topics
    assert topic.name == f"dirs-{version}"
    assert [each.partition_index for each in topic.partitions] == [0, 2]
    assert topic.partitions[0].partition_size > topic.partitions[1].partition_size >= 0
    assert not any(each.offset_lag or each.is_future_key for each in topic.partitions)
    if version >= 4:
        assert found.total_bytes > found.usable_bytes > 0
    (found,) = kafka_client.ask(apis.DESCRIBE_LOG_DIRS, version, LogDirs.root(topics=None)).results
    assert f"dirs-{version}" in {topic.name for topic in found.topics}


def test_log_directories_on_several_disks(tmp_path: Path) -> None:
    """KAFKA_STORAGE_ERROR (56) for a failed one. What is on the others can be read and written."""
    second = tmp_path / "second"
    with running(tmp_path / "first", log_dirs=str(second)) as broker:
        with broker.client() as native:
            native.create("t", partitions=4)

        def described() -> list[tuple[str, int, list[int]]]:
            with connected(broker) as client:
                found = client.ask(apis.DESCRIBE_LOG_DIRS, 4, LogDirs.root(topics=None)).results
            return [
                (each.log_dir, each.error_code, [p.partition_index for p in topic.partitions])
                for each in found
                for topic in each.topics
            ]

        def moved(path: str | Path) -> list[int]:
            topic = AlterDirs.AlterReplicaLogDirTopic(name="t", partitions=[0, 1, 4])
            wanted = AlterDirs.AlterReplicaLogDir(path=str(path), topics=[topic])
            with connected(broker) as client:
                asked = AlterDirs.root(dirs=[wanted])
                (found,) = client.ask(apis.ALTER_REPLICA_LOG_DIRS, 2, asked).results
            return [each.error_code for each in found.partitions]

        first = broker.config.data_dir
        here, elsewhere, absent = 0, errors.INVALID_REPLICA_ASSIGNMENT, errors.REPLICA_NOT_AVAILABLE
        assert moved(first) == [here, elsewhere, absent]
        assert moved(second) == [elsewhere, here, absent]
        assert moved(tmp_path) == [errors.LOG_DIR_NOT_FOUND] * 3
        assert described() == [(first, 0, [0, 2]), (str(second), 0, [1, 3])]
        broker.call(lambda: broker.broker.log_dirs.log_dirs[0].fail("a bad cable"))
        broker.call(lambda: None)  # a turn of the loop
        assert described() == [(first, 0, [0, 2]), (str(second), 56, [1, 3])]
        assert moved(second) == [errors.KAFKA_STORAGE_ERROR] * 3
        with broker.client() as native:
            assert native.produce("t", batch_of(b"a"), partition=0).failure is None
            failure = native.produce("t", batch_of(b"a"), partition=1).failure
            assert failure is not None
            assert "a bad cable" in failure.message


def test_moves_of_partitions(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kafka_broker.client() as native:
        native.create("moves", partitions=2)
    everything = Moves.root(topics=None)
    answer = kafka_client.ask(apis.LIST_PARTITION_REASSIGNMENTS, 0, everything)
    assert (answer.error_code, answer.topics) == (0, [])
    moving = kafka_broker.broker.context.topics.topic("moves").id

    def target(_self: object, topic_id: str, partition: int) -> list[int]:
        return [2, 3] if (topic_id, partition) == (moving, 1) else []

    monkeypatch.setattr(ClusterOperations, "target", target)
    named = Moves.ListPartitionReassignmentsTopics(name="moves", partition_indexes=[1, 0])
    for message in (everything, Moves.root(topics=[named])):
        (topic,) = kafka_client.ask(apis.LIST_PARTITION_REASSIGNMENTS, 0, message).topics
        (move,) = topic.partitions
        assert (topic.name, move.partition_index, move.replicas) == ("moves", 1, [1, 2, 3])
        assert (move.adding_replicas, move.removing_replicas) == ([2, 3], [1])
