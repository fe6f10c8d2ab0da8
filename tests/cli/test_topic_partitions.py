"""``raftlog topic add-partitions``, ``delete-records`` and ``offsets``."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Raftlog

pytestmark = pytest.mark.integration


def test_partitions_are_added(raftlog: Raftlog, topic: str) -> None:
    added = raftlog("topic", "add-partitions", topic, 5, "--json").json
    assert added == {"name": topic, "partitions": 5}
    assert len(raftlog("topic", "describe", topic, "--json").json["partitions"]) == 5


def test_partitions_are_never_removed(raftlog: Raftlog, topic: str) -> None:
    ran = raftlog("topic", "add-partitions", topic, 1)
    assert ran.status == 1
    assert topic in ran.err


def test_offsets_are_shown_by_time(raftlog: Raftlog, topic: str) -> None:
    lines = b"".join(b'{"value": "v", "timestamp_ms": %d}\n' % at for at in (1_000, 2_000, 3_000))
    assert raftlog("produce", topic, "-p", 1, "--jsonl", stdin=lines).status == 0

    def offsets(*arguments: str) -> list[int | None]:
        found = raftlog("topic", "offsets", topic, "--json", *arguments).json
        assert found["name"] == topic
        return [part["offset"] for part in found["partitions"]]

    assert offsets() == [0, 3]
    assert offsets("--time", "latest") == [0, 3]
    assert offsets("--time", "earliest") == [0, 0]
    assert offsets("--time", "1500") == [None, 1]
    assert offsets("--time", "1970-01-01T00:00:03Z") == [None, 2]


def test_records_are_deleted_from_the_front(raftlog: Raftlog, topic: str) -> None:
    assert raftlog("produce", topic, "-p", 0, stdin=b"0\n1\n2\n3\n").status == 0
    ran = raftlog("topic", "delete-records", topic, "--before", "0:3", "--json")
    assert ran.json == {"name": topic, "partitions": [{"partition": 0, "log_start_offset": 3}]}
    assert raftlog("tail", topic, "-o", "earliest").out == b"3\n"


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["delete-records", "--before", "0"], 2, "P:OFFSET"),
        (["delete-records", "--before", "x:1"], 2, "P:OFFSET"),
        (["delete-records", "--before", "0:99"], 1, "99"),
        (["delete-records", "--before", "7:0"], 1, "7"),
        (["offsets", "--time", "soon"], 2, "earliest, latest, or a time"),
        (["add-partitions", "many"], 2, "many"),
    ],
    ids=str,
)
def test_refusals_name_what_is_wrong(
    raftlog: Raftlog, topic: str, arguments: list[str], status: int, reason: str
) -> None:
    ran = raftlog("topic", arguments[0], topic, *arguments[1:])
    assert ran.status == status
    assert reason in ran.err
