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
