"""Topic changes: one at a time, in the order of arrival.

``Administration`` queues the changes; a ``TopicAuthority`` makes them. This module contains the
authority of single-broker mode: the store makes a change durable, in a thread, and then the topic
table contains it, on the loop. A deletion happens in the opposite order: a topic stops being served
before its files are removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from raftlog import limits
from raftlog.errors import (
    BrokerUnavailableError,
    DiskFullError,
    InvalidPartitionsError,
    OutcomeUnknownError,
    RaftlogError,
    StorageFailedError,
    ThrottledError,
    UnknownTopicError,
)
from raftlog.protocol.schema import Message
from raftlog.server.exchange import Exchange
from raftlog.server.partition import Partition, ReplicaServices
from raftlog.server.scheduling import Acknowledge, Workers
from raftlog.server.topic_table import HostedTopic, TopicTable
from raftlog.storage import Store, Topic
from raftlog.types import Buffer, TopicPartition

HOSTS_AT_ONCE: Final = 20  # 1 ms, to create them
logger = logging.getLogger(__name__)

T = TypeVar("T")
# Returns the response message, or an ``Attached``.
Operation: TypeAlias = Callable[[], Awaitable[Any]]


class Attached(NamedTuple):
    """A response message with an attachment."""

    message: Message
    attachment: Sequence[Buffer]


class NamedTopic(Protocol):
    """A topic with a name: the result of every change."""

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> str: ...


class TopicAuthority(Protocol):
    """Authority over the topics: this broker's store, or the cluster.

    ``changes_at_once``: how many changes of one request to start before the first has ended.
    """

    changes_at_once: int

    async def plan(
        self, name: str, *, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> NamedTopic:
        """Return the topic that ``create`` would create, or raise its error."""
        ...

    async def create(
        self, name: str, *, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> NamedTopic: ...
    async def delete(self, name: str, topic_id: str | None) -> NamedTopic: ...
    async def alter(self, name: str, changes: Mapping[str, str | None]) -> NamedTopic: ...
    async def add_partitions(self, name: str, total: int) -> NamedTopic: ...


class Administration:
    """Queue of topic changes: a change starts when the one before it has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed: RaftlogError | None = None

    def submit_at_once(self, operation: Operation, reply: Exchange) -> None:
        """Run ``operation`` outside the queue: the queued changes may wait for it."""
        self._begin(self._answer(operation, reply))

    def submit(self, operation: Operation, reply: Exchange) -> None:
        """Run ``operation`` in its turn and reply with its result or error."""
        self._check_room()
        self._begin(self._run(operation, reply))

    def submit_work(self, work: Callable[[], Awaitable[None]], done: Acknowledge) -> None:
        """Run ``work`` in its turn; then call ``done`` with None, or the error."""
        self._check_room()
        self._begin(self._work(work, done))

    def _check_room(self) -> None:
        if len(self._tasks) >= limits.ADMIN_REQUESTS_PENDING_MAX:
            raise ThrottledError(
                f"{len(self._tasks)} topic changes are pending, and "
                "ADMIN_REQUESTS_PENDING_MAX is reached. Try again later"
            )

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self, reason: RaftlogError) -> None:
        """Reject every change from now on, with ``reason``."""
        self._closed = reason

    async def finish(self) -> None:
        """Return once no change is running. Queued changes are rejected."""
        self.close(self._closed or BrokerUnavailableError("the broker stops"))
        await asyncio.gather(*self._tasks)

    async def _run(self, operation: Operation, reply: Exchange) -> None:
        async with self._turn:
            await self._answer(operation, reply)

    async def _work(self, work: Callable[[], Awaitable[None]], done: Acknowledge) -> None:
        failure: RaftlogError | None = None
        async with self._turn:
            try:
                if self._closed is not None:
                    raise self._closed
                await work()
            except RaftlogError as error:
                failure = error
            except Exception as error:
                logger.exception("topic change failed: reason=internal_error. Report this error")
                failure = OutcomeUnknownError(f"internal broker error ({type(error).__name__})")
        done(failure)

    async def _answer(self, operation: Operation, reply: Exchange) -> None:
        try:
            if self._closed is not None:
                raise self._closed
            message = await operation()
        except RaftlogError as error:
            reply.fail(error)
        except Exception as error:  # noqa: BLE001 - reported, logged and counted
            reply.fail_by_mistake(error)
        else:
            reply.send(*(message if isinstance(message, Attached) else (message,)))


