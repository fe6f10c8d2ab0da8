"""One pass puts everything into columns, and doubts what does not fit the format."""

from __future__ import annotations

import pytest

from raftlog.testing.checker.gather import FAIL, INFO, NEVER, OK, Gatherer
from raftlog.testing.history.entries import Append, Ends, Fault, Poll, Start
from tests.testing.checker.small import SECOND, P, Small, good


def gathered(small: Small) -> Gatherer:
    run = Gatherer()
    for entry in small.entries:
        run.add(entry)
    return run


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
