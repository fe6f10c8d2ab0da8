"""ApiVersions, Metadata and DescribeCluster: what clients request first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from typing import Any, Final

from raftlog.errors import (
    ClusterNotReadyError,
    InvalidRequestError,
    RaftlogError,
    ThrottledError,
    UnknownTopicError,
)
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import KAFKA_STORAGE_ERROR, Place, code_of
from raftlog.security.acl import CLUSTER_NAME, OPERATIONS, OPERATIONS_OF, ResourceType
from raftlog.server.access.control import AccessControl, Caller, Client
from raftlog.server.apis.topics import create_soon
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.reply import KafkaReply, check_count
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Steps, in_steps
from raftlog.server.topic_table import HostedTopic
from raftlog.types import is_internal_topic

PARTITIONS_PER_STEP: Final = 128
TOPICS_WAIT_SECONDS_MAX: Final = 5.0  # clients repeat the request after much more
ENDPOINT_BROKERS: Final = 1
UNSUPPORTED_ENDPOINT_TYPE: Final = 115
NO_NODE: Final = -1
TOPIC_IDS_SINCE: Final = 12  # version of Metadata
TRANSACTION_VERSION: Final = "transaction.version"  # feature by which clients choose their protocol

_Versions = codec.structs("response", api.API_VERSIONS.key)
_Metadata = codec.structs("response", api.METADATA.key)
_Cluster = codec.structs("response", api.DESCRIBE_CLUSTER.key)


# -- ApiVersions -----------------------------------------------------------------------------------


def handle_api_versions(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Return the served APIs. A version that is not served gets an error in version 0 (KIP-511):
    the client then repeats the request in one that is. A client that meant another broker or
    cluster, whose address this one has now, has to start again from its bootstrap (KIP-1242).
    """
    is_unknown = request.asked_version != request.version
    served = [api.API_VERSIONS] if is_unknown else api.APIS.values()
    code = errors.UNSUPPORTED_VERSION if is_unknown else errors.NONE
    if request.version >= 5:
        meant, cluster_id = request.message, context.operations.cluster_id
        if (meant.node_id != NO_NODE and meant.node_id != context.broker_id) or (
            meant.cluster_id is not None and cluster_id and meant.cluster_id != cluster_id
        ):
            code, served = errors.REBOOTSTRAP_REQUIRED, []
    level = context.transactions.version if served and not is_unknown else 0
    reply.send(
        _Versions.root(
            error_code=code,
            # Clients of version 3 fail at a feature whose lowest level is 0 (KAFKA-17011).
            supported_features=[
                _Versions.SupportedFeatureKey(
                    name=TRANSACTION_VERSION,
                    min_version=0 if request.version >= 4 else 1,
                    max_version=level,
                )
            ]
            if level
            else [],
            finalized_features_epoch=0 if level else -1,
            finalized_features=[
                _Versions.FinalizedFeatureKey(
                    name=TRANSACTION_VERSION, max_version_level=level, min_version_level=level
                )
            ]
            if level
            else [],
            api_keys=[
                _Versions.ApiVersion(
                    api_key=each.key,
                    min_version=each.version_min if each.advertised_min < 0 else 0,
                    max_version=each.version_max,
                )
                for each in served
            ],
        )
    )


# -- Metadata --------------------------------------------------------------------------------------


def handle_metadata(
    context: BrokerContext, request: KafkaRequest, reply: KafkaReply
) -> Steps | None:
    """Return the brokers and the requested topics. Topics that do not exist may be created."""
    steps = _describe(context, request, reply)
    if not awaits_topics(context, request):
        return steps
    await_topics(context, reply, steps)
    return None


def awaits_topics(context: BrokerContext, request: KafkaRequest) -> bool:
    """Return whether this is a request for all topics, and this broker has not received them.

    Before version 13, the response has no error, and clients would take an empty list for all
    topics.
    """
    is_metadata = request.api.key == api.METADATA.key
    return is_metadata and not context.topics.is_complete and _wants_all(request)


def await_topics(context: BrokerContext, reply: KafkaReply, steps: Steps) -> None:
    """Continue a request in ``steps`` when this broker has received the topics of the cluster."""

    def give_up() -> None:
        try:
            context.topics.check_complete()
        except ClusterNotReadyError as error:
            context.topics.forget(go)
            reply.fail(error)

    timer = context.loop.call_later(TOPICS_WAIT_SECONDS_MAX, give_up)

    def go() -> None:
        timer.cancel()
        reply.go_on(steps)

    context.topics.when_complete(go)


