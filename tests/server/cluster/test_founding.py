"""Founding a cluster: by one broker, once nobody who votes can have been in one; else never."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from random import Random

import msgspec
import pytest

from raftlog.config import Address, BrokerConfig
from raftlog.config.broker import Voter
from raftlog.errors import DataDirectoryError
from raftlog.protocol.peer import PeerIdentity
from raftlog.protocol.security import PEER_PROTOCOL_VERSION
from raftlog.server.broker import _open_files
from raftlog.server.cluster.membership import (
    Await,
    AwaitFounder,
    Found,
    Join,
    describe_step,
    next_step,
)
from raftlog.testing.disk import Fault, SimDisk
from raftlog.testing.simulator.observer import node_of
from raftlog.testing.simulator.world import (
    BrokerMachine,
    RunningBroker,
    World,
    broker_config,
    start_broker,
)
from tests.server.cluster.simulated import Cluster, growing_world

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
def cluster() -> Iterator[Cluster]:
    with World(7, brokers=3) as world:
        yield Cluster(world)


def ids(cluster: Cluster) -> dict[int, str]:
    return {n: cluster.node(n).machine.cluster_id for n in VOTERS}


def test_all_brokers_are_in_one_cluster_and_know_it_after_a_start(cluster: Cluster) -> None:
    before = ids(cluster)
    assert len(set(before.values())) == 1
    for number in VOTERS:
        cluster.stop(number)
    cluster.start(*VOTERS)
    cluster.until(lambda: all(cluster.node(n).membership.is_in for n in VOTERS))
    assert ids(cluster) == before


@pytest.mark.parametrize("lost", list(combinations(VOTERS, 2)))
def test_two_lost_disks_join_the_third_and_found_nothing(
    cluster: Cluster, lost: tuple[int, ...]
) -> None:
    """Both are there without the third one at first, which starts again meanwhile."""
    cluster.create()
    cluster.send(b"a")
    (left,) = set(VOTERS) - set(lost)
    known = cluster.node(left).machine.cluster_id
    cluster.world.brokers[left - 1].is_kept_down = True
    cluster.world.brokers[left - 1].kill()
    cluster.lose(*lost)
    cluster.start(*lost)
    cluster.world.run_for(30)
    for number in lost:
        node = cluster.node(number)
        assert node.machine.cluster_id == ""
        assert f"brokers {left} have not connected" in node._topics.waits_for
    cluster.start(left)
    cluster.until(lambda: set(ids(cluster).values()) == {known})
    cluster.world.run_for(10)
    assert all(cluster.node(n).plane.status("cluster").role == "observer" for n in lost)


def test_a_broker_that_starts_late_is_waited_for() -> None:
    with World(8, brokers=3) as world:
        for machine in world.brokers[:2]:
            machine.start()
        world.run_until(lambda: all(m.broker for m in world.brokers[:2]), limit_s=10)
        world.run_for(30)
        waiting = [node_of(machine) for machine in world.brokers[:2]]
        assert all(node is not None and node.machine.cluster_id == "" for node in waiting)
        cluster = Cluster(world)
        assert len(set(ids(cluster).values())) == 1


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


def test_a_broker_of_a_cluster_does_not_start_alone(cluster: Cluster) -> None:
    """It would serve its copies as a cluster of its own, under the same id."""
    cluster.stop(3)
    machine = cluster.world.brokers[2]
    config = BrokerConfig(id=3, data_dir="data", cluster_secret="a secret of the test" * 2)
    store, journal, used = _open_files(machine.disk, config, any_id=False, new_id=str)
    assert journal is not None
    assert used.join == tuple(cluster.world.addresses[n] for n in (1, 2)), "it finds its cluster"
    journal.close()
    store.abandon()
    machine.disk.remove("data/brokers")
    with pytest.raises(DataDirectoryError, match=r"in cluster .* and `voters` is not set"):
        _open_files(machine.disk, config, any_id=False, new_id=str)
    cluster.start(3)


@pytest.mark.parametrize("topics", [0, 1])
@pytest.mark.parametrize("setting", ["voters", "join", "authentication.required"])
def test_a_directory_of_a_lone_broker_does_not_become_part_of_a_cluster(
    setting: str, topics: int
) -> None:
    """It has no journal. It is not damaged, and wiping it would lose its records."""
    disk, ids = SimDisk(Random(1)), lambda: "id"
    given = BrokerConfig(id=1, data_dir="data", cluster_secret="a secret of the test" * 2)
    store, _, _ = _open_files(disk, given, any_id=False, new_id=ids)
    for number in range(topics):
        store.create_topic(f"t{number}", partitions=1, config={})
    store.close()
    at = Address("h", 1)
    config = {
        "voters": replace(given, voters=(Voter(1, at), Voter(2, Address("h", 2)))),
        "join": replace(given, join=(at,)),
        "authentication.required": replace(given, authentication_required=True),
    }[setting]
    with pytest.raises(DataDirectoryError, match=f"single-broker mode, and `{setting}` is set"):
        _open_files(disk, config, any_id=False, new_id=ids)
    store, _, _ = _open_files(disk, given, any_id=False, new_id=ids)
    assert len(store.topics) == topics
    store.close()


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
        cluster = Cluster(world)
        cluster.join(4)
        cluster.lose(1, 2, 3)
        first = world.brokers[0]
        first.is_kept_down = False
        first.start()
        cluster.until(lambda: any(peer.cluster_id for peer in known_to(first)))
        for machine in world.brokers[1:3]:
            machine.is_kept_down = False
            machine.start()
        world.run_for(5)
        assert [m.broker is not None for m in world.brokers] == [True] * 4
        known = cluster.node(4).machine.cluster_id
        assert {cluster.node(n).machine.cluster_id for n in (1, 2, 3)} <= {"", known}


def known_to(machine: BrokerMachine) -> list[PeerIdentity]:
    node = node_of(machine)
    return [] if node is None else node._registry.all_latest()
