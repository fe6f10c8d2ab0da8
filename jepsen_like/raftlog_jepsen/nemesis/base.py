"""Interface of a nemesis: inject a fault, report the observed effect, and heal.

Faults are data, drawn by pure functions from the run's seed (``schedule``). A nemesis executes them
in a separate thread of the harness. It must not block for the duration of a fault.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias

from raftlog.config.address import Address
from raftlog.errors import BrokerUnavailableError
from raftlog.testing.cluster import POLL_INTERVAL_S
from raftlog_jepsen.control import disks
from raftlog_jepsen.plan import Shape
from raftlog_jepsen.status import ClusterStatus, PartitionStatus

Expectation: TypeAlias = Literal["available", "outage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """One fault.

    ``hold_s``: seconds from its start to its end. ``targets``: broker ids; empty if the nemesis
    selects them at the start of the fault by ``args`` (such as the leader of a partition).
    ``lossy``: the fault removes durable data, so the fault budget must allow it.
    ``expects``: whether writes must continue if this is the only fault.
    """

    kind: str
    targets: tuple[int, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    hold_s: float = 0.0
    lossy: bool = False
    expects: Expectation = "available"


@dataclass(frozen=True, slots=True)
class Effect:
    """Observed effect. ``injected``: whether the fault is active. If not, ``seen`` contains the
    reason."""

    injected: bool
    seen: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[int, ...] = ()  # affected brokers, if the plan does not name them


def not_injected(why: str) -> Effect:
    return Effect(False, {"why": why})


class Nemesis(Protocol):
    """Kinds of fault with the same requirements, and their implementation."""

    @property
    def kinds(self) -> Mapping[str, str]:
        """Descriptions of the kinds, by name."""
        ...

    def why_not(self, kind: str) -> str:
        """Return why a kind cannot be injected on this machine and cluster; empty if it can."""
        ...

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        """Draw a fault of this kind. Pure: depends on the arguments only."""
        ...

    def begin(self, fault: FaultPlan) -> Effect:
        """Inject the fault. Exceptions other than ``OSError`` and ``RaftlogError`` are bugs of the
        nemesis."""
        ...

    def end(self, fault: FaultPlan) -> Effect:
        """Undo the effects of ``begin`` of the same fault, and restart the brokers that it
        stopped."""
        ...

    def heal(self) -> None:
        """Undo all faults, also after errors. Can be called at any time, and repeatedly."""
        ...


class OwnKinds:
    """Base of a nemesis with the kinds of fault in ``kinds``."""

    kinds: ClassVar[Mapping[str, str]] = {}

    def why_not(self, kind: str) -> str:
        """See ``Nemesis.why_not``."""
        if kind not in self.kinds:
            return f"{kind} is not a kind of this nemesis"
        return self._why_not(kind)

    def _why_not(self, _kind: str) -> str:
        """Return why the kind cannot be injected on this machine and cluster; empty if it can."""
        return ""


# -- fault budget ----------------------------------------------------------------------------------
#
# Fault budget: faults that the guarantee under test still allows (F0).
#
# The guarantee "survives the loss of n-1 replicas" means that an acknowledged record is on every
# disk of the ISR at the time of its acknowledgement. One disk of that ISR is therefore sufficient,
# and n-1 of n disks can be lost at once if all n were in the ISR. A replica outside the ISR counts
# as failed, because it may lack records that were acknowledged without it. A replica that lost its
# disk counts as failed until it is in the ISR again *and* reports that it has all records that the
# leader had: the ISR that other brokers report may be older than the loss. The remaining replicas
# must be running: a copy on a stopped broker may be the only one, and the broker might not restart.
#
# The budget also counts the voters of each partition and of the cluster. A voter that lost its disk
# could vote twice in one term, so a majority of the voters must keep their disks. If no majority
# does, the cluster waits for its operator (``raftlog cluster recover``), who selects the survivor
# to continue with. This loses no records if the survivor, in the newest known state, is in the ISR
# of every partition. A caller that acts as the operator sets ``recoverable``.
#
# The budget does not allow a loss if the state is uncertain: a leader does not respond, brokers
# report different ISRs, or a replica lags. The decision is valid only at the time of the request,
# so request it immediately before the fault.


# Followers lag slightly under load, and the election of a new leader takes some seconds.
PATIENCE_S: Final = 10.0
POLL_S: Final = 0.1


class Observed(Protocol):
    """Interface of the cluster."""

    @property
    def shape(self) -> Shape: ...

    def up(self) -> set[int]: ...

    def status(self) -> ClusterStatus: ...


class Refusal(NamedTuple):
    """Reason for a refusal. ``may_pass``: it may end soon with the current replicas and disks."""

    why: str
    may_pass: bool = False


class FaultBudget:
    """Counts lost disks. Thread-safe."""

    def __init__(
        self,
        cluster: Observed,
        *,
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._patience_s = patience_s
        self._sleep = sleep
        self._clock = clock
        self._lock = threading.Lock()
        self._lost: set[int] = set()
        # brokers of ``_lost`` with new disks, which receive their copies
        self._returned: set[int] = set()

    # -- bookkeeping

    def lost(self, targets: Collection[int]) -> None:
        """Record that the disks of these brokers are lost, or contain less than before."""
        with self._lock:
            self._lost |= set(targets)
            self._returned -= set(targets)

    def returned(self, targets: Collection[int]) -> None:
        """Record that these brokers have disks again. They count as failed until the cluster
        reports complete copies."""
        with self._lock:
            self._returned |= self._lost & set(targets)

    @property
    def failed(self) -> frozenset[int]:
        """Brokers that lost their disks and are not complete again, as of the last check."""
        with self._lock:
            return frozenset(self._lost)

    def _update(self, status: ClusterStatus) -> frozenset[int]:
        """Remove the brokers that are complete again, and return the others."""
        with self._lock:
            whole = {
                broker for broker in self._returned
                if status and all(_has_all(broker, part) for part in status.values())
            }  # fmt: skip
            self._returned -= whole
            self._lost -= whole
            return frozenset(self._lost)

    # -- decisions

    def may_lose(self, targets: Collection[int], *, recoverable: bool = False) -> str:
        """Return why the disks of ``targets`` must not be lost now, all at once; empty if they
        can be.

        ``recoverable``: the caller recovers the cluster if too few voters remain. Waits up to
        ``patience_s`` for leaders, and for replicas to catch up. ``targets`` can already be down,
        so that the state does not change after the decision. Disks that are restored unchanged do
        not count as lost.
        """
        deadline = self._clock() + self._patience_s
        while True:
            refusal = self._judge(frozenset(targets), recoverable=recoverable)
            if refusal is None or not refusal.may_pass or self._clock() >= deadline:
                return "" if refusal is None else refusal.why
            self._sleep(POLL_S)

    def _judge(self, targets: frozenset[int], *, recoverable: bool) -> Refusal | None:
        status = self._cluster.status()
        failed = self._update(status)
        return why_not_lose(
            targets,
            self._cluster.shape.broker_ids,
            frozenset(self._cluster.up()),
            failed,
            status,
            recoverable=recoverable,
        )

    def may_stop(self, targets: Collection[int]) -> Expectation:
        """Return whether writes must continue with these brokers down, in addition to those that
        are already down.

        Writes may pause until new leaders are elected. Ignores network partitions.
        """
        up = frozenset(self._cluster.up())
        return availability(up - frozenset(targets), self._cluster.shape, self._cluster.status())


def why_not_lose(
    targets: frozenset[int],
    brokers: Collection[int],
    up: frozenset[int],
    failed: frozenset[int],
    status: ClusterStatus,
    *,
    recoverable: bool,
) -> Refusal | None:
    """Return the decision of ``may_lose``; None if the loss is allowed. Pure."""
    unknown = targets - set(brokers)
    if unknown:
        return Refusal(f"unknown broker {_ids(unknown)}")
    if not targets:
        return None
    if not status:
        return Refusal("no broker reports any partition", may_pass=True)
    left = frozenset(brokers) - targets - failed
    if not recoverable and 2 * len(left) <= len(brokers):
        return Refusal(f"the cluster's voters would be {_ids(left)} of {len(brokers)}: no majority")
    for part in status.values():
        refusal = _why_not(part, targets, up, failed, recoverable=recoverable)
        if refusal is not None:
            return Refusal(f"{part.name}: {refusal.why}", refusal.may_pass)
    return None


def _why_not(
    part: PartitionStatus,
    targets: frozenset[int],
    up: frozenset[int],
    failed: frozenset[int],
    *,
    recoverable: bool,
) -> Refusal | None:
    if not targets & part.voters:
        return None  # the targets have no replica and no vote of the partition
    left = part.voters - targets - failed
    if not recoverable and 2 * len(left) <= len(part.voters):
        return Refusal(f"its voters would be {_ids(left)} of {len(part.voters)}: no majority")
    keepers = part.isr - targets - failed
    if not keepers:
        return Refusal(f"no in-sync replica would be left of {_ids(part.isr)}")
    if keepers - up:
        return Refusal(_not_enough(keepers - up, "is down"))
    if part.leader is None:
        return Refusal("it has no leader", may_pass=True)
    if part.log_end_offset < 0:
        return Refusal(f"its leader, {part.leader}, does not respond", may_pass=True)
    if not targets & frozenset(part.replicas):
        return None  # only votes are lost
    if keepers - part.agreed:
        return Refusal(_not_enough(keepers - part.agreed, "reports a different ISR"), may_pass=True)
    if keepers - part.caught_up:
        return Refusal(_not_enough(keepers - part.caught_up, "is lagging"), may_pass=True)
    return None


def _not_enough(wrong: frozenset[int], problem: str) -> str:
    return f"required in-sync replica {_ids(wrong)} {problem}"


def _has_all(broker: int, part: PartitionStatus) -> bool:
    """Return whether a broker that lost its disk has its complete copy of a partition again."""
    if broker in part.replicas:
        return broker in part.isr & part.caught_up & part.agreed
    return broker not in part.witnesses or broker in part.agreed


def availability(up: frozenset[int], shape: Shape, status: ClusterStatus) -> Expectation:
    """Return whether writes continue if only these brokers are up. Pure.

    Requires a majority of the brokers, and for every partition a majority of its voters and
    ``min_isr`` in-sync replicas. Uses the shape for topics that ``status`` does not contain.
    """
    if 2 * len(up) <= shape.brokers:
        return "outage"
    for part in status.values():
        if 2 * len(part.voters & up) <= len(part.voters) or len(part.isr & up) < part.min_isr:
            return "outage"
    down = shape.brokers - len(up)
    known = {name.topic for name in status}
    for topic in shape.topics:
        if topic.name not in known and topic.replication_factor - down < topic.min_isr:
            return "outage"
    return "available"


def _ids(brokers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(brokers))) or "none"


# -- aftermath -------------------------------------------------------------------------------------
#
# Recovery of a broker after a disk fault: start, log output, and replacement of the disk.
#
# The recovery follows the operators' manual. A broker that refuses to start, or that its peers
# reject, gets an empty disk, and the peers restore its data.


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
    count = disks.empty(cluster.hosts[broker_id].data_dir)
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
