"""``list_offsets``: start and end offsets of partitions, and offsets by timestamp."""

from __future__ import annotations

from functools import partial
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
from raftlog.server.once import check_once
from raftlog.server.partition import Partition
from raftlog.server.reply import Reply
from raftlog.server.turns import Steps
from raftlog.types import NO_TIMESTAMP, OffsetAndTimestamp


def handle(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    queries = cast(ListOffsetsRequest, request.message).queries
    check_once("list_offsets", [(query.topic, query.partition, query.at) for query in queries])
    lookup = _Lookup(context, reply, len(queries))
    for index, query in enumerate(queries):
        if index:
            yield None
        lookup.begin(index, query)


class _Lookup:
    """One request. Its response is sent when every partition has a result."""

    __slots__ = ("_answers", "_context", "_missing", "_reply")

    def __init__(self, context: BrokerContext, reply: Reply, count: int) -> None:
        self._context = context
        self._reply = reply
        self._answers: list[OffsetAnswer | None] = [None] * count
        self._missing = count

    def begin(self, index: int, query: OffsetQuery) -> None:
        """Respond once the commits of all earlier leaders are known, and it is confirmed that no
        other broker leads, which might have committed more.
        """
        context = self._context
        try:
            host = context.topics.host(query.topic, query.partition)
            host.check_epoch(query.leader_epoch)
            host.check_leading()
            if not host.is_ready:
                raise LeaderNotAvailableError(
                    f"{host.topic_partition}: the new leader does not know the high watermark yet"
                )
        except RaftlogError as error:
            self._done(index, query, None, error)
            return
        done = partial(self._done, index, query, host)
        if context.cluster is not None:
            context.cluster.confirm(host, done)
        else:
            done(None)

    def _done(
        self,
        index: int,
        query: OffsetQuery,
        host: Partition | None,
        error: RaftlogError | None,
    ) -> None:
        if host is None or error is not None:
            assert error is not None
            answer = _failed(query, error)
        else:
            answer = _answer(query, host)
        self._answers[index] = answer
        self._missing -= 1
        if self._missing == 0:
            self._reply.send(ListOffsetsResponse(answers=cast(list[OffsetAnswer], self._answers)))


def _answer(query: OffsetQuery, host: Partition) -> OffsetAnswer:
    try:
        if query.at == "earliest":
            found = OffsetAndTimestamp(host.committed_start, NO_TIMESTAMP)
        elif query.at == "latest":
            found = OffsetAndTimestamp(host.high_watermark, NO_TIMESTAMP)
        else:
            none = OffsetAndTimestamp(-1, NO_TIMESTAMP)
            found = host.offset_for_timestamp(query.at) or none
    except RaftlogError as error:
        return _failed(query, error)
    return OffsetAnswer(
        topic=query.topic,
        partition=query.partition,
        offset=found.offset,
        timestamp_ms=found.timestamp_ms,
        leader_epoch=host.leader_epoch,
    )


def _failed(query: OffsetQuery, error: RaftlogError) -> OffsetAnswer:
    return OffsetAnswer(topic=query.topic, partition=query.partition, failure=Failure.of(error))