class LocalTopics:
    """The ``TopicAuthority`` in single-broker mode: the only writer of the store's catalog."""

    changes_at_once = 1

    def __init__(
        self, store: Store, topics: TopicTable, services: ReplicaServices, worker: Workers
    ) -> None:
        self._store = store
        self._topics = topics
        self._services = services
        self._worker = worker

    def load(self) -> None:
        """Add every topic of the store to the table, at the start of the broker."""
        for topic in self._store.topics.values():
            self._topics.add(_hosted(topic, list(self._hosts(topic, first=0))))

    async def plan(
        self, name: str, *, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> Topic:
        """Return the topic that ``create`` would create, or raise its error."""
        _check_replication(replication_factor)
        store = self._store
        return await self._blocking(
            lambda: store.plan_topic(name, partitions=partitions, config=config)
        )

    async def create(
        self, name: str, *, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> Topic:
        _check_replication(replication_factor)
        store = self._store
        topic = await self._blocking(
            lambda: store.create_topic(name, partitions=partitions, config=config)
        )
        hosts: list[Partition] = []
        await _in_turns(self._hosts(topic, first=0), hosts.append)
        self._topics.add(_hosted(topic, hosts))
        logger.info("topic created: topic=%s partitions=%d", name, partitions)
        return topic

    async def delete(self, name: str, topic_id: str | None) -> Topic:
        store = self._store
        if topic_id not in (None, self._topics.topic(name).id):
            raise UnknownTopicError(f"the topic {name!r} with the id {topic_id} was deleted")
        topic = await self._blocking(lambda: store.delete_topic(name))
        reason = UnknownTopicError(f"topic {name!r} was deleted")
        hosts = self._topics.remove(name).local_hosts()
        await _in_turns(hosts, lambda host: host.close(reason))
        await quiet(hosts)
        await self._blocking(lambda: store.discard(topic))
        logger.info("topic deleted: topic=%s", name)
        return topic

    async def alter(self, name: str, changes: Mapping[str, str | None]) -> Topic:
        store = self._store
        topic = await self._blocking(lambda: store.alter_topic(name, changes))
        hosted = self._topics.topic(name)
        hosted.config, hosted.overrides = topic.config, topic.overrides
        await _in_turns(hosted.local_hosts(), Partition.reconsider)
        logger.info("topic altered: topic=%s changes=%s", name, dict(changes))
        return topic

    async def add_partitions(self, name: str, total: int) -> Topic:
        store = self._store
        topic = await self._blocking(lambda: store.add_partitions(name, total))
        hosted = self._topics.topic(name)
        hosts: list[Partition] = []
        await _in_turns(self._hosts(topic, first=len(hosted.hosts)), hosts.append)
        self._topics.extend(hosted, hosts)
        logger.info("partitions added: topic=%s partitions=%d", name, total)
        return topic

    async def _blocking(self, work: Callable[[], T]) -> T:
        try:
            return await self._worker.run(work)
        except DiskFullError as error:
            self._services.space.write_failed(error)
            raise
        except StorageFailedError as error:
            self._services.on_failed(error)
            raise

    def _hosts(self, topic: Topic, *, first: int) -> Iterator[Partition]:
        for partition in range(first, topic.partitions):
            log = self._store.log(topic.name, partition)
            for note in log.notes:
                logger.warning("log recovery: partition=%s:%d note=%s", topic.name, partition, note)
            if log.damage:
                logger.error(
                    "log corrupt: partition=%s:%d reason=%s", topic.name, partition, log.damage
                )
            place = TopicPartition(topic.name, partition)
            host = Partition(place, log, self._services.of(log), topic.id)
            host.lead_alone(self._store.identity.broker_id, self._store.identity.directory_id)
            yield host


def _hosted(topic: Topic, hosts: list[Partition]) -> HostedTopic:
    return HostedTopic(topic.name, topic.id, topic.config, topic.overrides, [*hosts])


async def _in_turns(hosts: Iterable[Partition], act: Callable[[Partition], None]) -> None:
    """Call ``act`` for each partition, ``HOSTS_AT_ONCE`` in one turn of the event loop."""
    for number, host in enumerate(hosts, start=1):
        act(host)
        if number % HOSTS_AT_ONCE == 0:
            await asyncio.sleep(0)


def _check_replication(replication_factor: int) -> None:
    if replication_factor > 1:
        raise InvalidPartitionsError(
            f"replication factor {replication_factor} is not possible: this broker runs in "
            "single-broker mode. Use 1, or start brokers with `voters` (raftlog up --brokers 3)"
        )


async def quiet(hosts: list[Partition]) -> None:
    """Return once no thread uses the files of ``hosts``, which are closed."""
    done = asyncio.get_running_loop().create_future()
    missing = len(hosts)

    def one_is() -> None:
        nonlocal missing
        missing -= 1
        if missing == 0:
            done.set_result(None)

    await _in_turns(hosts, lambda host: host.when_quiet(one_is))
    if hosts:
        await done
