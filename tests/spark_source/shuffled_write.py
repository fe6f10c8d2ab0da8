"""A program: write rows after a shuffle, on executors of their own, of which one is killed.

``python -m tests.spark_source.shuffled_write BOOTSTRAP TOPIC ROWS FOLDER``. The executor that has
stored some of a task's rows first ends by SIGKILL, once; FOLDER says that it did.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import StructType

from raftlog import Admin
from raftlog.spark_source.options import SinkOptions
from raftlog.spark_source.source import RaftlogDataSource
from raftlog.spark_source.writer import BatchWriter, TaskReport
from raftlog.testing import wait_until

MASTER = "local-cluster[2,1,1024]"  # two executors with a core and 1 GiB each


def main(bootstrap: str, topic: str, rows: str, folder: str) -> None:
    killed = Path(folder) / "killed"

    class KilledWriter(BatchWriter):
        def write(self, iterator: Iterator[Any]) -> TaskReport:
            return super().write(self._killed(iterator))

        def _killed(self, batches: Iterator[Any]) -> Iterator[Any]:
            for number, batch in enumerate(batches):
                if number == 2 and not killed.exists():
                    with Admin(bootstrap) as admin:
                        wait_until(lambda: any(admin.offsets(topic).values()), timeout_s=60)
                    killed.touch()
                    os.kill(executor(), signal.SIGKILL)
                yield batch

    class Killed(RaftlogDataSource):  # a class of a function travels by value
        @classmethod
        def name(cls) -> str:
            return "killed"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            options = SinkOptions.parse(self.options, streaming=False)
            return KilledWriter(options, schema, overwrite)

    spark = SparkSession.builder.master(MASTER).appName("a shuffled write").getOrCreate()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(int(rows) // 20))
    spark.dataSource.register(Killed)
    # The rows of a task come from all tasks before it, in the order in which they are fetched.
    frame = spark.range(int(rows), numPartitions=4).selectExpr("cast(id as string) AS value")
    shuffled = frame.repartition(2, "value")
    options = {"bootstrap.servers": bootstrap, "topic": topic, "raftlog.batch.bytes.max": "1024"}
    shuffled.write.format("killed").mode("append").options(**options).save()
    application = spark.sparkContext.applicationId
    spark.stop()
    # Executors of a local cluster leave their files where Spark is installed.
    shutil.rmtree(Path(pyspark.__file__).parent / "work" / application, ignore_errors=True)


def executor() -> int:
    """The process id of the executor whose worker this is: of the nearest Java process above."""
    pid = os.getppid()
    while Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip() != "java":
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
        pid = int(stat.rpartition(")")[2].split()[1])
    return pid


if __name__ == "__main__":
    main(*sys.argv[1:])
