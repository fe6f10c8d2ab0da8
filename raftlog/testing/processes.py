"""One broker as a process of this machine: start it, wait for it, kill it, pause it, stop it.

A process is only ever signalled by the id of one that was started here and has not been waited
for, so nothing else can be hit. Brokers end when their starter does, however that ends: they hold a
pipe to it as their standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import raftlog
from raftlog.config.address import Address
from raftlog.errors import BrokerUnavailableError
from raftlog.testing.probes import POLL_INTERVAL_S, answers, check_free

READY_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 20.0
LOG_TAIL_BYTES: Final = 2_000
BROKER_COMMAND: Final = (sys.executable, "-m", "raftlog", "broker")


@dataclass
class BrokerProcess:
    """One broker. It keeps its address and its data directory over any number of starts."""

    id: int
    address: Address
    data_dir: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _paused: bool = False
    _stopping: bool = False  # a second SIGTERM would have it end at once

    @property
    def pid(self) -> int | None:
        """The process id while the broker runs, paused or not; else None."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def running(self) -> bool:
        return self.pid is not None

    @property
    def paused(self) -> bool:
        """True between ``pause`` and ``resume``, while it runs."""
        return self._paused and self.running

    @property
    def log_path(self) -> Path:
        """Where what the broker says goes."""
        return self.data_dir.with_name(self.data_dir.name + ".log")

    def start(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start the process and return when it answers requests.

        One among others may still be on its way back into the cluster then; clients wait for that.
        """
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
        self.send_kill()
        self._reap()

    def send_kill(self) -> None:
        """SIGKILL, without waiting for the end; ``kill`` afterwards does that."""
        self._signal(signal.SIGKILL)

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, and SIGKILL if the process is still there after ``timeout_s``."""
        self.send_stop()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=timeout_s)
            self.kill()

    def send_stop(self) -> None:
        """SIGTERM, without waiting for the end; ``stop`` afterwards does that."""
        if not self._stopping:
            self._stopping = True
            self._signal(signal.SIGTERM)
        self.resume()  # a paused process gets no other signal

    def pause(self) -> None:
        """SIGSTOP: the process stays, with its connections, and does nothing."""
        self._signal(signal.SIGSTOP)
        self._paused = self.running

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)
        self._paused = False

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
        self._paused = self._stopping = False
        if self._process is not None:
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None
