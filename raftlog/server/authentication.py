"""Authentication on a broker: who may send requests, and how often an address may fail."""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.request
from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from raftlog import limits
from raftlog.config import BrokerConfig
from raftlog.errors import (
    AuthenticationError,
    ClusterNotReadyError,
    InvalidConfigError,
    InvalidRequestError,
    SessionEndedError,
    ThrottledError,
    UnsupportedFeatureError,
)
from raftlog.install import install_command
from raftlog.replication.cluster_state import ClusterMachine
from raftlog.security.acl import ANONYMOUS, Principal
from raftlog.security.credentials import (
    KEY_BYTES,
    SCRAM_MECHANISMS,
    CredentialStore,
    DelegationToken,
    FailureLimit,
    Mechanism,
    UsedCredential,
    VerifiedPasswords,
)
from raftlog.server.connection import Connection
from raftlog.server.scheduling import ThreadWork

if TYPE_CHECKING:
    from raftlog.security import sasl
    from raftlog.server.oauth import TokenExchange


# -- tokens ----------------------------------------------------------------------------------------
#
# Tokens of an identity provider: exchanges, and its public keys, which a thread loads.


logger = logging.getLogger(__name__)


class BrokerTokens:
    """Begins exchanges. Loads the keys periodically, and when a token has an unknown key: then at
    most once in ``JWKS_RETRY_S``.
    """

    def __init__(self, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> None:
        """Loads a file at once, and raises ``InvalidConfigError`` if that is not possible."""
        try:
            from raftlog.server import oauth
        except ImportError as error:
            raise InvalidConfigError(
                "sasl.oauthbearer.jwks.endpoint.url requires the package `joserfc`. Run "
                f"{install_command('security')} ({error})"
            ) from error

        self._exchange = oauth.TokenExchange
        self._settings = oauth.TokenSettings(
            issuer=config.sasl_oauthbearer_expected_issuer,
            audience=config.sasl_oauthbearer_expected_audience,
            claim=config.sasl_oauthbearer_sub_claim_name,
            clock_skew_seconds=config.sasl_oauthbearer_clock_skew_seconds,
        )
        self._url = url = config.sasl_oauthbearer_jwks_endpoint_url
        self._keys = keys = oauth.Keys()
        self._refresh_s = config.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1_000
        self._loop = loop
        self._wanted = asyncio.Event()
        self._loaded_at = loop.time()
        keys.may_load = self._may_load
        if url.startswith("file:"):
            try:
                keys.set(read(url))
            except (OSError, ValueError) as error:
                raise InvalidConfigError(
                    f"sasl.oauthbearer.jwks.endpoint.url={url} cannot be used: {error}"
                ) from error

    @classmethod
    def of(cls, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> Self | None:
        """Return the tokens of a broker; None if it accepts none."""
        return cls(config, loop) if config.sasl_oauthbearer_jwks_endpoint_url else None

    def exchange(self, wall_seconds: float) -> TokenExchange:
        """Begin an exchange at this time since 1970."""
        return self._exchange(self._settings, self._keys, wall_seconds)

    def _may_load(self) -> bool:
        """Called in a thread: have the keys loaded, unless they were a moment ago."""
        if self._loop.time() - self._loaded_at < limits.JWKS_RETRY_S:
            return False
        self._loop.call_soon_threadsafe(self._wanted.set)
        return True

    async def watch(self) -> None:
        """Load the keys from time to time. The loaded ones stay in use while that fails."""
        while True:
            if self._keys.current is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), self._refresh_s)
            self._wanted.clear()
            await self.load()
            if self._keys.current is None:
                await asyncio.sleep(limits.JWKS_RETRY_S)

    async def load(self) -> None:
        """Load the keys now. After any error, the loaded ones stay in use."""
        try:
            self._keys.set(await asyncio.to_thread(read, self._url))
        except Exception as error:  # noqa: BLE001 - another server has caused it
            # Not only ``OSError``: http.client raises others, as for a body that is cut off.
            logger.warning("keys of the identity provider not loaded: error=%r", error)
        self._loaded_at = self._loop.time()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Another server must not replace the keys."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


