"""The checker of compacted topics: what may be gone is not told, and all else is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

import pytest

from raftlog.testing.checker.verdict import KINDS
from raftlog.testing.simulator.history import (
    Deletion,
    History,
    Operation,
    Outcome,
    Owning,
    Poll,
    Seen,
    Send,
)
from raftlog.testing.simulator.scenario import Copy, Ending, check
from raftlog.types import Offset, TopicPartition

P: Final = TopicPartition("t", 0)
SEEDS: Final = range(5)
KEYS: Final = 3


@dataclass(slots=True)
class Run:
    """A history, and what is left of the log."""

    history: History
    log: list[Seen] = field(default_factory=list)
    replica: list[Seen] = field(default_factory=list)
    end: Offset = 0
    keeps_tombstones: bool = True

    @property
    def kinds(self) -> set[str]:
        start = max((e.before for e in self.history if isinstance(e, Deletion)), default=0)
        end = max(self.end, *(seen.offset + 1 for seen in (*self.log, *self.replica)))
        reader, other = (Copy(f"reader-{n}", P, self.log, start, end) for n in (1, 2))
        dumps = [reader._replace(who="broker-1"), Copy("broker-2", P, self.replica, start, end)]
        ending = Ending(
            readers=[reader, other],
            replicas=dumps,
            keys=KEYS,
            keeps_tombstones=self.keeps_tombstones,
        )
        found = check(self.history, ending)
        assert {violation.kind for violation in found} <= KINDS.keys()
        return {violation.kind for violation in found}

    def sends(self, key: str) -> list[Send]:
        """Those of the key that were acknowledged, by offset."""
        return [send for send in self.history.sends if send.key == key and send.is_ok]

    def drop(self, *offsets: Offset, replica_too: bool = True) -> None:
        self.log = [seen for seen in self.log if seen.offset not in offsets]
        if replica_too:
            self.replica = [seen for seen in self.replica if seen.offset not in offsets]

    def replace(self, offset: Offset, value: str) -> None:
        for log in (self.log, self.replica):
            for number, seen in enumerate(log):
                if seen.offset == offset:
                    log[number] = seen._replace(value=value)


def run_of(seed: int, *, compact: bool = True) -> Run:
    """Records of three keys: of k2 the last one is a tombstone, and it is gone by ``compact``."""
    random, now = Random(seed), [0]
    history = History(lambda: now[0])
    run = Run(history)
    log: list[Seen] = []
    read = 0
    for number in range(60):
        now[0] += 10
        key = random.choice(("k0", "k1"))
        if number % 7 == 3:
            key = "k2"
        is_tombstone = number >= 50 and key == "k2"
        send = history.send(
            "producer-1",
            P,
            f"p#{number}",
            acks=-1,
            idempotent=True,
            key=key,
            is_tombstone=is_tombstone,
        )
        now[0] += 5
        outcome = Outcome.FAIL if random.random() < 0.1 and not is_tombstone else Outcome.OK
        if outcome is Outcome.OK:
            send.offset = len(log)
            log.append(Seen(len(log), send.value, number // 20))
        history.end(send, outcome)
        if number % 10 == 9:
            poll = history.poll("consumer/1")
            poll.records = {P: log[read:]}
            read = len(log)
            history.end(poll, Outcome.OK)
    run.log, run.replica, run.end = list(log), list(log), len(log)
    if compact:
        last = {key: run.sends(key)[-1].offset for key in ("k0", "k1", "k2")}
        run.log = [seen for seen in log if seen.offset in last.values() or seen.offset > 40]
        run.replica = [seen for seen in log if seen.offset in last.values() or seen.offset > 30]
    return run


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("compact", [False, True])
def test_what_has_a_newer_record_may_be_gone(seed: int, compact: bool) -> None:
    assert run_of(seed, compact=compact).kinds == set()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tombstone_may_be_gone_when_its_time_is_over(seed: int) -> None:
    run = run_of(seed)
    run.drop(*[send.offset for send in run.sends("k2")])
    assert run.kinds >= {"COMPACT-LOST-KEY"}
    run.keeps_tombstones = False
    assert run.kinds == set()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_deletion_may_have_taken_it(seed: int) -> None:
    run = run_of(seed)
    before = run.log[-1].offset
    deletion = run.history.deletion("admin", P, before)
    run.history.end(deletion, Outcome.INFO)
    run.log = run.replica = run.log[-1:]
    assert run.kinds == set()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_send_of_which_nobody_knows_may_stand_for_another(seed: int) -> None:
    run = run_of(seed)
    lost = run.sends("k0")[-1]
    run.drop(lost.offset)
    assert "COMPACT-LOST-KEY" in run.kinds
    other = run.history.send("producer-2", P, "q#1", acks=-1, idempotent=True, key="k0")
    end = run.log[-1].offset + 1
    run.log.append(Seen(end, "q#1", 3))
    run.replica.append(Seen(end, "q#1", 3))
    assert other.outcome is Outcome.INFO
    assert run.kinds == set()


# -- mutations: each has to be found, by its name --------------------------------------------------


def lose_last(run: Run) -> None:
    """Of a key, nothing is left."""
    run.drop(*[send.offset for send in run.sends("k0")])


def bring_back(run: Run) -> None:
    """The tombstones go, and what they delete stays."""
    before = [send for send in run.sends("k2") if not send.is_tombstone][-1]
    run.drop(*[send.offset for send in run.sends("k2")])
    run.log = sorted({*run.log, Seen(before.offset, before.value, epoch_of(run, before))})
    run.replica = list(run.log)


def bring_back_a_tombstone(run: Run) -> None:
    *_, before, last = run.sends("k2")
    run.drop(last.offset)
    run.log = sorted({*run.log, Seen(before.offset, before.value, epoch_of(run, before))})
    run.replica = list(run.log)


def bring_back_a_value(run: Run) -> None:
    *_, before, last = run.sends("k1")
    run.drop(last.offset)
    run.log = sorted({*run.log, Seen(before.offset, before.value, epoch_of(run, before))})
    run.replica = list(run.log)


def lose_on_a_replica(run: Run) -> None:
    lost = run.sends("k1")[-1].offset
    run.replica = [seen for seen in run.replica if seen.offset != lost]


def differ(run: Run) -> None:
    run.replica[-1] = run.replica[-1]._replace(value=run.replica[-2].value)


def move(run: Run) -> None:
    last = run.sends("k1")[-1]
    run.drop(last.offset)
    for log in (run.log, run.replica):
        log.append(Seen(100, last.value, 3))


def overwrite(run: Run) -> None:
    run.replace(run.log[-1].offset, "p#1000")


def show_what_failed(run: Run) -> None:
    failed = next(send for send in run.history.sends if send.outcome is Outcome.FAIL)
    run.log.append(Seen(100, failed.value, 3))


def swap(run: Run) -> None:
    run.log[-1], run.log[-2] = run.log[-2], run.log[-1]


def go_back_in_epochs(run: Run) -> None:
    run.log[-1] = run.log[-1]._replace(epoch=0)


def lose_what_was_seen(run: Run) -> None:
    """Nobody was told that it is there, and somebody has read it."""
    last = run.sends("k0")[-1]
    lose_last(run)
    last.outcome = Outcome.INFO


def skip_what_is_the_last(run: Run) -> None:
    last = run.sends("k0")[-1].offset
    for entry in run.history:
        if isinstance(entry, Poll):
            entry.records = {P: [seen for seen in entry.records[P] if seen.offset != last]}
    end = run.log[-1].offset + 1
    poll = run.history.poll("consumer/1")
    send = run.history.send("producer-1", P, "p#99", acks=-1, idempotent=True, key="k1")
    poll.records = {P: [Seen(end, "p#99", 3)]}
    run.log.append(Seen(end, "p#99", 3))
    run.replica.append(Seen(end, "p#99", 3))
    send.offset = end
    run.history.end(send, Outcome.OK)
    run.history.end(poll, Outcome.OK)


def epoch_of(run: Run, send: Send) -> int:
    return int(send.value.partition("#")[2]) // 20


MUTATIONS: Final[dict[str, tuple[Callable[[Run], None], str]]] = {
    "lose last": (lose_last, "COMPACT-LOST-KEY"),
    "tombstone": (bring_back, "COMPACT-RESURRECTED"),
    "older tombstone": (bring_back_a_tombstone, "COMPACT-LOST-KEY"),
    "value": (bring_back_a_value, "COMPACT-LOST-KEY"),
    "replica": (lose_on_a_replica, "COMPACT-LOST-KEY"),
    "differ": (differ, "REPLICA-DIVERGENCE"),
    "move": (move, "COMPACT-MOVED"),
    "overwrite": (overwrite, "INCONSISTENT-OFFSET"),
    "failed": (show_what_failed, "G1A"),
    "order": (swap, "NONMONOTONIC-POLL"),
    "epochs": (go_back_in_epochs, "EPOCH-ORDER"),
    "seen": (lose_what_was_seen, "OBSERVED-THEN-LOST"),
    "skip": (skip_what_is_the_last, "POLL-SKIP"),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", MUTATIONS)
def test_an_anomaly_is_found(name: str, seed: int) -> None:
    mutate, kind = MUTATIONS[name]
    run = run_of(seed)
    mutate(run)
    assert any(found.removeprefix("INT-") == kind for found in run.kinds)


def test_tombstones_that_may_go_do_not_bring_values_back() -> None:
    run = replace(run_of(1), keeps_tombstones=False)
    bring_back(run)
    assert "COMPACT-RESURRECTED" in run.kinds


# -- entries of groups -----------------------------------------------------------------------------
#
# A right history of a group is right; each mistake that is put into one is called by its name.


ENTRIES_OF_GROUPS_P = TopicPartition("events", 0)
LOG = range(12)
FIRST, SECOND = "member-1/1.1", "member-2/1.1"
DRIFT_NS = 20


class Timeline:
    """Two members, the second of which is given the partition after the first has left it."""

    def __init__(self) -> None:
        self.now = 0
        self.history = History(lambda: self.now)
        for number in LOG:
            send = self.history.send(
                "p", ENTRIES_OF_GROUPS_P, f"v{number}", acks=-1, idempotent=True
            )
            send.offset = number
            self.end(send)

    def at(self, now: int) -> Timeline:
        self.now = now
        return self

    def end(self, operation: Operation, outcome: Outcome = Outcome.OK) -> None:
        self.now += 1
        self.history.end(operation, outcome)

    def owning(self, member: str) -> Owning:
        return self.history.owning(member, ENTRIES_OF_GROUPS_P)

    def poll(self, member: str, first: int, end: int) -> None:
        poll = self.history.poll(f"{member}@1")
        poll.records = (
            {ENTRIES_OF_GROUPS_P: [Seen(n, f"v{n}", 0) for n in range(first, end)]}
            if first < end
            else {}
        )
        self.end(poll)

    def commit(self, member: str, offset: int, outcome: Outcome = Outcome.OK) -> None:
        self.end(self.history.commit(member, {ENTRIES_OF_GROUPS_P: offset}), outcome)

    def committed(self, offset: int) -> None:
        noted = self.history.committed("asker")
        noted.offsets = {} if offset < 0 else {ENTRIES_OF_GROUPS_P: offset}
        self.end(noted)

    @property
    def kinds(self) -> set[str]:
        log = [Seen(n, f"v{n}", 0) for n in LOG]
        ending = Ending(
            readers=[Copy("reader-1", ENTRIES_OF_GROUPS_P, log, 0, len(log))], drift_ns=DRIFT_NS
        )
        return {violation.kind for violation in check(self.history, ending)}

    def first_half(self) -> Owning:
        owning = self.at(100).owning(FIRST)
        self.at(110).poll(FIRST, 0, 5)
        self.at(120).commit(FIRST, 5)
        self.at(130).committed(5)
        return owning

    def second_half(self, *, first: int = 5) -> None:
        self.at(200).owning(SECOND)
        self.at(300).poll(SECOND, first, 9)
        self.at(310).commit(SECOND, 9)
        self.at(320).committed(9)


def noted(change: Callable[[Timeline, Owning], None], **second: Any) -> set[str]:
    """The kinds of what is found after ``change`` was made between the two halves."""
    timeline = Timeline()
    owning = timeline.first_half()
    change(timeline, owning)
    timeline.second_half(**second)
    return timeline.kinds


def leaves(timeline: Timeline, owning: Owning) -> None:
    timeline.at(150).end(owning)


def test_a_partition_may_go_from_one_member_to_another() -> None:
    assert noted(leaves) == set()
    assert noted(leaves, first=3) == {"GROUP-OFFSET-LOST"}


def test_what_was_not_acknowledged_may_be_committed_or_not() -> None:
    def tries(timeline: Timeline, owning: Owning) -> None:
        timeline.at(140).commit(FIRST, 4, Outcome.INFO)
        timeline.committed(5)
        leaves(timeline, owning)

    assert noted(tries) == set()


def test_a_member_that_died_owns_the_partition_no_longer_than_it_polls() -> None:
    assert noted(lambda *_: None) == set()


def test_who_was_held_up_may_learn_of_its_loss_in_the_next_poll() -> None:
    timeline = Timeline()
    owning = timeline.first_half()
    waiting = timeline.at(140).history.poll(f"{FIRST}@1")
    timeline.at(200).owning(SECOND)
    timeline.at(400).end(waiting)
    polling = timeline.at(410).history.poll(f"{FIRST}@1")
    timeline.at(420).end(owning, Outcome.INFO)
    timeline.at(430).end(polling)
    assert timeline.kinds == set()


def polls_on(timeline: Timeline) -> None:
    timeline.first_half()
    timeline.second_half()
    timeline.at(400).poll(FIRST, 5, 5)


def commits_late(timeline: Timeline) -> None:
    timeline.first_half()
    timeline.second_half()
    timeline.at(400).commit(FIRST, 9)


def commits_back(timeline: Timeline) -> None:
    timeline.first_half()
    timeline.at(140).commit(FIRST, 4)


def forgets(timeline: Timeline) -> None:
    timeline.first_half()
    timeline.at(140).committed(-1)


def begins_too_early(timeline: Timeline) -> None:
    leaves(timeline, timeline.first_half())
    timeline.second_half(first=4)


def invents(timeline: Timeline) -> None:
    timeline.first_half()
    timeline.at(140).committed(6)


def is_ahead(timeline: Timeline) -> None:
    timeline.first_half()
    timeline.at(140).commit(FIRST, 12, Outcome.INFO)
    timeline.committed(12)
    timeline.commit(FIRST, 13, Outcome.INFO)
    timeline.committed(13)


def skips(timeline: Timeline) -> None:
    leaves(timeline, timeline.first_half())
    timeline.second_half(first=6)


MISTAKES: list[tuple[Callable[[Timeline], None], str]] = [
    (polls_on, "GROUP-TWO-OWNERS"),
    (commits_late, "GROUP-TWO-OWNERS"),
    (commits_back, "GROUP-COMMIT-BACKWARD"),
    (forgets, "GROUP-OFFSET-ZERO"),
    (begins_too_early, "GROUP-OFFSET-LOST"),
    (invents, "GROUP-OFFSET-PHANTOM"),
    (is_ahead, "GROUP-OFFSET-AHEAD"),
    (skips, "GROUP-SKIPPED"),
]


@pytest.mark.parametrize(("mistake", "kind"), MISTAKES)
def test_a_mistake_is_called_by_its_name(mistake: Callable[[Timeline], None], kind: str) -> None:
    timeline = Timeline()
    mistake(timeline)
    assert kind in timeline.kinds <= {kind, "GROUP-SKIPPED"}
