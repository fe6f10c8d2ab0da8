"""One partition in a history: its columns, what may be gone, and the files of its replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raftlog.testing.checker.gather import FAIL, INFO, NEVER, OK, Change, FaultSpan, Gatherer
from raftlog.testing.checker.judge import NO_DUMPS
from raftlog.testing.checker.partition import UNCLEAR, Lifetimes, Log, Partition, Polls
from raftlog.testing.checker.verdict import Runs, Table
from raftlog.testing.history import Phase, Read, Seen
from tests.testing.checker.small import SECOND, P, Small, good

# -- partitions ------------------------------------------------------------------------------------

# The columns of one partition, and what may be gone of it.


def partition_of(small: Small, *, is_shortened: bool = False) -> Partition:
    run = Gatherer()
    for entry in small.entries:
        run.add(entry)
    found = Partition(
        run.partitions[P],
        names=run.processes,
        polls=Polls(run.sessions, *run.polls.columns()),
        lifetimes=Lifetimes(run.topics.get("t", ())),
        is_shortened=is_shortened,
    )
    table = Table(4)
    for record in small.log:
        table.add(record)
    start = small.log[0][0] if small.log else 0
    found.log = Log.of(start, small.end, Runs.of(table))
    return found


def offsets(runs: Runs) -> list[int]:
    return runs.offset.tolist()


def test_what_is_promised() -> None:
    small = good()
    small.append(7, acks=1)
    found = partition_of(small)
    assert offsets(found.acked) == [0, 3, 5, 6]
    assert offsets(found.promised) == [0, 3, 5]
    assert found.ok_appends() == 4


def test_values_by_what_became_of_them() -> None:
    small = good()
    small.invoke(7, 4, idempotent=False)
    small.complete(7, 4, type_="fail", offsets=[(8, 1, 6)])
    found = partition_of(small)
    assert found.failed.start.tolist() == [7, 9]
    assert found.failed.end.tolist() == [8, 11]
    assert (found.sent.start.tolist(), found.sent.end.tolist()) == ([1], [11])
    assert found.idempotent.end.tolist() == [7]


def test_what_may_be_gone() -> None:
    small = good()
    small.delete(2)
    between = small.now
    small.delete(4, "info")
    small.delete(5, "fail")
    found = partition_of(small)
    assert found.deleted_below == found.gone_below == 4
    times = np.array([0, between, small.now])
    assert found.deleted_by(times).tolist() == [0, 2, 4]
    small.log = small.log[2:]
    assert partition_of(small, is_shortened=True).gone_below == 5


def test_deletions_of_a_topic_that_is_gone_count_no_more() -> None:
    small = good()
    small.delete(4)
    small.admin("delete")
    small.admin("create")
    assert partition_of(small).deleted_below == 0


def test_what_is_just_so_in_the_log_is_not_odd() -> None:
    small = good()
    odd: list[Seen] = [(3, 1, 5, 1), (5, 1, 6, 2), (5, 2, 6, 1)]
    for number, record in enumerate([(1, 3, 2, 1), (4, 2, 5, 1), (0, 1, 1, -1), *odd]):
        small.poll(record, process=f"c{number}")
    found = partition_of(small)
    rows = found.odd()
    assert list(zip(offsets(rows), rows.count.tolist(), rows.value.tolist(), strict=True)) == [
        record[:3] for record in odd
    ]
    assert found.odd() is rows


def test_survivors() -> None:
    small = good()
    small.log[1] = (3, 2, 40, 1)
    found = partition_of(small)
    assert offsets(found.survivors(found.acked)) == [0, 5]


def test_what_had_been_acknowledged_by_when() -> None:
    small = good()
    found = partition_of(small)
    completed = found.appends.completed.tolist()
    times = np.array([0, completed[0], completed[0] + 1, completed[2], small.now + 1])
    assert found.acked_by(times, found.promised).tolist() == [0, 0, 3, 5, 6]


def test_what_nobody_read() -> None:
    found = partition_of(good())
    assert not found.is_missed()
    found.log = None
    assert found.is_missed()


def test_operations_as_evidence() -> None:
    small = good()
    small.poll((0, 3, 1, 1))
    small.invoke(9)
    found = partition_of(small)
    assert found.appends.describe(0) == {
        "f": "append",
        "process": "p",
        "first": 1,
        "count": 3,
        "lines": [3, 4],
    }
    assert found.appends.describe(3)["lines"] == [11]
    assert found.polls.describe(0) == {"f": "poll", "process": "c", "lines": [9, 10]}
    assert found.polls.who(0) == "c"


# -- lifetimes -------------------------------------------------------------------------------------
#
# What was before a topic was deleted is kept apart from what came after.


def change(what: str, invoked: int, completed: int, outcome: int = OK) -> Change:
    return Change(what, "op", invoked, 1, completed=completed, outcome=outcome)


def lives(lifetimes: Lifetimes, *spans: tuple[int, int]) -> list[int]:
    invoked, completed = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    return lifetimes.at(invoked, completed).tolist()


def test_a_topic_that_stays_has_one_life() -> None:
    only = Lifetimes()
    assert (only.last, only.began, only.is_clear) == (0, 0, True)
    assert lives(only, (0, 5), (7, NEVER)) == [0, 0]


def test_a_deletion_parts_two_lives() -> None:
    two = Lifetimes([change("create", 30, 35), change("delete", 10, 20)])
    assert (two.last, two.began, two.is_clear) == (1, 10, True)
    assert lives(two, (0, 9), (0, 10), (15, 16), (20, 30), (21, 22), (0, NEVER)) == [
        0, UNCLEAR, UNCLEAR, UNCLEAR, 1, UNCLEAR,
    ]  # fmt: skip


def test_many_deletions() -> None:
    many = Lifetimes([change("delete", 10 * n, 10 * n + 1) for n in range(1, 4)])
    assert lives(many, (1, 2), (12, 13), (22, 23), (32, 33), (12, 23)) == [0, 1, 2, 3, UNCLEAR]


def test_a_refused_deletion_is_none() -> None:
    assert Lifetimes([change("delete", 10, 20, FAIL)]).last == 0


def test_a_deletion_of_which_nobody_knows() -> None:
    unknown = change("delete", 10, 20, INFO)
    forever = Lifetimes([unknown])
    assert not forever.is_clear
    assert lives(forever, (0, 9), (50, 60)) == [0, UNCLEAR]
    failed = Lifetimes([unknown, change("create", 30, 35, INFO), change("alter", 30, 35)])
    assert not failed.is_clear
    made_anew = Lifetimes([unknown, change("create", 30, 35)])
    assert lives(made_anew, (0, 9), (25, 26), (36, 37)) == [0, UNCLEAR, 1]
    again = Lifetimes([unknown, change("delete", 30, 35)])
    assert lives(again, (0, 9), (25, 26), (36, 37)) == [0, UNCLEAR, 2]


def test_what_is_read_takes_longer_to_change() -> None:
    def fault(begun: int, ended: int, *, injected: bool | None = True) -> FaultSpan:
        return FaultSpan(1, "kill", [], begun, ended, injected)

    def visible(*faults: FaultSpan) -> int:
        return int(Lifetimes([change("delete", 10, 20)], faults, lag_ns=100).visible[0])

    assert visible() == 120
    assert visible(fault(0, 15)) == 120
    assert visible(fault(0, 50)) == 150
    assert visible(fault(90, 95), fault(60, 70)) == 195
    assert visible(fault(150, 200)) == 120
    assert visible(fault(30, NEVER)) == NEVER
    assert visible(fault(30, NEVER, injected=False)) == 120
    late = Lifetimes([change("delete", 10, 20)], lag_ns=100)
    times = np.array([5, 15, 100, 121])
    assert late.seen_at(times, times).tolist() == [0, UNCLEAR, UNCLEAR, 1]


# -- run -------------------------------------------------------------------------------------------
#
# Writes go on unless a fault excuses that they do not.


def silence(seconds: float, *, is_tried: bool = True) -> Small:
    """Appends, a time without any answer, appends."""
    small = good()
    if is_tried:
        small.invoke(7, process="q")
    small.pass_s(seconds)
    if is_tried:
        small.complete(7, process="q")
    small.append(8)
    return small


def test_a_short_silence() -> None:
    small = silence(9)
    small.finish()
    assert small.found() == {}
    (outage,) = small.judge().outages
    assert outage.length_ns == pytest.approx(9 * SECOND, abs=SECOND / 10)
    assert outage.unexcused_ns == pytest.approx(outage.length_ns, abs=SECOND / 10)
    assert outage.faults == ()
    stats = small.judge().stats
    assert stats["outages"] == 1
    assert stats["outage_max_s"] == stats["outage_p50_s"] == pytest.approx(9, abs=0.1)


def test_a_long_silence() -> None:
    small = silence(11)
    small.finish()
    assert small.found() == {"UNAVAILABLE": 1}


def test_nobody_is_refused_who_does_not_ask() -> None:
    small = silence(60, is_tried=False)
    small.finish()
    assert small.found() == {}
    assert small.judge().outages == ()


def test_an_append_that_was_abandoned_waits_no_longer() -> None:
    small = good()
    small.invoke(7, process="q")
    small.pass_s(60)
    small.append(8)
    small.finish()
    assert small.found() == {}


@pytest.mark.parametrize(
    ("how", "is_bad"),
    [
        ({}, True),
        ({"expects": "outage"}, False),
        ({"budget": "beyond"}, False),
        ({"expects": "outage", "injected": False}, True),
    ],
)
def test_a_fault_excuses_what_it_was_expected_to_do(how: dict[str, Any], is_bad: bool) -> None:
    small = good()
    small.invoke(7, process="q")
    small.fault(1, **how)
    small.pass_s(30)
    if how.get("injected", True):
        small.fault(1, "end")
    small.pass_s(8)  # to recover
    small.complete(7, process="q")
    small.finish()
    assert small.judge().kinds == ({"UNAVAILABLE"} if is_bad else frozenset())
    (outage,) = small.judge().outages
    assert outage.faults == (() if how.get("injected") is False else ("kill",))


def test_a_fault_that_had_to_be_ended_was_there_in_part() -> None:
    small = good()
    small.invoke(7, process="q")
    small.fault(1, expects="outage", injected=False)
    small.pass_s(20)
    small.fault(1, "end")
    small.complete(7, process="q")
    small.finish()
    assert small.found() == {}


def test_what_was_expected_is_what_was_when_it_began() -> None:
    small = good()
    small.invoke(7, process="q")
    small.fault(1)
    small.pass_s(20)
    small.fault(1, "end", expects="outage", budget="beyond")
    small.complete(7, process="q")
    small.finish()
    assert small.found() == {"UNAVAILABLE": 1}


def test_recovery_takes_no_longer_than_anything_may() -> None:
    small = good()
    small.invoke(7, process="q")
    small.fault(1, expects="outage")
    small.fault(1, "end")
    small.pass_s(21)
    small.complete(7, process="q")
    small.finish()
    assert small.found() == {"UNAVAILABLE": 1}


def test_only_the_load_counts() -> None:
    small = good()
    small.invoke(7, process="q")
    small.phase("heal")
    small.pass_s(60)
    small.complete(7, process="q")
    small.finish()
    assert small.found() == {}


def test_without_phases_all_counts_from_the_first_append_to_the_last() -> None:
    small = silence(11)
    small.finish()
    small.entries = [e for e in small.entries if getattr(e, "name", "") in {"", "end"}]
    assert small.found() == {"UNAVAILABLE": 1}


def shares(ok: int, refused: int, **how: Any) -> dict[str, int]:
    small = good()
    small.fault(1, **how)
    for number in range(ok + refused):
        small.invoke(10 + number, process=f"q{number}")
        type_ = "ok" if number < ok else "info"
        small.complete(10 + number, process=f"q{number}", type_=type_)  # type: ignore[arg-type]
    if how.get("injected", True):
        small.fault(1, "end")
    small.finish()
    return small.found()


def test_most_have_to_succeed_under_faults_that_should_not_matter() -> None:
    assert shares(10, 10) == {}
    assert shares(9, 11) == {"UNAVAILABLE": 1}
    assert shares(1, 2) == {}  # too few to say
    assert shares(9, 11, expects="outage") == {}
    assert shares(9, 11, injected=False) == {}


# -- run validity ----------------------------------------------------------------------------------
#
# A run that proves nothing is not valid.


def doubts(small: Small) -> tuple[str, ...]:
    verdict = small.judge()
    assert verdict.valid == ("unknown" if verdict.troubles else "valid")
    return verdict.troubles


def test_a_whole_run_leaves_no_doubt() -> None:
    small = good()
    small.fault(1)
    small.fault(1, "end")
    small.finish()
    assert doubts(small) == ()


def test_a_run_that_broke_off() -> None:
    small = good()
    small.finish()
    assert isinstance(small.entries.pop(), Phase)
    assert doubts(small) == ("the run did not complete",)


def test_nothing_was_acknowledged() -> None:
    small = Small()
    small.invoke(1)
    small.complete(1, type_="info")
    small.finish()
    assert doubts(small) == ("no append was acknowledged",)


def test_a_partition_was_not_read() -> None:
    small = good()
    small.invoke(7, partition="t:1")
    small.complete(7, partition="t:1", offsets=[(7, 1, 0)])
    small.finish()
    assert doubts(small) == ("t:1 has appends, and was not read at the end",)


def test_a_topic_that_is_gone_cannot_be_read() -> None:
    small = good()
    small.admin("delete")
    small.phase("end")
    assert doubts(small) == ()


def test_nothing_but_refused_appends_needs_no_reader() -> None:
    small = good()
    small.invoke(7, partition="t:1")
    small.complete(7, partition="t:1", type_="fail")
    small.finish()
    assert doubts(small) == ()


def test_a_fault_without_effect() -> None:
    small = good()
    small.fault(1, effect={})
    small.finish()
    (trouble,) = doubts(small)
    assert "without an effect" in trouble


def test_a_fault_of_which_nobody_says_anything() -> None:
    small = good()
    small.fault(1)
    small.entries.pop()
    small.finish()
    assert doubts(small) == ("fault 1 (kill): no record of its injection",)


def test_what_was_not_injected_is_listed() -> None:
    small = good()
    small.fault(1, targets=[2], injected=False, effect={"why": "no root"})
    small.fault(2)
    small.fault(2, "end")
    small.finish()
    verdict = small.judge()
    assert verdict.valid == "valid"
    (fault,) = verdict.not_injected
    assert (fault["id"], fault["kind"], fault["targets"], fault["why"]) == (
        1,
        "kill",
        [2],
        "no root",
    )
    assert verdict.stats["faults_injected"] == {"kill": 1}


@pytest.mark.parametrize("asked", [(), ("kill",)])
def test_faults_were_asked_for_and_there_were_none(asked: tuple[str, ...]) -> None:
    small = Small({"nemeses": list(asked)})
    small.append(1)
    small.finish()
    reason = "no fault of kill was injected: the run was too short to select it"
    assert doubts(small) == ((reason,) if asked else ())


@pytest.mark.parametrize("asked", [[["kill"]], [["pause", "kill"]], [["kill"], ["pause"]]])
def test_each_name_that_was_asked_for_took_effect(asked: list[list[str]]) -> None:
    small = Small({"nemeses": ["kill", "pause"], "requested": asked})
    small.append(1)
    small.fault(1, targets=[2])
    small.fault(1, "end")
    small.fault(2, kind="pause", targets=[2], injected=False, effect={"why": "not Linux"})
    small.finish()
    missed = asked == [["kill"], ["pause"]]
    assert doubts(small) == (("no fault of pause was injected: not Linux",) if missed else ())


def test_the_runner_is_in_trouble() -> None:
    small = good()
    small.note("all is well")
    small.note("a client died", is_trouble=True)
    small.finish()
    assert doubts(small) == ("a client died",)


def test_an_acknowledgement_without_offsets() -> None:
    small = good()
    small.invoke(7, 2)
    small.complete(7, 2, offsets=[(7, 1, 6)])
    small.land(7, 2)
    small.finish()
    assert "without offsets for all of it" in doubts(small)[0]


def test_an_acknowledgement_of_values_of_others() -> None:
    small = good()
    small.invoke(7, 2)
    small.complete(7, 2, offsets=[(8, 2, 6)])
    small.land(7, 3)
    small.finish()
    assert "values of other appends" in small.judge().troubles[0]


def test_values_are_sent_once() -> None:
    small = good()
    small.invoke(5, 3, process="q")
    small.finish()
    assert doubts(small)[0].startswith("2 appends send values that another append sends")


def test_findings_outweigh_doubts() -> None:
    small = good()
    small.finish(log=small.log[:2])
    small.entries = [e for e in small.entries if not (isinstance(e, Read) and e.process == "r2")]
    small.entries.pop()
    verdict = small.judge()
    assert verdict.valid == "invalid"
    assert verdict.troubles


# -- replicas --------------------------------------------------------------------------------------

# What replicas' files hold is the final log, or may be cut off until it is.


LOG = [(0, 3, 1, 1), (3, 2, 4, 1), (5, 1, 6, 2)]


def judged(*, second: dict[str, Any] | None = None, **first: Any) -> dict[str, int]:
    """What is found when these are the files of broker 1, and of broker 2."""
    small = good()
    small.finish(log=LOG, dumps={1: first, 2: second or {}})
    return small.found()


def test_good_copies() -> None:
    assert judged() == {}


def test_a_copy_differs() -> None:
    assert judged(records=[*LOG[:2], (5, 1, 4, 2)]) == {"REPLICA-DIVERGENCE": 1}


def test_a_copy_has_another_epoch() -> None:
    assert judged(records=[*LOG[:2], (5, 1, 6, 3)]) == {"EPOCH-ORDER": 1}


def test_epochs_go_down_in_a_copy() -> None:
    assert judged(records=[*LOG, (6, 1, 1, 1)], end=7, chain="") == {"EPOCH-ORDER": 1}


def test_a_copy_has_a_hole() -> None:
    assert judged(records=[LOG[0], LOG[2]]) == {"GAP": 1}


def test_a_copy_starts_late() -> None:
    assert judged(start=3, records=LOG[1:]) == {"GAP": 1}


def test_a_copy_may_start_where_records_were_deleted() -> None:
    small = good()
    small.delete(3)
    small.finish(log=LOG[1:], start=3, dumps={1: {"start": 0, "records": LOG}})
    assert small.found() == {}


def test_a_copy_is_behind() -> None:
    behind = {"records": LOG[:2], "end": 5}
    assert judged(**behind) == {"STUCK": 1}
    assert judged(**behind, should_be_whole=False) == {}


def test_files_are_damaged() -> None:
    problem = "a checksum is wrong"
    assert judged(problem=problem) == {"DAMAGED-REPLICA": 1}
    # What cannot be read because of it is not missing; what can be read has to be right.
    assert judged(problem=problem, records=LOG[:2], end=5) == {"DAMAGED-REPLICA": 1}
    assert judged(problem=problem, records=LOG[::2]) == {"DAMAGED-REPLICA": 1}
    wrong = [*LOG[:2], (5, 1, 4, 2)]
    assert judged(problem=problem, records=wrong) == {
        "DAMAGED-REPLICA": 1,
        "REPLICA-DIVERGENCE": 1,
    }


def test_chains_of_the_same_records_are_the_same() -> None:
    assert judged(chain="abd") == {"REPLICA-DIVERGENCE": 1}
    assert judged(chain="abd", end=5, records=LOG[:2], should_be_whole=False) == {}
    assert judged(chain="") == {}


def test_a_leader_of_old_may_have_more() -> None:
    tail = {"records": [*LOG, (6, 1, 1, 2)], "end": 7, "chain": "abd"}
    assert judged(**tail, should_be_whole=False) == {}
    assert judged(**tail) == {}


def test_a_leader_of_old_may_end_differently() -> None:
    """In another epoch; whoever is in the ISR has given it up."""
    ending = {"records": [*LOG[:2], (5, 1, 3, 1)], "chain": "abd"}
    assert judged(**ending, should_be_whole=False) == {}
    assert judged(**ending) == {"REPLICA-DIVERGENCE": 1}


def test_one_epoch_has_one_value_at_an_offset() -> None:
    records = [*LOG[:2], (5, 1, 3, 2)]
    assert judged(records=records, should_be_whole=False) == {"REPLICA-DIVERGENCE": 1}
    one, other = ({"records": [*LOG, (6, 1, n, 2)], "end": 7, "chain": ""} for n in (1, 2))
    assert judged(**one, second=other) == {"EPOCH-ORDER": 1}
    assert judged(**one, second=other | {"records": [*LOG, (6, 1, 2, 3)]}) == {}


def test_who_differs_once_never_agrees_again() -> None:
    records = [(0, 3, 1, 1), (3, 1, 2, 0), (4, 1, 5, 1), (5, 1, 6, 2)]
    found = judged(records=records, should_be_whole=False)
    assert found == {"REPLICA-DIVERGENCE": 1, "EPOCH-ORDER": 1}


def test_without_a_final_log_copies_are_judged_by_themselves() -> None:
    small = good()
    small.finish(dumps={1: {"records": [(0, 1, 1, 1), (2, 1, 99, 1)], "end": 3}})
    small.entries = [entry for entry in small.entries if entry.process not in {"r1", "r2"}]
    assert small.judge().kinds == {"GAP", "PHANTOM", "EPOCH-ORDER"}


def test_without_files_nothing_is_said_of_them() -> None:
    small = Small()
    small.append(1)
    small.finish()
    small.entries = [e for e in small.entries if type(e).__name__ != "Dump"]
    verdict = small.judge()
    assert verdict.valid == "valid"
    assert {k for k, why in verdict.not_applicable.items() if why == NO_DUMPS} == {
        "REPLICA-DIVERGENCE",
        "DAMAGED-REPLICA",
    }
