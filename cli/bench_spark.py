"""``raftlog bench spark``: topics into Spark and out of it, next to what bounds that."""

from __future__ import annotations

from pathlib import Path

import click

from raftlog.cli import bench_options as options


@click.command()
@options.records(10 * options.MILLION)
@options.size
@click.option(
    "--partitions",
    default=4,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Partitions of the topics that are read and written.",
)
@options.rounds
@options.common
def spark(
    count: int,
    value_bytes: int,
    partitions: int,
    directory: Path | None,
    rounds: int,
    as_json: bool,
) -> None:
    """How fast Spark reads and writes topics, with two tasks at a time, on this machine.

    Three brokers and a Spark of its own (it needs Java, and raftlog[spark]). How long 1,000
    partitions take to plan, what memory reading takes, records per second in both directions: next
    to Spark's pipe to Python without raftlog, to rows in place of Arrow, and to Parquet files.

    \b
    Example:
      raftlog bench spark --records 2000000
    """
    from raftlog.spark_source.bench.session import check_installed

    check_installed()
    from raftlog.spark_source.bench.suite import everything

    for figures in everything(
        directory,
        records=count,
        value_bytes=value_bytes,
        partitions=partitions,
        rounds=rounds,
    ):
        options.print_figures(figures, as_json=as_json)
