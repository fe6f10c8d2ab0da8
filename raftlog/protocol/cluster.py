"""``describe_cluster``, ``transfer_leader``, ``reassign``, ``throttle_moves`` and
``recover_cluster``: requests of operators.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.peer import PARTITION_STATE_BYTES_MAX
from raftlog.protocol.schema import (
    BrokerEpoch,
    ClusterId,
    Counter,
    DirectoryId,
    Failure,
    Host,
    Message,
    NodeId,
    NodeIds,
    Note,
    PartitionIndex,
    PartitionRange,
    Port,
    Rack,
    TopicId,
    TopicName,
    WireEpoch,
    WireOffset,
)

_LossId = Annotated[str, Meta(max_length=limits.LOSS_ID_CHARS_MAX)]
_QueryValue = Annotated[str, Meta(max_length=limits.SCHEMA_SUBJECT_CHARS_MAX)]
_Topics = Annotated[list[TopicName], Meta(max_length=limits.TOPICS_PER_REQUEST_MAX)]


class PartitionPage(Message):
    """Partitions with a replica on ``broker``, in the order of topics and numbers: ``limit`` at
    most, after the first ``skip``.
    """

    broker: NodeId
    skip: Annotated[int, Meta(ge=0, le=limits.PARTITIONS_PER_CLUSTER_MAX)] = 0
    limit: Annotated[int, Meta(ge=1, le=limits.CLUSTER_PAGE_PARTITIONS_MAX)] = 100


class DescribeClusterRequest(Message):
    """Request cluster state. ``topics``: None for all topics, an empty list for no topic.

    ``include_disk``: also what uses the disk of the responding broker, for all topics. ``summary``:
    respond with numbers of each topic, and only the partitions with a problem. ``page``: in a
    summary, also list some partitions of one broker. ``span``: of each topic, describe only these
    partitions.
    """

    topics: _Topics | None = None
    include_partitions: bool = True
    include_disk: bool = False
    summary: bool = False
    page: PartitionPage | None = None
    span: PartitionRange | None = None


class LogDirStatus(Message):
    """A log directory besides the data directory. Bytes are -1 if unknown.

    ``problem``: why it is offline (``failed``), hangs or refuses growth; empty if nothing is wrong.
    """

    path: Note
    free_bytes: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
    size_bytes: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
    failed: bool
    problem: Note


class DiskStatus(Message):
    """The disk of a broker, measured less than two seconds ago. Bytes are -1 if unknown.

    ``level``: ``normal``, ``no-producers``, ``read-only`` or ``failing``; ``reason``: why, empty if
    normal.
    """

    free_bytes: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
    size_bytes: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
    level: Annotated[str, Meta(max_length=64)]
    reason: Note
    log_dirs: Annotated[list[LogDirStatus], Meta(max_length=limits.LOG_DIRS_MAX)] = []


_Bytes = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Count = Annotated[int, Meta(ge=-1, le=limits.PARTITIONS_PER_CLUSTER_MAX)]


class TopicDiskUse(Message):
    """Replicas of one topic on the responding broker.

    ``expired_bytes``: what retention deletes at its next check; ``expiring_bytes``: within
    24 hours, including these. ``retention_ms`` and ``retention_bytes``: -1 for no limit.
    """

    topic: TopicName
    replicas: Annotated[int, Meta(ge=0, le=limits.PARTITIONS_PER_TOPIC_MAX)]
    size_bytes: _Bytes
    expired_bytes: _Bytes
    expiring_bytes: _Bytes
    retention_ms: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
    retention_bytes: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]


class DiskUse(Message):
    """What uses the disk of a broker. ``topics``: those with a replica on it.

    ``quarantine_bytes``: corrupt copies that were replaced; measured once per minute.
    """

    journal_bytes: _Bytes
    quarantine_bytes: _Bytes
    topics: Annotated[list[TopicDiskUse], Meta(max_length=limits.PARTITIONS_PER_CLUSTER_MAX)]


class BrokerStatus(Message):
    """One broker, as the responding broker knows it.

    ``live``: the responding broker's own observation. ``fenced``: state in the cluster group.
    ``clock_error_ms``: for the responding broker only; ms by which its wall clock is ahead of the
    trusted time (negative: behind) after a clock step, else 0. ``draining``: the broker is being
    decommissioned. ``has_vote``: it is a voter of the cluster group. ``disk``: of the responding
    broker only, else None. ``leads`` and ``replicas``: numbers of partitions; -1 unless the request
    is for a ``summary``.
    """

    id: NodeId
    host: Host
    port: Port
    directory_id: Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)]  # empty: unknown
    broker_epoch: BrokerEpoch
    fenced: bool
    live: bool
    rack: Rack | None = None
    clock_error_ms: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] = 0
    draining: bool = False
    has_vote: bool = False
    disk: DiskStatus | None = None
    leads: _Count = -1
    replicas: _Count = -1


class ReplicaStatus(Message):
    """One replica, as the partition's leader knows it.

    Offsets and ``lag_ms`` (ms since it was last caught up) are -1 if unknown. ``chain``: hash-chain
    value at ``log_end_offset``; replicas with equal values there store the same log. ``damage``:
    description of corrupt data, empty if there is none.
    """

    broker: NodeId
    log_end_offset: WireOffset = -1
    durable_end_offset: WireOffset = -1
    lag_ms: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)] = -1
    in_isr: bool = False
    chain: Annotated[int, Meta(ge=0)] | None = None  # 64 bits, the maximum in msgpack
    damage: Note = ""


class PartitionStatus(Message):
    """One partition, as the responding broker knows it.

    ``replica_status``, ``high_watermark`` and ``log_start_offset``: empty or -1 unless the
    responding broker is the leader. ``failure``: why details are missing.

    ``unclean_epoch``: leader epoch of the operator's last unclean election, which may have lost
    acknowledged records; -1 if there was none. ``unclean_offset``: the leader's first offset in
    that epoch; -1 if unknown.

    ``target``: replicas to which the partition moves; empty without a move in progress.
    """

    topic: TopicName
    topic_id: TopicId
    partition: PartitionIndex
    leader: NodeId | None
    leader_epoch: WireEpoch
    replicas: NodeIds
    isr: NodeIds
    witnesses: NodeIds
    elr: NodeIds
    min_isr: Annotated[int, Meta(ge=0, le=limits.BROKERS_PER_CLUSTER_MAX)]
    high_watermark: WireOffset = -1
    log_start_offset: WireOffset = -1
    replica_status: Annotated[
        list[ReplicaStatus], Meta(max_length=limits.BROKERS_PER_CLUSTER_MAX)
    ] = []
    failure: Failure | None = None
    unclean_epoch: WireEpoch = -1
    unclean_offset: WireOffset = -1
    target: NodeIds = []


class TopicSummary(Message):
    """Partitions of one topic in numbers.

    ``led``: those that the responding broker leads; the other values are of these. ``records``:
    offsets in use. ``end``: sum of the high watermarks. ``under_replicated``, ``at_min_isr``:
    numbers of partitions. ``size_bytes``: -1 from earlier releases.
    """

    topic: TopicName
    topic_id: TopicId
    partitions: Annotated[int, Meta(ge=0, le=limits.PARTITIONS_PER_TOPIC_MAX)]
    led: _Count = 0
    records: Counter = 0
    end: Counter = 0
    under_replicated: _Count = 0
    at_min_isr: _Count = 0
    size_bytes: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)] = -1


class DescribeClusterResponse(Message):
    """Cluster state.

    ``controller``: Raft leader of the cluster group; None if there is none, or if the broker has
    not yet applied all changes before its start. ``version``: of the state of the cluster that the
    broker has applied; 0: unknown. ``move_throttle``: bytes per second that moves copy to each
    broker; 0 for no limit. ``topics``: None unless the request is for a ``summary``; ``partitions``
    then has at most ``CLUSTER_SUMMARY_PARTITIONS_MAX``, with a problem. ``page``: the requested
    page.
    """

    cluster_id: ClusterId
    controller: NodeId | None
    brokers: Annotated[list[BrokerStatus], Meta(max_length=limits.BROKERS_PER_CLUSTER_MAX)]
    partitions: Annotated[
        list[PartitionStatus], Meta(max_length=limits.PARTITIONS_PER_CLUSTER_MAX)
    ] = []
    disk_use: DiskUse | None = None
    move_throttle: Counter = 0
    topics: (
        Annotated[list[TopicSummary], Meta(max_length=limits.PARTITIONS_PER_CLUSTER_MAX)] | None
    ) = None
    page: Annotated[list[PartitionStatus], Meta(max_length=limits.CLUSTER_PAGE_PARTITIONS_MAX)] = []
    version: Counter = 0


class TransferLeaderRequest(Message):
    """Transfer the leadership of a partition.

    ``to``: the new leader; None for the first live in-sync replica in the preferred order, other
    than the leader.
    """

    topic: TopicName
    partition: PartitionIndex
    to: NodeId | None = None


class TransferLeaderResponse(Message):
    """The new leader and its epoch. If the transfer fails, the request fails."""

    leader: NodeId
    leader_epoch: WireEpoch


class PartitionMove(Message):
    """Requested replicas of one partition, preferred leader first.

    ``before``: replicas for which the request was made; empty for any. With other replicas, the
    request fails.
    """

    partition: PartitionIndex
    replicas: NodeIds
    before: NodeIds = []


class ReassignRequest(Message):
    """Move replicas of a topic, or cancel its moves. All moves are accepted, or none.

    ``replication_factor``: 0 for that of the topic. A new one requires a move of each partition,
    with as many replicas. ``cancel``: restore the replicas that the partitions had before the moves
    in progress; ``moves`` is then empty.
    """

    topic: TopicName
    moves: Annotated[list[PartitionMove], Meta(max_length=limits.PARTITIONS_PER_TOPIC_MAX)] = []
    replication_factor: Annotated[int, Meta(ge=0, le=limits.BROKERS_PER_CLUSTER_MAX)] = 0
    cancel: bool = False


class ReassignResponse(Message):
    """``moving``: the partitions of the topic with a move in progress."""

    moving: Annotated[list[PartitionMove], Meta(max_length=limits.PARTITIONS_PER_TOPIC_MAX)] = []


class ThrottleMovesRequest(Message):
    """Limit the bytes per second that replicas which moves add copy to each broker.

    ``bytes_per_s``: 0 for no limit. It applies at once, also to moves in progress.
    """

    bytes_per_s: Annotated[int, Meta(ge=0, le=limits.MOVE_THROTTLE_BYTES_PER_S_MAX)]


class ThrottleMovesResponse(Message):
    """The limit is stored."""


class UpgradeFeaturesRequest(Message):
    """Require the newest version of the protocol between brokers. Older releases are rejected from
    then on.
    """


class UpgradeFeaturesResponse(Message):
    """``peer_protocol``: the version that is required now."""

    peer_protocol: Annotated[int, Meta(ge=0, le=(1 << 16) - 1)]


class RecoverClusterRequest(Message):
    """Recover the cluster after a permanent loss of a majority of voters.

    ``lost``: brokers whose data directories are destroyed. Those may not come back; the broker does
    nothing if a directory that it would have to give up belongs to another one. ``accept_loss``:
    acknowledged records and changes of the cluster state may be lost; nothing is done without it.
    ``loss_id``: accept only the loss that an earlier response with this ``loss_id`` reported; ""
    for any loss. ``topics``: None for all topics. ``dry_run``: report the actions without doing
    them.
    """

    accept_loss: bool = False
    topics: _Topics | None = None
    dry_run: bool = False
    loss_id: _LossId = ""
    lost: NodeIds = []


class RecoveredPartition(Message):
    """Recovery result of one partition.

    ``note``: human-readable actions and possible losses. ``may_lose``: acknowledged records are or
    may be lost. ``lost``: minimum number of lost records.
    """

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    leader: NodeId | None = None
    log_end_offset: WireOffset = -1
    note: Note = ""
    may_lose: bool = False
    lost: Counter = 0


class RecoverClusterResponse(Message):
    """Recovery results. Omits partitions that need no recovery.

    ``cluster_note``: result for the cluster group. ``needs_loss``: the lost brokers may have
    changed the cluster state; the broker does nothing without ``accept_loss``. ``loss_id``: digest
    of the loss that is left to accept; "" for none. ``lost``: brokers that the request must declare
    lost. ``refused``: the loss is not the accepted one, or needs other brokers to be declared lost,
    and the broker has done nothing.
    """

    partitions: Annotated[
        list[RecoveredPartition], Meta(max_length=limits.PARTITIONS_PER_CLUSTER_MAX)
    ]
    cluster_note: Note = ""
    needs_loss: bool = False
    loss_id: _LossId = ""
    refused: bool = False
    lost: NodeIds = []


class VerifyCopyRequest(Message):
    """Verify a range of the responding broker's copy of a partition, from the disk.

    The broker verifies 4 MiB at most. Continue at ``reached`` of the response.
    """

    topic: TopicName
    partition: PartitionIndex
    start_offset: Counter
    end_offset: Counter


class VerifyCopyResponse(Message):
    """Result for a range of a copy.

    ``reached``: end of the verified batches, or the offset of the corruption that ``damage``
    describes. ``chain``: hash-chain value at ``end_offset`` of the request; None if that is beyond
    ``reached``, or inside of a batch that compaction has joined.
    """

    log_start_offset: Counter
    log_end_offset: Counter
    reached: Counter
    chain: Annotated[int, Meta(ge=0)] | None = None  # 64 bits, the maximum in msgpack
    damage: Note = ""


# -- recovery --------------------------------------------------------------------------------------
#
# ``survey`` and ``revive``: requests to find the remaining data and to recover from it.
#
# Brokers send them to each other when an operator requests ``recover_cluster``.


GROUP_ID_CHARS_MAX = 300
_GroupId = Annotated[str, Meta(min_length=1, max_length=GROUP_ID_CHARS_MAX)]
_State = Annotated[bytes, Meta(max_length=PARTITION_STATE_BYTES_MAX)]


class SurveyRequest(Message):
    """Request reports. ``groups``: names of the Raft groups of partitions and of the cluster."""

    groups: Annotated[list[_GroupId], Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)]


class Seat(Message):
    """Voter of a group: the broker and its data directory."""

    broker: NodeId
    directory_id: DirectoryId


class GroupReport(Message):
    """Data that a broker stores of one group; see ``raftlog.replication.election``.

    ``generation``: Raft group generation; None if its journal does not contain the group.
    ``leader``: the group's leader, if it has contact with that one.
    ``state``: encoded partition state, or None. ``end``: end offset of its copy, or -1.
    ``damage``: reason why the copy cannot lead. ``is_offline``: its disk may return, with records
    that are not reported. ``is_unsure``: the copy may lack acknowledged
    records at its end.
    """

    group: _GroupId
    generation: Counter | None = None
    term: Counter = 0
    index: Counter = 0
    voters: Annotated[list[Seat], Meta(max_length=limits.BROKERS_PER_CLUSTER_MAX)] = []
    leader: NodeId | None = None
    state: _State | None = None
    end: WireOffset = -1
    last_epoch: WireEpoch = -1
    high_watermark: WireOffset = -1
    damage: Note = ""
    is_unsure: bool = False
    is_offline: bool = False


class SurveyResponse(Message):
    """One report per requested group, in any order."""

    reports: Annotated[list[GroupReport], Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)]


class ReviveRequest(Message):
    """Recover a partition that the receiving broker stores.

    With ``base``, an encoded state, the broker starts a Raft group generation above ``generation``
    with itself as the only voter. Without it, the broker proposes ``command`` to the group.
    """

    group: _GroupId
    generation: Counter
    base: _State | None = None
    command: _State | None = None


class ReviveResponse(Message):
    """Success: the generation was started, or the command was committed."""


# -- membership ------------------------------------------------------------------------------------
#
# Requests of brokers that join and leave a cluster, and of brokers without a vote in its group.
#
# ``cluster_state`` and ``propose`` are for brokers without a vote. ``reserve_broker_id``,
# ``decommission`` and ``cancel_decommission`` are requests of operators.


_Command = Annotated[bytes, Meta(min_length=1, max_length=limits.CLUSTER_CHANGES_KEPT_BYTES_MAX)]


class ClusterStateRequest(Message):
    """Request changes of the cluster state after ``version``, and wait for them.

    ``leader``: known Raft leader of the cluster group; the broker also responds if that changes.
    """

    version: Counter
    wait_ms: Annotated[int, Meta(ge=0, le=limits.CLUSTER_STATE_WAIT_MS_MAX)]
    leader: NodeId | None = None


class ClusterStateResponse(Message):
    """The commands that lead from the requested version to ``version``, in their order.

    If they are not kept any longer, the attachment is an encoded state of that version.
    ``has_vote``: whether the responding broker has a vote in the cluster group. ``leader`` and
    ``voters``: of the group, as it knows them.
    """

    cluster_id: ClusterId
    version: Counter
    has_vote: bool
    leader: NodeId | None = None
    voters: Annotated[list[Seat], Meta(max_length=limits.BROKERS_PER_CLUSTER_MAX)] = []
    commands: Annotated[list[_Command], Meta(max_length=limits.CLUSTER_CHANGES_KEPT_MAX)] = []


class ProposeRequest(Message):
    """Propose a command of the cluster group for a broker without a vote."""

    command: _Command


class ProposeResponse(Message):
    """The command was decided. ``failure``: the reason why it was rejected.

    ``version``: of a cluster state that contains its effect.
    """

    version: Counter
    failure: Failure | None = None


class ReserveBrokerIdRequest(Message):
    """Reserve an ID for a broker that joins the cluster."""


class ReserveBrokerIdResponse(Message):
    """``id``: no broker had it before, and it is not assigned again."""

    id: NodeId
    cluster_id: ClusterId


class DecommissionRequest(Message):
    """Remove a broker from the cluster, after its replicas and votes have moved to others.

    The request can be repeated; it then returns the progress.
    """

    broker: NodeId


class DecommissionResponse(Message):
    """Progress of a decommission.

    ``removed``: it is complete. ``partitions``: number of those that the broker still stores or
    votes for. ``has_vote``: whether it has a vote in the cluster group. ``waits_for``: why no
    progress is possible now; empty otherwise.
    """

    removed: bool
    partitions: Counter = 0
    has_vote: bool = False
    waits_for: Annotated[str, Meta(max_length=limits.ERROR_MESSAGE_CHARS_MAX)] = ""


class CancelDecommissionRequest(Message):
    """Keep a broker that is being decommissioned, and cancel the moves away from it.

    A separate request: a broker of an earlier release would read a flag of ``decommission`` as
    the request to remove the broker.
    """

    broker: NodeId


class CancelDecommissionResponse(Message):
    """The broker stays. ``moving``: number of partitions that get their former replicas back."""

    moving: Counter = 0


# -- events ----------------------------------------------------------------------------------------
#
# ``describe_events``: the event history of the responding broker.


_Time = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class DescribeEventsRequest(Message):
    """Request the events that the broker applied at ``since_ms`` or later (ms since 1970)."""

    since_ms: _Time = 0


class EventStatus(Message):
    """One event. ``at_ms``: wall-clock time at which the responding broker applied it.

    ``topic`` is empty, and ``partition`` None, for an event of a broker. ``broker``: the new
    leader, or the broker of a broker event. Events of several brokers with the same kind, object
    and version are the same event.
    """

    at_ms: _Time
    kind: Annotated[str, Meta(max_length=64)]
    text: Note
    version: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    topic: Annotated[str, Meta(max_length=limits.TOPIC_NAME_CHARS_MAX)] = ""
    topic_id: Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)] = ""
    partition: PartitionIndex | None = None
    broker: NodeId | None = None
    leader_epoch: WireEpoch = -1


class DescribeEventsResponse(Message):
    """Events, oldest first."""

    events: Annotated[list[EventStatus], Meta(max_length=limits.EVENTS_KEPT_MAX)]


# -- log levels ------------------------------------------------------------------------------------
#
# ``describe_log_levels`` and ``alter_log_levels``: what the responding broker logs.


_Name = Annotated[str, Meta(max_length=limits.LOGGER_NAME_CHARS_MAX)]
_Level = Annotated[str, Meta(max_length=limits.LOGGER_NAME_CHARS_MAX)]


class DescribeLogLevelsRequest(Message):
    """Request the level of every logger of the responding broker."""


class LogLevel(Message):
    """One logger. ``level``: the least level that it logs. ``is_own``: the level was set for this
    logger; otherwise, it has that of the next logger above it.
    """

    logger: _Name
    level: _Level
    is_own: bool = False


class DescribeLogLevelsResponse(Message):
    levels: Annotated[list[LogLevel], Meta(max_length=limits.LOGGERS_MAX)]


class LogLevelChange(Message):
    """``level``: debug, info, warning or error; None for that of the next logger above, and for the
    root logger, ``logging.level`` of the broker.
    """

    logger: _Name
    level: _Level | None


class AlterLogLevelsRequest(Message):
    """Change levels until the broker stops: all of them, or none."""

    changes: Annotated[list[LogLevelChange], Meta(max_length=limits.LOGGERS_MAX)]


class AlterLogLevelsResponse(Message):
    pass


# -- schema registry -------------------------------------------------------------------------------


class SchemaRegistryRequest(Message):
    """A request to the schema registry, as over HTTP. The attachment is its body.

    ``path``: percent-encoded, without the query. ``accepts_unknown``: whether the answer may have
    fields that clients of Confluent before 7.9 do not know.
    """

    method: Annotated[str, Meta(max_length=10)]
    path: Annotated[str, Meta(max_length=limits.SCHEMA_PATH_CHARS_MAX)]
    query: Annotated[dict[str, _QueryValue], Meta(max_length=20)] = {}
    accepts_unknown: bool = False


class SchemaRegistryResponse(Message):
    """The answer of the schema registry. ``status``: of HTTP. The attachment is its body."""

    status: Annotated[int, Meta(ge=100, le=599)]
