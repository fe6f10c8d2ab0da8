"""Each invariant is seen to be broken when it is, and a disk may be lost only when all is well."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import pytest

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.replication.partition_state import PartitionState, initial_state
from raftlog.replication.placement import Target
from raftlog.server.broker import Broker
from raftlog.server.cluster.controller import PartitionController
from raftlog.storage import Store
from raftlog.testing.disk import SimDisk
from raftlog.testing.simulator import faults
from raftlog.testing.simulator.faults import (
    APART,
    KINDS,
    LAGGING_S_MAX,
    OF_CLUSTERS,
    OF_STORED_BYTES,
    TOPICS,
    WAYS,
    FaultPlan,
    Nemesis,
    lose_files,
    partitions,
)
from raftlog.testing.simulator.history import (
    NEVER_NS,
    History,
    Operation,
    Outcome,
    Poll,
    Seen,
    Send,
)
from raftlog.testing.simulator.observer import (
    INVARIANTS,
    VIOLATIONS_MAX,
    VOTERS_MIN,
    Observer,
    node_of,
)
from raftlog.testing.simulator.operators import (
    REVOKED,
    GrowthPlan,
    _are_all_there,
    still_changing,
    still_moving,
)
from raftlog.testing.simulator.scenario import (
    MOVES_SHARE,
    Copy,
    Ending,
    Scenario,
    Verdict,
    check,
    run,
)
from raftlog.testing.simulator.world import (
    DATA_DIRECTORY,
    BrokerMachine,
    ClientMachine,
    RunningBroker,
    World,
    start_broker,
)
from raftlog.types import NewTopic, Offset, TopicPartition
from tests.server.cluster.simulated import Cluster, growing_world
from tests.storage.directories import FIRST, SimDiskOfTrees, host
from tests.storage.logs import fill
from tests.testing.simulator.machines import broker_of, world_of

P = TopicPartition("events", 0)
DIRECTORIES = {1: "a", 2: "b", 3: "c"}
STATE = replace(initial_state((1, 2, 3), (), DIRECTORIES, 2), leader_epoch=4, version=9)


def copy(
    end: int,
    durable: int | None = None,
    *,
    watermark: int = 0,
    epoch: int = 4,
    chain: int | None = None,
    leads: PartitionState | None = None,
    maximal: PartitionState | None = None,
) -> Any:
    """A host that shows this. ``leads``: the state in which it does."""
    leadership = None
    if leads is not None:
        members = set((maximal or leads).isr.items())
        leadership = SimpleNamespace(state=leads, maximal_isr=lambda: members)
    log = SimpleNamespace(
        config=SimpleNamespace(is_compacted=True),
        log_start_offset=0,
        log_end_offset=end,
        acknowledged_end_offset=end if durable is None else durable,
        last_epoch=epoch,
        damage="",
        doubt="",
        chain_at=lambda _offset: end if chain is None else chain,
    )
    return SimpleNamespace(
        log=log, high_watermark=watermark, leader_epoch=epoch, leadership=leadership
    )


class Watched:
    """Three brokers, as an observer is shown them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.observer = Observer(world, [P])
        self.hosts: dict[int, Any] = {}
        self.history = History(lambda: 0)
        self.history.on_begin, self.history.on_end = self.observer.began, self.observer.ended

    def show(self, broker: int, host: Any = None, state: PartitionState = STATE) -> None:
        """As after an event; a host that was shown before is the same one, with news."""
        known = self.hosts.get(broker)
        if known is not None and host is not None:
            vars(known).update(vars(host))
            host = known
        self.hosts[broker] = host
        node = SimpleNamespace(me=SimpleNamespace(directory_id=DIRECTORIES[broker]))
        machine = self.world.brokers[broker - 1]
        self.observer._observe_replica(machine, cast("Any", node), 0, state, host)

    def restart(self, broker: int) -> None:
        self.world.brokers[broker - 1].boots += 1
        self.hosts[broker] = None

    @property
    def kinds(self) -> list[str]:
        return [violation.kind for violation in self.observer.violations]


@pytest.fixture
def watched() -> Iterator[Watched]:
    with World(0, brokers=3) as world:
        yield Watched(world)


def committed(watched: Watched, offset: int) -> None:
    """Everybody has so much, and broker 1 has committed it."""
    known = watched.observer.committed.get(0, 0)
    watched.show(2, copy(offset, watermark=known))
    watched.show(3, copy(offset, watermark=known))
    watched.show(1, copy(offset, watermark=offset, leads=STATE))
    assert watched.observer.committed == {0: offset}


def test_a_cluster_that_does_what_it_should_breaks_nothing(watched: Watched) -> None:
    committed(watched, 5)
    watched.show(2, copy(7, 5, watermark=5))
    watched.show(1, copy(7, watermark=5, leads=STATE))
    committed(watched, 7)
    watched.restart(1)
    watched.show(1, copy(7, watermark=5))
    next_state = replace(STATE, leader=2, leader_epoch=5, isr={2: "b", 3: "c"}, version=10)
    watched.show(2, copy(7, watermark=7, epoch=5, leads=next_state), next_state)
    watched.show(1, copy(5, watermark=5), next_state)
    watched.show(3, copy(7, watermark=7, epoch=5), next_state)
    assert not watched.kinds
    assert watched.observer.states == {0: next_state}


def test_two_leaders_in_one_epoch(watched: Watched) -> None:
    watched.show(1, copy(0, leads=STATE))
    watched.show(1, copy(1, leads=STATE))
    assert not watched.kinds
    watched.show(2, copy(0, leads=STATE))
    assert watched.kinds == ["TWO-LEADERS"]


def test_a_leader_that_goes_on_leading_after_a_restart(watched: Watched) -> None:
    watched.show(1, copy(0, leads=STATE))
    watched.restart(1)
    watched.show(1, copy(0, leads=STATE))
    assert watched.kinds == ["TWO-LEADERS"]


