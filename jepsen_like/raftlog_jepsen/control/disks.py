"""Disks for fault injection: an ext4 file system in a file, on a loop device.

Data that was written but not synced is in the memory of the file system. After a shutdown
(``FS_IOC_GOINGDOWN``, which XFS and ext4 provide for tests) the file system writes no data: at the
next mount, its content is that after a power cut. Periodic writeback is off for the complete
machine while such a disk exists. Requires Linux and root.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import IO, Any, Final, Literal, TypeAlias, get_args

from raftlog.consensus import journal
from raftlog.disk import OsDisk
from raftlog.errors import DataDirectoryError, RaftlogError
from raftlog.storage import inspect, state_files
from raftlog.storage.checkpoint import SLOT_BYTES, SLOTS, CheckpointFile
from raftlog.storage.opening import read_index
from raftlog.storage.quarantine import is_quarantine
from raftlog.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    base_offsets,
    file_name,
)
from raftlog.storage.store import JOURNAL_NAME
from raftlog.testing.cluster import POLL_INTERVAL_S, wait_until

SIZE_BYTES: Final = 2 << 30  # sparse: unwritten parts need no space
WRITEBACK: Final = Path("/proc/sys/vm/dirty_writeback_centisecs")
WRITEBACK_DEFAULT: Final = "500"  # default of the kernel
WRITEBACK_LOCK: Final = Path("/run/raftlog-writeback")
COMMANDS: Final = ("mkfs.ext4", "e2fsck", "mount", "umount", "nsenter")
FORMAT: Final = ("-F", "-b", "4096", "-m", "0", "-E", "lazy_itable_init=1")  # -m 0: no root reserve
# No periodic commits, and none when a file replaces another, so that unsynced data is lost.
MOUNT_OPTIONS: Final = "loop,commit=3600,noauto_da_alloc,noinit_itable,errors=remount-ro"
RELEASE_TIMEOUT_S: Final = 60.0  # long, because the machine can be busy
GOING_DOWN: Final = 0x8004587D  # FS_IOC_GOINGDOWN, <linux/fs.h>
LOG_FLUSH: Final = 1
NO_LOG_FLUSH: Final = 2
CHECK_FAILED: Final = 4  # status of e2fsck: errors remain; lower values report repairs
MARK: Final = b"never synced data" * 1_000
MARK_ROOM: Final = 20_480  # bytes of the blocks that ``MARK`` occupies
BALLAST: Final = "ballast"
PROBE: Final = "probe"

Journal: TypeAlias = Literal["lost", "kept"]


class LoopDiskError(OSError):
    """A command that creates, mounts or checks a disk failed; contains its output."""


@functools.cache
def why_not() -> str:
    """Return why disk faults cannot be injected on this machine; empty if they can.

    Tests it once with a small disk.
    """
    if sys.platform != "linux":
        return "requires Linux"
    if os.geteuid() != 0:
        return "requires root, to mount file systems"
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    if missing:
        return f"no {', '.join(missing)}"
    if not os.access(WRITEBACK, os.W_OK):
        return f"{WRITEBACK} cannot be written"
    with tempfile.TemporaryDirectory(prefix="raftlog-disk-") as folder:
        try:
            with LoopDisk(Path(folder), "trial", 16 << 20) as disk:
                disk.mark()
                disk.cut_power()
                return "" if not disk.marked() else "a shut down file system lost no data"
        except OSError as error:
            return f"cannot mount a file system from a file: {error}"


class Writeback:
    """Turns off periodic writeback while any process of the machine is in its ``with`` block.

    The last process that leaves its block restores the setting that the first process found. If a
    process was killed in its block, the next process that leaves as the last restores the setting:
    the value in the file ``lock``, or the kernel's default. Memory pressure and ``sync`` still
    write data back. An object must not be in two blocks at once.
    """

    def __init__(self, *, value: Path = WRITEBACK, lock: Path = WRITEBACK_LOCK) -> None:
        self._value = value
        self._path = lock
        self._hold: IO[str] | None = None

    def __enter__(self) -> Writeback:
        assert self._hold is None, "the lock is already held"
        with self._gate():
            hold = self._path.open("a+", encoding="ascii")
            try:
                if _is_alone(hold):
                    self._note(hold)
                self._value.write_text("0")
                fcntl.flock(hold, fcntl.LOCK_SH)
            except BaseException:
                hold.close()
                raise
            self._hold = hold
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._hold is not None
        with self._gate(), self._hold as hold:
            self._hold = None
            if _is_alone(hold):
                self._value.write_text(_noted(hold))
                hold.truncate(0)

    def _note(self, hold: IO[str]) -> None:
        """Store the setting to restore, before it is changed."""
        found = self._value.read_text().strip()
        normal = found if found != "0" else _noted(hold)
        hold.truncate(0)
        hold.write(normal)
        hold.flush()

    @contextlib.contextmanager
    def _gate(self) -> Iterator[None]:
        """Let one process at a time enter or leave: ``flock`` does not convert a lock
        atomically."""
        with self._path.with_name(f"{self._path.name}.gate").open("w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield


def _is_alone(hold: IO[str]) -> bool:
    """Return whether no other process holds the lock. Releases the own shared lock if one does."""
    try:
        fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _noted(hold: IO[str]) -> str:
    hold.seek(0)
    noted = hold.read().strip()
    return noted if noted.isdecimal() and noted != "0" else WRITEBACK_DEFAULT


class LoopDisk:
    """A new, empty disk of ``size_bytes``, mounted at ``mount_point``.

    The mount point and the image file are in ``directory``. The owner must call ``close``; a
    ``with`` block does. Until then, periodic writeback is off (``Writeback``). All methods raise
    ``LoopDiskError`` or another ``OSError``.
    """

    def __init__(self, directory: Path, name: str, size_bytes: int = SIZE_BYTES) -> None:
        self.name = name
        self.mount_point = directory.resolve() / name
        self.image = directory.resolve() / f"{name}.img"
        self._marks = 0
        self._stack = contextlib.ExitStack()
        self._backing: Path | None = None  # sysfs file with the image path of the loop device
        self.mount_point.mkdir(parents=True)
        try:
            self._stack.enter_context(Writeback())
            with self.image.open("xb") as file:
                file.truncate(size_bytes)
            _run("mkfs.ext4", "-q", *FORMAT, self.image)
            self.mount()
            (self.mount_point / "lost+found").rmdir()
            self._sync()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LoopDisk:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- mounting

    @property
    def mounted(self) -> bool:
        return self._backing is not None

    def mount(self) -> None:
        """Mount the disk. Does nothing if it is mounted."""
        if not self.mounted:
            _run("mount", "-o", MOUNT_OPTIONS, self.image, self.mount_point)
            self._backing = Path(f"/sys/block/{_device_at(self.mount_point)}/loop/backing_file")

    def unmount(self) -> None:
        """Unmount the disk. Does nothing if it is not mounted. Waits up to 60 s for open files."""
        if self._backing is None:
            return
        deadline = time.monotonic() + RELEASE_TIMEOUT_S
        while True:
            try:
                _run("umount", self.mount_point)
                break
            except LoopDiskError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_INTERVAL_S)  # a killed process may still be ending
        # If the image is still mounted elsewhere, a new mount would use the same file system,
        # including its unsynced data in memory.
        backing, self._backing = self._backing, None
        wait_until(
            lambda: not self._is_made_of(backing) or self._unmount_copies(),
            timeout_s=RELEASE_TIMEOUT_S,
            what=f"no other mount of {self.image} on this machine",
        )

    def close(self, *, keep: bool = False) -> None:
        """Unmount the disk. Removes the image and the mount point unless ``keep``. Can be called
        twice."""
        with self._stack:
            self.unmount()
        if not keep:
            self.image.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                self.mount_point.rmdir()

    def remount(self) -> None:
        """Repair the file system after errors and mount it again. No process must have files
        open."""
        self.unmount()
        _run("e2fsck", "-f", "-y", self.image, failed=CHECK_FAILED)
        self.mount()

    # -- power

    def cut_power(self, *, journal: Journal = "lost") -> None:
        """Discard all data that was not synced. No process must have files open.

        ``journal``: effect on the journal of the file system. ``lost``: unsynced data, names and
        sizes are missing. ``kept``: the journal was committed immediately before, so that names and
        sizes exist, but not the data. Files can be empty, contain zeros, or have a size in between.
        """
        self._go_down(NO_LOG_FLUSH if journal == "lost" else LOG_FLUSH)
        self.unmount()
        self.mount()

    def mark(self) -> None:
        """Write a file that is not synced."""
        self._marks += 1
        self._check_mounted()
        self._mark.write_bytes(MARK)

    def marked(self) -> bool:
        """Return whether the data of the last ``mark`` exists. It must not after a power cut."""
        return self._mark.exists() and self._mark.read_bytes() == MARK

    @property
    def _mark(self) -> Path:
        return self.mount_point / f"mark-{self._marks}"

    def dirty_bytes(self) -> int:
        """Return the written bytes without allocated disk blocks, in complete blocks.

        Includes ``MARK_ROOM`` bytes for each mark that was not synced.
        """
        path = Path(f"/sys/fs/ext4/{self._device()}/delayed_allocation_blocks")
        return int(path.read_text()) * os.statvfs(self.mount_point).f_frsize

    # -- disk space

    def free_bytes(self) -> int:
        """Return the free disk space, in bytes."""
        self._check_mounted()
        status = os.statvfs(self.mount_point)
        return status.f_bavail * status.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Fill the disk until ``leave_bytes`` are free, accurate to 4 KiB. Repeated calls also use
        space that was released since."""
        self._check_mounted()
        block = os.statvfs(self.mount_point).f_frsize
        descriptor = os.open(self.mount_point / BALLAST, os.O_RDWR | os.O_CREAT)
        try:
            step = self.free_bytes()
            while (step := min(step, self.free_bytes() - leave_bytes) // block * block) > 0:
                try:
                    os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2  # the metadata of the file system also needs space
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free(self) -> None:
        """Release the space that ``fill`` has used, durably. Does nothing if it was not called."""
        with contextlib.suppress(FileNotFoundError):
            (self.mount_point / BALLAST).unlink()
            self._sync()

    # -- errors

    def trigger_error(self) -> None:
        """Make the file system detect an error. It is then read-only until ``remount``, also for
        open files."""
        Path(f"/sys/fs/ext4/{self._device()}/trigger_fs_error").write_text("1")

    def shutdown(self) -> None:
        """Make all reads and writes fail until ``remount``, also for open files (EIO). Unsynced
        data is lost."""
        self._go_down(NO_LOG_FLUSH)

    def probe(self, size_bytes: int = 4096) -> str:
        """Write and sync a file of ``size_bytes``, then remove it. Returns an empty text on
        success, else the name of the error, such as ENOSPC."""
        self._check_mounted()
        path = self.mount_point / PROBE
        try:
            with path.open("wb", buffering=0) as file:
                left = size_bytes
                while left > 0:
                    left -= file.write(bytes(min(left, 1 << 20)))
                os.fsync(file.fileno())
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, str(error))
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
        return ""

    # -- loop device

    def _device(self) -> str:
        """Return the kernel's name of the mounted device, such as loop0."""
        self._check_mounted()
        return _device_at(self.mount_point)

    def _check_mounted(self) -> None:
        """Raise if the disk is not mounted: the directory would be on the machine's own disk."""
        if not self.mounted:
            raise LoopDiskError(f"{self.image} is not mounted")

    def _is_made_of(self, backing: Path) -> bool:
        try:
            return backing.read_text().strip() == str(self.image)
        except OSError:  # the device has no backing file
            return False

    def _unmount_copies(self) -> bool:
        """Unmount the disk in the mount namespaces of other runs. A new namespace copies all
        mounts.

        Returns False: the caller must check again whether the device is free.
        """
        target = str(self.mount_point).replace(" ", r"\040")  # as the kernel writes it
        for mounts in Path("/proc").glob("[0-9]*/task/[0-9]*/mounts"):
            with contextlib.suppress(OSError):  # the thread has ended
                if f" {target} " in mounts.read_text():
                    enter = ("nsenter", "--mount", "--target", mounts.parent.name)
                    _run(*enter, "umount", "-l", self.mount_point)
        return False

    def _go_down(self, how: int) -> None:
        self._on_root(lambda root: fcntl.ioctl(root, GOING_DOWN, struct.pack("I", how)))

    def _sync(self) -> None:
        self._on_root(os.fsync)

    def _on_root(self, act: Callable[[int], object]) -> None:
        self._check_mounted()
        root = os.open(self.mount_point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            act(root)
        finally:
            os.close(root)


def _device_at(mount_point: Path) -> str:
    device = mount_point.stat().st_dev
    return Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name


def _run(*command: str | Path, failed: int = 1) -> None:
    """Run a command. ``failed``: the lowest status that is an error. Raises ``LoopDiskError``."""
    done = subprocess.run(
        [str(part) for part in command], check=False, capture_output=True, text=True
    )
    if not 0 <= done.returncode < failed:
        words = " ".join((done.stderr or done.stdout).split())
        raise LoopDiskError(f"{command[0]} ended with status {done.returncode}: {words}")


# -- files -----------------------------------------------------------------------------------------
#
# Files of a broker, accessed by the harness: list, verify, and change them.
#
# Changes are made in place and synced, like changes by the disk. This module does not know broker
# processes: the caller is responsible for brokers that use the files.


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
        return str(checks.get(place.region, lambda: state_files.read(disk, path) and "")() or "")
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
        return journal.read(file).torn
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
        state = state_files.read(OsDisk(), str(data_dir / "identity"))
    except (OSError, RaftlogError):
        return ""
    return "" if state is None else str(state["directory_id"])
