"""Schedule: start and end of each fault, drawn from the run's seed before the run starts. Pure.

Each round contains all kinds in a shuffled order, so that each kind occurs even in a short run. A
quarter of the periods has no faults, so that recoveries can complete (jepsen-io/nats,
``package-gen``). With ``pairs``, two kinds overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from raftlog_jepsen.nemesis.base import FaultPlan

FIRST_S: Final = 2.0  # seconds of load before the first fault
LAST_S: Final = 3.0  # seconds of load without faults at the end
QUIET: Final = 0.25  # share of the periods
QUIET_S: Final = (3.0, 8.0)
BETWEEN_S: Final = (0.5, 3.0)  # from the end of a fault to the next
LEAD_S: Final = (0.1, 1.5)  # from the start of a pair's first fault to that of its second


@dataclass(frozen=True, slots=True)
class Step:
    """Start or end of a fault. ``at_s``: seconds since the load started. ``fault``: number of the
    fault in the run, the same for its start and end."""

    at_s: float
    phase: Literal["begin", "end"]
    fault: int
    plan: FaultPlan


def draw(
    kinds: Sequence[str],
    fault_of: Callable[[str, Random], FaultPlan],
    random: Random,
    *,
    time_s: float,
    pairs: bool = False,
) -> list[Step]:
    """Return the steps of a run of ``time_s`` seconds, in order; empty without kinds or if
    ``time_s`` is too short.

    ``fault_of(kind, random)`` draws one fault. Its ``hold_s`` determines its end.
    """
    steps: list[Step] = []
    turns = _turns(kinds, random)
    now, number = FIRST_S, 0
    while kinds and now < time_s - LAST_S:
        # No quiet period before each requested kind has occurred once.
        if number >= len(kinds) and random.random() < QUIET:
            now += random.uniform(*QUIET_S)
            continue
        begin, end = now, now
        for kind in _together(turns, pairs=pairs and len(kinds) > 1):
            number += 1
            plan = fault_of(kind, random)
            steps += (
                Step(begin, "begin", number, plan),
                Step(begin + plan.hold_s, "end", number, plan),
            )
            end = max(end, begin + plan.hold_s)
            begin += random.uniform(*LEAD_S)
        now = end + random.uniform(*BETWEEN_S)
    # A fault that would outlast the load ends before the load does.
    last = time_s - LAST_S
    cut = [Step(min(step.at_s, last), step.phase, step.fault, step.plan) for step in steps]
    return sorted(cut, key=lambda step: (step.at_s, step.phase == "end", step.fault))


def _turns(kinds: Sequence[str], random: Random) -> Iterator[str]:
    while True:
        order = list(kinds)
        random.shuffle(order)
        yield from order


def _together(turns: Iterator[str], *, pairs: bool) -> list[str]:
    first = next(turns)
    if not pairs:
        return [first]
    second = next(kind for kind in turns if kind != first)
    return [first, second]
