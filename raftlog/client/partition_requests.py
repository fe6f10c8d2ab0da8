"""Requests about partitions: split by leader, sent, merged and retried.

The client stops waiting for an unresponsive leader once metadata names a newer one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar

from raftlog import limits
from raftlog.client.cluster import Cluster
from raftlog.client.connection import SILENCE_S
from raftlog.client.replica_selector import STAND_IN_AFTER_S, End, replica_offsets
from raftlog.client.retry import is_behind, may_pass
from raftlog.errors import (
    ConnectionLostError,
    LeaderNotAvailableError,
    NotLeaderError,
    OutcomeUnknownError,
    RaftlogError,
    RequestTimedOutError,
    RetriableError,
    UnsupportedFeatureError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.api import Api
from raftlog.protocol.fetch import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetAnswer,
    OffsetQuery,
)
from raftlog.protocol.produce import (
    DescribedProducer,
    DescribedProducers,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ListedPartition,
    ListedProducers,
    ListProducersRequest,
    ListProducersResponse,
    ProducersQuery,
)
from raftlog.protocol.schema import Failure, Message
from raftlog.protocol.topics import (
    DeletedRecords,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    RecordsToDelete,
)
from raftlog.types import Offset, TimestampMs, TopicPartition

At: TypeAlias = Literal["earliest", "latest"] | TimestampMs


class PartitionAnswer(Protocol):
    """Common fields of every response about one partition."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def failure(self) -> Failure | None: ...


AnswerT = TypeVar("AnswerT", bound=PartitionAnswer)
Request: TypeAlias = Callable[[Sequence[TopicPartition]], Message]
Read: TypeAlias = Callable[[Message], Sequence[AnswerT]]
StandIn: TypeAlias = Callable[
    [Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, AnswerT]]
]


async def list_offsets(
    cluster: Cluster, queries: Mapping[TopicPartition, At], *, any_replica: bool = False
) -> dict[TopicPartition, OffsetAnswer]:
    """Return the response for each partition. Raises the first failure as its error.

    ``any_replica``: while no leader responds, accept the start and end offsets of the replica with
    the highest high watermark. By default the call waits for the leader, because only the leader's
    end offsets never decrease. Times always need the leader.
    """

    async def stand_in(
        partitions: Sequence[TopicPartition],
    ) -> dict[TopicPartition, OffsetAnswer]:
        ends: dict[TopicPartition, End] = {}
        for tp in partitions:
            at = queries[tp]
            if at == "earliest" or at == "latest":
                ends[tp] = at
        return await replica_offsets(cluster, ends) if ends else {}

    return await _asking_offsets(cluster, queries).run(stand_in if any_replica else None)


async def try_offsets(
    cluster: Cluster, queries: Mapping[TopicPartition, At], *, patience_ms: int
) -> dict[TopicPartition, OffsetAnswer | RaftlogError]:
    """Return the response for each partition, or its error after ``patience_ms``."""
    return await _asking_offsets(cluster, queries).outcomes(patience_ms)


def _asking_offsets(
    cluster: Cluster, queries: Mapping[TopicPartition, At]
) -> _Asking[OffsetAnswer]:
    def request(partitions: Sequence[TopicPartition]) -> Message:
        return ListOffsetsRequest(
            queries=[
                OffsetQuery(
                    topic=tp.topic,
                    partition=tp.partition,
                    at=queries[tp],
                    leader_epoch=cluster.view.partition(*tp).leader_epoch,
                )
                for tp in partitions
            ]
        )

    def read(message: Message) -> Sequence[OffsetAnswer]:
        assert isinstance(message, ListOffsetsResponse)
        return message.answers

    return _Asking(cluster, apis.LIST_OFFSETS, list(queries), request, read)


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, Offset]
) -> dict[TopicPartition, DeletedRecords]:
    """Return the response for each partition. Raises the first failure as its error."""

    def request(partitions: Sequence[TopicPartition]) -> Message:
        return DeleteRecordsRequest(
            partitions=[
                RecordsToDelete(topic=tp.topic, partition=tp.partition, before_offset=before[tp])
                for tp in partitions
            ]
        )

    def read(message: Message) -> Sequence[DeletedRecords]:
        assert isinstance(message, DeleteRecordsResponse)
        return message.partitions

    return await _Asking(cluster, apis.DELETE_RECORDS, list(before), request, read).run(None)


