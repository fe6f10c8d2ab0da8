"""One generation of one Raft group: PySyncObj made safe. The only module with its mangled names.

The library manages the roles, counts committed entries and applies them in order. This module
overrides its unsafe parts: all received messages, all sent messages, and elections. Numbers in
brackets are the hazards that the tests name.

- Appends: an entry is truncated only if the leader's has another term, never at or below the commit
  index [1, 2]. The response to a conflict has the first index of the conflicting term [23].
- Every message has its sender's term. A higher term ends any role; responses of another term are
  ignored [3, 14].
- Elections start with a pre-vote, which a voter with a live leader refuses [15]. Votes are counted
  by identity, and granted again if requested again [4, 23].
- A leader that receives no responses of a majority for an election timeout steps down
  (check-quorum, Raft dissertation, 6.2) [14]. So does a leader without links to a majority.
- A group without new entries is *idle*: its leader sends few heartbeats, as in CockroachDB's
  quiescence. Instead, beats of brokers (``ConsensusNode``) show that leader and followers work.
- No compaction, snapshots, membership changes, read-only nodes or code versions [7-9, 11, 12, 17];
  no pickle [20]. A command is bytes, and applying it cannot raise [16].

Messages may depend on unsynced changes: the owner delays them until the journal is synced. Only
then does it call ``step``, which counts this broker's own entries [6].
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Final, TypeAlias

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, syncobj
from pysyncobj.node import Node

from raftlog.consensus import journal as raft_log
from raftlog.consensus import transport as envelope
from raftlog.consensus.journal import FIRST_INDEX, CommittedEntryError, RaftJournal, RaftLog
from raftlog.consensus.settings import (
    TERM_JUMP_MAX,
    WINDOW_ENTRIES,
    CommandFailed,
    ConsensusSettings,
)
from raftlog.consensus.transport import COMMAND, NO_OP, SEAL, PeerTransport

# -- library ---------------------------------------------------------------------------------------
#
# Environment of PySyncObj: its settings, and the clock, journal and poller in its globals.
#
# Importing this module changes these globals, for Raft groups only. Other users of the library in
# this process are not affected. No knowledge of groups, and no mangled names.


_NO_POLLER: Final = "none"
NODES_MAX: Final = 1_000  # cached; others are created again


class _Seat(threading.local):
    """Values of the library's globals in this thread while a group is processed."""

    now: float | None = None
    journal: RaftJournal | None = None


_seat = _Seat()


class _NoPoller:
    """The library polls sockets at the end of each tick; a group has no sockets."""

    def poll(self, timeout: float) -> None:
        pass


def _install() -> None:
    clock, journal, poller = syncobj.monotonicTime, syncobj.createJournal, syncobj.createPoller

    def own_clock() -> Any:
        return clock() if _seat.now is None else _seat.now

    def own_journal(path: str | None = None) -> Any:
        return journal(path) if _seat.journal is None else _seat.journal

    def own_poller(kind: str) -> Any:
        return _NoPoller() if kind == _NO_POLLER else poller(kind)

    syncobj.monotonicTime = own_clock
    syncobj.createJournal = own_journal
    syncobj.createPoller = own_poller


_install()


def set_now(now: float) -> None:
    """Set the monotonic time in seconds that the library uses in this thread."""
    _seat.now = now


def now() -> float:
    """Return the time that the library uses."""
    return float(syncobj.monotonicTime())


def set_journal(journal: RaftJournal | None) -> None:
    """Set the journal of the next group that this thread creates."""
    _seat.journal = journal


class PeerNode(Node):  # type: ignore[misc]  # the library has no types
    """A broker in the library. Its hash is that of an int: the same in every process."""

    def __init__(self, broker_id: int) -> None:
        super().__init__(broker_id)

    def __str__(self) -> str:
        return str(self.id)


@lru_cache(NODES_MAX)
def peer_node(broker_id: int) -> PeerNode:
    """Return the immutable node of a broker, shared by all groups."""
    return PeerNode(broker_id)


class _Void:
    """The type of ``VOID``."""


VOID: Final = _Void()  # the result of an entry that has no effect
Placed: TypeAlias = Callable[[object], None]  # called with an entry's result


def subscriber(placed: Placed) -> Callable[[object, int], None]:
    """Return a callback for the library. It passes the result of an entry; ``VOID`` on failure."""

    def called(result: object, reason: int) -> None:
        placed(result if reason == FAIL_REASON.SUCCESS else VOID)

    return called


