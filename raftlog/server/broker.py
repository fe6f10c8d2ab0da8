"""The broker: one data directory, its partitions, their clients. Wires the parts; decides nothing.

The same core runs behind sockets (``main``), inside a program (``raftlog.embedded``) and in tests.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from raftlog import limits
from raftlog.clock import Clock
from raftlog.config import Address, BrokerConfig
from raftlog.disk import Disk
from raftlog.errors import BrokerUnavailableError, StorageFailedError
from raftlog.server.administration import Administration, quiet
from raftlog.server.budgets import ResponseBudget
from raftlog.server.context import BrokerContext
from raftlog.server.dispatch import dispatch
from raftlog.server.housekeeping import Housekeeping
from raftlog.server.listener import Connections, address_of
from raftlog.server.metrics import Counters
from raftlog.server.purgatory import Purgatory
from raftlog.server.replica_host import HostServices
from raftlog.server.topic_table import TopicTable
from raftlog.server.workers import Workers
from raftlog.storage import Store

logger = logging.getLogger(__name__)

EVERYWHERE: Final = ("0.0.0.0", "::")


def advertised(config: BrokerConfig, listening: Address) -> Address:
    """Where clients are told to find the broker: as configured, but with the port that it got.

    Of a broker that listens everywhere, each client is told the address at which it came in (the
    host is left empty here).
    """
    if config.advertised_listen is not None:
        return config.advertised_listen
    host = config.listen.host
    return Address("" if host in EVERYWHERE else host, listening.port)


@dataclass(frozen=True, slots=True)
class BrokerWorkers:
    """A broker's threads: for syncing logs, and for administration."""

    sync: Workers
    admin: Workers

    def stop(self) -> None:
        self.sync.stop()
        self.admin.stop()


# Hears of a disk that is not to be trusted. It may end the process there and then; if it returns,
# the broker answers every request with the error from then on, and writes nothing more.
OnFatal: TypeAlias = Callable[[StorageFailedError], None]


class Broker:
    """Made by ``start``, ended by ``stop``; lives on one event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        clock: Clock,
        workers: BrokerWorkers,
        on_fatal: OnFatal,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.failure: StorageFailedError | None = None
        self._store = store
        self._workers = workers
        self._on_fatal = on_fatal
        self._servers: list[asyncio.Server] = []
        services = HostServices(
            clock=clock, loop=loop, sync_workers=workers.sync, on_failed=self._fail
        )
        topics = TopicTable()
        self._administration = Administration(store, topics, services, workers.admin)
        self.context = BrokerContext(
            config=config,
            clock=clock,
            loop=loop,
            broker_id=store.identity.broker_id,
            cluster_id=store.identity.cluster_id,
            topics=topics,
            administration=self._administration,
            purgatory=Purgatory(loop),
            responses=ResponseBudget(config.queued_max_response_bytes),
            counters=Counters(),
        )
        self.connections = Connections(
            config,
            loop,
            responses=self.context.responses,
            counters=self.context.counters,
            on_request=partial(dispatch, self.context),
            on_lost=self.context.purgatory.cancel,
        )
        self._administration.load()
        self.housekeeping = Housekeeping(config, loop, topics.hosts)

    @classmethod
    async def start(
        cls,
        config: BrokerConfig,
        *,
        clock: Clock,
        disk: Disk,
        on_fatal: OnFatal,
        listening: Sequence[socket.socket] = (),
        any_id: bool = False,
    ) -> Broker:
        """Recover the data directory, then serve. Raises ``DataDirectoryError``.

        Without sockets to listen on, connections come by ``connections.make()`` alone. With
        ``any_id``, the broker is whoever the data directory says, not ``config.id``.
        """
        loop = asyncio.get_running_loop()
        workers = BrokerWorkers(
            sync=Workers(loop, count=limits.SYNC_THREADS, name="sync"),
            admin=Workers(loop, count=1, name="admin"),
        )
        opening = asyncio.ensure_future(
            workers.admin.run(
                lambda: Store.open(disk, config.data_dir, broker_id=None if any_id else config.id)
            )
        )
        try:
            store = await asyncio.shield(opening)
        except asyncio.CancelledError:
            (await opening).abandon()  # or its lock would be held for ever
            workers.stop()
            raise
        except BaseException:
            workers.stop()
            raise
        broker = cls(config, store, clock, workers, on_fatal)
        await broker._listen(listening)
        return broker

    async def _listen(self, listening: Sequence[socket.socket]) -> None:
        context = self.context
        if listening:
            context.address = advertised(context.config, address_of(listening[0]))
        for sock in listening:
            server = await context.loop.create_server(self.connections.make, sock=sock)
            self._servers.append(server)

    async def stop(self) -> None:
        """Answer what is in flight (in bounded time), make everything durable, and close.

        Raises ``StorageFailedError`` if the disk failed, now or before.
        """
        context = self.context
        context.is_stopping = True
        for server in self._servers:
            server.close()
        await self.housekeeping.stop()
        context.purgatory.expire_all()
        seconds_max = context.config.controlled_shutdown_timeout_ms / 1_000
        await self.connections.drain(seconds_max=seconds_max)
        await self._administration.finish()
        hosts = context.topics.hosts()
        for host in hosts:
            host.close(BrokerUnavailableError("the broker stops"))
        await quiet(hosts)
        try:
            if self.failure is not None:
                raise self.failure
            await self._workers.admin.run(self._store.close)
        except StorageFailedError:
            self._store.abandon()
            raise
        finally:
            self._workers.stop()

    def _fail(self, error: StorageFailedError) -> None:
        """The disk is not to be trusted any more. Retrying is no cure: only recovery can tell."""
        if self.failure is not None:
            return
        self.failure = error
        logger.critical(
            "%s. The broker ends: what the disk holds is unknown, and syncing again would not tell "
            "(the kernel may have dropped the data). Check the disk (dmesg, SMART) and free space "
            "on it, then start the broker again: it recovers what is there",
            error,
        )
        self._on_fatal(error)
        self._administration.close(error)
        for host in self.context.topics.hosts():
            host.close(error)
