"""Produce: check a client's batches, append them, and respond as ``acks`` requires.

Batches are stored as they came (``raftlog.record.kafka_batch``). Everything up to the append
happens in the order of arrival, in steps. Large batches are checked in a thread while the
connection's later requests wait.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    InvalidRequestError,
    KafkaBatchError,
    KafkaBatchFault,
    NotCoordinatorError,
    OutOfOrderSequenceError,
    RaftlogError,
    RecordSchemaError,
    RequestTimedOutError,
    ThrottledError,
    TransactionAbortedError,
    UnknownTopicError,
)
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.record import BatchHeader, parse_header
from raftlog.record.kafka_batch import KafkaProducer, check_batch, kafka_producer_at, to_stored
from raftlog.server.apis import produce
from raftlog.server.apis.produce import (
    ACKS_ALL,
    ACKS_NONE,
    OnStored,
    Stored,
    append,
    append_in_transaction,
)
from raftlog.server.apis.producers import list_producers
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Outcomes
from raftlog.server.kafka import transactions
from raftlog.server.kafka.reply import (
    KafkaReply,
    check_count,
    hint_leaders,
    host_of,
    topic_name,
    unsigned,
)
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Steps, in_steps
from raftlog.storage.producer_state import ActiveProducer
from raftlog.types import NO_TIMESTAMP, Buffer, TimestampMs, check_not_internal

ACKS: Final = (-1, 0, 1)
# A batch is checked on the loop if that takes a few milliseconds at most.
CHECKED_ON_LOOP_BYTES_MAX: Final = limits.MIB
COMPRESSED_ON_LOOP_BYTES_MAX: Final = 64 * limits.KIB
ADDS_PARTITION: Final = 12  # version from which a transaction gets its partitions by Produce
UNVERIFIED: Final = (ConcurrentTransactionsError, CoordinatorLoadingError, NotCoordinatorError)
REFUSED_PARTITIONS_MAX: Final = 1_000  # per connection, whose refused batches are remembered
_CODEC_POSITION: Final = 22  # the low byte of the batch's attributes
_CODEC_MASK: Final = 7
# Errors of records that the partition has rejected: with the log start, as in Kafka.
_WITH_LOG_START: Final = (
    errors.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.INVALID_PRODUCER_EPOCH,
    errors.INVALID_RECORD,
)

_Response = codec.structs("response", api.PRODUCE.key)


class _Part(NamedTuple):
    """One partition of a request."""

    topic: str
    topic_id: bytes
    partition: int
    error: RaftlogError | None  # the reason why the topic is not known


def handle(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    message = request.message
    by_id = request.version >= 13
    count = sum(len(topic.partition_data) for topic in message.topic_data)
    check_count("produce", count)
    if not count:
        _send_empty(request, reply)
        return
    produce = _Produce(context, request, reply, count)
    index = 0
    for topic in message.topic_data:
        name, error = topic.name, None
        try:
            name = topic_name(context, topic.name, topic.topic_id, by_id=by_id)
        except RaftlogError as unknown:
            error = unknown
        for each in topic.partition_data:
            if index:
                yield None
            # The bytes are copied when they are appended; the request must not keep them.
            records, each.records = each.records, None
            part = _Part(name, topic.topic_id, each.index, error)
            yield from produce.append(index, part, records or b"")
            index += 1
    produce.begin_timeout()


def _send_empty(request: KafkaRequest, reply: KafkaReply) -> None:
    if request.expects_response:
        reply.send(_Response.root())
    else:
        reply.none()


def refuse(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return the error for each partition of the request."""
    return _Response.root(
        responses=[
            _Response.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[_refused(each.index, error) for each in topic.partition_data],
            )
            for topic in request.message.topic_data
        ]
    )


