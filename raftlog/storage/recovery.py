"""Log recovery: load segments, truncate torn writes, detect corruption below the durable end.

Bad or missing bytes below the durable end offset are *corruption*, because their records were
acknowledged. Recovery reports corruption and keeps all records before it readable. It never
truncates corrupt data below the durable end offset, because that would silently hide lost records.

Bad bytes at or above the durable end offset are a *torn write*, or corruption of records that were
acknowledged after the offset was last saved. One log cannot distinguish these two cases. A log
without other replicas is truncated there. In a replica, the bad bytes stay until its Raft group has
decided. They count as corruption that may be truncated (``is_torn``).

The durable end offset comes from the checkpoint and from the index files. An index is written only
after the bytes that it covers were synced. It is removed, durably, before they are truncated.
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
    """Result of recovery. ``damage`` is empty if all durable records are valid."""

    segments: list[Segment]
    durable_offset: Offset  # durable end offset before this start
    anchor: Anchor = ORIGIN  # predecessor of the first batch, if at its offset
    damage: str = ""
    damage_offset: Offset = -1
    is_torn: bool = False  # bad bytes are above the durable end: may be truncated
    notes: list[str] = field(default_factory=list)
    # Segments with bytes that no index covers. These bytes may not be durable.
    scanned: list[Segment] = field(default_factory=list)


def live_bases(bases: Sequence[Offset], log_start_offset: Offset) -> Sequence[Offset]:
    """Return the base offsets of the segments at or above the log start.

    ``bases``: base offsets of all segments, ascending. The segments before the returned ones are
    left from a deletion that a crash interrupted.
    """
    return bases[max(bisect_right(bases, log_start_offset) - 1, 0) :]


def read_index(
    disk: Disk, directory: str, base_offset: Offset
) -> tuple[SparseIndex, Summary] | None:
    """Return the index of the segment at ``base_offset``; None if the file is missing or
    corrupt."""
    path = f"{directory}/{file_name(base_offset, INDEX_SUFFIX)}"
    try:
        data = disk.read_file(path, bytes_max=_INDEX_FILE_BYTES_MAX)
    except OSError:
        return None  # treated like a corrupt index: it is rebuilt
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
    """Load all segments. Detects corruption below the durable end offset, and torn writes above it.

    ``log_start_offset``: segments below it are ignored. ``durable_offset``, ``anchor``: from the
    checkpoint. ``cuts_torn``: True truncates a torn write; False keeps it as corruption with
    ``is_torn`` set. Raises ``OSError``.
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
            f"{directory} ends at offset {end}, but records up to offset {result.durable_offset} "
            "were durable"
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
    """Return the base offset of a valid batch after the bad one at ``end``; -1 if there is none.

    If there is one, the bad batch is probably not a torn write. Writes between two syncs can reach
    the disk in any order, but all of them are on the disk before the writes after the second sync.
    ``RESYNC_BYTES_MAX`` bytes of each file are searched.
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
    """Return the base offset of the first valid batch at or after ``position`` whose base offset is
    above ``end``; -1 if there is none."""
    size = file.size()
    limit = min(size, position + limits.RESYNC_BYTES_MAX)
    window = _Window(file, size)
    candidates = 0
    while position < limit:
        try:
            data = file.pread(min(_WINDOW_BYTES, limit - position), position)
        except OSError:
            data = b""  # skip unreadable bytes
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
    """Return the segments below ``live_offset`` that have batches at or above ``from_offset``.

    ``live_offset``: base offset of the log's first segment. The returned segments are left from a
    deletion that a crash interrupted. They are loaded as far as they are readable.
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
    """Load the segments up to the first bad one. Returns the description of the problem, or ""."""
    expected = log_start_offset
    for segment, following in zip_longest(segments, segments[1:]):
        if segment.base_offset > expected:
            return (
                f"{segment.path} starts above the expected offset {expected}: segment files are "
                "missing or incomplete"
            )
        if result.segments and segment.base_offset < expected:
            return f"{segment.path} starts below the expected offset {expected}"
        trouble = _load_segment(segment, index_interval_bytes, result)
        if trouble:
            if following is None or not _follows(following, segment):
                return trouble
            _cut_bytes(segment, trouble, result)
        expected = segment.next_offset
    return ""


def _take_index(disk: Disk, directory: str, base: Offset, segment: Segment | None) -> Offset:
    """Apply the index to the segment. Returns the offset below which all records were durable.

    A valid index whose segment is missing or too short proves that durable bytes are lost.
    """
    found = read_index(disk, directory, base)
    if found is None:
        return -1
    index, summary = found
    try:
        if segment is None or summary.log_bytes > segment.file.size():
            return summary.next_offset
        if not _index_fits(segment, index, summary):
            return -1  # index of another log
    except (DamagedLogError, OSError) as error:
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
            raise
        return summary.next_offset  # the scan finds the position
    finally:
        if segment is not None:
            segment.close()
    segment.index, segment.summary = index, summary
    segment.indexed_bytes = summary.log_bytes
    return summary.next_offset


