"""The requests of the differential test: the same for Kafka and for raftlog, in one order."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from time import time
from typing import Any

from raftlog.kafka import api as apis
from raftlog.kafka import codec
from raftlog.kafka.api import Api
from raftlog.record import Codec
from tests.kafka_peers.administration import Step, administration
from tests.record.kafka_batches import KafkaRecord, kafka_batch, kafka_resealed
from tests.server.kafka.kafka_client import fetch_request, produce_request

ELSEWHERE = "another broker: "  # steps for a broker that does not lead, or coordinate
REPLICAS = 3
TOPIC = "d"
GROUP = "g"
TXN_TOPIC = "txn"
TXN_ID = "t"
TXN_GROUP = "tg"
WEEK_MS = 7 * 86_400_000
TRANSACTIONAL = 0x10  # attribute of a batch
TODAY_MS = int(time() * 1_000)
# Kafka's defaults, and values that other tools set.
IGNORED_SETTINGS = (
    ("compression.type", "zstd"),
    ("file.delete.delay.ms", "60000"),
    ("flush.messages", "9223372036854775807"),
    ("flush.ms", "9223372036854775807"),
    ("max.message.bytes", "104857600"),
    ("preallocate", "x"),
    ("remote.log.copy.disable", "false"),
    ("segment.index.bytes", "3"),
    ("segment.jitter.ms", "1000"),
    ("unclean.leader.election.enable", "true"),
)
BATCH = kafka_batch([KafkaRecord(b"a", b"k"), KafkaRecord(b"b"), KafkaRecord(None, b"k")])


def _of(api: Api) -> Any:
    return codec.structs("request", api.key)


def steps() -> Iterator[Step]:
    """Yield requests. The caller sends back the answer to each."""
    yield from topics()
    yield from produce()
    yield from idempotent_produce()
    yield from fetch()
    yield from offsets()
    yield from classic_group()
    yield from group_administration()
    yield from settings()
    yield from transactions()
    yield from changes()
    yield from administration()


def topics() -> Iterator[Step]:
    api = _of(apis.CREATE_TOPICS)

    def create(
        label: str, name: str = TOPIC, partitions: int = 2, factor: int = REPLICAS, **more: Any
    ) -> Step:
        configs = [
            api.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in more.pop("configs", {}).items()
        ]
        topic = api.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=factor, configs=configs
        )
        return label, apis.CREATE_TOPICS, 7, api.root(topics=[topic], timeout_ms=20_000, **more)

    yield create("validate a topic", validate_only=True)
    yield create("create a topic", configs={"retention_ms": "86400000"})
    yield create("create a topic again")
    yield create("create with a bad name", "bad/name")
    yield create("create with no name", "")
    yield create("create without partitions", "none", 0)
    yield create("create with -5 partitions", "none", -5)
    yield create("create without replicas", "none", 1, 0)
    yield create("create with default counts", "defaults", -1, -1)
    yield create("create with too many replicas", "many", 1, 5)
    yield create("create a topic for transactions", TXN_TOPIC, 1)
    yield create("create x.a", "x.a")
    yield create("create x_a", "x_a")
    yield create("create with two underscores", "__debezium-heartbeat.x")
    for key, value in IGNORED_SETTINGS:
        label = f"validate {key}={value}"
        yield create(label, "set", configs={key: value}, validate_only=True)
    twice = api.CreatableTopic(name="twice", num_partitions=1, replication_factor=1)
    message = api.root(topics=[twice, twice], timeout_ms=20_000)
    yield "create a topic twice", apis.CREATE_TOPICS, 7, message
    part = api.CreatableReplicaAssignment(partition_index=0, broker_ids=[1])
    assigned = api.CreatableTopic(
        name="assigned", num_partitions=1, replication_factor=1, assignments=[part]
    )
    message = api.root(topics=[assigned], timeout_ms=20_000)
    yield "create with counts and an assignment", apis.CREATE_TOPICS, 7, message
    null = api.CreatableTopicConfig(name="retention.ms", value=None)
    without = api.CreatableTopic(
        name="null", num_partitions=1, replication_factor=1, configs=[null]
    )
    message = api.root(topics=[without], timeout_ms=20_000)
    yield "create with a setting without a value", apis.CREATE_TOPICS, 7, message
    yield create("create with an unknown setting", "set", configs={"no_such": "1"})
    yield create("create with a bad value", "set", configs={"retention_ms": "soon"})
    yield create(
        "create with a compacted log", "compacted", 1, configs={"cleanup_policy": "compact"}
    )
    api = _of(apis.METADATA)
    for version in (4, 5, 9, 12):
        names = [api.MetadataRequestTopic(name=name) for name in (TOPIC, "absent", "bad/name")]
        message = api.root(topics=names, allow_auto_topic_creation=False)
        yield f"metadata, version {version}", apis.METADATA, version, message
    yield "describe the cluster", apis.DESCRIBE_CLUSTER, 1, None
    yield from topics_by_id()


def topics_by_id() -> Iterator[Step]:
    """The ID decides, whatever the name is: null (franz-go) or empty (the Java client)."""
    api = _of(apis.METADATA)
    named = api.root(topics=[api.MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False)
    answer = yield "the ID of a topic", apis.METADATA, 12, named
    for version in (11, 12, 13):
        for label, name in (("null", None), ("an empty name", ""), ("another name", "absent")):
            for which, topic_id in (("its", answer.topics[0].topic_id), ("an unknown", b"x" * 16)):
                wanted = api.MetadataRequestTopic(name=name, topic_id=topic_id)
                message = api.root(topics=[wanted], allow_auto_topic_creation=False)
                label_ = f"metadata, version {version}, by {which} ID with {label}"
                yield label_, apis.METADATA, version, message


def produce() -> Iterator[Step]:
    def send(
        label: str, records: bytes = BATCH, topic: str = TOPIC, version: int = 9, **more: Any
    ) -> Step:
        return label, apis.PRODUCE, version, produce_request(topic, records, **more)

    for version in (3, 7, 9, 12):
        yield send(f"produce, version {version}", version=version)
        yield send(f"{ELSEWHERE}produce, version {version}", version=version)
    for kind in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        yield send(f"produce {kind.name}", kafka_batch([KafkaRecord(b"x" * 100)] * 9, codec=kind))
    yield send("produce with acks=1", acks=1)
    yield send("produce with acks=5", acks=5)
    yield send("produce to no topic", topic="absent")
    yield send("produce to no partition", partition=7)
    yield send("produce with a bad CRC", BATCH[:-1] + b"\x55")
    yield send("produce with a bad magic", BATCH[:16] + b"\x09" + BATCH[17:])
    yield send("produce two batches", BATCH * 2)
    yield send("produce half a batch", BATCH[:40])
    yield send("produce nothing", b"")
    yield send("produce over max.message.bytes", kafka_batch([KafkaRecord(b"x" * 1_100_000)]))
    yield send("produce a wrong count", kafka_resealed(BATCH, record_count=2))
    yield send("produce without a key", kafka_batch([KafkaRecord(b"v")]), topic="compacted")
    yield send("produce to an internal topic", topic="__consumer_offsets")
    for bit in (3, 5, 6, 7, 15):
        attributes = -(1 << 15) if bit == 15 else 1 << bit
        yield send(f"produce attribute {bit}", kafka_resealed(BATCH, attributes=attributes))
    yield send("produce with a base offset", kafka_resealed(BATCH, base_offset=7))
    yield send("produce with producer -5", kafka_resealed(BATCH, producer_id=-5))
    yield send("produce without a sequence", kafka_resealed(BATCH, producer_id=5))
    week = kafka_batch([KafkaRecord(b"v", b"k", timestamp_ms=int(time() * 1_000) + WEEK_MS)])
    yield send("produce a record of next week", week, topic="x.a")


def idempotent_produce() -> Iterator[Step]:
    api = _of(apis.INIT_PRODUCER_ID)
    message = api.root(transactional_id=None, transaction_timeout_ms=60_000)
    answer = yield "a producer id", apis.INIT_PRODUCER_ID, 4, message
    producer = answer.producer_id

    def send(label: str, epoch: int, sequence: int) -> Step:
        batch = kafka_batch([KafkaRecord(b"v")], producer=(producer, epoch, sequence))
        return label, apis.PRODUCE, 9, produce_request(TOPIC, batch, partition=1)

    yield send("sequence 0", 0, 0)
    yield send("sequence 1", 0, 1)
    yield send("sequence 1 again", 0, 1)
    yield send("a gap", 0, 5)
    yield send("a new epoch", 1, 0)
    yield send("an older epoch", 0, 2)
    yield send("a new epoch that does not begin at 0", 2, 3)
    for label, sequence in (("an unknown producer", 4), ("its next sequence", 5), ("its gap", 9)):
        batch = kafka_batch([KafkaRecord(b"v")], producer=(producer + 777, 0, sequence))
        yield label, apis.PRODUCE, 9, produce_request("defaults", batch)


def fetch() -> Iterator[Step]:
    def read(
        label: str, offset: int = 0, version: int = 12, topic: str = TOPIC, **more: int
    ) -> Step:
        return label, apis.FETCH, version, fetch_request(topic, offset, partition=1, **more)

    for version in (4, 7, 11, 12):
        yield read(f"fetch, version {version}", version=version)
    for version in (4, 10, 11, 12):
        yield read(f"{ELSEWHERE}fetch, version {version}", version=version)
    yield read("fetch inside", 2)
    yield read("fetch at the end", 4)
    yield read("fetch beyond the end", 99)
    yield read("fetch at -1", -1)
    yield read("fetch from no topic", topic="absent")
    yield read("fetch with an epoch to come", current_leader_epoch=99)
    yield "fetch from no partition", apis.FETCH, 12, fetch_request(TOPIC, 0, partition=9)


def offsets() -> Iterator[Step]:
    api = _of(apis.LIST_OFFSETS)

    def find(label: str, at: int, topic: str = TOPIC, partition: int = 0, **more: int) -> Step:
        part = api.ListOffsetsPartition(partition_index=partition, timestamp=at, **more)
        wanted = api.ListOffsetsTopic(name=topic, partitions=[part])
        message = api.root(replica_id=-1, topics=[wanted])
        return label, apis.LIST_OFFSETS, 8, message

    for name, at in (("latest", -1), ("earliest", -2), ("highest time", -3), ("local", -4)):
        yield find(f"the {name} offset", at)
    yield find(f"{ELSEWHERE}the latest offset", -1)
    yield find("the offset at time 0", 0)
    yield find("the offset at a time to come", 1 << 45)
    yield find("the offset at time -9", -9)
    yield find("an offset of no topic", -1, "absent")
    yield find("an offset of no partition", -1, partition=9)
    yield find("an offset with an epoch to come", -1, current_leader_epoch=99)
    api_epochs = _of(apis.OFFSET_FOR_LEADER_EPOCH)
    for partition, epoch in ((0, 99), (9, 0)):
        part = api_epochs.OffsetForLeaderPartition(partition=partition, leader_epoch=epoch)
        wanted = api_epochs.OffsetForLeaderTopic(topic=TOPIC, partitions=[part])
        message = api_epochs.root(replica_id=-1, topics=[wanted])
        label = f"the end of epoch {epoch} of partition {partition}"
        yield label, apis.OFFSET_FOR_LEADER_EPOCH, 4, message


def classic_group() -> Iterator[Step]:
    api = _of(apis.FIND_COORDINATOR)
    message = api.root(key_type=0, coordinator_keys=[GROUP])
    yield "find the coordinator", apis.FIND_COORDINATOR, 4, message
    joining = _of(apis.JOIN_GROUP)

    def join(label: str, member: str, **more: Any) -> Step:
        protocol = joining.JoinGroupRequestProtocol(
            name="range", metadata=struct.pack(">hii", 0, 0, 0)
        )
        fields = {
            "group_id": GROUP, "session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000,
            "member_id": member, "protocol_type": "consumer", "protocols": [protocol], **more,
        }  # fmt: skip
        return label, apis.JOIN_GROUP, 7, joining.root(**fields)

    yield join(f"{ELSEWHERE}join", "")
    answer = yield join("join without an id", "")
    member = answer.member_id
    yield join("join with an unknown id", "nobody")
    yield join("join with too short a session", member, session_timeout_ms=1)
    yield join("join without a group", member, group_id="")
    yield join("join without protocols", member, protocols=[])
    answer = yield join("join", member)
    generation = answer.generation_id
    heartbeat, sync = _of(apis.HEARTBEAT), _of(apis.SYNC_GROUP)
    yield (
        "heartbeat before the sync",
        apis.HEARTBEAT,
        4,
        heartbeat.root(group_id=GROUP, generation_id=generation, member_id=member),
    )
    assignment = sync.SyncGroupRequestAssignment(member_id=member, assignment=b"mine")
    yield "sync", apis.SYNC_GROUP, 5, sync.root(
        group_id=GROUP, generation_id=generation, member_id=member, protocol_type="consumer",
        protocol_name="range", assignments=[assignment],
    )  # fmt: skip
    for label, number, name in (
        (f"{ELSEWHERE}heartbeat", generation, member),
        ("heartbeat", generation, member),
        ("heartbeat of another generation", 77, member),
        ("heartbeat of another member", generation, "nobody"),
    ):
        message = heartbeat.root(group_id=GROUP, generation_id=number, member_id=name)
        yield label, apis.HEARTBEAT, 4, message
    yield from commits(generation, member)


def commits(generation: int, member: str) -> Iterator[Step]:
    api = _of(apis.OFFSET_COMMIT)
    for label, topic, partition, number, name in (
        (f"{ELSEWHERE}commit", TOPIC, 0, generation, member),
        ("commit", TOPIC, 0, generation, member),
        ("commit of another generation", TOPIC, 0, 77, member),
        ("commit of another member", TOPIC, 0, generation, "nobody"),
        ("commit of no member", TOPIC, 0, -1, ""),
        ("commit for no topic", "absent", 0, generation, member),
        ("commit for no partition", TOPIC, 9, generation, member),
    ):
        part = api.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=2, committed_metadata="m"
        )
        wanted = api.OffsetCommitRequestTopic(name=topic, partitions=[part])
        yield (
            label,
            apis.OFFSET_COMMIT,
            8,
            api.root(
                group_id=GROUP,
                generation_id_or_member_epoch=number,
                member_id=name,
                topics=[wanted],
            ),
        )
    for offset, epoch in ((-1, -1), (-2, -1), (-(1 << 63), -1), (3, -7)):
        part = api.OffsetCommitRequestPartition(
            partition_index=1,
            committed_offset=offset,
            committed_leader_epoch=epoch,
            committed_metadata="",
        )
        wanted = api.OffsetCommitRequestTopic(name=TOPIC, partitions=[part])
        fields = {"generation_id_or_member_epoch": generation, "member_id": member}
        message = api.root(group_id=GROUP, topics=[wanted], **fields)
        yield f"commit offset {offset}, epoch {epoch}", apis.OFFSET_COMMIT, 8, message
        fetching = _of(apis.OFFSET_FETCH)
        asked = fetching.OffsetFetchRequestGroup(
            group_id=GROUP,
            topics=[fetching.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[1])],
        )
        message = fetching.root(groups=[asked])
        yield f"committed offset {offset}, epoch {epoch}", apis.OFFSET_FETCH, 8, message
    api = _of(apis.OFFSET_FETCH)
    for label, group in (
        ("committed offsets", GROUP),
        (f"{ELSEWHERE}committed offsets", GROUP),
        ("committed offsets of no group", "absent"),
    ):
        wanted = api.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0, 1, 9])
        asked = api.OffsetFetchRequestGroup(group_id=group, topics=[wanted])
        yield label, apis.OFFSET_FETCH, 8, api.root(groups=[asked])


def group_administration() -> Iterator[Step]:
    api = _of(apis.DESCRIBE_GROUPS)
    for name in (GROUP, "absent"):
        for version in (5, 6):
            label = f"describe group {name}, version {version}"
            yield label, apis.DESCRIBE_GROUPS, version, api.root(groups=[name])
    yield f"{ELSEWHERE}describe group {GROUP}", apis.DESCRIBE_GROUPS, 5, api.root(groups=[GROUP])
    yield "list groups", apis.LIST_GROUPS, 4, None
    yield "list groups with types", apis.LIST_GROUPS, 5, None
    deleting = _of(apis.DELETE_GROUPS)
    for label, name in (
        (f"{ELSEWHERE}delete a group", GROUP),
        ("delete a group with a member", GROUP),
        ("delete an absent group", "absent"),
    ):
        yield label, apis.DELETE_GROUPS, 2, deleting.root(groups_names=[name])
    api = _of(apis.LEAVE_GROUP)
    member = api.MemberIdentity(member_id="nobody", group_instance_id=None)
    yield "another member leaves", apis.LEAVE_GROUP, 4, api.root(group_id=GROUP, members=[member])
    message = api.root(group_id="absent", members=[member])
    yield "a member leaves an absent group", apis.LEAVE_GROUP, 4, message
    message = _of(apis.CONSUMER_GROUP_DESCRIBE).root(group_ids=["absent"])
    yield "describe an absent consumer group", apis.CONSUMER_GROUP_DESCRIBE, 0, message
    yield from heartbeats()


def heartbeats() -> Iterator[Step]:
    api = _of(apis.CONSUMER_GROUP_HEARTBEAT)
    topics = [api.TopicPartitions(topic_id=b"x" * 16, partitions=[0])]
    for label, fields in (
        ("of an absent group", {"member_epoch": 3}),
        ("that leaves an absent group", {"member_epoch": -1}),
        ("with a bad epoch", {"member_epoch": -3}),
        ("without a member", {"member_id": ""}),
        ("with an empty instance", {"instance_id": ""}),
        ("with an empty rack", {"rack_id": ""}),
        ("without a timeout", {"rebalance_timeout_ms": -1}),
        ("without topics", {"subscribed_topic_names": None}),
        ("that owns partitions as it joins", {"topic_partitions": topics}),
        ("that says nothing of partitions as it joins", {"topic_partitions": None}),
        ("with an unknown assignor", {"server_assignor": "none"}),
        ("with half an expression", {"subscribed_topic_regex": "("}),
    ):
        said = {
            "group_id": "absent",
            "member_id": "m" * 22,
            "member_epoch": 0,
            "rebalance_timeout_ms": 30_000,
            "subscribed_topic_names": [TOPIC],
            "topic_partitions": [],
            **fields,
        }
        yield f"heartbeat {label}", apis.CONSUMER_GROUP_HEARTBEAT, 1, api.root(**said)


def settings() -> Iterator[Step]:
    api = _of(apis.DESCRIBE_CONFIGS)
    for name in (TOPIC, "absent"):
        for key in ("retention.ms", "cleanup.policy", "max.message.bytes", "no.such"):
            resource = api.DescribeConfigsResource(
                resource_type=2, resource_name=name, configuration_keys=[key]
            )
            message = api.root(resources=[resource])
            yield f"setting {key} of topic {name}", apis.DESCRIBE_CONFIGS, 4, message
    many = [
        api.DescribeConfigsResource(resource_type=2, resource_name=f"none{number}")
        for number in range(1_001)
    ]
    yield "settings of 1,001 topics", apis.DESCRIBE_CONFIGS, 4, api.root(resources=many)
    changing = _of(apis.INCREMENTAL_ALTER_CONFIGS)
    for label, topic, key, operation, value in (
        ("set a setting", TOPIC, "retention.ms", 0, "1000000"),
        ("set an unknown setting", TOPIC, "no.such", 0, "1"),
        ("set a bad value", TOPIC, "retention.ms", 0, "soon"),
        ("append to a setting", TOPIC, "cleanup.policy", 2, "compact"),
        ("append to a number", TOPIC, "retention.ms", 2, "1"),
        ("delete a setting", TOPIC, "retention.ms", 1, None),
        ("delete an unknown setting", TOPIC, "no.such", 1, None),
        ("set a setting without a value", TOPIC, "retention.ms", 0, None),
        ("set a setting that has no effect", TOPIC, "segment.jitter.ms", 0, "1000"),
        ("set a setting of no topic", "absent", "retention.ms", 0, "1"),
    ):
        change = changing.AlterableConfig(name=key, config_operation=operation, value=value)
        resource = changing.AlterConfigsResource(
            resource_type=2, resource_name=topic, configs=[change]
        )
        yield label, apis.INCREMENTAL_ALTER_CONFIGS, 1, changing.root(resources=[resource])


def transactions() -> Iterator[Step]:
    """First as clients without ``transaction.version=2`` do it, then as those with it."""
    conversation = _transactions()
    step = next(conversation)
    while True:
        label, *rest = step
        answer = yield f"transactions: {label}", *rest
        try:
            step = conversation.send(answer)
        except StopIteration:
            return


def _transactions() -> Iterator[Step]:
    finding = _of(apis.FIND_COORDINATOR)
    for name in (TXN_ID, ""):
        label = f"find the transaction coordinator of {name!r}"
        message = finding.root(key_type=1, coordinator_keys=[name])
        yield label, apis.FIND_COORDINATOR, 4, message
    for label, name, timeout_ms in (
        ("without a timeout", TXN_ID, 0),
        ("with too long a timeout", TXN_ID, 900_001),
        ("with an empty ID", "", 60_000),
    ):
        yield _init(f"begin with a transactional ID {label}", name, timeout_ms)
    answer = yield _init("begin with a transactional ID")
    yield from _first_transaction(answer.producer_id, answer.producer_epoch)
    answer = yield _init("begin again after a commit")
    yield from _fenced(answer.producer_id, answer.producer_epoch)
    yield from _second_transactions(answer.producer_id, answer.producer_epoch)
    yield from _transaction_administration()


def _init(
    label: str, name: str = TXN_ID, timeout_ms: int = 60_000, version: int = 5, **more: int
) -> Step:
    message = _of(apis.INIT_PRODUCER_ID).root(
        transactional_id=name, transaction_timeout_ms=timeout_ms, **more
    )
    return label, apis.INIT_PRODUCER_ID, version, message


def _end(label: str, producer: int, epoch: int, version: int, *, commit: bool = True) -> Step:
    message = _of(apis.END_TXN).root(
        transactional_id=TXN_ID, producer_id=producer, producer_epoch=epoch, committed=commit
    )
    return label, apis.END_TXN, version, message


def _add(label: str, producer: int, epoch: int, topic: str = TXN_TOPIC, partition: int = 0) -> Step:
    api = _of(apis.ADD_PARTITIONS_TO_TXN)
    topics = [api.AddPartitionsToTxnTopic(name=topic, partitions=[partition])]
    message = api.root(
        v3_and_below_transactional_id=TXN_ID,
        v3_and_below_producer_id=producer,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=topics,
    )
    return label, apis.ADD_PARTITIONS_TO_TXN, 3, message


def _send(
    label: str, producer: int, epoch: int, sequence: int, version: int = 9, **more: Any
) -> Step:
    """A transactional batch. ``topic``, ``name`` (transactional ID)."""
    # Of today: Kafka would begin a segment for a marker that is years later.
    record = KafkaRecord(b"v", b"k", timestamp_ms=TODAY_MS)
    batch = kafka_batch([record], producer=(producer, epoch, sequence))
    batch = kafka_resealed(batch, attributes=TRANSACTIONAL)
    message = produce_request(more.get("topic", TXN_TOPIC), batch)
    message.transactional_id = more.get("name", TXN_ID)
    return label, apis.PRODUCE, version, message


def _commit_offset(
    label: str, producer: int, epoch: int, version: int = 3, *, offset: int = 5, **more: Any
) -> Step:
    api = _of(apis.TXN_OFFSET_COMMIT)
    part = api.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata="m"
    )
    topic = api.TxnOffsetCommitRequestTopic(name=TXN_TOPIC, partitions=[part])
    fields = {"generation_id_or_member_epoch": -1, "member_id": "", **more}
    message = api.root(
        transactional_id=TXN_ID,
        group_id=TXN_GROUP,
        producer_id=producer,
        producer_epoch=epoch,
        topics=[topic],
        **fields,
    )
    return label, apis.TXN_OFFSET_COMMIT, version, message


def _add_offsets(label: str, producer: int, epoch: int) -> Step:
    message = _of(apis.ADD_OFFSETS_TO_TXN).root(
        transactional_id=TXN_ID, producer_id=producer, producer_epoch=epoch, group_id=TXN_GROUP
    )
    return label, apis.ADD_OFFSETS_TO_TXN, 3, message


def _seen(when: str) -> Iterator[Step]:
    """What readers and tools see."""
    listing, fetching = _of(apis.LIST_OFFSETS), _of(apis.OFFSET_FETCH)
    for isolation, name in enumerate(("uncommitted", "committed")):
        message = fetch_request(TXN_TOPIC, 0)
        message.isolation_level = isolation
        yield f"fetch {name} records {when}", apis.FETCH, 12, message
        part = listing.ListOffsetsPartition(partition_index=0, timestamp=-1)
        topic = listing.ListOffsetsTopic(name=TXN_TOPIC, partitions=[part])
        message = listing.root(replica_id=-1, isolation_level=isolation, topics=[topic])
        yield f"the end of {name} records {when}", apis.LIST_OFFSETS, 8, message
    for stable in (False, True):
        topic = fetching.OffsetFetchRequestTopics(name=TXN_TOPIC, partition_indexes=[0])
        group = fetching.OffsetFetchRequestGroup(group_id=TXN_GROUP, topics=[topic])
        message = fetching.root(groups=[group], require_stable=stable)
        label = f"offsets of the transaction {when}, {'stable' if stable else 'any'}"
        yield label, apis.OFFSET_FETCH, 8, message
    api = _of(apis.DESCRIBE_PRODUCERS)
    topic = api.TopicRequest(name=TXN_TOPIC, partition_indexes=[0])
    yield f"the producers {when}", apis.DESCRIBE_PRODUCERS, 0, api.root(topics=[topic])
    message = _of(apis.DESCRIBE_TRANSACTIONS).root(transactional_ids=[TXN_ID])
    yield f"the transaction {when}", apis.DESCRIBE_TRANSACTIONS, 0, message
    message = _of(apis.LIST_TRANSACTIONS).root(state_filters=[], producer_id_filters=[])
    yield f"all transactions {when}", apis.LIST_TRANSACTIONS, 0, message


def _first_transaction(producer: int, epoch: int) -> Iterator[Step]:
    yield _end("commit nothing", producer, epoch, 4)
    yield _end("abort nothing", producer, epoch, 4, commit=False)
    yield _add("add a partition of no topic", producer, epoch, "absent")
    yield _add("add no partition", producer, epoch, partition=9)
    yield _add("add with another producer", producer + 777, epoch)
    yield _add("add with an epoch to come", producer, epoch + 1)
    yield _send("send to a partition that was not added", producer, epoch, 0)
    yield _add("add a partition", producer, epoch)
    yield _add("add a partition again", producer, epoch)
    yield _send("send in a transaction", producer, epoch, 0)
    yield _send("send in a transaction again", producer, epoch, 0)
    yield _send("send without the transactional ID", producer, epoch, 1, name=None)
    yield _send("send with another transactional ID", producer, epoch, 1, name="other")
    yield _commit_offset("commit an offset of a group that was not added", producer, epoch)
    yield _add_offsets("add a group", producer, epoch)
    yield _commit_offset("commit an offset", producer, epoch)
    yield _commit_offset(
        "commit an offset of no member", producer, epoch, member_id="nobody",
        generation_id_or_member_epoch=3,
    )  # fmt: skip
    yield _commit_offset("commit an offset with another producer", producer + 777, epoch)
    yield from _seen("in a transaction")
    yield _end("commit with an epoch to come", producer, epoch + 1, 4)
    yield _end("commit with another producer", producer + 777, epoch, 4)
    yield _end("commit", producer, epoch, 4)
    yield _end("commit again", producer, epoch, 4)
    yield _end("abort after a commit", producer, epoch, 4, commit=False)
    yield _add("add a partition after a commit", producer, epoch)
    yield _send("send after a commit", producer, epoch, 1)


def _fenced(producer: int, epoch: int) -> Iterator[Step]:
    """What a producer of an earlier epoch gets."""
    old = epoch - 1
    yield _add("an older epoch adds", producer, old)
    yield _add_offsets("an older epoch adds a group", producer, old)
    yield _send("an older epoch sends", producer, old, 2)
    yield _commit_offset("an older epoch commits an offset", producer, old)
    for version in (1, 4, 5):
        yield _end(f"an older epoch ends, version {version}", producer, old, version)
    for version in (3, 4, 5):
        fields = {"producer_id": producer, "producer_epoch": old - 1}
        yield _init(f"an older epoch begins, version {version}", version=version, **fields)
    yield from _seen("after a commit")


def _second_transactions(producer: int, epoch: int) -> Iterator[Step]:
    """Partitions and groups are added by what is sent; an end answers with the next epoch."""
    yield _end("abort nothing, version 5", producer, epoch, 5, commit=False)
    answer = yield _init("begin for version 2")
    producer, epoch = answer.producer_id, answer.producer_epoch
    yield _send("send, which adds the partition", producer, epoch, 0, 12)
    yield _commit_offset("commit an offset, which adds the group", producer, epoch, 5, offset=7)
    yield from _seen("that will be aborted")
    answer = yield _end("abort", producer, epoch, 5, commit=False)
    yield _end("abort again", producer, epoch, 5, commit=False)
    yield _end("commit what was aborted", producer, epoch, 5)
    producer, epoch = answer.producer_id, answer.producer_epoch
    yield _send("send in the next transaction", producer, epoch, 0, 12)
    yield _send("send with the epoch of the last", producer, epoch - 1, 1, 12)
    answer = yield _end("commit the next transaction", producer, epoch, 5)
    fields = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
    yield _init("begin with the epoch that was answered", **fields)
    yield from _seen("after an abort and a commit")


def _transaction_administration() -> Iterator[Step]:
    api = _of(apis.DESCRIBE_TRANSACTIONS)
    for name in ("absent", ""):
        message = api.root(transactional_ids=[name])
        yield f"describe transaction {name!r}", apis.DESCRIBE_TRANSACTIONS, 0, message
    listing = _of(apis.LIST_TRANSACTIONS)
    for label, version, fields in (
        ("in a state", 0, {"state_filters": ["Ongoing"]}),
        ("in an unknown state", 0, {"state_filters": ["Ongoing", "Resting"]}),
        ("of a producer", 0, {"producer_id_filters": [1 << 40]}),
        ("that are old", 1, {"duration_filter": 1 << 50}),
        ("by a pattern", 2, {"transactional_id_pattern": "x.*"}),
        ("by half a pattern", 2, {"transactional_id_pattern": "("}),
    ):
        message = listing.root(**{"state_filters": [], "producer_id_filters": [], **fields})
        yield f"list transactions {label}", apis.LIST_TRANSACTIONS, version, message
    api = _of(apis.DESCRIBE_PRODUCERS)
    for name, partition in (("absent", 0), (TXN_TOPIC, 9)):
        topic = api.TopicRequest(name=name, partition_indexes=[partition])
        label = f"the producers of {name}:{partition}"
        yield label, apis.DESCRIBE_PRODUCERS, 0, api.root(topics=[topic])
    api = _of(apis.WRITE_TXN_MARKERS)
    for name, partition in (("absent", 0), (TXN_TOPIC, 9)):
        topic = api.WritableTxnMarkerTopic(name=name, partition_indexes=[partition])
        marker = api.WritableTxnMarker(
            producer_id=1 << 40,
            producer_epoch=0,
            transaction_result=False,
            topics=[topic],
            coordinator_epoch=0,
        )
        label = f"write a marker to {name}:{partition}"
        yield label, apis.WRITE_TXN_MARKERS, 1, api.root(markers=[marker])


def changes() -> Iterator[Step]:
    api = _of(apis.CREATE_PARTITIONS)
    for topic, count in ((TOPIC, 4), (TOPIC, 2), (TOPIC, 1), (TOPIC, 0), ("absent", 3)):
        wanted = api.CreatePartitionsTopic(name=topic, count=count, assignments=None)
        message = api.root(topics=[wanted], timeout_ms=20_000)
        yield f"extend {topic} to {count} partitions", apis.CREATE_PARTITIONS, 3, message
    api = _of(apis.DELETE_RECORDS)
    for topic, partition, offset in (
        (TOPIC, 0, -2), (TOPIC, 0, -1_001), (TOPIC, 0, 3), (TOPIC, 0, 1_000), (TOPIC, 0, -1),
        (TOPIC, 9, 0), ("absent", 0, 0), ("compacted", 0, 0),
    ):  # fmt: skip
        part = api.DeleteRecordsPartition(partition_index=partition, offset=offset)
        wanted = api.DeleteRecordsTopic(name=topic, partitions=[part])
        label = f"delete records of {topic}:{partition} below {offset}"
        message = api.root(topics=[wanted], timeout_ms=20_000)
        if offset == 3:
            yield ELSEWHERE + label, apis.DELETE_RECORDS, 2, message
        yield label, apis.DELETE_RECORDS, 2, message
    yield "fetch below the start", apis.FETCH, 12, fetch_request(TOPIC, 0)
    api = _of(apis.DELETE_TOPICS)
    for label, fields in (
        ("a name and an ID", {"name": TOPIC, "topic_id": b"x" * 16}),
        ("neither", {"name": None}),
        ("an unknown ID", {"name": None, "topic_id": b"x" * 16}),
    ):
        message = api.root(topics=[api.DeleteTopicState(**fields)], timeout_ms=20_000)
        yield f"delete a topic by {label}", apis.DELETE_TOPICS, 6, message
    for name in (TOPIC, "absent"):
        message = api.root(topics=[api.DeleteTopicState(name=name)], timeout_ms=20_000)
        yield f"delete topic {name}", apis.DELETE_TOPICS, 6, message
