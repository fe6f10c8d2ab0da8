"""File system access: the only open, write, fsync and rename. Other modules get a ``Disk``.

``OsDisk`` is the file system of the operating system. ``raftlog.testing.disk.SimDisk`` simulates
one that loses unsynced writes, tears them and fails on demand. Every failure is an ``OSError``, and
the caller decides how to handle it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import shutil
import stat
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from threading import Lock as ThreadLock
from typing import Final, Protocol

from raftlog import limits
from raftlog.types import Buffer

# Errors of a full disk, as opposed to a failed one: nothing is lost, and space can be freed.
# The last two: the process, or the system, has no file descriptor left.
NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT}) | NO_DESCRIPTOR
# Errors for a file, or a directory on its path, that does not exist.
MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
# Errors for a path that leads to nothing: a new file can be created there.
NOWHERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})

TEMPORARY_SUFFIX: Final = ".tmp"

# Only the broker's user can read or write its files.
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

# File systems whose files keep their inode numbers over a new mount, as others (FUSE) do not.
KEEP_INODES: Final = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"))

# Others whose files keep their inode numbers while they are mounted.
REOPENED: Final = frozenset(("tmpfs", "overlay"))

POOL_SCAN_FILES: Final = 64  # in one search for files that can be closed
POOL_SYNCS: Final = 16  # in one search for files that can be synced and closed

FALLOC_FL_KEEP_SIZE: Final = 1  # of linux/falloc.h


class NoInodeError(OSError):
    """ENOSPC of a file system with free blocks: it has no inode left for another file."""


def lacking(error: OSError) -> str:
    """Return which limit of files ``error`` met, and what to do next; "" for another error."""
    if isinstance(error, NoInodeError):
        return (
            f"the file system of {error.filename} has no inode left (`df -i` shows them). Delete "
            "topics, raise segment.bytes, or move to a file system with more inodes"
        )
    if error.errno == errno.ENFILE:
        return (
            "this machine has no file descriptor left (fs.file-max). End programs that hold many, "
            "or raise it with sysctl"
        )
    if error.errno == errno.EMFILE:
        return (
            "this process has no file descriptor left (the hard limit of RLIMIT_NOFILE is "
            f"{resource.getrlimit(resource.RLIMIT_NOFILE)[1]}). Close connections, or raise "
            "LimitNOFILE= of the service (`ulimit -Hn` in a shell) and restart"
        )
    return ""


@contextlib.contextmanager
def _creating(path: str) -> Iterator[None]:
    """Raise ``NoInodeError`` instead of ENOSPC if the creation of ``path`` lacks an inode."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC and _inodes(os.path.dirname(path) or ".")[0] == 0:
            raise NoInodeError(errno.ENOSPC, "No inode left", path) from error
        raise


def _inodes(path: str) -> tuple[int, int]:
    """Return the free inodes for this user and all inodes of a file system; -1 if it has no limit
    or if it is unknown.
    """
    try:
        status = os.statvfs(path)
    except OSError:
        return -1, -1
    return (status.f_favail, status.f_files) if status.f_files else (-1, -1)


