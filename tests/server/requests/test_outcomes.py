"""Outcomes of the parts of a request."""

from __future__ import annotations

import pytest

from raftlog.server.apis.outcomes import Outcomes


def test_they_are_complete_once_in_order() -> None:
    found: list[list[str]] = []
    outcomes: Outcomes[str] = Outcomes(3, found.append)
    outcomes.resolve(2, "c")
    outcomes.resolve(0, "a")
    assert (found, outcomes.missing) == ([], [1])
    outcomes.resolve(1, "b")
    assert found == [["a", "b", "c"]]


def test_a_part_has_one_outcome() -> None:
    outcomes: Outcomes[str] = Outcomes(2, print)
    outcomes.resolve(0, "a")
    with pytest.raises(AssertionError):
        outcomes.resolve(0, "b")


def test_a_part_can_have_the_outcome_none() -> None:
    found: list[list[str | None]] = []
    outcomes: Outcomes[str | None] = Outcomes(2, found.append)
    outcomes.resolve(1, "b")
    outcomes.resolve(0, None)
    assert found == [[None, "b"]]


def test_without_parts_it_is_complete_at_once() -> None:
    found: list[list[str]] = []
    Outcomes(0, found.append)
    assert found == [[]]
