"""Features of a broker: the versions of formats and protocols that it reads and writes.

No level is negotiated: a broker writes the newest version that it has. So brokers of two releases
can share a cluster if each reads what the other writes, which ``raftlog cluster features`` shows.
"""

from __future__ import annotations

from typing import Final

from raftlog.consumer_groups import records as group_records
from raftlog.protocol.handshake import FeatureRange
from raftlog.protocol.peer_auth import PEER_PROTOCOL_VERSION, PEER_PROTOCOL_VERSION_MIN
from raftlog.record import batch
from raftlog.replication.cluster_records import SNAPSHOT_FORMAT
from raftlog.replication.partition_state import STATE_FORMAT
from raftlog.storage import identity


def _one(name: str, version: int) -> FeatureRange:
    return FeatureRange(name=name, version_min=version, version_max=version, level=version)


FEATURES: Final = [
    _one("cluster.state", SNAPSHOT_FORMAT),
    _one("consumer.groups", group_records.VERSION),
    _one("data.directory", identity.FORMAT_VERSION),
    _one("partition.state", STATE_FORMAT),
    FeatureRange(
        name="peer.protocol",
        version_min=PEER_PROTOCOL_VERSION_MIN,
        version_max=PEER_PROTOCOL_VERSION,
        level=PEER_PROTOCOL_VERSION,
    ),
    _one("record.batch", batch.MAGIC),
    FeatureRange(
        name="record.layout",
        version_min=batch.COLUMNS,
        version_max=batch.KAFKA_ROWS,
        level=batch.KAFKA_ROWS,
    ),
]
