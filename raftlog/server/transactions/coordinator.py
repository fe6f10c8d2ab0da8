"""Coordinators of the transactional ids in the ``__transaction_state`` partitions led here, and the
way to those of other brokers.

A leader asks the coordinator before it appends the first batch of a transaction (``verify``). A
coordinator sends markers to the leaders. What goes to the same broker at the same time is one
request, and few requests are under way at a time: under load, they get larger instead of more.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from raftlog import limits
from raftlog.errors import (
    BrokerUnavailableError,
    ConcurrentTransactionsError,
    InvalidProducerMappingError,
    InvalidRequestError,
    LeaderNotAvailableError,
    RaftlogError,
    RequestTimedOutError,
    ThrottledError,
    UnknownTopicError,
    UnsupportedFeatureError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.peer import (
    MarkerPart,
    TopicIdPartition,
    TransactionItemsResponse,
    TransactionMarkersRequest,
    TransactionQuery,
    VerifyTransactionsRequest,
)
from raftlog.replication.cluster_commands import PEER_PROTOCOL_TRANSACTIONS
from raftlog.server.groups.coordinator import Lookup, TopicMaker
from raftlog.server.log_shard import LedShards
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge
from raftlog.server.transactions.hanging import HangingTransactions
from raftlog.server.transactions.shard import (
    BUSY_SECONDS,
    ActiveTransactions,
    MarkedPart,
    Place,
    TransactionServices,
)
from raftlog.transactions import (
    BUMPING_VERSION,
    Marker,
    Part,
    ProducerIdentity,
    TransactionPart,
    TransactionSettings,
    check_transactional_id,
    partition_of_id,
)
from raftlog.types import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    LeaderEpoch,
    Offset,
    check_not_internal,
)

if TYPE_CHECKING:
    from raftlog.server.context import BrokerContext

logger = logging.getLogger(__name__)

VERIFY_PAUSE_SECONDS: Final = 0.005  # before a question is asked again
VERIFY_SECONDS: Final = 5.0  # for the answer of a coordinator on another broker
MARKERS_SECONDS: Final = 5.0  # for the answer of a leader on another broker
# Seconds in which a leader answers, so that one partition that cannot commit holds up no others.
COMMIT_SECONDS: Final = 1.0
MARKER_HOLD_SECONDS: Final = 0.002  # for the next batch of the producer
REQUESTS_UNDER_WAY: Final = 4  # to one broker


class TransactionCoordinator:
    """Exists as long as the broker, on its event loop."""

    def __init__(
        self,
        context: BrokerContext,
        maker: TopicMaker,
        *,
        confirm: Callable[[Partition, Acknowledge], None],
        on_unreadable: Callable[[Partition, Offset], None],
    ) -> None:
        config = context.config
        self._context = context
        self.lookup = Lookup(
            context.topics, maker, check=check_transactional_id, partition_of=partition_of_id
        )
        services = TransactionServices(
            loop=context.loop,
            clock=context.clock,
            confirm=confirm,
            on_unreadable=on_unreadable,
            reading=asyncio.Lock(),
            settings=TransactionSettings(
                timeout_ms_max=config.transaction_max_timeout_ms,
                expiration_ms=config.transactional_id_expiration_ms,
            ),
            find=self._find,
            mark=self._mark,
        )
        self._shards = LedShards(
            TRANSACTIONS_TOPIC,
            context.topics,
            context.loop,
            lambda host: ActiveTransactions(host, services),
            what=ActiveTransactions.what,
        )
        self._questions = ToBrokers(context.loop, self._ask)
        self._markers = ToBrokers(context.loop, self._send)
        self._marked = MarkedTransactions()
        self.hanging = HangingTransactions(context, self.shards)

    # -- calls of the broker -----------------------------------------------------------------------

    def poll_soon(self) -> None:
        """Check soon whether partitions have another leader."""
        self._shards.poll_soon()

    def close(self, reason: RaftlogError) -> None:
        """Coordinate nothing more. Responses that wait for the log are sent when it is
        committed.
        """
        self._shards.close(reason)

    async def stop(self) -> None:
        """Close, and return once no task of it runs."""
        await self.hanging.stop()
        await self._shards.stop()
        await self._questions.stop()
        await self._markers.stop()

    # -- requests of clients -----------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Newest version of transactions that clients can use; 0 while a broker may know none."""
        protocol = self._context.operations.peer_protocol
        return BUMPING_VERSION if protocol >= PEER_PROTOCOL_TRANSACTIONS else 0

    def check_available(self) -> None:
        """Raise ``UnsupportedFeatureError`` while a broker may not know transactions."""
        if not self.version:
            raise UnsupportedFeatureError(
                "transactions require that all brokers support them. Upgrade them, then run "
                "`raftlog cluster features --upgrade`"
            )

    def shard(self, name: str) -> ActiveTransactions:
        """Return the shard of a transactional id.

        Raises ``InvalidRequestError``, ``UnsupportedFeatureError``, or ``NotCoordinatorError`` with
        the leader of its partition.
        """
        check_transactional_id(name)
        self.check_available()
        return self._shards.find(name, partition_of_id)[1]

    def shards(self) -> list[ActiveTransactions]:
        """Return the shards of all partitions that this broker leads."""
        return self._shards.all()

    @property
    def topics_version(self) -> int:
        """Version of the cluster's state that this broker has."""
        return self._context.cluster.machine.version

    # -- questions of leaders ----------------------------------------------------------------------

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        parts: Sequence[TransactionPart],
        *,
        add: bool,
        done: Acknowledge,
        patience_s: float = BUSY_SECONDS,
    ) -> None:
        """Call ``done`` once it is durable that the partitions are in the open transaction of the
        producer, or with the reason why they are not.

        ``add``: adds those that are missing. ``patience_s``: seconds to wait for the end of the
        last transaction. The reasons are those of ``TransactionShard.check`` and ``add``, and
        retriable ones if the coordinator cannot be asked.
        """
        query = TransactionQuery(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=[
                TopicIdPartition(topic_id=part.topic_id, partition=part.partition) for part in parts
            ],
            adds=add,
            topics_version=self.topics_version,
        )
        loop = self._context.loop
        until = loop.time() + patience_s

        def attempt() -> None:
            try:
                leader = self._leader_of(transactional_id)
            except RaftlogError as error:
                done(error)
                return
            if leader == self._context.broker_id:
                self.answer(query, answered)
            else:
                self._questions.add(leader, query, answered)

        def answered(error: RaftlogError | None) -> None:
            # The coordinator waits for a moment only: others may share the request.
            if isinstance(error, ConcurrentTransactionsError) and loop.time() < until:
                loop.call_later(VERIFY_PAUSE_SECONDS, attempt)
            else:
                done(error)

        attempt()

    def coordinator_epoch(self, name: str) -> LeaderEpoch:
        """Return the epoch of the coordinator that this broker knows: one that confirms a question
        from now on has no lower one. 0 without any.
        """
        topic = self._context.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return 0
        partition = partition_of_id(check_transactional_id(name), len(topic.hosts))
        return max(0, self._context.topics.info(topic, partition).leader_epoch)

    def _leader_of(self, name: str) -> int:
        check_transactional_id(name)
        self.check_available()
        context = self._context
        topic = context.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            context.topics.check_complete()
            raise InvalidProducerMappingError(
                f"transactional id {name!r} is not known. Initialize the producer"
            )
        partition = partition_of_id(name, len(topic.hosts))
        leader = context.topics.info(topic, partition).leader
        if leader is None:
            raise LeaderNotAvailableError(
                f"{TRANSACTIONS_TOPIC}:{partition}, which stores the state of {name!r}, has no "
                "leader"
            )
        return leader

    def answer(self, query: TransactionQuery, done: Acknowledge) -> None:
        """Answer the question of a leader: of this broker, or of another one."""
        try:
            shard = self.shard(query.transactional_id)
        except RaftlogError as error:
            done(error)
            return
        shard.verify(
            query.transactional_id,
            ProducerIdentity(query.producer_id, query.producer_epoch),
            [(each.topic_id, each.partition) for each in query.partitions],
            done,
            adds=query.adds,
            topics_version=query.topics_version,
        )

    async def _ask(self, broker: int, queries: list[TransactionQuery]) -> list[RaftlogError | None]:
        request = VerifyTransactionsRequest(queries=queries)
        links = self._context.cluster.links
        answer = await links.ask(broker, apis.VERIFY_TRANSACTIONS, request, VERIFY_SECONDS)
        return _errors(cast(TransactionItemsResponse, answer))

    # -- markers -----------------------------------------------------------------------------------

    def _find(self, part: Part, topics_version: int) -> Place | None:
        """See ``TransactionServices.find``."""
        context, (topic_id, number) = self._context, part
        try:
            topic = context.topics.by_id(topic_id)
        except UnknownTopicError:
            topic = None
        cluster = context.cluster
        is_known = topic is not None and number < len(topic.hosts)
        if not is_known:
            record = cluster.machine.topic_by_id(topic_id)
            # guard: a topic that a broker has not received yet is not deleted
            if cluster.machine.version < topics_version or (
                record is not None and number < len(record.partitions)
            ):
                raise LeaderNotAvailableError(
                    f"this broker has not received topic id {topic_id} of a transaction yet"
                )
        if topic is None or not is_known:
            return None
        leader = context.topics.info(topic, number).leader
        return Place(TransactionPart(topic.name, topic_id, number), leader)

    def _mark(self, leader: int, marked: MarkedPart, done: Acknowledge) -> None:
        """Send a marker to a leader. ``done``: once it is committed there, or with the error."""
        part, marker = marked.part, marked.marker
        item = MarkerPart(
            topic=part.topic,
            topic_id=part.topic_id,
            partition=part.partition,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            is_commit=marker.is_commit,
            coordinator_epoch=marker.coordinator_epoch,
            is_bumped=marker.is_bumped,
            number=marked.number,
            reserves=marker.reserves,
        )
        if leader == self._context.broker_id:
            self.take_marker(item, done)
        else:
            self._markers.add(leader, item, done)

    async def _send(self, broker: int, markers: list[MarkerPart]) -> list[RaftlogError | None]:
        request = TransactionMarkersRequest(markers=markers)
        links = self._context.cluster.links
        answer = await links.ask(broker, apis.TRANSACTION_MARKERS, request, MARKERS_SECONDS)
        return _errors(cast(TransactionItemsResponse, answer))

    def write_marker(self, topic: str, partition: int, marker: Marker, done: Acknowledge) -> None:
        """Write the marker of an operator, who ends a transaction that hangs. Raises the errors of
        ``Partition.append_marker``, ``InvalidTopicError`` and ``InvalidRequestError``.
        """
        if min(marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) < 0:
            raise InvalidRequestError(
                f"a marker for producer {marker.producer_id} with epoch {marker.producer_epoch} of "
                f"coordinator epoch {marker.coordinator_epoch}: none of them is negative"
            )
        host = self._context.topics.host(topic, partition)
        if topic != OFFSETS_TOPIC:
            # guard: an operator writes no marker among the records of the brokers
            check_not_internal(topic)
        host.check_leading()
        self._end(host, marker, done)

    def take_marker(self, item: MarkerPart, done: Acknowledge) -> None:
        """End a transaction in a partition that this broker leads. ``done``: once that is
        committed, or with the error; within ``COMMIT_SECONDS``.
        """
        is_over = False

        def once(error: RaftlogError | None) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                timer.cancel()
                done(error)

        late = RequestTimedOutError(
            f"{item.topic}:{item.partition} has not committed the marker within "
            f"{COMMIT_SECONDS:g} s. Check its replicas"
        )
        timer = self._context.loop.call_later(COMMIT_SECONDS, once, late)
        part = TransactionPart(item.topic, item.topic_id, item.partition)
        marker = Marker(
            item.producer_id,
            item.producer_epoch,
            item.is_commit,
            item.coordinator_epoch,
            item.is_bumped,
            item.reserves,
        )

        def apply() -> None:
            try:
                self._apply(part, marker, item.number, once)
            except RaftlogError as error:
                once(error)

        try:
            host = self._context.topics.host(part.topic, part.partition)
        except RaftlogError as error:
            once(error)
            return
        is_early = marker.reserves and marker.producer_id not in host.verifications
        if is_early and part.topic != OFFSETS_TOPIC:
            self._hold(host.held_markers, marker.producer_id, apply)
        else:
            apply()

    def _hold(
        self, held: dict[int, Callable[[], None]], producer_id: int, apply: Callable[[], None]
    ) -> None:
        """Apply a marker with the first batch of the next transaction, which is about to come: they
        are then synced and replicated together.
        """

        def release() -> None:
            timer.cancel()
            if held.get(producer_id) is release:
                del held[producer_id]
            apply()

        timer = self._context.loop.call_later(MARKER_HOLD_SECONDS, release)
        held[producer_id] = release

    def _apply(self, part: TransactionPart, marker: Marker, number: int, done: Acknowledge) -> None:
        context = self._context
        host = context.topics.host(part.topic, part.partition)
        host.check_topic(part.topic_id)
        host.check_leading()
        if self._marked.has(host, marker, number):
            host.when_committed(host.log.log_end_offset, done)
            return
        self._end(host, marker, done)
        self._marked.note(host, marker, number)

    def _end(self, host: Partition, marker: Marker, done: Acknowledge) -> None:
        """End the transaction in a partition. Offsets that are pending are no records yet."""
        name = host.topic_partition
        if name.topic == OFFSETS_TOPIC:
            shard = self._context.coordinator.shard_of(name.partition)
            shard.end_transaction(marker, lambda _nothing: done(None), done)
        else:
            host.append_marker(marker, done)


