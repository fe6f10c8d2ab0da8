"""Brokers that join and leave, in the cluster state; and the state on a broker without a vote."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.errors import (
    BrokerIdInUseError,
    BrokerRemovedError,
    DeclaredLostError,
    InvalidPartitionsError,
    RefusedError,
    WrongClusterError,
)
from raftlog.replication.cluster_commands import (
    PEER_PROTOCOL_LOST,
    CancelDecommission,
    ClusterCommand,
    DeclareLost,
    DecommissionBroker,
    Move,
    Reassign,
    RemoveBroker,
    ReserveBrokerId,
    SetReplicas,
    founding_state,
    recovered,
)
from raftlog.replication.cluster_state import ClusterChange, ClusterMachine, TopicRecord
from raftlog.replication.placement import Target
from tests.replication.clusters import cluster, create, done, fence, join, refused, registration


def removal(machine: ClusterMachine, broker: int) -> RemoveBroker:
    return RemoveBroker(id=broker, broker_epoch=machine.brokers[broker].broker_epoch)


def created(machine: ClusterMachine, name: str, **facts: int) -> TopicRecord:
    topic = done(machine, create(name, **facts))
    assert isinstance(topic, TopicRecord)
    return topic


def remove(machine: ClusterMachine, broker: int) -> None:
    done(machine, DecommissionBroker(id=broker))
    done(machine, removal(machine, broker))


# -- IDs -----------------------------------------------------------------------------------------


def test_an_id_is_assigned_once() -> None:
    machine = cluster(3)
    assert machine.next_broker_id == 4
    done(machine, ReserveBrokerId(id=4))
    refused(machine, ReserveBrokerId(id=4), BrokerIdInUseError, "the next one is 5")
    done(machine, registration(9))
    assert machine.next_broker_id == 10
    remove(machine, 9)
    assert machine.next_broker_id == 10, "also after its broker was removed"
    copy = ClusterMachine()
    copy.restore(machine.snapshot())
    assert copy.next_broker_id == 10


# -- decommission --------------------------------------------------------------------------------


def test_a_broker_that_is_decommissioned_gets_nothing_more() -> None:
    machine = cluster(4)
    done(machine, DecommissionBroker(id=4))
    version = machine.version
    done(machine, DecommissionBroker(id=4))
    assert machine.version == version, "it can be repeated"
    assert machine.staying() == [1, 2, 3]
    topic = created(machine, "t", partitions=8, replication_factor=3)
    assert all(4 not in held.voters for held in topic.partitions)
    fence(machine, 3)
    topic = created(machine, "u", partitions=8, replication_factor=2)
    assert all(4 not in held.voters for held in topic.partitions), "not as a witness either"
    move = Move(0, (1, 4), topic.partitions[0].version)
    refused(
        machine,
        Reassign(topic_id=topic.id, moves=(move,)),
        InvalidPartitionsError,
        "is being decommissioned",
    )


def test_it_stays_so_when_it_restarts_even_with_another_disk() -> None:
    machine = cluster(4)
    done(machine, DecommissionBroker(id=4))
    join(machine, 4, boot=2)
    assert machine.brokers[4].draining
    fence(machine, 4)
    join(machine, 4, directory_id="another")
    assert machine.brokers[4].draining


def test_what_the_others_cannot_store_keeps_a_broker() -> None:
    machine = cluster(3)
    created(machine, "t", partitions=1, replication_factor=3)
    refused(machine, DecommissionBroker(id=1), RefusedError, "topic 't' has 3 replicas, and 2")
    create_one = cluster(1)
    refused(create_one, DecommissionBroker(id=1), RefusedError, "only broker")
    refused(machine, DecommissionBroker(id=7), RefusedError, "no broker 7, but [1, 2, 3]")


def test_brokers_that_leave_already_do_not_count() -> None:
    machine = cluster(4)
    created(machine, "t", partitions=1, replication_factor=3)
    done(machine, DecommissionBroker(id=4))
    refused(machine, DecommissionBroker(id=3), RefusedError, "2 brokers would remain")


def test_a_decommission_that_is_cancelled_restores_the_replicas_of_moves_in_progress() -> None:
    machine = cluster(5)
    topic = created(machine, "t", partitions=1, replication_factor=2)
    leaving, other = topic.partitions[0].replicas
    (third, *_) = sorted({1, 2, 3, 4, 5} - {leaving, other})
    done(machine, DecommissionBroker(id=leaving))
    done(machine, Reassign(topic_id=topic.id, moves=(Move(0, (third, other), 0),)))
    done(machine, CancelDecommission(id=leaving))
    assert not machine.brokers[leaving].draining
    assert machine.topics["t"].partitions[0].target == Target((leaving, other), (leaving, other))
    version = machine.version
    done(machine, CancelDecommission(id=leaving))
    assert machine.version == version, "it can be repeated"
    old = RemoveBroker(id=leaving, broker_epoch=machine.brokers[leaving].broker_epoch)
    refused(machine, old, RefusedError, "is not being decommissioned")
    refused(machine, CancelDecommission(id=9), RefusedError, "no broker 9")


def test_moves_whose_former_replicas_cannot_stay_go_on() -> None:
    machine = cluster(5)
    topic = created(machine, "t", partitions=1, replication_factor=2)
    leaving, other = topic.partitions[0].replicas
    to = tuple(sorted({1, 2, 3, 4, 5} - {leaving, other})[:2])
    for broker in (leaving, other):
        done(machine, DecommissionBroker(id=broker))
    done(machine, Reassign(topic_id=topic.id, moves=(Move(0, to, 0),)))
    done(machine, CancelDecommission(id=leaving))
    assert machine.topics["t"].partitions[0].target == Target(to, (leaving, other))


def test_a_broker_is_removed_once_it_has_no_part_in_anything() -> None:
    machine = cluster(4)
    topic = created(machine, "t", partitions=1, replication_factor=2)
    held = topic.partitions[0]
    leaving = held.replicas[0]
    refused(machine, removal(machine, leaving), RefusedError, "is not being decommissioned")
    done(machine, DecommissionBroker(id=leaving))
    refused(machine, removal(machine, leaving), RefusedError, "voter of 1 partition")
    others = [broker for broker in (1, 2, 3, 4) if broker not in held.replicas]
    change = SetReplicas(
        topic_id=topic.id,
        partition=0,
        replicas=(held.replicas[1], others[0]),
        witnesses=(others[1],),
        version=1,
    )
    done(machine, change)
    old = removal(machine, leaving)
    join(machine, leaving, boot=2)
    refused(machine, old, RefusedError, "registered again")
    done(machine, removal(machine, leaving))
    assert leaving not in machine.brokers


def test_a_target_is_a_part_too() -> None:
    machine = cluster(3)
    topic = created(machine, "t", partitions=1, replication_factor=1)
    held = topic.partitions[0]
    to = next(b for b in (1, 2, 3) if b not in held.replicas)
    done(machine, Reassign(topic_id=topic.id, moves=(Move(0, (to,), held.version),)))
    assert machine.uses_of(to) == 1


def test_a_removed_directory_never_registers_again_and_a_new_one_may() -> None:
    machine = cluster(3)
    remove(machine, 3)
    copy = ClusterMachine()
    copy.restore(machine.snapshot())
    for each in (machine, copy):
        refused(each, registration(3, boot=9), BrokerRemovedError, "was decommissioned")
        join(each, 3, directory_id="another")


def test_a_lost_directory_never_registers_again_and_a_new_one_may() -> None:
    machine = cluster(3)
    (gone, version) = (machine.brokers[3].directory_id, machine.version)
    done(machine, DeclareLost(directories=((gone, 3),)))
    assert (machine.version, machine.peer_protocol) == (version + 1, PEER_PROTOCOL_LOST)
    done(machine, DeclareLost(directories=((gone, 3),)))
    assert machine.version == version + 1, "it is known"
    copy = ClusterMachine()
    changes: list[ClusterChange] = []
    copy.on_change = changes.append
    copy.restore(machine.snapshot())
    assert 3 in changes[0].brokers
    for each in (machine, copy):
        refused(each, registration(3, directory_id=gone, boot=9), DeclaredLostError, "lost")
        fence(each, 3)
        join(each, 3, directory_id="another")


def test_the_state_after_a_recovery_has_its_id_and_what_it_gave_up() -> None:
    before = cluster(3).snapshot()
    machine = ClusterMachine()
    machine.restore(recovered(before, recovery="r1", lost=[("d", 9)], unseen=5))
    machine.restore(recovered(machine.snapshot(), recovery="r2", lost=[("e", 9)], unseen=5))
    assert machine.history == ("r1", "r2")
    assert machine.lost == {"d": 9, "e": 9}
    assert machine.version == cluster(3).version + 10


def test_a_limited_number_of_lost_directories_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LOST_DIRECTORIES_MAX", 2)
    machine = cluster(1)
    for name in ("a", "b", "c"):
        done(machine, DeclareLost(directories=((name, 2),)))
    assert list(machine.lost) == ["b", "c"]


def test_a_limited_number_of_removals_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REMOVED_BROKERS_MAX", 2)
    machine = cluster(4)
    for broker in (4, 3, 2):
        remove(machine, broker)
    assert list(machine.removed.values()) == [3, 2]


# -- a broker without a vote ---------------------------------------------------------------------


def changed(machine: ClusterMachine, *commands: ClusterCommand) -> list[bytes]:
    version = machine.version
    for command in commands:
        done(machine, command)
    changes = machine.changes.since(version)
    assert changes is not None
    return changes


def test_it_follows_by_a_state_and_then_by_commands() -> None:
    voter, follower = cluster(3), ClusterMachine()
    follower.follow(voter.known(), ())
    for broker in (4, 5):
        follower.follow(b"", changed(voter, registration(broker)))
        assert follower.known() == voter.known()
        assert follower.version == voter.version


def test_an_older_state_and_that_of_another_cluster_change_nothing() -> None:
    voter, follower = cluster(3), ClusterMachine()
    older = voter.known()
    done(voter, registration(4))
    follower.follow(voter.known(), ())
    follower.follow(older, ())
    assert 4 in follower.brokers
    with pytest.raises(WrongClusterError):
        follower.follow(recovered(founding_state("other"), recovery="r", lost=[], unseen=99), ())
    assert follower.known() == voter.known()


def test_changes_that_are_not_kept_need_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLUSTER_CHANGES_KEPT_MAX", 2)
    voter = cluster(1)
    version = voter.version
    for broker in (2, 3, 4):
        done(voter, registration(broker))
    assert voter.changes.since(version) is None
    assert len(voter.changes.since(version + 1) or ()) == 2
    assert voter.changes.since(voter.version) == []
    assert voter.changes.since(voter.version + 1) is None
    monkeypatch.setattr(limits, "CLUSTER_CHANGES_KEPT_BYTES_MAX", 10)
    done(voter, registration(5))
    assert voter.changes.since(voter.version - 1) is None


def test_a_broker_that_gets_a_vote_never_goes_back_behind_what_it_knows() -> None:
    """The base of the generation in which it gets one is older than what it has followed: topics
    that it stores must not disappear in between.
    """
    voter = cluster(3)
    base = voter.snapshot()
    later = changed(voter, registration(4), registration(5))
    follower = ClusterMachine()
    follower.follow(voter.known(), ())
    told: list[object] = []
    follower.on_change = told.append
    follower.restore(base)
    assert {4, 5} <= follower.brokers.keys()
    assert follower.snapshot() == base, "the base of the next generation is the group's state"
    follower.apply(later[0])
    assert 5 in follower.brokers
    assert not told
    follower.apply(later[1])
    assert follower.snapshot() == follower.known() == voter.known()
    more = changed(voter, registration(6))
    follower.apply(more[0])
    assert follower.known() == voter.known()


def test_a_broker_that_follows_again_forgets_the_groups_state() -> None:
    voter, follower = cluster(3), ClusterMachine()
    base = voter.snapshot()
    done(voter, registration(4))
    follower.follow(voter.known(), ())
    follower.restore(base)
    follower.follow(b"", changed(voter, registration(5)))
    assert follower.known() == voter.known()


def test_who_knows_nothing_needs_a_state_also_after_a_restored_one() -> None:
    """Found by the simulator: a broker with an empty disk was told that there is nothing new."""
    voter = cluster(1)
    restored = ClusterMachine()
    restored.restore(voter.snapshot())
    assert restored.changes.since(0) is None
    assert restored.changes.since(restored.version) == []
