"""Requests of operators: the bounds in their fields."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.protocol.cluster import (
    GROUP_ID_CHARS_MAX,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeEventsRequest,
    DescribeEventsResponse,
    EventStatus,
    GroupReport,
    ReassignRequest,
    RecoverClusterRequest,
    RecoverClusterResponse,
    ReplicaStatus,
    ReviveRequest,
    SurveyRequest,
    TransferLeaderRequest,
    TransferLeaderResponse,
)
from raftlog.protocol.peer import PARTITION_STATE_BYTES_MAX
from tests.protocol.fields import accepted, refused

BROKER: dict[str, Any] = {
    "id": 1,
    "host": "h",
    "port": 9100,
    "directory_id": "",
    "broker_epoch": -1,
    "fenced": True,
    "live": False,
}
PARTITION: dict[str, Any] = {
    "topic": "a",
    "topic_id": "t",
    "partition": 0,
    "leader": None,
    "leader_epoch": 0,
    "replicas": [1],
    "isr": [],
    "witnesses": [],
    "elr": [1],
    "min_isr": 1,
}
TOO_MANY = [1] * (limits.BROKERS_PER_CLUSTER_MAX + 1)


def answer(**fields: Any) -> dict[str, Any]:
    return {"cluster_id": "c", "controller": None, "brokers": [], **fields}


@pytest.mark.parametrize("request_type", [DescribeClusterRequest, RecoverClusterRequest])
@pytest.mark.parametrize("topics", [None, [], ["a"]])
def test_all_topics_none_and_some_are_three_things(
    request_type: Any, topics: list[str] | None
) -> None:
    assert accepted(request_type, {"topics": topics}) == request_type(topics=topics)
    refused(request_type, {"topics": ["a"] * (limits.TOPICS_PER_REQUEST_MAX + 1)}, path="$.topics")
    refused(request_type, {"topics": [""]}, path="$.topics[0]")


def test_to_say_nothing_is_to_ask_for_everything_and_to_lose_nothing() -> None:
    describe = accepted(DescribeClusterRequest, {})
    assert describe == DescribeClusterRequest(topics=None, include_partitions=True)
    recover = accepted(RecoverClusterRequest, {})
    assert recover == RecoverClusterRequest(accept_loss=False, topics=None)


def test_a_cluster_without_a_leader_can_be_described() -> None:
    message = accepted(DescribeClusterResponse, answer(brokers=[BROKER], partitions=[PARTITION]))
    assert isinstance(message, DescribeClusterResponse)
    assert message.controller is None
    (partition,) = message.partitions
    assert (partition.leader, partition.high_watermark, partition.replica_status) == (None, -1, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("controller", -1),
        ("brokers", [BROKER] * (limits.BROKERS_PER_CLUSTER_MAX + 1)),
        ("cluster_id", "x" * (limits.ID_CHARS_MAX + 1)),
    ],
)
def test_a_description_is_bounded(name: str, value: Any) -> None:
    refused(DescribeClusterResponse, answer(**{name: value}), path=f"$.{name}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", -1),
        ("port", 65_536),
        ("host", "x" * (limits.HOST_CHARS_MAX + 1)),
        ("rack", "x" * (limits.RACK_CHARS_MAX + 1)),
        ("directory_id", "x" * (limits.ID_CHARS_MAX + 1)),
        ("broker_epoch", -2),
        ("live", None),
    ],
)
def test_a_broker_is_bounded(name: str, value: Any) -> None:
    wrong = answer(brokers=[{**BROKER, name: value}])
    refused(DescribeClusterResponse, wrong, path=f"$.brokers[0].{name}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", ""),
        ("topic_id", ""),
        ("leader", -1),
        ("leader_epoch", 1 << 31),
        ("replicas", TOO_MANY),
        ("isr", TOO_MANY),
        ("witnesses", TOO_MANY),
        ("elr", TOO_MANY),
        ("min_isr", -1),
        ("high_watermark", -2),
        ("replica_status", [{"broker": 1}] * (limits.BROKERS_PER_CLUSTER_MAX + 1)),
    ],
)
def test_a_partition_is_bounded(name: str, value: Any) -> None:
    wrong = answer(partitions=[{**PARTITION, name: value}])
    refused(DescribeClusterResponse, wrong, path=f"$.partitions[0].{name}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_end_offset", -2),
        ("durable_end_offset", 1 << 63),
        ("lag_ms", -2),
        ("chain", -1),
        ("damage", "x" * (limits.ERROR_MESSAGE_CHARS_MAX + 1)),
    ],
)
def test_a_replica_is_bounded(name: str, value: Any) -> None:
    status = {"broker": 1, name: value}
    wrong = answer(partitions=[{**PARTITION, "replica_status": [status]}])
    refused(DescribeClusterResponse, wrong, path=f"$.partitions[0].replica_status[0].{name}")


@pytest.mark.parametrize("chain", [None, 0, (1 << 64) - 1])
def test_a_chain_value_has_64_bits_or_is_not_known(chain: int | None) -> None:
    message = accepted(ReplicaStatus, {"broker": 1, "chain": chain})
    assert message == ReplicaStatus(broker=1, chain=chain)


def test_leadership_goes_to_somebody_or_to_anybody() -> None:
    message = accepted(TransferLeaderRequest, {"topic": "a", "partition": 0})
    assert message == TransferLeaderRequest("a", 0, to=None)
    refused(TransferLeaderRequest, {"topic": "a", "partition": 0, "to": -1}, path="$.to")
    refused(TransferLeaderRequest, {"topic": "", "partition": 0}, path="$.topic")


@pytest.mark.parametrize(("name", "value"), [("leader", None), ("leader_epoch", -2)])
def test_a_transfer_that_was_made_has_a_leader(name: str, value: Any) -> None:
    good = {"leader": 2, "leader_epoch": 5}
    accepted(TransferLeaderResponse, good)
    refused(TransferLeaderResponse, {**good, name: value}, path=f"$.{name}")


@pytest.mark.parametrize(
    ("move", "path"),
    [
        ({"partition": -1, "replicas": [1]}, "partition"),
        ({"partition": 0, "replicas": [-1]}, "replicas[0]"),
        ({"partition": 0, "replicas": [1] * (limits.BROKERS_PER_CLUSTER_MAX + 1)}, "replicas"),
        ({"partition": 0, "replicas": [1], "before": [-1]}, "before[0]"),
    ],
)
def test_a_move_of_replicas_is_bounded(move: dict[str, Any], path: str) -> None:
    accepted(ReassignRequest, {"topic": "a", "moves": [{"partition": 0, "replicas": [2, 1]}]})
    refused(ReassignRequest, {"topic": "a", "moves": [move]}, path=f"$.moves[0].{path}")
    refused(ReassignRequest, {"topic": "a", "replication_factor": -1}, path="$.replication_factor")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("leader", -1),
        ("log_end_offset", -2),
        ("note", "x" * (limits.ERROR_MESSAGE_CHARS_MAX + 1)),
    ],
)
def test_a_recovered_partition_is_bounded(name: str, value: Any) -> None:
    wrong = {"partitions": [{"topic": "a", "partition": 0, name: value}]}
    refused(RecoverClusterResponse, wrong, path=f"$.partitions[0].{name}")
    refused(
        RecoverClusterResponse,
        {"partitions": [], "cluster_note": "x" * (limits.ERROR_MESSAGE_CHARS_MAX + 1)},
        path="$.cluster_note",
    )


# -- events ----------------------------------------------------------------------------------------
#
# ``describe_events``: the bounds in its fields.


EVENT: dict[str, Any] = {"at_ms": 0, "kind": "leader-elected", "text": "", "version": 0}


def test_a_time_has_bounds() -> None:
    accepted(DescribeEventsRequest, {"since_ms": (1 << 63) - 1})
    refused(DescribeEventsRequest, {"since_ms": -1}, path="since_ms")


@pytest.mark.parametrize(
    "bad",
    [
        {"at_ms": -1},
        {"kind": "x" * 65},
        {"text": "x" * (limits.ERROR_MESSAGE_CHARS_MAX + 1)},
        {"version": -1},
        {"topic": "x" * (limits.TOPIC_NAME_CHARS_MAX + 1)},
        {"topic_id": "x" * (limits.ID_CHARS_MAX + 1)},
        {"partition": -1},
        {"broker": -1},
        {"leader_epoch": -2},
    ],
)
def test_an_event_has_bounds(bad: dict[str, Any]) -> None:
    accepted(EventStatus, EVENT)
    refused(EventStatus, EVENT | bad, path=next(iter(bad)))


def test_a_response_has_as_many_events_as_a_broker_keeps() -> None:
    accepted(DescribeEventsResponse, {"events": [EVENT] * limits.EVENTS_KEPT_MAX})
    too_many = [EVENT] * (limits.EVENTS_KEPT_MAX + 1)
    refused(DescribeEventsResponse, {"events": too_many}, path="events")


# -- recovery --------------------------------------------------------------------------------------
#
# ``survey`` and ``revive``: the bounds in their fields.


@pytest.mark.parametrize("groups", [[], ["g" * GROUP_ID_CHARS_MAX]])
def test_what_a_survey_may_ask(groups: list[str]) -> None:
    assert accepted(SurveyRequest, {"groups": groups}) == SurveyRequest(groups=groups)


@pytest.mark.parametrize(
    "groups",
    [[""], ["g" * (GROUP_ID_CHARS_MAX + 1)], ["g"] * (limits.PARTITIONS_PER_REQUEST_MAX + 1)],
)
def test_what_a_survey_may_not_ask(groups: list[str]) -> None:
    refused(SurveyRequest, {"groups": groups}, path="groups")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("generation", -1),
        ("voters", [{"broker": 1, "directory_id": ""}]),
        ("end", -2),
        ("state", bytes(PARTITION_STATE_BYTES_MAX + 1)),
    ],
)
def test_what_a_broker_may_not_report(field: str, value: Any) -> None:
    accepted(GroupReport, {"group": "g"})
    refused(GroupReport, {"group": "g", field: value}, path=field)


@pytest.mark.parametrize("field", ["base", "command"])
def test_what_a_broker_may_be_asked_to_go_on_from(field: str) -> None:
    request = {"group": "g", "generation": 1}
    accepted(ReviveRequest, {**request, field: bytes(PARTITION_STATE_BYTES_MAX)})
    refused(ReviveRequest, {**request, field: bytes(PARTITION_STATE_BYTES_MAX + 1)}, path=field)
