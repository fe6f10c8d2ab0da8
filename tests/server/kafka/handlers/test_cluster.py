"""ApiVersions, Metadata with its creation of topics, DescribeCluster."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.codec import Message
from raftlog.protocol.connection import encode_request
from raftlog.protocol.security import ApiVersionsRequest
from raftlog.server.connection import address_of
from raftlog.server.kafka import metadata
from raftlog.testing.kafka_wire import request
from tests.server.harness import RunningBroker, running
from tests.server.kafka.kafka_client import KafkaClient, connected

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


@pytest.mark.parametrize("version", range(5))
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
    assert (own.api_key, own.max_version) == (apis.API_VERSIONS.key, 4)


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
    topics.is_complete = False
    answer = kafka_client.ask(apis.METADATA, 13, Metadata.root(topics=None))
    kafka_broker.call(topics.complete)
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
