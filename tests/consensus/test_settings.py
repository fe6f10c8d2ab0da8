"""Which settings go together."""

from __future__ import annotations

import pytest

from raftlog.consensus import Applied, CommandFailed, StateMachine
from raftlog.consensus.settings import ConsensusSettings
from tests.consensus.harness import GROUP, ListMachine, Network


def test_the_defaults_go_together() -> None:
    assert ConsensusSettings().election_timeout_ms == 3_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tick_ms", 0),
        ("propose_timeout_ms", -1),
        ("heartbeat_ms", 1_001),  # a third of the election timeout at most
        ("heartbeat_ms", 49),  # at least a tick
        ("suspect_timeout_ms", 3_001),
        ("seal_after_entries", 9),
        ("command_bytes_max", 2_000_000),
    ],
)
def test_values_that_do_not_go_together_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        ConsensusSettings(**{name: value})


# -- machine ---------------------------------------------------------------------------------------
#
# What a group makes of machines that keep their contract, and of one that does not.


class Fragile(ListMachine):
    def apply(self, command: bytes) -> object:
        if command == b"boom":
            raise ZeroDivisionError("a defect")
        return super().apply(command)


def test_a_machine_that_raises_does_not_stop_its_group() -> None:
    network = Network()  # hazard 16
    for broker in network.brokers.values():
        broker.open(GROUP, machine=Fragile())
    assert network.agree(b"before") == Applied(1)
    assert network.agree(b"boom") == Applied(CommandFailed("ZeroDivisionError('a defect')"))
    assert network.agree(b"after") == Applied(2)
    network.run(2)
    assert all(broker.commands() == [b"before", b"after"] for broker in network.brokers.values())


def test_a_snapshot_of_one_is_the_state_of_another() -> None:
    one: StateMachine = ListMachine()
    other: StateMachine = ListMachine()
    one.apply(b"a")
    other.restore(one.snapshot())
    assert one.apply(b"b") == other.apply(b"b") == 2
    assert one.snapshot() == other.snapshot()
