"""Driver: executes a schedule of faults on a cluster and records the effect of each fault.

Runs in one thread. A fault that cannot be injected, or that the fault budget forbids, is recorded
as not injected. A started fault is always ended, also after errors.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from raftlog.errors import RaftlogError
from raftlog.testing.history.entries import Fault, Note, Recorder
from raftlog_jepsen.nemesis.base import Effect, Expectation, FaultPlan, Nemesis, not_injected
from raftlog_jepsen.schedule import Step

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
