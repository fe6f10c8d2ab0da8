"""Even numbers, few moves: against what can be known of the best, for any subscriptions."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from raftlog.consumer_groups.assignors import spread_evenly, spread_within_subscriptions
from raftlog.types import TopicPartition

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
