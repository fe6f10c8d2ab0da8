"""``produce``, ``init_producer_id``, ``describe_producers`` and ``list_producers``.

A produce request contains at most one batch per partition. The bytes of the batches follow the
header in the order of ``partitions``, each ``length`` bytes long. With ``acks=0``, the broker sends
no response.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.schema import (
    ByteCount,
    ConfigKey,
    ConfigValue,
    Counter,
    Failure,
    Host,
    Message,
    NodeId,
    PartitionCount,
    PartitionIndex,
    PartitionRange,
    Port,
    Rack,
    TopicId,
    TopicName,
    WaitMs,
    WireEpoch,
    WireOffset,
    WireTimestamp,
)
from raftlog.types import Isolation

ProducerId = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class ProducePartition(Message):
    """Batch of one partition. ``leader_epoch``: the client's known epoch, for fencing, or -1.

    ``base_offset``: -1, or the offset of the first record, from a mirror. The leader then appends
    the batch at this offset or rejects it, and accepts a batch with gaps in its offsets.
    """

    topic: TopicName
    partition: PartitionIndex
    length: ByteCount
    leader_epoch: WireEpoch = -1
    base_offset: WireOffset = -1


class ProduceRequest(Message):
    """Append batches. ``acks``: -1 all (committed), 1 the leader's disk, 0 none (no response).

    ``producer``: name of a named producer, to which the producer ID of the batches belongs. Access
    rules for the name apply. ``traced``: respond with the ``times`` of each batch.
    ``transactional_id``: of the producer of transactional batches. The leader adds its partition to
    the transaction, if it is not in it.
    """

    acks: Literal[-1, 0, 1]
    partitions: Annotated[
        list[ProducePartition], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]
    producer: Annotated[str, Meta(max_length=limits.PRODUCER_NAME_CHARS_MAX)] = ""
    traced: bool = False
    transactional_id: Annotated[str, Meta(max_length=limits.PRODUCER_NAME_CHARS_MAX)] = ""


_Microseconds = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class ProduceTimes(Message):
    """Progress of a batch on its leader, in microseconds since the leader began with the request.

    ``appended``: it was in the log. ``synced``: it was on the leader's disk. ``done``: it was as
    durable as ``acks`` requires; with ``acks=-1``, on the disks of all in-sync replicas. ``last``:
    with ``acks=-1``, the broker whose disk was the last of them.
    """

    appended: _Microseconds
    synced: _Microseconds
    done: _Microseconds
    last: NodeId | None = None


class ProducedPartition(Message):
    """Result for one partition.

    ``base_offset``: offset of the batch's first record; for a duplicate, its original offset.
    ``append_timestamp_ms``: -1 unless the topic uses the leader's time as the timestamp. ``times``:
    of a ``traced`` request, if the batch is stored. ``topic_id``: with ``UnknownProducerError``,
    the ID of the topic that does not know the producer; empty from an earlier release.
    """

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    base_offset: WireOffset = -1
    append_timestamp_ms: WireTimestamp = -1
    log_start_offset: WireOffset = -1
    times: ProduceTimes | None = None
    topic_id: Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)] = ""


class ProduceResponse(Message):
    """Results of all partitions. ``throttle_ms``: for so long, the broker reads no request from
    this connection, because the client has used more than its quota. The client waits as well.
    """

    partitions: list[ProducedPartition]
    throttle_ms: WaitMs = 0


class InitProducerIdRequest(Message):
    """Request a new producer ID (epoch 0)."""


class InitProducerIdResponse(Message):
    producer_id: ProducerId
    producer_epoch: Annotated[int, Meta(ge=0, le=(1 << 15) - 1)]


class ProducersQuery(Message):
    """Query for the producer state in a partition's log. ``leader_epoch``: as in ``produce``.

    ``family_bits``: the response also has every producer whose ID differs from one of
    ``producer_ids`` in its lowest ``family_bits`` only, as ``Siblings``. 0: none.
    """

    topic: TopicName
    partition: PartitionIndex
    producer_ids: Annotated[
        list[ProducerId], Meta(min_length=1, max_length=limits.PRODUCERS_PER_REQUEST_MAX)
    ]
    leader_epoch: WireEpoch = -1
    family_bits: Annotated[int, Meta(ge=0, le=62)] = 0


class DescribeProducersRequest(Message):
    """Query producer states: at most ``PRODUCERS_PER_REQUEST_MAX`` IDs in all partitions."""

    partitions: Annotated[
        list[ProducersQuery], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]


class DescribedProducer(Message):
    """Last batch of a producer in a partition. All four values are -1 if it is unknown.

    ``last_sequence``: sequence of the batch's last record. ``last_offset``: offset of that record.
    ``first_offset``: lower bound of the offsets of this producer and epoch.
    """

    producer_id: ProducerId
    producer_epoch: Annotated[int, Meta(ge=-1, le=(1 << 15) - 1)] = -1
    last_sequence: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] = -1
    last_offset: WireOffset = -1
    first_offset: WireOffset = -1


class DescribedProducers(Message):
    """Producer states of one partition, in the requested order. They cover committed records.

    ``siblings``: other producers of the families; None: the broker does not know ``family_bits``.
    """

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    producers: list[DescribedProducer] = []
    siblings: list[DescribedProducer] | None = None


class DescribeProducersResponse(Message):
    partitions: list[DescribedProducers]


class ListedPartition(Message):
    """Producers to list of one partition: ``limit`` of them after the first ``skip``.

    ``leader_epoch``: as in ``produce``.
    """

    topic: TopicName
    partition: PartitionIndex
    skip: Annotated[int, Meta(ge=0, le=limits.PRODUCERS_PER_PARTITION_MAX)] = 0
    limit: Annotated[int, Meta(ge=0, le=limits.LISTED_PRODUCERS_MAX)] = 0
    leader_epoch: WireEpoch = -1


class ListProducersRequest(Message):
    """List the producers that the leader knows: ``LISTED_PRODUCERS_MAX`` in all partitions."""

    partitions: Annotated[
        list[ListedPartition], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]


class ListedProducer(Message):
    """Producer with its newest batch. ``last_sequence``, ``last_offset``: of the last record.

    ``last_timestamp_ms``: time at which the leader appended the batch.
    """

    producer_id: ProducerId
    producer_epoch: Annotated[int, Meta(ge=0, le=(1 << 15) - 1)]
    last_sequence: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
    last_offset: WireOffset
    last_timestamp_ms: WireTimestamp


class ListedProducers(Message):
    """Producers of one partition, the one that wrote last first, and their ``total`` number.

    Records at and above ``high_watermark`` are not committed.
    """

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    total: Annotated[int, Meta(ge=0)] = 0
    high_watermark: WireOffset = -1
    producers: list[ListedProducer] = []


class ListProducersResponse(Message):
    """Results, in the order of the request."""

    partitions: list[ListedProducers]


# -- fetch -----------------------------------------------------------------------------------------
#
# ``fetch`` and ``list_offsets``.
#
# The broker responds to a fetch when ``bytes_min`` bytes are available, or after ``wait_ms_max``
# ms. Batches are never split. A response contains complete batches, starting with the one that
# contains ``offset``. It contains at least one batch if one exists, also if that exceeds the byte
# limits. The bytes follow the header in the order of ``partitions``, each ``length`` bytes long.
#
# ``leader_epoch`` in a request is the client's known epoch, or -1. A broker with a newer epoch
# responds with ``FencedLeaderEpochError``, one with an older epoch with
# ``UnknownLeaderEpochError``.


class FetchPartition(Message):
    """Position to fetch from. ``bytes_max``: default 1 MiB.

    ``doubtful``: the client received corrupt bytes at ``offset``. The broker then verifies its
    stored batches before it reads them. ``topic_id``: ID of the topic that ``offset`` belongs to,
    because a recreated topic can have the same name; "" matches any topic.
    """

    topic: TopicName
    partition: PartitionIndex
    offset: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    bytes_max: ByteCount = limits.MIB
    leader_epoch: WireEpoch = -1
    doubtful: bool = False
    topic_id: Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)] = ""


class FetchRequest(Message):
    """Fetch records. ``replica_ok``: any in-sync replica can respond, with committed records.

    ``isolation``: with ``committed``, the response ends at the last stable offset and lists the
    aborted transactions, whose records the client drops.
    """

    partitions: Annotated[
        list[FetchPartition], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]
    wait_ms_max: WaitMs = 500
    bytes_min: ByteCount = 1
    bytes_max: ByteCount = limits.FETCH_BYTES_MAX
    replica_ok: bool = False
    isolation: Isolation = ""


class AbortedTransaction(Message):
    """The records of a producer from ``first_offset`` to its next marker of an abort."""

    producer_id: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    first_offset: WireOffset


class FetchedPartition(Message):
    """Fetched batches of a partition. ``high_watermark``: end offset of the committed records.

    ``stable_offset``: end of the records whose transactions have all ended. ``aborted``: of a fetch
    with isolation ``committed``. ``tombstones_removed_below``: of the log that was read; see
    ``CompactionState``.
    """

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    high_watermark: WireOffset = -1
    log_start_offset: WireOffset = -1
    length: ByteCount = 0
    stable_offset: WireOffset = -1
    aborted: list[AbortedTransaction] = []
    tombstones_removed_below: Counter = 0


class FetchResponse(Message):
    """Response to a fetch. It can omit partitions without new records and failures.

    ``throttle_ms``: as in ``ProduceResponse``.
    """

    partitions: list[FetchedPartition]
    throttle_ms: WaitMs = 0


class OffsetQuery(Message):
    """Look up one offset.

    ``at``: ``earliest``, ``latest``, or a timestamp in ms (the first record at or after it).
    ``isolation``: ``latest`` of ``committed`` is the last stable offset.
    """

    topic: TopicName
    partition: PartitionIndex
    at: Literal["earliest", "latest"] | Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    leader_epoch: WireEpoch = -1
    isolation: Isolation = ""


class ListOffsetsRequest(Message):
    queries: Annotated[
        list[OffsetQuery], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]


class OffsetAnswer(Message):
    """Result of a lookup. ``offset`` is -1 if no record is at or after the timestamp."""

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    offset: WireOffset = -1
    timestamp_ms: WireTimestamp = -1
    leader_epoch: WireEpoch = -1


class ListOffsetsResponse(Message):
    answers: list[OffsetAnswer]


# -- metadata --------------------------------------------------------------------------------------
#
# ``metadata``: brokers, topics, partitions and their leaders.


class MetadataRequest(Message):
    """Request metadata. ``topics``: None for all topics, an empty list for brokers only.

    ``span``: only these partitions of each topic. Brokers of earlier releases return all.
    """

    topics: Annotated[list[TopicName], Meta(max_length=limits.TOPICS_PER_REQUEST_MAX)] | None = None
    span: PartitionRange | None = None


class BrokerInfo(Message):
    id: NodeId
    host: str
    port: Annotated[int, Meta(ge=0, le=65_535)]
    rack: str | None = None


class PartitionInfo(Message):
    partition: PartitionIndex
    leader: NodeId | None  # None: no live leader
    leader_epoch: WireEpoch
    replicas: list[NodeId]
    isr: list[NodeId]
    witnesses: list[NodeId] = []


class TopicInfo(Message):
    """Metadata of a topic. If a requested topic does not exist, only ``failure`` is set."""

    name: str
    failure: Failure | None = None
    id: str = ""
    max_message_bytes: ByteCount = 0  # bytes; clients limit their batches to it
    timestamp_type: str = "CreateTime"
    partitions: list[PartitionInfo] = []
    is_internal: bool = False  # created, written and deleted by brokers only
    keys_required: bool = False  # compacted topic: clients reject records without a key


class MetadataResponse(Message):
    """Cluster metadata.

    ``controller``: Raft leader of the cluster group; None if there is none, or if the broker has
    not yet applied all changes before its start.
    """

    cluster_id: str
    brokers: list[BrokerInfo]
    topics: list[TopicInfo]
    controller: NodeId | None = None


# -- topics ----------------------------------------------------------------------------------------
#
# Topic administration: create, delete, describe, alter, add partitions, delete records.
#
# A request contains several topics or partitions. Each has its own result, so an invalid name does
# not fail the other topics.


_Topics = Meta(min_length=1, max_length=limits.TOPICS_PER_REQUEST_MAX)
_ConfigKeys = Meta(max_length=limits.CONFIG_KEYS_PER_TOPIC_MAX)


class TopicToCreate(Message):
    """Topic to create. ``replication_factor``: 0 for the cluster's default."""

    name: TopicName
    partitions: int = 1
    replication_factor: int = 1
    config: Annotated[dict[ConfigKey, ConfigValue], _ConfigKeys] = {}


