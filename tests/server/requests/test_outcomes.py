"""Outcomes of the parts of a request."""

from __future__ import annotations

import pytest

from raftlog.server.requests.outcomes import Outcomes


def test_they_are_complete_once_in_order() -> None:
    found: list[list[str]] = []
    outcomes: Outcomes[str] = Outcomes(3, found.append)
    outcomes.settle(2, "c")
    outcomes.settle(0, "a")
    assert (found, outcomes.missing) == ([], [1])
    outcomes.settle(1, "b")
    assert found == [["a", "b", "c"]]


def test_a_part_has_one_outcome() -> None:
    outcomes: Outcomes[str] = Outcomes(2, print)
    outcomes.settle(0, "a")
    with pytest.raises(AssertionError):
        outcomes.settle(0, "b")
