"""Upgrades: of the protocol of a cluster, and of data directories of earlier releases."""

from __future__ import annotations

import asyncio
import errno
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace as dataclass_replace
from functools import partial
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from raftlog import limits
from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.aio.clients import AsyncProducer
from raftlog.config import Address, BrokerConfig, Voter
from raftlog.consumer_groups import shard
from raftlog.errors import (
    DataDirectoryError,
    DiskFullError,
    DiskHungError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetOutOfRangeError,
    RaftlogError,
    RefusedError,
)
from raftlog.limits import CLOCK_SETTLE_S
from raftlog.protocol import api as apis
from raftlog.protocol.records import FetchPartition, FetchRequest, ListOffsetsRequest, OffsetQuery
from raftlog.protocol.security import PEER_PROTOCOL_VERSION
from raftlog.record import decode_lists, split
from raftlog.replication.cluster_commands import (
    CreateAcls,
    CreateTopic,
    Move,
    Reassign,
    SetReplicas,
    founding_state,
)
from raftlog.replication.cluster_state import ClusterMachine, Done
from raftlog.replication.partition_state import (
    Accepted,
    ChangeIsr,
    ChangeReplicas,
    Elect,
    PartitionState,
    apply,
)
from raftlog.security.acl import Acl
from raftlog.server.broker import _open_files
from raftlog.server.cluster import migration
from raftlog.server.cluster.elections import HostedPartition, Stage, raft_id
from raftlog.server.cluster.membership import CLUSTER_GROUP, Incarnation, Liveness
from raftlog.server.cluster.replicas import RoleManager, next_step_down, successor
from raftlog.server.disks import FULL_SECONDS
from raftlog.server.partition import Partition
from raftlog.storage import Log, Store, state_files
from raftlog.storage.state_files import read_clock
from raftlog.testing.disk import FOREVER, Fault, SimDisk
from raftlog.testing.simulator.world import (
    CLUSTER_SECRET,
    DATA_DIRECTORY,
    BrokerMachine,
    ClientMachine,
    RunningBroker,
    World,
    start_broker,
)
from raftlog.types import NewTopic, TopicPartition
from tests.replication.samples import View
from tests.running import runs
from tests.server.cluster.acting import REPLACEMENT_S, Acting, FakeEffects, leading
from tests.server.cluster.fake import (
    DISKS,
    TOPIC_ID,
    FakeSurveys,
    Scene,
    append,
    play,
    state_of,
    write,
)
from tests.server.cluster.simulated import Cluster, growing_world, on, operations
from tests.server.consumer_groups.simulated import GroupCluster
from tests.storage.crashes import sweep
from tests.storage.logs import append as append_to_log
from tests.storage.logs import stored

# -- protocols -------------------------------------------------------------------------------------

# Clusters with a broker of an earlier release, and the upgrade of their protocol.


@pytest.fixture
def earlier() -> set[int]:
    """IDs of brokers that report the first version of the protocol; the test changes it."""
    return {3}


@pytest.fixture
def cluster(earlier: set[int]) -> Iterator[Cluster]:
    async def start(machine: BrokerMachine) -> RunningBroker:
        version = 1 if machine.broker_id in earlier else PEER_PROTOCOL_VERSION
        return await start_broker(machine, peer_protocol=version)

    with World(3, brokers=3, make_broker=start) as world:
        yield Cluster(world)


def create(cluster: Cluster, name: str) -> None:
    cluster.admin(lambda admin: admin.create_topics([NewTopic(name, 6, 3)]))


def names_leaders(cluster: Cluster, name: str) -> set[bool]:
    """Whether the creation named the first leaders, by the state of each broker."""
    return {bool(cluster.node(n).machine.topics[name].birth(0).boots) for n in (1, 2, 3)}


def required(cluster: Cluster) -> set[int]:
    return {cluster.node(n).machine.peer_protocol for n in (1, 2, 3)}


def upgrade(cluster: Cluster, broker: int = 1) -> int:
    return on(cluster, broker, operations(cluster, broker).upgrade_features()).peer_protocol  # type: ignore[no-any-return]


def restart(cluster: Cluster, broker: int) -> None:
    cluster.stop(broker)
    cluster.start(broker)


def test_first_leaders_are_named_once_all_brokers_support_it(
    cluster: Cluster, earlier: set[int]
) -> None:
    create(cluster, "t")
    assert required(cluster) == {1}
    assert names_leaders(cluster, "t") == {False}
    with pytest.raises(RefusedError, match="broker 3 supports version 1"):
        upgrade(cluster)

    earlier.clear()
    cluster.stop(3)
    with pytest.raises(RefusedError, match=r"brokers \[3\] are not connected"):
        upgrade(cluster)
    cluster.start(3)
    cluster.until(lambda: cluster.node(3).membership.is_in)
    cluster.until(lambda: cluster.node(1).links.is_up(3))
    brokers = cluster.node(1).machine._records.brokers
    held = brokers[3]
    brokers[3] = replace(held, boot=held.boot - 1)
    with pytest.raises(RefusedError, match="broker 3 has not registered yet"):
        upgrade(cluster)
    brokers[3] = held
    assert upgrade(cluster) == PEER_PROTOCOL_VERSION
    assert upgrade(cluster, 2) == PEER_PROTOCOL_VERSION, "it can be repeated"
    cluster.until(lambda: required(cluster) == {PEER_PROTOCOL_VERSION})
    create(cluster, "u")
    assert names_leaders(cluster, "u") == {True}
    assert names_leaders(cluster, "t") == {False}

    earlier.add(3)
    restart(cluster, 3)
    cluster.world.run_for(5)
    assert not any(cluster.node(n).links.is_up(3) for n in (1, 2)), "it would misread the state"
    assert not cluster.node(3).membership.is_in


