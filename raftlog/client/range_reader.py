"""Range reader: reads a range of one partition exactly once, as Arrow, for a batch-job task.

It uses the consumer core, which can fetch from every in-sync replica, and stops at the end of the
range. It verifies the stored batches, collects them up to the requested size, and converts them to
Arrow together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from raftlog import limits
from raftlog.client.batch import ProducerIdAndEpoch
from raftlog.client.consumer_core import Checked
from raftlog.client.partition_reader import PartitionReader
from raftlog.client.ranges import Lookout, Range
from raftlog.client.settings import DAY_MS, integer
from raftlog.client.subscription import check_partitions
from raftlog.client.waiting import refuse_io_thread, wait_once
from raftlog.errors import (
    ClosedError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
)
from raftlog.record.arrow import schema_of
from raftlog.types import Offset, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

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
        from raftlog.record import decode_arrow

        taken, pieces = wanted.take()
        records = decode_arrow(
            [data for _, data in taken],
            topic=wanted.tp.topic,
            partition=wanted.tp.partition,
            from_offset=wanted.start,
            to_offset=wanted.end,
            check_crc=False,
            columns=wanted.columns,
        )
        count = records.num_rows
        pieces = min(pieces, count)
        for piece in range(pieces):
            first, last = count * piece // pieces, count * (piece + 1) // pieces
            if piece == pieces - 1:
                self._position = min(taken[-1][0].next_offset, wanted.end)
            yield records.slice(first, last - first) if pieces > 1 else records
        self._position = min(taken[-1][0].next_offset, wanted.end)

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
