"""When a broker saves the state of the cluster, and which state it then has."""

from __future__ import annotations

import asyncio
from typing import cast

from raftlog.errors import StorageFailedError
from raftlog.replication.cluster_commands import founding_state
from raftlog.replication.cluster_state import ClusterMachine
from raftlog.server.cluster.state_copy import StateCopy
from raftlog.server.scheduling import Workers
from raftlog.storage import Store
from raftlog.storage.cluster_file import ClusterCopy
from tests.replication.clusters import cluster, done, registration


class FakeStore:
    def __init__(self, saved: ClusterCopy) -> None:
        self.saved_cluster = saved
        self.error: StorageFailedError | None = None

    def save_cluster(self, copy: ClusterCopy) -> None:
        if self.error is not None:
            raise self.error
        self.saved_cluster = copy


class FakeWorkers:
    async def run(self, work: object) -> None:
        work()  # type: ignore[operator]


class Scene:
    def __init__(self, machine: ClusterMachine, saved: ClusterCopy) -> None:
        self.store = FakeStore(saved)
        self.has_vote = False
        self.voters = {1: "d1"}
        self.failed: list[StorageFailedError] = []
        self.copy = StateCopy(
            cast(Store, self.store),
            machine,
            1,
            has_vote=lambda: self.has_vote,
            voters=lambda: self.voters,
            worker=cast(Workers, FakeWorkers()),
            loop=asyncio.get_running_loop(),
            on_failed=self.failed.append,
        )

    async def poll(self) -> ClusterCopy:
        self.copy._due = 0.0
        self.copy.poll()
        await self.copy.stop()
        return self.store.saved_cluster


def test_a_broker_without_a_vote_saves_what_is_new() -> None:
    async def scene() -> None:
        machine = cluster(2)
        s = Scene(machine, ClusterCopy())
        first = await s.poll()
        assert (first.version, first.state, first.voters) == (
            machine.version,
            machine.known(),
            {1: "d1"},
        )
        assert await s.poll() is first, "nothing has changed"
        s.voters = {1: "d1", 2: "d2", 3: "d3"}
        assert len((await s.poll()).voters) == 3
        done(machine, registration(9))
        s.copy.poll()
        assert s.store.saved_cluster.version < machine.version, "not so soon after the last one"
        s.has_vote = True
        assert (await s.poll()).version < machine.version, "its journal has it"
        s.has_vote = False
        assert (await s.poll()).version == machine.version

    asyncio.run(scene())


def test_after_a_start_the_saved_state_counts_until_a_newer_one_is_known() -> None:
    async def scene() -> None:
        saved = ClusterCopy(5, founding_state("c"), {1: "d1"})
        machine = ClusterMachine()
        s = Scene(machine, saved)
        s.voters = {}
        assert s.copy.newest() is saved
        assert await s.poll() is saved
        newer = cluster(3)
        machine.restore(newer.snapshot())
        while machine.version <= 5:
            done(machine, registration(9 + machine.version))
        assert s.copy.newest() == ClusterCopy(machine.version, machine.known(), {1: "d1"})

    asyncio.run(scene())


def test_a_state_that_does_not_list_the_broker_is_not_kept() -> None:
    async def scene() -> None:
        machine = ClusterMachine()
        machine.restore(founding_state("c"))
        s = Scene(machine, ClusterCopy())
        assert (await s.poll()).version == s.copy.newest().version == 0

    asyncio.run(scene())


def test_a_disk_that_has_failed_stops_the_broker() -> None:
    async def scene() -> None:
        s = Scene(cluster(2), ClusterCopy())
        s.store.error = StorageFailedError("no")
        await s.poll()
        assert s.failed == [s.store.error]

    asyncio.run(scene())
