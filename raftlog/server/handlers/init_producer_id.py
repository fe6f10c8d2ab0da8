"""``init_producer_id``: a producer id that is unique and cannot be guessed."""

from __future__ import annotations

from raftlog.protocol.connection import Request
from raftlog.protocol.produce import InitProducerIdResponse
from raftlog.server import producer_ids
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Reply


def handle_init_producer_id(context: BrokerContext, request: Request, reply: Reply) -> None:  # noqa: ARG001
    producer_id = producer_ids.draw(context.entropy, context.owner(reply.connection))
    reply.send(InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))
