"""Topic administration: create, delete, describe, alter, add partitions.

Each topic has a separate outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from raftlog import limits
from raftlog.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    RaftlogError,
    ThrottledError,
    TopicExistsError,
)
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    AddPartitionsRequest,
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeletedRecords,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    PartitionDescription,
    PartitionInfo,
    RecordsToDelete,
    TopicDescription,
    TopicResult,
    TopicsResponse,
    TopicToAlter,
    TopicToCreate,
    TopicToExtend,
)
from raftlog.protocol.schema import Failure, numbers_of
from raftlog.server.cluster.topics import NamedTopic
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Exchange, Reply, check_once
from raftlog.server.partition import Partition
from raftlog.server.scheduling import ITEMS_PER_STEP, Steps, in_steps
from raftlog.types import Offset, check_not_internal, is_internal_topic

# -- topics ----------------------------------------------------------------------------------------
#
# Changes of topics. Internal topics are not changed by clients.


Item = TypeVar("Item")
Result = TypeVar("Result")
# The changed topic, or the reason why it was not changed.
Changed: TypeAlias = NamedTopic | RaftlogError

# Settings of an internal topic that an operator may change, to continue with too few brokers.
INTERNAL_SETTINGS: Final = frozenset(("min.insync.replicas",))


async def create_topic(
    context: BrokerContext,
    name: str,
    *,
    partitions: int,
    replication_factor: int,
    config: Mapping[str, str],
    validate_only: bool,
) -> NamedTopic:
    """Create a topic, or only check that it could be created; ``replication_factor``: 0 for the
    default.
    """
    check_not_internal(name)
    make = context.cluster.topics.plan if validate_only else context.cluster.topics.create
    return await make(
        name, partitions=partitions, replication_factor=replication_factor, config=config
    )


async def delete_topic(context: BrokerContext, name: str, topic_id: str | None) -> NamedTopic:
    """Delete a topic. ``topic_id``: only the topic with this ID; None: the current one."""
    # guard: clients do not delete internal topics
    check_not_internal(name)
    return await context.cluster.topics.delete(name, topic_id)


def check_alterable(name: str, changes: Iterable[str]) -> None:
    """Raise ``InvalidTopicError`` for an internal topic, unless clients may change these."""
    if not INTERNAL_SETTINGS.issuperset(changes):
        check_not_internal(name)


async def alter_topic(
    context: BrokerContext, name: str, changes: Mapping[str, str | None]
) -> NamedTopic:
    """Change settings of a topic; None resets one to its default."""
    check_alterable(name, changes)
    return await context.cluster.topics.alter(name, changes)


async def extend_topic(context: BrokerContext, name: str, total: int) -> NamedTopic:
    """Add partitions, up to ``total``."""
    # guard: clients do not extend internal topics
    check_not_internal(name)
    return await context.cluster.topics.add_partitions(name, total)


async def change_each(
    context: BrokerContext, items: Sequence[Item], change: Callable[[Item], Awaitable[Result]]
) -> list[Result | RaftlogError]:
    """Apply ``change`` to each item: started in their order, in parallel up to the limit of the
    authority.

    A failure of one item does not affect the outcomes of the others.
    """
    room = asyncio.Semaphore(context.cluster.topics.changes_at_once)

    async def change_one(item: Item) -> Result | RaftlogError:
        async with room:
            try:
                return await change(item)
            except RaftlogError as error:
                return error

    if len(items) == 1:
        return [await change_one(items[0])]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(change_one(item)) for item in items]
    return [task.result() for task in tasks]


# -- topics ----------------------------------------------------------------------------------------


DESCRIBED_PER_STEP: Final = 64  # partitions per step


def handle_create(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(CreateTopicsRequest, request.message)

    async def create(topic: TopicToCreate) -> NamedTopic:
        return await create_topic(
            context,
            topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            config=topic.config,
            validate_only=message.validate_only,
        )

    _change_each(context, reply, message.topics, create, name=lambda topic: topic.name)


def handle_delete(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(DeleteTopicsRequest, request.message)

    async def delete(name: str) -> NamedTopic:
        return await delete_topic(context, name, message.ids.get(name))

    _change_each(context, reply, message.topics, delete, name=str)


def handle_alter(context: BrokerContext, request: Request, reply: Reply) -> None:
    async def alter(topic: TopicToAlter) -> NamedTopic:
        return await alter_topic(context, topic.name, topic.config)

    topics = cast(AlterTopicsRequest, request.message).topics
    _change_each(context, reply, topics, alter, name=lambda topic: topic.name)


def handle_add_partitions(context: BrokerContext, request: Request, reply: Reply) -> None:
    async def extend(topic: TopicToExtend) -> NamedTopic:
        return await extend_topic(context, topic.name, topic.partitions)

    topics = cast(AddPartitionsRequest, request.message).topics
    _change_each(context, reply, topics, extend, name=lambda topic: topic.name)


def handle_describe(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(DescribeTopicsRequest, request.message)
    if message.topics is None:
        context.topics.check_complete()
        names = [topic.name for topic in context.topics if topic.name > message.after]
    else:
        check_once("describe_topics", message.topics)
        names = message.topics
    found: list[TopicDescription] = []
    partitions = 0
    for name in names:
        topic = context.topics.get(name)
        if topic is None and message.topics is None:
            continue  # deleted since the names were listed
        partitions += 0 if topic is None else len(numbers_of(message.span, len(topic.hosts)))
        if found and partitions > limits.PARTITIONS_DESCRIBED_MAX:
            _check_paged(message)
            break
        found.append((yield from _describe(context, name, message)))
    reply.send(DescribeTopicsResponse(topics=found, is_page=len(found) < len(names)))


def _check_paged(message: DescribeTopicsRequest) -> None:
    """Reject clients that do not support paged responses."""
    if not message.paged:
        raise InvalidRequestError(
            f"the requested topics have more than {limits.PARTITIONS_DESCRIBED_MAX} partitions "
            "(PARTITIONS_DESCRIBED_MAX). Request fewer topics at once, or upgrade the client"
        )


def _change_each(
    context: BrokerContext,
    reply: Reply,
    items: Sequence[Item],
    change: Callable[[Item], Awaitable[NamedTopic]],
    *,
    name: Callable[[Item], str],
) -> None:
    """Reply with the outcome of ``change`` for each item."""

    async def change_all() -> TopicsResponse:
        changed = await change_each(context, items, change)
        outcomes = zip(items, changed, strict=True)
        return TopicsResponse(results=[_result(name(item), one) for item, one in outcomes])

    context.administration.submit(change_all, reply)


def _result(name: str, changed: Changed) -> TopicResult:
    if isinstance(changed, RaftlogError):
        return TopicResult(name=name, failure=Failure.of(changed))
    return TopicResult(name=changed.name, id=changed.id)


def _describe(
    context: BrokerContext, name: str, message: DescribeTopicsRequest
) -> Generator[None, Any, TopicDescription]:
    """Return a topic, or why it does not exist; a few of its partitions in each step."""
    try:
        topic = context.topics.topic(name)
    except RaftlogError as error:
        yield None
        return TopicDescription(name=name, failure=Failure.of(error))
    partitions: list[PartitionDescription] = []
    for index in numbers_of(message.span, len(topic.hosts)):
        if index % DESCRIBED_PER_STEP == 0:
            yield None
        info = context.topics.info(topic, index)
        partitions.append(_describe_partition(info, topic.hosts[index]))
    return TopicDescription(
        name=topic.name,
        id=topic.id,
        config=topic.config.to_text(),
        config_overrides=sorted(topic.overrides),
        partitions=partitions,
        is_internal=is_internal_topic(topic.name),
        partition_count=len(topic.hosts),
    )


def _describe_partition(info: PartitionInfo, host: Partition | None) -> PartitionDescription:
    if host is None:
        return PartitionDescription(info=info)
    return PartitionDescription(
        info=info,
        log_start_offset=host.log.log_start_offset,
        high_watermark=host.high_watermark,
        log_end_offset=host.log.log_end_offset,
        size_bytes=host.log.size_bytes,
        damage=host.problem,
        tombstones_removed_below=host.log.tombstones_removed_below,
        clean_end=host.log.clean_end_offset,
        stable_offset=host.last_stable_offset,
    )


# -- records ---------------------------------------------------------------------------------------
#
# ``delete_records``: delete the records below an offset, on every in-sync replica.


def handle_delete_records(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    parts = cast(DeleteRecordsRequest, request.message).partitions
    check_once("delete_records", [(part.topic, part.partition) for part in parts])

    def done(found: list[Deleted]) -> None:
        reply.go_on(_send(reply, parts, found))

    return Deletion(context, reply, parts, done).steps()


def _send(reply: Reply, parts: list[RecordsToDelete], found: list[Deleted]) -> Steps:
    answers = yield from in_steps(zip(parts, found, strict=True), _answer)
    reply.send(DeleteRecordsResponse(partitions=answers))


def _answer(one: tuple[RecordsToDelete, Deleted]) -> DeletedRecords:
    part, deleted = one
    return DeletedRecords(
        topic=part.topic,
        partition=part.partition,
        failure=Failure.of(deleted) if isinstance(deleted, RaftlogError) else None,
        log_start_offset=-1 if isinstance(deleted, RaftlogError) else deleted,
    )


# -- deletion --------------------------------------------------------------------------------------
#
# Deletion of records below an offset, on every in-sync replica.
#
# A result without an error guarantees that no later leader has the records. A replica that does not
# confirm usually leaves the ISR, and the remaining ones then decide. A replica that is slow only
# with this is waited for until ``DELETE_SECONDS_MAX``. After that, the outcome on a later leader is
# unknown.


# Longer than the defaults of replica.lag.time.max.ms and broker.session.timeout.ms take to remove a
# replica from the ISR; shorter than the request timeout of clients.
DELETE_SECONDS_MAX: Final = 15.0
# Each deletion uses the threads that sync logs for a moment: producers must be served in between.
DELETIONS_AT_ONCE: Final = 8
TO_HIGH_WATERMARK: Final = -1

# The new log start offset, or the reason why it is not known.
Deleted: TypeAlias = Offset | RaftlogError


class Part(Protocol):
    """``before_offset``: ``TO_HIGH_WATERMARK`` for the high watermark."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def before_offset(self) -> Offset: ...