class _Produce:
    """One request. Its response is sent when every partition has a result, or after its timeout."""

    __slots__ = (
        "_acks",
        "_context",
        "_outcomes",
        "_parts",
        "_reply",
        "_request",
        "_timer",
        "_uncompressed_left",
    )

    def __init__(
        self, context: BrokerContext, request: KafkaRequest, reply: KafkaReply, count: int
    ) -> None:
        self._context = context
        self._request = request
        self._reply = reply
        self._acks = request.message.acks
        self._parts: list[_Part] = []
        self._outcomes: Outcomes[Message] | None = Outcomes(count, self._complete)
        self._timer: Any = None
        # Bytes that the remaining batches may have, decompressed. Headers do not contain the sizes.
        self._uncompressed_left = limits.PRODUCE_UNCOMPRESSED_BYTES_MAX

    def append(self, index: int, part: _Part, records: Buffer) -> Steps:
        self._parts.append(part)
        try:
            if self._acks not in ACKS:
                raise InvalidRequestError(f"acks={self._acks}; -1 (all), 0 and 1 are permitted")
            if part.error is not None:
                raise part.error
            # guard: Kafka clients do not write to internal topics
            check_not_internal(part.topic)
            host = host_of(self._context, part.topic, part.partition)
            if part.topic_id != codec.ZERO_UUID:
                # guard: a Kafka batch for a topic by its ID is stored in no other one of its name
                host.check_topic(part.topic_id.hex())
            config = host.log.config
            stored, header = yield from self._accepted(records, config)
            if config.has_schema:
                yield partial(self._context.registry.checks.check, part.topic, config, stored)
            # guard: Kafka batches behind a refused one are out of order
            self._check_order(host, part, header)
            refused, place = self._reply.connection.refused_batches, (part.topic, part.partition)
            try:
                if header.is_transactional:
                    refused.pop(place, None)  # its coordinator may refuse it again at once
                    done = partial(self._verified, index, part, kafka_producer_at(records))
                    self._append_in_transaction(host, stored, header, done)
                else:
                    append(host, stored, header, self._acks, partial(self._stored, index, part))
                    refused.pop(place, None)
            except InvalidRequestError as error:  # of its timestamps
                raise KafkaBatchError(str(error), KafkaBatchFault.INVALID_TIMESTAMP) from error
        except RaftlogError as error:
            self._note_refusal(part, kafka_producer_at(records))
            self._stored(index, part, error)

    def _append_in_transaction(
        self, host: Partition, stored: bytearray, header: BatchHeader, done: OnStored
    ) -> None:
        append_in_transaction(
            self._context,
            host,
            stored,
            header,
            self._acks,
            done,
            transactional_id=self._request.message.transactional_id or "",
            adds=self._request.version >= ADDS_PARTITION,
        )

    def _verified(
        self, index: int, part: _Part, producer: KafkaProducer, stored: Stored | RaftlogError
    ) -> None:
        """``_stored`` for a batch of a transaction, which may have waited for its coordinator."""
        if isinstance(stored, RaftlogError):
            # guard: a Kafka batch that its coordinator refuses is a refused one
            self._note_refusal(part, producer)
        self._stored(index, part, stored)

    def _note_refusal(self, part: _Part, producer: KafkaProducer) -> None:
        """Note the first refused batch of a producer. The client has sent the batches behind it
        before it knows.
        """
        refused, place = self._reply.connection.refused_batches, (part.topic, part.partition)
        first = refused.get(place)
        if producer.producer_id >= 0 and (first is None or first[:2] != producer[:2]):
            if len(refused) >= REFUSED_PARTITIONS_MAX:
                del refused[next(iter(refused))]
            refused[place] = producer

    def _check_order(self, host: Partition, part: _Part, header: BatchHeader) -> None:
        """Raise ``OutOfOrderSequenceError`` for a batch behind a refused one, of a producer that
        the partition does not know: it would store the batch, and the refused one never.
        """
        first = self._reply.connection.refused_batches.get((part.topic, part.partition))
        producer = header.producer_id, header.producer_epoch, header.base_sequence
        # guard: the refused Kafka batch itself is not out of order
        if (
            first is not None
            and first[:2] == producer[:2]
            and producer > first
            and host.log.producers.last_written(header.producer_id) is None
        ):
            raise OutOfOrderSequenceError(
                f"producer {header.producer_id} sent sequence {header.base_sequence}, and its "
                f"batch with sequence {first.base_sequence} was refused before. Send that one first"
            )

    def _accepted(
        self, records: Buffer, config: TopicConfig
    ) -> Generator[Any, Any, tuple[bytearray, BatchHeader]]:
        """See ``_accepted``. A refused batch counts with the most that it may have had."""
        # guard: a Kafka produce request has a limited size uncompressed
        if self._uncompressed_left <= 0:
            raise ThrottledError(
                "the batches of one produce request have too many bytes uncompressed, over "
                f"PRODUCE_UNCOMPRESSED_BYTES_MAX ({limits.PRODUCE_UNCOMPRESSED_BYTES_MAX}). Send "
                "the remaining ones again"
            )
        most = limits.BATCH_UNCOMPRESSED_BYTES_MAX if _is_compressed(records) else len(records)
        self._uncompressed_left -= most
        now_ms = self._context.clock.wall_ms()
        stored, header = yield from _accepted(records, config, now_ms)
        self._uncompressed_left += most - header.uncompressed_length
        return stored, header

    def begin_timeout(self) -> None:
        """Respond with an error after the request's timeout. What was appended stays."""
        if self._outcomes is not None and self._acks == ACKS_ALL:
            seconds = max(self._request.message.timeout_ms, 0) / 1_000
            self._timer = self._context.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        outcomes = self._outcomes
        assert outcomes is not None
        error = RequestTimedOutError(
            f"not all in-sync replicas have stored the records within "
            f"{self._request.message.timeout_ms} ms. They may or may not be stored"
        )
        for index in outcomes.missing:
            self._stored(index, self._parts[index], error)

    def _stored(self, index: int, part: _Part, stored: Stored | RaftlogError) -> None:
        """Process an acknowledged batch, or the reason why it is not acknowledged."""
        if self._outcomes is None:
            return  # it has timed out
        if isinstance(stored, RaftlogError):
            what = f"produce to {part.topic}:{part.partition}"
            self._reply.connection.note_refusal(what, stored, self._reply.request_id)
            self._outcomes.resolve(index, self._failed(part, stored))
            return
        self._outcomes.resolve(
            index,
            _Response.PartitionProduceResponse(
                index=part.partition,
                base_offset=stored.base_offset,
                log_append_time_ms=stored.append_timestamp_ms,
                log_start_offset=stored.log_start_offset,
            ),
        )

    def _failed(self, part: _Part, error: RaftlogError) -> Message:
        refused = _refused(part.partition, error)
        if self._acks not in ACKS:
            refused.error_code = errors.INVALID_REQUIRED_ACKS
        elif isinstance(error, UNVERIFIED):
            # Of the coordinator: clients retry this code without a look-up of the leader.
            refused.error_code = errors.NOT_ENOUGH_REPLICAS
        elif isinstance(error, TransactionAbortedError):
            refused.error_code = transactions.code_for(error, self._request)
        elif self._request.version >= 13 and isinstance(error, UnknownTopicError):
            refused.error_code = errors.UNKNOWN_TOPIC_ID
        elif refused.error_code in _WITH_LOG_START:
            with suppress(RaftlogError):  # the topic was deleted during the check of its schemas
                host = host_of(self._context, part.topic, part.partition)
                refused.log_start_offset = host.log.log_start_offset
        return refused

    def _complete(self, outcomes: list[Message]) -> None:
        self._outcomes = None
        if self._timer is not None:
            self._timer.cancel()
        if self._acks == ACKS_NONE:
            failed = next((each for each in outcomes if each.error_code), None)
            if failed is None:
                self._reply.none()
            else:
                self._reply.drop(RaftlogError(failed.error_message))
            return
        parts = list(zip(self._parts, outcomes, strict=True))
        topics: dict[tuple[str, bytes], list[Message]] = {}
        for part, outcome in parts:
            topics.setdefault((part.topic, part.topic_id), []).append(outcome)
        response = _Response.root(
            responses=[
                _Response.TopicProduceResponse(
                    name=name, topic_id=topic_id, partition_responses=found
                )
                for (name, topic_id), found in topics.items()
            ]
        )
        if self._request.version >= 10 and any(each.error_code for each in outcomes):
            failed_parts = ((part.topic, part.partition, each) for part, each in parts)
            host = self._reply.connection.local_host
            hint_leaders(self._context, _Response, response, host, failed_parts)
        self._reply.send(response)


