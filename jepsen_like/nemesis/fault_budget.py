"""What may still be taken away without breaking the promise under test (F0).

"Survives n-1", stated honestly: an acknowledged record is on every disk of the ISR at that moment.
So one disk of that ISR is enough, and n-1 of n may go at once, if all n were in the ISR. A replica
outside the ISR counts as failed already: it may lack what was acknowledged without it. A replica
whose disk was taken counts as failed until it is in the ISR again *and* has, by its own word, all
that the leader had: the ISR that others tell of may be from before the loss. What is left has to
be alive: a copy on a broker that is down might be the only one, and might not come back.

Besides records there are the voters of each partition, and those of the cluster, who remember who
may lead. A vote that was lost with a disk is a vote that could be given twice; so a majority of
them has to be left. When it is not, the cluster waits for its operator (``raftlog cluster
recover``), who names the survivor to go on with: nothing is lost by that as long as the survivor,
by the newest word, is in the ISR of everything. A caller that will play the operator says so with
``recoverable``.

The ledger refuses in doubt: when a leader does not answer, when brokers disagree about the ISR,
when a replica seems to lag. What it allows is right for the moment it was asked: ask right before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, Protocol

from raftlog.jepsen_like.nemesis.base import Expectation
from raftlog.jepsen_like.plan import Shape
from raftlog.jepsen_like.status import ClusterStatus, PartitionStatus

# Followers are a moment behind while records are coming; and it takes some seconds until another
# leads after a leader was killed.
PATIENCE_S: Final = 10.0
LOOK_S: Final = 0.1


class Observed(Protocol):
    """What is asked of the cluster."""

    @property
    def shape(self) -> Shape: ...

    def up(self) -> set[int]: ...

    def status(self) -> ClusterStatus: ...


class Refusal(NamedTuple):
    """``may_pass``: with the replicas and disks that are there now, a moment may be enough."""

    why: str
    may_pass: bool = False


class FaultBudget:
    """Keeps count of lost disks. Thread-safe."""

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
        self._returned: set[int] = set()  # of the lost: they have disks again, and fill them

    # -- bookkeeping

    def lost(self, targets: Collection[int]) -> None:
        """The disks of these brokers are gone, or hold less than they did."""
        with self._lock:
            self._lost |= set(targets)
            self._returned -= set(targets)

    def returned(self, targets: Collection[int]) -> None:
        """These have disks again; they are whole once the cluster says so."""
        with self._lock:
            self._returned |= self._lost & set(targets)

    @property
    def failed(self) -> frozenset[int]:
        """Brokers that lost their disks and are not whole again, as far as was looked."""
        with self._lock:
            return frozenset(self._lost)

    def _settle(self, status: ClusterStatus) -> frozenset[int]:
        """Strike out who is whole again; who is not."""
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
        """Why the disks of ``targets`` may not be taken now, all at once; empty if they may.

        ``recoverable``: the caller will have the cluster recovered where too few voters are left.
        Waits up to 10 s for a leader, and for replicas to catch up; right also when ``targets``
        are down already, so that nothing changes any more after it was asked. Not for disks that
        come back as they were.
        """
        deadline = self._clock() + self._patience_s
        while True:
            refusal = self._judge(frozenset(targets), recoverable=recoverable)
            if refusal is None or not refusal.may_pass or self._clock() >= deadline:
                return "" if refusal is None else refusal.why
            self._sleep(LOOK_S)

    def _judge(self, targets: frozenset[int], *, recoverable: bool) -> Refusal | None:
        status = self._cluster.status()
        failed = self._settle(status)
        return why_not_lose(
            targets,
            self._cluster.shape.broker_ids,
            frozenset(self._cluster.up()),
            failed,
            status,
            recoverable=recoverable,
        )

    def may_stop(self, targets: Collection[int]) -> Expectation:
        """Whether writes should go on with these down as well as what is down already.

        They may pause for a moment, while others take over. Netsplits are not looked at.
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
    """The decision of ``may_lose``; None if they may. Pure."""
    unknown = targets - set(brokers)
    if unknown:
        return Refusal(f"no broker {_ids(unknown)}")
    if not targets:
        return None
    if not status:
        return Refusal("no broker tells of any partition", may_pass=True)
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
        return None  # it has nothing there
    left = part.voters - targets - failed
    if not recoverable and 2 * len(left) <= len(part.voters):
        return Refusal(f"its voters would be {_ids(left)} of {len(part.voters)}: no majority")
    keepers = part.isr - targets - failed
    if not keepers:
        return Refusal(f"no in-sync replica would be left of {_ids(part.isr)}")
    if keepers - up:
        return Refusal(_not_enough(keepers - up, "down"))
    if part.leader is None:
        return Refusal("it has no leader", may_pass=True)
    if part.log_end_offset < 0:
        return Refusal(f"its leader, {part.leader}, does not answer", may_pass=True)
    if not targets & frozenset(part.replicas):
        return None  # only votes are lost
    if keepers - part.agreed:
        return Refusal(_not_enough(keepers - part.agreed, "not sure of the ISR"), may_pass=True)
    if keepers - part.caught_up:
        return Refusal(_not_enough(keepers - part.caught_up, "behind its leader"), may_pass=True)
    return None


def _not_enough(wrong: frozenset[int], problem: str) -> str:
    return f"in-sync replica {_ids(wrong)}, which would have to be enough, is {problem}"


def _has_all(broker: int, part: PartitionStatus) -> bool:
    """Whether a broker that lost its disk has what it should have of a partition again."""
    if broker in part.replicas:
        return broker in part.isr & part.caught_up & part.agreed
    return broker not in part.witnesses or broker in part.agreed


def availability(up: frozenset[int], shape: Shape, status: ClusterStatus) -> Expectation:
    """Whether writes go on with only these brokers up. Pure.

    Every partition, and the cluster, has a majority of its voters; and as many members of the ISR
    as an acknowledgement needs. Of partitions that are not known, what the shape says has to do.
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
