"""Partitions that this broker votes on or stores: open, close, and set their role.

Topics come from the state of the ``cluster`` group, the leader of a partition from the state of
the partition's own group. A host changes its role only here, and only by a committed state (S24).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from raftlog.config import BrokerConfig
from raftlog.consensus import GroupStatus
from raftlog.errors import (
    NotLeaderError,
    StorageFailedError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.replication.cluster_records import first_state
from raftlog.replication.cluster_state import ClusterMachine, TopicRecord
from raftlog.replication.events import partition_events
from raftlog.replication.partition_state import (
    PartitionMachine,
    PartitionState,
)
from raftlog.server.administration import quiet
from raftlog.server.cluster.backlog import Backlog
from raftlog.server.cluster.hosted_partition import (
    CopyChange,
    Event,
    HostedPartition,
    group_id,
)
from raftlog.server.cluster.liveness import Incarnation, Liveness
from raftlog.server.cluster.role_manager import RoleManager
from raftlog.server.cluster.state_broadcast import StateBroadcast
from raftlog.server.cluster.surveys import Surveys
from raftlog.server.consensus_plane import ConsensusPlane
from raftlog.server.partition import HostServices, Partition
from raftlog.server.topic_table import HostedTopic, TopicTable
from raftlog.server.workers import Workers
from raftlog.storage import Log, Store
from raftlog.types import TopicPartition

logger = logging.getLogger(__name__)

HOSTS_PER_TURN: Final = 50  # hosts opened before the event loop serves other work
RETRY_SECONDS: Final = 1.0  # seconds until a failed change is retried; usually the disk is full


class Partitions:
    """``reconcile`` applies the cluster's state to this broker, topic by topic."""

    def __init__(
        self,
        broker_id: int,
        me: Incarnation,
        *,
        config: BrokerConfig,
        store: Store,
        machine: ClusterMachine,
        plane: ConsensusPlane,
        liveness: Liveness,
        topics: TopicTable,
        services: HostServices,
        worker: Workers,
        state_broadcast: StateBroadcast,
        surveys: Surveys,
        on_role: Callable[[HostedPartition], None],
    ) -> None:
        """``on_role``: called when a host begins to lead, begins to follow, or is removed."""
        self._broker_id = broker_id
        self._me = me
        self._store = store
        self._machine = machine
        self._plane = plane
        self._topics = topics
        self._services = services
        self._worker = worker
        self._state_broadcast = state_broadcast
        self._on_role = on_role
        self.roles = RoleManager(
            broker_id,
            me,
            lag_max_seconds=config.replica_lag_time_max_ms / 1_000,
            replacement_delay_seconds=config.replica_replacement_delay_ms / 1_000,
            machine=machine,
            plane=plane,
            liveness=liveness,
            services=services,
            surveys=surveys,
            effects=self,
        )
        self.hosted: dict[str, HostedPartition] = {}  # by Raft group
        self._by_topic: dict[str, list[HostedPartition]] = {}  # by topic id
        self._stale: dict[str, None] = {}  # topic names to check
        self._changed = Backlog(services.loop, self._apply)  # with a new state
        self._strays_due = self._knows_all = False
        # Partitions whose copy must be created, replaced or removed:
        self._copy_changes: dict[HostedPartition, None] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._failed_topics: dict[str, None] = {}  # to be retried
        self._failed_copies: dict[HostedPartition, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._stopped = False

    # -- queries

    @property
    def is_ready(self) -> bool:
        """Whether every replica that the cluster's state assigns to this broker is open."""
        return self._task is None and not self._stale

    def leading(self) -> list[HostedPartition]:
        """Return the partitions that this broker leads."""
        return [m for m in self.hosted.values() if m.host is not None and m.host.leadership]

    def state_of(self, topic_id: str, partition: int) -> PartitionState | None:
        """Return the known state of a partition, whether or not this broker is a voter of it.
        None if the partition does not exist.
        """
        hosted = self.hosted.get(group_id(topic_id, partition))
        received = self._state_broadcast.received.get((topic_id, partition))
        if hosted is None:
            return received or self._assigned_state(topic_id, partition)
        if received is not None and self._is_outdated(hosted, received):
            return received
        if self._is_known(hosted):
            return hosted.state
        return replace(hosted.state, leader=None)  # an outdated state from before this start

    def _assigned_state(self, topic_id: str, partition: int) -> PartitionState | None:
        """Return the replicas that the cluster's state assigns, without a leader: no broker has
        sent the partition's state yet.
        """
        record = self._machine.topic_by_id(topic_id)
        if record is None or partition >= len(record.partitions):
            return None
        assigned, first = record.partitions[partition], first_state(record.birth(partition))
        in_sync = {id_: disk for id_, disk in first.isr.items() if id_ in assigned.replicas}
        return replace(
            first,
            replicas=assigned.replicas,
            witnesses=assigned.witnesses,
            leader=None,
            leader_boot=0,
            isr=in_sync,
        )

    def _is_outdated(self, hosted: HostedPartition, received: PartitionState) -> bool:
        """Whether this broker has no vote, so receives no commands, and ``received`` is newer."""
        status = self._status(hosted)
        is_voter = status is not None and status.role != "observer"
        return not is_voter and received.version > hosted.state.version

    def _is_known(self, hosted: HostedPartition) -> bool:
        """Whether the group's state was received in this incarnation: a journal can end
        anywhere.
        """
        if not hosted.is_known:
            status = self._status(hosted)
            if status is None:
                return False
            heard = status.leader is not None and status.commit_index > 1
            hosted.is_known = heard and status.applied_index >= status.commit_index
        return hosted.is_known

    def _status(self, hosted: HostedPartition) -> GroupStatus | None:
        """None when the group is not open, because consensus has stopped."""
        try:
            return self._plane.status(hosted.group_id)
        except KeyError:
            return None

    def is_hosted(self, hosted: HostedPartition) -> bool:
        """Whether the partition has not been deleted since."""
        return self.hosted.get(hosted.group_id) is hosted

    def find(self, topic_id: str, partition: int) -> HostedPartition | None:
        return self.hosted.get(group_id(topic_id, partition))

    # -- the cluster's state

    def schedule_topics(self, names: Iterable[str]) -> None:
        """Note topics that changed in the cluster's state."""
        for name in names:
            self._stale[name] = None
        if self._task is None and self._is_needed and not self._stopped:
            self._task = self._services.loop.create_task(self._reconcile())

    @property
    def _is_needed(self) -> bool:
        return bool(self._stale or self._copy_changes or self._strays_due)

    def schedule_copy_change(self, hosted: HostedPartition) -> None:
        """Schedule a change of the partition's copy; ``_change_copy`` determines which."""
        self._copy_changes[hosted] = None
        self.schedule_topics(())

    def delete_strays(self) -> None:
        """Remove copies of topics that were deleted, or recreated, while this broker was down.

        Call this once this broker has applied all changes up to its registration. Before that, an
        unknown topic may be one that this broker has not received yet (S19).
        """
        self._strays_due = self._knows_all = True
        self.schedule_topics(())

    async def until_seen(self, name: str) -> None:
        """Return once this broker has applied all committed changes of the topic."""
        if name in self._stale or self._task is not None:
            future = self._services.loop.create_future()
            self._waiting.append((name, future))
            await future

    async def _reconcile(self) -> None:
        try:
            while self._is_needed and not self._stopped:
                if self._stale:
                    name = next(iter(self._stale))
                    del self._stale[name]
                    if not await self._try(f"topic {name}", self._reconcile_topic(name)):
                        self._failed_topics[name] = None
                        self._strays_due |= self._knows_all  # of a deletion that was interrupted
                    self._notify_waiters(name)
                elif self._copy_changes:
                    hosted = next(iter(self._copy_changes))
                    del self._copy_changes[hosted]
                    if not await self._try(str(hosted), self._change_copy(hosted)):
                        self._failed_copies[hosted] = None
                else:
                    self._strays_due = not await self._try("old copies", self._delete_strays())
                    if self._strays_due:
                        break
        finally:
            self._task = None
            for name in {name for name, _ in self._waiting}:
                self._notify_waiters(name)
            if self._failed_topics or self._failed_copies or self._strays_due:
                self._retry_later()

    async def _try(self, what: str, work: Coroutine[Any, Any, None]) -> bool:
        """Return whether it succeeded. A failure of one topic does not affect the others; it is
        retried.
        """
        try:
            await work
        except StorageFailedError as error:
            self._stopped = True
            self._services.on_failed(error)
        except Exception:  # also an internal error: no caller would report it
            logger.exception("topic or replica update failed, retrying: object=%s", what)
            return False
        return True

    def _retry_later(self) -> None:
        if self._retry is None and not self._stopped:
            self._retry = self._services.loop.call_later(RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        names, self._failed_topics = self._failed_topics, {}
        partitions, self._failed_copies = self._failed_copies, {}
        self._copy_changes.update(partitions)
        self.schedule_topics(names)

    def _notify_waiters(self, name: str) -> None:
        """Notify the waiters that the topic was checked."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each[0] != name:
                self._waiting.append(each)
            elif not each[1].done():
                each[1].set_result(None)

    async def _reconcile_topic(self, name: str) -> None:
        record = self._machine.topics.get(name)
        held = self._topics.get(name)
        if held is not None and (record is None or held.id != record.id):
            await self._delete_topic(held)
            held = None
        if record is None:
            return
        if held is None:
            held = HostedTopic(
                record.name,
                record.id,
                record.config,
                record.overrides,
                [None] * len(record.partitions),  # listed at once, without leaders yet
            )
            self._topics.add(held)
        held.config, held.overrides = record.config, record.overrides
        for host in held.hosts:
            if host is not None:
                host.log.config = record.config
                host.reconsider()
        for hosted in self._by_topic.get(record.id, ()):
            hosted.replication_factor = record.replication_factor
            self.schedule(hosted)
        self._topics.extend(held, [None] * (len(record.partitions) - len(held.hosts)))
        new = [p for p in range(len(record.partitions)) if self._is_missing(record, p)]
        if new:
            await self._open(record, new)
        else:
            await self._worker.run(
                lambda: self._store.update_topic(
                    record.id,
                    overrides=record.overrides,
                    total_partitions=len(record.partitions),
                )
            )

    def _is_missing(self, record: TopicRecord, partition: int) -> bool:
        """Whether this broker must vote on or store the partition, and has not opened it yet."""
        if group_id(record.id, partition) in self.hosted:
            return False
        voters = record.birth(partition).directories
        if self._broker_id in (*voters, *record.partitions[partition].voters):
            return True
        # A former voter keeps its generation: it has to offer it to the others, and must never vote
        # in an older one.
        return self._plane.has_journaled(group_id(record.id, partition))

    async def _open(self, record: TopicRecord, new: list[int]) -> None:
        """Open partitions: vote where this broker is a voter, store where it is a replica."""
        await self._store_copies(
            record, [p for p in new if self._broker_id in record.partitions[p].replicas]
        )
        for number, partition in enumerate(new):
            hosted = self._open_group(record, partition)
            if hosted.is_current and hosted.host is not None and hosted.host.log.doubt:
                await self._resolve(hosted, hosted.host)
            if number % HOSTS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _open_group(self, record: TopicRecord, partition: int) -> HostedPartition:
        birth = record.birth(partition)
        base = first_state(birth).encode()
        machine = PartitionMachine(base)
        log = self._copy_of(record, partition)
        hosted = HostedPartition(
            record.name, record.id, partition, record.replication_factor, machine
        )
        self.hosted[hosted.group_id] = hosted
        self._by_topic.setdefault(record.id, []).append(hosted)
        if log is not None:
            self._attach(hosted, log)
        hosted.noted = machine.state
        # This incarnation was a voter at the creation, so it opens the group for the first time:
        # the base is the newest state that it can know. Other incarnations open it later.
        hosted.is_known = self._me.boot == birth.boots.get(self._broker_id) and (
            self._me.directory_id == birth.directories[self._broker_id]
        )
        machine.on_change = lambda: self._state_applied(hosted)
        self._plane.open_group(
            hosted.group_id,
            machine,
            voters=birth.directories,
            base=base,
            needs_leader=not hosted.state.leader_boot,
        )
        status = self._status(hosted)
        # An earlier incarnation can have led, or followed, by a base that names a leader.
        is_first = hosted.is_known or not hosted.state.leader_boot
        if status is not None and status.term == 0 and is_first:
            hosted.on(Event.FOUNDED)
        self.schedule(hosted)
        return hosted

    def _copy_of(self, record: TopicRecord, partition: int) -> Log | None:
        """Return this broker's copy of the partition, possibly left from when it was a replica."""
        try:
            return self._store.hosted_log(record.id, partition)
        except UnknownPartitionError:
            return None

    async def _store_copies(self, record: TopicRecord, partitions: list[int]) -> None:
        """Open this broker's copies of partitions; create missing ones empty."""
        await self._worker.run(
            lambda: self._store.host_partitions(
                record.name,
                record.id,
                partitions,
                total_partitions=len(record.partitions),
                overrides=record.overrides,
            )
        )

    def _attach(self, hosted: HostedPartition, log: Log) -> None:
        for note in log.notes:
            logger.warning("log recovery: partition=%s note=%s", hosted, note)
        if log.damage and not log.is_torn:
            logger.error("log corrupt: partition=%s reason=%s", hosted, log.damage)
        elif log.damage or log.doubt:
            logger.warning(
                "copy may lack acknowledged records: partition=%s end_offset=%d reason=%s",
                hosted,
                log.readable_end_offset,
                log.damage or log.doubt,
            )
        hosted.host = Partition(
            TopicPartition(hosted.topic, hosted.partition),
            log,
            self._services.of(log),
            topic_id=hosted.topic_id,
        )
        held = self._topics.get(hosted.topic)
        if held is not None and held.id == hosted.topic_id:
            held.hosts[hosted.partition] = hosted.host

    async def _delete_topic(self, held: HostedTopic) -> None:
        """Stop serving a deleted topic, then remove its files."""
        self._topics.remove(held.name)
        self._state_broadcast.forget(held.id)
        partitions = self._by_topic.pop(held.id, [])
        reason = UnknownTopicError(f"topic {held.name!r} was deleted")
        hosts = [hosted.host for hosted in partitions if hosted.host is not None]
        for hosted in partitions:
            self.hosted.pop(hosted.group_id)
            self._plane.close_group(hosted.group_id, forget=True)
        for host in hosts:
            host.close(reason)
        for hosted in partitions:
            self._on_role(hosted)
        await quiet(hosts)
        stored = [hosted.partition for hosted in partitions if hosted.host is not None]
        await self._worker.run(partial(self._store.drop_partitions, held.id, stored))
        logger.info("topic deleted: topic=%s", held.name)

    async def _delete_strays(self) -> None:
        for topic, partition, _log in list(self._store.hosted()):
            if self._machine.topic_by_id(topic.id) is None:
                logger.warning(
                    "replica removed: partition=%s:%d reason=topic_deleted", topic.name, partition
                )
                await self._worker.run(partial(self._store.drop_partitions, topic.id, [partition]))

    # -- a partition's state

    def _state_applied(self, hosted: HostedPartition) -> None:
        """Record the events of a new state, unless it is replayed from the journal."""
        before, hosted.noted = hosted.noted, hosted.state
        if hosted.is_known and before is not None:
            at_ms = self._services.clock.wall_ms()
            place = hosted.topic, hosted.topic_id, hosted.partition
            for event in partition_events(*place, before, hosted.state):
                self._services.events.add(event, at_ms)
        self.schedule(hosted)

    def role_changed(self, hosted: HostedPartition) -> None:
        self._on_role(hosted)

    def schedule(self, hosted: HostedPartition) -> None:
        """Apply the new state soon: of several changes, only the last one counts."""
        hosted.settled = None
        self._changed.add([hosted])

    def _apply(self, changed: list[HostedPartition]) -> None:
        partitions = list(filter(self.is_hosted, changed))
        for hosted in partitions:
            self.roles.poll(hosted)
        self._state_broadcast.send(partitions)

    async def _change_copy(self, hosted: HostedPartition) -> None:
        """Do the work that waits for the disk: create, replace or remove a copy.

        Determines the work again from the current state, which may have changed. A failed attempt
        may have closed the host: the next attempt replaces it.
        """
        record = self._machine.topic_by_id(hosted.topic_id)
        if hosted.group_id not in self.hosted or record is None:
            return
        host, change = hosted.host, self.roles.copy_change(hosted)
        if change is CopyChange.CREATE:
            await self._store_copies(record, [hosted.partition])
            self._attach(hosted, self._store.hosted_log(hosted.topic_id, hosted.partition))
        elif change is CopyChange.DELETE:
            await self._delete_copy(hosted)
        elif change is not None:
            assert host is not None
            if change is CopyChange.ACCEPT:
                logger.error(
                    "unclean leader: partition=%s epoch=%d log_end_offset=%d reason=%s",
                    hosted,
                    hosted.state.leader_epoch,
                    host.log.readable_end_offset,
                    host.log.damage or host.log.doubt,
                )
            if change is CopyChange.REPLACE and host.log.damage and not host.log.is_torn:
                await self._quarantine(hosted, host)
            else:
                await self._resolve(hosted, host)
        self.schedule(hosted)

    async def _quarantine(self, hosted: HostedPartition, host: Partition) -> None:
        host.close(
            NotLeaderError(f"{hosted}: the copy of this broker is corrupt and is being replaced")
        )
        self._on_role(hosted)
        await quiet([host])
        path = await self._worker.run(
            lambda: self._store.quarantine(hosted.topic_id, hosted.partition)
        )
        log = self._store.hosted_log(hosted.topic_id, hosted.partition)
        logger.error(
            "corrupt replica quarantined, copying again: partition=%s path=%s", hosted, path
        )
        self._attach(hosted, log)
        hosted.fenced_in = None

    async def _resolve(self, hosted: HostedPartition, host: Partition) -> None:
        """Continue with the records of the copy. The leader has the missing ones, or no replica
        has.
        """
        if host.log.is_torn:
            host.close(
                NotLeaderError(f"{hosted}: the end of the copy of this broker is being truncated")
            )
            self._on_role(hosted)
            await quiet([host])
        log = await self._worker.run(lambda: self._store.resolve(hosted.topic_id, hosted.partition))
        if log is not host.log:
            self._attach(hosted, log)
        hosted.fenced_in = None

    async def _delete_copy(self, hosted: HostedPartition) -> None:
        host, held = hosted.host, self._topics.get(hosted.topic)
        if host is not None:  # otherwise an earlier attempt failed
            host.close(NotLeaderError(f"{hosted}: this broker is no longer a replica"))
            self._on_role(hosted)
            if held is not None and held.id == hosted.topic_id:
                held.hosts[hosted.partition] = None
            hosted.host = None
            await quiet([host])
        await self._remove_files(hosted)
        logger.info("replica removed: partition=%s", hosted)

    async def _remove_files(self, hosted: HostedPartition) -> None:
        await self._worker.run(
            partial(self._store.drop_partitions, hosted.topic_id, [hosted.partition])
        )

    def damaged(self, host: Partition, reason: str) -> None:
        """Replace a copy that is corrupt, or does not fit the leader's, and copy it again (P6)."""
        hosted = self.find(host.topic_id, host.topic_partition.partition)
        if hosted is None or hosted.host is not host or host.log.damage:
            return
        logger.error("log corrupt: partition=%s reason=%s", hosted, reason)
        host.log.note_damage(reason, offset=host.high_watermark)
        self.roles.poll(hosted)

    def schedule_host(self, host: Partition) -> None:
        """Check the role of a host again: corruption was found in its log."""
        hosted = self.find(host.topic_id, host.topic_partition.partition)
        if hosted is not None and hosted.host is host:
            self.schedule(hosted)

    def review(self, partitions: Iterable[HostedPartition]) -> None:
        """Check the roles of partitions, and their ISRs where this broker leads."""
        for hosted in partitions:
            self._is_known(hosted)
            self.roles.poll(hosted)

    # -- the end

    async def stop(self) -> None:
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])
