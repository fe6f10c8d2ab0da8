"""Compaction planning and state. Pure functions and values; ``cleaner`` does the work.

    log start        clean end                dirty end                      log end
        |  every key once  |  never compacted     |  too young, not sealed, …   |
        +------ rewritten by the next pass -------+

A *pass* reads the dirty part to find the newest offset of each key. Then it rewrites all segments
up to the dirty end without the records that have a newer record of the same key. Offsets do not
change.

A record without a value is a *tombstone*: it marks its key as deleted. The first pass that covers
a tombstone removes the older records of its key. The tombstone stays until that pass is
``delete.retention.ms`` old. A consumer that was below the tombstone when the pass ran has this time
to read it (KIP-534). Therefore the state records for each part of the log when it became clean.

Replicas do not depend on this time. The state also contains the offset below which tombstones may
be missing (``tombstones_removed_below``). It is durable before the first tombstone is removed, and
every fetch response to a follower contains it (``replication.following``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128_digest

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.config.keys import INT64_MAX
from raftlog.disk import NO_ROOM, Disk, File
from raftlog.errors import CorruptBatchError, DamagedLogError
from raftlog.record import HEADER_BYTES, BatchHeader, parse_header, verify_chain
from raftlog.record.batch import length_at
from raftlog.record.compaction import Mask, Original, Rewriter, Rewritten, open_original
from raftlog.storage import state_files
from raftlog.storage.checkpoint import CheckpointFile
from raftlog.storage.producer_state import Aborted, ProducerTable
from raftlog.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment, base_offsets, file_name
from raftlog.types import Buffer, Offset, TimestampMs

# Older parts are merged with the next part. Their tombstones then stay slightly longer.
PASSES_REMEMBERED: Final = 64


class CleanPart(NamedTuple):
    """Part of a log between the end of the previous part and ``end_offset``.

    ``cleaned_at_ms``: start time of the pass that first compacted it. ``tombstones``: number of
    tombstones in it after the latest pass.
    """

    end_offset: Offset
    cleaned_at_ms: TimestampMs
    tombstones: int


class LastPass(NamedTuple):
    """Statistics of the latest pass, for operators."""

    began_ms: TimestampMs
    bytes_before: int
    bytes_after: int
    records_removed: int


@dataclass(frozen=True, slots=True)
class CompactionState:
    """Compaction state of a log. Invariant: ``parts`` are in ascending order of ``end_offset``."""

    parts: tuple[CleanPart, ...] = ()
    last: LastPass | None = None
    # Invariant: for every tombstone at or above this offset that was ever in the log, the log still
    # holds it or a newer record of its key. Lowered only to the end of a log that is truncated.
    tombstones_removed_below: Offset = 0

    @property
    def clean_end_offset(self) -> Offset:
        """End of the compacted part. Below it, passes have kept one record of each key."""
        return self.parts[-1].end_offset if self.parts else 0

    def cut(self, end: Offset) -> CompactionState:
        """Return the state after a truncation at ``end``. Later records count as not compacted."""
        index = bisect_right(self.parts, end, key=lambda part: part.end_offset)
        kept = self.parts[:index]
        if index < len(self.parts) and end > (kept[-1].end_offset if kept else 0):
            kept = (*kept, self.parts[index]._replace(end_offset=end))
        return CompactionState(kept, self.last, min(self.tombstones_removed_below, end))

    def tombstones_due_below(
        self, *, now_ms: TimestampMs, retention_ms: int, kept_from: Offset = INT64_MAX
    ) -> Offset:
        """Return the offset below which tombstones are older than ``retention_ms``. It is the end
        of a part, and at most ``kept_from``."""
        offset = 0
        for part in self.parts:
            # guard: tombstones wait from the first pass that kept them
            if part.cleaned_at_ms > now_ms - retention_ms or part.end_offset > kept_from:
                break
            offset = part.end_offset
        return offset

    def has_only_due_tombstones(
        self, *, now_ms: TimestampMs, retention_ms: int, kept_from: Offset = INT64_MAX
    ) -> bool:
        """Return True if there are tombstones, and all of them are due for removal.

        Then a pass is due even without dirty records, which may not arrive soon.
        """
        due = self.tombstones_due_below(
            now_ms=now_ms, retention_ms=retention_ms, kept_from=kept_from
        )
        counts = [part.tombstones for part in self.parts]
        return due > 0 and due == self.clean_end_offset and sum(counts) > 0

    def removing_tombstones(self, due_below: Offset) -> CompactionState:
        """Return the state to save before a pass removes the tombstones below ``due_below``.

        A part without tombstones does not count.
        """
        ends = [p.end_offset for p in self.parts if p.end_offset <= due_below and p.tombstones]
        return self.lacking_tombstones(max(ends, default=0))

    def lacking_tombstones(self, below: Offset) -> CompactionState:
        """Return the state of a log in which tombstones below ``below`` may also be missing."""
        below = max(below, self.tombstones_removed_below)
        return CompactionState(self.parts, self.last, below)

    def after(
        self, end: Offset, *, due_below: Offset, tombstones: Sequence[int], last: LastPass
    ) -> CompactionState:
        """Return the state after a pass up to ``end`` that removed the tombstones below
        ``due_below``.

        ``tombstones``: numbers of kept tombstones, for each part that ``kept_parts`` returns.
        """
        kept = [
            part._replace(tombstones=count)
            for part, count in zip(self.kept_parts(due_below), tombstones, strict=False)
        ]
        if not kept or kept[-1].end_offset < end:
            kept.append(CleanPart(end, last.began_ms, tombstones[-1]))
        while len(kept) > PASSES_REMEMBERED:
            first, second = kept[:2]
            kept[:2] = [second._replace(tombstones=first.tombstones + second.tombstones)]
        return CompactionState(tuple(kept), last, self.tombstones_removed_below)

    def kept_parts(self, due_below: Offset) -> tuple[CleanPart, ...]:
        """Return the parts that may have tombstones after a pass. The pass adds one more part for
        the records above them."""
        return tuple(part for part in self.parts if part.end_offset > due_below)

    def to_json(self) -> dict[str, Any]:
        return {
            "parts": [list(part) for part in self.parts],
            "last": None if self.last is None else list(self.last),
            "tombstones_removed_below": self.tombstones_removed_below,
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> CompactionState:
        last = state["last"]
        parts = tuple(CleanPart(*part) for part in state["parts"])
        # Files of older releases lack this field. Passes delete the parts whose tombstones they
        # remove. So no tombstone was removed at or above the end of the first remaining part.
        removed_below = parts[0].end_offset if parts else 0
        return cls(
            parts,
            None if last is None else LastPass(*last),
            state.get("tombstones_removed_below", removed_below),
        )


class SegmentInfo(NamedTuple):
    """Planning view of a segment. ``dirty_bytes``: bytes of batches that were never compacted."""

    base_offset: Offset
    next_offset: Offset
    size_bytes: int
    dirty_bytes: int


def dirty_ratio(segments: Sequence[SegmentInfo]) -> float:
    """Return the ratio of dirty bytes to all bytes (see ``min.cleanable.dirty.ratio``); 0 if there
    are no bytes."""
    total = sum(segment.size_bytes for segment in segments)
    return sum(segment.dirty_bytes for segment in segments) / total if total else 0.0


def groups(segments: Sequence[SegmentInfo], *, segment_bytes: int) -> list[list[SegmentInfo]]:
    """Return groups of adjacent segments. Each group becomes one segment. A group of several
    segments has at most ``segment_bytes`` bytes before the pass."""
    found: list[list[SegmentInfo]] = []
    size = 0
    for segment in segments:
        if found and size + segment.size_bytes <= segment_bytes:
            found[-1].append(segment)
            size += segment.size_bytes
        else:
            found.append([segment])
            size = segment.size_bytes
    return found


def first_groups(
    grouped: Sequence[list[SegmentInfo]], *, bytes_max: int
) -> list[list[SegmentInfo]]:
    """Return the first groups of at most ``bytes_max`` bytes in total, but at least one group."""
    taken: list[list[SegmentInfo]] = []
    size = 0
    for group in grouped:
        size += sum(segment.size_bytes for segment in group)
        if taken and size > bytes_max:
            break
        taken.append(group)
    return taken


# -- compactor -------------------------------------------------------------------------------------
#
# Planning of the compaction of one log: when a pass is due, and what each task compacts.
#
# The log owns one ``Compactor`` and calls it on its own thread. A task (``cleaner``) does the work
# in any thread while the log is in use. The log then replaces the files and its list of segments
# together. The result of a task is discarded if the log loses records or becomes corrupt while the
# task runs.
#
# Only sealed segments are compacted whose records are committed, durable and covered by a producer
# snapshot. Such records are never truncated, and compaction keeps the producer state that recovery
# needs.


# Maximum bytes of segments in one task. A task needs this much additional disk space.
TICKET_BYTES: Final = limits.GIB
# Value of ``dirty_ratio`` if a pass is due although few or no records are dirty.
_RATIO_WHEN_DUE: Final = 0.001


@dataclass(frozen=True, slots=True)
class CompactionStatus:
    """Compaction status for operators. ``dirty_bytes``: bytes of batches that were never compacted,
    including the active segment."""

    clean_end_offset: Offset
    dirty_bytes: int
    is_under_way: bool
    last: LastPass | None


@dataclass(frozen=True, slots=True)
class Compactable:
    """The parts of a log that a pass is planned from."""

    directory: str
    config: TopicConfig
    sealed: Sequence[Segment]
    candidates: Sequence[Segment]  # first sealed segments: committed, durable, in a snapshot
    log_start: Offset  # durable
    producers: ProducerTable


def _by_producer(aborted: Iterable[Aborted]) -> Mapping[int, Sequence[Aborted]]:
    found: dict[int, list[Aborted]] = {}
    for each in aborted:
        found.setdefault(each.producer_id, []).append(each)
    return found


class Compactor:
    """Compaction state of one log, with the pass and the task in progress."""

    def __init__(
        self,
        disk: Disk,
        checkpoint: CheckpointFile,
        files: CompactionFiles,
        state: CompactionState,
    ) -> None:
        self._disk = disk
        self._checkpoint = checkpoint
        self._files = files
        self._state = state
        self._has_swaps = False  # the file contains swaps that this process has performed
        self._task: CompactionTask | None = None
        self._pass: Pass | None = None  # started and not complete

    @property
    def is_busy(self) -> bool:
        """True while a task is not returned."""
        return self._task is not None

    @property
    def state(self) -> CompactionState:
        return self._state

    def status(self, segments: Iterable[Segment], log_start: Offset) -> CompactionStatus:
        clean_end = self._clean_end(log_start)
        return CompactionStatus(
            self._state.clean_end_offset,
            sum(_dirty_bytes(segment, clean_end) for segment in segments),
            self._task is not None or self._pass is not None,
            self._state.last,
        )

    def _clean_end(self, log_start: Offset) -> Offset:
        return max(self._state.clean_end_offset, log_start)

    # -- planning ----------------------------------------------------------------------------------

    def dirty_ratio(
        self, log: Compactable, *, now_ms: TimestampMs, tombstones_kept_from: Offset
    ) -> float:
        """See ``Log.dirty_ratio``."""
        if self._pass is not None:
            return 1.0
        segments = self._old_enough(log, now_ms)
        return self._ratio_if_due(log, segments, now_ms, tombstones_kept_from)

    def _old_enough(self, log: Compactable, now_ms: TimestampMs) -> list[Segment]:
        """Return the candidates before the first that has dirty records younger than
        min.compaction.lag.ms."""
        lag_ms, clean_end = log.config.min_compaction_lag_ms, self._clean_end(log.log_start)
        found: list[Segment] = []
        for segment in log.candidates:
            last = segment.next_offset - 1
            # guard: young records stay
            if last >= clean_end and lag_ms and _append_ms(segment, last) > now_ms - lag_ms:
                break
            found.append(segment)
        return found

    def _ratio_if_due(
        self,
        log: Compactable,
        segments: Sequence[Segment],
        now_ms: TimestampMs,
        tombstones_kept_from: Offset,
    ) -> float:
        config, clean_end = log.config, self._clean_end(log.log_start)
        ratio = dirty_ratio([_info(segment, clean_end) for segment in segments])
        if ratio and ratio >= config.min_cleanable_dirty_ratio:
            return ratio
        if ratio and config.max_compaction_lag_ms < INT64_MAX:
            first = next(s for s in segments if s.next_offset > clean_end)
            oldest_ms = _append_ms(first, max(clean_end, first.base_offset))
            if oldest_ms < now_ms - config.max_compaction_lag_ms:
                return ratio
        is_due = self._state.has_only_due_tombstones(
            now_ms=now_ms,
            retention_ms=config.delete_retention_ms,
            kept_from=tombstones_kept_from,
        )
        covered = segments[-1].next_offset if segments else 0
        return _RATIO_WHEN_DUE if is_due and covered >= clean_end else 0.0

    # -- one task --------------------------------------------------------------------------------

    def begin(
        self,
        log: Compactable,
        *,
        now_ms: TimestampMs,
        chance_seed: int,
        memory_bytes: int,
        tombstones_kept_from: Offset,
        task_bytes: int,
    ) -> CompactionTask | None:
        """See ``Log.begin_compaction``. Every task is passed to ``complete`` or ``abandon``."""
        assert self._task is None
        if self._pass is None:
            self._pass = self._plan_pass(
                log, now_ms, chance_seed, memory_bytes, tombstones_kept_from
            )
        if self._pass is not None:
            self._task = self._ticket_of(log, self._pass, task_bytes)
        return self._task

    def _plan_pass(
        self,
        log: Compactable,
        now_ms: TimestampMs,
        seed: int,
        memory_bytes: int,
        tombstones_kept_from: Offset,
    ) -> Pass | None:

        segments = self._old_enough(log, now_ms)
        if not self._ratio_if_due(log, segments, now_ms, tombstones_kept_from):
            return None
        clean_end = self._clean_end(log.log_start)
        due_below = self._state.tombstones_due_below(
            now_ms=now_ms,
            retention_ms=log.config.delete_retention_ms,
            kept_from=tombstones_kept_from,
        )
        return Pass(
            began_ms=now_ms,
            seed=seed,
            memory_bytes=memory_bytes,
            dirty=[_source(s, clean_end) for s in segments if s.next_offset > clean_end],
            clean_end=clean_end,
            limit=segments[-1].next_offset,
            log_start=log.log_start,
            due_below=due_below,
            remembered=frozenset(log.producers.newest_base_offsets()),
            aborted=_by_producer(log.producers.transactions.aborted(0, segments[-1].next_offset)),
            state=self._state.removing_tombstones(due_below),
        )

    def _ticket_of(self, log: Compactable, work: Pass, task_bytes: int) -> CompactionTask:
        """Return a task for the next segments: at least one group, and not more bytes than are
        free on the disk. The disk can still become full during the work."""

        end = work.limit if work.end_offset < 0 else work.end_offset
        segments = {
            s.base_offset: s
            for s in log.sealed
            if s.base_offset < end and s.base_offset >= work.done_offset
        }
        grouped = groups(
            [_info(s, work.clean_end) for s in segments.values()],
            segment_bytes=log.config.segment_bytes,
        )
        bytes_max = min(task_bytes, self._disk.free_bytes(log.directory))
        return CompactionTask(
            disk=self._disk,
            files=self._files,
            checkpoint=self._checkpoint,
            work=work,
            groups=[
                [_source(segments[info.base_offset], work.clean_end) for info in group]
                for group in first_groups(grouped, bytes_max=bytes_max)
            ],
            index_interval_bytes=log.config.index_interval_bytes,
            bytes_target=min(BATCH_BYTES_TARGET, log.config.max_message_bytes),
            settles=self._has_swaps,
        )

    def complete(self, task: CompactionTask) -> None:
        """Accept a task that has run, and replace the files of its segments. Raises
        ``OSError``."""
        self._accept(task)
        self._state = task.state
        if task.work.is_done:
            self._pass = None
        if task.cleaned:
            self._has_swaps = True
            for swap, _segment in task.cleaned:
                self._files.swap(swap)

    def abandon(self, task: CompactionTask) -> None:
        """Discard a task and its plan. Raises ``OSError``."""
        self._accept(task)
        self._pass = None
        if task.is_planned:
            self._files.replace(self._state)
            task.discard()

    def _accept(self, task: CompactionTask) -> None:
        assert task is self._task
        self._task = None
        if task.is_settled:
            self._has_swaps = False

    # -- other changes of the log ------------------------------------------------------------------

    def cancel(self) -> None:
        """End the current pass and mark its task as stale: the log loses records or is
        corrupt."""
        self._pass = None
        if self._task is not None:
            # guard: a truncated log discards earlier tasks
            self._task.is_stale = True

    def lower_clean_end(self, end: Offset) -> None:
        """Lower the clean end to ``end``, durably, before the log is truncated there.

        Records that are appended after the truncation are dirty, and no later start may perform
        older swaps. Raises ``OSError``.
        """
        self.cancel()
        is_planned = self._task is not None and self._task.withdraw()
        state = self._state.cut(end)
        # guard: new names are durable before a truncation removes the plan
        if self._has_swaps:
            self._disk.sync_dir(self._files.directory)
        if self._has_swaps or is_planned or state != self._state:
            self._files.replace(state)
        self._state, self._has_swaps = state, False

    def finish_swaps(self) -> None:
        """Remove the performed swaps from the file, durably. Raises ``OSError``."""
        if self._has_swaps:
            # guard: new names are durable before a clean stop removes the plan
            self._disk.sync_dir(self._files.directory)
            self._files.write(self._state)
            self._has_swaps = False

    def note_missing_tombstones(self, below: Offset) -> None:
        """See ``Log.note_missing_tombstones``. Raises ``OSError``."""
        assert self._task is None and not self._has_swaps
        state = self._state.lacking_tombstones(below)
        self._files.write(state)
        self._state = state


def _append_ms(segment: Segment, offset: Offset) -> TimestampMs:
    """Return the append time of the batch that contains ``offset``. Raises ``DamagedLogError``."""
    was_open = segment.is_open
    try:
        return segment.find(offset)[1].append_timestamp
    finally:
        if not was_open:
            segment.close()


def _dirty_position(segment: Segment, clean_end: Offset) -> int:
    """Return the position of a batch that starts at or before ``clean_end``."""
    return segment.index.position_for_offset(clean_end) if clean_end > segment.base_offset else 0


def _dirty_bytes(segment: Segment, clean_end: Offset) -> int:
    """Return the dirty bytes of a segment. If the clean part ends inside the segment, the value is
    an estimate from the index."""
    if segment.next_offset <= clean_end:
        return 0
    return segment.size_bytes - _dirty_position(segment, clean_end)


def _info(segment: Segment, clean_end: Offset) -> SegmentInfo:
    dirty_bytes = _dirty_bytes(segment, clean_end)
    return SegmentInfo(segment.base_offset, segment.next_offset, segment.size_bytes, dirty_bytes)


def _source(segment: Segment, clean_end: Offset) -> Source:

    return Source(
        segment.base_offset,
        segment.next_offset,
        segment.path,
        segment.size_bytes,
        _dirty_position(segment, clean_end),
    )


# -- compaction files ------------------------------------------------------------------------------
#
# The file ``compaction`` of a log, and the replacement of segments by cleaned segments.
#
#   0000….log  0100….log  0200….log      before the compaction
#   0000….cleaned                        step 1: replacement of all three, written and synced
#   compaction                           step 2: contains the swap, durably; step 3 can be repeated
#   0000….log                            step 3: rename the cleaned file, remove the other two
#
# A log without the file was never compacted. If the file is empty or corrupt, the state is lost:
# no record counts as clean, and tombstones may be missing anywhere.
#
# ``compaction`` contains the clean part (``compaction.CompactionState``) and the *swaps*: the
# cleaned files and the segments that they replace. If the file contains swaps, the start of the log
# performs them again before it reads any segment. Swaps are idempotent. The start removes cleaned
# files that no swap names, because they are left from a crash.
#
# Swaps are *settled* (removed from the file) after the new names are durable. This happens before
# the next cleaned file is created, because it may have the same name. It also happens before the
# log is truncated, because a later file may have the name of a file that the swap removes.


CLEANED_SUFFIX: Final = ".cleaned"
NAME: Final = "compaction"


class Swap(NamedTuple):
    """Replacement of the segments with base offsets ``replaced`` by the cleaned file of
    ``replaced[0]``, which has ``size_bytes`` bytes."""

    replaced: tuple[Offset, ...]
    size_bytes: int

    @property
    def base_offset(self) -> Offset:
        return self.replaced[0]


class CompactionFiles:
    """Compaction state file and cleaned files of one log. Any thread may call, one at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.directory = directory
        self._disk = disk
        self._path = f"{directory}/{NAME}"

    def cleaned_path(self, base_offset: Offset) -> str:
        return f"{self.directory}/{file_name(base_offset, CLEANED_SUFFIX)}"

    def _log_path(self, base_offset: Offset) -> str:
        return f"{self.directory}/{file_name(base_offset, LOG_SUFFIX)}"

    # -- the state ---------------------------------------------------------------------------------

    def read(self) -> tuple[CompactionState, tuple[Swap, ...]]:
        """Return the state and the swaps in the file. Raises ``DamagedLogError`` and
        ``OSError``."""
        found = state_files.read(self._disk, self._path)
        if found is None:
            return CompactionState(), ()
        swaps = tuple(Swap(tuple(replaced), size) for replaced, size in found["swaps"])
        return CompactionState.from_json(found["state"]), swaps

    def write(self, state: CompactionState, swaps: Sequence[Swap] = ()) -> None:
        """Replace the file, durably. Raises ``OSError``."""
        rows = [[list(swap.replaced), swap.size_bytes] for swap in swaps]
        state_files.write(self._disk, self._path, {"state": state.to_json(), "swaps": rows})

    def replace(self, state: CompactionState) -> None:
        """Write the state without swaps. If the disk is full, empty the file: a lost state is safe,
        and a wrong state is not."""
        try:
            self.write(state)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._lose()

    def _lose(self) -> None:
        """Empty the file, durably. This needs no disk space. The file is not removed, because a log
        without the file counts as never compacted."""
        if self._disk.exists(self._path):
            file = self._disk.open(self._path, write=True)
            try:
                file.truncate(0)
                file.sync()
            finally:
                file.close()

    def _is_lost(self) -> bool:
        try:
            return self._size(self._path) == 0
        except OSError:
            return False

    # -- the segments ------------------------------------------------------------------------------

    def remove_indexes(self, swaps: Sequence[Swap]) -> None:
        """Remove the indexes of the replaced segments. Otherwise recovery could use one of them as
        the index of the cleaned segment."""
        for swap in swaps:
            for base in swap.replaced:
                path = f"{self.directory}/{file_name(base, INDEX_SUFFIX)}"
                if self._disk.exists(path):
                    with suppress(FileNotFoundError):  # retention also removes indexes
                        self._disk.remove(path)

    def carry_out(self, swaps: Sequence[Swap]) -> None:
        """Replace the segments by the cleaned files. Skips the steps that are already done.

        The result is durable after the directory is synced. If a cleaned file has a wrong size, the
        segments that it should replace stay. Raises ``OSError``.
        """
        for swap in swaps:
            # guard: a cleaned file of the wrong size replaces nothing
            if self._size(self.cleaned_path(swap.base_offset)) == swap.size_bytes:
                self.swap(swap)
            elif self._size(self._log_path(swap.base_offset)) == swap.size_bytes:
                self._remove_replaced(swap)

    def swap(self, swap: Swap) -> None:
        """Replace segments by a cleaned file. Needs no file descriptor. Raises ``OSError``."""
        self._disk.rename(self.cleaned_path(swap.base_offset), self._log_path(swap.base_offset))
        self._remove_replaced(swap)

    def _remove_replaced(self, swap: Swap) -> None:
        for base in swap.replaced[1:]:
            path = self._log_path(base)
            if self._disk.exists(path):
                self._disk.remove(path)

    def _size(self, path: str) -> int:
        """Return the size in bytes; -1 if the file does not exist."""
        if not self._disk.exists(path):
            return -1
        file = self._disk.open(path, write=False)
        size = file.size()
        file.close()
        return size

    def place_of(self, swap: Swap) -> str:
        """Return the path of the cleaned file: its cleaned name or its segment name; "" if neither
        file has the expected size."""
        for path in (self.cleaned_path(swap.base_offset), self._log_path(swap.base_offset)):
            if self._size(path) == swap.size_bytes:
                return path
        return ""

    def leftovers(self) -> list[str]:
        """Return the paths of all cleaned files."""
        bases = base_offsets(self._disk.list_dir(self.directory), CLEANED_SUFFIX)
        return [self.cleaned_path(base) for base in bases]

    # -- a start -----------------------------------------------------------------------------------

    def recover(self, notes: list[str], *, high_watermark: Offset) -> tuple[CompactionState, str]:
        """Perform the recorded swaps and remove other cleaned files. Returns the state and the
        description of corruption, or "".

        ``high_watermark``: from the checkpoint. Passes remove nothing above it, so tombstones may
        be missing only below it if the state is lost.

        If the file is unreadable and cleaned files exist, their swaps may be partly done. This
        counts as corruption. But an empty file had no swaps (``_lose``), and nothing else empties
        it: cleaned files are then those of a later compaction that has replaced nothing. Raises
        ``OSError``.
        """
        leftovers = self.leftovers()
        try:
            state, swaps = self.read()
        except (DamagedLogError, OSError) as error:
            # guard: an unreadable plan is corruption
            if leftovers and not self._is_lost():
                return CompactionState(), f"{error}; a compaction was in progress"
            notes.append(f"{error}; the whole log counts as never compacted")
            for path in leftovers:
                self._disk.remove(path)
            lost = CompactionState().lacking_tombstones(high_watermark)
            self.replace(lost)
            return lost, ""
        if swaps:
            # guard: a start performs the planned swaps
            self.carry_out(swaps)
            # guard: new names are durable before a start removes the plan
            self._disk.sync_dir(self.directory)
            self.replace(state)
        for path in self.leftovers():
            self._disk.remove(path)
        return state, ""

    def keep_up_to(self, state: CompactionState, end: Offset) -> CompactionState:
        """Return the state, truncated at the recovered log end ``end``. Saves it durably if it
        changes."""
        kept = state.cut(end)
        if kept != state:
            self.replace(kept)
        return kept


