"""Log directories of a broker: the data directory, and those of ``log.dirs`` on other disks.

    <log directory>/lock           held while the directory is open
    <log directory>/log-dir        its id, and the data directory to which it belongs
    <log directory>/probe          written periodically, to find out if the disk works
    <log directory>/topics/...     logs, as in the data directory

If one of them fails, the replicas in it are offline, and the broker continues with the others
(KIP-112). Only the data directory is required: it contains the identity, the catalog, the record of
the copies and the consensus journal. The catalog contains in which directory each replica is, by
the id of the directory: its path may change. A directory that is missing at a start is never
created again, because its replicas would then be empty.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from typing import Any, Final, NamedTuple

from raftlog import limits
from raftlog.disk import NO_ROOM, TEMPORARY_SUFFIX, Disk, Lock, missing
from raftlog.errors import DamagedLogError, DataDirectoryError, counted
from raftlog.storage import state_files
from raftlog.storage.catalog import Catalog, KnownLogDir, Topic
from raftlog.storage.state_files import Identity, NameSyncs, storage_error

NAME: Final = "log-dir"
PROBE_BYTES: Final = 64 * limits.KIB  # written to find out whether writes fail
FORMAT_VERSION: Final = 1
# In an empty directory too: ext4 creates the second one, an interrupted start the third one.
_NO_CONTENT: Final = frozenset(("lock", "lost+found", f"{NAME}{TEMPORARY_SUFFIX}"))
_TOPICS_SHOWN_MAX: Final = 5


class DiskMeasure(NamedTuple):
    """State of a file system. Inodes and files are -1 if there is no limit, or it is unknown."""

    free_bytes: int
    size_bytes: int
    free_inodes: int = -1
    inodes: int = -1
    open_files: int = -1  # of this process
    open_files_max: int = -1
    failure: str = ""  # why a write of a few bytes failed, if one was tried


class LogDir:
    """One log directory. ``id`` is "" for the data directory."""

    def __init__(self, disk: Disk, path: str, id_: str = "", failure: str = "") -> None:
        self.id = id_
        self.path = path
        self.failure = failure  # why its replicas are offline; "" while it works
        self.on_failed: Callable[[LogDir], None] = _ignore  # called once; in any thread
        # Whether new replicas should be placed elsewhere: the disk hangs, or is nearly full.
        self.is_avoided: Callable[[], bool] = _never
        self._disk = disk
        self.names = NameSyncs(disk)

    @property
    def is_expendable(self) -> bool:
        """Whether the broker continues without it."""
        return bool(self.id)

    def fail(self, reason: str) -> None:
        """Take its replicas offline, until the next start of the broker. Only the first call of
        a failed directory has an effect."""
        assert self.is_expendable, "the broker ends with its data directory"
        if not self.failure:
            self.failure = (
                f"log directory {self.path} has failed: {reason}. Its replicas are offline. Check "
                "the disk (dmesg, SMART) and that it is mounted, then restart the broker"
            )
            self.on_failed(self)

    def is_cause_of(self, error: Exception) -> bool:
        """Whether this directory, and not the data directory, has failed if work on a log in it
        raised ``error``."""
        if not self.is_expendable:
            return False
        path = error.filename if isinstance(error, OSError) else None
        # guard: a failure of the data directory ends the broker
        return path is None or str(path) == self.path or str(path).startswith(f"{self.path}/")

    def contain(self, error: OSError) -> None:
        """Fail this directory, because work in it raised ``error``. Raises ``error`` if the disk is
        full, or if the data directory has failed."""
        if error.errno in NO_ROOM or not self.is_cause_of(error):
            raise error
        self.fail(str(error))

    @contextmanager
    def containing_failures(self) -> Iterator[None]:
        """``contain`` an ``OSError`` of the block, and end the block."""
        try:
            yield
        except OSError as error:
            self.contain(error)

    def check_place(self) -> None:
        """Fail this directory if its path does not lead to it any longer. Any thread may call."""
        if self.is_expendable and not self.failure:
            with self.containing_failures():
                state = _read(self._disk, self.path)
                if state is None or state["id"] != self.id:
                    raise missing(f"{self.path}/{NAME}")

    def probe(self) -> None:
        """Fail this directory if its path does not lead to it, or if it cannot be written. Blocks
        while its disk hangs, also one without other work. Any thread may call."""
        try:
            self.check_place()
            if not self.failure:
                self._disk.write_atomic(f"{self.path}/probe", b"")
        except OSError as error:
            if error.errno not in NO_ROOM:  # else the next probe decides
                self.contain(error)

    def has_surplus(self) -> bool:
        """Return whether more files are open than permitted: a sync lets them be closed."""
        return self._disk.has_surplus()

    def measure(self, *, tries_write: bool = False) -> DiskMeasure:
        """Close files above the limit, and return the state of its disk. ``tries_write``: also
        whether a file can be created and written. Blocks; any thread may call. Raises ``OSError``.
        """
        disk, path = self._disk, self.path
        disk.close_surplus(path)
        failure = self._write_failure() if tries_write else ""
        return DiskMeasure(
            disk.free_bytes(path),
            disk.total_bytes(path),
            *disk.inodes(path),
            *disk.open_files(),
            failure,
        )

    def _write_failure(self) -> str:
        path = f"{self.path}/probe{TEMPORARY_SUFFIX}"
        try:
            file = self._disk.open(path, create=True)
            try:
                file.append([bytes(PROBE_BYTES)])
            finally:
                file.close()
                self._disk.remove(path)
        except OSError as error:
            return str(storage_error(f"writing {path}", error))
        return ""


def _ignore(_log_dir: LogDir) -> None:
    """Default of ``LogDir.on_failed``: do nothing."""


def _never() -> bool:
    return False


def _read(disk: Disk, path: str) -> dict[str, Any] | None:
    """Return the state in the file ``log-dir``; None if it is missing. Raises ``OSError``."""
    try:
        return state_files.read(disk, f"{path}/{NAME}")
    except DamagedLogError as error:
        raise OSError(errno.EIO, str(error)) from error


class LogDirs:
    """All log directories of a broker, the data directory first. They are locked until
    ``release``."""

    def __init__(self, disk: Disk, data_dir: str) -> None:
        self._disk = disk
        self._locks: list[Lock] = []
        self._by_id = {"": LogDir(disk, data_dir)}

    def __iter__(self) -> Iterator[LogDir]:
        return iter(self._by_id.values())

    @property
    def further(self) -> list[LogDir]:
        """Return those besides the data directory."""
        return [log_dir for log_dir in self if log_dir.is_expendable]

    @property
    def online(self) -> list[LogDir]:
        return [log_dir for log_dir in self if not log_dir.failure]

    def get(self, id_: str) -> LogDir | None:
        """Return the log directory with an id; None if it is not in use any longer."""
        return self._by_id.get(id_)

    def __getitem__(self, id_: str) -> LogDir:
        return self._by_id[id_]

    def release(self) -> None:
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    # -- at the start ------------------------------------------------------------------------------

    def attach(
        self, paths: Sequence[str], catalog: Catalog, identity: Identity, new_id: Callable[[], str]
    ) -> list[str]:
        """Add the directories ``paths`` of ``log.dirs``, and create those that are new. Returns
        notes for the operator's log.

        A known directory that is missing or cannot be used is added as a failed one. One that is
        empty has replaced the known one, and the replicas are copied again. Raises
        ``DataDirectoryError`` if the settings and the directories do not match,
        ``DiskFullError``, ``StorageFailedError`` (catalog) and ``OSError``.
        """
        data_dir = self._by_id[""].path
        _check_paths(self._disk, [data_dir, *paths])
        notes: list[str] = []
        for path in paths:
            log_dir = self._open(path, _known_at(catalog, path), identity, new_id)
            # guard: a log directory is not copied
            if log_dir.id in self._by_id:
                raise DataDirectoryError(
                    f"log directories {self._by_id[log_dir.id].path} and {path} are the same "
                    "directory, or one is a copy of the other. Remove one of them from log.dirs"
                )
            self._by_id[log_dir.id] = log_dir
            notes += filter(None, [log_dir.failure])
        now_at = {log_dir.path: log_dir.id for log_dir in self.further}
        gone = {id_: known for id_, known in catalog.log_dirs.items() if id_ not in self._by_id}
        replaced = {id_: now_at[at.path] for id_, at in gone.items() if at.path in now_at}
        # guard: a removed log directory has no replicas
        _check_unused(catalog, {id_: at for id_, at in gone.items() if id_ not in replaced})
        notes += [
            f"log directory {gone[id_].path} was replaced by an empty directory: the replicas in "
            "it are copied again from other brokers"
            for id_ in replaced
            if _replicas_in(catalog, id_)
        ]
        known = {each.id: self._known(each, catalog) for each in self.further}
        catalog.use_log_dirs(known, replaced)
        return notes

    def _known(self, log_dir: LogDir, catalog: Catalog) -> KnownLogDir:
        if log_dir.failure:
            return catalog.log_dirs[log_dir.id]
        return KnownLogDir(log_dir.path, self._disk.is_mount(log_dir.path))

    def _open(
        self,
        path: str,
        known: tuple[str, KnownLogDir] | None,
        identity: Identity,
        new_id: Callable[[], str],
    ) -> LogDir:
        """Lock and return a log directory: a failed one if it cannot be used, but was before."""
        try:
            return self._lock_and_read(path, known, identity, new_id)
        except BlockingIOError as error:
            raise DataDirectoryError(
                f"log directory {path} is in use by another process. Stop the broker that uses it, "
                "or specify another directory in log.dirs"
            ) from error
        except OSError as error:
            if known is None:
                raise DataDirectoryError(
                    f"log directory {path} cannot be used: {error}. Check its permissions and that "
                    "its file system is mounted, or remove it from log.dirs"
                ) from error
            failed = LogDir(self._disk, path, known[0])
            failed.fail(str(error))
            return failed

    def _lock_and_read(
        self,
        path: str,
        known: tuple[str, KnownLogDir] | None,
        identity: Identity,
        new_id: Callable[[], str],
    ) -> LogDir:
        disk = self._disk
        # guard: a known log directory is never created again
        if known is None:
            disk.make_dirs(path)
        # guard: a bare mount point is no empty disk
        elif known[1].is_mount and not disk.is_mount(path):
            raise OSError(errno.ENODEV, "its file system is not mounted", path)
        content = set(disk.list_dir(path)) - _NO_CONTENT
        disk.make_private(path)
        self._locks.append(disk.lock(f"{path}/lock"))
        state = _read(disk, path)
        if state is None:
            # guard: a log directory with files has an identity
            if content:
                text = "it is not empty, and its file is missing"
                raise OSError(errno.ENOENT, text, f"{path}/{NAME}")
            state = self._create(path, identity, new_id())
        if state["version"] != FORMAT_VERSION:
            raise DataDirectoryError(
                f"log directory {path} has format version {state['version']}, but this release "
                f"reads version {FORMAT_VERSION}. Use the release that wrote it, or upgrade"
            )
        # guard: a log directory belongs to one data directory
        if state["directory_id"] != identity.directory_id:
            raise DataDirectoryError(
                f"log directory {path} belongs to broker id {state['broker_id']} with another data "
                f"directory (directory id {state['directory_id']}, not {identity.directory_id}). "
                "Use it with that data directory. If that is lost, empty this directory: replicas "
                "are copied from other brokers"
            )
        disk.sync_dir(path)  # the file may have been renamed without a sync
        return LogDir(disk, path, state["id"])

    def _create(self, path: str, identity: Identity, id_: str) -> dict[str, Any]:
        state = {
            "version": FORMAT_VERSION,
            "id": id_,
            "broker_id": identity.broker_id,
            "directory_id": identity.directory_id,
        }
        state_files.write(self._disk, f"{path}/{NAME}", state)
        return state

    # -- placement ---------------------------------------------------------------------------------

    def place(
        self,
        topic: Topic,
        partitions: Iterable[int],
        *,
        placed: Iterable[Topic],
        relative_path: Callable[[int], str],
    ) -> Topic:
        """Return ``topic`` with a directory for each of its new ``partitions``: the one that has
        the fewest replicas, as Kafka does. An interrupted creation is continued where it was.

        ``placed``: all topics. ``relative_path``: of a partition, below a log directory.

        The number of replicas, and not the free space, because that does not change while a topic
        is created: all its replicas would be in one directory.
        """
        online = self.online
        if len(self._by_id) == 1:
            return topic
        counts = Counter(held.log_dir_of(number) for held in placed for number in held.local)
        usable = [log_dir for log_dir in online if not log_dir.is_avoided()] or online
        chosen = dict(topic.log_dirs)
        for number in partitions:
            path = relative_path(number)
            begun = [each for each in usable if self._disk.exists(f"{each.path}/{path}")]
            log_dir = (begun or sorted(usable, key=lambda each: counts[each.id]))[0]
            counts[log_dir.id] += 1
            if log_dir.is_expendable:
                chosen[number] = log_dir.id
        return replace(topic, log_dirs=chosen)


def _known_at(catalog: Catalog, path: str) -> tuple[str, KnownLogDir] | None:
    found = [item for item in catalog.log_dirs.items() if item[1].path == path]
    return found[0] if found else None


def _check_paths(disk: Disk, paths: Sequence[str]) -> None:
    """Raise ``DataDirectoryError`` if one directory is another one, or inside it."""
    real = [os.path.join("/", disk.real_path(path)) for path in paths]
    for (path, at), (other, other_at) in combinations(zip(paths, real, strict=True), 2):
        # guard: no log directory is inside another one
        if os.path.commonpath([at, other_at]) in (at, other_at):
            raise DataDirectoryError(
                f"data.dir and log.dirs: {path} and {other} are the same directory, or one is "
                "inside the other. Use separate directories, best each on its own disk"
            )


def _replicas_in(catalog: Catalog, id_: str) -> list[str]:
    return [
        f"{topic.name}:{number}"
        for topic in catalog.by_id.values()
        for number in topic.local
        if topic.log_dir_of(number) == id_
    ]


def _check_unused(catalog: Catalog, removed: Mapping[str, KnownLogDir]) -> None:
    """Raise ``DataDirectoryError`` if a directory that is not in ``log.dirs`` has replicas."""
    for id_, known in removed.items():
        replicas = _replicas_in(catalog, id_)
        if replicas:
            shown = ", ".join(replicas[:_TOPICS_SHOWN_MAX])
            more = ", …" if len(replicas) > _TOPICS_SHOWN_MAX else ""
            raise DataDirectoryError(
                f"{known.path} is not in log.dirs any longer, and "
                f"{counted(len(replicas), 'replica')} of this "
                f"broker are in it ({shown}{more}). Add it to log.dirs again, and move them to "
                "other brokers first (raftlog cluster reassign). If its disk is lost, mount an "
                "empty one there: the replicas are then copied again from other brokers"
            )
