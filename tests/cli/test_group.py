"""Tests of ``raftlog group``."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

import click
import pytest

from raftlog import Admin, Consumer, Producer, TopicPartition
from raftlog.client.administration.groups import GroupDescription, MemberDescription, PartitionLag
from raftlog.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    RaftlogError,
    UnknownPartitionError,
)
from raftlog.types import OFFSETS_TOPIC, OffsetAndTimestamp
from raftlog_cli.group import (
    MEMBER_COLUMNS,
    PARTITION_COLUMNS,
    Selection,
    check_in_range,
    choose,
    group_to_json,
    member_row,
    parse_selection,
    parse_to,
    partition_ranges,
    partition_row,
    places,
    seconds,
    shifted,
    summary,
    total_lag,
)
from raftlog_cli.options import EARLIEST, LATEST, Bound, Extent, From
from tests.cli.conftest import Raftlog

Spawn = Callable[..., "subprocess.Popen[bytes]"]

UNREACHABLE = "127.0.0.1:1"  # no broker: errors are found before a connection


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as made:
        yield made


@pytest.fixture
def numbers(bootstrap: str, topic: str) -> str:
    """A topic with ten records in partition 0, and none in 1."""
    with Producer(bootstrap) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(10)], partition=0)
        producer.flush(timeout=20)
    return topic


@pytest.fixture
def group(admin: Admin, numbers: str) -> str:
    """A group without members that has read four of them."""
    name = f"group-{numbers}"
    offsets = {TopicPartition(numbers, 0): 4, TopicPartition(numbers, 1): 0}
    admin.alter_group_offsets(name, offsets, metadata="by hand")
    return name


@pytest.fixture
def member(bootstrap: str, numbers: str, group: str) -> Iterator[Consumer]:
    """A member of the group, which has both partitions."""
    with Consumer(bootstrap, group=group, auto_commit=False, client_id="reader") as consumer:
        consumer.subscribe([numbers])
        while len(consumer.assignment()) < 2:
            consumer.poll(timeout_ms=100)
        yield consumer


@pytest.mark.integration
def test_groups_are_listed(raftlog: Raftlog, group: str) -> None:
    found = {row["group"]: row for row in raftlog("group", "list", "--json").json}
    assert found[group].pop("lag_seconds") >= 0
    assert found[group] == {
        "group": group,
        "type": "consumer",
        "state": "empty",
        "members": 0,
        "coordinator": 1,
        "lag": 6,
        "unknown_lags": 0,
    }
    header, *rows = raftlog("group", "list").out.decode().splitlines()
    assert header.split() == ["group", "state", "members", "lag", "type", "coordinator"]
    assert [group, "empty", "0", "6", "consumer", "1"] in [row.split() for row in rows]
    assert group in raftlog("group", "list", "-q").out.decode().splitlines()


@pytest.mark.integration
def test_groups_are_listed_by_their_state(raftlog: Raftlog, group: str, member: Consumer) -> None:
    assert member.assignment()
    stable = raftlog("group", "list", "--state", "stable", "--json").json
    assert [(row["group"], row["members"]) for row in stable] == [(group, 1)]
    empty = raftlog("group", "list", "--state", "empty", "--json").json
    assert group not in [row["group"] for row in empty]


@pytest.mark.integration
def test_a_group_without_members_is_described(raftlog: Raftlog, numbers: str, group: str) -> None:
    found = raftlog("group", "describe", group, "--json").json
    assert (found["state"], found["members"], found["lag"]) == ("empty", [], 6)
    first, second = found["partitions"]
    assert (first["topic"], first["partition"], first["offset"]) == (numbers, 0, 4)
    assert (first["log_start_offset"], first["log_end_offset"], first["lag"]) == (0, 10, 6)
    assert 0 <= first["lag_seconds"] < 600
    assert (first["metadata"], first["member_id"], first["problem"]) == ("by hand", None, "")
    assert (second["lag"], second["lag_seconds"]) == (0, 0)


@pytest.mark.integration
def test_a_description_for_people(raftlog: Raftlog, numbers: str, group: str) -> None:
    lines = raftlog("group", "describe", group).out.decode().splitlines()
    assert lines[0].startswith(f"{group}  empty  0 members  lag 6 (")
    assert lines[1].split()[:6] == ["topic", "partition", "committed", "start", "end", "lag"]
    assert lines[2].split()[:6] == [numbers, "0", "4", "0", "10", "6"]
    assert lines[3].split() == [numbers, "1", "0", "0", "0", "0", "0", "-", "by", "hand"]


@pytest.mark.integration
def test_members_are_described(
    raftlog: Raftlog, numbers: str, group: str, member: Consumer
) -> None:
    assert member.assignment()
    found = raftlog("group", "describe", group, "--json").json
    assert (found["state"], found["coordinator"]) == ("stable", 1)
    (only,) = found["members"]
    both = [{"topic": numbers, "partition": 0}, {"topic": numbers, "partition": 1}]
    assert (only["client_id"], only["host"]) == ("reader", "127.0.0.1")
    assert only["assigned"] == only["target"] == both
    assert {part["member_id"] for part in found["partitions"]} == {only["member_id"]}
    lines = raftlog("group", "describe", group, "--members").out.decode().splitlines()
    assert lines[1].split()[:4] == ["member", "instance", "client", "host"]
    assert lines[2].split()[-2:] == [f"{numbers}:0-1", "-"]
    assert len(lines) == 3
    offsets = raftlog("group", "describe", group, "--offsets").out.decode().splitlines()
    assert offsets[1].startswith("topic")


@pytest.mark.integration
def test_records_that_are_gone_are_told(
    raftlog: Raftlog, admin: Admin, numbers: str, group: str
) -> None:
    admin.delete_records({TopicPartition(numbers, 0): 7})
    first = raftlog("group", "describe", group, "--json").json["partitions"][0]
    assert (first["lag"], first["lag_seconds"]) == (3, None)
    assert first["problem"] == "out of range: below the log start by 3"


@pytest.mark.integration
def test_the_topic_that_groups_are_kept_in_is_marked(raftlog: Raftlog, group: str) -> None:
    assert group
    assert OFFSETS_TOPIC not in raftlog("topic", "list", "--json").json
    assert OFFSETS_TOPIC in raftlog("topic", "list", "--internal", "--json").json
    first = raftlog("topic", "describe", OFFSETS_TOPIC).out.decode().splitlines()[0]
    assert first.startswith(OFFSETS_TOPIC)
    assert "  internal  " in first
    assert raftlog("topic", "describe", OFFSETS_TOPIC, "--json").json["is_internal"] is True


@pytest.mark.integration
def test_watching_goes_on_until_it_is_interrupted(spawn: Spawn, group: str) -> None:
    process = spawn("group", "describe", group, "--watch", "--json")
    assert process.stdout is not None
    for _ in range(2):
        assert json.loads(process.stdout.readline())["group"] == group
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, b"")


@pytest.mark.integration
def test_groups_are_deleted_and_the_others_are_not_held_up(
    raftlog: Raftlog, admin: Admin, numbers: str, group: str
) -> None:
    admin.alter_group_offsets(f"{group}-2", {TopicPartition(numbers, 0): 1})
    ran = raftlog("group", "delete", group, "no-such", f"{group}-2")
    assert ran.status == 1
    assert ran.out.decode().splitlines() == [f"deleted {group}", f"deleted {group}-2"]
    assert "consumer group 'no-such' does not exist" in ran.err
    assert not {group, f"{group}-2"} & {row.group for row in admin.list_groups()}


@pytest.mark.integration
def test_a_deletion_as_json(raftlog: Raftlog, group: str) -> None:
    deleted = [{"group": group, "deleted": True}]
    ran = raftlog("group", "delete", "no-such", group, "--json")
    assert (ran.status, ran.json_lines) == (1, [deleted])


@pytest.mark.integration
def test_only_a_topics_offsets_are_forgotten(
    raftlog: Raftlog, admin: Admin, topic: str, numbers: str, group: str
) -> None:
    other = f"{topic}-other"
    assert raftlog("topic", "create", other).status == 0
    admin.alter_group_offsets(group, {TopicPartition(other, 0): 0})
    assert raftlog("group", "delete", group, "--topic", numbers).out.decode() == (
        f"deleted 2 offsets of {group}\n"
    )
    assert list(admin.group_offsets(group)) == [TopicPartition(other, 0)]
    ran = raftlog("group", "delete", group, "--topic", numbers)
    assert (ran.status, ran.out) == (1, b"")
    assert "has no committed offsets of" in ran.err


@pytest.mark.integration
def test_what_a_reset_would_do_is_shown_while_a_group_is_in_use(
    raftlog: Raftlog, group: str, member: Consumer
) -> None:
    assert member.assignment()
    ran = raftlog("group", "reset", group, "--to", "earliest")
    assert ran.status == 0
    assert ran.out.decode().splitlines()[-1].startswith("preview: nothing was changed")
    assert "has 1 member. Stop its consumers" in ran.err


@pytest.mark.integration
@pytest.mark.parametrize(
    "arguments",
    [["delete"], ["delete", "--topic"], ["reset", "--execute", "--to", "earliest"]],
    ids=str,
)
def test_a_group_in_use_is_left_alone(
    raftlog: Raftlog,
    admin: Admin,
    numbers: str,
    group: str,
    member: Consumer,
    arguments: list[str],
) -> None:
    before = admin.group_offsets(group)
    more = [numbers] if arguments[-1] == "--topic" else []
    ran = raftlog("group", arguments[0], group, *arguments[1:], *more)
    assert (ran.status, ran.out) == (1, b"")
    assert f"raftlog group describe {group} --members" in ran.err
    assert admin.group_offsets(group) == before
    assert len(member.assignment()) == 2


@pytest.mark.integration
@pytest.mark.parametrize(
    "arguments", [["describe"], ["delete"], ["reset", "--to", "earliest"]], ids=str
)
def test_an_unknown_group_says_how_to_find_the_known_ones(
    raftlog: Raftlog, bootstrap: str, arguments: list[str]
) -> None:
    ran = raftlog("group", arguments[0], "no-such", *arguments[1:], "--bootstrap", bootstrap)
    assert (ran.status, ran.out) == (1, b"")
    assert "raftlog group list" in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.integration
@pytest.mark.parametrize("name", ["x" * 300, "two\nlines"], ids=["long", "lines"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["group", "describe", "{}"],
        ["group", "delete", "{}"],
        ["group", "reset", "{}", "--to", "earliest"],
        ["tail", "t", "--group", "{}"],
    ],
    ids=str,
)
def test_a_name_that_is_none_is_refused_before_connecting(
    raftlog: Raftlog, arguments: list[str], name: str
) -> None:
    ran = raftlog(*[argument.format(name) for argument in arguments], "--bootstrap", UNREACHABLE)
    assert ran.status == 1
    assert "is not a name of a consumer group" in ran.err
    assert len(ran.err.splitlines()) == 1


# -- group rows ------------------------------------------------------------------------------------


def tps(topic: str, *numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for number in numbers)


def described_member(
    assigned: tuple[TopicPartition, ...], target: tuple[TopicPartition, ...]
) -> MemberDescription:
    return MemberDescription("m1", None, "", "10.0.0.7", 4, ("t",), assigned, target, 45_000)


READ = PartitionLag("t", 0, 4, 0, 10, 6, 3.25, 3, "note", 7, "m1")
UNREAD = PartitionLag("t", 1, None, problem="there is no leader")
GROUP = GroupDescription(
    *("g", "stable", 5, "uniform", 2),
    members=(described_member(tps("t", 0), tps("t", 0)),),
    partitions=(READ, UNREAD),
)


def test_a_group_in_one_line() -> None:
    assert summary(GROUP) == (
        "g  stable  1 member  lag 6 (3.2 s), unknown of 1  epoch 5  coordinator 2  type consumer  "
        "assignor uniform"
    )
    bare = GroupDescription("g", "empty", 1, "", 2)
    assert summary(bare) == "g  empty  0 members  lag 0  epoch 1  coordinator 2  type consumer"


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
    assert partition_ranges(found) == text


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
    row = dict(zip(MEMBER_COLUMNS, member_row(described_member(assigned, target)), strict=True))
    assert (row["partitions"], row["changes"]) == shown
    assert (row["member"], row["instance"], row["client"], row["host"]) == (
        *("m1", "-", "-", "10.0.0.7"),
    )


@pytest.mark.parametrize(
    ("partitions", "cell"), [((), "0"), ((READ,), "6"), ((UNREAD,), "?"), ((READ, UNREAD), "6 + ?")]
)
def test_a_lag_that_is_unknown_is_no_number(
    partitions: tuple[PartitionLag, ...], cell: str
) -> None:
    assert total_lag(replace(GROUP, partitions=partitions)) == cell


def test_a_member_that_is_away_is_told() -> None:
    away = replace(described_member((), ()), instance_id="node-2", is_away=True)
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
    value = json.loads(json.dumps(group_to_json(GROUP)))
    assert (value["group"], value["lag"], value["lag_seconds"]) == ("g", 6, 3.25)
    assert value["unknown_lags"] == 1
    assert value["members"][0]["assigned"] == [{"topic": "t", "partition": 0}]
    assert value["partitions"][1]["offset"] is None
    assert value["partitions"][0]["metadata"] == "note"
    assert "members" not in group_to_json(GROUP, members=False)
    assert "partitions" not in group_to_json(GROUP, partitions=False)


# -- group plan ------------------------------------------------------------------------------------


A, B, C, D = (TopicPartition("t", number) for number in range(4))
U = TopicPartition("u", 0)


class FakeAdmin:
    """Topic t with 3 partitions of offsets 5 to 20, and u with an empty one."""

    def offsets(self, topic: str, at: str) -> dict[int, int]:
        if topic == "u":
            return {0: 0}
        return dict.fromkeys(range(3), 5 if at == "earliest" else 20)

    def list_offsets(
        self, queries: dict[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Only partition 0 has a record at or after the time."""
        return {
            tp: OffsetAndTimestamp(9, at + 1) if tp.partition == 0 else None
            for tp, at in queries.items()
        }


