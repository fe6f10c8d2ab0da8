"""All benchmarks, one after the other, each with a new broker: where published figures are from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from raftlog.limits import MIB
from raftlog.testing.bench import floor, memory, replicated
from raftlog.testing.bench.consume import consume
from raftlog.testing.bench.figures import Figure
from raftlog.testing.bench.produce import produce
from raftlog.testing.bench.round_trip import round_trip
from raftlog.testing.bench.target import target

RECORDS: Final = 3_000_000
LARGE_RECORDS: Final = 500_000  # of 1 KiB
ROUND_TRIPS: Final = 2_000
STREAM_BYTES: Final = 2_048 * MIB


def everything(directory: Path | None, *, rounds: int, scale: float = 1.0) -> Iterator[Figure]:
    """Every benchmark's figure, as soon as it is there. ``scale`` makes each of them shorter."""
    records = max(10_000, int(RECORDS * scale))
    large_records = max(10_000, int(LARGE_RECORDS * scale))
    yield floor.measure(directory, rounds=rounds)
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
    yield from replicated.measure(
        directory,
        records=records // 2,
        large_records=large_records // 2,
        round_trips=count,
        rounds=rounds,
    )
    stream_bytes = max(16 * MIB, int(STREAM_BYTES * scale))
    yield from memory.measure(directory, stream_bytes=stream_bytes)