def test_an_epoch_that_goes_back(watched: Watched) -> None:
    watched.show(1, copy(0, epoch=4))
    watched.show(1, copy(0, epoch=3))
    assert watched.kinds == ["EPOCH-BACK"]


def test_a_state_that_goes_back(watched: Watched) -> None:
    watched.show(1)
    watched.show(1, state=replace(STATE, version=8))
    assert watched.kinds == ["EPOCH-BACK"]
    watched.restart(2)
    watched.show(2, state=replace(STATE, version=7))
    assert len(watched.kinds) == 1, "after a start a broker learns anew"


def test_two_states_of_one_version(watched: Watched) -> None:
    watched.show(1)
    watched.show(2, state=replace(STATE, leader=3))
    assert watched.kinds == ["SPLIT-STATE"]


def test_a_witness_that_leads(watched: Watched) -> None:
    state = replace(STATE, replicas=(2, 3), witnesses=(1,))
    watched.show(1, copy(0, leads=state))
    assert watched.kinds == ["WITNESS-LEADS"]


def test_a_member_that_lacks_what_is_committed(watched: Watched) -> None:
    watched.show(3)
    watched.show(2, copy(5))
    watched.show(1, copy(5, watermark=5, leads=STATE))
    assert watched.kinds == ["INCOMPLETE"]
    assert "broker 3 has 0 of 5" in watched.observer.violations[0].message


@pytest.mark.parametrize("where", ["isr", "elr"])
def test_one_that_lacks_it_and_becomes_a_member(watched: Watched, where: str) -> None:
    state = replace(STATE, isr={1: "a", 2: "b"})
    watched.show(3, copy(4), state)
    watched.show(2, copy(5), state)
    watched.show(1, copy(5, watermark=5, leads=state), state)
    assert not watched.kinds
    members = STATE.isr if where == "isr" else {3: "c"}
    watched.show(2, copy(5), replace(state, **{where: members}, version=10))
    assert watched.kinds == ["INCOMPLETE"]


def test_a_member_that_has_it_only_in_memory(watched: Watched) -> None:
    watched.show(2, copy(5))
    watched.show(3, copy(5, 4))
    watched.show(1, copy(5, watermark=5, leads=STATE))
    assert watched.kinds == ["INCOMPLETE"]


def test_a_member_that_loses_it(watched: Watched) -> None:
    committed(watched, 5)
    watched.restart(3)
    watched.show(3, copy(4))
    assert watched.kinds == ["INCOMPLETE"]


def test_what_was_on_a_disk_that_is_gone_is_not_missed(watched: Watched) -> None:
    committed(watched, 5)
    watched.observer.disk_lost(watched.world.brokers[2])
    watched.restart(3)
    watched.show(3, copy(4))
    assert not watched.kinds


def test_too_few_copies_of_what_is_committed(watched: Watched) -> None:
    state = replace(STATE, isr={1: "a"})
    watched.show(1, copy(5, watermark=5, leads=state), state)
    assert watched.kinds == ["TOO-FEW-COPIES"]


def test_committing_without_a_member(watched: Watched) -> None:
    smaller = replace(STATE, isr={1: "a", 2: "b"}, version=8)
    watched.show(3, copy(5))
    watched.show(2, copy(5))
    watched.show(1, copy(5, watermark=5, leads=smaller))
    assert watched.kinds == ["NOT-MAXIMAL"]


def test_counting_one_that_is_not_a_member_yet_is_right(watched: Watched) -> None:
    smaller = replace(STATE, isr={1: "a", 2: "b"}, version=8)
    watched.show(3, copy(5))
    watched.show(2, copy(5))
    watched.show(1, copy(5, watermark=5, leads=smaller, maximal=STATE))
    assert not watched.kinds


def test_a_watermark_that_no_leader_has_reached(watched: Watched) -> None:
    committed(watched, 5)
    watched.show(2, copy(6, watermark=6))
    assert watched.kinds == ["WATERMARK-AHEAD"]


def test_a_deleted_topic_may_be_lacking(watched: Watched) -> None:
    committed(watched, 5)
    watched.observer._is_deleted = True
    watched.show(2, copy(7, watermark=6))
    watched.show(3, copy(0))
    assert not watched.kinds


def test_a_watermark_that_goes_back(watched: Watched) -> None:
    committed(watched, 5)
    watched.show(2, copy(5, watermark=5))
    watched.show(2, copy(5, watermark=4))
    assert watched.kinds == ["WATERMARK-BACK"]
    watched.show(2)
    watched.hosts[2] = None
    watched.show(2, copy(5, watermark=3))
    assert len(watched.kinds) == 1, "a copy that was opened anew knows what its disk does"


def test_only_a_member_must_not_restart_from_an_empty_log(watched: Watched) -> None:
    """Membership is that of a directory: a restored one has another id."""
    restored = replace(STATE, isr={1: "a", 3: "c"}, elr={2: "former"}, version=10)
    committed(watched, 5)
    watched.observer._durable[0, "former"] = 5
    watched.show(2, copy(5, watermark=5), restored)
    watched.show(2, copy(0), restored)
    assert not watched.kinds
    watched.show(3, copy(5, watermark=5), restored)
    watched.show(3, copy(0), restored)
    assert "WATERMARK-BACK" in watched.kinds


def test_logs_that_differ(watched: Watched) -> None:
    watched.show(1, copy(5, chain=111))
    watched.show(2, copy(5, chain=222, epoch=5))
    assert not watched.kinds, "one of them will be cut"
    watched.show(3, copy(5, chain=333))
    assert watched.kinds == ["CHAIN"]


def test_a_chain_that_is_not_known_says_nothing(watched: Watched) -> None:
    watched.show(1, copy(5, chain=111))
    host = copy(5)
    host.log.chain_at = lambda _offset: None
    watched.show(2, host)
    assert not watched.kinds


