"""Small state files: human-readable JSON with a CRC-32C, replaced atomically.

    | crc32c 8 hex digits | space | JSON, one line | newline |

This module does not interpret the state. A missing file reads as None. A corrupt file raises
``DamagedLogError``: only the caller knows whether the state can be rebuilt.
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from raftlog import limits
from raftlog.disk import NO_ROOM, TEMPORARY_SUFFIX, Disk
from raftlog.errors import DamagedLogError
from raftlog.record.checksum import crc32c

logger = logging.getLogger(__name__)

SPARE_BYTES_MIN: Final = 64 * limits.KIB
_TEXT_POSITION: Final = len("00000000 ")


def text_of(value: Any) -> str:
    """Return a value as it is written."""
    return json.dumps(value, separators=(", ", ": "), sort_keys=True)


def object_of(members: Mapping[str, str]) -> str:
    """Return the text of an object, of members that are text already."""
    return f"{{{', '.join(f'{text_of(name)}: {members[name]}' for name in sorted(members))}}}"


def array_of(items: Iterable[str]) -> str:
    """Return the text of an array, of items that are text already."""
    return f"[{', '.join(items)}]"


def encode(state: dict[str, Any] | str) -> bytes:
    """Return the content of a file with a state, or with its text."""
    return _sealed((state if isinstance(state, str) else text_of(state)).encode())


def _sealed(text: bytes) -> bytes:
    return b"%08x %b\n" % (crc32c(text), text)


def decode(data: bytes, *, path: str) -> dict[str, Any]:
    """Return the state in ``data``. Raises ``DamagedLogError`` with ``path`` in its text."""
    text = data[_TEXT_POSITION:-1]
    if data != _sealed(text):
        raise DamagedLogError(f"{path} is corrupt: checksum mismatch")
    try:
        state = json.loads(text)
    except ValueError:
        state = None
    if not isinstance(state, dict):
        raise DamagedLogError(f"{path} is corrupt: its content is not a JSON object")
    return state


def write(disk: Disk, path: str, state: dict[str, Any] | str) -> int:
    """Replace the file, durably on return, and return its size in bytes. ``state`` can be its text.
    If the disk is full, the old file stays and the temporary file is removed.
    """
    data = encode(state)
    try:
        disk.write_atomic(path, data)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and disk.exists(path + TEMPORARY_SUFFIX):
            disk.remove(path + TEMPORARY_SUFFIX)
        raise
    return len(data)


class Spare:
    """A file of zeros next to a state file: the space, and the inode, of one more version of it.

    On a full disk its owner can still make the changes that free space.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._spare = path + ".spare"
        self._kept = 0  # bytes that this object has taken

    def write(self, state: dict[str, Any] | str) -> None:
        """Do what ``write`` does, with the spare space if there is no other."""
        try:
            write(self._disk, self._path, state)
        except OSError as error:
            if error.errno not in NO_ROOM or not self._disk.exists(self._spare):
                raise
            # The temporary file then has an inode already, and truncation frees its blocks.
            self._disk.rename(self._spare, self._path + TEMPORARY_SUFFIX)
            self._kept = 0
            self.keep(write(self._disk, self._path, state))

    def keep(self, needed: int) -> None:
        """Take space for ``needed`` bytes, unless it is taken or not there."""
        if self._kept >= max(needed, 1):
            return
        size = max(SPARE_BYTES_MIN, 2 * needed)
        while size > needed and not self._is_taken(size):
            size //= 2  # on a full disk there may be as much as the last version had

    def _is_taken(self, size: int) -> bool:
        try:
            self._disk.write_atomic(self._spare, bytes(size))
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            logger.warning("no spare space: path=%s bytes=%d error=%s", self._path, size, error)
            if self._disk.exists(self._spare + TEMPORARY_SUFFIX):
                self._disk.remove(self._spare + TEMPORARY_SUFFIX)
            return False
        self._kept = size
        return True


def read(disk: Disk, path: str) -> dict[str, Any] | None:
    if not disk.exists(path):
        return None
    return decode(disk.read_file(path, bytes_max=limits.STATE_FILE_BYTES_MAX), path=path)
