"""One generation of one raft group: PySyncObj made safe. The only module with its mangled names.

The library keeps the roles, counts what is committed and applies it in order. What it did unsafely
is overridden here: everything that arrives, everything that is sent, and every election. Numbers in
brackets are the hazards that the tests name.

- Appends: an entry is cut only where the leader's has another term, never at or below the commit
  index [1, 2]; a conflict is answered with the first index of the conflicting term [23].
- Every message carries its sender's term; a higher one ends any role, answers of another are
  dropped [3, 14].
- Elections: a pre-vote first, which a voter with a live leader refuses [15]; votes are counted by
  identity, and granted again when asked again [4, 23].
- A leader that has not heard from a majority for an election timeout steps down (check-quorum,
  Raft dissertation, 6.2) [14], and so does one whose links to a majority are down.
- A group without news is *idle*: its leader sends few heartbeats, as in CockroachDB's quiescence.
  Beats of brokers (``ConsensusNode``) show instead that leader and followers work.
- No compaction, snapshots, membership changes, read-only nodes or code versions [7-9, 11, 12, 17];
  no pickle [20]. A command is bytes, and applying it cannot raise [16].

Messages may depend on unsynced changes: the owner holds them back until the journal is synced. Only
then it calls ``step``, which counts this broker's own entries [6].
"""
# ruff: noqa: N802 - the names of overridden methods are the library's

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from pysyncobj import SyncObj

from raftlog.consensus import envelope, library, raft_log
from raftlog.consensus.ballot import Ballot
from raftlog.consensus.envelope import COMMAND, NO_OP, SEAL
from raftlog.consensus.follower import Follower
from raftlog.consensus.library import VOID, PeerNode, Placed, Timing, peer_node, subscriber
from raftlog.consensus.outcome import CommandFailed
from raftlog.consensus.peer_transport import PeerTransport
from raftlog.consensus.raft_journal import RaftJournal
from raftlog.consensus.raft_log import CommittedEntryError, RaftLog
from raftlog.consensus.settings import TERM_JUMP_MAX

logger = logging.getLogger(__name__)

FOLLOWER: Final = 0  # the library's numbers
CANDIDATE: Final = 1
LEADER: Final = 2
NEVER: Final = float("inf")
IDLE_HEARTBEATS_MISSED: Final = 3  # of an idle leader, until followers elect another one


