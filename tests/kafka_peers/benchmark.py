"""raftlog and Kafka by turns: ``python -m tests.kafka_peers.benchmark``, or `make bench-peers`.

Three brokers each, replication factor 3, ``acks=all``. Kafka runs with two settings: the default,
with acknowledged records in the page cache, and ``flush.messages=1``, which syncs each batch on
each broker as raftlog does. Each round measures all workloads of all systems, in changing order.
The table and the plot replace those in docs/explanation/performance.md with ``--write``.
``python -m tests.kafka_peers.install kafka`` installs Kafka; it requires a JVM and Maven.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from threading import Event
from typing import Final, NamedTuple, Protocol

import confluent_kafka
from confluent_kafka import admin, cimpl

import raftlog
from raftlog.bench import kafka
from raftlog.bench.figures import scratch, target
from raftlog.bench.kafka import TIMEOUT_S, KafkaTarget
from tests.kafka_peers.kafka_broker import kafka_cluster

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/explanation/performance.md"
PLOT: Final = ROOT / "docs/diagrams/peers.svg"
BEGIN, END = "<!-- make bench-peers -->\n", "<!-- end of make bench-peers -->\n"
RUN: Final = 10_000  # records of a call to send_many, or of a wait for outcomes
TRIPS: Final = 500
RATE: Final = 5_000  # records/s whose latency is measured
PACED: Final = 3 * RATE
TRANSACTION, PARTITIONS = 34, 3  # records of a transaction to each partition
COMMITS: Final = 100
SETTLE_S_MAX: Final = 30
IDLE_S: Final = 0.15  # processor time of all brokers in a second, with nothing to do
MANY: Final = 1_000  # partitions that are created at once

now = time.perf_counter


class Client(Protocol):
    """One client library with one cluster. Each method returns seconds."""

    def bulk(self, topic: str, count: int, value: bytes, codec: str = "none") -> float: ...
    def outcomes(self, topic: str, count: int, value: bytes) -> float: ...
    def read(self, topic: str, count: int) -> float: ...
    def trips(self, topic: str, count: int, value: bytes) -> list[float]: ...
    def paced(self, topic: str, count: int, value: bytes) -> list[float]: ...
    def commits(self, topic: str, count: int, value: bytes) -> float: ...


class Native:
    """raftlog's client: ``send_many``, ``send`` and ``result``, ``poll``."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def bulk(self, topic: str, count: int, value: bytes, codec: str = "none") -> float:
        with raftlog.Producer(self._bootstrap, compression=codec) as producer:
            producer.send(topic, value).result(TIMEOUT_S)
            values = [value] * RUN
            start = time.perf_counter()
            futures = [producer.send_many(topic, values) for _ in range(count // RUN)]
            for future in futures:
                future.result(TIMEOUT_S)
            return time.perf_counter() - start

    def outcomes(self, topic: str, count: int, value: bytes) -> float:
        with raftlog.Producer(self._bootstrap) as producer:
            producer.send(topic, value).result(TIMEOUT_S)
            start = time.perf_counter()
            sent = [producer.send(topic, value) for _ in range(count)]
            for future in sent:
                future.result(TIMEOUT_S)
            return time.perf_counter() - start

    def read(self, topic: str, count: int) -> float:
        with raftlog.Consumer(self._bootstrap, auto_offset_reset="earliest") as consumer:
            start = time.perf_counter()
            consumer.assign([raftlog.TopicPartition(topic, 0)])
            while count > 0:
                count -= len(consumer.poll(1_000))
            return time.perf_counter() - start

    def trips(self, topic: str, count: int, value: bytes) -> list[float]:
        with raftlog.Producer(self._bootstrap, linger_ms=0) as producer:
            producer.send(topic, value).result(TIMEOUT_S)
            return [timed(lambda: producer.send(topic, value).result()) for _ in range(count)]

    def paced(self, topic: str, count: int, value: bytes) -> list[float]:
        seconds: list[float] = []
        with raftlog.Producer(self._bootstrap) as producer:
            producer.send(topic, value).result(TIMEOUT_S)
            for due in paces(count, Event().wait):
                sent = producer.send(topic, value)
                sent.add_done_callback(lambda _, due=due: seconds.append(now() - due))
        assert len(seconds) == count
        return seconds

    def commits(self, topic: str, count: int, value: bytes) -> float:
        values, name = [value] * TRANSACTION, uuid.uuid4().hex
        with raftlog.Producer(self._bootstrap, transactional_id=name) as producer:
            started = now()
            for turn in range(count + 1):
                with producer.transaction() as txn:
                    for partition in range(PARTITIONS):
                        txn.send_many(topic, values, partition=partition)
                started = started if turn else now()
            return now() - started


class Confluent:
    """librdkafka with confluent-kafka: ``produce`` and callbacks, ``consume``."""

    def __init__(self, bootstrap: str) -> None:
        self.outcomes = partial(kafka.produce, bootstrap, reports_each=True)
        self.trips = partial(kafka.round_trips, bootstrap)
        self._bootstrap = bootstrap

    def bulk(self, topic: str, count: int, value: bytes, codec: str = "none") -> float:
        return kafka.produce(self._bootstrap, topic, count, value, codec=codec)

    def read(self, topic: str, count: int) -> float:
        return kafka.consume(self._bootstrap, topic, count, b"")

    def paced(self, topic: str, count: int, value: bytes) -> list[float]:
        seconds: list[float] = []
        producer = self._producer()
        producer.produce(topic, value)
        producer.flush(TIMEOUT_S)
        for due in paces(count, producer.poll):
            producer.produce(
                topic, value, on_delivery=lambda *_, due=due: seconds.append(now() - due)
            )
        producer.flush(TIMEOUT_S)
        assert len(seconds) == count
        return seconds

    def commits(self, topic: str, count: int, value: bytes) -> float:
        producer = self._producer({"transactional.id": uuid.uuid4().hex})
        producer.init_transactions(TIMEOUT_S)
        started = now()
        for turn in range(count + 1):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                for _ in range(TRANSACTION):
                    producer.produce(topic, value, partition=partition)
            producer.commit_transaction(TIMEOUT_S)
            started = started if turn else now()
        return now() - started

    def _producer(self, more: Mapping[str, str] | None = None) -> cimpl.Producer:
        settings = {**kafka.PRODUCER, "linger.ms": 5, "bootstrap.servers": self._bootstrap}
        return confluent_kafka.Producer({**settings, **(more or {})})


def paces(count: int, wait: Callable[[float], object]) -> Iterator[float]:
    """Yield ``count`` times, each when it has come, after ``wait`` for the rest. Those that are
    late are yielded at once.
    """
    started = now()
    for number in range(count):
        due = started + number / RATE
        while (left := due - now()) > 0:
            wait(left)
        yield due


def timed(call: Callable[[], object]) -> float:
    start = now()
    call()
    return now() - start


class System(NamedTuple):
    """A client and its cluster."""

    client: Client
    cluster: KafkaTarget

    def topic(self, partitions: int = 1) -> str:
        cluster, name = self.cluster, f"bench-{uuid.uuid4().hex[:8]}"
        new = cimpl.NewTopic(name, partitions, cluster.replicas, config=dict(cluster.config))
        client = self._admin()  # which must live until it has the answer
        client.create_topics([new])[name].result(TIMEOUT_S)
        return name

    def creation(self) -> float:
        """Return the seconds in which a topic of ``MANY`` partitions is created, and delete it."""
        start = now()
        name = self.topic(MANY)
        seconds = now() - start
        client = self._admin()
        client.delete_topics([name])[name].result(TIMEOUT_S)
        return seconds

    def memory_mb(self) -> float:
        """Return the memory of all brokers in MB; what processes share counts once."""
        rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self.cluster.pids]
        return sum(int(each.partition("\nPss:")[2].split()[0]) for each in rollups) / 1e3

    def _admin(self) -> admin.AdminClient:
        return admin.AdminClient({"bootstrap.servers": self.cluster.bootstrap})


@dataclass(slots=True)
class Figures:
    """Results by workload, one of each round: records/s, or microseconds."""

    rounds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, workload: str, value: float) -> None:
        self.rounds.setdefault(workload, []).append(value)

    def median(self, workload: str) -> float:
        return statistics.median(self.rounds[workload])


