"""Which partitions a consumer reads, where it is in each, and what is fetched and not yet read.

Sans-I/O. The fetcher asks what to fetch and brings batches, on its loop; the application takes them
out, in its own thread, and decodes them there. ``lock`` guards what both touch; it is never held
while decoding.

Per partition, in the order of offsets:

    ... read │ chunks: fetched, undecoded │ being fetched │ on the broker ...
         position                    fetch_offset

``position`` is the one truth about what the application has. Whatever moves it other than reading
raises the partition's ``generation``, and everything fetched for an older one is dropped.
"""

from __future__ import annotations

from _thread import allocate_lock
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from typing import Final

from raftlog import limits
from raftlog.client.fetch_state import Batch, Chunk, PartitionFetchState, Wanted
from raftlog.client.settings import ConsumerSettings, OffsetReset, Start
from raftlog.errors import InvalidRequestError, RaftlogError
from raftlog.types import ConsumerRecord, Offset, TopicPartition

_offset_of: Final = attrgetter("offset")


class Subscription:
    """All partitions of one consumer."""

    def __init__(self, settings: ConsumerSettings, *, start: Start | None = None) -> None:
        """``start``: where partitions begin that are assigned; default: by the reset policy."""
        self.lock = allocate_lock()
        self.parts: OrderedDict[TopicPartition, PartitionFetchState] = OrderedDict()
        self.topics: tuple[str, ...] = ()  # subscribed to; () when partitions are assigned
        self.is_open = False  # partitions may come by themselves
        self.interrupted = False  # the application is to do something before it gets more records
        self.starved = False  # something was not fetched for want of room: tell when there is some
        self.closed = False
        self._chunks: deque[Chunk] = deque()  # in the order they came
        self._buffered_bytes = 0
        self._waiters: list[Callable[[], object]] = []
        self._handed: list[PartitionFetchState] = []  # of which some records may be unprocessed
        self._settings = settings
        self._start: Start = start or settings.auto_offset_reset
        fetch_bytes = settings.max_partition_fetch_bytes
        self._part_bytes_max = min(
            fetch_bytes * limits.PREFETCH_FETCHES_MAX, limits.PREFETCH_BYTES_MAX
        )

    # -- what is read

    def assign(self, partitions: Iterable[TopicPartition], *, topics: Sequence[str] = ()) -> None:
        """Read exactly ``partitions`` from now on; those read already, from where they are."""
        with self.lock:
            kept = {tp: self.parts.get(tp) for tp in dict.fromkeys(partitions)}
            for tp, part in self.parts.items():
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

    def add(self, partitions: Iterable[TopicPartition], *, start: Start = "earliest") -> None:
        """Read new partitions of topics subscribed to, too: from their first record on.

        ``start`` of "committed": from where the group has come to, if it has.
        """
        with self.lock:
            for tp in partitions:
                self.parts.setdefault(tp, PartitionFetchState(tp, None, start, "earliest"))

    def add_known(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these, too: from where the group has come to, else by the reset policy."""
        with self.lock:
            for tp in partitions:
                part = PartitionFetchState(tp, None, "committed", self._settings.auto_offset_reset)
                self.parts.setdefault(tp, part)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these no longer."""
        with self.lock:
            for tp in partitions:
                part = self.parts.pop(tp, None)
                if part is not None:
                    self._drop(part)

    def part(self, tp: TopicPartition) -> PartitionFetchState:
        """The partition, or raise ``InvalidRequestError``."""
        found = self.parts.get(tp)
        if found is None:
            raise InvalidRequestError(
                f"{tp[0]}:{tp[1]} is not assigned to this consumer: assign() or subscribe() first"
            )
        return found

    # -- moving

    def seek(self, tp: TopicPartition, offset: Offset) -> None:
        with self.lock:
            part = self.part(tp)
            self._drop(part)
            part.doubted = part.unprocessed = None
            part.topic_id = ""
            part.position = part.fetch_offset = offset

    def reset(self, tp: TopicPartition, how: OffsetReset) -> None:
        """Have the position looked up anew."""
        with self.lock:
            part = self.part(tp)
            self._drop(part)
            part.unprocessed = None
            part.position, part.reset = None, how

    def found(self, wanted: Wanted, offset: Offset) -> None:
        """A position was looked up; it does not count if it was moved meanwhile."""
        part = wanted.part
        with self.lock:
            if wanted.generation == part.generation:
                self._drop(part)  # another look-up may be under way: it counts no more
                part.position = part.fetch_offset = offset
                if part.reset == "committed":
                    part.committed = offset
                part.known_to = max(part.known_to, offset)

    def not_committed(self, wanted: Wanted) -> None:
        """The group has no offset of it: look its position up by the policy."""
        part = wanted.part
        with self.lock:
            if wanted.generation == part.generation:
                part.reset = part.policy

    def came_damaged(self, part: PartitionFetchState) -> bool:
        """Drop what is fetched and not read, and fetch it again: its first batch is damaged.

        Whether it is so for the second time. It may have happened on the way, or be on one
        broker's disk only: after the first time that is asked for to be looked at.
        """
        with self.lock:
            self._drop(part)
            return not self._is_first_doubt(part)

    def _is_first_doubt(self, part: PartitionFetchState) -> bool:
        is_first = part.doubted != part.fetch_offset
        part.doubted = part.fetch_offset
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
        """The partitions to fetch now, or to look up; and when there will be more by itself."""
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
                    doubtful = part.doubted == part.fetch_offset
                    found.append(Wanted(part, part.generation, part.fetch_offset, doubtful))
        return found, again_at

    def room(self) -> int:
        """How many bytes a fetch may bring now."""
        with self.lock:
            return max(limits.PREFETCH_BYTES_MAX - self._buffered_bytes, 1)

    def started(self, wanted: Iterable[Wanted]) -> None:
        with self.lock:
            for want in wanted:
                if want.generation == want.part.generation:
                    want.part.in_flight = True

    def fetched(self, wanted: Wanted, batches: Sequence[Batch], size_bytes: int) -> None:
        """A fetch brought ``batches``, none perhaps."""
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
            # What gave something comes last next time: a broker fills its answer from the front.
            self.parts.move_to_end(part.tp)
            part.buffered_bytes += size_bytes
            self._buffered_bytes += size_bytes
            self._chunks.append(Chunk(part, part.generation, deque(batches), size_bytes))
            self._wake()

    def failed(self, wanted: Wanted, error: RaftlogError) -> None:
        """A fetch failed in a way that the application has to see."""
        part = wanted.part
        with self.lock:
            if wanted.generation != part.generation:
                return
            part.in_flight = False
            part.halted = True
            self._chunks.append(Chunk(part, part.generation, deque(), error=error))
            self._wake()

    def brought_damaged(self, wanted: Wanted, error: RaftlogError) -> None:
        """What follows the batches of a fetch is damaged: told when it is so a second time."""
        part = wanted.part
        with self.lock:
            if wanted.generation != part.generation or self._is_first_doubt(part):
                return
        self.failed(wanted, error)

    def lost(self, wanted: Wanted, reset: OffsetReset) -> None:
        """Nothing is at the offset to fetch from: look a position up anew.

        But first the application reads what it has, which was there.
        """
        part = wanted.part
        with self.lock:
            if wanted.generation != part.generation:
                return
            if part.fetch_offset == part.position:
                self._look_up_anew(part, reset)
                return
            part.in_flight = False
            part.halted = True
            self._chunks.append(Chunk(part, part.generation, deque(), reset=reset))

    def _look_up_anew(self, part: PartitionFetchState, reset: OffsetReset) -> None:
        self._drop(part)
        part.position, part.reset, part.topic_id = None, reset, ""

    def delayed(self, wanted: Wanted, until: float) -> None:
        """A fetch failed, or brought nothing, in a way that asks for a pause."""
        part = wanted.part
        with self.lock:
            if wanted.generation == part.generation:
                part.in_flight = False
                part.failures += 1
                part.not_before = until

    def given_up(self, wanted: Wanted) -> None:
        """The answer to a fetch is not waited for any more: it is wanted again, at once."""
        part = wanted.part
        with self.lock:
            if wanted.generation == part.generation:
                part.in_flight = False

    def hasten(self, part: PartitionFetchState) -> None:
        """The reason for a pause is gone."""
        with self.lock:
            part.not_before = 0.0

    # -- the application's side

    def next_chunk(self, *, errors: bool = True) -> Chunk | None:
        """The first chunk that is not paused and has something left.

        Raises the error that stands in the place of batches: asking again then fetches again. With
        ``errors`` false it is left for the next time.
        """
        with self.lock:
            for chunk in list(self._chunks):
                part = chunk.part
                if chunk.is_stale or chunk.is_empty:
                    self._remove(chunk)  # Ctrl-C came when this was to be done
                    continue
                if part.paused:
                    continue
                if chunk.reset is not None:
                    self._look_up_anew(part, chunk.reset)
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
        """The index of the first record of ``chunk`` that the application does not have."""
        position = chunk.part.position
        assert position is not None
        return bisect_left(chunk.records, position, key=_offset_of)

    def finish_batch(self, chunk: Chunk) -> None:
        """The chunk's first batch is read to its end."""
        with self.lock:
            if not chunk.is_stale:
                self._finish_batch(chunk)

    def _finish_batch(self, chunk: Chunk) -> None:
        # In this order, Ctrl-C after any of the calls leaves what the next reading puts right.
        chunk.end_iteration()
        chunk.part.position = chunk.batches[0].next_offset
        chunk.records = []
        chunk.batches.popleft()
        if not chunk.batches:
            self._remove(chunk)

    def begin_run(self, chunk: Chunk) -> Iterator[ConsumerRecord] | None:
        """An iteration over what is left of the chunk's first batch, which is decoded.

        It ends early when something else is to be done. None if there is such a thing already.
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

    # -- what is handed out, and what is done

    def hand_out(self, part: PartitionFetchState) -> None:
        """The application is about to be given records of ``part``."""
        if part.unprocessed is None:
            part.unprocessed, part.is_iterated = part.position, False
            self._handed.append(part)

    def all_processed(self) -> None:
        """The application asks for more: it is done with what it has."""
        if self._handed:
            handed, self._handed = self._handed, []
            for part in handed:
                part.unprocessed = None

    def forget_unprocessed(self) -> None:
        """Put every position back to what is processed: the rest is left to whoever reads next.

        An iteration in another thread may be between a record and its position: what it writes
        from here on is of no effect.
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
        """The batches of ``chunk`` and of those that follow it, at least one, to read at once."""
        taken: list[Batch] = []
        size = 0
        with self.lock:
            for other in self._chunks:
                if other.part is not chunk.part or other.error is not None:
                    continue
                for batch in other.batches:
                    size += len(batch.data)
                    if taken and size > bytes_max:
                        return taken
                    taken.append(batch)
        return taken

    def finish_batches(self, chunk: Chunk, taken: Sequence[object]) -> None:
        """What ``take_batches`` gave is read to its end."""
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
        """Call ``callback`` once, or at once: when something came, or is to be done."""
        with self.lock:
            if not (self.closed or self.interrupted) and all(
                chunk.part.paused for chunk in self._chunks
            ):
                self._waiters.append(callback)
                return
        callback()

    def interrupt(self) -> None:
        """Have the application do something before it gets more records; soon, if it reads."""
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
        waiters, self._waiters = self._waiters, []
        for callback in waiters:
            callback()


def check_partitions(partitions: Iterable[object]) -> list[TopicPartition]:
    """``partitions`` as a list of ``TopicPartition``; pairs of a topic and a number will do."""
    if isinstance(partitions, str | TopicPartition):
        raise TypeError(f"{partitions!r}: a list of TopicPartition(topic, partition)")
    checked = []
    for partition in partitions:
        if not isinstance(partition, tuple) or len(partition) != 2:
            raise TypeError(f"{partition!r}: a TopicPartition(topic, partition)")
        topic, number = partition
        if not isinstance(topic, str) or isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{partition!r}: a TopicPartition of a text (str) and an int")
        if number < 0:
            raise InvalidRequestError(f"{partition!r}: partitions are numbered from 0")
        checked.append(TopicPartition(topic, number))
    return checked


def check_topics(topics: Iterable[str]) -> list[str]:
    """``topics`` as a list without repeats."""
    if isinstance(topics, str | bytes):
        raise TypeError(f"topics={topics!r}: a list of topic names, such as [{topics!r}]")
    names = list(dict.fromkeys(topics))
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"topics={names!r}: {name!r} is no text (str)")
    return names
