"""KIP-848 heartbeats with omitted fields."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.consumer_groups import (
    AWAY_EPOCH,
    LEAVE_EPOCH,
    HeartbeatDelta,
    HeartbeatResult,
    Interest,
)
from raftlog.consumer_groups.values import Topics
from raftlog.errors import InstanceInUseError, InvalidRequestError, UnknownMemberError
from tests.consumer_groups.scene import GROUP, REBALANCE_MS, SESSION_MS, Scene


class DeltaScene(Scene):
    """Members of the Kafka protocol. ``kept`` is what they say with their joins."""

    def delta(self, name: str, epoch: int | None = None, **fields: Any) -> HeartbeatResult:
        if epoch is None:
            epoch = self.epoch_of(name)
        delta = HeartbeatDelta(
            **{
                "group": GROUP,
                "member_id": name,
                "member_epoch": epoch,
                "connection": 1,
                "session_timeout_ms": SESSION_MS,
                **fields,
            }
        )
        beat = self.shard.complete(delta)
        result: HeartbeatResult = self.take(
            self.shard.heartbeat(beat, now=self.now, now_ms=self.now_ms)
        )
        return result

    def enter(self, name: str, **fields: Any) -> HeartbeatResult:
        said = {"topics": ("t",), "rebalance_timeout_ms": REBALANCE_MS, **fields}
        return self.delta(name, 0, **said)


def owned(*partitions: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return (("id-t", partitions),)


def test_omitted_fields_stay_as_they_were() -> None:
    scene = DeltaScene()
    scene.enter("a", rack="r", assignor="range", instance_id="i")
    scene.delta("a")
    member = scene.members[0]
    assert (member.topics, member.instance_id) == (("t",), "i")
    assert scene.shard.describe(GROUP).assignor == "range"
    scene.set_topics({"t": 4, "u": 1})
    scene.delta("a", topics=("u",))
    scene.delta("a", owned=())
    assert scene.of("a", "u") == {0}


def test_omitted_partitions_release_nothing() -> None:
    scene = DeltaScene()
    scene.enter("a")
    scene.enter("b")
    assert scene.of("b") == set()
    scene.delta("a")
    assert scene.of("b") == set(), "a has not said that it gave up anything"
    scene.delta("a", owned=owned(*scene.of("a")))
    assert len(scene.of("b")) == 2


def test_a_heartbeat_of_an_older_connection_changes_nothing() -> None:
    scene = DeltaScene()
    scene.enter("a", connection=5)
    scene.enter("b")
    assert len(scene.delta("a", owned=(), connection=4).assignment[0].partitions) == 2
    assert scene.of("b") == set()
    scene.delta("a", owned=owned(*scene.of("a")), connection=5)
    assert len(scene.of("b")) == 2


def test_a_join_names_its_topics() -> None:
    with pytest.raises(InvalidRequestError, match="subscription"):
        DeltaScene().enter("a", topics=None)
    with pytest.raises(InvalidRequestError):
        DeltaScene().enter("a", rebalance_timeout_ms=-1)
    with pytest.raises(UnknownMemberError):
        DeltaScene().delta("a", 3)


def test_an_instance_is_taken_only_from_a_member_that_is_away() -> None:
    scene = DeltaScene()
    before = scene.enter("a", instance_id="i")
    with pytest.raises(InstanceInUseError):
        scene.enter("b", instance_id="i")
    scene.delta("a", AWAY_EPOCH)
    assert scene.enter("b", instance_id="i").assignment == before.assignment


def test_a_member_that_left_can_join_again() -> None:
    scene = DeltaScene()
    scene.enter("a")
    scene.delta("a", LEAVE_EPOCH)
    assert scene.enter("a").member_epoch > 0


def test_a_regular_expression_stays_with_the_member() -> None:
    scene = DeltaScene()
    both, seen = Interest(("a",), "t.*"), Topics()
    scene.enter("m", topics=("a", "t"), interest=both, matched=Topics())
    scene.delta("m")
    assert scene.shard.interest(GROUP, "m")[0] == both
    scene.delta("m", topics=("a", "t"), interest=both, matched=seen)
    assert scene.shard.interest(GROUP, "m") == (both, seen)
    scene.fail_over()
    assert scene.shard.interest(GROUP, "m") == (both, None), "the topics may have changed since"
    other = Interest(("a",), "t|u")
    before = len(scene.log)
    scene.delta("m", topics=("a", "t"), interest=other, matched=seen)
    assert len(scene.log) > before, "the next coordinator has to know it"
    scene.fail_over()
    assert scene.shard.interest(GROUP, "m")[0] == other
    scene.delta("m", topics=("t",))
    assert scene.shard.interest(GROUP, "m")[0] is None
    assert scene.shard.interest(GROUP, "unknown") == (None, None)
