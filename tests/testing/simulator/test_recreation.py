"""A topic takes the place of another: what was acknowledged before is neither owed nor there."""

from __future__ import annotations

from dataclasses import replace

from raftlog.testing.simulator.checker import Ending, check
from raftlog.testing.simulator.faults import FaultPlan
from raftlog.testing.simulator.history import (
    Commit,
    Committed,
    History,
    Operation,
    Outcome,
    Owning,
    Poll,
    Seen,
    Send,
)
from raftlog.testing.simulator.recreation import (
    FORMER,
    of_the_group,
    of_the_new_topic,
    polled,
    recreation_of,
    revenants,
)
from raftlog.testing.simulator.scenario import Scenario, run
from raftlog.types import TopicPartition

P = TopicPartition("events", 0)
FORMER_LED_NS = 300


class Story:
    """The topic is deleted at 200 ns, and led for the last time at 300 ns."""

    def __init__(self) -> None:
        self.now = 0
        self.history = History(lambda: self.now)
        self.former = self.send(100, "p/1#1", 0)
        self.history.end(self.at(200, self.history.recreation("recreator")), Outcome.OK)
        self.either = self.send(250, "p/1#2", 1)
        self.new = self.send(400, "p/1#3", 0)

    def at(self, now: int, operation: Operation) -> Operation:
        operation.invoked_ns = now
        self.now = now + 10
        return operation

    def send(self, now: int, value: str, offset: int) -> Send:
        send = self.history.send("p/1", P, value, acks=-1, idempotent=True)
        send.offset = offset
        self.history.end(self.at(now, send), Outcome.OK)
        return send

    def poll(self, now: int, process: str, *records: Seen) -> Poll:
        poll = self.history.poll(process)
        poll.records = {P: list(records)}
        self.history.end(self.at(now, poll), Outcome.OK)
        return poll

    def later(self) -> History:
        recreation = recreation_of(self.history)
        assert recreation is not None
        return of_the_new_topic(self.history, recreation, FORMER_LED_NS, "new")

    def kinds(self, *log: Seen) -> list[str]:
        recreation = recreation_of(self.history)
        assert recreation is not None
        later, ending = self.later(), Ending({P: [log]})
        found = [*ending.everything(), *polled(later)]
        judged = [*revenants(self.history, recreation, found), *check(later, ending)]
        return [violation.kind for violation in judged]


def test_what_was_acknowledged_before_the_deletion_is_not_owed() -> None:
    story = Story()
    assert story.kinds(Seen(0, story.new.value, 0)) == []
    assert story.former.is_ok, "the history is left as it was"


def test_what_was_acknowledged_in_between_may_be_there_or_not() -> None:
    story = Story()
    log = Seen(0, story.new.value, 0), Seen(1, story.either.value, 0)
    assert story.kinds(*log) == []


def test_what_was_acknowledged_since_has_to_be_there() -> None:
    assert Story().kinds() == ["LOST"]


def test_a_record_of_the_former_topic_is_not_in_the_new_one() -> None:
    story = Story()
    log = Seen(0, story.new.value, 0), Seen(1, story.former.value, 0)
    assert story.kinds(*log) == [FORMER]


def test_consumers_may_have_fetched_before() -> None:
    story = Story()
    there, gone = Seen(0, story.new.value, 0), Seen(0, story.former.value, 0)
    story.poll(290, "c/1.1", gone)
    story.poll(500, "c/1.1", gone)
    assert story.kinds(there) == []
    story.poll(600, "c/1.2", gone)
    assert FORMER in story.kinds(there)


def test_members_know_the_topic_of_what_they_receive() -> None:
    """They may receive records of either topic at any time, and each polls both."""
    story = Story()
    there, gone = Seen(0, story.new.value, 0), Seen(0, story.former.value, 0)
    for now, records, topic_id in ((290, [there], "new"), (500, [gone], "former")):
        poll = story.poll(now, "member-1/1.1@1", *records)
        poll.topic_ids = {P: topic_id}
    polls = [entry for entry in story.later() if isinstance(entry, Poll)]
    assert [poll.records for poll in polls] == [{P: [there]}, {}]


def test_a_group_is_checked_in_each_topic() -> None:
    story, history = Story(), History(lambda: 0)
    for topic_id in ("former", "new"):
        history.owning("member-1/1.1", P, topic_id)
        history.commit("member-1/1.1", {P: 5}, {P: topic_id})
    for now in (100, 250, 400):
        story.history.end(story.at(now, history.committed("asker")), Outcome.OK)
    former = list(of_the_group(history, "former", until_ns=200))
    new = list(of_the_group(history, "new", since_ns=300))
    assert [entry.invoked_ns for entry in former if isinstance(entry, Committed)] == [100]
    assert [entry.invoked_ns for entry in new if isinstance(entry, Committed)] == [400]
    for part, topic_id in ((former, "former"), (new, "new")):
        owned = [entry.topic_id for entry in part if isinstance(entry, Owning)]
        commits = [entry.offsets for entry in part if isinstance(entry, Commit)]
        assert (owned, sorted(commits, key=len)) == ([topic_id], [{}, {P: 5}])


def test_only_later_ends_and_deletions_count() -> None:
    story = Story()
    for now in (150, 260, 500):
        asking = story.history.end_offsets("c/1.1")
        story.history.end(story.at(now, asking), Outcome.OK)
        deletion = story.history.deletion("admin", P, now)
        story.history.end(story.at(now, deletion), Outcome.OK)
    counts = story.later().counts()
    assert counts["endoffsets ok"] == 1
    assert counts["deletion ok"] == 2, "one that was under way may have deleted records of either"


def test_a_topic_is_recreated_under_its_clients() -> None:
    drawn = Scenario.draw(4, brokers=3, light=True)
    workload = replace(drawn.workload, recreates_after_s=2.0)
    faults = FaultPlan(kinds=("client_kill", "kill"), every_s=0.7)
    verdict = run(replace(drawn, faults=faults, duration_s=6.0, workload=workload))
    assert verdict.is_good, verdict.violations[:10]
    assert verdict.operations["recreation ok"] == 1
    assert verdict.operations["send ok"] > 0


def test_some_seeds_of_safety_recreate_the_topic() -> None:
    drawn = [Scenario.draw(seed, brokers=3, light=True) for seed in range(150)]
    chosen = [scenario for scenario in drawn if scenario.workload.recreates_after_s]
    assert 5 < len(chosen) < 40
    assert all(s.workload.recreates_after_s < s.duration_s for s in chosen)
    assert any(s.workload.group for s in chosen)
    core = [Scenario.draw(seed, mode="liveness", brokers=3) for seed in range(50)]
    assert not any(scenario.workload.recreates_after_s for scenario in core)
