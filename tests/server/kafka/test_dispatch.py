"""Kafka requests over a socket: every advertised API is served, in order, and errors are told."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from raftlog import limits
from raftlog.errors import InvalidRequestError, InvalidTopicError, ThrottledError
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.api import APIS, Api
from raftlog.kafka.codec import Field, definitions, is_struct
from raftlog.kafka.connection import KafkaConnectionState, KafkaRequest
from raftlog.kafka.errors import Place
from raftlog.protocol.records import BrokerInfo, PartitionInfo
from raftlog.security.acl import CLUSTER_NAME, Acl, Operation, ResourceType
from raftlog.server.access.rules import free
from raftlog.server.connection import Connection
from raftlog.server.kafka import transactions
from raftlog.server.kafka.access import RULES
from raftlog.server.kafka.dispatch import HANDLERS
from raftlog.server.kafka.reply import (
    KafkaReply,
    ResponseRoom,
    check_count,
    hint_leaders,
    refused_by_code,
    unsigned,
)
from raftlog.server.metrics import Counters
from raftlog.testing.kafka_wire import request
from tests.record.kafka_batches import KafkaRecord, kafka_batch
from tests.server.access.acting import acting, allowing, connection_of, guarded, kafka_acting
from tests.server.harness import RunningBroker, running
from tests.server.kafka.kafka_client import KafkaClient, connected, fetch_request, produce_request


def test_what_is_advertised_is_served() -> None:
    assert HANDLERS.keys() == apis.APIS.keys()


@pytest.mark.parametrize("api", apis.APIS.values(), ids=lambda api: api.name)
def test_every_version_of_an_empty_request_is_answered(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, api: Api
) -> None:
    for version in range(api.version_min, api.version_max + 1):
        message = codec.structs("request", api.key).root()
        if api is apis.PRODUCE:
            message.acks = 1  # with 0, a request has no answer
        kafka_client.ask(api, version, message)
    counters = kafka_broker.broker.context.counters
    assert counters.mistakes == 0


def test_many_requests_at_once_are_answered_in_order(kafka_client: KafkaClient) -> None:
    sent = [kafka_client.send(apis.METADATA, 9) for _ in range(150)]
    assert [kafka_client.receive(apis.METADATA, 9)[0] for _ in sent] == sent


def test_bad_input_closes_the_connection_only(
    kafka_client: KafkaClient, kafka_broker: RunningBroker
) -> None:
    with connected(kafka_broker) as bad:
        bad.send_bytes(request(apis.METADATA, 1, body=b"\x7f\xff\xff\xff"))
        assert bad.is_closed()
    kafka_client.ask(apis.METADATA, 1)


def _long_request() -> bytes:
    """A request that is decoded in steps."""
    topic = codec.structs("request", apis.METADATA.key).MetadataRequestTopic
    wanted = codec.structs("request", apis.METADATA.key).root(
        topics=[topic(name=f"absent-{number}") for number in range(3_000)],
        allow_auto_topic_creation=False,
    )
    data = request(apis.METADATA, 9, wanted, correlation_id=77)
    assert len(data) > limits.FRAME_SMALL_BYTES_MAX
    return data


def test_long_requests_are_answered_in_order(kafka_client: KafkaClient) -> None:
    first = kafka_client.send(apis.METADATA, 9)
    kafka_client.send_bytes(_long_request())
    last = kafka_client.send(apis.METADATA, 9)
    answers = [kafka_client.receive(apis.METADATA, 9) for _ in range(3)]
    assert [correlation_id for correlation_id, _ in answers] == [first, 77, last]
    assert len(answers[1][1].topics) == 3_000


def test_a_long_request_that_is_not_valid_closes_the_connection_only(
    kafka_client: KafkaClient, kafka_broker: RunningBroker
) -> None:
    data = bytearray(_long_request())
    data[-20:] = b"\xff" * 20
    with connected(kafka_broker) as bad:
        bad.send(apis.METADATA, 9)
        bad.send_bytes(bytes(data))
        bad.send(apis.METADATA, 9)
        bad.receive(apis.METADATA, 9)
        assert bad.is_closed()
    kafka_client.ask(apis.METADATA, 9)
    assert kafka_broker.broker.context.counters.mistakes == 0


def test_the_protocol_can_be_switched_off(tmp_path: Path) -> None:
    with (
        running(tmp_path, kafka_protocol_enable="false") as broker,
        connected(broker) as client,
        broker.client(),
    ):
        client.send(apis.API_VERSIONS, 0)
        client.send(apis.API_VERSIONS, 0)
        assert b"raftlog" in client.rest()


def test_a_limit_of_connections_counts_both_kinds(tmp_path: Path) -> None:
    with (
        running(tmp_path, max_connections="2") as broker,
        broker.client(),
        connected(broker) as one,
        connected(broker) as two,
    ):
        one.ask(apis.METADATA, 1)
        assert two.is_closed()


# -- access ----------------------------------------------------------------------------------------
#
# Every Kafka request is denied without a rule, and permitted by those it needs.


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
    apis.ADD_PARTITIONS_TO_TXN: {("WRITE", "TRANSACTIONAL_ID"), ("WRITE", "TOPIC")},
    apis.ADD_OFFSETS_TO_TXN: {("WRITE", "TRANSACTIONAL_ID"), ("READ", "GROUP")},
    apis.END_TXN: {("WRITE", "TRANSACTIONAL_ID")},
    apis.WRITE_TXN_MARKERS: {("CLUSTER_ACTION", "CLUSTER")},
    apis.DESCRIBE_TRANSACTIONS: {("DESCRIBE", "TRANSACTIONAL_ID")},
    apis.TXN_OFFSET_COMMIT: {
        *(("WRITE", "TRANSACTIONAL_ID"), ("READ", "GROUP"), ("READ", "TOPIC")),
    },
    apis.OFFSET_FETCH: {("DESCRIBE", "GROUP"), ("DESCRIBE", "TOPIC")},
    apis.OFFSET_DELETE: {("DELETE", "GROUP"), ("READ", "TOPIC")},
    apis.CONSUMER_GROUP_HEARTBEAT: {("READ", "GROUP"), ("DESCRIBE", "TOPIC")},
    apis.CONSUMER_GROUP_DESCRIBE: {("DESCRIBE", "GROUP")},
    apis.DESCRIBE_GROUPS: {("DESCRIBE", "GROUP")},
    apis.DELETE_GROUPS: {("DELETE", "GROUP")},
    apis.LIST_CONFIG_RESOURCES: {("DESCRIBE_CONFIGS", "CLUSTER")},
    apis.ALTER_REPLICA_LOG_DIRS: {("ALTER", "CLUSTER")},
    apis.DESCRIBE_LOG_DIRS: {("DESCRIBE", "CLUSTER")},
    apis.LIST_PARTITION_REASSIGNMENTS: {("DESCRIBE", "CLUSTER")},
    apis.ALTER_PARTITION_REASSIGNMENTS: {("ALTER", "CLUSTER")},
    apis.ELECT_LEADERS: {("ALTER", "CLUSTER")},
    apis.UPDATE_FEATURES: {("ALTER", "CLUSTER")},
    apis.DESCRIBE_QUORUM: {("DESCRIBE", "CLUSTER")},
    apis.DESCRIBE_TOPIC_PARTITIONS: {("DESCRIBE", "TOPIC")},
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: {("DESCRIBE", "CLUSTER")},
    apis.ALTER_USER_SCRAM_CREDENTIALS: {("ALTER", "CLUSTER")},
    apis.DESCRIBE_ACLS: {("DESCRIBE", "CLUSTER")},
    apis.CREATE_ACLS: {("ALTER", "CLUSTER")},
    apis.DELETE_ACLS: {("ALTER", "CLUSTER")},
    apis.DESCRIBE_CLIENT_QUOTAS: {("DESCRIBE_CONFIGS", "CLUSTER")},
    apis.ALTER_CLIENT_QUOTAS: {("ALTER_CONFIGS", "CLUSTER")},
}
# Their responses have less in them without rights, or the same for all.
FILTERED = {apis.LIST_GROUPS, apis.LIST_TRANSACTIONS}
LOG_DIRS_ERROR_VERSION = 3  # older responses have no place for the error
FREE = {
    *(apis.API_VERSIONS, apis.DESCRIBE_CLUSTER),
    *(apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE),
    *(apis.GET_TELEMETRY_SUBSCRIPTIONS, apis.PUSH_TELEMETRY),
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
        if field.name == "transactional_id" and field.nullable:
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
            if name in {"error_code", "partition_error_code"}:
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
    if api is apis.ADD_PARTITIONS_TO_TXN:
        version = min(version, transactions.BATCHES_SINCE - 1)  # later ones are of brokers
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


def test_an_administrator_of_the_cluster_may_write_markers(
    broker: RunningBroker, client: KafkaClient
) -> None:
    asked = codec.structs("request", apis.WRITE_TXN_MARKERS.key).root()
    with allowing(broker, allow("ALTER", "CLUSTER")):
        assert client.ask(apis.WRITE_TXN_MARKERS, 1, asked).markers == []


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


# -- bad input -------------------------------------------------------------------------------------
#
# Tampered Kafka requests to a running broker: refusals, and nothing but refusals.


ROUNDS = 40


def _message(api: Api) -> object:
    """A message with something in it."""
    if api is apis.PRODUCE:
        return produce_request("bad-input", kafka_batch([KafkaRecord(b"v")] * 3))
    if api is apis.FETCH:
        return fetch_request("bad-input")
    structs = codec.structs("request", api.key)
    message = structs.root()
    if api is apis.CREATE_TOPICS:
        message.topics = [structs.CreatableTopic(name="x" * 300, num_partitions=1)]
    if api is apis.LIST_OFFSETS:
        part = structs.ListOffsetsPartition(partition_index=0, timestamp=-1)
        message.topics = [structs.ListOffsetsTopic(name="bad-input", partitions=[part])]
    if api is apis.DESCRIBE_CONFIGS:
        message.resources = [structs.DescribeConfigsResource(resource_type=2)]
    return message


@pytest.mark.parametrize("api", apis.APIS.values(), ids=lambda api: api.name)
def test_tampered_requests(kafka_broker: RunningBroker, api: Api) -> None:
    with kafka_broker.client() as native:
        native.create("bad-input")
    chance = random.Random(api.key)
    for _ in range(ROUNDS):
        version = chance.randint(api.version_min, api.version_max)
        data = bytearray(request(api, version, _message(api)))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(8, len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        with socket.create_connection(kafka_broker.address, 20) as raw:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65_536):  # until the broker has closed it
                pass
    assert kafka_broker.broker.context.counters.mistakes == 0
    with connected(kafka_broker) as client:
        client.ask(apis.METADATA, 9)


def test_an_endless_array_takes_no_memory(kafka_broker: RunningBroker) -> None:
    """20 bytes that claim 2^32 - 2 topics."""
    with connected(kafka_broker) as client:
        body = b"\0\xff\xff" + bytes(4) + b"\xff\xff\xff\xff\x0f" + bytes(8)
        client.send_bytes(request(apis.PRODUCE, 9, body=body))
        assert client.is_closed()


@pytest.mark.parametrize("size", [3, 2 * limits.FRAME_SMALL_BYTES_MAX])
def test_the_reason_of_a_close_is_in_a_response_and_in_the_log(
    kafka_broker: RunningBroker, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with connected(kafka_broker) as client:
        client.send(apis.METADATA, 9)
        client.send_bytes(request(apis.INIT_PRODUCER_ID, 4, body=b"\xff" * size))
        client.send(apis.METADATA, 9)
        client.receive(apis.METADATA, 9)
        _, refused = client.receive(apis.INIT_PRODUCER_ID, 4)
        assert refused.error_code == errors.INVALID_REQUEST
        assert client.is_closed()
    assert "connection closed: peer=127.0.0.1" in caplog.text
    assert "InitProducerId version 4 is invalid" in caplog.text


def test_a_response_that_cannot_be_encoded_ends_its_connection(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client would wait for it, and for all later ones, which leave in order."""

    def fail(*_arguments: object) -> Any:
        raise struct.error("'h' format requires -32768 <= number <= 32767")

    with kafka_acting(broker, "admin") as client:
        writer = codec.writer
        monkeypatch.setattr(
            codec, "writer", lambda kind, *key: fail if kind == "response" else writer(kind, *key)
        )
        client.send(apis.DESCRIBE_CLUSTER, 0)
        assert client.is_closed()


