"""``delete_records``: delete the records below an offset, on every in-sync replica."""

from __future__ import annotations

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
from raftlog.server.once import check_once
from raftlog.server.reply import Reply
from raftlog.server.requests.deletion import Deleted, Deletion
from raftlog.server.turns import Steps


def handle_delete(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    parts = cast(DeleteRecordsRequest, request.message).partitions
    check_once("delete_records", [(part.topic, part.partition) for part in parts])

    def done(found: list[Deleted]) -> None:
        answers = [_answer(part, one) for part, one in zip(parts, found, strict=True)]
        reply.send(DeleteRecordsResponse(partitions=answers))

    return Deletion(context, reply, parts, done).steps()


def _answer(part: RecordsToDelete, deleted: Deleted) -> DeletedRecords:
    return DeletedRecords(
        topic=part.topic,
        partition=part.partition,
        failure=Failure.of(deleted) if isinstance(deleted, RaftlogError) else None,
        log_start_offset=-1 if isinstance(deleted, RaftlogError) else deleted,
    )
