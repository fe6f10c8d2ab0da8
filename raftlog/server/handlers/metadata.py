"""``metadata``: the brokers, and the topics that were asked for."""

from __future__ import annotations

from typing import cast

from raftlog.errors import RaftlogError
from raftlog.protocol.connection import Request
from raftlog.protocol.metadata import MetadataRequest, MetadataResponse, TopicInfo
from raftlog.protocol.schema import Failure
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Reply
from raftlog.server.topic_table import HostedTopic
from raftlog.types import is_internal_topic


def handle(context: BrokerContext, request: Request, reply: Reply) -> None:
    names = cast(MetadataRequest, request.message).topics
    if names is None:
        context.topics.check_complete()
        topics = [_topic(context, topic) for topic in context.topics]
    else:
        topics = [_by_name(context, name) for name in names]
    reply.send(
        MetadataResponse(
            cluster_id=context.operations.cluster_id,
            brokers=context.brokers(reply.connection.local_host),
            topics=topics,
            controller=context.operations.controller(),
        )
    )


def _by_name(context: BrokerContext, name: str) -> TopicInfo:
    try:
        return _topic(context, context.topics.topic(name))
    except RaftlogError as error:
        return TopicInfo(name=name, failure=Failure.of(error))


def _topic(context: BrokerContext, topic: HostedTopic) -> TopicInfo:
    return TopicInfo(
        name=topic.name,
        id=topic.id,
        max_message_bytes=topic.config.max_message_bytes,
        timestamp_type=topic.config.message_timestamp_type,
        partitions=context.topics.infos(topic),
        is_internal=is_internal_topic(topic.name),
        keys_required=topic.config.is_compacted,
    )