def test_a_broker_of_an_earlier_release_is_disconnected_by_the_upgrade(
    cluster: Cluster, earlier: set[int]
) -> None:
    """As it happens if the command is committed late: after the start of such a broker."""
    create(cluster, "t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raftlog.server.cluster.operations.ClusterOperations._check_peers", quiet)
        upgrade(cluster)
    cluster.until(lambda: not any(cluster.node(n).links.is_up(3) for n in (1, 2)), limit_s=1)


def quiet(_operations: object) -> None:
    """Check nothing."""


# -- cut off leaders -------------------------------------------------------------------------------
#
# Leaders that are cut off or die, and what clients may be told after. In a simulated world.


@pytest.fixture
def cut_off_leaders_cluster() -> Iterator[Cluster]:
    with World(11, brokers=3) as world:
        yield Cluster(world)


def ask_once(cut_off_leaders_cluster: Cluster, number: int, at: str | int) -> Any:
    """What that very broker answers about ``t:0``, or its error."""
    address = cut_off_leaders_cluster.world.brokers[number - 1].address
    query = OffsetQuery(topic="t", partition=0, at=at, leader_epoch=-1)  # type: ignore[arg-type]

    async def run(machine: ClientMachine) -> Any:
        async with AsyncAdmin(bootstrap=str(address), host=machine.host()) as admin:
            connection = await admin._cluster.connection_to(address)
            asking = connection.start(
                apis.LIST_OFFSETS, ListOffsetsRequest(queries=[query]), timeout_ms=20_000
            )
            (answer,) = (await asking).message.answers
            return answer.offset if answer.failure is None else answer.failure.to_error()

    return cut_off_leaders_cluster.client(run)


def fetch_once(cut_off_leaders_cluster: Cluster, number: int, offset: int) -> RaftlogError | None:
    """The error of that very broker when a client fetches from ``offset`` of ``t:0``."""
    address = cut_off_leaders_cluster.world.brokers[number - 1].address
    part = FetchPartition(topic="t", partition=0, offset=offset, leader_epoch=-1, bytes_max=1_000)
    fetch = FetchRequest(wait_ms_max=0, bytes_min=0, bytes_max=1_000, partitions=[part])

    async def run(machine: ClientMachine) -> RaftlogError | None:
        async with AsyncAdmin(bootstrap=str(address), host=machine.host()) as admin:
            connection = await admin._cluster.connection_to(address)
            answer = await connection.start(apis.FETCH, fetch, timeout_ms=20_000)
            failures = [part.failure for part in answer.message.partitions if part.failure]
            return failures[0].to_error() if failures else None

    return cut_off_leaders_cluster.client(run)


def alone_in_sync(cut_off_leaders_cluster: Cluster) -> tuple[int, int, int]:
    """A leader that is the whole ISR, the member of the ELR, which is down, and the witness."""
    topic = NewTopic("t", 1, 2, {"min.insync.replicas": "2"})
    cut_off_leaders_cluster.admin(lambda admin: admin.create_topics([topic]))
    leader = cut_off_leaders_cluster.leader(1)
    (member,) = set(cut_off_leaders_cluster.state(1).replicas) - {leader}
    (witness,) = cut_off_leaders_cluster.state(1).witnesses
    cut_off_leaders_cluster.in_sync(leader, {leader, member})
    cut_off_leaders_cluster.send(b"a", b"b", b"c")
    cut_off_leaders_cluster.stop(member)
    cut_off_leaders_cluster.until(
        lambda: set(cut_off_leaders_cluster.state(leader).elr) == {member}
    )
    return leader, member, witness


def test_a_leader_alone_in_sync_answers_while_a_majority_hears_it(
    cut_off_leaders_cluster: Cluster,
) -> None:
    """The member of the ELR cannot say whether it follows; the group says who leads."""
    leader, _, _ = alone_in_sync(cut_off_leaders_cluster)
    assert ask_once(cut_off_leaders_cluster, leader, "latest") == 3
    assert ask_once(cut_off_leaders_cluster, leader, 0) == 0


def test_a_leader_alone_in_sync_that_is_cut_off_names_no_end(
    cut_off_leaders_cluster: Cluster,
) -> None:
    """Its successor comes from the ELR, and has committed more."""
    old, new, witness = alone_in_sync(cut_off_leaders_cluster)
    for other in (new, witness):
        cut_off_leaders_cluster.world.network.cut(f"broker-{old}", f"broker-{other}")
    cut_off_leaders_cluster.start(new)
    cut_off_leaders_cluster.until(lambda: cut_off_leaders_cluster.state(witness).leader == new)
    lower = {"min.insync.replicas": "1"}
    cut_off_leaders_cluster.admin(lambda admin: admin.alter_topic("t", lower), broker=new)
    cut_off_leaders_cluster.send(b"d")
    assert ask_once(cut_off_leaders_cluster, new, "latest") == 4
    answers = [
        ask_once(cut_off_leaders_cluster, old, at) for at in ("latest", "earliest", 0, 1 << 41)
    ]
    assert all(isinstance(answer, RaftlogError) for answer in answers), answers
    # A consumer that has read the record at 3 from the new leader, and knows the old one still.
    assert isinstance(fetch_once(cut_off_leaders_cluster, old, 4), LeaderNotAvailableError)
    assert isinstance(fetch_once(cut_off_leaders_cluster, new, 5), OffsetOutOfRangeError)
    cut_off_leaders_cluster.world.heal()
    cut_off_leaders_cluster.in_sync(new, {old, new})


def test_a_damaged_copy_names_no_end(cut_off_leaders_cluster: Cluster) -> None:
    """What is good of it is read until another broker leads, which may have more."""
    leader, _, _ = alone_in_sync(cut_off_leaders_cluster)
    topic = cut_off_leaders_cluster.node(leader).machine.topics["t"]
    host = cut_off_leaders_cluster.node(leader).partitions.hosted[raft_id(topic.id, 0)].host
    assert host is not None
    host.log.note_damage("found by a test", offset=1)
    cut_off_leaders_cluster.until(lambda: host.leadership is None)
    assert fetch_once(cut_off_leaders_cluster, leader, 0) is None
    for beyond in (4, 1 << 41):
        assert isinstance(fetch_once(cut_off_leaders_cluster, leader, beyond), NotLeaderError)


