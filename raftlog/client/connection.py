"""One connection to one broker: many requests at a time, matched by correlation id.

The asyncio part of ``raftlog.protocol.connection``: it moves bytes and resolves futures, and makes
no decisions. It works over any ``asyncio.Transport``. A ``Connector`` opens the transport, so that
an embedded log and tests can use connections without a socket.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar, cast

from raftlog import __version__, limits, tls
from raftlog.client.settings import SaslSettings, TokenProvider
from raftlog.config import Address
from raftlog.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    ClosedError,
    ConnectionLostError,
    RaftlogError,
    RequestTimedOutError,
    UnsupportedFeatureError,
    UnsupportedVersionError,
)
from raftlog.install import install_command
from raftlog.protocol import api as apis
from raftlog.protocol.api import Api
from raftlog.protocol.connection import Broken, ClientConnectionState, expects_response
from raftlog.protocol.peer import NONCE_BYTES
from raftlog.protocol.schema import Message
from raftlog.protocol.security import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    Asking,
    OperatorHelloResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from raftlog.security.credentials import SCRAM_MECHANISMS
from raftlog.types import Buffer

if TYPE_CHECKING:
    from raftlog.security.sasl import ClientExchange


MessageT = TypeVar("MessageT", bound=Message)

NO_BROKER: Final = -1  # before the handshake
# asyncio's transports copy all buffers of a write into one, up to Python 3.11; uvloop's do not.
_JOINING: Final = "asyncio.selector_events"
_CLOSE_TIMEOUT_S: Final = 1.0
_JOIN_BYTES_MAX: Final = 64 * limits.KIB
SILENCE_S: Final = 1.0  # a broker without any response for this time may be stopped or isolated


class Connector(Protocol):
    """Opens a ``Connection`` to ``host:port``. Raises ``OSError`` if it cannot."""

    def __call__(self, host: str, port: int, /) -> Awaitable[Connection]: ...


class Answer(NamedTuple):
    """Response of a broker to one request. The attachment owns its memory."""

    message: Message
    attachment: memoryview


class _Waiting(NamedTuple):
    api: Api
    future: asyncio.Future[Answer]
    timer: asyncio.TimerHandle


class Connection(asyncio.BufferedProtocol):
    """asyncio protocol of a broker connection. Used on its event loop only."""

    def __init__(self, address: Address, *, scratch: memoryview | None = None) -> None:
        self.address = address
        self.broker_id = NO_BROKER
        self.closed = False
        # False while the write buffer of the transport is full, or the client must wait (quotas).
        self.writable = True
        self.on_writable: Callable[[], None] | None = None
        self._state = ClientConnectionState(scratch=scratch)
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._lost: asyncio.Future[None] | None = None
        self._joining = False
        self._is_full = False  # the write buffer of the transport
        self._throttled = False  # the broker does not read now
        self._heard_at = 0.0  # loop time of the last bytes, or of the first waiting request

    # -- requests

    async def handshake(self, client_id: str, *, timeout_ms: int) -> ApiVersionsResponse:
        """Send the first request: returns the broker's API versions and its identity."""
        request = ApiVersionsRequest(client_id=client_id, client_software=f"raftlog/{__version__}")
        answer = await self.start(apis.API_VERSIONS, request, timeout_ms=timeout_ms)
        message = answer.message
        assert isinstance(message, ApiVersionsResponse)
        self._state.agree(message.apis)
        self.broker_id = message.broker_id
        return message

    def start(
        self,
        api: Api,
        message: Message,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_ms: int,
    ) -> asyncio.Future[Answer]:
        """Send a request, and return the future of its response. Raises if nothing was sent.

        The future fails with the broker's error, ``ConnectionLostError`` or
        ``RequestTimedOutError``. A timeout closes the connection, because responses arrive in order
        and later ones would be late, too.
        """
        loop, transport = self._loop, self._transport
        if loop is None or transport is None or self.closed:
            raise BrokerUnavailableError(f"the connection to {self.address} is closed")
        correlation_id, buffers = self._state.send(api, message, attachment)
        future: asyncio.Future[Answer] = loop.create_future()
        if expects_response(message):
            if not self._waiting:
                self._heard_at = loop.time()
            timer = loop.call_later(timeout_ms / 1_000, self._timed_out, correlation_id, timeout_ms)
            self._waiting[correlation_id] = _Waiting(api, future, timer)
        else:
            future.set_result(Answer(message, memoryview(b"")))  # the request has no response
        self._write(transport, buffers)
        return future

    async def request(
        self,
        api: Api,
        message: Message,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_ms: int,
    ) -> Answer:
        """Send a request, and wait for its response."""
        return await self.start(api, message, attachment, timeout_ms=timeout_ms)

    @property
    def is_silent(self) -> bool:
        """True if a response is due and no bytes arrived for ``SILENCE_S``."""
        if not self._waiting or self._loop is None:
            return False
        return self._loop.time() - self._heard_at >= SILENCE_S

    def _write(self, transport: asyncio.Transport, buffers: list[Buffer]) -> None:
        if len(buffers) == 1:
            transport.write(buffers[0])
        elif not self._joining or sum(map(len, buffers)) <= _JOIN_BYTES_MAX:
            transport.writelines(buffers)
        else:
            for buffer in buffers:
                transport.write(buffer)

    # -- the end

    def abort(self, error: RaftlogError) -> None:
        """Close immediately. Requests without a response fail with ``error``. Idempotent."""
        self._end(error)
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Close after pending writes. Requests without a response fail. Idempotent."""
        self._end(ClosedError("the client was closed"))
        if self._transport is None or self._lost is None:
            return
        self._transport.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await asyncio.shield(self._lost)
        except TimeoutError:
            self._transport.abort()

    def _end(self, error: RaftlogError) -> None:
        self.closed = True
        waiting, self._waiting = self._waiting, {}
        for request in waiting.values():
            request.timer.cancel()
            if not request.future.done():
                request.future.set_exception(error)
        if self.on_writable is not None:
            self.on_writable()

    def _timed_out(self, correlation_id: int, timeout_ms: int) -> None:
        late = self._waiting.get(correlation_id)
        assert late is not None, "an answered request cancels its timer"
        self.abort(
            RequestTimedOutError(
                f"the broker at {self.address} did not respond to {late.api.name} within "
                f"{timeout_ms} ms (request_timeout_ms). Check whether it is running or "
                "overloaded"
            )
        )

    # -- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by duck typing
        self._loop = asyncio.get_running_loop()
        self._lost = self._loop.create_future()
        self._transport.set_write_buffer_limits(high=limits.CLIENT_WRITE_BYTES_MAX)
        self._joining = type(transport).__module__ == _JOINING

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._state.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self._loop is not None:
            self._heard_at = self._loop.time()
        for event in self._state.received(nbytes):
            if isinstance(event, Broken):
                self._broken(event.error)
                return
            waiting = self._waiting.pop(event.correlation_id, None)
            if waiting is None:
                continue
            waiting.timer.cancel()
            if waiting.future.done():
                continue  # the caller has cancelled the request
            if isinstance(event.message, RaftlogError):
                waiting.future.set_exception(event.message)
            else:
                throttle_ms = getattr(event.message, "throttle_ms", 0)
                if throttle_ms:
                    self._throttle(throttle_ms / 1_000)
                waiting.future.set_result(Answer(event.message, event.attachment))

    def _broken(self, error: RaftlogError) -> None:
        """Close a connection that cannot continue. The outcome of other requests is unknown."""
        for request in self._waiting.values():
            if request.api is apis.API_VERSIONS and not request.future.done():
                request.future.set_exception(type(error)(f"{self.address}: {error}"))
        self.abort(ConnectionLostError(f"the connection to {self.address} ended: {error}"))

    def eof_received(self) -> bool:
        self._state.end_of_stream()
        return False  # close this side, too

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
        why = f" ({exc})" if exc else ""
        advice = tls.explain(exc) or "check whether the broker is running"
        self._end(
            ConnectionLostError(
                f"the connection to {self.address} was lost before the response arrived{why}: "
                f"{advice}"
            )
        )

    def pause_writing(self) -> None:
        self._is_full = True
        self._set_writable()

    def resume_writing(self) -> None:
        self._is_full = False
        self._set_writable()

    # -- quotas

    def _throttle(self, seconds: float) -> None:
        """Wait for as long as the broker does not read, because of a quota. It is not silent."""
        if self._loop is None or self._throttled:
            return
        self._throttled = True
        self._heard_at = self._loop.time() + seconds
        self._loop.call_later(seconds, self._end_throttling)
        self._set_writable()

    def _end_throttling(self) -> None:
        self._throttled = False
        self._set_writable()

    def _set_writable(self) -> None:
        self.writable = not (self._is_full or self._throttled)
        if self.writable and self.on_writable is not None:
            self.on_writable()


class SocketConnector:
    """``Connector`` for TCP; with ``tls``, for TLS over TCP.

    Its connections share a receive buffer, because they share a loop.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._scratch = memoryview(bytearray(limits.RECEIVE_BYTES))

    async def __call__(self, host: str, port: int, /) -> Connection:
        loop = asyncio.get_running_loop()
        connection = Connection(Address(host, port), scratch=self._scratch)
        transport, _ = await loop.create_connection(lambda: connection, host, port, ssl=self._tls)
        tcp_socket = transport.get_extra_info("socket")
        if tcp_socket is not None and tcp_socket.family in (socket.AF_INET, socket.AF_INET6):
            tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


# -- authentication --------------------------------------------------------------------------------
#
# Authentication of a client on its connections (SASL), for the first time and again.


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
            # guard: requests of a session that is not renewed have an unknown outcome
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
