"""Clusters of real processes: they answer when they should, and only their own processes end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.config import Address
from raftlog.errors import BrokerUnavailableError, UnsupportedFeatureError
from raftlog.testing import BrokerProcess, Cluster, cluster, wait_until
from raftlog.testing.cluster import answers, free_port

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster(brokers=1) as started:
        yield started


@pytest.fixture
def broker(running: Cluster) -> BrokerProcess:
    running.start()
    return running.brokers[0]


def test_a_started_broker_answers_at_its_address(running: Cluster, broker: BrokerProcess) -> None:
    assert broker.running
    assert answers(broker.address)
    assert running.bootstrap == str(broker.address)


def test_a_killed_broker_is_gone_and_comes_back_at_the_same_address(broker: BrokerProcess) -> None:
    address, pid = broker.address, broker.pid
    broker.kill()
    assert not broker.running
    assert broker.pid is None
    assert not answers(address)
    broker.start()
    assert broker.address == address
    assert broker.pid != pid
    assert answers(address)


def test_a_stopped_broker_ends_in_peace(broker: BrokerProcess) -> None:
    broker.stop()
    assert not broker.running
    assert "everything is on the disk" in broker.log_path.read_text()


def test_a_paused_broker_keeps_its_connections_and_goes_on_when_resumed(
    broker: BrokerProcess,
) -> None:
    broker.pause()
    assert broker.running
    broker.resume()
    wait_until(lambda: answers(broker.address), what="the resumed broker's answer")


def test_a_paused_broker_can_be_stopped(broker: BrokerProcess) -> None:
    broker.pause()
    broker.stop()
    assert not broker.running


def test_a_running_broker_is_not_started_twice(broker: BrokerProcess) -> None:
    with pytest.raises(ValueError, match="runs already"):
        broker.spawn()


def test_an_address_in_use_is_refused(tmp_path: Path, broker: BrokerProcess) -> None:
    rival = BrokerProcess(id=2, address=broker.address, data_dir=tmp_path / "rival")
    with pytest.raises(BrokerUnavailableError, match=f"{broker.address}.*take another"):
        rival.start()
    assert broker.running


def test_a_broker_that_cannot_start_says_why(tmp_path: Path, broker: BrokerProcess) -> None:
    rival = BrokerProcess(2, Address("127.0.0.1", free_port()), broker.data_dir)
    with pytest.raises(BrokerUnavailableError, match=r"ended with status 1: .*broker"):
        rival.start()
    assert broker.running


def test_killing_what_was_never_started_does_nothing(tmp_path: Path) -> None:
    idle = BrokerProcess(
        id=1, address=Address("127.0.0.1", free_port()), data_dir=tmp_path / "idle"
    )
    idle.kill()
    idle.stop()
    assert idle.pid is None


def test_a_broker_ends_with_its_starter(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    starter = os.fork()
    if starter == 0:  # a starter that is killed without a chance to clean up
        started = BrokerProcess(1, Address("127.0.0.1", free_port()), tmp_path / "broker")
        started.spawn()
        os.write(write_end, str(started.pid).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(write_end)
    pid = int(os.read(read_end, 20))
    os.waitpid(starter, 0)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), timeout_s=20, what="the orphan's end")


def test_clusters_of_more_brokers_come_with_replication() -> None:
    with pytest.raises(UnsupportedFeatureError, match="replication"), cluster(brokers=3):
        pass


def test_waiting_in_vain_says_for_what() -> None:
    with pytest.raises(TimeoutError, match="the moon: not within 0 s"):
        wait_until(lambda: False, timeout_s=0, what="the moon")
