"""Tests of ``raftlog topic``."""

from __future__ import annotations

import pytest

from raftlog.types import OFFSETS_TOPIC
from tests.cli.conftest import Raftlog

pytestmark = pytest.mark.integration


def test_a_topic_is_made_as_asked(raftlog: Raftlog, bootstrap: str) -> None:
    arguments = ["--partitions", 3, "--config", "retention.ms=5", "--config", "segment.ms=6"]
    made = raftlog("topic", "create", "as-asked", *arguments, "--json").json
    described = raftlog("topic", "describe", "as-asked", "--json").json
    assert made == {"name": "as-asked", "id": described["id"], "created": True}
    assert described["config"]["retention.ms"] == "5"
    assert sorted(described["config_overrides"]) == ["retention.ms", "segment.ms"]
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    promised = {
        *("partition", "leader", "leader_epoch", "replicas", "isr", "witnesses"),
        *("log_start_offset", "high_watermark"),
    }
    assert promised <= described["partitions"][0].keys()


def test_several_topics_are_made_and_one_that_exists_does_not_prevent_others(
    raftlog: Raftlog, topic: str
) -> None:
    first, second = f"{topic}-1", f"{topic}-2"
    ran = raftlog("topic", "create", first, topic, second, "-p", 3, "-r", 1)
    assert (ran.status, ran.out.decode()) == (1, f"created {first}\ncreated {second}\n")
    assert f"topic '{topic}' exists already" in ran.err
    assert len(raftlog("topic", "describe", second, "--json").json["partitions"]) == 3
    again = raftlog("topic", "create", first, second, "--if-not-exists", "--json").json
    assert [(row["name"], row["created"]) for row in again] == [(first, False), (second, False)]


def test_an_existing_topic_is_refused_unless_that_is_fine(raftlog: Raftlog, topic: str) -> None:
    ran = raftlog("topic", "create", topic)
    assert ran.status == 1
    assert topic in ran.err
    again = raftlog("topic", "create", topic, "--if-not-exists", "--json").json
    assert again["created"] is False
    assert again["id"] == raftlog("topic", "describe", topic, "--json").json["id"]


def test_topics_are_listed(raftlog: Raftlog, topic: str) -> None:
    assert topic in raftlog("topic", "list", "--json").json
    assert topic in raftlog("topic", "list", "-q").out.decode().splitlines()
    heading, *rows = raftlog("topic", "list").out.decode().splitlines()
    assert heading.split() == ["topic", "partitions", "replication", "size"]
    assert [topic, "2", "1", "0", "B"] in [row.split() for row in rows]


def test_without_a_name_all_are_described(raftlog: Raftlog, topic: str) -> None:
    assert raftlog("tail", topic, "--group", topic).status == 0
    described = raftlog("topic", "describe", "--json").json
    assert topic in [entry["name"] for entry in described]
    assert not any(entry["is_internal"] for entry in described)
    assert f"{OFFSETS_TOPIC}  id ".encode() in raftlog("topic", "describe", "--internal").out


def test_internal_topics_are_listed_only_on_request(raftlog: Raftlog, topic: str) -> None:
    assert raftlog("tail", topic, "--group", topic).status == 0
    assert OFFSETS_TOPIC.encode() not in raftlog("topic", "list").out
    assert OFFSETS_TOPIC.encode() in raftlog("topic", "list", "--internal").out


def test_a_description_for_people_shows_partitions_and_durability(
    raftlog: Raftlog, topic: str
) -> None:
    assert raftlog("produce", topic, "-p", 1, stdin=b"1\n2\n").status == 0
    lines = raftlog("topic", "describe", topic).out.decode().splitlines()
    assert lines[0].startswith(f"{topic}  id ")
    assert "flush.policy=fsync" in lines[1]
    assert lines[2].split()[:3] == ["partition", "leader", "epoch"]
    assert lines[4].split()[:8] == ["1", "1", "1", "1", "1", "0", "0", "2"]


