"""``list_offsets``: start and end offsets of partitions, and offsets by timestamp."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, Protocol, TypeAlias, cast

from raftlog.errors import LeaderNotAvailableError, RaftlogError
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetAnswer,
    OffsetQuery,
)
from raftlog.protocol.schema import Failure
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Exchange, Outcomes, Reply, check_once
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Steps
from raftlog.types import COMMITTED, NO_TIMESTAMP, LeaderEpoch, Offset, TimestampMs


def handle(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    queries = cast(ListOffsetsRequest, request.message).queries
    check_once("list_offsets", [(query.topic, query.partition, query.at) for query in queries])
    outcomes: Outcomes[OffsetAnswer] = Outcomes(
        len(queries), lambda answers: reply.send(ListOffsetsResponse(answers=answers))
    )
    for index, query in enumerate(queries):
        if index:
            yield None
        look_up(context, reply, query, partial(_done, outcomes, index, query))


def _done(
    outcomes: Outcomes[OffsetAnswer], index: int, query: OffsetQuery, found: Found | RaftlogError
) -> None:
    if isinstance(found, RaftlogError):
        failure = Failure.of(found)
        answer = OffsetAnswer(topic=query.topic, partition=query.partition, failure=failure)
    else:
        answer = OffsetAnswer(
            topic=query.topic,
            partition=query.partition,
            offset=found.offset,
            timestamp_ms=found.timestamp_ms,
            leader_epoch=found.host.leader_epoch,
        )
    outcomes.resolve(index, answer)


# -- lookup ----------------------------------------------------------------------------------------
#
# Lookup of an offset: the start or end of a partition, or a timestamp.


# ``newest``: the first record with the highest timestamp.
At: TypeAlias = Literal["earliest", "latest", "newest"] | int


class Query(Protocol):
    """Request for one offset. ``leader_epoch``: as the client knows it, or -1. ``isolation``: with
    ``committed``, the end is the last stable offset.
    """

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def leader_epoch(self) -> LeaderEpoch: ...
    @property
    def at(self) -> At: ...
    @property
    def isolation(self) -> str: ...


class Found(NamedTuple):
    """An offset; -1 if no record is at or after the timestamp."""

    offset: Offset
    timestamp_ms: TimestampMs
    host: Partition


# Called with the offset, or with the reason why it is not known.
OnFound: TypeAlias = Callable[[Found | RaftlogError], None]


def look_up(context: BrokerContext, reply: Exchange, query: Query, done: OnFound) -> None:
    """Call ``done`` once the commits of all earlier leaders are known, and it is confirmed that no
    other broker leads, which might have committed more. The start of a partition is reported when
    all in-sync replicas have it: a deletion in progress delays the call. ``reply``: to the request;
    a search by time takes steps of it, as it may decompress a large batch.
    """
    try:
        host = context.topics.host(query.topic, query.partition)
        # guard: an offset request of another epoch
        host.check_epoch(query.leader_epoch)
        # guard: only the leader reports offsets
        host.check_leading()
        # guard: offsets are looked up once the leader is ready
        if not host.is_ready:
            raise LeaderNotAvailableError(
                f"{host.topic_partition}: the new leader does not know the high watermark yet"
            )
    except RaftlogError as error:
        done(error)
        return
    # guard: an offset is confirmed before it is reported
    context.cluster.confirm(host, partial(_confirmed, reply, query, host, done))


def _confirmed(
    reply: Exchange, query: Query, host: Partition, done: OnFound, error: RaftlogError | None
) -> None:
    if error is not None:
        done(error)
    elif query.at == "earliest":
        host.committed_start(partial(_started, host, done))
    elif query.at == "latest":
        end = host.last_stable_offset if query.isolation == COMMITTED else host.high_watermark
        done(Found(end, NO_TIMESTAMP, host))
    else:
        reply.go_on(_search(query, host, done))


def _started(host: Partition, done: OnFound, start: Offset | RaftlogError) -> None:
    done(start if isinstance(start, RaftlogError) else Found(start, NO_TIMESTAMP, host))


def _search(query: Query, host: Partition, done: OnFound) -> Steps:
    try:
        at, is_committed = query.at, query.isolation == COMMITTED
        timestamp_ms = at if isinstance(at, int) else host.log.newest_timestamp_ms
        record = None
        if timestamp_ms >= 0:
            # The newest record is found by its time, which may be that of an aborted one.
            record = yield from host.offset_for_timestamp(
                timestamp_ms, skip_aborted=is_committed and at != "newest"
            )
        if record is not None and is_committed and record.offset >= host.last_stable_offset:
            record = None
        found = Found(*(record or (-1, NO_TIMESTAMP)), host)
    except RaftlogError as failure:
        done(failure)
    else:
        done(found)


# -- leaders ---------------------------------------------------------------------------------------
#
# The current leader of a partition, for a client that sent its request to another broker.


class Leader(NamedTuple):
    """A leader and its epoch; -1 for both while none is known."""

    broker_id: int
    epoch: LeaderEpoch


def leader_of(context: BrokerContext, topic_name: str, partition: int) -> Leader:
    """Return the leader as this broker knows it."""
    topic = context.topics.get(topic_name)
    if topic is None or partition >= len(topic.hosts):
        return Leader(-1, -1)
    info = context.topics.info(topic, partition)
    return Leader(-1, -1) if info.leader is None else Leader(info.leader, info.leader_epoch)
