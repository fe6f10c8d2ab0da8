"""Operations are recorded with their times and their outcome."""

from __future__ import annotations

import json

from raftlog.testing.simulator.history import NEVER_NS, History, Outcome, Seen
from raftlog.types import TopicPartition

P = TopicPartition("t", 0)


def test_operations_begin_and_end_at_their_times() -> None:
    now = [10]
    history = History(lambda: now[0])
    send = history.send("p", P, "p#1", acks=-1, idempotent=True)
    assert (send.invoked_ns, send.completed_ns, send.outcome) == (10, NEVER_NS, Outcome.INFO)
    assert not send.is_ok
    now[0] = 20
    history.end(send, Outcome.OK)
    assert (send.completed_ns, send.is_ok) == (20, True)
    poll = history.poll("c")
    history.end(poll, Outcome.FAIL, ValueError("no"))
    assert (poll.invoked_ns, poll.error) == (20, "no")
    assert history.sends == [send]
    assert list(history) == [send, poll]


def test_who_watches_is_told_how_operations_begin_and_end() -> None:
    history = History(lambda: 0)
    seen: list[tuple[object, Outcome]] = []
    begun: list[object] = []
    history.on_begin = begun.append
    history.on_end = lambda operation: seen.append((operation, operation.outcome))
    poll = history.poll("c")
    assert (begun, seen) == ([poll], [])
    history.end(poll, Outcome.OK)
    assert seen == [(poll, Outcome.OK)]


def test_what_there_is_of_each_kind_and_outcome() -> None:
    history = History(lambda: 0)
    for outcome in (Outcome.OK, Outcome.OK, Outcome.INFO):
        history.end(history.other("a", "describe"), outcome)
    history.end(history.end_offsets("c"), Outcome.OK)
    history.deletion("a", P, 5)
    expected = {"deletion info": 1, "describe info": 1, "describe ok": 2, "endoffsets ok": 1}
    assert history.counts() == expected


def test_what_a_group_does_is_recorded() -> None:
    history = History(lambda: 7)
    offsets = {P: 5}
    commit = history.commit("m", offsets)
    offsets[P] = 6
    assert commit.offsets == {P: 5}, "what was committed then"
    history.end(history.owning("m", P), Outcome.OK)
    history.end(history.committed("a"), Outcome.OK)
    assert history.counts() == {"commit info": 1, "committed ok": 1, "owning ok": 1}


def test_an_operation_can_be_written_down() -> None:
    history = History(lambda: 1)
    send = history.send("p", P, "p#1", acks=1, idempotent=False)
    line = json.loads(json.dumps(send.to_dict()))
    assert (line["f"], line["value"], line["outcome"]) == ("send", "p#1", "info")
    assert Seen(1, "v", 0) == (1, "v", 0)
