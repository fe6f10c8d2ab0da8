"""``raftlog bench cluster``: three brokers on this machine, next to a bare pipeline of three."""

from __future__ import annotations

from pathlib import Path

import click

from raftlog.cli import bench_options as options

LARGE_PART = 6  # one in so many records is of 1 KiB
ROUND_TRIPS_PART = 2_000


@click.command()
@options.records(3 * options.MILLION)
@options.rounds
@options.common
def cluster(count: int, directory: Path | None, rounds: int, as_json: bool) -> None:
    """Replication factor 3, acks=all, synced on three disks: throughput, and one at a time.

    The floor is three processes: one passes each frame on to the other two, all write and sync, and
    it answers when all three have it.

    \b
    Example:
      raftlog bench cluster --records 2000000
    """
    from raftlog.testing.bench.replicated import measure

    figures = measure(
        directory,
        records=count,
        large_records=max(10_000, count // LARGE_PART),
        round_trips=max(100, count // ROUND_TRIPS_PART),
        rounds=rounds,
    )
    for figure in figures:
        options.print_figures([figure], as_json=as_json)
