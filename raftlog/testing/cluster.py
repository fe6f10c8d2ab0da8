"""Clusters of broker processes on this machine: start, network partitions, data loss, and stop.

For tests, ``raftlog demo`` and ``raftlog up``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import secrets
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from raftlog.client import profiles
from raftlog.client.administration.admin import Admin
from raftlog.config.address import Address
from raftlog.disk import FILE_MODE
from raftlog.errors import BrokerUnavailableError, RaftlogError
from raftlog.failpoints import FILE_MARK, VARIABLE, Hit, hits_path, read_hits
from raftlog.protocol.api import (
    API_VERSIONS,
    DESCRIBE_TOPICS,
    METADATA,
    OPERATOR_HELLO,
    OPERATOR_PROVE,
    Api,
)
from raftlog.protocol.connection import ClientConnectionState
from raftlog.protocol.peer import NONCE_BYTES
from raftlog.protocol.records import (
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionDescription,
)
from raftlog.protocol.schema import Message
from raftlog.protocol.security import ApiVersionsRequest, Asking, OperatorHelloResponse
from raftlog.testing import fork_server
from raftlog.testing.certificates import Certificates, create, environment_of
from raftlog.testing.fork_server import ForkedProcess
from raftlog.testing.relays import Hold, RelayLinks, Reset
from raftlog.tls import client_context

# -- processes -------------------------------------------------------------------------------------
#
# One broker as a process of this machine: start, wait, kill, pause, stop.
#
# Signals go only to processes that were started here and not waited for, so no other process can be
# affected. The process leads a separate process group, and signals go to the complete group: a
# broker may run under another command, such as one that enters a namespace. Brokers end when their
# parent process ends, for any reason: a pipe to it is their standard input.


READY_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 20.0
LOG_TAIL_BYTES: Final = 2_000
# -P: do not import a package ``raftlog`` from the working directory.
COMMAND: Final = (sys.executable, "-P", "-m", "raftlog")
PROC: Final = Path("/proc")


@dataclass
class BrokerProcess:
    """One broker. It keeps its address and its data directory over any number of starts.

    ``prefix``: command that runs the broker's command, such as ``nsenter --net=... --``.
    ``environment``: in addition to this process's, at the next start.
    ``source``: location of the package ``raftlog`` of the broker; default: the one in use here.
    ``home``: directory of its configuration and its log; default: next to the data directory.
    ``can_fork``: start it as a fork of a process that has imported what it needs, if it has neither
    ``prefix`` nor ``source``; False: always as a new interpreter.
    ``on_death``: called with the exit status, negative for a signal, once it is detected
    (``running``) that the process ended without a command of this object.
    ``kills``: number of ends by SIGKILL, from any sender.
    """

    id: int
    address: Address
    data_dir: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    source: Path | None = None
    home: Path | None = None
    can_fork: bool = True
    on_death: Callable[[int], None] | None = None
    kills: int = 0
    _process: subprocess.Popen[bytes] | ForkedProcess | None = None
    _paused: bool = False
    _stopping: bool = False  # a second SIGTERM would end it immediately
    _ending: bool = False  # SIGTERM or SIGKILL was sent
    _status: int | None = None  # exit status of the last process
    _watching: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    _child: int | None = None  # pidfd of the broker, if it was killed under a prefix

    @property
    def pid(self) -> int | None:
        """The process id while it runs, paused or not; else None. With a prefix: of the prefix."""
        self._watch()
        process = self._process  # another thread may check or wait for it at the same time
        return process.pid if process is not None and self._status is None else None

    @property
    def broker_pid(self) -> int | None:
        """The process id of the broker itself; None while it does not run, or not yet.

        It differs from ``pid`` when the prefix starts it as a child. Linux only, with a prefix.
        """
        pid = self.pid
        if pid is None or not self.prefix:
            return pid
        return next((each for each in _family_of(pid) if _command(each) == sys.executable), None)

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for a signal. None while it runs and before its first start."""
        self._watch()
        return self._status

    @property
    def running(self) -> bool:
        return self.pid is not None

    @property
    def paused(self) -> bool:
        """True between ``pause`` and ``resume``, while it runs."""
        return self._paused and self.running

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The context of a client of the broker; None if its settings have no certificate."""
        if "tls.certificate.file" not in self.settings:
            return None
        return client_context(
            ca=self.settings.get("tls.ca.file", ""),
            certificate=self.settings["tls.certificate.file"],
            key=self.settings.get("tls.key.file", ""),
        )

    @property
    def secret(self) -> bytes:
        """The secret of the cluster if the broker requires authentication; else empty."""
        if self.settings.get("authentication.required") != "true":
            return b""
        return Path(self.settings["cluster.secret.file"]).read_bytes().strip()

    @property
    def log_path(self) -> Path:
        """Path of the broker's log output."""
        return self._beside(".log")

    def start(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start the process. Returns when it responds to requests.

        It may not have rejoined its cluster then; clients wait for that.
        """
        self.spawn()
        try:
            self.wait_ready(timeout_s=timeout_s)
        except BaseException:
            self.kill()
            raise

    def spawn(self) -> None:
        """Start the process; it recovers its data directory before it responds."""
        if self.running:
            raise ValueError(f"broker {self.id} is already running as process {self.pid}")
        self._reap()
        check_free(self.address, may_be_elsewhere=bool(self.prefix))
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        config_path = self._beside(".toml")
        config_path.parent.mkdir(parents=True, exist_ok=True)
        with open(config_path, "w", encoding="utf-8", opener=_private) as config:
            config.write(self._config())
        self._ending, self._status = False, None
        with open(self.log_path, "ab", opener=_private) as log:
            self._process = self._launch(
                ["broker", "--stop-with-stdin", "--config", str(config_path)], log.fileno()
            )

    def _launch(self, arguments: list[str], log: int) -> subprocess.Popen[bytes] | ForkedProcess:
        """Run ``raftlog ARGUMENTS`` as the leader of a process group; its stdin is a pipe."""
        environment = {**os.environ, "RAFTLOG_WORKERS": "1", **self.environment}
        may_fork = self.can_fork and not self.prefix and self.source is None
        if may_fork and fork_server.can_fork(environment):
            return fork_server.fork(arguments, environment, log)
        return subprocess.Popen(
            [*self.prefix, *COMMAND, *arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={
                **environment,
                **fork_server.python_path(self.source or fork_server.SOURCE),
                **self.environment,
            },
            process_group=0,  # Ctrl-C signals the parent only, which then stops brokers
        )

    def wait_ready(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when the broker responds.

        Raises ``BrokerUnavailableError`` with its final log output if it ends, or if it has done
        nothing for ``timeout_s`` seconds.
        """
        stall = Stall(timeout_s)
        while not answers(self.address, tls=self.tls):
            status = self.exit_status
            if status is not None:
                raise BrokerUnavailableError(
                    f"broker {self.id} ended with status {status}: {self.last_words()}"
                )
            if stall.has_come(self.progress()):
                raise BrokerUnavailableError(
                    f"broker {self.id} does not respond at {self.address} and has done nothing for "
                    f"{timeout_s:g} s; see {self.log_path}"
                )
            time.sleep(POLL_INTERVAL_S)

    def progress(self) -> tuple[int, int]:
        """Return a value that changes while the broker works: CPU time, and bytes of its log."""
        return progress(self.broker_pid, self.log_path)

    def kill(self) -> None:
        """Send SIGKILL: no warning, no flush. Returns when the process has ended."""
        self.send_kill()
        self._reap()

    def send_kill(self) -> None:
        """Send SIGKILL. Does not wait for the end of the process; call ``kill`` to wait."""
        if self.running:
            self._ending = True
            self._watch_child()
            self._signal(signal.SIGKILL)

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Send SIGTERM, and SIGKILL if the process has not ended after ``timeout_s``."""
        self.send_stop()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=timeout_s)
            self.kill()

    def send_stop(self) -> None:
        """Send SIGTERM. Does not wait for the end of the process; call ``stop`` to wait."""
        if not self._stopping and self.running:
            self._stopping = self._ending = True
            self._signal(signal.SIGTERM)
        self.resume()  # a paused process does not handle SIGTERM

    def pause(self) -> None:
        """Send SIGSTOP: the process keeps its connections, and does nothing."""
        self._signal(signal.SIGSTOP)
        self._paused = self.running

    def resume(self) -> None:
        """Send SIGCONT."""
        self._signal(signal.SIGCONT)
        self._paused = False

    def last_words(self) -> str:
        """Return the final log output of the broker, for error messages."""
        if not self.log_path.exists():
            return "(no output)"
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "(no output)"

    def _config(self) -> str:
        return profiles.dump(
            {
                **self.settings,
                "id": str(self.id),
                "listen": str(self.address),
                "data.dir": str(self.data_dir),
            }
        )

    def _watch_child(self) -> None:
        """Open a pidfd of a broker under a prefix: only its parent can wait for it by its id."""
        pid = self.broker_pid if self.prefix else None
        if pid is not None and self._child is None:
            with contextlib.suppress(ProcessLookupError):
                self._child = os.pidfd_open(pid)

    def _wait_for_child(self) -> None:
        if self._child is not None:
            ending = select.poll()
            ending.register(self._child, select.POLLIN)  # readable once the process has ended
            ending.poll()
            os.close(self._child)
            self._child = None

    def _watch(self) -> None:
        """Detect the end of the process, and report it if it was unexpected."""
        with self._watching:
            if self._process is not None and self._status is None:
                self._status = self._process.poll()
                self.kills += self._status == -signal.SIGKILL
                if self._status is not None and not self._ending and self.on_death is not None:
                    self.on_death(self._status)

    def _beside(self, ending: str) -> Path:
        if self.home is not None:
            return self.home / f"broker-{self.id}{ending}"
        return self.data_dir.with_name(self.data_dir.name + ending)

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid is not None:  # else it was waited for, and its id may be reused
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    def _reap(self) -> None:
        self._paused = self._stopping = False
        if self._process is not None:
            self._process.wait()
            self._watch()
            self._wait_for_child()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None


def _private(path: str, flags: int) -> int:
    """Open a file. A new file can be read by its owner only."""
    # guard: settings and logs of local brokers are private
    return os.open(path, flags, FILE_MODE)


def _family_of(pid: int) -> list[int]:
    """Return a process, then its descendants: all that are visible in /proc."""
    children: dict[int, list[int]] = {}
    for stat in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended since
            after_name = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(after_name[1]), []).append(int(stat.parent.name))
    family = [pid]
    for member in family:
        family += sorted(children.get(member, ()))
    return family


def _command(pid: int) -> str:
    """Return the first word of a process's command; empty if the process has ended."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().partition(b"\0")[0].decode()
    except OSError:
        return ""


# -- cluster ---------------------------------------------------------------------------------------


__all__ = [
    "BrokerProcess",
    "Cluster",
    "answers",
    "cluster",
    "free_port",
    "local_cluster",
    "secret_file",
    "wait_until",
]

SECRET_FILE: Final = "cluster.secret"  # noqa: S105 - a name, no secret
SECRET_BYTES: Final = 32
TLS_DIRECTORY: Final = "tls"  # certificates of a secured cluster


@dataclass
class Cluster:
    """Brokers and their addresses. ``links`` are cut and healed by broker ids."""

    brokers: list[BrokerProcess]
    relays: RelayLinks | None = None
    directory: Path | None = None
    _apart: set[frozenset[int]] = field(default_factory=set)  # pairs whose links are cut

    @property
    def bootstrap(self) -> str:
        return ",".join(str(broker.address) for broker in self.brokers)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of clients; empty if the brokers are not secured."""
        return environment_of(self.brokers[0].settings)

    def broker(self, broker_id: int) -> BrokerProcess:
        """Return the broker with this id; ids start from 1. Raises `ValueError` for an unknown
        id."""
        for broker in self.brokers:
            if broker.id == broker_id:
                return broker
        raise ValueError(f"no broker {broker_id}; there are {[b.id for b in self.brokers]}")

    # -- all brokers

    def start(self) -> None:
        """Start all brokers that are down. Return when all, including those that ran before,
        respond and are members of the cluster.

        Does not wait for brokers that are paused, or isolated from the majority. Raises
        ``BrokerUnavailableError`` if one ends, ``TimeoutError`` if one does not join.
        """
        starting = [broker for broker in self.brokers if not broker.running]
        for broker in starting:
            broker.spawn()
        for broker in starting:
            broker.wait_ready()
        if len(self.brokers) > 1:
            self.wait_members()

    def wait_members(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when the brokers of the majority are members of one cluster in the view of each.

        Returns immediately if there is no majority of brokers that run, are not paused, and reach
        each other. Raises ``BrokerUnavailableError`` with its final log output if one ends,
        ``TimeoutError``.
        """
        sides = {broker.id: self._reached_by(broker) for broker in self.brokers}
        waiting = [b for b in self.brokers if 2 * len(sides[b.id]) > len(self.brokers)]

        def has_joined(broker: BrokerProcess) -> bool:
            for other in waiting:
                if not other.running:
                    raise BrokerUnavailableError(f"broker {other.id} ended: {other.last_words()}")
            return sides[broker.id] <= members(broker.address, tls=broker.tls, secret=broker.secret)

        for broker in waiting:
            wait_until(
                partial(has_joined, broker),
                timeout_s=timeout_s,
                progress=lambda: [other.progress() for other in waiting],
                what=f"broker {broker.id} has {sorted(sides[broker.id])} in the cluster "
                f"({broker.log_path})",
            )

    def _reached_by(self, broker: BrokerProcess) -> set[int]:
        """Return the running brokers that this one reaches, including itself; empty if it does not
        run."""
        at_work = {other.id for other in self.brokers if other.running and not other.paused}
        if broker.id not in at_work:
            return set()
        return {other for other in at_work if frozenset((broker.id, other)) not in self._apart}

    def kill(self) -> None:
        """Send SIGKILL to all, at the same time if possible."""
        for broker in self.brokers:
            broker.send_kill()
        for broker in self.brokers:
            broker.kill()

    def stop(self) -> None:
        """Send SIGTERM to all, and SIGKILL to those that do not end."""
        for broker in self.brokers:
            broker.send_stop()
        for broker in self.brokers:
            broker.stop()

    def close(self) -> None:
        """Kill all processes and stop the relays. The cluster cannot be used afterwards."""
        self.kill()
        if self.relays is not None:
            self.relays.close()
            self.relays = None

    # -- brokers that join and leave

    def add(self, broker_id: int, address: Address) -> BrokerProcess:
        """Return a new broker that joins this cluster when it is started.

        It gets the settings of the first broker, except those of that broker alone.
        """
        assert self.directory is not None, "only for clusters of local_cluster"
        shared = {k: v for k, v in self.brokers[0].settings.items() if k not in _OF_ONE_BROKER}
        if "tls.broker.id.required" in shared:
            shared |= _certificates(self.directory, [broker_id]).broker_settings(broker_id)
        new = BrokerProcess(
            id=broker_id,
            address=address,
            data_dir=self.directory / f"broker-{broker_id}",
            settings={**shared, "join": self.bootstrap},
        )
        self.brokers.append(new)
        return new

    def join(self, count: int = 1, *, timeout_s: float = READY_TIMEOUT_S) -> list[BrokerProcess]:
        """Start ``count`` new brokers, with IDs that the cluster assigns. Returns when they are
        members of the cluster.

        Raises ``BrokerUnavailableError`` if one ends, ``TimeoutError`` if one does not join.
        """
        ids = reserve_ids(self, count)
        new = [self.add(broker_id, free_address()) for broker_id in ids]
        for broker in new:
            broker.spawn()
        for broker in new:
            broker.wait_ready()
        self.wait_known(new, timeout_s=timeout_s)
        return new

    def forget(self, broker_id: int) -> None:
        """Kill the process of a removed broker, and remove it from ``brokers``."""
        broker = self.broker(broker_id)
        broker.kill()
        self.brokers.remove(broker)

    def wait_known(self, brokers: Iterable[BrokerProcess], *, timeout_s: float) -> None:
        """Return when all running brokers know these as members of the cluster."""
        expected = {broker.id for broker in brokers}
        for broker in [each for each in self.brokers if each.running and not each.paused]:
            wait_until(
                partial(_knows, broker, expected),
                timeout_s=timeout_s,
                what=f"broker {broker.id} has {sorted(expected)} in the cluster "
                f"({broker.log_path})",
            )

    # -- views of the brokers

    def views(self, topic: str, partition: int) -> dict[int, PartitionDescription]:
        """Return each broker's view of a partition, by broker id, without brokers that do not
        respond."""
        asked = [broker for broker in self.brokers if broker.running and not broker.paused]
        views = {
            b.id: describe_partition(b.address, topic, partition, tls=b.tls, secret=b.secret)
            for b in asked
        }
        return {broker_id: view for broker_id, view in views.items() if view is not None}

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the broker that reports itself as leader of the partition, in the latest epoch."""
        return _leader(self.views(topic, partition))

    def is_in_sync(self, topic: str, partition: int) -> bool:
        """Return whether the leader reports all replicas in the ISR, and each replica reports that
        it has all records that the leader had."""
        views = self.views(topic, partition)
        leader = _leader(views)
        if leader is None:
            return False
        # Not its high watermark: a new leader may not know yet what is committed. A broker with an
        # empty disk has the ID of a member of the ISR, and no records.
        info, end = views[leader].info, views[leader].log_end_offset
        complete = {
            broker_id
            for broker_id, view in self.views(topic, partition).items()
            if view.log_end_offset >= end
        }
        return set(info.isr) == set(info.replicas) <= complete

    # -- faults

    def wipe(self, broker_id: int) -> None:
        """Remove a broker's data, as a new disk would. Raises `ValueError` if the broker runs."""
        broker = self.broker(broker_id)
        if broker.running:
            raise ValueError(f"broker {broker_id} is running. Kill it first")
        if broker.data_dir.exists():
            shutil.rmtree(broker.data_dir)

    def partition(self, sides: Iterable[Collection[int]]) -> None:
        """Let brokers reach each other within a side only, until the next call.

        Brokers that are in no side form another side. Clients still reach every broker.
        """
        side_of: dict[int, int] = {}
        for number, side in enumerate(sides):
            for broker_id in side:
                if side_of.setdefault(self.broker(broker_id).id, number) != number:
                    raise ValueError(f"broker {broker_id} is on two sides")
        self._set_apart(pair for pair in self._pairs() if len({*map(side_of.get, pair)}) > 1)

    def isolate(self, broker_id: int) -> None:
        """Isolate a broker from all others, in addition to earlier cuts."""
        self.broker(broker_id)
        self._set_apart(self._apart | {pair for pair in self._pairs() if broker_id in pair})

    def cut(self, one: int, other: int) -> None:
        """Cut the links between two brokers, in addition to earlier cuts; both still reach the
        others."""
        self._set_apart(self._apart | {frozenset((self.broker(one).id, self.broker(other).id))})

    def heal(self) -> None:
        """End all network partitions."""
        self._set_apart(())

    def _pairs(self) -> set[frozenset[int]]:
        return {frozenset(pair) for pair in self._relays().pairs}

    def _set_apart(self, pairs: Iterable[frozenset[int]]) -> None:
        relays, apart = self._relays(), set(pairs)
        for pair in relays.pairs:
            if frozenset(pair) in apart:
                relays.set(pair, Hold(), Reset())
            else:
                relays.clear(pair, Hold)
            relays.clear(pair, Reset)  # only the connections that were open
        self._apart = apart

    def _relays(self) -> RelayLinks:
        if self.relays is None:
            raise ValueError("this cluster was created without relays. Set with_relays=True")
        return self.relays


# Settings of one broker that the others of its cluster do not share.
_OF_ONE_BROKER: Final = (
    *("voters", "join", "bootstrap.without"),
    *("http.listen", "kafka.listen", "schema.registry.listen"),
)


def free_address() -> Address:
    return Address(HOST, free_port())


def reserve_ids(cluster: Cluster, count: int, *, is_running: bool = False) -> list[int]:
    """Have the cluster assign the IDs of ``count`` brokers that join.

    ``is_running``: another process runs the brokers.
    """
    settings = cluster.brokers[0].settings
    authority = settings.get("tls.ca.file")
    with Admin(
        [str(each.address) for each in cluster.brokers if each.running or is_running],
        cluster_secret_file=settings.get("cluster.secret.file"),
        security_protocol="SSL" if authority else "PLAINTEXT",
        ssl_cafile=authority,
    ) as admin:
        return [admin.reserve_broker_id() for _ in range(count)]


def _knows(broker: BrokerProcess, expected: Collection[int]) -> bool:
    return {*expected} <= members(broker.address, tls=broker.tls, secret=broker.secret)


def _leader(views: Mapping[int, PartitionDescription]) -> int | None:
    leading = [broker_id for broker_id, view in views.items() if view.info.leader == broker_id]
    return max(leading, key=lambda broker_id: views[broker_id].info.leader_epoch, default=None)


def local_cluster(
    directory: Path,
    *,
    brokers: int = 1,
    addresses: Mapping[int, Address] | None = None,
    settings: Mapping[str, str] | None = None,
    with_relays: bool = False,
    secure: bool = False,
    voters: Mapping[int, Address] | None = None,
) -> Cluster:
    """Create the cluster in ``directory``, not started. The caller must call ``close``.

    ``addresses``: by broker id, from 1; default: free ports of this machine.
    ``with_relays``: brokers reach each other through relays, which can be cut.
    ``secure``: brokers use TLS and require authentication; ``Cluster.environment`` has the
        credentials of the administrator. Requires the package `cryptography`.
    ``voters``: addresses of the brokers that create, or have created, the cluster; the others join
        it. Default: all. Without ``voters``, no other broker can join a single one.
    """
    directory = directory.resolve()
    if addresses is None:
        ports = free_ports(brokers)
        addresses = {number: Address(HOST, port) for number, port in enumerate(ports, start=1)}
    shared = authentication_settings(directory / CREDENTIALS_FILE) if secure else {}
    shared.update(settings or {})
    files = _certificates(directory, addresses) if secure else None
    made = Cluster(
        [
            BrokerProcess(
                id=number,
                address=address,
                data_dir=directory / f"broker-{number}",
                settings=({} if files is None else files.broker_settings(number)) | shared,
            )
            for number, address in sorted(addresses.items())
        ],
        directory=directory,
    )
    is_alone = len(made.brokers) == 1 and not voters
    if not is_alone or secure:
        _introduce(made, directory, addresses, voters or addresses, with_relays=with_relays)
    return made


def _introduce(
    made: Cluster,
    directory: Path,
    addresses: Mapping[int, Address],
    founders: Mapping[int, Address],
    *,
    with_relays: bool,
) -> None:
    """Configure the voters and the secret of each broker."""
    secret_path = secret_file(directory)
    if with_relays:
        made.relays = RelayLinks(addresses, clients=False)
    for broker in made.brokers:
        voters = dict(founders)
        for other in founders:
            if made.relays is not None and other != broker.id:
                voters[other] = made.relays.address(broker.id, other)
        broker.settings = {
            # They listen on this machine only, and their secret was created here.
            "operations.require.secret": "false",
            **broker.settings,
            **_place(broker, made, voters),
            "cluster.secret.file": str(secret_path),
        }


def _place(broker: BrokerProcess, made: Cluster, voters: Mapping[int, Address]) -> dict[str, str]:
    """Return the setting with which the broker creates or joins the cluster."""
    if broker.id in voters:
        return {"voters": ",".join(f"{number}@{at}" for number, at in sorted(voters.items()))}
    others = [str(each.address) for each in made.brokers if each is not broker]
    return {"join": ",".join(others)} if others else {}


def _certificates(directory: Path, brokers: Iterable[int]) -> Certificates:
    """Return the certificates of the cluster in ``directory``. Creates the CA, and certificates
    that name these brokers, if they do not exist."""
    files = Certificates(directory / TLS_DIRECTORY)
    missing = [broker for broker in brokers if not files.of_broker(broker)[0].exists()]
    return create(files.directory, brokers=missing) if missing else files


def secret_file(directory: Path) -> Path:
    """Return the file with the secret of the cluster in ``directory``. Creates it if it does not
    exist."""
    return private_file(directory / SECRET_FILE, secrets.token_hex(SECRET_BYTES))


@contextlib.contextmanager
def cluster(
    brokers: int = 1,
    *,
    directory: Path | None = None,
    settings: Mapping[str, str] | None = None,
    with_relays: bool | None = None,
    secure: bool = False,
) -> Iterator[Cluster]:
    """Run a cluster during the block, in ``directory`` or in a temporary directory.

    ``settings``: of every broker, as in its configuration file.
    ``with_relays``: whether ``partition`` and ``heal`` work; by default, if there is more than one
        broker. Relays cost throughput between brokers.
    ``secure``: as in ``local_cluster``.
    """
    owner = os.getpid()
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="raftlog-"))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
        running = local_cluster(
            directory,
            brokers=brokers,
            settings=settings,
            with_relays=brokers > 1 if with_relays is None else with_relays,
            secure=secure,
        )
        stack.callback(running.close)
        running.start()
        try:
            yield running
        finally:
            if os.getpid() != owner:  # a forked child leaves the block: the parent still uses it
                stack.pop_all()


