"""Delegation tokens, for `Admin`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from raftlog import limits
from raftlog.client.cluster import Cluster
from raftlog.client.settings import integer
from raftlog.errors import InvalidRequestError
from raftlog.protocol import api as apis
from raftlog.protocol.delegation_tokens import (
    CreateTokenRequest,
    CreateTokenResponse,
    DescribeTokensRequest,
    DescribeTokensResponse,
    ExpireTokenRequest,
    RenewTokenRequest,
    TokenDescription,
    TokenExpiryResponse,
)
from raftlog.security.delegation import password_of
from raftlog.security.principal import Principal
from raftlog.types import TimestampMs


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
