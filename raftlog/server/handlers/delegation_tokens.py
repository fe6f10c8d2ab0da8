"""``create_token``, ``describe_tokens``, ``renew_token``, ``expire_token``: delegation tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from raftlog.protocol import delegation_tokens as wire
from raftlog.protocol.connection import Request
from raftlog.security.delegation import DelegationToken
from raftlog.server.connection import Connection
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Reply
from raftlog.server.requests import delegation_tokens as requests


def handle_create(context: BrokerContext, request: Request, reply: Reply) -> None:
    message, connection = cast(wire.CreateTokenRequest, request.message), reply.connection
    requests.check_token_allowed(context, connection)

    async def create() -> wire.CreateTokenResponse:
        token, hmac = await requests.create_token(
            context, connection, message.renewers, message.lifetime_ms
        )
        return wire.CreateTokenResponse(token=_described(token), hmac=hmac)

    context.administration.submit(create, reply)


def handle_describe_tokens(context: BrokerContext, request: Request, reply: Reply) -> None:
    owners = cast(wire.DescribeTokensRequest, request.message).owners
    requests.check_token_allowed(context, reply.connection)
    found = requests.find_tokens(context, reply.connection, owners)
    reply.send(wire.DescribeTokensResponse(tokens=[_described(token) for token in found]))


def handle_renew(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(wire.RenewTokenRequest, request.message)
    _change(context, message.token_id, message.period_ms, reply, requests.renew_token)


def handle_expire(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(wire.ExpireTokenRequest, request.message)
    _change(context, message.token_id, message.period_ms, reply, requests.expire_token)


def _change(
    context: BrokerContext,
    token_id: str,
    period_ms: int,
    reply: Reply,
    change: Callable[[BrokerContext, Connection, DelegationToken, int], Awaitable[int]],
) -> None:
    requests.check_token_allowed(context, reply.connection)
    token = requests.by_id(context, token_id)

    async def set_expiry() -> wire.TokenExpiryResponse:
        expires_ms = await change(context, reply.connection, token, period_ms)
        return wire.TokenExpiryResponse(expires_ms=expires_ms)

    context.administration.submit(set_expiry, reply)


def _described(token: DelegationToken) -> wire.TokenDescription:
    return wire.TokenDescription(
        id=token.id,
        owner=token.owner,
        renewers=list(token.renewers),
        issued_ms=token.issued_ms,
        expires_ms=token.expires_ms,
        max_ms=token.max_ms,
    )