class MarkedTransactions:
    """The transactions that this broker has ended, where their epoch does not tell them apart.

    In version 1 of transactions, the next transaction of a producer has the same epoch. A marker
    that arrives again then would end it. So a leader ends each transaction once: it notes its
    number, as long as it leads the partition in the same epoch.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, tuple[LeaderEpoch, int]] = {}

    def has(self, host: Partition, marker: Marker, number: int) -> bool:
        """Whether this one, or a later one, was ended."""
        epoch, newest = self._numbers.get(_key(host, marker), (-1, 0))
        # guard: a marker that arrives again ends no later transaction
        return not marker.is_bumped and epoch == host.leader_epoch and number <= newest

    def note(self, host: Partition, marker: Marker, number: int) -> None:
        if marker.is_bumped:
            return
        if len(self._numbers) >= limits.MARKERS_NOTED_MAX:
            del self._numbers[next(iter(self._numbers))]
        key = _key(host, marker)
        self._numbers.pop(key, None)  # to the end
        self._numbers[key] = host.leader_epoch, number


def _key(host: Partition, marker: Marker) -> Hashable:
    return marker.producer_id, host.topic_id, host.topic_partition.partition


def _errors(answer: TransactionItemsResponse) -> list[RaftlogError | None]:
    return [None if failure is None else failure.to_error() for failure in answer.failures]


# -- to brokers ------------------------------------------------------------------------------------


Item = TypeVar("Item")


class ToBrokers(Generic[Item]):
    """Sends items to other brokers: several in one request, and few requests at a time."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        ask: Callable[[int, list[Item]], Awaitable[list[RaftlogError | None]]],
    ) -> None:
        """``ask``: sends items to a broker, and returns the error of each, or None."""
        self._loop = loop
        self._ask = ask
        self._queues: dict[int, deque[tuple[Item, Acknowledge]]] = {}
        self._under_way: dict[int, int] = {}
        self._due: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, broker: int, item: Item, done: Acknowledge) -> None:
        """Send an item soon, and call ``done`` with its result."""
        queue = self._queues.setdefault(broker, deque())
        if len(queue) >= limits.TRANSACTION_ITEMS_QUEUED_MAX:
            done(
                ThrottledError(
                    f"{len(queue)} markers or questions wait for broker {broker}, and "
                    "TRANSACTION_ITEMS_QUEUED_MAX is reached. Try again later"
                )
            )
            return
        queue.append((item, done))
        if broker not in self._due:
            self._due.add(broker)
            self._loop.call_soon(self._flush, broker)

    def _flush(self, broker: int) -> None:
        self._due.discard(broker)
        queue = self._queues[broker]
        while queue and self._under_way.get(broker, 0) < REQUESTS_UNDER_WAY:
            count = min(len(queue), limits.TRANSACTION_ITEMS_PER_REQUEST_MAX)
            items = [queue.popleft() for _ in range(count)]
            self._under_way[broker] = self._under_way.get(broker, 0) + 1
            task = self._loop.create_task(self._request(broker, items))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _request(self, broker: int, items: list[tuple[Item, Acknowledge]]) -> None:
        found: Sequence[RaftlogError | None]
        try:
            found = await self._ask(broker, [item for item, _ in items])
            if len(found) != len(items):
                found = [BrokerUnavailableError(f"broker {broker} sent another response")] * len(
                    items
                )
        except RaftlogError as error:
            found = [error] * len(items)
        self._under_way[broker] -= 1
        self._flush(broker)
        for (_, done), result in zip(items, found, strict=True):
            done(result)

    async def stop(self) -> None:
        """Give up what is under way or queued, and return once no task runs."""
        self._queues = {broker: deque() for broker in self._queues}
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
