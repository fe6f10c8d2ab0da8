"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from tests.record.kafka_batches import KafkaRecord, kafka_batch
from tests.server.harness import RunningBroker
from tests.server.kafka.kafka_client import KafkaClient

Create = codec.structs("request", apis.CREATE_TOPICS.key)
Delete = codec.structs("request", apis.DELETE_TOPICS.key)
Extend = codec.structs("request", apis.CREATE_PARTITIONS.key)
Records = codec.structs("request", apis.DELETE_RECORDS.key)


def topic(name: str, partitions: int = -1, replicas: int = -1, **config: str) -> Any:
    settings = [
        Create.CreatableTopicConfig(name=key.replace("_", "."), value=value)
        for key, value in config.items()
    ]
    return Create.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replicas, configs=settings
    )


def create(client: KafkaClient, *topics: Any, version: int = 7, **options: Any) -> list[Any]:
    message = Create.root(topics=list(topics), **options)
    found: list[Any] = client.ask(apis.CREATE_TOPICS, version, message).topics
    return found


def test_topics_are_created_in_every_version(
    kafka_client: KafkaClient, kafka_broker: RunningBroker
) -> None:
    for version in range(2, 8):
        (made,) = create(kafka_client, topic(f"made{version}", 2), version=version)
        assert (made.name, made.error_code, made.error_message) == (f"made{version}", 0, None)
    hosted = kafka_broker.broker.context.topics.topic("made7")
    assert made.topic_id.hex() == hosted.id
    assert (made.num_partitions, made.replication_factor) == (2, 1)
    assert {each.name: each.value for each in made.configs} == hosted.config.to_text()


def test_each_topic_has_its_own_outcome(kafka_client: KafkaClient) -> None:
    created = create(
        kafka_client,
        topic("good", retention_ms="5", flush_messages="10000"),
        topic("bad/name"),
        topic("bad-count", 0),
        topic("bad-replicas", 1, 9),
        topic("bad-setting", retention_ms="x"),
        topic("unknown-setting", such="x"),
        topic("not-here", remote_storage_enable="true"),
        Create.CreatableTopic(
            name="null-setting",
            num_partitions=1,
            replication_factor=1,
            configs=[Create.CreatableTopicConfig(name="retention.ms", value=None)],
        ),
        topic("twice"),
        topic("twice"),
        topic("__transaction_state"),
        Create.CreatableTopic(
            name="assigned",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[Create.CreatableReplicaAssignment(broker_ids=[1])],
        ),
        Create.CreatableTopic(
            name="assigned-twice",
            num_partitions=1,
            replication_factor=1,
            assignments=[Create.CreatableReplicaAssignment(broker_ids=[1])],
        ),
    )
    codes = {each.name: each.error_code for each in created}
    assert len(codes) == len(created), "as in Kafka, one outcome for a name"
    assert codes == {
        "good": 0,
        "bad/name": errors.INVALID_TOPIC,
        "bad-count": errors.INVALID_PARTITIONS,
        "bad-replicas": errors.INVALID_REPLICATION_FACTOR,
        "bad-setting": errors.INVALID_CONFIG,
        "unknown-setting": errors.INVALID_CONFIG,
        "not-here": errors.INVALID_CONFIG,
        "null-setting": errors.INVALID_CONFIG,
        "twice": errors.INVALID_REQUEST,
        "__transaction_state": errors.INVALID_TOPIC,
        "assigned": errors.INVALID_REPLICA_ASSIGNMENT,
        "assigned-twice": errors.INVALID_REQUEST,
    }
    assert all(each.error_message for each in created if each.error_code)


@pytest.mark.parametrize(
    ("wanted", "code", "text"),
    [
        (topic("there"), errors.TOPIC_ALREADY_EXISTS, "Topic 'there' already exists."),
        (topic(""), errors.INVALID_TOPIC, "Topic name is invalid: the empty string is not allowed"),
        (topic("."), errors.INVALID_TOPIC, "Topic name is invalid: '.' is not allowed"),
        (topic("a/b"), errors.INVALID_TOPIC, "Topic name is invalid: 'a/b' contains one or more"),
        (topic("x" * 250), errors.INVALID_TOPIC, "Topic name is invalid: the length of 'xxx"),
        (topic("like_this"), errors.INVALID_TOPIC, "Topic 'like_this' collides with existing"),
        (topic("n", -5), errors.INVALID_PARTITIONS, "Number of partitions was set to an invalid"),
        (topic("n", 1, 0), errors.INVALID_REPLICATION_FACTOR, "Replication factor must be larger"),
        (topic("n", 1, 9), errors.INVALID_REPLICATION_FACTOR, "Unable to replicate the partition"),
        (topic("n", no_such="1"), errors.INVALID_CONFIG, "Unknown topic config name: no.such"),
        (topic("n", segment_ms="x"), errors.INVALID_CONFIG, "Invalid value x for configuration"),
    ],
)
def test_errors_have_the_words_of_kafka(
    kafka_client: KafkaClient, wanted: Any, code: int, text: str
) -> None:
    """Scripts look for them."""
    create(kafka_client, topic("there"), topic("like.this"))
    (found,) = create(kafka_client, wanted)
    assert found.error_code == code
    assert found.error_message.startswith(text)


