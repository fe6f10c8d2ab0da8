"""Access rules and quotas: create, describe, delete and check rules; describe and alter quotas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, Final, Literal, cast

from raftlog import limits
from raftlog.errors import (
    AccessDeniedError,
    AuthenticationError,
    RaftlogError,
    ThrottledError,
    TokenExpiredError,
    TokenOwnerError,
    TokenRequestNotAllowedError,
    UnknownTokenError,
    UnsupportedFeatureError,
)
from raftlog.protocol import security
from raftlog.protocol.connection import Request
from raftlog.protocol.schema import Failure
from raftlog.protocol.security import (
    AlterUsersRequest,
    AlterUsersResponse,
    DescribeUsersRequest,
    DescribeUsersResponse,
    Granting,
    OperatorHelloRequest,
    OperatorProveRequest,
    OperatorProveResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    UserAlteration,
    UserDescription,
    UserResult,
)
from raftlog.replication.cluster_commands import (
    AlterQuotas,
    CreateAcls,
    CreateToken,
    DeleteAcls,
    DeleteUser,
    PutUser,
    QuotaChange,
    SetTokenExpiry,
)
from raftlog.security.acl import (
    ANONYMOUS,
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    Principal,
    canonical_host,
)
from raftlog.security.credentials import (
    HMAC_BYTES,
    DelegationToken,
    Mechanism,
    ScramCredential,
    User,
    check_user_name,
    digest_of,
    make_token,
)
from raftlog.server.access.control import Caller
from raftlog.server.connection import Connection
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Exchange, Reply, check_once
from raftlog.server.scheduling import Steps


def handle_create_acls(context: BrokerContext, request: Request, reply: Reply) -> None:
    context.check_operator(reply.connection, "create_acls")
    acls = cast(security.CreateAclsRequest, request.message).acls

    async def create() -> security.CreateAclsResponse:
        await context.access.authority.propose(CreateAcls(acls=tuple(acls)))
        return security.CreateAclsResponse()

    context.administration.submit(create, reply)


def handle_describe_acls(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    chosen = cast(security.DescribeAclsRequest, request.message).filter
    found = yield from select_acls(context, [chosen])
    reply.send(security.DescribeAclsResponse(acls=found))


def handle_delete_acls(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    context.check_operator(reply.connection, "delete_acls")
    filters = cast(security.DeleteAclsRequest, request.message).filters
    found = yield from select_acls(context, filters)

    async def delete() -> security.DeleteAclsResponse:
        return security.DeleteAclsResponse(acls=await delete_acls(context, found))

    context.administration.submit(delete, reply)


def handle_check_acl(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(security.CheckAclRequest, request.message)
    question = context.access.authorizer.question(
        Principal.parse(message.principal),
        canonical_host(message.host),
        message.operation,
        message.resource_type,
    )
    decision = question.decide(message.resource_name)
    reply.send(
        security.CheckAclResponse(
            is_allowed=decision.is_allowed,
            acl=decision.acl,
            is_super_user=decision.is_super_user,
            is_enforced=context.access.is_enforced,
        )
    )


def handle_describe_quotas(context: BrokerContext, request: Request, reply: Reply) -> None:  # noqa: ARG001
    quotas = sorted(context.access.quotas, key=lambda one: str(one[0]))
    described = [
        security.QuotaDescription(entity=entity, limits=dict(quota)) for entity, quota in quotas
    ]
    reply.send(security.DescribeQuotasResponse(quotas=described))


def handle_alter_quotas(context: BrokerContext, request: Request, reply: Reply) -> None:
    context.check_operator(reply.connection, "alter_quotas")
    quotas = cast(security.AlterQuotasRequest, request.message).quotas
    changes = tuple(QuotaChange(one.entity, one.changes) for one in quotas)

    async def alter() -> security.AlterQuotasResponse:
        await context.access.authority.propose(AlterQuotas(changes=changes))
        return security.AlterQuotasResponse()

    context.administration.submit(alter, reply)


# -- users -----------------------------------------------------------------------------------------
#
# ``describe_users`` and ``alter_users``: the users of the cluster.


DESCRIBED_PER_STEP: Final = 500  # users per step


def handle_describe(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    names = cast(DescribeUsersRequest, request.message).users
    check_allowed(context, reply.connection, "describe_users")
    found = []
    for number, user in enumerate(find(context, names)):
        if number % DESCRIBED_PER_STEP == 0:
            yield None
        iterations = {name: each.iterations for name, each in user.credentials.items()}
        found.append(UserDescription(name=user.name, iterations=iterations))
    reply.send(DescribeUsersResponse(users=found))


def handle_alter(context: BrokerContext, request: Request, reply: Reply) -> None:
    changes = cast(AlterUsersRequest, request.message).users
    check_allowed(context, reply.connection, "alter_users")
    check_once("alter_users", [change.name for change in changes])

    async def alter_all() -> AlterUsersResponse:
        return AlterUsersResponse(results=[await _alter(context, change) for change in changes])

    context.administration.submit(alter_all, reply)


async def _alter(context: BrokerContext, change: UserAlteration) -> UserResult:
    try:
        if change.credentials:
            await put(context, change.name, change.credentials, expected=change.expected)
        if change.delete:
            await delete(context, change.name, change.delete)
    except RaftlogError as error:
        return UserResult(name=change.name, failure=Failure.of(error))
    return UserResult(name=change.name)


# -- delegation tokens -----------------------------------------------------------------------------
#
# ``create_token``, ``describe_tokens``, ``renew_token``, ``expire_token``: delegation tokens.


def handle_create(context: BrokerContext, request: Request, reply: Reply) -> None:
    message, connection = cast(security.CreateTokenRequest, request.message), reply.connection
    check_token_allowed(connection)

    async def create() -> security.CreateTokenResponse:
        token, hmac = await create_token(context, connection, message.renewers, message.lifetime_ms)
        return security.CreateTokenResponse(token=_described(token), hmac=hmac)

    context.administration.submit(create, reply)


def handle_describe_tokens(context: BrokerContext, request: Request, reply: Reply) -> None:
    owners = cast(security.DescribeTokensRequest, request.message).owners
    check_token_allowed(reply.connection)
    found = find_tokens(context, reply.connection, owners)
    reply.send(security.DescribeTokensResponse(tokens=[_described(token) for token in found]))


def handle_renew(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(security.RenewTokenRequest, request.message)
    _change(context, message.token_id, message.period_ms, reply, renew_token)


def handle_expire(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(security.ExpireTokenRequest, request.message)
    _change(context, message.token_id, message.period_ms, reply, expire_token)


def _change(
    context: BrokerContext,
    token_id: str,
    period_ms: int,
    reply: Reply,
    change: Callable[[BrokerContext, Connection, DelegationToken, int], Awaitable[int]],
) -> None:
    check_token_allowed(reply.connection)
    token = by_id(context, token_id)

    async def set_expiry() -> security.TokenExpiryResponse:
        expires_ms = await change(context, reply.connection, token, period_ms)
        return security.TokenExpiryResponse(expires_ms=expires_ms)

    context.administration.submit(set_expiry, reply)


def _described(token: DelegationToken) -> security.TokenDescription:
    return security.TokenDescription(
        id=token.id,
        owner=token.owner,
        renewers=list(token.renewers),
        issued_ms=token.issued_ms,
        expires_ms=token.expires_ms,
        max_ms=token.max_ms,
    )


# -- sasl ------------------------------------------------------------------------------------------
#
# ``sasl_authenticate``: a client proves who it is.


def handle(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(SaslAuthenticateRequest, request.message)
    authenticator, connection = context.authenticator, reply.connection
    try:
        if message.mechanism:
            yield from authenticator.begin(connection, message.mechanism)
        progress = yield from authenticator.proceed(connection, message.data)
    except (AuthenticationError, ThrottledError) as error:
        fail_later(reply, error)
        return
    reply.send(
        SaslAuthenticateResponse(
            data=progress.data,
            is_complete=progress.is_complete,
            session_lifetime_ms=progress.session_lifetime_ms,
        )
    )


# -- operator --------------------------------------------------------------------------------------
#
# ``operator_hello`` and ``operator_prove``: a client proves that it may change the cluster.


def handle_hello(context: BrokerContext, request: Request, reply: Reply) -> None:
    """Answer the client's challenge, and send one."""
    message = cast(OperatorHelloRequest, request.message)
    secret = context.operator_secret or context.cluster_secret
    if not secret:
        raise UnsupportedFeatureError("this broker has no cluster secret and requires none")
    granting = Granting(
        secret, context.broker_id, context.operations.cluster_id, context.entropy(32)
    )
    reply.connection.granting = granting
    reply.send(granting.answer(message))


