"""Fetch sessions: what is not said again is remembered, whatever moves, comes and goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.protocol.peer import (
    FollowerSession,
    LeaderSession,
    PartitionKey,
    ReplicaFetchRequest,
    ReplicaPosition,
    TopicIdPartition,
)


def at(partition: int, fetch_offset: int = 0, *, topic_id: str = "t") -> ReplicaPosition:
    return ReplicaPosition(
        topic_id=topic_id,
        partition=partition,
        leader_epoch=0,
        fetch_offset=fetch_offset,
        last_epoch=-1,
        durable_offset=0,
    )


def named(request: ReplicaFetchRequest) -> list[tuple[int, int]]:
    return [(one.partition, one.fetch_offset) for one in request.partitions]


def gone(request: ReplicaFetchRequest) -> list[int]:
    return [one.partition for one in request.forgotten]


def test_the_first_request_names_all() -> None:
    session = FollowerSession()
    session.set(at(1, 5))
    session.set(at(0, 6))
    request = session.request(wait_ms_max=7, bytes_min=8, bytes_max=9)
    assert request == ReplicaFetchRequest(
        partitions=[at(1, 5), at(0, 6)], full=True, wait_ms_max=7, bytes_min=8, bytes_max=9
    )


def test_the_first_request_is_full_with_nothing_in_it() -> None:
    session = FollowerSession()
    assert not session.is_sent
    request = session.request()
    assert (request.full, request.partitions) == (True, [])
    assert session.is_sent
    assert not session.request().full


def test_later_requests_name_what_moved() -> None:
    session = FollowerSession()
    for partition in range(3):
        session.set(at(partition))
    session.request()
    session.set(at(1, 10))
    session.set(at(2))
    request = session.request()
    assert (named(request), request.full, gone(request)) == ([(1, 10)], False, [])
    assert session.is_sent
    assert named(session.request()) == []


def test_the_last_position_counts() -> None:
    session = FollowerSession()
    session.set(at(0, 1))
    session.set(at(0, 2))
    assert named(session.request()) == [(0, 2)]


def test_what_is_asked_for_no_more_is_said_once() -> None:
    session = FollowerSession()
    session.set(at(0))
    session.set(at(1))
    session.request()
    session.forget("t", 0)
    assert not session.is_sent
    assert list(session.positions) == [("t", 1)]
    request = session.request()
    assert (named(request), gone(request)) == ([], [0])
    assert gone(session.request()) == []
    session.set(at(0))
    session.forget("t", 0)
    assert session.is_sent, "the leader has forgotten it already"


@pytest.mark.parametrize("before", [True, False])
def test_what_was_never_told_need_not_be_forgotten(before: bool) -> None:
    session = FollowerSession()
    session.set(at(0))
    if before:
        session.request()
    session.set(at(1))
    session.forget("t", 1)
    session.forget("t", 9)
    request = session.request()
    assert (named(request), gone(request)) == ([] if before else [(0, 0)], [])


def test_forgotten_and_asked_for_again_at_once_is_asked_for() -> None:
    follower, leader = FollowerSession(), LeaderSession()
    follower.set(at(0, 3))
    leader.apply(follower.request())
    follower.forget("t", 0)
    follower.set(at(0, 3))
    request = follower.request()
    assert (named(request), gone(request)) == ([(0, 3)], []), "the same position counts as news"
    leader.apply(request)
    assert leader.positions == follower.positions


def test_a_leader_keeps_what_is_not_said_again() -> None:
    leader = LeaderSession()
    leader.apply(ReplicaFetchRequest(partitions=[at(0), at(1)], full=True))
    forgotten = [TopicIdPartition("t", 0), TopicIdPartition("t", 7)]
    leader.apply(ReplicaFetchRequest(partitions=[at(2, 9)], full=False, forgotten=forgotten))
    assert leader.positions == {("t", 1): at(1), ("t", 2): at(2, 9)}


def test_a_full_request_begins_anew() -> None:
    leader = LeaderSession()
    leader.apply(ReplicaFetchRequest(partitions=[at(0), at(1)], full=True))
    leader.apply(ReplicaFetchRequest(partitions=[at(2)], full=True))
    assert leader.positions == {("t", 2): at(2)}


def test_a_session_begins_with_a_full_request() -> None:
    leader = LeaderSession()
    with pytest.raises(InvalidRequestError, match="full"):
        leader.apply(ReplicaFetchRequest(partitions=[at(0)], full=False))
    assert leader.positions == {}


def test_topics_of_one_name_are_told_apart_by_their_ids() -> None:
    leader = LeaderSession()
    leader.apply(ReplicaFetchRequest(partitions=[at(0, 1), at(0, 2, topic_id="u")], full=True))
    assert leader.positions == {("t", 0): at(0, 1), ("u", 0): at(0, 2, topic_id="u")}


def test_a_session_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARTITIONS_PER_BROKER_MAX", 3)
    leader = LeaderSession()
    leader.apply(ReplicaFetchRequest(partitions=[at(0), at(1), at(2)], full=True))
    before = dict(leader.positions)
    for full in (False, True):
        wrong = [at(number) for number in range(3, 7 if full else 4)]
        with pytest.raises(InvalidRequestError, match="PARTITIONS_PER_BROKER_MAX"):
            leader.apply(ReplicaFetchRequest(partitions=wrong, full=full))
        assert leader.positions == before
    swap = ReplicaFetchRequest(partitions=[at(3)], full=False, forgotten=[TopicIdPartition("t", 0)])
    leader.apply(swap)
    assert len(leader.positions) == 3
    others = [at(number) for number in range(7, 10)]
    leader.apply(ReplicaFetchRequest(partitions=others, full=True))
    assert len(leader.positions) == 3


def test_what_is_too_much_for_one_request_takes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARTITIONS_PER_REQUEST_MAX", 2)
    follower, leader = FollowerSession(), LeaderSession()
    for partition in range(5):
        follower.set(at(partition))
    sizes = []
    while not follower.is_sent:
        request = follower.request()
        sizes.append((len(request.partitions), request.full))
        leader.apply(request)
    assert sizes == [(2, True), (2, False), (1, False)]
    assert leader.positions == follower.positions


keys = st.integers(0, 3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), keys, st.integers(0, 3)),
        st.tuples(st.just("forget"), keys, st.just(0)),
        st.tuples(st.just("send"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(steps, st.integers(1, 4))
def test_both_sides_know_the_same_once_all_is_told(
    todo: list[tuple[str, int, int]], at_once: int
) -> None:
    follower, leader = FollowerSession(), LeaderSession()
    model: dict[PartitionKey, ReplicaPosition] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "PARTITIONS_PER_REQUEST_MAX", at_once)
        for what, partition, fetch_offset in todo:
            if what == "set":
                follower.set(at(partition, fetch_offset))
                model["t", partition] = at(partition, fetch_offset)
            elif what == "forget":
                follower.forget("t", partition)
                model.pop(("t", partition), None)
            else:
                leader.apply(follower.request())
            assert follower.positions == model
            assert not follower.is_sent or leader.positions == model
        while not follower.is_sent:
            leader.apply(follower.request())
    assert leader.positions == model
