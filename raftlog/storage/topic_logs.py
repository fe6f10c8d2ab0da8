"""Open logs of a data directory: paths, opening and closing, removal of files.

    <directory>/topics/<name>/<topic id>/<partition>/

The catalog determines which logs exist. All methods can raise ``OSError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from raftlog.disk import Disk
from raftlog.storage import quarantine
from raftlog.storage.catalog import Dropping, Topic
from raftlog.storage.copies import Copies
from raftlog.storage.log import Log
from raftlog.storage.segment import LOG_SUFFIX, base_offsets


class LogKey(NamedTuple):
    """Key of a log. It uses the topic id, because a deleted topic and its successor can have the
    same name (S19)."""

    topic_id: str
    partition: int


class TopicLogs:
    """Open logs by topic id and partition, and the directories of all logs."""

    def __init__(
        self, disk: Disk, directory: str, copies: Copies, *, cuts_torn: bool = True
    ) -> None:
        """``cuts_torn``: see ``Log.open``."""
        self._disk = disk
        self._copies = copies
        self._cuts_torn = cuts_torn
        self._directory = directory
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
        log = Log.open(
            self._disk,
            self.path(topic, partition),
            topic.config,
            copy,
            cuts_torn=cuts_torn or self._cuts_torn,
        )
        if copy.is_unknown and not self._cuts_torn:
            log.doubt = f"{self._copies.path} was lost: it is unknown if this copy held records"
        self._logs[LogKey(topic.id, partition)] = log
        return log

    def open_all(self, topic: Topic) -> None:
        """Open the logs of the topic's local partitions that are not open yet."""
        for partition in topic.local:
            if LogKey(topic.id, partition) not in self._logs:
                self.open(topic, partition)

    def create(self, topic: Topic, partitions: Iterable[int]) -> None:
        """Open logs, and create the missing ones. Their names are durable after
        ``make_names_durable``: one sync for all of them.
        """
        quarantine.move_dangling_link(self._disk, self.topic_path(topic))
        self._disk.make_dirs(self.topic_path(topic))
        for partition in partitions:
            if self._copies.of(topic.id, partition).known is None:
                self._disk.make_dir(self.path(topic, partition))
            self.open(topic, partition)

    def take(self, topic_id: str, partition: int) -> Log | None:
        """Remove a log from the open logs and return it. The caller closes it."""
        return self._logs.pop(LogKey(topic_id, partition), None)

    def take_all(self, topic: Topic, *, first: int = 0) -> list[Log]:
        """Like ``take``, for all partitions with a number of at least ``first``."""
        keys = [LogKey(topic.id, number) for number in topic.local if number >= first]
        return [self._logs.pop(key) for key in keys if key in self._logs]

    def show_config(self, topic: Topic) -> None:
        """Apply the topic's settings to its open logs."""
        for partition in topic.local:
            log = self.get(topic.id, partition)
            if log is not None:
                log.config = topic.config

    # -- directories -------------------------------------------------------------------------------

    def path(self, topic: Topic | Dropping, partition: int) -> str:
        return f"{self.topic_path(topic)}/{partition}"

    def topic_path(self, topic: Topic | Dropping) -> str:
        return f"{self._name_path(topic)}/{topic.id}"

    def _name_path(self, topic: Topic | Dropping) -> str:
        return f"{self._directory}/topics/{topic.name}"

    def make_names_durable(self, topic: Topic) -> None:
        """Sync the names of the topic's directories. A killed process may have created them
        without a sync."""
        for directory in (
            self.topic_path(topic),
            self._name_path(topic),
            f"{self._directory}/topics",
            self._directory,
        ):
            if self._disk.exists(directory):  # a missing directory is corruption of that copy
                self._disk.sync_dir(directory)

    def make_successors_durable(self, topic: Topic) -> None:
        """Sync the names of logs that replaced a quarantined log. Called at the start."""
        if any(map(quarantine.is_quarantine, self._disk.list_dir(self.topic_path(topic)))):
            self._disk.sync_dir(self.topic_path(topic))

    def quarantine_strays(self) -> list[str]:
        """Quarantine copies that are in no catalog entry and have no record. Called at the start,
        when the logs are open. Returns notes about them.

        A restore of older files brings back copies that were removed. A broker that becomes a
        replica again must not continue with such a copy. A copy with a record stays, because the
        catalog may be the older file; so does an empty log of an interrupted creation.
        """
        notes = []
        for topic_id, path in self._partition_paths():
            partition = int(path.rpartition("/")[2])
            copy = self._copies.of(topic_id, partition)
            is_held = self.get(topic_id, partition) is not None
            if is_held or copy.known is not None or copy.is_unknown:
                continue
            if base_offsets(self._disk.list_dir(path), LOG_SUFFIX):
                moved, _ = quarantine.move_aside(self._disk, path)
                notes.append(
                    f"{path} is no copy of this broker; its files are quarantined in {moved}"
                )
        return notes

    def _partition_paths(self) -> Iterator[tuple[str, str]]:
        """Yield the topic id and the path of each partition directory."""
        root = f"{self._directory}/topics"
        for name in self._disk.list_dir(root):
            for topic_id in self._disk.list_dir(f"{root}/{name}"):
                for number in self._disk.list_dir(f"{root}/{name}/{topic_id}"):
                    if number.isascii() and number.isdecimal():
                        yield topic_id, f"{root}/{name}/{topic_id}/{number}"

    def remove_topic(self, topic: Topic | Dropping) -> None:
        """Remove all files of a topic, durably."""
        self._copies.forget_topic(topic.id)
        self._disk.remove_tree(self.topic_path(topic))
        if self._disk.exists(self._name_path(topic)):
            self._disk.sync_dir(self._name_path(topic))

    def remove_partitions(self, drops: Sequence[Dropping]) -> None:
        """Remove all files of partitions, durably, also those in quarantine."""
        self._copies.forget((drop.id, drop.partition) for drop in drops)
        for drop in drops:
            path = self.path(drop, drop.partition)
            for found in (path, *quarantine.quarantines(self._disk, path)):
                self._disk.remove_tree(found)
        for directory in dict.fromkeys(map(self.topic_path, drops)):
            if self._disk.exists(directory):
                self._disk.sync_dir(directory)
