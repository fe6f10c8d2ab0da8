"""One data directory: whose it is, its topics, and their logs.

    <directory>/lock                              held while the directory is open
    <directory>/identity                          broker id, cluster id, directory id
    <directory>/catalog                           topics and producer ids (``catalog``)
    <directory>/topics/<name>/<topic id>/<partition>/   one log each (``log``)

Logs have one owner thread. The methods that change topics block on the disk; they may run in
another thread, one at a time, and publish their outcome whole.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final

from raftlog.disk import Disk, Lock
from raftlog.errors import (
    DamagedLogError,
    DataDirectoryError,
    RaftlogError,
    UnknownPartitionError,
)
from raftlog.storage import state_file
from raftlog.storage.catalog import Catalog, Topic
from raftlog.storage.faults import storage_error
from raftlog.storage.log import Log
from raftlog.types import TopicPartition, check_topic_name

BROKER_ID_DEFAULT: Final = 1
FORMAT_VERSION: Final = 1


def _random_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose directory this is. ``directory_id`` is new for every new (or wiped) directory."""

    broker_id: int
    cluster_id: str
    directory_id: str


class Store:
    """An open data directory. Use ``Store.open``; ``close`` when done."""

    def __init__(
        self, disk: Disk, directory: str, lock: Lock, identity: Identity, catalog: Catalog
    ) -> None:
        self.directory = directory
        self.identity = identity
        self._disk = disk
        self._lock = lock
        self._catalog = catalog
        self._logs: dict[TopicPartition, Log] = {}
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
    ) -> Store:
        """Open (or start) a data directory and recover every log in it.

        ``broker_id`` or ``cluster_id`` of None takes what the directory says, or a default for a
        new one. Raises ``DataDirectoryError`` when another process has it open, when it belongs to
        another broker or cluster, or when it cannot be read and written.
        """
        with ExitStack() as undo:
            lock = _lock(disk, directory)
            undo.callback(lock.release)
            try:
                identity = _identity(disk, directory, broker_id, cluster_id, new_id)
                catalog = Catalog(disk, f"{directory}/catalog", new_id=new_id)
                store = cls(disk, directory, lock, identity, catalog)
                undo.callback(store.abandon)
                # A process that was killed may have renamed a file just read, and not synced that.
                disk.sync_dir(directory)
                store._open_logs()
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
        for topic in self.topics.values():
            self._open_topic(topic)

    def _open_topic(self, topic: Topic) -> None:
        for partition in range(topic.partitions):
            key = TopicPartition(topic.name, partition)
            if key not in self._logs:
                directory = f"{self._topic_directory(topic)}/{partition}"
                self._logs[key] = Log.open(self._disk, directory, topic.config)

    def _topic_directory(self, topic: Topic) -> str:
        return f"{self._name_directory(topic)}/{topic.id}"

    def _name_directory(self, topic: Topic) -> str:
        return f"{self.directory}/topics/{topic.name}"

    def _make_names_durable(self, topic: Topic) -> None:
        """A process that was killed may have made directories and not have synced their names."""
        topics = f"{self.directory}/topics"
        for directory in (
            self._topic_directory(topic),
            self._name_directory(topic),
            topics,
            self.directory,
        ):
            self._disk.sync_dir(directory)

    def _remove_files(self, topic: Topic) -> None:
        """Remove a dropped topic's files, durably, then forget that there were any."""
        self._disk.remove_tree(self._topic_directory(topic))
        if self._disk.exists(self._name_directory(topic)):
            self._disk.sync_dir(self._name_directory(topic))
        self._catalog.deleted(topic)

    # -- what is there -----------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, Topic]:
        return self._catalog.topics

    def topic(self, name: str) -> Topic:
        """Raises ``InvalidTopicError`` or ``UnknownTopicError``."""
        return self._catalog.get(check_topic_name(name))

    def log(self, name: str, partition: int) -> Log:
        """Raises ``UnknownTopicError`` or ``UnknownPartitionError``."""
        log = self._logs.get(TopicPartition(name, partition))
        if log is None:
            topic = self.topic(name)
            raise UnknownPartitionError(
                f"topic {name!r} has no partition {partition}: it has {topic.partitions}, "
                "counted from 0"
            )
        return log

    def logs(self) -> Iterator[tuple[TopicPartition, Log]]:
        """All logs, as of now."""
        return iter(list(self._logs.items()))

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
            self._open_topic(topic)
            self._make_names_durable(topic)
            self._catalog.create(topic)
        except (OSError, RaftlogError) as error:
            self._abandon(topic, first=0)
            with suppress(OSError):  # what stays has an id that nothing names
                self._disk.remove_tree(self._topic_directory(topic))
            if isinstance(error, OSError):
                raise storage_error(f"creating topic {name!r}", error) from error
            raise
        return topic

    def delete_topic(self, name: str) -> Topic:
        """Drop a topic from the catalog. Its logs stay open until ``discard``."""
        topic = self._catalog.delete(check_topic_name(name))
        self._dropped[topic.id] = self._take_logs(topic, first=0)
        return topic

    def discard(self, topic: Topic) -> None:
        """Remove a dropped topic's logs and files; none of its tickets may be out."""
        for log in self._dropped.pop(topic.id, ()):
            log.abandon()
        try:
            self._remove_files(topic)
        except OSError as error:
            raise storage_error(f"removing the files of topic {topic.name!r}", error) from error

    def _take_logs(self, topic: Topic, *, first: int) -> list[Log]:
        keys = [TopicPartition(topic.name, number) for number in range(first, topic.partitions)]
        return [self._logs.pop(key) for key in keys if key in self._logs]

    def _abandon(self, topic: Topic, *, first: int) -> None:
        for log in self._take_logs(topic, first=first):
            log.abandon()

    def alter_topic(self, name: str, changes: Mapping[str, str | None]) -> Topic:
        topic = self._catalog.alter(check_topic_name(name), changes)
        for partition in range(topic.partitions):
            self.log(name, partition).config = topic.config
        return topic

    def add_partitions(self, name: str, partitions: int) -> Topic:
        """Raise the partition count; the new logs come first, so that all named ones exist.

        Those of an attempt that did not get so far are empty, and are taken over by the next.
        """
        topic = self.topic(name)
        extended = self._catalog.plan_extension(name, partitions)
        try:
            self._open_topic(extended)
            self._make_names_durable(extended)
            self._catalog.extend(extended)
        except (OSError, RaftlogError) as error:
            self._abandon(extended, first=topic.partitions)
            if isinstance(error, OSError):
                raise storage_error(f"adding partitions to {name!r}", error) from error
            raise
        return extended

    def allocate_producer_id(self) -> int:
        return self._catalog.allocate_producer_id()

    def close(self) -> None:
        """Sync and close every log, then let go of the directory, whatever fails on the way."""
        with ExitStack() as stack:
            stack.callback(self.abandon)
            for log in self._logs.values():
                stack.callback(log.close)

    def abandon(self) -> None:
        """Let go of everything and write nothing: what has to follow a storage failure."""
        for log in (*self._logs.values(), *chain.from_iterable(self._dropped.values())):
            log.abandon()
        self._lock.release()


