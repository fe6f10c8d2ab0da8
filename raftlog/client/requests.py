"""A client's connections to partition leaders: open, connecting, or waiting for the next attempt.

No method waits. A caller that needs a connection which is not open gets None, and ``on_change`` is
called when that changes; likewise for fresh metadata, which maps partitions to brokers.

The producer's sender and the consumer's fetcher send their requests here: ``send`` keeps each one
with its partitions (the load) until the response, an error, or the end of the client. Its owner can
take partitions out of the load in that time.

A broker that is stopped or isolated keeps its connections and sends nothing. When a response is
overdue, its broker is suspect: metadata is requested from the other brokers until it answers, and
``on_change`` is called each time.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from raftlog import limits
from raftlog.client.cluster import NO_EPOCH, Cluster, PartitionView
from raftlog.client.connection import SILENCE_S, Answer, Connection
from raftlog.client.retry import is_behind, may_pass
from raftlog.client.settings import ConsumerSettings
from raftlog.errors import (
    AuthenticationError,
    ConnectionLostError,
    LeaderNotAvailableError,
    NotLeaderError,
    OutcomeUnknownError,
    RaftlogError,
    RefusedError,
    RequestTimedOutError,
    RetriableError,
    UnsupportedFeatureError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.api import Api
from raftlog.protocol.connection import expects_response
from raftlog.protocol.records import (
    DeletedRecords,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribedProducer,
    DescribedProducers,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    ListedPartition,
    ListedProducers,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListProducersRequest,
    ListProducersResponse,
    OffsetAnswer,
    OffsetQuery,
    ProducersQuery,
    RecordsToDelete,
)
from raftlog.protocol.schema import Failure, Message
from raftlog.types import Buffer, Isolation, LeaderEpoch, Offset, TimestampMs, TopicPartition

logger: Final = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 0.5  # check interval of overdue brokers


LoadT = TypeVar("LoadT")


@dataclass(slots=True, eq=False)
class InFlightRequest(Generic[LoadT]):
    """Request that is sent and has no response yet. ``overdue_at``: seconds, monotonic clock."""

    link: BrokerConnection[LoadT]
    load: LoadT
    overdue_at: float


@dataclass(slots=True)
class BrokerConnection(Generic[LoadT]):
    """Connection state of one broker."""

    broker_id: int
    was_open: bool = False
    connecting_since: float | None = None
    failures: int = 0  # consecutive failed connection attempts
    not_before: float = 0.0  # monotonic seconds; end of the connection back-off
    error: RaftlogError | None = None  # last connection error
    # Sent, without a response, in send order.
    in_flight: dict[InFlightRequest[LoadT], None] = field(default_factory=dict)

    @property
    def rejection(self) -> AuthenticationError | None:
        """The error if the broker rejected the credentials of this client: a retry repeats it."""
        return self.error if isinstance(self.error, AuthenticationError) else None

    @property
    def overdue_at(self) -> float:
        """Time at which the next response, or the connection, is overdue."""
        if self.in_flight:
            return min(request.overdue_at for request in self.in_flight)
        return math.inf if self.connecting_since is None else self.connecting_since + SILENCE_S

    def is_overdue(self, now: float) -> bool:
        """Return True if a response, or the connection, is overdue at ``now``."""
        return self.overdue_at <= now


class LoadOwner(Protocol[LoadT]):
    """The owner of the loads: what becomes of each one is its decision."""

    def on_change(self) -> None:
        """Process a changed connection, new metadata, or an overdue response."""
        ...

    def on_response(self, link: BrokerConnection[LoadT], load: LoadT, answer: Answer) -> None:
        """Process a response."""
        ...

    def on_failure(self, link: BrokerConnection[LoadT], load: LoadT, error: RaftlogError) -> None:
        """Process the failure of a whole request. Usually the connection failed."""
        ...


class BrokerConnections(Generic[LoadT]):
    """Connections to partition leaders. Used on one event loop. ``now``: monotonic seconds."""

    def __init__(
        self,
        cluster: Cluster,
        owner: LoadOwner[LoadT],
        *,
        now: Callable[[], float],
        in_flight_max: int,
    ) -> None:
        self.error: RaftlogError | None = None  # last metadata refresh error
        self._cluster = cluster
        self._now = now
        self._owner = owner
        self._in_flight_max = in_flight_max
        self._links: dict[int, BrokerConnection[LoadT]] = {}
        self._refreshing = False
        self._refreshes = 0  # consecutive refreshes without a successful request
        self._refresh_not_before = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = 0.0
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def link(self, broker_id: int) -> BrokerConnection[LoadT]:
        found = self._links.get(broker_id)
        if found is None:
            found = self._links[broker_id] = BrokerConnection(broker_id)
        return found

    def connection(self, link: BrokerConnection[LoadT], now: float) -> Connection | None:
        """Return the broker's connection if it can accept a request now; else start to connect."""
        connection = self._cluster.open_connection(link.broker_id)
        if connection is None:
            if link.was_open:
                link.was_open = False
                self.refresh()  # connection lost: its partitions may have new leaders
            if link.connecting_since is None and link.not_before <= now:
                link.connecting_since = now
                self._watch_from(link.overdue_at)
                self.run(self._connect(link))
            return None
        link.was_open = True
        if len(link.in_flight) >= self._in_flight_max:
            return None
        if not connection.writable:
            connection.on_writable = self._owner.on_change
            return None
        return connection

    def retry_at(self, link: BrokerConnection[LoadT], now: float) -> float | None:
        """Return the time of the next attempt; None if ``on_change`` or a response signals it."""
        return link.not_before if link.not_before > now and link.connecting_since is None else None

    def is_usable(self, broker_id: int, now: float) -> bool:
        """Return False for a broker that is known to be unreachable or unresponsive."""
        link = self._links.get(broker_id)
        if link is None:
            return True
        connection = self._cluster.open_connection(broker_id)
        if connection is not None:
            return not (link.is_overdue(now) and connection.is_silent)
        return not link.failures and not link.is_overdue(now)

    async def _connect(self, link: BrokerConnection[LoadT]) -> None:
        try:
            await self._cluster.connection(link.broker_id)
        except RaftlogError as error:
            link.not_before = self._now() + self._cluster.backoff_seconds(link.failures)
            if not link.failures:
                logger.warning("broker connection failed, retrying: error=%s", error)
            link.failures += 1
            link.error = error
            self._cluster.mark_suspect(link.broker_id)
            self.refresh()  # its partitions may have new leaders
        else:
            link.failures = 0
            link.error = None
        finally:
            link.connecting_since = None
        self._owner.on_change()

    # -- requests in flight

    def send(
        self,
        link: BrokerConnection[LoadT],
        connection: Connection,
        load: LoadT,
        api: Api,
        message: Message,
        attachment: Sequence[Buffer] = (),
        *,
        wait_ms: int = 0,
    ) -> bool:
        """Send a request. Returns False after ``on_failure`` if nothing was sent.

        ``wait_ms``: time that the broker may hold its response.
        """
        timeout_ms = self._cluster.settings.request_timeout_ms + wait_ms
        try:
            future = connection.start(api, message, attachment, timeout_ms=timeout_ms)
        except RaftlogError as error:
            self._failed(link, load, error)
            return False
        if expects_response(message):
            overdue_at = self._now() + wait_ms / 1_000 + SILENCE_S
            request = InFlightRequest(link, load, overdue_at)
            link.in_flight[request] = None
            self._watch_from(overdue_at)
            future.add_done_callback(partial(self._answered, request))
        return True

    def _answered(self, request: InFlightRequest[LoadT], future: asyncio.Future[Answer]) -> None:
        link = request.link
        del link.in_flight[request]
        error = future.exception()
        if self._closed:
            return
        if error is None:
            self._owner.on_response(link, request.load, future.result())
            return
        assert isinstance(error, RaftlogError), f"connections fail with our errors: {error!r}"
        self._failed(link, request.load, error)

    def _failed(self, link: BrokerConnection[LoadT], load: LoadT, error: RaftlogError) -> None:
        self.mark_suspect(link)
        self.refresh()
        self._owner.on_failure(link, load, error)

    def in_flight(self) -> Iterator[InFlightRequest[LoadT]]:
        """Yield the requests without a response, by broker."""
        for link in self._links.values():
            yield from link.in_flight

    def _watch_from(self, at: float) -> None:
        if self._closed or (self._watch is not None and self._watch_at <= at):
            return
        if self._watch is not None:
            self._watch.cancel()
        self._watch_at = at
        delay = max(at - self._now(), 0.0)
        self._watch = asyncio.get_running_loop().call_later(delay, self._check_overdue)

    def _check_overdue(self) -> None:
        self._watch = None
        now = self._now()
        overdue = [link for link in self._links.values() if link.is_overdue(now)]
        next_at = min((link.overdue_at for link in self._links.values()), default=math.inf)
        for link in overdue:
            self._cluster.mark_suspect(link.broker_id)
        if overdue:
            self.refresh()
            self._watch_from(now + _LOOK_AGAIN_S)
            self._owner.on_change()
        elif next_at != math.inf:
            self._watch_from(next_at)

    # -- metadata

    def refresh(self) -> float | None:
        """Request metadata. If the back-off has not ended, returns the time of the next request."""
        now = self._now()
        if self._refreshing or self._closed:
            return None
        if self._refresh_not_before > now:
            return self._refresh_not_before
        self._refreshing = True
        self._refresh_not_before = now + self._cluster.backoff_seconds(self._refreshes)
        self._refreshes += 1
        self.run(self._refresh())
        return None

    def mark_suspect(self, link: BrokerConnection[LoadT]) -> None:
        """Prefer other brokers for metadata, after stale metadata or no response."""
        self._cluster.mark_suspect(link.broker_id)

    def succeeded(self) -> None:
        """Reset the refresh back-off: the known metadata was right."""
        self._refreshes = 0

    async def _refresh(self) -> None:
        try:
            await self._cluster.refresh()
            self.error = None
        except RaftlogError as error:
            self.error = error
        finally:
            self._refreshing = False
        self._owner.on_change()

    # -- tasks

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until it is done, or until ``close``."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# -- partition requests ----------------------------------------------------------------------------
#
# Requests about partitions: split by leader, sent, merged and retried.
#
# The client stops waiting for an unresponsive leader once metadata names a newer one.


