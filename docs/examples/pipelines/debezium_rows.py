"""Wait until the topic has exactly the rows of the table, and print their number."""

import json
import os
import sys
import time

import psycopg

import raftlog

database = psycopg.connect(os.environ["DATABASE"], autocommit=True)
deadline = time.monotonic() + 120
with raftlog.Table("shop.public.customers") as table:
    while True:
        table.refresh()
        last = [json.loads(value)["after"] for value in table.values()]  # change of each key
        rows = {row["id"]: row for row in last if row}
        stored = database.execute("SELECT id, name, orders FROM customers").fetchall()
        if rows == {
            row[0]: dict(zip(("id", "name", "orders"), row, strict=True)) for row in stored
        }:
            break
        if time.monotonic() > deadline:
            sys.exit(f"{len(rows)} rows in the topic, and {len(stored)} in the table")
        time.sleep(0.2)
print(sys.argv[1], len(rows), "rows,", sum(row["orders"] for row in rows.values()), "orders")
