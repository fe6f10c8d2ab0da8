"""``raftlog user``: create, list and delete users, and change their passwords."""

from __future__ import annotations

import secrets
import sys
from dataclasses import asdict
from typing import Final

import click

from raftlog import Admin, limits
from raftlog_cli import options, output
from raftlog_cli.main import Commands

PASSWORD_BYTES: Final = 24  # random bytes of a created password


@click.group(cls=Commands)
def user() -> None:
    """Create, list and delete users, and change their passwords.

    The commands require the credentials of an administrator (--profile, --sasl-username) or the
    secret of the cluster (--cluster-secret-file).

    \b
    Example:
      raftlog user create alice
    """


def _password(from_stdin: bool) -> str:
    if not from_stdin:
        return secrets.token_urlsafe(PASSWORD_BYTES)
    text = sys.stdin.read(limits.PASSWORD_CHARS_MAX + 3)  # so that one that is too long remains so
    return text.removesuffix("\n").removesuffix("\r")


_password_stdin = click.option(
    "--password-stdin",
    is_flag=True,
    help="Read the password from standard input. Default: create one, and print it.",
)


def _report(name: str, password: str, *, from_stdin: bool, as_json: bool, what: str) -> None:
    """Print the result, with the password if it was created here."""
    if as_json:
        output.print_json({"user": name} if from_stdin else {"user": name, "password": password})
        return
    output.note(f"user {name} {what}")
    if not from_stdin:
        click.echo(password)


@user.command()
@click.argument("name")
@_password_stdin
@options.as_json
@options.secret_file
@options.bootstrap
def create(
    name: str,
    password_stdin: bool,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
) -> None:
    """Create a user, and print its password.

    The password is printed only now: the cluster stores a salted hash of it.

    \b
    Example:
      raftlog user create alice > alice.password
    """
    password = _password(password_stdin)
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        admin.create_user(name, password)
    _report(name, password, from_stdin=password_stdin, as_json=as_json, what="created")


@user.command()
@click.argument("name")
@_password_stdin
@options.as_json
@options.secret_file
@options.bootstrap
def rotate(
    name: str,
    password_stdin: bool,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
) -> None:
    """Set a new password of a user, and print it.

    Within a second, brokers close the connections that the former password has authenticated.

    \b
    Example:
      raftlog user rotate alice > alice.password
    """
    password = _password(password_stdin)
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        admin.rotate_user(name, password)
    _report(name, password, from_stdin=password_stdin, as_json=as_json, what="has a new password")


@user.command()
@click.argument("name")
@options.as_json
@options.secret_file
@options.bootstrap
def delete(name: str, as_json: bool, cluster_secret_file: str | None, bootstrap: str) -> None:
    """Delete a user. Within a second, brokers close its connections.

    \b
    Example:
      raftlog user delete alice
    """
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        admin.delete_user(name)
    output.report({"user": name, "deleted": True}, f"user {name} deleted", as_json=as_json)


@user.command(name="list")
@options.wide
@options.as_json
@options.secret_file
@options.bootstrap
def list_(as_json: bool, cluster_secret_file: str | None, bootstrap: str) -> None:
    """List the users.

    \b
    Example:
      raftlog user list
    """
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        users = admin.list_users()
    if as_json:
        output.print_json([asdict(each) for each in users])
        return
    rows = [(each.name, ", ".join(each.mechanisms)) for each in users]
    output.print_table(("user", "mechanisms"), rows)
