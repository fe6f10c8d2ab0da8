"""The replay workload: complete topics are read repeatedly, and all readings must be equal.

A reader reads a log from its start to its end. For any two readers, replicas and times, the records
that both have read must be equal. Appends run at the same time, as in the append workload. Its
operations and anomalies apply here, too.

Operations, in addition to those:

    replay  A new consumer requests the start and end offsets of all partitions of a topic from the
            leaders, seeks to the starts, and polls until it has reached those ends. It reads from
            leaders or from any in-sync replica, in turn. In the history, a replay is an ``ends``
            followed by ``polls`` of the same process.

Additional anomalies:

    INCONSISTENT-OFFSET    two readings have different values at one offset, or another epoch
                           (EPOCH-ORDER): a replica serves records that its leader does not have
    POLL-SKIP              a reading lacks a record that other readings have
    OBSERVED-THEN-LOST     a reading has records that the final log lacks: a replica served records
                           that were not committed, or committed records were truncated
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import Final

from raftlog.errors import RaftlogError
from raftlog_jepsen.client import Source
from raftlog_jepsen.plan import WorkloadName
from raftlog_jepsen.workload import append
from raftlog_jepsen.workload.base import (
    PATIENCE_S,
    LoadOnly,
    WorkloadContext,
    create_topics,
    reader_of,
    run_all,
)

SOURCES: Final[tuple[Source, ...]] = ("leader", "replica")
READERS: Final = 2
PAUSE_S: Final = (0.2, 3.0)  # seconds between two readings of one reader
READING_S: Final = 60.0  # time limit of one reading, because brokers can be down
READ_RATE_MAX: Final = 10_000.0  # records per second of one reader
RECORDS_MAX: Final = (50, 500, 2_000)
FETCH_BYTES: Final = (1_000, 65_536, 1 << 20)
WAIT_MS: Final = 500


class ReplayWorkload(LoadOnly):
    """The clients of the append workload, and readers of complete topics."""

    name: WorkloadName = "replay"

    async def prepare(self, context: WorkloadContext) -> None:
        await create_topics(context, context.plan.shape.topics)

    async def run(self, context: WorkloadContext) -> None:
        clients = append.clients(context)
        for number in range(1, READERS + 1):
            name = f"replay-{number}"
            clients[name] = partial(replay, context, name)
        await run_all(context, clients)


async def replay(context: WorkloadContext, name: str) -> None:
    """Read one topic at a time, until the load ends."""
    random = context.fork(name)
    turn = random.randrange(len(SOURCES))
    reading = 0
    while not context.stopping.is_set():
        await context.sleep(random.uniform(*PAUSE_S))
        turn += 1
        reading += 1
        topic = random.choice(context.plan.shape.topics).name
        source = SOURCES[turn % len(SOURCES)]
        try:
            async with asyncio.timeout(READING_S):
                await read_topic(context, f"{name}/{reading}", topic, source, random)
        except (RaftlogError, TimeoutError):  # recorded in the history up to this point
            await context.sleep(PATIENCE_S)


async def read_topic(
    context: WorkloadContext, process: str, topic: str, source: Source, random: Random
) -> None:
    """Read a topic once, or until the load ends."""
    partitions = [partition for partition in context.targets if partition.topic == topic]
    async with reader_of(context, context.bootstrap) as asking:
        ends = await context.clients.ends(asking, process, partitions)
    async with reader_of(
        context,
        context.bootstrap,
        source=source,
        wait_ms=WAIT_MS,
        fetch_bytes_max=random.choice(FETCH_BYTES),
    ) as consumer:
        await consumer.assign(partitions)
        positions = await consumer.beginning_offsets(partitions)
        for partition, position in positions.items():
            await consumer.seek(partition, position)
        records_max = random.choice(RECORDS_MAX)
        while not context.stopping.is_set() and any(
            positions[partition] < end for partition, end in ends.items()
        ):
            count = await context.clients.poll(
                consumer,
                process,
                positions,
                wait_ms=WAIT_MS,
                records_max=records_max,
                source=source,
            )
            await context.sleep(count / READ_RATE_MAX)
