"""Re-processing: a topic is read again from its beginning, with changed logic, into a new topic.

The old results stay, and so do those who read them; when the new topic has caught up, they change
over. This logic drops what robots did, and the part of a page's address behind the question mark.

    raftlog topic create views --partitions 3
    raftlog topic create views-v2 --partitions 3
    spark-submit docs/examples/spark/reprocess.py --until "$(date -u +%Y-%m-%dT%H:%M:%SZ)"

Give it the same --until again, and nothing is stored twice: also when the first run was killed.
"""

from __future__ import annotations

import argparse
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

VERSION = 2  # of the logic below
ROBOTS = r"(?i)bot|crawler|spider"


def logic(views: DataFrame) -> DataFrame:
    """Records of page views, whose header ``agent`` names the browser, as they are to be."""
    agent = F.expr("cast(get(filter(headers, h -> h.key = 'agent'), 0).value AS string)")
    page = F.split_part(F.col("value").cast("string"), F.lit("?"), F.lit(1))
    return views.where(~F.coalesce(agent.rlike(ROBOTS), F.lit(False))).withColumn("value", page)


def main(spark: SparkSession, *, bootstrap: str, views: str, into: str, until: datetime) -> None:
    """Write what the logic makes of the records before ``until``.

    That is to lie in the past, so that each run reads the same records.
    """
    old = (
        spark.read.format("raftlog")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", views)
        .option("endingTimestamp", int(until.timestamp() * 1_000))
        .option("columns", "key,value,timestamp,headers")
        .load()
    )
    (
        logic(old)
        .write.format("raftlog")
        .mode("append")
        .option("bootstrap.servers", bootstrap)
        .option("topic", into)
        .option("idempotenceId", f"reprocess {views} until {until.isoformat()}")
        .option("idempotenceVersion", VERSION)
        .save()
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9100")
    parser.add_argument("--views", default="views")
    parser.add_argument("--into", default="views-v2")
    parser.add_argument("--until", type=datetime.fromisoformat, required=True)
    arguments = parser.parse_args()
    session = SparkSession.builder.appName("re-processing").getOrCreate()
    main(session, **vars(arguments))
