"""Coordinators for a ``FakeCluster``: consumer groups that are looked at from outside.

Each group has its coordinator, and partition ``n`` of ``__consumer_offsets`` is led by broker
``n + 1``. Members do not heartbeat: a test says who they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from raftlog.errors import (
    GroupNotEmptyError,
    NotCoordinatorError,
    RaftlogError,
    UnknownGroupError,
)
from raftlog.protocol import records
from raftlog.protocol.connection import Request
from raftlog.protocol.schema import Failure, Message
from raftlog.types import OFFSETS_TOPIC, Buffer, TopicPartition
from tests.client.world import FakeCluster


@dataclass
class FakeGroup:
    """One group, as its coordinator has it."""

    name: str
    coordinator: int = 1
    state: str = "empty"
    members: list[records.MemberDescription] = field(default_factory=list)
    offsets: dict[TopicPartition, records.FetchedOffset] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)  # of the last commit

    def commit(self, tp: TopicPartition, offset: int, metadata: str = "") -> None:
        self.offsets[tp] = records.FetchedOffset(
            topic=tp.topic,
            partition=tp.partition,
            offset=offset,
            leader_epoch=3,
            metadata=metadata,
            committed_at_ms=7,
        )

    def join(
        self,
        member_id: str,
        assigned: Sequence[records.TopicShare] = (),
        *,
        target: Sequence[records.TopicShare] | None = None,
        topics: Sequence[str] = ("t",),
    ) -> None:
        self.state = "stable" if target is None else "reconciling"
        self.members.append(
            records.MemberDescription(
                member_id=member_id,
                instance_id=None,
                client_id="me",
                host="10.0.0.7",
                member_epoch=4,
                topics=list(topics),
                assigned=list(assigned),
                target=list(assigned if target is None else target),
                session_timeout_ms=45_000,
            )
        )

    def description(self) -> records.GroupDescription:
        return records.GroupDescription(
            group=self.name,
            state=self.state,
            group_epoch=5,
            assignor="uniform",
            coordinator=self.coordinator,
            members=self.members,
        )

    def check_empty(self) -> None:
        if self.members:
            raise GroupNotEmptyError(f"group {self.name!r} has members: stop its consumers first")


def share(topic: str, *partitions: int) -> records.TopicShare:
    return records.TopicShare(topic=topic, topic_id=f"{topic}-id", partitions=list(partitions))


class Coordination:
    """Has the brokers of a ``FakeCluster`` answer what is about groups."""

    def __init__(self, fake: FakeCluster) -> None:
        self.groups: dict[str, FakeGroup] = {}
        self.loading: dict[int, int] = {}  # broker -> so many more times it is still loading
        self.unaware: dict[int, int] = {}  # broker -> so many more times it leads nothing yet
        self._others = fake.answer
        self._fake = fake
        setattr(fake, "answer", self._answer)  # noqa: B010 - a method, for this one
        leaders = sorted(fake.addresses)
        fake.create(OFFSETS_TOPIC, len(leaders), leaders=leaders)

    def make(self, name: str, coordinator: int = 1) -> FakeGroup:
        return self.groups.setdefault(name, FakeGroup(name, coordinator))

    def _answer(self, broker_id: int, request: Request) -> tuple[Message, Sequence[Buffer]]:
        message = request.message
        if isinstance(message, records.FindCoordinatorsRequest):
            found = [self._coordinator(name) for name in message.groups]
            return records.FindCoordinatorsResponse(coordinators=found), ()
        if isinstance(message, records.ListGroupsRequest):
            return self._list(broker_id), ()
        if isinstance(message, records.DescribeGroupsRequest):
            described = [self._describe(broker_id, name) for name in message.groups]
            return records.DescribeGroupsResponse(groups=described), ()
        if isinstance(message, records.OffsetFetchRequest):
            group = self._group(broker_id, message.group)
            return records.OffsetFetchResponse(offsets=list(group.offsets.values())), ()
        if isinstance(message, records.OffsetCommitRequest):
            return self._commit(broker_id, message), ()
        if isinstance(message, records.DeleteGroupsRequest):
            return self._delete(broker_id, message), ()
        if isinstance(message, records.DeleteOffsetsRequest):
            return self._forget(broker_id, message), ()
        return self._others(broker_id, request)

    def _coordinator(self, name: str) -> records.CoordinatorInfo:
        broker_id = self.groups[name].coordinator if name in self.groups else 1
        address = self._fake.addresses[broker_id]
        return records.CoordinatorInfo(
            group=name, broker_id=broker_id, host=address.host, port=address.port
        )

    def _group(self, broker_id: int, name: str) -> FakeGroup:
        found = self.groups.get(name)
        if found is None:
            raise UnknownGroupError(f"no group {name!r}")
        if found.coordinator != broker_id:
            raise NotCoordinatorError(f"broker {found.coordinator} does")
        return found

    def _list(self, broker_id: int) -> records.ListGroupsResponse:
        loading = self.loading.get(broker_id, 0)
        if loading:
            self.loading[broker_id] = loading - 1
            return records.ListGroupsResponse(groups=[], loading=1)
        unaware = self.unaware.get(broker_id, 0)
        if unaware:
            self.unaware[broker_id] = unaware - 1
            return records.ListGroupsResponse(groups=[], partitions=[])
        leaders = self._fake.topics[OFFSETS_TOPIC].leaders
        return records.ListGroupsResponse(
            partitions=[number for number, leader in enumerate(leaders) if leader == broker_id],
            groups=[
                records.GroupListing(
                    group=group.name, state=group.state, members=len(group.members)
                )
                for group in self.groups.values()
                if group.coordinator == broker_id
            ],
        )

    def _describe(self, broker_id: int, name: str) -> records.GroupDescription:
        try:
            return self._group(broker_id, name).description()
        except RaftlogError as error:
            return records.GroupDescription(group=name, failure=Failure.of(error))

    def _commit(
        self, broker_id: int, message: records.OffsetCommitRequest
    ) -> records.OffsetCommitResponse:
        group = self.make(message.group, broker_id)
        group.check_empty()
        group.topic_ids = message.topic_ids
        for found in message.offsets:
            group.commit(TopicPartition(found.topic, found.partition), found.offset, found.metadata)
        return records.OffsetCommitResponse(
            partitions=[
                records.CommittedPartition(topic=found.topic, partition=found.partition)
                for found in message.offsets
            ]
        )

    def _delete(
        self, broker_id: int, message: records.DeleteGroupsRequest
    ) -> records.DeleteGroupsResponse:
        deleted = []
        for name in message.groups:
            failure = None
            try:
                self._group(broker_id, name).check_empty()
                del self.groups[name]
            except RaftlogError as error:
                failure = Failure.of(error)
            deleted.append(records.DeletedGroup(group=name, failure=failure))
        return records.DeleteGroupsResponse(groups=deleted)

    def _forget(
        self, broker_id: int, message: records.DeleteOffsetsRequest
    ) -> records.DeleteOffsetsResponse:
        group = self._group(broker_id, message.group)
        done = []
        for part in message.partitions:
            tp = TopicPartition(part.topic, part.partition)
            read = [m for m in group.members for s in m.assigned if tp.topic == s.topic]
            failure = Failure.of(GroupNotEmptyError(f"{tp} is read")) if read else None
            if not read:
                group.offsets.pop(tp, None)
            done.append(
                records.CommittedPartition(topic=tp.topic, partition=tp.partition, failure=failure)
            )
        return records.DeleteOffsetsResponse(partitions=done)
