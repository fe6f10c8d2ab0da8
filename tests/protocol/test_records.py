"""``fetch`` and ``list_offsets``: the bounds in their fields."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.protocol import api as apis
from raftlog.protocol import schema
from raftlog.protocol.connection import check_header
from raftlog.protocol.records import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_MEMBER_EPOCH,
    AddPartitionsRequest,
    AlterTopicsRequest,
    CoordinatorInfo,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteOffsetsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribedProducer,
    DescribedProducers,
    DescribeGroupsRequest,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    FetchedOffset,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FindCoordinatorsRequest,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetQuery,
    OffsetToCommit,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProducersQuery,
    TopicInfo,
    TopicShare,
    TopicsResponse,
    TopicToAlter,
    TopicToCreate,
)
from raftlog.protocol.schema import Message
from tests.protocol.fields import accepted, refused

PART: dict[str, Any] = {"topic": "a", "partition": 0, "offset": 0}
QUERY: dict[str, Any] = {"topic": "a", "partition": 0, "at": 0}


def test_a_fetch_has_defaults_that_wait_half_a_second() -> None:
    message = accepted(FetchRequest, {"partitions": [PART]})
    assert message == FetchRequest(
        partitions=[FetchPartition("a", 0, 0, bytes_max=limits.MIB)],
        wait_ms_max=500,
        bytes_min=1,
        bytes_max=limits.FETCH_BYTES_MAX,
        replica_ok=False,
    )


def test_a_client_may_know_no_leader_epoch() -> None:
    message = accepted(FetchRequest, {"partitions": [PART]})
    assert isinstance(message, FetchRequest)
    assert message.partitions[0].leader_epoch == -1
    asked = accepted(ListOffsetsRequest, {"queries": [QUERY, {**QUERY, "leader_epoch": 0}]})
    assert isinstance(asked, ListOffsetsRequest)
    assert [query.leader_epoch for query in asked.queries] == [-1, 0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wait_ms_max", -1),
        ("wait_ms_max", limits.FETCH_WAIT_MS_MAX + 1),
        ("bytes_min", -1),
        ("bytes_max", limits.FRAME_BYTES_MAX + 1),
        ("partitions", []),
        ("partitions", [PART] * (limits.PARTITIONS_PER_REQUEST_MAX + 1)),
    ],
)
def test_a_fetch_is_bounded(name: str, value: Any) -> None:
    refused(FetchRequest, {"partitions": [PART], name: value}, path=f"$.{name}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", ""),
        ("partition", -1),
        ("offset", -1),
        ("offset", 1 << 63),
        ("bytes_max", -1),
        ("leader_epoch", -2),
        ("leader_epoch", 1 << 31),
    ],
)
def test_a_partition_of_a_fetch_is_bounded(name: str, value: Any) -> None:
    wrong = {"partitions": [{**PART, name: value}]}
    refused(FetchRequest, wrong, path=f"$.partitions[0].{name}")


def test_a_fetched_partition_has_a_length_or_a_failure() -> None:
    parts = [
        {"topic": "a", "partition": 0, "high_watermark": 9, "length": limits.FRAME_BYTES_MAX},
        {"topic": "a", "partition": 1, "failure": {"code": 211}},
    ]
    message = accepted(FetchResponse, {"partitions": parts})
    assert isinstance(message, FetchResponse)
    good, bad = message.partitions
    assert good == FetchedPartition("a", 0, high_watermark=9, length=limits.FRAME_BYTES_MAX)
    assert (bad.length, bad.high_watermark) == (0, -1)


@pytest.mark.parametrize(
    ("name", "value"), [("length", -1), ("high_watermark", -2), ("log_start_offset", 1 << 63)]
)
def test_a_fetched_partition_is_bounded(name: str, value: Any) -> None:
    wrong = {"partitions": [{"topic": "a", "partition": 0, name: value}]}
    refused(FetchResponse, wrong, path=f"$.partitions[0].{name}")


@pytest.mark.parametrize("at", ["earliest", "latest", 0, (1 << 63) - 1])
def test_offsets_are_asked_for_by_end_or_by_time(at: Any) -> None:
    message = accepted(ListOffsetsRequest, {"queries": [{**QUERY, "at": at}]})
    assert message == ListOffsetsRequest([OffsetQuery("a", 0, at)])


@pytest.mark.parametrize("at", ["", "newest", -1, 1 << 63, None, 1.5])
def test_other_places_are_refused(at: Any) -> None:
    refused(ListOffsetsRequest, {"queries": [QUERY, {**QUERY, "at": at}]}, path="$.queries[1].at")


@pytest.mark.parametrize("leader_epoch", [-2, 1 << 31, None])
def test_the_epoch_of_a_query_is_bounded(leader_epoch: Any) -> None:
    wrong = {"queries": [{**QUERY, "leader_epoch": leader_epoch}]}
    refused(ListOffsetsRequest, wrong, path="$.queries[0].leader_epoch")


@pytest.mark.parametrize("count", [0, limits.PARTITIONS_PER_REQUEST_MAX + 1])
def test_there_are_some_queries_and_not_too_many(count: int) -> None:
    refused(ListOffsetsRequest, {"queries": [QUERY] * count}, path="$.queries")


@pytest.mark.parametrize(
    ("name", "value"), [("offset", -2), ("timestamp_ms", 1 << 63), ("leader_epoch", 1 << 31)]
)
def test_an_offset_answer_is_bounded(name: str, value: int) -> None:
    wrong = {"answers": [{"topic": "a", "partition": 0, name: value}]}
    refused(ListOffsetsResponse, wrong, path=f"$.answers[0].{name}")


# -- groups ----------------------------------------------------------------------------------------
#
# Consumer groups' messages: the bounds in their fields, and what is meant by saying nothing.


BEAT: dict[str, Any] = {
    "group": "g",
    "member_id": "m",
    "member_epoch": 0,
    "sequence": 1,
    "topics": ["t"],
}
OFFSET: dict[str, Any] = {"topic": "t", "partition": 0, "offset": 5}
LONG_GROUP = "g" * (16 * limits.GROUP_ID_CHARS_MAX + 1)
TOO_MANY_GROUPS = ["g"] * (limits.GROUPS_PER_REQUEST_MAX + 1)


@pytest.mark.parametrize(
    "request_type", [FindCoordinatorsRequest, DescribeGroupsRequest, DeleteGroupsRequest]
)
def test_some_groups_are_named(request_type: Any) -> None:
    """A name that is a little too long comes through: the coordinator says what is allowed."""
    name = "g" * (limits.GROUP_ID_CHARS_MAX + 1)
    assert accepted(request_type, {"groups": [name]}) == request_type(groups=[name])
    refused(request_type, {"groups": []}, path="$.groups")
    refused(request_type, {"groups": TOO_MANY_GROUPS}, path="$.groups")
    refused(request_type, {"groups": [LONG_GROUP]}, path="$.groups[0]")


def test_a_heartbeat_that_says_little_joins_with_the_defaults() -> None:
    message = accepted(GroupHeartbeatRequest, BEAT)
    assert isinstance(message, GroupHeartbeatRequest)
    assert (message.session_timeout_ms, message.rebalance_timeout_ms) == (45_000, 300_000)
    assert (message.wait_ms, message.owned, message.assignor) == (0, [], None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group", LONG_GROUP),
        ("member_id", ""),
        ("member_id", "m" * (limits.ID_CHARS_MAX + 1)),
        ("member_epoch", -3),
        ("sequence", -1),
        ("topics", ["t"] * (limits.TOPICS_PER_MEMBER_MAX + 1)),
        ("session_timeout_ms", -1),
        ("rebalance_timeout_ms", 1 << 31),
        ("instance_id", "i" * (16 * limits.INSTANCE_ID_CHARS_MAX + 1)),
        ("client_id", "c" * (limits.CLIENT_ID_CHARS_MAX + 1)),
        ("assignor", "a" * (limits.ASSIGNOR_CHARS_MAX + 1)),
        ("wait_ms", limits.HEARTBEAT_WAIT_MS_MAX + 1),
    ],
)
def test_a_heartbeat_is_bounded(name: str, value: Any) -> None:
    refused(GroupHeartbeatRequest, {**BEAT, name: value}, path=f"$.{name}")


TOPICS = [f"{n}".ljust(limits.TOPIC_NAME_CHARS_MAX, "t") for n in range(1_000)]
GROUPS = [f"{n}".ljust(limits.GROUP_ID_CHARS_MAX, "\U00010300") for n in range(1_000)]
TOPIC_ID = "0" * 32
SHARES = [TopicShare(name, TOPIC_ID, list(range(100))) for name in TOPICS]
CONFIG = {"cleanup.policy": "compact,delete", "retention.ms": "604800000", "segment.ms": "3600000"}


@pytest.mark.parametrize(
    ("api", "request_"),
    [
        (apis.GROUP_HEARTBEAT, GroupHeartbeatRequest("g", "m", 1, 1, TOPICS, SHARES)),
        (apis.CREATE_TOPICS, CreateTopicsRequest([TopicToCreate(t, 9, 3, CONFIG) for t in TOPICS])),
        (apis.ALTER_TOPICS, AlterTopicsRequest([TopicToAlter(t, dict(CONFIG)) for t in TOPICS])),
        (apis.DELETE_TOPICS, DeleteTopicsRequest(TOPICS, dict.fromkeys(TOPICS, TOPIC_ID))),
        (apis.DESCRIBE_TOPICS, DescribeTopicsRequest(TOPICS)),
        (apis.METADATA, MetadataRequest(TOPICS)),
        (apis.FIND_COORDINATORS, FindCoordinatorsRequest(GROUPS)),
        (apis.DESCRIBE_GROUPS, DescribeGroupsRequest(GROUPS)),
        (apis.DELETE_GROUPS, DeleteGroupsRequest(GROUPS)),
    ],
    ids=lambda value: value.name if isinstance(value, apis.Api) else "",
)
def test_as_many_long_names_as_are_allowed_fit_a_request(api: apis.Api, request_: Message) -> None:
    """A member could else subscribe to its 1,000 topics, and not say that it owns them."""
    check_header(api, len(schema.encode(request_)))


@pytest.mark.parametrize("epoch", [JOIN_EPOCH, LEAVE_EPOCH, AWAY_EPOCH, 7])
def test_who_joins_leaves_and_is_away_says_so_by_the_epoch(epoch: int) -> None:
    message = accepted(GroupHeartbeatRequest, {**BEAT, "member_epoch": epoch})
    assert isinstance(message, GroupHeartbeatRequest)
    assert message.member_epoch == epoch


def test_shares_are_bounded() -> None:
    share = {"topic": "t", "topic_id": "1", "partitions": [0]}
    assert accepted(TopicShare, share) == TopicShare("t", "1", [0])
    wrong = {**share, "partitions": [limits.PARTITIONS_PER_TOPIC_MAX]}
    refused(GroupHeartbeatRequest, {**BEAT, "owned": [wrong]}, path="$.owned[0].partitions[0]")
    answer = {"member_epoch": 1, "assignment": [wrong]}
    refused(GroupHeartbeatResponse, answer, path="$.assignment[0].partitions[0]")


def test_a_commit_is_by_nobody_unless_it_says_by_whom() -> None:
    message = accepted(OffsetCommitRequest, {"group": "g", "offsets": [OFFSET]})
    assert isinstance(message, OffsetCommitRequest)
    assert (message.member_id, message.member_epoch) == ("", NO_MEMBER_EPOCH)
    assert message.offsets == [OffsetToCommit("t", 0, 5)]
    refused(OffsetCommitRequest, {"group": "g", "offsets": []}, path="$.offsets")


@pytest.mark.parametrize(("name", "value"), [("offset", -1), ("offset", 1 << 63), ("topic", "")])
def test_an_offset_to_commit_is_bounded(name: str, value: Any) -> None:
    """A note that is too long is refused for its partition alone, by the coordinator."""
    wrong = {"group": "g", "offsets": [{**OFFSET, name: value}]}
    refused(OffsetCommitRequest, wrong, path=f"$.offsets[0].{name}")
    long_note = {**OFFSET, "metadata": "x" * (limits.OFFSET_METADATA_CHARS_MAX + 1)}
    accepted(OffsetCommitRequest, {"group": "g", "offsets": [long_note]})


def test_all_offsets_and_none_are_two_things() -> None:
    assert accepted(OffsetFetchRequest, {"group": "g"}) == OffsetFetchRequest("g", None)
    empty = accepted(OffsetFetchRequest, {"group": "g", "partitions": []})
    assert empty == OffsetFetchRequest("g", [])
    refused(DeleteOffsetsRequest, {"group": "g", "partitions": []}, path="$.partitions")


def test_where_nothing_is_committed_the_offset_is_minus_one() -> None:
    message = accepted(FetchedOffset, {"topic": "t", "partition": 0})
    assert message == FetchedOffset("t", 0, None, -1, -1, "", -1)


def test_a_coordinator_that_is_not_found_has_no_address() -> None:
    message = accepted(CoordinatorInfo, {"group": "g", "failure": {"code": 9}})
    assert isinstance(message, CoordinatorInfo)
    assert (message.broker_id, message.host, message.port) == (0, "", 0)


# -- metadata --------------------------------------------------------------------------------------
#
# ``metadata``: asking for all, for some and for none, and the bounds of an answer.


@pytest.mark.parametrize("topics", [None, [], ["a"], ["a"] * limits.TOPICS_PER_REQUEST_MAX])
def test_all_topics_none_and_some_are_three_things(topics: list[str] | None) -> None:
    assert accepted(MetadataRequest, {"topics": topics}) == MetadataRequest(topics=topics)


def test_to_say_nothing_is_to_ask_for_all() -> None:
    assert accepted(MetadataRequest, {}) == MetadataRequest(topics=None)


@pytest.mark.parametrize(
    ("topics", "path"),
    [
        (["a"] * (limits.TOPICS_PER_REQUEST_MAX + 1), "$.topics"),
        ([""], "$.topics[0]"),
        (["x" * 1_000], "$.topics[0]"),
        (["a", None], "$.topics[1]"),
    ],
)
def test_a_request_is_bounded(topics: list[Any], path: str) -> None:
    refused(MetadataRequest, {"topics": topics}, path=path)


def test_an_illegal_name_gets_as_far_as_its_own_answer() -> None:
    """Names are judged topic by topic, by the broker: here only their size is."""
    accepted(MetadataRequest, {"topics": ["../etc", "ä", "x" * 300]})


PARTITION: dict[str, Any] = {
    "partition": 0,
    "leader": None,
    "leader_epoch": -1,
    "replicas": [],
    "isr": [],
}
BROKER: dict[str, Any] = {"id": 1, "host": "h", "port": 9100}


def answer(*, broker: dict[str, Any] = BROKER, partition: dict[str, Any]) -> dict[str, Any]:
    topic = {"name": "a", "partitions": [partition]}
    return {"cluster_id": "c", "brokers": [broker], "topics": [topic]}


def test_a_partition_may_have_no_leader() -> None:
    message = accepted(MetadataResponse, answer(partition=PARTITION))
    assert isinstance(message, MetadataResponse)
    assert message.topics[0].partitions[0].leader is None


def test_a_topic_that_is_not_there_has_a_failure_and_nothing_else() -> None:
    failed = accepted(TopicInfo, {"name": "a", "failure": {"code": 207, "message": "none"}})
    assert isinstance(failed, TopicInfo)
    assert failed.failure is not None
    assert failed.partitions == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partition", -1),
        ("partition", limits.PARTITIONS_PER_TOPIC_MAX),
        ("leader", -1),
        ("leader_epoch", -2),
        ("leader_epoch", 1 << 31),
        ("replicas", [1 << 31]),
        ("isr", None),
    ],
)
def test_a_partition_is_bounded(name: str, value: Any) -> None:
    wrong = answer(partition={**PARTITION, name: value})
    refused(MetadataResponse, wrong, path=f"$.topics[0].partitions[0].{name}")


@pytest.mark.parametrize("controller", [None, 0, 7])
def test_a_cluster_has_a_controller_or_waits_for_one(controller: int | None) -> None:
    message = accepted(MetadataResponse, {**answer(partition=PARTITION), "controller": controller})
    assert isinstance(message, MetadataResponse)
    assert message.controller == controller
    wrong = {**answer(partition=PARTITION), "controller": -1}
    refused(MetadataResponse, wrong, path="$.controller")


@pytest.mark.parametrize(("name", "value"), [("id", -1), ("port", 65_536), ("host", 1)])
def test_a_broker_is_bounded(name: str, value: Any) -> None:
    wrong = answer(broker={**BROKER, name: value}, partition=PARTITION)
    refused(MetadataResponse, wrong, path=f"$.brokers[0].{name}")


# -- produce ---------------------------------------------------------------------------------------
#
# ``produce`` and what producers ask for besides: the bounds in their fields.


PRODUCE_PART: dict[str, Any] = {"topic": "a", "partition": 0, "length": 100}


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_three_kinds_of_acks(acks: Any) -> None:
    message = accepted(ProduceRequest, {"acks": acks, "partitions": [PRODUCE_PART]})
    assert message == ProduceRequest(acks=acks, partitions=[ProducePartition("a", 0, 100)])


@pytest.mark.parametrize("acks", [-2, 2, "all", None])
def test_other_acks_are_refused(acks: Any) -> None:
    refused(ProduceRequest, {"acks": acks, "partitions": [PRODUCE_PART]}, path="$.acks")


@pytest.mark.parametrize("count", [0, limits.PARTITIONS_PER_REQUEST_MAX + 1])
def test_a_request_has_some_partitions_and_not_too_many(count: int) -> None:
    refused(ProduceRequest, {"acks": 1, "partitions": [PRODUCE_PART] * count}, path="$.partitions")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", ""),
        ("partition", -1),
        ("partition", limits.PARTITIONS_PER_TOPIC_MAX),
        ("length", -1),
        ("length", limits.FRAME_BYTES_MAX + 1),
        ("length", 1.0e99),
        ("leader_epoch", -2),
        ("leader_epoch", 1 << 31),
    ],
)
def test_a_partition_is_bounded_in_produce(name: str, value: Any) -> None:
    wrong = {"acks": 1, "partitions": [PRODUCE_PART, {**PRODUCE_PART, name: value}]}
    refused(ProduceRequest, wrong, path=f"$.partitions[1].{name}")


def test_each_partition_succeeds_or_fails_by_itself() -> None:
    parts = [
        {"topic": "a", "partition": 0, "base_offset": (1 << 63) - 1},
        {"topic": "a", "partition": 1, "failure": {"code": 2}},
    ]
    message = accepted(ProduceResponse, {"partitions": parts})
    assert isinstance(message, ProduceResponse)
    good, bad = message.partitions
    assert good == ProducedPartition("a", 0, base_offset=(1 << 63) - 1)
    assert bad.failure is not None
    assert bad.base_offset == -1


@pytest.mark.parametrize("name", ["base_offset", "append_timestamp_ms", "log_start_offset"])
@pytest.mark.parametrize("value", [-2, 1 << 63, None])
def test_an_answer_is_bounded(name: str, value: Any) -> None:
    wrong = {"partitions": [{"topic": "a", "partition": 0, name: value}]}
    refused(ProduceResponse, wrong, path=f"$.partitions[0].{name}")


def test_a_producer_id_is_asked_for_without_a_word() -> None:
    assert accepted(InitProducerIdRequest, {}) == InitProducerIdRequest()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("producer_id", -1),
        ("producer_id", 1 << 63),
        ("producer_epoch", -1),
        ("producer_epoch", 1 << 15),
    ],
)
def test_a_producer_fits_a_batch_header(name: str, value: int) -> None:
    good = {"producer_id": (1 << 63) - 1, "producer_epoch": (1 << 15) - 1}
    accepted(InitProducerIdResponse, good)
    refused(InitProducerIdResponse, {**good, name: value}, path=f"$.{name}")


PRODUCE_QUERY: dict[str, Any] = {"topic": "a", "partition": 0, "producer_ids": [1 << 62]}


def test_producers_are_asked_for_by_partition() -> None:
    message = accepted(DescribeProducersRequest, {"partitions": [PRODUCE_QUERY]})
    assert message == DescribeProducersRequest([ProducersQuery("a", 0, [1 << 62])])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("producer_ids", []),
        ("producer_ids", [0] * (limits.PRODUCERS_PER_REQUEST_MAX + 1)),
        ("partition", limits.PARTITIONS_PER_TOPIC_MAX),
        ("leader_epoch", -2),
    ],
)
def test_a_question_for_producers_is_bounded(name: str, value: Any) -> None:
    wrong = {"partitions": [{**PRODUCE_QUERY, name: value}]}
    refused(DescribeProducersRequest, wrong, path=f"$.partitions[0].{name}")


@pytest.mark.parametrize("value", [-1, 1 << 63])
def test_the_ids_of_a_question_are_bounded(value: int) -> None:
    wrong = {"partitions": [{**PRODUCE_QUERY, "producer_ids": [value]}]}
    refused(DescribeProducersRequest, wrong, path="$.partitions[0].producer_ids[0]")


def test_a_question_has_some_partitions_and_not_too_many() -> None:
    for count in (0, limits.PARTITIONS_PER_REQUEST_MAX + 1):
        refused(
            DescribeProducersRequest, {"partitions": [PRODUCE_QUERY] * count}, path="$.partitions"
        )


def test_what_is_not_known_of_a_producer_is_minus_one() -> None:
    part = {"topic": "a", "partition": 0, "producers": [{"producer_id": 5}]}
    message = accepted(DescribeProducersResponse, {"partitions": [part]})
    assert message == DescribeProducersResponse(
        [DescribedProducers("a", 0, None, [DescribedProducer(5, -1, -1, -1)])]
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("producer_id", -1),
        ("producer_epoch", -2),
        ("producer_epoch", 1 << 15),
        ("last_sequence", -2),
        ("last_sequence", 1 << 31),
        ("last_offset", -2),
    ],
)
def test_what_is_told_of_a_producer_is_bounded(name: str, value: int) -> None:
    part = {"topic": "a", "partition": 0, "producers": [{"producer_id": 5, name: value}]}
    refused(
        DescribeProducersResponse,
        {"partitions": [part]},
        path=f"$.partitions[0].producers[0].{name}",
    )


# -- topics ----------------------------------------------------------------------------------------
#
# Topic administration: the bounds in its fields.


MANY_KEYS = {f"key.{number}": "1" for number in range(limits.CONFIG_KEYS_PER_TOPIC_MAX + 1)}
TOPICS_MAX = limits.TOPICS_PER_REQUEST_MAX

# Each request, the list in it, one good item of that list, and how many there may be.
REQUESTS: list[tuple[type[Message], str, Any, int]] = [
    (CreateTopicsRequest, "topics", {"name": "a"}, TOPICS_MAX),
    (DeleteTopicsRequest, "topics", "a", TOPICS_MAX),
    (AlterTopicsRequest, "topics", {"name": "a", "config": {}}, TOPICS_MAX),
    (AddPartitionsRequest, "topics", {"name": "a", "partitions": 2}, TOPICS_MAX),
    (
        DeleteRecordsRequest,
        "partitions",
        {"topic": "a", "partition": 0, "before_offset": 1},
        limits.PARTITIONS_PER_REQUEST_MAX,
    ),
]


@pytest.mark.parametrize(("request_type", "name", "item", "most"), REQUESTS)
def test_a_request_names_some_topics_and_not_too_many(
    request_type: type[Message], name: str, item: Any, most: int
) -> None:
    accepted(request_type, {name: [item] * most})
    refused(request_type, {name: [item] * (most + 1)}, path=f"$.{name}")
    refused(request_type, {name: []}, path=f"$.{name}")
    refused(request_type, {}, path=name)


@pytest.mark.parametrize(
    ("request_type", "item", "path"),
    [
        (CreateTopicsRequest, {"name": ""}, "$.topics[0].name"),
        (CreateTopicsRequest, {"name": "a", "partitions": "3"}, "$.topics[0].partitions"),
        (CreateTopicsRequest, {"name": "a", "config": {"k": 1}}, "$.topics[0].config[...]"),
        (CreateTopicsRequest, {"name": "a", "config": {"k": None}}, "$.topics[0].config[...]"),
        (CreateTopicsRequest, {"name": "a", "config": {"k": "v" * 4_097}}, "$.topics[0].config"),
        (CreateTopicsRequest, {"name": "a", "config": {"k" * 257: "v"}}, "$.topics[0].config"),
        (CreateTopicsRequest, {"name": "a", "config": MANY_KEYS}, "$.topics[0].config"),
        (AlterTopicsRequest, {"name": "a"}, "config"),
        (AlterTopicsRequest, {"name": "a", "config": MANY_KEYS}, "$.topics[0].config"),
        (DeleteTopicsRequest, "x" * 1_000, "$.topics[0]"),
        (AddPartitionsRequest, {"name": "a", "partitions": 0}, "$.topics[0].partitions"),
        (AddPartitionsRequest, {"name": "a", "partitions": 10_001}, "$.topics[0].partitions"),
    ],
)
def test_a_topic_is_bounded(request_type: type[Message], item: Any, path: str) -> None:
    refused(request_type, {"topics": [item]}, path=path)


def test_one_bad_topic_does_not_hurt_its_neighbours() -> None:
    """Names and counts that cannot be met are judged topic by topic, by the broker."""
    bad = {"name": "a/b", "partitions": -1, "replication_factor": 1 << 40}
    message = accepted(CreateTopicsRequest, {"topics": [{"name": "a"}, bad]})
    assert message == CreateTopicsRequest([TopicToCreate("a"), TopicToCreate("a/b", -1, 1 << 40)])


def test_a_key_goes_back_to_its_default_by_none() -> None:
    message = accepted(AlterTopicsRequest, {"topics": [{"name": "a", "config": {"k": None}}]})
    assert message == AlterTopicsRequest([TopicToAlter("a", {"k": None})])


@pytest.mark.parametrize("before_offset", [-1, 0, (1 << 63) - 1])
def test_records_are_deleted_up_to_an_offset_or_the_high_watermark(before_offset: int) -> None:
    part = {"topic": "a", "partition": 0, "before_offset": before_offset}
    accepted(DeleteRecordsRequest, {"partitions": [part]})


@pytest.mark.parametrize("before_offset", [-2, 1 << 63, None])
def test_there_is_no_such_offset(before_offset: Any) -> None:
    part = {"topic": "a", "partition": 0, "before_offset": before_offset}
    path = "$.partitions[0].before_offset"
    refused(DeleteRecordsRequest, {"partitions": [part]}, path=path)


@pytest.mark.parametrize("topics", [None, [], ["a"]])
def test_all_topics_or_some_are_described(topics: list[str] | None) -> None:
    assert accepted(DescribeTopicsRequest, {"topics": topics}) == DescribeTopicsRequest(topics)


def test_answers_come_topic_by_topic() -> None:
    results = [{"name": "a", "id": "5f1d"}, {"name": "b", "failure": {"code": 206}}]
    message = accepted(TopicsResponse, {"results": results})
    assert isinstance(message, TopicsResponse)
    assert [result.failure is None for result in message.results] == [True, False]


def test_a_sound_partition_has_no_damage() -> None:
    info = {"partition": 0, "leader": 1, "leader_epoch": 0, "replicas": [1], "isr": [1]}
    topic = {"name": "a", "partitions": [{"info": info}]}
    message = accepted(DescribeTopicsResponse, {"topics": [topic]})
    assert isinstance(message, DescribeTopicsResponse)
    assert message.topics[0].partitions[0].damage == ""
