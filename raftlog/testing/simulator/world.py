"""One simulation: time, network, machines with brokers and clients, and their faults.

A ``World`` provides the operations. ``faults`` decides when they are used, ``workload`` defines the
clients, and ``checker`` checks the result.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Final, Protocol, TypeAlias, cast

from raftlog import limits
from raftlog.client.aio import clients
from raftlog.client.aio.clients import AsyncProducer
from raftlog.client.base import ClientEnvironment, LoopBound
from raftlog.config import Address, BrokerConfig
from raftlog.config.address import Watermark
from raftlog.config.broker import Voter
from raftlog.errors import InvalidRequestError, RaftlogError, StorageFailedError
from raftlog.protocol.security import PEER_PROTOCOL_VERSION
from raftlog.server.broker import Broker, Surroundings
from raftlog.server.scheduling import Done, Unfinished, Workers
from raftlog.testing.disk import Node, SimDisk, Stopped
from raftlog.testing.simulator.history import Violation
from raftlog.testing.simulator.loop import (
    EVENTS_MAX_DEFAULT,
    NodeLoop,
    SimLoop,
    SimulationError,
    Strand,
)
from raftlog.testing.simulator.network import Latency, SimNetwork, SimSocket
from raftlog.types import TimestampMs

SESSION_MS: Final = 3_000  # lifetime of an authenticated session, then clients re-authenticate
BOOT_LIMIT_S: Final = 60.0
# Nearly all objects of a simulation live until its end. More frequent garbage collections would
# take a seventh of the time.
COLLECTION_OBJECTS: Final = 50_000
VIOLATIONS_MAX: Final = 10  # of a tale
ASK_LIMIT_S: Final = 180.0  # for a client of a tale
CLUSTER_SECRET: Final = "known to all of them"  # noqa: S105 - of simulated brokers


def broker_config(
    machine: BrokerMachine,
    *,
    replacement_delay_ms: int = 600_000,
    cleaner_interval_ms: int = 15_000,
    stall_ms: int = 2_000,
    bootstrap_without: tuple[int, ...] = (),
    scrub_interval_ms: int = 604_800_000,
    offsets_partitions: int = 16,
    rack: str = "",
    has_watermarks: bool = True,
    is_secured: bool = False,
) -> BrokerConfig:
    """Return the configuration of a broker in a cluster of all machines. Most periodic tasks run
    more often than by default.

    ``replacement_delay_ms``: unavailability after which a witness replaces a replica.
    ``cleaner_interval_ms``: check interval of the log cleaner. ``scrub_interval_ms``: time in which
    the scrub reads all records once. ``stall_ms``: duration of a sync after which the disk counts
    as hung. ``bootstrap_without``: IDs of the voters for which a new cluster does not wait.
    ``offsets_partitions``: number of partitions of ``__consumer_offsets``. ``rack``: of the broker.
    ``has_watermarks``: watermarks of free disk space; if False, the broker rejects writes only when
    the disk is full. ``is_secured``: clients must authenticate, and again every ``SESSION_MS``.
    """
    addresses = machine.world.addresses
    config = BrokerConfig(
        id=machine.broker_id,
        listen=machine.address,
        data_dir=DATA_DIRECTORY,
        log_dirs=machine.log_dirs,
        rack=rack,
        voters=tuple(Voter(*voter) for voter in addresses.items()) if len(addresses) > 1 else (),
        bootstrap_without=bootstrap_without,
        cluster_secret=CLUSTER_SECRET,
        group_initial_rebalance_delay_ms=300,
        offsets_topic_num_partitions=offsets_partitions,
        log_checkpoint_interval_ms=1_000,
        log_cleaner_interval_ms=cleaner_interval_ms,
        log_scrub_interval_ms=scrub_interval_ms,
        log_retention_check_interval_ms=1_500,
        controlled_shutdown_timeout_ms=2_000,
        replica_replacement_delay_ms=replacement_delay_ms,
        disk_stall_timeout_ms=stall_ms,
        authentication_required=is_secured,
        insecure_allowed=is_secured,  # there is no TLS in the simulation
        connections_max_reauth_ms=SESSION_MS if is_secured else 0,
    )
    if has_watermarks:
        return config
    none = Watermark()
    return replace(config, disk_watermark_producers=none, disk_watermark_replication=none)


def _is_sound(machine: BrokerMachine) -> bool:
    """Return whether no log directory has failed, and no read of one: these need a restart."""
    broker = machine.broker
    if not isinstance(broker, Broker) or any(d.failure for d in broker.log_dirs.log_dirs):
        return False
    hosts = [hosted.host for hosted in broker.context.cluster.partitions.hosted.values()]
    return not any(host is not None and host.log.damage for host in hosts)


async def start_broker(
    machine: BrokerMachine,
    *,
    config: BrokerConfig | None = None,
    peer_protocol: int = PEER_PROTOCOL_VERSION,
    **settings: Any,
) -> RunningBroker:
    """Start the real broker with the clock, disk, network and random numbers of a machine.

    ``config``: default: the result of ``broker_config`` with ``settings``. ``peer_protocol``: the
    version that it reports to other brokers, as an earlier release does.
    """
    return await Broker.start(
        broker_config(machine, **settings) if config is None else config,
        clock=machine.clock,
        disk=machine.disk,
        on_fatal=machine.on_fatal,
        listening=[cast("socket.socket", machine.listening())],
        surroundings=Surroundings(
            make_workers=machine.workers,
            chance=machine.random.random,
            entropy=machine.random.randbytes,
            on_removed=machine.on_removed,
            peer_protocol=peer_protocol,
        ),
    )


class World:
    """One simulation. ``seed`` and the sequence of calls determine all events.

    A context manager, which ends every process and releases its objects.
    """

    def __init__(
        self,
        seed: int,
        *,
        brokers: int = 1,
        make_broker: MakeBroker = start_broker,
        latency: Latency | None = None,
        socket_bytes: int = 64 * limits.KIB,
        slicing: float = 0.0,
        interleaving: float = 0.0,
        events_max: int = EVENTS_MAX_DEFAULT,
        on_trace: Callable[[str], None] | None = None,
    ) -> None:
        """``brokers``: number of broker machines. ``make_broker``: starts the broker of a machine,
        on the machine's loop. ``latency``, ``socket_bytes``, ``slicing``: see ``SimNetwork``.
        ``interleaving``: share of disk work during which time passes between operations.
        ``events_max``: see ``SimLoop``. ``on_trace``: called with each line of the trace.
        """
        self.seed = seed
        self.interleaving = interleaving
        self.time = SimLoop(events_max=events_max)
        self.network = SimNetwork(
            self.time,
            self.random("network"),
            latency=latency,
            socket_bytes=socket_bytes,
            slicing=slicing,
        )
        self.control = NodeLoop(self.time, "world", sockets=self.network)
        self._on_trace = on_trace
        self.brokers = [BrokerMachine(self, number + 1, make_broker) for number in range(brokers)]
        self.clients: list[ClientMachine] = []

    def random(self, name: str) -> Random:
        """Return a separate random generator for ``name``: draws of one component do not affect
        another."""
        return Random(f"{self.seed}/{name}")

    def trace(self, text: str) -> None:
        self.time.note(text)
        if self._on_trace is not None:
            self._on_trace(f"{self.time.now:11.6f} {text}")

    @property
    def addresses(self) -> dict[int, Address]:
        """Addresses of the brokers, by broker ID."""
        return {machine.broker_id: machine.address for machine in self.brokers}

    @property
    def members(self) -> list[BrokerMachine]:
        """The brokers that are in the cluster or are joining it."""
        return [machine for machine in self.brokers if not machine.is_outside]

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers, separated by commas."""
        return ",".join(str(machine.address) for machine in self.brokers)

    def add_client(self, name: str, main: Program) -> ClientMachine:
        """Add a machine that runs ``main``. The caller starts it."""
        machine = ClientMachine(self, name, main)
        self.clients.append(machine)
        return machine

    # -- time --------------------------------------------------------------------------------------

    def run_for(self, seconds: float) -> None:
        """Run for ``seconds`` of virtual time. Raises ``SimulationError``."""
        self.time.run_until(self.time.now + seconds)

    def run_until(
        self, holds: Callable[[], bool], *, limit_s: float, every_s: float = 0.05
    ) -> bool:
        """Run until ``holds()`` is true. Returns False if it is still false after ``limit_s``.

        ``every_s``: check interval. ``limit_s``, ``every_s``: virtual seconds. Raises
        ``SimulationError``.
        """
        reached: asyncio.Future[bool] = self.control.create_future()
        deadline = self.time.now + limit_s

        def check() -> None:
            if holds():
                reached.set_result(True)
            elif self.time.now >= deadline:
                reached.set_result(False)
            else:
                self.control.call_later(every_s, check)

        check()
        self.time.run_until(reached)
        return reached.result()

    def boot(self) -> None:
        """Start all brokers that are not kept down, and run until they are up."""
        for machine in self.brokers:
            if not machine.is_kept_down:
                machine.start()
        up = self.run_until(self.is_up, limit_s=BOOT_LIMIT_S)
        assert up, [machine.refusals for machine in self.brokers]

    def is_up(self) -> bool:
        """Return whether every broker that is not kept down is up."""
        return all(machine.broker is not None or machine.is_kept_down for machine in self.brokers)

    def heal(self, hosts: Collection[str] | None = None) -> None:
        """End every fault of ``hosts`` and of the links between them.

        ``hosts``: names of machines; None: all. Their clocks are not corrected.
        """
        self.network.heal(hosts)
        for machine in self.brokers:
            if hosts is None or machine.name in hosts:
                machine.heal()
                if machine.log_dirs and not _is_sound(machine):
                    machine.kill()  # a failed log directory is used again after a restart
                if not machine.is_outside:
                    machine.start()

    def check(self) -> None:
        """Raise ``SimulationError`` for a failed task whose exception was not retrieved."""
        machines: list[Machine] = [*self.brokers, *self.clients]
        for machine in machines:
            machine.loop.check_tasks()
        if self.time.failures:
            raise SimulationError("; ".join(self.time.failures))

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """End every process and release its objects. Idempotent."""
        machines: list[Machine] = [*self.brokers, *self.clients]
        for machine in machines:
            machine.loop.kill()
        for machine in machines:
            machine.bury()
        self.control.kill()
        self.control.bury()

    def __enter__(self) -> World:
        self._collections = gc.get_threshold()
        gc.set_threshold(COLLECTION_OBJECTS, *self._collections[1:])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        gc.set_threshold(*self._collections)
        self.close()


