"""The cluster under test, on this machine: broker processes with their networks and disks.

The shape of the run and the requirements of the nemeses determine its components: brokers in
network namespaces or on the loopback device, links through relays, disks in files, separate clocks.
All files are in one directory. ``close`` ends all processes. This module injects no faults.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from raftlog.config.address import Address
from raftlog.config.broker import parse_voters
from raftlog.errors import BrokerUnavailableError, RaftlogError
from raftlog.server.main import STATUS_REMOVED
from raftlog.testing.cluster import (
    HOST,
    POLL_INTERVAL_S,
    READY_TIMEOUT_S,
    BrokerProcess,
    free_ports,
    secret_file,
)
from raftlog_jepsen.plan import MEMBERS_ALL_MAX, Shape
from raftlog_jepsen.status import (
    Answers,
    Asking,
    ClusterStatus,
    PartitionStatus,
    lacking,
    until_nothing,
)

if TYPE_CHECKING:
    from raftlog.testing.relays import RelayLinks
    from raftlog_jepsen.control.disks import LoopDisk
    from raftlog_jepsen.control.namespaces import MemberPlaces, Namespaces
    from raftlog_jepsen.members import Members
    from raftlog_jepsen.net import Net
    from raftlog_jepsen.secured import Secured


__all__ = [
    "ClusterStatus",
    "ClusterUnderTest",
    "Exit",
    "Host",
    "Needs",
    "PartitionStatus",
]

PORT: Final = 9100  # of every broker with a separate network
POLL_S: Final = 0.2  # interval of convergence checks
ACTS: Final = ("kill", "start", "pause", "resume")
CLIENTS: Final = 0  # id of the clients' network
TIME_COMMAND: Final = ("unshare", "--time", "--fork", "--kill-child")
TIME_BASE_S: Final = 100_000  # times the broker's id: offset of its monotonic clock, in seconds
# Settings of every broker, so that rare events occur in a short run.
SETTINGS: Final[Mapping[str, str]] = {
    "log.checkpoint.interval.ms": "2000",
    "log.retention.check.interval.ms": "2000",
    "log.scrub.interval.ms": "5000",
    "replica.lag.time.max.ms": "5000",
    "controlled.shutdown.timeout.ms": "5000",
}


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of the nemeses.

    ``namespaces``: a separate network for each broker. ``relays``: links between brokers pass
    through relays. ``client_relays``: links of clients pass through relays. ``loop_disks``: file
    systems in files. ``time_namespaces``: monotonic clocks that differ by days. ``fake_time``: wall
    clocks that can be set. ``failpoints``: brokers read failpoint files. ``member_places``: a
    separate network for each member of a consumer group; ignored without ``namespaces``.

    ``namespaces``, ``loop_disks`` and ``time_namespaces`` require root on Linux.
    """

    namespaces: bool = False
    relays: bool = False
    loop_disks: bool = False
    time_namespaces: bool = False
    fake_time: bool = False
    failpoints: bool = False
    client_relays: bool = False
    member_places: bool = False


