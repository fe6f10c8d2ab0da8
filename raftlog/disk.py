"""The only open, write, fsync and rename: everything above takes a ``Disk`` as an argument.

``OsDisk`` is the machine's file system. ``raftlog.testing.disk.SimDisk`` is one that loses unsynced
writes, tears them and fails on demand. Every failure is an ``OSError``; what it means is decided
above.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from threading import Lock as ThreadLock
from typing import Final, Protocol

from raftlog.types import Buffer

# Errors that say "no room", as opposed to "the disk is broken": nothing is lost, and room may come
# back. The last two are of opening a file: the process, or the system, has no descriptor left.
NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT}) | NO_DESCRIPTOR
# Errors that say that a file, or a directory on its path, is not there.
MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})

TEMPORARY_SUFFIX: Final = ".tmp"

# Only the broker's user can read or write its files.
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

FALLOC_FL_KEEP_SIZE: Final = 1  # of linux/falloc.h


def missing(path: str) -> FileNotFoundError:
    """The error for a file that is not where it was."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


class File(Protocol):
    """An open file. Its owner alone changes it, so its size is known without asking the system."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def is_in_place(self) -> bool:
        """Whether its path leads to it: it was neither removed nor moved away, nor its directory.

        True where that cannot be told. Quick; any thread may call.
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
        """Return once bytes and size are on the disk (fdatasync). Any thread may call."""
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """A file system. Names become durable with ``sync_dir`` of their directory, as POSIX has it."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File: ...

    def exists(self, path: str) -> bool: ...

    def list_dir(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if it is none."""
        ...

    def make_dirs(self, path: str) -> None:
        """Make a directory and its missing parents, durably."""
        ...

    def make_dir(self, path: str) -> None:
        """Make a directory unless it exists; its name is durable once its parent is synced."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def read_file(self, path: str, *, bytes_max: int) -> bytes:
        """The whole file; ``OSError`` (EFBIG) when it is larger than ``bytes_max``."""
        ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace a file's bytes so that a crash leaves the old or the new, durably on return."""
        ...

    def lock(self, path: str) -> Lock:
        """Take an exclusive lock; ``BlockingIOError`` when another holds it."""
        ...

    def mutex(self) -> AbstractContextManager[object]:
        """A lock for threads that use the same files; one that has it may work on the disk."""
        ...

    def free_bytes(self, path: str) -> int:
        """Bytes that this user may still write to the file system of ``path``."""
        ...

    def total_bytes(self, path: str) -> int:
        """The size of the file system of ``path``."""
        ...

    def make_private(self, path: str) -> None:
        """Restrict a directory to its owner; another program may have created it."""
        ...

    def real_path(self, path: str) -> str:
        """The one name of what may have several, by symbolic links."""
        ...

    def dangling_link(self, path: str) -> str:
        """The symbolic link at or above ``path`` because of which it does not exist; else ""."""
        ...

    def is_mount(self, path: str) -> bool:
        """Whether a file system is mounted at ``path`` itself."""
        ...

    def reserve(self, path: str, size: int) -> None:
        """Take room for ``size`` more bytes behind the end of a file, which stays as it is.

        Appending to it finds that room also when the disk is full; shortening it gives the room
        back. Any thread may call. Nothing on a file system that cannot do this.
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
        if written < total:  # a full disk, a signal, or over 2 GiB: rare, so joining is affordable
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


class OsLock:
    """An advisory lock (flock) that the kernel drops when its holder dies."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class SpareDescriptor:
    """One that is kept for the moment when there is no other.

    What was renamed has to be made durable, or its fate is unknown: syncing a directory must not
    fail for lack of a descriptor, though creating a file may.
    """

    def __init__(self) -> None:
        self._lock = ThreadLock()
        self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    @contextlib.contextmanager
    def opened(self, path: str, flags: int) -> Iterator[int]:
        """The descriptor of ``path``, opened with ``flags`` for as long as the block lasts."""
        try:
            fd = os.open(path, flags)
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                raise
        else:
            try:
                yield fd
            finally:
                os.close(fd)
            return
        with self._lock:  # there is one only
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
            # It stays open as the next spare: if it were closed, another thread could take it.
            self._fd = os.open(path, flags)
            yield self._fd


class OsDisk:
    """The operating system's file system."""

    def __init__(self) -> None:
        self._spare = SpareDescriptor()

    def open(self, path: str, *, create: bool = False, write: bool = True) -> OsFile:
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
        return OsFile(path, os.open(path, flags | (os.O_CREAT if create else 0), FILE_MODE))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list_dir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            return []

    def make_dirs(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        if parent and parent != path:
            self.make_dirs(parent)
        self.make_dir(path)
        self.sync_dir(parent or ".")

    def make_dir(self, path: str) -> None:
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):  # a file; else it exists, or another thread was quicker
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
            sync_all(fd)

    def read_file(self, path: str, *, bytes_max: int) -> bytes:
        with open(path, "rb") as file:
            data = file.read(bytes_max + 1)
        if len(data) > bytes_max:
            raise OSError(errno.EFBIG, f"larger than {bytes_max} bytes", path)
        return data

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + TEMPORARY_SUFFIX
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            sync_all(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        self.sync_dir(os.path.dirname(path) or ".")

    def lock(self, path: str) -> OsLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
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

    def make_private(self, path: str) -> None:
        if stat.S_IMODE(os.stat(path).st_mode) & ~DIRECTORY_MODE:
            with contextlib.suppress(PermissionError):  # whose it is has decided who may enter
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
    """Linux's fallocate(2) with FALLOC_FL_KEEP_SIZE, which Python's ``os`` does not have.

    Raises ``OSError``, but not where there is no such thing.
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
