"""The cluster as the console's pages share it: one description for all, and points of plots."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from raftlog import Admin, limits
from raftlog.cli.overview import Sample, rates_of

KEPT_S_MIN: Final = 1.0
KEPT_FACTOR: Final = 9.0  # a description that took 1 s is kept for 9 s: a tenth of one core at most

Points = deque[tuple[float, float]]  # wall-clock time in seconds, value


class ClusterView:
    """Describes the cluster when a page needs it. Threads can share it."""

    def __init__(
        self, admin: Admin, monotonic: Callable[[], float], wall_s: Callable[[], float]
    ) -> None:
        self._admin = admin
        self._monotonic = monotonic
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._before: Sample | None = None
        self._now: Sample | None = None
        self._kept_until = 0.0
        self.rates: Points = deque(maxlen=limits.CONSOLE_POINTS_MAX)
        self._lags: OrderedDict[str, Points] = OrderedDict()

    def samples(self) -> tuple[Sample, Sample | None]:
        """The current description, and the one before it. Raises the errors of the client."""
        with self._lock:
            started = self._monotonic()
            if self._now is None or started >= self._kept_until:
                described = self._admin.describe_cluster()
                ended = self._monotonic()
                self._before, self._now = self._now, Sample(ended, described)
                self._kept_until = ended + max(KEPT_S_MIN, KEPT_FACTOR * (ended - started))
                rates = rates_of(self._now, self._before)
                if rates is not None:
                    self.rates.append((self._wall_s(), sum(rates.values())))
            return self._now, self._before

    def lags(self, group: str, lag: int) -> list[tuple[float, float]]:
        """Add the lag of a group now, and return all points since it was first viewed."""
        with self._lock:
            points = self._lags.pop(group, None)
            if points is None:
                points = deque(maxlen=limits.CONSOLE_POINTS_MAX)
            points.append((self._wall_s(), lag))
            self._lags[group] = points
            while len(self._lags) > limits.CONSOLE_GROUPS_KEPT_MAX:
                self._lags.popitem(last=False)
            return list(points)
