"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.config.broker import BROKER_KEYS
from raftlog.config.topic import TOPIC_KEYS
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.api import IGNORED_KEYS
from raftlog.testing import wait_until
from raftlog.types import OFFSETS_TOPIC
from tests.record.kafka_batches import KafkaRecord, kafka_batch
from tests.server.harness import RunningBroker
from tests.server.kafka.kafka_client import KafkaClient

Describe = codec.structs("request", apis.DESCRIBE_CONFIGS.key)
Alter = codec.structs("request", apis.ALTER_CONFIGS.key)
Incremental = codec.structs("request", apis.INCREMENTAL_ALTER_CONFIGS.key)
TOPIC, BROKER, LOGGER = 2, 4, 8


def describe(client: KafkaClient, kind: int, name: str, *names: str, version: int = 4) -> Any:
    resource = Describe.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(names) or None
    )
    message = Describe.root(resources=[resource], include_synonyms=True, include_documentation=True)
    (result,) = client.ask(apis.DESCRIBE_CONFIGS, version, message).results
    return result


def made(broker: RunningBroker, name: str, **config: str) -> str:
    with broker.client() as native:
        native.create(name, **config)
    return name


def overrides(broker: RunningBroker, name: str) -> dict[str, str]:
    return dict(broker.broker.context.topics.topic(name).overrides)


def test_all_settings_of_a_topic(kafka_client: KafkaClient, kafka_broker: RunningBroker) -> None:
    name = made(kafka_broker, "settings", retention_ms="77")
    for version in range(1, 5):
        result = describe(kafka_client, TOPIC, name, version=version)
        found = {each.name: each for each in result.configs}
        assert found.keys() == {key.name for key in (*TOPIC_KEYS, *IGNORED_KEYS)}
    assert (found["retention.ms"].value, found["retention.ms"].config_source) == ("77", 1)
    assert found["retention.ms"].synonyms[0].source == 1
    assert (found["segment.ms"].config_source, found["segment.ms"].read_only) == (5, False)
    assert found["min.insync.replicas"].value == "1", "the number in force"
    assert found["flush.messages"].read_only
    assert all(each.documentation for each in found.values())
    one = describe(kafka_client, TOPIC, name, "retention.ms")
    assert [each.name for each in one.configs] == ["retention.ms"]
    resource = Describe.DescribeConfigsResource(
        resource_type=TOPIC, resource_name=name, configuration_keys=[]
    )
    (every,) = kafka_client.ask(
        apis.DESCRIBE_CONFIGS, 4, Describe.root(resources=[resource])
    ).results
    assert {each.name for each in every.configs} == found.keys(), "as in Kafka"


def test_settings_of_the_broker_without_secrets(kafka_client: KafkaClient) -> None:
    found = {each.name: each for each in describe(kafka_client, BROKER, "1").configs}
    assert {key.name for key in BROKER_KEYS if not key.is_secret} <= found.keys()
    assert not {key.name for key in BROKER_KEYS if key.is_secret} & found.keys()
    assert found["message.max.bytes"].value == "1048588"
    copies = ("default.replication.factor", "offsets.topic.replication.factor")
    for name in (*copies, "min.insync.replicas"):
        assert found[name].value == "1", "the number in force"
    assert found["advertised.listen"].value.startswith("127.0.0.1:")
    assert all(each.read_only for each in found.values())
    assert describe(kafka_client, BROKER, "2").error_code == errors.INVALID_REQUEST


