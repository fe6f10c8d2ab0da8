"""Typed values: records of JSON, and of Avro, as columns; and columns as records of either.

JSON needs nothing but Spark. For Avro there are two ways: Spark's own ``from_avro``, which is in
a JAR of its own, and any Python package in an ``arrow_udf``, as here.

    pip install fastavro
    raftlog topic create readings-json
    raftlog topic create readings-avro
    echo '{"sensor": "s1", "celsius": 20.5}' | raftlog produce readings-json
    spark-submit docs/examples/spark/typed_values.py
"""

from __future__ import annotations

import argparse
import io

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

COLUMNS = "sensor string, celsius double"
AVRO = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "sensor", "type": "string"}, {"name": "celsius", "type": "double"}],
}


def from_json(records: DataFrame) -> DataFrame:
    """The columns of JSON values; nulls for a value that is none."""
    reading = F.from_json(F.col("value").cast("string"), COLUMNS)
    return records.select(reading.alias("reading")).select("reading.*")


def from_avro(records: DataFrame) -> DataFrame:
    """The columns of Avro values: one datum each, without a schema before it."""
    arrow = pa.struct([("sensor", pa.string()), ("celsius", pa.float64())])

    def decode(values: pa.Array) -> pa.Array:
        from fastavro import parse_schema, schemaless_reader

        schema = parse_schema(AVRO)
        data = (io.BytesIO(value) for value in values.to_pylist())
        return pa.array([schemaless_reader(each, schema, None) for each in data], arrow)

    reading = F.arrow_udf(decode, COLUMNS)("value")
    return records.select(reading.alias("reading")).select("reading.*")


def to_avro(readings: DataFrame) -> DataFrame:
    """The other way: a column ``value`` to be written."""

    def encode(readings: pa.Array) -> pa.Array:
        from fastavro import parse_schema, schemaless_writer

        schema = parse_schema(AVRO)
        data = [io.BytesIO() for _ in readings]
        for out, reading in zip(data, readings.to_pylist(), strict=True):
            schemaless_writer(out, schema, reading)
        return pa.array([out.getvalue() for out in data], pa.binary())

    return readings.select(F.arrow_udf(encode, "binary")(F.struct("*")).alias("value"))


def main(spark: SparkSession, *, bootstrap: str, json_topic: str, avro_topic: str) -> DataFrame:
    """Copy readings from JSON to Avro, and read those back: the mean of each sensor."""
    address = {"bootstrap.servers": bootstrap}
    records = spark.read.format("raftlog").options(**address, subscribe=json_topic).load()
    writer = to_avro(from_json(records)).write.format("raftlog").mode("append")
    writer.options(**address, topic=avro_topic).save()
    stored = spark.read.format("raftlog").options(**address, subscribe=avro_topic).load()
    return from_avro(stored).groupBy("sensor").agg(F.avg("celsius").alias("mean")).sort("sensor")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9100")
    parser.add_argument("--json-topic", default="readings-json")
    parser.add_argument("--avro-topic", default="readings-avro")
    arguments = parser.parse_args()
    session = SparkSession.builder.appName("typed values").getOrCreate()
    main(session, **vars(arguments)).show()
