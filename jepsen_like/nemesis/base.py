"""What a nemesis is: something that does harm on command, says what came of it, and heals.

Faults are data, drawn by pure functions from the run's seed (``schedule``); a nemesis acts on them.
It runs in the harness's own thread and may block for a moment, never for as long as the fault
lasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, Protocol, TypeAlias

from raftlog.jepsen_like.plan import Shape

Expectation: TypeAlias = Literal["available", "outage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """One fault. ``hold_s``: from its beginning to its end. ``targets``: brokers' ids; empty where
    the nemesis chooses by what it finds then (such as the leader), by ``args``.

    ``lossy``: it takes away what a disk had: the ledger has to agree first.
    ``expects``: whether writes should go on while it lasts, with it alone.
    """

    kind: str
    targets: tuple[int, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    hold_s: float = 0.0
    lossy: bool = False
    expects: Expectation = "available"


@dataclass(frozen=True, slots=True)
class Effect:
    """What was observed. ``injected``: the fault is really there; if not, ``seen`` says why."""

    injected: bool
    seen: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[int, ...] = ()  # whom it hit, where the plan did not say


def not_injected(why: str) -> Effect:
    return Effect(False, {"why": why})


class Nemesis(Protocol):
    """Some kinds of fault that need the same means."""

    @property
    def kinds(self) -> Mapping[str, str]:
        """The kinds by name, with a sentence each."""
        ...

    def why_not(self, kind: str) -> str:
        """Why a kind cannot be injected on this machine and cluster; empty if it can."""
        ...

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        """A fault of this kind. Pure: the same draw for the same state of ``random``."""
        ...

    def begin(self, fault: FaultPlan) -> Effect:
        """Do it. An exception other than ``OSError`` and ``RaftlogError`` is a bug in here."""
        ...

    def end(self, fault: FaultPlan) -> Effect:
        """Undo what ``begin`` of the same fault did; the brokers that it took down run again."""
        ...

    def heal(self) -> None:
        """Undo everything, whatever went wrong before; may be called at any time, and twice."""
        ...
