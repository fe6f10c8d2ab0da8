"""Subscriptions by regular expression: what matches, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from raftlog import limits
from raftlog.kafka.codec import finish
from raftlog.server.kafka import patterns
from raftlog.server.kafka.patterns import matching
from raftlog.server.turns import ITEMS_PER_STEP


def found(pattern: str, names: Iterable[str]) -> list[str]:
    return sorted(finish(matching(pattern, names, lambda name: not name.startswith("secret"))))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^t.*", ["t1", "t2"]),
        ("t.", ["t1", "t2"]),
        ("(t1|^u$)", ["t1", "u"]),
        ("1", []),
        (".*", ["at1", "t1", "t2", "u"]),
    ],
)
def test_whole_names_match_that_the_client_may_see(pattern: str, expected: list[str]) -> None:
    assert found(pattern, ["t1", "t2", "at1", "u", "secret"]) == expected


def test_other_requests_may_run_in_between() -> None:
    names = [f"t{number}" for number in range(2 * ITEMS_PER_STEP)]
    assert len(list(matching("t.*", names, lambda _name: True))) == 2


@pytest.mark.parametrize("pattern", ["(a", "(?=a)", r"\1", "a{1001}", "(x{100}){99}" * 99])
def test_what_re2_does_not_accept(pattern: str) -> None:
    with pytest.raises(ValueError, match="not a regular expression of RE2"):
        found(pattern, ["a"])


def test_the_length_is_limited() -> None:
    found("a" * limits.SUBSCRIPTION_PATTERN_CHARS_MAX, ["a"])
    with pytest.raises(ValueError, match="the maximum is 4096"):
        found("a" * (limits.SUBSCRIPTION_PATTERN_CHARS_MAX + 1), ["a"])


def test_without_re2_the_client_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "re2", None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[regex\]'"):
        found("t", ["t"])
