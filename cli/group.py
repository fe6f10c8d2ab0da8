"""``raftlog group``: consumer groups are listed, looked at, put back and deleted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from raftlog import Admin
from raftlog.cli import group_rows, options, output
from raftlog.cli.group_reset import reset
from raftlog.client.group_descriptions import GroupDescription
from raftlog.errors import RaftlogError, UnknownTopicError
from raftlog.types import check_group_id

WATCH_INTERVAL_S: Final = 2.0
STATES: Final = ("empty", "reconciling", "stable")


@click.group()
def group() -> None:
    """Look at consumer groups and their lag, move their offsets, delete them.

    \b
    Example:
      raftlog group describe billing
    """


@group.command(name="list")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="Only these; repeatable."
)
@options.as_json
@options.bootstrap
def list_groups(states: Sequence[str], as_json: bool, bootstrap: str) -> None:
    """List all consumer groups: their state, and how many members they have.

    \b
    empty        no members; the offsets are kept for a while
    reconciling  some members still give partitions up, or wait for them
    stable       every member has what it is to have

    \b
    Example:
      raftlog group list --state empty
    """
    with Admin(bootstrap) as admin:
        found = [row for row in admin.list_groups() if not states or row.state in states]
    if as_json:
        output.print_json([asdict(row) for row in found])
        return
    output.print_table(group_rows.GROUP_COLUMNS, [group_rows.group_row(row) for row in found])


@group.command()
@click.argument("name")
@click.option("--members", is_flag=True, help="Only the members, and what each of them reads.")
@click.option("--offsets", is_flag=True, help="Only the offsets and the lag of each partition.")
@click.option("--watch", is_flag=True, help="Look again every 2 seconds, until interrupted.")
@options.as_json
@options.bootstrap
def describe(
    name: str, members: bool, offsets: bool, watch: bool, as_json: bool, bootstrap: str
) -> None:
    """Show a group's members, what they read, and how far behind each partition is.

    \b
    committed  where the group goes on; - where it has committed nothing
    lag        how many offsets are left from there to the end
    lag (s)    the age of the first record that is left, in seconds; - if unknown
    member     who reads the partition; - for nobody
    changes    what a member is still to get (+) and to give up (-)

    \b
    Example:
      raftlog group describe billing --offsets --watch
    """
    check_group_id(name)
    chosen = {"members": members or not offsets, "partitions": offsets or not members}
    with Admin(bootstrap) as admin:
        _print_group(admin.describe_groups([name])[0], as_json=as_json, **chosen)
        while watch:
            time.sleep(WATCH_INTERVAL_S)
            try:
                (described,) = admin.describe_groups([name])
            except RaftlogError as error:
                output.note(f"raftlog: {error}")
            else:
                output.clear()
                _print_group(described, as_json=as_json, **chosen)


def _print_group(
    described: GroupDescription, *, members: bool, partitions: bool, as_json: bool
) -> None:
    if as_json:
        output.print_json(group_rows.as_json(described, members=members, partitions=partitions))
        return
    click.echo(group_rows.summary(described))
    if members and described.members:
        rows = [group_rows.member_row(member) for member in described.members]
        output.print_table(group_rows.MEMBER_COLUMNS, rows)
    if partitions and described.partitions:
        rows = [group_rows.partition_row(part) for part in described.partitions]
        output.print_table(group_rows.PARTITION_COLUMNS, rows)


@group.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC", help="Only its offsets of this topic."
)
@options.as_json
@options.bootstrap
def delete(names: Sequence[str], topics: Sequence[str], as_json: bool, bootstrap: str) -> None:
    """Delete groups without members, with their offsets; nothing is asked.

    A group that is still in use is refused: stop its consumers first. With --topic, the groups
    stay, and forget only what they have committed for that topic.

    \b
    Example:
      raftlog group delete billing-old billing-test
    """
    for name in names:
        check_group_id(name)
    failures: list[RaftlogError] = []
    deleted: list[dict[str, Any]] = []
    with Admin(bootstrap) as admin:
        for name in dict.fromkeys(names):
            try:
                found = _delete(admin, name, topics)
            except RaftlogError as error:
                failures.append(error)
                continue
            deleted.append(found)
            if not as_json:
                click.echo(f"deleted {_what(found)}")
    if as_json:
        output.print_json(deleted)
    for failure in failures[1:]:
        output.note(f"raftlog: {failure}")
    if failures:
        raise failures[0]


def _delete(admin: Admin, name: str, topics: Sequence[str]) -> dict[str, Any]:
    if not topics:
        admin.delete_groups([name])
        return {"group": name, "deleted": True}
    partitions = [tp for tp in admin.group_offsets(name) if tp.topic in topics]
    missing = {*topics} - {tp.topic for tp in partitions}
    if missing:
        raise UnknownTopicError(f"group {name!r} has committed nothing for topic {min(missing)!r}")
    admin.delete_group_offsets(name, partitions)
    return {"group": name, "partitions": [tp._asdict() for tp in partitions]}


def _what(deleted: dict[str, Any]) -> str:
    if "partitions" not in deleted:
        return str(deleted["group"])
    return f"{len(deleted['partitions'])} offsets of {deleted['group']}"


group.add_command(reset)
