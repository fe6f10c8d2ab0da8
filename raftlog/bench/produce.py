"""Throughput and latency of one producer, compared with the baseline."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from raftlog import Producer
from raftlog.bench.figures import Figure, percentile_us, throughput
from raftlog.bench.floor import (
    FloorClient,
    empty_files,
    floor_server,
    warm_page_cache,
)
from raftlog.bench.target import new_topic
from raftlog.clock import SystemClock
from raftlog.limits import MIB, PRODUCER_BATCHES_REMEMBERED
from raftlog.record import encode, seal


def produce(
    bootstrap: str,
    directory: Path,
    *,
    records: int,
    value_bytes: int,
    one_by_one: bool = False,
    rounds: int = 3,
    compression: str = "none",
    replicas: int = 1,
) -> Figure:
    """Alternate rounds of the baseline and of a producer. ``directory``: on the disk to measure.

    ``replicas``: of the topic; the baseline is a pipeline of as many processes.

    Each round starts with empty files and the order of the two changes, because earlier writes
    affect the speed of the page cache (see ``warm_page_cache``).
    """
    value = b"x" * value_bytes
    records_per_batch = max(1, MIB // (value_bytes + 12) - 8)  # a batch of about 1 MiB
    frame = _sealed([value] * records_per_batch)
    frames = max(1, records // records_per_batch)
    floor_rates, rates = [], []
    warm_page_cache(directory, 2 * replicas * frames * len(frame))
    with floor_server(directory, sync="thread", followers=replicas - 1) as address:

        def floor_round() -> None:
            client = FloorClient(address)
            seconds = client.stream(frame, frames=frames, in_flight_max=PRODUCER_BATCHES_REMEMBERED)
            client.close()
            empty_files(directory)
            floor_rates.append(frames * records_per_batch / seconds)

        def product_round() -> None:
            with new_topic(bootstrap, replicas=replicas) as topic:
                chunk = [value] * (1 if one_by_one else records_per_batch)
                rates.append(_produce_round(bootstrap, topic, chunk, records, compression))

        for number in range(rounds):
            pair = (floor_round, product_round)
            for run in pair if number % 2 else reversed(pair):
                run()
    rate = statistics.median(rates)
    return throughput(
        _name("send" if one_by_one else "send_many", replicas),
        records=records,
        value_bytes=value_bytes,
        rounds=rounds,
        records_per_s=rate,
        megabytes_per_s=rate * len(frame) / records_per_batch / 1e6,
        floor_records_per_s=statistics.median(floor_rates),
    )


def _name(call: str, replicas: int) -> str:
    return call if replicas == 1 else f"{call}, {replicas} replicas"


def _sealed(values: list[bytes]) -> bytes:
    body = encode(values, timestamps_ms=SystemClock().wall_ms())
    return seal(body) + body.payload


def _produce_round(
    bootstrap: str, topic: str, chunk: list[bytes], records: int, compression: str
) -> float:
    """Return records per second from the first call until all are acknowledged.

    Calls ``send`` for a chunk of one record, ``send_many`` for larger ones.
    """
    calls = max(1, records // len(chunk))
    with Producer(bootstrap, compression=compression) as producer:
        producer.send(topic, chunk[0]).result(timeout=30)  # connects and fetches metadata
        start = time.perf_counter()
        if len(chunk) == 1:
            send, value = producer.send, chunk[0]
            for _ in range(calls):
                send(topic, value)
        else:
            for _ in range(calls):
                producer.send_many(topic, chunk)
        producer.flush(timeout=120)
        return calls * len(chunk) / (time.perf_counter() - start)


def round_trip(
    bootstrap: str,
    directory: Path,
    *,
    count: int,
    value_bytes: int,
    rounds: int = 3,
    replicas: int = 1,
) -> Figure:
    """Measure ``count`` round trips per round, alternately of the baseline and of a producer.

    Times are in microseconds. ``ratio``: p50 of the producer divided by p50 of the baseline.
    """
    value = b"x" * value_bytes
    frame = _sealed([value])
    floor_seconds: list[float] = []
    seconds: list[float] = []
    with (
        new_topic(bootstrap, replicas=replicas) as topic,
        floor_server(directory, sync="inline", followers=replicas - 1) as address,
        Producer(bootstrap, linger_ms=0) as producer,
    ):
        client = FloorClient(address)
        producer.send(topic, value).result(timeout=30)
        for _ in range(rounds):
            floor_seconds += client.round_trips(frame, count=count)
            seconds += round_trips(producer, topic, value, count)
        client.close()
    name = _name("send, one in flight", replicas)
    p50, p99 = percentile_us(seconds, 50), percentile_us(seconds, 99)
    floor_p50, floor_p99 = percentile_us(floor_seconds, 50), percentile_us(floor_seconds, 99)
    return Figure(
        {
            "name": name,
            "count": count * rounds,
            "p50_us": p50,
            "p99_us": p99,
            "floor_p50_us": floor_p50,
            "floor_p99_us": floor_p99,
            "ratio": p50 / floor_p50,
        },
        {
            "benchmark": name,
            "p50 us": f"{p50:.0f}",
            "p99 us": f"{p99:.0f}",
            "floor p50 us": f"{floor_p50:.0f}",
            "floor p99 us": f"{floor_p99:.0f}",
            "times the floor": f"{p50 / floor_p50:.2f}",
        },
    )


def round_trips(producer: Producer, topic: str, value: bytes, count: int) -> list[float]:
    """Return the seconds of each of ``count`` records, with one record in flight."""
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        producer.send(topic, value).result(timeout=30)
        seconds.append(time.perf_counter() - start)
    return seconds
