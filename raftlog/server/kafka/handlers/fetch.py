"""Fetch: stored batches as Kafka's clients read them.

A response contains every requested partition: there are no fetch sessions (KIP-227), and the
session id of a response is always 0.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any, Final, NamedTuple

from raftlog import limits
from raftlog.errors import CorruptBatchError, RaftlogError, UnknownTopicError
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.record import split_checked
from raftlog.record.batch import KAFKA_ROWS
from raftlog.record.kafka_batch import to_kafka
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.parts import check_count, hint_leaders, host_of, topic_name, unsigned
from raftlog.server.kafka.reply import KafkaReply
from raftlog.server.requests.read import Part, PartRead, Read
from raftlog.server.turns import ITEMS_PER_STEP, Steps, in_steps
from raftlog.types import Buffer

READ_COMMITTED: Final = 1
# Rows of a columnar batch above this size are created in a thread.
CONVERTED_ON_LOOP_BYTES_MAX: Final = 64 * limits.KIB

_Response = codec.structs("response", api.FETCH.key)


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


def handle(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    message = request.message
    check_count("fetch", sum(len(topic.partitions) for topic in message.topics))
    by_id = request.version >= 13
    answers: list[tuple[str, bytes, list[Message]]] = []
    parts: list[_Part] = []
    places: dict[int, Message] = {}  # the answer of each part, by the part's identity
    failed = False
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
        parts += asked
        places |= zip(map(id, asked), found, strict=True)
    wanted = _Wanted(
        parts,
        wait_ms_max=0 if failed else min(max(message.max_wait_ms, 0), limits.FETCH_WAIT_MS_MAX),
        bytes_min=max(message.min_bytes, 0),
        bytes_max=max(message.max_bytes, 0),
        replica_ok=False,
    )
    send = partial(_send, context, request, reply, answers, places)
    yield from Read(context, wanted, reply, send).begin()


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
        answer.high_watermark = answer.last_stable_offset = one.high_watermark
        answer.log_start_offset = one.log_start_offset
        try:
            answer.records = yield from _rows(one.batches)
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
    answer.high_watermark = answer.last_stable_offset = host.high_watermark
    answer.log_start_offset = host.log.log_start_offset


def _rows(chunks: list[bytes]) -> Generator[Any, Any, list[Buffer]]:
    """Return the batches of stored chunks as Kafka's: large columnar ones are converted in a
    thread.
    """
    rows: list[Buffer] = []
    for chunk in chunks:
        # Clients may skip the CRC, as librdkafka does: corrupt bytes must not leave the broker.
        for header, batch in split_checked(chunk):
            is_large = header.uncompressed_length > CONVERTED_ON_LOOP_BYTES_MAX
            if header.layout != KAFKA_ROWS and is_large:
                rows += yield partial(to_kafka, batch)
                continue
            rows += to_kafka(batch)
            if header.layout != KAFKA_ROWS:
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
