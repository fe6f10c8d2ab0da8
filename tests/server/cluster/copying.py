"""A fetcher, and the leader at the other end as the test plays it."""

from __future__ import annotations

from typing import Any

from raftlog.errors import (
    RaftlogError,
)
from raftlog.protocol.peer import (
    ReplicaFetched,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaPosition,
)
from raftlog.server.cluster.fetcher import (
    MoveThrottle,
    ReplicaFetcher,
)
from raftlog.server.metrics import Counters
from raftlog.server.partition import Partition
from raftlog.server.peers import Answer
from raftlog.storage import Log
from tests.server.cluster.fake import TOPIC_ID, Scene, write
from tests.server.harness import values_of

LEADER = 2
WAIT_MS = 500


class Copying:
    """A fetcher, and the leader at the other end as the test plays it."""

    def __init__(self, s: Scene) -> None:
        self.s = s
        s.links.up.add(LEADER)
        self.damaged: list[tuple[Partition, RaftlogError]] = []
        self.counters = Counters()
        self.fetcher = ReplicaFetcher(
            LEADER,
            loop=s.loop,
            links=s.links.as_links,
            bytes_max=1 << 20,
            wait_ms_max=WAIT_MS,
            on_damage=lambda host, error: self.damaged.append((host, error)),
            counters=self.counters,
            throttle=MoveThrottle(s.broker_id, s.machine, s.loop, chunk_bytes_max=1 << 20),
        )

    def follower(self, log: Log | None = None, *, partition: int = 0, epoch: int = 5) -> Any:
        host = self.s.host(log, partition=partition)
        host.follow(LEADER, epoch)
        return host

    @property
    def requests(self) -> list[ReplicaFetchRequest]:
        return [message for _, message, _ in self.s.links.asked]

    @property
    def last(self) -> ReplicaFetchRequest:
        return self.requests[-1]

    def position(self, request: int = -1) -> ReplicaPosition:
        (only,) = self.requests[request].partitions
        return only

    async def answer(self, *parts: ReplicaFetched, data: bytes = b"", request: int = -1) -> None:
        future = self.s.links.asked[request][2]
        future.set_result(Answer(ReplicaFetchResponse(partitions=list(parts)), memoryview(data)))
        await self.s.come_to_rest()

    async def fail(self, error: RaftlogError, *, request: int = -1) -> None:
        self.s.links.asked[request][2].set_exception(error)
        await self.s.come_to_rest()


def part(partition: int = 0, *, epoch: int = 5, **facts: Any) -> ReplicaFetched:
    facts.setdefault("high_watermark", 0)
    facts.setdefault("log_start_offset", 0)
    return ReplicaFetched(topic_id=TOPIC_ID, partition=partition, leader_epoch=epoch, **facts)


def batches(log: Log, start: int = 0) -> bytes:
    return b"".join(log.read(start_offset=start, end_offset=log.log_end_offset, bytes_max=1 << 20))


def values(log: Log) -> list[bytes]:
    return values_of(batches(log))


def leaders_log(s: Scene, *records: bytes, epoch: int = 5) -> Log:
    log = s.log()
    write(log, *records, epoch=epoch)
    return log
