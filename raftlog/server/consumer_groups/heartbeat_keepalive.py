"""Repeats its last answer to a member whose heartbeat has to wait for the log.

A broker that dies holds up what is decided until it has left the in-sync replicas: seconds, in
which members would hear nothing, take themselves for cut off, and be cut off, as they send no
heartbeat while one is unanswered. So a member that has waited for a third of its session is told
again what it was told last. That is committed, and no news; and its session was renewed when the
heartbeat came. One that joins or leaves, or that may have been removed, waits on.

**Every answer to a heartbeat is a lease**: the member goes on with what it has until its session
has passed since it sent that heartbeat. The next coordinator waits for a whole session, from when
it begins, before it gives a silent member's partitions away. So a coordinator answers a heartbeat
only if it is certain that no newer one had begun when the heartbeat came: then the lease ends
first, whatever was cut off and for however long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from raftlog.consumer_groups import HeartbeatResult
from raftlog.errors import RaftlogError
from raftlog.server.consumer_groups.heartbeat_purgatory import MemberKey
from raftlog.server.consumer_groups.pending_responses import Failed
from raftlog.server.rounds import Rounds

# Of its session, what a heartbeat waits at most: so that the next one may be lost.
PATIENCE_SHARE: Final = 1 / 3
MEMBERS_MAX: Final = 100_000  # remembered; one that is not waits for the log


class HeartbeatKeepalive:
    """Those of one shard."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        confirmations: Rounds,
        may_tell: Callable[[MemberKey], bool],
    ) -> None:
        """``confirmations``: that this broker leads. ``may_tell``: whether this is a member still,
        as far as is decided.
        """
        self._loop = loop
        self.confirmations = confirmations
        self._may_tell = may_tell
        self._last: dict[MemberKey, HeartbeatResult] = {}

    def begin(
        self,
        member: MemberKey,
        epoch: int,
        done: Callable[[HeartbeatResult], None],
        failed: Failed,
        *,
        session_ms: int,
    ) -> HeartbeatAnswer:
        """The answer to a heartbeat that has just come, and said ``epoch``."""
        until = self._loop.time() + session_ms / 1_000 * PATIENCE_SHARE
        return HeartbeatAnswer(self, self._loop, member, epoch, done, failed, until=until)

    def told(self, member: MemberKey, beat: HeartbeatResult) -> None:
        """The member has been told this, which is committed."""
        if len(self._last) >= MEMBERS_MAX:
            self._last.clear()
        self._last[member] = beat

    def last(self, member: MemberKey, epoch: int) -> HeartbeatResult | None:
        """What a member that says ``epoch`` may be told now, if anything."""
        found = self._last.get(member)
        if found is None or not 0 < epoch <= found.member_epoch or not self._may_tell(member):
            return None
        return found

    def forget_all(self) -> None:
        self._last.clear()


class HeartbeatAnswer:
    """Of one heartbeat. Ends once, whatever comes first."""

    __slots__ = (
        "_all",
        "_done",
        "_drop",
        "_epoch",
        "_failed",
        "_is_over",
        "_loop",
        "_member",
        "_timer",
        "_until",
        "mark",
    )

    def __init__(
        self,
        reassurances: HeartbeatKeepalive,
        loop: asyncio.AbstractEventLoop,
        member: MemberKey,
        epoch: int,
        done: Callable[[HeartbeatResult], None],
        failed: Failed,
        *,
        until: float,
    ) -> None:
        self._all = reassurances
        self._loop = loop
        self._member = member
        self._epoch = epoch
        self._done = done
        self._failed = failed
        self._until = until
        self.mark = reassurances.confirmations.mark  # of when the heartbeat came
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._drop: Callable[[], object] | None = None

    def go(self, beat: HeartbeatResult) -> None:
        """Tell what was decided: it is committed."""
        if self._end():
            self._all.told(self._member, beat)
            self._done(beat)

    def fail(self, error: RaftlogError) -> None:
        if self._end():
            self._failed(error)

    def wait(self, drop: Callable[[], object]) -> None:
        """It waits for the log, if it has not come already; ``drop`` has it wait no more."""
        if not self._is_over:
            self._drop = drop
            left = max(self._until - self._loop.time(), 0.0)
            self._timer = self._loop.call_later(left, self._confirm)

    def _confirm(self) -> None:
        self._all.confirmations.ask(self._reassure, since=self.mark)

    def _reassure(self, error: RaftlogError | None) -> None:
        if error is not None:
            return
        beat = self._all.last(self._member, self._epoch)
        if beat is not None and self._end():
            assert self._drop is not None, "a timer is pending"
            self._drop()
            self._done(beat)

    def _end(self) -> bool:
        if self._is_over:
            return False
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        return True
