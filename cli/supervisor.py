"""Keeps the brokers of ``raftlog up``, and ``cluster.json``, which says what runs where.

One supervisor has a directory at a time: it holds ``up.lock``. Another process asks it to start a
broker by leaving a file ``start-ID``; so every broker is a child of the supervisor, which alone
signals it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from raftlog.config import Address, parse_address
from raftlog.disk import Lock, OsDisk
from raftlog.errors import DataDirectoryError, RefusedError
from raftlog.testing.cluster import BrokerProcess, Cluster, answers, local_cluster, wait_until

CLUSTER_FILE: Final = "cluster.json"
CLUSTER_FILE_BYTES_MAX: Final = 1 << 20
LOCK_FILE: Final = "up.lock"
POLL_INTERVAL_S: Final = 0.05
RESTART_DELAY_S: Final = 1.0  # so that a broker that cannot run does not spin
START_TIMEOUT_S: Final = 30.0

Note = Callable[[str], None]


def recorded_addresses(directory: Path) -> dict[int, Address]:
    """Broker id -> address, as the last run in ``directory`` left them."""
    path = directory / CLUSTER_FILE
    if not path.exists():
        return {}
    try:
        brokers = json.loads(path.read_bytes())["brokers"]
        return {int(entry["id"]): parse_address(entry["address"]) for entry in brokers}
    except (ValueError, KeyError, TypeError) as error:
        raise DataDirectoryError(f"{path} cannot be read ({error!r}): remove it") from error


class Supervisor:
    """The brokers of one directory, from ``start`` to ``stop``."""

    def __init__(self, directory: Path, *, brokers: int, port: int, restart: bool, note: Note):
        self.cluster: Cluster = local_cluster(directory, brokers=brokers, port=port)
        self._directory = directory.resolve()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._disk = OsDisk()
        self._lock = self._take_lock()
        self._restart = restart
        self._note = note
        self._up: dict[int, int] = {}  # broker id -> the process id that cluster.json names
        self._restart_at: dict[int, float] = {}

    def _take_lock(self) -> Lock:
        try:
            return self._disk.lock(str(self._directory / LOCK_FILE))
        except BlockingIOError as error:
            raise DataDirectoryError(
                f"another `raftlog up` runs in {self._directory}: stop it, "
                "or use another --data-dir"
            ) from error

    def start(self) -> None:
        """Start every broker; return when all answer."""
        try:
            self.cluster.start()
        except BaseException:
            self.stop()
            raise
        self._record()

    def run(self, stopping: threading.Event) -> None:
        """Watch the brokers and the directory until ``stopping`` is set."""
        while not stopping.wait(POLL_INTERVAL_S):
            for broker in self.cluster.brokers:
                self._look_at(broker)
            self._record()

    def stop(self) -> None:
        """Stop every broker and let go of the directory."""
        self.cluster.stop()
        self._record()
        self._lock.release()

    def describe(self) -> dict[str, Any]:
        """What ``cluster.json`` holds. The pid of a broker that is down is null."""
        return {
            "bootstrap": self.cluster.bootstrap,
            "brokers": [
                {
                    "id": broker.id,
                    "pid": broker.pid,
                    "address": str(broker.address),
                    "data_dir": str(broker.data_dir),
                }
                for broker in self.cluster.brokers
            ],
        }

    def _look_at(self, broker: BrokerProcess) -> None:
        request = self._directory / f"start-{broker.id}"
        wanted = request.exists()
        if broker.running:
            request.unlink(missing_ok=True)
            return
        if broker.id in self._up:
            self._restart_at[broker.id] = time.monotonic() + RESTART_DELAY_S
            self._note(f"broker {broker.id} has ended: {broker.last_words()}")
        due = self._restart and time.monotonic() >= self._restart_at.get(broker.id, 0.0)
        if wanted or due:
            broker.spawn()
            request.unlink(missing_ok=True)
            self._restart_at[broker.id] = time.monotonic() + RESTART_DELAY_S
            self._note(f"broker {broker.id} starts again as process {broker.pid}")

    def _record(self) -> None:
        up = {broker.id: broker.pid for broker in self.cluster.brokers if broker.pid is not None}
        path = self._directory / CLUSTER_FILE
        if up != self._up or not path.exists():
            self._up = up
            text = json.dumps(self.describe(), indent=2) + "\n"
            self._disk.write_atomic(str(path), text.encode())


def request_start(directory: Path, broker_id: int) -> Address:
    """Ask the supervisor of ``directory`` to start a broker; its address once it answers there."""
    addresses = recorded_addresses(directory)
    if broker_id not in addresses:
        known = ", ".join(map(str, addresses)) or "none"
        raise RefusedError(f"{directory} has no broker {broker_id}; it has: {known}")
    _need_supervisor(directory)
    request = directory / f"start-{broker_id}"
    request.touch()
    address = addresses[broker_id]
    try:
        wait_until(
            lambda: not request.exists() and answers(address),
            timeout_s=START_TIMEOUT_S,
            what=f"broker {broker_id} at {address} (see {directory / f'broker-{broker_id}.log'})",
        )
    finally:
        request.unlink(missing_ok=True)
    return address


def _need_supervisor(directory: Path) -> None:
    try:
        OsDisk().lock(str(directory / LOCK_FILE)).release()
    except BlockingIOError:
        return  # it is held, as it should be
    raise RefusedError(
        f"no `raftlog up` runs in {directory}: run `raftlog up --data-dir {directory}`, "
        "which starts all of its brokers"
    )
