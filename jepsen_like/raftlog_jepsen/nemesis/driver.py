"""Driver: executes a schedule of faults on a cluster and records the effect of each fault.

Runs in one thread. A fault that cannot be injected, or that the fault budget forbids, is recorded
as not injected. A started fault is always ended, also after errors.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Literal, NamedTuple, Protocol

from raftlog.errors import RaftlogError
from raftlog.testing.history import Fault, Note, Recorder
from raftlog_jepsen.nemesis.base import Effect, Expectation, FaultPlan, Nemesis, not_injected
from raftlog_jepsen.nemesis.damage import DamageNemesis
from raftlog_jepsen.nemesis.disks import DisksNemesis
from raftlog_jepsen.nemesis.failpoints import FailpointsNemesis
from raftlog_jepsen.nemesis.losses import LossesNemesis, VanishNemesis
from raftlog_jepsen.nemesis.members import MembersNemesis
from raftlog_jepsen.nemesis.membership import AdministrationNemesis, MembershipNemesis
from raftlog_jepsen.nemesis.network import LinksNemesis, NetworkNemesis
from raftlog_jepsen.nemesis.process import (
    ClocksNemesis,
    PowerNemesis,
    ProcessNemesis,
    ResourcesNemesis,
)

PROCESS = "nemesis"


class Losses(Protocol):
    """Interface of the fault budget that the driver uses."""

    def may_lose(self, targets: Sequence[int]) -> str: ...

    def may_stop(self, targets: Sequence[int]) -> Expectation: ...


@dataclass
class Driver:
    """Executes faults. Call ``play`` in a thread. ``active``: current faults, for display.

    ``clock_s``: seconds since the load started.
    """

    nemeses: Mapping[str, Nemesis]
    ledger: Losses
    recorder: Recorder
    clock_s: Callable[[], float]
    active: dict[int, FaultPlan] = field(default_factory=dict)
    injected: dict[str, int] = field(default_factory=dict)  # number by kind

    def play(self, steps: Sequence[Step], stopping: threading.Event) -> None:
        """Execute the schedule until it ends or ``stopping`` is set. Then end all active faults."""
        for step in steps:
            if stopping.wait(max(0.0, step.at_s - self.clock_s())):
                break
            if step.phase == "begin":
                self._begin(step.fault, step.plan)
            elif step.fault in self.active:
                self._end(step.fault, step.plan)
        for number, plan in list(self.active.items()):
            self._end(number, plan)

    def heal(self) -> None:
        """Undo the faults of every nemesis."""
        for nemesis in {id(each): each for each in self.nemeses.values()}.values():
            try:
                nemesis.heal()
            except Exception:  # noqa: BLE001 - the other nemeses must heal, too
                self._trouble("a nemesis could not heal")

    def _begin(self, number: int, plan: FaultPlan) -> None:
        self._record("invoke", number, plan, "begin", Effect(True))
        nemesis = self.nemeses[plan.kind]
        why = nemesis.why_not(plan.kind)
        if not why and plan.lossy and plan.targets:
            why = self.ledger.may_lose(plan.targets)
        effect = not_injected(why) if why else self._do(nemesis.begin, plan)
        # A fault with a partial failure must be ended, too, but not one that was not started.
        if not why:
            self.active[number] = plan
        if effect.injected:
            self.injected[plan.kind] = self.injected.get(plan.kind, 0) + 1
        self._record("info", number, plan, "begin", effect)

    def _end(self, number: int, plan: FaultPlan) -> None:
        self._record("invoke", number, plan, "end", Effect(True))
        effect = self._do(self.nemeses[plan.kind].end, plan)
        self.active.pop(number, None)
        self._record("info", number, plan, "end", effect)

    def _do(self, act: Callable[[FaultPlan], Effect], plan: FaultPlan) -> Effect:
        try:
            return act(plan)
        except (OSError, RaftlogError) as error:
            return not_injected(f"{type(error).__name__}: {error}")
        except Exception:  # noqa: BLE001 - a bug of the harness is not a fault without an effect
            self._trouble(f"the nemesis of {plan.kind} has a bug")
            return not_injected("internal error of the harness; see the notes")

    def _trouble(self, what: str) -> None:
        text = f"{what}: {traceback.format_exc(limit=-6)}"
        self.recorder.record(Note(time=0, process=PROCESS, type="info", text=text, is_trouble=True))

    def _record(
        self,
        type_: Literal["invoke", "info"],
        number: int,
        plan: FaultPlan,
        phase: Literal["begin", "end"],
        effect: Effect,
    ) -> None:
        targets = effect.targets or plan.targets
        self.recorder.record(
            Fault(
                time=0,
                process=PROCESS,
                type=type_,
                id=number,
                kind=plan.kind,
                phase=phase,
                targets=list(targets),
                args=dict(plan.args),
                effect=dict(effect.seen),
                injected=effect.injected,
                expects=self._expects(plan, targets),
            )
        )

    def _expects(self, plan: FaultPlan, targets: Sequence[int]) -> Expectation:
        """Return the expectation. Several active faults together may always cause an outage."""
        if plan.expects == "outage" or len(self.active) > 1:
            return "outage"
        return self.ledger.may_stop(targets)


# -- registry --------------------------------------------------------------------------------------
#
# Registry of nemeses: their kinds of fault and the requirements of these.


class Home(NamedTuple):
    """Some kinds of one nemesis. ``maker``: creates it from a cluster and its fault budget.

    ``needs``: requirements of the kinds, see ``cluster.Needs``.
    """

    maker: Callable[[Any, Any], Nemesis]
    kinds: tuple[str, ...]
    needs: tuple[str, ...] = ()


HOMES: Final[tuple[Home, ...]] = (
    Home(ProcessNemesis, ("kill", "storm", "pause")),
    Home(NetworkNemesis, ("partition", "one-way"), ("namespaces",)),
    Home(NetworkNemesis, ("slow-link",), ("namespaces",)),
    Home(
        LinksNemesis,
        ("link-delay", "link-stall", "link-reset", "link-garble", "link-late"),
        ("relays", "client_relays"),
    ),
    Home(PowerNemesis, ("power",), ("loop_disks",)),
    Home(DisksNemesis, ("disk-full", "read-only", "disk-error"), ("loop_disks",)),
    Home(
        FailpointsNemesis,
        ("crash-at", "slow-disk", "hung-disk", "pause-inside", "disk-error-at"),
        ("failpoints",),
    ),
    Home(DamageNemesis, ("corrupt", "truncate", "rollback")),
    Home(LossesNemesis, ("wipe", "swap-disks", "old-backup")),
    Home(VanishNemesis, ("vanish",)),
    Home(ClocksNemesis, ("clock-jump", "clock-strobe"), ("fake_time",)),
    Home(ClocksNemesis, ("clock-bases",), ("time_namespaces",)),
    Home(ResourcesNemesis, ("fds", "memory", "cpu")),
    Home(AdministrationNemesis, ("transfer", "topics", "settings")),
    Home(MembershipNemesis, ("decommission", "reassign", "replication-factor", "rolling-restart")),
    Home(MembersNemesis, ("member-kill", "member-pause", "member-churn")),
    Home(MembersNemesis, ("member-partition",), ("namespaces", "member_places")),
)

KINDS: Final[Mapping[str, Home]] = {kind: home for home in HOMES for kind in home.kinds}

# Group names: each expands to several kinds.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "process": ("kill", "storm", "pause"),
    "network": ("partition", "one-way", "slow-link"),
    "links": ("link-delay", "link-stall", "link-reset", "link-garble", "link-late"),
    "disk": ("disk-full", "read-only", "disk-error", "slow-disk", "hung-disk", "disk-error-at"),
    "damage": ("corrupt", "truncate", "rollback"),
    "losses": ("wipe", "swap-disks", "old-backup", "vanish"),
    "clocks": ("clock-jump", "clock-strobe", "clock-bases"),
    "resources": ("fds", "memory", "cpu"),
    "admin": ("transfer", "topics", "settings"),
    "membership": ("decommission", "reassign", "replication-factor", "rolling-restart"),
    "members": ("member-kill", "member-pause", "member-churn", "member-partition"),
    "all": tuple(KINDS),
}


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds that ``names`` of kinds and groups expand to, each once, in order.

    Raises ``ValueError`` if a name is unknown.
    """
    kinds: dict[str, None] = {}
    for name in names:
        if name not in KINDS and name not in GROUPS:
            raise ValueError(
                f"unknown kind of fault {name!r}. Use {', '.join(KINDS)}, or a "
                f"group: {', '.join(GROUPS)}"
            )
        kinds |= dict.fromkeys(GROUPS.get(name, (name,)))
    return tuple(kinds)


