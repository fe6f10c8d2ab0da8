"""``raftlog bench compact``: how fast a log is compacted, and what producers feel of it."""

from __future__ import annotations

from pathlib import Path

import click

from raftlog.cli import bench_options as options


@click.command()
@options.records(300_000)
@options.size
@click.option(
    "--trips",
    default=2_000,
    show_default=True,
    type=click.IntRange(0),
    help="Round trips of a producer before the compaction that it is measured beside; 0: none.",
)
@options.rounds
@options.common
def compact(
    count: int,
    value_bytes: int,
    trips: int,
    directory: Path | None,
    rounds: int,
    as_json: bool,
) -> None:
    """How fast a log is compacted in which every key is there twice.

    In one thread, next to copying the same bytes in the same run: read, write, fdatasync. Then how
    long single records take to be acknowledged by a broker that does so meanwhile.

    \b
    Example:
      raftlog bench compact --records 300000 --size 1024
    """
    from raftlog.testing.bench import compact as bench

    figure = bench.compact(directory, records=count, value_bytes=value_bytes, rounds=rounds)
    options.print_figures([figure], as_json=as_json)
    if trips:
        beside = bench.beside(directory, records=count, value_bytes=value_bytes, count=trips)
        options.print_figures([beside], as_json=as_json)