ADMIN = cast("Admin", FakeAdmin())
FULL = Extent(5, 20)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("7", Bound(From.OFFSET, 7)),
        ("-7", Bound(From.END, 7)),
        ("+7", Bound(From.BEGINNING, 7)),
        ("@1700000000000", Bound(From.TIME, 1_700_000_000_000)),
    ],
)
def test_one_place_is_one(text: str, bound: Bound) -> None:
    assert parse_to(text) == bound


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1:2", "is a range"),
        ("@1700000000000:1700000000001", "is a range"),
        ("yesterday", "earliest, latest, N"),
    ],
)
def test_other_texts_are_wrong_usage(text: str, reason: str) -> None:
    with pytest.raises(click.BadParameter, match=reason):
        parse_to(text)


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("t", Selection("t")),
        ("t:0", Selection("t", (0,))),
        ("t:3,1,3", Selection("t", (1, 3))),
    ],
)
def test_partitions_are_named(text: str, selection: Selection) -> None:
    assert parse_selection(text) == selection


@pytest.mark.parametrize("text", ["", ":0", "t:", "t:x", "t:1,", "t:-1", "t:1:2"])
def test_other_names_are_wrong_usage(text: str) -> None:
    with pytest.raises(click.BadParameter, match="TOPIC:P"):
        parse_selection(text)


