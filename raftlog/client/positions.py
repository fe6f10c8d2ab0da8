"""Start positions of partitions that have no position yet.

With a consumer group, the committed offset; without a group or a committed offset, the reset
policy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from raftlog.client.cluster import Cluster
from raftlog.client.fetch_state import Wanted
from raftlog.client.partition_requests import At, list_offsets
from raftlog.client.subscription import Subscription
from raftlog.errors import OffsetOutOfRangeError, RaftlogError
from raftlog.types import Offset, TopicPartition

# Returns the committed offset of each partition; None without one.
Committed: TypeAlias = Callable[
    [Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, Offset | None]]
]

_ENDS: Final[tuple[At, ...]] = ("earliest", "latest")


class Positions:
    """Looks up positions for one subscription. ``committed``: with a consumer group only."""

    def __init__(
        self, cluster: Cluster, subscription: Subscription, committed: Committed | None = None
    ) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._committed = committed

    async def look_up(self, wanted: Sequence[Wanted]) -> list[tuple[Wanted, RaftlogError]]:
        """Look up the positions. Returns the partitions without one, each with its error."""
        failures = await self._look_up_committed(
            [want for want in wanted if want.part.reset == "committed"]
        )
        # The generation of a partition changes when its position is found or moved.
        left = [want for want in wanted if want.generation == want.part.generation]
        for how in _ENDS:
            group = {want.part.tp: want for want in left if want.part.reset == how}
            try:
                answers = await list_offsets(
                    self._cluster, dict.fromkeys(group, how), any_replica=True
                )
            except RaftlogError as error:
                failures += [(want, error) for want in group.values()]
            else:
                for tp, want in group.items():
                    self._subscription.found(want, answers[tp].offset)
        failures += [(want, self._unknown(want)) for want in left if want.part.reset == "error"]
        return failures

    async def _look_up_committed(
        self, wanted: Sequence[Wanted]
    ) -> list[tuple[Wanted, RaftlogError]]:
        if not wanted:
            return []
        assert self._committed is not None, "the consumer has a group"
        try:
            offsets = await self._committed([want.part.tp for want in wanted])
        except RaftlogError as error:
            return [(want, error) for want in wanted]
        for want in wanted:
            offset = offsets[want.part.tp]
            if offset is None:
                self._subscription.not_committed(want)
            else:
                self._subscription.found(want, offset)
        return []

    def _unknown(self, want: Wanted) -> RaftlogError:
        tp = want.part.tp
        if self._committed is not None:
            return OffsetOutOfRangeError(
                f"{tp}: the group has no committed offset. Call seek() or set auto_offset_reset "
                "to 'earliest' or 'latest'"
            )
        return OffsetOutOfRangeError(
            f"{tp}: no start offset. Call seek() or set auto_offset_reset to 'earliest' or 'latest'"
        )
