"""A broker's place in the cluster: it registers, is let in, and others are fenced when gone."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import msgspec
import pytest

from raftlog import limits
from raftlog.config import Address, BrokerConfig
from raftlog.consensus import Applied
from raftlog.errors import ClusterNotReadyError, DataDirectoryError
from raftlog.protocol.cluster import ClusterStateRequest, ClusterStateResponse, ProposeRequest
from raftlog.protocol.peer import PeerIdentity
from raftlog.protocol.security import PEER_PROTOCOL_VERSION
from raftlog.replication.cluster_commands import (
    ClusterCommand,
    DecommissionBroker,
    FenceBroker,
    RegisterBroker,
    RemoveBroker,
    ReserveBrokerId,
    SetKafkaAddress,
    UnfenceBroker,
    decode_command,
    founding_state,
    recovered,
)
from raftlog.replication.cluster_state import Refused
from raftlog.server.broker import _open_files
from raftlog.server.cluster.membership import (
    CLUSTER_GROUP,
    GRACE_SECONDS,
    START_GRACE_SECONDS,
    Await,
    AwaitFounder,
    Found,
    Incarnation,
    Join,
    Liveness,
    Membership,
    describe_step,
    next_step,
)
from raftlog.testing.disk import Fault
from raftlog.testing.simulator.observer import node_of
from raftlog.testing.simulator.operators import joining_config
from raftlog.testing.simulator.world import (
    BrokerMachine,
    RunningBroker,
    World,
    broker_config,
    start_broker,
)
from raftlog.types import NewTopic
from tests.server.cluster.fake import DISKS, Scene, play, status
from tests.server.cluster.simulated import Cluster, growing_world, on

SESSION_S = 3.0


class Joining:
    """This broker is 1; voters are 1, 2 and 3."""

    def __init__(self, s: Scene, *, leads: bool = True) -> None:
        self.s = s
        self.is_ready = True
        self.address = Address("h", 1)
        self.kafka_address = Address("", 0)
        s.plane.machines[CLUSTER_GROUP] = s.machine
        s.plane.statuses[CLUSTER_GROUP] = status(voters={b: DISKS[b] for b in (1, 2, 3)})
        if leads:
            s.plane.leading.add(CLUSTER_GROUP)
        self.membership = Membership(
            1,
            s.me,
            rack="r1",
            voters=[1, 2, 3],
            address=lambda: self.address,
            kafka_address=lambda: self.kafka_address,
            machine=s.machine,
            plane=s.plane.as_plane,
            liveness=s.liveness,
            session_seconds=SESSION_S,
            is_ready=lambda: self.is_ready,
            now=s.loop.time,
        )

    def wants(self) -> ClusterCommand | None:
        """What it proposes when it looks; None for nothing."""
        self.membership.poll()
        proposals = self.s.plane.proposals
        assert len(proposals) <= 1, "one at a time"
        return decode_command(proposals[0].command) if proposals else None

    def agree(self) -> Any:
        return self.s.plane.agree()


def named(s: Scene) -> None:
    s.machine.restore(founding_state("c"))


def test_from_nothing_to_a_member() -> None:
    async def test(s: Scene) -> None:
        j = Joining(s)
        assert j.wants() is None, "there is no cluster yet"
        named(s)
        assert not j.membership.is_registered
        registration = j.wants()
        assert registration == RegisterBroker(
            id=1, host="h", port=1, rack="r1", directory_id=DISKS[1], boot=1
        )
        j.agree()
        assert j.membership.is_registered
        assert not j.membership.is_in, "it is fenced until it serves"
        assert isinstance(j.wants(), UnfenceBroker)
        j.agree()
        assert j.membership.is_in
        assert j.wants() is None

    play(test)


def test_its_address_for_kafka_clients_is_set_before_it_serves() -> None:
    async def test(s: Scene) -> None:
        named(s)
        j = Joining(s)
        j.kafka_address = Address("outside", 9092)
        assert isinstance(j.wants(), RegisterBroker)
        j.agree()
        epoch = s.machine.brokers[1].broker_epoch
        assert j.wants() == SetKafkaAddress(id=1, broker_epoch=epoch, host="outside", port=9092)
        j.agree()
        assert isinstance(j.wants(), UnfenceBroker)
        j.agree()
        assert j.wants() is None
        j.kafka_address = Address("", 0)
        assert isinstance(j.wants(), SetKafkaAddress), "kafka.listen was removed"

    play(test)


def test_it_is_let_in_when_it_is_ready_and_looks_after_others_until_then() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2)
        s.command(FenceBroker(id=1, broker_epoch=s.machine.brokers[1].broker_epoch))
        j = Joining(s)
        j.is_ready = False
        j.address = Address("h", 1)
        s.command(RegisterBroker(id=1, host="h", port=1, rack="r1", directory_id=DISKS[1], boot=1))
        s.see(2)
        assert j.wants() is None
        s.lose(2)
        await asyncio.sleep(SESSION_S)
        fence = j.wants()
        assert isinstance(fence, FenceBroker)
        assert fence.id == 2
        j.agree()
        j.is_ready = True
        assert isinstance(j.wants(), UnfenceBroker)

    play(test)


@pytest.mark.parametrize("change", ["boot", "disk", "address"])
def test_it_registers_anew_in_each_run(change: str) -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1)
        j = Joining(s, leads=False)
        assert j.membership.is_registered
        if change == "boot":
            j.membership._me = Incarnation(DISKS[1], 2)
        elif change == "disk":
            j.membership._me = Incarnation("new", 1)
        else:
            j.address = Address("elsewhere", 1)
        assert not j.membership.is_registered
        assert not j.membership.is_in
        assert isinstance(j.wants(), RegisterBroker)

    play(test)


def test_a_silent_broker_is_fenced_by_the_leader_after_a_sessions_time() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2, 3)
        j = Joining(s)
        s.see(2, 3)
        s.lose(3)
        await asyncio.sleep(SESSION_S * 0.9)
        assert j.wants() is None
        await asyncio.sleep(SESSION_S * 0.2)
        fence = j.wants()
        assert fence == FenceBroker(id=3, broker_epoch=s.machine.brokers[3].broker_epoch)
        j.agree()
        assert j.wants() is None, "fenced once"

    play(test)


def test_who_does_not_lead_fences_nobody() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2)
        j = Joining(s, leads=False)
        await asyncio.sleep(60)
        assert j.wants() is None

    play(test)


def test_a_broker_that_came_back_meanwhile_is_not_fenced_by_the_old_word() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2)
        j = Joining(s)
        await asyncio.sleep(SESSION_S)
        assert isinstance(j.wants(), FenceBroker)
        epoch = s.command(
            RegisterBroker(id=2, host="h", port=2, rack="", directory_id=DISKS[2], boot=2)
        )
        s.command(UnfenceBroker(id=2, broker_epoch=epoch))
        assert isinstance(j.agree(), Refused)
        assert not s.machine.brokers[2].fenced

    play(test)


def test_who_is_there_on_another_disk_has_its_old_registration_fenced() -> None:
    """Else the new one is refused for ever: the link is up, so nobody is silent."""

    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2)
        j = Joining(s)
        s.liveness.link_up(2, Incarnation("wiped", 1))
        assert j.wants() == FenceBroker(id=2, broker_epoch=s.machine.brokers[2].broker_epoch)

    play(test)


def test_a_wiped_broker_waits_until_its_old_registration_is_fenced() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1)
        j = Joining(s, leads=False)
        j.membership._me = Incarnation("wiped", 1)
        assert isinstance(j.wants(), RegisterBroker)
        assert isinstance(j.agree(), Refused)
        assert "is in use by the live broker at" in j.membership.refusal
        for _ in range(5):
            assert j.wants() is None, "nothing has changed: the same again would be refused"
        s.command(FenceBroker(id=1, broker_epoch=s.machine.brokers[1].broker_epoch))
        assert isinstance(j.wants(), RegisterBroker)
        j.agree()
        assert j.membership.is_registered
        assert j.membership.refusal == ""

    play(test)


def test_a_registration_that_an_older_state_refused_is_repeated_after_a_session() -> None:
    """This broker may know a newer state by then, which does not change any more."""

    async def test(s: Scene) -> None:
        named(s)
        s.register(1)
        j = Joining(s, leads=False)
        j.membership._me = Incarnation("wiped", 1)
        j.wants()
        assert isinstance(j.agree(), Refused)
        assert j.wants() is None
        await asyncio.sleep(SESSION_S)
        assert isinstance(j.wants(), RegisterBroker)

    play(test)


def test_a_wiped_broker_that_leads_the_group_fences_its_own_old_registration() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1)
        s.me = Incarnation("wiped", 1)
        s.liveness.link_up(1, s.me)
        j = Joining(s)
        j.membership._me = s.me
        assert isinstance(j.wants(), RegisterBroker)
        assert isinstance(j.agree(), Refused)
        assert isinstance(j.wants(), FenceBroker)
        j.agree()
        assert isinstance(j.wants(), RegisterBroker)

    play(test)


def test_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1)
        j = Joining(s, leads=False)
        j.membership._me = Incarnation("wiped", 1)
        for other in (2, 3):
            j.wants()
            j.agree()
            s.register(other)
        assert len(caplog.records) == 1

    with caplog.at_level(logging.ERROR):
        play(test)


@pytest.mark.parametrize("outcome", ["refuse", "lose"])
def test_what_comes_to_nothing_is_proposed_again_at_the_next_look(outcome: str) -> None:
    async def test(s: Scene) -> None:
        named(s)
        j = Joining(s, leads=False)
        assert isinstance(j.wants(), RegisterBroker)
        getattr(s.plane, outcome)()
        assert s.plane.proposals == [], "not at once: that would never end"
        assert isinstance(j.wants(), RegisterBroker)

    play(test)


def test_one_proposal_at_a_time() -> None:
    async def test(s: Scene) -> None:
        named(s)
        j = Joining(s)
        for _ in range(3):
            assert isinstance(j.wants(), RegisterBroker)

    play(test)


def test_who_leaves_asks_for_nothing() -> None:
    async def test(s: Scene) -> None:
        named(s)
        j = Joining(s)
        j.membership.is_leaving = True
        assert j.wants() is None

    play(test)


def test_a_voter_on_a_new_disk_votes_again_from_the_next_generation_on() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2, 3)
        j = Joining(s)
        s.see(2, 3)
        s.command(FenceBroker(id=3, broker_epoch=s.machine.brokers[3].broker_epoch))
        s.liveness.link_up(3, Incarnation("wiped", 1))
        j.membership.poll()
        (seal,) = s.plane.proposals
        assert (seal.raft_id, seal.seal) == (
            CLUSTER_GROUP,
            {1: DISKS[1], 2: DISKS[2], 3: "wiped"},
        )
        j.membership.poll()
        assert len(s.plane.proposals) == 1
        s.plane.agree()
        j.membership.poll()
        assert s.plane.proposals == []

    play(test)


def test_a_fourth_broker_gets_no_vote_and_a_fifth_does() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2, 3, 4)
        j = Joining(s)
        s.see(2, 3, 4)
        assert j.wants() is None
        s.register(5)
        s.see(5)
        j.membership.poll()
        assert s.plane.proposals[0].seal == {b: DISKS[b] for b in (1, 2, 3, 4)}, "one at a time"

    play(test)


def test_a_broker_that_was_removed_asks_for_nothing() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2)
        s.command(DecommissionBroker(id=1))
        s.command(RemoveBroker(id=1, broker_epoch=s.machine.brokers[1].broker_epoch))
        assert Joining(s, leads=False).wants() is None

    play(test)


def test_a_seal_that_fails_is_tried_again() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2)
        j = Joining(s)
        s.see(2)
        s.plane.statuses[CLUSTER_GROUP] = status(voters={1: DISKS[1]})
        j.membership.poll()
        s.plane.refuse()
        j.membership.poll()
        assert s.plane.proposals[0].seal == {1: DISKS[1], 2: DISKS[2]}
        s.plane.proposals.pop().done(Applied(1))

    play(test)


# -- addresses -------------------------------------------------------------------------------------
#
# Which brokers a broker connects to: registered ones, and others that may know more.


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with growing_world(41, brokers=6) as world:
        yield Cluster(world)


def test_a_broker_that_was_down_during_all_changes_is_found_by_the_others(
    cluster: Cluster,
) -> None:
    """Broker 3 knows brokers 1 and 2 only, which are gone: it learns from those that connect."""
    cluster.stop(3)
    cluster.join(4, 5, 6)
    for leaving in (1, 2):
        cluster.until(lambda: len(cluster.node(4).subscription.voters) >= 4)
        cluster.decommission(leaving, by=4)
    cluster.start(3)
    cluster.until(lambda: cluster.is_in(3))
    cluster.until(lambda: cluster.node(3)._addresses.brokers == [3, 4, 5, 6])
    assert cluster.node(3).machine.known() == cluster.node(4).machine.known()


def test_a_founder_on_a_new_disk_creates_no_cluster_after_the_other_founders_have_left(
    cluster: Cluster,
) -> None:
    cluster.join(4, 5, 6)
    for leaving in (1, 2):
        cluster.until(lambda: len(cluster.node(4).subscription.voters) >= 4)
        cluster.decommission(leaving, by=4)
    known = cluster.node(4).machine.cluster_id
    cluster.lose(3)
    cluster.start(3)
    cluster.until(lambda: cluster.is_in(3))
    node = node_of(cluster.world.brokers[2])
    assert node is not None
    assert node.machine.cluster_id == known


# -- founding --------------------------------------------------------------------------------------
#
# Founding a cluster: by one broker, once nobody who votes can have been in one; else never.


VOTERS = (1, 2, 3)


def peer(broker_id: int, cluster_id: str = "") -> PeerIdentity:
    return PeerIdentity(
        broker_id=broker_id,
        directory_id=f"d{broker_id}",
        boot=1,
        host="h",
        port=broker_id,
        protocol_version=1,
        cluster_id=cluster_id,
    )


def step(me: int, *seen: PeerIdentity, without: tuple[int, ...] = ()) -> object:
    peers = {each.broker_id: each for each in seen}
    return next_step(me, f"d{me}", voters=VOTERS, without=without, seen=peers)


# -- the rule


def test_the_first_voter_founds_once_all_are_seen_and_none_was_in_a_cluster() -> None:
    assert step(1) == Await((2, 3))
    assert step(1, peer(3)) == Await((2,))
    assert step(1, peer(2), peer(3)) == Found({1: "d1", 2: "d2", 3: "d3"}, 1)
    assert step(2, peer(1), peer(3)) == AwaitFounder(1)
    assert step(3, peer(2)) == Await((1,))


def test_who_sees_a_cluster_joins_it() -> None:
    assert step(1, peer(2, "c"), peer(3)) == Join(2, "c")
    assert step(1, peer(3, "c")) == Join(3, "c")
    assert step(1, peer(2, "c"), without=(2, 3)) == Join(2, "c"), "whatever the operator says"


def test_voters_that_the_operator_names_are_not_waited_for_and_get_no_vote() -> None:
    assert step(1, peer(2), without=(3,)) == Found({1: "d1", 2: "d2"}, 1)
    assert step(1, peer(2), peer(3), without=(3,)) == Found({1: "d1", 2: "d2"}, 1)
    assert step(2, peer(3), without=(1,)) == Found({2: "d2", 3: "d3"}, 1)
    assert step(3, peer(2), without=(1,)) == AwaitFounder(2)
    assert step(3, without=(1, 2)) == Found({3: "d3"}, PEER_PROTOCOL_VERSION)


@pytest.mark.parametrize(
    ("versions", "common"),
    [
        ((PEER_PROTOCOL_VERSION, PEER_PROTOCOL_VERSION), PEER_PROTOCOL_VERSION),
        ((1, PEER_PROTOCOL_VERSION), 1),
        ((PEER_PROTOCOL_VERSION + 1, PEER_PROTOCOL_VERSION), PEER_PROTOCOL_VERSION),
    ],
)
def test_a_cluster_is_founded_with_what_all_voters_support(
    versions: tuple[int, int], common: int
) -> None:
    seen = [
        msgspec.structs.replace(peer(voter), protocol_version=version)
        for voter, version in zip((2, 3), versions, strict=True)
    ]
    found = step(1, *seen)
    assert isinstance(found, Found)
    assert found.peer_protocol == common


def test_what_it_waits_for_can_be_told() -> None:
    assert "brokers 2, 3 have not connected yet" in describe_step(Await((2, 3)))
    assert "broker 1 has not founded" in describe_step(AwaitFounder(1))
    assert "in cluster c" in describe_step(Join(2, "c"))


# -- brokers


@pytest.fixture
def founding_cluster() -> Iterator[Cluster]:
    with World(7, brokers=3) as world:
        yield Cluster(world)


def ids(founding_cluster: Cluster) -> dict[int, str]:
    return {n: founding_cluster.node(n).machine.cluster_id for n in VOTERS}


def test_all_brokers_are_in_one_cluster_and_know_it_after_a_start(
    founding_cluster: Cluster,
) -> None:
    before = ids(founding_cluster)
    assert len(set(before.values())) == 1
    for number in VOTERS:
        founding_cluster.stop(number)
    founding_cluster.start(*VOTERS)
    founding_cluster.until(lambda: all(founding_cluster.node(n).membership.is_in for n in VOTERS))
    assert ids(founding_cluster) == before


@pytest.mark.parametrize("lost", list(combinations(VOTERS, 2)))
def test_two_lost_disks_join_the_third_and_found_nothing(
    founding_cluster: Cluster, lost: tuple[int, ...]
) -> None:
    """Both are there without the third one at first, which starts again meanwhile."""
    founding_cluster.create()
    founding_cluster.send(b"a")
    (left,) = set(VOTERS) - set(lost)
    known = founding_cluster.node(left).machine.cluster_id
    founding_cluster.world.brokers[left - 1].is_kept_down = True
    founding_cluster.world.brokers[left - 1].kill()
    founding_cluster.lose(*lost)
    founding_cluster.start(*lost)
    founding_cluster.world.run_for(30)
    for number in lost:
        node = founding_cluster.node(number)
        assert node.machine.cluster_id == ""
        assert f"brokers {left} have not connected" in node._topics.waits_for
    founding_cluster.start(left)
    founding_cluster.until(lambda: set(ids(founding_cluster).values()) == {known})
    founding_cluster.world.run_for(10)
    assert all(founding_cluster.node(n).plane.status("cluster").role == "observer" for n in lost)


def test_a_broker_that_starts_late_is_waited_for() -> None:
    with World(8, brokers=3) as world:
        for machine in world.brokers[:2]:
            machine.start()
        world.run_until(lambda: all(m.broker for m in world.brokers[:2]), limit_s=10)
        world.run_for(30)
        waiting = [node_of(machine) for machine in world.brokers[:2]]
        assert all(node is not None and node.machine.cluster_id == "" for node in waiting)
        founding_cluster = Cluster(world)
        assert len(set(ids(founding_cluster).values())) == 1


@pytest.mark.parametrize(
    ("error", "boots"), [(errno.ENOSPC, 1), (errno.EIO, 2)], ids=["full", "failed"]
)
def test_a_broker_that_cannot_write_the_cluster_id_joins_later(error: int, boots: int) -> None:
    """Where the disk is full, once it is not; where it failed, the broker ends, and joins after
    its next start."""
    with World(8, brokers=3) as world:
        for machine in world.brokers:
            machine.start()
        last = world.brokers[2]
        world.run_until(lambda: last.broker is not None, limit_s=10)
        fault = Fault(error=error, path="*identity*")
        last.disk.faults.append(fault)
        world.run_until(lambda: fault.times == 0, limit_s=20)
        world.run_until(lambda: is_in_its_cluster(last), limit_s=20)
        assert last.boots == boots


def is_in_its_cluster(machine: BrokerMachine) -> bool:
    node = node_of(machine)
    return node is not None and bool(node._store.identity.cluster_id)


def test_a_broker_of_a_cluster_does_not_start_alone(founding_cluster: Cluster) -> None:
    """It would serve its copies as a cluster of its own, under the same id."""
    founding_cluster.stop(3)
    machine = founding_cluster.world.brokers[2]
    config = BrokerConfig(id=3, data_dir="data", cluster_secret="a secret of the test" * 2)
    store, journal, used = _open_files(machine.disk, config, any_id=False, new_id=str, now_ms=0)
    assert used.join == tuple(founding_cluster.world.addresses[n] for n in (1, 2)), (
        "it finds its cluster"
    )
    journal.close()
    store.abandon()
    machine.disk.remove("data/brokers")
    with pytest.raises(DataDirectoryError, match=r"in cluster .* addresses .* are lost"):
        _open_files(machine.disk, config, any_id=False, new_id=str, now_ms=0)
    founding_cluster.start(3)


def test_brokers_with_other_voters_refuse_each_other_and_found_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def start(machine: BrokerMachine) -> RunningBroker:
        """The third one has a list of its own."""
        config = broker_config(machine)
        chosen = config.voters[2:] if machine.broker_id == 3 else config.voters
        return await start_broker(machine, config=replace(config, voters=chosen))

    with caplog.at_level(logging.ERROR), World(8, brokers=3, make_broker=start) as world:
        for machine in world.brokers[:2]:
            machine.start()
        world.run_for(2)
        world.boot()
        world.run_for(20)
        nodes = [node_of(machine) for machine in world.brokers]
        assert [node.machine.cluster_id for node in nodes if node] == ["", "", ""]
    said = [record.getMessage() for record in caplog.records]
    for other in (1, 3):  # each of the two, of the other one
        start = f"brokers cannot work together: peer={other}"
        words = "broker 1 at broker-1:9100 has the voters 1,2,3, but broker 3 has 3"
        assert any(line.startswith(start) and words in line for line in said)


def test_founders_that_know_a_member_create_nothing() -> None:
    """All of them lost their disks. A broker that joined connects to the first one in time."""
    with growing_world(9, brokers=4) as world:
        founding_cluster = Cluster(world)
        founding_cluster.join(4)
        founding_cluster.lose(1, 2, 3)
        first = world.brokers[0]
        first.is_kept_down = False
        first.start()
        founding_cluster.until(lambda: any(peer.cluster_id for peer in known_to(first)))
        for machine in world.brokers[1:3]:
            machine.is_kept_down = False
            machine.start()
        world.run_for(5)
        assert [m.broker is not None for m in world.brokers] == [True] * 4
        known = founding_cluster.node(4).machine.cluster_id
        assert {founding_cluster.node(n).machine.cluster_id for n in (1, 2, 3)} <= {"", known}


def known_to(machine: BrokerMachine) -> list[PeerIdentity]:
    node = node_of(machine)
    return [] if node is None else node._registry.all_latest()


# -- joining ---------------------------------------------------------------------------------------
#
# A broker joins a running cluster, by the addresses of some of its brokers, and finds it again.


@pytest.fixture
def joining_cluster() -> Iterator[Cluster]:
    with growing_world(11, brokers=5) as world:
        yield Cluster(world)


def test_it_gets_the_state_registers_stores_and_serves(joining_cluster: Cluster) -> None:
    joining_cluster.create(copies=3)
    joining_cluster.join(4)
    node = joining_cluster.node(4)
    assert not node.subscription.has_vote, "three vote in a cluster of four"
    assert node.machine.known() == joining_cluster.node(1).machine.known()
    joining_cluster.until(lambda: node._store.identity.cluster_id == node.machine.cluster_id)
    joining_cluster.until(lambda: len(joining_cluster.node(2).other_brokers()) == 3)
    topic = node.machine.topics["t"]
    joining_cluster.until(lambda: node.partitions.state_of(topic.id, 0) is not None)
    joining_cluster.send(b"a")
    assert joining_cluster.read(1) == [b"a"]


def test_it_returns_without_being_given_any_address(joining_cluster: Cluster) -> None:
    """By the addresses that it has saved: ``joining_config`` gives none at every other start."""
    joining_cluster.join(4)
    joining_cluster.until(lambda: len(joining_cluster.node(4)._addresses._saved) == 4)
    joining_cluster.stop(4)
    joining_cluster.start(4)
    machine = joining_cluster.world.brokers[3]
    assert machine.boots == 2
    joining_cluster.until(lambda: joining_cluster.is_in(4))


def test_the_cluster_grows_to_five_voters_and_all_return(joining_cluster: Cluster) -> None:
    joining_cluster.create(copies=3)
    joining_cluster.join(4, 5)
    joining_cluster.until(
        lambda: all(len(joining_cluster.node(n).subscription.voters) == 5 for n in range(1, 6))
    )
    joining_cluster.send(b"a")
    for number in range(1, 6):
        joining_cluster.stop(number)
    joining_cluster.start(1, 2, 3)
    joining_cluster.until(lambda: all(map(joining_cluster.is_in, (1, 2, 3))))
    assert len(joining_cluster.node(1).subscription.voters) == 5, (
        "the journal counts, not the setting"
    )
    assert joining_cluster.read(1) == [b"a"]


def test_a_voter_that_joined_returns_with_another_address(joining_cluster: Cluster) -> None:
    """It cannot register before the others reach it: they answer over connections of their own."""
    joining_cluster.join(4, 5)
    joining_cluster.until(lambda: len(joining_cluster.node(4).subscription.voters) == 5)
    joining_cluster.stop(4)
    machine = joining_cluster.world.brokers[3]
    machine.address = Address(machine.name, machine.address.port + 1)
    joining_cluster.start(4)
    joining_cluster.until(lambda: joining_cluster.is_in(4))
    joining_cluster.until(
        lambda: joining_cluster.node(1).links.status()[2].address == machine.address
    )
    assert joining_cluster.node(4).subscription.has_vote


def test_a_broker_that_lost_its_disk_joins_again(joining_cluster: Cluster) -> None:
    joining_cluster.join(4, 5)
    joining_cluster.until(lambda: len(joining_cluster.node(4).subscription.voters) == 5)
    before = joining_cluster.node(4).me.directory_id
    joining_cluster.lose(4)
    joining_cluster.start(4)
    joining_cluster.until(lambda: joining_cluster.is_in(4))
    after = joining_cluster.node(4).me.directory_id
    assert after != before
    joining_cluster.until(lambda: joining_cluster.node(1).subscription.voters.get(4) == after)


def refusals(caplog: pytest.LogCaptureFixture, seconds: float, **settings: object) -> list[str]:
    """What is logged when a fourth broker with other settings tries to join."""

    async def start(machine: BrokerMachine) -> RunningBroker:
        config = joining_config(machine, broker_config(machine), 3)
        if machine.broker_id == 4:
            config = replace(config, **settings)  # type: ignore[arg-type]
        return await start_broker(machine, config=config)

    with caplog.at_level(logging.WARNING), World(12, brokers=4, make_broker=start) as world:
        late = world.brokers[3]
        late.is_outside = late.is_kept_down = True
        joining_cluster = Cluster(world)
        late.is_outside = late.is_kept_down = False
        late.start()
        world.run_for(seconds)
        node = node_of(late)
        assert node is not None
        assert node.machine.version == 0
        assert 4 not in joining_cluster.node(1).machine.brokers
        assert not node._topics.is_complete
    return [record.getMessage() for record in caplog.records]


def test_another_secret_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    said = refusals(caplog, 5, cluster_secret="something else entirely")
    assert any("no broker of the cluster found" in line and "secret" in line for line in said)


def test_an_id_in_use_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    said = refusals(caplog, 5, id=2)
    assert any("id 2 is in use" in line or "have the ID 2" in line for line in said)


def test_addresses_without_a_broker_are_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    said = refusals(caplog, 5, join=(Address("broker-9", 9100),))
    found = [line for line in said if "no broker of the cluster found" in line]
    assert len(found) == 1, "the same reason is logged once"


def test_a_directory_of_another_cluster_is_refused(
    joining_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    joining_cluster.join(4)
    joining_cluster.until(lambda: bool(joining_cluster.node(4)._store.identity.cluster_id))
    joining_cluster.stop(4)
    disk = joining_cluster.world.brokers[3].disk
    with growing_world(13, brokers=4) as world, caplog.at_level(logging.ERROR):
        other = Cluster(world)
        world.brokers[3].disk = disk
        world.brokers[3].is_outside = world.brokers[3].is_kept_down = False
        world.brokers[3].start()
        world.run_for(5)
        assert 4 not in other.node(1).machine.brokers
    assert any("belongs to cluster" in record.getMessage() for record in caplog.records)


# -- liveness --------------------------------------------------------------------------------------
#
# Who is there: links, fences, and how long a short break is forgiven.


ME = Incarnation("disk-1", 4)
TWO = Incarnation("disk-2", 7)


class LivenessScene:
    def __init__(self) -> None:
        self.now = 100.0
        self.fenced: set[int] = set()
        self.heard: set[int] = set()
        self.liveness = Liveness(
            1,
            ME,
            now=lambda: self.now,
            is_fenced=lambda broker: broker in self.fenced,
            is_heard=lambda broker: broker in self.heard,
        )


@pytest.fixture
def s() -> LivenessScene:
    return LivenessScene()


def test_this_broker_is_there(s: LivenessScene) -> None:
    assert s.liveness.is_linked(1)
    assert s.liveness.is_live(1)
    assert s.liveness.silent_seconds(1) == 0
    assert (s.liveness.directory_of(1), s.liveness.boot_of(1)) == ("disk-1", 4)


def test_who_is_heard_is_the_links_word_but_for_itself(s: LivenessScene) -> None:
    s.heard = {3}
    assert [s.liveness.is_heard(broker) for broker in (1, 2, 3)] == [True, False, True]


def test_a_fenced_broker_is_not_live_however_near_it_is(s: LivenessScene) -> None:
    s.liveness.link_up(2, TWO)
    s.fenced = {1, 2}
    assert not s.liveness.is_live(1)
    assert not s.liveness.is_live(2)
    assert s.liveness.is_linked(2)


def test_a_broker_never_seen_has_a_while_from_the_start(s: LivenessScene) -> None:
    assert s.liveness.is_live(2)
    assert not s.liveness.is_linked(2)
    assert s.liveness.incarnation_of(2) is None
    assert s.liveness.directory_of(2) is None
    assert s.liveness.boot_of(2) is None
    s.now += START_GRACE_SECONDS
    assert not s.liveness.is_live(2)
    assert s.liveness.silent_seconds(2) == START_GRACE_SECONDS


def test_a_short_break_is_forgiven_and_a_long_one_is_not(s: LivenessScene) -> None:
    s.liveness.link_up(2, TWO)
    s.now += 50
    s.liveness.link_down(2)
    s.now += GRACE_SECONDS * 0.9
    assert s.liveness.is_live(2)
    s.now += GRACE_SECONDS
    assert not s.liveness.is_live(2)
    assert s.liveness.silent_seconds(2) == pytest.approx(GRACE_SECONDS * 1.9)
    assert s.liveness.incarnation_of(2) == TWO, "it is remembered who it was"


def test_silence_begins_with_the_first_of_two_downs(s: LivenessScene) -> None:
    s.liveness.link_up(2, TWO)
    s.liveness.link_down(2)
    s.now += 5
    s.liveness.link_down(2)
    assert s.liveness.silent_seconds(2) == 5
    s.liveness.link_up(2, Incarnation("disk-2", 8))
    assert s.liveness.silent_seconds(2) == 0
    assert s.liveness.boot_of(2) == 8
    s.now += 1
    s.liveness.link_down(2)
    assert s.liveness.silent_seconds(2) == 0


def test_a_broker_that_is_expected_has_time_to_connect(s: LivenessScene) -> None:
    s.now += 5
    s.liveness.expect([2, 4])
    assert (s.liveness.silent_seconds(4), s.liveness.silent_seconds(3)) == (0, 5)
    s.now += 2
    s.liveness.expect([4])
    assert s.liveness.silent_seconds(4) == 2


# -- subscription ----------------------------------------------------------------------------------
#
# The cluster state on a broker without a vote: the newest, soon, and its commands to the group.


@pytest.fixture
def subscription_cluster() -> Iterator[Cluster]:
    with growing_world(31, brokers=4) as world:
        subscription_cluster = Cluster(world)
        subscription_cluster.join(4)
        yield subscription_cluster


def known(subscription_cluster: Cluster) -> bool:
    """Whether the broker without a vote knows what a voter knows."""
    return (
        subscription_cluster.node(4).machine.known() == subscription_cluster.node(1).machine.known()
    )


def test_a_change_is_known_without_a_vote(subscription_cluster: Cluster) -> None:
    subscription_cluster.create()
    subscription_cluster.until(lambda: known(subscription_cluster))
    began = subscription_cluster.world.time.now
    on(subscription_cluster, 1, subscription_cluster.node(1).topics.propose(ReserveBrokerId(id=5)))
    subscription_cluster.until(lambda: known(subscription_cluster))
    assert subscription_cluster.world.time.now - began < 1.0


def test_a_broker_without_a_vote_changes_topics_and_knows_who_leads(
    subscription_cluster: Cluster,
) -> None:
    topics = [NewTopic(name, partitions=1) for name in ("a", "b")]
    subscription_cluster.admin(lambda admin: admin.create_topics(topics), broker=4)
    subscription_cluster.admin(lambda admin: admin.delete_topics(["a"]), broker=4)
    assert list(subscription_cluster.node(4).machine.topics) == ["b"]
    subscription_cluster.until(lambda: known(subscription_cluster))
    subscription = subscription_cluster.node(4).subscription
    subscription_cluster.until(
        lambda: subscription.leader == subscription_cluster.node(1).subscription.leader is not None
    )
    assert subscription.voters == subscription_cluster.node(1).subscription.voters


def test_with_another_leader_it_asks_another(subscription_cluster: Cluster) -> None:
    leader = subscription_cluster.node(4).subscription.leader
    assert leader is not None
    subscription_cluster.stop(leader)
    subscription_cluster.create(copies=2)
    other = leader % 3 + 1
    subscription_cluster.until(
        lambda: (
            subscription_cluster.node(4).machine.version
            == subscription_cluster.node(other).machine.version
        )
    )
    assert subscription_cluster.node(4).subscription.leader != leader


def test_many_changes_come_as_a_state(
    subscription_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLUSTER_CHANGES_KEPT_MAX", 1)
    subscription_cluster.stop(4)
    topics = [NewTopic(name, partitions=1) for name in ("a", "b", "c")]
    subscription_cluster.admin(lambda admin: admin.create_topics(topics), broker=1)
    subscription_cluster.start(4)
    subscription_cluster.until(lambda: subscription_cluster.is_in(4))
    assert sorted(subscription_cluster.node(4).machine.topics) == ["a", "b", "c"]


def test_only_brokers_with_a_vote_give_the_state_and_take_commands(
    subscription_cluster: Cluster,
) -> None:
    subscription = subscription_cluster.node(4).subscription
    response, state = on(
        subscription_cluster, 4, subscription.respond(ClusterStateRequest(version=0, wait_ms=0))
    )
    assert (response.has_vote, response.commands, state) == (False, [], [])
    with pytest.raises(ClusterNotReadyError, match="broker 4 has no vote"):
        on(subscription_cluster, 4, subscription.propose(ProposeRequest(command=b"x")))


def test_a_broker_with_a_vote_takes_no_state(subscription_cluster: Cluster) -> None:
    """It was asked for before the broker had one."""
    node = subscription_cluster.node(1)
    before = node.machine.known()
    request = ClusterStateRequest(version=node.machine.version, wait_ms=0)
    later = recovered(before, recovery="r", lost=[], unseen=5)
    response = ClusterStateResponse(
        cluster_id=node.machine.cluster_id, version=node.machine.version + 5, has_vote=True
    )
    node.subscription._take(request, response, later)
    assert node.machine.known() == before


def test_a_broker_that_stops_lets_no_request_wait(subscription_cluster: Cluster) -> None:
    began = subscription_cluster.world.time.now
    for number in (1, 2, 3):
        machine = subscription_cluster.world.brokers[number - 1]
        machine.is_kept_down = True
        machine.stop()
    subscription_cluster.until(
        lambda: not any(m.is_running for m in subscription_cluster.world.brokers[:3])
    )
    assert subscription_cluster.world.time.now - began < 3.0
