"""How long one request holds a broker's loop, measured: ``python -m tests.server.holds [API ...]``.

The largest legal requests of every API of both protocols go to a broker of this process that has
10,000 partitions, 5,000 consumer groups and a group of 1,000 members. Told is the most processor
time that the loop's thread took between two turns of the loop, the least of some attempts. Timings
belong here and not into tests: a busy machine makes any of them late.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from raftlog import limits
from raftlog.clock import SystemClock
from raftlog.errors import RaftlogError
from raftlog.kafka import api as kafka
from raftlog.kafka import codec
from raftlog.protocol import api as native
from raftlog.protocol import cluster, records, security
from raftlog.testing.kafka_wire import request as kafka_request
from tests.server.attacks import LoopLag
from tests.server.harness import Client, RunningBroker, batch_of, running
from tests.server.kafka.group_client import GroupClient

TOPICS: Final = 10
PARTITIONS: Final = limits.PARTITIONS_PER_REQUEST_MAX // TOPICS
GROUPS: Final = 5_000
MEMBERS: Final = limits.MEMBERS_PER_GROUP_MAX
ATTEMPTS: Final = 2
PATIENCE_SECONDS: Final = 900.0
MEMORY: Final = "/dev/shm"  # 10,000 files are synced without a disk
NAMES: Final = [f"w{number}".ljust(240, "w") for number in range(TOPICS)]
PLACES: Final = [(name, index) for name in NAMES for index in range(PARTITIONS)]
WRITTEN: Final = PLACES[:3_000]  # a process may open 20,000 files here
ABSENT: Final = [f"absent{number}".ljust(200, "x") for number in range(10_000)]
GROUP_NAMES: Final = [f"g{number}" for number in range(limits.GROUPS_PER_REQUEST_MAX)]


class Case(NamedTuple):
    """One request. ``kafka_version``: -1 for a request of raftlog's protocol."""

    label: str
    api: Any
    message: Any
    attachment: tuple[bytes, ...] = ()
    kafka_version: int = -1


# -- the broker ------------------------------------------------------------------------------------


def _await(client: Client, correlation_id: int) -> Any:
    client.socket.settimeout(PATIENCE_SECONDS)
    return client.answer(correlation_id).message


def prepare(broker: RunningBroker) -> None:
    """Create the topics and the groups."""
    with broker.client() as client:
        client.socket.settimeout(PATIENCE_SECONDS)
        for name in NAMES:
            client.create(name, partitions=PARTITIONS)
        _find(client, "wide")
        offsets = [records.OffsetToCommit(topic=t, partition=p, offset=1) for t, p in PLACES]
        client.ask(native.OFFSET_COMMIT, records.OffsetCommitRequest(group="wide", offsets=offsets))
        small = offsets[:3]
        _pipelined(
            client,
            native.OFFSET_COMMIT,
            (records.OffsetCommitRequest(group=f"g{n}", offsets=small) for n in range(GROUPS)),
        )
        _pipelined(client, native.GROUP_HEARTBEAT, map(_join, range(MEMBERS)))


def _find(client: Client, group: str) -> None:
    """Wait until the coordinator of a group serves."""
    asked = records.FindCoordinatorsRequest(groups=[group])
    while True:
        client.ask(native.FIND_COORDINATORS, asked)
        answer = _await(
            client, client.send(native.OFFSET_FETCH, records.OffsetFetchRequest(group=group))
        )
        if not isinstance(answer, RaftlogError):
            return


def _pipelined(client: Client, api: native.Api, messages: Iterator[Any]) -> None:
    while sent := [client.send(api, message) for message in islice(messages, 100)]:
        for correlation_id in sent:
            while isinstance(answer := _await(client, correlation_id), RaftlogError):
                raise answer


def _join(number: int) -> records.GroupHeartbeatRequest:
    return records.GroupHeartbeatRequest(
        group="crowd",
        member_id=f"member{number}",
        member_epoch=records.JOIN_EPOCH,
        sequence=1,
        topics=NAMES,
        session_timeout_ms=limits.SESSION_TIMEOUT_MS_MAX,
    )