class Timing:
    """Timeouts in seconds, and the library's settings for them."""

    def __init__(self, settings: ConsensusSettings) -> None:
        self.election = settings.election_timeout_ms / 1_000
        self.suspect = settings.suspect_timeout_ms / 1_000
        self.heartbeat = settings.heartbeat_ms / 1_000
        self.idle_heartbeat = settings.idle_heartbeat_ms / 1_000
        self.tick = settings.tick_ms / 1_000
        # Only leaderFallbackTimeout has an effect: a leader's check of its quorum. All groups
        # share the object.
        # guard: a leader checks that it has a quorum
        self.library_settings = SyncObjConf(
            autoTick=False,
            commandsWaitLeader=False,
            dynamicMembershipChange=False,
            appendEntriesUseBatch=True,
            appendEntriesPeriod=self.tick / 4,
            raftMinTimeout=self.election,
            raftMaxTimeout=2 * self.election,
            connectionTimeout=2 * self.election,
            leaderFallbackTimeout=self.election,
            pollerType=_NO_POLLER,
        )

    def next_heartbeat(self, now: float) -> float:
        """Return the time of the next heartbeat: one interval from ``now``, or up to a tick less,
        so that the heartbeats of many groups coincide.
        """
        due = now + self.heartbeat
        return max(due - due % self.tick, now + self.heartbeat / 2)

    def coincident(self, due: float) -> float:
        """Return ``due``, or up to a heartbeat earlier, so that the heartbeats of many idle groups
        share the messages between two brokers: a message costs more than a heartbeat in it.
        """
        return due - due % self.heartbeat


# -- raft group ------------------------------------------------------------------------------------


# ruff: noqa: N802 - the names of overridden methods are the library's


logger = logging.getLogger(__name__)

FOLLOWER: Final = 0  # the library's numbers
CANDIDATE: Final = 1
LEADER: Final = 2
NEVER: Final = float("inf")
IDLE_HEARTBEATS_MISSED: Final = 3  # of an idle leader, before followers start an election