def read(url: str) -> Any:
    """Return the JSON of an https or file URL. Blocking. Raises ``OSError`` or ``ValueError``."""
    if url.startswith("file:"):
        with open(url2pathname(urlsplit(url).path), "rb") as file:
            data = file.read(limits.JWKS_BYTES_MAX + 1)
    else:
        # guard: keys of an identity provider are loaded from its server only
        opener = urllib.request.build_opener(_NoRedirect)
        with opener.open(url, timeout=limits.JWKS_TIMEOUT_S) as response:
            data = response.read(limits.JWKS_BYTES_MAX + 1)
    if len(data) > limits.JWKS_BYTES_MAX:
        raise ValueError(f"it is longer than {limits.JWKS_BYTES_MAX} bytes (JWKS_BYTES_MAX)")
    return json.loads(data)


# -- authentication --------------------------------------------------------------------------------


PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
REQUIRED: Final = (
    "this broker requires authentication. Set sasl_mechanism='SCRAM-SHA-256', sasl_username, "
    "sasl_password and security_protocol (Kafka clients: sasl.mechanism and so on), or a profile "
    "(--profile)"
)


class Progress(NamedTuple):
    """Response to one message of a client. ``session_lifetime_ms``: 0 for no limit."""

    data: bytes
    is_complete: bool
    session_lifetime_ms: int


class Tokens(Protocol):
    """Verification of tokens of an identity provider."""

    def exchange(self, wall_seconds: float) -> sasl.Exchange:
        """Begin an exchange at this time since 1970."""
        ...