class CreateTopicsRequest(Message):
    topics: Annotated[list[TopicToCreate], _Topics]
    validate_only: bool = False


class DeleteTopicsRequest(Message):
    """``ids``: by name, the ID of the topic that is meant. A request that arrives late then does
    not delete a newer topic of the same name.
    """

    topics: Annotated[list[TopicName], _Topics]
    ids: Annotated[dict[TopicName, TopicId], Meta(max_length=limits.TOPICS_PER_REQUEST_MAX)] = {}


class TopicToAlter(Message):
    """Topic to alter. ``config``: keys to set; a value of None resets the key to its default."""

    name: TopicName
    config: Annotated[dict[ConfigKey, ConfigValue | None], _ConfigKeys]


class AlterTopicsRequest(Message):
    topics: Annotated[list[TopicToAlter], _Topics]


class TopicToExtend(Message):
    """Topic to extend. ``partitions``: new total number of partitions."""

    name: TopicName
    partitions: PartitionCount


class AddPartitionsRequest(Message):
    topics: Annotated[list[TopicToExtend], _Topics]


class TopicResult(Message):
    name: str
    failure: Failure | None = None
    id: str = ""


class TopicsResponse(Message):
    """Response to create, delete, alter and add partitions: one result per topic, in order."""

    results: list[TopicResult]


