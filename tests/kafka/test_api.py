"""The APIs that a broker serves are those in the manual."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raftlog import limits
from raftlog.config.topic import TOPIC_KEYS
from raftlog.errors import InvalidConfigError
from raftlog.kafka import api as apis
from raftlog.kafka.api import IGNORED_KEYS, Api, own_settings

PAGE = Path(__file__).parents[2] / "docs/explanation/kafka.md"


def versions(api: Api) -> str:
    if api.version_min == api.version_max:
        return str(api.version_min)
    return f"{api.version_min}-{api.version_max}"


def test_the_manual_lists_the_apis_and_their_versions() -> None:
    section = PAGE.read_text().partition("## APIs")[2].partition("\n## ")[0]
    listed = dict(re.findall(r"\| (\w+) \| (\d+(?:-\d+)?)(?= )", section))
    assert listed == {api.name: versions(api) for api in apis.APIS.values()}


# -- names -----------------------------------------------------------------------------------------
#
# Settings of Kafka that have no effect in raftlog.


# The topic settings of Kafka 4.4, with its defaults.
KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "errors.deadletterqueue.group.enable": "false",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.decompressed.message.bytes": "2147483639",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.copy.lag.bytes": "-1",
    "remote.copy.lag.ms": "0",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
OWN = {key.name for key in TOPIC_KEYS}


def test_the_settings_are_those_of_kafka() -> None:
    names = OWN | {key.name for key in IGNORED_KEYS}
    assert names == KAFKA_DEFAULTS.keys() | {"flush.policy", "schema.validation"}
    for key in IGNORED_KEYS:
        assert key.parse(key.show(key.default)) == key.default, "it can be written back"


def test_a_setting_without_effect_is_not_stored() -> None:
    given = {name: KAFKA_DEFAULTS[name] for name in KAFKA_DEFAULTS.keys() - OWN}
    given |= {"preallocate": "TRUE", "segment.jitter.ms": "1000", "message.format.version": "3.0"}
    given["leader.replication.throttled.replicas"] = "0:1,1:2"
    given["unclean.leader.election.enable"] = "true"
    assert own_settings({**given, "retention.ms": "5"}) == {"retention.ms": "5"}
    assert own_settings({"compression.type": "zstd"}) == {"compression.type": None}


def test_a_setting_that_does_not_exist() -> None:
    with pytest.raises(InvalidConfigError, match=r"Unknown topic config name: no\.such"):
        own_settings({"no.such": "1"})


def test_confluents_switch_of_schema_validation() -> None:
    name = "confluent.value.schema.validation"
    for value, own in (("true", "id"), ("false", "none"), (None, None)):
        assert own_settings({name: value}) == {"schema.validation": own}
    with pytest.raises(InvalidConfigError, match="true, false"):
        own_settings({name: "full"})


def test_any_setting_can_be_deleted() -> None:
    deleted = {"retention.ms": None, "flush.ms": None, "no.such": None}
    assert own_settings(deleted) == {"retention.ms": None}


def test_a_limit_above_the_highest_is_the_highest() -> None:
    most = str(limits.BATCH_BYTES_MAX)
    assert own_settings({"max.message.bytes": "104857600"}) == {"max.message.bytes": most}
    assert own_settings({"retention.bytes": "-2"}) == {"retention.bytes": "-1"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment.index.bytes", "3"),
        ("max.message.bytes", "2147483648"),
        ("retention.ms", "soon"),
        ("preallocate", "x"),
        ("compression.type", "none"),
        ("follower.replication.throttled.replicas", "x"),
        ("follower.replication.throttled.replicas", "1:x"),
        ("remote.storage.enable", "true"),
    ],
)
def test_what_kafka_refuses_or_raftlog_would_not_do(name: str, value: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"Invalid value {value} for configuration {name}"):
        own_settings({name: value})
