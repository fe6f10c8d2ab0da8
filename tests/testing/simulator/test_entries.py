"""The checker finds every anomaly that is put into a good simulated run, and none in that run."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

import pytest

from raftlog.testing.checker.verdict import KINDS
from raftlog.testing.simulator.history import (
    Deletion,
    EndOffsets,
    History,
    Operation,
    Outcome,
    Owning,
    Poll,
    Seen,
    Send,
    Violation,
)
from raftlog.testing.simulator.scenario import Copy, Ending, check
from raftlog.types import Offset, TopicPartition

# -- logs ------------------------------------------------------------------------------------------


P: Final = TopicPartition("t", 0)
Q: Final = TopicPartition("t", 1)
SEEDS: Final = range(5)


def copy_of(who: str, name: TopicPartition, records: list[Seen]) -> Copy:
    start = records[0].offset if records else 0
    return Copy(who, name, records, start, records[-1].offset + 1 if records else 0)


@dataclass(slots=True)
class Run:
    """A history and an ending, which agree."""

    history: History
    logs: dict[TopicPartition, list[Seen]] = field(default_factory=dict)
    second: dict[TopicPartition, list[Seen]] = field(default_factory=dict)  # reader
    dumps: list[Copy] = field(default_factory=list)

    def check(self, durable_acks: Collection[int] = (-1,)) -> list[Violation]:
        readers = [copy_of("reader-1", name, log) for name, log in self.logs.items()]
        readers += [copy_of("reader-2", name, log) for name, log in self.second.items()]
        ending = Ending(readers=readers, replicas=self.dumps)
        return check(self.history, ending, durable_acks=durable_acks)

    @property
    def kinds(self) -> set[str]:
        return {violation.kind for violation in self.check()}

    def sends(self, name: TopicPartition = P) -> list[Send]:
        found = [send for send in self.history.sends if send.partition == name and send.is_ok]
        return sorted(found, key=lambda send: send.offset)

    def polls(self, name: TopicPartition = P) -> list[Poll]:
        return [e for e in self.history if isinstance(e, Poll) and len(e.records.get(name, ())) > 2]

    def asked(self) -> list[EndOffsets]:
        return [entry for entry in self.history if isinstance(entry, EndOffsets)]

    def rewrite(self, change: Callable[[list[Seen]], list[Seen]], name: TopicPartition = P) -> None:
        """Change what is in the final log, wherever it is looked at."""
        self.logs[name] = change(list(self.logs[name]))
        self.second[name] = list(self.logs[name])
        for number, dump in enumerate(self.dumps):
            if dump.partition == name:
                self.dumps[number] = copy_of(dump.who, name, list(self.logs[name]))

    def forget_reads(self) -> None:
        """Have nobody seen anything before the end."""
        for entry in self.history:
            if isinstance(entry, Poll | EndOffsets):
                entry.outcome = Outcome.FAIL


def good_run(seed: int) -> Run:
    """Two producers, one consumer, two partitions; a few sends fail, or nobody knows."""
    random = Random(seed)
    now = [0]
    history = History(lambda: now[0])
    run = Run(history, {P: [], Q: []})
    position = {P: 0, Q: 0}
    for number in range(60):
        now[0] += 10
        name, process = random.choice((P, Q)), f"producer-{number % 2}"
        send = history.send(process, name, f"{process}#{number}", acks=-1, idempotent=True)
        now[0] += random.randint(1, 10)
        log = run.logs[name]
        outcome = random.choices((Outcome.OK, Outcome.INFO, Outcome.FAIL), (8, 1, 1))[0]
        if outcome is Outcome.OK or (outcome is Outcome.INFO and random.random() < 0.5):
            send.offset = len(log)
            log.append(Seen(len(log), send.value, number // 20))
        history.end(send, outcome)
        if number % 10 == 9:
            poll = history.poll("consumer/1")
            now[0] += 5
            poll.records = {n: run.logs[n][at:] for n, at in position.items() if run.logs[n][at:]}
            position = {n: len(run.logs[n]) for n in position}
            history.end(poll, Outcome.OK)
            asking = history.end_offsets("consumer/1")
            now[0] += 5
            asking.ends = {n: len(run.logs[n]) for n in position}
            history.end(asking, Outcome.OK)
    run.second = {name: list(log) for name, log in run.logs.items()}
    run.dumps = [
        copy_of(f"broker-{broker}", name, list(log))
        for broker in (1, 2)
        for name, log in run.logs.items()
    ]
    return run


@pytest.mark.parametrize("seed", SEEDS)
def test_a_good_run_is_good(seed: int) -> None:
    run = good_run(seed)
    assert not run.check()
    assert len(run.sends()) > 10
    assert run.polls()


# -- mutations: each has to be found, by its name --------------------------------------------------


def renumbered(records: list[Seen]) -> list[Seen]:
    return [seen._replace(offset=number) for number, seen in enumerate(records)]


def lose_tail(run: Run) -> None:
    run.forget_reads()
    last = run.sends()[-1]
    run.rewrite(lambda log: log[: last.offset])


def lose_middle(run: Run) -> None:
    lost = run.sends()[5]
    run.rewrite(lambda log: [seen for seen in log if seen.offset != lost.offset])


def lose_and_close_the_gap(run: Run) -> None:
    run.forget_reads()
    lost = run.sends()[5]
    run.rewrite(lambda log: renumbered([seen for seen in log if seen.offset != lost.offset]))


def swap(run: Run) -> None:
    at = run.sends()[5].offset

    def swapped(log: list[Seen]) -> list[Seen]:
        log[at], log[at - 1] = log[at - 1], log[at]
        return renumbered(log)

    run.rewrite(swapped)


def repeat(run: Run) -> None:
    run.rewrite(lambda log: [*log, log[3]._replace(offset=len(log), epoch=log[-1].epoch)])


def store_what_failed(run: Run) -> None:
    send = next(s for s in run.history.sends if s.outcome is Outcome.FAIL)
    name = send.partition
    run.rewrite(lambda log: [*log, Seen(len(log), send.value, log[-1].epoch)], name)


def store_what_nobody_sent(run: Run) -> None:
    run.rewrite(lambda log: [*log, Seen(len(log), "nobody#1", log[-1].epoch)])


def store_in_the_wrong_partition(run: Run) -> None:
    value = run.sends(Q)[0].value
    run.rewrite(lambda log: [*log, Seen(len(log), value, log[-1].epoch)])


def show_what_failed(run: Run) -> None:
    send = next(s for s in run.history.sends if s.outcome is Outcome.FAIL)
    poll = run.history.poll("consumer/2")
    poll.records = {send.partition: [Seen(len(run.logs[send.partition]), send.value, 2)]}
    run.history.end(poll, Outcome.OK)


def show_and_lose(run: Run) -> None:
    for send in run.history.sends:
        send.outcome = Outcome.INFO
    run.rewrite(lambda log: log[:-1])


def show_two_at_one_offset(run: Run) -> None:
    records = run.polls()[0].records[P]
    other = next(s.value for s in run.sends() if s.value != records[1].value)
    records[1] = records[1]._replace(value=other)


def read_differently(run: Run) -> None:
    run.second[P][2] = run.second[P][2]._replace(value=run.second[P][3].value)


def poll_backwards(run: Run) -> None:
    records = run.polls()[0].records[P]
    records[1], records[2] = records[2], records[1]


def poll_again(run: Run) -> None:
    first, second = run.polls()[:2]
    second.records[P] = [first.records[P][-1], *second.records[P]]


def skip_within_a_poll(run: Run) -> None:
    del run.polls()[0].records[P][1]


def skip_between_polls(run: Run) -> None:
    del run.polls()[1].records[P][0]


def answer_out_of_order(run: Run) -> None:
    mine = [send for send in run.sends() if send.process == "producer-0"]
    mine[3].invoked_ns, mine[4].invoked_ns = mine[4].invoked_ns, mine[3].invoked_ns
    one, other = (run.history.operations.index(send) for send in mine[3:5])
    operations = run.history.operations
    operations[one], operations[other] = operations[other], operations[one]


def acknowledge_before_what_is_before(run: Run) -> None:
    early, late = run.sends()[3], run.sends()[8]
    late.invoked_ns, late.completed_ns = early.invoked_ns - 20, early.invoked_ns - 10


def leave_a_gap(run: Run) -> None:
    run.rewrite(lambda log: [*log[:-1], log[-1]._replace(offset=len(log))])


def start_late(run: Run) -> None:
    run.rewrite(lambda log: log[1:])


def end_earlier_than_seen(run: Run) -> None:
    run.asked()[-1].ends[P] -= 1


def end_earlier_than_acknowledged(run: Run) -> None:
    for entry in run.history:
        if isinstance(entry, Poll):
            entry.outcome = Outcome.FAIL
    for asking in run.asked()[:-1]:
        asking.outcome = Outcome.FAIL
    run.asked()[-1].ends[P] = run.sends()[-1].offset


def lower_an_epoch(run: Run) -> None:
    run.rewrite(lambda log: [*log[:-1], log[-1]._replace(epoch=0)])


def change_an_epoch_meanwhile(run: Run) -> None:
    records = run.polls()[0].records[P]
    records[0] = records[0]._replace(epoch=7)


def change_an_epoch_on_a_replica(run: Run) -> None:
    records = list(run.dumps[0].records)
    records[-1] = records[-1]._replace(epoch=7)
    run.dumps[0] = run.dumps[0]._replace(records=records)


def diverge(run: Run) -> None:
    records = list(run.dumps[0].records)
    records[2] = records[2]._replace(value=records[3].value)
    run.dumps[0] = run.dumps[0]._replace(records=records)


def fall_behind(run: Run) -> None:
    records = list(run.dumps[0].records[:-1])
    run.dumps[0] = copy_of("broker-1", run.dumps[0].partition, records)


def replica_with_a_hole(run: Run) -> None:
    records = list(run.dumps[0].records)
    del records[2]
    run.dumps[0] = run.dumps[0]._replace(records=records)


MUTATIONS: Final[list[tuple[Callable[[Run], None], str]]] = [
    (lose_tail, "LOST-tail"),
    (lose_middle, "LOST-mid"),
    (lose_and_close_the_gap, "LOST-mid"),
    (lose_and_close_the_gap, "MOVED"),
    (swap, "MOVED"),
    (swap, "INCONSISTENT-OFFSET"),
    (repeat, "DUPLICATE"),
    (store_what_failed, "G1A"),
    (show_what_failed, "G1A"),
    (store_what_nobody_sent, "PHANTOM"),
    (store_in_the_wrong_partition, "PHANTOM"),
    (show_and_lose, "OBSERVED-THEN-LOST"),
    (show_two_at_one_offset, "INCONSISTENT-OFFSET"),
    (read_differently, "INCONSISTENT-OFFSET"),
    (poll_backwards, "INT-NONMONOTONIC-POLL"),
    (poll_again, "NONMONOTONIC-POLL"),
    (skip_within_a_poll, "INT-POLL-SKIP"),
    (skip_between_polls, "POLL-SKIP"),
    (answer_out_of_order, "NONMONOTONIC-SEND"),
    (acknowledge_before_what_is_before, "REALTIME-ORDER"),
    (leave_a_gap, "GAP"),
    (start_late, "LOST-mid"),
    (replica_with_a_hole, "GAP"),
    (end_earlier_than_seen, "HW-REGRESSION"),
    (end_earlier_than_acknowledged, "HW-REGRESSION"),
    (lower_an_epoch, "EPOCH-ORDER"),
    (change_an_epoch_meanwhile, "EPOCH-ORDER"),
    (change_an_epoch_on_a_replica, "EPOCH-ORDER"),
    (diverge, "REPLICA-DIVERGENCE"),
    (fall_behind, "STUCK"),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("mutate", "kind"), MUTATIONS, ids=lambda part: getattr(part, "__name__", part)
)
def test_an_anomaly_is_found(mutate: Callable[[Run], None], kind: str, seed: int) -> None:
    run = good_run(seed)
    mutate(run)
    assert kind in run.kinds


def test_every_violation_has_a_kind_and_says_where() -> None:
    for mutate, _ in MUTATIONS:
        run = good_run(0)
        mutate(run)
        for violation in run.check():
            assert violation.kind in KINDS
            assert "t:" in violation.message or "consumer" in violation.message
            assert str(violation) == f"{violation.kind}: {violation.message}"


# -- what is no anomaly ----------------------------------------------------------------------------


def test_an_acknowledgement_that_promises_nothing_may_be_broken() -> None:
    run = good_run(0)
    lose_tail(run)
    for send in run.history.sends:
        send.acks = 1
    assert "LOST-tail" not in {violation.kind for violation in run.check()}
    assert "LOST-tail" in {violation.kind for violation in run.check((-1, 1))}


def test_who_is_not_idempotent_may_repeat_and_overtake() -> None:
    for mutate in (repeat, answer_out_of_order):
        run = good_run(1)
        for send in run.history.sends:
            send.idempotent = False
        mutate(run)
        assert not run.kinds & {"DUPLICATE", "NONMONOTONIC-SEND"}


def test_what_was_deleted_may_be_gone_even_if_nobody_knows_that_it_was() -> None:
    run = good_run(2)
    deletion = run.history.deletion("admin", P, 5)
    run.rewrite(lambda log: log[5:])
    assert not run.check()
    deletion.before = 4
    assert "LOST-mid" in run.kinds


def test_a_consumer_that_resets_to_the_end_may_skip_what_was_not_deleted() -> None:
    """But only from an offset that was deleted."""
    run = good_run(0)
    records = run.polls()[2].records[P]
    expected = records.pop(0).offset
    records.pop(0)
    for poll in run.polls():
        poll.resets_to_latest = True
    deletion = run.history.deletion("admin", P, expected)
    deletion.invoked_ns = 0
    assert "POLL-SKIP" in run.kinds
    deletion.before = expected + 1
    assert "POLL-SKIP" not in run.kinds
    for poll in run.polls():
        poll.resets_to_latest = False
    assert "POLL-SKIP" in run.kinds


def test_a_replica_out_of_sync_may_be_behind() -> None:
    run = good_run(0)
    fall_behind(run)
    run.dumps[0] = run.dumps[0]._replace(is_in_sync=False)
    assert not run.check()


def test_what_is_not_committed_may_be_on_a_replica() -> None:
    run = good_run(0)
    send = run.history.send("producer-0", P, "producer-0#60", acks=-1, idempotent=True)
    extra = Seen(len(run.logs[P]), send.value, 3)
    run.dumps[0] = copy_of("broker-1", P, [*run.dumps[0].records, extra])
    assert not run.check()


def test_operations_that_overlap_may_come_in_any_order() -> None:
    run = good_run(0)
    first, second = run.sends()[3:5]
    first.completed_ns = second.invoked_ns + 1
    second.invoked_ns, first.invoked_ns = first.invoked_ns, second.invoked_ns
    assert "REALTIME-ORDER" not in run.kinds


def test_an_operation_that_never_ended_is_unknown() -> None:
    operation = Operation(process="p", invoked_ns=0)
    assert operation.outcome is Outcome.INFO


# -- compacted topics ------------------------------------------------------------------------------

# The checker of compacted topics: what may be gone is not told, and all else is.


KEYS: Final = 3


@dataclass(slots=True)
class CompactedRun:
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


def run_of(seed: int, *, compact: bool = True) -> CompactedRun:
    """Records of three keys: of k2 the last one is a tombstone, and it is gone by ``compact``."""
    random, now = Random(seed), [0]
    history = History(lambda: now[0])
    run = CompactedRun(history)
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


def lose_last(run: CompactedRun) -> None:
    """Of a key, nothing is left."""
    run.drop(*[send.offset for send in run.sends("k0")])


def bring_back(run: CompactedRun) -> None:
    """The tombstones go, and what they delete stays."""
    before = [send for send in run.sends("k2") if not send.is_tombstone][-1]
    run.drop(*[send.offset for send in run.sends("k2")])
    run.log = sorted({*run.log, Seen(before.offset, before.value, epoch_of(run, before))})
    run.replica = list(run.log)


def bring_back_a_tombstone(run: CompactedRun) -> None:
    *_, before, last = run.sends("k2")
    run.drop(last.offset)
    run.log = sorted({*run.log, Seen(before.offset, before.value, epoch_of(run, before))})
    run.replica = list(run.log)


def bring_back_a_value(run: CompactedRun) -> None:
    *_, before, last = run.sends("k1")
    run.drop(last.offset)
    run.log = sorted({*run.log, Seen(before.offset, before.value, epoch_of(run, before))})
    run.replica = list(run.log)


def lose_on_a_replica(run: CompactedRun) -> None:
    lost = run.sends("k1")[-1].offset
    run.replica = [seen for seen in run.replica if seen.offset != lost]


def differ(run: CompactedRun) -> None:
    run.replica[-1] = run.replica[-1]._replace(value=run.replica[-2].value)


def move(run: CompactedRun) -> None:
    last = run.sends("k1")[-1]
    run.drop(last.offset)
    for log in (run.log, run.replica):
        log.append(Seen(100, last.value, 3))


def overwrite(run: CompactedRun) -> None:
    run.replace(run.log[-1].offset, "p#1000")


def show_what_failed_of_compacted(run: CompactedRun) -> None:
    failed = next(send for send in run.history.sends if send.outcome is Outcome.FAIL)
    run.log.append(Seen(100, failed.value, 3))


def swap_compacted(run: CompactedRun) -> None:
    run.log[-1], run.log[-2] = run.log[-2], run.log[-1]


def go_back_in_epochs(run: CompactedRun) -> None:
    run.log[-1] = run.log[-1]._replace(epoch=0)


def lose_what_was_seen(run: CompactedRun) -> None:
    """Nobody was told that it is there, and somebody has read it."""
    last = run.sends("k0")[-1]
    lose_last(run)
    last.outcome = Outcome.INFO


def skip_what_is_the_last(run: CompactedRun) -> None:
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


def epoch_of(run: CompactedRun, send: Send) -> int:
    return int(send.value.partition("#")[2]) // 20


MUTATIONS_OF_COMPACTED: Final[dict[str, tuple[Callable[[CompactedRun], None], str]]] = {
    "lose last": (lose_last, "COMPACT-LOST-KEY"),
    "tombstone": (bring_back, "COMPACT-RESURRECTED"),
    "older tombstone": (bring_back_a_tombstone, "COMPACT-LOST-KEY"),
    "value": (bring_back_a_value, "COMPACT-LOST-KEY"),
    "replica": (lose_on_a_replica, "COMPACT-LOST-KEY"),
    "differ": (differ, "REPLICA-DIVERGENCE"),
    "move": (move, "COMPACT-MOVED"),
    "overwrite": (overwrite, "INCONSISTENT-OFFSET"),
    "failed": (show_what_failed_of_compacted, "G1A"),
    "order": (swap_compacted, "NONMONOTONIC-POLL"),
    "epochs": (go_back_in_epochs, "EPOCH-ORDER"),
    "seen": (lose_what_was_seen, "OBSERVED-THEN-LOST"),
    "skip": (skip_what_is_the_last, "POLL-SKIP"),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", MUTATIONS_OF_COMPACTED)
def test_an_anomaly_of_a_compacted_topic_is_found(name: str, seed: int) -> None:
    mutate, kind = MUTATIONS_OF_COMPACTED[name]
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
