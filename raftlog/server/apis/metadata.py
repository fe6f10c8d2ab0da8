"""``metadata``: the brokers and the requested topics."""

from __future__ import annotations

from collections.abc import Generator
from importlib import metadata
from typing import Any, Final, cast

from raftlog.errors import RaftlogError
from raftlog.protocol.api import APIS
from raftlog.protocol.connection import Request
from raftlog.protocol.records import MetadataRequest, MetadataResponse, PartitionInfo, TopicInfo
from raftlog.protocol.schema import Failure, PartitionRange, numbers_of
from raftlog.protocol.security import ApiVersionRange, ApiVersionsRequest, ApiVersionsResponse
from raftlog.server.context import BrokerContext, features
from raftlog.server.exchange import Reply, check_once
from raftlog.server.scheduling import Steps
from raftlog.server.topic_table import HostedTopic
from raftlog.types import is_internal_topic

INFOS_PER_STEP: Final = 128  # partitions per step


def handle(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(MetadataRequest, request.message)
    names = message.topics
    topics: list[TopicInfo] = []
    if names is None:
        context.topics.check_complete()
        for topic in context.topics:
            described = yield from _topic(context, topic, message.span)
            topics.append(described)
    else:
        check_once("metadata", names)
        for name in names:
            described = yield from _by_name(context, name, message.span)
            topics.append(described)
    reply.send(
        MetadataResponse(
            cluster_id=context.operations.cluster_id,
            brokers=context.brokers(reply.connection.local_host),
            topics=topics,
            controller=context.operations.controller(),
        )
    )


def _by_name(
    context: BrokerContext, name: str, span: PartitionRange | None
) -> Generator[None, Any, TopicInfo]:
    try:
        topic = context.topics.topic(name)
    except RaftlogError as error:
        return TopicInfo(name=name, failure=Failure.of(error))
    return (yield from _topic(context, topic, span))


def _topic(
    context: BrokerContext, topic: HostedTopic, span: PartitionRange | None
) -> Generator[None, Any, TopicInfo]:
    """Return a topic; a few of its partitions in each step."""
    partitions: list[PartitionInfo] = []
    for index in numbers_of(span, len(topic.hosts)):
        partitions.append(context.topics.info(topic, index))
        if len(partitions) % INFOS_PER_STEP == 0:
            yield None
    yield None
    return TopicInfo(
        name=topic.name,
        id=topic.id,
        max_message_bytes=topic.config.max_message_bytes,
        timestamp_type=topic.config.message_timestamp_type,
        partitions=partitions,
        is_internal=is_internal_topic(topic.name),
        keys_required=topic.config.is_compacted,
    )


# -- api versions ----------------------------------------------------------------------------------
#
# ``api_versions``: the APIs and versions that this broker supports.


_RANGES: Final = [
    ApiVersionRange(api=api.number, version_min=api.version_min, version_max=api.version_max)
    for api in APIS.values()
]


def _software() -> str:
    try:
        return f"raftlog {metadata.version('raftlog')}"
    except metadata.PackageNotFoundError:  # runs from a source tree that was never installed
        return "raftlog"


_SOFTWARE: Final = _software()


def handle_api_versions(context: BrokerContext, request: Request, reply: Reply) -> None:
    reply.connection.client_id = cast(ApiVersionsRequest, request.message).client_id
    reply.send(
        ApiVersionsResponse(
            broker_software=_SOFTWARE,
            broker_id=context.broker_id,
            cluster_id=context.operations.cluster_id,
            apis=_RANGES,
            features=features(context.operations.peer_protocol),
        )
    )