@dataclass(slots=True)
class Result:
    """Of a tale. ``counts``: number of events by kind, and of records. ``digest``: as of
    ``Verdict``.
    """

    counts: dict[str, int] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    digest: str = ""


class Tale:
    """A course of events that is told step by step, and waits for the clients that it starts."""

    def __init__(self) -> None:
        self.result = Result()
        self._world: World
        self._random: Random

    async def start_broker(self, machine: BrokerMachine) -> RunningBroker:
        raise NotImplementedError

    def tell(self, world: World) -> None:
        raise NotImplementedError

    def run(
        self,
        seed: int,
        *,
        brokers: int,
        on_trace: Callable[[str], None] | None,
        around: AbstractContextManager[None] | None = None,
    ) -> Result:
        """Tell it. An exception of the simulated program is a violation, and not raised."""
        world = World(seed, brokers=brokers, make_broker=self.start_broker, on_trace=on_trace)
        self._world, self._random = world, world.random("operator")
        with world, around or nullcontext():
            try:
                self.tell(world)
                world.check()
            except SimulationError as error:
                self.result.violations.append(Violation("CRASH", str(error)))
            self.result.digest = world.time.digest()
        return self.result

    def _count(self, kind: str, by: int = 1) -> None:
        self.result.counts[kind] = self.result.counts.get(kind, 0) + by

    def _violated(self, kind: str, text: str) -> None:
        if len(self.result.violations) < VIOLATIONS_MAX:
            self.result.violations.append(Violation(kind, f"{self._world.time.now:.3f} {text}"))

    def _ask(self, name: str, work: Program) -> bool:
        """Run a client until it ends. Returns whether it ended in time."""
        client = self._world.add_client(f"{name}-{len(self._world.clients)}", work)
        client.start()
        ended = self._world.run_until(lambda: client.is_done, limit_s=ASK_LIMIT_S)
        self._world.check()
        client.kill()
        if not ended:
            self._violated("STUCK", f"{client.name} does not end")
        return ended


