"""One Raft group on one broker, through its generations.

A generation has fixed voters, an initial state (its *base*) and a separate log. A seal, committed
like any command, ends it: the state at that point is the base of the next generation. A broker that
missed the seal sends messages of the older generation. The first broker that receives one *offers*
it the newer generation, and it adopts that durably before it sends messages of it. A broker that
receives a message of a newer generation sends *hello* in its current one, and receives an offer of
the newer one. A broker that is not a voter keeps no log. It sends hello to the voters until each
has reported its generation, so that voters that are all new receive it too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from raftlog.consensus import transport
from raftlog.consensus.journal import Journal
from raftlog.consensus.raft_group import CANDIDATE, LEADER, NEVER, VOID, RaftGroup, Timing
from raftlog.consensus.settings import (
    APPEND_BYTES,
    BASE_BYTES_MAX,
    FORCED_GENERATIONS,
    Applied,
    ConsensusSettings,
    NotProposed,
    Outcome,
    StateMachine,
    Unknown,
)
from raftlog.consensus.transport import Link, PeerTransport

# -- proposals -------------------------------------------------------------------------------------
#
# Commands of one group that this broker's callers have proposed, until their outcome is known.
#
# A proposal waits for a leader. Then it is *placed* in this broker's log, or *forwarded* to the
# leader, which responds with its index or a rejection. It ends exactly once: when the entry at its
# index is applied, or when an event makes its outcome unknown. Bookkeeping only: ``HostedGroup``
# decides what to do with a proposal.


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
        # guard: only the broker that received a command reports its position
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
        # guard: a command that timed out is unknown
        self._end(_due(self._sent.values(), now), Unknown("not known to be committed in time"))

    def leader_is(self, leader: int | None, term: int) -> None:
        """End proposals sent to another leader, or in another term, with an unknown outcome."""
        lost = [
            proposal
            for proposal in self._sent.values()
            if proposal.forwarded_to is not None and proposal.forwarded_to != (leader, term)
        ]
        # guard: a forwarded command is unknown once the leader changed
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


# -- hosted group ----------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

HELLO_BEATS_MAX: Final = 32  # heartbeat intervals; longest time between two hellos

_ROLES: Final = {LEADER: "leader", CANDIDATE: "candidate"}


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """``role`` is leader, candidate, follower, or observer (a broker that is not a voter)."""

    role: str
    leader: int | None
    term: int
    generation: int
    voters: Mapping[int, str]
    commit_index: int
    applied_index: int
    entries: int  # in the generation's journal


@dataclass(frozen=True, slots=True)
class Journaled:
    """Contents of a broker's journal for one group, committed or not.

    ``term`` and ``index``: of the last entry; 0 for a broker that is not a voter. ``unapplied``:
    the commands that its state machine has not applied yet. ``leader``: the one that it has heard
    within an election timeout, if it is a voter.
    """

    generation: int
    term: int
    index: int
    voters: Mapping[int, str]
    unapplied: tuple[bytes, ...]
    leader: int | None


@dataclass(frozen=True, slots=True)
class Services:
    """Functions of the node that its groups use."""

    broker_id: int
    directory_id: str
    journal: Journal
    links: dict[int, Link]
    settings: ConsensusSettings
    timing: Timing
    chance: Callable[[], float]
    finish: Finish


class HostedGroup:
    """See the module. Invariant: ``raft`` is set if and only if this broker is a voter."""

    __slots__ = (
        "_forwarded",
        "_hello_due",
        "_hello_wait",
        "_offer_allowed_at",
        "_services",
        "_unreported",
        "journal",
        "machine",
        "proposals",
        "raft",
        "raft_id",
        "reported",
        "scheduled",
        "voters",
    )

    def __init__(self, raft_id: str, machine: StateMachine, services: Services) -> None:
        self.raft_id = raft_id
        self.machine = machine
        self.journal = services.journal.group(raft_id)
        self.voters: dict[int, str] = {}  # sorted by broker id
        self.raft: RaftGroup | None = None
        self.proposals = Proposals(services.finish)
        self.scheduled = NEVER  # used by the node: monotonic time of its next check
        self.reported: object = None  # used by the node: the last ``standing`` that it reported
        self._services = services
        self._forwarded: list[tuple[int, int, bytes]] = []  # peer, its number, entry
        self._offer_allowed_at: dict[int, float] = {}  # next offer or hello
        self._unreported: set[int] = set()  # voters that have not reported their generation
        self._hello_due = NEVER  # of an observer
        self._hello_wait = 0.0

    def open(
        self, voters: Mapping[int, str], base: bytes, now: float, *, needs_leader: bool = True
    ) -> None:
        """Continue from the journal; ``voters`` and ``base`` are used if it has no generation.

        A voter with directory ``""`` has no vote: it receives hello, and can offer a newer
        generation.
        ``needs_leader``: False postpones the first election of a new group until a command waits.
        """
        is_new = self.journal.is_new
        start = base if is_new else self.journal.base
        if start or self.journal.generation > 0:
            self.machine.restore(start)
        if is_new:
            self.journal.begin_generation(0, voters, base)
        self._build(now)
        if is_new and not needs_leader and self.raft is not None:
            self.raft.postpone_election(now)

    def close(self) -> None:
        """Leave the group. The machine may call this while it applies a command."""
        self.raft = None
        self._hello_due = NEVER
        self.proposals.close("the group was closed")

    @property
    def generation(self) -> int:
        return self.journal.generation

    @property
    def is_led_here(self) -> bool:
        """Whether this broker considers itself the Raft leader."""
        return self.raft is not None and _ROLES.get(self.raft.role) == "leader"

    def status(self) -> GroupStatus:
        raft = self.raft
        if raft is None:
            return GroupStatus("observer", None, 0, self.generation, dict(self.voters), 0, 0, 0)
        return GroupStatus(
            role=_ROLES.get(raft.role, "follower"),
            leader=raft.leader,
            term=raft.term,
            generation=self.generation,
            voters=dict(self.voters),
            commit_index=raft.commit_index,
            applied_index=raft.applied_index,
            entries=raft.entries,
        )

    def journaled(self, now: float) -> Journaled:
        raft = self.raft
        term, index = (0, 0) if raft is None else raft.log_end()
        unapplied = [] if raft is None else raft.unapplied()
        leader = None if raft is None else raft.leader_in_contact(now)
        return Journaled(self.generation, term, index, dict(self.voters), tuple(unapplied), leader)

    def standing(self) -> tuple[int, int, int | None]:
        """Return generation, role and leader: the values whose changes are reported."""
        raft = self.raft
        if raft is None:
            return self.generation, -1, None
        return self.generation, raft.role, raft.leader

    def due(self) -> float:
        """Monotonic time at which ``step`` has work without new input."""
        raft = self._hello_due if self.raft is None else self.raft.due()
        return min(raft, self.proposals.due()) if self.proposals else raft

    @property
    def wants_step(self) -> bool:
        return self.raft is not None and self.raft.wants_step

    # -- generations -------------------------------------------------------------------------------

    def _build(self, now: float) -> None:
        services = self._services
        self.voters = dict(sorted(self.journal.voters.items()))
        self._forwarded, self._offer_allowed_at = [], {}
        self._unreported = set(self.voters) - {services.broker_id}
        self._hello_due = NEVER
        self.raft = None
        # guard: a wiped voter does not vote
        if self.voters.get(services.broker_id) != services.directory_id:
            self._hello_soon(now)
            return
        self.raft = RaftGroup(
            services.broker_id,
            self.voters,
            journal=self.journal,
            transport=PeerTransport(services.links, self.raft_id, self.generation),
            timing=services.timing,
            chance=services.chance,
            apply=self.machine.apply,
            now=now,
        )
        for peer in sorted(self._unreported):
            if self._is_voter(peer):
                self.raft.peer_up(peer, now)

    def _begin(self, generation: int, voters: Mapping[int, str], now: float, base: bytes) -> None:
        self.journal.begin_generation(generation, voters, base)
        self._build(now)

    def _pass_seal(self, raft: RaftGroup, voters: Mapping[int, str], now: float) -> None:
        """Start the next generation after its seal was applied. First send followers the commit."""
        ended, was_leader = self.generation, raft.is_leader
        raft.send_appends(now)
        base = self.machine.snapshot()
        if len(base) > BASE_BYTES_MAX:
            logger.error(
                "group state too large to offer to other brokers: group=%s bytes=%d bytes_max=%d",
                self.raft_id, len(base), BASE_BYTES_MAX,
            )  # fmt: skip
        self._begin(ended + 1, voters, now, base)
        self.proposals.generation_ended(ended, is_applied=True)
        if was_leader and self.raft is not None:
            # The other voters must apply the seal first. Their former leader is then elected soon.
            self.raft.campaign_at(now + self._services.timing.tick)

    def force(
        self,
        voters: Mapping[int, str],
        now: float,
        base: bytes | None = None,
        above: int | None = None,
    ) -> None:
        """Continue without permanently lost voters, from ``base`` or from the local state."""
        # guard: a recovery does not revert another one
        if above is not None and self.generation > above:
            return  # another recovery was quicker: what it has committed must not be reverted
        ended = max(self.generation, above or 0)
        if base is not None:
            self.machine.restore(base)
        elif self.raft is not None:
            self.raft.apply_all(now)
        self._begin(ended + FORCED_GENERATIONS, voters, now, self.machine.snapshot())
        self.proposals.generation_ended(ended, is_applied=False)

    def found(self, voters: Mapping[int, str], base: bytes, now: float) -> None:
        """Start the first generation that has voters, and send the others hello immediately."""
        assert self.generation == 0 and self.raft is None, "the group has a generation"
        self.machine.restore(base)
        self._begin(1, voters, now, base)
        for peer in sorted(self._unreported):
            self._post(peer, 0, transport.HELLO, False)

    def _on_offer(self, peer: int, generation: int, fields: list[Any], now: float) -> bool:
        pairs, base = fields
        voters = dict(pairs)
        # guard: only newer generations are adopted
        if generation <= self.generation:
            return True
        directory = self._services.links[peer].directory_id
        if directory != (voters.get(peer) or self.voters.get(peer) or directory):
            # guard: an offer of a voter without its disk is rejected
            return False  # a voter that restarted without its disk
        before = self.machine.snapshot()
        try:
            self.machine.restore(base)
        except Exception:  # untrusted bytes, read by the caller's state machine
            logger.exception("offered group state rejected: group=%s broker=%d", self.raft_id, peer)
            self.machine.restore(before)
            return False
        ended = self.generation
        self._begin(generation, voters, now, base)
        self.proposals.generation_ended(ended, is_applied=False)
        return True

    # -- links and messages ------------------------------------------------------------------------

    def _is_voter(self, peer: int) -> bool:
        link = self._services.links.get(peer)
        # guard: a voter is its directory
        return link is not None and link.is_up and link.directory_id == self.voters.get(peer)

    def peer_up(self, peer: int, now: float) -> None:
        if peer not in self.voters:
            return
        self._offer_allowed_at.pop(peer, None)
        self._unreported.add(peer)
        if self.raft is None:
            self._hello_soon(now)
        elif self._is_voter(peer):
            self.raft.peer_up(peer, now)

    def peer_down(self, peer: int, now: float) -> None:
        if self.raft is not None and peer in self.voters:
            self.raft.peer_down(peer, now)
            self.proposals.link_lost(peer)

    def peer_silent(self, peer: int, now: float) -> None:
        """Handle a peer that has a link but sends no beats: its consensus does not work."""
        if self.raft is not None and peer in self.voters:
            self.raft.peer_silent(peer, now)

    def receive(self, peer: int, message: list[Any], now: float) -> bool:
        """Process a message from the peer's link. Returns False if it is invalid."""
        _raft_id, generation, term, kind, *fields = message
        if kind == transport.OFFER:
            return self._on_offer(peer, generation, fields, now)
        # guard: messages of another generation are dropped
        if generation != self.journal.generation:
            self._answer_other_generation(peer, generation, now)
            return True
        if kind == transport.HELLO:
            self._unreported.discard(peer)
            if not fields[0]:
                self._post(peer, 0, transport.HELLO, True)
            return True
        raft = self.raft
        # guard: only messages of voters count
        if raft is None or not raft.hears(peer):
            return True
        if kind <= transport.APPEND_ANSWER:
            return raft.receive(peer, term, kind, fields, now)
        return self._on_proposal(raft, peer, term, kind, fields, now)

    def _answer_other_generation(self, peer: int, generation: int, now: float) -> None:
        """Send an offer or hello at most once per interval: each one causes a response."""
        if now < self._offer_allowed_at.get(peer, now):
            return
        wait = self._services.timing.suspect
        if generation < self.generation:
            wait *= 1 + len(self.journal.base) // APPEND_BYTES  # a large base takes longer to send
        self._offer_allowed_at[peer] = now + wait
        if generation < self.generation:
            self._post(peer, 0, transport.OFFER, list(self.voters.items()), self.journal.base)
        else:
            self._post(peer, 0, transport.HELLO, False)

    def _post(self, peer: int, term: int, kind: int, *fields: object) -> None:
        link = self._services.links.get(peer)
        if link is not None:
            link.post([self.raft_id, self.generation, term, kind, *fields])

    def _hello_soon(self, now: float) -> None:
        self._hello_due = now
        self._hello_wait = self._services.timing.heartbeat

    def _say_hello(self, now: float) -> None:
        """Send hello to voters that have not responded, at growing intervals. Some may never open
        the group."""
        for peer in sorted(self._unreported):
            self._post(peer, 0, transport.HELLO, False)
        self._hello_due = now + self._hello_wait if self._unreported else NEVER
        self._hello_wait = min(
            2 * self._hello_wait, HELLO_BEATS_MAX * self._services.timing.heartbeat
        )

    # -- proposals ---------------------------------------------------------------------------------

    def _on_proposal(
        self, raft: RaftGroup, peer: int, term: int, kind: int, fields: list[Any], now: float
    ) -> bool:
        if kind == transport.PROPOSE:
            self._forwarded.append((peer, *fields))  # ``speak`` appends it, after ``step``
            return True
        if kind == transport.REFUSED:
            later = now + self._services.timing.tick
            self.proposals.refused(fields[0], peer, not_before=later)
            return True
        number, index = fields
        proposal = self.proposals.answered(number, peer)
        if proposal is None:
            return True
        if index <= raft.applied_index:  # leaders report the index before any broker can apply it
            self.proposals.finish(proposal, Unknown("the leader's response arrived too late"))
            return False
        raft.watch(index, term, partial(self._on_applied, proposal, self.generation))
        return True

    def _on_applied(self, proposal: Proposal, generation: int, result: object) -> None:
        # guard: a command whose index has another entry was not applied
        if result is VOID:
            self.proposals.finish(proposal, NotProposed("its index has another command"))
        elif proposal.entry[0] == transport.SEAL:
            self.proposals.finish(proposal, Applied(generation + 1))
        else:
            self.proposals.finish(proposal, Applied(result))

    def _place_for_others(self, raft: RaftGroup, now: float) -> None:
        for peer, number, entry in self._forwarded:
            if raft.accepts:
                self._post(peer, raft.term, transport.PROPOSED, number, raft.append(entry, now))
            else:
                self._post(peer, raft.term, transport.REFUSED, number)
        self._forwarded = []

    def _place(self, raft: RaftGroup, now: float) -> None:
        """Append waiting proposals if this broker leads, or forward them to the leader."""
        leader = raft.leader
        for proposal in self.proposals.waiting(now):
            if proposal.generation not in (None, self.generation):
                self.proposals.finish(proposal, NotProposed("its generation ended"))
            elif raft.accepts:
                self.proposals.placed(proposal)
                placed = partial(self._on_applied, proposal, self.generation)
                raft.append(proposal.entry, now, placed)
            elif leader is not None and raft.hears(leader):
                self.proposals.forwarded(proposal, leader, raft.term)
                self._post(leader, raft.term, transport.PROPOSE, proposal.number, proposal.entry)

    # -- called by the node after messages and when due --------------------------------------------

    def step(self, now: float) -> None:
        """Count and apply entries, and do work that is due. Call it only while all journaled
        changes are durable.
        """
        if self.raft is None:
            if now >= self._hello_due:
                self._say_hello(now)
        else:
            raft = self.raft
            raft.step(now)
            if raft.seal is not None and self.raft is raft:  # else the machine closed the group
                self._pass_seal(raft, raft.seal, now)
        if self.proposals:
            self.proposals.expire(now)

    def speak(self, now: float) -> None:
        """Append waiting commands, and send followers their new entries."""
        raft = self.raft
        if raft is None:
            if self.proposals:
                self.proposals.close("this broker is not a voter of the group")
            return
        if self.proposals:
            self.proposals.leader_is(raft.leader, raft.term)
            raft.need_leader(now)
            self._place(raft, now)
        if self._forwarded:
            self._place_for_others(raft, now)
        if raft.wants_append:
            if raft.entries >= self._services.settings.seal_after_entries and raft.accepts:
                raft.append(transport.encode_seal(self.voters), now)
            raft.send_appends(now)
