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
import contextlib
import logging
import math
import os
import ssl
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from raftlog import limits, tls
from raftlog.client.connection import (
    SILENCE_S,
    Connection,
    Connector,
    SocketConnector,
    authenticate,
    keep_authenticated,
    prove_operator,
)
from raftlog.client.retry import Attempt, Backoff, Chance, NoAnswerError, first_answer, may_retry
from raftlog.client.settings import ConnectionSettings
from raftlog.config import Address
from raftlog.errors import (
    AccessDeniedError,
    AuthenticationError,
    BrokerUnavailableError,
    ClosedError,
    ClusterNotReadyError,
    ConnectionLostError,
    LeaderNotAvailableError,
    OutcomeUnknownError,
    RaftlogError,
    RefusedError,
    RequestTimedOutError,
    RetriableError,
    ThrottledError,
    UnknownPartitionError,
    UnknownTopicError,
    WrongClusterError,
    counted,
)
from raftlog.protocol import api as apis
from raftlog.protocol.api import Api
from raftlog.protocol.records import MetadataRequest, MetadataResponse, TopicInfo
from raftlog.protocol.schema import Message
from raftlog.types import LeaderEpoch, TopicPartition

# -- connections -----------------------------------------------------------------------------------
#
# Open connections of a client: at most one per broker. Concurrent callers share an attempt.
#
# Runs on one event loop. ``cluster`` selects the brokers and sends the requests.


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


# -- cluster ---------------------------------------------------------------------------------------


logger: Final = logging.getLogger(__name__)

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
        self.on_denied: list[Callable[[], None]] = []  # called when ``is_denied`` may have changed
        self._denied_at: dict[str, float] = {}  # start of the last request, of missing topics
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

    def is_denied(self, topic: str, *, since: float) -> bool:
        """Return whether a request that began at ``since`` (of the loop) or later found no topic of
        this name. An older answer says nothing: the topic may have been created after it.
        """
        return self._denied_at.get(topic, -math.inf) >= since

    def want(self, topic: str) -> None:
        """Request this topic with the next metadata, also if it did not exist before."""
        self._wanted.add(topic)

    async def refresh(self, topics: Iterable[str] = (), *, rotate: bool = False) -> ClusterView:
        """Request metadata of all topics in use and of ``topics`` now. Concurrent calls share one.

        ``rotate``: use a broker that was not queried recently, even if it is not connected.
        """
        wanted = set(topics)
        is_shared = await self._refresh_of(wanted, rotate=rotate)
        if is_shared and not self.view.failures.keys().isdisjoint(wanted):
            # It began before this call: a topic that was created in between is missing in it.
            await self._refresh_of(wanted, rotate=rotate)
        return self.view

    async def _refresh_of(self, wanted: set[str], *, rotate: bool) -> bool:
        """Request metadata. Returns whether the request had begun before."""
        self._wanted |= wanted
        while self._refresh is not None and not wanted <= self._refresh_covers:
            await asyncio.wait([self._refresh])
        is_shared = self._refresh is not None
        await join(self._start_refresh(rotate=rotate))
        return is_shared

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

    def want_only(self, topics: Iterable[str]) -> None:
        """Request metadata of these topics only from now on, also if it was not requested before:
        the view has that of topics that were in use earlier.
        """
        self._wanted = set(topics)

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refresh = None
        if not task.cancelled():
            task.exception()  # retrieved here in case no caller waits for it

    async def _ask_metadata(self, *, rotate: bool) -> None:
        asked = sorted(self._refresh_covers)
        began = asyncio.get_running_loop().time()
        sources: set[int] = set()
        # What a broker reported earlier confirms nothing now: the topic may be there again.
        self.view = replace(self.view, doubts={})
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
        topics, failures = self.view.topics, self.view.failures
        # A topic that a broker is about to know is asked for again: who reads it waits for it.
        missing = [
            name
            for name in asked
            if name not in topics and not isinstance(failures.get(name), RetriableError)
        ]
        self._wanted.difference_update(missing)
        kept = {name: at for name, at in self._denied_at.items() if name not in topics}
        self._denied_at = {**kept, **dict.fromkeys(missing, began)}
        for callback in list(self.on_denied) if missing else ():
            callback()

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
        self.on_denied.clear()
        if self._refresh is not None:
            self._refresh.cancel()
            with suppress(asyncio.CancelledError, RaftlogError):
                await asyncio.wait([self._refresh])
        await self._connections.close()


# -- metadata --------------------------------------------------------------------------------------
#
# Cluster metadata of a client: brokers, topics and partition leaders. Pure values.
#
# A ``ClusterView`` is immutable; each update creates a new one. ``cluster`` fetches the metadata.
#
# Every broker returns metadata, and an isolated broker returns stale metadata. So updates are
# merged:
#
#     a partition      the leader epoch decides: an older one changes nothing (KIP-320)
#     a known topic    its deletion, or another topic of this name, counts if two brokers report it,
#                      or the only broker
#     its partitions   are only added, never removed