def _before(host: Partition, offset: Offset) -> Offset:
    """Return the offset up to which records are deleted. Raises ``OffsetOutOfRangeError``."""
    # guard: records are deleted below an offset of 0 or more
    if offset < TO_HIGH_WATERMARK:
        raise OffsetOutOfRangeError(
            f"offset {offset} of {host.topic_partition}: records are deleted before an offset of 0 "
            f"or more, or before the high watermark ({TO_HIGH_WATERMARK})"
        )
    return host.high_watermark if offset == TO_HIGH_WATERMARK else offset


class Deletion:
    """One request. ``done`` is called when every partition has a result."""

    __slots__ = (
        "_answers",
        "_begun",
        "_check",
        "_context",
        "_done",
        "_parts",
        "_reply",
        "_running",
        "_timer",
        "_waiting",
    )

    def __init__(
        self,
        context: BrokerContext,
        reply: Exchange,
        parts: Sequence[Part],
        done: Callable[[list[Deleted]], None],
        *,
        check: Callable[[Partition], None] = lambda _host: None,
    ) -> None:
        """``parts``: at least one. ``check`` raises the error of a partition whose records must
        stay.
        """
        self._context = context
        self._check = check
        self._done = done
        self._reply = reply
        self._parts = parts
        # By the index of the partition in the request.
        self._answers: dict[int, Deleted] = {}
        self._waiting: dict[int, tuple[Partition, Offset]] = {}
        self._begun = 0
        self._running = False
        self._timer = context.loop.call_later(DELETE_SECONDS_MAX, self._expire)

    def steps(self) -> Steps:
        """Start deletions up to the limit. The end of one starts the next."""
        self._running = True
        while self._begun < min(len(self._parts), len(self._answers) + DELETIONS_AT_ONCE):
            index = self._begun
            self._begun += 1
            self._begin(index, self._parts[index])
            yield None
        self._running = False

    def _begin(self, index: int, part: Part) -> None:
        try:
            check_not_internal(part.topic)
            host = self._context.topics.host(part.topic, part.partition)
            self._check(host)
            before = _before(host, part.before_offset)
            self._waiting[index] = host, before
            host.delete_records(before, partial(self._deleted, index))
        except RaftlogError as error:
            self._answer(index, error=error)

    def _deleted(self, index: int, error: RaftlogError | None) -> None:
        if index in self._answers:  # it timed out
            return
        host, before = self._waiting[index]
        leadership = host.leadership
        start = before if leadership is None else max(before, leadership.committed_start)
        self._answer(index, start, error=error)

    def _expire(self) -> None:
        begun, self._begun = self._begun, len(self._parts)
        self._running = True  # from now on, the end of a deletion starts no other
        self._reply.go_on(self._give_up(begun))

    def _give_up(self, begun: int) -> Steps:
        for index, part in enumerate(self._parts):
            if not index % ITEMS_PER_STEP:
                yield None
            if index in self._answers:
                continue
            where = f"{part.topic}:{part.partition}"
            if index >= begun:
                error: RaftlogError = ThrottledError(
                    f"{where}: nothing was deleted, because the deletions before it took "
                    f"{DELETE_SECONDS_MAX:g} s. Try again with fewer partitions per request"
                )
            else:
                _, before = self._waiting[index]
                error = OutcomeUnknownError(
                    f"{where}: this broker has deleted the records before offset {before}, but "
                    f"not all in-sync replicas have confirmed the deletion within "
                    f"{DELETE_SECONDS_MAX:g} s. After a failover the records may be visible "
                    "again. Delete them again"
                )
            self._answer(index, error=error)

    def _answer(self, index: int, start: Offset = -1, *, error: RaftlogError | None) -> None:
        self._answers[index] = start if error is None else error
        if len(self._answers) == len(self._parts):
            self._timer.cancel()
            self._done([self._answers[number] for number in range(len(self._parts))])
        elif not self._running:
            self._reply.go_on(self.steps())


# -- auto create -----------------------------------------------------------------------------------
#
# Creation of topics whose metadata a client requests, with ``auto.create.topics.enable``.


logger = logging.getLogger(__name__)


def create_soon(context: BrokerContext, name: str, client_id: str) -> bool:
    """Begin to create a topic with default settings, once for all clients that request it.

    ``name``: a legal name of a topic that does not exist. Returns False if topics are not created
    automatically.
    """
    if not context.config.auto_create_topics_enable or is_internal_topic(name):
        return False
    if name in context.creating:
        return True

    async def create() -> None:
        await context.cluster.topics.create(
            name, partitions=context.config.num_partitions, replication_factor=0, config={}
        )

    context.administration.submit_work(create, partial(_created, context, name, client_id))
    context.creating.add(name)
    return True


def _created(context: BrokerContext, name: str, client_id: str, error: RaftlogError | None) -> None:
    context.creating.discard(name)
    if error is None:
        logger.info("topic created automatically: topic=%s client_id=%s", name, client_id)
    elif not isinstance(error, TopicExistsError):  # it was created through another broker
        logger.warning(
            "topic not created automatically: topic=%s client_id=%s error=%s",
            name,
            client_id,
            error,
        )
