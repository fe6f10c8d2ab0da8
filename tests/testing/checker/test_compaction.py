"""Of every key, what was acknowledged last is in every copy; or it is deleted, and nothing is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftlog.testing.checker.judge import NOT_COMPACTED
from raftlog.testing.history import entries
from raftlog.testing.history.entries import Seen
from tests.testing.checker.small import Small

KEYS = 4
PLAN = {
    "shape": {
        "topics": [{"name": "t", "config": [["cleanup.policy", "compact"]], "keys": KEYS}],
    }
}


def of_key(key: int, *, dead: bool) -> list[int]:
    """Values of one key, tombstones or others, by size."""
    return [
        value
        for value in range(1, 2_000)
        if entries.key_of(value, KEYS) == key and entries.is_tombstone(value) == dead
    ]


A, B, C = of_key(0, dead=False)[:3]
DEAD = of_key(0, dead=True)[0]
OTHER, ANOTHER = of_key(1, dead=False)[:2]


def written(*values: int, plan: dict[str, Any] | None = None) -> Small:
    """Each appended by itself, at 0, 1, 2..."""
    small = Small(PLAN if plan is None else plan)
    for value in values:
        small.append(value)
    return small


def at(*offsets: int) -> Callable[[list[Seen]], list[Seen]]:
    """What is left of the log."""
    return lambda log: [seen for seen in log if seen[0] in offsets]


@pytest.mark.parametrize(
    ("values", "left", "kinds"),
    [
        ((A, B, OTHER), (0, 1, 2), {}),  # nothing is compacted yet
        ((A, B, OTHER), (1, 2), {}),
        ((A, B, OTHER), (0, 2), {"COMPACT-LOST-KEY": 2}),
        ((A, OTHER), (1,), {"COMPACT-LOST-KEY": 2}),
        ((A, DEAD, OTHER), (1, 2), {}),
        ((A, DEAD, OTHER), (2,), {}),
        ((A, DEAD, OTHER), (0, 2), {"COMPACT-RESURRECTED": 2}),
        ((A, DEAD, B, OTHER), (2, 3), {}),
        ((A, DEAD, B, OTHER), (3,), {"COMPACT-LOST-KEY": 2}),
        ((A, DEAD, B, OTHER), (0, 3), {"COMPACT-LOST-KEY": 2}),
        ((A, B, C, OTHER, ANOTHER), (2, 4), {}),
        ((A, B, C, OTHER, ANOTHER), (1, 4), {"COMPACT-LOST-KEY": 2}),
    ],
)
def test_what_may_be_gone(
    values: tuple[int, ...], left: tuple[int, ...], kinds: dict[str, int]
) -> None:
    """In each of two readers; the files of replicas have it all."""
    small = written(*values)
    whole = small.log
    files = {"records": whole}
    small.finish(log=at(*left)(whole), end=len(values), dumps={1: files, 2: files})
    assert small.found() == kinds


def test_every_copy_counts() -> None:
    small = written(A, B, OTHER)
    without = at(0, 2)(small.log)
    small.finish(dumps={2: {"records": without}})
    assert small.found() == {"COMPACT-LOST-KEY": 1}
    (anomaly,) = small.judge().anomalies
    assert "broker 2: key 0" in anomaly.message
    assert anomaly.evidence["offsets"] == [1, 0]


def test_a_replica_that_need_not_be_whole_may_lack_it() -> None:
    small = written(A, B, OTHER)
    small.finish(dumps={2: {"records": at(0, 2)(small.log), "should_be_whole": False}})
    assert small.found() == {}


def test_a_tombstone_of_which_nobody_knows_may_have_taken_it() -> None:
    small = written(A)
    small.invoke(DEAD, process="q")
    small.complete(DEAD, type_="info", process="q")
    small.land(DEAD)
    small.append(OTHER)
    small.finish(log=at(2)(small.log))
    assert small.found() == {}


def test_a_later_record_of_which_nobody_knew_is_as_good() -> None:
    small = written(A)
    small.invoke(B, process="q")
    small.land(B)
    small.append(OTHER)
    small.finish(log=at(1, 2)(small.log))
    assert small.found() == {}


def test_the_end_stays() -> None:
    small = written(A, OTHER)
    small.finish(log=at(0)(small.log), end=1)
    assert "LOST-tail" in small.found()


def test_a_record_that_moved() -> None:
    small = written(A, B, OTHER)
    log = [(0, 1, B, 1), (2, 1, OTHER, 1)]
    small.finish(log=log, end=3)
    assert set(small.found()) == {"COMPACT-LOST-KEY", "COMPACT-MOVED", "INCONSISTENT-OFFSET"}


def test_what_a_consumer_was_given_may_be_gone_if_it_is_superseded() -> None:
    small = written(A, B, OTHER)
    small.poll(*small.log)
    small.finish(log=at(1, 2)(small.log))
    assert small.found() == {}
    small = written(A, OTHER)
    small.poll(*small.log)
    small.finish(log=at(1)(small.log), end=2)
    assert small.found() == {"COMPACT-LOST-KEY": 4, "OBSERVED-THEN-LOST": 1}


@pytest.mark.parametrize(("given", "kinds"), [((2, 3), {}), ((0, 3), {"POLL-SKIP": 1})])
def test_a_consumer_may_only_leave_out_what_is_gone(
    given: tuple[int, ...], kinds: dict[str, int]
) -> None:
    small = written(A, B, C, OTHER)
    first, *rest = at(*given)(small.log)
    small.poll(first, at=0)
    small.poll(*rest, at=first[0] + 1)
    small.finish(log=at(2, 3)(small.log))
    assert small.found() == kinds


def test_without_keys_in_the_plan_nothing_is_said_of_keys() -> None:
    plan = {"shape": {"topics": [{"name": "t", "config": [["cleanup.policy", "compact"]]}]}}
    small = written(A, OTHER, plan=plan)
    small.finish(log=at(1)(small.log), end=2)
    assert small.found() == {}
    assert small.judge().not_applicable["COMPACT-LOST-KEY"] == NOT_COMPACTED


def test_a_topic_that_is_not_compacted_has_no_holes() -> None:
    small = written(A, B, plan={})
    small.finish(log=at(1)(small.log), end=2)
    assert set(small.found()) == {"GAP", "LOST-mid"}


def test_a_poll_may_skip_what_is_superseded_though_another_replica_has_it_still() -> None:
    small = written(A, B, OTHER)
    whole = small.log
    small.poll(*at(1, 2)(whole), at=0)
    small.finish()
    assert small.found() == {}


@pytest.mark.parametrize(("given", "kind"), [((0, 2), "INT-POLL-SKIP"), ((2,), "POLL-SKIP")])
def test_a_poll_may_not_skip_the_last_record_of_a_key(given: tuple[int, ...], kind: str) -> None:
    small = written(A, B, OTHER)
    small.poll(*at(*given)(small.log), at=0)
    small.finish()
    assert small.found() == {kind: 1}
