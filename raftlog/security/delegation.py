"""Delegation tokens (KIP-48): credentials of limited lifetime that act as their owner. Pure.

A token has an ID, which is public, and an HMAC, which is secret. Clients authenticate by SCRAM with
the ID as the user name, the HMAC in base64 as the password, and the extension ``tokenauth=true``.
The HMAC consists of random bytes: in contrast to Kafka, no secret of the brokers can restore it,
and the cluster state contains only hashes of it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from raftlog import limits
from raftlog.errors import InvalidRequestError, TokenExpiredError
from raftlog.security.principal import Principal
from raftlog.security.users import Credentials

HMAC_BYTES: Final = 64  # of HMAC-SHA-512, as in Kafka
DIGEST_BYTES: Final = 32

TokenId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
TokenPrincipal = Annotated[str, Meta(min_length=1, max_length=2 * limits.PRINCIPAL_NAME_CHARS_MAX)]
TimeMs = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Renewers = Annotated[
    tuple[TokenPrincipal, ...], Meta(max_length=limits.DELEGATION_TOKEN_RENEWERS_MAX)
]


class DelegationToken(msgspec.Struct, frozen=True, array_like=True):
    """A token, as the cluster state stores it.

    ``owner``, ``renewers``: principals, such as ``User:alice``. Times: milliseconds since 1970.
    ``expires_ms`` can be extended up to ``max_ms``. ``digest``: SHA-256 of the HMAC.
    """

    id: TokenId
    owner: TokenPrincipal
    renewers: Renewers
    issued_ms: TimeMs
    expires_ms: TimeMs
    max_ms: TimeMs
    digest: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    credentials: Annotated[Credentials, Meta(min_length=1)]

    def __repr__(self) -> str:
        return f"DelegationToken(id={self.id!r}, owner={self.owner!r}, secrets=(hidden))"

    def may_renew(self, principal: str) -> bool:
        """Return whether a principal may extend and shorten the lifetime of the token."""
        return principal == self.owner or principal in self.renewers


def make_token(
    *,
    owner: Principal,
    renewers: Iterable[str],
    hmac: bytes,
    now_ms: int,
    lifetime_ms: int,
    renewal_ms: int,
    entropy: Callable[[int], bytes],
) -> DelegationToken:
    """Return a new token. Takes about 10 ms of CPU.

    ``hmac``: ``HMAC_BYTES`` random bytes. ``lifetime_ms``: maximum lifetime. ``renewal_ms``: time
    until it expires unless it is renewed. Raises ``InvalidRequestError`` if a renewer is not a
    principal, or if there are too many.
    """
    from raftlog.security.scram import make_credentials  # takes 0.2 s of CPU

    named = tuple(dict.fromkeys(str(Principal.parse(each)) for each in renewers))
    if len(named) > limits.DELEGATION_TOKEN_RENEWERS_MAX:
        raise InvalidRequestError(
            f"the token has {len(named)} renewers, over the limit of "
            f"{limits.DELEGATION_TOKEN_RENEWERS_MAX}"
        )
    max_ms = now_ms + lifetime_ms
    return DelegationToken(
        id=entropy(16).hex(),
        owner=str(owner),
        renewers=named,
        issued_ms=now_ms,
        expires_ms=min(max_ms, now_ms + renewal_ms),
        max_ms=max_ms,
        digest=digest_of(hmac),
        credentials=make_credentials(password_of(hmac), entropy),
    )


def password_of(hmac: bytes) -> str:
    """Return the password of a token for SCRAM."""
    return base64.b64encode(hmac).decode()


def digest_of(hmac: bytes) -> bytes:
    """Return the hash that identifies an HMAC of Kafka's clients. A random HMAC needs no salt."""
    return hashlib.sha256(hmac).digest()


def with_expiry(token: DelegationToken, expires_ms: int, now_ms: int) -> DelegationToken | None:
    """Return the token with a new expiry, at most ``max_ms``; None if that time has passed.

    Raises ``TokenExpiredError`` if the token has expired: it cannot be renewed.
    """
    if expires_ms <= now_ms:
        return None
    if token.expires_ms <= now_ms or token.max_ms <= now_ms:
        raise TokenExpiredError(f"delegation token {token.id} has expired. Create another one")
    return msgspec.structs.replace(token, expires_ms=min(expires_ms, token.max_ms))
