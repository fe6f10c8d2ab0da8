"""The last request of each visitor in Cassandra, by writes that can be repeated."""

import os
import sys

from cassandra.cluster import Cluster
from cassandra.concurrent import execute_concurrent_with_args

from raftlog import Consumer, TopicPartition

session = Cluster(["127.0.0.1"], port=int(os.environ["CASSANDRA_PORT"])).connect()
ONE_COPY = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
session.execute(f"CREATE KEYSPACE IF NOT EXISTS web WITH replication = {ONE_COPY}")
TABLE = "CREATE TABLE IF NOT EXISTS web.visitors (host text PRIMARY KEY, request text, status int)"
session.execute(TABLE)
# The offset is the time of the write: of all writes of a row, the last record of its key stays.
ROW = "INSERT INTO web.visitors (host, request, status) VALUES (?, ?, ?) USING TIMESTAMP ?"
insert = session.prepare(ROW)


def row(record):
    """Return the values of a row."""
    _, request, rest = record.value.decode().split('"', 2)
    return record.key.decode(), request, int(rest.split()[0]), record.offset + 1


# The group keeps the position. It has no members: a restart waits for no other session to end.
with Consumer(group="to-cassandra", auto_offset_reset="earliest", auto_commit=False) as consumer:
    names = consumer.partitions_for("visits")
    consumer.assign([TopicPartition("visits", number) for number in names])
    while records := consumer.poll(timeout_ms=3_000, max_records=2_000):
        execute_concurrent_with_args(session, insert, map(row, records))
        if "--crash" in sys.argv:
            os.kill(os.getpid(), 9)  # before the commit: these rows are written again
        consumer.commit()

rows = session.execute("SELECT host, request, status FROM web.visitors").all()
print(len(rows), "visitors")
print(*sorted(tuple(each) for each in rows)[:3], sep="\n")
