"""Cluster state of one client: broker selection, metadata refresh, requests with retries.

Runs on one event loop. ``view`` contains the metadata, ``connections`` the connections; ``retry``
decides which errors are retried. This module handles no records.

Every broker can respond to a request that is not about one partition. The client prefers a broker
that is connected, that is not *suspect* (it has just failed, or returned stale metadata), and that
was used least recently. If that broker is unresponsive for a second, the client also sends the
request to the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

from raftlog import limits
from raftlog.client.connection import SILENCE_S, Connection, Connector
from raftlog.client.connections import CONNECT_PATIENCE_S, Connections, join
from raftlog.client.hedged_request import Attempt, NoAnswerError, first_answer
from raftlog.client.metadata import ClusterView, TopicView, unreachable
from raftlog.client.retry import Backoff, Chance, may_retry
from raftlog.client.settings import ConnectionSettings
from raftlog.config import Address
from raftlog.errors import (
    BrokerUnavailableError,
    OutcomeUnknownError,
    RaftlogError,
    RetriableError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.api import Api
from raftlog.protocol.metadata import MetadataRequest, MetadataResponse
from raftlog.protocol.schema import Message
from raftlog.types import TopicPartition

logger: Final = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_BACKOFF: Final = Backoff(first_ms=50, longest_ms=1_000)
SUSPECT_S: Final = 5.0  # time for which a failed broker is used only if there is no other
_OPINIONS_MAX: Final = 3  # brokers queried for metadata in turn while they disagree


class _Candidate(NamedTuple):
    """Broker to send a request to. ``broker_id`` is None for an address that is not known yet."""

    broker_id: int | None
    address: Address


class Cluster:
    """Cluster state that the components of one client share. ``close`` ends it."""

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        connector: Connector | None,
        chance: Chance,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.settings = settings
        self.view = ClusterView()
        self.all_topics = False  # request metadata of every topic, not only of topics in use
        self.on_view: list[Callable[[ClusterView], None]] = []  # called after every metadata update
        self._connections = Connections(settings, connector, entropy)
        self._chance = chance
        self._suspects: dict[int, float] = {}  # broker id -> end of the doubt, loop time
        self._last_requests: dict[int, int] = {}  # broker id -> number of its last request
        self._request_count = 0
        self._wanted: set[str] = set()  # topics whose metadata this client requests
        self._refresh: asyncio.Task[None] | None = None
        self._refresh_covers: frozenset[str] = frozenset()

    # -- connections

    async def connection(self, broker_id: int) -> Connection:
        """Return the connection to a broker. Opens it if needed.

        Raises ``BrokerUnavailableError`` if the broker cannot be reached, or is not in the cluster.
        """
        found = self.open_connection(broker_id)
        if found is not None:
            return found
        address = self.view.brokers.get(broker_id)
        if address is None:
            raise BrokerUnavailableError(f"broker {broker_id} is not in the cluster metadata")
        try:
            connection = await self._connections.to(address)
        except BrokerUnavailableError as error:
            raise BrokerUnavailableError(
                f"cannot connect to broker {broker_id} at {address}: {error}"
            ) from error
        if connection.broker_id != broker_id:
            raise BrokerUnavailableError(
                f"broker {connection.broker_id} is at {address}, not broker {broker_id}"
            )
        return connection

    async def connection_to(self, address: Address) -> Connection:
        """Return a connection to the broker at ``address``. Opens it if needed."""
        for connection in self._connections.all_open():
            if connection.address == address:
                return connection
        return await self._connections.to(address)

    def open_connection(self, broker_id: int) -> Connection | None:
        """Return the open connection to a broker, or None."""
        return self._connections.of(broker_id)

    async def any_connection(self) -> Connection:
        """Return a connection to any broker: an open one that is good, else the first to open."""
        candidates = self._candidates()
        for candidate in candidates[:1]:
            if candidate.broker_id is not None:
                found = self.open_connection(candidate.broker_id)
                if found is not None:
                    return found
        return await self._connections.first_of([address for _, address in candidates])

    # -- broker selection

    def mark_suspect(self, broker_id: int) -> None:
        """Prefer other brokers for ``SUSPECT_S`` seconds after a failure or stale metadata."""
        self._suspects[broker_id] = asyncio.get_running_loop().time() + SUSPECT_S

    def _candidates(
        self, *, rotate: bool = False, without: Container[int | None] = ()
    ) -> list[_Candidate]:
        """Return all brokers, the best first. ``rotate``: ignore which ones are connected."""
        brokers = dict(self.view.brokers)
        for connection in self._connections.all_open():
            brokers[connection.broker_id] = connection.address
        found = [
            _Candidate(broker_id, address)
            for broker_id, address in brokers.items()
            if broker_id not in without
        ]
        known = set(brokers.values())
        found += [
            _Candidate(None, address) for address in self.settings.bootstrap if address not in known
        ]
        now = asyncio.get_running_loop().time()

        def rank(candidate: _Candidate) -> tuple[bool, bool, int]:
            broker_id = candidate.broker_id
            if broker_id is None:
                return False, True, self._request_count  # may be another address of a known broker
            connection = self.open_connection(broker_id)
            suspects = self._suspects.get(broker_id, now) > now
            is_silent = connection is not None and connection.is_silent
            is_far = connection is None and not rotate
            return suspects or is_silent, is_far, self._last_requests.get(broker_id, 0)

        return sorted(found, key=rank)

    async def _ask_any(
        self, api: Api, message: Message, *, rotate: bool = False, without: Container[int] = ()
    ) -> tuple[int, Message]:
        """Return the first response of any broker, and its broker id. For idempotent requests."""
        self._connections.check_open()
        attempts = [
            Attempt(
                candidate.address,
                CONNECT_PATIENCE_S if self._is_far(candidate) else SILENCE_S,
                partial(self._ask, candidate, api, message),
            )
            for candidate in self._candidates(rotate=rotate, without=without)
        ]
        try:
            return await first_answer(attempts)
        except NoAnswerError as failed:
            for error in failed.reasons.values():
                if isinstance(error, RetriableError) and not isinstance(
                    error, BrokerUnavailableError
                ):
                    raise error from failed  # the error of a broker that responded
            raise unreachable(failed.reasons) from failed

    def _is_far(self, candidate: _Candidate) -> bool:
        broker_id = candidate.broker_id
        return broker_id is None or self.open_connection(broker_id) is None

    async def _ask(self, candidate: _Candidate, api: Api, message: Message) -> tuple[int, Message]:
        connection = None
        if candidate.broker_id is not None:
            connection = self.open_connection(candidate.broker_id)
        if connection is None:
            try:
                connection = await self._connections.to(candidate.address)
            except (RetriableError, OutcomeUnknownError):
                if candidate.broker_id is not None:
                    self.mark_suspect(candidate.broker_id)
                raise
        return connection.broker_id, await self.ask(connection, api, message)

    # -- metadata

    async def topic(self, name: str, *, timeout_ms: int | None = None) -> TopicView:
        """Return the topic. Requests its metadata if needed.

        Raises ``UnknownTopicError`` if it does not exist.
        """
        found = self.view.topics.get(name)
        if found is not None:
            return found
        return await self.topic_now(name, timeout_ms=timeout_ms)

    async def topic_now(self, name: str, *, timeout_ms: int | None = None) -> TopicView:
        """Return the topic as it is now: requests its metadata. Raises ``UnknownTopicError``."""

        async def attempt() -> TopicView:
            await self.refresh([name])
            return self.view.topic(name)

        return await self.persist(attempt, repeatable=True, timeout_ms=timeout_ms)

    async def check_partition(self, tp: TopicPartition) -> None:
        """Raise ``UnknownTopicError`` or ``UnknownPartitionError`` if the partition does not exist.

        Before the second one, requests metadata again: the partition may have been added.
        """
        topic = await self.topic(tp.topic)
        if tp.partition >= topic.partition_count:
            topic = await self.topic_now(tp.topic)
        topic.check_partition(tp.partition)

    def want(self, topic: str) -> None:
        """Request this topic with the next metadata, also if it did not exist before."""
        self._wanted.add(topic)

    async def refresh(self, topics: Iterable[str] = (), *, rotate: bool = False) -> ClusterView:
        """Request metadata of all topics in use and of ``topics`` now. Concurrent calls share one.

        ``rotate``: use a broker that was not queried recently, even if it is not connected.
        """
        wanted = set(topics)
        self._wanted |= wanted
        while self._refresh is not None and not wanted <= self._refresh_covers:
            await asyncio.wait([self._refresh])
        await join(self._start_refresh(rotate=rotate))
        return self.view

    def refresh_soon(self) -> None:
        """Request metadata without waiting for the response."""
        if not self._connections.closed:
            self._start_refresh()

    def _start_refresh(self, *, rotate: bool = False) -> asyncio.Task[None]:
        if self._refresh is None:
            self._refresh_covers = frozenset(self._wanted)
            self._refresh = asyncio.ensure_future(self._ask_metadata(rotate=rotate))
            self._refresh.add_done_callback(self._refreshed)
        return self._refresh

    async def keep_fresh(self) -> None:
        """Refresh metadata periodically until cancelled, to find changes that cause no error.

        Each refresh uses another broker, because an isolated broker returns stale metadata
        indefinitely.
        """
        while True:
            await asyncio.sleep(self.settings.metadata_max_age_ms / 1_000)
            if self._wanted or self.all_topics:
                try:
                    await self.refresh(rotate=True)
                except RaftlogError as error:
                    logger.debug("metadata refresh failed: error=%s", error)

    def forget_topics(self, keep: Iterable[str]) -> None:
        """Request metadata of the topics in ``keep`` only from now on."""
        self._wanted &= set(keep)

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refresh = None
        if not task.cancelled():
            task.exception()  # retrieved here in case no caller waits for it

    async def _ask_metadata(self, *, rotate: bool) -> None:
        asked = sorted(self._refresh_covers)
        sources: set[int] = set()
        is_sure = await self._ask_metadata_once(asked, sources, rotate=rotate)
        while not is_sure and len(sources) < _OPINIONS_MAX and self._candidates(without=sources):
            count = len(sources)
            try:
                async with asyncio.timeout(SILENCE_S):
                    is_sure = await self._ask_metadata_once(asked, sources)
            except (TimeoutError, RetriableError, OutcomeUnknownError):
                break  # no other broker responds
            if len(sources) == count:
                break
        self._wanted -= self.view.failures.keys()

    async def _ask_metadata_once(
        self, asked: list[str], sources: set[int], *, rotate: bool = False
    ) -> bool:
        """Apply the metadata of a broker that is not in ``sources``. Returns True if it suffices.

        Another broker must confirm a response that is older than the known metadata, that removes a
        topic, or that names a suspect broker as leader. Other brokers may know of an election that
        this broker does not know of.
        """
        is_short = len(asked) <= limits.TOPICS_PER_REQUEST_MAX and not self.all_topics
        topics = asked if is_short else None
        source, response = await self._ask_any(
            apis.METADATA, MetadataRequest(topics=topics), rotate=rotate, without=sources
        )
        assert isinstance(response, MetadataResponse)
        sources.add(source)
        self.view = self.view.merge(response, asked=topics, source=source)
        self._connections.cluster_id = self.view.cluster_id
        is_behind = self.view.is_ahead_of(response)
        if is_behind:
            logger.debug("stale metadata ignored: broker=%d", source)
            self.mark_suspect(source)
        else:
            self._suspects.pop(source, None)
        for callback in list(self.on_view):
            callback(self.view)
        if is_behind or any(name in self.view.doubts for name in asked):
            return False
        now = asyncio.get_running_loop().time()
        suspects = {broker for broker, until in self._suspects.items() if until > now}
        known = [self.view.topics[name] for name in asked if name in self.view.topics]
        others = self.view.brokers.keys() - suspects - sources
        return not others or not any(suspects & set(topic.leaders) for topic in known)

    # -- requests

    async def call(
        self,
        api: Api,
        message: Message,
        *,
        broker_id: int | None = None,
        timeout_ms: int | None = None,
    ) -> Message:
        """Send a request to one broker or to any broker, with the retries that ``retry`` allows."""

        async def attempt() -> Message:
            if broker_id is None and api.idempotent:
                return (await self._ask_any(api, message))[1]
            if broker_id is None:
                connection = await self.any_connection()
            else:
                connection = await self.connection(broker_id)
            return await self.ask(connection, api, message)

        return await self.persist(attempt, repeatable=api.idempotent, timeout_ms=timeout_ms)

    async def ask(
        self,
        connection: Connection,
        api: Api,
        message: Message,
        *,
        timeout_ms: int | None = None,
    ) -> Message:
        """Send one request on one connection, once. Default timeout: ``request_timeout_ms``."""
        self._request_count += 1
        self._last_requests[connection.broker_id] = self._request_count
        if timeout_ms is None:
            timeout_ms = self.settings.request_timeout_ms
        try:
            return (await connection.request(api, message, timeout_ms=timeout_ms)).message
        except (RetriableError, OutcomeUnknownError):
            self.mark_suspect(connection.broker_id)
            raise

    async def ask_all(
        self, api: Api, message: Message, *, brokers: Mapping[int, Address], patience_s: float
    ) -> dict[int, Message | RaftlogError]:
        """Return the response of each broker within ``patience_s`` seconds, or its error."""

        async def ask(broker_id: int, address: Address) -> Message | RaftlogError:
            try:
                async with asyncio.timeout(patience_s):
                    return (await self._ask(_Candidate(broker_id, address), api, message))[1]
            except TimeoutError:
                self.mark_suspect(broker_id)
                return BrokerUnavailableError(
                    f"broker {broker_id} at {address} did not respond within {patience_s:g} s"
                )
            except RaftlogError as error:
                return error

        answers = await asyncio.gather(*(ask(*broker) for broker in brokers.items()))
        self._connections.check_open()
        return dict(zip(brokers, answers, strict=True))

    async def persist(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        repeatable: bool,
        timeout_ms: int | None = None,
    ) -> T:
        """Call ``attempt()`` until it succeeds or its error cannot be retried.

        ``timeout_ms``: default: ``request_timeout_ms``. Before the first connection to any broker,
        ``bootstrap_timeout_ms`` is also a limit: a wrong address must be reported soon, but a
        broker that restarts must be waited for.
        """
        loop = asyncio.get_running_loop()
        settings = self.settings
        start = loop.time()
        if timeout_ms is None:
            timeout_ms = settings.request_timeout_ms
        tries = 0
        while True:
            self._connections.check_open()
            try:
                return await attempt()
            except RaftlogError as error:
                patience_ms = timeout_ms
                if not self._connections.reached:
                    patience_ms = min(patience_ms, settings.bootstrap_timeout_ms)
                delay = self.backoff_seconds(tries)
                if not may_retry(error, repeatable=repeatable):
                    raise
                if loop.time() + delay - start > patience_ms / 1_000:
                    raise
                logger.debug("retrying request: delay_s=%.3f error=%s", delay, error)
            tries += 1
            await asyncio.sleep(delay)

    def backoff_seconds(self, attempt: int) -> float:
        return RETRY_BACKOFF.seconds(attempt, self._chance)

    # -- the end

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        self._connections.closed = True
        self.on_view.clear()
        if self._refresh is not None:
            self._refresh.cancel()
            with suppress(asyncio.CancelledError, RaftlogError):
                await asyncio.wait([self._refresh])
        await self._connections.close()