def _accepted(
    records: Buffer, config: TopicConfig, now_ms: TimestampMs
) -> Generator[Any, Any, tuple[bytearray, BatchHeader]]:
    """Return the batch as it is stored, and its header; checked in a thread if it is large.

    Raises ``KafkaBatchError``.
    """
    bytes_max = config.max_message_bytes
    if len(records) > bytes_max:
        raise KafkaBatchError(
            f"batch of {len(records)} bytes is over max.message.bytes={bytes_max}. Send smaller "
            "batches or increase the topic setting",
            KafkaBatchFault.MESSAGE_TOO_LARGE,
        )
    # guard: a compacted topic accepts only Kafka records with keys
    accept = partial(
        _accept,
        records,
        keys_required=config.is_compacted,
        is_stamped=config.message_timestamp_type == "LogAppendTime",
        oldest_ms=config.oldest_ms(now_ms),
    )
    is_compressed = _is_compressed(records)
    on_loop_max = COMPRESSED_ON_LOOP_BYTES_MAX if is_compressed else CHECKED_ON_LOOP_BYTES_MAX
    if len(records) <= on_loop_max:
        try:
            return accept(uncompressed_max=CHECKED_ON_LOOP_BYTES_MAX)
        except KafkaBatchError:
            if not is_compressed:
                raise
    # Here it may be one that is over the limit of the loop only.
    checked: tuple[bytearray, BatchHeader] = yield accept
    return checked