def test_a_topic_can_be_checked_only(
    kafka_client: KafkaClient, kafka_broker: RunningBroker
) -> None:
    planned = topic("planned", 3, retention_ms="5", preallocate="false")
    (made,) = create(kafka_client, planned, validate_only=True)
    assert (made.error_code, made.num_partitions) == (0, 3)
    found = {each.name: (each.value, each.config_source) for each in made.configs}
    assert found["retention.ms"] == ("5", 1)
    assert found["cleanup.policy"] == ("delete", 5), "the Java client requires the settings"
    (wrong,) = create(kafka_client, topic("bad/name"), validate_only=True)
    assert wrong.configs == []
    assert "planned" not in kafka_broker.broker.context.topics


def test_topics_are_deleted_by_name_and_by_id(kafka_client: KafkaClient) -> None:
    one, two = create(kafka_client, topic("doomed1"), topic("doomed2"))
    by_name = kafka_client.ask(
        apis.DELETE_TOPICS, 5, Delete.root(topic_names=["doomed1", "no"], timeout_ms=9_000)
    )
    assert [each.error_code for each in by_name.responses] == [0, 3]
    wanted = [
        Delete.DeleteTopicState(name="doomed2", topic_id=one.topic_id),
        Delete.DeleteTopicState(name=None),
        Delete.DeleteTopicState(name=None, topic_id=two.topic_id),
        Delete.DeleteTopicState(name=None, topic_id=one.topic_id),
    ]
    by_id = kafka_client.ask(apis.DELETE_TOPICS, 6, Delete.root(topics=wanted, timeout_ms=9_000))
    refused = errors.INVALID_REQUEST
    assert [each.error_code for each in by_id.responses] == [
        refused, refused, 0, errors.UNKNOWN_TOPIC_ID
    ]  # fmt: skip
    assert by_id.responses[2].name == "doomed2"


def test_partitions_are_added(kafka_client: KafkaClient, kafka_broker: RunningBroker) -> None:
    create(kafka_client, topic("grows", 1))

    def extend(count: int, *, validate_only: bool = False) -> int:
        wanted = Extend.CreatePartitionsTopic(name="grows", count=count, assignments=None)
        message = Extend.root(topics=[wanted], timeout_ms=9_000, validate_only=validate_only)
        (result,) = kafka_client.ask(apis.CREATE_PARTITIONS, 3, message).results
        assert result.name == "grows"
        code: int = result.error_code
        return code

    topics = kafka_broker.broker.context.topics
    assert extend(4, validate_only=True) == 0
    assert len(topics.topic("grows").hosts) == 1
    assert extend(4) == 0
    assert len(topics.topic("grows").hosts) == 4
    assert extend(3) == errors.INVALID_PARTITIONS


def test_records_are_deleted(kafka_client: KafkaClient) -> None:
    create(kafka_client, topic("shrinks", 1), topic("stays", 1, cleanup_policy="compact"))
    records = [KafkaRecord(value, value) for value in (b"a", b"b", b"c")]

    def delete(offset: int, partition: int = 0, name: str = "shrinks") -> tuple[int, int]:
        part = Records.DeleteRecordsPartition(partition_index=partition, offset=offset)
        wanted = Records.DeleteRecordsTopic(name=name, partitions=[part])
        message = Records.root(topics=[wanted], timeout_ms=9_000)
        (found,) = kafka_client.ask(apis.DELETE_RECORDS, 2, message).topics[0].partitions
        return found.error_code, found.low_watermark

    for name in ("shrinks", "stays"):
        assert kafka_client.produce(name, kafka_batch(records)).error_code == 0
    for offset in (-2, -5, -1_001, -(1 << 63)):  # -1001: none, in librdkafka
        assert delete(offset) == (errors.OFFSET_OUT_OF_RANGE, -1)
    for offset in (-1_001, -1, 2):
        assert delete(offset, name="stays") == (errors.POLICY_VIOLATION, -1)
    assert kafka_client.fetch("shrinks").log_start_offset == 0
    assert kafka_client.fetch("stays").log_start_offset == 0
    assert delete(2) == (0, 2)
    assert delete(-1) == (0, 3)
    assert delete(9) == (errors.OFFSET_OUT_OF_RANGE, -1)
    assert delete(0, partition=-1) == (errors.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete(0, partition=100_000) == (errors.UNKNOWN_TOPIC_OR_PARTITION, -1)


def test_too_many_topics_are_refused(kafka_client: KafkaClient) -> None:
    created = create(kafka_client, *(topic(f"many{number}") for number in range(1_001)))
    assert {each.error_code for each in created} == {errors.INVALID_REQUEST}
