"""The load of ``raftlog demo``: records in portions, some always left to send, and their receipts.

The run has stages. Each may send its part of the records, fast at first and then ever slower, so
that there is load however long the stage takes. Who decides on stages is in another thread.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

from raftlog import Producer
from raftlog.cli import output
from raftlog.cli.ledger import Ledger
from raftlog.client.delivery import RangesFuture

Lines: TypeAlias = Iterator[list[bytes]]

TICK_S: Final = 0.02
FADING_TICKS: Final = 100  # of what is left of a stage's part, one in so many is sent each tick
STEADY_TICKS: Final = 75  # of the first and the last stage, which have no reason to be slow


@dataclass(slots=True)
class _Portion:
    values: list[bytes]
    future: RangesFuture
    sent_at: float


class Load:
    """Sends ``total`` records in ``stages``; another thread moves ``stage`` on, from 0."""

    def __init__(self, producer: Producer, topic: str, *, total: int, stages: int) -> None:
        self.stage = 0
        self.sent = 0
        self.acknowledged = 0
        self.bytes_sent = 0
        self.longest_wait = 0.0  # seconds without an acknowledgement while some were due
        self._producer = producer
        self._topic = topic
        self._total = total
        self._stages = stages
        self.ledger = Ledger()
        self._in_flight: deque[_Portion] = deque()
        self._times: list[tuple[float, float]] = []  # of each portion: sent, acknowledged

    def _limit(self) -> int:
        """How many may be sent until the stage ends."""
        return self._total * (self.stage + 1) // self._stages

    @property
    def is_idle(self) -> bool:
        """Nothing to send in this stage, and nothing to wait for."""
        return self.sent >= self._limit() and self.acknowledged == self.sent

    def acknowledged_since(self, moment: float) -> float | None:
        """When the first record sent after ``moment`` was acknowledged; None if none is yet.

        Seconds of the monotonic clock.
        """
        after = bisect_right(self._times, (moment, math.inf))
        return self._times[after][1] if after < len(self._times) else None

    def run(self, lines: Lines, *, check: Callable[[], None], advance: output.Advance) -> None:
        """Send everything; return when it is acknowledged. ``check`` raises to end it early."""
        records = (line for part in lines for line in part)
        while self.sent < self._total or self._in_flight:
            check()
            values = list(islice(records, self._portion_size()))
            if values:
                future = self._producer.send_many(self._topic, values, partition=0)
                self._in_flight.append(_Portion(values, future, time.monotonic()))
                self.sent += len(values)
                self.bytes_sent += sum(map(len, values))
                advance(len(values))
            self._settle()
            time.sleep(TICK_S)

    def _portion_size(self) -> int:
        left = self._limit() - self.sent
        share = self._total // self._stages
        is_steady = self.stage in {0, self._stages - 1}
        size = share // STEADY_TICKS if is_steady else left // FADING_TICKS
        return min(max(size, 1), left)

    def _settle(self) -> None:
        """Enter the acknowledgements that are there, in the order of sending."""
        while self._in_flight and self._in_flight[0].future.done():
            portion, now = self._in_flight.popleft(), time.monotonic()
            ranges = portion.future.result()
            offsets = [at for part in ranges for at in range(part.first, part.last + 1)]
            self.ledger.acknowledge(portion.values, offsets)
            due_since = max(portion.sent_at, self._times[-1][1] if self._times else 0.0)
            self.longest_wait = max(self.longest_wait, now - due_since)
            self._times.append((portion.sent_at, now))
            self.acknowledged += len(portion.values)