# -- probes ----------------------------------------------------------------------------------------
#
# Probes of brokers from outside: free ports, responses, cluster membership, and waiting.


HOST: Final = "127.0.0.1"
POLL_INTERVAL_S: Final = 0.01
ANSWER_TIMEOUT_S: Final = 2.0
# Below the ports that systems assign to outgoing connections (from 32768 on Linux, 49152
# elsewhere): while a broker is down, no outgoing connection uses its port.
PORTS: Final = range(10_000, 32_000)
PORT_TRIES_MAX: Final = 1_000
PROGRESS_FACTOR: Final = 10
PROGRESS_CPU_TICKS: Final = 10  # 0.1 s of CPU; an idle broker needs it in 10 s or more
PORTS_RESERVED_MAX: Final = 200  # by one process


def wait_until(
    condition: Callable[[], bool],
    *,
    timeout_s: float = 10.0,
    what: str = "the condition",
    progress: Callable[[], object] = lambda: None,
) -> None:
    """Return once ``condition()`` is true. Raises ``TimeoutError`` with ``what`` after
    ``timeout_s`` seconds without a change of ``progress()``."""
    stall = Stall(timeout_s)
    while not condition():
        if stall.has_come(progress()):
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(POLL_INTERVAL_S)


class Stall:
    """A limit of progress: ``has_come`` is true once a value has not changed for ``limit_s``
    seconds, or after ``PROGRESS_FACTOR`` times ``limit_s`` in any case.

    So a busy machine, on which everything takes long, is not mistaken for a process that hangs.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began = self._since = time.monotonic()
        self._last: object = None

    def has_come(self, value: object) -> bool:
        now = time.monotonic()
        if value != self._last:
            self._last, self._since = value, now
        has_ended = now - self._began > PROGRESS_FACTOR * self._limit_s
        return has_ended or now - self._since > self._limit_s


def progress(pid: int | None, log: Path) -> tuple[int, int]:
    """Return a value that changes while a process works: its CPU time in units of
    ``PROGRESS_CPU_TICKS`` (0 without /proc), and the bytes of its log."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])  # utime, stime; see proc(5)
    except OSError:
        ticks = 0
    return ticks // PROGRESS_CPU_TICKS, log.stat().st_size if log.exists() else 0


