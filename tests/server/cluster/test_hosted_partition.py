"""A partition as this broker takes part in it."""

from __future__ import annotations

import pytest

from raftlog.replication.partition_state import Elect, PartitionMachine
from raftlog.server.cluster.elections import TRANSITIONS, Event, HostedPartition, Stage, group_id
from tests.server.cluster.paper import DISKS, state_of


def test_its_group_and_its_name() -> None:
    hosted = HostedPartition("t", "T1", 3, 2, PartitionMachine(state_of(1, 2).encode()))
    assert hosted.group_id == group_id("T1", 3) == "T1/3"
    assert str(hosted) == "t:3"


def test_its_state_is_what_the_machine_has_now() -> None:
    hosted = HostedPartition("t", "T1", 0, 2, PartitionMachine(state_of(1, 2).encode()))
    hosted.machine.apply(Elect(1, 2, DISKS[2], 5).encode())
    assert (hosted.state.leader, hosted.state.leader_boot) == (2, 5)


def test_two_of_the_same_partition_are_not_the_same() -> None:
    machine = PartitionMachine(state_of(1).encode())
    one, other = (HostedPartition("t", "T1", 0, 1, machine) for _ in range(2))
    assert one != other
    assert len({one, other}) == 2


@pytest.mark.parametrize(
    ("events", "stage"),
    [
        ((), Stage.REPLAYED),
        ((Event.FOUNDED,), Stage.CURRENT),
        ((Event.NO_OP_PROPOSED, Event.NO_OP_APPLIED), Stage.CURRENT),
        ((Event.NO_OP_PROPOSED, Event.NO_OP_FAILED), Stage.REPLAYED),
        ((Event.NO_OP_PROPOSED, Event.ELECTED, Event.NO_OP_FAILED), Stage.CURRENT),
        ((Event.ELECTED, Event.YIELD_PROPOSED, Event.NO_OP_APPLIED), Stage.YIELDING),
        ((Event.ELECTED, Event.YIELD_PROPOSED, Event.ELECTED), Stage.YIELDING),
        ((Event.ELECTED, Event.YIELD_PROPOSED, Event.YIELD_ENDED), Stage.CURRENT),
    ],
)
def test_its_stage_follows_the_table(events: tuple[Event, ...], stage: Stage) -> None:
    hosted = HostedPartition("t", "T1", 0, 2, PartitionMachine(state_of(1, 2).encode()))
    for event in events:
        hosted.on(event)
    assert hosted.stage is stage
    assert hosted.is_current == (stage in {Stage.CURRENT, Stage.YIELDING})


def test_what_is_current_stays_current() -> None:
    """Only a restart brings an older state back."""
    current = {Stage.CURRENT, Stage.YIELDING}
    for stage in current:
        assert set(TRANSITIONS[stage].values()) <= current
