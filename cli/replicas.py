"""Whether the stored copies of a partition are the same, read from the disks of stopped brokers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from raftlog.disk import Disk
from raftlog.errors import DataDirectoryError
from raftlog.storage import inspect
from raftlog.types import Offset


@dataclass(frozen=True)
class Copy:
    """The batches of one replica up to an offset. ``chain``: the last one's chain value.

    ``problem``: why it does not go so far, or is not sound; empty if it does and is.
    """

    broker: int
    end: Offset
    bytes: int
    sha256: str
    chain: str
    problem: str = ""


@dataclass(frozen=True)
class Comparison:
    copies: tuple[Copy, ...]

    @property
    def identical(self) -> bool:
        """Every copy is sound and holds the same bytes, up to the same offset."""
        contents = {(copy.end, copy.bytes, copy.sha256, copy.chain) for copy in self.copies}
        return len(contents) == 1 and not any(copy.problem for copy in self.copies)


def compare(disk: Disk, data_dirs: Mapping[int, str], end: Offset) -> Comparison:
    """Compare the one partition below each directory, by broker id, in the offsets below ``end``.

    Every byte is read: headers, values, CRCs and the chain that each batch has to continue.
    """
    return Comparison(tuple(_read(disk, broker, path, end) for broker, path in data_dirs.items()))


def _read(disk: Disk, broker: int, data_dir: str, end: Offset) -> Copy:
    digest = hashlib.sha256()
    reached, size, chain, problem = 0, 0, "", ""
    try:
        (report,) = inspect.verify(disk, data_dir)
        problem = "".join(found.message for found in report.problems[:1] if report.is_damaged)
        for row in inspect.dump(disk, report.directory):
            if row.header is None or row.error or row.header.base_offset >= end:
                break
            digest.update(row.data)
            size += len(row.data)
            reached, chain = row.header.next_offset, f"{row.header.chain:016x}"
    except (DataDirectoryError, OSError) as error:
        problem = str(error)
    if reached < end and not problem:
        problem = f"it ends at offset {reached}, not at {end}"
    return Copy(broker, reached, size, digest.hexdigest(), chain, problem)