def needs_of(kinds: Collection[str]) -> set[str]:
    """Return the requirements of these kinds: names of fields of ``cluster.Needs``."""
    return {need for kind in kinds for need in KINDS[kind].needs}


def make(kinds: Collection[str], cluster: Any, ledger: Any) -> dict[str, Nemesis]:
    """Create the nemesis of each kind. Kinds of the same class share one object."""
    makers = {KINDS[kind].maker for kind in kinds}
    made = {maker: maker(cluster, ledger) for maker in makers}
    return {kind: made[KINDS[kind].maker] for kind in kinds}


# -- schedule --------------------------------------------------------------------------------------
#
# Schedule: start and end of each fault, drawn from the run's seed before the run starts. Pure.
#
# Each round contains all kinds in a shuffled order, so that each kind occurs even in a short run. A
# quarter of the periods has no faults, so that recoveries can complete (jepsen-io/nats,
# ``package-gen``). With ``pairs``, two kinds overlap.


FIRST_S: Final = 2.0  # seconds of load before the first fault
LAST_S: Final = 3.0  # seconds of load without faults at the end
QUIET: Final = 0.25  # share of the periods
QUIET_S: Final = (3.0, 8.0)
BETWEEN_S: Final = (0.5, 3.0)  # from the end of a fault to the next
LEAD_S: Final = (0.1, 1.5)  # from the start of a pair's first fault to that of its second


