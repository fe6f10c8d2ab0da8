"""Moves of replicas in a running cluster: copies, votes, leadership, and crashes between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from raftlog.errors import (
    ClusterNotReadyError,
    InvalidConfigError,
    InvalidPartitionsError,
    RefusedError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol.cluster import PartitionMove, ReassignRequest, ThrottleMovesRequest
from raftlog.server.cluster.elections import raft_id
from raftlog.testing.simulator.scenario import dump
from raftlog.testing.simulator.world import World
from raftlog.types import TopicPartition
from tests.server.cluster.simulated import Cluster, growing_world, on, operations

RECORDS = [b"%d" % number for number in range(20)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with World(5, brokers=5) as world:
        yield Cluster(world)


def move(cluster: Cluster, *replicas: int, node: int = 1, **facts: Any) -> dict[int, list[int]]:
    """What moves, after partition 0 was asked to have these replicas."""
    wanted = facts.pop("partition", 0), list(replicas), facts.pop("before", [])
    part = PartitionMove(partition=wanted[0], replicas=wanted[1], before=wanted[2])
    return ask(cluster, node, moves=[part], **facts)


def cancel(cluster: Cluster, node: int = 1) -> dict[int, list[int]]:
    return ask(cluster, node, cancel=True)


def ask(cluster: Cluster, node: int, **facts: Any) -> dict[int, list[int]]:
    request = ReassignRequest(**{"topic": "t", **facts})
    answer = on(cluster, node, operations(cluster, node).reassign(request))
    return {move.partition: move.replicas for move in answer.moving}


def target(cluster: Cluster, node: int = 1) -> tuple[int, ...] | None:
    held = cluster.node(node).machine.topics["t"].partitions[0].target
    return None if held is None else held.replicas


def copies(cluster: Cluster) -> set[int]:
    """The brokers whose disks have a copy."""
    return {
        machine.broker_id
        for machine in cluster.world.brokers
        if dump(machine, TopicPartition("t", 0)) is not None
    }


def until_moved(cluster: Cluster, *replicas: int, node: int = 1) -> None:
    cluster.until(lambda: "t" in cluster.node(node).machine.topics)
    cluster.until(lambda: target(cluster, node) is None)
    cluster.until(lambda: copies(cluster) == set(replicas))
    cluster.until(lambda: cluster.state(node).replicas == replicas)


def voters(cluster: Cluster, node: int) -> set[int]:
    record = cluster.node(node).machine.topics["t"]
    return set(cluster.node(node).plane.status(raft_id(record.id, 0)).voters)


def begin(cluster: Cluster, copies: int) -> tuple[int, ...]:
    cluster.create(copies=copies)
    cluster.send(*RECORDS)
    return cluster.node(1).machine.topics["t"].partitions[0].replicas


def others(*replicas: int) -> list[int]:
    return [broker for broker in range(1, 6) if broker not in replicas]


def test_all_replicas_move_and_every_record_is_there(cluster: Cluster) -> None:
    before = begin(cluster, 2)
    after = tuple(others(*before)[:2])
    assert move(cluster, *after) == {0: list(after)}
    until_moved(cluster, *after)
    assert cluster.read(len(RECORDS)) == RECORDS
    cluster.send(b"more")
    cluster.until(lambda: len(voters(cluster, after[0])) == 3)
    state = cluster.state(after[0])
    assert voters(cluster, after[0]) == {*state.replicas, *state.witnesses}
    assert state.leader in after
    for former in before:
        assert cluster.state(former).leader == state.leader, "a former replica knows the leader"


def test_former_voters_never_vote_in_their_old_generation_again(cluster: Cluster) -> None:
    """They were a majority of the first generation, and start while no broker of the current one
    runs."""
    (before,) = begin(cluster, 1)
    after = others(before)[0]
    move(cluster, after)
    until_moved(cluster, after, node=after)
    cluster.until(lambda: voters(cluster, after) == {after})
    cluster.stop(after)
    cluster.stop(before)
    cluster.start(before)
    record = next(iter(others(before, after)))
    cluster.until(lambda: "t" in cluster.node(before).machine.topics)
    topic = cluster.node(before).machine.topics["t"].id
    cluster.until(lambda: cluster.node(before).partitions.find(topic, 0) is not None)
    assert not cluster.world.run_until(
        lambda: cluster.state(before).leader is not None or before in copies(cluster), limit_s=10
    )
    assert voters(cluster, before) == {after}
    cluster.start(after)
    cluster.until(lambda: cluster.state(record).leader == after)
    assert cluster.read(len(RECORDS)) == RECORDS


def test_a_move_goes_on_after_every_broker_has_crashed(cluster: Cluster) -> None:
    before = begin(cluster, 3)
    after = (*others(*before), before[0])
    move(cluster, *after)
    for _ in range(6):
        cluster.world.run_for(0.7)
        for machine in cluster.world.brokers:
            machine.power_cut()
        for machine in cluster.world.brokers:
            machine.start_later(0.1)
        cluster.until(lambda: all(m.broker is not None for m in cluster.world.brokers))
    until_moved(cluster, *after)
    assert cluster.read(len(RECORDS)) == RECORDS


def test_a_broker_that_was_down_when_it_was_removed_deletes_its_copy(cluster: Cluster) -> None:
    before = begin(cluster, 2)
    kept, gone = before
    cluster.stop(gone)
    new = others(*before)[0]
    move(cluster, kept, new, node=kept)
    cluster.until(lambda: target(cluster, kept) is None)
    cluster.until(lambda: gone not in voters(cluster, kept))
    cluster.start(gone)
    until_moved(cluster, kept, new, node=kept)


def test_a_cancelled_move_restores_the_replicas(cluster: Cluster) -> None:
    before = begin(cluster, 2)
    learner = others(*before)[0]
    cluster.stop(learner)
    node = before[0]
    assert move(cluster, before[0], learner, node=node) == {0: [before[0], learner]}
    assert cancel(cluster, node) == {0: list(before)}, "it moves back"
    cluster.start(learner)
    until_moved(cluster, *before, node=node)
    assert cancel(cluster, node) == {}


def test_a_learner_that_fails_keeps_nothing_from_being_written(cluster: Cluster) -> None:
    """The learner has a vote, and so has a helper."""
    (before,) = begin(cluster, 1)
    learner, *rest = others(before)
    move(cluster, learner)
    cluster.until(lambda: learner in cluster.state(before).replicas)
    cluster.lose(learner)
    cluster.send(b"more")
    cancel(cluster, before)
    cluster.until(lambda: target(cluster, before) is None)
    cluster.until(lambda: cluster.state(before).replicas == (before,))
    cluster.until(lambda: voters(cluster, before) == {before})
    assert rest


def test_a_replication_factor_grows_and_shrinks(cluster: Cluster) -> None:
    (before,) = begin(cluster, 1)
    three = (before, *others(before)[:2])
    move(cluster, *three, replication_factor=3)
    until_moved(cluster, *three)
    cluster.until(lambda: voters(cluster, before) == {1, 2, 3, 4, 5})
    assert cluster.node(before).machine.topics["t"].replication_factor == 3
    cluster.until(lambda: cluster.state(before).min_isr == 2)
    two = three[1:]
    move(cluster, *two, replication_factor=2)
    until_moved(cluster, *two, node=two[0])
    cluster.until(lambda: len(voters(cluster, two[0])) == 3)
    cluster.until(lambda: cluster.state(two[0]).min_isr == 1)
    assert cluster.read(len(RECORDS)) == RECORDS


def test_what_cannot_be_is_refused(cluster: Cluster) -> None:
    before = begin(cluster, 2)
    free = others(*before)
    for replicas in ((1, 2, 3), (1, 9), (1, 1), ()):
        with pytest.raises(InvalidPartitionsError):
            move(cluster, *replicas)
    with pytest.raises(UnknownTopicError):
        move(cluster, 1, topic="u")
    with pytest.raises(UnknownPartitionError):
        move(cluster, 1, 2, partition=1)
    with pytest.raises(RefusedError, match="the plan was made for"):
        move(cluster, *free[:2], before=free[:2])
    cluster.admin(lambda admin: admin.alter_topic("t", {"min.insync.replicas": "2"}))
    with pytest.raises(InvalidConfigError):
        move(cluster, before[0], replication_factor=1)


def test_a_move_is_not_replaced_by_another_one(cluster: Cluster) -> None:
    before = begin(cluster, 2)
    free, node = others(*before), before[0]
    cluster.stop(free[0])
    move(cluster, before[0], free[0], node=node)
    with pytest.raises(RefusedError, match="--cancel"):
        move(cluster, before[0], free[1], node=node)
    move(cluster, before[0], free[0], node=node)  # the same one: nothing changes
    move(cluster, before[0], node=node, replication_factor=1)
    until_moved(cluster, before[0], node=node)


def test_a_cancelled_move_is_replaced(cluster: Cluster) -> None:
    """The broker that it returns to may be lost."""
    (before,) = begin(cluster, 1)
    free, other, node = others(before)[:3]
    cluster.stop(free)
    cluster.until(lambda: "t" in cluster.node(node).machine.topics)
    move(cluster, free, node=node)
    cancel(cluster, node)
    try:
        move(cluster, other, node=node)
    except RefusedError:  # the cancellation ended at the same time: the plan is old
        move(cluster, other, node=node)
    until_moved(cluster, other, node=node)


def test_a_change_of_the_factor_is_not_cancelled(cluster: Cluster) -> None:
    before = begin(cluster, 1)
    free, node = others(*before), before[0]
    cluster.stop(free[0])
    move(cluster, *before, free[0], node=node, replication_factor=2)
    with pytest.raises(InvalidPartitionsError, match="former one instead"):
        cancel(cluster, node)
    move(cluster, *before, node=node, replication_factor=1)
    cluster.until(lambda: target(cluster, node) is None)


def test_a_move_keeps_to_the_throttle_until_it_is_removed(cluster: Cluster) -> None:
    """Meanwhile the replicas in sync commit at once."""
    cluster.create(copies=1)
    (before,) = cluster.node(1).machine.topics["t"].partitions[0].replicas
    bulk = [bytes([number]) * 100_000 for number in range(20)]
    cluster.send(*bulk)
    (after, *_) = others(before)
    throttle(cluster, 10_000)
    move(cluster, after, node=before)
    cluster.until(lambda: after in copies(cluster))
    began = cluster.world.time.now
    cluster.send(b"more")
    assert cluster.world.time.now - began < 5
    cluster.world.run_for(60)
    assert target(cluster) == (after,), "2 MB take 200 s"
    throttle(cluster, 0)
    until_moved(cluster, after)
    assert cluster.read(21) == [*bulk, b"more"]


def throttle(cluster: Cluster, bytes_per_s: int) -> None:
    request = ThrottleMovesRequest(bytes_per_s=bytes_per_s)
    on(cluster, 1, operations(cluster, 1).throttle_moves(request))


def test_a_broker_without_a_vote_that_starts_again_does_not_deny_topics() -> None:
    """It learns them from one with a vote."""
    with growing_world(21, brokers=4) as world:
        cluster = Cluster(world)
        cluster.create()
        cluster.join(4)
        cluster.until(lambda: "t" in cluster.node(4).machine.topics)
        assert 4 not in cluster.node(4).subscription.voters
        cluster.stop(4)
        cluster.start(4)
        with pytest.raises(ClusterNotReadyError, match="not received all topics"):
            cancel(cluster, 4)
        cluster.until(lambda: cluster.is_in(4))
        assert cancel(cluster, 4) == {}
