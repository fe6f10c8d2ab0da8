"""Delegation tokens: what the cluster stores of them, their lifetime, and the exchange."""

from __future__ import annotations

import random

import pytest

from raftlog import limits
from raftlog.errors import AuthenticationError, InvalidRequestError, TokenExpiredError
from raftlog.security.acl import Principal
from raftlog.security.credentials import (
    HMAC_BYTES,
    SCRAM_MECHANISMS,
    CredentialStore,
    DelegationToken,
    Mechanism,
    User,
    digest_of,
    make_token,
    password_of,
    with_expiry,
)
from raftlog.security.sasl import DELEGATED, NONCE_BYTES, ScramClient, ScramServer

HMAC = b"h" * HMAC_BYTES


def made(*renewers: str, lifetime_ms: int = 1_000, renewal_ms: int = 100) -> DelegationToken:
    return make_token(
        owner=Principal("User", "alice"),
        renewers=renewers,
        hmac=HMAC,
        now_ms=5_000,
        lifetime_ms=lifetime_ms,
        renewal_ms=renewal_ms,
        entropy=random.Random(1).randbytes,
    )


TOKEN = made("User:bob", "User:bob")


def test_a_token_contains_no_secret() -> None:
    assert (TOKEN.owner, TOKEN.renewers) == ("User:alice", ("User:bob",))
    assert TOKEN.digest == digest_of(HMAC)
    assert [TOKEN.may_renew(f"User:{name}") for name in ("alice", "bob", "eve")] == [1, 1, 0]
    assert password_of(HMAC) not in repr(TOKEN)
    assert TOKEN.digest.hex() not in repr(TOKEN)
    assert repr(TOKEN.digest) not in repr(TOKEN)


def test_a_lifetime_is_extended_up_to_the_maximum() -> None:
    assert (TOKEN.issued_ms, TOKEN.expires_ms, TOKEN.max_ms) == (5_000, 5_100, 6_000)
    assert made(lifetime_ms=50).expires_ms == 5_050
    renewed = with_expiry(TOKEN, 5_200, 5_099)
    assert renewed is not None
    assert renewed.expires_ms == 5_200
    assert with_expiry(TOKEN, 9_000, 5_099) == with_expiry(TOKEN, 6_000, 5_099)
    assert with_expiry(TOKEN, 5_050, 5_050) is None
    assert with_expiry(TOKEN, 5_200, 5_200) is None, "an expired one can be removed"
    with pytest.raises(TokenExpiredError):
        with_expiry(TOKEN, 5_200, 5_100)


def test_renewers_are_principals_and_few() -> None:
    with pytest.raises(InvalidRequestError, match="is not a principal"):
        made("bob")
    count = limits.DELEGATION_TOKEN_RENEWERS_MAX + 1
    with pytest.raises(InvalidRequestError, match="11 renewers"):
        made(*(f"User:{number}" for number in range(count)))


USER = User(TOKEN.id, TOKEN.credentials)  # a user whose name is that of the token


def exchange(
    mechanism: Mechanism, name: str, password: str, store: CredentialStore, *, is_token: bool = True
) -> tuple[str, str]:
    """The user and the token that the broker accepts; the broker has proved what it knows."""
    client = ScramClient(mechanism, name, password, b"c" * NONCE_BYTES, is_token=is_token)
    server = ScramServer(store, mechanism, b"s" * NONCE_BYTES)
    first = client.first()
    assert first.endswith(DELEGATED.encode()) == is_token
    used, proof = server.final(client.final(server.first(first)))
    client.check(proof)
    assert store.has(used)
    return used.user, used.token


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_a_token_authenticates_its_owner(mechanism: Mechanism) -> None:
    store = CredentialStore({}, b"s", {TOKEN.id: TOKEN})
    assert exchange(mechanism, TOKEN.id, password_of(HMAC), store) == ("alice", TOKEN.id)
    for name, hmac in ((TOKEN.id, b"x"), ("0" * 32, HMAC)):
        with pytest.raises(AuthenticationError):
            exchange(mechanism, name, password_of(hmac), store)


def test_tokens_and_users_are_not_confused() -> None:
    tokens = CredentialStore({}, b"s", {TOKEN.id: TOKEN})
    users = CredentialStore({TOKEN.id: USER}, b"s")
    with pytest.raises(AuthenticationError):
        exchange("SCRAM-SHA-256", TOKEN.id, password_of(HMAC), tokens, is_token=False)
    with pytest.raises(AuthenticationError):
        exchange("SCRAM-SHA-256", TOKEN.id, password_of(HMAC), users)


def test_a_removed_token_is_no_credential() -> None:
    tokens = {TOKEN.id: TOKEN}
    store = CredentialStore({}, b"s", tokens)
    used = store.find_token(TOKEN.id, "SCRAM-SHA-256")
    assert store.has(used)
    del tokens[TOKEN.id]
    assert not store.has(used)