def test_what_clients_are_told_too_early(watched: Watched) -> None:
    committed(watched, 5)
    history = History(lambda: 0)
    history.on_end = watched.observer.ended
    for offset in (4, 5):
        send = history.send("p", P, f"p#{offset}", acks=-1, idempotent=True)
        send.offset = offset
        history.end(send, Outcome.OK)
        poll = history.poll("c")
        poll.records = {P: [Seen(4, "x", 4), Seen(offset, "y", 4)]}
        history.end(poll, Outcome.OK)
        if offset == 4:
            assert not watched.kinds
    assert watched.kinds == ["EARLY-ACK", "EARLY-READ"]


def test_an_end_that_was_passed_before_the_question(watched: Watched) -> None:
    history = watched.history
    early = history.end_offsets("c")
    watched.observer.committed[0] = 5
    late = history.end_offsets("c")
    for asking in (early, late):
        asking.ends = {P: 4}
        history.end(asking, Outcome.OK)
    assert watched.kinds == ["STALE-END"]


def test_a_start_that_goes_back(watched: Watched) -> None:
    history = watched.history
    deletion = history.deletion("admin", P, 3)
    early = history.start_offsets("c")
    deletion.start = 3
    history.end(deletion, Outcome.OK)
    late = history.start_offsets("c")
    for asking in (early, late):
        asking.starts = {P: 0}
        history.end(asking, Outcome.OK)
    assert watched.kinds == ["EARLIEST-REGRESSION"]


@pytest.mark.parametrize(
    ("found", "deleted", "is_bad"),
    [(2, 0, False), (0, 0, False), (-1, 0, True), (3, 0, True), (-1, 2, True), (-1, 3, False)],
)
def test_a_time_that_is_not_found(watched: Watched, found: int, deleted: int, is_bad: bool) -> None:
    """The record at offset 2 has it."""
    history = watched.history
    history.deletion("admin", P, deleted)
    asking = history.time_lookup("c", P, 1_000, known=2)
    asking.found = found
    history.end(asking, Outcome.OK)
    assert watched.kinds == ["TIME-MISSED"] * is_bad


def test_what_promises_less_or_failed_may_come_early(watched: Watched) -> None:
    history = History(lambda: 0)
    history.on_end = watched.observer.ended
    for acks, outcome in ((1, Outcome.OK), (-1, Outcome.INFO)):
        send = history.send("p", P, f"p#{acks}", acks=acks, idempotent=False)
        send.offset = 7
        history.end(send, outcome)
    assert not watched.kinds


def test_there_is_an_end_to_what_is_told(watched: Watched) -> None:
    for epoch in range(2 * VIOLATIONS_MAX, 0, -1):
        watched.show(1, copy(0, epoch=epoch))
    assert watched.kinds == ["EPOCH-BACK"] * VIOLATIONS_MAX
    assert set(watched.kinds) <= INVARIANTS.keys()


def test_where_copies_end(watched: Watched) -> None:
    watched.show(1, copy(5))
    watched.show(2, copy(7))
    watched.show(3)
    assert watched.observer.log_ends(0) == {5, 7}
    assert not watched.observer.log_ends(1)
    watched.restart(1)
    assert watched.observer.log_ends(0) == {7}


def test_partitions_of_which_all_that_is_committed_is_outside(watched: Watched) -> None:
    state = replace(STATE, isr={3: "c"}, elr={2: "b"})
    watched.show(1, state=state)
    assert watched.observer.is_lost_to([1]) == {0}
    assert not watched.observer.is_lost_to([1, 2])
    assert not watched.observer.is_lost_to([3])


# -- the budget, on real brokers -------------------------------------------------------------------


async def make_topic(machine: ClientMachine) -> None:
    admin = AsyncAdmin(machine.world.bootstrap, host=machine.host())  # type: ignore[attr-defined]
    machine.own(admin)
    await admin.create_topics([NewTopic("events", 2, 2)])
    await admin.close()


def may_lose_any(observer: Observer, world: World) -> bool:
    return any(observer.may_lose([machine]) for machine in world.brokers)


def test_a_second_cluster_is_noticed() -> None:
    with World(9, brokers=3) as world:
        observer = Observer(world, [P])
        world.boot()
        world.run_for(3)
        assert not observer.violations
        node = node_of(world.brokers[0])
        assert node is not None
        node.machine._records.cluster_id = "another"
        observer._after(world.brokers[0].loop)
        assert {violation.kind for violation in observer.violations} == {"TWO-CLUSTERS"}


def move(machine: BrokerMachine, target: Target | None) -> None:
    """Set where the first partition's replicas move, in the state that one broker knows."""
    node = node_of(machine)
    assert node is not None
    record = node.machine.topics[P.topic]
    first, *others = record.partitions
    node.machine._records.topics[P.topic] = replace(
        record, partitions=(msgspec.structs.replace(first, target=target), *others)
    )


def test_a_disk_may_be_lost_only_when_nothing_else_is_missing() -> None:
    with World(7, brokers=3) as world:
        observer = Observer(world, [P, TopicPartition("events", 1)])
        assert not may_lose_any(observer, world)
        world.boot()
        world.run_for(3)
        admin = world.add_client("admin", make_topic)
        admin.start()
        assert world.run_until(lambda: admin.is_done, limit_s=20)
        world.run_for(5)
        assert all(observer.may_lose([machine]) for machine in world.brokers)
        pairs = combinations(world.brokers, 2)
        kept = [set(observer.states[partition].isr) for partition in (0, 1)]
        assert [observer.may_lose(pair) for pair in pairs] == [
            all(isr - {machine.broker_id for machine in pair} for isr in kept)
            for pair in combinations(world.brokers, 2)
        ]
        assert observer.states.keys() == {0, 1}

        machine = world.brokers[0]
        move(machine, Target((1,), (2,)))
        assert not observer.may_lose([machine]), "it may be the only replica soon"
        assert observer.may_lose([world.brokers[1]])
        move(machine, None)
        machine.wipe()
        observer.disk_lost(machine)
        assert not may_lose_any(observer, world), "it is down"
        assert world.run_until(lambda: machine.broker is not None, limit_s=20)
        assert not may_lose_any(observer, world), "it has nothing yet"
        assert world.run_until(lambda: observer.may_lose([world.brokers[1]]), limit_s=60)
        node = node_of(machine)
        assert node is not None
        for group in ("cluster", *node.partitions.hosted):
            voters = node.plane.status(group).voters
            assert voters[1] == node.me.directory_id
            assert len(voters) >= VOTERS_MIN
        assert not observer.violations


