"""SQLstream's standing query: requests and errors by window of event time, as a stream."""

import os

from pyspark.sql import SparkSession

address = {"bootstrap.servers": os.environ.get("RAFTLOG_BOOTSTRAP", "127.0.0.1:9100")}
spark = SparkSession.builder.appName("standing query").getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "UTC")
spark.readStream.format("raftlog").options(
    **address, subscribe="access-log", startingOffsets="earliest"
).load().createOrReplaceTempView("records")
spark.sql(r"""
    SELECT to_timestamp(regexp_extract(line, '\\[([^]]+)', 1), 'dd/MMM/yyyy:HH:mm:ss Z') AS time,
           cast(regexp_extract(line, '" (\\d+) ', 1) AS int) AS status
    FROM (SELECT cast(value AS string) AS line FROM records)
""").withWatermark("time", "6 hours").createOrReplaceTempView("requests")
standing = spark.sql("""
    SELECT window.start AS start, count(*) AS requests, count_if(status >= 500) AS errors
    FROM requests GROUP BY window(time, '12 hours')
""")
query = (
    standing.writeStream.format("memory")
    .queryName("results")
    .outputMode("append")  # a window is final when the watermark has passed its end
    .option("checkpointLocation", "checkpoints/standing")
    .trigger(availableNow=True)  # a standing query has processingTime="10 seconds"
    .start()
)
query.awaitTermination()
spark.table("results").orderBy("start").show()
