"""Access rules of Kafka's APIs; see ``raftlog.server.access.rules``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace

from raftlog.errors import AccessDeniedError, RaftlogError
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.record.kafka_batch import kafka_producer_at
from raftlog.security.acl import CLUSTER_NAME, Operation, ResourceType
from raftlog.server.access.control import Caller
from raftlog.server.access.rules import (
    Admitted,
    Denied,
    Rule,
    Stepwise,
    create_denial,
    denied_items,
    describable,
    describable_topics,
    free,
    of_cluster,
    of_group,
    of_producer_id,
)
from raftlog.server.context import BrokerContext
from raftlog.server.kafka import (
    consumer_protocol,
    fetch,
    group_offsets,
    groups,
    metadata,
    produce,
    topics,
    transactions,
)
from raftlog.server.kafka.reply import Refusal

KEY_TYPE_GROUP: Final = 0

_MetadataTopic = codec.structs("request", api.METADATA.key).MetadataRequestTopic
_PartitionsTopic = codec.structs("request", api.DESCRIBE_TOPIC_PARTITIONS.key).TopicRequest
_DeletedOffsets = codec.structs("response", api.OFFSET_DELETE.key)


def _name(context: BrokerContext, item: Any) -> str | None:
    """Return the name of a topic that is given by name or id; None for an unknown id.

    The id decides if there is one, as in the handlers.
    """
    if isinstance(item, str):
        return item
    topic_id: bytes = getattr(item, "topic_id", codec.ZERO_UUID)
    # guard: access to a topic is decided by its ID if the request has one
    if topic_id == codec.ZERO_UUID:
        name: str | None = item.topic if hasattr(item, "topic") else item.name
        return name
    try:
        return context.topics.by_id(topic_id.hex()).name
    except RaftlogError:
        return None


class _Each:
    """Rule of a request with a list of topics, groups or resources, each with its own result.

    ``field``, ``results``: names of the list in the request, and in the response. ``refuse``:
    returns the response to a request that is denied.
    """

    def __init__(
        self,
        field: str,
        results: str,
        refuse: Refusal,
        denial: Callable[[BrokerContext, Caller, Any], AccessDeniedError | None],
    ) -> None:
        self._field = field
        self._results = results
        self._refuse = refuse
        self._denial = denial

    def __call__(
        self, context: BrokerContext, caller: Caller, request: KafkaRequest
    ) -> Stepwise[Admitted[KafkaRequest]]:
        items: list[Any] = getattr(request.message, self._field) or []
        denied = yield from denied_items(items, lambda item: self._denial(context, caller, item))
        return self.without(request, items, denied)

    def without(
        self, request: KafkaRequest, items: Sequence[Any], denied: Denied
    ) -> Admitted[KafkaRequest]:
        """Return the request without the items that are denied."""
        if not denied:
            return Admitted(request)
        if not request.expects_response:
            raise denied[min(denied)]
        kept = [item for number, item in enumerate(items) if number not in denied]

        def amend(response: Message | None) -> Stepwise[Message]:
            yield None
            found = [] if response is None else getattr(response, self._results)
            refused = [self._refused(request, items[n], error) for n, error in denied.items()]
            if response is None:
                response = self._refuse(self._with(request, []), denied[min(denied)])
            setattr(response, self._results, _merged(len(items), found, denied, refused))
            return response

        return Admitted(self._with(request, kept) if kept else None, amend)

    def _with(self, request: KafkaRequest, items: list[Any]) -> KafkaRequest:
        message = replace(request.message, **{self._field: items})
        return request._replace(message=message)

    def _refused(self, request: KafkaRequest, item: Any, error: AccessDeniedError) -> Message:
        (result,) = getattr(self._refuse(self._with(request, [item]), error), self._results)
        return result


def _merged(
    count: int, found: Sequence[Message], denied: Denied, refused: Sequence[Message]
) -> list[Message]:
    """Return the results in the order of the request, if each item has one."""
    if len(found) + len(refused) != count:
        return [*found, *refused]
    rest, errors_ = iter(found), iter(refused)
    return [next(errors_) if number in denied else next(rest) for number in range(count)]


def _topic(
    operation: Operation,
) -> Callable[[BrokerContext, Caller, Any], AccessDeniedError | None]:
    """Return the requirement of an operation with a topic. The handler rejects unknown ids."""

    def denial(context: BrokerContext, caller: Caller, item: Any) -> AccessDeniedError | None:
        name = _name(context, item)
        return None if name is None else caller.denial(operation, "TOPIC", name)

    return denial


def _named(
    operation: Operation, resource_type: ResourceType, name: Callable[[Any], str] = str
) -> Callable[[BrokerContext, Caller, Any], AccessDeniedError | None]:
    return lambda _context, caller, item: caller.denial(operation, resource_type, name(item))


# -- Produce ---------------------------------------------------------------------------------------


def _produce_denial(context: BrokerContext, caller: Caller, item: Any) -> AccessDeniedError | None:
    """Require WRITE of the topic, and that the producer ids are those of the client."""
    name = _name(context, item)
    error = None if name is None else caller.denial("WRITE", "TOPIC", name)
    if error is not None:
        return error
    try:
        for part in item.partition_data:
            caller.check_producer_id(kafka_producer_at(part.records or b"").producer_id)
    except AccessDeniedError as not_owned:
        return not_owned
    return None


_PRODUCE: Final = _Each("topic_data", "responses", produce.refuse, _produce_denial)


def _produce(
    context: BrokerContext, caller: Caller, request: KafkaRequest
) -> Stepwise[Admitted[KafkaRequest]]:
    if request.message.transactional_id is not None:
        caller.require("WRITE", "TRANSACTIONAL_ID", request.message.transactional_id)
    return (yield from _PRODUCE(context, caller, request))


# -- Metadata --------------------------------------------------------------------------------------


def _metadata(
    context: BrokerContext, caller: Caller, request: KafkaRequest
) -> Stepwise[Admitted[KafkaRequest]]:
    """Show the topics that the client may describe. Topics are created for clients that may
    create them.
    """
    message = request.message
    if message.topics is None or (request.version == 0 and not message.topics):
        visible = yield from describable_topics(context, caller)
        wanted = [_MetadataTopic(name=name) for name in visible]
        # Version 1: without topics, the request is not one for all of them.
        left = request._replace(
            version=max(request.version, 1),
            message=replace(message, topics=wanted, allow_auto_topic_creation=False),
        )
        return Admitted(left, _without_unknown)
    may_create = (
        request.version < 4 or message.allow_auto_topic_creation
    ) and context.config.auto_create_topics_enable

    def denial(item: Any) -> AccessDeniedError | None:
        name = _name(context, item)
        if name is None:
            return None
        error = caller.denial("DESCRIBE", "TOPIC", name)
        if error is None and may_create and context.topics.get(name) is None:
            error = create_denial(caller, name)
        return error

    denied = yield from denied_items(message.topics, denial)
    admitted = _METADATA.without(request, message.topics, denied)
    if admitted.request is not None:
        return admitted
    none = replace(message, topics=[])  # the response contains the brokers
    left = request._replace(version=max(request.version, 1), message=none)
    return admitted._replace(request=left)


def _without_unknown(response: Message) -> Stepwise[Message]:
    """Remove topics that were deleted during the request."""
    yield from ()
    response.topics = [
        topic for topic in response.topics if topic.error_code != errors.UNKNOWN_TOPIC_OR_PARTITION
    ]
    return response


def _refuse_metadata(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return the error for each topic. The name of one that is given by its id is not shown."""
    refused = metadata.refuse_metadata(request, error)
    for topic, shown in zip(request.message.topics, refused.topics, strict=True):
        if metadata.is_by_id(topic):
            shown.error_code = errors.UNKNOWN_TOPIC_ID
    refused.error_code = errors.NONE
    return refused