class DescribeTopicsRequest(Message):
    """Describe topics.

    ``topics``: None for all topics whose names sort after ``after``. ``paged``: the broker can omit
    topics at the end of a long response, and the client then requests the next page. ``span``: of
    each topic, describe only these partitions.
    """

    topics: Annotated[list[TopicName], Meta(max_length=limits.TOPICS_PER_REQUEST_MAX)] | None = None
    after: Annotated[str, Meta(max_length=4 * limits.TOPIC_NAME_CHARS_MAX)] = ""
    paged: bool = False
    span: PartitionRange | None = None


class PartitionDescription(Message):
    """Partition details. On a broker without a replica, the fields after ``info`` are unset.

    ``tombstones_removed_below``, ``clean_end``: of its log; see ``CompactionState``.
    ``stable_offset``: end of the records whose transactions have ended.
    """

    info: PartitionInfo
    log_start_offset: WireOffset = -1
    high_watermark: WireOffset = -1
    log_end_offset: WireOffset = -1
    size_bytes: int = 0
    damage: str = ""  # description of corrupt data; empty if there is none
    tombstones_removed_below: Counter = 0
    clean_end: Counter = 0
    stable_offset: WireOffset = -1


class TopicDescription(Message):
    """Topic details. ``config``: all keys. ``config_overrides``: keys that were set explicitly.

    ``partition_count``: also of partitions that were not requested; -1 from earlier releases.
    """

    name: str
    failure: Failure | None = None
    id: str = ""
    config: dict[str, str] = {}
    config_overrides: list[str] = []
    partitions: list[PartitionDescription] = []
    is_internal: bool = False  # created, written and deleted by brokers only
    partition_count: int = -1


