"""``raftlog chaos``: inject faults into a cluster, and check what its clients observed."""

from __future__ import annotations

import logging
import secrets
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from raftlog_cli import options, output
from raftlog_cli.main import STATUS_FAILED, Commands, Failed, describe_os_error

if TYPE_CHECKING:
    from raftlog.testing.checker.judge import Result
    from raftlog.testing.checker.verdict import Valid, Verdict
    from raftlog_jepsen.plan import ClientName
    from raftlog_jepsen.runner import RunOptions


# -- the options of a run --------------------------------------------------------------------------


Command = TypeVar("Command", bound=Callable[..., Any])
SEED_BITS: Final = 32
NEMESES_DEFAULT: Final = "kill,pause,partition"

CLIENT_OPTION: Final = click.option(
    "--client",
    type=click.Choice(["raftlog", "kafka"]),
    default="raftlog",
    show_default=True,
    help="Clients of the workload: raftlog, or confluent-kafka with Kafka's protocol "
    "(`pip install confluent-kafka`).",
)

RUN_OPTIONS: Final = (
    click.option(
        "--workload",
        default="append",
        show_default=True,
        help="What clients do: append, replay (read whole topics repeatedly, from leaders and "
        "followers), admin (create and delete topics), offsets (commit consumer offsets), "
        "groups (run members of consumer groups, for --nemesis members), compact (write to "
        "compacted topics), txn (write transactions), etl (copy records in transactions that "
        "commit consumer offsets).",
    ),
    CLIENT_OPTION,
    click.option(
        "--nemesis",
        "nemeses",
        default=NEMESES_DEFAULT,
        show_default=True,
        metavar="KIND,...",
        help="Kinds or groups of faults, separated by commas (see --list), or 'none'.",
    ),
    click.option(
        "--time", "time_s", type=float, default=60, show_default=True, help="Seconds of load."
    ),
    click.option(
        "--seed", type=int, help="The same seed creates the same plan.  [default: a new one]"
    ),
    click.option(
        "--report",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
        help="New or empty directory for all files of the run.  [default: chaos-SEED]",
    ),
    click.option(
        "--brokers", type=int, default=3, show_default=True, help="Number of brokers: 1 to 9."
    ),
    click.option(
        "--workers",
        type=int,
        default=1,
        show_default=True,
        help="Run this number of brokers on each of --brokers machines, and fail whole machines.",
    ),
    click.option(
        "--rate",
        type=options.FiniteRange(min=0, min_open=True),
        help="Total records per second of all producers.  [default: from the seed]",
    ),
    click.option("--pairs", is_flag=True, help="Inject two kinds of fault at a time."),
    click.option(
        "--bootstrap",
        metavar="HOST:PORT[,...]",
        help="Use a running cluster instead of starting one; faults need --control.",
    ),
    click.option(
        "--control",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Program that kills, starts, pauses and resumes brokers of that cluster.",
    ),
    click.option(
        "--source",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Directory with the raftlog package that the brokers run.",
    ),
    click.option(
        "--without-root", is_flag=True, help="Use no namespaces and no loop devices, even as root."
    ),
    click.option(
        "--secure",
        is_flag=True,
        help="Use TLS, authentication and access rules.",
    ),
    click.option("--list", "kinds", is_flag=True, help="List the kinds of fault, and exit."),
    click.option("--quiet", "-q", is_flag=True, help="Print only the verdict."),
)


def of_a_run(command: Command) -> Command:
    """Add all options of ``raftlog chaos run``."""
    for option in reversed(RUN_OPTIONS):
        command = option(command)
    return command


