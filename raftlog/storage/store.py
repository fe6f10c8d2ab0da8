"""One data directory: whose it is, its topics, and their logs.

    <directory>/lock                              held while the directory is open
    <directory>/identity                          broker id, cluster id, directory id (``identity``)
    <directory>/clean                             there while nobody has it open since a clean stop
    <directory>/catalog                           topics and producer ids (``catalog``)
    <directory>/copies                            which copies of partitions it holds (``copies``)
    <directory>/consensus.journal                 not the store's: it only says where it lies
    <directory>/topics/<name>/<topic id>/<partition>/   one log each (``log``)

Logs have one owner thread. The methods that change topics block on the disk; they may run in
another thread, one at a time, and publish their outcome whole.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from typing import Final

from raftlog.disk import MISSING, Disk, Lock
from raftlog.errors import (
    DamagedLogError,
    DataDirectoryError,
    DiskFullError,
    RaftlogError,
    UnknownPartitionError,
)
from raftlog.storage import clean_mark, clock_file, quarantine
from raftlog.storage.catalog import Catalog, Dropping, Topic
from raftlog.storage.copies import Copies
from raftlog.storage.faults import storage_error
from raftlog.storage.identity import Identity, IdentityFile
from raftlog.storage.log import Log
from raftlog.storage.topic_logs import TopicLogs
from raftlog.types import TimestampMs, TopicPartition, check_topic_name

# Another process may be removing the directories at this moment.
MOVE_ATTEMPTS: Final = 100
JOURNAL_NAME: Final = "consensus.journal"


def _random_id() -> str:
    return uuid.uuid4().hex


class Store:
    """An open data directory. Use ``Store.open``; ``close`` when done."""

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
        self.identity = identity
        # Whether the process before this one closed the store: with flush.policy=os, only then is
        # everything that it acknowledged still here. True for a new directory.
        self.was_clean = identity_file.is_new
        self.saved_time_ms: TimestampMs | None = None  # the last that ``save_time`` was given
        self._disk = disk
        self._lock = lock
        self._identity_file = identity_file
        self._catalog = catalog
        self._copies = copies
        self._logs = TopicLogs(disk, directory, copies, cuts_torn=not has_peers)
        self._dropped: dict[str, list[Log]] = {}  # by topic id: deleted, and not yet discarded

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
    ) -> Store:
        """Open (or start) a data directory and recover every log in it.

        ``has_peers``: other brokers may have copies of these logs. Then a torn tail is not cut, and
        a log that may lack acknowledged records says so (``Log.doubt``): ``settle`` ends both.

        ``broker_id`` or ``cluster_id`` of None takes what the directory says, or a default for a
        new one. A ``cluster_id`` of "" takes what the directory says, and leaves it open in a new
        one: see ``adopt_cluster_id``. Raises ``DataDirectoryError`` when another process has it
        open, when it belongs to another broker or cluster, or when it cannot be read and written.
        """
        with ExitStack() as undo:
            lock = _lock(disk, directory)
            undo.callback(lock.release)
            try:
                identity_file = IdentityFile(disk, directory, new_id=new_id)
                identity = identity_file.take(broker_id, cluster_id)
                catalog = Catalog(disk, f"{directory}/catalog", new_id=new_id)
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
                # A process that was killed may have renamed a file just read, and not synced that.
                disk.sync_dir(directory)
                store._open_logs()
                store.saved_time_ms = clock_file.read(disk, directory)
                clean = clean_mark.take(disk, directory, directory_id=identity.directory_id)
                store.was_clean |= clean
                if has_peers and not store.was_clean:
                    store._doubt_unsynced()
            except DamagedLogError as error:
                raise DataDirectoryError(
                    f"{error}. Restore that file from a backup, or start with an empty directory"
                ) from error
            except OSError as error:
                raise DataDirectoryError(
                    f"the data directory {directory} cannot be used: {error}"
                ) from error
            undo.pop_all()
            return store

    def _open_logs(self) -> None:
        for topic in list(self._catalog.deleting.values()):
            self._remove_files(topic)
        for drop in self._catalog.dropping:
            self._remove_partition(drop)
        for topic in self._catalog.by_id.values():
            self._logs.open_all(topic)
            self._logs.make_successors_durable(topic)

    def _doubt_unsynced(self) -> None:
        """With flush.policy=os, records were acknowledged that may not be on the disk (S12)."""
        for topic, _partition, log in self.hosted():
            if topic.config.flush_policy == "os":
                log.doubt = "the broker did not stop cleanly, and flush.policy is os"

    def _remove_files(self, topic: Topic) -> None:
        """Remove a dropped topic's files, durably, then forget that there were any."""
        self._logs.remove_topic(topic)
        self._catalog.deleted(topic)

    def _remove_partition(self, drop: Dropping) -> None:
        """Remove a dropped partition's files, durably, and with the last one its topic's; then
        forget that there were any."""
        self._logs.remove_partition(drop)
        if not self._catalog.is_needed(drop):
            self._logs.remove_topic(drop)
        self._catalog.dropped(drop)

    # -- whose it is -------------------------------------------------------------------------------

    @property
    def journal_path(self) -> str:
        """Where the consensus journal of this directory lies."""
        return f"{self.directory}/{JOURNAL_NAME}"

    def reserve_for_journal(self, size: int) -> None:
        """Take room for ``size`` more bytes of the journal, as far as there is so much.

        Any thread may call. Raises ``OSError``.
        """
        self._disk.reserve(self.journal_path, size)

    def save_time(self, deletion_ms: TimestampMs) -> None:
        """Save the time by which the broker deletes, durably (``clock_file``). Any thread may call.

        Raises ``StorageFailedError``.
        """
        try:
            clock_file.write(self._disk, self.directory, deletion_ms)
        except OSError as error:
            raise storage_error("saving the time", error) from error

    def adopt_cluster_id(self, cluster_id: str) -> None:
        """Make this directory that cluster's, durably, if it is nobody's yet: a broker joins.

        Raises ``DataDirectoryError`` when it is another cluster's, ``DiskFullError`` and
        ``StorageFailedError``.
        """
        try:
            self.identity = self._identity_file.adopt(self.identity, cluster_id)
        except OSError as error:
            raise storage_error("writing the cluster id", error) from error

    # -- what is there -----------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, Topic]:
        """By name. Of two topics of one name, the one that came last."""
        return self._catalog.topics

    def topic(self, name: str) -> Topic:
        """Raises ``InvalidTopicError`` or ``UnknownTopicError``."""
        return self._catalog.get(check_topic_name(name))

    def log(self, name: str, partition: int) -> Log:
        """Raises ``UnknownTopicError`` or ``UnknownPartitionError``."""
        topic = self.topic(name)
        log = self._logs.get(topic.id, partition)
        if log is None:
            raise UnknownPartitionError(
                f"topic {name!r} has no partition {partition}: it has {topic.partitions}, "
                "counted from 0"
                if topic.hosted is None
                else f"partition {partition} of topic {name!r} is not on this broker"
            )
        return log

    def hosted_log(self, topic_id: str, partition: int) -> Log:
        """As ``log``, by the topic's id. Raises ``UnknownPartitionError``."""
        log = self._logs.get(topic_id, partition)
        if log is None:
            raise UnknownPartitionError(
                f"partition {partition} of the topic with id {topic_id} is not on this broker"
            )
        return log

    def logs(self) -> Iterator[tuple[TopicPartition, Log]]:
        """All logs, as of now."""
        for topic, partition, log in self.hosted():
            yield TopicPartition(topic.name, partition), log

    def hosted(self) -> Iterator[tuple[Topic, int, Log]]:
        """All logs, as of now, each with its topic and partition number."""
        by_id = self._catalog.by_id
        for key, log in self._logs.entries():
            if key.topic_id in by_id:
                yield by_id[key.topic_id], key.partition, log

    def free_bytes(self) -> int:
        return self._disk.free_bytes(self.directory)

    # -- changes (blocking) ------------------------------------------------------------------------

    def plan_topic(self, name: str, *, partitions: int, config: Mapping[str, str]) -> Topic:
        """The topic that these arguments would make, or the error that they would raise."""
        return self._catalog.plan(name, partitions=partitions, overrides=config)

    def create_topic(self, name: str, *, partitions: int, config: Mapping[str, str]) -> Topic:
        """Make a topic and its empty logs.

        The directories come first: once the catalog names the topic, its logs can be opened. Those
        of a creation that did not get so far have an id that nothing names, and are overwritten by
        none.
        """
        topic = self.plan_topic(name, partitions=partitions, config=config)
        try:
            self._logs.open_all(topic)
            self._logs.make_names_durable(topic)
            self._catalog.create(topic)
        except (OSError, RaftlogError) as error:
            self._abandon(topic, first=0)
            with suppress(OSError):  # what stays has an id that nothing names
                self._logs.remove_topic(topic)
            if isinstance(error, OSError):
                raise storage_error(f"creating topic {name!r}", error) from error
            raise
        return topic

    def delete_topic(self, name: str) -> Topic:
        """Drop a topic from the catalog. Its logs stay open until ``discard``."""
        topic = self._catalog.delete(check_topic_name(name))
        self._dropped[topic.id] = self._logs.take_all(topic)
        return topic

    def discard(self, topic: Topic) -> None:
        """Remove a dropped topic's logs and files; none of its tickets may be out."""
        for log in self._dropped.pop(topic.id, ()):
            log.abandon()
        try:
            self._remove_files(topic)
        except OSError as error:
            raise storage_error(f"removing the files of topic {topic.name!r}", error) from error

    def _abandon(self, topic: Topic, *, first: int) -> None:
        for log in self._logs.take_all(topic, first=first):
            log.abandon()

    def alter_topic(self, name: str, changes: Mapping[str, str | None]) -> Topic:
        topic = self._catalog.alter(check_topic_name(name), changes)
        self._logs.show_config(topic)
        return topic

    def add_partitions(self, name: str, partitions: int) -> Topic:
        """Raise the partition count; the new logs come first, so that all named ones exist.

        Those of an attempt that did not get so far are empty, and are taken over by the next.
        """
        topic = self.topic(name)
        extended = self._catalog.plan_extension(name, partitions)
        try:
            self._logs.open_all(extended)
            self._logs.make_names_durable(extended)
            self._catalog.extend(extended)
        except (OSError, RaftlogError) as error:
            self._abandon(extended, first=topic.partitions)
            if isinstance(error, OSError):
                raise storage_error(f"adding partitions to {name!r}", error) from error
            raise
        return extended

    # -- single partitions, of topics that a cluster has placed (blocking) -------------------------

    def host_partitions(
        self,
        name: str,
        topic_id: str,
        partitions: Sequence[int],
        *,
        total_partitions: int,
        overrides: Mapping[str, str],
    ) -> list[Log]:
        """The logs of some partitions of the topic with that id and name; empty, if new here.

        Durable on return. Also updates the topic's partition count and settings. Raises what
        ``create_topic`` raises. The catalog is written once.

        The directories come first, as for ``create_topic``; those that an attempt left that did not
        get so far are empty, and are taken over by the next.
        """
        topic = self._catalog.plan_hosting(
            name, topic_id, partitions, total=total_partitions, overrides=overrides
        )
        is_new = [number for number in partitions if self._logs.get(topic_id, number) is None]
        try:
            for drop in self._catalog.dropping:
                if drop.id == topic_id and drop.partition in partitions:
                    self._remove_partition(drop)
            for number in is_new:
                self._logs.open(topic, number)
            if is_new:
                self._logs.make_names_durable(topic)
            self._catalog.host(topic)
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
        """Bring a hosted topic's settings and partition count up to date, durably.

        Nothing happens when nothing has changed, and when no partition of it is here.
        """
        topic = self._catalog.by_id.get(topic_id)
        if topic is not None:
            altered = self._catalog.plan_hosting(
                topic.name, topic_id, (), total=total_partitions, overrides=overrides
            )
            self._catalog.host(altered)
            self._logs.show_config(altered)

    def drop_partition(self, topic_id: str, partition: int) -> None:
        """Let go of one partition's log and remove its files, also those in quarantine.

        None of its tickets may be out. Nothing happens when it is not here. A crash may leave some
        of the files; the next start removes them. Raises ``DiskFullError`` (then it is still
        here) and ``StorageFailedError``.
        """
        drop = self._catalog.drop(topic_id, partition)
        if drop is None:
            return
        if (log := self._logs.take(topic_id, partition)) is not None:
            log.abandon()
        try:
            self._remove_partition(drop)
        except OSError as error:
            what = f"removing the files of partition {partition} of {drop.name!r}"
            raise storage_error(what, error) from error

    def quarantine(self, topic_id: str, partition: int) -> str:
        """Close a damaged log, move its files aside, and open an empty one in its place.

        Where the files are now: ``<partition>.quarantine-<n>``, beside it. The newest
        ``QUARANTINES_KEPT`` (3) of a partition are kept; the new log's notes say what was moved and
        what was removed. The new log begins at 0 and remembers nothing: only a replica that is out
        of the ISR, durably, may do this, or it could be elected and lose what the others hold.

        None of the log's tickets may be out. Raises ``UnknownPartitionError`` and
        ``StorageFailedError``; ``DiskFullError`` when there is no room for the new one: then the
        next start opens it.
        """
        self.hosted_log(topic_id, partition).abandon()
        topic = self._catalog.by_id[topic_id]
        directory = self._logs.path(topic, partition)
        self._copies.accept(topic_id, partition)
        for attempts_left in reversed(range(MOVE_ATTEMPTS)):
            try:
                self._copies.forget(topic_id, partition)
                path, removed = quarantine.move_aside(self._disk, directory)
                log = self._logs.open(topic, partition)
                break
            except OSError as error:
                if error.errno not in MISSING or not attempts_left:
                    raise storage_error(f"moving {directory} aside", error) from error
        log.notes = [*log.notes, f"{directory} was damaged; what it held was moved to {path}"]
        if removed:
            log.notes = [*log.notes, f"removed {', '.join(removed)}, in quarantine for longest"]
        return path

    def settle(self, topic_id: str, partition: int) -> Log:
        """Continue with what the log holds: end the doubt about it, and cut its torn tail.

        Only for a replica that has left the ISR, durably, or whose log was agreed on to be the best
        there is. A log that was cut is another object than before, and the one before is closed:
        none of its tickets may be out. Raises ``UnknownPartitionError``, ``DiskFullError`` and
        ``StorageFailedError``.
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
            raise storage_error(f"continuing with {log.directory}", error) from error
        log.doubt = ""
        return log

    # -- the rest ----------------------------------------------------------------------------------

    def save_copies(self) -> None:
        """Make durable what is known of all copies, if that has changed (``copies``). Any thread
        may call. Raises ``DiskFullError`` and ``StorageFailedError``.
        """
        try:
            self._copies.save()
        except OSError as error:
            raise storage_error("recording the copies of partitions", error) from error

    def close(self) -> None:
        """Sync and close every log, then let go of the directory, whatever fails on the way.

        When nothing has, and no log is in doubt, the directory is marked as clean: with
        flush.policy=os, only then does the next start know that all it acknowledged is there.
        """
        with ExitStack() as stack:
            stack.callback(self.abandon)
            with ExitStack() as logs:
                for log in self._logs.logs():
                    logs.callback(log.close)
            with suppress(DiskFullError):  # older records are still true
                self.save_copies()
            if all(log.is_all_durable and not log.doubt for log in self._logs.logs()):
                self._leave_clean_mark()

    def _leave_clean_mark(self) -> None:
        directory_id = self.identity.directory_id
        try:
            clean_mark.leave(self._disk, self.directory, directory_id=directory_id)
        except OSError as error:
            raise storage_error("marking the data directory as clean", error) from error

    def abandon(self) -> None:
        """Let go of everything and write nothing: what has to follow a storage failure."""
        for log in (*self._logs.logs(), *chain.from_iterable(self._dropped.values())):
            log.abandon()
        self._lock.release()


def _lock(disk: Disk, directory: str) -> Lock:
    try:
        disk.make_dirs(directory)
        disk.make_private(directory)
        return disk.lock(f"{directory}/lock")
    except BlockingIOError as error:
        raise DataDirectoryError(
            f"the data directory {directory} is in use by another process: stop the broker (or "
            "close the embedded log) that has it open, or choose another directory"
        ) from error
    except OSError as error:
        raise DataDirectoryError(
            f"the data directory {directory} cannot be written: {error.strerror or error}. "
            "Check its permissions and that its file system is not mounted read-only"
        ) from error