_PARTITIONS: Final = _Each("topics", "topics", metadata.refuse_partitions, _topic("DESCRIBE"))


def _topic_partitions(
    context: BrokerContext, caller: Caller, request: KafkaRequest
) -> Stepwise[Admitted[KafkaRequest]]:
    """Show the topics that the client may describe."""
    message = request.message
    if message.topics:
        return (yield from _PARTITIONS(context, caller, request))
    visible = yield from describable_topics(context, caller)
    if not visible:
        return Admitted(None, _nothing(request))
    wanted = [_PartitionsTopic(name=name) for name in visible]
    return Admitted(request._replace(message=replace(message, topics=wanted)), _without_unknown)


def _nothing(request: KafkaRequest) -> Callable[[Message | None], Stepwise[Message]]:
    def amend(_response: Message | None) -> Stepwise[Message]:
        yield from ()
        return codec.structs("response", request.api.key).root()

    return amend


# -- settings --------------------------------------------------------------------------------------


def _settings(
    operation: Operation,
) -> Callable[[BrokerContext, Caller, Any], AccessDeniedError | None]:
    """Return the requirement of an operation with the settings of a topic, group or broker."""

    def denial(_context: BrokerContext, caller: Caller, item: Any) -> AccessDeniedError | None:
        if item.resource_type == topics.TOPIC:
            return caller.denial(operation, "TOPIC", item.resource_name)
        if item.resource_type == topics.GROUP:
            return caller.denial(operation, "GROUP", item.resource_name)
        return caller.denial(operation, "CLUSTER", CLUSTER_NAME)

    return denial


