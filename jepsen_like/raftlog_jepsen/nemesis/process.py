"""The kinds kill (P1), pause (P2) and storm (P3): processes that crash, or stop for some time.

They act through ``Control``: a local cluster or a user's script. The reported effect is observed:
how the processes ended, or that all their threads are stopped.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from raftlog.clock import SystemClock
from raftlog.config.address import Address
from raftlog.errors import RaftlogError
from raftlog.protocol.api import API_VERSIONS, PRODUCE
from raftlog.protocol.connection import encode_request
from raftlog.protocol.records import ProducePartition, ProduceRequest
from raftlog.protocol.security import ApiVersionsRequest
from raftlog.testing.cluster import answers
from raftlog.types import OFFSETS_TOPIC, TopicPartition
from raftlog_jepsen.control import limits
from raftlog_jepsen.control.disks import MARK_ROOM, LoopDisk
from raftlog_jepsen.control.limits import Burners, Controller, FakeClock, Group, Reading
from raftlog_jepsen.nemesis.base import (
    Effect,
    Expectation,
    FaultPlan,
    OwnKinds,
    Startable,
    Words,
    not_injected,
    poll,
    try_start,
)
from raftlog_jepsen.plan import Shape
from raftlog_jepsen.status import ClusterStatus

PROCESS_KINDS: Final[Mapping[str, str]] = {
    "kill": "SIGKILL to one broker, to the leader of a partition, or to a minority; restart them.",
    "pause": "SIGSTOP to brokers for 0.1 s to 60 s, some longer than every timeout; SIGCONT.",
    "storm": "Kill all brokers at once or in turn, a leader and its successor, or brokers "
    "repeatedly during their recovery.",
}
# Ranges in seconds; a value is drawn from each.
DOWN_S: Final = ((0.0, 0.0), (0.0, 1.0), (1.0, 5.0), (1.0, 5.0), (5.0, 30.0))
PAUSED_S: Final = ((0.1, 1.0), (1.0, 3.0), (3.0, 8.0), (3.0, 8.0), (8.0, 20.0), (30.0, 60.0))
STORM_S: Final = (0.0, 5.0)
ROLLING_GAP_S: Final = (0.1, 1.0)
RECOVERING_S: Final = (0.0, 0.3)  # seconds from a start to the next kill
RECOVERIES: Final = (2, 5)
KILLED: Final = ("one", "one", "leader", "leader", "minority")
PAUSED: Final = ("one", "leader", "leader", "minority", "majority", "all")
COORDINATOR: Final = 0.5  # share of leaders that are group coordinators
STORMS: Final = ("all", "rolling", "leader-twice", "recovery")
SUCCESSOR_S: Final = 0.9  # time limit for a new leader, in a leader-twice storm
SIGNAL_S: Final = 1.0  # time limit for a signal to affect every thread of a process
POLL_S: Final = 0.02


class Control(Protocol):
    """Actions on brokers. Each raises ``OSError`` or ``RaftlogError`` if it fails."""

    def cannot(self, act: str) -> str:
        """Return why an action, such as ``kill`` or ``pause``, is not available; empty if it
        is."""
        ...

    def up(self) -> set[int]: ...

    def kill(self, broker_ids: Collection[int], /) -> Mapping[int, str]:
        """Kill brokers. Returns how each running broker ended, such as "signal 9"."""
        ...

    def spawn(self, broker_id: int, /) -> None: ...

    def start_broker(self, broker_id: int, /) -> float: ...

    def pause(self, broker_ids: Collection[int], /) -> None: ...

    def resume(self, broker_ids: Collection[int], /) -> None: ...

    def state(self, broker_id: int, /) -> str:
        """Return ``running``, ``stopped``, ``gone``, or ``unknown`` if it cannot be determined."""
        ...

    def status(self) -> ClusterStatus: ...


class ProcessNemesis(OwnKinds):
    """Kills and pauses brokers. ``sleep``: implements the pauses within a storm."""

    kinds = PROCESS_KINDS

    def __init__(
        self,
        cluster: Control,
        _ledger: object = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._control = cluster
        self._sleep = sleep
        self._hit: list[tuple[FaultPlan, tuple[int, ...]]] = []  # affected brokers by active fault

    def _why_not(self, kind: str) -> str:
        return self._control.cannot("pause" if kind == "pause" else "kill")

    # -- drawing

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        if kind == "storm":
            return _draw_storm(random, shape)
        who = random.choice(KILLED if kind == "kill" else PAUSED)
        targets, args = _draw_who(who, random, shape)
        return FaultPlan(
            kind=kind,
            targets=targets,
            args={"who": who, **args},
            hold_s=random.uniform(*random.choice(DOWN_S if kind == "kill" else PAUSED_S)),
            expects=expectation(shape, len(shape.machines_of(targets)) or 1),
        )

    # -- injecting

    def begin(self, fault: FaultPlan) -> Effect:
        if fault.args.get("who") in ("leader", "leader-twice"):
            leader = self._leader(fault.args)
            if leader is None:
                return not_injected(f"{_partition(fault.args)} has no running leader")
            targets: tuple[int, ...] = (leader,)
        else:
            targets = fault.targets
        # recorded first, so that a partial failure is undone too
        self._hit.append((fault, targets))
        if fault.kind == "pause":
            return self._pause(targets)
        storms = {
            "rolling": self._roll,
            "leader-twice": self._kill_leaders,
            "recovery": self._kill_recovering,
        }
        return storms.get(fault.args["who"], self._kill)(fault, targets)

    def _kill(self, _fault: FaultPlan, targets: Sequence[int]) -> Effect:
        ended = self._control.kill(targets)
        return self._gone(targets, {"ended": by_name(ended)}, is_hit=bool(ended))

    def _kill_leaders(self, fault: FaultPlan, targets: Sequence[int]) -> Effect:
        """Kill the leader, and the next leader if it is elected within ``SUCCESSOR_S``."""
        (first,) = targets
        began = time.monotonic()
        ended = dict(self._control.kill([first]))
        second = None
        while second in (None, first) and time.monotonic() - began < SUCCESSOR_S:
            self._sleep(POLL_S)
            second = self._leader(fault.args)
        hit: tuple[int, ...] = (first,)
        if second is not None and second != first:
            hit = (first, second)
            self._hit[-1] = (fault, hit)
            ended |= self._control.kill([second])
        seen = {"ended": by_name(ended), "took_s": round(time.monotonic() - began, 3)}
        return self._gone(hit, seen, is_hit=bool(ended))

    def _roll(self, fault: FaultPlan, targets: Sequence[int]) -> Effect:
        """Kill and start one broker after the other, without waiting until each is ready."""
        ended: dict[int, str] = {}
        for number, target in enumerate(targets):
            if number:
                self._sleep(fault.args["gap_s"])
            ended |= self._control.kill([target])
            self._control.spawn(target)
        return _killed(targets, {"ended": by_name(ended)}, is_hit=bool(ended))

    def _kill_recovering(self, fault: FaultPlan, targets: Sequence[int]) -> Effect:
        """Kill brokers, and kill them again shortly after each start. They stay down."""
        kills = [dict(self._control.kill(targets))]
        for after_s in fault.args["after_s"]:
            for target in targets:
                self._control.spawn(target)
            self._sleep(after_s)
            kills.append(dict(self._control.kill(targets)))
        seen = {"ended": [by_name(ended) for ended in kills]}
        return self._gone(targets, seen, is_hit=any(kills[1:]))

    def _gone(self, targets: Sequence[int], seen: dict[str, Any], *, is_hit: bool) -> Effect:
        states = self._wait_for(targets, not_in=("running", "stopped"))
        alive = [target for target, state in states.items() if state in ("running", "stopped")]
        seen["state"] = by_name(states)
        if alive:
            return Effect(False, {"why": f"still running: {alive}", **seen}, tuple(targets))
        return _killed(targets, seen, is_hit=is_hit)

    def _pause(self, targets: Sequence[int]) -> Effect:
        ran = [target for target in targets if target in self._control.up()]
        self._control.pause(ran)
        states = self._wait_for(ran, not_in=("running",))
        seen: dict[str, Any] = {"state": by_name(states)}
        awake = [target for target, state in states.items() if state not in ("stopped", "unknown")]
        if awake or not ran:
            why = f"not stopped: {awake}" if awake else "no target was running"
            return Effect(False, {"why": why, **seen}, tuple(targets))
        return Effect(True, seen, tuple(targets))

    def _wait_for(self, targets: Sequence[int], *, not_in: tuple[str, ...]) -> dict[int, str]:
        """Return the process states, when no target is in one of these states or after 1 s."""
        states: dict[int, str] = {}
        for attempt in range(round(SIGNAL_S / POLL_S)):
            if attempt:
                self._sleep(POLL_S)
            states = {target: self._control.state(target) for target in targets}
            if not set(not_in) & set(states.values()):
                break
        return states

    # -- undoing

    def end(self, fault: FaultPlan) -> Effect:
        """Resume or start the affected brokers. Reports the seconds of each start."""
        place = next((i for i, (plan, _) in enumerate(self._hit) if plan is fault), None)
        if place is None:
            return Effect(True, {"nothing": "no broker was affected"})
        _, targets = self._hit[place]
        effect = self._resume(targets) if fault.kind == "pause" else self._start(targets)
        del self._hit[place]
        return effect

    def heal(self) -> None:
        """Resume or start the brokers of faults that were not ended."""
        while self._hit:
            fault, targets = self._hit.pop()
            undo = self._resume if fault.kind == "pause" else self._start
            undo(targets)

    def _resume(self, targets: Sequence[int]) -> Effect:
        before = {target: self._control.state(target) for target in targets}
        self._control.resume(targets)
        after = {target: self._control.state(target) for target in targets}
        return Effect(True, {"before": by_name(before), "after": by_name(after)}, tuple(targets))

    def _start(self, targets: Sequence[int]) -> Effect:
        """Start all brokers in parallel, then wait for each."""
        ready: dict[int, float] = {}
        failed: dict[int, str] = {}

        def attempt(act: Callable[[int], object]) -> None:
            for target in targets:
                if target in failed:
                    continue
                try:
                    act(target)
                except (OSError, RaftlogError) as error:  # the other brokers are started, too
                    failed[target] = f"{type(error).__name__}: {error}"
                else:
                    ready[target] = round(time.monotonic() - began, 3)

        began = time.monotonic()
        attempt(self._control.spawn)
        attempt(self._control.start_broker)
        seen: dict[str, Any] = {
            "ready_after_s": by_name({each: ready[each] for each in ready.keys() - failed.keys()})
        }
        if failed:
            seen = {"why": f"not started: {by_name(failed)}", **seen}
        return Effect(not failed, seen, tuple(targets))

    def _leader(self, args: Mapping[str, Any]) -> int | None:
        """Return the leader of the partition, if it is running."""
        part = self._control.status().get(_partition(args))
        return part.leader if part is not None and part.leader in self._control.up() else None


def _partition(args: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(args["topic"], args["partition"])


def _killed(targets: Sequence[int], seen: Mapping[str, Any], *, is_hit: bool) -> Effect:
    if not is_hit:
        return Effect(False, {"why": "no target was running", **seen}, tuple(targets))
    return Effect(True, seen, tuple(targets))


def draw_partition(random: Random, shape: Shape) -> dict[str, Any]:
    """Draw a partition for ``args``. With groups, half of the draws select a partition whose leader
    is a group coordinator."""
    if shape.coordinators and random.random() < COORDINATOR:
        return {"topic": OFFSETS_TOPIC, "partition": random.randrange(shape.coordinators)}
    topic = random.choice(shape.topics)
    return {"topic": topic.name, "partition": random.randrange(topic.partitions)}


def _draw_who(who: str, random: Random, shape: Shape) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Draw brokers; for ``leader``, no broker and the partition whose leader is the target."""
    if who == "leader":
        return (), draw_partition(random, shape)
    return draw_brokers(random, shape, who), {}


