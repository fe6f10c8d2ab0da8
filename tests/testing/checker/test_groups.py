"""Consumer groups in a history: gathered as columns, and judged."""

from __future__ import annotations

import numpy as np
import pytest

from raftlog.testing.checker.gather import FAIL, INFO, OK, Gatherer
from raftlog.testing.checker.gather_groups import NEVER, GroupsGatherer, Share
from raftlog.testing.checker.groups import Commits, Fetched
from raftlog.testing.history import Append, Commit, Committed, Ends, Fault, Poll, Start
from tests.testing.checker.small import SECOND, P, Small, good

# -- gathering -------------------------------------------------------------------------------------

# Commits, answers, members and what they were given, as columns; what does not fit is doubted.


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


# -- judging ---------------------------------------------------------------------------------------

# Every record is given to somebody, a partition has one owner, and nothing goes back.


ALL = ((0, 3, 1, 1), (3, 2, 4, 1), (5, 1, 6, 1))


def ended(small: Small, *, drains: bool = True, noted: int = 6) -> dict[str, int]:
    """What is found when this is all: members catch up, and somebody asks what is committed."""
    if drains:
        small.phase("drain")
    small.noted(noted)
    small.finish()
    return small.found()


# -- at least once ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "committed", "kinds"),
    [
        (ALL, 6, {}),
        ((*ALL, *ALL), 6, {}),  # again is no harm
        (ALL, 3, {}),
        ((ALL[0], ALL[2]), 6, {"GROUP-SKIPPED": 1}),
        ((ALL[0], ALL[2]), 4, {"GROUP-SKIPPED": 1, "GROUP-UNDELIVERED": 1}),
        ((ALL[0], ALL[2]), 3, {"GROUP-UNDELIVERED": 1}),
        (ALL[:2], 5, {"GROUP-STUCK": 1}),
        (ALL[:2], 6, {"GROUP-SKIPPED": 1}),
        ((), -1, {"GROUP-STUCK": 1}),
    ],
)
def test_every_record_is_given_to_somebody(
    given: tuple[tuple[int, int, int, int], ...], committed: int, kinds: dict[str, int]
) -> None:
    small = good()
    small.owns()
    for generation, record in enumerate(given):
        small.given(record, generation=generation)
    if committed >= 0:
        small.commit(committed)
    assert ended(small, noted=committed) == kinds


def test_it_does_not_matter_who_was_given_it() -> None:
    small = good()
    small.owns("m1")
    small.given(ALL[0])
    small.commit(3)
    small.member("killed")
    small.owns("m2")
    small.given(*ALL[1:], name="m2")
    small.commit(6, process="m2")
    assert ended(small) == {}


def test_without_time_to_catch_up_only_what_is_committed_has_to_be_given() -> None:
    small = good()
    small.owns()
    small.given(ALL[0])
    small.commit(3)
    assert ended(small, drains=False, noted=3) == {}


def test_topics_that_a_group_does_not_read_do_not_count() -> None:
    small = good()
    small.member("start", topics=["u"])
    assert ended(small, noted=-1) == {}


def test_a_drain_that_failed() -> None:
    small = good()
    small.owns()
    small.given(*ALL)
    small.phase("drain", "fail")
    assert ended(small, noted=-1) == {"GROUP-STUCK": 1}


# -- one owner -------------------------------------------------------------------------------------


def handed_over(*, pause_s: float = 3.0) -> Small:
    """m1 is stopped, m2 gets the partition meanwhile, and m1 does not know when it goes on."""
    small = good()
    small.owns("m1")
    small.given(ALL[0])
    small.commit(3)
    small.member("paused")
    small.pass_s(pause_s)
    small.owns("m2")
    small.given(ALL[1], name="m2")
    small.commit(5, process="m2")
    small.member("resumed")
    return small


def finished(small: Small) -> dict[str, int]:
    small.member("lost")
    small.given(ALL[2], name="m2")
    small.commit(6, process="m2")
    return ended(small)


def test_a_commit_that_is_refused_is_no_harm() -> None:
    small = handed_over()
    small.commit(3, type_="info")
    assert finished(small) == {}


def test_a_commit_of_one_who_has_lost_it() -> None:
    small = handed_over()
    small.commit(3)
    assert finished(small) == {"GROUP-COMMIT-BACKWARD": 1, "GROUP-TWO-OWNERS": 1}


