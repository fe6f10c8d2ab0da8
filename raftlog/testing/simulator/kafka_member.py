"""Simulated members of a classic consumer group: they join, get partitions, and commit offsets.

All partitions are released before each rebalance, and assigned in turn. A member owns its
partitions until its session can have ended: for the session timeout after it sent the last request
to the coordinator that succeeded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from raftlog.config import Address
from raftlog.consumer_groups.consumer_protocol import assigned_partitions
from raftlog.errors import InstanceFencedError, RaftlogError
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.api import Api
from raftlog.kafka.codec import Message
from raftlog.testing.kafka_wire import assignment, subscription
from raftlog.testing.simulator.kafka import (
    REQUEST_TIMEOUT_S,
    RETRY_S,
    CodeError,
    KafkaClient,
    KafkaConsumer,
)
from raftlog.types import ConsumerRecord, Offset, OffsetAndMetadata, TopicPartition

REBALANCE_TIMEOUT_MS: Final = 3_000
HEARTBEATS_PER_SESSION: Final = 4
PROTOCOL: Final = "roundrobin"

# A member that gets one of these must look for the coordinator again.
OF_COORDINATOR: Final = (
    errors.COORDINATOR_LOAD_IN_PROGRESS,
    errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_COORDINATOR,
)
# The coordinator has removed the member, or started a generation without it.
EXPELLED: Final = (errors.ILLEGAL_GENERATION, errors.UNKNOWN_MEMBER_ID)

_Join = codec.structs("request", apis.JOIN_GROUP.key)
_Sync = codec.structs("request", apis.SYNC_GROUP.key)
_FetchOffsets = codec.structs("request", apis.OFFSET_FETCH.key)
_CommitOffsets = codec.structs("request", apis.OFFSET_COMMIT.key)
_Heartbeat = codec.structs("request", apis.HEARTBEAT.key)
_Leave = codec.structs("request", apis.LEAVE_GROUP.key)
_FindCoordinator = codec.structs("request", apis.FIND_COORDINATOR.key)

OnAssign: TypeAlias = Callable[[Collection[TopicPartition]], None]
OnRevoke: TypeAlias = Callable[[Collection[TopicPartition]], Awaitable[None]]


class KafkaMember(KafkaConsumer):
    """See ``AsyncConsumer`` with a group. Callbacks run within ``poll`` and ``close``."""

    def __init__(
        self,
        client: KafkaClient,
        coordination: KafkaClient,
        *,
        group: str,
        instance_id: str | None,
        session_timeout_ms: int,
        **settings: Any,
    ) -> None:
        """``coordination``: another client, for requests to the coordinator. ``settings``: of the
        consumer.
        """
        super().__init__(client, auto_offset_reset="earliest", **settings)
        self._to_group = coordination
        self._group = group
        self._instance_id = instance_id
        self._session_ms = session_timeout_ms
        self._coordinator: Address | None = None
        self._member_id = ""
        self._generation = -1
        self._lease_ends = -1.0
        self._must_join = True
        self._is_expelled = False
        self._heart: asyncio.Task[None] | None = None
        self._topics: list[str] = []
        self._on_assign: OnAssign
        self._on_revoke: OnRevoke
        self._on_lost: OnAssign

    async def subscribe(
        self,
        topics: list[str],
        *,
        on_assign: OnAssign,
        on_revoke: OnRevoke,
        on_lost: OnAssign,
    ) -> None:
        self._topics = topics
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost

    @property
    def topic_id(self) -> str:
        """ID of the topic of the assigned partitions."""
        return self._topic_id.hex()

    async def poll(self, timeout_ms: int, max_records: int) -> list[ConsumerRecord]:
        self._check_lease()
        if self._must_join:
            await self._release()
            await self._join()
            return []
        if not self._positions:
            await asyncio.sleep(timeout_ms / 1_000)
        records = await super().poll(timeout_ms, max_records)
        self._check_lease()
        return records if self._owned else []

    @property
    def _owned(self) -> list[TopicPartition]:
        return [self._client.part(number) for number in self._positions]

    def _check_lease(self) -> None:
        """Lose all partitions if another member may have them."""
        if not (self._is_expelled or self._client.loop.time() >= self._lease_ends):
            return
        self._stop_heart()
        lost = self._owned
        self._forget()
        self._must_join = True
        if lost:
            self._on_lost(lost)

    def _forget(self) -> None:
        for known in (self._positions, self._records, self._last_epochs, self._validated):
            known.clear()

    async def _release(self) -> None:
        """Release all partitions, before a rebalance or the end."""
        if self._positions:
            await self._on_revoke(self._owned)
            self._forget()
        self._stop_heart()

    # -- requests to the coordinator

    async def _ask(self, api: Api, version: int, message: Message, wait_s: float = 0.0) -> Message:
        """Send a request to the coordinator. ``wait_s``: time for which it may wait for members."""
        try:
            if self._coordinator is None:
                self._coordinator = await self._find_coordinator()
            connection = await self._to_group.connection(self._coordinator)
            return await connection.send(
                api, version, message, timeout_s=REQUEST_TIMEOUT_S + wait_s
            )
        except RaftlogError:
            self._coordinator = None
            raise

    async def _find_coordinator(self) -> Address:
        wanted = _FindCoordinator.root(key=self._group)
        found = await self._to_group.ask_any(apis.FIND_COORDINATOR, wanted)
        if found.error_code:
            raise CodeError(found.error_code)
        return Address(found.host, found.port)

    def _check(self, code: int) -> None:
        """Raise the error of a response, and note what it means for the member."""
        if code in OF_COORDINATOR:
            self._coordinator = None
        elif code in EXPELLED:
            self._is_expelled = True
            if code == errors.UNKNOWN_MEMBER_ID:
                self._member_id = ""
        elif code == errors.FENCED_INSTANCE_ID:
            self._is_expelled = True
            raise InstanceFencedError(f"another member is {self._instance_id}")
        elif code == errors.REBALANCE_IN_PROGRESS:
            self._must_join = True
        elif code == errors.UNKNOWN_TOPIC_ID:
            self._client.is_stale = True
        if code:
            raise CodeError(code)

    # -- joining

    async def _join(self) -> None:
        """Try to join once, and get partitions. Waits after a failure."""
        loop = self._client.loop
        try:
            await self._client.refresh()
            self._topic_id = self._client.topic_id
            joined = await self._ask_to_join()
            sent_at = loop.time()
            numbers = await self._sync(joined)
            positions = await self._committed(numbers)
        except InstanceFencedError:
            raise
        except RaftlogError:
            await asyncio.sleep(RETRY_S)
            return
        self._generation = joined.generation_id
        self._must_join = self._is_expelled = False
        self._lease_ends = sent_at + self._session_ms / 1_000
        if loop.time() >= self._lease_ends:
            return  # the next poll joins again
        self._heart = loop.create_task(self._beat())
        self._positions = positions
        self._on_assign(self._owned)

    async def _ask_to_join(self) -> Message:
        protocol = _Join.JoinGroupRequestProtocol(
            name=PROTOCOL,
            metadata=subscription(*self._topics),
        )
        wanted = _Join.root(
            group_id=self._group,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        joined = await self._ask(apis.JOIN_GROUP, 9, wanted, REBALANCE_TIMEOUT_MS / 1_000)
        if joined.error_code == errors.MEMBER_ID_REQUIRED:
            wanted.member_id = joined.member_id
            joined = await self._ask(apis.JOIN_GROUP, 9, wanted, REBALANCE_TIMEOUT_MS / 1_000)
        self._check(joined.error_code)
        self._member_id = joined.member_id
        return joined

    async def _sync(self, joined: Message) -> Sequence[int]:
        """Return the partitions of this member. The leader assigns them to all members first."""
        names = sorted(member.member_id for member in joined.members)
        is_leader = joined.leader == self._member_id and not joined.skip_assignment
        given = [
            _Sync.SyncGroupRequestAssignment(
                member_id=name,
                assignment=assignment(
                    self._client.topic, *range(place, self._client.partitions, len(names))
                ),
            )
            for place, name in enumerate(names if is_leader else ())
        ]
        wanted = _Sync.root(
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            protocol_type="consumer",
            protocol_name=PROTOCOL,
            assignments=given,
        )
        synced = await self._ask(apis.SYNC_GROUP, 5, wanted, REBALANCE_TIMEOUT_MS / 1_000)
        self._check(synced.error_code)
        mine = assigned_partitions(synced.assignment)
        assert mine is not None, synced.assignment
        return mine.get(self._client.topic, ())

    async def _committed(self, numbers: Sequence[int]) -> dict[int, Offset | None]:
        """Return the committed offset of each partition; None if there is none."""
        if not numbers:
            return {}
        topic = _FetchOffsets.OffsetFetchRequestTopics(
            topic_id=self._topic_id,
            partition_indexes=list(numbers),
        )
        group = _FetchOffsets.OffsetFetchRequestGroup(group_id=self._group, topics=[topic])
        asked = _FetchOffsets.root(groups=[group])
        (found,) = (await self._ask(apis.OFFSET_FETCH, 10, asked)).groups
        self._check(found.error_code)
        positions: dict[int, Offset | None] = {}
        for part in found.topics[0].partitions:
            self._check(part.error_code)
            known = part.committed_offset
            positions[part.partition_index] = known if known >= 0 else None
        return positions

    # -- membership

    async def _beat(self) -> None:
        """Send heartbeats until the task is cancelled. ``poll`` acts on what they find."""
        loop, generation = self._client.loop, self._generation
        while True:
            await asyncio.sleep(self._session_ms / 1_000 / HEARTBEATS_PER_SESSION)
            wanted = _Heartbeat.root(
                group_id=self._group,
                generation_id=generation,
                member_id=self._member_id,
                group_instance_id=self._instance_id,
            )
            sent_at = loop.time()
            try:
                found = await self._ask(apis.HEARTBEAT, 4, wanted)
                if found.error_code in (errors.NONE, errors.REBALANCE_IN_PROGRESS):
                    self._lease_ends = sent_at + self._session_ms / 1_000
                self._check(found.error_code)
            except RaftlogError:
                if self._is_expelled:
                    return

    def _stop_heart(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
            self._heart = None

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout_ms: int = 0,  # noqa: ARG002
    ) -> None:
        """Commit once. ``timeout_ms`` is ignored: a request has its own timeout."""
        parts = [
            _CommitOffsets.OffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=given.offset,
                committed_metadata="",
            )
            for partition, given in offsets.items()
        ]
        topic = _CommitOffsets.OffsetCommitRequestTopic(
            topic_id=self._topic_id,
            partitions=parts,
        )
        wanted = _CommitOffsets.root(
            group_id=self._group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            topics=[topic],
        )
        found = await self._ask(apis.OFFSET_COMMIT, 10, wanted)
        for part in found.topics[0].partitions:
            self._check(part.error_code)

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> asyncio.Task[None]:
        return self._client.loop.create_task(self.commit(offsets))

    async def close(self, timeout_ms: int = 0) -> None:  # noqa: ARG002 - a request has a timeout
        """Release all partitions, and leave the group, unless the membership is static."""
        self._check_lease()
        await self._release()
        if self._member_id and self._instance_id is None and not self._is_expelled:
            member = _Leave.MemberIdentity(member_id=self._member_id)
            wanted = _Leave.root(group_id=self._group, members=[member])
            with suppress(RaftlogError):
                await self._ask(apis.LEAVE_GROUP, 5, wanted)
        self._to_group.close()
        await super().close()
