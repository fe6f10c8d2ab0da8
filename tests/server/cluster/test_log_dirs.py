"""A broker that loses one of its disks: the replicas on it are offline, and all else goes on."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import cast

import pytest

from raftlog.client.descriptions import BrokerDescription
from raftlog.protocol.cluster import TransferLeaderRequest
from raftlog.server.broker import Broker
from raftlog.server.cluster.elections import HostedPartition
from raftlog.server.http.collect import standing_of
from raftlog.storage.log_dirs import DiskMeasure
from raftlog.testing.disk import FOREVER, Fault
from raftlog.testing.simulator.world import LOG_DIRECTORY, BrokerMachine, Hang, World
from tests.server.cluster.simulated import Cluster, on, operations

PARTITIONS = 4


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with World(13, brokers=3) as world:
        world.brokers[1].log_dirs = (LOG_DIRECTORY,)
        made = Cluster(world)
        made.create(partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            made.until(lambda partition=partition: set(isr(made, partition)) == {1, 2, 3})  # type: ignore[misc]
            lead(made, 2, partition)
        send_all(made)
        yield made


def isr(cluster: Cluster, partition: int) -> set[int]:
    return set(cluster.state(1, partition).isr)


def lead(cluster: Cluster, broker: int, partition: int) -> None:
    if cluster.leader(1, partition) != broker:
        cluster.world.run_for(1.1)  # transfers of a partition are limited
        request = TransferLeaderRequest(topic="t", partition=partition, to=broker)
        on(cluster, 1, operations(cluster, 1).transfer_leader(request))
    cluster.until(lambda: cluster.state(1, partition).leader == broker)


def send_all(cluster: Cluster) -> None:
    for partition in range(PARTITIONS):
        cluster.send(b"a", b"b", partition=partition)


def machine(cluster: Cluster) -> BrokerMachine:
    return cluster.world.brokers[1]


def broker(cluster: Cluster) -> Broker:
    return cast(Broker, machine(cluster).broker)


def hosted(cluster: Cluster, partition: int) -> HostedPartition:
    topic = cluster.node(2).machine.topics["t"].id
    found = cluster.node(2).partitions.find(topic, partition)
    assert found is not None
    return found


def on_second_disk(cluster: Cluster) -> list[int]:
    found = []
    for partition in range(PARTITIONS):
        host = hosted(cluster, partition).host
        if host is not None and host.log.log_dir.path == LOG_DIRECTORY:
            found.append(partition)
    return found


def described(cluster: Cluster) -> BrokerDescription:
    brokers = cluster.admin(lambda admin: admin.describe_cluster(["t"])).brokers
    return next(each for each in brokers if each.id == 2)


def only_the_second_disk_is_down(cluster: Cluster, boots: int) -> None:
    """Others lead and replicate what was on it; the broker leads the rest, in the same process."""
    lost = on_second_disk(cluster)
    assert len(lost) == 2
    for partition in range(PARTITIONS):
        members = {1, 3} if partition in lost else {1, 2, 3}
        cluster.until(lambda p=partition, m=members: isr(cluster, p) == m)  # type: ignore[misc]
        leader = cluster.leader(1, partition)
        assert (leader == 2) is (partition not in lost)
    cluster.world.run_for(5)
    assert machine(cluster).boots == boots
    assert machine(cluster).is_running
    send_all(cluster)


def is_repaired(cluster: Cluster) -> None:
    machine(cluster).kill()
    machine(cluster).heal()
    cluster.start(2)
    for partition in range(PARTITIONS):
        cluster.until(lambda p=partition: isr(cluster, p) == {1, 2, 3})  # type: ignore[misc]
    assert broker(cluster).log_dirs.problems == ()


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS])
def test_a_disk_that_fails_takes_down_its_replicas_only(cluster: Cluster, error: int) -> None:
    boots = machine(cluster).boots
    fault = Fault(error=error, path=f"{LOG_DIRECTORY}/*", times=FOREVER)
    machine(cluster).disk.faults.append(fault)
    cluster.send(b"x", partition=1)  # the other one learns it from the directory
    only_the_second_disk_is_down(cluster, boots)
    (problem,) = broker(cluster).log_dirs.problems
    assert f"log directory {LOG_DIRECTORY} has failed" in problem
    assert standing_of(broker(cluster)).log_dirs == (problem,)
    for partition in on_second_disk(cluster):
        host = hosted(cluster, partition).host
        assert host is not None
        assert host.closed is None, "it is not replaced before its disk is repaired"
    found = described(cluster).disk
    assert found is not None
    assert [(each.path, each.failed) for each in found.log_dirs] == [(LOG_DIRECTORY, True)]
    assert any(LOG_DIRECTORY in timed.event.text for timed in broker(cluster).context.events.events)
    is_repaired(cluster)


def test_a_disk_that_hangs_holds_up_its_replicas_only(cluster: Cluster) -> None:
    boots, hang = machine(cluster).boots, Hang(path=f"{LOG_DIRECTORY}/*")
    machine(cluster).hang(hang)
    for partition in on_second_disk(cluster):
        cluster.send(b"x", partition=partition)
    only_the_second_disk_is_down(cluster, boots)
    assert "completes no sync" in broker(cluster).log_dirs.problems[0]
    hang.end()
    for partition in range(PARTITIONS):  # without a restart
        cluster.until(lambda p=partition: isr(cluster, p) == {1, 2, 3})  # type: ignore[misc]


def test_a_disk_that_is_unmounted_is_noticed_without_any_write(cluster: Cluster) -> None:
    boots = machine(cluster).boots
    machine(cluster).unmount(LOG_DIRECTORY)
    only_the_second_disk_is_down(cluster, boots)
    assert not machine(cluster).disk.exists(LOG_DIRECTORY)
    is_repaired(cluster)


def test_a_disk_without_work_that_fails_is_noticed(cluster: Cluster) -> None:
    fault = Fault(error=errno.EROFS, path=f"{LOG_DIRECTORY}/probe*", times=FOREVER)
    machine(cluster).disk.faults.append(fault)
    for partition in on_second_disk(cluster):
        cluster.until(lambda p=partition: isr(cluster, p) == {1, 3})  # type: ignore[misc]
    assert "Read-only" in broker(cluster).log_dirs.problems[0]


def test_a_broker_starts_without_one_of_its_disks(cluster: Cluster) -> None:
    machine(cluster).is_kept_down = True
    machine(cluster).kill()
    machine(cluster).unmount(LOG_DIRECTORY)
    cluster.start(2)
    boots = machine(cluster).boots
    cluster.world.run_for(5)  # the others have noticed that it was away
    for partition in (0, 2):
        cluster.until(lambda p=partition: isr(cluster, p) == {1, 2, 3})  # type: ignore[misc]
        lead(cluster, 2, partition)
    only_the_second_disk_is_down(cluster, boots)
    is_repaired(cluster)


def test_an_empty_disk_is_filled_from_the_other_brokers(cluster: Cluster) -> None:
    machine(cluster).is_kept_down = True
    machine(cluster).kill()
    disk = machine(cluster).disk
    disk.lose(LOG_DIRECTORY)
    disk.make_dirs(LOG_DIRECTORY)
    cluster.start(2)
    for partition in range(PARTITIONS):
        cluster.until(lambda p=partition: isr(cluster, p) == {1, 2, 3})  # type: ignore[misc]
    cluster.until(lambda: len(on_second_disk(cluster)) == 2)
    topic = cluster.node(2).machine.topics["t"].id
    assert disk.list_dir(f"{LOG_DIRECTORY}/topics/t/{topic}")[:1] == ["1"]


def test_a_full_disk_stops_producers_on_it_only(cluster: Cluster) -> None:
    watched = next(iter(broker(cluster).log_dirs.watched.values()))
    hosts = [hosted(cluster, partition).host for partition in range(PARTITIONS)]
    assert [host is not None and host._services.space is watched.space for host in hosts] == [
        False, True, False, True,
    ]  # fmt: skip
    assert not watched.log_dir.is_avoided()
    watched.space.measured(DiskMeasure(1, 1_000_000_000_000))
    assert "the disk of disk-2 are free" in broker(cluster).log_dirs.problems[0]
    assert watched.log_dir.is_avoided()
    assert broker(cluster).space.reason == ""


def test_the_only_complete_copy_is_waited_for() -> None:
    """The other replica was down: its election would lose what only the failed disk has."""
    with World(17, brokers=3) as world:
        world.brokers[1].log_dirs = (LOG_DIRECTORY,)
        cluster = Cluster(world)
        cluster.create(partitions=PARTITIONS, copies=2)
        partition = on_second_disk(cluster)[0]
        cluster.until(lambda: len(isr(cluster, partition)) == 2)
        (other,) = set(cluster.state(2, partition).replicas) - {2}
        world.brokers[other - 1].is_kept_down = True
        world.brokers[other - 1].kill()
        cluster.until(lambda: set(cluster.state(2, partition).isr) == {2})
        cluster.until(lambda: cluster.state(2, partition).leader == 2)
        cluster.send(b"a", partition=partition)
        broker(cluster)._store.log_dirs.further[0].fail("a loose cable")
        cluster.start(other)
        cluster.world.run_for(20)
        state = cluster.state(2, partition)
        assert set(state.isr) == {2}
        assert state.unclean_epoch == -1
        machine(cluster).kill()
        cluster.start(2)
        cluster.until(lambda: "t" in cluster.node(2).machine.topics)
        cluster.until(lambda: set(cluster.state(2, partition).isr) == {2, other})
        cluster.send(b"b", partition=partition)
        host = hosted(cluster, partition).host
        assert host is not None
        cluster.until(lambda: host.high_watermark == 2)


def test_a_topic_on_a_failed_disk_can_be_deleted(cluster: Cluster) -> None:
    broker(cluster)._store.log_dirs.further[0].fail("out of order")
    cluster.admin(lambda admin: admin.delete_topics(["t"]))
    cluster.until(lambda: not list(broker(cluster)._store.hosted()))
    disk = machine(cluster).disk
    assert disk.list_dir(f"{LOG_DIRECTORY}/topics/t") != []
    machine(cluster).kill()
    cluster.start(2)
    cluster.until(lambda: disk.list_dir(f"{LOG_DIRECTORY}/topics/t") == [])
