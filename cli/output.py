"""Printed results: JSON, tables, raw bytes, progress. Independent of logs and brokers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click


def to_json(value: Any) -> str:
    """One JSON value on one line."""
    return json.dumps(value, ensure_ascii=False)


def print_json(value: Any) -> None:
    click.echo(to_json(value))


def report(value: Any, text: str, *, as_json: bool) -> None:
    """The outcome of a command in one line: ``value`` as JSON, or ``text``."""
    click.echo(to_json(value) if as_json else text)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table: drawn on a terminal, aligned columns elsewhere."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw_table(columns, cells)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row in (columns, *cells):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())


def clear() -> None:
    """Make the terminal empty, for what is printed again and again; nothing elsewhere."""
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
    """Exactly these bytes to standard output, at once."""
    stdout = sys.stdout.buffer
    stdout.write(data)
    stdout.flush()


def note(text: str) -> None:
    """A line for the person at the terminal: on stderr, so that it never mixes with results."""
    click.echo(text, err=True)


Advance = Callable[[int], None]


@contextmanager
def progress(
    description: str, total: int | None = None, *, hidden: bool = False
) -> Iterator[Advance]:
    """A progress bar on stderr while the block runs.

    None where stderr is no terminal, and none with ``hidden``: a bar would overwrite what a person
    types.
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
