"""A replay of access-log lines out of a topic, with SQL over them: top paths, status by hour.

raftlog topic create access-log --partitions 3
raftlog produce access-log --file access.log --compression zstd
spark-submit docs/examples/spark/access_log.py --topic access-log
"""

from __future__ import annotations

import argparse

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

LINE = r'^(\S+) \S+ \S+ \[([^\]]+)\] "(\S+) (\S+)[^"]*" (\d{3}) (\d+|-)'

REPORTS = {
    "top paths": """
        SELECT path, count(*) AS requests, coalesce(sum(bytes), 0) AS bytes
        FROM access_log WHERE status IS NOT NULL
        GROUP BY path ORDER BY requests DESC, path LIMIT 10""",
    "status by hour": """
        SELECT date_format(time, 'yyyy-MM-dd HH:00') AS hour, status, count(*) AS requests
        FROM access_log WHERE status IS NOT NULL
        GROUP BY hour, status ORDER BY hour, status""",
    "lines that are no access-log lines": """
        SELECT partition, offset, line FROM access_log WHERE status IS NULL
        ORDER BY partition, offset LIMIT 10""",
}


def read_access_log(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """A row for each record. A line that is none of an access log has nulls beside it."""
    records = (
        spark.read.format("raftlog")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("columns", "value,partition,offset")
        .load()
    )
    line = F.col("value").cast("string")

    def group(number: int) -> Column:
        return F.nullif(F.regexp_extract(line, LINE, number), F.lit(""))

    return records.select(
        "partition",
        "offset",
        line.alias("line"),
        group(1).alias("host"),
        F.try_to_timestamp(group(2), F.lit("dd/MMM/yyyy:HH:mm:ss Z")).alias("time"),
        group(3).alias("method"),
        group(4).alias("path"),
        group(5).cast("int").alias("status"),
        group(6).try_cast("long").alias("bytes"),
    )


def main(spark: SparkSession, *, bootstrap: str, topic: str) -> dict[str, DataFrame]:
    """The reports by name. All of them see the records that the topic had at ``load()``."""
    read_access_log(spark, bootstrap, topic).createOrReplaceTempView("access_log")
    return {name: spark.sql(report) for name, report in REPORTS.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9100")
    parser.add_argument("--topic", default="access-log")
    arguments = parser.parse_args()
    session = SparkSession.builder.appName("access log").getOrCreate()
    for name, report in main(session, **vars(arguments)).items():
        print(name)
        report.show(50, truncate=80)
