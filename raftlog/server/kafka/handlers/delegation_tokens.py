"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken
(KIP-48).

A client cannot create a token for another owner (KIP-373). Descriptions contain no HMAC: the
brokers do not have it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from raftlog import limits
from raftlog.errors import InvalidRequestError, TokenOwnerError
from raftlog.kafka import api, codec
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.security.delegation import DelegationToken
from raftlog.security.principal import Principal
from raftlog.server.connection import Connection
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.reply import KafkaReply
from raftlog.server.requests import delegation_tokens as requests

_CreatedToken = codec.structs("response", api.CREATE_DELEGATION_TOKEN.key)
_DescribedTokens = codec.structs("response", api.DESCRIBE_DELEGATION_TOKEN.key)


def handle_create_token(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    message, connection = request.message, reply.connection
    requests.check_token_allowed(context, connection)
    if message.owner_principal_name:
        owner = f"{message.owner_principal_type}:{message.owner_principal_name}"
        if owner != str(connection.principal):
            raise TokenOwnerError(f"{connection.principal} cannot create a token of {owner}")
    renewers = _token_names(message.renewers, limits.DELEGATION_TOKEN_RENEWERS_MAX)

    async def create() -> Message:
        token, hmac = await requests.create_token(
            context, connection, renewers, message.max_lifetime_ms
        )
        made = _CreatedToken.root(
            issue_timestamp_ms=token.issued_ms,
            expiry_timestamp_ms=token.expires_ms,
            max_timestamp_ms=token.max_ms,
            token_id=token.id,
            hmac=hmac,
        )
        return _with_owner(made, token)

    context.administration.submit(create, reply)


def handle_renew(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    _change_token(context, request, reply, request.message.renew_period_ms, requests.renew_token)


def handle_expire(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    _change_token(
        context, request, reply, request.message.expiry_time_period_ms, requests.expire_token
    )


def _change_token(
    context: BrokerContext,
    request: KafkaRequest,
    reply: KafkaReply,
    period_ms: int,
    change: Callable[[BrokerContext, Connection, DelegationToken, int], Awaitable[int]],
) -> None:
    requests.check_token_allowed(context, reply.connection)
    token = requests.by_hmac(context, bytes(request.message.hmac))
    answer = codec.structs("response", request.api.key)

    async def set_expiry() -> Message:
        bounded_ms = min(period_ms, limits.DELEGATION_TOKEN_LIFETIME_MS_MAX)
        expires_ms = await change(context, reply.connection, token, bounded_ms)
        return answer.root(expiry_timestamp_ms=expires_ms)

    context.administration.submit(set_expiry, reply)


def handle_describe_tokens(
    context: BrokerContext, request: KafkaRequest, reply: KafkaReply
) -> None:
    """Return the tokens of the owners, or all tokens, that the client may see."""
    requests.check_token_allowed(context, reply.connection)
    wanted = request.message.owners
    owners = None if wanted is None else _token_names(wanted, limits.DELEGATION_TOKEN_OWNERS_MAX)
    found = requests.find_tokens(context, reply.connection, owners)
    reply.send(_DescribedTokens.root(tokens=[_description(token) for token in found]))


def _description(token: DelegationToken) -> Message:
    described = _DescribedTokens.DescribedDelegationToken(
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.id,
        hmac=b"",
        renewers=[
            _DescribedTokens.DescribedDelegationTokenRenewer(
                principal_type=each.kind, principal_name=each.name
            )
            for each in map(Principal.parse, token.renewers)
        ],
    )
    return _with_owner(described, token)


def _with_owner(message: Any, token: DelegationToken) -> Message:
    owner = Principal.parse(token.owner)
    message.principal_type = message.token_requester_principal_type = owner.kind
    message.principal_name = message.token_requester_principal_name = owner.name
    return message


def _token_names(principals: Sequence[Any], most: int) -> list[str]:
    if len(principals) > most:
        raise InvalidRequestError(
            f"the request has {len(principals)} principals; the limit is {most}"
        )
    return [f"{each.principal_type}:{each.principal_name}" for each in principals]
