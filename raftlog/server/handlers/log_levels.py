"""``describe_log_levels`` and ``alter_log_levels``: what this broker logs."""

from __future__ import annotations

from typing import cast

from raftlog.protocol.connection import Request
from raftlog.protocol.log_levels import (
    AlterLogLevelsRequest,
    AlterLogLevelsResponse,
    DescribeLogLevelsResponse,
    LogLevel,
)
from raftlog.server import log_levels
from raftlog.server.context import BrokerContext
from raftlog.server.once import check_once
from raftlog.server.reply import Reply


def handle_describe_log_levels(_context: BrokerContext, _request: Request, reply: Reply) -> None:
    found = [
        LogLevel(logger=each.name, level=each.level, is_own=each.is_own)
        for each in log_levels.describe()
    ]
    reply.send(DescribeLogLevelsResponse(levels=found))


def handle_alter(context: BrokerContext, request: Request, reply: Reply) -> None:
    context.check_operator(reply.connection, "alter_log_levels")
    changes = cast(AlterLogLevelsRequest, request.message).changes
    check_once("alter_log_levels", [change.logger for change in changes])
    log_levels.alter(
        {change.logger: change.level for change in changes},
        default=context.config.logging_level,
    )
    reply.send(AlterLogLevelsResponse())
