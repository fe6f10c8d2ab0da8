"""Outcomes of proposed commands. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Applied:
    """Committed, and applied on this broker. ``result``: the return value of the machine's
    ``apply``; for a seal, the number of the next generation.
    """

    result: object


@dataclass(frozen=True, slots=True)
class NotProposed:
    """The command has no effect, now or later: it can be proposed again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The command may have been applied, or may be later: only retry a compare-and-set."""

    reason: str


Outcome: TypeAlias = Applied | NotProposed | Unknown


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """The result of a command for which the machine raised, which is a bug of the machine."""

    error: str
