"""Producers: send groups of values to random partitions, in sessions.

Half of the sessions end without a flush, similar to a crash of an application: records in flight
are abandoned, and their outcome is unknown.
"""

from __future__ import annotations

import asyncio
import math
from random import Random
from typing import Any, Final

from raftlog.aio import AsyncProducer
from raftlog_jepsen.client import (
    GROUP_BYTES_MAX,
    RECORD_BYTES,
    AnyProducer,
    Group,
    Process,
)
from raftlog_jepsen.plan import ProducerShape
from raftlog_jepsen.workload.base import (
    CLOSE_TIMEOUT_S,
    METADATA_MAX_AGE_MS,
    PATIENCE_S,
    WorkloadContext,
)

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