def test_commits_of_two_owners_that_both_go_on() -> None:
    small = handed_over()
    small.commit(6)
    small.member("lost")
    small.given(ALL[2], name="m2")
    small.commit(6, process="m2")
    assert ended(small) == {"GROUP-TWO-OWNERS": 1}


def test_whoever_is_assigned_it_late_may_be_the_zombie() -> None:
    """m2 was told that it has it when it had lost it again; what counts is what is accepted."""
    small = good()
    small.owns("m1")
    small.given(*ALL)
    small.owns("m2")
    small.commit(6, process="m1")
    small.commit(3, process="m2", type_="info")
    small.member("lost", "m2")
    assert ended(small) == {}


@pytest.mark.parametrize(
    ("seconds", "kinds"), [(6.5, {"GROUP-TWO-OWNERS": 1}), (5.5, {})], ids=["long", "short"]
)
def test_two_who_are_awake_notice_it(seconds: float, kinds: dict[str, int]) -> None:
    small = good()
    small.owns("m1")
    small.given(*ALL)
    small.owns("m2")
    small.pass_s(seconds)
    small.member("lost")
    assert ended(small, noted=-1) == kinds


def asked_late(*before: str, fault: str = "") -> dict[str, int]:
    """m1 is asked for it after m2 got it; ``before``: what happened to m1, while ``fault``."""
    small = good()
    small.owns("m1")
    small.given(*ALL)
    if fault:
        small.fault(1, kind=fault)
    for what in before:
        small.member(what)
    small.owns("m2")
    small.commit(6)
    small.member("revoked")
    if fault:
        small.fault(1, "end")
    return ended(small)


def test_nobody_gets_it_before_its_owner_was_asked() -> None:
    assert asked_late() == {"GROUP-TWO-OWNERS": 1}
    assert asked_late(fault="member-churn") == {"GROUP-TWO-OWNERS": 1}


@pytest.mark.parametrize("before", [("paused", "resumed"), ("cut", "mended"), ("close",)])
def test_who_was_held_up_may_be_asked_late(before: tuple[str, ...]) -> None:
    assert asked_late(*before) == {}


def test_where_brokers_fail_the_question_may_come_late() -> None:
    assert asked_late(fault="pause") == {}


def test_one_who_is_stopped_has_no_time_to_notice() -> None:
    assert finished(handed_over(pause_s=100.0)) == {}


def test_who_takes_long_to_deal_with_records_may_take_long_to_notice() -> None:
    small = good()
    small.owns("m1", handling_s=10.0)
    small.given(*ALL)
    small.owns("m2")
    small.pass_s(14.0)
    small.member("lost")
    assert ended(small, noted=-1) == {}


@pytest.mark.parametrize("how", ["revoked", "killed", "end"])
def test_one_after_the_other(how: str) -> None:
    small = good()
    small.owns("m1")
    small.given(*ALL)
    small.commit(6)
    small.member(how)
    small.owns("m2")
    small.pass_s(60)
    small.commit(6, process="m2")
    assert ended(small) == {}


# -- no way back -----------------------------------------------------------------------------------


def test_a_new_owner_that_begins_below_what_was_committed() -> None:
    small = good()
    small.owns("m1")
    small.given(*ALL)
    small.commit(6)
    small.member("revoked")
    small.owns("m2")
    small.given(*ALL[1:], name="m2")
    assert ended(small) == {"GROUP-OFFSET-LOST": 1}


def test_a_commit_that_came_late_may_be_where_the_next_one_begins() -> None:
    small = good()
    small.owns("m1", protocol="classic")
    small.given(*ALL)
    small.commit(3, type_="info")
    small.commit(6)
    small.member("revoked")
    small.owns("m2", protocol="classic")
    small.given(*ALL[1:], name="m2")
    small.commit(5, process="m2")
    assert ended(small, noted=5) == {"GROUP-OFFSET-LOST": 1}, "6 was acknowledged, and 5 told"
    assert "received 5" in small.judge().anomalies[0].message


def test_an_owner_that_goes_back_itself() -> None:
    small = good()
    small.owns("m1")
    small.given(*ALL)
    small.commit(6)
    small.commit(5)
    assert ended(small) == {"GROUP-COMMIT-BACKWARD": 1}


# -- offsets ---------------------------------------------------------------------------------------
#
# What is told about committed offsets is the last that was acknowledged, or was tried since.


def committed(*steps: tuple[int, str]) -> Small:
    """Commits of offsets, each as it ended."""
    small = good()
    for offset, type_ in steps:
        small.commit(offset, type_=type_)  # type: ignore[arg-type]
    return small


