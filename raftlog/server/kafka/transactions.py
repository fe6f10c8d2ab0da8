"""InitProducerId with a transactional id, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn,
WriteTxnMarkers, DescribeTransactions and ListTransactions: transactions.

Clients have one of two ways (``transaction.version``, which ApiVersions tells them). In version 1,
they name the partitions with AddPartitionsToTxn and AddOffsetsToTxn. In version 2 (KIP-890), a
Produce or a TxnOffsetCommit adds them, and the response of EndTxn has the next epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from raftlog.consumer_groups import partition_of_group
from raftlog.errors import (
    ProducerFencedError,
    RaftlogError,
    TransactionAbortedError,
    UnknownPartitionError,
)
from raftlog.kafka import api, codec, errors
from raftlog.kafka.api import Api
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.server.apis.produce import draw
from raftlog.server.apis.transactions import (
    ListedTransactions,
    WantedTransactions,
    init_transactions,
    list_transactions,
    topics_of,
)
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Outcomes, check_once
from raftlog.server.kafka.consumer_protocol import matching
from raftlog.server.kafka.reply import KafkaReply, check_count, unsigned
from raftlog.server.scheduling import Steps, in_steps
from raftlog.transactions import (
    BUMPING_VERSION,
    FIRST_VERSION,
    NO_EPOCH,
    Marker,
    Part,
    ProducerIdentity,
    Status,
    TransactionPart,
    TransactionShard,
    TransactionView,
)
from raftlog.types import NO_PRODUCER_ID, OFFSETS_TOPIC, is_internal_topic

_Init = codec.structs("response", api.INIT_PRODUCER_ID.key)
_Added = codec.structs("response", api.ADD_PARTITIONS_TO_TXN.key)
_AddedOffsets = codec.structs("response", api.ADD_OFFSETS_TO_TXN.key)
_Ended = codec.structs("response", api.END_TXN.key)
_Marked = codec.structs("response", api.WRITE_TXN_MARKERS.key)
_Described = codec.structs("response", api.DESCRIBE_TRANSACTIONS.key)
_Listed = codec.structs("response", api.LIST_TRANSACTIONS.key)

BATCHES_SINCE: Final = 4  # version of AddPartitionsToTxn; only brokers of Kafka send it
BUMPING_SINCE: Final = 5  # version of EndTxn, and of AddPartitionsToTxn
# Versions from which clients know PRODUCER_FENCED, and TRANSACTION_ABORTABLE.
FENCED_SINCE: Final[Mapping[Api, int]] = {
    api.INIT_PRODUCER_ID: 4,
    api.ADD_PARTITIONS_TO_TXN: 2,
    api.ADD_OFFSETS_TO_TXN: 2,
    api.END_TXN: 2,
}
ABORTABLE_SINCE: Final[Mapping[Api, int]] = {
    api.PRODUCE: 11,
    api.TXN_OFFSET_COMMIT: 4,
    api.INIT_PRODUCER_ID: 5,
    api.ADD_PARTITIONS_TO_TXN: 4,
    api.ADD_OFFSETS_TO_TXN: 4,
    api.END_TXN: 4,
}
STATES: Final[Mapping[Status, str]] = {
    "empty": "Empty",
    "ongoing": "Ongoing",
    "prepare_commit": "PrepareCommit",
    "prepare_abort": "PrepareAbort",
    "complete_commit": "CompleteCommit",
    "complete_abort": "CompleteAbort",
}


def code_for(error: RaftlogError, request: KafkaRequest) -> int:
    """Return the code of an error, as clients of the request's version know it."""
    asked, version = request.api, request.version
    if isinstance(error, ProducerFencedError) and version < FENCED_SINCE.get(asked, 0):
        return errors.INVALID_PRODUCER_EPOCH
    if isinstance(error, TransactionAbortedError) and version < ABORTABLE_SINCE.get(asked, 0):
        return errors.INVALID_TXN_STATE
    return code_of(error, Place.GROUPS)


