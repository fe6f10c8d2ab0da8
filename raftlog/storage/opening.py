"""Start of a log: recovery of the segments, then of the epoch cache and the producer table."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any, Final

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.config.keys import INT64_MAX
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
from raftlog.storage import segment as index_codec
from raftlog.storage.checkpoint import ORIGIN, Anchor, CheckpointFile, Copy
from raftlog.storage.compaction import CompactionFiles, CompactionState
from raftlog.storage.disk_tasks import DeleteTask
from raftlog.storage.log_dirs import LogDir
from raftlog.storage.producer_state import ProducerTable
from raftlog.storage.quarantine import dangling_text
from raftlog.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    EpochCache,
    LogFiles,
    Segment,
    SparseIndex,
    Summary,
    base_offsets,
    file_name,
)
from raftlog.types import LeaderEpoch, Offset

_REWRITE_BYTES: Final = limits.MIB


@dataclass(slots=True)
class Opened:
    """Initial state of a log. ``readable_end_offset`` is valid only if ``damage`` is not empty."""

    segments: list[Segment]
    epochs: EpochCache
    producers: ProducerTable
    checkpoint: CheckpointFile
    files: LogFiles
    log_start_offset: Offset
    log_end_offset: Offset
    readable_end_offset: Offset
    unindexed: list[Segment]  # sealed segments with a missing or wrong index
    compaction_files: CompactionFiles
    compaction_state: CompactionState
    log_dir: LogDir
    damage: str = ""
    is_torn: bool = False
    notes: list[str] = field(default_factory=list)


def open_log(
    disk: Disk,
    directory: str,
    config: TopicConfig,
    copy: Copy | None = None,
    *,
    cuts_torn: bool = True,
    log_dir: LogDir | None = None,
) -> Opened:
    """See ``Log.open``."""
    log_dir = LogDir(disk, directory) if log_dir is None else log_dir
    if log_dir.failure:
        return _without_files(disk, directory, copy, log_dir)
    # The link leads to a file system that is not mounted, or to a lost directory.
    # guard: a copy at a dangling link is corrupt
    link = disk.dangling_link(directory)
    # guard: only a log that never had a record gets a directory
    if not link and (copy is None or copy.known is None):
        if copy is not None and not disk.exists(directory):
            disk.make_dirs(directory.rpartition("/")[0])
            return _without_files(disk, directory, copy, log_dir)
        disk.make_dirs(directory)
    opening = _Opening(
        disk,
        directory,
        config.index_interval_bytes,
        copy,
        log_dir,
        link=link,
        cuts_torn=cuts_torn,
    )
    return opening.run()


def _checkpoint_of(
    disk: Disk, directory: str, copy: Copy | None, log_dir: LogDir
) -> CheckpointFile:
    return CheckpointFile(disk, f"{directory}/checkpoint", copy, names=log_dir.names)


def _without_files(disk: Disk, directory: str, copy: Copy | None, log_dir: LogDir) -> Opened:
    """Return the state of a log that never had a record, so it has no directory yet, or whose log
    directory has failed. Accesses no file."""
    known = None if copy is None else copy.known
    return Opened(
        segments=[],
        epochs=EpochCache(),
        producers=ProducerTable(),
        checkpoint=_checkpoint_of(disk, directory, copy, log_dir),
        files=LogFiles(disk, directory),
        log_start_offset=0,
        log_end_offset=0 if known is None else known.durable_end_offset,
        readable_end_offset=0,
        unindexed=[],
        compaction_files=CompactionFiles(disk, directory),
        compaction_state=CompactionState(),
        log_dir=log_dir,
        damage=log_dir.failure,
    )


class _Opening:
    """The steps of one start of one log."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        index_interval_bytes: int,
        copy: Copy | None,
        log_dir: LogDir,
        *,
        link: str,
        cuts_torn: bool,
    ) -> None:
        self._log_dir = log_dir
        self._cuts_torn = cuts_torn
        self._disk = disk
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._files = LogFiles(disk, directory)
        self._compaction_files = CompactionFiles(disk, directory)
        self._checkpoint = _checkpoint_of(disk, directory, copy, log_dir)
        self._trouble = self._checkpoint.load()
        self._compaction_state, self._damage = self._compaction_files.recover(
            self._files.notes, high_watermark=self._checkpoint.latest.high_watermark
        )
        self._start = self._checkpoint.latest.log_start_offset
        if self._trouble:
            self._checkpoint.rebuild()
            self._files.notes.append(
                f"{self._trouble}; above the indexes, corrupt bytes are treated as a torn write"
            )
            bases = base_offsets(disk.list_dir(directory), LOG_SUFFIX)
            self._start = min(bases, default=self._start)
        mismatch = self._checkpoint.mismatch()
        self._durable_end = self._checkpoint.latest.durable_end_offset
        if mismatch and copy is not None:
            assert copy.known is not None
            self._durable_end = max(self._durable_end, copy.known.durable_end_offset)
            self._damage = f"{directory} {mismatch}. {copy.advice}"
        if link:
            where = f"{directory} cannot be opened: {dangling_text(link)}"
            self._damage = ". ".join(filter(None, (where, self._damage)))

    def run(self) -> Opened:
        files, start = self._files, self._start
        recovered = self._recover()
        segments = recovered.segments
        end = segments[-1].next_offset if segments else start
        if not recovered.damage:
            end = max(end, start)
            _start_anew_at(recovered, start)
            _make_durable(self._disk, self._directory, recovered)
            if segments and not self._checkpoint.is_written:
                # guard: names of a killed process are durable before its records are served
                self._checkpoint.settle()
            # guard: snapshots beyond the end are removed at a start
            files.cut_snapshots(end)
            self._compaction_state = self._compaction_files.keep_up_to(self._compaction_state, end)
            if self._trouble:
                self._checkpoint.update(log_start_offset=start, durable_end_offset=end, sync=True)
            elif start > (segments[0].base_offset if segments else 0):
                # The segment name does not prove the log start, and the previous process may have
                # ended before its sync.
                self._checkpoint.update(sync=True)
        # Both can find corruption in bytes that the scan did not read.
        epochs = self._epochs(end, recovered)
        producers = self._producers(end, recovered)
        return Opened(
            segments=segments,
            epochs=epochs,
            producers=producers,
            checkpoint=self._checkpoint,
            files=files,
            log_start_offset=start,
            log_end_offset=max(end, recovered.durable_offset) if recovered.damage else end,
            readable_end_offset=recovered.damage_offset,
            unindexed=[segment for segment in recovered.scanned if segment is not segments[-1]],
            compaction_files=self._compaction_files,
            compaction_state=self._compaction_state,
            log_dir=self._log_dir,
            damage=recovered.damage,
            is_torn=recovered.is_torn,
            notes=[*files.notes, *recovered.notes],
        )

    def _recover(self) -> Recovered:
        latest = self._checkpoint.latest
        if self._damage:  # unknown which files belong to the log: change nothing
            return Recovered([], self._durable_end, damage=self._damage, damage_offset=self._start)
        return recover(
            self._disk,
            self._directory,
            log_start_offset=self._start,
            durable_offset=self._durable_end,
            anchor=latest.anchor,
            index_interval_bytes=self._index_interval_bytes,
            cuts_torn=self._cuts_torn,
        )

    def _epochs(self, end: Offset, recovered: Recovered) -> EpochCache:
        """Return the epoch cache: the file, and the batches after the last sync. Rebuilds it from
        all batches if the file is missing, corrupt or does not match them."""
        epochs, changed = self._files.read_epochs(), False
        fits = epochs is not None
        if epochs is not None:
            changed = epochs.cut(end)
            if epochs.latest < _last_epoch(recovered.segments):
                fits = changed = self._add_epochs(epochs, recovered, self._durable_end)
        # guard: epochs fit the log at a start
        if epochs is None or not (fits and _fits(epochs, recovered.segments, self._start)):
            if epochs is not None:
                recovered.notes.append("epoch cache does not match the log; it is rebuilt")
            epochs = EpochCache()
            self._add_epochs(epochs, recovered, 0)
            changed = len(epochs) > 0
        if changed and not recovered.damage:
            self._files.write_epochs(epochs)
        epochs.advance_start(self._start)
        return epochs

    def _add_epochs(self, epochs: EpochCache, recovered: Recovered, start: Offset) -> bool:
        """Add the epochs of the batches from ``start`` on. Returns False if a batch is of another
        epoch than the cache has there: of an epoch that ended without a batch."""
        for header in _readable_headers(recovered, start, self._index_interval_bytes):
            if header.leader_epoch > epochs.latest:
                epochs.assign(header.leader_epoch, header.base_offset)
            # guard: epochs without batches do not cover others' batches
            elif epochs.epoch_at(header.base_offset) != header.leader_epoch:
                return False
        return True

    def _producers(self, end: Offset, recovered: Recovered) -> ProducerTable:
        """Return the producer table, and finish an interrupted deletion. The table includes the
        producers of the segments to delete."""
        producers = self._files.read_snapshot(log_end_offset=end)
        from_offset = self._files.snapshot_offset
        leftovers = load_leftovers(
            self._disk,
            self._directory,
            live_offset=_live_offset(recovered, self._start),
            from_offset=from_offset,
            index_interval_bytes=self._index_interval_bytes,
        )
        with suppress(DamagedLogError):  # their records are deleted
            _replay(producers, headers_from(leftovers, from_offset))
        headers = _readable_headers(recovered, from_offset, self._index_interval_bytes)
        # guard: producers are replayed at a start
        _replay(producers, headers)
        if not recovered.damage:
            unsaved = (end, producers.snapshot()) if leftovers else None
            self._finish_deletion(unsaved, _live_offset(recovered, self._start))
        return producers

    def _finish_deletion(
        self, unsaved: tuple[Offset, dict[str, Any]] | None, live_offset: Offset
    ) -> None:
        """Remove the files below the log's segments. A crash interrupted their deletion.

        The log start is made durable first, because the killed process may not have synced it. This
        is also necessary if no segment name proves the log start, as in a log that was restarted
        from an empty log.
        """
        names = self._disk.list_dir(self._directory)
        bases = base_offsets(names, LOG_SUFFIX)
        paths = [
            f"{self._directory}/{file_name(base, suffix)}"
            for suffix in (INDEX_SUFFIX, LOG_SUFFIX)
            for base in base_offsets(names, suffix)
            if base < self._start and base != live_offset
        ]
        is_unsure = bases[0] < self._start if bases else self._checkpoint.is_written
        if paths or is_unsure:
            DeleteTask(
                disk=self._disk,
                directory=self._directory,
                checkpoint=self._checkpoint,
                files=self._files,
                log_start_offset=self._start,
                paths=paths,
                snapshot=unsaved,
            ).run()