@pytest.mark.parametrize(
    ("steps", "noted", "kinds"),
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
def test_what_is_told(steps: list[tuple[int, str]], noted: int, kinds: dict[str, int]) -> None:
    small = committed(*steps)
    small.noted(noted)
    small.finish()
    assert small.found() == kinds


def test_a_commit_that_comes_late_is_counted() -> None:
    small = committed((2, "info"), (3, "ok"))
    small.noted(2)
    small.finish()
    assert small.judge().stats["late_commits_seen"] == 1


def test_an_offset_of_unknown_outcome_that_was_told_stays() -> None:
    for later, kind in ((2, "GROUP-OFFSET-LOST"), (-1, "GROUP-OFFSET-ZERO")):
        small = committed((2, "ok"), (3, "info"))
        small.noted(3, who="another")
        small.noted(later)
        small.finish()
        assert small.found() == {kind: 1}
    small = committed((2, "info"), (3, "info"))
    small.noted(3)
    small.noted(2)
    small.finish()
    assert small.found() == {}, "the first commit came late"


@pytest.mark.parametrize("protocol", ["", "classic"])
def test_a_late_commit_of_a_member_is_accepted_of_kafkas_clients_only(protocol: str) -> None:
    small = good()
    small.owns("m1", protocol=protocol)
    small.commit(2, type_="info")
    small.commit(3)
    small.noted(2)
    small.finish()
    assert ("GROUP-OFFSET-LOST" in small.found()) == (not protocol)


def test_what_is_under_way_while_somebody_asks_may_be_told_or_not() -> None:
    for noted in (2, 3):
        small = committed((2, "ok"))
        small.add(Committed(time=0, process="asker", type="invoke", group="g"))
        small.commit(3)
        done = Committed(time=0, process="asker", type="ok", group="g", offsets={"t:0": noted})
        small.add(done)
        small.finish()
        assert small.found() == {}


def test_what_is_tried_after_it_was_told_is_no_excuse() -> None:
    small = committed((2, "ok"))
    small.noted(3)
    small.commit(3)
    small.finish()
    assert small.found() == {"GROUP-OFFSET-PHANTOM": 1}


def test_beyond_the_budget_offsets_may_be_lost_and_not_made_up() -> None:
    small = committed((3, "ok"))
    small.fault(1, budget="beyond", expects="outage")
    small.noted(2)
    small.noted(9)
    small.finish()
    assert small.found() == {"GROUP-OFFSET-PHANTOM": 2}


def test_of_groups_that_do_not_say_what_they_commit_less_is_known() -> None:
    for noted, kinds in ((3, {}), (4, {"GROUP-OFFSET-PHANTOM": 1})):
        small = good()
        small.owns(commits="auto")
        small.given((0, 3, 1, 1))
        small.noted(noted)
        small.given((3, 2, 4, 1), (5, 1, 6, 1))
        small.noted(6)
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


# -- gather ----------------------------------------------------------------------------------------
#
# One pass puts everything into columns, and doubts what does not fit the format.


def test_appends() -> None:
    small = good()
    small.invoke(7, 2, process="q", acks=1, idempotent=False)
    small.invoke(9, partition="u:1")
    small.complete(9, partition="u:1", type_="fail")
    run = gathered(small)
    assert not run.troubles
    assert [partition.topic for partition in run.partitions.values()] == ["t", "u"]
    process, first, count, acks, idempotent, invoked, completed, outcome, line, last = (
        column.tolist() for column in run.partitions[P].appends.columns()
    )
    assert [run.processes[number] for number in process] == ["p", "p", "p", "q"]
    assert first == [1, 4, 6, 7]
    assert count == [3, 2, 1, 2]
    assert (acks[-2:], idempotent[-2:]) == ([-1, 1], [1, 0])
    assert completed[-1] == NEVER
    assert invoked[0] < completed[0] < invoked[1]
    assert outcome == [OK, OK, OK, INFO]
    assert (line[0], last[0], last[-1]) == (3, 4, 0)
    rows = zip(*(c.tolist() for c in run.partitions[P].acked.columns()), strict=True)
    assert list(rows) == [(0, 1, 3, 0), (1, 4, 2, 3), (2, 6, 1, 5)]
    assert run.partitions["u:1"].appends.columns()[7].tolist() == [FAIL]


def test_polls() -> None:
    small = good()
    small.poll((0, 3, 1, 1), (3, 1, 4, 1), at=0)
    small.poll(at=4, type_="info")
    small.poll(at=4)
    run = gathered(small)
    assert run.sessions == ["c", "c"]  # after one of which nobody knows, another begins
    assert run.polls.columns()[0].tolist() == [0, 0, 1]
    partition = run.partitions[P]
    assert next(column.tolist() for column in partition.seen.columns()) == [0, 3]
    assert partition.seen_by.columns()[0].tolist() == [0, 0]
    assert [position for position, _ in partition.positions.values()] == [0, 4]


def test_polls_in_vain() -> None:
    small = good()
    small.poll(at=5)
    small.poll(at=6)
    (idle,) = gathered(small).partitions[P].idle
    assert (idle.poll, idle.position) == (0, 5)


def test_faults_excuse_polls_in_vain() -> None:
    small = good()
    small.fault(1)
    small.poll(at=5)
    small.fault(1, "end")
    small.pass_s(9)
    small.poll(at=5)
    assert not gathered(small).partitions[P].idle
    small.pass_s(2)
    small.poll(at=5)
    assert len(gathered(small).partitions[P].idle) == 1


def test_faults() -> None:
    small = good()
    small.fault(1, targets=[2], expects="outage")
    small.fault(2, injected=False, effect={"why": "no"}, budget="beyond")
    small.fault(1, "end")
    small.entries.append(
        Fault(time=small.now, process="n", type="invoke", id=3, kind="storm", phase="begin")
    )
    run = gathered(small)
    one, two, three = run.faults.values()
    assert (one.injected, one.is_outage, one.is_beyond, one.targets) == (True, True, False, [2])
    assert one.begun < one.ended < NEVER
    assert (two.injected, two.is_beyond, two.effect) == (False, True, {"why": "no"})
    assert (three.injected, three.ended, three.kind) == (None, NEVER, "storm")


def test_deletions_and_changes() -> None:
    small = good()
    small.delete(3, "info")
    small.admin("create", partitions=2)
    run = gathered(small)
    (deletion,) = run.partitions[P].deletions
    assert (deletion.before, deletion.outcome) == (3, INFO)
    (change,) = run.topics["t"]
    assert (change.what, change.outcome, change.args) == ("create", OK, {"partitions": 2})


def test_the_end() -> None:
    small = good()
    small.finish(dumps={2: {"problem": "bad", "should_be_whole": False}})
    run = gathered(small)
    partition = run.partitions[P]
    assert sorted(partition.readers) == ["r1", "r2"]
    assert len(partition.readers["r1"].records) == 3
    assert partition.dumps[2].problem == "bad"
    assert not partition.dumps[2].should_be_whole
    assert [phase.name for phase in run.phases] == ["load", "read", "dump", "end"]
    assert run.lines[Append, "ok"] == 3


BAD = [
    (Append(time=0, process="p", type="ok", partition=P, first=77), "was not invoked"),
    (Append(time=0, process="p", type="invoke", partition=P, first=7), "again"),
    (Append(time=0, process="p", type="invoke", partition=P, first=70, count=0), "again"),
    (Poll(time=0, process="d", type="ok"), "was not invoked"),
    (Poll(time=0, process="c", type="invoke"), "is polling"),
    (Ends(time=0, process="d", type="ok"), "without a request"),
    (Start(time=0, process="r", type="info"), "already started"),
    (Start(time=0, process="r", type="info", format=9), "format 9"),
]


@pytest.mark.parametrize(("entry", "trouble"), BAD)
def test_what_does_not_fit(entry: Append | Poll | Ends | Start, trouble: str) -> None:
    small = good()
    small.invoke(7)
    small.add(Poll(time=0, process="c", type="invoke"))
    small.add(entry)
    assert any(trouble in text for text in gathered(small).troubles)


def test_changes_that_nobody_asked_for() -> None:
    small = good()
    small.delete(3)
    small.admin("create")
    small.entries = [e for e in small.entries if e.process != "op" or e.type != "invoke"]
    assert len(gathered(small).troubles) == 2


def test_lines_out_of_order() -> None:
    small = good()
    small.entries[-1].time -= SECOND
    assert "earlier time" in gathered(small).troubles[0]


def test_troubles_are_bounded() -> None:
    run = Gatherer()
    for _ in range(200):
        run.trouble("again")
    assert len(run.troubles) == 50
