"""The kind power (D1): brokers crash and their disks lose all data that was not synced, at once.

The effect is verified in two ways. On each disk, a file that was not synced must be missing
afterwards. The bytes that the file system has not written are counted before.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, Final, Protocol

from raftlog.errors import RaftlogError
from raftlog_jepsen.control.disks import MARK_ROOM, LoopDisk
from raftlog_jepsen.nemesis.base import Effect, Expectation, FaultPlan, OwnKinds, not_injected
from raftlog_jepsen.plan import Shape

HOLD_S: Final = (0.0, 5.0)
POWER_KINDS: Final[Mapping[str, str]] = {
    "power": "Kill brokers and discard all data that was not synced; restart them."
}
WHO: Final = ("all", "all", "one", "minority", "majority")
JOURNAL: Final = ("lost", "kept")
NO_DISKS: Final = "the brokers' disks are not on loop devices. Run as root on Linux"


class Process(Protocol):
    """Interface of a broker's process."""

    @property
    def running(self) -> bool: ...


class Host(Protocol):
    """One broker and its disk."""

    @property
    def process(self) -> Process: ...

    @property
    def disk(self) -> LoopDisk | None: ...


class Powered(Protocol):
    """Interface of the cluster."""

    @property
    def hosts(self) -> Mapping[int, Host]: ...

    def kill(self, broker_ids: Collection[int]) -> None: ...

    def start_broker(self, broker_id: int) -> float: ...


class Losses(Protocol):
    """Interface of the fault budget."""

    def lost(self, targets: Collection[int]) -> None: ...

    def returned(self, targets: Collection[int]) -> None: ...


class PowerNemesis(OwnKinds):
    """Injects power cuts at one broker, a minority, a majority, or all.

    ``args["journal"]``: effect on the file systems' journals, see ``LoopDisk.cut_power``.
    """

    kinds = POWER_KINDS

    def __init__(self, cluster: Powered, ledger: Losses) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._down: set[int] = set()  # brokers that ran when their power was cut
        self._lost: set[int] = set()  # brokers reported to the fault budget

    def _why_not(self, _kind: str) -> str:
        return NO_DISKS if not has_disks(self._cluster) else ""

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        who = random.choice(WHO)
        if is_lossy(shape):  # acknowledged data that is not synced is lost
            who = "minority"
        targets = draw_targets(random, shape, who)
        return FaultPlan(
            kind=kind,
            targets=targets,
            args={"who": who, "journal": random.choice(JOURNAL)},
            hold_s=random.uniform(*HOLD_S),
            lossy=is_lossy(shape),
            expects=expectation(shape, len(targets)),
        )

    def begin(self, fault: FaultPlan) -> Effect:
        disks = disks_of(self._cluster, fault.targets)
        marked = {target for target, disk in disks.items() if _mark(disk)}
        self._down |= {t for t in disks if self._cluster.hosts[t].process.running}
        began = time.monotonic()
        self._cluster.kill(fault.targets)
        if fault.lossy:
            self._lost |= disks.keys()
            self._ledger.lost(fault.targets)
        dirty = {t: _dirty_bytes(disk, is_marked=t in marked) for t, disk in disks.items()}
        for disk in disks.values():
            disk.cut_power(journal=fault.args["journal"])
        took_s = time.monotonic() - began
        kept = {target for target in marked if disks[target].marked()}
        seen: dict[str, Any] = {
            "unsynced_lost": sorted(marked - kept),
            "unsynced_kept": sorted(kept),
            "dirty_bytes": by_name(dirty),
            "took_s": round(took_s, 3),
        }
        if kept:
            return not_injected_but("another process synced the disks at that moment", seen)
        if not marked:
            return not_injected_but("the file that verifies the loss could not be written", seen)
        return Effect(True, seen)

    def end(self, fault: FaultPlan) -> Effect:
        """Start the brokers that ran before the fault. Reports the seconds until each was ready."""
        waiting = self._down.intersection(fault.targets)
        effect = start_again(self._cluster, waiting)
        self._down -= waiting
        if self._lost:
            self._ledger.returned(sorted(self._lost.intersection(fault.targets)))
            self._lost -= set(fault.targets)
        return effect

    def heal(self) -> None:
        """Start the brokers that are still down."""
        start_again(self._cluster, self._down)
        if self._lost:
            self._ledger.returned(sorted(self._lost))
        self._down, self._lost = set(), set()


