"""Heartbeat keepalive: repeats the last response to a member whose heartbeat has to wait.

A failed broker delays commits until it has left the ISR. That takes seconds, in which members would
get no response, consider themselves isolated, and be removed, as they send no heartbeat while one
is unanswered. So a member that has waited for a third of its session timeout gets its last response
again. That response is committed and contains nothing new, and the session was renewed when the
heartbeat arrived. A member that joins or leaves, or that may have been removed, continues to wait.

**Every response to a heartbeat is a lease**: the member keeps its partitions until its session
timeout has passed since it sent that heartbeat. A new coordinator waits for a full session timeout
from its start before it reassigns the partitions of an unresponsive member. So a coordinator
responds to a heartbeat only if no newer coordinator can have started when the heartbeat arrived.
Then the lease ends first, regardless of the network partition and its duration.
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

# Maximum wait of a heartbeat as a share of the session timeout: so that the next one may be lost.
PATIENCE_SHARE: Final = 1 / 3
MEMBERS_MAX: Final = 100_000  # members remembered; others wait for the log


class HeartbeatKeepalive:
    """Keepalives of one shard."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        confirmations: Rounds,
        may_tell: Callable[[MemberKey], bool],
    ) -> None:
        """``confirmations``: that this broker leads. ``may_tell``: whether this is still a member,
        by the decisions so far.
        """
        self._loop = loop
        self.confirmations = confirmations
        self._may_repeat = may_tell
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
        """Create the response to a heartbeat with epoch ``epoch`` that has just arrived."""
        until = self._loop.time() + session_ms / 1_000 * PATIENCE_SHARE
        return HeartbeatAnswer(self, self._loop, member, epoch, done, failed, until=until)

    def responded(self, member: MemberKey, beat: HeartbeatResult) -> None:
        """Record the committed response that the member got."""
        if len(self._last) >= MEMBERS_MAX:
            self._last.clear()
        self._last[member] = beat

    def last(self, member: MemberKey, epoch: int) -> HeartbeatResult | None:
        """Return the response that a member with epoch ``epoch`` may get now; None if there is
        none.
        """
        found = self._last.get(member)
        if found is None or not 0 < epoch <= found.member_epoch or not self._may_repeat(member):
            return None
        return found

    def forget_all(self) -> None:
        self._last.clear()


class HeartbeatAnswer:
    """Response to one heartbeat. It is sent once, by the first event."""

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
        self.mark = reassurances.confirmations.mark  # time of arrival of the heartbeat
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._drop: Callable[[], object] | None = None

    def go(self, beat: HeartbeatResult) -> None:
        """Send the committed result."""
        if self._end():
            self._all.responded(self._member, beat)
            self._done(beat)

    def fail(self, error: RaftlogError) -> None:
        if self._end():
            self._failed(error)

    def wait(self, drop: Callable[[], object]) -> None:
        """Wait for the log, unless the response was sent already. ``drop`` cancels the wait."""
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