def handle_prove(_context: BrokerContext, request: Request, reply: Reply) -> None:
    """Verify the proof. If it is valid, the connection has operator rights from now on."""
    message = cast(OperatorProveRequest, request.message)
    granting, reply.connection.granting = reply.connection.granting, None
    if granting is None:
        raise AccessDeniedError("send operator_prove once, after operator_hello")
    # guard: an operator's proof is checked
    granting.check(message)
    reply.connection.is_operator = True
    reply.connection.permit_long_requests()
    reply.send(OperatorProveResponse())


# -- access ----------------------------------------------------------------------------------------
#
# Selection and deletion of access rules.


SELECTED_PER_STEP: Final = 2_000  # comparisons of a rule with a filter


def select_acls(
    context: BrokerContext, filters: Sequence[AclFilter]
) -> Generator[None, Any, list[Acl]]:
    """Return the rules that any of the filters selects, sorted; a few in each step."""
    found: set[Acl] = set()
    acls, compared = tuple(context.access.authority.machine.acls), 0
    for chosen in filters:
        for acl in acls:
            if chosen.selects(acl):
                found.add(acl)
            compared += 1
            if compared % SELECTED_PER_STEP == 0:
                yield None
    return sorted(found)


async def delete_acls(context: BrokerContext, acls: Sequence[Acl]) -> list[Acl]:
    """Delete rules. Returns those that existed; all of them if this broker has no vote."""
    gone: list[Acl] = []
    for part in _parts(acls, limits.ACLS_PER_REQUEST_MAX):
        deleted = await context.access.authority.propose(DeleteAcls(acls=part))
        gone += part if deleted is None else deleted
    return gone