def test_a_leader_that_only_the_arbiter_reaches_is_followed_by_one_that_can_commit() -> None:
    """Its link to the broker that decides who leads is up, and all others are down: it is there,
    and nothing could be committed for as long as that lasts.
    """
    with World(12, brokers=5) as world:
        cut_off_leaders_cluster = Cluster(world)
        cut_off_leaders_cluster.create(partitions=12)
        ids = range(1, 6)
        cut_off_leaders_cluster.until(
            lambda: all(cut_off_leaders_cluster.leader(1, p) for p in range(12))
        )
        topic = cut_off_leaders_cluster.node(1).machine.topics["t"]
        controller = next(
            n for n in ids if cut_off_leaders_cluster.node(n).plane.leads(CLUSTER_GROUP)
        )
        plane = cut_off_leaders_cluster.node(controller).plane
        chosen = [
            (p, raft_id(topic.id, p))
            for p in range(12)
            if controller in cut_off_leaders_cluster.state(1, p).witnesses
        ]
        cut_off_leaders_cluster.until(lambda: any(plane.leads(group) for _, group in chosen))
        p, group = next((p, group) for p, group in chosen if plane.leads(group))
        leader = cut_off_leaders_cluster.leader(1, p)
        for other in set(ids) - {controller, leader}:
            world.network.cut(f"broker-{leader}", f"broker-{other}")
        cut_off_leaders_cluster.until(
            lambda: set(cut_off_leaders_cluster.state(controller, p).isr) == {leader}
        )
        assert plane.leads(group)
        assert plane.leads(CLUSTER_GROUP)
        cut_off_leaders_cluster.until(
            lambda: leader not in cut_off_leaders_cluster.state(controller, p).isr
        )
        cut_off_leaders_cluster.until(
            lambda: len(cut_off_leaders_cluster.state(controller, p).isr) == 2
        )


def delete(cut_off_leaders_cluster: Cluster, before: int) -> int:
    deleting = {TopicPartition("t", 0): before}
    found = cut_off_leaders_cluster.admin(lambda admin: admin.delete_records(deleting))
    return found[TopicPartition("t", 0)]


@pytest.mark.parametrize("how", ["kill", "power"])
def test_deleted_records_do_not_return_with_the_next_leader(
    cut_off_leaders_cluster: Cluster, how: str
) -> None:
    cut_off_leaders_cluster.create()
    cut_off_leaders_cluster.send(*(b"%d" % number for number in range(10)))
    leader = cut_off_leaders_cluster.leader(1)
    cut_off_leaders_cluster.in_sync(leader, {1, 2, 3})
    assert delete(cut_off_leaders_cluster, 8) == 8
    machine = cut_off_leaders_cluster.world.brokers[leader - 1]
    machine.is_kept_down = True
    if how == "kill":
        machine.kill()
    else:
        machine.power_cut()
    new = next(number for number in (1, 2, 3) if number != leader)
    cut_off_leaders_cluster.until(
        lambda: cut_off_leaders_cluster.state(new).leader not in (None, leader)
    )
    assert cut_off_leaders_cluster.read(2) == [b"8", b"9"]


def test_a_deletion_goes_on_when_a_replica_that_holds_it_up_has_left(
    cut_off_leaders_cluster: Cluster,
) -> None:
    cut_off_leaders_cluster.create()
    cut_off_leaders_cluster.send(b"a", b"b", b"c")
    leader = cut_off_leaders_cluster.leader(1)
    cut_off_leaders_cluster.in_sync(leader, {1, 2, 3})
    gone = next(number for number in (1, 2, 3) if number != leader)
    cut_off_leaders_cluster.world.brokers[gone - 1].pause()
    assert delete(cut_off_leaders_cluster, 2) == 2
    assert gone not in cut_off_leaders_cluster.state(leader).isr
    cut_off_leaders_cluster.world.brokers[gone - 1].resume()
    cut_off_leaders_cluster.in_sync(leader, {1, 2, 3})
    assert ask_once(cut_off_leaders_cluster, leader, "earliest") == 2


# -- step down -------------------------------------------------------------------------------------
#
# What a broker with a full disk proposes, and that many of them do not pass it round all day.


def step(
    state: PartitionState,
    *,
    me: int = 1,
    live: set[int] = frozenset(DISKS),  # type: ignore[assignment]
    disks: dict[int, str] = DISKS,
) -> Elect | ChangeIsr | None:
    return next_step_down(
        state,
        me,
        View(lambda broker: broker in live, disks.get, lambda broker: 10 + broker),
    )


def test_a_leader_hands_over_to_the_next_that_is_in_sync_and_there() -> None:
    state = state_of(1, 2, 3)
    assert step(state) == Elect(1, 2, "disk-2", 12)
    assert step(state, live={1, 3}) == Elect(1, 3, "disk-3", 13)
    assert step(state, disks={**DISKS, 2: "new"}) == Elect(1, 3, "disk-3", 13)
    assert step(state_of(1, 2, 3, isr=[1, 3])) == Elect(1, 3, "disk-3", 13)
    assert isinstance(apply(state, Elect(1, 2, "disk-2", 12)), Accepted)


def test_in_a_ring_everybody_gets_a_turn() -> None:
    state, led = state_of(1, 2, 3), []
    for _ in range(4):
        assert state.leader is not None
        led.append(state.leader)
        elect = step(state, me=state.leader)
        assert elect is not None
        accepted = apply(state, elect)
        assert isinstance(accepted, Accepted)
        state = accepted.state
    assert led == [1, 2, 3, 1]


def test_a_leader_that_nobody_in_sync_can_replace_stays() -> None:
    assert step(state_of(1, 2, isr=[1])) is None
    assert step(state_of(1, 2), live={1}) is None
    assert step(state_of(1, 2, isr=[1], elr=[2], min_isr=2)) is None


