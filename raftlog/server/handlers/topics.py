"""Topic administration: create, delete, describe, alter, add partitions. Each topic has its own
outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar, cast

from raftlog.errors import RaftlogError
from raftlog.protocol.connection import Request
from raftlog.protocol.metadata import PartitionInfo
from raftlog.protocol.schema import Failure
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
from raftlog.server.replica_host import PartitionHost
from raftlog.server.reply import Reply
from raftlog.server.topic_table import HostedTopic
from raftlog.types import check_not_internal, is_internal_topic

Item = TypeVar("Item")

# What an operator may set of an internal topic, to get through a time with too few brokers.
INTERNAL_SETTINGS: Final = frozenset(("min.insync.replicas",))


def handle_create(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(CreateTopicsRequest, request.message)
    make = context.authority.plan if message.validate_only else context.authority.create

    async def create(topic: TopicToCreate) -> NamedTopic:
        check_not_internal(topic.name)
        return await make(
            topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            config=topic.config,
        )

    _one_by_one(context, reply, message.topics, create, name=lambda topic: topic.name)


def handle_delete(context: BrokerContext, request: Request, reply: Reply) -> None:
    async def delete(name: str) -> NamedTopic:
        check_not_internal(name)
        return await context.authority.delete(name)

    names = cast(DeleteTopicsRequest, request.message).topics
    _one_by_one(context, reply, names, delete, name=str)


def handle_alter(context: BrokerContext, request: Request, reply: Reply) -> None:
    async def alter(topic: TopicToAlter) -> NamedTopic:
        if not topic.config.keys() <= INTERNAL_SETTINGS:
            check_not_internal(topic.name)
        return await context.authority.alter(topic.name, topic.config)

    topics = cast(AlterTopicsRequest, request.message).topics
    _one_by_one(context, reply, topics, alter, name=lambda topic: topic.name)


def handle_add_partitions(context: BrokerContext, request: Request, reply: Reply) -> None:
    async def extend(topic: TopicToExtend) -> NamedTopic:
        check_not_internal(topic.name)
        return await context.authority.add_partitions(topic.name, topic.partitions)

    topics = cast(AddPartitionsRequest, request.message).topics
    _one_by_one(context, reply, topics, extend, name=lambda topic: topic.name)


def handle_describe(context: BrokerContext, request: Request, reply: Reply) -> None:
    names = cast(DescribeTopicsRequest, request.message).topics
    if names is None:
        context.topics.check_complete()
        topics = [_describe(context, topic) for topic in context.topics]
    else:
        topics = [_describe_by_name(context, name) for name in names]
    reply.send(DescribeTopicsResponse(topics=topics))


def _one_by_one(
    context: BrokerContext,
    reply: Reply,
    items: Sequence[Item],
    change: Callable[[Item], Awaitable[NamedTopic]],
    *,
    name: Callable[[Item], str],
) -> None:
    """Make ``change`` to each item; one that fails does not keep the next from its own outcome."""

    async def change_all() -> TopicsResponse:
        results = []
        for item in items:
            try:
                topic = await change(item)
            except RaftlogError as error:
                results.append(TopicResult(name=name(item), failure=Failure.of(error)))
            else:
                results.append(TopicResult(name=topic.name, id=topic.id))
        return TopicsResponse(results=results)

    context.administration.submit(change_all, reply)


def _describe_by_name(context: BrokerContext, name: str) -> TopicDescription:
    try:
        return _describe(context, context.topics.topic(name))
    except RaftlogError as error:
        return TopicDescription(name=name, failure=Failure.of(error))


def _describe(context: BrokerContext, topic: HostedTopic) -> TopicDescription:
    infos = context.topics.infos(topic)
    return TopicDescription(
        name=topic.name,
        id=topic.id,
        config=topic.config.to_text(),
        config_overrides=sorted(topic.overrides),
        partitions=[
            _describe_partition(info, host) for info, host in zip(infos, topic.hosts, strict=True)
        ],
        is_internal=is_internal_topic(topic.name),
    )


def _describe_partition(info: PartitionInfo, host: PartitionHost | None) -> PartitionDescription:
    if host is None:
        return PartitionDescription(info=info)
    return PartitionDescription(
        info=info,
        log_start_offset=host.log.log_start_offset,
        high_watermark=host.high_watermark,
        log_end_offset=host.log.log_end_offset,
        size_bytes=host.log.size_bytes,
        damage=host.log.damage,
    )
