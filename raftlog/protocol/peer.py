"""Requests between brokers: authentication, Raft envelopes, pings.

The broker that opens a connection sends ``peer_hello`` and then ``peer_prove``. Only then can it
send requests with ``Api.peer_only``. ``security`` computes the proofs. A connection carries the
requests of the broker that opened it, so two brokers have two connections, one per direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from types import MappingProxyType
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.protocol.schema import (
    BrokerEpoch,
    ByteCount,
    ClusterId,
    Counter,
    DirectoryId,
    Failure,
    Host,
    Message,
    NodeId,
    PartitionIndex,
    Port,
    TopicId,
    TopicName,
    WaitMs,
    WireEpoch,
    WireOffset,
)

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32  # SHA-256
VOTERS_CHARS_MAX: Final = limits.VOTERS_PER_CLUSTER_MAX * len(f"{(1 << 31) - 1},")
HISTORY_CHARS_MAX: Final = limits.RECOVERIES_KEPT * 17  # IDs of 16 characters, and commas
ENVELOPE_BYTES_MAX: Final = limits.RAFT_ENVELOPE_BYTES_MAX
_EARLIER_ENVELOPE_BYTES_MAX: Final = 4 * limits.MIB  # of brokers of an earlier protocol
_PEER_PROTOCOL_LARGE_ENVELOPES: Final = 6

assert ENVELOPE_BYTES_MAX < limits.FRAME_BYTES_MAX, "the largest envelope must fit a frame"

_Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Proof = Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]
_ProtocolVersion = Annotated[int, Meta(ge=0, le=(1 << 16) - 1)]


class PeerIdentity(Message):
    """Identity that a broker claims. The proofs cover every field.

    ``directory_id``: ID of its data directory. ``boot``: incarnation (boot number), incremented
    each time the directory is opened. ``run``: random at each start; distinguishes two starts with
    the same boot number, which occur if the directory was copied. ``host``, ``port``: listen
    address. ``protocol_version``: highest supported version of the peer protocol. ``cluster_id``:
    empty if unknown. ``journal_sequence``: number of the last consensus journal block found at
    start. ``voters``: sorted IDs of the configured voters, such as ``1,2,3``. ``history``: IDs of
    the recoveries that the cluster's state has passed, as far as this broker knows, such as
    ``5f0c2a91b7d4e810,c176e840fec05345``; see ``raftlog.replication.histories``.
    """

    broker_id: NodeId
    directory_id: DirectoryId
    boot: Counter
    host: Host
    port: Port
    protocol_version: _ProtocolVersion
    cluster_id: ClusterId = ""
    run: Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)] = ""
    journal_sequence: Counter = 0
    voters: Annotated[str, Meta(max_length=VOTERS_CHARS_MAX)] = ""
    history: Annotated[str, Meta(max_length=HISTORY_CHARS_MAX)] = ""


class PeerHelloRequest(Message):
    """Start of the handshake. ``nonce``: random bytes, used once."""

    identity: PeerIdentity
    nonce: _Nonce


class PeerHelloResponse(Message):
    """Response to the hello. ``proof``: shows that the answering side knows the secret."""

    identity: PeerIdentity
    nonce: _Nonce
    proof: _Proof


class PeerProveRequest(Message):
    """Second request. ``proof``: shows that the dialling side knows the secret."""

    proof: _Proof


class PeerProveResponse(Message):
    """Success: the connection is now authenticated as a peer's."""


class RaftRequest(Message):
    """One-way request. The attachment is one envelope of ``raftlog.consensus``, opaque here."""


class PeerPingRequest(Message):
    """Ping. ``sent``: ignored by the receiver. ``broker_epoch``: broker epoch of the sender."""

    sent: Counter
    broker_epoch: BrokerEpoch


class PeerPingResponse(Message):
    """Immediate response to a ping. ``wall_ms``: wall clock of the broker in ms; -1: unknown."""

    wall_ms: Annotated[int, Meta(ge=-1, le=limits.TIMESTAMP_MS_MAX)] = -1


def accepts_envelope(peer: PeerIdentity, size: int) -> bool:
    """Return whether a peer accepts an envelope of ``size`` bytes."""
    # guard: brokers of an earlier protocol get no large envelopes
    if peer.protocol_version < _PEER_PROTOCOL_LARGE_ENVELOPES:
        return size <= _EARLIER_ENVELOPE_BYTES_MAX
    return size <= ENVELOPE_BYTES_MAX


