"""Lag of a consumer group, in offsets and in seconds.

The committed offsets are read before the end offsets, and end offsets only grow. So no lag is
negative, and none is larger than the actual lag when the call returns. The lag in seconds is the
age of the first unconsumed record. Reading that record usually costs one small fetch per broker. A
problem with one partition is reported for this partition, and does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from raftlog import limits
from raftlog.client.cluster import Cluster
from raftlog.client.group_descriptions import PartitionLag
from raftlog.client.metadata import ClusterView
from raftlog.client.partition_requests import try_offsets
from raftlog.errors import LeaderNotAvailableError, RaftlogError, counted
from raftlog.protocol import api as apis
from raftlog.protocol.attachments import slices
from raftlog.protocol.fetch import FetchPartition, FetchRequest, FetchResponse, OffsetAnswer
from raftlog.protocol.groups import FetchedOffset
from raftlog.record import decode_records, parse_header, split
from raftlog.types import Offset, TimestampMs, TopicPartition

PATIENCE_MS: Final = 5_000  # time limit for partitions without a leader
_FETCH_BYTES_MAX: Final = 4 * limits.MIB  # of one response, unless one batch is larger
_NO_OFFSET: Final = -1

_Offsets = Mapping[TopicPartition, OffsetAnswer | RaftlogError]


async def partition_lags(
    cluster: Cluster,
    committed: Sequence[FetchedOffset],
    others: Iterable[TopicPartition],
    readers: Mapping[TopicPartition, str],
    *,
    now_ms: TimestampMs,
) -> list[PartitionLag]:
    """Return the lag of each partition in ``committed`` and ``others``, sorted.

    ``readers``: the member id of each assigned partition. ``now_ms``: wall clock.
    """
    by_partition = {TopicPartition(found.topic, found.partition): found for found in committed}
    partitions = sorted({*by_partition, *others, *readers})
    topics = {tp.topic for tp in partitions}

    async def refresh() -> ClusterView:
        return await cluster.refresh(topics)

    view = await cluster.persist(refresh, repeatable=True)
    there = [tp for tp in partitions if not _absence(view, tp)]
    begins, ends = await asyncio.gather(
        try_offsets(cluster, dict.fromkeys(there, "earliest"), patience_ms=PATIENCE_MS),
        try_offsets(cluster, dict.fromkeys(there, "latest"), patience_ms=PATIENCE_MS),
    )
    unread = {
        tp: found.offset
        for tp, found in by_partition.items()
        if _known(begins, tp) <= found.offset < _known(ends, tp) and _known(begins, tp) >= 0
    }
    times = await oldest_unread(cluster, unread)
    return [
        _lag(
            tp,
            by_partition.get(tp),
            begins.get(tp),
            ends.get(tp),
            age_ms=None if tp not in times else max(0, now_ms - times[tp]),
            member_id=readers.get(tp),
            absence=_absence(view, tp),
        )
        for tp in partitions
    ]


def subscribed(view: ClusterView, topics: Iterable[str]) -> list[TopicPartition]:
    """Return all partitions of the topics that exist."""
    return [
        TopicPartition(name, number)
        for name in topics
        if name in view.topics
        for number in range(view.topics[name].partition_count)
    ]


def _absence(view: ClusterView, tp: TopicPartition) -> str:
    """Return why the partition does not exist; empty if it exists."""
    topic = view.topics.get(tp.topic)
    if topic is None:
        return f"topic {tp.topic!r} does not exist"
    if tp.partition >= topic.partition_count:
        return f"the topic has only {counted(topic.partition_count, 'partition')}"
    return ""


def _known(offsets: _Offsets, tp: TopicPartition) -> Offset:
    answer = offsets.get(tp)
    return answer.offset if isinstance(answer, OffsetAnswer) else _NO_OFFSET


def _lag(
    tp: TopicPartition,
    committed: FetchedOffset | None,
    begin: OffsetAnswer | RaftlogError | None,
    end: OffsetAnswer | RaftlogError | None,
    *,
    age_ms: int | None,
    member_id: str | None,
    absence: str,
) -> PartitionLag:
    start_offset = begin.offset if isinstance(begin, OffsetAnswer) else _NO_OFFSET
    end_offset = end.offset if isinstance(end, OffsetAnswer) else _NO_OFFSET
    errors = [answer for answer in (begin, end) if isinstance(answer, RaftlogError)]
    offset = committed.offset if committed is not None and committed.offset >= 0 else None
    problem = absence or next(map(str, errors), "")
    lag: int | None = None
    if offset is not None and not problem:
        lag = max(0, end_offset - max(offset, start_offset))
        problem = _out_of_range(offset, start_offset, end_offset)
    seconds = None if age_ms is None else age_ms / 1_000
    return PartitionLag(
        topic=tp.topic,
        partition=tp.partition,
        offset=offset,
        log_start_offset=start_offset,
        log_end_offset=end_offset,
        lag=lag,
        lag_seconds=0.0 if lag == 0 and not problem else seconds,
        leader_epoch=-1 if committed is None else committed.leader_epoch,
        metadata="" if committed is None else committed.metadata,
        committed_at_ms=-1 if committed is None else committed.committed_at_ms,
        member_id=member_id,
        problem=problem,
    )


def _out_of_range(offset: Offset, start_offset: Offset, end_offset: Offset) -> str:
    if offset < start_offset:
        return f"out of range: below the log start by {start_offset - offset}"
    if offset > end_offset:
        return f"out of range: beyond the end by {offset - end_offset}"
    return ""


async def oldest_unread(
    cluster: Cluster, offsets: Mapping[TopicPartition, Offset]
) -> dict[TopicPartition, TimestampMs]:
    """Return the time of the first record at or after an offset, for each partition.

    Partitions that cannot be read are omitted. If a compacted batch contains no records, the
    following batches are read.
    """
    found: dict[TopicPartition, TimestampMs] = {}
    left = dict(offsets)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_MS / 1_000
    while left and loop.time() < deadline:
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in left:
            try:
                by_leader.setdefault(cluster.view.leader(*tp), []).append(tp)
            except LeaderNotAvailableError:
                continue
        reads = await asyncio.gather(
            *(
                _read(cluster, leader, {tp: left[tp] for tp in led}, found)
                for leader, led in by_leader.items()
            )
        )
        # Partitions without progress are dropped, unless the request had no space for them.
        left = {tp: offset for read in reads for tp, offset in read.items() if tp not in found}
    return found


async def _read(
    cluster: Cluster,
    leader: int,
    offsets: Mapping[TopicPartition, Offset],
    found: dict[TopicPartition, TimestampMs],
) -> dict[TopicPartition, Offset]:
    """Read once from a leader. Returns what to read next; empty after no progress."""
    asked = list(offsets)[: limits.PARTITIONS_PER_REQUEST_MAX]
    request = FetchRequest(
        partitions=[
            FetchPartition(topic=tp.topic, partition=tp.partition, offset=offsets[tp], bytes_max=1)
            for tp in asked
        ],
        wait_ms_max=0,
        bytes_max=_FETCH_BYTES_MAX,
    )
    try:
        connection = await cluster.connection(leader)
        answer = await connection.request(apis.FETCH, request, timeout_ms=PATIENCE_MS)
        response = answer.message
        assert isinstance(response, FetchResponse)
        parts = slices(answer.attachment, [part.length for part in response.partitions])
    except RaftlogError:
        return {}
    left = dict(offsets)
    for part, data in zip(response.partitions, parts, strict=True):
        tp = TopicPartition(part.topic, part.partition)
        offset = left.pop(tp, None)
        if offset is None or part.failure is not None or not part.length:
            continue
        next_offset = _first_time(data, tp, offset, found)
        if next_offset is not None and next_offset > offset:
            left[tp] = next_offset
    return left if left != dict(offsets) else {}


def _first_time(
    data: memoryview,
    tp: TopicPartition,
    offset: Offset,
    found: dict[TopicPartition, TimestampMs],
) -> Offset | None:
    """Store the time of the first record; else return the next offset, or None without progress."""
    next_offset: Offset | None = None
    try:
        for batch in split(data):
            records = decode_records(
                batch, topic=tp.topic, partition=tp.partition, from_offset=offset
            )
            if records:
                found[tp] = records[0].timestamp_ms
                return None
            next_offset = parse_header(batch).next_offset
    except RaftlogError:
        return None
    return next_offset
