"""Two flows from one topic into another: failed requests, and requests of robots."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

spark = SparkSession.active()
address = {"bootstrap.servers": os.environ.get("RAFTLOG_BOOTSTRAP", "127.0.0.1:9100")}
dp.create_sink("alerts", "raftlog", {**address, "topic": "alerts"})


@dp.temporary_view
def requests() -> DataFrame:
    """The lines of the access log, and their fields."""
    records = spark.readStream.format("raftlog")
    records = records.options(**address, subscribe="access-log", startingOffsets="earliest")
    line = F.col("value").cast("string")
    return records.load().select(
        F.regexp_extract(line, r"^(\S+)", 1).alias("host"),
        F.regexp_extract(line, r'" (\d+) ', 1).cast("int").alias("status"),
        line.alias("line"),
    )


@dp.append_flow(target="alerts", name="failed_requests")
def failed_requests() -> DataFrame:
    """A record for each request that the server could not answer."""
    failed = spark.readStream.table("requests").where("status >= 500")
    return failed.select(
        F.col("host").alias("key"), F.concat(F.lit("failed: "), "line").alias("value")
    )


@dp.append_flow(target="alerts", name="robots")
def robots() -> DataFrame:
    """A record for each request of a robot for a product."""
    found = spark.readStream.table("requests").where("line LIKE '%/products/%bot%'")
    return found.select(
        F.col("host").alias("key"), F.concat(F.lit("robot: "), "line").alias("value")
    )
