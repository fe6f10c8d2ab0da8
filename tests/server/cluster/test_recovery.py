"""The way out of a loss: who goes on, with what, and what the operator has to agree to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from raftlog.errors import InvalidRequestError, LeaderNotAvailableError
from raftlog.protocol.cluster import (
    RecoverClusterRequest,
    RecoverClusterResponse,
    RecoveredPartition,
    ReviveRequest,
)
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.server.cluster.recovery import UNSEEN_CHANGES
from raftlog.testing.simulator.faults import HANGS
from raftlog.testing.simulator.world import (
    BrokerMachine,
    RunningBroker,
    World,
    broker_config,
    start_broker,
)
from tests.server.cluster.simulated import Cluster, growing_world, on, operations

FORCED = 1_000  # generations that a forced one is ahead


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with World(5, brokers=3) as world:
        yield Cluster(world)


def recover(cluster: Cluster, node: int, **facts: object) -> RecoverClusterResponse:
    request = RecoverClusterRequest(**facts)  # type: ignore[arg-type]
    return on(cluster, node, operations(cluster, node).recover(request))


def accept(cluster: Cluster, node: int, **facts: object) -> RecoverClusterResponse:
    """Recover as an operator who declares lost what the dry run names."""
    lost = recover(cluster, node, dry_run=True).lost
    return recover(cluster, node, lost=lost, accept_loss=True, **facts)


# -- the way out of a loss


def generations(cluster: Cluster, node: int) -> list[int]:
    plane = cluster.node(node).plane
    groups = [CLUSTER_GROUP, *cluster.node(node).partitions.hosted]
    return [plane.status(group).generation for group in groups]


def test_nothing_is_forced_while_there_is_a_majority(cluster: Cluster) -> None:
    cluster.create()
    cluster.send(b"a")
    before = generations(cluster, 1)
    noted = recover(cluster, 1)
    assert (noted.partitions, noted.cluster_note) == ([], "")
    machine = cluster.world.brokers[2]
    machine.is_kept_down = True
    machine.kill()
    cluster.world.run_for(5)
    noted = recover(cluster, 1)
    assert (noted.partitions, noted.cluster_note) == ([], "")
    assert generations(cluster, 1) == before


def test_a_recovery_ends_when_a_power_failure_cannot_revert_it(cluster: Cluster) -> None:
    """Before the new generation has a leader, it may be in the page cache only."""
    cluster.create()
    left = cluster.leader(1)
    cluster.lose(*{1, 2, 3} - {left})
    node = cluster.node(left)
    ((group, hosted),) = node.partitions.hosted.items()
    request = ReviveRequest(group=group, generation=0, base=hosted.state.encode())
    machine, hang = cluster.world.brokers[left - 1], HANGS["journal"]()
    machine.hang(hang)
    revival = machine.loop.create_task(node.recovery.revive(request))
    cluster.world.run_for(1)
    assert not revival.done()
    hang.end()
    cluster.until(revival.done)
    status = node.plane.status(group)
    assert (status.generation, status.leader) == (FORCED, left)


def test_a_recovery_reaches_no_other_broker_before_it_is_stored() -> None:
    """If the disk fails instead, it is forgotten, and the next one would be another history."""
    with growing_world(5, brokers=4) as world:
        cluster = Cluster(world)
        cluster.join(4)
        cluster.lose(2, 3)
        world.run_for(5)
        shown = recover(cluster, 1, dry_run=True)
        machine, hang = world.brokers[0], HANGS["journal"]()
        machine.hang(hang)
        request = RecoverClusterRequest(lost=shown.lost, accept_loss=True)
        recovery = machine.loop.create_task(operations(cluster, 1).recover(request))
        cluster.until(lambda: bool(cluster.node(1).machine.history))
        world.run_for(1)
        assert cluster.node(4).machine.history == ()
        assert cluster.node(1)._identity().history == ""
        hang.end()
        cluster.until(recovery.done)
        cluster.until(lambda: cluster.node(4).machine.history == cluster.node(1).machine.history)
        assert cluster.node(1)._identity().history


@pytest.mark.parametrize("survivor", ["leader", "follower"])
def test_the_last_of_three_goes_on_with_all_that_was_acknowledged(
    cluster: Cluster, survivor: str
) -> None:
    cluster.create()
    values = [b"%d" % number for number in range(20)]
    cluster.send(*values)
    leader = cluster.leader(1)
    left = leader if survivor == "leader" else leader % 3 + 1
    gone = {1, 2, 3} - {left}
    version = cluster.node(left).machine.version
    cluster.lose(*gone)
    cluster.world.run_for(5)
    noted = accept(cluster, left)
    assert cluster.node(left).machine.version >= version + UNSEEN_CHANGES
    assert f"broker {left} becomes the only voter" in noted.cluster_note
    (partition,) = noted.partitions
    assert partition.failure is None
    assert partition.leader == left
    assert partition.log_end_offset == 20
    assert "min.insync.replicas of t is now 1" in partition.note
    assert set(cluster.node(left).plane.status(CLUSTER_GROUP).voters) == {left}
    cluster.send(b"alone")
    assert cluster.read(21) == [*values, b"alone"]
    # Those that were lost come back with nothing, under the same ids.
    cluster.start(*gone)
    cluster.in_sync(left, {1, 2, 3})
    topic = cluster.node(left).machine.topics["t"].id
    for group in (CLUSTER_GROUP, f"{topic}/0"):
        cluster.until(
            lambda group=group: set(cluster.node(left).plane.status(group).voters) == {1, 2, 3}  # type: ignore[misc]
        )
    cluster.send(b"together")
    # The survivor may go now: the others have everything.
    cluster.world.brokers[left - 1].is_kept_down = True
    cluster.world.brokers[left - 1].kill()
    assert cluster.read(22) == [*values, b"alone", b"together"]


def test_recovering_at_once_waits_until_it_is_known_who_is_gone(cluster: Cluster) -> None:
    cluster.create()
    cluster.send(b"a")
    left = cluster.leader(1) % 3 + 1
    cluster.lose(*({1, 2, 3} - {left}))
    cluster.until(lambda: not cluster.node(left).liveness.is_linked(left % 3 + 1))
    cluster.until(lambda: not cluster.node(left).liveness.is_linked((left + 1) % 3 + 1))
    (partition,) = recover(
        cluster, left, lost=sorted({1, 2, 3} - {left}), accept_loss=True
    ).partitions
    assert partition.leader == left
    assert cluster.state(left).leader == left
    cluster.send(b"b")
    assert cluster.read(2) == [b"a", b"b"]


def test_a_recovery_fences_the_lost_brokers_before_their_sessions_end() -> None:
    """A new topic gives no votes to their data directories (simulator, safety seed 7000648)."""

    async def start(machine: BrokerMachine) -> RunningBroker:
        config = replace(broker_config(machine), broker_session_timeout_ms=10_000)
        return await start_broker(machine, config=config)

    with World(5, brokers=3, make_broker=start) as world:
        cluster = Cluster(world)
        cluster.lose(2, 3)
        for lost in (2, 3):
            cluster.until(lambda lost=lost: not cluster.node(1).liveness.is_linked(lost))
        recover(cluster, 1, lost=[2, 3], accept_loss=True)
        brokers = cluster.node(1).machine.brokers
        assert {broker for broker, record in brokers.items() if not record.fenced} == {1}


def test_a_second_time_there_is_nothing_left_to_do(cluster: Cluster) -> None:
    cluster.create()
    cluster.lose(2, 3)
    cluster.world.run_for(5)
    accept(cluster, 1)
    before = generations(cluster, 1)
    assert min(before) >= FORCED
    noted = recover(cluster, 1)
    assert (noted.partitions, noted.cluster_note) == ([], "")
    assert generations(cluster, 1) == before


def test_only_the_topics_that_are_named(cluster: Cluster) -> None:
    cluster.create()
    cluster.lose(2, 3)
    cluster.world.run_for(5)
    noted = accept(cluster, 1, topics=["u"])
    assert noted.partitions == []
    assert noted.cluster_note != ""


def down(cluster: Cluster, *numbers: int) -> None:
    for number in numbers:
        cluster.world.brokers[number - 1].is_kept_down = True
        cluster.world.brokers[number - 1].kill()


def test_empty_disks_recover_nothing(cluster: Cluster) -> None:
    """What they would go on from is nothing, and who comes back would take that over."""
    cluster.create()
    cluster.send(b"a")
    down(cluster, 1, 2, 3)
    cluster.world.brokers[0].wipe()
    cluster.start(1)
    cluster.world.run_for(2)
    for accept_loss in (False, True):
        with pytest.raises(InvalidRequestError, match="no running broker has the state"):
            recover(cluster, 1, accept_loss=accept_loss)
    assert cluster.node(1).plane.status(CLUSTER_GROUP).generation == 0
    cluster.start(2, 3)
    cluster.in_sync(2, {1, 2, 3})
    assert cluster.read(1) == [b"a"]


@pytest.mark.parametrize("restarts", [False, True], ids=["runs on", "was restarted"])
def test_a_broker_without_a_vote_goes_on_when_no_voter_is_left(restarts: bool) -> None:
    """Its copy of the cluster's state is durable. Two brokers have one voter, four have three."""
    with growing_world(5, brokers=2, founders=1) as world:
        cluster = Cluster(world)
        cluster.join(2)
        cluster.create(copies=2)
        cluster.in_sync(1, {1, 2})
        cluster.send(b"a")
        assert set(cluster.node(2).subscription.voters) == {1}
        world.run_for(1)
        cluster.lose(1)
        if restarts:
            down(cluster, 2)
            cluster.start(2)
        world.run_for(5)
        shown = recover(cluster, 2, dry_run=True)
        assert (shown.lost, shown.needs_loss) == ([1], True)
        recover(cluster, 2, lost=[1], accept_loss=True)
        noted = accept(cluster, 2)
        assert [part.failure for part in noted.partitions] == [None] * len(noted.partitions)
        assert cluster.state(2).leader == 2
        assert cluster.read(1) == [b"a"]


