"""Group coordinator of the consumer groups in the ``__consumer_offsets`` partitions led here.

It creates and closes the shards, and forwards topic changes to them. The shards manage the groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
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

# Seconds from a change of topics to the notification of the shards. Changes in this time are
# combined, unless a request needs them first.
TOPICS_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class CoordinatorServices:
    """Broker functions that the coordinator uses."""

    loop: asyncio.AbstractEventLoop
    clock: BrokerClock
    topics: TopicTable
    source: TopicSource
    new_groups: Callable[[], GroupShard]
    confirm: Callable[[Partition, Acknowledge], None]
    on_unreadable: Callable[[Partition, Offset], None]


class Coordinator:
    """Exists as long as the broker, on its event loop."""

    def __init__(self, services: CoordinatorServices) -> None:
        self._services = services
        self._topics = services.topics
        self._loop = services.loop
        self._shards: dict[int, ActiveShard] = {}  # by partition
        self._ending: set[asyncio.Task[None]] = set()
        self._known: Topics | None = None  # None: must be read again
        self._topics_timer: asyncio.TimerHandle | None = None
        self._unnotified: dict[int, None] = {}  # partitions whose shards do not know the topics yet
        self._is_notifying = False  # one shard after the other
        self._poll_due = False
        self._closed: RaftlogError | None = None
        self._shard_services = ShardServices(
            loop=services.loop,
            clock=services.clock,
            new_groups=services.new_groups,
            topics=self._topics_now,
            confirm=services.confirm,
            on_unreadable=services.on_unreadable,
            reading=asyncio.Lock(),
        )

    # -- calls of the broker ---------------------------------------------------------------------

    def poll_soon(self) -> None:
        """Check soon whether partitions have another leader."""
        if not self._poll_due and self._closed is None:
            self._poll_due = True
            self._loop.call_soon(self._poll)

    def topics_changed(self) -> None:
        """Notify the shards that topics were added, removed or extended; several changes at
        once, one shard in a turn of the loop.
        """
        self._known = None
        self._unnotified.update(dict.fromkeys(self._shards))
        self.poll_soon()
        self._notify_later()

    def version_changed(self) -> None:
        """Note a new version of the cluster's state without topic changes: a shard may wait for
        it.
        """
        if any(shard.is_loading for shard in self._shards.values()):
            self.topics_changed()

    def forget(self, connection: Hashable) -> None:
        """Forget a closed connection."""
        for shard in self._shards.values():
            shard.forget(connection)

    def close(self, reason: RaftlogError) -> None:
        """Coordinate nothing more. Responses that wait for the log are sent when it is
        committed.
        """
        if self._closed is not None:
            return
        self._closed = reason
        if self._topics_timer is not None:
            self._topics_timer.cancel()
        for partition in tuple(self._shards):
            self._drop(partition, str(reason))

    async def stop(self) -> None:
        """Close, and return once no task of it runs."""
        self.close(BrokerUnavailableError("the broker stops"))
        await asyncio.gather(*self._ending, return_exceptions=True)

    # -- requests ----------------------------------------------------------------------------------

    @property
    def metadata_version(self) -> int:
        """Version that increases when topics are added, removed or extended; in a cluster, also
        with any other change of the cluster's state.
        """
        return self._services.source.version_of(self._known_topics())

    def shard(self, group: str) -> ActiveShard:
        """Return the shard of a consumer group.

        Raises ``InvalidGroupError``, or ``NotCoordinatorError`` with the leader of its partition.
        """
        check_group_id(group)
        if self._closed is not None:
            raise NotCoordinatorError(f"this broker coordinates no consumer groups: {self._closed}")
        topic = self._topics.get(OFFSETS_TOPIC)
        if topic is None:
            self._topics.check_complete()
            raise NotCoordinatorError(
                f"group {group!r} has no coordinator yet: topic {OFFSETS_TOPIC} does not exist"
            )
        partition = partition_of_group(group, len(topic.hosts))
        shard = self._shards.get(partition)
        if shard is None or shard.is_over:
            self._poll()
            shard = self._shards.get(partition)
        if shard is not None:
            if partition in self._unnotified:
                # Otherwise the shard might not know a topic that the client already knows.
                self._notify(partition, self._known_topics())
            return shard
        state = self._topics.state(topic, partition)
        leader = None if state is None else state.leader
        whose = "no coordinator is known" if leader is None else f"broker {leader} coordinates it"
        raise NotCoordinatorError(
            f"this broker does not coordinate the consumer group {group!r} "
            f"({OFFSETS_TOPIC}:{partition}): {whose}"
        )

    def shards(self) -> list[ActiveShard]:
        """Return the shards of all partitions that this broker leads."""
        if self._closed is not None:
            raise NotCoordinatorError(f"this broker coordinates no consumer groups: {self._closed}")
        self._topics.check_complete()
        self._poll()
        return list(self._shards.values())

    # -- inside ------------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Create and close shards, so that there is one for each partition that this broker
        leads.
        """
        self._poll_due = False
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
        """Return the current topics. The known ones may have an older version, if only brokers have
        changed since. Then a state from a coordinator with a newer version would wait indefinitely.
        """
        self._known = None
        return self._known_topics()

    def _known_topics(self) -> Topics:
        if self._known is None:
            self._known = self._services.source.topics()
        return self._known

    def _notify_later(self) -> None:
        is_idle = self._topics_timer is None and not self._is_notifying
        if self._unnotified and is_idle and self._closed is None:
            self._topics_timer = self._loop.call_later(TOPICS_SECONDS, self._notify_all)

    def _notify_all(self) -> None:
        self._topics_timer = None
        self._is_notifying = True
        self._notify_next(self._known_topics(), deque(self._unnotified))

    def _notify_next(self, topics: Topics, left: deque[int]) -> None:
        """Notify the next shard. Changes in the meantime wait until all of this round know this."""
        if left and self._closed is None:
            self._notify(left.popleft(), topics)
            self._loop.call_soon(self._notify_next, topics, left)
            return
        self._is_notifying = False
        if self._unnotified:
            self._notify_later()

    def _notify(self, partition: int, topics: Topics) -> None:
        if partition not in self._unnotified:
            return  # a request needed it first
        if topics is self._known:  # otherwise they have changed again
            del self._unnotified[partition]
        shard = self._shards.get(partition)
        if shard is not None:
            shard.set_topics(topics)