class RaftGroup(SyncObj):  # type: ignore[misc]  # the library has no types
    """See the module. ``voters`` do not change. ``apply`` receives committed commands in order."""

    _SyncObj__raftLeader: PeerNode | None

    def __init__(
        self,
        broker_id: int,
        voters: Mapping[int, str],
        *,
        journal: RaftJournal,
        transport: PeerTransport,
        timing: Timing,
        chance: Callable[[], float],
        apply: Callable[[bytes], object],
        now: float,
    ) -> None:
        self.wants_step = False  # entries may be committed or applied
        self.wants_append = False  # followers should receive an append
        self.seal: dict[int, str] | None = None  # the next voters, once a seal was applied
        self._broker_id = broker_id
        self._timing = timing
        self._ballot = Ballot(broker_id, len(voters), timing, chance)
        self._apply = apply
        self._peers = {peer: peer_node(peer) for peer in sorted(voters) if peer != broker_id}
        self._up: list[int] = []  # peers with a link, sorted
        self._followers: dict[int, Follower] = {}
        self._heard_at = -NEVER  # monotonic time of the leader's last message
        self._heartbeat_due = NEVER
        self._heartbeat_at = -NEVER  # time of the last heartbeat
        self._is_settled = False  # at the last heartbeat every follower had all entries
        self._is_idle = False  # this leader sends few heartbeats
        self._is_postponed = False  # the first election is postponed
        self._isolated_since = NEVER  # since when this leader has no links to a majority
        set_now(now)
        set_journal(journal)
        try:
            super().__init__(
                peer_node(broker_id),
                list(self._peers.values()),
                conf=timing.library_settings,
                nodeClass=PeerNode,
                transport=transport,
            )
        finally:
            set_journal(None)
        self._SyncObj__properies: frozenset[str] = (
            frozenset()
        )  # attributes that a dump excludes: no dumps are made
        self._SyncObj__newAppendEntriesTime = NEVER  # heartbeats have their own schedule
        self._log = RaftLog(journal)
        self._SyncObj__raftElectionDeadline = now + (
            self._ballot.short_wait() if self._peers else 0
        )

    def __dir__(self) -> list[str]:
        """Return no names: the library searches them for replicated methods, which takes most of
        the time to create a group, and there are none."""
        return []

    # -- state -------------------------------------------------------------------------------------

    @property
    def role(self) -> int:
        return int(self._SyncObj__raftState)

    @property
    def is_leader(self) -> bool:
        return self.role == LEADER

    @property
    def leader(self) -> int | None:
        """The last known leader of this term. It may be stale, and may have failed."""
        node = self._SyncObj__raftLeader
        return None if node is None else int(node.id)

    @property
    def term(self) -> int:
        return int(self._SyncObj__raftCurrentTerm)

    @property
    def commit_index(self) -> int:
        return int(self._SyncObj__raftCommitIndex)

    @property
    def applied_index(self) -> int:
        return int(self._SyncObj__raftLastApplied)

    @property
    def entries(self) -> int:
        return len(self._SyncObj__raftLog)

    @property
    def accepts(self) -> bool:
        """Whether appended entries can have an effect: this broker leads, and there is no seal."""
        # guard: a sealed generation rejects commands
        return self.is_leader and self._log.seal_index is None

    def log_end(self) -> tuple[int, int]:
        """Return the term and the index of the last entry."""
        return self._log.end

    def unapplied(self) -> list[bytes]:
        """Return the commands in the log that were not applied yet, up to a seal."""
        commands: list[bytes] = []
        index = self.applied_index + 1
        while index <= self._log.last_index:
            for _term, entry in self._log.entries_from(index):
                index += 1
                if envelope.is_seal(entry):
                    return commands
                if entry[0] == COMMAND:
                    commands.append(entry[1:])
        return commands

    def due(self) -> float:
        """Monotonic time at which ``step`` has work without new input."""
        if self._SyncObj__raftState == LEADER:
            return min(self._heartbeat_due, self._isolated_since + self._timing.suspect)
        return NEVER if self.seal is not None else float(self._SyncObj__raftElectionDeadline)

    # -- inputs ------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Count and apply entries, and do work that is due. Call it only while all journaled
        changes are durable.
        """
        set_now(now)
        self.wants_step = False
        committed = self._SyncObj__raftCommitIndex
        if not self.is_leader:
            if committed > self._SyncObj__raftLastApplied:
                self.doTick(0.0)
            if now >= self.due():
                self._on_silence(now)
            return
        if self._is_idle:
            self._count_beats()
        self.doTick(0.0)
        is_isolated = now >= self._isolated_since + self._timing.suspect
        # guard: a leader without links steps down
        if is_isolated or self.role != LEADER:
            self._step_down(now)
            return
        if self._SyncObj__raftCommitIndex > committed:
            self.wants_append = True
        if now >= self._heartbeat_due:
            self._SyncObj__sendAppendEntries()

    def append(self, entry: bytes, now: float, placed: Placed | None = None) -> int:
        """Append to the leader's log. Returns the index of the entry.

        ``placed`` is called when the entry at that index, this one or another, was applied here.
        """
        assert self.is_leader
        set_now(now)
        index = self._log.last_index + 1
        self._log.add(entry, index, self.term)
        if placed is not None:
            self.watch(index, self.term, placed)
        self._appended()
        return index

    def watch(self, index: int, term: int, placed: Placed) -> None:
        """Call ``placed`` when ``index`` is applied: with ``VOID`` if its term is not ``term``."""
        self._SyncObj__commandsWaitingCommit[index].append((term, subscriber(placed)))

    def receive(self, peer: int, term: int, kind: int, fields: list[Any], now: float) -> bool:
        """Process a voter's message. Returns False if it is invalid."""
        set_now(now)
        # guard: a higher term is adopted
        if term > self._SyncObj__raftCurrentTerm:
            # guard: the increase of a term is limited
            if term > self._SyncObj__raftCurrentTerm + TERM_JUMP_MAX:
                return False
            self._SyncObj__setCurrentTerm(term, None)
            # guard: a higher term ends any role
            self._step_down(now)
        return self._HANDLERS[kind](self, peer, term, fields, now)

    def hears(self, peer: int) -> bool:
        """Return whether ``peer`` is a voter with a link."""
        return peer in self._up

    def campaign_at(self, due: float) -> None:
        """Start an election at ``due`` at the latest if there is no leader."""
        deadline = self._SyncObj__raftElectionDeadline
        self._SyncObj__raftElectionDeadline = min(deadline, due)

    def postpone_election(self, now: float) -> None:
        """Postpone the first election, unless a command waits or a link is lost."""
        if self._peers:
            self._is_postponed = True
            due = now + self._ballot.unhurried_wait()
            self._SyncObj__raftElectionDeadline = due - due % self._timing.tick

    def need_leader(self, now: float) -> None:
        """End the postponement of the first election, because a command waits."""
        if self._is_postponed and self.leader is None:
            self._is_postponed = False
            self._hurry(now)

    def peer_up(self, peer: int, now: float) -> None:
        """Handle a new link to this voter. Messages sent earlier may be lost."""
        self._up = sorted({*self._up, peer})
        self._SyncObj__connectedNodes.add(self._peers[peer])
        self._note_links(now)
        if self.is_leader:
            self._wake(now)
            self._followers[peer].restart()
            self.wants_append = True
        elif self.role == CANDIDATE:
            self._send(peer, envelope.VOTE, *self._log.end)
        elif not self._has_live_leader(now):
            self._hurry(now)

    def peer_down(self, peer: int, now: float) -> None:
        """Handle the loss of the link to this voter."""
        if peer not in self._up:
            return
        self._up.remove(peer)
        self._SyncObj__connectedNodes.discard(self._peers[peer])
        self._note_links(now)
        if self.is_leader:
            self._wake(now)
        elif self.leader == peer:
            self._heard_at = -NEVER
            self._hurry(now)
        else:
            self.need_leader(now)

    def peer_silent(self, peer: int, now: float) -> None:
        """Handle a voter that has a link but sends no beats: its consensus does not work."""
        if self.is_leader:
            self._wake(now)
        elif self.leader == peer:  # it may be busy: most groups notice that it is back
            self.campaign_at(now + self._ballot.unhurried_wait())

    def send_appends(self, now: float) -> None:
        """Send followers their missing entries and the commit index."""
        self.wants_append = False
        if self.is_leader:
            set_now(now)
            for peer in self._up:
                self._catch_up(peer)

    def apply_all(self, now: float) -> None:
        """Apply the whole log, committed or not, because its majority is permanently lost."""
        set_now(now)
        self._SyncObj__raftCommitIndex = self._log.last_index
        self._SyncObj__applyLogEntries()

    # -- links and timeouts ------------------------------------------------------------------------

    def _note_links(self, now: float) -> None:
        if not self.is_leader or self._ballot.is_quorum(len(self._up) + 1):
            self._isolated_since = NEVER
        elif self._isolated_since == NEVER:
            self._isolated_since = now

    def leader_in_contact(self, now: float) -> int | None:
        """Return the leader that this broker has heard in time; itself only with a majority."""
        # guard: a leader without a majority forbids no recovery
        if self.is_leader and not self._ballot.is_quorum(len(self._up) + 1):
            return None
        return self.leader if self._has_live_leader(now) else None

    def _has_live_leader(self, now: float) -> bool:
        if self.is_leader:
            return True
        is_linked = self.leader in self._up
        return is_linked and (
            now - self._heard_at < self._timing.election or self._is_leader_idle(now)
        )

    def _is_leader_idle(self, now: float) -> bool:
        """Return whether the leader sends nothing because the group is idle: its broker sends
        beats, and its last message is recent. Otherwise it may not be the leader any longer.
        """
        leader, timing = self.leader, self._timing
        # guard: beats replace heartbeats for a limited time
        return (
            leader is not None
            and leader in self._up
            and now - self._SyncObj__transport.alive_at(leader) < timing.election
            and now - self._heard_at < IDLE_HEARTBEATS_MISSED * timing.idle_heartbeat
        )

    def _hurry(self, now: float) -> None:
        self.campaign_at(now + self._ballot.short_wait())

    def _SyncObj__generateRaftTimeout(self) -> float:
        return self._ballot.patience()

    # -- elections ---------------------------------------------------------------------------------

    def _SyncObj__connectedToAnyone(self) -> bool:
        """Return False, which disables the library's own elections: see ``_on_silence``."""
        return False

    def _on_silence(self, now: float) -> None:
        """Start a pre-vote at the election timeout, unless the leader is idle."""
        if self._is_leader_idle(now):
            self._SyncObj__raftElectionDeadline = now + self._timing.idle_heartbeat
            return
        self._SyncObj__raftElectionDeadline = now + self._ballot.next_wait()
        round_number = self._ballot.ask()
        # guard: a pre-vote precedes a term
        if self._ballot.is_quorum(1):
            self._campaign(now)
        for peer in self._up:
            self._send(peer, envelope.PRE_VOTE, round_number, *self._log.end)

    def _on_pre_vote(self, peer: int, term: int, fields: list[Any], now: float) -> bool:
        round_number, last_term, last_index = fields
        # guard: a leader that requests pre-votes leads no longer
        if peer == self.leader:
            self._heard_at = -NEVER  # it is no longer the leader: leaders start no pre-votes
        # guard: a pre-vote needs a log that is up to date
        # guard: no pre-vote with a live leader
        granted = (
            term == self.term
            and (last_term, last_index) >= self._log.end
            and not self._has_live_leader(now)
        )
        self._send(peer, envelope.PRE_VOTE_ANSWER, round_number, granted)
        return True

    def _on_pre_vote_answer(self, peer: int, term: int, fields: list[Any], now: float) -> bool:
        round_number, granted = fields
        if term == self.term and granted and self._ballot.would_vote(peer, round_number):
            self._campaign(now)
        return True

    def _campaign(self, now: float) -> None:
        self._SyncObj__raftElectionDeadline = now + self._ballot.next_wait()
        self._SyncObj__raftLeader = None
        self._SyncObj__setState(CANDIDATE)
        self._SyncObj__setCurrentTerm(self.term + 1, self._broker_id)
        if self._ballot.stand():
            self._SyncObj__onBecomeLeader()
            return
        for peer in self._up:
            self._send(peer, envelope.VOTE, *self._log.end)

    def _on_vote(self, peer: int, term: int, fields: list[Any], now: float) -> bool:
        last_term, last_index = fields
        voted_for = self._SyncObj__votedForNodeId
        # guard: votes are granted in this term only
        # guard: votes only for logs that are up to date
        # guard: one vote in a term
        granted = (
            term == self.term
            and voted_for in (None, peer)
            and (last_term, last_index) >= self._log.end
        )
        if granted and voted_for is None:
            # guard: the vote is journaled
            self._SyncObj__setCurrentTerm(term, peer)
            self._SyncObj__raftElectionDeadline = now + self._ballot.next_wait()
        self._send(peer, envelope.VOTE_ANSWER, granted)
        return True

    def _on_vote_answer(self, peer: int, term: int, fields: list[Any], _now: float) -> bool:
        (granted,) = fields
        # guard: a rejected vote does not count
        # guard: votes of this term only
        if term == self.term and granted and self._ballot.vote(peer):
            self._SyncObj__onBecomeLeader()
        return True

    # -- roles -------------------------------------------------------------------------------------

    def _SyncObj__setCurrentTerm(self, term: int, voted_for: int | None) -> None:
        is_vote = term == self.term and self._SyncObj__votedForNodeId in (None, voted_for)
        if not (is_vote or term > self.term):
            raise AssertionError("a lower term or a changed vote")
        super()._SyncObj__setCurrentTerm(term, voted_for)

    def _SyncObj__onBecomeLeader(self) -> None:
        """Create the followers. The library appends the first entry of the term and sends it."""
        self._ballot.close()
        self._ballot.leader_found()
        last_index = self._log.last_index
        self._followers = {peer: Follower(last_index) for peer in self._peers}
        # guard: a new leader's first entry is of its term
        super()._SyncObj__onBecomeLeader()
        self._note_links(now())
        self._appended()

    def _appended(self) -> None:
        self.wants_append = True
        self._wake(now())
        if not self._peers:
            self.wants_step = True  # no response triggers the step

    def _step_down(self, now: float) -> None:
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None
        self._ballot.close()
        self._heartbeat_due = self._isolated_since = NEVER
        self._is_settled = self._is_idle = False
        self._SyncObj__raftElectionDeadline = now + self._ballot.next_wait()

    def _follow(self, leader: int, now: float) -> None:
        self._heard_at = now
        self._ballot.close()
        self._ballot.leader_found()
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = self._peers[leader]
        self._SyncObj__raftElectionDeadline = now + self._ballot.patience()

    # -- appends: follower -------------------------------------------------------------------------

    def _on_append(self, peer: int, term: int, fields: list[Any], now: float) -> bool:
        previous, previous_term, commit_index, entries = fields
        # guard: appends of an old term are rejected
        if term < self.term:
            # guard: an old leader receives the newer term
            self._send(peer, envelope.APPEND_ANSWER, False, previous, previous)
            return True
        # guard: one leader in a term
        if self.is_leader:
            logger.critical("second leader in one term: broker=%d term=%d", peer, term)
            return False
        # guard: invalid appends are rejected
        if not raft_log.is_consistent(previous, previous_term, entries, term):
            return False
        self._follow(peer, now)
        if (guess := self._log.conflict(previous, previous_term)) is not None:
            self._send(peer, envelope.APPEND_ANSWER, False, previous, guess)
            return True
        try:
            self._log.merge(previous, entries, commit_index=self.commit_index)
        except CommittedEntryError:
            logger.critical("committed entry contradicted: broker=%d", peer, exc_info=True)
            return False
        last = previous + len(entries)
        self._send(peer, envelope.APPEND_ANSWER, True, previous, last)
        # guard: a follower commits only what it has compared
        if min(commit_index, last) > self._SyncObj__raftCommitIndex:
            self._SyncObj__raftCommitIndex = min(commit_index, last)
            self.wants_step = True
        return True

    # -- appends: leader ---------------------------------------------------------------------------

    def _SyncObj__sendAppendEntries(self) -> None:
        """Send a heartbeat, so that every follower responds."""
        if self._peers:
            self._heartbeat_due = self._next_heartbeat(now())
        for peer in self._up:
            self._followers[peer].is_waiting = False
            if not self._catch_up(peer):
                self._send_append(peer, [])

    def _next_heartbeat(self, now: float) -> float:
        """Return the monotonic time of the next heartbeat: later if there was nothing new at this
        and the previous one.
        """
        was_settled, self._is_settled = self._is_settled, self._have_all_answered(now)
        self._is_idle = was_settled and self._is_settled
        self._heartbeat_at = now
        if self._is_idle:
            return self._timing.coincident(now + self._ballot.idle_wait())
        return self._timing.next_heartbeat(now)

    def _have_all_answered(self, now: float) -> bool:
        """Return whether every follower has all entries, has responded to the last heartbeat, and
        sends beats. A broker of an earlier release sends none, and depends on heartbeats.
        """
        last, commit_index = self._log.last_index, self._SyncObj__raftCommitIndex
        # guard: a group is idle only with followers that send beats
        return commit_index == last and all(
            follower.match_index == last
            and follower.commit_sent == commit_index
            and peer in self._up
            and self._SyncObj__lastResponseTime[self._peers[peer]] >= self._heartbeat_at
            and now - self._SyncObj__transport.alive_at(peer) < self._timing.election
            for peer, follower in self._followers.items()
        )

    def _wake(self, now: float) -> None:
        """Send heartbeats at the usual interval again."""
        self._is_settled = False
        if self._is_idle:
            self._count_beats()
            self._is_idle = False
            self._heartbeat_due = self._timing.next_heartbeat(now)

    def _count_beats(self) -> None:
        """Count beats of followers as responses: an idle leader requests few responses."""
        answered = self._SyncObj__lastResponseTime
        for peer, node in self._peers.items():
            answered[node] = max(answered[node], self._SyncObj__transport.alive_at(peer))

    def _catch_up(self, peer: int) -> bool:
        """Send a follower entries and a commit index that were not sent yet. Returns whether an
        append was sent.
        """
        follower = self._followers[peer]
        last_index = self._log.last_index
        if not follower.may_send(last_index):
            is_current = follower.commit_sent >= self._SyncObj__raftCommitIndex
            if follower.is_waiting or (is_current and not follower.is_probing):
                return False
            self._send_append(peer, [])
            return True
        while follower.may_send(last_index):
            self._send_append(peer, self._log.entries_from(follower.next_index))
        return True

    def _send_append(self, peer: int, entries: list[list[Any]]) -> None:
        follower = self._followers[peer]
        previous = follower.next_index - 1
        commit_index = self._SyncObj__raftCommitIndex
        follower.sent(len(entries), commit_index)
        previous_term = self._log.term_at(previous)
        self._send(peer, envelope.APPEND, previous, previous_term, commit_index, entries)

    def _on_append_answer(self, peer: int, term: int, fields: list[Any], now: float) -> bool:
        is_appended, previous, index = fields
        # guard: append responses of another term are discarded
        if term != self.term or not self.is_leader:
            return True
        # guard: a response cannot be beyond the leader's log
        if max(previous, index if is_appended else 0) > self._log.last_index:
            return False
        node, follower = self._peers[peer], self._followers[peer]
        self._SyncObj__lastResponseTime[node] = now
        if not is_appended:
            self.wants_append |= follower.refused(previous, index)
            return True
        if follower.appended(index):
            self._SyncObj__raftMatchIndex[node] = index
            self.wants_step |= index > self._SyncObj__raftCommitIndex
        self.wants_append |= follower.may_send(self._log.last_index)
        return True

    def _send(self, peer: int, kind: int, *fields: object) -> None:
        if peer in self._up:
            message = (self._SyncObj__raftCurrentTerm, kind, *fields)
            self._SyncObj__transport.send(self._peers[peer], message)

    # -- applying ----------------------------------------------------------------------------------

    def _SyncObj__doApplyCommand(self, entry: bytes) -> object:
        """Apply a committed entry. Called in log order; never raises."""
        kind = entry[0]
        if kind == NO_OP:
            return None
        # guard: commands after a seal have no effect
        if self.seal is not None:
            return VOID
        if kind == SEAL:
            self.seal = envelope.decode_seal(entry)
            return VOID if self.seal is None else None
        if kind != COMMAND:
            return VOID
        try:
            return self._apply(entry[1:])
        # guard: commands do not raise
        except Exception as error:  # a bug of the machine must not stop the group
            logger.exception("command skipped: the state machine raised")
            return CommandFailed(repr(error))

    # -- unused features of the library ------------------------------------------------------------

    def _SyncObj__onMessageReceived(self, node: object, message: object) -> None:
        """Do nothing: the owner calls ``receive``."""

    def _SyncObj__tryLogCompaction(self) -> None:
        """Do nothing: the leader seals the generation instead."""

    def _SyncObj__onSetCodeVersion(self, version: int) -> None:
        """Do nothing: there are no replicated methods."""

    def _SyncObj__parseChangeClusterRequest(self, entry: bytes) -> None:
        """Return None: the voters of a generation do not change."""

    def _checkCommandsToApply(self) -> None:
        """Do nothing: the owner calls ``append``."""

    _HANDLERS: ClassVar[Mapping[int, Callable[..., bool]]] = {
        envelope.PRE_VOTE: _on_pre_vote,
        envelope.PRE_VOTE_ANSWER: _on_pre_vote_answer,
        envelope.VOTE: _on_vote,
        envelope.VOTE_ANSWER: _on_vote_answer,
        envelope.APPEND: _on_append,
        envelope.APPEND_ANSWER: _on_append_answer,
    }


