"""A stream that adds to each order what it costs, and writes it back: each order exactly once.

Kill it with SIGKILL whenever you like: started again with the same checkpoint it goes on where it
was, and what it had written of the batch that was cut off is not written a second time.

    printf 'item,price\\ntea,3\\njam,5\\n' > prices.csv
    raftlog topic create orders --partitions 3
    raftlog topic create priced-orders --partitions 3
    echo '{"id": 1, "item": "tea", "count": 2}' | raftlog produce orders
    spark-submit docs/examples/spark/enrich_exactly_once.py --prices prices.csv \\
        --checkpoint checkpoints/priced-orders
    raftlog tail priced-orders -o earliest -f
"""

from __future__ import annotations

import argparse
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming import StreamingQuery


def enrich(orders: DataFrame, prices: DataFrame) -> DataFrame:
    """Each order with its price; an item without one has none.

    The prices are few, so each task gets all of them: no rows change tasks, and their order stays
    as it is in the log. A batch that is done again comes out the same.
    """
    order = F.from_json(F.col("value").cast("string"), "id long, item string, count int")
    return (
        orders.select("key", "timestamp", order.alias("order"))
        .select("key", "timestamp", "order.*")
        .join(F.broadcast(prices), "item", "left")
        .withColumn("cost", F.col("count") * F.col("price"))
    )


def main(
    spark: SparkSession,
    *,
    bootstrap: str,
    orders: str,
    priced: str,
    prices: str,
    checkpoint: str,
    trigger: dict[str, Any],
    batch_records: int = 100_000,
) -> StreamingQuery:
    """Start the query. ``batch_records``: of one micro-batch, at most."""
    records = (
        spark.readStream.format("raftlog")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", orders)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch_records)
        .load()
    )
    table = spark.read.csv(prices, header=True, schema="item string, price int")
    value = F.to_json(F.struct("id", "item", "count", "price", "cost")).alias("value")
    return (
        enrich(records, table)
        .select("key", "timestamp", value)
        .writeStream.format("raftlog")
        .option("bootstrap.servers", bootstrap)
        .option("topic", priced)
        .option("checkpointLocation", checkpoint)
        .trigger(**trigger)
        .start()
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9100")
    parser.add_argument("--orders", default="orders")
    parser.add_argument("--priced", default="priced-orders")
    parser.add_argument("--prices", required=True, help="a CSV file: item,price")
    parser.add_argument("--checkpoint", required=True, help="a directory that all executors share")
    parser.add_argument("--batch-records", type=int, default=100_000)
    parser.add_argument("--once", action="store_true", help="end when all that is there is priced")
    arguments = vars(parser.parse_args())
    trigger = {"availableNow": True} if arguments.pop("once") else {"processingTime": "0 seconds"}
    session = SparkSession.builder.appName("priced orders").getOrCreate()
    main(session, **arguments, trigger=trigger).awaitTermination()