NO_EPOCH: Final[LeaderEpoch] = -1  # not known
NO_SOURCE: Final = -1  # response of an unknown broker
_OPINIONS: Final = 2  # brokers that must agree before a known topic is removed
_GONE: Final = ""  # in place of a topic's id


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition. ``leader`` is a broker id, or None without a leader."""

    leader: int | None
    leader_epoch: LeaderEpoch = NO_EPOCH
    replicas: tuple[int, ...] = ()  # the preferred leader first
    isr: tuple[int, ...] = ()

    def updated(self, news: PartitionView) -> PartitionView:
        """Return the newer of the two."""
        if news.leader_epoch < self.leader_epoch:
            return self
        if news.leader is None and news.leader_epoch == self.leader_epoch != NO_EPOCH:
            # An epoch has one leader: a broker that reports none only lost its connection to it.
            return replace(news, leader=self.leader)
        return news


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic."""

    name: str
    id: str
    max_message_bytes: int
    partitions: tuple[PartitionView, ...]
    keys_required: bool = False  # the topic is compacted

    @property
    def leaders(self) -> tuple[int | None, ...]:
        return tuple(partition.leader for partition in self.partitions)

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    def check_partition(self, partition: int) -> int:
        """Return ``partition``. Raises ``UnknownPartitionError`` if the topic does not have it."""
        if not 0 <= partition < len(self.partitions):
            raise UnknownPartitionError(
                f"topic {self.name!r} has no partition {partition}. It has "
                f"{counted(len(self.partitions), 'partition')}, numbered from 0"
            )
        return partition

    def updated(self, news: TopicView) -> TopicView:
        """Return this topic, merged with the newer parts of ``news``."""
        merged = [
            known.updated(new) for known, new in zip(self.partitions, news.partitions, strict=False)
        ]
        longer = max(self.partitions, news.partitions, key=len)
        return replace(news, partitions=(*merged, *longer[len(merged) :]))

    def is_newer_than(self, other: TopicView) -> bool:
        """Return True if ``other``, of the same id, lacks partitions or leader epochs of this."""
        return len(other.partitions) < len(self.partitions) or any(
            theirs.leader_epoch < ours.leader_epoch
            for ours, theirs in zip(self.partitions, other.partitions, strict=False)
        )


@dataclass(frozen=True, slots=True)
class Doubt:
    """Unconfirmed reports about a topic, which more brokers must confirm."""

    topic_id: str  # of another topic of this name; empty: deleted
    brokers: frozenset[int]


