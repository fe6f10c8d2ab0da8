"""Spark's connector for Kafka: batch and streaming, in both directions.

python words.py BOOTSTRAP SOURCE COPY JARS CHECKPOINT
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

bootstrap, source, copy, jars, checkpoint = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jars)
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
address = {"kafka.bootstrap.servers": bootstrap}
reading = {**address, "subscribe": source, "startingOffsets": "earliest", "includeHeaders": "true"}
columns = ("key", "value", "headers", "partition")

found = spark.read.format("kafka").options(**reading, endingOffsets="latest").load()
sys.stdout.write(f"batch {found.count()}\n")
found.select(*columns).write.format("kafka").options(**address, topic=copy).save()
stream = spark.readStream.format("kafka").options(**reading, maxOffsetsPerTrigger="100").load()
query = (
    stream.select(*columns)
    .writeStream.format("kafka")
    .options(**address, topic=copy, checkpointLocation=checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
written = spark.read.format("kafka").options(**address, subscribe=copy).load()
sys.stdout.write(f"copied {written.count()}\n")
