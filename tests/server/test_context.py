"""What is shared: turns."""

from __future__ import annotations

from tests.server.harness import RunningBroker


def test_turns_grow(broker: RunningBroker) -> None:
    context = broker.broker.context
    turns = broker.call(lambda: [context.next_turn() for _ in range(3)])
    assert turns == sorted(set(turns))
