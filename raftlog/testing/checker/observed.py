"""Checks poll results against the final log, and against each other. Pure."""

from __future__ import annotations

from raftlog.testing.checker import compaction
from raftlog.testing.checker.appends import missing_from_log
from raftlog.testing.checker.gather import NEVER
from raftlog.testing.checker.logs import compare, epoch_order
from raftlog.testing.checker.partition import Partition
from raftlog.testing.checker.runs import NO_RUNS, Runs, agree, distinct
from raftlog.testing.checker.values import evidence
from raftlog.testing.checker.verdict import Findings, Found


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
    missing = compaction.not_superseded(partition, missing_from_log(partition, odd))
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
