"""The file `access` of a data directory: access rules and quotas of a broker in single-broker mode.

In a cluster, they are part of the cluster state. A missing file means that there are none. A
corrupt file is an error: without its rules, a principal that is denied could be permitted.
"""

from __future__ import annotations

from base64 import b64decode, b64encode

from raftlog.disk import Disk
from raftlog.errors import DataDirectoryError
from raftlog.storage import state_file


def _access_path(directory: str) -> str:
    return f"{directory}/access"


def read_access(disk: Disk, directory: str) -> bytes:
    """Return the saved state; empty if there is none. Raises ``DamagedLogError`` if the file is
    corrupt, and ``OSError``.
    """
    path = _access_path(directory)
    state = state_file.read(disk, path)
    if state is None:
        return b""
    try:
        return b64decode(state["state"], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise DataDirectoryError(f"{path} contains no access rules") from error


def write_access(disk: Disk, directory: str, state: bytes) -> None:
    """Save the state durably. Raises ``OSError``; the older state then stays."""
    state_file.write(disk, _access_path(directory), {"state": b64encode(state).decode()})
