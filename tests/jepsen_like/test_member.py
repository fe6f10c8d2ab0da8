"""What the application of a member does: tells, commits what it has dealt with, and ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftlog import Admin, NewTopic, Producer
from raftlog.testing import cluster
from raftlog.testing.fork_server import SOURCE, python_path
from raftlog.testing.history import entries
from raftlog.types import ConsumerRecord, TopicPartition
from raftlog_jepsen import member
from raftlog_jepsen.member import Settings, Work

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def settings(**others: Any) -> Settings:
    given = {"bootstrap": "broker:1", "name": "g/m1.1", "group": "g", "topics": ["t"], **others}
    return Settings(**given)


def record(offset: int, value: int, partition: int = 0) -> ConsumerRecord:
    return ConsumerRecord("t", partition, offset, None, entries.encode_value(value, 3), (), 0, 4)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[member.Event]:
    events: list[member.Event] = []
    monkeypatch.setattr(member, "emit", events.append)
    return events


def test_what_was_dealt_with_is_told_and_due(noted: list[member.Event]) -> None:
    work = Work(settings(commit_every=2))
    work.dealt_with([record(5, 10), record(6, 11), record(0, 90, 1)])
    assert noted[-1].records == {"t:0": [(5, 2, 10, 4)], "t:1": [(0, 1, 90, 4)]}
    assert work.due() == {}, "every other poll"
    work.dealt_with([record(7, 12)])
    due = work.due()
    assert due == {ONE: 8, OTHER: 1}
    done = work.committing(due)
    work.committed_ok(done, due)
    assert [event.type for event in noted[-2:]] == ["invoke", "ok"]
    assert noted[-1].offsets == {"t:0": 8, "t:1": 1}
    assert work.open([ONE, OTHER]) == {}, "all is committed"
    work.dealt_with([record(8, 13)])
    assert work.open([ONE, OTHER]) == {ONE: 9}
    work.forget([ONE])
    assert work.open([ONE, OTHER]) == {}


def test_records_one_by_one_are_fewer_polls(noted: list[member.Event]) -> None:
    work = Work(settings(style="iterate"))
    for offset in range(member.ITERATED):
        assert work.due() == {}
        work.dealt_with([record(offset, offset + 1)])
    assert work.due() == {ONE: member.ITERATED}
    assert len(noted) == member.ITERATED


def test_who_leaves_commits_to_the_consumer_commits_nothing(noted: list[member.Event]) -> None:
    work = Work(settings(commits="auto"))
    work.dealt_with([record(5, 10)])
    assert work.due() == work.open([ONE]) == {}
    assert noted
    assert work.consumer_settings()["auto_commit"] is True


def test_what_is_subscribed_to() -> None:
    assert Work(settings()).wanted == {"topics": ["t"]}
    assert Work(settings(topics=["a.b", "c"], by_pattern=True)).wanted == {"pattern": r"a\.b|c"}
    mine = Work(settings(instance="i", assignor="range", session_timeout_s=3.0))
    made = mine.consumer_settings()
    assert (made["group_instance_id"], made["assignor"]) == ("i", "range")
    assert made["heartbeat_interval_ms"] * 3 <= made["session_timeout_ms"]


@pytest.mark.integration
@pytest.mark.parametrize("style", ["poll", "iterate", "aio"])
def test_a_process_reads_commits_and_leaves(style: str, tmp_path: Path) -> None:
    with cluster(1, directory=tmp_path) as running, Producer(running.bootstrap) as producer:
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 1, 1)])
        sent = [producer.send("t", entries.encode_value(n, 5), partition=0) for n in range(1, 101)]
        for future in sent:
            future.result(30)
        events = lines_of(settings(bootstrap=running.bootstrap, style=style, session_timeout_s=3.0))
    check_timeline(events)


def lines_of(asked: Settings) -> list[dict[str, Any]]:
    """What a member's process tells until it has been given 100 records, and leaves."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "raftlog_jepsen.member",
            msgspec.json.encode(asked).decode(),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **python_path(SOURCE)},
    )
    events: list[dict[str, Any]] = []
    is_told = False
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        for line in process.stdout:
            events.append(json.loads(line))
            if _count(events) == 100 and not is_told:
                is_told = True
                process.stdin.write("stop\n")
                process.stdin.flush()
            if events[-1]["what"] == "end":
                break
        assert process.wait(30) == 0
    return events


def check_timeline(events: list[dict[str, Any]]) -> None:
    whats = [event["what"] for event in events]
    assert whats[0] == "assigned"
    assert whats[-2:] == ["revoked", "end"]
    commits = [event for event in events if event["what"] == "commit"]
    assert commits[-1]["type"] == "ok"
    assert commits[-1]["offsets"] == {"t:0": 100}
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)


def _count(events: list[dict[str, Any]]) -> int:
    """How many records were told of."""
    given = (event.get("records", {}) for event in events)
    return sum(count for records in given for runs in records.values() for _, count, *_ in runs)


# -- kafka member ----------------------------------------------------------------------------------
#
# The application of a member that is a Kafka client, as a process.


@pytest.mark.integration
def test_a_member_of_either_protocol_processes_commits_and_leaves() -> None:
    with cluster(1, settings={"group.initial.rebalance.delay.ms": "0"}) as running:
        with Admin(running.bootstrap) as admin, Producer(running.bootstrap) as producer:
            admin.create_topics([NewTopic("t", 1, 1)])
            for value in range(1, 101):
                producer.send("t", entries.encode_value(value, 10))
            producer.flush()
        for protocol, by_pattern in (("classic", True), ("consumer", False)):
            asked = settings(
                bootstrap=running.bootstrap,
                group=protocol,
                protocol=protocol,
                by_pattern=by_pattern,
                session_timeout_s=6.0,
            )
            check_timeline(lines_of(asked))
