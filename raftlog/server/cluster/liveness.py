"""Which brokers are there, as this one sees it: links, and what the cluster has agreed on.

Only liveness hangs on it, never safety: every decision made here is a compare-and-set in a Raft
group. So a short break of a link is forgiven, and a broker that is merely slow is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

# A link that comes back within so long was never down: no election for a dropped connection.
GRACE_SECONDS: Final = 0.3
# At the start, others get so long to be seen before they count as dead.
START_GRACE_SECONDS: Final = 1.0
# A broker whose loop was not at work for so long cannot say what happened meanwhile.
STANDSTILL_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One run of a broker on one data directory. A restart is a new one, so is a wiped disk."""

    directory_id: str
    boot: int


class Liveness:
    """Fed with the ups and downs of links; ``now`` is monotonic seconds."""

    def __init__(
        self,
        broker_id: int,
        me: Incarnation,
        *,
        now: Callable[[], float],
        is_fenced: Callable[[int], bool],
        is_heard: Callable[[int], bool],
    ) -> None:
        """``is_fenced``: as the cluster has agreed; True for one that never registered.

        ``is_heard``: whether something came from a peer a moment ago (``PeerLinks.is_heard``).
        """
        self._broker_id = broker_id
        self._now = now
        self._is_fenced = is_fenced
        self._is_heard = is_heard
        self._started = now()
        self._up: dict[int, Incarnation] = {broker_id: me}
        self._last: dict[int, Incarnation] = {broker_id: me}
        self._down_since: dict[int, float] = {}
        self._ended: dict[int, str] = {}  # directories of brokers whose process was seen to end
        self._ended_at: dict[int, float] = {}
        self._ran_at = self._blind_until = self._started

    def link_up(self, broker_id: int, incarnation: Incarnation) -> None:
        self._up[broker_id] = self._last[broker_id] = incarnation
        self._down_since.pop(broker_id, None)
        if self._ended.get(broker_id) == incarnation.directory_id:
            del self._ended[broker_id], self._ended_at[broker_id]

    def link_down(self, broker_id: int, *, closed: bool = False) -> None:
        """``closed``: by the peer's system; else the peer may live and only be out of reach."""
        incarnation = self._up.pop(broker_id, None)
        if incarnation is not None and closed and self._now() >= self._blind_until:
            self._ended[broker_id] = incarnation.directory_id
            self._ended_at[broker_id] = self._now()
        self._down_since.setdefault(broker_id, self._now())

    def note_running(self) -> None:
        """This broker runs; to be called every ``LOOK_SECONDS``. One that stood still, and finds
        its links closed, has not seen how they came to that."""
        now = self._now()
        if now - self._ran_at >= STANDSTILL_SECONDS:
            self._blind_until = now + STANDSTILL_SECONDS
            for broker in [b for b, at in self._ended_at.items() if at >= self._ran_at]:
                del self._ended[broker], self._ended_at[broker]
        self._ran_at = now

    def is_linked(self, broker_id: int) -> bool:
        return broker_id in self._up

    def is_heard(self, broker_id: int) -> bool:
        """Whether it says something these days: links that all fall silent fail one by one."""
        return broker_id == self._broker_id or self._is_heard(broker_id)

    def was_seen_to_end(self, broker_id: int, directory_id: str) -> bool:
        """Whether a process on that directory was there in this run, and closed its connection as
        its last word. One that fell silent may live behind a cut."""
        return self._ended.get(broker_id) == directory_id

    def incarnation_of(self, broker_id: int) -> Incarnation | None:
        """The last one that was seen, this run; None for a broker never seen."""
        return self._last.get(broker_id)

    def directory_of(self, broker_id: int) -> str | None:
        incarnation = self._last.get(broker_id)
        return None if incarnation is None else incarnation.directory_id

    def boot_of(self, broker_id: int) -> int | None:
        incarnation = self._last.get(broker_id)
        return None if incarnation is None else incarnation.boot

    def silent_seconds(self, broker_id: int) -> float:
        """For how long the link to it has been down; 0 while it is up."""
        if broker_id in self._up:
            return 0.0
        return self._now() - self._down_since.get(broker_id, self._started)

    def is_live(self, broker_id: int) -> bool:
        """Whether it can lead or follow: registered, not fenced, and there or gone for a blink."""
        if self._is_fenced(broker_id):
            return False
        if broker_id in self._up:
            return True
        grace = GRACE_SECONDS if broker_id in self._last else START_GRACE_SECONDS
        return self.silent_seconds(broker_id) < grace

    def changed_directories(
        self, voters: Mapping[int, str], wanted: Iterable[int]
    ) -> dict[int, str]:
        """Of the brokers that are to vote, those that are there on a disk that has no vote."""
        return {
            broker: directory
            for broker in sorted(set(wanted))
            if broker in self._up
            and (directory := self._up[broker].directory_id) != voters.get(broker)
        }
