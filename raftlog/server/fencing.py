"""Fencing by leader epoch: compares the epoch of a client with this broker's. Pure.

Source: KIP-320.
"""

from __future__ import annotations

from raftlog.errors import FencedLeaderEpochError, UnknownLeaderEpochError
from raftlog.types import LeaderEpoch, TopicPartition


def check_epoch(
    known_epoch: LeaderEpoch, leader_epoch: LeaderEpoch, topic_partition: TopicPartition
) -> None:
    """Raise unless the epoch of the client is this replica's; -1 matches any.

    ``FencedLeaderEpochError`` for an older one, ``UnknownLeaderEpochError`` for a newer one.
    """
    if known_epoch == -1 or known_epoch == leader_epoch:
        return
    if known_epoch < leader_epoch:
        raise FencedLeaderEpochError(
            f"{topic_partition} is in leader epoch {leader_epoch}; the request knows {known_epoch}"
        )
    raise UnknownLeaderEpochError(
        f"{topic_partition}: this broker has not received leader epoch {known_epoch} yet"
    )