def test_a_leader_hands_over_also_where_too_few_are_left() -> None:
    """Whether they can commit is the next one's to find out: here nobody can."""
    assert step(state_of(1, 2, min_isr=2)) == Elect(1, 2, "disk-2", 12)


def test_a_follower_leaves_and_nothing_is_lost() -> None:
    state = state_of(2, 1, 3, min_isr=2, version=4, epoch=6)
    left = step(state)
    assert left == ChangeIsr(4, 6, {2: "disk-2", 3: "disk-3"}, 2)
    accepted = apply(state, left)
    assert isinstance(accepted, Accepted)
    assert accepted.state.leader_epoch == 6, "its copy is as good as it was"
    assert step(accepted.state) is None


def test_a_follower_without_which_nothing_is_committed_stays() -> None:
    assert step(state_of(2, 1, min_isr=2)) is None


def test_who_is_no_replica_and_who_has_no_leader_waits() -> None:
    assert step(state_of(2, 3, witnesses=[1])) is None
    assert step(state_of(2, 1, 3, leader=2, isr=[2, 3])) is None


def its_successor(
    state: PartitionState, *, live: frozenset[int] = frozenset(DISKS)
) -> ChangeReplicas | None:
    """Of broker 1, with a replication factor of 3."""
    change = successor(state, 1, replication_factor=3, is_live=lambda broker: broker in live)
    assert change is None or isinstance(apply(state, change), Accepted)
    return change


def test_a_witness_takes_the_place_of_one_without_which_too_few_are_in_sync() -> None:
    state = state_of(2, 1, 3, witnesses=[4, 5], isr=[2], elr=[3], min_isr=2)
    assert its_successor(state) == ChangeReplicas(1, (2, 4, 3), (1, 5))
    assert its_successor(state, live=frozenset({1, 2, 3, 5})) == ChangeReplicas(
        1, (2, 5, 3), (4, 1)
    )
    assert its_successor(state, live=frozenset({1, 2, 3})) is None
    assert its_successor(state, live=frozenset({1, 3, 4})) is None, "nobody could be copied from"


def test_one_that_is_eligible_stays_and_a_witness_copies_beside_it() -> None:
    state = state_of(2, 1, 3, witnesses=[4, 5], isr=[2], elr=[1], min_isr=2)
    assert its_successor(state) == ChangeReplicas(1, (2, 1, 3, 4), (5,))


def test_nobody_takes_the_place_of_one_that_is_in_sync_or_not_needed() -> None:
    assert its_successor(state_of(2, 1, 3, witnesses=[4, 5], isr=[2, 1], min_isr=3)) is None
    assert its_successor(state_of(2, 1, 3, witnesses=[4, 5], isr=[2, 3], min_isr=2)) is None


# -- one full disk


FULL = {"create", "write"}


def refuse_room(a: Acting) -> Fault:
    """The disk is full from now on; something was to be appended to what this broker leads."""
    full = Fault(FULL, errno.ENOSPC, times=FOREVER)
    a.s.disk.faults.append(full)
    with pytest.raises(DiskFullError):
        append(a.host, b"a")
    return full


async def wait_and_look(a: Acting, seconds: float = FULL_SECONDS) -> list[Any]:
    """What is proposed then."""
    await asyncio.sleep(seconds)
    a.poll()
    return a.s.plane.commands()


@runs(play)
async def test_a_leader_without_room_hands_over_in_a_while(s: Scene) -> None:
    s.register(1, 2, 3)
    a = leading(s)
    refuse_room(a)
    assert await wait_and_look(a, 0.9 * FULL_SECONDS) == []
    assert await wait_and_look(a) == [Elect(1, 2, DISKS[2], 1)]
    assert await wait_and_look(a) == [Elect(1, 2, DISKS[2], 1)], "one at a time"
    assert a.host.leadership is not None, "it is read from until the other one leads"
    s.plane.agree()
    a.poll()
    assert a.host.follows(2, 2)
    assert await wait_and_look(a) == [], "it is in sync, and nothing new has come"


@runs(play)
async def test_a_leader_that_finds_room_again_stays(s: Scene) -> None:
    s.register(1, 2, 3)
    a = leading(s)
    full = refuse_room(a)
    s.disk.faults.remove(full)
    await asyncio.sleep(0.9 * FULL_SECONDS)
    append(a.host, b"b")
    assert await wait_and_look(a) == []


@runs(play)
async def test_a_leader_without_room_stays_while_nobody_else_could_lead(s: Scene) -> None:
    s.register(1, 2, 3)
    a = leading(s, isr=[1, 2])
    s.lose(2)
    refuse_room(a)
    found = await wait_and_look(a)
    assert not any(isinstance(command, Elect) for command in found)
    s.see(2)
    found = await wait_and_look(a)
    assert any(isinstance(command, Elect) for command in found)


@pytest.mark.parametrize("outcome", ["refuse", "lose"])
@runs(play)
async def test_handing_over_is_tried_again(s: Scene, *, outcome: str) -> None:
    s.register(1, 2, 3)
    a = leading(s)
    refuse_room(a)
    assert len(await wait_and_look(a)) == 1
    getattr(s.plane, outcome)()
    assert await wait_and_look(a, 0.1) == [Elect(1, 2, DISKS[2], 1)]


@runs(play)
async def test_a_follower_without_room_leaves_before_it_lags_for_long(s: Scene) -> None:
    s.register(1, 2, 3)
    a = Acting(s, state_of(2, 1, 3, min_isr=2))
    host = a.poll()
    source = s.log()
    write(source, b"a")
    (copied,) = source.read(start_offset=0, end_offset=1, bytes_max=1_000)
    full = Fault(FULL, errno.ENOSPC, times=FOREVER)
    s.disk.faults.append(full)
    for _ in range(2):
        with pytest.raises(DiskFullError):
            host.append_copied(copied)
        found = await wait_and_look(a, 0.6 * FULL_SECONDS)
    (left,) = found
    assert isinstance(left, ChangeIsr)
    assert (set(left.isr), left.lost) == ({2, 3}, ())
    s.plane.agree()
    assert host.follows(2, 1), "it goes on copying"
    s.disk.faults.remove(full)
    host.append_copied(copied)
    assert not host.disk_problem.is_short
    assert await wait_and_look(a) == []


