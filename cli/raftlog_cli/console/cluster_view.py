"""Cached descriptions of the cluster, which all pages of the console share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

from raftlog import Admin, limits
from raftlog_cli.overview import Sample

KEPT_S_MIN: Final = 1.0
KEPT_FACTOR: Final = (
    9.0  # a description that took 1 s is cached for 9 s, to use at most 10 % of one core
)

CLUSTER: Final = "/"  # name of the description of all topics; no topic has this name

T = TypeVar("T")


class ClusterView:
    """Describes the cluster and single topics on demand. Thread-safe.

    A description is cached for ``KEPT_S_MIN`` or ``KEPT_FACTOR`` times its cost, if that is longer.
    """

    def __init__(self, admin: Admin, monotonic: Callable[[], float]) -> None:
        self._admin = admin
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, Any]] = OrderedDict()  # expiry, value
        self._before: Sample | None = None
        self._now: Sample | None = None

    def kept(self, name: str, describe: Callable[[], T]) -> T:
        """Return the cached description of this name, or a new one. Raises the errors of
        ``describe``.
        """
        with self._lock:
            started = self._monotonic()
            until, value = self._kept.get(name, (started, None))
            if started < until:
                found: T = value
                return found
            found = describe()
            ended = self._monotonic()
            self._kept[name] = ended + max(KEPT_S_MIN, KEPT_FACTOR * (ended - started)), found
            self._kept.move_to_end(name)
            while len(self._kept) > limits.CONSOLE_DESCRIPTIONS_MAX:
                self._kept.popitem(last=False)
            return found

    def forget(self) -> None:
        """Clear the cache after a change."""
        with self._lock:
            self._kept.clear()

    def samples(self) -> tuple[Sample, Sample | None]:
        """Return the current and the previous description. Raises the errors of the client."""
        return self.kept(CLUSTER, self._sample)

    def _sample(self) -> tuple[Sample, Sample | None]:
        described = self._admin.summarize_cluster()
        self._before, self._now = self._now, Sample(self._monotonic(), described)
        return self._now, self._before
