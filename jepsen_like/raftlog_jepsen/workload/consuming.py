"""Consumers: read partitions in sessions with different start offsets. Also requests end offsets.

Each session is a separate process in the history. Within a session, only polls move the positions.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from raftlog.errors import RaftlogError
from raftlog.types import Offset, TopicPartition
from raftlog_jepsen.client import AnyConsumer
from raftlog_jepsen.plan import ConsumerShape
from raftlog_jepsen.workload.base import PATIENCE_S, WorkloadContext, reader_of

READ_RATE_MAX: Final = 30_000.0  # records per second of all consumers, which share one CPU
ALL_PARTITIONS: Final = 0.3  # share of sessions that read all partitions
ENDS_PAUSE_S: Final = (0.05, 0.5)
ENDS_SESSION_S: Final = 20.0


async def consume(context: WorkloadContext, name: str, shape: ConsumerShape) -> None:
    """Run sessions until the load ends."""
    random = context.fork(name)
    session = 0
    while not context.stopping.is_set():
        session += 1
        entrance = context.entrance(random, pinned=shape.pinned)
        try:
            async with reader_of(
                context,
                entrance,
                source=shape.source,
                wait_ms=shape.wait_ms,
                fetch_bytes_max=shape.fetch_bytes_max,
            ) as consumer:
                await _session(context, f"{name}/{session}", shape, random, consumer)
        except RaftlogError:  # recorded in the history
            await context.sleep(PATIENCE_S)


async def _session(
    context: WorkloadContext,
    process: str,
    shape: ConsumerShape,
    random: Random,
    consumer: AnyConsumer,
) -> None:
    positions = await _begin(context, process, shape, random, consumer)
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + shape.session_s
    rate = READ_RATE_MAX / len(context.plan.workload.consumers)
    while loop.time() < ends_at and not context.stopping.is_set():
        count = await context.clients.poll(
            consumer,
            process,
            positions,
            wait_ms=shape.wait_ms,
            records_max=shape.records_max,
            source=shape.source,
        )
        await context.sleep(count / rate)


async def _begin(
    context: WorkloadContext,
    process: str,
    shape: ConsumerShape,
    random: Random,
    consumer: AnyConsumer,
) -> dict[TopicPartition, Offset]:
    """Assign partitions, seek to the start offsets, and return these."""
    partitions = list(context.targets)
    if random.random() >= ALL_PARTITIONS:
        partitions = random.sample(partitions, random.randint(1, len(partitions)))
    await consumer.assign(partitions)
    positions = await consumer.beginning_offsets(partitions)
    if shape.begin != "earliest":
        if shape.source == "leader":
            ends = await context.clients.ends(consumer, process, partitions)
        else:  # not recorded: the end offset of a replica can be lower than offsets read before
            ends = await consumer.end_offsets(partitions)
        for partition, end in ends.items():
            start = min(positions[partition], end)
            positions[partition] = random.randint(start, end) if shape.begin == "middle" else end
    for partition, position in positions.items():
        await consumer.seek(partition, position)
    return positions


async def observe_ends(context: WorkloadContext, name: str, *, pinned: bool) -> None:
    """Request the end offsets of all partitions repeatedly, until the load ends."""
    random = context.fork(name)
    loop = asyncio.get_running_loop()
    session = 0
    while not context.stopping.is_set():
        session += 1
        ends_at = loop.time() + ENDS_SESSION_S
        try:
            entrance = context.entrance(random, pinned=pinned)
            async with reader_of(context, entrance) as consumer:
                while loop.time() < ends_at and not context.stopping.is_set():
                    await context.clients.ends(consumer, f"{name}/{session}", list(context.targets))
                    await context.sleep(random.uniform(*ENDS_PAUSE_S))
        except RaftlogError:  # recorded in the history
            await context.sleep(PATIENCE_S)