class ClusterUnderTest:
    """The cluster. The constructor creates it but does not start it. The owner must call ``close``.

    ``settings``: of every broker, as in its configuration file. ``source``: a directory with
    another package ``raftlog``, which brokers run. ``secure``: brokers use TLS and require
    authentication. Raises ``OSError`` if the machine lacks a requirement, after removing all that
    was created.
    """

    def __init__(
        self,
        shape: Shape,
        needs: Needs,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        source: Path | None = None,
        secure: bool = False,
    ) -> None:
        self.shape = shape
        self.needs = needs
        self.directory = directory.resolve()
        self.hosts: dict[int, Host] = {}
        self.namespaces: Namespaces | None = None
        self.members: Members | None = None  # of consumer groups; None until they are created
        self.member_places: MemberPlaces | None = None
        self.net: Net
        self._settings = {**SETTINGS, **(settings or {})}
        self._source = source
        self._is_secure = secure
        self.secured: Secured | None = None  # files of a secured cluster
        self._stack = ExitStack()
        try:
            self._make()
        except BaseException:
            self._stack.close()
            raise

    # -- all brokers

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers for clients: "host:port,host:port"."""
        return ",".join(str(host.address) for host in self.hosts.values())

    def addresses(self) -> dict[int, str]:
        """Addresses for clients, by broker id."""
        return {host.id: str(host.address) for host in self.hosts.values()}

    def data_directories(self) -> dict[int, Path]:
        """Data directories, by broker id."""
        return {host.id: host.data_dir for host in self.hosts.values()}

    def start(self) -> None:
        """Start all brokers that do not run. Return when all are ready and members of the cluster.

        Raises ``BrokerUnavailableError`` if a broker ends or is not ready in time, ``TimeoutError``
        if the brokers do not form a cluster in time.
        """
        self._start(host for host in self.hosts.values() if not host.process.running)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while self.answers().members != self.hosts.keys():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no cluster after {READY_TIMEOUT_S:g} s: the controller reports the members "
                    f"{sorted(self.answers().members)}. See the logs in {self.directory}"
                )
            time.sleep(POLL_S)
        if self.secured is not None:
            self.secured.admit(self.bootstrap)

    def stop(self) -> None:
        """Send SIGTERM to all brokers, and SIGKILL to those that do not end in time."""
        for host in self.hosts.values():
            host.process.send_stop()
        for host in self.hosts.values():
            host.process.stop()

    def close(self) -> None:
        """Kill all processes, unmount disks, remove the network. Files remain. Can be called
        twice."""
        self._stack.close()

    # -- single brokers

    def up(self) -> set[int]:
        """Return the brokers that run and are not paused."""
        processes = (host.process for host in self.hosts.values())
        return {process.id for process in processes if process.running and not process.paused}

    def start_broker(self, broker_id: int) -> float:
        """Start a broker, unless it runs. Returns the seconds until it was ready.

        Raises ``BrokerUnavailableError`` with its final log output if it ends or is not ready in
        time.
        """
        host = self.hosts[broker_id]
        began = time.monotonic()
        self.spawn(broker_id)
        host.wait_ready()
        host.may_exit = False
        return time.monotonic() - began

    def spawn(self, broker_id: int) -> None:
        """Start a broker, unless it runs, without waiting for it."""
        if not self.hosts[broker_id].process.running:
            self.hosts[broker_id].spawn()

    def cannot(self, act: str) -> str:
        """Return why an action on brokers is not available; empty if it is."""
        return "" if act in ACTS else f"the action {act} on brokers is not supported"

    def kill(self, broker_ids: Collection[int]) -> dict[int, str]:
        """Send SIGKILL to these brokers without a delay between them, and wait for their end.

        Returns how each running broker ended, as the system reports it: "signal 9".
        """
        processes = [self.hosts[broker_id].process for broker_id in broker_ids]
        ran = [process for process in processes if process.running]
        for process in ran:
            process.send_kill()
        for process in processes:
            process.kill()
        return {process.id: how_it_ended(process.exit_status) for process in ran}

    def pause(self, broker_ids: Collection[int]) -> None:
        """Send SIGSTOP."""
        for broker_id in broker_ids:
            self.hosts[broker_id].process.pause()

    def resume(self, broker_ids: Collection[int]) -> None:
        """Send SIGCONT."""
        for broker_id in broker_ids:
            self.hosts[broker_id].process.resume()

    def state(self, broker_id: int) -> str:
        """Return the state of a broker's process: gone, stopped, running, or unknown."""
        return self.hosts[broker_id].state()

    # -- unexpected ends

    def expect_exit(self, broker_ids: Collection[int]) -> None:
        """Expect these brokers to end, until their next successful start."""
        for broker_id in broker_ids:
            self.hosts[broker_id].may_exit = True

    def exits(self) -> list[Exit]:
        """Return all ends of brokers without a command of the harness, expected or not, in the
        order of detection."""
        self.up()  # checks every process
        found = (each for host in self.hosts.values() for each in host.exits)
        return sorted(found, key=lambda each: each.monotonic_ns)

    def unexpected_exits(self) -> list[str]:
        """Return the unexpected ends, with status and final log output."""
        return [str(each) for each in self.exits() if not each.expected]

    def kills(self) -> dict[int, int]:
        """Return the number of ends by SIGKILL of each broker, by its id."""
        self.up()  # checks every process
        return {host.id: host.process.kills for host in self.hosts.values()}

    def ensure_all_up(self) -> list[str]:
        """Resume and start all brokers that do not run. Returns the actions and failures."""
        paused = [host.id for host in self.hosts.values() if host.process.paused]
        self.resume(paused)
        reported = [f"broker {broker_id} was still paused: resumed" for broker_id in paused]
        down = [host for host in self.hosts.values() if not host.process.running]
        for act in (Host.spawn, Host.wait_ready):
            for host in list(down):
                try:
                    act(host)
                except (OSError, RaftlogError) as error:
                    down.remove(host)
                    reported.append(f"broker {host.id} was down and cannot be started: {error}")
        for host in down:
            host.may_exit = False
            reported.append(f"broker {host.id} was still down: started")
        return reported

    # -- status

    def answers(self) -> Answers:
        """Return the responses of the running brokers, in at most 3 s."""
        return self._asking.answers(self.up())

    def status(self) -> ClusterStatus:
        """Return all partitions, from the newest leader epoch that any broker reports; in at most
        3 s."""
        return self.answers().status()

    def wait_quiet(self, timeout_s: float) -> list[str]:
        """Wait until every broker is a running member, and every replica is in the ISR and
        complete.

        Returns the conditions that are not met after ``timeout_s``; empty if the cluster has
        converged.
        """
        return until_nothing(self._lacking, timeout_s=timeout_s)

    def _lacking(self) -> list[str]:
        return lacking(self.hosts.keys(), self.up(), self.answers())

    # -- construction

    def _start(self, starting: Iterable[Host]) -> None:
        down = list(starting)
        for host in down:
            host.spawn()
        for host in down:
            host.wait_ready()

    def _make(self) -> None:
        ids, needs = self.shape.broker_ids, self.needs
        self.directory.mkdir(parents=True, exist_ok=True)
        listen = self._places(ids)
        links = self._links(listen) if needs.relays or needs.client_relays else None
        if self._is_secure:
            self._secure(listen)
        self.net = self._net(listen, links)
        if needs.member_places and self.namespaces is not None and not needs.client_relays:
            self._place_members(listen)
        for broker_id in ids:
            self._make_host(broker_id, listen, links)
        process = self.hosts[min(ids)].process
        self._asking = Asking(listen, tls=process.tls, secret=process.secret)
        self._stack.callback(self._asking.close)
        self._stack.callback(self._end_processes)

    def _secure(self, listen: Mapping[int, Address]) -> None:
        from raftlog_jepsen.secured import Secured

        self.secured = Secured(self.directory, listen)

    def _places(self, ids: Collection[int]) -> dict[int, Address]:
        """Return the listen address of each broker."""
        if not self.needs.namespaces:
            ports = free_ports(len(ids))
            return {
                broker_id: Address(HOST, port) for broker_id, port in zip(ids, ports, strict=True)
            }
        from raftlog_jepsen.control.namespaces import Namespaces

        spaces = self.namespaces = self._stack.enter_context(Namespaces(len(ids)))
        return {broker_id: Address(spaces.address(broker_id), PORT) for broker_id in ids}

    def _place_members(self, listen: Mapping[int, Address]) -> None:
        from raftlog_jepsen.control.namespaces import MemberPlaces

        places = MemberPlaces(self.namespaces, listen, MEMBERS_ALL_MAX)  # type: ignore[arg-type]
        self.member_places = self._stack.enter_context(places)

    def _links(self, listen: Mapping[int, Address]) -> RelayLinks:
        from raftlog.testing.relays import RelayLinks

        links = RelayLinks(
            listen,
            clients=self.needs.client_relays,
            socket_in=None if self.namespaces is None else self.namespaces.socket,
        )
        self._stack.callback(links.close)
        return links

    def _net(self, listen: Mapping[int, Address], links: RelayLinks | None) -> Net:
        from raftlog_jepsen.net import NamespaceNet, NoNet, RelayNet

        if self.namespaces is not None:
            return NamespaceNet(self.namespaces, listen, links)
        return NoNet(listen) if links is None else RelayNet(links)

    def _make_host(
        self, broker_id: int, listen: Mapping[int, Address], links: RelayLinks | None
    ) -> None:
        """Create a host and the configuration of its broker: listen address, peers and security."""
        voters = dict(listen)
        address = listen[broker_id]
        settings = dict(self._settings)
        if self.secured is not None:
            settings |= self.secured.settings(broker_id)
        if links is not None and self.needs.relays:
            voters |= {
                other: links.address(broker_id, other) for other in listen if other != broker_id
            }
        if links is not None and self.needs.client_relays:
            address = links.address(CLIENTS, broker_id)
            settings["advertised.listen"] = str(address)
        if listen[broker_id].host != HOST:  # a private network of the harness, without security
            settings.setdefault("insecure.allowed", "true")
        if len(listen) > 1 or self._is_secure:
            settings["voters"] = ",".join(f"{number}@{where}" for number, where in voters.items())
            settings["cluster.secret.file"] = str(secret_file(self.directory))
            settings.setdefault("operations.require.secret", "false")
        if self.shape.workers > 1:
            (machine,) = self.shape.machines_of([broker_id])
            settings["rack"] = f"machine-{machine + 1}"
        disk, data_dir = self._disk(broker_id)
        process = BrokerProcess(
            id=broker_id,
            address=listen[broker_id],
            data_dir=data_dir,
            settings=settings,
            prefix=self._prefix(broker_id),
            source=self._source,
            home=self.directory,
        )
        self.hosts[broker_id] = Host(process, address, disk, self._environment(broker_id))

    def _disk(self, broker_id: int) -> tuple[LoopDisk | None, Path]:
        if not self.needs.loop_disks:
            return None, self.directory / f"broker-{broker_id}"
        from raftlog_jepsen.control.disks import LoopDisk

        disk = LoopDisk(self.directory, f"disk-{broker_id}")
        self._stack.callback(disk.close, keep=True)
        return disk, disk.mount_point / "data"

    def _environment(self, broker_id: int) -> dict[str, str]:
        """Return the environment of a broker for settable clocks and failpoints."""
        environment: dict[str, str] = {}
        if self.needs.fake_time:
            from raftlog_jepsen.control.limits import FakeClock

            environment |= FakeClock(self.directory, broker_id).environment()
        if self.needs.failpoints:
            from raftlog_jepsen.nemesis import failpoints

            file = failpoints.failpoint_file(self.directory, broker_id)
            environment |= failpoints.environment(file)
        return environment

    def _prefix(self, broker_id: int) -> tuple[str, ...]:
        """Return the command that runs a broker in its namespaces."""
        prefix: tuple[str, ...] = ()
        if self.namespaces is not None:
            prefix += self.namespaces.prefix(broker_id)
        if self.needs.time_namespaces:
            base = str(TIME_BASE_S * broker_id)
            prefix += (*TIME_COMMAND, "--monotonic", base, "--boottime", base, "--")
        return prefix

    def _end_processes(self) -> None:
        self.kill(self.hosts.keys())