def _is_compressed(records: Buffer) -> bool:
    return len(records) > _CODEC_POSITION and bool(records[_CODEC_POSITION] & _CODEC_MASK)


def _accept(
    records: Buffer,
    *,
    keys_required: bool,
    is_stamped: bool,
    oldest_ms: TimestampMs,
    uncompressed_max: int = limits.BATCH_UNCOMPRESSED_BYTES_MAX,
) -> tuple[bytearray, BatchHeader]:
    checked = check_batch(
        records,
        keys_required=keys_required,
        is_stamped=is_stamped,
        oldest_ms=oldest_ms,
        uncompressed_max=uncompressed_max,
    )
    stored = to_stored(checked)
    return stored, parse_header(stored)


def _refused(partition: int, error: RaftlogError) -> Message:
    rows = error.rows if isinstance(error, KafkaBatchError | RecordSchemaError) else ()
    text = "Compacted topic cannot accept message without key"
    if isinstance(error, RecordSchemaError):
        text = "does not match the schema of the topic"
    return _Response.PartitionProduceResponse(
        index=partition,
        error_code=code_of(error, Place.DATA),
        base_offset=-1,
        log_append_time_ms=NO_TIMESTAMP,
        record_errors=[
            _Response.BatchIndexAndErrorMessage(
                batch_index=row,
                batch_index_error_message=text,
            )
            for row in rows
        ],
        error_message=error.wire_text,
    )


# -- producer ids ----------------------------------------------------------------------------------
#
# InitProducerId: a producer id for an idempotent producer.


def handle_producer_ids(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Return a new id in epoch 0, also to a client that has one: its state is then new in every
    partition. One with a transactional id keeps it.
    """
    if request.message.transactional_id is not None:
        transactions.handle_init(context, request, reply)
        return
    new = codec.structs("response", api.INIT_PRODUCER_ID.key).root
    producer_id = produce.draw(context.entropy, context.owner(reply.connection))
    reply.send(new(producer_id=producer_id, producer_epoch=0))


# -- producers -------------------------------------------------------------------------------------
#
# DescribeProducers: the idempotent producers of partitions that this broker leads (KIP-664).


_Producers = codec.structs("response", api.DESCRIBE_PRODUCERS.key)


def handle_describe_producers(
    context: BrokerContext, request: KafkaRequest, reply: KafkaReply
) -> Steps:
    """Return the producers of each partition, the one that wrote last first.

    The API has no pages: the response has ``PRODUCERS_PER_REQUEST_MAX`` producers at most.
    """
    topics = request.message.topics
    check_count(reply.name, sum(len(topic.partition_indexes) for topic in topics))
    left = limits.PRODUCERS_PER_REQUEST_MAX

    made: list[Message] = []
    for topic in topics:
        partitions: list[Message] = []
        for number in topic.partition_indexes:
            try:
                listed = list_producers(
                    context,
                    topic.name,
                    unsigned(number),
                    -1,
                    skip=0,
                    limit=left,
                    any_replica=True,  # `kafka-transactions find-hanging --broker-id` asks each
                ).producers
            except RaftlogError as error:
                partitions.append(_failed(number, error))
            else:
                left -= len(listed)
                states = yield from in_steps(listed, _state)
                partitions.append(
                    _Producers.PartitionResponse(partition_index=number, active_producers=states)
                )
            yield None
        made.append(_whole(topic, partitions))
    reply.send(_Producers.root(topics=made))


def _state(producer: ActiveProducer) -> Message:
    return _Producers.ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.newest.last_sequence,
        last_timestamp=producer.newest.append_timestamp_ms,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.transaction_start,
    )


def refuse_describe_producers(request: KafkaRequest, error: RaftlogError) -> Message:
    return _Producers.root(
        topics=[
            _whole(topic, [_failed(number, error) for number in topic.partition_indexes])
            for topic in request.message.topics
        ]
    )


def _failed(number: int, error: RaftlogError) -> Message:
    return _Producers.PartitionResponse(
        partition_index=number, error_code=code_of(error, Place.OFFSETS), error_message=str(error)
    )


def _whole(topic: Message, partitions: list[Message]) -> Message:
    return _Producers.TopicResponse(name=topic.name, partitions=partitions)
