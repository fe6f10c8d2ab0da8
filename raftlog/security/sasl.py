"""SASL exchanges (RFC 4422): authentication mechanisms as state machines, bytes in, bytes out.

An exchange belongs to one connection and one attempt. ``PLAIN`` (RFC 4616) is for encrypted
connections only: the client sends its password.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from raftlog import limits
from raftlog.errors import AuthenticationError
from raftlog.security.credentials import CredentialStore, UsedCredential
from raftlog.security.principal import USER, Principal
from raftlog.security.scram import FAILED, NONCE_BYTES, ScramClient, ScramServer, is_password
from raftlog.security.users import SCRAM_MECHANISMS, Mechanism

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final[tuple[str, ...]] = (*SCRAM_MECHANISMS, PLAIN)

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
