"""Access rules of the APIs of raftlog's protocol: which operations with which resources a request
requires.

A rule is a function of the caller and the request. It raises the error of a request that is denied
as a whole. Of a request with several topics, groups or partitions, it returns what is permitted;
the response then contains an error for each of the others. A rule has steps, because a request may
name 10,000 resources.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from raftlog.errors import AccessDeniedError, UnknownTopicError
from raftlog.protocol import api, records
from raftlog.protocol.connection import Request
from raftlog.protocol.schema import Failure, Message, slices
from raftlog.record import producer_id_at
from raftlog.registry.rest import Call, required
from raftlog.security.acl import CLUSTER_NAME, Operation, ResourceType
from raftlog.server.access.control import Caller
from raftlog.server.context import BrokerContext
from raftlog.types import SCHEMAS_TOPIC

DECIDED_PER_STEP: Final = 256

RequestT = TypeVar("RequestT")
Item = TypeVar("Item")
T = TypeVar("T")
Stepwise: TypeAlias = Generator[None, Any, T]
Denied: TypeAlias = dict[int, AccessDeniedError]


class Admitted(NamedTuple, Generic[RequestT]):
    """Permitted parts of a request.

    ``request``: None if nothing is. ``amend``: completes the response (None: there is none) with
    the errors of what is denied, or removes from it what the client must not see.
    """

    request: RequestT | None
    amend: Callable[[Any], Stepwise[Any]] | None = None


# Raises AccessDeniedError for a request that is denied as a whole.
Rule: TypeAlias = Callable[[BrokerContext, Caller, RequestT], Stepwise[Admitted[RequestT]]]


# -- rules of both protocols -----------------------------------------------------------------------


def free(_context: BrokerContext, _caller: Caller, request: RequestT) -> Stepwise[Admitted[Any]]:
    """Permit the request to every client."""
    yield from ()
    return Admitted(request)


def of_cluster(operation: Operation) -> Rule[Any]:
    """Return the rule of a request that concerns the whole cluster."""

    def rule(_context: BrokerContext, caller: Caller, request: Any) -> Stepwise[Admitted[Any]]:
        caller.require_of_cluster(operation)
        yield from ()
        return Admitted(request)

    return rule


def of_group(operation: Operation, field: str, then: Rule[Any] = free) -> Rule[Any]:
    """Return the rule of a request about one group, whose name is in ``field``."""

    def rule(context: BrokerContext, caller: Caller, request: Any) -> Stepwise[Admitted[Any]]:
        caller.require(operation, "GROUP", getattr(request.message, field))
        return (yield from then(context, caller, request))

    return rule


def of_producer_id(
    _context: BrokerContext, caller: Caller, request: Any
) -> Stepwise[Admitted[Any]]:
    """Require the right to write to any topic, or IDEMPOTENT_WRITE (KIP-679)."""
    if not caller.may("IDEMPOTENT_WRITE", "CLUSTER", CLUSTER_NAME) and not caller.may_any(
        "WRITE", "TOPIC"
    ):
        caller.require_of_cluster("IDEMPOTENT_WRITE")
    yield from ()
    return Admitted(request)


def denied_items(
    items: Sequence[Item], denial: Callable[[Item], AccessDeniedError | None]
) -> Stepwise[Denied]:
    """Return the errors of the items that are denied, by position."""
    denied: Denied = {}
    for number, item in enumerate(items):
        error = denial(item)
        if error is not None:
            denied[number] = error
        if number % DECIDED_PER_STEP == DECIDED_PER_STEP - 1:
            yield None
    return denied


def describable(
    caller: Caller, resource_type: ResourceType, items: Sequence[Item], name: Callable[[Item], str]
) -> Stepwise[list[Item]]:
    """Return the items that the client may describe."""
    kept: list[Item] = []
    for number, item in enumerate(items):
        if caller.may("DESCRIBE", resource_type, name(item)):
            kept.append(item)
        if number % DECIDED_PER_STEP == DECIDED_PER_STEP - 1:
            yield None
    return kept


def describable_topics(context: BrokerContext, caller: Caller) -> Stepwise[list[str]]:
    """Return the names of all topics that the client may describe."""
    context.topics.check_complete()
    names = [topic.name for topic in context.topics]
    return (yield from describable(caller, "TOPIC", names, str))


# -- rules of raftlog's protocol -------------------------------------------------------------------


class _Each:
    """Rule of a request with a list of topics, partitions or groups, each with its own result.

    ``field``: the list in the request. ``response``, ``results``: the type of the response, and its
    list. ``failed``: the result of an item that is denied. ``denial``: returns the error for an
    item; by default, that of ``operation`` with the resource that the item names. ``in_order``:
    whether results are in the order of the request, one for each item. ``is_partial``: whether the
    response contains nothing else.
    """

    def __init__(
        self,
        operation: Operation,
        resource_type: ResourceType,
        field: str,
        response: type[Message],
        results: str,
        failed: Callable[[Any, Failure], Message],
        *,
        name: Callable[[Any], str] = attrgetter("topic"),
        denial: Callable[[Caller, Any], AccessDeniedError | None] | None = None,
        in_order: bool = True,
        is_partial: bool = True,
    ) -> None:
        self._field = field
        self._response = response
        self._results = results
        self._failed = failed
        self._in_order = in_order
        self._is_partial = is_partial
        self._denial = denial or (
            lambda caller, item: caller.denial(operation, resource_type, name(item))
        )

    def __call__(
        self, _context: BrokerContext, caller: Caller, request: Request
    ) -> Stepwise[Admitted[Request]]:
        items: list[Any] = getattr(request.message, self._field)
        denied = yield from denied_items(items, lambda item: self._denial(caller, item))
        return self.without(request, denied)

    def without(self, request: Request, denied: Denied) -> Admitted[Request]:
        """Return the request without the items that are denied."""
        if not denied:
            return Admitted(request)
        items: list[Any] = getattr(request.message, self._field)
        kept = [item for number, item in enumerate(items) if number not in denied]
        left = None
        if kept or not self._is_partial:
            left = request._replace(message=replace(request.message, **{self._field: kept}))

        def amend(response: Message | None) -> Stepwise[Message]:
            yield from ()
            return self._with_failures(items, denied, response)

        return Admitted(left, amend)

    def _with_failures(self, items: list[Any], denied: Denied, response: Message | None) -> Message:
        found = [] if response is None else getattr(response, self._results)
        failed = {
            number: self._failed(items[number], Failure.of(error))
            for number, error in denied.items()
        }
        results = (
            list(_merged(len(items), found, failed))
            if self._in_order
            else [*found, *failed.values()]
        )
        if response is None:
            return self._response(**{self._results: results})
        return replace(response, **{self._results: results})


def _merged(count: int, found: Sequence[Message], failed: dict[int, Message]) -> Iterator[Message]:
    """Return the results in the order of the request. A page ends early."""
    rest = iter(found)
    for number in range(count):
        result = failed[number] if number in failed else next(rest, None)
        if result is None:
            return
        yield result


_PRODUCE: Final = _Each(
    "WRITE",
    "TOPIC",
    "partitions",
    records.ProduceResponse,
    "partitions",
    lambda part, failure: records.ProducedPartition(
        topic=part.topic, partition=part.partition, failure=failure
    ),
)


def _produce(
    _context: BrokerContext, caller: Caller, request: Request
) -> Stepwise[Admitted[Request]]:
    """Require WRITE of each topic, and that the producer ids are those of the client."""
    message = request.message
    assert isinstance(message, records.ProduceRequest)
    # guard: the name of a producer requires a rule
    if message.producer:
        caller.require("WRITE", "TRANSACTIONAL_ID", message.producer)
    if message.transactional_id:
        caller.require("WRITE", "TRANSACTIONAL_ID", message.transactional_id)
    parts = message.partitions
    batches = slices(request.attachment, [part.length for part in parts])

    def denial(number: int) -> AccessDeniedError | None:
        error = caller.denial("WRITE", "TOPIC", parts[number].topic)
        if error is not None:
            return error
        try:
            caller.check_producer_id(producer_id_at(batches[number]), message.producer)
        except AccessDeniedError as not_owned:
            return not_owned
        return None

    denied = yield from denied_items(range(len(parts)), denial)
    if denied and not request.expects_response:
        raise denied[min(denied)]
    admitted = _PRODUCE.without(request, denied)
    if denied and admitted.request is not None:
        kept = [batch for number, batch in enumerate(batches) if number not in denied]
        attachment = memoryview(b"".join(kept))
        return admitted._replace(request=admitted.request._replace(attachment=attachment))
    return admitted


def _topics(
    operation: Operation,
    response: type[Message],
    failed: Callable[[str, Failure], Message],
    results: str = "results",
    denial: Callable[[Caller, Any], AccessDeniedError | None] | None = None,
    *,
    is_partial: bool = True,
) -> _Each:
    """Return the rule of a request with a list of topics, by name."""

    def name(item: Any) -> str:
        return item if isinstance(item, str) else item.name

    return _Each(
        operation,
        "TOPIC",
        "topics",
        response,
        results,
        lambda item, failure: failed(name(item), failure),
        name=name,
        denial=denial,
        is_partial=is_partial,
    )


def _result(name: str, failure: Failure) -> records.TopicResult:
    return records.TopicResult(name=name, failure=failure)


def create_denial(caller: Caller, name: str) -> AccessDeniedError | None:
    """Return the error unless the client may create topics, or this topic."""
    if caller.may("CREATE", "CLUSTER", CLUSTER_NAME):
        return None
    return caller.denial("CREATE", "TOPIC", name)


_METADATA: Final = _topics(
    "DESCRIBE",
    records.MetadataResponse,
    lambda name, failure: records.TopicInfo(name=name, failure=failure),
    results="topics",
    is_partial=False,
)
_DESCRIBE_TOPICS: Final = _topics(
    "DESCRIBE",
    records.DescribeTopicsResponse,
    lambda name, failure: records.TopicDescription(name=name, failure=failure),
    results="topics",
)


def _or_all_visible(each: _Each) -> Rule[Request]:
    """Return the rule of a request for topics by name, or for all: then, all that the client may
    describe.
    """

    def rule(
        context: BrokerContext, caller: Caller, request: Request
    ) -> Stepwise[Admitted[Request]]:
        message: Any = request.message
        if message.topics is not None:
            return (yield from each(context, caller, request))
        visible = yield from describable_topics(context, caller)
        after = getattr(message, "after", "")
        named = replace(message, topics=[name for name in visible if name > after])
        return Admitted(request._replace(message=named), _without_deleted)

    return rule


def _without_deleted(response: Any) -> Stepwise[Any]:
    """Remove topics that were deleted during the request."""
    yield from ()
    kept = [
        topic
        for topic in response.topics
        if topic.failure is None or topic.failure.code != UnknownTopicError.code
    ]
    return replace(response, topics=kept)


def _partition(kind: type[Message]) -> Callable[[Any, Failure], Message]:
    def failed(part: Any, failure: Failure) -> Message:
        return kind(topic=part.topic, partition=part.partition, failure=failure)

    return failed


def _group(kind: type[Message]) -> Callable[[Any, Failure], Message]:
    return lambda group, failure: kind(group=group, failure=failure)


def _of_transaction(then: Rule[Request] = free) -> Rule[Request]:
    """Return the rule of a request about one transactional id."""

    def rule(
        context: BrokerContext, caller: Caller, request: Request
    ) -> Stepwise[Admitted[Request]]:
        message: Any = request.message
        caller.require("WRITE", "TRANSACTIONAL_ID", message.transactional_id)
        return (yield from then(context, caller, request))

    return rule


def _coordinator_denial(caller: Caller, name: str) -> AccessDeniedError | None:
    """An operator who may abort any transaction may look up its coordinator."""
    if caller.may("ALTER", "CLUSTER", CLUSTER_NAME):
        return None
    return caller.denial("DESCRIBE", "TRANSACTIONAL_ID", name)


def _list_transactions(
    _context: BrokerContext, caller: Caller, request: Request
) -> Stepwise[Admitted[Request]]:
    yield from ()

    def amend(response: Any) -> Stepwise[Any]:
        kept = yield from describable(
            caller, "TRANSACTIONAL_ID", response.transactions, attrgetter("transactional_id")
        )
        return replace(response, transactions=kept)

    return Admitted(request, amend)


def _describe_transaction(
    _context: BrokerContext, caller: Caller, request: Request
) -> Stepwise[Admitted[Request]]:
    """Show of the transaction the topics that the client may describe."""
    message: Any = request.message
    caller.require("DESCRIBE", "TRANSACTIONAL_ID", message.transactional_id)
    yield from ()

    def amend(response: Any) -> Stepwise[Any]:
        kept = yield from describable(caller, "TOPIC", response.topics, attrgetter("topic"))
        return replace(response, topics=kept)

    return Admitted(request, amend)


def _abort_transaction(
    _context: BrokerContext, caller: Caller, request: Request
) -> Stepwise[Admitted[Request]]:
    message: Any = request.message
    if not caller.may("ALTER", "CLUSTER", CLUSTER_NAME):
        caller.require("WRITE", "TRANSACTIONAL_ID", message.transactional_id)
    yield from ()
    return Admitted(request)


def _groups(operation: Operation, response: type[Message], results: str, kind: Any) -> _Each:
    return _Each(operation, "GROUP", "groups", response, results, _group(kind), name=str)


def _heartbeat(
    _context: BrokerContext, caller: Caller, request: Request
) -> Stepwise[Admitted[Request]]:
    """Require READ of the group, and DESCRIBE of the topics that the member subscribes to."""
    message: Any = request.message
    caller.require("READ", "GROUP", message.group)
    denied = yield from denied_items(
        message.topics, lambda name: caller.denial("DESCRIBE", "TOPIC", name)
    )
    if denied:
        raise denied[min(denied)]
    return Admitted(request)


_COMMIT: Final = of_group(
    "READ",
    "group",
    _Each(
        "READ",
        "TOPIC",
        "offsets",
        records.OffsetCommitResponse,
        "partitions",
        _partition(records.CommittedPartition),
    ),
)
_OFFSETS: Final = _Each(
    "DESCRIBE",
    "TOPIC",
    "partitions",
    records.OffsetFetchResponse,
    "offsets",
    _partition(records.FetchedOffset),
)


def _offset_fetch(
    context: BrokerContext, caller: Caller, request: Request
) -> Stepwise[Admitted[Request]]:
    message: Any = request.message
    if message.partitions is not None:
        return (yield from _OFFSETS(context, caller, request))

    def amend(response: Any) -> Stepwise[Any]:
        kept = yield from describable(caller, "TOPIC", response.offsets, attrgetter("topic"))
        return replace(response, offsets=kept)

    return Admitted(request, amend)


def _list_groups(
    _context: BrokerContext, caller: Caller, request: Request
) -> Stepwise[Admitted[Request]]:
    """Show all groups with DESCRIBE of the cluster, else those that the client may describe."""
    yield from ()
    if caller.may("DESCRIBE", "CLUSTER", CLUSTER_NAME):
        return Admitted(request)

    def amend(response: Any) -> Stepwise[Any]:
        kept = yield from describable(caller, "GROUP", response.groups, attrgetter("group"))
        return replace(response, groups=kept)

    return Admitted(request, amend)


def _written_or_read(caller: Caller, query: Any) -> AccessDeniedError | None:
    """A producer may look up what it has written."""
    if caller.may("WRITE", "TOPIC", query.topic):
        return None
    return caller.denial("READ", "TOPIC", query.topic)


def _schema_registry(
    _context: BrokerContext, caller: Caller, request: Request
) -> Stepwise[Admitted[Request]]:
    """Require of topic ``__schemas`` what the call does with the registry."""
    message: Any = request.message
    caller.require(required(Call(message.method, message.path)), "TOPIC", SCHEMAS_TOPIC)
    yield from ()
    return Admitted(request)


# Handshakes prove their own right. Handlers of delegation tokens compare owners with the client.
# The requests between brokers are denied to all other clients before (``Api.peer_only``).
RULES: Final[dict[int, Rule[Request]]] = {
    api.API_VERSIONS.number: free,
    api.PEER_HELLO.number: free,
    api.PEER_PROVE.number: free,
    api.OPERATOR_HELLO.number: free,
    api.OPERATOR_PROVE.number: free,
    api.SASL_AUTHENTICATE.number: free,
    api.METADATA.number: _or_all_visible(_METADATA),
    api.PRODUCE.number: _produce,
    api.FETCH.number: _Each(
        "READ",
        "TOPIC",
        "partitions",
        records.FetchResponse,
        "partitions",
        _partition(records.FetchedPartition),
        in_order=False,
    ),
    api.LIST_OFFSETS.number: _Each(
        "DESCRIBE",
        "TOPIC",
        "queries",
        records.ListOffsetsResponse,
        "answers",
        _partition(records.OffsetAnswer),
    ),
    api.INIT_PRODUCER_ID.number: of_producer_id,
    api.CREATE_TOPICS.number: _topics(
        "CREATE",
        records.TopicsResponse,
        _result,
        denial=lambda caller, topic: create_denial(caller, topic.name),
    ),
    api.DELETE_TOPICS.number: _topics("DELETE", records.TopicsResponse, _result),
    api.DESCRIBE_TOPICS.number: _or_all_visible(_DESCRIBE_TOPICS),
    api.ALTER_TOPICS.number: _topics("ALTER_CONFIGS", records.TopicsResponse, _result),
    api.ADD_PARTITIONS.number: _topics("ALTER", records.TopicsResponse, _result),
    api.DELETE_RECORDS.number: _Each(
        "DELETE",
        "TOPIC",
        "partitions",
        records.DeleteRecordsResponse,
        "partitions",
        _partition(records.DeletedRecords),
    ),
    api.RAFT.number: free,
    api.CLUSTER_STATE.number: free,
    api.PROPOSE.number: free,
    api.PEER_PING.number: free,
    api.REPLICA_FETCH.number: free,
    api.REPLICA_PROGRESS.number: free,
    api.PARTITION_STATES.number: free,
    api.DESCRIBE_COPIES.number: free,
    api.VERIFY_TRANSACTIONS.number: free,
    api.TRANSACTION_MARKERS.number: free,
    api.TRANSACTION_OWNERS.number: free,
    api.SURVEY.number: free,
    api.REVIVE.number: free,
    api.DESCRIBE_CLUSTER.number: of_cluster("DESCRIBE"),
    api.DESCRIBE_EVENTS.number: of_cluster("DESCRIBE"),
    api.VERIFY_COPY.number: of_cluster("DESCRIBE"),
    api.TRANSFER_LEADER.number: of_cluster("ALTER"),
    api.REASSIGN.number: of_cluster("ALTER"),
    api.THROTTLE_MOVES.number: of_cluster("ALTER"),
    api.UPGRADE_FEATURES.number: of_cluster("ALTER"),
    api.CANCEL_DECOMMISSION.number: of_cluster("ALTER"),
    api.RESERVE_BROKER_ID.number: of_cluster("ALTER"),
    api.DECOMMISSION.number: of_cluster("ALTER"),
    api.DESCRIBE_USERS.number: of_cluster("DESCRIBE"),
    api.ALTER_USERS.number: of_cluster("ALTER"),
    api.CREATE_TOKEN.number: free,
    api.DESCRIBE_TOKENS.number: free,
    api.RENEW_TOKEN.number: free,
    api.EXPIRE_TOKEN.number: free,
    api.RECOVER_CLUSTER.number: of_cluster("ALTER"),
    api.FIND_COORDINATORS.number: _groups(
        "DESCRIBE", records.FindCoordinatorsResponse, "coordinators", records.CoordinatorInfo
    ),
    api.GROUP_HEARTBEAT.number: _heartbeat,
    api.OFFSET_COMMIT.number: _COMMIT,
    api.OFFSET_FETCH.number: of_group("DESCRIBE", "group", _offset_fetch),
    api.LIST_GROUPS.number: _list_groups,
    api.DESCRIBE_GROUPS.number: _groups(
        "DESCRIBE", records.DescribeGroupsResponse, "groups", records.GroupDescription
    ),
    api.DELETE_GROUPS.number: _groups(
        "DELETE", records.DeleteGroupsResponse, "groups", records.DeletedGroup
    ),
    api.DELETE_OFFSETS.number: of_group(
        "DELETE",
        "group",
        _Each(
            "READ",
            "TOPIC",
            "partitions",
            records.DeleteOffsetsResponse,
            "partitions",
            _partition(records.CommittedPartition),
        ),
    ),
    api.DESCRIBE_PRODUCERS.number: _Each(
        "WRITE",
        "TOPIC",
        "partitions",
        records.DescribeProducersResponse,
        "partitions",
        _partition(records.DescribedProducers),
        denial=_written_or_read,
    ),
    api.LIST_PRODUCERS.number: _Each(
        "READ",
        "TOPIC",
        "partitions",
        records.ListProducersResponse,
        "partitions",
        _partition(records.ListedProducers),
    ),
    api.CREATE_ACLS.number: of_cluster("ALTER"),
    api.DELETE_ACLS.number: of_cluster("ALTER"),
    api.DESCRIBE_ACLS.number: of_cluster("DESCRIBE"),
    api.CHECK_ACL.number: of_cluster("DESCRIBE"),
    api.DESCRIBE_QUOTAS.number: of_cluster("DESCRIBE_CONFIGS"),
    api.ALTER_QUOTAS.number: of_cluster("ALTER_CONFIGS"),
    api.DESCRIBE_LOG_LEVELS.number: of_cluster("DESCRIBE_CONFIGS"),
    api.ALTER_LOG_LEVELS.number: of_cluster("ALTER_CONFIGS"),
    api.SCHEMA_REGISTRY.number: _schema_registry,
    api.FIND_TRANSACTION_COORDINATORS.number: _Each(
        "DESCRIBE",
        "TRANSACTIONAL_ID",
        "transactional_ids",
        records.FindCoordinatorsResponse,
        "coordinators",
        _group(records.CoordinatorInfo),
        denial=_coordinator_denial,
    ),
    api.INIT_TRANSACTIONS.number: _of_transaction(),
    api.END_TRANSACTION.number: _of_transaction(),
    api.TRANSACTION_OFFSET_COMMIT.number: _of_transaction(_COMMIT),
    api.LIST_TRANSACTIONS.number: _list_transactions,
    api.DESCRIBE_TRANSACTION.number: _describe_transaction,
    api.ABORT_TRANSACTION.number: _abort_transaction,
}
