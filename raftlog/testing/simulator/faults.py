"""The nemesis: faults of a simulation, and their times.

Each seed selects some kinds of faults (swarm testing: runs with few kinds find bugs that runs with
all kinds hide). The nemesis then injects faults of these kinds, with random pauses between them.
Temporary faults end automatically; ``World.heal`` ends all faults.
"""

from __future__ import annotations

import copy
import errno
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, TypeAlias

from raftlog.record import HEADER_BYTES
from raftlog.record.batch import length_at
from raftlog.storage.segment import LOG_SUFFIX
from raftlog.testing.disk import (
    CHANGES,
    FOREVER,
    SECTOR_BYTES,
    CachedDirectory,
    Fault,
    Node,
    SimDisk,
)
from raftlog.testing.simulator.loop import NodeLoop
from raftlog.testing.simulator.world import (
    DATA_DIRECTORY,
    LOG_DIRECTORY,
    BrokerMachine,
    Hang,
    World,
)

DOWN_S_MAX: Final = 3.0
PAUSE_S_MAX: Final = 6.0
CUT_S_MAX: Final = 6.0
ALONE_S: Final = 4.5  # an isolated broker has left the ISR after this time
STRANDED_S_MAX: Final = 16.0  # long enough for others to elect a leader and to commit
LAGGING_S_MAX: Final = 1.5  # less than ``replica.lag.time.max.ms``
APART_SHARE: Final = 0.25  # of seeds have a given kind of ``APART``
JOURNAL: Final = "*/consensus.journal*"
HANGS: Final[Mapping[str, Callable[[], Hang]]] = {
    "data disk": lambda: Hang(spares=JOURNAL),
    "journal": lambda: Hang(JOURNAL),
    "disk": Hang,
}
# Maximum jumps of a wall clock, in ms: NTP step, wrong time zone, more than any default retention.
JUMPS_MS: Final = (1_000, 120_000, 3_600_000, 2 * 86_400_000, 30 * 86_400_000)
SECTORS_HARMED_MAX: Final = 8  # by a lost or misdirected write
TAIL_BYTES: Final = 8_192  # of a segment: written by the last few syncs


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """``kinds``: names from ``KINDS``. ``every_s``: average time between two faults.

    ``apart``: names from ``APART``, each with a separate average.
    ``harmed``: ids of the brokers whose stored bytes may be corrupted: fewer than replicas, and
    constant, because corruption may remain undetected for any time. The others keep a valid copy
    (as in TigerBeetle's ClusterFaultAtlas). Empty: all brokers.
    ``is_cache_lossy``: a power cut loses acknowledged records (``flush.policy=os``).
    """

    kinds: tuple[str, ...]
    every_s: float
    apart: Mapping[str, float] = field(default_factory=dict)
    harmed: tuple[int, ...] = ()
    is_cache_lossy: bool = False

    @classmethod
    def draw(cls, random: Random, *, brokers: int) -> FaultPlan:
        """Select each kind independently; some kinds require a cluster."""
        possible = [
            kind
            for kind in KINDS
            if kind not in OF_STORED_BYTES and (brokers > 1 or kind not in OF_CLUSTERS)
        ]
        kinds = tuple(kind for kind in possible if random.random() < 0.4)
        return cls(kinds=kinds, every_s=random.choice((0.2, 0.5, 1.5)))

    @classmethod
    def of_disks(cls, random: Random) -> FaultPlan | None:
        """Select faults of power and disks, for worlds with their own faults of processes and
        links; None: none."""
        kinds = tuple(kind for kind in OF_DISKS if random.random() < 0.4)
        every_s = random.choice((0.5, 1.5, 4.0))
        return cls(kinds=kinds, every_s=every_s) if kinds else None

    def with_apart(self, seed: int) -> FaultPlan:
        """Add kinds with a separate random stream: their presence does not affect other draws."""
        drawn = {}
        for kind in APART:
            random = Random(f"{seed}/{kind}")
            is_other = kind in (*APART_OF_STORED_BYTES, *APART_OF_TWO_DISKS)
            if random.random() < APART_SHARE and not is_other:
                drawn[kind] = random.choice((1.5, 4.0))
        return replace(self, apart=drawn)

    def with_harm(self, random: Random, *, brokers: int, replicas: int) -> FaultPlan:
        """Add faults of stored bytes, on one broker fewer than the number of replicas."""
        kinds = tuple(kind for kind in OF_STORED_BYTES if random.random() < 0.6)
        harmed = random.sample(range(1, brokers + 1), replicas - 1)
        plan = replace(self, kinds=(*self.kinds, *kinds), harmed=tuple(sorted(harmed))).on_its_own()
        apart = {kind: 1.5 for kind in APART_OF_STORED_BYTES if random.random() < 0.6}
        return replace(plan, apart={**plan.apart, **apart})

    def with_two_disks(self, random: Random) -> FaultPlan:
        """Add faults of second disks, unless other faults use the fault budget."""
        every_s = random.choice((0.7, 2.0))
        if self.harmed or self.is_cache_lossy:
            return self
        return replace(self, apart={**self.apart, **dict.fromkeys(APART_OF_TWO_DISKS, every_s)})

    def on_its_own(self) -> FaultPlan:
        """Remove faults that lose files of any broker: other faults use the fault budget."""
        hung = {kind: every_s for kind, every_s in self.apart.items() if kind == "hung_disk"}
        return replace(self, apart=hung)


