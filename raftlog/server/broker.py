"""The broker: one data directory, its partitions and clients. It connects the components.

The same core runs behind sockets (``main``), inside a program (``raftlog.embedded``) and in tests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import stat
from asyncio import Future, timeout
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol, TypeAlias

from raftlog import limits
from raftlog.clock import Clock
from raftlog.config import EVERYWHERE, Address, BrokerConfig
from raftlog.consensus.journal import Journal
from raftlog.consumer_groups import GroupSettings, GroupShard
from raftlog.disk import Disk
from raftlog.errors import (
    BrokerUnavailableError,
    DataDirectoryError,
    DiskFullError,
    InvalidConfigError,
    InvalidRequestError,
    LeaderNotAvailableError,
    RaftlogError,
    RequestTimedOutError,
    StorageFailedError,
    TopicExistsError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import ProducePartition, ProduceRequest, ProduceResponse
from raftlog.protocol.security import PEER_PROTOCOL_VERSION
from raftlog.record import parse_header
from raftlog.replication.cluster_commands import disk_event
from raftlog.replication.cluster_state import ClusterChange
from raftlog.replication.placement import usual_copies
from raftlog.security.credentials import check_user_name
from raftlog.server.access.audit import Audit
from raftlog.server.access.control import AccessControl
from raftlog.server.administration import Administration, quiet
from raftlog.server.apis.produce import ACKS_ALL, Stored, append
from raftlog.server.authentication import Authenticator, BrokerTokens
from raftlog.server.clock import UPDATE_SECONDS, BrokerClock
from raftlog.server.cluster import migration
from raftlog.server.cluster.node import ClusterNode, ClusterServices
from raftlog.server.cluster.operations import ClusterOperations
from raftlog.server.cluster.topics import PlainCredentials
from raftlog.server.connection import Connection, Connections, ConnectionServices, address_of
from raftlog.server.context import BrokerContext
from raftlog.server.disks import CHECK_SECONDS, QUARANTINE_SECONDS, DiskSpace, DiskWatch
from raftlog.server.dispatch import dispatch
from raftlog.server.groups.coordinator import (
    Coordinator,
    CoordinatorServices,
    Lookup,
    TopicMaker,
    agreed_topics,
    load_assignors,
)
from raftlog.server.kafka.dispatch import dispatch as kafka_dispatch
from raftlog.server.maintenance import SUSPECT_BYTES_MAX, Housekeeping, LogCleaner, LogVerifier
from raftlog.server.metrics import COUNT_SECONDS, Counters
from raftlog.server.partition import (
    EventLog,
    Partition,
    ReplicaServices,
)
from raftlog.server.peers import PeerConnector, SocketPeerConnector
from raftlog.server.purgatory import Purgatory
from raftlog.server.registry import SchemaRegistry
from raftlog.server.scheduling import ResponseBudget, Turns, Workers
from raftlog.server.tls import BrokerTls, tls_options
from raftlog.server.topic_table import LogDirMonitor, TopicTable
from raftlog.server.transactions.coordinator import TransactionCoordinator
from raftlog.storage import Store, state_files
from raftlog.storage.log_dirs import LogDir
from raftlog.types import (
    AUDIT_TOPIC,
    OFFSETS_TOPIC,
    SCHEMAS_TOPIC,
    TRANSACTIONS_TOPIC,
    Offset,
)

logger = logging.getLogger(__name__)

# Fetches that wait for records may use one half of the memory for requests.
WAITING_FETCHES_PART: Final = 2
ADMIN_VARIABLE: Final = "RAFTLOG_ADMIN_CREDENTIALS"


def advertised(listen: Address, listening: Address, configured: Address | None) -> Address:
    """Return the address that clients get for this broker: as configured, or ``listen`` with the
    actual port.

    If the broker listens on all interfaces, each client gets the address that it connected to (the
    host is empty here).
    """
    if configured is not None:
        return configured
    host = listen.host
    return Address("" if host in EVERYWHERE else host, listening.port)


def _reachable(address: Address) -> Address:
    """Return the address that other brokers and their clients get. On all interfaces, it is the
    host name of this machine."""
    if address.host or not address.port:
        return address
    return Address(socket.gethostname(), address.port)


@dataclass(frozen=True, slots=True)
class BrokerWorkers:
    """Threads of a broker: for syncing logs, the consensus journal, compaction, administration, the
    validation of large batches, and schemas.
    """

    sync: Workers
    journal: Workers
    compaction: Workers
    admin: Workers
    validation: Workers
    schemas: Workers
    log_dirs: dict[str, Workers] = field(default_factory=dict)  # for syncing logs, by log directory

    @classmethod
    def make(cls, loop: asyncio.AbstractEventLoop, make_workers: MakeWorkers) -> BrokerWorkers:
        return cls(
            sync=make_workers(loop, count=limits.SYNC_THREADS, name="sync"),
            journal=make_workers(loop, count=1, name="journal"),
            compaction=make_workers(loop, count=1, name="compaction"),
            admin=make_workers(loop, count=1, name="admin"),
            validation=make_workers(loop, count=limits.VALIDATION_THREADS, name="validation"),
            schemas=make_workers(loop, count=1, name="schemas"),
        )

    def add_log_dirs(
        self, store: Store, loop: asyncio.AbstractEventLoop, make_workers: MakeWorkers
    ) -> None:
        """Create the threads of the log directories that work."""
        for log_dir in store.log_dirs.further:
            if not log_dir.failure:
                name = f"sync-{len(self.log_dirs) + 1}"
                self.log_dirs[log_dir.id] = make_workers(loop, count=limits.SYNC_THREADS, name=name)

    def stop(self) -> None:
        for workers in self.log_dirs.values():
            workers.stop()
        self.sync.stop()
        self.journal.stop()
        self.compaction.stop()
        self.admin.stop()
        self.validation.stop()
        self.schemas.stop()


class MakeWorkers(Protocol):
    """Creates ``Workers``, or their replacement where there are no threads."""

    def __call__(self, loop: asyncio.AbstractEventLoop, *, count: int, name: str) -> Workers: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Environment of a broker besides its clock and its disk. Tests replace it."""

    around_connector: Callable[[PeerConnector], PeerConnector] = lambda connector: connector
    make_workers: MakeWorkers = Workers
    make_connection: Callable[[ConnectionServices], Connection] = Connection
    chance: Callable[[], float] = field(default_factory=lambda: random.Random().random)  # noqa: S311 - jitter, no secret
    entropy: Callable[[int], bytes] = os.urandom
    # Called once when the broker learns that it was decommissioned, with a text for the operator.
    on_removed: Callable[[str], None] = lambda _reason: None
    peer_protocol: int = PEER_PROTOCOL_VERSION  # of an earlier release, in tests

    def new_id(self) -> str:
        """Return a unique id."""
        return self.entropy(16).hex()


