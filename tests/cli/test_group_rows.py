"""A consumer group as rows and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from raftlog.cli.group_rows import (
    MEMBER_COLUMNS,
    PARTITION_COLUMNS,
    as_json,
    member_row,
    partition_row,
    partitions,
    seconds,
    summary,
)
from raftlog.client.group_descriptions import GroupDescription, MemberDescription, PartitionLag
from raftlog.types import TopicPartition


def tps(topic: str, *numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for number in numbers)


def member(
    assigned: tuple[TopicPartition, ...], target: tuple[TopicPartition, ...]
) -> MemberDescription:
    return MemberDescription("m1", None, "", "10.0.0.7", 4, ("t",), assigned, target, 45_000)


READ = PartitionLag("t", 0, 4, 0, 10, 6, 3.25, 3, "note", 7, "m1")
UNREAD = PartitionLag("t", 1, None, problem="there is no leader")
GROUP = GroupDescription(
    *("g", "stable", 5, "uniform", 2),
    members=(member(tps("t", 0), tps("t", 0)),),
    partitions=(READ, UNREAD),
)


def test_a_group_in_one_line() -> None:
    assert summary(GROUP) == (
        "g  stable  1 member  lag 6 (3.2 s), unknown of 1  epoch 5  coordinator 2  assignor uniform"
    )
    bare = GroupDescription("g", "empty", 1, "", 2)
    assert summary(bare) == "g  empty  0 members  lag 0  epoch 1  coordinator 2"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ((), ""),
        (tps("t", 3), "t:3"),
        (tps("t", 0, 1), "t:0-1"),
        (tps("t", 0, 1, 2, 7, 9, 10), "t:0-2,7,9-10"),
        ((*tps("t", 0), *tps("u", 0, 1)), "t:0 u:0-1"),
    ],
)
def test_partitions_are_written_in_short(found: tuple[TopicPartition, ...], text: str) -> None:
    assert partitions(found) == text


@pytest.mark.parametrize(
    ("assigned", "target", "shown"),
    [
        ((), (), ("-", "-")),
        (tps("t", 0), tps("t", 0), ("t:0", "-")),
        (tps("t", 0, 1, 2), tps("t", 1), ("t:0-2", "-t:0,2")),
        ((), (*tps("t", 0), *tps("u", 1)), ("-", "+t:0 +u:1")),
        (tps("t", 0), tps("t", 1), ("t:0", "+t:1 -t:0")),
    ],
)
def test_a_member_shows_what_is_to_change(
    assigned: tuple[TopicPartition, ...],
    target: tuple[TopicPartition, ...],
    shown: tuple[str, str],
) -> None:
    row = dict(zip(MEMBER_COLUMNS, member_row(member(assigned, target)), strict=True))
    assert (row["partitions"], row["changes"]) == shown
    assert (row["member"], row["instance"], row["client"], row["host"]) == (
        *("m1", "-", "-", "10.0.0.7"),
    )


def test_a_member_that_is_away_is_told() -> None:
    away = replace(member((), ()), instance_id="node-2", is_away=True)
    assert member_row(away)[1] == "node-2 (away)"


def test_what_is_unknown_is_a_dash() -> None:
    row = dict(zip(PARTITION_COLUMNS, partition_row(READ), strict=True))
    assert [row[name] for name in ("committed", "lag", "lag (s)", "member", "metadata")] == [
        *(4, 6, "3.2", "m1", "note"),
    ]
    row = dict(zip(PARTITION_COLUMNS, partition_row(UNREAD), strict=True))
    unknown = ("committed", "start", "end", "lag", "lag (s)", "member")
    assert [row[name] for name in unknown] == ["-"] * 6
    assert row["problem"] == "there is no leader"


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (0.04, "0.0"), (3.25, "3.2"), (59.9, "59.9"), (61.7, "62")]
)
def test_seconds(number: float, text: str) -> None:
    assert seconds(number) == text


def test_json_has_what_was_asked_for() -> None:
    value = json.loads(json.dumps(as_json(GROUP)))
    assert (value["group"], value["lag"], value["lag_seconds"]) == ("g", 6, 3.25)
    assert value["unknown_lags"] == 1
    assert value["members"][0]["assigned"] == [{"topic": "t", "partition": 0}]
    assert value["partitions"][1]["offset"] is None
    assert value["partitions"][0]["metadata"] == "note"
    assert "members" not in as_json(GROUP, members=False)
    assert "partitions" not in as_json(GROUP, partitions=False)