def draw_brokers(
    random: Random, shape: Shape, who: str, *, minority: int | None = None
) -> tuple[int, ...]:
    """Draw brokers.

    ``who``: one; minority (one broker or more, at most ``minority``: default: that of ``shape``);
    majority (the smallest); all. If machines have several workers, these are numbers of machines,
    of which all workers are drawn, except that "one" is a single worker in half of the cases.
    """
    machines = shape.machines
    if who == "one" and shape.workers > 1 and random.random() < 0.5:
        return (random.choice(shape.broker_ids),)
    counts = {
        "one": 1,
        "minority": random.randint(1, max(1, shape.minority if minority is None else minority)),
        "majority": len(machines) // 2 + 1,
        "all": len(machines),
    }
    drawn = random.sample(machines, counts[who])
    return tuple(sorted(broker for machine in drawn for broker in machine))


def _draw_storm(random: Random, shape: Shape) -> FaultPlan:
    who = random.choice(STORMS)
    args: dict[str, Any] = {"who": who}
    targets: tuple[int, ...] = ()
    down = len(shape.machines)
    if who == "all":
        targets = shape.broker_ids
    elif who == "rolling":
        targets = tuple(random.sample(shape.broker_ids, shape.brokers))
        args["gap_s"] = random.uniform(*ROLLING_GAP_S)
    elif who == "leader-twice":
        args |= draw_partition(random, shape)
        down = 2
    else:
        targets = draw_brokers(random, shape, random.choice(("one", "minority", "all")))
        count = random.randint(*RECOVERIES)
        args["after_s"] = [random.uniform(*RECOVERING_S) for _ in range(count)]
        down = len(shape.machines_of(targets))
    return FaultPlan(
        kind="storm",
        targets=targets,
        args=args,
        hold_s=random.uniform(*STORM_S),
        expects=expectation(shape, down),
    )


