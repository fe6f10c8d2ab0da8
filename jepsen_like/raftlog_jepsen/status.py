"""Partition state from the responses of all brokers: leaders, ISR, and replicas that caught up.

Each request has a time limit, for any state of brokers and network. Pure functions interpret the
responses.
"""

from __future__ import annotations

import ssl
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias, TypeVar

from raftlog.config.address import Address
from raftlog.protocol.api import DESCRIBE_CLUSTER, DESCRIBE_TOPICS, Api
from raftlog.protocol.cluster import DescribeClusterRequest, DescribeClusterResponse
from raftlog.protocol.cluster import PartitionStatus as WireStatus
from raftlog.protocol.records import (
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    PartitionDescription,
)
from raftlog.protocol.schema import Message
from raftlog.testing.cluster import ask
from raftlog.types import LeaderEpoch, Offset, TopicPartition

M = TypeVar("M", bound=Message)

POLL_S: Final = 0.2  # check interval
# time limit for the responses of all brokers to one request; there are two requests
ROUND_S: Final = 1.4


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """State of one partition, from the newest leader epoch that any broker reports.

    Fields contain broker ids. ``replicas`` and ``witnesses``: in the preferred order. ``elr``: as
    in KIP-966. Offsets are those of the leader, -1 if it does not respond. ``log_end_offset`` was
    requested before the end offsets of the other replicas.
    ``agreed``: brokers that report this leader epoch and this ISR.
    ``caught_up``: replicas that report this leader epoch and store the log up to
    ``log_end_offset``; empty if the leader does not respond.
    """

    topic: str
    partition: int
    leader: int | None
    leader_epoch: LeaderEpoch
    replicas: tuple[int, ...]
    isr: frozenset[int]
    witnesses: tuple[int, ...] = ()
    high_watermark: Offset = -1
    topic_id: str = ""
    min_isr: int = 1
    elr: frozenset[int] = frozenset()
    log_end_offset: Offset = -1
    agreed: frozenset[int] = frozenset()
    caught_up: frozenset[int] = frozenset()

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def voters(self) -> frozenset[int]:
        """Brokers that vote in leader elections."""
        return frozenset(self.replicas) | frozenset(self.witnesses)

    @property
    def is_whole(self) -> bool:
        """Whether every replica is in the ISR and has caught up."""
        return self.leader is not None and frozenset(self.replicas) <= self.isr & self.caught_up


ClusterStatus: TypeAlias = Mapping[TopicPartition, PartitionStatus]


@dataclass(frozen=True, slots=True)
class Answers:
    """Responses by broker id. A broker that did not respond in time is missing."""

    clusters: Mapping[int, DescribeClusterResponse]
    topics: Mapping[int, DescribeTopicsResponse]

    @property
    def controller(self) -> int | None:
        """The broker that reports itself as the controller of the cluster, or None."""
        return next((b for b, answer in self.clusters.items() if answer.controller == b), None)

    @property
    def members(self) -> frozenset[int]:
        """The brokers that the controller considers alive; empty without a controller."""
        if self.controller is None:
            return frozenset()
        brokers = self.clusters[self.controller].brokers
        return frozenset(broker.id for broker in brokers if broker.live and not broker.fenced)

    def changes(self) -> list[str]:
        """Return the changes in progress that the controller reports: removals and moves."""
        if self.controller is None:
            return []
        answer = self.clusters[self.controller]
        leaving = [f"broker {broker.id} is leaving" for broker in answer.brokers if broker.draining]
        moving = [part for part in answer.partitions if part.target]
        return leaving + [f"{part.topic}:{part.partition} moves" for part in moving]

    def status(self) -> ClusterStatus:
        """Return the partitions of all existing topics, each from the newest leader epoch that any
        broker reports."""
        ids = self._topic_ids()
        views: dict[TopicPartition, dict[int, WireStatus]] = {}
        for broker, answer in self.clusters.items():
            for part in answer.partitions:
                if ids.get(part.topic) == part.topic_id:
                    name = TopicPartition(part.topic, part.partition)
                    views.setdefault(name, {})[broker] = part
        return {name: self._partition(views[name]) for name in sorted(views)}

    def _topic_ids(self) -> dict[str, str]:
        """Return the id of each topic: from the controller, else the id that most responses have.

        A recreated topic has another id. Brokers with stale metadata report the old id.
        """
        deciding = self.controller
        asked = self.clusters.values() if deciding is None else (self.clusters[deciding],)
        counts = Counter((part.topic, part.topic_id) for answer in asked
                         for part in answer.partitions)  # fmt: skip
        return {topic: topic_id for (topic, topic_id), _ in reversed(counts.most_common())}

    def _partition(self, views: Mapping[int, WireStatus]) -> PartitionStatus:
        newest = max(
            views,
            key=lambda b: (views[b].leader_epoch, views[b].leader == b, views[b].high_watermark),
        )
        best = views[newest]
        ends = {each.broker: each.log_end_offset for each in best.replica_status}
        end = ends.get(newest, -1) if best.leader == newest else -1
        return PartitionStatus(
            topic=best.topic,
            partition=best.partition,
            leader=best.leader,
            leader_epoch=best.leader_epoch,
            replicas=tuple(best.replicas),
            isr=frozenset(best.isr),
            witnesses=tuple(best.witnesses),
            high_watermark=best.high_watermark,
            topic_id=best.topic_id,
            min_isr=best.min_isr,
            elr=frozenset(best.elr),
            log_end_offset=end,
            agreed=frozenset(
                broker
                for broker, view in views.items()
                if view.leader_epoch == best.leader_epoch and set(view.isr) == set(best.isr)
            ),
            caught_up=frozenset(b for b in best.replicas if end >= 0 and self._has(b, best, end)),
        )

    def _has(self, broker: int, best: WireStatus, end: Offset) -> bool:
        """Return whether a replica has the log, in the newest leader epoch, up to ``end``."""
        own = self._own(broker, best)
        return (
            own is not None
            and own.info.leader_epoch == best.leader_epoch
            and own.log_end_offset >= end
            and not own.damage
        )

    def _own(self, broker: int, best: WireStatus) -> PartitionDescription | None:
        if broker not in self.topics:
            return None
        parts = (
            part
            for topic in self.topics[broker].topics
            if topic.name == best.topic and topic.id == best.topic_id
            for part in topic.partitions
            if part.info.partition == best.partition
        )
        return next(parts, None)


