"""The hazards of PySyncObj that lose or corrupt what was agreed, 1 to 13: each is closed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgpack
import pysyncobj.pickle
import pytest
from pysyncobj import SyncObj
from pysyncobj.node import Node

from raftlog.consensus import (
    Applied,
    CommandFailed,
    ConsensusSettings,
    NotProposed,
    selftest,
    transport,
)
from raftlog.consensus.raft_group import CANDIDATE, FOLLOWER, LEADER, VOID, RaftGroup
from raftlog.consensus.settings import APPEND_BYTES, WINDOW_ENTRIES
from raftlog.consensus.transport import (
    COMMAND,
    NO_OP,
    VOTE_ANSWER,
    decode,
    encode_seal,
    is_proposable,
)
from raftlog.errors import DamagedJournalError, DiskFullError, StorageFailedError
from raftlog.limits import MIB
from raftlog.testing.disk import Fault, Stopped
from tests.consensus import stock
from tests.consensus.harness import GROUP, PATH, Broker, ListMachine, Network, kinds
from tests.consensus.hazards import (
    breaks_stock,
    campaign,
    cluster,
    durable_entries,
    elect,
    entries,
    forge,
    raft_of,
)
from tests.consensus.journals import disk_of, fill_group, open_journal, task_of
from tests.consensus.voter import Voter, command

# -- the hazards -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True])
def test_h01_snapshot_false_ack(sealed: bool, tmp_path: Path) -> None:
    """No message makes a deposed leader apply what it alone has."""
    assert breaks_stock(stock.snapshot_false_ack, tmp_path)
    network = cluster()
    old = network.leader()
    one, other = (b for b in network.brokers.values() if b is not old)
    network.cut_all(old.id)
    outcomes = old.propose(b"lost")
    elect(network, other.id, [one.id])
    for number in range(20):
        network.agree(b"%d" % number, via=other.id)
    elect(network, one.id, [other.id])  # whose first guess is that all logs are as long as its own
    if sealed:  # what this layer has in place of a snapshot
        one.seal(network.voters())
        network.run(3)
        network.agree(b"sealed", via=one.id)
    network.connect(old.id, one.id)
    for _ in range(50):
        network.deliver(one.id, old.id, 1)
        assert b"lost" not in old.commands()
        network.deliver(old.id, one.id, 1)
        network.tick(0.02)
    network.connect_all()
    network.run(10, until=lambda: old.commands() == one.commands() == other.commands())
    assert b"lost" not in old.commands()
    assert len(old.commands()) == 20 + sealed
    assert kinds(outcomes) in (["NotProposed"], ["Unknown"])


def test_h02_truncate_acked_suffix(tmp_path: Path) -> None:
    """An append that is sent again cuts nothing of what it matches."""
    assert breaks_stock(stock.truncated_suffix, tmp_path)
    network = cluster()
    a = network.leader()
    b, c = (each for each in network.brokers.values() if each is not a)
    network.cut(a.id, c.id)
    outcomes = [a.propose(b"%d" % number + b"x" * 59_000) for number in range(6)]
    network.deliver(a.id, b.id)
    late = list(network.queues[b.id, a.id])
    held = len(entries(b))
    network.cut(a.id, b.id)
    network.connect(a.id, b.id)
    network.queues[b.id, a.id].clear()  # nothing of the new connection has arrived yet
    network.tick(0.5)  # it asks where their logs part, and sends what fits one append
    for data in late:  # and the answers of the connection that ended arrive after all
        a.node.receive(b.id, data, network.now)
        a.sync()
    assert [kinds(each) for each in outcomes] == [["Applied"]] * 6
    network.deliver(a.id, b.id, 1)
    assert durable_entries(b) == held
    network.cut_all(a.id)
    network.connect(b.id, c.id)
    network.leader()
    network.run(3)
    assert [command[:1] for command in network[c.id].commands()] == [b"%d" % n for n in range(6)]


def test_h03_stale_answer_across_terms(tmp_path: Path) -> None:
    """An answer of an older term counts for no entry of this one."""
    assert breaks_stock(stock.stale_answer, tmp_path)
    network = cluster(5)
    a = elect(network, 1, [2, 3, 4, 5])
    network.run(1)
    network.split([1, 5], [2, 3, 4])
    for number in range(3):
        a.propose(b"old %d" % number)
    network.deliver(1, 5)
    assert network.queues[5, 1], "an answer of this term is on the way, and stays there"
    held = list(network.queues[5, 1])
    b = network[2]
    campaign(b)
    for _ in range(4):
        for voter in (3, 4):
            network.deliver(2, voter)
            network.deliver(voter, 2)
    assert b.is_leader()
    network.connect(1, 2)
    for _ in range(10):
        network.deliver(2, 1)
        network.deliver(1, 2)
        b.node.tick(network.now)
        b.sync()
    assert raft_of(a).term == raft_of(b).term
    network.cut_all(2)
    for other in (3, 4):
        network.connect(1, other)
    campaign(a)
    for _ in range(6):
        for other in (3, 4):
            network.deliver(1, other)
            network.deliver(other, 1)
    assert a.is_leader()
    for other in (3, 4):
        network.cut(1, other)
    network.connect(1, 2)
    outcomes = a.propose(b"new")
    for _ in range(6):
        network.deliver(1, 2)
        network.deliver(2, 1)
    for data in held:
        a.node.receive(5, data, network.now)
        a.sync()
    assert outcomes == []
    assert b"new" not in a.commands()


def test_h04_duplicate_vote(tmp_path: Path) -> None:
    """Votes are counted by who gave them, whether the envelope is the same or another."""
    assert breaks_stock(stock.duplicate_vote, tmp_path)
    network = Network(5)
    network.open()
    a = network[1]
    campaign(a)
    for voter in (2, 3):  # would vote
        network.deliver(1, voter)
        network.deliver(voter, 1)
    network.deliver(1, 2)  # and votes
    (answer,) = network.peek(2, 1)
    assert [message[3] for message in answer.messages] == [VOTE_ANSWER]
    (data,) = network.queues[2, 1]
    for copy in (data, data, forge(data, sequence=1), forge(data, sequence=2)):
        a.node.receive(2, copy, network.now)
        a.sync()
    assert a.status().role == "candidate"
    network.queues[2, 1].clear()
    network.deliver(1, 3)
    network.deliver(3, 1)
    assert a.status().role == "leader"


def test_h05_superseded_connection() -> None:
    """Bytes of an older connection change nothing once the newer one has spoken."""
    network = cluster()
    a = network.leader()
    b = next(each for each in network.brokers.values() if each is not a)
    a.propose(b"on the old connection")
    old = list(network.queues[a.id, b.id])
    network.cut(a.id, b.id)
    network.connect(a.id, b.id)
    network.run(2)
    network.agree(b"on the new one")
    network.run(2)
    before = entries(b), b.status(), b.node.refused_messages
    for data in old:
        b.node.receive(a.id, data, network.now)
        b.sync()
    assert (entries(b), b.status()) == before[:2]
    assert b.node.refused_messages > before[2]


def test_h06_journal_is_synced(tmp_path: Path) -> None:
    """All that was acknowledged outlives a power cut of all brokers at once; so does a vote."""
    assert breaks_stock(stock.forgotten_vote, tmp_path)
    network = cluster()
    for number in range(50):
        network.agree(b"%d" % number)
    terms = {broker.id: broker.status().term for broker in network.brokers.values()}
    for broker in network.brokers.values():
        broker.restart(power_cut=True)
        assert broker.status().term == terms[broker.id]
        assert broker.journal.group(GROUP).getVotedForNodeId() is not None
    network.connect_all()
    network.leader()
    network.run(2)
    for broker in network.brokers.values():
        assert broker.commands() == [b"%d" % number for number in range(50)]


def test_h06_nothing_leaves_before_it_is_durable() -> None:
    network = cluster()
    leader = network.leader()
    leader.hold_disk()
    queues = [queue for (sender, _), queue in network.queues.items() if sender == leader.id]
    sent = sum(map(len, queues))
    outcomes = leader.propose(b"x")
    network.tick(1.0)
    assert sum(map(len, queues)) == sent
    leader.free_disk()
    assert sum(map(len, queues)) > sent
    network.run(1)
    assert kinds(outcomes) == ["Applied"]


def test_h07_kill_during_compaction(tmp_path: Path) -> None:
    """A crash at any change to the disk, while a generation is sealed, loses nothing."""
    assert breaks_stock(stock.dump_without_journal, tmp_path)

    def act(network: Network, acked: list[bytes]) -> None:
        for number in range(6):
            command = b"%d" % number
            network.agree(command)
            acked.append(command)
            if number % 2:
                network[1].seal(network.voters())
                network.run(1)

    stop = 0
    while True:
        network = Network(1)
        network.open()
        broker, acked = network[1], list[bytes]()
        broker.disk.faults.append(Fault(error=None, skip=stop))
        with suppress(Stopped):
            act(network, acked)
        is_over = bool(broker.disk.faults[0].times)
        broker.disk.faults.clear()
        broker.restart(power_cut=True)
        network.run(2)
        assert broker.commands()[: len(acked)] == acked
        if is_over:
            break
        stop += 1
    assert stop > 20


def test_h08_kill_in_journal_rewrite(tmp_path: Path) -> None:
    """A journal is rewritten beside itself: at every change to the disk one of the two is whole."""
    assert breaks_stock(stock.interrupted_rewrite, tmp_path)
    stop, is_rewritten = 0, False
    while not is_rewritten:
        disk = disk_of(stop)
        journal = open_journal(disk, rewrite_bytes=20_000)
        kept = fill_group(journal, "kept", 100)
        fill_group(journal, "dropped", 2_000)
        journal.sync()
        journal.drop("dropped")
        size = journal.size_bytes
        disk.faults.append(Fault(error=None, skip=stop))
        with suppress(Stopped):
            journal.sync()
            is_rewritten = journal.size_bytes < size / 4
        disk.faults.clear()
        disk.power_cut()
        assert open_journal(disk).group("kept")[:] == kept[:]
        stop += 1
    assert stop == 7, "create, truncate, write, sync, rename, sync the name; and nothing after it"


def test_h09_commit_index_is_volatile(tmp_path: Path) -> None:
    """A restarted broker applies nothing until a leader says what is committed, and no more."""
    assert breaks_stock(stock.trusted_commit_index, tmp_path)
    network = cluster()
    leader = network.leader()
    c = next(each for each in network.brokers.values() if each is not leader)
    for number in range(3):
        network.agree(b"%d" % number)
    network.run(2)
    c.journal.group(GROUP).setRaftCommitIndex(99)
    c.restart(power_cut=True)
    assert (c.status().commit_index, c.commands()) == (1, [])
    for other in network.brokers:
        if other not in (leader.id, c.id):
            network.cut(leader.id, other)
    outcomes = leader.propose(b"not committed yet")
    network.connect(leader.id, c.id)
    network.deliver(c.id, leader.id)
    network.deliver(leader.id, c.id)
    assert b"not committed yet" not in c.commands()
    network.run(2)
    assert kinds(outcomes) == ["Applied"]


def test_h10_bit_flip(tmp_path: Path) -> None:
    """A damaged journal is refused, and the broker comes back by the others."""
    assert breaks_stock(stock.silent_corruption, tmp_path)
    network = cluster()
    network.agree(b"leader is broker-1")
    network.run(1)
    broker = next(each for each in network.brokers.values() if not each.is_leader())
    data = broker.disk.durable_bytes(PATH) or b""
    broker.disk.flip_bit(PATH, 8 * data.index(b"broker-1") + 8 * 7 + 1)
    with pytest.raises(DamagedJournalError, match=r"consensus\.journal is corrupt at byte"):
        broker.restart()
    network.cut_all(broker.id)
    network.add(broker.id, "new disk").open(GROUP, {**network.voters(), broker.id: "old disk"})
    network.connect_all()
    network.leader()
    sealed = network.leader().seal(network.voters())
    network.run(5)
    assert kinds(sealed) == ["Applied"]
    assert network[broker.id].commands() == [b"leader is broker-1"]


def test_h11_no_memory_dump(tmp_path: Path) -> None:
    """There are no dumps: what asks for one does nothing, and nothing is ever trimmed."""
    assert breaks_stock(stock.dump_in_memory, tmp_path)
    network = cluster()
    for number in range(10):
        network.agree(b"%d" % number)
    for broker in network.brokers.values():
        raft_of(broker).forceLogCompaction()
    held = {broker.id: entries(broker) for broker in network.brokers.values()}
    network.run(30)
    for broker in network.brokers.values():
        assert entries(broker) == held[broker.id]
        assert broker.disk.list_dir("data") == ["consensus.journal"]
        broker.restart()
    network.connect_all()
    network.leader()
    network.run(2)
    assert all(len(broker.commands()) == 10 for broker in network.brokers.values())


def test_h12_overlapping_membership(tmp_path: Path) -> None:
    """Voters change by a seal, one at a time; the library's own ways lead nowhere."""
    assert breaks_stock(stock.overlapping_membership, tmp_path)
    network = cluster(5)
    leader = network.leader()
    raft: Any = raft_of(leader)
    for change in (raft.addNodeToCluster, raft.removeNodeFromCluster):
        with pytest.raises(Exception, match="dynamicMembershipChange is disabled"):
            change(Node(9))
    for command_type in range(256):  # the library's are 0 to 3
        assert is_proposable(bytes([command_type]) + b"\x80\x04]\x94.") == (command_type == COMMAND)
    network.cut_all(leader.id)
    seals = [leader.seal(network.voters(*voters)) for voters in ((1, 2), (3, 4), (5,))]
    assert len(raft.otherNodes) == 4
    network.connect_all()
    network.run(10)
    applied = [each for each in seals if isinstance(each[0], Applied)]
    assert len(applied) <= 1
    generations = {broker.status().generation for broker in network.brokers.values()}
    assert generations == {len(applied)}
    network.leader()


