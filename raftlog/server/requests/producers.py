"""Producers of a partition that this broker leads, committed or not."""

from __future__ import annotations

from typing import NamedTuple

from raftlog.server.context import BrokerContext
from raftlog.storage.producer_state import ActiveProducer
from raftlog.types import LeaderEpoch, Offset


class Listed(NamedTuple):
    """``producers``: some of ``total``, the one that wrote last first."""

    total: int
    high_watermark: Offset
    producers: list[ActiveProducer]


def list_producers(
    context: BrokerContext,
    topic: str,
    partition: int,
    leader_epoch: LeaderEpoch,
    *,
    skip: int,
    limit: int,
) -> Listed:
    """Return ``limit`` producers after the first ``skip``.

    Raises the errors of ``TopicTable.host``, ``NotLeaderError``, and errors of the leader epoch (-1
    if the client knows none).
    """
    host = context.topics.host(topic, partition)
    host.check_epoch(leader_epoch)
    host.check_leading()
    known = host.log.producers
    return Listed(len(known), host.high_watermark, known.active(skip, limit))
