"""Links that must not be: other secrets, clusters, copies and namesakes; and who comes back."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.consensus import Heard, PeerSeen
from raftlog.errors import (
    AccessDeniedError,
    BrokerIdInUseError,
    StaleBrokerError,
    WrongClusterError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.peer import RaftRequest
from tests.server.peers.world import FakeBroker, Run, World, alternating, at, pair

# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "two", "expected", "says"),
    [
        ({"secret": b"other"}, {}, AccessDeniedError, "secret"),
        ({"cluster": "c2"}, {}, WrongClusterError, "c2"),
        (
            {"voters": "1", "cluster": ""},
            {"voters": "1,2", "cluster": ""},
            WrongClusterError,
            "voters 1",
        ),
    ],
)
def test_those_who_do_not_belong_together_both_learn_why(
    run: Run,
    one: dict[str, Any],
    two: dict[str, Any],
    expected: type[Exception],
    says: str,
) -> None:
    async def test(world: World) -> None:
        stranger, native = world.broker(1, **one), world.broker(2, **two)
        stranger.links.set_addresses(at(2))
        native.links.set_addresses(at(1))
        await world.pass_seconds(20)
        for broker, other in ((stranger, 2), (native, 1)):
            assert broker.events == []
            ((peer, error),) = broker.refusals  # once, however often it tries
            assert (peer, type(error)) == (other, expected)
            assert says in str(error)
            (status,) = broker.links.status()
            assert type(status.refusal) is expected
        assert stranger.received == native.received == []

    run(test)


def test_a_cluster_id_that_is_not_known_yet_is_no_obstacle(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        joining, member = world.broker(1, cluster=""), world.broker(2)
        joining.links.set_addresses(at(2))
        member.links.set_addresses(at(1))
        await world.until(lambda: joining.links.is_up(2) and member.links.is_up(1))
        assert joining.ups[0].cluster_id == "c1"

    run(test)


def test_another_broker_than_expected_is_no_link(run: Run) -> None:
    async def test(world: World) -> None:
        one = world.broker(1)
        world.broker(3, port=2)
        one.links.set_addresses(at(2))
        await world.pass_seconds(5)
        assert one.events == []
        assert "broker 3 responded" in one.links.status()[0].problem
        assert one.refusals == []  # it may be put right without this broker

    run(test)


def test_a_broker_with_our_id_is_told_and_so_are_we(run: Run) -> None:
    async def test(world: World) -> None:
        one = world.broker(1)
        world.broker(1, port=2, directory="elsewhere")
        one.links.set_addresses(at(2))
        await world.until(lambda: one.refusals)
        ((peer, error),) = one.refusals
        assert peer == 2
        assert isinstance(error, BrokerIdInUseError)
        assert "elsewhere" in str(error)

    run(test)


def test_the_second_broker_with_an_id_is_refused_while_the_first_is_live(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        double = world.broker(2, port=22, directory="double")
        double.links.set_addresses(at(1))
        await world.until(lambda: double.refusals)
        ((peer, error),) = double.refusals
        assert peer == 1
        assert isinstance(error, BrokerIdInUseError)
        assert "disk-2" in str(error)
        assert "double" in str(error)
        await world.pass_seconds(10)
        assert alternating(one.events, 2) == ["up"]
        assert alternating(two.events, 1) == ["up"]
        assert double.events == []

    run(test)


def test_a_wiped_broker_comes_back_once_its_old_self_is_gone(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        await world.stop(two)
        wiped = world.broker(2, directory="new disk")
        wiped.links.set_addresses(at(1))
        await world.until(lambda: one.links.is_up(2) and wiped.links.is_up(1))
        assert one.ups[-1].directory_id == "new disk"
        assert wiped.refusals == []

    run(test)


def test_a_wiped_broker_whose_old_self_fell_silent_waits_for_the_session_timeout(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        world.power_off(two)
        wiped = world.broker(2, directory="new disk")
        wiped.links.set_addresses(at(1))
        await world.until(lambda: wiped.refusals)
        assert isinstance(wiped.refusals[0][1], BrokerIdInUseError)
        await world.until(lambda: wiped.links.is_up(1) and one.links.identity(2) is not None)
        assert one.links.identity(2) == wiped.identity
        assert wiped.links.status()[0].refusal is None

    run(test)


def test_an_old_copy_of_a_data_directory_is_refused(run: Run) -> None:
    async def test(world: World) -> None:
        one = world.broker(1, seen={2: PeerSeen("disk-2", 7)})
        copy = world.broker(2, boot=6)
        one.links.set_addresses(at(2))
        copy.links.set_addresses(at(1))
        await world.until(lambda: copy.refusals)
        ((_peer, error),) = copy.refusals
        assert isinstance(error, StaleBrokerError)
        assert "disk-2" in str(error)
        await world.pass_seconds(10)
        assert one.events == copy.events == []
        assert one.refusals == []  # it is not this broker that has to be wiped
        assert "old copy" in one.links.status()[0].problem

    run(test)


def test_a_broker_whose_journal_has_lost_its_end_is_refused(run: Run) -> None:
    async def test(world: World) -> None:
        one = world.broker(1, heard={2: Heard("disk-2", 7, 90)}.get)
        cut = world.broker(2, boot=8, journal_sequence=60)
        one.links.set_addresses(at(2))
        cut.links.set_addresses(at(1))
        await world.until(lambda: cut.refusals)
        ((_peer, error),) = cut.refusals
        assert isinstance(error, StaleBrokerError)
        assert "the consensus journal of broker 2 has lost" in str(error)
        await world.pass_seconds(10)
        assert one.events == cut.events == []
        assert len(cut.refusals) == 1
        assert one.refusals == []  # it is not this broker that has to be wiped
        assert "has lost acknowledged blocks" in one.links.status()[0].problem
        await world.stop(cut)
        wiped = world.broker(2, directory="new disk", journal_sequence=1)
        wiped.links.set_addresses(at(1))
        await world.until(lambda: one.links.is_up(2) and wiped.links.is_up(1))

    run(test)


def test_a_boot_is_remembered_from_the_link_itself(run: Run) -> None:
    async def test(world: World) -> None:
        one = world.broker(1)
        two = world.broker(2, boot=3)
        two.links.set_addresses(at(1))
        await world.until(lambda: two.links.is_up(1))
        await world.stop(two)
        copy = world.broker(2, boot=2)
        copy.links.set_addresses(at(1))
        await world.until(lambda: copy.refusals)
        assert isinstance(copy.refusals[0][1], StaleBrokerError)
        assert one.registry.latest(2) == two.identity

    run(test)


# -- newer runs and newer connections ------------------------------------------------------------


def test_a_broker_that_started_again_ends_the_link_to_its_older_run(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        world.power_off(two)
        again = world.broker(2, boot=2)
        again.links.set_addresses(at(1))
        began = world.loop.time()
        await world.until(lambda: one.links.is_up(2) and one.ups[-1].boot == 2)
        assert world.loop.time() - began < 1  # much less than a session timeout
        assert alternating(one.events, 2) == ["up", "down", "up"]

    run(test)


def test_a_newer_connection_silences_the_older_one(run: Run) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        old = one.links._links[2].channel
        old_pipe = next(right for left, right in world.pipes if left.get_protocol() is old)
        old_pipe.pause_reading()
        old.send(apis.RAFT, RaftRequest(), (b"late",))
        # The same broker connects anew, as if its old connection had been lost on its side only.
        anew = FakeBroker(world.loop, world, 1)
        world.brokers.append(anew)
        anew.links.set_addresses(at(2))
        await world.until(lambda: anew.links.is_up(2))
        anew.links.send(2, b"new")
        old_pipe.resume_reading()
        await world.until(lambda: two.received)
        await world.pass_seconds(0.2)
        assert (1, b"late") not in two.received
        assert ("down", 2) in one.events

    run(test)


def test_what_was_read_of_a_superseded_connection_is_not_handled(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        older = next(c for c in two.incoming if c.peer_identity == one.identity)
        newer = two.make()
        two.registry.admit_incoming(one.identity, newer)
        assert older.peer_identity is None  # so dispatch refuses what is still held of it
        assert two.registry.is_live(1)

    run(test)
