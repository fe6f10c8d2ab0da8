"""Changes of topics. Internal topics are not changed by clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from raftlog.errors import RaftlogError
from raftlog.server.administration import NamedTopic
from raftlog.server.context import BrokerContext
from raftlog.types import check_not_internal

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
    make = context.authority.plan if validate_only else context.authority.create
    return await make(
        name, partitions=partitions, replication_factor=replication_factor, config=config
    )


async def delete_topic(context: BrokerContext, name: str, topic_id: str | None) -> NamedTopic:
    """Delete a topic. ``topic_id``: only the topic with this ID; None: the current one."""
    check_not_internal(name)
    return await context.authority.delete(name, topic_id)


async def alter_topic(
    context: BrokerContext, name: str, changes: Mapping[str, str | None]
) -> NamedTopic:
    """Change settings of a topic; None resets one to its default."""
    if not changes.keys() <= INTERNAL_SETTINGS:
        check_not_internal(name)
    return await context.authority.alter(name, changes)


async def extend_topic(context: BrokerContext, name: str, total: int) -> NamedTopic:
    """Add partitions, up to ``total``."""
    check_not_internal(name)
    return await context.authority.add_partitions(name, total)


async def change_each(
    context: BrokerContext, items: Sequence[Item], change: Callable[[Item], Awaitable[Result]]
) -> list[Result | RaftlogError]:
    """Apply ``change`` to each item: started in their order, in parallel up to the limit of the
    authority.

    A failure of one item does not affect the outcomes of the others.
    """
    room = asyncio.Semaphore(context.authority.changes_at_once)

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
