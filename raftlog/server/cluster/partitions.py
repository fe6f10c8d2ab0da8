"""Every partition that this broker votes on or stores: opened, closed, and put into its role.

What the cluster agreed on comes from the ``cluster`` group's state, who leads a partition from its
own group's. A host changes its role only here, and only by what was committed (S24).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from raftlog.config import BrokerConfig
from raftlog.consensus import Applied, Outcome, Unknown
from raftlog.errors import NotLeaderError, RaftlogError, StorageFailedError, UnknownTopicError
from raftlog.replication.cluster_state import ClusterMachine, TopicRecord
from raftlog.replication.commands import ChangeIsr, Command, Elect
from raftlog.replication.election import transfer
from raftlog.replication.partition_state import (
    Accepted,
    PartitionMachine,
    PartitionState,
    initial_state,
)
from raftlog.server.administration import quiet
from raftlog.server.cluster.gossip import Gossip
from raftlog.server.cluster.liveness import Incarnation, Liveness
from raftlog.server.cluster.member import Member, group_id
from raftlog.server.consensus_plane import ConsensusPlane
from raftlog.server.replica_host import HostServices, PartitionHost
from raftlog.server.topic_table import HostedTopic, TopicTable
from raftlog.server.workers import Workers
from raftlog.storage import Log, Store
from raftlog.types import TopicPartition

logger = logging.getLogger(__name__)

HOSTS_PER_TURN: Final = 50  # opened before the loop serves others


class Partitions:
    """``reconcile`` brings what is here in line with the cluster's state, topic by topic."""

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
        gossip: Gossip,
        on_role: Callable[[Member], None],
    ) -> None:
        """``on_role``: told when a host begins to lead, to follow, or is gone."""
        self._broker_id = broker_id
        self._me = me
        self._config = config
        self._store = store
        self._machine = machine
        self._plane = plane
        self._liveness = liveness
        self._topics = topics
        self._services = services
        self._worker = worker
        self._gossip = gossip
        self._on_role = on_role
        self.members: dict[str, Member] = {}  # by group
        self._by_topic: dict[str, list[Member]] = {}  # by topic id
        self._stale: dict[str, None] = {}  # topic names to look at
        self._changed: dict[str, None] = {}  # groups whose state is to be taken over
        self._strays_due = False
        self._later: list[Member] = []  # whose copy is to be made, or made anew
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._stopped = False

    # -- what others ask

    @property
    def is_ready(self) -> bool:
        """Whether everything that the cluster's state names is open here."""
        return self._task is None and not self._stale

    def leading(self) -> list[Member]:
        """The partitions that this broker leads."""
        return [m for m in self.members.values() if m.host is not None and m.host.leadership]

    def state_of(self, topic_id: str, partition: int) -> PartitionState | None:
        """What is known of a partition, whether or not this broker has a vote on it."""
        member = self.members.get(group_id(topic_id, partition))
        if member is None:
            return self._gossip.told.get((topic_id, partition))
        if self._is_known(member):
            return member.state
        return replace(member.state, leader=None)  # as it was at some time, before this start

    def _is_known(self, member: Member) -> bool:
        """Whether the group's state has been heard of in this run: a journal may end anywhere."""
        if not member.is_known:
            status = self._plane.status(member.group_id)
            heard = status.leader is not None and status.commit_index > 1
            member.is_known = heard and status.applied_index >= status.commit_index
        return member.is_known

    def member(self, topic_id: str, partition: int) -> Member | None:
        return self.members.get(group_id(topic_id, partition))

    # -- the cluster's state

    def look_at_topics(self, names: Iterable[str]) -> None:
        """These topics have changed in the cluster's state."""
        for name in names:
            self._stale[name] = None
        is_needed = bool(self._stale or self._later or self._strays_due)
        if self._task is None and is_needed and not self._stopped:
            self._task = self._services.loop.create_task(self._reconcile())

    def drop_strays(self) -> None:
        """Remove copies of topics that were deleted, or made anew, while this broker was down.

        To be called once what the cluster has agreed on is known here as of this run: before that,
        a topic that is not known may be one that is not known yet (S19).
        """
        self._strays_due = True
        self.look_at_topics(())

    async def until_seen(self, name: str) -> None:
        """Return once all that was agreed on about the topic so far has been done here."""
        if name in self._stale or self._task is not None:
            future = self._services.loop.create_future()
            self._waiting.append((name, future))
            await future

    async def _reconcile(self) -> None:
        try:
            while (self._stale or self._later or self._strays_due) and not self._stopped:
                name = next(iter(self._stale), "")
                self._stale.pop(name, None)
                try:
                    if name:
                        await self._reconcile_topic(name)
                    await self._work_off()
                    if self._strays_due and not self._stale:
                        self._strays_due = False
                        await self._drop_strays()
                except StorageFailedError as error:
                    self._services.on_failed(error)
                    return
                except RaftlogError:
                    logger.exception("topic %s cannot be opened here", name)
                for seen, future in list(self._waiting):
                    if seen == name and not future.done():
                        future.set_result(None)
        finally:
            self._task = None
            waiting, self._waiting = self._waiting, []
            for _, future in waiting:
                if not future.done():
                    future.set_result(None)

    async def _reconcile_topic(self, name: str) -> None:
        record = self._machine.topics.get(name)
        held = self._topics.get(name)
        if held is not None and (record is None or held.id != record.id):
            await self._drop(held)
            held = None
        if record is None:
            return
        if held is None:
            held = HostedTopic(record.name, record.id, record.config, record.overrides, [])
            self._topics.add(held)
        held.config, held.overrides = record.config, record.overrides
        for host in held.hosts:
            if host is not None:
                host.log.config = record.config
                host.reconsider()
        first = len(held.hosts)
        if first == len(record.partitions):
            await self._worker.run(
                lambda: self._store.update_topic(
                    record.id, overrides=record.overrides, total_partitions=first
                )
            )
            return
        await self._open(record, held, range(first, len(record.partitions)))

    async def _open(self, record: TopicRecord, held: HostedTopic, new: range) -> None:
        """Take part in partitions: vote where this broker is a voter, store where a replica."""
        await self._store_copies(
            record, [p for p in new if self._broker_id in record.partitions[p].replicas]
        )
        for partition in new:
            held.hosts.append(None)
            self._open_group(record, partition)
            if partition % HOSTS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _open_group(self, record: TopicRecord, partition: int) -> None:
        birth = record.birth(partition)
        if self._broker_id not in (*birth.directories, *record.partitions[partition].voters):
            return
        base = initial_state(birth.replicas, birth.witnesses, birth.directories, birth.min_isr)
        machine = PartitionMachine(base.encode())
        member = Member(record.name, record.id, partition, record.replication_factor, machine)
        self.members[member.group_id] = member
        self._by_topic.setdefault(record.id, []).append(member)
        if self._broker_id in record.partitions[partition].replicas:
            self._attach(member, self._store.hosted_log(record.id, partition))
        machine.on_change = lambda: self._state_changed(member)
        self._plane.open_group(
            member.group_id, machine, voters=birth.directories, base=base.encode()
        )
        self._state_changed(member)

    async def _store_copies(self, record: TopicRecord, partitions: list[int]) -> None:
        """Open this broker's copies of partitions, empty where there are none yet."""
        await self._worker.run(
            lambda: self._store.host_partitions(
                record.name,
                record.id,
                partitions,
                total_partitions=len(record.partitions),
                overrides=record.overrides,
            )
        )

    def _attach(self, member: Member, log: Log) -> None:
        for note in log.notes:
            logger.warning("%s: %s", member, note)
        if log.damage:
            logger.error("%s is damaged: %s", member, log.damage)
        member.host = PartitionHost(
            TopicPartition(member.topic, member.partition),
            log,
            self._services,
            topic_id=member.topic_id,
        )
        held = self._topics.get(member.topic)
        if held is not None and held.id == member.topic_id:
            held.hosts[member.partition] = member.host

    async def _drop(self, held: HostedTopic) -> None:
        """The topic is gone: stop serving it, then remove its files."""
        self._topics.remove(held.name)
        self._gossip.forget(held.id)
        members = self._by_topic.pop(held.id, [])
        reason = UnknownTopicError(f"topic {held.name!r} was deleted")
        hosts = [member.host for member in members if member.host is not None]
        for member in members:
            self.members.pop(member.group_id)
            self._plane.close_group(member.group_id, forget=True)
        for host in hosts:
            host.close(reason)
        for member in members:
            self._on_role(member)
        await quiet(hosts)
        for member in members:
            if member.host is not None:
                drop = partial(self._store.drop_partition, member.topic_id, member.partition)
                await self._worker.run(drop)
        logger.info("topic %s deleted", held.name)

    async def _drop_strays(self) -> None:
        for topic, partition, _log in list(self._store.hosted()):
            if self._machine.topic_by_id(topic.id) is None:
                logger.warning("%s:%d: of a deleted topic; removing it", topic.name, partition)
                await self._worker.run(partial(self._store.drop_partition, topic.id, partition))

    # -- a partition's state

    def _state_changed(self, member: Member) -> None:
        """Take the new state over soon: of a run of changes only the last one counts."""
        if not self._changed:
            self._services.loop.call_soon(self._take_over)
        self._changed[member.group_id] = None

    def _take_over(self) -> None:
        changed, self._changed = self._changed, {}
        members = [self.members[group] for group in changed if group in self.members]
        for member in members:
            self._set_role(member)
        self._gossip.tell(members)

    def _set_role(self, member: Member) -> None:
        host, state = member.host, member.state
        if self._broker_id in state.replicas and host is None:
            self._begin_to_store(member)
            return
        if host is None or host.closed is not None:
            return
        if host.leader_epoch > state.leader_epoch:
            return  # the group's log is being replayed
        if host.log.damage:
            self._give_up(member)
        leads = (
            state.leader == self._broker_id
            and state.isr.get(self._broker_id) == self._me.directory_id
            and state.leader_boot == self._me.boot
            and not host.log.damage
        )
        if leads and host.leadership is not None and host.leader_epoch == state.leader_epoch:
            host.on_state(state)
            self.review(member)
            return
        if leads:
            host.lead(
                state,
                self._broker_id,
                lag_max_seconds=self._config.replica_lag_time_max_ms / 1_000,
            )
            logger.info("%s: leading in epoch %d", member, state.leader_epoch)
            self._on_role(member)
            return
        leader = None if state.leader == self._broker_id else state.leader
        if self._broker_id not in state.replicas:
            leader = None
        if (host.leader, host.leader_epoch) != (leader, state.leader_epoch) or host.leadership:
            host.follow(leader, state.leader_epoch)
            self._on_role(member)

    def _begin_to_store(self, member: Member) -> None:
        """A witness has become a replica: it starts with an empty log."""
        self._later.append(member)
        self.look_at_topics(())

    # -- damage

    def damaged(self, host: PartitionHost, reason: str) -> None:
        """The copy is bad, or does not fit the leader's: give it up, and copy it again (P6)."""
        member = self.member(host.topic_id, host.topic_partition.partition)
        if member is None or member.host is not host or host.log.damage:
            return
        logger.error("%s: this broker's copy is damaged: %s", member, reason)
        host.log.note_damage(reason, offset=host.high_watermark)
        self._set_role(member)

    def _give_up(self, member: Member) -> None:
        """Leave the ISR first, so that nobody elects a copy that is gone; then set it aside."""
        if member.giving_up:
            return
        state = member.state
        if self._broker_id not in {*state.isr, *state.elr}:
            member.giving_up = True
            self._later.append(member)
            self.look_at_topics(())
            return
        command = self._leaving(state)
        if command is None:
            return  # nobody else has it: what is readable is all there is
        member.giving_up = True

        def done(_outcome: Outcome) -> None:
            member.giving_up = False
            self._state_changed(member)

        self._plane.propose_bytes(member.group_id, command.encode(), done)

    def _leaving(self, state: PartitionState) -> Command | None:
        if state.leader != self._broker_id:
            isr = {b: d for b, d in state.isr.items() if b != self._broker_id}
            return ChangeIsr(
                state.version, state.leader_epoch, isr, state.min_isr, (self._broker_id,)
            )
        for broker in state.replicas:
            if broker == self._broker_id or broker not in state.isr:
                continue
            elect = transfer(
                state,
                broker,
                is_live=self._liveness.is_live,
                directory_of=self._liveness.directory_of,
                boot_of=self._liveness.boot_of,
            )
            if isinstance(elect, Elect):
                return elect
        return None

    async def _work_off(self) -> None:
        """What has to wait for the disk: new copies, and damaged ones set aside."""
        later, self._later = self._later, []
        for member in later:
            host = member.host
            if member.group_id not in self.members:
                continue
            if host is None:
                record = self._machine.topics[member.topic]
                await self._store_copies(record, [member.partition])
                self._attach(member, self._store.hosted_log(member.topic_id, member.partition))
            elif host.log.damage:
                await self._quarantine(member, host)
            self._state_changed(member)

    async def _quarantine(self, member: Member, host: PartitionHost) -> None:
        host.close(NotLeaderError(f"{member}: this broker's copy is damaged and made anew"))
        self._on_role(member)
        await quiet([host])
        path = await self._worker.run(
            lambda: self._store.quarantine(member.topic_id, member.partition)
        )
        log = self._store.hosted_log(member.topic_id, member.partition)
        logger.error("%s: the damaged copy was set aside as %s; copying it again", member, path)
        self._attach(member, log)
        member.giving_up = False

    # -- the in-sync replicas

    def review_all(self) -> None:
        for member in self.members.values():
            if member.host is None:
                continue
            if member.host.leadership is not None:
                self.review(member)
            elif member.host.log.damage:
                self._set_role(member)

    def review(self, member: Member) -> None:
        """Propose the change that the ISR needs, if it needs one and none is under way."""
        host = member.host
        leadership = None if host is None else host.leadership
        if host is None or leadership is None:
            return
        change = leadership.isr_change(
            self._services.loop.time(),
            is_live=self._liveness.is_live,
            directory_of=self._liveness.directory_of,
            min_isr=host.log.config.effective_min_isr(len(member.state.replicas)),
        )
        if change is None:
            return

        def done(outcome: Outcome) -> None:
            accepted = isinstance(outcome, Applied) and isinstance(outcome.result, Accepted)
            if accepted:
                logger.info("%s: agreed on %s", member, change)
            leadership.proposal_done(change, None if isinstance(outcome, Unknown) else accepted)

        self._plane.propose_bytes(member.group_id, change.encode(), done)

    # -- the end

    async def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            await asyncio.wait([self._task])