@runs(play)
async def test_a_follower_without_room_for_long_has_a_witness_take_its_place(s: Scene) -> None:
    """Two of three disks are full, and the third broker can commit nothing alone."""
    s.register(1, 2, 3, 4)
    s.see(4)
    a = Acting(s, state_of(2, 1, 3, witnesses=[4, 5], isr=[2], elr=[3], min_isr=2))
    host = a.poll()
    source = s.log()
    write(source, b"a")
    (copied,) = source.read(start_offset=0, end_offset=1, bytes_max=1_000)
    s.disk.faults.append(Fault(FULL, errno.ENOSPC, times=FOREVER))
    with pytest.raises(DiskFullError):
        host.append_copied(copied)
    assert await wait_and_look(a, 0.9 * REPLACEMENT_S) == []
    s.machine.restore(founding_state("c"))
    s.register(1, 2, 3, 4)
    s.command(CreateTopic(name="t", topic_id=TOPIC_ID, partitions=1, replication_factor=3))
    held = s.machine.topics["t"].partitions[0].replicas
    s.command(Reassign(topic_id=TOPIC_ID, moves=(Move(0, held[::-1], 0),)))
    assert await wait_and_look(a, 0.2 * REPLACEMENT_S) == [], "an operator moves the replicas"
    s.command(Reassign(topic_id=TOPIC_ID, moves=(Move(0, held, 0, held[::-1]),)))
    s.command(SetReplicas(topic_id=TOPIC_ID, partition=0, replicas=held, witnesses=(), version=1))
    assert await wait_and_look(a, 1) == [ChangeReplicas(1, (2, 4, 3), (1, 5))]


# -- disks that hang


@runs(play)
async def test_a_leader_whose_disk_hangs_hands_over_at_once(s: Scene) -> None:
    s.register(1, 2, 3)
    a = leading(s)
    s.services.disk.is_hung = True
    a.poll()
    assert s.plane.commands() == [Elect(1, 2, DISKS[2], 1)], "it has lasted long enough"
    s.plane.agree()
    a.poll()
    assert a.host.follows(2, 2)
    assert await wait_and_look(a, 100) == [], "it lacks nothing, and may stay in sync"


@runs(play)
async def test_a_leader_whose_disk_trails_the_others_hands_over(s: Scene) -> None:
    s.register(1, 2, 3)
    a = leading(s)
    s.workers.hold()
    append(a.host, b"a")
    timeout_s = s.services.disk.timeout_s
    for broker in (2, 3):
        a.host.on_follower(broker, DISKS[broker], fetch_offset=1, durable_offset=1)
    a.poll()
    assert await wait_and_look(a, 0.9 * timeout_s) == []
    assert await wait_and_look(a, 0.2 * timeout_s) == [Elect(1, 2, DISKS[2], 1)]
    s.workers.release()


@runs(play)
async def test_a_follower_whose_disk_hangs_leaves_once_it_lacks_something(s: Scene) -> None:
    s.register(1, 2, 3)
    a = Acting(s, state_of(2, 1, 3, min_isr=2))
    host = a.poll()
    source = s.log()
    write(source, b"a")
    s.services.disk.is_hung = True
    assert await wait_and_look(a, 100) == [], "it has everything"
    s.workers.hold()
    host.append_copied(*source.read(start_offset=0, end_offset=1, bytes_max=1_000))
    a.poll()
    (left,) = s.plane.commands()
    assert isinstance(left, ChangeIsr)
    assert set(left.isr) == {2, 3}
    s.workers.release()


@runs(play)
async def test_a_follower_on_another_disk_appends_nothing_while_that_hangs(s: Scene) -> None:
    """A new segment, or the first one, would hold up the event loop."""
    s.register(1, 2, 3)
    host = Acting(s, state_of(2, 1, 3, min_isr=2)).poll()
    host.log.log_dir.id = "2"
    source = s.log()
    write(source, b"a")
    batches = source.read(start_offset=0, end_offset=1, bytes_max=1_000)
    s.services.disk.is_hung = True
    with pytest.raises(DiskHungError):
        host.append_copied(*batches)
    assert (host.log.log_end_offset, host.disk_problem.is_short) == (0, True)
    s.services.disk.is_hung = False
    host.append_copied(*batches)
    assert host.log.log_end_offset == 1


@runs(play)
async def test_giving_way_for_a_disk_that_hangs_in_vain_is_ever_rarer(s: Scene) -> None:
    s.register(1, 2, 3)
    a = leading(s)
    s.services.disk.is_hung = True
    a.poll()
    s.plane.agree()
    a.poll()
    a.poll(leader=1, leader_epoch=3, leader_boot=1)
    assert a.host.leadership is not None
    proposed = len(s.plane.commands())
    assert len(await wait_and_look(a, 0.9 * FULL_SECONDS)) == proposed, "others hang as well"
    assert len(await wait_and_look(a, 4 * FULL_SECONDS)) == proposed + 1


# -- all disks at once