def missing(path: str) -> FileNotFoundError:
    """Return the error for a file that was removed or moved."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


class File(Protocol):
    """An open file. Only its owner changes it, so its size is known without a system call."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def is_in_place(self) -> bool:
        """Return whether its path still refers to it. False if it or its directory was removed or
        moved; True where that cannot be determined. Fast; any thread may call.
        """
        ...

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Write all of ``buffers`` at the end. On ``OSError`` some may have been written."""
        ...

    def pread(self, size: int, position: int) -> bytes:
        """Up to ``size`` bytes from ``position``; fewer only at the end of the file."""
        ...

    def pwrite(self, data: Buffer, position: int) -> None: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make bytes and size durable (fdatasync). Any thread may call."""
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """A file system. As in POSIX, ``sync_dir`` of a directory makes its names durable."""

    def open(
        self, path: str, *, create: bool = False, write: bool = True, pooled: bool = False
    ) -> File:
        """Open a file. ``pooled``: one of many that stay open, under a limit (``FilePool``). It
        must not be renamed, nor replaced at its path, while it is open.
        """
        ...

    def has_surplus(self) -> bool:
        """Return whether more pooled files are open than permitted."""
        ...

    def close_surplus(self, path: str) -> None:
        """Sync and close pooled files on the disk of ``path`` that are open above the limit.
        Blocks; any thread may call. A failed sync is raised by its next write or sync.
        """
        ...

    def exists(self, path: str) -> bool: ...

    def inode(self, path: str) -> int:
        """Return a number that a file keeps until it is copied; 0 if the file system has none."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty if it is not a directory."""
        ...

    def make_dirs(self, path: str) -> None:
        """Create a directory and its missing parents, durably."""
        ...

    def make_dir(self, path: str) -> None:
        """Create a directory unless it exists. Its name is durable once its parent is synced."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def read_file(self, path: str, *, bytes_max: int) -> bytes:
        """Return the whole file. Raises ``OSError`` (EFBIG) if it has over ``bytes_max`` bytes."""
        ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace a file's bytes durably. After a crash it has the old or the new bytes."""
        ...

    def lock(self, path: str) -> Lock:
        """Take an exclusive lock; ``BlockingIOError`` when another holds it."""
        ...

    def mutex(self) -> AbstractContextManager[object]:
        """Return a lock for threads that use the same files. Hold it during disk access."""
        ...

    def free_bytes(self, path: str) -> int:
        """Return the bytes that this user can still write to the file system of ``path``."""
        ...

    def total_bytes(self, path: str) -> int:
        """Return the size in bytes of the file system of ``path``."""
        ...

    def inodes(self, path: str) -> tuple[int, int]:
        """Return the inodes that this user can still use on the file system of ``path``, and its
        inodes; -1 if it has no fixed number.
        """
        ...

    def open_files(self) -> tuple[int, int]:
        """Return the open file descriptors of this process, and its limit; -1 if unknown."""
        ...

    def make_private(self, path: str) -> None:
        """Restrict a directory to its owner; another program may have created it."""
        ...

    def real_path(self, path: str) -> str:
        """Return ``path`` without symbolic links."""
        ...

    def dangling_link(self, path: str) -> str:
        """Return the dangling symbolic link at or above ``path``; "" if there is none."""
        ...

    def is_mount(self, path: str) -> bool:
        """Whether a file system is mounted at ``path`` itself."""
        ...

    def reserve(self, path: str, size: int) -> None:
        """Reserve disk space for ``size`` more bytes after the end of a file. Its size stays.

        Appends use this space also when the disk is full. Truncation releases it. Any thread may
        call. Does nothing on a file system without this function.
        """
        ...


