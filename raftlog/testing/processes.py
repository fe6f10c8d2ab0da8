"""One broker as a process of this machine: start, wait, kill, pause, stop.

Signals go only to processes that were started here and not waited for, so no other process can be
affected. The process leads a separate process group, and signals go to the complete group: a broker
may run under another command, such as one that enters a namespace. Brokers end when their parent
process ends, for any reason: a pipe to it is their standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from raftlog.config.address import Address
from raftlog.disk import FILE_MODE
from raftlog.errors import BrokerUnavailableError
from raftlog.testing import fork_server
from raftlog.testing.fork_server import ForkedProcess
from raftlog.testing.probes import POLL_INTERVAL_S, Stall, answers, check_free, progress
from raftlog.tls import client_context

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
        environment = {**os.environ, **self.environment}
        may_fork = self.can_fork and not self.prefix and self.source is None
        if may_fork and fork_server.can_fork(environment):
            return fork_server.fork(arguments, environment, log)
        return subprocess.Popen(
            [*self.prefix, *COMMAND, *arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={
                **os.environ,
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
        settings = {
            **self.settings,
            "id": str(self.id),
            "listen": str(self.address),
            "data.dir": str(self.data_dir),
        }
        # A JSON string is a valid TOML basic string.
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())

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
