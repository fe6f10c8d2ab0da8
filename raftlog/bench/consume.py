"""Throughput of one consumer that reads record objects or Arrow batches."""

from __future__ import annotations

import statistics
import time

from raftlog import Consumer, TopicPartition
from raftlog.bench.figures import Figure, throughput
from raftlog.bench.target import fill, new_topic

POLL_RECORDS = 10_000


def consume(
    bootstrap: str, *, records: int, value_bytes: int, arrow: bool = False, rounds: int = 3
) -> Figure:
    """Write ``records`` once, and read all of them in each round."""
    with new_topic(bootstrap) as topic:
        fill(bootstrap, topic, records, b"x" * value_bytes)
        rate = statistics.median(
            _read(bootstrap, topic, records, arrow=arrow) for _ in range(rounds)
        )
    return throughput(
        "consume (Arrow)" if arrow else "consume (records)",
        records=records,
        value_bytes=value_bytes,
        rounds=rounds,
        records_per_s=rate,
        megabytes_per_s=rate * (value_bytes + 12) / 1e6,
    )


def read(consumer: Consumer, records: int) -> None:
    """Poll until ``records`` records were received."""
    while records > 0:
        records -= len(consumer.poll(timeout_ms=10_000, max_records=POLL_RECORDS))


def _read(bootstrap: str, topic: str, records: int, *, arrow: bool) -> float:
    """Read the topic. Returns records per second."""
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        start = time.perf_counter()
        if arrow:
            seen = 0
            while seen < records:
                batch = consumer.poll_arrow(timeout_ms=10_000)
                seen += 0 if batch is None else batch.num_rows
        else:
            read(consumer, records)
        return records / (time.perf_counter() - start)