async def describe_producer(
    cluster: Cluster,
    partitions: Sequence[TopicPartition],
    producer_id: int,
    *,
    family_bits: int = 0,
) -> dict[TopicPartition, list[DescribedProducer]]:
    """Return the committed state of a producer in each partition, then of its siblings.

    ``family_bits``: see ``ProducersQuery``. Raises the first failure, and
    ``UnsupportedFeatureError`` if a broker does not know families.
    """

    def request(asked: Sequence[TopicPartition]) -> Message:
        return DescribeProducersRequest(
            partitions=[
                ProducersQuery(
                    topic=tp.topic,
                    partition=tp.partition,
                    producer_ids=[producer_id],
                    leader_epoch=cluster.view.partition(*tp).leader_epoch,
                    family_bits=family_bits,
                )
                for tp in asked
            ]
        )

    def read(message: Message) -> Sequence[DescribedProducers]:
        assert isinstance(message, DescribeProducersResponse)
        return message.partitions

    asking = _Asking(cluster, apis.DESCRIBE_PRODUCERS, partitions, request, read)
    answers = await asking.run(None)
    found: dict[TopicPartition, list[DescribedProducer]] = {}
    for tp, answer in answers.items():
        if [one.producer_id for one in answer.producers] != [producer_id]:
            raise ConnectionLostError(f"the broker's response about {tp} is for other producers")
        if family_bits and answer.siblings is None:
            raise UnsupportedFeatureError(
                f"the leader of {tp} has a release that does not list the producers of a write. "
                "Update all brokers"
            )
        found[tp] = [*answer.producers, *(answer.siblings or ())]
    return found


async def try_list_producers(
    cluster: Cluster, windows: Mapping[TopicPartition, tuple[int, int]], *, patience_ms: int
) -> dict[TopicPartition, ListedProducers | RaftlogError]:
    """Return the producers of each partition, or its error after ``patience_ms``.

    ``windows``: how many producers to skip and to list; ``LISTED_PRODUCERS_MAX`` in total.
    """

    def request(partitions: Sequence[TopicPartition]) -> Message:
        return ListProducersRequest(
            partitions=[
                ListedPartition(
                    topic=tp.topic,
                    partition=tp.partition,
                    skip=windows[tp][0],
                    limit=windows[tp][1],
                    leader_epoch=cluster.view.partition(*tp).leader_epoch,
                )
                for tp in partitions
            ]
        )

    def read(message: Message) -> Sequence[ListedProducers]:
        assert isinstance(message, ListProducersResponse)
        return message.partitions

    asking = _Asking(cluster, apis.LIST_PRODUCERS, list(windows), request, read)
    return await asking.outcomes(patience_ms)


_STEP: Final = min(limits.PARTITIONS_PER_REQUEST_MAX, limits.PRODUCERS_PER_REQUEST_MAX)
_LEADER_LOOK_AGAIN_S: Final = 0.2  # check interval for a newer leader


