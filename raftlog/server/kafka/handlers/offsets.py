"""ListOffsets and OffsetForLeaderEpoch: offsets of partitions that this broker leads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from raftlog.errors import RaftlogError
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.parts import by_topic, check_count, host_of
from raftlog.server.kafka.reply import KafkaReply
from raftlog.server.requests.lookup import At, Found, look_up
from raftlog.server.requests.outcomes import Outcomes
from raftlog.server.turns import Steps
from raftlog.types import NO_TIMESTAMP

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


def handle_list(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Return the start, the end, or the first offset at or after a time, of each partition."""

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
        query = _Query(topic, each.partition_index, each.current_leader_epoch, place)
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
        query = _Query(topic, each.partition, each.current_leader_epoch, "latest")
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
