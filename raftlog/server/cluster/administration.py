"""Changes to topics as commands of the ``cluster`` group, from whichever broker was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from raftlog.errors import (
    ClusterNotReadyError,
    CommitUnknownError,
    RaftlogError,
    UnknownTopicError,
    from_code,
)
from raftlog.replication.cluster_commands import (
    AddPartitions,
    AlterTopic,
    ClusterCommand,
    CreateTopic,
    DeleteTopic,
)
from raftlog.replication.cluster_state import ClusterMachine, Refused, TopicRecord
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.server.cluster.partitions import Partitions
from raftlog.server.consensus_plane import ConsensusPlane

# Commands of one request that are proposed together: they share the cluster group's round trips and
# syncs, and the elections of new partitions run side by side.
CHANGES_AT_ONCE: Final = 32
NO_TOPIC_ID: Final = "-"  # no topic has it
LEADERS_TIMEOUT_SECONDS: Final = 5.0
LEADERS_POLL_SECONDS: Final = 0.01


class ClusterTopics:
    """The ``TopicAuthority`` of a broker among others.

    A change is answered when it is committed and this broker has followed it; for a new topic, when
    its partitions have leaders (or after a while without: clients try again).
    """

    changes_at_once = CHANGES_AT_ONCE

    def __init__(
        self,
        machine: ClusterMachine,
        plane: ConsensusPlane,
        partitions: Partitions,
        *,
        new_id: Callable[[], str],
        loop: asyncio.AbstractEventLoop,
        default_replication_factor: int = 0,
    ) -> None:
        """``default_replication_factor`` 0: 3, or all brokers where there are fewer."""
        self._machine = machine
        self._plane = plane
        self._partitions = partitions
        self._new_id = new_id
        self._default_replication_factor = default_replication_factor
        self._loop = loop

    async def plan(
        self, name: str, *, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> TopicRecord:
        command = self._creation(name, partitions, replication_factor, config)
        rehearsal = ClusterMachine()
        rehearsal.restore(self._machine.snapshot())
        outcome = rehearsal.apply(command.encode())
        if isinstance(outcome, Refused):
            raise from_code(outcome.code, outcome.message)
        assert isinstance(outcome.value, TopicRecord)
        return outcome.value

    async def create(
        self, name: str, *, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> TopicRecord:
        creation = self._creation(name, partitions, replication_factor, config)
        try:
            await self._propose(creation)
        except CommitUnknownError:
            await self._propose(creation)  # with the same id: it is made once
        record = await self._seen(name)
        await self._until_led(record)
        return record

    async def delete(self, name: str) -> TopicRecord:
        """The topic that this broker knows by the name, and no later one of the same name.

        If it knows none, none is deleted, whatever is made until the group has decided.
        """
        record = self._machine.topics.get(name)
        deletion = DeleteTopic(name=name, topic_id=NO_TOPIC_ID if record is None else record.id)
        try:
            deleted = await self._propose(deletion)
        except UnknownTopicError as error:
            if record is None and name in self._machine.topics:
                raise ClusterNotReadyError(
                    f"this broker received topic {name!r} during the request. Delete it again"
                ) from error
            raise
        assert isinstance(deleted, TopicRecord)
        await self._partitions.until_seen(name)
        return deleted

    async def alter(self, name: str, changes: Mapping[str, str | None]) -> TopicRecord:
        await self._propose(AlterTopic(name=name, changes=dict(changes)))
        return await self._seen(name)

    async def add_partitions(self, name: str, total: int) -> TopicRecord:
        await self._propose(AddPartitions(name=name, total=total))
        record = await self._seen(name)
        await self._until_led(record)
        return record

    # -- inside

    def _creation(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> CreateTopic:
        return CreateTopic(
            name=name,
            topic_id=self._new_id(),
            partitions=partitions,
            replication_factor=replication_factor or self._default_replication_factor,
            overrides=dict(config),
        )

    async def _propose(self, command: ClusterCommand) -> object:
        """What the command gave. Raises its refusal, or what kept it from being decided."""
        outcome = await self._plane.propose(CLUSTER_GROUP, command.encode())
        if isinstance(outcome, Refused):
            raise from_code(outcome.code, outcome.message)
        return getattr(outcome, "value", None)

    async def _seen(self, name: str) -> TopicRecord:
        await self._partitions.until_seen(name)
        record = self._machine.topics.get(name)
        if record is None:
            raise RaftlogError(f"topic {name!r} was deleted during the request")
        return record

    async def _until_led(self, record: TopicRecord) -> None:
        deadline = self._loop.time() + LEADERS_TIMEOUT_SECONDS
        while self._loop.time() < deadline:
            states = [
                self._partitions.state_of(record.id, partition)
                for partition in range(len(record.partitions))
            ]
            if all(state is None or state.leader_boot for state in states):
                return
            await asyncio.sleep(LEADERS_POLL_SECONDS)
