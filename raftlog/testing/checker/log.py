"""Checks acknowledged records: lost, moved, not in a producer's order or not in real-time order.
Pure.

A log is linearizable if every append takes effect between its invocation and its acknowledgement:
no record that was acknowledged before another append was sent may be after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from raftlog.testing import history
from raftlog.testing.checker.gather import FAIL, NEVER, SECOND, Copy
from raftlog.testing.checker.partition import Log, Partition
from raftlog.testing.checker.verdict import (
    FAR,
    NO_INTS,
    NO_RUNS,
    Bools,
    Cover,
    Findings,
    Found,
    Ints,
    Runs,
    agree,
    distinct,
    overlaps,
    running_max,
)


def check_appends(partition: Partition, findings: Findings) -> None:
    promised = partition.promised
    _kept(partition, promised, findings)
    if partition.beyond_since < NEVER:  # offsets of lost records can have been reused
        promised = partition.survivors(promised)
    _real_time(partition, promised, findings)
    _producers_order(partition, findings)


def missing_from_log(partition: Partition, runs: Runs) -> Runs:
    """Return the parts of runs that are not at their offsets in the final log and must not be
    missing."""
    log = partition.log
    assert log is not None, "there is no final log"
    pieces = overlaps(runs.offset, runs.end, log.runs.offset, log.runs.end)
    other = runs.shift[pieces.index] != log.runs.shift[pieces.other]
    elsewhere = runs.cut(pieces.index[other], pieces.start[other], pieces.end[other])
    return runs.outside(log.offsets).with_(elsewhere).above(partition.gone_below)


def _kept(partition: Partition, promised: Runs, findings: Findings) -> None:
    log = partition.log
    if log is None:
        return
    missing = missing_from_log(partition, promised)
    if partition.is_compacted:  # ``compaction`` checks missing records below the end
        compare(partition, promised, findings, "INCONSISTENT-OFFSET", partial(_sender, partition))
        missing = missing.above(log.end)
    present = log.values.count(missing.value, missing.value + missing.count)

    def describe(place: int) -> Found:
        message = (
            f"{partition.name}: {missing.describe(place)} was acknowledged; the log, from "
            f"{log.start} "
            f"to {log.end - 1}, does not have it there"
        )
        return (
            message,
            {
                "partition": partition.name,
                "operations": [partition.appends.describe(int(missing.by[place]))],
            }
            | evidence(missing, place),
        )

    is_lost = present < missing.count
    is_tail = (missing.offset >= log.end) | (log.end == log.start)
    findings.each("LOST-tail", np.flatnonzero(is_lost & is_tail), describe)
    findings.each("LOST-mid", np.flatnonzero(is_lost & ~is_tail), describe)
    findings.each("MOVED", np.flatnonzero(present > 0), describe)


def _sender(partition: Partition, row: int) -> Found:
    return "acknowledged:", {"operations": [partition.appends.describe(row)]}


def _real_time(partition: Partition, acked: Runs, findings: Findings) -> None:
    """Check real-time order: by increasing offset, with the latest invocation so far."""
    stored = _unpromised(partition, acked)
    is_acked = np.repeat([True, False], [len(acked), len(stored)])
    acked = acked.with_(stored)
    order = np.lexsort((acked.value, acked.offset))
    acked, is_acked = acked.take(order), is_acked[order]
    completed = np.where(is_acked, partition.appends.completed[acked.by], NEVER)
    invoked = partition.appends.invoked[acked.by]
    latest = running_max(invoked)

    def describe(place: int) -> Found:
        lower = int(np.argmax(invoked[:place]))
        message = (
            f"{partition.name}: {acked.describe(place)} was acknowledged before "
            f"{acked.describe(lower)} "
            "was sent"
        )
        return (
            message,
            {
                "partition": partition.name,
                "offsets": [int(acked.offset[place]), int(acked.offset[lower])],
                "operations": [
                    partition.appends.describe(int(acked.by[n])) for n in (place, lower)
                ],
                "times_ns": [int(completed[place]), int(invoked[lower])],
            },
        )

    findings.each("REALTIME-ORDER", np.flatnonzero(completed < latest), describe)


def _unpromised(partition: Partition, promised: Runs) -> Runs:
    """Return the records of the final log of all other appends, whose outcome can be unknown: they
    have no time at which they were certainly stored, but one before which they were not."""
    appends = partition.appends
    rows = np.argsort(appends.first)
    first, end = appends.first[rows], appends.first[rows] + appends.count[rows]
    if partition.log is None or np.any(first[1:] < end[:-1]):  # it is unknown which append it was
        return NO_RUNS
    is_other = (appends.outcome != FAIL) & (appends.life == partition.lifetimes.last)
    is_other[promised.by] = False
    runs, is_other = partition.log.runs, is_other[rows]
    rows, first, end = rows[is_other], first[is_other], end[is_other]
    pieces = overlaps(runs.value, runs.value + runs.count, first, end)
    shift = runs.shift[pieces.index]
    return replace(
        runs.cut(pieces.index, pieces.start - shift, pieces.end - shift), by=rows[pieces.other]
    )


def _producers_order(partition: Partition, findings: Findings) -> None:
    """Check producers' order, for idempotent producers only: retries of others may be overtaken.
    Records that only one leader acknowledged count if they still exist."""
    appends = partition.appends
    ordered = partition.acked.take(
        (appends.idempotent[partition.acked.by] != 0) & (partition.acked_life >= 0)
    )
    weak = appends.acks[ordered.by] != -1
    if partition.beyond_since < NEVER:
        weak[:] = True
    acked = ordered.take(~weak).with_(partition.survivors(ordered.take(weak)))
    process, life = appends.process[acked.by], appends.life[acked.by]
    order = np.lexsort((acked.value, acked.by, life, process))
    acked, process, life = acked.take(order), process[order], life[order]
    same = (process[1:] == process[:-1]) & (life[1:] == life[:-1])
    back = same & (acked.offset[1:] < acked.end[:-1])
    inside = acked.by[1:] == acked.by[:-1]

    def describe(place: int) -> Found:
        rows = [int(row) for row in acked.by[place : place + 2]]
        message = (
            f"{partition.name}, {appends.names[int(process[place])]}: "
            f"{acked.describe(place)}, then "
            f"{acked.describe(place + 1)}"
        )
        return (
            message,
            {
                "partition": partition.name,
                "offsets": [int(acked.offset[place]), int(acked.offset[place + 1])],
                "operations": [appends.describe(row) for row in dict.fromkeys(rows)],
            },
        )

    findings.each("NONMONOTONIC-SEND", np.flatnonzero(back & ~inside), describe)
    findings.each("INT-NONMONOTONIC-SEND", np.flatnonzero(back & inside), describe)


# -- logs ------------------------------------------------------------------------------------------
#
# Checks the final log: the records that new consumers read from a partition, from its start to its
# end.
#
# The final log is that of the reader that reached the highest offset. All other checks use it.
# Pure.


def take_log(partition: Partition, findings: Findings) -> None:
    """Set ``partition.log``, if there is one, and check it alone and against other readers."""
    readers = [copy for copy in partition.gathered.readers.values() if copy.is_complete]
    if not readers:
        return
    farthest = max(readers, key=lambda copy: copy.end)
    given = Runs.of(farthest.records)
    _order(partition, farthest, given, findings)
    agreed = agree(given)
    for one, other in agreed.conflicts:
        _two_values(partition, one, other, [farthest.who, farthest.who], findings)
    end = int(agreed.runs.end.max(initial=farthest.end))
    partition.log = Log.of(farthest.start, end, agreed.runs)
    _starts(partition, readers, findings)
    if not partition.is_compacted:
        holes(partition, farthest, agreed.runs, findings)
    epoch_order(partition, farthest.who, agreed.runs, findings)
    for reader in readers:
        if reader is not farthest:
            _other_reader(partition, farthest, reader, findings)


def holes(partition: Partition, copy: Copy, runs: Runs, findings: Findings) -> None:
    """Report GAP: missing offsets between start and end."""
    start, end = np.array([copy.start]), np.array([copy.end])
    missing = overlaps(start, end, *Cover(runs.offset, runs.end).holes())

    def describe(place: int) -> Found:
        first, last = int(missing.start[place]), int(missing.end[place]) - 1
        message = (
            f"{partition.name}, {copy.who}: no records at {first} to {last}, in a log from "
            f"{copy.start} to {copy.end - 1}"
        )
        return (
            message,
            {"partition": partition.name, "offsets": [first, last], "replicas": [copy.who]},
        )

    findings.each("GAP", range(len(missing.start)), describe)


def epoch_order(partition: Partition, who: str, runs: Runs, findings: Findings) -> None:
    """Report EPOCH-ORDER: decreasing epochs with increasing offsets. ``runs`` are sorted by
    offset."""
    known = runs.take(runs.epoch >= 0)

    def describe(place: int) -> Found:
        offset = int(known.offset[place + 1])
        epochs = [int(known.epoch[place]), int(known.epoch[place + 1])]
        return (
            f"{partition.name}, {who}: epoch {epochs[0]} before offset {offset}, then {epochs[1]}",
            {"partition": partition.name, "offsets": [offset], "epochs": epochs, "replicas": [who]},
        )

    findings.each("EPOCH-ORDER", np.flatnonzero(known.epoch[1:] < known.epoch[:-1]), describe)


def compare(
    partition: Partition, runs: Runs, findings: Findings, kind: str, who: Callable[[int], Found]
) -> None:
    """Report ``kind`` where ``runs`` have other values than the final log, and EPOCH-ORDER where
    the values are the same and the epochs differ. ``who`` maps the run's ``by`` to the observer, as
    text and as evidence."""
    log = partition.log
    assert log is not None, "there is no final log to compare with"
    pieces = overlaps(runs.offset, runs.end, log.runs.offset, log.runs.end)
    mine = runs.cut(pieces.index, pieces.start, pieces.end)
    final = log.runs.cut(pieces.other, pieces.start, pieces.end)
    differ = mine.shift != final.shift
    restamped = ~differ & other_epochs(mine, final)

    def finding(place: int, what: str) -> Found:
        name, found = who(int(mine.by[place]))
        message = (
            f"{partition.name}: {name} {mine.describe(place)}; the final log has "
            f"{final.describe(place)}{what}"
        )
        return (
            message,
            {
                "partition": partition.name,
                "epochs": [int(mine.epoch[place]), int(final.epoch[place])],
            }
            | evidence(mine, place)
            | found,
        )

    findings.each(kind, np.flatnonzero(differ), lambda place: finding(place, ""))
    findings.each(
        "EPOCH-ORDER", np.flatnonzero(restamped), lambda place: finding(place, ", of another epoch")
    )


def other_epochs(runs: Runs, others: Runs) -> Bools:
    """Return in which rows both epochs are known, and differ."""
    found: Bools = (runs.epoch != others.epoch) & (runs.epoch >= 0) & (others.epoch >= 0)
    return found


def _order(partition: Partition, copy: Copy, runs: Runs, findings: Findings) -> None:
    """Check the order of a reader's polls, as for a consumer."""

    def describe(place: int) -> Found:
        offset, expected = int(runs.offset[place + 1]), int(runs.end[place])
        return (
            f"{partition.name}, {copy.who}: received {offset}, expected {expected}",
            {"partition": partition.name, "offsets": [offset, expected], "process": copy.who},
        )

    back = np.flatnonzero(runs.offset[1:] < runs.end[:-1])
    findings.each("NONMONOTONIC-POLL", back, describe)