def test_settings_are_changed_and_put_back(raftlog: Raftlog, topic: str) -> None:
    assert raftlog("topic", "alter", topic, "--config", "segment.bytes=1000000").status == 0
    config = raftlog("topic", "describe", topic, "--json").json["config"]
    assert config["segment.bytes"] == "1000000"
    changed = raftlog("topic", "alter", topic, "--reset", "segment.bytes", "--json").json
    assert changed == {"name": topic, "config": {"segment.bytes": None}}
    assert raftlog("topic", "describe", topic, "--json").json["config_overrides"] == []


def test_a_deleted_topic_is_gone(raftlog: Raftlog, topic: str) -> None:
    assert raftlog("topic", "delete", topic, "--json").json == {"name": topic, "deleted": True}
    ran = raftlog("topic", "describe", topic)
    assert ran.status == 1
    assert topic in ran.err


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["create", "a/b"], 1, "not a topic name"),
        (["create", ".."], 1, "not a topic name"),
        (["create", "a b"], 1, "not a topic name"),
        (["create", "x" * 300], 1, "not a topic name"),
        (["create", "naïve"], 1, "not a topic name"),
        (["create", "t", "--partitions", "0"], 2, "--partitions"),
        (["create", "t", "--replication-factor", "3"], 1, "replication factor"),
        (["create", "t", "--config", "retention"], 2, "KEY=VALUE"),
        (["create", "t", "--config", "retention=1"], 1, "retention.ms"),
        (["create", "t", "--config", "retention.ms=soon"], 1, "retention.ms=soon"),
        (["alter", "t"], 2, "nothing to change"),
        (["alter", "no-such", "--config", "retention.ms=1"], 1, "no-such"),
        (["describe", "no-such"], 1, "no-such"),
        (["delete", "no-such"], 1, "no-such"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else str(value),
)
def test_refusals_name_what_is_wrong(
    raftlog: Raftlog, bootstrap: str, arguments: list[str], status: int, reason: str
) -> None:
    ran = raftlog("topic", *arguments, "--bootstrap", bootstrap)
    assert ran.status == status
    assert reason in ran.err
    assert ran.out == b""


# -- topic partitions ------------------------------------------------------------------------------


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
        (["offsets", "--time", "soon"], 2, "not earliest, latest or a time"),
        (["add-partitions", "many"], 2, "many"),
    ],
    ids=str,
)
def test_refusals_name_the_partition_or_the_time(
    raftlog: Raftlog, topic: str, arguments: list[str], status: int, reason: str
) -> None:
    ran = raftlog("topic", arguments[0], topic, *arguments[1:])
    assert ran.status == status
    assert reason in ran.err


def test_producers_are_listed(raftlog: Raftlog, topic: str) -> None:
    assert raftlog("topic", "producers", topic, "--json").json["producers"] == []
    assert raftlog("produce", topic, "-p", 1, stdin=b"1\n2\n").status == 0
    assert raftlog("produce", topic, "-p", 1, stdin=b"3\n").status == 0
    listed = raftlog("topic", "producers", topic, "--json").json
    assert (listed["name"], listed["total"], listed["problems"]) == (topic, 2, [])
    newest, first = listed["producers"]
    assert (newest["partition"], newest["last_offset"], newest["last_sequence"]) == (1, 2, 0)
    assert (first["last_offset"], first["last_sequence"]) == (1, 1)
    assert (first["kind"], first["state"], first["epoch"]) == ("idempotent", "committed", 0)
    assert raftlog("topic", "producers", topic, "-p", 0, "--json").json["total"] == 0
    ran = raftlog("topic", "producers", topic, "--limit", 1)
    heading, row = ran.out.decode().splitlines()
    assert heading.split()[:3] == ["partition", "producer", "id"]
    assert row.split()[:3] == ["1", str(newest["producer_id"]), "idempotent"]
    assert "1 more producer: pass --skip 1" in ran.err
    assert "no partition 9" in raftlog("topic", "producers", topic, "-p", 9).err