_reserved: Final[deque[int]] = deque()  # file descriptors of UDP sockets


def free_ports(count: int, host: str = HOST) -> list[int]:
    """Return ``count`` different TCP ports on which no process listens now.

    Other processes that use this function do not get them until this process ends, or has found
    ``PORTS_RESERVED_MAX`` more: so a broker can be stopped and started again at its port. A UDP
    socket that is bound to the same number makes the reservation.
    """
    chance = random.Random()
    found: list[int] = []
    for _ in range(PORT_TRIES_MAX):
        if len(found) == count:
            return found
        port = chance.choice(PORTS)
        with (
            socket.socket(_family(host), socket.SOCK_DGRAM) as reservation,
            socket.socket(_family(host)) as probe,
        ):
            try:
                reservation.bind((host, port))
                probe.bind((host, port))
            except OSError:
                continue
            found.append(port)
            _reserved.append(reservation.detach())
        while len(_reserved) > PORTS_RESERVED_MAX:
            os.close(_reserved.popleft())
    raise BrokerUnavailableError(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")


def free_port(host: str = HOST) -> int:
    """Return a port on which no process listens now."""
    return free_ports(1, host)[0]


def check_free(address: Address, *, may_be_elsewhere: bool = False) -> None:
    """Raise if a process listens at ``address``: its responses would be attributed to the broker.

    ``may_be_elsewhere``: accept an address that does not belong to this network namespace.
    """
    with socket.socket(_family(address.host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # accept recently closed ports
        try:
            probe.bind(address)
        except OSError as error:
            if may_be_elsewhere and error.errno == errno.EADDRNOTAVAIL:
                return
            raise BrokerUnavailableError(
                f"cannot listen on {address}: {error.strerror}. Stop the process that uses the "
                "port, or select another port"
            ) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


Tls: TypeAlias = ssl.SSLContext | None  # None: the broker does not use TLS


def ask(
    address: Address, api: Api, message: Message, *, tls: Tls = None, secret: bytes = b""
) -> Message | None:
    """Send one request to the broker at ``address``. Returns its response; None if there is
    none.

    ``secret``: of the cluster, for a broker that requires authentication.
    """
    try:
        with ExitStack() as stack:
            connection = stack.enter_context(
                socket.create_connection(address, timeout=ANSWER_TIMEOUT_S)
            )
            if tls is not None:
                connection = stack.enter_context(
                    tls.wrap_socket(connection, server_hostname=address.host)
                )
            state = ClientConnectionState()
            if secret:
                asking = Asking(secret, os.urandom(NONCE_BYTES))
                hello = _exchange(connection, state, OPERATOR_HELLO, asking.hello())
                if not isinstance(hello, OperatorHelloResponse):
                    return None
                _exchange(connection, state, OPERATOR_PROVE, asking.check(hello))
            return _exchange(connection, state, api, message)
    except OSError:
        return None


def _exchange(
    connection: socket.socket, state: ClientConnectionState, api: Api, message: Message
) -> Message | None:
    """Send one request and return its response; None if there is none, or an error."""
    _, buffers = state.send(api, message)
    connection.sendall(b"".join(buffers))
    while True:
        count = connection.recv_into(state.get_buffer())
        if count == 0:
            return None
        events = state.received(count)
        if events:
            answer = getattr(events[0], "message", None)
            return None if isinstance(answer, RaftlogError) else answer


def answers(address: Address, *, tls: Tls = None) -> bool:
    """Return whether a raftlog broker at ``address`` responds to an ``api_versions`` request."""
    request = ApiVersionsRequest(client_id="raftlog.testing")
    return ask(address, API_VERSIONS, request, tls=tls) is not None


def members(address: Address, *, tls: Tls = None, secret: bytes = b"") -> set[int]:
    """Return the brokers of the cluster, in the view of the one at ``address``; empty without a
    controller."""
    answer = ask(address, METADATA, MetadataRequest(topics=[]), tls=tls, secret=secret)
    if not isinstance(answer, MetadataResponse) or answer.controller is None:
        return set()
    return {broker.id for broker in answer.brokers}


def describe_partition(
    address: Address, topic: str, partition: int, *, tls: Tls = None, secret: bytes = b""
) -> PartitionDescription | None:
    """Return the view of a partition of the broker at ``address``; None without a response."""
    request = DescribeTopicsRequest(topics=[topic])
    answer = ask(address, DESCRIBE_TOPICS, request, tls=tls, secret=secret)
    if not isinstance(answer, DescribeTopicsResponse):
        return None
    found = [part for part in answer.topics[0].partitions if part.info.partition == partition]
    return found[0] if found else None


# -- administrator ---------------------------------------------------------------------------------
#
# The administrator of a secured cluster: the first user, its credentials, and its profile.


ADMINISTRATOR: Final = "admin"
PASSWORD_BYTES: Final = 24  # of randomness
CREDENTIALS_FILE: Final = "admin.credentials"
PROFILE_FILE: Final = "admin.toml"


def private_file(path: Path, text: str) -> Path:
    """Create a file that only its owner can read, unless it exists. Returns its path."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written under another name first: a crash must not leave an incomplete secret.
        draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        made = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(made, "w", encoding="utf-8") as file:
            file.write(text)
        draft.rename(path)
    return path


def authentication_settings(credentials: Path) -> dict[str, str]:
    """Return the settings of brokers that require authentication.

    ``credentials``: file for the name and the password of the administrator; created if it does not
    exist.
    """
    text = f"{ADMINISTRATOR}:{secrets.token_urlsafe(PASSWORD_BYTES)}\n"
    return {
        "authentication.required": "true",
        "admin.credentials.file": str(private_file(credentials, text)),
    }


def write_profile(path: Path, files: Certificates, credentials: Path, bootstrap: str) -> Path:
    """Write the profile of the administrator, readable by its owner only.

    An existing profile keeps its other values: the password may have been rotated since.
    """
    name, _, password = credentials.read_text().strip().partition(":")
    values = {
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(files.ca),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": name,
        "sasl_password": password,
        **(profiles.load(str(path)) if path.exists() else {}),
        "bootstrap": bootstrap,
    }
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    private_file(draft, profiles.dump(values)).rename(path)
    return path


# -- failpoints ------------------------------------------------------------------------------------
#
# Control of a broker's failpoint file: set and reset failpoints.


@dataclass(frozen=True, slots=True)
class FailpointSwitch:
    """The failpoints of one broker. It reads a change at its next hit of any failpoint."""

    path: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment with which the broker has to be started."""
        return {VARIABLE: f"{FILE_MARK}{self.path}"}

    def arm(self, rules: Iterable[str]) -> None:
        """Set these rules, and no others. Atomic: a reader sees all or none."""
        draft = self.path.with_name(self.path.name + ".draft")
        draft.write_text("".join(f"{rule}\n" for rule in rules), encoding="utf-8")
        os.replace(draft, self.path)

    def disarm(self) -> None:
        self.arm(())

    @property
    def hits(self) -> list[Hit]:
        """Return the hits so far, in all of the broker's processes."""
        return read_hits(self.path)

    def forget_hits(self) -> None:
        """Clear ``hits``."""
        hits_path(self.path).unlink(missing_ok=True)
