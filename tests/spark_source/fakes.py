"""An admin client that answers from a table, and time that passes when somebody sleeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from pyspark_raftlog.catalog import Catalog
from raftlog import Admin, OffsetAndTimestamp, TopicListing, TopicPartition


class FakeClock:
    """Seconds pass by sleeping alone."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.slept: list[float] = []

    def wall_ms(self) -> int:
        return int(self.now_s * 1_000)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


@dataclass
class FakePartition:
    """Offsets from ``earliest`` to before ``latest``. A timestamp is 10 times the offset."""

    earliest: int = 0
    latest: int = 0

    def at(self, at: object) -> int | None:
        if at == "earliest":
            return self.earliest
        if at == "latest":
            return self.latest
        assert isinstance(at, int)
        hit = max(-(-at // 10), self.earliest)
        return hit if hit < self.latest else None


@dataclass
class FakeAdmin:
    """Topics by name, each with its partitions; its id is ``<name>-id``.

    ``failures``: raised by the next calls, the first one first. ``calls``: of what.
    """

    topics: dict[str, list[FakePartition]]
    failures: list[Exception] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    closed: bool = False

    def find_topics(self, topics: Iterable[str] | None = None) -> dict[str, TopicListing]:
        self._called("find_topics")
        names = self.topics if topics is None else topics
        return {
            name: TopicListing(name, f"{name}-id", len(self.topics[name]))
            for name in names
            if name in self.topics
        }

    def list_topics(self) -> list[str]:
        return sorted(self.topics)

    def list_offsets(
        self, queries: Mapping[TopicPartition, object], *, isolation: str = "committed"
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        self._called("list_offsets")
        hits = {tp: self.topics[tp.topic][tp.partition].at(at) for tp, at in queries.items()}
        return {
            tp: None if hit is None else OffsetAndTimestamp(hit, -1) for tp, hit in hits.items()
        }

    def close(self) -> None:
        self.closed = True

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if self.failures:
            raise self.failures.pop(0)


def catalog_of(
    admin: FakeAdmin, clock: FakeClock | None = None, *, timeout_ms: int = 30_000, retries: int = 3
) -> Catalog:
    """A catalog over ``admin``, which tries again after 100 ms of ``clock``."""
    clock = clock or FakeClock()
    return Catalog(
        cast(Admin, admin),
        timeout_ms=timeout_ms,
        retries=retries,
        retry_interval_ms=100,
        clock=clock,
        sleep=clock.sleep,
    )
