"""How fast one consumer reads records back, as objects or as Arrow."""

from __future__ import annotations

import statistics
import time
import uuid

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.testing.bench.figures import Throughput

CHUNK_RECORDS = 10_000


def consume(
    bootstrap: str, *, records: int, value_bytes: int, arrow: bool = False, rounds: int = 3
) -> Throughput:
    """Write ``records`` once, then read them all in each round."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic)])
        try:
            with Producer(bootstrap) as producer:
                chunk = [b"x" * value_bytes] * CHUNK_RECORDS
                for _ in range(records // CHUNK_RECORDS):
                    producer.send_many(topic, chunk)
                producer.flush(timeout=300)
            total = records // CHUNK_RECORDS * CHUNK_RECORDS
            read = _read_arrow if arrow else _read_records
            rate = statistics.median(read(bootstrap, topic, total) for _ in range(rounds))
        finally:
            admin.delete_topics([topic])
    return Throughput(
        name="consume (Arrow)" if arrow else "consume (records)",
        records=total,
        value_bytes=value_bytes,
        rounds=rounds,
        records_per_s=rate,
        megabytes_per_s=rate * (value_bytes + 12) / 1e6,
    )


def _read_records(bootstrap: str, topic: str, records: int) -> float:
    with _consumer(bootstrap, topic) as consumer:
        start = time.perf_counter()
        seen = 0
        while seen < records:
            seen += len(consumer.poll(timeout_ms=10_000, max_records=CHUNK_RECORDS))
        return records / (time.perf_counter() - start)


def _read_arrow(bootstrap: str, topic: str, records: int) -> float:
    with _consumer(bootstrap, topic) as consumer:
        start = time.perf_counter()
        seen = 0
        while seen < records:
            batch = consumer.poll_arrow(timeout_ms=10_000)
            seen += 0 if batch is None else batch.num_rows
        return records / (time.perf_counter() - start)


def _consumer(bootstrap: str, topic: str) -> Consumer:
    """A consumer at the start of the topic."""
    consumer = Consumer(bootstrap, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    return consumer
