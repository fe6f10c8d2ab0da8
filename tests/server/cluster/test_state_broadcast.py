"""States that brokers without a vote receive, and which of them they apply."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from raftlog.protocol.peer import EncodedPartitionState
from raftlog.replication.partition_state import PartitionState
from raftlog.server.cluster.elections import StateBroadcast
from tests.running import runs
from tests.server.cluster.paper import TOPIC_ID, Scene, play, state_of


def state_broadcast(s: Scene, *brokers: int) -> StateBroadcast:
    loop = asyncio.get_running_loop()
    return StateBroadcast(1, loop, s.plane.as_plane, s.links.as_links, brokers=lambda: brokers)


def encoded(state: PartitionState, *, version: int | None = None) -> EncodedPartitionState:
    return EncodedPartitionState(
        topic_id=TOPIC_ID,
        partition=0,
        version=state.version if version is None else version,
        state=state.encode(),
    )


@runs(play)
async def test_only_those_without_a_vote_are_told_and_only_by_the_groups_leader(s: Scene) -> None:
    broadcast = state_broadcast(s, 1, 2, 3, 4, 5)
    s.links.up = {2, 3, 4}
    hosted = s.hosted(state_of(1, 2, witnesses=[3], version=9))
    hosted.is_known = False
    broadcast.send([hosted])
    assert s.links.told == [], "another broker leads the group"
    s.plane.leading = {hosted.group_id}
    broadcast.send([hosted])
    assert [broker for broker, _ in s.links.told] == [4], "5 is down, the others vote"
    (state,) = s.links.told[0][1].states
    assert (state.topic_id, state.partition, state.version) == (TOPIC_ID, 0, 9)
    assert state.state == hosted.state.encode()


@runs(play)
async def test_states_of_another_history_are_ignored(s: Scene) -> None:
    """A recovery that the cluster does not accept has higher versions, for as long as it lasts."""
    loop, mine = asyncio.get_running_loop(), [""]
    broadcast = StateBroadcast(
        1, loop, s.plane.as_plane, s.links.as_links, brokers=lambda: [2], recovery=lambda: mine[0]
    )
    broadcast.receive([encoded(state_of(2, version=1_000))], "forced")
    assert broadcast.received == {}
    mine[0] = "forced"
    broadcast.receive([encoded(state_of(3, version=1_001))], "")
    broadcast.receive([encoded(state_of(2, version=1_000))], "forced")
    assert broadcast.received == {(TOPIC_ID, 0): state_of(2, version=1_000)}
    hosted = s.hosted(state_of(1, 2, leader=1))
    hosted.is_known = True
    s.links.up = {2}
    broadcast = StateBroadcast(
        1, loop, s.plane.as_plane, s.links.as_links, brokers=lambda: [4], recovery=lambda: mine[0]
    )
    s.links.up = {4}
    broadcast.send([hosted])
    assert s.links.told[0][1].recovery == "forced"


@runs(play)
async def test_the_first_leader_sends_its_state_before_its_group_has_a_leader(s: Scene) -> None:
    broadcast = state_broadcast(s, 1, 2, 4)
    s.links.up = {2, 4}
    hosted = s.hosted(state_of(1, 2, leader=1))
    hosted.is_known = True
    broadcast.send([hosted])
    assert [broker for broker, _ in s.links.told] == [4]
    hosted.is_known = False
    broadcast.send([hosted])
    assert len(s.links.told) == 1, "the state is from before this start"


@runs(play)
async def test_only_what_is_newer_is_believed(s: Scene) -> None:
    broadcast = state_broadcast(s)
    new, old = state_of(2, 3, version=7), state_of(3, 2, version=6)
    broadcast.receive([encoded(new)])
    broadcast.receive([encoded(old), encoded(replace(old, version=7))])
    assert broadcast.received == {(TOPIC_ID, 0): new}
    newer = replace(old, version=8)
    broadcast.receive([encoded(newer)])
    assert broadcast.received == {(TOPIC_ID, 0): newer}


@runs(play)
async def test_the_version_that_counts_is_the_states_own(s: Scene) -> None:
    broadcast = state_broadcast(s)
    new = state_of(2, version=7)
    broadcast.receive([encoded(new)])
    broadcast.receive([encoded(state_of(3, version=6), version=100)])
    assert broadcast.received == {(TOPIC_ID, 0): new}


@runs(play)
async def test_bytes_that_are_no_state_change_nothing_and_stop_nothing(
    s: Scene, *, caplog: pytest.LogCaptureFixture
) -> None:
    broadcast = state_broadcast(s)
    state = state_of(2, version=3)
    bad = EncodedPartitionState(topic_id=TOPIC_ID, partition=0, version=9, state=b"\xff")
    with caplog.at_level(logging.WARNING):
        broadcast.receive([bad, encoded(state)])
    assert broadcast.received == {(TOPIC_ID, 0): state}
    assert "state broadcast rejected: topic_id=T1 partition=0" in caplog.text


@runs(play)
async def test_a_deleted_topic_is_forgotten(s: Scene) -> None:
    broadcast = state_broadcast(s)
    state = state_of(2)
    other = EncodedPartitionState(topic_id="T2", partition=0, version=1, state=state.encode())
    broadcast.receive([encoded(state), other])
    broadcast.forget(TOPIC_ID)
    assert list(broadcast.received) == [("T2", 0)]
