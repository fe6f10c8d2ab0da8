"""Staying a member: sessions, slow handlers, coordinators that fail. In virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.errors import (
    AuthenticationError,
    FencedMemberError,
    RaftlogError,
    ThrottledError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.records import GroupHeartbeatRequest
from raftlog.protocol.security import ApiVersionsRequest
from tests.client.consumer_groups.consuming import Story, consumer_of, filled, some, until
from tests.client.consumer_groups.fake_coordinator import FakeCoordinator
from tests.client.test_subscription import A
from tests.client.world import FakeCluster, Peer, ignore, refuse, run, vanish
from tests.running import runs


def test_one_that_does_not_poll_leaves_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    async def test(fake: FakeCluster) -> None:
        groups = filled(fake)
        story = Story()
        async with consumer_of(fake, max_poll_interval_ms=10_000) as consumer:
            await consumer.subscribe(["t"], **story.callbacks)
            await some(consumer, 2)
            await asyncio.sleep(9.9)
            assert len(groups.members()) == 1
            await asyncio.sleep(0.2)
            assert groups.members() == {}
            with pytest.raises(FencedMemberError, match="lost its membership"):
                await consumer.commit()
            assert await some(consumer) == [0], "nothing was committed"
            assert story.told == [("assign", [0, 1]), ("lost", [0, 1]), ("assign", [0, 1])]

    run(test)
    assert "max_poll_interval_ms=10000" in caplog.text


@runs(run)
async def test_a_slow_handler_is_no_reason_as_long_as_it_is_within_the_poll_interval(
    fake: FakeCluster,
) -> None:
    groups = filled(fake)
    async with consumer_of(fake, session_timeout_ms=1_000) as consumer:
        await consumer.subscribe(["t"])
        await some(consumer, 2)
        await asyncio.sleep(299)
        assert len(groups.members()) == 1
        await consumer.commit()


@runs(run)
async def test_without_a_coordinator_for_its_session_a_member_gives_up(fake: FakeCluster) -> None:
    groups = filled(fake)
    story = Story()
    async with consumer_of(fake, session_timeout_ms=6_000) as consumer:
        await consumer.subscribe(["t"], **story.callbacks)
        await some(consumer, 2)
        await consumer.commit()
        for _ in range(200):
            fake.next(apis.GROUP_HEARTBEAT, vanish)
        await until(lambda: story.told[-1][0] == "lost", consumer)
        assert await consumer.assignment() == set()
        fake._next[apis.GROUP_HEARTBEAT].clear()
        await until(lambda: story.told[-1][0] == "assign", consumer)
        assert len(groups.members()) == 1


@runs(run, brokers=3)
async def test_the_coordinator_moves_and_nobody_notices(fake: FakeCluster) -> None:
    groups = filled(fake)
    story = Story()
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"], **story.callbacks)
        await some(consumer, 2)
        groups.move(2)
        await some(consumer, 1)
        await consumer.commit()
        fake.pause(2)
        committing = asyncio.ensure_future(consumer.commit({A: 1}))
        await asyncio.sleep(0.5)
        groups.move(3)
        await committing
        assert await consumer.committed(A) == 1
        fake.resume(2)
        await asyncio.sleep(30)
        assert await consumer.poll(0, 1)
        assert story.told == [("assign", [0, 1])]


def do_and_vanish(peer: Peer, request: Request) -> None:
    """Do what is asked, and close the connection instead of answering."""
    deaf: Any = SimpleNamespace(
        broker_id=peer.broker_id, state=peer.state, write=lambda _buffers: None
    )
    peer.cluster.always[request.api](deaf, request)
    peer.transport.abort()


@pytest.mark.parametrize("trouble", [vanish, do_and_vanish, ignore])
@pytest.mark.parametrize("api", [apis.GROUP_HEARTBEAT, apis.OFFSET_COMMIT, apis.OFFSET_FETCH])
@runs(run)
async def test_an_answer_that_is_lost_is_asked_for_again(
    fake: FakeCluster, *, trouble: Any, api: Any
) -> None:
    groups = filled(fake)
    async with consumer_of(fake, request_timeout_ms=2_000, auto_commit=False) as consumer:
        fake.next(api, trouble)
        await consumer.subscribe(["t"])
        await some(consumer, 2)
        await consumer.commit(timeout_ms=20_000)
        fake.next(api, trouble)
        await some(consumer, 2)
        await consumer.commit(timeout_ms=20_000)
        assert groups.committed()[A] == 4
        if trouble is not ignore:  # a request's time would be up
            assert await consumer.committed(A) == 4


@runs(run)
async def test_what_the_coordinator_refuses_for_good_is_raised(fake: FakeCluster) -> None:
    filled(fake)
    async with consumer_of(fake, assignor="nobody's") as consumer:
        await consumer.subscribe(["t"])
        for _ in range(2):
            with pytest.raises(RaftlogError, match="nobody's"):
                await consumer.poll(1_000)


@runs(run, brokers=3)
async def test_a_member_that_reads_nothing_raises_when_its_user_is_deleted(
    fake: FakeCluster,
) -> None:
    """Also if other clients at its address have failed, so that brokers refuse its attempts."""
    fake.create("t", 1)
    FakeCoordinator(fake)
    rejected: set[str] = set()

    def once_rejected(peer: Peer, request: Request) -> None:
        assert isinstance(request.message, ApiVersionsRequest)
        client_id = request.message.client_id
        is_second = client_id in rejected
        rejected.add(client_id)
        refuse(ThrottledError("T") if is_second else AuthenticationError("E"))(peer, request)

    members = [consumer_of(fake, client_id=name) for name in ("one", "two")]
    async with members[0] as first, members[1] as second:
        for consumer in (first, second):
            await consumer.subscribe(["t"])
        await until(lambda: len(fake.asked(GroupHeartbeatRequest)) > 4, first)
        idle = first if not await first.assignment() else second
        await idle.poll(10_000)
        fake.always[apis.API_VERSIONS] = once_rejected
        began = asyncio.get_running_loop().time()
        for peer in list(fake.peers):
            peer.transport.abort()
        with pytest.raises(AuthenticationError, match="E"):
            await idle.poll(60_000)
        assert asyncio.get_running_loop().time() - began < 5
