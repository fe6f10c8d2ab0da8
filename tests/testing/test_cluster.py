"""Clusters of real processes: together from the start, cut apart and healed, wiped and back."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.config import Address
from raftlog.errors import BrokerUnavailableError
from raftlog.testing import Cluster, cluster, wait_until
from raftlog.testing.cluster import answers, free_ports, local_cluster, members
from tests.client.samples import python

pytestmark = pytest.mark.integration
SOON_S = 30.0


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster(brokers=3) as started:
        yield started


@pytest.fixture
def three(running: Cluster) -> Cluster:
    """Three brokers that run and reach each other."""
    running.heal()
    for broker in running.brokers:
        broker.resume()
    running.start()
    return running


@pytest.fixture
def topic(three: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own with one partition and three replicas, all in sync."""
    name: str = request.node.name[:200]
    with Admin(three.bootstrap) as admin:
        admin.create_topics([NewTopic(name, replication_factor=3)])
    wait_until(lambda: three.is_in_sync(name, 0), timeout_s=SOON_S, what="replicas in sync")
    return name


def send(three: Cluster, topic: str, values: list[bytes]) -> None:
    with Producer(three.bootstrap) as producer:
        producer.send_many(topic, values, partition=0).result(timeout=SOON_S)


def read(three: Cluster, topic: str) -> list[bytes | None]:
    partition = TopicPartition(topic, 0)
    found: list[bytes | None] = []
    with Consumer(three.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        while consumer.position(partition) < end:
            found += [record.value for record in consumer.poll(timeout_ms=1000)]
    return found


def leader_of(three: Cluster, topic: str) -> int:
    wait_until(lambda: three.leader(topic, 0) is not None, timeout_s=SOON_S, what="a leader")
    found = three.leader(topic, 0)
    assert found is not None
    return found


def test_started_brokers_have_each_other(three: Cluster) -> None:
    assert three.bootstrap == ",".join(str(broker.address) for broker in three.brokers)
    for broker in three.brokers:
        assert answers(broker.address)
        assert members(broker.address) == {1, 2, 3}


def test_one_broker_is_a_cluster_of_its_own() -> None:
    with cluster() as alone:
        (broker,) = alone.brokers
        assert members(broker.address) == {1}
        assert "voters" not in broker.settings
        with pytest.raises(ValueError, match="created without relays"):
            alone.isolate(1)
    assert not broker.running
    assert not broker.data_dir.exists()


@pytest.mark.nightly
def test_a_killed_leader_is_replaced_and_comes_back(three: Cluster, topic: str) -> None:
    send(three, topic, [b"before"])
    first = leader_of(three, topic)
    three.broker(first).kill()
    send(three, topic, [b"while it is down"])
    assert leader_of(three, topic) != first
    three.broker(first).start()
    wait_until(lambda: three.is_in_sync(topic, 0), timeout_s=SOON_S, what="the return")
    assert read(three, topic) == [b"before", b"while it is down"]


@pytest.mark.nightly
def test_all_killed_at_once_come_back_with_everything(three: Cluster, topic: str) -> None:
    send(three, topic, [b"1", b"2"])
    addresses = [broker.address for broker in three.brokers]
    three.kill()
    assert not any(broker.running for broker in three.brokers)
    three.start()
    assert [broker.address for broker in three.brokers] == addresses
    assert read(three, topic) == [b"1", b"2"]


def test_all_are_stopped_in_peace(three: Cluster) -> None:
    three.stop()
    for broker in three.brokers:
        assert not broker.running
        assert broker.last_words().endswith("state=synced")


def test_a_wiped_broker_comes_back_empty_and_gets_everything(three: Cluster, topic: str) -> None:
    send(three, topic, [b"kept"])
    with pytest.raises(ValueError, match=r"broker 3 is running\. Kill it first"):
        three.wipe(3)
    three.broker(3).kill()
    three.wipe(3)
    assert not three.broker(3).data_dir.exists()
    three.wipe(3)  # a disk that is gone cannot be more so
    three.start()
    wait_until(lambda: three.is_in_sync(topic, 0), timeout_s=SOON_S, what="the copy")
    assert three.views(topic, 0)[3].log_end_offset == 1


def test_a_partition_leaves_the_majority_at_work(three: Cluster, topic: str) -> None:
    old = leader_of(three, topic)
    rest = {1, 2, 3} - {old}
    three.partition([{old}, rest])
    wait_until(lambda: three.leader(topic, 0) in rest, timeout_s=SOON_S, what="another leader")
    for broker in three.brokers:
        assert answers(broker.address)  # clients reach both sides
    send(three, topic, [b"by the majority"])
    three.heal()
    wait_until(lambda: three.is_in_sync(topic, 0), timeout_s=SOON_S, what="the healing")
    assert read(three, topic) == [b"by the majority"]


def test_the_last_partition_counts(three: Cluster) -> None:
    three.partition([{1}, {2}, {3}])
    three.partition([{1, 2}])  # 3 is on a side of its own
    assert three._apart == {frozenset((1, 3)), frozenset((2, 3))}
    three.cut(1, 2)
    assert len(three._apart) == 3
    three.heal()
    three.isolate(2)
    assert three._apart == {frozenset((1, 2)), frozenset((2, 3))}
    with pytest.raises(ValueError, match="broker 1 is on two sides"):
        three.partition([{1}, {1, 2}])
    with pytest.raises(ValueError, match="no broker 4"):
        three.partition([{4}, {1, 2, 3}])


def test_nobody_waits_for_who_cannot_join(three: Cluster) -> None:
    three.broker(1).kill()
    three.broker(2).pause()
    three.start()  # 1 and 3 are the majority
    assert {1, 3} <= members(three.broker(1).address)
    three.kill()
    three.partition([{1}, {2}, {3}])
    three.start()  # each answers, and that is all
    assert all(answers(broker.address) for broker in three.brokers)


def test_joining_that_takes_too_long_says_so(three: Cluster) -> None:
    three.broker(1).pause()
    three.broker(1)._paused = False  # as if it had stopped by itself
    with pytest.raises(TimeoutError, match=r"broker 1 has \[1, 2, 3\] in the cluster"):
        three.wait_members(timeout_s=0)


def test_a_cluster_is_resumed_where_it_lives(tmp_path: Path) -> None:
    addresses = {
        number: Address("127.0.0.1", port) for number, port in enumerate(free_ports(3), start=1)
    }
    made = local_cluster(tmp_path, addresses=addresses, settings={"rack": "r"})
    assert made.relays is None
    secret = tmp_path / "cluster.secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert len(secret.read_text()) >= 64
    for broker in made.brokers:
        assert broker.settings["rack"] == "r"
        assert broker.settings["voters"] == ",".join(f"{n}@{a}" for n, a in addresses.items())
        assert broker.settings["cluster.secret.file"] == str(secret)
    before = secret.read_text()
    again = local_cluster(tmp_path, brokers=3)
    assert [broker.data_dir for broker in again.brokers] == [b.data_dir for b in made.brokers]
    assert secret.read_text() == before


def test_a_failed_start_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "broker-3").write_text("in the way of the data directory")
    names = {thread.name for thread in threading.enumerate()}
    with (
        pytest.raises(BrokerUnavailableError, match="broker 3 ended"),
        cluster(brokers=3, directory=tmp_path),
    ):
        pass
    assert {thread.name for thread in threading.enumerate()} == names
    for line in (tmp_path / "broker-1.toml").read_text().splitlines():
        if line.startswith("listen"):
            host, _, port = line.split('"')[1].rpartition(":")
            assert not answers(Address(host, int(port)))


def test_a_forked_child_that_leaves_the_block_ends_nothing() -> None:
    done = python(
        """
        import os, sys
        from raftlog.testing import cluster
        with cluster() as running:
            directory = running.directory
            if not (child := os.fork()):
                sys.exit()
            assert os.waitpid(child, 0)[1] == 0
            assert running.brokers[0].running
            assert directory.exists()
        assert not directory.exists()
        """
    )
    assert done.returncode == 0, done.stderr
