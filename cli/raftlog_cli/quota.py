"""``raftlog quota``: set, list and delete quotas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click
from msgspec.structs import asdict

from raftlog import Admin
from raftlog.security.quota import DEFAULT, QuotaEntity, QuotaKey
from raftlog_cli import options, output
from raftlog_cli.main import Commands

Command = TypeVar("Command", bound=Callable[..., Any])

# Option, key and help text of each limit.
LIMITS: Final[Mapping[str, tuple[QuotaKey, str]]] = {
    "produce-bytes": ("producer_byte_rate", "Bytes per second that producers send, such as 10MB."),
    "fetch-bytes": ("consumer_byte_rate", "Bytes per second that consumers read."),
    "request-percent": ("request_percentage", "Percent of a broker's time for requests."),
    "connections": ("connections", "Open connections of a user to a broker."),
    "connection-rate": ("connection_creation_rate", "New connections per second from an address."),
}


@click.group(cls=Commands)
def quota() -> None:
    """Set, list and delete quotas.

    \b
    Example:
      raftlog quota set --user alice --produce-bytes 1MB
    """


def entity_options(command: Command) -> Command:
    """Add ``--user``, ``--client-id``, ``--address`` and ``--default``."""
    for name, metavar, text in reversed(
        (
            ("--user", "NAME", f"Quota of a user; {DEFAULT}: each user without a quota."),
            (
                "--client-id",
                "ID",
                f"Quota of a client ID, or with --user of its client; {DEFAULT}: each other one.",
            ),
            (
                "--address",
                "IP",
                f"Quota of an IP address; {DEFAULT}: each address without a quota.",
            ),
        )
    ):
        command = click.option(name, metavar=metavar, help=text)(command)
    return click.option("--default", is_flag=True, help=f"Short for --user '{DEFAULT}'.")(command)


def entity_of(
    user: str | None, client_id: str | None, address: str | None, *, default: bool
) -> QuotaEntity:
    """Return the entity of the options."""
    if default and user is not None:
        raise click.UsageError("pass --user or --default, not both")
    entity = QuotaEntity(DEFAULT if default else user, client_id, address)
    if entity == QuotaEntity():
        raise click.UsageError("pass --user, --client-id, --address or --default")
    return entity


def limit_options(command: Command) -> Command:
    """Add an option for each limit."""
    for name, (_, text) in reversed(list(LIMITS.items())):
        kind: dict[str, Any] = {"type": options.FiniteRange(min=0, min_open=True)}
        if name.endswith("-bytes"):
            kind = {"metavar": "SIZE", "callback": options.parsed(options.size_in_bytes)}
        command = click.option(f"--{name}", help=text, **kind)(command)
    return command


@quota.command(name="set")
@entity_options
@limit_options
@options.as_json
@options.cluster_secret_file
@options.bootstrap
def set_quota(
    user: str | None,
    client_id: str | None,
    address: str | None,
    default: bool,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
    **limits: float | None,
) -> None:
    """Set limits of a user, a client ID or an address. Its other limits are kept.

    Brokers throttle a client that exceeds its quota. Each broker enforces the limits separately.
    The most specific quota applies: that of user and client ID, of the user, or of the client ID.

    \b
    Example:
      raftlog quota set --user alice --produce-bytes 1MB --fetch-bytes 5MB
      raftlog quota set --default --request-percent 20
      raftlog quota set --address '<default>' --connection-rate 10
    """
    changes = {
        key: value
        for name, (key, _) in LIMITS.items()
        if (value := limits[name.replace("-", "_")]) is not None
    }
    if not changes:
        raise click.UsageError(f"pass a limit: --{', --'.join(LIMITS)}")
    entity = entity_of(user, client_id, address, default=default)
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        admin.alter_quotas({entity: changes})
    output.report(
        {**asdict(entity), "limits": changes}, f"set the quota of {entity}", as_json=as_json
    )


@quota.command(name="list")
@options.wide
@options.as_json
@options.bootstrap
def list_quotas(as_json: bool, bootstrap: str) -> None:
    """List all quotas.

    \b
    Example:
      raftlog quota list
    """
    with Admin(bootstrap) as admin:
        found = admin.describe_quotas()
    if as_json:
        output.print_json(
            [{**asdict(entity), "limits": dict(limits)} for entity, limits in found.items()]
        )
        return
    names = {key: name for name, (key, _) in LIMITS.items()}
    output.print_table(
        ("user", "client id", "address", *names.values()),
        [
            (
                *(name or "" for name in (entity.user, entity.client_id, entity.address)),
                *(shown_limit(limits[key]) if key in limits else "" for key in names),
            )
            for entity, limits in found.items()
        ],
    )


def shown_limit(limit: float) -> str:
    """Return the number with separators and without trailing zeros."""
    return f"{limit:,.3f}".rstrip("0").rstrip(".")


@quota.command()
@entity_options
@options.as_json
@options.cluster_secret_file
@options.bootstrap
def delete(
    user: str | None,
    client_id: str | None,
    address: str | None,
    default: bool,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
) -> None:
    """Delete all limits of a user, a client ID or an address.

    \b
    Example:
      raftlog quota delete --user alice
    """
    entity = entity_of(user, client_id, address, default=default)
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        admin.alter_quotas({entity: dict.fromkeys(entity.keys)})
    output.report(asdict(entity), f"deleted the quota of {entity}", as_json=as_json)
