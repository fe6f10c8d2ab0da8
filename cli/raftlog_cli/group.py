"""``raftlog group``: list, describe, reset and delete consumer groups."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final, NamedTuple

import click

from raftlog import Admin
from raftlog.client.administration.groups import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    PartitionLag,
)
from raftlog.clock import SystemClock
from raftlog.errors import (
    GroupNotEmptyError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RaftlogError,
    UnknownGroupError,
    UnknownPartitionError,
    UnknownTopicError,
    counted,
)
from raftlog.types import Offset, TopicPartition, check_group_id
from raftlog_cli import completing, options, output
from raftlog_cli.main import Commands
from raftlog_cli.options import GRAMMAR, Bound, Extent, parse_offsets, resolve_all

WATCH_INTERVAL_S: Final = 2.0
GROUPS_PER_REQUEST: Final = 100  # described before the results are combined
STATES: Final = (
    *("empty", "reconciling", "stable"),
    *("preparing_rebalance", "completing_rebalance"),
)


@click.group(cls=Commands)
def group() -> None:
    """List, describe, reset and delete consumer groups.

    \b
    Example:
      raftlog group describe billing
    """


@group.command(name="list", short_help="List consumer groups with state, members and lag.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES),
    help="List only groups in this state; repeatable.",
)
@options.quiet
@options.wide
@options.as_json
@options.bootstrap
def list_groups(states: Sequence[str], quiet: bool, as_json: bool, bootstrap: str) -> None:
    """List all consumer groups with their state, number of members and lag.

    \b
    empty        no members; the offsets expire later
    reconciling  some members release partitions, or wait for them
    stable       every member has its target assignment

    \b
    Groups of type classic have Kafka clients with group.protocol=classic:
    preparing_rebalance   the coordinator waits for members to join
    completing_rebalance  the coordinator waits for the assignment of the group leader

    The lag is the sum over all partitions. "?" stands for partitions whose lag is unknown, for
    example because they have no committed offset.

    \b
    Example:
      raftlog group list --state empty
    """
    with Admin(bootstrap) as admin:
        found = [row for row in admin.list_groups() if not states or row.state in states]
        described = {} if quiet else describe_listed(admin, found)
    if as_json:
        rows = [listing_to_json(row, described.get(row.group)) for row in found]
        output.print_json([row.group for row in found] if quiet else rows)
    elif quiet:
        for row in found:
            click.echo(row.group)
    else:
        rows_ = [group_row(row, described.get(row.group)) for row in found]
        output.print_table(GROUP_COLUMNS, rows_)


def describe_listed(admin: Admin, listed: Sequence[GroupListing]) -> dict[str, GroupDescription]:
    """Describe groups, by name, without those that were deleted or whose coordinator failed."""
    described: dict[str, GroupDescription] = {}
    for start in range(0, len(listed), GROUPS_PER_REQUEST):
        names = [row.group for row in listed[start : start + GROUPS_PER_REQUEST]]
        try:
            found = admin.describe_groups(names)
        except RaftlogError:
            found = [each for name in names for each in _described(admin, name)]
        described.update({each.group: each for each in found})
    return described


def _described(admin: Admin, name: str) -> list[GroupDescription]:
    with suppress(RaftlogError):
        return admin.describe_groups([name])
    return []


@group.command(short_help="Show the members of a group, their partitions and the lag.")
@click.argument("name", shell_complete=completing.groups)
@click.option("--members", is_flag=True, help="Print only the members and their partitions.")
@click.option(
    "--offsets", is_flag=True, help="Print only the offsets and the lag of each partition."
)
@click.option("--watch", is_flag=True, help="Repeat every 2 seconds until interrupted.")
@options.wide
@options.as_json
@options.bootstrap
def describe(
    name: str, members: bool, offsets: bool, watch: bool, as_json: bool, bootstrap: str
) -> None:
    """Show the members of a group, their partitions, and the lag of each partition.

    \b
    committed  offset of the next record; - if there is no committed offset
    lag        number of offsets from there to the end
    lag (s)    age of the first uncommitted record in seconds; - if unknown
    member     the member that reads the partition; - for none
    changes    partitions that a member receives (+) and releases (-)

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
                output.note_error(error)
            else:
                output.clear()
                _print_group(described, as_json=as_json, **chosen)


