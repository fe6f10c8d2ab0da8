"""Checks records delivered to consumer groups, and the ownership of partitions. Pure.

At-least-once: every record below the committed offset of a group was processed by one of its
members; and at the end, after all faults were healed and with enough time, every record.

One owner: in its own view, a member owns a partition from the callback to its application until the
next one, or until it crashes. A member that was stopped or isolated may hold this view after its
session has ended; then its commits must be rejected. Two owners at a time are therefore an anomaly
in three cases: commits of both were accepted in that time; or both were running and kept the view
for longer than the detection of an ended session takes; or the first was asked to release the
partition, which applies to live members only, after the second had received it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from raftlog.testing.checker.gather import FAIL, NEVER, OK, SECOND, FaultSpan
from raftlog.testing.checker.gather_groups import GroupsGatherer, MemberLife, Owned, Share
from raftlog.testing.checker.log import lasting
from raftlog.testing.checker.partition import Partition
from raftlog.testing.checker.verdict import FAR, Bools, Cover, Findings, Found, Ints

# Faults that affect only their targets.
QUIET_KINDS = frozenset(("member-kill", "member-churn", "transfer", "topics", "settings"))
# in addition to sessions: for processes that share a processor with many others
SLACK_NS = 5 * SECOND


def check_groups(
    run: GroupsGatherer,
    partitions: Mapping[str, Partition],
    findings: Findings,
    *,
    has_drained: bool,
    faults: Iterable[FaultSpan] = (),
    beyond_since: int = NEVER,
    drift_ns: int = -1,
) -> None:
    """Check all except fetched offsets. ``has_drained``: members had enough time to catch up.
    ``drift_ns``: see ``judge.Limits``."""
    disturbing = [fault for fault in faults if fault.is_harmful and fault.kind not in QUIET_KINDS]
    disturbed = Cover(
        np.array([fault.begun for fault in disturbing], np.int64),
        np.array([fault.ended for fault in disturbing], np.int64),
    )
    for group in run.groups.values():
        if not group.members:
            continue
        for name, share in group.shares.items():
            where = f"group {group.name}, {name}"
            if drift_ns < 0:
                _two_owners(run, where, share, disturbed, findings)
            else:
                _owned_too_long(run, where, share, drift_ns, findings)
            _backward(run, where, share, findings, beyond_since, is_exact=drift_ns >= 0)
            is_ordered = drift_ns >= 0 or group.is_ordered(run.members)
            _begins_below(run, where, share, findings, beyond_since, is_exact=is_ordered)
        topics = {topic for member in group.members for topic in run.members[member].topics}
        for name, partition in partitions.items():
            if partition.gathered.topic in topics and partition.log is not None:
                where = f"group {group.name}, {name}"
                _at_least_once(
                    where, group.share(name), partition, findings, has_drained=has_drained
                )


# -- at least once ---------------------------------------------------------------------------------


def _at_least_once(
    where: str, share: Share, partition: Partition, findings: Findings, *, has_drained: bool
) -> None:
    log = partition.log
    assert log is not None, "there is no final log"
    offset, count, *_ = share.given.columns()
    given = Cover(offset, offset + count)
    farthest = int((offset + count).max(initial=log.start))
    committed = Fetched.of(share).last
    # Every part of the log that was delivered to no member.
    due = log.offsets
    if partition.is_compacted:
        lasts = lasting(partition)
        due = Cover(lasts, lasts + 1)
    missing = due.both(Cover(*given.holes()))
    bounds = ((committed, "GROUP-SKIPPED"), (farthest, "GROUP-UNDELIVERED"), (FAR, "GROUP-STUCK"))
    below = -FAR
    for end, kind in bounds:
        if end <= below:
            continue
        part = missing.both(Cover(np.array([below]), np.array([end])))
        below = end
        if kind != "GROUP-SKIPPED" and not has_drained:
            continue
        _missing(where, part, kind, committed, farthest, findings)


def _missing(
    where: str, part: Cover, kind: str, committed: int, farthest: int, findings: Findings
) -> None:
    reported = {
        "GROUP-SKIPPED": f"and the group has committed {committed}",
        "GROUP-UNDELIVERED": f"though {farthest - 1} was",
        "GROUP-STUCK": "after all faults were healed and with enough time",
    }[kind]

    def describe(place: int) -> Found:
        first, last = int(part.start[place]), int(part.end[place]) - 1
        return (
            f"{where}: {first} to {last} was delivered to no member, {reported}",
            {"partition": where, "offsets": [first, last], "committed": committed},
        )

    findings.each(kind, range(len(part.start)), describe)


# -- one owner -------------------------------------------------------------------------------------


def _two_owners(
    run: GroupsGatherer, where: str, share: Share, disturbed: Cover, findings: Findings
) -> None:
    commits = Commits.of(share)
    for one, other in _overlapping(share.owned):
        begin, end = max(one.begin, other.begin), min(one.end, other.end)
        mine, theirs = (_accepted(commits, o.member, begin, end) for o in (one, other))
        names = [run.names[one.member], run.names[other.member]]
        both = f"{where}: {names[0]} and {names[1]} both owned it"
        if len(mine) and len(theirs):
            rows = [int(mine[0]), int(theirs[0])]
            findings.add(
                "GROUP-TWO-OWNERS",
                f"{both}, and commits of both were accepted in that time: "
                f"{int(commits.offset[rows[0]])} and {int(commits.offset[rows[1]])}",
                partition=where,
                members=names,
                from_ns=begin,
                to_ns=end,
                lines=[[int(commits.line[r]), int(commits.last_line[r])] for r in rows],
            )
            continue
        lives = [run.members[one.member], run.members[other.member]]
        too_long = _awake_ns(lives, begin, end)
        if too_long:
            findings.add(
                "GROUP-TWO-OWNERS",
                f"{both} for {too_long / SECOND:.1f} s while both were running",
                partition=where,
                members=names,
                from_ns=begin,
                to_ns=end,
            )
        elif _was_asked_late(run.members[one.member], one, other, disturbed):
            findings.add(
                "GROUP-TWO-OWNERS",
                f"{both}: the first was asked to release it, which applies to live members only, "
                "after the other had received it",
                partition=where,
                members=names,
                from_ns=begin,
                to_ns=end,
            )


def _owned_too_long(
    run: GroupsGatherer, where: str, share: Share, drift_ns: int, findings: Findings
) -> None:
    """Check that no member uses a partition after another one has received it.

    Each response to a heartbeat is a lease (docs/contributing/groups.md) that ends before another
    member receives the partition. So its former owner learns of it in its next poll at the latest,
    and its later commits are rejected.
    """
    owned = sorted(share.owned, key=lambda one: one.begin)
    commits = Commits.of(share)
    for place, heir in enumerate(owned):
        since = heir.begin + drift_ns
        for owner in owned[:place]:
            polls = run.members[owner.member].polls
            late = [poll.begin for poll in polls if since < poll.begin and poll.end < owner.end]
            if late and owner.member != heir.member and owner.begin < heir.begin:
                _used(run, where, owner.member, heir, f"polled at {late[0]} ns", findings)
    begins = np.array([heir.begin for heir in owned], np.int64)
    heirs = np.searchsorted(begins, commits.invoked, "left") - 1
    for row in np.flatnonzero(commits.is_ok & (heirs >= 0)).tolist():
        heir = owned[int(heirs[row])]
        who, at = int(commits.member[row]), int(commits.invoked[row])
        if who != heir.member and heir.begin + drift_ns < at:
            what = f"committed {int(commits.offset[row])} at {at} ns"
            _used(run, where, who, heir, what, findings)


def _used(
    run: GroupsGatherer, where: str, member: int, heir: Owned, what: str, findings: Findings
) -> None:
    names = [run.names[member], run.names[heir.member]]
    findings.add(
        "GROUP-TWO-OWNERS",
        f"{where}: {names[0]} {what}, after {names[1]} had received it at {heir.begin} ns",
        partition=where,
        members=names,
        from_ns=heir.begin,
    )


def _was_asked_late(life: MemberLife, one: Owned, other: Owned, disturbed: Cover) -> bool:
    """Return whether the first owner was asked to release the partition only after the other had
    it.

    Only a member with an active session is asked, and no other member receives the partition before
    it has responded. The request can be late if a fault delays it.
    """
    if one.how != "revoked" or one.end >= life.closed or one.begin >= other.begin:
        return False
    since = other.begin - life.session_ns - life.handling_ns - SLACK_NS
    held_up = any(span.begin < one.end and span.end > since for span in (*life.pauses, *life.cuts))
    return not held_up and not disturbed.count(np.array([since]), np.array([one.end]))[0]


def _overlapping(owned: list[Owned]) -> Iterator[tuple[Owned, Owned]]:
    """Yield pairs of different members. Few own a partition at a time, so the sweep is fast."""
    open_: list[Owned] = []
    for each in sorted(owned, key=lambda one: one.begin):
        open_ = [one for one in open_ if one.end > each.begin]
        for one in open_:
            if one.member != each.member:
                yield one, each
        open_.append(each)


def _accepted(commits: Commits, member: int, begin: int, end: int) -> Ints:
    """Return the rows of a member's commits that were made, and acknowledged, between two times."""
    is_it = commits.is_ok & (commits.member == member)
    is_it &= (commits.invoked > begin) & (commits.completed < end)
    return np.flatnonzero(is_it)