# -- raftlog's protocol ----------------------------------------------------------------------------


def native_cases() -> Iterator[Case]:
    yield from _data_cases()
    yield from _admin_cases()
    yield from _group_cases()


def _data_cases() -> Iterator[Case]:
    wide = [records.FetchPartition(topic=t, partition=p, offset=0) for t, p in PLACES]
    absent = [records.FetchPartition(topic=t, partition=0, offset=0) for t in ABSENT]
    batch = batch_of(b"x")
    yield Case("", native.API_VERSIONS, security.ApiVersionsRequest(client_id="c" * 256))
    yield Case("all", native.METADATA, records.MetadataRequest())
    yield Case("absent", native.METADATA, records.MetadataRequest(topics=ABSENT[:1_000]))
    yield Case(
        "",
        native.PRODUCE,
        records.ProduceRequest(
            acks=1,
            partitions=[
                records.ProducePartition(topic=t, partition=p, length=len(batch))
                for t, p in WRITTEN
            ],
        ),
        (batch,) * len(WRITTEN),
    )
    yield Case("", native.FETCH, records.FetchRequest(partitions=wide, wait_ms_max=0))
    yield Case("waits", native.FETCH, records.FetchRequest(partitions=wide, wait_ms_max=10))
    yield Case("absent", native.FETCH, records.FetchRequest(partitions=absent, wait_ms_max=0))
    for label, places in (("", PLACES), ("absent", [(t, 0) for t in ABSENT])):
        queries = [records.OffsetQuery(topic=t, partition=p, at="latest") for t, p in places]
        yield Case(label, native.LIST_OFFSETS, records.ListOffsetsRequest(queries=queries))
        parts = [records.RecordsToDelete(topic=t, partition=p, before_offset=-1) for t, p in places]
        yield Case(label, native.DELETE_RECORDS, records.DeleteRecordsRequest(partitions=parts))
    yield Case("", native.INIT_PRODUCER_ID, records.InitProducerIdRequest())
    ids = list(range(limits.PRODUCERS_PER_REQUEST_MAX))
    query = records.ProducersQuery(topic=NAMES[0], partition=0, producer_ids=ids)
    yield Case("", native.DESCRIBE_PRODUCERS, records.DescribeProducersRequest(partitions=[query]))
    listed = [records.ListedPartition(topic=t, partition=p, limit=1) for t, p in PLACES]
    yield Case("", native.LIST_PRODUCERS, records.ListProducersRequest(partitions=listed))


def _admin_cases() -> Iterator[Case]:
    new = [records.TopicToCreate(name=f"n{number}") for number in range(1_000)]
    yield Case("", native.CREATE_TOPICS, records.CreateTopicsRequest(topics=new))
    altered = [records.TopicToAlter(name=t.name, config={"retention.ms": "9"}) for t in new]
    yield Case("", native.ALTER_TOPICS, records.AlterTopicsRequest(topics=altered))
    longer = [records.TopicToExtend(name=topic.name, partitions=2) for topic in new]
    yield Case("", native.ADD_PARTITIONS, records.AddPartitionsRequest(topics=longer))
    removed = [topic.name for topic in new]
    yield Case("", native.DELETE_TOPICS, records.DeleteTopicsRequest(topics=removed))
    yield Case("all", native.DESCRIBE_TOPICS, records.DescribeTopicsRequest(paged=True))
    yield Case(
        "absent", native.DESCRIBE_TOPICS, records.DescribeTopicsRequest(topics=ABSENT[:1_000])
    )
    yield Case("", native.DESCRIBE_CLUSTER, cluster.DescribeClusterRequest())
    yield Case("", native.TRANSFER_LEADER, cluster.TransferLeaderRequest(topic="w", partition=0))
    yield Case("", native.RECOVER_CLUSTER, cluster.RecoverClusterRequest())
    moves = [cluster.PartitionMove(partition=p, replicas=[1] * 15) for p in range(10_000)]
    yield Case("", native.REASSIGN, cluster.ReassignRequest(topic=NAMES[0], moves=moves))
    yield Case("", native.CANCEL_DECOMMISSION, cluster.CancelDecommissionRequest(broker=1))
    yield Case("", native.THROTTLE_MOVES, cluster.ThrottleMovesRequest(bytes_per_s=1_024))
    yield Case("", native.UPGRADE_FEATURES, cluster.UpgradeFeaturesRequest())
    yield Case(
        "",
        native.VERIFY_COPY,
        cluster.VerifyCopyRequest(topic=NAMES[0], partition=0, start_offset=0, end_offset=0),
    )
    yield Case("", native.DESCRIBE_EVENTS, cluster.DescribeEventsRequest(since_ms=0))
    yield Case("", native.OPERATOR_HELLO, security.OperatorHelloRequest(nonce=bytes(32)))


