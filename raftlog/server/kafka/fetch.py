"""Fetch: stored batches as Kafka's clients read them.

A response contains every requested partition: there are no fetch sessions (KIP-227), and the
session id of a response is always 0.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from raftlog import limits
from raftlog.config.broker import RACK_AWARE_SELECTOR
from raftlog.errors import CorruptBatchError, RaftlogError, UnknownTopicError
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.record import split_checked
from raftlog.record.batch import KAFKA_ROWS
from raftlog.record.kafka_batch import to_kafka
from raftlog.server.apis.fetch import Part, PartRead, Read
from raftlog.server.apis.offsets import At, Found, look_up
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Outcomes
from raftlog.server.kafka.reply import (
    KafkaReply,
    by_topic,
    check_count,
    hint_leaders,
    host_of,
    topic_name,
    unsigned,
)
from raftlog.server.scheduling import ITEMS_PER_STEP, Steps, in_steps
from raftlog.types import COMMITTED, NO_TIMESTAMP, Buffer

READ_COMMITTED: Final = 1
# Rows of a columnar batch above this size are created in a thread.
CONVERTED_ON_LOOP_BYTES_MAX: Final = 64 * limits.KIB

_Response = codec.structs("response", api.FETCH.key)


NO_REPLICA: Final = -1  # the client reads from this broker


class _Part(NamedTuple):
    """Position to fetch from, in the form that ``requests.read`` requires."""

    topic: str
    partition: int
    offset: int
    bytes_max: int
    leader_epoch: int
    doubtful: bool
    topic_id: str


class _Wanted(NamedTuple):
    """A fetch, in the form that ``requests.read`` requires."""

    partitions: list[_Part]
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    replica_ok: bool
    isolation: str


def handle(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    message = request.message
    check_count("fetch", sum(len(topic.partitions) for topic in message.topics))
    by_id = request.version >= 13
    answers: list[tuple[str, bytes, list[Message]]] = []
    parts: list[_Part] = []
    places: dict[int, Message] = {}  # the answer of each part, by the part's identity
    failed = False
    rack = message.rack_id if context.config.replica_selector_class == RACK_AWARE_SELECTOR else ""
    racks = {each.id: each.rack for each in context.brokers("")} if rack else {}
    for topic in message.topics:
        name, error = topic.topic, None
        try:
            name = topic_name(context, topic.topic, topic.topic_id, by_id=by_id)
        except RaftlogError as unknown:
            error, failed = unknown, True
        found = yield from in_steps(topic.partitions, lambda each: _answer(request, each.partition))
        answers.append((name, topic.topic_id, found))
        yield None
        if error is not None:
            yield from in_steps(found, partial(_fail, request, error=error))
            continue
        part_of = partial(_part, name, topic.topic_id if by_id else b"")
        asked = yield from in_steps(topic.partitions, part_of)
        places |= zip(map(id, asked), found, strict=True)
        if rack:
            selected = yield from in_steps(asked, partial(_selected, context, racks, rack))
            for part, broker in zip(asked, selected, strict=True):
                places[id(part)].preferred_read_replica = broker
            asked = [p for p, broker in zip(asked, selected, strict=True) if broker == NO_REPLICA]
            failed = failed or len(asked) < len(selected)
        parts += asked
    wanted = _Wanted(
        parts,
        wait_ms_max=0 if failed else min(max(message.max_wait_ms, 0), limits.FETCH_WAIT_MS_MAX),
        bytes_min=max(message.min_bytes, 0),
        bytes_max=max(message.max_bytes, 0),
        replica_ok=bool(rack),
        isolation=_isolation(message),
    )
    send = partial(_send, context, request, reply, answers, places)
    yield from Read(context, wanted, reply, send).begin()


def _isolation(message: Message) -> str:
    """Return the isolation of a request, as raftlog names it."""
    return COMMITTED if message.isolation_level == READ_COMMITTED else "uncommitted"


def _selected(
    context: BrokerContext, racks: Mapping[int, str | None], rack: str, part: _Part
) -> int:
    """Return the in-sync replica of the client's rack that it has to read from, ``NO_REPLICA`` for
    this broker (KIP-392). Only the leader selects: a follower serves the clients that ask it,
    and a client that it refuses goes back to the leader.
    """
    topic = context.topics.get(part.topic)
    if topic is None or part.partition >= len(topic.hosts):
        return NO_REPLICA
    info = context.topics.info(topic, part.partition)
    if info.leader != context.broker_id or racks.get(context.broker_id) == rack:
        return NO_REPLICA
    near = [each for each in info.isr if racks.get(each) == rack]
    return near[part.partition % len(near)] if near else NO_REPLICA


def _part(name: str, topic_id: bytes, each: Message) -> _Part:
    return _Part(
        topic=name,
        partition=unsigned(each.partition),
        offset=each.fetch_offset,
        bytes_max=max(each.partition_max_bytes, 0),
        leader_epoch=each.current_leader_epoch,
        doubtful=False,
        topic_id=topic_id.hex(),
    )


def refuse(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return the error of the request, or before version 7 of each partition."""
    response = refuse_topics(request, error) if request.version < 7 else _Response.root()
    response.error_code = code_of(error, Place.DATA)
    return response


