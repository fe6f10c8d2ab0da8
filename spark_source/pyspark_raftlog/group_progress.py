"""Commits of a stream's progress as offsets of a consumer group, for tools that show lag.

The offsets of a stream are in its checkpoint, and the commits are never read. So a failure is only
logged. The next commits are skipped for PAUSE_S, so that the stream does not wait for each of them.
"""

from __future__ import annotations

import logging
from typing import Final

from pyspark_raftlog.offsets import StreamOffset
from raftlog import Admin
from raftlog.errors import RaftlogError
from raftlog.types import Offset, TopicPartition

PAUSE_S: Final = 60.0  # seconds without commits after a failure
NOTE: Final = "committed by Spark"

logger = logging.getLogger("raftlog.spark")


class GroupProgress:
    """Commits the progress of one query. Offsets never decrease, unless a topic was recreated."""

    def __init__(self, group: str) -> None:
        """``group``: a consumer group without members."""
        self._group = group
        self._positions: dict[TopicPartition, Offset] = {}
        self._topic_ids: dict[str, str] = {}
        self._not_before_s = 0.0

    def commit(self, admin: Admin, offset: StreamOffset, *, now_s: float) -> None:
        """Commit the positions in ``offset`` that advanced. Logs a failure of the cluster."""
        news = self._news(offset)
        if not news or now_s < self._not_before_s:
            return
        try:
            admin.commit_offsets(self._group, news, metadata=NOTE)
        except RaftlogError as error:
            self._not_before_s = now_s + PAUSE_S
            logger.warning(
                "the stream continues, but its progress was not committed for the group %r "
                "(groupId, commitOffsets). Next attempt in %g s: %s",
                self._group,
                PAUSE_S,
                error,
            )
            return
        self._positions.update(news)
        self._topic_ids.update(offset.topic_ids)

    def _news(self, offset: StreamOffset) -> dict[TopicPartition, Offset]:
        return {
            tp: position
            for tp, position in offset.positions.items()
            if position > self._positions.get(tp, -1)
            or offset.topic_id(tp.topic) != self._topic_ids.get(tp.topic, "")
        }
