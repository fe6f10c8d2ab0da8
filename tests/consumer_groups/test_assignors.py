"""The assignors that there are, who chooses one, and what is made of what one says."""

from __future__ import annotations

from collections import deque
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
    spread_evenly,
    spread_within_subscriptions,
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


# -- uniform ---------------------------------------------------------------------------------------
#
# Even numbers, few moves: against what can be known of the best, for any subscriptions.


MEMBERS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True)


def parts(topic: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


@st.composite
def owned_by(
    draw: st.DrawFn, members: list[str], topics: Mapping[str, int]
) -> dict[str, set[TopicPartition]]:
    """Some of the partitions, each with one member; and a few that are no more."""
    owned: dict[str, set[TopicPartition]] = {name: set() for name in members}
    for topic, count in topics.items():
        for number in range(count + 1):
            holder = draw(st.sampled_from([None, *members]))
            if holder is not None:
                owned[holder].add(TopicPartition(topic, number))
    return owned


@st.composite
def alike(
    draw: st.DrawFn,
) -> tuple[list[str], dict[str, set[TopicPartition]], list[TopicPartition]]:
    members = sorted(draw(MEMBERS))
    topics = draw(st.dictionaries(st.sampled_from("xyz"), st.integers(1, 7), max_size=3))
    partitions = [TopicPartition(t, n) for t, count in topics.items() for n in range(count)]
    return members, draw(owned_by(members, topics)), partitions


@given(alike())
def test_members_alike_differ_by_one_at_most_and_no_assignment_as_even_moves_less(
    case: tuple[list[str], dict[str, set[TopicPartition]], list[TopicPartition]],
) -> None:
    members, owned, partitions = case
    spread = spread_evenly(members, owned, partitions)
    assert spread.keys() == set(members)
    assert sorted(p for mine in spread.values() for p in mine) == sorted(partitions)
    sizes = [len(mine) for mine in spread.values()]
    assert max(sizes) - min(sizes) <= 1
    # The best that can be kept: everybody keeps n, and as many as may keep one more.
    each, more = divmod(len(partitions), len(members))
    had = sorted((len(owned[name].intersection(partitions)) for name in members), reverse=True)
    best = sum(min(size, each + (place < more)) for place, size in enumerate(had))
    kept = sum(len(owned[name].intersection(mine)) for name, mine in spread.items())
    assert kept == best


@given(alike())
def test_what_is_even_stays(
    case: tuple[list[str], dict[str, set[TopicPartition]], list[TopicPartition]],
) -> None:
    members, owned, partitions = case
    once = {name: set(mine) for name, mine in spread_evenly(members, owned, partitions).items()}
    again = spread_evenly(members, once, partitions)
    assert {name: set(mine) for name, mine in again.items()} == once


def test_each_member_gets_something_of_each_topic() -> None:
    partitions = sorted(
        [*parts("x", 0, 1), *parts("y", 0, 1)], key=lambda part: (part.partition, part.topic)
    )
    spread = spread_evenly(["a", "b"], {"a": [], "b": []}, partitions)
    assert spread == {"a": [("x", 0), ("y", 0)], "b": [("x", 1), ("y", 1)]}


def test_nobody_gets_nothing() -> None:
    assert spread_evenly([], {}, parts("x", 0)) == {}
    assert spread_evenly(["a"], {"a": []}, []) == {"a": []}


@st.composite
def unlike(
    draw: st.DrawFn,
) -> tuple[list[str], dict[str, set[TopicPartition]], dict[str, set[str]], dict[str, int]]:
    members = sorted(draw(MEMBERS))
    topics = draw(st.dictionaries(st.sampled_from("wxyz"), st.integers(1, 6), min_size=1))
    subscriptions = {name: draw(st.sets(st.sampled_from(sorted(topics)))) for name in members}
    return members, draw(owned_by(members, topics)), subscriptions, topics


def has_path_down(
    spread: Mapping[str, list[TopicPartition]], wants: Mapping[str, set[str]]
) -> bool:
    """Whether passing partitions on, one each along a path, would make two members more even."""
    size = {name: len(mine) for name, mine in spread.items()}
    for start in spread:
        seen, queue = {start}, deque([start])
        while queue:
            giver = queue.popleft()
            for topic in {part.topic for part in spread[giver]}:
                for taker in (name for name in spread if topic in wants[name]):
                    if taker not in seen:
                        if size[taker] <= size[start] - 2:
                            return True
                        seen.add(taker)
                        queue.append(taker)
    return False


@given(unlike())
def test_members_with_other_subscriptions_are_as_even_as_those_allow(
    case: tuple[list[str], dict[str, set[TopicPartition]], dict[str, set[str]], dict[str, int]],
) -> None:
    members, owned, wants, topics = case
    spread = spread_within_subscriptions(members, owned, wants, topics)
    wanted = set[str]().union(*wants.values())
    given_out = [part for mine in spread.values() for part in mine]
    assert sorted(given_out) == sorted(
        TopicPartition(topic, number)
        for topic, count in topics.items()
        for number in range(count)
        if topic in wanted
    )
    assert all(part.topic in wants[name] for name, mine in spread.items() for part in mine)
    assert not has_path_down(spread, wants)


@given(unlike())
def test_what_is_as_even_as_it_can_be_stays(
    case: tuple[list[str], dict[str, set[TopicPartition]], dict[str, set[str]], dict[str, int]],
) -> None:
    members, owned, wants, topics = case
    spread = spread_within_subscriptions(members, owned, wants, topics)
    once = {name: set(mine) for name, mine in spread.items()}
    again = spread_within_subscriptions(members, once, wants, topics)
    assert {name: set(mine) for name, mine in again.items()} == once


def test_partitions_move_along_a_path_of_members() -> None:
    """a can have only x, c only y: b passes one of y on, and gets one of x."""
    spread = spread_within_subscriptions(
        ["a", "b", "c"],
        {"a": parts("x", 0, 1, 2), "b": parts("y", 0, 1), "c": []},
        {"a": {"x"}, "b": {"x", "y"}, "c": {"y"}},
        {"x": 3, "y": 2},
    )
    assert {name: len(mine) for name, mine in spread.items()} == {"a": 2, "b": 2, "c": 1}
    assert spread["a"] == parts("x", 0, 1)
