"""What a client knows of its cluster: brokers, topics, and who leads each partition. Pure values.

A ``ClusterView`` never changes; news make a new one. Fetching it is ``cluster``'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from raftlog.config import Address
from raftlog.errors import (
    BrokerUnavailableError,
    NotLeaderError,
    RaftlogError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol.metadata import MetadataResponse, TopicInfo

_NOTHING: Final[Mapping[str, TopicView]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic. ``leaders[partition]`` is a broker's id, or None while nobody leads it."""

    name: str
    id: str
    max_message_bytes: int
    leaders: tuple[int | None, ...]

    @property
    def partition_count(self) -> int:
        return len(self.leaders)

    def check_partition(self, partition: int) -> int:
        """``partition`` if the topic has it, else raise ``UnknownPartitionError``."""
        if not 0 <= partition < len(self.leaders):
            raise UnknownPartitionError(
                f"topic {self.name!r} has no partition {partition}: it has {len(self.leaders)}, "
                f"numbered from 0"
            )
        return partition


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster as one answer, or several merged, showed it."""

    cluster_id: str = ""
    brokers: Mapping[int, Address] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)
    failures: Mapping[str, RaftlogError] = field(default_factory=dict)  # of topics not there

    def merge(self, response: MetadataResponse, *, asked: Sequence[str] | None) -> ClusterView:
        """This view with the news in ``response`` to a question about ``asked`` (None: all)."""
        topics = {} if asked is None else dict(self.topics)
        failures = {} if asked is None else dict(self.failures)
        for info in response.topics:
            topics.pop(info.name, None)
            failures.pop(info.name, None)
            if info.failure is None:
                topics[info.name] = _topic_view(info)
            else:
                failures[info.name] = info.failure.to_error()
        return replace(
            self,
            cluster_id=response.cluster_id,
            brokers={broker.id: Address(broker.host, broker.port) for broker in response.brokers},
            topics=topics,
            failures=failures,
        )

    def topic(self, name: str) -> TopicView:
        """The topic, or raise why it is not here."""
        found = self.topics.get(name)
        if found is not None:
            return found
        failure = self.failures.get(name)
        if failure is not None:
            raise type(failure)(*failure.args)
        raise UnknownTopicError(
            f"there is no topic {name!r}; create it first, for example with "
            f"`raftlog topic create {name}`"
        )

    def leader(self, topic: str, partition: int) -> int:
        """The id of the broker that leads the partition, or raise."""
        view = self.topic(topic)
        leader = view.leaders[view.check_partition(partition)]
        if leader is None:
            raise NotLeaderError(f"{topic}:{partition} has no leader at the moment")
        return leader


def _topic_view(info: TopicInfo) -> TopicView:
    count = 1 + max((part.partition for part in info.partitions), default=-1)
    leaders: list[int | None] = [None] * count
    for part in info.partitions:
        leaders[part.partition] = part.leader
    return TopicView(
        name=info.name,
        id=info.id,
        max_message_bytes=info.max_message_bytes,
        leaders=tuple(leaders),
    )


def unreachable(reasons: Mapping[Address, RaftlogError]) -> RaftlogError:
    """The error for a cluster of which no address answered, with each address's reason."""
    errors = list(reasons.values())
    if errors and not any(isinstance(error, BrokerUnavailableError) for error in errors):
        # Something answered everywhere, and it is no broker of ours: waiting will not change that.
        return errors[0]
    listed = "; ".join(f"{address} ({error})" for address, error in reasons.items())
    return BrokerUnavailableError(
        f"no broker can be reached: {listed}. Is the broker running? Start one with `raftlog up`; "
        "check --bootstrap / RAFTLOG_BOOTSTRAP"
    )
