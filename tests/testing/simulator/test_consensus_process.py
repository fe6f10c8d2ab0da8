"""One broker of simulated consensus: its clock, its pauses, its disk, and its end."""

from __future__ import annotations

import errno

import pytest

from raftlog.consensus.node import NEVER
from raftlog.consensus.transport import HELLO, Envelope, encode
from raftlog.testing.disk import Fault
from raftlog.testing.simulator.consensus import RETRY_S, Ledger, World
from tests.testing.simulator.consensus_worlds import GROUP, process_of, world_of


def propose(world: World, number: int, command: bytes) -> None:
    world.propose(process_of(world, number), GROUP, command, lambda outcome: None)


def test_a_ledger_is_the_list_of_its_commands() -> None:
    world = world_of()
    for number in range(5):
        propose(world, 1, b"c%d" % number)
    world.run_until(7.0)
    ledger = process_of(world, 1).ledgers[GROUP]
    other = Ledger(process_of(world, 2), GROUP)
    other.restore(ledger.snapshot())
    assert other.commands == ledger.commands == [b"c%d" % number for number in range(5)]
    other.restore(b"")
    assert other.commands == []
    assert world.checker.violations == []


def test_a_clock_has_its_own_base_and_rate() -> None:
    world = world_of(started=False)
    broker = world.brokers[1]
    broker.clock_offset, broker.clock_rate = 1_000.0, 1.1
    world.start(broker)
    world.run_until(10.0)
    assert process_of(world, 1).now == pytest.approx(1_011.0)


def test_a_slow_clock_still_ticks_when_its_node_wants_it() -> None:
    world = world_of(1, started=False)
    world.brokers[1].clock_offset, world.brokers[1].clock_rate = 5e5, 0.5
    world.start(world.brokers[1])
    world.run_until(5.0)
    assert len(world.leaders()) == 1


def test_a_paused_process_does_everything_when_it_goes_on() -> None:
    world = world_of()
    process = process_of(world, 2)
    done: list[int] = []
    process.paused_until = 7.0
    for number in range(3):
        process.do(lambda number=number: done.append(number))
    world.run_until(6.9)
    assert done == []
    world.run_until(7.1)
    assert done == [0, 1, 2]
    assert world.counts["paused"] >= 3


def test_a_sync_takes_time_and_nothing_leaves_before_it_is_done() -> None:
    world = world_of()
    (leader,) = world.leaders()
    process = process_of(world, leader.broker_id)
    leader.sync_s = 50.0
    process.node._beat_due = NEVER  # beats report only what is durable
    world.transmit = lambda *_: pytest.fail("nothing is durable yet")  # type: ignore[method-assign]
    propose(world, leader.broker_id, b"c1")
    while process.task is None:
        process.do(lambda: process.node.tick(process.now))
    assert process.task is not None
    assert process.journal.is_dirty


def test_a_refused_sync_is_tried_again() -> None:
    world = world_of()
    (leader,) = world.leaders()
    process = process_of(world, leader.broker_id)
    leader.disk.faults.append(Fault(("write",), errno.ENOSPC, times=3))
    propose(world, leader.broker_id, b"c1")
    world.run_until(5.0 + 2.5 * RETRY_S)
    assert process.ledgers[GROUP].commands == []
    world.run_until(9.0)
    assert process.ledgers[GROUP].commands == [b"c1"]
    assert world.counts["refused sync"] == 3


def test_a_failed_sync_ends_the_process() -> None:
    world = world_of()
    (leader,) = world.leaders()
    leader.disk.faults.append(Fault(("sync",), errno.EIO))
    propose(world, leader.broker_id, b"c1")
    world.run_until(6.0)
    assert leader.process is None
    assert world.counts["disk"] == 1


def test_what_a_power_cut_leaves_of_a_sync_under_way_is_by_chance() -> None:
    """All of the block, none of it, or a part that the next start cuts."""
    ends = set()
    for seed in range(40):
        world = world_of(1, seed=seed)
        broker = world.brokers[1]
        broker.sync_s = 50.0
        world.propose(process_of(world, 1), GROUP, b"c1", lambda outcome: None, size=3_000)
        world.run_until(world.now + 0.01)
        world.stop(broker, "power")
        world.start(broker)
        process = process_of(world, 1)
        ends.add((len(process.journal.group(GROUP)), bool(process.journal.notes)))
    assert len({entries for entries, _ in ends}) == 2
    assert len({torn for _, torn in ends}) == 2


def test_sending_what_is_not_durable_is_a_violation() -> None:
    world = world_of()
    process = process_of(world, 1)
    hello = encode(Envelope(1, 1, 1, "1.0", 0, [[GROUP, 0, 0, HELLO, True]]))
    process._send(2, hello)
    process.journal.note_peer(9, "9.0", 1)
    process._send(2, encode(Envelope(1, 1, 2, "1.0", 0, [])))  # a beat
    assert world.checker.violations == []
    process._send(2, hello)
    assert world.checker.violations == ["1 sends state that is not durable"]
