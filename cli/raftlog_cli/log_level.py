"""``raftlog cluster log-level``: show and change the log levels of running brokers."""

from __future__ import annotations

from typing import Any

import click

from raftlog import Admin
from raftlog.config.broker_keys import LOGGING_LEVELS
from raftlog.errors import InvalidRequestError
from raftlog_cli import completing, options, output

INHERIT = "default"


@click.command("log-level")
@click.argument("logger", required=False)
@click.argument("level", required=False, type=click.Choice([*LOGGING_LEVELS, INHERIT]))
@click.option(
    "--broker",
    type=click.IntRange(min=0),
    shell_complete=completing.brokers,
    help="Only this broker.  [default: all that respond]",
)
@options.wide
@options.as_json
@options.cluster_secret_file
@options.bootstrap
def log_level(
    logger: str | None,
    level: str | None,
    broker: int | None,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
) -> None:
    """Show or change the log levels of running brokers.

    The change lasts until the broker stops. logging.level in its configuration is permanent.

    LOGGER is a logger in a log line, such as raftlog.server.connection, or a parent of it, such as
    raftlog.server or "root". LEVEL applies to LOGGER and to its children without a level; "default"
    removes the level. Without LEVEL, the command shows LOGGER and its children. Without LOGGER, it
    shows all loggers with a level.

    \b
    Example:
      raftlog cluster log-level raftlog.server.cluster debug --broker 2
      raftlog cluster log-level raftlog.server.cluster default
    """
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        if broker is not None:
            brokers = [broker]
        else:
            described = admin.describe_cluster(partitions=False).brokers
            brokers = [each.id for each in described if each.live]
            for each in described:
                if not each.live:
                    output.note(f"raftlog: broker {each.id} is omitted: {each.problem}")
        if logger is not None and level is not None:
            changes = {logger: None if level == INHERIT else level}
            for number in brokers:
                admin.alter_log_levels(number, changes)
        rows = [row for number in brokers for row in _rows(admin, number, logger)]
    if not rows:
        raise InvalidRequestError(f"no broker has a logger {logger!r}")
    if as_json:
        output.print_json(rows)
        return
    output.print_table(
        ("broker", "logger", "level"),
        [(row["broker"], row["logger"], row["level"]) for row in rows],
    )


def _rows(admin: Admin, broker: int, logger: str | None) -> list[dict[str, Any]]:
    """Return the loggers to show: those with a level, or ``logger`` and its children."""
    return [
        {"broker": broker, "logger": name, "level": found.level, "own": found.is_own}
        for name, found in admin.describe_log_levels(broker).items()
        if (found.is_own if logger is None else f"{name}.".startswith(f"{logger}."))
    ]