# -- groups ----------------------------------------------------------------------------------------


def _find_coordinator(
    context: BrokerContext, caller: Caller, request: KafkaRequest
) -> Stepwise[Admitted[KafkaRequest]]:
    message = request.message
    is_group = request.version < 1 or message.key_type == KEY_TYPE_GROUP
    resource_type: ResourceType = "GROUP" if is_group else "TRANSACTIONAL_ID"
    if request.version < 4:
        caller.require("DESCRIBE", resource_type, message.key)
        return Admitted(request)
    each = _Each(
        "coordinator_keys",
        "coordinators",
        groups.refuse_find_coordinator,
        _named("DESCRIBE", resource_type),
    )
    return (yield from each(context, caller, request))


def _consumer_heartbeat(
    _context: BrokerContext, caller: Caller, request: KafkaRequest
) -> Stepwise[Admitted[KafkaRequest]]:
    """Require DESCRIBE of the topics that the member subscribes to (KIP-848)."""
    names = request.message.subscribed_topic_names or []
    denied = yield from denied_items(names, lambda name: caller.denial("DESCRIBE", "TOPIC", name))
    if denied:
        raise denied[min(denied)]
    return Admitted(request)


def _list_groups(
    _context: BrokerContext, caller: Caller, request: KafkaRequest
) -> Stepwise[Admitted[KafkaRequest]]:
    yield from ()
    if caller.may("DESCRIBE", "CLUSTER", CLUSTER_NAME):
        return Admitted(request)

    def amend(response: Message) -> Stepwise[Message]:
        response.groups = yield from describable(
            caller, "GROUP", response.groups, attrgetter("group_id")
        )
        return response

    return Admitted(request, amend)