def test_h13_wiped_voter(tmp_path: Path) -> None:
    """A voter that lost its disk does not vote until a seal names its new directory."""
    assert breaks_stock(stock.wiped_voter, tmp_path)
    network = cluster()
    voters = network.voters()
    a = elect(network, 1, [2])
    network.agree(b"agreed", via=1)
    network.cut_all(1)
    network.cut_all(2)
    network.add(2, "another disk").open(GROUP, voters)
    network.connect(2, 3)
    network.run(60)
    assert not any(network[each].is_leader() for each in (2, 3))
    assert all(
        network[each].status().term <= a.status().term and network[each].commands() == []
        for each in (2, 3)
    )
    outcomes = network[3].propose(b"too early")
    network.run(10)
    assert [type(outcome) for outcome in outcomes] == [NotProposed]
    network.connect_all()
    sealed = network.leader().seal(network.voters())
    network.run(5)
    assert kinds(sealed) == ["Applied"]
    assert network[2].commands() == [b"agreed"]
    assert network[2].status().role in {"follower", "leader"}


def test_there_is_no_other_way_into_the_library() -> None:
    """Its own gates for messages, compaction, commands and elections are shut."""
    for name in ("onMessageReceived", "tryLogCompaction", "connectedToAnyone", "onSetCodeVersion",
                 "parseChangeClusterRequest", "doApplyCommand", "sendAppendEntries"):  # fmt: skip
        assert f"_SyncObj__{name}" in vars(RaftGroup)


