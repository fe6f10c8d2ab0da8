"""``raftlog group reset``: exactly the offsets asked for, or nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftlog import Admin, Producer, TopicPartition
from tests.cli.conftest import Raftlog

pytestmark = pytest.mark.integration

FIRST_MS = 1_700_000_000_000


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as made:
        yield made


@pytest.fixture
def numbers(bootstrap: str, topic: str) -> str:
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
def group(admin: Admin, numbers: str) -> str:
    """It has read seven of partition 0, and none of the other."""
    name = f"group-{numbers}"
    admin.alter_group_offsets(name, {TopicPartition(numbers, 0): 7})
    return name


def offsets_of(admin: Admin, group: str) -> dict[int, int]:
    return {tp.partition: found.offset for tp, found in admin.group_offsets(group).items()}


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
    numbers: str,
    group: str,
    arguments: list[str],
    expected: dict[int, int],
) -> None:
    chosen = [argument.format(numbers) for argument in arguments]
    planned = raftlog("group", "reset", group, *chosen, "--dry-run", "--json").json
    assert planned["dry_run"] is True
    assert offsets_of(admin, group) == {0: 7}
    done = raftlog("group", "reset", group, *chosen, "--json").json
    assert done == {**planned, "dry_run": False}
    assert {0: 7} | {row["partition"]: row["new"] for row in done["offsets"]} == expected
    assert offsets_of(admin, group) == expected


def test_old_and_new_are_printed(raftlog: Raftlog, numbers: str, group: str) -> None:
    lines = raftlog("group", "reset", group, "--to", "2", "--dry-run").out.decode().splitlines()
    assert [line.split() for line in lines] == [
        ["topic", "partition", "old", "new", "change"],
        [numbers, "0", "7", "2", "-5"],
        [numbers, "1", "-", "2", "-"],
        ["dry", "run:", "nothing", "was", "changed"],
    ]
    lines = raftlog("group", "reset", group, "--to", "2").out.decode().splitlines()
    assert len(lines) == 3


def test_a_group_is_made_only_if_asked_for(raftlog: Raftlog, admin: Admin, numbers: str) -> None:
    new = f"new-{numbers}"
    arguments = ["group", "reset", new, "--to", "latest", "--topic", f"{numbers}:0"]
    ran = raftlog(*arguments)
    assert ran.status == 1
    assert "--create" in ran.err
    assert raftlog(*arguments, "--create", "--dry-run").status == 0
    assert new not in [row.group for row in admin.list_groups()]
    assert raftlog(*arguments, "--create").status == 0
    assert offsets_of(admin, new) == {0: 20}


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["--to", "4"], 1, "{}:1 has 0 to 3, not 4"),
        (["--to", "21", "--topic", "{}:0"], 1, "{}:0 has 0 to 20, not 21"),
        (["--shift", "-8"], 1, "{}:0 has 0 to 20, not -1"),
        (["--shift", "1", "--topic", "{}:1"], 1, "nothing for {}:1"),
        (["--to", "1", "--topic", "{}:2"], 1, "no partition 2: it has 0 to 1"),
        (["--to", "1", "--topic", "no-such"], 1, "no-such"),
        (["--to", "1:2"], 2, "is a range"),
        (["--to", "soon"], 2, "earliest, latest, N"),
        (["--to", "1", "--topic", "{}:x"], 2, "TOPIC:P"),
        (["--to", "1", "--shift", "1"], 2, "one of --to OFFSETS"),
        ([], 2, "one of --to OFFSETS"),
        (["--to", "1", "--topic", "{}", "--all-topics"], 2, "--all-topics"),
        (["--to", "1", "--create"], 2, "--create needs --topic"),
    ],
    ids=str,
)
def test_refusals_name_what_is_wrong_and_change_nothing(
    raftlog: Raftlog,
    admin: Admin,
    numbers: str,
    group: str,
    arguments: list[str],
    status: int,
    reason: str,
) -> None:
    ran = raftlog("group", "reset", group, *[text.format(numbers) for text in arguments])
    assert (ran.status, ran.out) == (status, b"")
    assert reason.format(numbers) in ran.err
    assert offsets_of(admin, group) == {0: 7}
