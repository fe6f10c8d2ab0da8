"""Start of a log: recovery of the segments, then of the epoch cache and the producer table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.disk import Disk
from raftlog.errors import DamagedLogError
from raftlog.record import BatchHeader
from raftlog.storage.checkpoint import CheckpointFile
from raftlog.storage.compaction import CompactionState
from raftlog.storage.compaction_files import CompactionFiles
from raftlog.storage.copies import Copy
from raftlog.storage.disk_tasks import DeleteTask
from raftlog.storage.epoch_cache import EpochCache
from raftlog.storage.log_dirs import LogDir
from raftlog.storage.log_files import LogFiles
from raftlog.storage.producer_state import ProducerTable
from raftlog.storage.quarantine import dangling_text
from raftlog.storage.recovery import Recovered, load_leftovers, recover
from raftlog.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment, base_offsets, file_name
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
    link = disk.dangling_link(directory)
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
                self._checkpoint.settle()
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
        segment.file.sync()
        if segment is not recovered.segments[-1]:
            segment.close()
    if recovered.scanned or recovered.notes:
        disk.sync_dir(directory)


def _write_again(segment: Segment, durable_offset: Offset) -> None:
    """Rewrite the same bytes above the durable end offset, so that the next sync writes them.

    The previous process may have ended because of a failed fsync. The kernel then marks pages as
    clean that are not on the disk (see ``StorageFailedError``).
    """
    offset = max(durable_offset, segment.base_offset)
    position = segment.find(offset)[0] if offset < segment.next_offset else segment.size_bytes
    while position < segment.size_bytes:
        data = segment.pread(min(_REWRITE_BYTES, segment.size_bytes - position), position)
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
    """Yield the headers from ``from_offset`` on. A corrupt header in the indexed part ends the
    iteration and is recorded as corruption in ``recovered``."""
    for segment in list(recovered.segments):
        try:
            yield from headers_from([segment], from_offset)
        except DamagedLogError as error:
            segment.forget_bad(index_interval_bytes=index_interval_bytes)
            del recovered.segments[recovered.segments.index(segment) + 1 :]
            recovered.damage, recovered.damage_offset = str(error), segment.next_offset
            recovered.is_torn = False
            return


def rebuild_producers(files: LogFiles, segments: Iterable[Segment], end: Offset) -> ProducerTable:
    """Return the producer table as of ``end``: a snapshot, and the batches from there to ``end``.

    Raises ``DamagedLogError``.
    """
    producers = files.read_snapshot(log_end_offset=end)
    headers = headers_from(segments, files.snapshot_offset)
    return _replay(producers, takewhile(lambda header: header.next_offset <= end, headers))


def _replay(producers: ProducerTable, headers: Iterable[BatchHeader]) -> ProducerTable:
    for header in headers:
        if header.has_producer:
            producers.note(header)
    return producers


def headers_from(segments: Iterable[Segment], from_offset: Offset) -> Iterator[BatchHeader]:
    """Yield the headers of the batches from ``from_offset`` on. Raises ``DamagedLogError``."""
    for segment in segments:
        if segment.next_offset <= from_offset:
            continue
        was_open = segment.is_open
        for _position, header in segment.headers(segment.index.position_for_offset(from_offset)):
            if header.base_offset >= from_offset:
                yield header
        if not was_open:
            segment.close()
