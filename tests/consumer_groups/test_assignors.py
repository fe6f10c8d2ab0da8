"""The assignors that there are, who chooses one, and what is made of what one says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.consumer_groups.assignors import (
    BUILT_IN,
    Assignor,
    MemberSpec,
    RangeAssignor,
    Spec,
    UniformAssignor,
    checked,
    elected,
    named,
)
from raftlog.types import TopicPartition


def spec(partitions: Mapping[str, int], **topics: str) -> Spec:
    """Members and their topics, one letter each."""
    return Spec({name: MemberSpec(frozenset(of)) for name, of in topics.items()}, partitions)


def numbers(assigned: Mapping[str, Collection[TopicPartition]], name: str, topic: str) -> list[int]:
    return sorted(part.partition for part in assigned[name] if part.topic == topic)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    partitions = draw(st.dictionaries(st.sampled_from("xyz"), st.integers(1, 6), max_size=3))
    members = draw(st.sets(st.sampled_from("abcde"), min_size=1))
    return Spec(
        {
            name: MemberSpec(
                topics=draw(st.frozensets(st.sampled_from("xyzw"))),
                owned=frozenset(
                    draw(
                        st.sets(
                            st.builds(TopicPartition, st.sampled_from("xyzw"), st.integers(0, 7)),
                            max_size=5,
                        )
                    )
                ),
            )
            for name in members
        },
        partitions,
    )


@pytest.mark.parametrize("assignor", BUILT_IN.values(), ids=BUILT_IN.keys())
@given(case=specs())
def test_everything_that_somebody_wants_goes_to_one_who_wants_it(
    assignor: Assignor, case: Spec
) -> None:
    """Whatever members claim to own: two may claim the same."""
    assigned = checked(assignor.assign(case), case)
    wanted = set[str]().union(*(member.topics for member in case.members.values()))
    assert sorted(part for mine in assigned.values() for part in mine) == sorted(
        TopicPartition(topic, number)
        for topic, count in case.partitions.items()
        for number in range(count)
        if topic in wanted
    )


def test_range_cuts_each_topic_into_runs() -> None:
    assigned = RangeAssignor().assign(spec({"x": 5}, a="x", b="x", c="x"))
    assert [numbers(assigned, name, "x") for name in "abc"] == [[0, 1], [2, 3], [4]]


def test_range_cuts_topics_with_as_many_partitions_at_the_same_places() -> None:
    assigned = RangeAssignor().assign(spec({"x": 5, "y": 5, "z": 3}, a="xyz", b="xyz", c="yx"))
    for name in "abc":
        assert numbers(assigned, name, "x") == numbers(assigned, name, "y")
    assert [numbers(assigned, name, "z") for name in "abc"] == [[0, 1], [2], []]


def test_range_gives_some_nothing_if_there_are_too_few() -> None:
    assigned = RangeAssignor().assign(spec({"x": 1}, a="x", b="x"))
    assert (numbers(assigned, "a", "x"), numbers(assigned, "b", "x")) == ([0], [])


@pytest.mark.parametrize("assignor", BUILT_IN.values(), ids=BUILT_IN.keys())
def test_an_instance_that_starts_again_has_its_old_place(assignor: Assignor) -> None:
    def assign(name: str) -> list[TopicPartition]:
        wants = frozenset({"x"})
        members = {
            name: MemberSpec(wants, instance_id="i2"),
            "m": MemberSpec(wants, instance_id="i1"),
        }
        return sorted(assignor.assign(Spec(members, {"x": 4}))[name])

    assert assign("a") == assign("z")


def test_uniform_takes_topics_that_do_not_exist_for_no_difference() -> None:
    assigned = UniformAssignor().assign(spec({"x": 4}, a="x", b="xw"))
    assert (numbers(assigned, "a", "x"), numbers(assigned, "b", "x")) == ([0, 1], [2, 3])


# -- choosing one ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("votes", "winner"),
    [
        ([], "uniform"),
        ([None, None], "uniform"),
        (["range", None, None], "range"),
        (["range", "range", "own"], "range"),
        (["range", "own"], "uniform"),
    ],
)
def test_the_assignor_that_most_members_name(votes: list[str | None], winner: str) -> None:
    assert elected(votes, "uniform") == winner


class Own:
    def __init__(self, name: str = "own") -> None:
        self.name = name

    def assign(self, spec: Spec) -> Mapping[str, Collection[TopicPartition]]:
        return {}


def test_assignors_of_ones_own_stand_beside_those_that_there_are() -> None:
    own = Own()
    assert named([own]) == {**BUILT_IN, "own": own}


@pytest.mark.parametrize("name", ["", "x" * (limits.ASSIGNOR_CHARS_MAX + 1)])
def test_the_name_of_an_assignor_has_a_sane_length(name: str) -> None:
    with pytest.raises(ValueError, match="Use 1 to 64 characters"):
        named([Own(name)])


@pytest.mark.parametrize("own", [[Own("range")], [Own(), Own()]])
def test_a_name_stands_for_one_assignor(own: list[Own]) -> None:
    with pytest.raises(ValueError, match="two assignors have the name"):
        named(own)


# -- nonsense ----------------------------------------------------------------------------------

X0 = TopicPartition("x", 0)


@pytest.mark.parametrize(
    ("assigned", "says"),
    [
        ({"z": []}, "'z', which is not a member"),
        ({"a": [X0], "b": [X0]}, "x:0 is assigned to both 'a' and 'b'"),
        ({"a": [TopicPartition("x", 2)]}, "x:2 is assigned to 'a': the member does not"),
        ({"a": [TopicPartition("x", -1)]}, "x:-1"),
        ({"a": [TopicPartition("w", 0)]}, "w:0"),
        ({"c": [X0]}, "x:0 is assigned to 'c': the member does not"),
    ],
)
def test_nonsense_is_found_out(
    assigned: Mapping[str, Collection[TopicPartition]], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        checked(assigned, spec({"x": 2, "y": 1}, a="x", b="x", c="y"))


def test_members_and_partitions_may_be_left_out() -> None:
    found = checked({"a": [("x", 1)]}, spec({"x": 2}, a="x", b="x"))  # type: ignore[list-item]
    assert found == {"a": frozenset({TopicPartition("x", 1)}), "b": frozenset()}


def test_a_name_may_have_as_many_characters_as_the_limit_says() -> None:
    for name in ("x", "x" * limits.ASSIGNOR_CHARS_MAX):
        assert name in named([Own(name)])


def test_uniform_gives_each_member_something_of_each_topic() -> None:
    assigned = UniformAssignor().assign(spec({"x": 2, "y": 2}, a="xy", b="xy"))
    for name, number in (("a", 0), ("b", 1)):
        assert (numbers(assigned, name, "x"), numbers(assigned, name, "y")) == ([number], [number])


@pytest.mark.parametrize("partitions", [[("x", True), ("x", False)], iter([("x", 0), ("x", 1)])])
def test_what_stands_for_a_number_becomes_one(partitions: Any) -> None:
    """It is written to the log, where only a plain number can be read again."""
    (found,) = checked({"a": partitions}, spec({"x": 2}, a="x")).values()
    assert sorted(found) == [("x", 0), ("x", 1)]
    assert all(type(partition.partition) is int for partition in found)


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(TypeError):
        checked({"a": [("x", 0.5)]}, spec({"x": 2}, a="x"))  # type: ignore[list-item]


def test_members_with_an_instance_id_come_first() -> None:
    members = {
        "a": MemberSpec(frozenset("x")),
        "b": MemberSpec(frozenset("x"), instance_id="2"),
        "c": MemberSpec(frozenset("x"), instance_id="1"),
    }
    assert Spec(members, {"x": 3}).subscribers("x") == ["c", "b", "a"]