# -- host ------------------------------------------------------------------------------------------
#
# One broker of the cluster under test, with its process, disk and environment.


PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class Exit:
    """An end of a broker without a command of the harness. ``status``: negative for a signal.

    ``expected``: a nemesis expected it.
    """

    broker: int
    status: int
    last_words: str
    expected: bool
    monotonic_ns: int

    def __str__(self) -> str:
        how = how_it_ended(self.status)
        return f"broker {self.broker} ended unexpectedly with {how}: {self.last_words}"


@dataclass
class Host:
    """One broker. ``address``: for clients; ``process.address``: where it listens.

    ``disk``: None if the data directory is an ordinary directory. ``may_exit``: the broker is
    expected to end. ``leaves``: the broker may be removed from the cluster, and then ends.
    """

    process: BrokerProcess
    address: Address
    disk: LoopDisk | None = None
    environment: dict[str, str] = field(default_factory=dict)
    may_exit: bool = False
    leaves: bool = False
    exits: list[Exit] = field(default_factory=list)
    _words_at: int = 0  # offset in the log of the output since its last start

    def __post_init__(self) -> None:
        self.process.environment = self.environment
        self.process.on_death = self._note_exit

    @property
    def id(self) -> int:
        return self.process.id

    @property
    def data_dir(self) -> Path:
        return self.process.data_dir

    @property
    def prefix(self) -> tuple[str, ...]:
        return self.process.prefix

    @property
    def broker_pid(self) -> int | None:
        """Process id of the broker itself, also if a wrapper command started it."""
        return self.process.broker_pid

    def join(self) -> None:
        """Configure the broker to join the cluster of its configured voters at the next start."""
        settings = dict(self.process.settings)
        voters = parse_voters(settings.pop("voters", ""))
        if voters:
            addresses = [str(voter.address) for voter in voters if voter.id != self.id]
            self.process.settings = {**settings, "join": ",".join(addresses)}

    def spawn(self) -> None:
        """Start the process without waiting for it. Raises ``ValueError`` if it runs."""
        log = self.process.log_path
        self._words_at = log.stat().st_size if log.exists() else 0
        self.process.spawn()

    def wait_ready(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when the broker's log reports that it is ready.

        Sends no request, because the network may be blocked. Raises ``BrokerUnavailableError`` if
        the broker ends (with its final log output) or is not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        while not self._is_ready():
            if not self.process.running:
                raise BrokerUnavailableError(
                    f"broker {self.id} ended with status {self.process.exit_status}: "
                    f"{self.process.last_words()}"
                )
            if time.monotonic() > deadline:
                raise BrokerUnavailableError(
                    f"broker {self.id} is not ready after {timeout_s:g} s; see "
                    f"{self.process.log_path}"
                )
            time.sleep(POLL_INTERVAL_S)

    def state(self) -> str:
        """Return the state of the process: ``gone``, ``stopped`` (all threads), ``running``, or
        ``unknown`` without /proc."""
        pid = self.broker_pid
        if pid is None:
            return "running" if self.process.running else "gone"
        return state_of(pid)

    def _is_ready(self) -> bool:
        with self.process.log_path.open("rb") as log:
            log.seek(self._words_at)
            said = log.read()
        # In a cluster, "ready" comes only when enough of the others are there.
        name = f"raftlog broker {self.id}"
        return any(f"{name} {what} on ".encode() in said for what in ("listens", "ready"))

    def _note_exit(self, status: int) -> None:
        words = self.process.last_words()
        is_expected = self.may_exit or (self.leaves and status == STATUS_REMOVED)
        self.exits.append(Exit(self.id, status, words, is_expected, time.monotonic_ns()))


def how_it_ended(status: int | None) -> str:
    """Describe a process's exit status."""
    if status is None:
        return "no end"
    return f"signal {-status}" if status < 0 else f"status {status}"


def state_of(pid: int) -> str:
    """Return the state of a process, from the states of its threads; see proc(5).

    ``gone``; ``stopped`` if all threads are stopped; ``running``; ``unknown`` without /proc.
    """
    if not PROC.exists():
        return "unknown"
    states = set()
    for stat in (PROC / str(pid) / "task").glob("*/stat"):
        try:
            states.add(stat.read_text().rpartition(")")[2].split()[0])
        except OSError:  # the thread has ended
            continue
    if not states - {"Z", "X"}:
        return "gone"
    return "stopped" if states <= {"T", "t"} else "running"
