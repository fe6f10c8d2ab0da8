"""Environment of PySyncObj: its settings, and the clock, journal and poller in its globals.

Importing this module changes these globals, for Raft groups only. Other users of the library in
this process are not affected. No knowledge of groups, and no mangled names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeAlias

from pysyncobj import FAIL_REASON, SyncObjConf, syncobj
from pysyncobj.node import Node

from raftlog.consensus.raft_journal import RaftJournal
from raftlog.consensus.settings import ConsensusSettings

_NO_POLLER: Final = "none"
NODES_MAX: Final = 1_000  # cached; others are created again


class _Seat(threading.local):
    """Values of the library's globals in this thread while a group is processed."""

    now: float | None = None
    journal: RaftJournal | None = None


_seat = _Seat()


class _NoPoller:
    """The library polls sockets at the end of each tick; a group has no sockets."""

    def poll(self, timeout: float) -> None:
        pass


def _install() -> None:
    clock, journal, poller = syncobj.monotonicTime, syncobj.createJournal, syncobj.createPoller

    def own_clock() -> Any:
        return clock() if _seat.now is None else _seat.now

    def own_journal(path: str | None = None) -> Any:
        return journal(path) if _seat.journal is None else _seat.journal

    def own_poller(kind: str) -> Any:
        return _NoPoller() if kind == _NO_POLLER else poller(kind)

    syncobj.monotonicTime = own_clock
    syncobj.createJournal = own_journal
    syncobj.createPoller = own_poller


_install()


def set_now(now: float) -> None:
    """Set the monotonic time in seconds that the library uses in this thread."""
    _seat.now = now


def now() -> float:
    """Return the time that the library uses."""
    return float(syncobj.monotonicTime())


def set_journal(journal: RaftJournal | None) -> None:
    """Set the journal of the next group that this thread creates."""
    _seat.journal = journal


class PeerNode(Node):  # type: ignore[misc]  # the library has no types
    """A broker in the library. Its hash is that of an int: the same in every process."""

    def __init__(self, broker_id: int) -> None:
        super().__init__(broker_id)

    def __str__(self) -> str:
        return str(self.id)


@lru_cache(NODES_MAX)
def peer_node(broker_id: int) -> PeerNode:
    """Return the immutable node of a broker, shared by all groups."""
    return PeerNode(broker_id)


class _Void:
    """The type of ``VOID``."""


VOID: Final = _Void()  # the result of an entry that has no effect
Placed: TypeAlias = Callable[[object], None]  # called with an entry's result


def subscriber(placed: Placed) -> Callable[[object, int], None]:
    """Return a callback for the library. It passes the result of an entry; ``VOID`` on failure."""

    def called(result: object, reason: int) -> None:
        placed(result if reason == FAIL_REASON.SUCCESS else VOID)

    return called


class Timing:
    """Timeouts in seconds, and the library's settings for them."""

    def __init__(self, settings: ConsensusSettings) -> None:
        self.election = settings.election_timeout_ms / 1_000
        self.suspect = settings.suspect_timeout_ms / 1_000
        self.heartbeat = settings.heartbeat_ms / 1_000
        self.idle_heartbeat = settings.idle_heartbeat_ms / 1_000
        self.tick = settings.tick_ms / 1_000
        # Only leaderFallbackTimeout has an effect: a leader's check of its quorum. All groups
        # share the object.
        self.library_settings = SyncObjConf(
            autoTick=False,
            commandsWaitLeader=False,
            dynamicMembershipChange=False,
            appendEntriesUseBatch=True,
            appendEntriesPeriod=self.tick / 4,
            raftMinTimeout=self.election,
            raftMaxTimeout=2 * self.election,
            connectionTimeout=2 * self.election,
            leaderFallbackTimeout=self.election,
            pollerType=_NO_POLLER,
        )

    def next_heartbeat(self, now: float) -> float:
        """Return the time of the next heartbeat: one interval from ``now``, or up to a tick less,
        so that the heartbeats of many groups coincide.
        """
        due = now + self.heartbeat
        return max(due - due % self.tick, now + self.heartbeat / 2)
