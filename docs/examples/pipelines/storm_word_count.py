"""Storm's word count: a spout of lines, a bolt that splits them, a bolt that counts by word."""

import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import raftlog

address = {"bootstrap.servers": os.environ.get("RAFTLOG_BOOTSTRAP", "127.0.0.1:9100")}
spark = SparkSession.builder.appName("word count").getOrCreate()
spout = (
    spark.readStream.format("raftlog")
    .options(**address, subscribe="access-log", startingOffsets="earliest")
    .load()
)
path = F.regexp_extract(F.col("value").cast("string"), r'"\S+ (\S+)', 1)
words = spout.select(F.explode(F.split(F.lower(path), "[^a-z]+")).alias("word"))
counts = words.where("word != ''").groupBy("word").count()  # grouped by field


def write(changed, batch_id):
    """The changed counts. A batch that Spark repeats after a failure is stored once."""
    rows = changed.selectExpr("word AS key", "cast(count AS string) AS value")
    once = {"idempotenceId": "word count", "idempotenceVersion": batch_id}
    sink = rows.write.format("raftlog").mode("append")
    sink.options(**address, topic="word-counts", **once).save()


query = counts.writeStream.foreachBatch(write).outputMode("update")
query = query.option("checkpointLocation", "checkpoints/word-count").trigger(availableNow=True)
query.start().awaitTermination()  # without availableNow: a topology that runs until it is stopped

with raftlog.Table("word-counts") as table:  # the topic is compacted: the last count of each word
    top = sorted(table.items(), key=lambda item: (-int(item[1]), item[0]))[:5]
for word, count in top:
    print(word.decode(), count.decode())
