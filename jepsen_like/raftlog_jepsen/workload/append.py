"""The append workload: many producers write to a log, and many consumers read it concurrently.

A log is a list of records that grows at its end only. The offset of each record is one higher than
that of the previous record. The workload has a few topics with some partitions each. Every
partition is such a log. The model is Jepsen's Kafka workload (``jepsen/tests/kafka.clj``).

Operations:

    append  A producer sends a group of values to one partition. Each value is an integer that is
            unique in the run. ``ok``: all in-sync replicas have the values, at the returned
            offsets. ``fail``: no value without an offset can ever be visible. ``info``: each value
            may be stored, now, later, or never. A producer may have several groups in flight. It
            sends them in the order of their invocations, and ``first`` identifies the group of a
            completion. With idempotence, no value is stored twice and the order is kept. Without
            idempotence, a producer is not used again after an unknown outcome.
    poll    A consumer requests the next records of the partitions that it reads. The result has,
            for each record, the offset, the value and the leader epoch in which it was appended.
            Only polls move a consumer. After a seek, it has another process name.
    ends    A client requests the end offsets for consumers from the leaders.

When the load is over and the cluster has converged, new consumers read every partition from its
start to its end, and the files of all replicas are read offline. The result is the final log. The
checker compares all other observations with it.

Anomalies:

    LOST, MOVED            an acknowledged value is not in the final log, or at another offset
    INCONSISTENT-OFFSET    two values at one offset, for any observers: producer, consumer, replica
    DUPLICATE              a value of an idempotent producer at two offsets
    G1A, PHANTOM           a value is read whose append failed, or that no client sent there
    OBSERVED-THEN-LOST     a consumer received a value that is not in the final log
    POLL-SKIP, NONMONOTONIC-POLL (and INT-, within one poll)
                           a consumer skips a record, or reads a lower offset than before
    NONMONOTONIC-SEND      the order of two values of one producer differs from the send order
    REALTIME-ORDER         a value has a higher offset than one sent after its acknowledgement
    HW-REGRESSION          an end is lower than an end that was known before the request
    GAP, EPOCH-ORDER       offsets are missing, or leader epochs decrease
    REPLICA-DIVERGENCE, STUCK
                           replicas differ after convergence, or do not catch up
    STALE-READ             a poll returns nothing where a record was acknowledged long before
    UNAVAILABLE            no append is acknowledged although enough brokers are running
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from random import Random
from typing import Any, Final

from raftlog.aio import AsyncProducer
from raftlog.errors import RaftlogError
from raftlog.types import Offset, TopicPartition
from raftlog_jepsen.client import (
    GROUP_BYTES_MAX,
    RECORD_BYTES,
    AnyConsumer,
    AnyProducer,
    Group,
    Process,
)
from raftlog_jepsen.plan import ConsumerShape, ProducerShape, WorkloadName
from raftlog_jepsen.workload.base import (
    CLOSE_TIMEOUT_S,
    METADATA_MAX_AGE_MS,
    PATIENCE_S,
    Client,
    LoadOnly,
    WorkloadContext,
    create_topics,
    reader_of,
    run_all,
)


class AppendWorkload(LoadOnly):
    """Producers, consumers, and two clients that request end offsets."""

    name: WorkloadName = "append"

    async def prepare(self, context: WorkloadContext) -> None:
        await create_topics(context, context.plan.shape.topics)

    async def run(self, context: WorkloadContext) -> None:
        await run_all(context, clients(context))


def clients(context: WorkloadContext) -> dict[str, Client]:
    """Return the clients of this workload by name. Other workloads use them, too."""
    shape = context.plan.workload
    found: dict[str, Client] = {}
    for number, producer in enumerate(shape.producers, start=1):
        name = f"producer-{number}"
        found[name] = partial(produce, context, name, producer)
    for number, consumer in enumerate(shape.consumers, start=1):
        name = f"consumer-{number}"
        found[name] = partial(consume, context, name, consumer)
    for number, pinned in enumerate((False, True), start=1):
        name = f"ends-{number}"
        found[name] = partial(observe_ends, context, name, pinned=pinned)
    return found


# -- producing -------------------------------------------------------------------------------------
#
# Producers: send groups of values to random partitions, in sessions.
#
# Half of the sessions end without a flush, similar to a crash of an application: records in flight
# are abandoned, and their outcome is unknown.


ONE_BY_ONE: Final = 0.2  # share of groups that are sent with one call per record
ONE_BY_ONE_MAX: Final = 20  # maximum number of records of such a group, because it is expensive
CLOSED_PROPERLY: Final = 0.5  # share of sessions that end with a flush
SESSION_SPREAD: Final = (0.5, 1.5)  # factors, so that sessions end at different times
BACKLOG_S: Final = 1.0  # maximum backlog that a producer sends later, in seconds of its rate
BURST_S: Final = 1.0  # length of a burst, and of the pause after it
POLL_S: Final = 0.5  # maximum interval of checks whether the load must end
BLOCK_MS: Final = 2_000
REQUEST_TIMEOUT_MS: Final = 10_000


async def produce(context: WorkloadContext, name: str, shape: ProducerShape) -> None:
    """Run sessions until the load ends."""
    random = context.fork(name)
    session = 0
    while not context.stopping.is_set():
        session += 1
        producing = Producing(context, Process(f"{name}/{session}"), shape, random)
        await producing.run()
        if not producing.has_succeeded:
            await context.sleep(PATIENCE_S)


class Producing:
    """One session of a producer. ``has_succeeded``: a group was acknowledged."""

    def __init__(
        self, context: WorkloadContext, process: Process, shape: ProducerShape, random: Random
    ) -> None:
        self.has_succeeded = False
        self._context = context
        self._process = process
        self._shape = shape
        self._random = random
        self._producer = _producer(context, process, shape, random)
        self._finishing: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []
        self._has_failed = False  # since the start of the last group
        self._is_over = False

    async def run(self) -> None:
        """Run the session. Raises ``BaseExceptionGroup`` with exceptions that are not errors of
        raftlog."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._shape.session_s * self._random.uniform(*SESSION_SPREAD)
        due_at = loop.time()
        try:
            while not self._is_over and loop.time() < ends_at:
                due_at = max(due_at, loop.time() - BACKLOG_S)
                await self._context.sleep(pause_s(self._shape, loop.time(), due_at))
                if not await self._has_room():
                    break
                due_at += await self._send() / self._shape.rate
        finally:
            await self._close()
        if self._failures:
            raise BaseExceptionGroup("an append failed", self._failures)

    async def _has_room(self) -> bool:
        """Wait until another group can be in flight. Returns False if the session ends first."""
        if self._has_failed:
            self._has_failed = False
            await self._context.sleep(PATIENCE_S)
        while not self._is_over and not self._context.stopping.is_set():
            if len(self._finishing) < self._shape.in_flight_max:
                return True
            await asyncio.wait(self._finishing, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
        return False

    async def _send(self) -> int:
        """Start a group, and return its number of records."""
        random, shape = self._random, self._shape
        padding = draw_padding(random, shape.padding_max)
        one_by_one = random.random() < ONE_BY_ONE
        most = min(shape.group_max, max(1, GROUP_BYTES_MAX // (padding + RECORD_BYTES)))
        count = random.randint(1, min(most, ONE_BY_ONE_MAX) if one_by_one else most)
        partition = random.choice(self._context.targets)
        group = await self._context.clients.begin(
            self._producer,
            self._process.name,
            partition,
            count=count,
            padding=padding,
            one_by_one=one_by_one,
            acks=shape.acks,
            idempotent=shape.idempotent,
            keys=self._context.keys.get(partition.topic, 0),
        )
        task = asyncio.create_task(self._finish(group))
        self._finishing.add(task)
        task.add_done_callback(self._finished)
        return count

    async def _finish(self, group: Group) -> None:
        outcome = await self._context.clients.finish(group)
        if outcome == "ok":
            self.has_succeeded = True
            return
        self._has_failed = True
        if outcome == "info":
            self._process.retire(group.process)
        # Without idempotence, only a new producer guarantees that a value is not sent again. A
        # producer without a success may use a bootstrap server that is down.
        self._is_over |= outcome == "info" and not self._shape.idempotent
        self._is_over |= outcome == "fail" and not self.has_succeeded

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._finishing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)
            self._is_over = True

    async def _close(self) -> None:
        proper = self._random.random() < CLOSED_PROPERLY or self._context.stopping.is_set()
        await self._producer.close(timeout=CLOSE_TIMEOUT_S if proper else 0)
        if self._finishing:  # every future is completed now
            await asyncio.wait(self._finishing)


def _producer(
    context: WorkloadContext, process: Process, shape: ProducerShape, random: Random
) -> AnyProducer:
    delivery_ms = int(shape.delivery_timeout_s * 1_000)
    common: dict[str, Any] = {
        "acks": shape.acks,
        "idempotent": shape.idempotent,
        "compression": shape.compression,
        "linger_ms": shape.linger_ms,
        "request_timeout_ms": min(REQUEST_TIMEOUT_MS, delivery_ms // 2),
        "delivery_timeout_ms": delivery_ms,
        "metadata_max_age_ms": METADATA_MAX_AGE_MS,
        "client_id": process.client,
    }
    entrance = context.entrance(random, pinned=shape.pinned)
    if context.plan.client == "kafka":
        from raftlog_jepsen.kafka_clients import KafkaProducer

        return KafkaProducer(entrance, **common)
    return AsyncProducer(entrance, max_block_ms=BLOCK_MS, **common)


def pause_s(shape: ProducerShape, now: float, due_at: float) -> float:
    """Return the seconds to wait at ``now`` for records that are due at ``due_at``.

    With bursts, no records are sent in every second period of ``BURST_S``. Those that are due then
    are sent later.
    """
    phase = now % (2 * BURST_S)
    rest = 2 * BURST_S - phase if shape.bursts and phase >= BURST_S else 0.0
    return max(due_at - now, rest, 0.0)


def draw_padding(random: Random, padding_max: int) -> int:
    """Draw a number of bytes, 0 to ``padding_max``. Half of the draws are below its square
    root."""
    return int(math.pow(padding_max + 1, random.random())) - 1


# -- consuming -------------------------------------------------------------------------------------
#
# Consumers: read partitions in sessions with different start offsets. Also requests end offsets.
#
# Each session is a separate process in the history. Within a session, only polls move the
# positions.


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


# -- compact ---------------------------------------------------------------------------------------
#
# The compact workload: every record has a key, and brokers keep the last record of each key.
#
# The settings of the topics make brokers compact them early and often. A record without a value, a
# *tombstone*, deletes its key. The value of an append determines its key and whether it is a
# tombstone (``keys``), so that the history entries have the same form as those of the append
# workload. The plan contains the number of keys per partition. Operations are those of the append
# workload.
#
# Compacted logs have gaps. The final log must contain, for each key, the last acknowledged state or
# a later one.
#
# Anomalies, in addition to those of appends (except GAP, and POLL-SKIP of records that do not exist
# at the end):
#
#   COMPACT-LOST-KEY: the last acknowledged record of a key is missing, and no later record has that
# key, in any copy: of a reader, or in a replica's files.   COMPACT-RESURRECTED: a key has a value
# that is older than its tombstone.   COMPACT-MOVED: an acknowledged record is at another offset.
# OBSERVED-THEN-LOST: a consumer received a record that is missing, and no later record has its key.


# Seconds for the cleaner. A reader that needs longer than delete.retention.ms can miss a tombstone.
REST_S: Final = 5.0


class CompactWorkload:
    """The clients of the append workload, with keys."""

    name: WorkloadName = "compact"
    drains: bool = True

    async def prepare(self, context: WorkloadContext) -> None:
        await create_topics(context, context.plan.shape.topics)

    async def run(self, context: WorkloadContext) -> None:
        await run_all(context, clients(context))

    async def drain(self, _context: WorkloadContext) -> bool:
        """Wait until the brokers have compacted their logs."""
        await asyncio.sleep(REST_S)
        return True
