"""What a description of a consumer group comes to, as JSON and as rows of tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

from raftlog.client.group_descriptions import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    PartitionLag,
)
from raftlog.types import TopicPartition

NOTHING: Final = "-"

GROUP_COLUMNS: Final = ("group", "state", "members", "coordinator")
MEMBER_COLUMNS: Final = (
    *("member", "instance", "client", "host", "epoch", "partitions", "changes"),
)
PARTITION_COLUMNS: Final = (
    *("topic", "partition", "committed", "start", "end", "lag", "lag (s)", "member"),
    *("metadata", "problem"),
)


def summary(group: GroupDescription) -> str:
    """The group in one line."""
    members = f"{len(group.members)} member{'' if len(group.members) == 1 else 's'}"
    parts = [group.group, group.state, members, f"lag {group.lag}"]
    if group.lag_seconds is not None:
        parts[-1] += f" ({seconds(group.lag_seconds)} s)"
    if group.unknown_lags:
        parts[-1] += f", unknown of {group.unknown_lags}"
    parts += [f"epoch {group.group_epoch}", f"coordinator {group.coordinator}"]
    return "  ".join([*parts, f"assignor {group.assignor}"] if group.assignor else parts)


def as_json(
    group: GroupDescription, *, members: bool = True, partitions: bool = True
) -> dict[str, Any]:
    """The group for JSON; ``members`` and ``partitions``: whether those are in it."""
    value: dict[str, Any] = {
        "group": group.group,
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


def group_row(group: GroupListing) -> tuple[Any, ...]:
    return group.group, group.state, group.members, group.coordinator


def member_row(member: MemberDescription) -> tuple[Any, ...]:
    return (
        member.member_id,
        f"{member.instance_id or NOTHING}{' (away)' if member.is_away else ''}",
        member.client_id or NOTHING,
        member.host or NOTHING,
        member.member_epoch,
        partitions(member.assigned) or NOTHING,
        changes(member) or NOTHING,
    )


def changes(member: MemberDescription) -> str:
    """What the member is still to get (+) and to give up (-)."""
    coming = partitions(sorted({*member.target} - {*member.assigned}))
    going = partitions(sorted({*member.assigned} - {*member.target}))
    return " ".join([*(f"+{part}" for part in coming.split()), *(f"-{p}" for p in going.split())])


def partitions(found: Iterable[TopicPartition]) -> str:
    """Sorted partitions in short, such as ``clicks:0-3,7 views:0``."""
    return " ".join(
        f"{topic}:{_ranges([tp.partition for tp in of_topic])}"
        for topic, of_topic in groupby(found, key=lambda tp: tp.topic)
    )


def _ranges(numbers: Sequence[int]) -> str:
    """``0-3,7``: consecutive numbers are joined."""
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
    """To the tenth below a minute, whole from there on."""
    return f"{number:.1f}" if 0 < number < 60 else f"{number:.0f}"
