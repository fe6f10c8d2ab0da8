"""Brokers leave the cluster: replicas, witnesses and votes first, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from raftlog.errors import RefusedError
from raftlog.protocol.cluster import (
    CancelDecommissionRequest,
    DecommissionRequest,
    DecommissionResponse,
    ThrottleMovesRequest,
)
from raftlog.replication.cluster_commands import (
    DecommissionBroker,
    RemoveBroker,
    decode_command,
    founding_state,
)
from raftlog.server.cluster.controller import Decommissioning
from raftlog.server.cluster.membership import ClusterSubscription
from raftlog.server.cluster.node import ClusterNode
from raftlog.testing.simulator.operators import still_changing
from raftlog.types import NewTopic
from tests.server.cluster.paper import DISKS, Scene, play, state_of, status
from tests.server.cluster.simulated import Cluster, growing_world, on, operations

RECORDS = [b"%d" % number for number in range(10)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with growing_world(21, brokers=5) as world:
        yield Cluster(world)


def decommission(cluster: Cluster, broker: int, *, by: int) -> DecommissionResponse:
    request = DecommissionRequest(broker=broker)
    progress: DecommissionResponse = on(cluster, by, operations(cluster, by).decommission(request))
    return progress


def remove(cluster: Cluster, broker: int, *, by: int) -> None:
    decommission(cluster, broker, by=by)
    cluster.until(lambda: broker not in cluster.node(by).machine.brokers)


def test_a_cluster_survives_all_its_founders(cluster: Cluster) -> None:
    """Three join and the founders leave one after the other, the leader of the group too."""
    cluster.create(partitions=2, copies=2)
    cluster.send(*RECORDS)
    cluster.join(4, 5)
    cluster.until(lambda: len(cluster.node(4).subscription.voters) == 5)
    leader = cluster.node(4).subscription.leader
    order = sorted((1, 2, 3), key=lambda broker: broker != leader)
    for broker in order:
        remove(cluster, broker, by=4)
        machine = cluster.world.brokers[broker - 1]
        cluster.until(lambda machine=machine: not machine.is_running)  # type: ignore[misc]
        assert machine.is_outside, "it stops, and says why"
    cluster.until(lambda: not still_changing(cluster.world))
    assert sorted(cluster.node(5).machine.brokers) == [4, 5]
    assert set(cluster.node(5).subscription.voters) <= {4, 5}
    assert cluster.read(len(RECORDS)) == RECORDS
    cluster.send(b"more")
    for held in cluster.node(4).machine.topics["t"].partitions:
        assert set(held.voters) <= {4, 5}


def test_brokers_that_restart_report_a_controller_only_once_they_know_the_removal(
    cluster: Cluster,
) -> None:
    """From their disks alone, they can list a broker whose removal they had not yet applied."""
    cluster.join(4)
    remove(cluster, 1, by=4)
    left = (2, 3, 4)
    for broker in left:
        cluster.world.brokers[broker - 1].kill()
    cluster.start(*left)
    outdated: set[int] = set()

    def report_a_controller() -> bool:
        reports = 0
        for broker in left:
            listed = sorted(cluster.node(broker).machine.brokers)
            if operations(cluster, broker).controller() is not None:
                assert listed == [2, 3, 4]
                reports += 1
            elif listed != [2, 3, 4]:
                outdated.add(broker)
        return reports == len(left)

    cluster.until(report_a_controller)
    assert outdated, "the guard is used"


def test_a_removed_broker_that_missed_its_removal_is_disconnected(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have no link to it by which it could receive a newer state."""
    cluster.join(4)
    monkeypatch.setattr(ClusterNode, "_removed", lambda _node, _reason: None)
    remove(cluster, 4, by=1)
    cluster.until(
        lambda: not any(cluster.node(n)._registry.is_live(4) for n in (1, 2, 3)), limit_s=2
    )


def test_a_broker_that_is_lost_is_replaced(cluster: Cluster) -> None:
    cluster.create(copies=3)
    cluster.send(*RECORDS)
    cluster.lose(2)
    cluster.world.brokers[1].is_outside = True
    cluster.join(4)
    remove(cluster, 2, by=4)
    cluster.until(lambda: set(cluster.node(1).subscription.voters) == {1, 3, 4})
    cluster.in_sync(4, {1, 3, 4})
    assert cluster.read(len(RECORDS)) == RECORDS
    assert decommission(cluster, 2, by=1) == DecommissionResponse(removed=True)


def test_its_directory_never_returns_and_an_empty_one_may(cluster: Cluster) -> None:
    cluster.join(4)
    remove(cluster, 4, by=1)
    machine = cluster.world.brokers[3]
    cluster.until(lambda: not machine.is_running)
    boots = machine.boots
    machine.is_outside = machine.is_kept_down = False
    machine.start()
    cluster.until(lambda: machine.is_outside and not machine.is_running)
    assert (machine.boots, sorted(cluster.node(1).machine.brokers)) == (boots + 1, [1, 2, 3])
    machine.wipe()
    cluster.join(4)
    assert sorted(cluster.node(1).machine.brokers) == [1, 2, 3, 4]


