"""State and checks of one range that a ``RangeReader`` reads.

``Range`` collects batches and selects those of the next portion; plain values. ``Lookout`` queries
the cluster, on the loop.

These checks ensure that the records are the right ones:

    complete, no duplicates     each batch must start where the previous one ended: batches cover
                                every offset, also after compaction
    the right topic             a fetch names a topic, not its id. So the topic's id is checked at
                                the start, and before the last portion at the brokers that served
                                the records
    not truncated               only the leader decides that the end is beyond its log; it queries
                                the other brokers first (``list_offsets``)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from raftlog.client.batch import ProducerIdAndEpoch
from raftlog.client.cluster import Cluster
from raftlog.client.connection import SILENCE_S
from raftlog.client.consumer_core import Checked, ConsumerCore
from raftlog.client.metadata import TopicView
from raftlog.client.partition_requests import try_offsets
from raftlog.errors import (
    CorruptBatchError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    RaftlogError,
    RetriableError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.metadata import MetadataRequest, MetadataResponse
from raftlog.protocol.schema import PartitionRange
from raftlog.types import Offset, TopicPartition

_ANSWER_MS: Final = 1_000  # time limit for the leader's start and end offsets
_TRIES: Final = 3  # metadata requests for a topic id, because brokers may be stale


@dataclass(slots=True, kw_only=True)
class Range:
    """One read, and its progress."""

    tp: TopicPartition
    start: Offset
    end: Offset
    topic_id: str
    columns: tuple[str, ...] | None
    rows_max: int
    bytes_max: int
    timeout_ms: int
    fetched: Offset  # next expected offset
    producers: frozenset[ProducerIdAndEpoch] | None = None  # None: all batches
    batches: deque[Checked] = field(default_factory=deque)  # received, not yet returned
    rows: int = 0  # in ``batches``
    size_bytes: int = 0  # of ``batches``, uncompressed
    served_by: set[int] = field(default_factory=set)

    @property
    def is_fetched(self) -> bool:
        return self.fetched >= self.end

    @property
    def is_enough(self) -> bool:
        """True if the received batches fill a portion, or are the last ones."""
        return self.is_fetched or self.rows >= self.rows_max or self.size_bytes >= self.bytes_max

    def add(self, batches: Sequence[Checked]) -> None:
        """Add received batches. Each must start where the previous one ended."""
        for header, data in batches:
            if header.base_offset > self.fetched:
                raise CorruptBatchError(
                    f"{self.tp}: offsets {self.fetched} to {header.base_offset - 1} are missing: "
                    f"the next received batch starts at {header.base_offset}"
                )
            if header.next_offset <= self.fetched:
                continue
            self.fetched = header.next_offset
            writer = (header.producer_id, header.producer_epoch)
            if self.producers is not None and writer not in self.producers:
                continue
            self.batches.append((header, data))
            self.rows += header.record_count
            self.size_bytes += header.uncompressed_length

    def take(self) -> tuple[list[Checked], int]:
        """Remove and return the batches of the next portion, and into how many to split it."""
        taken: list[Checked] = []
        rows = size_bytes = 0
        while self.batches:
            header, _ = self.batches[0]
            count, length = header.record_count, header.uncompressed_length
            if taken and (rows + count > self.rows_max or size_bytes + length > self.bytes_max):
                break
            rows, size_bytes = rows + count, size_bytes + length
            taken.append(self.batches.popleft())
        self.rows -= rows
        self.size_bytes -= size_bytes
        return taken, max(-(-rows // self.rows_max), -(-size_bytes // self.bytes_max), 1)


class Lookout:
    """Cluster queries for the reads of one core, on its loop."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core

    async def begin(self, wanted: Range) -> None:
        # A job has a range for each partition, and metadata of a topic has all of them. The id is
        # confirmed when the records have arrived.
        topic = self._core.cluster.view.topics.get(wanted.tp.topic)
        if (
            topic is None
            or topic.id != wanted.topic_id
            or wanted.tp.partition >= topic.partition_count
        ):
            topic = await self._topic(wanted)
        topic.check_partition(wanted.tp.partition)
        wanted.topic_id = topic.id
        self._core.begin_range(wanted.tp, wanted.fetched, wanted.end, wanted.served_by)

    async def _topic(self, wanted: Range) -> TopicView:
        """Return the current topic, if it has the id ``topic_id``."""
        cluster, name, tries = self._core.cluster, wanted.tp.topic, 0
        rotate = False

        async def attempt() -> TopicView:
            await cluster.refresh([name], rotate=rotate)
            return cluster.view.topic(name)

        while True:
            tries += 1
            try:
                found = await cluster.persist(
                    attempt, repeatable=True, timeout_ms=wanted.timeout_ms
                )
                _check_id(wanted, found.id)
            except UnknownTopicError:
                if not wanted.topic_id or tries == _TRIES:
                    raise
                rotate = True
                await asyncio.sleep(cluster.backoff_seconds(tries))
            else:
                return found

    async def confirm(self, wanted: Range) -> None:
        """Raise if records may be of another topic. Queries the brokers that served them.

        A broker with another topic of this name would have served that topic's records, and its
        metadata contains that topic's id.
        """
        cluster = self._core.cluster
        asked = {
            broker_id: address
            for broker_id, address in cluster.view.brokers.items()
            if broker_id in wanted.served_by
        }
        answers = await cluster.ask_all(
            apis.METADATA,
            MetadataRequest(
                topics=[wanted.tp.topic],
                span=PartitionRange(start=wanted.tp.partition, count=1),
            ),
            brokers=asked,
            patience_s=SILENCE_S,
        )
        sure = set()
        for broker_id, answer in answers.items():
            if not isinstance(answer, MetadataResponse) or not answer.topics:
                continue
            (info,) = answer.topics
            error = None if info.failure is None else info.failure.to_error()
            if error is None:
                _check_id(wanted, info.id)
                sure.add(broker_id)
            elif not isinstance(error, RetriableError):
                raise error
        if sure != wanted.served_by:
            await self._topic(wanted)

    async def look_around(self, wanted: Range, *, is_late: bool) -> str:
        """Try another replica, and query the leader for the end. Called when no records arrive.

        Returns the problem, if it is known. Raises errors that are permanent.
        """
        cluster, tp = self._core.cluster, wanted.tp
        self._core.turn(tp)
        self._core.wake()
        await _refresh(cluster)
        _check_id(wanted, cluster.view.topic(tp.topic).id)
        answer = (await try_offsets(cluster, {tp: "latest"}, patience_ms=_ANSWER_MS))[tp]
        if isinstance(answer, RaftlogError):
            return str(answer)
        if answer.offset >= wanted.end:
            return ""
        if is_late:
            raise OffsetOutOfRangeError(_beyond(wanted, answer.offset))
        return f"the partition ends at {answer.offset}"

    async def verify_out_of_range(self, wanted: Range, error: OffsetOutOfRangeError) -> None:
        """Raise if the next offset does not exist, as a broker reported. The leader decides.

        The report may be from a former leader.
        """
        cluster, tp = self._core.cluster, wanted.tp
        await _refresh(cluster)
        _check_id(wanted, cluster.view.topic(tp.topic).id)
        first, last = await _bounds(cluster, tp)
        if first is not None and wanted.fetched < first:
            raise OffsetOutOfRangeError(
                f"{tp}: offset {wanted.fetched} is below the log start offset {first}. Retention "
                "or a delete request has deleted the records"
            ) from error
        if last is not None and last < wanted.end:
            raise OffsetOutOfRangeError(_beyond(wanted, last)) from error
        if first is None or last is None:
            raise OffsetOutOfRangeError(
                f"{tp}: offset {wanted.fetched} does not exist ({error})"
            ) from error
        await asyncio.sleep(cluster.backoff_seconds(1))
        self._core.begin_range(tp, wanted.fetched, wanted.end, wanted.served_by)


