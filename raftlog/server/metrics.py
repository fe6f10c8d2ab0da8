"""Counters and duration histograms of a broker: plain numbers, without a library.

Requests and syncs only add to them, which costs less than a microsecond each; nothing is counted
per record. ``raftlog.server.http`` reads them when metrics are requested. Values that the broker
has anyway, such as the number of partitions, are not counted here: they are read at that time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

# Upper bounds of the buckets, in seconds. Above the last one is one more bucket.
BOUNDS_SECONDS: Final = (
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip


class Durations:
    """Histogram of durations. ``counts`` has one entry per bucket of ``BOUNDS_SECONDS``, and one
    for longer durations.
    """

    __slots__ = ("counts", "sum_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self.sum_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Add one duration."""
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.sum_seconds += seconds


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
    requests: int = 0
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
    request_seconds: dict[str, Durations] = field(default_factory=dict)  # by the name of the API
    fsync_seconds: Durations = field(default_factory=Durations)
    commit_seconds: Durations = field(default_factory=Durations)
    replica_append_seconds: Durations = field(default_factory=Durations)

    def request_ended(self, api: str, began: float) -> None:
        """Count a request that arrived at ``began`` and is answered now."""
        seconds = self.now() - began
        try:
            durations = self.request_seconds[api]
        except KeyError:
            durations = self.request_seconds[api] = Durations()
        # Not a call of ``observe``: this runs for each request.
        durations.counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        durations.sum_seconds += seconds

    def request_failed(self, error: Exception) -> None:
        """Count an error that a client receives, for a request or for one of its partitions."""
        name = type(error).__name__
        self.request_errors[name] = self.request_errors.get(name, 0) + 1