@pytest.mark.parametrize(
    ("selections", "only_committed", "chosen"),
    [
        ((), False, [A, B, C]),
        ((), True, [A, B]),
        ((Selection("t"),), True, [A, B]),
        ((Selection("t", (2,)),), False, [C]),
        ((Selection("t", (1,)), Selection("u")), False, [B, U]),
    ],
)
def test_partitions_are_chosen(
    selections: tuple[Selection, ...], only_committed: bool, chosen: list[TopicPartition]
) -> None:
    found = choose(ADMIN, "g", {A: 7, B: 8}, selections, only_committed=only_committed)
    assert list(found) == chosen
    assert found[chosen[0]] == FULL


@pytest.mark.parametrize(
    ("old", "selections", "only_committed", "error", "reason"),
    [
        ({}, (), False, InvalidRequestError, "Add --topic"),
        ({A: 7}, (Selection("t", (3,)),), False, UnknownPartitionError, "has 0 to 2"),
        ({A: 7}, (Selection("t", (2,)),), True, InvalidRequestError, "no committed offset for t:2"),
        ({A: 7}, (Selection("u"),), True, InvalidRequestError, "no committed offset for u"),
    ],
)
def test_what_cannot_be_chosen(
    old: dict[TopicPartition, int],
    selections: tuple[Selection, ...],
    only_committed: bool,
    error: type[RaftlogError],
    reason: str,
) -> None:
    with pytest.raises(error, match=reason):
        choose(ADMIN, "g", old, selections, only_committed=only_committed)


