"""Requests about partitions, each to the broker that leads it: split, sent, joined and retried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias, TypeVar

from raftlog import limits
from raftlog.client.cluster import Cluster
from raftlog.client.retry import may_retry
from raftlog.errors import NotLeaderError, RaftlogError
from raftlog.protocol import api as apis
from raftlog.protocol.api import Api
from raftlog.protocol.fetch import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetAnswer,
    OffsetQuery,
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
    """What every answer about one partition has."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def failure(self) -> Failure | None: ...


AnswerT = TypeVar("AnswerT", bound=PartitionAnswer)
Request: TypeAlias = Callable[[Sequence[TopicPartition]], Message]
Read: TypeAlias = Callable[[Message], Sequence[AnswerT]]


async def list_offsets(
    cluster: Cluster, queries: Mapping[TopicPartition, At]
) -> dict[TopicPartition, OffsetAnswer]:
    """The answer for each partition. Raises the first failure, as the error that it is."""

    def request(partitions: Sequence[TopicPartition]) -> Message:
        return ListOffsetsRequest(
            queries=[
                OffsetQuery(topic=tp.topic, partition=tp.partition, at=queries[tp])
                for tp in partitions
            ]
        )

    def read(message: Message) -> Sequence[OffsetAnswer]:
        assert isinstance(message, ListOffsetsResponse)
        return message.answers

    return await _ask_leaders(cluster, apis.LIST_OFFSETS, list(queries), request, read)


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, Offset]
) -> dict[TopicPartition, DeletedRecords]:
    """The answer for each partition. Raises the first failure, as the error that it is."""

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

    return await _ask_leaders(cluster, apis.DELETE_RECORDS, list(before), request, read)


async def _ask_leaders(
    cluster: Cluster,
    api: Api,
    partitions: Sequence[TopicPartition],
    request: Request,
    read: Read[AnswerT],
) -> dict[TopicPartition, AnswerT]:
    """All are tried; those that failed in a way that may pass are asked again, and only those."""
    answers: dict[TopicPartition, AnswerT] = {}
    refused: dict[TopicPartition, RaftlogError] = {}

    async def attempt() -> None:
        left = [tp for tp in partitions if tp not in answers and tp not in refused]
        by_leader = await _by_leader(cluster, left)
        found = await asyncio.gather(
            *(
                _ask(cluster, leader, api, led[start : start + _STEP], request, read)
                for leader, led in by_leader.items()
                for start in range(0, len(led), _STEP)
            )
        )
        failure: RaftlogError | None = None
        for answer in (answer for part in found for answer in part):
            tp = TopicPartition(answer.topic, answer.partition)
            if answer.failure is None:
                answers[tp] = answer
                continue
            error = answer.failure.to_error()
            if may_retry(error, repeatable=api.idempotent):
                failure = error
            else:
                refused[tp] = error
        if failure is not None:
            cluster.refresh_soon()
            raise failure

    if partitions:
        await cluster.persist(attempt, repeatable=api.idempotent)
    for tp in partitions:
        if tp in refused:
            raise refused[tp]
    return answers


_STEP = limits.PARTITIONS_PER_REQUEST_MAX


async def _by_leader(
    cluster: Cluster, partitions: Sequence[TopicPartition]
) -> dict[int, list[TopicPartition]]:
    by_leader: dict[int, list[TopicPartition]] = {}
    for tp in partitions:
        topic = await cluster.topic(tp.topic)
        leader = topic.leaders[topic.check_partition(tp.partition)]
        if leader is None:
            cluster.refresh_soon()
            raise NotLeaderError(f"{tp} has no leader at the moment")
        by_leader.setdefault(leader, []).append(tp)
    return by_leader


async def _ask(
    cluster: Cluster,
    leader: int,
    api: Api,
    partitions: Sequence[TopicPartition],
    request: Request,
    read: Read[AnswerT],
) -> Sequence[AnswerT]:
    try:
        connection = await cluster.connection(leader)
        answer = await connection.request(
            api, request(partitions), timeout_ms=cluster.settings.request_timeout_ms
        )
    except RaftlogError:
        cluster.refresh_soon()  # somebody else may lead them by now
        raise
    return read(answer.message)
