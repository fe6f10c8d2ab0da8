"""What members of consumer groups and their operators ask a broker, as requests."""

from __future__ import annotations

import contextlib
from typing import Any

from raftlog.errors import (
    CoordinatorLoadingError,
)
from raftlog.protocol import api as apis
from raftlog.protocol import records
from raftlog.protocol.records import JOIN_EPOCH
from tests.server.harness import (
    Client,
    only,
)


class GroupClient:
    """What a member does, and an operator; ``sequence`` grows by itself."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._sequence = 0

    def find(self, *groups: str) -> list[records.CoordinatorInfo]:
        message = records.FindCoordinatorsRequest(groups=list(groups))
        answer: records.FindCoordinatorsResponse = self.client.ask(apis.FIND_COORDINATORS, message)
        return answer.coordinators

    def send_beat(self, member: str, epoch: int, **fields: Any) -> int:
        self._sequence += 1
        message = records.GroupHeartbeatRequest(
            group=fields.pop("group", "g"),
            member_id=member,
            member_epoch=epoch,
            sequence=self._sequence,
            topics=fields.pop("topics", ["t"]),
            **fields,
        )
        return self.client.send(apis.GROUP_HEARTBEAT, message)

    def beat(self, member: str, epoch: int, **fields: Any) -> records.GroupHeartbeatResponse:
        """The answer; asks again while the coordinator is loading."""
        while True:
            answer = self.client.answer(self.send_beat(member, epoch, **fields)).message
            if isinstance(answer, CoordinatorLoadingError):
                continue
            if isinstance(answer, Exception):
                raise answer
            assert isinstance(answer, records.GroupHeartbeatResponse)
            return answer

    def join(self, member: str, **fields: Any) -> records.GroupHeartbeatResponse:
        return self.beat(member, JOIN_EPOCH, **fields)

    def wait(self, known: records.GroupHeartbeatResponse) -> records.GroupHeartbeatResponse:
        """What a heartbeat of ``m`` that knows no more than this is answered with, and not soon
        if there is nothing new.
        """
        return self.beat("m", known.member_epoch, owned=known.assignment, wait_ms=15_000)

    def commit(
        self, *offsets: records.OffsetToCommit, member: str = "", epoch: int = -1, **fields: Any
    ) -> list[records.CommittedPartition]:
        message = records.OffsetCommitRequest(
            group=fields.pop("group", "g"),
            offsets=list(offsets),
            member_id=member,
            member_epoch=epoch,
            **fields,
        )
        answer: records.OffsetCommitResponse = self.client.ask(apis.OFFSET_COMMIT, message)
        return answer.partitions

    def fetch(self, *partitions: int, group: str = "g") -> dict[int, int]:
        """Offsets of ``t``'s partitions; of none: all."""
        names = [records.PartitionName(topic="t", partition=number) for number in partitions]
        message = records.OffsetFetchRequest(group=group, partitions=names or None)
        answer: records.OffsetFetchResponse = self.client.ask(apis.OFFSET_FETCH, message)
        return {one.partition: one.offset for one in answer.offsets}

    def fetch_when_read(self, *, group: str = "g") -> dict[int, int]:
        """The same, as soon as the coordinator has read its state."""
        while True:
            with contextlib.suppress(CoordinatorLoadingError):
                return self.fetch(group=group)

    def listed(self) -> dict[str, records.GroupListing]:
        answer: records.ListGroupsResponse = self.client.ask(
            apis.LIST_GROUPS, records.ListGroupsRequest()
        )
        assert answer.loading == 0
        return {one.group: one for one in answer.groups}

    def described(self, group: str = "g") -> records.GroupDescription:
        message = records.DescribeGroupsRequest(groups=[group])
        answer: records.DescribeGroupsResponse = self.client.ask(apis.DESCRIBE_GROUPS, message)
        return only(answer.groups)

    def delete(self, *groups: str) -> list[records.DeletedGroup]:
        message = records.DeleteGroupsRequest(groups=list(groups))
        answer: records.DeleteGroupsResponse = self.client.ask(apis.DELETE_GROUPS, message)
        return answer.groups


def at(partition: int, offset: int, **fields: Any) -> records.OffsetToCommit:
    return records.OffsetToCommit(topic="t", partition=partition, offset=offset, **fields)


def partitions_of(answer: records.GroupHeartbeatResponse) -> set[int]:
    return {number for share in answer.assignment for number in share.partitions}


def group_client(client: Client) -> GroupClient:
    """With a topic ``t`` of four partitions, and a coordinator that has read its state."""
    client.create("t", 4)
    found = GroupClient(client)
    found.find("g")
    while found_loading(client):
        pass
    return found


def found_loading(client: Client) -> int:
    answer: records.ListGroupsResponse = client.ask(apis.LIST_GROUPS, records.ListGroupsRequest())
    return answer.loading