def test_partitions_that_the_voter_that_is_left_does_not_know_are_added_again() -> None:
    """A broker without a vote has copies of them, and their groups."""
    with growing_world(5, brokers=4) as world:
        cluster = Cluster(world)
        cluster.join(4)
        cluster.create(copies=2)
        world.run_for(1)
        down(cluster, 3)
        world.run_for(5)
        cluster.admin(lambda admin: admin.add_partitions("t", 9))
        cluster.until(lambda: len(cluster.node(4).partitions.hosted) > 1)
        cluster.lose(1, 2)
        cluster.start(3)
        world.run_for(5)
        accept(cluster, 3)
        cluster.until(lambda: len(cluster.node(4).machine.topics["t"].partitions) == 1)
        cluster.admin(lambda admin: admin.add_partitions("t", 9))
        for partition in range(1, 9):
            cluster.send(b"a", partition=partition)


def test_the_newest_copy_of_the_state_counts_when_no_voter_is_left() -> None:
    """Whichever broker is asked: one of the two was down when the topic was created."""
    with growing_world(5, brokers=5) as world:
        cluster = Cluster(world)
        cluster.join(4, 5)
        down(cluster, 4)
        world.run_for(5)
        cluster.create(copies=4)
        world.run_for(1)
        cluster.lose(1, 2, 3)
        cluster.start(4)
        world.run_for(5)
        noted = accept(cluster, 4)
        assert "broker 5 becomes the only voter" in noted.cluster_note
        assert "t" in cluster.node(5).machine.topics
        cluster.until(lambda: "t" in cluster.node(4).machine.topics)


