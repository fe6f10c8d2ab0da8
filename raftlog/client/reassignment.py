"""Requested replicas of partitions: checks of arguments, and the request. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raftlog import limits
from raftlog.client.settings import BROKER_IDS, integer
from raftlog.protocol.cluster import PartitionMove, ReassignRequest
from raftlog.types import check_topic_name


def reassignment(
    topic: str,
    replicas: Mapping[int, Sequence[int]],
    before: Mapping[int, Sequence[int]],
    replication_factor: int,
) -> ReassignRequest:
    """Return the request of ``AsyncAdmin.reassign_partitions``, which describes the arguments."""
    return ReassignRequest(
        topic=check_topic_name(topic),
        moves=[
            PartitionMove(
                partition=integer("partition", partition, 0, limits.PARTITIONS_PER_TOPIC_MAX),
                replicas=[integer("replica", broker, *BROKER_IDS) for broker in brokers],
                before=list(before.get(partition, ())),
            )
            for partition, brokers in sorted(replicas.items())
        ],
        replication_factor=integer(
            "replication_factor", replication_factor, 0, limits.REPLICATION_FACTOR_MAX
        ),
    )
