"""What brokers without a vote are told of partitions, and what they believe."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from raftlog import limits
from raftlog.protocol.replication import EncodedPartitionState
from raftlog.replication.partition_state import PartitionState
from raftlog.server.cluster.state_broadcast import StateBroadcast
from tests.server.cluster.paper import TOPIC_ID, Scene, play, state_of


def gossip(s: Scene, *brokers: int) -> StateBroadcast:
    return StateBroadcast(1, s.plane.as_plane, s.links.as_links, brokers=lambda: brokers)


def encoded(state: PartitionState, *, version: int | None = None) -> EncodedPartitionState:
    return EncodedPartitionState(
        topic_id=TOPIC_ID,
        partition=0,
        version=state.version if version is None else version,
        state=state.encode(),
    )


def test_only_those_without_a_vote_are_told_and_only_by_the_groups_leader() -> None:
    async def test(s: Scene) -> None:
        told = gossip(s, 1, 2, 3, 4, 5)
        s.links.up = {2, 3, 4}
        member = s.member(state_of(1, 2, witnesses=[3], version=9))
        told.tell([member])
        assert s.links.told == [], "another broker leads the group"
        s.plane.leading = {member.group_id}
        told.tell([member])
        assert [broker for broker, _ in s.links.told] == [4], "5 is down, the others vote"
        (state,) = s.links.told[0][1].states
        assert (state.topic_id, state.partition, state.version) == (TOPIC_ID, 0, 9)
        assert state.state == member.state.encode()

    play(test)


def test_many_are_told_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(s: Scene) -> None:
        told = gossip(s, 1, 4)
        s.links.up = {4}
        members = []
        for number in range(5):
            member = s.member(state_of(1))
            member.partition = number
            members.append(member)
        s.plane.leading = {member.group_id for member in members}
        told.tell(members)
        assert [len(message.states) for _, message in s.links.told] == [2, 2, 1]

    monkeypatch.setattr(limits, "PARTITIONS_PER_REQUEST_MAX", 2)
    play(test)


def test_only_what_is_newer_is_believed() -> None:
    async def test(s: Scene) -> None:
        told = gossip(s)
        new, old = state_of(2, 3, version=7), state_of(3, 2, version=6)
        told.take([encoded(new)])
        told.take([encoded(old), encoded(replace(old, version=7))])
        assert told.told == {(TOPIC_ID, 0): new}
        newer = replace(old, version=8)
        told.take([encoded(newer)])
        assert told.told == {(TOPIC_ID, 0): newer}

    play(test)


def test_the_version_that_counts_is_the_states_own() -> None:
    async def test(s: Scene) -> None:
        told = gossip(s)
        new = state_of(2, version=7)
        told.take([encoded(new)])
        told.take([encoded(state_of(3, version=6), version=100)])
        assert told.told == {(TOPIC_ID, 0): new}

    play(test)


def test_bytes_that_are_no_state_change_nothing_and_stop_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(s: Scene) -> None:
        told = gossip(s)
        state = state_of(2, version=3)
        bad = EncodedPartitionState(topic_id=TOPIC_ID, partition=0, version=9, state=b"\xff")
        with caplog.at_level(logging.WARNING):
            told.take([bad, encoded(state)])
        assert told.told == {(TOPIC_ID, 0): state}
        assert "state broadcast rejected: topic_id=T1 partition=0" in caplog.text

    play(test)


def test_a_deleted_topic_is_forgotten() -> None:
    async def test(s: Scene) -> None:
        told = gossip(s)
        state = state_of(2)
        other = EncodedPartitionState(topic_id="T2", partition=0, version=1, state=state.encode())
        told.take([encoded(state), other])
        told.forget(TOPIC_ID)
        assert list(told.told) == [("T2", 0)]

    play(test)
