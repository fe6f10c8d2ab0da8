"""A broker among others, as a whole: real brokers on a simulated network, in virtual time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.errors import ClusterNotReadyError, UnknownTopicError
from raftlog.server.cluster.elections import HostedPartition
from raftlog.server.cluster.node import POLL_SECONDS, ClusterNode
from raftlog.testing.simulator.world import DATA_DIRECTORY, ClientMachine, World
from raftlog.types import NewTopic
from tests.consensus.journals import block_ends
from tests.server.cluster.simulated import Cluster


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
    hosted.host.hindrance.refused()  # no disk space
    assert checks_in(2).count(0) >= 3
    hosted.host.hindrance.found()
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
