"""Between brokers: ``replica_fetch``, ``replica_progress``, ``partition_states``,
``describe_copies``.

A follower asks the leader for what lies behind its log, and says with the same words how far it has
come. ``replica_session`` has what is told only once over one connection. Batches' bytes follow the
answer's header in the order of ``partitions``, each ``length`` bytes long.

Who asks is not in the message: it is the peer that proved itself on the connection.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from raftlog import limits
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

PARTITION_STATE_BYTES_MAX: Final = 64 * limits.KIB  # one, encoded

_Partitions = Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)


class TopicIdPartition(Message):
    """A partition by its topic's id: a topic made anew under the same name is another one."""

    topic_id: TopicId
    partition: PartitionIndex


class ReplicaPosition(Message):
    """How far a follower has come.

    ``leader_epoch`` is the one that it follows. ``fetch_offset`` is the end of its log, and
    ``last_epoch`` that of its last batch (-1 for none): both stay what they are after an empty
    answer. ``durable_offset`` is below which its disk holds all: only this counts for commit.
    ``high_watermark``: everything below it is committed, as far as the follower knows.
    ``log_start`` is where its log starts, durably.
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
    """``full``: these are all partitions, and the connection's session begins anew.

    Otherwise they are those that moved or are new; ``forgotten`` are no longer asked for, and the
    leader knows the rest. The first request of a connection is full. ``round``: the highest of the
    answers so far; the leader learns by it that the follower still follows after that answer.
    """

    partitions: Annotated[list[ReplicaPosition], _Partitions]
    full: bool
    forgotten: Annotated[list[TopicIdPartition], _Partitions] = []
    wait_ms_max: WaitMs = 500
    bytes_min: ByteCount = 1
    bytes_max: ByteCount = limits.FETCH_BYTES_MAX
    round: Counter = 0


class Divergence(Message):
    """``end_offset``: where ``epoch``, the largest not above the one asked for, ends at the leader.

    The follower cuts its log to the end of that epoch in either log, and asks again (KIP-279).
    """

    epoch: WireEpoch
    end_offset: WireOffset


class ReplicaFetched(Message):
    """What the leader has for one partition: a failure, or one of three other things.

    ``diverged``: the follower's log is no prefix of the leader's. ``restart_at``: the follower ends
    below the leader's log start, here; it begins there with an empty log. Else ``length`` bytes of
    batches from ``fetch_offset`` on. ``leader_epoch`` is that of the position which is answered: a
    follower that is in another one by now lets the answer be (Vanlightly's Kip320.tla, rule 2).

    ``tombstones_removed_below`` and ``clean_end`` are the leader's, at the moment when the batches
    were read: see ``replication.following.must_restart``.
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
    """Partitions of which there is nothing new to say may be left out."""

    partitions: Annotated[list[ReplicaFetched], Meta(max_length=limits.PARTITIONS_PER_BROKER_MAX)]
    round: Counter = 0


class DurablePosition(Message):
    """The follower's disk holds all from ``log_start`` to ``durable_offset``."""

    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
    durable_offset: Counter
    log_start: Counter = 0


class ReplicaProgressRequest(Message):
    """One way: fsyncs that ended after the follower's fetch was sent, which now waits."""

    partitions: Annotated[list[DurablePosition], _Partitions]


class EncodedPartitionState(Message):
    """A committed ``PartitionState``, encoded as ``raftlog.replication`` has it.

    ``version`` is the state's: a receiver that knows one as new or newer leaves it.
    """

    topic_id: TopicId
    partition: PartitionIndex
    version: Counter
    state: Annotated[bytes, Meta(max_length=PARTITION_STATE_BYTES_MAX)]


class PartitionStatesRequest(Message):
    """One way: for a broker that has to know of partitions and does not vote on them."""

    states: Annotated[list[EncodedPartitionState], _Partitions]


class DescribeCopiesRequest(Message):
    """For a broker that is to choose a leader: what do the receiver's copies hold?"""

    partitions: Annotated[list[TopicIdPartition], _Partitions]


class CopyDescription(Message):
    """``end_offset``: the end of the valid records that the copy holds as durably as the topic's
    ``flush.policy`` asks for, and ``last_epoch`` the leader epoch of the last of them (-1: none).

    ``standing``: 0 for a copy that holds all it has acknowledged, 1 for one that may lack some of
    it, 2 for one that is damaged. ``version``: of the partition's state, as far as it is known.
    """

    topic_id: TopicId
    partition: PartitionIndex
    end_offset: Counter
    last_epoch: WireEpoch
    standing: Annotated[int, Meta(ge=0, le=2)]
    version: Counter


class DescribeCopiesResponse(Message):
    """Partitions of which the broker has no copy are left out. ``boot``: the run it is in."""

    directory_id: DirectoryId
    boot: Counter
    copies: Annotated[list[CopyDescription], _Partitions]
