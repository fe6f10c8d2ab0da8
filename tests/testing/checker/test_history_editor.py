"""A tape can be edited without a change to the entries that others have as well."""

from __future__ import annotations

from random import Random

from raftlog.testing.history.entries import Append, Dump, Note, Poll, Read
from tests.testing.checker.history_editor import HistoryEditor, renumbered, singles
from tests.testing.checker.small import P, Small, good


def tape_of(small: Small) -> HistoryEditor:
    return HistoryEditor(small.entries, Random(1))


def finished() -> Small:
    small = good()
    small.poll((0, 3, 1, 1), (3, 2, 4, 1))
    small.phase("heal")
    small.finish(dumps={2: {"should_be_whole": False}})
    return small


def test_singles_and_their_numbers() -> None:
    assert singles([(5, 2, 9, 1), (7, 1, 3, 2)]) == [(5, 1, 9, 1), (6, 1, 10, 1), (7, 1, 3, 2)]
    assert renumbered([(5, 1, 9, 1), (8, 1, 3, 2)]) == [(5, 1, 9, 1), (6, 1, 3, 2)]


def test_finding() -> None:
    tape = tape_of(finished())
    assert [at for at, _ in tape.find(Append)] == [2, 3, 4, 5, 6, 7]
    assert not list(tape.find(Append, "u:0"))
    assert [(one.invoked, one.completed, one.offset) for one in tape.acked(P)] == [
        (2, 3, 0),
        (4, 5, 3),
        (6, 7, 5),
    ]
    assert not tape.acked(P, idempotent=False)
    ((at, records),) = tape.polls(P)
    assert (at, len(records)) == (9, 5)
    assert tape.final(P) == singles([(0, 3, 1, 1), (3, 2, 4, 1), (5, 1, 6, 1)])
    assert tape.when("heal") == tape.entries[10].time


def test_changes_stay_on_the_tape() -> None:
    small = finished()
    before = repr(small.entries)
    tape = tape_of(small)
    tape.change(2, count=9)
    tape.give(9, P, [(0, 1, 1, 1)])
    tape.rewrite(P, lambda log: log[:2], end=2)
    tape.show(P, (0, 1, 1, 1))
    tape.insert(Note(time=0, process="r", type="info", text="first"))
    assert repr(small.entries) == before
    assert isinstance(tape.entries[0], Note)
    assert next(entry.count for _, entry in tape.find(Append)) == 9
    polled = [entry.records for _, entry in tape.find(Poll) if entry.records]
    assert polled == [{P: [(0, 1, 1, 1)]}] * 2
    assert [(e.end, len(e.records)) for _, e in tape.find(Read)] == [(2, 2), (2, 2)]
    # A replica which need not be whole stays as it is.
    assert [(e.end, len(e.records)) for _, e in tape.find(Dump)] == [(2, 2), (6, 3)]


def test_the_parts_of_a_copy_are_edited_as_one() -> None:
    small = finished()
    tape = tape_of(small)
    at, read = next(iter(tape.find(Read)))
    tape.change(at, records=read.records[:1])
    tape.insert(
        Read(time=read.time, process="r1", type="ok", partition=P, start=0, end=6,
             records=read.records[1:])
    )  # fmt: skip
    tape.reread(P, "r1", lambda log: log[1:])
    parts = [entry.records for _, entry in tape.find(Read) if entry.process == "r1"]
    assert [len(part) for part in parts] == [5, 0]


def test_entries_are_taken() -> None:
    tape = tape_of(finished())
    count = len(tape.entries)
    first, second = tape.take(2, 5)
    assert isinstance(first, Append)
    assert isinstance(second, Append)
    assert (first.first, second.first, len(tape.entries)) == (1, 4, count - 2)


def test_an_append_that_failed() -> None:
    small = finished()
    small.invoke(9, partition="load:0")
    small.complete(9, partition="load:0", type_="fail")
    assert tape_of(small).failed().first == 9
