"""All Raft groups of one broker: scheduling, messages, and syncs of the journal.

Every event is an input. Inputs are processed in order. Then, if all journaled changes are durable,
groups take a step: they count entries, apply commands and hold elections. Their messages are queued
on the links and sent after the next sync of the journal:

    node.receive(peer, data, now)           # or propose, tick, peer_up, ...
    while (task := node.begin_sync()) is not None:
        task.run()                        # in any thread; inputs are queued while it runs
        node.complete_sync(task, now)

One call does the work of a limited number of groups (``ConsensusSettings.groups_per_turn``), as
thousands of groups may have work at once. ``tick`` continues it; ``next_tick`` is then now. No sync
of the journal begins before this work ends: one sync makes the changes of all groups durable.

No sockets, files, threads or clocks: they are arguments, or belong to the caller.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

from raftlog.consensus import selftest, transport
from raftlog.consensus.hosted_group import (
    Done,
    GroupStatus,
    HostedGroup,
    Journaled,
    Proposal,
    Services,
)
from raftlog.consensus.journal import Journal, JournalSyncTask
from raftlog.consensus.raft_group import Timing
from raftlog.consensus.settings import (
    INPUT_BYTES_MAX,
    INPUTS_MAX,
    PROPOSALS_MAX,
    VOTERS_MAX,
    ConsensusSettings,
    NotProposed,
    Outcome,
    StateMachine,
)
from raftlog.consensus.transport import EnvelopeError, Heard, Link
from raftlog.errors import DiskFullError, StorageFailedError

logger = logging.getLogger(__name__)

BrokerId: TypeAlias = int
DirectoryId: TypeAlias = str
Work: TypeAlias = Iterator[None]  # yields after each group or message
Input: TypeAlias = Callable[[float], Work]

NEVER: Final = float("inf")
# Seconds between two stores of the journal blocks that peers have reported, at least.
NOTE_HEARD_SECONDS: Final = 1.0
NUMBERS_PER_BOOT: Final = 1 << 32  # proposal numbers; never those of an older boot


def _ignore(raft_id: str) -> None:
    pass


class ConsensusNode:
    """See the module. Not thread-safe. Calls from callbacks are queued."""

    def __init__(
        self,
        broker_id: BrokerId,
        directory_id: DirectoryId,
        journal: Journal,
        *,
        settings: ConsensusSettings,
        chance: Callable[[], float],
        send: Callable[[BrokerId, bytes], None],
        on_state: Callable[[str], None] = _ignore,
    ) -> None:
        """``chance``: returns random numbers in [0, 1). ``send``: sends an envelope to a peer.

        ``on_state``: called with the id of a group whose role, leader or generation has changed.
        Raises ``RuntimeError`` if PySyncObj has another version than this module expects.
        """
        selftest.check()
        self.refused_messages = 0  # invalid, stale, or above the queue limit
        self._broker_id = broker_id
        self._directory_id = directory_id
        self._journal = journal
        self._settings = settings
        self._send = send
        self._on_state = on_state
        self._links: dict[BrokerId, Link] = {}
        self._services = Services(
            broker_id=broker_id,
            directory_id=directory_id,
            journal=journal,
            links=self._links,
            settings=settings,
            timing=Timing(settings),
            chance=chance,
            finish=self._finish,
        )
        self._groups: dict[str, HostedGroup] = {}
        self._inputs: deque[Input] = deque()
        self._input_bytes = 0
        self._proposals = 0  # number of those without an outcome
        self._outcomes: deque[tuple[Done, Outcome]] = deque()
        self._touched: dict[str, None] = {}  # groups that may need a step, in order
        self._unspoken: dict[str, None] = {}  # groups that may have messages to send
        self._news: dict[str, None] = {}  # groups to report to on_state
        self._heap: list[tuple[float, str]] = []  # monotonic time of the next check, group id
        self._beat_due = NEVER  # while no link is up
        self._note_heard_due = 0.0
        self._is_silence_unchecked = False  # since the last beats
        self._task: JournalSyncTask | None = None
        self._failure: StorageFailedError | None = None
        self._is_stalled = False  # disk full: no work until a sync succeeds
        self._pass: Work | None = None  # work that a call has begun and not completed
        self._left = settings.groups_per_turn  # that may be processed before the next tick
        self._is_working = False
        self._is_delivering = False
        self._now = 0.0
        self._handled_at = 0.0  # monotonic time; all inputs that arrived before are processed
        self._number = journal.boot * NUMBERS_PER_BOOT

    # -- groups ------------------------------------------------------------------------------------

    def open_group(
        self,
        raft_id: str,
        machine: StateMachine,
        *,
        voters: Mapping[BrokerId, DirectoryId],
        base: bytes,
        now: float,
        needs_leader: bool = True,
    ) -> None:
        """Join a group, as a voter or as an observer that may become a voter.

        ``voters`` and ``base``: those of generation 0; ignored if the journal contains the group. A
        voter with directory ``""`` has no vote, but receives a hello and can offer a newer
        generation. ``machine`` is restored to the base; later commands are applied once they are
        known to be committed. ``needs_leader``: False postpones the first election of a new group
        for 1 to 2 s, or until a command waits. Raises the exceptions of the machine's ``restore``.
        """
        assert raft_id not in self._groups, f"{raft_id} is open"
        assert 0 < len(voters) <= VOTERS_MAX
        host = HostedGroup(raft_id, machine, self._services)
        host.open(voters, base, now, needs_leader=needs_leader)
        self._groups[raft_id] = host
        self._touch(host)
        self._work(now)

    def has_journaled(self, raft_id: str) -> bool:
        """Return whether this broker's journal contains the group, as a present or past member."""
        return self._journal.has(raft_id)

    def journaled_groups(self) -> list[str]:
        """Return the groups of which the journal contains a generation, also those not open."""
        return self._journal.raft_ids()

    def close_group(self, raft_id: str, *, forget: bool) -> None:
        """Leave a group. ``forget``: remove it from the journal, if it is deleted everywhere."""
        host = self._groups.pop(raft_id, None)
        if host is not None:
            host.close()
            self._deliver()
        self._touched.pop(raft_id, None)
        if forget:
            self._journal.drop(raft_id)
        self._work(self._now)

    def status(self, raft_id: str) -> GroupStatus:
        """Raises ``KeyError`` for a group that is not open."""
        return self._groups[raft_id].status()

    def voters(self, raft_id: str) -> Mapping[BrokerId, DirectoryId]:
        """Return the voters of the group's generation. Cheaper than ``status``.

        Raises ``KeyError`` for a group that is not open.
        """
        return self._groups[raft_id].voters

    def journaled(self, raft_id: str, now: float) -> Journaled:
        """Raises ``KeyError`` for a group that is not open."""
        return self._groups[raft_id].journaled(now)

    def leads(self, raft_id: str) -> bool:
        """Return whether this broker considers itself the group's Raft leader. False if the group
        is not open.
        """
        host = self._groups.get(raft_id)
        return host is not None and host.is_led_here

    # -- commands ----------------------------------------------------------------------------------

    def propose(self, raft_id: str, command: bytes, done: Done, now: float) -> None:
        """Propose a command. ``done`` is called exactly once, possibly before this returns.

        Without a leader it waits for one, at most ``propose_timeout_ms``. At ``Applied``, this
        broker's state machine has applied it.
        """
        entry = bytes([transport.COMMAND]) + command
        self._take(lambda now: self._propose(raft_id, entry, done, now, None), done, now)

    def seal(
        self,
        raft_id: str,
        voters: Mapping[BrokerId, DirectoryId],
        done: Done,
        now: float,
        generation: int,
    ) -> None:
        """End the group's ``generation``. ``Applied`` has the number of the next one.

        It has no effect if that generation has ended: ``voters``, with which the next one begins,
        could be directories that were lost since the caller has decided.
        """
        assert 0 < len(voters) <= VOTERS_MAX
        entry = transport.encode_seal(voters)
        self._take(lambda now: self._propose(raft_id, entry, done, now, generation), done, now)

    def force_generation(
        self,
        raft_id: str,
        voters: Mapping[BrokerId, DirectoryId],
        now: float,
        *,
        base: bytes | None = None,
        above: int | None = None,
    ) -> None:
        """Recover a group whose majority of voters is permanently lost, on an operator's request.

        This broker continues from ``base``, or from all its entries, committed or not, in a
        generation far above its current one and ``above``. Entries that only the lost voters had
        are lost. Call it on one broker of a group only. Raises ``KeyError`` for a group that is
        not open.

        ``above``: newest generation that the caller knew when it decided. If this broker's is
        newer, nothing is done.
        """
        assert 0 < len(voters) <= VOTERS_MAX
        host = self._groups[raft_id]
        self._inputs.append(
            lambda now: self._change(host, lambda: host.force(voters, now, base, above))
        )
        self._work(now)

    def found(
        self, raft_id: str, voters: Mapping[BrokerId, DirectoryId], base: bytes, now: float
    ) -> None:
        """Start the first generation of a group in which no broker had a vote.

        The caller must ensure that, and call this on one broker, once. Raises ``KeyError`` for a
        group that is not open.
        """
        assert 0 < len(voters) <= VOTERS_MAX
        host = self._groups[raft_id]
        self._inputs.append(lambda now: self._change(host, lambda: host.found(voters, base, now)))
        self._work(now)

    def _propose(
        self, raft_id: str, entry: bytes, done: Done, now: float, generation: int | None
    ) -> Work:
        """``generation``: of a seal, which is valid in no other one; None: of a command."""
        yield
        host = self._groups.get(raft_id)
        bytes_max = self._settings.command_bytes_max
        if host is None:
            self._refuse(done, "the group is not open on this broker")
        elif generation is None and len(entry) - 1 > bytes_max:
            self._refuse(done, f"command of {len(entry) - 1} bytes exceeds {bytes_max} bytes")
        # guard: a seal ends the generation for which it was decided
        elif generation not in (None, host.generation):
            self._refuse(done, f"generation {generation} was sealed before it")
        elif self._proposals >= PROPOSALS_MAX:
            self._refuse(done, f"{PROPOSALS_MAX} proposals are waiting")
        else:
            self._number += 1
            self._proposals += 1
            deadline = now + self._settings.propose_timeout_ms / 1_000
            host.proposals.add(Proposal(self._number, entry, done, deadline, generation))
            self._touch(host)

    def _take(self, proposal: Input, done: Done, now: float) -> None:
        if self._failure is not None:
            self._refuse(done, "this broker's disk failed")
        elif len(self._inputs) >= INPUTS_MAX:
            self._refuse(done, f"{INPUTS_MAX} inputs are waiting")
        else:
            self._inputs.append(proposal)
        self._work(now)
        self._deliver()

    def _refuse(self, done: Done, reason: str) -> None:
        self._outcomes.append((done, NotProposed(reason)))

    def _finish(self, done: Done, outcome: Outcome) -> None:
        self._proposals -= 1
        self._outcomes.append((done, outcome))

    def _change(self, host: HostedGroup, change: Callable[[], None]) -> Work:
        yield
        if self._is_open(host):
            change()
            self._touch(host)

    def _change_all(
        self, change: Callable[[HostedGroup, BrokerId, float], None], peer: BrokerId, now: float
    ) -> Work:
        for host in list(self._groups.values()):
            yield from self._change(host, partial(change, host, peer, now))

    def _is_open(self, host: HostedGroup) -> bool:
        """Whether the group was not closed since, nor opened again."""
        return self._groups.get(host.raft_id) is host

    # -- peers -------------------------------------------------------------------------------------

    def peer_up(
        self, peer: BrokerId, directory_id: DirectoryId, boot: int, now: float, *, run: str = ""
    ) -> None:
        """Accept a new authenticated connection to ``peer``. It replaces an earlier one.

        Call it at both ends, for each connection, before its first message. ``run`` is stored in
        the journal only.
        """
        self._inputs.append(lambda now: self._peer_up(peer, directory_id, boot, run, now))
        self._work(now)

    def peer_down(self, peer: BrokerId, now: float) -> None:
        """Note that the connection to ``peer`` has ended."""
        self._inputs.append(lambda now: self._peer_down(peer, now))
        self._work(now)

    def heard(self, peer: BrokerId) -> Heard | None:
        """Return what ``peer`` has reported about its journal; None if its link was never up."""
        link = self._links.get(peer)
        return None if link is None else Heard(link.directory_id, link.boot, link.journal_sequence)

    def receive(self, peer: BrokerId, data: bytes, now: float) -> None:
        """Accept an envelope. Never raises: invalid envelopes are counted."""
        is_full = len(self._inputs) >= INPUTS_MAX or self._input_bytes > INPUT_BYTES_MAX
        if is_full or self._failure is not None:
            self._refuse_message(peer, "input queue full, or disk failed")
            return
        self._input_bytes += len(data)
        self._inputs.append(lambda now: self._receive(peer, data, now))
        self._work(now)

    def _peer_up(
        self, peer: BrokerId, directory_id: DirectoryId, boot: int, run: str, now: float
    ) -> Work:
        yield from self._peer_down(peer, now)
        # guard: messages of another broker with the same id do not count
        if peer == self._broker_id:
            logger.error("duplicate broker id: broker=%d directory_id=%s", peer, directory_id)
            return
        seen = self._journal.peers.get(peer)
        # guard: messages of a restored disk do not count
        if seen is not None and seen.directory_id == directory_id and boot < seen.boot:
            logger.error(
                "peer ignored: broker=%d boot=%d directory_id=%s seen_boot=%d "
                "reason=disk_restored. It may have lost votes and entries",
                peer, boot, directory_id, seen.boot,
            )  # fmt: skip
            return
        # guard: boot numbers of peers are stored
        self._journal.note_peer(peer, directory_id, boot, run)
        self._links.setdefault(peer, Link()).up(directory_id, boot)
        self._beat_due = now
        yield from self._change_all(HostedGroup.peer_up, peer, now)

    def _peer_down(self, peer: BrokerId, now: float) -> Work:
        link = self._links.get(peer)
        if link is not None and link.is_up:
            link.down()
            yield from self._change_all(HostedGroup.peer_down, peer, now)

    def _receive(self, peer: BrokerId, data: bytes, now: float) -> Work:
        yield
        self._input_bytes -= len(data)
        try:
            arrived = transport.decode(data)
        except EnvelopeError as error:
            self._refuse_message(peer, error)
            return
        link = self._links.get(peer)
        if link is None or not link.admits(arrived):
            self.refused_messages += 1  # from a link that has ended: not logged
            return
        link.note_alive(now, is_beat=not arrived.messages)
        for message in arrived.messages:
            yield
            host = self._groups.get(message[0])
            if host is None:
                continue
            if not host.receive(peer, message, now):
                self._refuse_message(peer, message)
            self._unspoken[message[0]] = None
            if host.wants_step:
                self._touched[message[0]] = None

    def _refuse_message(self, peer: BrokerId, what: object) -> None:
        """Count a rejected message. Log the 1st, 2nd, 4th, 8th and so on."""
        self.refused_messages += 1
        if self.refused_messages.bit_count() == 1:
            logger.warning(
                "message rejected: broker=%d count=%d message=%.200r",
                peer, self.refused_messages, what,
            )  # fmt: skip

    # -- time --------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Process work that is due, and continue the work of earlier calls."""
        self._left = self._settings.groups_per_turn
        if now >= self._beat_due and self._can_work():
            self._beat(now)
        self._work(now)

    @property
    def is_busy(self) -> bool:
        """Whether this turn has ended before all work: call ``tick`` soon."""
        return self._pass is not None and not self._is_working

    def next_tick(self, now: float) -> float:
        """Monotonic time in seconds at which ``tick`` should be called; inf: never."""
        due = min(self._heap[0][0] if self._heap else NEVER, self._beat_due)
        if self._failure is not None:
            return NEVER
        if self.is_busy:
            return now
        if self._journal.is_dirty or not self._can_work():
            return max(now + self._services.timing.tick, due)
        return now if self._touched or self._inputs else max(now, due)

    def _touch(self, host: HostedGroup) -> None:
        self._touched[host.raft_id] = None
        self._unspoken[host.raft_id] = None

    def _schedule(self, host: HostedGroup) -> None:
        due = host.due()
        if due < host.scheduled:
            host.scheduled = due
            heapq.heappush(self._heap, (due, host.raft_id))

    def _touch_due(self, now: float) -> Work:
        heap = self._heap
        while heap and heap[0][0] <= now:
            yield
            due, raft_id = heapq.heappop(heap)
            host = self._groups.get(raft_id)
            if host is None or host.scheduled != due:
                continue
            host.scheduled = NEVER
            if host.due() <= now:
                self._touch(host)
            else:
                self._schedule(host)

    def _beat(self, now: float) -> None:
        """Send beats to the peers. They depend on nothing that is not durable, so they do not wait
        for the work of thousands of groups to end. Idle groups depend on beats, and send few
        heartbeats.
        """
        links = [(peer, link) for peer, link in sorted(self._links.items()) if link.is_up]
        self._beat_due = self._services.timing.next_heartbeat(now) if links else NEVER
        self._is_silence_unchecked = True
        for peer, link in links:
            self._send(peer, link.beat(*self._journaled_here()))
        # guard: what peers have reported of their journals is durable
        if now >= self._note_heard_due + NOTE_HEARD_SECONDS:  # there was no block to put it into
            self._note_heard(now)

    def _note_heard(self, now: float) -> None:
        """Store how far the journals of the peers are, at most once per interval."""
        if now < self._note_heard_due:
            return
        self._note_heard_due = now + NOTE_HEARD_SECONDS
        for peer, link in sorted(self._links.items()):
            if link.is_up and self._journal.peers[peer].directory_id == link.directory_id:
                self._journal.note_heard(peer, link.journal_sequence)

    def _check_silence(self, now: float) -> Work:
        """Detect peers that have stopped sending beats."""
        self._is_silence_unchecked = False
        for peer, link in list(self._links.items()):
            # guard: a peer that sends no beats any longer is silent
            if link.is_up and link.is_silent(now, self._services.timing.election):
                link.alive_at = -NEVER
                yield from self._change_all(HostedGroup.peer_silent, peer, now)

    # -- work --------------------------------------------------------------------------------------

    def _can_work(self) -> bool:
        # guard: a failed sync ends consensus
        # guard: inputs wait while the journal is synced
        return self._task is None and self._failure is None and not self._is_stalled

    def _work(self, now: float) -> None:
        """Process inputs, step and speak, until no work is left before a sync, or until the groups
        of this turn are processed."""
        self._now = now = max(now, self._now)
        if self._is_working or not self._can_work():
            return
        self._is_working = True
        try:
            while self._left > 0:
                if self._pass is None:
                    self._pass = self._work_once(now)
                # guard: a turn of consensus processes some groups
                self._left -= sum(1 for _ in islice(self._pass, self._left))
                if self._left > 0:
                    self._pass = None
                    if not self._inputs and (self._journal.is_dirty or not self._touched):
                        return
        finally:
            self._is_working = False

    def _work_once(self, now: float) -> Work:
        """Process the inputs that have arrived, then step and speak. ``now``: the time when this
        work begins. It may end much later, after more inputs have arrived."""
        # guard: what is durable counts before inputs journal more
        if self._inputs and not self._journal.is_dirty:
            # Durable entries count before inputs journal more: on a slow disk, inputs wait
            # after every sync. The time is that of the last processed inputs: peers whose
            # messages wait are not unresponsive.
            # guard: peers with queued messages are not unresponsive
            yield from self._step(self._handled_at)
            self._deliver()
        for _ in range(len(self._inputs)):
            yield from self._inputs.popleft()(now)
        self._handled_at = now
        if self._is_silence_unchecked:
            yield from self._check_silence(now)
        yield from self._touch_due(now)
        # guard: an own entry counts only once it is durable
        if not self._journal.is_dirty:
            yield from self._step(now)
        yield from self._speak(now)
        self._deliver()

    def _step(self, now: float) -> Work:
        """Let groups count their entries. Entries that other groups journal do not matter, and a
        group that is opened in that time takes its first step in the next pass."""
        touched, self._touched = self._touched, {}
        for host in [self._groups[each] for each in touched if each in self._groups]:
            yield
            if self._is_open(host):
                host.step(now)
                self._unspoken[host.raft_id] = None

    def _speak(self, now: float) -> Work:
        unspoken, self._unspoken = self._unspoken, {}
        for raft_id in unspoken:
            host = self._groups.get(raft_id)
            if host is None:
                continue
            yield
            host.speak(now)
            if host.wants_step:
                self._touched[raft_id] = None
            self._schedule(host)
            standing = host.standing()
            if standing != host.reported:
                host.reported = standing
                self._news[raft_id] = None

    def _deliver(self) -> None:
        if self._is_delivering:
            return
        self._is_delivering = True
        while self._outcomes:
            done, outcome = self._outcomes.popleft()
            try:
                done(outcome)
            except Exception:  # a bug of one caller must not affect the others
                logger.exception("proposal callback failed")
        self._is_delivering = False
        # guard: on_state waits for the disk
        if not self._journal.is_dirty:
            news, self._news = self._news, {}
            for raft_id in news:
                self._on_state(raft_id)

    # -- the disk ----------------------------------------------------------------------------------

    def begin_sync(self) -> JournalSyncTask | None:
        """Return the task to run next; None if there is none, or more changes are to be made first.

        Call it after every other method. If there is nothing to sync, it sends the messages.
        """
        # guard: one sync serves the groups of many turns
        if self._task is not None or self._failure is not None or self._pass is not None:
            return None
        if self._journal.is_dirty:
            self._note_heard(self._now)
        self._task = self._journal.begin_sync()
        if self._task is None:
            self.flush(self._now)
        return self._task

    def complete_sync(self, task: JournalSyncTask, now: float) -> None:
        """Complete a task that has run: send the waiting messages and process inputs."""
        assert task is self._task
        self._task = None
        self._is_stalled = False
        self._journal.complete_sync(task)
        self.flush(now)
        self.tick(now)

    def failed_sync(
        self, task: JournalSyncTask, error: OSError
    ) -> DiskFullError | StorageFailedError:
        """Complete a task whose ``run`` raised, and return the error.

        After ``DiskFullError`` no work is done until a later task has run: call ``begin_sync`` to
        retry. After ``StorageFailedError`` the node stops permanently.
        """
        assert task is self._task
        self._task = None
        failure = self._journal.failed_sync(task, error)
        if isinstance(failure, StorageFailedError):
            self._failure = failure
            for host in self._groups.values():
                host.proposals.close("this broker's disk failed")
            self._deliver()
        else:
            # guard: a full disk stops votes
            self._is_stalled = True
        return failure

    def flush(self, now: float) -> None:
        """Send the queued messages, unless they depend on unsynced changes."""
        self._now = max(now, self._now)
        # guard: nothing is sent after a failed sync
        # guard: nothing is sent while the journal is dirty
        if self._journal.is_dirty or self._failure is not None:
            return
        mail = [
            (peer, data)
            for peer, link in sorted(self._links.items())
            if link.has_mail
            for data in link.collect(*self._journaled_here())
        ]
        for peer, data in mail:
            self._send(peer, data)

    def _journaled_here(self) -> tuple[int, str, int]:
        """Return the durable values in the header of each envelope."""
        return self._journal.boot, self._directory_id, self._journal.reported_sequence
