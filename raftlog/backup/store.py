"""Files of a backup: in a directory, or at a URL of fsspec (object stores, SFTP and others)."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from raftlog.clock import Clock, SystemClock
from raftlog.disk import OsDisk
from raftlog.errors import InvalidRequestError, UnsupportedFeatureError
from raftlog.install import install_command
from raftlog.types import TimestampMs

LOCK: Final = "backup.lock"  # in a directory: the writer holds it with flock
LEASE: Final = "backup.lease"  # at a URL
LEASE_MS: Final = 120_000  # without renewal, another writer may begin
RENEW_MS: Final = 30_000
SETTLE_S: Final = 1.0  # two writers that begin at once both see the later lease after this time

# Raises ``InvalidRequestError`` if another writer has begun. Call it before each write.
StillHeld: TypeAlias = Callable[[], None]


class Store(Protocol):
    """Files by name; names have ``/`` between folders."""

    def read(self, name: str) -> bytes | None:
        """Return the content; None if there is no such file."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a file. After a crash it is complete, or unchanged."""
        ...

    def hold(self) -> AbstractContextManager[StillHeld]:
        """Keep other writers out. Raises ``InvalidRequestError`` while there is one."""
        ...


class Directory:
    """Store in a directory, which is created with the first file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._disk = OsDisk()

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        path = self._path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._disk.write_atomic(str(path), data)

    @contextmanager
    def hold(self) -> Iterator[StillHeld]:
        """The kernel ends it with the process. Not every network file system has locks; then names
        by content, and the comparison of the manifest, keep what is there.
        """
        self._path.mkdir(parents=True, exist_ok=True)
        try:
            lock = self._disk.lock(str(self._path / LOCK))
        except BlockingIOError as error:
            raise InvalidRequestError(
                f"another backup writes to {self._path}. Wait until it has ended, or use another "
                "directory"
            ) from error
        try:
            yield lambda: None
        finally:
            lock.release()


class _Lease(msgspec.Struct, frozen=True):
    holder: str
    token: str
    until_ms: TimestampMs


class FileSystem:
    """Store at a URL of fsspec."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._clock = clock or SystemClock()
        self._sleep = sleep
        try:
            import fsspec
        except ImportError as error:
            raise UnsupportedFeatureError(
                f"{url} requires fsspec. Run {install_command('backup')}, and install the "
                "package of fsspec for this kind of URL"
            ) from error
        try:
            files, root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise InvalidRequestError(f"{url}: {error}") from error
        self._files: Any = files
        self._root: str = root.rstrip("/")

    def read(self, name: str) -> bytes | None:
        path = f"{self._root}/{name}"
        with self._naming(path):
            try:
                data: bytes = self._files.cat_file(path)
            except FileNotFoundError:
                return None
        return data

    def write(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        with self._naming(path):
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, data)

    @contextmanager
    def hold(self) -> Iterator[StillHeld]:
        """A lease in a file, as object stores have no locks. It is renewed with the writes."""
        mine = _Lease(f"{socket.gethostname()}, process {os.getpid()}", secrets.token_hex(8), 0)
        self._check_lease(mine)
        renewed_ms = self._write_lease(mine)
        self._sleep(SETTLE_S)
        self._check_lease(mine)

        def still_held() -> None:
            nonlocal renewed_ms
            if self._clock.wall_ms() - renewed_ms >= RENEW_MS:
                self._check_lease(mine)
                renewed_ms = self._write_lease(mine)

        try:
            yield still_held
        finally:
            with suppress(OSError):  # it expires
                if self._lease_of_another(mine) is None:
                    self._files.rm_file(f"{self._root}/{LEASE}")

    def _lease_of_another(self, mine: _Lease) -> _Lease | None:
        data = self.read(LEASE)
        if data is None:
            return None
        try:
            found = msgspec.json.decode(data, type=_Lease)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None  # no lease: a file that was cut off
        is_over = found.until_ms < self._clock.wall_ms()
        return None if found.token == mine.token or is_over else found

    def _check_lease(self, mine: _Lease) -> None:
        other = self._lease_of_another(mine)
        if other is not None:
            left_s = max(1, (other.until_ms - self._clock.wall_ms()) // 1_000)
            raise InvalidRequestError(
                f"another backup writes to {self._files.unstrip_protocol(self._root)} (on "
                f"{other.holder}). Wait until it has ended; if it was killed, {left_s} s"
            )

    def _write_lease(self, mine: _Lease) -> TimestampMs:
        now_ms = self._clock.wall_ms()
        lease = msgspec.structs.replace(mine, until_ms=now_ms + LEASE_MS)
        self.write(LEASE, msgspec.json.encode(lease))
        return now_ms

    @contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        """Convert the error of a file system to an ``OSError`` with the name of the file. Libraries
        of object stores raise many classes of errors, often without the name.
        """
        try:
            yield
        except Exception as error:
            url = self._files.unstrip_protocol(path)
            raise OSError(f"{url}: {type(error).__name__}: {error}") from error


def open_store(url: str) -> Store:
    """Return the store at ``url``: a path, ``file:///path``, or a URL that fsspec supports.

    Raises ``UnsupportedFeatureError`` without fsspec, and ``InvalidRequestError`` for a URL that
    fsspec does not support.
    """
    if url.startswith("file://"):
        return Directory(Path(url.removeprefix("file://")))
    return FileSystem(url) if "://" in url else Directory(Path(url))
