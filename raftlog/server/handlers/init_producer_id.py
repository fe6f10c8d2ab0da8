"""``init_producer_id``: a producer id that nobody has had before."""

from __future__ import annotations

from raftlog.protocol.connection import Request
from raftlog.protocol.produce import InitProducerIdResponse
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Reply


def handle(context: BrokerContext, request: Request, reply: Reply) -> None:  # noqa: ARG001
    async def answer() -> InitProducerIdResponse:
        producer_id = await context.authority.allocate_producer_id()
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    context.administration.submit_beside(answer, reply)
