"""Members of groups in a run: their application, and their processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftlog import Admin, NewTopic, Producer
from raftlog.testing import cluster, wait_until
from raftlog.testing import history as entries
from raftlog.testing.fork_server import SOURCE, python_path
from raftlog.testing.history import AnyEntry, Commit, Member, Note, Poll, Recorder, read
from raftlog.types import ConsumerRecord, TopicPartition
from raftlog_jepsen import member
from raftlog_jepsen import members as module
from raftlog_jepsen.member import Settings, Work
from raftlog_jepsen.members import Members
from raftlog_jepsen.plan import GroupShape, MemberShape

# -- the application -------------------------------------------------------------------------------

# What the application of a member does: tells, commits what it has dealt with, and ends.


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


# -- processes -------------------------------------------------------------------------------------

# Processes of members are started, killed and listened to; what they say is in the history.


# In place of a consumer: it says what a member would, and ends when it is told to.
ACTOR = """
import json, sys, time
settings = json.loads(sys.argv[1])
def say(**event):
    print(json.dumps({"at": time.monotonic_ns(), **event}), flush=True)
say(what="assigned", partitions=["t:0", "t:1"])
say(what="given", records={"t:0": [[0, 3, 1, 1]]})
say(what="revoked", partitions=["t:1"])
say(what="given", records={"t:0": [[3, 2, 4, 1]]})
say(what="commit", type="invoke", offsets={"t:0": 5})
say(what="commit", type="ok", offsets={"t:0": 5})
sys.stdout.write('{"what": "gi'), sys.stdout.flush()
if settings["commits"] == "auto":
    say(what="")
    say(what="end", error="SomeError: it hurts")
    sys.exit("it hurts")
sys.stdin.readline()
"""
GROUP = GroupShape(
    name="g", topics=("t",), members=(MemberShape(), MemberShape()), session_timeout_s=3.0
)
FAILING = GroupShape(name="f", topics=("t",), members=(MemberShape(commits="auto"),))


class Stage:
    def __init__(self, directory: Path, *groups: GroupShape) -> None:
        self.recorder = Recorder(directory / "history.jsonl", time.monotonic_ns)
        self.members = Members(directory / "members", self.recorder, "broker:1", groups)

    def entries(self) -> list[AnyEntry]:
        self.members.close()
        self.recorder.close()
        return list(read(self.recorder.path))

    def wait_for_all(self, *slots: int) -> None:
        for slot in slots:
            wait_until(lambda slot=slot: self.members.owned(slot) == {"t:0"}, what="its words")


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMAND", (sys.executable, "-c", ACTOR))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, GROUP)
    yield made
    made.members.close()


def whats(entries: list[AnyEntry], process: str) -> list[str]:
    return [e.what for e in entries if isinstance(e, Member) and e.process == process]


@pytest.mark.usefixtures("actor")
@pytest.mark.integration
def test_what_a_member_says_is_in_the_history(stage: Stage) -> None:
    stage.members.start([1])
    stage.wait_for_all(1)
    assert stage.members.running() == [1]
    assert stage.members.running("other") == []
    wait_until(lambda: stage.members.given.get(("g", "t:0")) == 5, what="all was given")
    assert stage.members.stop([1]) == {1: "status 0"}
    entries = stage.entries()
    assert whats(entries, "g/m1.1") == ["start", "assigned", "revoked", "close", "end"]
    start = next(e for e in entries if isinstance(e, Member))
    assert start.args["topics"] == ["t"]
    assert start.args["session_timeout_s"] == 3.0
    polls = [e for e in entries if isinstance(e, Poll)]
    assert [poll.type for poll in polls] == ["invoke", "ok"] * 2
    assert [poll.process for poll in polls] == ["g/m1.1#1"] * 2 + ["g/m1.1#2"] * 2
    assert polls[1].records == {"t:0": [(0, 3, 1, 1)]}
    assert all(0 < poll.at <= poll.time for poll in polls)
    commits = [e for e in entries if isinstance(e, Commit)]
    assert [(c.process, c.type, c.offsets) for c in commits] == [
        ("g/m1.1", "invoke", {"t:0": 5}), ("g/m1.1", "ok", {"t:0": 5}),
    ]  # fmt: skip
    times = [entry.time for entry in entries]
    assert times == sorted(times)


@pytest.mark.usefixtures("actor")
@pytest.mark.integration
def test_who_is_killed_stays_away_until_it_is_started(stage: Stage) -> None:
    stage.members.start([1, 2])
    stage.wait_for_all(1, 2)
    assert stage.members.kill([1]) == {1: "signal 9"}
    assert stage.members.state(1) == "gone"
    stage.members.mind()
    assert stage.members.running() == [2]
    stage.members.start([1])
    stage.members.mind()
    stage.wait_for_all(1)
    assert stage.members.running() == [1, 2]
    entries = stage.entries()
    assert whats(entries, "g/m1.1")[-2:] in (["killed", "end"], ["end", "killed"])
    assert whats(entries, "g/m1.2")[0] == "start"
    assert not [e for e in entries if isinstance(e, Note)]


@pytest.mark.usefixtures("actor")
@pytest.mark.integration
def test_who_is_stopped_is_not_at_work(stage: Stage) -> None:
    stage.members.start([1])
    stage.wait_for_all(1)
    stage.members.pause([1])
    wait_until(lambda: stage.members.state(1) == "stopped", what="it stops")
    assert stage.members.running() == []
    stage.members.resume([1])
    wait_until(lambda: stage.members.state(1) == "running", what="it goes on")
    stage.members.note([1, 2], "cut")
    entries = stage.entries()
    assert whats(entries, "g/m1.1")[3:6] == ["paused", "resumed", "cut"]


@pytest.mark.usefixtures("actor")
@pytest.mark.integration
def test_one_that_ends_by_itself_is_trouble_and_has_a_successor(tmp_path: Path) -> None:
    stage = Stage(tmp_path, FAILING)
    stage.members.start([1])
    wait_until(lambda: stage.members.state(1) == "gone", what="it ends")
    stage.members.mind()
    wait_until(lambda: stage.members.name(1) == "f/m1.2", what="the next one")
    notes = [e for e in stage.entries() if isinstance(e, Note)]
    assert notes[0].is_trouble
    assert "f/m1.1 ended unexpectedly with status 1: it hurts" in notes[0].text
    ends = [e for e in read(stage.recorder.path) if isinstance(e, Member) and e.what == "end"]
    assert ends[0].error == "SomeError: it hurts"


@pytest.mark.usefixtures("actor")
def test_nobody_starts_when_all_is_over(stage: Stage) -> None:
    stage.members.close()
    stage.members.start([1])
    assert stage.members.running() == []
    assert stage.members.state(1) == "gone"
    assert stage.members.name(1) == "slot 1"
    assert stage.entries() == []
