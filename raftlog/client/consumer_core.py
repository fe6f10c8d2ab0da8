"""Consumer core that the synchronous and the asynchronous consumer share.

The application's thread takes and decodes records through calls that never wait. Everything
asynchronous runs on the one loop that the core is attached to. The two consumers implement the
waits for records.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from raftlog import limits
from raftlog.client.cluster import Cluster
from raftlog.client.consumer_groups.member import Member, Reading
from raftlog.client.environment import ClientEnvironment
from raftlog.client.fetch_state import Batch, Chunk, PartitionFetchState, Wanted
from raftlog.client.fetcher import Fetcher
from raftlog.client.metadata import TopicView
from raftlog.client.partition_requests import At, list_offsets
from raftlog.client.positions import Positions
from raftlog.client.settings import (
    ConnectionSettings,
    ConsumerSettings,
    Deserializer,
    GroupSettings,
    OffsetReset,
)
from raftlog.client.subscription import Subscription
from raftlog.client.topic_filter import TopicFilter
from raftlog.errors import (
    CorruptBatchError,
    DeserializationError,
    InvalidRequestError,
    RaftlogError,
)
from raftlog.protocol.groups import AWAY_EPOCH, LEAVE_EPOCH
from raftlog.record import BatchHeader, check, check_length, decode_records
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

_ABANDON_TIMEOUT_MS: Final = 1_000
_TURNS: Final = 1_000  # random start values, so that consumers start with different replicas


Checked: TypeAlias = tuple[BatchHeader, memoryview]  # a batch with valid checksums


class Run(NamedTuple):
    """Decoded records of one partition. The reader must update ``part.position`` as it iterates."""

    part: PartitionFetchState
    records: Iterator[ConsumerRecord[Any, Any]]


class ConsumerCore:
    """Components of one consumer. Call ``attach`` before anything else."""

    def __init__(
        self,
        connection: ConnectionSettings,
        settings: ConsumerSettings,
        host: ClientEnvironment,
        *,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        group: GroupSettings | None = None,
    ) -> None:
        self.settings = settings
        self.cluster = Cluster(
            connection, connector=host.connector, chance=host.chance, entropy=host.entropy
        )
        self.subscription = Subscription(settings, start="committed" if group else None)
        self.monotonic = host.clock.monotonic
        self.has_deserializers = bool(key_deserializer or value_deserializer)
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self.member: Member | None = None
        if group is not None:
            self.member = Member(
                group,
                self.cluster,
                self.subscription,
                now=host.clock.monotonic,
                member_id=str(
                    uuid.UUID(
                        int=int(host.chance() * (1 << 53)) << 75 | int(host.chance() * (1 << 53))
                    )
                ),
            )
        self._interest = TopicFilter(self.cluster, self.subscription, self.member)
        self._positions = Positions(
            self.cluster, self.subscription, self.member.look_up if self.member else None
        )
        self._fetcher = Fetcher(
            settings,
            self.cluster,
            self.subscription,
            now=host.clock.monotonic,
            positions=self._positions,
            turn=int(host.chance() * _TURNS) if settings.read_from == "replica" else 0,
        )
        self._schedule: Callable[[Callable[[], None]], object] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._active = False

    def attach(self, schedule: Callable[[Callable[[], None]], object]) -> None:
        """Set ``schedule``, which runs a function on the core's loop."""
        self._schedule = schedule
        if self.member is not None:
            self.member.schedule = schedule
            self.member.on_change = self._fetcher.poll

    # -- records, in the application's thread

    def activate(self) -> None:
        """Start to fetch ahead. Called when the application first requests records."""
        if not self._active:
            assert self._schedule is not None, "attach() first"
            self._schedule(self._fetcher.activate)
            self._active = True

    def take(self, records_max: int) -> list[ConsumerRecord[Any, Any]]:
        """Return up to ``records_max`` fetched records; an empty list without any. Never waits."""
        taken: list[ConsumerRecord[Any, Any]] = []
        while len(taken) < records_max:
            chunk = self._next_chunk(errors=not taken)
            if chunk is None:
                break
            try:
                part = self._take_from(chunk, records_max - len(taken))
            except Exception:
                if not taken:
                    raise
                break  # the next call raises the error first
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
            self.wake()  # fetches the batch again for the next call
            raise

    def _take_from(self, chunk: Chunk, records_max: int) -> list[ConsumerRecord[Any, Any]]:
        if not self._decode(chunk):
            return []
        self.subscription.end_iteration(chunk)
        self.subscription.hand_out(chunk.part)
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
        """Return the unread part of the next batch; None if nothing is fetched. Never waits."""
        while (chunk := self._next_chunk()) is not None:
            if self._decode(chunk):
                self._fetch_on()
                records = self.subscription.begin_run(chunk)
                return None if records is None else Run(chunk.part, records)
        self._fetch_on()
        return None

    def take_arrow(self) -> pa.RecordBatch | None:
        """Return fetched batches of one partition as Arrow; None without any. Never waits."""
        while (chunk := self._next_chunk()) is not None:
            batches = self.subscription.take_batches(chunk, limits.ARROW_POLL_BYTES_MAX)
            try:
                found = self._to_arrow(chunk.part, batches)
            except CorruptBatchError:
                batches = batches[:1]  # a batch before the corrupt one is valid
                try:
                    found = self._to_arrow(chunk.part, batches)
                except CorruptBatchError as error:
                    self._came_damaged(chunk, error)
                    continue
            self.subscription.hand_out(chunk.part)
            self.subscription.finish_batches(chunk, batches)
            self._fetch_on()
            if found.num_rows:
                return found
        self._fetch_on()
        return None

    def take_checked(self) -> tuple[TopicPartition | None, list[Checked]]:
        """Return the undecoded, verified batches of one fetch, and their partition.

        The partition is None, and the list empty, if nothing is fetched.

        Never waits. The position moves past all returned batches, whose headers contain their
        offsets.
        """
        header_of = check if self.settings.check_crcs else check_length
        while (chunk := self._next_chunk()) is not None:
            found: list[Checked] = []
            try:
                for batch in chunk.batches:
                    found.append((header_of(batch.data), batch.data))  # noqa: PERF401
            except CorruptBatchError as error:
                if not found:
                    self._came_damaged(chunk, error)
                    continue
            self.subscription.finish_batches(chunk, found)
            self._fetch_on()
            return chunk.part.tp, found
        self._fetch_on()
        return None, []

    def deserialized(self, record: ConsumerRecord) -> ConsumerRecord[Any, Any]:
        """Return the record with deserialized key and value.

        Raises ``DeserializationError`` if a deserializer raises an exception.
        """
        key, value, what = record.key, record.value, "key"
        try:
            if key is not None and self._key_deserializer is not None:
                key = self._key_deserializer(key)
            what = "value"
            if value is not None and self._value_deserializer is not None:
                value = self._value_deserializer(value)
        except Exception as error:
            topic, partition, offset = record.topic, record.partition, record.offset
            raise DeserializationError(
                f"{topic}:{partition}: the {what}_deserializer failed for the record at offset "
                f"{offset}: {type(error).__name__}: {error}. To continue after it, call skip() of "
                f"this error, or seek(TopicPartition({topic!r}, {partition}), {offset + 1})"
            ).at(topic, partition, offset, skip=self._skip(record, offset + 1)) from error
        return ConsumerRecord(
            record.topic,
            record.partition,
            record.offset,
            key,
            value,
            record.headers,
            record.timestamp_ms,
            record.leader_epoch,
        )

    def _skip(self, place: ConsumerRecord | TopicPartition, offset: Offset) -> Callable[[], None]:
        tp = TopicPartition(place.topic, place.partition)

        def skip() -> None:
            self.subscription.seek(tp, offset)
            self.wake()

        return skip

    def _deserialize(self, records: list[ConsumerRecord]) -> list[ConsumerRecord[Any, Any]]:
        done: list[ConsumerRecord[Any, Any]] = []
        try:
            for record in records:
                done.append(self.deserialized(record))  # noqa: PERF401 - keeps earlier records
        except Exception:
            if not done:
                raise
        return done

    def _decode(self, chunk: Chunk) -> bool:
        """Decode the first batch of the chunk. Returns False if it contains no record to read."""
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

    def _to_arrow(self, part: PartitionFetchState, batches: list[Batch]) -> pa.RecordBatch:
        from raftlog.record import decode_arrow  # most consumers never use Arrow

        return decode_arrow(
            [batch.data for batch in batches],
            topic=part.tp.topic,
            partition=part.tp.partition,
            from_offset=part.position or 0,
            check_crc=self.settings.check_crcs,
        )

    def _came_damaged(self, chunk: Chunk, error: CorruptBatchError) -> None:
        """Fetch the first batch of the chunk again. Raises if it is corrupt the second time.

        The position does not change, so the next ``poll`` fetches the batch once more.
        """
        part, following = chunk.part, chunk.batches[0].next_offset
        again = self.subscription.came_damaged(part)
        self.wake()
        if again:
            raise CorruptBatchError(
                f"{part.tp}: the batch with offset {part.position} arrived corrupt twice ({error})."
                " The next poll fetches it again. To continue after it, call skip() of this error, "
                f"or seek({part.tp!r}, {following})"
            ).at(*part.tp, part.position or 0, skip=self._skip(part.tp, following)) from error
        logger.warning(
            "corrupt batch received, fetching it again: partition=%s offset=%s error=%s",
            part.tp,
            part.position,
            error,
        )

    def _fetch_on(self) -> None:
        """Resume fetches that waited for buffer space."""
        if self.subscription.starved:
            self.subscription.starved = False
            self.wake()

    def wake(self) -> None:
        """Wake the fetcher, which then checks what to fetch."""
        assert self._schedule is not None, "attach() first"
        self._schedule(self._fetcher.poll)

    # -- on the loop

    async def topic(self, name: str) -> TopicView:
        check_topic_name(name)
        self._keep_fresh()
        return await self.cluster.topic(name)

    async def partitions_for(self, name: str) -> set[int]:
        """Return the partition numbers of a topic as it is now."""
        check_topic_name(name)
        self._keep_fresh()
        return set(range((await self.cluster.topic_now(name)).partition_count))

    async def check_partition(self, tp: TopicPartition) -> None:
        check_topic_name(tp.topic)
        self._keep_fresh()
        await self.cluster.check_partition(tp)

    def _keep_fresh(self) -> None:
        if self._keeper is None:
            self._keeper = asyncio.ensure_future(self.cluster.keep_fresh())

    async def assign(self, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            await self.check_partition(tp)
        self._interest.nothing()
        self.subscription.assign(partitions)
        if self.member is not None:
            self.member.begin(self.cluster.view)
        await self._begin()

    async def subscribe(self, topics: list[str], pattern: re.Pattern[str] | None = None) -> None:
        """Read these topics, or topics that match ``pattern``; as a group member with a group.

        Partitions that are already read keep their position.
        """
        for topic in topics:
            await self.topic(topic)
        self._keep_fresh()
        await self._interest.subscribe(topics, pattern)
        await self._begin()

    def begin_range(
        self, tp: TopicPartition, start: Offset, until: Offset, served_by: set[int]
    ) -> None:
        """Read ``tp`` from ``start`` to before ``until``, each time from another replica.

        ``served_by``: receives the ids of the brokers that served records.
        """
        self._keep_fresh()
        self._interest.nothing()
        self.subscription.assign_range(tp, start, until, served_by)
        self.cluster.forget_topics({tp.topic})
        self.turn(tp)
        self._fetcher.activate()

    async def begin_at(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Read exactly these partitions, each from its offset."""
        for tp in positions:
            await self.check_partition(tp)
        self._interest.nothing()
        self.subscription.assign_at(positions)
        self.cluster.forget_topics({tp.topic for tp in positions})
        self._fetcher.activate()

    def turn(self, tp: TopicPartition) -> None:
        """Fetch ``tp`` from another replica from now on, if another one is usable."""
        self._fetcher.turn(tp)

    def assign_nothing(self) -> None:
        self._interest.nothing()
        self.subscription.assign(())

    async def leave(
        self, reading: Reading, timeout_ms: int | None = None, *, away: bool = False
    ) -> None:
        """Commit, and leave the group. ``away``: a static member keeps its partitions reserved."""
        assert self.member is not None, "the consumer has a group"
        if timeout_ms is None:
            timeout_ms = self.cluster.settings.request_timeout_ms
        is_static = self.member.settings.instance_id is not None
        epoch = AWAY_EPOCH if away and is_static else LEAVE_EPOCH
        await self.member.leave(reading, epoch, timeout_ms=timeout_ms)

    async def abandon(self) -> None:
        """Close a garbage-collected consumer: leave the group, commit nothing, stop."""
        if self.member is not None:
            await self.leave(self.member.reading({}), _ABANDON_TIMEOUT_MS, away=True)
        await self.close()

    async def _begin(self) -> None:
        """Start reading. Looks up "latest" now, so that it does not depend on the first poll."""
        topics = {tp.topic for tp in self.subscription.parts}
        self.cluster.forget_topics(topics.union(self._interest.topics))
        if self.settings.auto_offset_reset == "latest":
            await self.resolve_positions([tp for tp, part in self.subscription.parts.items()])
        self._fetcher.poll()

    async def resolve_positions(self, partitions: Iterable[TopicPartition]) -> None:
        """Look up the positions that are not known yet."""
        parts = [self.subscription.part(tp) for tp in partitions]
        unknown = [Wanted(part, part.generation, None) for part in parts if part.position is None]
        for _, error in await self._positions.look_up(unknown):
            raise error
        self._fetcher.poll()

    async def reset(self, partitions: list[TopicPartition], how: OffsetReset) -> None:
        """Move to the first record, or to the current end."""
        for tp in partitions:
            self.subscription.reset(tp, how)
        await self.resolve_positions(partitions)

    async def position(self, tp: TopicPartition) -> Offset:
        part = self.subscription.part(tp)
        while (position := part.position) is None:
            await self.resolve_positions([tp])
        return position

    async def offsets(
        self, partitions: list[TopicPartition], at: At
    ) -> dict[TopicPartition, Offset]:
        any_replica = at == "earliest" or self.settings.read_from == "replica"
        answers = await list_offsets(
            self.cluster, dict.fromkeys(partitions, at), any_replica=any_replica
        )
        return {tp: answers[tp].offset for tp in partitions}

    async def lag(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the number of offsets between the position and the end of each partition."""
        await self.resolve_positions(partitions)
        ends = await self.offsets(partitions, "latest")
        return {
            tp: max(ends[tp] - position, 0)
            for tp in partitions
            if (position := self.subscription.part(tp).position) is not None
        }

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
        if self.member is not None:
            await self.member.close()
        await self._fetcher.close()
        await self.cluster.close()


def check_times(times: object) -> dict[TopicPartition, At]:
    """Check the argument of ``offsets_for_times``."""
    if not isinstance(times, Mapping):
        raise TypeError(f"{times!r} is not a dict of TopicPartition to a time in ms since 1970")
    checked: dict[TopicPartition, At] = {}
    for tp, timestamp_ms in times.items():
        if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int):
            raise TypeError(f"{timestamp_ms!r} is not an int (milliseconds since 1970)")
        if timestamp_ms < 0:
            raise InvalidRequestError(f"the time {timestamp_ms} is negative. Pass ms since 1970")
        checked[TopicPartition(*tp)] = timestamp_ms
    return checked
