"""The hazards of PySyncObj that lose or corrupt what was agreed, 1 to 13: each is closed.

Numbers and names are those of the library's hazard table in docs/internals. Where it is cheap, the
same test shows that the library as it is released does fail. The rest: test_hazards_liveness.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pysyncobj.node import Node

from raftlog.consensus import Applied, NotProposed
from raftlog.consensus.raft_group import RaftGroup
from raftlog.consensus.transport import COMMAND, VOTE_ANSWER, is_proposable
from raftlog.errors import DamagedJournalError
from raftlog.testing.disk import Fault, Stopped
from tests.consensus import stock_schedules as stock
from tests.consensus.harness import GROUP, PATH, Network, kinds
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
from tests.consensus.journals import disk_of, fill_group, open_journal


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
