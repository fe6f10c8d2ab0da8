"""The kinds crash-at, pause-inside, disk-error-at, slow-disk and hung-disk: failpoints.

Brokers of a cluster with ``Needs.failpoints`` are started with ``environment(failpoint_file(...))``
and read that file at every failpoint. The reported effect consists of the hits, which the broker
writes immediately before the action, and its process state. If the broker has not reached the
failpoint when ``begin`` returns, the fault is reported as not injected. ``end`` reports whether it
was reached later.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from raftlog.config import BrokerConfig
from raftlog.failpoints import SITES, Hit
from raftlog.testing.cluster import FailpointSwitch
from raftlog.types import TopicPartition
from raftlog_jepsen.nemesis.base import Effect, FaultPlan, OwnKinds, not_injected
from raftlog_jepsen.nemesis.process import (
    Losses,
    Powered,
    draw_partition,
    expectation,
    not_injected_but,
    start_again,
)
from raftlog_jepsen.plan import Shape
from raftlog_jepsen.status import ClusterStatus

KINDS: Final[Mapping[str, str]] = {
    "crash-at": "A broker crashes immediately before or after it writes, syncs, renames, removes "
    "or sends data, also during its recovery.",
    "pause-inside": "A leader pauses between the check of its leadership and the append.",
    "slow-disk": "Syncs of records or of the consensus journal take 0.1 s to 30 s; or all syncs "
    "take 50 ms to 500 ms.",
    "hung-disk": "Syncs of records, of the consensus journal or of all files do not return. The "
    "disk is reset at the end.",
    "disk-error-at": "One write, sync or read of a broker fails with EIO.",
}
NO_FAILPOINTS: Final = "these brokers were not started with failpoints"

# Patterns of site names. Reached constantly under load.
BUSY: Final = (
    "checkpoint.write.*",
    "peer.peer_ping.*",
    "peer.replica_fetch.*",
    "peer.replica_progress.*",
    "reply.fetch.*",
    "reply.peer_ping.*",
    "reply.produce.*",
    "reply.replica_fetch.*",
    "segment.read.*",
    "segment.sync.*",
    "segment.write.*",
)
# Reached occasionally, when a segment is full or a leader changes.
RARE: Final = (
    "checkpoint.sync.*",
    "epochs.write.*",
    "index.[!r]*",
    "partition-dir.sync.*",
    "peer.raft.*",
    "producers.[!r]*",
    "segment.create.*",
)
# Reached during compaction, which requires keys or consumer groups.
COMPACTING: Final = (
    "cleaned.*",
    "compaction.*",
    "index.re[mn]*",
    "segment.re[mn]*",
)
NOT_COMPACTING: Final = ("*.truncate.*",)
# Reached at a start after a crash.
RECOVERING: Final = (
    "*.read.before",
    "checkpoint.[sw]*",
    "data-dir.sync.*",
    "index.write.*",
    "journal.sync.*",
    "journal.write.*",
    "partition-dir.sync.*",
    "peer.*",
    "segment.sync.*",
)
# Reached at a clean stop, or by some brokers only.
NOT_RECOVERING: Final = ("clean.*", "peer.partition_states.*")
FAILING: Final = (
    "checkpoint.write.*",
    "segment.read.before",
    "segment.sync.*",
    "segment.write.*",
)

WHEN: Final = ("busy", "busy", "busy", "rare", "recovering", "recovering")  # time of the crash
COMPACTS: Final = 0.5  # share of crashes in a compaction, if logs are compacted
RARELY: Final = ("rare", "compacting")
SKIP_MAX: Final = 300  # maximum number of skipped hits
COMPACTING_SKIP_MAX: Final = 3
DOWN_S: Final = ((0.5, 2.0), (1.0, 5.0), (5.0, 20.0))
RARE_HOLD_S: Final = (5.0, 20.0)
INSIDE_S: Final = (5.0, 20.0)
SYNC_S: Final = (0.1, 30.0)
EVERY_SYNC: Final = "stall(0.05..0.5)"
EVERY_SYNC_HOLD_S: Final = (3.0, 15.0)
HUNG: Final = ("segment.sync.before", "journal.sync.before", "*.sync.before")
HUNG_S: Final = 300.0  # longer than the faults of any run
HUNG_HOLD_S: Final = (8.0, 25.0)
STALL_S: Final = BrokerConfig().disk_stall_timeout_ms / 1_000 - 1  # 1 s for the sync itself
BEGIN_S: Final = 2.0  # time that ``begin`` waits for a hit
RECOVERY_S: Final = 10.0  # the same in a broker that starts: on a busy machine that takes seconds
GONE_S: Final = 2.0  # time limit for a process to end after a crash or an I/O error
POLL_S: Final = 0.02


def failpoint_file(directory: Path, broker_id: int) -> Path:
    """Return the path of the failpoint file of a broker of the cluster in ``directory``."""
    return directory / f"broker-{broker_id}.failpoints"


def environment(path: Path) -> dict[str, str]:
    """Return the environment with which a broker reads the failpoint file ``path``."""
    return FailpointSwitch(path).environment


class Needing(Protocol):
    @property
    def failpoints(self) -> bool: ...


class Failing(Powered, Protocol):
    """Interface of the cluster."""

    @property
    def directory(self) -> Path: ...

    @property
    def needs(self) -> Needing: ...

    def up(self) -> set[int]: ...

    def spawn(self, broker_id: int) -> None: ...

    def expect_exit(self, broker_ids: Collection[int]) -> None: ...

    def status(self) -> ClusterStatus: ...


@dataclass(frozen=True, slots=True)
class _Armed:
    """A failpoint that a fault has set at a broker. ``rule``: has a comment that makes it
    unique."""

    fault: FaultPlan
    target: int
    rule: str


class FailpointsNemesis(OwnKinds):
    """Sets and resets failpoints. ``sleep``: function that waits between two checks."""

    kinds = KINDS

    def __init__(
        self,
        cluster: Failing,
        ledger: Losses,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._sleep = sleep
        self._armed: list[_Armed] = []
        self._ended: list[int] = []  # brokers that faults may have ended, until their next start
        self._number = 0

    def _why_not(self, _kind: str) -> str:
        needs = getattr(self._cluster, "needs", None)  # None for an external cluster
        return "" if needs is not None and needs.failpoints else NO_FAILPOINTS

    # -- drawing

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        draws = {
            "crash-at": _draw_crash,
            "pause-inside": _draw_pause,
            "slow-disk": _draw_slow,
            "hung-disk": _draw_hung,
            "disk-error-at": _draw_error,
        }
        return draws[kind](random, shape)

    # -- injecting

    def begin(self, fault: FaultPlan) -> Effect:
        target = fault.targets[0] if fault.targets else self._leader(fault.args)
        if target is None:
            return not_injected(f"{fault.args['topic']}:{fault.args['partition']} has no leader")
        self._number += 1
        armed = _Armed(fault, target, f"{fault.args['rule']} # fault {self._number}")
        self._armed.append(armed)  # recorded first, so that a partial failure is undone too
        if _may_end(fault):
            self._ended.append(target)
            self._cluster.expect_exit([target])
        if fault.lossy:
            self._ledger.lost([target])
        if fault.args.get("when") == "recovering":
            self._cluster.kill([target])
            self._rearm(target)
            self._cluster.spawn(target)
            return self._effect_within(armed, RECOVERY_S)
        if target not in self._cluster.up():
            return Effect(False, {"why": f"broker {target} is not running"}, (target,))
        self._rearm(target)
        return self._effect_within(armed, BEGIN_S)

    def _effect_within(self, armed: _Armed, wait_s: float) -> Effect:
        """Return the observed effect, when it has occurred or ``wait_s`` have passed."""
        self._wait(lambda: bool(self._hits(armed)), wait_s)
        hits = self._hits(armed)
        seen: dict[str, Any] = {"rule": armed.rule, "hits": len(hits)}
        if hits:
            seen["sites"] = sorted({hit.site for hit in hits})
        if not hits:
            effect = not_injected_but("set, but not reached yet", seen)
            return Effect(False, effect.seen, (armed.target,))
        if _is_deadly(armed.fault):
            process = self._cluster.hosts[armed.target].process
            self._wait(lambda: not process.running, GONE_S)
            seen["ended"] = not process.running
        if armed.fault.kind == "crash-at" and not seen["ended"]:
            return Effect(False, {"why": "reached, broker still runs", **seen}, (armed.target,))
        return Effect(True, seen, (armed.target,))

    def _wait(self, is_there: Callable[[], bool], wait_s: float) -> None:
        for _ in range(math.ceil(wait_s / POLL_S)):
            if is_there():
                return
            self._sleep(POLL_S)

    # -- undoing

    def end(self, fault: FaultPlan) -> Effect:
        """Reset the failpoint, and start the broker if it ended. Reports all ``hits`` of the
        fault."""
        armed = next((each for each in self._armed if each.fault is fault), None)
        if armed is None:
            return Effect(True, {"nothing": "it was not set"})
        effect = self._effect_within(armed, 0.0)
        self._armed.remove(armed)
        self._rearm(armed.target)
        self._reset([armed])
        seen = dict(effect.seen)
        started = self._start([armed.target])
        if fault.lossy:
            self._ledger.returned([armed.target])
        if "why" in started.seen:
            return Effect(False, {**seen, **started.seen}, (armed.target,))
        return Effect(effect.injected, {**seen, **started.seen}, (armed.target,))

    def heal(self) -> None:
        """Reset all failpoints, and start the brokers that ended because of them."""
        armed, self._armed = self._armed, []
        targets = {each.target for each in armed}
        for target in targets:
            self._rearm(target)
        self._reset(armed)
        self._start(targets | set(self._ended))
        self._ledger.returned({each.target for each in armed if each.fault.lossy})

    def _reset(self, armed: Collection[_Armed]) -> None:
        """Kill brokers with a hung disk: their blocked threads do not continue after the reset."""
        hung = {each.target for each in armed if each.fault.kind == "hung-disk"}
        self._cluster.kill(sorted(hung & self._cluster.up()))

    def _start(self, targets: Collection[int]) -> Effect:
        """Start the brokers that faults of this nemesis may have ended."""
        mine = [target for target in targets if target in self._ended]
        effect = start_again(self._cluster, mine)
        if effect.injected:
            self._ended = [target for target in self._ended if target not in mine]
        return effect

    # -- failpoint files

    def _switch(self, target: int) -> FailpointSwitch:
        return FailpointSwitch(failpoint_file(self._cluster.directory, target))

    def _rearm(self, target: int) -> None:
        self._switch(target).arm(each.rule for each in self._armed if each.target == target)

    def _hits(self, armed: _Armed) -> list[Hit]:
        return [hit for hit in self._switch(armed.target).hits if hit.text == armed.rule]

    def _leader(self, args: Mapping[str, Any]) -> int | None:
        part = self._cluster.status().get(TopicPartition(args["topic"], args["partition"]))
        return part.leader if part is not None and part.leader in self._cluster.up() else None


def _is_deadly(fault: FaultPlan) -> bool:
    """Return whether the fault may end the broker immediately. A failed sync does (S30)."""
    return fault.kind in ("crash-at", "disk-error-at")


def _may_end(fault: FaultPlan) -> bool:
    """Return whether the fault may end the broker, immediately or later."""
    return _is_deadly(fault) or bool(fault.args.get("ends"))


# -- drawing ---------------------------------------------------------------------------------------


def matching(patterns: Collection[str], *, but: Collection[str] = ()) -> list[str]:
    """Return the sorted names of failpoints that match one of ``patterns`` and none of ``but``."""
    return [
        site
        for site in sorted(SITES)
        if any(fnmatchcase(site, pattern) for pattern in patterns)
        and not any(fnmatchcase(site, pattern) for pattern in but)
    ]


def _skip(random: Random) -> int:
    """Draw the number of hits to skip: 0 in half of all cases, else log-uniform up to
    ``SKIP_MAX``."""
    return 0 if random.random() < 0.5 else round(math.exp(random.uniform(0, math.log(SKIP_MAX))))


def _one(random: Random, shape: Shape) -> tuple[int, ...]:
    return (random.choice(shape.broker_ids),)


def _compacts(shape: Shape) -> bool:
    """Return whether brokers have logs to compact."""
    return shape.coordinators > 0 or any(topic.keys for topic in shape.topics)


def _draw_crash(random: Random, shape: Shape) -> FaultPlan:
    when = random.choice(WHEN)
    if _compacts(shape) and random.random() < COMPACTS:
        when = "compacting"
    sites = {
        "busy": matching(BUSY),
        "rare": matching(RARE),
        "recovering": matching(RECOVERING, but=NOT_RECOVERING),
        "compacting": matching(COMPACTING, but=NOT_COMPACTING),
    }
    site = random.choice(sites[when])
    skip = _skip(random) if when == "busy" else 0
    if when == "compacting":
        skip = random.randint(0, COMPACTING_SKIP_MAX)
    return FaultPlan(
        kind="crash-at",
        targets=_one(random, shape),
        args={"when": when, "rule": f"{site}=crash@{skip}"},
        hold_s=random.uniform(*(RARE_HOLD_S if when in RARELY else random.choice(DOWN_S))),
        expects=expectation(shape, 1),
    )


def _draw_pause(random: Random, shape: Shape) -> FaultPlan:
    seconds = random.uniform(*INSIDE_S)
    return FaultPlan(
        kind="pause-inside",
        args={
            **draw_partition(random, shape),
            "rule": f"segment.write.before=stall({seconds:.3f})@{_skip(random)}x1",
        },
        hold_s=seconds + BEGIN_S,
        expects=expectation(shape, 1),
    )


def _draw_slow(random: Random, shape: Shape) -> FaultPlan:
    """Draw a slow sync. Writes that wait for the sync may stop for its duration."""
    if random.random() < 0.5:
        rule, hold_s = f"*.sync.before={EVERY_SYNC}", random.uniform(*EVERY_SYNC_HOLD_S)
        expects, ends = expectation(shape, 0), False
    else:
        site = random.choice(("segment.sync.before", "journal.sync.before"))
        low, high = map(math.log, SYNC_S)
        seconds = math.exp(random.uniform(low, high))
        rule, hold_s = f"{site}=stall({seconds:.3f})@{_skip(random)}x1", seconds + BEGIN_S
        # A broker whose journal stalls for this time ends, if other brokers can continue.
        expects, ends = "outage", site.startswith("journal") and seconds > STALL_S
    return FaultPlan(
        kind="slow-disk",
        targets=_one(random, shape),
        args={"rule": rule, "ends": ends},
        hold_s=hold_s,
        expects=expects,
    )


def _draw_hung(random: Random, shape: Shape) -> FaultPlan:
    """Draw a hung disk. The broker transfers leadership or ends after some seconds. Writes may stop
    until then."""
    return FaultPlan(
        kind="hung-disk",
        targets=_one(random, shape),
        args={"rule": f"{random.choice(HUNG)}=stall({HUNG_S:g})@{_skip(random)}", "ends": True},
        hold_s=random.uniform(*HUNG_HOLD_S),
        expects=expectation(shape, 1),
    )


def _draw_error(random: Random, shape: Shape) -> FaultPlan:
    """Draw an I/O error. A read error counts as corruption: the broker may quarantine the copy and
    copy it again."""
    site = random.choice(matching(FAILING))
    return FaultPlan(
        kind="disk-error-at",
        targets=_one(random, shape),
        args={"rule": f"{site}=fail(EIO)@{_skip(random)}x1"},
        hold_s=random.uniform(*random.choice(DOWN_S)),
        lossy=site.endswith(".read.before"),
        expects=expectation(shape, 1),
    )
