"""Whole brokers on a simulated network, in virtual time: among others, and while replicas move."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.aio.clients import AsyncConsumer
from raftlog.errors import (
    ClusterNotReadyError,
    InvalidConfigError,
    InvalidPartitionsError,
    RefusedError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol.cluster import PartitionMove, ReassignRequest, ThrottleMovesRequest
from raftlog.server.cluster.elections import HostedPartition, raft_id
from raftlog.server.cluster.node import POLL_SECONDS, ClusterNode
from raftlog.testing.simulator.scenario import dump
from raftlog.testing.simulator.world import DATA_DIRECTORY, ClientMachine, World
from raftlog.types import NewTopic, TopicPartition
from tests.consensus.journals import block_ends
from tests.server.cluster.simulated import Cluster, growing_world, on, operations

# -- brokers ---------------------------------------------------------------------------------------

# A broker among others, as a whole: real brokers on a simulated network, in virtual time.


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with World(11, brokers=3) as world:
        yield Cluster(world)


def test_three_become_a_cluster_with_one_name(cluster: Cluster) -> None:
    nodes = [cluster.node(number) for number in (1, 2, 3)]
    (name,) = {node.machine.cluster_id for node in nodes}
    assert name
    assert {node._store.identity.cluster_id for node in nodes} == {name}
    assert [info.id for info in nodes[0].other_brokers()] == [2, 3]
    assert all(node.links.is_up(peer) for node in nodes for peer in {1, 2, 3} - {node.broker_id})


def test_a_round_of_checks_takes_some_partitions_at_a_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 10,000 at once would hold the loop for 0.1 s, three times a second."""
    cluster.create(partitions=5)
    node = cluster.node(1)
    checked: list[list[int]] = []
    review = node.partitions.review

    def noted(partitions: Iterable[HostedPartition]) -> None:
        some = list(partitions)
        checked.append([hosted.partition for hosted in some])
        review(some)

    monkeypatch.setattr(node.partitions, "review", noted)
    monkeypatch.setattr("raftlog.server.cluster.node.POLLED_AT_ONCE", 2)
    cluster.until(lambda: sum(map(len, checked)) >= 15)
    assert max(map(len, checked)) == 2
    assert sorted(number for some in checked for number in some)[:15] == [
        number for number in range(5) for _ in range(3)
    ]


