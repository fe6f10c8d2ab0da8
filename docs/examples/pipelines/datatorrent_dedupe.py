"""DataTorrent's dedupe operator and its fault tolerance: repeated lines once, also after a kill."""

import os
import signal
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

address = {"bootstrap.servers": os.environ.get("RAFTLOG_BOOTSTRAP", "127.0.0.1:9100")}
spark = SparkSession.builder.appName("dedupe").getOrCreate()
records = (
    spark.readStream.format("raftlog")
    .options(**address, subscribe="requests-twice", startingOffsets="earliest")
    .option("maxOffsetsPerTrigger", 5_000)
    .load()
)
unique = records.withColumn("id", F.xxhash64("value")).dropDuplicates(["id"]).select("value")


def write(batch, batch_id):
    """Store a batch once, however often it is repeated. With --crash: die after the third one."""
    ordered = batch.orderBy("value")  # the same rows in the same order in each attempt
    once = {"idempotenceId": "dedupe", "idempotenceVersion": batch_id}
    sink = ordered.write.format("raftlog").mode("append")
    sink.options(**address, topic="requests-once", **once).save()
    if batch_id == 3 and "--crash" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)  # stored, but not in the checkpoint


query = unique.writeStream.foreachBatch(write).trigger(availableNow=True)
query.option("checkpointLocation", "checkpoints/dedupe").start().awaitTermination()
options = {**address, "subscribe": "requests-twice,requests-once"}
stored = spark.read.format("raftlog").options(**options).load()
stored.groupBy("topic").agg(F.count("*"), F.count_distinct("value")).orderBy("topic").show()