def _print_group(
    described: GroupDescription, *, members: bool, partitions: bool, as_json: bool
) -> None:
    if as_json:
        output.print_json(group_to_json(described, members=members, partitions=partitions))
        return
    click.echo(summary(described))
    if members and described.members:
        rows = [member_row(member) for member in described.members]
        output.print_table(MEMBER_COLUMNS, rows, drop=("epoch", "host", "client", "instance"))
    if partitions and described.partitions:
        rows = [partition_row(part) for part in described.partitions]
        output.print_table(
            PARTITION_COLUMNS,
            rows,
            if_set=("metadata", "problem"),
            drop=("metadata", "start", "member", "end"),
            prose="problem",
        )


@group.command(short_help="Delete groups without members, and their offsets.")
@click.argument(
    "names", metavar="NAME...", nargs=-1, required=True, shell_complete=completing.groups
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    shell_complete=completing.topics,
    help="Delete only the committed offsets of this topic.",
)
@options.as_json
@options.bootstrap
def delete(names: Sequence[str], topics: Sequence[str], as_json: bool, bootstrap: str) -> None:
    """Delete groups without members, and their offsets, without confirmation.

    The command rejects a group with members: stop its consumers first. With --topic, only the
    committed offsets of that topic are deleted.

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
        raise UnknownTopicError(f"group {name!r} has no committed offsets of {min(missing)!r}")
    admin.delete_group_offsets(name, partitions)
    return {"group": name, "partitions": [tp._asdict() for tp in partitions]}


def _what(deleted: dict[str, Any]) -> str:
    if "partitions" not in deleted:
        return str(deleted["group"])
    return f"{counted(len(deleted['partitions']), 'offset')} of {deleted['group']}"


# -- descriptions as JSON and as rows ----------------------------------------------


NOTHING: Final = "-"
UNKNOWN: Final = "?"

GROUP_COLUMNS: Final = ("group", "state", "members", "lag", "type", "coordinator")
MEMBER_COLUMNS: Final = (
    *("member", "instance", "client", "host", "epoch", "partitions", "changes"),
)
PARTITION_COLUMNS: Final = (
    *("topic", "partition", "committed", "start", "end", "lag", "lag (s)", "member"),
    *("metadata", "problem"),
)


def summary(group: GroupDescription) -> str:
    """Return the group in one line."""
    parts = [
        group.group,
        group.state,
        counted(len(group.members), "member"),
        f"lag {group.lag}",
    ]
    if group.lag_seconds is not None:
        parts[-1] += f" ({seconds(group.lag_seconds)} s)"
    if group.unknown_lags:
        parts[-1] += f", unknown of {group.unknown_lags}"
    parts += [f"epoch {group.group_epoch}", f"coordinator {group.coordinator}"]
    parts.append(f"type {group.type}")
    return "  ".join([*parts, f"assignor {group.assignor}"] if group.assignor else parts)


def group_to_json(
    group: GroupDescription, *, members: bool = True, partitions: bool = True
) -> dict[str, Any]:
    """Return the group for JSON. ``members``, ``partitions``: include them."""
    value: dict[str, Any] = {
        "group": group.group,
        "type": group.type,
        "state": group.state,
        "group_epoch": group.group_epoch,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "lag": group.lag,
        "lag_seconds": group.lag_seconds,
        "unknown_lags": group.unknown_lags,
    }
    if members:
        value["members"] = [
            {
                **asdict(member),
                "assigned": [tp._asdict() for tp in member.assigned],
                "target": [tp._asdict() for tp in member.target],
            }
            for member in group.members
        ]
    if partitions:
        value["partitions"] = [asdict(partition) for partition in group.partitions]
    return value


def group_row(group: GroupListing, described: GroupDescription | None) -> tuple[Any, ...]:
    lag = UNKNOWN if described is None else total_lag(described)
    return group.group, group.state, group.members, lag, group.type, group.coordinator


def total_lag(group: GroupDescription) -> str:
    """Return the lag of a group as a table cell, such as ``12 + ?`` if some lags are unknown."""
    if group.unknown_lags == len(group.partitions) > 0:
        return UNKNOWN
    return f"{group.lag} + {UNKNOWN}" if group.unknown_lags else str(group.lag)


def listing_to_json(group: GroupListing, described: GroupDescription | None) -> dict[str, Any]:
    """Return a group of a list for JSON. ``described``: None if its lag is not known."""
    known = None if described is None else described.lag
    return {
        **asdict(group),
        "lag": known,
        "lag_seconds": None if described is None else described.lag_seconds,
        "unknown_lags": None if described is None else described.unknown_lags,
    }


def member_row(member: MemberDescription) -> tuple[Any, ...]:
    return (
        member.member_id,
        f"{member.instance_id or NOTHING}{' (away)' if member.is_away else ''}",
        member.client_id or NOTHING,
        member.host or NOTHING,
        member.member_epoch,
        partition_ranges(member.assigned) or NOTHING,
        changes(member) or NOTHING,
    )


def changes(member: MemberDescription) -> str:
    """Return the partitions that the member receives (+) and releases (-)."""
    coming = partition_ranges(sorted({*member.target} - {*member.assigned}))
    going = partition_ranges(sorted({*member.assigned} - {*member.target}))
    return " ".join([*(f"+{part}" for part in coming.split()), *(f"-{p}" for p in going.split())])


def partition_ranges(found: Iterable[TopicPartition]) -> str:
    """Return sorted partitions in a short form, such as ``clicks:0-3,7 views:0``."""
    return " ".join(
        f"{topic}:{ranges([tp.partition for tp in of_topic])}"
        for topic, of_topic in groupby(found, key=lambda tp: tp.topic)
    )


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers in a short form, such as ``0-3,7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def partition_row(part: PartitionLag) -> tuple[Any, ...]:
    return (
        part.topic,
        part.partition,
        _or_nothing(part.offset),
        _or_nothing(part.log_start_offset),
        _or_nothing(part.log_end_offset),
        _or_nothing(part.lag),
        NOTHING if part.lag_seconds is None else seconds(part.lag_seconds),
        part.member_id or NOTHING,
        part.metadata,
        part.problem,
    )


def _or_nothing(number: int | None) -> Any:
    return NOTHING if number is None or number < 0 else number


def seconds(number: float) -> str:
    """Return seconds with one decimal below 60, without decimals from 60 on."""
    return f"{number:.1f}" if 0 < number < 60 else f"{number:.0f}"


# -- partitions to reset, and their new offsets ----------------------------------------------------


NAMED_MAX: Final = 5  # partitions in one line of an error


class Selection(NamedTuple):
    """Partitions of a topic. None: all partitions."""

    topic: str
    partitions: tuple[int, ...] | None = None


def parse_to(text: str) -> Bound:
    """Parse one offset of the OFFSETS grammar. Raises ``ValueError`` for a range."""
    try:
        offsets = parse_offsets(text, now_ms=SystemClock().wall_ms())
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if offsets.stop is not None:
        raise click.BadParameter(
            f"{text!r} is a range. A group continues from one offset: pass only the start"
        )
    return offsets.start


def parse_selection(text: str) -> Selection:
    """Parse ``TOPIC``, ``TOPIC:P`` or ``TOPIC:P,P``."""
    topic, colon, rest = text.partition(":")
    numbers = rest.split(",")
    if not topic or (colon and not all(n.isascii() and n.isdecimal() for n in numbers)):
        raise click.BadParameter(f"{text!r} is not TOPIC or TOPIC:P[,P], as in clicks:0,3")
    return Selection(topic, tuple(sorted({*map(int, numbers)})) if colon else None)


def choose(
    admin: Admin,
    name: str,
    old: Mapping[TopicPartition, Offset],
    selections: Sequence[Selection],
    *,
    only_committed: bool,
) -> dict[TopicPartition, Extent]:
    """Return the partitions to reset, with their current offsets."""
    selections = selections or [Selection(topic) for topic in sorted({tp.topic for tp in old})]
    if not selections:
        raise InvalidRequestError(f"group {name!r} has no committed offsets. Add --topic")
    chosen: dict[TopicPartition, Extent] = {}
    for topic, wanted in selections:
        begins, ends = admin.offsets(topic, "earliest"), admin.offsets(topic, "latest")
        for number in sorted(begins) if wanted is None else wanted:
            tp, begin, end = TopicPartition(topic, number), begins.get(number), ends.get(number)
            if begin is None or end is None:
                raise UnknownPartitionError(
                    f"{topic} has no partition {number}: it has 0 to {len(begins) - 1}"
                )
            if tp in old or not only_committed or wanted is not None:
                chosen[tp] = Extent(begin, end)
    uncommitted = [tp for tp in chosen if tp not in old]
    if only_committed and (uncommitted or not chosen):
        where = uncommitted[0] if uncommitted else ", ".join(topic for topic, _ in selections)
        raise InvalidRequestError(
            f"group {name!r} has no committed offset for {where} that can be shifted. Use --to"
        )
    return chosen


def places(
    admin: Admin, chosen: Mapping[TopicPartition, Extent], to: Bound | None
) -> dict[TopicPartition, Offset]:
    assert to is not None, "either --to or --shift is set"
    return resolve_all(to, chosen, admin.list_offsets)


def shifted(
    old: Mapping[TopicPartition, Offset], chosen: Mapping[TopicPartition, Extent], shift: int
) -> dict[TopicPartition, Offset]:
    return {tp: old[tp] + shift for tp in chosen}


def check_in_range(
    new: Mapping[TopicPartition, Offset], chosen: Mapping[TopicPartition, Extent]
) -> None:
    bad = [tp for tp, at in chosen.items() if not at.beginning <= new[tp] <= at.end]
    if bad:
        named = ", ".join(
            f"{tp} has {chosen[tp].beginning} to {chosen[tp].end}, not {new[tp]}"
            for tp in bad[:NAMED_MAX]
        )
        more = f", and {len(bad) - NAMED_MAX} more" if len(bad) > NAMED_MAX else ""
        raise OffsetOutOfRangeError(f"out of range: {named}{more}; nothing was changed")


# -- reset -----------------------------------------------------------------------------------------


@group.command()
@click.argument("name", shell_complete=completing.groups)
@click.option(
    "--to",
    metavar="OFFSETS",
    callback=lambda _context, _parameter, text: None if text is None else parse_to(text),
    help="New committed offset; see above.",
)
@click.option(
    "--shift", type=int, metavar="N", help="Add N to each committed offset. N can be negative."
)
@click.option(
    "--topic",
    "selections",
    multiple=True,
    metavar="TOPIC[:P,...]",
    shell_complete=completing.topics,
    callback=lambda _context, _parameter, texts: tuple(map(parse_selection, texts)),
    help="Reset only these partitions; repeatable.  [default: all of --all-topics]",
)
@click.option(
    "--all-topics",
    is_flag=True,
    help="Reset all partitions of topics with committed offsets (default).",
)
@click.option(
    "--create", is_flag=True, help="Create the group if it does not exist; needs --topic."
)
@click.option("--execute", is_flag=True, help="Change the offsets; without it, only print them.")
@click.option("--dry-run", is_flag=True, help="Change nothing (default).")
@options.wide
@options.as_json
@options.bootstrap
def reset(
    name: str,
    to: Bound | None,
    shift: int | None,
    selections: Sequence[Selection],
    all_topics: bool,
    create: bool,
    execute: bool,
    dry_run: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Set the committed offsets of a group without members.

    Without --execute, the command prints the changes, and changes nothing. Stop the consumers of
    the group before you add --execute.

    \b
    OFFSETS:  earliest   the beginning of each partition
              latest     its end: only new records
              N          offset N
              -N  +N     N before the end, N after the beginning (as in `raftlog tail`)
              @TIME      the first record at or after TIME, else the end
    TIME:     ISO 8601 (default: UTC), milliseconds since 1970, or relative: -2h, -1h30m

    If a partition does not have an offset, the command fails and changes nothing.

    \b
    Example:
      raftlog group reset billing --to @-2h --topic clicks
      raftlog group reset billing --to @-2h --topic clicks --execute
    """
    check_group_id(name)
    if (to is None) == (shift is None):
        raise click.UsageError(f"pass either --to OFFSETS ({GRAMMAR}) or --shift N")
    if all_topics and selections:
        raise click.UsageError("--all-topics cannot be combined with --topic")
    if create and not selections:
        raise click.UsageError("--create requires --topic: a new group has no committed offsets")
    if execute and dry_run:
        raise click.UsageError("--execute cannot be combined with --dry-run")
    with Admin(bootstrap) as admin:
        known = _describe(admin, name, create=create)
        if known is not None and known.members and execute:
            raise GroupNotEmptyError(_in_use(known))
        old = {} if known is None else committed_offsets(known)
        chosen = choose(admin, name, old, selections, only_committed=shift is not None)
        new = shifted(old, chosen, shift) if shift is not None else places(admin, chosen, to)
        check_in_range(new, chosen)
        if execute:
            admin.alter_group_offsets(name, new, expected=old)
    _print(name, old, new, dry_run=not execute, as_json=as_json)
    if not execute and known is not None and known.members:
        output.note(_in_use(known))


def _describe(admin: Admin, name: str, *, create: bool) -> GroupDescription | None:
    try:
        return admin.describe_groups([name])[0]
    except UnknownGroupError as error:
        if create:
            return None
        raise UnknownGroupError(f"{error}. Add --create to create it") from error


def _in_use(group: GroupDescription) -> str:
    members = counted(len(group.members), "member")
    return (
        f"group {group.group!r} has {members}. Stop its consumers first: "
        f"`raftlog group describe {group.group} --members` lists them"
    )


def committed_offsets(group: GroupDescription) -> dict[TopicPartition, Offset]:
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
        click.echo("preview: nothing was changed. Add --execute to change the offsets")
