"""The file `cluster` of a data directory: the cluster state on a broker without a vote.

Voters store the state in their consensus journal. This copy is for the day on which no voter is
left: `raftlog cluster recover` continues from the newest one. A missing or corrupt file is none.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field

from raftlog.disk import NO_ROOM, Disk
from raftlog.errors import DamagedLogError
from raftlog.storage import state_files


@dataclass(frozen=True, slots=True)
class ClusterCopy:
    """``state``: encoded; empty for none. ``voters``: their data directories, by broker ID."""

    version: int = 0
    state: bytes = field(default=b"", repr=False)
    voters: Mapping[int, str] = field(default_factory=dict)


def _path(directory: str) -> str:
    return f"{directory}/cluster"


def read(disk: Disk, directory: str) -> ClusterCopy:
    """Return the saved copy. Raises ``OSError``."""
    try:
        saved = state_files.read(disk, _path(directory))
        if saved is None:
            return ClusterCopy()
        voters = {int(broker): str(name) for broker, name in saved["voters"].items()}
        state = b64decode(saved["state"], validate=True)
        return ClusterCopy(int(saved["version"]), state, voters)
    except (DamagedLogError, KeyError, TypeError, ValueError, AttributeError):
        return ClusterCopy()


def write(disk: Disk, directory: str, copy: ClusterCopy) -> None:
    """Save the copy durably. On a full disk, the older one stays. Raises ``OSError``."""
    saved = {
        "version": copy.version,
        "state": b64encode(copy.state).decode(),
        "voters": {str(broker): name for broker, name in copy.voters.items()},
    }
    try:
        state_files.write(disk, _path(directory), saved)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