# -- guards sync -----------------------------------------------------------------------------------
#
# What must wait for the journal, where no other test would notice that it does not.


def test_a_journal_is_ahead_of_the_disk_until_its_ticket_is_back() -> None:
    journal = open_journal(disk_of())
    fill_group(journal, "t/0", 1)
    task = task_of(journal)
    assert journal.is_dirty, "although nothing was changed since the task was made"
    task.run()
    assert journal.is_dirty
    journal.complete_sync(task)
    assert not journal.is_dirty


def test_what_a_failed_sync_was_to_make_durable_is_never_sent() -> None:
    network = Network(2)
    network.open()
    leader = network.leader()
    network.run(1)
    leader.disk.faults.append(Fault(["sync"]))
    leader.node.propose(GROUP, b"x", lambda _outcome: None, network.now)
    task = leader.node.begin_sync()
    assert task is not None
    with pytest.raises(OSError) as raised:
        task.run()
    assert isinstance(leader.node.failed_sync(task, raised.value), StorageFailedError)
    sent = network.sent
    leader.node.flush(network.now)
    assert network.sent == sent


def test_after_a_failed_sync_nothing_is_counted_or_applied() -> None:
    """The entry is in memory, nothing is pending any more, and nobody else is asked."""
    network = Network(1)
    network.open()
    broker = network[1]
    network.run(1)
    broker.disk.faults.append(Fault(["sync"]))
    broker.node.propose(GROUP, b"x", lambda _outcome: None, network.now)
    task = broker.node.begin_sync()
    assert task is not None
    with pytest.raises(OSError) as raised:
        task.run()
    broker.node.failed_sync(task, raised.value)
    broker.node.tick(network.now + 100)
    broker.node.peer_down(2, network.now + 100)
    assert broker.commands() == []


