"""Timer coalescing: long waits end together, so that an idle broker sleeps longer.

A wait of a second or more ends up to a tenth of a second late, at a time shared with many others.
Clients that are answered together also return together: a thousand idle clients wake a broker a few
times a second, not hundreds of times (like ``timer_slack`` of Linux and coalesced timers
elsewhere).
"""

from __future__ import annotations

import math
from typing import Final

SLACK_S: Final = 0.1
LONG_S: Final = 1.0  # a shorter wait ends at its exact time


def coalesced_deadline(now: float, wait_s: float) -> float:
    """Return the end of a wait of ``wait_s`` seconds that begins ``now``, on the same clock."""
    end = now + wait_s
    return end if wait_s < LONG_S else math.ceil(end / SLACK_S) * SLACK_S
