"""Opening a log: what the disk really holds, what was torn by a crash, and what is damage.

The rule (DESIGN section 4). Bytes below the last point known to be durable were promised: when
they are bad or missing that is *damage*. Damage is reported and everything before it stays
readable; it is never cut, because a cut would silently turn lost records into records that never
were. Bad bytes at or above that point are a *torn write*, or damage to records that were
acknowledged after the point was last saved: this log alone cannot tell. A log without other
replicas is cut there. A replica is not: until its partition's group has agreed on what to do, the
bad bytes stay, as damage that may be cut (``is_torn``).

What is known to be durable: the checkpoint says it, and so does every index file, because an index
is written only after what it covers was synced, and removed (durably) before that is truncated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Final

from raftlog import limits
from raftlog.disk import NO_DESCRIPTOR, TEMPORARY_SUFFIX, Disk, File
from raftlog.errors import CorruptBatchError, DamagedLogError
from raftlog.record import (
    BATCH_START,
    BATCH_START_BYTES,
    HEADER_BYTES,
    BatchHeader,
    check,
    parse_header,
    verify_chain,
)
from raftlog.storage import index as index_codec
from raftlog.storage.checkpoint import ORIGIN, Anchor
from raftlog.storage.index import SparseIndex, Summary
from raftlog.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment, base_offsets, file_name
from raftlog.types import Offset

_WINDOW_BYTES: Final = limits.MIB
_INDEX_FILE_BYTES_MAX: Final = (
    index_codec.ENTRY_BYTES * (limits.SEGMENT_BYTES_MAX // HEADER_BYTES) + limits.KIB
)


@dataclass(slots=True)
class Recovered:
    """What opening found. ``damage`` is empty when all that was durable is there."""

    segments: list[Segment]
    durable_offset: Offset  # everything below it was durable before this start
    anchor: Anchor = ORIGIN  # what the first batch follows from, if it stands there
    damage: str = ""
    damage_offset: Offset = -1
    is_torn: bool = False  # the damage lies above the durable end: it may be cut
    notes: list[str] = field(default_factory=list)
    # Segments of which bytes were read one by one: no index vouches that those are on the disk.
    scanned: list[Segment] = field(default_factory=list)


def live_bases(bases: Sequence[Offset], log_start_offset: Offset) -> Sequence[Offset]:
    """Of segments that start at ``bases`` (ascending), those that hold the log start or follow it.

    What lies before them is what a deletion has left when a crash cut it short.
    """
    return bases[max(bisect_right(bases, log_start_offset) - 1, 0) :]


def read_index(
    disk: Disk, directory: str, base_offset: Offset
) -> tuple[SparseIndex, Summary] | None:
    """What the index file of the segment at ``base_offset`` says; None when it is bad."""
    path = f"{directory}/{file_name(base_offset, INDEX_SUFFIX)}"
    try:
        data = disk.read_file(path, bytes_max=_INDEX_FILE_BYTES_MAX)
    except OSError:
        return None  # unreadable is as good as damaged: it is rebuilt
    return index_codec.decode(data, base_offset=base_offset)


def recover(
    disk: Disk,
    directory: str,
    *,
    log_start_offset: Offset,
    durable_offset: Offset,
    anchor: Anchor,
    index_interval_bytes: int,
    cuts_torn: bool = True,
) -> Recovered:
    """Load every segment, find damage below what is known to be durable, and a torn tail.

    ``durable_offset`` and ``anchor`` are what the checkpoint knows. Below the log start nothing
    matters any more. ``cuts_torn``: whether a torn tail is cut, or left as damage.
    """
    names = disk.list_dir(directory)
    for name in names:
        if name.endswith(TEMPORARY_SUFFIX):
            disk.remove(f"{directory}/{name}")
    bases = live_bases(base_offsets(names, LOG_SUFFIX), log_start_offset)
    segments = {base: Segment(disk, directory, base) for base in bases}
    for base in base_offsets(names, INDEX_SUFFIX):
        covered = _take_index(disk, directory, base, segments.get(base))
        durable_offset = max(durable_offset, covered)
    if durable_offset <= log_start_offset:
        durable_offset = 0
    result = Recovered([], durable_offset, anchor=anchor)
    trouble = _load(list(segments.values()), log_start_offset, index_interval_bytes, result)
    end = result.segments[-1].next_offset if result.segments else log_start_offset
    if end < result.durable_offset:
        result.damage_offset = end
        result.damage = trouble or (
            f"{directory} ends at offset {end}, but records up to {result.durable_offset} were "
            "durable"
        )
    elif trouble:
        rest = list(segments.values())[len(result.segments) :]
        behind = _valid_behind(result.segments[-1] if result.segments else None, rest, end)
        if behind >= 0:
            trouble += f". A valid batch at offset {behind} follows"
        if cuts_torn:
            _cut(disk, directory, result, rest, trouble)
        else:
            result.damage, result.damage_offset, result.is_torn = trouble, end, True
    return result


def _valid_behind(bad: Segment | None, rest: Sequence[Segment], end: Offset) -> Offset:
    """The base offset of a valid batch after the bad one at ``end``; -1 where there is none.

    With one, the bad batch is probably no torn write: writes of one sync may reach the disk in any
    order, but those of an earlier sync come before those of a later one. ``RESYNC_BYTES_MAX`` bytes
    of a file are searched.
    """
    for segment, position in (*(((bad, bad.size_bytes),) if bad else ()), *((s, 0) for s in rest)):
        try:
            found = _resync(segment.file, position, end)
        finally:
            segment.close()
        if found >= 0:
            return found
    return -1


def _resync(file: File, position: int, end: Offset) -> Offset:
    """The base offset of the first valid batch above ``end`` from ``position`` on; -1: none."""
    size = file.size()
    limit = min(size, position + limits.RESYNC_BYTES_MAX)
    window = _Window(file, size)
    candidates = 0
    while position < limit:
        try:
            data = file.pread(min(_WINDOW_BYTES, limit - position), position)
        except OSError:
            data = b""  # what cannot be read is passed over
        for match in BATCH_START.finditer(data):
            candidates += 1
            if candidates > limits.RESYNC_CANDIDATES_MAX:
                return -1
            with suppress(CorruptBatchError):
                header = window.batch_at(position + match.start())
                if header.base_offset > end:
                    return header.base_offset
        position += max(1, _WINDOW_BYTES - BATCH_START_BYTES + 1)
    return -1


def load_leftovers(
    disk: Disk,
    directory: str,
    *,
    live_offset: Offset,
    from_offset: Offset,
    index_interval_bytes: int,
) -> list[Segment]:
    """Segments below the log's own (which begin at ``live_offset``) that have batches from
    ``from_offset`` on, as far as readable.

    A crash has left them: their deletion was decided, and perhaps not finished.
    """
    bases = base_offsets(disk.list_dir(directory), LOG_SUFFIX)
    gone = [base for base in bases if base < live_offset]
    found = []
    for base, next_base in pairwise([*gone, live_offset]):
        if next_base > from_offset:
            segment = Segment(disk, directory, base)
            _take_index(disk, directory, base, segment)
            _load_segment(segment, index_interval_bytes, Recovered([], 0))
            found.append(segment)
    return found


def _load(
    segments: list[Segment], log_start_offset: Offset, index_interval_bytes: int, result: Recovered
) -> str:
    """Take in the segments up to the first trouble; says what that is, or ""."""
    expected = log_start_offset
    for segment, following in zip_longest(segments, segments[1:]):
        if segment.base_offset > expected:
            return (
                f"offset {expected} comes next where {segment.path} starts: segment files are "
                "missing, or not whole"
            )
        if result.segments and segment.base_offset < expected:
            return f"offset {expected} comes next, and is in {segment.path} once more"
        trouble = _load_segment(segment, index_interval_bytes, result)
        if trouble:
            if following is None or not _follows(following, segment):
                return trouble
            _cut_bytes(segment, trouble, result)
        expected = segment.next_offset
    return ""


def _take_index(disk: Disk, directory: str, base: Offset, segment: Segment | None) -> Offset:
    """Start the segment from what its index covers; returns the offset below which all was durable.

    A good index whose segment is missing, or shorter, says that durable bytes are gone.
    """
    found = read_index(disk, directory, base)
    if found is None:
        return -1
    index, summary = found
    try:
        if segment is None or summary.log_bytes > segment.file.size():
            return summary.next_offset
        if not _fits(segment, index, summary):
            return -1  # of another log
    except (DamagedLogError, OSError) as error:
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
            raise
        return summary.next_offset  # the scan will say where
    finally:
        if segment is not None:
            segment.close()
    segment.index, segment.summary = index, summary
    segment.indexed_bytes = summary.log_bytes
    return summary.next_offset


def _fits(segment: Segment, index: SparseIndex, summary: Summary) -> bool:
    """Whether the last batch that an index covers ends where it says, with the chain it says.

    One chain value speaks for all batches before it, so this is as good as reading them all.
    """
    position, chain, next_offset = index.last_position, summary.chain, summary.next_offset
    while position < summary.log_bytes:
        header = segment.header_at(position)
        position, chain, next_offset = position + header.length, header.chain, header.next_offset
    found = position, chain, next_offset
    return found == (summary.log_bytes, summary.chain, summary.next_offset)


def _follows(following: Segment, segment: Segment) -> bool:
    """Whether a segment goes on just where the good part of the one before it ends.

    Then what lies between is no part of the log: bytes of a write that failed and was taken back,
    which a power cut has brought back. The chain proves it.
    """
    if following.base_offset != segment.next_offset:
        return False
    try:
        header = _Window(following.file, following.file.size()).batch_at(0)
    except CorruptBatchError:
        return False
    finally:
        following.close()
    # A compacted batch proves nothing, and needs not: compaction waits for a sync, after which no
    # such bytes come back.
    return not header.is_compacted and verify_chain(header, previous_chain=segment.summary.chain)


def _load_segment(segment: Segment, index_interval_bytes: int, result: Recovered) -> str:
    """Take in the next segment, scanning what no index covers; what is wrong with it, or ""."""
    anchor = result.segments[-1].anchor if result.segments else result.anchor
    follows = anchor.is_known_at(segment.base_offset)
    if follows and not segment.size_bytes:
        segment.follow(anchor)
    # Only a log that was begun anew has a first batch with an unknown predecessor.
    chain_known = bool(follows or result.segments or segment.size_bytes or not segment.base_offset)
    result.segments.append(segment)
    try:
        if segment.file.size() > segment.size_bytes:
            result.scanned.append(segment)
        return _scan(segment, index_interval_bytes, chain_known=chain_known)
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:
            raise
        # What it holds is not known. So it is no torn tail, which could be cut.
        result.durable_offset = max(result.durable_offset, segment.next_offset + 1)
        return f"{segment.path} cannot be opened: {error}"
    finally:
        segment.close()


def _scan(segment: Segment, index_interval_bytes: int, *, chain_known: bool) -> str:
    """Take in the batches after what the index covers, checking each; what is wrong, or ""."""
    size = segment.file.size()
    window = _Window(segment.file, size)
    while segment.size_bytes < size:
        before = segment.summary
        try:
            header = window.batch_at(segment.size_bytes)
            if header.base_offset != segment.next_offset:
                raise CorruptBatchError(
                    f"offset {header.base_offset} where {segment.next_offset} comes next"
                )
            if header.leader_epoch < before.leader_epoch:
                raise CorruptBatchError(
                    f"epoch {header.leader_epoch} after epoch {before.leader_epoch}"
                )
            if chain_known and not verify_chain(header, previous_chain=before.chain):
                raise CorruptBatchError("its chain value does not follow from the batch before it")
        except CorruptBatchError as error:
            return (
                f"{segment.path} is bad at byte {segment.size_bytes} "
                f"(offset {segment.next_offset}): {error}"
            )
        segment.note(header, index_interval_bytes=index_interval_bytes)
        chain_known = True
    return ""


def _cut(disk: Disk, directory: str, result: Recovered, rest: list[Segment], trouble: str) -> None:
    """Remove a torn tail: where there are no other replicas, nothing could bring it back."""
    if result.segments:
        _cut_bytes(result.segments[-1], trouble, result)
    for segment in rest:
        result.notes.append(f"removed {segment.path}, above the durable end: {trouble}")
        segment.remove()
    disk.sync_dir(directory)


def _cut_bytes(segment: Segment, trouble: str, result: Recovered) -> None:
    torn_bytes = segment.file.size() - segment.size_bytes
    segment.file.truncate(segment.size_bytes)
    result.notes.append(f"cut {torn_bytes} torn bytes above the durable end: {trouble}")


class _Window:
    """Batches of a file, read a large piece at a time."""

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self._size = size
        self._start = 0
        self._data = memoryview(b"")

    def batch_at(self, position: int) -> BatchHeader:
        header = parse_header(self._take(position, HEADER_BYTES))
        if header.length > self._size - position:
            raise CorruptBatchError("the file ends inside the batch")
        return check(self._take(position, header.length))

    def _take(self, position: int, length: int) -> memoryview:
        offset = position - self._start
        if offset < 0 or offset + length > len(self._data):
            try:
                data = self._file.pread(max(length, _WINDOW_BYTES), position)
            except OSError as error:
                raise CorruptBatchError(f"it cannot be read: {error}") from error
            self._data = memoryview(data)
            self._start, offset = position, 0
        return self._data[offset : offset + length]
