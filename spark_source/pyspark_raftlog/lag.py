"""Lag of a streaming query, from the progress that Spark reports.

Spark describes a source in Python by the name of a Java class, and has no metrics of it. But the
progress contains the offsets: where the query is, and where the partitions ended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark_raftlog.offsets import RESERVED_KEY, StreamOffset
from raftlog.errors import InvalidRequestError
from raftlog.types import TopicPartition


def lag_of(progress: Mapping[str, Any] | None) -> dict[TopicPartition, int]:
    """Return the number of offsets that a query has left, for each partition that it reads.

    ``progress``: ``query.lastProgress``, or ``event.progress`` of a ``StreamingQueryListener``. The
    ends of the partitions are of that moment. Partitions without known end, sources of other
    formats, and a query without progress (None) are omitted.
    """
    found: dict[TopicPartition, int] = {}
    for source in () if progress is None else progress["sources"]:
        done, ends = (_offset(source[name]) for name in ("endOffset", "latestOffset"))
        if done is None or ends is None:
            continue
        for tp, position in done.positions.items():
            same = done.topic_id(tp.topic) == ends.topic_id(tp.topic)
            if same and tp in ends.positions:
                lag = max(0, ends.positions[tp] - position)
                found[tp] = max(found.get(tp, 0), lag)  # of two streams of one topic, the slower
    return found


def _offset(value: object) -> StreamOffset | None:
    """Parse an offset of a progress: JSON, also in a JSON string. None if it is not of raftlog."""
    for _ in range(2):
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return None
    if not isinstance(value, dict) or RESERVED_KEY not in value:
        return None
    try:
        return StreamOffset.from_dict(value)
    except InvalidRequestError:
        return None