def refuse(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return the response of an API with one error code."""
    response = codec.structs("response", request.api.key).root()
    response.error_code = code_for(error, request)
    if request.api is api.INIT_PRODUCER_ID:
        response.producer_epoch = NO_EPOCH
    return response


# -- InitProducerId --------------------------------------------------------------------------------


def handle_init(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Begin an instance of a transactional id. An open transaction of another one is aborted
    first.
    """
    message = request.message
    expected = None
    if request.version >= 3 and message.producer_id != NO_PRODUCER_ID:
        expected = ProducerIdentity(message.producer_id, message.producer_epoch)

    def done(identity: ProducerIdentity) -> None:
        reply.send(_Init.root(producer_id=identity.producer_id, producer_epoch=identity.epoch))

    init_transactions(
        context,
        reply,
        message.transactional_id,
        done,
        timeout_ms=message.transaction_timeout_ms,
        expected=expected,
    )


def refuse_init(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return the response to a request that fails: with or without a transactional id."""
    if request.message.transactional_id is None:
        return _Init.root(error_code=code_of(error, Place.DATA), producer_epoch=NO_EPOCH)
    return refuse(request, error)


# -- AddPartitionsToTxn ----------------------------------------------------------------------------


def handle_add(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Add partitions to a transaction: all of them, or none."""
    if request.version >= BATCHES_SINCE:
        _add_batches(context, request, reply)
        return
    message = request.message
    topics = message.v3_and_below_topics
    check_count(reply.name, sum(len(topic.partitions) for topic in topics))
    parts, unknown = _parts(context, topics)
    if unknown:
        reply.send(_added(topics, partial(_of_unknown, unknown)))
        return
    context.transactions.shard(message.v3_and_below_transactional_id).add(
        message.v3_and_below_transactional_id,
        ProducerIdentity(message.v3_and_below_producer_id, message.v3_and_below_producer_epoch),
        [(part.topic_id, part.partition) for part in parts],
        lambda _nothing: reply.send(_added(topics, lambda _topic, _number: errors.NONE)),
        reply.fail,
        version=FIRST_VERSION,
        topics_version=context.transactions.topics_version,
    )


def _parts(
    context: BrokerContext, topics: Iterable[Message]
) -> tuple[list[TransactionPart], dict[tuple[str, int], int]]:
    """Return the partitions of a request, and the error codes of those that do not exist, or that
    no client writes: their transactions would end with a marker among the records of the brokers.
    """
    parts: list[TransactionPart] = []
    unknown: dict[tuple[str, int], int] = {}
    for topic in topics:
        for number in topic.partitions:
            # guard: no transaction of a Kafka client has a partition of an internal topic
            if is_internal_topic(topic.name):
                unknown[topic.name, number] = errors.TOPIC_AUTHORIZATION_FAILED  # as Kafka
                continue
            try:
                found = context.topics.topic(topic.name)
                if not 0 <= number < len(found.hosts):
                    raise UnknownPartitionError(f"topic {topic.name} has no partition {number}")
                parts.append(TransactionPart(topic.name, found.id, number))
            except RaftlogError as error:
                unknown[topic.name, number] = code_of(error, Place.METADATA)
    return parts, unknown


def _of_unknown(unknown: Mapping[tuple[str, int], int], topic: str, number: int) -> int:
    return unknown.get((topic, number), errors.OPERATION_NOT_ATTEMPTED)


def _added(topics: Iterable[Message], code: Callable[[str, int], int]) -> Message:
    return _Added.root(results_by_topic_v3_and_below=_results(topics, code))


def _results(topics: Iterable[Message], code: Callable[[str, int], int]) -> list[Message]:
    return [
        _Added.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                _Added.AddPartitionsToTxnPartitionResult(
                    partition_index=number, partition_error_code=code(topic.name, number)
                )
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]


def _add_batches(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Add the partitions of several transactions, or verify that they are in them."""
    transactions = request.message.transactions
    check_count(
        reply.name,
        sum(len(topic.partitions) for each in transactions for topic in each.topics),
    )

    def send(codes: list[Callable[[str, int], int]]) -> None:
        reply.send(
            _Added.root(
                results_by_transaction=[
                    _Added.AddPartitionsToTxnResult(
                        transactional_id=each.transactional_id,
                        topic_results=_results(each.topics, code),
                    )
                    for each, code in zip(transactions, codes, strict=True)
                ]
            )
        )

    outcomes: Outcomes[Callable[[str, int], int]] = Outcomes(len(transactions), send)

    def done(index: int, error: RaftlogError | None) -> None:
        code = errors.NONE if error is None else code_for(error, request)
        outcomes.resolve(index, lambda _topic, _number: code)

    for index, each in enumerate(transactions):
        parts, unknown = _parts(context, each.topics)
        if unknown:
            outcomes.resolve(index, partial(_of_unknown, unknown))
            continue
        context.transactions.verify(
            each.transactional_id,
            each.producer_id,
            each.producer_epoch,
            parts,
            add=not each.verify_only,
            done=partial(done, index),
        )


def refuse_add(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return a response with the error for every partition."""
    code = code_for(error, request)
    if request.version >= BATCHES_SINCE:
        return _Added.root(error_code=code)
    topics = request.message.v3_and_below_topics
    return _added(topics, lambda _topic, _number: code)


def refuse_some(request: KafkaRequest, denied: Mapping[str, int]) -> Message:
    """Return a response with the codes of some topics: nothing was added."""
    topics = request.message.v3_and_below_topics
    return _added(topics, lambda topic, _number: denied.get(topic, errors.OPERATION_NOT_ATTEMPTED))


# -- AddOffsetsToTxn -------------------------------------------------------------------------------


def handle_add_offsets(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Add the partition with the offsets of a group."""
    message = request.message

    def made(error: RaftlogError | None) -> None:
        try:
            if error is not None:
                raise error
            add()
        except RaftlogError as reason:
            reply.fail(reason)

    def add() -> None:
        topic = context.topics.topic(OFFSETS_TOPIC)
        part: Part = topic.id, partition_of_group(message.group_id, len(topic.hosts))
        context.transactions.shard(message.transactional_id).add(
            message.transactional_id,
            ProducerIdentity(message.producer_id, message.producer_epoch),
            [part],
            lambda _nothing: reply.send(_AddedOffsets.root()),
            reply.fail,
            version=FIRST_VERSION,
            topics_version=context.transactions.topics_version,
        )

    context.lookup.maker.when_made(made)


# -- EndTxn ----------------------------------------------------------------------------------------


def handle_end(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Commit or abort. The response means that it will be so on every partition."""
    message = request.message

    def done(identity: ProducerIdentity) -> None:
        reply.send(_Ended.root(producer_id=identity.producer_id, producer_epoch=identity.epoch))

    context.transactions.shard(message.transactional_id).end(
        message.transactional_id,
        ProducerIdentity(message.producer_id, message.producer_epoch),
        done,
        reply.fail,
        is_commit=message.committed,
        version=BUMPING_VERSION if request.version >= BUMPING_SINCE else FIRST_VERSION,
        new_id=draw(context.entropy, context.owner(reply.connection)),
    )


# -- WriteTxnMarkers -------------------------------------------------------------------------------


def handle_markers(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Write markers of an operator (``kafka-transactions abort``), not of a coordinator."""
    markers = request.message.markers
    wanted = [
        (each, topic.name, number)
        for each in markers
        for topic in each.topics
        for number in topic.partition_indexes
    ]
    check_count(reply.name, len(wanted))

    def send(codes: list[int]) -> None:
        remaining = iter(codes)
        reply.send(_marked(request, lambda: next(remaining)))

    outcomes: Outcomes[int] = Outcomes(len(wanted), send)

    def done(index: int, error: RaftlogError | None) -> None:
        code = errors.NONE if error is None else code_of(error, Place.DATA)
        outcomes.resolve(index, code)

    for index, (each, topic, number) in enumerate(wanted):
        marker = Marker(
            each.producer_id,
            each.producer_epoch,
            each.transaction_result,
            # As DescribeProducers shows it of a producer without a marker: as `kafka-transactions`.
            0 if each.coordinator_epoch == NO_EPOCH else each.coordinator_epoch,
            request.version >= 2 and each.transaction_version >= BUMPING_VERSION,
        )
        try:
            context.transactions.write_marker(topic, unsigned(number), marker, partial(done, index))
        except RaftlogError as error:
            done(index, error)


def _marked(request: KafkaRequest, code: Callable[[], int]) -> Message:
    return _Marked.root(
        markers=[
            _Marked.WritableTxnMarkerResult(
                producer_id=each.producer_id,
                topics=[
                    _Marked.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            _Marked.WritableTxnMarkerPartitionResult(
                                partition_index=number, error_code=code()
                            )
                            for number in topic.partition_indexes
                        ],
                    )
                    for topic in each.topics
                ],
            )
            for each in request.message.markers
        ]
    )


def refuse_markers(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return a response with the error for every partition."""
    code = code_of(error, Place.DATA)
    return _marked(request, lambda: code)


# -- DescribeTransactions --------------------------------------------------------------------------


def handle_describe(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Describe transactional ids that this broker coordinates."""
    names = request.message.transactional_ids
    check_once(reply.name, names)
    check_count(reply.name, len(names))

    def send(found: list[TransactionView | RaftlogError]) -> None:
        reply.go_on(_send_described(context, reply, names, found))

    outcomes: Outcomes[TransactionView | RaftlogError] = Outcomes(len(names), send)
    for index, name in enumerate(names):
        yield None
        done = partial(outcomes.resolve, index)
        try:
            context.transactions.shard(name).ask(
                partial(TransactionShard.view, name=name), done, done
            )
        except RaftlogError as error:
            done(error)


def _send_described(
    context: BrokerContext,
    reply: KafkaReply,
    names: list[str],
    found: list[TransactionView | RaftlogError],
) -> Steps:
    states = []
    for name, view in zip(names, found, strict=True):
        if isinstance(view, RaftlogError):
            states.append(_undescribed(name, view))
        else:
            topics = yield from topics_of(context, view)
            states.append(_state(view, topics))
        yield None
    reply.send(_Described.root(transaction_states=states))


def _state(view: TransactionView, topics: Mapping[str, list[int]]) -> Message:
    return _Described.TransactionState(
        transactional_id=view.transactional_id,
        transaction_state=STATES[view.status],
        transaction_timeout_ms=view.timeout_ms,
        transaction_start_time_ms=view.started_ms,
        producer_id=view.producer_id,
        producer_epoch=view.epoch,
        topics=[
            _Described.TopicData(topic=name, partitions=numbers) for name, numbers in topics.items()
        ],
    )


def _undescribed(name: str, error: RaftlogError) -> Message:
    return _Described.TransactionState(
        transactional_id=name, error_code=code_of(error, Place.GROUPS)
    )


def refuse_describe(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return a response with the error for every transactional id."""
    states = [_undescribed(name, error) for name in request.message.transactional_ids]
    return _Described.root(transaction_states=states)


# -- ListTransactions ------------------------------------------------------------------------------


def handle_list(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """List the transactional ids that this broker coordinates. While some are loading, the response
    has the error that makes clients repeat the request.
    """
    message = request.message
    context.transactions.check_available()
    known = {name.lower(): status for status, name in STATES.items()}
    statuses = [known.get(name.lower(), "") for name in message.state_filters]
    unknown = [name for name in message.state_filters if name.lower() not in known]
    longer_than_ms = message.duration_filter if request.version >= 1 else -1
    wanted = WantedTransactions(
        frozenset(statuses),
        frozenset(message.producer_id_filters),
        -1 if longer_than_ms < 0 else longer_than_ms + 1,
        context.clock.wall_ms(),
    )

    def send(answer: ListedTransactions) -> None:
        reply.go_on(_send_listed(request, reply, answer, unknown))

    return list_transactions(context.transactions.shards(), wanted, send)


def _send_listed(
    request: KafkaRequest, reply: KafkaReply, answer: ListedTransactions, unknown: list[str]
) -> Steps:
    found = {view.transactional_id: view for view in answer.views}
    pattern = request.message.transactional_id_pattern if request.version >= 2 else None
    if pattern:
        try:
            matched = yield from matching(pattern, found, lambda _name: True)
        except ValueError:
            reply.send(_Listed.root(error_code=errors.INVALID_REGULAR_EXPRESSION))
            return
        found = {name: found[name] for name in matched}
    states = yield from in_steps(sorted(found), lambda name: _listed(found[name]))
    reply.send(
        _Listed.root(
            error_code=errors.COORDINATOR_LOAD_IN_PROGRESS if answer.loading else errors.NONE,
            unknown_state_filters=unknown,
            transaction_states=states,
        )
    )


def _listed(view: TransactionView) -> Message:
    return _Listed.TransactionState(
        transactional_id=view.transactional_id,
        producer_id=view.producer_id,
        transaction_state=STATES[view.status],
    )
