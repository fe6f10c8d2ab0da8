"""``raftlog bench``: throughput, latency and memory, compared with a baseline of the machine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import click

from raftlog.bench.figures import Figure
from raftlog.errors import counted
from raftlog.limits import MIB
from raftlog_cli import options, output
from raftlog_cli.main import Commands

MILLION: Final = 1_000_000
LARGE_PART: Final = 6  # one in this many records of a cluster benchmark has 1 KiB
ROUND_TRIPS_PART: Final = 2_000


# -- options that benchmarks share -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Values of the shared options. ``records``, ``value_bytes``, ``rounds``: 0 if the command
    lacks the option."""

    directory: Path | None
    as_json: bool
    rounds: int = 0
    records: int = 0
    value_bytes: int = 0

    def show(self, *figures: Figure) -> None:
        """Print the figures in one table, or in one JSON list."""
        if self.as_json:
            output.print_json([dict(figure.values) for figure in figures])
            return
        rows = [list(figure.cells.values()) for figure in figures]
        output.print_table(list(figures[0].cells), rows)


def scope(
    *, records: int = 0, has_size: bool = False, has_rounds: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the shared options, and pass their values to the command as one ``Scope``.

    ``records``: default of --records; 0: no such option.
    """
    bundle = [_DIRECTORY, options.as_json, options.wide]
    bundle += [_ROUNDS] * has_rounds + [_SIZE] * has_size
    if records:
        bundle.append(
            click.option(
                "--records",
                default=records,
                show_default=True,
                type=click.IntRange(10_000),
                help="Records per round.",
            )
        )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            shared = {f.name: given.pop(f.name) for f in fields(Scope) if f.name in given}
            command(Scope(**shared), **given)

        for option in bundle:
            option(run)
        return run

    return decorate


_DIRECTORY: Final = click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory for temporary data, on the disk to measure.",
)
_ROUNDS: Final = click.option(
    "--rounds",
    default=3,
    show_default=True,
    type=click.IntRange(1, 100),
    help="Number of rounds; the median is reported.",
)
_SECURE: Final = click.option(
    "--secure", is_flag=True, help="Connect with TLS. The baseline does not use TLS."
)
_SIZE: Final = click.option(
    "--size",
    "value_bytes",
    default=100,
    show_default=True,
    type=click.IntRange(1, MIB // 2),
    help="Bytes per value.",
)


# -- one broker ------------------------------------------------------------------------------------


@click.group(cls=Commands, short_help="Measure raftlog on this machine, compared with a baseline.")
def bench() -> None:
    """Measure raftlog on this machine, compared with a baseline (the floor).

    Starts its own broker. The baseline sends the same bytes through sockets, writes them and calls
    fdatasync, without the code of the log. Its rounds alternate with those of raftlog.

    \b
    Example:
      raftlog bench produce --records 5000000
    """


@bench.command(short_help="Measure the acknowledged records per second of one producer.")
@click.option("--one-by-one", is_flag=True, help="Call send() for each record, not send_many().")
@click.option(
    "--compression",
    default="none",
    show_default=True,
    type=click.Choice(["none", "lz4", "zstd", "gzip"]),
    help="Compression of the producer.",
)
@_SECURE
@scope(records=2 * MILLION, has_size=True)
def produce(run: Scope, one_by_one: bool, compression: str, secure: bool) -> None:
    """Measure acknowledged records per second of one producer, all synced to disk.

    \b
    Example:
      raftlog bench produce --records 2000000 --size 1024
    """
    from raftlog.bench.broker import produce as measure
    from raftlog.bench.figures import target

    with target(run.directory, secure=secure) as broker:
        figure = measure(
            broker.bootstrap,
            broker.directory,
            records=run.records,
            value_bytes=run.value_bytes,
            one_by_one=one_by_one,
            compression=compression,
            rounds=run.rounds,
        )
    run.show(figure)


@bench.command()
@click.option("--arrow", is_flag=True, help="Read Arrow batches, not record objects.")
@scope(records=2 * MILLION, has_size=True)
def consume(run: Scope, arrow: bool) -> None:
    """Measure records per second of one consumer, from the page cache.

    \b
    Example:
      raftlog bench consume --arrow
    """
    from raftlog.bench.broker import consume as measure
    from raftlog.bench.figures import target

    with target(run.directory) as broker:
        figure = measure(
            broker.bootstrap,
            records=run.records,
            value_bytes=run.value_bytes,
            arrow=arrow,
            rounds=run.rounds,
        )
    run.show(figure)


@bench.command(short_help="Measure the round trip of one record, with one in flight.")
@click.option(
    "--count",
    default=2_000,
    show_default=True,
    type=click.IntRange(100),
    help="Round trips per round.",
)
@_SECURE
@scope(has_size=True)
def e2e(run: Scope, count: int, secure: bool) -> None:
    """Measure the round trip of one record in microseconds, with one in flight.

    \b
    Example:
      raftlog bench e2e
    """
    from raftlog.bench.broker import round_trip as measure
    from raftlog.bench.figures import target

    with target(run.directory, secure=secure) as broker:
        figure = measure(
            broker.bootstrap,
            broker.directory,
            count=count,
            value_bytes=run.value_bytes,
            rounds=run.rounds,
        )
    run.show(figure)


@bench.command()
@click.option(
    "--stream",
    "stream_mib",
    default=2_048,
    show_default=True,
    type=click.IntRange(1),
    help="MiB to write and to read.",
)
@click.option("--partitions", default=1_000, show_default=True, help="Idle partitions.")
@click.option("--connections", default=500, show_default=True, help="Idle connections.")
@scope(has_rounds=False)
def memory(run: Scope, stream_mib: int, partitions: int, connections: int) -> None:
    """Measure the memory of a broker under load and with idle partitions.

    \b
    Example:
      raftlog bench memory --stream 512
    """
    from raftlog.bench.broker import measure

    figures = measure(
        run.directory,
        stream_bytes=stream_mib * MIB,
        partitions=partitions,
        connections=connections,
    )
    run.show(*figures)


@bench.command(short_help="Measure the CPU time per request with and without metrics.")
@click.option(
    "--pairs",
    default=1_000,
    show_default=True,
    type=click.IntRange(2),
    help="Pairs of rounds, with and without metrics.",
)
@click.option(
    "--count",
    default=20,
    show_default=True,
    type=click.IntRange(10),
    help="Requests per round.",
)
@scope(has_rounds=False)
def metrics(run: Scope, pairs: int, count: int) -> None:
    """Measure the CPU time per request of a broker with and without metrics.

    The rounds alternate in one broker process. The cost is the median of the pairs' ratios, with
    its 95 % confidence interval. The CPU time of a scrape is measured after that.

    \b
    Example:
      raftlog bench metrics --pairs 2000
    """
    from raftlog.bench.metrics import metrics as measure

    run.show(measure(run.directory, pairs=pairs, count=count))


@bench.command(short_help="Measure the baseline only: large and small frames.")
@scope()
def floor(run: Scope) -> None:
    """Measure the baseline only: 1 MiB frames with 5 in flight, and small frames.

    \b
    Example:
      raftlog bench floor
    """
    from raftlog.bench.figures import measure

    figure = measure(run.directory, rounds=run.rounds)
    run.show(figure)


@bench.command()
@click.option(
    "--trips",
    default=2_000,
    show_default=True,
    type=click.IntRange(0),
    help="Round trips of a producer before and during a compaction; 0: none.",
)
@scope(records=300_000, has_size=True)
def compact(run: Scope, trips: int) -> None:
    """Measure the compaction of a log in which every key occurs twice.

    The compaction runs in one thread. The baseline reads, writes and syncs the same bytes in the
    same run. After that, the command measures how long a broker takes to acknowledge single records
    during a compaction.

    \b
    Example:
      raftlog bench compact --records 300000 --size 1024
    """
    from raftlog.bench import broker as bench

    figure = bench.compact(
        run.directory, records=run.records, value_bytes=run.value_bytes, rounds=run.rounds
    )
    run.show(figure)
    if trips:
        figure = bench.while_compacting(
            run.directory, records=run.records, value_bytes=run.value_bytes, count=trips
        )
        run.show(figure)


# -- clusters --------------------------------------------------------------------------------------


@bench.command(short_help="Measure three brokers with acks=all: throughput and latency.")
@scope(records=3 * MILLION)
def cluster(run: Scope) -> None:
    """Measure three brokers, acks=all, synced on three disks: throughput and latency.

    The baseline is three processes: one sends each frame to the other two, all write and sync it,
    and the first responds when all three have synced it.

    \b
    Example:
      raftlog bench cluster --records 2000000
    """
    from raftlog.bench.suite import replicated as measure

    figures = measure(
        run.directory,
        records=run.records,
        large_records=max(10_000, run.records // LARGE_PART),
        round_trips=max(100, run.records // ROUND_TRIPS_PART),
        rounds=run.rounds,
    )
    for figure in figures:
        run.show(figure)


@bench.command(short_help="Measure the time to create and delete a topic, and its cost.")
@click.option(
    "--partitions",
    default=1_000,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Partitions of each topic.",
)
@scope()
def topics(run: Scope, partitions: int) -> None:
    """Measure the time to create and delete a topic with many partitions, and its idle cost.

    Three brokers, replication factor 3. The baseline writes and syncs one file for each broker, in
    one process.

    \b
    Example:
      raftlog bench topics --partitions 1000
    """
    from raftlog.bench.broker import topics as measure

    run.show(measure(run.directory, partitions=partitions, rounds=run.rounds))


@bench.command(short_help="Measure a topic with many partitions on many brokers.")
@click.option(
    "--brokers",
    default=5,
    show_default=True,
    type=click.IntRange(3, 9),
    help="Number of brokers at the start.",
)
@click.option(
    "--partitions",
    default=1_000,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Partitions of the topic.",
)
@scope(has_rounds=False)
def scale(run: Scope, brokers: int, partitions: int) -> None:
    """Measure a topic with many partitions on many brokers: its creation, the crash of a broker,
    and a rebalance to a new one.

    \b
    Example:
      raftlog bench scale --brokers 5 --partitions 1000
    """
    from raftlog.bench.scale import scale as measure

    run.show(*measure(run.directory, brokers=brokers, partitions=partitions))


@bench.command()
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
@scope(records=2 * MILLION)
def groups(run: Scope, partitions: int, members: int, groups: int) -> None:
    """Measure rebalances of a consumer group, and the cost of members.

    Starts three brokers, and measures a member that joins and a member that is killed while every
    partition receives records, one consumer with and without a group, and many idle groups.

    \b
    Example:
      raftlog bench groups --members 8
    """
    from raftlog.bench import groups as bench

    if partitions <= members:
        raise click.UsageError(
            f"--partitions {partitions} must exceed --members {members}: one more member joins"
        )
    figure = bench.rebalances(run.directory, partitions=partitions, members=members)
    run.show(figure)
    run.show(bench.share(run.directory, records=run.records, rounds=run.rounds))
    if groups:
        run.show(bench.idle(run.directory, groups=groups))


@bench.command(short_help="Measure how fast Spark reads and writes topics.")
@click.option(
    "--partitions",
    default=4,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Partitions of the topics.",
)
@click.option(
    "--kafka-jars",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of Spark's connector for Kafka and its dependencies: compare its reads, too.",
)
@scope(records=10 * MILLION, has_size=True)
def spark(run: Scope, partitions: int, kafka_jars: Path | None) -> None:
    """Measure how fast Spark reads and writes topics, with two tasks at a time.

    Starts three brokers and Spark (requires Java and the extras spark and sql). Measures the time
    to plan 1,000 partitions, the memory of a read, and records per second of reads and writes,
    compared with Spark's transfer to Python without raftlog, with rows instead of Arrow, and with
    Parquet; and DuckDB on the topic and on the Parquet files.

    \b
    Example:
      raftlog bench spark --records 2000000
    """
    from raftlog.bench.spark import check_installed

    check_installed()
    from raftlog.bench.spark import everything

    for figures in everything(
        run.directory,
        records=run.records,
        value_bytes=run.value_bytes,
        partitions=partitions,
        rounds=run.rounds,
        kafka_jars=kafka_jars,
    ):
        run.show(*figures)


@bench.command(short_help="Measure a Kafka client (confluent-kafka).")
@click.option(
    "--trips",
    default=1_000,
    show_default=True,
    type=click.IntRange(100),
    help="Records per round that are sent one at a time.",
)
@click.option(
    "--brokers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 9),
    help="Number of brokers and replicas.",
)
@scope(records=MILLION, has_size=True)
def kafka(run: Scope, trips: int, brokers: int) -> None:
    """Measure a Kafka client: confluent-kafka writes, reads, and sends one record at a time.

    Requires confluent-kafka. It uses acks=all and one partition. The processor time is the sum of
    all brokers per record. `make bench-peers` compares with Kafka.

    \b
    Example:
      raftlog bench kafka --records 2000000 --size 1024
    """
    options.check_confluent_kafka()
    from raftlog.bench.figures import target
    from raftlog.bench.kafka import KafkaTarget, measure

    with target(run.directory, brokers=brokers) as running:
        name = "raftlog" if brokers == 1 else f"raftlog, {counted(brokers, 'broker')}"
        measured = KafkaTarget(name, running.bootstrap, running.pids, replicas=brokers)
        figures = measure(
            [measured],
            records=run.records,
            value_bytes=run.value_bytes,
            trips=trips,
            rounds=run.rounds,
        )
    run.show(*figures)


# -- start-up ------------------------------------------------------------------------------------


@bench.command(name="imports", short_help="Measure how long imports take.")
@click.option(
    "--rounds",
    default=7,
    show_default=True,
    type=click.IntRange(1, 100),
    help="Number of rounds; the minimum is reported.",
)
@options.as_json
def imports_of_clients(rounds: int, as_json: bool) -> None:
    """Measure how long imports take, compared with those of Python and asyncio.

    Starts each program in new processes. Reports its CPU time, the time of its imports and the
    number of modules.

    \b
    Example:
      raftlog bench imports
    """
    from raftlog.bench.imports import imports as measure

    Scope(directory=None, as_json=as_json).show(*measure(rounds=rounds))


# -- all benchmarks -------------------------------------------------------------------------------


@bench.command(name="all")
@click.option(
    "--scale",
    default=1.0,
    show_default=True,
    type=options.FiniteRange(0.001, 10),
    help="Factor for the duration of every benchmark.",
)
@scope()
def everything(run: Scope, scale: float) -> None:
    """Run all benchmarks; takes about two minutes.

    \b
    Example:
      raftlog bench all --json > figures.json
    """
    from raftlog.bench import suite

    with output.progress("benchmarks") as advance:
        for figure in suite.everything(run.directory, rounds=run.rounds, scale=scale):
            advance(1)
            run.show(figure)
