"""Leadership check: confirm that this broker still leads before it returns an end offset.

An isolated leader does not know that another broker was elected and has committed more records. The
records that it returns are committed all the same, but the *end offset* that it returns would be
outdated, and what a client sees must never go back (P3). So the leader confirms its leadership
first, as Raft's ReadIndex does (Raft dissertation, section 6.4). There are two ways, and the first
that succeeds decides:

- Every other eligible broker copies from this leader in this epoch, by a message that it sent after
  the check began. A new leader is elected from the ISR or the ELR, and stops copying when it begins
  to lead. This costs one round of the fetches that run anyway.
- The partition's Raft group applies a command that was proposed after the check began, and this
  broker is the leader in the resulting state. This costs an entry in the journals of a majority. It
  is needed when a member cannot respond: a member of the ELR is usually down, and must not prevent
  a leader with a connected majority from responding.

A leader that can do neither is isolated, or cannot rule that out, and returns no end offset.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from raftlog.consensus import Applied, Outcome
from raftlog.errors import LeaderNotAvailableError, NotLeaderError, RaftlogError
from raftlog.server.cluster.fetch_session import FetchSession
from raftlog.server.cluster.hosted_partition import HostedPartition
from raftlog.server.cluster.role_manager import NO_OP
from raftlog.server.offset_waiters import Acknowledge
from raftlog.server.partition import Partition
from raftlog.server.rounds import Rounds

CONFIRM_SECONDS_MAX: Final = 1.0
# Seconds until a broker that does not copy yet, or is not connected yet, is checked again. This
# matters in the first moments of an epoch, when many checks start at once.
RETRY_SECONDS: Final = 0.02
# Seconds until the partition's Raft group is used too: longer than healthy members need.
GROUP_SECONDS: Final = 0.1

Propose: TypeAlias = Callable[[str, bytes, Callable[[Outcome], None]], None]


class LeadershipCheck:
    """Leadership checks of all partitions that this broker leads."""

    def __init__(
        self,
        broker_id: int,
        *,
        loop: AbstractEventLoop,
        session_of: Callable[[int], FetchSession | None],
        find: Callable[[str, int], HostedPartition | None],
        propose: Propose,
    ) -> None:
        """``session_of``: the fetch session of a follower. ``propose``: to a Raft group."""
        self._broker_id = broker_id
        self._loop = loop
        self._session_of = session_of
        self._find = find
        self._propose = propose
        self._rounds: dict[str, Rounds] = {}  # by Raft group

    def confirm(self, host: Partition, done: Acknowledge) -> None:
        """Call ``done`` with None once no newer leader can have begun before this call; with an
        error after ``CONFIRM_SECONDS_MAX``. Calls it at once if no other broker is eligible.
        """
        leadership = host.leadership
        if leadership is None:
            done(NotLeaderError(f"this broker does not lead {host.topic_partition}"))
            return
        eligible = {member for member, _ in leadership.maximal_isr()} | leadership.state.elr.keys()
        others = eligible - {self._broker_id}
        if not others:
            done(None)
            return
        check = _Check(self._loop, host, others, done, self._session_of, self._ask_group)
        check.begin()

    def _ask_group(self, host: Partition, done: Acknowledge) -> None:
        """Call ``done`` with None if the group's state, as of after this call, has ``host`` as the
        leader in its epoch. One proposal per group is in flight at a time.
        """
        member = self._find(host.topic_id, host.topic_partition.partition)
        if member is None:
            done(NotLeaderError(f"{host.topic_partition} is no longer stored on this broker"))
            return
        rounds = self._rounds.get(member.group_id)
        if rounds is None:
            rounds = self._rounds[member.group_id] = Rounds(partial(self._propose_no_op, member))
        epoch = host.leader_epoch

        def applied(error: RaftlogError | None) -> None:
            state = member.state
            if error is None and (state.leader, state.leader_epoch) != (self._broker_id, epoch):
                error = NotLeaderError(
                    f"this broker is no longer the leader of {host.topic_partition}; broker "
                    f"{state.leader} is"
                )
            done(error)

        rounds.ask(applied)

    def _propose_no_op(self, member: HostedPartition, done: Acknowledge) -> None:
        def ended(outcome: Outcome) -> None:
            if isinstance(outcome, Applied):
                done(None)
            else:
                done(LeaderNotAvailableError(f"{member}: {outcome.reason}"))

        self._propose(member.group_id, NO_OP, ended)

    def forget(self, group_id: str) -> None:
        """Forget a partition that this broker no longer stores."""
        self._rounds.pop(group_id, None)


class _Check:
    """The check of one partition, until it is decided or times out. ``done`` is called once."""

    __slots__ = (
        "_ask_group",
        "_done",
        "_epoch",
        "_group_timer",
        "_host",
        "_loop",
        "_missing",
        "_session_of",
        "_timer",
    )

    def __init__(
        self,
        loop: AbstractEventLoop,
        host: Partition,
        members: set[int],
        done: Acknowledge,
        session_of: Callable[[int], FetchSession | None],
        ask_group: Callable[[Partition, Acknowledge], None],
    ) -> None:
        self._loop = loop
        self._session_of = session_of
        self._ask_group = ask_group
        self._host = host
        self._epoch = host.leader_epoch
        self._missing = members
        self._done: Acknowledge | None = done
        self._timer = loop.call_later(CONFIRM_SECONDS_MAX, self._time_out)
        # A member without a connection is not waited for.
        are_linked = all(session_of(member) is not None for member in members)
        delay = GROUP_SECONDS if are_linked else 0.0
        self._group_timer = loop.call_later(delay, ask_group, host, self._on_group)

    def begin(self) -> None:
        for member in sorted(self._missing):
            self.ask(member)

    def ask(self, follower: int) -> None:
        if self._done is None:
            return
        session = self._session_of(follower)
        if session is None:
            self._loop.call_later(RETRY_SECONDS, self.ask, follower)
        else:
            session.when_fetched_again(partial(self.on_fetch, follower, session))

    def on_fetch(self, follower: int, session: FetchSession) -> None:
        host = self._host
        partition = host.topic_partition.partition
        if session.follows(host.topic_id, partition, self._epoch):
            self._missing.discard(follower)
            if not self._missing:
                self._end(None)
        else:
            self._loop.call_later(RETRY_SECONDS, self.ask, follower)

    def _on_group(self, error: RaftlogError | None) -> None:
        """Apply the group's result. The group may have no leader now: then its members may still
        confirm.
        """
        if error is None or isinstance(error, NotLeaderError):
            self._end(error)

    def _time_out(self) -> None:
        names = ", ".join(map(str, sorted(self._missing)))
        self._end(
            LeaderNotAvailableError(
                f"{self._host.topic_partition}: neither brokers {names} nor a majority of the "
                "voters of the partition confirm that this broker is the leader. Another broker "
                "can be the leader"
            )
        )

    def _end(self, error: RaftlogError | None) -> None:
        done, self._done = self._done, None
        self._timer.cancel()
        self._group_timer.cancel()
        if done is None:
            return
        host = self._host
        if error is None and (host.leadership is None or host.leader_epoch != self._epoch):
            error = NotLeaderError(f"this broker is no longer the leader of {host.topic_partition}")
        done(error)