class Asking:
    """Sends requests to brokers in parallel. The owner must call ``close``."""

    def __init__(
        self,
        addresses: Mapping[int, Address],
        *,
        tls: ssl.SSLContext | None = None,
        secret: bytes = b"",
    ) -> None:
        """Create the client. ``tls``, ``secret``: for brokers that require authentication, as in
        ``ask``."""
        self._addresses = addresses
        self._do = partial(ask, tls=tls, secret=secret)
        # Twice the number of brokers: late responses of the last request can still occupy threads.
        self._pool = ThreadPoolExecutor(2 * len(addresses), thread_name_prefix="chaos-ask")

    def answers(self, brokers: Collection[int]) -> Answers:
        """Request the current state of these brokers. Takes at most 3 s.

        Requests the end offsets of replicas after the response with the leader's end offset. A
        replica with that end offset therefore has all records that were acknowledged before the
        first request.
        """
        clusters = self._ask(
            brokers, DESCRIBE_CLUSTER, DescribeClusterRequest(), DescribeClusterResponse
        )
        topics = self._ask(
            clusters.keys(), DESCRIBE_TOPICS, DescribeTopicsRequest(), DescribeTopicsResponse
        )
        return Answers(clusters, topics)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _ask(
        self, brokers: Collection[int], api: Api, question: Message, answer: type[M]
    ) -> dict[int, M]:
        asked = {
            self._pool.submit(self._do, self._addresses[broker], api, question): broker
            for broker in sorted(brokers)
        }
        done, late = wait(asked, timeout=ROUND_S)
        for future in late:
            future.cancel()
        found = {asked[future]: future.result() for future in done}
        return {broker: said for broker, said in sorted(found.items()) if isinstance(said, answer)}


def lacking(brokers: Collection[int], up: Collection[int], answers: Answers) -> list[str]:
    """Return the conditions that are not met: all brokers are members, all changes are completed,
    all replicas are complete."""
    lack = [f"{_brokers(sorted(down))} down"] if (down := set(brokers) - set(up)) else []
    if silent := set(up) - answers.clusters.keys():
        lack.append(f"{_brokers(sorted(silent))} not responding")
    if answers.controller is None:
        lack.append("the cluster has no controller")
    elif out := set(brokers) - answers.members:
        lack.append(f"{_brokers(sorted(out))} not alive for controller {answers.controller}")
    return lack + answers.changes() + missing(answers.status())


def until_nothing(lack: Callable[[], list[str]], *, timeout_s: float) -> list[str]:
    """Check until all conditions are met. Returns those that are not met after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while (found := lack()) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return found


def missing(status: ClusterStatus) -> list[str]:
    """Describe each partition that has a replica outside the ISR or a lagging replica."""
    return [_lack(part) for part in status.values() if not part.is_whole]


def _lack(part: PartitionStatus) -> str:
    if part.leader is None:
        return f"{part.name} has no leader"
    if part.log_end_offset < 0:
        return f"{part.name}: leader {part.leader} does not respond as the leader"
    out = sorted(set(part.replicas) - part.isr)
    if out:
        return f"{part.name}: {_brokers(out)} not in the ISR"
    return f"{part.name}: {_brokers(sorted(set(part.replicas) - part.caught_up))} not caught up"


def _brokers(ids: list[int]) -> str:
    return f"broker {ids[0]}" if len(ids) == 1 else f"brokers {', '.join(map(str, ids))}"
