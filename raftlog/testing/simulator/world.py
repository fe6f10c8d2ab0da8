"""One simulation: time, network, machines with brokers and clients, and their faults.

A ``World`` provides the operations. ``faults`` decides when they are used, ``workload`` defines the
clients, and ``checker`` checks the result.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from random import Random
from types import TracebackType
from typing import Any, Final, cast

from raftlog import limits
from raftlog.config import Address, BrokerConfig
from raftlog.config.voters import Voter
from raftlog.config.watermark import Watermark
from raftlog.protocol.peer_auth import PEER_PROTOCOL_VERSION
from raftlog.server.broker import Broker, Surroundings
from raftlog.testing.simulator.history import Violation
from raftlog.testing.simulator.loop import (
    EVENTS_MAX_DEFAULT,
    NodeLoop,
    SimLoop,
    SimulationError,
)
from raftlog.testing.simulator.network import Latency, SimNetwork
from raftlog.testing.simulator.process import (
    DATA_DIRECTORY,
    BrokerMachine,
    ClientMachine,
    Machine,
    MakeBroker,
    Program,
    RunningBroker,
)

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
    """Return the configuration of a broker: in a cluster of all machines, or in single-broker mode
    if there is only one machine. Most periodic tasks run more often than by default.

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
    broker = machine.broker
    return isinstance(broker, Broker) and not any(d.failure for d in broker.log_dirs.log_dirs)


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