def _lock(disk: Disk, directory: str) -> Lock:
    try:
        disk.make_dirs(directory)
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


def _identity(
    disk: Disk,
    directory: str,
    broker_id: int | None,
    cluster_id: str | None,
    new_id: Callable[[], str],
) -> Identity:
    path = f"{directory}/identity"
    state = state_file.read(disk, path)
    if state is None:
        identity = Identity(
            broker_id if broker_id is not None else BROKER_ID_DEFAULT,
            cluster_id or new_id(),
            new_id(),
        )
        with suppress(PermissionError):  # then it was not this program that made the directory
            disk.sync_dir(os.path.dirname(directory) or ".")
        state_file.write(
            disk,
            path,
            {
                "version": FORMAT_VERSION,
                "broker_id": identity.broker_id,
                "cluster_id": identity.cluster_id,
                "directory_id": identity.directory_id,
            },
        )
        return identity
    if state["version"] != FORMAT_VERSION:
        raise DataDirectoryError(
            f"the data directory {directory} has format version {state['version']}; this release "
            f"reads version {FORMAT_VERSION}. Use the release that wrote it, or upgrade"
        )
    for name, wanted in (("broker_id", broker_id), ("cluster_id", cluster_id)):
        if wanted is not None and state[name] != wanted:
            raise DataDirectoryError(
                f"the data directory {directory} belongs to {name.replace('_', ' ')} "
                f"{state[name]}, not {wanted}: give the directory of this one, or an empty one"
            )
    return Identity(state["broker_id"], state["cluster_id"], state["directory_id"])
