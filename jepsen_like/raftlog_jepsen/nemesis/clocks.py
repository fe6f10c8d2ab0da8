"""The kinds clock-jump, clock-strobe (T1) and clock-bases (T2): wall clocks jump, bases differ.

With any wall clock, brokers must acknowledge records in order and exactly once. Only timestamps may
be wrong. Topics keep records for a day, a week or indefinitely, and a clock that jumps by ten days
must not cause a deletion.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from raftlog.clock import SystemClock
from raftlog_jepsen.control import clocks
from raftlog_jepsen.control.clocks import FakeClock, Reading
from raftlog_jepsen.nemesis.base import Effect, FaultPlan, OwnKinds, not_injected
from raftlog_jepsen.plan import Shape

DAY_S: Final = 86_400.0
OFFSETS_S: Final = (0.1, 0.5, 2.0, 10.0, 60.0, 600.0, 3_600.0, 10 * DAY_S)
STROBE_OFFSETS_S: Final = (0.1, 1.0, 30.0, 3_600.0)
STROBE_PERIODS_S: Final = (0.01, 0.05, 0.2)
RESOLUTION_S: Final = 0.002  # the harness reads the wall clock in milliseconds
JOIN_TIMEOUT_S: Final = 5.0
LOG_TAIL_BYTES: Final = 4_096
CLOCKS_KINDS: Final[Mapping[str, str]] = {
    "clock-jump": "The wall clocks of some brokers, or of all, jump by 0.1 s to ten days.",
    "clock-strobe": "The wall clock of some brokers flips between two times every 10 to 200 ms.",
    "clock-bases": "Brokers have different bases of the monotonic clock.",
}


class ClockProcess(Protocol):
    @property
    def log_path(self) -> Path: ...


class Clocked(Protocol):
    """Interface of one broker's host."""

    @property
    def process(self) -> ClockProcess: ...

    @property
    def broker_pid(self) -> int | None: ...

    @property
    def environment(self) -> Mapping[str, str]: ...


class Cluster(Protocol):
    """Interface of the cluster. Its brokers were started with ``FakeClock.environment``."""

    @property
    def directory(self) -> Path: ...

    @property
    def hosts(self) -> Mapping[int, Clocked]: ...


class ClocksNemesis(OwnKinds):
    """Sets the clocks with which the brokers of the cluster were started."""

    kinds = CLOCKS_KINDS

    def __init__(self, cluster: Cluster, _ledger: object = None) -> None:
        self._cluster = cluster
        self._clocks = {
            broker_id: FakeClock(cluster.directory, broker_id) for broker_id in cluster.hosts
        }
        self._strobes: dict[int, _Strobe] = {}  # by broker
        self._log_bytes: dict[int, int] = {}  # log size by broker when its clock was changed

    def _why_not(self, kind: str) -> str:
        return "" if kind == "clock-bases" else clocks.why_no_clocks()

    # -- drawing

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        if kind == "clock-bases":
            return FaultPlan(kind=kind, targets=shape.broker_ids, hold_s=1.0)
        some = random.sample(shape.broker_ids, random.choice((1, max(1, shape.minority))))
        targets = random.choice((tuple(sorted(some)), shape.broker_ids))
        args: dict[str, Any]
        if kind == "clock-jump":
            args = {"offsets_s": _offsets(random, targets)}
        else:
            size_s = random.choice(STROBE_OFFSETS_S)
            args = {
                "from_s": random.choice((0.0, -size_s)),
                "to_s": size_s,
                "period_s": random.choice(STROBE_PERIODS_S),
            }
        return FaultPlan(kind=kind, targets=targets, args=args, hold_s=random.uniform(2.0, 8.0))

    # -- injecting

    def begin(self, fault: FaultPlan) -> Effect:
        if fault.kind == "clock-bases":
            return self._bases(fault.targets)
        without = [broker for broker in fault.targets if not self._has_clock(broker)]
        if without:
            return not_injected(f"brokers {without} do not run with a separate clock")
        self._log_bytes |= {broker: self._log_size(broker) for broker in fault.targets}
        if fault.kind == "clock-jump":
            for broker, offset_s in zip(fault.targets, fault.args["offsets_s"], strict=True):
                self._clocks[broker].set(offset_s)
        else:
            self._strobe(fault)
        return self._observed(fault)

    def end(self, fault: FaultPlan) -> Effect:
        if fault.kind == "clock-bases":
            return Effect(True, {"nothing": "the bases remain"})
        seen: dict[str, Any] = {"logged_offset_s": self._logged(fault.targets)}
        if fault.kind == "clock-strobe":
            stopped = {b: self._strobes.pop(b) for b in fault.targets if b in self._strobes}
            for strobe in stopped.values():
                strobe.stop()
            seen["flips"] = {str(broker): strobe.flips for broker, strobe in stopped.items()}
        for broker in fault.targets:
            self._clocks[broker].set(0.0)
        measured = self._measure(fault.targets)
        seen["offset_s"] = {broker: found.offset_s for broker, found in measured.items()}
        return Effect(all(found.may_be(0.0) for found in measured.values()), seen)

    def heal(self) -> None:
        while self._strobes:
            self._strobes.popitem()[1].stop()
        for clock in self._clocks.values():
            if clock.offset_s:
                clock.set(0.0)

    def _has_clock(self, broker: int) -> bool:
        """Return whether a broker runs with its separate clock, or will be started with it."""
        host, clock = self._cluster.hosts[broker], self._clocks[broker]
        if host.broker_pid is not None:
            return clock.is_used_by(host.broker_pid)
        return clock.environment().items() <= host.environment.items()

    def _strobe(self, fault: FaultPlan) -> None:
        offsets_s = (fault.args["from_s"], fault.args["to_s"])
        for broker in fault.targets:
            if broker in self._strobes:
                self._strobes.pop(broker).stop()
            strobe = _Strobe(self._clocks[broker], offsets_s, fault.args["period_s"])
            self._strobes[broker] = strobe
            strobe.start()

    # -- observing

    def _observed(self, fault: FaultPlan) -> Effect:
        """Read the clocks in new processes with the brokers' environment, and report their
        offsets."""
        measured = self._measure(fault.targets)
        if fault.kind == "clock-jump":
            wanted: list[tuple[float, ...]] = [(offset_s,) for offset_s in fault.args["offsets_s"]]
        else:
            wanted = [(fault.args["from_s"], fault.args["to_s"])] * len(fault.targets)
        reported = {"offset_s": {broker: found.offset_s for broker, found in measured.items()}}
        if not all(
            any(found.may_be(offset_s) for offset_s in several)
            for found, several in zip(measured.values(), wanted, strict=True)
        ):
            return Effect(False, {"why": "the wall clocks do not have their offsets", **reported})
        if not all(found.is_monotonic_right for found in measured.values()):
            return Effect(False, {"why": "monotonic clocks have changed", **reported})
        return Effect(True, reported)

    def _measure(self, targets: Collection[int]) -> dict[str, _Measurement]:
        seen = {}
        for broker in targets:
            before = Reading(SystemClock().wall_ms() / 1_000, time.monotonic())
            try:
                found = self._clocks[broker].read()
            except (ValueError, subprocess.SubprocessError) as error:
                raise OSError(f"cannot read the clock of broker {broker}: {error}") from error
            after = Reading(SystemClock().wall_ms() / 1_000, time.monotonic())
            seen[str(broker)] = _Measurement(before, found, after)
        return seen

    def _logged(self, targets: Collection[int]) -> dict[str, float]:
        """Return the clock offset of each broker that has logged since the start of the fault.

        Compares the time in the last log line with the modification time of the log file.
        """
        found = {}
        for broker in targets:
            if self._log_size(broker) == self._log_bytes.get(broker):
                continue
            offset_s = logged_offset_s(self._cluster.hosts[broker].process.log_path)
            if offset_s is not None:
                found[str(broker)] = offset_s
        return found

    def _log_size(self, broker: int) -> int:
        path = self._cluster.hosts[broker].process.log_path
        return path.stat().st_size if path.exists() else 0

    def _bases(self, targets: Collection[int]) -> Effect:
        pids = {broker: self._cluster.hosts[broker].broker_pid for broker in targets}
        bases = {broker: clocks.base_s(pid) for broker, pid in pids.items() if pid is not None}
        seen = {"base_s": {str(broker): base for broker, base in bases.items()}}
        if len({base for base in bases.values() if base is not None}) < 2:
            return Effect(False, {"why": "no two brokers have different bases", **seen})
        return Effect(True, seen)


