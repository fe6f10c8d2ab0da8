"""Compaction work of one log, for any thread: reads segments and writes cleaned files.

This module does not change the log. The log replaces its segments with the cleaned files when the
caller returns the task (``Log.complete_compaction``). Memory: the key map, one chunk of batches
and the write buffer; see ``Pass`` and the constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from raftlog import limits
from raftlog.disk import NO_ROOM, Disk, File
from raftlog.errors import CorruptBatchError, DamagedLogError
from raftlog.record import HEADER_BYTES, parse_header, verify_chain
from raftlog.record.batch import length_at
from raftlog.record.compaction import Mask, Original, Rewriter, Rewritten, open_original
from raftlog.storage.checkpoint import CheckpointFile
from raftlog.storage.compaction import CompactionState, LastPass
from raftlog.storage.compaction_files import CompactionFiles, Swap
from raftlog.storage.offset_map import KEY_BYTES, Hashes, OffsetMap, Offsets, hash_keys
from raftlog.storage.segment import Segment
from raftlog.types import Buffer, Offset, TimestampMs

Pause: TypeAlias = Callable[[int], None]

_READ_BYTES: Final = limits.MIB
_WRITE_BYTES: Final = limits.MIB
_WRITE_BUFFERS: Final = 512  # a system call accepts at most 1,024
_SYNC_BYTES: Final = 64 * limits.MIB  # limits how long syncs of other files wait
# Batches that are processed together. This reduces the cost of small batches.
_CHUNK_RECORDS: Final = 4_096
_CHUNK_BYTES: Final = 512 * limits.KIB
BATCH_BYTES_TARGET: Final = limits.MIB


class Source(NamedTuple):
    """A segment to read. ``dirty_position``: byte at or before the first dirty batch."""

    base_offset: Offset
    next_offset: Offset
    path: str
    size_bytes: int
    dirty_position: int


@dataclass(slots=True)
class Pass:
    """One compaction pass over a log, in one or more consecutive tasks.

    Memory: at most ``memory_bytes`` for the key map, but always enough for one batch. The pass ends
    where the map is full (``end_offset``), and the next pass starts there. A log with any number of
    keys can be compacted in this way.
    """

    began_ms: TimestampMs
    seed: int
    memory_bytes: int
    dirty: Sequence[Source]
    clean_end: Offset  # before this pass; at least the log start
    limit: Offset  # end of the last segment that the pass may rewrite
    log_start: Offset
    due_below: Offset  # tombstones below it are removed
    remembered: frozenset[Offset]  # base offsets of batches with a producer's newest sequence
    state: CompactionState  # before this pass
    end_offset: Offset = -1  # end of the key map; -1 before it is complete
    done_offset: Offset = -1  # end of the rewritten segments
    newest: OffsetMap | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    records_removed: int = 0
    tombstones: list[int] = field(default_factory=list)  # kept, for each part of the state

    @property
    def is_done(self) -> bool:
        return 0 <= self.end_offset <= self.done_offset

    def state_after(self) -> CompactionState:
        last = LastPass(self.began_ms, self.bytes_before, self.bytes_after, self.records_removed)
        return self.state.after(
            self.end_offset, due_below=self.due_below, tombstones=self.tombstones, last=last
        )


@dataclass(slots=True, eq=False)
class CompactionTask:
    """Ticket that writes cleaned files for some of the log's sealed segments.

    The log creates it, and the caller returns it after ``run``. ``is_stale``: the log has removed
    some of these segments, so the result is discarded.
    """

    disk: Disk
    files: CompactionFiles
    checkpoint: CheckpointFile
    work: Pass
    groups: Sequence[Sequence[Source]]
    index_interval_bytes: int
    bytes_target: int
    settles: bool  # the file still contains the swaps of the task before it
    is_stale: bool = False
    is_settled: bool = False
    lost_indexes: bool = False
    is_planned: bool = False  # the file contains the swaps of this task
    is_unsure: bool = False  # the content of the file is unknown
    error: Exception | None = None
    damage_offset: Offset = -1
    state: CompactionState = field(default_factory=CompactionState)  # valid after planning
    cleaned: list[tuple[Swap, Segment]] = field(default_factory=list)
    _planning: AbstractContextManager[object] = field(init=False, repr=False)
    _made: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._planning = self.disk.mutex()

    def run(self, pause: Pause | None = None) -> None:
        """Write the cleaned files. Blocks.

        ``pause``: called after each batch with its size in bytes; may raise an exception. Raises
        ``OSError`` (if the disk is full, the cleaned files are removed), ``DamagedLogError`` and
        the exceptions of ``pause``. After any exception, pass the task to
        ``Log.abandon_compaction``.
        """
        try:
            self._run(pause or _go_on)
        except BaseException as error:
            self.error = error if isinstance(error, Exception) else None
            with suppress(OSError):
                self.discard()
            if self.is_stale and isinstance(error, FileNotFoundError | DamagedLogError):
                self.error = None  # the log has removed the files
                return
            raise

    def _run(self, pause: Pause) -> None:
        if self.settles:
            self.disk.sync_dir(self.files.directory)
            self.files.write(self.work.state)
            self.is_settled = True
        if self.work.newest is None:
            self._learn(pause)
        for group in self.groups:
            if group[0].base_offset < self.work.end_offset and not self.is_stale:
                self._rewrite(group, pause)
        self._plan()

    # -- learning the newest offset of each key ----------------------------------------------------

    def _learn(self, pause: Pause) -> None:
        work = self.work
        span = max(work.limit - work.clean_end, 1)  # upper bound for the number of keys
        keys_max = max(min(work.memory_bytes // KEY_BYTES, span), 1)
        learning = _Learning(OffsetMap(keys_max), work.seed)
        work.tombstones = [0] * (len(work.state.kept_parts(work.due_below)) + 1)
        work.end_offset = work.clean_end
        for source in work.dirty:
            for original in self._originals(source, source.dirty_position, pause):
                header = original.header
                if header.next_offset <= work.clean_end:
                    continue
                if not learning.add(original):
                    learning.flush()
                    work.newest = learning.newest
                    return
                work.end_offset = header.next_offset
        learning.flush()
        work.newest = learning.newest

    def _originals(self, source: Source, position: int, pause: Pause) -> Iterator[Original]:
        """Return the batches of a segment. Checks each batch, its offset and its hash chain."""
        with _Reading(self.disk, source) as reading:
            before: int | None = None  # hash-chain value
            offset = source.base_offset if position == 0 else None
            while position < source.size_bytes and not self.is_stale:
                try:
                    original = reading.original_at(position)
                    header = original.header
                    follows = before is None or verify_chain(header, previous_chain=before)
                    if header.base_offset != (header.base_offset if offset is None else offset):
                        raise CorruptBatchError(f"offset {header.base_offset}, expected {offset}")
                    if not follows:
                        raise CorruptBatchError("hash chain does not match the previous batch")
                except (CorruptBatchError, OSError) as error:
                    self.damage_offset = source.base_offset if offset is None else offset
                    raise DamagedLogError(
                        f"{source.path} is corrupt at byte {position}: {error}"
                    ) from error
                yield original
                pause(header.length)
                position += header.length
                offset, before = header.next_offset, header.chain

    # -- writing the cleaned files -----------------------------------------------------------------

    def _rewrite(self, group: Sequence[Source], pause: Pause) -> None:
        base = group[0].base_offset
        path = self.files.cleaned_path(base)
        self._made.append(path)
        segment = Segment(self.disk, self.files.directory, base)
        rewriter = Rewriter(bytes_target=self.bytes_target)
        with _Writing(self.disk, path, segment, self.index_interval_bytes) as writing:
            for source in group:
                for chunk in _chunks(self._originals(source, 0, pause)):
                    self._rewrite_chunk(chunk, rewriter, writing)
            writing.add(rewriter.finish())
            writing.finish()
        if self.is_stale:
            return
        assert segment.next_offset == group[-1].next_offset, "a gap"
        work = self.work
        work.bytes_before += sum(source.size_bytes for source in group)
        work.bytes_after += segment.size_bytes
        work.done_offset = group[-1].next_offset
        if len(group) == 1 and not writing.is_changed:
            self.disk.remove(path)
            return
        replaced = tuple(source.base_offset for source in group)
        self.cleaned.append((Swap(replaced, segment.size_bytes), segment))

    def _rewrite_chunk(
        self, chunk: Sequence[Original], rewriter: Rewriter, writing: _Writing
    ) -> None:
        work = self.work
        for original, kept in zip(chunk, self._kept(chunk), strict=True):
            header = original.header
            if header.base_offset >= work.end_offset:
                writing.add([*rewriter.finish(), Rewritten(header, (original.data,))])
                continue
            work.records_removed += header.record_count - int(np.count_nonzero(kept))
            keeps_producer = header.has_producer and header.base_offset in work.remembered
            writing.add(rewriter.add(original, kept, keeps_producer=keeps_producer))

    def _kept(self, chunk: Sequence[Original]) -> Iterator[Mask]:
        """Return for each batch the mask of the records to keep."""
        work = self.work
        assert work.newest is not None
        keyed = [o for o in chunk if o.has_keys and not o.is_fixed and o.header.record_count]
        hashes = hash_keys(chain.from_iterable(map(Original.keys, keyed)), seed=work.seed)
        newest = work.newest.newest(hashes)
        row = 0
        for original in chunk:
            count = original.header.record_count
            offsets = original.offsets
            kept = offsets >= work.log_start
            if original.is_fixed:
                kept[:] = True
            elif original.has_keys and count:
                has_key = original.keyed()
                kept &= ~has_key | (newest[row : row + count] <= offsets)
                tombstones = kept & has_key & original.tombstones()
                kept &= ~(tombstones & (offsets < work.due_below))
                self._count_tombstones(offsets[tombstones & kept])
                row += count
            yield kept

    def _count_tombstones(self, offsets: Offsets) -> None:
        if not len(offsets):
            return
        work = self.work
        ends = [part.end_offset for part in work.state.kept_parts(work.due_below)]
        parts = np.searchsorted(np.array(ends, np.int64), offsets, side="right")
        for part, count in enumerate(np.bincount(parts, minlength=len(ends) + 1)):
            work.tombstones[part] += int(count)

    # -- the end -----------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Commit the swaps: record durably that the cleaned files replace their segments.

        The cleaned files and their names are durable before that. The old indexes are removed
        first, durably. They also record how much of the log was durable, so the checkpoint is
        synced before they are removed.
        """
        with self._planning:
            if self.is_stale:
                self.discard()
                return
            swaps = [swap for swap, _segment in self.cleaned]
            self.state = self.work.state_after() if self.work.is_done else self.work.state
            if swaps:
                self.checkpoint.update(sync=True)
                self.lost_indexes = True
                self.files.remove_indexes(swaps)
                self.disk.sync_dir(self.files.directory)
            if swaps or self.state != self.work.state:
                self._write(swaps)
            self.is_planned = bool(swaps)

    def _write(self, swaps: Sequence[Swap]) -> None:
        """Write the state file. A failed write may still be visible to the next start."""
        self.is_unsure = True
        try:
            self.files.write(self.state, swaps)
        except OSError as error:
            if error.errno in NO_ROOM:
                self.files.replace(self.work.state)
                self.is_unsure = False
            raise
        self.is_unsure = False

    def withdraw(self) -> bool:
        """Mark the task as stale. Returns True if the state file already contains its swaps, so
        that the caller must remove them.

        Waits for a write of the state file that is in progress.
        """
        self.is_stale = True
        with self._planning:
            return self.is_planned

    def discard(self) -> None:
        """Remove the cleaned files without using them. Raises ``OSError``."""
        if self.is_unsure:
            return
        for path in self._made:
            if self.disk.exists(path):
                self.disk.remove(path)