def _starts(partition: Partition, readers: Sequence[Copy], findings: Findings) -> None:
    first, last = (choose(readers, key=lambda copy: copy.start) for choose in (min, max))
    allowed, least = partition.deleted_below, partition.certainly_deleted_below
    if last.start > allowed and not partition.is_shortened:
        findings.add(
            "LOST-mid" if last.end > last.start else "LOST-tail",
            f"{partition.name}, {last.who}, starts at {last.start}; no client deleted records "
            f"above {allowed}",
            partition=partition.name,
            offsets=[allowed, last.start - 1],
        )
    if first.start < least and partition.beyond_since == NEVER:
        findings.add(
            "RESURRECTED",
            f"{partition.name}, {first.who}, starts at {first.start}; a client had deleted all "
            f"records below {least}",
            partition=partition.name,
            offsets=[first.start, least - 1],
        )


def _two_values(
    partition: Partition, one: Runs, other: Runs, who: list[str], findings: Findings
) -> None:
    findings.add(
        "INCONSISTENT-OFFSET",
        f"{partition.name}: {one.describe(0)} and {other.describe(0)}, {' and '.join(who)}",
        partition=partition.name,
        seen=[evidence(one, 0), evidence(other, 0)],
        processes=who,
    )


def _other_reader(partition: Partition, farthest: Copy, reader: Copy, findings: Findings) -> None:
    runs = Runs.of(reader.records)
    _order(partition, reader, runs, findings)
    agreed = agree(runs).runs
    who = f"{reader.who} received", {"processes": [reader.who, farthest.who]}
    compare(partition, agreed, findings, "INCONSISTENT-OFFSET", lambda _: who)
    if not partition.is_compacted:
        holes(partition, reader, agreed, findings)
    if reader.end < farthest.end:
        findings.add(
            "STUCK",
            f"{partition.name}: {reader.who} reached {reader.end}, {farthest.who} {farthest.end}",
            partition=partition.name,
            offsets=[reader.end, farthest.end - 1],
            processes=[reader.who, farthest.who],
        )


