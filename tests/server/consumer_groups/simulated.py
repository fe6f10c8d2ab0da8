"""Consumer groups on three real brokers in a simulated world, asked by clients that know requests
and nothing more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.groups.coordinator import Coordinators
from raftlog.consumer_groups import partition_of_group
from raftlog.errors import RaftlogError
from raftlog.protocol import api as apis
from raftlog.protocol import records
from raftlog.protocol.api import Api
from raftlog.protocol.schema import Message
from raftlog.replication.partition_state import PartitionState
from raftlog.testing.simulator.world import ClientMachine
from raftlog.types import OFFSETS_TOPIC
from tests.server.cluster.simulated import Cluster

T = TypeVar("T")
GROUP = "g"


def coordinators_of(admin: AsyncAdmin) -> Coordinators:
    return admin._coordinators


class GroupCluster(Cluster):
    """With a topic ``t`` of four partitions once ``create`` was called."""

    def groups(self, work: Callable[[Coordinators], Awaitable[T]], *, broker: int = 0) -> T:
        """What ``work`` gives, on a machine of its own that begins by asking that broker."""
        return self.admin(lambda admin: work(coordinators_of(admin)), broker=broker)

    def ask(self, api: Api, message: Message, *, broker: int = 0) -> Any:
        return self.groups(lambda found: found.call(GROUP, api, message), broker=broker)

    def ask_once(self, number: int, api: Api, message: Message) -> Any:
        """What that very broker answers, or its error."""
        address = self.world.brokers[number - 1].address

        async def run(machine: ClientMachine) -> Any:
            admin = AsyncAdmin(bootstrap=str(address), host=machine.host())
            async with admin:
                connection = await admin._cluster.connection_to(address)
                asking = connection.start(api, message, timeout_ms=20_000)
                try:
                    return (await asking).message
                except RaftlogError as error:
                    return error

        return self.client(run)

    def find(self, *, broker: int = 0) -> int:
        """The coordinator's id, once there is one."""

        async def find(found: Coordinators) -> int:
            await found.call(GROUP, apis.OFFSET_FETCH, records.OffsetFetchRequest(group=GROUP))
            return (await found.find([GROUP]))[GROUP].broker_id

        return self.groups(find, broker=broker)

    def join(self, member: str = "m", **fields: Any) -> records.GroupHeartbeatResponse:
        return self.beat(member, records.JOIN_EPOCH, **fields)

    def beat(
        self, member: str, epoch: int, *, sequence: int = 1, **fields: Any
    ) -> records.GroupHeartbeatResponse:
        message = records.GroupHeartbeatRequest(
            group=GROUP,
            member_id=member,
            member_epoch=epoch,
            sequence=sequence,
            topics=["t"],
            **fields,
        )
        answer = self.ask(apis.GROUP_HEARTBEAT, message)
        assert isinstance(answer, records.GroupHeartbeatResponse)
        return answer

    def commit(self, offset: int, *, member: str = "", epoch: int = -1) -> None:
        to = records.OffsetToCommit(topic="t", partition=0, offset=offset)
        message = records.OffsetCommitRequest(
            group=GROUP, offsets=[to], member_id=member, member_epoch=epoch
        )
        answer = self.ask(apis.OFFSET_COMMIT, message)
        assert [part.failure for part in answer.partitions] == [None]

    def ask_via(self, number: int, offset: int) -> None:
        """Commit where that broker says that the coordinator is."""
        to = records.OffsetToCommit(topic="t", partition=0, offset=offset)
        message = records.OffsetCommitRequest(group=GROUP, offsets=[to])
        answer = self.ask(apis.OFFSET_COMMIT, message, broker=number)
        assert [part.failure for part in answer.partitions] == [None]

    def committed(self) -> int:
        answer = self.ask(apis.OFFSET_FETCH, records.OffsetFetchRequest(group=GROUP))
        (found,) = answer.offsets or [records.FetchedOffset("t", 0)]
        return int(found.offset)

    def described(self) -> records.GroupDescription:
        answer = self.ask(apis.DESCRIBE_GROUPS, records.DescribeGroupsRequest(groups=[GROUP]))
        description: records.GroupDescription = answer.groups[0]
        assert description.failure is None, description
        return description

    def state_of_group(self, node: int) -> PartitionState | None:
        """Of the group's partition, as that broker knows it."""
        topic = self.node(node).machine.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return None
        partition = partition_of_group(GROUP, len(topic.partitions))
        return self.node(node).partitions.state_of(topic.id, partition)

    def all_in_sync(self, node: int) -> None:
        """Wait until all three brokers have what the coordinator has."""

        def is_whole() -> bool:
            state = self.state_of_group(node)
            return state is not None and len(state.isr) == 3

        self.until(is_whole)
