"""Table of topics and partitions on the event loop, with the replicas that this broker stores.

The store has the topics on disk, and changes them in a thread. This table is changed on the loop
only, after the disk (creation) or before it (deletion).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from raftlog.config import BrokerConfig, TopicConfig
from raftlog.errors import (
    ClusterNotReadyError,
    NotLeaderError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol.records import PartitionInfo
from raftlog.replication.partition_state import PartitionState
from raftlog.server.disks import DiskSpace, DiskWatch
from raftlog.server.partition import Partition, ReplicaServices
from raftlog.server.scheduling import Workers
from raftlog.storage.log_dirs import LogDir
from raftlog.types import check_topic_name

# State of a partition, by its topic id and number; None while it is unknown.
StateOf: TypeAlias = Callable[[str, int], PartitionState | None]


@dataclass(slots=True)
class HostedTopic:
    """``hosts[i]`` is the host of partition ``i``, or None if this broker has no copy of it."""

    name: str
    id: str
    config: TopicConfig
    overrides: Mapping[str, str]
    hosts: list[Partition | None] = field(default_factory=list)

    def local_hosts(self) -> list[Partition]:
        return [host for host in self.hosts if host is not None]


class TopicTable:
    """Topics by name, in the order of their names when iterated."""

    def __init__(self) -> None:
        self._topics: dict[str, HostedTopic] = {}
        self._by_id: dict[str, HostedTopic] = {}
        self._similar: dict[str, list[str]] = {}  # names by name without dots
        self.state_of: StateOf = lambda _topic_id, _partition: None  # set by the cluster
        # Whether the topic of a name or id may exist, although it is not in this table yet. Set by
        # the cluster.
        self.is_expected: Callable[[str], bool] = lambda _name_or_id: False
        # False while there may be topics that this broker has not received yet
        self.is_complete = True
        self.waits_for = ""  # the reason, while this broker is in no cluster
        # Called when topics were added, removed or extended.
        self.on_change: Callable[[], None] | None = None
        self._waiting: dict[Callable[[], None], None] = {}  # until all topics are known

    def __iter__(self) -> Iterator[HostedTopic]:
        return iter([self._topics[name] for name in sorted(self._topics)])

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    @property
    def partition_count(self) -> int:
        return sum(len(topic.hosts) for topic in self._topics.values())

    def add(self, topic: HostedTopic) -> None:
        assert topic.name not in self._topics
        self._topics[topic.name] = self._by_id[topic.id] = topic
        self._similar.setdefault(_plain(topic.name), []).append(topic.name)
        self._changed()

    def remove(self, name: str) -> HostedTopic:
        removed = self._topics.pop(name)
        self._by_id.pop(removed.id, None)
        similar = self._similar[_plain(name)]
        similar.remove(name)
        if not similar:
            del self._similar[_plain(name)]
        self._changed()
        return removed

    def extend(self, topic: HostedTopic, hosts: Sequence[Partition | None]) -> None:
        """Add partitions to the topic."""
        if hosts:
            topic.hosts += hosts
            self._changed()

    def cut(self, topic: HostedTopic, first: int) -> None:
        """Remove the partitions of the topic from ``first`` on."""
        del topic.hosts[first:]
        self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def get(self, name: str) -> HostedTopic | None:
        return self._topics.get(name)

    def colliding(self, name: str) -> str | None:
        """Return another topic whose name differs only by ``.`` and ``_``; None if there is none.

        Tools for Kafka replace ``.`` in names of metrics: such topics look the same (KAFKA-2337).
        """
        return next((each for each in self._similar.get(_plain(name), ()) if each != name), None)

    def by_id(self, topic_id: str) -> HostedTopic:
        """Return a topic by its id. Raises ``UnknownTopicError`` or ``ClusterNotReadyError``."""
        topic = self._by_id.get(topic_id)
        if topic is None:
            self._check_expected(topic_id)
            raise UnknownTopicError(f"no topic has the id {topic_id}. Refresh the metadata")
        return topic

    def info(self, topic: HostedTopic, partition: int) -> PartitionInfo:
        """Return the replicas, the leader and the ISR of a partition, as known to this broker."""
        return _info(partition, self.state(topic, partition))

    def state(self, topic: HostedTopic, partition: int) -> PartitionState | None:
        return self.state_of(topic.id, partition)

    def topic(self, name: str) -> HostedTopic:
        """Return a topic. Raises ``InvalidTopicError``, ``UnknownTopicError`` or
        ``ClusterNotReadyError``.
        """
        topic = self._topics.get(name)
        if topic is None:
            check_topic_name(name)
            self._check_expected(name)
            raise UnknownTopicError(
                f"topic {name!r} does not exist. Create it first (raftlog topic create {name})"
            )
        return topic

    def complete(self) -> None:
        """All topics of the cluster are known."""
        self.is_complete = True
        waiting, self._waiting = self._waiting, {}
        for go in waiting:
            go()

    def when_complete(self, go: Callable[[], None]) -> None:
        """Call ``go`` when all topics are known: now, or later unless it is forgotten."""
        if self.is_complete:
            go()
        else:
            self._waiting[go] = None

    def forget(self, go: Callable[[], None]) -> None:
        """Do not call ``go`` any more."""
        self._waiting.pop(go, None)

    def check_complete(self) -> None:
        """Raise ``ClusterNotReadyError`` while a missing topic may exist on other brokers."""
        if not self.is_complete:
            raise ClusterNotReadyError(
                "this broker has not received the topics of the cluster yet: "
                + (self.waits_for or "it has just started")
            )

    def _check_expected(self, name_or_id: str) -> None:
        """Raise ``ClusterNotReadyError`` for a missing topic that may exist on other brokers."""
        self.check_complete()
        # guard: a broker that lags does not deny a topic that is being created
        if self.is_expected(name_or_id):
            raise ClusterNotReadyError(
                f"topic {name_or_id!r} was created a moment ago: this broker does not have it yet"
            )

    def host(self, name: str, partition: int) -> Partition:
        """Return this broker's copy of a partition.

        Raises the errors of ``topic``, ``UnknownPartitionError``, or ``NotLeaderError`` if this
        broker does not store it.
        """
        topic = self._topics.get(name) or self.topic(name)
        if partition < len(topic.hosts):
            host = topic.hosts[partition]
            if host is None:
                raise self._elsewhere(topic, partition)
            return host
        raise UnknownPartitionError(
            f"topic {name} has no partition {partition}: it has {len(topic.hosts)} "
            f"(0 to {len(topic.hosts) - 1})"
        )

    def hosts(self) -> list[Partition]:
        """Return the hosts of all partitions."""
        return [host for topic in self._topics.values() for host in topic.local_hosts()]

    def _elsewhere(self, topic: HostedTopic, partition: int) -> NotLeaderError:
        state = self.state(topic, partition)
        whose = "its replicas are not known yet"
        if state is not None:
            whose = f"its replicas are brokers {', '.join(map(str, state.replicas))}"
        return NotLeaderError(f"this broker does not store {topic.name}:{partition}: {whose}")


def _plain(name: str) -> str:
    return name.replace(".", "_")


def _info(partition: int, state: PartitionState | None) -> PartitionInfo:
    if state is None:
        return PartitionInfo(partition=partition, leader=None, leader_epoch=-1, replicas=[], isr=[])
    return PartitionInfo(
        partition=partition,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        replicas=list(state.replicas),
        isr=sorted(state.isr),
        witnesses=list(state.witnesses),
    )


# -- log dirs --------------------------------------------------------------------------------------
#
# Log directories besides the data directory: each has its own threads, watch and watermarks.
#
# So a disk that hangs or fills up affects the replicas on it only.


class WatchedLogDir:
    """One log directory that is online at the start, and the services of its partitions."""

    def __init__(
        self, log_dir: LogDir, config: BrokerConfig, services: ReplicaServices, workers: Workers
    ) -> None:
        """``workers``: threads for work on this directory only."""
        self.log_dir = log_dir
        self.workers = workers
        self.space = DiskSpace(
            producers=config.disk_watermark_producers,
            replication=config.disk_watermark_replication,
            what=f"the disk of {log_dir.path}",
        )
        self.watch = DiskWatch(
            services.loop,
            sync=workers,
            timeout_s=config.disk_stall_timeout_ms / 1_000,
            directory=log_dir.path,
        )
        self.services = replace(
            services, sync_workers=workers, disk=self.watch, space=self.space, log_dirs={}
        )
        log_dir.is_avoided = self._is_avoided

    def _is_avoided(self) -> bool:
        return self.watch.is_hung or bool(self.space.reason)


class LogDirMonitor:
    """All log directories besides the data directory.

    ``services``: those of the broker, with those of each directory.
    """

    def __init__(
        self,
        log_dirs: Iterable[LogDir],
        config: BrokerConfig,
        services: ReplicaServices,
        workers: Mapping[str, Workers],
    ) -> None:
        """``log_dirs``: also those that failed at the start, which have no ``workers``."""
        self.log_dirs = tuple(log_dirs)
        self.watched = {
            each.id: WatchedLogDir(each, config, services, workers[each.id])
            for each in self.log_dirs
            if each.id in workers
        }
        by_id = {id_: each.services for id_, each in self.watched.items()}
        self.services = replace(services, log_dirs=by_id)

    def start(
        self,
        *,
        on_failed: Callable[[LogDir], None],
        on_hung: Callable[[LogDir], None],
        while_hung: Callable[[], None],
    ) -> None:
        """``on_failed``: called in any thread. ``on_hung``, ``while_hung``: see ``DiskWatch``."""
        for each in self.watched.values():
            each.log_dir.on_failed = on_failed
            each.watch.start(on_logs_hung=partial(on_hung, each.log_dir), while_hung=while_hung)

    def stop(self) -> None:
        for each in self.watched.values():
            each.watch.stop()

    def space(self, log_dir: LogDir) -> DiskSpace:
        watched = self.watched.get(log_dir.id)
        return DiskSpace() if watched is None or log_dir.failure else watched.space

    def is_hung(self, log_dir: LogDir) -> bool:
        watched = self.watched.get(log_dir.id)
        return watched is not None and not log_dir.failure and watched.watch.is_hung

    def problem(self, log_dir: LogDir) -> str:
        """Return why a directory does not work, or refuses growth; "" if neither."""
        if log_dir.failure:
            return log_dir.failure
        if self.is_hung(log_dir):
            return f"log directory {log_dir.path} completes no sync: check its disk (dmesg, SMART)"
        return self.space(log_dir).reason

    @property
    def quarantine_bytes(self) -> int:
        """Return the size of corrupt copies that are kept, in all these directories."""
        return sum(each.space.quarantine_bytes for each in self.watched.values())

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(filter(None, map(self.problem, self.log_dirs)))
