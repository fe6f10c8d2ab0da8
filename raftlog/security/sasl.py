"""Exchanges of SASL: PLAIN, SCRAM and delegation tokens."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from scramp import ScramClient as _Client
from scramp import ScramException, ScramMechanism

from raftlog import limits
from raftlog.errors import AuthenticationError, InvalidRequestError
from raftlog.security.acl import USER, Principal
from raftlog.security.credentials import (
    SALT_BYTES,
    SCRAM_MECHANISMS,
    CredentialStore,
    Mechanism,
    ScramCredential,
    UsedCredential,
)

# -- scram -----------------------------------------------------------------------------------------
#
# SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): credentials, and both sides of an exchange.
#
# `scramp` implements the protocol. Random numbers are arguments. A broker verifies a proof with a
# few hashes. The side that has the password computes the iterations: ``make_credential``,
# ``ScramClient.final``.


NONCE_BYTES: Final = 24
# Kafka's extension (KIP-48): the user name is the ID of a delegation token. RFC 5802 permits names
# of one letter only, and `scramp` rejects this one, so it is added and removed around `scramp`.
DELEGATED: Final = ",tokenauth=true"
# The same for a wrong password, an unknown user and a malformed message.
FAILED: Final = (
    "authentication failed: the user name or the password is wrong, or the user has no credential "
    "of this mechanism. Check sasl_username, sasl_password and sasl_mechanism"
)


def make_credential(
    mechanism: Mechanism,
    password: str,
    *,
    salt: bytes,
    iterations: int = limits.SCRAM_ITERATIONS_DEFAULT,
) -> ScramCredential:
    """Return the credential of a password. Takes milliseconds of CPU.

    ``salt``: ``SALT_BYTES`` random bytes. Raises ``InvalidRequestError`` if the password
    is too short or too long, or has characters that SASL does not permit.
    """
    if not limits.PASSWORD_CHARS_MIN <= len(password) <= limits.PASSWORD_CHARS_MAX:
        raise InvalidRequestError(
            f"the password has {len(password)} characters. Use {limits.PASSWORD_CHARS_MIN} to "
            f"{limits.PASSWORD_CHARS_MAX}"
        )
    try:
        _, stored, server, _ = ScramMechanism(mechanism).make_auth_info(
            password, iteration_count=iterations, salt=salt
        )
    except (ScramException, UnicodeEncodeError):  # their texts may contain the password
        raise InvalidRequestError(
            "the password has characters that SASL does not permit (RFC 4013). Use letters, "
            "digits and punctuation"
        ) from None
    return ScramCredential(iterations=iterations, salt=salt, stored_key=stored, server_key=server)


def make_credentials(
    password: str, salt: Callable[[int], bytes]
) -> dict[Mechanism, ScramCredential]:
    """Return the credentials of a password for all mechanisms. ``salt``: returns random bytes."""
    return {
        mechanism: make_credential(mechanism, password, salt=salt(SALT_BYTES))
        for mechanism in SCRAM_MECHANISMS
    }


def is_password(credential: ScramCredential, mechanism: Mechanism, password: str) -> bool:
    """Return whether the password is that of the credential. Takes milliseconds of CPU."""
    try:
        _, stored, _, _ = ScramMechanism(mechanism).make_auth_info(
            password, iteration_count=credential.iterations, salt=credential.salt
        )
    except (ScramException, UnicodeEncodeError):
        return False
    return hmac.compare_digest(stored, credential.stored_key)


class ScramServer:
    """The broker's side of one exchange: ``first``, then ``final``."""

    def __init__(self, store: CredentialStore, mechanism: Mechanism, nonce: bytes) -> None:
        """``nonce``: ``NONCE_BYTES`` random bytes."""
        self._store = store
        self._mechanism: Mechanism = mechanism
        self._is_token = False
        self._used: UsedCredential | None = None
        self._server = ScramMechanism(mechanism).make_server(self._find, s_nonce=nonce.hex())

    def _find(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self._used = used = (
            self._store.find_token(name, self._mechanism)
            if self._is_token
            else UsedCredential(name, self._mechanism, self._store.find(name, self._mechanism))
        )
        found = used.credential
        return found.salt, found.stored_key, found.server_key, found.iterations

    def first(self, data: bytes) -> bytes:
        """Return the challenge for the first message. Raises ``AuthenticationError``."""
        if len(data) > limits.SCRAM_MESSAGE_BYTES_MAX:  # SASLprep takes microseconds per character
            raise AuthenticationError(FAILED)
        try:
            message = data.decode()
            bare = message.removesuffix(DELEGATED)
            self._is_token = bare != message
            self._server.set_client_first(bare)
            if self._is_token:  # the proof is for the message as the client sent it
                self._server.client_first_bare += DELEGATED
            challenge: str = self._server.get_server_first()
        except (ScramException, UnicodeError, LookupError, ValueError):
            raise AuthenticationError(FAILED) from None
        return challenge.encode()

    def final(self, data: bytes) -> tuple[UsedCredential, bytes]:
        """Verify the proof. Return the used credential and the broker's proof.

        Raises ``AuthenticationError`` if the proof is wrong.
        """
        assert self._used is not None, "first() must be called before final()"
        try:
            self._server.set_client_final(data.decode())
            proof: str = self._server.get_server_final()
        except (ScramException, UnicodeError, LookupError, ValueError):
            raise AuthenticationError(FAILED) from None
        return self._used, proof.encode()


class ScramClient:
    """The client's side of one exchange."""

    def __init__(
        self,
        mechanism: Mechanism,
        user: str,
        password: str,
        nonce: bytes,
        *,
        is_token: bool = False,
    ) -> None:
        """``nonce``: ``NONCE_BYTES`` random bytes. ``is_token``: user and password are ID and HMAC
        of a delegation token.
        """
        self._extension = DELEGATED if is_token else ""
        try:
            self._client = _Client([mechanism], user, password, c_nonce=nonce.hex())
        except (ScramException, UnicodeEncodeError):
            raise AuthenticationError(
                "sasl_username or sasl_password has characters that SASL does not permit"
            ) from None

    def first(self) -> bytes:
        """Return the first message."""
        message: str = self._client.get_client_first()
        self._client.client_first_bare += self._extension
        return (message + self._extension).encode()

    def final(self, challenge: bytes) -> bytes:
        """Return the proof of the password. Takes milliseconds of CPU.

        Raises ``AuthenticationError`` if the challenge is invalid, or requests too much work.
        """
        try:
            self._client.set_server_first(challenge.decode())
            # guard: a client limits the iterations of SCRAM
            if int(self._client.iterations) > limits.SCRAM_ITERATIONS_MAX:
                raise AuthenticationError(
                    f"the broker requests {self._client.iterations} iterations of SCRAM, over the "
                    f"limit of {limits.SCRAM_ITERATIONS_MAX}"
                )
            message: str = self._client.get_client_final()
        except (ScramException, UnicodeError, LookupError, ValueError):
            raise AuthenticationError("the broker sent an invalid SCRAM challenge") from None
        return message.encode()

    def check(self, proof: bytes) -> None:
        """Verify the broker's proof. Raises ``AuthenticationError`` if it is wrong."""
        try:
            self._client.set_server_final(proof.decode())
        except (ScramException, UnicodeError, LookupError, ValueError):
            raise AuthenticationError(
                "the broker could not prove that it knows the credential of this user: it may be "
                "an impostor. Check the address of the broker"
            ) from None


# -- sasl ------------------------------------------------------------------------------------------
#
# SASL exchanges (RFC 4422): authentication mechanisms as state machines, bytes in, bytes out.
#
# An exchange belongs to one connection and one attempt. ``PLAIN`` (RFC 4616) is for encrypted
# connections only: the client sends its password.


PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"

Entropy = Callable[[int], bytes]


class Accepted(NamedTuple):
    """The end of a successful exchange.

    ``data``: last message of the broker. ``used``: credential of a user of the cluster; None if the
    principal is not such a user. ``lifetime_seconds``: of the session; None for no limit.
    """

    principal: Principal
    data: bytes
    used: UsedCredential | None
    lifetime_seconds: float | None = None


class Exchange(Protocol):
    """The broker's side of one attempt. ``is_costly``: ``step`` takes milliseconds of CPU.

    ``rejection``: challenge of a failed attempt, to which the client responds before it receives
    the error (RFC 7628, section 3.2.3); b"": none.
    """

    is_costly: bool
    rejection: bytes

    def step(self, data: bytes) -> bytes | Accepted:
        """Process a message of the client. Returns the next challenge, or the end.

        Raises ``AuthenticationError`` if the attempt failed. This ends the exchange.
        """
        ...


class ScramExchange:
    """SCRAM: two messages of the client."""

    is_costly = False
    rejection = b""

    def __init__(self, mechanism: Mechanism, store: CredentialStore, entropy: Entropy) -> None:
        self._server = ScramServer(store, mechanism, entropy(NONCE_BYTES))
        self._is_challenged = False

    def step(self, data: bytes) -> bytes | Accepted:
        if not self._is_challenged:
            self._is_challenged = True
            return self._server.first(data)
        used, proof = self._server.final(data)
        return Accepted(Principal(USER, used.user), proof, used)


class PlainExchange:
    """PLAIN: one message of the client, with its password."""

    is_costly = True
    rejection = b""

    def __init__(self, store: CredentialStore) -> None:
        self._store = store

    def step(self, data: bytes) -> Accepted:
        try:
            identity, user, password = data.decode().split("\0")
        except ValueError:  # also raised by the decoder
            raise AuthenticationError(FAILED) from None
        # A client cannot act as another user.
        is_valid = identity in ("", user) and max(map(len, (user, password))) <= _CHARS_MAX
        if not is_valid:
            raise AuthenticationError(FAILED)
        mechanism = self._store.mechanism_of(user)
        credential = self._store.find(user, mechanism)
        if not is_password(credential, mechanism, password):
            raise AuthenticationError(FAILED)
        return Accepted(Principal(USER, user), b"", UsedCredential(user, mechanism, credential))


_CHARS_MAX: Final = max(limits.PRINCIPAL_NAME_CHARS_MAX, limits.PASSWORD_CHARS_MAX)


class ClientExchange(Protocol):
    """The client's side of one attempt."""

    def first(self) -> bytes:
        """Return the first message."""
        ...

    def next(self, challenge: bytes) -> bytes:
        """Return the message for a challenge. May take milliseconds of CPU.

        Raises ``AuthenticationError`` if the broker's message is invalid.
        """
        ...

    def end(self, data: bytes) -> None:
        """Check the last message of the broker. Raises ``AuthenticationError``."""
        ...


class ScramClientExchange:
    """The client's side of SCRAM."""

    def __init__(
        self,
        mechanism: Mechanism,
        user: str,
        password: str,
        entropy: Entropy,
        *,
        is_token: bool = False,
    ) -> None:
        nonce = entropy(NONCE_BYTES)
        self._client = ScramClient(mechanism, user, password, nonce, is_token=is_token)
        self._is_proved = False

    def first(self) -> bytes:
        return self._client.first()

    def next(self, challenge: bytes) -> bytes:
        self._is_proved = True
        return self._client.final(challenge)

    def end(self, data: bytes) -> None:
        if not self._is_proved:
            raise AuthenticationError("the broker accepted the user without a proof")
        self._client.check(data)


class PlainClientExchange:
    """The client's side of PLAIN."""

    def __init__(self, user: str, password: str) -> None:
        self._message = f"\0{user}\0{password}".encode()

    def first(self) -> bytes:
        return self._message

    def next(self, challenge: bytes) -> bytes:
        raise AuthenticationError(f"PLAIN has no challenge, but the broker sent {len(challenge)} B")

    def end(self, data: bytes) -> None:
        """Do nothing: PLAIN has no proof of the broker, which TLS identifies."""
