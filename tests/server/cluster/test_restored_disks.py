"""A data directory that is restored from a copy which was taken while its broker ran."""

from __future__ import annotations

import pytest

from raftlog.testing.simulator.world import DATA_DIRECTORY, World
from tests.server.cluster.simulated import Cluster


@pytest.mark.parametrize("seed", [3, 4])
def test_a_copy_has_no_vote_and_is_completed_by_the_others(seed: int) -> None:
    """All lose power. Of the two that acknowledged records, one is late, and the other's volume is
    restored: with the third it would be a majority of the past."""
    with World(seed, brokers=3) as world:
        cluster = Cluster(world)
        cluster.create(copies=3)
        cluster.in_sync(1, {1, 2, 3})
        cluster.send(b"a")
        leader = cluster.leader(1)
        late, old = (broker for broker in (1, 2, 3) if broker != leader)
        machines = {broker: world.brokers[broker - 1] for broker in (1, 2, 3)}
        copy = machines[old].disk.image(DATA_DIRECTORY)
        names = {broker: machine.name for broker, machine in machines.items()}
        world.network.partition([names[leader]], [names[late], names[old]])
        cluster.in_sync(late, {late, old})
        cluster.send(b"b")
        for machine in machines.values():
            machine.is_kept_down = True
        for machine in machines.values():
            machine.power_cut()
        world.network.heal()
        machines[old].disk.put_back(DATA_DIRECTORY, copy)
        for broker in (leader, old):
            machines[broker].is_kept_down = False
            machines[broker].power_on()
            machines[broker].start()
        world.run_for(20)
        assert all("t" not in cluster.node(b).machine.topics or cluster.state(b).leader is None
                   for b in (leader, old)), "only the late one has all records"  # fmt: skip
        machines[late].power_on()
        cluster.start(late)
        cluster.in_sync(late, {1, 2, 3})
        assert cluster.read(2) == [b"a", b"b"]
        here = cluster.node(old).me.directory_id
        cluster.until(lambda: cluster.node(late).machine.brokers[old].directory_id == here)


def test_a_directory_that_is_not_copied_keeps_its_votes_after_a_power_cut() -> None:
    with World(3, brokers=3) as world:
        cluster = Cluster(world)
        cluster.create(copies=3)
        before = [cluster.node(broker).me.directory_id for broker in (1, 2, 3)]
        for machine in world.brokers:
            machine.is_kept_down = True
            machine.power_cut()
        for machine in world.brokers:
            machine.is_kept_down = False
            machine.power_on()
            machine.start()
        cluster.until(lambda: all(machine.broker is not None for machine in world.brokers))
        cluster.in_sync(1, {1, 2, 3})
        assert [cluster.node(broker).me.directory_id for broker in (1, 2, 3)] == before
