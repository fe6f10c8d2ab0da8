"""A sender on virtual time, with all that it drives."""

from __future__ import annotations

import asyncio
from typing import Any

from raftlog.client.accumulator import Accumulator, ProducerIdAndEpoch, TopicQueues
from raftlog.client.cluster import Cluster
from raftlog.client.delivery import DeliveryFuture
from raftlog.client.sender import Sender
from raftlog.client.settings import ConnectionSettings, parse_bootstrap
from raftlog.errors import RaftlogError
from raftlog.types import RecordMetadata
from tests.client.samples import producer_settings
from tests.client.virtual import LoopClock, VirtualLoop
from tests.client.world import FakeCluster


class Rig:
    """A sender, what it drives and where it sends."""

    def __init__(
        self, fake: FakeCluster, *, identity: ProducerIdAndEpoch | None = None, **settings: Any
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        host = fake.host
        clock = LoopClock(loop)
        self.fake = fake
        self.settings = producer_settings(**settings)
        self.cluster = Cluster(
            ConnectionSettings(
                bootstrap=parse_bootstrap(fake.bootstrap),
                client_id="me",
                request_timeout_ms=30_000,
                bootstrap_timeout_ms=3_000,
                metadata_max_age_ms=30_000,
            ),
            connector=host.connector,
            chance=host.chance,
        )
        self.accumulator = Accumulator(self.settings, clock=clock, choose=lambda _count: 0)
        self.sender = Sender(
            self.settings, self.cluster, self.accumulator, clock=clock, identity=identity
        )

    async def __aenter__(self) -> Rig:
        for name in self.fake.topics:
            await self.topic(name)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.sender.close()
        await self.cluster.close()

    async def topic(self, name: str) -> TopicQueues:
        return self.accumulator.learn(await self.cluster.topic(name))

    def send(self, value: bytes, topic: str = "t", partition: int | None = 0) -> DeliveryFuture:
        future = self.accumulator.append(
            self.accumulator.topics[topic], value, None, None, None, partition
        )
        assert future is not None
        if self.accumulator.wake_needed:
            self.accumulator.wake_needed = False
            asyncio.get_running_loop().call_soon(self.sender.pump)
        return future

    async def send_batches(self, *values: bytes) -> list[DeliveryFuture]:
        """Each value in a batch and a request of its own, all in flight."""
        futures = []
        for value in values:
            futures.append(self.send(value))
            await asyncio.sleep(0.006)
        return futures


def now() -> float:
    return asyncio.get_running_loop().time()


async def outcome(future: DeliveryFuture) -> RecordMetadata | RaftlogError:
    try:
        return await future
    except RaftlogError as error:
        return error


async def offsets(futures: list[DeliveryFuture]) -> list[int]:
    return [(await future).offset for future in futures]
