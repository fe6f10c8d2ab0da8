"""SCRAM: the example of RFC 7677, both sides together, and what a broker rejects."""

from __future__ import annotations

import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import AuthenticationError, InvalidRequestError
from raftlog.security.credentials import SCRAM_MECHANISMS, CredentialStore, Mechanism, User
from raftlog.security.sasl import (
    FAILED,
    NONCE_BYTES,
    ScramClient,
    ScramServer,
    is_password,
    make_credential,
    make_credentials,
)

PASSWORD = "correct horse"
CREDENTIALS = make_credentials(PASSWORD, random.Random(1).randbytes)
STORE = CredentialStore({"alice": User("alice", CREDENTIALS)}, b"s" * 32)


def exchange(mechanism: Mechanism, user: str, password: str) -> str:
    """The user that the broker accepts; the client then knows that the broker is no impostor."""
    client = ScramClient(mechanism, user, password, b"c" * NONCE_BYTES)
    server = ScramServer(STORE, mechanism, b"s" * NONCE_BYTES)
    used, proof = server.final(client.final(server.first(client.first())))
    client.check(proof)
    assert used.credential == CREDENTIALS[mechanism]
    return used.user


def test_the_keys_are_those_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    made = make_credential("SCRAM-SHA-256", "pencil" + " " * 2, salt=salt)
    assert not is_password(made, "SCRAM-SHA-256", "pencil")
    # The RFC's password is shorter than raftlog permits: its example, by the functions below it.
    from scramp import ScramMechanism

    server = ScramMechanism("SCRAM-SHA-256").make_server(
        lambda _user: ScramMechanism("SCRAM-SHA-256").make_auth_info("pencil", 4096, salt),
        s_nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    )
    server.set_client_first("n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    server.get_server_first()
    server.set_client_final(
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert server.get_server_final() == "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_a_user_with_its_password_is_accepted(mechanism: Mechanism) -> None:
    assert exchange(mechanism, "alice", PASSWORD) == "alice"


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_a_wrong_password_and_an_unknown_user_are_rejected_alike(
    mechanism: Mechanism, user: str
) -> None:
    with pytest.raises(AuthenticationError) as caught:
        exchange(mechanism, user, "another password")
    assert str(caught.value) == FAILED


def test_a_challenge_does_not_show_whether_the_user_exists() -> None:
    def challenge(user: str) -> dict[str, str]:
        client = ScramClient("SCRAM-SHA-256", user, PASSWORD, b"c" * NONCE_BYTES)
        server = ScramServer(STORE, "SCRAM-SHA-256", b"s" * NONCE_BYTES)
        parts = server.first(client.first()).decode().split(",")
        return dict(part.split("=", 1) for part in parts)

    known, unknown = challenge("alice"), challenge("nobody")
    assert unknown == challenge("nobody"), "the same salt each time"
    assert known["i"] == unknown["i"]
    assert len(known["s"]) == len(unknown["s"])


def test_an_impostor_is_found_out() -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", PASSWORD, b"c" * NONCE_BYTES)
    other = CredentialStore({}, b"s" * 32)
    client.final(ScramServer(other, "SCRAM-SHA-256", b"s" * NONCE_BYTES).first(client.first()))
    with pytest.raises(AuthenticationError, match="impostor"):
        client.check(b"v=" + base64.b64encode(bytes(32)))


def test_a_broker_cannot_make_a_client_work_for_ever() -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", PASSWORD, b"c" * NONCE_BYTES)
    nonce = client.first().decode().rpartition("r=")[2]
    salt = base64.b64encode(bytes(16)).decode()
    with pytest.raises(AuthenticationError, match=f"limit of {limits.SCRAM_ITERATIONS_MAX}"):
        client.final(f"r={nonce}abc,s={salt},i=9999999".encode())


@pytest.mark.parametrize("password", ["short", "x" * 257, "control \x07 char", "\ud800" * 8])
def test_other_passwords_are_rejected_without_repeating_them(password: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        make_credentials(password, bytes)
    assert password not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_password_is_compared_by_its_keys() -> None:
    for mechanism, credential in CREDENTIALS.items():
        assert is_password(credential, mechanism, PASSWORD)
        assert not is_password(credential, mechanism, PASSWORD + "!")
        assert not is_password(credential, mechanism, "\x07")


FIRST = b"n,,n=alice,r=" + b"c" * 48


@given(
    st.one_of(
        st.binary(max_size=64),
        st.text("nry=,pa-\x00é", max_size=40).map(str.encode),
        st.tuples(st.integers(0, len(FIRST)), st.binary(max_size=4)).map(
            lambda cut: FIRST[: cut[0]] + cut[1] + FIRST[cut[0] + 1 :]
        ),
        st.just(FIRST + b"x" * limits.SCRAM_MESSAGE_BYTES_MAX),
    ),
    st.binary(max_size=64),
)
def test_any_first_and_final_message_is_accepted_or_rejected(first: bytes, final: bytes) -> None:
    server = ScramServer(STORE, "SCRAM-SHA-256", b"s" * NONCE_BYTES)
    try:
        challenge = server.first(first)
    except AuthenticationError:
        return
    nonce = challenge.split(b",")[0]
    with pytest.raises(AuthenticationError):
        server.final(b"c=biws," + nonce + b",p=" + base64.b64encode(final))


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_any_challenge_and_proof_is_accepted_or_rejected(challenge: bytes, proof: bytes) -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", PASSWORD, b"c" * NONCE_BYTES)
    client.first()
    with pytest.raises(AuthenticationError):
        client.final(challenge)
    with pytest.raises(AuthenticationError):
        client.check(proof)