def test_a_voter_without_room_does_nothing_until_there_is_some() -> None:
    network = Network(1)
    network.open()
    broker = network[1]
    network.run(1)
    broker.disk.capacity_bytes = 0
    broker.node.propose(GROUP, b"x", lambda _outcome: None, network.now)
    task = broker.node.begin_sync()
    assert task is not None
    with pytest.raises(OSError) as raised:
        task.run()
    assert isinstance(broker.node.failed_sync(task, raised.value), DiskFullError)
    outcomes: list[object] = []
    broker.node.propose(GROUP, b"y", outcomes.append, network.now)
    assert broker.status().entries == 3, "the second command was not even placed"


def test_a_role_is_told_once_it_is_durable() -> None:
    network = Network(1)
    broker = network[1]
    broker.hold_disk()
    broker.open()
    task, broker.task = broker.task, None
    task.run()
    broker.news.clear()
    broker.node.complete_sync(task, network.now + 10)
    assert broker.status().role == "leader"
    assert broker.news == [], "its term and vote are not on the disk yet"
    broker.free_disk()
    assert GROUP in broker.news


# -- guards voters ---------------------------------------------------------------------------------
#
# What a voter must not believe, where no other test would notice that it does.


def test_a_refused_vote_is_none() -> None:
    voter = Voter(3)
    voter.step(10)
    voter.hear(2, 0, transport.PRE_VOTE_ANSWER, 1, True)
    assert voter.group.role == CANDIDATE
    voter.hear(2, 1, transport.VOTE_ANSWER, False)
    assert voter.group.role == CANDIDATE
    voter.hear(3, 1, transport.VOTE_ANSWER, True)
    assert voter.group.role == LEADER


