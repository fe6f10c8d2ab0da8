"""``raftlog bench``: how fast, how soon, with how much memory, next to what the machine can do."""

from __future__ import annotations

from pathlib import Path

import click

from raftlog.cli import bench_options as options
from raftlog.cli import output
from raftlog.cli.bench_cluster import cluster
from raftlog.cli.bench_compact import compact
from raftlog.cli.bench_groups import groups
from raftlog.cli.bench_spark import spark
from raftlog.limits import MIB


@click.group()
def bench() -> None:
    """Measure this machine's raftlog, next to the floor: the least that the machine could do.

    Starts a broker of its own. The floor moves the same bytes through the same sockets, writes and
    fdatasyncs with no log logic, in alternate rounds of the same run.

    \b
    Example:
      raftlog bench produce --records 5000000
    """


@bench.command()
@options.records(2 * options.MILLION)
@options.size
@click.option("--one-by-one", is_flag=True, help="Call send() for each record, not send_many().")
@options.compression
@options.rounds
@options.common
def produce(
    count: int,
    value_bytes: int,
    one_by_one: bool,
    compression: str,
    directory: Path | None,
    rounds: int,
    as_json: bool,
) -> None:
    """Acknowledged records per second of one producer, every one synced to disk.

    \b
    Example:
      raftlog bench produce --records 2000000 --size 1024
    """
    from raftlog.testing.bench.produce import produce as measure
    from raftlog.testing.bench.target import target

    with target(directory) as broker:
        figure = measure(
            broker.bootstrap,
            broker.directory,
            records=count,
            value_bytes=value_bytes,
            one_by_one=one_by_one,
            compression=compression,
            rounds=rounds,
        )
    options.print_figures([figure], as_json=as_json)


@bench.command()
@options.records(2 * options.MILLION)
@options.size
@click.option("--arrow", is_flag=True, help="Read Arrow batches, not record objects.")
@options.rounds
@options.common
def consume(
    count: int,
    value_bytes: int,
    arrow: bool,
    directory: Path | None,
    rounds: int,
    as_json: bool,
) -> None:
    """Records per second of one consumer, from the page cache.

    \b
    Example:
      raftlog bench consume --arrow
    """
    from raftlog.testing.bench.consume import consume as measure
    from raftlog.testing.bench.target import target

    with target(directory) as broker:
        figure = measure(
            broker.bootstrap, records=count, value_bytes=value_bytes, arrow=arrow, rounds=rounds
        )
    options.print_figures([figure], as_json=as_json)


@bench.command()
@options.round_trips
@options.size
@options.rounds
@options.common
def e2e(count: int, value_bytes: int, directory: Path | None, rounds: int, as_json: bool) -> None:
    """Microseconds until one record is acknowledged, with nothing else in flight and no linger.

    \b
    Example:
      raftlog bench e2e
    """
    from raftlog.testing.bench.round_trip import round_trip as measure
    from raftlog.testing.bench.target import target

    with target(directory) as broker:
        figure = measure(
            broker.bootstrap,
            broker.directory,
            count=count,
            value_bytes=value_bytes,
            rounds=rounds,
        )
    options.print_figures([figure], as_json=as_json)


@bench.command()
@click.option(
    "--stream",
    "stream_mib",
    default=2_048,
    show_default=True,
    type=click.IntRange(1),
    help="MiB to stream in and out.",
)
@click.option("--partitions", default=1_000, show_default=True, help="Idle partitions.")
@click.option("--connections", default=500, show_default=True, help="Idle connections.")
@options.common
def memory(
    stream_mib: int,
    partitions: int,
    connections: int,
    directory: Path | None,
    as_json: bool,
) -> None:
    """Memory of a broker: while data streams through it, and while much lies idle on it.

    \b
    Example:
      raftlog bench memory --stream 512
    """
    from raftlog.testing.bench.memory import measure

    figures = measure(
        directory,
        stream_bytes=stream_mib * MIB,
        partitions=partitions,
        connections=connections,
    )
    options.print_figures(figures, as_json=as_json)


@bench.command()
@options.rounds
@options.common
def floor(directory: Path | None, rounds: int, as_json: bool) -> None:
    """The floor by itself: 1 MiB frames with 5 in flight, and single small ones.

    \b
    Example:
      raftlog bench floor
    """
    from raftlog.testing.bench.floor import measure

    figure = measure(directory, rounds=rounds)
    options.print_figures([figure], as_json=as_json)


@bench.command(name="all")
@options.scale
@options.rounds
@options.common
def everything(scale: float, directory: Path | None, rounds: int, as_json: bool) -> None:
    """All benchmarks, one after the other; takes about two minutes.

    \b
    Example:
      raftlog bench all --json > figures.json
    """
    from raftlog.testing.bench import suite

    with output.progress("benchmarks") as advance:
        for figure in suite.everything(directory, rounds=rounds, scale=scale):
            advance(1)
            options.print_figures([figure], as_json=as_json)


bench.add_command(cluster)
bench.add_command(compact)
bench.add_command(groups)
bench.add_command(spark)
