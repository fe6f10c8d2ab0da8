"""What can go wrong with a log, put into good histories: at least one mutation for each kind.

Each takes a tape of ``synthetic.history`` and changes as little of it as makes the anomaly. Other
kinds may be found as well: a log that lost its tail also went back with its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from raftlog.testing.history import Admin, Append, Ends, Poll, Read, Seen
from tests.testing.checker import mutations_of_groups as groups
from tests.testing.checker import mutations_of_runs as runs
from tests.testing.checker import mutations_of_transactions as txn
from tests.testing.checker.history_editor import Acked, HistoryEditor, renumbered
from tests.testing.checker.synthetic import SECOND, SIDE

P: Final = "load:0"  # is read from its beginning to the end
DELETED: Final = "load:1"  # has records that were deleted
UNKNOWN: Final = "unknown"  # not a kind, but the verdict


class Mutation(NamedTuple):
    """``kind``: what has to be found; or ``unknown``, what the verdict has to be."""

    kind: str
    apply: Callable[[HistoryEditor], None]

    @property
    def name(self) -> str:
        return getattr(self.apply, "__name__", "").replace("_", " ")


def _some(tape: HistoryEditor, found: Sequence[Acked]) -> Acked:
    """Neither the first nor one of the last."""
    return tape.random.choice(found[1:-3])


# -- acknowledged values ---------------------------------------------------------------------------


def lose_the_tail(tape: HistoryEditor) -> None:
    last = tape.acked(P)[-1]
    tape.rewrite(P, lambda log: [s for s in log if s[0] < last.offset], end=last.offset)


def lose_one_and_close_the_gap(tape: HistoryEditor) -> None:
    lost = _some(tape, tape.acked(P)).entry.first
    end = tape.final(P)[-1][0]
    tape.rewrite(P, lambda log: renumbered([s for s in log if s[2] != lost]), end=end)


def lose_the_beginning(tape: HistoryEditor) -> None:
    start = _some(tape, tape.acked(P)).offset + 1
    tape.rewrite(P, lambda log: [seen for seen in log if seen[0] >= start], start=start)


def begin_one_log_later(tape: HistoryEditor) -> None:
    start = _some(tape, tape.acked(P)).offset + 1
    tape.reread(P, "reader-2", lambda log: [seen for seen in log if seen[0] >= start], start=start)


def lose_everything(tape: HistoryEditor) -> None:
    end = tape.final(P)[-1][0] + 1
    tape.rewrite(P, lambda log: log[:0], start=end, end=end)


def move_to_the_end(tape: HistoryEditor) -> None:
    moved = _some(tape, tape.acked(P)).entry.first

    def edit(log: list[Seen]) -> list[Seen]:
        away = [seen for seen in log if seen[2] == moved]
        return renumbered([seen for seen in log if seen[2] != moved] + away[:1])

    tape.rewrite(P, edit)


def repeat_at_the_end(tape: HistoryEditor) -> None:
    _store(tape, P, _some(tape, tape.acked(P)).entry.first)


def repeat_below_a_deletion(tape: HistoryEditor) -> None:
    """Somebody was given it where it is deleted now; and it is still there, elsewhere."""
    start = tape.final(DELETED)[0][0]
    deleted = [one for one in tape.acked(DELETED) if one.offset < start]
    first = tape.random.choice(deleted)
    for at, records in tape.polls(DELETED, 1):
        tape.give(at, DELETED, [seen for seen in records if seen[0] >= start])
    tape.show(DELETED, (first.offset, 1, first.entry.first, 1), time=first.entry.time + SECOND)
    _store(tape, DELETED, first.entry.first)


def store_what_failed(tape: HistoryEditor) -> None:
    failed = tape.failed()
    _store(tape, failed.partition, failed.first)


def show_what_failed(tape: HistoryEditor) -> None:
    failed = tape.failed()
    end = tape.final(failed.partition)[-1][0] + 1
    tape.show(failed.partition, (end, 1, failed.first, 9))


def store_what_nobody_sent(tape: HistoryEditor) -> None:
    _store(tape, P, -1)


def store_in_the_wrong_partition(tape: HistoryEditor) -> None:
    _store(tape, P, _some(tape, tape.acked(DELETED)).entry.first)


def show_what_nobody_sent(tape: HistoryEditor) -> None:
    at, records = tape.random.choice(tape.polls(P))
    tape.give(at, P, [*records[:-1], (records[-1][0], 1, 1 << 40, records[-1][3])])


def find_in_files_what_nobody_sent(tape: HistoryEditor) -> None:
    end = tape.final(P)[-1][0] + 1
    tape.redump(P, 1, lambda log: [*log, (end, 1, 1 << 40, 9)], end=end + 1, chain="")


def _store(tape: HistoryEditor, partition: str, value: int) -> None:
    last = tape.final(partition)[-1]
    record = last[0] + 1, 1, value, last[3]
    tape.rewrite(partition, lambda log: [*log, record], end=last[0] + 2)


# -- order -----------------------------------------------------------------------------------------


def answer_a_producer_out_of_order(tape: HistoryEditor) -> None:
    """Two appends of one producer change places: the first one gets what the second one got."""
    found = tape.acked(P)
    pairs = [
        (one, other)
        for one in found
        for other in found
        if one.entry.process == other.entry.process and one.invoked < other.invoked
    ]
    one, other = tape.random.choice(pairs)
    for (here, there), name in (((one, other), "invoked"), ((one, other), "completed")):
        ats = getattr(here, name), getattr(there, name)
        entries = [tape.entries[at] for at in ats]
        for at, entry, another in zip(ats, entries, entries[::-1], strict=True):
            tape.entries[at] = replace(another, time=entry.time)


def reverse_an_append(tape: HistoryEditor) -> None:
    one = tape.random.choice([one for one in tape.acked(P) if one.entry.count > 1])
    first, offset = one.entry.first, one.offset
    rest: list[tuple[int, int, int]] = []
    if one.entry.count > 2:
        rest = [(first + 2, one.entry.count - 2, offset + 2)]
    tape.change(one.completed, offsets=[(first, 1, offset + 1), (first + 1, 1, offset), *rest])


def send_after_what_is_above(tape: HistoryEditor) -> None:
    """What is at a higher offset was acknowledged before what is below it was sent."""
    found = tape.acked(P)
    below = _some(tape, found)
    above = next(one for one in reversed(found) if one.entry.process != below.entry.process)
    invoked, completed = tape.take(above.invoked, above.completed)
    time = tape.when("load")
    tape.insert(replace(invoked, time=time), replace(completed, time=time))


def end_below_what_was_told(tape: HistoryEditor) -> None:
    at, asked = tape.random.choice([(at, e) for at, e in tape.find(Ends) if e.ends][5:])
    tape.change(at, ends={**asked.ends, P: asked.ends[P] // 2})


def end_below_what_was_acknowledged(tape: HistoryEditor) -> None:
    last = tape.acked(P)[-1].offset
    tape.entries = [e for e in tape.entries if not isinstance(e, Poll | Ends)]
    _tell_late(tape, last)


def end_below_what_was_polled(tape: HistoryEditor) -> None:
    _, records = tape.polls(P)[-1]
    tape.entries = [e for e in tape.entries if not isinstance(e, Append | Ends)]
    _tell_late(tape, records[-1][0])


def _tell_late(tape: HistoryEditor, end: int) -> None:
    time = tape.when("heal") - 2
    tape.insert(
        Ends(time=time, process="late", type="invoke"),
        Ends(time=time + 1, process="late", type="ok", ends={P: end}),
    )


# -- polls -----------------------------------------------------------------------------------------


def skip_within_a_poll(tape: HistoryEditor) -> None:
    at, records = tape.random.choice(tape.polls(P))
    tape.give(at, P, [records[0], *records[2:]])


def turn_a_poll_around(tape: HistoryEditor) -> None:
    at, records = tape.random.choice(tape.polls(P))
    tape.give(at, P, [records[0], records[2], records[1], *records[3:]])


def skip_between_polls(tape: HistoryEditor) -> None:
    at, records = tape.random.choice(_later_polls(tape))
    tape.give(at, P, records[1:])


def skip_before_the_first_poll(tape: HistoryEditor) -> None:
    later = {at for at, _ in _later_polls(tape)}
    at, records = tape.random.choice([poll for poll in tape.polls(P) if poll[0] not in later])
    tape.give(at, P, records[2:])


def poll_again(tape: HistoryEditor) -> None:
    at, records = tape.random.choice(_later_polls(tape))
    before = next(seen for seen in tape.final(P) if seen[0] == records[0][0] - 1)
    tape.give(at, P, [before, *records])


def _later_polls(tape: HistoryEditor) -> list[tuple[int, list[Seen]]]:
    """Polls that were given records, of consumers that were given some before."""
    begun: set[str] = set()
    found = []
    for at, records in tape.polls(P, 1):
        process = tape.entries[at].process
        if process in begun and len(records) > 1:
            found.append((at, records))
        begun.add(process)
    return found


def show_and_lose(tape: HistoryEditor) -> None:
    """A value of which nobody knew whether it was there."""
    log = tape.final(P)
    there = {seen[2] for seen in log}
    unknown = [
        entry
        for _, entry in tape.find(Append, P)
        if entry.type == "info" and entry.first not in there
    ]
    end = log[-1][0] + 1
    tape.show(P, (end, 1, tape.random.choice(unknown).first, 9))


def show_and_replace(tape: HistoryEditor) -> None:
    """What was shown gives way to what was not; nobody had been told that it was there."""
    polled = {seen[2] for _, records in tape.polls(P) for seen in records}
    shown = tape.random.choice([one for one in tape.acked(P) if one.entry.first in polled])
    value = shown.entry.first
    for position, entry in list(tape.find(Append, P)):
        if entry.first == value and entry.type != "invoke":
            tape.change(position, type="info", offsets=[])
    tape.rewrite(P, lambda log: [(*s[:2], -1, s[3]) if s[2] == value else s for s in log])


def show_two_at_one_offset(tape: HistoryEditor) -> None:
    at, records = tape.random.choice(tape.polls(P))
    offset, count, value, epoch = records[1]
    other = next(seen[2] for seen in tape.final(P) if seen[2] != value)
    tape.give(at, P, [records[0], (offset, count, other, epoch), *records[2:]])


def show_two_where_it_is_deleted(tape: HistoryEditor) -> None:
    start = tape.final(DELETED)[0][0]
    polls = [poll for poll in tape.polls(DELETED, 2) if poll[1][1][0] < start]
    at, records = polls[-1]
    gone = next(seen for seen in records if seen[0] < start)
    other = tape.acked(DELETED)[-1].entry.first
    tape.give(at, DELETED, [(*s[:2], other, s[3]) if s is gone else s for s in records])
    tape.show(DELETED, gone, time=tape.entries[at].time)


def read_differently(tape: HistoryEditor) -> None:
    tape.reread(P, "reader-2", partial(_repeat_one, tape))


def give_nothing(tape: HistoryEditor) -> None:
    """To one who asks for long and long after all faults."""
    time = tape.when("heal") - 20 * SECOND
    tape.insert(
        Poll(time=time, process="hungry", type="invoke", positions={P: 0}),
        Poll(time=time + 6 * SECOND, process="hungry", type="ok"),
    )


# -- copies ----------------------------------------------------------------------------------------


def leave_a_gap(tape: HistoryEditor) -> None:
    offset = tape.random.choice(tape.final(P)[1:-1])[0]
    tape.rewrite(P, lambda log: [seen for seen in log if seen[0] != offset])


def leave_a_gap_at_the_end(tape: HistoryEditor) -> None:
    end = tape.final(P)[-1][0] + 2
    tape.rewrite(P, lambda log: log, end=end)


def leave_a_gap_on_a_replica(tape: HistoryEditor) -> None:
    offset = tape.random.choice(tape.final(P)[1:-1])[0]
    tape.redump(P, 1, lambda log: [seen for seen in log if seen[0] != offset])


def lower_an_epoch(tape: HistoryEditor) -> None:
    tape.rewrite(P, lambda log: [*log[:-1], (*log[-1][:3], 0)])


def show_another_epoch(tape: HistoryEditor) -> None:
    at, records = tape.random.choice(tape.polls(P))
    tape.give(at, P, [*records[:-1], (*records[-1][:3], records[-1][3] + 7)])


def keep_another_epoch(tape: HistoryEditor) -> None:
    tape.redump(P, 2, lambda log: [*log[:-1], (*log[-1][:3], log[-1][3] + 7)])


def give_one_epoch_two_leaders(tape: HistoryEditor) -> None:
    """Beyond the final log, where copies may differ."""
    end = tape.final(P)[-1][0] + 1
    values = [one.entry.first for one in tape.acked(P)[:2]]
    for broker, value in zip((1, 2), values, strict=True):
        tail = end, 1, value, 9
        tape.redump(P, broker, lambda log, tail=tail: [*log, tail], end=end + 1)  # type: ignore[misc]


def diverge(tape: HistoryEditor) -> None:
    tape.redump(P, 2, partial(_repeat_one, tape))


def _repeat_one(tape: HistoryEditor, log: list[Seen]) -> list[Seen]:
    """Some offset has the value of the one before it."""
    at = tape.random.choice([at for at in range(1, len(log)) if log[at][2] != log[at - 1][2]])
    return [*log[:at], (*log[at][:2], log[at - 1][2], log[at][3]), *log[at + 1 :]]


def diverge_and_agree_again(tape: HistoryEditor) -> None:
    """Not even a replica out of the ISR may do that."""

    def edit(log: list[Seen]) -> list[Seen]:
        at = len(log) // 2
        other = next(seen[2] for seen in log if seen[2] != log[at][2])
        return [*log[:at], (*log[at][:2], other, log[at][3] + 1), *log[at + 1 :]]

    tape.redump(P, 2, edit, should_be_whole=False)


def forge_a_chain(tape: HistoryEditor) -> None:
    tape.redump(P, 2, lambda log: log, chain="f0f0f0f0")


def damage(tape: HistoryEditor) -> None:
    tape.redump(P, 1, lambda log: log, problem="the checksum of a batch is wrong")


def leave_a_replica_behind(tape: HistoryEditor) -> None:
    end = tape.final(P)[-1][0]
    tape.redump(P, 1, lambda log: [seen for seen in log if seen[0] < end], end=end)


def leave_a_reader_behind(tape: HistoryEditor) -> None:
    end = tape.final(P)[-1][0]
    tape.reread(P, "reader-2", lambda log: [seen for seen in log if seen[0] < end], end=end)


def never_come_to_rest(tape: HistoryEditor) -> None:
    at = next(at for at, e in enumerate(tape.entries) if getattr(e, "name", "") == "quiesce")
    tape.change(at, type="fail")


# -- topics ----------------------------------------------------------------------------------------


def _before_deletion(tape: HistoryEditor) -> int:
    """A value that was acknowledged before the topic was deleted."""
    deleted = next(e.time for e in tape.entries if isinstance(e, Admin) and e.what == "delete")
    time = tape.when("load")
    value = 1 << 40
    invoke = Append(time=time, process="early", type="invoke", partition=SIDE, first=value)
    tape.insert(invoke, replace(invoke, time=deleted - 1, type="ok", offsets=[(value, 1, 900)]))
    return value


def raise_the_dead(tape: HistoryEditor) -> None:
    value = _before_deletion(tape)
    end = max(entry.end for _, entry in tape.find(Read, SIDE))
    tape.rewrite(SIDE, lambda log: [*log, (end, 1, value, 9)], end=end + 1)


def begin_below_a_deletion(tape: HistoryEditor) -> None:
    tape.rewrite(DELETED, lambda log: log, start=0)


def see_the_dead(tape: HistoryEditor) -> None:
    tape.show(SIDE, (900, 1, _before_deletion(tape), 9))


_KINDS: Final[dict[str, tuple[Callable[[HistoryEditor], None], ...]]] = {
    "LOST-tail": (lose_the_tail, lose_everything),
    "LOST-mid": (lose_one_and_close_the_gap, lose_the_beginning, begin_one_log_later),
    "MOVED": (lose_one_and_close_the_gap, move_to_the_end),
    "DUPLICATE": (repeat_at_the_end, repeat_below_a_deletion),
    "G1A": (store_what_failed, show_what_failed),
    "PHANTOM": (
        store_what_nobody_sent,
        store_in_the_wrong_partition,
        show_what_nobody_sent,
        find_in_files_what_nobody_sent,
    ),
    "NONMONOTONIC-SEND": (answer_a_producer_out_of_order,),
    "INT-NONMONOTONIC-SEND": (reverse_an_append,),
    "REALTIME-ORDER": (send_after_what_is_above,),
    "OBSERVED-THEN-LOST": (show_and_lose, show_and_replace, lose_everything),
    "INCONSISTENT-OFFSET": (show_two_at_one_offset, show_two_where_it_is_deleted, read_differently),
    "INT-POLL-SKIP": (skip_within_a_poll,),
    "INT-NONMONOTONIC-POLL": (turn_a_poll_around,),
    "POLL-SKIP": (skip_between_polls, skip_before_the_first_poll),
    "NONMONOTONIC-POLL": (poll_again,),
    "STALE-READ": (give_nothing,),
    "HW-REGRESSION": (
        end_below_what_was_told,
        end_below_what_was_acknowledged,
        end_below_what_was_polled,
    ),
    "GAP": (leave_a_gap, leave_a_gap_at_the_end, leave_a_gap_on_a_replica),
    "EPOCH-ORDER": (
        lower_an_epoch,
        show_another_epoch,
        keep_another_epoch,
        give_one_epoch_two_leaders,
    ),
    "REPLICA-DIVERGENCE": (diverge, diverge_and_agree_again, forge_a_chain),
    "DAMAGED-REPLICA": (damage,),
    "STUCK": (leave_a_replica_behind, leave_a_reader_behind, never_come_to_rest),
    "RESURRECTED": (raise_the_dead, see_the_dead, begin_below_a_deletion),
    "UNAVAILABLE": (runs.stop_for_a_while, runs.refuse_most),
    "GROUP-OFFSET-LOST": (
        groups.tell_an_offset_of_before,
        groups.tell_a_member_s_offset_of_before,
        groups.begin_before_what_was_committed,
    ),
    "GROUP-OFFSET-PHANTOM": (
        groups.tell_what_nobody_committed,
        groups.tell_what_failed,
        groups.tell_more_than_was_given,
    ),
    "GROUP-OFFSET-AHEAD": (groups.tell_what_is_ahead,),
    "GROUP-OFFSET-ZERO": (groups.tell_zero, groups.tell_nothing),
    "GROUP-SKIPPED": (groups.skip_a_record, groups.skip_a_record_silently),
    "GROUP-UNDELIVERED": (groups.skip_what_is_not_committed,),
    "GROUP-TWO-OWNERS": (
        groups.accept_commits_of_two,
        groups.tell_two_that_they_own_it,
        groups.ask_too_late,
    ),
    "GROUP-COMMIT-BACKWARD": (groups.commit_what_was_lost,),
    "GROUP-STUCK": (
        groups.stop_at_the_end,
        groups.read_nothing_of_a_partition,
        groups.never_catch_up,
    ),
    "COMPACT-LOST-KEY": (groups.lose_a_key, groups.lose_a_key_on_a_replica),
    "COMPACT-RESURRECTED": (groups.bring_a_key_back,),
    "COMPACT-MOVED": (groups.move_a_record,),
    "TXN-ABORTED-READ": (txn.show_an_aborted_record,),
    "TXN-LOST-WRITE": (txn.lose_a_commit, txn.lose_what_a_reader_got),
    "TXN-TORN": (txn.keep_half_of_a_transaction,),
    "TXN-PRECOMMITTED-READ": (txn.show_a_record_before_its_commit,),
    "TXN-DUPLICATE": (txn.store_a_record_twice,),
    "TXN-PHANTOM": (txn.store_an_unknown_record,),
    "TXN-INCONSISTENT-OFFSET": (txn.show_another_record_at_an_offset,),
    "TXN-WRITE-ORDER": (txn.swap_records_of_a_transaction,),
    "TXN-NONMONOTONIC-POLL": (txn.go_back_in_a_partition,),
    "TXN-POLL-SKIP": (txn.skip_a_record,),
    "TXN-G1C": (txn.read_each_other,),
    "TXN-OFFSETS-SPLIT": (
        txn.commit_an_output_without_its_input,
        txn.commit_an_input_without_its_output,
    ),
    "TXN-ZOMBIE": (txn.commit_after_a_fence,),
    "TXN-UNSETTLED": (txn.leave_a_transaction_open,),
    UNKNOWN: (
        txn.leave_the_records_of_transactions_unread,
        runs.break_off,
        runs.read_nothing_at_the_end,
        runs.acknowledge_nothing,
        runs.claim_a_fault,
        runs.inject_nothing,
        runs.be_in_trouble,
        runs.send_a_value_twice,
    ),
}
MUTATIONS: Final = tuple(
    Mutation(kind, apply) for kind, several in _KINDS.items() for apply in several
)
