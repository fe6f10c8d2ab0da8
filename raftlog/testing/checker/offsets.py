"""Checks the committed offsets of consumer groups against the offsets that clients read back. Pure.

The offset that was read has to be the last one acknowledged before the request, or one attempted
since. A commit with an unknown outcome may take effect later, over a newer one. The offset is then
lower, and records are only delivered again, so such cases are only counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from raftlog.testing.checker.gather import FAIL, NEVER, OK
from raftlog.testing.checker.gather_groups import GroupsGatherer, Share
from raftlog.testing.checker.partition import Partition
from raftlog.testing.checker.runs import FAR, Bools, Ints
from raftlog.testing.checker.verdict import Findings, Found

NOTHING = -1  # the offset of a partition for which none is committed


@dataclass(frozen=True, slots=True)
class Commits:
    """All commits for one partition in one group, a row for each."""

    member: Ints
    offset: Ints
    invoked: Ints
    completed: Ints
    outcome: Ints
    line: Ints
    last_line: Ints

    @staticmethod
    def of(share: Share) -> Commits:
        return Commits(*share.commits.columns())

    @property
    def is_ok(self) -> Bools:
        found: Bools = self.outcome == OK
        return found

    def known_by(self, times: Ints) -> Ints:
        """Return the highest offset that had been acknowledged before each time; ``NOTHING`` if
        none."""
        completed, offset = self.completed[self.is_ok], self.offset[self.is_ok]
        order = np.argsort(completed, kind="stable")
        highest = np.maximum.accumulate(np.append(NOTHING, offset[order]))
        return highest[np.searchsorted(completed[order], times, "left")]

    def attempted(self, offsets: Ints, times: Ints, *, late_only: bool = False) -> Bools:
        """Return whether each offset had been attempted before the corresponding time.

        ``late_only``: only by a commit of which it is unknown whether and when it took effect.
        """
        may_be = self.outcome != FAIL
        if late_only:
            may_be &= self.outcome != OK
        offset, invoked = self.offset[may_be], self.invoked[may_be]
        if not len(offset):
            return np.zeros(len(offsets), np.bool_)
        order = np.lexsort((invoked, offset))
        offset, invoked = offset[order], invoked[order]
        place = np.minimum(np.searchsorted(offset, offsets, "left"), len(offset) - 1)
        found: Bools = (offset[place] == offsets) & (invoked[place] < times)
        return found


@dataclass(frozen=True, slots=True)
class Fetched:
    """Responses about one partition in one group, a row for each."""

    who: Ints
    offset: Ints
    invoked: Ints
    completed: Ints
    line: Ints
    last_line: Ints

    @staticmethod
    def of(share: Share) -> Fetched:
        return Fetched(*share.fetched.columns())

    @property
    def last(self) -> int:
        """The response to the last request; ``NOTHING`` without requests."""
        if not len(self.offset):
            return NOTHING
        return int(self.offset[int(np.argmax(self.invoked))])


def check_offsets(
    run: GroupsGatherer,
    partitions: Mapping[str, Partition],
    findings: Findings,
    *,
    beyond_since: int = NEVER,
    is_exact: bool = False,
) -> dict[str, int]:
    """Report GROUP-OFFSET-LOST, -PHANTOM, -ZERO and -AHEAD. Returns how many responses showed a
    late commit; if ``is_exact``, or if the commits of a group have an order, there must be none.
    """
    late = 0
    for group in run.groups.values():
        is_silent = any(run.members[member].is_silent for member in group.members)
        is_exact_here = is_exact or group.is_ordered(run.members)
        for name, share in group.shares.items():
            where = f"group {group.name}, {name}"
            late += _share(run, where, share, findings, is_silent, beyond_since, is_exact_here)
            _ahead(run, where, share, partitions.get(name), findings, beyond_since)
    return {"late_commits_seen": late} if late else {}


def _share(
    run: GroupsGatherer,
    where: str,
    share: Share,
    findings: Findings,
    is_silent: bool,
    beyond_since: int,
    is_exact: bool,
) -> int:
    commits, fetched = Commits.of(share), Fetched.of(share)
    offset = fetched.offset
    within = fetched.completed < beyond_since
    known = commits.known_by(fetched.invoked)
    is_low = within & (offset < known)
    is_zero = is_low & (offset <= 0)
    came_late = is_low & ~is_zero & (not is_exact)
    came_late &= commits.attempted(offset, fetched.completed, late_only=True)

    def describe(place: int) -> Found:
        reported, least = int(offset[place]), int(known[place])
        shown = "no committed offset" if reported == NOTHING else reported
        message = (
            f"{where}: {run.names[int(fetched.who[place])]} received {shown}, after {least} had "
            "been acknowledged"
        )
        return (
            message,
            {"partition": where, "offsets": [reported, least], "lines": _lines(fetched, place)},
        )

    findings.each("GROUP-OFFSET-ZERO", np.flatnonzero(is_zero), describe)
    findings.each("GROUP-OFFSET-LOST", np.flatnonzero(is_low & ~is_zero & ~came_late), describe)

    # their commits are not recorded; at most, they committed the records that they received
    if is_silent:
        highest = _given_by(share, fetched.completed)
        is_phantom = (offset > 0) & (offset > np.maximum(highest, 0))
    else:
        is_phantom = (offset > 0) & ~commits.attempted(offset, fetched.completed)

    def tell_phantom(place: int) -> Found:
        message = (
            f"{where}: {run.names[int(fetched.who[place])]} received {int(offset[place])}, which "
            "no client had tried to commit"
        )
        return (
            message,
            {
                "partition": where,
                "offsets": [int(offset[place])],
                "lines": _lines(fetched, place),
            },
        )

    findings.each("GROUP-OFFSET-PHANTOM", np.flatnonzero(is_phantom), tell_phantom)
    return int(came_late.sum())


def _ahead(
    run: GroupsGatherer,
    where: str,
    share: Share,
    partition: Partition | None,
    findings: Findings,
    beyond_since: int,
) -> None:
    """Report offsets beyond the end of a topic that has had only one life."""
    if partition is None or partition.log is None or partition.lifetimes.last:
        return
    fetched, end = Fetched.of(share), partition.log.end

    def describe(place: int) -> Found:
        offset = int(fetched.offset[place])
        message = (
            f"{where}: {run.names[int(fetched.who[place])]} received {offset}, and the partition "
            f"ends at {end}"
        )
        lines = _lines(fetched, place)
        return message, {"partition": where, "offsets": [offset, end], "lines": lines}

    is_ahead = (fetched.offset > end) & (fetched.completed < beyond_since)
    findings.each("GROUP-OFFSET-AHEAD", np.flatnonzero(is_ahead), describe)


def _given_by(share: Share, times: Ints) -> Ints:
    """Return the offset up to which members had received records by each time; -FAR for none."""
    offset, count, _, _, _, at, _ = share.given.columns()
    order = np.argsort(at, kind="stable")
    ends = np.append(-FAR, (offset + count)[order])
    return np.maximum.accumulate(ends)[np.searchsorted(at[order], times, "right")]


def _lines(fetched: Fetched, place: int) -> list[int]:
    return [int(fetched.line[place]), int(fetched.last_line[place])]