class Nemesis:
    """Injects faults from ``start`` until ``stop``. ``counts``: number of faults by kind."""

    def __init__(
        self,
        world: World,
        plan: FaultPlan,
        *,
        may_wipe: Callable[[Collection[BrokerMachine]], bool] = lambda _machines: False,
        on_wipe: Callable[[BrokerMachine], None] = lambda _machine: None,
        on_vanish: Callable[[BrokerMachine], None] = lambda _machine: None,
        on_most_wiped: Callable[[], None] = lambda: None,
        leaders: Callable[[], Collection[int]] = tuple,
        fewest_voters: int = 0,
    ) -> None:
        """``may_wipe``: whether the guarantee under test allows the loss of these brokers' disks.

        ``on_wipe``: called for each wiped broker; ``on_most_wiped``: called if half of the voters
        of a group may be wiped at once. ``fewest_voters``: of a group; 0: the number of brokers.
        ``on_vanish``: called if files of partitions are lost. ``leaders``: ids of the brokers that
        lead partitions.
        """
        self.world = world
        self.random = world.random("faults")
        self.may_wipe = may_wipe
        self.on_wipe = on_wipe
        self.fewest_voters = fewest_voters or len(world.brokers)
        self.on_vanish = on_vanish
        self.leaders = leaders
        self.images: dict[str, Node] = {}  # by machine: saved earlier state of its partitions
        self.on_most_wiped = on_most_wiped
        self.counts: dict[str, int] = {}
        self._plan = plan
        self._loop = NodeLoop(world.time, "faults")

    def start(self) -> None:
        if self._plan.kinds:
            self._next()
        for kind, every_s in self._plan.apart.items():
            one = copy.copy(self)
            one.random = self.world.random(f"faults/{kind}")
            one._plan = replace(self._plan, kinds=(kind,), every_s=every_s)
            one._next()

    def stop(self) -> None:
        """Start no faults, and end none: active faults remain until ``heal``."""
        self._loop.kill()

    def _next(self) -> None:
        self.later(self.random.expovariate(1 / self._plan.every_s), self._strike)

    def _strike(self) -> None:
        kind = self.random.choice(self._plan.kinds)
        machine = self.random.choice(self.world.brokers)
        if (KINDS.get(kind) or APART[kind])(self, machine):
            self.counts[kind] = self.counts.get(kind, 0) + 1
        self._next()

    def may_harm(self, machine: BrokerMachine) -> bool:
        """Return whether another valid disk stores all data of the machine's disk."""
        return self.is_to_be_harmed(machine) and self.may_wipe([machine])

    def is_to_be_harmed(self, machine: BrokerMachine) -> bool:
        return not self._plan.harmed or machine.broker_id in self._plan.harmed

    def may_cut_power(self, machine: BrokerMachine) -> bool:
        return not self._plan.is_cache_lossy or self.may_harm(machine)

    @property
    def is_cache_lossy(self) -> bool:
        return self._plan.is_cache_lossy

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        self._loop.call_later(seconds, act)

    def duration(self, longest_s: float) -> float:
        """Return a random duration, in most cases a short one."""
        return longest_s * self.random.random() ** 2

    def other(self, machine: BrokerMachine) -> str:
        """Return another host, of a client or a broker."""
        hosts = [other.name for other in (*self.world.brokers, *self.world.clients)]
        return self.random.choice([host for host in hosts if host != machine.name])


