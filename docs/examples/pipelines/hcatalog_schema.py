"""HCatalog's schema: JSON values as columns, by a schema that the program has."""

import json

import pyarrow as pa

import raftlog

with raftlog.Producer() as producer:
    rows = [{"sensor": "s1", "celsius": 20.5}, {"sensor": "s2"}, {"sensor": "s1", "celsius": "x"}]
    producer.send_many("readings", [json.dumps(row).encode() for row in rows], partition=0)

schema = pa.schema([("sensor", pa.string()), ("celsius", pa.float64())])
given = {"value": "json", "schema": schema, "columns": ["offset", "sensor", "celsius"]}
try:
    raftlog.scan("readings", **given).to_arrow()
except raftlog.errors.DeserializationError as error:
    print("refused:", error)
for row in raftlog.scan("readings", **given, on_error="null").to_arrow().to_pylist():
    print(row)
