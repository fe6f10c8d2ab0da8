"""The kinds member-kill, member-pause, member-partition, member-churn: consumers that fail.

Members of consumer groups are processes on this machine (``members.Members``), each in a numbered
*slot*. The reported effect is observed: how a process ended, that all its threads are stopped, or
that it does not reach the blocked brokers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any, Final, Protocol

from raftlog_jepsen.nemesis.base import Effect, FaultPlan, OwnKinds, not_injected
from raftlog_jepsen.plan import Shape

KINDS: Final[Mapping[str, str]] = {
    "member-kill": "SIGKILL to one member of a consumer group, to several, or to all of a group; "
    "restart them.",
    "member-pause": "SIGSTOP to members, for less or more than their session timeout; SIGCONT.",
    "member-partition": "A network partition between members and one broker or all brokers.",
    "member-churn": "One or more members leave their groups one after the other, and rejoin.",
}
NO_MEMBERS: Final = "this run has no members of consumer groups"
NO_NETWORK: Final = "members have no separate network. Run as root on Linux, without relays"
HOW_MANY: Final = ("one", "one", "some", "group")
# Ranges in seconds; a value is drawn from each.
DOWN_S: Final = ((0.0, 0.5), (0.5, 3.0), (3.0, 12.0))
PAUSED_S: Final = ((0.2, 1.5), (3.0, 8.0), (8.0, 15.0), (8.0, 15.0))
CUT_S: Final = ((1.0, 4.0), (5.0, 15.0))
CHURN_S: Final = (0.5, 6.0)
CHURN_GAP_S: Final = (0.0, 1.0)
SIGNAL_S: Final = 1.0  # time limit for a signal to affect every thread of a process
POLL_S: Final = 0.02


class Processes(Protocol):
    """Interface of the members."""

    def running(self, group: str | None = None) -> list[int]: ...

    def owned(self, slot: int) -> set[str]: ...

    def state(self, slot: int) -> str: ...

    def name(self, slot: int) -> str: ...

    def start(self, slots: Collection[int]) -> None: ...

    def kill(self, slots: Collection[int]) -> dict[int, str]: ...

    def stop(self, slots: Collection[int]) -> dict[int, str]: ...

    def pause(self, slots: Collection[int]) -> None: ...

    def resume(self, slots: Collection[int]) -> None: ...

    def note(self, slots: Collection[int], what: str) -> None: ...


class Places(Protocol):
    """Interface of the members' network."""

    def cut(self, slot: int, brokers: Collection[int]) -> None: ...

    def mend(self, slot: int) -> None: ...

    def reaches(self, slot: int, broker: int) -> bool: ...


