"""Checks a consumer group: ownership of partitions, and committed offsets. Pure.

In the view of its application, a member owns a partition from one notification to the next. Each
response to a heartbeat is a lease (docs/internals/groups.md): it ends before another member
receives the partition. A member whose partition was assigned to another one therefore learns this
in its next poll, and its later commits are rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from raftlog.testing.simulator.checker import Violation
from raftlog.testing.simulator.history import (
    NEVER_NS,
    Commit,
    Committed,
    History,
    Owning,
    Poll,
)
from raftlog.types import Offset, TopicPartition

KINDS: Final[Mapping[str, str]] = {
    "GROUP-TWO-OWNERS": "a member uses a partition, or commits, after another one has received it",
    "GROUP-BACK": "a commit is accepted below one that was acknowledged before it was made",
    "GROUP-OFFSET-LOST": "the group is, or begins, below what was acknowledged before",
    "GROUP-PHANTOM": "an offset is returned as committed that no client tried to commit",
    "GROUP-AHEAD": "an offset is returned as committed beyond the end of the partition",
    "GROUP-SKIPPED": "a record below the committed offset was delivered to no member",
}


def check_group(
    history: History,
    logs: Mapping[TopicPartition, Collection[Offset]],
    *,
    ends: Mapping[TopicPartition, Offset],
    members: str,
    drift_ns: int,
) -> list[Violation]:
    """Every anomaly that there is; none if the run was right.

    ``logs``: the offsets at the end of the run that every reader received. ``ends``: where the
    partitions end, unless unknown. ``members``: what their processes' names begin with.
    ``drift_ns``: by how much two clocks may differ about how long a session is.
    """
    found: list[Violation] = []
    for name, offsets in logs.items():
        part = _Part(name, offsets, ends.get(name, NEVER_NS), drift_ns)
        for entry in history:
            part.take(entry, members)
        found += part.check()
    return found


@dataclass(slots=True)
class _Part:
    """One partition, and what the history says of it."""

    name: TopicPartition
    log: Collection[Offset]
    end: Offset
    drift_ns: int
    owned: list[Owning] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    told: list[Committed] = field(default_factory=list)
    polls: dict[str, list[Poll]] = field(default_factory=dict)  # by member

    def take(self, entry: object, members: str) -> None:
        if isinstance(entry, Owning) and entry.partition == self.name:
            self.owned.append(entry)
        elif isinstance(entry, Commit) and self.name in entry.offsets:
            self.commits.append(entry)
        elif isinstance(entry, Committed) and entry.is_ok:
            self.told.append(entry)
        elif isinstance(entry, Poll) and entry.is_ok and entry.process.startswith(members):
            # A member's polls have a number for each of its assignments.
            self.polls.setdefault(entry.process.partition("@")[0], []).append(entry)

    def check(self) -> Iterator[Violation]:
        yield from self._two_owners()
        yield from self._commits()
        yield from self._answers()
        yield from self._beginnings()
        yield from self._skipped()

    # -- owners

    def _two_owners(self) -> Iterator[Violation]:
        """For each member that is given the partition, those that have it, and go on with it."""
        for heir in self.owned:
            since_ns = heir.invoked_ns + self.drift_ns
            for owner in self.owned:
                if owner.process == heir.process or owner.invoked_ns >= heir.invoked_ns:
                    continue
                for poll in self.polls.get(owner.process, ()):
                    if poll.invoked_ns > since_ns and poll.completed_ns < owner.completed_ns:
                        yield self._two(owner, heir, f"polled at {poll.invoked_ns} ns")
                        break
        for commit in self.commits:
            heirs = [heir for heir in self.owned if heir.invoked_ns < commit.invoked_ns]
            if (
                commit.is_ok
                and heirs
                and heirs[-1].process != commit.process
                and heirs[-1].invoked_ns + self.drift_ns < commit.invoked_ns
            ):
                yield self._two(commit, heirs[-1], f"committed {commit.offsets[self.name]}")

    def _two(self, owner: Owning | Commit, heir: Owning, what: str) -> Violation:
        return Violation(
            "GROUP-TWO-OWNERS",
            f"{self.name}: {owner.process} {what}, after {heir.process} was given it at "
            f"{heir.invoked_ns} ns",
        )

    # -- offsets

    def _acknowledged(self, before_ns: int) -> Offset:
        """The highest offset that was committed for sure by then; -1 for none."""
        return max(
            (
                commit.offsets[self.name]
                for commit in self.commits
                if commit.is_ok and commit.completed_ns < before_ns
            ),
            default=-1,
        )

    def _commits(self) -> Iterator[Violation]:
        for commit in self.commits:
            offset, known = commit.offsets[self.name], self._acknowledged(commit.invoked_ns)
            if commit.is_ok and offset < known:
                yield Violation(
                    "GROUP-BACK",
                    f"{self.name}: {commit.process} committed {offset}, after {known}",
                )

    def _answers(self) -> Iterator[Violation]:
        for asked in self.told:
            offset, known = asked.offsets.get(self.name, -1), self._acknowledged(asked.invoked_ns)
            what = f"{self.name}: {asked.process} is told {offset}"
            if offset < known:
                yield Violation("GROUP-OFFSET-LOST", f"{what}, after {known} was committed")
            attempts = {
                commit.offsets[self.name]
                for commit in self.commits
                if commit.invoked_ns < asked.completed_ns
            }
            if offset >= 0 and offset not in attempts:
                yield Violation("GROUP-PHANTOM", what)
            if offset > self.end:
                yield Violation("GROUP-AHEAD", f"{what}; it ends at {self.end}")

    def _beginnings(self) -> Iterator[Violation]:
        """A member goes on from where the group is."""
        for owning in self.owned:
            known = self._acknowledged(owning.invoked_ns)
            firsts = (
                poll.records[self.name][0].offset
                for poll in self.polls.get(owning.process, ())
                if self.name in poll.records
                and owning.invoked_ns <= poll.completed_ns <= owning.completed_ns
            )
            first = next(firsts, known)
            if first < known:
                yield Violation(
                    "GROUP-OFFSET-LOST",
                    f"{self.name}: {owning.process} begins at {first}, after {known} was committed",
                )

    def _skipped(self) -> Iterator[Violation]:
        committed = self._acknowledged(1 << 63)
        polls = chain.from_iterable(self.polls.values())
        given = {seen.offset for poll in polls for seen in poll.records.get(self.name, ())}
        missing = sorted(
            offset for offset in self.log if offset < committed and offset not in given
        )
        if missing:
            yield Violation(
                "GROUP-SKIPPED",
                f"{self.name}: {missing[:5]} were given to no member, and {committed} is committed",
            )


def has_got_on(history: History, name: TopicPartition, since_ns: int) -> bool:
    """Whether a member has committed an offset of a partition, in an attempt after that time."""
    return any(
        isinstance(entry, Commit)
        and entry.is_ok
        and entry.invoked_ns > since_ns
        and name in entry.offsets
        for entry in reversed(history.operations)
    )
