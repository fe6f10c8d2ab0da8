"""Listening sockets and the set of connections: connection limits, idle and slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import socket
from collections.abc import Callable
from typing import Final

from raftlog import limits
from raftlog.config import Address, BrokerConfig
from raftlog.errors import BrokerUnavailableError, ThrottledError
from raftlog.kafka.connection import KafkaRequest
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.server.budgets import Reading, RequestBudget, ResponseBudget
from raftlog.server.connection import Connection, ConnectionServices
from raftlog.server.metrics import Counters
from raftlog.server.turns import Steps, Turns
from raftlog.server.workers import Workers

logger = logging.getLogger(__name__)

BACKLOG: Final = 1_024
SWEEP_SECONDS_MAX: Final = 5.0
RELIEF_SECONDS: Final = 1.0  # seconds between two checks for slow senders
LOBBY_SECONDS: Final = 15.0  # for a handshake: four round trips of at most 2 s each
# APIs of a connection beyond max.connections: it may be a broker's.
LOBBY_APIS: Final = (apis.API_VERSIONS, apis.PEER_HELLO, apis.PEER_PROVE)


def bind(address: Address, option: str = "--listen ") -> socket.socket:
    """Return a listening socket. Raises ``BrokerUnavailableError`` with the reason.

    ``option``: how an operator sets another address, for the error.
    """
    try:
        family, kind, protocol, _name, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise BrokerUnavailableError(
            f"cannot listen on {address}: the host name does not resolve ({error.strerror}). Set "
            f"an address of this machine with {option}HOST:PORT"
        ) from error
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise BrokerUnavailableError(_why_not(address, error, option)) from error
    return listening


def _why_not(address: Address, error: OSError, option: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {address.port} on {address.host} is in use. Stop the process that uses it, or "
            f"select another port with {option}{Address(address.host, 0)} (0: any free port)"
        )
    if error.errno == errno.EACCES:
        return (
            f"this user has no permission for port {address.port} on {address.host}. Select a port "
            f"of 1024 or above with {option}HOST:PORT"
        )
    return (
        f"cannot listen on {address}: {error.strerror}. Set an address of this machine with "
        f"{option}HOST:PORT"
    )


def address_of(listening: socket.socket) -> Address:
    """Return the address of a listening socket, with its actual port."""
    host, port = listening.getsockname()[:2]
    return Address(host, port)


class Connections:
    """All connections of a broker, and their shared state. It is their ``ConnectionServices``."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        *,
        responses: ResponseBudget,
        counters: Counters,
        turns: Turns,
        workers: Workers,
        on_request: Callable[[Connection, Request], Steps | None],
        on_kafka_request: Callable[[Connection, KafkaRequest], Steps | None],
        on_lost: Callable[[Connection], None],
        may_connect: Callable[[Connection], bool] = lambda _connection: True,
        make_connection: Callable[[ConnectionServices], Connection] = Connection,
    ) -> None:
        self.loop = loop
        # Shared: between get_buffer and buffer_updated of a connection, nothing else runs.
        self.scratch = memoryview(bytearray(limits.RECEIVE_BYTES))
        self.requests = RequestBudget(config.queued_max_request_bytes, on_short=self._relieve_soon)
        self.responses = responses
        self.request_bytes_max = self.first_bytes_max = config.socket_request_max_bytes
        if config.authentication_required:
            self.first_bytes_max = min(self.request_bytes_max, limits.UNAUTHENTICATED_BYTES_MAX)
        self.principal_rules = (
            config.ssl_principal_mapping_rules if config.tls_client_ca_file else None
        )
        self.kafka_enabled = config.kafka_protocol_enable and config.kafka_listen is None
        self.counters = counters
        self.turns = turns
        self.workers = workers
        self._on_request = on_request
        self._on_kafka_request = on_kafka_request
        self._may_connect = may_connect
        self._on_lost = on_lost
        self._make_connection = make_connection
        self._config = config
        self._open: dict[Connection, None] = {}
        self._peers: set[Connection] = set()  # open connections that have authenticated as peers
        # Connections accepted beyond max.connections, oldest first, with the time: they must
        # authenticate.
        self._lobby: dict[Connection, float] = {}
        self._relief: asyncio.TimerHandle | None = None  # while memory for requests is short
        self._received: dict[Reading, int] = {}  # at the last check, by sender
        self._empty: asyncio.Future[None] | None = None  # while the last connections end
        self._refusing = False
        shortest_ms = min(
            config.connections_max_idle_ms,
            config.request_receive_timeout_ms,
            config.queued_max_wait_ms,
        )
        self._sweep_seconds = min(shortest_ms / 4_000, SWEEP_SECONDS_MAX)
        self._sweeper = loop.call_later(self._sweep_seconds, self._sweep)

    def __len__(self) -> int:
        return len(self._open)

    def make(self) -> Connection:
        """Return a protocol for a new transport."""
        return self._make_connection(self)

    def make_for_kafka(self) -> Connection:
        """Return a protocol for a new transport of a Kafka client."""
        connection = self._make_connection(self)
        connection.choose(is_kafka=True)
        return connection

    def connected(self, connection: Connection) -> bool:
        if self._refusing:
            return False
        if not self._may_connect(connection):
            self.counters.quota_refusals += 1
            return False
        if len(self._open) - len(self._peers) - len(self._lobby) >= self._config.max_connections:
            if not self._config.has_peers:
                self._refuse(connection)
                return False
            if len(self._lobby) >= limits.LOBBY_CONNECTIONS_MAX:
                self._make_room_in_lobby()
            self._lobby[connection] = self.loop.time()
        self.counters.connections_accepted += 1
        self._open[connection] = None
        return True

    def _refuse(self, connection: Connection) -> None:
        self.counters.connections_refused += 1
        logger.warning(
            "connection refused: peer=%s max.connections=%d. Increase max.connections or close "
            "unused clients",
            connection.peer,
            self._config.max_connections,
        )

    def _make_room_in_lobby(self) -> None:
        """Close the oldest connection that has not begun a handshake, or else the oldest."""
        oldest = next(iter(self._lobby))
        waiting = (connection for connection in self._lobby if connection.answering is None)
        connection = next(waiting, oldest)
        del self._lobby[connection]
        self._refuse(connection)
        connection.abort("max.connections reached, and the reserve is for brokers")

    def handle(self, connection: Connection, request: Request) -> Steps | None:
        if connection in self._lobby and request.api not in LOBBY_APIS:
            self._refuse(connection)
            connection.end(
                ThrottledError(
                    f"max.connections={self._config.max_connections} connections are open. Close "
                    "some, or increase max.connections on the broker"
                )
            )
            return None
        return self._on_request(connection, request)

    def handle_kafka(self, connection: Connection, request: KafkaRequest) -> Steps | None:
        if connection in self._lobby:  # a Kafka client cannot prove to be a broker
            self._refuse(connection)
            connection.abort("max.connections reached")
            return None
        return self._on_kafka_request(connection, request)

    def proved(self, connection: Connection) -> None:
        """Note that the connection belongs to a peer: it has a separate slot."""
        self._lobby.pop(connection, None)
        self._peers.add(connection)

    def disconnected(self, connection: Connection) -> None:
        self._open.pop(connection, None)
        self._peers.discard(connection)
        self._lobby.pop(connection, None)
        self._received.pop(connection, None)
        self._on_lost(connection)
        if self._empty is not None and not self._open and not self._empty.done():
            self._empty.set_result(None)

    async def drain(self, *, seconds_max: float) -> None:
        """Accept nothing more, respond to received requests, then close all connections; at once
        after ``seconds_max``.
        """
        self._refusing = True
        self._stop_timers()
        for connection in tuple(self._open):
            connection.drain()
        if self._open:
            self._empty = self.loop.create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty, seconds_max)
        self.abort("the broker stops")

    def abort(self, reason: str) -> None:
        """Close every connection at once."""
        self._stop_timers()
        for connection in tuple(self._open):
            connection.abort(reason)

    def close_each(self, wanted: Callable[[Connection], bool], reason: str) -> None:
        """Close each connection for which ``wanted`` returns True, at once."""
        for connection in tuple(self._open):
            if wanted(connection):
                connection.abort(reason)

    def _stop_timers(self) -> None:
        self._sweeper.cancel()
        if self._relief is not None:
            self._relief.cancel()

    def _relieve_soon(self) -> None:
        if self._relief is None and not self._refusing:
            self._received.clear()
            self._relief = self.loop.call_later(RELIEF_SECONDS, self._relieve)

    def _relieve(self) -> None:
        """While connections wait for memory: close those that hold it and send too little.

        The rate since the last check counts, during which they were read from. So the memory of
        slow senders is released after two checks, regardless of what they sent.
        """
        self._relief = None
        if not self.requests.is_waited_for:
            return
        least = self._config.queued_min_bytes_per_second * RELIEF_SECONDS
        last_check = self.loop.time() - RELIEF_SECONDS
        before, self._received = self._received, {}
        for connection in self.requests.holders():
            since = connection.stalled_since_seconds
            if since is None:
                continue
            received = before.get(connection)
            if (
                received is not None
                and since <= last_check
                and connection.received_bytes - received < least
            ):
                connection.abort(
                    "the request arrives at less than queued.min.bytes.per.second="
                    f"{self._config.queued_min_bytes_per_second} while other requests wait for "
                    "memory"
                )
            else:
                self._received[connection] = connection.received_bytes
        self._relief = self.loop.call_later(RELIEF_SECONDS, self._relieve)

    def _sweep(self) -> None:
        """Check the timeouts of all connections with one timer: idle connections cost nothing
        else.
        """
        now = self.loop.time()
        idle_seconds = self._config.connections_max_idle_ms / 1_000
        receive_seconds = self._config.request_receive_timeout_ms / 1_000
        pressed_seconds = self._config.queued_max_wait_ms / 1_000
        if self.requests.is_waited_for:
            receive_seconds = min(receive_seconds, pressed_seconds)
        take_seconds = pressed_seconds if self.responses.is_waited_for else math.inf
        lobby_began = now - LOBBY_SECONDS
        for connection in [one for one, since in self._lobby.items() if since < lobby_began]:
            self._refuse(connection)
            connection.abort("max.connections reached, and the peer did not prove to be a broker")
        for connection in tuple(self._open):
            stalled_since = connection.stalled_since_seconds
            not_taking_since = connection.not_taking_since_seconds
            if stalled_since is not None and now - stalled_since > receive_seconds:
                connection.abort(
                    f"the request was incomplete after {receive_seconds:g} s "
                    "(request.receive.timeout.ms, or queued.max.wait.ms when memory is short)"
                )
            elif not_taking_since is not None and now - not_taking_since > take_seconds:
                connection.abort(
                    f"the peer did not read its responses for {take_seconds:g} s "
                    "(queued.max.wait.ms) while other requests wait for memory"
                )
            elif self._must_leave(connection, now):
                connection.abort(
                    f"the client did not authenticate within {limits.AUTHENTICATION_S:g} s"
                )
            elif not connection.in_flight and now - connection.last_active_seconds > idle_seconds:
                connection.abort(
                    "the connection was idle for connections.max.idle.ms="
                    f"{self._config.connections_max_idle_ms}"
                )
        self._sweeper = self.loop.call_later(self._sweep_seconds, self._sweep)

    def _must_leave(self, connection: Connection, now: float) -> bool:
        """Whether the connection had to authenticate, and has not in its time."""
        return (
            self._config.authentication_required
            and not connection.is_authenticated
            and now - connection.began_seconds > limits.AUTHENTICATION_S
        )
