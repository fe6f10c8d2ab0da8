"""A topic as an Iceberg table: each snapshot has the offsets up to which it contains the topic."""

import json
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

import raftlog

PROPERTY = "raftlog.offsets"
READ = {"columns": ["partition", "offset", "timestamp", "value"], "value": "text"}
catalog = SqlCatalog("local", uri="sqlite:///catalog.db", warehouse=Path.cwd().as_uri())
catalog.create_namespace_if_not_exists("logs")


def append(topic: str, name: str) -> int:
    """Append the records that the table lacks. Returns their number."""
    whole = raftlog.scan(topic, **READ)
    table = catalog.create_table_if_not_exists(name, schema=whole.schema)
    snapshot = table.current_snapshot()
    offsets = json.loads(snapshot.summary[PROPERTY]) if snapshot else {}
    parts = []
    for each in whole.ranges:
        number = each.tp.partition
        start = offsets.get(str(number), each.start)
        scan = raftlog.scan(topic, **READ, partitions=[number], start=start, end=each.end)
        parts.append(scan.to_arrow())
        offsets[str(number)] = each.end
    rows = pa.concat_tables(parts)
    if rows.num_rows:  # records and offsets become visible together, in one commit
        table.append(rows, snapshot_properties={PROPERTY: json.dumps(offsets)})
    return rows.num_rows


print(append("access-log", "logs.access"), "records")
print(append("access-log", "logs.access"), "records when it is repeated")
stored = catalog.load_table("logs.access").scan(selected_fields=("partition", "offset")).to_arrow()
print(stored.group_by(["partition", "offset"]).aggregate([]).num_rows, "different rows")
