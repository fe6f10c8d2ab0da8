"""What a broker does once its disk was harmed: whether it starts, what it says, the way back.

The way back is what the manual tells an operator: where a broker refuses to start, or the others
refuse to work with it, it gets an empty disk, and they bring everything back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from raftlog.config.address import Address
from raftlog.errors import BrokerUnavailableError
from raftlog.jepsen_like.control import files
from raftlog.jepsen_like.nemesis.base import Expectation
from raftlog.jepsen_like.plan import Shape
from raftlog.jepsen_like.status import ClusterStatus
from raftlog.testing.probes import POLL_INTERVAL_S

LINES_MAX: Final = 12  # of what a broker said: for the history
LINE_CHARS_MAX: Final = 400
REFUSED_BY_PEERS: Final = "cannot work together"
TELLING: Final = (
    "damage",
    "set aside",
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
    """What is asked of one broker's host."""

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
    """What is asked of the cluster."""

    @property
    def shape(self) -> Shape: ...

    @property
    def directory(self) -> Path: ...

    @property
    def hosts(self) -> Mapping[int, HostLike]: ...

    def up(self) -> set[int]: ...

    def status(self) -> ClusterStatus: ...


class Losses(Protocol):
    """What is asked of the ledger."""

    def may_lose(self, targets: Collection[int], *, recoverable: bool = False) -> str: ...

    def may_stop(self, targets: Collection[int]) -> Expectation: ...

    def lost(self, targets: Collection[int]) -> None: ...

    def returned(self, targets: Collection[int]) -> None: ...


class Words:
    """What a broker wrote into its log since this was made."""

    def __init__(self, log_path: Path) -> None:
        self._path = log_path
        self._at = log_path.stat().st_size if log_path.exists() else 0

    def text(self) -> str:
        if not self._path.exists():
            return ""
        with self._path.open("rb") as log:
            log.seek(self._at)
            return log.read().decode(errors="replace")

    def lines(self, words: Collection[str] = TELLING) -> list[str]:
        """Those that have one of ``words`` in them, each once; the first few."""
        found = dict.fromkeys(
            line[:LINE_CHARS_MAX]
            for line in self.text().splitlines()
            if any(word in line for word in words)
        )
        return list(found)[:LINES_MAX]


@dataclass(frozen=True, slots=True)
class Start:
    """Whether a broker started, and in how many seconds; what it said when it did not."""

    started: bool
    seconds: float
    said: str = ""

    @property
    def is_refusal(self) -> bool:
        """Whether the broker itself said, in a sentence, why it does not start."""
        return not self.started and "raftlog broker " in self.said

    def told(self) -> dict[str, Any]:
        """For the history."""
        if self.started:
            return {"started_after_s": round(self.seconds, 2)}
        return {"refused": self.said[:LINE_CHARS_MAX], "in_a_sentence": self.is_refusal}


def try_start(cluster: Startable, broker_id: int) -> Start:
    """Start a broker that may well refuse. Where it is not ready in time, it is killed."""
    cluster.expect_exit([broker_id])
    began = time.monotonic()
    try:
        return Start(True, cluster.start_broker(broker_id))
    except BrokerUnavailableError as error:
        cluster.kill([broker_id])
        return Start(False, time.monotonic() - began, str(error))


def replace_disk(cluster: Cluster, ledger: Losses, broker_id: int) -> dict[str, Any]:
    """Give a broker an empty disk and start it, if the ledger allows: what the manual says to do.

    What was done, for the history; ``disk`` is "kept" where the ledger refused: the broker is down
    then.
    """
    cluster.kill([broker_id])
    why = ledger.may_lose((broker_id,))
    if why:
        return {"disk": "kept", "why": why}
    ledger.lost((broker_id,))
    count = files.empty(cluster.hosts[broker_id].data_dir)
    started = try_start(cluster, broker_id)
    ledger.returned((broker_id,))
    return {"disk": f"replaced by an empty one; it had {count} files", **started.told()}


def is_back(cluster: Cluster, broker_id: int) -> bool:
    """Whether a broker is in every ISR that it may be in: the others have met it in this run."""
    status = cluster.status()
    return bool(status) and all(
        broker_id in part.isr for part in status.values() if broker_id in part.replicas
    )


def poll(
    condition: Callable[[], bool], timeout_s: float, *, interval_s: float = POLL_INTERVAL_S
) -> bool:
    """Whether ``condition()`` came true within a time; asked once at least."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval_s)
    return True
