"""An hour of twelve brokers with a thousand partitions, in virtual time: brokers crash in turn.

The report has, for each crash, the virtual seconds until all partitions have another leader, and
until all replicas are in sync again after the restart.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Final

import pytest

from raftlog.replication.partition_state import PartitionState
from raftlog.testing.simulator.world import World
from tests.server.cluster.simulated import Cluster

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(7_200)]

BROKERS: Final = 12
PARTITIONS: Final = 1_000
COPIES: Final = 3
HOUR_S: Final = 3_600.0
EVENTS_PER_HOUR_MAX: Final = 100_000_000  # an hour takes about 60 million
BETWEEN_CRASHES_S: Final = 300.0
LEADERS_S_MAX: Final = 10.0
IN_SYNC_S_MAX: Final = 60.0


def states(cluster: Cluster, asked: int) -> Iterator[PartitionState | None]:
    """Of each partition, as that broker knows it: None until it has received one."""
    node = cluster.node(asked)
    topic = node.machine.topics["t"]
    return (node.partitions.state_of(topic.id, partition) for partition in range(PARTITIONS))


def leaders(cluster: Cluster, asked: int) -> list[int | None]:
    return [None if state is None else state.leader for state in states(cluster, asked)]


def are_in_sync(cluster: Cluster, asked: int) -> bool:
    return all(
        state is not None and state.leader is not None and len(state.isr) == COPIES
        for state in states(cluster, asked)
    )


def crash(cluster: Cluster, victim: int) -> tuple[int, float, float]:
    """Kill a broker, and start it again: partitions that it led, seconds until all have another
    leader, and until all are in sync.
    """
    asked, world = victim % BROKERS + 1, cluster.world
    led = leaders(cluster, asked).count(victim)
    machine = world.brokers[victim - 1]
    machine.is_kept_down = True
    began = world.time.now
    machine.kill()
    cluster.until(lambda: not {victim, None} & set(leaders(cluster, asked)), limit_s=LEADERS_S_MAX)
    led_again = world.time.now - began
    world.run_for(10)
    began = world.time.now
    cluster.start(victim)
    cluster.until(lambda: are_in_sync(cluster, asked), limit_s=IN_SYNC_S_MAX)
    return led, led_again, world.time.now - began


def run(hours: float) -> Iterator[str]:
    """Rows of the report."""
    began = time.process_time()
    with World(1, brokers=BROKERS, events_max=EVENTS_PER_HOUR_MAX) as world:
        cluster = Cluster(world)
        cluster.create(partitions=PARTITIONS, copies=COPIES)
        cluster.until(lambda: are_in_sync(cluster, 1))
        ends = world.time.now + hours * HOUR_S
        for victim in cycle(range(1, BROKERS + 1)):
            world.run_for(BETWEEN_CRASHES_S)
            led, led_again, in_sync = crash(cluster, victim)
            world.check()
            yield (
                f"at {world.time.now:.0f} s: broker {victim} led {led}; others after "
                f"{led_again:.2f} s; in sync {in_sync:.2f} s after its restart; "
                f"CPU {time.process_time() - began:.0f} s"
            )
            if world.time.now >= ends:
                return


def test_an_hour_of_twelve_brokers_with_a_thousand_partitions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for row in run(1.0):
        with capsys.disabled():
            sys.stdout.write(f"\n{row}")
