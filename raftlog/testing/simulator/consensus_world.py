"""The simulation of consensus: brokers, and the network between them.

One process of ``loop`` runs all brokers, with one ``Random``: a seed determines all events, and
they are part of the digest. Unlike ``network``, this network carries envelopes instead of bytes: it
can duplicate them, reorder them, and deliver those of closed connections. ``consensus`` selects
faults and their times, ``consensus_checker`` checks the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from raftlog.consensus import Applied, Outcome
from raftlog.errors import DiskFullError
from raftlog.testing.disk import SimDisk
from raftlog.testing.simulator.consensus_checker import Checker, first_directory
from raftlog.testing.simulator.consensus_process import PADDING, RETRY_S, Broker, Process
from raftlog.testing.simulator.loop import NodeLoop, SimLoop

# Maximum duration of a sync, as a multiple of the mean. Without it, one sync in three million takes
# 15 means: on a disk that is slow at the time of healing, too long for groups to recover in time.
SYNC_MEANS_MAX: Final = 10


@dataclass(slots=True)
class Link:
    """The link between two brokers. ``number``: of its connection; 0 without one."""

    number: int = 0
    is_cut: bool = False  # no connection can be established
    slowness: float = 1.0  # factor of the latency
    blackholes: set[int] = field(default_factory=set)  # senders whose bytes are lost
    last: dict[int, float] = field(default_factory=dict)  # arrival of a sender's last bytes


@dataclass(slots=True)
class Network:
    """Properties of all links. Times in seconds; others are probabilities."""

    latency_s: float = 0.002
    late: float = 0.0  # that bytes of a closed connection are delivered
    duplicate: float = 0.0
    reorder: float = 0.0  # that an envelope may overtake others


class World:
    """A simulation (see the module). ``counts``: events by kind; they reveal ineffective faults."""

    def __init__(self, seed: int, brokers: int, groups: Mapping[str, Mapping[int, str]]) -> None:
        self.random = Random(seed)
        self.checker = Checker()
        self.groups = groups
        self.network = Network()
        self.counts: dict[str, int] = dict.fromkeys(COUNTED, 0)
        self.trace: list[str] | None = None
        self.brokers = {number: self._broker(number) for number in range(1, brokers + 1)}
        self.links = {(a, b): Link() for a in self.brokers for b in self.brokers if a < b}
        self._loop = SimLoop()
        self._node = NodeLoop(self._loop, "world", step_ns=0)
        self._sessions = 0

    def _broker(self, number: int) -> Broker:
        return Broker(number, self._disk(), first_directory(number))

    def _disk(self) -> SimDisk:
        disk = SimDisk(Random(self.random.getrandbits(64)))
        disk.make_dirs("data")
        return disk

    # -- events ------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the start of the simulation."""
        return self._loop.now

    @property
    def events(self) -> int:
        return self._loop.events

    @property
    def hash(self) -> str:
        return self._loop.digest()

    def at(self, wait: float, name: str, action: Callable[..., object], *args: Any) -> None:
        """Call ``action`` in ``wait`` seconds; at the same time, in the order of these calls."""
        self._node.call_later(max(0.0, wait), self._do, name, action, args)

    def _do(self, name: str, action: Callable[..., object], args: tuple[Any, ...]) -> None:
        if name:
            self.note(name)
        action(*args)

    def run_until(self, end: float) -> None:
        """Run events up to the time ``end``. Raises ``SimulationError`` if an event has raised."""
        self._loop.run_until(end)

    def note(self, what: str) -> None:
        self._loop.note(what)
        if self.trace is not None:
            self.trace.append(f"{self.now:.6f} {what}")

    # -- processes ---------------------------------------------------------------------------------

    def start(self, broker: Broker) -> None:
        if broker.process is not None:
            return
        self.note(f"start {broker.broker_id}")
        try:
            broker.process = Process(broker, self)
        except DiskFullError:
            broker.disk.crash()
            self.at(RETRY_S, "", self.start, broker)
            return
        broker.process.do(lambda: None)
        for other in self.brokers:
            if other != broker.broker_id:
                self.connect(broker.broker_id, other)

    def stop(self, broker: Broker, way: str) -> None:
        """End a broker's process: by "kill", by "power", or because of its "disk"."""
        process = broker.process
        if process is None:
            return
        self.note(f"stop {broker.broker_id} {way}")
        self.counts[way] += 1
        broker.process = None
        process.end(way)
        for pair in self.links:
            if broker.broker_id in pair:
                self.disconnect(*pair)

    def wipe(self, broker: Broker) -> None:
        """Stop the broker and give it an empty disk."""
        self.stop(broker, "kill")
        self.counts["wipe"] += 1
        broker.disk = self._disk()
        broker.directory_id = f"{broker.broker_id}.{broker.directories}"
        broker.directories += 1

    def leaders(self) -> list[Broker]:
        """Return the brokers that lead a group in their own view."""
        return [
            broker
            for broker in self.brokers.values()
            if (process := broker.process) is not None
            and any(process.node.status(each).role == "leader" for each in self.groups)
        ]

    def sync_time(self, broker: Broker) -> float:
        return min(self.random.expovariate(1 / broker.sync_s), SYNC_MEANS_MAX * broker.sync_s)

    # -- the network -------------------------------------------------------------------------------

    def link(self, a: int, b: int) -> Link:
        return self.links[min(a, b), max(a, b)]

    def connect(self, a: int, b: int) -> None:
        link, one, other = self.link(a, b), self.brokers[a].process, self.brokers[b].process
        if link.number or link.is_cut or one is None or other is None:
            return
        self._sessions += 1
        link.number, link.last = self._sessions, {}
        self.note(f"connect {a} {b}")
        for process, peer in ((one, other), (other, one)):
            process.do(partial(self._up, process, peer, link.number))

    def _up(self, process: Process, peer: Process, number: int) -> None:
        broker = peer.broker
        if self.link(process.broker.broker_id, broker.broker_id).number == number:
            self._check_journal(process, peer)
            process.node.peer_up(
                broker.broker_id, broker.directory_id, peer.journal.boot, process.now
            )

    def _check_journal(self, process: Process, peer: Process) -> None:
        """Check that a journal is never shorter than reported, after any fault of its machine."""
        broker, journal = peer.broker, peer.journal
        heard = process.node.heard(broker.broker_id)
        if heard is None or heard.directory_id != broker.directory_id:
            return
        if journal.boot > heard.boot and journal.opened_sequence < heard.sequence:
            self.checker.violated(
                f"boot {journal.boot} of {broker.directory_id}: its journal ended with block "
                f"{journal.opened_sequence}, after block {heard.sequence} was reported"
            )

    def connect_all(self) -> None:
        for a, b in self.links:
            self.connect(a, b)

    def disconnect(self, a: int, b: int, *, notice_s: float = 0.0) -> None:
        """End the connection. ``b`` detects it ``notice_s`` later than ``a``."""
        link = self.link(a, b)
        if not link.number:
            return
        self.note(f"disconnect {a} {b}")
        self.counts["disconnect"] += 1
        link.number = 0
        for one, other, wait in ((a, b, 0.0), (b, a, notice_s)):
            if (process := self.brokers[one].process) is not None:
                self.at(wait, "", process.do, partial(self._down, process, other))

    def _down(self, process: Process, peer: int) -> None:
        link = self.link(process.broker.broker_id, peer)
        if not link.number:  # else ``peer_up`` of a newer connection has reported it
            process.node.peer_down(peer, process.now)

    def transmit(self, source: int, target: int, envelope: bytes) -> None:
        link, receiver = self.link(source, target), self.brokers[target].process
        if receiver is None or source in link.blackholes or not link.number:
            self.counts["lost"] += 1
            return
        random, network = self.random, self.network
        copies = 2 if random.random() < network.duplicate else 1
        self.counts["duplicate"] += copies - 1
        for _ in range(copies):
            arrival = self.now + random.expovariate(1 / (network.latency_s * link.slowness))
            if random.random() >= network.reorder:
                arrival = max(arrival, link.last.get(source, 0.0))
                link.last[source] = arrival
            self.counts["overtaken"] += arrival < link.last.get(source, 0.0)
            self.at(arrival - self.now, "", self._arrive, source, receiver, envelope, link.number)

    def _arrive(self, source: int, receiver: Process, envelope: bytes, number: int) -> None:
        link = self.link(source, receiver.broker.broker_id)
        if link.number != number:
            if self.random.random() >= self.network.late:
                return
            self.counts["late"] += 1
        self.note(f"{source}>{receiver.broker.broker_id} {len(envelope)}")
        receiver.do(lambda: receiver.node.receive(source, envelope, receiver.now))

    # -- requests ----------------------------------------------------------------------------------

    def propose(
        self,
        process: Process,
        group_id: str,
        command: bytes,
        done: Callable[[Outcome], None],
        *,
        size: int = 0,
    ) -> None:
        """Propose a command, padded to ``size`` bytes. State machines do not store the padding."""
        padded = command.ljust(size, PADDING)

        def answered(outcome: Outcome) -> None:
            self.note(f"{command.decode()} {type(outcome).__name__}")
            self.counts[type(outcome).__name__] += 1
            self.checker.answered(group_id, command, outcome)
            done(outcome)

        process.do(lambda: process.node.propose(group_id, padded, answered, process.now))

    def seal(self, process: Process, group_id: str, voters: Mapping[int, str]) -> None:
        def answered(outcome: Outcome) -> None:
            self.note(f"seal {group_id} {outcome}")
            self.counts["seal"] += isinstance(outcome, Applied)

        process.do(lambda: process.node.seal(group_id, voters, answered, process.now))

    def newest(self, group_id: str) -> tuple[int, dict[int, str]]:
        """Return the newest generation on any disk, and its voters."""
        views = [view.group(group_id) for view in self.checker.views.values()]
        group = max(views, key=lambda group: group.generation, default=None)
        voters = self.groups[group_id] if group is None or group.is_new else group.voters
        return (0 if group is None else group.generation), dict(sorted(voters.items()))


COUNTED: Final = (
    *("kill", "power", "disk", "wipe", "paused", "refused sync", "seal"),
    *("disconnect", "lost", "late", "duplicate", "overtaken"),
    *("Applied", "NotProposed", "Unknown"),
)
