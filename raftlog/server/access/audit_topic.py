"""The topic ``__audit``, which this broker creates and appends to, or another one that leads it."""

from __future__ import annotations

from asyncio import Future, timeout
from contextlib import suppress
from functools import partial
from typing import Final

from raftlog.errors import (
    LeaderNotAvailableError,
    RaftlogError,
    RequestTimedOutError,
    TopicExistsError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.produce import ProducePartition, ProduceRequest, ProduceResponse
from raftlog.record import parse_header
from raftlog.server.context import BrokerContext
from raftlog.server.requests.append import ACKS_ALL, Stored, append
from raftlog.types import AUDIT_TOPIC

TIMEOUT_SECONDS: Final = 10.0
# 30 days or 1 GiB.
SETTINGS: Final = {"retention.ms": str(30 * 86_400_000), "retention.bytes": str(1 << 30)}


class AuditTopic:
    """The ``AuditLog`` of a broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    async def write(self, batch: bytes) -> None:
        """Append a batch, and return when it is committed."""
        context = self._context
        topic = context.topics.get(AUDIT_TOPIC)
        if topic is None:
            context.topics.check_complete()
            await self._create()
            topic = context.topics.topic(AUDIT_TOPIC)
        leader = context.topics.info(topic, 0).leader
        if leader is None:
            raise LeaderNotAvailableError(f"{AUDIT_TOPIC}:0 has no leader")
        try:
            async with timeout(TIMEOUT_SECONDS):
                if leader == context.broker_id:
                    await self._append(batch)
                else:
                    await self._send(leader, batch)
        except TimeoutError as error:
            raise RequestTimedOutError(
                f"{AUDIT_TOPIC}:0 has not committed a batch within {TIMEOUT_SECONDS:g} s"
            ) from error

    async def _create(self) -> None:
        """Create the topic, in turn with other changes of topics."""
        context = self._context
        created: Future[None] = context.loop.create_future()

        async def create() -> None:
            with suppress(TopicExistsError):  # another broker was first
                await context.authority.create(
                    AUDIT_TOPIC, partitions=1, replication_factor=0, config=SETTINGS
                )

        context.administration.submit_work(create, partial(_resolve, created))
        await created

    async def _append(self, batch: bytes) -> None:
        host = self._context.topics.host(AUDIT_TOPIC, 0)
        stored: Future[None] = self._context.loop.create_future()

        def done(result: Stored | RaftlogError) -> None:
            _resolve(stored, result if isinstance(result, RaftlogError) else None)

        append(host, batch, parse_header(batch), ACKS_ALL, done)
        await stored

    async def _send(self, leader: int, batch: bytes) -> None:
        part = ProducePartition(topic=AUDIT_TOPIC, partition=0, length=len(batch))
        request = ProduceRequest(acks=ACKS_ALL, partitions=[part])
        links = self._context.clustered().links
        answer = (await links.request(leader, apis.PRODUCE, request, [batch])).message
        assert isinstance(answer, ProduceResponse)
        for result in answer.partitions:
            if result.failure is not None:
                raise result.failure.to_error()


def _resolve(future: Future[None], error: RaftlogError | None) -> None:
    if future.done():
        return  # it was cancelled
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
