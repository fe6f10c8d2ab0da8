"""The kinds disk-full (D3), read-only (D4) and disk-error (D5): disks that reject operations.

They are injected into the file system on the broker's loop device and verified by a write of the
harness. The broker rejects writes and transfers leadership, or ends. This reaction is recorded, but
not checked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Final, Protocol

from raftlog_jepsen.control.disks import LoopDisk
from raftlog_jepsen.nemesis.base import Effect, FaultPlan, OwnKinds
from raftlog_jepsen.nemesis.process import (
    NO_DISKS,
    Losses,
    Powered,
    by_name,
    disks_of,
    draw_targets,
    expectation,
    has_disks,
    is_lossy,
    not_injected_but,
    start_again,
)
from raftlog_jepsen.plan import Shape

HOLD_S: Final = (1.0, 10.0)
WHO: Final = ("one", "one", "minority")
LEAVE_BYTES: Final = (0, 4096, 16384, 65536)
PROBE_BYTES: Final = 1 << 20  # more than the remaining space


class Harmable(Powered, Protocol):
    """Interface of the cluster."""

    def expect_exit(self, broker_ids: Collection[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind. ``error``: expected error of a write. ``is_fatal``: the repair requires that the
    broker is down."""

    summary: str
    error: str
    is_fatal: bool


DISKS_KINDS: Final[Mapping[str, _Kind]] = {
    "disk-full": _Kind(
        "Fill disks in use, except for 0 to 64 KiB; release the space.", "ENOSPC", False
    ),
    "read-only": _Kind("Remount file systems in use read-only, as after an error.", "EROFS", True),
    "disk-error": _Kind("Make all reads and writes of disks in use fail.", "EIO", True),
}


class DisksNemesis(OwnKinds):
    """Makes disks of one broker or of a minority full, read-only or defective for some time.

    A broker with a full disk continues to run, and other brokers become leaders (S31). The other
    kinds should end it: a failed write or sync is fatal (S30). Then the disk is repaired and the
    broker started.
    """

    kinds: ClassVar = {kind: about.summary for kind, about in DISKS_KINDS.items()}

    def __init__(self, cluster: Harmable, ledger: Losses) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._harmed: dict[int, set[str]] = {}  # active kinds by broker
        self._ran: set[int] = set()  # running when the fault was injected
        self._lost: set[int] = set()  # brokers reported to the fault budget

    def _why_not(self, _kind: str) -> str:
        return NO_DISKS if not has_disks(self._cluster) else ""

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        who = random.choice(WHO)
        targets = draw_targets(random, shape, who)
        args: dict[str, Any] = {"who": who}
        if kind == "disk-full":
            args["leave_bytes"] = random.choice(LEAVE_BYTES)
        is_fatal = DISKS_KINDS[kind].is_fatal
        return FaultPlan(
            kind=kind,
            targets=targets,
            args=args,
            hold_s=random.uniform(*HOLD_S),
            lossy=is_fatal and is_lossy(shape),
            expects=expectation(shape, len(shape.machines_of(targets))),
        )

    def begin(self, fault: FaultPlan) -> Effect:
        disks = disks_of(self._cluster, fault.targets)
        about = DISKS_KINDS[fault.kind]
        for target, disk in disks.items():
            self._harmed.setdefault(target, set()).add(fault.kind)
            if self._cluster.hosts[target].process.running:
                self._ran.add(target)
                if about.is_fatal:
                    self._cluster.expect_exit((target,))
            if fault.lossy:
                self._lost.add(target)
                self._ledger.lost((target,))
            _harm(fault, disk)
        found = {target: disk.probe(PROBE_BYTES) for target, disk in disks.items()}
        seen = {"writes_get": by_name(found)}
        if any(error != about.error for error in found.values()):
            return not_injected_but(f"a write does not get {about.error}", seen)
        return Effect(True, seen)

    def end(self, fault: FaultPlan) -> Effect:
        """Release the space or repair the disk, and start the brokers that ended or were stopped
        for the repair."""
        return self._restore(fault.targets, {fault.kind})

    def heal(self) -> None:
        """Repair all disks, and start the brokers that ended because of them."""
        self._restore(tuple(self._harmed), set(DISKS_KINDS))

    def _restore(self, targets: Collection[int], kinds: set[str]) -> Effect:
        """Undo these kinds. Another kind on the same disk stays active."""
        disks = disks_of(self._cluster, [t for t in targets if t in self._harmed])
        seen: dict[str, Any] = {
            "ended": [t for t in disks if not self._cluster.hosts[t].process.running]
        }
        problems = {}
        for target, disk in disks.items():
            try:
                self._repair(target, disk, kinds)
                if target not in self._harmed and (error := disk.probe()):
                    problems[target] = f"a write gets {error}"
            except OSError as error:  # the other disks are repaired, too
                problems[target] = str(error)
        well = {target for target in disks if target not in self._harmed and target not in problems}
        starting = self._ran & well
        self._ran -= starting
        effect = start_again(self._cluster, starting)
        returning = self._lost & well
        self._lost -= returning
        if returning:
            self._ledger.returned(sorted(returning))
        seen |= effect.seen
        if problems:
            return not_injected_but(f"disks still fail: {by_name(problems)}", seen)
        return Effect(effect.injected, seen)

    def _repair(self, target: int, disk: LoopDisk, kinds: set[str]) -> None:
        before = self._harmed[target]
        after = before - kinds
        was_broken, is_broken = (
            any(DISKS_KINDS[k].is_fatal for k in each) for each in (before, after)
        )
        if was_broken and not is_broken:
            self._cluster.kill((target,))  # its open files are invalid after the remount
            disk.remount()
        if not is_broken and "disk-full" not in after:
            disk.free()
        self._harmed[target] = after
        if not after:
            del self._harmed[target]


def _harm(fault: FaultPlan, disk: LoopDisk) -> None:
    if fault.kind == "disk-full":
        disk.fill(fault.args["leave_bytes"])
    elif fault.kind == "read-only":
        disk.trigger_error()
    else:
        disk.shutdown()
