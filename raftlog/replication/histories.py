"""Histories of a cluster: the recoveries that its state has passed, by their random IDs.

A recovery without a majority of the voters continues from the state of one broker. Raft's rules do
not order it and what the others do: only the operator's word says that they are destroyed. If that
was wrong, two histories exist, both with acknowledged records. Brokers compare their histories
whenever they connect, so that neither overwrites the other unnoticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from raftlog import limits

Relation: TypeAlias = Literal["same", "behind", "ahead", "diverged"]

ID_CHARS: Final = 16  # hexadecimal: 64 random bits


def last(history: Sequence[str]) -> str:
    """Return the ID of the last recovery; empty if there was none."""
    return history[-1] if history else ""


def relation(mine: Sequence[str], theirs: Sequence[str]) -> Relation:
    """Compare two histories, each the oldest recovery first.

    "behind": ``theirs`` has all of ``mine``, and recoveries after that. "ahead": the reverse. Only
    the newest ``limits.RECOVERIES_KEPT`` are kept, so a history that has lost its beginning counts
    as a continuation if it contains the last recovery of the other one.
    """
    last_mine, last_theirs = last(mine), last(theirs)
    if last_mine == last_theirs:
        return "same"
    if not last_mine or last_mine in theirs:
        return "behind"
    if not last_theirs or last_theirs in mine:
        return "ahead"
    return "diverged"


def extended(history: Sequence[str], recovery: str) -> tuple[str, ...]:
    """Return the history after another recovery."""
    return (*history, recovery)[-limits.RECOVERIES_KEPT :]


def encode(history: Sequence[str]) -> str:
    """Return the history as brokers send it to each other."""
    return ",".join(history)


def decode(text: str) -> tuple[str, ...]:
    """Return the history that ``encode`` has encoded."""
    return tuple(text.split(",")) if text else ()