def segment_paths(disk: Disk, directory: str) -> dict[Offset, str]:
    """Return the paths of the segments that a start would load, by base offset, ascending.

    Read-only. Segments that a recorded swap replaces are omitted, and the path of the cleaned file
    is returned instead.
    """
    files = CompactionFiles(disk, directory)
    paths = {
        base: f"{directory}/{file_name(base, LOG_SUFFIX)}"
        for base in base_offsets(disk.list_dir(directory), LOG_SUFFIX)
    }
    try:
        _state, swaps = files.read()
    except (DamagedLogError, OSError):
        return paths
    for swap in swaps:
        place = files.place_of(swap)
        if place:
            for base in swap.replaced[1:]:
                paths.pop(base, None)
            paths[swap.base_offset] = place
    return dict(sorted(paths.items()))


# -- offset map ------------------------------------------------------------------------------------
#
# Map of keys to their newest offset, in a fixed amount of memory. A numpy hash table, no I/O.
#
# The map stores a 128-bit xxh3 hash of each key, computed with a secret seed. The probability that
# two of a billion keys collide is 1 in 10^21, and producers cannot construct collisions. The keys
# themselves are not stored, so the memory per key does not depend on its length.


Hashes: TypeAlias = npt.NDArray[np.uint64]  # two columns
Offsets: TypeAlias = npt.NDArray[np.int64]

