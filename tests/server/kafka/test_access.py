"""Every Kafka request is denied without a rule, and permitted by those it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.api import APIS, Api
from raftlog.kafka.codec import Field, definitions, is_struct
from raftlog.security.acl import CLUSTER_NAME, Acl, Operation, ResourceType
from raftlog.server.access.rules import free
from raftlog.server.kafka.access import RULES
from tests.record.kafka_batches import KafkaRecord, kafka_batch
from tests.server.access.acting import (
    acting,
    allowing,
    connection_of,
    guarded,
    kafka_acting,
)
from tests.server.harness import RunningBroker
from tests.server.kafka.kafka_client import KafkaClient, fetch_request, produce_request

TOPIC = "clicks"
DENIED = frozenset(
    (
        errors.TOPIC_AUTHORIZATION_FAILED,
        errors.GROUP_AUTHORIZATION_FAILED,
        errors.CLUSTER_AUTHORIZATION_FAILED,
        errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)

# What each request needs, with resources of any name.
NEEDS: dict[Api, set[tuple[Operation, ResourceType]]] = {
    apis.METADATA: {("DESCRIBE", "TOPIC")},
    apis.PRODUCE: {("WRITE", "TOPIC")},
    apis.FETCH: {("READ", "TOPIC")},
    apis.LIST_OFFSETS: {("DESCRIBE", "TOPIC")},
    apis.OFFSET_FOR_LEADER_EPOCH: {("DESCRIBE", "TOPIC")},
    apis.DESCRIBE_PRODUCERS: {("READ", "TOPIC")},
    apis.INIT_PRODUCER_ID: {("WRITE", "TOPIC")},
    apis.CREATE_TOPICS: {("CREATE", "TOPIC")},
    apis.DELETE_TOPICS: {("DELETE", "TOPIC")},
    apis.CREATE_PARTITIONS: {("ALTER", "TOPIC")},
    apis.DELETE_RECORDS: {("DELETE", "TOPIC")},
    apis.DESCRIBE_CONFIGS: {("DESCRIBE_CONFIGS", "TOPIC")},
    apis.ALTER_CONFIGS: {("ALTER_CONFIGS", "TOPIC")},
    apis.INCREMENTAL_ALTER_CONFIGS: {("ALTER_CONFIGS", "TOPIC")},
    apis.FIND_COORDINATOR: {("DESCRIBE", "GROUP")},
    apis.JOIN_GROUP: {("READ", "GROUP")},
    apis.SYNC_GROUP: {("READ", "GROUP")},
    apis.HEARTBEAT: {("READ", "GROUP")},
    apis.LEAVE_GROUP: {("READ", "GROUP")},
    apis.OFFSET_COMMIT: {("READ", "GROUP"), ("READ", "TOPIC")},
    apis.OFFSET_FETCH: {("DESCRIBE", "GROUP"), ("DESCRIBE", "TOPIC")},
    apis.OFFSET_DELETE: {("DELETE", "GROUP"), ("READ", "TOPIC")},
    apis.CONSUMER_GROUP_HEARTBEAT: {("READ", "GROUP"), ("DESCRIBE", "TOPIC")},
    apis.CONSUMER_GROUP_DESCRIBE: {("DESCRIBE", "GROUP")},
    apis.DESCRIBE_GROUPS: {("DESCRIBE", "GROUP")},
    apis.DELETE_GROUPS: {("DELETE", "GROUP")},
    apis.DESCRIBE_LOG_DIRS: {("DESCRIBE", "CLUSTER")},
    apis.LIST_PARTITION_REASSIGNMENTS: {("DESCRIBE", "CLUSTER")},
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: {("DESCRIBE", "CLUSTER")},
    apis.ALTER_USER_SCRAM_CREDENTIALS: {("ALTER", "CLUSTER")},
    apis.DESCRIBE_ACLS: {("DESCRIBE", "CLUSTER")},
    apis.CREATE_ACLS: {("ALTER", "CLUSTER")},
    apis.DELETE_ACLS: {("ALTER", "CLUSTER")},
    apis.DESCRIBE_CLIENT_QUOTAS: {("DESCRIBE_CONFIGS", "CLUSTER")},
    apis.ALTER_CLIENT_QUOTAS: {("ALTER_CONFIGS", "CLUSTER")},
}
# Their responses have less in them without rights, or the same for all.
FILTERED = {apis.LIST_GROUPS}
LOG_DIRS_ERROR_VERSION = 3  # older responses have no place for the error
FREE = {
    *(apis.API_VERSIONS, apis.DESCRIBE_CLUSTER),
    *(apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE),
    # Of their owner: tests/server/test_delegation_tokens.py.
    *(apis.CREATE_DELEGATION_TOKEN, apis.RENEW_DELEGATION_TOKEN),
    *(apis.EXPIRE_DELEGATION_TOKEN, apis.DESCRIBE_DELEGATION_TOKEN),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with guarded(tmp_path_factory.mktemp("guarded")) as broker:
        with acting(broker, "admin") as admin:
            for name in (TOPIC, "orders", "secret"):
                assert admin.create(name).failure is None
        with kafka_acting(broker, "admin") as admin:
            find = sample(broker, apis.FIND_COORDINATOR, apis.FIND_COORDINATOR.version_max)
            admin.ask(apis.FIND_COORDINATOR, apis.FIND_COORDINATOR.version_max, find)
        broker.wait_until(lambda: bool(broker.broker.context.coordinator.shards()))
        yield broker


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[KafkaClient]:
    if broker.broker.context.topics.get(TOPIC) is None:  # a test has deleted it
        with acting(broker, "admin") as admin:
            assert admin.create(TOPIC).failure is None
    with kafka_acting(broker, "alice") as client:
        yield client


def allow(operation: Operation, resource_type: ResourceType, name: str = "*", **more: Any) -> Acl:
    if resource_type == "CLUSTER":
        name = CLUSTER_NAME
    return Acl("User:alice", operation, resource_type, name, **more)


def topic_id(broker: RunningBroker, name: str = TOPIC) -> bytes:
    return bytes.fromhex(broker.broker.context.topics.topic(name).id)


def sample(broker: RunningBroker, api: Api, version: int) -> Any:
    """A request about one topic or group, called clicks."""
    structs, definition = codec.structs("request", api.key), definitions()["request", api.key]
    is_either = api in (apis.METADATA, apis.DELETE_TOPICS)  # a name or an ID
    by_id = bytes(16) if is_either else topic_id(broker)
    values = {
        "acks": -1,
        "timeout_ms": 5_000,
        "session_timeout_ms": 30_000,
        "resource_type": 2,
        "num_partitions": 1,
        "replication_factor": 1,
        "member_id": "m",
    }

    def value(field: Field) -> Any:
        if field.is_array:
            return [element(field)] if is_struct(field.element) else [scalar(field)]
        return element(field) if is_struct(field.element) else scalar(field)

    def scalar(field: Field) -> Any:
        if field.name == "transactional_id":
            return None
        if field.name in values:
            return values[field.name]
        if field.element == "string":
            is_null = field.default == "null" and field.name != "name" and not field.is_array
            return None if is_null else TOPIC
        empty = {"uuid": by_id, "records": None, "bytes": b"", "float64": 0.0}
        return empty.get(field.element, 0)

    def element(field: Field) -> Any:
        return filled(field.element)

    def filled(name: str) -> Any:
        fields = definition.structs[name]
        made = {field.name: value(field) for field in fields if not field.name.startswith("assign")}
        return getattr(structs, name)(**made)

    return filled(definition.name)


def codes(value: Any) -> Iterator[int]:
    """The error codes anywhere in a response."""
    if isinstance(value, list):
        for each in value:
            yield from codes(each)
    elif hasattr(value, "__struct_fields__"):
        for name in value.__struct_fields__:
            found = getattr(value, name)
            if name == "error_code":
                yield found
            else:
                yield from codes(found)


def is_denied(broker: RunningBroker, client: KafkaClient, api: Api, version: int) -> bool:
    answer = client.ask(api, version, sample(broker, api, version))
    found = set(codes(answer))
    if api is apis.METADATA and errors.UNKNOWN_TOPIC_ID in found:
        return True
    if api is apis.DESCRIBE_LOG_DIRS and version < LOG_DIRS_ERROR_VERSION:
        return answer.results == []
    return bool(found & DENIED)


def test_every_api_has_a_rule() -> None:
    assert RULES.keys() == APIS.keys()
    without = {APIS[key] for key, rule in RULES.items() if rule is free}
    assert without == FREE
    assert NEEDS.keys() | FILTERED == set(APIS.values()) - without


@pytest.mark.parametrize("is_newest", [True, False])
@pytest.mark.parametrize("api", NEEDS, ids=lambda api: api.name)
def test_a_request_needs_these_rules_and_no_others(
    api: Api, is_newest: bool, broker: RunningBroker, client: KafkaClient
) -> None:
    """Without any one of them, it is denied."""
    version = api.version_max if is_newest else max(api.version_min, min(api.version_max, 1))
    rules = [allow(operation, resource_type) for operation, resource_type in NEEDS[api]]
    assert is_denied(broker, client, api, version)
    for rule in rules:
        with allowing(broker, *(each for each in rules if each != rule)):
            assert is_denied(broker, client, api, version), f"without {rule}"
    with allowing(broker, *rules):
        assert not is_denied(broker, client, api, version)


def batch(value: bytes, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    return kafka_batch([KafkaRecord(value, key=b"k")], producer=producer)


def test_each_topic_is_permitted_or_denied_by_itself(
    broker: RunningBroker, client: KafkaClient
) -> None:
    names = ["secret", TOPIC, "orders"]
    message = produce_request(TOPIC, b"")
    message.topic_data = [produce_request(name, batch(b"x")).topic_data[0] for name in names]
    with allowing(broker, allow("WRITE", "TOPIC", TOPIC)):
        answer = client.ask(apis.PRODUCE, 9, message)
    found = {each.name: each.partition_responses[0].error_code for each in answer.responses}
    denied = errors.TOPIC_AUTHORIZATION_FAILED
    assert found == {"secret": denied, TOPIC: 0, "orders": denied}
    with acting(broker, "admin") as admin:
        assert admin.fetch("secret")[1] == []
        assert admin.fetch(TOPIC)[1][-1] == b"x"
    message = fetch_request(TOPIC)
    message.topics = [fetch_request(name).topics[0] for name in names]
    with allowing(broker, allow("READ", "TOPIC", TOPIC)):
        answer = client.ask(apis.FETCH, 12, message)
    assert answer.error_code == 0
    found = {each.topic: each.partitions[0].error_code for each in answer.responses}
    assert found == {"secret": denied, TOPIC: 0, "orders": denied}


def test_results_are_in_the_order_of_the_request(
    broker: RunningBroker, client: KafkaClient
) -> None:
    names = ["b-denied", "a-made", "c-denied"]
    message = sample(broker, apis.CREATE_TOPICS, 7)
    (first,) = message.topics
    structs = codec.structs("request", apis.CREATE_TOPICS.key)
    message.topics = [
        structs.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names
    ]
    assert first.name == TOPIC
    message.validate_only = True
    with allowing(broker, allow("CREATE", "TOPIC", "a", pattern_type="PREFIXED")):
        answer = client.ask(apis.CREATE_TOPICS, 7, message)
    denied = errors.TOPIC_AUTHORIZATION_FAILED
    assert [(each.name, each.error_code) for each in answer.topics] == [
        ("b-denied", denied),
        ("a-made", 0),
        ("c-denied", denied),
    ]
    with allowing(broker, allow("CREATE", "CLUSTER")):
        answer = client.ask(apis.CREATE_TOPICS, 7, message)
    assert {each.error_code for each in answer.topics} == {0}


@pytest.mark.parametrize("version", [1, 12, 13])
def test_all_visible_topics_are_listed_once_they_are_known(
    broker: RunningBroker, version: int
) -> None:
    """Before version 13, clients take an empty list for all topics."""
    structs, topics = codec.structs("request", apis.METADATA.key), broker.broker.context.topics
    with (
        allowing(broker, allow("DESCRIBE", "TOPIC", TOPIC)),
        kafka_acting(broker, "alice") as client,
    ):
        topics.is_complete = False
        client.send(apis.METADATA, version, structs.root(topics=None))
        connection = connection_of(broker, client)
        broker.wait_until(lambda: bool(connection.in_flight) or topics.is_complete)
        broker.call(topics.complete)
        _, answer = client.receive(apis.METADATA, version)
    assert [each.name for each in answer.topics] == [TOPIC]


@pytest.mark.parametrize("version", [0, 4, 12, 13])
def test_metadata_has_the_topics_that_may_be_described(
    broker: RunningBroker, client: KafkaClient, version: int
) -> None:
    structs = codec.structs("request", apis.METADATA.key)
    everything = structs.root(topics=[] if version == 0 else None)
    answer = client.ask(apis.METADATA, version, everything)
    assert answer.topics == []
    assert len(answer.brokers) == 1
    with allowing(broker, allow("READ", "TOPIC", TOPIC)):
        answer = client.ask(apis.METADATA, version, everything)
        assert [each.name for each in answer.topics] == [TOPIC]
        named = structs.root(
            topics=[structs.MetadataRequestTopic(name=name) for name in ("secret", TOPIC)]
        )
        answer = client.ask(apis.METADATA, version, named)
    found = [(each.name, each.error_code) for each in answer.topics]
    assert found == [("secret", errors.TOPIC_AUTHORIZATION_FAILED), (TOPIC, 0)]


def test_a_topic_is_created_for_those_who_may_create_it(
    broker: RunningBroker, client: KafkaClient
) -> None:
    structs = codec.structs("request", apis.METADATA.key)
    named = structs.root(topics=[structs.MetadataRequestTopic(name="new")])
    with allowing(broker, allow("DESCRIBE", "TOPIC")):
        (topic,) = client.ask(apis.METADATA, 9, named).topics
        assert topic.error_code == errors.TOPIC_AUTHORIZATION_FAILED
    assert broker.broker.context.topics.get("new") is None
    with allowing(broker, allow("DESCRIBE", "TOPIC"), allow("CREATE", "TOPIC", "new")):
        (topic,) = client.ask(apis.METADATA, 9, named).topics
        assert topic.error_code == errors.LEADER_NOT_AVAILABLE
        broker.wait_until(lambda: broker.broker.context.topics.get("new") is not None)


def test_the_name_of_a_topic_is_not_shown_for_its_id(
    broker: RunningBroker, client: KafkaClient
) -> None:
    """Whatever name the client sends with it."""
    structs = codec.structs("request", apis.METADATA.key)
    with allowing(broker, allow("DESCRIBE", "TOPIC", TOPIC)):
        for name in (None, "", TOPIC):
            wanted = structs.MetadataRequestTopic(name=name, topic_id=topic_id(broker, "secret"))
            (topic,) = client.ask(apis.METADATA, 13, structs.root(topics=[wanted])).topics
            assert (topic.name, topic.error_code) == (None, errors.UNKNOWN_TOPIC_ID)


def test_a_producer_id_belongs_to_the_principal_that_got_it(
    broker: RunningBroker, client: KafkaClient
) -> None:
    write = Acl("User:*", "WRITE", "TOPIC", TOPIC)
    request = codec.structs("request", apis.INIT_PRODUCER_ID.key).root(transactional_id=None)
    with allowing(broker, write), kafka_acting(broker, "bob") as bob:
        id_ = client.ask(apis.INIT_PRODUCER_ID, 4, request).producer_id
        assert client.produce(TOPIC, batch(b"y", (id_, 0, 0))).error_code == 0
        stolen = bob.produce(TOPIC, batch(b"y", (id_, 0, 1)))
        assert stolen.error_code == errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        named = bob.produce(TOPIC, batch(b"y", (1 << 62, 0, 1)))
        assert named.error_code == errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert client.produce(TOPIC, batch(b"y", (id_, 0, 1))).error_code == 0


@pytest.mark.parametrize("version", [5, 9])
def test_offsets_of_topics_that_may_not_be_described_are_hidden(
    broker: RunningBroker, client: KafkaClient, version: int
) -> None:
    structs = codec.structs("request", apis.OFFSET_COMMIT.key)
    partition = structs.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    commit = structs.root(
        group_id="g",
        member_id="",
        topics=[
            structs.OffsetCommitRequestTopic(name=name, partitions=[partition])
            for name in ("secret", TOPIC)
        ],
    )
    with kafka_acting(broker, "admin") as admin:
        answer = admin.ask(apis.OFFSET_COMMIT, 8, commit)
        assert {each.partitions[0].error_code for each in answer.topics} == {0}
    structs = codec.structs("request", apis.OFFSET_FETCH.key)

    def fetched(*names: str) -> dict[str, tuple[int, int]]:
        if version < 8:
            new, topics = structs.OffsetFetchRequestTopic, None
        else:
            new, topics = structs.OffsetFetchRequestTopics, None
        if names:
            topics = [new(name=name, partition_indexes=[0]) for name in names]
        if version < 8:
            answer = client.ask(
                apis.OFFSET_FETCH, version, structs.root(group_id="g", topics=topics)
            )
        else:
            group = structs.OffsetFetchRequestGroup(group_id="g", topics=topics)
            request = structs.root(groups=[group])
            (answer,) = client.ask(apis.OFFSET_FETCH, version, request).groups
        parts = {each.name: each.partitions[0] for each in answer.topics}
        return {name: (part.committed_offset, part.error_code) for name, part in parts.items()}

    with allowing(broker, allow("DESCRIBE", "GROUP", "g"), allow("DESCRIBE", "TOPIC", TOPIC)):
        assert fetched() == {TOPIC: (1, 0)}
        denied = (-1, errors.TOPIC_AUTHORIZATION_FAILED)
        assert fetched("secret", TOPIC) == {"secret": denied, TOPIC: (1, 0)}