class DescribeTopicsResponse(Message):
    """Topic descriptions. ``is_page``: True if more topics follow on the next page."""

    topics: list[TopicDescription]
    is_page: bool = False


class RecordsToDelete(Message):
    """Delete the records below ``before_offset``; -1 means up to the high watermark."""

    topic: TopicName
    partition: PartitionIndex
    before_offset: WireOffset


class DeleteRecordsRequest(Message):
    partitions: Annotated[
        list[RecordsToDelete], Meta(min_length=1, max_length=limits.PARTITIONS_PER_REQUEST_MAX)
    ]


class DeletedRecords(Message):
    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    log_start_offset: WireOffset = -1


class DeleteRecordsResponse(Message):
    partitions: list[DeletedRecords]


# -- groups ----------------------------------------------------------------------------------------
#
# Consumer groups: coordinator lookup, heartbeats, offset commits and fetches, administration.
#
# A group's coordinator is the leader of its partition of ``__consumer_offsets``. A member joins,
# stays and leaves with heartbeats, similar to KIP-848. Each heartbeat contains the member's
# complete state, so a lost response is repaired by the next one. ``sequence`` increases with every
# heartbeat of a member. The coordinator ignores heartbeats with an older sequence.
#
# A heartbeat can wait: the coordinator responds when the member's assignment differs from
# ``owned``, when it receives a newer heartbeat of the member, or after ``wait_ms``.


