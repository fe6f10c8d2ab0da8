"""A program: a stream from a topic to another after a shuffle; its tasks fail, and its JVM once.

``python -m tests.spark_source.struck_stream BOOTSTRAP SOURCE TARGET FOLDER SINK``. SINK is ``sink``
or ``foreach``. Each attempt of a task gets its rows in another order. The first attempt of each
task fails after rows were stored: FOLDER has a file for each. In batch 1 the JVM ends by SIGKILL in
the second attempt of a task: FOLDER has a file ``killed`` then. Run again, the program continues
from the checkpoint.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from raftlog import Admin
from raftlog.testing import wait_until
from tests.spark_source.shuffled_write import executor

BATCH_ROWS = 1_000


def main(bootstrap: str, source: str, target: str, folder: str, sink: str) -> None:
    address = {"bootstrap.servers": bootstrap}
    builder = SparkSession.builder.master("local[2,3]").appName("a struck stream")
    # Rows reach the sink soon: they wait in no large buffer for the end of their task.
    builder = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "40")
    spark = builder.config("spark.buffer.size", "4096").getOrCreate()
    stream = (
        spark.readStream.format("raftlog")
        .options(**address, subscribe=source, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", str(BATCH_ROWS))
        .load()
        .select("key", "value")
        .repartition(2, "value")
        .mapInArrow(struck(bootstrap, target, Path(folder)), "key binary, value binary")
    )
    options = {**address, "topic": target, "raftlog.batch.bytes.max": "4096"}

    def write(rows: DataFrame, batch_id: int) -> None:
        once = {"idempotenceId": target, "idempotenceVersion": str(batch_id)}
        rows.write.format("raftlog").mode("append").options(**options, **once).save()

    writer = stream.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    if sink == "foreach":
        writer = writer.foreachBatch(write)
    else:
        writer = writer.format("raftlog").options(**options)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


def struck(
    bootstrap: str, target: str, folder: Path
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that reorders the rows of a task, and ends its attempts."""

    def stored() -> int:
        with Admin(bootstrap) as admin:
            return sum(admin.offsets(target).values())

    def map_in_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None, "it runs in one"
        arrived = list(batches)
        if not arrived:
            return
        before = stored()
        table = pa.Table.from_batches(arrived)
        order = list(range(table.num_rows))
        random.Random(task.taskAttemptId()).shuffle(order)
        parts = table.take(order).to_batches(max_chunksize=25)
        batch = str(task.getLocalProperty("streaming.sql.batchId"))
        failed, killed = folder / f"failed-{batch}-{task.partitionId()}", folder / "killed"
        for number, part in enumerate(parts):
            if number == len(parts) * 2 // 3 and not failed.exists():
                wait_until(lambda: stored() > before, timeout_s=60)
                failed.touch()
                raise RuntimeError("the first attempt fails")
            if number == len(parts) - 1 and batch == "1" and not killed.exists():
                killed.touch()
                os.kill(executor(), signal.SIGKILL)
            yield part

    return map_in_arrow


if __name__ == "__main__":
    main(*sys.argv[1:])
