"""``create_token``, ``describe_tokens``, ``renew_token``, ``expire_token``: delegation tokens."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.schema import Message
from raftlog.security.delegation import HMAC_BYTES, TimeMs, TokenPrincipal

TOKEN_ID_CHARS: Final = 32
_TokenId = Annotated[str, Meta(min_length=TOKEN_ID_CHARS, max_length=TOKEN_ID_CHARS)]
_Renewers = Annotated[list[TokenPrincipal], Meta(max_length=limits.DELEGATION_TOKEN_RENEWERS_MAX)]
_Milliseconds = Annotated[int, Meta(ge=-1, le=limits.DELEGATION_TOKEN_LIFETIME_MS_MAX)]


class TokenDescription(Message):
    """A delegation token. Times: milliseconds since 1970."""

    id: _TokenId
    owner: TokenPrincipal
    renewers: _Renewers
    issued_ms: TimeMs
    expires_ms: TimeMs
    max_ms: TimeMs


class CreateTokenRequest(Message):
    """Create a token of the client. ``lifetime_ms``: until it can be renewed no longer; -1: as long
    as the broker permits.
    """

    renewers: _Renewers = []
    lifetime_ms: _Milliseconds = -1


class CreateTokenResponse(Message):
    """The token. ``hmac``: its secret, which no other response contains."""

    token: TokenDescription
    hmac: Annotated[bytes, Meta(min_length=HMAC_BYTES, max_length=HMAC_BYTES)]

    def __repr__(self) -> str:
        return f"CreateTokenResponse(token={self.token!r}, hmac=(hidden))"


class DescribeTokensRequest(Message):
    """Request the tokens of these owners, or all of them, that the client may see."""

    owners: (
        Annotated[list[TokenPrincipal], Meta(max_length=limits.DELEGATION_TOKEN_OWNERS_MAX)] | None
    ) = None


class DescribeTokensResponse(Message):
    """Tokens that have not expired, sorted by owner and time of issue."""

    tokens: Annotated[
        list[TokenDescription], Meta(max_length=limits.DELEGATION_TOKENS_PER_CLUSTER_MAX)
    ]


class RenewTokenRequest(Message):
    """Let a token expire ``period_ms`` from now; -1: after the broker's default."""

    token_id: _TokenId
    period_ms: _Milliseconds = -1


class ExpireTokenRequest(Message):
    """Let a token expire ``period_ms`` from now; -1: at once."""

    token_id: _TokenId
    period_ms: _Milliseconds = -1


class TokenExpiryResponse(Message):
    """The time at which the token expires: milliseconds since 1970."""

    expires_ms: TimeMs
