"""Who is asked for the targets of a group, and what happens if that one fails."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from raftlog.consumer_groups import BUILT_IN, MemberSpec, Spec
from raftlog.types import TopicPartition
from tests.consumer_groups.scene import GROUP, Scene


class Own:
    """Does what the test says."""

    name = "own"

    def __init__(self, result: Any = None) -> None:
        self.result = result
        self.asked: list[Spec] = []

    def assign(self, spec: Spec) -> Mapping[str, Collection[TopicPartition]]:
        self.asked.append(spec)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result  # type: ignore[no-any-return]


def scene_with(own: Own, **settings: Any) -> Scene:
    return Scene({"t": 3}, assignors={**BUILT_IN, "own": own}, **settings)


def test_the_assignor_of_most_members_is_asked() -> None:
    own = Own({"m1": [TopicPartition("t", 2)]})
    scene = scene_with(own)
    scene.join("m1", assignor="own", client_id="c", rack="r1")
    assert scene.of("m1") == {2}
    assert scene.shard.describe(GROUP).assignor == "own"
    assert own.asked == [
        Spec({"m1": MemberSpec(frozenset({"t"}), client_id="c", rack="r1")}, {"t": 3})
    ]
    scene.join("m2")
    assert own.asked[-1].members["m1"].owned == {TopicPartition("t", 2)}
    scene.join("m3", "t", assignor="range")
    assert scene.shard.describe(GROUP).assignor == "uniform"  # the default, as two tie


def test_a_changed_vote_counts() -> None:
    scene = Scene({"t": 3})
    scene.join("m1")
    scene.join("m2", "t", assignor="range")
    assert scene.shard.describe(GROUP).assignor == "range"
    scene.beat("m2", assignor=None)
    assert scene.shard.describe(GROUP).assignor == "uniform"


ALL_THREE = [TopicPartition("t", number) for number in range(3)]


def epochs_of(how: str) -> int:
    """By how much the group's epoch grows: by one for the assignor, and for the taken-over ID."""
    return 2 if how == "restart" else 1


@pytest.mark.parametrize("how", ["beat", "rejoin", "restart"])
def test_who_comes_with_another_assignor_and_nothing_else_has_the_group_rebalanced(
    how: str,
) -> None:
    """``restart``: a static member that was away, and has another member id now."""
    who = "m3" if how == "restart" else "m2"
    scene = scene_with(Own({who: ALL_THREE}))
    scene.join("m1", "t")
    scene.join("m2", "t", instance_id="n2")
    scene.settle()
    before = scene.shard.describe(GROUP)
    assert (before.assignor, before.state) == ("uniform", "stable")
    if how == "beat":
        scene.beat("m2", assignor="own")
    elif how == "rejoin":
        scene.join("m2", assignor="own")
    else:
        scene.go_away("m2")
        scene.join("m3", "t", instance_id="n2", assignor="own")
    after = scene.shard.describe(GROUP)
    assert (after.assignor, after.group_epoch) == ("own", before.group_epoch + epochs_of(how))
    scene.settle()
    assert (scene.of("m1"), scene.of(who)) == (set(), {0, 1, 2})


@pytest.mark.parametrize("how", ["beat", "rejoin", "restart"])
def test_a_vote_that_moves_nothing_moves_nobody(how: str) -> None:
    """The group's epoch grows, as the assignor is another one; its members' do not."""
    scene = Scene({"t": 4})
    scene.join("m2", "t", instance_id="n2")
    scene.join("m1", "t")
    scene.settle()
    before = scene.shard.describe(GROUP)
    share = scene.of("m2")
    if how == "beat":
        scene.beat("m2", assignor="range")
    elif how == "rejoin":
        scene.join("m2", assignor="range")
    else:
        scene.go_away("m2")
        scene.join("m3", "t", instance_id="n2", assignor="range")
    after = scene.shard.describe(GROUP)
    assert (after.assignor, after.state) == ("range", "stable")
    assert after.group_epoch == before.group_epoch + epochs_of(how)
    assert scene.epoch_of("m1") == before.group_epoch
    assert "m1" not in scene.woken
    assert scene.of("m3" if how == "restart" else "m2") == share


@pytest.mark.parametrize("how", ["rejoin", "restart"])
def test_who_comes_again_with_the_same_assignor_has_nothing_rebalanced(how: str) -> None:
    own = Own({"m1": ALL_THREE})
    scene = scene_with(own)
    scene.join("m1", "t", instance_id="i1", assignor="own")
    scene.settle()
    asked = len(own.asked)
    if how == "rejoin":
        scene.join("m1")
    else:
        scene.go_away("m1")
        scene.join("m2", "t", instance_id="i1", assignor="own")
    assert len(own.asked) == asked
    assert scene.shard.describe(GROUP).group_epoch == (1 if how == "rejoin" else 2)


@pytest.mark.parametrize(
    "result",
    [
        ValueError("a mistake"),
        None,
        {"m1": [("t", 0)], "stranger": []},
        {"m1": [("t", 0), ("t", 3)]},
        {"m1": ["nonsense"]},
    ],
    ids=repr,
)
def test_one_that_fails_does_not_break_the_group(result: Any) -> None:
    scene = scene_with(Own(result))
    scene.join("m1", assignor="own")
    assert scene.of("m1") == {0, 1, 2}
    assert scene.shard.describe(GROUP).assignor == "uniform"
    assert scene.shard.assignor_failures == 1
    (note,) = scene.notes
    assert note.startswith("assignor failed: group='g' assignor='own' fallback='uniform' error=")
    scene.beat("m1")
    assert scene.notes == ()


def test_one_that_the_next_coordinator_does_not_have_is_not_asked() -> None:
    scene = scene_with(Own({}))
    scene.join("m1", assignor="own")
    assert scene.of("m1") == set()
    scene.assignors = BUILT_IN
    scene.fail_over()
    assert scene.of("m1") == {0, 1, 2}
    assert scene.shard.describe(GROUP).assignor == "uniform"


def test_there_is_another_default_if_the_operator_says_so() -> None:
    scene = scene_with(Own({}), default_assignor="own")
    scene.join("m1")
    assert scene.shard.describe(GROUP).assignor == "own"


def test_a_default_that_there_is_not_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="default assignor 'fair' does not exist"):
        Scene(default_assignor="fair")


def test_what_nobody_is_to_have_any_more_stays_best_with_who_has_it() -> None:
    """m2 is to get m1's last one and leaves before it does: it is m1's again, not m3's."""
    scene = Scene({"t": 2})
    scene.join("m1")
    scene.join("m2")
    assert scene.of("m1") == {0}
    scene.leave("m2")
    view = scene.shard.describe(GROUP).members[0]
    assert view.target[0].partitions == (0, 1)


def test_what_is_on_its_way_to_a_member_counts_as_that_members() -> None:
    """m1 has yet to give 3, 4 and 5 up when m3 comes: two of them are to stay meant for m2."""
    scene = Scene({"t": 6})
    for name in ("m1", "m2", "m3"):
        scene.join(name)
    targets = [set(member.target[0].partitions) for member in scene.members]
    assert targets == [{0, 1}, {3, 4}, {2, 5}]


def test_an_assignor_is_told_all_that_it_may_know_of_a_member() -> None:
    own = Own({})
    scene = scene_with(own, default_assignor="own")
    scene.join("m1", "t", "gone", instance_id="i1", client_id="c1", rack="r1")
    topics = frozenset({"t", "gone"})
    assert own.asked == [Spec({"m1": MemberSpec(topics, frozenset(), "i1", "c1", "r1")}, {"t": 3})]
