"""``raftlog chaos campaign``: run after run, and a table of them."""

from __future__ import annotations

from pathlib import Path

import click

from raftlog.cli import chaos_output, options, output
from raftlog.cli.chaos_output import STATUSES


@click.command()
@click.option(
    "--time",
    "time_s",
    type=float,
    default=3_600,
    show_default=True,
    help="Seconds to begin runs in.",
)
@click.option(
    "--run-time",
    "run_s",
    type=float,
    default=120,
    show_default=True,
    help="Load of a run, seconds.",
)
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="At once.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the first run.")
@click.option(
    "--report",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("chaos-campaign"),
    show_default=True,
    help="Everything goes there; campaign.md has a line for each run.",
)
@options.as_json
@click.pass_context
def campaign(
    context: click.Context,
    time_s: float,
    run_s: float,
    jobs: int,
    seed: int,
    directory: Path,
    as_json: bool,
) -> None:
    """Make run after run, with mixes of all kinds of fault in turn, and sum them up.

    Exit status: 0 if all were valid, 1 if any had an anomaly, else 3.

    \b
    Example:
      raftlog chaos campaign --time 3600 --jobs 2 --seed 100
    """
    with chaos_output.failing_as_unknown():
        from raftlog.jepsen_like.campaign import CampaignOptions, table
        from raftlog.jepsen_like.campaign import campaign as make_runs

        rows = make_runs(
            CampaignOptions(
                directory=directory,
                time_s=time_s,
                run_s=run_s,
                jobs=jobs,
                seed=seed,
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
