"""``raftlog.open(path)``: a log inside this program, without a server and sockets.

The broker's core and the usual clients run on one background thread and are connected in memory.
All features use the same code. The files are those of a broker: a broker can open them when the
log is closed, and the other way round. A lock prevents that two programs open them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

from raftlog import limits
from raftlog.client.administration.admin import Admin
from raftlog.client.base import ClientEnvironment
from raftlog.client.connection import Connection
from raftlog.client.consumer import Consumer
from raftlog.client.producer import Producer
from raftlog.client.scan import ClusterSource, Scan
from raftlog.client.threads import Closeable, LoopThread
from raftlog.clock import SystemClock
from raftlog.config import Address, BrokerConfig
from raftlog.disk import Disk, OsDisk
from raftlog.errors import ClosedError, StorageFailedError, TopicExistsError
from raftlog.memory_transport import join
from raftlog.server.broker import Broker
from raftlog.types import NewTopic

if TYPE_CHECKING:
    from raftlog.mirror.table import Table

logger = logging.getLogger(__name__)

ClientT = TypeVar("ClientT", Producer, Consumer, Admin, "Table")

# Address that clients get. It is never resolved: the connector connects to the broker directly.
ADDRESS: Final = Address("embedded", 1)


class EmbeddedLog(Closeable):
    """An open log. Use ``raftlog.open``; close it, or use ``with``.

    Its clients work from any thread while it is open. ``close`` closes them; producers first send
    their buffered records. After a disk failure every call raises ``StorageFailedError``.
    """

    _closed = True  # until it is open, there is nothing to close

    def __init__(
        self, path: str | os.PathLike[str], settings: Mapping[str, str], *, disk: Disk
    ) -> None:
        self.path = os.fspath(path)
        config = BrokerConfig.from_text({**settings, "data.dir": self.path})
        self._thread = LoopThread("raftlog-embedded")
        self._clients: weakref.WeakSet[Producer | Consumer | Admin | Table] = weakref.WeakSet()
        self._scratch = memoryview(bytearray(limits.RECEIVE_BYTES))

        starting: list[asyncio.Task[Broker]] = []

        async def start() -> Broker:
            begun = Broker.start(
                config,
                clock=SystemClock(),
                disk=disk,
                on_fatal=_noted,
                any_id=True,
                address=ADDRESS,
            )
            starting.append(asyncio.ensure_future(begun))
            return await asyncio.shield(starting[0])

        async def end() -> None:
            for task in starting:
                await asyncio.wait([task])
                if not task.cancelled() and task.exception() is None:
                    await task.result().stop()

        try:
            self._broker = self._thread.call(start)
        except Exception:
            self._thread.stop()
            raise
        except BaseException:
            # Ctrl-C. A start that was cut off would keep the directory until the process ends.
            self._thread.abandon(end, stop=True)
            raise
        self._host = ClientEnvironment(connector=self._connect, loop_thread=self._thread)
        self._closed = False

    def __repr__(self) -> str:
        return f"EmbeddedLog({self.path!r}{', closed' if self._closed else ''})"

    # -- clients

    def producer(self, **settings: Any) -> Producer:
        """A producer for this log; ``settings`` are those of ``raftlog.Producer``."""
        return self._keep(Producer(str(ADDRESS), host=self._open_host(), **settings))

    def consumer(self, **settings: Any) -> Consumer:
        """A consumer of this log; ``settings`` are those of ``raftlog.Consumer``."""
        return self._keep(Consumer(str(ADDRESS), host=self._open_host(), **settings))

    def admin(self, **settings: Any) -> Admin:
        """An admin of this log; ``settings`` are those of ``raftlog.Admin``."""
        return self._keep(Admin(str(ADDRESS), host=self._open_host(), **settings))

    def scan(self, topic: str, **settings: Any) -> Scan:
        """The records of a topic as a table; ``settings`` are those of ``raftlog.scan``."""
        return Scan(self.records(), topic, **settings)

    def table(self, topic: str, **settings: Any) -> Table:
        """A compacted topic as a map; ``settings`` are those of ``raftlog.Table``."""
        from raftlog.mirror.table import Table

        return self._keep(Table(topic, bootstrap=str(ADDRESS), host=self._open_host(), **settings))

    def records(self) -> ClusterSource:
        """The source of scans of this log."""
        return ClusterSource(str(ADDRESS), host=self._open_host())

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        config: Mapping[str, str] | None = None,
        if_not_exists: bool = False,
    ) -> None:
        """Create a topic. Raises ``TopicExistsError``, unless ``if_not_exists``."""
        with self.admin() as admin:
            try:
                admin.create_topics([NewTopic(name, partitions, config=config or {})])
            except TopicExistsError:
                if not if_not_exists:
                    raise

    # -- the end

    def close(self) -> None:
        """Close the clients, sync all data and release the directory. Idempotent.

        Raises ``StorageFailedError`` if the disk has failed, now or before, and the error of a
        client, such as one of its ``on_revoke``.
        """
        if self._closed:
            return
        self._closed = True
        with ExitStack() as ends:  # each of them, also after an error of another one
            ends.callback(self._thread.stop)
            ends.callback(self._thread.call, self._broker.stop)
            for client in list(self._clients):
                ends.callback(client.close)

    def __del__(self) -> None:
        if not self._closed:
            warnings.warn(
                f"unclosed {self!r}: close it, or use `with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            self._thread.abandon(self._broker.stop, stop=True)

    # -- inside

    def _open_host(self) -> ClientEnvironment:
        if self._closed:
            raise ClosedError(f"the log in {self.path} was closed")
        return self._host

    def _keep(self, client: ClientT) -> ClientT:
        self._clients.add(client)
        return client

    async def _connect(self, host: str, port: int, /) -> Connection:
        """Open a connection to the broker, on the loop of both."""
        if self._broker.context.is_stopping:
            raise ClosedError(f"the log in {self.path} was closed")
        connection = Connection(Address(host, port), scratch=self._scratch)
        join(self._broker.context.loop, connection, self._broker.connections.make())
        return connection


def _noted(error: StorageFailedError) -> None:
    """Log the failure at debug level: the broker has logged it, and each request reports it."""
    logger.debug("embedded log failed: %s", error)


def open(  # noqa: A001 - its name is ``raftlog.open``
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, str] | None = None,
    disk: Disk | None = None,
) -> EmbeddedLog:
    """Open or create the log in the directory ``path``, for this process only.

    ``settings``: a broker's, such as ``{"log.retention.check.interval.ms": "60000"}``. ``disk``:
    for tests. Raises ``DataDirectoryError`` if the log is open already, in this process or another,
    or if the directory is not writable; ``InvalidConfigError`` for an invalid setting.
    """
    return EmbeddedLog(path, settings or {}, disk=disk or OsDisk())
