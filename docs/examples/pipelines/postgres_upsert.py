"""Cassandra's place: requests by path in PostgreSQL, exactly once, by foreachBatch."""

import os
import sys

import psycopg
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

address = {"bootstrap.servers": os.environ.get("RAFTLOG_BOOTSTRAP", "127.0.0.1:9100")}
spark = SparkSession.builder.appName("upsert").getOrCreate()
source = spark.readStream.format("raftlog").options(**address, subscribe="access-log")
records = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=4_000).load()
path = F.regexp_extract(F.col("value").cast("string"), r'"\S+ (\S+)', 1)
database = psycopg.connect(os.environ["DATABASE"], autocommit=True)
TABLES = """CREATE TABLE IF NOT EXISTS paths (path text PRIMARY KEY, requests bigint);
CREATE TABLE IF NOT EXISTS done (partition int PRIMARY KEY, next bigint)"""
database.execute(TABLES)
UPSERT = "INSERT INTO {0} AS old VALUES (%s, %s) ON CONFLICT ({1}) DO UPDATE SET {2}"
ADD = UPSERT.format("paths", "path", "requests = old.requests + excluded.requests")
DONE = UPSERT.format("done", "partition", "next = excluded.next")


def write(batch, batch_id):
    """Add the counts of a batch and its offsets in one transaction. Stored records are skipped."""
    with database.transaction(), database.cursor() as cursor:
        done = dict(cursor.execute("SELECT partition, next FROM done").fetchall())
        for partition, end in done.items():
            batch = batch.where(f"partition != {partition} OR offset >= {end}")
        cursor.executemany(ADD, batch.groupBy(path).count().collect())
        cursor.executemany(DONE, batch.groupBy("partition").agg(F.max("offset") + 1).collect())
    if batch_id == 2 and "--crash" in sys.argv:
        os.kill(os.getpid(), 9)  # after the commit: the batch is repeated


query = records.writeStream.foreachBatch(write).trigger(availableNow=True)
query.option("checkpointLocation", "checkpoints/postgres").start().awaitTermination()
print(*database.execute("SELECT * FROM paths ORDER BY requests DESC, path LIMIT 5"), sep="\n")