def checked(*, nemeses: str, seed: int | None, directory: Path | None, **others: Any) -> RunOptions:
    """Return the runner's options. Raises ``UsageError`` for contradictory options."""
    from raftlog_jepsen.runner import RunOptions, draw_plan

    seed = secrets.randbits(SEED_BITS) if seed is None else seed
    if others["control"] is not None and others["bootstrap"] is None:
        raise click.UsageError("--control requires --bootstrap: it is for a running cluster")
    if others["source"] is not None and others["bootstrap"] is not None:
        raise click.UsageError("--source is for brokers that are started here, not for --bootstrap")
    if others.get("client") == "kafka":
        options.check_confluent_kafka()
    if others.get("secure") and others["bootstrap"] is not None:
        raise click.UsageError("--secure is for brokers that are started here, not for --bootstrap")
    names = [] if nemeses == "none" else [name.strip() for name in nemeses.split(",")]
    made = RunOptions(
        nemeses=tuple(filter(None, names)),
        seed=seed,
        directory=directory or _unused(f"chaos-{seed}"),
        **others,
    )
    if made.directory.exists() and any(made.directory.iterdir()):
        raise click.BadParameter(f"{made.directory} is not empty", param_hint="--report")
    try:
        draw_plan(made)  # the runner repeats this; here, an error is reported as wrong usage
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return made


def _unused(name: str) -> Path:
    """Return ``name``, or ``name`` with a number, as a path that does not exist."""
    number, path = 1, Path(name)
    while path.exists():
        number += 1
        path = Path(f"{name}-{number}")
    return path


def enter_sandbox() -> str:
    """Replace this process by the same command in new namespaces.

    Returns "" if it already runs in them, or the reason why they cannot be created.
    """
    from raftlog_jepsen.control import namespaces

    if namespaces.is_inside():
        return ""
    why_not = namespaces.why_no_sandbox()
    if not why_not:
        namespaces.enter([sys.executable, "-m", "raftlog", *sys.argv[1:]])
    return why_not


# -- output -------------------------------------------------------------------------------


Say = Callable[[str], None]
Show = Callable[[Any], None]
STATUS_UNKNOWN: Final = 3  # no anomaly was found, and the check is incomplete
STATUSES: Final[dict[Valid, int]] = {
    "valid": 0,
    "invalid": STATUS_FAILED,
    "unknown": STATUS_UNKNOWN,
}
NAME_WIDTH: Final = 22
RATE_S: Final = 2.0  # seconds over which the printed rate is measured


class NothingKnownError(Failed):
    """The run failed before the check: one line on stderr, exit status 3."""

    exit_code = STATUS_UNKNOWN


@contextmanager
def failing_as_unknown() -> Iterator[None]:
    """Exit with status 3 after a failure that is no anomaly (status 1)."""
    from raftlog.errors import RaftlogError

    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except OSError as error:
        raise NothingKnownError(f"no verdict: {describe_os_error(error)}") from error
    except Exception as error:
        # By name: importing the class would load the whole harness.
        if isinstance(error, RaftlogError) or type(error).__name__ == "ChaosError":
            raise NothingKnownError(f"no verdict: {error}") from error
        traceback.print_exc()
        what = f"{type(error).__name__}: {error}"
        raise NothingKnownError(f"no verdict, a bug of the harness: {what}") from error


# -- progress --------------------------------------------------------------------------------


class Rate:
    """Records per second of the last ``RATE_S`` seconds, from counts and their times."""

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
    """Write the log lines of clients to a file, because faults cause many of them."""
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
    """Print the progress on stderr: one live line on a terminal, separate lines elsewhere."""
    if quiet:
        yield (lambda _text: None), None
        return
    if not sys.stderr.isatty():
        yield output.note, None
        return
    from rich.console import Console
    from rich.text import Text

    from raftlog_jepsen.report.html import progress_line

    console, rate = Console(stderr=True), Rate()
    with console.status("starting") as status:

        def show(progress: Any) -> None:
            lately = rate.at(progress.elapsed_s, progress.acknowledged)
            status.update(Text(progress_line(progress, lately)))

        def say(text: str) -> None:
            status.update(Text(text))
            console.print(Text(text))

        yield say, show


# -- results -----------------------------------------------------------------------------------


def print_row(name: str, value: str) -> None:
    click.echo(f"{name:>{NAME_WIDTH}}  {value}")


