"""Points of the console's plots: samples of the last hours, in memory, for all users."""

from __future__ import annotations

import logging
import threading
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from raftlog import Admin, limits
from raftlog.clock import Clock
from raftlog.errors import RaftlogError, UnknownGroupError
from raftlog.types import OffsetAndTimestamp, TopicPartition
from raftlog_cli.overview import Sample, rates_of

logger = logging.getLogger(__name__)

# After a sample that took 1 s, to use at most 1 % of one core. A request that waits for its timeout
# uses no core, so no pause is longer than PAUSE_S_MAX.
PAUSE_FACTOR: Final = 99.0
PAUSE_S_MAX: Final = 120.0


class Points:
    """The last ``CONSOLE_POINTS_MAX`` points of a plot; 16 bytes each."""

    def __init__(self) -> None:
        self._numbers = array("d")

    def add(self, wall_s: float, value: float) -> None:
        self._numbers.extend((wall_s, value))
        del self._numbers[: -2 * limits.CONSOLE_POINTS_MAX]

    def listed(self) -> list[tuple[float, float]]:
        """Return wall-clock times in seconds, and values."""
        return list(zip(self._numbers[::2], self._numbers[1::2], strict=True))


class History:
    """New records per second of the cluster, and the lag of consumer groups. Thread-safe.

    Of the groups, those that were viewed last are sampled, and then others in the order of their
    names, ``CONSOLE_GROUPS_KEPT_MAX`` in all.
    """

    def __init__(self, *, is_timed: bool) -> None:
        """``is_timed``: ``sample`` is called by a timer. Otherwise, views of pages add points."""
        self._is_timed = is_timed
        self._lock = threading.Lock()
        self._before: Sample | None = None
        self._rates = Points()
        self._lags: OrderedDict[str, Points] = OrderedDict()  # of groups, the last viewed one last

    def sample(self, admin: Admin, at_s: float, wall_s: float) -> None:
        """Add a point to each plot. Raises the errors of the client.

        ``at_s``: monotonic seconds.
        """
        now = Sample(at_s, admin.summarize_cluster())
        rates = rates_of(now, self._before)
        self._before = now
        if rates is not None:
            with self._lock:
                self._rates.add(wall_s, sum(rates.values()))
        lags = _lags_of(admin, self._chosen([row.group for row in admin.list_groups()]))
        with self._lock:
            for group, lag in lags.items():
                self._points_of(group, is_viewed=False).add(wall_s, lag)

    def _chosen(self, listed: Sequence[str]) -> list[str]:
        """Return the groups to sample, and forget those that do not exist."""
        existing = set(listed)
        with self._lock:
            for name in [name for name in self._lags if name not in existing]:
                del self._lags[name]
            known = list(reversed(self._lags))
        new = sorted(existing.difference(known))
        return (known + new)[: limits.CONSOLE_GROUPS_KEPT_MAX]

    def _points_of(self, group: str, *, is_viewed: bool) -> Points:
        points = self._lags.get(group)
        if points is None:
            points = self._lags[group] = Points()
            self._lags.move_to_end(group, last=is_viewed)
            while len(self._lags) > limits.CONSOLE_GROUPS_KEPT_MAX:
                self._lags.popitem(last=False)
        elif is_viewed:
            self._lags.move_to_end(group)
        return points

    def rates(self, rate: float | None, wall_s: float) -> list[tuple[float, float]]:
        """Return the points of new records per second, and that of now: ``rate``, None if it is
        unknown.
        """
        with self._lock:
            return self._with_now(self._rates, rate, wall_s)

    def lags(self, group: str, lag: int, wall_s: float) -> list[tuple[float, float]]:
        """Return the points of a group that is viewed, and that of now."""
        with self._lock:
            return self._with_now(self._points_of(group, is_viewed=True), lag, wall_s)

    def _with_now(
        self, points: Points, value: float | None, wall_s: float
    ) -> list[tuple[float, float]]:
        shown = points.listed()
        if value is not None:
            shown.append((wall_s, value))
            if not self._is_timed:
                points.add(wall_s, value)
        return shown


def _lags_of(admin: Admin, groups: Sequence[str]) -> dict[str, int]:
    """Return the sums of known lags, as ``GroupDescription.lag``. A description also reads the time
    of the first unread records, which costs three times as much.
    """
    committed = {}
    for group in groups:
        with suppress(UnknownGroupError):  # deleted since
            committed[group] = admin.group_offsets(group)
    by_topic: Mapping[str, set[TopicPartition]] = defaultdict(set)
    for offsets in committed.values():
        for tp in offsets:
            by_topic[tp.topic].add(tp)
    starts: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    ends: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    for partitions in by_topic.values():
        with suppress(RaftlogError):  # deleted since, or without a leader
            starts.update(admin.list_offsets(dict.fromkeys(partitions, "earliest")))
            ends.update(admin.list_offsets(dict.fromkeys(partitions, "latest")))
    return {
        group: sum(
            max(0, end.offset - max(start.offset, at.offset))
            for tp, at in offsets.items()
            if (start := starts.get(tp)) is not None and (end := ends.get(tp)) is not None
        )
        for group, offsets in committed.items()
    }


class Sampler:
    """Thread that adds a sample to a history every ``CONSOLE_SAMPLE_S``, from ``start`` to
    ``close``.
    """

    def __init__(self, history: History, make_admin: Callable[[], Admin], clock: Clock) -> None:
        self._history = history
        self._make_admin = make_admin
        self._clock = clock
        self._admin: Admin | None = None
        self._is_ended = threading.Event()

    def start(self) -> None:
        self._admin = self._make_admin()
        threading.Thread(
            target=self._run, args=(self._admin,), name="raftlog-console-samples", daemon=True
        ).start()

    def _run(self, admin: Admin) -> None:
        pause_s = 0.0
        while not self._is_ended.wait(pause_s):
            pause_s = self.sample(admin)

    def sample(self, admin: Admin) -> float:
        """Add a sample, and return the seconds until the next one."""
        began = self._clock.monotonic()
        try:
            self._history.sample(admin, began, self._clock.wall_ms() / 1_000)
        except RaftlogError as error:  # brokers start, or are down: the plots have a gap
            logger.debug("no sample for the plots of the console: error=%s", error)
        except Exception:
            logger.exception("sample for the plots of the console failed")
        cost_s = self._clock.monotonic() - began
        return max(limits.CONSOLE_SAMPLE_S, min(PAUSE_FACTOR * cost_s, PAUSE_S_MAX))

    def close(self) -> None:
        """Stop. A request in progress fails. Blocking."""
        self._is_ended.set()
        if self._admin is not None:
            self._admin.close()
