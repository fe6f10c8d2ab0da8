"""Processes of members are started, killed and listened to; what they say is in the history."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.testing import wait_until
from raftlog.testing.history.entries import AnyEntry, Commit, Member, Note, Poll, Recorder, read
from raftlog_jepsen import members as module
from raftlog_jepsen.members import Members
from raftlog_jepsen.plan import GroupShape, MemberShape

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


@pytest.fixture(autouse=True)
def actor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMAND", (sys.executable, "-c", ACTOR))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, GROUP)
    yield made
    made.members.close()


def whats(entries: list[AnyEntry], process: str) -> list[str]:
    return [e.what for e in entries if isinstance(e, Member) and e.process == process]


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


def test_nobody_starts_when_all_is_over(stage: Stage) -> None:
    stage.members.close()
    stage.members.start([1])
    assert stage.members.running() == []
    assert stage.members.state(1) == "gone"
    assert stage.members.name(1) == "slot 1"
    assert stage.entries() == []
