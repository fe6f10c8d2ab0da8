"""The hazards of PySyncObj that stop or mislead a cluster, or let in a stranger, 14 to 23.

Those that lose what was agreed: test_hazards. Where it is cheap, the same test shows that the
library as it is released does fail.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgpack
import pysyncobj.pickle
import pytest

from raftlog.consensus import Applied, CommandFailed, ConsensusSettings, NotProposed, transport
from raftlog.consensus.settings import APPEND_BYTES, WINDOW_ENTRIES
from raftlog.consensus.transport import COMMAND, NO_OP, decode
from raftlog.errors import DiskFullError
from raftlog.limits import MIB
from tests.consensus import stock_schedules as stock
from tests.consensus.harness import GROUP, Broker, ListMachine, Network, kinds
from tests.consensus.hazards import breaks_stock, campaign, cluster, elect, entries, forge, raft_of

ELECTION_S: Final = ConsensusSettings().election_timeout_ms / 1_000


def followers_of(network: Network) -> list[Broker]:
    leader = network.leader()
    return [broker for broker in network.brokers.values() if broker is not leader]


def test_h14_a_leader_learns_of_a_higher_term(tmp_path: Path) -> None:
    """From any message; and without any it steps down in about one election timeout."""
    assert breaks_stock(stock.ignored_term, tmp_path)
    network = cluster()
    leader = network.leader()
    for _ in range(30):  # its links stand, and nothing comes by them
        network.now += ELECTION_S / 20
        leader.node.tick(network.now)
        leader.sync()
    assert not leader.is_leader()
    for queue in network.queues.values():
        queue.clear()
    network.run(10)
    leader = network.leader()
    follower = followers_of(network)[0]
    term = leader.status().term
    outcomes = leader.propose(b"x")
    network.deliver(leader.id, follower.id)
    (answer,) = network.queues[follower.id, leader.id]
    (message,) = decode(answer).messages
    message[2] = term + 1
    leader.node.receive(follower.id, forge(answer, messages=[message]), network.now)
    leader.sync()
    assert (leader.is_leader(), leader.status().term) == (False, term + 1)
    assert outcomes == []


def test_h15_half_connected_brokers_inflate_no_terms(tmp_path: Path) -> None:
    """A pre-vote asks first, and who has a live leader says no."""
    assert breaks_stock(stock.inflated_term, tmp_path)
    network = cluster()
    leader = network.leader()
    other, half = followers_of(network)
    term = leader.status().term
    network.cut(leader.id, half.id)
    network.run(120)
    assert leader.is_leader()
    assert {broker.status().term for broker in network.brokers.values()} == {term}
    network.cut(other.id, half.id)  # alone for long, then back
    network.run(120)
    network.connect_all()
    network.run(10)
    assert leader.is_leader()
    assert {broker.status().term for broker in network.brokers.values()} == {term}


class Raising(ListMachine):
    def apply(self, command: bytes) -> object:
        if command == b"poison":
            raise ValueError("a defect in apply")
        return super().apply(command)


def test_h16_poison_command(tmp_path: Path) -> None:
    """A machine that raises gives a result, the same everywhere, and the next command works."""
    assert breaks_stock(stock.poison, tmp_path)
    network = Network(3)
    for broker in network.brokers.values():
        broker.open(machine=Raising())
    failed = network.agree(b"poison").result
    assert isinstance(failed, CommandFailed)
    assert "a defect in apply" in failed.error
    network.agree(b"after")
    network.run(1)
    network.leader().restart(power_cut=True)
    network.connect_all()
    network.run(10)
    assert {tuple(broker.commands()) for broker in network.brokers.values()} == {(b"after",)}


def test_h17_no_flood(tmp_path: Path) -> None:
    """A follower that lags is probed with one append, then sent a bounded window."""
    assert breaks_stock(stock.snapshot_flood, tmp_path)
    network = Network(3, settings=ConsensusSettings(seal_after_entries=1_000_000))
    network.open()
    leader = network.leader()
    far = followers_of(network)[0]
    network.cut_all(far.id)
    for number in range(WINDOW_ENTRIES + 2_000):
        leader.propose(b"%d" % number)
        if number % 500 == 0:
            network.deliver_all()
    network.run(3)
    network.connect(leader.id, far.id)
    assert 1 <= len(network.queues[leader.id, far.id]) <= 2
    sent = network.sent
    network.run(20, until=lambda: far.commands() == leader.commands())
    assert network.sent - sent < 60, "a few for each 1,000 entries"


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("consensus opened a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(os, "pipe", refuse)


def test_h18_no_listener_to_lose(no_sockets: None) -> None:
    """Groups listen nowhere, and take no file descriptor, however many there are."""
    before = len(os.listdir("/proc/self/fd"))
    network = Network(3)
    for number in range(50):
        network.open(f"topic/{number}")
    network.run(5)
    assert len(os.listdir("/proc/self/fd")) == before
    assert sum(broker.is_leader(f"topic/{n}") for broker in network.brokers.values()
               for n in range(50)) == 50  # fmt: skip


def test_h19_a_full_disk_is_an_answer() -> None:
    """No signal, no exception: the broker is silent until there is room, and nothing is lost."""
    network = cluster()
    leader = network.leader()
    full = followers_of(network)[0]
    full.disk.capacity_bytes = 1 << 30
    full.disk.capacity_bytes -= full.disk.free_bytes(".")
    full.hold_disk()
    outcomes = leader.propose(b"agreed by two")
    network.deliver(leader.id, full.id)
    sent = network.sent
    for _ in range(3):
        task, full.task = full.task, None
        with pytest.raises(OSError, match="No space left") as caught:
            task.run()
        assert isinstance(full.node.failed_sync(task, caught.value), DiskFullError)
        full.node.tick(network.now)
        full.sync()
    assert network.sent == sent
    network.run(2)
    assert kinds(outcomes) == ["Applied"]
    full.disk.capacity_bytes = None
    full.free_disk()
    network.run(5)
    assert full.commands() == [b"agreed by two"]


# -- 20: no bytes become code ----------------------------------------------------------------------


@pytest.fixture
def no_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever pickles or unpickles fails the test."""

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("something was pickled, or read with pickle")

    for name in ("dumps", "loads", "dump", "load", "to_bytes"):
        monkeypatch.setattr(pysyncobj.pickle, name, refuse, raising=False)


