"""A right history of a group is right; each mistake that is put into one is called by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftlog.testing.simulator.history import History, Operation, Outcome, Owning, Seen
from raftlog.testing.simulator.scenario import Copy, Ending, check
from raftlog.types import TopicPartition

P = TopicPartition("events", 0)
LOG = range(12)
FIRST, SECOND = "member-1/1.1", "member-2/1.1"
DRIFT_NS = 20


class Story:
    """Two members, the second of which is given the partition after the first has left it."""

    def __init__(self) -> None:
        self.now = 0
        self.history = History(lambda: self.now)
        for number in LOG:
            send = self.history.send("p", P, f"v{number}", acks=-1, idempotent=True)
            send.offset = number
            self.end(send)

    def at(self, now: int) -> Story:
        self.now = now
        return self

    def end(self, operation: Operation, outcome: Outcome = Outcome.OK) -> None:
        self.now += 1
        self.history.end(operation, outcome)

    def owning(self, member: str) -> Owning:
        return self.history.owning(member, P)

    def poll(self, member: str, first: int, end: int) -> None:
        poll = self.history.poll(f"{member}@1")
        poll.records = {P: [Seen(n, f"v{n}", 0) for n in range(first, end)]} if first < end else {}
        self.end(poll)

    def commit(self, member: str, offset: int, outcome: Outcome = Outcome.OK) -> None:
        self.end(self.history.commit(member, {P: offset}), outcome)

    def committed(self, offset: int) -> None:
        told = self.history.committed("asker")
        told.offsets = {} if offset < 0 else {P: offset}
        self.end(told)

    @property
    def kinds(self) -> set[str]:
        log = [Seen(n, f"v{n}", 0) for n in LOG]
        ending = Ending(readers=[Copy("reader-1", P, log, 0, len(log))], drift_ns=DRIFT_NS)
        return {violation.kind for violation in check(self.history, ending)}

    def first_half(self) -> Owning:
        owning = self.at(100).owning(FIRST)
        self.at(110).poll(FIRST, 0, 5)
        self.at(120).commit(FIRST, 5)
        self.at(130).committed(5)
        return owning

    def second_half(self, *, first: int = 5) -> None:
        self.at(200).owning(SECOND)
        self.at(300).poll(SECOND, first, 9)
        self.at(310).commit(SECOND, 9)
        self.at(320).committed(9)


def told(change: Callable[[Story, Owning], None], **second: Any) -> set[str]:
    """The kinds of what is found after ``change`` was made between the two halves."""
    story = Story()
    owning = story.first_half()
    change(story, owning)
    story.second_half(**second)
    return story.kinds


def leaves(story: Story, owning: Owning) -> None:
    story.at(150).end(owning)


def test_a_partition_may_go_from_one_member_to_another() -> None:
    assert told(leaves) == set()
    assert told(leaves, first=3) == {"GROUP-OFFSET-LOST"}


def test_what_was_not_acknowledged_may_be_committed_or_not() -> None:
    def tries(story: Story, owning: Owning) -> None:
        story.at(140).commit(FIRST, 4, Outcome.INFO)
        story.committed(5)
        leaves(story, owning)

    assert told(tries) == set()


def test_a_member_that_died_owns_the_partition_no_longer_than_it_polls() -> None:
    assert told(lambda *_: None) == set()


def test_who_was_held_up_may_learn_of_its_loss_in_the_next_poll() -> None:
    story = Story()
    owning = story.first_half()
    waiting = story.at(140).history.poll(f"{FIRST}@1")
    story.at(200).owning(SECOND)
    story.at(400).end(waiting)
    polling = story.at(410).history.poll(f"{FIRST}@1")
    story.at(420).end(owning, Outcome.INFO)
    story.at(430).end(polling)
    assert story.kinds == set()


def polls_on(story: Story) -> None:
    story.first_half()
    story.second_half()
    story.at(400).poll(FIRST, 5, 5)


def commits_late(story: Story) -> None:
    story.first_half()
    story.second_half()
    story.at(400).commit(FIRST, 9)


def commits_back(story: Story) -> None:
    story.first_half()
    story.at(140).commit(FIRST, 4)


def forgets(story: Story) -> None:
    story.first_half()
    story.at(140).committed(-1)


def begins_too_early(story: Story) -> None:
    leaves(story, story.first_half())
    story.second_half(first=4)


def invents(story: Story) -> None:
    story.first_half()
    story.at(140).committed(6)


def is_ahead(story: Story) -> None:
    story.first_half()
    story.at(140).commit(FIRST, 12, Outcome.INFO)
    story.committed(12)
    story.commit(FIRST, 13, Outcome.INFO)
    story.committed(13)


def skips(story: Story) -> None:
    leaves(story, story.first_half())
    story.second_half(first=6)


MISTAKES: list[tuple[Callable[[Story], None], str]] = [
    (polls_on, "GROUP-TWO-OWNERS"),
    (commits_late, "GROUP-TWO-OWNERS"),
    (commits_back, "GROUP-COMMIT-BACKWARD"),
    (forgets, "GROUP-OFFSET-ZERO"),
    (begins_too_early, "GROUP-OFFSET-LOST"),
    (invents, "GROUP-OFFSET-PHANTOM"),
    (is_ahead, "GROUP-OFFSET-AHEAD"),
    (skips, "GROUP-SKIPPED"),
]


@pytest.mark.parametrize(("mistake", "kind"), MISTAKES)
def test_a_mistake_is_called_by_its_name(mistake: Callable[[Story], None], kind: str) -> None:
    story = Story()
    mistake(story)
    assert kind in story.kinds <= {kind, "GROUP-SKIPPED"}