@pytest.mark.parametrize("asked", ["survivor", "lost"])
def test_two_empty_disks_beside_it_are_no_majority(cluster: Cluster, asked: str) -> None:
    """They have links, and no data: whichever of the three is asked, the survivor goes on."""
    cluster.create()
    cluster.send(b"a")
    cluster.lose(1, 2)
    cluster.start(1, 2)
    cluster.until(lambda: cluster.node(1).liveness.is_linked(3))
    cluster.until(lambda: cluster.node(3).liveness.is_linked(1))
    noted = accept(cluster, 3 if asked == "survivor" else 1)
    assert "brokers 1, 2 are lost: broker 3 becomes the only voter" in noted.cluster_note
    (partition,) = noted.partitions
    assert (partition.leader, partition.failure) == (3, None)
    cluster.in_sync(3, {1, 2, 3})
    cluster.send(b"b")
    assert cluster.read(2) == [b"a", b"b"]
    assert len({cluster.node(n).machine.cluster_id for n in (1, 2, 3)}) == 1


def test_what_would_be_done_can_be_asked_first(cluster: Cluster) -> None:
    cluster.create()
    cluster.send(b"a")
    cluster.lose(1, 2)
    cluster.world.run_for(5)
    before = generations(cluster, 3)
    noted = recover(cluster, 3, dry_run=True)
    assert "broker 3 becomes the only voter" in noted.cluster_note
    (partition,) = noted.partitions
    assert "Records that these have acknowledged without it after that are lost" in partition.note
    assert (partition.leader, partition.log_end_offset) == (None, 1)
    assert noted.lost == [1, 2]
    assert generations(cluster, 3) == before


