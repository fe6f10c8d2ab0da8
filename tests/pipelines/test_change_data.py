"""Change data of PostgreSQL by Debezium, while Connect, PostgreSQL and brokers are killed.

In the end, a ``Table`` and Spark have exactly the rows of the table of PostgreSQL.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from raftlog import Admin, NewTopic, Table
from raftlog.testing import cluster, wait_until
from tests.pipelines import run

psycopg: Any = pytest.importorskip("psycopg")
pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.timeout(0)]

TOPIC = "shop.public.customers"
CHANGES = 1_500  # then the disturbances end
MISSING = run.missing(("java", "mvn", "postgres"))


@contextmanager
def connect(directory: Path, environ: dict[str, str]) -> Iterator[None]:
    """Run Kafka Connect until the end of the block, which kills it."""
    command = ["java", "-cp", f"{run.connect_jars()}/*"]
    command += ["org.apache.kafka.connect.cli.ConnectStandalone"]
    command += [f"debezium/{name}.properties" for name in ("worker", "customers")]
    with (directory / "connect.log").open("ab") as log:
        started = subprocess.Popen(
            command, cwd=directory, env={**os.environ, **environ}, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        started.kill()
        started.wait()


class Changes(threading.Thread):
    """Changes rows at random until its end is requested; waits while PostgreSQL is down."""

    def __init__(self, address: str, seed: int) -> None:
        super().__init__()
        self._address, self._chance = address, random.Random(seed)
        self.made, self.is_ending = 0, threading.Event()

    def run(self) -> None:
        while not self.is_ending.is_set():
            with (
                suppress(psycopg.OperationalError),
                psycopg.connect(self._address, autocommit=True) as database,
            ):
                while not self.is_ending.is_set():
                    self._change(database)
                    self.made += 1
                    self.is_ending.wait(0.01)
            self.is_ending.wait(0.1)

    def _change(self, database: Any) -> None:
        row, draw = self._chance.randrange(200), self._chance.random()
        if draw < 0.5:
            insert = "INSERT INTO customers VALUES (%s, %s, 1) ON CONFLICT (id) "
            insert += "DO UPDATE SET orders = customers.orders + 1, name = excluded.name"
            database.execute(insert, (row, f"name {self._chance.random()}"))
        elif draw < 0.8:
            database.execute(
                "UPDATE customers SET orders = orders + 1 WHERE id %% 7 = %s", (row % 7,)
            )
        else:
            database.execute("DELETE FROM customers WHERE id = %s", (row,))


def rows_in_spark(bootstrap: str) -> dict[int, tuple[str, int]]:
    """Return the newest row of each key, by a batch query."""
    pytest.importorskip("pyspark")
    from pyspark.sql import SparkSession

    session: Any = SparkSession.builder
    for name, value in run.SPARK.items():
        session = session.config(name, value)
    spark = session.master("local[2]").getOrCreate()
    try:
        options = {"bootstrap.servers": bootstrap, "subscribe": TOPIC}
        spark.read.format("raftlog").options(**options).load().createOrReplaceTempView("changes")
        found = spark.sql(
            """SELECT row.id, row.name, row.orders FROM (
                SELECT from_json(get_json_object(cast(newest AS STRING), '$.after'),
                    'id INT, name STRING, orders INT') AS row
                FROM (SELECT max_by(value, struct(partition, offset)) AS newest
                    FROM changes GROUP BY key) WHERE newest IS NOT NULL)
            WHERE row IS NOT NULL"""
        ).collect()
    finally:
        spark.stop()
    return {row[0]: (row[1], row[2]) for row in found}


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_the_topic_has_the_rows_of_the_table_after_restarts(seed: int) -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.chmod(0o755)  # PostgreSQL runs as another user
        shutil.copytree(run.EXAMPLES / "debezium", directory / "debezium")
        chance, server = random.Random(seed), run.Postgres(directory)
        running = stack.enter_context(cluster(3))
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 3, {"cleanup.policy": "compact"})])
        databases, connects = (stack.enter_context(ExitStack()) for _ in range(2))
        environ = databases.enter_context(server.running())
        environ["RAFTLOG_BOOTSTRAP"] = running.bootstrap
        with psycopg.connect(server.address, autocommit=True) as database:
            database.execute("CREATE TABLE customers (id int PRIMARY KEY, name text, orders int)")
            database.execute("INSERT INTO customers SELECT n, '', 0 FROM generate_series(0, 99) n")
        connects.enter_context(connect(directory, environ))
        changes = Changes(server.address, seed)
        stack.callback(changes.join)
        stack.callback(changes.is_ending.set)
        changes.start()
        disturbances = ["connect", "postgres", "broker", "connect", "broker", "postgres"]
        chance.shuffle(disturbances)
        for number, each in enumerate(disturbances, 1):
            due = CHANGES * number // len(disturbances)
            wait_until(
                lambda due=due: changes.made >= due or not changes.is_alive(),  # type: ignore[misc]
                timeout_s=300,
                progress=lambda: changes.made,
            )
            assert changes.is_alive()
            if each == "connect":
                connects.close()
                connects.enter_context(connect(directory, environ))
            elif each == "postgres":
                databases.close()
                databases.enter_context(server.running())
            else:
                broker = running.broker(chance.randrange(1, 4))
                broker.kill()
                broker.start()
        changes.is_ending.set()
        changes.join()
        with psycopg.connect(server.address) as database:
            found = database.execute("SELECT id, name, orders FROM customers").fetchall()
        stored = {row[0]: (row[1], row[2]) for row in found}
        with Table(TOPIC, bootstrap=running.bootstrap) as table:

            def has_the_rows() -> bool:
                table.refresh()
                rows = [row for value in table.values() if (row := json.loads(value)["after"])]
                return {row["id"]: (row["name"], row["orders"]) for row in rows} == stored

            wait_until(has_the_rows, timeout_s=300)
        assert rows_in_spark(running.bootstrap) == stored
