"""Targets of benchmarks: new brokers and topics, on the disk to be measured."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raftlog import Admin, NewTopic, Producer
from raftlog.testing.certificates import create
from raftlog.testing.cluster import cluster

FILL_RECORDS: Final = 1_000
TOPIC_TIMEOUT_MS: Final = 300_000  # for 1,000 replicated partitions on a busy machine


@dataclass(frozen=True, slots=True)
class Target:
    """Running brokers, their process IDs, and a directory on their disk for the baseline."""

    bootstrap: str
    pids: tuple[int, ...]
    directory: Path

    @property
    def pid(self) -> int:
        """Process ID of the first broker."""
        return self.pids[0]


@contextmanager
def scratch(directory: Path | None) -> Iterator[Path]:
    """Create a temporary directory below ``directory`` (None: that of the system)."""
    with tempfile.TemporaryDirectory(prefix="raftlog-bench-", dir=directory) as home:
        yield Path(home)


@contextmanager
def target(
    directory: Path | None,
    *,
    brokers: int = 1,
    settings: Mapping[str, str] | None = None,
    secure: bool = False,
) -> Iterator[Target]:
    """Run a new broker or cluster in a directory of ``scratch``.

    ``secure``: with TLS, which environment variables enable for the clients of this process.
    """
    with ExitStack() as stack:
        home = stack.enter_context(scratch(directory))
        if secure:
            files = create(home / "tls")
            settings = {**(settings or {}), **files.broker_settings()}
            stack.enter_context(_environment(files.environment()))
        running = stack.enter_context(
            cluster(brokers=brokers, directory=home, settings=settings, with_relays=False)
        )
        pids = tuple(broker.pid for broker in running.brokers if broker.pid is not None)
        assert len(pids) == brokers
        yield Target(running.bootstrap, pids, home)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables until the block ends."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def new_topic(
    bootstrap: str,
    partitions: int = 1,
    *,
    replicas: int = 0,
    config: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Create a topic for the block. ``replicas``: of each partition; 0: default of the cluster."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap, request_timeout_ms=TOPIC_TIMEOUT_MS) as admin:
        admin.create_topics([NewTopic(name, partitions, replicas, config or {})])
        try:
            yield name
        finally:
            admin.delete_topics([name])


def fill(
    bootstrap: str, topic: str, records: int, value: bytes, *, partitions: int = 1, keys: int = 0
) -> None:
    """Write ``value`` repeatedly, in calls of ``FILL_RECORDS``, to the partitions in turn.

    ``keys``: number of different keys, which are used equally often; 0: no keys.
    """
    with Producer(bootstrap) as producer:
        for start in range(0, records, FILL_RECORDS):
            numbers = range(start, min(start + FILL_RECORDS, records))
            producer.send_many(
                topic,
                [value] * len(numbers),
                [b"key-%012d" % (number % keys) for number in numbers] if keys else None,
                partition=start // FILL_RECORDS % partitions,
            )
        producer.flush(timeout=300)
