"""The credentials of users, and those of names that no user has."""

from __future__ import annotations

import random

from raftlog.security.credentials import (
    SALT_BYTES,
    SCRAM_MECHANISMS,
    CredentialStore,
    Mechanism,
    ScramCredential,
    UsedCredential,
    User,
    of_salted_password,
)

random_bytes = random.Random(2).randbytes


def credential(salt_bytes: int = 16, iterations: int = 8_192) -> ScramCredential:
    salt = random_bytes(salt_bytes)
    return of_salted_password("SCRAM-SHA-256", random_bytes(32), salt=salt, iterations=iterations)


def user(name: str, *mechanisms: Mechanism) -> User:
    return User(name, {mechanism: credential() for mechanism in mechanisms})


def test_a_user_has_its_credential() -> None:
    alice = user("alice", "SCRAM-SHA-256")
    store = CredentialStore({"alice": alice}, b"s")
    found = store.find("alice", "SCRAM-SHA-256")
    assert found == alice.credentials["SCRAM-SHA-256"]
    assert store.has(UsedCredential("alice", "SCRAM-SHA-256", found))


def test_a_changed_or_deleted_credential_is_not_current() -> None:
    used = UsedCredential("alice", "SCRAM-SHA-256", credential())
    assert not CredentialStore({}, b"s").has(used)
    assert not CredentialStore({"alice": user("alice", "SCRAM-SHA-256")}, b"s").has(used)
    assert not CredentialStore({"alice": user("alice", "SCRAM-SHA-512")}, b"s").has(used)


def test_a_mock_is_stable_secret_and_belongs_to_no_user() -> None:
    store = CredentialStore({"alice": user("alice", "SCRAM-SHA-256")}, b"s")
    for mechanism in SCRAM_MECHANISMS:
        mock = store.find("bob", mechanism)
        assert mock == CredentialStore({}, b"s").find("bob", mechanism) or mechanism == (
            "SCRAM-SHA-256"
        )
        assert mock == store.find("bob", mechanism)
        assert mock != store.find("carol", mechanism)
        assert mock != CredentialStore({}, b"other").find("bob", mechanism)
        assert not store.has(UsedCredential("bob", mechanism, mock))


def test_a_mock_looks_like_the_credential_of_a_user() -> None:
    shapes = {(16, 8_192), (26, 4_096)}
    users = {
        f"u{number}": User(f"u{number}", {"SCRAM-SHA-256": credential(*shape)})
        for number, shape in enumerate(sorted(shapes))
    }
    store = CredentialStore(users, b"s")
    mocks = [store.find(f"no-{number}", "SCRAM-SHA-256") for number in range(50)]
    assert {(len(mock.salt), mock.iterations) for mock in mocks} == shapes
    empty = store.find("no-one", "SCRAM-SHA-512")
    assert len(empty.salt) == SALT_BYTES
    assert len(empty.stored_key) == 64


def test_a_plain_password_is_verified_by_a_mechanism_that_users_have() -> None:
    store = CredentialStore({"a": user("a", "SCRAM-SHA-512")}, b"s")
    assert store.mechanism_of("a") == store.mechanism_of("no-one") == "SCRAM-SHA-512"
    both = CredentialStore({"a": user("a", *SCRAM_MECHANISMS)}, b"s")
    assert both.mechanism_of("a") == both.mechanism_of("no-one") == "SCRAM-SHA-256"
    assert CredentialStore({}, b"").mechanism_of("no-one") == "SCRAM-SHA-256"
