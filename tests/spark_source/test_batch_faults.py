"""A broker is killed under a batch read, in a cluster of its own: every record is read once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_raftlog.options import SourceOptions
from pyspark_raftlog.reader import BatchReader
from pyspark_raftlog.source import RaftlogDataSource
from raftlog import Admin, NewTopic, Producer
from raftlog.testing import cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

LOG_BATCHES, RECORDS = 60, 50


@pytest.mark.nightly
def test_the_leader_that_serves_a_read_is_killed_in_mid_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    with cluster(brokers=3, with_relays=False) as running:
        with Admin(running.bootstrap) as admin, Producer(running.bootstrap) as producer:
            admin.create_topics([NewTopic("t", 2)])
            for number in range(LOG_BATCHES):
                first = number * RECORDS
                values = [b"%d" % n + b" " * 100 for n in range(first, first + RECORDS)]
                producer.send_many("t", values, partition=number % 2).result()
        leader = running.leader("t", 0)
        assert leader is not None
        pid = running.broker(leader).pid or 0
        assert pid
        killed = tmp_path / "killed"

        class KillingReader(BatchReader):
            """Kills the broker that it reads from when it has given its third batch."""

            def read(self, partition: InputPartition) -> Iterator[Any]:
                for number, batch in enumerate(super().read(partition)):
                    if number == 3 and partition.value.partition == 0 and not killed.exists():
                        killed.touch()
                        os.kill(pid, signal.SIGKILL)
                    yield batch

        class Killing(RaftlogDataSource):  # a class of a function travels by value
            @classmethod
            def name(cls) -> str:
                return "killing"

            def reader(self, schema: StructType) -> DataSourceReader:
                return KillingReader(SourceOptions.parse(self.options, streaming=False), schema)

        spark.dataSource.register(Killing)
        options = {
            "bootstrap.servers": running.bootstrap,
            "subscribe": "t",
            "batchMaxRows": "100",
            "raftlog.read.from": "leader",
            "raftlog.max.partition.fetch.bytes": "6000",  # so most of it is still to be fetched
        }
        rows = spark.read.format("killing").options(**options).load().collect()
        assert killed.exists()
    assert Counter(int(row.value) for row in rows) == Counter(range(LOG_BATCHES * RECORDS))