class Ring:
    """Three brokers with the same group's state, a log each, and one disk that has no room."""

    def __init__(self, s: Scene) -> None:
        s.register(1, 2, 3)
        self.s = s
        shared = s.hosted(state_of(1, 2, 3, min_isr=2))
        self.machine = shared.machine
        self.partitions: dict[int, HostedPartition] = {}
        self.roles: dict[int, RoleManager] = {}
        for broker in (1, 2, 3):
            liveness = Liveness(
                broker,
                Incarnation(DISKS[broker], 1),
                now=s.loop.time,
                is_fenced=lambda _: False,
                is_heard=lambda _: True,
            )
            for other in {1, 2, 3} - {broker}:
                liveness.link_up(other, Incarnation(DISKS[other], 1))
            self.partitions[broker] = HostedPartition(
                "t", shared.topic_id, 0, 3, self.machine, host=s.host(), stage=Stage.CURRENT
            )
            self.roles[broker] = RoleManager(
                broker,
                Incarnation(DISKS[broker], 1),
                lag_max_seconds=10,
                replacement_delay_seconds=REPLACEMENT_S,
                machine=s.machine,
                plane=s.plane.as_plane,
                liveness=liveness,
                services=s.services,
                surveys=FakeSurveys(s),
                effects=FakeEffects(),
            )

    def _fetch(self, host: Partition) -> None:
        """The followers have all that the leader has."""
        end = host.log.log_end_offset
        for other in {1, 2, 3} - {host.leader}:
            assert other is not None
            host.on_follower(other, DISKS[other], fetch_offset=end, durable_offset=end)

    async def run(self, seconds: float) -> list[float]:
        """When leadership moved. A producer tries all the time, and each broker looks."""
        moved = []
        end = self.s.loop.time() + seconds
        while self.s.loop.time() < end:
            epoch = self.machine.state.leader_epoch
            for broker, hosted in self.partitions.items():
                self.roles[broker].poll(hosted)
                host = hosted.host
                if host is not None and host.leadership is not None:
                    self._fetch(host)
                    with suppress(DiskFullError, NotEnoughReplicasError):
                        append(host, b"a")
            while self.s.plane.proposals:
                self.s.plane.agree()
            if self.machine.state.leader_epoch > epoch:
                moved.append(self.s.loop.time())
            await asyncio.sleep(0.1)
        return moved


@runs(play)
async def test_where_all_are_full_leadership_moves_ever_more_seldom(s: Scene) -> None:
    s.disk.faults.append(Fault({"create", "write"}, errno.ENOSPC, times=FOREVER))
    ring = Ring(s)
    moved = await ring.run(60)
    assert 6 <= len(moved) <= 9, "each has tried, more than once, and not all the time"
    rounds = [later - earlier for earlier, later in zip(moved, moved[3:], strict=False)]
    assert min(rounds) > 3.0
    assert 5 <= len(await ring.run(480)) <= 9, "once a minute or so"


@pytest.mark.parametrize("seconds", [30, 300])
@runs(play)
async def test_with_room_again_it_stays_where_it_is(s: Scene, *, seconds: float) -> None:
    full = Fault({"create", "write"}, errno.ENOSPC, times=FOREVER)
    s.disk.faults.append(full)
    ring = Ring(s)
    assert await ring.run(seconds)
    s.disk.faults.remove(full)
    assert await ring.run(120) == []


# -- wrong clocks ----------------------------------------------------------------------------------
#
# Whole clusters whose wall clocks are wrong: what is kept stays, and what expires does expire.


DAY_MS = 86_400_000
HOUR_MS = 3_600_000
CHECK_S = 5.0  # some rounds of retention
CHECK_GROUPS_MS = 2_000


def wrong_clocks_play(test: Callable[[Cluster], None], *, seed: int = 1, brokers: int = 3) -> None:
    starting = partial(start_broker, cleaner_interval_ms=100)
    with World(seed, brokers=brokers, make_broker=starting) as world:
        test(Cluster(world))


def wrong_clocks_create(cluster: Cluster, **config: str) -> None:
    topic = NewTopic("t", 1, 3, {name.replace("_", "."): value for name, value in config.items()})
    cluster.admin(lambda admin: admin.create_topics([topic]))
    cluster.in_sync(1, {1, 2, 3})


def jump(cluster: Cluster, broker: int, by_ms: int) -> None:
    cluster.world.brokers[broker - 1].wall_offset_ms += by_ms


def log_of(cluster: Cluster, number: int, partition: int = 0) -> Log:
    topic = cluster.node(number).machine.topics["t"]
    hosted = cluster.node(number).partitions.find(topic.id, partition)
    assert hosted is not None
    assert hosted.host is not None
    return hosted.host.log


def lead(cluster: Cluster, number: int) -> None:
    if cluster.leader(number) != number:

        async def run(machine: ClientMachine) -> None:
            async with AsyncAdmin(
                cluster.world.bootstrap, cluster_secret=CLUSTER_SECRET, host=machine.host()
            ) as admin:
                await admin.transfer_leader("t", 0, number)

        cluster.client(run)
    cluster.until(lambda: cluster.state(number).leader == number)


def log_starts(cluster: Cluster) -> list[int]:
    return [log_of(cluster, number).log_start_offset for number in (1, 2, 3)]


def test_a_wrong_clock_shows_in_the_clusters_description() -> None:
    def test(cluster: Cluster) -> None:
        wrong_clocks_create(cluster)
        jump(cluster, 2, 8 * DAY_MS)
        cluster.world.run_for(CHECK_S)
        found: dict[int, int] = {}

        async def run(machine: ClientMachine) -> None:
            async with AsyncAdmin(cluster.world.bootstrap, host=machine.host()) as admin:
                for broker in (await admin.describe_cluster()).brokers:
                    found[broker.id] = broker.clock_error_ms

        cluster.client(run)
        assert found[1] == found[3] == 0
        assert abs(found[2] - 8 * DAY_MS) < 60_000

    wrong_clocks_play(test)


@pytest.mark.parametrize("by_ms", [8 * DAY_MS, -10 * DAY_MS])
def test_no_broker_deletes_records_because_one_clock_steps(by_ms: int) -> None:
    """Each in turn, the leader as well; records of the time of the step have their full time."""

    def test(cluster: Cluster) -> None:
        wrong_clocks_create(cluster, segment_bytes="16384")
        for number in (1, 2, 3):
            cluster.send(b"before %d" % number)
            jump(cluster, number, by_ms)
            cluster.send(b"at %d" % number)
            cluster.world.run_for(CHECK_S)
            jump(cluster, number, -by_ms)
            cluster.world.run_for(CHECK_S)
        assert log_starts(cluster) == [0, 0, 0]
        assert len(cluster.read(6)) == 6

    wrong_clocks_play(test)


