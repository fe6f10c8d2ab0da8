"""The current leader of a partition, for a client that sent its request to another broker."""

from __future__ import annotations

from typing import NamedTuple

from raftlog.server.context import BrokerContext
from raftlog.types import LeaderEpoch


class Leader(NamedTuple):
    """A leader and its epoch; -1 for both while none is known."""

    broker_id: int
    epoch: LeaderEpoch


def leader_of(context: BrokerContext, topic_name: str, partition: int) -> Leader:
    """Return the leader as this broker knows it."""
    topic = context.topics.get(topic_name)
    if topic is None or partition >= len(topic.hosts):
        return Leader(-1, -1)
    info = context.topics.info(topic, partition)
    return Leader(-1, -1) if info.leader is None else Leader(info.leader, info.leader_epoch)
