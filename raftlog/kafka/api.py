"""Kafka's APIs that a broker serves: keys, names and versions.

A broker advertises and accepts these only. The version ranges and their reasons are in
``docs/explanation/kafka.md``. The messages of each API are in ``table``, which
``python -m tests.kafka.extract`` creates for exactly these versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from raftlog import limits
from raftlog.config.keys import INT64_MAX, ConfigKey, number, word
from raftlog.config.topic import TOPIC_KEYS
from raftlog.errors import InvalidConfigError


class Api(NamedTuple):
    """One API of Kafka's protocol, with the range of versions that a broker serves.

    ``advertised_min``: the lowest version in ApiVersions responses, if it differs from
    ``version_min``.
    """

    key: int
    name: str
    version_min: int
    version_max: int
    advertised_min: int = -1


# librdkafka before 2.10 compresses nothing unless Produce 0 is advertised (KAFKA-18659). Kafka
# itself advertises and rejects versions 0 to 2.
PRODUCE: Final = Api(0, "Produce", 3, 13, advertised_min=0)
FETCH: Final = Api(1, "Fetch", 4, 18)
LIST_OFFSETS: Final = Api(2, "ListOffsets", 1, 11)
METADATA: Final = Api(3, "Metadata", 0, 13)
OFFSET_COMMIT: Final = Api(8, "OffsetCommit", 2, 10)
OFFSET_FETCH: Final = Api(9, "OffsetFetch", 1, 10)
FIND_COORDINATOR: Final = Api(10, "FindCoordinator", 0, 6)
JOIN_GROUP: Final = Api(11, "JoinGroup", 0, 9)
HEARTBEAT: Final = Api(12, "Heartbeat", 0, 4)
LEAVE_GROUP: Final = Api(13, "LeaveGroup", 0, 5)
SYNC_GROUP: Final = Api(14, "SyncGroup", 0, 5)
DESCRIBE_GROUPS: Final = Api(15, "DescribeGroups", 0, 6)
LIST_GROUPS: Final = Api(16, "ListGroups", 0, 5)
# After version 0, the messages of the exchange are not requests: see ``connection``.
SASL_HANDSHAKE: Final = Api(17, "SaslHandshake", 0, 1)
API_VERSIONS: Final = Api(18, "ApiVersions", 0, 5)
CREATE_TOPICS: Final = Api(19, "CreateTopics", 2, 7)
DELETE_TOPICS: Final = Api(20, "DeleteTopics", 1, 6)
DELETE_RECORDS: Final = Api(21, "DeleteRecords", 0, 2)
INIT_PRODUCER_ID: Final = Api(22, "InitProducerId", 0, 5)
OFFSET_FOR_LEADER_EPOCH: Final = Api(23, "OffsetForLeaderEpoch", 2, 4)
ADD_PARTITIONS_TO_TXN: Final = Api(24, "AddPartitionsToTxn", 0, 5)
ADD_OFFSETS_TO_TXN: Final = Api(25, "AddOffsetsToTxn", 0, 4)
END_TXN: Final = Api(26, "EndTxn", 0, 5)
WRITE_TXN_MARKERS: Final = Api(27, "WriteTxnMarkers", 1, 2)
TXN_OFFSET_COMMIT: Final = Api(28, "TxnOffsetCommit", 0, 6)
DESCRIBE_ACLS: Final = Api(29, "DescribeAcls", 1, 3)
CREATE_ACLS: Final = Api(30, "CreateAcls", 1, 3)
DELETE_ACLS: Final = Api(31, "DeleteAcls", 1, 3)
DESCRIBE_CONFIGS: Final = Api(32, "DescribeConfigs", 1, 4)
ALTER_CONFIGS: Final = Api(33, "AlterConfigs", 0, 2)
ALTER_REPLICA_LOG_DIRS: Final = Api(34, "AlterReplicaLogDirs", 1, 2)
DESCRIBE_LOG_DIRS: Final = Api(35, "DescribeLogDirs", 1, 4)
SASL_AUTHENTICATE: Final = Api(36, "SaslAuthenticate", 0, 2)
CREATE_PARTITIONS: Final = Api(37, "CreatePartitions", 0, 3)
CREATE_DELEGATION_TOKEN: Final = Api(38, "CreateDelegationToken", 1, 3)
RENEW_DELEGATION_TOKEN: Final = Api(39, "RenewDelegationToken", 1, 2)
EXPIRE_DELEGATION_TOKEN: Final = Api(40, "ExpireDelegationToken", 1, 2)
DESCRIBE_DELEGATION_TOKEN: Final = Api(41, "DescribeDelegationToken", 1, 3)
DELETE_GROUPS: Final = Api(42, "DeleteGroups", 0, 2)
ELECT_LEADERS: Final = Api(43, "ElectLeaders", 0, 2)
INCREMENTAL_ALTER_CONFIGS: Final = Api(44, "IncrementalAlterConfigs", 0, 1)
ALTER_PARTITION_REASSIGNMENTS: Final = Api(45, "AlterPartitionReassignments", 0, 1)
LIST_PARTITION_REASSIGNMENTS: Final = Api(46, "ListPartitionReassignments", 0, 0)
OFFSET_DELETE: Final = Api(47, "OffsetDelete", 0, 0)
DESCRIBE_CLIENT_QUOTAS: Final = Api(48, "DescribeClientQuotas", 0, 1)
ALTER_CLIENT_QUOTAS: Final = Api(49, "AlterClientQuotas", 0, 1)
DESCRIBE_USER_SCRAM_CREDENTIALS: Final = Api(50, "DescribeUserScramCredentials", 0, 0)
ALTER_USER_SCRAM_CREDENTIALS: Final = Api(51, "AlterUserScramCredentials", 0, 0)
DESCRIBE_QUORUM: Final = Api(55, "DescribeQuorum", 0, 2)
UPDATE_FEATURES: Final = Api(57, "UpdateFeatures", 0, 2)
DESCRIBE_CLUSTER: Final = Api(60, "DescribeCluster", 0, 2)
DESCRIBE_PRODUCERS: Final = Api(61, "DescribeProducers", 0, 0)
DESCRIBE_TRANSACTIONS: Final = Api(65, "DescribeTransactions", 0, 0)
LIST_TRANSACTIONS: Final = Api(66, "ListTransactions", 0, 2)
CONSUMER_GROUP_HEARTBEAT: Final = Api(68, "ConsumerGroupHeartbeat", 0, 1)
CONSUMER_GROUP_DESCRIBE: Final = Api(69, "ConsumerGroupDescribe", 0, 1)
GET_TELEMETRY_SUBSCRIPTIONS: Final = Api(71, "GetTelemetrySubscriptions", 0, 0)
PUSH_TELEMETRY: Final = Api(72, "PushTelemetry", 0, 0)
LIST_CONFIG_RESOURCES: Final = Api(74, "ListConfigResources", 0, 1)
DESCRIBE_TOPIC_PARTITIONS: Final = Api(75, "DescribeTopicPartitions", 0, 0)

APIS: Final[dict[int, Api]] = {
    api.key: api
    for api in (
        PRODUCE,
        FETCH,
        LIST_OFFSETS,
        METADATA,
        OFFSET_COMMIT,
        OFFSET_FETCH,
        FIND_COORDINATOR,
        JOIN_GROUP,
        HEARTBEAT,
        LEAVE_GROUP,
        SYNC_GROUP,
        DESCRIBE_GROUPS,
        LIST_GROUPS,
        SASL_HANDSHAKE,
        API_VERSIONS,
        CREATE_TOPICS,
        DELETE_TOPICS,
        DELETE_RECORDS,
        INIT_PRODUCER_ID,
        OFFSET_FOR_LEADER_EPOCH,
        ADD_PARTITIONS_TO_TXN,
        ADD_OFFSETS_TO_TXN,
        END_TXN,
        WRITE_TXN_MARKERS,
        TXN_OFFSET_COMMIT,
        DESCRIBE_TRANSACTIONS,
        LIST_TRANSACTIONS,
        DESCRIBE_ACLS,
        CREATE_ACLS,
        DELETE_ACLS,
        DESCRIBE_CONFIGS,
        ALTER_CONFIGS,
        ALTER_REPLICA_LOG_DIRS,
        DESCRIBE_LOG_DIRS,
        SASL_AUTHENTICATE,
        CREATE_PARTITIONS,
        CREATE_DELEGATION_TOKEN,
        RENEW_DELEGATION_TOKEN,
        EXPIRE_DELEGATION_TOKEN,
        DESCRIBE_DELEGATION_TOKEN,
        DELETE_GROUPS,
        INCREMENTAL_ALTER_CONFIGS,
        LIST_PARTITION_REASSIGNMENTS,
        OFFSET_DELETE,
        DESCRIBE_CLIENT_QUOTAS,
        ALTER_CLIENT_QUOTAS,
        DESCRIBE_USER_SCRAM_CREDENTIALS,
        ALTER_USER_SCRAM_CREDENTIALS,
        DESCRIBE_CLUSTER,
        DESCRIBE_PRODUCERS,
        CONSUMER_GROUP_HEARTBEAT,
        CONSUMER_GROUP_DESCRIBE,
        ELECT_LEADERS,
        ALTER_PARTITION_REASSIGNMENTS,
        DESCRIBE_QUORUM,
        UPDATE_FEATURES,
        GET_TELEMETRY_SUBSCRIPTIONS,
        PUSH_TELEMETRY,
        LIST_CONFIG_RESOURCES,
        DESCRIBE_TOPIC_PARTITIONS,
    )
}


# -- names -----------------------------------------------------------------------------------------
#
# Settings of Kafka 4.4's topics that have no effect in raftlog.
#
# Tools copy all settings of a topic from another cluster, and write back all settings that they
# have read. A request can give any value that Kafka accepts: it is checked, and not stored.
# Descriptions return the value that holds. Only a value that would promise what raftlog does not do
# is refused.


INT32_MAX: Final = (1 << 31) - 1
MISSING: Final = "raftlog does not have this setting of Kafka. The value is what holds."


def _flag(name: str) -> ConfigKey[bool]:
    def parse(text: str) -> bool:
        value = text.strip().lower()
        if value not in ("true", "false"):
            raise ValueError("not true or false")
        return value == "true"

    return ConfigKey(name, False, parse, "true or false", MISSING, lambda value: str(value).lower())


def _throttled(name: str) -> ConfigKey[str]:
    """Return a list of replicas, ``PARTITION:BROKER``, or * for all."""

    def parse(text: str) -> str:
        pairs = [part.split(":") for part in text.split(",") if part.strip()]
        is_list = all(len(pair) == 2 and "".join(pair).isdecimal() for pair in pairs)
        if text.strip() != "*" and not is_list:
            raise ValueError("not a list of replicas")
        return text

    return ConfigKey(name, "", parse, "* or PARTITION:BROKER,...", MISSING)


def _int(name: str, holds: int, least: int, most: int = INT32_MAX) -> ConfigKey[int]:
    return number(name, holds, least, most, "", MISSING)


# Of topics; the default is the value that holds.
IGNORED_KEYS: Final[tuple[ConfigKey[Any], ...]] = (
    _int("compression.gzip.level", -1, -1, 9),
    _int("compression.lz4.level", 9, 1, 17),
    _int("compression.zstd.level", 3, -131_072, 22),
    _flag("errors.deadletterqueue.group.enable"),
    _int("file.delete.delay.ms", 0, 0, INT64_MAX),
    _int("flush.messages", 1, 1, INT64_MAX),
    _int("flush.ms", 0, 0, INT64_MAX),
    _throttled("follower.replication.throttled.replicas"),
    _throttled("leader.replication.throttled.replicas"),
    _int("local.retention.bytes", -2, -2, INT64_MAX),
    _int("local.retention.ms", -2, -2, INT64_MAX),
    _int("max.decompressed.message.bytes", limits.BATCH_UNCOMPRESSED_BYTES_MAX, 1),
    _flag("preallocate"),
    _int("remote.copy.lag.bytes", -1, -1, INT64_MAX),
    _int("remote.copy.lag.ms", 0, -1, INT64_MAX),
    _flag("remote.log.copy.disable"),
    _flag("remote.log.delete.on.disable"),
    word("remote.storage.enable", "false", ("false",), MISSING),  # records would not be tiered
    _int("segment.index.bytes", 10 * limits.MIB, 4),
    _int("segment.jitter.ms", 0, 0, INT64_MAX),
    _flag("unclean.leader.election.enable"),
)
# Settings of topics that Kafka 4.0 has removed. Tools of earlier versions set them.
RETIRED: Final = frozenset(("message.downconversion.enable", "message.format.version"))
_IGNORED: Final = {key.name: key for key in IGNORED_KEYS}
_OWN: Final = {key.name: key for key in TOPIC_KEYS}
_CODECS: Final = word(
    "compression.type",
    "producer",
    ("producer", "uncompressed", "zstd", "lz4", "snappy", "gzip"),
    "",
)


# Of Confluent Server: settings of topics, and their values, with raftlog's.
_SCHEMA_NAMES: Final = {
    "confluent.key.schema.validation": "schema.validation.keys",
    "confluent.key.subject.name.strategy": "schema.subjects.keys",
    "confluent.value.schema.validation": "schema.validation",
    "confluent.value.subject.name.strategy": "schema.subjects",
}
_SWITCH: Final = {"true": "id", "false": "none"}
_STRATEGIES: Final = {
    f"io.confluent.kafka.serializers.subject.{name}": strategy
    for name, strategy in (
        ("TopicNameStrategy", "topic"),
        ("RecordNameStrategy", "record"),
        ("TopicRecordNameStrategy", "topic-record"),
    )
}


def own_settings(settings: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the settings of a topic that have an effect. None deletes one: a setting that does not
    exist can be deleted, too.

    Raises ``InvalidConfigError``, whose text begins with Kafka's words, for a setting or a value
    that Kafka refuses, or that would promise what raftlog does not do.
    """
    own: dict[str, str | None] = {}
    for name, value in settings.items():
        if name in _SCHEMA_NAMES:
            own[_SCHEMA_NAMES[name]] = None if value is None else _of_confluent(name, value)
        elif value is None:
            if name in _OWN:
                own[name] = None
        elif name in _IGNORED:
            _check(_IGNORED[name], value)
        elif name == _CODECS.name:
            _check(_CODECS, value)
            own[name] = None  # batches are stored as the producer compressed them
        elif name in _OWN:
            own[name] = _within(name, value)
            _check(_OWN[name], own[name] or "")
        elif name not in RETIRED:
            raise InvalidConfigError(
                f"Unknown topic config name: {name[:100]}. DescribeConfigs returns all settings"
            )
    return own


def _of_confluent(name: str, text: str) -> str:
    """Return raftlog's value for one of a setting of Confluent Server."""
    is_switch = name.endswith(".validation")
    found = _SWITCH.get(text.strip().lower()) if is_switch else _STRATEGIES.get(text.strip())
    if found is None:
        raise InvalidConfigError(
            f"Invalid value {text[:100]} for configuration {name}. Accepted: "
            f"{', '.join(_SWITCH if is_switch else _STRATEGIES)}"
        )
    return found


def _check(key: ConfigKey[Any], text: str) -> None:
    try:
        key.parse(text)
    except ValueError as error:
        raise InvalidConfigError(
            f"Invalid value {text[:100]} for configuration {key.name}: {error}. Accepted: "
            f"{key.accepts}"
        ) from error


def _within(name: str, text: str) -> str:
    """Return the nearest value that a topic can have, of a limit that Kafka can have higher."""
    try:
        value = int(text, 10)
    except ValueError:
        return text  # refused next
    if name == "max.message.bytes" and limits.BATCH_BYTES_MAX < value <= INT32_MAX:
        return str(limits.BATCH_BYTES_MAX)
    if name == "retention.bytes" and -(1 << 63) <= value < 0:
        return "-1"
    return text
