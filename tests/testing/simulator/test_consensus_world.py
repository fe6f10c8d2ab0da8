"""The world of simulated consensus: events in order, wires that do what they are told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.consensus import NotProposed, Outcome
from raftlog.testing.simulator.consensus import SYNC_MEANS_MAX, World
from tests.testing.simulator.consensus_worlds import GROUP, process_of, world_of


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What nodes receive, taken down instead."""
    taken: list[bytes] = []

    def take(self: object, peer: int, data: bytes, now: float) -> None:
        taken.append(data)

    monkeypatch.setattr("raftlog.consensus.node.ConsensusNode.receive", take)
    return taken


# -- events ----------------------------------------------------------------------------------------


def test_events_come_in_the_order_of_time_and_then_of_asking() -> None:
    world = world_of(started=False)
    seen: list[str] = []
    for wait, name in ((2.0, "late"), (1.0, "a"), (1.0, "b"), (-5.0, "now")):
        world.at(wait, name, seen.append, name)
    world.run_until(1.5)
    assert (seen, world.now) == (["now", "a", "b"], 1.5)
    world.run_until(9.0)
    assert (seen[-1], world.now, world.events) == ("late", 9.0, 4)


def test_no_sync_takes_longer_than_the_groups_have_to_recover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_of(started=False)
    broker = world.brokers[1]
    broker.sync_s = 2.0
    monkeypatch.setattr(world.random, "random", lambda: 1 - 2**-53)  # of which expovariate is made
    assert world.sync_time(broker) == SYNC_MEANS_MAX * broker.sync_s


def test_the_hash_is_of_what_happened_and_when() -> None:
    def hash_of(happen: Callable[[World], None]) -> str:
        world = world_of(started=False)
        happen(world)
        world.run_until(10)
        return world.hash

    def note(wait: float, name: str) -> Callable[[World], None]:
        return lambda world: world.at(wait, name, lambda: None)

    plain = hash_of(note(1.0, "a"))
    assert plain == hash_of(note(1.0, "a"))
    assert len({plain, hash_of(note(1.1, "a")), hash_of(note(1.0, "b"))}) == 3


# -- a cluster -------------------------------------------------------------------------------------


def test_brokers_find_a_leader_and_apply_commands() -> None:
    world = world_of()
    outcomes: list[Outcome] = []
    assert len(world.leaders()) == 1
    for number in world.brokers:
        world.propose(process_of(world, number), GROUP, b"c%d" % number, outcomes.append)
    world.run_until(8.0)
    assert [type(outcome).__name__ for outcome in outcomes] == ["Applied"] * 3
    (history,) = {tuple(process_of(world, n).ledgers[GROUP].commands) for n in world.brokers}
    assert sorted(history) == [b"c1", b"c2", b"c3"]
    assert world.checker.violations == []
    assert world.counts["Applied"] == len(world.checker.acked) == 3


def test_a_large_command_has_a_short_name() -> None:
    world = world_of()
    outcomes: list[Outcome] = []
    world.propose(process_of(world, 1), GROUP, b"c1", outcomes.append, size=40_000)
    world.run_until(8.0)
    assert process_of(world, 2).ledgers[GROUP].commands == [b"c1"]
    assert process_of(world, 2).journal.group(GROUP)[-1][0].startswith(b"\x10c1....")
    assert world.checker.violations == []


def test_a_seal_is_answered_and_noted() -> None:
    world = world_of()
    assert world.newest(GROUP) == (0, {1: "1.0", 2: "2.0", 3: "3.0"})
    world.seal(process_of(world, 2), GROUP, {1: "1.0", 2: "2.0"})
    world.run_until(8.0)
    assert world.newest(GROUP) == (1, {1: "1.0", 2: "2.0"})
    assert world.counts["seal"] == 1


def test_nothing_is_on_any_disk_before_the_first_start() -> None:
    world = world_of(started=False)
    assert world.newest(GROUP) == (0, {1: "1.0", 2: "2.0", 3: "3.0"})
    assert world.leaders() == []


# -- starts and stops ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["kill", "power", "disk"])
def test_a_stopped_broker_is_gone_and_comes_back(way: str) -> None:
    world = world_of()
    broker, before = world.brokers[2], process_of(world, 2)
    boot = before.journal.boot
    world.stop(broker, way)
    world.stop(broker, way)
    assert (broker.process, before.is_alive, world.counts[way]) == (None, False, 1)
    assert not any(link.number for pair, link in world.links.items() if 2 in pair)
    before.do(lambda: pytest.fail("it is gone"))
    world.run_until(9.0)
    world.start(broker)
    world.start(broker)
    assert process_of(world, 2).journal.boot == boot + 1
    assert all(link.number for link in world.links.values())


