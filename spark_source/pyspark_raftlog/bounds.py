"""Resolution of the bounds of a read: words, offsets and times become offsets of partitions.

A catalog provides the offsets. This module checks that the bounds are consistent; ``planning``
detects missing records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark_raftlog.offsets import (
    EARLIEST,
    LATEST,
    Bound,
    StreamOffset,
    Time,
    Times,
    Word,
    check_covers,
)
from pyspark_raftlog.options import Assigned, Pattern, Selection, SourceOptions, Topics
from pyspark_raftlog.planning import Loss, LossKind, Sizes, View, bytes_per_record_of, error_of
from raftlog.errors import InvalidRequestError, UnknownPartitionError
from raftlog.types import Offset, TimestampMs, TopicPartition

if TYPE_CHECKING:
    from pyspark_raftlog.catalog import Catalog
    from raftlog import Admin

_NAMED_MAX: Final = 5  # partitions that an error names


@dataclass(frozen=True, slots=True)
class Selected:
    """Partitions of a read, by topic and number, and the ids of their topics."""

    partitions: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, str]

    def numbers(self) -> dict[str, list[int]]:
        """Return the partition numbers by topic."""
        found: dict[str, list[int]] = {}
        for tp in self.partitions:
            found.setdefault(tp.topic, []).append(tp.partition)
        return found


@dataclass(frozen=True, slots=True)
class Extent:
    """Start and end offsets of partitions at one time."""

    earliest: Mapping[TopicPartition, Offset]
    latest: Mapping[TopicPartition, Offset]


def select(catalog: Catalog, selection: Selection) -> Selected:
    """Return the selected partitions that exist now. A pattern can match no topic.

    Raises ``UnknownTopicError``, ``UnknownPartitionError``.
    """
    if isinstance(selection, Pattern):
        found = catalog.matching(selection.matches)
    elif isinstance(selection, Assigned):
        found = catalog.topics(selection.partitions)
    else:
        found = catalog.topics(selection.names)
    partitions: list[TopicPartition] = []
    for name, topic in sorted(found.items()):
        numbers: Iterable[int] = range(topic.partition_count)
        if isinstance(selection, Assigned):
            numbers = selection.partitions[name]
            for number in numbers:
                if number >= topic.partition_count:
                    raise UnknownPartitionError(
                        f"assign: topic {name!r} has no partition {number}: it has "
                        f"{topic.partition_count}, numbered from 0"
                    )
        partitions += (TopicPartition(name, number) for number in numbers)
    return Selected(tuple(partitions), {name: topic.id for name, topic in found.items()})


def extent(catalog: Catalog, partitions: Iterable[TopicPartition]) -> Extent:
    """Query start and end offsets. Ends come from the leaders, so they never decrease."""
    wanted = tuple(partitions)
    earliest, latest = catalog.earliest(wanted), catalog.latest(wanted)
    # Retention may have raised the start offset between the two queries.
    return Extent(earliest, {tp: max(earliest[tp], latest[tp]) for tp in wanted})


def resolve_start(
    catalog: Catalog, options: SourceOptions, selected: Selected, now: Extent
) -> dict[TopicPartition, Offset]:
    """Return the start offset of each partition by the starting option, not limited to the log.

    Raises ``InvalidRequestError`` if the option does not name exactly these partitions, or if no
    record is as late as its time, unless ``startingOffsetsByTimestampStrategy`` is ``latest``.
    """
    return _resolve(
        catalog,
        options.starting_option,
        options.starting,
        selected,
        now,
        fail_on_none=options.timestamp_strategy == "error",
    )


def resolve_end(
    catalog: Catalog, options: SourceOptions, selected: Selected, now: Extent
) -> dict[TopicPartition, Offset]:
    """Return the end offset (exclusive) of each partition by the ending option.

    Raises ``InvalidRequestError`` if the option does not name exactly these partitions.
    """
    return _resolve(
        catalog, options.ending_option, options.ending, selected, now, fail_on_none=False
    )


def _resolve(
    catalog: Catalog,
    option: str,
    bound: Bound,
    selected: Selected,
    now: Extent,
    *,
    fail_on_none: bool,
) -> dict[TopicPartition, Offset]:
    check_covers(option, bound, selected.numbers())
    if isinstance(bound, Word):
        return dict(now.earliest if bound is Word.EARLIEST else now.latest)
    if isinstance(bound, Time | Times):
        times = {
            tp: bound.timestamp_ms if isinstance(bound, Time) else bound.at(*tp)
            for tp in selected.partitions
        }
        return _at_times(catalog, option, times, now, fail_on_none=fail_on_none)
    words = {EARLIEST: now.earliest, LATEST: now.latest}
    found: dict[TopicPartition, Offset] = {}
    for tp in selected.partitions:
        offset = bound.at(*tp)
        found[tp] = words[offset][tp] if offset in words else offset
    return found


def _at_times(
    catalog: Catalog,
    option: str,
    times: Mapping[TopicPartition, TimestampMs],
    now: Extent,
    *,
    fail_on_none: bool,
) -> dict[TopicPartition, Offset]:
    """Resolve times to offsets. Records appended after ``now`` are ignored."""
    hits = catalog.at_times(times)
    found = {
        tp: now.latest[tp] if hit is None else min(max(hit, now.earliest[tp]), now.latest[tp])
        for tp, hit in hits.items()
    }
    late = [tp for tp, offset in found.items() if offset == now.latest[tp]]
    if late and fail_on_none:
        named = ", ".join(map(str, late[:_NAMED_MAX]))
        more = f" and {len(late) - _NAMED_MAX} more" if len(late) > _NAMED_MAX else ""
        raise InvalidRequestError(
            f"{option}: no record at or after {times[late[0]]} (ms since 1970) is in {named}"
            f"{more}. Set an earlier time, or set startingOffsetsByTimestampStrategy=latest to "
            "start at the end of such partitions"
        )
    return found


# -- stream view -----------------------------------------------------------------------------------
#
# Cluster queries of a stream: start offsets, current state, record sizes.
#
# ``StreamPlanner`` decides what follows from the results.


logger = logging.getLogger("raftlog.spark")


def selects(selection: Selection, tp: TopicPartition) -> bool:
    """Return whether the options select a partition, existing or not."""
    if isinstance(selection, Topics):
        return tp.topic in selection.names
    if isinstance(selection, Pattern):
        return selection.matches(tp.topic)
    return tp.partition in selection.partitions.get(tp.topic, ())


def starting_offset(catalog: Catalog, options: SourceOptions) -> StreamOffset:
    """Return the start offsets of a new query.

    Raises ``UnknownTopicError``, ``UnknownPartitionError``, ``InvalidRequestError`` for a start
    that does not fit the topics, and ``DataLossError`` for a start beyond a log end. Without
    ``failOnDataLoss``, that partition starts at its end.
    """
    selected = select(catalog, options.selection)
    now = extent(catalog, selected.partitions)
    starts = resolve_start(catalog, options, selected, now)
    losses = [
        Loss(
            LossKind.BEYOND_END,
            f"{options.starting_option}: topic {tp.topic!r} partition {tp.partition} starts "
            f"at offset {start}, but its end is {now.latest[tp]}",
            "it is read from its end",
        )
        for tp, start in starts.items()
        if start > now.latest[tp]
    ]
    if losses and options.fail_on_data_loss:
        raise error_of(losses)
    for loss in losses:
        logger.warning("%s", loss.warning())
    return StreamOffset(
        {tp: min(start, now.latest[tp]) for tp, start in starts.items()}, selected.topic_ids
    )


def view_of(catalog: Catalog, selection: Selection) -> View:
    """Return the selected partitions that exist, and their ends.

    Raises ``UnknownTopicError`` if a topic is deleted during the query: query again.
    """
    if isinstance(selection, Pattern):
        found = catalog.matching(selection.matches)
    else:
        names = selection.names if isinstance(selection, Topics) else selection.partitions
        found = catalog.existing(names)
    partitions = [
        tp
        for name, topic in found.items()
        for tp in (TopicPartition(name, number) for number in range(topic.partition_count))
        if not isinstance(selection, Assigned) or selects(selection, tp)
    ]
    ids = {name: topic.id for name, topic in found.items()}
    return View(ids, catalog.latest(partitions))


def record_sizes(admin: Admin, view: View) -> Sizes:
    """Return the mean stored (compressed) bytes of each partition's records."""
    return {
        TopicPartition(topic.name, each.partition): bytes_per_record_of(
            each.size_bytes, each.log_start_offset, each.high_watermark
        )
        for topic in admin.describe_topics(sorted(view.topic_ids))
        for each in topic.partitions
    }