def _parts(acls: Sequence[Acl], size: int) -> Iterator[tuple[Acl, ...]]:
    """Return the rules in parts of at most ``size``."""
    for start in range(0, len(acls), size):
        yield tuple(acls[start : start + size])


# -- delegation tokens -----------------------------------------------------------------------------
#
# Delegation tokens: creation, renewal, expiry and description (KIP-48).
#
# As in Kafka, the owner and the renewers change the lifetime of a token. In addition, clients with
# ALTER of the cluster do.


logger = logging.getLogger(__name__)


def check_token_allowed(connection: Connection) -> None:
    """Raise ``TokenRequestNotAllowedError`` unless the client may manage tokens.

    It needs TLS and a user, and must not have authenticated with a token: the limits of a token
    would not hold for tokens that it creates.
    """
    # guard: a token creates no tokens
    if connection.used is not None and connection.used.token:
        why = "the client has authenticated with a delegation token. Use the password of its owner"
    # guard: the secret of a token requires TLS
    elif not connection.is_encrypted:
        why = "the connection has no TLS, and the response could contain a secret. Use SASL_SSL"
    elif connection.principal == ANONYMOUS:
        why = "the client has not authenticated as a user"
    else:
        return
    raise TokenRequestNotAllowedError(f"delegation tokens cannot be managed: {why}")


async def create_token(
    context: BrokerContext, connection: Connection, renewers: Iterable[str], lifetime_ms: int
) -> tuple[DelegationToken, bytes]:
    """Create a token of the client. Return it and its HMAC.

    ``lifetime_ms``: at most that of ``delegation.token.max.lifetime.ms``; 0 or less: that. Raises
    ``AuthenticationError`` if the user has lost its credential in the meantime.
    """
    cluster, config = context.cluster, context.config
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
    # A change of the owner revokes the tokens that are stored before it. This one may be after it.
    # guard: a revoked user gets no token
    if context.authenticator.is_revoked(connection):
        await cluster.topics.persist(SetTokenExpiry(id=token.id, expires_ms=now_ms, at_ms=now_ms))
        raise AuthenticationError(f"{token.owner} was changed or deleted: authenticate again")
    logger.info("delegation token created: id=%s owner=%s", token.id, token.owner)
    return token, hmac


