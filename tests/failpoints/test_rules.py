"""What a rule may say, when it acts, and what is said of a wrong one."""

from __future__ import annotations

import errno

import pytest

from raftlog.errors import InvalidConfigError
from raftlog.failpoints.rules import Rule, parse

SITES = ("segment.write.before", "segment.write.after", "journal.sync.before")


def one(text: str) -> Rule:
    (rule,) = parse(text, sites=SITES)
    return rule


def strikes(rule: Rule, hits: int) -> list[int]:
    """The numbers of the hits, from 1, at which the rule acts."""
    return [number for number in range(1, hits + 1) if rule.strikes()]


def test_several_are_separated_by_semicolons_and_lines() -> None:
    text = "segment.write.before=crash; journal.sync.before=stall(2)\n\n# none\n*=note # all\n;"
    rules = parse(text, sites=SITES)
    assert [(rule.site, rule.action) for rule in rules] == [
        ("segment.write.before", "crash"),
        ("journal.sync.before", "stall"),
        ("*", "note"),
    ]


def test_a_rule_is_named_by_its_text_and_comment() -> None:
    assert one(" *=crash  # the 4th ").text == "*=crash # the 4th"
    assert one("*=crash").text == "*=crash"


@pytest.mark.parametrize(
    ("text", "acting"),
    [
        ("*=crash", [1]),
        ("*=crash@2", [3]),
        ("*=crash@1x2", [2, 3]),
        ("*=note", [1, 2, 3, 4, 5]),
        ("*=fail(EIO)@3", [4, 5]),
        ("*=stall(1)x1", [1]),
    ],
)
def test_it_acts_after_so_many_hits_and_so_often(text: str, acting: list[int]) -> None:
    assert strikes(one(text), 5) == acting


def test_chance_follows_from_the_text() -> None:
    first, again, other = (strikes(one(t), 1_000) for t in ("*=note%20", "*=note%20", "*=note%21"))
    assert first == again != other
    assert 150 < len(first) < 250


def test_times_counts_what_acts_and_not_what_chance_spares() -> None:
    assert len(strikes(one("*=fail(EIO)x2%10"), 1_000)) == 2


def test_a_pattern_covers_what_it_matches() -> None:
    rule = one("segment.*=crash")
    assert [site for site in SITES if rule.covers(site)] == [*SITES[:2]]


def test_errors_and_times_are_read() -> None:
    assert one("*=fail(ENOSPC)").error == errno.ENOSPC
    assert one("*=stall(1.5)").seconds() == 1.5
    drawn = one("*=stall(1..2)")
    times = [drawn.seconds() for _ in range(20)]
    assert all(1 <= seconds <= 2 for seconds in times)
    assert len(set(times)) > 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("segment.wrote.before=crash", r"Similar names: segment\.write\.before"),
        ("nothing=crash", r"no failpoint matches 'nothing'"),
        ("segment.write.before", r"Write SITE=ACTION"),
        ("*=explode", r"unknown action or wrong argument\. Write SITE=ACTION"),
        ("*=crash(1)", "unknown action or wrong argument"),
        ("*=stall", "unknown action or wrong argument"),
        ("*=stall()", r"Write stall\(SECONDS\)"),
        ("*=stall(nan)", r"stall\(MIN\.\.MAX\), with 0 to 3600 seconds"),
        ("*=stall(2..1)", "with 0 to 3600 seconds"),
        ("*=stall(3601)", "with 0 to 3600 seconds"),
        ("*=fail(EIOO)", "such as EIO"),
        ("*=fail()", "such as EIO, ENOSPC"),
        ("*=crashx0", "xTIMES must be at least 1"),
        ("*=crash@99999999999", "at most 1000000000"),
        ("*=crash%0", "more than 0 and at most 100"),
        ("*=crash%101", "more than 0 and at most 100"),
        ("*=crash x2", r"Write SITE=ACTION\[@SKIP\]\[xTIMES\]\[%CHANCE\]"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        parse(f"*=note;{text}", sites=SITES)