@dataclass(frozen=True, slots=True)
class Step:
    """Start or end of a fault. ``at_s``: seconds since the load started. ``fault``: number of the
    fault in the run, the same for its start and end."""

    at_s: float
    phase: Literal["begin", "end"]
    fault: int
    plan: FaultPlan


def draw(
    kinds: Sequence[str],
    fault_of: Callable[[str, Random], FaultPlan],
    random: Random,
    *,
    time_s: float,
    pairs: bool = False,
) -> list[Step]:
    """Return the steps of a run of ``time_s`` seconds, in order; empty without kinds or if
    ``time_s`` is too short.

    ``fault_of(kind, random)`` draws one fault. Its ``hold_s`` determines its end.
    """
    steps: list[Step] = []
    turns = _turns(kinds, random)
    now, number = FIRST_S, 0
    while kinds and now < time_s - LAST_S:
        # No quiet period before each requested kind has occurred once.
        if number >= len(kinds) and random.random() < QUIET:
            now += random.uniform(*QUIET_S)
            continue
        begin, end = now, now
        for kind in _together(turns, pairs=pairs and len(kinds) > 1):
            number += 1
            plan = fault_of(kind, random)
            steps += (
                Step(begin, "begin", number, plan),
                Step(begin + plan.hold_s, "end", number, plan),
            )
            end = max(end, begin + plan.hold_s)
            begin += random.uniform(*LEAD_S)
        now = end + random.uniform(*BETWEEN_S)
    # A fault that would outlast the load ends before the load does.
    last = time_s - LAST_S
    cut = [Step(min(step.at_s, last), step.phase, step.fault, step.plan) for step in steps]
    return sorted(cut, key=lambda step: (step.at_s, step.phase == "end", step.fault))


def _turns(kinds: Sequence[str], random: Random) -> Iterator[str]:
    while True:
        order = list(kinds)
        random.shuffle(order)
        yield from order


def _together(turns: Iterator[str], *, pairs: bool) -> list[str]:
    first = next(turns)
    if not pairs:
        return [first]
    second = next(kind for kind in turns if kind != first)
    return [first, second]
