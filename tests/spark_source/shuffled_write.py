"""A program: write rows after a shuffle, on executors that are processes of their own.

``python -m tests.spark_source.shuffled_write BOOTSTRAP TOPIC ROWS FOLDER FAULT``. FAULT is

- ``kill``: the executor that has stored some rows of a task first ends by SIGKILL, once. FOLDER has
  a file ``killed`` then.
- ``speculate``: the first attempt of task 0 stores some rows, and waits until Spark has started a
  speculative attempt that has stored rows, too; both go on. FOLDER has a file ``speculated`` then.

Spark starts a speculative attempt only on another host than the first one. So the two workers have
different addresses of this machine; in ``local-cluster[...]`` all have the same.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkContext, TaskContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import StructType

from pyspark_raftlog.options import SinkOptions
from pyspark_raftlog.source import RaftlogDataSource
from pyspark_raftlog.writer import BatchWriter, TaskReport
from raftlog import Admin
from raftlog.testing import wait_until

HOSTS = "127.0.0.1", "127.0.0.2"  # of the workers; each has an executor with one core

SPECULATION = {  # a task whose neighbour has ended is started a second time at once
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}


def main(bootstrap: str, topic: str, rows: str, folder: str, fault: str) -> None:
    strike = striker(bootstrap, topic, Path(folder), fault)

    class StruckWriter(BatchWriter):
        def write(self, iterator: Iterator[Any]) -> TaskReport:
            return super().write(self._struck(iterator))

        def _struck(self, batches: Iterator[Any]) -> Iterator[Any]:
            task = TaskContext.get()
            assert task is not None, "it runs in one"
            for number, batch in enumerate(batches):
                if number == 2:
                    strike(task)
                yield batch

    class Struck(RaftlogDataSource):  # a class of a function travels by value
        @classmethod
        def name(cls) -> str:
            return "struck"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            options = SinkOptions.parse(self.options, streaming=False)
            return StruckWriter(options, schema, overwrite)

    builder = SparkSession.builder.master(start_cluster(folder)).appName("a shuffled write")
    for name, value in SPECULATION.items() if fault == "speculate" else ():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(int(rows) // 20))
    spark.dataSource.register(Struck)
    # The rows of a task come from all tasks before it, in the order in which they are fetched.
    frame = spark.range(int(rows), numPartitions=4).selectExpr("cast(id as string) AS value")
    shuffled = frame.repartition(2, "value")
    options = {"bootstrap.servers": bootstrap, "topic": topic, "raftlog.batch.bytes.max": "1024"}
    shuffled.write.format("struck").mode("append").options(**options).save()
    spark.stop()


def start_cluster(folder: str) -> str:
    """Start a standalone master and its workers in the JVM of the driver. Returns the master URL.

    It is what Spark's LocalSparkCluster does, with a host for each worker.
    """
    gateway = launch_gateway()
    SparkContext._ensure_initialized(gateway=gateway)
    spark, option = gateway.jvm.org.apache.spark, gateway.jvm.scala.Option
    settings = spark.SparkConf()
    master = spark.deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, settings)
    urls = gateway.new_array(gateway.jvm.java.lang.String, 1)
    urls[0] = f"spark://{master._1().address().hostPort()}"
    for number, host in enumerate(HOSTS):
        spark.deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, 1, 1024, urls, folder, option.apply(number), settings, option.empty()
        )
    return str(urls[0])


def striker(bootstrap: str, topic: str, folder: Path, fault: str) -> Callable[[TaskContext], None]:
    """What a task does after its first rows, by the kind of fault."""
    killed, waiting, speculated = folder / "killed", folder / "waiting", folder / "speculated"

    def wait_for_rows() -> None:
        with Admin(bootstrap) as admin:
            wait_until(lambda: any(admin.offsets(topic).values()), timeout_s=60)

    def kill(_: TaskContext) -> None:
        if not killed.exists():
            wait_for_rows()
            killed.touch()
            os.kill(executor(), signal.SIGKILL)

    def wait_for_the_other(task: TaskContext) -> None:
        if task.partitionId() == 0 and task.attemptNumber() == 0:
            wait_for_rows()
            waiting.touch()
            try:
                wait_until(speculated.exists, timeout_s=60)
            finally:
                waiting.unlink()
        elif task.partitionId() == 0 and waiting.exists():  # at the same time: no mere retry
            speculated.touch()

    return kill if fault == "kill" else wait_for_the_other


def executor() -> int:
    """The process id of the executor whose worker this is: of the nearest Java process above."""
    pid = os.getppid()
    while Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip() != "java":
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
        pid = int(stat.rpartition(")")[2].split()[1])
    return pid


if __name__ == "__main__":
    main(*sys.argv[1:])
