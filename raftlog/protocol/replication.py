"""Replication between brokers: ``replica_fetch``, ``replica_progress``, ``partition_states``,
``describe_copies``.

A follower fetches the batches after the end of its log. The same request reports its progress.
``replica_session`` omits unchanged positions on a connection. The bytes of the batches follow the
header of the response in the order of ``partitions``, each ``length`` bytes long.

The messages do not contain the sender: it is the authenticated peer of the connection.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.peer import HISTORY_CHARS_MAX
from raftlog.protocol.schema import (
    ByteCount,
    Counter,
    DirectoryId,
    Failure,
    Message,
    PartitionIndex,
    TopicId,
    WaitMs,
    WireEpoch,
    WireOffset,
)

PARTITION_STATE_BYTES_MAX: Final = 64 * limits.KIB  # one encoded state

_Partitions = Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)


class TopicIdPartition(Message):
    """A partition, by topic ID: a recreated topic with the same name has another ID."""

    topic_id: TopicId
    partition: PartitionIndex


class ReplicaPosition(Message):
    """Progress of a follower.

    ``leader_epoch``: epoch that it follows. ``fetch_offset``: end offset of its log.
    ``last_epoch``: epoch of its last batch, or -1. ``durable_offset``: durable end offset; only
    this counts for commits. ``high_watermark``: the follower's known high watermark. ``log_start``:
    its durable log start offset. ``bytes_max``: default 1 MiB.
    """

    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
    fetch_offset: Counter
    last_epoch: WireEpoch
    durable_offset: Counter
    bytes_max: ByteCount = limits.MIB
    high_watermark: Counter = 0
    log_start: Counter = 0


class ReplicaFetchRequest(Message):
    """Fetch batches and report progress.

    ``full``: ``partitions`` is complete, and the session restarts. Otherwise ``partitions``
    contains changed and new ones, and ``forgotten`` the removed ones. The first request of a
    connection is full. ``round``: highest round of the responses so far. It shows the leader that
    the follower still followed it after that response.
    """

    partitions: Annotated[list[ReplicaPosition], _Partitions]
    full: bool
    forgotten: Annotated[list[TopicIdPartition], _Partitions] = []
    wait_ms_max: WaitMs = 500
    bytes_min: ByteCount = 1
    bytes_max: ByteCount = limits.FETCH_BYTES_MAX
    round: Counter = 0


class Divergence(Message):
    """Divergence of a follower's log from the leader's.

    ``epoch``: the leader's largest epoch that is not above the requested one. ``end_offset``: end
    of this epoch in the leader's log. The follower truncates its log to the smaller end offset of
    this epoch in both logs, and fetches again (KIP-279).
    """

    epoch: WireEpoch
    end_offset: WireOffset


class ReplicaFetched(Message):
    """Response for one partition: a failure, a divergence, a restart, or batches.

    ``diverged``: the follower's log is not a prefix of the leader's. ``restart_at``: the leader's
    log start offset; the follower's log ends below it and must restart there, empty. Otherwise
    ``length`` bytes of batches from ``fetch_offset`` follow. ``leader_epoch``: epoch of the
    requested position; a follower in another epoch ignores the response (Vanlightly's Kip320.tla,
    rule 2).

    ``tombstones_removed_below``, ``clean_end``: values of the leader when it read the batches: see
    ``replication.following.must_restart``.
    """

    topic_id: TopicId
    partition: PartitionIndex
    failure: Failure | None = None
    leader_epoch: WireEpoch = -1
    high_watermark: WireOffset = -1
    log_start_offset: WireOffset = -1
    diverged: Divergence | None = None
    restart_at: Counter | None = None
    length: ByteCount = 0
    tombstones_removed_below: Counter = 0
    clean_end: Counter = 0


class ReplicaFetchResponse(Message):
    """Response to a replica fetch. It can omit partitions without new information."""

    partitions: Annotated[list[ReplicaFetched], Meta(max_length=limits.PARTITIONS_PER_BROKER_MAX)]
    round: Counter = 0


class DurablePosition(Message):
    """Durable range of a follower's log: from ``log_start`` to ``durable_offset``."""

    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
    durable_offset: Counter
    log_start: Counter = 0


class ReplicaProgressRequest(Message):
    """One-way request: reports fsyncs that completed while the follower's fetch waits."""

    partitions: Annotated[list[DurablePosition], _Partitions]


class EncodedPartitionState(Message):
    """A committed ``PartitionState`` in the encoding of ``raftlog.replication``.

    ``version``: version of the state. A receiver with the same or a newer version ignores it.
    """

    topic_id: TopicId
    partition: PartitionIndex
    version: Counter
    state: Annotated[bytes, Meta(max_length=PARTITION_STATE_BYTES_MAX)]


class PartitionStatesRequest(Message):
    """One-way request: sends states to a broker that needs them but is not a voter.

    ``recovery``: ID of the last recovery in the sender's history of the cluster; empty: none.
    """

    states: Annotated[list[EncodedPartitionState], _Partitions]
    recovery: Annotated[str, Meta(max_length=HISTORY_CHARS_MAX)] = ""


class DescribeCopiesRequest(Message):
    """Request the ends of the receiver's copies, before a leader election."""

    partitions: Annotated[list[TopicIdPartition], _Partitions]


class CopyDescription(Message):
    """Description of one copy.

    ``end_offset``: end of the valid records that satisfy the topic's ``flush.policy``.
    ``last_epoch``: leader epoch of the last of these records, or -1. ``standing``: 0 if the copy
    contains all records that it acknowledged, 1 if it may lack some, 2 if it is corrupt.
    ``version``: known version of the partition state.
    """

    topic_id: TopicId
    partition: PartitionIndex
    end_offset: Counter
    last_epoch: WireEpoch
    standing: Annotated[int, Meta(ge=0, le=2)]
    version: Counter


class DescribeCopiesResponse(Message):
    """Copies of the broker. Omits partitions without a copy. ``boot``: the broker's boot number."""

    directory_id: DirectoryId
    boot: Counter
    copies: Annotated[list[CopyDescription], _Partitions]
