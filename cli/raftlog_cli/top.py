"""``raftlog top``: live display of a cluster at a terminal."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from raftlog import Admin
from raftlog.client.administration.groups import GroupDescription
from raftlog.clock import SystemClock
from raftlog.errors import RaftlogError, UnknownGroupError
from raftlog.types import is_internal_topic
from raftlog_cli import options, output
from raftlog_cli.group import seconds
from raftlog_cli.main import in_options
from raftlog_cli.overview import SORTS, Overview, Sample, overview

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.layout import Layout

INTERVAL_S_DEFAULT: Final = 2.0
INTERVAL_S_MIN: Final = 0.5
GROUPS_MAX: Final = 100  # described per display: each costs one request to its coordinator
WIDTH_OF_FILES: Final = 10_000  # characters per line if stdout is no terminal, and for --wide
ROWS_ONCE: Final = 1_000  # rows of a table that is printed once
ROWS_LIVE_MIN: Final = 4  # rows of topics and groups on a live display, also on a small terminal
FINDINGS_MAX: Final = 6  # on a live display

STYLES: Final = {
    "ok": "green",
    "up": "green",
    "at-min-isr": "yellow",
    "under-replicated": "yellow",
    "fenced": "yellow",
    "draining": "yellow",
    "unavailable": "bold red",
    "down": "bold red",
}


@click.command(short_help="Show brokers, topics, groups and problems, live.")
@click.option(
    "--interval",
    type=options.FiniteRange(min=INTERVAL_S_MIN),
    default=INTERVAL_S_DEFAULT,
    show_default=True,
    help="Seconds between two displays, and interval of the rates.",
)
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default=SORTS[0],
    show_default=True,
    help="Order of topics and groups. problems: worst state first, then highest rate.",
)
@options.internal
@click.option("--once", is_flag=True, help="Print one display, after one interval, and exit.")
@options.wide
@options.as_json
@options.bootstrap
def top(
    interval: float, sort: str, internal: bool, once: bool, as_json: bool, bootstrap: str
) -> None:
    """Show brokers, topics, consumer groups and problems, live, with the next step for each.

    \b
    Keys:  q  quit      s  change the order      p  pause

    Internal topics are shown with --internal, or if they have a problem. With --json, one JSON
    value per interval, with all topics. At most 100 groups are described.

    \b
    Example:
      raftlog top --interval 1 --sort rate
      raftlog top --once --json
    """
    with Admin(bootstrap) as admin:
        source = Source(admin, has_internal=internal or as_json)
        source.read()
        if once:
            time.sleep(interval)
            source.read()
            _print_once(source.overview(sort), as_json=as_json)
        elif as_json or not sys.stdout.isatty():
            _print_again(source, interval, sort, as_json=as_json)
        else:
            _run_live(source, interval, sort)


class Source:
    """The last two samples of the cluster, and its groups."""

    def __init__(self, admin: Admin, *, has_internal: bool) -> None:
        """``has_internal``: show internal topics without a problem."""
        self._admin = admin
        self._has_internal = has_internal
        self._clock = SystemClock()
        self._before: Sample | None = None
        self._now: Sample | None = None
        self._groups: list[GroupDescription] = []
        self._omitted = 0

    def read(self) -> None:
        """Query the cluster. After an error, the last samples are kept."""
        described = self._admin.summarize_cluster()
        names = [row.group for row in self._admin.list_groups()]
        self._groups = self._described(names[:GROUPS_MAX])
        self._omitted = max(len(names) - GROUPS_MAX, 0)
        self._before, self._now = self._now, Sample(self._clock.monotonic(), described)

    def _described(self, names: list[str]) -> list[GroupDescription]:
        try:
            return self._admin.describe_groups(names) if names else []
        except UnknownGroupError:  # deleted since it was listed: the next display has the others
            return self._groups

    def overview(self, sort: str) -> Overview:
        assert self._now is not None, "read() must be called first"
        found = overview(
            self._now, self._before, self._groups, sort=sort, groups_omitted=self._omitted
        )
        return found if self._has_internal else without_internal(found)


def without_internal(found: Overview) -> Overview:
    """Return the overview without internal topics that have no problem."""
    topics = [row for row in found.topics if row.state != "ok" or not is_internal_topic(row.name)]
    return replace(found, topics=topics)


def _print_once(shown: Overview, *, as_json: bool) -> None:
    if as_json:
        output.print_json(shown.to_json())
        return
    from rich.console import Console

    is_limited = sys.stdout.isatty() and not output.is_wide()
    console = Console(width=None if is_limited else WIDTH_OF_FILES)
    width = console.size.width if is_limited else None
    now_ms = SystemClock().wall_ms()
    console.print(render(shown, rows_max=ROWS_ONCE, now_ms=now_ms, width=width))


def _print_again(source: Source, interval: float, sort: str, *, as_json: bool) -> None:
    while True:
        time.sleep(interval)
        try:
            source.read()
        except RaftlogError as error:
            output.note_error(error)
        else:
            _print_once(source.overview(sort), as_json=as_json)


def _run_live(source: Source, interval: float, sort: str) -> None:
    """Show displays until q or Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    console, problem, is_paused = Console(), "", False
    with keys() as is_terminal, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(
                screen(
                    console,
                    source.overview(sort),
                    now_ms=SystemClock().wall_ms(),
                    footer=_footer(sort, problem, is_paused=is_paused),
                ),
                refresh=True,
            )
            key = key_within(interval) if is_terminal else _sleep(interval)
            if key == "q":
                return
            if key == "s":
                sort = SORTS[(SORTS.index(sort) + 1) % len(SORTS)]
            elif key == "p":
                is_paused = not is_paused
            elif not key and not is_paused:
                problem = _read(source)


