"""``raftlog bench groups``: rebalances, group consumption, and members at rest."""

from __future__ import annotations

from pathlib import Path

import click

from raftlog.cli import bench_options as options


@click.command()
@options.records(2 * options.MILLION)
@click.option(
    "--partitions",
    default=64,
    show_default=True,
    type=click.IntRange(2, 1_000),
    help="Partitions that the group shares.",
)
@click.option(
    "--members",
    default=16,
    show_default=True,
    type=click.IntRange(2, 64),
    help="Members before one more joins.",
)
@click.option(
    "--groups",
    default=100,
    show_default=True,
    type=click.IntRange(0, 1_000),
    help="Groups of ten members that have nothing to read; 0 leaves them out.",
)
@options.rounds
@options.common
def groups(
    count: int,
    partitions: int,
    members: int,
    groups: int,
    directory: Path | None,
    rounds: int,
    as_json: bool,
) -> None:
    """How soon a group of consumers is whole again, and what being in one costs.

    Three brokers. A member joins and another is killed while every partition has records; then one
    consumer reads with and without a group; then many groups do nothing.

    \b
    Example:
      raftlog bench groups --members 8
    """
    from raftlog.testing.bench import groups as bench

    if partitions <= members:
        raise click.UsageError(
            f"--partitions {partitions}: more than --members {members}: one more is to join"
        )
    figure = bench.rebalances(directory, partitions=partitions, members=members)
    options.print_figures([figure], as_json=as_json)
    options.print_figures([bench.share(directory, records=count, rounds=rounds)], as_json=as_json)
    if groups:
        options.print_figures([bench.idle(directory, groups=groups)], as_json=as_json)
