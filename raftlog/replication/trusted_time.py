"""Trusted time: the time that decides which data of a broker expires.

Records, committed offsets and producers expire by age. If the wall clock jumps forward, all of them
could expire at once. Deletion therefore uses a separate trusted time. It advances with the
monotonic clock, which never jumps, and follows wall clocks only as follows:

- *Small differences* (up to ``CLOCK_STEP_MS``): the trusted time follows slowly. It gains or loses
  at most ``CLOCK_SLEW`` of the elapsed time.
- *Larger differences* are clock steps. In a cluster, a time on which a majority of the voters
  agrees for ``CLOCK_SETTLE_S`` becomes the trusted time. Without other voters, the trusted time
  follows a step only at the next start, see below.
- *At the start*, the trusted time is unknown and no data expires until the clocks of a majority of
  the voters agree. Of two clocks that differ, the one that is behind counts. Without other voters,
  the broker's clock is used immediately. If that time is ahead of the last saved time by more than
  ``CLOCK_STEP_MS``, no data expires for ``CLOCK_SETTLE_S``: the broker cannot distinguish a long
  stop from a wrong clock, and a wrong clock is often corrected soon after a machine starts.

The clocks are those of the voters. A cluster of one or two brokers may have one voter: there, the
clocks of all brokers count (``trusted_clocks``), so that no clock decides alone.

A wrong clock therefore does not delete a record that is younger than its retention by more than
``CLOCK_STEP_MS``, with two exceptions: a majority of the voters has the same wrong clock for
``CLOCK_SETTLE_S``, or the only voter has run with it for that long since its start.
The module is pure: both clocks are arguments; ``now`` is in monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from raftlog.limits import (
    CLOCK_ROUND_TRIP_S_MAX,
    CLOCK_SAMPLE_S_MAX,
    CLOCK_SETTLE_S,
    CLOCK_SLEW,
    CLOCK_STEP_MS,
)
from raftlog.types import TimestampMs

MAJORITY_MIN: Final = 3  # clocks, of which a majority is more than one and not all


def trusted_clocks(voters: Collection[int], brokers: Collection[int]) -> Collection[int]:
    """Return the brokers whose clocks count: the voters of the cluster group if they are enough for
    a majority, else all brokers.
    """
    # guard: where few brokers vote, the clocks of all count
    return voters if len(voters) >= MAJORITY_MIN else {*voters, *brokers}


class _Line(NamedTuple):
    """Time that advances with the monotonic clock: ``wall_ms`` at ``at`` monotonic seconds."""

    at: float
    wall_ms: float

    def ms(self, now: float) -> float:
        return self.wall_ms + (now - self.at) * 1_000


class TrustedTime:
    """Trusted time of one broker. Call ``update`` and ``on_peer``; read ``deletion_ms``."""

    def __init__(
        self,
        *,
        broker_id: int = 0,
        voters: Collection[int] | None = (),
        saved_ms: TimestampMs | None = None,
        now: float,
        wall_ms: TimestampMs,
    ) -> None:
        """``voters``: brokers whose clocks count; only this one, or none: no other clock. None:
        not known yet.

        ``saved_ms``: last ``deletion_ms`` of the previous incarnation, or None. ``now``,
        ``wall_ms``: clocks of this broker at the start.
        """
        self._broker_id = broker_id
        self._voters = None if voters is None else frozenset(voters)
        self._peers: dict[int, _Line] = {}
        self._trusted: _Line | None = None
        self._agreed: _Line | None = None  # by a majority, at the last update
        self._pending: _Line | None = None  # a step that has been agreed on since ``at``
        self._saved = None if saved_ms is None else _Line(now, saved_ms)
        self.update(now=now, wall_ms=wall_ms)

    @property
    def is_alone(self) -> bool:
        return self._voters is not None and self._voters <= {self._broker_id}

    # -- results -----------------------------------------------------------------------------------

    def deletion_ms(self, now: float) -> TimestampMs | None:
        """The time by which data may expire; None: nothing may expire now."""
        return None if self._trusted is None else int(self._trusted.ms(now))

    def record_ms(self, now: float, wall_ms: TimestampMs) -> TimestampMs:
        """Return the timestamp for new records and commits, in ms.

        It is the wall clock, unless that has stepped. Then it is the trusted time if a majority of
        the voters agrees with it, else the latest known time, so that data is kept longer. Before
        there is a trusted time, this clock may be the wrong one: the latest known time counts.
        """
        saved_ms = 0 if self._saved is None else int(self._saved.ms(now))
        if self._trusted is None:
            return max(wall_ms, saved_ms, *map(int, self._known(_Line(now, wall_ms))))
        trusted_ms = int(self._trusted.ms(now))
        is_close = abs(wall_ms - trusted_ms) <= CLOCK_STEP_MS
        if is_close and not (self.is_alone and wall_ms < saved_ms - CLOCK_STEP_MS):
            return wall_ms
        agreed = None if self.is_alone else self._agreed
        if agreed is not None and abs(agreed.ms(now) - trusted_ms) <= CLOCK_STEP_MS:
            return trusted_ms
        return max(wall_ms, trusted_ms, saved_ms)

    def is_behind_saved(self, now: float) -> bool:
        """Return whether the trusted time is behind the time of the previous incarnation by a step:
        the clock was ahead then, or is behind now.
        """
        if self._trusted is None or self._saved is None:
            return False
        return self._saved.ms(now) - self._trusted.ms(now) > CLOCK_STEP_MS

    def error_ms(self, now: float, wall_ms: TimestampMs) -> int:
        """Return the ms by which this broker's wall clock is ahead, if the difference is a step.

        Negative if the clock is behind the trusted time; 0 without a step or a trusted time.
        """
        if self._trusted is None:
            return 0
        error_ms = wall_ms - int(self._trusted.ms(now))
        return error_ms if abs(error_ms) > CLOCK_STEP_MS else 0

    # -- events ------------------------------------------------------------------------------------

    def on_peer(
        self, broker_id: int, wall_ms: TimestampMs, *, round_trip_s: float, now: float
    ) -> None:
        """A peer's wall clock, received ``now`` in the response to a request."""
        if broker_id in (self._voters or ()) and round_trip_s <= CLOCK_ROUND_TRIP_S_MAX:
            self._peers[broker_id] = _Line(now, wall_ms + round_trip_s * 500)

    def set_voters(self, voters: Collection[int]) -> None:
        """Set the brokers whose clocks count: the voters of the cluster group change."""
        self._voters = frozenset(voters)
        self._peers = {b: clock for b, clock in self._peers.items() if b in self._voters}

    def update(self, *, now: float, wall_ms: TimestampMs) -> None:
        """Compare the clocks. Call it about once per second, and before the first read."""
        own = _Line(now, wall_ms)
        self._agreed = agreed = own if self.is_alone else self._majority(own)
        if self._trusted is None:
            first = agreed or self._behind(own)
            if first is not None:
                self._begin(first)
            return
        trusted_ms = self._trusted.ms(now)
        limit_ms = (now - self._trusted.at) * 1_000 * CLOCK_SLEW
        step_ms = 0.0 if agreed is None else agreed.wall_ms - trusted_ms
        if abs(step_ms) <= CLOCK_STEP_MS:
            self._pending = None
            # guard: small differences are followed slowly
            trusted_ms += max(-limit_ms, min(limit_ms, step_ms))
        # guard: a single broker follows no step of its clock
        elif agreed is not None and not self.is_alone and self._has_settled(agreed):
            self._pending = None
            trusted_ms = agreed.wall_ms
        self._trusted = _Line(now, trusted_ms)

    def _begin(self, agreed: _Line) -> None:
        """Set the first trusted time of this incarnation, if it is plausible or has settled."""
        saved = self._saved
        is_plausible = saved is None or agreed.wall_ms - saved.ms(agreed.at) <= CLOCK_STEP_MS
        # guard: a start compares the clock with the saved time
        if is_plausible or self._has_settled(agreed):
            self._trusted, self._pending = agreed, None

    def _has_settled(self, agreed: _Line) -> bool:
        """Return whether the voters have agreed on this time for ``CLOCK_SETTLE_S``."""
        pending = self._pending
        if pending is None or abs(pending.ms(agreed.at) - agreed.wall_ms) > CLOCK_STEP_MS:
            self._pending = agreed
            return False
        # guard: a step is followed after it has settled
        return agreed.at - pending.at >= CLOCK_SETTLE_S

    def _known(self, own: _Line) -> list[float]:
        """Return the clocks that count and are known now."""
        now, voters = own.at, self._voters or frozenset()
        # guard: old reports of peers are no sample
        known = [
            peer.ms(now) for peer in self._peers.values() if now - peer.at <= CLOCK_SAMPLE_S_MAX
        ]
        return [*known, own.wall_ms] if self._broker_id in voters else known

    def _behind(self, own: _Line) -> _Line | None:
        """Return the clock that is behind, of two that differ: it deletes less data."""
        known = self._known(own)
        # guard: of two clocks that differ at a start, the one that is behind counts
        return _Line(own.at, min(known)) if len(known) == len(self._voters or ()) == 2 else None

    def _majority(self, own: _Line) -> _Line | None:
        """Return the median of the voters' clocks, if a majority of the voters is close to it.

        For an even number of clocks it is the lower median, which deletes less data.
        """
        now, voters = own.at, self._voters
        known = self._known(own)
        if voters is None or not known:
            return None
        median_ms = sorted(known)[(len(known) - 1) // 2]
        close = sum(abs(each - median_ms) <= CLOCK_STEP_MS for each in known)
        # guard: a majority of the clocks decides
        return _Line(now, median_ms) if close > len(voters) // 2 else None
