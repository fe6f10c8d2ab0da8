"""A member's own state: what it tells, when it may read, and what becomes of lost answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raftlog.client.groups.member import Membership, Phase, shares
from raftlog.client.settings import GroupSettings
from raftlog.consumer_groups import BUILT_IN, GroupShard, StateChange, TopicInfo
from raftlog.consumer_groups import GroupSettings as CoordinatorSettings
from raftlog.errors import (
    FencedMemberError,
    InstanceFencedError,
    RaftlogError,
    RequestTimedOutError,
    UnknownMemberError,
)
from raftlog.protocol.records import (
    AWAY_EPOCH,
    LEAVE_EPOCH,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
)
from raftlog.types import TopicPartition
from tests.client.consumer_groups.fake_coordinator import answer_of, heartbeat_of
from tests.client.virtual import START_MS

A, B, C = (TopicPartition("t", number) for number in range(3))
SETTINGS = GroupSettings(group="g", session_timeout_ms=9_000, heartbeat_interval_ms=3_000)


def member(name: str = "m", **changes: Any) -> Membership:
    return Membership(replace(SETTINGS, **changes), name)


def answer(epoch: int, *partitions: TopicPartition, topic_id: str = "id") -> GroupHeartbeatResponse:
    owned = dict.fromkeys(partitions, topic_id)
    return GroupHeartbeatResponse(member_epoch=epoch, assignment=shares(owned))


def beat(made: Membership, now: float) -> GroupHeartbeatRequest:
    found = made.beat(now=now)
    assert found is not None
    return found


def owned(request: GroupHeartbeatRequest) -> set[TopicPartition]:
    return {
        TopicPartition(share.topic, partition)
        for share in request.owned
        for partition in share.partitions
    }


def joined(*partitions: TopicPartition, **changes: Any) -> Membership:
    """A member at epoch 1 and time 100 that has taken these; its next heartbeat is due."""
    made = member(**changes)
    made.subscribe(["t"], now=100)
    made.answered(beat(made, 100), answer(1, *partitions), now=100)
    if partitions:
        change = made.take()
        assert change is not None
        assert set(change.assigned) == set(partitions)
    return made


def test_it_joins_at_once_and_then_waits_at_the_coordinator() -> None:
    made = member()
    assert (made.phase, made.next_at, made.beat(now=5)) == (Phase.OUT, math.inf, None)
    made.subscribe(["t"], now=5)
    assert made.next_at == 5
    first = beat(made, 5)
    assert (first.member_epoch, first.sequence, first.wait_ms, first.topics) == (0, 1, 0, ["t"])
    assert made.beat(now=6) is None, "it waits for the answer"
    made.answered(first, answer(1, A), now=7)
    second = beat(made, 7)
    assert (second.member_epoch, second.sequence, second.wait_ms) == (1, 2, 3_000)
    assert owned(second) == {A}, "the application may begin with it at any time"
    made.answered(second, answer(1, A), now=10)
    assert beat(made, 10).sequence == 3


def test_a_coordinator_that_does_not_wait_is_not_asked_all_the_time() -> None:
    made = joined(A)
    made.answered(beat(made, 100), answer(1, A), now=100.1)
    assert made.next_at == 103


def test_what_is_revoked_is_owned_until_it_is_released() -> None:
    made = joined(A, B)
    made.answered(beat(made, 100), answer(2, A), now=101)
    assert made.pending
    change = made.take()
    assert change is not None
    assert (set(change.revoked), change.assigned, made.take()) == ({B}, {}, None)
    assert made.beat(now=102) is None, "there is nothing to say that would help"
    third = beat(made, 103)
    assert (owned(third), third.wait_ms) == ({A, B}, 0)
    made.released(change.revoked, incarnation=made.incarnation, now=103.5)
    fourth = beat(made, 103.5)
    assert (owned(fourth), fourth.wait_ms) == ({A}, 3_000)


def test_what_was_never_taken_is_given_up_without_the_application() -> None:
    made = joined(A)
    made.answered(beat(made, 100), answer(2, A, B), now=101)
    made.answered(beat(made, 101), answer(3, A), now=102)
    assert not made.pending
    assert owned(beat(made, 102)) == {A}


def test_what_comes_back_while_it_is_on_its_way_out_is_begun_anew_after_that() -> None:
    made = joined(A)
    made.answered(beat(made, 100), answer(2), now=101)
    change = made.take()
    assert change is not None
    made.answered(beat(made, 103), answer(3, A), now=104)
    assert not made.pending
    assert owned(beat(made, 106)) == {A}
    made.released(change.revoked, incarnation=made.incarnation, now=107)
    again = made.take()
    assert again is not None
    assert set(again.assigned) == {A}


def test_another_topic_of_the_name_is_another_one() -> None:
    made = joined(A)
    made.answered(beat(made, 100), answer(2, A, topic_id="new"), now=101)
    change = made.take()
    assert change is not None
    assert (change.revoked, change.assigned) == ({A: "id"}, {})
    made.released(change.revoked, incarnation=made.incarnation, now=102)
    again = made.take()
    assert again is not None
    assert again.assigned == {A: "new"}
    assert made.topic_ids([A]) == {"t": "new"}


def test_a_revoked_partition_of_a_deleted_topic_is_committed_for_that_topic() -> None:
    made = joined(A)
    made.answered(beat(made, 100), answer(2, A, B, topic_id="new"), now=101)
    change = made.take()
    assert change is not None
    assert (set(change.revoked), set(change.assigned)) == ({A}, {B})
    assert made.topic_ids([A]) == made.topic_ids([A, B]) == {"t": "id"}
    assert made.topic_ids([B]) == {"t": "new"}


def test_only_the_answer_to_the_last_heartbeat_counts() -> None:
    made = joined(A)
    old = beat(made, 100)
    made.subscribe(["t", "u"], now=101)
    new = beat(made, 101)
    made.answered(old, answer(2, A, B), now=102)
    made.failed(old, UnknownMemberError("gone"), retry_at=None)
    assert (made.epoch, made.pending, made.phase) == (1, False, Phase.IN)
    made.answered(new, answer(3, A, C), now=102)
    assert made.epoch == 3


def test_another_subscription_gives_up_what_it_has_no_use_for() -> None:
    made = joined(A)
    made.subscribe(["u"], now=101)
    change = made.take()
    assert change is not None
    assert set(change.revoked) == {A}
    made.answered(beat(made, 101), answer(2, A), now=101)
    assert made.take() is None


def test_errors_that_pass_are_tried_again_and_the_session_ends_at_last() -> None:
    made = joined(A)
    made.failed(beat(made, 100), RequestTimedOutError("no"), retry_at=101)
    assert made.next_at == 101
    beat(made, 101)
    made.tick(now=108.9)
    assert made.phase is Phase.IN
    assert made.next_at == 109, "a session from when the last answered one was sent"
    made.tick(now=109)
    assert (made.phase, made.beat(now=110)) == (Phase.LOST, None)
    with pytest.raises(FencedMemberError):
        made.credentials(made.incarnation)
    change = made.take()
    assert change is not None
    assert (set(change.lost), change.is_out) == ({A}, True)
    made.rejoin(now=110)
    again = beat(made, 110)
    assert (again.member_epoch, again.owned) == (0, [])


@pytest.mark.parametrize("error", [UnknownMemberError("gone"), FencedMemberError("old")])
def test_a_member_that_is_none_any_more_joins_again(error: RaftlogError) -> None:
    made = joined(A)
    made.failed(beat(made, 100), error, retry_at=None)
    assert made.phase is Phase.LOST
    before = made.incarnation
    made.take()
    made.rejoin(now=101)
    made.failed(beat(made, 101), error, retry_at=None)
    assert made.next_at == 104, "not all the time"
    assert made.credentials(made.incarnation) is None
    with pytest.raises(FencedMemberError):
        made.credentials(before)
    made.answered(beat(made, 104), answer(7), now=104)
    assert made.credentials(made.incarnation) == ("m", 7)


def test_what_is_refused_for_good_ends_it_until_the_next_subscription() -> None:
    made = joined(A)
    made.failed(beat(made, 100), InstanceFencedError("another one"), retry_at=None)
    change = made.take()
    assert change is not None
    assert (set(change.lost), type(change.error)) == ({A}, InstanceFencedError)
    assert (made.take(), made.next_at, made.leave(LEAVE_EPOCH)) == (None, math.inf, None)
    made.subscribe(["t"], now=200)
    assert beat(made, 200).member_epoch == 0


@pytest.mark.parametrize(("instance", "epoch"), [(None, LEAVE_EPOCH), ("one", AWAY_EPOCH)])
def test_one_that_does_not_poll_says_farewell(instance: str | None, epoch: int) -> None:
    made = joined(A, max_poll_interval_ms=1_000, instance_id=instance)
    made.polling()
    made.tick(now=105)
    assert made.phase is Phase.IN, "it is in a poll"
    made.polled(now=105)
    made.tick(now=105.9)
    assert made.phase is Phase.IN
    made.tick(now=106)
    assert made.phase is Phase.LOST
    assert made.next_at == -math.inf
    assert beat(made, 106).member_epoch == epoch
    assert made.beat(now=107) is None
    assert made.leave(LEAVE_EPOCH) is None


def test_leaving_is_told_if_there_is_anything_to_leave() -> None:
    made = member()
    assert made.leave(LEAVE_EPOCH) is None
    made.subscribe(["t"], now=1)
    assert made.leave(LEAVE_EPOCH) is None, "nobody has heard of it"
    made = joined(A)
    farewell = made.leave(LEAVE_EPOCH)
    assert farewell is not None
    assert (farewell.member_epoch, farewell.sequence, farewell.owned) == (LEAVE_EPOCH, 2, [])
    assert made.credentials(made.incarnation) == ("", -1)


def test_a_heartbeat_is_hurried_unless_one_is_on_its_way() -> None:
    made = joined(A)
    made.answered(beat(made, 100), answer(1, A), now=100.1)
    made.hurry(now=101)
    assert beat(made, 101).wait_ms, "it waits, and the coordinator may have been asked before"
    made.hurry(now=102)
    assert made.next_at == 102


def test_a_refused_commit_tells_of_the_end() -> None:
    made = joined(A)
    made.fenced(FencedMemberError("old"), incarnation=made.incarnation - 1)
    assert made.phase is Phase.IN
    made.fenced(FencedMemberError("old"), incarnation=made.incarnation)
    assert made.phase is Phase.LOST
    made.end(InstanceFencedError("x"))
    assert made.phase is Phase.LOST


# -- with the real coordinator's state machine -----------------------------------------------------

TOPICS = {"t": TopicInfo("t-id", 4), "u": TopicInfo("u-id", 2)}
ALL = {
    TopicPartition(name, p) for name, info in TOPICS.items() for p in range(info.partition_count)
}
CHOICES = [("t",), ("u",), ("t", "u")]


@dataclass
class Reader:
    """A consumer: its membership, and what its application reads and still commits for."""

    membership: Membership
    reads: set[TopicPartition] = field(default_factory=set)
    releases: list[tuple[dict[TopicPartition, str], int]] = field(default_factory=list)

    @property
    def holds(self) -> set[TopicPartition]:
        """What nobody else may read. One that is lost stops by itself, before that."""
        if self.membership.phase is not Phase.IN:
            return set()
        committing = {
            tp
            for partitions, incarnation in self.releases
            if incarnation == self.membership.incarnation
            for tp in partitions
        }
        return self.reads | committing

    def act(self, now: float) -> None:
        """The application polls."""
        while (change := self.membership.take()) is not None:
            self.reads -= change.lost.keys()
            if change.is_out:
                assert not self.reads
                self.membership.rejoin(now=now)
            assert change.revoked.keys() <= self.reads
            self.reads -= change.revoked.keys()
            if change.revoked:
                self.releases.append((change.revoked, self.membership.incarnation))
            assert not self.reads & change.assigned.keys()
            self.reads |= change.assigned.keys()

    def release(self, now: float) -> None:
        partitions, incarnation = self.releases.pop(0)
        self.membership.released(partitions, incarnation=incarnation, now=now)


class GroupModel(RuleBasedStateMachine):
    """Requests and answers are lost, late and out of order; coordinators fail: one reader each."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.records: dict[bytes, bytes | None] = {}
        self.shard = self.load()
        self.readers = [Reader(member(f"m{number}")) for number in range(3)]
        self.requests: list[tuple[Reader, GroupHeartbeatRequest]] = []
        self.answers: list[
            tuple[Reader, GroupHeartbeatRequest, GroupHeartbeatResponse | RaftlogError]
        ] = []
        for reader in self.readers[:2]:
            reader.membership.subscribe(("t",), now=self.now)
            self.exchange(reader, polls=True)

    def load(self) -> GroupShard:
        shard = GroupShard(CoordinatorSettings(), BUILT_IN)
        for key, value in self.records.items():
            shard.replay(key, value)
        self.keep(shard.start(TOPICS, version=1, now=self.now, now_ms=START_MS))
        return shard

    def keep(self, step: StateChange[Any]) -> None:
        for record in step.records:
            self.records[record.key] = record.value

    @rule(which=st.integers(0, 2), topics=st.sampled_from(CHOICES))
    def subscribe(self, which: int, topics: tuple[str, ...]) -> None:
        self.readers[which].membership.subscribe(topics, now=self.now)

    @rule(which=st.integers(0, 2), rarely=st.integers(0, 9))
    def leave(self, which: int, rarely: int) -> None:
        if rarely:
            return
        reader = self.readers[which]
        farewell = reader.membership.leave(LEAVE_EPOCH)
        reader.reads.clear()
        reader.releases.clear()
        if farewell is not None:
            self.requests.append((reader, farewell))

    @rule(which=st.integers(0, 2))
    def send(self, which: int) -> None:
        reader = self.readers[which]
        found = reader.membership.beat(now=self.now)
        if found is not None:
            self.requests.append((reader, found))

    @rule(which=st.integers(0, 2), polls=st.booleans())
    def talk(self, which: int, polls: bool) -> None:
        """All goes well."""
        self.exchange(self.readers[which], polls=polls)

    def exchange(self, reader: Reader, *, polls: bool) -> None:
        reader.membership.hurry(now=self.now)
        found = reader.membership.beat(now=self.now)
        if found is not None:
            self.hear(reader, found)
            self.give(*self.answers.pop())
        if polls:
            reader.act(self.now)
            while reader.releases:
                reader.release(self.now)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), stays=st.booleans())
    def arrive(self, data: st.DataObject, stays: bool) -> None:
        """A request comes to the coordinator: in any order, and perhaps a second time."""
        at = data.draw(st.integers(0, len(self.requests) - 1))
        self.hear(*(self.requests[at] if stays else self.requests.pop(at)))

    def hear(self, reader: Reader, request: GroupHeartbeatRequest) -> None:
        told: GroupHeartbeatResponse | RaftlogError
        try:
            step = self.shard.heartbeat(heartbeat_of(request), now=self.now, now_ms=START_MS)
        except RaftlogError as error:
            told = error
        else:
            self.keep(step)
            told = answer_of(step.result)
        self.answers.append((reader, request, told))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), rarely=st.integers(0, 2))
    def lose(self, data: st.DataObject, rarely: int) -> None:
        if rarely:
            return
        at = data.draw(st.integers(0, len(self.requests) - 1))
        reader, request = self.requests.pop(at)
        reader.membership.failed(request, RequestTimedOutError("lost"), retry_at=self.now)

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def receive(self, data: st.DataObject) -> None:
        self.give(*self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1))))

    def give(
        self,
        reader: Reader,
        request: GroupHeartbeatRequest,
        told: GroupHeartbeatResponse | RaftlogError,
    ) -> None:
        if isinstance(told, RaftlogError):
            reader.membership.failed(request, told, retry_at=None)
        else:
            reader.membership.answered(request, told, now=self.now)

    @rule(which=st.integers(0, 2))
    def poll(self, which: int) -> None:
        self.readers[which].act(self.now)

    @rule(which=st.integers(0, 2))
    def release(self, which: int) -> None:
        reader = self.readers[which]
        if reader.releases:
            reader.release(self.now)

    @rule(rarely=st.integers(0, 4))
    def fail_over(self, rarely: int) -> None:
        if rarely:
            return
        self.shard = self.load()

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.5, 1.0, 2.0, 3.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for reader in self.readers:
            reader.membership.tick(now=self.now)
        self.keep(self.shard.tick(now=self.now, now_ms=START_MS, expiry_ms=START_MS))

    @invariant()
    def nothing_is_read_twice(self) -> None:
        held = [tp for reader in self.readers for tp in reader.holds]
        assert len(held) == len(set(held))

    def teardown(self) -> None:
        """In the end all is read, each by one of those that subscribe."""
        for reader, request in (*self.requests, *((of, asked) for of, asked, _ in self.answers)):
            reader.membership.failed(request, RequestTimedOutError("lost"), retry_at=self.now)
        for _ in range(60):
            self.wait(0.5)
            for reader in self.readers:
                self.exchange(reader, polls=True)
            self.nothing_is_read_twice()
        wanted = {
            tp
            for reader in self.readers
            if reader.membership.is_active
            for tp in ALL
            if tp.topic in reader.membership._topics
        }
        assert set().union(*(reader.holds for reader in self.readers)) == wanted


TestGroupModel = GroupModel.TestCase
