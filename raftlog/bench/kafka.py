"""Benchmark of a Kafka client (librdkafka with confluent-kafka): records per second in and out,
latency of single records, and processor time of the brokers per record.

Brokers can be of raftlog or of Kafka. Each round measures all targets, so that results can be
compared although the speed of the machine changes.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import confluent_kafka
from confluent_kafka import admin, cimpl

from raftlog.bench.broker import cpu_s
from raftlog.bench.figures import Figure, percentile_us

TIMEOUT_S: Final = 120.0
WAIT_S: Final = 1.0  # timeout of one read of a consumer
RECORDS_PER_CALL: Final = 10_000
# Settings for maximum throughput: batches of 1 MiB, and buffer space for a few of them.
PRODUCER: Final[Mapping[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    "batch.size": 1_000_000,
    "batch.num.messages": 1_000_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_048_576,
}


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """Brokers. ``pids``: their processes, if they run on this machine. ``config``: of the topic."""

    name: str
    bootstrap: str
    pids: tuple[int, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    replicas: int = 1

    def busy_s(self) -> float:
        """Return the processor time of all brokers since their start."""
        return sum(map(cpu_s, self.pids))


@dataclass(slots=True)
class _Rounds:
    """Results of one target. Times in seconds."""

    topic: str
    produced: list[float] = field(default_factory=list)  # records per second
    consumed: list[float] = field(default_factory=list)
    produce_cpu: list[float] = field(default_factory=list)  # of a record
    consume_cpu: list[float] = field(default_factory=list)
    trips: list[float] = field(default_factory=list)


def measure(
    targets: Sequence[KafkaTarget], *, records: int, value_bytes: int, trips: int, rounds: int
) -> list[Figure]:
    """Return a result for each target. ``ratio``: its produce rate divided by that of the first.

    Each round writes ``records`` values of ``value_bytes`` to a new topic of one partition, reads
    them, and sends ``trips`` records with one in flight (``linger.ms=0``). All with ``acks=all``.
    """
    value = b"x" * value_bytes
    found = {target.name: _Rounds(f"bench-{uuid.uuid4().hex[:8]}") for target in targets}
    for number in range(rounds):
        for target in targets if number % 2 else reversed(targets):
            _round(target, found[target.name], number, records, value, trips)
    first = statistics.median(found[targets[0].name].produced)
    return [_figure(each, found[each.name], records, value_bytes, first) for each in targets]


def _round(
    target: KafkaTarget, rounds: _Rounds, number: int, records: int, value: bytes, trips: int
) -> None:
    topic = f"{rounds.topic}-{number}"
    client = admin.AdminClient({"bootstrap.servers": target.bootstrap})
    new = cimpl.NewTopic(topic, 1, target.replicas, config=dict(target.config))
    client.create_topics([new])[topic].result(TIMEOUT_S)
    try:
        for step, rates, cpu in (
            (produce, rounds.produced, rounds.produce_cpu),
            (consume, rounds.consumed, rounds.consume_cpu),
        ):
            before = target.busy_s()
            seconds = step(target.bootstrap, topic, records, value)
            cpu.append((target.busy_s() - before) / records)
            rates.append(records / seconds)
        rounds.trips += round_trips(target.bootstrap, topic, trips, value)
    finally:
        client.delete_topics([topic])[topic].result(TIMEOUT_S)


def produce(
    bootstrap: str,
    topic: str,
    records: int,
    value: bytes,
    *,
    reports_each: bool = False,
    codec: str = "none",
) -> float:
    """Return the seconds from the first call until all records are acknowledged.

    ``reports_each``: a callback for each record, which takes longer than sending it; by default for
    errors only. ``codec``: compression of the batches, as the client names it.
    """
    failures: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(error)

    settings = {**PRODUCER, "delivery.report.only.error": not reports_each, "linger.ms": 5}
    producer = confluent_kafka.Producer(
        {**settings, "bootstrap.servers": bootstrap, "compression.type": codec}
    )
    producer.produce(topic, value, on_delivery=delivered)  # connects and fetches metadata
    producer.flush(TIMEOUT_S)
    start = time.perf_counter()
    left = records - 1
    while left:
        try:
            producer.produce(topic, value, on_delivery=delivered)
        except BufferError:
            producer.poll(0.01)
        else:
            left -= 1
    missing = producer.flush(TIMEOUT_S)
    seconds = time.perf_counter() - start
    assert not (missing or failures), f"{missing} records were not acknowledged: {failures[:1]}"
    return seconds


def consume(bootstrap: str, topic: str, records: int, _value: bytes) -> float:
    """Return the seconds to read all records from the start."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "enable.auto.commit": False,
            # By default the client reads nothing for a second whenever its queue is full.
            "fetch.queue.backoff.ms": 1,
        }
    )
    start = time.perf_counter()
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    deadline = start + TIMEOUT_S
    while records > 0:
        records -= len(consumer.consume(RECORDS_PER_CALL, WAIT_S))
        assert time.perf_counter() < deadline, f"{records} records were not received"
    seconds = time.perf_counter() - start
    consumer.close()
    return seconds


def round_trips(bootstrap: str, topic: str, count: int, value: bytes) -> list[float]:
    """Return the seconds of each record, with one record in flight."""
    producer = confluent_kafka.Producer(
        {**PRODUCER, "linger.ms": 0, "bootstrap.servers": bootstrap}
    )
    producer.produce(topic, value)
    producer.flush(TIMEOUT_S)
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        producer.produce(topic, value)
        missing = producer.flush(TIMEOUT_S)
        seconds.append(time.perf_counter() - start)
        assert not missing, "a record was not acknowledged"
    return seconds


def _figure(
    target: KafkaTarget, rounds: _Rounds, records: int, value_bytes: int, first: float
) -> Figure:
    median: Callable[[list[float]], float] = statistics.median
    produced, consumed = median(rounds.produced), median(rounds.consumed)
    cpu_in, cpu_out = median(rounds.produce_cpu) * 1e9, median(rounds.consume_cpu) * 1e9
    p50, p99 = percentile_us(rounds.trips, 50), percentile_us(rounds.trips, 99)
    has_cpu = bool(target.pids)
    values = {
        "name": target.name,
        "records": records,
        "value_bytes": value_bytes,
        "rounds": len(rounds.produced),
        "produce_records_per_s": produced,
        "consume_records_per_s": consumed,
        "produce_cpu_ns": cpu_in if has_cpu else None,
        "consume_cpu_ns": cpu_out if has_cpu else None,
        "p50_us": p50,
        "p99_us": p99,
        "ratio": produced / first,
    }
    cells = {
        "brokers": target.name,
        "value bytes": f"{value_bytes}",
        "produce records/s": f"{produced:,.0f}",
        "consume records/s": f"{consumed:,.0f}",
        "broker CPU in, out (ns/record)": f"{cpu_in:,.0f}, {cpu_out:,.0f}" if has_cpu else "",
        "p50 us": f"{p50:,.0f}",
        "p99 us": f"{p99:,.0f}",
        "produce, compared": f"{produced / first:.2f}",
    }
    return Figure(values, cells)