def _live_offset(recovered: Recovered, log_start_offset: Offset) -> Offset:
    """Return the base offset of the log's first segment.

    File names are not sufficient. This start may have removed an empty segment, and then the file
    before it does not belong to the log either.
    """
    # guard: files below an empty log are removed
    return recovered.segments[0].base_offset if recovered.segments else log_start_offset


def _start_anew_at(recovered: Recovered, log_start_offset: Offset) -> None:
    """Remove the segments of a log that ends below its log start: all their records are deleted.

    This state occurs after a power failure if records were deleted that were never synced.
    """
    segments = recovered.segments
    if segments and segments[-1].next_offset < log_start_offset:
        recovered.notes.append(
            f"{segments[0].directory} ended at offset {segments[-1].next_offset}, below its log "
            f"start {log_start_offset}: restarted empty at the log start"
        )
        while segments:
            segments.pop().remove()
        recovered.scanned.clear()


def _make_durable(disk: Disk, directory: str, recovered: Recovered) -> None:
    """Sync the recovered segments. Bytes of a killed process may be in the page cache only.

    Without this sync, a power failure could remove records that the broker returned or acknowledged
    after this start.
    """
    for segment in recovered.scanned:
        _write_again(segment, recovered.durable_offset)
        # guard: recovered segments are synced
        segment.file.sync()
        if segment is not recovered.segments[-1]:
            segment.close()
    # guard: the truncation of a torn write is synced
    if recovered.scanned or recovered.notes:
        disk.sync_dir(directory)


