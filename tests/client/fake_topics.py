"""The topics of a ``FakeCluster``: what is stored, who leads, and what a broker has of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import SupportsIndex

from raftlog import limits
from raftlog.errors import (
    FencedLeaderEpochError,
    NotLeaderError,
    UnknownLeaderEpochError,
    UnknownTopicError,
)
from raftlog.protocol import records as described
from raftlog.protocol.cluster import PartitionStatus, ReplicaStatus
from raftlog.protocol.records import PartitionInfo, TopicInfo
from raftlog.protocol.schema import Failure
from raftlog.record import decode_lists, parse_header, stamp, validate
from raftlog.storage.producer_state import ProducerTable
from raftlog.types import Buffer
from tests.client.virtual import START_MS

MAX_MESSAGE_BYTES = limits.MIB + 12
FIRST_EPOCH = 3


@dataclass
class FakeLog:
    """One partition."""

    batches: list[bytes] = field(default_factory=list)
    start: int = 0
    end: int = 0
    chain: int = 0
    producers: ProducerTable = field(default_factory=ProducerTable)

    def append(self, batch: Buffer) -> int:
        header = validate(batch)
        if header.has_producer:
            known = self.producers.check(header)
            if known is not None:
                return known.base_offset
        base = self.end
        section, self.chain = stamp(
            header,
            base_offset=base,
            leader_epoch=3,
            append_timestamp_ms=START_MS,
            log_append_time=False,
            previous_chain=self.chain,
        )
        stored = section + bytes(memoryview(batch)[40:])
        self.batches.append(stored)
        if header.has_producer:
            self.producers.note(parse_header(stored))
        self.end += header.record_count
        return base

    def values(self) -> list[bytes | None]:
        return [value for batch in self.batches for value in decode_lists(batch).values]

    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        found: list[tuple[bytes | None, bytes | None]] = []
        for batch in self.batches:
            lists = decode_lists(batch)
            found += zip(lists.keys, lists.values, strict=True)
        return found


class Leaders(list[int | None]):
    """A broker's id for each partition. Setting one is an election: its epoch grows."""

    def __init__(self, leaders: Iterable[int | None]) -> None:
        super().__init__(leaders)
        self.epochs = [FIRST_EPOCH] * len(self)

    def __setitem__(self, partition: SupportsIndex, leader: object) -> None:  # type: ignore[override]
        assert leader is None or isinstance(leader, int)
        super().__setitem__(partition, leader)
        self.epochs[partition] += 1

    def append(self, leader: int | None) -> None:
        super().append(leader)
        self.epochs.append(FIRST_EPOCH)


@dataclass
class FakeTopic:
    """One topic, as its brokers agree on it. All replicas share a log: they hold the same.

    ``known_ends``: how far a replica knows the log to be committed, where that is not its end.
    """

    name: str
    id: str
    logs: list[FakeLog]
    leaders: Leaders
    replicas: list[int]
    isr: list[int]
    max_message_bytes: int = MAX_MESSAGE_BYTES
    known_ends: dict[int, int] = field(default_factory=dict)

    def info(self) -> TopicInfo:
        return TopicInfo(
            name=self.name,
            id=self.id,
            max_message_bytes=self.max_message_bytes,
            partitions=[self.partition_info(number) for number in range(len(self.leaders))],
        )

    def partition_info(self, number: int) -> PartitionInfo:
        return PartitionInfo(
            partition=number,
            leader=self.leaders[number],
            leader_epoch=self.leaders.epochs[number],
            replicas=self.replicas,
            isr=self.isr,
        )

    def end_at(self, broker_id: int, partition: int) -> int:
        """What the broker knows to be committed."""
        end = self.logs[partition].end
        if self.leaders[partition] == broker_id:
            return end
        return min(end, self.known_ends.get(broker_id, end))

    def log_at(
        self, broker_id: int, partition: int, epoch: int, *, replica_ok: bool = False
    ) -> FakeLog:
        """The log, for a request to a broker that knows the leader epoch; -1 is any."""
        known = self.leaders.epochs[partition]
        if epoch not in {-1, known}:
            error = FencedLeaderEpochError if epoch < known else UnknownLeaderEpochError
            raise error(f"the request knows epoch {epoch}, and it is {known}")
        if self.leaders[partition] != broker_id and not (replica_ok and broker_id in self.replicas):
            raise NotLeaderError(f"broker {broker_id} does not lead {self.name}:{partition}")
        return self.logs[partition]

    def described_by(self, broker_id: int) -> described.TopicDescription:
        has_it = broker_id in self.replicas
        return described.TopicDescription(
            name=self.name,
            id=self.id,
            config={"retention.ms": "1"},
            partitions=[
                described.PartitionDescription(
                    info=self.partition_info(number),
                    log_start_offset=log.start if has_it else -1,
                    high_watermark=self.end_at(broker_id, number) if has_it else -1,
                    log_end_offset=log.end if has_it else -1,
                )
                for number, log in enumerate(self.logs)
            ],
        )

    def status_by(self, broker_id: int, partition: int) -> PartitionStatus:
        log, leader = self.logs[partition], self.leaders[partition]
        seen: Sequence[int] = self.replicas if broker_id == leader else [broker_id]
        return PartitionStatus(
            topic=self.name,
            topic_id=self.id,
            partition=partition,
            leader=leader,
            leader_epoch=self.leaders.epochs[partition],
            replicas=self.replicas,
            isr=self.isr,
            witnesses=[],
            elr=[],
            min_isr=2,
            high_watermark=self.end_at(broker_id, partition),
            log_start_offset=log.start,
            replica_status=[
                ReplicaStatus(
                    broker=replica,
                    log_end_offset=self.end_at(replica, partition),
                    durable_end_offset=self.end_at(replica, partition),
                    lag_ms=7 if broker_id == leader != replica else -1,
                    in_isr=replica in self.isr,
                    chain=log.chain if replica == broker_id else None,
                )
                for replica in seen
                if replica in self.replicas
            ],
        )


def not_there(name: str) -> TopicInfo:
    return TopicInfo(name=name, failure=Failure.of(UnknownTopicError(f"no topic {name}")))


def undescribed(name: str) -> described.TopicDescription:
    return described.TopicDescription(name=name, failure=not_there(name).failure)