@pytest.mark.seeds  # ten seconds
def test_of_two_brokers_neither_clock_deletes_records() -> None:
    """The first one alone has a vote in the group of the cluster. Its clock is wrong."""
    with growing_world(1, brokers=2, founders=1) as world:
        cluster = Cluster(world)
        cluster.join(2)
        config = {"retention.ms": str(7 * DAY_MS), "segment.bytes": "16384"}
        cluster.admin(lambda admin: admin.create_topics([NewTopic("t", 2, 2, config)]))
        cluster.in_sync(1, {1, 2})
        led_by_2 = next(number for number in (0, 1) if cluster.leader(1, number) == 2)
        chance = Random(1)
        for _ in range(5):
            values = [chance.randbytes(1_000) for _ in range(20)]
            cluster.send(*values, partition=led_by_2)
        logs = [log_of(cluster, number, led_by_2) for number in (1, 2)]
        assert [log.segment_count > 1 for log in logs] == [True, True]
        jump(cluster, 1, 8 * DAY_MS)
        world.run_for(CLOCK_SETTLE_S + 400)  # and a round of retention
        assert [log.log_start_offset for log in logs] == [0, 0]


def test_no_broker_deletes_records_because_it_starts_with_a_wrong_clock() -> None:
    def test(cluster: Cluster) -> None:
        wrong_clocks_create(cluster)
        cluster.send(b"kept")
        for number in (1, 2, 3):
            cluster.stop(number)
            jump(cluster, number, 8 * DAY_MS)
            cluster.start(number)
            cluster.world.run_for(CHECK_S)
            cluster.in_sync(number, {1, 2, 3})
            lead(cluster, number)
            cluster.world.run_for(CHECK_S)
            jump(cluster, number, -8 * DAY_MS)
        assert log_starts(cluster) == [0, 0, 0]

    wrong_clocks_play(test)


def test_retention_goes_on_while_one_clock_is_behind() -> None:
    def test(cluster: Cluster) -> None:
        wrong_clocks_create(cluster, retention_ms="60000")
        cluster.send(b"expires")
        jump(cluster, cluster.leader(1), -10 * DAY_MS)
        cluster.world.run_for(50)
        assert log_starts(cluster) == [0, 0, 0]
        cluster.world.run_for(40)
        assert log_starts(cluster) == [1, 1, 1]

    wrong_clocks_play(test)


def test_a_start_with_a_clock_behind_is_noted_at_once() -> None:
    """Else the next start takes a clock that has jumped forward, up to the noted time, for right:
    what this start stamped would expire then.
    """
    with World(1, brokers=1) as world:
        cluster = Cluster(world)
        (machine,) = world.brokers
        world.run_for(20)
        noted = read_clock(machine.disk, "data")
        assert noted is not None
        machine.kill()
        machine.wall_offset_ms -= 10 * DAY_MS
        cluster.start(1)
        machine.kill()
        now = read_clock(machine.disk, "data")
        assert now is not None
        assert now < noted - 9 * DAY_MS


def test_a_producer_writes_on_after_its_leaders_clock_was_behind() -> None:
    """Its batches must not look so old that the broker forgets its sequence."""

    def test(cluster: Cluster) -> None:
        wrong_clocks_create(cluster)
        leader = cluster.leader(1)

        async def run(machine: ClientMachine) -> list[int]:
            producer = AsyncProducer(cluster.world.bootstrap, host=machine.host())
            found = []
            for by_ms in (-10 * DAY_MS, 0):
                jump(cluster, leader, by_ms)
                future = await producer.send("t", b"x", partition=0)
                await producer.flush()
                found.append(future.result().offset)
                jump(cluster, leader, -by_ms)
                await asyncio.sleep(CHECK_S)
            await producer.close()
            return found

        assert cluster.client(run) == [0, 1]

    wrong_clocks_play(test)


def test_committed_offsets_stay_when_their_coordinators_clock_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shard, "CHECK_MS_MAX", CHECK_GROUPS_MS)

    def test(cluster: Cluster) -> None:
        assert isinstance(cluster, GroupCluster)
        wrong_clocks_create(cluster)
        cluster.commit(7)
        jump(cluster, cluster.find(), 9 * DAY_MS)
        cluster.world.run_for(3 * CHECK_GROUPS_MS / 1_000)
        assert cluster.committed() == 7

    with World(1, brokers=3) as world:
        test(GroupCluster(world))


def test_a_deleted_key_stays_deleted_when_a_follower_comes_back_an_hour_slow() -> None:
    """It was away while the tombstone came, and while it went again."""

    def test(cluster: Cluster) -> None:
        wrong_clocks_create(
            cluster,
            cleanup_policy="compact",
            segment_ms="100",
            min_cleanable_dirty_ratio="0",
            delete_retention_ms="200",
        )
        send(cluster, (b"k", b"old"), (b"a", b"1"))
        away = next(number for number in (1, 2, 3) if number != cluster.leader(1))
        other = next(number for number in (1, 2, 3) if number != away)
        log_end = log_of(cluster, away).log_end_offset
        cluster.stop(away)
        send(cluster, (b"k", None), (b"b", b"2"))
        send(cluster, (b"c", b"3"))
        cluster.world.run_for(8)
        send(cluster, (b"d", b"4"))
        leader = log_of(cluster, cluster.leader(other))
        end, removed_below = leader.log_end_offset, leader.tombstones_removed_below
        assert removed_below > log_end, "or there is nothing to see here"
        jump(cluster, away, -HOUR_MS)
        cluster.start(away)
        cluster.until(lambda: "t" in cluster.node(away).machine.topics)
        cluster.until(lambda: log_of(cluster, away).log_end_offset == end)
        assert b"k" not in values(cluster, away)

    wrong_clocks_play(test)