def test_a_removal_goes_on_after_a_crash_of_all_and_can_be_repeated(cluster: Cluster) -> None:
    cluster.create(partitions=3, copies=3)
    cluster.send(*RECORDS)
    cluster.join(4)
    progress = decommission(cluster, 1, by=4)
    assert not progress.removed
    assert progress.partitions + progress.has_vote > 0
    for machine in cluster.world.brokers[:4]:
        machine.power_cut()
    for machine in cluster.world.brokers[:4]:
        machine.power_on()
        machine.start()
    cluster.until(lambda: cluster.is_in(4))
    remove(cluster, 1, by=4)
    assert cluster.read(len(RECORDS)) == RECORDS


def test_a_removal_that_is_cancelled_leaves_the_broker_in_the_cluster(cluster: Cluster) -> None:
    cluster.create(copies=3)
    cluster.send(*RECORDS)
    cluster.join(4)
    throttle = ThrottleMovesRequest(bytes_per_s=1_024)
    on(cluster, 1, operations(cluster, 1).throttle_moves(throttle))
    cluster.send(*[bytes(10_000)] * 10)
    decommission(cluster, 3, by=1)
    machine = cluster.node(1).machine
    cluster.until(lambda: machine.topics["t"].partitions[0].target is not None)
    request = CancelDecommissionRequest(broker=3)
    assert on(cluster, 2, operations(cluster, 2).cancel_decommission(request)).moving == 1
    cluster.until(lambda: machine.topics["t"].partitions[0].target is None)
    cluster.in_sync(1, {1, 2, 3})
    cluster.until(lambda: not still_changing(cluster.world))
    assert not machine.brokers[3].draining
    assert cluster.read(len(RECORDS) + 10)[: len(RECORDS)] == RECORDS
    remove(cluster, 4, by=1)
    request = CancelDecommissionRequest(broker=4)
    with pytest.raises(RefusedError, match="no broker 4"):
        on(cluster, 1, operations(cluster, 1).cancel_decommission(request))


def test_what_would_be_lost_is_refused(cluster: Cluster) -> None:
    cluster.create(copies=3)
    with pytest.raises(RefusedError, match="topic 't' has 3 replicas, and 2 brokers"):
        decommission(cluster, 3, by=1)
    with pytest.raises(RefusedError, match="no broker 9"):
        decommission(cluster, 9, by=1)


def test_the_other_voters_have_to_be_a_majority(cluster: Cluster) -> None:
    topic = NewTopic("one", partitions=1, replication_factor=1)
    cluster.admin(lambda admin: admin.create_topics([topic]))
    cluster.stop(3)
    with pytest.raises(RefusedError, match=r"majority .* \[3\] are not connected"):
        decommission(cluster, 2, by=1)
    assert not cluster.node(1).machine.brokers[2].draining
    decommission(cluster, 3, by=1)


def test_it_says_what_it_waits_for(cluster: Cluster) -> None:
    cluster.create(copies=3)
    cluster.join(4)
    cluster.stop(3)
    cluster.until(lambda: cluster.node(1).machine.brokers[3].fenced)
    waits_for = decommission(cluster, 2, by=1).waits_for
    assert "only brokers [1, 4] are available" in waits_for
    cluster.start(3)
    remove(cluster, 2, by=1)


def test_a_partition_without_a_leader_is_named(cluster: Cluster) -> None:
    cluster.create(copies=1)
    cluster.join(4)
    (replica,) = cluster.state(1).replicas
    by = 1 if replica != 1 else 4
    cluster.stop(replica)
    cluster.until(lambda: cluster.node(by).machine.brokers[replica].fenced)
    assert "t:0 has no leader" in decommission(cluster, replica, by=by).waits_for


def test_ids_are_assigned_to_brokers_that_join(cluster: Cluster) -> None:
    assert on(cluster, 1, operations(cluster, 1).reserve_broker_id()).id == 4
    assert on(cluster, 2, operations(cluster, 2).reserve_broker_id()).id == 5


@pytest.mark.parametrize("votes", [True, False])
def test_a_broker_that_votes_does_not_leave(votes: bool) -> None:
    async def test(s: Scene) -> None:
        s.machine.restore(founding_state("c"))
        s.register(1, 2)
        s.command(DecommissionBroker(id=1))
        member = s.hosted(state_of(2))
        disk = DISKS[1] if votes else "another"
        s.plane.statuses[member.group_id] = status(voters={1: disk, 2: DISKS[2]})
        subscription = cast(ClusterSubscription, SimpleNamespace(voters={2: DISKS[2]}))
        Decommissioning(
            1,
            s.me,
            machine=s.machine,
            plane=s.plane.as_plane,
            liveness=s.liveness,
            subscription=subscription,
            members=lambda: [member],
            now=s.loop.time,
        ).poll()
        assert [type(decode_command(p.command)) for p in s.plane.proposals] == (
            [] if votes else [RemoveBroker]
        )

    play(test)