def _check_id(wanted: Range, topic_id: str) -> None:
    if wanted.topic_id and topic_id != wanted.topic_id:
        raise UnknownTopicError(
            f"topic {wanted.tp.topic!r} was deleted and created again: its id is {topic_id}, "
            f"not {wanted.topic_id}"
        )


def _beyond(wanted: Range, last: Offset) -> str:
    return (
        f"{wanted.tp} ends at offset {last}, before the end {wanted.end} of the range. An unclean "
        "leader election has truncated the log, or these records never existed"
    )


async def _refresh(cluster: Cluster) -> None:
    """Request metadata from a broker that was not queried recently. Ignores retriable errors."""
    with suppress(TimeoutError, RetriableError, OutcomeUnknownError):
        async with asyncio.timeout(SILENCE_S):
            await cluster.refresh(rotate=True)


async def _bounds(cluster: Cluster, tp: TopicPartition) -> tuple[Offset | None, Offset | None]:
    """Return the leader's start and end offset; None for a missing response."""
    answers = await asyncio.gather(
        try_offsets(cluster, {tp: "earliest"}, patience_ms=_ANSWER_MS),
        try_offsets(cluster, {tp: "latest"}, patience_ms=_ANSWER_MS),
    )
    first, last = (answer[tp] for answer in answers)
    return (
        None if isinstance(first, RaftlogError) else first.offset,
        None if isinstance(last, RaftlogError) else last.offset,
    )