def _go_on(_size_bytes: int) -> None:
    pass


class _Learning:
    """Buffer of keys for the map. Adds many keys at once, because numpy calls are expensive."""

    def __init__(self, newest: OffsetMap, seed: int) -> None:
        self.newest = newest
        self._seed = seed
        self._waiting: list[tuple[Hashes, Offsets]] = []
        self._count = 0
        self._is_empty = True

    def add(self, original: Original) -> bool:
        """Add the keys of a batch. Returns False if the map has no space for them."""
        if not original.has_keys or original.is_fixed or not original.header.record_count:
            self._is_empty = False
            return True
        count = original.header.record_count
        if self._count + count > self.newest.room:
            self.flush()
            if count > self.newest.room:
                if not self._is_empty:
                    return False
                self.newest = OffsetMap(count)
        self._is_empty = False
        hashes, offsets = hash_keys(original.keys(), seed=self._seed), original.offsets
        if original.rows.key_nulls is not None:
            has_key = original.keyed()
            hashes, offsets = hashes[has_key], offsets[has_key]
        self._waiting.append((hashes, offsets))
        self._count += len(hashes)
        if self._count >= _CHUNK_RECORDS:
            self.flush()
        return True

    def flush(self) -> None:
        if self._waiting:
            hashes, offsets = zip(*self._waiting, strict=True)
            self.newest.put(np.concatenate(hashes), np.concatenate(offsets))
        self._waiting, self._count = [], 0


