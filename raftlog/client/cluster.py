"""A client's hold on its cluster: connections to brokers, fresh metadata, requests with retries.

Lives on one event loop. What is known stands in ``view``; what failed, and whether to try again, is
decided by ``retry``. No records here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from raftlog import limits
from raftlog.client.connection import Answer, Connection, Connector, SocketConnector
from raftlog.client.metadata import ClusterView, TopicView, unreachable
from raftlog.client.retry import Backoff, Chance, may_retry
from raftlog.client.settings import ConnectionSettings
from raftlog.config import Address
from raftlog.errors import (
    BrokerUnavailableError,
    ClosedError,
    ConnectionLostError,
    OutcomeUnknownError,
    RaftlogError,
    RefusedError,
    RequestTimedOutError,
    RetriableError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.api import Api
from raftlog.protocol.metadata import MetadataRequest, MetadataResponse
from raftlog.protocol.schema import Message

logger: Final = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_BACKOFF: Final = Backoff(first_ms=50, longest_ms=1_000)
CONNECT_TIMEOUT_MS_MAX: Final = 10_000


class Cluster:
    """Shared by the parts of one client, used from many tasks; ``close`` ends it."""

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        connector: Connector | None,
        chance: Chance,
    ) -> None:
        self.settings = settings
        self.view = ClusterView()
        self.on_view: list[Callable[[ClusterView], None]] = []  # called after every news
        self.reached = False  # whether any broker has ever answered
        self._connector = connector
        self._chance = chance
        self._by_broker: dict[int, Connection] = {}
        self._connecting: dict[Address, asyncio.Task[Connection]] = {}
        self._wanted: set[str] = set()  # topics that this client asks metadata for
        self._refresh: asyncio.Task[None] | None = None
        self._refresh_covers: frozenset[str] = frozenset()
        self._closed = False

    # -- connections

    async def connection(self, broker_id: int) -> Connection:
        """The connection to a broker, opened if need be."""
        found = self.open_connection(broker_id)
        if found is not None:
            return found
        address = self.view.brokers.get(broker_id)
        if address is None:
            raise BrokerUnavailableError(f"broker {broker_id} is not in the cluster at the moment")
        try:
            return await self._connect(address)
        except BrokerUnavailableError as error:
            raise BrokerUnavailableError(
                f"broker {broker_id}, which is to be reached at {address}, cannot be ({error})"
            ) from error

    def open_connection(self, broker_id: int) -> Connection | None:
        """The connection to a broker, if there is one."""
        found = self._by_broker.get(broker_id)
        return found if found is not None and not found.closed else None

    async def any_connection(self) -> Connection:
        """A connection to any broker: one that is open, else the first that can be opened."""
        for connection in self._by_broker.values():
            if not connection.closed:
                return connection
        addresses = list(dict.fromkeys([*self.view.brokers.values(), *self.settings.bootstrap]))
        reasons: dict[Address, RaftlogError] = {}
        for address in addresses:
            try:
                return await self._connect(address)
            except (RetriableError, OutcomeUnknownError, RefusedError) as error:
                if self._closed:
                    raise
                reasons[address] = error
        raise unreachable(reasons)

    async def _connect(self, address: Address) -> Connection:
        self._check_open()
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.ensure_future(self._open(address))
            self._connecting[address] = task
            task.add_done_callback(lambda _: self._connecting.pop(address, None))
        return await _join(task)

    async def _open(self, address: Address) -> Connection:
        if self._connector is None:
            self._connector = SocketConnector()
        timeout_ms = min(self.settings.request_timeout_ms, CONNECT_TIMEOUT_MS_MAX)
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                connection = await self._connector(address.host, address.port)
        except TimeoutError as error:
            raise BrokerUnavailableError(f"no connection within {timeout_ms} ms") from error
        except OSError as error:
            raise BrokerUnavailableError(_reason(error)) from error
        try:
            await connection.handshake(self.settings.client_id, timeout_ms=timeout_ms)
            self._check_open()
        except (ConnectionLostError, RequestTimedOutError) as error:
            connection.abort(error)
            raise BrokerUnavailableError(
                f"it took the connection and then fell silent: {error}"
            ) from error
        except BaseException as error:
            connection.abort(ClosedError(f"the handshake failed: {error}"))
            raise
        self.reached = True
        older = self._by_broker.get(connection.broker_id)
        if older is not None and not older.closed:
            await connection.close()  # two addresses lead to one broker: one connection is enough
            return older
        self._by_broker[connection.broker_id] = connection
        return connection

    # -- metadata

    async def topic(self, name: str, *, timeout_ms: int | None = None) -> TopicView:
        """The topic, asked for if it is not known yet; ``UnknownTopicError`` if there is none."""
        found = self.view.topics.get(name)
        if found is not None:
            return found

        async def attempt() -> TopicView:
            await self.refresh([name])
            return self.view.topic(name)

        return await self.persist(attempt, repeatable=True, timeout_ms=timeout_ms)

    async def refresh(self, topics: Iterable[str] = ()) -> ClusterView:
        """Ask for metadata now, of all topics in use and ``topics``. Concurrent calls share one."""
        wanted = set(topics)
        self._wanted |= wanted
        while self._refresh is not None and not wanted <= self._refresh_covers:
            await asyncio.wait([self._refresh])
        await _join(self._start_refresh())
        return self.view

    def refresh_soon(self) -> None:
        """Ask for metadata, without waiting for it."""
        if not self._closed:
            self._start_refresh()

    def _start_refresh(self) -> asyncio.Task[None]:
        if self._refresh is None:
            self._refresh_covers = frozenset(self._wanted)
            self._refresh = asyncio.ensure_future(self._ask_metadata())
            self._refresh.add_done_callback(self._refreshed)
        return self._refresh

    async def keep_fresh(self) -> None:
        """Refresh again and again, until cancelled, so that news are seen that no error brings."""
        while True:
            await asyncio.sleep(self.settings.metadata_max_age_ms / 1_000)
            if self._wanted:
                try:
                    await self.refresh()
                except RaftlogError as error:
                    logger.debug("metadata could not be refreshed: %s", error)

    def forget_topics(self, keep: Iterable[str]) -> None:
        """From now on, ask metadata for ``keep`` only."""
        self._wanted &= set(keep)

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refresh = None
        if not task.cancelled():
            task.exception()  # whoever waits has it; nobody need

    async def _ask_metadata(self) -> None:
        asked = sorted(self._refresh_covers)
        topics = asked if len(asked) <= limits.TOPICS_PER_REQUEST_MAX else None
        connection = await self.any_connection()
        answer = await connection.request(
            apis.METADATA,
            MetadataRequest(topics=topics),
            timeout_ms=self.settings.request_timeout_ms,
        )
        response = answer.message
        assert isinstance(response, MetadataResponse)
        self.view = self.view.merge(response, asked=topics)
        self._wanted -= self.view.failures.keys()
        for callback in self.on_view:
            callback(self.view)

    # -- requests

    async def call(
        self,
        api: Api,
        message: Message,
        *,
        broker_id: int | None = None,
        timeout_ms: int | None = None,
    ) -> Message:
        """The answer to a request, to any broker or to one; retried as ``retry`` allows."""
        request_timeout_ms = self.settings.request_timeout_ms

        async def attempt() -> Message:
            connection = (
                await self.any_connection()
                if broker_id is None
                else await self.connection(broker_id)
            )
            answer: Answer = await connection.request(api, message, timeout_ms=request_timeout_ms)
            return answer.message

        return await self.persist(attempt, repeatable=api.idempotent, timeout_ms=timeout_ms)

    async def persist(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        repeatable: bool,
        timeout_ms: int | None = None,
    ) -> T:
        """``attempt()``, again while its error allows it, for ``timeout_ms`` (a request's).

        Until a broker has been reached for the first time, ``bootstrap_timeout_ms`` is all there
        is: a wrong address is a mistake to report, a broker that goes away is an event to wait out.
        """
        loop = asyncio.get_running_loop()
        settings = self.settings
        start = loop.time()
        if timeout_ms is None:
            timeout_ms = settings.request_timeout_ms
        tries = 0
        while True:
            self._check_open()
            try:
                return await attempt()
            except RaftlogError as error:
                patience_ms = timeout_ms
                if not self.reached:
                    patience_ms = min(patience_ms, settings.bootstrap_timeout_ms)
                delay = self.backoff_seconds(tries)
                if not may_retry(error, repeatable=repeatable):
                    raise
                if loop.time() + delay - start > patience_ms / 1_000:
                    raise
                logger.debug("trying again in %.3f s after: %s", delay, error)
            tries += 1
            await asyncio.sleep(delay)

    def backoff_seconds(self, attempt: int) -> float:
        return RETRY_BACKOFF.seconds(attempt, self._chance)

    # -- the end

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the client was closed")

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        self._closed = True
        self.on_view.clear()
        tasks: list[asyncio.Task[Connection] | asyncio.Task[None]] = [*self._connecting.values()]
        if self._refresh is not None:
            tasks.append(self._refresh)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections = list(self._by_broker.values())
        await asyncio.gather(*(connection.close() for connection in connections))
        self._by_broker.clear()


async def _join(task: asyncio.Task[T]) -> T:
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
