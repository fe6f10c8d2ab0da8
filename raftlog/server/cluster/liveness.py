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


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One incarnation of a broker on one data directory. A restart or a wiped disk is a new one."""

    directory_id: str
    boot: int


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

    def link_up(self, broker_id: int, incarnation: Incarnation) -> None:
        self._up[broker_id] = self._last[broker_id] = incarnation
        self._down_since.pop(broker_id, None)

    def link_down(self, broker_id: int) -> None:
        self._up.pop(broker_id, None)
        self._down_since.setdefault(broker_id, self._now())

    def is_linked(self, broker_id: int) -> bool:
        return broker_id in self._up

    def is_heard(self, broker_id: int) -> bool:
        """Whether a message of the broker arrived recently: links without traffic time out one by
        one.
        """
        return broker_id == self._broker_id or self._is_heard(broker_id)

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
