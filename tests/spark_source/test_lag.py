"""The lag of a query, from what Spark reports of it."""

from __future__ import annotations

import json

import pytest

from pyspark_raftlog import lag_of
from pyspark_raftlog.offsets import StreamOffset
from raftlog import TopicPartition

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
