"""SASL exchanges: both sides of each mechanism, step by step."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import AuthenticationError
from raftlog.security.acl import Principal
from raftlog.security.credentials import CredentialStore, User
from raftlog.security.sasl import (
    FAILED,
    Accepted,
    ClientExchange,
    Exchange,
    PlainClientExchange,
    PlainExchange,
    ScramClientExchange,
    ScramExchange,
    make_credentials,
)

PASSWORD = "correct horse"
ENTROPY = random.Random(3).randbytes
STORE = CredentialStore({"alice": User("alice", make_credentials(PASSWORD, ENTROPY))}, b"s" * 32)

Pair = tuple[Exchange, ClientExchange]


def scram(password: str) -> Pair:
    client = ScramClientExchange("SCRAM-SHA-256", "alice", password, ENTROPY)
    return ScramExchange("SCRAM-SHA-256", STORE, ENTROPY), client


def plain(password: str) -> Pair:
    return PlainExchange(STORE), PlainClientExchange("alice", password)


PAIRS: list[Callable[[str], Pair]] = [scram, plain]


def run(pair: Pair) -> Accepted:
    broker, client = pair
    answer = broker.step(client.first())
    while isinstance(answer, bytes):
        answer = broker.step(client.next(answer))
    client.end(answer.data)
    return answer


@pytest.mark.parametrize("pair", PAIRS)
def test_the_right_password_gives_the_principal(pair: Callable[[str], Pair]) -> None:
    accepted = run(pair(PASSWORD))
    assert accepted.principal == Principal("User", "alice")
    assert accepted.used is not None
    assert STORE.has(accepted.used)


@pytest.mark.parametrize("pair", PAIRS)
def test_another_password_gives_none(pair: Callable[[str], Pair]) -> None:
    with pytest.raises(AuthenticationError) as caught:
        run(pair("another password"))
    assert str(caught.value) == FAILED


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"alice",
        b"\0alice",
        b"\0\0" + PASSWORD.encode(),
        b"\0alice\0" + PASSWORD.encode() + b"\0",
        b"bob\0alice\0" + PASSWORD.encode(),
        b"\0nobody\0" + PASSWORD.encode(),
        b"\0alice\0" + b"x" * (limits.PASSWORD_CHARS_MAX + 1),
        b"\0" + b"x" * 300 + b"\0" + PASSWORD.encode(),
        b"\0alice\0\xff",
    ],
)
def test_other_plain_messages_are_rejected(message: bytes) -> None:
    with pytest.raises(AuthenticationError) as caught:
        PlainExchange(STORE).step(message)
    assert str(caught.value) == FAILED


def test_a_client_may_name_itself_as_the_identity() -> None:
    assert (
        PlainExchange(STORE).step(b"alice\0alice\0" + PASSWORD.encode()).principal.name == "alice"
    )


def test_a_client_of_scram_wants_a_proof() -> None:
    _, client = scram(PASSWORD)
    client.first()
    with pytest.raises(AuthenticationError, match="without a proof"):
        client.end(b"")
    with pytest.raises(AuthenticationError, match="PLAIN has no challenge"):
        PlainClientExchange("alice", PASSWORD).next(b"x")


@given(st.lists(st.binary(max_size=100), max_size=4), st.booleans())
def test_any_messages_end_in_an_error_or_a_challenge(messages: list[bytes], is_plain: bool) -> None:
    broker, _ = plain(PASSWORD) if is_plain else scram(PASSWORD)
    for message in messages:
        try:
            assert isinstance(broker.step(message), bytes)
        except AuthenticationError:
            return


@pytest.mark.nightly
@settings(max_examples=200_000, deadline=None)
@given(st.lists(st.binary(max_size=2_000), max_size=4), st.booleans())
def test_any_messages_for_a_long_time(messages: list[bytes], is_plain: bool) -> None:
    broker, _ = plain(PASSWORD) if is_plain else scram(PASSWORD)
    for message in messages:
        try:
            assert isinstance(broker.step(message), bytes)
        except AuthenticationError:
            return


def test_texts_show_no_password() -> None:
    for pair in PAIRS:
        assert PASSWORD not in repr(pair(PASSWORD))