def _awake_ns(lives: list[MemberLife], begin: int, end: int) -> int:
    """Return the longest time in the interval in which both could have detected the end of a
    session, if it is too long.

    After a stop, a member may take as long to detect it as one that was only isolated.
    """
    allowed = max(life.session_ns + life.handling_ns for life in lives) + SLACK_NS
    end = min(end, *(life.ended for life in lives))
    longest, since = 0, begin
    for pause in sorted((p for life in lives for p in life.pauses), key=lambda one: one.begin):
        if pause.begin >= end:
            break
        longest = max(longest, pause.begin - since)
        since = max(since, pause.end)
    longest = max(longest, end - since)
    return longest if end < NEVER and longest > allowed else 0


# -- no commit backwards


def _backward(
    run: GroupsGatherer,
    where: str,
    share: Share,
    findings: Findings,
    beyond_since: int,
    *,
    is_exact: bool,
) -> None:
    """Report accepted commits below one that was acknowledged before they were made."""
    commits = Commits.of(share)
    known = commits.known_by(commits.invoked)
    is_back = commits.is_ok & (commits.offset < known) & (commits.completed < beyond_since)
    begun = _begun(share)

    def describe(row: int) -> Found:
        name = run.names[int(commits.member[row])]
        message = (
            f"{where}: a commit of {int(commits.offset[row])} by {name} was accepted, after "
            f"{int(known[row])} had been acknowledged"
        )
        return (
            message,
            {
                "partition": where,
                "offsets": [int(commits.offset[row]), int(known[row])],
                "lines": [int(commits.line[row]), int(commits.last_line[row])],
            },
        )

    rows = [
        row
        for row in np.flatnonzero(is_back).tolist()
        if is_exact or known[row] > commits.known_by(_at(begun, commits, row))[0]
    ]
    findings.each("GROUP-COMMIT-BACKWARD", rows, describe)