def _write_again(segment: Segment, durable_offset: Offset) -> None:
    """Rewrite the same bytes above the durable end offset, so that the next sync writes them.

    The previous process may have ended because of a failed fsync. The kernel then marks pages as
    clean that are not on the disk (see ``StorageFailedError``).
    """
    offset, position = max(durable_offset, segment.base_offset), segment.size_bytes
    if offset < segment.next_offset:
        # Headers that only the index file covers were not checked. One of them may be corrupt.
        # guard: corruption below the durable end does not prevent a start
        position = max(segment.indexed_bytes, segment.index.position_for_offset(offset))
    while position < segment.size_bytes:
        data = segment.pread(min(_REWRITE_BYTES, segment.size_bytes - position), position)
        # guard: bytes after a failed sync are written again
        segment.file.pwrite(data, position)
        position += len(data)


def _last_epoch(segments: Sequence[Segment]) -> LeaderEpoch:
    """Return the epoch of the last batch; -1 if there is none."""
    filled = [segment for segment in segments if segment.size_bytes]
    return filled[-1].summary.leader_epoch if filled else -1


def _fits(epochs: EpochCache, segments: Sequence[Segment], start: Offset) -> bool:
    """Return True if the cache covers the first and the last batch."""
    filled = [segment for segment in segments if segment.size_bytes]
    if not filled:
        return True
    first, last = filled[0], filled[-1]
    return (
        epochs.epoch_at(max(start, first.base_offset)) >= 0
        and epochs.epoch_at(last.next_offset - 1) == last.summary.leader_epoch
    )


