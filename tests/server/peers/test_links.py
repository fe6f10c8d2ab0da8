"""Links between brokers in memory, in virtual time: up, down, refused, superseded, full."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise

import pytest

from raftlog.config import Address
from raftlog.errors import (
    BrokerUnavailableError,
    ConnectionLostError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.peer import (
    ENVELOPE_BYTES_MAX,
    PeerIdentity,
    PeerPingRequest,
    RaftRequest,
)
from raftlog.protocol.records import MetadataRequest
from tests.server.peers.world import Run, World, alternating, at, pair

# -- up and down ---------------------------------------------------------------------------------


def test_three_brokers_link_up_and_pass_envelopes(run: Run) -> None:
    async def test(world: World) -> None:
        brokers = [world.broker(broker_id) for broker_id in (1, 2, 3)]
        for broker in brokers:
            broker.links.set_addresses(at(1, 2, 3))
        await world.until(lambda: all(len(broker.ups) == 2 for broker in brokers))
        one, two, three = brokers
        assert {peer.broker_id: peer for peer in one.ups} == {
            2: two.identity,
            3: three.identity,
        }
        one.links.send(2, b"first")
        one.links.send(2, b"second")
        three.links.send(2, b"third")
        await world.until(lambda: len(two.received) == 3)
        assert [data for peer, data in two.received if peer == 1] == [b"first", b"second"]
        assert (3, b"third") in two.received
        assert one.links.identity(2) == two.identity
        assert two.peering.broker_epochs == {1: 71, 3: 73}

    run(test)


def test_a_quiet_link_stays_up_by_its_pings(run: Run) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        await world.pass_seconds(60)
        assert one.events == [("up", 2)]
        assert two.events == [("up", 1)]
        assert len(world.dials) == 2
        assert {peer for peer, _, _ in one.clocks} == {2}, "each answer tells the peer's clock"
        assert {wall_ms for _, wall_ms, _ in one.clocks} == {2_000}
        assert all(0 <= round_trip_s < 1 for _, _, round_trip_s in one.clocks)

    run(test)


def test_a_link_that_is_cut_is_made_again(run: Run) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        for left, _right in world.pipes:
            left.abort()
        await world.until(lambda: len(one.ups) == 2 and len(two.ups) == 2)
        assert alternating(one.events, 2) == ["up", "down", "up"]
        one.links.send(2, b"again")
        await world.until(lambda: two.received == [(1, b"again")])

    run(test)


def test_a_silent_peer_is_down_after_the_session_timeout(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        await world.pass_seconds(1)
        world.power_off(two)
        began = world.loop.time()
        await world.until(lambda: ("down", 2) in one.events)
        assert 2.4 < world.loop.time() - began <= 3.1  # the last answer may be a heartbeat old
        assert "broker.session.timeout.ms" in one.reasons[0]

    run(test)


def test_a_peer_is_heard_until_half_the_session_timeout_went_by_in_silence(run: Run) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        await world.pass_seconds(60)
        assert one.links.is_heard(2)
        assert not one.links.is_heard(1), "only peers"
        world.power_off(two)
        await world.pass_seconds(0.9)
        assert one.links.is_heard(2)
        await world.pass_seconds(0.7)
        assert one.links.is_up(2)
        assert not one.links.is_heard(2)
        await world.until(lambda: ("down", 2) in one.events)
        assert not one.links.is_heard(2)

    run(test)


def test_a_peer_that_never_answers_the_dial_is_given_up(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one = world.broker(1)
        world.hangs = True
        one.links.set_addresses(at(2))
        await world.until(lambda: len(world.dials) == 2)
        assert world.dials[1][0] - world.dials[0][0] > 3
        assert "broker.session.timeout.ms" in one.links.status()[0].problem
        assert one.events == []

    run(test)


def test_a_handshake_survives_a_second_of_latency_each_way(run: Run) -> None:
    async def test(world: World) -> None:
        world.latency_s = 1.0
        one, _ = await pair(world)
        assert [kind for kind, _peer in one.events] == ["up"]
        await world.pass_seconds(30)
        assert [kind for kind, _peer in one.events] == ["up"], "it stays up by its pings"

    run(test)


def test_dialling_backs_off_with_jitter_and_tells_a_reason_once(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        one = world.broker(1)
        with caplog.at_level(logging.INFO, "raftlog.server.peers"):
            one.links.set_addresses(at(2))
            await world.until(lambda: len(world.dials) == 20)
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 1, told
        assert "nobody listens" in told[0]
        times = [time for time, _port in world.dials]
        pauses = [later - sooner for sooner, later in pairwise(times)]
        assert 0.049 < pauses[0] < 0.06
        assert all(0.049 < pause < 0.501 for pause in pauses)
        assert min(pauses[6:]) > 0.249
        assert len({round(pause, 3) for pause in pauses[6:]}) > 3  # jitter

    run(test)


def test_an_address_at_which_the_peer_is_not_is_told_with_the_one_that_it_has(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """A typing error in ``voters`` of one broker: the others reach it, it does not reach them."""

    async def test(world: World) -> None:
        one, two = world.broker(1), world.broker(2)
        one.links.set_addresses({2: Address("h", 99)})
        two.links.set_addresses(at(1))
        await world.until(lambda: two.ups)
        await world.pass_seconds(30)
        assert not one.ups
        said = f"is connected to this broker, and has the address {two.identity.host}:2"
        texts = [record.getMessage() for record in caplog.records]
        assert sum("address=h:99" in text and said in text for text in texts) == 1, texts
        assert any(said in standing.problem for standing in one.links.status())

    with caplog.at_level(logging.WARNING):
        run(test)


def test_a_peer_that_comes_in_is_dialled_at_once(run: Run) -> None:
    async def test(world: World) -> None:
        one = world.broker(1, chance=lambda: 0.999)
        one.links.set_addresses(at(2))
        await world.until(lambda: len(world.dials) == 8)  # now it pauses for half a second
        dialled = world.loop.time()
        two = world.broker(2)
        two.links.set_addresses(at(1))
        await world.until(lambda: one.links.is_up(2))
        assert world.loop.time() - dialled < 0.1

    run(test)


def test_a_connection_that_ends_with_its_handshake_never_was_a_link(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = world.broker(1), world.broker(2)

        def hang_up(_peer: PeerIdentity) -> None:
            if len(two.incoming) < 3:  # the proof's answer and the farewell come in one piece
                world.loop.call_soon(two.incoming[-1].end, BrokerUnavailableError("not now"))

        two.registry.on_incoming = hang_up
        one.links.set_addresses(at(2))
        await world.until(lambda: one.links.is_up(2))
        assert len(world.dials) == 3
        assert one.events == [("up", 2)]

    run(test)


# -- which peers there are -----------------------------------------------------------------------


def test_peers_are_added_moved_and_removed_while_running(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        three = world.broker(3)
        one.links.set_addresses(at(1, 2, 3))
        await world.until(lambda: one.links.is_up(3))
        assert alternating(one.events, 2) == ["up"]
        one.links.set_addresses(at(1, 3))
        assert one.events[-1] == ("down", 2)
        assert not one.links.is_up(2)
        assert [status.broker_id for status in one.links.status()] == [3]
        world.listening[33] = three
        one.links.set_addresses({1: Address("broker", 1), 3: Address("broker", 33)})
        assert one.events[-1] == ("down", 3)
        await world.until(lambda: one.links.is_up(3))
        assert world.dials[-1][1] == 33
        assert two.links.is_up(1)

    run(test)


def test_closing_ends_every_link_and_dials_no_more(run: Run) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        one.links.set_addresses(at(1, 2, 9))  # nobody is at 9
        await one.links.close()
        assert alternating(one.events, 2) == ["up", "down"]
        dials = len([port for _time, port in world.dials if port in (2, 9)])
        await world.pass_seconds(10)
        assert len([port for _time, port in world.dials if port in (2, 9)]) == dials
        one.links.set_addresses(at(1, 2))
        one.links.send(2, b"too late")
        assert one.links.status() == []
        await world.pass_seconds(1)
        assert two.received == []

    run(test)


def test_closing_while_dialling_leaves_nothing_behind(run: Run) -> None:
    async def test(world: World) -> None:
        one = world.broker(1)
        world.hangs = True
        one.links.set_addresses(at(2))
        await world.pass_seconds(0.1)
        began = world.loop.time()
        await one.links.close()
        assert world.loop.time() - began < 0.01
        assert one.events == []

    run(test)


# -- bounds and requests -------------------------------------------------------------------------


def test_a_peer_that_does_not_read_loses_envelopes_and_no_memory(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world, queue_bytes_max=10_000)
        to_two = one.links._links[2].channel
        pipe = next(right for left, right in world.pipes if left.get_protocol() is to_two)
        pipe.pause_reading()
        for _ in range(100):
            one.links.send(2, bytes(1_000))
        (status,) = one.links.status()
        assert 80 < status.envelopes_dropped < 95
        assert 10_000 <= status.queued_bytes < 12_000
        with pytest.raises(BrokerUnavailableError, match="does not read"):
            one.links.request(2, apis.METADATA, MetadataRequest())
        pipe.resume_reading()
        await world.until(lambda: len(two.received) == 100 - status.envelopes_dropped)
        one.links.send(2, b"after")
        await world.until(lambda: (1, b"after") in two.received)
        assert alternating(one.events, 2) == ["up"]

    run(test)


def test_a_slow_peer_that_takes_what_is_queued_is_not_given_up(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world, queue_bytes_max=8 << 20)
        to_two = one.links._links[2].channel
        pipe = next(right for left, right in world.pipes if left.get_protocol() is to_two)
        pipe.pause_reading()
        for _ in range(40):
            one.links.send(2, bytes(100_000))
        heard = to_two.last_heard_seconds
        for _ in range(14):
            pipe.resume_reading()
            await asyncio.sleep(0)
            pipe.pause_reading()
            await world.pass_seconds(0.6)
        assert len(two.received) < 40
        assert world.loop.time() - heard > 2 * 3.0
        assert alternating(one.events, 2) == ["up"]
        await world.until(lambda: ("down", 2) in one.events)  # now it takes nothing more
        assert world.loop._selector.turns < 1_000, "a timer was due at once, again and again"

    run(test)


def test_what_fits_no_frame_and_what_has_no_link_is_dropped(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        one.links.send(2, bytes(ENVELOPE_BYTES_MAX + 1))
        assert one.links.status()[0].envelopes_dropped == 1
        one.links.send(9, b"nobody has this id")
        await world.stop(two)
        await world.until(lambda: not one.links.is_up(2))
        one.links.send(2, b"nobody is there")
        assert one.links.status()[0].envelopes_dropped == 2
        assert not one.links.notify(2, apis.RAFT, RaftRequest(), (b"x",))
        for peer in (2, 9):
            with pytest.raises(BrokerUnavailableError):
                one.links.request(peer, apis.METADATA, MetadataRequest())

    run(test)


def test_requests_are_answered_over_the_link_and_fail_with_it(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        answer = await one.links.request(2, apis.PEER_PING, PeerPingRequest(sent=1, broker_epoch=5))
        assert isinstance(answer.message, apis.PEER_PING.response)
        assert two.peering.broker_epochs[1] == 5
        assert one.links.notify(2, apis.RAFT, RaftRequest(), (b"told",))
        await world.until(lambda: two.received == [(1, b"told")])
        waiting = one.links.request(2, apis.PEER_PING, PeerPingRequest(sent=2, broker_epoch=5))
        await one.links.close()
        with pytest.raises(ConnectionLostError):
            await waiting

    run(test)


def test_a_loop_that_stood_still_does_not_blame_its_peers(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        await world.pass_seconds(1)
        world.loop.now += 20  # as a process that was stopped for so long
        await world.pass_seconds(10)
        assert alternating(one.events, 2) == ["up"]
        assert alternating(two.events, 1) == ["up"]

    run(test)