@pytest.mark.parametrize("word", ["none", "who is lost", "a loss", "another loss", "one of two"])
def test_nothing_is_done_without_the_operators_whole_word(cluster: Cluster, word: str) -> None:
    """The survivor was in sync, and saw the others end: they may have gone on out of its sight."""
    cluster.create(copies=3)
    cluster.send(b"a")
    cluster.lose(2, 3)
    cluster.world.run_for(5)
    shown = recover(cluster, 1, dry_run=True)
    said: dict[str, object] = {
        "none": {},
        "who is lost": {"lost": [2, 3]},
        "a loss": {"accept_loss": True},
        "another loss": {"lost": [2, 3], "accept_loss": True, "loss_id": "0123456789ab"},
        "one of two": {"lost": [2], "accept_loss": True, "loss_id": shown.loss_id},
    }[word]
    noted = recover(cluster, 1, **said)
    assert (noted.needs_loss, noted.lost, noted.loss_id) == (True, [2, 3], shown.loss_id)
    assert noted.refused == ("accept_loss" in said)
    assert not cluster.node(1).plane.leads(CLUSTER_GROUP), "nothing was done"
    done = recover(cluster, 1, lost=[2, 3], accept_loss=True, loss_id=shown.loss_id)
    assert [part.leader for part in done.partitions] == [1]


def test_only_a_broker_that_does_not_run_can_be_declared_lost(cluster: Cluster) -> None:
    cluster.create()
    for lost, why in (([3], "broker 3 runs, and cannot be"), ([9], "there is no broker 9 that")):
        with pytest.raises(InvalidRequestError, match=why):
            recover(cluster, 1, lost=lost, accept_loss=True)


# -- those that are declared lost


def test_who_was_declared_lost_stops_and_may_return_with_an_empty_disk(cluster: Cluster) -> None:
    cluster.create(copies=3)
    cluster.send(b"a")
    down(cluster, 2, 3)
    cluster.world.run_for(5)
    accept(cluster, 1)
    cluster.send(b"b")
    cluster.start(2)
    two = cluster.world.brokers[1]
    cluster.until(lambda: two.is_outside)
    assert "has declared data directory" in two.refusals[-1]
    assert "Start the broker with an empty data directory" in two.refusals[-1]
    two.is_outside = False
    cluster.lose(2)
    cluster.start(2)
    cluster.in_sync(1, {1, 2})
    assert cluster.read(2) == [b"a", b"b"]


def test_a_directory_is_lost_though_the_cluster_has_its_majority() -> None:
    """A partition has lost the majority of its own voters: it goes on, and its group has a
    generation that the lost broker, with its old directory, must not meet."""
    with World(9, brokers=5) as world:
        cluster = Cluster(world)
        cluster.create(copies=2)
        cluster.send(b"a")
        left, gone, *_ = cluster.state(1).replicas
        others = {*cluster.state(1).witnesses, gone}
        down(cluster, *others)
        world.run_for(5)
        asked = min(set(range(1, 6)) - others)
        noted = accept(cluster, asked)
        if len(others) == 1:
            assert noted.cluster_note == ""
        assert only(noted).leader == left
        history = cluster.node(left).machine.history
        assert len(history) == (len(others) > 2)
        cluster.start(gone)
        cluster.until(lambda: world.brokers[gone - 1].is_outside)
        cluster.send(b"b")
        assert cluster.read(2) == [b"a", b"b"]


