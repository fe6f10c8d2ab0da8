"""Files of a broker, accessed by the harness: list, verify, and change them.

Changes are made in place and synced, like changes by the disk. This module does not know broker
processes: the caller is responsible for brokers that use the files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, TypeAlias, get_args

from raftlog.consensus import journal_file
from raftlog.disk import OsDisk
from raftlog.errors import DataDirectoryError, RaftlogError
from raftlog.storage import inspect, state_file
from raftlog.storage.checkpoint import SLOT_BYTES, SLOTS, CheckpointFile
from raftlog.storage.log_files import SNAPSHOT_SUFFIX
from raftlog.storage.quarantine import is_quarantine
from raftlog.storage.recovery import read_index
from raftlog.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, base_offsets, file_name
from raftlog.storage.store import JOURNAL_NAME

# closed: a segment that is not written again; active: the last segment, below the durable end.
Region: TypeAlias = Literal[
    "closed", "active", "index", "epochs", "producers", "checkpoint", "journal", "identity",
    "catalog",
]  # fmt: skip
REGIONS: Final[tuple[Region, ...]] = get_args(Region)
Mode: TypeAlias = Literal["flip", "copy", "zero"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
SLOT_USED_BYTES: Final = 64  # used bytes of each checkpoint slot; the other bytes are reserved
CHUNK_BYTES: Final = 512  # a disk sector
GARBAGE_BYTES: Final = 300
SHOWN_BYTES: Final = 32  # recorded bytes of the former and of the new content


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes ``start`` to ``end`` of a file, which are in use.

    ``indexed``: end of the bytes that a valid index covers; 0 without an index.
    """

    path: Path
    region: Region
    start: int
    end: int
    indexed: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a file: at ``position``, ``after`` replaced ``before``."""

    place: Place
    mode: str
    position: int
    before: bytes
    after: bytes

    def to_history(self) -> dict[str, Any]:
        """Return the change for the history."""
        return {
            "file": str(self.place.path),
            "region": self.place.region,
            "mode": self.mode,
            "position": self.position,
            "bytes": max(len(self.before), len(self.after)),
            "before": self.before[:SHOWN_BYTES].hex(),
            "after": self.after[:SHOWN_BYTES].hex(),
            "is_indexed": self.position < self.place.indexed,
        }


# -- finding files


def partitions(data_dir: Path) -> list[Path]:
    """Return the directories of all existing partitions that are not quarantined, sorted."""
    try:
        found = inspect.partition_directories(OsDisk(), str(data_dir / "topics"))
    except DataDirectoryError:
        return []
    return sorted(map(Path, found))


def quarantines(data_dir: Path) -> set[Path]:
    """Return the directories of quarantined copies."""
    return {path for path in (data_dir / "topics").rglob("*") if is_quarantine(path.name)}


def places(data_dir: Path, region: Region, *, partition: Path | None = None) -> list[Place]:
    """Return the used bytes of the files of a region, sorted: of one partition, or of all.

    Raises ``OSError`` if a running broker removes a file at the same time.
    """
    if region in {"journal", "identity", "catalog"}:
        name = JOURNAL_NAME if region == "journal" else region
        paths = [data_dir / name] if partition is None else []
        found = [Place(path, region, 0, path.stat().st_size) for path in paths if path.exists()]
    else:
        chosen = partitions(data_dir) if partition is None else [partition]
        found = [place for each in chosen for place in _of_partition(each, region)]
    return [place for place in found if place.end > place.start]


def _of_partition(directory: Path, region: Region) -> Iterator[Place]:
    names = sorted(os.listdir(directory))
    bases = base_offsets(names, LOG_SUFFIX)
    if region == "closed":
        for base in bases[:-1]:
            path = directory / file_name(base, LOG_SUFFIX)
            yield Place(path, region, 0, path.stat().st_size, _indexed_bytes(directory, base))
    elif region == "active" and bases:
        path = directory / file_name(bases[-1], LOG_SUFFIX)
        yield Place(path, region, 0, _synced_bytes(path), _indexed_bytes(directory, bases[-1]))
    elif region == "checkpoint" and "checkpoint" in names:
        path = directory / "checkpoint"
        for slot in range(SLOTS):
            start = slot * SLOT_BYTES
            if start + SLOT_USED_BYTES <= path.stat().st_size:
                yield Place(path, region, start, start + SLOT_USED_BYTES)
    else:
        for name in names:
            if _region_of(name) == region:
                yield Place(directory / name, region, 0, (directory / name).stat().st_size)


def _region_of(name: str) -> str:
    suffixes = {INDEX_SUFFIX: "index", SNAPSHOT_SUFFIX: "producers"}
    return suffixes.get(Path(name).suffix, name)


def _indexed_bytes(directory: Path, base: int) -> int:
    found = read_index(OsDisk(), str(directory), base)
    return 0 if found is None else found[1].log_bytes


def _synced_bytes(segment: Path) -> int:
    """Return the end of the batches of a segment that are below the durable end offset."""
    checkpoint = CheckpointFile(OsDisk(), str(segment.parent / "checkpoint"))
    checkpoint.load()
    end = 0
    for row in inspect.scan(OsDisk(), str(segment)):
        durable = checkpoint.latest.durable_end_offset
        if row.error or row.header is None or row.header.next_offset > durable:
            break
        end = row.position + row.header.length
    return end


def log_ends(data_dir: Path) -> dict[str, tuple[int, int]]:
    """Return the high watermark and the log end offset of each partition, by its directory.

    The directory is relative to ``data_dir``. If the broker runs, both offsets can be too low.
    """
    found = {}
    for directory in partitions(data_dir):
        checkpoint = CheckpointFile(OsDisk(), str(directory / "checkpoint"))
        checkpoint.load()
        end = checkpoint.latest.log_start_offset
        for base in base_offsets(sorted(os.listdir(directory)), LOG_SUFFIX)[-1:]:
            end = max(end, base)
            for row in inspect.scan(OsDisk(), str(directory / file_name(base, LOG_SUFFIX))):
                if row.header is not None and not row.error:
                    end = row.header.next_offset
        found[str(directory.relative_to(data_dir))] = (checkpoint.latest.high_watermark, end)
    return found


# -- verifying files


def trouble(place: Place) -> str:
    """Return the problem of a file, from the checks at a broker's start and `raftlog log verify`.

    Empty if the file is valid. Unsynced data of a running broker is not checked.
    """
    path, disk = str(place.path), OsDisk()
    checks: Mapping[str, Callable[[], object]] = {
        "journal": lambda: _read_journal(place.path),
        "checkpoint": lambda: CheckpointFile(disk, path).load(),
    }
    try:
        if place.region in {"closed", "active", "index"}:
            return _verified(place)
        return str(checks.get(place.region, lambda: state_file.read(disk, path) and "")() or "")
    except (OSError, RaftlogError) as error:
        return str(error)


def _verified(place: Place) -> str:
    """Return the problem of a partition's file, also if it is missing."""
    directory = str(place.path.parent)
    wanted = inspect.INDEX if place.region == "index" else inspect.DAMAGE
    for report in inspect.verify(OsDisk(), directory):
        for problem in report.problems:
            if problem.kind == wanted and problem.path in {str(place.path), directory}:
                return problem.message
    return ""


