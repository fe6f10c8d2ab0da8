"""The options of ``raftlog chaos run``, and how they become what the runner takes."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from raftlog.jepsen_like.drawing import RunOptions

Command = TypeVar("Command", bound=Callable[..., Any])
SEED_BITS: Final = 32
NEMESES_DEFAULT: Final = "kill,pause,partition"

_OPTIONS: Final = (
    click.option(
        "--workload",
        default="append",
        show_default=True,
        help="What clients do: append, replay (whole topics read again and again, from leaders and "
        "followers), admin (topics come and go meanwhile), offsets (consumers commit how far they "
        "are), groups (members of consumer groups, which --nemesis members harms), compact (topics "
        "that keep the last record of each key).",
    ),
    click.option(
        "--nemesis",
        "nemeses",
        default=NEMESES_DEFAULT,
        show_default=True,
        metavar="KIND,...",
        help="Kinds of fault, or names of several: see --list; 'none' for none.",
    ),
    click.option(
        "--time", "time_s", type=float, default=60, show_default=True, help="Seconds of load."
    ),
    click.option(
        "--seed", type=int, help="The same seed draws the same plan.  [default: a new one]"
    ),
    click.option(
        "--report",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
        help="A new or empty directory for all of the run.  [default: chaos-SEED]",
    ),
    click.option("--brokers", type=int, default=3, show_default=True, help="How many: 1 to 9."),
    click.option(
        "--rate",
        type=click.FloatRange(min=0, min_open=True),
        help="Records per second of all producers together.  [default: drawn from the seed]",
    ),
    click.option("--pairs", is_flag=True, help="Two kinds of fault at a time."),
    click.option(
        "--bootstrap",
        metavar="HOST:PORT[,...]",
        help="A cluster that runs already, instead of starting one; needs --control for faults.",
    ),
    click.option(
        "--control",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="The program that kills, starts, pauses and resumes a broker of that cluster.",
    ),
    click.option(
        "--source",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="A directory with another raftlog package: brokers run that one.",
    ),
    click.option(
        "--without-root", is_flag=True, help="No namespaces and no loop devices, even as root."
    ),
    click.option("--list", "kinds", is_flag=True, help="List the kinds of fault, and exit."),
    click.option("--quiet", "-q", is_flag=True, help="Say nothing before the verdict."),
)


def of_a_run(command: Command) -> Command:
    """All options of ``raftlog chaos run``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def checked(*, nemeses: str, seed: int | None, directory: Path | None, **others: Any) -> RunOptions:
    """What the runner takes. Raises ``UsageError`` for options that make no sense together."""
    from raftlog.jepsen_like.drawing import RunOptions, draw_plan

    seed = secrets.randbits(SEED_BITS) if seed is None else seed
    if others["control"] is not None and others["bootstrap"] is None:
        raise click.UsageError("--control is for a cluster that runs already: give --bootstrap too")
    if others["source"] is not None and others["bootstrap"] is not None:
        raise click.UsageError("--source is for brokers that are started here, not for --bootstrap")
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
        draw_plan(made)  # the runner does it again; what is wrong has to be told as wrong usage
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return made


def _unused(name: str) -> Path:
    """A directory of this name, or of the name and a number, that is not there yet."""
    number, path = 1, Path(name)
    while path.exists():
        number += 1
        path = Path(f"{name}-{number}")
    return path


def enter_sandbox() -> str:
    """Run this command again in namespaces of its own: does not return, unless it is there already.

    Otherwise why it cannot have them.
    """
    from raftlog.jepsen_like.control import sandbox

    if sandbox.is_inside():
        return ""
    why_not = sandbox.why_not()
    if not why_not:
        sandbox.enter([sys.executable, "-m", "raftlog", *sys.argv[1:]])
    return why_not