class _Measurement(NamedTuple):
    """Clocks of another process, between two readings of the harness's clock."""

    before: Reading
    found: Reading
    after: Reading

    @property
    def offset_s(self) -> float:
        """Approximate offset of the wall clock, in seconds."""
        return round(self.found.wall_s - (self.before.wall_s + self.after.wall_s) / 2, 3)

    def may_be(self, offset_s: float) -> bool:
        """Return whether the wall clock can have this offset from the harness's clock."""
        wall_s = self.found.wall_s - offset_s
        return self.before.wall_s - RESOLUTION_S <= wall_s <= self.after.wall_s + RESOLUTION_S

    @property
    def is_monotonic_right(self) -> bool:
        return self.before.monotonic_s <= self.found.monotonic_s <= self.after.monotonic_s


def _offsets(random: Random, targets: Collection[int]) -> list[float]:
    """Draw a separate offset for each broker, or the same offset for all."""
    offsets = [random.choice(OFFSETS_S) * random.choice((-1, 1)) for _ in targets]
    return offsets if random.random() < 0.5 else offsets[:1] * len(targets)


def logged_offset_s(path: Path) -> float | None:
    """Return the time in the last line of a log minus the time of the write, in seconds.

    None if the last line contains no time. Accurate to about a millisecond.
    """
    try:
        written_s = path.stat().st_mtime
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    last = lines[-1] if lines else ""
    try:
        said = datetime.strptime(last[:23], "%Y-%m-%d %H:%M:%S,%f")  # noqa: DTZ007 - local, as logged
    except ValueError:
        return None
    return said.timestamp() - written_s


class _Strobe(threading.Thread):
    """Switches a clock between two offsets until ``stop``."""

    def __init__(self, clock: FakeClock, offsets_s: tuple[float, float], period_s: float) -> None:
        super().__init__(name=f"strobe-{clock.broker_id}", daemon=True)
        self.flips = 0
        self._clock = clock
        self._offsets_s = offsets_s
        self._period_s = period_s
        self._stopping = threading.Event()

    def run(self) -> None:
        while True:
            self._clock.set(self._offsets_s[self.flips % 2])
            self.flips += 1
            if self._stopping.wait(self._period_s):
                return

    def stop(self) -> None:
        self._stopping.set()
        self.join(JOIN_TIMEOUT_S)
