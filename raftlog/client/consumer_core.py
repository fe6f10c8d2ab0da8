"""A consumer without a skin: what the synchronous and the asynchronous one share.

Taking and decoding records happens in the application's thread, through calls that never wait;
everything asynchronous runs on the one loop that the core is attached to. How to wait for records
is the skins' business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from raftlog import limits
from raftlog.client.cluster import Cluster
from raftlog.client.fetcher import Fetcher, no_position
from raftlog.client.host import Host
from raftlog.client.leaders import At, list_offsets
from raftlog.client.metadata import TopicView
from raftlog.client.settings import (
    ConnectionSettings,
    ConsumerSettings,
    Deserializer,
    OffsetReset,
)
from raftlog.client.subscription import Batch, Chunk, Part, Subscription, Wanted
from raftlog.errors import CorruptBatchError, InvalidRequestError, RaftlogError
from raftlog.record import decode_arrow, decode_records
from raftlog.types import (
    ConsumerRecord,
    Offset,
    OffsetAndTimestamp,
    TopicPartition,
    check_topic_name,
)

if TYPE_CHECKING:
    import pyarrow as pa


logger: Final = logging.getLogger(__name__)

_TURNS: Final = 1_000  # consumers begin with different replicas


class Run(NamedTuple):
    """Decoded records of one partition, to iterate over; ``part.position`` is to be kept true."""

    part: Part
    records: Iterator[ConsumerRecord]


class ConsumerCore:
    """The parts of one consumer, wired. ``attach`` it to its loop before anything else."""

    def __init__(
        self,
        connection: ConnectionSettings,
        settings: ConsumerSettings,
        host: Host,
        *,
        key_deserializer: Deserializer | None,
        value_deserializer: Deserializer | None,
    ) -> None:
        self.settings = settings
        self.cluster = Cluster(connection, connector=host.connector, chance=host.chance)
        self.subscription = Subscription(settings)
        self.monotonic = host.clock.monotonic
        self.has_deserializers = bool(key_deserializer or value_deserializer)
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._fetcher = Fetcher(
            settings,
            self.cluster,
            self.subscription,
            now=host.clock.monotonic,
            turn=int(host.chance() * _TURNS) if settings.read_from == "replica" else 0,
        )
        self._schedule: Callable[[Callable[[], None]], object] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._active = False

    def attach(self, schedule: Callable[[Callable[[], None]], object]) -> None:
        """``schedule`` has a function called on the core's loop."""
        self._schedule = schedule

    # -- records, in the application's thread

    def activate(self) -> None:
        """The application asks for records: from now on they are fetched ahead."""
        if not self._active:
            assert self._schedule is not None, "attach() first"
            self._schedule(self._fetcher.activate)
            self._active = True

    def take(self, records_max: int) -> list[ConsumerRecord]:
        """Up to ``records_max`` records of what is fetched; none if there is none. Never waits."""
        taken: list[ConsumerRecord] = []
        while len(taken) < records_max:
            chunk = self._next_chunk(errors=not taken)
            if chunk is None:
                break
            try:
                part = self._take_from(chunk, records_max - len(taken))
            except Exception:
                if not taken:
                    raise
                break  # it will be met again, first thing next time
            if taken:
                taken.extend(part)
            else:
                taken = part
        self._fetch_on()
        return taken

    def _next_chunk(self, *, errors: bool = True) -> Chunk | None:
        try:
            return self.subscription.next_chunk(errors=errors)
        except RaftlogError:
            self.look()  # it is fetched again, in case that it is asked for again
            raise

    def _take_from(self, chunk: Chunk, records_max: int) -> list[ConsumerRecord]:
        if not self._decode(chunk):
            return []
        chunk.end_iteration()
        records = chunk.records
        start = self.subscription.first_unread(chunk)
        if start == 0 and len(records) <= records_max and not self.has_deserializers:
            self.subscription.finish_batch(chunk)
            return records
        found = records[start : start + records_max]
        if self.has_deserializers:
            found = self._deserialize(found)
        if start + len(found) == len(records):
            self.subscription.finish_batch(chunk)
        else:
            chunk.part.position = found[-1].offset + 1
        return found

    def next_run(self) -> Run | None:
        """What is left of the next batch; None if nothing is fetched. Never waits."""
        while (chunk := self._next_chunk()) is not None:
            if self._decode(chunk):
                self._fetch_on()
                chunk.end_iteration()
                chunk.is_iterated = True
                start = self.subscription.first_unread(chunk)
                return Run(chunk.part, islice(chunk.records, start, None))
        self._fetch_on()
        return None

    def take_arrow(self) -> pa.RecordBatch | None:
        """Fetched batches of one partition, joined; None if there are none. Never waits."""
        while (chunk := self._next_chunk()) is not None:
            batches = self.subscription.take_batches(chunk, limits.ARROW_POLL_BYTES_MAX)
            try:
                found = self._to_arrow(chunk.part, batches)
            except CorruptBatchError:
                batches = batches[:1]  # those before the bad one are good
                try:
                    found = self._to_arrow(chunk.part, batches)
                except CorruptBatchError as error:
                    self._came_damaged(chunk, error)
                    continue
            self.subscription.finish_batches(chunk, batches)
            self._fetch_on()
            if found.num_rows:
                return found
        self._fetch_on()
        return None

    def deserialized(self, record: ConsumerRecord) -> ConsumerRecord:
        """The record with its key and value as the deserializers give them."""
        topic, partition, offset, key, value, headers, timestamp_ms, leader_epoch = record
        try:
            if key is not None and self._key_deserializer is not None:
                key = self._key_deserializer(key)
            if value is not None and self._value_deserializer is not None:
                value = self._value_deserializer(value)
        except Exception as error:
            error.add_note(
                f"in the deserializer, for {topic}:{partition} at offset {offset}; to go on past "
                f"it: seek(TopicPartition({topic!r}, {partition}), {offset + 1})"
            )
            raise
        return ConsumerRecord(
            topic, partition, offset, key, value, headers, timestamp_ms, leader_epoch
        )

    def _deserialize(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        done: list[ConsumerRecord] = []
        try:
            for record in records:
                done.append(self.deserialized(record))  # noqa: PERF401 - what is done stays done
        except Exception:
            if not done:
                raise
        return done

    def _decode(self, chunk: Chunk) -> bool:
        """Have the chunk's first batch decoded; False when it has no record to read."""
        if chunk.records:
            return True
        part = chunk.part
        try:
            chunk.records = decode_records(
                chunk.batches[0].data,
                topic=part.tp.topic,
                partition=part.tp.partition,
                from_offset=part.position or 0,
                check_crc=self.settings.check_crcs,
            )
        except CorruptBatchError as error:
            self._came_damaged(chunk, error)
            return False
        if not chunk.records:
            self.subscription.finish_batch(chunk)
        return bool(chunk.records)

    def _to_arrow(self, part: Part, batches: list[Batch]) -> pa.RecordBatch:
        return decode_arrow(
            [batch.data for batch in batches],
            topic=part.tp.topic,
            partition=part.tp.partition,
            from_offset=part.position or 0,
            check_crc=self.settings.check_crcs,
        )

    def _came_damaged(self, chunk: Chunk, error: CorruptBatchError) -> None:
        """Fetch the chunk's first batch again; raise if this is not the first time.

        The position stays: asked for again, the batch is fetched again.
        """
        part, following = chunk.part, chunk.batches[0].next_offset
        again = self.subscription.came_damaged(part)
        self.look()
        if again:
            raise CorruptBatchError(
                f"{part.tp}: the batch with offset {part.position} came damaged ({error}). Asking "
                f"again fetches it again; to go on past it: seek({part.tp!r}, {following})"
            ) from error
        logger.warning(
            "%s: the batch with offset %s came damaged (%s): fetching it again",
            part.tp,
            part.position,
            error,
        )

    def _fetch_on(self) -> None:
        """There is room again for what was not fetched for want of it."""
        if self.subscription.starved:
            self.subscription.starved = False
            self.look()

    def look(self) -> None:
        """Have the fetcher look at what changed."""
        assert self._schedule is not None, "attach() first"
        self._schedule(self._fetcher.look)

    # -- on the loop

    async def topic(self, name: str) -> TopicView:
        check_topic_name(name)
        if self._keeper is None:
            self._keeper = asyncio.ensure_future(self.cluster.keep_fresh())
        return await self.cluster.topic(name)

    async def assign(self, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            (await self.topic(tp.topic)).check_partition(tp.partition)
        self.subscription.assign(partitions)
        await self._begin()

    async def subscribe(self, topics: list[str]) -> None:
        views = [await self.topic(topic) for topic in topics]
        partitions = [
            TopicPartition(view.name, partition)
            for view in views
            for partition in range(view.partition_count)
        ]
        self.subscription.assign(partitions, topics=topics)
        await self._begin()

    async def _begin(self) -> None:
        """``latest`` means now, not when the first poll gets there."""
        self.cluster.forget_topics({tp.topic for tp in self.subscription.parts})
        if self.settings.auto_offset_reset == "latest":
            await self.settle([tp for tp, part in self.subscription.parts.items()])
        self._fetcher.look()

    async def settle(self, partitions: Iterable[TopicPartition]) -> None:
        """Look up the positions that are not known yet."""
        unknown: dict[TopicPartition, Wanted] = {}
        queries: dict[TopicPartition, At] = {}
        for tp in partitions:
            part = self.subscription.part(tp)
            if part.position is not None:
                continue
            if part.reset == "error":
                raise no_position(tp)
            unknown[tp] = Wanted(part, part.generation, None)
            queries[tp] = part.reset
        answers = await list_offsets(self.cluster, queries, any_replica=True)
        for tp, wanted in unknown.items():
            self.subscription.found(wanted, answers[tp].offset)
        self._fetcher.look()

    async def reset(self, partitions: list[TopicPartition], how: OffsetReset) -> None:
        """Move to the beginning, or to the end as it is now."""
        for tp in partitions:
            self.subscription.reset(tp, how)
        await self.settle(partitions)

    async def position(self, tp: TopicPartition) -> Offset:
        part = self.subscription.part(tp)
        while (position := part.position) is None:
            await self.settle([tp])
        return position

    async def offsets(
        self, partitions: list[TopicPartition], at: At
    ) -> dict[TopicPartition, Offset]:
        any_replica = at == "earliest" or self.settings.read_from == "replica"
        answers = await list_offsets(
            self.cluster, dict.fromkeys(partitions, at), any_replica=any_replica
        )
        return {tp: answers[tp].offset for tp in partitions}

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, At]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        answers = await list_offsets(self.cluster, times)
        return {
            tp: None
            if answers[tp].offset < 0
            else OffsetAndTimestamp(answers[tp].offset, answers[tp].timestamp_ms)
            for tp in times
        }

    async def close(self) -> None:
        """Stop. Idempotent."""
        self.subscription.shut()
        if self._keeper is not None:
            self._keeper.cancel()
        await self._fetcher.close()
        await self.cluster.close()


def check_times(times: object) -> dict[TopicPartition, At]:
    """What ``offsets_for_times`` takes, checked."""
    if not isinstance(times, Mapping):
        raise TypeError(f"{times!r}: a dict of TopicPartition to a time in ms since 1970")
    checked: dict[TopicPartition, At] = {}
    for tp, timestamp_ms in times.items():
        if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int):
            raise TypeError(f"{timestamp_ms!r}: a time is an int, milliseconds since 1970")
        if timestamp_ms < 0:
            raise InvalidRequestError(f"the time {timestamp_ms} is before 1970")
        checked[TopicPartition(*tp)] = timestamp_ms
    return checked
