"""A stream that counts words: lines of text in one topic, the count of each word in another.

The topic of the counts is compacted: it keeps the last count of each word.

    raftlog topic create lines --partitions 3
    raftlog topic create word-counts --config cleanup.policy=compact
    spark-submit docs/examples/spark/word_count.py --checkpoint checkpoints/word-count
    raftlog produce lines --file README.md
    raftlog tail word-counts -f --format '%k %v'
"""

from __future__ import annotations

import argparse
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming import StreamingQuery


def count_words(lines: DataFrame) -> DataFrame:
    """The columns ``word`` and ``count`` of a DataFrame with a column ``value``."""
    words = F.split(F.lower(F.col("value").cast("string")), r"[^\p{L}\p{N}]+")
    return (
        lines.select(F.explode(words).alias("word"))
        .where("word != ''")
        .groupBy("word")
        .agg(F.count("*").alias("count"))
    )


def main(
    spark: SparkSession,
    *,
    bootstrap: str,
    lines: str,
    counts: str,
    checkpoint: str,
    trigger: dict[str, Any],
) -> StreamingQuery:
    """Start the query. Each of its batches writes the words whose count has changed.

    Spark gives no Python source ``outputMode("update")``: hence ``foreachBatch``. By the
    checkpoint's path and the batch's number a batch that is repeated is the same write, which is
    stored once. If the checkpoint is deleted, the next one needs another path.
    """

    def write(changed: DataFrame, batch_id: int) -> None:
        (
            changed.selectExpr("word AS key", "cast(count AS string) AS value")
            .write.format("raftlog")
            .mode("append")
            .option("bootstrap.servers", bootstrap)
            .option("topic", counts)
            .option("idempotenceId", f"word count, {checkpoint}")
            .option("idempotenceVersion", batch_id)
            .save()
        )

    records = (
        spark.readStream.format("raftlog")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", lines)
        .option("startingOffsets", "earliest")
        .option("columns", "value")
        .load()
    )
    return (
        count_words(records)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
        .outputMode("update")
        .trigger(**trigger)
        .start()
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9100")
    parser.add_argument("--lines", default="lines")
    parser.add_argument("--counts", default="word-counts")
    parser.add_argument("--checkpoint", required=True, help="a directory that all executors share")
    parser.add_argument("--once", action="store_true", help="end when all that is there is counted")
    arguments = vars(parser.parse_args())
    trigger = {"availableNow": True} if arguments.pop("once") else {"processingTime": "1 second"}
    session = SparkSession.builder.appName("word count").getOrCreate()
    main(session, **arguments, trigger=trigger).awaitTermination()
