"""All benchmarks in sequence, each with a new broker. Source of the published results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from raftlog.bench import broker as memory
from raftlog.bench import figures
from raftlog.bench.broker import consume, produce, round_trip
from raftlog.bench.figures import Figure, target
from raftlog.limits import MIB

BROKERS: Final = 3
RECORDS: Final = 3_000_000
LARGE_RECORDS: Final = 500_000  # of 1 KiB
ROUND_TRIPS: Final = 2_000
STREAM_BYTES: Final = 2_048 * MIB


def everything(directory: Path | None, *, rounds: int, scale: float = 1.0) -> Iterator[Figure]:
    """Run all benchmarks. Yields their results. ``scale``: factor of their durations."""
    records = max(10_000, int(RECORDS * scale))
    large_records = max(10_000, int(LARGE_RECORDS * scale))
    yield figures.measure(directory, rounds=rounds)
    for count, value_bytes, one_by_one in (
        (records, 100, False),
        (large_records, 1_024, False),
        (records, 100, True),
    ):
        with target(directory) as broker:
            yield produce(
                broker.bootstrap,
                broker.directory,
                records=count,
                value_bytes=value_bytes,
                one_by_one=one_by_one,
                rounds=rounds,
            )
    for arrow in (False, True):
        with target(directory) as broker:
            yield consume(
                broker.bootstrap, records=records, value_bytes=100, arrow=arrow, rounds=rounds
            )
    with target(directory) as broker:
        count = max(100, int(ROUND_TRIPS * scale))
        yield round_trip(
            broker.bootstrap, broker.directory, count=count, value_bytes=100, rounds=rounds
        )
    yield from replicated(
        directory,
        records=records // 2,
        large_records=large_records // 2,
        round_trips=count,
        rounds=rounds,
    )
    stream_bytes = max(16 * MIB, int(STREAM_BYTES * scale))
    yield from memory.measure(directory, stream_bytes=stream_bytes)


def replicated(
    directory: Path | None, *, records: int, large_records: int, round_trips: int, rounds: int
) -> Iterator[Figure]:
    """Measure three brokers: throughput of 100-byte and 1 KiB values, then single records."""
    for count, value_bytes in ((records, 100), (large_records, 1_024)):
        with target(directory, brokers=BROKERS) as brokers:
            yield produce(
                brokers.bootstrap,
                brokers.directory,
                records=count,
                value_bytes=value_bytes,
                rounds=rounds,
                replicas=BROKERS,
            )
    with target(directory, brokers=BROKERS) as brokers:
        yield round_trip(
            brokers.bootstrap,
            brokers.directory,
            count=round_trips,
            value_bytes=100,
            rounds=rounds,
            replicas=BROKERS,
        )
