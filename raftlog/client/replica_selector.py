"""Selects the broker that a partition is read from: its leader, or a replica while there is none.

A consumer reads committed records. The leader knows the newest high watermark, so it is the default
source. While it is unreachable and no other leader is elected, another replica replaces it: records
of a replica are committed, too, but there may be fewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from raftlog.client.broker_connections import BrokerConnections
from raftlog.client.cluster import Cluster
from raftlog.client.connection import SILENCE_S
from raftlog.client.metadata import NO_EPOCH, PartitionView
from raftlog.client.settings import ConsumerSettings
from raftlog.protocol import api as apis
from raftlog.protocol.fetch import OffsetAnswer
from raftlog.protocol.topics import DescribeTopicsRequest, DescribeTopicsResponse
from raftlog.types import LeaderEpoch, TopicPartition

STAND_IN_AFTER_S: Final = 1.0  # wait for a leader before another replica replaces it
_SHUN_S: Final = 2.0  # time for which a replica that refused a fetch is not used

End: TypeAlias = Literal["earliest", "latest"]


class Source(NamedTuple):
    """A broker to fetch a partition from."""

    broker_id: int
    leader_epoch: LeaderEpoch  # for fencing; NO_EPOCH while the leader is unreachable
    replica_ok: bool  # the broker need not be the leader


class ReplicaSelector:
    """Broker selection of one consumer. Used on one event loop. ``now``: monotonic seconds."""

    def __init__(
        self,
        settings: ConsumerSettings,
        cluster: Cluster,
        links: BrokerConnections[Any],
        *,
        turn: int,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._links = links
        self._turn = turn  # spreads the partitions of different consumers over the replicas
        self._lost_at: dict[TopicPartition, float] = {}  # since when no leader is reachable
        self._shunned: dict[tuple[TopicPartition, int], float] = {}  # -> end time
        self._disputed: set[TopicPartition] = set()

    def choose(self, tp: TopicPartition, now: float) -> Source | float:
        """Return the broker to fetch from now; else the time of the next attempt.

        Metadata or connection changes can make an earlier attempt possible. Raises ``RefusedError``
        if the partition does not exist, or its leader rejects the credentials of this client.
        """
        known = self._cluster.view.partition(tp.topic, tp.partition)
        if self._settings.read_from == "replica" and tp not in self._disputed:
            near = self._near(tp, known, now)
            if near is not None:
                return Source(near, known.leader_epoch, replica_ok=True)
        leader = known.leader
        if leader is not None and self._links.is_usable(leader, now):
            self._lost_at.pop(tp, None)
            return Source(leader, known.leader_epoch, replica_ok=False)
        again_at = self._links.refresh() or now + STAND_IN_AFTER_S
        if leader is not None:
            link = self._links.link(leader)
            self._links.connection(link, now)  # reconnects
            if link.rejection is not None:
                raise link.rejection
        stand_in_at = self._lost_at.setdefault(tp, now) + STAND_IN_AFTER_S
        if stand_in_at > now:
            return min(again_at, stand_in_at)
        for broker_id in self._turned(tp, _others(known)):
            if self._is_good(tp, broker_id, now):
                return Source(broker_id, NO_EPOCH, replica_ok=True)
        return again_at

    def _near(self, tp: TopicPartition, known: PartitionView, now: float) -> int | None:
        """Return an in-sync replica, from the consumer's rack if possible (KIP-392)."""
        good = [broker_id for broker_id in known.isr if self._is_good(tp, broker_id, now)]
        racks = self._cluster.view.racks
        near = [
            broker_id
            for broker_id in good
            if self._settings.client_rack and racks.get(broker_id) == self._settings.client_rack
        ]
        return next(iter(self._turned(tp, near or good)), None)

    def _turned(self, tp: TopicPartition, brokers: Sequence[int]) -> Sequence[int]:
        """Return ``brokers`` rotated by partition number. The order for one partition is stable."""
        if not brokers:
            return brokers
        start = (self._turn + tp.partition) % len(brokers)
        return [*brokers[start:], *brokers[:start]]

    def _is_good(self, tp: TopicPartition, broker_id: int, now: float) -> bool:
        if not self._links.is_usable(broker_id, now):
            self._links.connection(self._links.link(broker_id), now)  # reconnects
            return False
        return self._shunned.get((tp, broker_id), now) <= now

    def refused(self, tp: TopicPartition, source: Source, now: float) -> None:
        """Prefer other replicas for ``_SHUN_S`` seconds after this one refused the partition."""
        self._shunned[tp, source.broker_id] = now + _SHUN_S

    def is_disputed(self, tp: TopicPartition) -> bool:
        """Return True if a replica reported the position as out of range: the leader decides."""
        return tp in self._disputed

    def dispute(self, tp: TopicPartition) -> None:
        self._disputed.add(tp)

    def resolve(self, tp: TopicPartition) -> None:
        """End the dispute: the leader has responded."""
        self._disputed.discard(tp)

    def turn(self, tp: TopicPartition) -> None:
        """Select another replica than before."""
        self._turn += 1
        self.resolve(tp)

    def keep(self, partitions: Mapping[TopicPartition, object]) -> None:
        """Discard the state of all other partitions."""
        self._disputed &= partitions.keys()
        self._lost_at = {tp: at for tp, at in self._lost_at.items() if tp in partitions}
        self._shunned = {key: at for key, at in self._shunned.items() if key[0] in partitions}


def _others(known: PartitionView) -> list[int]:
    """Return the replicas except the leader, in-sync replicas first, because they have the most."""
    return [
        broker_id
        for broker_id in dict.fromkeys((*known.isr, *known.replicas))
        if broker_id != known.leader
    ]


async def replica_offsets(
    cluster: Cluster, queries: Mapping[TopicPartition, End]
) -> dict[TopicPartition, OffsetAnswer]:
    """Return start or end offsets from the replica with the highest high watermark.

    For use without a leader. The end is the highest high watermark of the reachable replicas. It
    can be lower than an end that a leader has returned. A partition without any reachable replica
    is omitted.
    """
    view = cluster.view
    replicas = {
        broker_id
        for part in (view.partition(*tp) for tp in queries)
        for broker_id in (*part.isr, *part.replicas)
    }
    topics = sorted({tp.topic for tp in queries})
    answers = await cluster.ask_all(
        apis.DESCRIBE_TOPICS,
        DescribeTopicsRequest(topics=topics),
        brokers={id_: address for id_, address in view.brokers.items() if id_ in replicas},
        patience_s=SILENCE_S,
    )
    spans: dict[TopicPartition, tuple[int, int]] = {}  # (high watermark, log start offset)
    for answer in answers.values():
        if not isinstance(answer, DescribeTopicsResponse):
            continue
        for topic in answer.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.info.partition)
                span = (part.high_watermark, part.log_start_offset)
                if part.high_watermark >= 0:
                    spans[tp] = max(span, spans.get(tp, span))
    found: dict[TopicPartition, OffsetAnswer] = {}
    for tp, end in queries.items():
        if tp in spans:
            high_watermark, log_start = spans[tp]
            offset = log_start if end == "earliest" else high_watermark
            found[tp] = OffsetAnswer(topic=tp.topic, partition=tp.partition, offset=offset)
    return found
