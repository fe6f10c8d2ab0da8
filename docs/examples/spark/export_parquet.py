"""A part of a topic, by time or by offsets, as Parquet files.

    spark-submit docs/examples/spark/export_parquet.py --topic views --out exports/may-1 \\
        --since 2026-05-01T00:00:00Z --until 2026-05-02T00:00:00Z
    spark-submit docs/examples/spark/export_parquet.py --topic views --out exports/some \\
        --offsets 0:100:200 --offsets 2:0:50
"""

from __future__ import annotations

import argparse
from datetime import datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pyspark_raftlog import read_range


def main(
    spark: SparkSession,
    *,
    bootstrap: str,
    topic: str,
    out: str,
    since: datetime | None = None,
    until: datetime | None = None,
    offsets: dict[int, tuple[int, int]] | None = None,
) -> int:
    """Write the files, a directory for each day; how many records they have.

    The records from ``since`` to before ``until``; or those of each partition from one offset to
    before another. What the topic gets meanwhile is not among them.
    """
    records = read_range(
        spark,
        topic,
        bootstrap=bootstrap,
        time=None if offsets else (since, until),
        offsets=offsets,
        includeHeaders=True,
    )
    dated = records.withColumn("date", F.to_date("timestamp"))
    dated.write.mode("overwrite").partitionBy("date").parquet(out)
    return spark.read.parquet(out).count()


def parse_offsets(text: str) -> tuple[int, tuple[int, int]]:
    """``2:100:200``: of partition 2 the offsets 100 to 199."""
    partition, first, end = map(int, text.split(":"))
    return partition, (first, end)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9100")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--out", required=True, help="a directory, replaced if it is there")
    parser.add_argument("--since", type=datetime.fromisoformat)
    parser.add_argument("--until", type=datetime.fromisoformat)
    parser.add_argument("--offsets", type=parse_offsets, action="append", metavar="P:FIRST:END")
    arguments = vars(parser.parse_args())
    arguments["offsets"] = dict(arguments["offsets"] or ()) or None
    session = SparkSession.builder.appName("export").getOrCreate()
    print(f"{main(session, **arguments)} records in {arguments['out']}")