def cut(cluster: Cluster, *numbers: int) -> None:
    """Isolate these brokers together from all others, and wait until both sides know it."""
    names = {machine.name for machine in cluster.world.brokers}
    inside = {cluster.world.brokers[number - 1].name for number in numbers}
    cluster.world.network.partition(sorted(inside), sorted(names - inside))
    cluster.world.run_for(15)


def ended(cluster: Cluster) -> list[int]:
    """The brokers that have stopped because of what they heard of each other."""
    return [machine.broker_id for machine in cluster.world.brokers if machine.is_outside]


def test_a_living_majority_does_not_accept_the_recovery_of_a_minority(cluster: Cluster) -> None:
    """Its operator was wrong. What the majority acknowledged meanwhile is not lost."""
    cluster.create(copies=3)
    cluster.send(b"a")
    cut(cluster, 1)
    accept(cluster, 1)
    assert cluster.state(1).leader == 1, "it serves"
    cluster.in_sync(2, {2, 3})
    cluster.world.network.heal()
    cluster.until(lambda: ended(cluster) == [1])
    assert (
        "has contact with a majority of the cluster's voters"
        in cluster.world.brokers[0].refusals[-1]
    )
    cluster.world.run_for(10)
    assert ended(cluster) == [1]
    cluster.send(b"b")
    cluster.world.brokers[0].is_outside = False
    cluster.lose(1)
    cluster.start(1)
    cluster.in_sync(2, {1, 2, 3})
    assert cluster.read(2) == [b"a", b"b"]


def test_a_living_majority_goes_on_though_both_sides_declared_the_other_lost() -> None:
    """The majority recovered partitions most of whose voters it had lost, the minority all."""
    with growing_world(1, brokers=4) as world:
        cluster = Cluster(world)
        cluster.join(4)
        cluster.create(partitions=8, copies=2)
        world.run_for(5)
        world.network.partition(["broker-1", "broker-2"], ["broker-3", "broker-4"])
        world.run_for(15)
        accept(cluster, 3)
        accept(cluster, 1)
        assert set(cluster.node(1).machine.lost.values()) == {3, 4}
        world.network.heal()
        cluster.until(lambda: ended(cluster) == [3, 4])
        assert "has contact with a majority" in world.brokers[2].refusals[-1]
        assert cluster.node(1).machine.history == ()


def test_two_sides_that_gave_up_each_other_both_stop() -> None:
    with World(5, brokers=2) as world:
        cluster = Cluster(world)
        cluster.create(copies=2)
        cluster.send(b"a")
        cut(cluster, 1)
        for side in (1, 2):
            accept(cluster, side)
            assert cluster.state(side).leader == side
        world.network.heal()
        cluster.until(lambda: ended(cluster) == [1, 2])
        for machine in world.brokers:
            assert "continue after different recoveries" in machine.refusals[-1]


def test_who_reaches_both_sides_forbids_the_recovery() -> None:
    """Broker 4 has contact with the leader, which the operator's broker does not reach."""
    with World(5, brokers=5) as world:
        cluster = Cluster(world)
        cluster.create(copies=5)
        world.run_for(5)
        for other in (2, 3, 5):
            world.network.cut("broker-1", f"broker-{other}")
        world.run_for(15)
        with pytest.raises(InvalidRequestError, match="broker 4 has contact with broker"):
            recover(cluster, 1, lost=[2, 3, 5], accept_loss=True)


