"""``raftlog group``: listed, described and deleted, for people and as JSON."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from raftlog import Admin, Consumer, Producer, TopicPartition
from raftlog.types import OFFSETS_TOPIC
from tests.cli.conftest import Raftlog

pytestmark = pytest.mark.integration
Spawn = Callable[..., "subprocess.Popen[bytes]"]

NOBODY = "127.0.0.1:1"  # where no broker is: what is refused here was refused before connecting


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


def test_groups_are_listed(raftlog: Raftlog, group: str) -> None:
    found = {row["group"]: row for row in raftlog("group", "list", "--json").json}
    assert found[group] == {"group": group, "state": "empty", "members": 0, "coordinator": 1}
    header, *rows = raftlog("group", "list").out.decode().splitlines()
    assert header.split() == ["group", "state", "members", "coordinator"]
    assert [group, "empty", "0", "1"] in [row.split() for row in rows]


def test_groups_are_listed_by_their_state(raftlog: Raftlog, group: str, member: Consumer) -> None:
    assert member.assignment()
    stable = raftlog("group", "list", "--state", "stable", "--json").json
    assert [(row["group"], row["members"]) for row in stable] == [(group, 1)]
    empty = raftlog("group", "list", "--state", "empty", "--json").json
    assert group not in [row["group"] for row in empty]


def test_a_group_without_members_is_described(raftlog: Raftlog, numbers: str, group: str) -> None:
    found = raftlog("group", "describe", group, "--json").json
    assert (found["state"], found["members"], found["lag"]) == ("empty", [], 6)
    first, second = found["partitions"]
    assert (first["topic"], first["partition"], first["offset"]) == (numbers, 0, 4)
    assert (first["log_start_offset"], first["log_end_offset"], first["lag"]) == (0, 10, 6)
    assert 0 <= first["lag_seconds"] < 600
    assert (first["metadata"], first["member_id"], first["problem"]) == ("by hand", None, "")
    assert (second["lag"], second["lag_seconds"]) == (0, 0)


def test_a_description_for_people(raftlog: Raftlog, numbers: str, group: str) -> None:
    lines = raftlog("group", "describe", group).out.decode().splitlines()
    assert lines[0].startswith(f"{group}  empty  0 members  lag 6 (")
    assert lines[1].split()[:6] == ["topic", "partition", "committed", "start", "end", "lag"]
    assert lines[2].split()[:6] == [numbers, "0", "4", "0", "10", "6"]
    assert lines[3].split() == [numbers, "1", "0", "0", "0", "0", "0", "-", "by", "hand"]


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


def test_records_that_are_gone_are_told(
    raftlog: Raftlog, admin: Admin, numbers: str, group: str
) -> None:
    admin.delete_records({TopicPartition(numbers, 0): 7})
    first = raftlog("group", "describe", group, "--json").json["partitions"][0]
    assert (first["lag"], first["lag_seconds"]) == (3, None)
    assert first["problem"] == "out of range: below the log start by 3"


def test_the_topic_that_groups_are_kept_in_is_marked(raftlog: Raftlog, group: str) -> None:
    assert group
    assert OFFSETS_TOPIC not in raftlog("topic", "list", "--json").json
    assert OFFSETS_TOPIC in raftlog("topic", "list", "--internal", "--json").json
    first = raftlog("topic", "describe", OFFSETS_TOPIC).out.decode().splitlines()[0]
    assert first.startswith(OFFSETS_TOPIC)
    assert first.endswith("  internal")
    assert raftlog("topic", "describe", OFFSETS_TOPIC, "--json").json["is_internal"] is True


def test_watching_goes_on_until_it_is_interrupted(spawn: Spawn, group: str) -> None:
    process = spawn("group", "describe", group, "--watch", "--json")
    assert process.stdout is not None
    for _ in range(2):
        assert json.loads(process.stdout.readline())["group"] == group
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, b"")


def test_groups_are_deleted_and_the_others_are_not_held_up(
    raftlog: Raftlog, admin: Admin, numbers: str, group: str
) -> None:
    admin.alter_group_offsets(f"{group}-2", {TopicPartition(numbers, 0): 1})
    ran = raftlog("group", "delete", group, "no-such", f"{group}-2")
    assert ran.status == 1
    assert ran.out.decode().splitlines() == [f"deleted {group}", f"deleted {group}-2"]
    assert "no consumer group 'no-such'" in ran.err
    assert not {group, f"{group}-2"} & {row.group for row in admin.list_groups()}


def test_a_deletion_as_json(raftlog: Raftlog, group: str) -> None:
    deleted = [{"group": group, "deleted": True}]
    ran = raftlog("group", "delete", "no-such", group, "--json")
    assert (ran.status, ran.json_lines) == (1, [deleted])


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
    assert "has committed nothing for topic" in ran.err


def test_what_a_reset_would_do_is_shown_while_a_group_is_in_use(
    raftlog: Raftlog, group: str, member: Consumer
) -> None:
    assert member.assignment()
    ran = raftlog("group", "reset", group, "--to", "earliest", "--dry-run")
    assert ran.status == 0
    assert ran.out.decode().splitlines()[-1] == "dry run: nothing was changed"
    assert "has members (1): stop its consumers" in ran.err


@pytest.mark.parametrize(
    "arguments", [["delete"], ["delete", "--topic"], ["reset", "--to", "earliest"]], ids=str
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
    ran = raftlog(*[argument.format(name) for argument in arguments], "--bootstrap", NOBODY)
    assert ran.status == 1
    assert "is not a name of a consumer group" in ran.err
    assert len(ran.err.splitlines()) == 1