def _read_journal(path: Path) -> str:
    file = OsDisk().open(str(path), write=False)
    try:
        return journal_file.read(file).torn
    finally:
        file.close()


# -- changing files


def corrupt(place: Place, mode: Mode, random: Random, *, bits: int = 1) -> Change:
    """Change a chunk within a place: flip ``bits`` of its bits, or replace it by another chunk of
    the file or by zeros. Flips bits instead if the replacement is equal. Raises ``OSError``.
    """
    data = place.path.read_bytes()[: place.end]
    position = random.randrange(place.start, len(data))
    before = data[position : min(position + CHUNK_BYTES, len(data))]
    after = before
    if mode == "copy":
        source = random.randrange(0, len(data))
        after = (data[source : source + len(before)] + before)[: len(before)]
    elif mode == "zero":
        after = bytes(len(before))
    if after == before:
        mode = "flip"
        after = _flipped(before, random, bits)
    _write(place.path, position, after)
    pairs = enumerate(zip(before, after, strict=True))
    differing = [number for number, (one, other) in pairs if one != other]
    first, last = differing[0], differing[-1] + 1
    return Change(place, mode, position + first, before[first:last], after[first:last])


def _flipped(data: bytes, random: Random, bits: int) -> bytes:
    flipped = bytearray(data)
    for bit in random.sample(range(8 * len(data)), min(bits, 8 * len(data))):
        flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def cut(place: Place, random: Random) -> Change:
    """Truncate a file at a random position within a place. Raises ``OSError``."""
    position = random.randrange(place.start, place.end)
    with place.path.open("r+b") as file:
        file.seek(position)
        before = file.read()
        file.truncate(position)
        os.fsync(file.fileno())
    return Change(place, "cut", position, before, b"")


