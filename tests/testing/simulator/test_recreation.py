"""A topic takes the place of another: what was acknowledged before is neither owed nor there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from raftlog.testing.simulator.faults import FaultPlan
from raftlog.testing.simulator.history import History, Operation, Outcome, Poll, Seen, Send
from raftlog.testing.simulator.scenario import Copy, Ending, Scenario, check, run
from raftlog.types import Offset, TopicPartition

P = TopicPartition("events", 0)
FORMER_LED_NS = 300
MEMBER, OTHER = "member-1/1.1", "member-2/1.1"


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

    def poll(self, now: int, process: str, *records: Seen, topic_id: str = "") -> Poll:
        poll = self.history.poll(process)
        poll.records = {P: list(records)}
        poll.topic_ids = {P: topic_id} if topic_id else {}
        self.history.end(self.at(now, poll), Outcome.OK)
        return poll

    def owning(self, now: int, member: str, topic_id: str) -> None:
        self.at(now, self.history.owning(member, P, topic_id))

    def commit(self, now: int, member: str, offset: Offset, topic_id: str) -> None:
        commit = self.history.commit(member, {P: offset}, {P: topic_id})
        self.history.end(self.at(now, commit), Outcome.OK)

    def committed(self, now: int, offsets: Mapping[TopicPartition, Offset]) -> None:
        asked = self.history.committed("asker")
        asked.offsets = dict(offsets)
        self.history.end(self.at(now, asked), Outcome.OK)

    def kinds(self, *log: Seen) -> set[str]:
        copy = Copy("reader-1", P, log, 0, len(log))
        ending = Ending(
            readers=[copy],
            replicas=[copy._replace(who="broker-1")],
            topic_id="new",
            former_led_ns=FORMER_LED_NS,
            former_known_ns=FORMER_LED_NS,
        )
        return {violation.kind for violation in check(self.history, ending)}


def test_what_was_acknowledged_before_the_deletion_is_not_owed() -> None:
    story = Story()
    assert story.kinds(Seen(0, story.new.value, 0)) == set()


def test_what_was_acknowledged_in_between_may_be_there_or_not() -> None:
    story = Story()
    log = Seen(0, story.new.value, 0), Seen(1, story.either.value, 0)
    assert story.kinds(*log) == set()


def test_what_was_acknowledged_since_has_to_be_there() -> None:
    assert Story().kinds() == {"LOST-tail"}


def test_a_record_of_the_former_topic_is_not_in_the_new_one() -> None:
    story = Story()
    log = Seen(0, story.new.value, 0), Seen(1, story.former.value, 0)
    assert story.kinds(*log) == {"RESURRECTED"}


def test_consumers_may_have_fetched_before() -> None:
    story = Story()
    there, gone = Seen(0, story.new.value, 0), Seen(0, story.former.value, 0)
    story.poll(290, "c/1.1", gone)
    story.poll(500, "c/1.1", gone)
    assert story.kinds(there) == set()
    story.poll(600, "c/1.2", gone)
    assert "RESURRECTED" in story.kinds(there)


def test_members_know_the_topic_of_what_they_receive() -> None:
    """They may have fetched records of the former topic before, but not of the new one."""
    story = Story()
    there, gone = Seen(0, story.new.value, 0), Seen(0, story.former.value, 0)
    story.poll(600, f"{MEMBER}@1", gone, topic_id="former")
    assert story.kinds(there) == set()
    story.poll(700, f"{MEMBER}@2", gone, topic_id="new")
    assert "RESURRECTED" in story.kinds(there)


def test_only_later_ends_and_deletions_count() -> None:
    story = Story()
    for now, end in ((150, 5), (260, 5), (500, 1)):
        asking = story.history.end_offsets("c/1.1")
        asking.ends = {P: end}
        story.history.end(story.at(now, asking), Outcome.OK)
    deletion = story.history.deletion("admin", P, 1)
    story.history.end(story.at(150, deletion), Outcome.OK)
    assert story.kinds(Seen(0, story.new.value, 0)) == set()
    assert story.kinds() == {"LOST-tail"}
    deletion.completed_ns = 260  # it may have deleted records of either topic
    assert story.kinds() == set()


def test_a_group_is_checked_in_each_topic() -> None:
    story = Story()
    there = Seen(0, story.new.value, 0)
    for start, member, topic_id in ((110, MEMBER, "former"), (410, OTHER, "new")):
        story.owning(start, member, topic_id)
        story.poll(start + 10, f"{member}@1", there if topic_id == "new" else Seen(0, "p/1#1", 0),
                   topic_id=topic_id)  # fmt: skip
        story.commit(start + 20, member, 1, topic_id)
    story.poll(500, f"{MEMBER}@1", topic_id="former")  # the other one has a partition of another
    story.committed(150, {P: 1})
    story.committed(250, {})  # of either topic
    story.committed(600, {P: 1})
    assert story.kinds(there) == set()
    story.committed(180, {})
    assert story.kinds(there) == {"GROUP-OFFSET-ZERO"}


def test_an_offset_of_the_former_topic_is_none_of_the_new_one() -> None:
    story = Story()
    story.owning(110, MEMBER, "former")
    story.commit(120, MEMBER, 1, "former")
    story.committed(600, {})
    there = Seen(0, story.new.value, 0)
    assert story.kinds(there) == set()
    story.committed(700, {P: 1})
    assert "GROUP-OFFSET-PHANTOM" in story.kinds(there)


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
