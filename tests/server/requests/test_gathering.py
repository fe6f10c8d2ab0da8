"""Several results for one response."""

from __future__ import annotations

import pytest

from raftlog.server.requests.gathering import Gathering


def test_results_are_sent_in_order_when_the_last_one_has_come() -> None:
    sent: list[list[str | None]] = []
    gathering: Gathering[str | None] = Gathering(3, sent.append)
    gathering.put(2, "c")
    gathering.put(0, None)
    assert sent == []
    gathering.put(1, "b")
    assert sent == [[None, "b", "c"]]


def test_without_any_the_response_is_sent_at_once() -> None:
    sent: list[list[str]] = []
    Gathering(0, sent.append)
    assert sent == [[]]


def test_each_has_one_outcome() -> None:
    gathering: Gathering[str] = Gathering(2, lambda _: None)
    gathering.put(0, "a")
    with pytest.raises(AssertionError):
        gathering.put(0, "b")