BULK, LARGE, OUTCOMES, READ = (
    "produce, 100 B, records/s",
    "produce, 1 KiB, records/s",
    "each outcome read, 100 B, records/s",
    "consume, 100 B, records/s",
)
PACKED: Final = "produce, 100 B, lz4, records/s"
CPU: Final = "broker CPU of a record of 1 KiB, us"
TRIP: Final = "one in flight, p50 in us"
TAIL: Final = f"{RATE:,} records/s, p99 in ms"
COMMIT: Final = (
    f"transactions of {TRANSACTION * PARTITIONS} records on {PARTITIONS} partitions, per s"
)
CREATE: Final = f"topic of {MANY:,} partitions, ms to create"
MEMORY: Final = "memory of the brokers, MB"
WORKLOADS: Final = (
    *(BULK, PACKED, LARGE, OUTCOMES, READ, COMMIT),  # more is better; of the others, less
    *(TRIP, TAIL, CREATE, CPU, MEMORY),
)
BESIDE: Final = ("raftlog", "Kafka, synced")  # the two systems whose ratio is shown


def settle(systems: Sequence[System]) -> None:
    """Wait until no broker works, and no written page waits for the disk: what one system left to
    do later would be counted as the time of the next one.
    """
    os.sync()
    clusters = {each.cluster.pids: each.cluster for each in systems}.values()
    for _ in range(SETTLE_S_MAX):
        before = sum(each.busy_s() for each in clusters)
        Event().wait(1)
        if sum(each.busy_s() for each in clusters) - before < IDLE_S:
            return


