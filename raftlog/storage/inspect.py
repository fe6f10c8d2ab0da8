"""Inspection of stored logs without opening them: batches, positions and corruption.

Read-only: this module repairs nothing. The broker can be stopped or running. If it is running, the
newest batches may change during the inspection.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

from raftlog import limits
from raftlog.disk import Disk
from raftlog.errors import CorruptBatchError, DataDirectoryError
from raftlog.record import (
    HEADER_BYTES,
    BatchHeader,
    decode_lists,
    parse_header,
    validate,
    verify_chain,
)
from raftlog.storage.checkpoint import CheckpointFile
from raftlog.storage.compaction import segment_paths
from raftlog.storage.opening import live_bases, read_index
from raftlog.storage.quarantine import is_quarantine
from raftlog.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, SparseIndex, base_offsets, file_name
from raftlog.types import Offset

# Kinds of problems, the worst first.
DAMAGE: Final = "damage"  # durable bytes are corrupt or missing: records are lost on this disk
TORN: Final = "torn"  # torn write at the end, which the next start truncates
INDEX: Final = "index"  # index does not match its segment; the next start rebuilds it


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. ``offset``: first affected record; ``position``: byte in the file."""

    kind: str
    path: str
    position: int
    offset: Offset
    message: str


@dataclass(slots=True)
class PartitionReport:
    """Result of the check of one partition directory."""

    directory: str
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    log_start_offset: Offset = 0
    log_end_offset: Offset = 0
    durable_end_offset: Offset = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_damaged(self) -> bool:
        return any(problem.kind == DAMAGE for problem in self.problems)


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One stored batch. ``error``: why it is corrupt, or ""; the scan ends at the first error."""

    path: str
    position: int
    header: BatchHeader | None
    error: str = ""
    data: bytes = b""

    def to_dict(self, *, records: bool = False) -> dict[str, Any]:
        """Return the row as a dictionary for output; ``records`` adds the decoded records."""
        row: dict[str, Any] = {"file": self.path, "position": self.position, "error": self.error}
        if self.header is not None:
            header = self.header
            row |= {
                "base_offset": header.base_offset,
                "last_offset": header.next_offset - 1,
                "records": header.record_count,
                "bytes": header.length,
                "codec": header.codec.name.lower(),
                "compacted": header.is_compacted,
                "leader_epoch": header.leader_epoch,
                "append_timestamp_ms": header.append_timestamp,
                "first_timestamp_ms": header.first_timestamp,
                "max_timestamp_ms": header.max_timestamp,
                "producer_id": header.producer_id,
                "producer_epoch": header.producer_epoch,
                "base_sequence": header.base_sequence,
                "crc32c": f"{header.crc32c:08x}",
                "chain": f"{header.chain:016x}",
            }
        if records and not self.error:
            row["content"] = _records(self.data)
        return row


def _records(batch: bytes) -> list[dict[str, Any]]:
    rows = zip(*decode_lists(batch, check_crc=False), strict=True)
    return [
        {"offset": offset, "timestamp_ms": timestamp_ms, "key": key, "value": value, "headers": h}
        for offset, timestamp_ms, key, value, h in rows
    ]


def partition_directories(disk: Disk, directory: str) -> list[str]:
    """Return all partition directories at or below ``directory``.

    A partition directory contains segments or a checkpoint. Directories in quarantine are omitted,
    except ``directory`` itself. Raises ``DataDirectoryError`` if there is no partition.
    """
    found = _partition_directories(disk, directory, set())
    if not found:
        raise DataDirectoryError(
            f"{directory} holds no partition. Specify the data directory of a broker, a partition "
            "directory in it, or a segment file (*.log)"
        )
    return found


def _partition_directories(disk: Disk, directory: str, seen: set[str]) -> list[str]:
    real_path = disk.real_path(directory)
    if real_path in seen:  # a symbolic link to a directory that was visited
        return []
    seen.add(real_path)
    names = disk.list_dir(directory)
    if base_offsets(names, LOG_SUFFIX) or "checkpoint" in names:
        return [directory]
    children = (f"{directory}/{name}" for name in names if not is_quarantine(name))
    return [found for child in children for found in _partition_directories(disk, child, seen)]


def dump(disk: Disk, path: str) -> Iterator[BatchRow]:
    """Yield the batches of a segment file, or of all segments at or below a directory."""
    if path.endswith(LOG_SUFFIX):
        yield from scan(disk, path)
        return
    for directory in partition_directories(disk, path):
        for segment_path in segment_paths(disk, directory).values():
            yield from scan(disk, segment_path)


def scan(disk: Disk, path: str, position: int = 0) -> Iterator[BatchRow]:
    """Yield the fully checked batches of one segment file, from the batch at ``position`` on. The
    last row may be an error."""
    file = disk.open(path, write=False)
    try:
        size = file.size()
        while position < size:
            header = None
            try:
                header = parse_header(file.pread(HEADER_BYTES, position))
                data = file.pread(header.length, position)
                validate(data)
            except CorruptBatchError as error:
                yield BatchRow(path, position, header, str(error))
                return
            except OSError as error:  # a bad sector; the file itself was opened above
                yield BatchRow(path, position, header, f"cannot be read: {error.strerror}")
                return
            yield BatchRow(path, position, header, data=data)
            position += header.length
    finally:
        file.close()


def verify(disk: Disk, directory: str) -> Iterator[PartitionReport]:
    """Check every partition at or below ``directory``: batches, hash chains, indexes, log ends.

    Raises ``DataDirectoryError`` if there is no partition.
    """
    for partition in partition_directories(disk, directory):
        yield _Verifier(disk, partition).run()


class _Verifier:
    """Check of one partition, from its first byte to its last."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        checkpoint = CheckpointFile(disk, f"{directory}/checkpoint")
        trouble = checkpoint.load()
        self.report = PartitionReport(
            directory,
            log_start_offset=checkpoint.latest.log_start_offset,
            durable_end_offset=checkpoint.latest.durable_end_offset,
        )
        if trouble:
            self._problem(DAMAGE, checkpoint.path, 0, 0, trouble)
        self._chain: int | None = None
        self._expected: Offset | None = None
        self._indexes: dict[Offset, SparseIndex] = {}
        self._paths = segment_paths(disk, directory)

    def run(self) -> PartitionReport:
        report = self.report
        names = self._disk.list_dir(report.directory)
        # Segments below the log start are left from a deletion that a crash interrupted.
        bases = live_bases(list(self._paths), report.log_start_offset)
        self._take_indexes(names)
        if bases and bases[0] > report.log_start_offset:
            self._problem(
                DAMAGE,
                self._paths[bases[0]],
                0,
                report.log_start_offset,
                f"the first segment starts at offset {bases[0]}, but the log start is "
                f"{report.log_start_offset}: segment files are missing",
            )
        self._chain = 0 if bases and bases[0] == 0 else None
        for base, next_base in zip_longest(bases, bases[1:]):
            self._segment(base, next_base)
        report.log_end_offset = max(self._expected or 0, report.log_start_offset)
        if not report.is_damaged and self._kind(report.log_end_offset) == DAMAGE:
            self._problem(
                DAMAGE,
                report.directory,
                0,
                report.log_end_offset,
                f"the log ends at offset {report.log_end_offset}, but records up to "
                f"{report.durable_end_offset} were durable",
            )
        return report

    def _take_indexes(self, names: list[str]) -> None:
        """Read the index files. Each proves that the part of the segment it covers was durable."""
        report = self.report
        for base in base_offsets(names, INDEX_SUFFIX):
            found = read_index(self._disk, report.directory, base)
            if found is not None:
                self._indexes[base], summary = found
                report.durable_end_offset = max(report.durable_end_offset, summary.next_offset)
                continue
            path = f"{report.directory}/{file_name(base, INDEX_SUFFIX)}"
            if self._disk.exists(path):  # else a running broker has removed it
                self._problem(INDEX, path, 0, base, "the index is corrupt or of another segment")

    def _segment(self, base: Offset, next_base: Offset | None) -> None:
        report = self.report
        path = self._paths[base]
        if not self._disk.exists(path):  # a running broker has deleted or compacted it
            self._chain = self._expected = None
            return
        report.segments += 1
        if self._expected is not None and base != self._expected:
            self._problem(
                self._kind(min(base, self._expected)),
                path,
                0,
                self._expected,
                f"the segment starts at offset {base}, expected {self._expected}",
            )
            self._chain = None
        self._expected = base
        starts: dict[int, Offset] = {}
        end = limits.SEGMENT_BYTES_MAX
        try:
            for row in scan(self._disk, path):
                if row.header is None or row.error:
                    # If the next segment continues at this offset, the bad bytes are left from a
                    # failed write, and no record is lost. Its hash chain proves this.
                    is_left_over = next_base == self._expected
                    kind = TORN if is_left_over else self._kind(self._expected)
                    self._problem(kind, path, row.position, self._expected, row.error)
                    self._chain = self._chain if is_left_over else None
                    end = row.position
                    break
                starts[row.position] = row.header.base_offset
                self._batch(path, row.position, row.header)
        except FileNotFoundError:  # a running broker has deleted or compacted it
            self._chain = self._expected = None
            return
        if base in self._indexes:
            self._index(base, starts, end)

    def _batch(self, path: str, position: int, header: BatchHeader) -> None:
        report = self.report
        if header.base_offset != self._expected:
            self._problem(
                self._kind(header.base_offset),
                path,
                position,
                self._expected or 0,
                f"base offset {header.base_offset}, expected {self._expected}",
            )
        elif self._chain is not None and not verify_chain(header, previous_chain=self._chain):
            self._problem(
                self._kind(header.base_offset),
                path,
                position,
                header.base_offset,
                "the hash chain does not match the previous batch",
            )
        report.batches += 1
        report.records += header.record_count
        report.size_bytes += header.length
        self._chain, self._expected = header.chain, header.next_offset

    def _index(self, base: Offset, starts: dict[int, Offset], end: int) -> None:
        """Compare the index with the batches of the segment, which was read up to ``end``."""
        index = self._indexes[base]
        for offset, position in zip(index.offsets, index.positions, strict=True):
            if position < end and starts.get(position) != offset:
                message = f"no batch with offset {offset} starts at byte {position} of the segment"
                path = f"{self.report.directory}/{file_name(base, INDEX_SUFFIX)}"
                self._problem(INDEX, path, position, offset, message)
                return

    def _kind(self, offset: Offset) -> str:
        durable = self.report.durable_end_offset
        return DAMAGE if offset < durable > self.report.log_start_offset else TORN

    def _problem(self, kind: str, path: str, position: int, offset: Offset, message: str) -> None:
        self.report.problems.append(Problem(kind, path, position, offset, message))