def _read(source: Source) -> str:
    """Query the cluster. Returns the error; "" without one."""
    try:
        source.read()
    except RaftlogError as error:
        return " ".join(in_options(str(error)).split())
    return ""


def _footer(sort: str, problem: str, *, is_paused: bool) -> str:
    if problem:
        return f"not up to date: {problem}"
    return f"q quit   s order: {sort}   p {'continue' if is_paused else 'pause'}"


# -- the display -----------------------------------------------------------------------------------


def screen(console: Console, shown: Overview, *, now_ms: int, footer: str) -> Layout:
    """Return a display that fits the terminal. ``footer``: last line. Long tables are shortened."""
    from rich.layout import Layout
    from rich.text import Text

    live: dict[str, Any] = {"now_ms": now_ms, "is_live": True}
    live["width"] = None if output.is_wide() else console.size.width
    without_rows = render(shown, rows_max=0, **live)
    free = console.size.height - 1 - len(console.render_lines(without_rows))
    body = render(shown, rows_max=max(free, ROWS_LIVE_MIN), **live)
    layout = Layout()
    layout.split_column(Layout(body), Layout(Text(output.printable(footer), style="dim"), size=1))
    return layout


def render(
    shown: Overview,
    *,
    rows_max: int,
    now_ms: int,
    width: int | None = None,
    is_live: bool = False,
) -> RenderableType:
    """Return the display. ``rows_max``: of topics and groups together. ``width``: of tables; None:
    no limit.
    """
    from rich.console import Group
    from rich.text import Text

    groups = min(len(shown.groups), max(rows_max // 3, rows_max - len(shown.topics)))
    topics = min(len(shown.topics), rows_max - groups)
    parts: list[RenderableType] = [_headline(shown, now_ms), *_findings(shown, is_live=is_live)]
    parts += _table(BROKERS, _brokers(shown), width)
    if shown.topics:
        parts += _table(TOPICS, _topics(shown, topics), width)
        parts += _omitted("topics", len(shown.topics) - topics)
    else:
        parts.append(Text("No topics. Create one: raftlog topic create NAME\n", style="dim"))
    if shown.groups:
        omitted = len(shown.groups) - groups + shown.groups_omitted
        parts += _table(GROUPS, _groups(shown, groups), width)
        parts += _omitted("groups", omitted)
    return Group(*parts)


def _headline(shown: Overview, now_ms: int) -> RenderableType:
    from rich.text import Text

    summary = shown.summary
    rate = "" if shown.rate is None else f"   {number(shown.rate)} records/s"
    when = datetime.fromtimestamp(now_ms / 1_000, UTC).strftime("%H:%M:%S UTC")
    controller = "none" if summary["controller"] is None else summary["controller"]
    line = Text(f"{when}   ", style="dim")
    state = "healthy" if summary["ok"] else "degraded"
    line.append(state, style="bold green" if summary["ok"] else "bold red")
    line.append(
        f"   brokers {summary['brokers_up']}/{summary['brokers']}   controller {controller}   "
        f"topics {summary['topics']:,}   partitions {summary['partitions']:,}{rate}",
        style="default not dim",
    )
    return line


def _findings(shown: Overview, *, is_live: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    found = list(shown.findings)[: FINDINGS_MAX if is_live else None]
    for finding in found:
        style = "bold red" if finding.is_critical else "bold yellow"
        text = Text.assemble(("! ", style), (output.printable(finding.what), style))
        text.append(f" {output.printable(finding.do)}", style="default")
        yield text
    yield from _omitted("problems", len(shown.findings) - len(found))


def _omitted(what: str, count: int) -> Iterator[RenderableType]:
    from rich.text import Text

    if count > 0:
        yield Text(f"  {count:,} more {what}", style="dim")


BORDER: Final = 1  # terminal columns at each side of a table
COLUMN_GAP: Final = 3

Row = Sequence[tuple[str, str]]  # text and style of each cell


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a table; those whose values are texts; the order of omission."""

    names: Sequence[str]
    texts: Collection[str]
    drop: Sequence[str]


BROKERS: Final = Columns(
    ("broker", "address", "state", "leads", "replicas", "role"),
    ("address", "state", "role"),
    ("replicas", "leads", "role"),
)
TOPICS: Final = Columns(
    ("topic", "partitions", "records", "records/s", "not in sync", "no leader", "state"),
    ("topic", "state"),
    ("records", "partitions", "no leader", "not in sync", "records/s"),
)
GROUPS: Final = Columns(
    ("group", "state", "members", "lag", "lag (s)"), ("group", "state"), ("members", "lag (s)")
)


def _table(columns: Columns, rows: Sequence[Row], width: int | None) -> Iterator[RenderableType]:
    """Return a table of at most ``width`` columns of the terminal, and a line for omitted ones.

    Long values are shortened. ``width``: None for a table with all columns and complete values.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    limit = None if width is None else max(output.CELL_WIDTH_MIN, width // 2)
    cells = [[output.shortened(output.printable(text), limit) for text, _ in row] for row in rows]
    shown = list(range(len(columns.names)))
    if width is not None:
        drop = [columns.names.index(name) for name in columns.drop]
        table_width = width - 2 * BORDER
        shown = output.fit([columns.names, *cells], shown, table_width, drop, gap=COLUMN_GAP)
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1))
    for index in shown:
        name = columns.names[index]
        table.add_column(name, justify="left" if name in columns.texts else "right", no_wrap=True)
    for row, texts in zip(rows, cells, strict=True):
        table.add_row(*(Text(texts[index], style=row[index][1]) for index in shown))
    yield table
    omitted = [name for index, name in enumerate(columns.names) if index not in shown]
    if omitted:
        yield Text(f"  not shown: {', '.join(omitted)} (--wide shows all)", style="dim")


def _brokers(shown: Overview) -> list[Row]:
    return [
        (
            (str(row["id"]), ""),
            (f"{row['host']}:{row['port']}", ""),
            (row["state"], STYLES[row["state"]]),
            (f"{row['leads']:,}", ""),
            (f"{row['replicas']:,}", ""),
            ("controller" if row["controller"] else "", ""),
        )
        for row in shown.brokers
    ]


def _topics(shown: Overview, count: int) -> list[Row]:
    return [
        (
            (row.name, ""),
            (f"{row.partitions:,}", ""),
            (f"{row.records:,}", ""),
            ("-" if row.rate is None else number(row.rate), ""),
            (f"{row.under_replicated:,}", ""),
            (f"{row.unavailable:,}", ""),
            (row.state, STYLES[row.state]),
        )
        for row in shown.topics[:count]
    ]


def _groups(shown: Overview, count: int) -> list[Row]:
    return [
        (
            (row.name, ""),
            (row.state, ""),
            (f"{row.members:,}", ""),
            (f"{row.lag:,}", ""),
            ("-" if row.lag_seconds is None else seconds(row.lag_seconds), ""),
        )
        for row in shown.groups[:count]
    ]


def number(value: float) -> str:
    """Return a rate with one decimal below 10, without decimals from 10 on."""
    return f"{value:.1f}" if 0 < value < 10 else f"{value:,.0f}"


# -- keys ------------------------------------------------------------------------------------------


@contextmanager
def keys() -> Iterator[bool]:
    """Enable reads of single keys while the block runs. Yields False if stdin is no terminal."""
    if not sys.stdin.isatty():
        yield False
        return
    import termios
    import tty

    number_of_stdin = sys.stdin.fileno()
    before = termios.tcgetattr(number_of_stdin)
    tty.setcbreak(number_of_stdin)
    try:
        yield True
    finally:
        termios.tcsetattr(number_of_stdin, termios.TCSADRAIN, before)


def key_within(timeout_s: float) -> str:
    """Return the next key; "" after ``timeout_s``; "q" if the terminal was closed."""
    ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
    return (os.read(sys.stdin.fileno(), 1).decode(errors="replace").lower() or "q") if ready else ""


def _sleep(seconds_: float) -> str:
    time.sleep(seconds_)
    return ""