@pytest.mark.parametrize(
    ("to", "found"),
    [
        (EARLIEST, [5, 5]),
        (LATEST, [20, 20]),
        (Bound(From.OFFSET, 7), [7, 7]),
        (Bound(From.END, 2), [18, 18]),
        (Bound(From.END, 100), [5, 5]),
        (Bound(From.BEGINNING, 2), [7, 7]),
        (Bound(From.TIME, 1_700), [9, 20]),
    ],
)
def test_places(to: Bound, found: list[int]) -> None:
    assert list(places(ADMIN, {A: FULL, B: FULL}, to).values()) == found


def test_shifts() -> None:
    assert shifted({A: 7, B: 8}, {B: FULL}, -3) == {B: 5}


def test_out_of_range_names_the_range_and_not_too_many_partitions() -> None:
    check_in_range({A: 5, B: 20}, {A: FULL, B: FULL})
    with pytest.raises(OffsetOutOfRangeError, match=r"out of range: t:1 has 5 to 20, not 21;"):
        check_in_range({A: 5, B: 21}, {A: FULL, B: FULL})
    many = [TopicPartition("t", number) for number in range(9)]
    with pytest.raises(OffsetOutOfRangeError, match="t:4 has 5 to 20, not 4, and 4 more; nothing"):
        check_in_range(dict.fromkeys(many, 4), dict.fromkeys(many, FULL))