def _index_fits(segment: Segment, index: SparseIndex, summary: Summary) -> bool:
    """Return True if the last batch in the index has the end and the hash-chain value of the index.

    A hash-chain value covers all earlier batches, so this check is equivalent to reading them all.
    """
    position, chain, next_offset = index.last_position, summary.chain, summary.next_offset
    while position < summary.log_bytes:
        header = segment.header_at(position)
        position, chain, next_offset = position + header.length, header.chain, header.next_offset
    found = position, chain, next_offset
    return found == (summary.log_bytes, summary.chain, summary.next_offset)


def _follows(following: Segment, segment: Segment) -> bool:
    """Return True if ``following`` continues at the end of the valid part of ``segment``.

    The hash chain proves this. The bytes between them are then not part of the log. They belong to
    a failed write that was truncated and that a power failure has restored.
    """
    if following.base_offset != segment.next_offset:
        return False
    try:
        header = _Window(following.file, following.file.size()).batch_at(0)
    except CorruptBatchError:
        return False
    finally:
        following.close()
    # A compacted batch has no such proof and needs none: compaction waits for a sync of the
    # truncation, after which these bytes cannot be restored.
    return not header.is_compacted and verify_chain(header, previous_chain=segment.summary.chain)


def _load_segment(segment: Segment, index_interval_bytes: int, result: Recovered) -> str:
    """Load the next segment, and scan the part that no index covers. Returns the problem, or ""."""
    anchor = result.segments[-1].anchor if result.segments else result.anchor
    follows = anchor.is_known_at(segment.base_offset)
    if follows and not segment.size_bytes:
        segment.follow(anchor)
    # Only in a log that was restarted from an empty log, the first batch's predecessor is unknown.
    chain_known = bool(follows or result.segments or segment.size_bytes or not segment.base_offset)
    result.segments.append(segment)
    try:
        if segment.file.size() > segment.size_bytes:
            result.scanned.append(segment)
        return _scan(segment, index_interval_bytes, chain_known=chain_known)
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:
            raise
        # The content of the segment is unknown. It must not be truncated as a torn write.
        result.durable_offset = max(result.durable_offset, segment.next_offset + 1)
        return f"{segment.path} cannot be opened: {error}"
    finally:
        segment.close()


def _scan(segment: Segment, index_interval_bytes: int, *, chain_known: bool) -> str:
    """Check and load the batches that the index does not cover. Returns the problem, or ""."""
    size = segment.file.size()
    window = _Window(segment.file, size)
    while segment.size_bytes < size:
        before = segment.summary
        try:
            header = window.batch_at(segment.size_bytes)
            if header.base_offset != segment.next_offset:
                raise CorruptBatchError(
                    f"base offset {header.base_offset}, expected {segment.next_offset}"
                )
            if header.leader_epoch < before.leader_epoch:
                raise CorruptBatchError(
                    f"epoch {header.leader_epoch} after epoch {before.leader_epoch}"
                )
            if chain_known and not verify_chain(header, previous_chain=before.chain):
                raise CorruptBatchError("hash chain does not match the previous batch")
        except CorruptBatchError as error:
            return (
                f"{segment.path} is corrupt at byte {segment.size_bytes} "
                f"(offset {segment.next_offset}): {error}"
            )
        segment.note(header, index_interval_bytes=index_interval_bytes)
        chain_known = True
    return ""


def _cut(disk: Disk, directory: str, result: Recovered, rest: list[Segment], trouble: str) -> None:
    """Remove a torn write. There are no other replicas that could restore its records."""
    if result.segments:
        _cut_bytes(result.segments[-1], trouble, result)
    for segment in rest:
        result.notes.append(f"removed {segment.path} above the durable end offset: {trouble}")
        segment.remove()
    disk.sync_dir(directory)


def _cut_bytes(segment: Segment, trouble: str, result: Recovered) -> None:
    torn_bytes = segment.file.size() - segment.size_bytes
    segment.file.truncate(segment.size_bytes)
    result.notes.append(
        f"truncated a torn write above the durable end offset: bytes={torn_bytes} reason: {trouble}"
    )


class _Window:
    """Reader of the batches of a file, with a large read buffer."""

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self._size = size
        self._start = 0
        self._data = memoryview(b"")

    def batch_at(self, position: int) -> BatchHeader:
        header = parse_header(self._take(position, HEADER_BYTES))
        if header.length > self._size - position:
            raise CorruptBatchError("unexpected end of file inside the batch")
        return check(self._take(position, header.length))

    def _take(self, position: int, length: int) -> memoryview:
        offset = position - self._start
        if offset < 0 or offset + length > len(self._data):
            try:
                data = self._file.pread(max(length, _WINDOW_BYTES), position)
            except OSError as error:
                raise CorruptBatchError(f"cannot be read: {error}") from error
            self._data = memoryview(data)
            self._start, offset = position, 0
        return self._data[offset : offset + length]
