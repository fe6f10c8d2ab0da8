"""What the commands of ``raftlog bench`` share: options, and how figures are printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from raftlog.cli import options, output
from raftlog.limits import MIB
from raftlog.testing.bench.figures import Figure

Command = TypeVar("Command", bound=Callable[..., Any])
MILLION: Final = 1_000_000


def common(command: Command) -> Command:
    """The options of every benchmark."""
    for option in (
        click.option(
            "--directory",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Where data goes while it runs: a directory on the disk to measure.",
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
        help="Rounds; the median counts.",
    )(command)


def size(command: Command) -> Command:
    return click.option(
        "--size",
        "value_bytes",
        default=100,
        show_default=True,
        type=click.IntRange(1, MIB // 2),
        help="Bytes of each value.",
    )(command)


def records(default: int) -> Callable[[Command], Command]:
    return click.option(
        "--records",
        "count",
        default=default,
        show_default=True,
        type=click.IntRange(10_000),
        help="Records in each round.",
    )


def compression(command: Command) -> Command:
    return click.option(
        "--compression",
        default="none",
        show_default=True,
        type=click.Choice(["none", "lz4", "zstd", "gzip"]),
        help="How the producer compresses.",
    )(command)


def round_trips(command: Command) -> Command:
    return click.option(
        "--count",
        default=2_000,
        show_default=True,
        type=click.IntRange(100),
        help="Round trips in each round.",
    )(command)


def scale(command: Command) -> Command:
    return click.option(
        "--scale",
        default=1.0,
        show_default=True,
        type=click.FloatRange(0.001, 10),
        help="Make every benchmark longer or shorter.",
    )(command)


def print_figures(figures: Sequence[Figure], *, as_json: bool) -> None:
    """All in one table, or in one JSON list."""
    if as_json:
        output.print_json([figure.to_dict() for figure in figures])
        return
    rows = [figure.table() for figure in figures]
    output.print_table(list(rows[0]), [list(row.values()) for row in rows])
