"""Cluster mode of a broker: connects consensus, links, membership, partitions and replication.

It decides nothing; it forwards link events, committed changes and time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from raftlog import limits
from raftlog.config import Address, BrokerConfig
from raftlog.consensus import ConsensusNode, ConsensusSettings
from raftlog.consensus.journal import Journal
from raftlog.errors import (
    BrokerRemovedError,
    DeclaredLostError,
    DiskFullError,
    HistoryConflictError,
    RaftlogError,
)
from raftlog.protocol.peer import PeerIdentity
from raftlog.protocol.records import BrokerInfo
from raftlog.replication import histories
from raftlog.replication.cluster_commands import (
    broker_events,
    diverged_text,
    lost_text,
    removed_text,
)
from raftlog.replication.cluster_state import (
    BrokerRecord,
    ClusterChange,
    ClusterMachine,
)
from raftlog.replication.histories import Relation, relation
from raftlog.replication.partition_state import PartitionState
from raftlog.replication.trusted_time import trusted_clocks
from raftlog.server.cluster.controller import Decommissioning, PartitionController
from raftlog.server.cluster.elections import Backlog, HostedPartition, StateBroadcast, Surveys
from raftlog.server.cluster.fetch_session import FetchSession, LeadershipCheck
from raftlog.server.cluster.fetcher import MoveThrottle, ReplicaFetcher, ReplicaFetchers
from raftlog.server.cluster.membership import (
    CLUSTER_GROUP,
    GRACE_SECONDS,
    BrokerAddresses,
    ClusterSubscription,
    Founder,
    Incarnation,
    Joining,
    Liveness,
    Membership,
)
from raftlog.server.cluster.recovery import Recovery, StateCopy
from raftlog.server.cluster.replicas import Handover, Partitions
from raftlog.server.cluster.topics import (
    RAISED,
    ClusterTopics,
    FirstUser,
    InternalTopics,
    PlainCredentials,
)
from raftlog.server.connection import Connection
from raftlog.server.consensus_plane import ConsensusPlane
from raftlog.server.disks import JournalReserve
from raftlog.server.partition import Partition, ReplicaServices
from raftlog.server.peers import PeerConnector, Peering, PeerLinks, PeerRegistry
from raftlog.server.scheduling import Acknowledge, Workers
from raftlog.server.topic_table import TopicTable
from raftlog.storage import Store
from raftlog.types import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.1  # seconds between two checks of membership
POLL_PARTITIONS_EVERY: Final = 5  # checks of membership per check of partitions, at least
POLLED_AT_ONCE: Final = 500  # partitions, with one check of membership: takes a few milliseconds
BROADCAST_ALL_EVERY: Final = 50
START_SECONDS: Final = 10.0
START_POLL_SECONDS: Final = 0.001


@dataclass(frozen=True, slots=True)
class ClusterServices:
    """Functions of the broker process that a broker in a cluster uses."""

    host: ReplicaServices
    admin_worker: Workers
    journal_worker: Workers
    connector: PeerConnector
    chance: Callable[[], float]
    entropy: Callable[[int], bytes]
    new_id: Callable[[], str]
    address: Callable[[], Address]
    kafka_address: Callable[[], Address]
    on_removed: Callable[[str], None]
    peer_protocol: int


class ClusterNode:
    """Created by the broker after its store and journal are open; runs on its event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        secret: bytes,
        first_user: PlainCredentials | None,
        store: Store,
        journal: Journal,
        topics: TopicTable,
        services: ClusterServices,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        topics.is_complete = False
        self._journal = journal
        self._services = services
        self._loop = loop = services.host.loop
        self._journal_room = self._make_journal_room()
        self.broker_id = store.identity.broker_id
        self.me = Incarnation(store.place.member_id, journal.boot)
        self._run = services.new_id()
        self.machine = ClusterMachine(self._cluster_changed)
        self.plane = self._make_plane()
        self.liveness = Liveness(
            self.broker_id, self.me, now=loop.time, is_fenced=self._is_fenced, is_heard=self._hears
        )
        self._registry = self._make_registry()
        self.links: PeerLinks = self._make_links(secret)
        self.peering = self._make_peering(secret)
        self._joining = self._make_joining()
        self._addresses = self._make_addresses()
        self.subscription = self._make_subscription()
        self._throttle = self._make_throttle()
        self.fetchers = ReplicaFetchers(self._make_fetcher)
        self.state_broadcast = self._make_state_broadcast()
        self.surveys = self._make_surveys()
        self.partitions = self._make_partitions()
        topics.state_of, topics.is_expected = self.partitions.described_state, self.is_expected
        self.controller = self._make_controller()
        self.membership = self._make_membership()
        self._decommissioning = self._make_decommissioning()
        self._internal_topics = self._make_internal_topics()
        self._state_copy = self._make_state_copy()
        self.recovery = self._make_recovery()
        self.joined = asyncio.Event()  # the cluster counts this broker as live
        self._founder = self._make_founder()
        self.topics = self._make_topics()
        self._first_user = self._make_first_user(first_user)
        self._sessions: dict[Connection, FetchSession] = {}
        self._newest_session: dict[int, FetchSession] = {}  # by follower
        self._confirmation = self._make_confirmation()
        self._timer: asyncio.TimerHandle | None = None
        self._next_poll: asyncio.TimerHandle | None = None
        self._next_poll_at = 0.0
        self._unpolled: list[HostedPartition] = []  # of this round of checks of all partitions
        self._unchecked = Backlog(self._loop, self._check)
        self._changed_groups = Backlog(self._loop, self._control)
        self._polls = 0
        self.is_current = False  # all changes before this start of the broker are applied
        self._noted: dict[int, BrokerRecord] = {}  # at the last event
        # By peer: reason why it and this broker do not work together.
        self._refusals: dict[int, str] = {}
        self._is_removed = False
        # Called when a host begins to lead or to follow; when topics or partitions were added or
        # removed.
        self.on_role: Callable[[], None] | None = None
        self.on_topics: Callable[[], None] | None = None
        self.on_version: Callable[[], None] | None = None  # called after any other committed change
        self.on_users: Callable[[ClusterChange], None] | None = None  # of users or their tokens
        self.on_access: Callable[[ClusterChange], None] | None = None  # of rules or quotas

    # -- parts -------------------------------------------------------------------------------------

    def _make_plane(self) -> ConsensusPlane:
        services = self._services
        node = ConsensusNode(
            self.broker_id,
            self.me.directory_id,
            self._journal,
            settings=ConsensusSettings(),
            chance=services.chance,
            send=self._send,
            on_state=self._raft_changed,
        )
        return ConsensusPlane(
            node, self._loop, services.journal_worker, on_failed=services.host.on_failed
        )

    def _make_registry(self) -> PeerRegistry:
        return PeerRegistry(
            seen=self._journal.peers.get,
            heard=self.plane.heard,
            time=self._loop.time,
            session_timeout_s=self._config.broker_session_timeout_ms / 1_000,
            version_min=lambda: self.machine.peer_protocol,
            check_state=self._admit,
            needs_certificate=self._config.tls_broker_id_required,
        )

    def _make_journal_room(self) -> JournalReserve:
        return JournalReserve(
            self._store.reserve_for_journal,
            size=lambda: self._journal.size_bytes,
            worker=self._services.journal_worker,
            now=self._loop.time,
        )

    def _make_links(self, secret: bytes) -> PeerLinks:
        config = self._config
        return PeerLinks(
            self._loop,
            self._services.connector,
            self._registry,
            secret=secret,
            me=self._identity,
            nonce=self._nonce,
            chance=self._services.chance,
            heartbeat_interval_ms=config.broker_heartbeat_interval_ms,
            session_timeout_ms=config.broker_session_timeout_ms,
            on_up=self._peer_up,
            on_down=self._peer_down,
            on_refused=self._refused,
            broker_epoch=self._broker_epoch,
            on_clock=self._services.host.clock.on_peer,
            on_stranger=self._stranger_connected,
        )

    def _make_peering(self, secret: bytes) -> Peering:
        return Peering(
            secret=secret,
            me=self._identity,
            nonce=self._nonce,
            registry=self._registry,
            receive=self.plane.receive,
            wall_ms=self._services.host.clock.machine.wall_ms,
            on_refused=self._refused,
        )

    def _make_addresses(self) -> BrokerAddresses:
        return BrokerAddresses(
            self._store,
            self.machine,
            self.links,
            self._registry,
            voters=self._config.voters,
            found=self._joining.found,
            worker=self._services.admin_worker,
            loop=self._loop,
            on_failed=self._services.host.on_failed,
        )

    def _make_state_copy(self) -> StateCopy:
        return StateCopy(
            self._store,
            self.machine,
            self.broker_id,
            has_vote=lambda: self.subscription.has_vote,
            voters=lambda: self.subscription.voters,
            worker=self._services.admin_worker,
            loop=self._loop,
            on_failed=self._services.host.on_failed,
        )

    def _make_subscription(self) -> ClusterSubscription:
        return ClusterSubscription(
            self.broker_id,
            self.machine,
            self.plane,
            self.links,
            loop=self._loop,
            brokers=lambda: self._addresses.brokers,
        )

    def _make_joining(self) -> Joining:
        return Joining(
            self._config.join,
            self.links,
            loop=self._loop,
            is_known=lambda: bool(self.machine.cluster_id),
            on_found=self._stranger_connected,
            on_waiting=self._note_waiting,
        )

    def _note_waiting(self, reason: str) -> None:
        self._topics.waits_for = reason

    def _make_decommissioning(self) -> Decommissioning:
        return Decommissioning(
            self.broker_id,
            self.me,
            machine=self.machine,
            plane=self.plane,
            liveness=self.liveness,
            subscription=self.subscription,
            members=self.partitions.hosted.values,
            now=self._loop.time,
        )

    def _make_internal_topics(self) -> InternalTopics | None:
        config = self._config
        if config.default_replication_factor:
            return None
        said = {
            OFFSETS_TOPIC: config.offsets_topic_replication_factor,
            TRANSACTIONS_TOPIC: config.transaction_state_log_replication_factor,
        }
        return InternalTopics(
            machine=self.machine,
            plane=self.plane,
            liveness=self.liveness,
            founders=len(config.voters),
            topics=[name for name in RAISED if not said.get(name)],
            now=self._loop.time,
        )

    def _make_surveys(self) -> Surveys:
        return Surveys(
            self.broker_id,
            self.me,
            loop=self._loop,
            links=self.links,
            liveness=self.liveness,
            unclean_recovery_seconds=self._config.unclean_recovery_timeout_ms / 1_000,
            find=self._hosted,
            on_complete=self._surveyed,
        )

    def _make_partitions(self) -> Partitions:
        return Partitions(
            self.broker_id,
            self.me,
            config=self._config,
            store=self._store,
            machine=self.machine,
            plane=self.plane,
            liveness=self.liveness,
            topics=self._topics,
            services=self._services.host,
            worker=self._services.admin_worker,
            state_broadcast=self.state_broadcast,
            surveys=self.surveys,
            on_role=self._role_changed,
            on_ready=self._join_soon,
        )

    def _make_controller(self) -> PartitionController:
        return PartitionController(
            self.broker_id,
            self.plane,
            self.liveness,
            machine=self.machine,
            now=self._loop.time,
            lag_max_seconds=self._config.replica_lag_time_max_ms / 1_000,
            replacement_delay_seconds=self._config.replica_replacement_delay_ms / 1_000,
            rebalance_delay_seconds=self._config.leader_rebalance_delay_ms / 1_000,
            surveys=self.surveys,
        )

    def _make_membership(self) -> Membership:
        config, services = self._config, self._services
        return Membership(
            self.broker_id,
            self.me,
            rack=config.rack,
            voters=[voter.id for voter in config.voters],
            address=services.address,
            kafka_address=services.kafka_address,
            machine=self.machine,
            plane=self.plane,
            liveness=self.liveness,
            session_seconds=config.broker_session_timeout_ms / 1_000,
            is_ready=lambda: self.partitions.is_ready,
            now=self._loop.time,
        )

    def _make_recovery(self) -> Recovery:
        return Recovery(
            self.broker_id,
            self.me,
            machine=self.machine,
            plane=self.plane,
            partitions=self.partitions,
            state_broadcast=self.state_broadcast,
            liveness=self.liveness,
            links=self.links,
            state_copy=self._state_copy,
            cluster_leader=lambda: (self.subscription.leader, self.subscription.voters),
            voters=[voter.id for voter in self._config.voters],
            entropy=self._services.entropy,
            loop=self._loop,
        )

    def _make_founder(self) -> Founder:
        return Founder(
            self._config,
            self._store,
            machine=self.machine,
            plane=self.plane,
            journal=self._journal,
            peer=self.links.identity,
            peers=self._registry.all_latest,
            topics=self._topics,
            now=self._loop.time,
            new_id=self._services.new_id,
            on_failed=self._services.host.on_failed,
        )

    def _make_first_user(self, credentials: PlainCredentials | None) -> FirstUser:
        services = self._services
        return FirstUser(
            credentials, self.machine, self.topics, services.admin_worker, services.entropy
        )

    def _make_topics(self) -> ClusterTopics:
        return ClusterTopics(
            self.machine,
            self.plane,
            self.partitions,
            new_id=self._services.new_id,
            loop=self._loop,
            default_replication_factor=self._config.default_replication_factor,
            founders=len(self._config.voters),
            is_member=lambda: self.membership.is_in or self.subscription.has_vote,
        )

    def _make_confirmation(self) -> LeadershipCheck:
        return LeadershipCheck(
            self.broker_id,
            loop=self._loop,
            session_of=self._newest_session.get,
            find=self.partitions.find,
            propose=self.plane.propose_bytes,
        )

    def _make_fetcher(self, leader: int) -> ReplicaFetcher:
        return ReplicaFetcher(
            leader,
            loop=self._loop,
            links=self.links,
            bytes_max=self._fetch_bytes_max,
            wait_ms_max=self._config.replica_fetch_wait_max_ms,
            on_damage=self._damaged,
            counters=self._services.host.counters,
            throttle=self._throttle,
        )

    def _make_state_broadcast(self) -> StateBroadcast:
        return StateBroadcast(
            self.broker_id,
            self._loop,
            self.plane,
            self.links,
            brokers=lambda: sorted(self.machine.brokers),
            recovery=lambda: histories.last(self.machine.history),
        )

    def _make_throttle(self) -> MoveThrottle:
        return MoveThrottle(
            self.broker_id, self.machine, self._loop, chunk_bytes_max=self._fetch_bytes_max
        )

    @property
    def _fetch_bytes_max(self) -> int:
        return min(self._config.replica_fetch_max_bytes, limits.FETCH_BYTES_MAX)

    def _nonce(self) -> bytes:
        return self._services.entropy(32)

    # -- beginning and end -------------------------------------------------------------------------

    def start(self) -> None:
        """Start: open the cluster group, and connect to the other brokers."""
        self.plane.open_group(
            CLUSTER_GROUP,
            self.machine,
            # Until the cluster is founded, or this broker gets a vote, there are no votes.
            voters={voter.id: "" for voter in self._config.voters} or {self.broker_id: ""},
            base=b"",
        )
        self._addresses.update()
        self._joining.start()
        self._poll()

    async def until_leading(self) -> None:
        """Return when this broker, which is the only one, leads its partitions, or after
        ``START_SECONDS``.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                await self.joined.wait()
                while (  # noqa: ASYNC110 - what is waited for has no event
                    self.plane.failure is None
                    and any(each.awaits_leader for each in self.partitions.hosted.values())
                ):
                    await asyncio.sleep(START_POLL_SECONDS)

    async def hand_over(self, *, seconds_max: float) -> None:
        """Transfer leadership before the stop, while all components still run."""
        await Handover(
            self.broker_id,
            machine=self.machine,
            plane=self.plane,
            liveness=self.liveness,
            membership=self.membership,
            leading=self.partitions.leading,
            hosted=self.partitions.hosted.values,
            voters=lambda: self.subscription.voters,
        ).run(seconds_max=seconds_max)
        self.subscription.answer_all()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.membership.is_leaving = True
        await self._first_user.stop()
        self._joining.close()
        self.subscription.close()
        await self._addresses.stop()
        await self._state_copy.stop()
        self.fetchers.close()
        self._throttle.close()
        for session in self._sessions.values():
            session.close()
        await self.partitions.stop()
        await self.links.close()
        await self.plane.stop()
        self._journal.close()

    # -- queries of handlers -----------------------------------------------------------------------

    def state_of(self, topic_id: str, partition: int) -> PartitionState | None:
        return self.partitions.state_of(topic_id, partition)

    def is_expected(self, name_or_id: str) -> bool:
        """Whether the cluster state has this topic, or a command that may create it is stored here
        and not applied. A creation is on a majority of the voters before it is acknowledged, so
        most brokers that have not applied it know of it."""
        if name_or_id in self.machine.topics or self.machine.topic_by_id(name_or_id) is not None:
            return True
        word = name_or_id.encode()
        return any(word in command for command in self.plane.journaled(CLUSTER_GROUP).unapplied)

    def session(self, connection: Connection) -> FetchSession:
        """Return the fetch session of the peer at the other end; created if there is none."""
        session = self._sessions.get(connection)
        if session is None:
            peer = connection.peer_identity
            assert peer is not None, "dispatch accepts this request from brokers only"
            session = FetchSession(
                peer.broker_id,
                peer.directory_id,
                peer.boot,
                loop=self._loop,
                find=self.partitions.find,
                on_progress=self.partitions.roles.review,
                on_damage=self._damaged,
            )
            self._sessions[connection] = self._newest_session[peer.broker_id] = session
        return session

    def confirm(self, host: Partition, done: Acknowledge) -> None:
        """See ``LeadershipCheck.confirm``."""
        self._confirmation.confirm(host, done)

    def forget(self, connection: Connection) -> None:
        """Forget a closed connection."""
        session = self._sessions.pop(connection, None)
        if session is not None:
            session.close()
            follower = session.follower
            if self._newest_session.get(follower) is session:
                del self._newest_session[follower]

    def other_brokers(self, *, for_kafka: bool = False) -> list[BrokerInfo]:
        """Return the other brokers that clients can connect to, with their addresses for raftlog's
        or Kafka's clients.
        """
        return [
            BrokerInfo(id=b.id, host=b.kafka_host, port=b.kafka_port, rack=b.rack or None)
            if for_kafka and b.kafka_port
            else BrokerInfo(id=b.id, host=b.host, port=b.port, rack=b.rack or None)
            for _, b in sorted(self.machine.brokers.items())
            if not b.fenced and b.id != self.broker_id
        ]

    @property
    def journal_bytes(self) -> int:
        """Size of the consensus journal on disk."""
        return self._journal.size_bytes

    @property
    def journal_shortage(self) -> DiskFullError | None:
        """Why the consensus journal cannot be written now; None if it can."""
        return self.plane.shortage

    def can_others_decide(self) -> bool:
        """Whether the other connected brokers are a majority of the cluster's voters."""
        voters = self.subscription.voters
        there = [v for v in voters if v != self.broker_id and self.liveness.is_linked(v)]
        return 2 * len(there) > len(voters)

    # -- events ------------------------------------------------------------------------------------

    def _peer_up(self, peer: PeerIdentity) -> None:
        self.liveness.link_up(peer.broker_id, Incarnation(peer.directory_id, peer.boot))
        self.plane.peer_up(peer.broker_id, peer.directory_id, peer.boot, peer.run)
        self.fetchers.link_up(peer.broker_id)
        self.state_broadcast.send_all(self.partitions.hosted.values())
        self._schedule(0.0)

    def _peer_down(self, peer: int, _reason: RaftlogError) -> None:
        self.liveness.link_down(peer)
        self.plane.peer_down(peer)
        self._loop.call_later(GRACE_SECONDS + 0.01, self._schedule, 0.0)

    def _stranger_connected(self) -> None:
        self._loop.call_soon(self._addresses.update)

    def _refused(self, peer: int, error: RaftlogError) -> None:
        if str(error) != self._refusals.get(peer):
            logger.error("brokers cannot work together: peer=%d reason=%s", peer, error)
        self._refusals[peer] = self.membership.refusal = str(error)
        self._founder.refused()
        if isinstance(error, BrokerRemovedError | HistoryConflictError):
            self._removed(str(error))

    def _admit(self, peer: PeerIdentity) -> None:
        """Raise the reason why the state of the cluster excludes the peer. Stop too, if both have
        gone on after different recoveries.
        """
        how = relation(self.machine.history, histories.decode(peer.history))
        # guard: two recoveries of one state stop both sides
        if how == "diverged":
            self._removed(diverged_text(self.broker_id, peer.broker_id))
        self._check_peer(peer, how)

    def _check_peer(self, peer: PeerIdentity, how: Relation) -> None:
        """Of two histories, the longer one counts, except for brokers of a living majority: that
        one may have acknowledged records after the recovery, which was then none. So it comes
        before what is declared lost: both sides may have declared that of each other.
        """
        machine = self.machine
        if peer.directory_id in machine.removed:
            raise BrokerRemovedError(removed_text(peer.broker_id, peer.directory_id))
        if how == "diverged":
            raise HistoryConflictError(diverged_text(self.broker_id, peer.broker_id))
        # guard: a living majority does not accept a recovery
        if how == "behind" and self._is_in_majority():
            raise HistoryConflictError(
                f"broker {self.broker_id} has contact with a majority of the cluster's voters, so "
                f"the recovery that broker {peer.broker_id} continues after was none, and is not "
                f"accepted. Start broker {peer.broker_id}, and all that took part in that "
                "recovery, with empty data directories. Records that they acknowledged after it, "
                "and those that only they have, are given up"
            )
        # guard: a lost directory is refused
        if peer.directory_id in machine.lost:
            raise DeclaredLostError(lost_text(peer.broker_id, peer.directory_id))

    def _is_in_majority(self) -> bool:
        """Whether this broker has contact with a majority of the cluster's voters, which do not
        continue after a recovery that it does not know.
        """
        voters = self.subscription.voters
        return 2 * sum(self._is_with(*voter) for voter in voters.items()) > len(voters)

    def _is_with(self, voter: int, directory_id: str) -> bool:
        if voter == self.broker_id:
            return directory_id == self.me.directory_id
        peer = self.links.identity(voter)
        if peer is None or peer.directory_id != directory_id or not self.links.is_heard(voter):
            return False
        return relation(self.machine.history, histories.decode(peer.history)) in ("same", "ahead")

    def _check_claims(self) -> None:
        """Stop if a peer says that this broker's directory is declared lost, unless a majority of
        the voters goes on with this broker.
        """
        claims = [e for e in self.links.refusals() if isinstance(e, DeclaredLostError)]
        # guard: a living majority does not stop at the word of a minority
        if claims and not self._is_in_majority():
            self._removed(str(claims[0]))

    def _removed(self, reason: str) -> None:
        """Stop: this broker was decommissioned or declared lost, or must not serve its history."""
        if not self._is_removed:
            self._is_removed = True
            logger.warning("broker removed from the cluster: reason=%s", reason)
            self._services.on_removed(reason)

    def _raft_changed(self, raft_id: str) -> None:
        """React to a new Raft leader of a group: it may be this broker, which then controls the
        partition.
        """
        if raft_id == CLUSTER_GROUP:
            self.subscription.stored()
            self._schedule(0.0)
            return
        self._changed_groups.add([raft_id])

    def _control(self, raft_ids: list[str]) -> None:
        for raft_id in raft_ids:
            hosted = self.partitions.hosted.get(raft_id)
            if hosted is not None:
                self.controller.poll(hosted)

    def _hosted(self, group: str) -> HostedPartition | None:
        return self.partitions.hosted.get(group)

    def _surveyed(self, hosted: HostedPartition) -> None:
        """All replicas have reported their copies."""
        if self.partitions.hosted.get(hosted.raft_id) is hosted:
            self.partitions.roles.poll(hosted)
            self.controller.poll(hosted)

    def _cluster_changed(self, change: ClusterChange) -> None:
        self.partitions.schedule_topics(sorted(change.topics))
        if self.on_access is not None and (change.acls or change.quotas):
            self.on_access(change)
        callback = self.on_topics if change.topics else self.on_version
        if callback is not None:
            callback()
        if self.on_users is not None and (change.users or change.tokens):
            self.on_users(change)
        self.subscription.changed()
        if change.is_upgrade:
            self._loop.call_soon(self._end_refused)
        if change.brokers:
            self.liveness.expect(self.machine.brokers)
            mine = self.broker_id, self.me.directory_id
            if self.me.directory_id in self.machine.removed:
                self._loop.call_soon(self._removed, removed_text(*mine))
            if self.me.directory_id in self.machine.lost:
                self._loop.call_soon(self._removed, lost_text(*mine))
            self._note_brokers()
            self._addresses.update()
            self._schedule(0.0)
            # A removed broker usually receives its removal in this time, and stops.
            # guard: a removed broker that missed its removal is disconnected
            self._loop.call_later(GRACE_SECONDS, self._end_refused)

    def _end_refused(self) -> None:
        """Disconnect brokers that would misread the state of the cluster, and removed ones: this
        broker has no link to those, so it cannot offer them a newer generation.
        """
        self._registry.end_refused()
        self.links.drop_excluded()

    def _note_brokers(self) -> None:
        """Record the events of brokers, unless the state is replayed from the journal."""
        before, self._noted = self._noted, dict(self.machine.brokers)
        if self.is_current:
            services = self._services.host
            for event in broker_events(before, self._noted, self.machine.version):
                services.events.add(event, services.clock.wall_ms())

    def _role_changed(self, hosted: HostedPartition) -> None:
        host = hosted.host
        if host is None:
            return
        if host.closed is not None:
            self._confirmation.forget(hosted.raft_id)
        follows = host.closed is None and host.leadership is None
        self.fetchers.assign(host, host.leader if follows else None)
        if self.on_role is not None:
            self.on_role()

    def _damaged(self, host: Partition, error: RaftlogError) -> None:
        self.partitions.damaged(host, str(error))

    # -- the time ----------------------------------------------------------------------------------

    def _schedule(self, seconds: float) -> None:
        """Check everything once. Requests for the same or a later time share this check."""
        at = self._loop.time() + seconds
        if self._next_poll is not None:
            if self._next_poll_at <= at:
                return
            self._next_poll.cancel()
        self._next_poll_at = at  # not all handles of uvloop return their time
        self._next_poll = self._loop.call_at(at, self._poll_all)

    def _poll(self) -> None:
        self._timer = self._loop.call_later(POLL_SECONDS, self._poll)
        self._polls += 1
        self._journal_room.poll()
        self._founder.poll()
        self._check_claims()
        self.subscription.poll()
        if voters := self.subscription.voters:
            self._services.host.clock.set_voters(trusted_clocks(voters, self.machine.brokers))
        self._join()
        if not self.membership.is_leaving:
            self._decommissioning.poll()
            if self._internal_topics is not None:
                self._internal_topics.poll()
        if self.is_current:
            self._addresses.save()
        # guard: brokers without a vote keep the state of the cluster
        self._state_copy.poll()
        if self.is_current:
            self._first_user.poll()
        if self._polls % POLL_PARTITIONS_EVERY == 0 and not self._unpolled:
            self._unpolled = list(self.partitions.hosted.values())
        self._poll_some()
        if self._polls % BROADCAST_ALL_EVERY == 0:
            self.state_broadcast.send_all(self.partitions.hosted.values())

    def _join(self) -> None:
        """Take the next step until this broker is a member with all topics."""
        self.membership.poll()
        if not self.is_current and self.membership.is_registered:
            # All changes before the registration of this incarnation are applied.
            self.is_current = self._addresses.is_current = True
            self._addresses.update()
            self.partitions.delete_strays()
        if self.is_current and not self._topics.is_complete and self.partitions.is_ready:
            self._topics.complete()
        if self.membership.is_in and self._topics.is_complete:
            self.joined.set()

    def _join_soon(self) -> None:
        if not self.joined.is_set():
            self._schedule(0.0)

    def _poll_all(self) -> None:
        self._next_poll = None
        if not self.membership.is_leaving:
            self._join()
            self._unchecked.add(self.partitions.hosted.values())

    def _poll_some(self) -> None:
        """Check the next partitions of the round. All at once would hold the loop, and without a
        change there is nothing to find but what has lasted for seconds.
        """
        some, self._unpolled = self._unpolled[:POLLED_AT_ONCE], self._unpolled[POLLED_AT_ONCE:]
        now = self._loop.time()
        checked = self._check([each for each in some if not each.is_at_rest(now)])
        for each in checked:
            each.checked(now)

    def _check(self, partitions: list[HostedPartition]) -> list[HostedPartition]:
        """Check the roles of partitions, and what they need of their controller. Returns those
        that still exist."""
        there = list(filter(self.partitions.is_hosted, partitions))
        self.partitions.review(there)
        self.controller.poll_all(there)
        return there

    # -- inside ------------------------------------------------------------------------------------

    def _send(self, peer: int, envelope: bytes) -> None:
        self.links.send(peer, envelope)

    def _is_fenced(self, broker_id: int) -> bool:
        record = self.machine.brokers.get(broker_id)
        return record is None or record.fenced

    def _hears(self, peer: int) -> bool:
        return self.links.is_heard(peer)

    def _identity(self) -> PeerIdentity:
        address = self._services.address()
        return PeerIdentity(
            broker_id=self.broker_id,
            directory_id=self.me.directory_id,
            boot=self.me.boot,
            host=address.host,
            port=address.port,
            protocol_version=self._services.peer_protocol,
            cluster_id=self.machine.cluster_id or self._store.identity.cluster_id,
            run=self._run,
            journal_sequence=self._journal.opened_sequence,
            voters=",".join(str(voter.id) for voter in self._config.voters),
            history=histories.encode(self.subscription.history),
        )

    def _broker_epoch(self) -> int:
        record = self.machine.brokers.get(self.broker_id)
        return -1 if record is None else record.broker_epoch