def measure(system: System, figures: Figures, records: int) -> None:
    client = system.client
    topic = system.topic()
    small, large = b"x" * 100, b"x" * 1_024
    figures.add(BULK, records / client.bulk(topic, records, small))
    figures.add(READ, records / client.read(topic, records))
    figures.add(OUTCOMES, records / client.outcomes(system.topic(), records, small))
    count = records // 5
    before = system.cluster.busy_s()
    figures.add(LARGE, count / client.bulk(system.topic(), count, large))
    figures.add(CPU, (system.cluster.busy_s() - before) / count * 1e6)
    figures.add(PACKED, records / client.bulk(system.topic(), records, line(), "lz4"))
    figures.add(TRIP, statistics.median(client.trips(system.topic(), TRIPS, small)) * 1e6)
    paced = client.paced(system.topic(), PACED, small)
    figures.add(TAIL, statistics.quantiles(paced, n=100)[98] * 1e3)
    figures.add(COMMIT, COMMITS / client.commits(system.topic(PARTITIONS), COMMITS, small))
    figures.add(MEMORY, system.memory_mb())


def line() -> bytes:
    """Return a value of 100 bytes of which a half can be packed."""
    return Random(7).randbytes(50) + b"x" * 50


def table(found: Mapping[str, Figures]) -> str:
    names = list(found)
    ours, theirs = (found[name] for name in BESIDE)
    lines = [
        f"| | {' | '.join(names)} | {' / '.join(BESIDE)} |",
        f"| --- |{' ---: |' * (len(names) + 1)}",
    ]
    for workload in WORKLOADS:
        cells = []
        for figures in found.values():
            values = figures.rounds[workload]
            cells.append(
                f"{number(figures.median(workload))} "
                f"({number(min(values))} to {number(max(values))})"
            )
        ratio = ours.median(workload) / theirs.median(workload)
        lines.append(f"| {workload} | {' | '.join(cells)} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    return f"{value / 1e3:,.0f} k" if value >= 10_000 else f"{value:,.1f}"


def plot(found: Mapping[str, Figures]) -> str:
    """Bars of the records per second: a group for each workload, a bar for each system."""
    colours = ("#2563eb", "#60a5fa", "#d97706", "#b45309")
    workloads = (BULK, LARGE, OUTCOMES, READ)
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 360" font-size="12"']
    parts.append(' font-family="sans-serif"><rect width="760" height="360" fill="white"/>')
    for column, workload in enumerate(workloads):
        most = max(figures.median(workload) for figures in found.values())
        left = 20 + column * 185
        for row, (figures, colour) in enumerate(zip(found.values(), colours, strict=True)):
            value = figures.median(workload)
            height = 220 * value / most
            x = left + row * 42
            parts.append(
                f'<rect x="{x}" y="{260 - height:.0f}" width="36" height="{height:.0f}" '
                f'fill="{colour}"/><text x="{x + 18}" y="{254 - height:.0f}" '
                f'text-anchor="middle" font-size="10">{number(value)}</text>'
            )
        title = workload.removesuffix(", records/s")
        parts.append(f'<text x="{left + 80}" y="280" text-anchor="middle">{title}</text>')
    for row, (name, colour) in enumerate(zip(found, colours, strict=True)):
        x, y = 20 + row % 2 * 370, 310 + row // 2 * 22
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{y}">{name}, records/s</text>')
    return "".join((*parts, "</svg>\n"))


def text(found: Mapping[str, Figures], rounds: int, load: tuple[float, float]) -> str:
    git = ("git", "rev-parse", "--short=8", "HEAD")
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    return (
        f"`make bench-peers`, {today}, commit {commit.strip()}: medians of {rounds} rounds by "
        f"turns, and their ranges, on {os.cpu_count()} cores whose load was {load[0]:.1f} before, "
        f"and {load[1]:.1f} with the benchmark. Three brokers each, replication factor 3, "
        "`acks=all`, one partition, one producer.\n\n"
        f"{table(found)}\n"
        "![Records per second of raftlog and Kafka](../diagrams/peers.svg)\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=500_000, help="of 100 bytes (500000)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="directory on the disk to measure")
    parser.add_argument("--write", action="store_true", help="into the page about performance")
    given = parser.parse_args()
    records = max(given.records // RUN, 1) * RUN
    before = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(scratch(given.directory))
        ours = stack.enter_context(target(given.directory, brokers=3))
        theirs = stack.enter_context(kafka_cluster(home, 3))
        other = ",".join(map(str, theirs.addresses))
        quorum = {"min.insync.replicas": "2"}
        synced = {**quorum, "flush.messages": "1"}

        one = partial(KafkaTarget, bootstrap=ours.bootstrap, pids=ours.pids, replicas=3)
        another = partial(KafkaTarget, bootstrap=other, pids=theirs.pids, replicas=3)
        systems = [
            System(Native(ours.bootstrap), one("raftlog", config=quorum)),
            System(Confluent(ours.bootstrap), one("raftlog by librdkafka", config=quorum)),
            System(Confluent(other), another("Kafka, page cache", config=quorum)),
            System(Confluent(other), another("Kafka, synced", config=synced)),
        ]
        found = {each.cluster.name: Figures() for each in systems}
        for each in systems:
            sys.stderr.write(f"not counted, while code is compiled: {each.cluster.name}\n")
            measure(each, Figures(), records)
        for turn in range(given.rounds):
            order = systems[turn % 4 :] + systems[: turn % 4]
            for each in order if turn % 2 else reversed(order):  # each has other predecessors
                name = each.cluster.name
                settle(systems)
                sys.stderr.write(f"round {turn + 1} of {given.rounds}: {name}\n")
                measure(each, found[name], records)
        # At the end: Kafka removes the files of deleted topics a minute later.
        for _ in range(given.rounds):
            for each in systems:
                settle(systems)
                found[each.cluster.name].add(CREATE, each.creation() * 1e3)
        load = before, os.getloadavg()[0]
    said = text(found, given.rounds, load)
    sys.stdout.write(said)
    if given.write:
        page = PAGE.read_text()
        head, _, rest = page.partition(BEGIN)
        assert rest, f"{PAGE.name} has no line {BEGIN.strip()}"
        PAGE.write_text(f"{head}{BEGIN}{said}{END}{rest.partition(END)[2]}")
        PLOT.write_text(plot(found))


if __name__ == "__main__":
    main()
