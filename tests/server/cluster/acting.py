"""The roles of one copy, on paper: its host, its partition's state, and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raftlog.replication.partition_state import PartitionState
from raftlog.server.cluster.hosted_partition import HostedPartition
from raftlog.server.cluster.role_manager import RoleManager
from raftlog.server.partition import Partition
from tests.server.cluster.paper import PaperSurveys, Scene, state_of, status

REPLACEMENT_S = 60.0


class Acting:
    """This broker is 1, in its first run on disk 1."""

    def __init__(
        self, s: Scene, state: PartitionState, *, current: bool = True, stores: bool = True
    ) -> None:
        self.s = s
        s.see(2, 3)
        self.told: list[Any] = []
        self.soon: list[HostedPartition] = []
        self.copies: list[HostedPartition] = []
        self.host = s.host()
        self.member = s.member(state, self.host if stores else None)
        self.member.is_current = current
        s.plane.statuses[self.member.group_id] = status()
        self.surveys = PaperSurveys(s)
        self.roles = RoleManager(
            1,
            s.me,
            lag_max_seconds=10,
            replacement_delay_seconds=REPLACEMENT_S,
            machine=s.machine,
            plane=s.plane.as_plane,
            liveness=s.liveness,
            services=s.services,
            surveys=self.surveys,
            on_role=lambda m: self.told.append(m.host and (m.host.leader, m.host.leader_epoch)),
            look_soon=self.soon.append,
            change_copy=self.copies.append,
        )

    def look(self, **facts: Any) -> Partition:
        """With a state that differs in ``facts``, and a version that is newer."""
        if facts:
            state = self.member.state
            facts.setdefault("version", state.version + 1)
            self.member.machine.restore(replace(state, **facts).encode())
        self.roles.look(self.member)
        return self.host


def leading(s: Scene, **facts: Any) -> Acting:
    a = Acting(s, state_of(1, 2, 3, min_isr=2, **facts))
    a.look()
    return a
