"""The topics that a consumer subscribes to: by name, or by a pattern that is matched periodically.

Runs on the I/O loop. Without a consumer group, the consumer reads all partitions of the topics.
With one, it reports the topics to the group's coordinator, which assigns partitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from raftlog import limits
from raftlog.client.cluster import Cluster
from raftlog.client.consumer_groups.member import Member
from raftlog.client.metadata import ClusterView
from raftlog.client.subscription import Subscription
from raftlog.errors import InvalidRequestError, counted
from raftlog.types import TopicPartition, is_internal_topic


class TopicFilter:
    """Topics of one consumer. ``topics``: the subscribed topics that exist.

    A group member reads up to ``TOPICS_PER_MEMBER_MAX`` topics. If a pattern matches more, the
    member continues with the topics that it already reads, and every metadata update reports an
    error to the application.
    """

    def __init__(self, cluster: Cluster, subscription: Subscription, member: Member | None) -> None:
        self.topics: tuple[str, ...] = ()
        self._cluster = cluster
        self._subscription = subscription
        self._member = member
        self._pattern: re.Pattern[str] | None = None
        cluster.on_view.append(self._on_view)

    async def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None) -> None:
        """Subscribe to ``topics``, whose metadata is known, or to topics that match.

        Raises ``InvalidRequestError`` if a group member would read too many topics. The previous
        subscription then stays.
        """
        cluster = self._cluster
        try:
            if pattern is not None:
                cluster.all_topics = True
                view = await cluster.persist(cluster.refresh, repeatable=True)
                topics = matching(pattern, view.topics)
            if self._is_too_much(topics):
                raise too_many(len(topics), pattern)
        except BaseException:
            cluster.all_topics = self._pattern is not None
            raise
        cluster.all_topics = pattern is not None
        self._pattern = pattern
        self.topics = tuple(topics)
        self._subscription.is_open = pattern is not None or self._member is not None
        if self._member is not None:
            self._member.subscribe(self.topics, cluster.view)
        else:
            self._subscription.assign(self._partitions(self.topics), topics=self.topics)

    def _is_too_much(self, topics: Sequence[str]) -> bool:
        return self._member is not None and len(topics) > limits.TOPICS_PER_MEMBER_MAX

    def nothing(self) -> None:
        self._cluster.all_topics = False
        self._pattern = None
        self.topics = ()
        self._subscription.is_open = False

    def _partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        view = self._cluster.view
        return [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in range(view.topic(topic).partition_count)
        ]

    def _on_view(self, view: ClusterView) -> None:
        if self._pattern is None:
            return
        topics = tuple(matching(self._pattern, view.topics))
        member = self._member
        if member is not None and self._is_too_much(topics):
            kept = set(self.topics).intersection(topics)
            member.report(too_many(len(topics), self._pattern, kept=len(kept)))
            topics = tuple(topic for topic in topics if topic in kept)
        if topics == self.topics:
            return
        before, self.topics = self.topics, topics
        if member is not None:
            member.resubscribe(topics)
            return
        subscription = self._subscription
        gone = set(before).difference(topics)
        subscription.remove([tp for tp in subscription.parts if tp.topic in gone])
        subscription.topics = topics
        subscription.add(self._partitions(set(topics).difference(before)))


def too_many(
    count: int, pattern: re.Pattern[str] | None, *, kept: int | None = None
) -> InvalidRequestError:
    """Return the error for too many topics. ``kept``: number of topics that are still read."""
    what = "" if pattern is None else f"pattern={pattern.pattern!r} matches "
    now = "" if kept is None else f"This consumer continues with {counted(kept, 'topic')}. "
    return InvalidRequestError(
        f"{what}{count} topics, but a group member can subscribe to up to "
        f"{limits.TOPICS_PER_MEMBER_MAX} (TOPICS_PER_MEMBER_MAX). {now}Divide the topics among "
        "several consumers with narrower patterns, which can be in one group"
    )


def matching(pattern: re.Pattern[str], topics: Iterable[str]) -> list[str]:
    """Return the topics whose complete name matches, without internal topics."""
    return sorted(
        topic for topic in topics if not is_internal_topic(topic) and pattern.fullmatch(topic)
    )