def test_the_newest_that_any_broker_has_counts() -> None:
    """Of five brokers the three that are lost are a majority; of the two left one knows more."""
    with World(9, brokers=5) as world:
        cluster = Cluster(world)
        cluster.create(copies=3)
        cluster.send(b"a")
        state = cluster.state(1)
        stale, good, third = state.replicas
        down(cluster, stale)
        cluster.until(
            lambda: (
                set(cluster.state(good).isr) == {good, third}
                and cluster.state(good).leader in {good, third}
            )
        )
        cluster.send(b"b")
        lost = set(range(1, 6)) - {stale, good}
        cluster.lose(*lost)
        cluster.start(stale)
        cluster.until(lambda: cluster.node(stale).liveness.is_linked(good))
        (partition,) = accept(cluster, stale).partitions
        assert partition.leader == good
        assert cluster.read(2) == [b"a", b"b"]


def test_the_last_one_may_have_been_started_again(cluster: Cluster) -> None:
    """Then it cannot know what the others did meanwhile, and has lost nothing if that is nothing.

    Nor what was agreed on, until it may count on itself alone.
    """
    cluster.create(partitions=3)
    cluster.send(b"a")
    cluster.world.run_for(1)
    down(cluster, 1, 2, 3)
    cluster.lose(2, 3)
    cluster.start(1)
    cluster.world.run_for(5)
    noted = recover(cluster, 1)
    assert (noted.partitions, noted.needs_loss) == ([], True)
    noted = accept(cluster, 1)
    assert [(part.partition, part.leader, part.failure) for part in noted.partitions] == [
        (number, 1, None) for number in range(3)
    ]
    cluster.send(b"b")
    assert cluster.read(2) == [b"a", b"b"]


def unclean(cluster: Cluster) -> int:
    """A partition whose only member in sync is lost; who is left."""
    cluster.create(copies=2)
    cluster.send(b"a")
    leader = cluster.leader(1)
    (other,) = set(cluster.state(leader).replicas) - {leader}
    down(cluster, other)
    cluster.in_sync(leader, {leader})
    cluster.send(b"only the leader has this")
    cluster.lose(leader)
    cluster.start(other)
    cluster.world.run_for(5)
    return other


def test_without_a_replica_in_sync_it_says_what_would_be_lost_and_does_nothing(
    cluster: Cluster,
) -> None:
    left = unclean(cluster)
    assert cluster.state(left).leader != left
    (partition,) = recover(cluster, left).partitions
    assert f"broker {left} has the records below offset 1" in partition.note
    assert (partition.may_lose, partition.leader) == (True, None)
    assert cluster.state(left).leader != left


def test_with_the_operators_word_it_goes_on_from_what_is_left(cluster: Cluster) -> None:
    left = unclean(cluster)
    (partition,) = accept(cluster, left).partitions
    assert (partition.leader, partition.may_lose) == (left, True)
    cluster.send(b"b")
    assert cluster.read(2) == [b"a", b"b"]


def test_the_operators_word_is_for_the_loss_that_was_shown(cluster: Cluster) -> None:
    left = unclean(cluster)
    shown = recover(cluster, left, dry_run=True)
    assert shown.loss_id == recover(cluster, left).loss_id != ""
    other = accept(cluster, left, loss_id="0123456789ab")
    assert (other.refused, other.loss_id) == (True, shown.loss_id)
    assert cluster.state(left).leader != left, "nothing was done"
    cluster.lose(left)  # what was left of the records is lost too
    cluster.start(left)
    cluster.world.run_for(5)
    worse = accept(cluster, left, loss_id=shown.loss_id)
    assert worse.refused
    assert [part.log_end_offset for part in worse.partitions] == [0]
    assert worse.loss_id != shown.loss_id
    assert cluster.state(left).leader != left, "nothing was done"
    done = accept(cluster, left, loss_id=worse.loss_id)
    assert (done.refused, done.partitions[0].leader) == (False, left)
    assert recover(cluster, left, dry_run=True).loss_id == ""


def test_a_loss_that_came_after_the_operators_word_is_not_accepted(cluster: Cluster) -> None:
    left = unclean(cluster)
    lost = recover(cluster, left, dry_run=True).lost
    for request, accepted in (
        (RecoverClusterRequest(accept_loss=True, lost=lost), ()),  # another loss
        (RecoverClusterRequest(accept_loss=True), None),  # of another broker
    ):
        recovery = cluster.node(left).recovery
        (partition,) = on(cluster, left, recovery._recover_partitions(request, accepted))
        assert "This loss is new: repeat the command" in partition.note
    assert cluster.state(left).leader != left, "nothing was done"


