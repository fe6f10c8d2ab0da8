"""Current and former members of a group: the state that the coordinator stores for them.

``group`` implements the rules that change this state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final

from raftlog.consumer_groups.values import (
    Heartbeat,
    HeartbeatResult,
    Interest,
    MemberView,
    Part,
    Parts,
    StateChange,
    Topics,
)

FENCED_SECONDS_MIN: Final = 3_600.0


@dataclass(slots=True, eq=False)
class Member:
    """A member of a consumer group.

    Invariants: ``assigned`` is a subset of ``target``; ``assigned`` and ``revoking`` are disjoint;
    ``known_epoch <= epoch``. ``revoking`` of a temporarily absent member is empty.
    """

    id: str
    instance_id: str | None
    client_id: str
    host: str
    rack: str
    topics: tuple[str, ...]  # sorted, without duplicates
    assignor: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    sequence: int  # highest sequence of all heartbeats
    epoch: int = 0  # group epoch when ``assigned`` last grew or ``revoking`` became empty
    known_epoch: int = 0  # highest epoch that the member has confirmed
    is_away: bool = False
    assigned: Parts = frozenset()
    revoking: dict[Part, float] = field(default_factory=dict)  # deadlines in monotonic seconds
    target: Parts = frozenset()
    session_ends: float = math.inf
    timer: float = math.inf  # monotonic seconds; next check by the shard
    interest: Interest | None = None  # of a subscription by regular expression
    matched: Topics | None = None  # the topics that ``interest`` was last matched with
    connection: int = 0  # number of the newest connection of a Kafka member
    said: Heartbeat | None = None  # last applied heartbeat; None after a failover
    # Cached response to a heartbeat that changes nothing:
    answer: StateChange[HeartbeatResult] | None = None

    @property
    def is_settled(self) -> bool:
        """True if the member owns exactly its target assignment."""
        return not self.revoking and self.assigned == self.target

    @property
    def due(self) -> float:
        """Monotonic seconds of the next deadline: the session end or a revocation deadline."""
        return (
            min(self.session_ends, *self.revoking.values())
            if self.revoking
            else (self.session_ends)
        )

    def renew(self, now: float) -> None:
        """Restart the session of the member."""
        self.session_ends = now + self.session_timeout_ms / 1_000

    def steady_answer(self, topics: Topics) -> StateChange[HeartbeatResult]:
        """Return the heartbeat response, cached until the epoch or the assignment changes."""
        if self.answer is None:
            self.answer = StateChange(HeartbeatResult(self.epoch, topics.shares(self.assigned)))
        return self.answer

    def says_the_same(self, heartbeat: Heartbeat) -> bool:
        """Return whether only the sequence differs and ``owned`` equals the last response."""
        said, answer = self.said, self.answer
        return (
            said is not None
            and answer is not None
            and heartbeat.owned == answer.result.assignment
            and heartbeat.member_epoch == self.epoch
            and heartbeat.topics == said.topics
            and heartbeat.session_timeout_ms == said.session_timeout_ms
            and heartbeat.rebalance_timeout_ms == said.rebalance_timeout_ms
            and heartbeat.instance_id == said.instance_id
            and heartbeat.assignor == said.assignor
            and heartbeat.interest == said.interest
        )

    def view(self, topics: Topics) -> MemberView:
        return MemberView(
            member_id=self.id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            host=self.host,
            member_epoch=self.epoch,
            session_timeout_ms=self.session_timeout_ms,
            is_away=self.is_away,
            rack=self.rack,
            subscription=self.topics,
            interest=self.interest,
            parts_assigned=self.assigned,
            parts_revoking=frozenset(self.revoking),
            parts_target=self.target,
            known=topics,
        )


@dataclass(frozen=True, slots=True)
class FormerMember:
    """A removed member. ``instance_id``: the instance ID that it lost to a newer member, or None.

    Stored until ``until`` (monotonic seconds), so that delayed heartbeats do not add the member
    again. Members that lost their instance ID are also written to the log, because the next
    coordinator must keep them fenced.
    """

    reason: str
    sequence: int
    timeout_ms: int
    instance_id: str | None = None
    until: float = math.inf

    def begun_anew(self, now: float) -> FormerMember:
        """Return a copy whose retention time starts at ``now``, as on a new coordinator."""
        return replace(self, until=now + self.seconds)

    @property
    def seconds(self) -> float:
        """Retention time in seconds: the session timeout; at least 3,600 s for a fenced member."""
        seconds = self.timeout_ms / 1_000
        return seconds if self.instance_id is None else max(seconds, FENCED_SECONDS_MIN)
