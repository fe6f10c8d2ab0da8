"""What three brokers on one machine do: every record on three disks before it is acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from raftlog.testing.bench.figures import Figure
from raftlog.testing.bench.produce import produce
from raftlog.testing.bench.round_trip import round_trip
from raftlog.testing.bench.target import target

BROKERS: Final = 3


def measure(
    directory: Path | None, *, records: int, large_records: int, round_trips: int, rounds: int
) -> Iterator[Figure]:
    """Throughput of 100-byte and of 1 KiB values, then one record at a time."""
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
