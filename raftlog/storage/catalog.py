"""Topic catalog of one data directory: names, ids, partitions and settings.

Only the partitions that are placed on this broker are in the data directory; those of a broker that
an earlier release ran without `voters` are all. A topic that was deleted and created again can be
listed twice until its old files are removed, under two ids (S19).

Each change is durable before the method returns, and becomes visible atomically: other threads
see the topics before or after the change. This module opens no log.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.disk import Disk
from raftlog.errors import (
    InvalidPartitionsError,
    UnknownTopicError,
)
from raftlog.storage import state_files
from raftlog.storage.state_files import storage_error
from raftlog.types import check_topic_name

Overrides: TypeAlias = Mapping[str, str]

_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # also a directory name


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. ``id`` distinguishes it from an earlier topic with the same name."""

    name: str
    id: str
    partitions: int  # total, on all brokers
    overrides: Mapping[str, str] = field(default_factory=dict)
    config: TopicConfig = field(default_factory=TopicConfig)
    hosted: tuple[int, ...] | None = None  # stored here, ascending; None: all
    # Ids of the log directories by partition; of the other partitions, it is the data directory.
    log_dirs: Mapping[int, str] = field(default_factory=dict)

    @property
    def local(self) -> Sequence[int]:
        """Partitions that are stored in this data directory, ascending."""
        return range(self.partitions) if self.hosted is None else self.hosted

    def log_dir_of(self, partition: int) -> str:
        """Return the id of the log directory of a partition; "" for the data directory."""
        return self.log_dirs.get(partition, "")


class Dropping(NamedTuple):
    """A partition that was dropped. Its files may still exist."""

    name: str
    id: str
    partition: int
    log_dir: str = ""  # see ``Topic.log_dir_of``

    def log_dir_of(self, _partition: int) -> str:
        return self.log_dir


class _Written(NamedTuple):
    """A topic with its text in the file: a change encodes one topic, not all. ``partitions``:
    their number in this data directory.
    """

    topic: Topic
    text: str
    partitions: int


class KnownLogDir(NamedTuple):
    """A log directory besides the data directory, as it was at the last start. ``is_mount``: a file
    system was mounted at the path itself."""

    path: str
    is_mount: bool


