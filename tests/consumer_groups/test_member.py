"""What a member is due, and what it is answered with while nothing changes."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from raftlog.consumer_groups import Heartbeat
from raftlog.consumer_groups.group import FormerMember, Member
from raftlog.consumer_groups.values import TopicInfo, Topics
from tests.consumer_groups.scene import share


def member() -> Member:
    return Member(
        id="m",
        instance_id=None,
        client_id="",
        host="",
        rack="",
        topics=("t",),
        assignor=None,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        sequence=1,
        epoch=3,
        assigned=frozenset({("id-t", 1)}),
        target=frozenset({("id-t", 1)}),
    )


def test_a_member_is_due_when_its_session_or_a_release_is() -> None:
    one = member()
    assert one.due == math.inf
    one.renew(100.0)
    assert one.due == 110.0
    one.revoking = {("id-t", 2): 105.0, ("id-t", 3): 120.0}
    assert one.due == 105.0
    one.renew(90.0)
    assert one.due == 100.0


def test_it_is_settled_when_it_has_its_target_and_nothing_else() -> None:
    one = member()
    assert one.is_settled
    one.revoking = {("id-t", 2): 1.0}
    assert not one.is_settled
    one.revoking = {}
    one.target = frozenset()
    assert not one.is_settled


def test_its_answer_is_made_once() -> None:
    one, topics = member(), Topics({"t": TopicInfo("id-t", 4)})
    answer = one.steady_answer(topics)
    assert (answer.result.member_epoch, answer.result.assignment) == (3, (share("t", 1),))
    assert one.steady_answer(topics) is answer


def test_former_members_are_remembered_for_a_session_and_fenced_ones_for_an_hour() -> None:
    assert FormerMember("it left", 1, 10_000).begun_anew(5.0).until == 15.0
    assert FormerMember("fenced", 1, 10_000, "i1").begun_anew(5.0).until == 3_605.0
    assert FormerMember("fenced", 1, 7_200_000, "i1").begun_anew(5.0).until == 7_205.0


SAID = Heartbeat(
    group="g",
    member_id="m",
    member_epoch=3,
    sequence=1,
    topics=("t",),
    owned=(share("t", 1),),
    session_timeout_ms=10_000,
    rebalance_timeout_ms=30_000,
)


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ({}, True),
        ({"sequence": 2}, True),
        ({"member_epoch": 2}, False),
        ({"owned": ()}, False),
        ({"owned": (share("t", 1, 2),)}, False),
        ({"topics": ("t", "u")}, False),
        ({"session_timeout_ms": 10_001}, False),
        ({"rebalance_timeout_ms": 30_001}, False),
        ({"instance_id": "i"}, False),
        ({"assignor": "range"}, False),
    ],
    ids=str,
)
def test_a_heartbeat_says_the_same_if_only_its_sequence_differs(
    fields: dict[str, Any], same: bool
) -> None:
    one = member()
    one.said = SAID
    heartbeat = msgspec.structs.replace(SAID, **fields)
    assert not one.says_the_same(heartbeat)  # it was not answered yet
    one.steady_answer(Topics({"t": TopicInfo("id-t", 4)}))
    assert one.says_the_same(heartbeat) is same
    one.said = None
    assert not one.says_the_same(heartbeat)
