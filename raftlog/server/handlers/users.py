"""``describe_users`` and ``alter_users``: the users of the cluster."""

from __future__ import annotations

from typing import Final, cast

from raftlog.errors import RaftlogError
from raftlog.protocol.connection import Request
from raftlog.protocol.schema import Failure
from raftlog.protocol.users import (
    AlterUsersRequest,
    AlterUsersResponse,
    DescribeUsersRequest,
    DescribeUsersResponse,
    UserAlteration,
    UserDescription,
    UserResult,
)
from raftlog.server.context import BrokerContext
from raftlog.server.once import check_once
from raftlog.server.reply import Reply
from raftlog.server.requests import users as requests
from raftlog.server.turns import Steps

DESCRIBED_PER_STEP: Final = 500  # users per step


def handle_describe(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    names = cast(DescribeUsersRequest, request.message).users
    requests.check_allowed(context, reply.connection, "describe_users")
    found = []
    for number, user in enumerate(requests.find(context, names)):
        if number % DESCRIBED_PER_STEP == 0:
            yield None
        iterations = {name: each.iterations for name, each in user.credentials.items()}
        found.append(UserDescription(name=user.name, iterations=iterations))
    reply.send(DescribeUsersResponse(users=found))


def handle_alter(context: BrokerContext, request: Request, reply: Reply) -> None:
    changes = cast(AlterUsersRequest, request.message).users
    requests.check_allowed(context, reply.connection, "alter_users")
    check_once("alter_users", [change.name for change in changes])

    async def alter_all() -> AlterUsersResponse:
        return AlterUsersResponse(results=[await _alter(context, change) for change in changes])

    context.administration.submit(alter_all, reply)


async def _alter(context: BrokerContext, change: UserAlteration) -> UserResult:
    try:
        if change.credentials:
            await requests.put(context, change.name, change.credentials, expected=change.expected)
        if change.delete:
            await requests.delete(context, change.name, change.delete)
    except RaftlogError as error:
        return UserResult(name=change.name, failure=Failure.of(error))
    return UserResult(name=change.name)