class Authenticator:
    """Authentication of clients, with the users of the cluster. For one event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: AbstractEventLoop,
        entropy: Callable[[int], bytes],
        wall_ms: Callable[[], int] = lambda: 0,
        tokens: Tokens | None = None,
    ) -> None:
        """``entropy``: returns random bytes. ``tokens``: how tokens are verified, if they are."""
        self._wall_ms = wall_ms
        self._tokens = tokens
        self._is_required = config.authentication_required
        self._session_ms = config.connections_max_reauth_ms
        self._loop = loop
        self._entropy = entropy
        self._failures = FailureLimit()
        self._verified = VerifiedPasswords(entropy(KEY_BYTES))
        self._verifying = asyncio.Lock()
        # Called with the principal so far, the address and the mechanism of a failed attempt.
        self.on_failure: Callable[[Principal, str, str], None] = lambda _who, _host, _how: None
        self._has_users = False  # the cluster has had one
        # Whether this broker has applied all changes of users from before its start.
        self.is_current: Callable[[], bool] = lambda: True
        # Delegation tokens that have not expired, by ID; changed in place.
        self._delegated: dict[str, DelegationToken] = {}
        self._expiry: asyncio.TimerHandle | None = None
        # Called when delegation tokens have expired.
        self.on_revoked: Callable[[], None] = lambda: None
        self._store = CredentialStore({}, b"", self._delegated)

    def users_changed(self, machine: ClusterMachine) -> None:
        """Use the users of the cluster from now on."""
        self._has_users = bool(machine.user_secret)
        self._store = CredentialStore(dict(machine.users), machine.user_secret, self._delegated)

    def tokens_changed(self, machine: ClusterMachine) -> None:
        """Use the delegation tokens of the cluster from now on."""
        self._delegated.clear()
        self._delegated.update(machine.tokens)
        self._end_expired()

    def _end_expired(self) -> None:
        """Forget the delegation tokens that have expired. Repeated while there are others."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        now_ms = self._wall_ms()
        for token in [held for held in self._delegated.values() if held.expires_ms <= now_ms]:
            del self._delegated[token.id]
        if self._delegated:
            wait_s = limits.DELEGATION_TOKEN_CHECK_S
            self._expiry = self._loop.call_later(wait_s, self._expire)

    def _expire(self) -> None:
        before = len(self._delegated)
        self._end_expired()
        if len(self._delegated) < before:
            # guard: connections of expired tokens are closed
            self.on_revoked()

    def stop(self) -> None:
        """Stop to check the expiry of delegation tokens."""
        if self._expiry is not None:
            self._expiry.cancel()

    def is_revoked(self, connection: Connection) -> bool:
        """Return whether the user of the connection has lost the credential that it used."""
        return connection.used is not None and not self._store.has(connection.used)

    def check(self, connection: Connection) -> None:
        """Raise ``AuthenticationError`` if the connection must authenticate before it sends other
        requests, and ``SessionEndedError`` if it had to authenticate again.
        """
        ends = connection.session_ends_seconds
        # guard: a session ends after its lifetime
        if ends is not None and self._loop.time() >= ends:
            raise SessionEndedError(
                "the session has ended (connections.max.reauth.ms): the connection was not "
                "authenticated again in time. Open another one"
            )
        # guard: requests before authentication are rejected
        if self._is_required and not connection.is_authenticated:
            raise AuthenticationError(REQUIRED)

    def mechanisms(self, connection: Connection) -> tuple[str, ...]:
        """Return the mechanisms that the client of the connection may use."""
        if not connection.is_encrypted:
            return SCRAM_MECHANISMS
        return (*SCRAM_MECHANISMS, PLAIN, *((OAUTHBEARER,) if self._tokens else ()))

    def begin(
        self, connection: Connection, mechanism: str
    ) -> Generator[ThreadWork | None, Any, None]:
        """Begin an exchange.

        Raises ``ClusterNotReadyError`` while this broker knows no users,
        ``UnsupportedFeatureError`` if the client may not use the mechanism, ``ThrottledError`` if
        its address has failed too often, and ``AuthenticationError`` if an exchange is in progress.
        """
        self._check_failures(connection.peer_host)
        # guard: PLAIN requires TLS
        if mechanism not in self.mechanisms(connection):
            note = f" {mechanism} requires TLS." if mechanism in (PLAIN, OAUTHBEARER) else ""
            raise UnsupportedFeatureError(
                f"sasl_mechanism={mechanism!r} is not available on this connection.{note} Use one "
                f"of {', '.join(self.mechanisms(connection))}"
            )
        if mechanism != OAUTHBEARER:
            self._check_users()
        # guard: an exchange is one attempt
        if connection.exchange is not None or connection.rejection is not None:
            error = AuthenticationError("a second exchange began before the first one has ended")
            self._failed(connection, mechanism, error)
            raise error
        loaded = yield _load
        connection.exchange = self._exchange(loaded, mechanism)

    def _check_failures(self, host: str) -> None:
        # guard: an address that fails too often is refused
        if self._failures.is_reached(host, self._loop.time()):
            raise ThrottledError(
                f"too many attempts to authenticate from {host} have failed "
                "(AUTHENTICATION_FAILURES_MAX). Try again later"
            )

    def _check_users(self) -> None:
        # guard: a broker that knows no users rejects no password
        if not self._has_users and not self._delegated:
            raise ClusterNotReadyError(
                "this broker knows no users yet: it has just started, or the cluster has none "
                "(admin.credentials.file, raftlog user create --cluster-secret-file)"
            )

    async def verify(self, host: str, user: str, password: str) -> UsedCredential:
        """Verify the password of a user, who sends it over TLS. Return the credential that matches.

        A thread computes the hashes, of one password at a time; a verified password is remembered.
        Raises ``AuthenticationError`` if it is wrong, ``ThrottledError`` if the address has failed
        too often, and ``ClusterNotReadyError`` while this broker knows no users.
        """
        # guard: an address that fails too often over HTTP is refused
        self._check_failures(host)
        self._check_users()
        found = self._verified.find(user, password, self._store, self._loop.time())
        if found is not None:
            return found
        async with self._verifying:
            try:
                loaded = await asyncio.to_thread(_load)
                exchange = loaded.PlainExchange(self._store)
                message = f"\0{user}\0{password}".encode()
                accepted = await asyncio.to_thread(exchange.step, message)
                self._check_current(accepted)
            except AuthenticationError as error:
                self._raise_if_behind(host, error)
                self._note_failure(ANONYMOUS, host, "Basic")
                raise
        used: UsedCredential = accepted.used
        self._verified.put(user, password, used, self._loop.time())
        return used

    async def verify_token(self, host: str, token: str) -> Principal:
        """Verify a token of an identity provider, which a user sends over TLS. Return the user.

        Raises as ``verify``.
        """
        self._check_failures(host)
        if self._tokens is None:
            raise AuthenticationError(
                "this broker accepts no bearer tokens. Use a password, or set "
                "sasl.oauthbearer.jwks.endpoint.url"
            )
        exchange = self._tokens.exchange(self._wall_ms() / 1_000)
        message = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        async with self._verifying:
            try:
                accepted = await asyncio.to_thread(exchange.step, message)
            except AuthenticationError as error:
                logger.warning("token rejected: reason=%s", error.__cause__)
                self._note_failure(ANONYMOUS, host, "Bearer")
                raise
        assert not isinstance(accepted, bytes), "one message"
        return accepted.principal

    def _exchange(self, loaded: Any, mechanism: str) -> sasl.Exchange:
        if mechanism == PLAIN:
            return cast("sasl.Exchange", loaded.PlainExchange(self._store))
        if mechanism == OAUTHBEARER:
            assert self._tokens is not None, "checked by mechanisms()"
            return self._tokens.exchange(self._wall_ms() / 1_000)
        scram = loaded.ScramExchange(cast(Mechanism, mechanism), self._store, self._entropy)
        return cast("sasl.Exchange", scram)

    def proceed(
        self, connection: Connection, data: bytes
    ) -> Generator[ThreadWork | None, Any, Progress]:
        """Process a message of the client.

        Raises ``AuthenticationError`` if the attempt failed, and ``InvalidRequestError`` if there
        is no exchange.
        """
        exchange = connection.exchange
        if connection.rejection is not None:
            raise connection.rejection
        if exchange is None:
            raise InvalidRequestError("the client sent a message of no exchange: begin one")
        try:
            if exchange.is_costly:
                result = yield partial(exchange.step, data)
            else:
                result = exchange.step(data)
            if isinstance(result, bytes):
                return Progress(result, is_complete=False, session_lifetime_ms=0)
            self._accept(connection, result)
        except AuthenticationError as error:
            if error.__cause__ is not None:
                logger.warning("token rejected: reason=%s", error.__cause__)
            else:
                connection.exchange = None
                self._raise_if_behind(connection.peer_host, error)
            # guard: a rejected bearer token is counted before its challenge
            self._failed(connection, type(exchange).__name__, error)
            if exchange.rejection:  # the next message gets the error
                return Progress(exchange.rejection, is_complete=False, session_lifetime_ms=0)
            raise
        except ClusterNotReadyError:
            connection.exchange = None
            raise
        lifetime_ms = self._lifetime_ms(result)
        return Progress(result.data, is_complete=True, session_lifetime_ms=lifetime_ms)

    def _lifetime_ms(self, accepted: sasl.Accepted) -> int:
        """Return the lifetime of the session; 0 for no limit."""
        token = self._delegated.get(accepted.used.token) if accepted.used is not None else None
        # guard: a session with a delegation token ends with it
        if token is not None:
            own = max(token.expires_ms - self._wall_ms(), 1)
        # guard: a session with a token ends with it
        elif accepted.lifetime_seconds is not None:
            own = int(1_000 * accepted.lifetime_seconds)
        else:
            return self._session_ms
        return min(own, self._session_ms) if self._session_ms else own

    def _accept(self, connection: Connection, accepted: sasl.Accepted) -> None:
        self._check_current(accepted)
        # guard: a connection keeps its user
        if connection.has_sasl and connection.principal != accepted.principal:
            raise AuthenticationError(
                f"the connection belongs to {connection.principal}. Open another one for another "
                "user"
            )
        connection.exchange, connection.has_sasl = None, True
        connection.principal = accepted.principal
        connection.used = accepted.used
        connection.permit_long_requests()
        lifetime_ms = self._lifetime_ms(accepted)
        ends = self._loop.time() + lifetime_ms / 1_000 if lifetime_ms else None
        connection.session_ends_seconds = ends
        logger.info("authenticated: peer=%s principal=%s", connection.peer, accepted.principal)

    def _raise_if_behind(self, host: str, error: AuthenticationError) -> None:
        """Raise ``ClusterNotReadyError`` while the user may have been created, or have changed the
        password, in a change that this broker has not applied. Attempts count as failed ones.
        """
        if not self.is_current():
            self._failures.note(host, self._loop.time())
            raise ClusterNotReadyError(
                "this broker has just started, and does not know all users of the cluster yet"
            ) from error

    def _failed(self, connection: Connection, how: str, error: AuthenticationError) -> None:
        connection.rejection = error
        self._note_failure(connection.principal, connection.peer_host, how)

    def _note_failure(self, principal: Principal, host: str, how: str) -> None:
        self._failures.note(host, self._loop.time())
        self.on_failure(principal, host, how)
        logger.warning("authentication failed: peer=%s exchange=%s", host, how)

    def _check_current(self, accepted: sasl.Accepted) -> None:
        if accepted.used is None:
            return
        token = self._delegated.get(accepted.used.token)
        is_expired = token is not None and token.expires_ms <= self._wall_ms()
        # guard: a credential is compared again at the end of the exchange
        if is_expired or not self._store.has(accepted.used):
            raise AuthenticationError(
                "the credential was changed during the attempt, or has expired"
            )


def _load() -> Any:
    """Import the mechanisms: takes 0.2 s of CPU and 9 MB, so only brokers that need them do."""
    from raftlog.security import sasl

    return sasl
