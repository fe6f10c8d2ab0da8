"""Values that the coordinator of a transaction, and the leaders of its partitions, exchange."""

from __future__ import annotations

from typing import NamedTuple

from raftlog.types import LeaderEpoch


class TransactionPart(NamedTuple):
    """A partition of a transaction. ``topic_id``: a topic that was created again is another one.

    A partition of ``__consumer_offsets`` holds the offsets of groups that the transaction commits.
    """

    topic: str
    topic_id: str
    partition: int


class Marker(NamedTuple):
    """The end of a transaction in one partition.

    ``coordinator_epoch``: leader epoch of the coordinator's partition of ``__transaction_state``;
    a marker of an older coordinator is refused. ``is_bumped``: the transaction ended with a bump of
    the producer's epoch (``transaction.version=2``, KIP-890): ``producer_epoch`` is the bumped one,
    so it must be above that of the transaction's batches. Otherwise it is that of the batches.
    ``reserves``: it is committed at the coordinator that the partition is in the producer's next
    transaction, of the bumped epoch.
    """

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: LeaderEpoch
    is_bumped: bool
    reserves: bool = False
