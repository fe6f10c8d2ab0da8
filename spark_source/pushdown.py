"""Filter pushdown: reads skip ranges that Spark's filters exclude. Experimental.

Only with the option ``filterPushdown``, because Spark 4.3.0 returns wrong results if one ``load()``
is scanned twice with different filters: it keeps the plan of the first scan. Every filter is
returned to Spark, which applies all of them. Pruning only skips records that the filters together
exclude.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, TypeVar

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from raftlog import limits
from raftlog.spark_source.batch_reader import BatchReader
from raftlog.spark_source.catalog import Catalog
from raftlog.spark_source.options import SourceOptions
from raftlog.spark_source.planning import PartitionRange
from raftlog.spark_source.ranges import ms_at_or_after
from raftlog.types import Offset, TimestampMs, TopicPartition

T = TypeVar("T")

logger = logging.getLogger(__name__)

_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"

FirstAt = Callable[
    [Mapping[TopicPartition, TimestampMs]], Mapping[TopicPartition, Offset | None]
]  # the first offset at or after a time


@dataclass(frozen=True, slots=True)
class Pruning:
    """Upper bound of the records that some filters accept. None: not restricted.

    ``since_ms``: no record before that time. There is no upper time bound: records are ordered by
    offset, not by time, so a record with an early time can have a high offset.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    start: Offset = 0
    end: Offset = limits.OFFSET_MAX + 1
    since_ms: TimestampMs | None = None

    def with_filter(self, wanted: Filter) -> Pruning:
        """Return the bounds with one more filter. An unsupported filter changes nothing."""
        column = _column(wanted)
        if column == "topic":
            return replace(self, topics=_both(self.topics, _choice(wanted, str)))
        if column == "partition":
            return replace(self, partitions=_both(self.partitions, _choice(wanted, int)))
        if column == "offset":
            start, end = _interval(wanted)
            return replace(self, start=max(self.start, start), end=min(self.end, end))
        if column == "timestamp":
            since = [each for each in (self.since_ms, _since_ms(wanted)) if each is not None]
            return replace(self, since_ms=max(since, default=None))
        return self

    def narrowed(self, ranges: Sequence[PartitionRange], first_at: FirstAt) -> list[PartitionRange]:
        """Return the parts of ``ranges`` that can contain a matching record, without empty ones."""
        found = [
            replace(each, start=max(each.start, self.start), end=min(each.end, self.end))
            for each in ranges
            if self.topics is None or each.topic in self.topics
            if self.partitions is None or each.partition in self.partitions
        ]
        found = [each for each in found if each.size]
        if self.since_ms is not None and found:
            firsts = first_at(dict.fromkeys((r.topic_partition for r in found), self.since_ms))
            found = [
                replace(each, start=max(each.start, first))
                for each in found
                if (first := firsts[each.topic_partition]) is not None
            ]
        return [each for each in found if each.size]


def pruning_of(filters: Iterable[Filter]) -> Pruning:
    """Return the bounds that all of ``filters`` permit."""
    found = Pruning()
    for each in filters:
        found = found.with_filter(each)
    return found


def _column(wanted: Filter) -> str:
    """Return the column of a filter in lower case; empty for an unsupported filter."""
    attribute: tuple[str, ...] = getattr(wanted, "attribute", ())
    return attribute[0].lower() if len(attribute) == 1 else ""


def _both(known: frozenset[T] | None, more: frozenset[T] | None) -> frozenset[T] | None:
    return more if known is None else known if more is None else known & more


def _choice(wanted: Filter, kind: type[T]) -> frozenset[T] | None:
    """Return the values that a filter accepts; None if it does not list values."""
    if isinstance(wanted, EqualTo):
        values: Sequence[object] = (wanted.value,)
    elif isinstance(wanted, In):
        values = wanted.value
    else:
        return None
    # A null equals no value.
    known = [value for value in values if value is not None]
    same = [value for value in known if type(value) is kind]
    return frozenset(same) if len(same) == len(known) else None


def _interval(wanted: Filter) -> tuple[Offset, Offset]:
    """Return the first offset that a filter accepts, and the offset after the last."""
    everything = (0, limits.OFFSET_MAX + 1)
    chosen = _choice(wanted, int)
    if chosen is not None:
        return (min(chosen), max(chosen) + 1) if chosen else (0, 0)
    value = getattr(wanted, "value", None)
    if type(value) is not int:
        return everything
    if isinstance(wanted, GreaterThanOrEqual | GreaterThan):
        return (value + isinstance(wanted, GreaterThan), everything[1])
    if isinstance(wanted, LessThanOrEqual | LessThan):
        return (0, value + isinstance(wanted, LessThanOrEqual))
    return everything


def _since_ms(wanted: Filter) -> TimestampMs | None:
    """Return the first accepted time. Spark's times are in microseconds, raftlog's in ms."""
    if not isinstance(wanted, EqualTo | GreaterThan | GreaterThanOrEqual | In):
        return None
    values: Sequence[object] = wanted.value if isinstance(wanted, In) else (wanted.value,)
    times = [each for each in values if isinstance(each, datetime) and each.tzinfo]
    if not times or len(times) != len(values):
        return None
    return min(max(0, ms_at_or_after(min(times))), limits.TIMESTAMP_MS_MAX)


class PushdownReader(BatchReader):
    """A batch reader with filters. Spark rejects such a reader while pushdown is disabled."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._pruning = Pruning()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's
        """Keep the bounds of the filters, and return all filters to Spark."""
        self._pruning = pruning_of(filters)
        if self._pruning != Pruning():
            logger.warning(
                "filterPushdown: this DataFrame reads only records that pass the filters of its "
                "first scan. Scan it once; for other filters, load() again (Spark keeps the plan)"
            )
        return filters

    def _ranges(self, catalog: Catalog) -> list[PartitionRange]:
        return self._pruning.narrowed(super()._ranges(catalog), catalog.at_times)


def is_pushing_down() -> bool:
    """Return whether this process plans a read with filters.

    While Spark's own setting for filter pushdown is off (its default), Spark rejects every reader
    that defines ``pushFilters``. The setting is not visible here, so check which of Spark's worker
    modules runs in this process.
    """
    main = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", None)
    return _WORKER in sys.modules or name == _WORKER
