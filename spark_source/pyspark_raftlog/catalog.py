"""The driver's view of the cluster: topics, and start and end offsets of partitions.

Each query is one batched request to each partition leader. It has a deadline, and is repeated
after a failure that can be temporary: a leader that moves, or a topic so new that the broker has
not received its metadata yet.
"""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from pyspark_raftlog.planning import PartitionNow
from raftlog import Admin, TopicListing, TopicPartition
from raftlog.client.requests import At
from raftlog.clock import Clock, SystemClock
from raftlog.errors import (
    BrokerUnavailableError,
    OutcomeUnknownError,
    RetriableError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.types import Isolation, Offset, TimestampMs, is_internal_topic

T = TypeVar("T")

logger = logging.getLogger("raftlog.spark")

_MAY_PASS: Final = (RetriableError, OutcomeUnknownError, UnknownTopicError, UnknownPartitionError)
_NEAR_NAMES_MAX: Final = 3


class Catalog:
    """Queries of an admin client for planning. Not safe for concurrent use by threads."""

    def __init__(
        self,
        admin: Admin,
        *,
        timeout_ms: int = 30_000,
        retries: int = 3,
        retry_interval_ms: int = 100,
        clock: Clock | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """``admin`` is closed with the catalog; its ``request_timeout_ms`` is for one attempt.

        ``timeout_ms``: time after the first attempt from which no new attempt starts.
        ``retries``: maximum number of attempts after the first, ``retry_interval_ms`` apart.
        """
        self._admin = admin
        self._timeout_s = timeout_ms / 1_000
        self._retries = retries
        self._interval_s = retry_interval_ms / 1_000
        self._clock = clock or SystemClock()
        self._sleep = sleep

    @property
    def admin(self) -> Admin:
        """The admin client, for requests other than planning."""
        return self._admin

    def topics(self, names: Iterable[str]) -> dict[str, TopicListing]:
        """Return these topics, in this order.

        Raises ``UnknownTopicError``, which suggests similar names.
        """
        wanted = list(dict.fromkeys(names))

        def attempt() -> dict[str, TopicListing]:
            found = self._admin.find_topics(wanted)
            missing = [name for name in wanted if name not in found]
            if missing:
                raise UnknownTopicError(self._is_missing(missing[0]))
            return found

        return self._persist(attempt)

    def _is_missing(self, name: str) -> str:
        names = [there for there in self._admin.list_topics() if not is_internal_topic(there)]
        near = difflib.get_close_matches(name, names, _NEAR_NAMES_MAX)
        if near:
            advice = f"Did you mean {' or '.join(map(repr, near))}?"
        elif names:
            advice = "`raftlog topic list` shows the existing topics"
        else:
            advice = "The cluster has no topics yet. Check bootstrap.servers"
        return f"there is no topic {name!r}. {advice}"

    def existing(self, names: Iterable[str]) -> dict[str, TopicListing]:
        """Return those of these topics that exist."""
        wanted = list(dict.fromkeys(names))
        return self._persist(lambda: self._admin.find_topics(wanted)) if wanted else {}

    def matching(self, matches: Callable[[str], bool]) -> dict[str, TopicListing]:
        """Return the topics whose names ``matches`` accepts, sorted by name; can be empty.

        Internal topics are excluded, as in Kafka.
        """
        found = self._persist(self._admin.find_topics)
        return {
            name: topic
            for name, topic in sorted(found.items())
            if not is_internal_topic(name) and matches(name)
        }

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """Return the log start offset of each partition."""
        return self._ends(dict.fromkeys(partitions, "earliest"))

    def latest(
        self, partitions: Iterable[TopicPartition], *, isolation: Isolation = "committed"
    ) -> dict[TopicPartition, Offset]:
        """Return the end of each partition by its leader: one after the last committed record.

        ``isolation``: with "uncommitted", also records behind an open transaction. Linearizable: a
        later query never returns a lower end.
        """
        return self._ends(dict.fromkeys(partitions, "latest"), isolation)

    def at_times(
        self, times: Mapping[TopicPartition, TimestampMs]
    ) -> dict[TopicPartition, Offset | None]:
        """Return the first offset at or after a time (ms since 1970) of each partition, or None."""
        found = self._persist(lambda: self._admin.list_offsets(times)) if times else {}
        return {tp: hit.offset if hit else None for tp, hit in found.items()}

    def now(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionNow]:
        """Return the current state of these partitions, including those that do not exist."""
        names = sorted({tp.topic for tp in partitions})
        found = self._persist(lambda: self._admin.find_topics(names)) if names else {}
        there = [
            tp
            for tp in partitions
            if tp.topic in found and tp.partition < found[tp.topic].partition_count
        ]
        earliest, latest = self.earliest(there), self.latest(there)
        known = {
            tp: PartitionNow(found[tp.topic].id, earliest[tp], max(earliest[tp], latest[tp]))
            for tp in there
        }
        return {
            tp: known.get(tp) or PartitionNow(found[tp.topic].id if tp.topic in found else "")
            for tp in partitions
        }

    def close(self) -> None:
        """Close the admin client. Idempotent."""
        self._admin.close()

    def _ends(
        self, queries: Mapping[TopicPartition, At], isolation: Isolation = "committed"
    ) -> dict[TopicPartition, Offset]:
        if not queries:
            return {}
        found = self._persist(lambda: self._admin.list_offsets(queries, isolation=isolation))
        return {tp: hit.offset if hit else 0 for tp, hit in found.items()}

    def _persist(self, attempt: Callable[[], T]) -> T:
        """Call ``attempt``, and repeat it after a failure that can be temporary."""
        began = self._clock.monotonic()
        tries = 0
        while True:
            tries += 1
            try:
                return attempt()
            except _MAY_PASS as error:
                spent_s = self._clock.monotonic() - began
                if tries > self._retries or spent_s + self._interval_s >= self._timeout_s:
                    if isinstance(error, BrokerUnavailableError):
                        raise BrokerUnavailableError(
                            f"option bootstrap.servers: {tries} attempts in {spent_s:.1f} s: "
                            f"{error}"
                        ) from error
                    raise
                logger.debug("query retried: retry_in_s=%g error=%s", self._interval_s, error)
            self._sleep(self._interval_s)
