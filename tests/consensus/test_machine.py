"""What a group makes of machines that keep their contract, and of one that does not."""

from __future__ import annotations

from raftlog.consensus import Applied, CommandFailed, StateMachine
from tests.consensus.harness import GROUP, ListMachine, Network


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