def test_a_voter_of_the_cluster_group_is_left() -> None:
    """The others do not store the state of the cluster, and could not recover it."""
    with growing_world(7, brokers=5) as world:
        observer = Observer(world, [P])
        cluster = Cluster(world)
        cluster.join(4)
        world.run_for(5)
        first, second, third, joined, _outside = world.brokers
        assert cluster.node(4).subscription.voters.keys() == {1, 2, 3}
        assert observer.may_lose([first, second, joined])
        assert not observer.may_lose([first, second, third])


def test_groups_have_enough_voters_once_all_brokers_vote() -> None:
    def make(machine: BrokerMachine) -> Awaitable[RunningBroker]:
        return start_broker(machine, bootstrap_without=() if machine.broker_id == 3 else (3,))

    with World(7, brokers=3, make_broker=make) as world:
        late = world.brokers[2]
        late.is_kept_down = True
        observer = Observer(world, [P])
        world.boot()
        world.run_for(5)
        admin = world.add_client("admin", make_topic)
        admin.start()
        assert world.run_until(lambda: 0 in observer.states, limit_s=20)
        assert observer.has_voters(2)
        assert not observer.has_voters(3)
        late.is_kept_down = False
        late.start_later(0.0)
        assert world.run_until(lambda: observer.has_voters(3), limit_s=30)


def test_a_copy_whose_files_have_vanished_is_missing_though_nobody_has_noticed() -> None:
    with World(3, brokers=3) as world:
        observer = Observer(world, [P])
        world.boot()
        admin = world.add_client("admin", make_topic)
        admin.start()
        assert world.run_until(lambda: 0 in observer.states, limit_s=20)
        assert world.run_until(lambda: may_lose_any(observer, world), limit_s=20)
        machine = world.brokers[max(observer.states[0].isr) - 1]
        observer.files_lost(machine)
        assert not may_lose_any(observer, world)
        machine.kill()
        assert world.run_until(lambda: may_lose_any(observer, world), limit_s=20), "all is there"


def test_watching_changes_nothing() -> None:
    def digest(*, watched: bool) -> str:
        with World(8, brokers=3) as world:
            if watched:
                Observer(world, [P])
            world.boot()
            world.run_for(2)
            return world.time.digest()

    assert digest(watched=True) == digest(watched=False)


# -- faults ----------------------------------------------------------------------------------------
#
# Every kind of fault has an effect, ends by itself, and comes when the seed says so.


OF_FILES: Final = ("vanish", "roll_back", "vanish_at_work", "read_error")


async def connects(machine: ClientMachine) -> None:
    """Stays connected to every broker, and tells it something now and then."""
    loop = asyncio.get_running_loop()
    for address in machine.world.addresses.values():
        await loop.create_connection(asyncio.Protocol, address.host, address.port)
    await asyncio.sleep(1e6)


def stormy(seed: int, plan: FaultPlan, *, brokers: int = 3) -> tuple[World, Nemesis]:
    world = world_of(brokers, seed=seed)
    for number in (1, 2):
        world.add_client(f"client-{number}", connects).start()
    world.run_for(1)
    return world, Nemesis(
        world, plan, may_wipe=lambda lost: lost[0].broker_id == 1 or len(lost) > 1
    )


@pytest.mark.parametrize("kind", [*KINDS, *OF_FILES])
def test_a_kind_of_fault_strikes_and_the_world_recovers(kind: str) -> None:
    world, nemesis = stormy(0, FaultPlan(kinds=(), every_s=1))
    with world:
        for machine in world.brokers:
            machine.disk.make_dirs("data/topics/clicks/id/0")
            machine.disk.write_atomic("data/topics/clicks/id/0/checkpoint", b"x")
            machine.disk.write_atomic("data/topics/clicks/id/0/00.log", bytes(8_192))
        strike = {**KINDS, **APART}[kind]
        struck = [strike(nemesis, machine) for machine in world.brokers]
        assert any(struck), "without an effect it is no fault"
        assert kind not in {"wipe", *OF_FILES} or struck == [True, False, False]
        for machine in world.brokers:
            if machine.broker is not None:
                machine.loop.call_soon(write_some, broker_of(machine))
        world.run_for(20)
        nemesis.stop()
        world.heal()
        assert world.run_until(world.is_up, limit_s=10)
        assert not world.network.cuts
        world.check()


def write_some(broker: object) -> None:
    """Meets the disk's faults."""
    try:
        for _ in range(40):
            broker.write(b"x", sync=True)  # type: ignore[attr-defined]
    except OSError:
        return


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_is_down_or_full_already_is_not_counted(kind: str) -> None:
    world, nemesis = stormy(1, FaultPlan(kinds=(), every_s=1), brokers=1)
    with world:
        (machine,) = world.brokers
        machine.is_kept_down = True
        machine.power_cut()
        machine.disk.capacity_bytes = 0
        machine.latency.stall_chance = 1.0
        for client in world.clients:
            client.is_done = True
        world.run_for(50)
        of_processes = {"kill", "kill_in_disk_operation", "power_cut_in_disk_operation", "stop"}
        of_processes |= {"pause", "power_cut", "client_kill", "disk_full", "slow_disk"}
        if kind in of_processes:
            assert KINDS[kind](nemesis, machine) is False


def test_faults_come_again_and_again_until_they_stop() -> None:
    world, nemesis = stormy(2, FaultPlan(kinds=("kill", "cut", "disk_full"), every_s=0.5))
    with world:
        nemesis.start()
        world.run_for(30)
        nemesis.stop()
        counts = dict(nemesis.counts)
        assert set(counts) == {"kill", "cut", "disk_full"}
        assert 20 < sum(counts.values()) < 120
        world.run_for(30)
        assert nemesis.counts == counts