# -- group reset -----------------------------------------------------------------------------------


FIRST_MS = 1_700_000_000_000


@pytest.fixture
def timed(bootstrap: str, topic: str) -> str:
    """Twenty records in partition 0, a second apart, and three at once in 1."""
    with Producer(bootstrap) as producer:
        for number in range(20):
            at = FIRST_MS + number * 1_000
            producer.send(topic, b"%d" % number, timestamp_ms=at, partition=0)
        for _ in range(3):
            producer.send(topic, b"x", timestamp_ms=FIRST_MS, partition=1)
        producer.flush(timeout=20)
    return topic


@pytest.fixture
def reader(admin: Admin, timed: str) -> str:
    """It has read seven of partition 0, and none of the other."""
    name = f"group-{timed}"
    admin.alter_group_offsets(name, {TopicPartition(timed, 0): 7})
    return name


def offsets_of(admin: Admin, reader: str) -> dict[int, int]:
    return {tp.partition: found.offset for tp, found in admin.group_offsets(reader).items()}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--to", "earliest"], {0: 0, 1: 0}),
        (["--to", "latest", "--all-topics"], {0: 20, 1: 3}),
        (["--to", "2"], {0: 2, 1: 2}),
        (["--to", "-5"], {0: 15, 1: 0}),
        (["--to", "+5"], {0: 5, 1: 3}),
        (["--to", f"@{FIRST_MS + 16_500}"], {0: 17, 1: 3}),
        (["--to", "@2023-11-14T22:13:25Z"], {0: 5, 1: 3}),
        (["--to", "19", "--topic", "{}:0"], {0: 19}),
        (["--to", "3", "--topic", "{}:1"], {0: 7, 1: 3}),
        (["--to", "3", "--topic", "{}:0,1"], {0: 3, 1: 3}),
        (["--to", "1", "--topic", "{}"], {0: 1, 1: 1}),
        (["--shift", "3"], {0: 10}),
        (["--shift", "-7", "--topic", "{}"], {0: 0}),
    ],
    ids=str,
)
def test_offsets_are_set(
    raftlog: Raftlog,
    admin: Admin,
    timed: str,
    reader: str,
    arguments: list[str],
    expected: dict[int, int],
) -> None:
    chosen = [argument.format(timed) for argument in arguments]
    planned = raftlog("group", "reset", reader, *chosen, "--json").json
    assert planned["dry_run"] is True
    assert offsets_of(admin, reader) == {0: 7}
    done = raftlog("group", "reset", reader, *chosen, "--execute", "--json").json
    assert done == {**planned, "dry_run": False}
    assert {0: 7} | {row["partition"]: row["new"] for row in done["offsets"]} == expected
    assert offsets_of(admin, reader) == expected


