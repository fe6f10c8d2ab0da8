"""``raftlog bench``: how fast, how soon, with how much memory, next to what the machine can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from raftlog.bench.figures import Figure
from raftlog.cli import options, output
from raftlog.limits import MIB

Command = TypeVar("Command", bound=Callable[..., Any])
MILLION: Final = 1_000_000
LARGE_PART: Final = 6  # of a cluster's records, one in so many is of 1 KiB
ROUND_TRIPS_PART: Final = 2_000


# -- options, and how figures are printed ----------------------------------------------------------


def common(command: Command) -> Command:
    """The options of every benchmark."""
    for option in (
        click.option(
            "--directory",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Directory for temporary data, on the disk to measure.",
        ),
        options.as_json,
    ):
        command = option(command)
    return command


def rounds(command: Command) -> Command:
    return click.option(
        "--rounds",
        default=3,
        show_default=True,
        type=click.IntRange(1, 100),
        help="Number of rounds; the median is reported.",
    )(command)


def size(command: Command) -> Command:
    return click.option(
        "--size",
        "value_bytes",
        default=100,
        show_default=True,
        type=click.IntRange(1, MIB // 2),
        help="Bytes per value.",
    )(command)


def records(default: int) -> Callable[[Command], Command]:
    return click.option(
        "--records",
        "count",
        default=default,
        show_default=True,
        type=click.IntRange(10_000),
        help="Records per round.",
    )


def print_figures(figures: Sequence[Figure], *, as_json: bool) -> None:
    """All in one table, or in one JSON list."""
    if as_json:
        output.print_json([dict(figure.values) for figure in figures])
        return
    rows = [list(figure.cells.values()) for figure in figures]
    output.print_table(list(figures[0].cells), rows)


# -- one broker ------------------------------------------------------------------------------------


@click.group()
def bench() -> None:
    """Measure raftlog on this machine, compared with a baseline (the floor).

    Starts its own broker. The floor moves the same bytes through the same sockets, writes and
    fdatasyncs with no log logic, in alternate rounds of the same run.

    \b
    Example:
      raftlog bench produce --records 5000000
    """


@bench.command()
@records(2 * MILLION)
@size
@click.option("--one-by-one", is_flag=True, help="Call send() for each record, not send_many().")
@click.option(
    "--compression",
    default="none",
    show_default=True,
    type=click.Choice(["none", "lz4", "zstd", "gzip"]),
    help="Compression of the producer.",
)
@rounds
@common
def produce(
    count: int,
    value_bytes: int,
    one_by_one: bool,
    compression: str,
    directory: Path | None,
    rounds: int,
    as_json: bool,
) -> None:
    """Measure acknowledged records per second of one producer, all synced to disk.

    \b
    Example:
      raftlog bench produce --records 2000000 --size 1024
    """
    from raftlog.bench.produce import produce as measure
    from raftlog.bench.target import target

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
    print_figures([figure], as_json=as_json)


@bench.command()
@records(2 * MILLION)
@size
@click.option("--arrow", is_flag=True, help="Read Arrow batches, not record objects.")
@rounds
@common
def consume(
    count: int,
    value_bytes: int,
    arrow: bool,
    directory: Path | None,
    rounds: int,
    as_json: bool,
) -> None:
    """Measure records per second of one consumer, from the page cache.

    \b
    Example:
      raftlog bench consume --arrow
    """
    from raftlog.bench.consume import consume as measure
    from raftlog.bench.target import target

    with target(directory) as broker:
        figure = measure(
            broker.bootstrap, records=count, value_bytes=value_bytes, arrow=arrow, rounds=rounds
        )
    print_figures([figure], as_json=as_json)


@bench.command()
@click.option(
    "--count",
    default=2_000,
    show_default=True,
    type=click.IntRange(100),
    help="Round trips per round.",
)
@size
@rounds
@common
def e2e(count: int, value_bytes: int, directory: Path | None, rounds: int, as_json: bool) -> None:
    """Measure the round trip of one record in microseconds, with one in flight.

    \b
    Example:
      raftlog bench e2e
    """
    from raftlog.bench.produce import round_trip as measure
    from raftlog.bench.target import target

    with target(directory) as broker:
        figure = measure(
            broker.bootstrap,
            broker.directory,
            count=count,
            value_bytes=value_bytes,
            rounds=rounds,
        )
    print_figures([figure], as_json=as_json)


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
@common
def memory(
    stream_mib: int,
    partitions: int,
    connections: int,
    directory: Path | None,
    as_json: bool,
) -> None:
    """Measure the memory of a broker: under load, and with idle partitions.

    \b
    Example:
      raftlog bench memory --stream 512
    """
    from raftlog.bench.memory import measure

    figures = measure(
        directory,
        stream_bytes=stream_mib * MIB,
        partitions=partitions,
        connections=connections,
    )
    print_figures(figures, as_json=as_json)


@bench.command()
@rounds
@common
def floor(directory: Path | None, rounds: int, as_json: bool) -> None:
    """Measure the baseline only: 1 MiB frames with 5 in flight, and small frames.

    \b
    Example:
      raftlog bench floor
    """
    from raftlog.bench.floor import measure

    figure = measure(directory, rounds=rounds)
    print_figures([figure], as_json=as_json)


@bench.command()
@records(300_000)
@size
@click.option(
    "--trips",
    default=2_000,
    show_default=True,
    type=click.IntRange(0),
    help="Round trips of a producer before and during a compaction; 0: none.",
)
@rounds
@common
def compact(
    count: int,
    value_bytes: int,
    trips: int,
    directory: Path | None,
    rounds: int,
    as_json: bool,
) -> None:
    """Measure the compaction of a log in which every key occurs twice.

    In one thread, next to copying the same bytes in the same run: read, write, fdatasync. Then how
    long a broker takes to acknowledge single records during a compaction.

    \b
    Example:
      raftlog bench compact --records 300000 --size 1024
    """
    from raftlog.bench import compact as bench

    figure = bench.compact(directory, records=count, value_bytes=value_bytes, rounds=rounds)
    print_figures([figure], as_json=as_json)
    if trips:
        figure = bench.while_compacting(
            directory, records=count, value_bytes=value_bytes, count=trips
        )
        print_figures([figure], as_json=as_json)


# -- clusters --------------------------------------------------------------------------------------


@bench.command()
@records(3 * MILLION)
@rounds
@common
def cluster(count: int, directory: Path | None, rounds: int, as_json: bool) -> None:
    """Measure three brokers, acks=all, synced on three disks: throughput and latency.

    The floor is three processes: one passes each frame on to the other two, all write and sync, and
    it answers when all three have it.

    \b
    Example:
      raftlog bench cluster --records 2000000
    """
    from raftlog.bench.suite import replicated as measure

    figures = measure(
        directory,
        records=count,
        large_records=max(10_000, count // LARGE_PART),
        round_trips=max(100, count // ROUND_TRIPS_PART),
        rounds=rounds,
    )
    for figure in figures:
        print_figures([figure], as_json=as_json)


@bench.command()
@records(2 * MILLION)
@click.option(
    "--partitions",
    default=64,
    show_default=True,
    type=click.IntRange(2, 1_000),
    help="Partitions of the group.",
)
@click.option(
    "--members",
    default=16,
    show_default=True,
    type=click.IntRange(2, 64),
    help="Members before another one joins.",
)
@click.option(
    "--groups",
    default=100,
    show_default=True,
    type=click.IntRange(0, 1_000),
    help="Idle groups of ten members; 0: none.",
)
@rounds
@common
def groups(
    count: int,
    partitions: int,
    members: int,
    groups: int,
    directory: Path | None,
    rounds: int,
    as_json: bool,
) -> None:
    """Measure rebalances of a consumer group, and the cost of members.

    Three brokers. A member joins and another is killed while every partition has records; then one
    consumer reads with and without a group; then many groups do nothing.

    \b
    Example:
      raftlog bench groups --members 8
    """
    from raftlog.bench import groups as bench

    if partitions <= members:
        raise click.UsageError(
            f"--partitions {partitions}: more than --members {members}: one more is to join"
        )
    figure = bench.rebalances(directory, partitions=partitions, members=members)
    print_figures([figure], as_json=as_json)
    print_figures([bench.share(directory, records=count, rounds=rounds)], as_json=as_json)
    if groups:
        print_figures([bench.idle(directory, groups=groups)], as_json=as_json)


@bench.command()
@records(10 * MILLION)
@size
@click.option(
    "--partitions",
    default=4,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Partitions of the topics.",
)
@rounds
@common
def spark(
    count: int,
    value_bytes: int,
    partitions: int,
    directory: Path | None,
    rounds: int,
    as_json: bool,
) -> None:
    """Measure how fast Spark reads and writes topics, with two tasks at a time.

    Starts three brokers and Spark (needs Java, and raftlog[spark]). How long 1,000
    partitions take to plan, what memory reading takes, records per second in both directions: next
    to Spark's pipe to Python without raftlog, to rows in place of Arrow, and to Parquet files.

    \b
    Example:
      raftlog bench spark --records 2000000
    """
    from raftlog.bench.spark_session import check_installed

    check_installed()
    from raftlog.bench.spark import everything

    for figures in everything(
        directory,
        records=count,
        value_bytes=value_bytes,
        partitions=partitions,
        rounds=rounds,
    ):
        print_figures(figures, as_json=as_json)


# -- all of it -------------------------------------------------------------------------------------


@bench.command(name="all")
@click.option(
    "--scale",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.001, 10),
    help="Factor for the duration of every benchmark.",
)
@rounds
@common
def everything(scale: float, directory: Path | None, rounds: int, as_json: bool) -> None:
    """Run all benchmarks; takes about two minutes.

    \b
    Example:
      raftlog bench all --json > figures.json
    """
    from raftlog.bench import suite

    with output.progress("benchmarks") as advance:
        for figure in suite.everything(directory, rounds=rounds, scale=scale):
            advance(1)
            print_figures([figure], as_json=as_json)
