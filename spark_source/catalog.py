"""The driver's view of the cluster: which topics there are, where partitions begin and end.

Each question is one batched request to each broker that leads. It has a deadline, and is asked
again after a failure that may pass: a leader that moves, or a topic that is so new that the broker
asked has not heard of it.
"""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from raftlog import Admin, TopicListing, TopicPartition
from raftlog.client.partition_requests import At
from raftlog.clock import Clock, SystemClock
from raftlog.errors import (
    BrokerUnavailableError,
    OutcomeUnknownError,
    RetriableError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.spark_source.planning import PartitionNow
from raftlog.types import Offset, TimestampMs, is_internal_topic

T = TypeVar("T")

logger = logging.getLogger(__name__)

_MAY_PASS: Final = (RetriableError, OutcomeUnknownError, UnknownTopicError, UnknownPartitionError)
_NEAR_NAMES_MAX: Final = 3


class Catalog:
    """Queries of an admin client for planning. For one thread at a time."""

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

        ``timeout_ms``: no new attempt is made so long after the first; ``retries``: how many there
        are at most after the first, ``retry_interval_ms`` apart.
        """
        self._admin = admin
        self._timeout_s = timeout_ms / 1_000
        self._retries = retries
        self._interval_s = retry_interval_ms / 1_000
        self._clock = clock or SystemClock()
        self._sleep = sleep

    @property
    def admin(self) -> Admin:
        """The client itself, for what is not planning."""
        return self._admin

    def topics(self, names: Iterable[str]) -> dict[str, TopicListing]:
        """These topics, in this order. Raises ``UnknownTopicError``, which has names like it."""
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
            advice = "`raftlog topic list` shows which there are"
        else:
            advice = "The cluster has no topics yet: is it the right one?"
        return f"there is no topic {name!r}. {advice}"

    def existing(self, names: Iterable[str]) -> dict[str, TopicListing]:
        """Those of these topics that there are."""
        wanted = list(dict.fromkeys(names))
        return self._persist(lambda: self._admin.find_topics(wanted)) if wanted else {}

    def matching(self, matches: Callable[[str], bool]) -> dict[str, TopicListing]:
        """The topics whose names ``matches`` says yes to, by name, sorted; maybe none.

        Those that only the brokers write are left out, as in Kafka.
        """
        found = self._persist(self._admin.find_topics)
        return {
            name: topic
            for name, topic in sorted(found.items())
            if not is_internal_topic(name) and matches(name)
        }

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """The first offset that is left of each."""
        return self._ends(dict.fromkeys(partitions, "earliest"))

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """The end of each, by its leader: the offset after the last committed record's.

        Linearizable: an end that was shown once never goes back.
        """
        return self._ends(dict.fromkeys(partitions, "latest"))

    def at_times(
        self, times: Mapping[TopicPartition, TimestampMs]
    ) -> dict[TopicPartition, Offset | None]:
        """The first offset at or after a time (ms since 1970) of each; None if there is none."""
        found = self._persist(lambda: self._admin.list_offsets(times)) if times else {}
        return {tp: hit.offset if hit else None for tp, hit in found.items()}

    def now(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionNow]:
        """All that there is to know of these partitions, be they there or not."""
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

    def _ends(self, queries: Mapping[TopicPartition, At]) -> dict[TopicPartition, Offset]:
        found = self._persist(lambda: self._admin.list_offsets(queries)) if queries else {}
        return {tp: hit.offset if hit else 0 for tp, hit in found.items()}

    def _persist(self, attempt: Callable[[], T]) -> T:
        """``attempt()``, again after a failure that may pass."""
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
                            f"option bootstrap.servers: asked {tries} times in {spent_s:.1f} s: "
                            f"{error}"
                        ) from error
                    raise
                logger.debug("asking again in %g s after: %s", self._interval_s, error)
            self._sleep(self._interval_s)
