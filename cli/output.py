"""Output of commands: JSON, tables, raw bytes, progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from raftlog.cli.main import in_options
from raftlog.errors import RaftlogError


def to_json(value: Any) -> str:
    """Return one JSON value on one line."""
    return json.dumps(value, ensure_ascii=False)


def print_json(value: Any) -> None:
    click.echo(to_json(value))


def report(value: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a command in one line: ``value`` as JSON, or ``text``."""
    click.echo(to_json(value) if as_json else text)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table: with lines on a terminal, with aligned columns elsewhere."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw_table(columns, cells)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row in (columns, *cells):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())


def clear() -> None:
    """Clear the terminal before a repeated display. No effect if stdout is no terminal."""
    if sys.stdout.isatty():
        click.clear()


def _draw_table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    Console().print(table)


def write_bytes(data: bytes) -> None:
    """Write exactly these bytes to standard output, and flush it."""
    stdout = sys.stdout.buffer
    stdout.write(data)
    stdout.flush()


def note(text: str) -> None:
    """Print a line for the user on stderr, apart from the results on stdout."""
    click.echo(text, err=True)


def note_error(error: RaftlogError) -> None:
    """Print an error after which the command continues."""
    note(f"raftlog: {in_options(str(error))}")


Advance = Callable[[int], None]


@contextmanager
def progress(
    description: str, total: int | None = None, *, hidden: bool = False
) -> Iterator[Advance]:
    """Show a progress bar on stderr while the block runs.

    No bar is shown if stderr is no terminal, or with ``hidden``, for example because it would
    overwrite typed input.
    """
    if hidden or not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.update(task, advance=count)
