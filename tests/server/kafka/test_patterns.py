"""Subscriptions by regular expression: what matches, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from raftlog import limits
from raftlog.kafka.codec import finish
from raftlog.server.kafka import consumer_protocol
from raftlog.server.kafka.consumer_protocol import matching
from raftlog.server.scheduling import ITEMS_PER_STEP


def found(pattern: str, names: Iterable[str]) -> list[str]:
    return sorted(finish(matching(pattern, names, lambda name: not name.startswith("secret"))))


@pytest.mark.parametrize("has_re2", [True, False])
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^t.*", ["t1", "t2"]),
        ("t[0-1]", ["t1"]),
        ("(?:a)?t1$|u", ["at1", "t1", "u"]),
        (r"\w+1", ["at1", "t1"]),
        (".*t.*1", ["at1", "t1"]),
        ("^(t|at)1.*$", ["at1", "t1"]),
        ("|".join(f"t{number}" for number in range(99)), ["t1", "t2"]),
        ("t.", ["t1", "t2"]),
        ("(t1|^u$)", ["t1", "u"]),
        ("1", []),
        (".*", ["at1", "t1", "t2", "u"]),
    ],
)
def test_whole_names_match_that_the_client_may_see(
    monkeypatch: pytest.MonkeyPatch, pattern: str, expected: list[str], *, has_re2: bool
) -> None:
    if not has_re2:
        monkeypatch.setattr(consumer_protocol, "re2", None)
    assert found(pattern, ["t1", "t2", "at1", "u", "secret"]) == expected


def test_other_requests_may_run_in_between() -> None:
    names = [f"t{number}" for number in range(2 * ITEMS_PER_STEP)]
    assert len(list(matching("t.*", names, lambda _name: True))) == 2


@pytest.mark.parametrize("pattern", ["(a", "(?=a)", r"\1", "a{1001}", "(x{100}){99}" * 99])
def test_what_re2_does_not_accept(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a valid regular expression: "):
        found(pattern, ["a"])


def test_the_length_is_limited() -> None:
    found("a" * limits.SUBSCRIPTION_PATTERN_CHARS_MAX, ["a"])
    with pytest.raises(ValueError, match="the maximum is 4096"):
        found("a" * (limits.SUBSCRIPTION_PATTERN_CHARS_MAX + 1), ["a"])


@pytest.mark.parametrize(
    "pattern",
    [
        "(a*)*",
        "(a|a)*b",
        ".*.*.*b",
        "a?" * 20,
        "(a|a)" * 20,
        "a{9}",
        r"(a)\1",
        "(?=a)",
        "[[:alpha:]]",
        r"\pN",
        "é",
    ],
)
def test_without_re2_some_expressions_are_refused(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """Python would need too long for them, or does not know them as RE2 does."""
    monkeypatch.setattr(consumer_protocol, "re2", None)
    with pytest.raises(ValueError, match=r"google-re2 is not installed \(pip install"):
        found(pattern, ["t"])


@pytest.mark.parametrize("pattern", ["(a", "a)", "[b-a]"])
def test_what_python_does_not_accept(monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    monkeypatch.setattr(consumer_protocol, "re2", None)
    with pytest.raises(ValueError, match="is not a valid regular expression: "):
        found(pattern, ["t"])
