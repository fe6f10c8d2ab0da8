"""Fetch sessions of ``replica_fetch``: requests contain changed partitions only.

A session belongs to one connection. When the connection ends, both sides discard the session, and
the first request of the next connection is full. This follows KIP-227 without session IDs and
epochs, because requests on one connection are ordered. The module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from types import MappingProxyType
from typing import TypeAlias

from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.protocol.replication import ReplicaFetchRequest, ReplicaPosition, TopicIdPartition

PartitionKey: TypeAlias = tuple[str, int]  # topic id, partition


class FollowerSession:
    """The follower's side, for one leader over one connection.

    The cost of a request depends on the number of changed partitions only. Invariant: if
    ``is_sent``, the leader's session has the same positions after it has received all requests.
    """

    def __init__(self) -> None:
        self._positions: dict[PartitionKey, ReplicaPosition] = {}
        self._sent: set[PartitionKey] = set()  # partitions in the leader's session
        self._changed: dict[PartitionKey, None] = {}  # ordered set
        self._forgotten: dict[PartitionKey, None] = {}
        self._is_first = True

    @property
    def is_sent(self) -> bool:
        """True if there are no changes to send."""
        return not (self._is_first or self._changed or self._forgotten)

    @property
    def positions(self) -> Mapping[PartitionKey, ReplicaPosition]:
        """Positions of all partitions in the session."""
        return MappingProxyType(self._positions)

    def set(self, position: ReplicaPosition) -> None:
        """Fetch this partition from the given position."""
        key = (position.topic_id, position.partition)
        if self._positions.get(key) == position:
            return
        self._positions[key] = position
        self._changed[key] = None
        self._forgotten.pop(key, None)

    def forget(self, topic_id: str, partition: int) -> None:
        """Stop fetching this partition. The caller also uses it to pause a failed partition."""
        key = (topic_id, partition)
        self._positions.pop(key, None)
        self._changed.pop(key, None)
        if key in self._sent:
            self._forgotten[key] = None

    def request(
        self,
        *,
        wait_ms_max: int = 500,
        bytes_min: int = 1,
        bytes_max: int = limits.FETCH_BYTES_MAX,
        round_: int = 0,
    ) -> ReplicaFetchRequest:
        """Return the next request. The caller must send it in this order on the same connection.

        ``wait_ms_max``: ms. ``bytes_min``, ``bytes_max``: bytes. More than
        ``PARTITIONS_PER_REQUEST_MAX`` changes require several requests: see ``is_sent``.
        """
        changed = list(islice(self._changed, limits.PARTITIONS_PER_REQUEST_MAX))
        forgotten = list(islice(self._forgotten, limits.PARTITIONS_PER_REQUEST_MAX))
        request = ReplicaFetchRequest(
            partitions=[self._positions[key] for key in changed],
            full=self._is_first,
            forgotten=[TopicIdPartition(topic_id, number) for topic_id, number in forgotten],
            wait_ms_max=wait_ms_max,
            bytes_min=bytes_min,
            bytes_max=bytes_max,
            round=round_,
        )
        self._is_first = False
        for key in changed:
            del self._changed[key]
        for key in forgotten:
            del self._forgotten[key]
        self._sent.difference_update(forgotten)
        self._sent.update(changed)
        return request


class LeaderSession:
    """The leader's side, for one follower over one connection."""

    def __init__(self) -> None:
        self._positions: dict[PartitionKey, ReplicaPosition] = {}
        self._has_begun = False

    @property
    def positions(self) -> Mapping[PartitionKey, ReplicaPosition]:
        """Last reported positions of all partitions that the follower fetches."""
        return MappingProxyType(self._positions)

    def apply(self, request: ReplicaFetchRequest) -> None:
        """Apply ``request`` to ``positions``.

        Raises ``InvalidRequestError`` if the first request of the session is not full, or if the
        session would have more than ``PARTITIONS_PER_BROKER_MAX`` partitions. The session is then
        unchanged.
        """
        if not (request.full or self._has_begun):
            raise InvalidRequestError(
                "the first replica_fetch of a connection must contain all partitions (full)"
            )
        changes = {(one.topic_id, one.partition): one for one in request.partitions}
        forgotten = {(one.topic_id, one.partition) for one in request.forgotten}
        # Counted by what changes: a request has few of the partitions of its session.
        before = {} if request.full else self._positions
        count = len(before) - sum(key in before for key in forgotten)
        count += sum(key not in before or key in forgotten for key in changes)
        if count > limits.PARTITIONS_PER_BROKER_MAX:
            raise InvalidRequestError(
                f"fetch session has more than {limits.PARTITIONS_PER_BROKER_MAX} partitions "
                "(PARTITIONS_PER_BROKER_MAX)"
            )
        if request.full:
            self._positions.clear()
        for key in forgotten:
            self._positions.pop(key, None)
        self._positions.update(changes)
        self._has_begun = True
