"""The table of nemeses says what is there."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

import pytest

from raftlog_jepsen.cluster import Needs
from raftlog_jepsen.nemesis.driver import GROUPS, HOMES, KINDS, Home, expand, make, needs_of


class Nothing:
    """As much of a cluster as it takes to make a nemesis."""

    hosts: ClassVar[dict[int, object]] = {}
    directory = Path("nowhere")


@pytest.mark.parametrize("home", HOMES, ids=lambda home: home.kinds[0])
def test_each_nemesis_has_the_kinds_that_the_table_gives_it(home: Home) -> None:
    made = home.maker(Nothing(), object())
    assert set(home.kinds) <= set(made.kinds)
    assert all(made.kinds[kind].endswith(".") for kind in home.kinds)


def test_needs_are_fields_of_what_a_cluster_can_be_made_with() -> None:
    fields = {field.name for field in dataclasses.fields(Needs)}
    assert needs_of(KINDS) <= fields


def test_names_and_groups_are_expanded_once_each() -> None:
    assert expand(["kill", "process"]) == ("kill", "storm", "pause")
    assert expand(["all"]) == tuple(KINDS)
    assert set(GROUPS["all"]) == {kind for home in HOMES for kind in home.kinds}


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match=r"'explode'.*kill.*network"):
        expand(["kill", "explode"])


def test_kinds_of_one_nemesis_share_it() -> None:
    made = make(["transfer", "topics"], Nothing(), object())
    assert made["transfer"] is made["topics"]
