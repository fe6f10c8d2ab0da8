"""Lookup of an offset: the start or end of a partition, or a timestamp."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, Protocol, TypeAlias

from raftlog.errors import LeaderNotAvailableError, RaftlogError
from raftlog.server.context import BrokerContext
from raftlog.server.partition import Partition
from raftlog.types import NO_TIMESTAMP, LeaderEpoch, Offset, OffsetAndTimestamp, TimestampMs

# ``newest``: the first record with the highest timestamp.
At: TypeAlias = Literal["earliest", "latest", "newest"] | int


class Query(Protocol):
    """Request for one offset. ``leader_epoch``: as the client knows it, or -1."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def leader_epoch(self) -> LeaderEpoch: ...
    @property
    def at(self) -> At: ...


class Found(NamedTuple):
    """An offset; -1 if no record is at or after the timestamp."""

    offset: Offset
    timestamp_ms: TimestampMs
    host: Partition


# Called with the offset, or with the reason why it is not known.
OnFound: TypeAlias = Callable[[Found | RaftlogError], None]


def look_up(context: BrokerContext, query: Query, done: OnFound) -> None:
    """Call ``done`` once the commits of all earlier leaders are known, and it is confirmed that no
    other broker leads, which might have committed more.
    """
    try:
        host = context.topics.host(query.topic, query.partition)
        host.check_epoch(query.leader_epoch)
        host.check_leading()
        if not host.is_ready:
            raise LeaderNotAvailableError(
                f"{host.topic_partition}: the new leader does not know the high watermark yet"
            )
    except RaftlogError as error:
        done(error)
        return
    confirmed = partial(_confirmed, query, host, done)
    if context.cluster is not None:
        context.cluster.confirm(host, confirmed)
    else:
        confirmed(None)


def _confirmed(query: Query, host: Partition, done: OnFound, error: RaftlogError | None) -> None:
    try:
        if error is not None:
            raise error
        found = Found(*_find(query.at, host), host)
    except RaftlogError as failure:
        done(failure)
    else:
        done(found)


def _find(at: At, host: Partition) -> OffsetAndTimestamp:
    if at == "earliest":
        return OffsetAndTimestamp(host.committed_start, NO_TIMESTAMP)
    if at == "latest":
        return OffsetAndTimestamp(host.high_watermark, NO_TIMESTAMP)
    none = OffsetAndTimestamp(-1, NO_TIMESTAMP)
    if at == "newest":
        newest_ms = host.log.newest_timestamp_ms
        return none if newest_ms < 0 else host.offset_for_timestamp(newest_ms) or none
    return host.offset_for_timestamp(at) or none
