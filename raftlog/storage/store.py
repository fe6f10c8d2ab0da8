"""Data directory of a broker: identity, topics and logs.

    <directory>/lock                              held while the directory is open
    <directory>/identity                          broker id, cluster id, directory id (``identity``)
    <directory>/clean                             exists after a clean stop, until the next open
    <directory>/catalog                           topics and their settings (``catalog``)
    <directory>/copies                            record of the partition copies (``copies``)
    <directory>/brokers                           addresses of other brokers (``state_files``)
    <directory>/cluster                           the cluster state (``state_files``)
    <directory>/place, place.mark                 whether it is a copy (``state_files``)
    <directory>/consensus.journal                 path only; ``consensus`` writes it
    <directory>/topics/<name>/<topic id>/<partition>/   one log each (``log``)

Logs can also be in further log directories, on other disks (``log_dirs``).

Logs have one owner thread. The methods that change topics block on the disk. They may run in
another thread, one at a time, and their result becomes visible atomically.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

from raftlog.config import Address
from raftlog.disk import MISSING, Disk, Lock
from raftlog.errors import (
    DamagedLogError,
    DataDirectoryError,
    DiskFullError,
    RaftlogError,
    UnknownPartitionError,
)
from raftlog.storage import quarantine, state_files
from raftlog.storage.catalog import Catalog, Dropping, Topic
from raftlog.storage.checkpoint import Copies
from raftlog.storage.log import Log
from raftlog.storage.log_dirs import LogDir, LogDirs
from raftlog.storage.segment import LOG_SUFFIX, base_offsets
from raftlog.storage.state_files import Identity, IdentityFile, storage_error
from raftlog.types import TimestampMs, TopicPartition, check_topic_name

# Another process may remove the directories at the same time.
MOVE_ATTEMPTS: Final = 100
JOURNAL_NAME: Final = "consensus.journal"


def _random_id() -> str:
    return uuid.uuid4().hex


class Store:
    """An open data directory. Create it with ``Store.open``, and call ``close`` at the end."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        lock: Lock,
        identity_file: IdentityFile,
        identity: Identity,
        catalog: Catalog,
        copies: Copies,
        *,
        has_peers: bool,
    ) -> None:
        self.directory = directory
        self.log_dirs = LogDirs(disk, directory)
        self.identity = identity
        # True if the previous process closed the store, or the directory is new. With
        # flush.policy=os, all acknowledged records are certain to be stored only then.
        self.was_clean = identity_file.is_new
        self.saved_time_ms: TimestampMs | None = None  # last time of ``save_time``
        self._disk = disk
        self._lock = lock
        self._identity_file = identity_file
        self._catalog = catalog
        self._copies = copies
        self.saved_brokers: Mapping[int, Address] = {}  # by ID, from the file ``brokers``
        self.saved_cluster = state_files.ClusterCopy()
        self.place = state_files.Place(identity.directory_id)
        self._logs = TopicLogs(disk, self.log_dirs, copies, cuts_torn=not has_peers)
        self.notes: list[str] = []  # findings of ``open`` outside the logs, for the operator's log
        # By topic id and partition: quarantined files whose new log found no disk space.
        self._moved: dict[tuple[str, int], tuple[str, list[str]]] = {}

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        broker_id: int | None = None,
        cluster_id: str | None = None,
        new_id: Callable[[], str] = _random_id,
        has_peers: bool = False,
        log_dirs: Sequence[str] = (),
    ) -> Store:
        """Open or create a data directory, and recover all its logs.

        ``log_dirs``: further directories for logs. Logs in those that cannot be used are offline.
        ``broker_id``: expected broker id; None accepts the stored one (new directory: 1).
        ``cluster_id``: expected cluster id; None accepts the stored one (new directory: a random
        id); "" accepts the stored one (new directory: unset until ``adopt_cluster_id``).
        ``has_peers``: True if other brokers may have copies of these logs. Torn writes are then not
        truncated, and logs that may lack acknowledged records are marked (``Log.doubt``), until
        ``resolve``.

        Raises ``DataDirectoryError`` if another process has the directory open, if it belongs to
        another broker or cluster, or if it cannot be read or written.
        """
        with ExitStack() as undo:
            lock = _lock(disk, directory)
            undo.callback(lock.release)
            link = disk.dangling_link(f"{directory}/topics")
            # guard: a lone broker does not start if `topics` is a dangling link
            if link and not has_peers:  # else other brokers may have the records
                raise DataDirectoryError(
                    f"data directory {directory} has no topics: {quarantine.dangling_text(link)}, "
                    f"and {directory}/copies, to start without the records (data loss)"
                )
            try:
                identity_file = IdentityFile(disk, directory, new_id=new_id)
                identity = identity_file.take(broker_id, cluster_id)
                catalog = Catalog(disk, f"{directory}/catalog")
                copies = Copies(disk, directory, new_id=new_id, is_new=identity_file.is_new)
                store = cls(
                    disk,
                    directory,
                    lock,
                    identity_file,
                    identity,
                    catalog,
                    copies,
                    has_peers=has_peers,
                )
                undo.callback(store.abandon)
                # guard: a killed process's renames are synced
                disk.sync_dir(directory)  # a killed process may have renamed a file without it
                store.notes = store.log_dirs.attach(log_dirs, catalog, identity, new_id)
                store._open_logs()
                store._read_files(new_id, has_peers=has_peers)
                # guard: unsynced replicas are in doubt after a crash
                if has_peers and not store.was_clean:
                    store._mark_unsynced_suspect()
            except DamagedLogError as error:
                raise DataDirectoryError(
                    f"{error}. Restore this file from a backup, or start with an empty directory"
                ) from error
            except OSError as error:
                raise DataDirectoryError(
                    f"data directory {directory} cannot be used: {error}"
                ) from error
            undo.pop_all()
            return store

    def _open_logs(self) -> None:
        for topic in list(self._catalog.deleting.values()):
            self._remove_files(topic)
        self._remove_partitions(self._catalog.dropping)
        for topic in self._catalog.by_id.values():
            self._logs.open_all(topic)
            self._logs.make_successors_durable(topic)
        # guard: a removed copy that a restore brings back is quarantined
        self.notes += self._logs.quarantine_strays()
        # guard: logs opened before their disk failed are offline too
        self._check_log_dirs()

    def _check_log_dirs(self) -> None:
        """Take logs offline whose log directory has failed since they were opened. Only for logs
        that no other thread uses yet."""
        for log in self._logs.logs():
            if log.is_offline:
                log.go_offline()

    def _mark_unsynced_suspect(self) -> None:
        """Mark logs with flush.policy=os: acknowledged records may not be on the disk (S12)."""
        for topic, _partition, log in self.hosted():
            if topic.config.flush_policy == "os":
                log.doubt = "the broker did not stop cleanly, and flush.policy=os"

    def _remove_files(self, topic: Topic) -> None:
        """Remove the files of a deleted topic, durably, and then its entry in the catalog."""
        self._logs.remove_topic(topic)
        # guard: topics in a failed log directory are removed later
        if self._logs.is_removed(topic):  # otherwise, a later start removes the rest
            self._catalog.deleted(topic)

    def _remove_partitions(self, drops: Sequence[Dropping]) -> None:
        """Remove the files of dropped partitions, durably, and then their entries in the catalog.
        With the last partition, also remove the topic directory."""
        if not drops:
            return
        # A partition can be here again, in another log directory, with another copy.
        # guard: the copy in another log directory keeps its record
        gone = [drop for drop in drops if not self._catalog.holds(drop.id, drop.partition)]
        # guard: the record of a deleted copy is removed
        self._copies.forget((drop.id, drop.partition) for drop in gone)
        removed = self._logs.remove_partitions(drops)
        for drop in self._catalog.unneeded(removed).values():
            self._logs.remove_topic(drop)
        self._catalog.dropped(removed)

    # -- identity, journal, clock ------------------------------------------------------------------

    @property
    def journal_path(self) -> str:
        """Path of the consensus journal in this directory."""
        return f"{self.directory}/{JOURNAL_NAME}"

    def reserve_for_journal(self, size: int) -> None:
        """Reserve disk space for ``size`` more bytes of the journal, or as much as is free.

        Any thread may call. Raises ``OSError``.
        """
        self._disk.reserve(self.journal_path, size)

    def save_time(self, deletion_ms: TimestampMs) -> None:
        """Save the time that the broker uses to delete data, durably (``state_files``).

        Any thread may call. Raises ``StorageFailedError``.
        """
        try:
            state_files.write_clock(self._disk, self.directory, deletion_ms)
        except OSError as error:
            raise storage_error("saving the deletion time", error) from error
        self.saved_time_ms = deletion_ms

    def save_brokers(self, addresses: Mapping[int, Address]) -> None:
        """Save the addresses of the cluster's brokers, by ID, durably (``state_files``).

        Any thread may call. Raises ``StorageFailedError``.
        """
        try:
            state_files.write_brokers(self._disk, self.directory, addresses)
        except OSError as error:
            raise storage_error("saving the addresses of the brokers", error) from error

    def save_cluster(self, copy: state_files.ClusterCopy) -> None:
        """Save the state of the cluster, durably (``state_files``).

        Any thread may call. Raises ``StorageFailedError``.
        """
        try:
            state_files.write_cluster(self._disk, self.directory, copy)
        except OSError as error:
            raise storage_error("saving the state of the cluster", error) from error

    def adopt_cluster_id(self, cluster_id: str) -> None:
        """Assign this directory to a cluster, durably. Called when a new broker joins the cluster.

        Raises ``DataDirectoryError`` if the directory belongs to another cluster, ``DiskFullError``
        and ``StorageFailedError``.
        """
        try:
            self.identity = self._identity_file.adopt(self.identity, cluster_id)
        except OSError as error:
            raise storage_error("writing the cluster id", error) from error

    # -- queries -----------------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Topics by name. If two topics have the same name, the newest one."""
        return self._catalog.topics

    @property
    def was_in_cluster(self) -> bool:
        """Whether the directory has traces of a cluster: its brokers, or partitions that it has
        placed. In earlier releases, a broker without `voters` had all partitions of its topics.
        """
        topics = self._catalog.by_id.values()
        return bool(self.saved_brokers) or any(topic.hosted is not None for topic in topics)

    def topic(self, name: str) -> Topic:
        """Return a topic. Raises ``InvalidTopicError`` or ``UnknownTopicError``."""
        return self._catalog.get(check_topic_name(name))

    def log(self, name: str, partition: int) -> Log:
        """Return the log of a partition.

        Raises ``InvalidTopicError``, ``UnknownTopicError``, or ``UnknownPartitionError`` if the
        partition does not exist or is not on this broker.
        """
        topic = self.topic(name)
        log = self._logs.get(topic.id, partition)
        if log is None:
            raise UnknownPartitionError(
                f"topic {name!r} has no partition {partition}: it has {topic.partitions} "
                "partitions, numbered from 0"
                if topic.hosted is None
                else f"partition {partition} of topic {name!r} is not on this broker"
            )
        return log

    def hosted_log(self, topic_id: str, partition: int) -> Log:
        """Like ``log``, by topic id. Raises ``UnknownPartitionError``."""
        log = self._logs.get(topic_id, partition)
        if log is None:
            raise UnknownPartitionError(
                f"partition {partition} of the topic with id {topic_id} is not on this broker"
            )
        return log

    def logs(self) -> Iterator[tuple[TopicPartition, Log]]:
        """Yield the open logs with topic name and partition."""
        for topic, partition, log in self.hosted():
            yield TopicPartition(topic.name, partition), log

    def hosted(self) -> Iterator[tuple[Topic, int, Log]]:
        """Yield the open logs with their topic and partition number."""
        by_id = self._catalog.by_id
        for key, log in self._logs.entries():
            if key.topic_id in by_id:
                yield by_id[key.topic_id], key.partition, log

    def free_bytes(self) -> int:
        return self._disk.free_bytes(self.directory)

    def quarantined_bytes(self, log_dir: LogDir) -> int:
        """Return the size of all copies in quarantine in a log directory. Blocking; any thread may
        call. Raises ``OSError``."""
        topics = tuple(self._catalog.by_id.values())
        paths = [f"{log_dir.path}/{topic_path(topic)}" for topic in topics]
        return sum(quarantine.size_bytes(self._disk, path) for path in paths)

    def _placed(self, topic: Topic, partitions: Iterable[int]) -> Topic:
        """Return the topic with a log directory for each of its new partitions."""
        return self.log_dirs.place(
            topic,
            partitions,
            placed=self._catalog.by_id.values(),
            relative_path=lambda number: f"{topic_path(topic)}/{number}",
        )

    # -- changes (blocking) ------------------------------------------------------------------------

    def host_partitions(
        self,
        name: str,
        topic_id: str,
        partitions: Sequence[int],
        *,
        total_partitions: int,
        overrides: Mapping[str, str],
    ) -> list[Log]:
        """Return the logs of ``partitions`` of a topic. Creates the logs that do not exist.

        Durable on return. Also updates the topic's partition count and settings. The catalog is
        written once. Raises ``InvalidTopicError``, ``InvalidPartitionsError``,
        ``InvalidConfigError``, ``DiskFullError`` and ``StorageFailedError``.

        The directories are created before the catalog entry, so that the logs of every topic in the
        catalog can be opened. Empty logs of an interrupted attempt are reused.
        """
        topic = self._catalog.plan_hosting(
            name, topic_id, partitions, total=total_partitions, overrides=overrides
        )
        is_new = [number for number in partitions if self._logs.get(topic_id, number) is None]
        try:
            self._remove_partitions(
                [
                    drop
                    for drop in self._catalog.dropping
                    if drop.id == topic_id and drop.partition in partitions
                ]
            )
            # guard: hosted copy's directories are durable before its name
            if is_new:
                topic = self._placed(topic, is_new)
                self._logs.create(topic, is_new)
                self._logs.make_names_durable(topic, is_new)
            self._catalog.host(topic)
            if is_new:
                self._copies.keep_spare()
        except (OSError, RaftlogError) as error:
            for number in is_new:
                if (log := self._logs.take(topic_id, number)) is not None:
                    log.abandon()
            if isinstance(error, OSError):
                raise storage_error(f"hosting partitions of {name!r}", error) from error
            raise
        self._logs.show_config(topic)
        return [self.hosted_log(topic_id, number) for number in partitions]

    def update_topic(
        self, topic_id: str, *, overrides: Mapping[str, str], total_partitions: int
    ) -> None:
        """Update the settings and the partition count of a hosted topic, durably.

        Does nothing if nothing has changed, or if this broker has no partition of the topic. Raises
        ``DiskFullError`` and ``StorageFailedError``.
        """
        topic = self._catalog.by_id.get(topic_id)
        if topic is not None:
            altered = self._catalog.plan_hosting(
                topic.name, topic_id, (), total=total_partitions, overrides=overrides
            )
            self._catalog.host(altered)
            self._logs.show_config(altered)

    def drop_partitions(self, topic_id: str, partitions: Iterable[int]) -> None:
        """Close the logs of partitions and remove their files, including those in quarantine.

        All their tasks must be returned. Ignores partitions that this broker does not have. The
        catalog is written twice for all of them. After a crash, the next start removes the
        remaining files. Raises ``DiskFullError`` (if the catalog could not be written, the
        partitions are kept) and ``StorageFailedError``.
        """
        drops = self._catalog.drop(topic_id, partitions)
        for drop in drops:
            self._moved.pop((topic_id, drop.partition), None)
            if (log := self._logs.take(topic_id, drop.partition)) is not None:
                log.abandon()
        try:
            self._remove_partitions(drops)
        except OSError as error:
            what = f"removing the files of partitions of {drops[0].name!r}"
            raise storage_error(what, error) from error

    def quarantine(self, topic_id: str, partition: int) -> str:
        """Close a corrupt log, quarantine its files, and open an empty log. Returns the new path.

        The files are renamed to ``<partition>.quarantine-<n>`` in the same directory. The newest
        ``QUARANTINES_KEPT`` (3) of a partition are kept. The new log's notes list the quarantined
        and the removed directories. The new log starts at 0. Only a replica that is durably out of
        the ISR may do this. Otherwise it could be elected and remove the records of other replicas.

        All tasks of the log must be returned. Raises ``UnknownPartitionError``,
        ``StorageFailedError``, and ``DiskFullError`` if there is no disk space. The old log is then
        closed; the next call continues, or the next start.
        """
        log = self.hosted_log(topic_id, partition)
        log.log_dir.check_place()
        if log.is_offline:
            raise DamagedLogError(log.log_dir.failure)
        log.abandon()
        topic = self._catalog.by_id[topic_id]
        key = topic_id, partition
        directory = self._logs.path(topic, partition)
        self._copies.accept(topic_id, partition)
        for attempts_left in reversed(range(MOVE_ATTEMPTS)):
            try:
                self._copies.forget([key])
                if key not in self._moved:
                    self._moved[key] = quarantine.move_aside(self._disk, directory)
                # After a failure, the empty log must not be moved aside, too.
                for old in self._moved[key][1]:
                    self._disk.remove_tree(old)
                log = self._logs.open(topic, partition)
                break
            except OSError as error:
                if error.errno not in MISSING or not attempts_left:
                    raise self._failed(log, f"quarantining {directory}", error) from error
        path, removed = self._moved.pop(key)
        log.notes = [*log.notes, f"{directory} was corrupt; its files are quarantined in {path}"]
        if removed:
            log.notes = [*log.notes, f"removed {', '.join(removed)}, the oldest in quarantine"]
        return path

    def resolve(self, topic_id: str, partition: int) -> Log:
        """Accept the current contents of the log: clear ``doubt``, and truncate a torn write.

        Only for a replica that has durably left the ISR, or whose log the Raft group has selected
        as the best one. Returns the log. If it was truncated, it is a new object, and the old one
        is closed: all its tasks must be returned. Raises ``UnknownPartitionError``,
        ``DiskFullError`` and ``StorageFailedError``.
        """
        log = self.hosted_log(topic_id, partition)
        is_unknown = self._copies.of(topic_id, partition).is_unknown
        self._copies.accept(topic_id, partition)
        try:
            if log.is_torn:
                log.abandon()
                log = self._logs.open(self._catalog.by_id[topic_id], partition, cuts_torn=True)
            if is_unknown:
                log.record_copy()
        except OSError as error:
            raise self._failed(log, f"continuing with {log.directory}", error) from error
        log.doubt = ""
        return log

    def _failed(self, log: Log, doing: str, error: OSError) -> RaftlogError:
        """Return the error of an operation on one log. Fails its log directory, if the broker
        continues without it."""
        try:
            log.log_dir.contain(error)
        except OSError:
            return storage_error(doing, error)
        return DamagedLogError(log.log_dir.failure)

    # -- saving and closing ------------------------------------------------------------------------

    def save_copies(self) -> None:
        """Save the records of all copies durably, if they have changed (``copies``). Any thread may
        call. Raises ``DiskFullError`` and ``StorageFailedError``.
        """
        try:
            self._copies.save()
        except OSError as error:
            raise storage_error("recording the copies of partitions", error) from error

    def close(self) -> None:
        """Sync and close all logs, then release the directory, even if a step fails.

        If no step fails and no log is in doubt, the directory gets the clean mark. With
        flush.policy=os, the next start needs it to know that all acknowledged records are stored.
        Raises ``StorageFailedError``.
        """
        with ExitStack() as stack:
            stack.callback(self.abandon)
            with ExitStack() as logs:
                for log in self._logs.logs():
                    logs.callback(log.close)
            with suppress(DiskFullError):  # the older file is still correct
                self.save_copies()
            # guard: a doubt outlives a clean stop
            # guard: only a durable directory is marked clean
            if all(log.is_all_durable and not log.doubt for log in self._logs.logs()):
                self._leave_clean_mark()

    def _leave_clean_mark(self) -> None:
        directory_id = self.identity.directory_id
        try:
            state_files.leave(self._disk, self.directory, directory_id=directory_id)
        except OSError as error:
            raise storage_error("marking the data directory as clean", error) from error

    def _read_files(self, new_id: Callable[[], str], *, has_peers: bool) -> None:
        """Read the small files of the directory, and note whether it is a copy."""
        disk, directory, directory_id = self._disk, self.directory, self.identity.directory_id
        self.saved_time_ms = state_files.read_clock(disk, directory)
        self.saved_brokers = state_files.read_brokers(disk, directory)
        self.saved_cluster = state_files.read_cluster(disk, directory)
        clean = state_files.take(disk, directory, directory_id=directory_id)
        self.was_clean |= clean
        # guard: a directory that was closed cleanly may be moved
        self.place = state_files.take_place(
            disk,
            directory,
            directory_id=directory_id,
            may_move=clean or not has_peers,
            new_id=new_id,
        )
        self.notes += self.place.notes()

    def abandon(self) -> None:
        """Close all logs and release the directory without writing. Use it after a storage
        failure."""
        for log in self._logs.logs():
            log.abandon()
        self.log_dirs.release()
        self._lock.release()


