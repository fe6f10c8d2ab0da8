"""Counters and duration histograms of a broker: plain numbers, without a library.

Requests and syncs only add to them, which costs less than a microsecond each; nothing is counted
per record. ``raftlog.server.http`` reads them when metrics are requested. Values that the broker
has anyway, such as the number of partitions, are not counted here: they are read at that time.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from raftlog import limits
from raftlog.config.broker import LOGGING_LEVELS
from raftlog.errors import InvalidRequestError

# Upper bounds of the buckets, in seconds. Above the last one is one more bucket.
BOUNDS_SECONDS: Final = (
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
COUNT_SECONDS: Final = 1.0


class Durations:
    """Histogram of durations, in seconds. ``observe(seconds)`` adds one.

    Requests only append to a list, which ``count_pending`` sorts into the buckets: a search for the
    bucket of each single duration would cost several times as much.
    """

    __slots__ = ("_counts", "_pending", "_sum_seconds", "observe")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self._sum_seconds = 0.0
        self._pending: list[float] = []
        self.observe: Callable[[float], None] = self._pending.append

    @property
    def counts(self) -> list[int]:
        """One entry per bucket of ``BOUNDS_SECONDS``, and one for longer durations."""
        self.count_pending()
        return self._counts

    @property
    def sum_seconds(self) -> float:
        self.count_pending()
        return self._sum_seconds

    def count_pending(self) -> None:
        """Count what was observed since the last call. Takes 0.1 µs per duration."""
        pending, counts, below = self._pending, self._counts, 0
        if not pending:
            return  # most histograms of an idle broker, once per second
        pending.sort()
        for bucket, bound in enumerate(BOUNDS_SECONDS):
            end = bisect_right(pending, bound, below)
            counts[bucket] += end - below
            below = end
        counts[-1] += len(pending) - below
        self._sum_seconds += sum(pending)
        pending.clear()


def _no_time() -> float:
    return 0.0


@dataclass(slots=True)
class Counters:
    """Counters since the start of the broker.

    ``now``: monotonic seconds, for durations.
    """

    now: Callable[[], float] = _no_time
    connections_accepted: int = 0
    connections_refused: int = 0  # over max.connections
    throttled: int = 0  # requests whose clients had to wait, because of a quota
    quota_refusals: int = 0  # connections over a quota
    audit_dropped: int = 0  # events that are not in the audit topic
    damage_found: int = 0  # corrupt logs that were found after their start
    mistakes: int = 0  # internal errors in handlers: each is in the broker's log with its traceback
    produced_batches: int = 0
    produced_records: int = 0
    produced_bytes: int = 0
    fetched_bytes: int = 0  # sent to consumers
    replicated_bytes: int = 0  # copied from leaders
    scrubbed_bytes: int = 0
    compactions: int = 0
    compacted_records: int = 0  # removed by compaction
    request_errors: dict[str, int] = field(default_factory=dict)  # by the class of the error
    # By the name of the API.
    request_seconds: defaultdict[str, Durations] = field(
        default_factory=lambda: defaultdict(Durations)
    )
    fsync_seconds: Durations = field(default_factory=Durations)
    commit_seconds: Durations = field(default_factory=Durations)
    replica_append_seconds: Durations = field(default_factory=Durations)
    queue_seconds: Durations = field(default_factory=Durations)  # waits for a turn of the loop

    def request_ended(self, api: str, began: float) -> None:
        """Count a request that began at ``began`` and is answered now."""
        self.request_seconds[api].observe(self.now() - began)

    def count_pending(self) -> None:
        """Call it every ``COUNT_SECONDS``: until then, durations of requests take memory."""
        for durations in self.request_seconds.values():
            durations.count_pending()
        self.fsync_seconds.count_pending()
        self.commit_seconds.count_pending()
        self.replica_append_seconds.count_pending()
        self.queue_seconds.count_pending()

    def request_failed(self, error: Exception) -> None:
        """Count an error that a client receives, for a request or for one of its partitions."""
        name = type(error).__name__
        self.request_errors[name] = self.request_errors.get(name, 0) + 1


# -- log levels ------------------------------------------------------------------------------------
#
# Levels of the loggers of this process, which operators can change while it runs.
#
# A change ends with the process. Only loggers that exist can be changed, so that requests cannot
# make their number grow.


ROOT: Final = "root"

logger = logging.getLogger(__name__)


class LoggerLevel(NamedTuple):
    """``is_own``: the level was set for this logger, and is not that of one above it."""

    name: str
    level: str
    is_own: bool


def describe() -> Iterator[LoggerLevel]:
    """Return the root logger and all others, by name; ``LOGGERS_MAX`` at most."""
    for name in [ROOT, *sorted(logging.root.manager.loggerDict)][: limits.LOGGERS_MAX]:
        found = logging.root if name == ROOT else logging.root.manager.loggerDict[name]
        if isinstance(found, logging.Logger):  # a place holder has no level
            level = logging.getLevelName(found.getEffectiveLevel()).lower()
            yield LoggerLevel(name, level, found.level != logging.NOTSET)


def alter(changes: Mapping[str, str | None], *, default: str) -> None:
    """Set the level of each logger: all of them, or none.

    ``changes``: None for the level of the next logger above. The root logger then has ``default``,
    the setting of the broker. Raises ``InvalidRequestError`` for an unknown logger or level.
    """
    for name, level in changes.items():
        if name != ROOT and name not in logging.root.manager.loggerDict:
            raise InvalidRequestError(
                f"this broker has no logger {name!r}. Request the levels to see their names; the "
                f"one above all is {ROOT!r}"
            )
        if level is not None and level not in LOGGING_LEVELS:
            raise InvalidRequestError(
                f"{level!r} is not a log level: use {', '.join(LOGGING_LEVELS)}"
            )
    for name, level in changes.items():
        is_root = name == ROOT
        chosen = default if level is None and is_root else level
        number = logging.NOTSET if chosen is None else chosen.upper()
        (logging.root if is_root else logging.getLogger(name)).setLevel(number)
        logger.warning("log level changed: logger=%s level=%s", name, chosen or "inherited")
