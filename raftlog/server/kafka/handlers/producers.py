"""DescribeProducers: the idempotent producers of partitions that this broker leads (KIP-664)."""

from __future__ import annotations

from raftlog import limits
from raftlog.errors import RaftlogError
from raftlog.kafka import api, codec
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.parts import check_count, unsigned
from raftlog.server.kafka.reply import KafkaReply
from raftlog.server.requests.producers import list_producers
from raftlog.server.turns import Steps, in_steps
from raftlog.storage.producer_state import ActiveProducer

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
                    context, topic.name, unsigned(number), -1, skip=0, limit=left
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
        coordinator_epoch=-1,  # there are no transactions
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
