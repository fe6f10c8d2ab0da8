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
from raftlog.errors import RaftlogError, StorageFailedError
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
LOG_DIRECTORY: Final = "disk-2"  # of brokers with two disks: the second one
SYNC_MEANS_S: Final = (0.2e-3, 1e-3, 10e-3, 50e-3)  # of an fdatasync, on disks of several kinds
CACHED_S: Final = 50e-6  # of an operation that waits for no disk
RESTART_S: Final = 0.5  # after a process that ended by itself, its supervisor starts it again


class RunningBroker(Protocol):
    """What the world needs of a broker."""

    async def stop(self) -> None:
        """End in an orderly way."""
        ...


class Surroundings(Protocol):
    """What a machine stands in: a ``world.World``."""

    time: SimLoop
    network: SimNetwork
    control: NodeLoop  # never dies: what supervisors and faults run on
    interleaving: float  # the share of disk work that lets time pass between its operations

    @property
    def addresses(self) -> Mapping[int, Address]:
        """Of the brokers, by their ids."""
        ...

    @property
    def members(self) -> list[BrokerMachine]:
        """Of the cluster."""
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
        """The time that people read: it may jump."""
        return WORLD_BEGAN_MS + self._machine.wall_offset_ms + int(self._loop.world.now * 1_000)

    def monotonic(self) -> float:
        return self._loop.time()


class MachineDisk(SimDisk):
    """A disk whose process may be about to end."""

    def stop(self) -> None:
        """Do nothing more for the process that has it, which is ending."""
        self._stopped = True


@dataclass(slots=True)
class SyncLatency:
    """How long blocking disk work takes, in seconds: exponential, and now and then a stall."""

    random: Random
    mean_s: float = 0.5e-3
    stall_chance: float = 0.0
    stall_s: float = 0.0

    def draw(self) -> float:
        stall_s = self.stall_s if self.random.random() < self.stall_chance else 0.0
        return self.random.expovariate(1 / self.mean_s) + stall_s


class Machine:
    """One host. Its process, if any, is the one that lives on ``loop``."""

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
        """The event loop of a new process."""
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
        """SIGKILL. What was written stays."""
        if self.is_running:
            self.loop.kill()
            self.world.network.process_died(self.loop)

    def pause(self) -> None:
        """SIGSTOP."""
        if self.is_running:
            self.loop.pause()

    def resume(self) -> None:
        """SIGCONT."""
        if self.is_running:
            self.loop.resume()

    def bury(self) -> None:
        """The world has ended: let go of everything."""
        self.loop.kill()
        for loop in self._graves:
            loop.bury()
        self._graves.clear()


