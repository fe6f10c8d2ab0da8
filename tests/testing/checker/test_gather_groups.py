"""Commits, answers, members and what they were given, as columns; what does not fit is doubted."""

from __future__ import annotations

from raftlog.testing.checker.gather import Gatherer
from raftlog.testing.checker.gather_groups import NEVER, Share
from tests.testing.checker.small import P, Small, good


def gathered(small: Small) -> Gatherer:
    run = Gatherer()
    for entry in small.entries:
        run.add(entry)
    return run


def share_of(small: Small) -> Share:
    return gathered(small).groups.groups["g"].shares[P]


def test_commits_and_answers() -> None:
    small = good()
    small.commit(3)
    small.commit(4, type_="invoke")
    small.commit(5, type_="info")  # the one before was given up
    small.noted(3)
    share = share_of(small)
    member, offset, invoked, completed, outcome, _, last = (
        column.tolist() for column in share.commits.columns()
    )
    assert member == [0, 0, 0]
    assert offset == [3, 4, 5]
    assert outcome == [0, 2, 2]
    assert (completed[1], last[1]) == (NEVER, 0)
    assert invoked[0] < completed[0] < invoked[1]
    assert [column.tolist()[0] for column in share.fetched.columns()][1] == 3
    operations = gathered(small).groups.operations
    assert operations == {"commits ok": 1, "commits info": 1, "fetches ok": 1}


def test_who_owned_it_and_when() -> None:
    small = good()
    small.owns("m1", handling_s=0.5, commits="auto")
    small.member("paused")
    small.member("resumed")
    small.member("revoked")
    small.owns("m2")
    small.member("killed", "m2")
    small.owns("m3")
    run = gathered(small).groups
    owned = run.groups["g"].shares[P].owned
    assert [run.names[one.member] for one in owned] == ["m1", "m2", "m3"]
    assert [one.how for one in owned] == ["revoked", "killed", ""]
    assert owned[0].begin < owned[0].end < owned[1].begin < owned[1].end < owned[2].begin
    assert owned[2].end == NEVER
    first = run.members[owned[0].member]
    assert (first.is_silent, first.handling_ns, first.session_ns) == (True, 500_000_000, 10**9)
    assert [pause.end > pause.begin for pause in first.pauses] == [True]
    assert run.members[owned[1].member].ended == owned[1].end


def test_what_is_told_after_the_end_ended_before_it() -> None:
    """Its last words are heard when it is dead."""
    small = good()
    small.member("start")
    small.member("killed")
    small.member("assigned")
    small.member("end")
    (owned,) = share_of(small).owned
    run = gathered(small).groups
    assert owned.end == run.members[owned.member].ended


def test_what_was_given() -> None:
    small = good()
    small.owns()
    small.given((0, 3, 1, 1), (3, 2, 4, 1))
    small.given((5, 1, 6, 1), generation=2)
    run = gathered(small)
    share = run.groups.groups["g"].shares[P]
    offset, count, _, _, member, at, _ = (column.tolist() for column in share.given.columns())
    assert (offset, count) == ([0, 3, 5], [3, 2, 1])
    assert [run.groups.names[number] for number in member] == ["m1"] * 3
    assert at[0] == at[1] < at[2]
    assert run.sessions == ["m1#1", "m1#2"]


def test_what_does_not_fit_is_doubted() -> None:
    small = good()
    small.commit(3)
    del small.entries[-2]
    small.noted(3)
    del small.entries[-2]
    small.member("assigned", "nobody")
    troubles = gathered(small).troubles
    assert len(troubles) == 3
    assert "a commit that was not invoked" in troubles[0]
    assert "is a response without a request" in troubles[1]
    assert "nobody, which never started" in troubles[2]
