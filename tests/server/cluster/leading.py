"""A leader with one partition or more, and the session of one follower: broker 2."""

from __future__ import annotations

from typing import Any

from raftlog.protocol.peer import (
    DurablePosition,
    ReplicaFetched,
    ReplicaFetchRequest,
    ReplicaPosition,
    TopicIdPartition,
)
from raftlog.server.cluster.elections import HostedPartition
from raftlog.server.cluster.fetch_session import FetchSession
from raftlog.server.partition import Partition
from raftlog.storage import Log
from tests.server.cluster.fake import (
    DISKS,
    TOPIC_ID,
    FakeReply,
    Scene,
    state_of,
)
from tests.server.harness import values_of

WAIT_MS = 500


class Leading:
    """A leader's partition or more, and the session of one follower: broker 2."""

    def __init__(self, s: Scene) -> None:
        self.s = s
        self.partitions: dict[tuple[str, int], HostedPartition] = {}
        self.progress: list[HostedPartition] = []
        self.damage: list[tuple[Partition, str]] = []
        self.session = FetchSession(
            2,
            DISKS[2],
            1,
            loop=s.loop,
            find=lambda topic_id, partition: self.partitions.get((topic_id, partition)),
            on_progress=self.progress.append,
            on_damage=lambda host, error: self.damage.append((host, str(error))),
        )

    def leader(self, log: Log | None = None, *, partition: int = 0, **facts: Any) -> Partition:
        facts.setdefault("epoch", 5)
        state = state_of(1, 2, **facts)
        host = self.s.host(log, partition=partition)
        host.lead(state, 1, lag_max_seconds=10)
        self.partitions[TOPIC_ID, partition] = self.s.hosted(state, host)
        return host

    def fetch(
        self,
        *positions: ReplicaPosition,
        full: bool = False,
        forgotten: tuple[int, ...] = (),
        bytes_max: int = 1 << 20,
        reply: FakeReply | None = None,
    ) -> FakeReply:
        reply = reply or FakeReply()
        request = ReplicaFetchRequest(
            partitions=list(positions),
            full=full,
            forgotten=[TopicIdPartition(TOPIC_ID, number) for number in forgotten],
            wait_ms_max=WAIT_MS,
            bytes_max=bytes_max,
        )
        self.session.fetch(request, reply.as_reply)
        return reply

    def durable(self, offset: int, *, epoch: int = 5, partition: int = 0) -> None:
        self.session.progress([DurablePosition(TOPIC_ID, partition, epoch, offset)])


def at(
    offset: int,
    *,
    partition: int = 0,
    epoch: int = 5,
    last_epoch: int = -1,
    durable: int | None = None,
    bytes_max: int = 1 << 20,
    high_watermark: int = 0,
) -> ReplicaPosition:
    return ReplicaPosition(
        topic_id=TOPIC_ID,
        partition=partition,
        leader_epoch=epoch,
        fetch_offset=offset,
        last_epoch=last_epoch,
        durable_offset=offset if durable is None else durable,
        bytes_max=bytes_max,
        high_watermark=high_watermark,
    )


def only(reply: FakeReply) -> ReplicaFetched:
    (part,) = reply.parts
    return part


def values(reply: FakeReply) -> list[bytes]:
    return values_of(b"".join(reply.answers[0][1]))
