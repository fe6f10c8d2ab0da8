"""Coordinators of consumer groups for a ``FakeCluster``: the real state machine, and no log.

All groups have one coordinator at a time, ``broker``. ``move`` has another broker take over, which
knows all that was ever written; ``fail`` has it take over without a word from the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from raftlog.consumer_groups import (
    BUILT_IN,
    Commit,
    GroupRecord,
    GroupSettings,
    GroupShard,
    Heartbeat,
    HeartbeatResult,
    Share,
    StateChange,
    TopicInfo,
)
from raftlog.errors import NotCoordinatorError, RaftlogError
from raftlog.protocol import api as apis
from raftlog.protocol import records as wire
from raftlog.protocol.connection import Request
from raftlog.protocol.schema import Failure, Message
from raftlog.types import TopicPartition
from tests.client.virtual import START_MS
from tests.client.world import FakeCluster, Peer

ASSIGNORS = BUILT_IN


def committed(
    offsets: Sequence[wire.OffsetToCommit], outcomes: Sequence[RaftlogError | None]
) -> wire.OffsetCommitResponse:
    return wire.OffsetCommitResponse(
        partitions=[
            wire.CommittedPartition(
                topic=one.topic,
                partition=one.partition,
                failure=None if error is None else Failure.of(error),
            )
            for one, error in zip(offsets, outcomes, strict=True)
        ]
    )


class FakeCoordinator:
    """Answers for the groups of a fake cluster."""

    def __init__(self, cluster: FakeCluster, broker: int = 1) -> None:
        self.cluster = cluster
        self.broker = broker
        self.noted = broker  # whom the brokers name, when they are asked
        self.records: dict[bytes, bytes | None] = {}
        self.version = 0
        self.parked: dict[tuple[str, str], asyncio.Event] = {}
        self.shard = self._load()
        self._loop = asyncio.get_running_loop()
        behaviours: dict[Any, Callable[[Request], Message]] = {
            apis.OFFSET_COMMIT: self._commit,
            apis.OFFSET_FETCH: self._fetch,
        }
        cluster.always[apis.FIND_COORDINATORS] = self._find
        cluster.always[apis.GROUP_HEARTBEAT] = self._heartbeat
        for api, answer in behaviours.items():
            cluster.always[api] = self._answering(answer)
        self._ticking = asyncio.ensure_future(self._tick())

    # -- what tests do

    def move(self, broker: int, *, noted: bool = True) -> None:
        """Another broker is the coordinator from now on."""
        self.broker = broker
        if noted:
            self.noted = broker
        self.shard = self._load()
        for event in self.parked.values():
            event.set()

    def know_topics(self) -> None:
        """The cluster's topics have changed."""
        self.version += 1
        self._write(
            self.shard.set_topics(
                self._topics(), version=self.version, now=self._now(), now_ms=START_MS
            )
        )

    def committed(self, group: str = "g") -> dict[TopicPartition, int]:
        return {
            TopicPartition(one.topic, one.partition): one.offset for one in self.shard.fetch(group)
        }

    def members(self, group: str = "g") -> dict[str, set[TopicPartition]]:
        """By member id, what it has, and what it is giving up."""
        view = self.shard.describe(group)
        return {
            member.member_id: {
                TopicPartition(share.topic, partition)
                for share in (*member.assigned, *member.revoking)
                for partition in share.partitions
            }
            for member in view.members
        }

    # -- inside

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _topics(self) -> dict[str, TopicInfo]:
        return {
            name: TopicInfo(topic.id, len(topic.logs))
            for name, topic in self.cluster.topics.items()
        }

    def _load(self) -> GroupShard:
        shard = GroupShard(GroupSettings(), ASSIGNORS)
        for key, value in self.records.items():
            shard.replay(key, value)
        self.version += 1
        step = shard.start(self._topics(), version=self.version, now=self._now(), now_ms=START_MS)
        self._keep(step.records)
        return shard

    def _keep(self, records: Sequence[GroupRecord]) -> None:
        for record in records:
            self.records[record.key] = record.value

    def _write(self, step: StateChange[Any]) -> Any:
        self._keep(step.records)
        for member in step.wake:
            if member in self.parked:
                self.parked[member].set()
        return step.result

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            self._write(self.shard.tick(now=self._now(), now_ms=START_MS, expiry_ms=START_MS))

    def _answering(self, answer: Callable[[Request], Message]) -> Callable[[Peer, Request], None]:
        def behave(peer: Peer, request: Request) -> None:
            try:
                self._check(peer)
                peer.write(peer.state.reply(request, answer(request)))
            except RaftlogError as error:
                peer.write(peer.state.fail(request, error))

        return behave

    def _check(self, peer: Peer) -> None:
        if peer.broker_id != self.broker:
            raise NotCoordinatorError(f"broker {self.broker} is the coordinator")

    def _find(self, peer: Peer, request: Request) -> None:
        message = request.message
        assert isinstance(message, wire.FindCoordinatorsRequest)
        address = self.cluster.addresses[self.noted]
        found = [
            wire.CoordinatorInfo(
                group=group, broker_id=self.noted, host=address.host, port=address.port
            )
            for group in message.groups
        ]
        peer.write(peer.state.reply(request, wire.FindCoordinatorsResponse(coordinators=found)))

    def _heartbeat(self, peer: Peer, request: Request) -> None:
        message = request.message
        assert isinstance(message, wire.GroupHeartbeatRequest)
        member = (message.group, message.member_id)
        if member in self.parked:
            self.parked.pop(member).set()
        beat = heartbeat_of(message)
        try:
            self._check(peer)
            answer = self._write(self.shard.heartbeat(beat, now=self._now(), now_ms=START_MS))
        except RaftlogError as error:
            peer.write(peer.state.fail(request, error))
            return
        if not message.wait_ms or answer.is_news_to(beat):
            peer.write(peer.state.reply(request, self._to_wire(answer)))
            return
        event = self.parked[member] = asyncio.Event()
        self.cluster.keep(self._answer_later(peer, request, event, message.wait_ms / 1_000))

    async def _answer_later(
        self, peer: Peer, request: Request, event: asyncio.Event, wait_s: float
    ) -> None:
        message = request.message
        assert isinstance(message, wire.GroupHeartbeatRequest)
        try:
            async with asyncio.timeout(wait_s):
                await event.wait()
        except TimeoutError:
            pass
        if self.parked.get((message.group, message.member_id)) is event:
            del self.parked[message.group, message.member_id]
        try:
            self._check(peer)
            beat = self.shard.beat(message.group, message.member_id)
        except RaftlogError as error:
            peer.write(peer.state.fail(request, error))
        else:
            peer.write(peer.state.reply(request, self._to_wire(beat)))

    def _to_wire(self, beat: HeartbeatResult) -> wire.GroupHeartbeatResponse:
        return answer_of(beat, self.version)

    def _commit(self, request: Request) -> Message:
        message = request.message
        assert isinstance(message, wire.OffsetCommitRequest)
        outcomes = self._write(
            self.shard.commit(
                message.group,
                message.member_id,
                message.member_epoch,
                [
                    Commit(one.topic, one.partition, one.offset, one.leader_epoch, one.metadata)
                    for one in message.offsets
                ],
                message.topic_ids,
                now=self._now(),
                now_ms=START_MS,
            )
        )
        return committed(message.offsets, outcomes)

    def _fetch(self, request: Request) -> Message:
        message = request.message
        assert isinstance(message, wire.OffsetFetchRequest)
        names = [TopicPartition(one.topic, one.partition) for one in message.partitions or ()]
        return wire.OffsetFetchResponse(
            offsets=[
                wire.FetchedOffset(
                    topic=one.topic,
                    partition=one.partition,
                    offset=one.offset,
                    leader_epoch=one.leader_epoch,
                    metadata=one.metadata,
                )
                for one in self.shard.fetch(message.group, names)
            ]
        )


def heartbeat_of(message: wire.GroupHeartbeatRequest) -> Heartbeat:
    return Heartbeat(
        group=message.group,
        member_id=message.member_id,
        member_epoch=message.member_epoch,
        sequence=message.sequence,
        topics=tuple(message.topics),
        owned=tuple(
            Share(share.topic, share.topic_id, tuple(share.partitions)) for share in message.owned
        ),
        session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=message.rebalance_timeout_ms,
        instance_id=message.instance_id,
        client_id=message.client_id,
        rack=message.rack,
        assignor=message.assignor,
    )


def answer_of(beat: HeartbeatResult, metadata_version: int = 0) -> wire.GroupHeartbeatResponse:
    return wire.GroupHeartbeatResponse(
        member_epoch=beat.member_epoch,
        assignment=[
            wire.TopicShare(
                topic=share.topic, topic_id=share.topic_id, partitions=list(share.partitions)
            )
            for share in beat.assignment
        ],
        metadata_version=metadata_version,
    )
