"""When long waits end: together, so that a broker that has little to do sleeps for longer.

A wait of a second or more ends up to a tenth of a second late, at a time that many others end at.
What is answered together comes back together: a thousand clients at rest wake a broker a few times
a second, not hundreds of times (as ``timer_slack`` of Linux and coalesced timers elsewhere do).
"""

from __future__ import annotations

import math
from typing import Final

SLACK_S: Final = 0.1
LONG_S: Final = 1.0  # a shorter wait ends when it was said to


def coalesced_deadline(now: float, wait_s: float) -> float:
    """When a wait of ``wait_s`` seconds that begins ``now`` is to end; the same clock."""
    end = now + wait_s
    return end if wait_s < LONG_S else math.ceil(end / SLACK_S) * SLACK_S