class OsFile:
    """A file of the operating system, by its descriptor."""

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd
        status = os.fstat(fd)
        self._size = status.st_size
        self._identity = status.st_ino, status.st_dev

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return self._size

    def is_in_place(self) -> bool:
        try:
            status = os.stat(self._path)
        except OSError as error:
            return error.errno not in MISSING
        return (status.st_ino, status.st_dev) == self._identity

    def append(self, buffers: Sequence[Buffer]) -> None:
        total = sum(len(buffer) for buffer in buffers)
        written = os.pwritev(self._fd, buffers, self._size)
        if written < total:  # a full disk, a signal, or over 2 GiB: rare, so a copy is acceptable
            rest = memoryview(b"".join(buffers))
            while written < total:
                written += os.pwrite(self._fd, rest[written:], self._size + written)
        self._size += total

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        missing = size - len(data)
        while missing and (data := os.pread(self._fd, missing, position + size - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def pwrite(self, data: Buffer, position: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, position)
            position += written
            view = view[written:]
        self._size = max(self._size, position)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = size

    def sync(self) -> None:
        sync_data(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class PooledFile(OsFile):
    """A file whose descriptor a pool may close, and which opens it again at the next use.

    ``pins``, ``writes``, ``synced``, ``error`` and ``is_closed`` belong to the pool, with its lock.
    """

    def __init__(self, path: str, fd: int, flags: int, pool: FilePool) -> None:
        super().__init__(path, fd)
        self.flags = flags
        self.pins = 0  # uses in progress
        self.writes = 0
        self.synced = -1  # ``writes`` at the last sync; -1: unknown what is durable
        # Of a sync by the pool; raised by the next write or sync. The descriptor stays open.
        self.error: OSError | None = None
        self.is_closed = False
        # Of two syncs at a time of one descriptor, the system reports an error to one only.
        self.syncing = ThreadLock()
        self._pool = pool

    @property
    def device(self) -> int:
        return self._identity[1]

    @property
    def is_dirty(self) -> bool:
        return self.writes > max(self.synced, 0)

    @property
    def fd(self) -> int:
        return self._fd

    def take_fd(self) -> int:
        fd, self._fd = self._fd, -1
        return fd

    def reopened(self, fd: int) -> None:
        """Use ``fd``, which was opened for the path. Raises ``OSError`` if it is another file."""
        status = os.fstat(fd)
        # guard: a file that is opened again is the same file
        if (status.st_ino, status.st_dev) != self._identity:
            raise missing(self._path)
        self._fd = fd

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._pool.pin(self, writes=True)
        try:
            super().append(buffers)
        finally:
            self._pool.unpin(self, writes=True)

    def pread(self, size: int, position: int) -> bytes:
        self._pool.pin(self)
        try:
            return super().pread(size, position)
        finally:
            self._pool.unpin(self)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._pool.pin(self, writes=True)
        try:
            super().pwrite(data, position)
        finally:
            self._pool.unpin(self, writes=True)

    def truncate(self, size: int) -> None:
        self._pool.pin(self, writes=True)
        try:
            super().truncate(size)
        finally:
            self._pool.unpin(self, writes=True)

    def sync(self) -> None:
        # guard: a sync waits for one of the pool
        with self.syncing:
            if not self._pool.is_saved(self):
                self._pool.pin(self)
                try:
                    writes = self.writes
                    super().sync()
                    self.synced = writes
                finally:
                    self._pool.unpin(self)
        self._pool.close_surplus(self.device)

    def close(self) -> None:
        self._pool.forget(self)


class FilePool:
    """Open descriptors of many files, up to a limit: the least recently used one is closed.

    A file that was written is synced before its descriptor is closed: a descriptor that is opened
    later may not report the error of an earlier write. Only ``close_surplus`` syncs, which blocks.
    Other calls close only files that need no sync, so that the limit can be exceeded for a while.
    Thread-safe.
    """

    def __init__(self, files_max: int) -> None:
        self.files_max = files_max
        self._lock = ThreadLock()
        self._open: OrderedDict[PooledFile, None] = OrderedDict()  # the least recently used first

    def __len__(self) -> int:
        return len(self._open)

    def open(self, path: str, flags: int) -> PooledFile:
        file = PooledFile(path, self.open_fd(path, flags), flags & ~os.O_CREAT, self)
        with self._lock:
            self._open[file] = None
        self._close_clean(self.files_max)
        return file

    def pin(self, file: PooledFile, *, writes: bool = False) -> None:
        """Keep the descriptor of ``file`` open until ``unpin``. Raises ``OSError``."""
        if not self._is_pinned(file, writes=writes):
            self._reopen(file)

    def unpin(self, file: PooledFile, *, writes: bool = False) -> None:
        """End a use of ``file``. ``writes``: it was written, or may have been."""
        with self._lock:
            file.pins -= 1
            # guard: a file is written until the end of the write
            file.writes += writes  # a sync that began before the end of a write may not cover it
            fd = file.take_fd() if file.is_closed and not file.pins else -1
        if fd >= 0:
            os.close(fd)

    def is_saved(self, file: PooledFile) -> bool:
        """Whether the pool has synced a file before it closed it. Raises the error of that sync."""
        with self._lock:
            self._raise_error(file)
            return file.fd < 0 and file.writes == file.synced

    def forget(self, file: PooledFile) -> None:
        """Close a file; its descriptor, when no other thread uses it."""
        with self._lock:
            file.is_closed = True
            self._open.pop(file, None)
            fd = -1 if file.pins else file.take_fd()
        if fd >= 0:
            os.close(fd)

    def close_surplus(self, device: int) -> bool:
        """Sync and close some files above the limit. Returns whether there may be more.

        Files on another device are closed only without a sync.
        """
        self._close_clean(self.files_max)
        for _ in range(POOL_SYNCS):
            file = self._surplus(device)
            if file is None:
                return False
            with file.syncing:
                try:
                    writes = file.writes
                    sync_data(file.fd)
                    file.synced = writes
                except OSError as error:
                    file.error = error
            self.unpin(file)
            self._close_clean(self.files_max)
        return True

    def _surplus(self, device: int) -> PooledFile | None:
        """Return a file to sync, pinned; None if no more than the limit are open."""
        with self._lock:
            if len(self._open) <= self.files_max:
                return None
            for file in self._open:
                is_free = not file.pins and file.error is None
                if is_free and file.is_dirty and file.device == device:
                    file.pins += 1
                    return file
        return None

    def _is_pinned(self, file: PooledFile, *, writes: bool) -> bool:
        with self._lock:
            self._check_not_closed(file)
            if writes:
                self._raise_error(file)
            if file.fd < 0:
                return False
            file.pins += 1
            self._open.move_to_end(file)
            return True

    def _check_not_closed(self, file: PooledFile) -> None:
        if file.is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), file.path)

    def _raise_error(self, file: PooledFile) -> None:
        error, file.error = file.error, None
        # guard: the error of a sync by the pool reaches the owner of the file
        if error is not None:
            raise error

    def _reopen(self, file: PooledFile) -> None:
        """Open a file again, pinned: if all other files need a sync, it would be closed at once."""
        fd = self.open_fd(file.path, file.flags)
        try:
            with self._lock:
                self._check_not_closed(file)
                if file.fd < 0:  # else another thread was faster
                    file.reopened(fd)
                    self._open[file] = None
                    fd = -1
                file.pins += 1
        finally:
            if fd >= 0:
                os.close(fd)
        self._close_clean(self.files_max)

    def open_fd(self, path: str, flags: int) -> int:
        """Open any file. If the process has no descriptor left, close files of the pool for it."""
        try:
            return os.open(path, flags, FILE_MODE)
        except OSError as error:
            if error.errno != errno.EMFILE or not self._close_clean(len(self._open) - 1):
                raise
        return os.open(path, flags, FILE_MODE)

    def _close_clean(self, files_max: int) -> bool:
        """Close files that need no sync until ``files_max`` are open. Looks at a few. Returns
        whether it closed any.
        """
        fds: list[int] = []
        with self._lock:
            for _ in range(POOL_SCAN_FILES):
                if len(self._open) <= max(files_max, 0):
                    break
                file, _none = self._open.popitem(last=False)
                # guard: a file that was written is synced before its descriptor is closed
                if file.pins or file.is_dirty or file.error is not None:
                    self._open[file] = None
                else:
                    fds.append(file.take_fd())
        for fd in fds:
            os.close(fd)
        return bool(fds)


class OsLock:
    """An advisory lock (flock). The kernel releases it when the process ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class SpareDescriptor:
    """A file descriptor in reserve, for when the process has no other left.

    A rename must be made durable, or its outcome after a crash is unknown. So syncing a directory
    must not fail for lack of a descriptor. Creating a file may.
    """

    def __init__(self) -> None:
        self._lock = ThreadLock()
        self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    @contextlib.contextmanager
    def opened(self, path: str, flags: int) -> Iterator[int]:
        """Open ``path`` with ``flags`` and yield the descriptor, for the duration of the block."""
        try:
            fd = os.open(path, flags)
        except OSError as error:
            # guard: directory sync works without a free descriptor
            if error.errno not in NO_DESCRIPTOR:
                raise
        else:
            try:
                yield fd
            finally:
                self._close(fd)
            return
        with self._lock:  # there is only one spare descriptor
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
            # It stays open as the next spare: if it were closed, another thread could take it.
            self._fd = os.open(path, flags)
            yield self._fd

    def _close(self, fd: int) -> None:
        """Close a descriptor; or keep it, as another thread got that of the spare."""
        if self._fd < 0:
            with self._lock:
                if self._fd < 0:
                    self._fd = fd
                    return
        os.close(fd)


class OsDisk:
    """The operating system's file system."""

    def __init__(self, pooled_files_max: int | None = None) -> None:
        """``pooled_files_max``: default: half of the descriptors that this process may open now,
        so that connections and other files have the other half.
        """
        self._spare = SpareDescriptor()
        if pooled_files_max is None:
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            all_files = limits.OPEN_LOG_FILES_MAX
            pooled_files_max = all_files if soft < 0 else min(all_files, soft // 2)
        self._pool = FilePool(pooled_files_max)
        self._keeps_inodes: dict[int, bool] = {}  # by device

    def open(
        self, path: str, *, create: bool = False, write: bool = True, pooled: bool = False
    ) -> OsFile:
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        with _creating(path):
            if pooled and self._may_reopen(path):
                return self._pool.open(path, flags)
            return OsFile(path, self._pool.open_fd(path, flags))

    def _may_reopen(self, path: str) -> bool:
        """Whether a file that is opened again can be recognized by its inode number."""
        directory = os.path.dirname(path) or "."
        device = os.stat(directory).st_dev
        found = self._keeps_inodes.get(device)
        if found is None:
            name = _file_system(directory)
            found = name in KEEP_INODES or name in REOPENED
            if name:  # else it is unknown, or no descriptor is left to look
                self._keeps_inodes[device] = found
        return found

    def has_surplus(self) -> bool:
        return len(self._pool) > self._pool.files_max

    def close_surplus(self, path: str) -> None:
        device = os.stat(path).st_dev
        while self._pool.close_surplus(device):
            pass

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def inode(self, path: str) -> int:
        return os.stat(path).st_ino if _file_system(path) in KEEP_INODES else 0

    def list_dir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            if error.errno not in NOWHERE:
                raise
            return []

    def make_dirs(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        if parent and parent != path:
            self.make_dirs(parent)
        self.make_dir(path)
        # guard: new directory is synced
        self.sync_dir(parent or ".")

    def make_dir(self, path: str) -> None:
        try:
            with _creating(path):
                os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):  # a file; a directory may come from another thread
                raise

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.path.islink(path):
                os.unlink(path)
            else:
                shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        with self._spare.opened(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as fd:
            # guard: directory sync is fsync
            sync_all(fd)

    def read_file(self, path: str, *, bytes_max: int) -> bytes:
        with open(path, "rb", opener=self._pool.open_fd) as file:
            data = file.read(bytes_max + 1)
        if len(data) > bytes_max:
            raise OSError(errno.EFBIG, f"larger than {bytes_max} bytes", path)
        return data

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + TEMPORARY_SUFFIX
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with _creating(temporary):
            fd = self._pool.open_fd(temporary, flags)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            # guard: atomic write syncs the new file
            sync_all(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        # guard: atomic write syncs the directory
        self.sync_dir(os.path.dirname(path) or ".")

    def lock(self, path: str) -> OsLock:
        fd = self._pool.open_fd(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            # guard: data directory is locked
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return OsLock(fd)

    def mutex(self) -> AbstractContextManager[object]:
        return ThreadLock()

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def inodes(self, path: str) -> tuple[int, int]:
        return _inodes(path)

    def open_files(self) -> tuple[int, int]:
        return _open_descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def make_private(self, path: str) -> None:
        if stat.S_IMODE(os.stat(path).st_mode) & ~DIRECTORY_MODE:
            with contextlib.suppress(PermissionError):  # another owner has set the permissions
                os.chmod(path, DIRECTORY_MODE)

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def dangling_link(self, path: str) -> str:
        while not os.path.lexists(path) and os.path.dirname(path) not in ("", path):
            path = os.path.dirname(path)
        return path if os.path.islink(path) and not os.path.exists(path) else ""

    def is_mount(self, path: str) -> bool:
        return os.path.ismount(path)

    def reserve(self, path: str, size: int) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fallocate(fd, os.fstat(fd).st_size, size)
        finally:
            os.close(fd)


def sync_data(fd: int) -> None:
    """Make a file's bytes and its size durable. Raises ``OSError``."""
    if sys.platform == "linux":
        # guard: file sync is fdatasync
        os.fdatasync(fd)
    else:
        sync_all(fd)


def sync_all(fd: int) -> None:
    """Make a file or a directory durable. Raises ``OSError``.

    On macOS fcntl(2) with F_FULLFSYNC, because its fsync(2) leaves the bytes in the drive's write
    cache; fsync where the file system refuses F_FULLFSYNC, as network shares do.
    """
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}:
                raise
        else:
            return
    os.fsync(fd)


def fallocate(fd: int, position: int, size: int) -> None:
    """Call Linux's fallocate(2) with FALLOC_FL_KEEP_SIZE, which Python's ``os`` does not have.

    Raises ``OSError``, but not on systems without fallocate.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "fallocate64", None) or libc.fallocate
    if call(fd, FALLOC_FL_KEEP_SIZE, ctypes.c_int64(position), ctypes.c_int64(size)) == 0:
        return
    code = ctypes.get_errno()
    if code not in {errno.EOPNOTSUPP, errno.ENOSYS}:
        raise OSError(code, os.strerror(code))


def _open_descriptors() -> int:
    """Return the number of open descriptors of this process; -1 if it is unknown."""
    with contextlib.suppress(OSError):  # Linux 6.2 and later return the number as the size
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
    with contextlib.suppress(OSError):
        return len(os.listdir("/dev/fd"))
    return -1


def _file_system(path: str) -> str:
    """Return the type of the file system of ``path``; empty if it is unknown."""
    real, found = os.path.realpath(path), ("", "")
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            lines = [line.split() for line in mounts]
    except OSError:
        return ""
    for fields in lines:
        mount = fields[4].replace("\\040", " ").rstrip("/")
        covers = real == mount or real.startswith(f"{mount}/")
        if covers and len(mount) >= len(found[0]):  # the later one of two is on top
            found = mount, fields[fields.index("-") + 1]
    return found[1]
