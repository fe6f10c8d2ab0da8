"""Open logs of a data directory: paths, opening and closing, removal of files.

    <log directory>/topics/<name>/<topic id>/<partition>/

The catalog determines which logs exist, and in which log directory. All methods can raise
``OSError``, but not for a log directory without which the broker continues: it fails then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from raftlog.disk import Disk
from raftlog.storage import quarantine
from raftlog.storage.catalog import Dropping, Topic
from raftlog.storage.copies import Copies
from raftlog.storage.log import Log
from raftlog.storage.log_dirs import LogDir, LogDirs
from raftlog.storage.segment import LOG_SUFFIX, base_offsets


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
                log_dir.check_place()
                if not log_dir.failure:
                    home = f"{log_dir.path}/{topic_path(topic)}"
                    quarantine.move_dangling_link(self._disk, home)
        for partition in partitions:
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
            is_needed = copy.known is not None or copy.is_unknown
        else:  # the replica may be in another log directory: this is an old copy then
            is_needed = log.directory == path
        if is_needed or not base_offsets(self._disk.list_dir(path), LOG_SUFFIX):
            return []
        moved, _ = quarantine.move_aside(self._disk, path)
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
