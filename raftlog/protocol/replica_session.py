"""What two brokers remember of their ``replica_fetch`` requests: only what moved is said again.

The session is the connection: when that ends, both sides throw theirs away, and the first request
of the next one is full (KIP-227, without its session ids: requests on one connection have an order,
so there is no epoch to compare). No I/O, and no opinion on when to ask or what to answer.
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
    """The follower's side, for one leader over one connection. Costs what moved, not what is.

    Invariant: once ``is_told``, the leader's session has the positions that were set here.
    """

    def __init__(self) -> None:
        self._positions: dict[PartitionKey, ReplicaPosition] = {}
        self._told: set[PartitionKey] = set()  # what the leader's session has
        self._changed: dict[PartitionKey, None] = {}  # a set that keeps its order
        self._forgotten: dict[PartitionKey, None] = {}
        self._is_first = True

    @property
    def is_told(self) -> bool:
        """The next request would have nothing to say."""
        return not (self._is_first or self._changed or self._forgotten)

    @property
    def positions(self) -> Mapping[PartitionKey, ReplicaPosition]:
        """Every partition that is asked for."""
        return MappingProxyType(self._positions)

    def set(self, position: ReplicaPosition) -> None:
        """Ask for this partition, from there on."""
        key = (position.topic_id, position.partition)
        if self._positions.get(key) == position:
            return
        self._positions[key] = position
        self._changed[key] = None
        self._forgotten.pop(key, None)

    def forget(self, topic_id: str, partition: int) -> None:
        """Ask for this partition no more. Also how a failed one is left alone for a while."""
        key = (topic_id, partition)
        self._positions.pop(key, None)
        self._changed.pop(key, None)
        if key in self._told:
            self._forgotten[key] = None

    def request(
        self,
        *,
        wait_ms_max: int = 500,
        bytes_min: int = 1,
        bytes_max: int = limits.FETCH_BYTES_MAX,
        round_: int = 0,
    ) -> ReplicaFetchRequest:
        """The next request; it has to be sent, in this order, on this session's connection.

        More than ``PARTITIONS_PER_REQUEST_MAX`` changes take more than one: see ``is_told``.
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
        self._told.difference_update(forgotten)
        self._told.update(changed)
        return request


class LeaderSession:
    """The leader's side, for one follower over one connection."""

    def __init__(self) -> None:
        self._positions: dict[PartitionKey, ReplicaPosition] = {}
        self._has_begun = False

    @property
    def positions(self) -> Mapping[PartitionKey, ReplicaPosition]:
        """Every partition that the follower asks for, as it last said."""
        return MappingProxyType(self._positions)

    def take(self, request: ReplicaFetchRequest) -> None:
        """Let ``positions`` be what they are after ``request``.

        Raises ``InvalidRequestError``, with nothing changed: the session's first request is not
        full, or it has more than ``PARTITIONS_PER_BROKER_MAX`` partitions.
        """
        if not (request.full or self._has_begun):
            raise InvalidRequestError(
                "the first replica_fetch of a connection has to name all partitions (full)"
            )
        changes = {(one.topic_id, one.partition): one for one in request.partitions}
        forgotten = {(one.topic_id, one.partition) for one in request.forgotten}
        kept = set() if request.full else self._positions.keys() - forgotten
        if len(kept | changes.keys()) > limits.PARTITIONS_PER_BROKER_MAX:
            raise InvalidRequestError(
                f"a fetch session of more than {limits.PARTITIONS_PER_BROKER_MAX} partitions "
                "(PARTITIONS_PER_BROKER_MAX)"
            )
        if request.full:
            self._positions.clear()
        for key in forgotten:
            self._positions.pop(key, None)
        self._positions.update(changes)
        self._has_begun = True