class RaftGroup(SyncObj):  # type: ignore[misc]  # the library has no types
    """See the module. ``voters`` are fixed; ``apply`` gets committed commands in order."""

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
        self.wants_step = False  # something may be committed or applied
        self.wants_append = False  # followers should receive an append
        self.seal: dict[int, str] | None = None  # the next voters, once a seal was applied
        self._broker_id = broker_id
        self._timing = timing
        self._ballot = Ballot(broker_id, len(voters), timing, chance)
        self._apply = apply
        self._peers = {peer: peer_node(peer) for peer in sorted(voters) if peer != broker_id}
        self._up: list[int] = []  # peers with a link, sorted
        self._followers: dict[int, Follower] = {}
        self._heard_at = -NEVER  # when the leader last spoke
        self._heartbeat_due = NEVER
        self._heartbeat_at = -NEVER  # of the last one
        self._is_settled = False  # nothing was new to any follower at the last heartbeat
        self._is_idle = False  # a leader with few heartbeats
        self._is_postponed = False  # the first election
        self._isolated_since = NEVER  # a leader without links to a majority
        library.set_now(now)
        library.set_journal(journal)
        try:
            super().__init__(
                peer_node(broker_id),
                list(self._peers.values()),
                conf=timing.library_settings,
                nodeClass=PeerNode,
                transport=transport,
            )
        finally:
            library.set_journal(None)
        self._SyncObj__properies: frozenset[str] = (
            frozenset()
        )  # what a dump would leave out: there are none
        self._SyncObj__newAppendEntriesTime = NEVER  # heartbeats have their own schedule
        self._log = RaftLog(journal)
        self._SyncObj__raftElectionDeadline = now + (
            self._ballot.short_wait() if self._peers else 0
        )

    def __dir__(self) -> list[str]:
        """Nothing: the library looks among these names for replicated methods, which takes most of
        the time to create a group, and there are none."""
        return []

    # -- what is known -----------------------------------------------------------------------------

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
        """Whether what is appended here and now may come to count."""
        return self.is_leader and self._log.seal_index is None

    def log_end(self) -> tuple[int, int]:
        """The term of the last entry, and its index."""
        return self._log.end

    def unapplied(self) -> list[bytes]:
        """The commands that are in the log and were not applied yet, up to a seal."""
        commands: list[bytes] = []
        index = self.applied_index + 1
        while index <= self._log.last_index:
            for _term, entry in self._log.entries_from(index):
                index += 1
                if entry[0] == SEAL:
                    return commands
                if entry[0] == COMMAND:
                    commands.append(entry[1:])
        return commands

    def due(self) -> float:
        """Monotonic time at which ``step`` has work without new input."""
        if self._SyncObj__raftState == LEADER:
            return min(self._heartbeat_due, self._isolated_since + self._timing.suspect)
        return NEVER if self.seal is not None else float(self._SyncObj__raftElectionDeadline)

    # -- what happens ------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Count, apply, and do what is due. Only while all that was journaled is durable."""
        library.set_now(now)
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
        if is_isolated or self.role != LEADER:
            self._step_down(now)
            return
        if self._SyncObj__raftCommitIndex > committed:
            self.wants_append = True
        if now >= self._heartbeat_due:
            self._SyncObj__sendAppendEntries()

    def append(self, entry: bytes, now: float, placed: Placed | None = None) -> int:
        """Append to the leader's log; the entry's index.

        ``placed`` is called when the entry, or another in its place, has been applied here.
        """
        assert self.is_leader
        library.set_now(now)
        index = self._log.last_index + 1
        self._log.add(entry, index, self.term)
        if placed is not None:
            self.watch(index, self.term, placed)
        self._appended()
        return index

    def watch(self, index: int, term: int, placed: Placed) -> None:
        """Call ``placed`` when ``index`` is applied: with ``VOID`` if it is not of ``term``."""
        self._SyncObj__commandsWaitingCommit[index].append((term, subscriber(placed)))

    def receive(self, peer: int, term: int, kind: int, fields: list[Any], now: float) -> bool:
        """Take a voter's message; False when it makes no sense."""
        library.set_now(now)
        if term > self._SyncObj__raftCurrentTerm:
            if term > self._SyncObj__raftCurrentTerm + TERM_JUMP_MAX:
                return False
            self._SyncObj__setCurrentTerm(term, None)
            self._step_down(now)
        return self._HANDLERS[kind](self, peer, term, fields, now)

    def hears(self, peer: int) -> bool:
        """Return whether ``peer`` is a voter with a link."""
        return peer in self._up

    def campaign_at(self, due: float) -> None:
        """Do not wait any longer than that for a leader."""
        deadline = self._SyncObj__raftElectionDeadline
        self._SyncObj__raftElectionDeadline = min(deadline, due)

    def postpone_election(self, now: float) -> None:
        """Hold the first election later, unless a command waits or a link is lost."""
        if self._peers:
            self._is_postponed = True
            due = now + self._ballot.unhurried_wait()
            self._SyncObj__raftElectionDeadline = due - due % self._timing.tick

    def need_leader(self, now: float) -> None:
        """A command waits: do not postpone the first election any longer."""
        if self._is_postponed and self.leader is None:
            self._is_postponed = False
            self._hurry(now)

    def peer_up(self, peer: int, now: float) -> None:
        """There is a link to this voter, maybe a new one: what was sent before may be lost."""
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
        """The link to this voter is gone."""
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
        """The link to this voter is there, but its consensus does not work."""
        if self.is_leader:
            self._wake(now)
        elif self.leader == peer:  # it may be busy: most groups notice that it is back
            self.campaign_at(now + self._ballot.unhurried_wait())

    def send_appends(self, now: float) -> None:
        """Send followers their missing entries and the commit index."""
        self.wants_append = False
        if self.is_leader:
            library.set_now(now)
            for peer in self._up:
                self._catch_up(peer)

    def apply_all(self, now: float) -> None:
        """Apply the log to its end, committed or not, because its majority is permanently lost."""
        library.set_now(now)
        self._SyncObj__raftCommitIndex = self._log.last_index
        self._SyncObj__applyLogEntries()

    # -- links and silence -------------------------------------------------------------------------

    def _note_links(self, now: float) -> None:
        if not self.is_leader or self._ballot.is_quorum(len(self._up) + 1):
            self._isolated_since = NEVER
        elif self._isolated_since == NEVER:
            self._isolated_since = now

    def _has_live_leader(self, now: float) -> bool:
        if self.is_leader:
            return True
        is_linked = self.leader in self._up
        return is_linked and (
            now - self._heard_at < self._timing.election or self._is_leader_idle(now)
        )

    def _is_leader_idle(self, now: float) -> bool:
        """Whether the leader says nothing because there is nothing to say: its broker sends beats.
        It said something not too long ago, or it would not know that it leads.
        """
        leader, timing = self.leader, self._timing
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
        """The gate of the library's own elections, which stays shut: see ``_on_silence``."""
        return False

    def _on_silence(self, now: float) -> None:
        """No leader for too long: ask whether the others would vote for this broker."""
        if self._is_leader_idle(now):
            self._SyncObj__raftElectionDeadline = now + self._timing.idle_heartbeat
            return
        self._SyncObj__raftElectionDeadline = now + self._ballot.next_wait()
        round_number = self._ballot.ask()
        if self._ballot.is_quorum(1):
            self._campaign(now)
        for peer in self._up:
            self._send(peer, envelope.PRE_VOTE, round_number, *self._log.end)

    def _on_pre_vote(self, peer: int, term: int, fields: list[Any], now: float) -> bool:
        round_number, last_term, last_index = fields
        if peer == self.leader:
            self._heard_at = -NEVER  # it leads no longer, or it would not ask
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
        granted = (
            term == self.term
            and voted_for in (None, peer)
            and (last_term, last_index) >= self._log.end
        )
        if granted and voted_for is None:
            self._SyncObj__setCurrentTerm(term, peer)
            self._SyncObj__raftElectionDeadline = now + self._ballot.next_wait()
        self._send(peer, envelope.VOTE_ANSWER, granted)
        return True

    def _on_vote_answer(self, peer: int, term: int, fields: list[Any], _now: float) -> bool:
        (granted,) = fields
        if term == self.term and granted and self._ballot.vote(peer):
            self._SyncObj__onBecomeLeader()
        return True

    # -- roles -------------------------------------------------------------------------------------

    def _SyncObj__setCurrentTerm(self, term: int, voted_for: int | None) -> None:
        is_vote = term == self.term and self._SyncObj__votedForNodeId in (None, voted_for)
        if not (is_vote or term > self.term):
            raise AssertionError("a term or a vote taken back")
        super()._SyncObj__setCurrentTerm(term, voted_for)

    def _SyncObj__onBecomeLeader(self) -> None:
        """The library's own: follower indexes, a first entry of this term, an append to all."""
        self._ballot.close()
        self._ballot.leader_found()
        last_index = self._log.last_index
        self._followers = {peer: Follower(last_index) for peer in self._peers}
        super()._SyncObj__onBecomeLeader()
        self._note_links(library.now())
        self._appended()

    def _appended(self) -> None:
        self.wants_append = True
        self._wake(library.now())
        if not self._peers:
            self.wants_step = True  # there is no response that triggers it

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

    # -- appends: the follower's side --------------------------------------------------------------

    def _on_append(self, peer: int, term: int, fields: list[Any], now: float) -> bool:
        previous, previous_term, commit_index, entries = fields
        if term < self.term:
            self._send(peer, envelope.APPEND_ANSWER, False, previous, previous)
            return True
        if self.is_leader:
            logger.critical("second leader in one term: broker=%d term=%d", peer, term)
            return False
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
        if min(commit_index, last) > self._SyncObj__raftCommitIndex:
            self._SyncObj__raftCommitIndex = min(commit_index, last)
            self.wants_step = True
        return True

    # -- appends: the leader's side ----------------------------------------------------------------

    def _SyncObj__sendAppendEntries(self) -> None:
        """Send a heartbeat, so that every follower responds."""
        if self._peers:
            self._heartbeat_due = self._next_heartbeat(library.now())
        for peer in self._up:
            self._followers[peer].is_waiting = False
            if not self._catch_up(peer):
                self._send_append(peer, [])

    def _next_heartbeat(self, now: float) -> float:
        """Monotonic time of the heartbeat after this one: later, if nothing was new at two."""
        was_settled, self._is_settled = self._is_settled, self._have_all_answered(now)
        self._is_idle = was_settled and self._is_settled
        self._heartbeat_at = now
        return now + self._ballot.idle_wait() if self._is_idle else self._timing.next_heartbeat(now)

    def _have_all_answered(self, now: float) -> bool:
        """Whether every follower has everything, has answered the last heartbeat, and sends beats:
        a broker of an earlier release does not, and relies on heartbeats.
        """
        last, commit_index = self._log.last_index, self._SyncObj__raftCommitIndex
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
        """Count beats of followers as their responses, which an idle leader does not ask for."""
        answered = self._SyncObj__lastResponseTime
        for peer, node in self._peers.items():
            answered[node] = max(answered[node], self._SyncObj__transport.alive_at(peer))

    def _catch_up(self, peer: int) -> bool:
        """Send a follower what it has not been sent; whether there was anything."""
        follower = self._followers[peer]
        last_index = self._log.last_index
        if not follower.may_send(last_index):
            is_told = follower.commit_sent >= self._SyncObj__raftCommitIndex
            if follower.is_waiting or (is_told and not follower.is_probing):
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
        if term != self.term or not self.is_leader:
            return True
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
        if self.seal is not None:
            return VOID
        if kind == SEAL:
            self.seal = envelope.decode_seal(entry)
            return VOID if self.seal is None else None
        if kind != COMMAND:
            return VOID
        try:
            return self._apply(entry[1:])
        except Exception as error:  # a machine's defect must not stop the group
            logger.exception("command skipped: the state machine raised")
            return CommandFailed(repr(error))

    # -- what the library has and this has not -----------------------------------------------------

    def _SyncObj__onMessageReceived(self, node: object, message: object) -> None:
        """Messages come by ``receive``."""

    def _SyncObj__tryLogCompaction(self) -> None:
        """A generation is sealed instead."""

    def _SyncObj__onSetCodeVersion(self, version: int) -> None:
        """There are no replicated methods."""

    def _SyncObj__parseChangeClusterRequest(self, entry: bytes) -> None:
        """Voters are fixed for a generation."""

    def _checkCommandsToApply(self) -> None:
        """Commands come by ``append``."""

    _HANDLERS: ClassVar[Mapping[int, Callable[..., bool]]] = {
        envelope.PRE_VOTE: _on_pre_vote,
        envelope.PRE_VOTE_ANSWER: _on_pre_vote_answer,
        envelope.VOTE: _on_vote,
        envelope.VOTE_ANSWER: _on_vote_answer,
        envelope.APPEND: _on_append,
        envelope.APPEND_ANSWER: _on_append_answer,
    }
