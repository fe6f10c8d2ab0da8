"""Who is asked for the targets of a group, and what happens if that one fails."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from raftlog.groups import BUILT_IN, MemberSpec, Spec
from raftlog.types import TopicPartition
from tests.groups.scene import GROUP, Scene


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
    assert note.startswith("assignor 'own' failed for group 'g', which is balanced by 'uniform'")
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
    with pytest.raises(ValueError, match="no assignor has the name 'fair'"):
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