# -- observed --------------------------------------------------------------------------------------
#
# Checks poll results against the final log, and against each other. Pure.


def check_observed(partition: Partition, findings: Findings) -> None:
    """Report OBSERVED-THEN-LOST, INCONSISTENT-OFFSET and EPOCH-ORDER of poll results."""
    odd = partition.odd()
    log, promised = partition.log, partition.promised
    if log is not None:
        _still_there(partition, odd, findings)
        _same_as_log(partition, odd, findings)
        odd, promised = odd.outside(log.offsets), promised.outside(log.offsets)
    _among_themselves(partition, odd, promised, findings)
    for life in range(partition.lifetimes.last):
        former = partition.seen.take(partition.seen_life == life)
        _among_themselves(partition, former, NO_RUNS, findings)


def _still_there(partition: Partition, odd: Runs, findings: Findings) -> None:
    """Check that delivered records remain. If a value is now at another offset, its old offset must
    not be empty."""
    log = partition.log
    assert log is not None, "there is no final log"
    missing = not_superseded(partition, missing_from_log(partition, odd))
    is_empty = log.offsets.count(missing.offset, missing.end) == 0
    is_away = log.values.count(missing.value, missing.value + missing.count) < missing.count
    lost = distinct(missing.take(is_empty | is_away))

    def describe(place: int) -> Found:
        poll = int(lost.by[place])
        message = (
            f"{partition.name}: {partition.polls.who(poll)} received "
            f"{lost.describe(place)}; the log, "
            f"from {log.start} to {log.end - 1}, does not have it"
        )
        return (
            message,
            {"partition": partition.name, "operations": [partition.polls.describe(poll)]}
            | evidence(lost, place),
        )

    findings.each("OBSERVED-THEN-LOST", range(len(lost)), describe)


