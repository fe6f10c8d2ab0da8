"""Interface of a nemesis: inject a fault, report the observed effect, and heal.

Faults are data, drawn by pure functions from the run's seed (``schedule``). A nemesis executes them
in a separate thread of the harness. It must not block for the duration of a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from raftlog_jepsen.plan import Shape

Expectation: TypeAlias = Literal["available", "outage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """One fault.

    ``hold_s``: seconds from its start to its end. ``targets``: broker ids; empty if the nemesis
    selects them at the start of the fault by ``args`` (such as the leader of a partition).
    ``lossy``: the fault removes durable data, so the fault budget must allow it.
    ``expects``: whether writes must continue if this is the only fault.
    """

    kind: str
    targets: tuple[int, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    hold_s: float = 0.0
    lossy: bool = False
    expects: Expectation = "available"


@dataclass(frozen=True, slots=True)
class Effect:
    """Observed effect. ``injected``: whether the fault is active. If not, ``seen`` contains the
    reason."""

    injected: bool
    seen: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[int, ...] = ()  # affected brokers, if the plan does not name them


def not_injected(why: str) -> Effect:
    return Effect(False, {"why": why})


class Nemesis(Protocol):
    """Kinds of fault with the same requirements, and their implementation."""

    @property
    def kinds(self) -> Mapping[str, str]:
        """Descriptions of the kinds, by name."""
        ...

    def why_not(self, kind: str) -> str:
        """Return why a kind cannot be injected on this machine and cluster; empty if it can."""
        ...

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        """Draw a fault of this kind. Pure: depends on the arguments only."""
        ...

    def begin(self, fault: FaultPlan) -> Effect:
        """Inject the fault. Exceptions other than ``OSError`` and ``RaftlogError`` are bugs of the
        nemesis."""
        ...

    def end(self, fault: FaultPlan) -> Effect:
        """Undo the effects of ``begin`` of the same fault, and restart the brokers that it
        stopped."""
        ...

    def heal(self) -> None:
        """Undo all faults, also after errors. Can be called at any time, and repeatedly."""
        ...


class OwnKinds:
    """Base of a nemesis with the kinds of fault in ``kinds``."""

    kinds: ClassVar[Mapping[str, str]] = {}

    def why_not(self, kind: str) -> str:
        """See ``Nemesis.why_not``."""
        if kind not in self.kinds:
            return f"{kind} is not a kind of this nemesis"
        return self._why_not(kind)

    def _why_not(self, _kind: str) -> str:
        """Return why the kind cannot be injected on this machine and cluster; empty if it can."""
        return ""
