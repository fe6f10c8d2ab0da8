"""Access rules and quotas of the admin client: requests, checks of arguments, descriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from raftlog import limits
from raftlog.client.cluster import Cluster
from raftlog.client.settings import integer
from raftlog.errors import InvalidRequestError
from raftlog.protocol import api as apis
from raftlog.protocol.security import (
    AlterQuotasRequest,
    AlterUsersRequest,
    AlterUsersResponse,
    CheckAclRequest,
    CheckAclResponse,
    CreateTokenRequest,
    CreateTokenResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeQuotasRequest,
    DescribeQuotasResponse,
    DescribeTokensRequest,
    DescribeTokensResponse,
    DescribeUsersRequest,
    DescribeUsersResponse,
    ExpireTokenRequest,
    QuotaAlteration,
    RenewTokenRequest,
    TokenDescription,
    TokenExpiryResponse,
    UserAlteration,
)
from raftlog.security.acl import Acl, AclFilter, Decision, Operation, Principal, ResourceType
from raftlog.security.credentials import SCRAM_MECHANISMS, Mechanism, check_user_name, password_of
from raftlog.security.quota import QuotaEntity, QuotaKey
from raftlog.types import TimestampMs


@dataclass(frozen=True, slots=True)
class AclDecision:
    """Whether a principal may do an operation.

    ``acl``: the rule that decides; None for a super user, and if no rule applies. ``reason``: in
    words. ``is_enforced``: False if the brokers do not require authentication; then, every client
    may do everything.
    """

    is_allowed: bool
    acl: Acl | None
    is_super_user: bool
    is_enforced: bool
    reason: str


async def describe_acls(cluster: Cluster, selection: AclFilter) -> list[Acl]:
    answer = await cluster.call(apis.DESCRIBE_ACLS, DescribeAclsRequest(filter=selection))
    assert isinstance(answer, DescribeAclsResponse)
    return answer.acls


async def describe_quotas(cluster: Cluster) -> dict[QuotaEntity, dict[QuotaKey, float]]:
    answer = await cluster.call(apis.DESCRIBE_QUOTAS, DescribeQuotasRequest())
    assert isinstance(answer, DescribeQuotasResponse)
    return {one.entity: one.limits for one in answer.quotas}


async def check_acl(
    cluster: Cluster,
    principal: str,
    operation: Operation,
    resource_type: ResourceType,
    resource_name: str,
    host: str,
) -> AclDecision:
    request = CheckAclRequest(
        principal=principal,
        operation=operation,
        resource_type=resource_type,
        resource_name=resource_name,
        host=host,
    )
    answer = await cluster.call(apis.CHECK_ACL, request)
    assert isinstance(answer, CheckAclResponse)
    return decision(answer)


def decision(answer: CheckAclResponse) -> AclDecision:
    return AclDecision(
        answer.is_allowed,
        answer.acl,
        answer.is_super_user,
        answer.is_enforced,
        str(Decision(answer.is_allowed, answer.acl, answer.is_super_user)),
    )


def checked(acls: Iterable[Acl]) -> list[Acl]:
    """Return the rules. Raises ``TypeError`` for what is none, and ``InvalidRequestError``."""
    if isinstance(acls, Acl):
        raise TypeError(f"acls={acls!r} is not a list of Acl. Pass [{acls!r}]")
    rules = list(acls)
    for acl in rules:
        if not isinstance(acl, Acl):
            raise TypeError(f"{acl!r} is not an Acl")
        acl.checked()
    return rules


def parts(acls: list[Acl]) -> Iterator[list[Acl]]:
    """Return the rules in parts that fit a request."""
    for start in range(0, len(acls), limits.ACLS_PER_REQUEST_MAX):
        yield acls[start : start + limits.ACLS_PER_REQUEST_MAX]


def selected(selections: Iterable[AclFilter]) -> list[AclFilter]:
    """Return the filters. Raises ``TypeError`` for what is none, and ``InvalidRequestError``."""
    if isinstance(selections, AclFilter):
        raise TypeError(f"selections={selections!r} is not a list of AclFilter")
    filters = list(selections)
    if not 1 <= len(filters) <= limits.ACL_FILTERS_PER_REQUEST_MAX:
        raise InvalidRequestError(
            f"{len(filters)} filters: pass 1 to {limits.ACL_FILTERS_PER_REQUEST_MAX}"
        )
    return filters


def alteration(
    changes: Mapping[QuotaEntity, Mapping[QuotaKey, float | None]],
) -> AlterQuotasRequest:
    """Return the request for changes of quotas. Raises ``InvalidRequestError``."""
    if not 1 <= len(changes) <= limits.QUOTAS_PER_REQUEST_MAX:
        raise InvalidRequestError(
            f"{len(changes)} entities: pass 1 to {limits.QUOTAS_PER_REQUEST_MAX}"
        )
    for entity, quota in changes.items():
        for key, value in quota.items():
            entity.checked().check_key(key)
            if value is not None and not 0 < value <= limits.QUOTA_MAX:
                raise InvalidRequestError(f"{key}={value} is not a limit above 0")
    return AlterQuotasRequest(
        quotas=[
            QuotaAlteration(entity=entity, changes=dict(quota)) for entity, quota in changes.items()
        ]
    )


# -- users -----------------------------------------------------------------------------------------
#
# Users of the cluster, for `Admin`: the client computes credentials, and sends no password.


@dataclass(frozen=True, slots=True)
class UserListing:
    """A user. ``mechanisms``: those by which it can authenticate."""

    name: str
    mechanisms: tuple[Mechanism, ...]


async def list_users(cluster: Cluster) -> list[UserListing]:
    answer = await cluster.call(apis.DESCRIBE_USERS, DescribeUsersRequest())
    assert isinstance(answer, DescribeUsersResponse)
    return [UserListing(user.name, tuple(sorted(user.iterations))) for user in answer.users]


async def put_user(
    cluster: Cluster,
    name: str,
    password: str,
    entropy: Callable[[int], bytes],
    *,
    expected: Literal["absent", "present"],
) -> None:
    """Set the credentials of a user. Raises ``InvalidRequestError`` for a name or a password that
    is not valid.
    """
    from raftlog.security.sasl import make_credentials

    check_user_name(name)
    credentials = await asyncio.to_thread(make_credentials, password, entropy)  # 10 ms of CPU
    await _alter_user(
        cluster, UserAlteration(name=name, credentials=credentials, expected=expected)
    )


async def delete_user(cluster: Cluster, name: str) -> None:
    listed = await list_users(cluster)
    mechanisms = [each for user in listed if user.name == name for each in user.mechanisms]
    change = UserAlteration(name=name, delete=mechanisms or list(SCRAM_MECHANISMS))
    await _alter_user(cluster, change)


async def _alter_user(cluster: Cluster, change: UserAlteration) -> None:
    """Make the change. Raises its error."""

    async def attempt() -> None:
        connection = await cluster.any_connection()
        answer = await cluster.ask(connection, apis.ALTER_USERS, AlterUsersRequest(users=[change]))
        assert isinstance(answer, AlterUsersResponse)
        for result in answer.results:
            if result.failure is not None:
                raise result.failure.to_error()

    await cluster.persist(attempt, repeatable=False)


# -- delegation tokens -----------------------------------------------------------------------------
#
# Delegation tokens, for `Admin`.


@dataclass(frozen=True, slots=True)
class TokenListing:
    """A delegation token. ``owner``, ``renewers``: principals, such as ``User:alice``.

    Times in milliseconds since 1970: ``issued_ms``; ``expires_ms``, unless it is renewed;
    ``max_ms``, which no renewal exceeds.
    """

    id: str
    owner: str
    renewers: tuple[str, ...]
    issued_ms: TimestampMs
    expires_ms: TimestampMs
    max_ms: TimestampMs


@dataclass(frozen=True, slots=True)
class NewToken:
    """A delegation token that was created. ``hmac``: its secret, in base64.

    Clients pass the ID as ``sasl_username``, the secret as ``sasl_password``, and
    ``sasl_token_auth=True``.
    """

    token: TokenListing
    hmac: str = field(repr=False)


async def create(
    cluster: Cluster, renewers: Iterable[str], max_lifetime_ms: int | None
) -> NewToken:
    if isinstance(renewers, str):
        raise TypeError(f"renewers={renewers!r} is not a list. Pass [{renewers!r}]")
    named = [str(Principal.parse(each)) for each in renewers]
    if len(named) > limits.DELEGATION_TOKEN_RENEWERS_MAX:
        raise InvalidRequestError(
            f"{len(named)} renewers; the limit is {limits.DELEGATION_TOKEN_RENEWERS_MAX}"
        )
    lifetime_ms = _milliseconds("max_lifetime_ms", max_lifetime_ms)
    request = CreateTokenRequest(renewers=named, lifetime_ms=lifetime_ms)
    answer = await cluster.call(apis.CREATE_TOKEN, request)
    assert isinstance(answer, CreateTokenResponse)
    return NewToken(_listing(answer.token), password_of(answer.hmac))


async def describe(cluster: Cluster, owners: Iterable[str] | None) -> list[TokenListing]:
    if isinstance(owners, str):
        raise TypeError(f"owners={owners!r} is not a list. Pass [{owners!r}]")
    named = None if owners is None else [str(Principal.parse(each)) for each in owners]
    if named is not None and len(named) > limits.DELEGATION_TOKEN_OWNERS_MAX:
        raise InvalidRequestError(
            f"{len(named)} owners; the limit is {limits.DELEGATION_TOKEN_OWNERS_MAX}"
        )
    answer = await cluster.call(apis.DESCRIBE_TOKENS, DescribeTokensRequest(owners=named))
    assert isinstance(answer, DescribeTokensResponse)
    return [_listing(token) for token in answer.tokens]


async def renew(cluster: Cluster, token_id: str, period_ms: int | None) -> TimestampMs:
    period_ms = _milliseconds("period_ms", period_ms)
    request = RenewTokenRequest(token_id=token_id, period_ms=period_ms)
    answer = await cluster.call(apis.RENEW_TOKEN, request)
    assert isinstance(answer, TokenExpiryResponse)
    return answer.expires_ms


async def expire(cluster: Cluster, token_id: str, period_ms: int | None) -> TimestampMs:
    period_ms = _milliseconds("period_ms", period_ms)
    request = ExpireTokenRequest(token_id=token_id, period_ms=period_ms)
    answer = await cluster.call(apis.EXPIRE_TOKEN, request)
    assert isinstance(answer, TokenExpiryResponse)
    return answer.expires_ms


def _milliseconds(name: str, value: int | None) -> int:
    """Return the value of the protocol: -1 for None."""
    most = limits.DELEGATION_TOKEN_LIFETIME_MS_MAX
    return -1 if value is None else integer(name, value, 1, most)


def _listing(token: TokenDescription) -> TokenListing:
    return TokenListing(
        id=token.id,
        owner=token.owner,
        renewers=tuple(token.renewers),
        issued_ms=token.issued_ms,
        expires_ms=token.expires_ms,
        max_ms=token.max_ms,
    )
