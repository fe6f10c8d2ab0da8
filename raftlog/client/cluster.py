"""A client's hold on its cluster: which broker to ask, fresh metadata, requests with retries.

Lives on one event loop. What is known stands in ``view``, connections in ``connections``; what
failed, and whether to try again, is decided by ``retry``. No records here.

Any broker answers what is not about one partition, so the one to ask is chosen: rather one that is
connected, not one in *doubt* (it has just failed, or answered with old news), not the one that was
asked last; and when it says nothing for a second, the next one is asked beside it.
"""

from __future__ import annotations

import asyncio
import logging
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

logger: Final = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_BACKOFF: Final = Backoff(first_ms=50, longest_ms=1_000)
DOUBT_S: Final = 5.0  # so long a broker that failed is asked only when there is no other
_OPINIONS_MAX: Final = 3  # brokers asked for metadata, one after the other, while they disagree


class _Candidate(NamedTuple):
    """A broker to ask. ``broker_id`` is None for an address of which nothing is known yet."""

    broker_id: int | None
    address: Address


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
        self.all_topics = False  # ask for metadata of every topic, not only of those in use
        self.on_view: list[Callable[[ClusterView], None]] = []  # called after every news
        self._connections = Connections(settings, connector)
        self._chance = chance
        self._doubtful: dict[int, float] = {}  # broker id -> in doubt until then
        self._asked: dict[int, int] = {}  # broker id -> when it was asked last, as a count
        self._asks = 0
        self._wanted: set[str] = set()  # topics that this client asks metadata for
        self._refresh: asyncio.Task[None] | None = None
        self._refresh_covers: frozenset[str] = frozenset()

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
            connection = await self._connections.to(address)
        except BrokerUnavailableError as error:
            raise BrokerUnavailableError(
                f"cannot connect to broker {broker_id} at {address}: {error}"
            ) from error
        if connection.broker_id != broker_id:
            raise BrokerUnavailableError(
                f"broker {broker_id} is no longer at {address}: broker {connection.broker_id} is"
            )
        return connection

    async def connection_to(self, address: Address) -> Connection:
        """A connection to whoever is at ``address``, opened if need be."""
        for connection in self._connections.all_open():
            if connection.address == address:
                return connection
        return await self._connections.to(address)

    def open_connection(self, broker_id: int) -> Connection | None:
        """The connection to a broker, if there is one."""
        return self._connections.of(broker_id)

    async def any_connection(self) -> Connection:
        """A connection to any broker: a good one that is open, else the first that opens."""
        candidates = self._candidates()
        for candidate in candidates[:1]:
            if candidate.broker_id is not None:
                found = self.open_connection(candidate.broker_id)
                if found is not None:
                    return found
        return await self._connections.first_of([address for _, address in candidates])

    # -- whom to ask

    def doubt(self, broker_id: int) -> None:
        """This broker has failed, or its news were old: rather ask another, for a while."""
        self._doubtful[broker_id] = asyncio.get_running_loop().time() + DOUBT_S

    def _candidates(
        self, *, rotate: bool = False, without: Container[int | None] = ()
    ) -> list[_Candidate]:
        """Everyone that may be asked, the best first. ``rotate``: connected or not is no matter."""
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
                return False, True, self._asks  # it may be another name of one that is known
            connection = self.open_connection(broker_id)
            in_doubt = self._doubtful.get(broker_id, now) > now
            is_silent = connection is not None and connection.is_silent
            is_far = connection is None and not rotate
            return in_doubt or is_silent, is_far, self._asked.get(broker_id, 0)

        return sorted(found, key=rank)

    async def _ask_any(
        self, api: Api, message: Message, *, rotate: bool = False, without: Container[int] = ()
    ) -> tuple[int, Message]:
        """What the first broker to answer says, and which one that is. For idempotent requests."""
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
                    raise error from failed  # a broker has answered, and this is what it said
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
                    self.doubt(candidate.broker_id)
                raise
        return connection.broker_id, await self.ask(connection, api, message)

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

    async def refresh(self, topics: Iterable[str] = (), *, rotate: bool = False) -> ClusterView:
        """Ask for metadata now, of all topics in use and ``topics``. Concurrent calls share one.

        ``rotate``: of a broker that was not asked lately, though it may have to be connected to.
        """
        wanted = set(topics)
        self._wanted |= wanted
        while self._refresh is not None and not wanted <= self._refresh_covers:
            await asyncio.wait([self._refresh])
        await join(self._start_refresh(rotate=rotate))
        return self.view

    def refresh_soon(self) -> None:
        """Ask for metadata, without waiting for it."""
        if not self._connections.closed:
            self._start_refresh()

    def _start_refresh(self, *, rotate: bool = False) -> asyncio.Task[None]:
        if self._refresh is None:
            self._refresh_covers = frozenset(self._wanted)
            self._refresh = asyncio.ensure_future(self._ask_metadata(rotate=rotate))
            self._refresh.add_done_callback(self._refreshed)
        return self._refresh

    async def keep_fresh(self) -> None:
        """Refresh again and again, until cancelled, so that news are seen that no error brings.

        Each time another broker is asked: one that is cut off would go on with its old news.
        """
        while True:
            await asyncio.sleep(self.settings.metadata_max_age_ms / 1_000)
            if self._wanted or self.all_topics:
                try:
                    await self.refresh(rotate=True)
                except RaftlogError as error:
                    logger.debug("metadata could not be refreshed: %s", error)

    def forget_topics(self, keep: Iterable[str]) -> None:
        """From now on, ask metadata for ``keep`` only."""
        self._wanted &= set(keep)

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refresh = None
        if not task.cancelled():
            task.exception()  # whoever waits has it; nobody need

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
                break  # there is nobody else to ask
            if len(sources) == count:
                break
        self._wanted -= self.view.failures.keys()

    async def _ask_metadata_once(
        self, asked: list[str], sources: set[int], *, rotate: bool = False
    ) -> bool:
        """Take the answer of a broker that is not in ``sources`` yet; whether that is enough.

        It is not when the answer is older than what is known, when it takes a topic away, or when a
        broker that is in doubt leads by it: others may know of an election that it does not.
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
            logger.debug("broker %d has answered with old news", source)
            self.doubt(source)
        else:
            self._doubtful.pop(source, None)
        for callback in list(self.on_view):
            callback(self.view)
        if is_behind or any(name in self.view.doubts for name in asked):
            return False
        now = asyncio.get_running_loop().time()
        in_doubt = {broker for broker, until in self._doubtful.items() if until > now}
        known = [self.view.topics[name] for name in asked if name in self.view.topics]
        others = self.view.brokers.keys() - in_doubt - sources
        return not others or not any(in_doubt & set(topic.leaders) for topic in known)

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
        """One request on one connection, once; default timeout: a request's."""
        self._asks += 1
        self._asked[connection.broker_id] = self._asks
        if timeout_ms is None:
            timeout_ms = self.settings.request_timeout_ms
        try:
            return (await connection.request(api, message, timeout_ms=timeout_ms)).message
        except (RetriableError, OutcomeUnknownError):
            self.doubt(connection.broker_id)
            raise

    async def ask_all(
        self, api: Api, message: Message, *, brokers: Mapping[int, Address], patience_s: float
    ) -> dict[int, Message | RaftlogError]:
        """What each of ``brokers`` answers within ``patience_s``, or why it does not."""

        async def ask(broker_id: int, address: Address) -> Message | RaftlogError:
            try:
                async with asyncio.timeout(patience_s):
                    return (await self._ask(_Candidate(broker_id, address), api, message))[1]
            except TimeoutError:
                self.doubt(broker_id)
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
                logger.debug("trying again in %.3f s after: %s", delay, error)
            tries += 1
            await asyncio.sleep(delay)

    def backoff_seconds(self, attempt: int) -> float:
        return RETRY_BACKOFF.seconds(attempt, self._chance)

    # -- the end

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        self._connections.closed = True
        self.on_view.clear()
        if self._refresh is not None:
            self._refresh.cancel()
            with suppress(asyncio.CancelledError, RaftlogError):
                await asyncio.wait([self._refresh])
        await self._connections.close()
