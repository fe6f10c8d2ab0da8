"""Comparison of raftlog and Kafka with the same client: ``python -m tests.kafka_peers.benchmark``.

Kafka runs with two settings: the default, with acknowledged records in the page cache, and
``flush.messages=1``, which syncs each batch on each broker as raftlog does. Each round measures all
of them. ``python -m tests.kafka_peers.install kafka`` installs Kafka; it requires a JVM and Maven.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path

from raftlog.bench.figures import scratch, target
from raftlog.bench.kafka import KafkaTarget, measure
from tests.kafka_peers.kafka_broker import kafka_cluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, default=1, help="brokers and replicas (default: 1)")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes per value (default: 100)")
    parser.add_argument("--trips", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="directory on the disk to measure")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(scratch(given.directory))
        ours = stack.enter_context(target(given.directory, brokers=given.brokers))
        theirs = stack.enter_context(kafka_cluster(home, given.brokers))
        kafka = ",".join(map(str, theirs.addresses))
        quorum = {"min.insync.replicas": str(given.brokers // 2 + 1)}
        synced = {**quorum, "flush.messages": "1"}
        figures = measure(
            [
                KafkaTarget("raftlog", ours.bootstrap, ours.pids, quorum, given.brokers),
                KafkaTarget("Kafka, page cache", kafka, theirs.pids, quorum, given.brokers),
                KafkaTarget("Kafka, synced", kafka, theirs.pids, synced, given.brokers),
            ],
            records=given.records,
            value_bytes=given.size,
            trips=given.trips,
            rounds=given.rounds,
        )
    rows = [figure.cells for figure in figures]
    sys.stdout.write(f"| {' | '.join(rows[0])} |\n|{' --- |' * len(rows[0])}\n")
    for row in rows:
        sys.stdout.write(f"| {' | '.join(row.values())} |\n")
    sys.stdout.write(json.dumps([dict(figure.values) for figure in figures]) + "\n")


if __name__ == "__main__":
    main()
