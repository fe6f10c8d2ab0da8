"""A program: four stateful queries of topics to topics, whose results are known beforehand.

``python -m tests.spark_source.truth BOOTSTRAP FOLDER [MASTER]``. The queries run at a time until
they have read all: counts in windows, distinct orders, a join of two streams, and a state per user.
Each has its checkpoint in FOLDER. Run again after a death, they continue from there. The topics
``orders`` and ``payments`` have what ``events`` returns; the results are in the topics of
``expected``.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Row, SparkSession, functions
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from raftlog.testing import wait_until

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

ORDERS = 3_000
USERS = 7
BATCHES = 6  # of each query, about
START_MS = 1_700_000_000_000
STEP_MS = 50  # between events
LATE_MS = 5_000  # at most, of an event
WATERMARK = "30 seconds"
WINDOW_MS = 10_000
PAID_MS = 20_000  # a payment that comes later is none
LAST = "last"  # the user of an event that closes all windows

Event = dict[str, Any]


def events(seed: int) -> tuple[list[Event], list[Event]]:
    """Return orders, of which some are there twice, and payments, in the order of their writes."""
    chance = random.Random(seed)
    orders: list[Event] = []
    payments: list[Event] = []
    for number in range(ORDERS):
        at = START_MS + number * STEP_MS - chance.randrange(LATE_MS)
        order = {
            "id": number,
            "user": f"u{chance.randrange(USERS)}",
            "at": at,
            "amount": number % 9,
        }
        orders += [order] * (2 if chance.random() < 0.05 else 1)
        if chance.random() < 0.6:
            payments.append({"order": number, "at": at + chance.randrange(PAID_MS * 5 // 4)})
    payments.sort(key=lambda payment: int(payment["at"]))
    end = START_MS + ORDERS * STEP_MS + 3_600_000
    orders.append({"id": -1, "user": LAST, "at": end, "amount": 0})
    payments.append({"order": -2, "at": end})
    return orders, payments


def expected(orders: list[Event], payments: list[Event]) -> dict[str, Counter[str]]:
    """Return the values that each topic has in the end, and how often."""
    orders = [order for order in orders if order["user"] != LAST]
    windows: dict[tuple[int, str], list[int]] = {}
    of_user: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for order in orders:
        key = order["at"] // WINDOW_MS * WINDOW_MS, order["user"]
        windows.setdefault(key, []).append(order["amount"])
        of_user[order["user"]] += 1
        totals[text(user=order["user"], n=of_user[order["user"]])] += 1
    paid = {payment["order"]: payment["at"] for payment in payments}
    return {
        "windows": Counter(
            text(start=start, user=user, n=len(amounts), amount=sum(amounts))
            for (start, user), amounts in windows.items()
        ),
        "distinct": Counter({text(id=order["id"]): 1 for order in orders}),
        "joined": Counter(
            text(id=order["id"], late=paid[order["id"]] - order["at"])
            for order in orders
            if paid.get(order["id"], sys.maxsize) <= order["at"] + PAID_MS
        ),
        "totals": totals,
    }


def text(**fields: object) -> str:
    return json.dumps(fields, separators=(",", ":"))


class Running(StatefulProcessor):
    """The rows of a user, numbered from 1."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(  # noqa: N802  # of Spark
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803  # of Spark
    ) -> Iterator[Row]:
        kept = self._count.get()
        count = kept[0] if kept else 0
        for _ in rows:
            count += 1
            yield Row(user=key[0], n=count)
        self._count.update((count,))

    def close(self) -> None:
        pass


def main(bootstrap: str, folder: str, master: str = "local[2,3]") -> None:
    builder = SparkSession.builder.master(master).appName("the truth about four queries")
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "600m",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": provider,
        "spark.task.maxFailures": "4",
        "spark.ui.enabled": "false",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    address = {"bootstrap.servers": bootstrap}

    def read(topic: str, schema: str, count: int) -> DataFrame:
        source = spark.readStream.format("raftlog").options(**address, subscribe=topic)
        source = source.option("startingOffsets", "earliest")
        rows = source.option("maxOffsetsPerTrigger", str(count // BATCHES)).load()
        fields = functions.from_json(functions.col("value").cast("string"), schema).alias("it")
        moment = functions.timestamp_millis("at")
        return rows.select(fields).select("it.*").withColumn("time", moment)

    def write(name: str, rows: DataFrame, *, how: str) -> StreamingQuery:
        values = rows.select(functions.to_json(functions.struct("*")).alias("value"))
        options = {**address, "topic": name}

        def once(batch: DataFrame, batch_id: int) -> None:
            numbered = {"idempotenceId": name, "idempotenceVersion": str(batch_id)}
            batch.write.format("raftlog").mode("append").options(**options, **numbered).save()

        writer = values.writeStream.queryName(name)
        if how == "foreach":
            writer = writer.foreachBatch(once)
        else:
            is_transactional = str(how == "transactional").lower()
            writer = writer.format("raftlog").options(**options, transactional=is_transactional)
        writer = writer.option("checkpointLocation", f"{folder}/{name}")
        return started(writer.trigger(availableNow=True).start())

    orders = read("orders", "id long, user string, at long, amount long", ORDERS)
    orders = orders.withWatermark("time", WATERMARK)
    payments = read("payments", "order long, at long", ORDERS * 6 // 10)
    payments = payments.withWatermark("time", WATERMARK)
    queries = [
        write("windows", windows_of(orders), how="sink"),
        write("distinct", distinct_of(orders), how="transactional"),
        write("joined", joined_of(orders, payments), how="foreach"),
        write("totals", totals_of(orders), how="sink"),
    ]
    for query in queries:
        query.awaitTermination()
    spark.stop()


def started(query: StreamingQuery) -> StreamingQuery:
    """Return the query once Spark has its sources: it waits 10 s for the Python worker of each, and
    four that start together on a busy machine need longer."""

    def is_initialized() -> bool:
        return not query.isActive or not query.status["message"].startswith("Initializing")

    wait_until(is_initialized, timeout_s=120, what="the sources of a query")
    return query


def windows_of(orders: DataFrame) -> DataFrame:
    window = functions.window("time", f"{WINDOW_MS // 1_000} seconds")
    counted = orders.groupBy(window, "user").agg(
        functions.count("*").alias("n"), functions.sum("amount").alias("amount")
    )
    return counted.select(
        functions.unix_millis("window.start").alias("start"), "user", "n", "amount"
    )


def distinct_of(orders: DataFrame) -> DataFrame:
    return orders.dropDuplicatesWithinWatermark(["id"]).where("id >= 0").select("id")


def joined_of(orders: DataFrame, payments: DataFrame) -> DataFrame:
    paid = payments.select(
        "order", functions.col("at").alias("paid"), functions.col("time").alias("paid_time")
    )
    condition = functions.expr(
        f"order = id AND paid_time BETWEEN time AND time + interval {PAID_MS // 1_000} seconds"
    )
    return orders.join(paid, condition).select(
        "id", (functions.col("paid") - functions.col("at")).alias("late")
    )


def totals_of(orders: DataFrame) -> DataFrame:
    grouped = orders.where(functions.col("user") != LAST).select("user").groupBy("user")
    return grouped.transformWithState(Running(), "user string, n long", "append", "none")


if __name__ == "__main__":
    main(*sys.argv[1:])