# Longer than allowed, so that the coordinator rejects long names with its own error message.
GroupName = Annotated[str, Meta(max_length=16 * limits.GROUP_ID_CHARS_MAX)]
InstanceName = Annotated[str, Meta(max_length=16 * limits.INSTANCE_ID_CHARS_MAX)]
MemberId = Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)]  # "": not a member
MemberEpoch = Annotated[int, Meta(ge=-2, le=(1 << 31) - 1)]
AssignorName = Annotated[str, Meta(max_length=limits.ASSIGNOR_CHARS_MAX)]
TimeoutMs = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]

JOIN_EPOCH = 0  # a member that joins, or joins again
LEAVE_EPOCH = -1  # a member that leaves permanently
AWAY_EPOCH = -2  # a static member that intends to rejoin within its session timeout
NO_MEMBER_EPOCH = -1  # in a commit by a client that is not a member

_Groups = Meta(min_length=1, max_length=limits.GROUPS_PER_REQUEST_MAX)
_Partitions = Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)


class FindCoordinatorsRequest(Message):
    groups: Annotated[list[GroupName], _Groups]


class CoordinatorInfo(Message):
    group: str
    failure: Failure | None = None
    broker_id: NodeId = 0
    host: Host = ""
    port: Port = 0


class FindCoordinatorsResponse(Message):
    coordinators: list[CoordinatorInfo]


class TopicShare(Message):
    """Partitions of one topic. ``topic_id`` distinguishes it from other topics of the same name."""

    topic: TopicName
    topic_id: Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)]
    partitions: Annotated[list[PartitionIndex], _Partitions]


_Shares = Meta(max_length=limits.TOPICS_PER_MEMBER_MAX)


class GroupHeartbeatRequest(Message):
    """Heartbeat of a member.

    ``owned``: partitions that the member reads or is still committing. ``session_timeout_ms``:
    default 45,000 ms. ``rebalance_timeout_ms``: maximum time to release a partition; default
    300,000 ms. ``assignor``: the member's vote; None for no vote. ``wait_ms``: maximum time until
    the response; default 0 ms.
    """

    group: GroupName
    member_id: Annotated[str, Meta(min_length=1, max_length=limits.ID_CHARS_MAX)]
    member_epoch: MemberEpoch
    sequence: Counter
    topics: Annotated[list[TopicName], Meta(max_length=limits.TOPICS_PER_MEMBER_MAX)]
    owned: Annotated[list[TopicShare], _Shares] = []
    session_timeout_ms: TimeoutMs = 45_000
    rebalance_timeout_ms: TimeoutMs = 300_000
    instance_id: InstanceName | None = None
    client_id: Annotated[str, Meta(max_length=limits.CLIENT_ID_CHARS_MAX)] = ""
    rack: Rack = ""
    assignor: AssignorName | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=limits.HEARTBEAT_WAIT_MS_MAX)] = 0


class GroupHeartbeatResponse(Message):
    """Response to a heartbeat.

    ``assignment``: complete assignment of the member. The member first releases all other
    partitions that it owns. ``metadata_version``: increases when topics are created, deleted or
    extended; members that subscribe to a pattern then reload the topic names.
    """

    member_epoch: MemberEpoch
    assignment: list[TopicShare] = []
    metadata_version: Counter = 0


class OffsetToCommit(Message):
    """Offset to commit. ``offset``: offset of the next record to read.

    ``expected``: the committed offset that this one replaces, -1 if there is none; None for any.
    """

    topic: TopicName
    partition: PartitionIndex
    offset: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    leader_epoch: WireEpoch = -1
    metadata: str = ""
    expected: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)] | None = None


