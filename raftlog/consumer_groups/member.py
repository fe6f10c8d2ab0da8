"""A member of a group, and those that were members: what the coordinator knows of them.

Nothing here decides; ``group`` does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final

from raftlog.consumer_groups.values import (
    Heartbeat,
    HeartbeatResult,
    MemberView,
    Part,
    Parts,
    StateChange,
    Topics,
)

FENCED_SECONDS_MIN: Final = 3_600.0


@dataclass(slots=True, eq=False)
class Member:
    """Invariants: ``assigned`` is part of ``target``; ``assigned`` and ``revoking`` have nothing in
    common; ``known_epoch <= epoch``. A member that is away has nothing in ``revoking``.
    """

    id: str
    instance_id: str | None
    client_id: str
    host: str
    rack: str
    topics: tuple[str, ...]  # in order, each once
    assignor: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    sequence: int  # the highest one heard
    epoch: int = 0  # of the group, when ``assigned`` last grew or ``revoking`` became empty
    known_epoch: int = 0  # the highest one the member has shown to know
    is_away: bool = False
    assigned: Parts = frozenset()
    revoking: dict[Part, float] = field(default_factory=dict)  # until when, in monotonic seconds
    target: Parts = frozenset()
    session_ends: float = math.inf
    timer: float = math.inf  # when the shard looks at it next
    said: Heartbeat | None = None  # the last one taken; None after a failover
    # To a heartbeat that changes nothing, made when needed:
    answer: StateChange[HeartbeatResult] | None = None

    @property
    def is_settled(self) -> bool:
        """Whether it has all that it is to have, and nothing else."""
        return not self.revoking and self.assigned == self.target

    @property
    def due(self) -> float:
        """When something ends unless the member is heard of."""
        return (
            min(self.session_ends, *self.revoking.values())
            if self.revoking
            else (self.session_ends)
        )

    def renew(self, now: float) -> None:
        """Its session begins anew."""
        self.session_ends = now + self.session_timeout_ms / 1_000

    def steady_answer(self, topics: Topics) -> StateChange[HeartbeatResult]:
        """What its heartbeats are answered with until something changes."""
        if self.answer is None:
            self.answer = StateChange(HeartbeatResult(self.epoch, topics.shares(self.assigned)))
        return self.answer

    def says_the_same(self, heartbeat: Heartbeat) -> bool:
        """Whether nothing but the sequence differs, and it owns what it was last answered."""
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
        )

    def view(self, topics: Topics) -> MemberView:
        return MemberView(
            member_id=self.id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            host=self.host,
            member_epoch=self.epoch,
            topics=self.topics,
            assigned=topics.shares(self.assigned),
            revoking=topics.shares(self.revoking),
            target=topics.shares(self.target),
            session_timeout_ms=self.session_timeout_ms,
            is_away=self.is_away,
        )


@dataclass(frozen=True, slots=True)
class FormerMember:
    """Of one that is a member no more. ``instance_id``: it lost that to a newer member.

    Remembered ``until`` (monotonic seconds), so that heartbeats of it that come late do not bring
    it back. Those that lost their instance are written to the log as well: a coordinator that
    comes after must not let them take it back.
    """

    reason: str
    sequence: int
    timeout_ms: int
    instance_id: str | None = None
    until: float = math.inf

    def begun_anew(self, now: float) -> FormerMember:
        """To be remembered for as long again: the coordinator is a new one."""
        return replace(self, until=now + self.seconds)

    @property
    def seconds(self) -> float:
        """How long it is to be remembered: its session; longer, if it must not come back."""
        seconds = self.timeout_ms / 1_000
        return seconds if self.instance_id is None else max(seconds, FENCED_SECONDS_MIN)
