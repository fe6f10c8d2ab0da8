"""Each invariant is seen to be broken when it is, and a disk may be lost only when all is well."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.replication.partition_state import PartitionState, initial_state
from raftlog.replication.placement import Target
from raftlog.testing.simulator.history import History, Outcome, Seen
from raftlog.testing.simulator.observer import (
    INVARIANTS,
    VIOLATIONS_MAX,
    VOTERS_MIN,
    Observer,
    node_of,
)
from raftlog.testing.simulator.world import (
    BrokerMachine,
    ClientMachine,
    RunningBroker,
    World,
    start_broker,
)
from raftlog.types import NewTopic, TopicPartition
from tests.server.cluster.simulated import Cluster, growing_world

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
