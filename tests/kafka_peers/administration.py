"""More requests of the differential test: administration, groups and readers at their edges."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from raftlog.kafka import api as apis
from raftlog.kafka import codec
from raftlog.kafka.api import Api
from raftlog.record import Codec
from tests.record.batches import NOW_MS
from tests.record.kafka_batches import KafkaRecord, kafka_batch
from tests.server.kafka.kafka_client import fetch_request, produce_request

Step: TypeAlias = tuple[str, Api, int, Any]  # what it shows, API, version, request
TOPIC: Final = "adm"
TOPIC_TYPE, BROKER_TYPE, LOGGER_TYPE, METRICS_TYPE, GROUP_TYPE = 2, 4, 8, 16, 32
TIMEOUT_MS: Final = 20_000


def _of(api: Api) -> Any:
    return codec.structs("request", api.key)


def administration() -> Iterator[Step]:
    """Yield requests. The caller sends back the answer to each."""
    yield from assigned_topics()
    yield from settings()
    yield from changes()
    yield from whole_settings()
    yield from elections()
    yield from moves()
    yield from quotas()
    yield from users()
    yield from coordinators()
    yield from static_members()
    yield from offsets_of_groups()
    yield from modern_group()
    yield from readers_by_id()
    yield from readers_by_time()
    yield from sessions()
    yield from settings_after_all()


def assigned_topics() -> Iterator[Step]:
    api = _of(apis.CREATE_TOPICS)
    part = api.CreatableReplicaAssignment

    def create(label: str, name: str, *assignments: Any, **more: Any) -> Step:
        fields = {"num_partitions": -1, "replication_factor": -1, **more}
        topic = api.CreatableTopic(name=name, assignments=list(assignments), **fields)
        message = api.root(topics=[topic], timeout_ms=TIMEOUT_MS)
        return f"create with {label}", apis.CREATE_TOPICS, 7, message

    first = part(partition_index=0, broker_ids=[1, 2, 3])
    second = part(partition_index=1, broker_ids=[2, 3, 1])
    yield create("an assignment", "assigned2", first, second)
    yield create("the topic", TOPIC, num_partitions=3, replication_factor=3)
    yield create("one partition twice", "bad", first, first)
    yield create("a partition left out", "bad", first, part(partition_index=2, broker_ids=[1]))
    yield create("a partition below 0", "bad", part(partition_index=-1, broker_ids=[1]))
    yield create("a broker twice", "bad", part(partition_index=0, broker_ids=[1, 1]))
    yield create("an unknown broker", "bad", part(partition_index=0, broker_ids=[1, 9]))
    yield create("a broker below 0", "bad", part(partition_index=0, broker_ids=[-1]))
    yield create("no broker", "bad", part(partition_index=0, broker_ids=[]))
    yield create("sizes that differ", "bad", first, part(partition_index=1, broker_ids=[1]))
    yield create("a long name", "x" * 250)
    yield create("a name of one dot", ".")
    yield create("a name of two dots", "..")
    yield create("a name with a space", "a b")
    yield create("-2 replicas", "bad", num_partitions=1, replication_factor=-2)
    growing = _of(apis.CREATE_PARTITIONS)
    for label, count, brokers in (
        ("an assignment", 3, [[3, 1, 2]]),
        ("too few assignments", 5, [[1, 2, 3]]),
        ("too many assignments", 4, [[1, 2, 3], [2, 3, 1]]),
        ("another count of replicas", 4, [[1]]),
        ("a broker twice", 4, [[1, 1, 2]]),
        ("an unknown broker", 4, [[1, 2, 9]]),
    ):
        given = [growing.CreatePartitionsAssignment(broker_ids=ids) for ids in brokers]
        topic = growing.CreatePartitionsTopic(name="assigned2", count=count, assignments=given)
        message = growing.root(topics=[topic], timeout_ms=TIMEOUT_MS)
        yield f"extend by {label}", apis.CREATE_PARTITIONS, 3, message
    topic = growing.CreatePartitionsTopic(name=TOPIC, count=9, assignments=None)
    message = growing.root(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=True)
    yield "extend, validate only", apis.CREATE_PARTITIONS, 3, message
    message = growing.root(topics=[topic, topic], timeout_ms=TIMEOUT_MS)
    yield "extend twice", apis.CREATE_PARTITIONS, 3, message
    api = _of(apis.DESCRIBE_TOPIC_PARTITIONS)
    for label, names, limit, cursor in (
        ("one topic", [TOPIC], 2_000, None),
        ("no topic", ["absent"], 2_000, None),
        ("a bad name", ["bad/name"], 2_000, None),
        ("two partitions", [TOPIC], 2, None),
        ("those after a cursor", [TOPIC], 2_000, (TOPIC, 2)),
        ("those after a cursor below 0", [TOPIC], 2_000, (TOPIC, -1)),
    ):
        at = None if cursor is None else api.Cursor(topic_name=cursor[0], partition_index=cursor[1])
        message = api.root(
            topics=[api.TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=at,
        )
        yield f"describe partitions: {label}", apis.DESCRIBE_TOPIC_PARTITIONS, 0, message


def settings() -> Iterator[Step]:
    api = _of(apis.DESCRIBE_CONFIGS)
    for label, kind, name, keys in (
        ("of a topic without a name", TOPIC_TYPE, "", ["retention.ms"]),
        ("of a topic with a bad name", TOPIC_TYPE, "a b", ["retention.ms"]),
        ("of an unknown broker", BROKER_TYPE, "9", ["log.retention.ms"]),
        ("of a broker with a bad name", BROKER_TYPE, "one", ["log.retention.ms"]),
        ("of a logger", LOGGER_TYPE, "9", ["root"]),
        ("of a group", GROUP_TYPE, "g", ["consumer.session.timeout.ms"]),
        ("of a group without a name", GROUP_TYPE, "", []),
        ("of an unknown type", 99, "x", []),
    ):
        resource = api.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=keys
        )
        yield f"settings {label}", apis.DESCRIBE_CONFIGS, 4, api.root(resources=[resource])
    resource = api.DescribeConfigsResource(
        resource_type=TOPIC_TYPE, resource_name=TOPIC, configuration_keys=["retention.ms"]
    )
    yield "settings twice", apis.DESCRIBE_CONFIGS, 4, api.root(resources=[resource, resource])


def changes() -> Iterator[Step]:
    api = _of(apis.INCREMENTAL_ALTER_CONFIGS)
    is_set, minus = 0, 3  # operations
    for label, kind, name, pairs, *more in (
        ("one setting twice", TOPIC_TYPE, TOPIC, [("retention.ms", "1"), ("retention.ms", "2")]),
        ("one good and one bad", TOPIC_TYPE, TOPIC, [("retention.ms", "9"), ("segment.ms", "x")]),
        ("one topic twice", TOPIC_TYPE, TOPIC, [("retention.ms", "1")], {"times": 2}),
        ("nothing", TOPIC_TYPE, TOPIC, []),
        ("by an empty value", TOPIC_TYPE, TOPIC, [("retention.ms", "")]),
        ("by a space", TOPIC_TYPE, TOPIC, [("retention.ms", " 1000000 ")]),
        ("by subtraction", TOPIC_TYPE, TOPIC, [("cleanup.policy", "delete")], {"how": minus}),
        ("by absent parts", TOPIC_TYPE, TOPIC, [("cleanup.policy", "compact")], {"how": minus}),
        ("a policy of both", TOPIC_TYPE, TOPIC, [("cleanup.policy", "compact,delete")]),
        ("a policy of none", TOPIC_TYPE, TOPIC, [("cleanup.policy", "none")]),
        ("below the least", TOPIC_TYPE, TOPIC, [("segment.bytes", "1")]),
        ("retention below -1", TOPIC_TYPE, TOPIC, [("retention.ms", "-2")]),
        ("replicas in sync above all", TOPIC_TYPE, TOPIC, [("min.insync.replicas", "9")]),
        ("replicas in sync of 0", TOPIC_TYPE, TOPIC, [("min.insync.replicas", "0")]),
        ("a boolean", TOPIC_TYPE, TOPIC, [("preallocate", "yes")]),
        ("only validated", TOPIC_TYPE, TOPIC, [("retention.ms", "5")], {"validate_only": True}),
        ("an unknown broker", BROKER_TYPE, "9", [("log.retention.ms", "5")]),
        ("a broker with a bad name", BROKER_TYPE, "one", [("log.retention.ms", "5")]),
        ("an unknown type", 99, "x", [("log.retention.ms", "5")]),
    ):  # fmt: skip
        fields: dict[str, Any] = dict(*more)
        operation, times = fields.pop("how", is_set), fields.pop("times", 1)
        configs = [
            api.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, value in pairs
        ]
        resource = api.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
        message = api.root(resources=[resource] * times, **fields)
        yield f"change {label}", apis.INCREMENTAL_ALTER_CONFIGS, 1, message


def whole_settings() -> Iterator[Step]:
    whole = _of(apis.ALTER_CONFIGS)
    for label, name, pairs, only in (
        ("validated", TOPIC, {"retention.ms": "1000"}, True),
        ("made", TOPIC, {"retention.ms": "100000"}, False),
        ("with an unknown setting", TOPIC, {"no.such": "1"}, False),
        ("of no topic", "absent", {"retention.ms": "1000"}, False),
        ("to nothing", TOPIC, {}, False),
        ("to null", TOPIC, {"retention.ms": None}, False),
    ):
        configs = [whole.AlterableConfig(name=key, value=value) for key, value in pairs.items()]
        resource = whole.AlterConfigsResource(
            resource_type=TOPIC_TYPE, resource_name=name, configs=configs
        )
        message = whole.root(resources=[resource], validate_only=only)
        yield f"whole settings {label}", apis.ALTER_CONFIGS, 2, message
    listing = _of(apis.LIST_CONFIG_RESOURCES)
    yield "metrics resources", apis.LIST_CONFIG_RESOURCES, 0, listing.root()
    for kinds in ([METRICS_TYPE], [GROUP_TYPE], [99]):
        message = listing.root(resource_types=kinds)
        yield f"resources of types {kinds}", apis.LIST_CONFIG_RESOURCES, 1, message


def elections() -> Iterator[Step]:
    api = _of(apis.ELECT_LEADERS)
    for label, kind, topic, partition in (
        ("the preferred leader", 0, TOPIC, 0),
        ("a leader of no topic", 0, "absent", 0),
        ("a leader of no partition", 0, TOPIC, 99),
        ("an unclean leader", 1, TOPIC, 0),
    ):
        parts = api.TopicPartitions(topic=topic, partitions=[partition])
        message = api.root(election_type=kind, topic_partitions=[parts], timeout_ms=TIMEOUT_MS)
        yield f"elect {label}", apis.ELECT_LEADERS, 2, message


def moves() -> Iterator[Step]:
    api = _of(apis.ALTER_PARTITION_REASSIGNMENTS)
    for label, topic, partition, brokers in (
        ("to where it is", TOPIC, 0, [1, 2, 3]),
        ("to an unknown broker", TOPIC, 0, [1, 2, 9]),
        ("to one broker twice", TOPIC, 0, [1, 1, 2]),
        ("to no broker", TOPIC, 0, []),
        ("to a broker below 0", TOPIC, 0, [-1]),
        ("back, though it does not move", TOPIC, 0, None),
        ("of no partition", TOPIC, 99, [1, 2, 3]),
        ("of no topic", "absent", 0, [1, 2, 3]),
        ("of no topic, back", "absent", 0, None),
    ):
        part = api.ReassignablePartition(partition_index=partition, replicas=brokers)
        wanted = api.ReassignableTopic(name=topic, partitions=[part])
        message = api.root(topics=[wanted], timeout_ms=TIMEOUT_MS)
        yield f"move {label}", apis.ALTER_PARTITION_REASSIGNMENTS, 0, message
    part = api.ReassignablePartition(partition_index=0, replicas=[1, 2])
    wanted = api.ReassignableTopic(name=TOPIC, partitions=[part])
    message = api.root(
        topics=[wanted], timeout_ms=TIMEOUT_MS, allow_replication_factor_change=False
    )
    yield "move with fewer replicas", apis.ALTER_PARTITION_REASSIGNMENTS, 1, message
    listing = _of(apis.LIST_PARTITION_REASSIGNMENTS)
    yield "all moves", apis.LIST_PARTITION_REASSIGNMENTS, 0, listing.root(topics=None)
    for topic in (TOPIC, "absent"):
        wanted = listing.ListPartitionReassignmentsTopics(name=topic, partition_indexes=[0])
        message = listing.root(topics=[wanted])
        yield f"moves of {topic}", apis.LIST_PARTITION_REASSIGNMENTS, 0, message


def quotas() -> Iterator[Step]:
    api = _of(apis.ALTER_CLIENT_QUOTAS)

    def alter(label: str, entity: list[tuple[str, str | None]], *ops: Any, **more: Any) -> Step:
        entry = api.EntryData(
            entity=[api.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
            ops=[api.OpData(key=key, value=value, remove=gone) for key, value, gone in ops],
        )
        message = api.root(entries=[entry], **more)
        return f"quota {label}", apis.ALTER_CLIENT_QUOTAS, 1, message

    rate = ("producer_byte_rate", 1_000_000.0, False)
    yield alter("of a user", [("user", "ann")], rate)
    yield alter("of any user", [("user", None)], rate)
    yield alter("of a client", [("client-id", "c")], ("consumer_byte_rate", 5e5, False))
    yield alter(
        "of a user and a client",
        [("user", "ann"), ("client-id", "c")],
        ("request_percentage", 50.0, False),
    )
    yield alter("of an address", [("ip", "127.0.0.1")], ("connection_creation_rate", 10.0, False))
    yield alter("of a bad address", [("ip", "x y")], ("connection_creation_rate", 10.0, False))
    yield alter("of a user and an address", [("user", "ann"), ("ip", "127.0.0.1")], rate)
    yield alter(
        "of a user by address", [("user", "ann")], ("connection_creation_rate", 10.0, False)
    )
    yield alter("of an unknown kind", [("team", "a")], rate)
    yield alter("of nothing", [], rate)
    yield alter("of a user without a name", [("user", "")], rate)
    yield alter("with an unknown key", [("user", "ann")], ("speed", 1.0, False))
    yield alter("below 0", [("user", "ann")], ("producer_byte_rate", -1.0, False))
    yield alter("of 0", [("user", "zero")], ("producer_byte_rate", 0.0, False))
    yield alter("without changes", [("user", "ann")])
    yield alter("that is absent, removed", [("user", "bob")], ("producer_byte_rate", 0.0, True))
    yield alter("only validated", [("user", "carl")], rate, validate_only=True)
    found = _of(apis.DESCRIBE_CLIENT_QUOTAS)
    for label, parts, strict in (
        ("all, strictly", [], True),
        ("of a user", [("user", 0, "ann")], False),
        ("of a user, strictly", [("user", 0, "ann")], True),
        ("of any user", [("user", 1, None)], False),
        ("of users", [("user", 2, None)], False),
        ("of addresses", [("ip", 2, None)], False),
        ("of users and clients", [("user", 2, None), ("client-id", 2, None)], True),
        ("of an unknown kind", [("team", 2, None)], False),
    ):
        components = [
            found.ComponentData(entity_type=kind, match_type=how, match=name)
            for kind, how, name in parts
        ]
        message = found.root(components=components, strict=strict)
        yield f"quotas {label}", apis.DESCRIBE_CLIENT_QUOTAS, 1, message
    yield alter("of a user, removed", [("user", "ann")], ("producer_byte_rate", 0.0, True))
    message = found.root(
        components=[found.ComponentData(entity_type="user", match_type=0, match="ann")], strict=True
    )
    yield "quotas after a removal", apis.DESCRIBE_CLIENT_QUOTAS, 1, message


def users() -> Iterator[Step]:
    api = _of(apis.ALTER_USER_SCRAM_CREDENTIALS)
    salt, word = b"s" * 16, b"p" * 32

    def put(name: str, mechanism: int = 1, iterations: int = 4_096, key: bytes = word) -> Any:
        return api.ScramCredentialUpsertion(
            name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=key
        )

    def drop(name: str, mechanism: int = 1) -> Any:
        return api.ScramCredentialDeletion(name=name, mechanism=mechanism)

    for label, dropped, added in (
        ("add a user", [], [put("ann")]),
        ("add a mechanism", [], [put("ann", 2, 8_192, b"q" * 64)]),
        ("add with few iterations", [], [put("bob", 1, 4_095)]),
        ("add with many iterations", [], [put("bob", 1, 16_385)]),
        ("add without a name", [], [put("")]),
        ("add with an unknown mechanism", [], [put("bob", 9)]),
        ("add twice", [], [put("bob"), put("bob")]),
        ("delete one that is absent", [drop("nobody")], []),
        ("delete one mechanism of none", [drop("nobody", 2)], []),
        ("delete with an unknown mechanism", [drop("ann", 9)], []),
        ("delete without a name", [drop("")], []),
        ("change nothing", [], []),
    ):
        message = api.root(deletions=dropped, upsertions=added)
        yield f"users: {label}", apis.ALTER_USER_SCRAM_CREDENTIALS, 0, message
    described = _of(apis.DESCRIBE_USER_SCRAM_CREDENTIALS)
    for label, names in (
        ("all", None),
        ("none", []),
        ("one", ["ann"]),
        ("one that is absent", ["nobody"]),
        ("one without a name", [""]),
    ):
        wanted = None if names is None else [described.UserName(name=name) for name in names]
        message = described.root(users=wanted)
        yield f"describe users: {label}", apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, message
    for mechanism in (1, 2):
        message = api.root(deletions=[drop("ann", mechanism)], upsertions=[])
        yield f"users: delete mechanism {mechanism}", apis.ALTER_USER_SCRAM_CREDENTIALS, 0, message


def coordinators() -> Iterator[Step]:
    api = _of(apis.FIND_COORDINATOR)
    for label, version, fields in (
        ("of no key", 4, {"key_type": 0, "coordinator_keys": []}),
        ("of two groups", 4, {"key_type": 0, "coordinator_keys": ["adm", "adm"]}),
        ("of one group", 3, {"key_type": 0, "key": "adm"}),
        ("of an unknown type", 4, {"key_type": 7, "coordinator_keys": ["adm"]}),
        ("of an unknown type, version 3", 3, {"key_type": 7, "key": "adm"}),
    ):
        yield f"coordinator {label}", apis.FIND_COORDINATOR, version, api.root(**fields)


GROUP: Final = "static"
EPOCH: Final = "generation_id_or_member_epoch"


def static_members() -> Iterator[Step]:
    joining, sync = _of(apis.JOIN_GROUP), _of(apis.SYNC_GROUP)
    topics = struct.pack(">hih3si", 0, 1, len(TOPIC), TOPIC.encode(), 0)

    def join(
        label: str, member: str, instance: str | None = "i", version: int = 7, **more: Any
    ) -> Step:
        protocol = joining.JoinGroupRequestProtocol(name=more.pop("name", "range"), metadata=topics)
        fields = {
            "group_id": GROUP, "session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000,
            "member_id": member, "protocol_type": "consumer", "protocols": [protocol],
            "group_instance_id": instance, **more,
        }  # fmt: skip
        return f"static: {label}", apis.JOIN_GROUP, version, joining.root(**fields)

    def synced(label: str, member: str, number: int, version: int = 5, **more: Any) -> Step:
        given = [sync.SyncGroupRequestAssignment(member_id=member, assignment=b"a")]
        fields = {
            "group_id": GROUP, "generation_id": number, "member_id": member,
            "protocol_type": "consumer", "protocol_name": "range", "assignments": given,
            "group_instance_id": "i", **more,
        }  # fmt: skip
        return f"static: {label}", apis.SYNC_GROUP, version, sync.root(**fields)

    answer = yield join("join", "")
    member, number = answer.member_id, answer.generation_id
    yield synced("sync with another protocol", member, number, protocol_name="other")
    yield synced("sync with another type", member, number, protocol_type="other")
    yield synced("sync of another instance", member, number, group_instance_id="j")
    yield synced("sync of another generation", member, number + 9)
    yield synced("sync of no group", member, number, group_id="absent")
    yield synced("sync", member, number)
    yield synced("sync again", member, number)
    yield join("join with another type", "", "k", protocol_type="connect")
    yield join("join with another protocol", "", "k", name="other")
    yield join("join with too long a session", "", "k", session_timeout_ms=99_999_999)
    answer = yield join("join again without an id", "", version=9)
    replaced, member, number = member, answer.member_id, answer.generation_id
    yield join("join with the replaced id", replaced)
    yield from static_commits(replaced, member, number)
    yield from static_ends(replaced)


def static_commits(replaced: str, member: str, number: int) -> Iterator[Step]:
    heartbeat = _of(apis.HEARTBEAT)
    for label, name, instance in (
        ("of the replaced", replaced, "i"),
        ("", member, "i"),
        ("of no instance", member, None),
        ("of another instance", member, "j"),
    ):
        message = heartbeat.root(
            group_id=GROUP, generation_id=number, member_id=name, group_instance_id=instance
        )
        yield f"static: heartbeat {label}", apis.HEARTBEAT, 4, message
    api = _of(apis.OFFSET_COMMIT)
    for label, name, instance, metadata in (
        ("of the replaced", replaced, "i", ""),
        ("", member, "i", "m"),
        ("with long metadata", member, "i", "m" * 4_097),
        ("with null metadata", member, "i", None),
    ):
        part = api.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata=metadata
        )
        wanted = api.OffsetCommitRequestTopic(name=TOPIC, partitions=[part])
        message = api.root(
            group_id=GROUP, generation_id_or_member_epoch=number, member_id=name,
            group_instance_id=instance, topics=[wanted],
        )  # fmt: skip
        yield f"static: commit {label}", apis.OFFSET_COMMIT, 8, message


def static_ends(replaced: str) -> Iterator[Step]:
    deleting, leave = _of(apis.OFFSET_DELETE), _of(apis.LEAVE_GROUP)
    for label, group, topic, partition in (
        ("of a member", GROUP, TOPIC, 0),
        ("of no partition", GROUP, TOPIC, 99),
        ("of no topic", GROUP, "absent", 0),
        ("of no group", "absent", TOPIC, 0),
        ("without a group", "", TOPIC, 0),
    ):
        part = deleting.OffsetDeleteRequestPartition(partition_index=partition)
        wanted = deleting.OffsetDeleteRequestTopic(name=topic, partitions=[part])
        message = deleting.root(group_id=group, topics=[wanted])
        yield f"delete an offset {label}", apis.OFFSET_DELETE, 0, message
    for label, name, instance in (
        ("of the replaced", replaced, "i"),
        ("of an unknown instance", "", "none"),
        ("by instance", "", "i"),
        ("again", "", "i"),
    ):
        one = leave.MemberIdentity(member_id=name, group_instance_id=instance)
        message = leave.root(group_id=GROUP, members=[one])
        yield f"static: leave {label}", apis.LEAVE_GROUP, 5, message
    part = deleting.OffsetDeleteRequestPartition(partition_index=0)
    wanted = deleting.OffsetDeleteRequestTopic(name=TOPIC, partitions=[part])
    message = deleting.root(group_id=GROUP, topics=[wanted])
    yield "delete an offset of an empty group", apis.OFFSET_DELETE, 0, message
    message = _of(apis.DESCRIBE_GROUPS).root(groups=[GROUP], include_authorized_operations=True)
    yield "describe the static group", apis.DESCRIBE_GROUPS, 5, message
    message = _of(apis.DELETE_GROUPS).root(groups_names=[GROUP])
    yield "delete the static group", apis.DELETE_GROUPS, 2, message
    yield "delete the static group again", apis.DELETE_GROUPS, 2, message


def offsets_of_groups() -> Iterator[Step]:
    api, fetching = _of(apis.OFFSET_COMMIT), _of(apis.OFFSET_FETCH)
    none = {"group_id": "none"}
    for label, version, fields in (
        ("alone", 8, {}),
        ("alone, version 2", 2, {"retention_time_ms": 1}),
        ("without a group", 8, {"group_id": ""}),
        ("with a generation and no group", 8, none | {EPOCH: 3}),
        ("with a generation, a member and no group", 8, none | {EPOCH: 3, "member_id": "m"}),
        ("with a generation to a group without members", 8, {EPOCH: 3}),
        ("with a generation of m to no members", 8, {EPOCH: 3, "member_id": "m"}),
        ("with generation 0 and no group", 8, none | {EPOCH: 0}),
        ("with generation -5 and no group", 8, none | {EPOCH: -5}),
        ("with an instance and no group", 8, none | {"group_instance_id": "i"}),
        ("to nothing, version 9", 9, {"group_id": "none2"}),
        ("with an epoch and no group, version 9", 9, none | {EPOCH: 3, "member_id": "m"}),
        ("with a member and no group", 8, none | {"member_id": "m"}),
        ("without topics", 8, {"topics": []}),
    ):
        part = api.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata="x"
        )
        wanted = api.OffsetCommitRequestTopic(name=TOPIC, partitions=[part])
        said = {
            "group_id": "alone", "generation_id_or_member_epoch": -1, "member_id": "",
            "topics": [wanted], **fields,
        }  # fmt: skip
        yield f"commit {label}", apis.OFFSET_COMMIT, version, api.root(**said)
    for version in (1, 5, 7):
        wanted = fetching.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0, 1])
        message = fetching.root(group_id="alone", topics=[wanted])
        yield f"offsets, version {version}", apis.OFFSET_FETCH, version, message
    message = fetching.root(group_id="alone", topics=None)
    yield "all offsets, version 7", apis.OFFSET_FETCH, 7, message
    for label, version, group, fields in (
        ("all", 8, "alone", {"topics": None}),
        ("all of no group", 8, "absent", {"topics": None}),
        ("none", 8, "alone", {"topics": []}),
        (
            "of a member that is not there",
            9,
            "alone",
            {"topics": None, "member_id": "m", "member_epoch": 1},
        ),
        ("without a group", 8, "", {"topics": None}),
    ):
        asked = fetching.OffsetFetchRequestGroup(group_id=group, **fields)
        yield f"offsets: {label}", apis.OFFSET_FETCH, version, fetching.root(groups=[asked])


def modern_group() -> Iterator[Step]:
    api = _of(apis.CONSUMER_GROUP_HEARTBEAT)
    member = "AAAAAAAAAAAAAAAAAAAAAA"

    def beat(label: str, epoch: int, version: int = 1, **fields: Any) -> Step:
        said = {"group_id": "modern", "member_id": member, "member_epoch": epoch, **fields}
        return f"modern: {label}", apis.CONSUMER_GROUP_HEARTBEAT, version, api.root(**said)

    joined = {
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": [TOPIC],
        "topic_partitions": [],
    }
    yield beat("join", 0, **joined)
    answer = yield beat("join again", 0, **joined)
    epoch = answer.member_epoch
    yield beat("heartbeat", epoch)
    yield beat("an epoch to come", epoch + 5)
    yield beat("a group without a name", 0, group_id="", **joined)
    yield beat("a session of the old protocol", 0, group_id="alone", **joined)
    described = _of(apis.CONSUMER_GROUP_DESCRIBE)
    for group in ("modern", "alone", ""):
        message = described.root(group_ids=[group])
        yield f"describe modern group {group!r}", apis.CONSUMER_GROUP_DESCRIBE, 1, message
    message = _of(apis.DESCRIBE_GROUPS).root(groups=["modern"])
    yield "describe a modern group as classic", apis.DESCRIBE_GROUPS, 5, message
    yield from modern_offsets(member, epoch)
    yield (
        "modern: delete with a member",
        apis.DELETE_GROUPS,
        2,
        _of(apis.DELETE_GROUPS).root(groups_names=["modern"]),
    )
    heartbeat = _of(apis.HEARTBEAT)
    message = heartbeat.root(group_id="modern", generation_id=epoch, member_id=member)
    yield "modern: classic heartbeat", apis.HEARTBEAT, 4, message
    leave = _of(apis.LEAVE_GROUP)
    one = leave.MemberIdentity(member_id="nobody", group_instance_id=None)
    yield "modern: classic leave", apis.LEAVE_GROUP, 5, leave.root(group_id="modern", members=[one])
    yield beat("leave", -1)
    yield beat("leave again", -1)
    yield beat("heartbeat after that", epoch)
    yield (
        "modern: delete",
        apis.DELETE_GROUPS,
        2,
        _of(apis.DELETE_GROUPS).root(groups_names=["modern"]),
    )


def modern_offsets(member: str, epoch: int) -> Iterator[Step]:
    commit = _of(apis.OFFSET_COMMIT)
    for label, version, number, name in (
        ("", 9, epoch, member),
        ("with an older epoch", 9, epoch - 1, member),
        ("with an epoch to come", 9, epoch + 1, member),
        ("of another member", 9, epoch, "nobody"),
        ("of no member", 9, -1, ""),
        ("as classic", 8, epoch, member),
        ("as classic with an older epoch", 8, epoch - 1, member),
    ):
        part = commit.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata=""
        )
        wanted = commit.OffsetCommitRequestTopic(name=TOPIC, partitions=[part])
        message = commit.root(
            group_id="modern", generation_id_or_member_epoch=number, member_id=name, topics=[wanted]
        )
        yield f"modern: commit {label}", apis.OFFSET_COMMIT, version, message
    fetching = _of(apis.OFFSET_FETCH)
    for label, number, name in (
        ("", epoch, member), ("with an older epoch", epoch - 1, member), ("of no member", -1, None),
        ("of another member", epoch, "nobody"),
    ):  # fmt: skip
        asked = fetching.OffsetFetchRequestGroup(
            group_id="modern", member_id=name, member_epoch=number, topics=None
        )
        yield f"modern: offsets {label}", apis.OFFSET_FETCH, 9, fetching.root(groups=[asked])


def readers_by_id() -> Iterator[Step]:
    api = _of(apis.METADATA)
    named = api.root(topics=[api.MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False)
    answer = yield "the ID of the topic", apis.METADATA, 12, named
    topic_id = answer.topics[0].topic_id
    for version in (0, 1, 8, 10):
        message = api.root(
            topics=[api.MetadataRequestTopic(name=TOPIC)],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        )
        yield f"metadata with rights, version {version}", apis.METADATA, version, message
    message = api.root(topics=[], allow_auto_topic_creation=False)
    yield "metadata of no topics", apis.METADATA, 12, message
    batch = kafka_batch([KafkaRecord(b"a", b"k"), KafkaRecord(b"b")])
    yield "produce for reading", apis.PRODUCE, 9, produce_request(TOPIC, batch)
    for version in (13, 17):
        for label, wanted, partition in (
            ("", topic_id, 0),
            ("of an unknown ID", b"x" * 16, 0),
            ("of no ID", bytes(16), 0),
            ("of no partition", topic_id, 99),
        ):
            message = fetch_request(TOPIC, 0, partition=partition)
            message.topics[0].topic = TOPIC
            message.topics[0].topic_id = wanted
            yield f"fetch by ID {label}, version {version}", apis.FETCH, version, message
    for label, wanted in (("", topic_id), ("of an unknown ID", b"x" * 16)):
        message = produce_request(TOPIC, batch)
        message.topic_data[0].topic_id = wanted
        yield f"produce by ID {label}", apis.PRODUCE, 13, message
    listing = _of(apis.LIST_OFFSETS)
    for version in (1, 4, 9, 11):
        for at in (-1, -2, -3, -5):
            part = listing.ListOffsetsPartition(partition_index=0, timestamp=at)
            topic = listing.ListOffsetsTopic(name=TOPIC, partitions=[part])
            message = listing.root(replica_id=-1, topics=[topic])
            yield f"offset {at}, version {version}", apis.LIST_OFFSETS, version, message


def readers_by_time() -> Iterator[Step]:
    """Offsets by times, in batches and beyond them, before and after the start has moved."""
    creating, listing = _of(apis.CREATE_TOPICS), _of(apis.LIST_OFFSETS)
    topic = creating.CreatableTopic(name="times", num_partitions=1, replication_factor=3)
    yield (
        "create times",
        apis.CREATE_TOPICS,
        7,
        creating.root(topics=[topic], timeout_ms=TIMEOUT_MS),
    )
    for times in ((100, 300, 200), (250, 50), (300,)):
        batch = kafka_batch([KafkaRecord(b"v", b"k", NOW_MS + at) for at in times], codec=Codec.LZ4)
        yield f"produce at {times}", apis.PRODUCE, 9, produce_request("times", batch)
    cutting = _of(apis.DELETE_RECORDS)
    part = cutting.DeleteRecordsPartition(partition_index=0, offset=2)
    cut = cutting.root(
        topics=[cutting.DeleteRecordsTopic(name="times", partitions=[part])], timeout_ms=TIMEOUT_MS
    )
    for when in ("whole", "cut"):
        for at in (0, 100, 101, 200, 250, 251, 300, 301):
            part = listing.ListOffsetsPartition(partition_index=0, timestamp=NOW_MS + at)
            found = listing.ListOffsetsTopic(name="times", partitions=[part])
            message = listing.root(replica_id=-1, topics=[found])
            yield f"the {when} log at {at}", apis.LIST_OFFSETS, 8, message
        if when == "whole":
            yield "cut the log", apis.DELETE_RECORDS, 2, cut


def sessions() -> Iterator[Step]:
    def read(label: str, version: int = 12, **fields: Any) -> Step:
        message = fetch_request(TOPIC, fields.pop("offset", 0))
        for name, value in fields.items():
            setattr(message, name, value)
        return f"session: {label}", apis.FETCH, version, message

    yield read("closed", session_id=77, session_epoch=-1)
    yield read("of one byte", max_bytes=1)
    yield read("of no bytes", max_bytes=0)


def settings_after_all() -> Iterator[Step]:
    """Last: Kafka's brokers know of changes some time after the controller has answered."""
    api = _of(apis.DESCRIBE_CONFIGS)
    for key in ("retention.ms", "cleanup.policy", "segment.bytes"):
        resource = api.DescribeConfigsResource(
            resource_type=TOPIC_TYPE, resource_name=TOPIC, configuration_keys=[key]
        )
        yield f"after all, {key}", apis.DESCRIBE_CONFIGS, 4, api.root(resources=[resource])
