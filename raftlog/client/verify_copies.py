"""Comparison of the copies of a partition: each broker verifies its copy, and the chain values of
all copies below the high watermark must be equal.

A hash-chain value covers the whole log below its offset, also after compaction (docs/adr/0015). So
one value per copy is compared. Only if two differ, further values show where.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

from raftlog.client.cluster import Cluster
from raftlog.client.descriptions import CopyVerification, PartitionOverview, PartitionVerification
from raftlog.errors import RaftlogError
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import VerifyCopyRequest, VerifyCopyResponse
from raftlog.types import Offset

# Chain value at an offset; None if it is unknown.
ChainAt: TypeAlias = Callable[[Offset], Awaitable[int | None]]


async def verify_copies(
    cluster: Cluster,
    partition: PartitionOverview,
    before: PartitionVerification | None = None,
    *,
    time_ms: int | None = None,
) -> PartitionVerification:
    """Verify all copies of ``partition`` up to its high watermark, and compare them.

    ``before``: a partial result to continue. ``time_ms``: after this time, return a partial result.
    """
    end = max(partition.high_watermark, 0) if before is None else before.high_watermark
    former = {} if before is None else {copy.broker: copy for copy in before.copies}
    loop = asyncio.get_running_loop()
    until = math.inf if time_ms is None else loop.time() + time_ms / 1_000
    copies = await asyncio.gather(
        *(
            _verified(cluster, partition, former.get(broker, _begun(broker)), end, until)
            for broker in partition.replicas
        )
    )
    found = {copy.broker: copy for copy in copies}
    if not any(copy.is_partial for copy in copies):
        valid = [copy for copy in copies if not (copy.damage or copy.problem)]
        valid.sort(key=lambda copy: copy.broker != partition.leader)  # the leader's first
        for copy in valid[1:]:
            found[copy.broker] = await _compared(cluster, partition, valid[0], copy)
    return PartitionVerification(
        partition.topic, partition.partition, end, tuple(found[b] for b in partition.replicas)
    )


def _begun(broker: int) -> CopyVerification:
    return CopyVerification(broker, 0, 0, is_partial=True)


async def _verified(
    cluster: Cluster,
    partition: PartitionOverview,
    copy: CopyVerification,
    end: Offset,
    until: float,
) -> CopyVerification:
    """Make a broker verify its copy up to ``end``, part by part; no part begins after ``until``."""
    broker, offset = copy.broker, copy.end_offset
    while copy.is_partial:
        try:
            answer = await _ask_copies(cluster, partition, broker, offset, end)
        except RaftlogError as error:
            return CopyVerification(broker, copy.start_offset, offset, problem=str(error))
        start, offset = answer.log_start_offset, answer.reached
        goal = min(end, answer.log_end_offset)
        if offset >= goal:
            return CopyVerification(broker, start, goal)
        if answer.damage:
            return CopyVerification(broker, start, offset, damage=answer.damage)
        copy = CopyVerification(broker, start, offset, is_partial=True)
        if asyncio.get_running_loop().time() >= until:
            break
    return copy


async def _ask_copies(
    cluster: Cluster, partition: PartitionOverview, broker: int, start: Offset, end: Offset
) -> VerifyCopyResponse:
    connection = await cluster.connection(broker)
    request = VerifyCopyRequest(
        topic=partition.topic, partition=partition.partition, start_offset=start, end_offset=end
    )
    answer = await cluster.ask(connection, apis.VERIFY_COPY, request)
    assert isinstance(answer, VerifyCopyResponse)
    return answer


async def _compared(
    cluster: Cluster,
    partition: PartitionOverview,
    reference: CopyVerification,
    copy: CopyVerification,
) -> CopyVerification:
    """Return ``copy``, with the offset from which on it differs, or with a problem."""

    def chain_of(broker: int) -> ChainAt:
        async def chain_at(offset: Offset) -> int | None:
            return (await _ask_copies(cluster, partition, broker, offset, offset)).chain

        return chain_at

    start = max(reference.start_offset, copy.start_offset)
    end = min(reference.end_offset, copy.end_offset)
    try:
        if end <= start:
            return copy
        ours, theirs = chain_of(reference.broker), chain_of(copy.broker)
        expected, found = await ours(end), await theirs(end)
        if expected is None or found is None:
            reason = f"its hash-chain value at offset {end} is unknown. Verify again later"
            return replace(copy, problem=reason)
        if expected == found:
            return copy
        return replace(copy, differs_at=await first_difference(ours, theirs, start, end))
    except RaftlogError as error:
        return replace(copy, problem=str(error))


async def first_difference(ours: ChainAt, theirs: ChainAt, start: Offset, end: Offset) -> Offset:
    """Return an offset of the first batch that differs. The logs differ below ``end``.

    Logs that differ below an offset differ below all later ones. An unknown value counts as equal:
    the result is then in a later batch.
    """
    low, high = start, end
    while high - low > 1:
        middle = (low + high) // 2
        expected, found = await ours(middle), await theirs(middle)
        if expected is None or found is None or expected == found:
            low = middle
        else:
            high = middle
    return low
