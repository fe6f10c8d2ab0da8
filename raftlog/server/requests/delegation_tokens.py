"""Delegation tokens: creation, renewal, expiry and description (KIP-48).

As in Kafka, the owner and the renewers change the lifetime of a token. In addition, clients with
ALTER of the cluster do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from functools import partial

from raftlog.errors import (
    TokenExpiredError,
    TokenOwnerError,
    TokenRequestNotAllowedError,
    UnknownTokenError,
)
from raftlog.replication.cluster_commands import CreateToken, SetTokenExpiry
from raftlog.security.acl import CLUSTER_NAME, Operation
from raftlog.security.delegation import (
    HMAC_BYTES,
    DelegationToken,
    digest_of,
    make_token,
)
from raftlog.security.principal import ANONYMOUS
from raftlog.server.access.control import Caller
from raftlog.server.connection import Connection
from raftlog.server.context import BrokerContext

logger = logging.getLogger(__name__)


def check_token_allowed(context: BrokerContext, connection: Connection) -> None:
    """Raise ``TokenRequestNotAllowedError`` unless the client may manage tokens.

    It needs TLS and a user, and must not have authenticated with a token: the limits of a token
    would not hold for tokens that it creates.
    """
    if connection.used is not None and connection.used.token:
        why = "the client has authenticated with a delegation token. Use the password of its owner"
    elif not connection.is_encrypted:
        why = "the connection has no TLS, and the response could contain a secret. Use SASL_SSL"
    elif connection.principal == ANONYMOUS:
        why = "the client has not authenticated as a user"
    else:
        context.clustered()
        return
    raise TokenRequestNotAllowedError(f"delegation tokens cannot be managed: {why}")


async def create_token(
    context: BrokerContext, connection: Connection, renewers: Iterable[str], lifetime_ms: int
) -> tuple[DelegationToken, bytes]:
    """Create a token of the client. Return it and its HMAC.

    ``lifetime_ms``: at most that of ``delegation.token.max.lifetime.ms``; 0 or less: that.
    """
    cluster, config = context.clustered(), context.config
    now_ms = _now_ms(context)
    cluster.machine.check_new_token(str(connection.principal), now_ms)  # before the hashes
    most_ms = config.delegation_token_max_lifetime_ms
    hmac = context.entropy(HMAC_BYTES)
    token = await asyncio.to_thread(
        partial(
            make_token,
            owner=connection.principal,
            renewers=renewers,
            hmac=hmac,
            now_ms=now_ms,
            lifetime_ms=most_ms if lifetime_ms <= 0 else min(lifetime_ms, most_ms),
            renewal_ms=config.delegation_token_expiry_time_ms,
            entropy=context.entropy,
        )
    )
    await cluster.topics.persist(CreateToken(token=token))
    logger.info("delegation token created: id=%s owner=%s", token.id, token.owner)
    return token, hmac


def find_tokens(
    context: BrokerContext, connection: Connection, owners: Collection[str] | None
) -> list[DelegationToken]:
    """Return the tokens of these owners, or all, that have not expired and the client may see."""
    now_ms, me = _now_ms(context), str(connection.principal)
    sees_all = _may(context, connection, "DESCRIBE")
    found = [
        token
        for token in context.clustered().machine.tokens.values()
        if token.expires_ms > now_ms
        and (owners is None or token.owner in owners)
        and (sees_all or token.may_renew(me))
    ]
    return sorted(found, key=lambda token: (token.owner, token.issued_ms, token.id))


def by_id(context: BrokerContext, token_id: str) -> DelegationToken:
    """Return a token. Raises ``UnknownTokenError``."""
    token = context.clustered().machine.tokens.get(token_id)
    if token is None:
        raise UnknownTokenError(f"there is no delegation token {token_id}, or it was removed")
    return token


def by_hmac(context: BrokerContext, hmac: bytes) -> DelegationToken:
    """Return a token by its HMAC. Raises ``UnknownTokenError``."""
    digest = digest_of(hmac)  # comparisons of hashes reveal nothing about the HMAC
    for token in context.clustered().machine.tokens.values():
        if token.digest == digest:
            return token
    raise UnknownTokenError("there is no delegation token with this HMAC, or it was removed")


async def renew_token(
    context: BrokerContext, connection: Connection, token: DelegationToken, period_ms: int
) -> int:
    """Let a token expire in ``period_ms`` from now; negative: ``delegation.token.expiry.time.ms``.

    Returns the time of expiry, in milliseconds since 1970.
    """
    period_ms = context.config.delegation_token_expiry_time_ms if period_ms < 0 else period_ms
    return await _set_expiry(context, connection, token, period_ms)


async def expire_token(
    context: BrokerContext, connection: Connection, token: DelegationToken, period_ms: int
) -> int:
    """Let a token expire in ``period_ms`` from now; negative: at once.

    Returns the time of expiry, in milliseconds since 1970.
    """
    return await _set_expiry(context, connection, token, max(period_ms, 0))


async def _set_expiry(
    context: BrokerContext, connection: Connection, token: DelegationToken, period_ms: int
) -> int:
    me, now_ms = connection.principal, _now_ms(context)
    if not token.may_renew(str(me)) and not _may(context, connection, "ALTER"):
        raise TokenOwnerError(f"{me} is neither the owner nor a renewer of token {token.id}")
    if token.expires_ms <= now_ms and period_ms > 0:
        raise TokenExpiredError(f"delegation token {token.id} has expired. Create another one")
    expires_ms = min(now_ms + period_ms, token.max_ms)
    command = SetTokenExpiry(id=token.id, expires_ms=expires_ms, at_ms=now_ms)
    await context.clustered().topics.persist(command)
    logger.info("delegation token changed: id=%s by=%s expires_ms=%d", token.id, me, expires_ms)
    return expires_ms


def _may(context: BrokerContext, connection: Connection, operation: Operation) -> bool:
    caller = Caller(context.access, connection)
    return context.access.is_enforced and caller.may(operation, "CLUSTER", CLUSTER_NAME)


def _now_ms(context: BrokerContext) -> int:
    return context.clock.machine.wall_ms()