def test_a_world_may_have_no_faults() -> None:
    world, nemesis = stormy(3, FaultPlan(kinds=(), every_s=0.1))
    with world:
        nemesis.start()
        world.run_for(10)
        assert not nemesis.counts
        assert [machine.boots for machine in world.brokers] == [1, 1, 1]


def test_a_leader_loses_its_disk_while_nobody_hears_of_it() -> None:
    """Unless by the end of that moment it may not."""
    with world_of(3) as world:
        world.run_for(1)
        nemesis = Nemesis(
            world,
            FaultPlan(kinds=(), every_s=1),
            may_wipe=lambda _lost: not world.network.cuts,
            leaders=lambda: [2],
        )
        leader = world.brokers[1]
        disk = leader.disk
        assert not APART["wipe_leader"](nemesis, world.brokers[0]), "it does not lead"
        assert APART["wipe_leader"](nemesis, leader)
        world.run_for(LAGGING_S_MAX)
        assert leader.disk is disk
        assert not world.network.cuts
        nemesis.may_wipe = lambda _lost: True
        assert APART["wipe_leader"](nemesis, leader)
        world.run_for(LAGGING_S_MAX)
        assert leader.disk is not disk
        assert nemesis.counts == {"wipe": 1}


def test_no_disk_is_lost_unless_that_is_allowed() -> None:
    with world_of() as world:
        nemesis = Nemesis(world, FaultPlan(kinds=("wipe",), every_s=0.1))
        disk = world.brokers[0].disk
        nemesis.start()
        world.run_for(10)
        assert world.brokers[0].disk is disk
        assert not nemesis.counts


def test_a_lost_disk_is_told() -> None:
    with world_of() as world:
        lost: list[object] = []
        plan = FaultPlan(kinds=("wipe",), every_s=0.1)
        nemesis = Nemesis(world, plan, may_wipe=lambda _: not lost, on_wipe=lost.append)
        nemesis.start()
        world.run_for(10)
        assert lost == world.brokers
        assert nemesis.counts == {"wipe": 1}


def test_seeds_differ_in_the_kinds_that_they_have() -> None:
    plans = [FaultPlan.draw(Random(seed), brokers=3) for seed in range(50)]
    assert len({plan.kinds for plan in plans}) > 40
    drawn = set(KINDS) - set(OF_STORED_BYTES)
    assert {kind for plan in plans for kind in plan.kinds} == drawn
    harmful = [plan.with_harm(Random(n), brokers=5, replicas=3) for n, plan in enumerate(plans)]
    assert {kind for plan in harmful for kind in plan.kinds} == set(KINDS)
    assert {len(plan.harmed) for plan in harmful} == {2}, "one good copy is left"
    alone = [FaultPlan.draw(Random(seed), brokers=1) for seed in range(50)]
    assert {kind for plan in alone for kind in plan.kinds} == drawn - OF_CLUSTERS


def test_a_pause_that_outlives_its_process_resumes_no_other() -> None:
    world, nemesis = stormy(4, FaultPlan(kinds=(), every_s=1))
    with world:
        machine = world.brokers[0]
        faults.pause(nemesis, machine)
        machine.kill()
        assert world.run_until(world.is_up, limit_s=5)
        machine.pause()
        world.run_for(faults.PAUSE_S_MAX + 1)
        assert machine.loop.is_paused


def test_stored_bytes_are_harmed_on_the_brokers_that_are_drawn_for_it_only() -> None:
    for harmed, struck in (((1,), True), ((2,), False)):
        world, nemesis = stormy(0, FaultPlan(kinds=(), every_s=1, harmed=harmed))
        with world:
            disk = world.brokers[0].disk
            disk.make_dirs("data/topics/clicks/id/0")
            disk.write_atomic("data/topics/clicks/id/0/00.log", b"x" * 8_192)
            before = disk.durable_bytes("data/topics/clicks/id/0/00.log")
            for kind in ("bit_flip", "lost_write"):
                assert KINDS[kind](nemesis, world.brokers[0]) == struck
            assert (disk.durable_bytes("data/topics/clicks/id/0/00.log") != before) == struck


def test_no_power_cut_takes_what_is_in_the_cache_only_where_it_is_the_only_place() -> None:
    world, nemesis = stormy(0, FaultPlan(kinds=(), every_s=1, is_cache_lossy=True))
    with world:
        world.boot()
        assert not KINDS["power_cut"](nemesis, world.brokers[1])
        assert not KINDS["power_cut_of_all_and_bit_flip"](nemesis, world.brokers[0])
        assert KINDS["power_cut"](nemesis, world.brokers[0])


# -- vanishing -------------------------------------------------------------------------------------
#
# Files of partitions vanish from simulated disks; and clusters that they vanish from.


def stored(disk: SimDisk, path: str) -> list[str]:
    names = [f"{path}/{name}" for name in disk.list_dir(path)]
    return names + [found for name in names for found in stored(disk, name)]


@pytest.mark.parametrize("way", WAYS)
def test_files_vanish_for_good(way: str) -> None:
    for seed in range(20):
        disk = SimDiskOfTrees(Random(seed))
        store = Store.open(disk, DATA_DIRECTORY)
        fill(host(store, 0), 3)
        fill(host(store, 1), 3)
        store.close()
        before = {path: disk.image(path) for path in stored(disk, DATA_DIRECTORY)}
        assert WAYS[way](disk, disk.random)
        disk.power_cut()
        left = stored(disk, DATA_DIRECTORY)
        assert set(left) < set(before) or way == "checkpoints and tails"
        assert f"{DATA_DIRECTORY}/catalog" in left or way == "all topics and their record"
        assert f"{DATA_DIRECTORY}/identity" in left