def _refuse_deleted_offsets(request: KafkaRequest, error: RaftlogError) -> Message:
    code = code_of(error, Place.GROUPS)
    return _DeletedOffsets.root(
        topics=[
            _DeletedOffsets.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    _DeletedOffsets.OffsetDeleteResponsePartition(
                        partition_index=part.partition_index, error_code=code
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.message.topics
        ]
    )


_TXN_OFFSETS: Final = of_group(
    "READ", "group_id", _Each("topics", "topics", group_offsets.refuse_txn_commit, _topic("READ"))
)


def _txn_offset_commit(
    context: BrokerContext, caller: Caller, request: KafkaRequest
) -> Stepwise[Admitted[KafkaRequest]]:
    caller.require("WRITE", "TRANSACTIONAL_ID", request.message.transactional_id)
    return (yield from _TXN_OFFSETS(context, caller, request))


_FETCH_GROUPS: Final = _Each(
    "groups",
    "groups",
    group_offsets.refuse_fetch,
    _named("DESCRIBE", "GROUP", attrgetter("group_id")),
)


def _offset_fetch(
    context: BrokerContext, caller: Caller, request: KafkaRequest
) -> Stepwise[Admitted[KafkaRequest]]:
    """Require DESCRIBE of the groups, and of the topics. Of a request for all topics, the response
    contains those that the client may describe.
    """
    message = request.message
    if request.version < group_offsets.GROUPS_SINCE:
        caller.require("DESCRIBE", "GROUP", message.group_id)
        wanted = {message.group_id: message.topics}
        admitted: Admitted[KafkaRequest] = Admitted(request)
    else:
        wanted = {group.group_id: group.topics for group in message.groups}
        admitted = yield from _FETCH_GROUPS(context, caller, request)

    def amend(response: Message | None) -> Stepwise[Message]:
        if admitted.amend is not None:
            response = yield from admitted.amend(response)
        assert response is not None
        if request.version < group_offsets.GROUPS_SINCE:
            found = [(message.group_id, response)]
        else:
            found = [(group.group_id, group) for group in response.groups]
        for group_id, answer in found:
            answer.topics = yield from _visible_offsets(
                context, caller, answer.topics, is_all=wanted[group_id] is None
            )
        return response

    return Admitted(admitted.request, amend)


def _visible_offsets(
    context: BrokerContext, caller: Caller, found: list[Message], *, is_all: bool
) -> Stepwise[list[Message]]:
    """Remove the offsets of topics that the client may not describe, or replace them by errors."""
    denied = yield from denied_items(
        found, lambda topic: _topic("DESCRIBE")(context, caller, topic)
    )
    if is_all:
        return [topic for number, topic in enumerate(found) if number not in denied]
    for number in denied:
        for part in found[number].partitions:
            part.error_code = errors.TOPIC_AUTHORIZATION_FAILED
            part.committed_offset, part.committed_leader_epoch, part.metadata = -1, -1, ""
    return found


# -- the table -------------------------------------------------------------------------------------


def _by_version(old: _Each, new: _Each, since: int) -> Rule[KafkaRequest]:
    """Return a rule that depends on the version of the request."""

    def rule(
        context: BrokerContext, caller: Caller, request: KafkaRequest
    ) -> Stepwise[Admitted[KafkaRequest]]:
        return (yield from (new if request.version >= since else old)(context, caller, request))

    return rule


def _init_producer_id(
    context: BrokerContext, caller: Caller, request: KafkaRequest
) -> Stepwise[Admitted[KafkaRequest]]:
    if request.message.transactional_id is None:
        return (yield from of_producer_id(context, caller, request))
    caller.require("WRITE", "TRANSACTIONAL_ID", request.message.transactional_id)
    return Admitted(request)


def _add_partitions(
    context: BrokerContext, caller: Caller, request: KafkaRequest
) -> Stepwise[Admitted[KafkaRequest]]:
    """Require WRITE of the transactional id, and of every topic: a topic that is denied fails the
    whole request. Newer versions are requests of Kafka's brokers.
    """
    message = request.message
    if request.version >= transactions.BATCHES_SINCE:
        caller.require_of_cluster("CLUSTER_ACTION")
        return Admitted(request)
    caller.require("WRITE", "TRANSACTIONAL_ID", message.v3_and_below_transactional_id)
    topics = message.v3_and_below_topics
    denied = yield from denied_items(topics, partial(_topic("WRITE"), context, caller))
    if not denied:
        return Admitted(request)
    codes = {topics[n].name: code_of(error, Place.METADATA) for n, error in denied.items()}

    def amend(_response: Message | None) -> Stepwise[Message]:
        yield from ()
        return transactions.refuse_some(request, codes)

    return Admitted(None, amend)


def _add_offsets(
    _context: BrokerContext, caller: Caller, request: KafkaRequest
) -> Stepwise[Admitted[KafkaRequest]]:
    caller.require("WRITE", "TRANSACTIONAL_ID", request.message.transactional_id)
    caller.require("READ", "GROUP", request.message.group_id)
    yield from ()
    return Admitted(request)


def _end(
    _context: BrokerContext, caller: Caller, request: KafkaRequest
) -> Stepwise[Admitted[KafkaRequest]]:
    caller.require("WRITE", "TRANSACTIONAL_ID", request.message.transactional_id)
    yield from ()
    return Admitted(request)


def _write_markers(
    _context: BrokerContext, caller: Caller, request: KafkaRequest
) -> Stepwise[Admitted[KafkaRequest]]:
    """Permit it to administrators of the cluster, too, as Kafka does."""
    if not caller.may("ALTER", "CLUSTER", CLUSTER_NAME):
        caller.require_of_cluster("CLUSTER_ACTION")
    yield from ()
    return Admitted(request)


_TRANSACTIONS: Final = _Each(
    "transactional_ids",
    "transaction_states",
    transactions.refuse_describe,
    _named("DESCRIBE", "TRANSACTIONAL_ID"),
)


def _describe_transactions(
    context: BrokerContext, caller: Caller, request: KafkaRequest
) -> Stepwise[Admitted[KafkaRequest]]:
    """Show of each transaction the topics that the client may describe."""
    admitted = yield from _TRANSACTIONS(context, caller, request)

    def amend(response: Message | None) -> Stepwise[Message]:
        if admitted.amend is not None:
            response = yield from admitted.amend(response)
        assert response is not None
        for state in response.transaction_states:
            state.topics = yield from describable(
                caller, "TOPIC", state.topics, attrgetter("topic")
            )
        return response

    return Admitted(admitted.request, amend)


def _list_transactions(
    _context: BrokerContext, caller: Caller, request: KafkaRequest
) -> Stepwise[Admitted[KafkaRequest]]:
    yield from ()

    def amend(response: Message) -> Stepwise[Message]:
        response.transaction_states = yield from describable(
            caller,
            "TRANSACTIONAL_ID",
            response.transaction_states,
            attrgetter("transactional_id"),
        )
        return response

    return Admitted(request, amend)


def _create_denial(_context: BrokerContext, caller: Caller, item: Any) -> AccessDeniedError | None:
    return create_denial(caller, item.name)


_METADATA: Final = _Each("topics", "topics", _refuse_metadata, _topic("DESCRIBE"))
_DELETE: Final = (topics.refuse_delete, _topic("DELETE"))
_JOINED: Final = of_group("READ", "group_id")

# DescribeCluster shows the brokers, which Metadata shows to every client.
RULES: Final[dict[int, Rule[KafkaRequest]]] = {
    api.API_VERSIONS.key: free,
    api.DESCRIBE_CLUSTER.key: free,
    api.SASL_HANDSHAKE.key: free,
    api.SASL_AUTHENTICATE.key: free,
    api.METADATA.key: _metadata,
    api.PRODUCE.key: _produce,
    api.FETCH.key: _Each("topics", "responses", fetch.refuse_topics, _topic("READ")),
    api.LIST_OFFSETS.key: _Each("topics", "topics", fetch.refuse_list, _topic("DESCRIBE")),
    api.OFFSET_FOR_LEADER_EPOCH.key: _Each(
        "topics", "topics", fetch.refuse_epochs, _topic("DESCRIBE")
    ),
    api.DESCRIBE_PRODUCERS.key: _Each(
        "topics", "topics", produce.refuse_describe_producers, _topic("READ")
    ),
    api.INIT_PRODUCER_ID.key: _init_producer_id,
    api.ADD_PARTITIONS_TO_TXN.key: _add_partitions,
    api.ADD_OFFSETS_TO_TXN.key: _add_offsets,
    api.END_TXN.key: _end,
    api.WRITE_TXN_MARKERS.key: _write_markers,
    api.DESCRIBE_TRANSACTIONS.key: _describe_transactions,
    api.LIST_TRANSACTIONS.key: _list_transactions,
    api.CREATE_TOPICS.key: _Each("topics", "topics", topics.refuse_create, _create_denial),
    api.DELETE_TOPICS.key: _by_version(
        _Each("topic_names", "responses", *_DELETE), _Each("topics", "responses", *_DELETE), 6
    ),
    api.CREATE_PARTITIONS.key: _Each("topics", "results", topics.refuse_extend, _topic("ALTER")),
    api.DELETE_RECORDS.key: _Each(
        "topics", "topics", topics.refuse_delete_records, _topic("DELETE")
    ),
    api.DESCRIBE_CONFIGS.key: _Each(
        "resources", "results", topics.refuse_describe, _settings("DESCRIBE_CONFIGS")
    ),
    api.ALTER_CONFIGS.key: _Each(
        "resources", "responses", topics.refuse_alter, _settings("ALTER_CONFIGS")
    ),
    api.INCREMENTAL_ALTER_CONFIGS.key: _Each(
        "resources", "responses", topics.refuse_alter, _settings("ALTER_CONFIGS")
    ),
    api.FIND_COORDINATOR.key: _find_coordinator,
    api.JOIN_GROUP.key: _JOINED,
    api.SYNC_GROUP.key: _JOINED,
    api.HEARTBEAT.key: _JOINED,
    api.LEAVE_GROUP.key: _JOINED,
    api.OFFSET_COMMIT.key: of_group(
        "READ", "group_id", _Each("topics", "topics", group_offsets.refuse_commit, _topic("READ"))
    ),
    api.TXN_OFFSET_COMMIT.key: _txn_offset_commit,
    api.OFFSET_FETCH.key: _offset_fetch,
    api.OFFSET_DELETE.key: of_group(
        "DELETE", "group_id", _Each("topics", "topics", _refuse_deleted_offsets, _topic("READ"))
    ),
    api.CONSUMER_GROUP_HEARTBEAT.key: of_group("READ", "group_id", _consumer_heartbeat),
    api.CONSUMER_GROUP_DESCRIBE.key: _Each(
        "group_ids", "groups", consumer_protocol.refuse_describe, _named("DESCRIBE", "GROUP")
    ),
    api.LIST_GROUPS.key: _list_groups,
    api.DESCRIBE_GROUPS.key: _Each(
        "groups", "groups", groups.refuse_describe, _named("DESCRIBE", "GROUP")
    ),
    api.LIST_CONFIG_RESOURCES.key: of_cluster("DESCRIBE_CONFIGS"),
    api.ALTER_REPLICA_LOG_DIRS.key: of_cluster("ALTER"),
    api.DESCRIBE_LOG_DIRS.key: of_cluster("DESCRIBE"),
    api.LIST_PARTITION_REASSIGNMENTS.key: of_cluster("DESCRIBE"),
    api.ELECT_LEADERS.key: of_cluster("ALTER"),
    api.ALTER_PARTITION_REASSIGNMENTS.key: of_cluster("ALTER"),
    api.DESCRIBE_QUORUM.key: of_cluster("DESCRIBE"),
    api.UPDATE_FEATURES.key: of_cluster("ALTER"),
    api.GET_TELEMETRY_SUBSCRIPTIONS.key: free,
    api.PUSH_TELEMETRY.key: free,
    api.DESCRIBE_TOPIC_PARTITIONS.key: _topic_partitions,
    api.DESCRIBE_USER_SCRAM_CREDENTIALS.key: of_cluster("DESCRIBE"),
    api.ALTER_USER_SCRAM_CREDENTIALS.key: of_cluster("ALTER"),
    api.CREATE_DELEGATION_TOKEN.key: free,  # the handlers compare owners with the client
    api.RENEW_DELEGATION_TOKEN.key: free,
    api.EXPIRE_DELEGATION_TOKEN.key: free,
    api.DESCRIBE_DELEGATION_TOKEN.key: free,
    api.DESCRIBE_ACLS.key: of_cluster("DESCRIBE"),
    api.CREATE_ACLS.key: of_cluster("ALTER"),
    api.DELETE_ACLS.key: of_cluster("ALTER"),
    api.DESCRIBE_CLIENT_QUOTAS.key: of_cluster("DESCRIBE_CONFIGS"),
    api.ALTER_CLIENT_QUOTAS.key: of_cluster("ALTER_CONFIGS"),
    api.DELETE_GROUPS.key: _Each(
        "groups_names", "results", groups.refuse_delete, _named("DELETE", "GROUP")
    ),
}
