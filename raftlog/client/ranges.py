"""One range of a partition that is read: how far it has come, and whether it is the right one.

``Range`` takes batches as they come and says which make the next portion; plain values. ``Lookout``
asks the cluster what a range cannot know of itself, on the loop.

That the records are the right ones:

    none left out, none twice   each batch has to begin where the one before it ended: batches
                                cover every offset, also after compaction
    no other topic's            brokers do not know whose offsets are asked for, only the name. So
                                the topic's id is looked up at the beginning, and before the last
                                portion is given, of the brokers that gave the records
    none that were cut off      an end beyond what is there is believed only of the leader, which
                                asks the others first (``list_offsets``)
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
from raftlog.types import Offset, TopicPartition

_ANSWER_MS: Final = 1_000  # for the leader to say where its log begins and ends
_TRIES: Final = 3  # to find the topic of an id: as many brokers may know only of an older one


@dataclass(slots=True, kw_only=True)
class Range:
    """One read, and how far it has come."""

    tp: TopicPartition
    start: Offset
    end: Offset
    topic_id: str
    columns: tuple[str, ...] | None
    rows_max: int
    bytes_max: int
    timeout_ms: int
    fetched: Offset  # the next one that has to come
    producer: ProducerIdAndEpoch | None = None  # only its batches are wanted; None: all
    batches: deque[Checked] = field(default_factory=deque)  # that came, and are not given yet
    rows: int = 0  # in them
    size_bytes: int = 0  # of them, when they are not compressed
    served_by: set[int] = field(default_factory=set)

    @property
    def is_fetched(self) -> bool:
        return self.fetched >= self.end

    @property
    def is_enough(self) -> bool:
        """Whether what came fills a portion, or is the last one."""
        return self.is_fetched or self.rows >= self.rows_max or self.size_bytes >= self.bytes_max

    def add(self, batches: Sequence[Checked]) -> None:
        """Take batches that came: each goes on where the one before it ended."""
        for header, data in batches:
            if header.base_offset > self.fetched:
                raise CorruptBatchError(
                    f"{self.tp}: offsets {self.fetched} to {header.base_offset - 1} are missing: "
                    f"the next batch that came begins at {header.base_offset}"
                )
            if header.next_offset <= self.fetched:
                continue
            self.fetched = header.next_offset
            if self.producer not in (None, (header.producer_id, header.producer_epoch)):
                continue
            self.batches.append((header, data))
            self.rows += header.record_count
            self.size_bytes += header.uncompressed_length

    def take(self) -> tuple[list[Checked], int]:
        """The batches of the next portion, one at least, and into how many it is to be split."""
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
    """For the reads of one core, on its loop."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core

    async def begin(self, wanted: Range) -> None:
        topic = await self._topic(wanted)
        topic.check_partition(wanted.tp.partition)
        wanted.topic_id = topic.id
        self._core.begin_range(wanted.tp, wanted.fetched, wanted.end, wanted.served_by)

    async def _topic(self, wanted: Range) -> TopicView:
        """The topic as it is now, if it is that of ``topic_id``."""
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
        """Raise unless what came is of the topic that was meant: by the word of who gave it.

        A broker that has another topic of that name gives that one's records, and knows it.
        """
        cluster = self._core.cluster
        asked = {
            broker_id: address
            for broker_id, address in cluster.view.brokers.items()
            if broker_id in wanted.served_by
        }
        answers = await cluster.ask_all(
            apis.METADATA,
            MetadataRequest(topics=[wanted.tp.topic]),
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
        """Nothing comes: ask another replica and, for where the log ends, the leader.

        What is wrong, as far as is known. Raises what will not pass.
        """
        cluster, tp = self._core.cluster, wanted.tp
        self._core.turn(tp)
        self._core.look()
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

    async def doubt(self, wanted: Range, told: OffsetOutOfRangeError) -> None:
        """The next offset is said not to be there: raise, unless the leader knows better.

        It may have been one that was replaced, and did not know.
        """
        cluster, tp = self._core.cluster, wanted.tp
        await _refresh(cluster)
        _check_id(wanted, cluster.view.topic(tp.topic).id)
        first, last = await _bounds(cluster, tp)
        if first is not None and wanted.fetched < first:
            raise OffsetOutOfRangeError(
                f"{tp}: offset {wanted.fetched} is below {first}, the first that is left: what "
                "was there was deleted, by retention or by request"
            ) from told
        if last is not None and last < wanted.end:
            raise OffsetOutOfRangeError(_beyond(wanted, last)) from told
        if first is None or last is None:
            raise OffsetOutOfRangeError(
                f"{tp}: offset {wanted.fetched} is not there ({told})"
            ) from told
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
        f"{wanted.tp} ends at offset {last}, before {wanted.end}, to which it was to be read: the "
        "end was cut off, by an election outside of the in-sync replicas, or never was there"
    )


async def _refresh(cluster: Cluster) -> None:
    """Ask for metadata, of a broker that was not asked lately; in vain, perhaps."""
    with suppress(TimeoutError, RetriableError, OutcomeUnknownError):
        async with asyncio.timeout(SILENCE_S):
            await cluster.refresh(rotate=True)


async def _bounds(cluster: Cluster, tp: TopicPartition) -> tuple[Offset | None, Offset | None]:
    """Where the log begins, and where it ends, by the leader; None for what it does not say."""
    answers = await asyncio.gather(
        try_offsets(cluster, {tp: "earliest"}, patience_ms=_ANSWER_MS),
        try_offsets(cluster, {tp: "latest"}, patience_ms=_ANSWER_MS),
    )
    first, last = (answer[tp] for answer in answers)
    return (
        None if isinstance(first, RaftlogError) else first.offset,
        None if isinstance(last, RaftlogError) else last.offset,
    )
