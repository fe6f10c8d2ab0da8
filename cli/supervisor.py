"""Keeps the brokers of ``raftlog up``, and ``cluster.json``, which says what runs where.

One supervisor has a directory at a time: it holds ``up.lock``. Another process asks it to start a
broker by leaving a file ``start-ID``; so every broker is a child of the supervisor, which alone
signals it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from raftlog.cli import cluster_file
from raftlog.config import Address
from raftlog.disk import Lock, OsDisk
from raftlog.errors import BrokerUnavailableError, DataDirectoryError, RefusedError
from raftlog.testing import BrokerProcess, Cluster, wait_until
from raftlog.testing.cluster import local_cluster
from raftlog.testing.probes import answers, check_free

LOCK_FILE: Final = "up.lock"
POLL_INTERVAL_S: Final = 0.05
RESTART_DELAY_S: Final = 1.0  # so that a broker that cannot run does not spin
START_TIMEOUT_S: Final = 30.0

Note = Callable[[str], None]


class Supervisor:
    """The brokers of one directory, from ``start`` to ``stop``."""

    def __init__(
        self, directory: Path, *, addresses: Mapping[int, Address], restart: bool, note: Note
    ) -> None:
        self._directory = directory.resolve()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = self._take_lock()
        self.cluster: Cluster = local_cluster(directory, addresses=addresses)
        self._restart = restart
        self._note = note
        self._up: dict[int, int] | None = None  # broker id -> its process, as the file has it
        self._restart_at: dict[int, float] = {}
        self._is_new = not any(
            (broker.data_dir / "identity").exists() for broker in self.cluster.brokers
        )

    def _take_lock(self) -> Lock:
        try:
            return OsDisk().lock(str(self._directory / LOCK_FILE))
        except BlockingIOError as error:
            raise DataDirectoryError(
                f"another `raftlog up` runs in {self._directory}: stop it, "
                "or use another --data-dir"
            ) from error

    def start(self) -> None:
        """Start every broker; return when they answer and have found each other.

        A minority that does not come up is noted, and stays down until it is asked for. Raises
        ``BrokerUnavailableError`` when more do not, and in a new cluster, which needs all of its
        brokers to be founded, when any does not.
        """
        try:
            for broker in self.cluster.brokers:
                check_free(broker.address)
            self._record()  # whatever happens from here on, the directory says what it is
            for broker in self.cluster.brokers:
                broker.spawn()
            self._await_ready()
            self.cluster.wait_members()
        except BaseException:
            self.stop()
            raise
        self._record()

    def _await_ready(self) -> None:
        failed: list[BrokerUnavailableError] = []
        for broker in self.cluster.brokers:
            try:
                broker.wait_ready()
            except BrokerUnavailableError as error:
                failed.append(error)
                if self._is_new or 2 * len(failed) >= len(self.cluster.brokers):
                    raise
                self._note(str(error))
                broker.kill()

    def run(self, stopping: threading.Event) -> None:
        """Watch the brokers and the directory until ``stopping`` is set."""
        while not stopping.wait(POLL_INTERVAL_S):
            for broker in self.cluster.brokers:
                self._look_at(broker)
            self._record()

    def stop(self) -> None:
        """Stop every broker and let go of the directory."""
        self.cluster.stop()
        if self._up is not None:
            self._record()
        self._lock.release()

    def _look_at(self, broker: BrokerProcess) -> None:
        request = self._directory / f"start-{broker.id}"
        wanted = request.exists()
        if broker.running:
            request.unlink(missing_ok=True)
            return
        if self._up and broker.id in self._up:
            self._restart_at[broker.id] = time.monotonic() + RESTART_DELAY_S
            self._note(f"broker {broker.id} has ended: {broker.last_words()}")
        due = self._restart and time.monotonic() >= self._restart_at.get(broker.id, 0.0)
        if wanted or due:
            request.unlink(missing_ok=True)
            self._restart_at[broker.id] = time.monotonic() + RESTART_DELAY_S
            self._spawn(broker)

    def _spawn(self, broker: BrokerProcess) -> None:
        try:
            broker.spawn()
        except BrokerUnavailableError as error:  # its port was taken meanwhile: the others go on
            self._note(f"broker {broker.id} cannot start: {error}")
        else:
            self._note(f"broker {broker.id} starts again as process {broker.pid}")

    def _record(self) -> None:
        up = {broker.id: broker.pid for broker in self.cluster.brokers if broker.pid is not None}
        if up != self._up or not (self._directory / cluster_file.CLUSTER_FILE).exists():
            self._up = up
            cluster_file.write(self._directory, self.cluster)


def request_start(directory: Path, broker_id: int) -> Address:
    """Ask the supervisor of ``directory`` to start a broker; its address once it answers there."""
    addresses = cluster_file.recorded_addresses(directory)
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
