"""The roles of one copy, with fakes: its host, its partition's state, and the reports about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raftlog.replication.partition_state import PartitionState
from raftlog.server.cluster.elections import Event, HostedPartition
from raftlog.server.cluster.replicas import RoleManager
from raftlog.server.partition import Partition
from tests.server.cluster.fake import FakeSurveys, Scene, state_of, status

REPLACEMENT_S = 60.0


class FakeEffects:
    """Notes what a ``RoleManager`` causes."""

    def __init__(self) -> None:
        self.noted: list[Any] = []
        self.soon: list[HostedPartition] = []
        self.copies: list[HostedPartition] = []

    def role_changed(self, hosted: HostedPartition) -> None:
        self.noted.append(hosted.host and (hosted.host.leader, hosted.host.leader_epoch))

    def schedule(self, hosted: HostedPartition) -> None:
        self.soon.append(hosted)

    def schedule_copy_change(self, hosted: HostedPartition) -> None:
        self.copies.append(hosted)


class Acting(FakeEffects):
    """This broker is 1, in its first run on disk 1."""

    def __init__(
        self, s: Scene, state: PartitionState, *, current: bool = True, stores: bool = True
    ) -> None:
        super().__init__()
        self.s = s
        s.see(2, 3)
        self.host = s.host()
        self.hosted = s.hosted(state, self.host if stores else None)
        if current:
            self.hosted.on(Event.FOUNDED)
        s.plane.statuses[self.hosted.raft_id] = status()
        self.surveys = FakeSurveys(s)
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
            effects=self,
        )

    def poll(self, **facts: Any) -> Partition:
        """With a state that differs in ``facts``, and a version that is newer."""
        if facts:
            state = self.hosted.state
            facts.setdefault("version", state.version + 1)
            self.hosted.machine.restore(replace(state, **facts).encode())
        self.roles.poll(self.hosted)
        return self.host


def leading(s: Scene, **facts: Any) -> Acting:
    a = Acting(s, state_of(1, 2, 3, min_isr=2, **facts))
    a.poll()
    return a
