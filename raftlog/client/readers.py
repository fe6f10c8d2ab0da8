"""Batch reader: reads whole, undecoded batches of many partitions, for a program that copies them.

Like ``RangeReader`` it uses the consumer core and checks that the batches of a partition cover its
offsets without gaps. It has no ranges, and does not convert records.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack

from raftlog import limits
from raftlog.client.accumulator import ProducerIdAndEpoch
from raftlog.client.base import ClientEnvironment
from raftlog.client.cluster import Cluster, TopicView
from raftlog.client.connection import SILENCE_S
from raftlog.client.consumer import Checked, ConsumerCore
from raftlog.client.defaults import CLIENT_ID_DEFAULT
from raftlog.client.requests import At, try_offsets
from raftlog.client.settings import (
    DAY_MS,
    Bootstrap,
    SecurityArguments,
    connection_settings,
    consumer_settings,
    integer,
)
from raftlog.client.subscription import check_partitions
from raftlog.client.threads import PlainClient, refuse_io_thread, wait_once
from raftlog.errors import (
    ClosedError,
    CorruptBatchError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    RaftlogError,
    RequestTimedOutError,
    RetriableError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import MetadataRequest, MetadataResponse, OffsetAnswer
from raftlog.protocol.schema import PartitionRange
from raftlog.record.arrow import schema_of
from raftlog.types import LeaderEpoch, Offset, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


# -- partition reader ------------------------------------------------------------------------------
#
# Partition reader: base of the clients that read stored batches from given offsets.
#
# It has the consumer core without a group, positions or decoded records. ``RangeReader`` reads one
# range as Arrow, ``BatchReader`` copies whole batches.


_PARTITION_FETCH_BYTES: Final = 2 * limits.MIB


class PartitionReader(PlainClient):
    """Client that reads partitions from given offsets. One thread at a time can use it."""

    NAME: ClassVar[str]  # in errors and as the name of the thread
    HAS_STAND_IN: ClassVar[bool] = True

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        *,
        read_from: str = "replica",
        client_rack: str | None = None,
        check_crcs: bool = True,
        isolation: str = "committed",
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = limits.FETCH_BYTES_MAX,
        max_partition_fetch_bytes: int = _PARTITION_FETCH_BYTES,
        request_timeout_ms: int = 30_000,
        client_id: str = CLIENT_ID_DEFAULT,
        bootstrap_timeout_ms: int = 3_000,
        metadata_max_age_ms: int = 30_000,
        host: ClientEnvironment | None = None,
        **security: Unpack[SecurityArguments],
    ) -> None:
        """Create the reader. It opens its first connection with the first read.

        ``read_from``: "replica": each read from another in-sync replica; "leader": from the leader.
        ``max_partition_fetch_bytes``: maximum bytes of one fetch, 1 to 52,428,800. The reader can
            fetch this amount beyond the end, and eight times this amount ahead.

        All other arguments and errors are those of ``Consumer``.
        """
        arguments = {**locals(), "auto_offset_reset": "error", "fetch_min_bytes": 1}
        # guard: a copy is read from leaders
        if not self.HAS_STAND_IN:
            arguments["read_from"] = "leader"
        host = host or ClientEnvironment()
        settings = replace(consumer_settings(arguments), has_stand_in=self.HAS_STAND_IN)
        self._core = ConsumerCore(connection_settings(arguments), settings, host)
        self._subscription = self._core.subscription
        self._take_thread(host, f"raftlog-{self.NAME.replace(' ', '-')}")
        self._core.attach(self._thread.schedule)
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the {self.NAME} was closed")
        self._thread.check_process()

    def _end(self) -> None:
        self._subscription.shut()
        self._thread.call(self._core.close)

    def _end_of_forgotten(self) -> Callable[[], Coroutine[Any, Any, None]]:
        return self._core.abandon


# -- readers ---------------------------------------------------------------------------------------


class BatchReader(PartitionReader):
    """Client that reads batches of partitions from given offsets on. A context manager.

    It reads from leaders only (``read_from`` has no effect), and waits while there is none: each
    replica removes marks of deleted keys at other times, and copies compare theirs with what the
    leader has removed (``mirror.compacted``). One thread at a time can use it.
    """

    NAME = "batch reader"
    HAS_STAND_IN = False

    def start(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Read exactly these partitions, each from its offset on. Ends earlier reads.

        Raises ``UnknownTopicError`` or ``UnknownPartitionError`` if a partition does not exist, and
        ``ClosedError`` if the reader is closed.
        """
        refuse_io_thread()
        self._check_open()
        self._used = True
        partitions = check_partitions(positions)
        wanted = dict(zip(partitions, positions.values(), strict=True))
        self._thread.call(lambda: self._core.begin_at(wanted))

    def poll(self, timeout_s: float) -> tuple[TopicPartition | None, list[Checked]]:
        """Return fetched batches of one partition; (None, []) if none arrive in ``timeout_s``.

        The first batch can start below the requested offset, which is then inside of it. The
        checksums are verified.

        Raises ``OffsetOutOfRangeError`` if the next records of a partition are deleted,
        ``UnknownTopicError``, ``DamagedLogError`` or ``CorruptBatchError`` if a partition cannot be
        read, and ``ClosedError`` if the reader is closed.
        """
        self._check_open()
        found = self._core.take_checked()
        if found[0] is None and timeout_s > 0:
            wait_once(self._subscription.when_ready, timeout_s)
            self._check_open()
            found = self._core.take_checked()
        return found

    def take_removed_below(self) -> dict[TopicPartition, dict[LeaderEpoch, Offset]]:
        """Return the highest ``tombstones_removed_below`` of the responses since the last call, for
        each partition by the epoch of the leader that sent them. Zeros are left out.
        """
        self._check_open()
        return self._thread.call(self._core.take_removed_below)


