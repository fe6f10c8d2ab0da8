"""Faults of simulated consensus: of processes, disks, clocks, connections and administrators.

Each fault is a method that injects it once and schedules its end. ``consensus`` selects the faults
of a run and their frequency. Faults stay within the guarantees: no directory is lost while another
lost one still counts as a voter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from raftlog.testing.disk import FREE_BYTES, Fault
from raftlog.testing.simulator.consensus_process import Broker
from raftlog.testing.simulator.consensus_world import World


class Harm:
    """Injects the named faults into a simulation."""

    def __init__(self, world: World, faults: Sequence[str]) -> None:
        self.world = world
        self.random = world.random
        self._faults = frozenset(faults)
        self._harms = [name for name in HARMS if name in self._faults]

    def has(self, fault: str) -> bool:
        return fault in self._faults

    def do(self) -> None:
        """Inject one of the faults."""
        if self._harms:
            HARMS[self.random.choice(self._harms)](self)

    def set_out(self) -> None:
        """Set the properties of connections, disks and clocks for the entire run."""
        random, network = self.random, self.world.network
        network.latency_s = random.choice((0.001, 0.005, 0.03, 0.1))
        network.late = 0.5 if self.has("late") else 0.0
        network.duplicate = 0.05 if self.has("duplicate") else 0.0
        network.reorder = 0.3 if self.has("reorder") else 0.0
        for link in self.world.links.values():
            link.slowness = random.choice((1.0, 1.0, 5.0))
        for broker in self.world.brokers.values():
            broker.sync_s = random.choice((0.0005, 0.005, 0.02))
            if self.has("drift"):
                broker.clock_offset = random.uniform(0, 1e6)
                broker.clock_rate = random.uniform(0.9, 1.1)

    def heal(self) -> None:
        """End all faults. A pause in progress ends automatically."""
        world = self.world
        world.note("heal")
        world.network.latency_s = min(world.network.latency_s, 0.01)
        for link in world.links.values():
            link.is_cut, link.slowness = False, 1.0
            link.blackholes.clear()
        for broker in world.brokers.values():
            broker.disk.capacity_bytes, broker.sync_s = None, min(broker.sync_s, 0.02)
            broker.disk.faults.clear()
            world.start(broker)
        world.connect_all()

    def keep_one(self) -> None:
        """Inject one fault until the next ``heal``; the unaffected brokers are a majority."""
        world = self.world
        a, b = self._victim_and_other()
        kind = self.random.choice(("down", "pair", "one way"))
        world.note(f"keep {kind} {a} {b}")
        if kind == "down":
            world.stop(world.brokers[a], "kill")
        elif kind == "pair":
            world.link(a, b).is_cut = True
            world.disconnect(a, b)
        else:
            world.link(a, b).blackholes.add(a)

    def any_broker(self) -> Broker:
        return self.world.brokers[self.random.choice(sorted(self.world.brokers))]

    def victim(self) -> Broker:
        """Return a broker, with a preference for a leader."""
        leaders = self.world.leaders() if self.random.random() < 0.5 else []
        return self.random.choice(leaders) if leaders else self.any_broker()

    def _victim_and_other(self) -> tuple[int, int]:
        first = self.victim().broker_id
        return first, self.random.choice([n for n in self.world.brokers if n != first])

    # -- processes ---------------------------------------------------------------------------------

    def crash(self) -> None:
        self._stop("kill")

    def cut_power(self) -> None:
        self._stop("power")

    def _stop(self, way: str) -> None:
        """Stop one broker, or sometimes all at once."""
        everyone = list(self.world.brokers.values())
        for broker in everyone if self.random.random() < 0.15 else [self.victim()]:
            self.world.stop(broker, way)
            self._start_later(broker, 3.0)

    def _start_later(self, broker: Broker, at_most_s: float) -> None:
        wait_s = self.random.uniform(0.01, self.random.choice((0.1, at_most_s)))
        self.world.at(wait_s, "", self.world.start, broker)

    def wipe(self) -> None:
        """Delete a broker's directory, and restart the broker with a new one."""
        broker = self.victim()
        if all(self._may_lose(group_id) for group_id in self.world.groups):
            self.world.wipe(broker)
            self._start_later(broker, 2.0)

    def _may_lose(self, group_id: str) -> bool:
        """Return whether every voter has its directory, and in it the newest generation."""
        generation, voters = self.world.newest(group_id)
        checker = self.world.checker
        return len(voters) >= 3 and all(
            directory == self.world.brokers[number].directory_id
            and checker.durable(directory, group_id).generation == generation
            for number, directory in voters.items()
        )

    def pause(self) -> None:
        process = self.victim().process
        if process is not None:
            process.paused_until = self.world.now + self.random.choice((0.2, 1.0, 3.0))

    # -- disks -------------------------------------------------------------------------------------

    def break_disk(self) -> None:
        """Fail a write, an fdatasync or a rename. The data may be stored or not."""
        broker = self.victim()
        if broker.process is not None:
            operations = self.random.choice((("write",), ("sync",), ("rename", "sync_dir")))
            broker.disk.faults.append(Fault(operations, forgets=self.random.random() < 0.5))
            for wait_s in (0.5, 1.5, 3.0):
                self.world.at(wait_s, "", self.world.start, broker)

    def fill_disk(self) -> None:
        disk = self.victim().disk
        disk.capacity_bytes = FREE_BYTES
        used = FREE_BYTES - disk.free_bytes(".")
        disk.capacity_bytes = used + self.random.randrange(300)
        self.world.at(self.random.uniform(0.2, 2), "", setattr, disk, "capacity_bytes", None)

    def slow_disk(self) -> None:
        broker = self.victim()
        usual = min(broker.sync_s, 0.02)
        broker.sync_s = self.random.choice((0.1, 0.5, 2.0))
        self.world.at(self.random.uniform(0.3, 3), "", setattr, broker, "sync_s", usual)

    # -- connections -------------------------------------------------------------------------------

    def cut(self) -> None:
        """Partition the network: one pair, one broker, two halves, or all pairs but a chain."""
        shape = self.random.choice(sorted(SHAPES))
        numbers = self.random.sample(sorted(self.world.brokers), len(self.world.brokers))
        pairs = [
            (a, b)
            for i, a in enumerate(numbers)
            for j, b in enumerate(numbers)
            if i < j and SHAPES[shape](i, j, len(numbers))
        ]
        for a, b in pairs:
            self.world.link(a, b).is_cut = True
            self.world.disconnect(a, b, notice_s=self._notice_s())
        self.world.at(self.random.uniform(0.1, 4), "", self._join, pairs)

    def _join(self, pairs: Sequence[tuple[int, int]]) -> None:
        for a, b in pairs:
            link = self.world.link(a, b)
            link.is_cut = False
            link.blackholes.clear()
            self.world.connect(a, b)

    def _notice_s(self) -> float:
        return self.random.choice((0.0, 0.5, 3.0)) if self.has("half open") else 0.0

    def flap(self) -> None:
        a, b = self._victim_and_other()
        self.world.disconnect(a, b, notice_s=self._notice_s())
        self.world.connect(a, b)

    def silence(self) -> None:
        """Lose all bytes that a broker sends to one other broker, or to all others."""
        a, b = self._victim_and_other()
        others = [b] if self.random.random() < 0.6 else [n for n in self.world.brokers if n != a]
        for other in others:
            self.world.link(a, other).blackholes.add(a)
        pairs = [(a, other) for other in others]
        self.world.at(self.random.uniform(0.2, 3), "", self._join, pairs)