def test_partitions_at_rest_are_checked_rarely_and_at_once_when_something_happens(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(partitions=3)
    leader = cluster.leader(1)
    node = cluster.node(leader)
    cluster.world.run_for(10)
    checked: list[int] = []
    review = node.partitions.review

    def noted(partitions: Iterable[HostedPartition]) -> None:
        some = list(partitions)
        checked.extend(hosted.partition for hosted in some)
        review(some)

    def checks_in(seconds: float) -> list[int]:
        checked.clear()
        cluster.world.run_for(seconds)
        return checked

    monkeypatch.setattr(node.partitions, "review", noted)
    assert len(checks_in(40)) in range(3 * 3, 3 * 5 + 1)
    for hosted in node.partitions.hosted.values():
        assert hosted.is_at_rest(node._loop.time())
    cluster.world.run_for(1)
    hosted = node.partitions.find(node.machine.topics["t"].id, 0)
    assert hosted is not None
    assert hosted.host is not None
    hosted.host.disk_problem.refused()  # no disk space
    assert checks_in(2).count(0) >= 3
    hosted.host.disk_problem.found()
    cluster.world.run_for(6)
    other = leader % 3 + 1
    cluster.world.brokers[other - 1].is_kept_down = True
    cluster.world.brokers[other - 1].kill()
    assert {0, 1, 2} <= set(checks_in(1))
    assert checks_in(4).count(0) >= 5, "its ISR is not complete"


def test_what_one_leads_the_others_copy(cluster: Cluster) -> None:
    cluster.create()
    cluster.send(b"a", b"b")
    topic = cluster.node(1).machine.topics["t"].id

    def ends() -> list[int]:
        hosts = [cluster.node(n).partitions.find(topic, 0) for n in (1, 2, 3)]
        return [host.host.high_watermark for host in hosts if host and host.host]

    cluster.until(lambda: ends() == [2, 2, 2])
    assert cluster.read(2) == [b"a", b"b"]


def test_most_brokers_do_not_deny_a_topic_that_is_created(cluster: Cluster) -> None:
    nodes = [cluster.node(n) for n in (1, 2, 3)]
    answers: set[tuple[str, ...]] = set()

    def answer(node: ClusterNode) -> str:
        try:
            node._topics.topic("t")
        except (UnknownTopicError, ClusterNotReadyError) as error:
            return type(error).__name__
        return "known"

    def all_know_it() -> bool:
        if any("t" in node.machine.topics for node in nodes):  # the group has committed it
            answers.add(tuple(sorted(map(answer, nodes))))
        return answers >= {("known", "known", "known")}

    async def create(machine: ClientMachine) -> None:
        async with AsyncAdmin(bootstrap=cluster.world.bootstrap, host=machine.host()) as admin:
            await admin.create_topics([NewTopic("t", partitions=1, replication_factor=3)])

    cluster.world.add_client("creator", create).start()
    assert cluster.world.run_until(all_know_it, limit_s=10, every_s=0.0001)
    assert any(ClusterNotReadyError.__name__ in each for each in answers), "nobody lagged"
    denied = max(each.count(UnknownTopicError.__name__) for each in answers)
    assert denied <= 1, "clients believe two brokers"


def test_a_reader_goes_on_when_its_topic_is_created_again() -> None:
    """Also if it asks a broker that has not applied the creation yet."""
    found: list[bytes | None] = []

    async def read(machine: ClientMachine) -> None:
        async with AsyncConsumer(
            bootstrap=machine.world.bootstrap, host=machine.host(), auto_offset_reset="earliest"
        ) as consumer:
            await consumer.subscribe(["t"])
            while len(found) < 3:
                try:
                    found.extend(record.value for record in await consumer.poll(20))
                except UnknownTopicError:
                    await asyncio.sleep(0.001)

    with World(1, brokers=1) as world:
        cluster = Cluster(world)
        for value in (b"0", b"1", b"2"):
            cluster.create(copies=1)
            cluster.send(value)
            if value == b"0":
                world.add_client("reader", read).start()
            cluster.until(lambda value=value: value in found)  # type: ignore[misc]
            cluster.admin(lambda admin: admin.delete_topics(["t"]))
            world.run_for(0.5)


def test_a_dead_leader_is_followed_by_another_and_comes_back(cluster: Cluster) -> None:
    cluster.create()
    cluster.send(b"a")
    leader = cluster.leader(1)
    other = leader % 3 + 1
    epoch = cluster.state(other).leader_epoch
    cluster.world.brokers[leader - 1].is_kept_down = True
    cluster.world.brokers[leader - 1].kill()
    cluster.until(lambda: cluster.state(other).leader not in {None, leader}, limit_s=5)
    assert cluster.state(other).leader_epoch > epoch
    cluster.send(b"b")
    cluster.start(leader)
    cluster.in_sync(other, {1, 2, 3})
    assert cluster.read(2) == [b"a", b"b"]


def test_a_wiped_broker_comes_back_copies_and_is_in_sync(cluster: Cluster) -> None:
    cluster.create()
    cluster.send(b"a")
    leader = cluster.leader(1)
    other = leader % 3 + 1
    old = cluster.node(other).me.directory_id
    cluster.lose(other)
    cluster.start(other)  # at once: its old registration is not fenced yet
    assert cluster.node(other).me.directory_id != old
    cluster.until(lambda: cluster.state(leader).isr.get(other) not in {None, old})
    cluster.until(lambda: cluster.node(other).membership.is_in)
    topic = cluster.node(1).machine.topics["t"].id
    voters = {**cluster.node(leader).plane.status(f"{topic}/0").voters}
    assert voters[other] == cluster.node(other).me.directory_id
    cluster.send(b"b")
    assert cluster.read(2) == [b"a", b"b"]


def test_a_broker_that_stops_hands_over_first(cluster: Cluster) -> None:
    """The others need no timeout to find out: it is fenced, and leads nothing, when it ends."""
    cluster.create(partitions=6)
    cluster.send(b"a")
    leader = cluster.leader(1)
    other = leader % 3 + 1
    begun = cluster.world.time.now
    cluster.stop(leader)
    assert cluster.world.time.now - begun < 1.0
    # At that very moment, and not some time after it:
    states = [cluster.state(other, partition) for partition in range(6)]
    assert all(state.leader not in {None, leader} for state in states)
    assert cluster.node(other).machine.brokers[leader].fenced
    cluster.send(b"b")
    cluster.start(leader)
    cluster.in_sync(other, {1, 2, 3})
    assert cluster.node(leader).membership.is_in
    assert cluster.read(2) == [b"a", b"b"]


def test_all_that_stop_at_once_do_not_wait_for_each_other(cluster: Cluster) -> None:
    cluster.create()
    begun = cluster.world.time.now
    for machine in cluster.world.brokers:
        machine.is_kept_down = True
        machine.stop()
    cluster.until(lambda: not any(machine.is_running for machine in cluster.world.brokers))
    assert cluster.world.time.now - begun < 2.0
    cluster.start(1, 2, 3)
    cluster.send(b"after")


def test_a_damaged_copy_is_made_anew(cluster: Cluster) -> None:
    cluster.create()
    cluster.send(b"a" * 200, b"b" * 200)
    leader = cluster.leader(1)
    other = leader % 3 + 1
    cluster.in_sync(leader, {1, 2, 3})
    topic = cluster.node(1).machine.topics["t"].id
    hosted = cluster.node(other).partitions.find(topic, 0)
    assert hosted is not None
    assert hosted.host is not None
    bad = hosted.host
    cluster.node(other).partitions.damaged(bad, "found by a test")
    cluster.until(lambda: hosted.host is not bad)
    cluster.until(lambda: hosted.host is not None and hosted.host.log.log_end_offset == 2)
    cluster.in_sync(leader, {1, 2, 3})
    assert hosted.host.log.damage == ""


def test_a_damaged_leader_is_followed_by_another(cluster: Cluster) -> None:
    cluster.create()
    cluster.send(b"a" * 200)
    leader = cluster.leader(1)
    cluster.in_sync(leader, {1, 2, 3})
    topic = cluster.node(1).machine.topics["t"].id
    hosted = cluster.node(leader).partitions.find(topic, 0)
    assert hosted is not None
    assert hosted.host is not None
    cluster.node(leader).partitions.damaged(hosted.host, "found by a test")
    cluster.until(lambda: cluster.state(leader).leader != leader)
    cluster.until(lambda: set(cluster.state(leader).isr) == {1, 2, 3})
    cluster.send(b"b")
    assert cluster.read(2) == [b"a" * 200, b"b"]


def test_many_reasons_to_look_are_one_look(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.node(1)
    looks: list[float] = []
    monkeypatch.setattr(node, "_poll_all", lambda: looks.append(cluster.world.time.now))
    monkeypatch.setattr(node, "_next_poll", None)
    for seconds in (1.0, 0.5, 0.7, 0.5):
        node._schedule(seconds)
    begun = cluster.world.time.now
    cluster.world.run_for(POLL_SECONDS * 20)
    assert looks == [pytest.approx(begun + 0.5, abs=0.01)]


def test_a_connection_has_one_session_and_none_after_its_end(cluster: Cluster) -> None:
    cluster.create()
    node = cluster.node(cluster.leader(1))
    cluster.until(lambda: len(node._sessions) == 2)
    (connection, session), *_ = node._sessions.items()
    assert node.session(connection) is session
    node.forget(connection)
    assert connection not in node._sessions
    node.forget(connection)
    assert session not in node._newest_session.values()


def test_a_broker_alone_does_not_stop_for_ever(cluster: Cluster) -> None:
    cluster.create()
    for number in (2, 3):
        cluster.world.brokers[number - 1].is_kept_down = True
        cluster.world.brokers[number - 1].kill()
    cluster.world.run_for(5)
    begun = cluster.world.time.now
    cluster.stop(1)
    assert cluster.world.time.now - begun < 3.0


def test_a_broker_whose_journal_has_lost_its_end_is_refused_until_its_disk_is_empty(
    cluster: Cluster,
) -> None:
    """Cut between two blocks of its last boot, the journal looks whole. The others know better."""
    cluster.create(partitions=12)  # each broker leads the group of one of them
    cluster.send(b"a")
    leader = cluster.leader(1)
    other = leader % 3 + 1
    cluster.in_sync(leader, {1, 2, 3})
    cluster.world.run_for(2)  # the others learn where its journal ends
    machine = cluster.world.brokers[other - 1]
    machine.is_kept_down = True
    machine.kill()
    path = f"{DATA_DIRECTORY}/consensus.journal"
    ends = block_ends(machine.disk.read_file(path, bytes_max=1 << 24))
    machine.disk.cut_off(path, ends[len(ends) // 2])
    cluster.start(other)
    refused = cluster.node(other)
    cluster.until(lambda: len([s for s in refused.links.status() if s.refusal]) == 2)
    assert "has lost acknowledged blocks" in refused.membership.refusal
    assert "Start the broker with an empty data directory" in refused.membership.refusal
    for _ in range(3):  # each boot adds blocks, and nothing comes of that
        machine.is_kept_down = True
        machine.kill()
        cluster.start(other)
    cluster.world.run_for(20)
    assert not any(status.identity for status in cluster.node(other).links.status())
    assert other not in cluster.state(leader).isr
    cluster.send(b"b")
    cluster.lose(other)
    cluster.start(other)
    cluster.in_sync(leader, {1, 2, 3})
    assert cluster.read(2) == [b"a", b"b"]


def test_a_broker_that_stopped_or_lost_its_power_has_lost_nothing(cluster: Cluster) -> None:
    cluster.create(partitions=3)
    for number in (1, 2, 3):
        cluster.send(b"%d" % number)
        machine = cluster.world.brokers[number - 1]
        machine.is_kept_down = True
        machine.power_cut()
        machine.power_on()
        cluster.start(number)
        cluster.in_sync(number, {1, 2, 3})
        heard = cluster.node(number % 3 + 1).plane.heard(number)
        assert heard is not None
        assert heard.boot == 2
        assert heard.sequence > 0
        assert not any(status.refusal for status in cluster.node(number).links.status())


# -- moves -----------------------------------------------------------------------------------------

# Moves of replicas in a running cluster: copies, votes, leadership, and crashes between them.


RECORDS = [b"%d" % number for number in range(20)]


@pytest.fixture
def moving_cluster() -> Iterator[Cluster]:
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


def test_all_replicas_move_and_every_record_is_there(moving_cluster: Cluster) -> None:
    before = begin(moving_cluster, 2)
    after = tuple(others(*before)[:2])
    assert move(moving_cluster, *after) == {0: list(after)}
    until_moved(moving_cluster, *after)
    assert moving_cluster.read(len(RECORDS)) == RECORDS
    moving_cluster.send(b"more")
    moving_cluster.until(lambda: len(voters(moving_cluster, after[0])) == 3)
    state = moving_cluster.state(after[0])
    assert voters(moving_cluster, after[0]) == {*state.replicas, *state.witnesses}
    assert state.leader in after
    for former in before:
        assert moving_cluster.state(former).leader == state.leader, (
            "a former replica knows the leader"
        )


def test_former_voters_never_vote_in_their_old_generation_again(moving_cluster: Cluster) -> None:
    """They were a majority of the first generation, and start while no broker of the current one
    runs."""
    (before,) = begin(moving_cluster, 1)
    after = others(before)[0]
    move(moving_cluster, after)
    until_moved(moving_cluster, after, node=after)
    moving_cluster.until(lambda: voters(moving_cluster, after) == {after})
    moving_cluster.stop(after)
    moving_cluster.stop(before)
    moving_cluster.start(before)
    record = next(iter(others(before, after)))
    moving_cluster.until(lambda: "t" in moving_cluster.node(before).machine.topics)
    topic = moving_cluster.node(before).machine.topics["t"].id
    moving_cluster.until(lambda: moving_cluster.node(before).partitions.find(topic, 0) is not None)
    assert not moving_cluster.world.run_until(
        lambda: moving_cluster.state(before).leader is not None or before in copies(moving_cluster),
        limit_s=10,
    )
    assert voters(moving_cluster, before) == {after}
    moving_cluster.start(after)
    moving_cluster.until(lambda: moving_cluster.state(record).leader == after)
    assert moving_cluster.read(len(RECORDS)) == RECORDS


def test_a_move_goes_on_after_every_broker_has_crashed(moving_cluster: Cluster) -> None:
    before = begin(moving_cluster, 3)
    after = (*others(*before), before[0])
    move(moving_cluster, *after)
    for _ in range(6):
        moving_cluster.world.run_for(0.7)
        for machine in moving_cluster.world.brokers:
            machine.power_cut()
        for machine in moving_cluster.world.brokers:
            machine.start_later(0.1)
        moving_cluster.until(
            lambda: all(m.broker is not None for m in moving_cluster.world.brokers)
        )
    until_moved(moving_cluster, *after)
    assert moving_cluster.read(len(RECORDS)) == RECORDS


def test_a_broker_that_was_down_when_it_was_removed_deletes_its_copy(
    moving_cluster: Cluster,
) -> None:
    before = begin(moving_cluster, 2)
    kept, gone = before
    moving_cluster.stop(gone)
    new = others(*before)[0]
    move(moving_cluster, kept, new, node=kept)
    moving_cluster.until(lambda: target(moving_cluster, kept) is None)
    moving_cluster.until(lambda: gone not in voters(moving_cluster, kept))
    moving_cluster.start(gone)
    until_moved(moving_cluster, kept, new, node=kept)


def test_a_cancelled_move_restores_the_replicas(moving_cluster: Cluster) -> None:
    before = begin(moving_cluster, 2)
    learner = others(*before)[0]
    moving_cluster.stop(learner)
    node = before[0]
    assert move(moving_cluster, before[0], learner, node=node) == {0: [before[0], learner]}
    assert cancel(moving_cluster, node) == {0: list(before)}, "it moves back"
    moving_cluster.start(learner)
    until_moved(moving_cluster, *before, node=node)
    assert cancel(moving_cluster, node) == {}


def test_a_learner_that_fails_keeps_nothing_from_being_written(moving_cluster: Cluster) -> None:
    """The learner has a vote, and so has a helper."""
    (before,) = begin(moving_cluster, 1)
    learner, *rest = others(before)
    move(moving_cluster, learner)
    moving_cluster.until(lambda: learner in moving_cluster.state(before).replicas)
    moving_cluster.lose(learner)
    moving_cluster.send(b"more")
    cancel(moving_cluster, before)
    moving_cluster.until(lambda: target(moving_cluster, before) is None)
    moving_cluster.until(lambda: moving_cluster.state(before).replicas == (before,))
    moving_cluster.until(lambda: voters(moving_cluster, before) == {before})
    assert rest


def test_a_replication_factor_grows_and_shrinks(moving_cluster: Cluster) -> None:
    (before,) = begin(moving_cluster, 1)
    three = (before, *others(before)[:2])
    move(moving_cluster, *three, replication_factor=3)
    until_moved(moving_cluster, *three)
    moving_cluster.until(lambda: voters(moving_cluster, before) == {1, 2, 3, 4, 5})
    assert moving_cluster.node(before).machine.topics["t"].replication_factor == 3
    moving_cluster.until(lambda: moving_cluster.state(before).min_isr == 2)
    two = three[1:]
    move(moving_cluster, *two, replication_factor=2)
    until_moved(moving_cluster, *two, node=two[0])
    moving_cluster.until(lambda: len(voters(moving_cluster, two[0])) == 3)
    moving_cluster.until(lambda: moving_cluster.state(two[0]).min_isr == 1)
    assert moving_cluster.read(len(RECORDS)) == RECORDS


def test_what_cannot_be_is_refused(moving_cluster: Cluster) -> None:
    before = begin(moving_cluster, 2)
    free = others(*before)
    for replicas in ((1, 2, 3), (1, 9), (1, 1), ()):
        with pytest.raises(InvalidPartitionsError):
            move(moving_cluster, *replicas)
    with pytest.raises(UnknownTopicError):
        move(moving_cluster, 1, topic="u")
    with pytest.raises(UnknownPartitionError):
        move(moving_cluster, 1, 2, partition=1)
    with pytest.raises(RefusedError, match="the plan was made for"):
        move(moving_cluster, *free[:2], before=free[:2])
    moving_cluster.admin(lambda admin: admin.alter_topic("t", {"min.insync.replicas": "2"}))
    with pytest.raises(InvalidConfigError):
        move(moving_cluster, before[0], replication_factor=1)


def test_a_move_is_not_replaced_by_another_one(moving_cluster: Cluster) -> None:
    before = begin(moving_cluster, 2)
    free, node = others(*before), before[0]
    moving_cluster.stop(free[0])
    move(moving_cluster, before[0], free[0], node=node)
    with pytest.raises(RefusedError, match="--cancel"):
        move(moving_cluster, before[0], free[1], node=node)
    move(moving_cluster, before[0], free[0], node=node)  # the same one: nothing changes
    move(moving_cluster, before[0], node=node, replication_factor=1)
    until_moved(moving_cluster, before[0], node=node)


def test_a_cancelled_move_is_replaced(moving_cluster: Cluster) -> None:
    """The broker that it returns to may be lost."""
    (before,) = begin(moving_cluster, 1)
    free, other, node = others(before)[:3]
    moving_cluster.stop(free)
    moving_cluster.until(lambda: "t" in moving_cluster.node(node).machine.topics)
    move(moving_cluster, free, node=node)
    cancel(moving_cluster, node)
    try:
        move(moving_cluster, other, node=node)
    except RefusedError:  # the cancellation ended at the same time: the plan is old
        move(moving_cluster, other, node=node)
    until_moved(moving_cluster, other, node=node)


def test_a_change_of_the_factor_is_not_cancelled(moving_cluster: Cluster) -> None:
    before = begin(moving_cluster, 1)
    free, node = others(*before), before[0]
    moving_cluster.stop(free[0])
    move(moving_cluster, *before, free[0], node=node, replication_factor=2)
    with pytest.raises(InvalidPartitionsError, match="former one instead"):
        cancel(moving_cluster, node)
    move(moving_cluster, *before, node=node, replication_factor=1)
    moving_cluster.until(lambda: target(moving_cluster, node) is None)


def test_a_move_keeps_to_the_throttle_until_it_is_removed(moving_cluster: Cluster) -> None:
    """Meanwhile the replicas in sync commit at once."""
    moving_cluster.create(copies=1)
    (before,) = moving_cluster.node(1).machine.topics["t"].partitions[0].replicas
    bulk = [bytes([number]) * 100_000 for number in range(20)]
    moving_cluster.send(*bulk)
    (after, *_) = others(before)
    throttle(moving_cluster, 10_000)
    move(moving_cluster, after, node=before)
    moving_cluster.until(lambda: after in copies(moving_cluster))
    began = moving_cluster.world.time.now
    moving_cluster.send(b"more")
    assert moving_cluster.world.time.now - began < 5
    moving_cluster.world.run_for(60)
    assert target(moving_cluster) == (after,), "2 MB take 200 s"
    throttle(moving_cluster, 0)
    until_moved(moving_cluster, after)
    assert moving_cluster.read(21) == [*bulk, b"more"]


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
