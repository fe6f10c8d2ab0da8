"""Data directories of earlier releases, in which a broker without `voters` was in no cluster.

Such a broker stored its topics in the catalog and its access rules in the file `access`, and had no
consensus journal. It becomes the only voter of a cluster with the same ID and the same topics. The
logs and the catalog stay as they are.

Crash-safe: the journal that contains the cluster is complete before it gets its name, and a
directory with a journal is not migrated. Until then, the directory is unchanged.
"""

from __future__ import annotations

import logging

from raftlog.config import BrokerConfig
from raftlog.consensus.journal import Journal
from raftlog.consensus.settings import BASE_BYTES_MAX
from raftlog.disk import Disk
from raftlog.errors import DataDirectoryError
from raftlog.protocol.security import PEER_PROTOCOL_VERSION
from raftlog.replication.cluster_commands import (
    ClusterCommand,
    CreateTopic,
    RegisterBroker,
    UnfenceBroker,
    decode_records,
    encode_records,
)
from raftlog.replication.cluster_state import ClusterMachine, Refused
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.storage import Store, state_files

logger = logging.getLogger(__name__)

SUFFIX = ".migration"  # of the journal that is not complete


def is_needed(store: Store, disk: Disk) -> bool:
    """Whether the directory is of a broker that was in no cluster."""
    has_id = bool(store.identity.cluster_id)
    return has_id and not disk.exists(store.journal_path) and not store.was_in_cluster


def migrate(store: Store, disk: Disk, config: BrokerConfig, *, now_ms: int) -> None:
    """Write the journal. ``now_ms``: wall-clock time.

    Raises ``DataDirectoryError`` if a cluster cannot have these topics, ``DamagedLogError`` if the
    access rules are corrupt, and the errors of ``Journal``.
    """
    access = state_files.read_access(disk, store.directory)
    state = _state(store, config, access, now_ms)
    if len(state) > BASE_BYTES_MAX:
        raise _refusal(store, f"its topics take {len(state)} bytes, over {BASE_BYTES_MAX}")
    draft = store.journal_path + SUFFIX
    if disk.exists(draft):
        disk.remove(draft)
    journal = Journal.open(disk, draft)
    try:
        voters = {store.identity.broker_id: store.identity.directory_id}
        journal.group(CLUSTER_GROUP).begin_generation(1, voters, state)
        # guard: the journal of a migrated directory is complete before it has its name
        journal.sync()
    finally:
        journal.close()
    disk.rename(draft, store.journal_path)
    disk.sync_dir(store.directory)
    logger.warning(
        "data directory migrated: cluster_id=%s topics=%d. The broker is a cluster of one now, "
        "which other brokers can join. Earlier releases cannot open the directory",
        store.identity.cluster_id,
        len(store.topics),
    )


def _state(store: Store, config: BrokerConfig, access: bytes, now_ms: int) -> bytes:
    """Return the cluster state with the topics and access rules of the directory.

    Its version is the time: group coordinators used that as the version of the topics, and a later
    one waits for a version that is not lower.
    """
    identity = store.identity
    records = decode_records(access)
    records.cluster_id = identity.cluster_id
    records.peer_protocol = PEER_PROTOCOL_VERSION
    records.version = max(records.version + 1, now_ms, store.saved_time_ms or 0)
    machine = ClusterMachine()
    machine.restore(encode_records(records))
    epoch = _applied(
        store,
        machine,
        RegisterBroker(
            id=identity.broker_id,
            host=config.listen.host,
            port=max(config.listen.port, 1),
            rack=config.rack,
            directory_id=identity.directory_id,
            boot=0,
        ),
    )
    _applied(store, machine, UnfenceBroker(id=identity.broker_id, broker_epoch=epoch))
    for topic in store.topics.values():
        create = CreateTopic(
            name=topic.name,
            topic_id=topic.id,
            partitions=topic.partitions,
            replication_factor=1,
            overrides=dict(topic.overrides),
        )
        _applied(store, machine, create)
    return machine.snapshot()


def _applied(store: Store, machine: ClusterMachine, command: ClusterCommand) -> int:
    outcome = machine.apply(command.encode())
    if isinstance(outcome, Refused):
        raise _refusal(store, outcome.message)
    return outcome.value if isinstance(outcome.value, int) else 0


def _refusal(store: Store, reason: str) -> DataDirectoryError:
    return DataDirectoryError(
        f"the data directory {store.directory} of an earlier release was not changed: a cluster "
        f"cannot continue with it: {reason}. Start the former release, copy the topics with "
        "`raftlog backup --to URL`, and restore them with `raftlog restore --from URL`"
    )
