"""``fetch``: committed batches, at once or when there are enough of them."""

from __future__ import annotations

from functools import partial
from typing import cast

from raftlog.protocol.connection import Request
from raftlog.protocol.fetch import FetchedPartition, FetchRequest, FetchResponse
from raftlog.protocol.schema import Failure
from raftlog.server.context import BrokerContext
from raftlog.server.once import check_once
from raftlog.server.reply import Reply
from raftlog.server.requests.read import PartRead, Read
from raftlog.server.turns import Steps, in_steps


def handle(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(FetchRequest, request.message)
    check_once("fetch", [(part.topic, part.partition) for part in message.partitions])
    return Read(context, message, reply, partial(_send, reply)).begin()


def _send(reply: Reply, found: list[PartRead]) -> Steps:
    batches = [batch for one in found for batch in one.batches]
    partitions = yield from in_steps(found, _answer)
    reply.send(FetchResponse(partitions=partitions), batches)


def _answer(one: PartRead) -> FetchedPartition:
    part = one.part
    if one.error is not None:
        failure = Failure.of(one.error)
        return FetchedPartition(topic=part.topic, partition=part.partition, failure=failure)
    return FetchedPartition(
        topic=part.topic,
        partition=part.partition,
        high_watermark=one.high_watermark,
        log_start_offset=one.log_start_offset,
        length=one.size,
    )