class BrokerMachine(Machine):
    """A host with a disk and a broker, which a supervisor keeps running."""

    def __init__(
        self, world: Surroundings, broker_id: int, make_broker: MakeBroker, *, boot_s: float = 0.05
    ) -> None:
        """``boot_s``: how long a process takes to begin."""
        super().__init__(world, f"broker-{broker_id}")
        self.broker_id = broker_id
        self.address = Address(self.name, BROKER_PORT)
        self.disk = MachineDisk(world.random(f"{self.name}/disk"))
        self.latency = SyncLatency(world.random(f"{self.name}/latency"))
        self.latency.mean_s = self.latency.random.choice(SYNC_MEANS_S)
        self.broker: RunningBroker | None = None
        self.has_power = True
        self.power_fails_next = False  # at the next end of the process in one of its calls
        self.refusals: list[str] = []  # why it did not start, or ended by itself
        self.is_kept_down = False  # the supervisor leaves it alone
        self.log_dirs: tuple[str, ...] = ()  # of the setting
        self._unmounted: dict[str, Node] = {}  # what was stored in a directory that is gone
        self.is_outside = False  # it has yet to join the cluster, or was removed from it
        self._make_broker = make_broker
        self._boot_s = boot_s
        self._hangs: list[Hang] = []
        self._turns: DiskTurns | None = None  # of the process that runs now
        self._interleaving = Interleaving(
            random=world.random(f"{self.name}/interleaving"), share=world.interleaving
        )
        self._wanted = 0  # the boot that the supervisor waits for: others are out of date

    # -- what a broker is built from ---------------------------------------------------------------

    def workers(self, loop: AbstractEventLoop, *, count: int, name: str) -> SimWorkers:
        """What stands in for ``Workers`` in the process that runs now."""
        assert loop is self.loop, name
        return SimWorkers(
            self.loop,
            count=count,
            delay_s=self.latency.draw,
            chance=self.random.random,
            turns=self._turns,
        )

    def listening(self) -> SimSocket:
        """What the broker listens on."""
        return SimSocket(self.address.host, self.address.port)

    def on_fatal(self, error: StorageFailedError) -> None:
        """The broker's ``on_fatal``: ends the process there and then."""
        self.world.trace(f"{self.name} ends: {error}")
        self.refusals.append(str(error))
        self._die()
        raise Stopped

    def on_removed(self, reason: str) -> None:
        """The broker's ``on_removed``: it stops, and is not started again."""
        self.world.trace(f"{self.name} was removed: {reason}")
        self.is_outside = self.is_kept_down = True
        self.stop()

    def _die(self) -> None:
        """End the process within one of its calls: the rest of that call has no effect."""
        self.disk.stop()
        self._end_process()
        self.world.control.call_soon(self._died, self.loop)

    def _end_process(self) -> None:
        """Its event loop and its threads do nothing more."""
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

    # -- its life ----------------------------------------------------------------------------------

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
        """Before one of the operations of a piece of work; most are done in the page cache."""
        mean_s = self.latency.mean_s if operation in SYNCS else CACHED_S
        return self._interleaving.random.expovariate(1 / mean_s)

    @property
    def directories(self) -> tuple[str, ...]:
        """Of the logs."""
        return (DATA_DIRECTORY, *self.log_dirs)

    def unmount(self, directory: str) -> None:
        """Let a directory vanish until ``mount``."""
        self._unmounted[directory] = self.disk.image(directory)
        self.disk.lose(directory)

    def mount(self) -> None:
        """Let all directories return that vanished."""
        for directory, image in self._unmounted.items():
            self.disk.put_back(directory, image)
        self._unmounted.clear()

    def hang(self, hang: Hang) -> None:
        """Let operations on the disk not end until ``hang`` is over, or ``heal``."""
        self._hangs.append(hang)

    @property
    def is_disk_hung(self) -> bool:
        return any(not hang.is_over for hang in self._hangs)

    def start_later(self, seconds: float) -> None:
        """Start it in a while, unless something else happens to it until then."""
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
        """SIGKILL; the supervisor starts it again in ``RESTART_S``."""
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
        """The host is off: what was not synced may be lost. It stays off until ``power_on``."""
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
        """End every fault: of the disk, of the power, of the process's scheduling."""
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
        """SIGTERM: an orderly end, after which the supervisor starts it again."""
        if self.is_running and self.broker is not None:
            self.world.trace(f"{self.name} is asked to stop")
            self.loop.create_task(self._stop(self.broker))

    async def _stop(self, broker: RunningBroker) -> None:
        try:
            await broker.stop()
        except RaftlogError as error:
            self.refusals.append(str(error))
        self.kill()


MakeBroker: TypeAlias = Callable[[BrokerMachine], Awaitable[RunningBroker]]


Program: TypeAlias = Callable[["ClientMachine"], Coroutine[Any, Any, None]]


class ClientMachine(Machine):
    """A host with a program that uses raftlog's asyncio clients."""

    def __init__(self, world: Surroundings, name: str, main: Program) -> None:
        super().__init__(world, name)
        self.is_done = False  # its program came to its end
        self._main = main
        self._clients: list[LoopBound] = []

    def start(self) -> None:
        self._start()
        self.loop.create_task(self._run())

    async def _run(self) -> None:
        await self._main(self)
        self.is_done = True

    def host(self) -> ClientEnvironment:
        """What a client takes from its surroundings."""
        return ClientEnvironment(
            clock=self.clock, chance=self.random.random, entropy=self.random.randbytes
        )

    def own(self, client: LoopBound) -> None:
        """Remember a client, which is not closed when the process is killed."""
        self._clients.append(client)

    def bury(self) -> None:
        for client in self._clients:
            client._closed = True
            if isinstance(client, AsyncProducer):  # it would be kept, to report at the exit
                producer._unclosed.discard(client._core)
        super().bury()
