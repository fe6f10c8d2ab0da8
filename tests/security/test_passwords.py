"""Passwords that are remembered: for how long, how many, and for whom."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.security.credentials import (
    KEY_BYTES,
    SCRAM_SHA_256,
    CredentialStore,
    UsedCredential,
    User,
    VerifiedPasswords,
)
from raftlog.security.sasl import make_credentials

CREDENTIALS = make_credentials("a password", bytes)
USED = UsedCredential("alice", SCRAM_SHA_256, CREDENTIALS[SCRAM_SHA_256])
STORE = CredentialStore({"alice": User("alice", CREDENTIALS)}, b"")


@pytest.fixture
def verified() -> VerifiedPasswords:
    made = VerifiedPasswords(bytes(KEY_BYTES))
    made.put("alice", "a password", USED, now=0.0)
    return made


def test_a_password_is_remembered_for_a_time(verified: VerifiedPasswords) -> None:
    kept = limits.HTTP_CREDENTIAL_KEPT_S
    assert verified.find("alice", "a password", STORE, now=kept - 1) == USED
    assert verified.find("alice", "another one", STORE, now=0.0) is None
    assert verified.find("bob", "a password", STORE, now=0.0) is None
    assert verified.find("alice", "a password", STORE, now=kept) is None


def test_a_password_is_forgotten_with_its_credential(verified: VerifiedPasswords) -> None:
    assert verified.find("alice", "a password", CredentialStore({}, b""), now=0.0) is None
    assert verified.find("alice", "a password", STORE, now=0.0) is None


def test_few_passwords_are_remembered(
    verified: VerifiedPasswords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_CREDENTIALS_KEPT_MAX", 2)
    for number in range(2):
        verified.put("alice", str(number), USED, now=0.0)
    assert verified.find("alice", "a password", STORE, now=0.0) is None
    assert verified.find("alice", "0", STORE, now=0.0) == USED
    assert b"a password" not in repr(vars(verified)).encode()