def _pair(_first: int, second: int, _brokers: int) -> bool:
    return second == 1


def _one(first: int, _second: int, _brokers: int) -> bool:
    return first == 0


def _halves(first: int, second: int, brokers: int) -> bool:
    return first < brokers // 2 <= second


def _chain(first: int, second: int, _brokers: int) -> bool:
    return second - first > 1


# Whether two brokers are disconnected. Arguments: their places, ascending, and the broker count.
SHAPES: Final[Mapping[str, Callable[[int, int, int], bool]]] = {
    "pair": _pair,
    "one": _one,
    "halves": _halves,
    "chain": _chain,
}
HARMS: Final[Mapping[str, Callable[[Harm], None]]] = {
    "crash": Harm.crash,
    "power": Harm.cut_power,
    "wipe": Harm.wipe,
    "pause": Harm.pause,
    "broken disk": Harm.break_disk,
    "full disk": Harm.fill_disk,
    "slow disk": Harm.slow_disk,
    "cut": Harm.cut,
    "flap": Harm.flap,
    "one way": Harm.silence,
}
# The others are not events: clock drift, properties of connections, "large" commands, and seals by
# administrators ("seal": without a reason, "voters": with other voters).
FAULTS: Final = (
    *HARMS,
    *("drift", "half open", "late", "duplicate", "reorder", "large"),
    *("seal", "voters"),
)