@contextmanager
def striking(
    world: World,
    plan: FaultPlan | None,
    count: Callable[[str, int], object],
    *,
    may_wipe: Callable[[Collection[BrokerMachine]], bool] = lambda _machines: False,
) -> Iterator[None]:
    """Inject the faults of a plan during the block. ``count``: called with their numbers by kind.
    ``may_wipe``: see ``Nemesis``."""
    if plan is None:
        yield
        return
    nemesis = Nemesis(world, plan, may_wipe=may_wipe)
    nemesis.start()
    yield
    nemesis.stop()
    for kind, number in nemesis.counts.items():
        count(kind, number)


# Injects a fault. Returns False if it would have no effect now.
FaultKind: TypeAlias = Callable[[Nemesis, BrokerMachine], bool]


# -- processes -------------------------------------------------------------------------------------


def kill(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    if not machine.is_running:
        return False
    machine.kill()
    machine.start_later(nemesis.duration(DOWN_S_MAX))
    return True


def kill_in_disk_operation(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """End the process in the middle of one of its next disk operations."""
    if not machine.is_running:
        return False
    operations = nemesis.random.choice((CHANGES, CHANGES, {"sync"}, {"sync_dir", "rename"}))
    skip = int(nemesis.duration(30))
    machine.disk.faults.append(Fault(operations, None, skip=skip))
    nemesis.world.trace(f"{machine.name} will end in one of {sorted(operations)}, after {skip}")
    return True


def power_cut_in_disk_operation(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Cut the power in the middle of a disk operation. The worst case is just before a sync."""
    if nemesis.is_cache_lossy or not kill_in_disk_operation(nemesis, machine):
        return False
    machine.power_fails_next = True
    return True


def stop(_nemesis: Nemesis, machine: BrokerMachine) -> bool:
    if machine.broker is None or not machine.is_running:
        return False
    machine.stop()
    return True


def pause(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    if not machine.is_running or machine.loop.is_paused:
        return False
    loop = machine.loop
    seconds = nemesis.duration(PAUSE_S_MAX)
    nemesis.world.trace(f"{machine.name} is paused for {seconds:.3f} s")
    loop.pause()
    nemesis.later(seconds, loop.resume)
    return True


def power_cut(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    if not machine.has_power or not nemesis.may_cut_power(machine):
        return False
    machine.power_cut()
    machine.start_later(nemesis.duration(DOWN_S_MAX))
    return True


def power_cut_of_all(nemesis: Nemesis, _machine: BrokerMachine) -> bool:
    for machine in nemesis.world.brokers:
        power_cut(nemesis, machine)
    return True


def client_kill(nemesis: Nemesis, _machine: BrokerMachine) -> bool:
    """Kill a client's process, and start another one."""
    running = [client for client in nemesis.world.clients if client.is_running]
    running = [client for client in running if not client.is_done]
    if not running:
        return False
    client = nemesis.random.choice(running)
    nemesis.world.trace(f"{client.name} is killed")
    client.kill()
    client.start()
    return True


# -- disks -----------------------------------------------------------------------------------------


def disk_full(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    disk = machine.disk
    if disk.capacity_bytes is not None:
        return False
    disk.capacity_bytes = disk.used_bytes + nemesis.random.choice((0, 100, 1_000, 20_000))
    nemesis.world.trace(f"{machine.name}'s disk is full at {disk.capacity_bytes}")

    def has_room() -> None:
        disk.capacity_bytes = None

    nemesis.later(nemesis.duration(CUT_S_MAX), has_room)
    return True


def sync_error(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    forgets = nemesis.random.random() < 0.5 and not nemesis.is_cache_lossy
    fault = Fault({"sync"}, errno.EIO, skip=nemesis.random.randrange(5), forgets=forgets)
    machine.disk.faults.append(fault)
    nemesis.world.trace(f"{machine.name}: a sync will fail{', losing data' if forgets else ''}")
    return True


def write_error(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    machine.disk.faults.append(Fault({"write"}, errno.EIO, skip=nemesis.random.randrange(5)))
    nemesis.world.trace(f"{machine.name}: a write will fail")
    return True


def slow_disk(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    latency = machine.latency
    if latency.stall_chance:
        return False
    latency.stall_chance, latency.stall_s = 0.3, nemesis.random.choice((0.05, 0.5, 3.0))
    nemesis.world.trace(f"{machine.name}'s disk stalls for {latency.stall_s} s")

    def end() -> None:
        latency.stall_chance = 0.0

    nemesis.later(nemesis.duration(CUT_S_MAX), end)
    return True


def hung_disk(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Hang syncs of the data, of the journal or of both, for some seconds or permanently."""
    if machine.is_disk_hung:
        return False
    random = nemesis.random
    what = random.choice(tuple(HANGS))
    hang = HANGS[what]()
    seconds = random.choice((2.0, 8.0, math.inf))
    machine.hang(hang)
    nemesis.world.trace(f"{machine.name}: its {what} hangs for {seconds} s")
    if seconds < math.inf:
        nemesis.later(seconds, hang.end)
    return True


def wipe(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    return _wipe(nemesis, [machine])


def wipe_several(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Wipe the disks of several brokers at once, but not of ``machine``.

    They restart before or after a short stop of ``machine``, in any order.
    """
    others = [other for other in nemesis.world.brokers if other is not machine]
    if len(others) < 2:
        return False
    lost = nemesis.random.sample(others, nemesis.random.randint(2, max(2, len(others))))
    if not _wipe(nemesis, lost):
        return False
    if nemesis.random.random() < 0.3:
        kill(nemesis, machine)
    if 2 * len(lost) >= nemesis.fewest_voters:
        nemesis.on_most_wiped()
    return True


def wipe_leader(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Wipe the disk of a leader while its followers lag, because it was isolated for a short time.

    The time is too short for followers to leave the ISR: records that they lack are not committed.
    """
    network = nemesis.world.network
    others = [other.name for other in nemesis.world.brokers if other is not machine]
    if machine.broker_id not in nemesis.leaders() or not nemesis.may_wipe([machine]):
        return False
    for other in others:
        network.cut(machine.name, other)
    nemesis.world.trace(f"{machine.name} is isolated, and will lose its disk")

    def lose() -> None:
        if _wipe(nemesis, [machine]):
            nemesis.counts["wipe"] = nemesis.counts.get("wipe", 0) + 1
        for other in others:
            network.mend(machine.name, other)

    nemesis.later(LAGGING_S_MAX * nemesis.random.random(), lose)
    return True


def _wipe(nemesis: Nemesis, machines: Collection[BrokerMachine]) -> bool:
    if not all(map(nemesis.is_to_be_harmed, machines)) or not nemesis.may_wipe(machines):
        return False
    for machine in machines:
        machine.wipe()
        nemesis.on_wipe(machine)
        machine.start_later(nemesis.duration(DOWN_S_MAX))
    return True


def vanish(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Remove files of partitions while their broker is down."""
    if not nemesis.may_wipe([machine]):
        return False
    machine.kill()
    way = lose_files(machine.disk, nemesis.random)
    nemesis.world.trace(f"{machine.name}: files vanish: {way}")
    if way:
        nemesis.on_vanish(machine)
    machine.start_later(nemesis.duration(DOWN_S_MAX))
    return bool(way)


def vanish_at_work(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Remove files of partitions while their broker runs."""
    if not machine.is_running or not nemesis.may_wipe([machine]):
        return False
    way = lose_files(machine.disk, nemesis.random, WAYS_AT_WORK)
    if way:
        nemesis.world.trace(f"{machine.name}: files vanish while it runs: {way}")
        nemesis.on_vanish(machine)
    return bool(way)


def roll_back(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Save the files of all partitions, or restore them as they were saved before."""
    disk = machine.disk
    if not disk.exists(TOPICS) or not nemesis.may_wipe([machine]):
        return False
    machine.kill()
    image = nemesis.images.pop(machine.name, None)
    if image is None:
        nemesis.images[machine.name] = disk.image(TOPICS)
    else:
        nemesis.world.trace(f"{machine.name}: the files of its partitions are rolled back")
        disk.put_back(TOPICS, image)
        nemesis.on_vanish(machine)
    machine.start_later(nemesis.duration(DOWN_S_MAX))
    return True


def restore_directory(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Copy the data directory of a running broker, or start the broker from that copy: another
    file system than the one on which it was, so with other inode numbers (ADR 82).
    """
    disk, name = machine.disk, f"{machine.name}, all"
    if not disk.exists(DATA_DIRECTORY):
        return False
    if name not in nemesis.images:
        nemesis.images[name] = disk.image(DATA_DIRECTORY)
        return True
    if machine.log_dirs or not nemesis.may_wipe([machine]):
        return False
    nemesis.world.trace(f"{machine.name} starts from an old copy of its data directory")
    machine.kill()
    disk.put_back(DATA_DIRECTORY, nemesis.images.pop(name))
    nemesis.on_wipe(machine)
    machine.start_later(nemesis.duration(DOWN_S_MAX))
    return True


def lose_log_dir(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Fail, hang, temporarily remove or replace the second disk of a broker.

    The broker is restarted later: it does not use a failed directory again before that.
    """
    random = nemesis.random
    if not machine.log_dirs or not machine.disk.exists(LOG_DIRECTORY) or machine.is_disk_hung:
        return False
    how = random.choice(("fails", "hangs", "is missing", "is missing at a start", "is replaced"))
    is_lost = how in {"is missing", "is missing at a start", "is replaced"}
    if is_lost and not nemesis.may_wipe([machine]):
        return False
    nemesis.world.trace(f"{machine.name}: its second disk {how}")
    operations = random.choice((CHANGES, {"sync"}, {*CHANGES, "open", "read", "lock"}))
    fault = Fault(operations, path=f"{LOG_DIRECTORY}*", times=FOREVER)
    hang = Hang(path=f"{LOG_DIRECTORY}*")
    if how in {"is missing at a start", "is replaced"}:
        machine.kill()
    if how == "is replaced":
        machine.disk.put_back(LOG_DIRECTORY, CachedDirectory())  # no fault of the disk stops this
    elif how == "fails":
        machine.disk.faults.append(fault)
    elif how == "hangs":
        machine.hang(hang)
    else:
        machine.unmount(LOG_DIRECTORY)
    if is_lost:
        nemesis.on_vanish(machine)

    def repair() -> None:
        if fault in machine.disk.faults:
            machine.disk.faults.remove(fault)
        hang.end()
        machine.kill()
        machine.mount()
        machine.start_later(nemesis.duration(DOWN_S_MAX))

    nemesis.later(nemesis.duration(STRANDED_S_MAX), repair)
    return True


# -- stored bytes ----------------------------------------------------------------------------------


def bit_flip(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Flip one bit in a file of a partition: of four, one is anywhere, one in a segment, and two
    in the header of a batch, because brokers read headers without their payloads."""
    suffix, in_header = nemesis.random.choice(
        (("", False), (".log", False), (".log", True), (".log", True))
    )
    return nemesis.may_harm(machine) and _flip(nemesis, machine, suffix, in_header=in_header)


def power_cut_of_all_and_bit_flip(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Cut the power of all brokers, and flip a bit of the last writes of one of them."""
    if nemesis.is_cache_lossy or not nemesis.may_harm(machine):
        return False
    power_cut_of_all(nemesis, machine)
    return _flip(nemesis, machine, ".log", tail_bytes=TAIL_BYTES)


def lost_write(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Lose a synced write of a few sectors."""
    found = _written_sectors(nemesis, machine)
    if found is None:
        return False
    path, position, length = found
    nemesis.world.trace(f"{machine.name} has lost a write to {path} at {position}")
    machine.disk.lose_write(path, position, length)
    return True


def misdirected_write(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Move a synced write of a few sectors to another place in the file."""
    found = _written_sectors(nemesis, machine)
    if found is None:
        return False
    path, position, length = found
    to = nemesis.random.randrange(position + 1) // SECTOR_BYTES * SECTOR_BYTES
    nemesis.world.trace(f"{machine.name} has written to {path} at {to} instead of {position}")
    machine.disk.misdirect_write(path, position, length, to)
    return True


def read_error(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Fail all reads of a few sectors of a file, until it is removed."""
    found = _written_sectors(nemesis, machine)
    if found is None:
        return False
    nemesis.world.trace(f"{machine.name} cannot read {found}")
    machine.disk.spoil(*found)
    return True


def _flip(
    nemesis: Nemesis,
    machine: BrokerMachine,
    suffix: str,
    *,
    tail_bytes: int = 1 << 30,
    in_header: bool = False,
) -> bool:
    files = _stored_files(machine, suffix)
    if not files:
        return False
    path, size = nemesis.random.choice(files)
    start, end = max(0, size - tail_bytes), size
    if in_header:
        headers = _headers_of(machine.disk.durable_bytes(path) or b"")
        start = nemesis.random.choice(headers)
        end = min(start + HEADER_BYTES, size)
    byte = nemesis.random.randrange(start, end)
    nemesis.world.trace(f"{machine.name}: a bit flips in {path} at byte {byte}")
    machine.disk.flip_bit(path, 8 * byte + nemesis.random.randrange(8))
    return True


def _headers_of(data: bytes) -> list[int]:
    """Return the positions of the batches in a segment that is not empty, up to a corrupt one."""
    found, position = [0], length_at(data, 0) if len(data) >= HEADER_BYTES else 0
    while found[-1] < position <= len(data) - HEADER_BYTES:
        found.append(position)
        position += length_at(data, position)
    return found


def _written_sectors(nemesis: Nemesis, machine: BrokerMachine) -> tuple[str, int, int] | None:
    """Return the path of a segment, and some of its sectors: position and length."""
    if not nemesis.may_harm(machine):
        return None
    files = _stored_files(machine, ".log")
    if not files:
        return None
    path, size = nemesis.random.choice(files)
    first = int(nemesis.duration(size)) // SECTOR_BYTES
    length = nemesis.random.randint(1, SECTORS_HARMED_MAX) * SECTOR_BYTES
    return path, max(0, size - size % SECTOR_BYTES - first * SECTOR_BYTES), length


def _stored_files(machine: BrokerMachine, suffix: str) -> list[tuple[str, int]]:
    """Return the files of all partitions that are not empty, with their sizes."""
    disk, found = machine.disk, []
    for directory in partitions(disk):
        if directory.rpartition("/")[2].isdecimal():
            found += [f"{directory}/{name}" for name in disk.list_dir(directory)]
    sizes = [(path, len(disk.durable_bytes(path) or b"")) for path in found]
    return [(path, size) for path, size in sizes if size and path.endswith(suffix)]


# -- the network -----------------------------------------------------------------------------------


def cut(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    other, network = nemesis.other(machine), nemesis.world.network
    one_way = nemesis.random.random() < 0.4
    a, b = nemesis.random.sample((machine.name, other), 2)
    network.cut(a, b, one_way=one_way)
    nemesis.world.trace(f"cut: {a} {'to' if one_way else 'and'} {b}")
    nemesis.later(nemesis.duration(CUT_S_MAX), lambda: network.mend(a, b))
    return True


def isolate(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Isolate a broker from all other hosts."""
    network = nemesis.world.network
    machines = (*nemesis.world.brokers, *nemesis.world.clients)
    others = [other.name for other in machines if other is not machine]
    network.partition([machine.name], others)
    nemesis.world.trace(f"{machine.name} is isolated")

    def end() -> None:
        for other in others:
            network.mend(machine.name, other)

    nemesis.later(nemesis.duration(CUT_S_MAX), end)
    return True


def strand(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Isolate a broker from all others, but not from clients.

    It may be isolated from one of them first, until it is the only member of the ISR. Afterwards it
    may reach no other voter that could confirm its leadership.
    """
    network, random = nemesis.world.network, nemesis.random
    others = [other.name for other in nemesis.world.brokers if other is not machine]
    if not others:
        return False
    random.shuffle(others)
    first, *rest = others
    head_s = random.choice((0.0, 0.5, ALONE_S))
    network.cut(machine.name, first)
    nemesis.world.trace(f"{machine.name} is stranded: {first} first, {rest} in {head_s} s")

    def cut_rest() -> None:
        for other in rest:
            network.cut(machine.name, other)

    def end() -> None:
        for other in others:
            network.mend(machine.name, other)

    nemesis.later(head_s, cut_rest)
    nemesis.later(head_s + STRANDED_S_MAX * random.random(), end)
    return True


def netsplit(nemesis: Nemesis, _machine: BrokerMachine) -> bool:
    """Partition the network: two halves of brokers and clients."""
    network = nemesis.world.network
    hosts = [machine.name for machine in (*nemesis.world.brokers, *nemesis.world.clients)]
    nemesis.random.shuffle(hosts)
    half = nemesis.random.randint(1, len(hosts) - 1)
    network.partition(hosts[:half], hosts[half:])
    nemesis.world.trace(f"netsplit: {hosts[:half]} and {hosts[half:]}")
    nemesis.later(nemesis.duration(CUT_S_MAX), lambda: network.heal(hosts))
    return True


def reset(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    network = nemesis.world.network
    others = network.connected_to(machine.name)
    if not others:
        return False
    other = nemesis.random.choice(others)
    count = network.reset_connections(machine.name, other)
    nemesis.world.trace(f"reset: {count} connections of {machine.name} and {other}")
    return True


def slow_link(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    other, network = nemesis.other(machine), nemesis.world.network
    a, b = nemesis.random.sample((machine.name, other), 2)
    added_s = nemesis.random.choice((0.02, 0.3, 2.0))
    network.slow(a, b, added_s)
    nemesis.world.trace(f"slow: {a} to {b}, by {added_s} s")
    nemesis.later(nemesis.duration(CUT_S_MAX), lambda: network.slow(a, b, 0.0))
    return True


# -- clocks ----------------------------------------------------------------------------------------


def clock_jump(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Change the wall clock for a few seconds, or for the rest of the run."""
    random = nemesis.random
    by_ms = round(random.choice(JUMPS_MS) * random.uniform(-1, 1))
    machine.wall_offset_ms += by_ms
    nemesis.world.trace(f"{machine.name}'s wall clock jumps by {by_ms} ms")
    if random.random() < 0.6:

        def back() -> None:
            machine.wall_offset_ms -= by_ms

        nemesis.later(nemesis.duration(CUT_S_MAX), back)
    return True


def clock_jump_while_down(nemesis: Nemesis, machine: BrokerMachine) -> bool:
    """Kill the process, and restart it with another wall clock."""
    random = nemesis.random
    if not machine.is_running:
        return False
    machine.kill()
    by_ms = round(random.choice(JUMPS_MS) * random.uniform(-1, 1))
    machine.wall_offset_ms += by_ms
    nemesis.world.trace(f"{machine.name}'s wall clock jumps by {by_ms} ms while it is down")
    machine.start_later(nemesis.duration(DOWN_S_MAX))
    return True


KINDS: Final[Mapping[str, FaultKind]] = {
    fault.__name__: fault
    for fault in (
        kill,
        kill_in_disk_operation,
        power_cut_in_disk_operation,
        stop,
        pause,
        power_cut,
        power_cut_of_all,
        client_kill,
        disk_full,
        sync_error,
        write_error,
        slow_disk,
        wipe,
        bit_flip,
        power_cut_of_all_and_bit_flip,
        lost_write,
        misdirected_write,
        cut,
        isolate,
        strand,
        netsplit,
        reset,
        slow_link,
        clock_jump,
        clock_jump_while_down,
    )
}
# Each draws from a separate random stream, so that adding it does not change other seeds.
APART: Final[Mapping[str, FaultKind]] = {
    "hung_disk": hung_disk,
    "wipe_leader": wipe_leader,
    "wipe_several": wipe_several,
    "vanish": vanish,
    "roll_back": roll_back,
    "vanish_at_work": vanish_at_work,
    "read_error": read_error,
    "lose_log_dir": lose_log_dir,
    "restore_directory": restore_directory,
}

OF_CLUSTERS: Final = frozenset(("power_cut_of_all", "wipe", "netsplit", "strand"))
# Selected by ``FaultPlan.with_harm``, as are those of ``APART`` for stored bytes.
APART_OF_STORED_BYTES: Final = ("read_error",)
APART_OF_TWO_DISKS: Final = ("lose_log_dir",)  # selected by ``FaultPlan.with_two_disks``
OF_DISKS: Final = (
    "power_cut",
    "power_cut_of_all",
    "power_cut_in_disk_operation",
    "disk_full",
    "sync_error",
    "write_error",
    "slow_disk",
)
OF_STORED_BYTES: Final = (
    "bit_flip",
    "power_cut_of_all_and_bit_flip",
    "lost_write",
    "misdirected_write",
)


# -- vanishing -------------------------------------------------------------------------------------
#
# Loss or rollback of stored files on a simulated broker's disk.
#
# As after a missing mount, fsck or a partial restore: identity, catalog and consensus journal
# remain.


TOPICS: Final = f"{DATA_DIRECTORY}/topics"
MORE_TOPICS: Final = f"{LOG_DIRECTORY}/topics"


def partitions(disk: SimDisk) -> list[str]:
    """Return the directories of all partitions, also of quarantined ones."""
    found = [TOPICS, MORE_TOPICS]
    for _level in ("topic name", "topic id", "partition"):
        found = [f"{path}/{name}" for path in found for name in disk.list_dir(path)]
    return found


def _all_topics(disk: SimDisk, _random: Random) -> bool:
    for path in (TOPICS, MORE_TOPICS):
        if disk.exists(path):
            disk.lose(path)
    return True


def _all_topics_and_their_record(disk: SimDisk, random: Random) -> bool:
    """Also remove the catalog in some cases. Identity and consensus journal remain."""
    disk.lose(f"{DATA_DIRECTORY}/copies")
    if random.random() < 0.5:
        disk.lose(f"{DATA_DIRECTORY}/catalog")
    return _all_topics(disk, random)


def _directories(disk: SimDisk, random: Random) -> bool:
    for directory in _some(disk, random):
        disk.lose(directory)
    return True


def _contents(disk: SimDisk, random: Random) -> bool:
    for directory in _some(disk, random):
        for name in disk.list_dir(directory):
            disk.lose(f"{directory}/{name}")
    return True


def _one_file(disk: SimDisk, random: Random) -> bool:
    directories = [path for path in partitions(disk) if disk.list_dir(path)]
    if not directories:
        return False
    directory = random.choice(directories)
    names = disk.list_dir(directory)
    disk.lose(f"{directory}/{random.choice(names)}")
    return True


def _checkpoints_and_tails(disk: SimDisk, random: Random) -> bool:
    for directory in _some(disk, random):
        for name in disk.list_dir(directory):
            path = f"{directory}/{name}"
            if not name.endswith(LOG_SUFFIX):
                disk.lose(path)
            elif random.random() < 0.5:
                disk.cut_off(path, random.randrange(4_096))
    return True


def _some(disk: SimDisk, random: Random) -> list[str]:
    """Return the directory of one partition, or of all."""
    found = partitions(disk)
    return found if random.random() < 0.5 else [random.choice(found)]


WAYS: Final[Mapping[str, Callable[[SimDisk, Random], bool]]] = {
    "all topics": _all_topics,
    "all topics and their record": _all_topics_and_their_record,
    "directories": _directories,
    "contents": _contents,
    "one file": _one_file,
    "checkpoints and tails": _checkpoints_and_tails,
}


# Ways that a running broker detects. It may detect the others only at its next start.
WAYS_AT_WORK: Final = ("all topics", "directories", "contents")


def lose_files(disk: SimDisk, random: Random, ways: Sequence[str] = tuple(WAYS)) -> str:
    """Remove files of partitions in one of ``ways``. Returns that way; "" without a removal."""
    if not partitions(disk):
        return ""
    way = random.choice(ways)
    return way if WAYS[way](disk, random) else ""