def check_envelope(attachment: memoryview) -> memoryview:
    """Return the envelope of a ``RaftRequest`` after a check of its size.

    Raises ``InvalidRequestError`` unless it has 1 to ``ENVELOPE_BYTES_MAX`` bytes.
    """
    if not 1 <= len(attachment) <= ENVELOPE_BYTES_MAX:
        raise InvalidRequestError(
            f"Raft envelope of {len(attachment)} bytes is outside 1 to {ENVELOPE_BYTES_MAX} "
            "(ENVELOPE_BYTES_MAX)"
        )
    return attachment


# -- replication -----------------------------------------------------------------------------------
#
# Replication between brokers: ``replica_fetch``, ``replica_progress``, ``partition_states``,
# ``describe_copies``.
#
# A follower fetches the batches after the end of its log. The same request reports its progress.
# A session (below) omits unchanged positions on a connection. The bytes of the batches follow the
# header of the response in the order of ``partitions``, each ``length`` bytes long.
#
# The messages do not contain the sender: it is the authenticated peer of the connection.


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


# -- transactions ----------------------------------------------------------------------------------
#
# ``verify_transactions``, ``transaction_markers`` and ``transaction_owners``: between coordinators
# of transactions and the leaders of their partitions. Brokers of peer protocol 5 have them.


_Items = Meta(max_length=limits.TRANSACTION_ITEMS_PER_REQUEST_MAX)
_ProducerId = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_ProducerEpoch = Annotated[int, Meta(ge=0, le=32_767)]


class TransactionQuery(Message):
    """Question of a leader: are these partitions in the open transaction of the producer?

    ``adds``: add those that are missing. ``topics_version``: version of the cluster's state in
    which the topics exist.
    """

    transactional_id: Annotated[str, Meta(max_length=4 * limits.TRANSACTIONAL_ID_CHARS_MAX)]
    producer_id: _ProducerId
    producer_epoch: _ProducerEpoch
    partitions: Annotated[list[TopicIdPartition], _Items]
    adds: bool = False
    topics_version: Counter = 0


class VerifyTransactionsRequest(Message):
    """Questions of leaders to the coordinator. An answer is durable."""

    queries: Annotated[list[TransactionQuery], _Items]


class MarkerPart(Message):
    """The end of a transaction in one partition: see ``raftlog.transactions.Marker``.

    ``number``: of the transaction; 1 for the first of its transactional id.
    """

    topic: TopicName
    topic_id: TopicId
    partition: PartitionIndex
    producer_id: _ProducerId
    producer_epoch: _ProducerEpoch
    is_commit: bool
    coordinator_epoch: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
    is_bumped: bool
    number: Counter
    reserves: bool = False


class TransactionMarkersRequest(Message):
    """Markers of a coordinator to a leader. An answer says that a marker is committed."""

    markers: Annotated[list[MarkerPart], _Items]


class TransactionItemsResponse(Message):
    """The failure of each item of the request, in its order; None for those without one."""

    failures: Annotated[list[Failure | None], _Items]


class OpenTransaction(Message):
    """A partition with an open transaction of a producer."""

    producer_id: _ProducerId
    topic_id: TopicId
    partition: PartitionIndex


class TransactionOwnersRequest(Message):
    """Question of a leader to every broker: which of these have a coordinator?"""

    transactions: Annotated[list[OpenTransaction], _Items]


class TransactionOwnersResponse(Message):
    """``shards``: partitions of ``__transaction_state`` that the broker answers for, as their
    confirmed leader. ``owned``: for each of the request, whether one of them has it in a
    transaction that has not ended everywhere.
    """

    shards: Annotated[list[PartitionIndex], Meta(max_length=limits.PARTITIONS_PER_TOPIC_MAX)]
    owned: Annotated[list[bool], _Items]


# -- replica session -------------------------------------------------------------------------------
#
# Fetch sessions of ``replica_fetch``: requests contain changed partitions only.
#
# A session belongs to one connection. When the connection ends, both sides discard the session, and
# the first request of the next connection is full. This follows KIP-227 without session IDs and
# epochs, because requests on one connection are ordered. The module does no I/O.


PartitionKey: TypeAlias = tuple[str, int]  # topic id, partition


