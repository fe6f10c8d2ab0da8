"""Assignors by name: the broker's own, an operator's, and names that come to nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from raftlog.consumer_groups import BUILT_IN, Spec
from raftlog.errors import InvalidConfigError
from raftlog.server.groups.coordinator import load_assignors
from raftlog.types import TopicPartition
from tests.server.harness import running

HERE = __name__


class FirstTakesAll:
    """An operator's."""

    name = "first"

    def assign(self, spec: Spec) -> Mapping[str, Collection[TopicPartition]]:
        first = min(spec.members)
        return {first: [TopicPartition(t, p) for t, n in spec.partitions.items() for p in range(n)]}


class Namesake(FirstTakesAll):
    name = "uniform"


class Nameless(FirstTakesAll):
    name = ""


class Broken:
    def __init__(self) -> None:
        raise KeyError("a bug")


instance = FirstTakesAll()
nothing = 5


def test_the_first_is_the_default() -> None:
    offered, default = load_assignors(("range", "uniform"))
    assert default == "range"
    assert offered == BUILT_IN


def test_uniform_is_always_there() -> None:
    """It stands in for one that fails."""
    offered, default = load_assignors(("range",))
    assert (set(offered), default) == ({"range", "uniform"}, "range")
    offered, default = load_assignors(("uniform",))
    assert (set(offered), default) == ({"uniform"}, "uniform")


@pytest.mark.parametrize("attribute", ["FirstTakesAll", "instance"])
def test_an_operators_own(attribute: str) -> None:
    offered, default = load_assignors((f"{HERE}:{attribute}", "range"))
    assert default == "first"
    assert isinstance(offered["first"], FirstTakesAll)
    assert set(offered) == {"first", "range", "uniform"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sticky", "not one of range, uniform, and not module:attribute"),
        ("no.such.module:a", "ModuleNotFoundError"),
        (f"{HERE}:gone", "AttributeError"),
        (f"{HERE}:Broken", "KeyError: 'a bug'"),
        (f"{HERE}:nothing", "not a raftlog.consumer_groups.Assignor"),
        (f"{HERE}:Namesake", "two assignors have the name 'uniform'"),
        (f"{HERE}:Nameless", "invalid assignor name"),
        (":a", "not module:attribute"),
        ("a:", "not module:attribute"),
    ],
)
def test_what_cannot_be_loaded_says_why(name: str, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"group\.assignors") as caught:
        load_assignors(("uniform", name))
    assert words in str(caught.value)


def test_a_broker_that_has_not_all_of_them_does_not_start(tmp_path: Path) -> None:
    """And leaves its directory as it was."""
    with (
        pytest.raises(InvalidConfigError, match="sticky"),
        running(tmp_path / "data", group_assignors="uniform,sticky"),
    ):
        pass
    with running(tmp_path / "data", group_assignors=f"{HERE}:instance"):
        pass