def test_a_loss_waits_for_who_has_just_gone(cluster: Cluster) -> None:
    """The operator accepts a loss while a broker restarts that has all records."""
    cluster.create(copies=3)
    cluster.send(b"a")
    kept, *lost = cluster.leader(1), *({1, 2, 3} - {cluster.leader(1)})
    cluster.lose(*lost)
    cluster.start(*lost)
    cluster.world.run_for(2)
    down(cluster, kept)
    cluster.world.run_for(0.5)
    machine = cluster.world.brokers[kept - 1]
    machine.is_kept_down = False
    machine.start_later(1.0)
    recover(cluster, lost[0], lost=lost, accept_loss=True)
    cluster.until(lambda: cluster.state(kept).leader is not None)
    assert cluster.read(1) == [b"a"]


def test_a_torn_copy_goes_on_with_what_it_has(cluster: Cluster) -> None:
    cluster.create()
    cluster.send(b"a", b"b")
    left = cluster.leader(1)
    cluster.lose(*({1, 2, 3} - {left}))
    cluster.world.run_for(5)
    (hosted,) = cluster.node(left).partitions.hosted.values()
    assert hosted.host is not None
    log = hosted.host.log
    log.note_damage("a torn write", offset=log.log_end_offset)
    log.is_torn = True
    cluster.start(left % 3 + 1)
    assert only(accept(cluster, left)).leader == left
    cluster.send(b"c")
    assert cluster.read(3) == [b"a", b"b", b"c"]


def alone(cluster: Cluster) -> tuple[int, int]:
    """A partition with one replica, whose disk is lost: who had it, and another broker."""
    cluster.create(copies=1)
    cluster.send(b"a", b"b")
    had = cluster.leader(1)
    cluster.world.run_for(6)
    cluster.lose(had)
    other = had % 3 + 1
    cluster.world.run_for(5)
    return had, other


def only(noted: RecoverClusterResponse) -> RecoveredPartition:
    (partition,) = noted.partitions
    return partition


@pytest.mark.parametrize("asked", ["the one that had it", "another"])
def test_the_only_copy_comes_back_empty_with_the_operators_word(
    cluster: Cluster, asked: str
) -> None:
    had, other = alone(cluster)
    epoch = cluster.node(other).state_broadcast.received[
        cluster.node(other).machine.topics["t"].id, 0
    ]
    cluster.start(had)
    cluster.until(lambda: cluster.node(had).membership.is_in)
    cluster.world.run_for(1)  # its copy is open
    broker = had if asked == "the one that had it" else other
    partition = only(recover(cluster, broker))
    assert (partition.may_lose, partition.leader) == (True, None)
    assert "restarts at offset 0" in partition.note
    partition = only(accept(cluster, broker))
    assert (partition.leader, partition.failure, partition.log_end_offset) == (had, None, 0)
    cluster.until(lambda: cluster.state(had).leader == had)
    assert cluster.state(had).leader_epoch > epoch.leader_epoch, "clients follow"
    cluster.send(b"c")
    assert cluster.read(1) == [b"c"]
    assert recover(cluster, other).partitions == []


def test_the_only_copy_needs_a_broker_to_come_back_to(cluster: Cluster) -> None:
    had, other = alone(cluster)
    partition = only(recover(cluster, other, accept_loss=True))
    assert partition.failure is not None
    assert f"no replica (brokers {had}) is available" in partition.failure.message


def test_a_plan_that_came_too_late_changes_nothing(cluster: Cluster) -> None:
    cluster.create()
    leader = cluster.leader(1)
    recovery = cluster.node(leader).recovery
    (group,) = cluster.node(leader).partitions.hosted
    with pytest.raises(LeaderNotAvailableError, match="the partition changed during"):
        on(cluster, leader, recovery.revive(ReviveRequest(group=group, generation=0)))
    with pytest.raises(InvalidRequestError, match="is not a member of group"):
        on(cluster, leader, recovery.revive(ReviveRequest(group="x/0", generation=0)))