def print_verdict(verdict: Verdict, *, zeros: bool = False) -> None:
    """Print the anomalies, the first ones in full, and the verdict."""
    from raftlog_jepsen.report import html as text

    rows = text.anomaly_rows(verdict, zeros=zeros)
    if rows:
        output.print_table(text.ANOMALY_COLUMNS, rows)
        click.echo()
    for line in text.finding_lines(verdict):
        click.echo(line)
    for name, value in text.summary_rows(verdict):
        print_row(name, value)


def print_kinds(*, without_root: bool, as_json: bool) -> None:
    """Print each kind of fault, its effect, and whether it can be injected on this machine."""
    from raftlog_jepsen.report.kinds import kinds_here

    found = kinds_here(without_root=without_root)
    if as_json:
        output.print_json(
            [{"name": k.name, "description": k.description, "why_not": k.why_not} for k in found]
        )
        return
    rows = [
        (kind.name, kind.description, f"no: {kind.why_not}" if kind.why_not else "yes")
        for kind in found
    ]
    output.print_table(("kind", "what it does", "here"), rows, prose="what it does")


def print_selftest(results: Sequence[Result], *, as_json: bool) -> None:
    """Print a row for each stored history, and whether the checker found its anomaly."""
    if as_json:
        output.print_json([result._asdict() for result in results])
        return
    rows = [(r.name, r.expected, "yes" if r.passed else "NO") for r in results]
    output.print_table(("history", "expected", "found"), rows)
    missed = sum(not result.passed for result in results)
    click.echo(
        f"\n{len(results)} stored histories were checked; wrong verdicts: {missed or 'none'}"
    )


# -- the commands ----------------------------------------------------------------------------------


CLIENTS_LOG: Final = "clients.log"


@click.group(cls=Commands, short_help="Inject faults, and check what the clients observed.")
def chaos() -> None:
    """Inject faults into a cluster, and check what its clients observed.

    Exit status: 0 if all acknowledged records are stored and in order, 1 if an anomaly was found, 2
    wrong usage, 3 unknown, because the run or the check did not complete.

    \b
    Example:
      raftlog chaos run --time 60
      raftlog chaos check chaos-1234/history.jsonl
    """


@chaos.command(short_help="Start a cluster, inject faults under load, check the history.")
@of_a_run
@options.wide
@options.as_json
@click.pass_context
def run(context: click.Context, /, as_json: bool, kinds: bool, quiet: bool, **given: Any) -> None:
    """Start a cluster, inject faults under load, heal it, and check the history.

    All files are written to the directory of --report: history.jsonl, verdict.json, report.html,
    and the logs and data of the brokers. As root on Linux it runs in new namespaces, and changes no
    network interface, mount or process outside of them. Faults that cannot be injected are
    reported; --list prints them with the reason.

    \b
    Example:
      raftlog chaos run --nemesis kill,partition,power --time 120 --seed 7 --report run-7
      raftlog chaos run --list
    """
    with failing_as_unknown():
        if given["bootstrap"] is None and not given["without_root"]:
            why_not = enter_sandbox()
            if why_not:
                given["without_root"] = True
                output.note(f"no namespaces and no loop devices: {why_not}")
        if kinds:
            print_kinds(without_root=given["without_root"], as_json=as_json)
            return
        from raftlog_jepsen import runner

        with watching(quiet=quiet or as_json) as (say, progress):
            made = checked(**given, say=say, progress=progress)
            say(f"seed {made.seed}, all files are in {made.directory}")
            with clients_log(made.directory / CLIENTS_LOG):
                outcome = runner.run(made)
        if as_json:
            found = {"seed": outcome.plan.seed, "directory": str(outcome.directory)}
            report = {"report": str(outcome.report)}
            output.print_json({**outcome.verdict.to_dict(), **found, **report})
        else:
            print_verdict(outcome.verdict)
            print_row("report", str(outcome.report))
    context.exit(STATUSES[outcome.verdict.valid])


