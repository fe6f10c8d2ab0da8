"""Consumer groups' messages: the bounds in their fields, and what is meant by saying nothing."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.protocol.records import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_MEMBER_EPOCH,
    CoordinatorInfo,
    DeleteGroupsRequest,
    DeleteOffsetsRequest,
    DescribeGroupsRequest,
    FetchedOffset,
    FindCoordinatorsRequest,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetToCommit,
    TopicShare,
)
from tests.protocol.fields import accepted, refused

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