def _group_cases() -> Iterator[Case]:
    names = [records.PartitionName(topic=t, partition=p) for t, p in PLACES]
    absent_names = [records.PartitionName(topic=t, partition=0) for t in ABSENT]
    commits = [
        records.OffsetToCommit(topic=t, partition=p, offset=2, metadata="m" * 100)
        for t, p in PLACES
    ]
    absent_commits = [records.OffsetToCommit(topic=t, partition=0, offset=2) for t in ABSENT]
    yield Case("", native.FIND_COORDINATORS, records.FindCoordinatorsRequest(groups=GROUP_NAMES))
    yield Case("1,000 members, join", native.GROUP_HEARTBEAT, _join(0))
    yield Case(
        "10,000 partitions, join",
        native.GROUP_HEARTBEAT,
        records.GroupHeartbeatRequest(
            group="alone",
            member_id="alone",
            member_epoch=records.JOIN_EPOCH,
            sequence=1,
            topics=NAMES + ABSENT[:990],
            owned=[
                records.TopicShare(topic=name, topic_id="", partitions=list(range(PARTITIONS)))
                for name in NAMES
            ],
        ),
    )
    yield Case("", native.OFFSET_COMMIT, records.OffsetCommitRequest(group="wide", offsets=commits))
    yield Case(
        "absent",
        native.OFFSET_COMMIT,
        records.OffsetCommitRequest(group="wide", offsets=absent_commits),
    )
    yield Case("", native.OFFSET_FETCH, records.OffsetFetchRequest(group="wide", partitions=names))
    yield Case("all", native.OFFSET_FETCH, records.OffsetFetchRequest(group="wide"))
    yield Case(
        "absent",
        native.OFFSET_FETCH,
        records.OffsetFetchRequest(group="wide", partitions=absent_names),
    )
    yield Case("", native.LIST_GROUPS, records.ListGroupsRequest())
    described = records.DescribeGroupsRequest(groups=[*GROUP_NAMES[1:], "crowd"])
    yield Case("", native.DESCRIBE_GROUPS, described)
    yield Case(
        "absent",
        native.DELETE_OFFSETS,
        records.DeleteOffsetsRequest(group="wide", partitions=absent_names),
    )
    yield Case(
        "", native.DELETE_OFFSETS, records.DeleteOffsetsRequest(group="wide", partitions=names)
    )
    yield Case("", native.DELETE_GROUPS, records.DeleteGroupsRequest(groups=GROUP_NAMES))


# -- Kafka's protocol ------------------------------------------------------------------------------


def _kafka(label: str, api: kafka.Api, version: int = -1, **fields: Any) -> Case:
    message = codec.structs("request", api.key).root(**fields)
    return Case(label, api, message, kafka_version=api.version_max if version < 0 else version)


def _by_topic(
    api: kafka.Api,
    topic: str,
    key: str,
    made: Callable[[Any, int], Any],
    places: dict[Any, list[int]],
    parts: str = "partitions",
) -> list[Any]:
    new = getattr(codec.structs("request", api.key), topic)
    return [
        new(**{key: name, parts: [made(codec.structs("request", api.key), p) for p in numbers]})
        for name, numbers in places.items()
    ]


