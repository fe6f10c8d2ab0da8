"""Counters of a broker: plain numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Counters since the start of the broker."""

    connections_accepted: int = 0
    connections_refused: int = 0  # over max.connections
    requests: int = 0
    damage_found: int = 0  # corrupt logs that were found after their start
    mistakes: int = 0  # internal errors in handlers: each is in the broker's log with its traceback
