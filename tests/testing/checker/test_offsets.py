"""What is told about committed offsets is the last that was acknowledged, or was tried since."""

from __future__ import annotations

import numpy as np
import pytest

from raftlog.testing.checker.gather_groups import GroupsGatherer, Share
from raftlog.testing.checker.groups import Commits, Fetched
from raftlog.testing.history.entries import Commit, Committed
from tests.testing.checker.small import Small, good


def committed(*steps: tuple[int, str]) -> Small:
    """Commits of offsets, each as it ended."""
    small = good()
    for offset, type_ in steps:
        small.commit(offset, type_=type_)  # type: ignore[arg-type]
    return small


@pytest.mark.parametrize(
    ("steps", "told", "kinds"),
    [
        ([], -1, {}),
        ([(3, "ok")], 3, {}),
        ([(3, "ok")], -1, {"GROUP-OFFSET-ZERO": 1}),
        ([(3, "ok")], 0, {"GROUP-OFFSET-ZERO": 1}),
        ([(0, "ok")], 0, {}),
        ([(0, "ok")], -1, {"GROUP-OFFSET-ZERO": 1}),
        ([(2, "ok"), (3, "ok")], 2, {"GROUP-OFFSET-LOST": 1}),
        ([(2, "ok"), (3, "info")], 2, {}),
        ([(2, "ok"), (3, "info")], 3, {}),
        ([(2, "ok"), (3, "invoke")], 3, {}),
        ([(2, "ok"), (3, "fail")], 3, {"GROUP-OFFSET-PHANTOM": 1}),
        ([(2, "ok")], 5, {"GROUP-OFFSET-PHANTOM": 1}),
        ([(2, "ok"), (7, "info")], 7, {"GROUP-OFFSET-AHEAD": 1}),
        ([(2, "info")], -1, {}),
        ([(2, "info"), (3, "ok")], 2, {}),  # it came into effect afterwards
        ([(3, "fail")], -1, {}),
    ],
)
def test_what_is_told(steps: list[tuple[int, str]], told: int, kinds: dict[str, int]) -> None:
    small = committed(*steps)
    small.told(told)
    small.finish()
    assert small.found() == kinds


def test_a_commit_that_comes_late_is_counted() -> None:
    small = committed((2, "info"), (3, "ok"))
    small.told(2)
    small.finish()
    assert small.judge().stats["late_commits_seen"] == 1


@pytest.mark.parametrize("protocol", ["", "classic"])
def test_a_late_commit_of_a_member_is_accepted_of_kafkas_clients_only(protocol: str) -> None:
    small = good()
    small.owns("m1", protocol=protocol)
    small.commit(2, type_="info")
    small.commit(3)
    small.told(2)
    small.finish()
    assert ("GROUP-OFFSET-LOST" in small.found()) == (not protocol)


def test_what_is_under_way_while_somebody_asks_may_be_told_or_not() -> None:
    for told in (2, 3):
        small = committed((2, "ok"))
        small.add(Committed(time=0, process="asker", type="invoke", group="g"))
        small.commit(3)
        done = Committed(time=0, process="asker", type="ok", group="g", offsets={"t:0": told})
        small.add(done)
        small.finish()
        assert small.found() == {}


def test_what_is_tried_after_it_was_told_is_no_excuse() -> None:
    small = committed((2, "ok"))
    small.told(3)
    small.commit(3)
    small.finish()
    assert small.found() == {"GROUP-OFFSET-PHANTOM": 1}


def test_beyond_the_budget_offsets_may_be_lost_and_not_made_up() -> None:
    small = committed((3, "ok"))
    small.fault(1, budget="beyond", expects="outage")
    small.told(2)
    small.told(9)
    small.finish()
    assert small.found() == {"GROUP-OFFSET-PHANTOM": 2}


def test_of_groups_that_do_not_say_what_they_commit_less_is_known() -> None:
    for told, kinds in ((3, {}), (4, {"GROUP-OFFSET-PHANTOM": 1})):
        small = good()
        small.owns(commits="auto")
        small.given((0, 3, 1, 1))
        small.told(told)
        small.given((3, 2, 4, 1), (5, 1, 6, 1))
        small.told(6)
        small.finish()
        assert small.found() == kinds


def test_columns() -> None:
    run = GroupsGatherer(print)
    for line, (offset, type_) in enumerate([(4, "ok"), (9, "info"), (7, "ok")]):
        for kind in ("invoke", type_):
            time = 10 * line + (kind != "invoke")
            entry = Commit(time=time, process="c", type="ok", group="g", offsets={"t:0": offset})
            entry.type = kind  # type: ignore[assignment]
            run.commit(entry, line)
    commits = Commits.of(run.group("g").share("t:0"))
    assert commits.known_by(np.array([0, 1, 2, 21, 22])).tolist() == [-1, -1, 4, 4, 7]
    tried = commits.attempted(np.array([4, 9, 9, 8]), np.array([1, 11, 10, 99]))
    assert tried.tolist() == [True, True, False, False]
    late = commits.attempted(np.array([4, 9]), np.array([99, 99]), late_only=True)
    assert late.tolist() == [False, True]
    assert Fetched.of(Share()).last == -1