class Catalog:
    """The catalog file and its contents.

    ``by_id``, ``deleting`` and ``dropping`` are replaced, never changed in place.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self.by_id: Mapping[str, Topic] = {}
        self.topics: Mapping[str, Topic] = {}  # by name; the newest topic of a name
        self.deleting: Mapping[str, Topic] = {}  # by id; their files may still exist
        self.dropping: tuple[Dropping, ...] = ()
        self.log_dirs: Mapping[str, KnownLogDir] = {}  # by id
        self._spare = state_files.Spare(disk, path)
        self._written: dict[str, _Written] = {}  # by id
        self._load()

    def _load(self) -> None:
        state = state_files.read(self._disk, self._path)
        if state is None:
            return
        self._show({row["id"]: _from_state(row) for row in state["topics"]})
        self._written = self._encoded(self.by_id)
        self.deleting = {row["id"]: _from_state(row) for row in state["deleting"]}
        self.dropping = tuple(Dropping(*row) for row in state.get("dropping", ()))
        log_dirs = state.get("log_dirs", {})
        self.log_dirs = {id_: KnownLogDir._make(row) for id_, row in log_dirs.items()}

    def _show(self, topics: Mapping[str, Topic]) -> None:
        self.by_id = topics
        self.topics = {topic.name: topic for topic in topics.values()}

    def _encoded(self, topics: Mapping[str, Topic]) -> dict[str, _Written]:
        """Return the topics as they are written. Only those that have changed are encoded."""
        known, written = self._written, dict[str, _Written]()
        for id_, topic in topics.items():
            entry = known.get(id_)
            if entry is None or entry[0] is not topic:
                entry = _Written(topic, state_files.text_of(_to_state(topic)), len(topic.local))
            written[id_] = entry
        return written

    def _save(
        self,
        *,
        topics: Mapping[str, Topic] | None = None,
        deleting: Mapping[str, Topic] | None = None,
        dropping: tuple[Dropping, ...] | None = None,
        log_dirs: Mapping[str, KnownLogDir] | None = None,
        frees: bool = False,
        keeps_spare: bool = False,
    ) -> None:
        """Replace the file. ``frees``: the change is a way out of a full disk, so it may use the
        spare space, which ``keeps_spare`` takes.
        """
        topics = self.by_id if topics is None else topics
        deleting = self.deleting if deleting is None else deleting
        dropping = self.dropping if dropping is None else dropping
        log_dirs = self.log_dirs if log_dirs is None else log_dirs
        written = self._encoded(topics)
        state = {
            "topics": state_files.array_of(map(itemgetter(1), written.values())),
            "deleting": state_files.text_of([_to_state(topic) for topic in deleting.values()]),
            "dropping": state_files.text_of(
                [list(drop if drop.log_dir else drop[:-1]) for drop in dropping]
            ),
        }
        if log_dirs:
            known = {id_: list(known) for id_, known in log_dirs.items()}
            state["log_dirs"] = state_files.text_of(known)
        try:
            text = state_files.object_of(state)
            if frees:
                self._spare.write(text)
            else:
                size = state_files.write(self._disk, self._path, text)
                if keeps_spare:
                    self._spare.keep(size)
        except OSError as error:
            raise storage_error(f"writing {self._path}", error) from error
        self._written = written
        self._show(topics)
        self.deleting, self.dropping, self.log_dirs = deleting, dropping, log_dirs

    # -- topics ------------------------------------------------------------------------------------

    def get(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicError(
                f"topic {name!r} does not exist. Create it with `raftlog topic create {name}`"
            )
        return topic

    def deleted(self, topic: Topic) -> None:
        """Record that the files of a topic are removed, which an earlier release deleted."""
        deleting = {id_: held for id_, held in self.deleting.items() if id_ != topic.id}
        self._save(deleting=deleting, frees=True)

    def use_log_dirs(
        self, log_dirs: Mapping[str, KnownLogDir], replaced: Mapping[str, str]
    ) -> None:
        """Record the log directories. ``replaced``: by id of a directory, the id of the empty one
        that has replaced it. Its replicas are in the empty one from now on, without records."""
        topics = {}
        for topic in self.by_id.values():
            moved = {number: replaced.get(id_, id_) for number, id_ in topic.log_dirs.items()}
            topics[topic.id] = replace(topic, log_dirs=moved)
        if (log_dirs, topics) != (self.log_dirs, self.by_id):
            self._save(topics=topics, log_dirs=log_dirs)

    def _check_room(self, partitions: int) -> None:
        total = sum(map(itemgetter(2), self._written.values())) + partitions
        if total > limits.PARTITIONS_PER_BROKER_MAX:
            raise InvalidPartitionsError(
                f"the broker would have {total} partitions, over the limit of "
                f"{limits.PARTITIONS_PER_BROKER_MAX}. Create fewer partitions, or delete topics"
            )

    # -- single partitions of topics in a cluster --------------------------------------------------

    def plan_hosting(
        self, name: str, id_: str, partitions: Sequence[int], *, total: int, overrides: Overrides
    ) -> Topic:
        """Return the topic with ``partitions`` added to this data directory, and with the settings
        ``overrides``. Changes nothing."""
        check_topic_name(name)
        assert _TOPIC_ID.fullmatch(id_), f"{id_!r} is not a topic id"
        _check_partitions(total)
        known = self.by_id.get(id_)
        assert known is None or known.name == name, "a topic never changes its name"
        assert all(0 <= partition < total for partition in partitions), "partition out of range"
        here = set(known.local) if known else set()
        wanted = here.union(partitions)
        # After a start, the state of the cluster can be older than the copies.
        total = max(total, 1 + max(here, default=-1))
        self._check_room(len(wanted) - len(here))
        config = TopicConfig.from_text(overrides)
        log_dirs = known.log_dirs if known else {}
        return Topic(name, id_, total, dict(overrides), config, tuple(sorted(wanted)), log_dirs)

    def host(self, topic: Topic) -> None:
        """Add or replace a topic that ``plan_hosting`` returned. No write if nothing differs."""
        if self.by_id.get(topic.id) != topic:
            self._save(topics={**self.by_id, topic.id: topic}, keeps_spare=True)

    def drop(self, id_: str, partitions: Iterable[int]) -> list[Dropping]:
        """Drop partitions, and with the last one their topic. Returns those that this data
        directory holds. The caller removes their files and then calls ``dropped``."""
        topic = self.by_id.get(id_)
        gone = set() if topic is None else set(partitions).intersection(topic.local)
        if topic is None or not gone:
            return []
        hosted = tuple(other for other in topic.local if other not in gone)
        topics = {other: held for other, held in self.by_id.items() if other != id_ or hosted}
        if hosted:
            left = {number: at for number, at in topic.log_dirs.items() if number not in gone}
            topics[id_] = replace(topic, hosted=hosted, log_dirs=left)
        drops = [
            Dropping(topic.name, id_, number, topic.log_dir_of(number)) for number in sorted(gone)
        ]
        self._save(topics=topics, dropping=(*self.dropping, *drops), frees=True)
        return drops

    def holds(self, id_: str, partition: int) -> bool:
        """Whether the partition is in this broker's log directories."""
        topic = self.by_id.get(id_)
        return topic is not None and partition in topic.local

    def unneeded(self, drops: Collection[Dropping]) -> dict[str, Dropping]:
        """Return the topics whose directories hold only these partitions, by topic id."""
        gone = set(drops)
        needed = {*self.by_id, *(other.id for other in self.dropping if other not in gone)}
        return {drop.id: drop for drop in drops if drop.id not in needed}

    def dropped(self, drops: Iterable[Dropping]) -> None:
        """Record that the files of dropped partitions are removed."""
        gone = set(drops)
        self._save(
            dropping=tuple(other for other in self.dropping if other not in gone), frees=True
        )


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= limits.PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitionsError(
            f"{partitions} partitions: a topic must have 1 to {limits.PARTITIONS_PER_TOPIC_MAX}"
        )


def _to_state(topic: Topic) -> dict[str, Any]:
    state = {
        "name": topic.name,
        "id": topic.id,
        "partitions": topic.partitions,
        "config": dict(topic.overrides),
        "hosted": None if topic.hosted is None else list(topic.hosted),
    }
    if topic.log_dirs:
        state["log_dirs"] = {str(number): id_ for number, id_ in topic.log_dirs.items()}
    return state


def _from_state(row: dict[str, Any]) -> Topic:
    config = TopicConfig.from_text(row["config"])
    hosted = row.get("hosted")
    return Topic(
        row["name"],
        row["id"],
        row["partitions"],
        row["config"],
        config,
        None if hosted is None else tuple(hosted),
        {int(number): id_ for number, id_ in row.get("log_dirs", {}).items()},
    )