_SLOT_BYTES: Final = 24  # two halves of the hash, and the offset; 0 marks an empty slot
_FULL_PARTS: Final = (3, 4)  # maximum share of used slots; above it, lookups take too many steps
KEY_BYTES: Final = _SLOT_BYTES * _FULL_PARTS[1] // _FULL_PARTS[0]


def hash_keys(keys: Iterable[bytes], *, seed: int) -> Hashes:
    """Return the hashes of ``keys``, one row for each key. ``seed``: 64 bits."""
    digests = b"".join(map(xxh3_128_digest, keys, repeat(seed)))
    return np.frombuffer(digests, "<u8").reshape(-1, 2)


class OffsetMap:
    """Newest offset of each key. Allocates 32 bytes per key of capacity at creation.

    Open addressing with double hashing (Knuth, TAOCP 3, 6.4, algorithm D). The number of slots is
    prime, so that the probe sequence of a key visits every slot. Thousands of keys are looked up
    together: one probe step of all keys is one array operation, and keys that are found are removed
    from the operation.
    """

    def __init__(self, keys_max: int) -> None:
        """``keys_max``: capacity in keys, at least 1."""
        self.keys_max = keys_max
        self._count = 0
        slots = prime_from(keys_max * _FULL_PARTS[1] // _FULL_PARTS[0] + 1)
        self._slots = np.zeros((slots, 3), np.uint64)

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        return self._slots.nbytes

    @property
    def room(self) -> int:
        """Remaining capacity in keys."""
        return self.keys_max - self._count

    def put(self, hashes: Hashes, offsets: Offsets) -> None:
        """Add keys with ascending offsets. Offsets must also ascend from call to call.

        ``room`` must be at least the number of keys, even if the map already has some of them.
        """
        assert len(hashes) <= self.room
        slots, (position, step) = self._slots, self._probe(hashes)
        hashes, stored = np.ascontiguousarray(hashes), offsets.astype(np.uint64) + np.uint64(1)
        while len(hashes):
            is_free = slots[position, 2] == 0
            if is_free.any():
                # If several keys write the same slot, the last one wins. The others detect this and
                # probe the next slot.
                free = position[is_free]
                slots[free, 0], slots[free, 1] = hashes[is_free, 0], hashes[is_free, 1]
                slots[free, 2] = 1
                self._count += len(np.unique(free))
            found = slots[position]
            is_mine = (found[:, 0] == hashes[:, 0]) & (found[:, 1] == hashes[:, 1])
            slots[position[is_mine], 2] = stored[is_mine]  # the last offset is the newest
            left = ~is_mine
            hashes, stored, step = hashes[left], stored[left], step[left]
            position = (position[left] + step) % np.uint64(len(slots))

    def newest(self, hashes: Hashes) -> Offsets:
        """Return the newest offset of each key; -1 for an unknown key."""
        slots, (position, step) = self._slots, self._probe(hashes)
        result = np.full(len(hashes), -1, np.int64)
        rows = np.arange(len(hashes))
        while len(rows):
            found = slots[position]
            is_mine = (found[:, 0] == hashes[:, 0]) & (found[:, 1] == hashes[:, 1])
            is_known = found[:, 2] != 0
            hits = is_mine & is_known
            result[rows[hits]] = found[hits, 2].astype(np.int64) - 1
            left = is_known & ~is_mine
            rows, hashes, step = rows[left], hashes[left], step[left]
            position = (position[left] + step) % np.uint64(len(slots))
        return result

    def _probe(self, hashes: Hashes) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Return the first slot and the probe step of each key."""
        count = np.uint64(len(self._slots))
        return hashes[:, 0] % count, hashes[:, 1] % (count - np.uint64(1)) + np.uint64(1)


def prime_from(number: int) -> int:
    """Return the smallest prime that is at least ``number`` (2 or more)."""
    while not _is_prime(number):
        number += 1
    return number


def _is_prime(number: int) -> bool:
    """Test by trial division: about 20,000 divisions for the largest possible map."""
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))


# -- cleaner ---------------------------------------------------------------------------------------
#
# Compaction work of one log, for any thread: reads segments and writes cleaned files.
#
# This module does not change the log. The log replaces its segments with the cleaned files when the
# caller returns the task (``Log.complete_compaction``). Memory: the key map, one chunk of batches
# and the write buffer; see ``Pass`` and the constants.


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
    aborted: Mapping[int, Sequence[Aborted]]  # below ``limit``, by producer; all have ended there
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

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the records are of an aborted transaction."""
        if not header.is_transactional:
            return False
        # Those of one producer do not overlap, and there can be as many as batches.
        theirs, offset = self.aborted.get(header.producer_id, ()), header.base_offset
        index = bisect_right(theirs, offset, key=lambda each: each.marker_offset)
        return index < len(theirs) and theirs[index].first_offset <= offset

    def keeps_marker(self, offset: Offset) -> bool:
        """Whether a marker stays. Replicas that copy the log now may have records of its
        transaction that need it: it is removed like a tombstone (KIP-534). One that began the
        epoch of its producer stays as the producer's last batch.
        """
        # guard: markers stay while a replica may need them
        return offset >= self.due_below or offset in self.remembered

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
            # guard: new names are durable before swaps are settled
            self.disk.sync_dir(self.files.directory)
            # guard: swaps are settled before a file of the same name is created
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
        learning = _Learning(OffsetMap(keys_max), work.seed, self._is_keyed)
        work.tombstones = [0] * (len(work.state.kept_parts(work.due_below)) + 1)
        work.end_offset = work.clean_end
        for source in work.dirty:
            for original in self._originals(source, source.dirty_position, pause):
                header = original.header
                if header.next_offset <= work.clean_end:
                    continue
                # guard: a pass ends where its map is full
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
                    # guard: compacted batches continue the hash chain
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
            # guard: the batch with a producer's newest sequence stays
            keeps_producer = header.has_producer and header.base_offset in work.remembered
            writing.add(rewriter.add(original, kept, keeps_producer=keeps_producer))

    def _kept(self, chunk: Sequence[Original]) -> Iterator[Mask]:
        """Return for each batch the mask of the records to keep."""
        work = self.work
        assert work.newest is not None
        keyed = [o for o in chunk if self._is_keyed(o)]
        hashes = hash_keys(chain.from_iterable(map(Original.keys, keyed)), seed=work.seed)
        newest = work.newest.newest(hashes)
        row = 0
        for original in chunk:
            count = original.header.record_count
            offsets = original.offsets
            kept = offsets >= work.log_start
            if original.is_marker:
                kept[:] = work.keeps_marker(original.header.base_offset)
                # The last batch of a producer waits for no later pass: each one would keep it.
                self._count_tombstones(offsets[kept & (offsets >= work.due_below)])
            elif work.is_aborted(original.header):
                kept[:] = False
            elif self._is_keyed(original):
                has_key = original.keyed()
                # guard: records without a key stay
                # guard: a newer record of the same key
                kept &= ~has_key | (newest[row : row + count] <= offsets)
                tombstones = kept & has_key & original.tombstones()
                # guard: tombstones wait
                kept &= ~(tombstones & (offsets < work.due_below))
                self._count_tombstones(offsets[tombstones & kept])
                row += count
            yield kept

    def _is_keyed(self, original: Original) -> bool:
        """Whether records of it replace others of their keys, and can be replaced."""
        # guard: aborted records replace no others
        return (
            original.has_keys
            and original.header.record_count > 0
            and not original.is_marker
            and not self.work.is_aborted(original.header)
        )

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
                # guard: the durable end is saved before an index is removed
                self.checkpoint.update(sync=True)
                self.lost_indexes = True
                # guard: old indexes are removed before the plan
                self.files.remove_indexes(swaps)
                # guard: a cleaned file has a durable name before the plan
                self.disk.sync_dir(self.files.directory)
            # guard: the plan is written before segments are removed
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
        # guard: a plan that may have been written is left to the next start
        if self.is_unsure:
            return
        for path in self._made:
            if self.disk.exists(path):
                self.disk.remove(path)


def _go_on(_size_bytes: int) -> None:
    pass


class _Learning:
    """Buffer of keys for the map. Adds many keys at once, because numpy calls are expensive."""

    def __init__(self, newest: OffsetMap, seed: int, is_keyed: Callable[[Original], bool]) -> None:
        self.newest = newest
        self._is_keyed = is_keyed
        self._seed = seed
        self._waiting: list[tuple[Hashes, Offsets]] = []
        self._count = 0
        self._is_empty = True

    def add(self, original: Original) -> bool:
        """Add the keys of a batch. Returns False if the map has no space for them."""
        if not self._is_keyed(original):
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
        # guard: a cleaned file is synced
        self._file.sync()
