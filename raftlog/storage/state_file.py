"""Small state files: human-readable JSON with a CRC-32C, replaced atomically.

    | crc32c 8 hex digits | space | JSON, one line | newline |

This module does not interpret the state. A missing file reads as None. A corrupt file raises
``DamagedLogError``: only the caller knows whether the state can be rebuilt.
"""

from __future__ import annotations

import errno
import json
from typing import Any, Final

from raftlog import limits
from raftlog.disk import TEMPORARY_SUFFIX, Disk
from raftlog.errors import DamagedLogError
from raftlog.record.checksum import crc32c

_TEXT_POSITION: Final = len("00000000 ")


def encode(state: dict[str, Any]) -> bytes:
    return _sealed(json.dumps(state, separators=(", ", ": "), sort_keys=True).encode())


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


def write(disk: Disk, path: str, state: dict[str, Any]) -> None:
    """Replace the file, durably on return. If the disk is full, the old file stays and the
    temporary file is removed."""
    try:
        disk.write_atomic(path, encode(state))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and disk.exists(path + TEMPORARY_SUFFIX):
            disk.remove(path + TEMPORARY_SUFFIX)
        raise


def read(disk: Disk, path: str) -> dict[str, Any] | None:
    if not disk.exists(path):
        return None
    return decode(disk.read_file(path, bytes_max=limits.STATE_FILE_BYTES_MAX), path=path)