class OffsetCommitRequest(Message):
    """Commit offsets of a group.

    ``member_id`` "" with ``NO_MEMBER_EPOCH``: commit by a client that is not a member; the group
    must not have members. ``topic_ids``: expected topic IDs by topic name. The coordinator rejects
    offsets of a topic with another ID, which was deleted and created again. ``sequence``: increases
    with every commit of a member, 0 for none. Offsets of a partition that a later commit of the
    member has replaced are not committed again: the request has arrived late.
    """

    group: GroupName
    offsets: Annotated[list[OffsetToCommit], Meta(min_length=1), _Partitions]
    member_id: MemberId = ""
    member_epoch: MemberEpoch = NO_MEMBER_EPOCH
    topic_ids: Annotated[dict[str, str], Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)] = {}
    sequence: Counter = 0


class CommittedPartition(Message):
    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None


class OffsetCommitResponse(Message):
    partitions: list[CommittedPartition]


# -- transactions ----------------------------------------------------------------------------------


TransactionalId = Annotated[str, Meta(min_length=1, max_length=limits.PRODUCER_NAME_CHARS_MAX)]
ProducerEpoch = Annotated[int, Meta(ge=0, le=(1 << 15) - 1)]


class FindTransactionCoordinatorsRequest(Message):
    """Find the coordinators of transactional IDs. The response has them as ``group``."""

    transactional_ids: Annotated[list[TransactionalId], _Groups]


class InitTransactionsRequest(Message):
    """Begin to use a transactional ID. This fences the producer that used it before, and aborts its
    open transaction.

    ``timeout_ms``: from the first record or offset of a transaction to its end; then the
    coordinator aborts it.
    """

    transactional_id: TransactionalId
    timeout_ms: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]


class EndTransactionRequest(Message):
    """Commit or abort the open transaction. It can be repeated until the next one begins.

    ``reserve``: partitions of it that are in the next transaction, too. After a commit, their
    leaders store the first batch of that without a question to the coordinator. The client begins
    it within ``TRANSACTION_RESERVED_MS``, or aborts it. ``reserve_offsets``: the same for the
    groups whose offsets it commits.
    """

    transactional_id: TransactionalId
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commit: bool
    reserve: Annotated[list[PartitionName], Meta(max_length=limits.TRANSACTION_RESERVED_MAX)] = []
    reserve_offsets: bool = False


