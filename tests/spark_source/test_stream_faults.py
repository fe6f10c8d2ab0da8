"""A broker is killed under a stream, in a cluster of the test's own: every record is read once."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raftlog import Admin, NewTopic, Producer
from raftlog.testing import cluster
from tests.spark_source.queries import Query, places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

KILL_AT, LAST_BATCH = 2, 6


@pytest.mark.nightly
def test_a_leader_killed_under_a_stream_costs_no_record_and_no_end_goes_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    with (
        cluster(brokers=3, with_relays=False) as running,
        Admin(running.bootstrap) as admin,
        Producer(running.bootstrap) as producer,
    ):
        admin.create_topics([NewTopic("t", 2)])
        options = {"bootstrap.servers": running.bootstrap, "subscribe": "t"}
        query = Query(spark, tmp_path / "checkpoint", startingOffsets="earliest", **options)
        ends = {0: 0, 1: 0}

        def append() -> None:
            for partition in ends:
                producer.send_many("t", [b"v"] * 50, partition=partition).result()
                ends[partition] += 50

        def go_on(batch_id: int) -> None:
            if batch_id == KILL_AT:
                leader = running.leader("t", 0)
                assert leader is not None
                running.broker(leader).kill()
            if batch_id < LAST_BATCH:
                append()

        append()
        stream = query.start({"processingTime": "0 seconds"}, during=go_on)
        try:
            while max(query.batches, default=0) < LAST_BATCH:
                stream.processAllAvailable()  # raises what the stream died of
            progress = [json.loads(each.json) for each in stream.recentProgress]
        finally:
            stream.stop()
    assert query.read() == [
        place for partition, end in ends.items() for place in places("t", partition, 0, end)
    ]
    seen = [each["sources"][0]["endOffset"]["t"] for each in progress]
    assert never_goes_back(seen)
    assert seen[-1] == {str(partition): end for partition, end in ends.items()}


def never_goes_back(positions: list[dict[str, Any]]) -> bool:
    return all(
        later[partition] >= offset
        for earlier, later in itertools.pairwise(positions)
        for partition, offset in earlier.items()
    )
