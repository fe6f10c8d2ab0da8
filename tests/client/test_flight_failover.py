"""One partition's batches while leaders come and go: a model of replicas, and random stories."""

from __future__ import annotations

import random
from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from raftlog.client.accumulator import PendingBatch
from raftlog.client.sender import InFlightBatches, stranded
from raftlog.errors import (
    CommitUnknownError,
    InvalidRequestError,
    OutcomeUnknownError,
    RaftlogError,
)
from tests.client.test_sender import LOST, MOVED, PRODUCER, batch, bytes_of, launch
from tests.client.world import FakeLog


class Replicas:
    """Three logs of one partition. What is committed is in all; a leader's tail may be its own.

    A leader that is elected has what is committed, and keeps what else it had: so a batch that one
    leader took and another did not know of may come back with the next election.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.logs = [FakeLog() for _ in range(3)]
        self.leader = 0
        self.epoch = 0

    def append(self, data: bytes) -> None:
        self.logs[self.leader].append(data)

    def commit(self) -> None:
        """All follow the leader: their own tails are cut."""
        leader = self.logs[self.leader]
        self.logs = [leader if log is leader else deepcopy(leader) for log in self.logs]

    def elect(self) -> None:
        self.leader = self.chance.choice([each for each in range(3) if each != self.leader])
        self.epoch += 1


FATES = ("committed", "appended", "answer lost", "request lost", "refused")


class Story:
    """One producer's batches, from their first launch to their ends, while leaders change."""

    def __init__(self, seed: int, count: int) -> None:
        self.chance = random.Random(seed)
        self.fates = [self.chance.choice([1, 4, 8]) for _ in FATES]
        self.elections = self.chance.choice([0.1, 0.3, 0.6])
        self.flight = InFlightBatches(idempotent=True)
        self.replicas = Replicas(self.chance)
        self.waiting = [
            batch(b"%d" % number, expires_at=self.chance.choice([3.0, 5.0, 1e9]))
            for number in range(count)
        ]
        self.numbers = {id(pending): number for number, pending in enumerate(self.waiting)}
        self.acknowledged: list[int] = []
        self.failed: list[tuple[int, RaftlogError]] = []

    def launch_some(self) -> None:
        """As the sender does it."""
        flight, replicas = self.flight, self.replicas
        while self.waiting and not flight.held and self.chance.random() < 0.8:
            head = self.waiting[0]
            if flight.is_stranded(head):
                self.failed.append((self.numbers[id(self.waiting.pop(0))], stranded(head)))
                continue
            if flight.full_for(head) or flight.must_stay(replicas.leader, replicas.epoch):
                break
            if not flight.may_launch(head, producer=PRODUCER):
                break
            flight.sent_to(replicas.leader, replicas.epoch)
            launch(flight, self.waiting.pop(0))

    def answer(self, pending: PendingBatch) -> RaftlogError | None:
        """What becomes of one attempt; None when it is committed."""
        chance, replicas = self.chance, self.replicas
        if pending.leader_epoch != replicas.epoch:
            return chance.choice([MOVED, LOST, CommitUnknownError("taken back")])
        fate = chance.choices(FATES, self.fates)[0]
        if fate == "request lost":
            return LOST
        if fate == "refused":
            return InvalidRequestError("bad record")
        try:
            replicas.append(bytes_of(pending))
        except RaftlogError as error:
            return LOST if fate == "answer lost" else error
        if fate == "answer lost":
            return LOST
        if fate == "appended":
            replicas.elect()
            return CommitUnknownError("the leader stepped down")
        replicas.commit()
        return None

    def resolve(self, now: float) -> None:
        again, lost = self.flight.resolve(now)
        self.waiting[:0] = again
        self.failed += [(self.numbers[id(pending)], error) for pending, error in lost]

    def play(self) -> None:
        now = 0.0
        while self.waiting or self.flight.in_flight:
            now += 1.0
            if self.chance.random() < self.elections:
                self.replicas.elect()
            self.launch_some()
            for pending in list(self.flight.in_flight):
                error = self.answer(pending)
                if error is None:
                    self.flight.succeeded(pending)
                    self.acknowledged.append(self.numbers[id(pending)])
                else:
                    self.flight.setback(pending, error)
            if self.flight.setbacks:
                self.resolve(now)


@given(st.integers(0, 100_000), st.integers(1, 12))
def test_between_leaders_nothing_is_stored_twice_or_out_of_order(seed: int, count: int) -> None:
    """Leaders change at any time, and one that was gone may lead again, with what it had taken."""
    story = Story(seed, count)
    story.play()
    ends = [*story.acknowledged, *(number for number, _ in story.failed)]
    assert sorted(ends) == list(range(count))
    for log in story.replicas.logs:  # whoever leads in the end
        stored = [int(value or b"") for value in log.values()]
        assert stored == sorted(set(stored)), "once each, and in order"
        assert set(story.acknowledged) <= set(stored), "what is acknowledged is stored"
        for number, error in story.failed:
            if not isinstance(error, OutcomeUnknownError):
                assert number not in stored, f"{error!r} says that it is not stored"