class EndTransactionResponse(Message):
    """The decision is committed. The next transaction has this producer ID and epoch."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class TransactionOffsetCommitRequest(Message):
    """Commit offsets of a group with the open transaction, to which the group is added.

    ``member_id``, ``member_epoch``, ``topic_ids``: as in ``OffsetCommitRequest``, but the group may
    have members. The response is that of ``offset_commit``.
    """

    transactional_id: TransactionalId
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    group: GroupName
    offsets: Annotated[list[OffsetToCommit], Meta(min_length=1), _Partitions]
    member_id: MemberId = ""
    member_epoch: MemberEpoch = NO_MEMBER_EPOCH
    topic_ids: Annotated[dict[str, str], Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)] = {}


class ListTransactionsRequest(Message):
    """List transactional IDs that the receiving broker coordinates.

    ``states``, ``producer_ids``: only those with one of them; empty: any. ``open_for_ms``: only
    those with a transaction that has been open for this time; -1: any. ``after``: position from the
    last response, -1 for the first page.
    """

    states: Annotated[list[str], Meta(max_length=limits.TRANSACTION_FILTERS_MAX)] = []
    producer_ids: Annotated[list[ProducerId], Meta(max_length=limits.TRANSACTION_FILTERS_MAX)] = []
    open_for_ms: WireTimestamp = -1
    after: Annotated[int, Meta(ge=-1, le=(1 << 32) - 1)] = -1


class TransactionListing(Message):
    """Transactional ID in a listing. ``started_ms``: of the open transaction, or -1."""

    transactional_id: str
    state: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    timeout_ms: TimeoutMs
    started_ms: WireTimestamp = -1


class ListTransactionsResponse(Message):
    """A page of the transactional IDs that the responding broker coordinates.

    ``after``: position of the next page, or -1. ``loading``: number of partitions of
    ``__transaction_state`` that the broker is still loading. ``partitions``: those that the listing
    covers.
    """

    transactions: list[TransactionListing]
    after: int = -1
    loading: int = 0
    partitions: Annotated[list[PartitionIndex], _Partitions] = []


class DescribeTransactionRequest(Message):
    transactional_id: TransactionalId


class TransactionTopic(Message):
    topic: TopicName
    partitions: list[PartitionIndex]


class DescribeTransactionResponse(Message):
    """Description of a transactional ID.

    ``topics``: partitions of the transaction that is open, or is being completed; without those of
    deleted topics. ``started_ms``: -1 without such a transaction.
    """

    transactional_id: str
    state: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    timeout_ms: TimeoutMs
    coordinator: NodeId
    started_ms: WireTimestamp = -1
    topics: list[TransactionTopic] = []


class AbortTransactionRequest(Message):
    """Abort the open transaction, as after its time limit."""

    transactional_id: TransactionalId


class AbortTransactionResponse(Message):
    """The decision is committed: the transaction will be aborted in every partition."""


# -- offsets and groups ----------------------------------------------------------------------------


class PartitionName(Message):
    topic: TopicName
    partition: PartitionIndex


class OffsetFetchRequest(Message):
    """Fetch committed offsets. ``partitions``: None for all with a committed offset.

    ``require_stable``: a partition for which an open transaction holds another offset has the
    failure ``UnstableOffsetError``.
    """

    group: GroupName
    partitions: Annotated[list[PartitionName], _Partitions] | None = None
    require_stable: bool = False


class FetchedOffset(Message):
    """Committed offset of a partition. ``offset`` is -1 if none is committed."""

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    offset: WireOffset = -1
    leader_epoch: WireEpoch = -1
    metadata: str = ""
    committed_at_ms: WireTimestamp = -1


class OffsetFetchResponse(Message):
    offsets: list[FetchedOffset]


class ListGroupsRequest(Message):
    """List the groups that the receiving broker coordinates."""


class GroupListing(Message):
    """Group in a listing.

    ``type``: "consumer" (raftlog's own members, and Kafka's with group.protocol=consumer), or
    "classic" (other members of Kafka clients). ``state``: "empty", "stable", "reconciling" of a
    consumer group, "preparing_rebalance" and "completing_rebalance" of a classic group.
    """

    group: str
    state: str
    members: int = 0
    type: str = "consumer"


class ListGroupsResponse(Message):
    """Groups that the responding broker coordinates.

    ``loading``: number of partitions of ``__consumer_offsets`` that the broker is still loading.
    ``partitions``: the partitions that the listing covers. None on a newly elected broker that
    does not know them yet.
    """

    groups: list[GroupListing]
    loading: int = 0
    partitions: Annotated[list[PartitionIndex], _Partitions] | None = None


class DescribeGroupsRequest(Message):
    groups: Annotated[list[GroupName], _Groups]


class MemberDescription(Message):
    """Member in a description of a group.

    ``assigned``: current assignment. ``target``: target assignment. ``is_away``: a static member
    that left temporarily and intends to rejoin within its session timeout.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    member_epoch: MemberEpoch
    topics: list[str]
    assigned: list[TopicShare] = []
    target: list[TopicShare] = []
    session_timeout_ms: TimeoutMs = 0
    is_away: bool = False


class GroupDescription(Message):
    """Description of a group.

    ``type``: as in ``GroupListing``. ``group_epoch``, ``assignor``: of a classic group, its
    generation and protocol.
    """

    group: str
    failure: Failure | None = None
    state: str = ""
    group_epoch: MemberEpoch = 0
    assignor: str = ""
    coordinator: NodeId = 0
    members: list[MemberDescription] = []
    type: str = "consumer"


class DescribeGroupsResponse(Message):
    groups: list[GroupDescription]


class DeleteGroupsRequest(Message):
    groups: Annotated[list[GroupName], _Groups]


class DeletedGroup(Message):
    group: str
    failure: Failure | None = None


class DeleteGroupsResponse(Message):
    groups: list[DeletedGroup]


class DeleteOffsetsRequest(Message):
    """Delete committed offsets of topics to which no member of the group subscribes."""

    group: GroupName
    partitions: Annotated[list[PartitionName], Meta(min_length=1), _Partitions]


class DeleteOffsetsResponse(Message):
    partitions: list[CommittedPartition]