def find_tokens(
    context: BrokerContext, connection: Connection, owners: Collection[str] | None
) -> list[DelegationToken]:
    """Return the tokens of these owners, or all, that have not expired and the client may see."""
    now_ms, me = _now_ms(context), str(connection.principal)
    sees_all = _may(context, connection, "DESCRIBE")
    # guard: a user sees its own tokens
    found = [
        token
        for token in context.cluster.machine.tokens.values()
        if token.expires_ms > now_ms
        and (owners is None or token.owner in owners)
        and (sees_all or token.may_renew(me))
    ]
    return sorted(found, key=lambda token: (token.owner, token.issued_ms, token.id))


def by_id(context: BrokerContext, token_id: str) -> DelegationToken:
    """Return a token. Raises ``UnknownTokenError``."""
    token = context.cluster.machine.tokens.get(token_id)
    if token is None:
        raise UnknownTokenError(f"there is no delegation token {token_id}, or it was removed")
    return token


def by_hmac(context: BrokerContext, hmac: bytes) -> DelegationToken:
    """Return a token by its HMAC. Raises ``UnknownTokenError``."""
    digest = digest_of(hmac)  # comparisons of hashes reveal nothing about the HMAC
    for token in context.cluster.machine.tokens.values():
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
    # guard: a token is changed by its owner, renewers and administrators
    if not token.may_renew(str(me)) and not _may(context, connection, "ALTER"):
        raise TokenOwnerError(f"{me} is neither the owner nor a renewer of token {token.id}")
    if token.expires_ms <= now_ms and period_ms > 0:
        raise TokenExpiredError(f"delegation token {token.id} has expired. Create another one")
    expires_ms = min(now_ms + period_ms, token.max_ms)
    command = SetTokenExpiry(id=token.id, expires_ms=expires_ms, at_ms=now_ms)
    await context.cluster.topics.persist(command)
    logger.info("delegation token changed: id=%s by=%s expires_ms=%d", token.id, me, expires_ms)
    return expires_ms


def _may(context: BrokerContext, connection: Connection, operation: Operation) -> bool:
    caller = Caller(context.access, connection)
    return context.access.is_enforced and caller.may(operation, "CLUSTER", CLUSTER_NAME)


def _now_ms(context: BrokerContext) -> int:
    return context.clock.machine.wall_ms()


# -- users -----------------------------------------------------------------------------------------
#
# Users of the cluster: find, set credentials, delete.


def check_allowed(context: BrokerContext, connection: Connection, what: str) -> None:
    """Raise ``AccessDeniedError`` unless the connection may see and change users.

    While clients need not authenticate, that requires the cluster secret.
    """
    if not (context.config.authentication_required and connection.is_authenticated):
        # guard: users of an open cluster require the secret
        context.check_operator(connection, what)


def find(context: BrokerContext, names: Sequence[str] | None) -> Iterator[User]:
    """Return these users, or all of them, sorted by name."""
    users = dict(context.cluster.machine.users)
    wanted = users if names is None else set(names) & users.keys()
    return (users[name] for name in sorted(wanted))


async def put(
    context: BrokerContext,
    name: str,
    credentials: Mapping[Mechanism, ScramCredential],
    *,
    expected: Literal["any", "absent", "present"],
) -> None:
    """Set credentials of a user: see ``PutUser``. Returns once this broker uses them."""
    command = PutUser(
        name=check_user_name(name),
        credentials=dict(credentials),
        expected=expected,
        secret=context.entropy(32),
    )
    await context.cluster.topics.propose(command)
    logger.info("user changed: user=%s mechanisms=%s", name, ",".join(sorted(credentials)))


async def delete(context: BrokerContext, name: str, mechanisms: Sequence[Mechanism]) -> None:
    """Delete credentials of a user, and the user with its last one."""
    await context.cluster.topics.propose(DeleteUser(name=name, mechanisms=tuple(mechanisms)))
    logger.info("user deleted: user=%s mechanisms=%s", name, ",".join(mechanisms))


# -- authenticate ----------------------------------------------------------------------------------
#
# Failed attempts to authenticate: clients learn of them late.


def fail_later(reply: Exchange, error: RaftlogError) -> None:
    """Reply with the error after ``AUTHENTICATION_DELAY_S``, and close the connection.

    Until then, the connection handles no other request: its exchange has failed.
    """
    connection = reply.connection

    def fail() -> None:
        reply.fail(error)
        connection.hang_up(str(error))

    connection.services.loop.call_later(limits.AUTHENTICATION_DELAY_S, fail)