def kafka_cases(ids: dict[str, bytes]) -> Iterator[Case]:
    yield from _kafka_cases_by_id({ids[name]: list(range(PARTITIONS)) for name in NAMES})
    yield from _kafka_cases_by_name()
    one = codec.structs("request", kafka.METADATA.key).MetadataRequestTopic
    yield _kafka("all", kafka.METADATA, topics=None)
    for count in (10_000, 100_000):
        yield _kafka(
            f"absent, {count:,}",
            kafka.METADATA,
            allow_auto_topic_creation=False,
            topics=[one(name=f"absent{number}") for number in range(count)],
        )
    yield from _kafka_group_cases()
    yield from _kafka_admin_cases()


def _kafka_cases_by_id(by_id: dict[bytes, list[int]]) -> Iterator[Case]:
    absent_ids = {number.to_bytes(16, "big"): [0] for number in range(1, 10_001)}
    batch = _kafka_batch()
    for label, places in (("", by_id), ("absent", absent_ids)):
        written = dict(islice(places.items(), len(WRITTEN) // len(next(iter(places.values())))))
        yield _kafka(
            label,
            kafka.PRODUCE,
            acks=1,
            timeout_ms=60_000,
            transactional_id=None,
            topic_data=_by_topic(
                kafka.PRODUCE,
                "TopicProduceData",
                "topic_id",
                lambda s, p: s.PartitionProduceData(index=p, records=[batch]),
                written,
                "partition_data",
            ),
        )
        yield _kafka(
            label,
            kafka.FETCH,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 26,
            topics=_by_topic(
                kafka.FETCH,
                "FetchTopic",
                "topic_id",
                lambda s, p: s.FetchPartition(partition=p, partition_max_bytes=1 << 20),
                places,
            ),
        )
        yield _kafka(
            label,
            kafka.OFFSET_COMMIT,
            group_id="kwide",
            generation_id_or_member_epoch=-1,
            topics=_by_topic(
                kafka.OFFSET_COMMIT,
                "OffsetCommitRequestTopic",
                "topic_id",
                lambda s, p: s.OffsetCommitRequestPartition(partition_index=p, committed_offset=1),
                places,
            ),
        )
        yield _kafka(
            label,
            kafka.OFFSET_FETCH,
            groups=[
                codec.structs("request", kafka.OFFSET_FETCH.key).OffsetFetchRequestGroup(
                    group_id="kwide",
                    topics=_by_topic(
                        kafka.OFFSET_FETCH,
                        "OffsetFetchRequestTopics",
                        "topic_id",
                        lambda _s, p: p,
                        places,
                        "partition_indexes",
                    ),
                )
            ],
        )


def _kafka_cases_by_name() -> Iterator[Case]:
    everything = {name: list(range(PARTITIONS)) for name in NAMES}
    absent = {name: [0] for name in ABSENT}
    too_many = {f"t{number}": [0] for number in range(99_999)}
    for label, named in (("", everything), ("absent", absent), ("100,000", too_many)):
        yield _kafka(
            label,
            kafka.LIST_OFFSETS,
            topics=_by_topic(
                kafka.LIST_OFFSETS,
                "ListOffsetsTopic",
                "name",
                lambda s, p: s.ListOffsetsPartition(partition_index=p, timestamp=-1),
                named,
            ),
        )
        yield _kafka(
            label,
            kafka.OFFSET_FOR_LEADER_EPOCH,
            topics=_by_topic(
                kafka.OFFSET_FOR_LEADER_EPOCH,
                "OffsetForLeaderTopic",
                "topic",
                lambda s, p: s.OffsetForLeaderPartition(partition=p, leader_epoch=0),
                named,
            ),
        )
        yield _kafka(
            label,
            kafka.DESCRIBE_PRODUCERS,
            topics=_by_topic(
                kafka.DESCRIBE_PRODUCERS,
                "TopicRequest",
                "name",
                lambda _s, p: p,
                named,
                "partition_indexes",
            ),
        )
        yield _kafka(
            label,
            kafka.DELETE_RECORDS,
            timeout_ms=60_000,
            topics=_by_topic(
                kafka.DELETE_RECORDS,
                "DeleteRecordsTopic",
                "name",
                lambda s, p: s.DeleteRecordsPartition(partition_index=p, offset=-1),
                named,
            ),
        )
        yield _kafka(
            label,
            kafka.OFFSET_DELETE,
            group_id="kwide",
            topics=_by_topic(
                kafka.OFFSET_DELETE,
                "OffsetDeleteRequestTopic",
                "name",
                lambda s, p: s.OffsetDeleteRequestPartition(partition_index=p),
                named,
            ),
        )


def _kafka_group_cases() -> Iterator[Case]:
    keys = [f"k{number}" for number in range(99_999)]
    for label, count in (("1,000", 1_000), ("100,000", 99_999)):
        yield _kafka(label, kafka.FIND_COORDINATOR, coordinator_keys=keys[:count])
        yield _kafka(label, kafka.DESCRIBE_GROUPS, groups=[*keys[1:count], "crowd"])
        yield _kafka(label, kafka.CONSUMER_GROUP_DESCRIBE, group_ids=[*keys[1:count], "crowd"])
        yield _kafka(label, kafka.DELETE_GROUPS, groups_names=keys[:count])
    for kind in ("DescribeGroups", "ConsumerGroupDescribe"):
        key = {"DescribeGroups": kafka.DESCRIBE_GROUPS}.get(kind, kafka.CONSUMER_GROUP_DESCRIBE)
        field = "groups" if key is kafka.DESCRIBE_GROUPS else "group_ids"
        yield _kafka("1,000 members", key, **{field: ["crowd"]})
    yield _kafka("", kafka.LIST_GROUPS)
    join = codec.structs("request", kafka.JOIN_GROUP.key).JoinGroupRequestProtocol
    yield _kafka(
        "",
        kafka.JOIN_GROUP,
        group_id="classic",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[join(name=f"p{n}", metadata=bytes(80_000)) for n in range(100)],
    )
    give = codec.structs("request", kafka.SYNC_GROUP.key).SyncGroupRequestAssignment
    given = [give(member_id=f"m{n}", assignment=b"a" * 50) for n in range(99_999)]
    yield _kafka("", kafka.SYNC_GROUP, group_id="classic", assignments=given)
    yield _kafka("", kafka.HEARTBEAT, group_id="classic", member_id="m" * 30_000)
    leaver = codec.structs("request", kafka.LEAVE_GROUP.key).MemberIdentity
    leaving = [leaver(member_id=f"m{number}") for number in range(99_999)]
    yield _kafka("", kafka.LEAVE_GROUP, group_id="classic", members=leaving)
    owned = codec.structs("request", kafka.CONSUMER_GROUP_HEARTBEAT.key).TopicPartitions
    yield _kafka(
        "",
        kafka.CONSUMER_GROUP_HEARTBEAT,
        group_id="kalone",
        member_id="kalone",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=NAMES + ABSENT[:990],
        topic_partitions=[
            owned(topic_id=number.to_bytes(16, "big"), partitions=list(range(10)))
            for number in range(1, 1_001)
        ],
    )


def _kafka_admin_cases() -> Iterator[Case]:
    yield _kafka("", kafka.API_VERSIONS, client_software_name="c", client_software_version="1")
    yield _kafka("", kafka.DESCRIBE_CLUSTER)
    yield _kafka("", kafka.INIT_PRODUCER_ID, transactional_id=None)
    for label, count in (("1,000", 1_000), ("100,000", 99_999)):
        new = codec.structs("request", kafka.CREATE_TOPICS.key).CreatableTopic
        made = [new(name=f"k{n}", num_partitions=1, replication_factor=1) for n in range(count)]
        yield _kafka(label, kafka.CREATE_TOPICS, topics=made, timeout_ms=60_000)
        grown = codec.structs("request", kafka.CREATE_PARTITIONS.key).CreatePartitionsTopic
        yield _kafka(
            label,
            kafka.CREATE_PARTITIONS,
            timeout_ms=60_000,
            topics=[grown(name=f"k{n}", count=2, assignments=None) for n in range(count)],
        )
        for api, kind in (
            (kafka.DESCRIBE_CONFIGS, "DescribeConfigsResource"),
            (kafka.ALTER_CONFIGS, "AlterConfigsResource"),
            (kafka.INCREMENTAL_ALTER_CONFIGS, "AlterConfigsResource"),
        ):
            resource = getattr(codec.structs("request", api.key), kind)
            named = [resource(resource_type=2, resource_name=f"k{n}") for n in range(count)]
            yield _kafka(label, api, resources=named)
        gone = codec.structs("request", kafka.DELETE_TOPICS.key).DeleteTopicState
        removed = [gone(name=f"k{number}") for number in range(count)]
        yield _kafka(label, kafka.DELETE_TOPICS, topics=removed, timeout_ms=60_000)


def _kafka_batch() -> bytes:
    from raftlog.record import encode, seal
    from raftlog.record.kafka_batch import to_kafka

    body = encode([b"x"], timestamps_ms=1_700_000_000_000)
    batch = seal(body, producer_id=-1, producer_epoch=-1, base_sequence=-1) + body.payload
    return b"".join(bytes(piece) for piece in to_kafka(memoryview(batch)))


# -- measuring -------------------------------------------------------------------------------------


def measure(broker: RunningBroker, case: Case) -> tuple[float, str]:
    """The longest hold of the loop by one request, in ms of the processor, and the answer."""
    if case.kafka_version < 0:
        with broker.client() as client, LoopLag(broker) as lag:
            answer = _await(client, client.send(case.api, case.message, case.attachment))
        failed = f"refused: {str(answer)[:50]}" if isinstance(answer, RaftlogError) else ""
        return lag.worst_cpu_seconds * 1_000, failed
    client = GroupClient(broker.address)
    try:
        client.find("kwide")
        client._socket.settimeout(PATIENCE_SECONDS)
        data = kafka_request(case.api, case.kafka_version, case.message)
        with LoopLag(broker) as lag:
            client.send_bytes(data)
            head = client._stream.read(4)
            if head:
                client._stream.read(int.from_bytes(head, "big"))
        return lag.worst_cpu_seconds * 1_000, "" if head else "closed"
    finally:
        client.close()


def run(broker: RunningBroker, wanted: set[str]) -> None:
    prepare(broker)
    ids = {name: bytes.fromhex(broker.broker.context.topics.topic(name).id) for name in NAMES}
    cases = [*native_cases(), *kafka_cases(ids)]
    for case in cases:
        if wanted and case.api.name not in wanted:
            continue
        found = [measure(broker, case) for _ in range(ATTEMPTS)]
        worst, note = min(found)
        protocol = "kafka" if case.kafka_version >= 0 else "raftlog"
        name = f"{case.api.name} ({case.label})" if case.label else case.api.name
        sys.stdout.write(f"| {protocol} | {name} | {worst:.1f} | {note} |\n")
        sys.stdout.flush()
    missing = {api.name for api in (*native.APIS.values(), *kafka.APIS.values())}
    missing -= {case.api.name for case in cases}
    sys.stdout.write(f"not measured: {', '.join(sorted(missing))}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("apis", nargs="*", metavar="API", help="names of APIs; all by default")
    wanted = set(parser.parse_args().apis)
    with (
        tempfile.TemporaryDirectory(prefix="raftlog-holds-", dir=MEMORY) as directory,
        running(Path(directory) / "data", clock=SystemClock()) as broker,
    ):
        run(broker, wanted)


if __name__ == "__main__":
    main()