def _same_as_log(partition: Partition, odd: Runs, findings: Findings) -> None:
    log = partition.log
    assert log is not None, "there is no final log"
    if partition.beyond_since < NEVER:  # only the records that were not lost can be compared
        here = log.values.count(odd.value, odd.value + odd.count) == odd.count
        odd = odd.take(here)

    def who(poll: int) -> Found:
        operations = [partition.polls.describe(poll)]
        return f"{partition.polls.who(poll)} received", {"operations": operations}

    compare(partition, distinct(odd), findings, "INCONSISTENT-OFFSET", who)


def _among_themselves(partition: Partition, polled: Runs, acked: Runs, findings: Findings) -> None:
    """Check that all readers received the same records, where these no longer exist (deleted,
    expired)."""
    if partition.beyond_since < NEVER:
        return
    agreed, conflicts = agree(polled), agree(polled.with_(acked)).conflicts
    for kind, pairs in (("INCONSISTENT-OFFSET", conflicts), ("EPOCH-ORDER", agreed.epochs)):
        for one, other in pairs:
            findings.add(
                kind,
                f"{partition.name}: {one.describe(0)} (epoch {int(one.epoch[0])}) and "
                f"{other.describe(0)} "
                f"(epoch {int(other.epoch[0])}) were received or acknowledged",
                partition=partition.name,
                seen=[evidence(one, 0), evidence(other, 0)],
            )
    if not agreed.conflicts:
        epoch_order(partition, "results of polls", agreed.runs, findings)


# -- polls -----------------------------------------------------------------------------------------
#
# Checks the results of polls: order, completeness, and staleness. Pure.


class _Sequence(NamedTuple):
    """Runs in the order in which each consumer received them. ``expected``: the next offset, -FAR
    if unknown; ``is_inside``: it is not the first run of its poll."""

    runs: Runs
    expected: Ints
    is_inside: Bools
    is_former: Bools  # received from a topic that was deleted


def check_polls(partition: Partition, findings: Findings, *, lag_ns: int = 10 * SECOND) -> None:
    """Check that polls of one consumer are consecutive, and return existing records after
    ``lag_ns``."""
    _continuity(partition, findings)
    _stale(partition, findings, lag_ns)


def _continuity(partition: Partition, findings: Findings) -> None:
    runs, expected, is_inside, is_former = _sequence(partition)
    completed = partition.polls.completed[runs.by]
    within = completed < partition.beyond_since
    gone = partition.deleted_by(completed)
    if is_former.any():
        gone = np.where(is_former, partition.deleted_by(completed, in_any_life=True), gone)
    if partition.is_shortened:
        gone[:] = partition.gone_below if partition.log is not None else FAR
    is_known = within & (expected > -FAR)
    resets = (partition.polls.resets_to_latest[runs.by] != 0) & (expected < gone)
    back = is_known & (runs.offset < expected)
    skip = is_known & ~resets & (runs.offset > np.maximum(expected, gone))
    if partition.is_compacted:
        skip &= _are_any_in(lasting(partition), np.maximum(expected, gone), runs.offset)
        skip &= ~is_former  # its final log is unknown

    def describe(place: int) -> Found:
        poll = int(runs.by[place])
        offset, wanted = int(runs.offset[place]), int(expected[place])
        return (
            f"{partition.name}, {partition.polls.who(poll)}: received {offset}, expected {wanted}",
            {
                "partition": partition.name,
                "offsets": [offset, wanted],
                "operations": [partition.polls.describe(poll)],
            },
        )

    findings.each("INT-NONMONOTONIC-POLL", np.flatnonzero(back & is_inside), describe)
    findings.each("NONMONOTONIC-POLL", np.flatnonzero(back & ~is_inside), describe)
    findings.each("INT-POLL-SKIP", np.flatnonzero(skip & is_inside), describe)
    findings.each("POLL-SKIP", np.flatnonzero(skip & ~is_inside), describe)


def _are_any_in(offsets: Ints, start: Ints, end: Ints) -> Bools:
    """Return whether any of ``offsets``, ascending, is between each start and its end
    (exclusive)."""
    found: Bools = np.searchsorted(offsets, start) < np.searchsorted(offsets, end)
    return found


