"""Cluster metadata of a client: brokers, topics and partition leaders. Pure values.

A ``ClusterView`` is immutable; each update creates a new one. ``cluster`` fetches the metadata.

Every broker returns metadata, and an isolated broker returns stale metadata. So updates are merged:

    a partition      the leader epoch decides: an older one changes nothing (KIP-320)
    a known topic    its deletion, or another topic of this name, counts if two brokers report it,
                     or the only broker
    its partitions   are only added, never removed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from raftlog.config import Address
from raftlog.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    LeaderNotAvailableError,
    RaftlogError,
    RefusedError,
    RetriableError,
    UnknownPartitionError,
    UnknownTopicError,
    counted,
)
from raftlog.protocol.metadata import MetadataResponse, TopicInfo
from raftlog.types import LeaderEpoch

NO_EPOCH: Final[LeaderEpoch] = -1  # not known
NO_SOURCE: Final = -1  # response of an unknown broker
_OPINIONS: Final = 2  # brokers that must agree before a known topic is removed
_GONE: Final = ""  # in place of a topic's id


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition. ``leader`` is a broker id, or None without a leader."""

    leader: int | None
    leader_epoch: LeaderEpoch = NO_EPOCH
    replicas: tuple[int, ...] = ()  # the preferred leader first
    isr: tuple[int, ...] = ()

    def updated(self, news: PartitionView) -> PartitionView:
        """Return the newer of the two."""
        if news.leader_epoch < self.leader_epoch:
            return self
        if news.leader is None and news.leader_epoch == self.leader_epoch != NO_EPOCH:
            # An epoch has one leader: a broker that reports none only lost its connection to it.
            return replace(news, leader=self.leader)
        return news


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic."""

    name: str
    id: str
    max_message_bytes: int
    partitions: tuple[PartitionView, ...]
    keys_required: bool = False  # the topic is compacted

    @property
    def leaders(self) -> tuple[int | None, ...]:
        return tuple(partition.leader for partition in self.partitions)

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    def check_partition(self, partition: int) -> int:
        """Return ``partition``. Raises ``UnknownPartitionError`` if the topic does not have it."""
        if not 0 <= partition < len(self.partitions):
            raise UnknownPartitionError(
                f"topic {self.name!r} has no partition {partition}. It has "
                f"{counted(len(self.partitions), 'partition')}, numbered from 0"
            )
        return partition

    def updated(self, news: TopicView) -> TopicView:
        """Return this topic, merged with the newer parts of ``news``."""
        merged = [
            known.updated(new) for known, new in zip(self.partitions, news.partitions, strict=False)
        ]
        longer = max(self.partitions, news.partitions, key=len)
        return replace(news, partitions=(*merged, *longer[len(merged) :]))

    def is_newer_than(self, other: TopicView) -> bool:
        """Return True if ``other``, of the same id, lacks partitions or leader epochs of this."""
        return len(other.partitions) < len(self.partitions) or any(
            theirs.leader_epoch < ours.leader_epoch
            for ours, theirs in zip(self.partitions, other.partitions, strict=False)
        )


@dataclass(frozen=True, slots=True)
class Doubt:
    """Unconfirmed reports about a topic, which more brokers must confirm."""

    topic_id: str  # of another topic of this name; empty: deleted
    brokers: frozenset[int]


_NO_TOPICS: Final[Mapping[str, TopicView]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Cluster metadata from one response, or from several merged responses."""

    cluster_id: str = ""
    brokers: Mapping[int, Address] = field(default_factory=dict)
    racks: Mapping[int, str] = field(default_factory=dict)  # of brokers with a rack
    topics: Mapping[str, TopicView] = field(default_factory=dict)
    failures: Mapping[str, RaftlogError] = field(default_factory=dict)  # of missing topics
    doubts: Mapping[str, Doubt] = field(default_factory=dict)
    controller: int | None = None  # in the last response

    def merge(
        self,
        response: MetadataResponse,
        *,
        asked: Sequence[str] | None,
        source: int = NO_SOURCE,
    ) -> ClusterView:
        """Return this view, merged with the response of broker ``source``.

        ``asked``: the requested topics; None: all.
        """
        brokers = {broker.id: Address(broker.host, broker.port) for broker in response.brokers}
        racks = {broker.id: broker.rack for broker in response.brokers if broker.rack}
        is_only_one = len({*brokers, *self.brokers, source} - {NO_SOURCE}) <= 1
        news = _News(
            source=source,
            opinions=1 if is_only_one else _OPINIONS,
            topics=dict(self.topics),
            failures={} if asked is None else dict(self.failures),
            doubts=dict(self.doubts),
        )
        for reported in _reported(response, self.topics if asked is None else _NO_TOPICS):
            news.take(*reported)
        return ClusterView(
            cluster_id=response.cluster_id or self.cluster_id,
            brokers=self._with_brokers(brokers, news.topics.values()),
            racks={**self.racks, **racks},
            topics=news.topics,
            failures=news.failures,
            doubts=news.doubts,
            controller=response.controller,
        )

    def _with_brokers(
        self, news: Mapping[int, Address], topics: Iterable[TopicView]
    ) -> dict[int, Address]:
        """Keep brokers in use: an isolated broker returns only itself, or a few brokers."""
        in_use = {
            broker
            for topic in topics
            for partition in topic.partitions
            for broker in (*partition.replicas, partition.leader)
        }
        is_alone = len(news) <= 1
        kept = {id_: at for id_, at in self.brokers.items() if is_alone or id_ in in_use}
        return {**news, **{id_: at for id_, at in kept.items() if id_ not in news}}

    def is_ahead_of(self, response: MetadataResponse) -> bool:
        """Return True if the response lacks something that this view contains."""
        for info in response.topics:
            known = self.topics.get(info.name)
            if known is None:
                continue
            if info.failure is not None or info.id != known.id:
                return True
            if known.is_newer_than(_topic_view(info)):
                return True
        return False

    def topic(self, name: str) -> TopicView:
        """Return the topic, or raise why it is missing."""
        found = self.topics.get(name)
        if found is not None:
            return found
        failure = self.failures.get(name)
        if failure is not None:
            raise type(failure)(*failure.args)
        raise UnknownTopicError(
            f"topic {name!r} does not exist. Create it, for example with "
            f"`raftlog topic create {name}`"
        )

    def partition(self, topic: str, partition: int) -> PartitionView:
        """Return the partition, or raise why it is missing.

        Returns a partition without a leader if the last broker did not have the topic's metadata
        yet.
        """
        if topic not in self.topics and isinstance(self.failures.get(topic), RetriableError):
            return PartitionView(None)
        view = self.topic(topic)
        return view.partitions[view.check_partition(partition)]

    def has_newer_leader(self, topic: str, partition: int, leader_epoch: LeaderEpoch) -> bool:
        """Return True if the partition has a leader in a later epoch than ``leader_epoch``."""
        try:
            known = self.partition(topic, partition)
        except RefusedError:
            return False
        return known.leader is not None and known.leader_epoch > leader_epoch

    def leader(self, topic: str, partition: int) -> int:
        """Return the id of the partition's leader. Raises ``LeaderNotAvailableError``."""
        leader = self.partition(topic, partition).leader
        if leader is None:
            raise LeaderNotAvailableError(f"{topic}:{partition} has no leader")
        return leader