class MembersNemesis(OwnKinds):
    """Injects faults into members.

    ``cluster.members``: the processes, None until they are created. ``cluster.member_places``:
    their networks; None without.
    """

    kinds = KINDS

    def __init__(
        self,
        cluster: Any,
        _ledger: object = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._sleep = sleep
        self._hit: list[tuple[FaultPlan, list[int]]] = []

    @property
    def _members(self) -> Processes | None:
        return getattr(self._cluster, "members", None)

    @property
    def _places(self) -> Places | None:
        return getattr(self._cluster, "member_places", None)

    def _why_not(self, kind: str) -> str:
        if kind == "member-partition" and self._places is None:
            return NO_NETWORK
        return ""

    # -- drawing

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        """Draw a fault. The targets are selected at its start by ``args`` (``choose``)."""
        args: dict[str, Any] = {"who": random.choice(HOW_MANY), "choice": random.random()}
        lengths = {"member-kill": DOWN_S, "member-pause": PAUSED_S, "member-partition": CUT_S}
        hold_s = random.uniform(*random.choice(lengths.get(kind, (CHURN_S,))))
        if kind == "member-partition":
            count = random.choice((1, shape.brokers, shape.brokers))
            args["brokers"] = sorted(random.sample(shape.broker_ids, count))
        if kind == "member-churn":
            args["gap_s"] = random.uniform(*CHURN_GAP_S)
        return FaultPlan(kind=kind, args=args, hold_s=hold_s)

    # -- injecting

    def begin(self, fault: FaultPlan) -> Effect:
        members = self._members
        if members is None:
            return not_injected(NO_MEMBERS)
        slots = choose(members, fault.args)
        if not slots:
            return not_injected("no member is running")
        self._hit.append((fault, slots))  # recorded first, so that a partial failure is undone too
        acts = {
            "member-kill": self._kill,
            "member-pause": self._pause,
            "member-partition": self._cut,
            "member-churn": self._leave,
        }
        who = [members.name(slot) for slot in slots]
        owned = sum(len(members.owned(slot)) for slot in slots)
        effect = acts[fault.kind](members, slots, fault)
        return Effect(effect.injected, {"members": who, "owned": owned, **effect.seen})

    def _kill(self, members: Processes, slots: list[int], _fault: FaultPlan) -> Effect:
        ended = members.kill(slots)
        return Effect(bool(ended), {"ended": sorted(set(ended.values()))})

    def _leave(self, members: Processes, slots: list[int], fault: FaultPlan) -> Effect:
        ended: dict[int, str] = {}
        for number, slot in enumerate(slots):
            if number:
                self._sleep(fault.args["gap_s"])
            ended |= members.stop([slot])
        return Effect(bool(ended), {"ended": sorted(set(ended.values()))})

    def _pause(self, members: Processes, slots: list[int], _fault: FaultPlan) -> Effect:
        members.pause(slots)
        states: dict[int, str] = {}
        for attempt in range(round(SIGNAL_S / POLL_S)):
            if attempt:
                self._sleep(POLL_S)
            states = {slot: members.state(slot) for slot in slots}
            if "running" not in states.values():
                break
        awake = [members.name(slot) for slot, state in states.items() if state == "running"]
        seen: dict[str, Any] = {"state": sorted(set(states.values()))}
        return Effect(not awake, {"why": f"not stopped: {awake}", **seen} if awake else seen)

    def _cut(self, members: Processes, slots: list[int], fault: FaultPlan) -> Effect:
        places, brokers = self._places, fault.args["brokers"]
        assert places is not None, "checked by why_not"
        for slot in slots:
            places.cut(slot, brokers)
        members.note(slots, "cut")
        through = [
            (members.name(slot), broker)
            for slot in slots
            for broker in brokers
            if places.reaches(slot, broker)
        ]
        seen = {"unreachable": brokers}
        return Effect(not through, {"why": f"still reached: {through}"} if through else seen)

    # -- undoing

    def end(self, fault: FaultPlan) -> Effect:
        """Resume or restart the affected members, or restore their connections."""
        place = next((at for at, (plan, _) in enumerate(self._hit) if plan is fault), None)
        if place is None:
            return Effect(True, {"nothing": "no member was affected"})
        _, slots = self._hit.pop(place)
        self._undo(fault, slots)
        members = self._members
        assert members is not None, "a member was affected"
        states = sorted({members.state(slot) for slot in slots})
        return Effect(True, {"state": states})

    def heal(self) -> None:
        while self._hit:
            fault, slots = self._hit.pop()
            self._undo(fault, slots)

    def _undo(self, fault: FaultPlan, slots: list[int]) -> None:
        members, places = self._members, self._places
        assert members is not None, "a member was affected"
        if fault.kind == "member-pause":
            members.resume(slots)
        elif fault.kind == "member-partition":
            assert places is not None, "a member was isolated"
            for slot in slots:
                places.mend(slot)
            members.note(slots, "mended")
        else:
            members.start(slots)


def choose(members: Processes, args: Mapping[str, Any]) -> list[int]:
    """Select the targets among the running members. The first is one that owns partitions, if there
    is one."""
    running = members.running()
    if not running:
        return []
    owners = [slot for slot in running if members.owned(slot)] or running
    first = owners[int(args["choice"] * len(owners))]
    if args["who"] == "one":
        return [first]
    if args["who"] == "some":
        return sorted({first, *running[:: max(2, int(args["choice"] * 4))]})
    group = members.name(first).partition("/")[0]
    return sorted(members.running(group))
