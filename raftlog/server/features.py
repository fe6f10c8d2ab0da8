"""Features of a broker: the versions of formats and protocols that it reads and writes.

The level of the protocol between brokers, and with it that of the cluster state, is part of the
cluster state. Of the other formats, a broker writes the newest version that it has. So brokers of
two releases can share a cluster if each reads what the other writes, which ``raftlog cluster
features`` shows.
"""

from __future__ import annotations

from functools import cache

from raftlog.consumer_groups import records as group_records
from raftlog.protocol.handshake import FeatureRange
from raftlog.protocol.peer_auth import PEER_PROTOCOL_VERSION, PEER_PROTOCOL_VERSION_MIN
from raftlog.record import batch
from raftlog.replication.cluster_records import (
    SNAPSHOT_FORMAT,
    SNAPSHOT_FORMAT_MIN,
    snapshot_format,
)
from raftlog.replication.partition_state import STATE_FORMAT
from raftlog.storage import identity


def _one(name: str, version: int) -> FeatureRange:
    return FeatureRange(name=name, version_min=version, version_max=version, level=version)


@cache
def features(peer_protocol: int) -> list[FeatureRange]:
    """Return all features, sorted by name. ``peer_protocol``: of the cluster state."""
    return [
        FeatureRange(
            name="cluster.state",
            version_min=SNAPSHOT_FORMAT_MIN,
            version_max=SNAPSHOT_FORMAT,
            level=snapshot_format(peer_protocol),
        ),
        FeatureRange(
            name="consumer.groups",
            version_min=group_records.VERSION_MIN,
            version_max=group_records.VERSION,
            level=group_records.VERSION,
        ),
        _one("data.directory", identity.FORMAT_VERSION),
        _one("partition.state", STATE_FORMAT),
        FeatureRange(
            name="peer.protocol",
            version_min=PEER_PROTOCOL_VERSION_MIN,
            version_max=PEER_PROTOCOL_VERSION,
            level=peer_protocol,
        ),
        _one("record.batch", batch.MAGIC),
        FeatureRange(
            name="record.layout",
            version_min=batch.COLUMNS,
            version_max=batch.KAFKA_ROWS,
            level=batch.KAFKA_ROWS,
        ),
    ]
