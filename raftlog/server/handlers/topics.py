"""Topic administration: create, delete, describe, alter, add partitions.

Each topic has a separate outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Final, TypeVar, cast

from raftlog import limits
from raftlog.errors import InvalidRequestError, RaftlogError
from raftlog.protocol.connection import Request
from raftlog.protocol.metadata import PartitionInfo
from raftlog.protocol.schema import Failure, numbers_of
from raftlog.protocol.topics import (
    AddPartitionsRequest,
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    PartitionDescription,
    TopicDescription,
    TopicResult,
    TopicsResponse,
    TopicToAlter,
    TopicToCreate,
    TopicToExtend,
)
from raftlog.server.administration import NamedTopic
from raftlog.server.context import BrokerContext
from raftlog.server.once import check_once
from raftlog.server.partition import Partition
from raftlog.server.reply import Reply
from raftlog.server.requests import topics as requests
from raftlog.server.turns import Steps
from raftlog.types import is_internal_topic

Item = TypeVar("Item")

DESCRIBED_PER_STEP: Final = 64  # partitions per step


def handle_create(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(CreateTopicsRequest, request.message)

    async def create(topic: TopicToCreate) -> NamedTopic:
        return await requests.create_topic(
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
        return await requests.delete_topic(context, name, message.ids.get(name))

    _change_each(context, reply, message.topics, delete, name=str)


def handle_alter(context: BrokerContext, request: Request, reply: Reply) -> None:
    async def alter(topic: TopicToAlter) -> NamedTopic:
        return await requests.alter_topic(context, topic.name, topic.config)

    topics = cast(AlterTopicsRequest, request.message).topics
    _change_each(context, reply, topics, alter, name=lambda topic: topic.name)


def handle_add_partitions(context: BrokerContext, request: Request, reply: Reply) -> None:
    async def extend(topic: TopicToExtend) -> NamedTopic:
        return await requests.extend_topic(context, topic.name, topic.partitions)

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
        changed = await requests.change_each(context, items, change)
        outcomes = zip(items, changed, strict=True)
        return TopicsResponse(results=[_result(name(item), one) for item, one in outcomes])

    context.administration.submit(change_all, reply)


def _result(name: str, changed: requests.Changed) -> TopicResult:
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
        damage=host.trouble,
        tombstones_removed_below=host.log.tombstones_removed_below,
        clean_end=host.log.clean_end_offset,
    )
