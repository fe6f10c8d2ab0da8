"""``delete_records``: move the start of partitions' logs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, cast

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
from raftlog.server.once import check_once
from raftlog.server.replica_host import PartitionHost
from raftlog.server.reply import Reply
from raftlog.server.turns import Steps
from raftlog.types import check_not_internal

# Each takes the threads that sync logs for a moment: producers have to get through between them.
DELETIONS_AT_ONCE: Final = 8


def handle_delete(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    parts = cast(DeleteRecordsRequest, request.message).partitions
    check_once("delete_records", [(part.topic, part.partition) for part in parts])
    return _Deletion(context, reply, parts).steps()


class _Deletion:
    """One request under way: its answer goes out when every partition has its outcome."""

    __slots__ = ("_answers", "_begun", "_context", "_done_count", "_parts", "_reply", "_running")

    def __init__(
        self, context: BrokerContext, reply: Reply, parts: Sequence[RecordsToDelete]
    ) -> None:
        self._context = context
        self._reply = reply
        self._parts = parts
        self._answers: list[DeletedRecords | None] = [None] * len(parts)
        self._begun = 0
        self._done_count = 0
        self._running = False

    def steps(self) -> Steps:
        """Begin deletions until enough are under way; the end of one goes on with the next."""
        self._running = True
        while self._begun < min(len(self._parts), self._done_count + DELETIONS_AT_ONCE):
            index = self._begun
            self._begun += 1
            self._begin(index, self._parts[index])
            yield None
        self._running = False

    def _begin(self, index: int, part: RecordsToDelete) -> None:
        try:
            check_not_internal(part.topic)
            host = self._context.topics.host(part.topic, part.partition)
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
        self._done_count += 1
        if self._done_count == len(self._parts):
            answers = cast(list[DeletedRecords], self._answers)
            self._reply.send(DeleteRecordsResponse(partitions=answers))
        elif not self._running:
            self._reply.connection.begin(self._reply.guarded(self.steps()))
