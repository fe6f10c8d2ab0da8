"""One connection from this broker to another: requests and responses, matched by correlation id.

The asyncio side of ``raftlog.protocol.connection``: it moves bytes and resolves futures. ``link``
authenticates the peer, and reconnects. It works over any ``asyncio.Transport``; a ``PeerConnector``
opens it, so that a simulated network can.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

from raftlog import limits, tls
from raftlog.config import Address
from raftlog.errors import BrokerUnavailableError, ConnectionLostError, RaftlogError
from raftlog.protocol.api import Api
from raftlog.protocol.connection import Broken, ClientConnectionState
from raftlog.protocol.handshake import ApiVersionRange
from raftlog.protocol.schema import Message
from raftlog.types import Buffer

# Bytes written to a peer that the operating system has not accepted yet. Messages above this limit
# are dropped: Raft sends again what matters, and a message that is queued for long is stale.
PEER_QUEUE_BYTES_MAX: Final = 8 * limits.MIB


class PeerConnector(Protocol):
    """Opens connections to other brokers: sockets, or a simulated network."""

    async def connect(
        self, address: Address, protocol_factory: Callable[[], asyncio.BufferedProtocol]
    ) -> asyncio.Transport:
        """Return a transport whose protocol has received ``connection_made``. Raises
        ``OSError``.
        """
        ...


class PeerTls(Protocol):
    """TLS for connections to other brokers."""

    @property
    def peer(self) -> ssl.SSLContext:
        """Return the context of a new connection."""
        ...


class SocketPeerConnector:
    """The ``PeerConnector`` for TCP; with ``tls``, for TLS over TCP."""

    def __init__(self, tls: PeerTls | None = None) -> None:
        self._tls = tls

    async def connect(
        self, address: Address, protocol_factory: Callable[[], asyncio.BufferedProtocol]
    ) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        context = None if self._tls is None else self._tls.peer
        try:
            transport, _ = await loop.create_connection(
                protocol_factory, address.host, address.port, ssl=context
            )
        except ssl.SSLError as error:
            raise BrokerUnavailableError(tls.explain(error, ca_setting="tls.ca.file")) from error
        tcp_socket = transport.get_extra_info("socket")
        if tcp_socket is not None and tcp_socket.family in (socket.AF_INET, socket.AF_INET6):
            tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return transport


class Answer(NamedTuple):
    """Response of a broker to one request. The attachment owns its memory."""

    message: Message
    attachment: memoryview


class PeerChannel(asyncio.BufferedProtocol):
    """Connection to a peer. Invariant: ``on_lost`` is called once, with the reason, and nothing is
    sent after it.

    ``scratch``: receive buffer; all channels of one loop may share it. ``queue_bytes_max``: if more
    bytes than this are queued for the peer, ``send`` drops messages.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_lost: Callable[[RaftlogError], None],
        *,
        scratch: memoryview,
        queue_bytes_max: int = PEER_QUEUE_BYTES_MAX,
    ) -> None:
        self._loop = loop
        self._on_lost = on_lost
        self._queue_bytes_max = queue_bytes_max
        self._state = ClientConnectionState(scratch=scratch)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self.ended: RaftlogError | None = None  # reason of the end
        self.last_heard_seconds = loop.time()  # time of the last received bytes

    # -- requests ----------------------------------------------------------------------------------

    def agree(self, apis: Sequence[ApiVersionRange]) -> None:
        """Apply the API versions of the peer (its response to ``api_versions``)."""
        self._state.agree(apis)

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """Return the verified certificate of the peer; None without TLS."""
        return None if self._transport is None else self._transport.get_extra_info("peercert")

    @property
    def queued_bytes(self) -> int:
        """Bytes written that the operating system has not accepted yet."""
        transport = self._transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def send(self, api: Api, message: Message, attachment: Sequence[Buffer] = ()) -> bool:
        """Send a message without a response. Returns False if it was dropped: queue full, or no
        connection.
        """
        assert api.one_way
        if self.ended is not None or self.queued_bytes > self._queue_bytes_max:
            return False
        self._write(self._state.send(api, message, attachment)[1])
        return True

    def request(
        self, api: Api, message: Message, attachment: Sequence[Buffer] = ()
    ) -> asyncio.Future[Answer]:
        """Send a request and return the future of its response. The future fails with the peer's
        error, or ``ConnectionLostError``.

        Raises, if nothing was sent: ``BrokerUnavailableError`` (no connection, or too many queued
        bytes), ``UnsupportedVersionError``, ``InvalidRequestError``.
        """
        assert not api.one_way
        if self.ended is not None:
            raise BrokerUnavailableError(f"no connection to the peer: {self.ended}")
        if self.queued_bytes > self._queue_bytes_max:
            raise BrokerUnavailableError(
                f"the peer does not read: {self.queued_bytes} bytes are queued for it"
            )
        correlation_id, buffers = self._state.send(api, message, attachment)
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[correlation_id] = future
        self._write(buffers)
        return future

    def _write(self, buffers: list[Buffer]) -> None:
        transport = self._transport
        assert transport is not None
        if len(buffers) == 1:
            transport.write(buffers[0])
        else:
            transport.writelines(buffers)

    # -- the end -----------------------------------------------------------------------------------

    def abort(self, error: RaftlogError) -> None:
        """Close at once. Pending requests fail with ``error``. Idempotent."""
        transport = self._transport
        if transport is not None:
            transport.abort()
        self._end(error)

    def _end(self, error: RaftlogError) -> None:
        if self.ended is not None:
            return
        self.ended = error
        self._state.end_of_stream()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)
                # Marks the exception as retrieved: no caller may wait for it, as for a ping.
                future.exception()
        self._on_lost(error)

    # -- asyncio's calls ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.last_heard_seconds = self._loop.time()
        if self.ended is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._state.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.last_heard_seconds = self._loop.time()
        for event in self._state.received(nbytes):
            if isinstance(event, Broken):
                self.abort(event.error)
                return
            future = self._waiting.pop(event.correlation_id, None)
            if future is None or future.done():
                continue  # no caller waits any longer
            if isinstance(event.message, RaftlogError):
                future.set_exception(event.message)
                future.exception()
            else:
                future.set_result(Answer(event.message, event.attachment))

    def eof_received(self) -> bool:
        return False  # close this side too

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end(ConnectionLostError(f"the connection was lost{f' ({exc})' if exc else ''}"))
