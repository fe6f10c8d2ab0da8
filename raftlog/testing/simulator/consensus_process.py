"""One broker of simulated consensus: its machine, its process, and the host of its node.

The node and the journal are the real ones. This module has the duties of their host (see
``raftlog.consensus.node``): syncs that take time, ticks when they are due, and bytes to peers. A
process can end at any time, and its machine starts another one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

import msgpack

from raftlog.consensus import ConsensusNode, ConsensusSettings, Journal, JournalSyncTask
from raftlog.consensus.envelope import COMMAND, decode
from raftlog.consensus.raft_journal import Entry, RaftJournal
from raftlog.errors import StorageFailedError
from raftlog.testing.disk import Fault, SimDisk, Stopped

if TYPE_CHECKING:
    from raftlog.testing.simulator.consensus_world import World

PATH: Final = "data/consensus.journal"
REWRITE_BYTES: Final = 6_000  # small, so journals are rewritten often
RETRY_S: Final = 0.2  # between two attempts on a full disk
FOREVER_S: Final = 1e6
PADDING: Final = b"."
SETTINGS: Final = ConsensusSettings(
    election_timeout_ms=900,
    suspect_timeout_ms=100,
    heartbeat_ms=300,
    tick_ms=50,
    propose_timeout_ms=2_000,
    seal_after_entries=40,
    groups_per_turn=1,
)


class Ledger:
    """A state machine: the list of its commands. The result of each is its place, from 1."""

    def __init__(self, process: Process, group_id: str) -> None:
        self.commands: list[bytes] = []
        self._process = process
        self._group_id = group_id
        self._journal: RaftJournal = process.journal.group(group_id)
        self._generation = 0
        self._position = 0  # in the journal, after the last applied entry

    def apply(self, command: bytes) -> object:
        name = command.rstrip(PADDING)
        self.commands.append(name)
        place = len(self.commands)
        entry = self._find(bytes([COMMAND]) + command)
        self._process.world.checker.applied(
            self._group_id, place, name, entry, self._journal.voters
        )
        return place

    def _find(self, stored: bytes) -> tuple[int, int, Entry] | None:
        if self._generation != self._journal.generation:
            self._generation, self._position = self._journal.generation, 0
        for position in range(self._position, len(self._journal)):
            entry = self._journal[position]
            if entry[0] == stored:
                self._position = position + 1
                return self._generation, position, entry
        return None

    def snapshot(self) -> bytes:
        return bytes(msgpack.packb(self.commands))

    def restore(self, snapshot: bytes) -> None:
        self.commands = msgpack.unpackb(snapshot) if snapshot else []
        self._process.world.checker.restored(self._group_id, self.commands)


class Process:
    """One incarnation of a broker: from its start to its crash."""

    def __init__(self, broker: Broker, world: World) -> None:
        self.broker = broker
        self.world = world
        self.is_alive = True
        self.paused_until = 0.0
        self.journal = Journal.open(broker.disk, PATH, rewrite_bytes=REWRITE_BYTES)
        self.stored(replaced=True)
        self.ledgers: dict[str, Ledger] = {}
        self.task: JournalSyncTask | None = None
        self._timer = 0
        self._retry_at = 0.0  # time of the next attempt on a full disk
        self._changed: dict[str, None] = {}  # groups to check after the current call
        chance = Random(world.random.getrandbits(64))
        self.node = ConsensusNode(
            broker.broker_id,
            broker.directory_id,
            self.journal,
            settings=SETTINGS,
            chance=chance.random,
            send=self._send,
            on_state=self._note_change,
        )
        for group_id, voters in world.groups.items():
            self.ledgers[group_id] = Ledger(self, group_id)
            self.node.open_group(
                group_id, self.ledgers[group_id], voters=voters, base=b"", now=self.now
            )
            self._note_change(group_id)

    @property
    def now(self) -> float:
        """Time of this broker's monotonic clock, in seconds."""
        return self.broker.clock_offset + self.world.now * self.broker.clock_rate

    def do(self, action: Callable[[], object]) -> None:
        """Call the node, now or when the process is resumed; then report changes, and sync."""
        if not self.is_alive:
            return
        if self.paused_until > self.world.now:
            self.world.counts["paused"] += 1
            self.world.at(self.paused_until - self.world.now, "resumed", self.do, action)
            return
        action()
        self._report_changes()
        self._go_on()

    def _go_on(self) -> None:
        """Start a sync if the node has one; else set the timer of its next tick."""
        if not self.is_alive or self.task is not None:
            return
        if self._retry_at > self.world.now:
            return
        self.task = self.node.begin_sync()
        if self.task is None:
            self._set_timer()
        else:
            wait = self.world.sync_time(self.broker)
            self.world.at(wait, f"sync {self.broker.broker_id}", self.do, self._finish_sync)

    def _set_timer(self) -> None:
        self._timer += 1
        timer, due = self._timer, self.node.next_tick(self.now)
        wait = max(0.0, (due - self.now) / self.broker.clock_rate)
        if wait < FOREVER_S:
            self.world.at(wait, "", self._on_timer, timer)

    def _on_timer(self, timer: int) -> None:
        if timer == self._timer and self.task is None:
            self.do(lambda: self.node.tick(self.now))

    def _finish_sync(self) -> None:
        task, self.task = self.task, None
        assert task is not None
        file = task.file
        try:
            task.run()
        except OSError as error:
            failure = self.node.failed_sync(task, error)
            if isinstance(failure, StorageFailedError):
                self.world.stop(self.broker, "disk")
            else:
                self.world.counts["refused sync"] += 1
                self._retry_at = self.world.now + RETRY_S
                self.world.at(RETRY_S, "", self.do, lambda: None)
            return
        self.stored(replaced=task.file is not file)
        self.node.complete_sync(task, self.now)

    def stored(self, *, replaced: bool = False) -> None:
        data = self.broker.disk.durable_bytes(PATH) or b""
        self.world.checker.stored(self.broker.directory_id, data, replaced=replaced)

    def end(self, way: str) -> None:
        """End the process. A sync in progress may have done any part of its work."""
        self.is_alive = False
        disk, random = self.broker.disk, self.world.random
        if self.task is not None and random.random() < 0.7:
            disk.faults = [Fault(error=None, skip=random.randrange(3))]
            with suppress(Stopped, OSError):
                self.task.run()
        disk.faults = []
        if way == "power":
            disk.power_cut()
        else:
            disk.crash()

    # -- calls from the node -----------------------------------------------------------------------

    def _send(self, peer: int, envelope: bytes) -> None:
        if self.journal.is_dirty and decode(envelope).messages:
            self.world.checker.violated(f"{self.broker.broker_id} sends state that is not durable")
        self.world.transmit(self.broker.broker_id, peer, envelope)

    def _note_change(self, group_id: str) -> None:
        """Remember that a role, a leader or a generation has changed."""
        self._changed[group_id] = None

    def _report_changes(self) -> None:
        changed, self._changed = self._changed, {}
        if not self.is_alive:
            return
        checker = self.world.checker
        for group_id in changed:
            status = self.node.status(group_id)
            if status.role == "leader":
                directory = self.broker.directory_id
                checker.leads(group_id, status.generation, status.term, directory)
            self.world.note(
                f"{self.broker.broker_id} {group_id} {status.role} of generation "
                f"{status.generation}, term {status.term}, leader {status.leader}"
            )


@dataclass(slots=True)
class Broker:
    """The machine of a broker: the state that remains between its processes."""

    broker_id: int
    disk: SimDisk
    directory_id: str
    directories: int = 1
    clock_offset: float = 0.0
    clock_rate: float = 1.0
    sync_s: float = 0.005  # mean; longer while its disk is slow
    process: Process | None = None
