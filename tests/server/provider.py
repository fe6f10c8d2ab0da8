"""An identity provider for tests: signs tokens, and has a JWKS."""

from __future__ import annotations

from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey

ISSUER = "https://identity.example/"
AUDIENCE = "raftlog"


class Provider:
    def __init__(self, kid: str = "k1") -> None:
        self.key = ECKey.generate_key("P-256", {"kid": kid, "alg": "ES256", "use": "sig"})

    def jwks(self, *others: Provider) -> dict[str, Any]:
        keys = (self, *others)
        return {"keys": [each.key.as_dict(private=False) for each in keys]}

    def token(self, now: float, *, kid: str | None = None, **claims: Any) -> str:
        """A token for alice that is valid for 60 s; a claim of None is left out."""
        wanted = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": int(now) + 60, **claims}
        given = {name: value for name, value in wanted.items() if value is not None}
        return jwt.encode({"alg": "ES256", "kid": kid or self.key.kid}, given, self.key)