# -- power -----------------------------------------------------------------------------------------
#
# The kind power (D1): brokers crash and their disks lose all data that was not synced, at once.
#
# The effect is verified in two ways. On each disk, a file that was not synced must be missing
# afterwards. The bytes that the file system has not written are counted before.


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
            expects=expectation(shape, len(shape.machines_of(targets))),
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
    """``draw_brokers``; a minority is limited by the allowed losses of disks if ``shape`` is
    lossy.
    """
    minority = min(shape.minority, shape.losses) if is_lossy(shape) else shape.minority
    return draw_brokers(random, shape, who, minority=minority)


def expectation(shape: Shape, down: int) -> Expectation:
    """Return whether writes continue with any ``down`` machines down: a majority is up, and every
    partition has ``min_isr`` replicas."""
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


# -- resources -------------------------------------------------------------------------------------
#
# The kinds fds, memory and cpu (R1, R2): the resources of a broker are limited for some time.
#
# The broker may be slow, reject requests, or be killed. Its acknowledgements must be correct. It
# must work normally when the limit has been removed or the broker has been restarted.


KIB: Final = 1 << 10
MIB: Final = 1 << 20
REQUEST_BYTES: Final = 8 * MIB  # size of each request that is sent incompletely
UNKNOWN_TOPIC: Final = "half-sent"  # the topic does not exist
CLIENT_ID: Final = "raftlog_jepsen"
CONNECTIONS: Final = 64  # connections that are opened to use up free descriptors
CONNECT_TIMEOUT_S: Final = 0.5
EFFECT_S: Final = 3.0  # time limit for a limit to have an effect
RESOURCES_POLL_S: Final = 0.1
NO_FILES: Final = "Too many open files"
RESOURCES_KINDS: Final[Mapping[str, str]] = {
    "fds": "A broker gets almost no new file descriptors, for connections or segments.",
    "memory": "A broker gets almost no additional memory, and is killed if it exceeds the limit.",
    "cpu": "A broker gets a small share of one CPU.",
}


