"""What a broker counts. Plain numbers: how they are shown is decided elsewhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Since the broker started."""

    connections_accepted: int = 0
    connections_refused: int = 0  # over max.connections
    requests: int = 0
    damage_found: int = 0  # in logs that were taken for good
    mistakes: int = 0  # of ours, in a handler: each is in the broker's log with its traceback