def send(cluster: Cluster, *records: tuple[bytes, bytes | None]) -> None:
    async def run(machine: ClientMachine) -> None:
        async with AsyncProducer(cluster.world.bootstrap, host=machine.host()) as producer:
            for key, value in records:
                await producer.send("t", value, key, partition=0)
            await producer.flush()
        await asyncio.sleep(1)  # for the segment to end

    cluster.client(run)


def values(cluster: Cluster, number: int) -> dict[bytes, bytes | None]:
    """The last value of each key in that broker's copy."""
    log = log_of(cluster, number)
    found: dict[bytes, bytes | None] = {}
    parts = log.read(
        start_offset=log.log_start_offset, end_offset=log.log_end_offset, bytes_max=1 << 20
    )
    for part in parts:
        for batch in split(part):
            lists = decode_lists(batch)
            found |= dict(zip([key or b"" for key in lists.keys], lists.values, strict=True))
    return {key: value for key, value in found.items() if value is not None}


# -- data directories ------------------------------------------------------------------------------

# Data directories of earlier releases, in which a broker without `voters` was in no cluster.


CONFIG = BrokerConfig(id=1, data_dir=DATA_DIRECTORY, cluster_secret="a secret of the test" * 2)
ACL = Acl("User:alice", "READ", "TOPIC", "t")
TOPICS = {"t": ("t" * 32, 2, {}), "u": ("u" * 32, 1, {"cleanup.policy": "compact"})}
VALUES = [b"a", b"b", b"c"]
EPOCH = 7  # of the last leader
NOW_MS = 1_700_000_000_000


def legacy(disk: SimDisk) -> str:
    """Write what such a broker left, with two topics, records and an access rule. Returns the ID
    of its cluster.
    """
    store = Store.open(disk, DATA_DIRECTORY, broker_id=1)
    known = store.identity.cluster_id
    store.abandon()
    rows = [
        {"name": name, "id": id_, "partitions": count, "config": config, "hosted": None}
        for name, (id_, count, config) in TOPICS.items()
    ]
    catalog = {"topics": rows, "deleting": [], "dropping": []}
    state_files.write(disk, f"{DATA_DIRECTORY}/catalog", catalog)
    machine = ClusterMachine()
    assert isinstance(machine.apply(CreateAcls(acls=(ACL,)).encode()), Done)
    access = {"state": b64encode(machine.snapshot()).decode()}
    state_files.write(disk, f"{DATA_DIRECTORY}/access", access)
    store = Store.open(disk, DATA_DIRECTORY, broker_id=1)
    log = store.log("t", 0)
    for value in VALUES:
        append_to_log(log, value, leader_epoch=EPOCH)
    log.sync()
    store.close()
    return known


def opened(disk: SimDisk, config: BrokerConfig = CONFIG) -> tuple[Store, ClusterMachine]:
    """The store, and the state of the cluster in the journal, as a broker that starts has them."""
    ids = iter(range(1_000))
    new_id = lambda: f"{next(ids):032x}"  # noqa: E731
    store, journal, _ = _open_files(disk, config, any_id=False, new_id=new_id, now_ms=NOW_MS)
    assert not migration.is_needed(store, disk)
    group, machine = journal.group("cluster"), ClusterMachine()
    assert group.voters == {1: store.identity.directory_id}
    machine.restore(group.base)
    journal.close()
    return store, machine


def test_a_kill_at_any_step_loses_nothing(seed: int) -> None:
    def act(disk: SimDisk, _known: str) -> None:
        opened(disk)[0].close()

    def check(disk: SimDisk, known: str) -> None:
        store, machine = opened(disk)
        assert machine.cluster_id == store.identity.cluster_id == known
        assert {name: (t.id, len(t.partitions)) for name, t in machine.topics.items()} == {
            name: (id_, count) for name, (id_, count, _) in TOPICS.items()
        }
        assert machine.topics["u"].overrides == {"cleanup.policy": "compact"}
        assert machine.acls == {ACL}
        assert machine.version >= NOW_MS
        assert len(stored(store.log("t", 0))) == len(VALUES)
        store.abandon()
        disk.crash()

    sweep(legacy, act, check, seed=seed, chances=1)


@pytest.fixture
def world() -> Iterator[World]:
    with World(3, brokers=1) as world:
        yield world


def test_the_broker_continues_with_its_topics_in_new_epochs(world: World) -> None:
    disk = world.brokers[0].disk
    legacy(disk)
    cluster = Cluster(world)
    assert cluster.leader(1) == 1
    first = cluster.state(1).leader_epoch
    assert first > EPOCH, "else two leaders have written in one epoch (KAFKA-10527)"
    assert cluster.read(len(VALUES)) == VALUES
    cluster.send(b"d")
    cluster.stop(1)
    cluster.start(1)
    assert cluster.leader(1) == 1
    assert cluster.state(1).leader_epoch > first
    assert cluster.read(len(VALUES) + 1) == [*VALUES, b"d"]


@pytest.mark.parametrize("setting", ["voters", "join"])
def test_a_directory_of_one_broker_does_not_become_part_of_a_larger_cluster(setting: str) -> None:
    disk, at = SimDisk(Random(1)), Address("h", 1)
    legacy(disk)
    config = {
        "voters": dataclass_replace(CONFIG, voters=(Voter(1, at), Voter(2, Address("h", 2)))),
        "join": dataclass_replace(CONFIG, join=(at,)),
    }[setting]
    with pytest.raises(DataDirectoryError, match=f"once without `{setting}`"):
        opened(disk, config)
    store, machine = opened(disk, dataclass_replace(CONFIG, voters=(Voter(1, at),)))
    assert set(machine.topics) == set(TOPICS)
    store.close()


def test_what_a_cluster_cannot_have_is_refused_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk(Random(1))
    legacy(disk)
    with monkeypatch.context() as patched:
        patched.setattr(limits, "PARTITIONS_PER_TOPIC_MAX", 1)
        with pytest.raises(DataDirectoryError, match=r"was not changed.*2 partitions.*backup"):
            opened(disk)
    store, machine = opened(disk)
    assert set(machine.topics) == set(TOPICS)
    store.close()