# -- workers ---------------------------------------------------------------------------------------
#
# Threads of a broker, as events in virtual time.
#
# A piece of work starts anywhere between the start and the end of its delay. A crash may therefore
# find the disk unchanged, or changed without a report; and a sync may, or may not, cover bytes that
# are appended while it is in progress. Some randomly selected pieces of work let time pass between
# their disk operations: any event may occur in between, on the loop and in other threads.


WAKE_S: Final = 50e-6  # from the queue to a thread
PAUSES: Final = 0.5  # share of operations of interleaved work before which time passes


@dataclass(slots=True, kw_only=True)
class Interleaving:
    """Random selection of the pieces of work during which time passes. ``share``: of all work."""

    random: Random
    share: float

    def is_drawn(self) -> bool:
        return self.share > 0 and self.random.random() < self.share

    def pauses(self) -> bool:
        return self.random.random() < PAUSES


class _Job:
    """One piece of work that may be suspended."""

    def __init__(self, strand: Strand, then: Callable[[], None]) -> None:
        self.strand = strand
        self.then = then
        self.has_begun = False  # its first disk operation
        self.is_rushed = False  # the loop waits for it: no time passes
        self.stops = 0

    def hold_up(self, let_go: Callable[[Callable[[], None]], object]) -> None:
        """Suspend the job until the function passed to ``let_go`` is called, or it is rushed."""
        self.stops += 1
        stop = self.stops
        let_go(lambda: self.go_on() if self.stops == stop and not self.strand.is_done else None)
        self.strand.hold_up()
        self.stops += 1  # the job continues, for any reason: other wake-ups are ignored

    def go_on(self) -> None:
        self.strand.resume()
        if self.strand.is_done:
            self.then()


