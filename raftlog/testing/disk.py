"""A disk in memory that can lose, tear and reject writes as a real one. No real time, no files.

``crash`` ends the process: written data remains. ``power_cut`` undoes what was not synced: none of
it remains, or the first part, or any part, by sectors and by names (``page_cache``). The part that
remains is drawn from the disk's ``random.Random``, and so is the written part of a failing write.
Everything else is deterministic. ``faults`` are data: a list, tried in turn.

One simulated process uses a disk at a time. Handles and locks from before its end are invalid.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from random import Random
from threading import Lock
from typing import Final, NamedTuple, TypeAlias

from raftlog.disk import TEMPORARY_SUFFIX
from raftlog.types import Buffer

FREE_BYTES: Final = 1 << 40  # free space of a disk without a capacity
FOREVER: Final = -1
# Operations that change the stored state. Others that can fail: "open", "read" and "lock".
CHANGES: Final = frozenset(
    ("create", "write", "truncate", "sync", "make_dir", "rename", "remove", "sync_dir")
)


class Stopped(BaseException):
    """The process ended in the middle of an operation; later operations raise this, too."""


@dataclass(slots=True)
class Fault:
    """A fault of operations: ``skip`` of them succeed, then ``times`` of them fail.

    ``path``: shell pattern of the affected paths.
    """

    operations: Collection[str] = CHANGES
    error: int | None = errno.EIO  # None: the process ends, see ``Stopped``
    path: str = "*"
    skip: int = 0
    times: int = 1
    forgets: bool = False  # a failed sync discards the unsynced changes, as on ext4

    def strikes(self, operation: str, path: str) -> bool:
        if not self.times or operation not in self.operations or not fnmatchcase(path, self.path):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


def _os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


class SimFile:
    """An open file. Like ``OsFile``, it assumes that no other process changes the size."""

    def __init__(self, disk: SimDisk, path: str, node: CachedFile) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._process: int | None = disk.process
        self._size = len(node.data)

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return self._size

    def is_in_place(self) -> bool:
        return self._disk.leads_to(self._path, self._node)

    def _strike(self, operation: str) -> Fault | None:
        fault = self._disk.strike(operation, self._path)
        if self._process != self._disk.process:
            raise _os_error(errno.EBADF, self._path)
        return fault

    def _check(self, operation: str) -> None:
        fault = self._strike(operation)
        if fault is not None:
            raise self._disk.failure(fault, self._path)

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._write(b"".join(buffers), self._size)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._write(bytes(data), position)

    def _write(self, data: bytes, position: int) -> None:
        """Write ``data``. A failed write has written some of it; on a full disk, what fits."""
        fault = self._strike("write")
        written = len(data)
        if fault is not None:
            written = self._disk.random.randrange(max(written, 1))
        elif (lacking := self._lacking(position + written)) > 0:
            fault, written = Fault(error=errno.ENOSPC), max(0, written - lacking)
        if written:
            self._node.change(Change(position, data[:written]))
        if fault is not None:
            raise self._disk.failure(fault, self._path)
        self._size = max(self._size, position + written)

    def _lacking(self, end: int) -> int:
        """Return the missing disk space for a file that ends at ``end``, in bytes.

        Overwriting and writing to reserved space need none.
        """
        growth = end - self._node.allocated_bytes
        return growth - self._disk.free_bytes(self._path) if growth > 0 else 0

    def pread(self, size: int, position: int) -> bytes:
        self._check("read")
        if not self._node.can_read(position, position + size):
            raise _os_error(errno.EIO, self._path)
        return bytes(self._node.data[position : position + size])

    def truncate(self, size: int) -> None:
        self._check("truncate")
        if size < len(self._node.data):
            self._node.reserved_end = 0
        self._node.change(Change(size, None))
        self._size = size

    def sync(self) -> None:
        fault = self._strike("sync")
        if fault is None:
            self._node.sync()
            return
        if fault.forgets:
            self._node.pending.clear()
        raise self._disk.failure(fault, self._path)

    def close(self) -> None:
        self._process = None


class SimLock:
    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks  # of this process; the next one has separate locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)


class SimDisk:
    """A ``raftlog.disk.Disk`` in memory; see the module."""

    def __init__(self, random: Random, *, capacity_bytes: int | None = None) -> None:
        self.random = random
        self.capacity_bytes = capacity_bytes  # of all files together; can change at any time
        self.faults: list[Fault] = []
        self.mounts: set[str] = set()  # paths at which a file system is mounted
        self.changes = 0  # operations of ``CHANGES`` so far; a process can end at each
        # Called with each operation and its path before it starts; may delay it, or raise.
        self.before: Callable[[str, str], None] | None = None
        self.make_mutex: Callable[[], AbstractContextManager[object]] = Lock
        self.process = 0
        self._stopped = False
        self._root = CachedDirectory()
        self._inodes = 0
        self._locks: set[str] = set()

    # -- faults ------------------------------------------------------------------------------------

    def crash(self) -> None:
        """End the process. Written data remains, synced or not."""
        self.process += 1
        self._stopped = False
        self._locks = set()

    def power_cut(self) -> None:
        """End the process, and discard a random part of the unsynced changes."""
        self.crash()
        self._root.power_cut(self.random)

    def flip_bit(self, path: str, bit: int) -> None:
        """Change one bit of a stored file (bit rot)."""
        node = self._file(path)
        for image in (node.data, node.durable):
            if bit // 8 < len(image):
                image[bit // 8] ^= 1 << bit % 8

    def lose_write(self, path: str, position: int, length: int) -> None:
        """Lose a synced write: these bytes are 0 after the next power cut."""
        durable = self._file(path).durable
        end = min(position + length, len(durable))
        durable[position:end] = bytes(max(0, end - position))

    def misdirect_write(self, path: str, position: int, length: int, to: int) -> None:
        """Store a synced write at ``to`` instead; both places change with the next power cut."""
        durable = self._file(path).durable
        data = bytes(durable[position : position + length])
        self.lose_write(path, position, length)
        durable[to : to + len(data)] = data

    def spoil(self, path: str, position: int, length: int) -> None:
        """Fail all reads of these bytes from now on (EIO), until the file is removed."""
        self._file(path).unreadable = range(position, position + length)

    def cut_off(self, path: str, size: int) -> None:
        """Remove a file's bytes from ``size`` on, synced or not."""
        node = self._file(path)
        node.sync()
        del node.data[size:], node.durable[size:]

    def lose(self, path: str) -> None:
        """Remove a file, or a directory with its content, without an operation of the process.

        An open file remains usable without its name, as on a real disk.
        """
        directory = self._directory(os.path.dirname(path))
        directory.sync()
        for names in (directory.names, directory.durable):
            names.pop(os.path.basename(path), None)

    def image(self, path: str) -> Node:
        """Return a copy of the stored file or directory, for ``put_back``."""
        node = self._find(path)
        if node is None:
            raise _os_error(errno.ENOENT, path)
        return node.copied()

    def put_back(self, path: str, image: Node) -> None:
        """Replace the stored file or directory with ``image``, durably."""
        directory = self._directory(os.path.dirname(path))
        directory.sync()
        copy = image.copied()
        for names in (directory.names, directory.durable):
            names[os.path.basename(path)] = copy

    def durable_bytes(self, path: str) -> bytes | None:
        """Return the bytes of a file after any power cut; None if its name may be lost."""
        node: Node | None = self._root
        for name in _parts(path):
            node = node.durable.get(name) if isinstance(node, CachedDirectory) else None
        return bytes(node.durable) if isinstance(node, CachedFile) else None

    def strike(self, operation: str, path: str) -> Fault | None:
        """Count an operation, and return the fault that affects it."""
        if self.before is not None:
            self.before(operation, path)
        if self._stopped:
            raise Stopped
        self.changes += operation in CHANGES
        return next((fault for fault in self.faults if fault.strikes(operation, path)), None)

    def failure(self, fault: Fault, path: str) -> BaseException:
        if fault.error is not None:
            return _os_error(fault.error, path)
        self._stopped = True
        return Stopped()

    def _check(self, operation: str, path: str) -> None:
        fault = self.strike(operation, path)
        if fault is not None:
            raise self.failure(fault, path)

    # -- names -------------------------------------------------------------------------------------

    def _find(self, path: str) -> Node | None:
        node: Node | None = self._root
        for name in _parts(path):
            node = node.names.get(name) if isinstance(node, CachedDirectory) else None
        return node

    def _directory(self, path: str) -> CachedDirectory:
        node = self._find(path)
        if not isinstance(node, CachedDirectory):
            raise _os_error(errno.ENOENT if node is None else errno.ENOTDIR, path)
        return node

    def _file(self, path: str) -> CachedFile:
        node = self._find(path)
        if not isinstance(node, CachedFile):
            raise _os_error(errno.ENOENT if node is None else errno.EISDIR, path)
        return node

    def open(
        self,
        path: str,
        *,
        create: bool = False,
        write: bool = True,
        pooled: bool = False,  # noqa: ARG002 - a simulated process has any number of descriptors
    ) -> SimFile:
        if create and self._find(path) is None:
            self._check("create", path)
            self._directory(os.path.dirname(path)).change({os.path.basename(path): CachedFile()})
        elif write:
            self._check("open", path)
        return SimFile(self, path, self._file(path))

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def inode(self, path: str) -> int:
        """See ``Disk.inode``."""
        node = self._file(path)
        if not node.inode:
            self._inodes += 1
            node.inode = self._inodes
        return node.inode

    def leads_to(self, path: str, node: Node) -> bool:
        """Return whether the path leads to this file, and not to another one."""
        return self._find(path) is node

    def list_dir(self, path: str) -> list[str]:
        node = self._find(path)
        return sorted(node.names) if isinstance(node, CachedDirectory) else []

    def make_dirs(self, path: str) -> None:
        if self._find(path) is None:
            parent = os.path.dirname(path)
            self.make_dirs(parent)
            self.make_dir(path)
            self.sync_dir(parent)
        self._directory(path)

    def make_dir(self, path: str) -> None:
        if self._find(path) is None:
            parent, name = os.path.split(path)
            self._check("make_dir", path)
            self._directory(parent).change({name: CachedDirectory()})
        self._directory(path)

    def rename(self, source: str, target: str) -> None:
        self._check("rename", source)
        (parent, name), (other, new_name) = os.path.split(source), os.path.split(target)
        assert parent == other, "renames between directories are not simulated"
        node = self._find(source)
        if node is None:
            raise _os_error(errno.ENOENT, source)
        self._directory(parent).change({name: None, new_name: node})

    def remove(self, path: str) -> None:
        self._check("remove", path)
        self._file(path)
        self._directory(os.path.dirname(path)).change({os.path.basename(path): None})

    def remove_tree(self, path: str) -> None:
        node = self._find(path)
        if isinstance(node, CachedDirectory):
            for name in sorted(node.names):
                self.remove_tree(f"{path}/{name}")
        if node is not None:
            self._check("remove", path)
            self._directory(os.path.dirname(path)).change({os.path.basename(path): None})

    def sync_dir(self, path: str) -> None:
        self._check("sync_dir", path)
        self._directory(path).sync()

    def read_file(self, path: str, *, bytes_max: int) -> bytes:
        self._check("read", path)
        file = self._file(path)
        data = bytes(file.data)
        if not file.can_read(0, len(data)):
            raise _os_error(errno.EIO, path)
        if len(data) > bytes_max:
            raise _os_error(errno.EFBIG, path)
        return data

    def write_atomic(self, path: str, data: bytes) -> None:
        file = self.open(path + TEMPORARY_SUFFIX, create=True)
        file.truncate(0)
        file.append([data])
        file.sync()
        self.rename(path + TEMPORARY_SUFFIX, path)
        self.sync_dir(os.path.dirname(path))

    def lock(self, path: str) -> SimLock:
        self._check("lock", path)
        if path in self._locks:
            raise _os_error(errno.EAGAIN, path)
        self.open(path, create=True)
        self._locks.add(path)
        return SimLock(self._locks, path)

    def mutex(self) -> AbstractContextManager[object]:
        return self.make_mutex()

    @property
    def used_bytes(self) -> int:
        """Size of all files, including the space that is reserved for them."""
        return sum(file.allocated_bytes for file in self._root.files())

    def make_private(self, path: str) -> None:
        """Do nothing: a simulated disk has no users."""

    def real_path(self, path: str) -> str:
        return path

    def dangling_link(self, path: str) -> str:  # noqa: ARG002 - there are no links here
        return ""

    def is_mount(self, path: str) -> bool:
        return path in self.mounts

    def free_bytes(self, path: str) -> int:  # noqa: ARG002 - one disk, one capacity
        if self.capacity_bytes is None:
            return FREE_BYTES
        return max(0, self.capacity_bytes - self.used_bytes)

    def total_bytes(self, path: str) -> int:  # noqa: ARG002 - one disk, one capacity
        return FREE_BYTES if self.capacity_bytes is None else self.capacity_bytes

    def has_surplus(self) -> bool:
        return False

    def close_surplus(self, path: str) -> None:
        """Do nothing: a simulated process has any number of descriptors."""

    def inodes(self, path: str) -> tuple[int, int]:  # noqa: ARG002 - no limit of files
        return -1, -1

    def open_files(self) -> tuple[int, int]:
        return -1, -1

    def reserve(self, path: str, size: int) -> None:
        """Reserve space for the file, until it is truncated or the power fails."""
        self._check("reserve", path)
        file = self._file(path)
        end = len(file.data) + size
        if end - file.allocated_bytes > self.free_bytes(path):
            raise _os_error(errno.ENOSPC, path)
        file.reserved_end = max(file.reserved_end, end)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]


