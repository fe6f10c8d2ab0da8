"""Camus: topics to Hadoop. A topic as Parquet files by day, and Parquet files as a topic."""

import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

address = {"bootstrap.servers": os.environ.get("RAFTLOG_BOOTSTRAP", "127.0.0.1:9100")}
spark = SparkSession.builder.appName("Parquet").getOrCreate()
records = (
    spark.readStream.format("raftlog")
    .options(**address, subscribe="access-log", startingOffsets="earliest")
    .load()
)
text = F.regexp_extract(F.col("value").cast("string"), r"\[([^]]+)", 1)
day = F.date_format(F.to_timestamp(text, "dd/MMM/yyyy:HH:mm:ss Z"), "yyyy-MM-dd").alias("day")
query = (
    records.select("partition", "offset", "value", day)
    .writeStream.format("parquet")  # a directory that Hive, Presto and DuckDB read
    .option("checkpointLocation", "checkpoints/parquet")  # with the offsets: each record once
    .partitionBy("day")
    .trigger(availableNow=True)  # as Camus: a job of cron
    .start("access_log_parquet")
)
query.awaitTermination()
files = spark.read.parquet("access_log_parquet")
files.groupBy("day").agg(F.count("*").alias("records")).orderBy("day").show()

rows = files.where("day = '2015-05-18'").orderBy("partition", "offset")
once = {"idempotenceId": "back", "idempotenceVersion": 1}  # a repeated job stores nothing twice
for _ in range(2):
    sink = rows.select("value").write.format("raftlog").mode("append")
    sink.options(**address, topic="from-parquet", **once).save()
back = spark.read.format("raftlog").options(**address, subscribe="from-parquet").load()
print(back.count(), "records from Parquet")
