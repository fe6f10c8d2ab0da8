"""The consumer groups that this broker coordinates: those of each partition of
``__consumer_offsets`` that it leads.

Here is decided which those are, and what they hear of the cluster's topics. What is done about a
group is its shard's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from raftlog.consumer_groups import GroupShard, partition_of_group
from raftlog.consumer_groups.values import Topics
from raftlog.errors import (
    BrokerUnavailableError,
    NotCoordinatorError,
    RaftlogError,
)
from raftlog.server.broker_clock import BrokerClock
from raftlog.server.consumer_groups.active_shard import ActiveShard, ShardServices
from raftlog.server.consumer_groups.topic_source import TopicSource
from raftlog.server.offset_waiters import Acknowledge
from raftlog.server.partition import Partition
from raftlog.server.topic_table import TopicTable
from raftlog.types import OFFSETS_TOPIC, Offset, check_group_id

logger = logging.getLogger(__name__)

# From a change of topics to when shards hear of it, and of all others, unless they are asked first.
TOPICS_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class CoordinatorServices:
    """What the coordinator needs of its broker."""

    loop: asyncio.AbstractEventLoop
    clock: BrokerClock
    topics: TopicTable
    source: TopicSource
    new_groups: Callable[[], GroupShard]
    confirm: Callable[[Partition, Acknowledge], None]
    doubt: Callable[[Partition, Offset], None]


class Coordinator:
    """Lives as long as the broker, on its event loop."""

    def __init__(self, services: CoordinatorServices) -> None:
        self._services = services
        self._topics = services.topics
        self._loop = services.loop
        self._shards: dict[int, ActiveShard] = {}  # by partition
        self._ending: set[asyncio.Task[None]] = set()
        self._known: Topics | None = None  # None: to be asked for again
        self._topics_timer: asyncio.TimerHandle | None = None
        self._look_due = False
        self._closed: RaftlogError | None = None
        self._shard_services = ShardServices(
            loop=services.loop,
            clock=services.clock,
            new_groups=services.new_groups,
            topics=self._topics_now,
            confirm=services.confirm,
            doubt=services.doubt,
            reading=asyncio.Lock(),
        )

    # -- what the broker tells -------------------------------------------------------------------

    def look(self) -> None:
        """A partition may have another leader: look at them soon."""
        if not self._look_due and self._closed is None:
            self._look_due = True
            self._loop.call_soon(self._look)

    def topics_changed(self) -> None:
        """Topics have come, gone or grown: tell the shards, of many changes once."""
        self._known = None
        self.look()
        if self._topics_timer is None and self._closed is None:
            self._topics_timer = self._loop.call_later(TOPICS_SECONDS, self._tell_topics)

    def version_changed(self) -> None:
        """The cluster's state is another one, if not its topics: some shard may wait for that."""
        if any(shard.is_loading for shard in self._shards.values()):
            self.topics_changed()

    def forget(self, connection: Hashable) -> None:
        """The connection is gone."""
        for shard in self._shards.values():
            shard.forget(connection)

    def close(self, reason: RaftlogError) -> None:
        """Coordinate nothing more. Answers that wait for the log come when that is committed."""
        if self._closed is not None:
            return
        self._closed = reason
        if self._topics_timer is not None:
            self._topics_timer.cancel()
        for partition in tuple(self._shards):
            self._drop(partition, str(reason))

    async def stop(self) -> None:
        """Close, and return once nothing of it runs any more."""
        self.close(BrokerUnavailableError("the broker stops"))
        await asyncio.gather(*self._ending, return_exceptions=True)

    # -- what handlers ask -------------------------------------------------------------------------

    @property
    def metadata_version(self) -> int:
        """Grows when topics come, go or grow; in a cluster, like the cluster's state."""
        return self._services.source.version_of(self._known_topics())

    def shard(self, group: str) -> ActiveShard:
        """The shard of a consumer group.

        Raises ``InvalidGroupError``, or ``NotCoordinatorError`` that says who leads its partition.
        """
        check_group_id(group)
        if self._closed is not None:
            raise NotCoordinatorError(f"this broker coordinates no consumer groups: {self._closed}")
        if self._topics_timer is not None:
            self._tell_topics()  # or a topic would be unknown to it that the asker was told of
        topic = self._topics.get(OFFSETS_TOPIC)
        if topic is None:
            self._topics.check_complete()
            raise NotCoordinatorError(
                f"group {group!r} has no coordinator yet: topic {OFFSETS_TOPIC} does not exist"
            )
        partition = partition_of_group(group, len(topic.hosts))
        shard = self._shards.get(partition)
        if shard is None or shard.is_over:
            self._look()
            shard = self._shards.get(partition)
        if shard is not None:
            return shard
        state = self._topics.state(topic, partition)
        leader = None if state is None else state.leader
        whose = "no coordinator is known" if leader is None else f"broker {leader} coordinates it"
        raise NotCoordinatorError(
            f"this broker does not coordinate the consumer group {group!r} "
            f"({OFFSETS_TOPIC}:{partition}): {whose}"
        )

    def shards(self) -> list[ActiveShard]:
        """Those of all partitions that this broker leads."""
        if self._closed is not None:
            raise NotCoordinatorError(f"this broker coordinates no consumer groups: {self._closed}")
        self._topics.check_complete()
        self._look()
        return list(self._shards.values())

    # -- inside ------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Begin and end shards, so that there is one for each partition that is led here."""
        self._look_due = False
        topic = self._topics.get(OFFSETS_TOPIC)
        hosts = [] if topic is None or self._closed is not None else topic.hosts
        led = {
            partition: host
            for partition, host in enumerate(hosts)
            if host is not None and host.leadership is not None and host.closed is None
        }
        for partition, shard in tuple(self._shards.items()):
            if shard.is_over or led.get(partition) is not shard.host:
                self._drop(partition, "this broker is no longer the leader")
        for partition, host in led.items():
            if partition not in self._shards:
                self._shards[partition] = ActiveShard(host, self._shard_services)

    def _drop(self, partition: int, why: str) -> None:
        reason = NotCoordinatorError(
            "this broker no longer coordinates the consumer groups of "
            f"{OFFSETS_TOPIC}:{partition}: {why}"
        )
        ending = self._shards.pop(partition).close(reason)
        if not ending.done():
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _topics_now(self) -> Topics:
        """What is known may be of an older version, if nothing but brokers has changed since: then
        a state that was written by somebody who had seen a newer one would wait for ever.
        """
        self._known = None
        return self._known_topics()

    def _known_topics(self) -> Topics:
        if self._known is None:
            self._known = self._services.source.topics()
        return self._known

    def _tell_topics(self) -> None:
        if self._topics_timer is not None:
            self._topics_timer.cancel()
            self._topics_timer = None
        topics = self._known_topics()
        for shard in tuple(self._shards.values()):
            shard.set_topics(topics)