def _begun(share: Share) -> dict[int, list[int]]:
    """Return when the partition was assigned to each member, in order."""
    begun: dict[int, list[int]] = {}
    for owned in share.owned:
        begun.setdefault(owned.member, []).append(owned.begin)
    return begun


def _at(begun: Mapping[int, list[int]], commits: Commits, row: int) -> Ints:
    """Return when the partition was last assigned to the committing member. Before that, it could
    start at any committed offset."""
    invoked = int(commits.invoked[row])
    before = [at for at in begun.get(int(commits.member[row]), ()) if at < invoked]
    return np.array([before[-1] if before else invoked])


def _begins_below(
    run: GroupsGatherer,
    where: str,
    share: Share,
    findings: Findings,
    beyond_since: int,
    *,
    is_exact: bool,
) -> None:
    """Report members that started below the offset acknowledged before the partition was theirs."""
    commits = Commits.of(share)
    offset, _, _, _, member, at, line = share.given.columns()
    if not len(offset) or not share.owned:
        return
    order = np.lexsort((at, member))
    offset, member, at, line = offset[order], member[order], at[order], line[order]
    begins = sorted((owned.member, owned.begin, owned.end) for owned in share.owned)
    known_at = commits.known_by(np.array([begin for _, begin, _ in begins]))
    firsts = np.searchsorted(member, [who for who, _, _ in begins], "left").tolist()
    lasts = np.searchsorted(member, [who for who, _, _ in begins], "right").tolist()
    for number, (who, begin, end) in enumerate(begins):
        first, last, known = firsts[number], lasts[number], int(known_at[number])
        place = first + int(np.searchsorted(at[first:last], begin, "left"))
        if place >= last or at[place] > end or at[place] >= beyond_since:
            continue
        given = offset[place : place + 1]
        came_late = commits.attempted(given, at[place : place + 1], late_only=True)[0]
        if given[0] >= known or (came_late and not is_exact):
            continue
        findings.add(
            "GROUP-OFFSET-LOST",
            f"{where}: {run.names[who]} started at {int(given[0])}, after {known} had been "
            "acknowledged",
            partition=where,
            offsets=[int(given[0]), known],
            lines=[int(line[place])],
        )


