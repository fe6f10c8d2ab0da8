"""The asynchronous consumer."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from raftlog import limits
from raftlog.client.aio.loop_bound import LoopBound
from raftlog.client.consumer import (
    POLL_RECORDS_DEFAULT,
    POLL_RECORDS_MAX,
    POLL_TIMEOUT_MS_DEFAULT,
    ConsumerBase,
    no_groups,
    nothing_assigned,
)
from raftlog.client.consumer_core import check_times
from raftlog.client.settings import OffsetReset, integer
from raftlog.client.subscription import check_partitions, check_topics
from raftlog.errors import ClosedError
from raftlog.types import ConsumerRecord, Offset, OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class AsyncConsumer(LoopBound, ConsumerBase):
    """``Consumer`` for asyncio: the same arguments, the same methods, as coroutines.

    Made anywhere; used on one event loop, by one task at a time. An asynchronous context manager,
    and an asynchronous iterator of records. Records are decoded in the loop's thread, a batch at a
    time; between batches other tasks have their turn.
    """

    def _bound(self, loop: asyncio.AbstractEventLoop) -> None:
        self._core.attach(loop.call_soon)

    # -- what to read

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """See ``Consumer.assign``."""
        self._bind()
        await self._core.assign(check_partitions(partitions))

    async def subscribe(self, topics: Iterable[str]) -> None:
        """See ``Consumer.subscribe``."""
        self._bind()
        await self._core.subscribe(check_topics(topics))

    async def unsubscribe(self) -> None:
        """Read nothing."""
        self._bind()
        self._subscription.assign(())

    async def assignment(self) -> set[TopicPartition]:
        """The partitions that are read."""
        return set(self._subscription.parts)

    async def partitions_for(self, topic: str) -> set[int]:
        """The numbers of a topic's partitions. Raises ``UnknownTopicError``."""
        self._bind()
        return set(range((await self._core.topic(topic)).partition_count))

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Give no records of these partitions, and fetch none, until ``resume``."""
        self._bind()
        self._subscription.set_paused(check_partitions(partitions), True)

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo ``pause``."""
        self._bind()
        self._subscription.set_paused(check_partitions(partitions), False)
        self._core.look()

    async def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return self._subscription.paused()

    # -- records

    async def poll(
        self,
        timeout_ms: int = POLL_TIMEOUT_MS_DEFAULT,
        max_records: int = POLL_RECORDS_DEFAULT,
    ) -> list[ConsumerRecord]:
        """See ``Consumer.poll``."""
        integer("max_records", max_records, 1, POLL_RECORDS_MAX)
        return await self._wait_for(lambda: self._core.take(max_records), timeout_ms)

    async def poll_arrow(self, timeout_ms: int = POLL_TIMEOUT_MS_DEFAULT) -> pa.RecordBatch | None:
        """See ``Consumer.poll_arrow``."""
        return await self._wait_for(self._core.take_arrow, timeout_ms)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """The records, one by one, for ever. Raises as ``Consumer.poll`` does."""
        core = self._core
        while True:
            run = await self._wait_for(core.next_run, None)
            assert run is not None, "it waits for ever"
            for record in run.records:
                done = core.deserialized(record) if core.has_deserializers else record
                run.part.position = record.offset + 1
                yield done

    async def _wait_for(self, take: Callable[[], T], timeout_ms: int | None) -> T:
        """What ``take`` gives, once it is something; else what it gave last."""
        timeout_s = None
        if timeout_ms is not None:
            timeout_s = integer("timeout_ms", timeout_ms, 0, limits.WAIT_MS_MAX) / 1_000
        self._bind()
        if not self._subscription.parts:
            raise nothing_assigned()
        self._core.activate()
        await asyncio.sleep(0)  # records may never run out: others have their turn nevertheless
        found = take()
        try:
            async with asyncio.timeout(timeout_s):
                while not found:
                    await self._ready()
                    found = take()
        except TimeoutError:
            return found
        return found

    async def _ready(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        self._subscription.when_ready(wake)
        await waiter
        if self._closed:
            raise ClosedError("the AsyncConsumer was closed")

    # -- where to read

    async def position(self, partition: TopicPartition) -> Offset:
        """See ``Consumer.position``."""
        self._bind()
        (tp,) = check_partitions([partition])
        return await self._core.position(tp)

    async def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """See ``Consumer.seek``."""
        self._bind()
        (tp,) = check_partitions([partition])
        self._subscription.seek(tp, integer("offset", offset, 0, limits.OFFSET_MAX))
        self._core.look()

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """See ``Consumer.seek_to_beginning``."""
        await self._reset(partitions, "earliest")

    async def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """See ``Consumer.seek_to_end``."""
        await self._reset(partitions, "latest")

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """See ``Consumer.beginning_offsets``."""
        self._bind()
        return await self._core.offsets(check_partitions(partitions), "earliest")

    async def end_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """See ``Consumer.end_offsets``."""
        self._bind()
        return await self._core.offsets(check_partitions(partitions), "latest")

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """See ``Consumer.offsets_for_times``."""
        self._bind()
        return await self._core.offsets_for_times(check_times(times))

    async def _reset(self, partitions: Iterable[TopicPartition] | None, how: OffsetReset) -> None:
        self._bind()
        if partitions is None:
            checked = list(self._subscription.parts)
        else:
            checked = check_partitions(partitions)
        await self._core.reset(checked, how)

    # -- groups, which there are none of yet

    async def commit(self, *_args: Any, **_settings: Any) -> None:
        """Raises ``UnsupportedFeatureError``: consumer groups come in a later release."""
        raise no_groups("commit")

    async def committed(self, *_args: Any, **_settings: Any) -> None:
        """Raises ``UnsupportedFeatureError``: consumer groups come in a later release."""
        raise no_groups("committed")

    # -- the end

    async def close(self) -> None:
        """Stop. Idempotent."""
        if self._closed:
            return
        if self._loop is not None:
            self._bind()
        self._closed = True
        if self._loop is not None:
            await self._core.close()

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if not self._closed and self._loop is not None:
            warnings.warn(
                f"unclosed {self!r}: close it, or use `async with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