class DiskTurns:
    """Scheduling of disk operations of one process: ``before`` and the mutexes of its disk.

    ``hangs``: all active ones; it may contain some that have ended.
    """

    def __init__(
        self,
        loop: NodeLoop,
        disk: SimDisk,
        *,
        hangs: list[Hang],
        interleaving: Interleaving,
        pause_s: Callable[[str], float],
    ) -> None:
        """``pause_s``: returns the seconds of the next pause, before the given operation."""
        self.loop = loop
        self._hangs = hangs
        self._interleaving = interleaving
        self._pause_s = pause_s
        self._jobs: dict[Strand, _Job] = {}
        disk.before = self.before
        disk.make_mutex = lambda: SimMutex(self)

    def must_divide(self) -> bool:
        """Return whether the next piece of work may be suspended."""
        self._hangs[:] = [hang for hang in self._hangs if not hang.is_over]
        return self._interleaving.is_drawn() or bool(self._hangs)

    def run(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        """Run ``work``, which may be suspended. ``done`` is called with its result or error."""
        result: list[Any] = []
        strand = Strand(lambda: result.append(work()))

        def then() -> None:
            if self._jobs.pop(strand, None) is not None:
                done(result[0] if result else None, strand.error)

        self._jobs[strand] = job = _Job(strand, then)
        job.go_on()

    def before(self, operation: str, path: str) -> None:
        """Suspend or pause the caller before an operation, if there is a reason."""
        job = self.current()
        if job is not None and not job.is_rushed:
            if job.has_begun and self._interleaving.pauses():
                job.hold_up(lambda go_on: self.loop.call_later(self._pause_s(operation), go_on))
            job.has_begun = True  # the start of work is already random
        while (hang := self._holding(operation, path)) is not None:
            if job is None or job.is_rushed:
                self._pause_loop(hang)
                return
            job.hold_up(partial(self._wait_for, hang))

    def current(self) -> _Job | None:
        """Return the running job; None: the loop runs."""
        if Strand.current is None:
            return None
        job = self._jobs.get(Strand.current)
        if job is None:
            raise Stopped  # a thread of a process that has ended
        return job

    def _holding(self, operation: str, path: str) -> Hang | None:
        return next((hang for hang in self._hangs if hang.holds(operation, path)), None)

    def _wait_for(self, hang: Hang, go_on: Callable[[], None]) -> None:
        hang.when_over(lambda: self.loop.call_soon(go_on))

    def _pause_loop(self, hang: Hang) -> None:
        """Pause the loop for a hanging disk. The operation itself takes effect before the pause."""
        if self.loop.is_alive and not self.loop.is_paused:
            self.loop.pause()
            hang.when_over(self.loop.resume)

    def rush(self, job: _Job, until: Callable[[], bool]) -> None:
        """Run ``job`` for the waiting loop, without the passage of time, until ``until`` holds."""
        job.is_rushed = True
        while not until():
            job.go_on()
        job.is_rushed = False

    def abandon(self) -> None:
        """End all threads of a process that has ended."""
        jobs, self._jobs = self._jobs, {}
        for strand in jobs:
            strand.abandon()


class SimMutex:
    """A lock between the threads of one process, and its event loop."""

    def __init__(self, turns: DiskTurns) -> None:
        self._turns = turns
        self._owner: _Job | None = None
        self._is_taken = False
        self._waiting: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        job = self._turns.current()
        while self._is_taken:
            owner = self._owner
            assert owner is not None and owner is not job, "no other owner can release it"
            if job is None or job.is_rushed:
                self._turns.rush(owner, lambda: not self._is_taken)
            else:
                job.hold_up(self._waiting.append)
        self._owner, self._is_taken = job, True

    def __exit__(self, *_error: object) -> None:
        self._owner, self._is_taken = None, False
        waiting, self._waiting = self._waiting, []  # all: jobs that continued ignore it
        for go_on in waiting:
            self._turns.loop.call_soon(go_on)


class SimWorkers(Workers):
    """The ``Workers`` of a simulated process, which end with it."""

    def __init__(
        self,
        loop: NodeLoop,
        *,
        count: int,
        delay_s: Callable[[], float],
        chance: Callable[[], float],
        turns: DiskTurns | None = None,
    ) -> None:
        """``count``: maximum number of pieces of work in progress. ``delay_s``: returns the seconds
        of the next one. ``chance``: as ``random.random``; selects the start within that time.
        ``turns``: None: work is never suspended.
        """
        self.unfinished = Unfinished()
        self._loop: NodeLoop = loop
        self._free = count
        self._delay_s = delay_s
        self._chance = chance
        self._turns = turns
        self._backlog: deque[tuple[Callable[[], Any], Done]] = deque()

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        self._backlog.append((work, self.unfinished.until(done)))
        self._begin()

    def stop(self) -> None:
        """Run work that has not started now; work in progress completes."""
        while self._backlog:
            self._do(self._backlog.popleft()[0])

    def _begin(self) -> None:
        if self._free and self._backlog:
            self._free -= 1
            work, done = self._backlog.popleft()
            delay_s = WAKE_S + self._delay_s()
            before_s = delay_s * self._chance()
            self._loop.call_later(before_s, self._perform, work, done, delay_s - before_s)

    def _perform(self, work: Callable[[], Any], done: Done, after_s: float) -> None:
        def then(result: Any, error: BaseException | None) -> None:
            if isinstance(error, Stopped):
                self._loop.on_stopped()
            elif error is not None and not isinstance(error, Exception):
                raise error
            elif self._loop.is_alive:  # the work may have ended the process
                self._loop.call_later(after_s, self._finish, done, result, error)

        if self._turns is not None and self._turns.must_divide():
            self._turns.run(work, then)
        else:
            then(*self._do(work))

    def _do(self, work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        try:
            return work(), None
        except (Exception, Stopped) as error:  # noqa: BLE001 - the loop handles it
            return None, error

    def _finish(self, done: Done, result: Any, error: Exception | None) -> None:
        self._free += 1
        self._begin()
        done(result, error)


# -- hanging ---------------------------------------------------------------------------------------
#
# Disks that hang: operations that do not return, for minutes or permanently.
#
# A blocked thread waits for the end of the hang, or of the process. If the event loop of a process
# uses such a disk directly, it blocks, too.


SYNCS: Final = frozenset(("sync", "sync_dir"))  # wait for the device; others are cached


@dataclass(slots=True)
class Hang:
    """A hang of ``operations`` on ``path``, except on ``spares`` (shell patterns)."""

    path: str = "*"
    spares: str = ""
    operations: Collection[str] = SYNCS
    is_over: bool = False
    _held: list[Callable[[], object]] = field(default_factory=list)

    def holds(self, operation: str, path: str) -> bool:
        return (
            not self.is_over
            and operation in self.operations
            and fnmatchcase(path, self.path)
            and not fnmatchcase(path, self.spares)
        )

    def when_over(self, go_on: Callable[[], object]) -> None:
        self._held.append(go_on)

    def end(self) -> None:
        """End the hang: continue the blocked operations, in their order."""
        self.is_over = True
        held, self._held = self._held, []
        for go_on in held:
            go_on()


# -- process ---------------------------------------------------------------------------------------
#
# Simulated machines, and the successive processes on them: brokers and clients.
#
# A machine keeps its name, its disk and its clocks. A process has a separate event loop, which ends
# with it. The function that starts a broker is a parameter (``MakeBroker``).


WORLD_BEGAN_MS: Final[TimestampMs] = 1_700_000_000_000
DRIFT_MAX: Final = 0.01
BROKER_PORT: Final = 9_100
DATA_DIRECTORY: Final = "data"
LOG_DIRECTORY: Final = "disk-2"  # second disk of brokers with two
SYNC_MEANS_S: Final = (0.2e-3, 1e-3, 10e-3, 50e-3)  # of an fdatasync, by kind of disk
CACHED_S: Final = 50e-6  # mean duration of a cached operation
RESTART_S: Final = 0.5  # after which the supervisor restarts a process that ended


class RunningBroker(Protocol):
    """Interface of a broker for the simulation."""

    async def stop(self) -> None:
        """Stop cleanly."""
        ...


class MachineSurroundings(Protocol):
    """Environment of a machine: a ``world.World``."""

    time: SimLoop
    network: SimNetwork
    control: NodeLoop  # loop of supervisors and faults; never ends
    interleaving: float  # share of disk work during which time passes

    @property
    def addresses(self) -> Mapping[int, Address]:
        """Addresses of the brokers, by broker id."""
        ...

    @property
    def members(self) -> list[BrokerMachine]:
        """Brokers of the cluster."""
        ...

    def random(self, name: str) -> Random:
        """Return a separate random generator for ``name``, from the world's seed."""
        ...

    def trace(self, text: str) -> None: ...


class SimClock:
    """A machine's clocks, read through the event loop of the process that runs on it."""

    def __init__(self, loop: NodeLoop, machine: Machine) -> None:
        self._loop = loop
        self._machine = machine

    def wall_ms(self) -> TimestampMs:
        """Return the wall-clock time, which may jump."""
        return WORLD_BEGAN_MS + self._machine.wall_offset_ms + int(self._loop.world.now * 1_000)

    def monotonic(self) -> float:
        return self._loop.time()


class MachineDisk(SimDisk):
    """A disk whose process may be about to end."""

    def stop(self) -> None:
        """Reject all further operations of the process, which is ending."""
        self._stopped = True


@dataclass(slots=True)
class SyncLatency:
    """Random duration of blocking disk work, in seconds: exponential, with occasional stalls."""

    random: Random
    mean_s: float = 0.5e-3
    stall_chance: float = 0.0
    stall_s: float = 0.0

    def draw(self) -> float:
        stall_s = self.stall_s if self.random.random() < self.stall_chance else 0.0
        return self.random.expovariate(1 / self.mean_s) + stall_s


class Machine:
    """One host. Its process, if any, runs on ``loop``."""

    def __init__(self, world: MachineSurroundings, name: str) -> None:
        self.world = world
        self.name = name
        self.random = world.random(name)
        self.wall_offset_ms = self.random.randint(-2_000, 2_000)
        self.boots = 0
        self._offset_s = self.random.uniform(1, 1e6)  # monotonic clocks share no origin
        self._drift = self.random.uniform(-DRIFT_MAX, DRIFT_MAX)
        self._step_ns = self.random.randint(500, 2_000)
        self._graves: list[NodeLoop] = []
        self.loop = self._new_loop()
        self.loop.kill()
        self.clock = SimClock(self.loop, self)

    @property
    def is_running(self) -> bool:
        return self.loop.is_alive

    def _new_loop(self) -> NodeLoop:
        """Create the event loop of a new process."""
        loop = NodeLoop(
            self.world.time,
            self.name,
            offset_s=self._offset_s,
            drift=self._drift,
            step_ns=self._step_ns,
            sockets=self.world.network,
        )
        self._graves.append(loop)
        return loop

    def _start(self) -> None:
        assert not self.is_running, "one process at a time"
        self.boots += 1
        self.loop = self._new_loop()
        self.clock = SimClock(self.loop, self)

    def kill(self) -> None:
        """Send SIGKILL. Written data remains."""
        if self.is_running:
            self.loop.kill()
            self.world.network.process_died(self.loop)

    def pause(self) -> None:
        """Send SIGSTOP."""
        if self.is_running:
            self.loop.pause()

    def resume(self) -> None:
        """Send SIGCONT."""
        if self.is_running:
            self.loop.resume()

    def bury(self) -> None:
        """Release all objects at the end of the simulation."""
        self.loop.kill()
        for loop in self._graves:
            loop.bury()
        self._graves.clear()


class BrokerMachine(Machine):
    """A host with a disk and a broker, which a supervisor keeps running."""

    def __init__(
        self,
        world: MachineSurroundings,
        broker_id: int,
        make_broker: MakeBroker,
        *,
        boot_s: float = 0.05,
    ) -> None:
        """``boot_s``: seconds that a process takes to start."""
        super().__init__(world, f"broker-{broker_id}")
        self.broker_id = broker_id
        self.address = Address(self.name, BROKER_PORT)
        self.disk = MachineDisk(world.random(f"{self.name}/disk"))
        self.latency = SyncLatency(world.random(f"{self.name}/latency"))
        self.latency.mean_s = self.latency.random.choice(SYNC_MEANS_S)
        self.broker: RunningBroker | None = None
        self.has_power = True
        self.power_fails_next = False  # when the process next ends in one of its calls
        self.refusals: list[str] = []  # reasons why it did not start, or ended
        self.is_kept_down = False  # the supervisor does not start it
        self.log_dirs: tuple[str, ...] = ()  # setting ``log.dirs``
        self._unmounted: dict[str, Node] = {}  # content of unmounted directories
        self.is_outside = False  # not in the cluster yet, or removed
        self._make_broker = make_broker
        self._boot_s = boot_s
        self._hangs: list[Hang] = []
        self._turns: DiskTurns | None = None  # of the current process
        self._interleaving = Interleaving(
            random=world.random(f"{self.name}/interleaving"), share=world.interleaving
        )
        self._wanted = 0  # number of the latest start request; others are obsolete

    # -- parts of a broker -------------------------------------------------------------------------

    def workers(self, loop: AbstractEventLoop, *, count: int, name: str) -> SimWorkers:
        """Return the replacement of ``Workers`` in the current process."""
        assert loop is self.loop, name
        return SimWorkers(
            self.loop,
            count=count,
            delay_s=self.latency.draw,
            chance=self.random.random,
            turns=self._turns,
        )

    def listening(self) -> SimSocket:
        """Return the socket on which the broker listens."""
        return SimSocket(self.address.host, self.address.port)

    def on_fatal(self, error: StorageFailedError) -> None:
        """End the process immediately (``on_fatal`` of the broker)."""
        self.world.trace(f"{self.name} ends: {error}")
        self.refusals.append(str(error))
        self._die()
        raise Stopped

    def on_removed(self, reason: str) -> None:
        """Stop the process, and do not restart it (``on_removed`` of the broker)."""
        self.world.trace(f"{self.name} was removed: {reason}")
        self.refusals.append(reason)
        self.is_outside = self.is_kept_down = True
        self.stop()

    def _die(self) -> None:
        """End the process within one of its calls: the rest of that call has no effect."""
        self.disk.stop()
        self._end_process()
        self.world.control.call_soon(self._died, self.loop)

    def _end_process(self) -> None:
        """End the event loop and the threads of the process."""
        self.loop.kill()
        if self._turns is not None:
            self._turns.abandon()

    def _died(self, loop: NodeLoop) -> None:
        if self.loop is loop and self.has_power:
            self.world.trace(f"{self.name} has ended")
            if self.power_fails_next:
                self.power_cut()
                self.start_later(RESTART_S)
            else:
                self._ended()

    # -- processes ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process, unless one runs or there is no power."""
        self._wanted += 1
        if self.is_running or not self.has_power:
            return
        self._start()
        self._turns = DiskTurns(
            self.loop,
            self.disk,
            hangs=self._hangs,
            interleaving=self._interleaving,
            pause_s=self._pause_s,
        )
        self.loop.on_stopped = self._die
        self.loop.create_task(self._run())

    def _pause_s(self, operation: str) -> float:
        """Return a random pause before an operation; most operations only use the page cache."""
        mean_s = self.latency.mean_s if operation in SYNCS else CACHED_S
        return self._interleaving.random.expovariate(1 / mean_s)

    @property
    def directories(self) -> tuple[str, ...]:
        """Directories of the logs."""
        return (DATA_DIRECTORY, *self.log_dirs)

    def unmount(self, directory: str) -> None:
        """Remove a directory until ``mount``."""
        self._unmounted[directory] = self.disk.image(directory)
        self.disk.lose(directory)

    def mount(self) -> None:
        """Restore all unmounted directories."""
        for directory, image in self._unmounted.items():
            self.disk.put_back(directory, image)
        self._unmounted.clear()

    def hang(self, hang: Hang) -> None:
        """Block operations on the disk until the end of ``hang``, or ``heal``."""
        self._hangs.append(hang)

    @property
    def is_disk_hung(self) -> bool:
        return any(not hang.is_over for hang in self._hangs)

    def start_later(self, seconds: float) -> None:
        """Start the process in ``seconds``, unless a later request or a power cut comes first."""
        self._wanted += 1
        self.world.control.call_later(seconds, self._start_if, self._wanted)

    def _start_if(self, wanted: int) -> None:
        if wanted == self._wanted and not self.is_kept_down:
            self.power_on()
            self.start()

    async def _run(self) -> None:
        try:
            self.broker = await self._make_broker(self)
            self.world.trace(f"{self.name} is up")
        except (RaftlogError, OSError) as error:
            self.world.trace(f"{self.name} does not start: {error}")
            self.refusals.append(str(error))
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL. The supervisor restarts the process after ``RESTART_S``."""
        if self.is_running:
            self.world.trace(f"{self.name} is killed")
            self._end_process()
            self._ended()

    def _ended(self) -> None:
        self.world.network.process_died(self.loop)
        self.broker = None
        self.disk.crash()
        self.start_later(RESTART_S)

    def power_cut(self) -> None:
        """Turn the host off until ``power_on``. Unsynced changes may be lost."""
        self.world.trace(f"{self.name} loses power")
        self.has_power = False
        self._end_process()
        self.world.network.power_failed(self.loop)
        self.broker = None
        self.disk.power_cut()
        self.power_fails_next = False
        self._wanted += 1

    def power_on(self) -> None:
        if not self.has_power:
            self.has_power = True
            self.world.network.power_on(self.name)

    def heal(self) -> None:
        """End all faults of the disk, the power and the scheduling of the process."""
        for hang in self._hangs:
            hang.end()
        self.mount()
        self.disk.faults.clear()
        self.disk.capacity_bytes = None
        self.latency.stall_chance = 0.0
        self.power_fails_next = False
        self.is_kept_down = self.is_outside
        self.resume()
        self.power_on()

    def wipe(self) -> None:
        """End the process and empty its disk."""
        self.kill()
        self.world.trace(f"{self.name} loses its disk")
        self._unmounted.clear()
        self.disk = MachineDisk(self.world.random(f"{self.name}/disk/{self.boots}"))

    def bury(self) -> None:
        self._end_process()
        super().bury()

    def stop(self) -> None:
        """Send SIGTERM: the process stops cleanly. Then the supervisor restarts it."""
        if self.is_running and self.broker is not None:
            self.world.trace(f"{self.name} receives SIGTERM")
            self.loop.create_task(self._stop(self.broker))

    async def _stop(self, broker: RunningBroker) -> None:
        try:
            await broker.stop()
        except RaftlogError as error:
            self.refusals.append(str(error))
        self.kill()


MakeBroker: TypeAlias = Callable[[BrokerMachine], Awaitable[RunningBroker]]


Program: TypeAlias = Callable[["ClientMachine"], Coroutine[Any, Any, object]]


class ClientMachine(Machine):
    """A host with a program that uses raftlog's asyncio clients."""

    def __init__(self, world: MachineSurroundings, name: str, main: Program) -> None:
        super().__init__(world, name)
        self.is_done = False  # its program has ended
        self._main = main
        self._clients: list[LoopBound] = []

    def start(self) -> None:
        self._start()
        self.loop.create_task(self._run())

    async def _run(self) -> None:
        await self._main(self)
        self.is_done = True

    def host(self) -> ClientEnvironment:
        """Return the clock and the random sources of a client."""
        return ClientEnvironment(
            clock=self.clock, chance=self.random.random, entropy=self.random.randbytes
        )

    def own(self, client: LoopBound) -> None:
        """Remember a client, which is not closed when the process is killed."""
        self._clients.append(client)

    def bury(self) -> None:
        for client in self._clients:
            client._closed = True
            if isinstance(client, AsyncProducer):  # else it is stored, to be reported at exit
                clients._unclosed.discard(client._core)
        super().bury()


class Enduring:
    """Context manager: ends its block at an error that faults explain, with a line in the trace."""

    def __init__(self, machine: ClientMachine) -> None:
        self._machine = machine

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: object
    ) -> bool:
        is_explained = isinstance(error, RaftlogError) and not isinstance(
            error, InvalidRequestError
        )
        if is_explained:
            self._machine.world.trace(f"{self._machine.name}: {error!r}")
        return is_explained
