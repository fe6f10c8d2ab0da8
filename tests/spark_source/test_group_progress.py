"""The progress of a stream: in a consumer group, and as a lag."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, cast

import pytest

from pyspark_raftlog import lag_of
from pyspark_raftlog.clients import NOTE, PAUSE_S, GroupProgress
from pyspark_raftlog.offsets import StreamOffset
from raftlog import Admin, TopicPartition
from raftlog.errors import CoordinatorLoadingError, RaftlogError
from raftlog.types import Offset

# -- groups ----------------------------------------------------------------------------------------

# A stream's progress in a consumer group: told when it is new, and never in the way.


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


# -- lag -------------------------------------------------------------------------------------------

# The lag of a query, from what Spark reports of it.


A, B, C = (TopicPartition("t", number) for number in range(3))


def text(positions: dict[TopicPartition, int], topic_id: str = "id") -> str:
    return StreamOffset(positions, {"t": topic_id}).json()


@pytest.mark.parametrize("twice", [False, True])
def test_each_partition_lags_by_what_is_left(twice: bool) -> None:
    def noted(value: str) -> str:
        return json.dumps(value) if twice else value

    source = {
        "endOffset": noted(text({A: 5, B: 7})),
        "latestOffset": noted(text({A: 9, B: 7, C: 3})),
    }
    slower = {"endOffset": text({A: 2}), "latestOffset": text({A: 9})}
    assert lag_of({"sources": [source]}) == {A: 4, B: 0}
    assert lag_of({"sources": [slower, source]}) == {A: 7, B: 0}


def test_what_is_not_known_is_left_out() -> None:
    assert lag_of(None) == {}
    other = {"endOffset": '{"t":{"0":1}}', "latestOffset": '{"t":{"0":2}}'}  # Kafka's connector
    rate = {"endOffset": "5", "latestOffset": None}
    recreated = {"endOffset": text({A: 5}), "latestOffset": text({A: 9}, "another")}
    broken = {"endOffset": '{"t":{"0":"x"},"~raftlog":{}}', "latestOffset": "{"}
    assert lag_of({"sources": [other, rate, recreated, broken]}) == {}