# -- ranges ----------------------------------------------------------------------------------------
#
# State and checks of one range that a ``RangeReader`` reads.
#
# ``Range`` collects batches and selects those of the next portion; plain values. ``Lookout``
# queries the cluster, on the loop.
#
# These checks ensure that the records are the right ones:
#
#     complete, no duplicates     each batch must start where the previous one ended: batches cover
#                                 every offset, also after compaction
#     the right topic             a fetch names a topic, not its id. So the topic's id is checked at
#                                 the start, and before the last portion at the brokers that served
#                                 the records
#     not truncated               only the leader decides that the end is beyond its log; it queries
#                                 the other brokers first (``list_offsets``)


_ANSWER_MS: Final = 1_000  # time limit for the leader's start and end offsets
_TRIES: Final = 3  # metadata requests for a topic id, because brokers may be stale


@dataclass(slots=True, kw_only=True)
class Range:
    """One read, and its progress."""

    tp: TopicPartition
    start: Offset
    end: Offset
    topic_id: str
    columns: tuple[str, ...] | None
    rows_max: int
    bytes_max: int
    timeout_ms: int
    fetched: Offset  # next expected offset
    taken: Offset = 0  # end of the batches that ``take`` has returned
    producers: frozenset[ProducerIdAndEpoch] | None = None  # None: all batches
    batches: deque[Checked] = field(default_factory=deque)  # received, not yet returned
    rows: int = 0  # in ``batches``
    size_bytes: int = 0  # of ``batches``, uncompressed
    served_by: set[int] = field(default_factory=set)

    @property
    def is_fetched(self) -> bool:
        return self.fetched >= self.end

    @property
    def is_enough(self) -> bool:
        """True if the received batches fill a portion, or are the last ones."""
        return self.is_fetched or self.rows >= self.rows_max or self.size_bytes >= self.bytes_max

    def add(self, batches: Sequence[Checked]) -> None:
        """Add received batches. Each must start where the previous one ended."""
        for header, data in batches:
            if header.base_offset > self.fetched:
                raise CorruptBatchError(
                    f"{self.tp}: offsets {self.fetched} to {header.base_offset - 1} are missing: "
                    f"the next received batch starts at {header.base_offset}"
                )
            if header.next_offset <= self.fetched:
                continue
            self.fetched = header.next_offset
            writer = (header.producer_id, header.producer_epoch)
            # guard: only the named producer's batches are read back
            if self.producers is not None and writer not in self.producers:
                continue
            self.batches.append((header, data))
            self.rows += header.record_count
            self.size_bytes += header.uncompressed_length

    def take(self) -> tuple[list[Checked], int]:
        """Remove and return the batches of the next portion, and into how many to split it."""
        taken: list[Checked] = []
        rows = size_bytes = 0
        while self.batches:
            header, _ = self.batches[0]
            count, length = header.record_count, header.uncompressed_length
            is_full = rows + count > self.rows_max or size_bytes + length > self.bytes_max
            # Compaction may have joined batches: of this one, only the rest is new.
            if taken and (is_full or header.base_offset < taken[-1][0].next_offset):
                break
            rows, size_bytes = rows + count, size_bytes + length
            taken.append(self.batches.popleft())
        self.rows -= rows
        self.size_bytes -= size_bytes
        self.taken = taken[-1][0].next_offset
        return taken, max(-(-rows // self.rows_max), -(-size_bytes // self.bytes_max), 1)


def decode_portion(wanted: Range) -> tuple[list[pa.RecordBatch], Offset]:
    """Remove the batches of the next portion. Return its records, and the offset after them.

    The records are split if one log batch exceeds the requested size.
    """
    from raftlog.record import decode_arrow

    start = max(wanted.start, wanted.taken)
    taken, pieces = wanted.take()
    records = decode_arrow(
        [data for _, data in taken],
        topic=wanted.tp.topic,
        partition=wanted.tp.partition,
        from_offset=start,
        to_offset=wanted.end,
        check_crc=False,
        columns=wanted.columns,
    )
    count = records.num_rows
    pieces = min(pieces, count)
    bounds = [count * piece // pieces for piece in range(pieces + 1)] if count else []
    portions = [records.slice(first, last - first) for first, last in pairwise(bounds)]
    return portions, min(wanted.taken, wanted.end)


class Lookout:
    """Cluster queries for the reads of one core, on its loop."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core

    async def begin(self, wanted: Range) -> None:
        # A job has a range for each partition, and metadata of a topic has all of them. The id is
        # confirmed when the records have arrived.
        topic = self._core.cluster.view.topics.get(wanted.tp.topic)
        if (
            topic is None
            or topic.id != wanted.topic_id
            or wanted.tp.partition >= topic.partition_count
        ):
            topic = await self._topic(wanted)
        topic.check_partition(wanted.tp.partition)
        wanted.topic_id = topic.id
        self._core.begin_range(wanted.tp, wanted.fetched, wanted.end, wanted.served_by)

    async def _topic(self, wanted: Range) -> TopicView:
        """Return the current topic, if it has the id ``topic_id``."""
        cluster, name, tries = self._core.cluster, wanted.tp.topic, 0
        rotate = False

        async def attempt() -> TopicView:
            await cluster.refresh([name], rotate=rotate)
            return cluster.view.topic(name)

        while True:
            tries += 1
            try:
                found = await cluster.persist(
                    attempt, repeatable=True, timeout_ms=wanted.timeout_ms
                )
                _check_id(wanted, found.id)
            except UnknownTopicError:
                if not wanted.topic_id or tries == _TRIES:
                    raise
                rotate = True
                await asyncio.sleep(cluster.backoff_seconds(tries))
            else:
                return found

    async def confirm(self, wanted: Range) -> None:
        """Raise if records may be of another topic. Queries the brokers that served them.

        A broker with another topic of this name would have served that topic's records, and its
        metadata contains that topic's id.
        """
        cluster = self._core.cluster
        asked = {
            broker_id: address
            for broker_id, address in cluster.view.brokers.items()
            if broker_id in wanted.served_by
        }
        answers = await cluster.ask_all(
            apis.METADATA,
            MetadataRequest(
                topics=[wanted.tp.topic],
                span=PartitionRange(start=wanted.tp.partition, count=1),
            ),
            brokers=asked,
            patience_s=SILENCE_S,
        )
        sure = set()
        for broker_id, answer in answers.items():
            if not isinstance(answer, MetadataResponse) or not answer.topics:
                continue
            (info,) = answer.topics
            error = None if info.failure is None else info.failure.to_error()
            if error is None:
                _check_id(wanted, info.id)
                sure.add(broker_id)
            elif not isinstance(error, RetriableError):
                raise error
        if sure != wanted.served_by:
            await self._topic(wanted)

    async def look_around(self, wanted: Range, *, is_late: bool) -> str:
        """Try another replica, and query the leader for the end. Called when no records arrive.

        Returns the problem, if it is known. Raises errors that are permanent.
        """
        cluster, tp = self._core.cluster, wanted.tp
        self._core.turn(tp)
        self._core.wake()
        await _refresh(cluster)
        _check_id(wanted, cluster.view.topic(tp.topic).id)
        answer = await self._ask(tp, "latest")
        if isinstance(answer, RaftlogError):
            return str(answer)
        if answer.offset >= wanted.end:
            return ""
        if is_late:
            raise OffsetOutOfRangeError(_beyond(wanted, answer.offset))
        return f"the partition ends at {answer.offset}"

    async def verify_out_of_range(self, wanted: Range, error: OffsetOutOfRangeError) -> None:
        """Raise if the next offset does not exist, as a broker reported. The leader decides.

        The report may be from a former leader.
        """
        cluster, tp = self._core.cluster, wanted.tp
        await _refresh(cluster)
        _check_id(wanted, cluster.view.topic(tp.topic).id)
        first, last = await self._bounds(tp)
        if first is not None and wanted.fetched < first:
            raise OffsetOutOfRangeError(
                f"{tp}: offset {wanted.fetched} is below the log start offset {first}. Retention "
                "or a delete request has deleted the records"
            ) from error
        if last is not None and last < wanted.end:
            raise OffsetOutOfRangeError(_beyond(wanted, last)) from error
        if first is None or last is None:
            raise OffsetOutOfRangeError(
                f"{tp}: offset {wanted.fetched} does not exist ({error})"
            ) from error
        await asyncio.sleep(cluster.backoff_seconds(1))
        self._core.begin_range(tp, wanted.fetched, wanted.end, wanted.served_by)

    async def _bounds(self, tp: TopicPartition) -> tuple[Offset | None, Offset | None]:
        """Return the leader's start and end offset; None for a missing response."""
        answers = await asyncio.gather(self._ask(tp, "earliest"), self._ask(tp, "latest"))
        first, last = (None if isinstance(each, RaftlogError) else each.offset for each in answers)
        return first, last

    async def _ask(self, tp: TopicPartition, at: At) -> OffsetAnswer | RaftlogError:
        """Query the leader for an offset, as a reader of this isolation sees it."""
        core = self._core
        isolation = core.settings.isolation
        answers = await try_offsets(
            core.cluster, {tp: at}, patience_ms=_ANSWER_MS, isolation=isolation
        )
        return answers[tp]


def _check_id(wanted: Range, topic_id: str) -> None:
    if wanted.topic_id and topic_id != wanted.topic_id:
        raise UnknownTopicError(
            f"topic {wanted.tp.topic!r} was deleted and created again: its id is {topic_id}, "
            f"not {wanted.topic_id}"
        )


def _beyond(wanted: Range, last: Offset) -> str:
    return (
        f"{wanted.tp} ends at offset {last}, before the end {wanted.end} of the range. An unclean "
        "leader election has truncated the log, or these records never existed"
    )


async def _refresh(cluster: Cluster) -> None:
    """Request metadata from a broker that was not queried recently. Ignores retriable errors."""
    with suppress(TimeoutError, RetriableError, OutcomeUnknownError):
        async with asyncio.timeout(SILENCE_S):
            await cluster.refresh(rotate=True)


# -- range reader ----------------------------------------------------------------------------------
#
# Range reader: reads a range of one partition exactly once, as Arrow, for a batch-job task.
#
# It uses the consumer core, which can fetch from every in-sync replica, and stops at the end of the
# range. It verifies the stored batches, collects them up to the requested size, and converts them
# to Arrow together.


ROWS_DEFAULT: Final = 10_000
BYTES_DEFAULT: Final = 4 * limits.MIB
BYTES_MAX: Final = limits.GIB  # of a portion; Arrow's limit for a column is higher
TIMEOUT_MS_DEFAULT: Final = 30_000
_LOOK_AGAIN_S: Final = 1.0  # without records, then try other replicas and refresh metadata
_END_PATIENCE_S: Final = 2.0  # time for the requested end to become committed


class RangeReader(PartitionReader):
    """Client that reads ranges of offsets, one after the other. A context manager.

    One thread at a time can use it. It keeps its connections and metadata between reads.
    """

    NAME = "range reader"

    _range: Range | None = None  # the range being read
    _position: Offset | None = None

    @cached_property
    def _lookout(self) -> Lookout:
        return Lookout(self._core)

    @property
    def position(self) -> Offset | None:
        """Offset after the last returned record of the current read; None before its first step.

        Within a log batch that is split into portions: the first offset of that log batch.
        """
        return self._position

    def read(
        self,
        tp: TopicPartition,
        start: Offset,
        end: Offset,
        *,
        topic_id: str = "",
        columns: Sequence[str] | None = None,
        rows_max: int = ROWS_DEFAULT,
        bytes_max: int = BYTES_DEFAULT,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
        producers: Iterable[ProducerIdAndEpoch] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of ``tp`` from ``start`` to before ``end``, in offset order, each once.

        ``topic_id``: expected topic id, because another topic may have this name now. Default: any.
        ``columns``: as for ``record.decode_arrow``; default: topic, partition, offset, key, value,
            headers, timestamp (us, UTC), leader_epoch.
        ``rows_max`` (1 to 1,048,576, default: 10,000), ``bytes_max`` (1 to 1,073,741,824,
            uncompressed, default: 4 MiB): size of a portion. Small log batches are joined up to it,
            larger ones are split into about equal portions.
        ``timeout_ms``: maximum wait for the next records, also during failovers, 1 to 86,400,000.
            Default: 30,000.
        ``producers``: read only the batches that these producers wrote in these epochs; other
            batches are fetched and skipped. Compaction removes the producer from most batches that
            it rewrites. Default: all batches.

        The iterator ends after all records below ``end``. It can be closed early; another ``read``
        also ends it. This call raises ``InvalidRequestError`` or ``TypeError`` if an argument is
        wrong. The iterator raises:

        ``OffsetOutOfRangeError``: records of the range are deleted, maybe since the read started,
            or ``end`` is beyond the committed end. Earlier records were returned.
        ``UnknownTopicError``, ``UnknownPartitionError``: the partition does not exist, or its topic
            does not have the id ``topic_id``.
        ``CorruptBatchError``, ``DamagedLogError``: the records are corrupt, and no replica has a
            valid copy.
        ``RequestTimedOutError``: no records arrived for ``timeout_ms``.
        ``BrokerUnavailableError``: no broker was ever reached.
        ``ClosedError``: the reader was closed.
        """
        (checked,) = check_partitions([tp])
        integer("start", start, 0, limits.OFFSET_MAX + 1)
        integer("end", end, 0, limits.OFFSET_MAX + 1)
        if start > end:
            raise InvalidRequestError(f"{checked}: start={start} is greater than end={end}")
        if columns is not None:
            schema_of(columns)
        wanted = Range(
            tp=checked,
            start=start,
            end=end,
            topic_id=topic_id,
            columns=None if columns is None else tuple(columns),
            rows_max=integer("rows_max", rows_max, 1, limits.RECORDS_PER_BATCH_MAX),
            bytes_max=integer("bytes_max", bytes_max, 1, BYTES_MAX),
            timeout_ms=integer("timeout_ms", timeout_ms, 1, DAY_MS),
            fetched=start,
            producers=None if producers is None else frozenset(producers),
        )
        self._check_open()
        return self._portions(wanted) if start < end else iter(())

    # -- in the caller's thread

    def _portions(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        refuse_io_thread()
        self._check_open()
        self._used = True
        self._range, self._position = wanted, wanted.start
        problem: OffsetOutOfRangeError | None = None
        try:
            self._thread.call(partial(self._lookout.begin, wanted))
            while problem is None and not (wanted.is_fetched and not wanted.batches):
                try:
                    while not wanted.is_enough:
                        wanted.add(self._next(wanted))
                except OffsetOutOfRangeError as error:
                    problem = error  # earlier records are valid
                if wanted.is_fetched or problem is not None:
                    self._thread.call(partial(self._lookout.confirm, wanted))
                while wanted.batches and (wanted.is_enough or problem is not None):
                    for portion in self._decoded(wanted):
                        yield portion
                        self._check_current(wanted)
            if problem is not None:
                raise problem
        finally:
            if self._range is wanted:
                self._range = None
                # On the loop: garbage collection can run this in any thread.
                self._thread.call_soon(self._core.assign_nothing)

    def _decoded(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        """Yield the next portion, split if one log batch exceeds the requested size."""
        portions, after = decode_portion(wanted)
        for number, portion in enumerate(portions, start=1):
            if number == len(portions):
                self._position = after
            yield portion
        self._position = after

    def _next(self, wanted: Range) -> list[Checked]:
        """Wait for the next batches, and return them."""
        core, now = self._core, self._core.monotonic
        start = now()
        deadline, look_at = start + wanted.timeout_ms / 1_000, start + _LOOK_AGAIN_S
        while True:
            try:
                _, found = core.take_checked()
            except OffsetOutOfRangeError as error:
                self._thread.call(partial(self._lookout.verify_out_of_range, wanted, error))
                found = []
            if found:
                return found
            left = min(deadline, look_at) - now()
            if left > 0:
                wait_once(self._subscription.when_ready, left)
                self._check_current(wanted)
                continue
            is_late = now() - start >= min(_END_PATIENCE_S, wanted.timeout_ms / 1_000)
            reason = self._thread.call(partial(self._lookout.look_around, wanted, is_late=is_late))
            if now() >= deadline:
                raise RequestTimedOutError(
                    f"{wanted.tp}: received no records for {wanted.timeout_ms} ms at offset "
                    f"{wanted.fetched}, before the end {wanted.end} of the range"
                    f"{reason and f' ({reason})'}"
                )
            look_at = now() + _LOOK_AGAIN_S

    def _check_current(self, wanted: Range) -> None:
        if self._closed or self._subscription.closed:
            raise ClosedError(f"the {self.NAME} was closed")
        if self._range is not wanted:
            raise InvalidRequestError(
                f"another read ended this read of {wanted.tp}. A range reader runs one read at a "
                "time. Create one reader per thread"
            )