@pytest.mark.integration
def test_old_and_new_are_printed(raftlog: Raftlog, timed: str, reader: str) -> None:
    lines = raftlog("group", "reset", reader, "--to", "2").out.decode().splitlines()
    assert lines.pop() == "preview: nothing was changed. Add --execute to change the offsets"
    assert [line.split() for line in lines] == [
        ["topic", "partition", "old", "new", "change"],
        [timed, "0", "7", "2", "-5"],
        [timed, "1", "-", "2", "-"],
    ]
    lines = raftlog("group", "reset", reader, "--to", "2", "--execute").out.decode().splitlines()
    assert len(lines) == 3


@pytest.mark.integration
def test_a_group_is_made_only_if_asked_for(raftlog: Raftlog, admin: Admin, timed: str) -> None:
    new = f"new-{timed}"
    arguments = ["group", "reset", new, "--to", "latest", "--topic", f"{timed}:0"]
    ran = raftlog(*arguments)
    assert ran.status == 1
    assert "--create" in ran.err
    assert raftlog(*arguments, "--create", "--dry-run").status == 0
    assert new not in [row.group for row in admin.list_groups()]
    assert raftlog(*arguments, "--create", "--execute").status == 0
    assert offsets_of(admin, new) == {0: 20}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["--to", "4"], 1, "{}:1 has 0 to 3, not 4"),
        (["--to", "21", "--topic", "{}:0"], 1, "{}:0 has 0 to 20, not 21"),
        (["--shift", "-8"], 1, "{}:0 has 0 to 20, not -1"),
        (["--shift", "1", "--topic", "{}:1"], 1, "no committed offset for {}:1"),
        (["--to", "1", "--topic", "{}:2"], 1, "no partition 2: it has 0 to 1"),
        (["--to", "1", "--topic", "no-such"], 1, "no-such"),
        (["--to", "1:2"], 2, "is a range"),
        (["--to", "soon"], 2, "earliest, latest, N"),
        (["--to", "1", "--topic", "{}:x"], 2, "TOPIC:P"),
        (["--to", "1", "--shift", "1"], 2, "either --to OFFSETS"),
        ([], 2, "either --to OFFSETS"),
        (["--to", "1", "--topic", "{}", "--all-topics"], 2, "--all-topics"),
        (["--to", "1", "--create"], 2, "--create requires --topic"),
        (["--to", "1", "--dry-run"], 2, "--execute cannot be combined with --dry-run"),
    ],
    ids=str,
)
def test_refusals_name_what_is_wrong_and_change_nothing(
    raftlog: Raftlog,
    admin: Admin,
    timed: str,
    reader: str,
    arguments: list[str],
    status: int,
    reason: str,
) -> None:
    chosen = [text.format(timed) for text in arguments]
    ran = raftlog("group", "reset", reader, *chosen, "--execute")
    assert (ran.status, ran.out) == (status, b"")
    assert reason.format(timed) in ran.err
    assert offsets_of(admin, reader) == {0: 7}
