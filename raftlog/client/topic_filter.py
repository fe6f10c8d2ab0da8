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
from raftlog.errors import InvalidRequestError
from raftlog.types import TopicPartition, is_internal_topic


class TopicFilter:
    """Of one consumer. ``topics``: those subscribed to, as far as they exist.

    A member of a group reads ``TOPICS_PER_MEMBER_MAX`` topics at most. Where a pattern begins to
    match more, those that are read already go on, and the application is told, again and again.
    """

    def __init__(self, cluster: Cluster, subscription: Subscription, member: Member | None) -> None:
        self.topics: tuple[str, ...] = ()
        self._cluster = cluster
        self._subscription = subscription
        self._member = member
        self._pattern: re.Pattern[str] | None = None
        cluster.on_view.append(self._on_view)

    async def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None) -> None:
        """From now on, ``topics``, of which there is metadata, or those that match.

        Raises ``InvalidRequestError`` when they are too many for a member of a group; then all
        stays as it was.
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
    """``kept``: how many are read nevertheless."""
    what = "" if pattern is None else f"pattern={pattern.pattern!r} matches "
    now = "" if kept is None else f"It goes on with the {kept} that it has, and reads no others. "
    return InvalidRequestError(
        f"{what}{count} topics: a member of a group subscribes to up to "
        f"{limits.TOPICS_PER_MEMBER_MAX} (TOPICS_PER_MEMBER_MAX). {now}Share them out among "
        "several consumers with narrower patterns, which may be of one group"
    )


def matching(pattern: re.Pattern[str], topics: Iterable[str]) -> list[str]:
    """Those of which the whole name matches; not those that the brokers keep for themselves."""
    return sorted(
        topic for topic in topics if not is_internal_topic(topic) and pattern.fullmatch(topic)
    )
