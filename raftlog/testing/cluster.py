"""Brokers as processes of this machine: start, wait until they answer, kill, pause and stop.

For tests, ``raftlog demo`` and ``raftlog up``. A process is only ever signalled by the id of one
that was started here and has not been waited for, so nothing else can be hit. Brokers end when
their starter does, however that ends: they hold a pipe to it as their standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import raftlog
from raftlog.config.address import Address
from raftlog.errors import BrokerUnavailableError, RaftlogError
from raftlog.protocol.api import API_VERSIONS, METADATA, Api
from raftlog.protocol.connection import ClientConnectionState
from raftlog.protocol.handshake import ApiVersionsRequest
from raftlog.protocol.metadata import MetadataRequest, MetadataResponse
from raftlog.protocol.schema import Message
from raftlog.testing.proxy import Relay, Relays

READY_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 20.0
POLL_INTERVAL_S: Final = 0.01
ANSWER_TIMEOUT_S: Final = 2.0
HOST: Final = "127.0.0.1"
LOG_TAIL_BYTES: Final = 2_000
BROKER_COMMAND: Final = (sys.executable, "-m", "raftlog", "broker")


def wait_until(
    condition: Callable[[], bool], *, timeout_s: float = 10.0, what: str = "the condition"
) -> None:
    """Return once ``condition()`` is true; ``TimeoutError`` that says ``what`` did not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(POLL_INTERVAL_S)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def check_free(address: Address) -> None:
    """Raise if something listens at ``address``: its answers would be taken for our broker's."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what closed just now is free
        try:
            probe.bind(address)
        except OSError as error:
            raise BrokerUnavailableError(
                f"cannot listen on {address} ({error.strerror}): stop what does, or take another "
                "port"
            ) from error


def ask(address: Address, api: Api, message: Message) -> Message | None:
    """The answer of the broker at ``address`` to one request; None if there is none."""
    try:
        with socket.create_connection(address, timeout=ANSWER_TIMEOUT_S) as connection:
            state = ClientConnectionState()
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
    except OSError:
        return None


def answers(address: Address) -> bool:
    """True if a raftlog broker at ``address`` answers an ``api_versions`` request."""
    return ask(address, API_VERSIONS, ApiVersionsRequest(client_id="raftlog.testing")) is not None


def members(address: Address) -> set[int]:
    """The brokers that are in the cluster, as the one at ``address`` sees it."""
    answer = ask(address, METADATA, MetadataRequest(topics=[]))
    if not isinstance(answer, MetadataResponse) or answer.controller is None:
        return set()
    return {broker.id for broker in answer.brokers}


@dataclass
class BrokerProcess:
    """One broker. It keeps its address and its data directory over any number of starts."""

    id: int
    address: Address
    data_dir: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while the broker runs, paused or not; else None."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def running(self) -> bool:
        return self.pid is not None

    @property
    def log_path(self) -> Path:
        """Where what the broker says goes."""
        return self.data_dir.with_name(self.data_dir.name + ".log")

    def start(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start the process and return when it answers requests."""
        self.spawn()
        try:
            self.wait_ready(timeout_s=timeout_s)
        except BaseException:
            self.kill()
            raise

    def spawn(self) -> None:
        """Start the process; it recovers its data directory before it answers."""
        if self.running:
            raise ValueError(f"broker {self.id} runs already, as process {self.pid}")
        self._reap()
        check_free(self.address)
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        config_path = self.data_dir.with_name(self.data_dir.name + ".toml")
        config_path.write_text(self._config(), encoding="utf-8")
        source = str(Path(raftlog.__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*BROKER_COMMAND, "--stop-with-stdin", "--config", str(config_path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
                process_group=0,  # a terminal's Ctrl-C is for the starter, which then stops brokers
            )

    def wait_ready(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when the broker answers; raise with its last words if it ends."""
        deadline = time.monotonic() + timeout_s
        while not answers(self.address):
            status = self._process.poll() if self._process else None
            if status is not None:
                raise BrokerUnavailableError(
                    f"broker {self.id} ended with status {status}: {self.last_words()}"
                )
            if time.monotonic() > deadline:
                raise BrokerUnavailableError(
                    f"broker {self.id} does not answer at {self.address} after {timeout_s:g} s; "
                    f"see {self.log_path}"
                )
            time.sleep(POLL_INTERVAL_S)

    def kill(self) -> None:
        """SIGKILL: no warning, nothing flushed. Returns when the process is gone."""
        self._signal(signal.SIGKILL)
        self._reap()

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, and SIGKILL if the process is still there after ``timeout_s``."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a paused process gets no other signal
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=timeout_s)
            self.kill()

    def pause(self) -> None:
        """SIGSTOP: the process stays, with its connections, and does nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def last_words(self) -> str:
        """The end of what the broker wrote, for error messages."""
        if not self.log_path.exists():
            return "(it wrote nothing)"
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "(it wrote nothing)"

    def _config(self) -> str:
        settings = {
            **self.settings,
            "id": str(self.id),
            "listen": str(self.address),
            "data.dir": str(self.data_dir),
        }
        # JSON's strings are TOML's basic strings.
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)  # does nothing to a process that was waited for

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None


@dataclass
class Cluster:
    """Some brokers and how to reach them."""

    brokers: list[BrokerProcess]
    relays: Relays | None = None
    links: dict[tuple[int, int], Relay] = field(default_factory=dict)  # (who dials, whom)

    @property
    def bootstrap(self) -> str:
        return ",".join(str(broker.address) for broker in self.brokers)

    def broker(self, broker_id: int) -> BrokerProcess:
        """The broker with this id; ids start from 1."""
        return next(broker for broker in self.brokers if broker.id == broker_id)

    def start(self) -> None:
        """Start those that are down; return when all answer and are in the cluster."""
        starting = [broker for broker in self.brokers if not broker.running]
        for broker in starting:
            broker.spawn()
        for broker in starting:
            broker.wait_ready()
        if starting and len(self.brokers) > 1:
            self.wait_members()

    def wait_members(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when every running broker sees every running broker in the cluster."""
        running = {broker.id: broker for broker in self.brokers if broker.running}
        for broker in running.values():
            wait_until(
                lambda broker=broker: running.keys() <= members(broker.address),  # type: ignore[misc]
                timeout_s=timeout_s,
                what=f"broker {broker.id} sees {sorted(running)} (see {broker.log_path})",
            )

    def kill(self) -> None:
        for broker in self.brokers:
            broker.kill()
        if self.relays is not None:
            self.relays.close()
            self.relays = None

    def stop(self) -> None:
        for broker in self.brokers:
            broker.stop()

    def wipe(self, broker_id: int) -> None:
        """Remove a broker's data, as a new disk would; it has to be down."""
        broker = self.broker(broker_id)
        if broker.running:
            raise ValueError(f"broker {broker_id} runs: kill it first")
        shutil.rmtree(broker.data_dir, ignore_errors=True)

    def partition(self, sides: Iterable[Collection[int]]) -> None:
        """Cut every link between brokers of different sides; clients reach all brokers still."""
        side_of = {broker: number for number, side in enumerate(sides) for broker in side}
        self._cut(lambda dials, whom: side_of.get(dials) != side_of.get(whom))

    def isolate(self, broker_id: int) -> None:
        """Cut a broker from all others."""
        self._cut(lambda dials, whom: broker_id in (dials, whom))

    def cut(self, dials: int, whom: int) -> None:
        """Cut the links between two brokers; both still reach the others."""
        self._cut(lambda a, b: {a, b} == {dials, whom})

    def heal(self) -> None:
        """Let every broker reach every other again."""
        relays = self._need_relays()
        for relay in self.links.values():
            relays.do(relay.heal)

    def _cut(self, is_cut: Callable[[int, int], bool]) -> None:
        relays = self._need_relays()
        for (dials, whom), relay in self.links.items():
            if is_cut(dials, whom):
                relays.do(relay.cut)

    def _need_relays(self) -> Relays:
        if self.relays is None:
            raise ValueError("this cluster was made without links that can be cut")
        return self.relays


def local_cluster(
    directory: Path,
    *,
    brokers: int = 1,
    port: int = 0,
    settings: Mapping[str, str] | None = None,
    with_relays: bool = False,
) -> Cluster:
    """The cluster that lives in ``directory``, not started; ``port`` 0 takes free ones.

    ``with_relays``: brokers reach each other through relays, which can be cut.
    """
    directory = directory.resolve()
    addresses = {
        number: Address(HOST, port + number - 1 if port else free_port(HOST))
        for number in range(1, brokers + 1)
    }
    made = Cluster(
        [
            BrokerProcess(
                id=number,
                address=address,
                data_dir=directory / f"broker-{number}",
                settings=settings or {},
            )
            for number, address in addresses.items()
        ]
    )
    if brokers == 1:
        return made
    if with_relays:
        made.relays = Relays()
    secret_path = _secret_file(directory)
    for broker in made.brokers:
        voters = dict(addresses)
        for other in addresses:
            if made.relays is not None and other != broker.id:
                relay = made.relays.add(addresses[other])
                made.links[broker.id, other] = relay
                voters[other] = relay.address
        broker.settings = {
            **broker.settings,
            "voters": ",".join(f"{number}@{address}" for number, address in voters.items()),
            "cluster.secret.file": str(secret_path),
        }
    return made


def _secret_file(directory: Path) -> Path:
    """The file with the secret of the cluster that lives in ``directory``, made if need be."""
    path = directory / "cluster.secret"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    return path


@contextlib.contextmanager
def cluster(
    brokers: int = 1,
    *,
    directory: Path | None = None,
    settings: Mapping[str, str] | None = None,
    with_relays: bool | None = None,
) -> Iterator[Cluster]:
    """A cluster that runs while the block does, in ``directory`` or in one that is removed.

    ``with_relays``: whether ``partition`` and ``heal`` work; by default, if there is more than one
    broker.
    """
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raftlog-")))
        running = local_cluster(
            directory,
            brokers=brokers,
            settings=settings,
            with_relays=brokers > 1 if with_relays is None else with_relays,
        )
        stack.callback(running.kill)
        running.start()
        yield running
