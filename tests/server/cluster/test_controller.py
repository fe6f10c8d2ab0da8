"""Brokers leave the cluster: replicas, witnesses and votes first, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog.errors import RefusedError
from raftlog.protocol.cluster import (
    CancelDecommissionRequest,
    DecommissionRequest,
    DecommissionResponse,
    ThrottleMovesRequest,
)
from raftlog.replication.cluster_commands import (
    CreateTopic,
    DecommissionBroker,
    Move,
    Reassign,
    RemoveBroker,
    SetReplicas,
    decode_command,
    founding_state,
)
from raftlog.replication.cluster_commands import decode_command as decode_cluster_command
from raftlog.replication.election import has_leader
from raftlog.replication.partition_state import ChangeIsr, ChangeReplicas, Elect, PartitionState
from raftlog.server.cluster.controller import (
    REBALANCED_AT_A_TIME,
    Decommissioning,
    PartitionController,
)
from raftlog.server.cluster.elections import HostedPartition
from raftlog.server.cluster.membership import (
    CLUSTER_GROUP,
    GRACE_SECONDS,
    ClusterSubscription,
    Incarnation,
)
from raftlog.server.cluster.node import ClusterNode
from raftlog.testing.simulator.operators import still_changing
from raftlog.types import NewTopic
from tests.running import runs
from tests.server.cluster.fake import DISKS, TOPIC_ID, FakeSurveys, Scene, play, state_of, status
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


def test_brokers_that_restart_report_a_controller_only_once_they_know_the_removal() -> None:
    """From their disks alone, they can list a broker whose removal they had not yet applied."""
    left = (2, 3, 4)
    with growing_world(1, brokers=4) as world:
        cluster = Cluster(world)
        cluster.join(4)
        remove(cluster, 1, by=4)
        for broker in left:
            world.brokers[broker - 1].kill()
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
        s.plane.statuses[member.raft_id] = status(voters={1: disk, 2: DISKS[2]})
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


# -- partition controller --------------------------------------------------------------------------
#
# The Raft leader of a partition's group: it sees to a leader, to copies, to votes.


DISKS_OF_TWO = {broker: DISKS[broker] for broker in (2, 3)}
LAG_S = 10.0
DELAY_S = 60.0
REBALANCE_S = 300.0


class Deciding:
    """The arbiter is broker 1; brokers 2 and 3 are there."""

    def __init__(self, s: Scene, state: PartitionState, *, leads: bool = True) -> None:
        self.s = s
        s.see(2, 3)
        self.hosted: HostedPartition = s.hosted(state)
        self.surveys = FakeSurveys(s)
        self.controller = PartitionController(
            1,
            s.plane.as_plane,
            s.liveness,
            machine=s.machine,
            now=asyncio.get_running_loop().time,
            lag_max_seconds=LAG_S,
            replacement_delay_seconds=DELAY_S,
            rebalance_delay_seconds=REBALANCE_S,
            surveys=self.surveys,
        )
        if leads:
            s.plane.leading.add(self.hosted.raft_id)

    def wants(self) -> Any:
        self.controller.poll_all([self.hosted])
        assert len(self.s.plane.proposals) <= 1, "one at a time"
        proposals = self.s.plane.proposals
        if not proposals or proposals[0].seal is not None:
            return proposals[0].seal if proposals else None
        if proposals[0].raft_id == CLUSTER_GROUP:
            return decode_cluster_command(proposals[0].command)
        return proposals[0].decoded


@runs(play)
async def test_all_is_well(s: Scene) -> None:
    d = Deciding(s, state_of(2, 3))
    assert d.wants() is None
    assert has_leader(d.hosted.state, s.liveness)


@runs(play)
async def test_a_dead_leader_is_followed_by_the_arbiter_itself_first(s: Scene) -> None:
    d = Deciding(s, state_of(2, 3, 1, min_isr=2))
    s.lose(2)
    assert d.wants() is None, "a link that comes back at once was never down"
    await asyncio.sleep(2 * GRACE_SECONDS)
    assert d.wants() == Elect(1, 1, DISKS[1], 1)
    s.plane.agree()
    assert d.hosted.state.leader == 1


@pytest.mark.parametrize("reason", ["fenced", "another run", "another disk"])
@runs(play)
async def test_a_leader_is_not_there_when_it_is_not_who_was_elected(
    s: Scene, *, reason: str
) -> None:
    d = Deciding(s, state_of(2, 3))
    if reason == "fenced":
        s.fenced.add(2)
    elif reason == "another run":
        s.see(2, boot=2)
    else:
        s.liveness.link_up(2, Incarnation("wiped", 1))
    assert not has_leader(d.hosted.state, s.liveness)
    elect = d.wants()
    assert isinstance(elect, Elect)
    # In a new run, on its disk, it holds what is committed: it may lead, in a new epoch.
    assert (elect.leader, elect.boot) == ((2, 2) if reason == "another run" else (3, 1))


@runs(play)
async def test_a_new_partition_begins_with_its_preferred_leader(s: Scene) -> None:
    d = Deciding(s, state_of(3, 1, 2, epoch=0, boot=0, version=0))
    assert d.wants() == Elect(0, 3, DISKS[3], 1)


@runs(play)
async def test_without_the_preferred_leader_another_begins(s: Scene) -> None:
    d = Deciding(s, state_of(3, 1, 2, epoch=0, boot=0, version=0))
    s.lose(3)
    await asyncio.sleep(2 * GRACE_SECONDS)
    assert d.wants() == Elect(0, 1, DISKS[1], 1)


@runs(play)
async def test_nobody_in_sync_means_nobody_leads(s: Scene) -> None:
    d = Deciding(s, state_of(2, 3, 1, isr=[2]))
    s.lose(2)
    await asyncio.sleep(1)
    assert d.wants() is None


@runs(play)
async def test_who_does_not_lead_the_group_decides_nothing(s: Scene) -> None:
    d = Deciding(s, state_of(2, 3), leads=False)
    s.lose(2)
    await asyncio.sleep(1)
    assert d.wants() is None


@pytest.mark.parametrize("outcome", ["refuse", "lose"])
@runs(play)
async def test_what_comes_to_nothing_is_looked_at_again_and_not_at_once(
    s: Scene, *, outcome: str
) -> None:
    d = Deciding(s, state_of(2, 3))
    s.fenced.add(2)
    assert isinstance(d.wants(), Elect)
    getattr(s.plane, outcome)()
    assert s.plane.proposals == []
    assert not d.hosted.control.is_proposing
    assert isinstance(d.wants(), Elect)


@runs(play)
async def test_what_comes_too_late_is_refused_and_looked_at_again(s: Scene) -> None:
    d = Deciding(s, state_of(2, 3))
    s.fenced.add(2)
    d.wants()
    s.fenced.clear()
    d.hosted.machine.apply(Elect(1, 2, DISKS[2], 1).encode())
    s.plane.agree()
    assert d.hosted.state.leader == 2
    assert d.wants() is None


@runs(play)
async def test_a_replica_that_is_gone_for_long_is_replaced_by_a_witness(s: Scene) -> None:
    d = Deciding(s, state_of(1, 2, witnesses=[3], isr=[1]))
    s.lose(2)
    await asyncio.sleep(DELAY_S * 0.9)
    assert d.wants() is None
    await asyncio.sleep(DELAY_S * 0.2)
    assert d.wants() == ChangeReplicas(1, (1, 3), (2,))


async def wants_within(d: Deciding, seconds: float) -> Any:
    """What it wants then; it looks every second meanwhile."""
    for _ in range(round(seconds)):
        await asyncio.sleep(1)
        if (wanted := d.wants()) is not None:
            return wanted
    return None


@runs(play)
async def test_a_leader_with_too_few_in_sync_gives_way_to_one_that_is_there(s: Scene) -> None:
    """And they take turns, ever longer ones, while none of them can commit."""
    d = Deciding(s, state_of(2, 3, 1, isr=[2], elr=[3], min_isr=2))
    assert await wants_within(d, LAG_S * 0.9) is None
    assert await wants_within(d, LAG_S * 0.3) == Elect(1, 3, DISKS[3], 1)
    s.plane.agree()
    assert (set(d.hosted.state.isr), set(d.hosted.state.elr)) == ({3}, {2})
    assert await wants_within(d, LAG_S * 1.9) is None
    assert await wants_within(d, LAG_S * 0.3) == Elect(2, 2, DISKS[2], 1)


@pytest.mark.parametrize(("seconds", "patience"), [(LAG_S, 2 * LAG_S), (3 * LAG_S, LAG_S)])
@runs(play)
async def test_a_turn_was_in_vain_if_enough_were_in_sync_for_a_moment_only(
    s: Scene, *, seconds: float, patience: float
) -> None:
    """Of two full disks, each is in sync until it lags."""
    state = state_of(2, 3, 1, isr=[2], elr=[3], min_isr=2)
    d = Deciding(s, state)
    assert await wants_within(d, LAG_S * 1.2) is not None
    s.plane.refuse()
    d.hosted.machine.restore(replace(state, isr=DISKS_OF_TWO, elr={}).encode())
    assert await wants_within(d, seconds) is None
    d.hosted.machine.restore(state.encode())
    assert await wants_within(d, patience * 0.9) is None
    assert await wants_within(d, patience * 0.3) is not None


@runs(play)
async def test_a_leader_with_too_few_in_sync_stays_while_nobody_else_could_lead(s: Scene) -> None:
    d = Deciding(s, state_of(2, 3, 1, isr=[2], elr=[3], min_isr=2))
    s.lose(3)
    await asyncio.sleep(1)
    assert await wants_within(d, 2 * LAG_S) is None
    s.see(3)
    assert await wants_within(d, LAG_S * 0.9) is None, "it has time to join"
    d.surveys.reported[3] = None
    assert await wants_within(d, LAG_S) is None


@runs(play)
async def test_a_leader_with_enough_in_sync_stays(s: Scene) -> None:
    d = Deciding(s, state_of(2, 3, 1, isr=[2, 3], min_isr=2))
    assert await wants_within(d, 2 * LAG_S) is None


def topic(s: Scene) -> None:
    s.machine.restore(founding_state("c"))
    s.register(1, 2, 3)
    s.command(CreateTopic(name="t", topic_id=TOPIC_ID, partitions=1, replication_factor=2))


@runs(play)
async def test_the_cluster_is_told_what_the_partition_has_agreed_on(s: Scene) -> None:
    topic(s)
    held = s.machine.topics["t"].partitions[0]
    s.plane.machines[CLUSTER_GROUP] = s.machine
    (witness,) = held.witnesses
    replicas = (held.replicas[0], witness)
    d = Deciding(s, state_of(*replicas, witnesses=[held.replicas[1]], version=5))
    assert d.wants() == SetReplicas(
        topic_id=TOPIC_ID,
        partition=0,
        replicas=replicas,
        witnesses=(held.replicas[1],),
        version=5,
    )
    s.plane.agree()
    assert s.machine.topics["t"].partitions[0].replicas == replicas
    assert d.wants() is None


@runs(play)
async def test_what_the_cluster_knows_already_or_newer_is_not_told(s: Scene) -> None:
    topic(s)
    held = s.machine.topics["t"].partitions[0]
    d = Deciding(s, state_of(*held.replicas, witnesses=held.witnesses, version=9))
    assert d.wants() is None
    s.command(
        SetReplicas(
            topic_id=TOPIC_ID,
            partition=0,
            replicas=held.replicas[::-1],
            witnesses=held.witnesses,
            version=9,
        )
    )
    assert d.wants() is None, "this one is no newer"


@runs(play)
async def test_a_topic_that_is_gone_is_told_of_nobody(s: Scene) -> None:
    d = Deciding(s, state_of(1, 2, version=9))
    assert d.wants() is None


@runs(play)
async def test_a_voter_on_a_new_disk_gets_its_vote_back(s: Scene) -> None:
    d = Deciding(s, state_of(1, 2, witnesses=[3], isr=[1]))
    s.liveness.link_up(3, Incarnation("wiped", 1))
    assert d.wants() == {1: DISKS[1], 2: DISKS[2], 3: "wiped"}
    s.plane.agree()
    assert d.wants() is None
    assert not d.hosted.control.is_proposing


@runs(play)
async def test_a_move_goes_step_by_step_and_ends_in_the_clusters_state(s: Scene) -> None:
    topic(s)
    s.plane.machines[CLUSTER_GROUP] = s.machine
    s.see(4)
    s.register(4)
    held = s.machine.topics["t"].partitions[0]
    first, second = held.replicas
    move = Move(0, (first, 4), held.version)
    s.command(Reassign(topic_id=TOPIC_ID, moves=(move,)))
    d = Deciding(s, state_of(first, second, witnesses=held.witnesses))
    s.see(4)
    assert d.wants() == ChangeReplicas(1, (first, 4, second), held.witnesses)
    s.plane.agree()
    assert isinstance(d.wants(), SetReplicas), "so that broker 4 opens the group"
    s.plane.agree()
    in_sync = ChangeIsr(2, 1, {b: DISKS[b] for b in (first, second, 4)}, 1)
    d.hosted.machine.apply(in_sync.encode())
    assert d.wants() == {b: DISKS[b] for b in (1, 2, 3, 4)}, "the voters first"
    s.plane.agree()
    assert d.wants() == ChangeReplicas(3, (first, 4), held.witnesses)
    s.plane.agree()
    assert d.wants() == SetReplicas(TOPIC_ID, 0, (first, 4), held.witnesses, 4)
    s.plane.agree()
    assert s.machine.topics["t"].partitions[0].target is None
    assert d.wants() == {b: DISKS[b] for b in (first, 4, *held.witnesses)}
    s.plane.agree()
    assert d.wants() is None


@runs(play)
async def test_a_move_to_what_is_there_ends_at_once(s: Scene) -> None:
    topic(s)
    s.plane.machines[CLUSTER_GROUP] = s.machine
    held = s.machine.topics["t"].partitions[0]
    away = Move(0, held.replicas[::-1], held.version)
    s.command(Reassign(topic_id=TOPIC_ID, moves=(away,)))
    back = Move(0, held.replicas, held.version, held.replicas[::-1])
    s.command(Reassign(topic_id=TOPIC_ID, moves=(back,)))
    d = Deciding(s, state_of(*held.replicas, witnesses=held.witnesses, version=0))
    assert isinstance(d.wants(), SetReplicas)
    s.plane.agree()
    assert s.machine.topics["t"].partitions[0].target is None
    assert d.wants() is None


@runs(play)
async def test_a_failed_replica_is_not_replaced_while_replicas_move(s: Scene) -> None:
    topic(s)
    held = s.machine.topics["t"].partitions[0]
    s.command(Reassign(topic_id=TOPIC_ID, moves=(Move(0, held.replicas[::-1], 0),)))
    first, second = held.replicas
    d = Deciding(s, state_of(second, first, witnesses=held.witnesses, isr=[second], version=9))
    s.lose(first)
    await asyncio.sleep(2 * DELAY_S)
    assert not isinstance(d.wants(), ChangeReplicas)


@runs(play)
async def test_a_move_at_its_target_gives_up_a_witness_that_was_removed(s: Scene) -> None:
    """The cluster group does not record replicas with an unknown broker: it would never end."""
    topic(s)
    target = s.machine.topics["t"].partitions[0].replicas[::-1]
    s.command(Reassign(topic_id=TOPIC_ID, moves=(Move(0, target, 0),)))
    d = Deciding(s, state_of(*target, witnesses=[5], isr=list(target), version=9))
    wanted = d.wants()
    assert isinstance(wanted, ChangeReplicas)
    assert (wanted.replicas, 5 in wanted.witnesses) == (target, False)


@runs(play)
async def test_witnesses_that_are_too_many_lose_their_vote(s: Scene) -> None:
    d = Deciding(s, state_of(1, witnesses=[2, 3]))
    assert d.wants() == ChangeReplicas(1, (1,), (2,))
    s.plane.agree()
    assert d.wants() == {1: DISKS[1], 2: DISKS[2]}


@runs(play)
async def test_an_election_comes_before_everything_else(s: Scene) -> None:
    d = Deciding(s, state_of(2, 1, witnesses=[3]))
    s.liveness.link_up(3, Incarnation("wiped", 1))
    s.fenced.add(2)
    assert isinstance(d.wants(), Elect)


# -- preferred leaders -----------------------------------------------------------------------------


@runs(play)
async def test_a_partition_goes_back_to_its_preferred_leader_in_time(s: Scene) -> None:
    d = Deciding(s, state_of(3, 2, 1, leader=2))
    assert d.wants() is None
    await asyncio.sleep(REBALANCE_S - 1)
    assert d.wants() is None
    await asyncio.sleep(1)
    assert d.wants() == Elect(1, 3, DISKS[3], 1)


@pytest.mark.parametrize("away", ["gone", "out of sync"])
@runs(play)
async def test_it_has_to_have_been_able_to_lead_all_the_while(s: Scene, *, away: str) -> None:
    isr = [2, 1] if away == "out of sync" else [3, 2, 1]
    d = Deciding(s, state_of(3, 2, 1, leader=2, isr=isr))
    if away == "gone":
        assert d.wants() is None  # since now it could
        await asyncio.sleep(REBALANCE_S / 2)
        s.lose(3)
        await asyncio.sleep(2 * GRACE_SECONDS)
        assert d.wants() is None
        s.see(3)
        assert d.wants() is None
        await asyncio.sleep(REBALANCE_S / 2)
        assert d.wants() is None, "it counts from its return"
        await asyncio.sleep(REBALANCE_S / 2)
        assert isinstance(d.wants(), Elect)
    else:
        assert d.wants() is None
        await asyncio.sleep(REBALANCE_S + 1)
        assert d.wants() is None


@runs(play)
async def test_not_all_leaders_move_at_once(s: Scene) -> None:
    d = Deciding(s, state_of(3, 2, 1, leader=2))
    partitions = [d.hosted]
    for partition in range(1, 2 * REBALANCED_AT_A_TIME + 1):
        partitions.append(s.hosted(state_of(3, 2, 1, leader=2), partition=partition))
        s.plane.leading.add(partitions[-1].raft_id)
    d.controller.poll_all(partitions)
    await asyncio.sleep(REBALANCE_S)
    for moved in (1, 2):
        d.controller.poll_all(partitions)
        assert len(s.plane.proposals) == moved * REBALANCED_AT_A_TIME
    d.controller.poll_all(partitions)
    assert len(s.plane.proposals) == len(partitions)
