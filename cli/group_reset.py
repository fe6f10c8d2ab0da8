"""``raftlog group reset``: a group without members goes on from another place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from raftlog import Admin
from raftlog.cli import group_plan, options, output
from raftlog.cli.offsets import GRAMMAR, Bound
from raftlog.client.group_descriptions import GroupDescription
from raftlog.errors import GroupNotEmptyError, UnknownGroupError
from raftlog.types import Offset, TopicPartition, check_group_id


@click.command()
@click.argument("name")
@click.option(
    "--to",
    metavar="OFFSETS",
    callback=lambda _context, _parameter, text: None if text is None else group_plan.parse_to(text),
    help="Where to go on; see above.",
)
@click.option("--shift", type=int, metavar="N", help="So many on from (or, -N, back from) there.")
@click.option(
    "--topic",
    "selections",
    multiple=True,
    metavar="TOPIC[:P,...]",
    callback=lambda _context, _parameter, texts: tuple(map(group_plan.parse_selection, texts)),
    help="Only these partitions; repeatable.  [default: all of the topics that it has read]",
)
@click.option("--all-topics", is_flag=True, help="All topics that it has read: the default.")
@click.option("--create", is_flag=True, help="Make the group if there is none; needs --topic.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@options.as_json
@options.bootstrap
def reset(
    name: str,
    to: Bound | None,
    shift: int | None,
    selections: Sequence[group_plan.Selection],
    all_topics: bool,
    create: bool,
    dry_run: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Set where a group without members goes on: stop its consumers first.

    \b
    OFFSETS:  earliest   the beginning of each partition
              latest     its end: only what comes from now on
              N          offset N
              -N  +N     N before the end, N after the beginning (as in `raftlog tail`)
              @TIME      the first record at or after TIME, else the end
    TIME:     ISO 8601 (UTC unless it says), milliseconds since 1970, or relative: -2h, -1h30m

    An offset that a partition does not have is refused, and then nothing is changed.

    \b
    Example:
      raftlog group reset billing --to @-2h --topic clicks --dry-run
    """
    check_group_id(name)
    if (to is None) == (shift is None):
        raise click.UsageError(f"give one of --to OFFSETS ({GRAMMAR}) and --shift N")
    if all_topics and selections:
        raise click.UsageError("--all-topics does not go with --topic")
    if create and not selections:
        raise click.UsageError("--create needs --topic: a new group has read none")
    with Admin(bootstrap) as admin:
        known = _describe(admin, name, create=create)
        if known is not None and known.members and not dry_run:
            raise GroupNotEmptyError(_in_use(known))
        old = {} if known is None else _committed(known)
        chosen = group_plan.choose(admin, name, old, selections, only_committed=shift is not None)
        new = (
            group_plan.shifted(old, chosen, shift)
            if shift is not None
            else group_plan.places(admin, chosen, to)
        )
        group_plan.check_in_range(new, chosen)
        if not dry_run:
            admin.alter_group_offsets(name, new)
    _print(name, old, new, dry_run=dry_run, as_json=as_json)
    if dry_run and known is not None and known.members:
        output.note(_in_use(known))


def _describe(admin: Admin, name: str, *, create: bool) -> GroupDescription | None:
    try:
        return admin.describe_groups([name])[0]
    except UnknownGroupError as error:
        if create:
            return None
        raise UnknownGroupError(f"{error}; --create makes it") from error


def _in_use(group: GroupDescription) -> str:
    return (
        f"group {group.group!r} has members ({len(group.members)}): stop its consumers "
        f"before it is reset (`raftlog group describe {group.group} --members` shows them)"
    )


def _committed(group: GroupDescription) -> dict[TopicPartition, Offset]:
    return {
        TopicPartition(part.topic, part.partition): part.offset
        for part in group.partitions
        if part.offset is not None
    }


def _print(
    name: str,
    old: Mapping[TopicPartition, Offset],
    new: Mapping[TopicPartition, Offset],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    if as_json:
        rows: list[dict[str, Any]] = [
            {**tp._asdict(), "old": old.get(tp), "new": offset} for tp, offset in new.items()
        ]
        output.print_json({"group": name, "dry_run": dry_run, "offsets": rows})
        return
    output.print_table(
        ("topic", "partition", "old", "new", "change"),
        [
            (*tp, old.get(tp, "-"), offset, f"{offset - old[tp]:+d}" if tp in old else "-")
            for tp, offset in new.items()
        ],
    )
    if dry_run:
        click.echo("dry run: nothing was changed")
