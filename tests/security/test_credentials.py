"""The credentials of users, and those of names that no user has."""

from __future__ import annotations

import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import AuthenticationError, InvalidRequestError, TokenExpiredError
from raftlog.security.acl import Principal
from raftlog.security.credentials import (
    HMAC_BYTES,
    KEY_BYTES,
    SALT_BYTES,
    SCRAM_MECHANISMS,
    SCRAM_SHA_256,
    CredentialStore,
    DelegationToken,
    FailureLimit,
    Mechanism,
    ScramCredential,
    UsedCredential,
    User,
    VerifiedPasswords,
    check_user_name,
    digest_of,
    make_token,
    of_salted_password,
    password_of,
    with_expiry,
)
from raftlog.security.sasl import (
    DELEGATED,
    FAILED,
    NONCE_BYTES,
    ScramClient,
    ScramServer,
    is_password,
    make_credential,
    make_credentials,
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


# -- delegation ------------------------------------------------------------------------------------
#
# Delegation tokens: what the cluster stores of them, their lifetime, and the exchange.


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


# -- failures --------------------------------------------------------------------------------------
#
# Failures by source address: limited, forgiven, and bounded in memory.


MOST = limits.AUTHENTICATION_FAILURES_MAX


def failed(count: int, host: str = "10.0.0.1", at: float = 0.0) -> FailureLimit:
    failures = FailureLimit()
    for _ in range(count):
        failures.note(host, at)
    return failures


def test_an_address_may_fail_some_times() -> None:
    assert not failed(MOST - 1).is_reached("10.0.0.1", 0.0)
    assert failed(MOST).is_reached("10.0.0.1", 0.0)
    assert not failed(MOST).is_reached("10.0.0.2", 0.0), "each address counts for itself"


def test_failures_are_forgiven_with_time() -> None:
    failures = failed(MOST)
    assert not failures.is_reached("10.0.0.1", limits.AUTHENTICATION_FAILURE_S)
    failures.note("10.0.0.1", limits.AUTHENTICATION_FAILURE_S)
    assert failures.is_reached("10.0.0.1", limits.AUTHENTICATION_FAILURE_S)
    assert not failures.is_reached("10.0.0.1", 1_000.0)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2", True),
        ("local", "local", True),
    ],
)
def test_addresses_of_one_host_count_together(one: str, other: str, is_same: bool) -> None:
    assert failed(MOST, one).is_reached(other, 0.0) is is_same


def test_a_bounded_number_of_addresses_is_remembered() -> None:
    failures = failed(MOST, "first")
    for number in range(limits.FAILING_ADDRESSES_MAX):
        failures.note(f"h{number}", 0.0)
    assert not failures.is_reached("first", 0.0)


# -- passwords -------------------------------------------------------------------------------------
#
# Passwords that are remembered: for how long, how many, and for whom.


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


# -- scram -----------------------------------------------------------------------------------------
#
# SCRAM: the example of RFC 7677, both sides together, and what a broker rejects.


PASSWORD = "correct horse"
SCRAM_CREDENTIALS = make_credentials(PASSWORD, random.Random(1).randbytes)
SCRAM_STORE = CredentialStore({"alice": User("alice", SCRAM_CREDENTIALS)}, b"s" * 32)


def scram_exchange(mechanism: Mechanism, user: str, password: str) -> str:
    """The user that the broker accepts; the client then knows that the broker is no impostor."""
    client = ScramClient(mechanism, user, password, b"c" * NONCE_BYTES)
    server = ScramServer(SCRAM_STORE, mechanism, b"s" * NONCE_BYTES)
    used, proof = server.final(client.final(server.first(client.first())))
    client.check(proof)
    assert used.credential == SCRAM_CREDENTIALS[mechanism]
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
    assert scram_exchange(mechanism, "alice", PASSWORD) == "alice"


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_a_wrong_password_and_an_unknown_user_are_rejected_alike(
    mechanism: Mechanism, user: str
) -> None:
    with pytest.raises(AuthenticationError) as caught:
        scram_exchange(mechanism, user, "another password")
    assert str(caught.value) == FAILED


def test_a_challenge_does_not_show_whether_the_user_exists() -> None:
    def challenge(user: str) -> dict[str, str]:
        client = ScramClient("SCRAM-SHA-256", user, PASSWORD, b"c" * NONCE_BYTES)
        server = ScramServer(SCRAM_STORE, "SCRAM-SHA-256", b"s" * NONCE_BYTES)
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
    for mechanism, credential in SCRAM_CREDENTIALS.items():
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
    server = ScramServer(SCRAM_STORE, "SCRAM-SHA-256", b"s" * NONCE_BYTES)
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


# -- users -----------------------------------------------------------------------------------------
#
# Users: their names, and credentials that show no key.


SALTED = bytes(range(32))


@pytest.mark.parametrize("name", ["alice", "Zoë", "svc-1@example.org", "a b"])
def test_a_name_is_returned(name: str) -> None:
    assert check_user_name(name) == name


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257, "ﬁ", "a\u00a0b"])
def test_a_name_that_sasl_would_change_is_rejected(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_user_name(name)


def test_a_salted_password_gives_the_keys_of_the_password() -> None:
    import hashlib

    salt = b"salt of 16 bytes"
    salted = hashlib.pbkdf2_hmac("sha512", b"the password", salt, 4_096)
    made = of_salted_password("SCRAM-SHA-512", salted, salt=salt, iterations=4_096)
    assert made == make_credential("SCRAM-SHA-512", "the password", salt=salt, iterations=4_096)


@pytest.mark.parametrize(
    ("salt_bytes", "iterations"), [(11, 4_096), (129, 4_096), (16, 4_095), (16, 16_385)]
)
def test_values_out_of_bounds_are_rejected(salt_bytes: int, iterations: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"{iterations} iterations and a salt of"):
        of_salted_password("SCRAM-SHA-256", SALTED, salt=bytes(salt_bytes), iterations=iterations)


def test_the_text_of_a_user_has_no_keys() -> None:
    made = of_salted_password("SCRAM-SHA-256", SALTED, salt=b"0123456789abcdef", iterations=4_096)
    text = repr(User("alice", {"SCRAM-SHA-256": made}))
    assert "4096" in text
    assert not any(repr(secret)[2:-1] in text for secret in (made.salt, made.stored_key))
