"""Seeds that once were bad, each with what was wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.server.broker import Broker
from raftlog.testing.simulator import mirroring, transacting
from raftlog.testing.simulator.faults import HANGS
from raftlog.testing.simulator.scenario import Scenario, run
from raftlog.testing.simulator.world import CLUSTER_SECRET, ClientMachine, World
from raftlog.types import NewTopic
from tests.server.cluster.simulated import Cluster

pytestmark = [pytest.mark.simulated, pytest.mark.seeds]


def test_a_follower_learns_where_the_log_starts_though_nothing_is_appended() -> None:
    """It learned of deleted records with the next ones only, and would have shown them again."""
    verdict = run(Scenario.draw(15, brokers=3, kafka=False))
    assert verdict.is_good, verdict.violations[:10]


def test_a_leader_whose_clock_is_behind_stamps_no_record_as_expired() -> None:
    """It led before a majority of the clocks was known."""
    scenario = Scenario.draw(2_916_460_075, mode="liveness", brokers=5, light=True, compacted=False)
    verdict = run(scenario)
    assert verdict.is_good, verdict.violations[:10]


def test_two_clocks_that_jump_before_a_time_is_saved_delete_nothing() -> None:
    """Both brokers ended before they had compared their clocks, and came back hours ahead."""
    verdict = run(Scenario.draw(3_355_841_205, brokers=2, compacted=False))
    assert verdict.is_good, verdict.violations[:10]


def test_a_move_ends_though_a_witness_was_removed_meanwhile() -> None:
    """Its group had added the witness while that broker was decommissioned."""
    verdict = run(Scenario.draw(103_993_080, brokers=4, light=True, compacted=False))
    assert verdict.is_good, verdict.violations[:10]


def test_a_commit_of_before_a_member_joined_again_is_refused() -> None:
    """It came after the member had read the committed offset again, and was acknowledged."""
    scenario = Scenario.draw(41_982_882, mode="liveness", brokers=3, light=True, compacted=False)
    verdict = run(scenario)
    assert verdict.is_good, verdict.violations[:10]


def test_a_backup_misses_no_tombstone_that_only_another_replica_has_removed() -> None:
    """It read one replica, and asked the leader what had been removed."""
    result = mirroring.run(replace(mirroring.MirrorPlan.draw(4_173_745_218), disks=None))
    assert not result.violations


def test_a_transaction_ends_though_the_disk_of_its_coordinator_hung() -> None:
    """The decision was committed late, and its markers were never sent."""
    result = transacting.run(transacting.TransactionPlan.draw(49))
    assert not result.violations


@pytest.mark.nightly
def test_a_slow_disk_in_sync_costs_no_kafka_producer_its_patience() -> None:
    """A false alarm: its requests time out after a second, and the disk took as long for each."""
    verdict = run(Scenario.draw(3_635_289_319, mode="liveness", brokers=5))
    assert verdict.is_good, verdict.violations[:10]


@pytest.mark.parametrize("seed", [6001])
def test_a_leader_whose_disk_hangs_hands_over(seed: int) -> None:
    """It led for ever, and the other two brokers could acknowledge nothing."""
    verdict = run(Scenario.draw(seed, mode="liveness", brokers=3, kafka=False))
    assert verdict.is_good, verdict.violations[:10]


@pytest.mark.parametrize(
    "seed",
    [
        # A consumer failed without metadata of a recreated topic, a member committed an offset of
        # the deleted topic, and another one began again at offset 0.
        *(9101163, 9106578, 9109620),
        # The connection of the operator was lost during a recovery, which continued. A second one
        # had seen a partition before the first had recovered it, and started it from the same state
        # again.
        20241044,
        # Brokers do not read sectors of deleted records, which may be unreadable; the checker read
        # none of the records after them.
        800037,
    ],
)
def test_a_light_world_that_was_bad_once(seed: int) -> None:
    verdict = run(Scenario.draw(seed, brokers=3, light=True, kafka=False))
    assert verdict.is_good, verdict.violations[:10]


@pytest.mark.parametrize("seed", [20240282])
def test_a_leader_that_restarts_does_not_trust_the_first_state(seed: int) -> None:
    """Its group had no term in its journal, but it had led by the base (ADR 64) and acknowledged
    records that a power failure removed.
    """
    verdict = run(Scenario.draw(seed, brokers=3, light=True, kafka=False))
    assert verdict.is_good, verdict.violations[:10]


def with_hung_journal(world: World, *, alone: bool) -> bool:
    """Whether a broker, one of three, that has something to write to its journal ends."""
    world.boot()
    world.run_for(5)
    machine, *others = world.brokers
    machine.hang(HANGS["journal"]())
    for other in others:
        other.kill()
    world.run_for(1.2)  # they are back, in another boot: there is something to remember
    for other in others if alone else ():
        other.is_kept_down = True
        other.kill()
    refused = len(machine.refusals)
    return world.run_until(lambda: len(machine.refusals) > refused, limit_s=20)


def test_a_broker_whose_journal_hangs_ends() -> None:
    """It could vote on nothing and hand nothing over, and its sessions went on."""
    with World(1, brokers=3) as world:
        assert with_hung_journal(world, alone=False)
        assert "journal waits for a disk that hangs" in world.brokers[0].refusals[-1]


def test_a_broker_whose_journal_hangs_stays_where_nobody_could_go_on() -> None:
    with World(1, brokers=3) as world:
        assert not with_hung_journal(world, alone=True)


def test_a_disk_that_hangs_is_noticed_though_no_log_is_synced() -> None:
    """Nothing was written to a log, and a topic that was created waited for the disk for ever."""
    with World(1, brokers=3) as world:
        Cluster(world)
        world.run_for(5)
        machine = world.brokers[0]
        machine.hang(HANGS["data disk"]())

        async def create(client: ClientMachine) -> None:
            async with AsyncAdmin(
                world.bootstrap, cluster_secret=CLUSTER_SECRET, host=client.host()
            ) as admin:
                await admin.create_topics([NewTopic("t", 3, 3)])

        world.add_client("admin", create).start()
        broker = cast("Broker", machine.broker)
        assert world.run_until(lambda: broker.disk_watch.is_hung, limit_s=8)