def tear(place: Place, random: Random) -> Change:
    """Append a torn write. The broker must be down. Raises ``OSError``."""
    position = place.path.stat().st_size
    garbage = place.path.read_bytes()[:GARBAGE_BYTES] if place.end else b""
    garbage = garbage[: random.randrange(1, len(garbage) + 1)] if garbage else random.randbytes(9)
    _write(place.path, position, garbage)
    return Change(place, "tear", position, b"", garbage)


def put_back(place: Place, old: bytes) -> Change:
    """Replace the content of a file by earlier content. Raises ``OSError``."""
    before = place.path.read_bytes()
    pairs = enumerate(zip(before, old, strict=False))
    shorter = min(len(before), len(old))
    same = next((number for number, (one, other) in pairs if one != other), shorter)
    with place.path.open("r+b") as file:
        file.write(old)
        file.truncate(len(old))
        os.fsync(file.fileno())
    return Change(place, "put back", same, before[same:], old[same:])


def _write(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


# -- directories


def remove(path: Path) -> None:
    """Remove a file, or a directory and its content, also while a broker writes there."""
    while path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)


def empty(directory: Path) -> int:
    """Remove the content of a directory, but not the directory, which can be a mount point.

    Returns the number of removed files.
    """
    count = 0
    for path in list(directory.iterdir()) if directory.exists() else ():
        if path.is_dir() and not path.is_symlink():
            count += sum(each.is_file() for each in path.rglob("*"))
            shutil.rmtree(path)
        else:
            count += 1
            path.unlink()
    return count


def move_contents(source: Path, target: Path) -> None:
    """Move the content of one directory into another, which can be on another file system."""
    target.mkdir(parents=True, exist_ok=True)
    for path in list(source.iterdir()):
        shutil.move(path, target / path.name)


def exchange(one: Path, other: Path, aside: Path) -> None:
    """Exchange the contents of two directories through a third directory, then remove it."""
    move_contents(one, aside)
    move_contents(other, one)
    move_contents(aside, other)
    aside.rmdir()
    for directory in (one, other):
        make_durable(directory)


def make_durable(directory: Path) -> None:
    """Sync the file system of a directory, so that a later power cut does not undo changes of the
    harness."""
    if sys.platform == "linux":  # power cuts can be injected on Linux only
        command = ["sync", "--file-system", str(directory)]
        subprocess.run(command, check=True, capture_output=True)


def directory_id(data_dir: Path) -> str:
    """Return the id of a data directory; empty if it has none or it cannot be read."""
    try:
        state = state_file.read(OsDisk(), str(data_dir / "identity"))
    except (OSError, RaftlogError):
        return ""
    return "" if state is None else str(state["directory_id"])
