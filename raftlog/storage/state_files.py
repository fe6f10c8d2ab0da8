"""Small state files: human-readable JSON with a CRC-32C, replaced atomically.

    | crc32c 8 hex digits | space | JSON, one line | newline |

This module does not interpret the state. A missing file reads as None. A corrupt file raises
``DamagedLogError``: only the caller knows whether the state can be rebuilt.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from raftlog import limits
from raftlog.config import Address, parse_address
from raftlog.disk import NO_ROOM, NOWHERE, TEMPORARY_SUFFIX, Disk, lacking
from raftlog.errors import (
    DamagedLogError,
    DataDirectoryError,
    DiskFullError,
    FileLimitError,
    StorageFailedError,
)
from raftlog.record.batch import crc32c
from raftlog.types import TimestampMs

logger = logging.getLogger(__name__)

SPARE_BYTES_MIN: Final = 64 * limits.KIB
_TEXT_POSITION: Final = len("00000000 ")


_encode: Final = json.JSONEncoder(separators=(", ", ": "), sort_keys=True).encode


def text_of(value: Any) -> str:
    """Return a value as it is written."""
    return _encode(value)


def object_of(members: Mapping[str, str]) -> str:
    """Return the text of an object, of members that are text already."""
    return f"{{{', '.join(f'{text_of(name)}: {members[name]}' for name in sorted(members))}}}"


def array_of(items: Iterable[str]) -> str:
    """Return the text of an array, of items that are text already."""
    return f"[{', '.join(items)}]"


def text_in_parts(value: Any) -> str:
    """Return what ``text_of`` does, one item of a large list after the other. One call for all of
    them holds the interpreter, and so the event loop of a broker, also if a thread makes it.
    """
    if isinstance(value, dict):
        return object_of({name: text_in_parts(member) for name, member in value.items()})
    return array_of(map(text_of, value)) if isinstance(value, list) else text_of(value)


def encode(state: dict[str, Any] | str) -> bytes:
    """Return the content of a file with a state, or with its text."""
    return _sealed((state if isinstance(state, str) else text_of(state)).encode())


def _sealed(text: bytes) -> bytes:
    return b"%08x %b\n" % (crc32c(text), text)


def decode(data: bytes, *, path: str) -> dict[str, Any]:
    """Return the state in ``data``. Raises ``DamagedLogError`` with ``path`` in its text."""
    text = data[_TEXT_POSITION:-1]
    # guard: state file's CRC
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
        # guard: state file is replaced durably
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
            # guard: a full disk can be freed by the deletion of a topic
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
    """Return the state in a file; None if it is missing. Raises ``DamagedLogError``, and
    ``OSError`` if it cannot be read, or if it is unknown whether it is there.
    """
    try:
        data = disk.read_file(path, bytes_max=limits.STATE_FILE_BYTES_MAX)
    except OSError as error:
        # guard: a state that cannot be read is not a missing one
        if error.errno not in NOWHERE:
            raise
        return None
    return decode(data, path=path)


def read_hint(disk: Disk, path: str) -> dict[str, Any] | None:
    """Return the state in a file without which a broker can start: None also if it is corrupt, or
    on a bad sector. Raises other ``OSError``."""
    try:
        return read(disk, path)
    except DamagedLogError:
        return None
    except OSError as error:
        # guard: a bad sector under a hint does not prevent a start
        if error.errno != errno.EIO:
            raise
        return None


# -- faults ----------------------------------------------------------------------------------------
#
# Mapping of ``OSError`` to storage errors: no room is temporary, other failures are not.


def storage_error(doing: str, error: OSError) -> DiskFullError | StorageFailedError:
    """Return the error for a write that failed while ``doing`` (a phrase such as "writing x").

    ``DiskFullError`` if disk space ran out, its subclass ``FileLimitError`` if file descriptors or
    inodes did, else ``StorageFailedError``.
    """
    limit = lacking(error)
    if limit:
        return FileLimitError(f"{doing}: {limit}. Nothing was changed, and reads continue")
    # guard: only disk-full errors are not fatal
    if error.errno in NO_ROOM:
        return DiskFullError(
            f"{doing}: no space ({error.strerror}). Nothing was changed, and reads continue. Free "
            "disk space or shorten retention; writes then resume"
        )
    return StorageFailedError(f"{doing} failed: {error}")


# -- identity --------------------------------------------------------------------------------------
#
# Identity of a data directory: broker id, cluster id and directory id, in one state file.
#
# A directory that was wiped gets a new directory id, so the cluster can recognize it (S21).


BROKER_ID_DEFAULT: Final = 1
FORMAT_VERSION: Final = 1
CLUSTER_UNKNOWN: Final = ""  # the broker has not joined a cluster yet


@dataclass(frozen=True, slots=True)
class Identity:
    """Owner of a data directory. Every new or wiped directory gets a new ``directory_id``."""

    broker_id: int
    cluster_id: str
    directory_id: str


def stored_identity(disk: Disk, directory: str) -> Identity | None:
    """Return the identity of a data directory; None for a new one.

    Raises ``DataDirectoryError`` if it cannot be read.
    """
    path = f"{directory}/identity"
    try:
        state = read(disk, path)
    except (OSError, DamagedLogError) as error:
        raise DataDirectoryError(f"{path} cannot be read: {error}") from error
    if state is None:
        return None
    return Identity(state["broker_id"], state["cluster_id"], state["directory_id"])


class IdentityFile:
    """The file ``identity`` of a data directory."""

    def __init__(self, disk: Disk, directory: str, *, new_id: Callable[[], str]) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/identity"
        self._new_id = new_id
        self.is_new = False  # True if ``take`` created the file

    def take(self, broker_id: int | None, cluster_id: str | None) -> Identity:
        """Return the stored identity, or create one in a new directory.

        ``broker_id``, ``cluster_id``: the expected ids. None, or an empty cluster id, accepts the
        stored one. Raises ``DataDirectoryError`` if the directory belongs to another broker or
        cluster or has another format version, and ``OSError``.
        """
        state = read(self._disk, self._path)
        if state is None:
            return self._make(broker_id, cluster_id)
        if state["version"] != FORMAT_VERSION:
            raise DataDirectoryError(
                f"data directory {self._directory} has format version {state['version']}, but this "
                f"release reads version {FORMAT_VERSION}. Use the release that wrote it, or upgrade"
            )
        found = Identity(state["broker_id"], state["cluster_id"], state["directory_id"])
        # guard: directory of another broker is rejected
        if broker_id is not None and broker_id != found.broker_id:
            raise self._of_another("broker", found.broker_id, broker_id)
        return self.adopt(found, cluster_id or found.cluster_id)

    def adopt(self, identity: Identity, cluster_id: str) -> Identity:
        """Save and return the identity with ``cluster_id``, durably. Raises ``DataDirectoryError``
        if the directory belongs to another cluster, and ``OSError``."""
        if cluster_id == identity.cluster_id:
            return identity
        # guard: directory of another cluster is rejected
        if identity.cluster_id != CLUSTER_UNKNOWN:
            raise self._of_another("cluster", identity.cluster_id, cluster_id)
        return self._write(replace(identity, cluster_id=cluster_id))

    def _make(self, broker_id: int | None, cluster_id: str | None) -> Identity:
        self.is_new = True
        with suppress(PermissionError):  # the parent belongs to another user
            self._disk.sync_dir(os.path.dirname(self._directory) or ".")
        return self._write(
            Identity(
                BROKER_ID_DEFAULT if broker_id is None else broker_id,
                self._new_id() if cluster_id is None else cluster_id,
                self._new_id(),
            )
        )

    def _write(self, identity: Identity) -> Identity:
        write(
            self._disk,
            self._path,
            {
                "version": FORMAT_VERSION,
                "broker_id": identity.broker_id,
                "cluster_id": identity.cluster_id,
                "directory_id": identity.directory_id,
            },
        )
        return identity

    def _of_another(self, what: str, found: object, wanted: object) -> DataDirectoryError:
        return DataDirectoryError(
            f"data directory {self._directory} belongs to {what} id {found}, not {wanted}. "
            f"Use the data directory of {what} {wanted}, or an empty directory"
        )


# -- clean mark ------------------------------------------------------------------------------------
#
# The file ``clean``: marks a data directory that was closed cleanly and is not open.
#
# With flush.policy=os, the broker acknowledges records that are not synced. If the mark is missing
# at the start, some of these records may be lost.


def _path(directory: str) -> str:
    return f"{directory}/clean"


def take(disk: Disk, directory: str, *, directory_id: str) -> bool:
    """Return True if ``directory`` has a clean mark, and remove the mark durably.

    A mark with another directory id (of a partial copy) does not count. Raises ``OSError``.
    """
    path = _path(directory)
    if not disk.exists(path):
        return False
    mark = read_hint(disk, path)
    disk.remove(path)
    # guard: clean mark is removed durably
    disk.sync_dir(directory)
    # guard: clean mark is of this directory
    return mark == {"directory_id": directory_id}


def leave(disk: Disk, directory: str, *, directory_id: str) -> None:
    """Mark ``directory`` as clean, durably. The caller has synced all its contents.

    On a full disk, no mark is written. The next start then treats this stop as a crash. Raises
    ``OSError``.
    """
    try:
        write(disk, _path(directory), {"directory_id": directory_id})
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


# -- clock file ------------------------------------------------------------------------------------
#
# The file ``clock`` of a data directory: the last time that the broker used to delete data.
#
# The next start compares its wall clock with this time (``replication.trusted_time``). If the file
# is missing, the broker trusts the wall clock.


def _clock_path(directory: str) -> str:
    return f"{directory}/clock"


def read_clock(disk: Disk, directory: str) -> TimestampMs | None:
    """Return the saved time in ms; None if the file is missing or corrupt. Raises ``OSError``."""
    state = read_hint(disk, _clock_path(directory))
    return None if state is None else int(state["deletion_ms"])


def write_clock(disk: Disk, directory: str, deletion_ms: TimestampMs) -> None:
    """Save the time durably. On a full disk, the older time stays. Raises ``OSError``."""
    try:
        write(disk, _clock_path(directory), {"deletion_ms": deletion_ms})
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


# -- access file -----------------------------------------------------------------------------------
#
# The file `access` of a data directory: access rules and quotas of a broker without `voters`, of an
# earlier release.
#
# Now they are part of the cluster state. A missing file means that there are none. A
# corrupt file is an error: without its rules, a principal that is denied could be permitted.


def _access_path(directory: str) -> str:
    return f"{directory}/access"


def read_access(disk: Disk, directory: str) -> bytes:
    """Return the saved state; empty if there is none. Raises ``DamagedLogError`` if the file is
    corrupt, and ``OSError``.
    """
    path = _access_path(directory)
    state = read(disk, path)
    if state is None:
        return b""
    try:
        return b64decode(state["state"], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise DataDirectoryError(f"{path} contains no access rules") from error


# -- brokers file ----------------------------------------------------------------------------------
#
# The file ``brokers`` of a data directory: last known addresses of the brokers of the cluster.
#
# A broker that joined the cluster uses it to find the others at its next start. It is a hint: the
# cluster state has the current addresses. A missing or corrupt file is empty.


def _brokers_path(directory: str) -> str:
    return f"{directory}/brokers"


def read_brokers(disk: Disk, directory: str) -> dict[int, Address]:
    """Return the saved addresses by broker ID. Raises ``OSError``."""
    state = read_hint(disk, _brokers_path(directory)) or {}
    return {int(broker): parse_address(text) for broker, text in state.items()}


def write_brokers(disk: Disk, directory: str, addresses: Mapping[int, Address]) -> None:
    """Save the addresses durably. On a full disk, the older ones stay. Raises ``OSError``."""
    state = {str(broker): str(address) for broker, address in addresses.items()}
    try:
        write(disk, _brokers_path(directory), state)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


# -- cluster file ----------------------------------------------------------------------------------
#
# The file `cluster` of a data directory: the cluster state on a broker without a vote. Voters store
# it in their consensus journal. This copy is for the day on which no voter is left: a recovery
# continues from the newest one. A missing or corrupt file is none.


@dataclass(frozen=True, slots=True)
class ClusterCopy:
    """``state``: encoded; empty for none. ``voters``: their data directories, by broker ID."""

    version: int = 0
    state: bytes = field(default=b"", repr=False)
    voters: Mapping[int, str] = field(default_factory=dict)


def _cluster_path(directory: str) -> str:
    return f"{directory}/cluster"


def read_cluster(disk: Disk, directory: str) -> ClusterCopy:
    """Return the saved copy. Raises ``OSError``."""
    try:
        saved = read_hint(disk, _cluster_path(directory))
        if saved is None:
            return ClusterCopy()
        voters = {int(broker): str(name) for broker, name in saved["voters"].items()}
        state = b64decode(saved["state"], validate=True)
        return ClusterCopy(int(saved["version"]), state, voters)
    except (KeyError, TypeError, ValueError, AttributeError):
        return ClusterCopy()


def write_cluster(disk: Disk, directory: str, copy: ClusterCopy) -> None:
    """Save the copy durably. On a full disk, the older one stays. Raises ``OSError``."""
    saved = {
        "version": copy.version,
        "state": b64encode(copy.state).decode(),
        "voters": {str(broker): name for broker, name in copy.voters.items()},
    }
    try:
        write(disk, _cluster_path(directory), saved)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


# -- place -----------------------------------------------------------------------------------------
#
# The files `place` and `place.mark` of a data directory: recognize a copy, or a restored one.
#
# A copy that was taken while the broker ran lacks the votes and acknowledgements that the broker
# gave afterwards. If it started in place of the original, it would vote again, and lead without
# records that it has acknowledged. Files keep their inode number until they are copied, so a mark
# with another number is a copy. It becomes a new member of the cluster: without a vote, like an
# empty directory, until the others give it one; but with its records, of which only the missing
# ones are copied.
#
# A directory that was closed cleanly may be moved: the others know if it has run since (its boot
# number). A block device that is restored keeps its numbers: the others recognize it by the
# position of its journal (``Journal.note_heard``), if one of them is there that has heard more.


@dataclass(frozen=True, slots=True)
class Place:
    """``member_id``: ID under which the cluster knows the directory. ``former_id``: its ID before
    this start, if the directory is a copy; else empty."""

    member_id: str
    former_id: str = ""

    def notes(self) -> list[str]:
        """Return log lines about what was found."""
        if not self.former_id:
            return []
        ids = f"member_id={self.member_id} former_id={self.former_id}"
        return [f"data directory copied or restored: the others have to admit it first; {ids}"]


def take_place(
    disk: Disk, directory: str, *, directory_id: str, may_move: bool, new_id: Callable[[], str]
) -> Place:
    """Return the ID of the directory in the cluster, and store where it is.

    ``may_move``: it was closed cleanly, or has no peers. Raises ``OSError``.
    """
    path, mark = f"{directory}/place", f"{directory}/place.mark"
    known = None
    with suppress(DamagedLogError):
        known = read(disk, path)
    if not disk.exists(mark):
        disk.open(mark, create=True).close()
        disk.sync_dir(directory)
    inode = disk.inode(mark)
    if known is None or known.get("directory_id") != directory_id:
        known = {"directory_id": directory_id, "member_id": directory_id, "inode": 0}
    member_id, was = str(known["member_id"]), known["inode"]
    if inode == was:
        return Place(member_id)
    # guard: a directory that was copied while it was open is another member
    is_copy = bool(was and inode) and not may_move
    place = Place(new_id(), member_id) if is_copy else Place(member_id)
    state = {"directory_id": directory_id, "member_id": place.member_id, "inode": inode}
    try:
        write(disk, path, state)
    except OSError as error:
        if is_copy or error.errno not in NO_ROOM:
            raise
    return place


# -- name syncs ------------------------------------------------------------------------------------
#
# Syncs of directories that contain those of partitions: one for all that were created before it.
#
# The first records of many partitions of a topic create many directories in that of the topic. Each
# needs a sync of it that began after its creation, and several can share it.


SYNCED_MAX: Final = 1_000  # paths that are known to be synced; without them, a sync is repeated


class NameSyncs:
    """Creations and syncs in one log directory. Any thread may call."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._created = 0
        self._lock = threading.Lock()  # guards ``_created``
        self._syncing = disk.mutex()  # acquired before ``_lock``
        self._synced: dict[str, int] = {}  # by path: ``_created`` when its last sync began

    def created(self) -> int:
        """Return the number of a name that was just created, or was found, for ``sync``."""
        with self._lock:
            self._created += 1
            return self._created

    def sync(self, path: str, number: int) -> None:
        """Make the name ``number`` in the directory ``path`` durable. Raises ``OSError``."""
        with self._syncing:
            # guard: a shared sync is of the same directory
            if self._synced.get(path, 0) >= number:
                return
            with self._lock:
                created = self._created
            self._disk.sync_dir(path)
            if len(self._synced) >= SYNCED_MAX:
                self._synced.clear()
            # guard: a shared sync began after the creation of the name
            self._synced[path] = created
