"""Output of commands: JSON, tables, raw bytes, progress."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click

from raftlog.errors import RaftlogError
from raftlog_cli.main import in_options


def to_json(value: Any) -> str:
    """Return one JSON value on one line."""
    return json.dumps(value, ensure_ascii=False)


def print_json(value: Any) -> None:
    click.echo(to_json(value))


def report(value: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a command in one line: ``value`` as JSON, or ``text``."""
    click.echo(to_json(value) if as_json else text)


WIDE: Final = "raftlog.wide"  # key of the value of --wide in the context of a command
GAP: Final = "  "
CELL_WIDTH_MIN: Final = 20  # values are not shortened below this
_ELLIPSIS: Final = "…"


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    if_set: Collection[str] = (),
    drop: Sequence[str] = (),
    prose: str | None = None,
) -> None:
    """Print a table with aligned columns, none of which is folded.

    On a terminal, columns that do not fit are left out, and a line on stderr names them: first
    those in ``drop``, then the others from the last one on, never the first one. With --wide and
    elsewhere, all columns are printed.

    ``if_set``: columns that are printed only if a row has a value. ``prose``: a column of
    sentences, whose words continue on the next line on a terminal.
    """
    cells = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    wide = is_wide()
    shown = [
        number
        for number, name in enumerate(columns)
        if name not in if_set or wide or any(row[number] not in {"", "-"} for row in cells)
    ]
    table = [list(columns), *cells]
    omitted: list[str] = []
    short: set[int] = set()
    if sys.stdout.isatty() and not wide:
        width = shutil.get_terminal_size().columns
        short = _shorten(cells, shown, width, columns.index(prose) if prose else None)
        fitting = fit(table, shown, width, [columns.index(name) for name in (*drop,)], prose)
        omitted = [columns[number] for number in shown if number not in fitting]
        shown, short = fitting, short & {*fitting}
    for line in _lines(table, shown, prose):
        click.echo(line)
    if omitted or short:
        _note_omitted(omitted, has_short=bool(short))


def fit(
    table: Sequence[Sequence[str]],
    shown: Sequence[int],
    width: int,
    drop: Sequence[int] = (),
    prose: str | None = None,
    gap: int = len(GAP),
) -> list[int]:
    """Return the columns of ``table`` that fit into ``width``. The first row has their names."""
    left = list(shown)
    order = [number for number in drop if number in left]
    order += [number for number in reversed(left[1:]) if number not in order]
    widths = {number: _width(table, number) for number in left}
    for number in left:
        if table[0][number] == prose:
            widths[number] = min(widths[number], CELL_WIDTH_MIN)
            order = [each for each in order if each != number]
    for number in order:
        if sum(widths[each] for each in left) + gap * (len(left) - 1) <= width:
            break
        left.remove(number)
    return left


def _shorten(
    cells: Sequence[list[str]], shown: Sequence[int], width: int, prose: int | None
) -> set[int]:
    """Shorten values that are longer than half of the terminal. Returns their columns."""
    limit = max(CELL_WIDTH_MIN, width // 2)
    found = set()
    for row in cells:
        for number in shown:
            if number != prose and cell_len(row[number]) > limit:
                row[number] = shortened(row[number], limit)
                found.add(number)
    return found


def shortened(text: str, width: int | None) -> str:
    """Return ``text`` in at most ``width`` characters: its beginning and its end."""
    if width is None or len(text) <= width:
        return text
    end = (width - 1) // 3
    return f"{text[: width - 1 - end]}{_ELLIPSIS}{text[-end:] if end else ''}"


def _lines(
    table: Sequence[Sequence[str]], shown: Sequence[int], prose: str | None
) -> Iterator[str]:
    widths = {number: _width(table, number) for number in shown}
    is_terminal = sys.stdout.isatty()
    wrapped = next((number for number in shown if table[0][number] == prose), None)
    if is_terminal and wrapped is not None and not is_wide():
        others = sum(width + len(GAP) for number, width in widths.items() if number != wrapped)
        room = shutil.get_terminal_size().columns - others
        widths[wrapped] = min(widths[wrapped], max(room, CELL_WIDTH_MIN))
    for at, row in enumerate(table):
        parts = {number: [row[number]] for number in shown}
        if is_terminal and wrapped is not None:
            parts[wrapped] = textwrap.wrap(
                row[wrapped], widths[wrapped], break_long_words=False, break_on_hyphens=False
            ) or [""]
        for line in range(max(map(len, parts.values()))):
            texts = [
                (parts[number][line] if line < len(parts[number]) else "", widths[number])
                for number in shown
            ]
            yield GAP.join(text + " " * (width - cell_len(text)) for text, width in texts).rstrip()
        if at == 0 and is_terminal:
            yield GAP.join("─" * widths[number] for number in shown)


def _width(table: Sequence[Sequence[str]], number: int) -> int:
    return max(cell_len(row[number]) for row in table)


def cell_len(text: str) -> int:
    """Return the number of terminal columns of ``text``."""
    if text.isascii() or text == _ELLIPSIS:
        return len(text)
    from rich.cells import cell_len as measured

    return measured(text)


def is_wide() -> bool:
    """Return whether the command has --wide."""
    context = click.get_current_context(silent=True)
    return bool(context and context.meta.get(WIDE))


def _note_omitted(omitted: Sequence[str], *, has_short: bool) -> None:
    parts = []
    if omitted:
        parts.append(f"not shown: {', '.join(omitted)}")
    if has_short:
        parts.append("long values are shortened")
    context = click.get_current_context(silent=True)
    hint = " (--wide shows all)" if context and WIDE in context.meta else ""
    note(f"{'; '.join(parts)}{hint}")


def printable(text: str) -> str:
    """Return ``text`` without control characters, such as escape sequences."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def clear() -> None:
    """Clear the terminal before a repeated display. No effect if stdout is no terminal."""
    if sys.stdout.isatty():
        click.clear()


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