# -- shared with other kinds of disk faults


def has_disks(cluster: Powered) -> bool:
    disks = [host.disk for host in cluster.hosts.values()]
    return bool(disks) and None not in disks


def disks_of(cluster: Powered, targets: Collection[int]) -> dict[int, LoopDisk]:
    """Return the disks of brokers. ``why_not`` has checked that they have disks."""
    found = {target: cluster.hosts[target].disk for target in targets}
    return {target: disk for target, disk in found.items() if disk is not None}


def is_lossy(shape: Shape) -> bool:
    """Return whether brokers may acknowledge data that is not synced."""
    return shape.flush_policy != "durable"


def draw_targets(random: Random, shape: Shape, who: str) -> tuple[int, ...]:
    """Draw targets.

    ``who``: one; minority (one broker or more, limited by the allowed losses of disks if ``shape``
    is lossy); majority (the smallest); all.
    """
    minority = max(1, min(shape.minority, shape.losses) if is_lossy(shape) else shape.minority)
    counts = {
        "one": 1,
        "minority": random.randint(1, minority),
        "majority": shape.brokers // 2 + 1,
        "all": shape.brokers,
    }
    return tuple(sorted(random.sample(shape.broker_ids, counts[who])))


def expectation(shape: Shape, down: int) -> Expectation:
    """Return whether writes continue with any ``down`` brokers down: a majority of brokers is up,
    and every partition has ``min_isr`` replicas."""
    enough = all(topic.replication_factor - down >= topic.min_isr for topic in shape.topics)
    return "available" if down <= shape.minority and enough else "outage"


def start_again(cluster: Powered, targets: Collection[int]) -> Effect:
    """Start those of these brokers that do not run, in parallel. Reports the seconds until each was
    ready.

    Does not start a broker whose disk cannot be mounted: its directory would be empty.
    """
    starting = sorted(t for t in targets if not cluster.hosts[t].process.running)
    if not starting:
        return Effect(True, {"answers_after_s": {}})

    def start(target: int) -> float | str:
        disk = cluster.hosts[target].disk
        try:
            if disk is not None:
                disk.mount()
            return round(cluster.start_broker(target), 3)
        except (OSError, RaftlogError) as error:  # the other brokers are started, too
            return f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(len(starting), thread_name_prefix="start") as threads:
        results = dict(zip(starting, threads.map(start, starting), strict=True))
    times = {target: result for target, result in results.items() if isinstance(result, float)}
    seen: dict[str, Any] = {"answers_after_s": by_name(times)}
    failed = {target: result for target, result in results.items() if target not in times}
    if failed:
        return not_injected_but(f"brokers did not start: {by_name(failed)}", seen)
    return Effect(True, seen)


def by_name(values: Mapping[int, Any]) -> dict[str, Any]:
    """Convert ids to text, because names in JSON are texts. Sorted by id."""
    return {str(target): value for target, value in sorted(values.items())}


def not_injected_but(why: str, seen: Mapping[str, Any]) -> Effect:
    """Return an effect that counts as not injected, with the observed values."""
    return Effect(False, {**not_injected(why).seen, **seen})


def _mark(disk: LoopDisk) -> bool:
    """Write a file that is not synced. Returns whether there was enough disk space."""
    try:
        disk.mark()
    except OSError:
        return False
    return True


def _dirty_bytes(disk: LoopDisk, *, is_marked: bool) -> int:
    """Return the bytes that the broker wrote and did not sync, without those of the harness."""
    return max(0, disk.dirty_bytes() - MARK_ROOM * is_marked)
