"""Client pool of this process: clients are created on demand and lent to one user at a time.

Spark runs many short tasks in one Python worker, and plans many reads in another. A new connection
for each task would cost more than the read. Pooled clients are never pickled.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar
from weakref import WeakSet

from pyspark_raftlog.offsets import StreamOffset
from pyspark_raftlog.options import (
    FETCH_TIMEOUT_MS_DEFAULT,
    RETRIES_DEFAULT,
    RETRY_INTERVAL_MS_DEFAULT,
    Settings,
    SourceOptions,
)
from raftlog.errors import RaftlogError
from raftlog.types import Offset, TopicPartition

if TYPE_CHECKING:
    from pyspark_raftlog.catalog import Catalog
    from raftlog import Admin
    from raftlog.client.readers import RangeReader


IDLE_MAX: Final = 4  # clients of one kind that are kept, over all connections


@dataclass(frozen=True, slots=True)
class Connection:
    """Broker addresses, timeouts and client settings. Equal connections share pooled clients.

    ``timeout_ms``: of one query with its retries, and of one request. ``connecting``: arguments
    of every client. ``reading``: further arguments of clients that read records.
    """

    bootstrap: str
    timeout_ms: int = FETCH_TIMEOUT_MS_DEFAULT
    retries: int = RETRIES_DEFAULT
    retry_interval_ms: int = RETRY_INTERVAL_MS_DEFAULT
    connecting: Settings = ()
    reading: Settings = ()

    def arguments(self, *, reading: bool) -> dict[str, Any]:
        """Return the constructor arguments of a client. ``reading``: include those of consumers."""
        found: dict[str, Any] = {"request_timeout_ms": self.timeout_ms, **dict(self.connecting)}
        return found | dict(self.reading) if reading else found


def connection_of(options: SourceOptions) -> Connection:
    """Return the connection that the options of a read describe."""
    return Connection(
        options.bootstrap,
        options.fetch_timeout_ms,
        options.retries,
        options.retry_interval_ms,
        options.connection,
        options.reading,
    )


class Client(Protocol):
    """What the pool requires of a client."""

    def close(self) -> None: ...


ClientT = TypeVar("ClientT", bound=Client)

_lenders: Final[WeakSet[ClientPool[Any]]] = WeakSet()


class ClientPool(Generic[ClientT]):
    """Lends clients of one kind. Safe to share between threads, and to fork."""

    def __init__(self, make: Callable[[Connection], ClientT], *, idle_max: int = IDLE_MAX) -> None:
        self._make = make
        self._idle_max = idle_max
        self._idle: list[tuple[Connection, ClientT]] = []  # most recently used last
        self._left_behind: list[object] = []  # clients of the parent process
        self._lock = threading.Lock()
        self._closes_at_exit = False
        _lenders.add(self)

    @contextmanager
    def lend(self, connection: Connection) -> Iterator[ClientT]:
        """Lend a client exclusively for the duration of the block.

        It returns to the pool afterwards, unless the block ends with an error or during a read.
        """
        client = self._take(connection)
        try:
            yield client
        except BaseException:
            client.close()
            raise
        self._give_back(connection, client)

    def _take(self, connection: Connection) -> ClientT:
        with self._lock:
            for index in reversed(range(len(self._idle))):
                if self._idle[index][0] == connection:
                    return self._idle.pop(index)[1]
        return self._make(connection)

    def _give_back(self, connection: Connection, client: ClientT) -> None:
        with self._lock:
            self._idle.append((connection, client))
            surplus = self._idle[: -self._idle_max]
            del self._idle[: -self._idle_max]
            if not self._closes_at_exit:
                # Registered after the first client exists: exit handlers run in reverse order, so
                # the pool closes before the exit handlers that the client registered.
                self._closes_at_exit = True
                atexit.register(self.close)
        _close_all(surplus)

    def close(self) -> None:
        """Close the clients that are not lent. The pool can still be used."""
        with self._lock:
            idle, self._idle = self._idle, []
        _close_all(idle)

    def leave_behind(self) -> None:
        """Drop the pooled clients after a fork. Does not close them: the parent uses them."""
        self._left_behind.append(self._idle)  # neither closed nor collected
        self._idle = []
        self._lock = threading.Lock()  # another thread may have held it when the process was forked


def _close_all(idle: list[tuple[Connection, ClientT]]) -> None:
    with ExitStack() as closing:  # all of them, even if one fails
        for _, client in idle:
            closing.callback(client.close)


def _make_range_reader(connection: Connection) -> RangeReader:
    from raftlog.client.readers import RangeReader

    arguments = connection.arguments(reading=True)
    arguments.pop("fetch_min_bytes", None)  # not needed: the requested records exist
    return RangeReader(connection.bootstrap, **arguments)


def _make_catalog(connection: Connection) -> Catalog:
    from pyspark_raftlog.catalog import Catalog
    from raftlog import Admin

    arguments = connection.arguments(reading=False)
    arguments.pop("metadata_max_age_ms", None)  # not needed: every call queries the brokers
    return Catalog(
        Admin(connection.bootstrap, **arguments),
        timeout_ms=connection.timeout_ms,
        retries=connection.retries,
        retry_interval_ms=connection.retry_interval_ms,
    )


range_readers: Final = ClientPool(_make_range_reader)
catalogs: Final = ClientPool(_make_catalog)


def _after_fork_in_child() -> None:
    for lender in _lenders:
        lender.leave_behind()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# -- group progress --------------------------------------------------------------------------------
#
# Commits of a stream's progress as offsets of a consumer group, for tools that show lag.
#
# The offsets of a stream are in its checkpoint, and the commits are never read. So a failure is
# only logged. The next commits are skipped for PAUSE_S, so that the stream does not wait for each
# of them.


PAUSE_S: Final = 60.0  # seconds without commits after a failure
NOTE: Final = "committed by Spark"

logger = logging.getLogger("raftlog.spark")


class GroupProgress:
    """Commits the progress of one query. Offsets never decrease, unless a topic was recreated."""

    def __init__(self, group: str) -> None:
        """``group``: a consumer group without members."""
        self._group = group
        self._positions: dict[TopicPartition, Offset] = {}
        self._topic_ids: dict[str, str] = {}
        self._not_before_s = 0.0

    def commit(self, admin: Admin, offset: StreamOffset, *, now_s: float) -> None:
        """Commit the positions in ``offset`` that advanced. Logs a failure of the cluster."""
        news = self._news(offset)
        if not news or now_s < self._not_before_s:
            return
        try:
            admin.commit_offsets(self._group, news, metadata=NOTE)
        except RaftlogError as error:
            self._not_before_s = now_s + PAUSE_S
            logger.warning(
                "the stream continues, but its progress was not committed for the group %r "
                "(groupId, commitOffsets). Next attempt in %g s: %s",
                self._group,
                PAUSE_S,
                error,
            )
            return
        self._positions.update(news)
        self._topic_ids.update(offset.topic_ids)

    def _news(self, offset: StreamOffset) -> dict[TopicPartition, Offset]:
        return {
            tp: position
            for tp, position in offset.positions.items()
            if position > self._positions.get(tp, -1)
            or offset.topic_id(tp.topic) != self._topic_ids.get(tp.topic, "")
        }