At: TypeAlias = Literal["earliest", "latest"] | TimestampMs


class PartitionAnswer(Protocol):
    """Common fields of every response about one partition."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def failure(self) -> Failure | None: ...


AnswerT = TypeVar("AnswerT", bound=PartitionAnswer)
Request: TypeAlias = Callable[[Sequence[TopicPartition]], Message]
Read: TypeAlias = Callable[[Message], Sequence[AnswerT]]
StandIn: TypeAlias = Callable[
    [Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, AnswerT]]
]


async def list_offsets(
    cluster: Cluster,
    queries: Mapping[TopicPartition, At],
    *,
    any_replica: bool = False,
    isolation: Isolation = "committed",
) -> dict[TopicPartition, OffsetAnswer]:
    """Return the response for each partition. Raises the first failure as its error. The end is
    that of a reader with this ``isolation``.

    ``any_replica``: while no leader responds, accept the start and end offsets of the replica with
    the highest high watermark. By default the call waits for the leader, because only the leader's
    end offsets never decrease. Times always need the leader.
    """

    async def stand_in(
        partitions: Sequence[TopicPartition],
    ) -> dict[TopicPartition, OffsetAnswer]:
        ends: dict[TopicPartition, End] = {}
        for tp in partitions:
            at = queries[tp]
            if at == "earliest" or at == "latest":
                ends[tp] = at
        return await replica_offsets(cluster, ends) if ends else {}

    asking = _asking_offsets(cluster, queries, isolation)
    return await asking.run(stand_in if any_replica else None)


async def try_offsets(
    cluster: Cluster,
    queries: Mapping[TopicPartition, At],
    *,
    patience_ms: int,
    isolation: Isolation = "committed",
) -> dict[TopicPartition, OffsetAnswer | RaftlogError]:
    """Return the response for each partition, or its error after ``patience_ms``."""
    return await _asking_offsets(cluster, queries, isolation).outcomes(patience_ms)


def _asking_offsets(
    cluster: Cluster, queries: Mapping[TopicPartition, At], isolation: Isolation
) -> _Asking[OffsetAnswer]:
    def request(partitions: Sequence[TopicPartition]) -> Message:
        return ListOffsetsRequest(
            queries=[
                OffsetQuery(
                    topic=tp.topic,
                    partition=tp.partition,
                    at=queries[tp],
                    leader_epoch=cluster.view.partition(*tp).leader_epoch,
                    isolation=isolation,
                )
                for tp in partitions
            ]
        )

    def read(message: Message) -> Sequence[OffsetAnswer]:
        assert isinstance(message, ListOffsetsResponse)
        return message.answers

    return _Asking(cluster, apis.LIST_OFFSETS, list(queries), request, read)


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, Offset]
) -> dict[TopicPartition, DeletedRecords]:
    """Return the response for each partition. Raises the first failure as its error."""

    def request(partitions: Sequence[TopicPartition]) -> Message:
        return DeleteRecordsRequest(
            partitions=[
                RecordsToDelete(topic=tp.topic, partition=tp.partition, before_offset=before[tp])
                for tp in partitions
            ]
        )

    def read(message: Message) -> Sequence[DeletedRecords]:
        assert isinstance(message, DeleteRecordsResponse)
        return message.partitions

    return await _Asking(cluster, apis.DELETE_RECORDS, list(before), request, read).run(None)


async def describe_producer(
    cluster: Cluster,
    partitions: Sequence[TopicPartition],
    producer_id: int,
    *,
    family_bits: int = 0,
) -> dict[TopicPartition, list[DescribedProducer]]:
    """Return the committed state of a producer in each partition, then of its siblings.

    ``family_bits``: see ``ProducersQuery``. Raises the first failure, and
    ``UnsupportedFeatureError`` if a broker does not know families.
    """

    def request(asked: Sequence[TopicPartition]) -> Message:
        return DescribeProducersRequest(
            partitions=[
                ProducersQuery(
                    topic=tp.topic,
                    partition=tp.partition,
                    producer_ids=[producer_id],
                    leader_epoch=cluster.view.partition(*tp).leader_epoch,
                    family_bits=family_bits,
                )
                for tp in asked
            ]
        )

    def read(message: Message) -> Sequence[DescribedProducers]:
        assert isinstance(message, DescribeProducersResponse)
        return message.partitions

    asking = _Asking(
        cluster, apis.DESCRIBE_PRODUCERS, partitions, request, read, step=_DESCRIBED_MAX
    )
    answers = await asking.run(None)
    found: dict[TopicPartition, list[DescribedProducer]] = {}
    for tp, answer in answers.items():
        if [one.producer_id for one in answer.producers] != [producer_id]:
            raise ConnectionLostError(f"the broker's response about {tp} is for other producers")
        if family_bits and answer.siblings is None:
            raise UnsupportedFeatureError(
                f"the leader of {tp} has a release that does not list the producers of a write. "
                "Update all brokers"
            )
        found[tp] = [*answer.producers, *(answer.siblings or ())]
    return found


async def try_list_producers(
    cluster: Cluster, windows: Mapping[TopicPartition, tuple[int, int]], *, patience_ms: int
) -> dict[TopicPartition, ListedProducers | RaftlogError]:
    """Return the producers of each partition, or its error after ``patience_ms``.

    ``windows``: how many producers to skip and to list; ``LISTED_PRODUCERS_MAX`` in total.
    """

    def request(partitions: Sequence[TopicPartition]) -> Message:
        return ListProducersRequest(
            partitions=[
                ListedPartition(
                    topic=tp.topic,
                    partition=tp.partition,
                    skip=windows[tp][0],
                    limit=windows[tp][1],
                    leader_epoch=cluster.view.partition(*tp).leader_epoch,
                )
                for tp in partitions
            ]
        )

    def read(message: Message) -> Sequence[ListedProducers]:
        assert isinstance(message, ListProducersResponse)
        return message.partitions

    asking = _Asking(cluster, apis.LIST_PRODUCERS, list(windows), request, read)
    return await asking.outcomes(patience_ms)


_DESCRIBED_MAX: Final = 1_000  # partitions of the longest names in PRODUCERS_HEADER_BYTES_MAX
_LEADER_LOOK_AGAIN_S: Final = 0.2  # check interval for a newer leader


@dataclass(slots=True)
class _Asking(Generic[AnswerT]):
    """One request for many partitions. Partitions with a retriable error are requested again."""

    cluster: Cluster
    api: Api
    partitions: Sequence[TopicPartition]
    request: Request
    read: Read[AnswerT]
    answers: dict[TopicPartition, AnswerT] = field(default_factory=dict)
    refused: dict[TopicPartition, RaftlogError] = field(default_factory=dict)
    troubles: dict[TopicPartition, RaftlogError] = field(default_factory=dict)  # retriable
    is_hasty: bool = False  # do not wait for an unresponsive leader
    judges_each: bool = False  # a partition that does not exist has only its own error
    step: int = limits.PARTITIONS_PER_REQUEST_MAX  # partitions in one request

    async def run(
        self, stand_in: StandIn[AnswerT] | None, *, patience_ms: int | None = None
    ) -> dict[TopicPartition, AnswerT]:
        """Send requests until all partitions have a response; without a leader, use ``stand_in``.

        ``patience_ms``: time limit. With it, the call does not wait for unresponsive leaders.
        """
        loop = asyncio.get_running_loop()
        stand_in_at = loop.time() + STAND_IN_AFTER_S
        self.is_hasty = stand_in is not None or patience_ms is not None

        async def attempt() -> None:
            try:
                await self._attempt()
            except RaftlogError:
                if stand_in is None or loop.time() < stand_in_at:
                    raise
                with suppress(RaftlogError):  # the leader's error is more useful
                    self.answers.update(await stand_in(self._left()))
                if self._left():
                    raise

        if self.partitions:
            await self.cluster.persist(
                attempt, repeatable=self.api.idempotent, timeout_ms=patience_ms
            )
        for tp in self.partitions:
            if tp in self.refused:
                raise self.refused[tp]
        return self.answers

    async def outcomes(self, patience_ms: int) -> dict[TopicPartition, AnswerT | RaftlogError]:
        """Return the response for each partition, or its error after ``patience_ms``."""
        problem: RaftlogError = LeaderNotAvailableError("the leader was not queried")
        self.judges_each = True
        try:
            await self.run(None, patience_ms=patience_ms)
        except RaftlogError as error:
            problem = error
        reasons = self.troubles | self.refused
        return {tp: self.answers.get(tp) or reasons.get(tp, problem) for tp in self.partitions}

    def _left(self) -> list[TopicPartition]:
        return [tp for tp in self.partitions if tp not in self.answers and tp not in self.refused]

    async def _attempt(self) -> None:
        failures: list[RaftlogError] = []
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in self._left():
            try:
                await self.cluster.check_partition(tp)
                by_leader.setdefault(self.cluster.view.leader(*tp), []).append(tp)
            except LeaderNotAvailableError as error:
                self.troubles[tp] = error
                failures.append(error)
            except RefusedError as error:
                if not self.judges_each:
                    raise
                self.refused[tp] = error
        found = await asyncio.gather(
            *(
                self._ask(leader, led[start : start + self.step])
                for leader, led in by_leader.items()
                for start in range(0, len(led), self.step)
            )
        )
        failures += [error for error in found if error is not None]
        if failures:
            self.cluster.refresh_soon()
            raise failures[0]

    async def _ask(self, leader: int, partitions: Sequence[TopicPartition]) -> RaftlogError | None:
        """Store the responses of a leader. Returns a retriable error, if there is one."""
        try:
            answers = self.read(await self._answer(leader, partitions))
        except RaftlogError as error:
            self.cluster.mark_suspect(leader)
            self.troubles.update(dict.fromkeys(partitions, error))
            return error
        found = [self._take(leader, answer) for answer in answers]
        return next((error for error in found if error is not None), None)

    def _take(self, leader: int, answer: AnswerT) -> RaftlogError | None:
        tp = TopicPartition(answer.topic, answer.partition)
        if answer.failure is None:
            self.answers[tp] = answer
            return None
        error = answer.failure.to_error()
        if is_behind(error):
            self.cluster.mark_suspect(leader)
        if isinstance(error, RetriableError | OutcomeUnknownError):
            self.troubles[tp] = error
            return error
        if may_pass(error, repeatable=self.api.idempotent):
            return NotLeaderError(f"broker {leader} seems to have stale metadata: {error}")
        self.refused[tp] = error
        return None

    async def _answer(self, leader: int, partitions: Sequence[TopicPartition]) -> Message:
        """Return the leader's response. Raises if there is none and a newer leader is known."""
        cluster, loop = self.cluster, asyncio.get_running_loop()
        epochs = [cluster.view.partition(*tp).leader_epoch for tp in partitions]

        async def ask() -> Message:
            connection = await cluster.connection(leader)
            answer = await connection.request(
                self.api,
                self.request(partitions),
                timeout_ms=cluster.settings.request_timeout_ms,
            )
            return answer.message

        asking = asyncio.ensure_future(ask())
        silent_at = loop.time() + SILENCE_S
        try:
            while not (await asyncio.wait([asking], timeout=_LEADER_LOOK_AGAIN_S))[0]:
                is_silent = loop.time() >= silent_at
                known = [cluster.view.partition(*tp).leader_epoch for tp in partitions]
                if known != epochs or (is_silent and self.is_hasty):
                    raise RequestTimedOutError(
                        f"broker {leader} does not respond to {self.api.name} for {partitions[0]}"
                    )
                if is_silent:
                    cluster.mark_suspect(leader)
                    cluster.refresh_soon()
            return asking.result()
        finally:
            asking.cancel()


