"""A ``Disk`` with failpoints before and after each change, and before each read.

The names of failpoints contain the role of a file in the broker (``role``), not its path.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Final, TypeVar

from raftlog.disk import TEMPORARY_SUFFIX, Disk, File, Lock
from raftlog.types import Buffer

T = TypeVar("T")
Hit = Callable[[str], None]

OTHER: Final = "other"
LOG_DIR: Final = "log-dir"  # everything in a directory of ``log.dirs``
_STATE_FILES: Final = {
    "lock": "lock",
    "identity": "identity",
    "clean": "clean",
    "clock": "clock",
    "brokers": "brokers",
    "cluster": "brokers",
    "place": "identity",
    "place.mark": "identity",
    "catalog": "catalog",
    "catalog.spare": "catalog",
    "copies": "copies",
    "copies.spare": "copies",
    "consensus.journal": "journal",
}
_LOG_FILES: Final = {
    ".log": "segment",
    ".index": "index",
    ".producers": "producers",
    ".cleaned": "cleaned",
}
_LOG_STATE_FILES: Final = frozenset(("checkpoint", "compaction", "epochs"))
_TOPICS: Final = "topics"
_DIRECTORIES: Final = ("data-dir", "topics-dir", "topic-dir", "topic-dir", "partition-dir")


def role(relative: str) -> str:
    """Return the role of a path relative to the data directory.

    A temporary file (``.tmp``) has the role of the file that it replaces. Only that of the journal
    has its own role, because the journal is also written in place.
    """
    if relative == "..":
        return "parent-dir"
    parts = [] if relative in ("", ".") else relative.split("/")
    if not parts or (parts[0] == _TOPICS and len(parts) < len(_DIRECTORIES)):
        return _DIRECTORIES[len(parts)]
    name = parts[-1].removesuffix(TEMPORARY_SUFFIX)
    if len(parts) == 1:
        found = _STATE_FILES.get(name, OTHER)
        return "journal-draft" if found == "journal" and name != parts[-1] else found
    if parts[0] == _TOPICS and len(parts) == len(_DIRECTORIES):
        return name if name in _LOG_STATE_FILES else _LOG_FILES.get(_suffix(name), OTHER)
    return OTHER


def _suffix(name: str) -> str:
    return name[name.rfind(".") :] if "." in name else ""


class FailpointFile:
    """A file with failpoints. After a failure, earlier writes remain, as in a real file."""

    def __init__(self, file: File, what: str, hit: Hit) -> None:
        self._file = file
        self._what = what
        self._hit = hit

    @property
    def path(self) -> str:
        return self._file.path

    def size(self) -> int:
        return self._file.size()

    def is_in_place(self) -> bool:
        return self._file.is_in_place()

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._hit(f"{self._what}.write.before")
        self._file.append(buffers)
        self._hit(f"{self._what}.write.after")

    def pread(self, size: int, position: int) -> bytes:
        self._hit(f"{self._what}.read.before")
        return self._file.pread(size, position)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._hit(f"{self._what}.write.before")
        self._file.pwrite(data, position)
        self._hit(f"{self._what}.write.after")

    def truncate(self, size: int) -> None:
        self._hit(f"{self._what}.truncate.before")
        self._file.truncate(size)
        self._hit(f"{self._what}.truncate.after")

    def sync(self) -> None:
        self._hit(f"{self._what}.sync.before")
        self._file.sync()
        self._hit(f"{self._what}.sync.after")

    def close(self) -> None:
        self._file.close()


class FailpointDisk:
    """A disk with failpoints. ``directory``: the data directory, to which roles are relative.

    ``log_dirs``: the directories of ``log.dirs``.
    """

    def __init__(self, disk: Disk, hit: Hit, directory: str, log_dirs: Sequence[str] = ()) -> None:
        self._log_dirs = log_dirs
        self._disk = disk
        self._hit = hit
        self._directory = directory

    def _role(self, path: str) -> str:
        if any(path == each or path.startswith(f"{each}/") for each in self._log_dirs):
            return LOG_DIR
        return role(os.path.relpath(path, self._directory))

    def _around(self, path: str, operation: str, act: Callable[[], T]) -> T:
        site = f"{self._role(path)}.{operation}"
        self._hit(f"{site}.before")
        result = act()
        self._hit(f"{site}.after")
        return result

    def open(
        self, path: str, *, create: bool = False, write: bool = True, pooled: bool = False
    ) -> File:
        def opens() -> File:
            return self._disk.open(path, create=create, write=write, pooled=pooled)

        is_new = create and not self._disk.exists(path)
        opened = self._around(path, "create", opens) if is_new else opens()
        return FailpointFile(opened, self._role(path), self._hit)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def inode(self, path: str) -> int:
        return self._disk.inode(path)

    def list_dir(self, path: str) -> list[str]:
        return self._disk.list_dir(path)

    def make_dirs(self, path: str) -> None:
        if not self._disk.exists(path):
            self.make_dirs(os.path.dirname(path) or ".")
            self._around(path, "create", lambda: self._disk.make_dirs(path))

    def make_dir(self, path: str) -> None:
        if not self._disk.exists(path):
            self._around(path, "create", lambda: self._disk.make_dir(path))

    def rename(self, source: str, target: str) -> None:
        self._around(target, "rename", lambda: self._disk.rename(source, target))

    def remove(self, path: str) -> None:
        self._around(path, "remove", lambda: self._disk.remove(path))

    def remove_tree(self, path: str) -> None:
        """Remove a directory tree file by file, as the disk does, with failpoints."""
        for name in self._disk.list_dir(path):
            below = f"{path}/{name}"
            if self._disk.list_dir(below):
                self.remove_tree(below)
            else:
                with suppress(
                    IsADirectoryError, PermissionError
                ):  # an empty directory: removed with its parent
                    self.remove(below)
        self._around(path, "remove", lambda: self._disk.remove_tree(path))

    def sync_dir(self, path: str) -> None:
        self._around(path, "sync", lambda: self._disk.sync_dir(path))

    def read_file(self, path: str, *, bytes_max: int) -> bytes:
        self._hit(f"{self._role(path)}.read.before")
        return self._disk.read_file(path, bytes_max=bytes_max)

    def write_atomic(self, path: str, data: bytes) -> None:
        """Write a file atomically, in the same steps as ``OsDisk``, with failpoints."""
        temporary = path + TEMPORARY_SUFFIX
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.append([data])
            file.sync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_dir(os.path.dirname(path) or ".")

    def lock(self, path: str) -> Lock:
        return self._disk.lock(path)

    def mutex(self) -> AbstractContextManager[object]:
        return self._disk.mutex()

    def make_private(self, path: str) -> None:
        self._disk.make_private(path)

    def real_path(self, path: str) -> str:
        return self._disk.real_path(path)

    def dangling_link(self, path: str) -> str:
        return self._disk.dangling_link(path)

    def is_mount(self, path: str) -> bool:
        return self._disk.is_mount(path)

    def free_bytes(self, path: str) -> int:
        return self._disk.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._disk.total_bytes(path)

    def has_surplus(self) -> bool:
        return self._disk.has_surplus()

    def close_surplus(self, path: str) -> None:
        self._disk.close_surplus(path)

    def inodes(self, path: str) -> tuple[int, int]:
        return self._disk.inodes(path)

    def open_files(self) -> tuple[int, int]:
        return self._disk.open_files()

    def reserve(self, path: str, size: int) -> None:
        self._disk.reserve(path, size)