# -- ballot ----------------------------------------------------------------------------------------
#
# Vote counting and election timeouts. Identities and numbers only.
#
# A pre-vote determines which voters would grant a vote, before the term is incremented (Raft
# dissertation, 9.6). Voters are counted by identity: a duplicate response counts once (hazard 4).


_DOUBLINGS_MAX: Final = 20


class Ballot:
    """Elections of one voter. ``chance`` returns random numbers in [0, 1)."""

    __slots__ = ("_attempts", "_broker_id", "_chance", "_quorum", "_round", "_timing", "_votes",
                 "_would_vote")  # fmt: skip

    def __init__(
        self, broker_id: int, voters: int, timing: Timing, chance: Callable[[], float]
    ) -> None:
        self._broker_id = broker_id
        # guard: a quorum is more than half
        self._quorum = voters // 2 + 1
        self._timing = timing
        self._chance = chance
        self._attempts = 0  # elections since the last known leader
        self._round = 0
        self._would_vote: set[int] | None = None  # None: no pre-vote is in progress
        self._votes: set[int] | None = None

    # -- votes -------------------------------------------------------------------------------------

    def ask(self) -> int:
        """Start a round of pre-votes. Returns its number; responses to older rounds are ignored."""
        self._round += 1
        self._would_vote = {self._broker_id}
        return self._round

    def would_vote(self, peer: int, round_number: int) -> bool:
        """Count a granted pre-vote. Returns whether a majority has granted it."""
        # guard: pre-votes of an older round do not count
        if self._would_vote is None or round_number != self._round:
            return False
        # guard: pre-votes are counted by identity
        self._would_vote.add(peer)
        return len(self._would_vote) >= self._quorum

    def stand(self) -> bool:
        """Start an election with this broker's vote. Returns whether that is a majority."""
        self._would_vote = None
        self._votes = {self._broker_id}
        return len(self._votes) >= self._quorum

    def vote(self, peer: int) -> bool:
        """Count a vote in this election. Returns whether a majority has voted."""
        if self._votes is None:
            return False
        # guard: votes are counted by identity
        self._votes.add(peer)
        return len(self._votes) >= self._quorum

    def close(self) -> None:
        """End the election and the pre-vote: the term or the leader has changed."""
        self._votes = self._would_vote = None

    def is_quorum(self, count: int) -> bool:
        return count >= self._quorum

    # -- timeouts, in seconds ----------------------------------------------------------------------

    def leader_found(self) -> None:
        self._attempts = 0

    def patience(self) -> float:
        """Return the election timeout after the last message of a known leader."""
        return self._timing.election * (1 + self._chance())

    def short_wait(self) -> float:
        """Return the election timeout if there is no leader, or no link to it."""
        return self._timing.suspect * (1 + 3 * self._chance())

    def unhurried_wait(self) -> float:
        """Return the time until the first election of a group that needs no leader yet."""
        return self._timing.heartbeat * (1 + self._chance())

    def idle_wait(self) -> float:
        """Return the time until the next heartbeat of an idle group. It is random, so that not
        all groups send their heartbeats in the same second.
        """
        return self._timing.idle_heartbeat * (1 + self._chance()) / 2

    def next_wait(self) -> float:
        """Return the time until the next election: doubled each time, up to the timeout."""
        wait = self._timing.suspect * 4 * float(1 << self._attempts)
        self._attempts = min(self._attempts + 1, _DOUBLINGS_MAX)
        return min(wait, self._timing.election) * (1 + self._chance())


