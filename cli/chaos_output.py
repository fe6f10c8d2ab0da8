"""What ``raftlog chaos`` prints: a live line, verdicts, kinds of fault, the checker's self-test."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from raftlog.cli import output
from raftlog.cli.main import STATUS_FAILED, Failed, describe_os_error

if TYPE_CHECKING:
    from raftlog.jepsen_like.checker.selftest import Result
    from raftlog.jepsen_like.checker.verdict import Valid, Verdict

Say = Callable[[str], None]
Show = Callable[[Any], None]
STATUS_UNKNOWN: Final = 3  # nothing wrong was found, but it cannot be ruled out
STATUSES: Final[dict[Valid, int]] = {
    "valid": 0,
    "invalid": STATUS_FAILED,
    "unknown": STATUS_UNKNOWN,
}
NAME_WIDTH: Final = 22
RATE_S: Final = 2.0  # the rate that is shown is that of the last seconds


class NothingKnownError(Failed):
    """There is no verdict, because something else went wrong: one line on stderr, status 3."""

    exit_code = STATUS_UNKNOWN


@contextmanager
def failing_as_unknown() -> Iterator[None]:
    """What goes wrong otherwise must not pass for an anomaly, which is status 1."""
    from raftlog.errors import RaftlogError

    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except OSError as error:
        raise NothingKnownError(f"no verdict: {describe_os_error(error)}") from error
    except Exception as error:
        # By name: to import the harness's error would load all of it before anything was done.
        if isinstance(error, RaftlogError) or type(error).__name__ == "ChaosError":
            raise NothingKnownError(f"no verdict: {error}") from error
        traceback.print_exc()
        what = f"{type(error).__name__}: {error}"
        raise NothingKnownError(f"no verdict, a bug of the harness: {what}") from error


# -- while it runs --------------------------------------------------------------------------------


class Rate:
    """Records per second lately, from how many there were at which times."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = [(0.0, 0)]

    def at(self, elapsed_s: float, count: int) -> float:
        self._seen.append((elapsed_s, count))
        while len(self._seen) > 2 and self._seen[1][0] <= elapsed_s - RATE_S:
            self._seen.pop(0)
        before_s, before = self._seen[0]
        return (count - before) / (elapsed_s - before_s) if elapsed_s > before_s else 0.0


@contextmanager
def clients_log(path: Path) -> Iterator[None]:
    """What clients complain of goes into a file: under faults, it is a lot, and no news."""
    path.parent.mkdir(parents=True, exist_ok=True)
    logger, handler = logging.getLogger("raftlog"), logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
        handler.close()


@contextmanager
def watching(*, quiet: bool) -> Iterator[tuple[Say, Show | None]]:
    """What the runner tells and shows, on stderr: a live line on a terminal, lines elsewhere."""
    if quiet:
        yield (lambda _text: None), None
        return
    if not sys.stderr.isatty():
        yield output.note, None
        return
    from rich.console import Console
    from rich.text import Text

    from raftlog.jepsen_like.report.text import progress_line

    console, rate = Console(stderr=True), Rate()
    with console.status("starting") as status:

        def show(progress: Any) -> None:
            lately = rate.at(progress.elapsed_s, progress.acknowledged)
            status.update(Text(progress_line(progress, lately)))

        def say(text: str) -> None:
            status.update(Text(text))
            console.print(Text(text))

        yield say, show


# -- afterwards -----------------------------------------------------------------------------------


def print_row(name: str, value: str) -> None:
    click.echo(f"{name:>{NAME_WIDTH}}  {value}")


def print_verdict(verdict: Verdict, *, zeros: bool = False) -> None:
    """What was found, with the first findings in full, and the verdict last."""
    from raftlog.jepsen_like.report import text

    rows = text.anomaly_rows(verdict, zeros=zeros)
    if rows:
        output.print_table(text.ANOMALY_COLUMNS, rows)
        click.echo()
    for line in text.finding_lines(verdict):
        click.echo(line)
    for name, value in text.summary_rows(verdict):
        print_row(name, value)


def print_kinds(*, without_root: bool, as_json: bool) -> None:
    """Every kind of fault, what it does, and whether it can be done here."""
    from raftlog.jepsen_like.report.kinds import kinds_here

    found = kinds_here(without_root=without_root)
    if as_json:
        output.print_json([kind._asdict() for kind in found])
        return
    rows = [
        (kind.name, kind.told, f"no: {kind.why_not}" if kind.why_not else "yes") for kind in found
    ]
    output.print_table(("kind", "what it does", "here"), rows)


def print_selftest(results: Sequence[Result], *, as_json: bool) -> None:
    """A row for each anomaly that was put into histories, and in how many it was found."""
    if as_json:
        output.print_json([result.to_dict() for result in results])
        return
    rows = [
        (
            result.mutation,
            result.kind,
            f"{result.found} of {result.seeds}",
            "MISSED in " + ", ".join(map(str, result.missed)) if result.missed else "",
        )
        for result in results
    ]
    output.print_table(("put in", "has to be found", "found", ""), rows)
    missed = sum(not result.passed for result in results)
    click.echo(f"\n{len(results)} checks of the judge: {missed or 'none'} failed")
