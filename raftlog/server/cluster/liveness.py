"""Liveness of the brokers, as this broker sees it: peer links and the committed fencing state.

It affects only liveness, never safety: every decision that follows is a compare-and-set in a Raft
group. So a short break of a link is ignored, and a broker that is only slow is not fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

# Seconds: a link that is restored within this time counts as up. A dropped connection alone causes
# no election.
GRACE_SECONDS: Final = 0.3
# Seconds after the start during which brokers that have not connected yet count as live.
START_GRACE_SECONDS: Final = 1.0
# Seconds: a broker whose event loop stood still for this time does not know what happened during
# it.
STANDSTILL_SECONDS: Final = 1.0
# Seconds after a closed connection in which the peer's system must refuse the next one, as it does
# once the process has ended. Below 1 s, the first retransmission of a SYN (RFC 6298): a refusal
# that comes later may be of a process that ended long after the connection was cut.
END_CHECK_SECONDS: Final = 0.9


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One incarnation of a broker on one data directory. A restart or a wiped disk is a new one."""

    directory_id: str
    boot: int


@dataclass(frozen=True, slots=True)
class _Closed:
    """Connection that the peer's system closed, or a device in between."""

    directory_id: str
    at: float


class Liveness:
    """Liveness from link events. ``now`` returns monotonic seconds."""

    def __init__(
        self,
        broker_id: int,
        me: Incarnation,
        *,
        now: Callable[[], float],
        is_fenced: Callable[[int], bool],
        is_heard: Callable[[int], bool],
    ) -> None:
        """``is_fenced``: by the committed state; True for a broker that never registered.

        ``is_heard``: whether a message of a peer arrived recently (``PeerLinks.is_heard``).
        """
        self._broker_id = broker_id
        self._now = now
        self._is_fenced = is_fenced
        self._is_heard = is_heard
        self._started = now()
        self._up: dict[int, Incarnation] = {broker_id: me}
        self._last: dict[int, Incarnation] = {broker_id: me}
        self._down_since: dict[int, float] = {}
        self._closed: dict[int, _Closed] = {}  # until the next connection attempt
        # Data directories of brokers whose process was seen to exit.
        self._ended: dict[int, str] = {}
        self._ended_at: dict[int, float] = {}
        self._ran_at = self._blind_until = self._started

    def link_up(self, broker_id: int, incarnation: Incarnation) -> None:
        self._up[broker_id] = self._last[broker_id] = incarnation
        self._down_since.pop(broker_id, None)
        closed = self._closed.pop(broker_id, None)
        if closed is not None and closed.directory_id != incarnation.directory_id:
            self._note_end(broker_id, closed)
        if self._ended.get(broker_id) == incarnation.directory_id:
            del self._ended[broker_id], self._ended_at[broker_id]

    def link_down(self, broker_id: int, *, closed: bool = False) -> None:
        """``closed``: the connection was closed from outside; otherwise the peer may be live and
        unreachable. A network partition can close connections too, so ``connect_failed`` decides.
        """
        incarnation = self._up.pop(broker_id, None)
        if incarnation is not None and closed and self._now() >= self._blind_until:
            self._closed[broker_id] = _Closed(incarnation.directory_id, self._now())
        self._down_since.setdefault(broker_id, self._now())

    def connect_failed(self, broker_id: int, *, refused: bool) -> None:
        """A new connection to the peer failed. ``refused``: the peer's system responded that no
        process listens. Directly after the close of the last connection, the process has ended.
        """
        closed = self._closed.pop(broker_id, None)
        if closed is not None and refused:
            self._note_end(broker_id, closed)

    def _note_end(self, broker_id: int, closed: _Closed) -> None:
        if self._is_recent(closed):
            self._ended[broker_id] = closed.directory_id
            self._ended_at[broker_id] = closed.at

    def _is_recent(self, closed: _Closed) -> bool:
        return self._now() - closed.at < END_CHECK_SECONDS

    def is_checking_ends(self) -> bool:
        """Whether a connection was closed just now, and the next attempt has yet to show why."""
        return any(map(self._is_recent, self._closed.values()))

    def note_running(self) -> None:
        """Note that this broker runs. Call it every ``POLL_SECONDS``. A broker that stood still,
        and finds its links closed, does not know why they were closed.
        """
        now = self._now()
        if now - self._ran_at >= STANDSTILL_SECONDS:
            self._blind_until = now + STANDSTILL_SECONDS
            for broker in [b for b, at in self._ended_at.items() if at >= self._ran_at]:
                del self._ended[broker], self._ended_at[broker]
        self._ran_at = now

    def is_linked(self, broker_id: int) -> bool:
        return broker_id in self._up

    def is_heard(self, broker_id: int) -> bool:
        """Whether a message of the broker arrived recently: links without traffic time out one by
        one.
        """
        return broker_id == self._broker_id or self._is_heard(broker_id)

    def was_seen_to_end(self, broker_id: int, directory_id: str) -> bool:
        """Whether a process on that directory was connected in this incarnation, its connection
        was closed, and its system refused the next one, or another process accepted it. An
        unresponsive broker may be live in another network partition.
        """
        return self._ended.get(broker_id) == directory_id

    def incarnation_of(self, broker_id: int) -> Incarnation | None:
        """Return the last incarnation that was connected; None for a broker that never
        connected.
        """
        return self._last.get(broker_id)

    def linked_directory(self, broker_id: int) -> str | None:
        """Return the data directory of a connected broker; None for one that is not connected."""
        incarnation = self._up.get(broker_id)
        return None if incarnation is None else incarnation.directory_id

    def directory_of(self, broker_id: int) -> str | None:
        incarnation = self._last.get(broker_id)
        return None if incarnation is None else incarnation.directory_id

    def boot_of(self, broker_id: int) -> int | None:
        incarnation = self._last.get(broker_id)
        return None if incarnation is None else incarnation.boot

    def silent_seconds(self, broker_id: int) -> float:
        """Return for how many seconds the link has been down; 0 while it is up."""
        if broker_id in self._up:
            return 0.0
        return self._now() - self._down_since.get(broker_id, self._started)

    def is_live(self, broker_id: int) -> bool:
        """Whether the broker can lead or follow: registered, not fenced, and connected or only
        briefly disconnected.
        """
        if self._is_fenced(broker_id):
            return False
        if broker_id in self._up:
            return True
        grace = GRACE_SECONDS if broker_id in self._last else START_GRACE_SECONDS
        return self.silent_seconds(broker_id) < grace

    def expect(self, brokers: Iterable[int]) -> None:
        """Note brokers that are known from now on: they have time to connect."""
        for broker in brokers:
            if broker not in self._up:
                self._down_since.setdefault(broker, self._now())
