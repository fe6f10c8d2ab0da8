"""A stream that cuts a clickstream into sessions: a user who does nothing for so long has left.

A click is a record: its key is the user, its value the page, its timestamp the time. A session is
written once it cannot grow any more, as JSON under the user's name.

    raftlog topic create clicks --partitions 3
    raftlog topic create sessions --partitions 3
    spark-submit docs/examples/spark/click_sessions.py --checkpoint checkpoints/sessions
    echo 'ann /cart' | raftlog produce clicks --key-separator ' '
    raftlog tail sessions -f
"""

from __future__ import annotations

import argparse
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming import StreamingQuery


def sessions_of(clicks: DataFrame, *, gap: str, late: str) -> DataFrame:
    """A row for each session of a stream of records.

    ``gap``: a pause so long ends a session. ``late``: how late a click may come, by the newest one.
    """
    window = F.session_window("timestamp", gap)
    return (
        clicks.withWatermark("timestamp", late)
        .groupBy(F.col("key").cast("string").alias("user"), window)
        .agg(
            F.count("*").alias("clicks"),
            F.size(F.collect_set("value")).alias("pages"),
            F.max("timestamp").alias("last"),
        )
        .select("user", F.col("session_window.start").alias("first"), "last", "clicks", "pages")
    )


def main(
    spark: SparkSession,
    *,
    bootstrap: str,
    clicks: str,
    sessions: str,
    checkpoint: str,
    trigger: dict[str, Any],
    gap: str = "30 minutes",
    late: str = "10 minutes",
) -> StreamingQuery:
    """Start the query that writes the sessions."""
    records = (
        spark.readStream.format("raftlog")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", clicks)
        .option("startingOffsets", "earliest")
        .option("columns", "key,value,timestamp")
        .load()
    )
    return (
        sessions_of(records, gap=gap, late=late)
        .select(F.col("user").alias("key"), F.to_json(F.struct("*")).alias("value"))
        .writeStream.format("raftlog")
        .option("bootstrap.servers", bootstrap)
        .option("topic", sessions)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(**trigger)
        .start()
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9100")
    parser.add_argument("--clicks", default="clicks")
    parser.add_argument("--sessions", default="sessions")
    parser.add_argument("--checkpoint", required=True, help="a directory that all executors share")
    parser.add_argument("--gap", default="30 minutes")
    parser.add_argument("--late", default="10 minutes")
    parser.add_argument("--once", action="store_true", help="end when all that is there is read")
    arguments = vars(parser.parse_args())
    trigger = {"availableNow": True} if arguments.pop("once") else {"processingTime": "1 second"}
    session = SparkSession.builder.appName("click sessions").getOrCreate()
    main(session, **arguments, trigger=trigger).awaitTermination()
