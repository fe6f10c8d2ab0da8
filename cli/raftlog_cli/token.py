"""``raftlog token``: delegation tokens, which authenticate as their owner for a limited time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime

import click

from raftlog import Admin, limits
from raftlog.client import profiles
from raftlog_cli import options, output
from raftlog_cli.main import Commands
from raftlog_cli.options import Command


@click.group(cls=Commands)
def token() -> None:
    """Create, list, renew and remove delegation tokens.

    A token authenticates as the user that created it. It is valid until it expires or is removed,
    or until the password of the user changes. The commands require TLS and the credentials of a
    user.

    \b
    Example:
      raftlog token create --renewer User:spark --profile prod
    """


def _period(default: str) -> Callable[[Command], Command]:
    """Return the option ``--period-ms``."""
    return click.option(
        "--period-ms",
        type=click.IntRange(1, limits.DELEGATION_TOKEN_LIFETIME_MS_MAX),
        metavar="MS",
        help=f"Milliseconds from now until the token expires. Default: {default}.",
    )


def _time(time_ms: int) -> str:
    """Return milliseconds since 1970 as text in UTC."""
    return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(sep=" ", timespec="seconds")


def _report_expiry(token_id: str, expires_ms: int, *, as_json: bool) -> None:
    text = f"token {token_id} expires at {_time(expires_ms)}"
    output.report({"id": token_id, "expires_ms": expires_ms}, text, as_json=as_json)


@token.command()
@click.option(
    "--renewer",
    "renewers",
    multiple=True,
    metavar="PRINCIPAL",
    help="Another user that may renew the token, such as User:spark; may be repeated.",
)
@click.option(
    "--max-lifetime-ms",
    type=click.IntRange(1, limits.DELEGATION_TOKEN_LIFETIME_MS_MAX),
    metavar="MS",
    help="Maximum lifetime. Default and limit: delegation.token.max.lifetime.ms.",
)
@options.as_json
@options.bootstrap
def create(
    renewers: tuple[str, ...], max_lifetime_ms: int | None, as_json: bool, bootstrap: str
) -> None:
    """Create a token, and print its ID and secret as lines of a profile.

    The secret is printed only now: the cluster stores hashes of it.

    \b
    Example:
      raftlog token create --profile prod >> job.toml
    """
    with Admin(bootstrap) as admin:
        made = admin.create_token(renewers, max_lifetime_ms=max_lifetime_ms)
    if as_json:
        output.print_json({**asdict(made.token), "hmac": made.hmac})
        return
    output.note(f"token {made.token.id} of {made.token.owner} created")
    output.note(f"it expires at {_time(made.token.expires_ms)} unless it is renewed")
    values = {"sasl_username": made.token.id, "sasl_password": made.hmac, "sasl_token_auth": "true"}
    click.echo(profiles.dump(values), nl=False)


@token.command(name="list", short_help="List the tokens that the user owns or may renew, or all.")
@click.option(
    "--owner",
    "owners",
    multiple=True,
    metavar="PRINCIPAL",
    help="Only tokens of this user, such as User:alice; may be repeated.",
)
@options.wide
@options.as_json
@options.bootstrap
def list_(owners: tuple[str, ...], as_json: bool, bootstrap: str) -> None:
    """List the tokens that the user owns or may renew, or all with DESCRIBE on the cluster.

    \b
    Example:
      raftlog token list --owner User:alice
    """
    with Admin(bootstrap) as admin:
        found = admin.describe_tokens(owners or None)
    if as_json:
        output.print_json([asdict(each) for each in found])
        return
    rows = [
        (each.id, each.owner, ", ".join(each.renewers), _time(each.expires_ms), _time(each.max_ms))
        for each in found
    ]
    output.print_table(("id", "owner", "renewers", "expires", "renewable until"), rows)


@token.command()
@click.argument("token_id", metavar="ID")
@_period("delegation.token.expiry.time.ms of the brokers")
@options.as_json
@options.bootstrap
def renew(token_id: str, period_ms: int | None, as_json: bool, bootstrap: str) -> None:
    """Extend the validity of a token.

    \b
    Example:
      raftlog token renew 5f0c2a9be1d34c6f8a7b6c5d4e3f2a1b
    """
    with Admin(bootstrap) as admin:
        expires_ms = admin.renew_token(token_id, period_ms=period_ms)
    _report_expiry(token_id, expires_ms, as_json=as_json)


@token.command()
@click.argument("token_id", metavar="ID")
@_period("0")
@options.as_json
@options.bootstrap
def expire(token_id: str, period_ms: int | None, as_json: bool, bootstrap: str) -> None:
    """Remove a token, or set its expiry with --period-ms.

    Within a second after that, brokers close the connections that it has authenticated.

    \b
    Example:
      raftlog token expire 5f0c2a9be1d34c6f8a7b6c5d4e3f2a1b
    """
    with Admin(bootstrap) as admin:
        expires_ms = admin.expire_token(token_id, period_ms=period_ms)
    _report_expiry(token_id, expires_ms, as_json=as_json)
