"""``raftlog topic`` on partitions: how many there are, where they begin, what offsets they have."""

from __future__ import annotations

from typing import Any

import click

from raftlog import Admin, TopicPartition
from raftlog.cli import options, output
from raftlog.cli.offsets import TIME_GRAMMAR, parse_time
from raftlog.clock import SystemClock
from raftlog.types import Offset, TimestampMs


@click.command()
@click.argument("name")
@click.argument("total", metavar="N", type=click.IntRange(min=1))
@options.as_json
@options.bootstrap
def add_partitions(name: str, total: int, as_json: bool, bootstrap: str) -> None:
    """Extend a topic to N partitions. Keys go to other partitions from then on.

    \b
    Example:
      raftlog topic add-partitions clicks 12
    """
    with Admin(bootstrap) as admin:
        admin.add_partitions(name, total)
    output.report(
        {"name": name, "partitions": total}, f"{name} has {total} partitions", as_json=as_json
    )


@click.command()
@click.argument("name")
@click.option(
    "--before",
    multiple=True,
    required=True,
    metavar="P:OFFSET",
    callback=lambda _context, _parameter, texts: list(map(options.partition_and_offset, texts)),
    help="Partition P keeps its records from OFFSET on; may be repeated.",
)
@options.as_json
@options.bootstrap
def delete_records(
    name: str, before: list[tuple[int, Offset]], as_json: bool, bootstrap: str
) -> None:
    """Delete the records of partitions that are below an offset.

    \b
    Example:
      raftlog topic delete-records clicks --before 0:1500 --before 1:1200
    """
    wanted = {TopicPartition(name, partition): offset for partition, offset in before}
    with Admin(bootstrap) as admin:
        starts = admin.delete_records(wanted)
    rows = [(tp.partition, offset) for tp, offset in sorted(starts.items())]
    _print_offsets(name, "log_start_offset", rows, as_json=as_json)


def _time(_context: click.Context, _parameter: click.Parameter, text: str) -> str | TimestampMs:
    if text in {"earliest", "latest"}:
        return text
    moment = parse_time(text, now_ms=SystemClock().wall_ms())
    if moment is None:
        raise click.BadParameter(f"{text!r}: earliest, latest, or a time: {TIME_GRAMMAR}")
    return moment


@click.command()
@click.argument("name")
@click.option(
    "--time",
    "at",
    default="latest",
    show_default=True,
    metavar="TIME",
    callback=_time,
    help=f"earliest, latest (the end), or the first record at or after a time: {TIME_GRAMMAR}.",
)
@options.as_json
@options.bootstrap
def offsets(name: str, at: Any, as_json: bool, bootstrap: str) -> None:
    """Show an offset of each partition.

    \b
    Example:
      raftlog topic offsets clicks --time -2h
    """
    with Admin(bootstrap) as admin:
        found = admin.offsets(name, at)
    _print_offsets(name, "offset", sorted(found.items()), as_json=as_json)


def _print_offsets(
    name: str, column: str, rows: list[tuple[int, Offset]] | list[Any], *, as_json: bool
) -> None:
    if as_json:
        parts = [{"partition": partition, column: offset} for partition, offset in rows]
        output.print_json({"name": name, "partitions": parts})
    else:
        output.print_table(("partition", column.replace("_", " ")), rows)
