"""The operator of a simulated cluster has it go on after the loss of most of its disks."""

from __future__ import annotations

from dataclasses import replace

from raftlog.testing.simulator.faults import FaultPlan
from raftlog.testing.simulator.operators import _are_all_there
from raftlog.testing.simulator.scenario import Scenario, run
from tests.server.cluster.simulated import Cluster, growing_world


def test_a_cluster_outlives_the_loss_of_all_disks_but_one() -> None:
    """Nothing acknowledged is lost, and there is one cluster."""
    scenario = Scenario.draw(103, brokers=3, light=True)
    verdict = run(
        replace(
            scenario,
            faults=FaultPlan(kinds=("wipe_several",), every_s=0.5),
            workload=replace(scenario.workload, replication_factor=3),
            is_left_out=False,
        )
    )
    assert verdict.is_good, verdict.violations[:5]
    assert verdict.faults["wipe_several"] >= 1


def test_the_operator_asks_again_where_the_broker_that_was_asked_lost_its_power() -> None:
    """The answer never comes, and the client waits for it for minutes."""
    scenario = Scenario.draw(5300373, brokers=3, light=True, compacted=True, kafka=False)
    verdict = run(replace(scenario, two_disks=()))
    assert verdict.is_good, verdict.violations[:5]
    assert verdict.faults["wipe_several"] >= 1


def test_the_operator_waits_for_no_broker_outside_the_cluster() -> None:
    """It has no records, and never connects."""
    with growing_world(3, brokers=5) as world:
        cluster = Cluster(world)
        cluster.until(lambda: _are_all_there(world))
        world.network.cut("broker-1", "broker-5")
        assert _are_all_there(world)
        cluster.join(4)
        cluster.until(lambda: _are_all_there(world))
        world.network.cut("broker-1", "broker-4")
        assert not _are_all_there(world)
