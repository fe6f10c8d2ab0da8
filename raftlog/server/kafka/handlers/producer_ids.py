"""InitProducerId: a producer id for an idempotent producer."""

from __future__ import annotations

from raftlog.errors import UnsupportedFeatureError
from raftlog.kafka import api, codec
from raftlog.kafka.connection import KafkaRequest
from raftlog.server import producer_ids
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.reply import KafkaReply


def handle_producer_ids(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Return a new id in epoch 0, also to a client that has one: its state is then new in every
    partition.
    """
    if request.message.transactional_id is not None:
        raise UnsupportedFeatureError("this release has no transactions: unset transactional.id")
    new = codec.structs("response", api.INIT_PRODUCER_ID.key).root
    producer_id = producer_ids.draw(context.entropy, context.owner(reply.connection))
    reply.send(new(producer_id=producer_id, producer_epoch=0))