_NO_TOPICS: Final[Mapping[str, TopicView]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Cluster metadata from one response, or from several merged responses."""

    cluster_id: str = ""
    brokers: Mapping[int, Address] = field(default_factory=dict)
    racks: Mapping[int, str] = field(default_factory=dict)  # of brokers with a rack
    topics: Mapping[str, TopicView] = field(default_factory=dict)
    failures: Mapping[str, RaftlogError] = field(default_factory=dict)  # of missing topics
    doubts: Mapping[str, Doubt] = field(default_factory=dict)
    controller: int | None = None  # in the last response

    def merge(
        self,
        response: MetadataResponse,
        *,
        asked: Sequence[str] | None,
        source: int = NO_SOURCE,
    ) -> ClusterView:
        """Return this view, merged with the response of broker ``source``.

        ``asked``: the requested topics; None: all.
        """
        brokers = {broker.id: Address(broker.host, broker.port) for broker in response.brokers}
        racks = {broker.id: broker.rack for broker in response.brokers if broker.rack}
        is_only_one = len({*brokers, *self.brokers, source} - {NO_SOURCE}) <= 1
        news = _News(
            source=source,
            opinions=1 if is_only_one else _OPINIONS,
            topics=dict(self.topics),
            failures={} if asked is None else dict(self.failures),
            doubts=dict(self.doubts),
        )
        for reported in _reported(response, self.topics if asked is None else _NO_TOPICS):
            news.take(*reported)
        return ClusterView(
            cluster_id=response.cluster_id or self.cluster_id,
            brokers=self._with_brokers(brokers, news.topics.values()),
            racks={**self.racks, **racks},
            topics=news.topics,
            failures=news.failures,
            doubts=news.doubts,
            controller=response.controller,
        )

    def _with_brokers(
        self, news: Mapping[int, Address], topics: Iterable[TopicView]
    ) -> dict[int, Address]:
        """Keep brokers in use: an isolated broker returns only itself, or a few brokers."""
        in_use = {
            broker
            for topic in topics
            for partition in topic.partitions
            for broker in (*partition.replicas, partition.leader)
        }
        is_alone = len(news) <= 1
        kept = {id_: at for id_, at in self.brokers.items() if is_alone or id_ in in_use}
        return {**news, **{id_: at for id_, at in kept.items() if id_ not in news}}

    def is_ahead_of(self, response: MetadataResponse) -> bool:
        """Return True if the response lacks something that this view contains."""
        for info in response.topics:
            known = self.topics.get(info.name)
            if known is None:
                continue
            if info.failure is not None or info.id != known.id:
                return True
            if known.is_newer_than(_topic_view(info)):
                return True
        return False

    def topic(self, name: str) -> TopicView:
        """Return the topic, or raise why it is missing."""
        found = self.topics.get(name)
        if found is not None:
            return found
        failure = self.failures.get(name)
        if failure is not None:
            raise type(failure)(*failure.args)
        raise UnknownTopicError(
            f"topic {name!r} does not exist. Create it, for example with "
            f"`raftlog topic create {name}`"
        )

    def partition(self, topic: str, partition: int) -> PartitionView:
        """Return the partition, or raise why it is missing.

        Returns a partition without a leader if the last broker did not have the topic's metadata
        yet.
        """
        if topic not in self.topics and isinstance(self.failures.get(topic), RetriableError):
            return PartitionView(None)
        view = self.topic(topic)
        return view.partitions[view.check_partition(partition)]

    def has_newer_leader(self, topic: str, partition: int, leader_epoch: LeaderEpoch) -> bool:
        """Return True if the partition has a leader in a later epoch than ``leader_epoch``."""
        try:
            known = self.partition(topic, partition)
        except RefusedError:
            return False
        return known.leader is not None and known.leader_epoch > leader_epoch

    def leader(self, topic: str, partition: int) -> int:
        """Return the id of the partition's leader. Raises ``LeaderNotAvailableError``."""
        leader = self.partition(topic, partition).leader
        if leader is None:
            raise LeaderNotAvailableError(f"{topic}:{partition} has no leader")
        return leader


@dataclass(slots=True, kw_only=True)
class _News:
    """Topics of a view while the response of broker ``source`` is merged."""

    source: int
    opinions: int  # brokers that must agree before a known topic is removed
    topics: dict[str, TopicView]
    failures: dict[str, RaftlogError]
    doubts: dict[str, Doubt]

    def take(self, name: str, news: TopicView | None, failure: RaftlogError | None) -> None:
        """Merge one topic: its metadata ``news``, or its absence."""
        known = self.topics.get(name)
        if known is not None and isinstance(failure, RetriableError):
            return  # a broker that has just started may not have the topic yet
        if news is not None and (known is None or known.id == news.id):
            believed = True
        else:
            believed = self._is_believed(name, _GONE if news is None else news.id)
        if believed:
            self.doubts.pop(name, None)
        elif known is not None:
            return
        self.failures.pop(name, None)
        if news is None:
            self.topics.pop(name, None)
            if failure is not None:
                self.failures[name] = failure
        elif known is None or known.id != news.id or self.opinions == 1:
            self.topics[name] = news
        else:
            self.topics[name] = known.updated(news)

    def _is_believed(self, name: str, topic_id: str) -> bool:
        """Return True if enough brokers report that the topic is not the known one."""
        doubt = self.doubts.get(name)
        before = doubt.brokers if doubt is not None and doubt.topic_id == topic_id else frozenset()
        self.doubts[name] = Doubt(topic_id, before | {self.source})
        return len(self.doubts[name].brokers) >= self.opinions


def _reported(
    response: MetadataResponse, known: Mapping[str, TopicView]
) -> list[tuple[str, TopicView | None, RaftlogError | None]]:
    """Return the report on each topic; absence for topics in ``known`` that it omits."""
    reported: list[tuple[str, TopicView | None, RaftlogError | None]] = [
        (info.name, _topic_view(info), None)
        if info.failure is None
        else (info.name, None, info.failure.to_error())
        for info in response.topics
    ]
    named = {name for name, _, _ in reported}
    return reported + [(name, None, None) for name in known if name not in named]


def _topic_view(info: TopicInfo) -> TopicView:
    count = 1 + max((part.partition for part in info.partitions), default=-1)
    partitions = [PartitionView(None)] * count
    for part in info.partitions:
        partitions[part.partition] = PartitionView(
            part.leader, part.leader_epoch, tuple(part.replicas), tuple(part.isr)
        )
    return TopicView(
        name=info.name,
        id=info.id,
        max_message_bytes=info.max_message_bytes,
        keys_required=info.keys_required,
        partitions=tuple(partitions),
    )


def unreachable(reasons: Mapping[Address, RaftlogError]) -> RaftlogError:
    """Return the error if no broker responded, with the reason for each address."""
    errors = list(reasons.values())
    for error in errors:
        if isinstance(error, AuthenticationError):
            return error  # all brokers have the same users
    if errors and not any(isinstance(error, BrokerUnavailableError) for error in errors):
        # Every address responded, but is not a broker of this cluster: waiting cannot help.
        return errors[0]
    listed = "; ".join(f"{address} ({error})" for address, error in reasons.items())
    return BrokerUnavailableError(
        f"no broker can be reached: {listed}. Start the brokers, for example with `raftlog up`, "
        "or check the argument bootstrap (RAFTLOG_BOOTSTRAP)"
    )
