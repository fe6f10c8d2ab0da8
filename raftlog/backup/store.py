"""Files of a backup: in a directory, or at a URL of fsspec (object stores, SFTP and others)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from raftlog.disk import OsDisk
from raftlog.errors import InvalidRequestError, UnsupportedFeatureError
from raftlog.install import install_command


class Store(Protocol):
    """Files by name; names have ``/`` between folders."""

    def read(self, name: str) -> bytes | None:
        """Return the content; None if there is no such file."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a file. After a crash it is complete, or unchanged."""
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


class FileSystem:
    """Store at a URL of fsspec."""

    def __init__(self, url: str) -> None:
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
