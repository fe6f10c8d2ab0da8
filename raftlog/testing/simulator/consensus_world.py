"""Brokers and the network between them: the world of simulated consensus.

One process of ``loop`` runs all brokers, with one ``Random``: all that happens is drawn from a seed
and is part of the digest. The network carries envelopes, not bytes as ``network`` does: it repeats
them, lets them overtake each other, and delivers those of connections that ended. Nothing here
decides what goes wrong, or when: ``consensus`` does. What is right,
``consensus_checker`` says.
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

# The longest sync, in means. One sync in three million takes 15 means: on a disk that is slow when
# everything is healed, that is longer than the groups have to recover.
SYNC_MEANS_MAX: Final = 10


@dataclass(slots=True)
class Link:
    """Between two brokers. ``number`` is 0 while there is no connection."""

    number: int = 0
    is_cut: bool = False  # no new connection can be made
    slowness: float = 1.0  # a factor of the latency
    blackholes: set[int] = field(default_factory=set)  # senders whose bytes vanish
    last: dict[int, float] = field(default_factory=dict)  # when a sender's newest bytes arrive


@dataclass(slots=True)
class Network:
    """How the wires behave. Times in seconds."""

    latency_s: float = 0.002
    late: float = 0.0  # chance that bytes of a connection that ended arrive all the same
    duplicate: float = 0.0
    reorder: float = 0.0  # chance that an envelope may overtake others


class World:
    """See the module. ``counts`` says what happened, so that a fault without effect is seen."""

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
        """Seconds since the world began."""
        return self._loop.now

    @property
    def events(self) -> int:
        return self._loop.events

    @property
    def hash(self) -> str:
        return self._loop.digest()

    def at(self, wait: float, name: str, action: Callable[..., object], *args: Any) -> None:
        """Do something in ``wait`` seconds. Ties go in the order of the calls."""
        self._node.call_later(max(0.0, wait), self._do, name, action, args)

    def _do(self, name: str, action: Callable[..., object], args: tuple[Any, ...]) -> None:
        if name:
            self.note(name)
        action(*args)

    def run_until(self, end: float) -> None:
        """Let time pass up to ``end``. Raises ``SimulationError`` if an event has raised."""
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
        """The broker comes back with nothing."""
        self.stop(broker, "kill")
        self.counts["wipe"] += 1
        broker.disk = self._disk()
        broker.directory_id = f"{broker.broker_id}.{broker.directories}"
        broker.directories += 1

    def leaders(self) -> list[Broker]:
        """The brokers that lead a group, or believe it."""
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
            self._look_at_journal(process, peer)
            process.node.peer_up(
                broker.broker_id, broker.directory_id, peer.journal.boot, process.now
            )

    def _look_at_journal(self, process: Process, peer: Process) -> None:
        """Check that a journal is never shorter than reported, after any fault of its machine."""
        broker, journal = peer.broker, peer.journal
        heard = process.node.heard(broker.broker_id)
        if heard is None or heard.directory_id != broker.directory_id:
            return
        if journal.boot > heard.boot and journal.opened_sequence < heard.sequence:
            self.checker.violated(
                f"boot {journal.boot} of {broker.directory_id} found its journal to end with block "
                f"{journal.opened_sequence}, after it had reported {heard.sequence}"
            )

    def connect_all(self) -> None:
        for a, b in self.links:
            self.connect(a, b)

    def disconnect(self, a: int, b: int, *, notice_s: float = 0.0) -> None:
        """The connection ends; one side may notice later than the other."""
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
        if not link.number:  # else there is a newer connection, whose start said it all
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

    # -- asking for things -------------------------------------------------------------------------

    def propose(
        self,
        process: Process,
        group_id: str,
        command: bytes,
        done: Callable[[Outcome], None],
        *,
        size: int = 0,
    ) -> None:
        """``size``: the command is made so long, with bytes that the machine does not keep."""
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
        """The newest generation that is on any disk, and its voters."""
        views = [view.group(group_id) for view in self.checker.views.values()]
        group = max(views, key=lambda group: group.generation, default=None)
        voters = self.groups[group_id] if group is None or group.is_new else group.voters
        return (0 if group is None else group.generation), dict(sorted(voters.items()))


COUNTED: Final = (
    *("kill", "power", "disk", "wipe", "paused", "refused sync", "seal"),
    *("disconnect", "lost", "late", "duplicate", "overtaken"),
    *("Applied", "NotProposed", "Unknown"),
)
