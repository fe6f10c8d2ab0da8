"""Authentication of a client on its connections (SASL), for the first time and again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from raftlog.client.connection import Connection
from raftlog.client.settings import SaslSettings, TokenProvider
from raftlog.errors import (
    AuthenticationError,
    ConnectionLostError,
    RaftlogError,
    UnsupportedFeatureError,
    UnsupportedVersionError,
)
from raftlog.install import install_command
from raftlog.protocol import api as apis
from raftlog.protocol.authentication import SaslAuthenticateRequest, SaslAuthenticateResponse
from raftlog.protocol.operator_auth import Asking, OperatorHelloResponse
from raftlog.protocol.peer import NONCE_BYTES
from raftlog.security.users import SCRAM_MECHANISMS

if TYPE_CHECKING:
    from raftlog.security.sasl import ClientExchange

SESSION_PART: Final = 0.8  # of a session's lifetime, after which a client authenticates again
TOKEN: Final = re.compile("[A-Za-z0-9._~+/-]+=*")  # RFC 6750, section 2.1
MESSAGES_MAX: Final = 4  # of one exchange


async def authenticate(
    connection: Connection,
    sasl: SaslSettings,
    entropy: Callable[[int], bytes],
    *,
    timeout_ms: int,
) -> float:
    """Authenticate. Return the lifetime of the session in seconds; 0 for no limit.

    The costly hashes run in a thread. Raises ``AuthenticationError`` if the broker rejects the
    credentials, or cannot prove that it knows the user.
    """
    if sasl.token_provider is None:
        exchange = _exchange(sasl, entropy)
    else:
        exchange = TokenClientExchange(await token_of(sasl.token_provider))
    mechanism, data = sasl.mechanism, exchange.first()
    for _ in range(MESSAGES_MAX):
        request = SaslAuthenticateRequest(data=data, mechanism=mechanism)
        try:
            answer = await connection.request(
                apis.SASL_AUTHENTICATE, request, timeout_ms=timeout_ms
            )
        except UnsupportedVersionError as error:
            raise AuthenticationError(
                f"the broker at {connection.address} has no authentication. Upgrade it, or remove "
                "the sasl_ arguments"
            ) from error
        except AuthenticationError as error:
            raise AuthenticationError(f"{connection.address}: {error}") from error
        message = answer.message
        assert isinstance(message, SaslAuthenticateResponse)
        if message.is_complete:
            exchange.end(message.data)
            return message.session_lifetime_ms / 1_000
        loop = asyncio.get_running_loop()
        mechanism = ""
        data = await loop.run_in_executor(None, partial(exchange.next, message.data))
    raise AuthenticationError(f"the broker at {connection.address} does not end the exchange")


class TokenClientExchange:
    """The client's side of OAUTHBEARER (RFC 7628): one message, and a second one if the broker
    rejects the token. TLS identifies the broker.
    """

    def __init__(self, token: str) -> None:
        self._token = token
        self._rejection = b""

    def first(self) -> bytes:
        return b"n,,\x01auth=Bearer " + self._token.encode() + b"\x01\x01"

    def next(self, challenge: bytes) -> bytes:
        self._rejection = challenge
        return b"\x01"  # section 3.2.3; the broker responds with its error

    def end(self, data: bytes) -> None:  # noqa: ARG002 - as of the other exchanges
        """The broker has no proof. Raises ``AuthenticationError`` if it had rejected the token."""
        if self._rejection:
            raise AuthenticationError(f"the broker rejected the token: {self._rejection[:200]!r}")


async def token_of(provider: TokenProvider) -> str:
    """Return a token. Raises ``AuthenticationError`` if the provider fails, or returns none."""
    try:
        token: object = await asyncio.to_thread(provider.token)
    except Exception as error:
        raise AuthenticationError(
            f"sasl_oauth_token_provider failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(token, str) or not TOKEN.fullmatch(token):
        raise AuthenticationError("sasl_oauth_token_provider returned no bearer token")
    return token


async def keep_authenticated(
    connection: Connection,
    sasl: SaslSettings,
    entropy: Callable[[int], bytes],
    lifetime_s: float,
    *,
    timeout_ms: int,
) -> None:
    """Authenticate again before each session ends (KIP-368), until the connection is closed.

    If that fails, the connection is closed: the outcome of its requests is unknown, and the next
    connection reports the reason.
    """
    while lifetime_s:
        await asyncio.sleep(lifetime_s * SESSION_PART)
        if connection.closed:
            return
        try:
            lifetime_s = await authenticate(connection, sasl, entropy, timeout_ms=timeout_ms)
        except RaftlogError as error:
            connection.abort(
                ConnectionLostError(
                    f"the connection to {connection.address} could not authenticate again: {error}"
                )
            )
            return


async def prove_operator(
    connection: Connection, secret: bytes, entropy: Callable[[int], bytes], *, timeout_ms: int
) -> None:
    """Prove to the broker that this client knows the secret of the cluster.

    Raises ``AccessDeniedError`` if the broker has another secret.
    """
    asking = Asking(secret, entropy(NONCE_BYTES))
    try:
        hello = await connection.request(apis.OPERATOR_HELLO, asking.hello(), timeout_ms=timeout_ms)
    except UnsupportedFeatureError:
        return  # the broker requires no secret
    assert isinstance(hello.message, OperatorHelloResponse)
    proof = asking.check(hello.message)
    await connection.request(apis.OPERATOR_PROVE, proof, timeout_ms=timeout_ms)


def _exchange(sasl: SaslSettings, entropy: Callable[[int], bytes]) -> ClientExchange:
    # Takes 0.2 s of CPU: only clients that authenticate load it.
    try:
        from raftlog.security.sasl import PLAIN, PlainClientExchange, ScramClientExchange
    except ImportError as error:
        raise UnsupportedFeatureError(
            f"authentication needs scramp. Run {install_command('sasl')} ({error})"
        ) from error

    if sasl.mechanism == PLAIN:
        return PlainClientExchange(sasl.username, sasl.password)
    for mechanism in SCRAM_MECHANISMS:
        if mechanism == sasl.mechanism:
            return ScramClientExchange(
                mechanism, sasl.username, sasl.password, entropy, is_token=sasl.is_token
            )
    raise AssertionError(f"checked by sasl_settings: {sasl.mechanism}")