def _sequence(partition: Partition) -> _Sequence:
    clear = partition.seen_life >= 0
    runs, life = partition.seen.take(clear), partition.seen_life[clear]
    session = partition.polls.session[runs.by]
    order = np.lexsort((life, session))  # stable: keeps the order of the polls
    runs, life, session = runs.take(order), life[order], session[order]
    expected = np.full(len(runs), -FAR, np.int64)
    follows = (session[1:] == session[:-1]) & (life[1:] == life[:-1])
    expected[1:][follows] = runs.end[:-1][follows]
    is_inside = np.zeros(len(runs), np.bool_)
    is_inside[1:] = follows & (runs.by[1:] == runs.by[:-1])
    firsts = np.flatnonzero(np.concatenate((np.ones(min(len(runs), 1), np.bool_), ~follows)))
    begun = [partition.gathered.positions.get(int(s), (-FAR, 0)) for s in session[firsts]]
    at = np.array([time for _, time in begun], np.int64)
    same = partition.lifetimes.seen_at(at, at) == life[firsts]
    positions = np.array([position for position, _ in begun], np.int64)
    expected[firsts] = np.where(same & (positions >= 0), positions, -FAR)
    return _Sequence(runs, expected, is_inside, life < partition.lifetimes.last)


def _stale(partition: Partition, findings: Findings, lag_ns: int) -> None:
    """Report polls that returned no records although no fault had been active for a long time.

    Half of ``lag_ns`` is granted for connecting.
    """
    idle = partition.gathered.idle
    if not idle:
        return
    polls, promised = partition.polls, partition.promised
    rows = np.array([one.poll for one in idle], np.int64)
    position = np.array([one.position for one in idle], np.int64)
    since = np.array([one.since for one in idle], np.int64)
    invoked, completed = polls.invoked[rows], polls.completed[rows]
    acked = partition.acked_by(invoked - lag_ns, promised)
    is_last_life = partition.lifetimes.seen_at(invoked, completed) == partition.lifetimes.last
    is_late = (completed - since >= lag_ns // 2) & (completed < partition.beyond_since)
    there = np.maximum(position, partition.gone_below)
    stale = is_last_life & is_late & (there < acked)
    if partition.is_compacted:
        stale &= _are_any_in(lasting(partition), there, acked)

    def describe(place: int) -> Found:
        poll = int(rows[place])
        message = (
            f"{partition.name}, {polls.who(poll)}: no records from {int(position[place])} on, "
            f"but records below {int(acked[place])} were acknowledged {lag_ns // SECOND} s before"
        )
        return (
            message,
            {
                "partition": partition.name,
                "offsets": [int(position[place]), int(acked[place]) - 1],
                "operations": [polls.describe(poll)],
            },
        )

    findings.each("STALE-READ", np.flatnonzero(stale), describe)


# -- values ----------------------------------------------------------------------------------------
#
# Checks values: never sent, failed, duplicate, or of a deleted topic. Pure.


def check_stored_values(partition: Partition, findings: Findings) -> None:
    """Report PHANTOM, G1A, DUPLICATE and RESURRECTED in the final log and in all poll results."""
    log = partition.log.runs if partition.log is not None else None
    odd = partition.odd()
    if partition.log is None or log is None:
        seen = agree(odd).runs
        below = seen
    else:
        gone = agree(odd.outside(partition.log.offsets)).runs
        below = gone if partition.is_compacted else gone.below(partition.gone_below)
        seen = log.with_(gone).with_(_disagreeing(partition, odd))
        below = log.with_(below)
    check_values(partition, seen, "", findings)
    _duplicates(partition, below, findings)
    _resurrected(partition, findings)
    for life in range(partition.lifetimes.last):
        former = agree(partition.seen.take(partition.seen_life == life)).runs
        check_values(partition, former, " before its topic was deleted", findings)
        _duplicates(partition, former, findings)
    unclear = agree(partition.seen.take(partition.seen_life < 0)).runs
    check_values(partition, unclear, " while its topic was being deleted", findings)


def check_values(partition: Partition, runs: Runs, where: str, findings: Findings) -> None:
    """Report PHANTOM and G1A in these runs. ``where``: text for the message."""
    end = runs.value + runs.count

    def describe(place: int) -> Found:
        return (
            f"{partition.name} had {runs.describe(place)}{where}",
            {"partition": partition.name} | evidence(runs, place),
        )

    known = partition.sent.count(runs.value, end)
    findings.each("PHANTOM", np.flatnonzero(known < runs.count), describe)

    def tell_failed(place: int) -> Found:
        message, found = describe(place)
        found["operations"] = _senders(partition, runs, place)
        return f"{message}, of an append that failed", found

    failed = partition.failed.count(runs.value, end)
    findings.each("G1A", np.flatnonzero(failed > 0), tell_failed)


def evidence(runs: Runs, place: int) -> dict[str, object]:
    """Return offsets and values of one run, each as first and last."""
    offset, count, value = (int(c[place]) for c in (runs.offset, runs.count, runs.value))
    return {"offsets": [offset, offset + count - 1], "values": [value, value + count - 1]}


def _senders(partition: Partition, runs: Runs, place: int) -> list[dict[str, object]]:
    """Return the appends that sent a run's values, at most two."""
    appends = partition.appends
    value, end = int(runs.value[place]), int(runs.value[place] + runs.count[place])
    rows = np.flatnonzero((appends.first < end) & (appends.first + appends.count > value))
    return [appends.describe(int(row)) for row in rows[:2]]


def _disagreeing(partition: Partition, odd: Runs) -> Runs:
    """Return poll results at offsets of the final log that are not in it."""
    if partition.log is None:
        return odd
    away = partition.log.values.count(odd.value, odd.value + odd.count) < odd.count
    inside = partition.log.offsets.count(odd.offset, odd.end) > 0
    return agree(odd.take(away & inside)).runs


def _duplicates(partition: Partition, runs: Runs, findings: Findings) -> None:
    order = np.lexsort((runs.offset, runs.value))
    runs = runs.take(order)
    end = runs.value + runs.count
    if len(runs) < 2:
        return
    farthest = np.maximum.accumulate(end)
    before = np.append(runs.value[:1], farthest[:-1])
    stop = np.minimum(end, before)
    bad = partition.idempotent.count(runs.value, np.maximum(stop, runs.value)) > 0

    def describe(place: int) -> Found:
        earlier = _holder(runs, place)
        return (
            f"{partition.name} has {runs.describe(earlier)}, and {runs.describe(place)}",
            {
                "partition": partition.name,
                "places": [evidence(runs, earlier), evidence(runs, place)],
                "operations": _senders(partition, runs, place),
            },
        )

    findings.each("DUPLICATE", np.flatnonzero(bad), describe)


def _holder(runs: Runs, place: int) -> int:
    """Return the row before ``place`` whose run also contains its first value."""
    holds = runs.value[:place] + runs.count[:place] > runs.value[place]
    return int(np.flatnonzero(holds)[-1])


def _resurrected(partition: Partition, findings: Findings) -> None:
    """Report RESURRECTED: only records acknowledged before a deletion was requested must not
    reappear after it."""
    lifetimes = partition.lifetimes
    acked = partition.appends.completed[partition.acked.by]
    # An older consumer returns the records that it had already fetched at any later time.
    began = partition.polls.session_began() if lifetimes.last else partition.polls.invoked
    since = 0
    for invoked, visible in zip(
        lifetimes.invoked.tolist(), lifetimes.visible.tolist(), strict=True
    ):
        dead = partition.acked.take((acked >= since) & (acked < invoked))
        seen = partition.seen.take(began[partition.seen.by] > visible)
        if partition.log is not None and lifetimes.is_clear:
            dumps = partition.gathered.dumps.values()
            for runs in (partition.log.runs, *(Runs.of(dump.records) for dump in dumps)):
                seen = runs.with_(seen)
        _seen_again(partition, dead, distinct(seen), invoked, findings)
        since = invoked


def _seen_again(
    partition: Partition, dead: Runs, seen: Runs, deleted: int, findings: Findings
) -> None:
    values = Cover(dead.value, dead.value + dead.count)
    found = values.count(seen.value, seen.value + seen.count)

    def describe(place: int) -> Found:
        return (
            (
                f"{partition.name} has {seen.describe(place)}, acknowledged before the topic "
                f"was deleted"
            ),
            {"partition": partition.name, "deletion_invoked_ns": deleted}
            | evidence(seen, place)
            | {"operations": _senders(partition, seen, place)},
        )

    findings.each("RESURRECTED", np.flatnonzero(found > 0), describe)


# -- compaction ------------------------------------------------------------------------------------
#
# Checks compacted topics: the last record of each key exists, and no other record is missing.
# Pure.
#
# A record may be removed once a later record has the same key; a tombstone also some time after the
# records that it deleted. For every acknowledged record that is not in a copy of the log, one of
# two conditions must hold: a later record of its key is in the copy, or the key is deleted and has
# no record there. Keys and tombstones follow from values (``keys``).


NOWHERE = -1


@dataclass(frozen=True, slots=True)
class State:
    """State of a copy of the log: for each key, the offset of its last record and whether that
    deletes it; ``NOWHERE`` if there is none."""

    last: Ints
    is_deleted: Bools

    @staticmethod
    def of(runs: Runs, count: int) -> State:
        """Compute the state. ``runs`` of the copy, by increasing offset; ``count`` of keys."""
        offset, value = _records(runs)
        last = np.full(count, NOWHERE, np.int64)
        is_deleted = np.zeros(count, np.bool_)
        key = history.keys_of(value, count)
        last[key] = offset  # of several assignments to one index the last one counts
        is_deleted[key] = history.are_tombstones(value)
        return State(last, is_deleted)


class Deletions:
    """The last possible deletion of each key. A tombstone with an unknown outcome, or one whose
    acknowledgement guarantees nothing, may be at any later offset."""

    def __init__(self, partition: Partition) -> None:
        count = partition.keys
        self.last = np.full(count, NOWHERE, np.int64)
        appends = partition.appends
        offset, value = _records(partition.promised)
        is_tombstone = history.are_tombstones(value)
        offset, value = offset[is_tombstone], value[is_tombstone]
        np.maximum.at(self.last, history.keys_of(value, count), offset)
        unknown = appends.outcome != FAIL
        first, many = appends.first[unknown], appends.count[unknown]
        tried = _spread(first, many)
        tried = tried[history.are_tombstones(tried)]
        tried = np.setdiff1d(tried, value)
        self.last[history.keys_of(tried, count)] = FAR


def may_be_gone(partition: Partition, records: Runs, state: State, deletions: Deletions) -> Bools:
    """Return for each of these single records whether a copy with ``state`` may lack it."""
    offset, value = records.offset, records.value
    key = history.keys_of(value, partition.keys)
    there, is_behind = state.last[key], state.last[key] > offset
    if partition.keeps_tombstones:
        return is_behind
    is_deleting = history.are_tombstones(value)
    deleted = deletions.last[key] > offset
    found: Bools = is_behind | ((there < partition.gone_below) & (is_deleting | deleted))
    return found


def lasting(partition: Partition) -> Ints:
    """Return the offsets of the final log, ascending, that every reader must receive: the last
    record of each key that is not deleted. Empty if the keys of the topic are unknown.

    A superseded record can be in the log of one replica, and removed on another.
    """
    if partition.log is None or not partition.keys:
        return NO_INTS
    state = State.of(partition.log.runs, partition.keys)
    return np.sort(state.last[(state.last != NOWHERE) & ~state.is_deleted])


def not_superseded(partition: Partition, missing: Runs) -> Runs:
    """Return the records that the final log must contain: all of them, unless the topic is
    compacted."""
    if not partition.is_compacted or not len(missing) or partition.log is None:
        return missing
    if not partition.keys:  # it is unknown which records have one key
        return missing.above(partition.log.end)
    records, state = _each(missing), State.of(partition.log.runs, partition.keys)
    return records.take(~may_be_gone(partition, records, state, Deletions(partition)))


def check_compaction(partition: Partition, findings: Findings) -> None:
    """Report COMPACT-LOST-KEY, COMPACT-RESURRECTED and COMPACT-MOVED, in every copy that should be
    complete: of readers and of replicas."""
    readers = [copy for copy in partition.gathered.readers.values() if copy.is_complete]
    dumps = [
        copy
        for copy in partition.gathered.dumps.values()
        if copy.should_be_whole and not copy.problem
    ]
    if not partition.keys or partition.log is None:
        return
    promised, deletions = _each(partition.promised), Deletions(partition)
    for copy in (*readers, *dumps):
        _copy(partition, copy, promised, deletions, findings)


def _copy(
    partition: Partition, copy: Copy, promised: Runs, deletions: Deletions, findings: Findings
) -> None:
    """Check one copy. ``promised``: acknowledged records, one by one."""
    runs = agree(Runs.of(copy.records)).runs
    offset, value = promised.offset, promised.value
    there = np.searchsorted(runs.end, offset, "right")
    place = np.minimum(there, max(len(runs) - 1, 0))
    if len(runs):
        is_there = (there < len(runs)) & (runs.offset[place] <= offset)
        is_there &= runs.shift[place] == value - offset
    else:
        is_there = np.zeros(len(offset), np.bool_)
    _moved(partition, copy, runs, promised.take(~is_there), findings)
    # Other checks report records above its end.
    missing = promised.take(~is_there & (offset < copy.end) & (offset >= partition.gone_below))
    state = State.of(runs, partition.keys)
    missing = missing.take(~may_be_gone(partition, missing, state, deletions))
    if len(missing):
        _missing(partition, copy, missing, state, findings)


def _missing(
    partition: Partition, copy: Copy, missing: Runs, state: State, findings: Findings
) -> None:
    key = history.keys_of(missing.value, partition.keys)
    is_dead = history.are_tombstones(missing.value)
    last = _last_of_each(key, missing.offset)
    is_back = is_dead & (state.last[key] >= 0) & ~state.is_deleted[key] & last
    is_gone = state.is_deleted[key] | (partition.keeps_tombstones & (state.last[key] == NOWHERE))
    is_lost = last & (~is_dead | is_gone)  # replaced by an older tombstone, or by nothing

    def describe(row: int) -> Found:
        which = int(key[row])
        now = int(state.last[which])
        has = f"its last record there is at {now}" if now >= 0 else "it has no record there"
        message = (
            f"{partition.name}, {copy.who}: key {which}: {missing.describe(row)} was "
            f"acknowledged, and "
            f"{has}"
        )
        return (
            message,
            {
                "partition": partition.name,
                "key": which,
                "offsets": [int(missing.offset[row]), now],
                "values": [int(missing.value[row])],
                "operations": [partition.appends.describe(int(missing.by[row]))],
                "replicas": [copy.who],
            },
        )

    findings.each("COMPACT-LOST-KEY", np.flatnonzero(is_lost), describe)
    findings.each("COMPACT-RESURRECTED", np.flatnonzero(is_back), describe)


def _moved(partition: Partition, copy: Copy, runs: Runs, missing: Runs, findings: Findings) -> None:
    """Report acknowledged values that the copy has at another offset."""
    offset, value = _records(runs)
    order = np.argsort(value, kind="stable")
    offset, value = offset[order], value[order]
    place = np.searchsorted(value, missing.value, "left")
    inside = np.minimum(place, max(len(value) - 1, 0))
    if not len(value):
        return
    is_moved = (place < len(value)) & (value[inside] == missing.value)

    def describe(row: int) -> Found:
        now = int(offset[inside[row]])
        return (
            (
                f"{partition.name}, {copy.who}: {missing.describe(row)} was acknowledged, and "
                f"is at {now}"
            ),
            {
                "partition": partition.name,
                "offsets": [int(missing.offset[row]), now],
                "operations": [partition.appends.describe(int(missing.by[row]))],
                "replicas": [copy.who],
            },
        )

    findings.each("COMPACT-MOVED", np.flatnonzero(is_moved), describe)


# -- runs as single records ------------------------------------------------------------------------


def _spread(first: Ints, count: Ints) -> Ints:
    """Return first, first + 1, ... of each row."""
    if not len(first):
        return NO_INTS
    starts = np.repeat(first - (np.cumsum(count) - count), count)
    return starts + np.arange(int(count.sum()))


def _records(runs: Runs) -> tuple[Ints, Ints]:
    """Return offset and value of each record, except foreign ones."""
    usual = runs.take(runs.value >= 0)
    return _spread(usual.offset, usual.count), _spread(usual.value, usual.count)


def _each(runs: Runs) -> Runs:
    """Return a row for each record."""
    usual = runs.take(runs.value >= 0)
    index = np.repeat(np.arange(len(usual)), usual.count)
    offset = _spread(usual.offset, usual.count)
    return usual.cut(index, offset, offset + 1)


def _last_of_each(key: Ints, offset: Ints) -> Bools:
    """Return whether a row has the highest offset of its key."""
    highest: dict[int, int] = {}
    for which, at in zip(key.tolist(), offset.tolist(), strict=True):
        highest[which] = max(at, highest.get(which, NOWHERE))
    return np.array(
        [highest[which] == at for which, at in zip(key.tolist(), offset.tolist(), strict=True)],
        np.bool_,
    )


# -- watermarks ------------------------------------------------------------------------------------
#
# Checks high watermarks: an end offset that was known is visible to all later requests. Pure.


def check_watermarks(partition: Partition, findings: Findings) -> None:
    """Report HW-REGRESSION, in each life of the topic separately."""
    end, invoked, completed, line = partition.gathered.ends.columns()
    life = partition.lifetimes.seen_at(invoked, completed)
    for number in range(partition.lifetimes.last + 1):
        mine = (life == number) & (completed < partition.beyond_since)
        if mine.any():
            _regressions(partition, number, (end[mine], invoked[mine], line[mine]), findings)


def _regressions(
    partition: Partition, life: int, asked: tuple[Ints, Ints, Ints], findings: Findings
) -> None:
    times, ends, lines = _known(partition, life)
    order = np.argsort(times, kind="stable")
    times, ends, lines = times[order], ends[order], lines[order]
    known = np.maximum.accumulate(np.append(0, ends))
    end, invoked, line = asked
    before = np.searchsorted(times, invoked, "left")

    def describe(place: int) -> Found:
        number = int(np.argmax(ends[: before[place]]))
        low, high = int(end[place]), int(ends[number])
        message = (
            f"{partition.name} ends at {low} (line {int(line[place])}), after {high} was known "
            f"(line {int(lines[number])})"
        )
        return (
            message,
            {
                "partition": partition.name,
                "offsets": [low, high],
                "lines": [int(lines[number]), int(line[place])],
            },
        )

    findings.each("HW-REGRESSION", np.flatnonzero(end < known[before]), describe)


def _known(partition: Partition, life: int) -> tuple[Ints, Ints, Ints]:
    """Return for each known end: time, end offset, and line of the history."""
    polls, appends = partition.polls, partition.appends
    end, invoked, completed, line = partition.gathered.ends.columns()
    reported = partition.lifetimes.seen_at(invoked, completed) == life
    seen = partition.seen.take(partition.seen_life == life)
    is_committed = (partition.acked_life == life) & (appends.acks[partition.acked.by] == -1)
    acked = partition.acked.take(is_committed)
    return (
        np.concatenate(
            (completed[reported], polls.completed[seen.by], appends.completed[acked.by])
        ),
        np.concatenate((end[reported], seen.end, acked.end)),
        np.concatenate((line[reported], polls.last_line[seen.by], appends.last_line[acked.by])),
    )
