"""``list_offsets``: start and end offsets of partitions, and offsets by timestamp."""

from __future__ import annotations

from functools import partial
from typing import cast

from raftlog.errors import RaftlogError
from raftlog.protocol.connection import Request
from raftlog.protocol.fetch import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetAnswer,
    OffsetQuery,
)
from raftlog.protocol.schema import Failure
from raftlog.server.context import BrokerContext
from raftlog.server.once import check_once
from raftlog.server.reply import Reply
from raftlog.server.requests.lookup import Found, look_up
from raftlog.server.requests.outcomes import Outcomes
from raftlog.server.turns import Steps


def handle(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    queries = cast(ListOffsetsRequest, request.message).queries
    check_once("list_offsets", [(query.topic, query.partition, query.at) for query in queries])
    outcomes: Outcomes[OffsetAnswer] = Outcomes(
        len(queries), lambda answers: reply.send(ListOffsetsResponse(answers=answers))
    )
    for index, query in enumerate(queries):
        if index:
            yield None
        look_up(context, reply, query, partial(_done, outcomes, index, query))


def _done(
    outcomes: Outcomes[OffsetAnswer], index: int, query: OffsetQuery, found: Found | RaftlogError
) -> None:
    if isinstance(found, RaftlogError):
        failure = Failure.of(found)
        answer = OffsetAnswer(topic=query.topic, partition=query.partition, failure=failure)
    else:
        answer = OffsetAnswer(
            topic=query.topic,
            partition=query.partition,
            offset=found.offset,
            timestamp_ms=found.timestamp_ms,
            leader_epoch=found.host.leader_epoch,
        )
    outcomes.resolve(index, answer)