def test_where_there_is_nothing_nothing_vanishes() -> None:
    disk = SimDiskOfTrees(Random(1))
    assert lose_files(disk, disk.random) == ""
    store = Store.open(disk, DATA_DIRECTORY)
    host(store, 1)
    assert lose_files(disk, disk.random) == ""
    assert not WAYS["one file"](disk, disk.random)
    disk.make_dirs(f"{TOPICS}/clicks/{FIRST}/1")
    assert partitions(disk) == [f"{TOPICS}/clicks/{FIRST}/1"]
    assert not WAYS["one file"](disk, disk.random)


def test_clusters_lose_nothing_with_the_files_of_one_broker() -> None:
    struck: set[str] = set()
    for seed in (1, 6, 10):
        scenario = Scenario.draw(seed, brokers=3, light=True)
        faults = FaultPlan(kinds=("vanish", "roll_back"), every_s=0.5)
        verdict = run(replace(scenario, duration_s=5.0, faults=faults))
        assert verdict.is_good, (seed, verdict.violations[:10])
        struck |= verdict.faults.keys()
    assert struck == {"vanish", "roll_back"}


# -- history ---------------------------------------------------------------------------------------
#
# Operations are recorded with their times and their outcome.


HISTORY_P = TopicPartition("t", 0)


def test_operations_begin_and_end_at_their_times() -> None:
    now = [10]
    history = History(lambda: now[0])
    send = history.send("p", HISTORY_P, "p#1", acks=-1, idempotent=True)
    assert (send.invoked_ns, send.completed_ns, send.outcome) == (10, NEVER_NS, Outcome.INFO)
    assert not send.is_ok
    now[0] = 20
    history.end(send, Outcome.OK)
    assert (send.completed_ns, send.is_ok) == (20, True)
    poll = history.poll("c")
    history.end(poll, Outcome.FAIL, ValueError("no"))
    assert (poll.invoked_ns, poll.error) == (20, "no")
    assert history.sends == [send]
    assert list(history) == [send, poll]


def test_who_watches_is_told_how_operations_begin_and_end() -> None:
    history = History(lambda: 0)
    seen: list[tuple[object, Outcome]] = []
    begun: list[object] = []
    history.on_begin = begun.append
    history.on_end = lambda operation: seen.append((operation, operation.outcome))
    poll = history.poll("c")
    assert (begun, seen) == ([poll], [])
    history.end(poll, Outcome.OK)
    assert seen == [(poll, Outcome.OK)]


def test_what_there_is_of_each_kind_and_outcome() -> None:
    history = History(lambda: 0)
    for outcome in (Outcome.OK, Outcome.OK, Outcome.INFO):
        history.end(history.other("a", "describe"), outcome)
    history.end(history.end_offsets("c"), Outcome.OK)
    history.deletion("a", HISTORY_P, 5)
    expected = {"deletion info": 1, "describe info": 1, "describe ok": 2, "endoffsets ok": 1}
    assert history.counts() == expected


def test_what_a_group_does_is_recorded() -> None:
    history = History(lambda: 7)
    offsets = {HISTORY_P: 5}
    commit = history.commit("m", offsets)
    offsets[HISTORY_P] = 6
    assert commit.offsets == {HISTORY_P: 5}, "what was committed then"
    history.end(history.owning("m", HISTORY_P), Outcome.OK)
    history.end(history.committed("a"), Outcome.OK)
    assert history.counts() == {"commit info": 1, "committed ok": 1, "owning ok": 1}


def test_an_operation_can_be_written_down() -> None:
    history = History(lambda: 1)
    send = history.send("p", HISTORY_P, "p#1", acks=1, idempotent=False)
    line = json.loads(json.dumps(send.to_dict()))
    assert (line["f"], line["value"], line["outcome"]) == ("send", "p#1", "info")
    assert Seen(1, "v", 0) == (1, "v", 0)


# -- operators -------------------------------------------------------------------------------------
#
# Brokers that join and leave in a simulation: some seeds have them, and all come to an end.


SEED = 1_000


def test_a_part_of_the_seeds_has_growing_clusters() -> None:
    drawn = [Scenario.draw(seed, brokers=3) for seed in range(300)]
    plans = [scenario.growth for scenario in drawn if scenario.growth is not None]
    assert 10 <= len(plans) <= 60
    assert any(plan.leaves for plan in plans)
    assert all(plan.leaves <= plan.joins for plan in plans), "as many brokers as before remain"
    assert all(s.growth is None for s in drawn if s.faults.harmed or s.absent)
    assert Scenario.draw(SEED, brokers=1).growth is None


def test_brokers_join_and_leave_and_the_promises_are_kept() -> None:
    scenario = Scenario.draw(SEED, brokers=3, light=True)
    plan = GrowthPlan(joins=2, leaves=1, pause_s=0.3)
    said: list[str] = []
    verdict = run(replace(scenario, growth=plan), on_trace=said.append)
    assert verdict.is_good, verdict.violations
    assert sum("joins the cluster" in line for line in said) == 2
    assert any("was removed" in line for line in said)


def test_a_change_that_does_not_end_is_named() -> None:
    with World(3, brokers=3) as world:
        world.boot()
        world.run_until(lambda: all(map(_is_in, world.brokers)), limit_s=20)
        assert still_changing(world) == ""
        node = node_of(world.brokers[0])
        assert node is not None
        record = node.machine.brokers[3]
        node.machine._records.brokers[3] = msgspec.structs.replace(record, draining=True)
        assert "brokers [3] are not removed yet" in still_changing(world)


def _is_in(machine: BrokerMachine) -> bool:
    node = node_of(machine)
    return node is not None and node.membership.is_in


def test_a_plan_is_a_function_of_its_random_numbers() -> None:
    assert GrowthPlan.draw(Random(4)) == GrowthPlan.draw(Random(4))


# -- moving ----------------------------------------------------------------------------------------
#
# Seeds in which an operator moves replicas, and what they have to find.


CALM = FaultPlan(kinds=(), every_s=1.0)


