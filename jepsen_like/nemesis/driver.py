"""Plays a schedule of faults against a cluster, and writes down what came of each.

One thread. A fault that cannot be injected, or that the ledger forbids, is recorded as such; what
was begun is always ended, whatever happens in between.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from raftlog.errors import RaftlogError
from raftlog.jepsen_like.history import Fault, Note, Recorder
from raftlog.jepsen_like.nemesis.base import Effect, Expectation, FaultPlan, Nemesis, not_injected
from raftlog.jepsen_like.schedule import Step

PROCESS = "nemesis"


class Losses(Protocol):
    """What the driver asks of the ledger."""

    def may_lose(self, targets: Sequence[int]) -> str: ...

    def may_stop(self, targets: Sequence[int]) -> Expectation: ...


@dataclass
class Driver:
    """``play`` in a thread; ``active`` is what lasts at the moment, for people who look on.

    ``clock_s``: seconds since the load began.
    """

    nemeses: Mapping[str, Nemesis]
    ledger: Losses
    recorder: Recorder
    clock_s: Callable[[], float]
    active: dict[int, FaultPlan] = field(default_factory=dict)
    injected: dict[str, int] = field(default_factory=dict)  # how many, by kind

    def play(self, steps: Sequence[Step], stopping: threading.Event) -> None:
        """Do what the schedule says, until it ends or ``stopping`` is set; end what was begun."""
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
        """Undo everything, of every nemesis."""
        for nemesis in {id(each): each for each in self.nemeses.values()}.values():
            try:
                nemesis.heal()
            except Exception:  # noqa: BLE001 - the others have to be healed all the same
                self._trouble("a nemesis could not heal")

    def _begin(self, number: int, plan: FaultPlan) -> None:
        self._record("invoke", number, plan, "begin", Effect(True))
        nemesis = self.nemeses[plan.kind]
        why = nemesis.why_not(plan.kind)
        if not why and plan.lossy and plan.targets:
            why = self.ledger.may_lose(plan.targets)
        effect = not_injected(why) if why else self._do(nemesis.begin, plan)
        # What failed half-way has to be ended too; what was refused before it began, has not.
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
        except Exception:  # noqa: BLE001 - a bug of the harness is not a fault that did no harm
            self._trouble(f"the nemesis of {plan.kind} has a bug")
            return not_injected("a bug of the harness; see the notes")

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
        """With others at the same time, what is harmless alone may stop the cluster."""
        if plan.expects == "outage" or len(self.active) > 1:
            return "outage"
        return self.ledger.may_stop(targets)