# -- replica selector ------------------------------------------------------------------------------
#
# Selects the broker that a partition is read from: its leader, or a replica while there is none.
#
# A consumer reads committed records. The leader knows the newest high watermark, so it is the
# default source. While it is unreachable and no other leader is elected, another replica replaces
# it: records of a replica are committed, too, but there may be fewer.


STAND_IN_AFTER_S: Final = 1.0  # wait for a leader before another replica replaces it
_SHUN_S: Final = 2.0  # time for which a replica that refused a fetch is not used

End: TypeAlias = Literal["earliest", "latest"]


class Source(NamedTuple):
    """A broker to fetch a partition from."""

    broker_id: int
    leader_epoch: LeaderEpoch  # for fencing; NO_EPOCH while the leader is unreachable
    replica_ok: bool  # the broker need not be the leader


class ReplicaSelector:
    """Broker selection of one consumer. Used on one event loop. ``now``: monotonic seconds."""

    def __init__(
        self,
        settings: ConsumerSettings,
        cluster: Cluster,
        links: BrokerConnections[Any],
        *,
        turn: int,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._links = links
        self._turn = turn  # spreads the partitions of different consumers over the replicas
        self._lost_at: dict[TopicPartition, float] = {}  # since when no leader is reachable
        self._shunned: dict[tuple[TopicPartition, int], float] = {}  # -> end time
        self._disputed: set[TopicPartition] = set()

    def choose(self, tp: TopicPartition, now: float) -> Source | float:
        """Return the broker to fetch from now; else the time of the next attempt.

        Metadata or connection changes can make an earlier attempt possible. Raises ``RefusedError``
        if the partition does not exist, or its leader rejects the credentials of this client.
        """
        known = self._cluster.view.partition(tp.topic, tp.partition)
        if self._settings.read_from == "replica" and tp not in self._disputed:
            near = self._near(tp, known, now)
            if near is not None:
                return Source(near, known.leader_epoch, replica_ok=True)
        leader = known.leader
        if leader is not None and self._links.is_usable(leader, now):
            self._lost_at.pop(tp, None)
            return Source(leader, known.leader_epoch, replica_ok=False)
        again_at = self._links.refresh() or now + STAND_IN_AFTER_S
        if leader is not None:
            link = self._links.link(leader)
            self._links.connection(link, now)  # reconnects
            if link.rejection is not None:
                raise link.rejection
        # guard: a copy of a compacted partition is read from leaders only
        if not self._settings.has_stand_in:
            return again_at
        stand_in_at = self._lost_at.setdefault(tp, now) + STAND_IN_AFTER_S
        if stand_in_at > now:
            return min(again_at, stand_in_at)
        for broker_id in self._turned(tp, _others(known)):
            if self._is_good(tp, broker_id, now):
                return Source(broker_id, NO_EPOCH, replica_ok=True)
        return again_at

    def _near(self, tp: TopicPartition, known: PartitionView, now: float) -> int | None:
        """Return an in-sync replica, from the consumer's rack if possible (KIP-392)."""
        good = [broker_id for broker_id in known.isr if self._is_good(tp, broker_id, now)]
        racks = self._cluster.view.racks
        near = [
            broker_id
            for broker_id in good
            if self._settings.client_rack and racks.get(broker_id) == self._settings.client_rack
        ]
        return next(iter(self._turned(tp, near or good)), None)

    def _turned(self, tp: TopicPartition, brokers: Sequence[int]) -> Sequence[int]:
        """Return ``brokers`` rotated by partition number. The order for one partition is stable."""
        if not brokers:
            return brokers
        start = (self._turn + tp.partition) % len(brokers)
        return [*brokers[start:], *brokers[:start]]

    def _is_good(self, tp: TopicPartition, broker_id: int, now: float) -> bool:
        if not self._links.is_usable(broker_id, now):
            self._links.connection(self._links.link(broker_id), now)  # reconnects
            return False
        return self._shunned.get((tp, broker_id), now) <= now

    def refused(self, tp: TopicPartition, source: Source, now: float) -> None:
        """Prefer other replicas for ``_SHUN_S`` seconds after this one refused the partition."""
        self._shunned[tp, source.broker_id] = now + _SHUN_S

    def is_disputed(self, tp: TopicPartition) -> bool:
        """Return True if a replica reported the position as out of range: the leader decides."""
        return tp in self._disputed

    def dispute(self, tp: TopicPartition) -> None:
        self._disputed.add(tp)

    def resolve(self, tp: TopicPartition) -> None:
        """End the dispute: the leader has responded."""
        self._disputed.discard(tp)

    def turn(self, tp: TopicPartition) -> None:
        """Select another replica than before."""
        self._turn += 1
        self.resolve(tp)

    def keep(self, partitions: Mapping[TopicPartition, object]) -> None:
        """Discard the state of all other partitions."""
        self._disputed &= partitions.keys()
        self._lost_at = {tp: at for tp, at in self._lost_at.items() if tp in partitions}
        self._shunned = {key: at for key, at in self._shunned.items() if key[0] in partitions}


def _others(known: PartitionView) -> list[int]:
    """Return the replicas except the leader, in-sync replicas first, because they have the most."""
    return [
        broker_id
        for broker_id in dict.fromkeys((*known.isr, *known.replicas))
        if broker_id != known.leader
    ]


async def replica_offsets(
    cluster: Cluster, queries: Mapping[TopicPartition, End]
) -> dict[TopicPartition, OffsetAnswer]:
    """Return start or end offsets from the replica with the highest high watermark.

    For use without a leader. The end is the highest high watermark of the reachable replicas. It
    can be lower than an end that a leader has returned. A partition without any reachable replica
    is omitted.
    """
    view = cluster.view
    replicas = {
        broker_id
        for part in (view.partition(*tp) for tp in queries)
        for broker_id in (*part.isr, *part.replicas)
    }
    topics = sorted({tp.topic for tp in queries})
    answers = await cluster.ask_all(
        apis.DESCRIBE_TOPICS,
        DescribeTopicsRequest(topics=topics),
        brokers={id_: address for id_, address in view.brokers.items() if id_ in replicas},
        patience_s=SILENCE_S,
    )
    spans: dict[TopicPartition, tuple[int, int]] = {}  # (high watermark, log start offset)
    for answer in answers.values():
        if not isinstance(answer, DescribeTopicsResponse):
            continue
        for topic in answer.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.info.partition)
                span = (part.high_watermark, part.log_start_offset)
                if part.high_watermark >= 0:
                    spans[tp] = max(span, spans.get(tp, span))
    found: dict[TopicPartition, OffsetAnswer] = {}
    for tp, end in queries.items():
        if tp in spans:
            high_watermark, log_start = spans[tp]
            offset = log_start if end == "earliest" else high_watermark
            found[tp] = OffsetAnswer(topic=tp.topic, partition=tp.partition, offset=offset)
    return found