@chaos.command()
@click.argument("history", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--report",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write report.html to this directory.",
)
@click.option("--all", "zeros", is_flag=True, help="Also list kinds of anomaly with count zero.")
@options.wide
@options.as_json
@click.pass_context
def check(
    context: click.Context, history: Path, directory: Path | None, zeros: bool, as_json: bool
) -> None:
    """Check a stored history of `chaos run` or of another application.

    docs/reference/fault-injection.md describes the format: one JSON object per line.

    \b
    Example:
      raftlog chaos check chaos-1234/history.jsonl --report again
    """
    with failing_as_unknown():
        from raftlog.testing.checker.judge import judge_file

        verdict = judge_file(history)
        if directory is not None:
            from raftlog_jepsen.report.html import write_report

            directory.mkdir(parents=True, exist_ok=True)
            report = write_report(directory, history, verdict)
        if as_json:
            output.print_json(verdict.to_dict())
        else:
            print_verdict(verdict, zeros=zeros)
            if directory is not None:
                print_row("report", str(report))
    context.exit(STATUSES[verdict.valid])


@chaos.command()
@options.wide
@options.as_json
@click.pass_context
def selftest(context: click.Context, as_json: bool) -> None:
    """Test the checker with stored histories, one per anomaly. It must find each one.

    \b
    Example:
      raftlog chaos selftest
    """
    with failing_as_unknown():
        from raftlog.testing.checker import judge

        results = judge.run()
        print_selftest(results, as_json=as_json)
    context.exit(0 if all(result.passed for result in results) else STATUS_FAILED)


@chaos.command(short_help="Run different mixes of faults, and summarize the verdicts.")
@click.option(
    "--time",
    "time_s",
    type=float,
    default=3_600,
    show_default=True,
    help="Seconds in which runs are started.",
)
@click.option(
    "--run-time",
    "run_s",
    type=float,
    default=120,
    show_default=True,
    help="Seconds of load per run.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Number of runs in parallel.",
)
@click.option(
    "--mix",
    "names",
    multiple=True,
    metavar="TEXT",
    help="Only mixes of faults with TEXT in their name, such as membership. Repeatable.  "
    "[default: all]",
)
@CLIENT_OPTION
@click.option("--secure", is_flag=True, help="Use TLS, authentication and access rules.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the first run.")
@click.option(
    "--report",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("chaos-campaign"),
    show_default=True,
    help="Directory for all files; campaign.md has one line per run.",
)
@options.as_json
@click.pass_context
def campaign(
    context: click.Context,
    time_s: float,
    run_s: float,
    jobs: int,
    names: tuple[str, ...],
    client: ClientName,
    secure: bool,
    seed: int,
    directory: Path,
    as_json: bool,
) -> None:
    """Execute runs with different mixes of faults, and summarize their verdicts.

    Mixes with a fault that cannot be injected on this machine are left out, and named. Exit status:
    0 if all runs were valid, 1 if any had an anomaly, else 3.

    \b
    Example:
      raftlog chaos campaign --time 3600 --jobs 2 --seed 100
      raftlog chaos campaign --time 10800 --mix membership --report membership
    """
    with failing_as_unknown():
        from raftlog_jepsen.runner import (
            CampaignOptions,
            kinds_missing_here,
            mixes_named,
            runnable,
            table,
        )
        from raftlog_jepsen.runner import campaign as make_runs

        if client == "kafka":
            options.check_confluent_kafka()
        try:
            mixes = mixes_named(names, secure=secure, client=client)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--mix") from None
        mixes, notes = runnable(mixes, kinds_missing_here())
        for note in notes:
            output.note(note)
        if not mixes:
            context.exit(STATUSES["unknown"])
        rows = make_runs(
            CampaignOptions(
                directory=directory,
                time_s=time_s,
                run_s=run_s,
                jobs=jobs,
                seed=seed,
                mixes=mixes,
                say=output.note,
            )
        )
    if as_json:
        output.print_json([row.to_dict() for row in rows])
    else:
        click.echo(table(rows))
    verdicts = {row.verdict for row in rows}
    worst = STATUSES["invalid" if "invalid" in verdicts else "unknown"]
    context.exit(0 if rows and verdicts == {"valid"} else worst)
