"""How long one acknowledged record takes with nothing else in flight, next to the floor."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from raftlog import Admin, NewTopic, Producer
from raftlog.record import encode, seal
from raftlog.testing.bench.figures import Latency, percentile_us
from raftlog.testing.bench.floor import FloorClient, floor_server


def round_trip(
    bootstrap: str,
    directory: Path,
    *,
    count: int,
    value_bytes: int,
    rounds: int = 3,
    replicas: int = 1,
) -> Latency:
    """``count`` round trips in each round, the floor's and the producer's by turns."""
    value = b"x" * value_bytes
    body = encode([value], timestamps_ms=int(time.time() * 1000))
    frame = seal(body) + body.payload
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    floor_seconds: list[float] = []
    seconds: list[float] = []
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, replication_factor=replicas)])
        try:
            with (
                floor_server(directory, sync="inline", followers=replicas - 1) as address,
                Producer(bootstrap, linger_ms=0) as producer,
            ):
                client = FloorClient(address)
                producer.send(topic, value).result(timeout=30)
                for _ in range(rounds):
                    floor_seconds += client.round_trips(frame, count=count)
                    seconds += _round_trips(producer, topic, value, count)
                client.close()
        finally:
            admin.delete_topics([topic])
    p50, floor_p50 = percentile_us(seconds, 50), percentile_us(floor_seconds, 50)
    return Latency(
        name="send, one in flight" + ("" if replicas == 1 else f", {replicas} replicas"),
        count=count * rounds,
        p50_us=p50,
        p99_us=percentile_us(seconds, 99),
        floor_p50_us=floor_p50,
        floor_p99_us=percentile_us(floor_seconds, 99),
        ratio=p50 / floor_p50,
    )


def _round_trips(producer: Producer, topic: str, value: bytes, count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        producer.send(topic, value).result(timeout=30)
        seconds.append(time.perf_counter() - start)
    return seconds
