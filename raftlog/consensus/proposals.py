"""Commands of one group that this broker's callers have proposed, until their outcome is known.

A proposal waits for a leader. Then it is *placed* in this broker's log, or *forwarded* to the
leader, which responds with its index or a rejection. It ends exactly once: when the entry at its
index is applied, or when an event makes its outcome unknown. Bookkeeping only: ``HostedGroup``
decides what to do with a proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from raftlog.consensus.outcome import NotProposed, Outcome, Unknown
from raftlog.consensus.raft_group import NEVER

Done: TypeAlias = Callable[[Outcome], None]
Finish: TypeAlias = Callable[[Done, Outcome], None]  # the owner calls ``done``


@dataclass(slots=True)
class Proposal:
    """Exactly one of: waiting, forwarded, placed; then finished."""

    number: int  # unique on this broker, across its boots
    entry: bytes
    done: Done
    deadline: float
    generation: int | None = None  # the only one in which it is valid; None: any
    not_before: float = 0.0  # monotonic seconds; earliest retry after the leader refused it
    forwarded_to: tuple[int, int] | None = None  # leader and term, until the leader responds


class Proposals:
    """Invariant: each proposal is in one of the two tables, in arrival order."""

    __slots__ = ("_finish", "_sent", "_waiting")

    def __init__(self, finish: Finish) -> None:
        self._finish = finish
        self._waiting: dict[int, Proposal] = {}
        self._sent: dict[int, Proposal] = {}  # placed or forwarded: may be applied

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    def add(self, proposal: Proposal) -> None:
        self._waiting[proposal.number] = proposal

    def waiting(self, now: float) -> list[Proposal]:
        """Return the proposals that can be placed or forwarded now. The others wait."""
        ready = [each for each in self._waiting.values() if each.not_before <= now]
        for proposal in ready:
            proposal.not_before = 0.0
        return ready

    def due(self) -> float:
        """Monotonic time of the next deadline of these proposals."""
        if not self:
            return NEVER
        due = NEVER
        for proposal in self._waiting.values():
            due = min(due, proposal.deadline, proposal.not_before or NEVER)
        for proposal in self._sent.values():
            return min(due, proposal.deadline)  # the first is the oldest
        return due

    # -- in flight ---------------------------------------------------------------------------------

    def placed(self, proposal: Proposal) -> None:
        """Record that the proposal is in this broker's log."""
        self._move(proposal)

    def forwarded(self, proposal: Proposal, leader: int, term: int) -> None:
        """Record that the proposal was sent to the leader of ``term``."""
        proposal.forwarded_to = leader, term
        self._move(proposal)

    def _move(self, proposal: Proposal) -> None:
        del self._waiting[proposal.number]
        self._sent[proposal.number] = proposal

    def answered(self, number: int, leader: int) -> Proposal | None:
        """Return the forwarded proposal that ``leader`` has placed; None if it has ended."""
        proposal = self._sent.get(number)
        if proposal is None or proposal.forwarded_to is None:
            return None
        if proposal.forwarded_to[0] != leader:
            return None
        proposal.forwarded_to = None
        return proposal

    def refused(self, number: int, leader: int, *, not_before: float) -> None:
        """Move a proposal that the leader did not place back to the waiting ones."""
        proposal = self.answered(number, leader)
        if proposal is None:
            return
        proposal.not_before = not_before
        del self._sent[number]
        # In arrival order, so that the first is the oldest.
        self._waiting = dict(sorted({**self._waiting, number: proposal}.items()))

    # -- the end -----------------------------------------------------------------------------------

    def finish(self, proposal: Proposal, outcome: Outcome) -> None:
        """Report the outcome of a proposal. Does nothing if it has ended."""
        found = self._sent.pop(proposal.number, None) or self._waiting.pop(proposal.number, None)
        if found is not None:
            self._finish(found.done, outcome)

    def expire(self, now: float) -> None:
        """End proposals whose deadline has passed."""
        self._end(_due(self._waiting.values(), now), NotProposed("no leader in time"))
        self._end(_due(self._sent.values(), now), Unknown("not known to be committed in time"))

    def leader_is(self, leader: int | None, term: int) -> None:
        """End proposals sent to another leader, or in another term, with an unknown outcome."""
        lost = [
            proposal
            for proposal in self._sent.values()
            if proposal.forwarded_to is not None and proposal.forwarded_to != (leader, term)
        ]
        self._end(lost, Unknown("the leader changed"))

    def link_lost(self, peer: int) -> None:
        """Treat the outcome of proposals forwarded to this peer as unknown."""
        lost = [
            proposal
            for proposal in self._sent.values()
            if proposal.forwarded_to is not None and proposal.forwarded_to[0] == peer
        ]
        self._end(lost, Unknown("the connection to the leader was lost"))

    def generation_ended(self, generation: int, *, is_applied: bool) -> None:
        """End proposals of ``generation``. ``is_applied``: this broker applied its whole log.

        In that case, placed proposals that were not applied follow the seal and have no effect.
        """
        placed = [each for each in self._sent.values() if each.forwarded_to is None]
        sealed = NotProposed(f"generation {generation} was sealed before it")
        unknown = Unknown(f"generation {generation} ended")
        self._end(placed, sealed if is_applied else unknown)
        self._end(list(self._sent.values()), unknown)
        self._end([each for each in self._waiting.values() if each.generation is not None], sealed)

    def close(self, reason: str) -> None:
        """End all proposals: the group was closed on this broker."""
        self._end(list(self._waiting.values()), NotProposed(reason))
        self._end(list(self._sent.values()), Unknown(reason))

    def _end(self, proposals: Iterable[Proposal], outcome: Outcome) -> None:
        for proposal in proposals:
            self.finish(proposal, outcome)


def _due(proposals: Iterable[Proposal], now: float) -> list[Proposal]:
    """Return the proposals whose deadline has passed. They are the oldest, so they are first."""
    found = []
    for proposal in proposals:
        if proposal.deadline > now:
            break
        found.append(proposal)
    return found