@dataclass(slots=True)
class _Asking(Generic[AnswerT]):
    """One request for many partitions. Partitions with a retriable error are requested again."""

    cluster: Cluster
    api: Api
    partitions: Sequence[TopicPartition]
    request: Request
    read: Read[AnswerT]
    answers: dict[TopicPartition, AnswerT] = field(default_factory=dict)
    refused: dict[TopicPartition, RaftlogError] = field(default_factory=dict)
    troubles: dict[TopicPartition, RaftlogError] = field(default_factory=dict)  # retriable
    is_hasty: bool = False  # do not wait for an unresponsive leader

    async def run(
        self, stand_in: StandIn[AnswerT] | None, *, patience_ms: int | None = None
    ) -> dict[TopicPartition, AnswerT]:
        """Send requests until all partitions have a response; without a leader, use ``stand_in``.

        ``patience_ms``: time limit. With it, the call does not wait for unresponsive leaders.
        """
        loop = asyncio.get_running_loop()
        stand_in_at = loop.time() + STAND_IN_AFTER_S
        self.is_hasty = stand_in is not None or patience_ms is not None

        async def attempt() -> None:
            try:
                await self._attempt()
            except RaftlogError:
                if stand_in is None or loop.time() < stand_in_at:
                    raise
                with suppress(RaftlogError):  # the leader's error is more useful
                    self.answers.update(await stand_in(self._left()))
                if self._left():
                    raise

        if self.partitions:
            await self.cluster.persist(
                attempt, repeatable=self.api.idempotent, timeout_ms=patience_ms
            )
        for tp in self.partitions:
            if tp in self.refused:
                raise self.refused[tp]
        return self.answers

    async def outcomes(self, patience_ms: int) -> dict[TopicPartition, AnswerT | RaftlogError]:
        """Return the response for each partition, or its error after ``patience_ms``."""
        problem: RaftlogError = LeaderNotAvailableError("the leader was not queried")
        try:
            await self.run(None, patience_ms=patience_ms)
        except RaftlogError as error:
            problem = error
        reasons = self.troubles | self.refused
        return {tp: self.answers.get(tp) or reasons.get(tp, problem) for tp in self.partitions}

    def _left(self) -> list[TopicPartition]:
        return [tp for tp in self.partitions if tp not in self.answers and tp not in self.refused]

    async def _attempt(self) -> None:
        failures: list[RaftlogError] = []
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in self._left():
            await self.cluster.check_partition(tp)
            try:
                by_leader.setdefault(self.cluster.view.leader(*tp), []).append(tp)
            except LeaderNotAvailableError as error:
                self.troubles[tp] = error
                failures.append(error)
        found = await asyncio.gather(
            *(
                self._ask(leader, led[start : start + _STEP])
                for leader, led in by_leader.items()
                for start in range(0, len(led), _STEP)
            )
        )
        failures += [error for error in found if error is not None]
        if failures:
            self.cluster.refresh_soon()
            raise failures[0]

    async def _ask(self, leader: int, partitions: Sequence[TopicPartition]) -> RaftlogError | None:
        """Store the responses of a leader. Returns a retriable error, if there is one."""
        try:
            answers = self.read(await self._answer(leader, partitions))
        except RaftlogError as error:
            self.cluster.mark_suspect(leader)
            self.troubles.update(dict.fromkeys(partitions, error))
            return error
        found = [self._take(leader, answer) for answer in answers]
        return next((error for error in found if error is not None), None)

    def _take(self, leader: int, answer: AnswerT) -> RaftlogError | None:
        tp = TopicPartition(answer.topic, answer.partition)
        if answer.failure is None:
            self.answers[tp] = answer
            return None
        error = answer.failure.to_error()
        if is_behind(error):
            self.cluster.mark_suspect(leader)
        if isinstance(error, RetriableError | OutcomeUnknownError):
            self.troubles[tp] = error
            return error
        if may_pass(error, repeatable=self.api.idempotent):
            return NotLeaderError(f"broker {leader} seems to have stale metadata: {error}")
        self.refused[tp] = error
        return None

    async def _answer(self, leader: int, partitions: Sequence[TopicPartition]) -> Message:
        """Return the leader's response. Raises if there is none and a newer leader is known."""
        cluster, loop = self.cluster, asyncio.get_running_loop()
        epochs = [cluster.view.partition(*tp).leader_epoch for tp in partitions]

        async def ask() -> Message:
            connection = await cluster.connection(leader)
            answer = await connection.request(
                self.api,
                self.request(partitions),
                timeout_ms=cluster.settings.request_timeout_ms,
            )
            return answer.message

        asking = asyncio.ensure_future(ask())
        silent_at = loop.time() + SILENCE_S
        try:
            while not (await asyncio.wait([asking], timeout=_LEADER_LOOK_AGAIN_S))[0]:
                is_silent = loop.time() >= silent_at
                known = [cluster.view.partition(*tp).leader_epoch for tp in partitions]
                if known != epochs or (is_silent and self.is_hasty):
                    raise RequestTimedOutError(
                        f"broker {leader} does not respond to {self.api.name} for {partitions[0]}"
                    )
                if is_silent:
                    cluster.mark_suspect(leader)
                    cluster.refresh_soon()
            return asking.result()
        finally:
            asking.cancel()
