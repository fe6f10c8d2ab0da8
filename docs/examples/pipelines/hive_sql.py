"""Hive's SQL: a topic as a table of Spark SQL. The view has the columns of the lines."""

import os

from pyspark.sql import SparkSession

bootstrap = os.environ.get("RAFTLOG_BOOTSTRAP", "127.0.0.1:9100")
spark = SparkSession.builder.appName("SQL").getOrCreate()
spark.sql("CREATE TABLE topics USING raftlog")  # one table for all topics
spark.sql(rf"""
    CREATE VIEW access_log AS
    SELECT regexp_extract(line, '^(\\S+)', 1) AS host,
           to_timestamp(regexp_extract(line, '\\[([^]]+)', 1), 'dd/MMM/yyyy:HH:mm:ss Z') AS time,
           regexp_extract(line, '"\\S+ (\\S+)', 1) AS path,
           cast(regexp_extract(line, '" (\\d+) ', 1) AS int) AS status
    FROM (SELECT cast(value AS string) AS line
          FROM topics WITH ('bootstrap.servers'='{bootstrap}', 'subscribe'='access-log'))
""")
spark.sql("""
    SELECT date_format(time, 'yyyy-MM-dd') AS day, count(*) AS requests,
           count(DISTINCT host) AS hosts, count_if(status >= 400) AS errors
    FROM access_log GROUP BY day ORDER BY day
""").show()
