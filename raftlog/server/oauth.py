"""OAUTHBEARER (RFC 7628, KIP-255, KIP-768): bearer tokens of an identity provider. Pure.

A token is a JWT (RFC 7519) that the provider has signed. `joserfc` verifies it, with the public
keys of the provider (JWKS, RFC 7517).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from raftlog import limits
from raftlog.errors import AuthenticationError, ClusterNotReadyError, InvalidRequestError
from raftlog.security.acl import USER, Principal, check_name
from raftlog.security.sasl import Accepted

# Asymmetric ones only: with others, everyone who has the keys could sign.
ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
FAILED: Final = (
    "authentication failed: the broker rejected the token (invalid_token). The log of the broker "
    "contains the reason"
)
# RFC 7628, section 3.2.2. No scope or configuration of the provider is known here.
INVALID_TOKEN: Final = b'{"status":"invalid_token"}'
# GS2 header without channel binding, then fields that end with \x01 (RFC 7628, section 3.1).
_MESSAGE: Final = re.compile(
    rb"n,(?:a=([^,\x01]*))?,\x01(?:[A-Za-z]+=[^\x01]*\x01)*?"
    rb"auth=[Bb]earer ([A-Za-z0-9._~+/-]+=*)\x01(?:[A-Za-z]+=[^\x01]*\x01)*\x01"
)


class TokenSettings(NamedTuple):
    """What a token must contain. An empty ``issuer`` or ``audience`` is not compared."""

    issuer: str
    audience: str
    claim: str  # that names the principal
    clock_skew_seconds: int


class Keys:
    """The public keys of the provider. ``may_load``: whether a newer set will be loaded soon."""

    def __init__(self) -> None:
        self.current: KeySet | None = None
        self.may_load: Callable[[], bool] = lambda: False

    def set(self, document: Any) -> None:
        """Use the keys of a JWKS document from now on. Raises ``ValueError`` if it has none."""
        try:
            found = KeySet.import_key_set(document)
        except (JoseError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is not a JWKS: {error}") from error
        # guard: the keys of an identity provider are public ones
        if not found.keys or any(key.key_type == "oct" for key in found.keys):
            raise ValueError("it contains no public keys, or a secret key")
        self.current = found


class TokenExchange:
    """The broker's side: one message of the client."""

    is_costly = True

    def __init__(self, settings: TokenSettings, keys: Keys, wall_seconds: float) -> None:
        """``wall_seconds``: the time since 1970 at which the exchange begins."""
        self._settings = settings
        self._keys = keys
        self._now = int(wall_seconds)
        self.rejection = b""

    def step(self, data: bytes) -> Accepted:
        """Verify the token. Raises ``AuthenticationError``, with the reason as its cause, and
        ``ClusterNotReadyError`` if its key may be among newer ones, which are being loaded.
        """
        found = _MESSAGE.fullmatch(data) if len(data) <= limits.SASL_MESSAGE_BYTES_MAX else None
        if found is None:
            raise AuthenticationError(FAILED) from ValueError("the message is malformed")
        self.rejection = INVALID_TOKEN
        claims = self._claims(found[2].decode())
        name = claims.get(self._settings.claim)
        try:
            if not isinstance(name, str):
                raise InvalidRequestError(f"claim {self._settings.claim!r} is not a text")
            principal = Principal(USER, check_name(name))
        except InvalidRequestError as error:
            raise AuthenticationError(FAILED) from error
        # guard: a token does not name another user
        if found[1] and found[1] != name.encode():
            raise AuthenticationError(FAILED) from ValueError("authzid is another user")
        lifetime = min(max(claims["exp"] - self._now, 1), limits.TOKEN_LIFETIME_S_MAX)
        return Accepted(principal, b"", None, float(lifetime))

    def _claims(self, token: str) -> dict[str, Any]:
        settings, keys = self._settings, self._keys.current
        if keys is None:
            raise ClusterNotReadyError("this broker has not loaded the keys of the provider yet")
        required: dict[str, Any] = {"exp": {"essential": True}}
        if settings.issuer:
            required["iss"] = {"essential": True, "value": settings.issuer}
        if settings.audience:
            required["aud"] = {"essential": True, "value": settings.audience}
        registry = jwt.JWTClaimsRegistry(self._now, settings.clock_skew_seconds, **required)
        try:
            claims = jwt.decode(token, keys, algorithms=ALGORITHMS).claims
            # guard: the claims of a token are compared
            registry.validate(claims)
        except InvalidKeyIdError as error:
            if self._keys.may_load():
                raise ClusterNotReadyError("the broker loads newer keys of the provider") from error
            raise AuthenticationError(FAILED) from error
        except (
            JoseError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
        ) as error:
            raise AuthenticationError(FAILED) from error
        return claims
