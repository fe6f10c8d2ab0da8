"""Recovery of a broker after a disk fault: start, log output, and replacement of the disk.

The recovery follows the operators' manual. A broker that refuses to start, or that its peers
reject, gets an empty disk, and the peers restore its data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from raftlog.config.address import Address
from raftlog.errors import BrokerUnavailableError
from raftlog.testing.probes import POLL_INTERVAL_S
from raftlog_jepsen.control import files
from raftlog_jepsen.nemesis.base import Expectation
from raftlog_jepsen.plan import Shape
from raftlog_jepsen.status import ClusterStatus

LINES_MAX: Final = 12  # log lines of a broker in the history
LINE_CHARS_MAX: Final = 400
REFUSED_BY_PEERS: Final = "cannot work together"
REPORTING: Final = (
    "damage",
    "corrupt",
    "quarantined",
    "torn",
    "above the durable end",
    "rebuilt",
    "does not fit",
    "missing",
    "may lack",
    "belongs to",
    REFUSED_BY_PEERS,
)


class Process(Protocol):
    @property
    def log_path(self) -> Path: ...

    @property
    def running(self) -> bool: ...

    def stop(self) -> None: ...


class HostLike(Protocol):
    """Interface of one broker's host."""

    @property
    def process(self) -> Process: ...

    @property
    def data_dir(self) -> Path: ...

    @property
    def address(self) -> Address: ...


class Startable(Protocol):
    """A cluster whose brokers can be started and killed."""

    def kill(self, broker_ids: Collection[int]) -> None: ...

    def start_broker(self, broker_id: int) -> float: ...

    def expect_exit(self, broker_ids: Collection[int]) -> None: ...


class Cluster(Startable, Protocol):
    """Interface of the cluster."""

    @property
    def shape(self) -> Shape: ...

    @property
    def directory(self) -> Path: ...

    @property
    def hosts(self) -> Mapping[int, HostLike]: ...

    def up(self) -> set[int]: ...

    def status(self) -> ClusterStatus: ...


class Losses(Protocol):
    """Interface of the fault budget."""

    def may_lose(self, targets: Collection[int], *, recoverable: bool = False) -> str: ...

    def may_stop(self, targets: Collection[int]) -> Expectation: ...

    def lost(self, targets: Collection[int]) -> None: ...

    def returned(self, targets: Collection[int]) -> None: ...


class Words:
    """Log output of a broker since this object was created."""

    def __init__(self, log_path: Path) -> None:
        self._path = log_path
        self._at = log_path.stat().st_size if log_path.exists() else 0

    def text(self) -> str:
        if not self._path.exists():
            return ""
        with self._path.open("rb") as log:
            log.seek(self._at)
            return log.read().decode(errors="replace")

    def lines(self, words: Collection[str] = REPORTING) -> list[str]:
        """Return the first ``LINES_MAX`` different lines that contain one of ``words``."""
        found = dict.fromkeys(
            line[:LINE_CHARS_MAX]
            for line in self.text().splitlines()
            if any(word in line for word in words)
        )
        return list(found)[:LINES_MAX]


@dataclass(frozen=True, slots=True)
class Start:
    """Result of a start. ``seconds``: until the broker was ready or the start failed. ``said``: its
    final log output if it did not start."""

    started: bool
    seconds: float
    said: str = ""

    @property
    def is_refusal(self) -> bool:
        """Whether the broker itself reported why it does not start."""
        return not self.started and "raftlog broker " in self.said

    def to_history(self) -> dict[str, Any]:
        """Return the result for the history."""
        if self.started:
            return {"started_after_s": round(self.seconds, 2)}
        return {"refused": self.said[:LINE_CHARS_MAX], "in_a_sentence": self.is_refusal}


def try_start(cluster: Startable, broker_id: int) -> Start:
    """Start a broker that may refuse to start. Kills it if it is not ready in time."""
    cluster.expect_exit([broker_id])
    began = time.monotonic()
    try:
        return Start(True, cluster.start_broker(broker_id))
    except BrokerUnavailableError as error:
        cluster.kill([broker_id])
        return Start(False, time.monotonic() - began, str(error))


def replace_disk(cluster: Cluster, ledger: Losses, broker_id: int) -> dict[str, Any]:
    """Start a broker with an empty disk, as the manual describes, if the fault budget allows it.

    Returns the actions for the history. ``disk`` is "kept" if the fault budget does not allow it.
    The broker is then down.
    """
    cluster.kill([broker_id])
    why = ledger.may_lose((broker_id,))
    if why:
        return {"disk": "kept", "why": why}
    ledger.lost((broker_id,))
    count = files.empty(cluster.hosts[broker_id].data_dir)
    started = try_start(cluster, broker_id)
    ledger.returned((broker_id,))
    return {"disk": f"replaced by an empty one; it had {count} files", **started.to_history()}


def is_back(cluster: Cluster, broker_id: int) -> bool:
    """Return whether a broker is in the ISR of each partition of which it has a replica."""
    status = cluster.status()
    return bool(status) and all(
        broker_id in part.isr for part in status.values() if broker_id in part.replicas
    )


def poll(
    condition: Callable[[], bool], timeout_s: float, *, interval_s: float = POLL_INTERVAL_S
) -> bool:
    """Return whether ``condition()`` became true within ``timeout_s``. Checks at least once."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval_s)
    return True