def poisoned(target: Path) -> list[bytes]:
    """Bytes that make the directory ``target`` when they are unpickled."""
    call = b"cos\nmkdir\n(S'" + str(target).encode() + b"'\ntR."
    return [call, b"\0" + call, b"\2" + call, b"\3" + call, b"\x80\x04" + call]


def messages_with(poison: bytes) -> Iterator[list[Any]]:
    """Messages of every type with the poison in every one of their fields."""
    plain: dict[int, list[Any]] = {
        transport.HELLO: [False],
        transport.OFFER: [[[1, "disk-1"], [2, "disk-2"], [3, "disk-3"]], b""],
        transport.PRE_VOTE: [1, 0, 1],
        transport.PRE_VOTE_ANSWER: [1, True],
        transport.VOTE: [9, 99],
        transport.VOTE_ANSWER: [True],
        transport.APPEND: [1, 0, 5, [[9, bytes([COMMAND]) + b"x"]]],
        transport.APPEND_ANSWER: [True, 1, 1],
        transport.PROPOSE: [1, bytes([COMMAND]) + b"x"],
        transport.PROPOSED: [1, 1],
        transport.REFUSED: [1],
    }
    for kind, fields in plain.items():
        message = [GROUP, 0, 9, kind, *fields]
        yield message
        for place in range(len(message)):
            for value in (poison, poison.decode("latin-1"), [poison], [[1, poison]]):
                yield [*message[:place], value, *message[place + 1 :]]


@pytest.mark.parametrize("flavour", range(5))
def test_h20_pickle_is_never_read(flavour: int, tmp_path: Path, no_pickle: None) -> None:
    """Not in any field of any message, nor in a command, nor in place of an envelope."""
    poison = poisoned(tmp_path / "owned")[flavour]
    network = cluster()
    victim = network[1]
    for sequence, message in enumerate(messages_with(poison), start=1_000):
        data = msgpack.packb([network[2].journal.boot, 1, sequence, "disk-2", 0, [message]])
        victim.node.receive(2, data, network.now)
        victim.sync()
    assert victim.status().term == 9, "those that could be a peer's were listened to"
    for data in (poison, msgpack.packb(poison), msgpack.packb([poison] * 6)):
        victim.node.receive(2, data, network.now)
    for broker in network.brokers.values():
        broker.restart(power_cut=True)
    network.connect_all()
    network.run(10)
    network.agree(poison)
    network.run(2)
    assert all(broker.commands()[-1] == poison for broker in network.brokers.values())
    network.leader().seal(network.voters())
    network.run(5)
    network.agree(b"after")
    assert not (tmp_path / "owned").exists()


def test_h20_the_library_as_it_is_does_read_it(tmp_path: Path) -> None:
    assert breaks_stock(stock.pickled_command, tmp_path)


