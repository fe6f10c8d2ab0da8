"""Checks high watermarks: an end offset that was known is visible to all later requests. Pure."""

from __future__ import annotations

import numpy as np

from raftlog.testing.checker.partition import Partition
from raftlog.testing.checker.runs import Ints
from raftlog.testing.checker.verdict import Findings, Found


def check_watermarks(partition: Partition, findings: Findings) -> None:
    """Report HW-REGRESSION, in each life of the topic separately."""
    end, invoked, completed, line = partition.gathered.ends.columns()
    life = partition.lifetimes.seen_at(invoked, completed)
    for number in range(partition.lifetimes.last + 1):
        mine = (life == number) & (invoked < partition.beyond_since)
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