def test_a_leader_that_nobody_answers_steps_down_though_its_links_are_up() -> None:
    voter = Voter(3)
    voter.become_leader()
    voter.acknowledge(2, 3)
    for _ in range(8):
        voter.step(0.5)
    assert voter.group.role == FOLLOWER


@pytest.mark.parametrize(
    ("previous", "previous_term", "entries"),
    [
        (1, 0, [[3, command("of a later term than its leader's")]]),
        (2, 1, [[0, command("of an earlier term than the one before it")]]),
        (1, 1, []),
    ],
)
def test_an_append_that_no_leader_sends_changes_nothing(
    previous: int, previous_term: int, entries: list[Any]
) -> None:
    voter = Voter(terms=(1,))
    before = voter.journal[:]
    assert not voter.hear(2, 2, transport.APPEND, previous, previous_term, 1, entries)
    assert voter.journal[:] == before
    assert voter.group.leader is None


def test_a_command_behind_a_seal_is_not_applied() -> None:
    """A follower may hear of both at once, and hear at once that both are committed."""
    voter = Voter(3)
    entries = [[1, command("before")], [1, encode_seal({1: "", 2: ""})], [1, command("after")]]
    results: list[object] = []
    voter.group.watch(4, 1, results.append)
    assert voter.hear(2, 1, transport.APPEND, 1, 0, 4, entries)
    voter.step()
    assert voter.applied == [b"before"]
    assert results == [VOID]
    assert voter.group.seal == {1: "", 2: ""}


