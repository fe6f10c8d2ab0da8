"""Outcomes of proposed commands. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Applied:
    """Committed, and applied on this broker; ``result`` is what the machine's ``apply`` returned.

    Of a seal it is the number of the generation that begins.
    """

    result: object


@dataclass(frozen=True, slots=True)
class NotProposed:
    """Certainly without effect, now and later: it may be proposed again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Maybe applied, maybe not, maybe later: only a compare-and-set may be proposed again."""

    reason: str


Outcome: TypeAlias = Applied | NotProposed | Unknown


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """The result of a command at which the machine raised, which is a defect of the machine."""

    error: str
