"""Members that join at the same time: one rebalance for all, and each its answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.consumer_groups import AWAY_EPOCH, BUILT_IN, LEAVE_EPOCH, HeartbeatResult
from raftlog.errors import (
    FencedMemberError,
    GroupFullError,
    InstanceFencedError,
    InvalidGroupError,
    InvalidRequestError,
    StaleMemberEpochError,
    UnknownAssignorError,
)
from tests.consumer_groups.scene import GROUP, Scene, joining, share
from tests.consumer_groups.test_group import Own


def test_a_group_is_rebalanced_once_for_all_that_join_at_once() -> None:
    scene = Scene({"t": 6})
    found = scene.join_all(*(joining(f"m{number}") for number in range(3)))
    assert [len(scene.of(f"m{number}")) for number in range(3)] == [2, 2, 2]
    assert [beat.member_epoch for beat in found if isinstance(beat, HeartbeatResult)] == [1, 1, 1]
    view = scene.shard.describe(GROUP)
    assert (view.state, view.group_epoch) == ("stable", 1)


def test_those_that_are_there_are_asked_once() -> None:
    own = Own({})
    scene = Scene({"t": 4}, assignors={**BUILT_IN, "own": own})
    scene.join("m0", assignor="own")
    asked = len(own.asked)
    scene.join_all(*(joining(f"m{number}", assignor="own") for number in range(1, 5)))
    assert len(own.asked) == asked + 1
    assert set(own.asked[-1].members) == {f"m{number}" for number in range(5)}
    assert "m0" not in scene.woken


def test_each_is_refused_on_its_own_and_changes_nothing() -> None:
    scene = Scene(members_per_group_max=2)
    scene.join("m0")
    found = scene.join_all(
        joining("m1", assignor="fair"),
        joining("m2", session_timeout_ms=1),
        joining("m3"),
        joining("m4"),
        joining("m5", group=""),
        joining("m6", "t", group="other", assignor="fair"),
    )
    kinds = [type(one) for one in found]
    assert kinds == [
        UnknownAssignorError,
        InvalidRequestError,
        HeartbeatResult,
        GroupFullError,
        InvalidGroupError,
        UnknownAssignorError,
    ]
    assert [listing.group for listing in scene.shard.list()] == [GROUP]
    scene.settle("m0", "m3")
    assert (scene.of("m0"), scene.of("m3")) == ({0, 1}, {2, 3})


def test_a_group_of_which_all_were_refused_goes_on() -> None:
    scene = Scene()
    scene.join("m0")
    scene.join_all(joining("m1", assignor="fair"))
    scene.join("m2")
    scene.settle()
    assert scene.of("m2") == {2, 3}


def test_several_groups_at_once() -> None:
    scene = Scene()
    scene.join_all(joining("m0"), joining("m1", group="h"), joining("m2"), joining("m3", group="h"))
    for group in (GROUP, "h"):
        view = scene.shard.describe(group)
        assert (view.state, view.group_epoch, len(view.members)) == ("stable", 1, 2)


@pytest.mark.parametrize("partitions", [4, 0])
def test_two_with_one_instance_id_at_once(partitions: int) -> None:
    scene = Scene({"t": partitions} if partitions else {})
    first, second = scene.join_all(joining("m0", instance_id="i"), joining("m1", instance_id="i"))
    assert isinstance(first, InstanceFencedError)
    assert isinstance(second, HeartbeatResult)
    assert second.member_epoch == 2
    assert scene.of("m1") == set(range(partitions))


def test_one_that_takes_a_place_over_as_it_is_has_nothing_rebalanced() -> None:
    own = Own({"m0": [("t", 0)]})
    scene = Scene({"t": 4}, assignors={**BUILT_IN, "own": own})
    scene.join("m0", "t", instance_id="i", assignor="own")
    asked = len(own.asked)
    (found,) = scene.join_all(joining("m1", instance_id="i", assignor="own"))
    assert found == scene.shard.beat(GROUP, "m1")
    assert scene.of("m1") == {0}
    assert len(own.asked) == asked


def test_one_member_twice_at_once() -> None:
    scene = Scene()
    found = scene.join_all(joining("m0"), joining("m0", sequence=2))
    assert found == [scene.shard.beat(GROUP, "m0")] * 2
    assert scene.of("m0") == {0, 1, 2, 3}


@given(
    partitions=st.integers(0, 12),
    before=st.integers(0, 3),
    topics=st.lists(st.sampled_from([("t",), ("u",), ("t", "u")]), min_size=1, max_size=6),
)
def test_it_comes_to_the_same_as_one_by_one(
    partitions: int, before: int, topics: list[tuple[str, ...]]
) -> None:
    """Who has how much; which of them may differ."""
    sizes = []
    for at_once in (True, False):
        scene = Scene({"t": partitions, "u": 3} if partitions else {"u": 3})
        for number in range(before):
            scene.join(f"a{number}", "t", "u")
            scene.settle()
        joins = [joining(f"m{number}", *names) for number, names in enumerate(topics)]
        for part in [joins] if at_once else [[join] for join in joins]:
            for beat in scene.join_all(*part):
                assert isinstance(beat, HeartbeatResult)
                assert beat.member_epoch > 0
        scene.settle()
        assert scene.state == "stable"
        names = [member.member_id for member in scene.members]
        sizes.append(sorted(len(scene.of(name)) + len(scene.of(name, "u")) for name in names))
    assert sizes[0] == sizes[1]


# -- static members --------------------------------------------------------------------------------
#
# Members with an instance id: away and back, and two that have the same one.


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
