"""``list_offsets``: where a partition begins and ends, and where a time lies in it."""

from __future__ import annotations

from typing import cast

from raftlog.errors import LeaderNotAvailableError, RaftlogError
from raftlog.protocol.connection import Request
from raftlog.protocol.fetch import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetAnswer,
    OffsetQuery,
)
from raftlog.protocol.schema import Failure
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Reply
from raftlog.types import NO_TIMESTAMP, OffsetAndTimestamp


def handle(context: BrokerContext, request: Request, reply: Reply) -> None:
    queries = cast(ListOffsetsRequest, request.message).queries
    reply.send(ListOffsetsResponse(answers=[_answer(context, query) for query in queries]))


def _answer(context: BrokerContext, query: OffsetQuery) -> OffsetAnswer:
    try:
        host = context.topics.host(query.topic, query.partition)
        host.check_epoch(query.leader_epoch)
        host.check_leading()
        if query.at == "earliest":
            found = OffsetAndTimestamp(host.log.log_start_offset, NO_TIMESTAMP)
        elif not host.is_ready:
            raise LeaderNotAvailableError(
                f"{host.topic_partition}: the new leader does not know yet what is committed"
            )
        elif query.at == "latest":
            found = OffsetAndTimestamp(host.high_watermark, NO_TIMESTAMP)
        else:
            none = OffsetAndTimestamp(-1, NO_TIMESTAMP)
            found = host.offset_for_timestamp(query.at) or none
    except RaftlogError as error:
        failure = Failure.of(error)
        return OffsetAnswer(topic=query.topic, partition=query.partition, failure=failure)
    return OffsetAnswer(
        topic=query.topic,
        partition=query.partition,
        offset=found.offset,
        timestamp_ms=found.timestamp_ms,
        leader_epoch=host.leader_epoch,
    )