def test_settings_of_many_topics(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Java client requests those of all topics at once."""
    first, second = made(kafka_broker, "some1"), made(kafka_broker, "some2", retention_ms="77")

    def ask(*names: str) -> list[Any]:
        resources = [
            Describe.DescribeConfigsResource(
                resource_type=TOPIC, resource_name=name, configuration_keys=None
            )
            for name in names
        ]
        message = Describe.root(resources=resources)
        found: list[Any] = kafka_client.ask(apis.DESCRIBE_CONFIGS, 4, message).results
        return found

    many = ask(*[first] * 500, second, *[f"none{number}" for number in range(500)])
    assert [each.error_code for each in many] == [0] * 501 + [3] * 500
    values = [
        {one.name: one.value for one in each.configs}["retention.ms"] for each in many[499:501]
    ]
    assert values == ["604800000", "77"]
    monkeypatch.setattr(limits, "KAFKA_RESPONSE_BYTES_MAX", 1)
    codes = [each.error_code for each in ask(first, second)]
    assert codes == [0, errors.THROTTLING_QUOTA_EXCEEDED]


def test_resources_without_settings(kafka_client: KafkaClient) -> None:
    assert describe(kafka_client, TOPIC, "none").error_code == 3
    assert describe(kafka_client, 3, "x").error_code == errors.INVALID_REQUEST
    assert describe(kafka_client, LOGGER, "2").error_code == errors.INVALID_REQUEST


def change(
    client: KafkaClient, name: str, *changes: tuple[str, int, str | None], **more: Any
) -> int:
    configs = [
        Incremental.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = Incremental.AlterConfigsResource(
        resource_type=more.pop("kind", TOPIC), resource_name=name, configs=configs
    )
    message = Incremental.root(resources=[resource], **more)
    (result,) = client.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, message).responses
    code: int = result.error_code
    return code


def test_single_settings_are_changed(
    kafka_client: KafkaClient, kafka_broker: RunningBroker
) -> None:
    name = made(kafka_broker, "changed", retention_ms="77")
    assert change(kafka_client, name, ("segment.ms", 0, "99"), ("retention.ms", 1, None)) == 0
    assert overrides(kafka_broker, name) == {"segment.ms": "99"}
    assert change(kafka_client, name, ("cleanup.policy", 2, "compact")) == 0
    assert overrides(kafka_broker, name)["cleanup.policy"] == "delete,compact"
    assert change(kafka_client, name, ("cleanup.policy", 3, "delete")) == 0
    assert overrides(kafka_broker, name)["cleanup.policy"] == "compact"


def test_changes_that_are_refused(kafka_client: KafkaClient, kafka_broker: RunningBroker) -> None:
    name = made(kafka_broker, "unchanged")
    assert change(kafka_client, name, ("segment.ms", 0, "x")) == errors.INVALID_CONFIG
    assert change(kafka_client, name, ("segment.ms", 0, None)) == errors.INVALID_REQUEST
    assert change(kafka_client, name, *[("segment.ms", 0, "5")] * 2) == errors.INVALID_REQUEST
    assert change(kafka_client, name, ("segment.ms", 2, "1")) == errors.INVALID_CONFIG
    assert change(kafka_client, name, ("segment.ms", 9, "1")) == errors.INVALID_REQUEST
    assert change(kafka_client, name, ("no.such", 0, "5")) == errors.INVALID_CONFIG
    assert change(kafka_client, name, ("preallocate", 0, "x")) == errors.INVALID_CONFIG
    assert change(kafka_client, name, ("preallocate", 0, "true")) == 0
    assert change(kafka_client, "1", ("max.connections", 0, "5"), kind=BROKER) == 40
    assert change(kafka_client, name, ("segment.ms", 0, "5"), validate_only=True) == 0
    assert change(kafka_client, name, ("segment.ms", 0, "-5"), validate_only=True) == 40
    assert overrides(kafka_broker, name) == {}


def test_a_setting_that_does_not_exist_is_deleted(
    kafka_client: KafkaClient, kafka_broker: RunningBroker
) -> None:
    """MirrorMaker 2 deletes each setting that has its default at the source."""
    name = made(kafka_broker, "mirrored")
    for only in (True, False):
        changes = ("segment.ms", 0, "99"), ("no.such", 1, None), ("flush.ms", 1, None)
        assert change(kafka_client, name, *changes, validate_only=only) == 0
    assert overrides(kafka_broker, name) == {"segment.ms": "99"}


def test_a_resource_that_a_request_contains_twice_is_unchanged(
    kafka_client: KafkaClient, kafka_broker: RunningBroker
) -> None:
    name = made(kafka_broker, "twice")
    setting = Alter.AlterableConfig(name="segment.ms", value="99")
    for count, configs in ((2, [setting]), (1, [setting, setting])):
        resource = Alter.AlterConfigsResource(
            resource_type=TOPIC, resource_name=name, configs=configs
        )
        message = Alter.root(resources=[resource] * count)
        results = kafka_client.ask(apis.ALTER_CONFIGS, 2, message).responses
        assert [each.error_code for each in results] == [errors.INVALID_REQUEST] * count
    setting.value = None
    (result,) = kafka_client.ask(apis.ALTER_CONFIGS, 2, Alter.root(resources=[resource])).responses
    assert result.error_code == errors.INVALID_REQUEST
    assert overrides(kafka_broker, name) == {}


def test_levels_of_loggers_are_changed(kafka_client: KafkaClient) -> None:
    """KIP-412: by IncrementalAlterConfigs only."""
    name = "raftlog.server.connection"

    def level() -> tuple[str, int]:
        (found,) = describe(kafka_client, LOGGER, "1", name).configs
        return found.value, found.config_source

    before = level()
    for given, shown in (("TRACE", "DEBUG"), ("WARN", "WARN")):
        assert change(kafka_client, "1", (name, 0, given), kind=LOGGER) == 0
        assert level() == (shown, 6)
    assert change(kafka_client, "1", (name, 0, "ERROR"), kind=LOGGER, validate_only=True) == 0
    assert change(kafka_client, "1", (name, 0, "LOUD"), kind=LOGGER) == errors.INVALID_CONFIG
    assert change(kafka_client, "1", (name, 2, "WARN"), kind=LOGGER) == errors.INVALID_CONFIG
    assert change(kafka_client, "1", ("no.such", 0, "WARN"), kind=LOGGER) == errors.INVALID_REQUEST
    assert change(kafka_client, "2", (name, 0, "WARN"), kind=LOGGER) == errors.INVALID_REQUEST
    assert level() == ("WARN", 6)
    assert change(kafka_client, "1", (name, 1, None), kind=LOGGER) == 0
    assert level() == before


def test_all_settings_are_replaced(kafka_client: KafkaClient, kafka_broker: RunningBroker) -> None:
    """Clients read all settings and write them back, with one changed."""
    name = made(kafka_broker, "replaced", retention_ms="77", segment_ms="99")
    given = {
        each.name: each.value
        for each in describe(kafka_client, TOPIC, name).configs
        if each.name != "retention.ms"
    }
    configs = [Alter.AlterableConfig(name=key, value=value) for key, value in given.items()]
    resource = Alter.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=configs)
    for version in range(3):
        message = Alter.root(resources=[resource])
        (result,) = kafka_client.ask(apis.ALTER_CONFIGS, version, message).responses
        assert (result.error_code, result.error_message) == (0, None)
    assert "retention.ms" not in overrides(kafka_broker, name)
    assert overrides(kafka_broker, name)["segment.ms"] == "99"


# -- topics ----------------------------------------------------------------------------------------
#
# CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords.


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


def extend(client: KafkaClient, name: str, count: int, *, validate_only: bool = False) -> int:
    wanted = Extend.CreatePartitionsTopic(name=name, count=count, assignments=None)
    message = Extend.root(topics=[wanted], timeout_ms=9_000, validate_only=validate_only)
    (result,) = client.ask(apis.CREATE_PARTITIONS, 3, message).results
    assert result.name == name
    code: int = result.error_code
    return code


def test_partitions_are_added(kafka_client: KafkaClient, kafka_broker: RunningBroker) -> None:
    create(kafka_client, topic("grows", 1))
    topics = kafka_broker.broker.context.topics
    assert extend(kafka_client, "grows", 4, validate_only=True) == 0
    assert len(topics.topic("grows").hosts) == 1
    assert extend(kafka_client, "grows", 4) == 0
    assert len(topics.topic("grows").hosts) == 4
    assert extend(kafka_client, "grows", 3) == errors.INVALID_PARTITIONS


def test_internal_topics_are_not_changed(kafka_client: KafkaClient) -> None:
    """Once, a request with validate_only was a success."""
    find = codec.structs("request", apis.FIND_COORDINATOR.key).root(key="g")
    wait_until(lambda: not kafka_client.ask(apis.FIND_COORDINATOR, 3, find).error_code)
    setting = "retention.ms", 0, "1"
    for only in (True, False):
        assert extend(kafka_client, OFFSETS_TOPIC, 99, validate_only=only) == errors.INVALID_TOPIC
        refused = change(kafka_client, OFFSETS_TOPIC, setting, validate_only=only)
        assert refused == errors.INVALID_TOPIC


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