# -- reply -----------------------------------------------------------------------------------------
#
# Replies to Kafka requests that fail.


class FakeConnection:
    """Notes what it is asked to do."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.services = self.turns = self
        self.share_began = 0.0
        self.counters = Counters()
        self.meter = None
        self.peer = "a client"

    def respond_kafka(self, _request: KafkaRequest, message: Any) -> None:
        self.done.append(message)

    def finish(self, _request: KafkaRequest) -> None:
        self.done.append("finished")

    def abort(self, reason: str) -> None:
        self.done.append(reason)

    def note_refusal(self, what: str, _error: Exception, _request_id: int) -> None:
        self.done.append(what)


def _reply(data: bytes) -> tuple[FakeConnection, KafkaReply]:
    state = KafkaConnectionState(scratch=memoryview(bytearray(65536)))
    state.get_buffer()[: len(data)] = data
    (received,) = state.received(len(data))
    assert isinstance(received, KafkaRequest)
    connection = FakeConnection()
    refuse = refused_by_code(Place.METADATA)
    return connection, KafkaReply(cast(Connection, connection), received, refuse)


def test_an_error_becomes_a_code_and_a_text() -> None:
    connection, reply = _reply(request(apis.DESCRIBE_CLUSTER, 0))
    reply.refuse(InvalidTopicError("bad name"))
    what, answer = connection.done
    assert what == "DescribeCluster"
    assert (answer.error_code, answer.error_message) == (errors.INVALID_TOPIC, "bad name")


def test_an_internal_error_is_counted_and_answered() -> None:
    connection, reply = _reply(request(apis.DESCRIBE_CLUSTER, 0))
    reply.fail_by_mistake(KeyError("x"))
    assert connection.counters.mistakes == 1
    assert connection.done[0].error_code == errors.REQUEST_TIMED_OUT


def test_a_request_without_a_response_closes_the_connection() -> None:
    root = codec.structs("request", apis.PRODUCE.key).root
    connection, reply = _reply(request(apis.PRODUCE, 3, root(acks=0)))
    assert not reply.request.attachment, "megabytes would stay in memory"
    reply.fail(InvalidTopicError("bad name"))
    assert connection.done[0] == "finished"
    assert "bad name" in connection.done[1]


def test_texts_are_short_and_can_be_encoded() -> None:
    assert InvalidTopicError("\udcff").wire_text.encode() == b"?"
    assert len(InvalidTopicError("x" * 10_000).wire_text) == limits.ERROR_MESSAGE_CHARS_MAX


# -- parts -----------------------------------------------------------------------------------------
#
# Partitions of Kafka requests, and hints to their leaders.


Response = codec.structs("response", apis.FETCH.key)


class FakeCluster:
    """A broker that knows two others, and that broker 2 leads all partitions."""

    broker_id = 1

    class topics:  # noqa: N801 - an attribute of the context
        @staticmethod
        def get(name: str) -> Any:
            return None if name == "none" else FakeCluster

        @staticmethod
        def info(_topic: Any, index: int) -> PartitionInfo:
            return PartitionInfo(partition=index, leader=2, leader_epoch=7, replicas=[2], isr=[2])

    hosts = (None, None)

    @staticmethod
    def brokers(_local_host: str, *, for_kafka: bool) -> list[BrokerInfo]:
        assert for_kafka
        return [BrokerInfo(id=number, host="h", port=number) for number in (1, 2, 3)]


def test_clients_are_told_where_the_leader_is() -> None:
    moved = Response.PartitionData(error_code=errors.NOT_LEADER_OR_FOLLOWER)
    other = Response.PartitionData(error_code=errors.OFFSET_OUT_OF_RANGE)
    response = Response.root()
    parts = [("t", 0, moved), ("t", 1, other), ("none", 0, Response.PartitionData(error_code=6))]
    hint_leaders(cast(Any, FakeCluster()), Response, response, "here", parts)
    assert (moved.current_leader.leader_id, moved.current_leader.leader_epoch) == (2, 7)
    assert other.current_leader.leader_id == -1
    assert [(each.node_id, each.port) for each in response.node_endpoints] == [(2, 2)]


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    check_count("fetch", 100_000)
    with pytest.raises(InvalidRequestError, match="KAFKA_ITEMS_MAX"):
        check_count("fetch", 100_001)
    monkeypatch.setattr(limits, "KAFKA_RESPONSE_BYTES_MAX", 10)
    room = ResponseRoom()
    for size_bytes in (4, 5, 1_000):
        room.check("a part")
        room.use(size_bytes)
    with pytest.raises(ThrottledError, match="Request it again"):
        room.check("a part")
    assert (unsigned(3), unsigned(-1)) == (3, 10_000)


# -- transactions ----------------------------------------------------------------------------------


def begun(client: KafkaClient, name: str) -> tuple[int, int]:
    """The producer id and epoch of a new instance."""
    asked = codec.structs("request", apis.FIND_COORDINATOR.key).root(
        key_type=1, coordinator_keys=[name]
    )
    while client.ask(apis.FIND_COORDINATOR, 6, asked).coordinators[0].error_code:
        pass
    asked = codec.structs("request", apis.INIT_PRODUCER_ID.key).root(
        transactional_id=name, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    answer = client.ask(apis.INIT_PRODUCER_ID, 5, asked)
    assert answer.error_code == errors.NONE
    return answer.producer_id, answer.producer_epoch


def test_a_transaction_has_only_topics_that_its_client_may_write(
    broker: RunningBroker, client: KafkaClient
) -> None:
    """One that is denied fails the whole request; a description shows what its reader may see."""
    rules = [
        *(allow("WRITE", "TRANSACTIONAL_ID"), allow("DESCRIBE", "TRANSACTIONAL_ID")),
        *(allow("WRITE", "TOPIC", TOPIC), allow("WRITE", "TOPIC", "orders")),
    ]
    structs = codec.structs("request", apis.ADD_PARTITIONS_TO_TXN.key)
    with allowing(broker, *rules):
        producer_id, epoch = begun(client, "tx")

        def add(*names: str) -> list[int]:
            asked = structs.root(
                v3_and_below_transactional_id="tx",
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=[
                    structs.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in names
                ],
            )
            answer = client.ask(apis.ADD_PARTITIONS_TO_TXN, 3, asked)
            return list(codes(answer.results_by_topic_v3_and_below))

        denied = errors.TOPIC_AUTHORIZATION_FAILED
        assert add(TOPIC, "secret") == [errors.OPERATION_NOT_ATTEMPTED, denied]
        assert add(TOPIC, "orders") == [0, 0]
        asked = codec.structs("request", apis.DESCRIBE_TRANSACTIONS.key).root(
            transactional_ids=["tx"]
        )
        (state,) = client.ask(apis.DESCRIBE_TRANSACTIONS, 0, asked).transaction_states
        assert [each.topic for each in state.topics] == [TOPIC, "orders"]
    with allowing(broker, allow("DESCRIBE", "TRANSACTIONAL_ID"), allow("DESCRIBE", "TOPIC", TOPIC)):
        (state,) = client.ask(apis.DESCRIBE_TRANSACTIONS, 0, asked).transaction_states
        assert [each.topic for each in state.topics] == [TOPIC]
    listed = codec.structs("request", apis.LIST_TRANSACTIONS.key).root()
    assert client.ask(apis.LIST_TRANSACTIONS, 2, listed).transaction_states == []


def test_another_user_of_a_transactional_id_gets_a_producer_id_that_it_may_use(
    broker: RunningBroker, client: KafkaClient
) -> None:
    rule = [allow("WRITE", "TRANSACTIONAL_ID"), allow("DESCRIBE", "TRANSACTIONAL_ID")]
    with allowing(broker, *rule), kafka_acting(broker, "admin") as admin:
        first, second, third = (begun(each, "shared") for each in (admin, client, client))
    assert first[0] != second[0]
    assert third == (second[0], second[1] + 1)
