"""Subscription of a consumer: its partitions, their positions, and fetched, unread records.

Sans-I/O. The fetcher gets the partitions to fetch and adds batches, on its loop. The application
takes and decodes them in its own thread. ``lock`` protects the state that both use; it is never
held while decoding.

For each partition, in the order of offsets:

    ... read │ chunks: fetched, undecoded │ being fetched │ on the broker ...
         position                    fetch_offset

``position`` is the offset after the last record that the application has. Every change of it except
by reading increments the ``generation`` of the partition. Everything fetched for an older
generation is discarded.
"""

from __future__ import annotations

from _thread import allocate_lock
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter
from typing import Final

from raftlog import limits
from raftlog.client.settings import ConsumerSettings, OffsetReset, Start
from raftlog.errors import InvalidRequestError, RaftlogError
from raftlog.types import ConsumerRecord, LeaderEpoch, Offset, OffsetAndMetadata, TopicPartition

_offset_of: Final = attrgetter("offset")


class Subscription:
    """All partitions of one consumer."""

    def __init__(self, settings: ConsumerSettings, *, start: Start | None = None) -> None:
        """``start``: start position of assigned partitions. Default: the reset policy."""
        self.lock = allocate_lock()
        self.parts: OrderedDict[TopicPartition, PartitionFetchState] = OrderedDict()
        self.topics: tuple[str, ...] = ()  # subscribed topics; () with manual assignment
        self.is_open = False  # partitions may be assigned automatically
        self.interrupted = False  # the application must act before it gets more records
        self.starved = False  # a fetch waits for buffer space: wake the fetcher when there is some
        self.closed = False
        self._chunks: deque[Chunk] = deque()  # in arrival order
        self._buffered_bytes = 0
        self._waiter: Callable[[], object] | None = None
        self._handed: list[PartitionFetchState] = []  # some of their records may be unprocessed
        self._settings = settings
        self._start: Start = start or settings.auto_offset_reset
        fetch_bytes = settings.max_partition_fetch_bytes
        self._part_bytes_max = min(
            fetch_bytes * limits.PREFETCH_FETCHES_MAX, limits.PREFETCH_BYTES_MAX
        )

    # -- partitions

    def assign(self, partitions: Iterable[TopicPartition], *, topics: Sequence[str] = ()) -> None:
        """Read exactly ``partitions``. Partitions that are already read keep their position."""
        with self.lock:
            kept = {tp: self.parts.get(tp) for tp in dict.fromkeys(partitions)}
            for tp, part in self.parts.items():
                part.assigned_id = ""  # no coordinator assigns it any more
                if tp not in kept:
                    self._drop(part)
            policy = self._settings.auto_offset_reset
            self.parts = OrderedDict(
                (tp, part or PartitionFetchState(tp, None, self._start, policy))
                for tp, part in kept.items()
            )
            self.topics = tuple(topics)

    def assign_range(
        self, tp: TopicPartition, start: Offset, until: Offset, served_by: set[int]
    ) -> None:
        """Read exactly ``tp``, from ``start`` to before ``until``."""
        self.assign(())
        part = PartitionFetchState(
            tp, start, "error", fetch_offset=start, until=until, served_by=served_by
        )
        with self.lock:
            self.parts = OrderedDict({tp: part})

    def assign_at(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Read exactly these partitions, each from its offset on."""
        self.assign(())
        with self.lock:
            self.parts = OrderedDict(
                (tp, PartitionFetchState(tp, offset, "error", fetch_offset=offset))
                for tp, offset in positions.items()
            )

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Also read new partitions of subscribed topics, from their first record."""
        with self.lock:
            for tp in partitions:
                self.parts.setdefault(tp, PartitionFetchState(tp, None, "earliest", "earliest"))

    def add_assigned(
        self, topic_ids: Mapping[TopicPartition, str], new: Collection[TopicPartition]
    ) -> None:
        """Also read these partitions of the topics with these IDs, which the group's coordinator
        assigned: from the committed offset, else ``new`` ones from their first record, and others
        by the reset policy.
        """
        with self.lock:
            for tp, topic_id in topic_ids.items():
                policy = "earliest" if tp in new else self._settings.auto_offset_reset
                part = PartitionFetchState(tp, None, "committed", policy)
                part.topic_id = part.assigned_id = topic_id
                self.parts.setdefault(tp, part)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        with self.lock:
            for tp in partitions:
                part = self.parts.pop(tp, None)
                if part is not None:
                    self._drop(part)

    def part(self, tp: TopicPartition) -> PartitionFetchState:
        """Return the partition. Raises ``InvalidRequestError`` if it is not assigned."""
        found = self.parts.get(tp)
        if found is None:
            raise InvalidRequestError(
                f"{tp[0]}:{tp[1]} is not assigned to this consumer. Call assign() or subscribe() "
                "first"
            )
        return found

    # -- moving

    def seek(self, tp: TopicPartition, offset: Offset) -> None:
        with self.lock:
            part = self.part(tp)
            self._drop(part)
            part.corrupt_at = part.unprocessed = None
            part.topic_id = part.assigned_id
            part.position = part.fetch_offset = offset

    def reset(self, tp: TopicPartition, how: OffsetReset) -> None:
        """Discard the position, and look it up again."""
        with self.lock:
            part = self.part(tp)
            part.unprocessed = None
            self._reset_position(part, how)

    def found(self, wanted: Wanted, offset: Offset) -> None:
        """Set a position that was looked up, unless it has changed since the lookup started."""
        part = wanted.part
        with self.lock:
            if wanted.generation == part.generation:
                self._drop(part)  # invalidates other lookups in progress
                part.position = part.fetch_offset = offset
                if part.reset == "committed":
                    part.committed = offset
                part.known_to = max(part.known_to, offset)

    def not_committed(self, wanted: Wanted) -> None:
        """Look up the position by the reset policy: the group has no committed offset."""
        part = wanted.part
        with self.lock:
            if wanted.generation == part.generation:
                part.reset = part.policy

    def came_damaged(self, part: PartitionFetchState) -> bool:
        """Discard unread batches and fetch them again, because the first one is corrupt.

        Returns True if this is the second time. The corruption may have happened in transit, or on
        the disk of one broker: the second fetch asks the broker to verify its disk.
        """
        with self.lock:
            self._drop(part)
            return not self._is_first_corruption(part)

    def _is_first_corruption(self, part: PartitionFetchState) -> bool:
        is_first = part.corrupt_at != part.fetch_offset
        part.corrupt_at = part.fetch_offset
        return is_first

    def _drop(self, part: PartitionFetchState) -> None:
        part.generation += 1
        part.in_flight = part.halted = False
        part.not_before = 0.0
        part.failures = 0
        part.last_epoch = -1
        if part.position is not None:
            part.fetch_offset = part.position
        for chunk in [chunk for chunk in self._chunks if chunk.part is part]:
            chunk.end_iteration()
            self._remove(chunk)

    def paused(self) -> set[TopicPartition]:
        with self.lock:
            return {tp for tp, part in self.parts.items() if part.paused}

    def set_paused(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        with self.lock:
            for part in [self.part(tp) for tp in partitions]:
                part.paused = paused
                for chunk in self._chunks:
                    if chunk.part is part:
                        chunk.end_iteration()
            if not paused:
                self._wake()

    # -- the fetcher's side

    def wanted(self, now: float) -> tuple[list[Wanted], float | None]:
        """Return the partitions to fetch or to look up now, and the time of the next check."""
        found: list[Wanted] = []
        again_at: float | None = None
        with self.lock:
            self.starved = False
            is_full = self._buffered_bytes >= limits.PREFETCH_BYTES_MAX
            for part in self.parts.values():
                if part.in_flight or part.halted or (part.paused and part.position is not None):
                    continue
                if part.until is not None and part.fetch_offset >= part.until:
                    continue
                if part.not_before > now:
                    again_at = min(part.not_before, again_at or part.not_before)
                    continue
                if part.position is None:
                    found.append(Wanted(part, part.generation, None))
                elif is_full or part.buffered_bytes >= self._part_bytes_max:
                    self.starved = True
                else:
                    doubtful = part.corrupt_at == part.fetch_offset
                    found.append(Wanted(part, part.generation, part.fetch_offset, doubtful))
        return found, again_at

    def room(self) -> int:
        """Return the number of bytes that a fetch may return now."""
        with self.lock:
            return max(limits.PREFETCH_BYTES_MAX - self._buffered_bytes, 1)

    def started(self, wanted: Iterable[Wanted]) -> None:
        with self.lock:
            for want in wanted:
                if want.generation == want.part.generation:
                    want.part.in_flight = True

    def fetched(self, wanted: Wanted, batches: Sequence[Batch], size_bytes: int) -> None:
        """Add the batches of a fetch; possibly none."""
        part = wanted.part
        with self.lock:
            if wanted.generation != part.generation:
                return
            part.in_flight = False
            part.failures = 0
            if not batches:
                return
            batches = part.up_to_end(batches, size_bytes)
            part.fetch_offset = batches[-1].next_offset
            part.known_to = max(part.known_to, part.fetch_offset)
            # A partition with data goes to the end: a broker fills its response in request order.
            self.parts.move_to_end(part.tp)
            part.buffered_bytes += size_bytes
            self._buffered_bytes += size_bytes
            self._chunks.append(Chunk(part, part.generation, deque(batches), size_bytes))
            self._wake()

    def failed(self, wanted: Wanted, error: RaftlogError) -> None:
        """Queue an error that the application must see in place of batches."""
        part = wanted.part
        with self.lock:
            if wanted.generation != part.generation:
                return
            part.in_flight = False
            part.halted = True
            self._chunks.append(Chunk(part, part.generation, deque(), error=error))
            self._wake()

    def brought_damaged(self, wanted: Wanted, error: RaftlogError) -> None:
        """Queue an error for corrupt data after valid batches, if this is the second time."""
        part = wanted.part
        with self.lock:
            if wanted.generation != part.generation or self._is_first_corruption(part):
                return
        self.failed(wanted, error)

    def lost(self, wanted: Wanted, reset: OffsetReset) -> None:
        """Look up a position again, because no record is stored at the offset to fetch.

        The application first reads the batches that are already fetched.
        """
        part = wanted.part
        with self.lock:
            if wanted.generation != part.generation:
                return
            if part.fetch_offset == part.position:
                self._reset_position(part, reset)
                return
            part.in_flight = False
            part.halted = True
            self._chunks.append(Chunk(part, part.generation, deque(), reset=reset))

    def _reset_position(self, part: PartitionFetchState, reset: OffsetReset) -> None:
        self._drop(part)
        part.position, part.reset, part.topic_id = None, reset, part.assigned_id

    def delayed(self, wanted: Wanted, until: float) -> None:
        """Pause a partition until ``until``, after a failed or an early empty fetch."""
        part = wanted.part
        with self.lock:
            if wanted.generation == part.generation:
                part.in_flight = False
                part.failures += 1
                part.not_before = until

    def given_up(self, wanted: Wanted) -> None:
        """Fetch again immediately. The response to the fetch in flight no longer counts."""
        part = wanted.part
        with self.lock:
            if wanted.generation == part.generation:
                part.in_flight = False

    def hasten(self, part: PartitionFetchState) -> None:
        """End the pause of a partition."""
        with self.lock:
            part.not_before = 0.0

    # -- the application's side

    def next_chunk(self, *, errors: bool = True) -> Chunk | None:
        """Return the first chunk with unread data that is not paused, or None.

        Raises an error that is queued in place of batches; the next call fetches again. With
        ``errors=False``, the error stays queued for the next call.
        """
        with self.lock:
            for chunk in list(self._chunks):
                part = chunk.part
                if chunk.is_stale or chunk.is_empty:
                    self._remove(chunk)  # KeyboardInterrupt prevented an earlier removal
                    continue
                if part.paused:
                    continue
                if chunk.reset is not None:
                    self._reset_position(part, chunk.reset)
                    self.starved = True
                    continue
                if chunk.error is not None:
                    if not errors:
                        return None
                    self._drop(part)
                    raise chunk.error.with_traceback(None)
                assert part.position is not None
                records = chunk.records
                if records and _offset_of(records[-1]) < part.position:
                    self._finish_batch(chunk)
                if chunk.batches:
                    return chunk
            return None

    def first_unread(self, chunk: Chunk) -> int:
        """Return the index of the first unread record of ``chunk``."""
        position = chunk.part.position
        assert position is not None
        return bisect_left(chunk.records, position, key=_offset_of)

    def finish_batch(self, chunk: Chunk) -> None:
        """Mark the first batch of the chunk as read."""
        with self.lock:
            if not chunk.is_stale:
                self._finish_batch(chunk)

    def _finish_batch(self, chunk: Chunk) -> None:
        # Invariant: in this order, the next read repairs what KeyboardInterrupt leaves incomplete.
        chunk.end_iteration()
        chunk.part.position = chunk.batches[0].next_offset
        chunk.records = []
        chunk.batches.popleft()
        if not chunk.batches:
            self._remove(chunk)

    def begin_run(self, chunk: Chunk) -> Iterator[ConsumerRecord] | None:
        """Return an iterator over the unread records of the first, decoded batch of the chunk.

        It ends early if the application must act first. Returns None if it already must.
        """
        part = chunk.part
        with self.lock:
            if self.interrupted or chunk.is_stale:
                return None
            chunk.end_iteration()
            chunk.is_iterated = part.is_iterated = True
            part.unprocessed = part.position
            self._handed.append(part)
            return islice(chunk.records, self.first_unread(chunk), None)

    def end_iteration(self, chunk: Chunk) -> None:
        with self.lock:
            chunk.end_iteration()

    # -- returned and processed records

    def hand_out(self, part: PartitionFetchState) -> None:
        """Note that records of ``part`` are about to be returned to the application."""
        if part.unprocessed is None:
            part.unprocessed, part.is_iterated = part.position, False
            self._handed.append(part)

    def all_processed(self) -> None:
        """Note that the application requests more records: it has processed the returned ones."""
        if self._handed:
            handed, self._handed = self._handed, []
            for part in handed:
                part.unprocessed = None

    def processed_up_to(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Note that the application commits ``offsets``: it has processed the records below."""
        with self.lock:
            for tp, given in offsets.items():
                part = self.parts.get(tp)
                if part is not None and part.unprocessed is not None and part.position is not None:
                    part.unprocessed = min(max(part.unprocessed, given.offset), part.position)

    def forget_unprocessed(self) -> None:
        """Reset every position to the processed records. The next member reads the rest.

        An iteration in another thread may be between a record and the update of its position. The
        partition states are replaced, so that such an update has no effect.
        """
        with self.lock:
            for tp, part in list(self.parts.items()):
                processed = part.processed
                self._drop(part)
                self.parts[tp] = replace(
                    part, position=processed, fetch_offset=processed or 0, unprocessed=None
                )
            self._handed = []

    def take_batches(self, chunk: Chunk, bytes_max: int) -> list[Batch]:
        """Return the batches of ``chunk`` and of following chunks, at least one.

        ``bytes_max``: of all of them, decompressed. None begins before the end of the last one, as
        if compaction has joined batches in between.
        """
        taken: list[Batch] = []
        size = 0
        with self.lock:
            for other in self._chunks:
                if other.part is not chunk.part or other.error is not None:
                    continue
                for batch in other.batches:
                    size += max(len(batch.data), batch.uncompressed_length)
                    is_joined = bool(taken) and batch.base_offset < taken[-1].next_offset
                    if taken and (size > bytes_max or is_joined):
                        return taken
                    taken.append(batch)
        return taken

    def finish_batches(self, chunk: Chunk, taken: Sequence[object]) -> None:
        """Mark the batches of ``take_batches`` as read."""
        part = chunk.part
        with self.lock:
            if chunk.is_stale:
                return
            left = len(taken)
            for other in [other for other in self._chunks if other.part is part]:
                while left and other.batches:
                    self._finish_batch(other)
                    left -= 1

    def _remove(self, chunk: Chunk) -> None:
        chunk.part.buffered_bytes -= chunk.size_bytes
        self._buffered_bytes -= chunk.size_bytes
        chunk.size_bytes = 0
        self._chunks.remove(chunk)

    # -- waiting

    def when_ready(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once: now, or when records arrive or the application must act.

        It replaces the callback of an earlier wait: that one has ended by its timeout or Ctrl-C.
        """
        with self.lock:
            if not (self.closed or self.interrupted) and all(
                chunk.part.paused for chunk in self._chunks
            ):
                self._waiter = callback
                return
        callback()

    def interrupt(self) -> None:
        """Make the application act before it gets more records. Wakes a waiting poll."""
        with self.lock:
            self.interrupted = True
            self._cut()

    def _cut(self) -> None:
        for chunk in self._chunks:
            chunk.end_iteration()
        self._wake()

    def shut(self) -> None:
        """End all waits."""
        with self.lock:
            self.closed = True
            self._cut()

    def _wake(self) -> None:
        callback, self._waiter = self._waiter, None
        if callback is not None:
            callback()


def check_partitions(partitions: Iterable[object]) -> list[TopicPartition]:
    """Return ``partitions`` as a list of ``TopicPartition``. Accepts (topic, number) pairs.

    Raises ``TypeError`` or ``InvalidRequestError`` if an entry is wrong.
    """
    if isinstance(partitions, str | TopicPartition):
        raise TypeError(f"{partitions!r} is not a list of TopicPartition(topic, partition)")
    checked = []
    for partition in partitions:
        if not isinstance(partition, tuple) or len(partition) != 2:
            raise TypeError(f"{partition!r} is not a TopicPartition(topic, partition)")
        topic, number = partition
        if not isinstance(topic, str) or isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{partition!r} is not a TopicPartition of a str and an int")
        if number < 0:
            raise InvalidRequestError(f"{partition!r} is negative. Partitions are numbered from 0")
        checked.append(TopicPartition(topic, number))
    return checked


def check_topics(topics: Iterable[str]) -> list[str]:
    """Return ``topics`` as a list without duplicates. Raises ``TypeError`` for wrong types."""
    if isinstance(topics, str | bytes):
        raise TypeError(f"topics={topics!r} is not a list of topic names. Pass [{topics!r}]")
    names = list(dict.fromkeys(topics))
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"topics={names!r}: {name!r} is not a str")
    return names


# -- fetch state -----------------------------------------------------------------------------------
#
# Fetch state of one partition of a consumer: positions and fetched records. Plain values.


RECORD_BYTES_GUESS: Final = 128.0  # too low costs another fetch, too high fetches unused bytes
_MARGIN: Final = 1.125
_FETCH_BYTES_MIN: Final = 64 * limits.KIB


@dataclass(slots=True, eq=False)
class PartitionFetchState:
    """Fetch state of one partition."""

    tp: TopicPartition
    position: Offset | None  # next record for the application; None: look it up
    reset: Start  # lookup method
    policy: OffsetReset = "error"  # lookup method without a committed offset
    generation: int = 0
    fetch_offset: Offset = 0  # Invariant: >= position; end of the last chunk
    buffered_bytes: int = 0  # in chunks
    in_flight: bool = False  # fetch or lookup of this generation
    halted: bool = False  # the last chunk is an error that is not reported yet
    paused: bool = False
    not_before: float = 0.0  # monotonic seconds; end of the pause
    failures: int = 0  # consecutive
    topic_id: str = ""  # topic of the position; "" if unknown
    assigned_id: str = ""  # topic that the coordinator of the group assigned; "" without a group
    last_epoch: LeaderEpoch = -1  # of the previous batch; -1 after a seek
    corrupt_at: Offset | None = None  # offset of the last corrupt fetch
    damaged_since: float | None = None  # monotonic seconds; first corruption report
    known_to: Offset = 0  # known lower bound of the end offset
    committed: Offset | None = None  # last known committed offset
    until: Offset | None = None  # end of the range to read
    record_bytes: float = RECORD_BYTES_GUESS  # average stored size; only with ``until``
    served_by: set[int] = field(default_factory=set)  # brokers that served records
    # First returned offset that the application may still be processing.
    unprocessed: Offset | None = None
    is_iterated: bool = False  # only the last returned record may be unprocessed

    @property
    def processed(self) -> Offset | None:
        """Offset after the last processed record, which is safe to commit."""
        position, unprocessed = self.position, self.unprocessed
        if position is None or unprocessed is None:
            return position
        return max(unprocessed, position - 1) if self.is_iterated else unprocessed

    def bytes_to_fetch(self, bytes_max: int) -> int:
        """Return the fetch size: enough to reach ``until``, and little more."""
        if self.until is None:
            return bytes_max
        expected = (self.until - self.fetch_offset) * self.record_bytes * _MARGIN
        return int(min(max(expected, _FETCH_BYTES_MIN), bytes_max))

    def up_to_end(self, batches: Sequence[Batch], size_bytes: int) -> Sequence[Batch]:
        """Return the ``batches`` below ``until``. ``size_bytes``: size of all batches."""
        if self.until is None:
            return batches
        passed = batches[-1].next_offset - self.fetch_offset
        self.record_bytes = size_bytes / max(passed, 1)
        last = bisect_left(batches, self.until, key=lambda batch: batch.next_offset)
        return batches[: last + 1]


@dataclass(slots=True, eq=False)
class Batch:
    """Fetched batch, with its first offset, that after its last record, its leader epoch, and the
    length of its payload once it is decompressed.
    """

    data: memoryview
    base_offset: Offset
    next_offset: Offset
    leader_epoch: LeaderEpoch = -1
    uncompressed_length: int = 0


@dataclass(slots=True, eq=False)
class Chunk:
    """Result of one fetch for one partition: batches, or an error in their place."""

    part: PartitionFetchState
    generation: int
    batches: deque[Batch]
    size_bytes: int = 0
    error: RaftlogError | None = None
    reset: OffsetReset | None = None  # in place of batches: look up the position again
    # Decoded records of the first batch. Records before ``position`` are read.
    records: list[ConsumerRecord] = field(default_factory=list)
    is_iterated: bool = False  # an iteration runs over ``records``

    @property
    def is_stale(self) -> bool:
        return self.generation != self.part.generation

    @property
    def is_empty(self) -> bool:
        """True if the chunk contains nothing for the application."""
        return not self.batches and self.error is None and self.reset is None

    def end_iteration(self) -> None:
        """End an iteration over the records, which would not notice a change of position."""
        if self.is_iterated:
            self.is_iterated = False
            rest = self.records[:]
            self.records.clear()
            self.records = rest


@dataclass(frozen=True, slots=True)
class Wanted:
    """Partition to fetch, or to look up (``offset`` None), with its state at that time."""

    part: PartitionFetchState
    generation: int
    offset: Offset | None
    doubtful: bool = False  # corrupt before: the broker must verify its disk
