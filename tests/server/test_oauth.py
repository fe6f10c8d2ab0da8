"""Which tokens are accepted, and as whom."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from raftlog import limits
from raftlog.errors import AuthenticationError, ClusterNotReadyError
from raftlog.security.sasl import Accepted
from raftlog.server.oauth import Keys, TokenExchange, TokenSettings
from tests.server.provider import AUDIENCE, ISSUER, Provider

NOW = 1_700_000_000
PROVIDER = Provider()
KEYS = Keys()
KEYS.set(PROVIDER.jwks())


def step(
    token: str, *, claim: str = "sub", keys: Keys = KEYS, before: bytes = b"n,,\x01"
) -> Accepted:
    settings = TokenSettings(ISSUER, AUDIENCE, claim, clock_skew_seconds=30)
    message = before + b"auth=Bearer " + token.encode() + b"\x01\x01"
    return TokenExchange(settings, keys, float(NOW)).step(message)


def test_a_token_of_the_provider_names_the_principal() -> None:
    found = step(PROVIDER.token(NOW))
    assert (str(found.principal), found.used, found.lifetime_seconds) == ("User:alice", None, 60)
    found = step(PROVIDER.token(NOW, email="bob", aud=["x", AUDIENCE]), claim="email")
    assert str(found.principal) == "User:bob"
    found = step(PROVIDER.token(NOW), before=b"n,a=alice,\x01host=x\x01port=1\x01")
    assert str(found.principal) == "User:alice"
    assert step(PROVIDER.token(NOW, exp=NOW - 20)).lifetime_seconds == 1  # the clocks may differ
    long = step(PROVIDER.token(NOW, exp=NOW + 10**9))
    assert long.lifetime_seconds == limits.TOKEN_LIFETIME_S_MAX


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://other.example/"},
        {"iss": None},
        {"aud": "another service"},
        {"aud": None},
        {"exp": NOW - 31},
        {"exp": None},
        {"exp": "soon"},
        {"nbf": NOW + 60},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "a\nb"},
    ],
)
def test_other_claims_are_rejected(claims: dict[str, Any]) -> None:
    with pytest.raises(AuthenticationError, match="invalid_token"):
        step(PROVIDER.token(NOW, **claims))


def unsigned(algorithm: str) -> str:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW + 60}
    parts = ({"alg": algorithm, "kid": "k1"}, claims)
    encoded = [base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=") for p in parts]
    return b".".join((*encoded, b"")).decode()


def test_only_signatures_of_the_provider_count() -> None:
    public = json.dumps(PROVIDER.jwks()["keys"][0])
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW + 60}
    confused = jwt.encode({"alg": "HS256", "kid": "k1"}, claims, OctKey.import_key(public))
    head, body, signature = PROVIDER.token(NOW).split(".")
    for token in (
        unsigned("none"),
        confused,
        Provider("k1").token(NOW),
        f"{head}.{body}.{signature[::-1]}",
        f"{head}.{body}",
        "x",
        "x." * 3_000,
    ):
        with pytest.raises(AuthenticationError):
            step(token)


@pytest.mark.parametrize(
    "before", [b"", b"y,,\x01", b"n,,", b"n,a=bob,\x01", b"n,,\x01auth=Basic\x01x"]
)
def test_malformed_messages_and_other_users_are_rejected(before: bytes) -> None:
    with pytest.raises(AuthenticationError):
        step(PROVIDER.token(NOW), before=before)


def test_a_long_message_is_rejected_at_once() -> None:
    with pytest.raises(AuthenticationError):
        step("x" * limits.SASL_MESSAGE_BYTES_MAX)


def test_a_new_key_is_waited_for() -> None:
    newer = Provider("k2")
    keys = Keys()
    with pytest.raises(ClusterNotReadyError):
        step(PROVIDER.token(NOW), keys=keys)
    keys.set(PROVIDER.jwks())
    with pytest.raises(AuthenticationError):
        step(newer.token(NOW), keys=keys)
    keys.may_load = lambda: True
    with pytest.raises(ClusterNotReadyError):
        step(newer.token(NOW), keys=keys)
    keys.set(PROVIDER.jwks(newer))
    assert step(newer.token(NOW), keys=keys).principal.name == "alice"


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"keys": []},
        {"keys": [{"kty": "?"}]},
        {"keys": [{"kty": "oct", "k": "YWFhYWFhYWFhYWFhYWFhYQ"}]},
    ],
)
def test_only_public_keys_are_used(document: Any) -> None:
    keys = Keys()
    with pytest.raises(ValueError, match="it "):
        keys.set(document)
    assert keys.current is None