def _wants_all(request: KafkaRequest) -> bool:
    topics = request.message.topics
    return topics is None or (request.version == 0 and not topics)


def is_by_id(wanted: Message) -> bool:
    """Return whether a topic of a request is given by its ID, as in Kafka: its name is then null
    (franz-go) or empty (the Java client).
    """
    return wanted.name is None or wanted.topic_id != codec.ZERO_UUID


def _check_ids(request: KafkaRequest) -> None:
    """Raise ``InvalidRequestError`` for topic IDs before version 12, as Kafka does."""
    if request.version < TOPIC_IDS_SINCE and any(map(is_by_id, request.message.topics)):
        raise InvalidRequestError(
            f"Metadata version {request.version} with a topic ID, or without a topic name: use "
            f"version {TOPIC_IDS_SINCE}, or names only"
        )


def _describe(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    message = request.message
    operations = AuthorizedOperations(
        context.access,
        reply.connection,
        is_requested=request.version >= 8 and message.include_topic_authorized_operations,
    )
    topics: list[Message] = []
    if _wants_all(request):
        for topic in context.topics:
            described = yield from _topic(context, topic, operations)
            topics.append(described)
    else:
        # Before version 4, clients cannot forbid it.
        may_create = request.version < 4 or message.allow_auto_topic_creation
        _check_ids(request)
        # As in Kafka, the response has a topic once: it can be large.
        distinct = {each.topic_id if is_by_id(each) else each.name: each for each in message.topics}
        # guard: Metadata has each topic once
        for wanted in distinct.values():
            described = yield from _requested(
                context, request, wanted, operations, may_create=may_create
            )
            topics.append(described)
    reply.send(_cluster_metadata(context, request, reply, topics))


def refuse_metadata(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return the error for each requested topic; for the whole request since version 13."""
    code = code_of(error, Place.METADATA)
    topics = [
        _Metadata.MetadataResponseTopic(
            error_code=code, name=_shown_name(request, each), topic_id=each.topic_id
        )
        for each in request.message.topics or ()
    ]
    return _Metadata.root(error_code=code, topics=topics)


def _shown_name(request: KafkaRequest, wanted: Message) -> str | None:
    """Return the name in the response to a topic that is refused: null if it is given by its ID."""
    if request.version < TOPIC_IDS_SINCE:
        return wanted.name or ""
    return None if is_by_id(wanted) else wanted.name


def _cluster_metadata(
    context: BrokerContext, request: KafkaRequest, reply: KafkaReply, topics: list[Message]
) -> Message:
    is_requested = (
        8 <= request.version <= 10 and request.message.include_cluster_authorized_operations
    )
    operations = AuthorizedOperations(context.access, reply.connection, is_requested=is_requested)
    return _Metadata.root(
        brokers=[
            _Metadata.MetadataResponseBroker(
                node_id=each.id, host=each.host, port=each.port, rack=each.rack
            )
            for each in context.brokers(reply.connection.local_host, for_kafka=True)
        ],
        cluster_id=context.operations.cluster_id,
        controller_id=_controller(context),
        topics=topics,
        cluster_authorized_operations=operations.of("CLUSTER"),
    )


def _controller(context: BrokerContext) -> int:
    """Return the broker for administration: any broker accepts it."""
    controller = context.operations.controller()
    return context.broker_id if controller is None else controller


def _requested(
    context: BrokerContext,
    request: KafkaRequest,
    wanted: Message,
    operations: AuthorizedOperations,
    *,
    may_create: bool,
) -> Generator[None, Any, Message]:
    by_id = is_by_id(wanted)
    try:
        if by_id:
            topic = context.topics.by_id(wanted.topic_id.hex())
        else:
            topic = context.topics.topic(wanted.name)
    except RaftlogError as error:
        yield None
        code = code_of(error, Place.METADATA)
        if isinstance(error, UnknownTopicError):
            if by_id:
                code = errors.UNKNOWN_TOPIC_ID
            elif may_create and context.topics.colliding(wanted.name) is not None:
                code = errors.INVALID_TOPIC  # a topic that Kafka does not create
            elif may_create and _create_soon(context, wanted.name, request.client_id):
                code = errors.LEADER_NOT_AVAILABLE  # the client repeats the request
        name = _shown_name(request, wanted)
        return _Metadata.MetadataResponseTopic(error_code=code, name=name, topic_id=wanted.topic_id)
    return (yield from _topic(context, topic, operations))


def _create_soon(context: BrokerContext, name: str, client_id: str) -> bool:
    """``create_soon``. While too many changes are pending, a later request of the client does it:
    the other topics of this one are described all the same.
    """
    try:
        return create_soon(context, name, client_id)
    except ThrottledError:
        return True


def _topic(
    context: BrokerContext,
    topic: HostedTopic,
    operations: AuthorizedOperations,
    first: int = 0,
    last: int | None = None,
) -> Generator[None, Any, Message]:
    """Return a topic, with partitions ``first`` to ``last``; a few of them in each step."""
    partitions: list[Message] = []
    for index in range(len(topic.hosts))[first:last]:
        info = context.topics.info(topic, index)
        partitions.append(
            _Metadata.MetadataResponsePartition(
                error_code=errors.LEADER_NOT_AVAILABLE if info.leader is None else errors.NONE,
                partition_index=index,
                leader_id=NO_NODE if info.leader is None else info.leader,
                leader_epoch=info.leader_epoch,
                replica_nodes=info.replicas,
                isr_nodes=info.isr,
            )
        )
        if len(partitions) % PARTITIONS_PER_STEP == 0:
            yield None
    yield None
    return _Metadata.MetadataResponseTopic(
        name=topic.name,
        topic_id=bytes.fromhex(topic.id),
        is_internal=is_internal_topic(topic.name),
        partitions=partitions,
        topic_authorized_operations=operations.of("TOPIC", topic.name),
    )


# -- DescribeTopicPartitions -----------------------------------------------------------------------
#
# As Metadata, in the order of names and in pages (KIP-966).


_Partitions = codec.structs("response", api.DESCRIBE_TOPIC_PARTITIONS.key)
PARTITIONS_PER_PAGE: Final = 2_000


def handle_partitions(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Return the partitions of the requested topics, or of all if none is named, up to the page's
    limit, and where the next page begins.
    """
    message = request.message
    cursor = message.cursor
    names = {each.name for each in message.topics} or {topic.name for topic in context.topics}
    check_count(reply.name, len(message.topics))
    left = min(message.response_partition_limit, PARTITIONS_PER_PAGE)
    if left < 1 or (cursor is not None and cursor.partition_index < 0):
        raise InvalidRequestError(
            f"response_partition_limit {message.response_partition_limit} must be at least 1, and "
            "the cursor's partition at least 0"
        )
    operations = AuthorizedOperations(context.access, reply.connection, is_requested=True)
    topics: list[Message] = []
    following: Message | None = None
    for name in sorted(names):
        first = 0
        if cursor is not None:
            if name < cursor.topic_name:
                continue
            first = cursor.partition_index if name == cursor.topic_name else 0
        if not left:
            following = _Partitions.Cursor(topic_name=name, partition_index=0)
            break
        try:
            topic = context.topics.topic(name)
        except RaftlogError as error:
            code = code_of(error, Place.METADATA)
            found = _Partitions.DescribeTopicPartitionsResponseTopic(error_code=code, name=name)
            topics.append(found)
            yield None
            continue
        count = len(topic.hosts)
        last = min(count, first + left)
        described = yield from _topic(context, topic, operations, first, last)
        topics.append(
            _Partitions.DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=described.topic_id,
                is_internal=described.is_internal,
                partitions=[
                    _Partitions.DescribeTopicPartitionsResponsePartition(
                        error_code=each.error_code,
                        partition_index=each.partition_index,
                        leader_id=each.leader_id,
                        leader_epoch=each.leader_epoch,
                        replica_nodes=each.replica_nodes,
                        isr_nodes=each.isr_nodes,
                        eligible_leader_replicas=[],  # Java's client accepts no null (4.4)
                        last_known_elr=[],
                    )
                    for each in described.partitions
                ],
                topic_authorized_operations=described.topic_authorized_operations,
            )
        )
        left -= max(last - first, 0)
        if last < count:
            following = _Partitions.Cursor(topic_name=name, partition_index=last)
            break
    reply.send(_Partitions.root(topics=topics, next_cursor=following))


def refuse_partitions(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return the error for each requested topic: the response has no other place."""
    code = code_of(error, Place.METADATA)
    return _Partitions.root(
        topics=[
            _Partitions.DescribeTopicPartitionsResponseTopic(error_code=code, name=each.name)
            for each in request.message.topics
        ]
    )


# -- DescribeCluster -------------------------------------------------------------------------------


def handle_describe(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Return the brokers, the cluster id and the controller."""
    if request.version >= 1 and request.message.endpoint_type != ENDPOINT_BROKERS:
        text = "this cluster has no controller endpoints: every broker accepts administration"
        reply.send(_Cluster.root(error_code=UNSUPPORTED_ENDPOINT_TYPE, error_message=text))
        return
    operations = AuthorizedOperations(
        context.access,
        reply.connection,
        is_requested=request.message.include_cluster_authorized_operations,
    )
    reply.send(
        _Cluster.root(
            cluster_authorized_operations=operations.of("CLUSTER"),
            cluster_id=context.operations.cluster_id,
            controller_id=_controller(context),
            brokers=[
                _Cluster.DescribeClusterBroker(
                    broker_id=each.id, host=each.host, port=each.port, rack=each.rack
                )
                for each in context.brokers(reply.connection.local_host, for_kafka=True)
            ],
        )
    )


# -- replicas --------------------------------------------------------------------------------------
#
# DescribeLogDirs and ListPartitionReassignments: where replicas are, and where they move.


_LogDirs = codec.structs("response", api.DESCRIBE_LOG_DIRS.key)
_AlteredDirs = codec.structs("response", api.ALTER_REPLICA_LOG_DIRS.key)
_Moves = codec.structs("response", api.LIST_PARTITION_REASSIGNMENTS.key)


def handle_log_dirs(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Return the replicas on this broker with their sizes: those of the request, or all."""
    asked = request.message.topics
    wanted = None if asked is None else [(topic.topic, topic.partitions) for topic in asked]
    directory = context.config.data_dir
    disk = yield partial(shutil.disk_usage, directory)
    further = context.operations.log_dirs
    # By id of the log directory; "" for the data directory.
    topics: dict[str, list[Message]] = {"": [], **{each.id: [] for each in further.log_dirs}}
    for topic, numbers in _selected(context, "DescribeLogDirs", wanted):
        replicas: dict[str, list[Message]] = {}
        for number in numbers:
            host = topic.hosts[number]
            if host is not None:
                found = replicas.setdefault(host.log.log_dir.id, [])
                found.append(_replica(number, host))
        for id_, partitions in replicas.items():
            part = _LogDirs.DescribeLogDirsTopic(name=topic.name, partitions=partitions)
            topics[id_].append(part)
        yield None
    results = [
        _LogDirs.DescribeLogDirsResult(
            log_dir=os.path.abspath(directory),
            topics=topics[""],
            total_bytes=disk.total,
            usable_bytes=disk.free,
        )
    ]
    results += [
        _LogDirs.DescribeLogDirsResult(
            error_code=KAFKA_STORAGE_ERROR if each.failure else 0,
            log_dir=os.path.abspath(each.path),
            topics=topics[each.id],
            total_bytes=further.space(each).size_bytes,
            usable_bytes=further.space(each).free_bytes,
        )
        for each in further.log_dirs
    ]
    reply.send(_LogDirs.root(results=results))


def refuse_log_dirs(_request: KafkaRequest, error: RaftlogError) -> Message:
    """Return a response without directories; before version 3, without the error too."""
    return _LogDirs.root(error_code=code_of(error, Place.METADATA))


def handle_alter_log_dirs(
    context: BrokerContext, request: KafkaRequest, reply: KafkaReply
) -> Steps:
    """Return whether each replica is in the requested directory: none can move to another one."""
    ids = {os.path.abspath(context.config.data_dir): ""}
    failed = set[str]()
    for each in context.operations.log_dirs.log_dirs:
        path = os.path.abspath(each.path)
        ids[path] = each.id
        if each.failure:
            failed.add(path)

    def altered(path: str, topic: str, partition: int) -> Message:
        held = _log_dir_of(context, topic, partition)
        if path not in ids:
            code = errors.LOG_DIR_NOT_FOUND
        elif path in failed:
            code = errors.KAFKA_STORAGE_ERROR
        elif held is None:
            code = errors.REPLICA_NOT_AVAILABLE
        else:
            code = errors.NONE if held == ids[path] else errors.INVALID_REPLICA_ASSIGNMENT
        return _AlteredDirs.AlterReplicaLogDirPartitionResult(
            partition_index=partition, error_code=code
        )

    results: list[Message] = []
    for wanted in request.message.dirs:
        path = os.path.abspath(wanted.path)
        for topic in wanted.topics:
            check = partial(altered, path, topic.name)
            partitions = yield from in_steps(topic.partitions, check)
            results.append(
                _AlteredDirs.AlterReplicaLogDirTopicResult(
                    topic_name=topic.name, partitions=partitions
                )
            )
            yield None
    reply.send(_AlteredDirs.root(results=results))


def _log_dir_of(context: BrokerContext, name: str, partition: int) -> str | None:
    """Return the ID of the directory with this broker's replica; None without a replica."""
    topic = context.topics.get(name)
    hosts = () if topic is None else topic.hosts
    host = hosts[partition] if 0 <= partition < len(hosts) else None
    return None if host is None else host.log.log_dir.id


def refuse_alter_log_dirs(request: KafkaRequest, error: RaftlogError) -> Message:
    code = code_of(error, Place.METADATA)
    return _AlteredDirs.root(
        results=[
            _AlteredDirs.AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    _AlteredDirs.AlterReplicaLogDirPartitionResult(
                        partition_index=number, error_code=code
                    )
                    for number in topic.partitions
                ],
            )
            for wanted in request.message.dirs
            for topic in wanted.topics
        ]
    )


def handle_moves(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Return the partitions that move to other brokers: those of the request, or all."""
    asked = request.message.topics
    wanted = None if asked is None else [(topic.name, topic.partition_indexes) for topic in asked]
    topics: list[Message] = []
    for topic, numbers in _selected(context, "ListPartitionReassignments", wanted):
        moves = [
            _move(number, context.topics.info(topic, number).replicas, target)
            for number in numbers
            if (target := context.operations.target(topic.id, number))
        ]
        if moves:
            topics.append(_Moves.OngoingTopicReassignment(name=topic.name, partitions=moves))
        yield None
    reply.send(_Moves.root(error_message=None, topics=topics))


def _selected(
    context: BrokerContext, what: str, wanted: list[tuple[str, list[int]]] | None
) -> Iterator[tuple[HostedTopic, Iterable[int]]]:
    """Iterate over the requested topics and partition numbers that exist; None: over all."""
    if wanted is None:
        for topic in context.topics:
            yield topic, range(len(topic.hosts))
        return
    check_count(what, sum(len(numbers) for _, numbers in wanted))
    for name, numbers in wanted:
        try:
            topic = context.topics.topic(name)
        except UnknownTopicError:
            continue
        yield topic, sorted({number for number in numbers if 0 <= number < len(topic.hosts)})


def _replica(number: int, host: Partition) -> Message:
    return _LogDirs.DescribeLogDirsPartition(
        partition_index=number,
        partition_size=host.log.size_bytes,
        offset_lag=max(0, host.high_watermark - host.log.log_end_offset),
    )


def _move(number: int, replicas: list[int], target: list[int]) -> Message:
    adding = [broker for broker in target if broker not in replicas]
    return _Moves.OngoingPartitionReassignment(
        partition_index=number,
        replicas=[*replicas, *adding],
        adding_replicas=adding,
        removing_replicas=[broker for broker in replicas if broker not in target],
    )


# -- authorized operations -------------------------------------------------------------------------
#
# Fields ``authorized_operations`` of responses: what the client may do (KIP-430).


NOT_REQUESTED: Final = -(1 << 31)
# Each operation has the bit of its number in Kafka.
_BITS: Final = {operation: 1 << number for number, operation in enumerate(OPERATIONS, start=2)}


class AuthorizedOperations:
    """Computes the fields of one response."""

    def __init__(self, access: AccessControl, client: Client, *, is_requested: bool) -> None:
        """``is_requested``: otherwise the fields have the value for that."""
        self._is_requested = is_requested
        self._caller = Caller(access, client) if access.is_enforced else None

    def of(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the bits of what the client may do; none if it may not describe the resource."""
        if not self._is_requested:
            return NOT_REQUESTED
        caller = self._caller
        permitted = OPERATIONS_OF[resource_type] - {"ALL"}
        if caller is not None:
            if not caller.may("DESCRIBE", resource_type, name):
                return 0
            return sum(_BITS[one] for one in permitted if caller.may(one, resource_type, name))
        return sum(_BITS[each] for each in permitted)