class FollowerSession:
    """The follower's side, for one leader over one connection.

    The cost of a request depends on the number of changed partitions only. Invariant: if
    ``is_sent``, the leader's session has the same positions after it has received all requests.
    """

    def __init__(self) -> None:
        self._positions: dict[PartitionKey, ReplicaPosition] = {}
        self._sent: set[PartitionKey] = set()  # partitions in the leader's session
        self._changed: dict[PartitionKey, None] = {}  # ordered set
        self._forgotten: dict[PartitionKey, None] = {}
        self._is_first = True

    @property
    def is_sent(self) -> bool:
        """True if there are no changes to send."""
        return not (self._is_first or self._changed or self._forgotten)

    @property
    def positions(self) -> Mapping[PartitionKey, ReplicaPosition]:
        """Positions of all partitions in the session."""
        return MappingProxyType(self._positions)

    def set(self, position: ReplicaPosition) -> None:
        """Fetch this partition from the given position."""
        key = (position.topic_id, position.partition)
        if self._positions.get(key) == position:
            return
        self._positions[key] = position
        self._changed[key] = None
        self._forgotten.pop(key, None)

    def forget(self, topic_id: str, partition: int) -> None:
        """Stop fetching this partition. The caller also uses it to pause a failed partition."""
        key = (topic_id, partition)
        self._positions.pop(key, None)
        self._changed.pop(key, None)
        if key in self._sent:
            self._forgotten[key] = None

    def request(
        self,
        *,
        wait_ms_max: int = 500,
        bytes_min: int = 1,
        bytes_max: int = limits.FETCH_BYTES_MAX,
        round_: int = 0,
    ) -> ReplicaFetchRequest:
        """Return the next request. The caller must send it in this order on the same connection.

        ``wait_ms_max``: ms. ``bytes_min``, ``bytes_max``: bytes. More than
        ``PARTITIONS_PER_REQUEST_MAX`` changes require several requests: see ``is_sent``.
        """
        changed = list(islice(self._changed, limits.PARTITIONS_PER_REQUEST_MAX))
        forgotten = list(islice(self._forgotten, limits.PARTITIONS_PER_REQUEST_MAX))
        request = ReplicaFetchRequest(
            partitions=[self._positions[key] for key in changed],
            full=self._is_first,
            forgotten=[TopicIdPartition(topic_id, number) for topic_id, number in forgotten],
            wait_ms_max=wait_ms_max,
            bytes_min=bytes_min,
            bytes_max=bytes_max,
            round=round_,
        )
        self._is_first = False
        for key in changed:
            del self._changed[key]
        for key in forgotten:
            del self._forgotten[key]
        self._sent.difference_update(forgotten)
        self._sent.update(changed)
        return request


class LeaderSession:
    """The leader's side, for one follower over one connection."""

    def __init__(self) -> None:
        self._positions: dict[PartitionKey, ReplicaPosition] = {}
        self._has_begun = False

    @property
    def positions(self) -> Mapping[PartitionKey, ReplicaPosition]:
        """Last reported positions of all partitions that the follower fetches."""
        return MappingProxyType(self._positions)

    def apply(self, request: ReplicaFetchRequest) -> None:
        """Apply ``request`` to ``positions``.

        Raises ``InvalidRequestError`` if the first request of the session is not full, or if the
        session would have more than ``PARTITIONS_PER_BROKER_MAX`` partitions. The session is then
        unchanged.
        """
        # guard: a leader's session begins with all positions
        if not (request.full or self._has_begun):
            raise InvalidRequestError(
                "the first replica_fetch of a connection must contain all partitions (full)"
            )
        changes = {(one.topic_id, one.partition): one for one in request.partitions}
        forgotten = {(one.topic_id, one.partition) for one in request.forgotten}
        # Counted by what changes: a request has few of the partitions of its session.
        before = {} if request.full else self._positions
        count = len(before) - sum(key in before for key in forgotten)
        count += sum(key not in before or key in forgotten for key in changes)
        if count > limits.PARTITIONS_PER_BROKER_MAX:
            raise InvalidRequestError(
                f"fetch session has more than {limits.PARTITIONS_PER_BROKER_MAX} partitions "
                "(PARTITIONS_PER_BROKER_MAX)"
            )
        if request.full:
            self._positions.clear()
        for key in forgotten:
            self._positions.pop(key, None)
        self._positions.update(changes)
        self._has_begun = True
