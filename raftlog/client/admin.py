"""The synchronous admin client: each call is one of ``AsyncAdmin``'s, made on an I/O thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from raftlog.client.aio.admin import AdminBase, AsyncAdmin
from raftlog.client.descriptions import (
    ClusterDescription,
    LeaderDescription,
    RecoveryDescription,
    TopicDescription,
    TopicListing,
)
from raftlog.client.group_admin import GroupAdmin
from raftlog.client.leaders import At
from raftlog.client.threaded import PlainClient
from raftlog.errors import ClosedError
from raftlog.types import NewTopic, Offset, OffsetAndTimestamp, TopicPartition

T = TypeVar("T")


class Admin(GroupAdmin, AdminBase, PlainClient):
    """Creates, changes and describes topics and consumer groups; looks offsets up.

    Safe to share between threads. Calls that name several topics try all of them, and then raise
    the first failure, which names its topic. A call that may have been carried out though its
    answer was lost raises an ``OutcomeUnknownError``, unless doing it again does no harm. A context
    manager.
    """

    def _setup(self) -> None:
        self._take_thread(self._host, "raftlog-admin")
        settings = self._settings
        self._admin = AsyncAdmin(
            [str(address) for address in settings.bootstrap],
            request_timeout_ms=settings.request_timeout_ms,
            client_id=settings.client_id,
            bootstrap_timeout_ms=settings.bootstrap_timeout_ms,
            cluster_secret=self._secret.decode(),
            host=self._host,
        )
        self._closed = False

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, str]:
        """Create topics; their ids, by name. With ``validate_only``, only see whether it could be.

        A replication factor of 0, or None, is the cluster's default.
        Raises ``TopicExistsError``, ``InvalidTopicError``, ``InvalidPartitionsError``,
        ``InvalidConfigError``.
        """
        return self._call(lambda: self._admin.create_topics(topics, validate_only=validate_only))

    def delete_topics(self, topics: Iterable[str]) -> None:
        """Delete topics with all their records. Raises ``UnknownTopicError``."""
        self._call(lambda: self._admin.delete_topics(topics))

    def alter_topic(self, name: str, config: Mapping[str, str | None]) -> None:
        """Set the topic's settings named in ``config``; None puts one back to its default.

        Raises ``UnknownTopicError``, ``InvalidConfigError``.
        """
        self._call(lambda: self._admin.alter_topic(name, config))

    def add_partitions(self, name: str, total: int) -> None:
        """Extend the topic to ``total`` partitions, more than it has.

        Keys that hash to a partition will hash to another one from then on, as in Kafka.
        Raises ``UnknownTopicError``, ``InvalidPartitionsError``.
        """
        self._call(lambda: self._admin.add_partitions(name, total))

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted. ``internal``: also those that only brokers write."""
        return self._call(lambda: self._admin.list_topics(internal=internal))

    def find_topics(self, topics: Iterable[str] | None = None) -> dict[str, TopicListing]:
        """Those of these topics that there are, by name; default: all.

        Quick: it asks one broker, and others only if that seems to be behind.
        """
        return self._call(lambda: self._admin.find_topics(topics))

    def describe_topics(self, topics: Iterable[str] | None = None) -> list[TopicDescription]:
        """What there is to know of these topics; default: of all. Raises ``UnknownTopicError``."""
        return self._call(lambda: self._admin.describe_topics(topics))

    def delete_records(
        self, before: Mapping[TopicPartition, Offset]
    ) -> dict[TopicPartition, Offset]:
        """Delete each partition's records below an offset (-1: all of them); where it starts now.

        Raises ``UnknownTopicError``, ``UnknownPartitionError``, ``OffsetOutOfRangeError``.
        """
        return self._call(lambda: self._admin.delete_records(before))

    def list_offsets(
        self, queries: Mapping[TopicPartition, At]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Look offsets up: "earliest", "latest" (the end), or the first at or after a time in ms.

        None where no record is at or after the time. The timestamp is -1 but for times. Raises
        ``UnknownTopicError``, ``UnknownPartitionError``.
        """
        return self._call(lambda: self._admin.list_offsets(queries))

    def offsets(self, topic: str, at: At = "latest") -> dict[int, Offset | None]:
        """``list_offsets`` of all partitions of one topic: the offset, by partition number."""
        return self._call(lambda: self._admin.offsets(topic, at))

    def describe_cluster(
        self, topics: Iterable[str] | None = None, *, partitions: bool = True
    ) -> ClusterDescription:
        """The cluster's brokers, and the partitions of these topics (default: of all).

        Every broker is asked, and what they answer is put together; those that do not answer within
        two seconds are told of as not live. With ``partitions`` false, there are only brokers.
        Raises ``UnknownTopicError``.
        """
        return self._call(lambda: self._admin.describe_cluster(topics, partitions=partitions))

    def transfer_leader(
        self, topic: str, partition: int, to: int | None = None
    ) -> LeaderDescription:
        """Have another in-sync replica lead: broker ``to``, or the first in the preferred order.

        Nothing is lost; clients follow by themselves. Raises ``InvalidRequestError`` when that
        broker cannot lead, ``UnknownTopicError``, ``UnknownPartitionError``.
        """
        return self._call(lambda: self._admin.transfer_leader(topic, partition, to))

    def recover_cluster(
        self,
        *,
        accept_loss: bool = False,
        topics: Iterable[str] | None = None,
        broker: str | None = None,
        dry_run: bool = False,
    ) -> RecoveryDescription:
        """Go on with what is left when a majority of the voters is lost for good.

        For an operator who knows that the others do not come back. The broker asked, ``broker``
        ("host:port"; default: any that answers), finds out what all that are there have, and the
        one that knows most decides alone from then on. ``topics``: which ones go on (default: all).
        ``accept_loss``: also those that lose acknowledged records by it, or may. ``dry_run``: only
        say what would be done. May take minutes. Raises an ``OutcomeUnknownError`` when the answer
        does not come.
        """
        return self._call(
            lambda: self._admin.recover_cluster(
                accept_loss=accept_loss, topics=topics, broker=broker, dry_run=dry_run
            )
        )

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._closed:
            raise ClosedError("the admin client was closed")
        self._used = True
        return self._thread.call(work)

    def _end(self) -> None:
        self._thread.call(self._admin.close)

    def _end_of_forgotten(self) -> Callable[[], Coroutine[Any, Any, None]]:
        return self._admin.close
