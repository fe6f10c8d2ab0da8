"""Cluster queries of a stream: start offsets, current state, record sizes.

``stream_planner`` decides what follows from the results.
"""

from __future__ import annotations

import logging

from pyspark_raftlog.bounds import extent, resolve_start, select
from pyspark_raftlog.catalog import Catalog
from pyspark_raftlog.offsets import StreamOffset
from pyspark_raftlog.options import Assigned, Pattern, Selection, SourceOptions, Topics
from pyspark_raftlog.planning import Loss, LossKind, bytes_per_record_of
from pyspark_raftlog.stream_planner import Sizes, View, error_of
from raftlog import Admin
from raftlog.types import TopicPartition

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
