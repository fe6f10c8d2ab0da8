"""Creation of topics whose metadata a client requests, with ``auto.create.topics.enable``."""

from __future__ import annotations

import logging
from functools import partial

from raftlog.errors import RaftlogError, TopicExistsError
from raftlog.server.context import BrokerContext
from raftlog.types import is_internal_topic

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
        await context.authority.create(
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