def _readable_headers(
    recovered: Recovered, from_offset: Offset, index_interval_bytes: int
) -> Iterator[BatchHeader]:
    """Yield ``headers_from``. A corrupt batch in the indexed part ends the iteration and is
    recorded as corruption in ``recovered``."""
    for segment in list(recovered.segments):
        try:
            yield from headers_from([segment], from_offset)
        except DamagedLogError as error:
            segment.forget_bad(index_interval_bytes=index_interval_bytes)
            del recovered.segments[recovered.segments.index(segment) + 1 :]
            recovered.damage, recovered.damage_offset = str(error), segment.next_offset
            recovered.is_torn = False
            return


def _replay(producers: ProducerTable, headers: Iterable[BatchHeader]) -> ProducerTable:
    for header in headers:
        if header.has_producer:
            producers.note(header)
    return producers


def headers_from(
    segments: Iterable[Segment], from_offset: Offset, end: Offset = INT64_MAX
) -> Iterator[BatchHeader]:
    """Yield the headers of the batches from ``from_offset`` on that start below ``end``. Those with
    a producer are checked with all their bytes, because only the CRC of the whole batch covers what
    a table of producers is made of. Raises ``DamagedLogError``."""
    for segment in segments:
        if segment.next_offset <= from_offset or segment.base_offset >= end:
            continue
        was_open = segment.is_open
        for position, header in segment.headers(segment.index.position_for_offset(from_offset)):
            if header.base_offset >= end:
                break
            if header.base_offset >= from_offset:
                if header.has_producer:
                    # guard: no corrupt header changes the producers
                    segment.check_batch(position, header)
                yield header
        if not was_open:
            segment.close()


# -- recovery --------------------------------------------------------------------------------------
#
# Log recovery: load segments, truncate torn writes, detect corruption below the durable end.
#
# Bad or missing bytes below the durable end offset are *corruption*, because their records were
# acknowledged. Recovery reports corruption and keeps all records before it readable. It never
# truncates corrupt data below the durable end offset, because that would silently hide lost
# records.
#
# Bad bytes at or above the durable end offset are a *torn write*, or corruption of records that
# were acknowledged after the offset was last saved. One log cannot distinguish these two cases. A
# log without other replicas is truncated there. In a replica, the bad bytes stay until its Raft
# group has decided. They count as corruption that may be truncated (``is_torn``).
#
# The durable end offset comes from the checkpoint and from the index files. An index is written
# only after the bytes that it covers were synced. It is removed, durably, before they are
# truncated.


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
        # guard: an index proves what was durable
        durable_offset = max(durable_offset, covered)
    if durable_offset <= log_start_offset:
        durable_offset = 0
    result = Recovered([], durable_offset, anchor=anchor)
    trouble = _load(list(segments.values()), log_start_offset, index_interval_bytes, result)
    end = result.segments[-1].next_offset if result.segments else log_start_offset
    # guard: corruption is distinguished from a torn write
    if end < result.durable_offset:
        result.damage_offset = end
        result.damage = trouble or (
            f"{directory} ends at offset {end}, but records up to offset {result.durable_offset} "
            "were durable"
        )
    elif trouble:
        rest = list(segments.values())[len(result.segments) :]
        try:
            behind = _valid_behind(result.segments[-1] if result.segments else None, rest, end)
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                raise
            # guard: what cannot be opened is not removed as a torn write
            result.damage, result.damage_offset = f"{trouble}. After it: {error}", end
            return result
        if behind >= 0:
            trouble += f". A valid batch at offset {behind} follows"
        # guard: a replica's torn write is not truncated without its group
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
        # guard: a missing segment is corruption
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
        # guard: an index fits its segment
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
    except (CorruptBatchError, OSError) as error:
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
            raise
        return False
    finally:
        following.close()
    # A compacted batch has no such proof and needs none: compaction waits for a sync of the
    # truncation, after which these bytes cannot be restored.
    # guard: a compacted batch is no proof
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
        # guard: a segment that cannot be opened at a start is no torn write
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
            # guard: epochs of what is recovered
            if header.leader_epoch < before.leader_epoch:
                raise CorruptBatchError(
                    f"epoch {header.leader_epoch} after epoch {before.leader_epoch}"
                )
            # guard: chain of what is recovered
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
        # guard: CRC of what is recovered
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
