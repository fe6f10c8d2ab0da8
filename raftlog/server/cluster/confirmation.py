"""Whether this broker leads a partition still: asked of its followers, before an end is told.

A leader that was cut off does not know that another one has been elected and has committed more.
What it hands out as records was committed all the same; but the *end* that it would name is an old
one, and what a client may see must never go back (P3). So it asks, as Raft's ReadIndex does (Raft
dissertation, section 6.4): each other member of the ISR has to be heard of once more, in this
epoch, after the question came. A new leader comes from the ISR, and stops following when it begins.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import partial
from typing import Final

from raftlog.errors import LeaderNotAvailableError, NotLeaderError, RaftlogError
from raftlog.server.cluster.replica_session import ReplicaSession
from raftlog.server.replica_host import PartitionHost
from raftlog.server.waiters import Acknowledge

CONFIRM_SECONDS_MAX: Final = 1.0
# Until who does not follow yet, or has no connection yet, is asked again: the first moments of an
# epoch, in which many ask at once.
ASK_AGAIN_SECONDS: Final = 0.02


class _Question:
    """One partition's, until every member was heard or the time is up. ``done`` is called once."""

    __slots__ = ("_done", "_epoch", "_host", "_loop", "_missing", "_session_of", "_timer")

    def __init__(
        self,
        loop: AbstractEventLoop,
        host: PartitionHost,
        members: set[int],
        done: Acknowledge,
        session_of: Callable[[int], ReplicaSession | None],
    ) -> None:
        self._loop = loop
        self._session_of = session_of
        self._host = host
        self._epoch = host.leader_epoch
        self._missing = members
        self._done: Acknowledge | None = done
        self._timer = loop.call_later(CONFIRM_SECONDS_MAX, self._give_up)

    def ask(self, follower: int) -> None:
        if self._done is None:
            return
        session = self._session_of(follower)
        if session is None:
            self._loop.call_later(ASK_AGAIN_SECONDS, self.ask, follower)
        else:
            session.when_heard_anew(partial(self.heard, follower, session))

    def heard(self, follower: int, session: ReplicaSession) -> None:
        host = self._host
        partition = host.topic_partition.partition
        if session.follows(host.topic_id, partition, self._epoch):
            self._missing.discard(follower)
            if not self._missing:
                self._end(None)
        else:
            self._loop.call_later(ASK_AGAIN_SECONDS, self.ask, follower)

    def _give_up(self) -> None:
        names = ", ".join(map(str, sorted(self._missing)))
        self._end(
            LeaderNotAvailableError(
                f"{self._host.topic_partition}: brokers {names} do not confirm that this broker "
                "leads it; another one may"
            )
        )

    def _end(self, error: RaftlogError | None) -> None:
        done, self._done = self._done, None
        self._timer.cancel()
        if done is None:
            return
        host = self._host
        if error is None and (host.leadership is None or host.leader_epoch != self._epoch):
            error = NotLeaderError(f"this broker does not lead {host.topic_partition} any more")
        done(error)


def confirm(
    host: PartitionHost,
    broker_id: int,
    done: Acknowledge,
    *,
    loop: AbstractEventLoop,
    session_of: Callable[[int], ReplicaSession | None],
) -> None:
    """Call ``done`` with None once it is certain that no newer leader had begun when this was
    called; with an error after ``CONFIRM_SECONDS_MAX`` seconds. At once if there is nobody to ask.
    """
    leadership = host.leadership
    if leadership is None:
        done(NotLeaderError(f"this broker does not lead {host.topic_partition}"))
        return
    others = {member for member, _ in leadership.maximal_isr() if member != broker_id}
    if not others:
        done(None)
        return
    question = _Question(loop, host, set(others), done, session_of)
    for follower in sorted(others):
        question.ask(follower)