def test_an_invalid_seal_does_not_stop_the_group() -> None:
    """One voter errs, and the others copy from it what ends no generation: they still accept, and
    what follows counts."""
    invalid = bytes([transport.SEAL]) + b"x"
    network = Network()
    network.open()
    network.agree(b"before")
    hurt, status = network[1], network[1].status()
    append = [status.entries, status.term, 0, [[status.term + 1, invalid]]]
    message = [GROUP, 0, status.term + 1, transport.APPEND, *append]
    forged = transport.Envelope(hurt.journal.boot, 1, 1_000, network[2].directory_id, 0, [message])
    hurt.node.receive(2, transport.encode(forged), network.now)
    hurt.sync()
    assert invalid in [entry for entry, _, _ in hurt.journal.group(GROUP)[:]]
    network.split([1, 3], [2])  # the log of the others is shorter: the entry is committed
    assert network.leader() is hurt
    assert network.agree(b"after").result == 2
    assert hurt.status().generation == 0
    assert hurt.node.journaled(GROUP, network.now).unapplied == ()


def test_commands_behind_an_invalid_seal_are_reported_to_a_recovery() -> None:
    voter = Voter(3)
    entries = [[1, command("a")], [1, bytes([transport.SEAL]) + b"x"], [1, command("b")]]
    assert voter.hear(2, 1, transport.APPEND, 1, 0, 1, entries)
    assert voter.group.unapplied() == [b"a", b"b"]


def test_the_answer_of_a_broker_that_has_no_vote_counts_for_nothing() -> None:
    """It has a link, and knows the group's name: one of another generation, or one that errs."""
    network = Network(4, connect=False)
    for broker in (1, 2, 3):
        network[broker].open(GROUP, network.voters(1, 2, 3))
    network.connect(1, 4)
    network.connect(1, 2)
    network.tick(10)
    assert network.deliver(1, 2)
    assert network.deliver(2, 1)
    assert network[1].status().role == "candidate"
    node, journal = network[1].node, network[4].journal
    answer = [GROUP, 0, network[1].status().term, transport.VOTE_ANSWER, True]
    forged = transport.Envelope(journal.boot, 1, 1_000, network[4].directory_id, 0, [answer])
    node.receive(4, transport.encode(forged), network.now)
    network[1].sync()
    assert network[1].status().role == "candidate"


# -- hazards liveness ------------------------------------------------------------------------------
#
# The hazards of PySyncObj that stop or mislead a cluster, or let in a stranger, 14 to 23.
#
# Those that lose what was agreed: test_hazards. Where it is cheap, the same test shows that the
# library as it is released does fail.


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


# -- the library -----------------------------------------------------------------------------------

# That a library that is not the one relied on is found.


def faults(library: type = SyncObj, group: type = RaftGroup, version: str = "0.3.17") -> str:
    return "; ".join(selftest._faults(library, group, version))


def test_this_library_passes() -> None:
    selftest.check()
    assert not faults()


def test_another_version_is_refused() -> None:
    assert "version 0.3.18" in faults(version="0.3.18")


def test_a_name_that_is_gone_is_found() -> None:
    class Renamed(RaftGroup):  # type: ignore[misc]
        def step(self, now: float) -> None:
            self._SyncObj__onTock()

    assert "it has no onTock" in faults(group=Renamed)


def test_all_private_names_in_use_are_looked_at() -> None:
    names = set(selftest.names_in(RaftGroup))
    assert "_SyncObj__onBecomeLeader" in names, "overridden"
    assert "_SyncObj__raftMatchIndex" in names, "used"
    assert "_SyncObj__raftState" in names, "used in a property"


def test_changed_arguments_are_found() -> None:
    class Changed(RaftGroup):  # type: ignore[misc]
        def _SyncObj__setState(self) -> None:  # noqa: N802
            pass

    assert "setState takes other arguments" in faults(group=Changed)


def test_a_library_that_behaves_differently_is_found() -> None:
    class Eager(RaftGroup):  # type: ignore[misc]
        def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803
            self._SyncObj__raftCommitIndex = self._log.last_index
            super()._onTick(timeToWait)

    assert "one of two voters is not a majority" in faults(group=Eager)


def test_the_error_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"onTick.*Install pysyncobj==0\.3\.17"):
        selftest._complain(["it has no onTick"])
