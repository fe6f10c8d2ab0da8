"""Consumers of a group over a ``FakeCluster``, and what tests do with them."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from raftlog.client.aio.clients import AsyncConsumer
from raftlog.types import TopicPartition
from tests.client.consumer_groups.fake_coordinator import FakeCoordinator
from tests.client.test_fetcher import fill
from tests.client.world import FakeCluster

_seeds = itertools.count()


def consumer_of(fake: FakeCluster, **settings: Any) -> AsyncConsumer:
    """One with a member id of its own."""
    host = replace(fake.host, chance=random.Random(next(_seeds)).random)
    defaults = {"group": "g", "auto_offset_reset": "earliest"}
    return AsyncConsumer(fake.bootstrap, host=host, **{**defaults, **settings})


def filled(fake: FakeCluster, *counts: int) -> FakeCoordinator:
    """A topic of two partitions, with batches of so many records in the first."""
    fake.create("t", 2)
    fill(fake, *(counts or (3, 2)))
    return FakeCoordinator(fake)


async def some(consumer: AsyncConsumer, count: int = 1) -> list[int]:
    """The offsets of ``count`` records, and no more."""
    found: list[int] = []
    while len(found) < count:
        found += [record.offset for record in await consumer.poll(20_000, count - len(found))]
    return found


class Timeline:
    """What the callbacks of one consumer were told, in order."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, list[int]]] = []

    def _note(self, what: str) -> Callable[[list[TopicPartition]], None]:
        return lambda partitions: self.noted.append((what, [tp.partition for tp in partitions]))

    @property
    def callbacks(self) -> dict[str, Any]:
        return {f"on_{what}": self._note(what) for what in ("assign", "revoke", "lost")}


async def until(condition: Callable[[], bool], consumer: AsyncConsumer | None = None) -> None:
    for _ in range(10_000):
        if condition():
            return
        if consumer is None:
            await asyncio.sleep(0.01)
        else:
            await consumer.poll(10)
    raise AssertionError("it does not come to pass")