def test_a_wiped_broker_comes_back_with_another_directory_and_nothing_in_it() -> None:
    world = world_of()
    broker = world.brokers[2]
    world.wipe(broker)
    world.start(broker)
    assert broker.directory_id == "2.1"
    assert process_of(world, 2).journal.boot == 1
    assert len(process_of(world, 2).journal.group(GROUP)) == 0
    assert world.counts["wipe"] == 1


def test_a_broker_on_a_full_disk_starts_once_there_is_room() -> None:
    world = world_of(started=False)
    broker = world.brokers[1]
    broker.disk.capacity_bytes = 0
    world.start(broker)
    world.run_until(1.0)
    assert broker.process is None
    broker.disk.capacity_bytes = None
    world.run_until(2.0)
    assert process_of(world, 1).journal.boot == 1


# -- wires -----------------------------------------------------------------------------------------


def test_envelopes_arrive_in_their_order(arrived: list[bytes]) -> None:
    world = world_of()
    sent = [b"%d" % number for number in range(200)]
    arrived.clear()
    for envelope in sent:
        world.transmit(1, 2, envelope)
    world.run_until(6.0)
    assert [data for data in arrived if data in sent] == sent


def test_they_may_overtake_and_come_twice_where_the_network_is_such(arrived: list[bytes]) -> None:
    world = world_of()
    world.network.reorder, world.network.duplicate = 0.5, 0.2
    sent = [b"%d" % number for number in range(200)]
    for envelope in sent:
        world.transmit(1, 2, envelope)
    world.run_until(6.0)
    found = [data for data in arrived if data in sent]
    assert found != sorted(found, key=int)
    assert set(found) == set(sent)
    assert 220 < len(found) <= 200 + world.counts["duplicate"], "of these, and of beats"


@pytest.mark.parametrize("late", [0.0, 1.0])
def test_bytes_of_a_connection_that_ended_are_lost_or_late(
    late: float, arrived: list[bytes]
) -> None:
    world = world_of()
    world.network.late = late
    world.transmit(1, 2, b"envelope")
    world.disconnect(1, 2)
    world.connect(1, 2)
    world.run_until(6.0)
    assert (b"envelope" in arrived) == bool(late)
    assert bool(world.counts["late"]) == bool(late)


def test_a_black_hole_takes_one_direction(arrived: list[bytes]) -> None:
    world = world_of()
    world.link(1, 2).blackholes.add(1)
    world.transmit(1, 2, b"into the hole")
    world.transmit(2, 1, b"out of it")
    world.run_until(6.0)
    assert (b"into the hole" in arrived, b"out of it" in arrived) == (False, True)


def test_nothing_passes_a_link_that_is_cut(arrived: list[bytes]) -> None:
    world = world_of()
    world.link(1, 2).is_cut = True
    world.disconnect(2, 1)
    world.connect_all()
    world.transmit(1, 2, b"over the cut")
    world.run_until(6.0)
    assert world.link(1, 2).number == 0
    assert b"over the cut" not in arrived


def test_one_side_may_notice_the_end_of_a_connection_later(monkeypatch: pytest.MonkeyPatch) -> None:
    noticed: list[tuple[float, int]] = []
    world = world_of()

    def take(self: object, peer: int, now: float) -> None:
        noticed.append((now, peer))

    monkeypatch.setattr("raftlog.consensus.node.ConsensusNode.peer_down", take)
    world.disconnect(1, 2, notice_s=3.0)
    world.run_until(9.0)
    assert noticed == [(5.0, 2), (8.0, 1)]


def test_a_new_connection_needs_no_notice_of_the_end_of_the_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_of()
    monkeypatch.setattr(
        "raftlog.consensus.node.ConsensusNode.peer_down", lambda *_: pytest.fail("there is one")
    )
    world.disconnect(1, 2, notice_s=1.0)
    world.connect(1, 2)
    world.run_until(7.0)


def test_an_isolated_broker_answers_what_it_was_asked() -> None:
    world = world_of()
    outcomes: list[Outcome] = []
    for other in (2, 3):
        world.link(1, other).is_cut = True
        world.disconnect(1, other)
    world.run_until(8.0)
    world.propose(process_of(world, 1), GROUP, b"c1", outcomes.append)
    world.run_until(12.0)
    assert isinstance(outcomes[0], NotProposed)
    assert [broker.broker_id for broker in world.leaders()] != [1]
