"""Drives a broker's ``ConsensusNode`` on an event loop: time, disk and outcomes. Decides nothing.

All Raft groups of a broker share one journal, so all writes of one turn of the loop share one
fdatasync, in a thread. The node sends nothing until the sync is complete: a vote or an
acknowledgement is durable before any broker receives it (Raft, section 5.1 of the paper:
"persistent state ... updated on stable storage before responding").

It uses only the time, timers, ``call_soon`` and futures of the loop: on a loop with virtual time, a
run is a function of its inputs.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from raftlog.consensus import (
    Applied,
    ConsensusNode,
    GroupStatus,
    Heard,
    Journaled,
    JournalSyncTask,
    NotProposed,
    Outcome,
    StateMachine,
    Unknown,
)
from raftlog.errors import (
    ClusterNotReadyError,
    CommitUnknownError,
    DiskFullError,
    FileLimitError,
    StorageFailedError,
)
from raftlog.server.scheduling import Workers

logger = logging.getLogger(__name__)

DISK_FULL_PAUSE_S: Final = 1.0  # seconds between two attempts to write to a full disk
# After that, the outcome of a proposal is unknown, for any reason.
PROPOSE_SECONDS_MAX: Final = 15.0
_TICK_SECONDS_MIN: Final = 0.001  # a node that always has work due must yield the loop

# Called once.
OutcomeDone: TypeAlias = Callable[[Outcome], None]
# Called with a command, which it has another broker propose.
Forward: TypeAlias = Callable[[bytes, OutcomeDone], None]


class ConsensusPlane:
    """Invariant: at most one task of the journal is in flight, and none begins after ``stop``.

    ``on_failed``: called once, when the journal could not be written or consensus had an internal
    error: the broker must stop. Nothing is sent from then on.
    """

    def __init__(
        self,
        node: ConsensusNode,
        loop: AbstractEventLoop,
        workers: Workers,
        *,
        on_failed: Callable[[StorageFailedError], None],
        disk_full_pause_s: float = DISK_FULL_PAUSE_S,
        propose_seconds_max: float = PROPOSE_SECONDS_MAX,
    ) -> None:
        self._node = node
        self._loop = loop
        self._workers = workers
        self._on_failed = on_failed
        self._disk_full_pause_s = disk_full_pause_s
        self._propose_seconds_max = propose_seconds_max
        self._task: JournalSyncTask | None = None
        self._scheduled = False  # a turn is scheduled on the loop
        self._timer: asyncio.TimerHandle | None = None  # of the next tick, or the next attempt
        self.shortage: DiskFullError | None = None  # why the journal cannot be written now
        self._pausing = False  # until the next attempt
        self._stopped = False
        self._inside = False  # a call of the node is in progress
        self._inputs: deque[Callable[[float], None]] = deque()  # received during that call
        self._waiting: dict[int, OutcomeDone] = {}  # proposals without an outcome
        self._proposals = 0
        self._forwards: dict[str, Forward] = {}
        self._quiet: asyncio.Future[None] | None = None  # while `stop` waits for the last task
        self.failure: StorageFailedError | None = None

    # -- incoming messages -------------------------------------------------------------------------

    def receive(self, peer: int, envelope: bytes) -> None:
        """Process an envelope from an authenticated peer; its bytes are not trusted."""
        self._enter(lambda now: self._node.receive(peer, envelope, now))

    def peer_up(self, peer: int, directory_id: str, boot: int, run: str = "") -> None:
        """Note that envelopes to ``peer`` can arrive from now on."""
        self._enter(lambda now: self._node.peer_up(peer, directory_id, boot, now, run=run))

    def peer_down(self, peer: int) -> None:
        self._enter(lambda now: self._node.peer_down(peer, now))

    def open_group(
        self,
        raft_id: str,
        machine: StateMachine,
        *,
        voters: Mapping[int, str],
        base: bytes,
        needs_leader: bool = True,
    ) -> None:
        """``ConsensusNode.open_group``, now."""

        def act(now: float) -> None:
            self._node.open_group(
                raft_id, machine, voters=voters, base=base, now=now, needs_leader=needs_leader
            )

        self._enter(act)

    def close_group(self, raft_id: str, *, forget: bool) -> None:
        """``ConsensusNode.close_group``; ``forget`` also removes the group's data from the
        journal.
        """
        self._enter(lambda _now: self._node.close_group(raft_id, forget=forget))

    def force_generation(
        self,
        raft_id: str,
        voters: Mapping[int, str],
        *,
        base: bytes | None = None,
        above: int | None = None,
    ) -> None:
        """``ConsensusNode.force_generation``: an operator's recovery after loss of the majority."""
        self._enter(
            lambda now: self._node.force_generation(raft_id, voters, now, base=base, above=above)
        )

    def found(self, raft_id: str, voters: Mapping[int, str], base: bytes) -> None:
        """``ConsensusNode.found``: the first generation of a group that had no voters."""
        self._enter(lambda now: self._node.found(raft_id, voters, base, now))

    def propose_bytes(self, raft_id: str, command: bytes, done: OutcomeDone) -> None:
        """Propose a command; ``done`` is called once, later."""
        forward = self._forwards.get(raft_id)
        if forward is not None and not self.has_vote(raft_id):
            self._propose(done, lambda once, _now: forward(command, once))
        else:
            self._propose(done, lambda once, now: self._node.propose(raft_id, command, once, now))

    def forward_proposals(self, raft_id: str, forward: Forward) -> None:
        """Use ``forward`` for the group's commands while this broker has no vote in it."""
        self._forwards[raft_id] = forward

    def seal(self, raft_id: str, voters: Mapping[int, str], done: OutcomeDone) -> None:
        """End the group's generation; the next one has ``voters``. ``done`` is called as for a
        command. Raises ``KeyError`` for a group that is not open.
        """
        known = self._node.status(raft_id).generation  # this may be queued behind its end
        self._propose(done, lambda once, now: self._node.seal(raft_id, voters, once, now, known))

    async def propose(self, raft_id: str, command: bytes) -> object:
        """Propose a command and return the result of its application.

        Raises ``ClusterNotReadyError`` if it was certainly not proposed, ``CommitUnknownError`` if
        it may or may not be applied. The outcome is known within ``propose_seconds_max``.
        """
        future: asyncio.Future[Outcome] = self._loop.create_future()

        def done(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        late = Unknown(f"no outcome within {self._propose_seconds_max:g} s")
        timer = self._loop.call_later(self._propose_seconds_max, done, late)
        try:
            self.propose_bytes(raft_id, command, done)
            outcome = await future
        finally:
            timer.cancel()
        if isinstance(outcome, Applied):
            return outcome.result
        what = f"a command to {raft_id}"
        if isinstance(outcome, NotProposed):
            raise ClusterNotReadyError(f"{what} was not proposed: {outcome.reason}")
        raise CommitUnknownError(f"{what} may or may not be applied: {outcome.reason}")

    # -- state -------------------------------------------------------------------------------------

    def status(self, raft_id: str) -> GroupStatus:
        """``ConsensusNode.status``."""
        return self._node.status(raft_id)

    def voters(self, raft_id: str) -> Mapping[int, str]:
        """``ConsensusNode.voters``."""
        return self._node.voters(raft_id)

    def has_journaled(self, raft_id: str) -> bool:
        """``ConsensusNode.has_journaled``."""
        return self._node.has_journaled(raft_id)

    def journaled_groups(self) -> list[str]:
        """``ConsensusNode.journaled_groups``."""
        return self._node.journaled_groups()

    def journaled(self, raft_id: str) -> Journaled:
        """``ConsensusNode.journaled``."""
        return self._node.journaled(raft_id, self._loop.time())

    def heard(self, peer: int) -> Heard | None:
        """``ConsensusNode.heard``."""
        return self._node.heard(peer)

    def has_vote(self, raft_id: str) -> bool:
        """Whether this broker is a voter of the group's generation; False if it is not open."""
        try:
            return self._node.status(raft_id).role != "observer"
        except KeyError:
            return False

    def leads(self, raft_id: str) -> bool:
        """Whether this broker considers itself the group's Raft leader; False if the group is not
        open.

        This is not authoritative: another leader may have been elected since. Raft decides what it
        proposes.
        """
        return not self._ended and self._node.leads(raft_id)

    # -- the end -----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop ticks, fail proposals without an outcome as unknown, and return once no disk write
        is in progress.
        """
        self._stopped = True
        self._cancel_timer()
        self._end_proposals("the broker stops")
        if self._task is not None:
            self._quiet = self._loop.create_future()
            await self._quiet

    # -- inside ------------------------------------------------------------------------------------

    @property
    def _ended(self) -> bool:
        # guard: no consensus after a failure
        return self._stopped or self.failure is not None

    def _enter(self, act: Callable[[float], None]) -> None:
        """Run ``act`` on the node: now, or after the call that is in progress.

        A machine or ``on_state`` may call this method while the node runs.
        """
        if self._ended:
            return
        self._inputs.append(act)
        if not self._inside:
            self._guarded(self._take_inputs)

    def _take_inputs(self) -> None:
        while self._inputs and not self._ended:
            self._inputs.popleft()(self._loop.time())
            self._turn_soon()

    def _guarded(self, act: Callable[[], None]) -> None:
        """Run ``act``. If it fails, the node's state is not reliable: consensus stops."""
        assert not self._inside
        self._inside = True
        try:
            act()
            self._take_inputs()
        except StorageFailedError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("consensus failed: reason=internal_error. Report this error")
            self._fail(
                StorageFailedError(
                    f"internal error in consensus ({type(error).__name__}: {error}). Its state in "
                    "memory is not reliable; the journal is. Report this error"
                )
            )
        finally:
            self._inside = False

    def _turn_soon(self) -> None:
        """Schedule one turn after all work of this turn of the loop."""
        if self._task is None and not self._scheduled and not self._ended:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Run the due work, then make it durable. Without anything to write, messages are sent at
        once.
        """
        self._scheduled = False
        # guard: no turn while the disk is full
        # guard: no turn while the journal is synced
        if self._ended or self._pausing or self._task is not None:
            return
        self._cancel_timer()
        self._guarded(self._tick_and_sync)

    def _tick_and_sync(self) -> None:
        node = self._node
        now = self._loop.time()
        node.tick(now)
        self._task = node.begin_sync()
        if self._task is not None:
            self._workers.submit(self._task.run, self._synced)
        elif node.is_busy:
            self._turn_soon()
        else:
            pause = max(node.next_tick(now) - now, _TICK_SECONDS_MIN)
            if pause < math.inf:
                self._timer = self._loop.call_later(pause, self._turn)

    def _synced(self, _result: None, error: Exception | None) -> None:
        task, self._task = self._task, None
        assert task is not None
        # guard: nothing is completed after a failure
        if self.failure is not None:
            pass  # queued messages come from memory that is not reliable
        elif error is None:
            self._note_room()
            self._guarded(lambda: self._node.complete_sync(task, self._loop.time()))
            self._turn()
        else:
            if not isinstance(error, OSError):  # any other error: the state on disk is unknown
                error = OSError(errno.EIO, repr(error))
            failure = self._node.failed_sync(task, error)
            if isinstance(failure, DiskFullError):
                self._wait_for_room(failure)
            else:
                self._fail(failure)
        if self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    def _wait_for_room(self, error: DiskFullError) -> None:
        """Run no turn until the pause ends, so nothing is sent: its contents are not durable."""
        if self.shortage is None:
            reason = "file_limit" if isinstance(error, FileLimitError) else "disk_full"
            logger.error("consensus paused: reason=%s error=%s", reason, error)
        self.shortage = error
        if not self._ended:
            self._pausing = True
            self._timer = self._loop.call_later(self._disk_full_pause_s, self._resume)

    def _resume(self) -> None:
        self._pausing = False
        self._turn()

    def _note_room(self) -> None:
        if self.shortage is not None:
            self.shortage = None
            logger.info("consensus resumed: reason=disk_space_available")

    def _fail(self, error: StorageFailedError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        self._inputs.clear()
        self._cancel_timer()
        self._on_failed(error)
        self._end_proposals(str(error))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- proposals ---------------------------------------------------------------------------------

    def _propose(self, done: OutcomeDone, act: Callable[[OutcomeDone, float], None]) -> None:
        if self._ended:
            self._loop.call_soon(done, NotProposed(str(self.failure or "the broker stops")))
            return
        self._proposals += 1
        number = self._proposals
        self._waiting[number] = done

        def once(outcome: Outcome) -> None:
            waiting = self._waiting.pop(number, None)
            if waiting is not None:  # otherwise it has timed out
                self._loop.call_soon(waiting, outcome)  # the callback may propose the next one

        self._enter(lambda now: act(once, now))

    def _end_proposals(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            done(Unknown(reason))
