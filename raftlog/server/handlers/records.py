"""``delete_records``: move the start of partitions' logs."""

from __future__ import annotations

from functools import partial
from typing import cast

from raftlog.errors import RaftlogError
from raftlog.protocol.connection import Request
from raftlog.protocol.schema import Failure
from raftlog.protocol.topics import (
    DeletedRecords,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    RecordsToDelete,
)
from raftlog.server.context import BrokerContext
from raftlog.server.replica_host import PartitionHost
from raftlog.server.reply import Reply
from raftlog.types import check_not_internal


def handle_delete(context: BrokerContext, request: Request, reply: Reply) -> None:
    parts = cast(DeleteRecordsRequest, request.message).partitions
    deletion = _Deletion(reply, len(parts))
    for index, part in enumerate(parts):
        deletion.begin(context, index, part)


class _Deletion:
    """One request under way: its answer goes out when every partition has its outcome."""

    __slots__ = ("_answers", "_missing", "_reply")

    def __init__(self, reply: Reply, count: int) -> None:
        self._reply = reply
        self._answers: list[DeletedRecords | None] = [None] * count
        self._missing = count

    def begin(self, context: BrokerContext, index: int, part: RecordsToDelete) -> None:
        try:
            check_not_internal(part.topic)
            host = context.topics.host(part.topic, part.partition)
            before = host.high_watermark if part.before_offset < 0 else part.before_offset
            host.delete_records(before, partial(self._done, index, part, host))
        except RaftlogError as error:
            self._done(index, part, None, error)

    def _done(
        self,
        index: int,
        part: RecordsToDelete,
        host: PartitionHost | None,
        error: RaftlogError | None,
    ) -> None:
        self._answers[index] = DeletedRecords(
            topic=part.topic,
            partition=part.partition,
            failure=None if error is None else Failure.of(error),
            log_start_offset=-1 if host is None else host.log.log_start_offset,
        )
        self._missing -= 1
        if self._missing == 0:
            answers = cast(list[DeletedRecords], self._answers)
            self._reply.send(DeleteRecordsResponse(partitions=answers))
