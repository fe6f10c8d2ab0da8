"""Members that join at the same time: one rebalance for all, and each its answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.consumer_groups import BUILT_IN, HeartbeatResult
from raftlog.errors import (
    GroupFullError,
    InstanceFencedError,
    InvalidGroupError,
    InvalidRequestError,
    UnknownAssignorError,
)
from tests.consumer_groups.scene import GROUP, Scene, joining
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
