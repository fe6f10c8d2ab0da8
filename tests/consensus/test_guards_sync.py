"""What must wait for the journal, where no other test would notice that it does not."""

from __future__ import annotations

import pytest

from raftlog.errors import DiskFullError, StorageFailedError
from raftlog.testing.disk import Fault
from tests.consensus.harness import GROUP, Network
from tests.consensus.journals import disk_of, fill_group, open_journal, task_of


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
