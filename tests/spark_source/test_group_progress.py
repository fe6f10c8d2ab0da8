"""A stream's progress in a consumer group: told when it is new, and never in the way."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

from pyspark_raftlog.clients import NOTE, PAUSE_S, GroupProgress
from pyspark_raftlog.offsets import StreamOffset
from raftlog import Admin, TopicPartition
from raftlog.errors import CoordinatorLoadingError, RaftlogError
from raftlog.types import Offset

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class FakeAdmin:
    def __init__(self) -> None:
        self.commits: list[dict[TopicPartition, Offset]] = []
        self.error: RaftlogError | None = None

    def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, Offset], *, metadata: str
    ) -> None:
        assert (group, metadata) == ("g", NOTE)
        if self.error is not None:
            raise self.error
        self.commits.append(dict(offsets))


class Noted:
    def __init__(self) -> None:
        self.admin = FakeAdmin()
        self.progress = GroupProgress("g")

    def commit(
        self, positions: dict[TopicPartition, Offset], *, topic_id: str = "a", now_s: float = 0
    ) -> list[dict[TopicPartition, Offset]]:
        """What is committed because of this."""
        self.admin.commits.clear()
        offset = StreamOffset(positions, {"t": topic_id})
        self.progress.commit(cast(Admin, self.admin), offset, now_s=now_s)
        return list(self.admin.commits)


def test_only_what_is_new_is_committed() -> None:
    noted = Noted()
    assert noted.commit({T0: 0, T1: 5}) == [{T0: 0, T1: 5}]
    assert noted.commit({T0: 0, T1: 5}) == []
    assert noted.commit({T0: 3, T1: 5}) == [{T0: 3}]


def test_it_does_not_go_back() -> None:
    noted = Noted()
    noted.commit({T0: 9})
    assert noted.commit({T0: 4}) == []
    assert noted.commit({T0: 4, T1: 1}) == [{T1: 1}]


def test_it_goes_back_with_a_topic_made_anew() -> None:
    noted = Noted()
    noted.commit({T0: 9})
    assert noted.commit({T0: 2}, topic_id="b") == [{T0: 2}]
    assert noted.commit({T0: 1}, topic_id="b") == []


def test_a_failure_is_told_and_the_group_left_in_peace_for_a_while(caplog: Any) -> None:
    noted = Noted()
    noted.admin.error = CoordinatorLoadingError("not yet")
    with caplog.at_level(logging.WARNING):
        assert noted.commit({T0: 1}, now_s=100) == []
    assert "the stream continues" in caplog.text
    assert "'g'" in caplog.text
    assert "not yet" in caplog.text
    noted.admin.error = None
    assert noted.commit({T0: 2}, now_s=100 + PAUSE_S - 1) == []
    assert noted.commit({T0: 2}, now_s=100 + PAUSE_S) == [{T0: 2}]