@pytest.mark.parametrize("first_byte", [0, 2, 3])
def test_h20_the_librarys_own_commands_do_nothing(
    first_byte: int, tmp_path: Path, no_pickle: None
) -> None:
    """Even where they stand in a log: a leader gone mad may append what it likes."""
    network = cluster()
    leader = network.leader()
    entry = bytes([first_byte]) + poisoned(tmp_path / "owned")[0]
    raft_of(leader).append(entry, network.now)
    leader.sync()
    network.agree(b"after")
    network.run(2)
    for broker in network.brokers.values():
        assert entry in [command for command, _index, _term in entries(broker)]
        assert broker.commands() == [b"after"]
        assert broker.status().voters == network.voters()
    assert not (tmp_path / "owned").exists()


# -- 21 to 23 --------------------------------------------------------------------------------------


def test_h21_every_proposal_is_answered_once_and_truly(tmp_path: Path) -> None:
    """``Applied``, or that it certainly was not, or that it is not known: within the timeout."""
    assert breaks_stock(stock.unanswered, tmp_path)
    network = cluster()
    old = network.leader()
    one, other = followers_of(network)
    forwarded = one.propose(b"forwarded, and the answer lost")
    network.deliver(one.id, old.id)
    network.cut_all(old.id)
    placed = old.propose(b"placed, and overwritten")
    network.run(0.5)
    waiting = old.propose(b"asked of nobody")
    network.run(20)
    elect(network, other.id, [one.id])
    network.agree(b"goes on", via=one.id)
    network.connect_all()
    network.run(20)
    assert kinds(forwarded) == ["Unknown"]
    assert kinds(placed) in (["Unknown"], ["NotProposed"])
    assert kinds(waiting) == ["NotProposed"]
    (commands,) = {tuple(broker.commands()) for broker in network.brokers.values()}
    assert set(commands) == {b"goes on"}


SIZES: Final = (0, 1, 959, 1_940, 59_999, 60_000)


def test_h22_sizes_of_commands(tmp_path: Path) -> None:
    """Up to the limit all arrive whole; one byte more is refused at once."""
    assert breaks_stock(stock.broken_chunks, tmp_path)
    network = cluster()
    for size in SIZES:
        assert network.agree(bytes(size)) == Applied(SIZES.index(size) + 1)
    outcomes = network.leader().propose(bytes(60_001))
    assert kinds(outcomes) == ["NotProposed"]
    network.run(2)
    for broker in network.brokers.values():
        assert [len(command) for command in broker.commands()] == list(SIZES)


@pytest.mark.parametrize("size", [APPEND_BYTES - 1, APPEND_BYTES, APPEND_BYTES + 1, MIB])
def test_h22_a_command_larger_than_an_append_travels_whole(size: int) -> None:
    network = Network(3, settings=ConsensusSettings(command_bytes_max=MIB))
    network.open()
    far = followers_of(network)[0]
    network.cut_all(far.id)
    for _ in range(3):
        network.agree(bytes(size))
    network.connect_all()
    network.run(3)
    assert [len(command) for command in far.commands()] == [size] * 3


def test_h23_logs_part_in_few_round_trips(tmp_path: Path) -> None:
    """One for each term, not for each entry."""
    assert breaks_stock(stock.one_index_at_a_time, tmp_path)
    network = Network(3, settings=ConsensusSettings(seal_after_entries=1_000_000))
    network.open()
    old = network.leader()
    one, other = followers_of(network)
    network.cut_all(old.id)
    for number in range(300):
        old.propose(b"alone %d" % number)
    elect(network, other.id, [one.id])
    for number in range(400):
        other.propose(b"together %d" % number)
        network.deliver_all()
    elect(network, one.id, [other.id])
    network.run(1)
    network.connect(one.id, old.id)
    rounds = 0
    while entries(old) != entries(one):
        rounds += 1
        assert rounds < 12
        network.deliver(one.id, old.id)
        network.deliver(old.id, one.id)
        network.tick()
    assert len(entries(old)) > 400


def test_h23_a_vote_that_was_lost_is_given_again() -> None:
    network = Network(3)
    network.open()
    candidate, voter = network[1], network[2]
    network.cut_all(3)
    campaign(candidate)
    network.deliver(1, 2)
    network.deliver(2, 1)  # would vote
    network.deliver(1, 2)  # votes, durably
    assert voter.journal.group(GROUP).getVotedForNodeId() == 1
    term = voter.status().term
    network.cut(1, 2)  # and the answer is lost
    network.connect(1, 2)
    network.deliver_all()
    assert (candidate.is_leader(), candidate.status().term) == (True, term)


def test_the_first_entry_is_the_librarys_and_does_nothing() -> None:
    network = cluster()
    assert {entries(broker)[0] for broker in network.brokers.values()} == {(bytes([NO_OP]), 1, 0)}
    assert all(broker.commands() == [] for broker in network.brokers.values())
    assert isinstance(network.leader().propose(bytes(60_001))[0], NotProposed)
