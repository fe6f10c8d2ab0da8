"""Promise 1, on real processes: of three brokers one is killed, or two lost with their disks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raftlog import Admin, Producer, TopicPartition
from raftlog.errors import RaftlogError, RetriableError
from raftlog.testing import Cluster, cluster
from tests.integration.load import (
    TOPIC,
    Load,
    bring_back,
    create,
    leader_of,
    lose,
    read_all,
    same_everywhere,
    summary,
    until_in_sync,
)

pytestmark = pytest.mark.integration

DELIVERY_S = 4.0


def kill_leaders(running: Cluster, load: Load, times: int) -> list[float]:
    """SIGKILL the leader, and bring it back; how long nothing was acknowledged, for each."""
    silences = []
    for _ in range(times):
        leader = running.broker(leader_of(running))
        killed_at = time.monotonic()
        leader.kill()
        load.goes_on()
        silences.append(load.silence(killed_at))
        leader.start()
        until_in_sync(running)
        load.goes_on(count=100)
    return silences


@pytest.mark.parametrize(
    "trials", [2, pytest.param(8, marks=[pytest.mark.seeds, pytest.mark.timeout(600)])]
)
def test_writes_go_on_when_the_leader_is_killed(
    tmp_path: Path, trials: int, say: Callable[[str], None]
) -> None:
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            silences = kill_leaders(running, load, trials)
        load.check(running.bootstrap)
        same_everywhere(running)
    say(f"SIGKILL of the leader, without an acknowledgement: {summary(silences)}")
    assert max(silences) < 5.0
    assert trials < 8 or statistics.median(silences) < 2.0  # of three, one may be unlucky


def refusal(bootstrap: str) -> RaftlogError:
    """What a producer is told that has no more patience than ``DELIVERY_S``."""
    with (
        Producer(
            bootstrap,
            linger_ms=0,
            request_timeout_ms=int(DELIVERY_S * 500),
            delivery_timeout_ms=int(DELIVERY_S * 1_000),
        ) as producer,
        pytest.raises(RaftlogError) as refused,
    ):
        producer.send(TOPIC, b"refused", partition=0).result(10 * DELIVERY_S)
    return refused.value


def recover(running: Cluster, load: Load, left: int) -> None:
    """The operator's word, then the two that were lost come back, with nothing."""
    alone = str(running.broker(left).address)
    with Admin(alone) as admin:
        shown = admin.recover_cluster(dry_run=True)
        recovered = admin.recover_cluster(lost=shown.lost, accept_loss=shown.loss_id)
        assert [part.problem for part in recovered.partitions] == [""]
        assert recovered.partitions[0].leader == left
        load.goes_on(count=100)
        bring_back(running)
        admin.alter_topic(TOPIC, {"min.insync.replicas": None})
    load.goes_on(count=100)


@pytest.mark.parametrize(
    "survivor", ["leader", pytest.param("follower", marks=pytest.mark.nightly)]
)
def test_the_last_of_three_serves_what_is_committed_and_recovers_everything(
    tmp_path: Path, survivor: str, say: Callable[[str], None]
) -> None:
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            load.goes_on(count=200)
            long_committed = dict(load.ledgers[0].acknowledged)
            load.goes_on(count=200)
            leader = leader_of(running)
            left = leader if survivor == "leader" else leader % 3 + 1
            lose(running, {1, 2, 3} - {left})
            alone = str(running.broker(left).address)
            found = read_all(alone, TopicPartition(TOPIC, 0), read_from="replica")
            assert [offset for offset, _ in found] == list(range(len(found)))
            assert {value: offset for offset, value in found}.items() >= long_committed.items()
            noted = refusal(alone)
            say(f"the {survivor} is left; a producer is told: {noted!r}")
            assert isinstance(noted, RetriableError), "nothing was done, and it says so"
            recover(running, load, left)
        load.check(running.bootstrap)
        same_everywhere(running)


def test_recovering_at_once_leaves_nothing_undone(tmp_path: Path) -> None:
    """An operator, or a script, that is quicker than the brokers' own news of who is gone."""
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            left = leader_of(running) % 3 + 1
            lose(running, {1, 2, 3} - {left})
            recover(running, load, left)
        load.check(running.bootstrap)
        same_everywhere(running)