# -- offsets ---------------------------------------------------------------------------------------
#
# Checks the committed offsets of consumer groups against the offsets that clients read back. Pure.
#
# The offset that was read has to be the last one acknowledged or read before the request, or one
# attempted since. A commit with an unknown outcome may take effect later, over a newer one. The
# offset is then lower, and records are only delivered again, so such cases are only counted.


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
        return _highest(self.offset[self.is_ok], self.completed[self.is_ok], times)

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


def _highest(offset: Ints, completed: Ints, times: Ints) -> Ints:
    """Return the highest of the offsets that were known before each time; ``NOTHING`` if none."""
    order = np.argsort(completed, kind="stable")
    highest = np.maximum.accumulate(np.append(NOTHING, offset[order]))
    return highest[np.searchsorted(completed[order], times, "left")]


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
    # their commits are not recorded; at most, they committed the records that they received
    if is_silent:
        highest = _given_by(share, fetched.completed)
        is_phantom = (offset > 0) & (offset > np.maximum(highest, 0))
    else:
        is_phantom = (offset > 0) & ~commits.attempted(offset, fetched.completed)

    within = fetched.completed < beyond_since
    known = commits.known_by(fetched.invoked)
    # A commit that is not recorded may come late, unless the commits have an order.
    if is_exact or not is_silent:
        told = _highest(offset[~is_phantom], fetched.completed[~is_phantom], fetched.invoked)
        known = np.maximum(known, told)
    is_low = within & (offset < known)
    is_zero = is_low & (offset <= 0)
    came_late = is_low & ~is_zero & (not is_exact)
    came_late &= commits.attempted(offset, fetched.completed, late_only=True)

    def describe(place: int) -> Found:
        reported, least = int(offset[place]), int(known[place])
        shown = "no committed offset" if reported == NOTHING else reported
        message = (
            f"{where}: {run.names[int(fetched.who[place])]} received {shown}, after {least} had "
            "been acknowledged or received"
        )
        return (
            message,
            {"partition": where, "offsets": [reported, least], "lines": _lines(fetched, place)},
        )

    findings.each("GROUP-OFFSET-ZERO", np.flatnonzero(is_zero), describe)
    findings.each("GROUP-OFFSET-LOST", np.flatnonzero(is_low & ~is_zero & ~came_late), describe)

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