def _lock(disk: Disk, directory: str) -> Lock:
    try:
        disk.make_dirs(directory)
        disk.make_private(directory)
        return disk.lock(f"{directory}/lock")
    except BlockingIOError as error:
        raise DataDirectoryError(
            f"data directory {directory} is in use by another process. Stop the broker (or close "
            "the embedded log) that uses it, or specify another directory"
        ) from error
    except OSError as error:
        raise DataDirectoryError(
            f"data directory {directory} cannot be written: {error.strerror or error}. "
            "Check its permissions, and that its file system is not mounted read-only"
        ) from error


# -- topic logs ------------------------------------------------------------------------------------
#
# Open logs of a data directory: paths, opening and closing, removal of files.
#
#     <log directory>/topics/<name>/<topic id>/<partition>/
#
# The catalog determines which logs exist, and in which log directory. All methods can raise
# ``OSError``, but not for a log directory without which the broker continues: it fails then.


class LogKey(NamedTuple):
    """Key of a log. It uses the topic id, because a deleted topic and its successor can have the
    same name (S19)."""

    topic_id: str
    partition: int


class TopicLogs:
    """Open logs by topic id and partition, and the directories of all logs."""

    def __init__(
        self, disk: Disk, log_dirs: LogDirs, copies: Copies, *, cuts_torn: bool = True
    ) -> None:
        """``cuts_torn``: see ``Log.open``."""
        self._disk = disk
        self._copies = copies
        self._cuts_torn = cuts_torn
        self._log_dirs = log_dirs
        self._logs: dict[LogKey, Log] = {}

    # -- open logs ---------------------------------------------------------------------------------

    def get(self, topic_id: str, partition: int) -> Log | None:
        return self._logs.get(LogKey(topic_id, partition))

    def entries(self) -> list[tuple[LogKey, Log]]:
        """Return a copy of the list of open logs, with their keys."""
        return list(self._logs.items())

    def logs(self) -> list[Log]:
        """Return a copy of the list of open logs."""
        return list(self._logs.values())

    def open(self, topic: Topic, partition: int, *, cuts_torn: bool = False) -> Log:
        copy = self._copies.of(topic.id, partition)
        log_dir = self._log_dirs[topic.log_dir_of(partition)]

        def opened() -> Log:
            return Log.open(
                self._disk,
                self.path(topic, partition),
                topic.config,
                copy,
                cuts_torn=cuts_torn or self._cuts_torn,
                log_dir=log_dir,
            )

        try:
            log = opened()
        except OSError as error:
            log_dir.contain(error)
            log = opened()  # offline now
        if copy.is_unknown and not self._cuts_torn:
            log.doubt = f"{self._copies.path} was lost: it is unknown if this copy held records"
        self._logs[LogKey(topic.id, partition)] = log
        return log

    def open_all(self, topic: Topic) -> None:
        """Open the logs of the topic's local partitions that are not open yet."""
        for partition in topic.local:
            if LogKey(topic.id, partition) not in self._logs:
                self.open(topic, partition)

    def create(self, topic: Topic, partitions: Sequence[int]) -> None:
        """Open logs. A log without records gets its directory with the first one, in the directory
        of the topic, which exists from now on (ADR 69).
        """
        new = [p for p in partitions if self._copies.of(topic.id, p).known is None]
        for id_ in dict.fromkeys(map(topic.log_dir_of, new)):
            log_dir = self._log_dirs[id_]
            with log_dir.containing_failures():
                # Its path may lead to another disk, on which nothing may be created.
                # guard: nothing is created in a log directory that is gone
                log_dir.check_place()
                if not log_dir.failure:
                    home = f"{log_dir.path}/{topic_path(topic)}"
                    quarantine.move_dangling_link(self._disk, home)
        for partition in partitions:
            self.open(topic, partition)

    def take(self, topic_id: str, partition: int) -> Log | None:
        """Remove a log from the open logs and return it. The caller closes it."""
        return self._logs.pop(LogKey(topic_id, partition), None)

    def show_config(self, topic: Topic) -> None:
        """Apply the topic's settings to its open logs."""
        for partition in topic.local:
            log = self.get(topic.id, partition)
            if log is not None:
                log.config = topic.config

    # -- directories -------------------------------------------------------------------------------

    def path(self, topic: Topic, partition: int) -> str:
        log_dir = self._log_dirs[topic.log_dir_of(partition)]
        return f"{log_dir.path}/{topic_path(topic)}/{partition}"

    def _used(self, topic: Topic | Dropping) -> list[LogDir]:
        """Return the log directories in which files of a topic may be, without the failed ones."""
        return [
            log_dir
            for log_dir in self._log_dirs.online
            if not log_dir.is_expendable or self._disk.exists(f"{log_dir.path}/{topic_path(topic)}")
        ]

    def make_names_durable(self, topic: Topic, partitions: Iterable[int]) -> None:
        """Sync the names of the directories of a topic and of its partitions. A killed process may
        have created them without a sync."""
        for id_ in dict.fromkeys(map(topic.log_dir_of, partitions)):
            log_dir = self._log_dirs[id_]
            if log_dir.failure:
                continue
            with log_dir.containing_failures():
                for directory in (
                    f"{log_dir.path}/{topic_path(topic)}",
                    f"{log_dir.path}/topics/{topic.name}",
                    f"{log_dir.path}/topics",
                    log_dir.path,
                ):
                    if self._disk.exists(directory):  # a missing one is corruption of that copy
                        self._disk.sync_dir(directory)

    def make_successors_durable(self, topic: Topic) -> None:
        """Sync the names of logs that replaced a quarantined log. Called at the start."""
        for log_dir in self._used(topic):
            path = f"{log_dir.path}/{topic_path(topic)}"
            with log_dir.containing_failures():
                if any(map(quarantine.is_quarantine, self._disk.list_dir(path))):
                    self._disk.sync_dir(path)

    def quarantine_strays(self) -> list[str]:
        """Quarantine copies that are in no catalog entry and have no record. Called at the start,
        when the logs are open. Returns notes about them.

        A restore of older files can restore copies that were removed. A broker that becomes a
        replica again must not continue with such a copy. A copy with a record stays, because the
        catalog may be the older file; so does an empty log of an interrupted creation.
        """
        notes: list[str] = []
        for log_dir in self._log_dirs.online:
            with log_dir.containing_failures():
                for topic_id, path in self._partition_paths(log_dir):
                    notes += self._quarantine_stray(topic_id, path)
        return notes

    def _quarantine_stray(self, topic_id: str, path: str) -> list[str]:
        partition = int(path.rpartition("/")[2])
        copy, log = self._copies.of(topic_id, partition), self.get(topic_id, partition)
        if log is None:
            # guard: a restored copy with a record is kept
            is_needed = copy.known is not None or copy.is_unknown
        else:  # the replica may be in another log directory: this is an old copy then
            # guard: one copy of a partition is used
            is_needed = log.directory == path
        if is_needed or not base_offsets(self._disk.list_dir(path), LOG_SUFFIX):
            return []
        moved, surplus = quarantine.move_aside(self._disk, path)
        for old in surplus:
            self._disk.remove_tree(old)
        return [f"{path} is no copy of this broker; its files are quarantined in {moved}"]

    def _partition_paths(self, log_dir: LogDir) -> Iterator[tuple[str, str]]:
        """Yield the topic id and the path of each partition directory."""
        root = f"{log_dir.path}/topics"
        for name in self._disk.list_dir(root):
            for topic_id in self._disk.list_dir(f"{root}/{name}"):
                for number in self._disk.list_dir(f"{root}/{name}/{topic_id}"):
                    if number.isascii() and number.isdecimal():
                        yield topic_id, f"{root}/{name}/{topic_id}/{number}"

    def remove_topic(self, topic: Topic | Dropping) -> None:
        """Remove all files of a topic, durably, but not those in failed log directories."""
        self._copies.forget_topic(topic.id)
        for log_dir in self._used(topic):
            with log_dir.containing_failures():
                self._disk.remove_tree(f"{log_dir.path}/{topic_path(topic)}")
                parent = f"{log_dir.path}/topics/{topic.name}"
                if self._disk.exists(parent):
                    self._disk.sync_dir(parent)

    def is_removed(self, topic: Topic) -> bool:
        """Whether no files of the topic are left in failed log directories."""
        found = map(self._log_dirs.get, topic.log_dirs.values())
        return not any(log_dir is not None and log_dir.failure for log_dir in found)

    def remove_partitions(self, drops: Sequence[Dropping]) -> list[Dropping]:
        """Remove all files of partitions, durably, also those in quarantine. Returns the partitions
        without files: not those in failed log directories.
        """
        for log_dir in self._log_dirs.online:
            with log_dir.containing_failures():
                self._remove_in(log_dir, [drop for drop in drops if drop.log_dir == log_dir.id])
        found = ((drop, self._log_dirs.get(drop.log_dir)) for drop in drops)
        # guard: files in a failed log directory are removed later
        return [drop for drop, log_dir in found if log_dir is None or not log_dir.failure]

    def _remove_in(self, log_dir: LogDir, drops: Sequence[Dropping]) -> None:
        for home, numbers in _by_home(log_dir, drops).items():
            for name in self._disk.list_dir(home):
                if name.partition(quarantine.MARK)[0] in numbers:
                    self._disk.remove_tree(f"{home}/{name}")
            if self._disk.exists(home):
                self._disk.sync_dir(home)


def _by_home(log_dir: LogDir, drops: Iterable[Dropping]) -> dict[str, set[str]]:
    """Return the names of the directories of partitions, by the directory of their topic."""
    found: dict[str, set[str]] = {}
    for drop in drops:
        found.setdefault(f"{log_dir.path}/{topic_path(drop)}", set()).add(str(drop.partition))
    return found


def topic_path(topic: Topic | Dropping) -> str:
    """Return the path of a topic's directory, below a log directory."""
    return f"topics/{topic.name}/{topic.id}"