@dataclass(slots=True, kw_only=True)
class _News:
    """Topics of a view while the response of broker ``source`` is merged."""

    source: int
    opinions: int  # brokers that must agree before a known topic is removed
    topics: dict[str, TopicView]
    failures: dict[str, RaftlogError]
    doubts: dict[str, Doubt]

    def take(self, name: str, news: TopicView | None, failure: RaftlogError | None) -> None:
        """Merge one topic: its metadata ``news``, or its absence."""
        known = self.topics.get(name)
        if known is not None and isinstance(failure, RetriableError):
            return  # a broker that has just started may not have the topic yet
        if news is not None and (known is None or known.id == news.id):
            believed = True
        else:
            believed = self._is_believed(name, _GONE if news is None else news.id)
        if believed:
            self.doubts.pop(name, None)
        elif known is not None:
            return
        self.failures.pop(name, None)
        if news is None:
            self.topics.pop(name, None)
            if failure is not None:
                self.failures[name] = failure
        elif known is None or known.id != news.id or self.opinions == 1:
            self.topics[name] = news
        else:
            self.topics[name] = known.updated(news)

    def _is_believed(self, name: str, topic_id: str) -> bool:
        """Return True if enough brokers report that the topic is not the known one."""
        doubt = self.doubts.get(name)
        before = doubt.brokers if doubt is not None and doubt.topic_id == topic_id else frozenset()
        self.doubts[name] = Doubt(topic_id, before | {self.source})
        return len(self.doubts[name].brokers) >= self.opinions


def _reported(
    response: MetadataResponse, known: Mapping[str, TopicView]
) -> list[tuple[str, TopicView | None, RaftlogError | None]]:
    """Return the report on each topic; absence for topics in ``known`` that it omits."""
    reported: list[tuple[str, TopicView | None, RaftlogError | None]] = [
        (info.name, _topic_view(info), None)
        if info.failure is None
        else (info.name, None, info.failure.to_error())
        for info in response.topics
    ]
    named = {name for name, _, _ in reported}
    return reported + [(name, None, None) for name in known if name not in named]


def _topic_view(info: TopicInfo) -> TopicView:
    count = 1 + max((part.partition for part in info.partitions), default=-1)
    partitions = [PartitionView(None)] * count
    for part in info.partitions:
        partitions[part.partition] = PartitionView(
            part.leader, part.leader_epoch, tuple(part.replicas), tuple(part.isr)
        )
    return TopicView(
        name=info.name,
        id=info.id,
        max_message_bytes=info.max_message_bytes,
        keys_required=info.keys_required,
        partitions=tuple(partitions),
    )


def unreachable(reasons: Mapping[Address, RaftlogError]) -> RaftlogError:
    """Return the error if no broker responded, with the reason for each address."""
    errors = list(reasons.values())
    for error in errors:
        if isinstance(error, AuthenticationError):
            return error  # all brokers have the same users
    if errors and not any(isinstance(error, BrokerUnavailableError) for error in errors):
        # Every address responded, but is not a broker of this cluster: waiting cannot help.
        return errors[0]
    listed = "; ".join(f"{address} ({error})" for address, error in reasons.items())
    return BrokerUnavailableError(
        f"no broker can be reached: {listed}. Start the brokers, for example with `raftlog up`, "
        "or check the argument bootstrap (RAFTLOG_BOOTSTRAP)"
    )