# -- follower --------------------------------------------------------------------------------------
#
# Progress of one follower as known to its leader, and the next message to send. Pure.


class Follower:
    """States as in etcd's raft: *probing* (one append at a time), or pipelined appends.

    Invariant: ``FIRST_INDEX <= match_index < next_index``, and all of the leader's entries up to
    ``match_index`` are durable on the follower.
    """

    __slots__ = ("commit_sent", "is_probing", "is_waiting", "match_index", "next_index")

    def __init__(self, last_index: int) -> None:
        self.match_index = FIRST_INDEX  # this entry is the same in every log
        self.next_index = last_index + 1  # next entry to send
        self.is_probing = False  # the last entry that both logs have is not known
        self.is_waiting = False  # a probe has no response yet
        self.commit_sent = 0  # last commit index sent

    def restart(self) -> None:
        """Probe the follower's log again: the previous connection may have lost messages."""
        if self.match_index > FIRST_INDEX:  # else there was no response: keep the first guess
            self.next_index = self.match_index + 1
        self.is_probing, self.is_waiting = True, False
        self.commit_sent = 0

    def may_send(self, last_index: int) -> bool:
        """Return whether the entry at ``next_index`` exists and can be sent before more responses
        arrive.
        """
        if self.is_waiting:
            return False
        return self.next_index <= min(last_index, self.match_index + WINDOW_ENTRIES)

    def sent(self, count: int, commit_index: int) -> None:
        """Record that an append of ``count`` entries from ``next_index`` on was sent."""
        self.commit_sent = commit_index
        if self.is_probing:
            self.is_waiting = True
        else:
            self.next_index += count

    def appended(self, index: int) -> bool:
        """Record that it stores all entries up to ``index``. Returns whether this is progress."""
        self.is_probing = self.is_waiting = False
        self.next_index = max(self.next_index, index + 1)
        # guard: a response never lowers the match index
        if index <= self.match_index:
            return False
        self.match_index = index
        return True

    def refused(self, previous: int, guess: int) -> bool:
        """Record that its entry at ``previous`` is missing or different from the leader's.

        ``guess``: the index that it suggests to probe next. Returns whether to send a probe; False
        for a stale response.
        """
        if self.is_probing:
            if previous != self.next_index - 1:
                return False
        elif previous <= self.match_index:
            return False
        # guard: a rejection never goes below the match index
        self.next_index = max(self.match_index + 1, min(guess, previous))
        self.is_probing, self.is_waiting = True, False
        return True