class ResourceProcess(Protocol):
    @property
    def log_path(self) -> Path: ...

    @property
    def running(self) -> bool: ...

    @property
    def tls(self) -> ssl.SSLContext | None: ...


class HostLike(Protocol):
    """Interface of one broker's host."""

    @property
    def process(self) -> ResourceProcess: ...

    @property
    def broker_pid(self) -> int | None: ...

    @property
    def address(self) -> Address: ...


class Cluster(Startable, Protocol):
    """Interface of the cluster."""

    @property
    def hosts(self) -> Mapping[int, HostLike]: ...


@dataclass
class _Squeeze:
    """A resource limit of one broker. ``undo``: removes the limit."""

    fault: FaultPlan
    broker: int
    pid: int
    words: Words
    undo: ExitStack = field(default_factory=ExitStack)
    group: Group | None = None
    waited_ns: int = 0  # CPU wait time of the process before the fault


class ResourcesNemesis(OwnKinds):
    """Limits the resources of a running broker process."""

    kinds = RESOURCES_KINDS

    def __init__(self, cluster: Cluster, _ledger: object = None) -> None:
        self._cluster = cluster
        self._squeezes: list[_Squeeze] = []

    def _why_not(self, kind: str) -> str:
        if not Path("/proc/self/fd").exists():
            return "requires Linux"
        return limits.why_not("memory") if kind == "memory" else ""

    # -- drawing

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        args: dict[str, Any]
        if kind == "fds":
            args = {"spare": random.choice((0, 1, 3, 8))}
        elif kind == "memory":
            # Two cases: written data does not fit, so that the broker waits for the disk; or
            # incomplete client requests do not fit, so that the broker is killed.
            args = {"bytes": random.choice((KIB * 256, KIB * 512, MIB)), "requests": 0}
            if random.random() < 0.5:
                args = {"bytes": random.choice((2, 8)) * MIB, "requests": random.randint(3, 6)}
        else:
            args = {
                "means": random.choice(("quota", "quota", "neighbours")),
                "share": random.choice((0.05, 0.1, 0.2)),
                "neighbours": random.randint(2, 6),
            }
        return FaultPlan(
            kind=kind,
            targets=(random.choice(shape.broker_ids),),
            args=args,
            hold_s=random.uniform(2.0, 8.0),
            expects="available" if shape.minority else "outage",
        )

    # -- injecting

    def begin(self, fault: FaultPlan) -> Effect:
        (broker,) = fault.targets
        host = self._cluster.hosts[broker]
        pid = host.broker_pid
        if pid is None or not host.process.running:
            return not_injected(f"broker {broker} is not running")
        squeeze = _Squeeze(fault, broker, pid, Words(host.process.log_path))
        self._squeezes.append(squeeze)
        self._cluster.expect_exit([broker])
        acts = {"fds": self._take_files, "memory": self._take_memory, "cpu": self._take_cpu}
        return acts[fault.kind](squeeze)

    def end(self, fault: FaultPlan) -> Effect:
        mine = [squeeze for squeeze in self._squeezes if squeeze.fault is fault]
        if not mine:
            return not_injected("no resource was limited")
        seen: dict[str, Any] = {}
        for squeeze in mine:
            self._squeezes.remove(squeeze)
            seen = self._give_back(squeeze)
        return Effect(True, seen)

    def heal(self) -> None:
        while self._squeezes:
            self._give_back(self._squeezes.pop())

    def _give_back(self, squeeze: _Squeeze) -> dict[str, Any]:
        """Remove the limit, and start the broker if it has ended."""
        host = self._cluster.hosts[squeeze.broker]
        if self._pressure(squeeze).get("killed"):
            poll(lambda: not host.process.running, EFFECT_S)  # a killed process may still run
        seen = self._pressure(squeeze)
        squeeze.undo.close()
        start = try_start(self._cluster, squeeze.broker)
        if not start.started:  # the process was still ending
            start = try_start(self._cluster, squeeze.broker)
        seen["ended"] = squeeze.words.lines((NO_FILES, "broker stops"))
        return {**seen, **start.to_history()}

    # -- file descriptors

    def _take_files(self, squeeze: _Squeeze) -> Effect:
        pid, address = squeeze.pid, self._cluster.hosts[squeeze.broker].address
        count = limits.open_files(pid)
        before = limits.limit_files(pid, count + squeeze.fault.args["spare"])
        squeeze.undo.callback(_limit_again, pid, before)
        for _ in range(CONNECTIONS):
            with contextlib.suppress(OSError):
                connection = socket.create_connection(address, timeout=CONNECT_TIMEOUT_S)
                squeeze.undo.callback(connection.close)
        is_shut = not answers(address, tls=self._cluster.hosts[squeeze.broker].process.tls)
        seen = {
            "open": count,
            "limit": count + squeeze.fault.args["spare"],
            "new_connection_is_answered": not is_shut,
            "said": squeeze.words.lines((NO_FILES,)),
        }
        if is_shut or seen["said"]:
            return Effect(True, seen)
        return Effect(False, {"why": "the broker still opened descriptors", **seen})

    # -- memory

    def _take_memory(self, squeeze: _Squeeze) -> Effect:
        group = self._group("memory", squeeze)
        if group is None:
            return not_injected("control groups are not available")
        group.limit_memory(squeeze.fault.args["bytes"])
        # In version 1, the limit applies to new memory only.
        group.add(squeeze.pid)
        for _ in range(squeeze.fault.args["requests"]):
            with contextlib.suppress(OSError):  # the broker may have ended
                self._send_half(squeeze)
        is_felt = poll(
            lambda: any(group.pressure().values()), EFFECT_S, interval_s=RESOURCES_POLL_S
        )
        seen = self._pressure(squeeze)
        # A later effect is reported at the end of the fault.
        return Effect(
            is_felt, seen if is_felt else {"why": "it requested no further memory", **seen}
        )

    def _send_half(self, squeeze: _Squeeze) -> None:
        """Send a large request without its last byte, so that the broker keeps the bytes in memory.

        Sends a small request first, because the first request of a connection must be small.
        """
        address = self._cluster.hosts[squeeze.broker].address
        connection = socket.create_connection(address, timeout=CONNECT_TIMEOUT_S)
        squeeze.undo.callback(connection.close)
        hello = encode_request(
            API_VERSIONS.number,
            version=API_VERSIONS.version_max,
            correlation_id=0,
            message=ApiVersionsRequest(client_id=CLIENT_ID),
        )
        part = ProducePartition(topic=UNKNOWN_TOPIC, partition=0, length=REQUEST_BYTES)
        buffers = encode_request(
            PRODUCE.number,
            version=PRODUCE.version_max,
            correlation_id=1,
            message=ProduceRequest(acks=1, partitions=[part]),
            attachment=[bytes(REQUEST_BYTES)],
        )
        connection.sendall(b"".join([*hello, *buffers])[:-1])

    # -- CPU

    def _take_cpu(self, squeeze: _Squeeze) -> Effect:
        with contextlib.suppress(OSError):
            squeeze.waited_ns = limits.waited_ns(squeeze.pid)
        args = squeeze.fault.args
        group = self._group("cpu", squeeze) if args["means"] == "quota" else None
        if group is not None:
            group.limit_cpu(args["share"])
            group.add(squeeze.pid)
        else:
            burners = Burners(squeeze.pid, args["neighbours"])
            squeeze.undo.callback(burners.close)
        is_felt = poll(lambda: self._waits(squeeze), EFFECT_S, interval_s=RESOURCES_POLL_S)
        seen = self._pressure(squeeze)
        return Effect(is_felt, seen if is_felt else {"why": "it was not throttled", **seen})

    def _waits(self, squeeze: _Squeeze) -> bool:
        seen = self._pressure(squeeze)
        return bool(seen.get("throttled")) or seen.get("waited_ms", 0) >= 10

    # -- memory and CPU

    def _group(self, controller: Controller, squeeze: _Squeeze) -> Group | None:
        """Create a control group for this broker; None if control groups are not available."""
        place = limits.hierarchy(controller)
        if place is None or limits.why_not(controller):
            return None
        squeeze.group = Group(place, f"raftlog-{os.getpid()}-{controller}-{squeeze.broker}")
        squeeze.undo.callback(squeeze.group.close)
        return squeeze.group

    def _pressure(self, squeeze: _Squeeze) -> dict[str, Any]:
        seen: dict[str, Any] = {} if squeeze.group is None else dict(squeeze.group.pressure())
        if squeeze.fault.kind == "cpu":
            with contextlib.suppress(OSError):
                waited_ns = limits.waited_ns(squeeze.pid) - squeeze.waited_ns
                seen["waited_ms"] = max(0, waited_ns) // 1_000_000
        seen["runs"] = self._cluster.hosts[squeeze.broker].process.running
        return seen