REAL: Final = Surroundings()
NO_ADDRESS: Final = Address("", 0)


FAILED_ADVICE: Final = (
    "The state of the disk is unknown, and another sync cannot verify it (the kernel may have "
    "dropped the data). Check the disk (dmesg, SMART) and its free space, then start the broker: "
    "it recovers the stored data"
)
HUNG_ADVICE: Final = (
    "Other brokers become leaders. Check the disk (dmesg, SMART), then start the broker: it "
    "recovers the stored data"
)


# Called when the disk is not reliable any longer. It may end the process at once. If it returns,
# the broker fails every request with the error from then on, and writes nothing more.
OnFatal: TypeAlias = Callable[[StorageFailedError], None]


class Broker:
    """Created by ``start``, ended by ``stop``; runs on one event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        clock: BrokerClock,
        workers: BrokerWorkers,
        on_fatal: OnFatal,
        journal: Journal,
        *,
        tls: BrokerTls | None = None,
        surroundings: Surroundings = REAL,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.failure: StorageFailedError | None = None
        self._store = store
        self._workers = workers
        self._on_fatal = on_fatal
        self._servers: list[asyncio.Server] = []
        self.disk_watch = _watch(config, loop, workers)
        self.tls, self.tokens = tls, BrokerTokens.of(config, loop)
        counters, events, self.space = Counters(clock.machine.monotonic), EventLog(), _space(config)
        verifier = LogVerifier(counters, on_damage=self._damage_found)
        services = ReplicaServices(
            clock=clock,
            loop=loop,
            sync_workers=workers.sync,
            disk=self.disk_watch,
            on_failed=self._fail,
            on_damage=verifier.report_damage,
            space=self.space,
            counters=counters,
            events=events,
        )
        self.log_dirs = LogDirMonitor(store.log_dirs.further, config, services, workers.log_dirs)
        topics = TopicTable()
        self._administration = Administration(loop)
        cluster = self._make_cluster(config, journal, topics, surroundings)
        self.context = BrokerContext(
            config=config,
            clock=clock,
            loop=loop,
            broker_id=store.identity.broker_id,
            topics=topics,
            administration=self._administration,
            cluster=cluster,
            access=_access_control(config, cluster, clock),
            operations=ClusterOperations(cluster, topics, clock, self.space, self.log_dirs),
            purgatory=Purgatory(loop, config.queued_max_request_bytes // WAITING_FETCHES_PART),
            responses=ResponseBudget(config.queued_max_response_bytes),
            counters=counters,
            events=events,
            verifier=verifier,
            authenticator=_authenticator(config, loop, clock, surroundings, self.tokens),
            operator_secret=read_secret(config) if config.operations_require_secret else b"",
            cluster_secret=read_secret(config) if config.authentication_required else b"",
            entropy=surroundings.entropy,
        )
        self.connections = self._make_connections(workers.validation, surroundings)
        self._follow_cluster()
        self._make_audit()
        begin_to_coordinate(self.context, workers.schemas)
        self.housekeeping = self._keep_house(surroundings)
        self._tasks = self._start_tasks()
        self._watch_disks()

    def _watch_disks(self) -> None:
        self.disk_watch.start(
            on_logs_hung=partial(self._logs_hang, self._store.log_dirs[""]),
            while_hung=self._while_disk_hangs,
        )
        self.log_dirs.start(
            on_failed=self._log_dir_fails,
            on_hung=self._logs_hang,
            while_hung=self._while_disk_hangs,
        )

    def _make_connections(self, validation: Workers, surroundings: Surroundings) -> Connections:
        context = self.context
        return Connections(
            context.config,
            context.loop,
            responses=context.responses,
            counters=context.counters,
            turns=Turns(
                context.loop, context.clock.monotonic, context.counters.queue_seconds.observe
            ),
            workers=validation,
            on_request=partial(dispatch, context),
            on_kafka_request=partial(kafka_dispatch, context),
            may_connect=context.access.may_connect,
            on_lost=self._connection_lost,
            make_connection=surroundings.make_connection,
        )

    def _make_audit(self) -> None:
        context = self.context
        context.audit = Audit(
            context.loop,
            AuditTopic(context),
            broker_id=context.broker_id,
            counters=context.counters,
            wall_ms=context.clock.wall_ms,
            now=context.clock.monotonic,
        )
        context.authenticator.on_failure = context.audit.authentication_failed

    def _keep_house(self, surroundings: Surroundings) -> Housekeeping:
        context = self.context
        hosts = context.topics.hosts
        compactor = LogCleaner(
            context.config,
            hosts,
            self._workers.compaction,
            clock=context.clock,
            entropy=surroundings.entropy,
            verifier=context.verifier,
            on_failed=self._fail,
        )
        return Housekeeping(
            context.config, context.loop, hosts, context.verifier, compactor, self._save_copies
        )

    def _start_tasks(self) -> list[asyncio.Task[None]]:
        loop = self.context.loop
        data_dir = self._store.log_dirs[""]
        tasks = [
            loop.create_task(self._keep_time()),
            loop.create_task(self._settle_metrics()),
            loop.create_task(self._watch_space(data_dir, self.space, self._workers.sync)),
        ]
        for each in self.log_dirs.watched.values():
            watching = self._watch_space(each.log_dir, each.space, each.workers)
            tasks.append(loop.create_task(watching))
        if self.tls is not None:
            tasks.append(loop.create_task(self.tls.watch(self._workers.admin.run)))
        if self.tokens is not None:
            tasks.append(loop.create_task(self.tokens.watch()))
        return tasks

    async def _keep_time(self) -> None:
        """Compare the clocks periodically. Save the trusted time from time to time, and as a test
        write while the disk may hang.
        """
        loop, clock = self.context.loop, self.context.clock
        save_at, was_known = loop.time(), False
        while True:
            await asyncio.sleep(UPDATE_SECONDS)
            clock.update()
            is_new = not was_known and clock.deletion_ms() is not None
            was_known |= is_new
            # guard: a disk is probed during other long work
            if loop.time() >= save_at or is_new or self.disk_watch.is_suspect:
                save_at = loop.time() + limits.CLOCK_SAVE_S
                await self._save_time()

    async def _settle_metrics(self) -> None:
        while True:
            await asyncio.sleep(COUNT_SECONDS)
            self.context.counters.count_pending()

    async def _prepare(self) -> None:
        for note in self._store.notes:
            logger.warning("data directory: note=%s", note)
        # The next start needs this time, however soon it is: compared with an older one that is
        # later, a clock that has jumped forward would seem right.
        # guard: a start with a clock behind is noted
        if self._store.saved_time_ms is None or self.context.clock.is_behind_saved:
            await self._save_time()
        await self._measure_space()

    async def _watch_space(self, log_dir: LogDir, space: DiskSpace, workers: Workers) -> None:
        """Measure the space of a log directory periodically, and test if it still works."""
        loop, quarantine_at = self.context.loop, 0.0
        while not log_dir.failure:
            await asyncio.sleep(CHECK_SECONDS)
            # guard: a disk is tested without other work
            if log_dir.is_expendable:
                await workers.run(log_dir.probe)
            await self._measure(log_dir, space, workers)
            if loop.time() >= quarantine_at:
                quarantine_at = loop.time() + QUARANTINE_SECONDS
                with suppress(OSError):  # a copy was removed during the work
                    space.quarantine_bytes = await workers.run(
                        partial(self._store.quarantined_bytes, log_dir)
                    )

    async def _measure_space(self) -> None:
        await self._measure(self._store.log_dirs[""], self.space, self._workers.sync)

    async def _measure(self, log_dir: LogDir, space: DiskSpace, workers: Workers) -> None:
        """Measure the free disk space, and report a new level. An error changes no level."""
        if log_dir.failure:
            return
        try:
            measure = await workers.run(partial(log_dir.measure, tries_write=bool(space.failure)))
        except OSError as error:
            logger.warning("free disk space unknown: error=%s", error)
            return
        if log_dir is self._store.log_dirs[""]:
            shortage = self.context.cluster.journal_shortage
            if shortage is not None:
                space.write_failed(shortage)
        if not space.measured(measure):
            return
        free = f"{measure.free_bytes:,} bytes are free"
        text = space.reason or f"there is enough disk space again: {free}"
        level = logging.ERROR if space.reason else logging.WARNING
        logger.log(level, "disk space: level=%s reason=%s", space.state, text)
        self._note_disk_event(text)

    def _note_disk_event(self, text: str) -> None:
        context = self.context
        at_ms = context.clock.wall_ms()
        event = disk_event(context.broker_id, f"broker {context.broker_id}: {text}", at_ms)
        context.events.add(event, at_ms)

    def _log_dir_fails(self, log_dir: LogDir) -> None:
        """Do ``_log_dir_failed`` soon. Any thread may call."""
        self.context.loop.call_soon_threadsafe(self._log_dir_failed, log_dir)

    def _log_dir_failed(self, log_dir: LogDir) -> None:
        """Take the replicas in a log directory offline. The broker continues with the others."""
        logger.critical("log directory failed: path=%s reason=%s", log_dir.path, log_dir.failure)
        self._note_disk_event(log_dir.failure)
        for host in self.context.topics.hosts():
            if host.log.log_dir is log_dir:
                host.log.check_place()

    async def _save_time(self) -> None:
        time_ms = self.context.clock.deletion_ms()
        # guard: a directory has a time before it has records
        if time_ms is None and self._store.saved_time_ms is None:
            # The clocks of the others are not known yet. Without any time, the next start would
            # trust the first clocks that agree, which may be ahead of the records.
            time_ms = self.context.clock.wall_ms()
        if time_ms is None:
            return
        try:
            await self._workers.sync.run(partial(self._store.save_time, time_ms))
        except StorageFailedError as error:
            self._fail(error)

    def _make_cluster(
        self,
        config: BrokerConfig,
        journal: Journal,
        topics: TopicTable,
        surroundings: Surroundings,
    ) -> ClusterNode:
        for note in journal.notes:
            logger.warning("journal recovery: note=%s", note)
        return ClusterNode(
            config,
            read_secret(config),
            read_first_user(config, os.environ),
            self._store,
            journal,
            topics,
            ClusterServices(
                host=self.log_dirs.services,
                admin_worker=self._workers.admin,
                journal_worker=self._workers.journal,
                connector=surroundings.around_connector(SocketPeerConnector(self.tls)),
                chance=surroundings.chance,
                entropy=surroundings.entropy,
                new_id=surroundings.new_id,
                address=lambda: _reachable(self.context.address),
                kafka_address=lambda: _reachable(self.context.kafka_address),
                on_removed=surroundings.on_removed,
                peer_protocol=surroundings.peer_protocol,
            ),
        )

    def _follow_cluster(self) -> None:
        context, cluster = self.context, self.context.cluster
        cluster.on_access = context.access.changed
        cluster.on_users = self._users_changed
        context.authenticator.is_current = lambda: cluster.is_current
        context.authenticator.on_revoked = self._end_revoked

    def _users_changed(self, change: ClusterChange) -> None:
        """Use the changed users and tokens, and close the connections of revoked ones."""
        context = self.context
        if change.users:
            context.authenticator.users_changed(context.cluster.machine)
        if change.tokens:
            context.authenticator.tokens_changed(context.cluster.machine)
        self._end_revoked()

    def _end_revoked(self) -> None:
        # guard: connections of revoked users are closed
        self.connections.close_each(
            self.context.authenticator.is_revoked,
            "the user was deleted, its password was changed, or its delegation token has ended",
        )

    def _damage_found(self, host: Partition) -> None:
        self.context.cluster.partitions.schedule_host(host)

    def _connection_lost(self, connection: Connection) -> None:
        self.context.purgatory.cancel(connection)
        self.context.coordinator.forget(connection)
        self.context.access.forget(connection)
        self.context.cluster.forget(connection)

    @classmethod
    async def start(
        cls,
        config: BrokerConfig,
        *,
        clock: Clock,
        disk: Disk,
        on_fatal: OnFatal,
        listening: Sequence[socket.socket] = (),
        kafka_listening: socket.socket | None = None,
        any_id: bool = False,
        address: Address = NO_ADDRESS,
        surroundings: Surroundings = REAL,
    ) -> Broker:
        """Recover the data directory, then serve. Raises ``DataDirectoryError``, and
        ``InvalidConfigError`` for assignors or certificates that cannot be loaded.

        Without sockets to listen on, connections are created by ``connections.make()`` only.
        ``any_id``: use the id of the data directory. ``kafka_listening``: of ``kafka.listen``.
        ``address``: of a broker without sockets, for clients. A broker without a cluster secret
        leads its partitions before it listens.
        """
        load_assignors(config.group_assignors)  # before any file is opened
        loop = asyncio.get_running_loop()
        tls = BrokerTls(config, loop.time) if config.tls_certificate_file else None
        workers = BrokerWorkers.make(loop, surroundings.make_workers)

        def open_files() -> tuple[Store, Journal, BrokerConfig]:
            return _open_files(
                disk, config, any_id=any_id, new_id=surroundings.new_id, now_ms=clock.wall_ms()
            )

        opening = asyncio.ensure_future(workers.admin.run(open_files))
        try:
            store, journal, config = await asyncio.shield(opening)
        except asyncio.CancelledError:
            store, journal, _config = await opening  # otherwise the lock would never be released
            store.abandon()
            journal.close()
            workers.stop()
            raise
        except BaseException:
            workers.stop()
            raise
        workers.add_log_dirs(store, loop, surroundings.make_workers)
        broker_clock = BrokerClock(
            clock,
            broker_id=store.identity.broker_id,
            # A broker that joins a cluster learns there whose clocks count.
            voters=None if config.join else [voter.id for voter in config.voters],
            saved_ms=store.saved_time_ms,
        )
        broker = cls(
            config,
            store,
            broker_clock,
            workers,
            on_fatal,
            journal,
            tls=tls,
            surroundings=surroundings,
        )
        broker.context.address = address
        await broker._prepare()
        broker._advertise(listening, kafka_listening)
        broker.context.cluster.start()
        if not config.has_secret:  # so no other broker has to connect first
            await broker.context.cluster.until_leading()
        await broker._listen(listening, kafka_listening)
        return broker

    def _advertise(
        self, listening: Sequence[socket.socket], for_kafka: socket.socket | None
    ) -> None:
        context, config = self.context, self.context.config
        if listening:
            context.address = advertised(
                config.listen, address_of(listening[0]), config.advertised_listen
            )
        if for_kafka is not None and config.kafka_listen is not None:
            context.kafka_address = advertised(
                config.kafka_listen, address_of(for_kafka), config.kafka_advertised_listen
            )

    async def _listen(
        self, listening: Sequence[socket.socket], for_kafka: socket.socket | None
    ) -> None:
        if for_kafka is not None:
            await self._serve(for_kafka, self.connections.make_for_kafka)
        for sock in listening:
            await self._serve(sock, self.connections.make)

    async def _serve(self, listening: socket.socket, make: Callable[[], Connection]) -> None:
        server = await self.context.loop.create_server(
            make, sock=listening, **tls_options(None if self.tls is None else self.tls.listener)
        )
        self._servers.append(server)

    async def stop(self) -> None:
        """Respond to requests in flight (in bounded time), sync everything, and close.

        Raises ``StorageFailedError`` if the disk failed, now or before.
        """
        context = self.context
        loop = context.loop
        deadline = loop.time() + context.config.controlled_shutdown_timeout_ms / 1_000
        if self.failure is None:
            await context.cluster.hand_over(seconds_max=deadline - loop.time())
        context.is_stopping = True
        for server in self._servers:
            server.close()
        await self.housekeeping.stop()
        for task in self._tasks:
            task.cancel()
        context.authenticator.stop()
        await context.audit.stop()
        context.purgatory.expire_all()
        await context.transactions.stop()
        await context.coordinator.stop()
        context.registry.close()
        await self.connections.drain(seconds_max=max(0.0, deadline - loop.time()))
        await self._administration.finish()
        await context.cluster.stop()
        hosts = context.topics.hosts()
        for host in hosts:
            host.close(BrokerUnavailableError("the broker stops"))
        await quiet(hosts)
        try:
            if self.failure is not None:
                raise self.failure
            await self._save_time()
            await self._workers.admin.run(self._store.close)
        except StorageFailedError:
            self._store.abandon()
            raise
        finally:
            self.disk_watch.stop()
            self.log_dirs.stop()
            self._workers.stop()

    async def _save_copies(self) -> None:
        try:
            with suppress(DiskFullError):  # the older records remain valid
                await self._workers.sync.run(self._store.save_copies)
        except StorageFailedError as error:
            self._fail(error)

    def _logs_hang(self, log_dir: LogDir) -> None:
        """Fail the waits for the disk. ``cluster.role_manager`` proposes other leaders."""
        for host in self.context.topics.hosts():
            if host.log.log_dir is log_dir:
                host.disk_hangs()

    def _while_disk_hangs(self) -> None:
        """Stop while the disk hangs, if that is necessary.

        A broker that receives SIGTERM stops without its disk. A broker whose journal hangs cannot
        transfer leadership, but its end lets the other connected brokers elect leaders. If they are
        no majority, its end would only remove what it can still do, so it keeps running.
        """
        cluster = self.context.cluster
        if self.context.is_stopping:
            self._end(StorageFailedError("the disk hangs while the broker stops"), HUNG_ADVICE)
        # guard: a broker whose journal hangs ends
        elif self.disk_watch.is_journal_hung:
            # guard: a broker whose journal hangs stays where no other could continue
            if not cluster.can_others_decide():
                return
            what = "the consensus journal waits for a disk that hangs: this broker can neither "
            self._end(StorageFailedError(what + "vote nor transfer leadership"), HUNG_ADVICE)

    def _fail(self, error: StorageFailedError) -> None:
        """Stop: the disk is not reliable any longer. A retry does not help; only recovery can
        determine the state.
        """
        self._end(error, FAILED_ADVICE)

    def _end(self, error: StorageFailedError, advice: str) -> None:
        if self.failure is not None:
            return
        self.failure = error
        logger.critical("broker stops: error=%s. %s", error, advice)
        self._on_fatal(error)
        self._administration.close(error)
        self.context.transactions.close(error)
        self.context.coordinator.close(error)
        for host in self.context.topics.hosts():
            host.close(error)


def _open_files(
    disk: Disk, config: BrokerConfig, *, any_id: bool, new_id: Callable[[], str], now_ms: int
) -> tuple[Store, Journal, BrokerConfig]:
    """Open the store and the consensus journal. Blocking.

    Returns them with the settings of the broker: one that joined its cluster needs neither `voters`
    nor `join` later, and one without others is the only voter of its cluster.
    """
    saved = state_files.read_brokers(disk, config.data_dir)
    known = {broker: at for broker, at in sorted(saved.items()) if broker != config.id}
    others = tuple(known.values()) if len(saved) > 1 or not any_id else ()
    if others and not (config.voters or config.join or any_id):
        config = config.joining(others)
    is_alone = not (others or config.join or len(config.voters) > 1)
    store = Store.open(
        disk,
        config.data_dir,
        broker_id=None if any_id else config.id,
        cluster_id="",
        new_id=new_id,
        has_peers=not is_alone,
        log_dirs=config.log_dirs,
    )
    try:
        if any_id and others:
            raise DataDirectoryError(
                f"the data directory {config.data_dir} belongs to a broker in cluster "
                f"{store.identity.cluster_id}, which has other brokers. Start it as a broker"
            )
        if migration.is_needed(store, disk):
            _check_alone(config, is_alone=is_alone)
            migration.migrate(store, disk, config, now_ms=now_ms)
        # A broker has votes in its journal: a missing journal is corruption.
        journal = Journal.open(disk, store.journal_path, create=not store.identity.cluster_id)
    except BaseException:
        store.abandon()
        raise
    if not (config.voters or config.join):
        if journal.peers and not saved:
            journal.close()
            store.abandon()
            raise DataDirectoryError(
                f"the data directory {config.data_dir} belongs to a broker in cluster "
                f"{store.identity.cluster_id}, and the addresses of the other brokers are lost. "
                "Set `join` to the address of one of them"
            )
        config = replace(config, id=store.identity.broker_id).alone()
    return store, journal, config


def _check_alone(config: BrokerConfig, *, is_alone: bool) -> None:
    if not is_alone:
        setting = "voters" if config.voters else "join"
        raise DataDirectoryError(
            f"the data directory {config.data_dir} is of a broker without other brokers, and "
            f"`{setting}` names others. Start the broker once without `{setting}`, so that the "
            "directory becomes that of a cluster. Then other brokers can join it: set `join` on "
            "them. Or select an empty directory"
        )


def _access_control(
    config: BrokerConfig, cluster: ClusterNode, clock: BrokerClock
) -> AccessControl:
    return AccessControl(
        cluster.topics,
        is_enforced=config.authentication_required,
        super_users=config.super_users,
        now=clock.monotonic,
    )


def _authenticator(
    config: BrokerConfig,
    loop: asyncio.AbstractEventLoop,
    clock: BrokerClock,
    surroundings: Surroundings,
    tokens: BrokerTokens | None,
) -> Authenticator:
    return Authenticator(config, loop, surroundings.entropy, clock.machine.wall_ms, tokens)


def _watch(
    config: BrokerConfig, loop: asyncio.AbstractEventLoop, workers: BrokerWorkers
) -> DiskWatch:
    return DiskWatch(
        loop,
        sync=workers.sync,
        journal=workers.journal,
        others=(workers.admin, workers.compaction),
        timeout_s=config.disk_stall_timeout_ms / 1_000,
    )


def _space(config: BrokerConfig) -> DiskSpace:
    return DiskSpace(
        producers=config.disk_watermark_producers,
        replication=config.disk_watermark_replication,
    )


def read_secret(config: BrokerConfig) -> bytes:
    """Return the cluster secret. Raises ``InvalidConfigError``."""
    if not config.cluster_secret_file:
        return config.cluster_secret.encode()
    secret = _read_private("cluster.secret.file", config.cluster_secret_file)
    if len(secret) < limits.CLUSTER_SECRET_CHARS_MIN:
        raise InvalidConfigError(
            f"cluster.secret.file={config.cluster_secret_file} contains {len(secret)} bytes: an "
            f"attacker can guess it. Use at least {limits.CLUSTER_SECRET_CHARS_MIN} (head -c 32 "
            "/dev/urandom | base64)"
        )
    return secret


def read_first_user(
    config: BrokerConfig, environment: Mapping[str, str]
) -> PlainCredentials | None:
    """Return the first user of a new cluster; None if none is configured.

    A missing file is no error: an operator deletes it after the first start. Raises
    ``InvalidConfigError`` if the text is not NAME:PASSWORD.
    """
    source, text = ADMIN_VARIABLE, environment.get(ADMIN_VARIABLE, "")
    if not text and config.admin_credentials_file:
        source = f"admin.credentials.file={config.admin_credentials_file}"
        if not os.path.exists(config.admin_credentials_file):
            return None
        text = _read_private("admin.credentials.file", config.admin_credentials_file).decode(
            errors="replace"
        )
    if not text:
        return None
    name, colon, password = text.strip().partition(":")
    try:
        check_user_name(name)
        if not colon or not (
            limits.PASSWORD_CHARS_MIN <= len(password) <= limits.PASSWORD_CHARS_MAX
        ):
            raise InvalidRequestError(
                f"the password must have {limits.PASSWORD_CHARS_MIN} to "
                f"{limits.PASSWORD_CHARS_MAX} characters"
            )
    except InvalidRequestError as error:
        raise InvalidConfigError(f"{source} is not NAME:PASSWORD: {error}") from error
    return PlainCredentials(name, password)


def _read_private(setting: str, path: str) -> bytes:
    """Return the contents of a file with a secret, without spaces at both ends.

    Raises ``InvalidConfigError`` if it cannot be read, or if other users can read or change it.
    """
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read(limits.CLUSTER_SECRET_CHARS_MAX + 1).strip()
    except OSError as error:
        raise InvalidConfigError(f"{setting}={path} cannot be read: {error.strerror}") from error
    # guard: a secret file must be private
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise InvalidConfigError(
            f"{setting}={path} has the mode {mode:04o}: every user of this machine can read or "
            "change the secret. Run chmod 600 on it, and create a new secret if other users could "
            "have read this one"
        )
    return secret


# -- wiring ----------------------------------------------------------------------------------------
#
# Creates a broker's coordinator and connects it to its events. Decides nothing.


MINUTE_MS: Final = 60_000


def begin_to_coordinate(context: BrokerContext, for_schemas: Workers) -> None:
    """Create the coordinators and the schema registry of the broker.

    Raises ``InvalidConfigError`` about ``group.assignors``.
    """
    table, cluster = context.topics, context.cluster
    coordinator = Coordinator(
        CoordinatorServices(
            loop=context.loop,
            clock=context.clock,
            topics=table,
            agreed=partial(agreed_topics, cluster.machine),
            new_groups=_maker(context.config),
            confirm=cluster.confirm,
            on_unreadable=partial(_verify_unreadable, context),
        )
    )
    context.coordinator = coordinator
    context.lookup = Lookup(table, _maker_of(context, OFFSETS_TOPIC))
    registry = context.registry = SchemaRegistry(
        context,
        _maker_of(context, SCHEMAS_TOPIC),
        for_schemas,
        confirm=cluster.confirm,
        on_unreadable=partial(_verify_unreadable, context),
    )

    transactions = context.transactions = TransactionCoordinator(
        context,
        _maker_of(context, TRANSACTIONS_TOPIC),
        confirm=cluster.confirm,
        on_unreadable=partial(_verify_unreadable, context),
    )

    def poll() -> None:
        coordinator.poll_soon()
        transactions.poll_soon()
        registry.poll()

    table.on_change = poll
    cluster.on_role = poll
    cluster.on_topics = coordinator.topics_changed
    cluster.on_version = coordinator.version_changed
    coordinator.poll_soon()


def _maker_of(context: BrokerContext, topic: str) -> TopicMaker:
    """Return what creates an internal topic. One with many partitions has its own settings."""
    config = context.config
    partitions, replication_factor, segment_bytes = {
        OFFSETS_TOPIC: (
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            config.offsets_topic_segment_bytes,
        ),
        TRANSACTIONS_TOPIC: (
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
            config.transaction_state_log_segment_bytes,
        ),
    }.get(topic, (1, 0, 0))
    return TopicMaker(
        topic,
        context.topics,
        context.administration,
        partitions=partitions,
        replication_factor=replication_factor,
        settings={"segment.bytes": str(segment_bytes)} if segment_bytes else {},
        authority=context.cluster.topics,
        copies=partial(_copies, context),
        now=context.loop.time,
    )


def _maker(config: BrokerConfig) -> partial[GroupShard]:
    assignors, default = load_assignors(config.group_assignors)
    settings = GroupSettings(
        session_timeout_ms_min=config.group_min_session_timeout_ms,
        session_timeout_ms_max=config.group_max_session_timeout_ms,
        offsets_retention_ms=config.offsets_retention_minutes * MINUTE_MS,
        members_per_group_max=config.group_max_size,
        default_assignor=default,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
    )
    return partial(GroupShard, settings, assignors)


def _verify_unreadable(context: BrokerContext, host: Partition, offset: Offset) -> None:
    context.verifier.verify_suspect(host, offset, bytes_max=SUSPECT_BYTES_MAX)


def _copies(context: BrokerContext) -> tuple[int, int]:
    """Return the replicas that a topic without a replication factor should have, and how many
    brokers can get one now.
    """
    config, machine = context.config, context.cluster.machine
    wanted = usual_copies(machine.brokers.values(), founders=len(config.voters))
    return config.default_replication_factor or wanted, len(machine.placeable())


# -- audit topic -----------------------------------------------------------------------------------
#
# The topic ``__audit``, which this broker creates and appends to, or another one that leads it.


TIMEOUT_SECONDS: Final = 10.0
# 30 days or 1 GiB.
SETTINGS: Final = {"retention.ms": str(30 * 86_400_000), "retention.bytes": str(1 << 30)}


class AuditTopic:
    """The ``AuditLog`` of a broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    async def write(self, batch: bytes) -> None:
        """Append a batch, and return when it is committed."""
        context = self._context
        topic = context.topics.get(AUDIT_TOPIC)
        if topic is None:
            context.topics.check_complete()
            await self._create()
            topic = context.topics.topic(AUDIT_TOPIC)
        leader = context.topics.info(topic, 0).leader
        if leader is None:
            raise LeaderNotAvailableError(f"{AUDIT_TOPIC}:0 has no leader")
        try:
            async with timeout(TIMEOUT_SECONDS):
                if leader == context.broker_id:
                    await self._append(batch)
                else:
                    await self._send(leader, batch)
        except TimeoutError as error:
            raise RequestTimedOutError(
                f"{AUDIT_TOPIC}:0 has not committed a batch within {TIMEOUT_SECONDS:g} s"
            ) from error

    async def _create(self) -> None:
        """Create the topic, in turn with other changes of topics."""
        context = self._context
        created: Future[None] = context.loop.create_future()

        async def create() -> None:
            with suppress(TopicExistsError):  # another broker was first
                await context.cluster.topics.create(
                    AUDIT_TOPIC, partitions=1, replication_factor=0, config=SETTINGS
                )

        context.administration.submit_work(create, partial(_resolve, created))
        await created

    async def _append(self, batch: bytes) -> None:
        host = self._context.topics.host(AUDIT_TOPIC, 0)
        stored: Future[None] = self._context.loop.create_future()

        def done(result: Stored | RaftlogError) -> None:
            _resolve(stored, result if isinstance(result, RaftlogError) else None)

        append(host, batch, parse_header(batch), ACKS_ALL, done)
        await stored

    async def _send(self, leader: int, batch: bytes) -> None:
        part = ProducePartition(topic=AUDIT_TOPIC, partition=0, length=len(batch))
        request = ProduceRequest(acks=ACKS_ALL, partitions=[part])
        links = self._context.cluster.links
        answer = (await links.request(leader, apis.PRODUCE, request, [batch])).message
        assert isinstance(answer, ProduceResponse)
        for result in answer.partitions:
            if result.failure is not None:
                raise result.failure.to_error()


def _resolve(future: Future[None], error: RaftlogError | None) -> None:
    if future.done():
        return  # it was cancelled
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
