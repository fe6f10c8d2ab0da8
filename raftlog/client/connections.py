"""Open connections of a client: at most one per broker. Concurrent callers share an attempt.

Runs on one event loop. ``cluster`` selects the brokers and sends the requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from raftlog import tls
from raftlog.client.authentication import authenticate, keep_authenticated, prove_operator
from raftlog.client.connection import Connection, Connector, SocketConnector
from raftlog.client.hedged_request import Attempt, NoAnswerError, first_answer
from raftlog.client.metadata import unreachable
from raftlog.client.settings import ConnectionSettings
from raftlog.config import Address
from raftlog.errors import (
    AccessDeniedError,
    AuthenticationError,
    BrokerUnavailableError,
    ClosedError,
    ClusterNotReadyError,
    ConnectionLostError,
    RequestTimedOutError,
    ThrottledError,
    WrongClusterError,
)

T = TypeVar("T")

CONNECT_TIMEOUT_MS_MAX: Final = 10_000
CONNECT_PATIENCE_S: Final = 0.3  # then the next address is also tried


class Connections:
    """Connections that many tasks of one loop share. ``close`` ends them."""

    def __init__(
        self,
        settings: ConnectionSettings,
        connector: Connector | None,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.reached = False  # True after the first handshake with any broker
        self.cluster_id = ""  # if known, brokers of other clusters are rejected
        self.closed = False
        self._rejection = ""  # text of the last rejection of the credentials, until a success
        self._settings = settings
        self._connector = connector
        self._entropy = entropy
        self._by_broker: dict[int, Connection] = {}
        self._sessions: set[asyncio.Task[None]] = set()  # of connections that authenticate again
        self._connecting: dict[Address, asyncio.Task[Connection]] = {}

    def of(self, broker_id: int) -> Connection | None:
        """Return the open connection to a broker, or None."""
        found = self._by_broker.get(broker_id)
        return found if found is not None and not found.closed else None

    def all_open(self) -> list[Connection]:
        return [connection for connection in self._by_broker.values() if not connection.closed]

    async def to(self, address: Address) -> Connection:
        """Return a connection to the broker at ``address``. Concurrent calls share one."""
        self.check_open()
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.ensure_future(self._open(address))
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._connected(address, done))
        return await join(task)

    def _connected(self, address: Address, task: asyncio.Task[Connection]) -> None:
        self._connecting.pop(address, None)
        if not task.cancelled():
            task.exception()  # retrieved here in case no caller waits for it

    async def first_of(self, addresses: Sequence[Address]) -> Connection:
        """Return the first connection that opens. Slow attempts continue in the background.

        Raises ``BrokerUnavailableError`` with the reason for each address, or the error of a broker
        of another cluster.
        """
        attempts = [
            Attempt(address, CONNECT_PATIENCE_S, partial(self.to, address)) for address in addresses
        ]
        try:
            return await first_answer(attempts)
        except NoAnswerError as error:
            raise unreachable(error.reasons) from error

    async def _open(self, address: Address) -> Connection:
        if self._connector is None:
            self._connector = SocketConnector(self._settings.tls)
        timeout_ms = min(self._settings.request_timeout_ms, CONNECT_TIMEOUT_MS_MAX)
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                connection = await self._connector(address.host, address.port)
        except TimeoutError as error:
            raise BrokerUnavailableError(f"no connection within {timeout_ms} ms") from error
        except OSError as error:
            raise BrokerUnavailableError(_reason(error)) from error
        try:
            hello = await connection.handshake(self._settings.client_id, timeout_ms=timeout_ms)
            self.check_open()
            self._check_cluster(address, hello.cluster_id)
            await self._authenticate(connection, timeout_ms=timeout_ms)
        except (ConnectionLostError, RequestTimedOutError) as error:
            connection.abort(error)
            if self._settings.tls is None:
                cause = "requires TLS (security_protocol='SSL')"
            else:
                cause = (
                    "requires a certificate of this client (ssl_certfile, ssl_keyfile) from the "
                    "CA in its tls.client.ca.file"
                )
            raise BrokerUnavailableError(
                f"connected, but received no handshake response: {error}. Check whether the "
                f"broker {cause}, or is overloaded"
            ) from error
        except AuthenticationError as error:
            connection.abort(error)
            self._rejection = str(error)
            raise
        except (ClusterNotReadyError, ThrottledError) as error:  # of the authentication
            connection.abort(error)
            if self._rejection and isinstance(error, ThrottledError):
                # Attempts of this client are among the failures that the broker counts.
                raise AuthenticationError(self._rejection) from error
            raise BrokerUnavailableError(str(error)) from error
        except BaseException as error:
            connection.abort(ClosedError(f"the handshake failed: {error}"))
            raise
        self.reached, self._rejection = True, ""
        return await self._keep(connection)

    async def _authenticate(self, connection: Connection, *, timeout_ms: int) -> None:
        """Authenticate as an operator or by SASL if configured; by SASL, again before each session
        ends.
        """
        sasl, secret = self._settings.sasl, self._settings.operator_secret
        if secret:
            with contextlib.suppress(AccessDeniedError):  # requests that need it report this
                await prove_operator(connection, secret, self._entropy, timeout_ms=timeout_ms)
        if sasl is None:
            return
        lifetime_s = await authenticate(connection, sasl, self._entropy, timeout_ms=timeout_ms)
        if lifetime_s:
            task = asyncio.ensure_future(
                keep_authenticated(
                    connection, sasl, self._entropy, lifetime_s, timeout_ms=timeout_ms
                )
            )
            self._sessions.add(task)
            task.add_done_callback(self._sessions.discard)

    async def _keep(self, connection: Connection) -> Connection:
        """Keep one connection per broker, even if several addresses lead to it.

        The older connection is kept: a new one could overtake the requests that it carries.
        """
        older = self.of(connection.broker_id)
        if older is None:
            self._by_broker[connection.broker_id] = connection
            return connection
        await connection.close()
        if older.closed:
            raise BrokerUnavailableError("the connection was closed by another task")
        return older

    def _check_cluster(self, address: Address, cluster_id: str) -> None:
        if cluster_id and self.cluster_id and cluster_id != self.cluster_id:
            raise WrongClusterError(
                f"the broker at {address} belongs to cluster {cluster_id}, but this client is "
                f"connected to cluster {self.cluster_id}. Create a new client for another cluster"
            )

    def check_open(self) -> None:
        if self.closed:
            raise ClosedError("the client was closed")

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        self.closed = True
        tasks = [*self._connecting.values(), *self._sessions]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections = list(self._by_broker.values())
        await asyncio.gather(*(connection.close() for connection in connections))
        self._by_broker.clear()


async def join(task: asyncio.Task[T]) -> T:
    """Wait for a shared task. Only closing the client cancels it."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise ClosedError("the client was closed") from None
        raise


def _reason(error: OSError) -> str:
    """Return the cause without the address, which the caller adds."""
    if isinstance(error, ssl.SSLError):
        return tls.explain(error)
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: no process listens on this port"
    return error.strerror or str(error) or type(error).__name__
