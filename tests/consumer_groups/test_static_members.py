"""Members with an instance id: away and back, and two that have the same one."""

from __future__ import annotations

import pytest

from raftlog.consumer_groups import AWAY_EPOCH, LEAVE_EPOCH, HeartbeatResult
from raftlog.errors import (
    FencedMemberError,
    InstanceFencedError,
    InvalidRequestError,
    StaleMemberEpochError,
)
from tests.consumer_groups.scene import GROUP, Scene, share


def static() -> Scene:
    scene = Scene()
    scene.join("m1", "t", instance_id="i1")
    scene.join("m2", "t")
    scene.settle()
    assert (scene.of("m1"), scene.of("m2")) == ({0, 1}, {2, 3})
    return scene


def test_a_static_member_that_is_away_keeps_its_place() -> None:
    scene = static()
    assert scene.go_away("m1") == HeartbeatResult(AWAY_EPOCH)
    assert "m2" not in scene.woken
    scene.after(9)
    scene.beat("m2")
    assert (scene.of("m1"), scene.of("m2")) == ({0, 1}, {2, 3})
    assert scene.members[0].is_away


def test_until_its_session_ends() -> None:
    scene = static()
    scene.go_away("m1")
    scene.after(9)
    scene.beat("m2")
    scene.after(2)
    assert scene.of("m2") == {0, 1, 2, 3}


def test_only_a_static_member_may_be_away() -> None:
    scene = static()
    with pytest.raises(InvalidRequestError, match="only a static member can be temporarily absent"):
        scene.go_away("m2")
    assert scene.of("m2") == {2, 3}


def test_one_that_is_away_has_to_join_again() -> None:
    scene = static()
    scene.go_away("m1")
    with pytest.raises(FencedMemberError, match=r"it is temporarily absent\. It must join again"):
        scene.beat("m1", epoch=2)
    assert scene.join("m1").assignment == (share("t", 0, 1),)
    assert not scene.members[0].is_away


def test_what_is_asked_of_one_that_is_away_is_free_at_once() -> None:
    scene = static()
    scene.go_away("m1")
    scene.join("m3", "t")
    scene.join("m4", "t")
    assert sum(len(scene.of(name)) for name in ("m1", "m2", "m3", "m4")) == 3  # m2 has one to give


def test_going_away_gives_up_what_was_asked_for() -> None:
    scene = static()
    scene.join("m3", "t")
    scene.join("m4", "t")
    before = scene.of("m3") | scene.of("m4")
    scene.go_away("m1")
    assert len(scene.of("m3") | scene.of("m4")) == len(before) + 1


def test_a_newcomer_with_the_same_instance_takes_over_at_once() -> None:
    scene = static()
    epoch = scene.shard.describe(GROUP).group_epoch
    taken_over = scene.join("m9", "t", instance_id="i1")
    assert taken_over == HeartbeatResult(epoch + 1, (share("t", 0, 1),))
    assert scene.woken == {"m1", "m9"}
    assert scene.of("m2") == {2, 3}
    assert scene.epoch_of("m2") == epoch


@pytest.mark.parametrize("fails_over", [False, True])
@pytest.mark.parametrize("epoch", [0, 2, LEAVE_EPOCH, AWAY_EPOCH])
def test_the_old_one_is_fenced_from_then_on(epoch: int, fails_over: bool) -> None:
    scene = static()
    scene.join("m9", "t", instance_id="i1")
    if fails_over:
        scene.fail_over()
    with pytest.raises(InstanceFencedError, match=r"group\.instance\.id"):
        scene.beat("m1", epoch=epoch)
    with pytest.raises(InstanceFencedError, match="Use a different ID for each consumer"):
        scene.shard.beat(GROUP, "m1")
    with pytest.raises(InstanceFencedError):
        scene.commit("m1", ("t", 0), epoch=2)
    assert scene.of("m9") == {0, 1}


def test_that_is_remembered_for_an_hour() -> None:
    scene = static()
    scene.join("m9", "t", instance_id="i1")
    for _ in range(700):
        scene.after(5)
        scene.settle("m9", "m2")
    with pytest.raises(InstanceFencedError):
        scene.beat("m1", epoch=0)
    for _ in range(150):
        scene.after(5)
        scene.settle("m9", "m2")
    scene.beat("m1", epoch=0)
    with pytest.raises(InstanceFencedError):
        scene.beat("m9")


def test_one_that_went_away_by_itself_may_take_its_instance_again() -> None:
    scene = static()
    scene.go_away("m1")
    scene.join("m9", "t", instance_id="i1")
    assert scene.join("m1").assignment == (share("t", 0, 1),)
    with pytest.raises(InstanceFencedError):
        scene.beat("m9")


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_commit_from_before_another_had_its_place_is_too_late(fails_over: bool) -> None:
    scene = static()
    before = scene.epoch_of("m1")
    scene.go_away("m1")
    scene.join("m9", "t", instance_id="i1")
    scene.commit("m9", ("t", 0), offset=20)
    if fails_over:
        scene.fail_over()
    scene.join("m1", instance_id="i1")
    with pytest.raises(StaleMemberEpochError):
        scene.commit("m1", ("t", 0), offset=10, epoch=before)


def test_a_takeover_frees_what_was_asked_for() -> None:
    """Whoever had it is fenced; nobody has to give it up."""
    scene = static()
    scene.join("m3", "t")
    assert scene.state == "reconciling"
    scene.join("m9", "t", instance_id="i1")
    scene.settle("m2", "m3", "m9")
    assert sorted(len(scene.of(name)) for name in ("m2", "m3", "m9")) == [1, 1, 2]


def test_a_takeover_with_another_subscription_rebalances() -> None:
    scene = Scene({"t": 4, "u": 2})
    scene.join("m1", "t", instance_id="i1")
    assert scene.join("m9", "u", instance_id="i1").assignment == ()
    scene.beat("m9", ())
    assert (scene.of("m9", "t"), scene.of("m9", "u")) == (set(), {0, 1})
