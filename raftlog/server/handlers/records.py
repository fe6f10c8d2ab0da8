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
from raftlog.server.turns import Steps, in_steps


def handle_delete_records(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    parts = cast(DeleteRecordsRequest, request.message).partitions
    check_once("delete_records", [(part.topic, part.partition) for part in parts])

    def done(found: list[Deleted]) -> None:
        reply.go_on(_send(reply, parts, found))

    return Deletion(context, reply, parts, done).steps()


def _send(reply: Reply, parts: list[RecordsToDelete], found: list[Deleted]) -> Steps:
    answers = yield from in_steps(zip(parts, found, strict=True), _answer)
    reply.send(DeleteRecordsResponse(partitions=answers))


def _answer(one: tuple[RecordsToDelete, Deleted]) -> DeletedRecords:
    part, deleted = one
    return DeletedRecords(
        topic=part.topic,
        partition=part.partition,
        failure=Failure.of(deleted) if isinstance(deleted, RaftlogError) else None,
        log_start_offset=-1 if isinstance(deleted, RaftlogError) else deleted,
    )