def refuse_topics(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return the error of each partition."""
    return _Response.root(
        responses=[
            _Response.FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[_failed(request, each.partition, error) for each in topic.partitions],
            )
            for topic in request.message.topics
        ]
    )


def _send(
    context: BrokerContext,
    request: KafkaRequest,
    reply: KafkaReply,
    answers: list[tuple[str, bytes, list[Message]]],
    places: dict[int, Message],
    found: list[PartRead],
) -> Steps:
    """Send what was read, and the offsets of the partitions without new records."""
    for number, one in enumerate(found, 1):
        answer = places[id(one.part)]
        if not number % ITEMS_PER_STEP:
            yield None
        if one.error is not None:
            _fail(request, answer, one.error)
            continue
        answer.high_watermark, answer.last_stable_offset = one.high_watermark, one.stable_offset
        answer.log_start_offset = one.log_start_offset
        if one.aborted:
            answer.aborted_transactions = [
                _Response.AbortedTransaction(
                    producer_id=each.producer_id, first_offset=each.first_offset
                )
                for each in one.aborted
            ]
        try:
            answer.records = yield from _rows(context, one)
        except CorruptBatchError as error:
            _verify_suspect(context, one.part)
            _fail(request, answer, error)
    for topic, _topic_id, partitions in answers:
        unread = (each for each in partitions if each.high_watermark < 0 and not each.error_code)
        yield from in_steps(unread, partial(_fill_offsets, context, request, topic))
        yield None
    response = _Response.root(
        responses=[
            _Response.FetchableTopicResponse(topic=topic, topic_id=topic_id, partitions=partitions)
            for topic, topic_id, partitions in answers
        ]
    )
    if request.version >= 12:
        refused = (
            (topic, answer.partition_index, answer)
            for topic, _topic_id, partitions in answers
            for answer in partitions
            if answer.error_code
        )
        hint_leaders(context, _Response, response, reply.connection.local_host, refused)
    reply.send(response)


def _verify_suspect(context: BrokerContext, part: Part) -> None:
    """Verify the log, so that the corruption is recorded and another broker can lead."""
    host = context.topics.host(part.topic, part.partition)
    context.verifier.verify_suspect(host, part.offset, bytes_max=part.bytes_max)


def _fill_offsets(
    context: BrokerContext, request: KafkaRequest, topic: str, answer: Message
) -> None:
    try:
        host = host_of(context, topic, answer.partition_index)
    except RaftlogError as error:
        _fail(request, answer, error)
        return
    answer.high_watermark, answer.last_stable_offset = host.high_watermark, host.last_stable_offset
    answer.log_start_offset = host.log.log_start_offset


def _rows(context: BrokerContext, found: PartRead) -> Generator[Any, Any, list[Buffer]]:
    """Return the stored batches as Kafka's: large columnar ones are converted in a thread, and
    kept for the next reader.
    """
    topic, partition, kept = found.part.topic, found.part.partition, context.converted
    rows: list[Buffer] = []
    for chunk in found.batches:
        # Clients may skip the CRC, as librdkafka does: corrupt bytes must not leave the broker.
        # guard: corrupt batches are not sent to Kafka clients
        for header, batch in split_checked(chunk):
            if header.layout == KAFKA_ROWS:
                rows += to_kafka(batch)
                continue
            converted = kept.find(topic, partition, batch)
            if converted is None:
                is_large = header.uncompressed_length > CONVERTED_ON_LOOP_BYTES_MAX
                converted = (yield partial(to_kafka, batch)) if is_large else to_kafka(batch)
                kept.keep(topic, partition, batch, converted)
            rows += converted
            yield None
    return rows


def _answer(request: KafkaRequest, partition: int) -> Message:
    """Return the answer for a partition, without records. ``high_watermark`` is not known yet."""
    return _Response.PartitionData(
        partition_index=partition,
        high_watermark=-1,
        records=[],
        aborted_transactions=[] if request.message.isolation_level == READ_COMMITTED else None,
    )


def _failed(request: KafkaRequest, partition: int, error: RaftlogError) -> Message:
    answer = _answer(request, partition)
    _fail(request, answer, error)
    return answer


def _fail(request: KafkaRequest, answer: Message, error: RaftlogError) -> None:
    answer.error_code = code_of(error, Place.DATA)
    if request.version >= 13 and isinstance(error, UnknownTopicError):
        answer.error_code = errors.UNKNOWN_TOPIC_ID
    answer.high_watermark = answer.last_stable_offset = answer.log_start_offset = -1
    answer.records = []


# -- offsets ---------------------------------------------------------------------------------------
#
# ListOffsets and OffsetForLeaderEpoch: offsets of partitions that this broker leads.


# Values of a timestamp in ListOffsets that are none (KIP-734, KIP-405, KIP-1005).
LATEST: Final = -1
EARLIEST: Final = -2
NEWEST: Final = -3
EARLIEST_LOCAL: Final = -4  # nothing is stored elsewhere: the same as EARLIEST
OF_TIERED_STORAGE: Final = (-5, -6)  # which does not exist
NO_OFFSET: Final = -1

_PLACES: Final[dict[int, At]] = {
    LATEST: "latest",
    EARLIEST: "earliest",
    NEWEST: "newest",
    EARLIEST_LOCAL: "earliest",
}

_Offsets = codec.structs("response", api.LIST_OFFSETS.key)
_Epochs = codec.structs("response", api.OFFSET_FOR_LEADER_EPOCH.key)


class _Query(NamedTuple):
    topic: str
    partition: int
    leader_epoch: int
    at: At
    isolation: str


def handle_list(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Return the start, the end, or the first offset at or after a time, of each partition."""

    isolation = _isolation(request.message)

    def begin(topic: str, each: Message, done: Callable[[Message], None]) -> None:
        answer = _Offsets.ListOffsetsPartitionResponse(
            partition_index=each.partition_index, timestamp=NO_TIMESTAMP, offset=NO_OFFSET
        )
        place = _PLACES.get(each.timestamp, each.timestamp)
        if isinstance(place, int) and place < 0:
            if place not in OF_TIERED_STORAGE:
                answer.error_code = errors.UNSUPPORTED_VERSION
            done(answer)
            return
        try:
            host_of(context, topic, each.partition_index)
        except RaftlogError as error:
            answer.error_code = code_of(error, Place.OFFSETS)
            done(answer)
            return
        query = _Query(topic, each.partition_index, each.current_leader_epoch, place, isolation)
        look_up(context, reply, query, partial(_found, answer, done))

    def whole(topic: Message, partitions: list[Message]) -> Message:
        return _Offsets.ListOffsetsTopicResponse(name=topic.name, partitions=partitions)

    named = [(topic.name, topic) for topic in request.message.topics]
    yield from _each(reply, _Offsets, named, begin, whole)


def _found(answer: Message, done: Callable[[Message], None], found: Found | RaftlogError) -> None:
    if isinstance(found, RaftlogError):
        answer.error_code = code_of(found, Place.OFFSETS)
    else:
        answer.offset, answer.timestamp = found.offset, found.timestamp_ms
        if found.offset >= 0:  # the epoch of that record, not of the leader
            answer.leader_epoch = found.host.log.epochs.epoch_at(found.offset)
    done(answer)


def refuse_list(request: KafkaRequest, error: RaftlogError) -> Message:
    code = code_of(error, Place.OFFSETS)
    return _Offsets.root(
        topics=[
            _Offsets.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _Offsets.ListOffsetsPartitionResponse(
                        partition_index=each.partition_index, error_code=code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.message.topics
        ]
    )


def handle_epochs(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Return where an epoch ended, so that a client notices records that were truncated
    (KIP-320). The leadership is confirmed first.
    """

    def begin(topic: str, each: Message, done: Callable[[Message], None]) -> None:
        answer = _Epochs.EpochEndOffset(partition=each.partition)
        try:
            host_of(context, topic, each.partition)
        except RaftlogError as error:
            answer.error_code = code_of(error, Place.OFFSETS)
            done(answer)
            return
        query = _Query(topic, each.partition, each.current_leader_epoch, "latest", "uncommitted")
        look_up(context, reply, query, partial(_found_end, answer, each.leader_epoch, done))

    def whole(topic: Message, partitions: list[Message]) -> Message:
        return _Epochs.OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions)

    named = [(topic.topic, topic) for topic in request.message.topics]
    yield from _each(reply, _Epochs, named, begin, whole)


def _found_end(
    answer: Message, epoch: int, done: Callable[[Message], None], found: Found | RaftlogError
) -> None:
    if isinstance(found, RaftlogError):
        answer.error_code = code_of(found, Place.OFFSETS)
    else:
        log = found.host.log
        end = log.epochs.end_of(epoch, log_end_offset=log.log_end_offset)
        answer.leader_epoch, answer.end_offset = end.epoch, end.start_offset
    done(answer)


def refuse_epochs(request: KafkaRequest, error: RaftlogError) -> Message:
    code = code_of(error, Place.OFFSETS)
    return _Epochs.root(
        topics=[
            _Epochs.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    _Epochs.EpochEndOffset(partition=each.partition, error_code=code)
                    for each in topic.partitions
                ],
            )
            for topic in request.message.topics
        ]
    )


def _each(
    reply: KafkaReply,
    structs: codec.Structs,
    topics: list[tuple[str, Message]],
    begin: Callable[[str, Message, Callable[[Message], None]], None],
    whole: Callable[[Message, list[Message]], Message],
) -> Steps:
    """Call ``begin`` for each partition, and send all answers by topic, as ``whole`` makes it."""
    count = sum(len(topic.partitions) for _, topic in topics)
    check_count(reply.name, count)

    def send(answers: list[Message]) -> Steps:
        rest = iter(answers)
        found = yield from by_topic(
            (topic for _, topic in topics),
            lambda topic: topic.partitions,
            lambda _topic, _each: next(rest),
            whole,
        )
        reply.send(structs.root(topics=found))

    outcomes: Outcomes[Message] = Outcomes(count, lambda answers: reply.go_on(send(answers)))
    queries = ((name, each) for name, topic in topics for each in topic.partitions)
    for index, (name, each) in enumerate(queries):
        if index:
            yield None
        begin(name, each, partial(outcomes.resolve, index))
