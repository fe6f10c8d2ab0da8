"""The kinds kill (P1), pause (P2) and storm (P3): processes that crash, or stop for some time.

They act through ``Control``: a local cluster or a user's script. The reported effect is observed:
how the processes ended, or that all their threads are stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, Final, Protocol

from raftlog.errors import RaftlogError
from raftlog.types import OFFSETS_TOPIC, TopicPartition
from raftlog_jepsen.nemesis.base import Effect, FaultPlan, OwnKinds, not_injected
from raftlog_jepsen.nemesis.power import by_name, expectation
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
        targets, args = _draw_targets(who, random, shape)
        return FaultPlan(
            kind=kind,
            targets=targets,
            args={"who": who, **args},
            hold_s=random.uniform(*random.choice(DOWN_S if kind == "kill" else PAUSED_S)),
            expects=expectation(shape, len(targets) or 1),
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


def _draw_targets(who: str, random: Random, shape: Shape) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Draw brokers; for ``leader``, no broker and the partition whose leader is the target."""
    if who == "leader":
        return (), draw_partition(random, shape)
    counts = {
        "one": 1,
        "minority": random.randint(1, max(1, shape.minority)),
        "majority": shape.brokers // 2 + 1,
        "all": shape.brokers,
    }
    return tuple(sorted(random.sample(shape.broker_ids, counts[who]))), {}


def _draw_storm(random: Random, shape: Shape) -> FaultPlan:
    who = random.choice(STORMS)
    args: dict[str, Any] = {"who": who}
    targets: tuple[int, ...] = ()
    down = shape.brokers
    if who == "all":
        targets = shape.broker_ids
    elif who == "rolling":
        targets = tuple(random.sample(shape.broker_ids, shape.brokers))
        args["gap_s"] = random.uniform(*ROLLING_GAP_S)
    elif who == "leader-twice":
        args |= _draw_targets("leader", random, shape)[1]
        down = 2
    else:
        targets, _ = _draw_targets(random.choice(("one", "minority", "all")), random, shape)
        count = random.randint(*RECOVERIES)
        args["after_s"] = [random.uniform(*RECOVERING_S) for _ in range(count)]
        down = len(targets)
    return FaultPlan(
        kind="storm",
        targets=targets,
        args=args,
        hold_s=random.uniform(*STORM_S),
        expects=expectation(shape, down),
    )
