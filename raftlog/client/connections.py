"""A client's open connections: at most one for each broker, opened once however many wait for it.

Lives on one event loop. Which broker is wanted, and what is asked of it, is ``cluster``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, TypeVar

from raftlog.client.connection import Connection, Connector, SocketConnector
from raftlog.client.hedged_request import Attempt, NoAnswerError, first_answer
from raftlog.client.metadata import unreachable
from raftlog.client.settings import ConnectionSettings
from raftlog.config import Address
from raftlog.errors import (
    BrokerUnavailableError,
    ClosedError,
    ConnectionLostError,
    RequestTimedOutError,
    WrongClusterError,
)

T = TypeVar("T")

CONNECT_TIMEOUT_MS_MAX: Final = 10_000
CONNECT_PATIENCE_S: Final = 0.3  # then the next address is tried beside a slow one


class Connections:
    """Used from many tasks of one loop; ``close`` ends it."""

    def __init__(self, settings: ConnectionSettings, connector: Connector | None) -> None:
        self.reached = False  # whether any broker has ever answered
        self.cluster_id = ""  # once it is known: brokers of another cluster are refused
        self.closed = False
        self._settings = settings
        self._connector = connector
        self._by_broker: dict[int, Connection] = {}
        self._connecting: dict[Address, asyncio.Task[Connection]] = {}

    def of(self, broker_id: int) -> Connection | None:
        """The connection to a broker, if there is one."""
        found = self._by_broker.get(broker_id)
        return found if found is not None and not found.closed else None

    def all_open(self) -> list[Connection]:
        return [connection for connection in self._by_broker.values() if not connection.closed]

    async def to(self, address: Address) -> Connection:
        """A connection to whoever is at ``address``. Concurrent calls share one."""
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
            task.exception()  # whoever waits has it; nobody need

    async def first_of(self, addresses: Sequence[Address]) -> Connection:
        """The first connection that can be had; those that are slow go on opening.

        Raises ``BrokerUnavailableError`` with each address's reason, or what a stranger answered.
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
            self._connector = SocketConnector()
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
        except (ConnectionLostError, RequestTimedOutError) as error:
            connection.abort(error)
            raise BrokerUnavailableError(
                f"connected, but received no handshake response: {error}. Check whether the "
                "broker is overloaded"
            ) from error
        except BaseException as error:
            connection.abort(ClosedError(f"the handshake failed: {error}"))
            raise
        self.reached = True
        return await self._keep(connection)

    async def _keep(self, connection: Connection) -> Connection:
        """One connection to a broker, though several addresses may lead to it.

        The older one is kept: requests that it carries would be overtaken on another.
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
                f"the broker at {address} belongs to cluster {cluster_id}, and this client is one "
                f"of cluster {self.cluster_id}: make a new client for another cluster"
            )

    def check_open(self) -> None:
        if self.closed:
            raise ClosedError("the client was closed")

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        self.closed = True
        tasks = list(self._connecting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections = list(self._by_broker.values())
        await asyncio.gather(*(connection.close() for connection in connections))
        self._by_broker.clear()


async def join(task: asyncio.Task[T]) -> T:
    """Wait for a task that others wait for, too. Only closing the client cancels it."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise ClosedError("the client was closed") from None
        raise


def _reason(error: OSError) -> str:
    """What went wrong, without the address, which the caller names."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    return error.strerror or str(error) or type(error).__name__