def moving(seed: int, *, brokers: int = 3) -> Scenario:
    """A seed without faults, in which replicas move all the time."""
    drawn = Scenario.draw(seed, brokers=brokers, light=True)
    workload = replace(
        drawn.workload, moves_every_s=0.3, changes_factor=True, recreates_after_s=0.0, group=None
    )
    return replace(drawn, faults=CALM, workload=workload, absent=0, is_left_out=False)


def test_replicas_move_and_nothing_is_lost() -> None:
    verdict = run(moving(1))
    assert verdict.is_good, verdict.violations
    assert verdict.operations["reassign ok"] >= 3


def test_a_move_that_does_not_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionController, "_replicas_to_note", lambda *_: None)
    verdict = run(moving(1))
    assert any("a move does not end" in violation.message for violation in verdict.violations)


def test_some_seeds_have_moves_and_the_others_stay_what_they_were() -> None:
    drawn = [Scenario.draw(seed, brokers=3) for seed in range(200)]
    having = sum(scenario.workload.moves_every_s > 0 for scenario in drawn)
    assert 0.6 * MOVES_SHARE < having / len(drawn) < 1.4 * MOVES_SHARE
    for scenario in drawn:
        lossy = scenario.faults.harmed or scenario.faults.is_cache_lossy
        assert not (lossy and scenario.workload.changes_factor), "the budget is of the first factor"
    assert not Scenario.draw(1, brokers=3, mode="liveness").workload.moves_every_s


def test_without_brokers_nothing_moves() -> None:
    with World(1, brokers=3) as world:
        assert still_moving(world) == ""


# -- operator --------------------------------------------------------------------------------------
#
# The operator of a simulated cluster has it go on after the loss of most of its disks.


def test_a_cluster_outlives_the_loss_of_all_disks_but_one() -> None:
    """Nothing acknowledged is lost, and there is one cluster."""
    scenario = Scenario.draw(103, brokers=3, light=True)
    verdict = run(
        replace(
            scenario,
            faults=FaultPlan(kinds=("wipe_several",), every_s=0.5),
            workload=replace(scenario.workload, replication_factor=3),
            is_left_out=False,
        )
    )
    assert verdict.is_good, verdict.violations[:5]
    assert verdict.faults["wipe_several"] >= 1


def test_the_operator_asks_again_where_the_broker_that_was_asked_lost_its_power() -> None:
    """The answer never comes, and the client waits for it for minutes."""
    scenario = Scenario.draw(5300373, brokers=3, light=True, compacted=True, kafka=False)
    verdict = run(replace(scenario, two_disks=()))
    assert verdict.is_good, verdict.violations[:5]
    assert verdict.faults["wipe_several"] >= 1


def test_the_operator_waits_for_no_broker_outside_the_cluster() -> None:
    """It has no records, and never connects."""
    with growing_world(3, brokers=5) as world:
        cluster = Cluster(world)
        cluster.until(lambda: _are_all_there(world))
        world.network.cut("broker-1", "broker-5")
        assert _are_all_there(world)
        cluster.join(4)
        cluster.until(lambda: _are_all_there(world))
        world.network.cut("broker-1", "broker-4")
        assert not _are_all_there(world)


# -- recreation ------------------------------------------------------------------------------------
#
# A topic takes the place of another: what was acknowledged before is neither owed nor there.


FORMER_LED_NS = 300
MEMBER, OTHER = "member-1/1.1", "member-2/1.1"


class Timeline:
    """The topic is deleted at 200 ns, and led for the last time at 300 ns."""

    def __init__(self) -> None:
        self.now = 0
        self.history = History(lambda: self.now)
        self.former = self.send(100, "p/1#1", 0)
        self.history.end(self.at(200, self.history.recreation("recreator")), Outcome.OK)
        self.either = self.send(250, "p/1#2", 1)
        self.new = self.send(400, "p/1#3", 0)

    def at(self, now: int, operation: Operation) -> Operation:
        operation.invoked_ns = now
        self.now = now + 10
        return operation

    def send(self, now: int, value: str, offset: int) -> Send:
        send = self.history.send("p/1", P, value, acks=-1, idempotent=True)
        send.offset = offset
        self.history.end(self.at(now, send), Outcome.OK)
        return send

    def poll(self, now: int, process: str, *records: Seen, topic_id: str = "") -> Poll:
        poll = self.history.poll(process)
        poll.records = {P: list(records)}
        poll.topic_ids = {P: topic_id} if topic_id else {}
        self.history.end(self.at(now, poll), Outcome.OK)
        return poll

    def owning(self, now: int, member: str, topic_id: str) -> None:
        self.at(now, self.history.owning(member, P, topic_id))

    def commit(self, now: int, member: str, offset: Offset, topic_id: str) -> None:
        commit = self.history.commit(member, {P: offset}, {P: topic_id})
        self.history.end(self.at(now, commit), Outcome.OK)

    def committed(self, now: int, offsets: Mapping[TopicPartition, Offset]) -> None:
        asked = self.history.committed("asker")
        asked.offsets = dict(offsets)
        self.history.end(self.at(now, asked), Outcome.OK)

    def kinds(self, *log: Seen) -> set[str]:
        copy = Copy("reader-1", P, log, 0, len(log))
        ending = Ending(
            readers=[copy],
            replicas=[copy._replace(who="broker-1")],
            topic_id="new",
            former_led_ns=FORMER_LED_NS,
            former_known_ns=FORMER_LED_NS,
        )
        return {violation.kind for violation in check(self.history, ending)}


def test_what_was_acknowledged_before_the_deletion_is_not_owed() -> None:
    timeline = Timeline()
    assert timeline.kinds(Seen(0, timeline.new.value, 0)) == set()


def test_what_was_acknowledged_in_between_may_be_there_or_not() -> None:
    timeline = Timeline()
    log = Seen(0, timeline.new.value, 0), Seen(1, timeline.either.value, 0)
    assert timeline.kinds(*log) == set()


def test_what_was_acknowledged_since_has_to_be_there() -> None:
    assert Timeline().kinds() == {"LOST-tail"}