def _limit_again(pid: int, count: int) -> None:
    with contextlib.suppress(OSError):  # the process has ended
        limits.limit_files(pid, count)


# -- clocks ----------------------------------------------------------------------------------------
#
# The kinds clock-jump, clock-strobe (T1) and clock-bases (T2): wall clocks jump, bases differ.
#
# With any wall clock, brokers must acknowledge records in order and exactly once. Only timestamps
# may be wrong. Topics keep records for a day, a week or indefinitely, and a clock that jumps by ten
# days must not cause a deletion.


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


class ClockCluster(Protocol):
    """Interface of the cluster. Its brokers were started with ``FakeClock.environment``."""

    @property
    def directory(self) -> Path: ...

    @property
    def hosts(self) -> Mapping[int, Clocked]: ...


class ClocksNemesis(OwnKinds):
    """Sets the clocks with which the brokers of the cluster were started."""

    kinds = CLOCKS_KINDS

    def __init__(self, cluster: ClockCluster, _ledger: object = None) -> None:
        self._cluster = cluster
        self._clocks = {
            broker_id: FakeClock(cluster.directory, broker_id) for broker_id in cluster.hosts
        }
        self._strobes: dict[int, _Strobe] = {}  # by broker
        self._log_bytes: dict[int, int] = {}  # log size by broker when its clock was changed

    def _why_not(self, kind: str) -> str:
        return "" if kind == "clock-bases" else limits.why_no_clocks()

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
        bases = {broker: limits.base_s(pid) for broker, pid in pids.items() if pid is not None}
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
