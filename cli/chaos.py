"""``raftlog chaos``: break a cluster on purpose, and judge what its clients saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from raftlog.cli import chaos_options, chaos_output, options, output
from raftlog.cli.chaos_campaign import campaign
from raftlog.cli.chaos_output import STATUSES
from raftlog.cli.main import STATUS_FAILED

CLIENTS_LOG: Final = "clients.log"


@click.group()
def chaos() -> None:
    """Break a cluster on purpose, and judge what its clients saw.

    Exit status: 0 if what was acknowledged is there and in order, 1 if an anomaly was found, 3 if
    nothing can be said (which is a failure too), 2 wrong usage.

    \b
    Example:
      raftlog chaos run --time 60
      raftlog chaos check chaos-1234/history.jsonl
    """


@chaos.command()
@chaos_options.of_a_run
@options.as_json
@click.pass_context
def run(context: click.Context, /, as_json: bool, kinds: bool, quiet: bool, **asked: Any) -> None:
    """Start a cluster, hurt it while clients write and read, heal it, and judge.

    Everything goes into the directory of --report: history.jsonl, verdict.json, report.html, the
    brokers' logs and files. As root on Linux it runs in namespaces of its own, and touches no
    network interface, mount or process outside of them; kinds of fault that cannot be injected are
    reported as such (--list says which, and why).

    \b
    Example:
      raftlog chaos run --nemesis kill,partition,power --time 120 --seed 7 --report run-7
      raftlog chaos run --list
    """
    with chaos_output.failing_as_unknown():
        if asked["bootstrap"] is None and not asked["without_root"]:
            why_not = chaos_options.enter_sandbox()
            if why_not:
                asked["without_root"] = True
                output.note(f"no namespaces and no loop devices: {why_not}")
        if kinds:
            chaos_output.print_kinds(without_root=asked["without_root"], as_json=as_json)
            return
        from raftlog.jepsen_like import runner

        with chaos_output.watching(quiet=quiet or as_json) as (say, progress):
            made = chaos_options.checked(**asked, say=say, progress=progress)
            say(f"seed {made.seed}, everything goes to {made.directory}")
            with chaos_output.clients_log(made.directory / CLIENTS_LOG):
                outcome = runner.run(made)
        if as_json:
            found = {"seed": outcome.plan.seed, "directory": str(outcome.directory)}
            report = {"report": str(outcome.report)}
            output.print_json({**outcome.verdict.to_dict(), **found, **report})
        else:
            chaos_output.print_verdict(outcome.verdict)
            chaos_output.print_row("report", str(outcome.report))
    context.exit(STATUSES[outcome.verdict.valid])


@chaos.command()
@click.argument("history", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--report",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write report.html into this directory.",
)
@click.option(
    "--all", "zeros", is_flag=True, help="List kinds of anomaly that were not found, too."
)
@options.as_json
@click.pass_context
def check(
    context: click.Context, history: Path, directory: Path | None, zeros: bool, as_json: bool
) -> None:
    """Judge a stored history again: one of `chaos run`, or of your own application.

    docs/operating/chaos.md describes the format, a line of JSON for each event.

    \b
    Example:
      raftlog chaos check chaos-1234/history.jsonl --report again
    """
    with chaos_output.failing_as_unknown():
        from raftlog.jepsen_like.checker.judge import judge_file

        verdict = judge_file(history)
        if directory is not None:
            from raftlog.jepsen_like.report.html import write_report

            directory.mkdir(parents=True, exist_ok=True)
            report = write_report(directory, history, verdict)
        if as_json:
            output.print_json(verdict.to_dict())
        else:
            chaos_output.print_verdict(verdict, zeros=zeros)
            if directory is not None:
                chaos_output.print_row("report", str(report))
    context.exit(STATUSES[verdict.valid])


@chaos.command()
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How many histories each anomaly is put into.",
)
@options.as_json
@click.pass_context
def selftest(context: click.Context, seeds: int, as_json: bool) -> None:
    """Put one anomaly at a time into histories that are right: all of them have to be found.

    A judge that has never found anything proves nothing.

    \b
    Example:
      raftlog chaos selftest --seeds 20
    """
    with chaos_output.failing_as_unknown():
        from raftlog.jepsen_like.checker import selftest as checker

        results = checker.run(range(1, seeds + 1))
        chaos_output.print_selftest(results, as_json=as_json)
    context.exit(0 if all(result.passed for result in results) else STATUS_FAILED)


chaos.add_command(campaign)