# -- page cache ------------------------------------------------------------------------------------
#
# Files and directories with their unsynced changes, and the effect of a power cut on them.
#
# Part of the simulated disk. Pure except for the ``random.Random`` of a power cut. Does not know
# paths, handles or faults.


SECTOR_BYTES: Final = 512
# Unsynced changes that survive a power cut: none, the first ones, or any.
_SURVIVAL: Final = ("none", "prefix", "subset")
_SIZE: Final = -1  # marks the file's size, where other keys are sector numbers


class Change(NamedTuple):
    """A write of ``data`` at ``position``; without data, a change of the size to ``position``."""

    position: int
    data: bytes | None

    def apply(self, image: bytearray) -> range:
        """Apply the change to ``image``. Returns the sectors that have changed."""
        before = len(image)
        end = self.position + len(self.data or b"")
        image.extend(bytes(max(0, (self.position if self.data is None else end) - before)))
        if self.data is None:
            del image[self.position :]
            end = max(before, self.position)
        else:
            image[self.position : end] = self.data
        return range(min(before, self.position) // SECTOR_BYTES, -(-end // SECTOR_BYTES))


@dataclass(slots=True, eq=False)
class CachedFile:
    """A file. ``data``: its content for processes, ``durable`` with all of ``pending`` applied."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    reserved_end: int = 0  # space is allocated up to here; the file may be shorter
    unreadable: range = range(0)  # bytes that can no longer be read
    inode: int = 0  # assigned when it is asked for; a copy is another file

    @property
    def allocated_bytes(self) -> int:
        return max(len(self.data), self.reserved_end)

    def can_read(self, start: int, end: int) -> bool:
        return max(start, self.unreadable.start) >= min(end, self.unreadable.stop)

    def change(self, change: Change) -> None:
        change.apply(self.data)
        self.pending.append(change)

    def sync(self) -> None:
        pending, self.pending = self.pending, []
        for change in pending:
            change.apply(self.durable)

    def copied(self) -> CachedFile:
        """Return another file with the same bytes, all of them durable."""
        return CachedFile(bytearray(self.data), bytearray(self.data))

    def power_cut(self, random: Random) -> None:
        """Discard unsynced changes at random.

        Each sector, and the size, is left in its state after a random number of the changes.
        """
        total, how = len(self.pending), random.choice(_SURVIVAL)
        whole = random.randint(0, total) if how == "prefix" else 0
        drawn: dict[int, int] = {}

        def changes_seen(sector: int) -> int:
            if how == "subset" and sector not in drawn:
                drawn[sector] = random.randint(0, total)
            return drawn.get(sector, whole)

        image, size = bytearray(self.durable), len(self.durable)
        working = bytearray(self.durable)
        for number, change in enumerate(self.pending, start=1):
            sectors = change.apply(working)
            if how == "prefix" and number == whole + 1:  # a torn write: its first sectors
                torn = range(sectors.start, random.randint(sectors.start, sectors.stop))
                drawn |= dict.fromkeys((*torn, _SIZE) if torn else (), number)
            for sector in sectors:
                if number <= changes_seen(sector):
                    _copy_sector(working, image, sector)
            if number <= changes_seen(_SIZE):
                size = len(working)
        image.extend(bytes(max(0, size - len(image))))
        self.data, self.durable, self.pending = image[:size], image[:size], []
        self.reserved_end = 0


def _copy_sector(source: bytearray, target: bytearray, sector: int) -> None:
    start, end = sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES
    target.extend(bytes(max(0, end - len(target))))
    target[start:end] = source[start:end].ljust(SECTOR_BYTES, b"\0")


Node: TypeAlias = "CachedFile | CachedDirectory"


@dataclass(slots=True, eq=False)
class CachedDirectory:
    names: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[dict[str, Node | None]] = field(default_factory=list)

    def change(self, changes: dict[str, Node | None]) -> None:
        """Set the names of several nodes atomically; None removes a name."""
        self.pending.append(changes)
        _rename(self.names, changes)

    def sync(self) -> None:
        self.durable, self.pending = dict(self.names), []

    def power_cut(self, random: Random) -> None:
        total, how = len(self.pending), random.choice(_SURVIVAL)
        whole = random.randint(0, total) if how == "prefix" else 0
        for number, changes in enumerate(self.pending, start=1):
            if random.random() < 0.5 if how == "subset" else number <= whole:
                _rename(self.durable, changes)
        self.names, self.pending = dict(self.durable), []
        for _name, node in sorted(self.names.items()):
            node.power_cut(random)

    def copied(self) -> CachedDirectory:
        """Return another directory with copies of all files, all of them durable."""
        names = {name: node.copied() for name, node in self.names.items()}
        return CachedDirectory(dict(names), dict(names))

    def files(self) -> Iterator[CachedFile]:
        for node in self.names.values():
            if isinstance(node, CachedFile):
                yield node
            else:
                yield from node.files()


def _rename(names: dict[str, Node], changes: dict[str, Node | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node
