"""Lag of a streaming query, in the progress that Spark reports, and from it.

Spark describes a source in Python by the name of a Java class, and has no metrics of it. But the
progress contains the offsets: where the query is, and where the partitions ended. The second ones
are only shown, so the lag of each topic stands there, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark_raftlog.offsets import RESERVED_KEY, StreamOffset
from raftlog.errors import InvalidRequestError
from raftlog.types import TopicPartition

LAG: Final = "lag"  # key of the lag of each topic in a reported offset


def reported(latest: StreamOffset, end: StreamOffset) -> dict[str, Any]:
    """Return what Spark shows as ``latestOffset``: the ends, and the lag behind them by topic.

    ``latest``: ends of the partitions. ``end``: of the batch.
    """
    found = latest.as_dict()
    if RESERVED_KEY in found:
        lags: dict[str, int] = {}
        for tp, lag in _lags(end, latest).items():
            lags[tp.topic] = lags.get(tp.topic, 0) + lag
        found[RESERVED_KEY][LAG] = dict(sorted(lags.items()))
    return found


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
        for tp, lag in _lags(done, ends).items():
            found[tp] = max(found.get(tp, 0), lag)  # of two streams of one topic, the slower
    return found


def _lags(done: StreamOffset, ends: StreamOffset) -> dict[TopicPartition, int]:
    return {
        tp: max(0, ends.positions[tp] - position)
        for tp, position in done.positions.items()
        if tp in ends.positions and done.topic_id(tp.topic) == ends.topic_id(tp.topic)
    }


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
