"""Data directories of earlier releases, in which a broker without `voters` was in no cluster."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from raftlog import limits
from raftlog.config import Address, BrokerConfig, Voter
from raftlog.errors import DataDirectoryError
from raftlog.replication.cluster_commands import CreateAcls
from raftlog.replication.cluster_state import ClusterMachine, Done
from raftlog.security.acl import Acl
from raftlog.server.broker import _open_files
from raftlog.server.cluster import migration
from raftlog.storage import Store, state_files
from raftlog.testing.disk import SimDisk
from raftlog.testing.simulator.world import DATA_DIRECTORY, World
from tests.server.cluster.simulated import Cluster
from tests.storage.crashes import sweep
from tests.storage.logs import append, stored

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
        append(log, value, leader_epoch=EPOCH)
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
        "voters": replace(CONFIG, voters=(Voter(1, at), Voter(2, Address("h", 2)))),
        "join": replace(CONFIG, join=(at,)),
    }[setting]
    with pytest.raises(DataDirectoryError, match=f"once without `{setting}`"):
        opened(disk, config)
    store, machine = opened(disk, replace(CONFIG, voters=(Voter(1, at),)))
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