def test_a_record_of_the_former_topic_is_not_in_the_new_one() -> None:
    timeline = Timeline()
    log = Seen(0, timeline.new.value, 0), Seen(1, timeline.former.value, 0)
    assert timeline.kinds(*log) == {"RESURRECTED"}


def test_consumers_may_have_fetched_before() -> None:
    timeline = Timeline()
    there, gone = Seen(0, timeline.new.value, 0), Seen(0, timeline.former.value, 0)
    timeline.poll(290, "c/1.1", gone)
    timeline.poll(500, "c/1.1", gone)
    assert timeline.kinds(there) == set()
    timeline.poll(600, "c/1.2", gone)
    assert "RESURRECTED" in timeline.kinds(there)


def test_members_know_the_topic_of_what_they_receive() -> None:
    """They may have fetched records of the former topic before, but not of the new one."""
    timeline = Timeline()
    there, gone = Seen(0, timeline.new.value, 0), Seen(0, timeline.former.value, 0)
    timeline.poll(600, f"{MEMBER}@1", gone, topic_id="former")
    assert timeline.kinds(there) == set()
    timeline.poll(700, f"{MEMBER}@2", gone, topic_id="new")
    assert "RESURRECTED" in timeline.kinds(there)


def test_only_later_ends_and_deletions_count() -> None:
    timeline = Timeline()
    for now, end in ((150, 5), (260, 5), (500, 1)):
        asking = timeline.history.end_offsets("c/1.1")
        asking.ends = {P: end}
        timeline.history.end(timeline.at(now, asking), Outcome.OK)
    deletion = timeline.history.deletion("admin", P, 1)
    timeline.history.end(timeline.at(150, deletion), Outcome.OK)
    assert timeline.kinds(Seen(0, timeline.new.value, 0)) == set()
    assert timeline.kinds() == {"LOST-tail"}
    deletion.completed_ns = 260  # it may have deleted records of either topic
    assert timeline.kinds() == set()


def test_a_group_is_checked_in_each_topic() -> None:
    timeline = Timeline()
    there = Seen(0, timeline.new.value, 0)
    for start, member, topic_id in ((110, MEMBER, "former"), (410, OTHER, "new")):
        timeline.owning(start, member, topic_id)
        record = there if topic_id == "new" else Seen(0, "p/1#1", 0)
        timeline.poll(start + 10, f"{member}@1", record, topic_id=topic_id)
        timeline.commit(start + 20, member, 1, topic_id)
    timeline.poll(500, f"{MEMBER}@1", topic_id="former")  # the other one has a partition of another
    timeline.committed(150, {P: 1})
    timeline.committed(250, {})  # of either topic
    timeline.committed(600, {P: 1})
    assert timeline.kinds(there) == set()
    timeline.committed(180, {})
    assert timeline.kinds(there) == {"GROUP-OFFSET-ZERO"}


def test_an_offset_of_the_former_topic_is_none_of_the_new_one() -> None:
    timeline = Timeline()
    timeline.owning(110, MEMBER, "former")
    timeline.commit(120, MEMBER, 1, "former")
    timeline.committed(600, {})
    there = Seen(0, timeline.new.value, 0)
    assert timeline.kinds(there) == set()
    timeline.committed(700, {P: 1})
    assert "GROUP-OFFSET-PHANTOM" in timeline.kinds(there)


def test_a_topic_is_recreated_under_its_clients() -> None:
    drawn = Scenario.draw(4, brokers=3, light=True)
    workload = replace(drawn.workload, recreates_after_s=2.0)
    faults = FaultPlan(kinds=("client_kill", "kill"), every_s=0.7)
    verdict = run(replace(drawn, faults=faults, duration_s=6.0, workload=workload))
    assert verdict.is_good, verdict.violations[:10]
    assert verdict.operations["recreation ok"] == 1
    assert verdict.operations["send ok"] > 0


def test_some_seeds_of_safety_recreate_the_topic() -> None:
    drawn = [Scenario.draw(seed, brokers=3, light=True) for seed in range(150)]
    chosen = [scenario for scenario in drawn if scenario.workload.recreates_after_s]
    assert 5 < len(chosen) < 40
    assert all(s.workload.recreates_after_s < s.duration_s for s in chosen)
    assert any(s.workload.group for s in chosen)
    core = [Scenario.draw(seed, mode="liveness", brokers=3) for seed in range(50)]
    assert not any(scenario.workload.recreates_after_s for scenario in core)


# -- revoking --------------------------------------------------------------------------------------
#
# Simulations in which clients authenticate: what they do, and that a missing check is found.


REVOKING_SEED = 4


def secured(seed: int = REVOKING_SEED) -> Verdict:
    scenario = Scenario.draw(seed, brokers=3, light=True, kafka=False)
    return run(replace(scenario, workload=replace(scenario.workload, is_secured=True)))


def test_clients_authenticate_and_a_user_is_revoked() -> None:
    verdict = secured()
    assert verdict.is_good, verdict.violations
    assert verdict.operations["revoke ok"] > 0
    assert verdict.workload is not None
    done = [each.process for each in verdict.workload.history.operations if each.is_ok]
    for name in (REVOKED, "producer-1", "consumer-1"):
        assert any(process.startswith(f"{name}/") for process in done), name
    assert secured().digest == verdict.digest


def test_writes_of_a_deleted_user_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "_end_revoked", lambda _broker: None)
    verdicts = map(secured, range(1, 31))  # each finds it with a chance of a third
    found = next(verdict for verdict in verdicts if not verdict.is_good)
    assert {violation.kind for violation in found.violations} == {"REVOKED"}


def test_a_share_of_the_seeds_is_secured() -> None:
    drawn = [Scenario.draw(seed, brokers=3) for seed in range(100)]
    assert 3 <= sum(each.workload.is_secured for each in drawn) <= 30
    others = [Scenario.draw(seed, brokers=3, mode="liveness") for seed in range(30)]
    others += [Scenario.draw(seed, brokers=1) for seed in range(30)]
    assert not any(each.workload.is_secured for each in others)
