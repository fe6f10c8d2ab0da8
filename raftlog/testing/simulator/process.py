"""Simulated machines, and the successive processes on them: brokers and clients.

A machine keeps its name, its disk and its clocks. A process has a separate event loop, which ends
with it. The function that starts a broker is a parameter (``MakeBroker``).
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol, TypeAlias

from raftlog.client.aio import producer
from raftlog.client.aio.loop_bound import LoopBound
from raftlog.client.aio.producer import AsyncProducer
from raftlog.client.environment import ClientEnvironment
from raftlog.config import Address
from raftlog.errors import InvalidRequestError, RaftlogError, StorageFailedError
from raftlog.testing.disk import SimDisk, Stopped
from raftlog.testing.page_cache import Node
from raftlog.testing.simulator.hanging import SYNCS, Hang
from raftlog.testing.simulator.loop import NodeLoop, SimLoop
from raftlog.testing.simulator.network import SimNetwork, SimSocket
from raftlog.testing.simulator.workers import DiskTurns, Interleaving, SimWorkers
from raftlog.types import TimestampMs

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


class Surroundings(Protocol):
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

    def __init__(self, world: Surroundings, name: str) -> None:
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
        self, world: Surroundings, broker_id: int, make_broker: MakeBroker, *, boot_s: float = 0.05
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

    def __init__(self, world: Surroundings, name: str, main: Program) -> None:
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
                producer._unclosed.discard(client._core)
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