def _chunks(originals: Iterator[Original]) -> Iterator[list[Original]]:
    chunk: list[Original] = []
    records = size = 0
    for original in originals:
        chunk.append(original)
        records += original.header.record_count
        size += original.header.uncompressed_length
        if records >= _CHUNK_RECORDS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, records, size = [], 0, 0
    if chunk:
        yield chunk


class _Reading:
    """Reader of one segment file, with a large read buffer."""

    def __init__(self, disk: Disk, source: Source) -> None:
        self._file = disk.open(source.path, write=False)
        self._size = source.size_bytes
        self._start = 0
        self._data = memoryview(b"")

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def original_at(self, position: int) -> Original:
        head = self._take(position, HEADER_BYTES)
        length = length_at(head, 0) if len(head) == HEADER_BYTES else 0
        if not HEADER_BYTES < length <= min(self._size - position, limits.BATCH_BYTES_MAX):
            parse_header(head)  # raises an error with the reason
            raise CorruptBatchError("unexpected end of file inside the batch")
        return open_original(self._take(position, length))

    def _take(self, position: int, length: int) -> memoryview:
        offset = position - self._start
        if offset < 0 or offset + length > len(self._data):
            wanted = min(max(length, _READ_BYTES), self._size - position)
            self._data = memoryview(self._file.pread(wanted, position))
            self._start, offset = position, 0
        return self._data[offset : offset + length]


class _Writing:
    """Writer of one cleaned file and of its index entries."""

    def __init__(self, disk: Disk, path: str, segment: Segment, index_interval_bytes: int) -> None:
        self.is_changed = False  # at least one batch was rewritten
        self._segment = segment
        self._index_interval_bytes = index_interval_bytes
        self._buffers: list[Buffer] = []
        self._size = self._unsynced = 0
        self._file: File = disk.open(path, create=True)
        if self._file.size():
            self._file.truncate(0)

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, batches: Sequence[Rewritten]) -> None:
        for header, buffers in batches:
            self._segment.note(header, index_interval_bytes=self._index_interval_bytes)
            self.is_changed |= len(buffers) > 1
            self._buffers += buffers
            self._size += header.length
        if self._size >= _WRITE_BYTES or len(self._buffers) >= _WRITE_BUFFERS:
            self._flush()

    def _flush(self) -> None:
        if self._buffers:
            self._file.append(self._buffers)
        self._unsynced += self._size
        self._buffers, self._size = [], 0
        if self._unsynced >= _SYNC_BYTES:
            self._file.sync()
            self._unsynced = 0

    def finish(self) -> None:
        """Write and sync all buffered data."""
        self._flush()
        self._file.sync()
